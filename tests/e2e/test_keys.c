/* Tokens while a job trains over TCP: who is revoked is out, and nobody notices a rotation. */
#include <inttypes.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "proto/base/status.h"
#include "tests/e2e/scene.h"
#include "tests/support/scratch.h"

static char admins[CAIRN_SCRATCH_BYTES + 32]; /* the file of the scene's own token */

static void set_up(void)
{
    start(2, .coordinator_ip = "127.0.0.1");
    snprintf(admins, sizeof admins, "%s", getenv("CAIRN_TOKEN_FILE"));
}

/* From now on this process has a token of that name and roles, which is made. */
static void become(const char *name, const char *roles)
{
    char path[CAIRN_SCRATCH_BYTES + 64];
    snprintf(path, sizeof path, "%s/%s-token", cluster.folder, name);
    says(0, "", "key add %s --role %s --to %s --token-file %s", name, roles, path, admins);
    setenv("CAIRN_TOKEN_FILE", path, 1);
}

/* ==== revoked ==== */

TEST(who_is_revoked_is_out_within_a_second)
{
    become("alice", "worker,reader");
    join("tiny", TINY(5000));
    train_pushing(0.5F, 3);
    const int64_t begin_ms = now_ms();
    says(0, "1 connections", "key revoke alice --token-file %s", admins);
    ask("job list -o json --token-file %s", admins);
    const int64_t members = said_number("jobs.0.workers");
    await(logged("shard-0.log", "left job tiny") > 0 && logged("shard-1.log", "left job tiny") > 0);
    expect_refusal(job, CAIRN_ERR_REFUSED, "was revoked");
    const int64_t took_ms = now_ms() - begin_ms;
    ck_assert_int_eq(members, 0);
    ck_assert_msg(took_ms < 1000, "it took %" PRId64 " ms, with two commands", took_ms);
    printf("revoked: out of the coordinator, the shards and its own process after %" PRId64 " ms\n",
           took_ms);
    says(0, "key revoke name=alice", "cluster audit --token-file %s", admins);
    says(0, "connect: the token of alice was revoked", "cluster audit --token-file %s", admins);
}

TEST(a_shard_that_is_revoked_is_away)
{
    says(0, "", "key revoke test --token-file %s", admins); // everybody's, and its own
    says(status_exit(CAIRN_ERR_REFUSED), "was revoked", "job list --token-file %s", admins);
    await(logged("coordinator.log", "shard shard-0 is away") > 0 &&
          logged("coordinator.log", "shard shard-1 is away") > 0);
    for (int i = 0; i < 2; i++)
        cluster_kill_shard(&cluster, i); // they may have ended by themselves
}

/* ==== roles ==== */

static const struct {
    const char *roles, *command;
    int is_allowed;
} asked[] = {
    { "worker", "job list", 1 },
    { "worker,reader", "cluster status", 1 },
    { "worker,reader", "key revoke test", 0 },
    { "worker,reader", "cluster events", 0 },
    { "shard", "job list", 0 },
    { "shard", "cluster init", 0 },
    { "monitor", "job list", 1 },
    { "monitor", "cluster events", 1 },
    { "monitor", "key list", 1 },
    { "monitor", "cluster audit", 0 },
    { "monitor", "key add x --role admin", 0 },
    { "monitor", "cluster init", 0 },
    { "admin", "job list", 1 },
    { "admin", "cluster audit", 1 },
    { "admin", "cluster init", 1 },
};

TEST(a_token_asks_for_what_its_roles_allow)
{
    char name[32];
    for (size_t i = 0; i < sizeof asked / sizeof *asked; i++) {
        snprintf(name, sizeof name, "t%zu", i);
        become(name, asked[i].roles);
        ask_line(asked[i].command);
        if (asked[i].is_allowed)
            ck_assert_msg(said.status == 0, "%s: %s", asked[i].command, said.err);
        else
            expect_said(status_exit(CAIRN_ERR_REFUSED), "may not", name, "cairn key add");
    }
}

TEST(a_trainer_is_what_its_token_says)
{
    const struct tiny_job *tiny = TINY(100);
    cairn_job *none = NULL;
    become("bob", "reader");
    cairn *reading = trainer_session(cluster.address, NULL);
    fails(cairn_job_open(reading, "tiny", &tiny->spec, CAIRN_WORKER, CLUSTER_WAIT_MS, &none),
          CAIRN_ERR_REFUSED, "needs the role worker");
    cairn_close(reading);
    become("watch", "monitor");
    const struct cairn_opts opts = { .struct_size = sizeof opts, .endpoint = cluster.address };
    fails(cairn_open(&opts, &reading), CAIRN_ERR_REFUSED, "may not connect as worker");
}

/* ==== rotated ==== */

/* Steps of which none may fail, nor be made again, for as long as the command takes, and a few more. Returns
 * how many. */
static uint64_t step_during(const char *command)
{
    static const float gradient[5000];
    char line[sizeof admins + 128];
    struct cluster_command running;
    uint64_t steps = 0, step;
    int status = 0;
    snprintf(line, sizeof line, "%s --token-file %s", command, admins);
    cluster_cli_begin_line(&cluster, &running, line);
    for (int more = 3; more > 0;) {
        good(trainer_try_step(job, "w", gradient, &step));
        steps++;
        if (more < 3 || waitpid(running.pid, &status, WNOHANG) == running.pid) more--;
    }
    cluster_cli_end(&running, WIFEXITED(status) ? WEXITSTATUS(status) : 128, &said);
    ck_assert_msg(said.status == 0, "%s: %s", command, said.err);
    return steps;
}

TEST(no_step_fails_while_everything_is_rotated)
{
    static const char *const commands[] = {
        "key rotate alice -o json",
        "key rotate test -o json",
        "key rotate --cluster",
        "key rotate alice --grace 2h -o json",
        "key rotate test --grace 2h -o json",
    };
    uint64_t steps = 0;
    become("alice", "worker,reader");
    join("tiny", TINY(5000));
    const uint64_t before = train(1);
    for (size_t i = 0; i < sizeof commands / sizeof *commands; i++)
        steps += step_during(commands[i]);
    ck_assert_uint_eq(train(1), before + steps + 1);
    printf("rotated: %" PRIu64 " steps over TCP, none failed\n", steps);
}

/* Whoever comes again looks into its file, so nothing has to be started anew: neither trainers nor shards. */
TEST(an_exchanged_token_is_found_by_those_who_come_again)
{
    char own[CAIRN_SCRATCH_BYTES + 64];
    become("alice", "worker,reader");
    snprintf(own, sizeof own, "%s", getenv("CAIRN_TOKEN_FILE"));
    join("tiny", TINY(5000));
    const uint64_t before = train(1);
    says(0, "", "key rotate --cluster --token-file %s", admins);
    says(0, "", "key rotate alice --grace 0 --to %s --token-file %s", own, admins);
    says(0, "", "key rotate test --grace 0 --to %s --token-file %s", admins, admins);
    const uint64_t after = train(2);
    ck_assert_uint_eq(after, before + 2);
    restart_coordinator();
    ck_assert_uint_eq(train_pushing(0.5F, 2), after + 2);
    ask("key list --no-headers --token-file %s", admins);
    ck_assert_ptr_null(strstr(said.out, "former"));
}

SUITE(120, .tear_down = stop, .set_up = set_up);

/* ==== users of this host ==== */

/* Whoever is nobody here asks over the socket; the exit status. */
static int ask_as_nobody(const char *noun, const char *verb)
{
    const pid_t pid = fork_child();
    if (pid == 0) {
        if (cairn_scratch_be_nobody())
            execl(CAIRN_BIN_DIR "/cairn", "cairn", "--endpoint", cluster.socket, noun, verb, NULL);
        _exit(127);
    }
    return cluster_wait(pid, CLUSTER_WAIT_MS);
}

TEST(another_user_of_the_host_may_what_the_configuration_says)
{
    if (!cairn_scratch_has_nobody()) {
        printf("skipped: only root can be somebody else, where others may enter the folders\n");
        return;
    }
    start(1, .coordinator_set = SETTINGS("socket.mode=0666", "access.socket_roles=monitor"));
    ck_assert_int_eq(chmod(cluster.folder, 0711), 0);
    ck_assert_int_eq(ask_as_nobody("cluster", "status"), 0);
    ck_assert_int_eq(ask_as_nobody("cluster", "init"), status_exit(CAIRN_ERR_REFUSED));
    says(0, "uid 65534 of uid:65534", "cluster audit");
    stop();
    start(1, .coordinator_set = SETTINGS("access.socket_roles=monitor"));
    ck_assert_int_eq(chmod(cluster.folder, 0711), 0);
    ck_assert_int_eq(ask_as_nobody("cluster", "status"), status_exit(CAIRN_ERR_UNREACHABLE));
}

SUITE(120, .tear_down = stop);
