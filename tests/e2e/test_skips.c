/* Rounds whose gradients are not finite, on real daemons: their batches are used up and counted, through a
 * killed coordinator and into snapshots, and too many of them in a row end it until somebody acts. */
#include <math.h>

#include "tests/e2e/scene.h"

enum { ELEMS = 5000, MAX = 4 };

static void enter(void)
{
    join("tiny", TINY(ELEMS, .skips_max = MAX));
}

static struct cairn_round begin(void)
{
    const struct cairn_round round = trainer_begin(job);
    ck_assert_uint_eq(round.index, round.step + round.skips);
    return round;
}

/* A round of the batch `index`, whose gradients are that. */
static struct cairn_result train_batch(uint64_t index, float value)
{
    const struct cairn_round round = begin();
    ck_assert_uint_eq(round.index, index);
    tiny_push(job, &round, ELEMS, value);
    const struct cairn_result result = trainer_result(job, &round);
    ck_assert_uint_eq(result.index, index + 1);
    ck_assert(result.applied == isfinite(value) && result.finite == isfinite(value));
    return result;
}

static void expect_halted(void)
{
    expect_refusal(job, CAIRN_ERR_HALTED, "4 rounds in a row were skipped");
}

TEST(a_skip_uses_its_batch_up_whoever_dies_and_wherever_it_is_restored)
{
    char id[128];
    start(2);
    enter();
    (void)train_batch(0, 0.5f);
    ck_assert_uint_eq(train_batch(1, NAN).skips, 1);
    ck_assert_uint_eq(train_batch(2, INFINITY).step, 1);
    struct cairn_round round = begin(); // void: its batch comes again
    tiny_push(job, &round, ELEMS, 1);
    good(cairn_round_abandon(job, &round, CLUSTER_WAIT_MS));
    round = begin();
    ck_assert_uint_eq(round.index, 3);
    restart_coordinator();
    tiny_push(job, &round, ELEMS, 1);
    ck_assert_int_eq(trainer_try_commit(job, &round, NULL, 0, CLUSTER_WAIT_MS),
                     CAIRN_ERR_EPOCH_CHANGED);
    ck_assert_uint_eq(train_batch(3, 0.5f).step, 2);
    says(0, "2 in all; the next batch is number 4", "job show tiny");
    word_of(id, "snapshot create -q tiny --wait");
    (void)train_batch(4, NAN);
    leave();
    says(0, "", "snapshot restore tiny %s --yes", id);
    enter();
    ck_assert_uint_eq(train_batch(4, 0.5f).skips, 2);
}

TEST(too_many_in_a_row_end_it_until_the_job_is_amended_or_restored)
{
    char id[128];
    start(2);
    enter();
    for (uint64_t i = 0; i < MAX; i++) (void)train_batch(i, NAN);
    expect_halted();
    ck_assert(logged("coordinator.log",
                     "of step 0 is skipped, because the gradient of w (5000) is not finite "
                     "(5000 elements): 1 in a row"));
    ck_assert(
        logged("coordinator.log", "job tiny is halted at step 0: 4 rounds in a row were skipped"));
    ck_assert(
        logged("coordinator.log", "; in the last one the gradient of w (5000) is not finite"));
    says(0, "halted", "job show tiny");
    says(0, "the gradient of w (5000) is not finite (5000 elements)", "job show tiny");
    says(0, "4 in a row with the loss scale at its least, at most 4", "job show tiny");
    word_of(id, "snapshot create -q tiny --wait");
    restart_coordinator();
    expect_halted();
    struct cairn_group group = CAIRN_GROUP_INIT;
    group.lr /= 2;
    const struct cairn_amend amend = { .struct_size = sizeof amend,
                                       .groups = &group,
                                       .group_count = 1 };
    good(cairn_job_amend(job, &amend, CLUSTER_WAIT_MS));
    (void)train_batch(MAX, NAN);
    restart_coordinator();
    (void)train_batch(MAX + 1, 0.5f);
    for (uint64_t i = 0; i < MAX; i++) (void)train_batch(MAX + 2 + i, NAN);
    expect_halted();
    leave();
    says(0, "", "snapshot restore tiny %s --yes", id); // of when it was halted
    enter();
    (void)train_batch(MAX, 0.5f);
    says(0, "running", "job show tiny");
}

TEST(of_a_job_that_is_damaged_already_the_halt_says_what_mends_it)
{
    start(2);
    enter();
    (void)train_batch(0, 1e25f); // its square is infinite
    for (uint64_t i = 0; i < MAX; i++) (void)train_batch(1 + i, NAN);
    expect_halted();
    expect_error("5000 elements have a non-finite result of the last update: w (5000); no round "
                 "opens until the job is restored from a snapshot, or these planes are written");
    ck_assert_ptr_null(strstr(cairn_error(), "lower lr"));
}

SUITE(90, .tear_down = stop);
