#include "server/base/daemon.h"

#include "proto/base/at_hand.h"
#include "server/base/durable.h"
#include "server/base/log.h"
#include "server/base/notify.h"

#include <assert.h>
#include <fcntl.h>
#include <getopt.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

enum { DESCRIPTORS = 40, THREADS = 24 }; // with fewer no daemon comes to serve anybody

static const int signal_numbers[] = { SIGTERM, SIGINT, SIGHUP, SIGUSR1 };
_Static_assert(sizeof signal_numbers / sizeof *signal_numbers == CAIRN_DAEMON_SIGNALS, "daemon.h");

static void print_help(const struct cairn_daemon_spec *spec)
{
    printf("%s: %s\n\n"
           "usage: %s [options]\n"
           "  --config FILE            read the configuration from FILE\n"
           "  --set section.key=value  override one value; may be given again\n"
           "  --check-config           judge the configuration and exit\n"
           "  --print-config           print a sample configuration with all keys and exit\n"
           "  --ready-file PATH        once ready, write the listening address to PATH\n"
           "  --log-level LEVEL        error, warn, info (default) or debug\n"
           "  --log-name NAME          the name in each line of the log\n"
           "  --help, --version\n\n"
           "SIGUSR1: the log says what debug says from now on, and at the next one as before\n\n"
           "exit status: 0 stopped cleanly, 2 bad usage or configuration, 10-13 as of the CLI,\n"
           "1 anything else\n",
           spec->name, spec->purpose, spec->name);
}

// Options of the command line, beside the values that it sets.
struct command {
    bool check;
    bool print;
    enum cairn_log_level log_level;
};

enum option_id {
    OPT_CONFIG = 1,
    OPT_SET,
    OPT_CHECK,
    OPT_PRINT,
    OPT_READY,
    OPT_LEVEL,
    OPT_NAME,
    OPT_HELP,
    OPT_VERSION
};

static const struct option long_options[] = {
    { "config", required_argument, NULL, OPT_CONFIG },
    { "set", required_argument, NULL, OPT_SET },
    { "check-config", no_argument, NULL, OPT_CHECK },
    { "print-config", no_argument, NULL, OPT_PRINT },
    { "ready-file", required_argument, NULL, OPT_READY },
    { "log-level", required_argument, NULL, OPT_LEVEL },
    { "log-name", required_argument, NULL, OPT_NAME },
    { "help", no_argument, NULL, OPT_HELP },
    { "version", no_argument, NULL, OPT_VERSION },
    { NULL, 0, NULL, 0 },
};

static const char *build_of(const struct cairn_daemon_spec *spec)
{
    return spec->build != NULL ? spec->build : CAIRN_VERSION;
}

static int complain(const struct cairn_daemon_spec *spec, const char *sentence)
{
    fprintf(stderr, "%s: %s\n", spec->name, sentence);
    return 2;
}

// -1: go on; otherwise the exit code.
static int take_option(struct cairn_daemon *daemon, struct command *command, int id)
{
    const struct cairn_daemon_spec *spec = &daemon->spec;
    switch (id) {
    case OPT_CONFIG: // read in a first pass, so that --set wins wherever it stands
    case OPT_SET: return -1;
    case OPT_CHECK: command->check = true; return -1;
    case OPT_PRINT: command->print = true; return -1;
    case OPT_READY: daemon->ready_file = optarg; return -1;
    case OPT_NAME: daemon->log_name = optarg; return -1;
    case OPT_LEVEL:
        if (cairn_log_level_parse(optarg, &command->log_level)) return -1;
        return complain(spec, "--log-level takes error, warn, info or debug");
    case OPT_HELP: print_help(spec); return 0;
    case OPT_VERSION: printf("%s %s\n", spec->name, build_of(spec)); return 0;
    default: return complain(spec, "unknown option; see --help");
    }
}

static int take_values(struct cairn_daemon *daemon, int wanted, int id)
{
    struct cairn_sentence why;
    cairn_status status = CAIRN_OK;
    if (id != wanted) return -1;
    if (id == OPT_CONFIG) status = cairn_config_read(&daemon->config, optarg, &why);
    if (id == OPT_SET) status = cairn_config_set(&daemon->config, optarg, &why);
    return status == CAIRN_OK ? -1 : complain(&daemon->spec, why.text);
}

// Three passes over argv: the options, then the files, then the overrides.
static int read_command_line(struct cairn_daemon *daemon, struct command *command, int argc,
                             char **argv)
{
    static const int passes[] = { 0, OPT_CONFIG, OPT_SET };
    for (size_t pass = 0; pass < sizeof passes / sizeof passes[0]; pass++) {
        int id;
        optind = 0; // getopt_long starts over
        opterr = pass == 0;
        while ((id = getopt_long(argc, argv, "", long_options, NULL)) != -1) {
            const int code = passes[pass] == 0 ? take_option(daemon, command, id)
                                               : take_values(daemon, passes[pass], id);
            if (code >= 0) return code;
        }
        if (optind < argc) return complain(&daemon->spec, "takes no arguments; see --help");
    }
    return -1;
}

static int judge_command(struct cairn_daemon *daemon, const struct command *command)
{
    struct cairn_sentence why;
    if (command->print) {
        cairn_config_print(&daemon->config, stdout);
        return 0;
    }
    if (cairn_config_finish(&daemon->config, &why) != CAIRN_OK)
        return complain(&daemon->spec, why.text);
    cairn_status status = CAIRN_OK;
    if (daemon->spec.judge != NULL) status = daemon->spec.judge(daemon->spec.values, &why);
    if (status == CAIRN_OK && command->check && daemon->spec.judge_now != NULL)
        status = daemon->spec.judge_now(daemon->spec.values, &why);
    if (status != CAIRN_OK) {
        complain(&daemon->spec, why.text);
        return cairn_status_exit((int)status);
    }
    if (command->check) {
        printf("%s: the configuration is good\n", daemon->spec.name);
        return 0;
    }
    return -1;
}

static void on_signal(uv_signal_t *handle, int number)
{
    struct cairn_daemon *daemon = handle->data;
    if (number == SIGHUP) {
        cairn_log_info("SIGHUP: nothing to read again, the log goes to stderr");
        return;
    }
    if (number == SIGUSR1) {
        cairn_log_warn("SIGUSR1: log.level is %s",
                       cairn_log_toggle_debug() ? "debug" : "as before");
        return;
    }
    if (daemon->stopping) {
        cairn_log_warn("%s again: ending at once", strsignal(number));
        _exit(1);
    }
    daemon->stopping = true;
    cairn_log_info("%s: stopping", strsignal(number));
    cairn_notify_stopping();
    daemon->spec.on_stop(daemon, daemon->spec.context);
}

static void on_watchdog(uv_timer_t *timer)
{
    (void)timer;
    cairn_notify_watchdog();
}

// Each connection is a descriptor: take as many as the system lets this process have.
static void raise_descriptor_limit(void)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur == limit.rlim_max) return;
    limit.rlim_cur = limit.rlim_max;
    if (setrlimit(RLIMIT_NOFILE, &limit) != 0)
        cairn_log_warn("cannot raise the limit of open files");
}

/* Without them the next descriptors that are opened would be these three: the log would go into a socket, and
 * libuv refuses to close them. */
static void hold_standard_descriptors(void)
{
    for (int fd = 0; fd <= 2; fd++)
        if (fcntl(fd, F_GETFD) < 0 && open("/dev/null", O_RDWR) != fd) _exit(1);
}

/* CAIRN_ERR_NO_MEMORY: there are too few descriptors or threads to begin with. */
static cairn_status start_handles(struct cairn_daemon *daemon, struct cairn_sentence *why)
{
    cairn_status status = cairn_descriptors_at_hand(STDERR_FILENO, DESCRIPTORS, "a daemon", why);
    if (status == CAIRN_OK) status = cairn_threads_at_hand(THREADS, "a daemon", why);
    if (status != CAIRN_OK) return status;
    int error = uv_loop_init(&daemon->loop);
    for (size_t i = 0; i < CAIRN_DAEMON_SIGNALS && error == 0; i++) {
        error = uv_signal_init(&daemon->loop, &daemon->signals[i]);
        if (error != 0) break;
        daemon->signals[i].data = daemon;
        error = uv_signal_start(&daemon->signals[i], on_signal, signal_numbers[i]);
    }
    if (error == 0) error = uv_timer_init(&daemon->loop, &daemon->watchdog);
    if (error != 0)
        return cairn_fail(why, CAIRN_ERR_NO_MEMORY, "no event loop: %s", uv_strerror(error));
    daemon->watchdog.data = daemon;
    return CAIRN_OK;
}

bool cairn_daemon_begin(struct cairn_daemon *daemon, const struct cairn_daemon_spec *spec, int argc,
                        char **argv, int *exit_code_out)
{
    struct command command = { .log_level = CAIRN_LOG_INFO };
    hold_standard_descriptors();
    memset(daemon, 0, sizeof *daemon);
    daemon->spec = *spec;
    cairn_config_init(&daemon->config, spec->options, spec->option_count, spec->values);
    int code = read_command_line(daemon, &command, argc, argv);
    if (code < 0) code = judge_command(daemon, &command);
    if (code >= 0) {
        cairn_config_release(&daemon->config);
        *exit_code_out = code;
        return false;
    }
    cairn_log_init(daemon->log_name != NULL ? daemon->log_name : spec->name, command.log_level);
    signal(SIGPIPE, SIG_IGN);
    signal(SIGXFSZ, SIG_IGN); // a file over its limit fails a snapshot, not the daemon
    raise_descriptor_limit();
    struct cairn_sentence why;
    const cairn_status status = start_handles(daemon, &why);
    if (status == CAIRN_OK) return true;
    cairn_log_error("cannot start: %s", why.text);
    cairn_config_release(&daemon->config);
    *exit_code_out = cairn_status_exit((int)status);
    return false;
}

void cairn_daemon_log(const struct cairn_daemon *daemon, const char *name,
                      const struct cairn_log_options *options)
{
    cairn_log_set(daemon->log_name != NULL ? daemon->log_name : name, options);
}

cairn_status cairn_daemon_ready(struct cairn_daemon *daemon, const char *address,
                                struct cairn_sentence *why)
{
    char text[4096]; // a listener's addresses, all of them
    const char *colon = strrchr(address, ':');
    assert(strlen(address) + sizeof "ready on " < sizeof text);
    const uint64_t watchdog_ms = cairn_notify_watchdog_ms();
    if (daemon->ready_file != NULL) {
        const int length = snprintf(text, sizeof text, "%s\n", address);
        const cairn_status status = cairn_durable_write(daemon->ready_file, text, (size_t)length,
                                                        why);
        if (status != CAIRN_OK) return status;
        daemon->is_announced = true;
    }
    cairn_log_fields(CAIRN_LOG_INFO,
                     CAIRN_FIELDS({ "address", address, 0 },
                                  { "port", colon != NULL ? colon + 1 : "", 0 },
                                  { "pid", NULL, (uint64_t)getpid() },
                                  { "version", build_of(&daemon->spec), 0 }),
                     "ready");
    snprintf(text, sizeof text, "ready on %s", address);
    cairn_notify_ready(text);
    if (watchdog_ms > 0 && !daemon->stopping)
        uv_timer_start(&daemon->watchdog, on_watchdog, 0, (watchdog_ms + 1) / 2);
    return CAIRN_OK;
}

void cairn_daemon_stop(struct cairn_daemon *daemon, int exit_code)
{
    daemon->stopping = true;
    if (daemon->exit_code == 0) daemon->exit_code = exit_code;
    if (uv_is_closing((uv_handle_t *)&daemon->watchdog)) return;
    for (size_t i = 0; i < CAIRN_DAEMON_SIGNALS; i++)
        uv_close((uv_handle_t *)&daemon->signals[i], NULL);
    uv_close((uv_handle_t *)&daemon->watchdog, NULL);
}

int cairn_daemon_run(struct cairn_daemon *daemon)
{
    uv_run(&daemon->loop, UV_RUN_DEFAULT);
    const int error = uv_loop_close(&daemon->loop);
    assert(error == 0); // something is still open, yet the loop ended
    (void)error;
    if (daemon->is_announced) unlink(daemon->ready_file);
    cairn_config_release(&daemon->config);
    cairn_log_info("stopped");
    return daemon->exit_code;
}

void cairn_daemon_fail(struct cairn_daemon *daemon, cairn_status status,
                       const struct cairn_sentence *why)
{
    cairn_log_error("cannot start: %s", why->text);
    cairn_daemon_stop(daemon, cairn_status_exit((int)status));
}
