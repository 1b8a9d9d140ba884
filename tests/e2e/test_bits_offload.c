/* A part of the state in host memory beside a device (offload_fraction): the same bits at any fraction, over
 * a shard that dies and a snapshot that is restored, which finds its place again. With
 * CAIRN_TEST_BACKEND=cuda the rest lies on the card; without it all of it is in host memory anyway, which the
 * shard says. */
#include <jansson.h>
#include <stdio.h>
#include <string.h>

#include "tests/e2e/bits_check.h"
#include "tests/support/suite.h"
#include "tests/support/test_backend.h"

enum { SHARDS = 2, HALFWAY = 20 };

static struct cluster cluster;
static struct cluster_said said;

/* Of what was said. */
static json_int_t memory_said(const char *kind)
{
    ck_assert_msg(said.status == 0, "%s", said.err);
    json_t *object = json_loads(said.out, 0, NULL);
    const json_int_t bytes = json_integer_value(
        json_object_get(json_object_get(object, "memory"), kind));
    json_decref(object);
    return bytes;
}

static json_int_t memory_of(const char *kind)
{
    cluster_cli(&cluster, &said, "job", "show", BITS_JOB, "-o", "json", NULL);
    return memory_said(kind);
}

/* What heartbeats tell by and by is awaited: both of a split job, one of the others. */
static void check_place(double fraction)
{
    const bool has_device = strcmp(cairn_test_backend(), "cuda") == 0;
    const bool on_device = has_device && fraction < 1, on_host = !has_device || fraction > 0;
    bool is_so = false;
    for (int tries = 0; tries < 1000 && !is_so; tries++) {
        if (tries > 0) usleep(20000);
        is_so = (memory_of("device") > 0) == on_device && (memory_of("state") > 0) == on_host;
    }
    ck_assert_msg(is_so, "at %g: %s", fraction, said.out);
    const json_int_t device = memory_said("device"), state = memory_said("state");
    cluster_cli(&cluster, &said, "job", "plan", BITS_JOB, "--backend", cairn_test_backend(), "-o",
                "json", NULL);
    ck_assert_int_eq(memory_said("device"), device); // as was planned
    ck_assert_int_eq(memory_said("state"), state);
}

static void train(double fraction, uint64_t until_step, uint32_t skipped)
{
    bits_train_quietly(
        (struct bits_worker) { .until_step = until_step, .offload_fraction = fraction },
        cluster.address, skipped);
}

static const double fractions[] = { 0, 0.5, 1 };

TEST_EACH(at_any_fraction_the_bits_are_the_same_and_a_restored_job_lies_where_it_lay, 0, 3)
{
    const double fraction = fractions[_i];
    if (_i != 1 && strcmp(cairn_test_backend(), "cuda") != 0) return; // all the same
    char id[CLUSTER_WORD_BYTES];
    cluster_start(&cluster, SHARDS, NULL);
    train(fraction, HALFWAY, 1);
    check_place(fraction);
    cluster_word(&cluster, id, "snapshot", "create", BITS_JOB, "--wait", "-q", NULL);
    cluster_kill_shard(&cluster, 0);
    cluster_restart_shard(&cluster, 0);
    cluster_says(&cluster, 0, "", "snapshot", "restore", BITS_JOB, id, "--yes", NULL);
    check_place(fraction);
    train(fraction, BITS_STEPS, 0);
    bits_check_root(cluster.address, BITS_GOLDEN_ROOT);
    cluster_stop(&cluster);
}

TEST(a_shard_without_a_device_says_that_a_fraction_means_nothing)
{
    ck_assert_int_eq(setenv("CAIRN_TEST_BACKEND", "host", 1), 0);
    cluster_start(&cluster, 1, NULL);
    train(0.5, 1, 0);
    check_place(0.5);
    ck_assert_int_eq(
        cluster_logged(&cluster, "shard-0.log", "offload_fraction 0.5 means nothing here"), 1);
    cluster_cli(&cluster, &said, "job", "show", BITS_JOB, NULL);
    ck_assert_msg(strstr(said.out, "0.5 of the state in host memory") != NULL, "%s", said.out);
    cluster_stop(&cluster);
}

SUITE(60);
