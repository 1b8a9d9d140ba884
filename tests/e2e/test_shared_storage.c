/* Two shards, of which one sees another folder where the coordinator's snapshots are: a mount namespace. It
 * joins and serves; a snapshot is refused at once, by a sentence that the status has, too; and is taken once
 * the folder is there. Needs root. */
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/e2e/scene.h"

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
    start(2, .snapshots_path = snapshots, .shard_within = within,
          .coordinator_set = SETTINGS("lease.heartbeat=100ms"));
}

static void tear_down(void)
{
    char seen[CAIRN_SCRATCH_BYTES + 8];
    stop();
    cairn_scratch_remove(snapshots);
    snprintf(seen, sizeof seen, "%s-seen", snapshots);
    unlink(seen);
}

static void enter(void)
{
    const struct cairn_tensor tensor = TRAINER_MATRIX("w", NULL, 64, 1024, 7);
    const struct cairn_job_spec spec = TRAINER_SPEC(
        &tensor, 1, .chunk_leaves = 2, .window = 2,
        .on_shard_loss = CAIRN_SHARD_LOSS_RESTORE_LATEST);
    join_spec("stored", &spec);
}

/* The shard sees the snapshots; until it is started again. */
static void show_storage(void)
{
    char seen[CAIRN_SCRATCH_BYTES + 8];
    snprintf(seen, sizeof seen, "%s-seen", snapshots);
    ck_assert_int_eq(mkdir(seen, 0700), 0);
    await_unsaid("no snapshot can be saved", "cluster status");
    ck_assert_int_eq(rmdir(seen), 0);
}

TEST(a_shard_that_sees_another_folder_joins_and_says_so)
{
    char sentence[CAIRN_SCRATCH_BYTES + 64];
    snprintf(sentence, sizeof sentence,
             "shard shard-1: %s is another folder here than the "
             "coordinator's",
             snapshots);
    await_said(sentence, "cluster status");
    enter(); // it serves
    ask("snapshot create stored");
    ck_assert_int_ne(said.status, 0);
    expect_said(said.status,
                "shard shard-1 cannot save: ", "mount the coordinator's snapshots.path");
    show_storage();
    says(0, "", "snapshot create stored --wait");
}

static void hide_storage(void)
{
    char gone[CAIRN_SCRATCH_BYTES + 8];
    snprintf(gone, sizeof gone, "%s-gone", snapshots);
    ck_assert_int_eq(mkdir(gone, 0700), 0);
    await(access(gone, F_OK) != 0);
}

/* A job on both shards, once the second one sees its storage, too. */
static void enter_with_storage(void)
{
    await_said("no snapshot can be saved: shard shard-1", "cluster status");
    show_storage();
    enter();
}

TEST(storage_that_goes_while_a_shard_runs_is_said_once_a_snapshot_has_failed)
{
    enter_with_storage();
    hide_storage();
    ask("snapshot create stored --wait");
    ck_assert_int_ne(said.status, 0);
    expect_said(said.status, "shard-1: ", "is the storage mounted?");
    await_said("no snapshot can be saved: shard shard-1", "cluster status");
}

TEST(a_lost_job_waits_for_the_storage_of_a_shard_and_is_restored_with_it)
{
    enter_with_storage();
    says(0, "committed", "snapshot create stored --wait");
    restart_shard(1); // without the storage
    await_said("once it is mounted at every shard", "job show stored");
    await_said("no snapshot can be saved: shard shard-1", "cluster status");
    show_storage();
    await_unsaid("lost", "job show stored");
    says(0, "generation 1, step 0", "snapshot show stored step-000000000000-g1");
}

SUITE(60, set_up, tear_down);

int main(void)
{
    if (geteuid() == 0 && system("unshare --mount mount -t tmpfs none /mnt 2>/dev/null") == 0)
        return suite_main();
    printf("skip: a mount namespace needs root\n");
    return SUITE_SKIPPED;
}
