/* A job is parked while it trains, over a coordinator that dies meanwhile, and taken back: the same bits.
 * With CAIRN_TEST_BACKEND=cuda it leaves the card for that time; in host memory nothing is moved. */
#include <jansson.h>
#include <string.h>

#include "tests/e2e/bits_check.h"
#include "tests/support/suite.h"
#include "tests/support/test_backend.h"

enum { SHARDS = 2, TRIES = 1000 };

static struct cluster cluster;
static struct cluster_said said;

static bool is_on_card(void)
{
    return strcmp(cairn_test_backend(), "cuda") == 0;
}

static void await_on_card(bool wanted)
{
    json_int_t device = -1;
    for (int tries = 0; tries < TRIES && (device > 0) != wanted; tries++) {
        cluster_cli(&cluster, &said, "job", "show", BITS_JOB, "-o", "json", NULL);
        json_t *object = json_loads(said.out, 0, NULL);
        device = json_integer_value(json_object_get(json_object_get(object, "memory"), "device"));
        json_decref(object);
    }
    ck_assert_msg((device > 0) == wanted, "%s", said.out);
}

static uint64_t step_shown(void)
{
    cluster_cli(&cluster, &said, "job", "show", BITS_JOB, "-o", "json", NULL);
    json_t *object = json_loads(said.out, 0, NULL);
    const uint64_t step = (uint64_t)json_integer_value(json_object_get(object, "step"));
    json_decref(object);
    return step;
}

TEST(a_job_that_is_parked_while_it_trains_goes_on_with_the_same_bits)
{
    struct bits_run run;
    const char *note = is_on_card() ? "" : "nothing was moved";
    cluster_start(&cluster, SHARDS, NULL);
    bits_run_start(&run,
                   &(struct bits_worker) { .endpoint = cluster.address, .until_step = BITS_STEPS },
                   BITS_WORKERS);
    bits_run_await(&run, 5);
    cluster_says(&cluster, 0, "", "job", "park", BITS_JOB, NULL);
    cluster_cli(&cluster, &said, "job", "park", BITS_JOB, NULL); // is so already
    ck_assert_msg(said.status == 0 && strstr(said.out, note) != NULL, "%s", said.out);
    if (is_on_card()) await_on_card(false);
    cluster_await(&cluster, true, "`cairn job unpark bits`: job bits is parked", "job", "show",
                  BITS_JOB, NULL);
    const uint64_t step = step_shown();
    ck_assert_uint_lt(step, BITS_STEPS);
    bits_check_root_at(cluster.address, step);
    cluster_says(&cluster, 0, "", "snapshot", "create", BITS_JOB, "--wait", NULL);

    cluster_kill_coordinator(&cluster);
    cluster_restart_coordinator(&cluster);
    cluster_await(&cluster, true, "`cairn job unpark bits`: job bits is parked", "job", "show",
                  BITS_JOB, NULL); // the shards say so
    ck_assert_uint_eq(step_shown(), step);
    for (int tries = 0; tries < TRIES; tries++) {
        cluster_cli(&cluster, &said, "job", "unpark", BITS_JOB, NULL);
        if (said.status == 0) break; // before that it is not running yet, or being parked again
    }
    ck_assert_msg(said.status == 0, "%s", said.err);
    if (is_on_card()) await_on_card(true);
    bits_run_join(&run);
    bits_check_root(cluster.address, BITS_GOLDEN_ROOT);
    cluster_stop(&cluster);
}

TEST(a_parked_job_is_dropped_or_restored_as_any_other)
{
    char id[CLUSTER_WORD_BYTES];
    cluster_start(&cluster, SHARDS, NULL);
    bits_train_quietly((struct bits_worker) { .until_step = 20 }, cluster.address, 1);
    cluster_says(&cluster, 0, "", "job", "park", BITS_JOB, NULL);
    cluster_word(&cluster, id, "snapshot", "create", BITS_JOB, "--wait", "-q", NULL);
    cluster_says(&cluster, 0, "", "snapshot", "restore", BITS_JOB, id, "--yes", NULL);
    if (is_on_card()) await_on_card(true); // where it lay
    bits_train_quietly((struct bits_worker) { .until_step = BITS_STEPS }, cluster.address, 0);
    bits_check_root(cluster.address, BITS_GOLDEN_ROOT);
    cluster_says(&cluster, 0, "", "job", "park", BITS_JOB, NULL);
    cluster_says(&cluster, 0, "", "job", "drop", BITS_JOB, "--yes", NULL);
    cluster_says(&cluster, 4, "there is no job bits", "job", "unpark", BITS_JOB, NULL);
    cluster_stop(&cluster);
}

SUITE(60);
