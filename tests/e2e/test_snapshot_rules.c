/* A run that makes twenty snapshots by rules, on real daemons: which stay, what has a tag, what is refused,
 * and a coordinator that is killed in the middle of it. */
#include <inttypes.h>
#include <sys/stat.h>

#include "tests/e2e/scene.h"

enum { ELEMS = 5000, STEPS = 20 };

static void enter(void)
{
    join("kept", TINY(ELEMS, .snapshot_every = 1, .snapshot_keep = 3, .snapshot_keep_every = 5));
}

/* One step, and its snapshot. */
static uint64_t step(void)
{
    static const float gradient[ELEMS];
    char committed[128];
    uint64_t done = 0;
    await(trainer_try_step(job, "w", gradient, &done) == CAIRN_OK); // the coordinator was killed
    snprintf(committed, sizeof committed, "snapshot step-%012" PRIu64 "-g1 of job kept committed",
             done);
    await(logged("coordinator.log", committed) > 0);
    return done;
}

static void expect_listed(const char *expected)
{
    await((ask("snapshot list -q kept"), strcmp(said.out, expected) == 0));
}

TEST(of_twenty_snapshots_those_stay_that_a_rule_or_a_tag_keeps)
{
    start(2, .coordinator_set = SETTINGS("lease.heartbeat=100ms"));
    enter();
    for (uint64_t done = 0; done < STEPS;) {
        done = step();
        if (done == 7) says(0, "paper", "snapshot tag kept step-000000000007-g1 paper");
        if (done != 12) continue;
        restart_coordinator(); // old ones are being removed, perhaps
    }
    expect_listed("step-000000000020-g1\nstep-000000000019-g1\nstep-000000000018-g1\n"
                  "step-000000000015-g1\nstep-000000000010-g1\nstep-000000000007-g1\n"
                  "step-000000000005-g1\n");
    says(0, "latest", "snapshot list kept");
    says(0, "\"paper\"", "snapshot list kept -ojson");
    says(0, "\"running\"", "snapshot list kept -ojson");
    // One is taken at each step, so there is none to compare with.
    says(0, "not measured yet", "snapshot advise kept --mtbf 7d");
    says(0, "\"interval_s\"", "snapshot advise kept -ojson");
    says(2, "longer than 0", "snapshot advise kept --mtbf 0");
    says(0, "it has a tag", "snapshot prune kept --dry-run");
    says(12, "has the tag paper", "snapshot rm kept step-000000000007-g1 --yes");
    says(2, "is no tag", "snapshot tag kept step-000000000007-g1 a/b");
    says(4, "has no tag", "snapshot tag kept step-000000000007-g1 other --delete");
    says(0, "", "snapshot tag kept step-000000000007-g1 paper --delete");
    // The newest is read again by a thread that gives way to all others: until then none goes for it.
    await_unsaid("verified", "snapshot prune kept --dry-run");
    says(0, "would go", "snapshot prune kept --dry-run --keep-last 1");
    says(0, "no rule keeps it", "snapshot prune kept --keep-last 1");
    expect_listed("step-000000000020-g1\n");
    says(12, "is the only verified one", "snapshot rm kept step-000000000020-g1 --yes");
    says(0, "step 20", "snapshot restore kept latest --yes");
}

TEST(what_reads_a_snapshot_asks_the_coordinator_where_it_is)
{
    start(2);
    enter();
    for (int i = 0; i < 2; i++) {
        (void)step();
        says(0, "step-", "snapshot create kept --wait");
    }
    ck_assert_int_eq(mkdir(in_folder("copied"), 0750), 0);
    says(0, "", "snapshot export kept latest --to %s", in_folder("exported"));
    says(0, "", "snapshot copy kept latest --to %s", in_folder("copied"));
    says(0, "", "snapshot verify kept latest");
    says(0, "MEAN", "snapshot show kept latest --stats");
    says(1, "1 in A, 2 in B", "snapshot diff kept step-000000000001-g1 step-000000000002-g1");
    says(4, "no committed snapshot", "snapshot verify kept step-000000000009-g1");
}

TEST(a_job_is_created_out_of_a_snapshot_beside_the_one_that_it_is_of)
{
    char root[65];
    start(2);
    enter();
    (void)step();
    says(0, "step-", "snapshot create kept --wait");
    bits(root);
    says(0, "shard", "job create --from kept/latest --as copy --dry-run");
    says(4, "copy", "job show copy"); // nothing was made
    says(0, "job copy", "job create --from kept/latest --as copy");
    says(0, root, "job digest -q copy");
    says(4, "there is no snapshot", "job create --from ./nowhere");
    says(2, "needs --from", "job create");
}

SUITE(100, .tear_down = stop);
