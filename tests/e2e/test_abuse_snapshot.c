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

#include "tests/e2e/abuse_job.h"
#include "tests/e2e/scene.h"

static char folder[CAIRN_SCRATCH_BYTES]; /* of the test */
static char original[256];               /* of the snapshot that open_tiny took */

static void open_tiny(const struct cluster_options *options)
{
    const struct cairn_job_spec spec = abuse_spec(0);
    cluster_start(&cluster, 2, options);
    session = abuse_session(&cluster, "trainer");
    job = abuse_open(session, &spec);
    abuse_train(job, 3);
}

static void close_tiny(void)
{
    stop();
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
    cairn_scratch_make(folder);
    snprintf(path, sizeof path, "%s/disk", folder);
    ck_assert_int_eq(mkdir(path, 0700), 0);
    ck_assert_msg(mount_small(path), "mount: %s", strerror(errno));
    const struct cluster_options options = { .snapshots_path = path };
    open_tiny(&options);
    for (int i = 0; i < 2; i++) { // the first one left nothing that the second stumbles over
        ask("snapshot create tiny --wait");
        ck_assert_int_eq(said.status, 1);
        abuse_says(said.err, "shard-");
        abuse_says(said.err, "No space left");
        abuse_says(said.err, "free space");
    }
    ask("snapshot list tiny --no-headers");
    expect_said(0);
    ck_assert_str_eq(said.out, "");
    snprintf(in_job, sizeof in_job, "%s/tiny", path);
    ck_assert_int_eq(snapshots_in(in_job), 0);
    ck_assert_uint_eq(abuse_train(job, 2), 5);
    close_tiny();
    ck_assert_int_eq(umount2(path, MNT_DETACH), 0);
    cairn_scratch_remove(folder);
}

/* ---- damage ---- */

/* `verb` is a shell line that sees the copy as $1. */
static void shell(const char *verb, const char *copy)
{
    const char *const argv[] = { "/bin/sh", "-euc", verb, "sh", copy, original, NULL };
    char log[128];
    snprintf(log, sizeof log, "%s/shell.log", folder);
    ck_assert_msg(cluster_wait(cluster_spawn(argv, log), ABUSE_WAIT_MS) == 0, "%s", verb);
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
    char id[64] = "";
    ask("snapshot create tiny --wait -q");
    ck_assert_msg(said.status == 0 && sscanf(said.out, "%63s", id) == 1, "%s", said.err);
    snprintf(original, sizeof original, "%s/tiny/%s", cluster.snapshots_path, id);
}

TEST(a_damaged_snapshot_is_refused_by_name_and_the_job_is_untouched)
{
    char copy[160];
    cairn_scratch_make(folder);
    open_tiny(NULL);
    take_snapshot();
    for (int i = 0; i < DAMAGE_CASES; i++) {
        const struct damage *damage = &damages[i];
        snprintf(copy, sizeof copy, "%s/copy-%d", folder, i);
        shell("cp -r \"$2\" \"$1\"", copy);
        shell(damage->shell, copy);
        ask("snapshot restore --path %s --yes", copy);
        ck_assert_msg(said.status != 0, "%s was restored", damage->what);
        ck_assert_msg(strstr(said.err, damage->says) != NULL, "%s: \"%s\" should say %s",
                      damage->what, said.err, damage->says);
    }
    ck_assert_uint_eq(abuse_version(job).generation, 1);
    ck_assert_uint_eq(abuse_train(job, 1), 4);
    close_tiny();
    cairn_scratch_remove(folder);
}

TEST(an_id_that_is_a_path_is_refused)
{
    cairn_scratch_make(folder);
    open_tiny(NULL);
    take_snapshot();
    ask("snapshot restore tiny ../tiny --yes");
    ck_assert_int_eq(said.status, 2);
    abuse_says(said.err, "../tiny");
    ask("snapshot restore ../tiny step-000000000003-g1 --yes");
    ck_assert_int_eq(said.status, 2);
    abuse_says(said.err, "../tiny");
    ask("snapshot show tiny step-000000000099-g1");
    ck_assert_int_eq(said.status, 4);
    abuse_says(said.err, "cairn snapshot list");
    ck_assert_uint_eq(abuse_train(job, 1), 4);
    close_tiny();
    cairn_scratch_remove(folder);
}

SUITE(40);

int main(void)
{
    has_disk = can_mount();
    const int failed = suite_main();
    if (!has_disk) printf("skip: a full disk, since this user may not mount a tmpfs\n");
    return failed != 0 ? 1 : has_disk ? 0 : 77;
}
