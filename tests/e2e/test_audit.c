/* A bit of a daemon's memory is flipped behind its back: the audit finds it, says where, and no snapshot has
 * it. What a run writes, moves and restores is no alarm. */
#include <dirent.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/e2e/crew.h"
#include "tests/e2e/scene.h"

enum { ELEMS = 20000 };

static int open_plane(int shard, const char *plane)
{
    char folder[64], wanted[64];
    const pid_t child = cluster_shard_child(&cluster, shard), // it is kept
        pid = child != 0 ? child : cluster.shards[shard];
    snprintf(folder, sizeof folder, "/proc/%d/fd", (int)pid);
    snprintf(wanted, sizeof wanted, "/memfd:cairn-%s (deleted)", plane);
    DIR *all = opendir(folder);
    ck_assert_ptr_nonnull(all);
    int fd = -1;
    for (struct dirent *one; fd < 0 && (one = readdir(all)) != NULL;) {
        char path[PATH_MAX], to[PATH_MAX];
        snprintf(path, sizeof path, "%s/%s", folder, one->d_name);
        const ssize_t length = readlink(path, to, sizeof to - 1);
        if (length <= 0) continue;
        to[length] = '\0';
        if (strcmp(to, wanted) == 0) fd = open(path, O_RDWR | O_CLOEXEC);
    }
    closedir(all);
    ck_assert_msg(fd >= 0, "shard %d has no memory for %s", shard, plane);
    return fd;
}

/* Flips a bit of an element of that plane, by the shard's local elements; planes of moments begin some
 * elements behind the beginning of their memory. */
static void flip(int shard, const char *plane, uint64_t elem, int bit)
{
    uint8_t byte;
    const off_t at = (off_t)(elem * sizeof(float)) + bit / 8;
    const int fd = open_plane(shard, plane);
    ck_assert_int_eq(pread(fd, &byte, 1, at), 1);
    byte ^= (uint8_t)(1u << bit % 8);
    ck_assert_int_eq(pwrite(fd, &byte, 1, at), 1);
    close(fd);
}

/* Steps until the job is stopped, at most as many as the turns of an audit are. */
static cairn_status train_on(void)
{
    static float gradient[ELEMS];
    cairn_status status = CAIRN_OK;
    for (int i = 0; i < 16 && status == CAIRN_OK; i++) {
        uint64_t step;
        status = trainer_try_step(job, "w", gradient, &step);
    }
    return status;
}

TEST(a_bit_that_flips_where_no_update_writes_is_found_and_said_everywhere)
{
    struct tiny_job *tiny = TINY(ELEMS, .audit_every = 1);
    struct cairn_tensor both[] = { tiny->tensor, tiny->tensor };
    both[0].name = "still";
    both[0].kind = CAIRN_FROZEN;
    tiny->spec.tensors = both;
    tiny->spec.tensor_count = 2;
    start(1, .shards_kept = true, .coordinator_set = SETTINGS("lease.heartbeat=100ms"));
    join_spec("tiny", &tiny->spec);
    train_pushing(0.5f, 17);
    says(0, "committed", "snapshot create tiny --wait");
    await_said("compared since step", "job show tiny");
    says(0, "every 1 step", "job show tiny");
    flip(0, "param", 5000, 21);
    ck_assert_int_eq(train_on(), CAIRN_ERR_JOB_LOST);
    await_said("lost", "job list");
    says(0, "param of tensor still, elements 4096 to 8191 (leaf 1)", "job show tiny");
    says(0, "cairn snapshot restore tiny", "job show tiny");
    ck_assert_int_ge(logged("shard-0.log", "elements 4096 to 8191"), 1);
    says(0, "elements 4096 to 8191", "cluster events");
    leave();
    says(0, "", "snapshot restore tiny latest --yes");
    join_spec("tiny", &tiny->spec);
    ck_assert_uint_eq(newest(job).step, 17);
    train_pushing(0.5f, 20);
}

TEST(a_snapshot_never_has_a_bit_that_flipped_and_the_job_is_restored_by_itself)
{
    struct tiny_job *tiny = TINY(ELEMS, .audit_every = 2,
                                 .on_shard_loss = CAIRN_SHARD_LOSS_RESTORE_LATEST);
    tiny->group.ema = 0.9; // a plane more
    start(2, .shards_kept = true, .coordinator_set = SETTINGS("lease.heartbeat=100ms"));
    join("tiny", tiny);
    train_pushing(0.5f, 3);
    says(0, "committed", "snapshot create tiny --wait");
    train_pushing(0.5f, 1);
    flip(0, "exp_avg_sq", 5000, 3);
    ask("snapshot create tiny --wait");
    ck_assert_msg(said.status != 0, "%s%s", said.out, said.err);
    await(logged("shard-0.log", "exp_avg_sq of tensor w") >= 1);
    await(logged("coordinator.log", "restored") >= 1);
    leave();
    join("tiny", tiny);
    ck_assert_uint_eq(newest(job).step, 3);
    ask("snapshot list -q tiny");
    ck_assert_ptr_null(strchr(strchr(said.out, '\n') + 1, '\n')); // one, that of before
}

/* ---- with a standby ---- */

#define AT_ONCE SETTINGS("lease.heartbeat=100ms", "cluster.standby_after=0s")

static void await_mirrored(int times)
{
    await(logged("coordinator.log", "is mirrored by") == times);
}

/* The scene's job has the bits of an undisturbed run of as many steps. */
static void expect_undisturbed(struct tiny_job *tiny)
{
    const uint64_t step = newest(job).step;
    leave();
    join("undisturbed", tiny);
    train_pushing(0.5f, (int)step);
    expect_same_bits("tiny", "undisturbed");
}

static void begin_mirrored(struct tiny_job *tiny)
{
    start(1, .coordinator_set = AT_ONCE);
    cluster_add_standby(&cluster, 1, 0);
    join("tiny", tiny);
    await_mirrored(1);
    train_pushing(0.5f, 3); // both have checksums of all
}

/* It is the owner's, and the standby goes on with what is right. */
TEST(a_bit_of_an_owner_that_flips_costs_no_step_with_a_standby)
{
    struct tiny_job *tiny = TINY(ELEMS, .audit_every = 1);
    begin_mirrored(tiny);
    flip(0, "param", 5000, 21);
    train_pushing(0.5f, 4);
    ck_assert_int_eq(logged("coordinator.log", "takes its place"), 1);
    ck_assert_int_eq(logged("coordinator.log", "is lost: "), 0);
    await(logged("coordinator.log", "has stopped its part: its state changed") == 1);
    expect_undisturbed(tiny);
}

/* It is the standby's, which mirrors nothing until it is another process. */
TEST(a_bit_of_a_standby_that_flips_does_not_stop_the_job)
{
    struct tiny_job *tiny = TINY(ELEMS, .audit_every = 1);
    begin_mirrored(tiny);
    flip(1, "exp_avg_sq", 5000, 3);
    train_pushing(0.5f, 4);
    await(logged("coordinator.log", "has stopped its part: its state changed") == 1);
    await_said("mirrors nothing until it is started again: its state changed", "job show tiny");
    says(0, "part-stopped", "cluster events");
    train_pushing(0.5f, 2);
    kill_shard(1);
    cluster_add_standby(&cluster, 1, 0);
    await_mirrored(2);
    ck_assert_int_eq(logged("coordinator.log", "takes its place"), 0);
    kill_shard(0);
    train_pushing(0.5f, 2);
    expect_undisturbed(tiny);
}

/* It flips where no audit compares, and an update makes other state of it: both differ. */
TEST(a_shard_and_its_standby_that_differ_are_named_with_the_leaf)
{
    struct tiny_job *tiny = TINY(ELEMS, .audit_every = 2);
    begin_mirrored(tiny);
    while (newest(job).step % 2 == 0) train_pushing(0.5f, 1);
    train_pushing(0.5f, 2);
    ck_assert_int_eq(logged("coordinator.log", "differ in the state"), 0);
    flip(0, "param", 5000, 21);
    train_pushing(0.5f, 1);
    await(logged("coordinator.log",
                 "elements 4096 to 8191 (leaf 1) differs between shard shard-0 and "
                 "its standby shard-1, and it cannot be known") >= 1);
    says(0, "elements 4096 to 8191 (leaf 1) differs between", "cluster events");
    await_mirrored(2);
    train_pushing(0.5f, 4);
    ck_assert_int_eq(logged("coordinator.log", "differ in the state"), 1);
}

/* As before, and a second standby has the third copy: it says who was wrong. */
static void begin_with_two(void)
{
    start(1, .coordinator_set = AT_ONCE);
    cluster_add_standby(&cluster, 1, 0);
    cluster_add_standby(&cluster, 2, 0);
    join("tiny", TINY(ELEMS, .audit_every = 2));
    await_mirrored(2);
    do train_pushing(0.5f, 1);
    while (newest(job).step < 4 || newest(job).step % 2 == 0);
}

TEST(an_owner_that_is_unlike_both_of_its_standbys_loses_its_place)
{
    begin_with_two();
    flip(0, "param", 5000, 21);
    train_pushing(0.5f, 4);
    says(0,
         "elements 4096 to 8191 (leaf 1) is wrong at shard shard-0: shards shard-1 and shard-2 "
         "have the same",
         "cluster events");
    ck_assert_int_eq(logged("coordinator.log", "takes its place"), 1);
    ck_assert_int_eq(logged("coordinator.log", "it cannot be known"), 0);
    await(logged("coordinator.log", "not what both of its standbys made of the same sums") >= 1);
    expect_undisturbed(TINY(ELEMS, .audit_every = 2));
}

/* The owner and the other standby have told of the version, and do not decide it without the third copy. */
TEST_EACH(a_standby_that_is_slow_has_its_say, 1, 4)
{
    begin_with_two();
    const pid_t child = fork_child();
    while (child == 0) {
        kill(cluster.shards[2], SIGSTOP);
        poll(NULL, 0, 20 * _i);
        kill(cluster.shards[2], SIGCONT);
        poll(NULL, 0, 3);
    }
    flip(0, "param", 5000, 21);
    train_pushing(0.5f, 4);
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
    kill(cluster.shards[2], SIGCONT);
    ck_assert_int_eq(logged("coordinator.log", "it cannot be known"), 0);
    ck_assert_int_eq(logged("coordinator.log", "is wrong at shard shard-0"), 1);
    expect_undisturbed(TINY(ELEMS, .audit_every = 2));
}

TEST(a_standby_that_is_unlike_the_owner_and_the_other_one_is_named)
{
    begin_with_two();
    flip(2, "param", 5000, 21);
    train_pushing(0.5f, 4);
    says(0,
         "elements 4096 to 8191 (leaf 1) is wrong at shard shard-2: shards shard-0 and shard-1 "
         "have the same",
         "cluster events");
    await_mirrored(3);
    ck_assert_int_eq(logged("coordinator.log", "takes its place"), 0);
    expect_undisturbed(TINY(ELEMS, .audit_every = 2));
}

/* An owner's sums of a round flip behind its back: it has folded them, and the standbys, which are stopped,
 * have yet to fetch them. Both standbys fetch the same, and the owner told of others. */
static void flip_sums(float gradient[ELEMS], struct cairn_round *round)
{
    for (int shard = 1; shard < cluster.shard_count; shard++) cluster_freeze(cluster.shards[shard]);
    for (int i = 0; i < ELEMS; i++) gradient[i] = 0.5f;
    *round = trainer_begin(job);
    trainer_push(job, round, "w", gradient);
    ck_assert_int_eq(trainer_try_commit(job, round, NULL, 0, 1), CAIRN_ERR_TIMEOUT);
    await_said("standby shard-1 of shard shard-0 (has not summed round", "job show tiny");
    flip(0, "acc", 5000, 21);
    for (int shard = 1; shard < cluster.shard_count; shard++)
        ck_assert_int_eq(kill(cluster.shards[shard], SIGCONT), 0);
}

TEST(sums_that_flip_at_the_owner_of_two_standbys_cost_it_its_place)
{
    static float gradient[ELEMS];
    struct cairn_round round;
    begin_with_two();
    flip_sums(gradient, &round);
    ck_assert_int_eq(trainer_try_commit(job, &round, NULL, 0, CLUSTER_WAIT_MS),
                     CAIRN_ERR_EPOCH_CHANGED);
    train_pushing(0.5f, 2);
    says(0, "shard shard-0 computed of the sums of round 6 what both other copies contradict",
         "cluster events");
    await(logged("coordinator.log", "are not those that both standbys fetched") >= 1);
    ck_assert_int_eq(logged("coordinator.log", "takes its place"), 1);
    expect_undisturbed(TINY(ELEMS, .audit_every = 2));
}

/* With one standby nobody knows who is wrong: both say so, and the mirror ends. */
TEST(sums_that_flip_at_the_owner_of_one_standby_are_said)
{
    static float gradient[ELEMS];
    struct cairn_round round;
    begin_mirrored(TINY(ELEMS, .audit_every = 2));
    flip_sums(gradient, &round);
    good(trainer_try_commit(job, &round, NULL, 0, CLUSTER_WAIT_MS));
    says(0, "differ in the sums of round 4, and it cannot be known which of the two is wrong",
         "cluster events");
    await_mirrored(2);
}

/* Every kind of tensor, workers that die, layouts that change, snapshots, a daemon that is killed under its
 * keeper: all that is written gets its checksum, and the bits are as ever. */
TEST(what_a_rough_run_writes_is_no_alarm)
{
    struct crew_run run;
    start(2, .shards_kept = true);
    struct crew crew = { .job = &bits_job, .endpoint = cluster.address, .until_step = BITS_STEPS };
    crew_start(&run, &crew);
    crew_await(&run, 2);
    says(0, "", "job amend " BITS_JOB " --audit-every 1");
    for (int i = 0; i < 2; i++) {
        crew_await(&run, 8 + 6 * (uint64_t)i);
        ck_assert_int_eq(kill(cluster_shard_process(&cluster, i), SIGKILL), 0);
    }
    crew_await(&run, 20);
    says(0, "committed", "snapshot create " BITS_JOB " --wait");
    crew_await(&run, 26);
    says(0, "", "reshard apply " BITS_JOB " --shards 1");
    crew_join(&run);
    for (int i = 0; i < 2; i++) {
        char log[32];
        snprintf(log, sizeof log, "shard-%d.log", i);
        ck_assert_int_eq(logged(log, "nothing wrote it"), 0);
    }
    crew_check_root(cluster.address, &bits_job, BITS_GOLDEN_ROOT);
}

SUITE(60, .tear_down = stop);
