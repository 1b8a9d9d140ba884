#include "server/base/daemon.h"
#include "tests/support/scratch_folder.h"
#include "tests/support/suite.h"

#include <check.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

struct values {
    int64_t count;
};

static const struct config_option options[] = {
    { "shard", "count", CAIRN_OPTION_INT, offsetof(struct values, count), "1", 0, 9, "How many." },
};

static struct values values;
static struct daemon daemon_under_test;
static int stop_count;
static char path[256];

static void on_stop(struct daemon *daemon, void *context)
{
    ck_assert_ptr_eq(context, &values);
    stop_count++;
    daemon_stop(daemon, 0);
}

static void set_up(void)
{
    scratch_make();
    unsetenv("NOTIFY_SOCKET");
    unsetenv("WATCHDOG_USEC");
    unsetenv("WATCHDOG_PID");
}

// What main would return, or -1 when the daemon would go on. Arguments end with NULL.
static int begin(const char *const *arguments)
{
    const struct daemon_spec spec = { .name = "cairn-test",
                                      .purpose = "tests.",
                                      .options = options,
                                      .option_count = 1,
                                      .values = &values,
                                      .on_stop = on_stop,
                                      .context = &values };
    char *argv[16] = { "cairn-test" };
    int argc = 1;
    int exit_code = 99;
    for (; arguments[argc - 1] != NULL; argc++) argv[argc] = (char *)arguments[argc - 1];
    return daemon_begin(&daemon_under_test, &spec, argc, argv, &exit_code) ? -1 : exit_code;
}

/* libuv and UCX would end the process. */
static void expect_no_beginning(__rlimit_resource_t resource, rlim_t limit, uid_t user)
{
    const struct rlimit few = { limit, limit };
    int status;
    const pid_t pid = fork(); // a sanitizer that looks for leaks at the end needs more than these
    ck_assert_int_ge(pid, 0);
    if (pid == 0)
        _exit(setrlimit(resource, &few) != 0 || setuid(user) != 0
                  ? 99
                  : begin((const char *[]) { NULL }));
    ck_assert_int_eq(waitpid(pid, &status, 0), pid);
    ck_assert(WIFEXITED(status));
    ck_assert_int_eq(WEXITSTATUS(status), 1);
}

TEST_EACH(too_few_descriptors_are_said_and_end_it, 5, 9)
{
    expect_no_beginning(RLIMIT_NOFILE, (rlim_t)_i, getuid());
}

TEST(too_few_threads_are_said_and_end_it)
{
    if (geteuid() != 0) return; // root's are not limited, and others may run as any other user
    expect_no_beginning(RLIMIT_NPROC, 10, 4711);
}

TEST_EACH(a_signal_stops_it_cleanly, 0, 2)
{
    char ready[256];
    struct sentence why;
    char text[64] = "";
    snprintf(ready, sizeof ready, "%s/ready", scratch);
    ck_assert_int_eq(begin((const char *[]) { "--ready-file", ready, NULL }), -1);
    ck_assert_int_ne(access(ready, F_OK), 0); // not before it serves
    ck_assert_int_eq(daemon_ready(&daemon_under_test, "127.0.0.1:7400", &why), CAIRN_OK);
    FILE *file = fopen(ready, "r");
    ck_assert_ptr_nonnull(fgets(text, sizeof text, file));
    fclose(file);
    ck_assert_str_eq(text, "127.0.0.1:7400\n");
    raise(SIGHUP); // changes nothing
    raise(SIGPIPE);
    raise(_i == 0 ? SIGTERM : SIGINT);
    ck_assert_int_eq(daemon_run(&daemon_under_test), 0);
    ck_assert_int_eq(stop_count, 1);
    ck_assert_int_ne(access(ready, F_OK), 0);
}

TEST(a_failed_start_has_the_exit_code_of_its_status)
{
    struct sentence why;
    ck_assert_int_eq(begin((const char *[]) { NULL }), -1);
    sentence_set(&why, "refused to listen");
    daemon_fail(&daemon_under_test, CAIRN_ERR_REFUSED, &why);
    ck_assert_int_eq(daemon_run(&daemon_under_test), 12);
    ck_assert_int_eq(stop_count, 0);
}

TEST(the_command_line_wins_over_the_file_in_any_order)
{
    cairn_scratch_file(scratch, "good.conf", "[shard]\ncount = 3\n", path, sizeof path);
    ck_assert_int_eq(begin((const char *[]) { "--set", "shard.count=5", "--config", path,
                                              "--check-config", NULL }),
                     0);
    ck_assert_int_eq(values.count, 5);
    ck_assert_int_eq(begin((const char *[]) { "--config", path, "--check-config", NULL }), 0);
    ck_assert_int_eq(values.count, 3);
}

TEST(a_bad_command_line_or_file_is_2)
{
    cairn_scratch_file(scratch, "bad.conf", "[shard]\ncuont = 3\n", path, sizeof path);
    const char *const rows[][4] = {
        { "--config", path, NULL },
        { "--config", path, "--check-config", NULL },
        { "--config", "/nonexistent", NULL },
        { "--set", "shard.count=10", NULL },
        { "--set", "shard.count", NULL },
        { "--log-level", "loud", NULL },
        { "--frobnicate", NULL },
        { "stray", NULL },
        { "--config", NULL },
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        ck_assert_msg(begin(rows[i]) == 2, "%s", rows[i][0]);
}

TEST(help_version_and_sample_are_0)
{
    static const char *const rows[] = { "--help", "--version", "--print-config", "--check-config" };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        ck_assert_int_eq(begin((const char *[]) { rows[i], NULL }), 0);
}

static int open_supervisor(char *name_out, size_t name_bytes)
{
    struct sockaddr_un addr = { .sun_family = AF_UNIX };
    snprintf(addr.sun_path, sizeof addr.sun_path, "%s/notify", scratch);
    snprintf(name_out, name_bytes, "%s", addr.sun_path);
    const int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_NONBLOCK, 0);
    ck_assert_int_eq(bind(fd, (struct sockaddr *)&addr, sizeof addr), 0);
    return fd;
}

static const char *heard(int fd)
{
    static char text[600];
    const ssize_t n = recv(fd, text, sizeof text - 1, 0);
    text[n > 0 ? n : 0] = '\0';
    return text;
}

TEST(a_supervisor_hears_ready_and_the_watchdog)
{
    char name[200];
    char pid[24];
    struct sentence why;
    const int fd = open_supervisor(name, sizeof name);
    snprintf(pid, sizeof pid, "%ld", (long)getpid());
    setenv("NOTIFY_SOCKET", name, 1);
    setenv("WATCHDOG_USEC", "20000", 1);
    setenv("WATCHDOG_PID", pid, 1);
    ck_assert_uint_eq(notify_watchdog_ms(), 20);
    ck_assert_int_eq(begin((const char *[]) { NULL }), -1);
    ck_assert_int_eq(daemon_ready(&daemon_under_test, "127.0.0.1:1", &why), CAIRN_OK);
    ck_assert_str_eq(heard(fd), "READY=1\nSTATUS=ready on 127.0.0.1:1");
    uv_run(&daemon_under_test.loop, UV_RUN_ONCE);
    ck_assert_str_eq(heard(fd), "WATCHDOG=1");
    raise(SIGTERM);
    ck_assert_int_eq(daemon_run(&daemon_under_test), 0);
    const char *last = heard(fd);
    while (strcmp(last, "WATCHDOG=1") == 0) last = heard(fd);
    ck_assert_str_eq(last, "STOPPING=1");
    close(fd);
}

TEST(a_status_is_one_line)
{
    char name[200];
    const int fd = open_supervisor(name, sizeof name);
    setenv("NOTIFY_SOCKET", name, 1);
    ck_assert(notify_status("step 41\nREADY=1"));
    ck_assert_str_eq(heard(fd), "STATUS=step 41");
    close(fd);
}

TEST(without_a_supervisor_nothing_is_told)
{
    ck_assert(!notify_ready("x"));
    ck_assert_uint_eq(notify_watchdog_ms(), 0);
    setenv("NOTIFY_SOCKET", "relative", 1);
    ck_assert(!notify_stopping());
    setenv("NOTIFY_SOCKET", "/nonexistent/socket", 1);
    ck_assert(!notify_stopping());
    setenv("WATCHDOG_USEC", "20000", 1);
    setenv("WATCHDOG_PID", "1", 1); // another process
    ck_assert_uint_eq(notify_watchdog_ms(), 0);
}

SUITE(30, set_up, scratch_remove);
