/* What the daemons say to a wrong configuration, folder or address, and the command line to a wrong call. */
#include <jansson.h>
#include <signal.h>
#include <stdlib.h>

#include "proto/base/status.h"
#include "tests/e2e/abuse_job.h"
#include "tests/support/now.h"
#include "tests/e2e/scene.h"
#include "tests/support/scratch_folder.h"

#define COORDINATOR CAIRN_BIN_DIR "/cairn-coordinator"
#define SHARD       CAIRN_BIN_DIR "/cairn-shard"

static char output[16 * 1024];

/* Runs a program to its end; what it says is in `output`. */
static int run(const char *const *argv)
{
    char log[128];
    snprintf(log, sizeof log, "%s/log", scratch);
    remove(log);
    const pid_t pid = cluster_spawn(argv, log);
    const int status = cluster_wait(pid, ABUSE_WAIT_MS);
    if (status == -1) cluster_kill(pid);
    FILE *file = fopen(log, "re");
    ck_assert_ptr_nonnull(file);
    output[fread(output, 1, sizeof output - 1, file)] = 0;
    fclose(file);
    ck_assert_msg(status != -1, "%s still runs: %s", argv[0], output);
    return status;
}

/* ---- configurations ---- */

struct config_case {
    const char *program, *text;
    const char *says[4]; /* file:line, the value, what is allowed */
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
    { COORDINATOR, "[network]\ninsecure_network = maybe\n", { "c.ini:2", "maybe", "yes" } },
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
    const char *const argv[] = { wrong->program, "--config", path, "--check-config", NULL };
    ck_assert_int_eq(run(argv), 2);
    for (int i = 0; i < 4 && wrong->says[i] != NULL; i++) abuse_says(output, wrong->says[i]);
}

TEST(a_good_configuration_is_good)
{
    char path[128];
    cairn_scratch_file(scratch, "c.ini", "[cluster]\nshards = 3\n[lease]\ntimeout = 7s\n", path,
                       sizeof path);
    const char *const argv[] = { COORDINATOR, "--config", path, "--check-config", NULL };
    ck_assert_int_eq(run(argv), 0);
}

TEST(values_that_contradict_each_other_are_refused_before_the_start)
{
    const char *const lease[] = { COORDINATOR, "--check-config",   "--set", "lease.heartbeat=5s",
                                  "--set",     "lease.timeout=6s", NULL };
    ck_assert_int_eq(run(lease), 2);
    abuse_says(output, "lease.timeout");
    abuse_says(output, "twice");
    const char *const level[] = { COORDINATOR, "--check-config", "--set", "log.level=loud", NULL };
    ck_assert_int_eq(run(level), 2);
    abuse_says(output, "loud");
    abuse_says(output, "warn");
    const char *const fabric[] = { SHARD,   "--check-config",
                                   "--set", "shard.name=s",
                                   "--set", "shard.coordinator=127.0.0.1:1",
                                   "--set", "fabric.kind=pigeon",
                                   NULL };
    ck_assert_int_eq(run(fabric), 2);
    abuse_says(output, "pigeon");
    abuse_says(output, "ucx");
}

/* What would end the start ends the check, with the same status. */
TEST(a_check_judges_as_the_start_does)
{
    const char *const listen[] = { COORDINATOR, "--check-config", "--set",
                                   "network.listen=0.0.0.0:1", NULL };
    ck_assert_int_eq(run(listen), status_exit(CAIRN_ERR_REFUSED));
    abuse_says(output, "insecure_network = yes");
    const char *const device[] = { SHARD,   "--check-config",
                                   "--set", "shard.name=s",
                                   "--set", "shard.coordinator=127.0.0.1:1",
                                   "--set", "fabric.device=eth0",
                                   NULL };
    ck_assert_int_eq(run(device), status_exit(CAIRN_ERR_REFUSED));
    const char *const none[] = { SHARD,   "--check-config",
                                 "--set", "shard.name=s",
                                 "--set", "shard.coordinator=127.0.0.1:1",
                                 "--set", "network.insecure_network=yes",
                                 "--set", "fabric.device=lo,cairn-none",
                                 NULL };
    ck_assert_int_eq(run(none), 2);
    abuse_says(output, "this host has no device cairn-none");
    static const char *const ranges[] = { "abc",        "7100",       "7199-7100", "7100-",
                                          "7100--7199", "7100-70000", "0-5" };
    for (size_t i = 0; i < sizeof ranges / sizeof *ranges; i++) {
        char range[64];
        snprintf(range, sizeof range, "fabric.port_range=%s", ranges[i]);
        const char *const ports[] = { SHARD,   "--check-config",
                                      "--set", "shard.name=s",
                                      "--set", "shard.coordinator=127.0.0.1:1",
                                      "--set", range,
                                      NULL };
        ck_assert_int_eq(run(ports), 2);
        abuse_says(output, "first-last, of 1 to 65535");
    }
}

TEST(a_check_knows_what_the_coordinator_would_refuse)
{
    static const char *const bad[][2] = { { "shard.name=", "shard.name is \"\"" },
                                          { "shard.name=a/b", "letters, digits" },
                                          { "shard.name=.hidden", "neither '.' nor '-' first" } };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        const char *const argv[] = { SHARD,   "--check-config",
                                     "--set", "shard.name=s",
                                     "--set", "shard.coordinator=127.0.0.1:1",
                                     "--set", bad[i][0],
                                     NULL };
        ck_assert_int_eq(run(argv), 2);
        abuse_says(output, bad[i][1]);
    }
}

/* Jobs are made without it, and the log says what that means: unit.shard_memory. */
TEST(a_lock_that_is_not_there_keeps_no_shard_from_starting)
{
    const char *const argv[] = { SHARD,   "--check-config",
                                 "--set", "shard.name=s",
                                 "--set", "shard.coordinator=127.0.0.1:1",
                                 "--set", "memory.lock=/nowhere/lock",
                                 NULL };
    ck_assert_int_eq(run(argv), 0);
}

TEST_EACH(networks_that_no_fabric_takes_are_refused_before_the_start, 0, 2)
{
    static const char *const bad[][2] = { { "fabric.kind=ucx", "fabric.device=lo;lo" },
                                          { "fabric.kind=auto", "fabric.device=lo;lo;lo;lo;lo" } };
    const char *const argv[] = { SHARD,   "--check-config",
                                 "--set", "shard.name=s",
                                 "--set", "shard.coordinator=127.0.0.1:1",
                                 "--set", "network.insecure_network=yes",
                                 "--set", bad[_i][0],
                                 "--set", bad[_i][1],
                                 NULL };
    ck_assert_int_eq(run(argv), 2);
    abuse_says(output, _i == 0 ? "only fabric.kind = auto" : "at most 4");
}

/* As long as inih takes it: libucs has a copy of inih inside, which cuts at 200 bytes. */
TEST(a_long_line_is_read_whole)
{
    char path[128], text[2100], line[2000];
    memset(line, 'x', sizeof line - 1);
    line[sizeof line - 1] = 0;
    snprintf(text, sizeof text, "[log]\nlevel = %s\n", line);
    cairn_scratch_file(scratch, "conf", text, path, sizeof path);
    const char *const programs[] = { COORDINATOR, SHARD };
    for (size_t i = 0; i < 2; i++) {
        const char *const argv[] = {
            programs[i],      "--config", path, "--set", i == 0 ? "cluster.name=s" : "shard.name=s",
            "--check-config", NULL
        };
        ck_assert_int_eq(run(argv), 2);
        abuse_says(output, "log.level");
    }
}

/* ---- folders and addresses ---- */

static int run_coordinator(const char *store, const char *snapshots, const char *listen)
{
    char set_store[160], set_snapshots[160], set_listen[160];
    snprintf(set_store, sizeof set_store, "store.path=%s", store);
    snprintf(set_snapshots, sizeof set_snapshots, "snapshots.path=%s", snapshots);
    snprintf(set_listen, sizeof set_listen, "network.listen=%s", listen);
    const char *const argv[] = { COORDINATOR,   "--set", set_store,  "--set",
                                 set_snapshots, "--set", set_listen, NULL };
    return run(argv);
}

TEST(a_folder_that_cannot_be_written_is_named)
{
    char file[128], inside[160], good[160];
    cairn_scratch_file(scratch, "file", "not a folder", file, sizeof file);
    snprintf(inside, sizeof inside, "%s/under", file);
    snprintf(good, sizeof good, "%s/good", scratch);
    const char *const bad[][2] = { { file, file }, { inside, file }, { "/proc/cairn", "/proc" } };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        ck_assert_int_ne(run_coordinator(bad[i][0], good, "127.0.0.1:0"), 0);
        abuse_says(output, "cannot start");
        abuse_says(output, bad[i][1]);
        ck_assert_int_ne(run_coordinator(good, bad[i][0], "127.0.0.1:0"), 0);
        abuse_says(output, "cannot start");
        abuse_says(output, bad[i][1]);
    }
}

TEST(a_folder_of_another_coordinator_is_left_alone)
{
    char store[160], snapshots[160];
    start(1);
    snprintf(store, sizeof store, "%s/coordinator", cluster.folder);
    snprintf(snapshots, sizeof snapshots, "%s/s", scratch);
    ck_assert_int_eq(run_coordinator(store, snapshots, "127.0.0.1:0"), status_exit(CAIRN_ERR_BUSY));
    abuse_says(output, store);
    stop();
}

TEST(a_socket_of_another_coordinator_is_left_alone)
{
    char store[160], snapshots[160];
    start(1);
    snprintf(store, sizeof store, "%s/store", scratch);
    snprintf(snapshots, sizeof snapshots, "%s/snapshots", scratch);
    ck_assert_int_eq(run_coordinator(store, snapshots, cluster.address),
                     status_exit(CAIRN_ERR_BUSY));
    abuse_says(output, cluster.address);
    abuse_says(output, "another program listens there");
    ask("cluster status");
    expect_said(0);
    abuse_says(said.out, "uid=");
    stop();
    ck_assert_int_ne(access(cluster.address, F_OK), 0);
}

TEST(an_open_address_is_refused_unless_it_is_asked_for_and_then_warned_of)
{
    char store[160], snapshots[160], set_store[200], set_snapshots[200], log[160], ready[160];
    snprintf(store, sizeof store, "%s/store", scratch);
    snprintf(snapshots, sizeof snapshots, "%s/snapshots", scratch);
    ck_assert_int_eq(run_coordinator(store, snapshots, "0.0.0.0:0"),
                     status_exit(CAIRN_ERR_REFUSED));
    abuse_says(output, "0.0.0.0");
    abuse_says(output, "insecure_network = yes");
    const char *const shard[] = { SHARD,
                                  "--set",
                                  "shard.name=s",
                                  "--set",
                                  "shard.coordinator=127.0.0.1:1",
                                  "--set",
                                  "fabric.device=eth0",
                                  NULL };
    ck_assert_int_eq(run(shard), status_exit(CAIRN_ERR_REFUSED));
    abuse_says(output, "eth0");
    abuse_says(output, "insecure_network = yes");

    snprintf(set_store, sizeof set_store, "store.path=%s", store);
    snprintf(set_snapshots, sizeof set_snapshots, "snapshots.path=%s", snapshots);
    snprintf(log, sizeof log, "%s/open.log", scratch);
    snprintf(ready, sizeof ready, "%s/ready", scratch);
    const char *const argv[] = { COORDINATOR,
                                 "--set",
                                 set_store,
                                 "--set",
                                 set_snapshots,
                                 "--set",
                                 "network.listen=0.0.0.0:0",
                                 "--set",
                                 "network.insecure_network=yes",
                                 "--ready-file",
                                 ready,
                                 NULL };
    const pid_t pid = cluster_spawn(argv, log);
    FILE *file = NULL;
    const int64_t deadline_ms = now_ms() + ABUSE_WAIT_MS;
    while ((file = fopen(ready, "re")) == NULL && now_ms() < deadline_ms)
        ck_assert_int_eq(cluster_wait(pid, 5), -1);
    ck_assert_ptr_nonnull(file);
    fclose(file);
    kill(pid, SIGTERM);
    ck_assert_int_eq(cluster_wait(pid, ABUSE_WAIT_MS), 0);
    file = fopen(log, "re");
    output[fread(output, 1, sizeof output - 1, file)] = 0;
    fclose(file);
    abuse_says(output, "level=warn");
    abuse_says(output, "insecure");
}

/* It has its place in the cluster by then: it leaves that, and says with which status. */
TEST(a_shard_whose_ready_file_cannot_be_written_ends_with_a_status)
{
    char log[300], set_coordinator[300], ready[300];
    start(1);
    snprintf(log, sizeof log, "%s/unready.log", cluster.folder);
    snprintf(ready, sizeof ready, "%s/nowhere/ready", cluster.folder);
    snprintf(set_coordinator, sizeof set_coordinator, "shard.coordinator=%s", cluster.address);
    const char *const argv[] = { SHARD,           "--set", "shard.name=unready", "--set",
                                 set_coordinator, "--set", "memory.limit=64MiB", "--ready-file",
                                 ready,           NULL };
    const pid_t pid = cluster_spawn(argv, log);
    ck_assert_int_eq(cluster_wait(pid, ABUSE_WAIT_MS), status_exit(CAIRN_ERR_IO));
    FILE *file = fopen(log, "re");
    ck_assert_ptr_nonnull(file);
    output[fread(output, 1, sizeof output - 1, file)] = 0;
    fclose(file);
    abuse_says(output, "cannot start: ");
    abuse_says(output, "nowhere");
    stop();
}

TEST_EACH(a_daemon_that_may_open_too_few_files_says_so_and_ends, 0, 2)
{
    char command[400];
    snprintf(command, sizeof command, "ulimit -n 12; exec '%s' --set %s",
             _i == 0 ? COORDINATOR : SHARD,
             _i == 0 ? "network.listen=127.0.0.1:0" : "shard.name=s");
    const char *const argv[] = { "/bin/sh", "-c", command, NULL };
    ck_assert_int_eq(run(argv), status_exit(CAIRN_ERR_NO_MEMORY));
    abuse_says(output, "LimitNOFILE");
}

/* ---- the command line ---- */

static const char *const subcommands[] = { "cluster status", "job list",         "job show",
                                           "job digest",     "snapshot create",  "snapshot list",
                                           "snapshot show",  "snapshot restore", "--timeout",
                                           "--endpoint",     "-o table|json",    "exit status" };

TEST(the_command_line_exits_as_documented)
{
    start(1);
    ask("--help");
    expect_said(0);
    for (size_t i = 0; i < sizeof subcommands / sizeof *subcommands; i++)
        abuse_says(said.out, subcommands[i]);
    ask("job juggle");
    ck_assert_int_eq(said.status, 2);
    abuse_says(said.err, "juggle");
    ask("job list -o yaml");
    ck_assert_int_eq(said.status, 2);
    abuse_says(said.err, "json");
    ask("snapshot list nosuch");
    ck_assert_int_eq(said.status, 4);
    abuse_says(said.err, "nosuch");
    says(0, "", "snapshot list");
    ask("snapshot show tiny badid");
    ck_assert_int_eq(said.status, 2);
    abuse_says(said.err, "\"badid\"");
    ask("cluster status");
    abuse_says(said.out, "1 shard expected, 0 jobs");
    ask("job show nosuch");
    ck_assert_int_eq(said.status, 4);
    abuse_says(said.err, "nosuch");
    ask("snapshot restore --path /nosuch/folder");
    ck_assert_int_eq(said.status, 4);
    abuse_says(said.err, "/nosuch/folder");
    kill(cluster.coordinator, SIGSTOP);
    ask("--timeout 0.3 job list");
    kill(cluster.coordinator, SIGCONT);
    ck_assert_int_eq(said.status, 124);
    abuse_says(said.err, cluster.address);
    kill_coordinator();
    ask("job list");
    ck_assert_int_eq(said.status, 10);
    abuse_says(said.err, cluster.address);
    restart_coordinator();
    stop();
}

/* One sentence, which names what is wrong and the page to read; never the whole usage. */
static const struct {
    const char *line[4], *says[2];
} usage_cases[] = {
    { { "job", "list", "--frobnicate" },
      { "no option --frobnicate", "see cairn job list --help" } },
    { { "job", "list", "-x" }, { "no option -x", "see cairn job list --help" } },
    { { "--frobnicate" }, { "no option --frobnicate", "see cairn --help" } },
    { { "job", "list", "--timeout" }, { "--timeout needs a value", "see cairn job list --help" } },
    { { "job", "list", "--quiet=3" }, { "--quiet=3", "takes no value" } },
    { { "job", "list", "--wait" },
      { "job list does not take --wait", "see cairn job list --help" } },
    { { "--wait", "job", "list" },
      { "job list does not take --wait", "see cairn job list --help" } },
    { { "job", "list", "--timeout", "-1" }, { "--timeout -1", "more than 0" } },
    { { "job", "show" }, { "usage: cairn job show JOB", "see cairn job show --help" } },
    { { "job", "list", "extra" }, { "usage: cairn job list", "--help" } },
    { { "job" }, { "needs a verb", "see cairn job --help" } },
    { { "jbo", "list" }, { "no subcommand \"jbo\"", "see cairn --help" } },
    { { "job", "juggle", "x" }, { "no subcommand \"job juggle\"", "see cairn job --help" } },
    { { "local", "--shards", "65" }, { "--shards 65", "1 to 64" } },
};
enum { USAGE_CASES = sizeof usage_cases / sizeof *usage_cases };

TEST_EACH(a_wrong_line_is_one_sentence_that_says_where_to_look, 0, USAGE_CASES)
{
    const char *argv[6] = { CAIRN_BIN_DIR "/cairn" };
    for (int i = 0; i < 4; i++) argv[1 + i] = usage_cases[_i].line[i];
    ck_assert_int_eq(run(argv), 2);
    ck_assert_msg(strchr(output, '\n') == output + strlen(output) - 1, "not a line: %s", output);
    for (int i = 0; i < 2; i++) abuse_says(output, usage_cases[_i].says[i]);
}

TEST(help_is_of_what_it_is_asked_for)
{
    const char *const one[] = { CAIRN_BIN_DIR "/cairn", "snapshot", "create", "--help", NULL };
    ck_assert_int_eq(run(one), 0);
    abuse_says(output, "cairn snapshot create JOB");
    abuse_says(output, "--wait");
    ck_assert_ptr_null(strstr(output, "--path"));
    const char *const noun[] = { CAIRN_BIN_DIR "/cairn", "job", "--help", NULL };
    ck_assert_int_eq(run(noun), 0);
    abuse_says(output, "cairn job digest JOB");
    ck_assert_ptr_null(strstr(output, "cairn snapshot"));
}

TEST(env_says_what_it_found_and_refuses_nonsense)
{
    const char *const table[] = { CAIRN_BIN_DIR "/cairn", "env", NULL };
    const char *const json[] = { CAIRN_BIN_DIR "/cairn", "env", "-o", "json", NULL };
    setenv("RANK", "3", 1);
    setenv("WORLD_SIZE", "4", 1);
    setenv("CAIRN_ENDPOINT", "10.1.2.3:7077", 1);
    ck_assert_int_eq(run(table), 0);
    abuse_says(output, "torchrun");
    abuse_says(output, "WORLD_SIZE");
    abuse_says(output, "10.1.2.3:7077  CAIRN_ENDPOINT");
    ck_assert_int_eq(run(json), 0);
    json_t *object = json_loads(output, 0, NULL);
    json_t *rank = json_object_get(object, "rank");
    ck_assert_int_eq(json_integer_value(json_object_get(rank, "value")), 3);
    ck_assert_str_eq(json_string_value(json_object_get(rank, "from")), "RANK");
    json_decref(object);
    unsetenv("WORLD_SIZE");
    ck_assert_int_eq(run(table), 2);
    abuse_says(output, "RANK is set and WORLD_SIZE is not");
    setenv("WORLD_SIZE", "many", 1);
    ck_assert_int_eq(run(table), 2);
    abuse_says(output, "WORLD_SIZE = \"many\"");
    const char *const list[] = { CAIRN_BIN_DIR "/cairn", "job", "list", NULL };
    setenv("CAIRN_ENDPOINT", "nowhere", 1);
    ck_assert_int_eq(run(list), 2);
    abuse_says(output, "CAIRN_ENDPOINT: \"nowhere\"");
}

static void check_json(const char *line, const char *key)
{
    ask_line(line);
    expect_said(0);
    json_t *json = json_loads(said.out, 0, NULL);
    ck_assert_msg(json != NULL, "%s is no JSON: %s", line, said.out);
    ck_assert(json_is_integer(json_object_get(json, "schema_version")));
    ck_assert_msg(json_object_get(json, key) != NULL, "%s has no %s", line, key);
    json_decref(json);
}

TEST(what_it_prints_as_json_is_json_with_its_schema_version)
{
    start(2);
    session = abuse_session(&cluster, "trainer");
    const struct cairn_job_spec spec = abuse_spec(0);
    abuse_train(abuse_open(session, &spec), 1);
    check_json("-o json cluster status", "members");
    check_json("-o json job list", "jobs");
    check_json("-o json job show tiny", "step");
    check_json("-o json job digest tiny", "content_root");
    check_json("-o json snapshot create tiny", "id");
    check_json("-o json snapshot list tiny", "snapshots");
    stop();
}

SUITE(40, scratch_make, scratch_remove);
