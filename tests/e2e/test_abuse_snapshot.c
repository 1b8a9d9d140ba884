/* Snapshots that cannot be written or are not whole: refused by name, and training goes on. The full disk
 * is a tmpfs of 1 MiB in a mount namespace of its own, which needs root: elsewhere this program exits
 * with 77, "skipped". */
#include <dirent.h>
#include <errno.h>
#include <sched.h>
#include <stdlib.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/e2e/scene.h"

#include "tests/support/scratch_folder.h"

static char original[256]; /* the snapshot that is damaged */

static void train_tiny(void)
{
    join("tiny", TINY(512 * 256));
    train_pushing(0.5f, 3);
}

static int snapshots_in(const char *path)
{
    int count = 0;
    DIR *dir = opendir(path);
    if (dir == NULL) return 0;
    for (struct dirent *e; (e = readdir(dir)) != NULL;)
        count += strncmp(e->d_name, "step-", 5) == 0;
    closedir(dir);
    return count;
}

/* ---- a full disk ---- */

static bool mount_small(const char *path)
{
    return unshare(CLONE_NEWNS) == 0 && mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) == 0 &&
           mount("small", path, "tmpfs", 0, "size=1m") == 0;
}

static bool has_disk; /* is what can_mount says */

/* In a child, so that this process keeps its namespace. */
static bool can_mount(void)
{
    int status = 1;
    const pid_t pid = fork();
    if (pid == 0) _exit(mount_small("/mnt") ? 0 : 1);
    return pid > 0 && waitpid(pid, &status, 0) == pid && status == 0;
}

TEST(a_full_disk_fails_the_snapshot_alone_and_leaves_nothing)
{
    char path[128], in_job[256];
    if (!has_disk) return;
    snprintf(path, sizeof path, "%s/disk", scratch);
    ck_assert_int_eq(mkdir(path, 0700), 0);
    ck_assert_msg(mount_small(path), "mount: %s", strerror(errno));
    start(2, .snapshots_path = path);
    train_tiny();
    for (int i = 0; i < 2; i++) { // the first one left nothing that the second stumbles over
        ask("snapshot create tiny --wait");
        expect_said(1, "shard-", "No space left", "free space");
    }
    ask("snapshot list tiny --no-headers");
    expect_said(0);
    ck_assert_str_eq(said.out, "");
    snprintf(in_job, sizeof in_job, "%s/tiny", path);
    ck_assert_int_eq(snapshots_in(in_job), 0);
    ck_assert_uint_eq(train_pushing(0.5f, 2), 5);
    stop();
    ck_assert_int_eq(umount2(path, MNT_DETACH), 0);
}

/* ---- damage ---- */

/* `verb` is a shell line that sees the copy as $1. */
static void shell(const char *verb, const char *copy)
{
    const char *const argv[] = { "/bin/sh", "-euc", verb, "sh", copy, original, NULL };
    ck_assert_msg(cluster_wait(cluster_spawn(argv, in_folder("shell.log")), CLUSTER_WAIT_MS) == 0,
                  "%s", verb);
}

struct damage {
    const char *what, *shell, *says;
};

static const struct damage damages[] = {
    { "a missing file", "rm \"$1\"/model/shard-00001-*", "model/shard-00001" },
    { "a cut file", "truncate -s -1 \"$1\"/optim/shard-00001-*", "optim/shard-00001" },
    { "an empty file", "truncate -s 0 \"$1\"/model/shard-00002-*", "model/shard-00002" },
    { "a longer file", "f=$(ls \"$1\"/model/shard-00001-*); printf x >>\"$f\"",
      "model/shard-00001" },
    { "a flipped byte",
      "f=$(ls \"$1\"/model/shard-00001-*); printf '\\001' | dd of=\"$f\" bs=1 seek=4000 "
      "conv=notrunc "
      "2>/dev/null; dd if=/dev/zero of=\"$f\" bs=1 seek=9000 count=64 conv=notrunc 2>/dev/null",
      "model/shard-00001" },
    { "no manifest", "rm \"$1\"/manifest.json", "manifest.json" },
    { "half a manifest", "truncate -s 300 \"$1\"/manifest.json", "manifest.json" },
    { "a manifest that is none", "echo '{}' > \"$1\"/manifest.json", "manifest.json" },
    { "a path that leaves the folder",
      "sed -i 's|model/shard-00001|../../../etc/pass|' \"$1\"/manifest.json", "manifest.json" },
    { "an absolute path", "sed -i 's|\"model/shard-00001|\"/etc/shard-00001|' \"$1\"/manifest.json",
      "manifest.json" },
};
enum { DAMAGE_CASES = sizeof damages / sizeof *damages };

static void take_snapshot(void)
{
    char id[CLUSTER_WORD_BYTES];
    start(2);
    train_tiny();
    word_of(id, "snapshot create tiny --wait -q");
    snprintf(original, sizeof original, "%s", snapshot_folder("tiny", id));
}

TEST(a_damaged_snapshot_is_refused_by_name_and_the_job_is_untouched)
{
    char copy[160];
    take_snapshot();
    for (int i = 0; i < DAMAGE_CASES; i++) {
        const struct damage *damage = &damages[i];
        snprintf(copy, sizeof copy, "%s/copy-%d", scratch, i);
        shell("cp -r \"$2\" \"$1\"", copy);
        shell(damage->shell, copy);
        ask("snapshot restore --path %s --yes", copy);
        ck_assert_msg(said.status != 0, "%s was restored", damage->what);
        ck_assert_msg(strstr(said.err, damage->says) != NULL, "%s: \"%s\" should say %s",
                      damage->what, said.err, damage->says);
    }
    ck_assert_uint_eq(newest(job).generation, 1);
    ck_assert_uint_eq(train_pushing(0.5f, 1), 4);
    stop();
}

TEST(an_id_that_is_a_path_is_refused)
{
    take_snapshot();
    says(2, "../tiny", "snapshot restore tiny ../tiny --yes");
    says(2, "../tiny", "snapshot restore ../tiny step-000000000003-g1 --yes");
    says(4, "cairn snapshot list", "snapshot show tiny step-000000000099-g1");
    ck_assert_uint_eq(train_pushing(0.5f, 1), 4);
    stop();
}

SUITE(40, scratch_make, scratch_remove);

int main(void)
{
    has_disk = can_mount();
    const int failed = suite_main();
    if (!has_disk) printf("skip: a full disk, since this user may not mount a tmpfs\n");
    return failed != 0 ? 1 : has_disk ? 0 : 77;
}
