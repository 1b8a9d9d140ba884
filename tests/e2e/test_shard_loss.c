/* Periodic snapshots, and a job that goes on from the newest one by itself when a shard has lost its part, on
 * real daemons: with the bits of a run that lost nothing. */
#include <inttypes.h>

#include "tests/e2e/scene.h"

enum { ELEMS = 5000, EVERY = 5, KEEP = 2, STEPS = 30, LOST_AT = 18 };

static void enter(const char *name)
{
    join(name, TINY(ELEMS, .snapshot_every = EVERY, .snapshot_keep = KEEP,
                    .on_shard_loss = CAIRN_SHARD_LOSS_RESTORE_LATEST));
}

/* The batch is the step's, so that a step done again is the same. */
static cairn_status try_step(uint64_t *step)
{
    static float gradient[ELEMS];
    for (int i = 0; i < ELEMS; i++) gradient[i] = (float)((i + (int)*step * 7) % 11) - 5;
    return trainer_try_step(job, "w", gradient, step);
}

/* A step takes less than a millisecond here, and a snapshot some more; one that is due while another is under
 * way is left out: until that of the step is committed. */
static void await_snapshot(const char *name, uint64_t step)
{
    char committed[2][128];
    for (int i = 0; i < 2; i++)
        snprintf(committed[i], sizeof committed[i],
                 "snapshot step-%012" PRIu64 "-g%d of job %s committed", step, i + 1, name);
    await(logged("coordinator.log", committed[0]) + logged("coordinator.log", committed[1]) > 0);
}

/* To the last step; at step `lost_at` a shard loses everything. Returns how often the job was rolled back. */
static int train_through(const char *name, uint64_t lost_at)
{
    int rolled_back = 0;
    for (uint64_t step = 0; step < STEPS;) {
        const cairn_status status = try_step(&step);
        if (status == CAIRN_ERR_ROLLED_BACK) {
            cairn_job_close(job);
            enter(name);
            step = newest(job).step;
            ck_assert_uint_eq(step, lost_at - lost_at % EVERY);
            rolled_back++;
        } else if (status != CAIRN_ERR_EPOCH_CHANGED) {
            good(status);
            if (step % EVERY == 0) await_snapshot(name, step);
            if (step == lost_at && rolled_back == 0) restart_shard(1);
        }
    }
    return rolled_back;
}

/* Old ones go behind the newest's back: until so many are left. */
static void expect_snapshots(const char *name, const char *expected)
{
    await((ask("snapshot list -q %s", name), strcmp(said.out, expected) == 0));
}

TEST(a_job_goes_on_from_its_newest_snapshot_with_the_bits_of_one_that_lost_nothing)
{
    char calm[65];
    start(2, .coordinator_set = SETTINGS("lease.heartbeat=100ms"));
    enter("calm");
    ck_assert_int_eq(train_through("calm", 0), 0);
    expect_snapshots("calm", "step-000000000030-g1\nstep-000000000025-g1\n");
    bits(calm);
    leave();
    says(0, "", "job drop calm --yes");
    enter("rough");
    ck_assert_int_eq(train_through("rough", LOST_AT), 1);
    expect_snapshots("rough", "step-000000000030-g2\nstep-000000000025-g2\n");
    expect_bits(calm);
    ask("snapshot list rough");
    expect_said(0, "PERIODIC", "yes");
    ask("job show rough");
    expect_said(0, "every 5 steps, the newest 2 are kept",
                "restore-latest, when it is away for 300 s");
}

/* `cairn job amend` with that option; then `cairn job show` has the words. */
static void amend(const char *option, const char *value, const char *words)
{
    says(0, "", "job amend periodic %s %s", option, value);
    says(0, words, "job show periodic");
}

TEST(an_operator_amends_what_it_does_by_itself_and_what_is_not_named_stays)
{
    start(1);
    enter("periodic");
    amend("--snapshot-every", "7", "every 7 steps, the newest 2 are kept");
    amend("--shard-loss-wait", "60", "restore-latest, when it is away for 60 s");
    amend("--snapshot-keep", "0", "every 7 steps, all are kept");
    amend("--clip-norm", "3", "when it is away for 60 s");
    amend("--on-shard-loss", "restore-latest", "when it is away for 60 s");
    amend("--snapshot-keep", "4", "every 7 steps, the newest 4 are kept");
    amend("--on-shard-loss", "wait", "on shard loss");
    amend("--snapshot-every", "10 min", "every 10 min, the newest 4 are kept");
    amend("--snapshot-keep-every", "500", "newest 4, the first of every 500 steps are");
    amend("--snapshot-keep-within", "36h", "steps, those of the last 36 h are kept");
    amend("--snapshot-max-bytes", "3K", "are kept, at most 2.9 KiB of all");
    amend("--snapshot-staging", "small", "staging           small");
    amend("--snapshot-durable-within", "90", "durable within    90 s");
    amend("--snapshot-scrub-every", "7d", "scrubbed every    7 d");
    amend("--snapshot-fallback", "yes", "fallback          a damaged snapshot");
    says(2, "a time like 90s", "job amend periodic --snapshot-every '10 parsecs'");
    says(2, "state and small are allowed", "job amend periodic --snapshot-staging huge");
    amend("--snapshot-every", "0", "scrubbed every    7 d");
    ask("job show periodic");
    expect_unsaid("are kept");
    expect_unsaid("60 s");
    ask("job amend periodic --workers 1:3");
    expect_said(0);
    expect_unsaid("waits");
    says(0, "for 2 more: a round opens with 3 workers, attached: 1",
         "job amend periodic --workers 3");
    ask("job amend periodic --workers 1");
    says(2, "nothing would change: give an option", "job amend periodic");
    ask("job amend periodic --on-shard-loss never");
    ck_assert_int_ne(said.status, 0);
    expect_said(said.status, "wait and restore-latest are allowed");
    leave();
    enter("periodic"); // with the spec as it was
}

SUITE(90, .tear_down = stop);
