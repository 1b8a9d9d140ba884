/* A restore of a job that runs asks for its name before it replaces it, with real daemons and a terminal. */
#include <pty.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "proto/wire/status.h"
#include "tests/support/cluster.h"
#include "tests/support/good.h"
#include "tests/support/suite.h"

static struct cluster cluster;
static struct cluster_said said;
static cairn *session;
static cairn_job *job;
static char id[64];

static void open_job(void)
{
    const struct cairn_tensor tensor = { .struct_size = sizeof tensor,
                                         .name = "w",
                                         .rank = 1,
                                         .shape = { 100 },
                                         .init = { .kind = CAIRN_INIT_ONES } };
    struct cairn_group sgd = CAIRN_GROUP_INIT;
    sgd.optimizer = "sgd";
    const struct cairn_job_spec spec = { .struct_size = sizeof spec,
                                         .tensors = &tensor,
                                         .tensor_count = 1,
                                         .groups = &sgd,
                                         .group_count = 1 };
    good(cairn_job_open(session, "tiny", &spec, CAIRN_WORKER, CLUSTER_WAIT_MS, &job));
    good(cairn_init_done(job, NULL, CLUSTER_WAIT_MS));
}

/* A round with nothing in it; the step after it. */
static unsigned long long step(void)
{
    struct cairn_round round = { .struct_size = sizeof round };
    struct cairn_result result = { .struct_size = sizeof result };
    good(cairn_round_begin(job, CLUSTER_WAIT_MS, &round));
    good(cairn_commit(job, &round, 1, NULL, 0, CLUSTER_WAIT_MS, &result));
    return result.step;
}

/* A job at step 1 with a snapshot of step 0. */
static void set_up(void)
{
    cluster_start(&cluster, 1, NULL);
    const struct cairn_opts opts = { .struct_size = sizeof opts, .endpoint = cluster.address };
    good(cairn_open(&opts, &session));
    open_job();
    cluster_cli(&cluster, &said, "snapshot", "create", "-q", "tiny", "--wait", NULL);
    ck_assert_msg(said.status == 0 && sscanf(said.out, "%63s", id) == 1, "%s", said.err);
    ck_assert_uint_eq(step(), 1);
}
static void tear_down(void)
{
    cairn_close(session);
    cluster_stop(&cluster);
}

static void says(int status, const char *word)
{
    ck_assert_msg(said.status == status, "%d: %s%s", said.status, said.out, said.err);
    ck_assert_msg(strstr(said.out, word) != NULL || strstr(said.err, word) != NULL, "%s%s",
                  said.out, said.err);
}

/* `cairn snapshot restore tiny ID` on a terminal on which that line is typed when it asks. */
static void restore_on_terminal(const char *line)
{
    int terminal;
    size_t count = 0;
    bool typed = false;
    const pid_t pid = forkpty(&terminal, NULL, NULL, NULL);
    ck_assert_msg(pid >= 0, "no terminal: is /dev/pts there?");
    if (pid == 0) {
        execl(CAIRN_BIN_DIR "/cairn", "cairn", "--endpoint", cluster.address, "snapshot", "restore",
              "tiny", id, NULL);
        _exit(127);
    }
    for (ssize_t n; (n = read(terminal, said.out + count, sizeof said.out - 1 - count)) > 0;) {
        said.out[count += (size_t)n] = '\0';
        if (typed || strstr(said.out, "type tiny: ") == NULL) continue;
        ck_assert_int_eq((int)write(terminal, line, strlen(line)), (int)strlen(line));
        typed = true;
    }
    close(terminal);
    said.status = cluster_wait(pid, CLUSTER_WAIT_MS);
    ck_assert(typed);
}

START_TEST(without_a_terminal_a_job_that_runs_is_replaced_with_yes_only)
{
    cluster_cli(&cluster, &said, "snapshot", "restore", "tiny", id, NULL);
    says(2, "Job tiny is running, at generation 1, step 1, and open by 1 worker: what is not in "
            "the snapshot of step 0 cannot be brought back: without a terminal say --yes");
    ck_assert_uint_eq(step(), 2); // nothing happened
    cluster_cli(&cluster, &said, "snapshot", "restore", "tiny", id, "--yes", NULL);
    says(0, "restored          job tiny, generation 2\n");
    says(0, "replaced          generation 1, step 2\n");
    says(0, "must open again   1 worker\n");
}
END_TEST

START_TEST(on_a_terminal_the_name_of_the_job_is_to_be_typed)
{
    restore_on_terminal("tinny\n");
    says(cairn_status_exit(CAIRN_ERR_CANCELED), "nothing was done");
    ck_assert_uint_eq(step(), 2);
    restore_on_terminal("tiny\n");
    says(0, "job tiny, generation 2");
}
END_TEST

START_TEST(a_folder_may_be_given_as_it_is_seen_from_here_and_another_name_asks_nothing)
{
    char here[512], folder[256];
    ck_assert_ptr_nonnull(getcwd(here, sizeof here));
    snprintf(folder, sizeof folder, "tiny/%s", id);
    ck_assert_int_eq(chdir(cluster.snapshots_path), 0);
    cluster_cli(&cluster, &said, "snapshot", "restore", "--path", folder, "--job", "twin", NULL);
    says(0, "job twin, generation 2");
    cluster_cli(&cluster, &said, "snapshot", "restore", "--path", folder, "--job", "third",
                "-ojson", NULL);
    says(0, "\"replaced\": null");
    ck_assert_int_eq(chdir(here), 0);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("restore_asks");
    TCase *tc = tcase_create("restore_asks");
    tcase_set_timeout(tc, 110);
    tcase_add_checked_fixture(tc, set_up, tear_down);
    tcase_add_test(tc, without_a_terminal_a_job_that_runs_is_replaced_with_yes_only);
    tcase_add_test(tc, on_a_terminal_the_name_of_the_job_is_to_be_typed);
    tcase_add_test(tc, a_folder_may_be_given_as_it_is_seen_from_here_and_another_name_asks_nothing);
    suite_add_tcase(suite, tc);
    return suite_run(suite);
}
