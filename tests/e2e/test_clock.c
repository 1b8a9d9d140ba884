/* Which snapshot is the newest, on real daemons whose wall clock jumps, and after a job went back: by its
 * versions, in the list, for `latest`, for what is kept and for what is restored unasked. */
#include <inttypes.h>
#include <stdlib.h>

#include "tests/e2e/scene.h"

enum { ELEMS = 64 };

static char clock_file[CAIRN_SCRATCH_BYTES + 32];

/* All daemons see it from now on. */
static void shift_clock(long by_s)
{
    char next[sizeof clock_file + 8];
    snprintf(next, sizeof next, "%s.next", clock_file);
    FILE *file = fopen(next, "w");
    ck_assert_ptr_nonnull(file);
    fprintf(file, "%ld\n", by_s);
    ck_assert_int_eq(fclose(file), 0);
    ck_assert_int_eq(rename(next, clock_file), 0);
}

static void set_up(void)
{
    static char root[CAIRN_SCRATCH_BYTES];
    cairn_scratch_make(root);
    snprintf(clock_file, sizeof clock_file, "%s/shift", root);
    shift_clock(0);
    setenv("CAIRN_SHIFTED_CLOCK", clock_file, 1);
    setenv("LD_PRELOAD", CAIRN_SHIFTED_CLOCK, 1);
    start(1, .coordinator_set = SETTINGS("lease.heartbeat=50ms", "lease.timeout=500ms"));
    unsetenv("LD_PRELOAD");
}

static void tear_down(void)
{
    char root[sizeof clock_file];
    stop();
    snprintf(root, sizeof root, "%s", clock_file);
    *strrchr(root, '/') = '\0';
    cairn_scratch_remove(root);
}

static void restart_the_shard(void)
{
    setenv("LD_PRELOAD", CAIRN_SHIFTED_CLOCK, 1);
    restart_shard(0);
    unsetenv("LD_PRELOAD");
}

static void enter(const char *name, uint32_t every, uint32_t keep)
{
    join(name, TINY(ELEMS, .snapshot_every = every, .snapshot_keep = keep,
                    .on_shard_loss = CAIRN_SHARD_LOSS_RESTORE_LATEST));
}

static void leave_and_drop(const char *name)
{
    leave();
    says(0, "", "job drop --yes %s", name);
}

/* `cairn snapshot list` comes to say just this; old ones go behind the newest's back. */
static void expect_list(const char *name, const char *expected)
{
    await((ask("snapshot list -q %s", name), strcmp(said.out, expected) == 0));
}

/* The job's next step finds that it went back; to which. */
static uint64_t went_back(const char *name)
{
    struct cairn_round round = { .struct_size = sizeof round };
    cairn_status status = CAIRN_OK;
    while (status == CAIRN_OK || status == CAIRN_ERR_EPOCH_CHANGED) {
        status = cairn_round_begin(job, CLUSTER_WAIT_MS, &round);
        if (status == CAIRN_OK) status = trainer_try_commit(job, &round, NULL, 0, CLUSTER_WAIT_MS);
    }
    ck_assert_msg(status == CAIRN_ERR_ROLLED_BACK, "%s", cairn_error());
    leave();
    enter(name, 0, 0);
    return newest(job).step;
}

static const long shifts_s[] = { 86400, -86400, 3653 * 86400L, -3653 * 86400L };

/* The clock is wrong while the first snapshots are taken, and right for the later ones. */
TEST(the_newest_is_the_one_of_the_last_step_whatever_the_clock_says)
{
    for (size_t i = 0; i < sizeof shifts_s / sizeof *shifts_s; i++) {
        char name[16], first[CLUSTER_WORD_BYTES], second[CLUSTER_WORD_BYTES];
        snprintf(name, sizeof name, "shift%zu", i);
        shift_clock(shifts_s[i]);
        enter(name, 0, 0);
        train(1);
        // who is started anew in a moment has noticed the clock until then
        if (shifts_s[i] == -3653 * 86400L) await(logged("shard-0.log", "10 years back") >= 1);
        word_of(first, "snapshot create -q --wait %s", name);
        shift_clock(0);
        train(1);
        word_of(second, "snapshot create -q --wait %s", name);
        says(0, second, "snapshot show %s latest", name);
        expect_list(name, "step-000000000002-g1\nstep-000000000001-g1\n");
        restart_the_shard();
        ck_assert_uint_eq(went_back(name), 2);
        leave_and_drop(name);
    }
    await(logged("coordinator.log", "1 day back") >= 1);
    await(logged("coordinator.log", "10 years ahead") >= 1);
    says(0, "clock-jumped", "cluster events");
}

/* As often as it is committed an older one goes, never the one that has just come. */
TEST(what_is_kept_is_the_newest_by_its_step)
{
    enter("kept", 1, 2);
    for (size_t i = 0; i < sizeof shifts_s / sizeof *shifts_s; i++) {
        char list[64];
        shift_clock(shifts_s[i]);
        const uint64_t step = train(1);
        snprintf(list, sizeof list, "step-%012" PRIu64 "-g1\n", step);
        if (step > 1)
            snprintf(list + strlen(list), sizeof list - strlen(list), "step-%012" PRIu64 "-g1\n",
                     step - 1);
        expect_list("kept", list);
    }
    leave_and_drop("kept");
}

static void snapshot_at(uint64_t step)
{
    while (train(1) < step) {}
    says(0, "", "snapshot create -q --wait line");
}

TEST(a_job_that_went_back_is_not_restored_to_what_it_turned_away_from)
{
    enter("line", 0, 0);
    for (uint64_t step = 1; step <= 3; step++) snapshot_at(step);
    says(0, "", "snapshot restore --yes line step-000000000001-g1");
    ck_assert_uint_eq(went_back("line"), 1);
    train(4); // past the steps that it turned away from
    restart_the_shard();
    ck_assert_uint_eq(went_back("line"), 1);
    snapshot_at(2);
    expect_list("line", "step-000000000002-g3\nstep-000000000003-g1\nstep-000000000002-g1\n"
                        "step-000000000001-g1\n");
    says(0, "step-000000000002-g3", "snapshot show line latest");
    restart_the_shard();
    ck_assert_uint_eq(went_back("line"), 2);
    leave_and_drop("line");
    // A new job of the name begins above all of them, and is not restored to any.
    enter("line", 0, 0);
    train(1);
    restart_the_shard();
    struct cairn_round round = { .struct_size = sizeof round };
    ck_assert_int_ne(cairn_round_begin(job, 2000, &round), CAIRN_OK);
    says(0, "lost", "job show line");
    leave_and_drop("line");
    enter("line", 0, 0);
    snapshot_at(1);
    says(0, "step-000000000001-g", "snapshot show line latest");
    expect_list("line", "step-000000000001-g4\nstep-000000000002-g3\nstep-000000000003-g1\n"
                        "step-000000000002-g1\nstep-000000000001-g1\n");
    leave_and_drop("line");
}

SUITE(60, set_up, tear_down);

int main(void)
{
    if (CAIRN_SHIFTED_CLOCK[0] != '\0') return suite_main();
    printf("skip: a sanitizer wants to be the first library, and so does the shifted clock\n");
    return SUITE_SKIPPED;
}
