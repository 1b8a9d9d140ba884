/* What a process is told by its launcher, and what it says to nonsense. */
#include <cairn.h>

#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "client/env.h"
#include "server/base/listener.h"
#include "tests/support/scratch.h"
#include "tests/support/suite.h"

/* An environment: name, value, name, value, NULL. */
static const char *get(void *context, const char *variable)
{
    for (const char *const *pair = context; *pair != NULL; pair += 2)
        if (strcmp(pair[0], variable) == 0) return pair[1];
    return NULL;
}

static struct env_report report;
static struct sentence why;

static cairn_status find(const char *const *environment, const char *endpoint)
{
    const struct env_input input = {
        .get = get,
        .context = (void *)(uintptr_t)environment,
        .given = { [CAIRN_ENV_ENDPOINT] = { endpoint, "--endpoint" } },
    };
    memset(&report, 0, sizeof report);
    why.text[0] = 0;
    const cairn_status status = env_find_cluster(&input, &report, &why);
    return status == CAIRN_OK ? env_find_process(&input, &report, &why) : status;
}

#define ENV(...) ((const char *const[]) { __VA_ARGS__, NULL })

#define TORCHRUN                                                                                 \
    "RANK", "5", "WORLD_SIZE", "8", "LOCAL_RANK", "1", "GROUP_RANK", "2", "TORCHELASTIC_RUN_ID", \
        "none", "TORCHELASTIC_RESTART_COUNT", "3"
#define SLURM                                                                             \
    "SLURM_PROCID", "6", "SLURM_NTASKS", "16", "SLURM_LOCALID", "2", "SLURM_NODEID", "1", \
        "SLURM_JOB_ID", "4711", "SLURM_RESTART_COUNT", "1"
#define OPENMPI \
    "OMPI_COMM_WORLD_RANK", "3", "OMPI_COMM_WORLD_SIZE", "4", "OMPI_COMM_WORLD_LOCAL_RANK", "1"

static void is_number(enum env_key key, uint64_t number, const char *source)
{
    const struct env_value *value = &report.values[key];
    ck_assert_msg(value->number == number, "%s is %s", env_key_name(key), value->text);
    if (source == NULL)
        ck_assert_ptr_null(value->source);
    else
        ck_assert_str_eq(value->source, source);
}

static bool has_socket_of_the_system(void)
{
    return access("/run/cairn/coordinator.sock", F_OK) == 0;
}

/* The user's own, as long as it is there or the system's is not. */
TEST(the_coordinator_of_this_host_is_looked_for)
{
    char folder[CAIRN_SCRATCH_BYTES], own[CAIRN_SCRATCH_BYTES + 32];
    const struct env_value *found = &report.values[CAIRN_ENV_ENDPOINT];
    cairn_scratch_make(folder);
    snprintf(own, sizeof own, "%s/cairn", folder);
    ck_assert_int_eq(mkdir(own, 0700), 0);
    snprintf(own, sizeof own, "%s/cairn/coordinator.sock", folder);
    ck_assert_int_eq(find(ENV("XDG_RUNTIME_DIR", folder), NULL), CAIRN_OK);
    ck_assert_str_eq(found->text, has_socket_of_the_system() ? "/run/cairn/coordinator.sock" : own);
    struct sentence said;
    struct control_socket made;
    ck_assert_int_eq(control_socket_open(own, CAIRN_SOCKET_MODE, 1, &made, &said), CAIRN_OK);
    ck_assert_int_eq(find(ENV("XDG_RUNTIME_DIR", folder), NULL), CAIRN_OK);
    ck_assert_str_eq(found->text, own);
    ck_assert_str_eq(found->source, "XDG_RUNTIME_DIR");
    ck_assert_int_eq(find(ENV("XDG_RUNTIME_DIR", folder, "CAIRN_ENDPOINT", "/a/path"), NULL),
                     CAIRN_OK);
    ck_assert_str_eq(found->text, "/a/path");
    ck_assert_str_eq(found->source, "CAIRN_ENDPOINT");
    close(made.fd);
    cairn_scratch_remove(folder);
}

TEST(alone_it_is_rank_0_of_1)
{
    ck_assert_int_eq(find(ENV("HOME", "/root"), NULL), CAIRN_OK);
    ck_assert_str_eq(report.launcher, "single");
    is_number(CAIRN_ENV_RANK, 0, NULL);
    is_number(CAIRN_ENV_WORLD, 1, NULL);
    is_number(CAIRN_ENV_RESTARTS, 0, NULL);
    ck_assert_str_eq(report.values[CAIRN_ENV_ENDPOINT].text, "/run/cairn/coordinator.sock");
    ck_assert_str_eq(report.values[CAIRN_ENV_FABRIC].text, "auto");
    ck_assert_str_eq(report.values[CAIRN_ENV_RUN_ID].text, "");
}

TEST(torchrun_is_understood)
{
    ck_assert_int_eq(find(ENV(TORCHRUN), NULL), CAIRN_OK);
    ck_assert_str_eq(report.launcher, "torchrun");
    is_number(CAIRN_ENV_RANK, 5, "RANK");
    is_number(CAIRN_ENV_WORLD, 8, "WORLD_SIZE");
    is_number(CAIRN_ENV_LOCAL_RANK, 1, "LOCAL_RANK");
    is_number(CAIRN_ENV_NODE_RANK, 2, "GROUP_RANK");
    is_number(CAIRN_ENV_RESTARTS, 3, "TORCHELASTIC_RESTART_COUNT");
    ck_assert_str_eq(report.values[CAIRN_ENV_RUN_ID].text, "none");
}

TEST(slurm_and_open_mpi_are_understood)
{
    ck_assert_int_eq(find(ENV(SLURM), NULL), CAIRN_OK);
    ck_assert_str_eq(report.launcher, "slurm");
    is_number(CAIRN_ENV_RANK, 6, "SLURM_PROCID");
    is_number(CAIRN_ENV_WORLD, 16, "SLURM_NTASKS");
    is_number(CAIRN_ENV_LOCAL_RANK, 2, "SLURM_LOCALID");
    is_number(CAIRN_ENV_NODE_RANK, 1, "SLURM_NODEID");
    is_number(CAIRN_ENV_RESTARTS, 1, "SLURM_RESTART_COUNT");
    ck_assert_str_eq(report.values[CAIRN_ENV_RUN_ID].text, "4711");
    ck_assert_int_eq(find(ENV(OPENMPI), NULL), CAIRN_OK);
    ck_assert_str_eq(report.launcher, "openmpi");
    is_number(CAIRN_ENV_RANK, 3, "OMPI_COMM_WORLD_RANK");
    is_number(CAIRN_ENV_WORLD, 4, "OMPI_COMM_WORLD_SIZE");
    is_number(CAIRN_ENV_LOCAL_RANK, 1, "OMPI_COMM_WORLD_LOCAL_RANK");
    is_number(CAIRN_ENV_NODE_RANK, 0, NULL);
}

TEST(the_nearer_one_wins_and_the_others_fill_what_it_leaves_open)
{
    ck_assert_int_eq(find(ENV(SLURM, OPENMPI, TORCHRUN), NULL), CAIRN_OK);
    ck_assert_str_eq(report.launcher, "torchrun");
    is_number(CAIRN_ENV_LOCAL_RANK, 1, "LOCAL_RANK");
    ck_assert_int_eq(find(ENV(SLURM, "RANK", "2", "WORLD_SIZE", "3"), NULL), CAIRN_OK);
    is_number(CAIRN_ENV_RANK, 2, "RANK");
    is_number(CAIRN_ENV_LOCAL_RANK, 2, "SLURM_LOCALID");
    ck_assert_int_eq(find(ENV(TORCHRUN, "CAIRN_RANK", "0", "CAIRN_WORLD", "1", "CAIRN_RUN_ID",
                              "blue", "CAIRN_LOCAL_RANK", "7"),
                          NULL),
                     CAIRN_OK);
    ck_assert_str_eq(report.launcher, "cairn");
    is_number(CAIRN_ENV_RANK, 0, "CAIRN_RANK");
    is_number(CAIRN_ENV_LOCAL_RANK, 7, "CAIRN_LOCAL_RANK");
    ck_assert_str_eq(report.values[CAIRN_ENV_RUN_ID].text, "blue");
    is_number(CAIRN_ENV_RESTARTS, 3, "TORCHELASTIC_RESTART_COUNT");
}

TEST(what_is_given_wins_and_what_is_empty_is_not_set)
{
    ck_assert_int_eq(find(ENV("CAIRN_ENDPOINT", "a:1"), "b:2"), CAIRN_OK);
    ck_assert_str_eq(report.values[CAIRN_ENV_ENDPOINT].text, "b:2");
    ck_assert_str_eq(report.values[CAIRN_ENV_ENDPOINT].source, "--endpoint");
    ck_assert_int_eq(find(ENV("CAIRN_ENDPOINT", "a:1"), NULL), CAIRN_OK);
    ck_assert_str_eq(report.values[CAIRN_ENV_ENDPOINT].source, "CAIRN_ENDPOINT");
    ck_assert_int_eq(find(ENV("CAIRN_ENDPOINT", "", "RANK", "", "WORLD_SIZE", ""), NULL), CAIRN_OK);
    ck_assert_ptr_null(report.values[CAIRN_ENV_ENDPOINT].source);
    ck_assert_str_eq(report.launcher, "single");
}

TEST(the_shell_of_a_slurm_allocation_is_no_task_of_it)
{
    ck_assert_int_eq(find(ENV("SLURM_JOB_ID", "9", "SLURM_NTASKS", "4"), NULL), CAIRN_OK);
    ck_assert_str_eq(report.launcher, "single");
    ck_assert_str_eq(report.values[CAIRN_ENV_RUN_ID].text, "9");
}

static const struct {
    const char *environment[5], *says[3];
} refusals[] = {
    { { "RANK", "0" }, { "RANK is set", "WORLD_SIZE is not", "CAIRN_RANK" } },
    { { "WORLD_SIZE", "2" }, { "WORLD_SIZE is set", "RANK is not" } },
    { { "CAIRN_WORLD", "2" }, { "CAIRN_WORLD is set", "CAIRN_RANK is not" } },
    { { "SLURM_PROCID", "0" }, { "SLURM_PROCID", "SLURM_NTASKS" } },
    { { "OMPI_COMM_WORLD_RANK", "0" }, { "OMPI_COMM_WORLD_SIZE is not" } },
    { { "RANK", "two", "WORLD_SIZE", "2" }, { "RANK = \"two\"", "0 to 4294967294" } },
    { { "RANK", "-1", "WORLD_SIZE", "2" }, { "RANK = \"-1\"", "whole number" } },
    { { "RANK", " 1", "WORLD_SIZE", "2" }, { "RANK = \" 1\"" } },
    { { "RANK", "1.0", "WORLD_SIZE", "2" }, { "RANK = \"1.0\"" } },
    { { "RANK", "0", "WORLD_SIZE", "0" }, { "WORLD_SIZE = \"0\"", "1 to 4294967295" } },
    { { "RANK", "0", "WORLD_SIZE", "4294967296" }, { "4294967296", "4294967295" } },
    { { "RANK", "0", "WORLD_SIZE", "99999999999999999999999" }, { "WORLD_SIZE" } },
    { { "RANK", "2", "WORLD_SIZE", "2" }, { "RANK = \"2\"", "WORLD_SIZE = \"2\"", "0 to 1" } },
    { { "LOCAL_RANK", "x" }, { "LOCAL_RANK = \"x\"", "local rank" } },
    { { "SLURM_RESTART_COUNT", "?" }, { "SLURM_RESTART_COUNT = \"?\"" } },
    { { "CAIRN_RUN_ID", "a\nb" }, { "CAIRN_RUN_ID", "127 bytes", "control" } },
    { { "CAIRN_ENDPOINT", "here" }, { "CAIRN_ENDPOINT", "here", "host:port" } },
    { { "CAIRN_ENDPOINT", "here:0" }, { "CAIRN_ENDPOINT", "here:0", "1 to 65535" } },
    { { "CAIRN_ENDPOINT", "unix:tmp/x" }, { "CAIRN_ENDPOINT", "host:port", "/path" } },
    { { "CAIRN_HOST", "a host" }, { "CAIRN_HOST = \"a host\"", "63 visible characters" } },
    { { "CAIRN_FABRIC", "pigeon" }, { "CAIRN_FABRIC = \"pigeon\"", "ucx" } },
    { { "CAIRN_FABRIC_PORT_RANGE", "7000" },
      { "CAIRN_FABRIC_PORT_RANGE = \"7000\"", "first-last" } },
};
enum { REFUSALS = sizeof refusals / sizeof *refusals };

TEST_EACH(nonsense_is_refused_with_variable_value_and_what_is_allowed, 0, REFUSALS)
{
    ck_assert_int_eq(find(refusals[_i].environment, NULL), CAIRN_ERR_INVALID);
    for (int i = 0; i < 3 && refusals[_i].says[i] != NULL; i++)
        ck_assert_msg(strstr(why.text, refusals[_i].says[i]) != NULL, "\"%s\" lacks \"%s\"",
                      why.text, refusals[_i].says[i]);
}

TEST(a_value_of_any_length_is_judged_and_not_cut)
{
    static char text[4096];
    memset(text, 'x', sizeof text - 1);
    ck_assert_int_eq(find(ENV("CAIRN_FABRIC_DEVICE", text), NULL), CAIRN_ERR_INVALID);
    ck_assert_ptr_nonnull(strstr(why.text, "CAIRN_FABRIC_DEVICE is too long"));
    ck_assert_int_eq(find(ENV("CAIRN_ENDPOINT", text), NULL), CAIRN_ERR_INVALID);
    ck_assert_ptr_nonnull(strstr(why.text, "too long: the endpoint has at most"));
    text[127] = 0;
    ck_assert_int_eq(find(ENV("CAIRN_RUN_ID", text), NULL), CAIRN_OK);
    text[127] = 'x';
    text[128] = 0;
    ck_assert_int_eq(find(ENV("CAIRN_RUN_ID", text), NULL), CAIRN_ERR_INVALID);
}

/* ---- as cairn.h shows it ---- */

TEST(the_library_reads_it_into_the_callers_struct)
{
    struct cairn_env env = { .struct_size = sizeof env };
    setenv("RANK", "1", 1);
    setenv("WORLD_SIZE", "2", 1);
    setenv("TORCHELASTIC_RUN_ID", "blue", 1);
    setenv("CAIRN_ENDPOINT", "10.0.0.1:7077", 1);
    ck_assert_int_eq(cairn_env_read(&env), CAIRN_OK);
    ck_assert_uint_eq(env.rank, 1);
    ck_assert_uint_eq(env.world, 2);
    ck_assert_str_eq(env.launcher, "torchrun");
    ck_assert_str_eq(env.run_id, "blue");
    ck_assert_str_eq(env.endpoint, "10.0.0.1:7077");
    const struct cairn_env before = env;
    unsetenv("WORLD_SIZE");
    ck_assert_int_eq(cairn_env_read(&env), CAIRN_ERR_INVALID);
    ck_assert_ptr_nonnull(strstr(cairn_error(), "WORLD_SIZE is not"));
    ck_assert_int_eq(memcmp(&env, &before, sizeof env), 0);
}

TEST(a_wrong_struct_is_refused)
{
    struct cairn_env env = { .struct_size = 8 };
    ck_assert_int_eq(cairn_env_read(NULL), CAIRN_ERR_INVALID);
    ck_assert_int_eq(cairn_env_read(&env), CAIRN_ERR_INVALID);
    ck_assert_ptr_nonnull(strstr(cairn_error(), "struct_size"));
}

TEST(a_session_takes_its_place_of_the_same_reader)
{
    cairn *session;
    struct cairn_opts opts = { .struct_size = sizeof opts, .connect_timeout_ms = 1 };
    setenv("RANK", "1", 1); // half a set: not what a session asks for
    setenv("CAIRN_ENDPOINT", "nowhere", 1);
    ck_assert_int_eq(cairn_open(&opts, &session), CAIRN_ERR_INVALID);
    ck_assert_ptr_nonnull(strstr(cairn_error(), "CAIRN_ENDPOINT"));
    opts.endpoint = "nowhere:0";
    ck_assert_int_eq(cairn_open(&opts, &session), CAIRN_ERR_INVALID);
    ck_assert_ptr_nonnull(strstr(cairn_error(), "cairn_opts.endpoint"));
    opts.endpoint = "127.0.0.1:1";
    setenv("CAIRN_FABRIC", "pigeon", 1);
    ck_assert_int_eq(cairn_open(&opts, &session), CAIRN_ERR_INVALID);
    ck_assert_ptr_nonnull(strstr(cairn_error(), "CAIRN_FABRIC"));
}

SUITE(30);
