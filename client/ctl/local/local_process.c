/* cairn local: its children and its signals. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "client/ctl/local/local.h"

#define STOP_MS        10000
#define TURN_MS        20
#define LOG_LINES      12
#define LOG_TAIL_BYTES 4096

int cairn_local_signal(const struct local *local, int timeout_ms, bool *is_key_out)
{
    siginfo_t info = { 0 };
    const struct timespec timeout = { timeout_ms / 1000, timeout_ms % 1000 * 1000000L };
    const int number = timeout_ms < 0 ? sigwaitinfo(&local->signals, &info)
                                      : sigtimedwait(&local->signals, &info, &timeout);
    if (is_key_out != NULL) *is_key_out = info.si_code == SI_KERNEL;
    return number > 0 ? number : 0;
}

/* ---- starting ---- */

/* The child dies with us: by `signal_number` where we end without a word. */
static void prepare_child(const struct local *local, pid_t parent, int signal_number)
{
    prctl(PR_SET_PDEATHSIG, signal_number);
    if (getppid() != parent) _exit(126); // it died before we asked
    sigprocmask(SIG_SETMASK, &local->old_signals, NULL);
}

/* In the child: exec, or a sentence. */
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
                          int log_fd)
{
    char config[32], ready[32];
    snprintf(config, sizeof config, "%s.conf", name);
    snprintf(ready, sizeof ready, "%s.ready", name);
    char *const argv[] = {
        (char *)(uintptr_t)program, "--config", config, "--ready-file", ready, NULL
    };
    const int null_fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
    if (chdir(local->folder) != 0 || dup2(null_fd, STDIN_FILENO) < 0 ||
        dup2(log_fd, STDOUT_FILENO) < 0 || dup2(log_fd, STDERR_FILENO) < 0)
        _exit(126);
    setpgid(0, 0);             // Ctrl-C is for the command
    unsetenv("NOTIFY_SOCKET"); // it is ours, if it is anyone's
    become(argv);
}

bool cairn_local_daemon_start(struct local *local, struct local_daemon *daemon, int program)
{
    char ready[PATH_MAX + 32];
    snprintf(ready, sizeof ready, "%s/%s.ready", local->folder, daemon->name);
    unlink(ready); // of a folder that was kept
    const int log_fd = open_log(local, daemon->name);
    const pid_t parent = getpid();
    const pid_t pid = log_fd < 0 ? -1 : fork();
    if (pid == 0) {
        prepare_child(local, parent, SIGTERM);
        become_daemon(local, daemon->name, local->programs[program], log_fd);
    }
    if (pid < 0)
        fprintf(stderr, "cairn local: %s cannot be started: %s\n", daemon->name, strerror(errno));
    if (log_fd >= 0) close(log_fd);
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

int cairn_local_daemons_reap(struct local *local)
{
    int ended = 0;
    for (int i = 0; i < local->daemon_count; i++) {
        struct local_daemon *daemon = &local->daemons[i];
        int status;
        if (daemon->pid == 0 || waitpid(daemon->pid, &status, WNOHANG) != daemon->pid) continue;
        daemon->pid = 0;
        ended++;
        say_end(local, daemon->name, status);
    }
    return ended;
}

static int signal_daemons(const struct local *local, int number)
{
    int count = 0;
    for (int i = 0; i < local->daemon_count; i++) {
        if (local->daemons[i].pid == 0) continue;
        kill(local->daemons[i].pid, number);
        count++;
    }
    return count;
}

/* True: no daemon is left. A daemon that ends after SIGTERM as it should is not reported. */
static bool reap_stopped(struct local *local)
{
    bool none = true;
    for (int i = 0; i < local->daemon_count; i++) {
        struct local_daemon *daemon = &local->daemons[i];
        int status;
        if (daemon->pid == 0) continue;
        if (waitpid(daemon->pid, &status, WNOHANG) == 0) {
            none = false;
            continue;
        }
        daemon->pid = 0;
        if (status != 0) say_end(local, daemon->name, status);
    }
    return none;
}

void cairn_local_daemons_stop(struct local *local)
{
    if (signal_daemons(local, SIGTERM) == 0) return;
    for (int waited_ms = 0; !reap_stopped(local); waited_ms += TURN_MS) {
        const int number = cairn_local_signal(local, TURN_MS, NULL);
        const bool is_asked = number != 0 && number != SIGCHLD;
        if (is_asked || waited_ms >= STOP_MS) signal_daemons(local, SIGKILL);
    }
}

/* ---- the command ---- */

static void watch(struct local *local, pid_t pid)
{
    bool is_key;
    const int number = cairn_local_signal(local, -1, &is_key);
    if (number == SIGCHLD)
        cairn_local_daemons_reap(local); // the command hears it from its own calls
    else if (number != 0 && !is_key)
        kill(pid, number);
}

pid_t cairn_local_fork(struct local *local)
{
    const pid_t parent = getpid();
    fflush(NULL); // or it would be written twice
    const pid_t pid = fork();
    if (pid == 0) prepare_child(local, parent, SIGTERM);
    if (pid < 0) (void)cairn_ctl_fail(CAIRN_ERR_NO_MEMORY, "no process: %s", strerror(errno));
    return pid;
}

int cairn_local_command_run(struct local *local, char **argv)
{
    const pid_t pid = cairn_local_fork(local);
    if (pid < 0) return 1;
    if (pid == 0) become(argv);
    int status;
    while (waitpid(pid, &status, WNOHANG) != pid) watch(local, pid);
    return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}
