/* What the daemons say to a wrong configuration, folder or address, and the command line to a wrong call. */
#include <signal.h>

#include "proto/base/status.h"
#include "tests/e2e/scene.h"
#include "tests/support/scratch_folder.h"

#define COORDINATOR CAIRN_BIN_DIR "/cairn-coordinator"
#define SHARD       CAIRN_BIN_DIR "/cairn-shard"
#define COMMAND     CAIRN_BIN_DIR "/cairn"
/* The check of a shard that has what it must have. */
#define SHARD_CHECK \
    SHARD " --check-config --set shard.name=s --set shard.coordinator=127.0.0.1:1 --set "

static struct cluster beside; /* of no daemons: a folder for logs */

static void set_up(void)
{
    scratch_make();
    snprintf(beside.folder, sizeof beside.folder, "%s", scratch);
}

/* Runs a program to its end: what it says is `said`. */
#define run(...) end_run(cluster_run(&beside, NULL, "log", __VA_ARGS__))
static void end_run(pid_t pid)
{
    char log[CAIRN_SCRATCH_BYTES + 8];
    said.status = cluster_wait(pid, CLUSTER_WAIT_MS);
    if (said.status == -1) cluster_kill(pid);
    snprintf(said.out, sizeof said.out, "%s", cluster_log_text(&beside, "log"));
    said.err[0] = '\0';
    ck_assert_msg(said.status != -1, "it still runs: %s", said.out);
    snprintf(log, sizeof log, "%s/log", scratch);
    remove(log);
}

/* ---- configurations ---- */

struct config_case {
    const char *program, *text;
    const char *says[3]; /* file:line, the value, what is allowed */
};

static const struct config_case config_cases[] = {
    { COORDINATOR, "[cluster]\nshrads = 3\n", { "c.ini:2", "shrads", "shards" } },
    { COORDINATOR, "[clutser]\nshards = 3\n", { "c.ini:", "clutser", "cluster" } },
    { COORDINATOR, "[cluster]\nshards = three\n", { "c.ini:2", "three", "1" } },
    { COORDINATOR, "[cluster]\nshards = 0\n", { "c.ini:2", "0", "4096" } },
    { COORDINATOR, "[cluster]\nshards = 2\nshards = 3\n", { "c.ini:3", "shards", "2" } },
    { COORDINATOR, "[lease]\ntimeout = 5\n", { "c.ini:2", "\"5\"", "ms" } },
    { COORDINATOR, "[lease]\ntimeout = 5 parsecs\n", { "c.ini:2", "parsecs", "ms" } },
    { COORDINATOR, "[lease]\ntimeout = 99999h\n", { "c.ini:2", "99999h", "10min" } },
    { COORDINATOR, "[network]\nlisten = here\n", { "c.ini:2", "here", "host:port" } },
    { COORDINATOR, "[network]\nlisten = 127.0.0.1:99999\n", { "c.ini:2", "99999", "host:port" } },
    { COORDINATOR,
      "[network]\ninsecure_network = yes\n",
      { "c.ini:2", "a key of a former version", "cairn cluster init" } },
    { SHARD, "[network]\ninsecure_network = no\n", { "c.ini:2", "former version", "remove" } },
    { COORDINATOR, "[store]\npath =\n", { "c.ini:2", "path", "path" } },
    { COORDINATOR, "cluster.shards\n", { "c.ini:1", "", "" } },
    { SHARD,
      "[shard]\nname = s\ncoordinator = 127.0.0.1:1\n[memory]\nlimit = 5 GB\n",
      { "c.ini:5", "5 GB", "GiB" } },
    { SHARD,
      "[shard]\nname = s\ncoordinator = 127.0.0.1:1\n[compute]\nthreads = -1\n",
      { "c.ini:5", "-1", "0" } },
    { SHARD, "[shard]\nname = s\ncoordinator = nowhere\n", { "c.ini:3", "nowhere", "host:port" } },
    { SHARD, "[shard]\ncoordinator = 127.0.0.1:1\n", { "name", "[shard]", "must be set" } },
};
enum { CONFIG_CASES = sizeof config_cases / sizeof *config_cases };

TEST_EACH(a_wrong_configuration_is_refused_with_file_line_value_and_what_is_allowed, 0,
          CONFIG_CASES)
{
    const struct config_case *wrong = &config_cases[_i];
    char path[128];
    cairn_scratch_file(scratch, "c.ini", wrong->text, path, sizeof path);
    run("%s --config %s --check-config", wrong->program, path);
    expect_said(2, wrong->says[0], wrong->says[1], wrong->says[2]);
}

TEST(a_good_configuration_is_good)
{
    char path[128];
    cairn_scratch_file(scratch, "c.ini", "[cluster]\nshards = 3\n[lease]\ntimeout = 7s\n", path,
                       sizeof path);
    run(COORDINATOR " --config %s --check-config", path);
    expect_said(0);
}

TEST(values_that_contradict_each_other_are_refused_before_the_start)
{
    run(COORDINATOR " --check-config --set lease.heartbeat=5s --set lease.timeout=6s");
    expect_said(2, "lease.timeout", "twice");
    run(COORDINATOR " --check-config --set log.level=loud");
    expect_said(2, "loud", "warn");
    run(SHARD_CHECK "fabric.kind=pigeon");
    expect_said(2, "pigeon", "ucx");
}

/* What would end the start ends the check, with the same status. */
TEST(a_check_judges_as_the_start_does)
{
    static const char *const ranges[] = { "abc",        "7100",       "7199-7100", "7100-",
                                          "7100--7199", "7100-70000", "0-5" };
    run(COORDINATOR " --check-config --set network.listen=127.1:1");
    expect_said(2, "which no other host reaches");
    run(SHARD_CHECK "fabric.device=lo,cairn-none");
    expect_said(2, "this host has no device cairn-none");
    for (size_t i = 0; i < sizeof ranges / sizeof *ranges; i++) {
        run(SHARD_CHECK "fabric.port_range=%s", ranges[i]);
        expect_said(2, "first-last, of 1 to 65535");
    }
}

TEST(a_check_knows_what_the_coordinator_would_refuse)
{
    run(SHARD_CHECK "shard.name=");
    expect_said(2, "shard.name is \"\"");
    run(SHARD_CHECK "shard.name=a/b");
    expect_said(2, "letters, digits");
    run(SHARD_CHECK "shard.name=.hidden");
    expect_said(2, "neither '.' nor '-' first");
}

/* Jobs are made without it, and the log says what that means: unit.shard_memory. */
TEST(a_lock_that_is_not_there_keeps_no_shard_from_starting)
{
    run(SHARD_CHECK "memory.lock=/nowhere/lock");
    expect_said(0);
}

TEST_EACH(networks_that_no_fabric_takes_are_refused_before_the_start, 0, 2)
{
    static const char *const kinds[] = { "ucx", "auto" }, *const devices[] = { "lo;lo",
                                                                               "lo;lo;lo;lo;lo" };
    run(SHARD_CHECK "fabric.trust=yes --set fabric.kind=%s --set fabric.device=%s", kinds[_i],
        devices[_i]);
    expect_said(2, _i == 0 ? "only fabric.kind = auto" : "at most 4");
}

/* What is refused, and what is warned of, where no device is lo alone: "" is neither. */
static const struct {
    const char *kind, *transports, *trust;
    const char *refused, *warned;
} trusts[] = {
    { "auto", "tcp", "no", "", "" },
    { "auto", "tcp", "yes", "", "goes over device lo,lo in clear" },
    { "auto", "rc,tcp", "no", "fabric.transports = rc,tcp is for UCX, which kind = auto opens",
      "" },
    { "auto", "rc,tcp", "yes", "", "goes over device lo,lo in clear" },
    { "sealed", "tcp", "no", "", "" },
    { "sealed", "rc,tcp", "no", "", "" },
    { "sealed", "tcp", "yes", "", "" },
    { "mapped", "tcp", "no", "", "" },
    { "mapped", "tcp", "yes", "", "" },
    { "stream", "tcp", "no", "fabric.kind = stream sends in clear over device lo,lo: use", "" },
    { "stream", "tcp", "yes", "", "goes over device lo,lo in clear" },
    { "ucx", "tcp", "no", "in clear over device lo,lo, and whoever reaches it may write", "" },
    { "ucx", "tcp", "yes", "", "goes over device lo,lo in clear" },
};

#define TRUST_SET                                                                           \
    " --set shard.name=s --set shard.coordinator=127.0.0.1:1 --set fabric.device=lo,lo "    \
    "--set shard.state=%s/none/none --set fabric.kind=%s --set fabric.transports=%s --set " \
    "fabric.trust=%s"

TEST_EACH(what_goes_in_clear_is_said_and_nothing_else, 0, sizeof trusts / sizeof *trusts)
{
    const char *kind = trusts[_i].kind, *transports = trusts[_i].transports;
    run(SHARD " --check-config" TRUST_SET, scratch, kind, transports, trusts[_i].trust);
    if (trusts[_i].refused[0] != '\0') {
        expect_said(12, trusts[_i].refused, "fabric.trust = yes");
        return;
    }
    expect_said(0);
    // it ends, for lack of a state folder
    run(SHARD TRUST_SET, scratch, kind, transports, trusts[_i].trust);
    ck_assert_int_ne(said.status, 0);
    const bool is_warned = trusts[_i].warned[0] != '\0';
    ck_assert_msg((strstr(said.out, "in clear") != NULL) == is_warned, "%s", said.out);
    ck_assert_msg(strstr(said.out, trusts[_i].warned) != NULL, "%s", said.out);
}

/* As long as inih takes it: libucs has a copy of inih inside, which cuts at 200 bytes. */
TEST(a_long_line_is_read_whole)
{
    char path[128], text[2100], line[2000];
    memset(line, 'x', sizeof line - 1);
    line[sizeof line - 1] = 0;
    snprintf(text, sizeof text, "[log]\nlevel = %s\n", line);
    cairn_scratch_file(scratch, "conf", text, path, sizeof path);
    run(COORDINATOR " --config %s --set cluster.name=s --check-config", path);
    expect_said(2, "log.level");
    run(SHARD " --config %s --set shard.name=s --check-config", path);
    expect_said(2, "log.level");
}

/* ---- folders and addresses ---- */

#define COORDINATOR_AT \
    COORDINATOR " --set store.path=%s --set snapshots.path=%s --set network.listen=%s"

static const char *in_scratch(const char *name)
{
    static char paths[3][CAIRN_SCRATCH_BYTES + 32];
    static int next;
    char *path = paths[next++ % 3];
    snprintf(path, sizeof paths[0], "%s/%s", scratch, name);
    return path;
}

TEST(a_folder_that_cannot_be_written_is_named)
{
    char file[128], inside[160];
    cairn_scratch_file(scratch, "file", "not a folder", file, sizeof file);
    snprintf(inside, sizeof inside, "%s/under", file);
    const char *const bad[][2] = { { file, file }, { inside, file }, { "/proc/cairn", "/proc" } };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        run(COORDINATOR_AT, bad[i][0], in_scratch("good"), "127.0.0.1:0");
        ck_assert_int_ne(said.status, 0);
        expect_said(said.status, "cannot start", bad[i][1]);
        run(COORDINATOR_AT, in_scratch("good"), bad[i][0], "127.0.0.1:0");
        ck_assert_int_ne(said.status, 0);
        expect_said(said.status, "cannot start", bad[i][1]);
    }
}

TEST(a_folder_of_another_coordinator_is_left_alone)
{
    start(1);
    const char *store = in_folder("coordinator");
    run(COORDINATOR_AT, store, in_scratch("s"), "127.0.0.1:0");
    expect_said(status_exit(CAIRN_ERR_BUSY), store);
    stop();
}

TEST(a_socket_of_another_coordinator_is_left_alone)
{
    start(1);
    run(COORDINATOR_AT, in_scratch("store"), in_scratch("snapshots"), cluster.address);
    expect_said(status_exit(CAIRN_ERR_BUSY), cluster.address, "another program listens there");
    says(0, "uid=", "cluster status");
    stop();
    ck_assert_int_ne(access(cluster.address, F_OK), 0);
}

/* Whoever reaches it needs a token: there is nothing to be asked for, and nothing to warn of. */
TEST(an_open_address_is_listened_on)
{
    const char *store = in_scratch("store"), *snapshots = in_scratch("snapshots"),
               *ready = in_scratch("ready");
    const pid_t pid = cluster_run(&beside, NULL, "log", COORDINATOR_AT " --ready-file %s", store,
                                  snapshots, "0.0.0.0:0", ready);
    await(access(ready, F_OK) == 0 || cluster_wait(pid, 0) != -1);
    kill(pid, SIGTERM);
    end_run(pid);
    expect_said(0, "that have a token of this cluster");
    expect_unsaid("level=warn");
}

/* It has its place in the cluster by then: it leaves that, and says with which status. */
TEST(a_shard_whose_ready_file_cannot_be_written_ends_with_a_status)
{
    start(1);
    run(SHARD " --set shard.name=unready --set shard.coordinator=%s --set memory.limit=64MiB "
              "--ready-file %s",
        cluster.address, in_folder("nowhere/ready"));
    expect_said(status_exit(CAIRN_ERR_IO), "cannot start: ", "nowhere");
    stop();
}

TEST_EACH(a_daemon_that_may_open_too_few_files_says_so_and_ends, 0, 2)
{
    static const char *const daemons[] = { COORDINATOR " --set network.listen=127.0.0.1:0",
                                           SHARD " --set shard.name=s" };
    char command[400];
    snprintf(command, sizeof command, "ulimit -n 12; exec %s", daemons[_i]);
    run("/bin/sh -c %s", command);
    expect_said(status_exit(CAIRN_ERR_NO_MEMORY), "LimitNOFILE");
}

/* ---- the command line ---- */

TEST(the_command_line_exits_as_documented)
{
    start(1);
    ask("--help");
    expect_said(0, "cluster status", "job list", "job show", "job digest", "snapshot create",
                "snapshot list", "snapshot show", "snapshot restore", "--timeout", "--endpoint",
                "-o table|json", "exit status");
    says(2, "juggle", "job juggle");
    says(2, "json", "job list -o yaml");
    says(4, "nosuch", "snapshot list nosuch");
    says(0, "", "snapshot list");
    says(2, "\"badid\"", "snapshot show tiny badid");
    says(0, "1 shard expected, 0 jobs", "cluster status");
    says(4, "nosuch", "job show nosuch");
    says(4, "/nosuch/folder", "snapshot restore --path /nosuch/folder");
    cluster_freeze(cluster.coordinator);
    ask("--timeout 0.3 job list");
    kill(cluster.coordinator, SIGCONT);
    expect_said(124, cluster.address);
    kill_coordinator();
    says(10, cluster.address, "job list");
    restart_coordinator();
    stop();
}

/* One sentence, which names what is wrong and the page to read; never the whole usage. */
static const struct {
    const char *line, *says[2];
} usage_cases[] = {
    { "job list --frobnicate", { "no option --frobnicate", "see cairn job list --help" } },
    { "job list -x", { "no option -x", "see cairn job list --help" } },
    { "--frobnicate", { "no option --frobnicate", "see cairn --help" } },
    { "job list --timeout", { "--timeout needs a value", "see cairn job list --help" } },
    { "job list --quiet=3", { "--quiet=3", "takes no value" } },
    { "job list --wait", { "job list does not take --wait", "see cairn job list --help" } },
    { "--wait job list", { "job list does not take --wait", "see cairn job list --help" } },
    { "job list --timeout -1", { "--timeout -1", "more than 0" } },
    { "job show", { "usage: cairn job show JOB", "see cairn job show --help" } },
    { "job list extra", { "usage: cairn job list", "--help" } },
    { "job", { "needs a verb", "see cairn job --help" } },
    { "jbo list", { "no subcommand \"jbo\"", "see cairn --help" } },
    { "job juggle x", { "no subcommand \"job juggle\"", "see cairn job --help" } },
    { "local --shards 65", { "--shards 65", "1 to 64" } },
};
enum { USAGE_CASES = sizeof usage_cases / sizeof *usage_cases };

TEST_EACH(a_wrong_line_is_one_sentence_that_says_where_to_look, 0, USAGE_CASES)
{
    char line[CAIRN_SCRATCH_BYTES + 128];
    snprintf(line, sizeof line, "exec " COMMAND " %s", usage_cases[_i].line);
    run("/bin/sh -c %s", line);
    expect_said(2, usage_cases[_i].says[0], usage_cases[_i].says[1]);
    ck_assert_msg(strchr(said.out, '\n') == said.out + strlen(said.out) - 1, "not a line: %s",
                  said.out);
}

TEST(help_is_of_what_it_is_asked_for)
{
    run(COMMAND " snapshot create --help");
    expect_said(0, "cairn snapshot create JOB", "--wait");
    expect_unsaid("--path");
    run(COMMAND " job --help");
    expect_said(0, "cairn job digest JOB");
    expect_unsaid("cairn snapshot");
}

TEST(env_says_what_it_found_and_refuses_nonsense)
{
    setenv("RANK", "3", 1);
    setenv("WORLD_SIZE", "4", 1);
    setenv("CAIRN_ENDPOINT", "10.1.2.3:7077", 1);
    run(COMMAND " env");
    expect_said(0, "torchrun", "WORLD_SIZE", "10.1.2.3:7077  CAIRN_ENDPOINT");
    run(COMMAND " env -o json");
    expect_said(0, "\"from\": \"RANK\"");
    ck_assert_int_eq(said_number("rank.value"), 3);
    unsetenv("WORLD_SIZE");
    run(COMMAND " env");
    expect_said(2, "RANK is set and WORLD_SIZE is not");
    setenv("WORLD_SIZE", "many", 1);
    run(COMMAND " env");
    expect_said(2, "WORLD_SIZE = \"many\"");
    setenv("CAIRN_ENDPOINT", "nowhere", 1);
    run(COMMAND " job list");
    expect_said(2, "CAIRN_ENDPOINT: \"nowhere\"");
}

TEST(what_it_prints_as_json_is_json_with_its_schema_version)
{
    static const char *const lines[][2] = {
        { "-o json cluster status", "members" },  { "-o json job list", "jobs" },
        { "-o json job show tiny", "step" },      { "-o json job digest tiny", "content_root" },
        { "-o json snapshot create tiny", "id" }, { "-o json snapshot list tiny", "snapshots" }
    };
    char key[32];
    start(2);
    join("tiny", TINY(1 << 17));
    train_pushing(0.5f, 1);
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++) {
        ask_line(lines[i][0]);
        snprintf(key, sizeof key, "\"%s\": ", lines[i][1]);
        expect_said(0, key);
        ck_assert_int_gt(said_number("schema_version"), 0);
    }
    stop();
}

SUITE(40, set_up, scratch_remove);
