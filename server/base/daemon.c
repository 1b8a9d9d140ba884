#include "server/base/daemon.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <inttypes.h>
#include <limits.h>
#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "proto/base/machine.h"
#include "proto/store/confine.h"
#include "server/base/log.h"

enum { DESCRIPTORS = 40, THREADS = 24 }; // with fewer, a daemon cannot serve

static const int signal_numbers[] = { SIGTERM, SIGINT, SIGHUP, SIGUSR1 };
_Static_assert(sizeof signal_numbers / sizeof *signal_numbers == CAIRN_DAEMON_SIGNALS, "daemon.h");

static bool notify_watchdog(void);

static void print_help(const struct daemon_spec *spec)
{
    printf("%s: %s\n\nusage: %s [options]\n  --config FILE            read the configuration from "
           "FILE\n  --set section.key=value  override one value; may be given again\n  "
           "--check-config           check the configuration and exit\n  --print-config           "
           "print a sample configuration with all keys and exit\n  --ready-file PATH        once "
           "ready, write the listening address to PATH\n  --log-level LEVEL        error, warn, "
           "info (default) or debug\n  --log-name NAME          the name in each line of the log\n "
           " --traceable              let other processes of its user trace it, and let it dump "
           "core\n  --help, --version\n%s\nSIGUSR1 sets the log to level debug; the next "
           "SIGUSR1 sets it back\n\nexit status: 0 stopped cleanly, 2 bad usage or configuration, "
           "10-13 as for the CLI,\n1 anything else\n",
           spec->name, spec->purpose, spec->name, spec->more_usage != NULL ? spec->more_usage : "");
}

// The options of the command line that are not values of the configuration.
struct command {
    bool check;
    bool print;
    enum log_level log_level;
};

enum option_id {
    OPT_CONFIG = 1,
    OPT_SET,
    OPT_CHECK,
    OPT_PRINT,
    OPT_READY,
    OPT_LEVEL,
    OPT_NAME,
    OPT_TRACEABLE,
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
    { "traceable", no_argument, NULL, OPT_TRACEABLE },
    { "help", no_argument, NULL, OPT_HELP },
    { "version", no_argument, NULL, OPT_VERSION },
    { NULL, 0, NULL, 0 },
};

static const char *build_of(const struct daemon_spec *spec)
{
    return spec->build != NULL ? spec->build : CAIRN_VERSION;
}

static int complain(const struct daemon_spec *spec, const char *sentence)
{
    fprintf(stderr, "%s: %s\n", spec->name, sentence);
    return 2;
}

// Returns the exit code if the daemon is to end; otherwise -1.
static int take_option(struct daemon *daemon, struct command *command, int id)
{
    const struct daemon_spec *spec = &daemon->spec;
    switch (id) {
    // later passes read the file and the values, so that --set wins wherever it stands
    case OPT_CONFIG:
    case OPT_SET: return -1;
    case OPT_CHECK: command->check = true; return -1;
    case OPT_PRINT: command->print = true; return -1;
    case OPT_READY: daemon->ready_file = optarg; return -1;
    case OPT_NAME: daemon->log_name = optarg; return -1;
    case OPT_TRACEABLE: daemon->is_traceable = true; return -1;
    case OPT_LEVEL:
        if (log_level_parse(optarg, &command->log_level)) return -1;
        return complain(spec, "--log-level takes error, warn, info or debug");
    case OPT_HELP: print_help(spec); return 0;
    case OPT_VERSION: printf("%s %s\n", spec->name, build_of(spec)); return 0;
    default: return complain(spec, "unknown option; see --help");
    }
}

static int take_values(struct daemon *daemon, int wanted, int id)
{
    struct sentence why;
    cairn_status status = CAIRN_OK;
    if (id != wanted) return -1;
    if (id == OPT_CONFIG) status = config_read(&daemon->config, optarg, &why);
    if (id == OPT_SET) status = config_set(&daemon->config, optarg, &why);
    if (status == CAIRN_OK) return -1;
    complain(&daemon->spec, why.text);
    return status == CAIRN_ERR_NO_MEMORY ? status_exit((int)status) : 2;
}

// Makes three passes over argv: the first for the options, the second for the files, the third for --set.
static int read_command_line(struct daemon *daemon, struct command *command, int argc, char **argv)
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

static int judge_command(struct daemon *daemon, const struct command *command)
{
    struct sentence why;
    if (command->print) {
        config_print(&daemon->config, stdout);
        return 0;
    }
    cairn_status status = config_finish(&daemon->config, &why);
    if (status == CAIRN_OK && daemon->spec.judge != NULL)
        status = daemon->spec.judge(daemon->spec.values, &why);
    if (status == CAIRN_OK && command->check && daemon->spec.judge_now != NULL)
        status = daemon->spec.judge_now(daemon->spec.values, &why);
    if (status != CAIRN_OK) {
        complain(&daemon->spec, why.text);
        return status_exit((int)status);
    }
    if (command->check) {
        printf("%s: the configuration is good\n", daemon->spec.name);
        return 0;
    }
    return -1;
}

static void on_signal(uv_signal_t *handle, int number)
{
    struct daemon *daemon = handle->data;
    if (number == SIGHUP) {
        log_info("SIGHUP: nothing to read again, the log goes to stderr");
        return;
    }
    if (number == SIGUSR1) {
        log_warn("SIGUSR1: log.level is %s", log_toggle_debug() ? "debug" : "as before");
        return;
    }
    if (daemon->stopping) {
        log_warn("%s again: ending at once", strsignal(number));
        _exit(1);
    }
    daemon->stopping = true;
    log_info("%s: stopping", strsignal(number));
    notify_stopping();
    daemon->spec.on_stop(daemon, daemon->spec.context);
}

static void on_watchdog(uv_timer_t *timer)
{
    (void)timer;
    notify_watchdog();
}

// Each connection needs a descriptor, so this raises the limit as far as the system allows.
static void raise_descriptor_limit(void)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur == limit.rlim_max) return;
    limit.rlim_cur = limit.rlim_max;
    if (setrlimit(RLIMIT_NOFILE, &limit) != 0) log_warn("cannot raise the limit of open files");
}

void daemon_hold_standard_descriptors(void)
{
    for (int fd = 0; fd <= 2; fd++)
        if (fcntl(fd, F_GETFD) < 0 && open("/dev/null", O_RDWR) != fd) _exit(1);
}

/* libuv asks realloc only for the table of its descriptors, and where the table cannot grow, libuv ends the
 * process by abort() and without a word. */
static void *grow_table(void *memory, size_t bytes)
{
    void *grown = realloc(memory, bytes);
    if (grown != NULL || bytes == 0) return grown;
    log_error("ending at once: out of memory for the event loop's descriptors (%zu bytes)", bytes);
    _exit(status_exit(CAIRN_ERR_NO_MEMORY));
}

/* CAIRN_ERR_NO_MEMORY: there are too few descriptors or threads to start. */
static cairn_status start_handles(struct daemon *daemon, struct sentence *why)
{
    cairn_status status = descriptors_at_hand(STDERR_FILENO, DESCRIPTORS, "a daemon", why);
    if (status == CAIRN_OK) status = threads_at_hand(THREADS, "a daemon", why);
    if (status != CAIRN_OK) return status;
    int error = uv_replace_allocator(malloc, grow_table, calloc, free);
    if (error == 0) error = uv_loop_init(&daemon->loop);
    for (size_t i = 0; i < CAIRN_DAEMON_SIGNALS && error == 0; i++) {
        error = uv_signal_init(&daemon->loop, &daemon->signals[i]);
        if (error != 0) break;
        daemon->signals[i].data = daemon;
        error = uv_signal_start(&daemon->signals[i], on_signal, signal_numbers[i]);
    }
    if (error == 0) error = uv_timer_init(&daemon->loop, &daemon->watchdog);
    if (error != 0)
        return fail_with(why, CAIRN_ERR_NO_MEMORY, "no event loop: %s", uv_strerror(error));
    daemon->watchdog.data = daemon;
    return CAIRN_OK;
}

bool daemon_begin(struct daemon *daemon, const struct daemon_spec *spec, int argc, char **argv,
                  int *exit_code_out)
{
    struct command command = { .log_level = CAIRN_LOG_INFO };
    daemon_hold_standard_descriptors();
    memset(daemon, 0, sizeof *daemon);
    daemon->spec = *spec;
    config_init(&daemon->config, spec->options, spec->option_count, spec->values);
    int code = read_command_line(daemon, &command, argc, argv);
    if (code < 0) code = judge_command(daemon, &command);
    if (code >= 0) {
        config_release(&daemon->config);
        *exit_code_out = code;
        return false;
    }
    log_init(daemon->log_name != NULL ? daemon->log_name : spec->name, command.log_level);
    signal(SIGPIPE, SIG_IGN);
    // a file above the size limit then makes a snapshot fail, and not the daemon
    signal(SIGXFSZ, SIG_IGN);
    raise_descriptor_limit();
    struct sentence why;
    const cairn_status status = start_handles(daemon, &why);
    if (status == CAIRN_OK) return true;
    log_error("cannot start: %s", why.text);
    config_release(&daemon->config);
    *exit_code_out = status_exit((int)status);
    return false;
}

void daemon_log(const struct daemon *daemon, const char *name, const struct log_options *options)
{
    log_set(daemon->log_name != NULL ? daemon->log_name : name, options);
}

// A sanitizer looks for leaks by tracing the process.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define IS_SANITIZED true
#else
#define IS_SANITIZED false
#endif

static void do_nothing(uv_work_t *work)
{
    (void)work;
}

static void did_nothing(uv_work_t *work, int status)
{
    (void)work;
    (void)status;
}

void daemon_hide(void)
{
    if (!IS_SANITIZED) (void)prctl(PR_SET_DUMPABLE, 0, 0, 0, 0);
}

void daemon_confine(struct daemon *daemon, bool may_execute)
{
    const int version = confine_version();
    if (!daemon->is_traceable) daemon_hide();
    if (!may_execute && !confine_process())
        log_warn("the kernel took no rights from this process: %s", strerror(errno));
    if (version == 0)
        log_warn("this kernel has no Landlock (Linux 5.13, with landlock in lsm=): what reads "
                 "files of others has all rights of this process");
    else
        log_info("files of others are read with Landlock %d, nothing but reads of their folder",
                 version);
    // Now libuv starts its threads, which have just been found to be there (start_handles), and have the same
    // rights. At the first work in the middle of a run it would end the process if it got none.
    uv_queue_work(&daemon->loop, &daemon->first_work, do_nothing, did_nothing);
}

static void start_watchdog(struct daemon *daemon)
{
    const uint64_t watchdog_ms = notify_watchdog_ms();
    if (watchdog_ms > 0 && !daemon->stopping)
        uv_timer_start(&daemon->watchdog, on_watchdog, 0, (watchdog_ms + 1) / 2);
}

void daemon_stand_by(struct daemon *daemon)
{
    notify_ready("stands by");
    start_watchdog(daemon);
}

cairn_status daemon_ready(struct daemon *daemon, const char *address, struct sentence *why)
{
    char text[4096]; // has room for all addresses of a listener
    const char *colon = strrchr(address, ':');
    assert(strlen(address) + sizeof "ready on " < sizeof text);
    if (daemon->ready_file != NULL) {
        const int length = snprintf(text, sizeof text, "%s\n", address);
        CAIRN_TRY(durable_write(daemon->ready_file, 0600, text, (size_t)length, why));
        daemon->is_announced = true;
    }
    log_fields(CAIRN_LOG_INFO,
               CAIRN_FIELDS(
                   { "address", address, 0 }, { "port", colon != NULL ? colon + 1 : "", 0 },
                   { "pid", NULL, (uint64_t)getpid() }, { "version", build_of(&daemon->spec), 0 }),
               "ready");
    snprintf(text, sizeof text, "ready on %s", address);
    notify_ready(text);
    start_watchdog(daemon);
    return CAIRN_OK;
}

void daemon_stop(struct daemon *daemon, int exit_code)
{
    daemon->stopping = true;
    if (daemon->exit_code == 0) daemon->exit_code = exit_code;
    if (uv_is_closing((uv_handle_t *)&daemon->watchdog)) return;
    for (size_t i = 0; i < CAIRN_DAEMON_SIGNALS; i++)
        uv_close((uv_handle_t *)&daemon->signals[i], NULL);
    uv_close((uv_handle_t *)&daemon->watchdog, NULL);
}

int daemon_run(struct daemon *daemon)
{
    uv_run(&daemon->loop, UV_RUN_DEFAULT);
    const int error = uv_loop_close(&daemon->loop);
    assert(error == 0); // otherwise a handle is still open although the loop has ended
    (void)error;
    if (daemon->is_announced) unlink(daemon->ready_file);
    config_release(&daemon->config);
    log_info("stopped");
    return daemon->exit_code;
}

void daemon_fail(struct daemon *daemon, cairn_status status, const struct sentence *why)
{
    log_error("cannot start: %s", why->text);
    daemon_stop(daemon, status_exit((int)status));
}

/* ==== notify ==== */

// The address is a path, or "@name" for an abstract name, which lies in no folder.
static bool supervisor_address(struct sockaddr_un *addr_out, socklen_t *addr_bytes_out)
{
    const char *path = getenv("NOTIFY_SOCKET");
    if (path == NULL || (path[0] != '/' && path[0] != '@')) return false;
    const size_t length = strlen(path);
    if (length < 2 || length >= sizeof addr_out->sun_path) return false;
    memset(addr_out, 0, sizeof *addr_out);
    addr_out->sun_family = AF_UNIX;
    memcpy(addr_out->sun_path, path, length);
    if (path[0] == '@') addr_out->sun_path[0] = '\0';
    *addr_bytes_out = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + length);
    return true;
}

int notify_send(const char *state, int fd, int timeout_ms)
{
    struct sockaddr_un addr;
    socklen_t addr_bytes = 0;
    if (!supervisor_address(&addr, &addr_bytes)) return EDESTADDRREQ;
    const int sender = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (sender < 0) return errno;
    const struct timeval wait = { timeout_ms / 1000, timeout_ms % 1000 * 1000L };
    union {
        struct cmsghdr header;
        char room[CMSG_SPACE(sizeof fd)];
    } control = { .header = { CMSG_LEN(sizeof fd), SOL_SOCKET, SCM_RIGHTS } };
    memcpy(CMSG_DATA(&control.header), &fd, sizeof fd);
    struct iovec text = { wire_text(state), strlen(state) };
    struct msghdr message = { .msg_iov = &text, .msg_iovlen = 1 };
    if (fd >= 0) {
        message.msg_control = &control;
        message.msg_controllen = sizeof control;
    }
    const int flags = MSG_NOSIGNAL | (timeout_ms == 0 ? MSG_DONTWAIT : 0);
    setsockopt(sender, SOL_SOCKET, SO_SNDTIMEO, &wait, sizeof wait);
    ssize_t sent = connect(sender, (const struct sockaddr *)&addr, addr_bytes);
    if (sent == 0 && text.iov_len > 0) do
            sent = sendmsg(sender, &message, flags);
        while (sent < 0 && errno == EINTR);
    const int error = sent < 0 ? errno : 0; // a datagram goes as a whole
    close(sender);
    return error;
}

static bool notify(const char *state)
{
    return notify_send(state, -1, 0) == 0;
}

// Only the first line of the status is sent, because text after a newline would be another assignment.
static bool tell_status(const char *before, const char *status)
{
    char state[512];
    snprintf(state, sizeof state, "%sSTATUS=%.*s", before, (int)strcspn(status, "\n"), status);
    return notify(state);
}

bool notify_ready(const char *status)
{
    return tell_status("READY=1\n", status);
}

bool notify_stopping(void)
{
    return notify("STOPPING=1");
}

bool notify_status(const char *status)
{
    return tell_status("", status);
}

static bool notify_watchdog(void)
{
    return notify("WATCHDOG=1");
}

uint64_t notify_number(const char *variable)
{
    const char *text = getenv(variable);
    char *end = NULL;
    if (text == NULL || text[0] < '0' || text[0] > '9') return 0;
    errno = 0;
    const unsigned long long number = strtoull(text, &end, 10);
    return errno == 0 && *end == '\0' ? number : 0;
}

uint64_t notify_watchdog_ms(void)
{
    const uint64_t pid = notify_number("WATCHDOG_PID");
    if (getenv("NOTIFY_SOCKET") == NULL) return 0;
    // the watchdog is meant for another process
    if (pid != 0 && pid != (uint64_t)getpid()) return 0;
    return notify_number("WATCHDOG_USEC") / 1000;
}

/* ==== host lock ==== */

#define TRY_EACH_MS 5

/* Returns the pid of the process that holds an flock of the file, as /proc/locks says; 0 if none is listed
 * there. */
static int holder_of(int fd)
{
    struct stat stat;
    FILE *locks = fopen("/proc/locks", "re");
    char line[256];
    int holder = 0;
    if (locks == NULL) return 0;
    while (fstat(fd, &stat) == 0 && holder == 0 && fgets(line, sizeof line, locks) != NULL) {
        int pid;
        unsigned device_major, device_minor;
        unsigned long inode;
        if (sscanf(line, "%*d: FLOCK %*s %*s %d %x:%x:%lu", &pid, &device_major, &device_minor,
                   &inode) == 4 &&
            device_major == major(stat.st_dev) && device_minor == minor(stat.st_dev) &&
            inode == stat.st_ino)
            holder = pid;
    }
    fclose(locks);
    return holder;
}

static cairn_status wait_for(int fd, const char *path, int timeout_ms, const atomic_bool *canceled,
                             struct sentence *why)
{
    const struct timespec pause = { .tv_nsec = TRY_EACH_MS * 1000000L };
    for (int waited_ms = 0; flock(fd, LOCK_EX | LOCK_NB) != 0; waited_ms += TRY_EACH_MS) {
        if (errno != EWOULDBLOCK && errno != EINTR)
            return fail_with(why, CAIRN_ERR_IO, "cannot lock %s: %s", path, strerror(errno));
        if (atomic_load(canceled))
            return fail_with(why, CAIRN_ERR_CANCELED, "given up while waiting to lock %s", path);
        if (waited_ms >= timeout_ms)
            return fail_with(why, CAIRN_ERR_BUSY,
                             "process %d has held the lock of %s for longer than %d ms: see what "
                             "it does, and try again",
                             holder_of(fd), path, timeout_ms);
        nanosleep(&pause, NULL);
    }
    return CAIRN_OK;
}

cairn_status host_lock_take(const char *path, int timeout_ms, const atomic_bool *canceled,
                            int *fd_out, struct sentence *why)
{
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return fail_with(why, CAIRN_ERR_IO, "cannot open %s to lock it: %s", path, strerror(errno));
    const cairn_status status = wait_for(fd, path, timeout_ms, canceled, why);
    if (status != CAIRN_OK)
        close(fd);
    else
        *fd_out = fd;
    return status;
}

/* ==== headroom ==== */

/* Besides the pages themselves, the kernel needs memory for page tables, for files and for its own
 * structures. */
#define BESIDE_PART  128
#define BESIDE_BYTES ((uint64_t)8 << 20)

/* The file names and keys of one version of control groups. */
struct groups {
    /* controller: NULL for v2, which has only one hierarchy */
    const char *file_system, *controller;
    const char *limit, *usage, *reclaimable;
};

static const struct groups v1 = { "cgroup", "memory", "memory.limit_in_bytes",
                                  "memory.usage_in_bytes", "total_inactive_file" };
static const struct groups v2 = { "cgroup2", NULL, "memory.max", "memory.current",
                                  "inactive_file" };

/* Reads the number in a file; if `key` is not NULL, the number in the line that begins with `key`. "max"
 * becomes UINT64_MAX, which means no limit. */
static bool read_number(const char *folder, const char *name, const char *key, uint64_t *out)
{
    char path[PATH_MAX], line[256];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *file = fopen(path, "re");
    if (file == NULL) return false;
    const size_t skip = key != NULL ? strlen(key) : 0;
    bool found = false;
    while (!found && fgets(line, sizeof line, file) != NULL) {
        const char *at = line + skip;
        if (key != NULL && (strncmp(line, key, skip) != 0 || (*at != ' ' && *at != ':'))) continue;
        if (*at == ':') at++;
        char *end;
        const bool is_max = strncmp(at, "max", 3) == 0;
        *out = is_max ? UINT64_MAX : strtoull(at, &end, 10);
        found = is_max || end != at;
    }
    fclose(file);
    return found;
}

static void note(struct headroom *room, const char *by, uint64_t limit, uint64_t in_use)
{
    const uint64_t available = in_use < limit ? limit - in_use : 0;
    if (limit < room->most_bytes) room->most_bytes = limit;
    if (available >= room->available_bytes) return;
    room->available_bytes = available;
    room->limit_bytes = limit;
    snprintf(room->by, sizeof room->by, "%s", by);
}

static void note_group(struct headroom *room, const struct groups *groups, const char *root,
                       const char *folder)
{
    uint64_t limit, usage, reclaimable = 0;
    if (!read_number(folder, groups->limit, NULL, &limit) || limit == UINT64_MAX ||
        !read_number(folder, groups->usage, NULL, &usage))
        return; // the group has no limit, as the topmost group
    (void)read_number(folder, "memory.stat", groups->reclaimable, &reclaimable);
    note(room, folder + strlen(root), limit, usage > reclaimable ? usage - reclaimable : 0);
}

/* True if the word is in the list, which is separated by commas. */
static bool has_word(const char *list, const char *word)
{
    const size_t length = strlen(word);
    for (const char *at = list; *at != '\0'; at += strcspn(at, ",\n"), at += *at != '\0')
        if (strncmp(at, word, length) == 0 && strcspn(at, ",\n") == length) return true;
    return false;
}

/* Finds the process's group in /proc/self/cgroup, where a line is "number:controllers:path". */
static bool find_group(const char *root, const struct groups *groups, char out[PATH_MAX])
{
    char path[PATH_MAX], line[PATH_MAX + 256], controllers[256];
    snprintf(path, sizeof path, "%s/proc/self/cgroup", root);
    FILE *file = fopen(path, "re");
    bool found = false;
    while (file != NULL && !found && fgets(line, sizeof line, file) != NULL) {
        const char *first = strchr(line, ':');
        const char *second = first != NULL ? strchr(first + 1, ':') : NULL;
        if (second == NULL) continue;
        snprintf(controllers, sizeof controllers, "%.*s", (int)(second - first - 1), first + 1);
        found = groups->controller == NULL ? controllers[0] == '\0'
                                           : has_word(controllers, groups->controller);
        snprintf(out, PATH_MAX, "%.*s", (int)strcspn(second + 1, "\n"), second + 1);
    }
    if (file != NULL) fclose(file);
    return found;
}

/* Finds in /proc/self/mountinfo where the hierarchy is mounted, and which group is mounted there. */
static bool find_mount(const char *root, const struct groups *groups, char top[PATH_MAX],
                       char mount[PATH_MAX])
{
    char path[PATH_MAX], line[2 * PATH_MAX], kind[64], options[PATH_MAX];
    snprintf(path, sizeof path, "%s/proc/self/mountinfo", root);
    FILE *file = fopen(path, "re");
    bool found = false;
    while (file != NULL && !found && fgets(line, sizeof line, file) != NULL) {
        const char *rest = strstr(line, " - ");
        found = rest != NULL && sscanf(line, "%*s %*s %*s %4095s %4095s", top, mount) == 2 &&
                sscanf(rest, " - %63s %*s %4095s", kind, options) == 2 &&
                strcmp(kind, groups->file_system) == 0 &&
                (groups->controller == NULL || has_word(options, groups->controller));
    }
    if (file != NULL) fclose(file);
    return found;
}

/* Notes the process's group and the groups above it, up to the group that is mounted. */
static void note_groups(struct headroom *room, const struct groups *groups, const char *root)
{
    char group[PATH_MAX], top[PATH_MAX], mount[PATH_MAX], folder[3 * PATH_MAX];
    if (!find_group(root, groups, group) || !find_mount(root, groups, top, mount)) return;
    const size_t above = strcmp(top, "/") == 0 ? 0 : strlen(top);
    const bool is_below = strncmp(group, top, above) == 0 &&
                          (group[above] == '/' || group[above] == '\0') &&
                          strstr(group, "/..") == NULL;
    const char *below = is_below ? group + above : "";
    snprintf(folder, sizeof folder, "%s%s%s", root, mount, strcmp(below, "/") == 0 ? "" : below);
    const size_t shortest = strlen(root) + strlen(mount);
    for (;;) {
        note_group(room, groups, root, folder);
        char *slash = strrchr(folder, '/');
        if (slash == NULL || strlen(folder) <= shortest) return;
        *slash = '\0';
        if (strlen(folder) < shortest) return;
    }
}

cairn_status headroom_read(const char *root, struct headroom *room_out, struct sentence *why)
{
    char proc[PATH_MAX];
    uint64_t total_kib, available_kib;
    snprintf(proc, sizeof proc, "%s/proc", root);
    if (!read_number(proc, "meminfo", "MemTotal", &total_kib) ||
        !read_number(proc, "meminfo", "MemAvailable", &available_kib))
        return fail_with(why, CAIRN_ERR_IO, "cannot read the amount of memory from %s/meminfo: %s",
                         proc, strerror(errno));
    struct headroom room = { .available_bytes = UINT64_MAX, .most_bytes = UINT64_MAX };
    note(&room, "the host's RAM", total_kib * 1024,
         total_kib > available_kib ? (total_kib - available_kib) * 1024 : 0);
    note_groups(&room, &v1, root);
    note_groups(&room, &v2, root);
    *room_out = room;
    return CAIRN_OK;
}

cairn_status headroom_judge(const struct headroom *room, uint64_t bytes, const char *what,
                            struct sentence *why)
{
    const uint64_t beside = bytes / BESIDE_PART + BESIDE_BYTES;
    const uint64_t left = room->available_bytes;
    if (bytes == 0 || (beside <= left && bytes <= left - beside)) return CAIRN_OK;
    return fail_with(
        why, CAIRN_ERR_NO_MEMORY,
        "%s needs %" PRIu64 " bytes and %" PRIu64 " beside them, but only %" PRIu64
        " are available: %s has %" PRIu64
        ", and the rest is in use. Give it more, end what uses it, or add shards on other hosts",
        what, bytes, beside, left, room->by, room->limit_bytes);
}

/* ==== yield ==== */

#define YIELD_NICE 19

/* These are from linux/ioprio.h, which not every system has. */
#define IOPRIO_WHO_PROCESS 1
/* best effort, 7: the lowest priority that still gets some I/O */
#define IOPRIO_LOWEST ((2 << 13) | 7)

static void set_nice(int nice)
{
    (void)setpriority(PRIO_PROCESS, (id_t)syscall(SYS_gettid), nice); // changes only this thread
}

void thread_press(void)
{
    set_nice(0);
}

void thread_yield(void)
{
    // SCHED_IDLE would be too low: while trainers use all cores, such a thread gets almost no time.
    set_nice(YIELD_NICE);
    (void)syscall(SYS_ioprio_set, IOPRIO_WHO_PROCESS, 0, IOPRIO_LOWEST);
}

/* ==== storage watch ==== */

#define AGAIN_MS 2000 /* the time between two checks while something is wrong */
#define HANGS_MS 3000 /* after this time the hang is reported */
#define CLOSE_MS 500  /* after this time the daemon ends without the thread */

/* One check. It is allocated apart from the watch, because the storage may hang for longer than the watch
 * exists. */
struct storage_look {
    struct task task;
    struct storage_watch *watch; /* borrowed; used by the loop only */
    cairn_status (*judge)(const char *path, uint64_t token, const struct storage_owner *owner,
                          struct sentence *why);
    struct storage_owner owner;
    char *path; /* owned */
    uint64_t token;
    cairn_status found;
    struct sentence why;
};

cairn_status storage_watch_open(struct storage_watch *watch, uv_loop_t *loop, struct sentence *why)
{
    watch->loop = loop;
    return pool_open(loop, "cairn-storage", 1, NULL, &watch->thread, why);
}

bool storage_watch_close(struct storage_watch *watch, void (*on_closed)(void *context),
                         void *context)
{
    if (watch->thread == NULL) return false;
    if (!pool_close_within(watch->thread, CLOSE_MS, on_closed, context)) watch->look = NULL;
    return true;
}

static void free_look(struct storage_look *look)
{
    if (look == NULL) return;
    free(look->path);
    free(look);
}

void storage_watch_release(struct storage_watch *watch)
{
    free(watch->path);
    free_look(watch->look);
}

static void run_look(struct task *task, uint32_t item, uint32_t thread)
{
    struct storage_look *look = (struct storage_look *)task;
    (void)item, (void)thread;
    look->found = look->judge(look->path, look->token, &look->owner, &look->why);
}

static void say(struct storage_watch *watch, const struct sentence *why)
{
    if (strcmp(watch->said.text, why->text) == 0) return;
    watch->said = *why;
    watch->on_said(watch);
}

static void look_again(struct storage_watch *watch);

static void on_looked(struct task *task)
{
    struct storage_look *look = (struct storage_look *)task;
    struct storage_watch *watch = look->watch;
    watch->is_looking = false;
    watch->since_ms = uv_now(watch->loop);
    if (watch->path == NULL) return;
    if (look->token != watch->token || look->owner.store != watch->owner.store ||
        strcmp(watch->path, look->path) != 0) {
        look_again(watch); // the folder or its owner has changed meanwhile
        return;
    }
    if (look->found == CAIRN_OK) look->why.text[0] = '\0';
    say(watch, &look->why);
}

static void look_again(struct storage_watch *watch)
{
    struct storage_look *next = calloc(1, sizeof *next);
    char *path = strdup(watch->path);
    if (next == NULL || path == NULL) {
        free(next);
        free(path);
        return; // no check now; if there is a fault, a snapshot will report it
    }
    *next = (struct storage_look) {
        .task = { .run = run_look, .done = on_looked, .item_count = 1 },
        .watch = watch,
        .judge = watch->judge,
        .owner = watch->owner,
        .path = path,
        .token = watch->token,
    };
    free_look(watch->look);
    watch->look = next;
    watch->is_looking = true;
    watch->since_ms = uv_now(watch->loop);
    pool_submit(watch->thread, &next->task);
}

void storage_watch_told(struct storage_watch *watch, const char *path, uint64_t token)
{
    free(watch->path);
    watch->path = token != 0 && path[0] == '/' ? strdup(path) : NULL;
    watch->token = token;
    // otherwise `said` is kept until the next check has ended
    if (watch->path == NULL) watch->said.text[0] = '\0';
    if (watch->path != NULL && !watch->is_looking) look_again(watch);
}

void storage_watch_doubt(struct storage_watch *watch)
{
    if (watch->path != NULL && !watch->is_looking) look_again(watch);
}

static void say_that_it_hangs(struct storage_watch *watch, uint64_t ms)
{
    struct sentence why;
    sentence_set(&why, "%s has not answered for %u s or more: its storage hangs; check the mount",
                 watch->path, (unsigned)(HANGS_MS / 1000));
    if (ms >= HANGS_MS) say(watch, &why);
}

void storage_watch_tick(struct storage_watch *watch)
{
    const uint64_t ms = uv_now(watch->loop) - watch->since_ms;
    if (watch->path == NULL) return;
    if (watch->is_looking)
        say_that_it_hangs(watch, ms);
    else if (watch->said.text[0] != '\0' && ms >= AGAIN_MS)
        look_again(watch);
}
