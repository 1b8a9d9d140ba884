/* Which snapshot is the newest, on real daemons whose wall clock jumps, and after a job went back: by its
 * versions, in the list, for `latest`, for what is kept and for what is restored unasked. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "tests/support/suite.h"
#include "tests/support/tiny_job.h"

enum { ELEMS = 64 };

static struct cluster cluster;
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
    static const char *const quick[] = { "lease.heartbeat=50ms", "lease.timeout=500ms", NULL };
    static char root[CAIRN_SCRATCH_BYTES];
    cairn_scratch_make(root);
    snprintf(clock_file, sizeof clock_file, "%s/shift", root);
    shift_clock(0);
    setenv("CAIRN_SHIFTED_CLOCK", clock_file, 1);
    setenv("LD_PRELOAD", CAIRN_SHIFTED_CLOCK, 1);
    cluster_start(&cluster, 1, &(struct cluster_options) { .coordinator_set = quick });
    unsetenv("LD_PRELOAD");
}

static void tear_down(void)
{
    char root[sizeof clock_file];
    cluster_stop(&cluster);
    snprintf(root, sizeof root, "%s", clock_file);
    *strrchr(root, '/') = '\0';
    cairn_scratch_remove(root);
}

static void restart_shard(void)
{
    cluster_kill_shard(&cluster, 0);
    setenv("LD_PRELOAD", CAIRN_SHIFTED_CLOCK, 1);
    cluster_restart_shard(&cluster, 0);
    unsetenv("LD_PRELOAD");
}

static struct trainer attach(const char *name, uint32_t every, uint32_t keep)
{
    return tiny_attach(&cluster, name,
                       TINY(ELEMS, .snapshot_every = every, .snapshot_keep = keep,
                            .on_shard_loss = CAIRN_SHARD_LOSS_RESTORE_LATEST));
}

static void leave(struct trainer *t)
{
    cairn_close(t->session);
    cluster_says(&cluster, 0, "", "job", "drop", "--yes", t->name, NULL);
}

/* Until `cairn snapshot list` says just this; old ones go behind the newest's back. */
static void expect_list(const char *job, const char *expected)
{
    struct cluster_said said;
    struct timespec begun, now;
    clock_gettime(CLOCK_MONOTONIC, &begun);
    do {
        cluster_cli(&cluster, &said, "snapshot", "list", "-q", job, NULL);
        clock_gettime(CLOCK_MONOTONIC, &now);
        ck_assert_msg(now.tv_sec - begun.tv_sec < CLUSTER_WAIT_MS / 1000, "%s, not %s%s", said.out,
                      expected, said.err);
    } while (strcmp(said.out, expected) != 0);
}

/* The job's next step finds that it went back; to which. */
static uint64_t went_back(struct trainer *t, uint32_t every, uint32_t keep)
{
    struct cairn_round round = { .struct_size = sizeof round };
    struct cairn_version version = { 0, 0 };
    cairn_status status = CAIRN_OK;
    while (status == CAIRN_OK || status == CAIRN_ERR_EPOCH_CHANGED) {
        struct cairn_result result = { .struct_size = sizeof result };
        status = cairn_round_begin(t->job, CLUSTER_WAIT_MS, &round);
        if (status == CAIRN_OK)
            status = cairn_commit(t->job, &round, 1, NULL, 0, CLUSTER_WAIT_MS, &result);
    }
    ck_assert_msg(status == CAIRN_ERR_ROLLED_BACK, "%s", cairn_error());
    cairn_close(t->session);
    *t = attach(t->name, every, keep);
    good(cairn_version_wait(t->job, version, CLUSTER_WAIT_MS, &version));
    return version.step;
}

static const long shifts_s[] = { 86400, -86400, 3653 * 86400L, -3653 * 86400L };

/* The clock is wrong while the first snapshots are taken, and right for the later ones. */
TEST(the_newest_is_the_one_of_the_last_step_whatever_the_clock_says)
{
    struct cluster_said said;
    set_up();
    for (size_t i = 0; i < sizeof shifts_s / sizeof *shifts_s; i++) {
        char job[16], first[CLUSTER_WORD_BYTES], second[CLUSTER_WORD_BYTES];
        snprintf(job, sizeof job, "shift%zu", i);
        shift_clock(shifts_s[i]);
        struct trainer t = attach(job, 0, 0);
        tiny_step(t.job);
        cluster_word(&cluster, first, "snapshot", "create", "-q", "--wait", job, NULL);
        shift_clock(0);
        tiny_step(t.job);
        cluster_word(&cluster, second, "snapshot", "create", "-q", "--wait", job, NULL);
        cluster_says(&cluster, 0, second, "snapshot", "show", job, "latest", NULL);
        expect_list(job, "step-000000000002-g1\nstep-000000000001-g1\n");
        restart_shard();
        ck_assert_uint_eq(went_back(&t, 0, 0), 2);
        leave(&t);
    }
    ck_assert_int_ge(cluster_logged(&cluster, "coordinator.log", "1 day back"), 1);
    ck_assert_int_ge(cluster_logged(&cluster, "coordinator.log", "10 years ahead"), 1);
    ck_assert_int_ge(cluster_logged(&cluster, "shard-0.log", "10 years back"), 1);
    cluster_cli(&cluster, &said, "cluster", "events", NULL);
    ck_assert_msg(strstr(said.out, "clock-jumped") != NULL, "%s", said.out);
    tear_down();
}

/* As often as it is committed an older one goes, never the one that has just come. */
TEST(what_is_kept_is_the_newest_by_its_step)
{
    set_up();
    struct trainer t = attach("kept", 1, 2);
    for (size_t i = 0; i < sizeof shifts_s / sizeof *shifts_s; i++) {
        char list[64];
        shift_clock(shifts_s[i]);
        const uint64_t step = tiny_step(t.job);
        snprintf(list, sizeof list, "step-%012" PRIu64 "-g1\n", step);
        if (step > 1)
            snprintf(list + strlen(list), sizeof list - strlen(list), "step-%012" PRIu64 "-g1\n",
                     step - 1);
        expect_list("kept", list);
    }
    leave(&t);
    tear_down();
}

static void snapshot_at(struct trainer *t, uint64_t step)
{
    while (tiny_step(t->job) < step) {}
    cluster_says(&cluster, 0, "", "snapshot", "create", "-q", "--wait", t->name, NULL);
}

TEST(a_job_that_went_back_is_not_restored_to_what_it_turned_away_from)
{
    set_up();
    struct trainer t = attach("line", 0, 0);
    for (uint64_t step = 1; step <= 3; step++) snapshot_at(&t, step);
    cluster_says(&cluster, 0, "", "snapshot", "restore", "--yes", "line", "step-000000000001-g1",
                 NULL);
    ck_assert_uint_eq(went_back(&t, 0, 0), 1);
    for (int i = 0; i < 4; i++) tiny_step(t.job); // past the steps that it turned away from
    restart_shard();
    ck_assert_uint_eq(went_back(&t, 0, 0), 1);
    snapshot_at(&t, 2);
    expect_list("line", "step-000000000002-g3\nstep-000000000003-g1\nstep-000000000002-g1\n"
                        "step-000000000001-g1\n");
    cluster_says(&cluster, 0, "step-000000000002-g3", "snapshot", "show", "line", "latest", NULL);
    restart_shard();
    ck_assert_uint_eq(went_back(&t, 0, 0), 2);
    leave(&t);
    // A new job of the name begins above all of them, and is not restored to any.
    t = attach("line", 0, 0);
    tiny_step(t.job);
    restart_shard();
    struct cairn_round round = { .struct_size = sizeof round };
    ck_assert_int_ne(cairn_round_begin(t.job, 2000, &round), CAIRN_OK);
    cluster_says(&cluster, 0, "lost", "job", "show", "line", NULL);
    cairn_close(t.session);
    cluster_says(&cluster, 0, "", "job", "drop", "--yes", "line", NULL);
    t = attach("line", 0, 0);
    snapshot_at(&t, 1);
    cluster_says(&cluster, 0, "step-000000000001-g", "snapshot", "show", "line", "latest", NULL);
    expect_list("line", "step-000000000001-g4\nstep-000000000002-g3\nstep-000000000003-g1\n"
                        "step-000000000002-g1\nstep-000000000001-g1\n");
    leave(&t);
    tear_down();
}

SUITE(60);

int main(void)
{
    if (CAIRN_SHIFTED_CLOCK[0] != '\0') return suite_main();
    printf("skip: a sanitizer wants to be the first library, and so does the shifted clock\n");
    return SUITE_SKIPPED;
}
