/* cairn local: the life of a cluster, from creating its folder to its end. */
#include "client/ctl/ctl.h"

#include <inttypes.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/sysinfo.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "proto/base/machine.h"
#include "proto/loop/loop.h"

#define START_MS      60000
#define LOCAL_TURN_MS 10

/* ==== local folder ==== */

/* cairn local: its programs, folder and files. */

/* ---- programs ---- */

static bool is_program(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0 && S_ISREG(st.st_mode) && access(path, X_OK) == 0;
}

/* Searches PATH like execvp. */
static bool find_in_path(const char *name, char path_out[PATH_MAX])
{
    const char *from = getenv("PATH");
    while (from != NULL) {
        const size_t length = strcspn(from, ":");
        const int written = snprintf(path_out, PATH_MAX, "%.*s%s%s", (int)length, from,
                                     length > 0 ? "/" : "", name);
        if (written > 0 && written < PATH_MAX && is_program(path_out)) return true;
        from = from[length] == ':' ? from + length + 1 : NULL;
    }
    return false;
}

/* True if execvp would find the command. */
static bool has_command(const char *command)
{
    char path[PATH_MAX];
    return strchr(command, '/') != NULL ? access(command, X_OK) == 0 : find_in_path(command, path);
}

bool local_find_program(const char *name, char path_out[PATH_MAX], struct sentence *why)
{
    char found[PATH_MAX] = "";
    const ssize_t length = readlink("/proc/self/exe", found, sizeof found - 64);
    char *slash = length > 0 ? strrchr(found, '/') : NULL;
    if (slash != NULL) snprintf(slash + 1, 64, "%s", name);
    if ((slash != NULL && is_program(found)) || find_in_path(name, found))
        // absolute, since daemons run in another folder
        if (realpath(found, path_out) != NULL) return true;
    sentence_set(why, "there is no %s beside this program and none in PATH; build or install it",
                 name);
    return false;
}

/* Finds the libcairn that was built with this program, in ../lib. False: ../lib has no libcairn, and the
 * linker's default applies. */
static bool find_library(char path_out[PATH_MAX])
{
    char found[PATH_MAX] = "";
    const ssize_t length = readlink("/proc/self/exe", found, sizeof found - 64);
    char *slash = length > 0 ? strrchr(found, '/') : NULL;
    if (slash == NULL) return false;
    snprintf(slash + 1, 64, "../lib/libcairn.so.0");
    return realpath(found, path_out) != NULL;
}

/* ---- the folder ---- */

static bool make_temporary(struct local *local, struct sentence *why)
{
    const char *parent = getenv("TMPDIR");
    char folder[PATH_MAX];
    snprintf(folder, sizeof folder, "%s/cairn-local.XXXXXX",
             parent != NULL && parent[0] != 0 ? parent : "/tmp");
    if (mkdtemp(folder) == NULL) {
        sentence_set(why, "no temporary folder %s: %s; is TMPDIR right?", folder, strerror(errno));
        return false;
    }
    local->is_temporary = realpath(folder, local->folder) != NULL;
    return local->is_temporary;
}

static bool take_kept(struct local *local, struct sentence *why)
{
    const char *keep = local->ctl->local.keep;
    if ((mkdir(keep, 0700) == 0 || errno == EEXIST) && realpath(keep, local->folder) != NULL &&
        access(local->folder, R_OK | W_OK | X_OK) == 0)
        return true;
    sentence_set(why, "--keep %s: %s; give a folder that can be written, or made", keep,
                 strerror(errno));
    local->folder[0] = 0;
    return false;
}

/* Places the socket in the folder, if a socket address and a line of the configuration can hold the
 * socket's name. */
static bool place_socket(struct local *local, struct sentence *why)
{
    snprintf(local->socket, sizeof local->socket, "%s/coordinator.sock", local->folder);
    if (strlen(local->socket) <= CAIRN_ADDRESS_PATH_BYTES &&
        local->socket[strcspn(local->socket, " \t\r\n;")] == 0)
        return true;
    snprintf(local->socket_folder, sizeof local->socket_folder, "/tmp/cairn-local.XXXXXX");
    if (mkdtemp(local->socket_folder) == NULL) {
        local->socket_folder[0] = 0;
        sentence_set(why, "no folder in /tmp for the socket: %s", strerror(errno));
        return false;
    }
    snprintf(local->socket, sizeof local->socket, "%s/coordinator.sock", local->socket_folder);
    return true;
}

/* Creates the folder, mode 0700, or uses the folder given by --keep. */
static bool make_folder(struct local *local, struct sentence *why)
{
    const bool is_there = local->ctl->local.keep != NULL ? take_kept(local, why)
                                                         : make_temporary(local, why);
    return is_there && place_socket(local, why);
}

/* Finds the folder that weights may be read from. This is the folder of --import, else the working folder,
 * if a configuration can hold the working folder's name. */
static bool find_import(struct local *local, struct sentence *why)
{
    const char *given = local->ctl->local.import;
    if (realpath(given != NULL ? given : ".", local->import) == NULL) {
        local->import[0] = 0;
        sentence_set(why, "--import %s: %s", given, strerror(errno));
        return given == NULL;
    }
    // In the configuration ':' separates two folders, and ';' may begin a comment.
    if (local->import[strcspn(local->import, ":;\r\n")] == 0) return true;
    sentence_set(why, "--import %s: a folder without : and ; in its name is allowed",
                 local->import);
    local->import[0] = 0;
    return given == NULL;
}

static int remove_one(const char *path, const struct stat *st, int type, struct FTW *walk)
{
    (void)st;
    (void)type;
    (void)walk;
    if (remove(path) != 0) fprintf(stderr, "cairn local: %s stays: %s\n", path, strerror(errno));
    return 0;
}

/* Removes the files and folders that were created, unless the user asked to keep them. */
static void remove_folder(struct local *local)
{
    if (local->socket_folder[0] != 0) {
        unlink(local->socket); // a killed coordinator may have left its socket
        rmdir(local->socket_folder);
        local->socket_folder[0] = 0;
    }
    if (!local->is_temporary) return;
    nftw(local->folder, remove_one, 16, FTW_DEPTH | FTW_PHYS);
    local->is_temporary = false;
}

/* ---- files ---- */

/* Writes the complete file or nothing. */
static bool write_file(const char *path, const char *text, struct sentence *why)
{
    char part[PATH_MAX + 16];
    snprintf(part, sizeof part, "%s.part", path);
    FILE *file = fopen(part, "we");
    bool whole = file != NULL && fputs(text, file) >= 0;
    if (file != NULL && fclose(file) != 0) whole = false;
    if (whole && rename(part, path) == 0) return true;
    sentence_set(why, "%s cannot be written: %s", path, strerror(errno));
    unlink(part);
    return false;
}

/* Returns a shard's share of four fifths of the memory, in MiB. */
static uint64_t memory_mib(int shards)
{
    struct sysinfo info;
    if (sysinfo(&info) != 0) return 1024;
    const uint64_t mib = info.totalram * info.mem_unit >> 20;
    const uint64_t share = mib / 5 * 4 / (uint64_t)shards;
    return share > 0 ? share : 1;
}

/* Appends a setting to the text. */
static void add_setting(char *text, size_t text_bytes, const char *format, const char *value)
{
    const size_t used = strlen(text);
    snprintf(text + used, text_bytes - used, format, value);
}

static long thread_count(const struct local *local, int shards)
{
    if (local->threads > 0) return (long)local->threads;
    const long cores = sysconf(_SC_NPROCESSORS_ONLN) / shards;
    return cores < 1 ? 1 : cores > 8 ? 8 : cores;
}

/* Writes FOLDER/NAME.conf; for a shard, the coordinator's endpoint must be known. */
static bool write_config(const struct local *local, const struct local_daemon *daemon,
                         struct sentence *why)
{
    const char *name = daemon->name;
    const int standby_of = daemon->standby_of;
    char path[PATH_MAX + 32], text[2 * PATH_MAX + 1024], home[320] = "";
    const int shards = local->daemon_count - 1;
    snprintf(path, sizeof path, "%s/%s.conf", local->folder, name);
    if (local->backend != NULL)
        snprintf(home, sizeof home, "backend = %s\n%s%s%s", local->backend,
                 local->device != NULL ? "device = " : "",
                 local->device != NULL ? local->device : "", local->device != NULL ? "\n" : "");
    if (local->endpoint[0] == 0)
        snprintf(text, sizeof text,
                 "# Made by cairn local. Paths are of this folder.\n[cluster]\nname = local\n"
                 "shards = %d\n[store]\npath = coordinator\n[snapshots]\npath = snapshots\n"
                 "[network]\nlisten = %s\n",
                 shards, local->socket);
    else
        snprintf(text, sizeof text,
                 "# Made by cairn local.\n[shard]\nname = %s\ncoordinator = %s\n[memory]\n"
                 "limit = %" PRIu64 "MiB\n[compute]\nthreads = %ld\n%s[import]\nfolders = %s\n",
                 name, local->endpoint, memory_mib(shards), thread_count(local, shards), home,
                 local->import);
    if (local->is_debug) add_setting(text, sizeof text, "[log]\nlevel = %s\n", "debug");
    if (standby_of != 0) {
        snprintf(home, sizeof home, "shard-%d", standby_of);
        add_setting(text, sizeof text, "[shard]\nstandby_of = %s\n", home);
        add_setting(text, sizeof text, "domain = of-%s\n", name);
    }
    if (local->endpoint[0] != 0 && local->has_logs)
        add_setting(text, sizeof text, "[log]\npath = %s/logs\n", local->folder);
    // A bench with --path measures that fabric, so the shards must use this fabric, too.
    if (local->endpoint[0] != 0 && local->ctl->path != NULL)
        add_setting(text, sizeof text, "[fabric]\nkind = %s\n", local->ctl->path);
    return write_file(path, text, why);
}

/* Reads the first line of FOLDER/NAME.ready. False: the file does not exist yet. */
static bool read_ready(const struct local *local, const char *name, char *line_out,
                       size_t line_bytes)
{
    char path[PATH_MAX + 32];
    snprintf(path, sizeof path, "%s/%s.ready", local->folder, name);
    FILE *file = fopen(path, "re");
    if (file == NULL) return false;
    const bool is_there = fgets(line_out, (int)line_bytes, file) != NULL;
    fclose(file);
    if (is_there) line_out[strcspn(line_out, "\n")] = 0;
    return is_there;
}

/* ==== local process ==== */

/* cairn local: its child processes and signals. */

#define STOP_MS         10000
#define PROCESS_TURN_MS 20
#define LOG_LINES       12
#define LOG_TAIL_BYTES  4096

int local_signal(const struct local *local, int timeout_ms, bool *is_key_out)
{
    siginfo_t info = { 0 };
    const struct timespec timeout = { timeout_ms / 1000, timeout_ms % 1000 * 1000000L };
    const int number = timeout_ms < 0 ? sigwaitinfo(&local->signals, &info)
                                      : sigtimedwait(&local->signals, &info, &timeout);
    if (is_key_out != NULL) *is_key_out = info.si_code == SI_KERNEL;
    return number > 0 ? number : 0;
}

/* ---- starting ---- */

/* Makes the child die with this process: if this process ends without signaling the child, the kernel sends
 * `signal_number` to the child. */
static void prepare_child(const struct local *local, pid_t parent, int signal_number)
{
    prctl(PR_SET_PDEATHSIG, signal_number);
    if (getppid() != parent) _exit(126); // the parent died before prctl
    sigprocmask(SIG_SETMASK, &local->old_signals, NULL);
}

/* In the child: executes the command, or prints the error. */
static void become(char *const *argv)
{
    execvp(argv[0], argv);
    const int error = errno;
    dprintf(STDERR_FILENO, "cairn local: %s cannot be started: %s\n", argv[0], strerror(error));
    _exit(error == ENOENT ? 127 : 126);
}

static int open_log(const struct local *local, const char *name)
{
    char path[PATH_MAX + 32];
    snprintf(path, sizeof path, "%s/%s.log", local->folder, name);
    return open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
}

static void become_daemon(const struct local *local, const char *name, const char *program,
                          bool is_kept, int log_fd)
{
    char config[32], ready[32];
    snprintf(config, sizeof config, "%s.conf", name);
    snprintf(ready, sizeof ready, "%s.ready", name);
    char *all[] = { wire_text(program), "--keep", "--config", config, "--ready-file", ready, NULL };
    char **argv = is_kept ? all : all + 1;
    argv[0] = all[0];
    const int null_fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
    if (chdir(local->folder) != 0 || dup2(null_fd, STDIN_FILENO) < 0 ||
        dup2(log_fd, STDOUT_FILENO) < 0 || dup2(log_fd, STDERR_FILENO) < 0)
        _exit(126);
    setpgid(0, 0);             // Ctrl-C must reach only the command
    unsetenv("NOTIFY_SOCKET"); // the socket belongs to this process, not to the child
    become(argv);
}

/* Starts a daemon. Returns false after printing the error if the daemon cannot be started. */
static bool start_daemon(struct local *local, struct local_daemon *daemon, int program)
{
    char ready[PATH_MAX + 32];
    snprintf(ready, sizeof ready, "%s/%s.ready", local->folder, daemon->name);
    unlink(ready); // a kept folder may have an old ready file
    const int log_fd = open_log(local, daemon->name);
    const pid_t parent = getpid();
    const pid_t pid = log_fd < 0 ? -1 : fork();
    if (pid == 0) {
        prepare_child(local, parent, SIGTERM);
        become_daemon(local, daemon->name, local->programs[program],
                      local->is_kept && program == LOCAL_SHARD, log_fd);
    }
    if (pid < 0)
        fprintf(stderr, "cairn local: %s cannot be started: %s\n", daemon->name, strerror(errno));
    if (log_fd >= 0) close(log_fd);
    if (pid > 0) setpgid(pid, pid); // here, too, because its group is waited for from now on
    if (pid > 0) daemon->pid = pid;
    return pid > 0;
}

/* ---- ending ---- */

static void print_log_end(const struct local *local, const char *name)
{
    char path[PATH_MAX + 32], text[LOG_TAIL_BYTES + 1];
    snprintf(path, sizeof path, "%s/%s.log", local->folder, name);
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return;
    const off_t size = lseek(fd, 0, SEEK_END);
    const off_t from = size > LOG_TAIL_BYTES ? size - LOG_TAIL_BYTES : 0;
    const ssize_t got = pread(fd, text, LOG_TAIL_BYTES, from);
    close(fd);
    if (got <= 0) return;
    text[got] = 0;
    const char *begin = text + got;
    for (int lines = 0; begin > text && (begin[-1] != '\n' || lines++ < LOG_LINES);) begin--;
    fprintf(stderr, "  the end of %s:\n", path);
    for (const char *line = begin; *line != 0;) {
        const size_t length = strcspn(line, "\n");
        fprintf(stderr, "    %.*s\n", (int)length, line);
        line += length + (line[length] == '\n');
    }
}

static void say_end(const struct local *local, const char *name, int status)
{
    if (WIFSIGNALED(status))
        fprintf(stderr, "cairn local: %s was killed by signal %d (%s)\n", name, WTERMSIG(status),
                strsignal(WTERMSIG(status)));
    else
        fprintf(stderr, "cairn local: %s ended with exit status %d\n", name, WEXITSTATUS(status));
    print_log_end(local, name);
}

/* Reaps what has ended of a daemon's group: the daemon, or its keeper and the shard itself. Returns whether
 * the first process of the group has, with its status. */
static bool reap_daemon(struct local_daemon *daemon, int *status_out)
{
    bool has_ended = false;
    pid_t pid = 0;
    int status;
    while (daemon->pid != 0 && (pid = waitpid(-daemon->pid, &status, WNOHANG)) > 0) {
        if (pid != daemon->pid) continue;
        has_ended = true;
        *status_out = status;
    }
    if (pid < 0) daemon->pid = 0; // none of the group is left
    return has_ended;
}

int local_daemons_reap(struct local *local)
{
    int ended = 0;
    for (int i = 0; i < local->daemon_count; i++) {
        int status = 0;
        if (!reap_daemon(&local->daemons[i], &status)) continue;
        ended++;
        say_end(local, local->daemons[i].name, status);
    }
    return ended;
}

/* A keeper passes the signal on, except SIGKILL. If the keeper was killed, its shard lives on, and gets the
 * signal itself: as long as a process is in the group, nobody else has the group's number. */
static int signal_daemons(const struct local *local, int number)
{
    int count = 0;
    for (int i = 0; i < local->daemon_count; i++) {
        const pid_t pid = local->daemons[i].pid;
        if (pid == 0) continue;
        if (number == SIGKILL || kill(pid, number) != 0) kill(-pid, number);
        count++;
    }
    return count;
}

pid_t local_shard_process(const struct local *local, int shard)
{
    char path[64];
    int process = 0;
    const int keeper = (int)local->daemons[shard].pid;
    if (!local->is_kept) return keeper;
    snprintf(path, sizeof path, "/proc/%d/task/%d/children", keeper, keeper);
    FILE *file = fopen(path, "re");
    if (file == NULL || fscanf(file, "%d", &process) != 1) process = 0;
    if (file != NULL) fclose(file);
    return process;
}

void local_shard_kill(struct local *local, int shard)
{
    struct local_daemon *daemon = &local->daemons[shard];
    if (daemon->pid == 0) return;
    kill(-daemon->pid, SIGKILL);
    while (waitpid(-daemon->pid, NULL, 0) > 0 || errno == EINTR) {}
    daemon->pid = 0;
}

/* Returns true if no daemon is left. A daemon that ends normally after SIGTERM is not reported. */
static bool reap_stopped(struct local *local)
{
    bool none = true;
    for (int i = 0; i < local->daemon_count; i++) {
        int status = 0;
        if (reap_daemon(&local->daemons[i], &status) && status != 0)
            say_end(local, local->daemons[i].name, status);
        none = none && local->daemons[i].pid == 0;
    }
    return none;
}

void local_daemons_stop(struct local *local)
{
    if (signal_daemons(local, SIGTERM) == 0) return;
    for (int waited_ms = 0; !reap_stopped(local); waited_ms += PROCESS_TURN_MS) {
        const int number = local_signal(local, PROCESS_TURN_MS, NULL);
        const bool is_asked = number != 0 && number != SIGCHLD;
        if (is_asked || waited_ms >= STOP_MS) signal_daemons(local, SIGKILL);
    }
}

/* ---- the command ---- */

/* True if this child has ended, and nobody else waits for it: the command left it behind, and this process
 * is who inherits it (PR_SET_CHILD_SUBREAPER). */
static bool is_orphan(const struct local *local, pid_t child, pid_t command)
{
    const pid_t group = getpgid(child);
    for (int i = 0; i < local->daemon_count; i++)
        if (local->daemons[i].pid == group) return false;
    return child != 0 && child != command;
}

static void reap_orphans(const struct local *local, pid_t command)
{
    for (;;) {
        siginfo_t info = { 0 };
        if (waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT) != 0 ||
            !is_orphan(local, info.si_pid, command))
            return;
        waitpid(info.si_pid, NULL, 0);
    }
}

static void watch_child(struct local *local, pid_t pid)
{
    bool is_key;
    const int number = local_signal(local, -1, &is_key);
    if (number == SIGCHLD) {
        local_daemons_reap(local); // the command learns of an ended daemon from its own calls
        reap_orphans(local, pid);
    } else if (number != 0 && !is_key)
        kill(pid, number);
}

pid_t local_fork(struct local *local)
{
    const pid_t parent = getpid();
    fflush(NULL); // else the child would print buffered output again
    const pid_t pid = fork();
    if (pid == 0) prepare_child(local, parent, SIGTERM);
    if (pid < 0) (void)ctl_fail(CAIRN_ERR_NO_MEMORY, "no process: %s", strerror(errno));
    return pid;
}

/* Runs a command to its end, and passes signals on to the command. Returns the command's exit
 * status, or 128 + the number of the signal that ended the command. */
static int run_and_wait(struct local *local, char **argv)
{
    const pid_t pid = local_fork(local);
    if (pid < 0) return 1;
    if (pid == 0) become(argv);
    int status;
    while (waitpid(pid, &status, WNOHANG) != pid) watch_child(local, pid);
    return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

/* ==== local cluster ==== */

static const int taken_signals[] = { SIGCHLD, SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2 };

static void block_signals(struct local *local)
{
    // for a second cluster, old_signals already has the original mask
    if (local->is_blocked) return;
    local->is_blocked = true;
    sigemptyset(&local->signals);
    for (size_t i = 0; i < sizeof taken_signals / sizeof *taken_signals; i++)
        sigaddset(&local->signals, taken_signals[i]);
    sigset_t blocked = local->signals;
    sigaddset(&blocked, SIGPIPE); // a closed stderr must not prevent the cleanup
    sigprocmask(SIG_BLOCK, &blocked, &local->old_signals);
}

/* ---- up ---- */

/* This function and those below return -1 to continue, else the exit status. */
static int prepare_cluster(struct local *local)
{
    const char *command = local->ctl->argc > 0 ? local->ctl->argv[0] : NULL;
    struct sentence why = { "" };
    if (command != NULL && !has_command(command)) {
        ctl_fail(CAIRN_ERR_NOT_FOUND, "there is no program %s to run", command);
        return 127; // the status that a shell would report
    }
    if (!local_find_program("cairn-coordinator", local->programs[LOCAL_COORDINATOR], &why) ||
        !local_find_program("cairn-shard", local->programs[LOCAL_SHARD], &why))
        return ctl_fail(CAIRN_ERR_NOT_FOUND, "%s", why.text);
    if (!find_import(local, &why) || !make_folder(local, &why))
        return ctl_fail(CAIRN_ERR_IO, "%s", why.text);
    return -1;
}

/* Waits until the daemon's ready file exists. */
static int await_ready(struct local *local, const char *name, char *line_out, size_t line_bytes)
{
    const uint64_t deadline_ms = monotonic_ms() + START_MS;
    while (!read_ready(local, name, line_out, line_bytes)) {
        const int number = local_signal(local, LOCAL_TURN_MS, NULL);
        if (number != 0 && number != SIGCHLD) return 128 + number;
        if (local_daemons_reap(local) > 0) return 1;
        if (monotonic_ms() >= deadline_ms)
            return ctl_fail(CAIRN_ERR_TIMEOUT, "%s was not ready within %d s; its log is %s/%s.log",
                            name, START_MS / 1000, local->folder, name);
    }
    return -1;
}

static int start_one(struct local *local, int index)
{
    struct local_daemon *daemon = &local->daemons[index];
    struct sentence why;
    char logs[PATH_MAX + 32];
    snprintf(logs, sizeof logs, "%s/logs", local->folder);
    if (local->has_logs && mkdir(logs, 0700) != 0 && errno != EEXIST)
        return ctl_fail(CAIRN_ERR_IO, "%s: %s", logs, strerror(errno));
    if (!write_config(local, daemon, &why)) return ctl_fail(CAIRN_ERR_IO, "%s", why.text);
    return start_daemon(local, daemon, index == 0 ? LOCAL_COORDINATOR : LOCAL_SHARD) ? -1 : 1;
}

static int start_cluster(struct local *local)
{
    char line[sizeof local->endpoint];
    snprintf(local->daemons[0].name, sizeof local->daemons[0].name, "coordinator");
    for (int i = 1; i < local->daemon_count; i++)
        snprintf(local->daemons[i].name, sizeof local->daemons[i].name, "shard-%d", i);
    int done = start_one(local, 0);
    if (done < 0) done = await_ready(local, "coordinator", line, sizeof line);
    if (done >= 0) return done;
    memcpy(local->endpoint, line, sizeof line);
    for (int i = 1; i < local->daemon_count && done < 0; i++) done = start_one(local, i);
    for (int i = 1; i < local->daemon_count && done < 0; i++)
        done = await_ready(local, local->daemons[i].name, line, sizeof line);
    return done;
}

int local_shard_add(struct local *local, int standby_of)
{
    char line[sizeof local->endpoint];
    if (local->daemon_count > CTL_SHARDS_MAX)
        return ctl_fail(CAIRN_ERR_INVALID, "%d shards are the most", CTL_SHARDS_MAX);
    const int index = local->daemon_count++;
    struct local_daemon *daemon = &local->daemons[index];
    *daemon = (struct local_daemon) { .pid = 0 };
    snprintf(daemon->name, sizeof daemon->name, "shard-%d", index);
    const int done = local_shard_start(local, index, standby_of);
    return done < 0 ? await_ready(local, daemon->name, line, sizeof line) : done;
}

int local_shard_start(struct local *local, int shard, int standby_of)
{
    local->daemons[shard].standby_of = standby_of;
    return start_one(local, shard);
}

/* ---- meanwhile ---- */

/* Sets the environment of the command to run. */
static void say_where(const struct local *local)
{
    setenv("CAIRN_ENDPOINT", local->endpoint, 1);
    setenv("CAIRN_FABRIC", "auto", 1);
    setenv("CAIRN_FABRIC_DEVICE", "lo", 1); // the shards listen there
}

static int announce(struct local *local)
{
    struct sentence why;
    char line[sizeof local->endpoint + 1], library[PATH_MAX];
    const char *file = local->ctl->local.endpoint_file;
    if (find_library(library)) setenv("CAIRN_LIBRARY", library, 0); // for the Python package
    snprintf(line, sizeof line, "%s\n", local->endpoint);
    if (file == NULL) return -1;
    local->is_announced = write_file(file, line, &why);
    return local->is_announced ? -1 : ctl_fail(CAIRN_ERR_IO, "%s", why.text);
}

static void print_screen(const struct local *local)
{
    const struct ctl *ctl = local->ctl;
    const int shards = local->daemon_count - 1;
    if (ctl->quiet) return;
    fprintf(stderr, "cairn local: a coordinator and %d shard%s are up\n", shards,
            shards == 1 ? "" : "s");
    fprintf(stderr, "  endpoint   %s  (CAIRN_ENDPOINT of the command)\n", local->endpoint);
    fprintf(stderr, "  look       cairn --endpoint %s cluster status\n", local->endpoint);
    fprintf(stderr, "  folder     %s  (%s)\n", local->folder,
            local->is_temporary ? "removed in the end; --keep FOLDER keeps one" : "kept");
    fprintf(stderr, "  logs       coordinator.log, shard-1.log%s there; snapshots in snapshots/\n",
            shards > 1 ? " ..." : "");
    if (ctl->argc == 0) {
        fprintf(stderr, "  end        Ctrl-C\n");
        return;
    }
    fprintf(stderr, "  command   ");
    for (int i = 0; i < ctl->argc; i++) fprintf(stderr, " %s", ctl->argv[i]);
    fprintf(stderr, "\n");
}

/* Waits for the end of a cluster without a command: Ctrl-C ends the cluster and is not a failure. */
static int await_end(struct local *local)
{
    for (;;) {
        const int number = local_signal(local, -1, NULL);
        if (number != 0 && number != SIGCHLD) return 0;
        if (local_daemons_reap(local) > 0) return 1;
    }
}

static int run_command(struct local *local, void *context)
{
    const struct ctl *ctl = context;
    const int done = announce(local);
    if (done >= 0) return done;
    print_screen(local);
    return ctl->argc > 0 ? run_and_wait(local, ctl->argv) : await_end(local);
}

/* Runs the body against an existing cluster: nothing is started, stopped or created. */
static int run_there(struct local *local, int (*body)(struct local *local, void *context),
                     void *context)
{
    local->daemon_count = 0;
    snprintf(local->endpoint, sizeof local->endpoint, "%s", local->ctl->endpoint);
    setenv("CAIRN_ENDPOINT", local->endpoint, 1);
    return body(local, context);
}

int local_run(struct local *local, int (*body)(struct local *local, void *context), void *context)
{
    const struct ctl *ctl = local->ctl;
    if (ctl->shards > CTL_SHARDS_MAX)
        return ctl_fail(CAIRN_ERR_INVALID, "--shards %u: 1 to %d is allowed", ctl->shards,
                        CTL_SHARDS_MAX);
    block_signals(local);
    if (ctl->endpoint != NULL) return run_there(local, body, context);
    local->daemon_count = 1 + (ctl->shards > 0 ? (int)ctl->shards : 1);
    local->endpoint[0] = 0;
    int done = prepare_cluster(local);
    if (done < 0) done = start_cluster(local);
    if (done < 0) {
        say_where(local);
        done = body(local, context);
    }
    local_daemons_stop(local);
    if (local->is_announced) unlink(ctl->local.endpoint_file);
    remove_folder(local);
    return done;
}

static int run_local(struct ctl *ctl)
{
    static struct local local;
    local.ctl = ctl;
    // A shard whose keeper is killed becomes a child of this process, which ends it when it ends itself.
    local.is_kept = prctl(PR_SET_CHILD_SUBREAPER, 1) == 0;
    return local_run(&local, run_command, ctl);
}

const struct ctl_question ctl_local = { .run = run_local };
