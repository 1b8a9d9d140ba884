/* A restore of a job that runs asks for its name before it replaces it, with real daemons and a terminal. */
#include <pty.h>
#include <stdlib.h>
#include <unistd.h>

#include "proto/base/status.h"
#include "tests/e2e/scene.h"

static char id[CLUSTER_WORD_BYTES];

/* A job at step 1 with a snapshot of step 0. */
static void set_up(void)
{
    start(1);
    struct tiny_job *tiny = TINY(100);
    tiny->group.optimizer = "sgd";
    join("tiny", tiny);
    word_of(id, "snapshot create -q tiny --wait");
    ck_assert_uint_eq(tiny_step(job), 1);
}
/* `cairn snapshot restore tiny ID` with a terminal on which that line is typed when it asks. What it says
 * goes into a pipe: a terminal may lose the end of it with its last process. */
static void restore_on_terminal(const char *line)
{
    int terminal, keyboard, told[2];
    size_t count = 0;
    bool typed = false;
    ck_assert_msg(openpty(&terminal, &keyboard, NULL, NULL, NULL) == 0,
                  "no terminal: is /dev/pts there?");
    ck_assert_int_eq(pipe(told), 0);
    const pid_t pid = fork_child();
    if (pid == 0) {
        dup2(keyboard, STDIN_FILENO);
        dup2(told[1], STDOUT_FILENO);
        dup2(told[1], STDERR_FILENO);
        close(told[0]);
        close(told[1]);
        execl(CAIRN_BIN_DIR "/cairn", "cairn", "--endpoint", cluster.address, "snapshot", "restore",
              "tiny", id, NULL);
        _exit(127);
    }
    close(told[1]);
    for (ssize_t n; (n = read(told[0], said.out + count, sizeof said.out - 1 - count)) > 0;) {
        said.out[count += (size_t)n] = '\0';
        if (typed || strstr(said.out, "type tiny: ") == NULL) continue;
        ck_assert_int_eq((int)write(terminal, line, strlen(line)), (int)strlen(line));
        typed = true;
    }
    close(told[0]);
    close(keyboard);
    close(terminal);
    said.status = cluster_wait(pid, CLUSTER_WAIT_MS);
    ck_assert(typed);
}

TEST(without_a_terminal_a_job_that_runs_is_replaced_with_yes_only)
{
    says(2,
         "Job tiny is running, at generation 1, step 1, and open by 1 worker: what is not in "
         "the snapshot of step 0 cannot be brought back: without a terminal say --yes",
         "snapshot restore tiny %s", id);
    ck_assert_uint_eq(tiny_step(job), 2); // nothing happened
    ask("snapshot restore tiny %s --yes", id);
    expect_said(0, "restored          job tiny, generation 2\n");
    expect_said(0, "replaced          generation 1, step 2\n");
    expect_said(0, "must open again   1 worker\n");
}

TEST(on_a_terminal_the_name_of_the_job_is_to_be_typed)
{
    restore_on_terminal("tinny\n");
    expect_said(status_exit(CAIRN_ERR_CANCELED), "nothing was done");
    ck_assert_uint_eq(tiny_step(job), 2);
    restore_on_terminal("tiny\n");
    expect_said(0, "job tiny, generation 2");
}

TEST(a_folder_may_be_given_as_it_is_seen_from_here_and_another_name_asks_nothing)
{
    char here[512], folder[256];
    ck_assert_ptr_nonnull(getcwd(here, sizeof here));
    snprintf(folder, sizeof folder, "tiny/%s", id);
    ck_assert_int_eq(chdir(cluster.snapshots_path), 0);
    says(0, "job twin, generation 2", "snapshot restore --path %s --job twin", folder);
    says(0, "\"replaced\": null", "snapshot restore --path %s --job third -ojson", folder);
    ck_assert_int_eq(chdir(here), 0);
}

SUITE(110, set_up, stop);
