/* What is not finite, on real daemons, is said with the tensors' names. Results though the gradients were are
 * counted in each version once, whoever is asked again, and under the policy they are the end of it until
 * somebody acts. Gradients are told alike by any number of shards. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "tests/support/suite.h"
#include "tests/support/tiny_job.h"

enum { ELEMS = 600000, SPOILED = 5 };

static struct cluster cluster;
static cairn *session;
static cairn_job *job;

static void start(cairn_nonfinite policy)
{
    struct tiny_job tiny;
    tiny_describe(&tiny, ELEMS);
    tiny.spec.on_nonfinite = policy;
    cluster_start(&cluster, 2, NULL);
    session = tiny_session(&cluster, NULL);
    job = tiny_open(session, "tiny", &tiny);
}

static void end(void)
{
    cairn_close(session);
    cluster_stop(&cluster);
}

/* A round with finite gradients. Of `large` ones the square is infinite: two elements at the beginning of the
 * tensor, three at its end, which is on the other shard. */
static struct cairn_result train(bool large)
{
    static float gradient[ELEMS];
    struct cairn_result result = { .struct_size = sizeof result };
    for (int i = 0; i < ELEMS; i++)
        gradient[i] = large && (i < 2 || i >= ELEMS - (SPOILED - 2)) ? 1e25f : 0.5f;
    const struct cairn_round round = trainer_begin(job);
    trainer_push(job, &round, "w", gradient);
    good(cairn_commit(job, &round, 1, NULL, 0, CLUSTER_WAIT_MS, &result));
    ck_assert(result.applied && result.finite);
    return result;
}

static void check(const struct cairn_result *result, uint64_t nonfinite, const char *tensors)
{
    ck_assert_uint_eq(result->nonfinite, nonfinite);
    ck_assert_str_eq(result->nonfinite_tensors, tensors);
}

/* Second moments that are finite again. */
static void mend(void)
{
    static float zeros[ELEMS];
    const struct cairn_mem mem = trainer_mem(zeros, CAIRN_F32);
    struct cairn_version version;
    good(cairn_write_begin(job, CLUSTER_WAIT_MS));
    good(cairn_put(job, "w", "exp_avg_sq", NULL, &mem, NULL));
    good(cairn_write_end(job, CLUSTER_WAIT_MS, &version));
}

static void restart_coordinator(void)
{
    cluster_kill_coordinator(&cluster);
    cluster_restart_coordinator(&cluster);
}

static void expect_halted(void)
{
    struct cairn_round round = { .struct_size = sizeof round };
    fails(cairn_round_begin(job, CLUSTER_WAIT_MS, &round), CAIRN_ERR_HALTED,
          "job tiny is halted at step 2: 5 elements have a non-finite result of "
          "the update: w (5)");
}

static bool is_shown(const char *text)
{
    struct cluster_said said;
    cluster_cli(&cluster, &said, "job", "show", "tiny", NULL);
    ck_assert_msg(said.status == 0, "%s", said.err);
    return strstr(said.out, text) != NULL;
}

TEST(under_skip_each_step_says_what_is_not_finite_and_training_goes_on)
{
    start(CAIRN_NONFINITE_SKIP);
    struct cairn_result result = train(false);
    check(&result, 0, "");
    ck_assert(!is_shown("non-finite result"));
    result = train(true);
    check(&result, SPOILED, "w (5)");
    ck_assert(is_shown("the last update left a non-finite result in 5 elements: w (5)"));
    const char *said =
        "job tiny: 5 elements have a non-finite result after the update to step 2: w (5)";
    ck_assert_int_eq(cluster_logged(&cluster, "coordinator.log", said), 1);
    said = "elements here have a non-finite result after the update to step 2: w";
    ck_assert_int_eq(cluster_logged(&cluster, "shard-0.log", said) +
                         cluster_logged(&cluster, "shard-1.log", said),
                     2);
    restart_coordinator(); // the shards tell it again, and it counts them once
    result = train(false);
    check(&result, SPOILED, "w (5)");
    restart_coordinator();
    good(cairn_version_wait(job, result.version, CLUSTER_WAIT_MS, &result.version));
    ck_assert(is_shown("a non-finite result in 5 elements"));
    mend();
    ck_assert(!is_shown("a non-finite result in 5 elements"));
    result = train(false);
    check(&result, 0, "");
    end();
}

TEST(under_fail_no_further_round_opens_until_the_planes_are_written)
{
    start(CAIRN_NONFINITE_FAIL);
    struct cairn_result result = train(false);
    check(&result, 0, "");
    result = train(true);
    check(&result, SPOILED, "w (5)");
    expect_halted();
    ck_assert(is_shown("halted"));
    ck_assert_int_eq(cluster_logged(&cluster, "coordinator.log", "job tiny is halted at step 2: "),
                     1);
    restart_coordinator();
    expect_halted();
    mend();
    result = train(false);
    check(&result, 0, "");
    ck_assert(is_shown("running"));
    end();
}

/* ---- snapshots ---- */

/* `cairn snapshot WORD tiny ...`, which succeeds. */
static void snapshot(struct cluster_said *said, const char *word, const char *id, const char *last)
{
    cluster_cli(&cluster, said, "snapshot", word, "tiny", id, last, NULL);
    ck_assert_msg(said->status == 0, "%s", said->err);
}

static void says(const char *text, const char *expected)
{
    ck_assert_msg(strstr(text, expected) != NULL, "%s", text);
}

TEST(a_snapshot_of_a_damaged_job_says_so_and_is_restored_by_its_id_alone)
{
    struct cluster_said said;
    start(CAIRN_NONFINITE_SKIP);
    train(false);
    snapshot(&said, "create", "--wait", NULL);
    ck_assert_ptr_null(strstr(said.err, "damaged")); // a busy machine may be told who is waited for
    train(true);
    snapshot(&said, "create", "--wait", NULL);
    says(said.err, "it is damaged, with a non-finite result in 5 elements: w (5)");
    snapshot(&said, "show", "step-000000000002-g1", NULL);
    says(said.out, "the last update left a non-finite result in 5 elements: w (5)");
    snapshot(&said, "restore", "latest", "--yes");
    says(said.err, "snapshot step-000000000002-g1 of job tiny is passed over");
    says(said.out, "step-000000000001-g1");
    ck_assert(!is_shown("damaged"));
    snapshot(&said, "restore", "step-000000000002-g1", "--yes");
    ck_assert(is_shown("the last update left a non-finite result in 5 elements: w (5)"));
    restart_coordinator();
    cluster_cli(&cluster, &said, "job", "digest", "tiny", NULL); // waits for the shards
    ck_assert_msg(said.status == 0, "%s", said.err);
    ck_assert(is_shown("the last update left a non-finite result in 5 elements: w (5)"));
    end();
}

/* ---- gradients ---- */

enum { TENSORS = 10 };

#define SPOILED_TENSORS "t0 (5), t1 (1), t2 (1), t3 (1), t4 (1), t5 (1), t6 (1), t7 (1) and others"
#define SPOILED_SAID    "the gradient of " SPOILED_TENSORS " is not finite (14 elements)"

/* Ten tensors: the first is on all shards, the others are on one of them each. */
static void start_many(int shards, cairn_nonfinite policy)
{
    static char names[TENSORS][4];
    static struct cairn_tensor tensors[TENSORS];
    for (int t = 0; t < TENSORS; t++) {
        snprintf(names[t], sizeof names[t], "t%d", t);
        tensors[t] = (struct cairn_tensor)TRAINER_ONES(names[t], NULL, t == 0 ? ELEMS : 100);
    }
    struct cairn_job_spec spec = trainer_spec(tensors, TENSORS);
    spec.on_nonfinite = policy;
    cluster_start(&cluster, shards, NULL);
    session = tiny_session(&cluster, NULL);
    job = trainer_ready(session, "tiny", &spec);
}

/* A round that is spoiled at both ends of the first tensor and at the beginning of each other, or not at
 * all. */
static cairn_status train_many(bool spoiled, struct cairn_result *out)
{
    static float gradients[TENSORS][ELEMS];
    const struct cairn_round round = trainer_begin(job);
    *out = (struct cairn_result) { .struct_size = sizeof *out };
    for (int t = 0; t < TENSORS; t++) {
        char name[4];
        snprintf(name, sizeof name, "t%d", t);
        for (int i = 0; i < ELEMS; i++) {
            const bool here = i == 0 || (t == 0 && (i == 1 || i >= ELEMS - 3));
            gradients[t][i] = !spoiled || !here ? 0.5f : i == 0 ? NAN : -INFINITY;
        }
        trainer_push(job, &round, name, gradients[t]);
    }
    return cairn_commit(job, &round, 1, NULL, 0, CLUSTER_WAIT_MS, out);
}

TEST(a_skip_says_which_gradients_are_not_finite_with_any_number_of_shards)
{
    for (int shards = 1; shards <= 3; shards++) {
        struct cairn_result result;
        start_many(shards, CAIRN_NONFINITE_SKIP);
        good(train_many(true, &result));
        ck_assert(!result.applied && !result.finite);
        check(&result, 14, SPOILED_TENSORS);
        ck_assert(is_shown(SPOILED_SAID));
        ck_assert_int_eq(cluster_logged(&cluster, "coordinator.log",
                                        "of step 0 is skipped, because " SPOILED_SAID),
                         1);
        restart_coordinator(); // who has heard no sums of that round
        good(cairn_version_wait(job, result.version, CLUSTER_WAIT_MS, &result.version));
        ck_assert(is_shown("a gradient is not finite"));
        good(train_many(false, &result));
        ck_assert(result.applied);
        check(&result, 0, "");
        ck_assert(!is_shown("is not finite"));
        end();
    }
}

TEST(a_round_that_fails_says_which_gradients_are_not_finite_and_what_to_do)
{
    struct cairn_result result;
    start_many(2, CAIRN_NONFINITE_FAIL);
    fails(train_many(true, &result), CAIRN_ERR_NONFINITE, SPOILED_SAID);
    ck_assert_msg(strstr(cairn_error(), "before they are pushed") != NULL, "%s", cairn_error());
    ck_assert(is_shown(SPOILED_SAID));
    good(train_many(false, &result));
    ck_assert(!is_shown("is not finite"));
    end();
}

SUITE(90);
