/* Two shards, of which one sees another folder where the coordinator's snapshots are: a mount namespace. It
 * joins and serves; a snapshot is refused at once, by a sentence that the status has, too; and is taken once
 * the folder is there. Needs root. */
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/support/suite.h"
#include "tests/support/trainer.h"

enum { TRIES = 400, TRY_MS = 50 };

static struct cluster cluster;
static char snapshots[CAIRN_SCRATCH_BYTES];

static void set_up(void)
{
    static const char *const plain[] = { NULL };
    // another folder is over it until the folder "seen" is there, and again when "gone" is, which goes then
    static const char *const blind[] = {
        "unshare",
        "--mount",
        "sh",
        "-c",
        "at=$CAIRN_TEST_SNAPSHOTS; mount -t tmpfs none $at || exit; "
        "await() { until [ -e $1 ]; do sleep 0.05; kill -0 $$ || exit; done; }; "
        "(await $at-seen; umount $at; await $at-gone; mount -t tmpfs none $at && rmdir $at-gone) & "
        "exec \"$@\"",
        "sh",
        NULL
    };
    static const char *const *const within[] = { plain, blind };
    cairn_scratch_make(snapshots);
    setenv("CAIRN_TEST_SNAPSHOTS", snapshots, 1);
    static const char *const coordinator_set[] = { "lease.heartbeat=100ms", NULL };
    cluster_start(&cluster, 2,
                  &(struct cluster_options) { .snapshots_path = snapshots,
                                              .coordinator_set = coordinator_set,
                                              .shard_within = within });
}

static void tear_down(void)
{
    char seen[CAIRN_SCRATCH_BYTES + 8];
    cluster_stop(&cluster);
    cairn_scratch_remove(snapshots);
    snprintf(seen, sizeof seen, "%s-seen", snapshots);
    unlink(seen);
}

static cairn_job *open_job(cairn *session)
{
    const struct cairn_tensor tensor = TRAINER_MATRIX("w", NULL, 64, 1024, 7);
    const struct cairn_job_spec spec = TRAINER_SPEC(
        &tensor, 1, .chunk_leaves = 2, .window = 2,
        .on_shard_loss = CAIRN_SHARD_LOSS_RESTORE_LATEST);
    return trainer_ready(session, "stored", &spec);
}

/* The shard sees the snapshots; until it is started again. */
static void show_storage(void)
{
    char seen[CAIRN_SCRATCH_BYTES + 8];
    snprintf(seen, sizeof seen, "%s-seen", snapshots);
    ck_assert_int_eq(mkdir(seen, 0700), 0);
    cluster_await(&cluster, false, "no snapshot can be saved", "cluster", "status", NULL);
    ck_assert_int_eq(rmdir(seen), 0);
}

TEST(a_shard_that_sees_another_folder_joins_and_says_so)
{
    struct cluster_said said;
    char sentence[CAIRN_SCRATCH_BYTES + 64];
    snprintf(sentence, sizeof sentence,
             "shard shard-1: %s is another folder here than the "
             "coordinator's",
             snapshots);
    cluster_await(&cluster, true, sentence, "cluster", "status", NULL);
    cairn *session = trainer_session(cluster.address, NULL);
    cairn_job *job = open_job(session); // it serves
    cluster_cli(&cluster, &said, "snapshot", "create", "stored", NULL);
    ck_assert_int_ne(said.status, 0);
    ck_assert_msg(strstr(said.err, "shard shard-1 cannot save: ") != NULL &&
                      strstr(said.err, "mount the coordinator's snapshots.path") != NULL,
                  "%s", said.err);

    show_storage();
    cluster_says(&cluster, 0, "", "snapshot", "create", "stored", "--wait", NULL);
    cairn_job_close(job);
    cairn_close(session);
}

static void hide_storage(void)
{
    char gone[CAIRN_SCRATCH_BYTES + 8];
    snprintf(gone, sizeof gone, "%s-gone", snapshots);
    ck_assert_int_eq(mkdir(gone, 0700), 0);
    for (int i = 0; i < TRIES && access(gone, F_OK) == 0; i++) poll(NULL, 0, TRY_MS);
    ck_assert_int_ne(access(gone, F_OK), 0);
}

/* A job on both shards, once the second one sees its storage, too. */
static cairn_job *open_with_storage(cairn **session_out)
{
    cluster_await(&cluster, true, "no snapshot can be saved: shard shard-1", "cluster", "status",
                  NULL);
    show_storage();
    *session_out = trainer_session(cluster.address, NULL);
    return open_job(*session_out);
}

TEST(storage_that_goes_while_a_shard_runs_is_said_once_a_snapshot_has_failed)
{
    cairn *session;
    cairn_job *job = open_with_storage(&session);
    hide_storage();
    struct cluster_said said;
    cluster_cli(&cluster, &said, "snapshot", "create", "stored", "--wait", NULL);
    ck_assert_int_ne(said.status, 0);
    ck_assert_msg(strstr(said.err, "shard-1: ") != NULL &&
                      strstr(said.err, "is the storage mounted?") != NULL,
                  "%s", said.err);
    cluster_await(&cluster, true, "no snapshot can be saved: shard shard-1", "cluster", "status",
                  NULL);
    cairn_job_close(job);
    cairn_close(session);
}

TEST(a_lost_job_waits_for_the_storage_of_a_shard_and_is_restored_with_it)
{
    cairn *session;
    cairn_job *job = open_with_storage(&session);
    cluster_says(&cluster, 0, "committed", "snapshot", "create", "stored", "--wait", NULL);
    cluster_kill_shard(&cluster, 1);
    cluster_restart_shard(&cluster, 1); // without the storage
    cluster_await(&cluster, true, "once it is mounted at every shard", "job", "show", "stored",
                  NULL);
    cluster_await(&cluster, true, "no snapshot can be saved: shard shard-1", "cluster", "status",
                  NULL);
    show_storage();
    cluster_await(&cluster, false, "lost", "job", "show", "stored", NULL);
    cluster_says(&cluster, 0, "generation 1, step 0", "snapshot", "show", "stored",
                 "step-000000000000-g1", NULL);
    cairn_job_close(job);
    cairn_close(session);
}

SUITE(60, set_up, tear_down);

int main(void)
{
    if (geteuid() == 0 && system("unshare --mount mount -t tmpfs none /mnt 2>/dev/null") == 0)
        return suite_main();
    printf("skip: a mount namespace needs root\n");
    return SUITE_SKIPPED;
}
