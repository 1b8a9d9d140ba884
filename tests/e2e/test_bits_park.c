/* A job is parked while it trains, over a coordinator that dies meanwhile, and taken back: the same bits.
 * With CAIRN_TEST_BACKEND=cuda it leaves the card for that time; in host memory nothing is moved. */

#include "tests/e2e/crew.h"
#include "tests/e2e/scene.h"
#include "tests/support/test_backend.h"

enum { SHARDS = 2 };

static bool is_on_card(void)
{
    return strcmp(cairn_test_backend(), "cuda") == 0;
}

static void await_on_card(bool wanted)
{
    await((ask("job show " BITS_JOB " -o json"), (said_number("memory.device") > 0) == wanted));
}

static void train_to(uint64_t until_step, uint32_t skipped)
{
    crew_train_quietly(
        &(struct crew) { .job = &bits_job, .endpoint = cluster.address, .until_step = until_step },
        skipped);
}

static uint64_t step_shown(void)
{
    ask("job show " BITS_JOB " -o json");
    return (uint64_t)said_number("step");
}

TEST(a_job_that_is_parked_while_it_trains_goes_on_with_the_same_bits)
{
    struct crew_run run;
    const char *note = is_on_card() ? "" : "nothing was moved";
    start(SHARDS);
    crew_start(&run, &(struct crew) {
                         .job = &bits_job, .endpoint = cluster.address, .until_step = BITS_STEPS });
    crew_await(&run, 5);
    says(0, "", "job park %s", BITS_JOB);
    ask("job park %s", BITS_JOB); // is so already
    expect_said(0, note);
    if (is_on_card()) await_on_card(false);
    await_said("`cairn job unpark bits`: job bits is parked", "job show %s", BITS_JOB);
    const uint64_t step = step_shown();
    ck_assert_uint_lt(step, BITS_STEPS);
    bits_check_root_at(cluster.address, step);
    says(0, "", "snapshot create %s --wait", BITS_JOB);

    restart_coordinator();
    await_said("`cairn job unpark bits`: job bits is parked", "job show %s",
               BITS_JOB); // the shards say so
    ck_assert_uint_eq(step_shown(), step);
    // Before that it is not running yet, or being parked again.
    await((ask("job unpark " BITS_JOB), said.status == 0));
    if (is_on_card()) await_on_card(true);
    crew_join(&run);
    crew_check_root(cluster.address, &bits_job, BITS_GOLDEN_ROOT);
}

TEST(a_parked_job_is_dropped_or_restored_as_any_other)
{
    char id[CLUSTER_WORD_BYTES];
    start(SHARDS);
    train_to(20, 1);
    says(0, "", "job park %s", BITS_JOB);
    word_of(id, "snapshot create %s --wait -q", BITS_JOB);
    says(0, "", "snapshot restore %s %s --yes", BITS_JOB, id);
    if (is_on_card()) await_on_card(true); // where it lay
    train_to(BITS_STEPS, 0);
    crew_check_root(cluster.address, &bits_job, BITS_GOLDEN_ROOT);
    says(0, "", "job park %s", BITS_JOB);
    says(0, "", "job drop %s --yes", BITS_JOB);
    says(4, "there is no job \"bits\"", "job unpark %s", BITS_JOB);
}

SUITE(60, .tear_down = stop);
