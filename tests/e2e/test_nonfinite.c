/* What is not finite, on real daemons, is said with the tensors' names. Results though the gradients were are
 * counted in each version once, whoever is asked again, and under the policy they are the end of it until
 * somebody acts. Gradients are told alike by any number of shards. */
#include <math.h>

#include "tests/e2e/scene.h"

enum { ELEMS = 600000, SPOILED = 5 };

static void start_tiny(cairn_nonfinite policy)
{
    start(2);
    join("tiny", TINY(ELEMS, .on_nonfinite = policy));
}

/* A round with finite gradients. Of `large` ones the square is infinite: two elements at the beginning of the
 * tensor, three at its end, which is on the other shard. */
static struct cairn_result train_one(bool large)
{
    static float gradient[ELEMS];
    for (int i = 0; i < ELEMS; i++)
        gradient[i] = large && (i < 2 || i >= ELEMS - (SPOILED - 2)) ? 1e25f : 0.5f;
    const struct cairn_round round = trainer_begin(job);
    trainer_push(job, &round, "w", gradient);
    const struct cairn_result result = trainer_result(job, &round);
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

static void expect_halted(void)
{
    expect_refusal(
        job, CAIRN_ERR_HALTED,
        "job tiny is halted at step 2: 5 elements have a non-finite result of the update: "
        "w (5)");
}

static bool is_shown(const char *text)
{
    ask("job show tiny");
    expect_said(0);
    return strstr(said.out, text) != NULL;
}

TEST(under_skip_each_step_says_what_is_not_finite_and_training_goes_on)
{
    start_tiny(CAIRN_NONFINITE_SKIP);
    struct cairn_result result = train_one(false);
    check(&result, 0, "");
    ck_assert(!is_shown("non-finite result"));
    result = train_one(true);
    check(&result, SPOILED, "w (5)");
    ck_assert(is_shown("the last update left a non-finite result in 5 elements: w (5)"));
    ck_assert_int_eq(logged("coordinator.log", "job tiny: 5 elements have a non-finite result "
                                               "after the update to step 2: w (5)"),
                     1);
    const char *line = "elements here have a non-finite result after the update to step 2: w";
    ck_assert_int_eq(logged("shard-0.log", line) + logged("shard-1.log", line), 2);
    restart_coordinator(); // the shards tell it again, and it counts them once
    result = train_one(false);
    check(&result, SPOILED, "w (5)");
    restart_coordinator();
    good(cairn_version_wait(job, result.version, CLUSTER_WAIT_MS, &result.version));
    ck_assert(is_shown("a non-finite result in 5 elements"));
    mend();
    ck_assert(!is_shown("a non-finite result in 5 elements"));
    result = train_one(false);
    check(&result, 0, "");
}

TEST(under_fail_no_further_round_opens_until_the_planes_are_written)
{
    start_tiny(CAIRN_NONFINITE_FAIL);
    struct cairn_result result = train_one(false);
    check(&result, 0, "");
    result = train_one(true);
    check(&result, SPOILED, "w (5)");
    expect_halted();
    ck_assert(is_shown("halted"));
    ck_assert_int_eq(logged("coordinator.log", "job tiny is halted at step 2: "), 1);
    restart_coordinator();
    expect_halted();
    mend();
    result = train_one(false);
    check(&result, 0, "");
    ck_assert(is_shown("running"));
}

/* ---- snapshots ---- */

TEST(a_snapshot_of_a_damaged_job_says_so_and_is_restored_by_its_id_alone)
{
    start_tiny(CAIRN_NONFINITE_SKIP);
    train_one(false);
    ask("snapshot create tiny --wait");
    expect_said(0);
    ck_assert_ptr_null(strstr(said.err, "damaged")); // a busy machine may be told who is waited for
    train_one(true);
    says(0, "it is damaged, with a non-finite result in 5 elements: w (5)",
         "snapshot create tiny --wait");
    says(0, "the last update left a non-finite result in 5 elements: w (5)",
         "snapshot show tiny step-000000000002-g1");
    ask("snapshot restore tiny latest --yes");
    expect_said(0, "snapshot step-000000000002-g1 of job tiny is passed over",
                "step-000000000001-g1");
    ck_assert(!is_shown("damaged"));
    says(0, "", "snapshot restore tiny step-000000000002-g1 --yes");
    ck_assert(is_shown("the last update left a non-finite result in 5 elements: w (5)"));
    restart_coordinator();
    says(0, "", "job digest tiny"); // waits for the shards
    ck_assert(is_shown("the last update left a non-finite result in 5 elements: w (5)"));
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
    start(shards);
    join_spec("tiny", &spec);
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
        ck_assert_int_eq(logged("coordinator.log", "of step 0 is skipped, because " SPOILED_SAID),
                         1);
        restart_coordinator(); // who has heard no sums of that round
        good(cairn_version_wait(job, result.version, CLUSTER_WAIT_MS, &result.version));
        ck_assert(is_shown("a gradient is not finite"));
        good(train_many(false, &result));
        ck_assert(result.applied);
        check(&result, 0, "");
        ck_assert(!is_shown("is not finite"));
        stop();
    }
}

TEST(a_round_that_fails_says_which_gradients_are_not_finite_and_what_to_do)
{
    struct cairn_result result;
    start_many(2, CAIRN_NONFINITE_FAIL);
    fails(train_many(true, &result), CAIRN_ERR_NONFINITE, SPOILED_SAID);
    expect_error("before they are pushed");
    ck_assert(is_shown(SPOILED_SAID));
    good(train_many(false, &result));
    ck_assert(!is_shown("is not finite"));
}

SUITE(90, .tear_down = stop);
