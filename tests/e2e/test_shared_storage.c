/* Two shards, of which one sees another folder where the coordinator's snapshots are: a mount namespace. It
 * joins and serves; a snapshot is refused at once, by a sentence that the status has, too; and is taken once
 * the folder is there. Needs root. */
#include <check.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cairn.h>

#include "tests/support/cluster.h"
#include "tests/support/suite.h"

enum { SKIPPED = 77, WAIT_MS = 20000, TRIES = 400, TRY_MS = 50 };

static struct cluster cluster;
static char snapshots[CAIRN_SCRATCH_BYTES];

static void set_up(void)
{
    static const char *const plain[] = { NULL };
    // another folder is mounted over it, until the file "seen" is there
    static const char *const blind[] = {
        "unshare",
        "--mount",
        "sh",
        "-c",
        "at=$CAIRN_TEST_SNAPSHOTS; mount -t tmpfs none $at || exit; "
        "(until [ -e $at-seen ]; do sleep 0.05; kill -0 $$ || exit; done; umount $at) & exec "
        "\"$@\"",
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
    const struct cairn_tensor tensor = { .struct_size = sizeof tensor,
                                         .name = "w",
                                         .rank = 2,
                                         .shape = { 64, 1024 },
                                         .init = { CAIRN_INIT_NORMAL, 0, 1, 7 } };
    struct cairn_group adamw = CAIRN_GROUP_INIT;
    const struct cairn_job_spec spec = { .struct_size = sizeof spec,
                                         .tensors = &tensor,
                                         .tensor_count = 1,
                                         .groups = &adamw,
                                         .group_count = 1,
                                         .chunk_leaves = 2,
                                         .window = 2 };
    cairn_job *job;
    ck_assert_msg(cairn_job_open(session, "stored", &spec, CAIRN_WORKER, WAIT_MS, &job) == CAIRN_OK,
                  "%s", cairn_error());
    ck_assert_msg(cairn_init_done(job, NULL, WAIT_MS) == CAIRN_OK, "%s", cairn_error());
    return job;
}

/* Until the status has this text, or has it no more. */
static void await_status(const char *text, bool is_there)
{
    struct cluster_said said;
    for (int i = 0; i < TRIES; i++) {
        cluster_cli(&cluster, &said, "cluster", "status", NULL);
        ck_assert_int_eq(said.status, 0);
        if ((strstr(said.out, text) != NULL) == is_there) return;
        poll(NULL, 0, TRY_MS);
    }
    ck_abort_msg("%s: %s", text, said.out);
}

START_TEST(a_shard_that_sees_another_folder_joins_and_says_so)
{
    struct cluster_said said;
    char seen[CAIRN_SCRATCH_BYTES + 8], sentence[CAIRN_SCRATCH_BYTES + 64];
    cairn *session;
    snprintf(sentence, sizeof sentence,
             "shard shard-1: %s is another folder here than the "
             "coordinator's",
             snapshots);
    await_status(sentence, true);
    const struct cairn_opts opts = { .struct_size = sizeof opts, .endpoint = cluster.address };
    ck_assert_msg(cairn_open(&opts, &session) == CAIRN_OK, "%s", cairn_error());
    cairn_job *job = open_job(session); // it serves
    cluster_cli(&cluster, &said, "snapshot", "create", "stored", NULL);
    ck_assert_int_ne(said.status, 0);
    ck_assert_msg(strstr(said.err, "shard shard-1 cannot save: ") != NULL &&
                      strstr(said.err, "mount the coordinator's snapshots.path") != NULL,
                  "%s", said.err);

    snprintf(seen, sizeof seen, "%s-seen", snapshots);
    ck_assert_int_eq(mkdir(seen, 0700), 0);
    await_status("no snapshot can be saved", false);
    ck_assert_int_eq(rmdir(seen), 0);
    cluster_cli(&cluster, &said, "snapshot", "create", "stored", "--wait", NULL);
    ck_assert_msg(said.status == 0, "%s", said.err);
    cairn_job_close(job);
    cairn_close(session);
}
END_TEST

int main(void)
{
    if (geteuid() != 0 || system("unshare --mount mount -t tmpfs none /mnt 2>/dev/null") != 0) {
        printf("skipped: a mount namespace needs root\n");
        return SKIPPED;
    }
    Suite *suite = suite_create("storage");
    TCase *tcase = tcase_create("storage");
    tcase_add_checked_fixture(tcase, set_up, tear_down);
    tcase_add_test(tcase, a_shard_that_sees_another_folder_joins_and_says_so);
    tcase_set_timeout(tcase, 60);
    suite_add_tcase(suite, tcase);
    return suite_run(suite);
}
