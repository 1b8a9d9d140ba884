#include "server/base/keeper.h"

#include <assert.h>
#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <linux/kcmp.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "proto/base/machine.h"
#include "server/base/daemon.h"
#include "server/base/log.h"

enum { FIRST_HANDED = 3 }; /* SD_LISTEN_FDS_START: the first descriptor that a process is handed */

/* "LISTEN_FDNAMES=", the names with ':' between them, and the end. */
_Static_assert(sizeof "LISTEN_FDNAMES=" + CAIRN_KEEPER_NAMES_BYTES_MAX <= 128 * 1024,
               "MAX_ARG_STRLEN of Linux");

static bool is_name(const char *text)
{
    const size_t length = strlen(text);
    if (length == 0 || length > CAIRN_KEEPER_NAME_MAX) return false;
    for (const char *c = text; *c != '\0'; c++)
        if (!isascii((unsigned char)*c) || (!isalnum((unsigned char)*c) && *c != '.' && *c != '-'))
            return false;
    return true;
}

/* ==== the daemon's side ==== */

#define SEND_MS 2000 /* the longest wait for a keeper that does not read */

/* The names of what the keeper has from this process, or from earlier ones of it. */
static struct {
    pthread_mutex_t lock;
    size_t count;
    size_t bytes; /* of the names, with one byte more for each */
    char names[CAIRN_KEEPER_FDS_MAX][CAIRN_KEEPER_NAME_MAX + 1]; /* [count], in no order */
    bool is_slow; /* the keeper did not read in time: until it does, nothing waits for it */
    bool is_gone; /* and the log says so */
} kept = { .lock = PTHREAD_MUTEX_INITIALIZER };

bool keeper_is_there(void)
{
    if (getenv("NOTIFY_SOCKET") == NULL) return false;
    if (notify_number("FDSTORE") > 0) return true;
    // Every systemd that would set FDSTORE for a unit with a store sets MEMORY_PRESSURE_WATCH, too.
    return getenv("INVOCATION_ID") != NULL && getenv("MEMORY_PRESSURE_WATCH") == NULL;
}

/* True if there is room for one more of that name. */
static bool has_room(size_t count, size_t bytes, size_t count_max, const char *name)
{
    return count < count_max && strlen(name) + 1 <= CAIRN_KEEPER_NAMES_BYTES_MAX - bytes;
}

static size_t fds_max(void)
{
    const uint64_t most = notify_number("FDSTORE");
    return most > 0 && most < CAIRN_KEEPER_FDS_MAX ? (size_t)most : CAIRN_KEEPER_FDS_MAX;
}

static void note_kept(const char *name)
{
    const size_t length = strlen(name);
    memcpy(kept.names[kept.count++], name, length + 1);
    kept.bytes += length + 1;
}

static void note_forgotten(const char *name)
{
    for (size_t i = 0; i < kept.count;) {
        if (strcmp(kept.names[i], name) != 0) {
            i++;
            continue;
        }
        memcpy(kept.names[i], kept.names[--kept.count], sizeof kept.names[i]);
        kept.bytes -= strlen(name) + 1;
    }
}

/* Takes the next name of a list that has ':' between names. Returns false, and leaves an empty name, if it
 * is none. */
static bool next_name(const char **list, char name_out[CAIRN_KEEPER_NAME_MAX + 1])
{
    const size_t length = strcspn(*list, ":");
    const bool fits = length <= CAIRN_KEEPER_NAME_MAX;
    memcpy(name_out, *list, fits ? length : 0);
    name_out[fits ? length : 0] = '\0';
    *list += length + ((*list)[length] == ':');
    return is_name(name_out);
}

static size_t handed_count(struct sentence *why)
{
    const uint64_t count = notify_number("LISTEN_FDS");
    if (count == 0 || notify_number("LISTEN_PID") != (uint64_t)getpid()) return 0;
    if (count <= CAIRN_KEEPER_FDS_MAX) return (size_t)count;
    sentence_set(why,
                 "LISTEN_FDS=%" PRIu64 ": at most %d descriptors are taken, the others are left",
                 count, CAIRN_KEEPER_FDS_MAX);
    return CAIRN_KEEPER_FDS_MAX;
}

size_t keeper_take(struct kept_fd **list_out, struct sentence *why)
{
    const char *names = getenv("LISTEN_FDNAMES");
    size_t taken = 0;
    sentence_set(why, "%s", "");
    *list_out = NULL;
    const size_t count = handed_count(why);
    struct kept_fd *list = count > 0 ? malloc(count * sizeof *list) : NULL;
    for (size_t i = 0; i < count; i++) {
        char name[CAIRN_KEEPER_NAME_MAX + 1] = "";
        const int fd = FIRST_HANDED + (int)i;
        const bool is_named = names != NULL && next_name(&names, name);
        if (is_named && list != NULL && fcntl(fd, F_SETFD, FD_CLOEXEC) == 0) {
            list[taken].fd = fd;
            memcpy(list[taken++].name, name, sizeof name);
            note_kept(name);
            continue;
        }
        sentence_set(why, "descriptor %d, \"%s\", was not taken: %s", fd, name,
                     !is_named      ? "it has no valid name"
                     : list == NULL ? "no memory"
                                    : strerror(errno));
        close(fd);
    }
    unsetenv("LISTEN_FDS");
    unsetenv("LISTEN_FDNAMES");
    unsetenv("LISTEN_PID");
    unsetenv("LISTEN_PIDFDID"); // from systemd 258 on
    if (taken > 0) *list_out = list;
    if (taken == 0) free(list);
    return taken;
}

/* With the lock. */
static cairn_status tell_keeper(const char *state, int fd, uint64_t timeout_ms,
                                struct sentence *why)
{
    const int wait_ms = kept.is_slow ? 0 : (int)(timeout_ms < SEND_MS ? timeout_ms : SEND_MS);
    const int error = notify_send(state, fd, wait_ms);
    kept.is_slow = error == EAGAIN;
    if (error == 0) return CAIRN_OK;
    if ((error == ECONNREFUSED || error == ENOENT) && !kept.is_gone) {
        kept.is_gone = true;
        log_error("nothing keeps the state of this process any more, because its keeper is gone: "
                  "what ends it now loses that state; take snapshots, and start the process "
                  "again with a keeper when that suits");
    }
    return fail_with(why, error == EAGAIN ? CAIRN_ERR_TIMEOUT : CAIRN_ERR_IO,
                     "the keeper of this process took no message: %s",
                     error == EAGAIN ? "it does not read" : strerror(error));
}

/* Sends it, with the name, and notes what the keeper has then. */
static cairn_status tell_name(const char *verb, const char *name, int fd, struct sentence *why)
{
    char state[64 + CAIRN_KEEPER_NAME_MAX];
    if (!keeper_is_there())
        return fail_with(why, CAIRN_ERR_UNSUPPORTED,
                         "nothing keeps descriptors: this process has neither a unit with "
                         "FileDescriptorStoreMax= nor `--keep`");
    if (!is_name(name))
        return fail_with(why, CAIRN_ERR_INVALID,
                         "a descriptor's name has 1 to %d letters, digits, '.' and '-'; \"%s\" is "
                         "none",
                         CAIRN_KEEPER_NAME_MAX, sentence_brief(name, 64).text);
    snprintf(state, sizeof state, "%s\nFDNAME=%s", verb, name);
    HOLD_LOCK(&kept.lock);
    if (fd >= 0 && !has_room(kept.count, kept.bytes, fds_max(), name))
        return fail_with(why, CAIRN_ERR_NO_SPACE,
                         "the keeper is full: it has %zu descriptors of at most %zu, with %zu "
                         "bytes of names of at most %d",
                         kept.count, fds_max(), kept.bytes, CAIRN_KEEPER_NAMES_BYTES_MAX);
    const cairn_status status = tell_keeper(state, fd, SEND_MS, why);
    if (status != CAIRN_OK) return status == CAIRN_ERR_TIMEOUT ? CAIRN_ERR_IO : status;
    if (fd >= 0)
        note_kept(name);
    else
        note_forgotten(name);
    return CAIRN_OK;
}

cairn_status keeper_store(const char *name, int fd, struct sentence *why)
{
    if (fcntl(fd, F_GETFD) < 0)
        return fail_with(why, CAIRN_ERR_INVALID, "descriptor %d: %s", fd, strerror(errno));
    // FDPOLL=0: whatever happens to the descriptor, it stays until it is forgotten.
    return tell_name("FDSTORE=1\nFDPOLL=0", name, fd, why);
}

cairn_status keeper_forget(const char *name, struct sentence *why)
{
    return tell_name("FDSTOREREMOVE=1", name, -1, why);
}

/* Waits until the other end of the pipe is closed. */
static bool await_close(int fd, uint64_t timeout_ms)
{
    const uint64_t deadline_ms = monotonic_ms() + timeout_ms;
    struct pollfd closed = { .fd = fd };
    for (;;) {
        const uint64_t now_ms = monotonic_ms();
        const uint64_t left_ms = now_ms < deadline_ms ? deadline_ms - now_ms : 0;
        const int ready = poll(&closed, 1, left_ms < INT32_MAX ? (int)left_ms : INT32_MAX);
        if (ready > 0 || (ready == 0 && left_ms == 0)) return ready > 0;
    }
}

cairn_status keeper_sync(uint64_t timeout_ms, struct sentence *why)
{
    int ends[2];
    if (!keeper_is_there())
        return fail_with(why, CAIRN_ERR_UNSUPPORTED, "nothing keeps descriptors");
    if (pipe2(ends, O_CLOEXEC) != 0)
        return fail_with(why, CAIRN_ERR_NO_MEMORY, "no pipe to the keeper: %s", strerror(errno));
    pthread_mutex_lock(&kept.lock);
    cairn_status status = tell_keeper("BARRIER=1", ends[1], timeout_ms, why);
    pthread_mutex_unlock(&kept.lock);
    close(ends[1]);
    if (status == CAIRN_OK && !await_close(ends[0], timeout_ms))
        status = fail_with(why, CAIRN_ERR_TIMEOUT,
                           "the keeper has not handled all messages within %" PRIu64 " ms",
                           timeout_ms);
    close(ends[0]);
    // A keeper that dies closes what it has not read, too.
    if (status != CAIRN_OK) return status;
    HOLD_LOCK(&kept.lock);
    return tell_keeper("", -1, 0, why);
}

/* ==== the keeper's process ==== */

enum {
    MESSAGE_BYTES = 4096,
    MESSAGE_FDS = 253,    /* SCM_MAX_FD of Linux */
    TURN_MESSAGES = 256,  /* of a turn, behind which signals are looked at */
    LAST_MESSAGES = 65536 /* of a process that has ended: more than a queue of the kernel has */
};

/* The pause before the next start doubles with each death, until a process lives for CALM_MS, or for
 * KILLED_MS if it was killed from outside. Other deaths are bounded as by the unit's StartLimitIntervalSec
 * and StartLimitBurst. */
#define PAUSE_MS      1
#define PAUSE_MAX_MS  5000
#define CALM_MS       60000
#define KILLED_MS     1000
#define DEATHS_MAX    20
#define DEATHS_MS     300000
#define REFUSE_DEATHS 3
#define REFUSE_MS     60000

/* The last deaths, and how many there were. */
struct deaths {
    uint64_t at_ms[DEATHS_MAX]; /* a ring */
    size_t count;
};

/* One of the descriptors that are kept. */
struct held {
    int fd; /* owned */
    dev_t device;
    ino_t inode;
    char name[CAIRN_KEEPER_NAME_MAX + 1];
};

struct keeper {
    /* borrowed */
    const char *program;
    char **argv;
    /* owned */
    int signals, socket;
    struct held *held; /* [count_max], `count` of them in use */
    size_t count, count_max;
    size_t bytes;                             /* of the names, with one byte more for each */
    char address[sizeof(struct sockaddr_un)]; /* the child's NOTIFY_SOCKET */
    sigset_t mask_before;

    pid_t child;              /* 0: none */
    uint64_t began_ms;        /* when the child was started */
    uint64_t next_ms;         /* without a child: when the next one is started */
    uint64_t pause_ms;        /* before the start that follows the next death */
    struct deaths deaths;     /* all */
    struct deaths bad_deaths; /* of children that had descriptors, since one was set aside */
    struct log_limit strange, lost;
    bool was_handed; /* the child was, and not only what is set aside */
    bool is_refused; /* the next child sets aside what the children before may have died of */
    bool is_full;    /* and the log says so */
    bool is_stopping, is_upgrading;
};

/* ---- what is held ---- */

static void close_all(const int *fds, size_t count)
{
    for (size_t i = 0; i < count; i++) close(fds[i]);
}

/* True if these are duplicates. They have the same inode; a kernel that cannot tell more says so. */
static bool is_same_file(int a, int b)
{
    const pid_t pid = getpid();
    return syscall(SYS_kcmp, pid, pid, KCMP_FILE, a, b) <= 0;
}

static bool is_aside(const char *name)
{
    return strncmp(name, CAIRN_KEPT_ASIDE, strlen(CAIRN_KEPT_ASIDE)) == 0;
}

/* Takes ownership of the descriptor. */
static void hold(struct keeper *keeper, const char *name, int fd)
{
    struct stat stat;
    bool is_new = fstat(fd, &stat) == 0;
    for (size_t i = 0; i < keeper->count && is_new; i++) {
        const struct held *held = &keeper->held[i];
        is_new = held->inode != stat.st_ino || held->device != stat.st_dev ||
                 !is_same_file(held->fd, fd);
    }
    const bool fits = has_room(keeper->count, keeper->bytes, keeper->count_max, name);
    if (is_new && !fits && !keeper->is_full)
        log_error("%s is not kept: %zu descriptors, with %zu bytes of names, are kept already, of "
                  "at most %zu, with %d bytes",
                  name, keeper->count, keeper->bytes, keeper->count_max,
                  CAIRN_KEEPER_NAMES_BYTES_MAX);
    if (is_new && !fits) keeper->is_full = true;
    if (!is_new || !fits) {
        close(fd);
        return;
    }
    struct held *held = &keeper->held[keeper->count++];
    *held = (struct held) { .fd = fd, .device = stat.st_dev, .inode = stat.st_ino };
    snprintf(held->name, sizeof held->name, "%s", name);
    keeper->bytes += strlen(name) + 1;
    if (!is_aside(name)) return;
    // The rest has yet to kill a child that is not handed this.
    keeper->bad_deaths.count = 0;
    keeper->was_handed = false;
}

static void let_go(struct keeper *keeper, const char *name)
{
    for (size_t i = 0; i < keeper->count;) {
        struct held *held = &keeper->held[i];
        if (strcmp(held->name, name) != 0) {
            i++;
            continue;
        }
        close(held->fd);
        *held = keeper->held[--keeper->count];
        keeper->bytes -= strlen(name) + 1;
        keeper->is_full = false;
    }
}

/* ---- messages ---- */

/* True if this assignment is for the supervisor of the keeper. A process that is exchanged does not stop the
 * service. */
static bool is_forwarded(const struct keeper *keeper, const char *line)
{
    return strcmp(line, "READY=1") == 0 || strcmp(line, "WATCHDOG=1") == 0 ||
           strncmp(line, "STATUS=", 7) == 0 ||
           (strcmp(line, "STOPPING=1") == 0 && !keeper->is_upgrading);
}

/* Does what the child says. Takes ownership of the descriptors. BARRIER=1 says that they are to be closed. */
static void obey_message(struct keeper *keeper, char *text, const int *fds, size_t fd_count)
{
    char forward[MESSAGE_BYTES + 1], *rest = NULL;
    const char *name = "";
    size_t forward_bytes = 0;
    bool stores = false, forgets = false;
    for (char *line = strtok_r(text, "\n", &rest); line != NULL;
         line = strtok_r(NULL, "\n", &rest)) {
        if (strncmp(line, "FDNAME=", 7) == 0) name = line + 7;
        stores |= strcmp(line, "FDSTORE=1") == 0;
        forgets |= strcmp(line, "FDSTOREREMOVE=1") == 0;
        if (is_forwarded(keeper, line))
            forward_bytes += (size_t)snprintf(forward + forward_bytes,
                                              sizeof forward - forward_bytes, "%s%s",
                                              forward_bytes > 0 ? "\n" : "", line);
    }
    if (forward_bytes > 0) (void)notify_send(forward, -1, 0);
    if ((stores || forgets) && !is_name(name)) {
        log_limited(&keeper->lost, CAIRN_LOG_WARN, "nothing is kept under the name \"%.64s\"",
                    name);
        stores = forgets = false;
    }
    if (forgets)
        let_go(keeper, name);
    else if (stores)
        for (size_t i = 0; i < fd_count; i++) hold(keeper, name, fds[i]);
    if (forgets || !stores) close_all(fds, fd_count);
}

/* Finds out what came with a message: its sender (0: unknown), and descriptors. Returns their number. */
static size_t read_control(struct msghdr *message, pid_t *sender_out, int fds_out[MESSAGE_FDS])
{
    size_t count = 0;
    *sender_out = 0;
    for (struct cmsghdr *part = CMSG_FIRSTHDR(message); part != NULL;
         part = CMSG_NXTHDR(message, part)) {
        if (part->cmsg_level != SOL_SOCKET) continue;
        struct ucred sender;
        const size_t bytes = part->cmsg_len - CMSG_LEN(0);
        if (part->cmsg_type == SCM_CREDENTIALS && bytes == sizeof sender) {
            memcpy(&sender, CMSG_DATA(part), bytes);
            *sender_out = sender.pid;
        }
        if (part->cmsg_type != SCM_RIGHTS) continue;
        assert(count == 0 && bytes <= MESSAGE_FDS * sizeof *fds_out);
        memcpy(fds_out, CMSG_DATA(part), bytes);
        count = bytes / sizeof *fds_out;
    }
    return count;
}

/* Returns false if there is no message. */
static bool receive(struct keeper *keeper)
{
    char text[MESSAGE_BYTES + 1];
    union {
        struct cmsghdr header;
        char room[CMSG_SPACE(sizeof(struct ucred)) + CMSG_SPACE(MESSAGE_FDS * sizeof(int))];
    } control;
    struct iovec into = { text, MESSAGE_BYTES };
    struct msghdr message = {
        .msg_iov = &into, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control
    };
    int fds[MESSAGE_FDS];
    pid_t sender;
    const ssize_t bytes = recvmsg(keeper->socket, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    if (bytes < 0) return errno == EINTR;
    const size_t fd_count = read_control(&message, &sender, fds);
    const bool is_whole = (message.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) == 0;
    text[bytes] = '\0';
    if (sender == keeper->child && sender != 0 && is_whole) {
        obey_message(keeper, text, fds, fd_count);
        return true;
    }
    close_all(fds, fd_count);
    if (sender != keeper->child)
        log_limited(&keeper->strange, CAIRN_LOG_WARN,
                    "a message of process %d was ignored: only process %d is kept", (int)sender,
                    (int)keeper->child);
    else
        log_limited(&keeper->lost, CAIRN_LOG_ERROR,
                    "a message was lost, and what it wanted to be kept: it was longer than %d "
                    "bytes, or no descriptor is left to this process",
                    MESSAGE_BYTES);
    return true;
}

static void receive_most(struct keeper *keeper, int most)
{
    while (most-- > 0 && receive(keeper)) {}
}

/* ---- the child ---- */

static void set_number(const char *variable, size_t number)
{
    char text[24];
    snprintf(text, sizeof text, "%zu", number);
    setenv(variable, text, 1);
}

/* In the child. Moves the descriptors to where a process expects them; all others are closed by exec. */
static bool place_descriptors(struct keeper *keeper)
{
    const int end = FIRST_HANDED + (int)keeper->count;
    for (size_t i = 0; i < keeper->count; i++) {
        struct held *held = &keeper->held[i];
        if (held->fd < end) held->fd = fcntl(held->fd, F_DUPFD_CLOEXEC, end);
        if (held->fd < 0) return false;
    }
    for (size_t i = 0; i < keeper->count; i++)
        if (dup2(keeper->held[i].fd, FIRST_HANDED + (int)i) < 0) return false;
    return true;
}

/* In the child. */
static void set_environment(const struct keeper *keeper)
{
    static char names[CAIRN_KEEPER_NAMES_BYTES_MAX + 1];
    size_t used = 0;
    setenv("NOTIFY_SOCKET", keeper->address, 1);
    set_number("FDSTORE", keeper->count_max);
    // The keeper passes on what it hears, so the child has to speak in time.
    if (getenv("WATCHDOG_PID") != NULL) set_number("WATCHDOG_PID", (size_t)getpid());
    unsetenv(CAIRN_KEPT_REFUSED);
    if (keeper->count == 0) return;
    for (size_t i = 0; i < keeper->count; i++)
        used += (size_t)snprintf(names + used, sizeof names - used, "%s%s", i > 0 ? ":" : "",
                                 keeper->held[i].name);
    setenv("LISTEN_FDNAMES", names, 1);
    set_number("LISTEN_FDS", keeper->count);
    set_number("LISTEN_PID", (size_t)getpid());
    if (keeper->is_refused) setenv(CAIRN_KEPT_REFUSED, "1", 1);
}

enum { CANNOT_START = 127 };

/* In the child. */
static void become_program(struct keeper *keeper)
{
    set_environment(keeper);
    sigprocmask(SIG_SETMASK, &keeper->mask_before, NULL);
    if (place_descriptors(keeper)) execvp(keeper->program, keeper->argv);
    log_error("cannot start %s: %s", keeper->program, strerror(errno));
    _exit(CANNOT_START);
}

/* Plans the next start, after a pause that doubles. */
static void plan_start(struct keeper *keeper)
{
    keeper->next_ms = monotonic_ms() + keeper->pause_ms;
    keeper->pause_ms = keeper->pause_ms * 2 < PAUSE_MAX_MS ? keeper->pause_ms * 2 : PAUSE_MAX_MS;
}

static void start_child(struct keeper *keeper)
{
    const pid_t pid = fork();
    if (pid == 0) become_program(keeper);
    if (pid < 0) {
        log_error("no process for %s: %s; tried again in %" PRIu64 " ms", keeper->program,
                  strerror(errno), keeper->pause_ms);
        plan_start(keeper);
        return;
    }
    keeper->child = pid;
    keeper->began_ms = monotonic_ms();
    keeper->was_handed = keeper->is_refused = false;
    for (size_t i = 0; i < keeper->count; i++)
        keeper->was_handed |= !is_aside(keeper->held[i].name);
}

/* Notes a death. Returns true if it is the last of so many within a time. */
static bool note_death(struct deaths *deaths, uint64_t now_ms, size_t most, uint64_t within_ms)
{
    assert(most <= DEATHS_MAX);
    deaths->at_ms[deaths->count++ % most] = now_ms;
    return deaths->count >= most && now_ms - deaths->at_ms[deaths->count % most] <= within_ms;
}

/* True if Restart=on-failure with the RestartPreventExitStatus= of the unit would start it again. */
static bool is_crash(int status)
{
    if (WIFSIGNALED(status)) {
        const int number = WTERMSIG(status);
        return number != SIGHUP && number != SIGINT && number != SIGTERM && number != SIGPIPE;
    }
    const int code = WEXITSTATUS(status);
    return code != 0 && code != 2 && code != 12 && code != 14;
}

/* True if the process may have died of what it did or was handed. SIGKILL comes from outside: from an
 * operator, or from the kernel for want of memory. */
static bool is_own_fault(int status)
{
    return !WIFSIGNALED(status) || WTERMSIG(status) != SIGKILL;
}

static int exit_code_of(int status)
{
    return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

/* Forgets how earlier processes died. */
static void forgive(struct keeper *keeper)
{
    keeper->deaths.count = keeper->bad_deaths.count = 0;
    keeper->pause_ms = PAUSE_MS;
    keeper->is_refused = false;
}

/* Decides after a crash. Returns false if the child has died too often. */
static bool judge_crash(struct keeper *keeper, const char *how, bool was_started)
{
    const uint64_t now_ms = monotonic_ms();
    if (now_ms - keeper->began_ms >= CALM_MS) keeper->pause_ms = PAUSE_MS;
    if (note_death(&keeper->deaths, now_ms, DEATHS_MAX, DEATHS_MS)) {
        log_error("%s %s, and is not started again: it died %d times within %d s; what was kept "
                  "of it, %zu descriptors, is gone",
                  keeper->program, how, DEATHS_MAX, DEATHS_MS / 1000, keeper->count);
        return false;
    }
    if (was_started && keeper->was_handed &&
        note_death(&keeper->bad_deaths, now_ms, REFUSE_DEATHS, REFUSE_MS))
        keeper->is_refused = true;
    log_warn("%s %s: started again in %" PRIu64 " ms with %zu descriptors that are kept%s",
             keeper->program, how, keeper->pause_ms, keeper->count,
             keeper->is_refused ? ", of which it sets aside what it may have died of" : "");
    plan_start(keeper);
    return true;
}

/* The child has ended. Returns the keeper's exit status, -1: the keeper goes on. */
static int judge_end(struct keeper *keeper, int status)
{
    char how[96];
    if (WIFSIGNALED(status))
        snprintf(how, sizeof how, "(process %d) was killed by signal %d (%s)", (int)keeper->child,
                 WTERMSIG(status), strsignal(WTERMSIG(status)));
    else
        snprintf(how, sizeof how, "(process %d) ended with status %d", (int)keeper->child,
                 WEXITSTATUS(status));
    keeper->child = 0;
    if (keeper->is_stopping) return exit_code_of(status);
    if (keeper->is_upgrading) {
        keeper->is_upgrading = false;
        forgive(keeper);
        keeper->next_ms = 0;
        log_info("%s %s, and is started anew, with %zu descriptors that are kept", keeper->program,
                 how, keeper->count);
        return -1;
    }
    const bool was_started = !WIFEXITED(status) || WEXITSTATUS(status) != CANNOT_START;
    if (is_crash(status) && !is_own_fault(status)) {
        if (monotonic_ms() - keeper->began_ms >= KILLED_MS) keeper->pause_ms = PAUSE_MS;
        log_warn("%s %s: started again in %" PRIu64 " ms with %zu descriptors that are kept",
                 keeper->program, how, keeper->pause_ms, keeper->count);
        plan_start(keeper);
        return -1;
    }
    if (is_crash(status) && judge_crash(keeper, how, was_started)) return -1;
    if (status != 0 && !is_crash(status)) log_warn("%s %s", keeper->program, how);
    return exit_code_of(status);
}

/* Reaps what has ended: also strangers, if the keeper is the first process of a container. Returns the
 * keeper's exit status, -1: it goes on. */
static int reap(struct keeper *keeper)
{
    for (;;) {
        siginfo_t info = { 0 };
        int status;
        if (waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT) != 0 || info.si_pid == 0)
            return -1;
        const bool is_child = info.si_pid == keeper->child;
        // Its last messages count. They have to be read while its number is its own.
        if (is_child) receive_most(keeper, LAST_MESSAGES);
        if (waitpid(info.si_pid, &status, 0) != info.si_pid || !is_child) continue;
        const int code = judge_end(keeper, status);
        if (code >= 0) return code;
    }
}

/* ---- signals ---- */

static const int passed_on[] = { SIGTERM, SIGINT, SIGHUP, SIGUSR1 };
static const int taken[] = { SIGCHLD, SIGUSR2 };

/* A signal of the terminal has reached the child, too, which is in the same group. */
static void pass_on(const struct keeper *keeper, const struct signalfd_siginfo *signal)
{
    if (keeper->child != 0 && signal->ssi_code != SI_KERNEL)
        kill(keeper->child, (int)signal->ssi_signo);
}

static void upgrade(struct keeper *keeper)
{
    if (keeper->is_stopping || keeper->is_upgrading) return;
    if (keeper->child == 0) { // it is between two starts
        forgive(keeper);
        keeper->next_ms = 0;
        return;
    }
    log_info("SIGUSR2: process %d is stopped, and %s started anew when it has ended",
             (int)keeper->child, keeper->program);
    keeper->is_upgrading = true;
    kill(keeper->child, SIGTERM);
}

/* Returns the keeper's exit status, -1: it goes on. */
static int take_signals(struct keeper *keeper)
{
    struct signalfd_siginfo signal;
    while (read(keeper->signals, &signal, sizeof signal) == (ssize_t)sizeof signal) {
        const int number = (int)signal.ssi_signo;
        const bool is_stop = number == SIGTERM || number == SIGINT;
        if (number == SIGUSR2) upgrade(keeper);
        if (number == SIGCHLD || number == SIGUSR2) continue;
        // The child was told to end when the upgrade began: a second signal would end it at once.
        if (!is_stop || !keeper->is_upgrading) pass_on(keeper, &signal);
        if (!is_stop) continue;
        keeper->is_stopping = true;
        keeper->is_upgrading = false;
        if (keeper->child == 0) return 0;
    }
    return -1;
}

/* ---- begin ---- */

static bool open_signals(struct keeper *keeper)
{
    sigset_t mask;
    sigemptyset(&mask);
    for (size_t i = 0; i < sizeof passed_on / sizeof *passed_on; i++)
        sigaddset(&mask, passed_on[i]);
    for (size_t i = 0; i < sizeof taken / sizeof *taken; i++) sigaddset(&mask, taken[i]);
    keeper->signals = signalfd(-1, &mask, SFD_CLOEXEC | SFD_NONBLOCK);
    sigaddset(&mask, SIGPIPE); // a log that nobody reads does not end the keeper
    signal(SIGCHLD, SIG_DFL);  // whoever ignores it has no children to wait for
    return keeper->signals >= 0 && sigprocmask(SIG_BLOCK, &mask, &keeper->mask_before) == 0;
}

/* Listens at an abstract name that the kernel chooses, so that a keeper that is killed leaves no file. */
static bool open_socket(struct keeper *keeper)
{
    struct sockaddr_un name = { .sun_family = AF_UNIX };
    socklen_t bytes = sizeof name;
    const int on = 1;
    keeper->socket = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (keeper->socket < 0 ||
        setsockopt(keeper->socket, SOL_SOCKET, SO_PASSCRED, &on, sizeof on) != 0 ||
        bind(keeper->socket, (const struct sockaddr *)&name, sizeof name.sun_family) != 0 ||
        getsockname(keeper->socket, (struct sockaddr *)&name, &bytes) != 0)
        return false;
    const size_t length = bytes - offsetof(struct sockaddr_un, sun_path);
    snprintf(keeper->address, sizeof keeper->address, "@%.*s", (int)length - 1, name.sun_path + 1);
    return true;
}

/* A child needs as many descriptors as it is handed, and while they are placed a second time as many. */
static bool open_held(struct keeper *keeper)
{
    enum { OTHER_FDS = 64 };
    struct rlimit limit = { 0 };
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return false;
    limit.rlim_cur = limit.rlim_max;
    (void)setrlimit(RLIMIT_NOFILE, &limit);
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur < 2 * OTHER_FDS) return false;
    const rlim_t half = (limit.rlim_cur - OTHER_FDS) / 2;
    keeper->count_max = half < CAIRN_KEEPER_FDS_MAX ? (size_t)half : CAIRN_KEEPER_FDS_MAX;
    keeper->held = calloc(keeper->count_max, sizeof *keeper->held);
    return keeper->held != NULL;
}

/* The child's --traceable counts for the keeper, too: it has the same memory files. */
static bool is_traceable(char *const *argv)
{
    while (*argv != NULL && strcmp(*argv, "--traceable") != 0) argv++;
    return *argv != NULL;
}

/* Takes what this process was handed itself, by a supervisor that keeps descriptors, too. */
static void adopt(struct keeper *keeper)
{
    struct kept_fd *list;
    struct sentence why;
    const size_t count = keeper_take(&list, &why);
    if (why.text[0] != '\0') log_warn("%s", why.text);
    for (size_t i = 0; i < count; i++) hold(keeper, list[i].name, list[i].fd);
    free(list);
}

/* Returns the exit status. */
static int run_keeper(struct keeper *keeper)
{
    for (;;) {
        const uint64_t now_ms = monotonic_ms();
        if (keeper->child == 0 && now_ms >= keeper->next_ms) start_child(keeper);
        struct pollfd ready[] = { { .fd = keeper->signals, .events = POLLIN },
                                  { .fd = keeper->socket, .events = POLLIN } };
        const bool is_waiting = keeper->child == 0 && keeper->next_ms > now_ms;
        const int wait_ms = is_waiting ? (int)(keeper->next_ms - now_ms) : -1;
        (void)poll(ready, 2, wait_ms);
        receive_most(keeper, TURN_MESSAGES);
        int code = take_signals(keeper);
        if (code < 0) code = reap(keeper);
        if (code >= 0) return code;
    }
}

int keeper_run(const char *program, char **argv)
{
    static struct keeper keeper;
    keeper = (struct keeper) { .program = program, .argv = argv, .pause_ms = PAUSE_MS };
    daemon_hold_standard_descriptors();
    log_init("keeper", CAIRN_LOG_INFO);
    if (!open_held(&keeper) || !open_socket(&keeper) || !open_signals(&keeper)) {
        log_error("cannot keep %s: %s; `ulimit -n` has to be 128 at least", program,
                  strerror(errno));
        return 1;
    }
    if (!is_traceable(argv)) daemon_hide();
    adopt(&keeper);
    return run_keeper(&keeper);
}
