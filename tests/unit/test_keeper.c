/* The keeper and the process that it keeps. The kept process is this program, too: it does what the test says
 * over a socket, so that nothing has to be waited for by time. The keeper's clock jumps over its pauses. */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "server/base/daemon.h"
#include "server/base/keeper.h"
#include "tests/support/cluster.h"
#include "tests/support/descriptors.h"
#include "tests/support/scratch.h"
#include "tests/support/suite.h"

enum {
    WAIT_MS = 20000,
    PAUSES_MAX = 64,
    NAMES_MAX = 64,
    FEW_FDS = 256,
    PATH_BYTES = 100,
    NOBODY = 65534
};

/* ==== the keeper's clock ==== */

/* Shared by the test and its keeper. */
struct world {
    atomic_long ahead_ms;             /* how far the keeper's clock is ahead */
    atomic_int pause_count;           /* how often it waited for a time */
    atomic_int pauses_ms[PAUSES_MAX]; /* [pause_count] */
    atomic_bool is_frozen;            /* pauses last until a signal comes */
};
static struct world *world;
static bool is_keeper;

int __real_poll(struct pollfd *fds, nfds_t count, int timeout_ms);
int __wrap_poll(struct pollfd *fds, nfds_t count, int timeout_ms);
int __real_clock_gettime(clockid_t clock, struct timespec *now);
int __wrap_clock_gettime(clockid_t clock, struct timespec *now);

int __wrap_poll(struct pollfd *fds, nfds_t count, int timeout_ms)
{
    if (!is_keeper || timeout_ms <= 0) return __real_poll(fds, count, timeout_ms);
    const int index = atomic_load(&world->pause_count);
    if (index < PAUSES_MAX) atomic_store(&world->pauses_ms[index], timeout_ms);
    atomic_store(&world->pause_count, index + 1);
    if (atomic_load(&world->is_frozen)) return __real_poll(fds, count, -1);
    atomic_fetch_add(&world->ahead_ms, timeout_ms);
    return __real_poll(fds, count, 0);
}

int __wrap_clock_gettime(clockid_t clock, struct timespec *now)
{
    const int failed = __real_clock_gettime(clock, now);
    if (!is_keeper || clock != CLOCK_MONOTONIC) return failed;
    const long ahead_ms = atomic_load(&world->ahead_ms);
    now->tv_sec += ahead_ms / 1000;
    now->tv_nsec += ahead_ms % 1000 * 1000000L;
    if (now->tv_nsec >= 1000000000L) {
        now->tv_sec++;
        now->tv_nsec -= 1000000000L;
    }
    return failed;
}

/* ==== the kept process ==== */

/* What it does: */
enum act {
    STORE,       /* a new memory file with its name as content */
    STORE_TWICE, /* a duplicate of the last one, under another name */
    FORGET,
    SYNC,  /* number: the timeout */
    SAY,   /* sends the text as it is, with the last file */
    AWAIT, /* a signal; the answer is its number */
    END,   /* number: the exit status */
    DIE,   /* number: the signal */
};
struct request {
    enum act act;
    int number;
    char name[PATH_BYTES];
};
struct answer {
    int status;
    char why[256];
};

/* What it says of itself when it begins. */
struct hello {
    pid_t pid, parent;
    bool is_there; /* keeper_is_there */
    bool is_refused;
    bool has_variables;
    unsigned fds; /* that were open, without those that it took */
    int taken;
    int contents_wrong, inherited; /* of those: without their name as content; not closed by exec */
    char address[PATH_BYTES];      /* NOTIFY_SOCKET */
    char names[NAMES_MAX][CAIRN_KEEPER_NAME_MAX + 1];
    char why[256];
};

static int last_file = -1;

static int make_file(const char *content)
{
    const int fd = memfd_create("kept", MFD_CLOEXEC);
    const size_t bytes = strlen(content) + 1;
    if (fd < 0 || write(fd, content, bytes) != (ssize_t)bytes) _exit(99);
    return fd;
}

/* Not by support/descriptors.h, which needs a test to be running. */
static unsigned count_open(void)
{
    unsigned count = 0;
    for (int fd = 0; fd < 2 * CAIRN_KEEPER_FDS_MAX; fd++) count += fcntl(fd, F_GETFD) >= 0;
    return count;
}

static void introduce(int to)
{
    static struct hello hello;
    struct sentence why;
    struct kept_fd *list;
    hello.pid = getpid();
    hello.parent = getppid();
    hello.is_refused = getenv(CAIRN_KEPT_REFUSED) != NULL;
    hello.is_there = keeper_is_there();
    const unsigned before = count_open();
    hello.taken = (int)keeper_take(&list, &why);
    hello.fds = before - (unsigned)hello.taken;
    hello.has_variables = getenv("LISTEN_FDS") != NULL || getenv("LISTEN_PID") != NULL ||
                          getenv("LISTEN_FDNAMES") != NULL;
    snprintf(hello.address, sizeof hello.address, "%s",
             getenv("NOTIFY_SOCKET") != NULL ? getenv("NOTIFY_SOCKET") : "");
    snprintf(hello.why, sizeof hello.why, "%.255s", why.text);
    for (int i = 0; i < hello.taken; i++) {
        char content[CAIRN_KEEPER_NAME_MAX + 1] = "";
        if (i < NAMES_MAX) memcpy(hello.names[i], list[i].name, sizeof hello.names[i]);
        hello.contents_wrong += pread(list[i].fd, content, sizeof content, 0) <= 0 ||
                                strcmp(content, list[i].name) != 0;
        hello.inherited += (fcntl(list[i].fd, F_GETFD) & FD_CLOEXEC) == 0;
    }
    free(list);
    if (send(to, &hello, sizeof hello, 0) != (ssize_t)sizeof hello) _exit(99);
}

static int act(const struct request *request, const sigset_t *signals, struct sentence *why)
{
    int number = request->number;
    switch (request->act) {
    case STORE:
        if (last_file >= 0) close(last_file);
        last_file = make_file(request->name);
        return (int)keeper_store(request->name, last_file, why);
    case STORE_TWICE: {
        const int fd = dup(last_file);
        const cairn_status status = keeper_store(request->name, fd, why);
        close(fd);
        return (int)status;
    }
    case FORGET: return (int)keeper_forget(request->name, why);
    case SYNC: return (int)keeper_sync((uint64_t)number, why);
    case SAY:
        if (last_file < 0) last_file = make_file(request->name);
        return notify_send(request->name, last_file, 1000);
    case AWAIT: return sigwait(signals, &number) == 0 ? number : -1;
    case END: _exit(number);
    case DIE:
        sigprocmask(SIG_UNBLOCK, signals, NULL);
        raise(number);
        _exit(98);
    }
    return -1;
}

static int run_kept(const char *path)
{
    struct sockaddr_un address = { .sun_family = AF_UNIX };
    struct request request;
    sigset_t signals;
    const int numbers[] = { SIGTERM, SIGINT, SIGHUP, SIGUSR1 };
    sigemptyset(&signals);
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) sigaddset(&signals, numbers[i]);
    sigprocmask(SIG_BLOCK, &signals, NULL);
    snprintf(address.sun_path, sizeof address.sun_path, "%s", path);
    struct sentence why = { "" };
    const int to = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    if (to < 0 || connect(to, (struct sockaddr *)&address, sizeof address) != 0) return 97;
    introduce(to);
    while (recv(to, &request, sizeof request, 0) == (ssize_t)sizeof request) {
        struct answer answer = { .status = act(&request, &signals, &why) };
        snprintf(answer.why, sizeof answer.why, "%.255s", why.text);
        if (send(to, &answer, sizeof answer, 0) != (ssize_t)sizeof answer) break;
    }
    return 0; // the test is over
}

/* ==== the test's side ==== */

static char folder[CAIRN_SCRATCH_BYTES], meet[PATH_BYTES], log_path[PATH_BYTES], self[512];
/* Sockets: where kept processes come, the keeper's own supervisor's, and the process that came last. */
static int listener, outer, peer = -1;
static pid_t keeper;
static struct hello hello;
static const char *program;
static rlim_t fds_limit; /* 0: as it is */
static bool is_nobody;
static bool is_hidden; /* the keeper is not started with --traceable */

static void set_up(void)
{
    struct sockaddr_un address = { .sun_family = AF_UNIX };
    cairn_scratch_make(folder);
    snprintf(meet, sizeof meet, "%s/meet", folder);
    snprintf(log_path, sizeof log_path, "%s/log", folder);
    ck_assert_int_gt(readlink("/proc/self/exe", self, sizeof self - 1), 0);
    program = self;
    world = mmap(NULL, sizeof *world, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    ck_assert_ptr_ne(world, MAP_FAILED);
    snprintf(address.sun_path, sizeof address.sun_path, "%s", meet);
    listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    ck_assert_int_eq(bind(listener, (struct sockaddr *)&address, sizeof address), 0);
    ck_assert_int_eq(listen(listener, 8), 0);
    snprintf(address.sun_path, sizeof address.sun_path, "%s/outer", folder);
    outer = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    ck_assert_int_eq(bind(outer, (struct sockaddr *)&address, sizeof address), 0);
    setenv("NOTIFY_SOCKET", address.sun_path, 1);
    unsetenv("INVOCATION_ID");
}

static void tear_down(void)
{
    if (peer >= 0) close(peer);
    if (keeper > 0) kill(keeper, SIGKILL);
    cairn_scratch_remove(folder);
}

static void begin(void)
{
    char *argv[] = { "kept", "--kept", meet, is_hidden ? NULL : "--traceable", NULL };
    keeper = fork();
    ck_assert_int_ge(keeper, 0);
    if (keeper > 0) return;
    const int log = open(log_path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    dup2(log, STDERR_FILENO);
    for (int fd = 3; fd < FEW_FDS; fd++) close(fd); // some are Check's, and outlive an exec
    is_keeper = true;
    const struct rlimit limit = { fds_limit, fds_limit };
    if (fds_limit > 0) setrlimit(RLIMIT_NOFILE, &limit);
    if (is_nobody && (setgid(NOBODY) != 0 || setuid(NOBODY) != 0)) _exit(96);
    prctl(PR_SET_DUMPABLE, 1); // which setuid has changed
    _exit(keeper_run(program, argv));
}

/* Waits for the next kept process, and for what it says first. */
static void meet_next(void)
{
    struct pollfd ready = { .fd = listener, .events = POLLIN };
    if (peer >= 0) close(peer);
    ck_assert_int_eq(poll(&ready, 1, WAIT_MS), 1);
    peer = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
    ck_assert_int_ge(peer, 0);
    ck_assert_int_eq(recv(peer, &hello, sizeof hello, 0), sizeof hello);
    ck_assert_int_eq(hello.contents_wrong, 0);
    ck_assert_int_eq(hello.inherited, 0);
    ck_assert(!hello.has_variables);
    ck_assert(hello.is_there);
    ck_assert_str_eq(hello.why, "");
    // stdin, stdout, stderr, its socket to this test
    ck_assert_uint_eq(hello.fds, 4);
}

static void start(void)
{
    begin();
    meet_next();
    ck_assert_int_eq(hello.parent, keeper);
    ck_assert_int_eq(hello.taken, 0);
}

static void request(enum act act_wanted, const char *name, int number)
{
    struct request request = { .act = act_wanted, .number = number };
    snprintf(request.name, sizeof request.name, "%s", name);
    ck_assert_int_eq(send(peer, &request, sizeof request, MSG_NOSIGNAL), sizeof request);
}

static struct answer answered(void)
{
    struct answer answer;
    struct pollfd ready = { .fd = peer, .events = POLLIN };
    ck_assert_int_eq(poll(&ready, 1, WAIT_MS), 1);
    ck_assert_int_eq(recv(peer, &answer, sizeof answer, 0), sizeof answer);
    return answer;
}

static int asked(enum act act_wanted, const char *name, int number)
{
    request(act_wanted, name, number);
    return answered().status;
}

static void does(enum act act_wanted, const char *name)
{
    ck_assert_int_eq(asked(act_wanted, name, WAIT_MS), CAIRN_OK);
}

static void dies_and_comes_back(int number)
{
    const pid_t before = hello.pid;
    request(DIE, "", number);
    meet_next();
    ck_assert_int_ne(hello.pid, before);
}

/* The exit status, or 128 + the signal. */
static int keeper_status(void)
{
    int status;
    ck_assert_int_eq(waitpid(keeper, &status, 0), keeper);
    keeper = 0;
    return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

static bool has_name(const char *name)
{
    for (int i = 0; i < hello.taken && i < NAMES_MAX; i++)
        if (strcmp(hello.names[i], name) == 0) return true;
    return false;
}

static int times_logged(const char *text)
{
    char line[4096];
    int count = 0;
    FILE *file = fopen(log_path, "re");
    ck_assert_ptr_nonnull(file);
    while (fgets(line, sizeof line, file) != NULL) count += strstr(line, text) != NULL;
    fclose(file);
    return count;
}

static unsigned files_kept(void)
{
    does(SYNC, "");
    return descriptors_named(keeper, "memfd:kept");
}

static const char *outer_heard(void)
{
    static char text[512];
    const ssize_t bytes = recv(outer, text, sizeof text - 1, MSG_DONTWAIT);
    text[bytes > 0 ? bytes : 0] = '\0';
    return text;
}

/* ==== what comes back ==== */

TEST(what_was_stored_comes_back_by_its_name_after_a_kill)
{
    start();
    does(STORE, "a");
    does(STORE, "job-1.w.0");
    does(STORE, "12345678901234567890123456789012");
    ck_assert_uint_eq(files_kept(), 3);
    kill(hello.pid, SIGKILL);
    meet_next();
    ck_assert_int_eq(hello.taken, 3);
    ck_assert(has_name("a") && has_name("job-1.w.0"));
    ck_assert(has_name("12345678901234567890123456789012"));
    dies_and_comes_back(SIGSEGV); // they are still kept
    ck_assert_int_eq(hello.taken, 3);
    ck_assert_int_eq(times_logged("killed by signal 9 (Killed): started again in 1 ms with 3"), 1);
}

TEST(what_was_sent_last_counts_without_a_sync)
{
    start();
    for (int i = 0; i < 50; i++) {
        char name[16];
        snprintf(name, sizeof name, "n%d", i);
        does(STORE, name);
    }
    dies_and_comes_back(SIGKILL);
    ck_assert_int_eq(hello.taken, 50);
}

TEST(all_of_a_name_are_forgotten_and_no_others)
{
    start();
    does(STORE, "x");
    does(STORE, "y");
    does(STORE, "x");
    ck_assert_uint_eq(files_kept(), 3);
    does(FORGET, "x");
    does(FORGET, "nobody");
    ck_assert_uint_eq(files_kept(), 1);
    dies_and_comes_back(SIGKILL);
    ck_assert_int_eq(hello.taken, 1);
    ck_assert(has_name("y"));
    does(FORGET, "y"); // which an earlier process stored
    ck_assert_uint_eq(files_kept(), 0);
    dies_and_comes_back(SIGKILL);
    ck_assert_int_eq(hello.taken, 0);
}

TEST(a_duplicate_is_ignored_whatever_its_name)
{
    start();
    does(STORE, "x");
    does(STORE_TWICE, "y");
    ck_assert_uint_eq(files_kept(), 1);
    does(FORGET, "x");
    does(STORE_TWICE, "y");
    ck_assert_uint_eq(files_kept(), 1);
}

TEST(a_name_is_judged_on_both_sides)
{
    static const char *const bad[] = {
        "", "a:b", "a b", "a\nREADY=1", "\xc3\xbc", "a_b", "123456789012345678901234567890123",
    };
    start();
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        char message[256];
        ck_assert_int_eq(asked(STORE, bad[i], 0), CAIRN_ERR_INVALID);
        ck_assert_int_eq(asked(FORGET, bad[i], 0), CAIRN_ERR_INVALID);
        snprintf(message, sizeof message, "FDSTORE=1\nFDNAME=%s%s", bad[i],
                 strchr(bad[i], '\n') != NULL ? ":" : "");
        if (strchr(bad[i], '\n') == NULL) ck_assert_int_eq(asked(SAY, message, 0), 0);
    }
    ck_assert_int_eq(asked(SAY, "FDSTORE=1", 0), 0);
    ck_assert_uint_eq(files_kept(), 0);
    ck_assert_int_ge(times_logged("nothing is kept under the name"), 1);
}

TEST(a_keeper_with_few_descriptors_says_when_it_is_full)
{
    const int most = (FEW_FDS - 64) / 2;
    fds_limit = FEW_FDS;
    start();
    for (int i = 0; i < most; i++) does(STORE, "x");
    request(STORE, "y", 0);
    const struct answer full = answered();
    ck_assert_int_eq(full.status, CAIRN_ERR_NO_SPACE);
    ck_assert_ptr_nonnull(strstr(full.why, "96 descriptors of at most 96"));
    for (int i = 0; i < 3; i++) ck_assert_int_eq(asked(SAY, "FDSTORE=1\nFDNAME=y", 0), 0);
    ck_assert_uint_eq(files_kept(), (unsigned)most);
    ck_assert_int_eq(times_logged("y is not kept: 96 descriptors"), 1);
    dies_and_comes_back(SIGKILL); // there is room to place all of them
    ck_assert_int_eq(hello.taken, most);
    ck_assert_int_eq(asked(STORE, "y", 0), CAIRN_ERR_NO_SPACE);
    does(FORGET, "x");
    does(STORE, "y");
    ck_assert_uint_eq(files_kept(), 1);
}

TEST(as_many_long_names_as_one_variable_holds_come_back)
{
    const int most = CAIRN_KEEPER_NAMES_BYTES_MAX / (CAIRN_KEEPER_NAME_MAX + 1);
    start();
    char name[CAIRN_KEEPER_NAME_MAX + 1];
    for (int i = 0; i < most; i++) {
        snprintf(name, sizeof name, "%032d", i);
        does(STORE, name);
    }
    ck_assert_int_eq(asked(STORE, "12345678901234567890123456789012", 0), CAIRN_ERR_NO_SPACE);
    dies_and_comes_back(SIGKILL);
    ck_assert_int_eq(hello.taken, most);
    ck_assert_int_eq(asked(STORE, "12345678901234567890123456789012", 0), CAIRN_ERR_NO_SPACE);
    does(FORGET, name);
    does(STORE, "12345678901234567890123456789012");
}

/* ==== who is heard ==== */

TEST(a_strangers_message_is_ignored)
{
    start();
    setenv("NOTIFY_SOCKET", hello.address, 1);
    const int fd = make_file("x");
    ck_assert_int_eq(notify_send("FDSTORE=1\nFDNAME=x", fd, 1000), 0);
    does(STORE, "y");
    ck_assert_int_eq(notify_send("FDSTOREREMOVE=1\nFDNAME=y", -1, 1000), 0);
    ck_assert_int_eq(notify_send("READY=1", -1, 1000), 0);
    ck_assert_uint_eq(files_kept(), 1);
    ck_assert_str_eq(outer_heard(), "");
    ck_assert_int_eq(times_logged("a message of process"), 1);
}

TEST(states_go_to_the_keepers_own_supervisor_and_nothing_else)
{
    start();
    ck_assert_int_eq(asked(SAY, "READY=1\nSTATUS=ready on 1", 0), 0);
    ck_assert_int_eq(asked(SAY, "MAINPID=1\nWATCHDOG=1\nFDSTORE=1\nFDNAME=x", 0), 0);
    ck_assert_int_eq(asked(SAY, "STOPPING=1", 0), 0);
    ck_assert_uint_eq(files_kept(), 1);
    ck_assert_str_eq(outer_heard(), "READY=1\nSTATUS=ready on 1");
    ck_assert_str_eq(outer_heard(), "WATCHDOG=1");
    ck_assert_str_eq(outer_heard(), "STOPPING=1");
    ck_assert_str_eq(outer_heard(), "");
}

TEST(a_keeper_that_does_not_read_is_not_waited_for_longer_than_said)
{
    start();
    cluster_freeze(keeper);
    ck_assert_int_eq(asked(SYNC, "", 20), CAIRN_ERR_TIMEOUT);
    int stored = 0;
    while (asked(STORE, "x", 0) == CAIRN_OK) stored++; // until its socket is full
    ck_assert_int_eq(asked(STORE, "x", 0), CAIRN_ERR_IO);
    kill(keeper, SIGCONT);
    while (asked(SYNC, "", WAIT_MS) != CAIRN_OK) {} // the first does not wait
    ck_assert_uint_eq(files_kept(), (unsigned)stored);
}

TEST(a_process_outlives_its_keeper_and_says_once_that_nothing_is_kept)
{
    start();
    does(STORE, "x");
    kill(keeper, SIGKILL);
    ck_assert_int_eq(keeper_status(), 128 + SIGKILL);
    for (int i = 0; i < 3; i++) {
        ck_assert_int_eq(asked(STORE, "y", 0), CAIRN_ERR_IO);
        ck_assert_int_eq(asked(FORGET, "x", 0), CAIRN_ERR_IO);
        ck_assert_int_eq(asked(SYNC, "", WAIT_MS), CAIRN_ERR_IO);
    }
    ck_assert_int_eq(times_logged("its keeper is gone"), 1);
    ck_assert_int_eq(kill(hello.pid, 0), 0);
}

/* The owner of a file of /proc is root, whoever the process is, if the process is hidden. */
static uid_t owner_of_fds(pid_t pid)
{
    char path[64];
    struct stat stat_of;
    snprintf(path, sizeof path, "/proc/%d/fd", (int)pid);
    ck_assert_int_eq(stat(path, &stat_of), 0);
    return stat_of.st_uid;
}

/* Runs the keeper as nobody, where this test may. */
TEST_EACH(what_is_kept_is_hidden_from_others_of_the_user_unless_it_is_traceable, 0, 2)
{
    if (!cairn_scratch_has_nobody()) return;
    ck_assert_int_eq(chmod(folder, 0777), 0);
    ck_assert_int_eq(chmod(meet, 0777), 0);
    is_hidden = _i == 0;
    is_nobody = true;
    start();
    const bool is_root = owner_of_fds(keeper) == 0;
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    ck_assert(!is_root); // a sanitizer traces
#else
    ck_assert(is_root == is_hidden);
#endif
}

/* ==== deaths ==== */

TEST(pauses_double_until_a_process_lives_for_a_minute)
{
    start();
    for (int i = 0; i < 15; i++) dies_and_comes_back(SIGABRT);
    ck_assert_int_eq(atomic_load(&world->pause_count), 15);
    for (int i = 0; i < 15; i++) {
        // a millisecond of the pause may have passed before the keeper waits
        const int said_ms = i < 13 ? 1 << i : 5000;
        const int pause_ms = atomic_load(&world->pauses_ms[i]);
        ck_assert_int_le(pause_ms, said_ms);
        ck_assert_int_gt(pause_ms, said_ms - 100);
    }
    atomic_fetch_add(&world->ahead_ms, 60000);
    dies_and_comes_back(SIGABRT);
    ck_assert_int_le(atomic_load(&world->pauses_ms[15]), 1);
}

TEST(twenty_deaths_in_five_minutes_end_the_keeper)
{
    start();
    for (int i = 0; i < 18; i++) dies_and_comes_back(SIGABRT);
    atomic_fetch_add(&world->ahead_ms, 300000);
    for (int i = 0; i < 19; i++) dies_and_comes_back(SIGABRT);
    request(DIE, "", SIGABRT);
    ck_assert_int_eq(keeper_status(), 128 + SIGABRT);
    ck_assert_int_eq(times_logged("is not started again: it died 20 times within 300 s"), 1);
}

TEST(three_deaths_with_descriptors_refuse_them_until_some_are_set_aside)
{
    start();
    dies_and_comes_back(SIGSEGV);
    dies_and_comes_back(SIGSEGV);
    dies_and_comes_back(SIGSEGV);
    ck_assert(!hello.is_refused); // it had none
    does(STORE, "x");
    dies_and_comes_back(SIGSEGV);
    for (int i = 0; i < 3; i++) {
        ck_assert(!hello.is_refused);
        ck_assert_int_eq(hello.taken, 1);
        dies_and_comes_back(SIGSEGV);
    }
    for (int i = 0; i < 2; i++) { // it goes on with them, and dies again
        ck_assert(hello.is_refused);
        ck_assert_int_eq(hello.taken, 1);
        dies_and_comes_back(SIGSEGV);
    }
    does(STORE, "aside-x");
    does(FORGET, "x");
    for (int i = 0; i < 4; i++) { // it was not handed what it could have died of
        dies_and_comes_back(SIGSEGV);
        ck_assert(!hello.is_refused);
        ck_assert_int_eq(hello.taken, 1);
    }
    does(STORE, "y");
    dies_and_comes_back(SIGSEGV);
    for (int i = 0; i < 3; i++) {
        ck_assert(!hello.is_refused);
        dies_and_comes_back(SIGSEGV);
    }
    ck_assert(hello.is_refused);
    ck_assert_int_eq(times_logged("what it may have died of"), 4);
}

TEST(deaths_that_are_far_apart_refuse_nothing)
{
    start();
    does(STORE, "x");
    dies_and_comes_back(SIGSEGV);
    for (int i = 0; i < 6; i++) {
        ck_assert(!hello.is_refused);
        atomic_fetch_add(&world->ahead_ms, 31000);
        dies_and_comes_back(SIGSEGV);
    }
}

TEST(a_program_that_is_not_there_is_tried_again_and_refuses_nothing)
{
    program = "/nonexistent/program";
    begin();
    ck_assert_int_eq(keeper_status(), 127);
    ck_assert_int_eq(times_logged("cannot start /nonexistent/program: No such file"), 20);
    ck_assert_int_eq(times_logged("may not use"), 0);
}

/* ==== ends ==== */

/* The statuses after which the unit does not start a shard again either. */
static bool is_prevented(int status)
{
    char line[256];
    bool found = false;
    FILE *file = fopen(CAIRN_SOURCE_DIR "/deploy/systemd/cairn-shard@.service.in", "re");
    ck_assert_ptr_nonnull(file);
    while (fgets(line, sizeof line, file) != NULL) {
        if (strncmp(line, "RestartPreventExitStatus=", 25) != 0) continue;
        for (char *at = line + 25; *at != '\n';) found |= strtol(at, &at, 10) == status;
    }
    fclose(file);
    return found;
}

TEST_EACH(the_keeper_ends_with_what_the_unit_would_not_start_again, 0, 16)
{
    start();
    request(END, "", _i);
    if (_i == 0 || is_prevented(_i))
        ck_assert_int_eq(keeper_status(), _i);
    else
        meet_next();
}

static const struct {
    int number;
    bool is_clean;
} deaths[] = { { SIGTERM, true }, { SIGINT, true },   { SIGHUP, true },
               { SIGPIPE, true }, { SIGKILL, false }, { SIGUSR1, false } };

TEST_EACH(a_signal_that_asks_for_the_end_is_no_crash, 0, sizeof deaths / sizeof *deaths)
{
    start();
    request(DIE, "", deaths[_i].number);
    if (deaths[_i].is_clean)
        ck_assert_int_eq(keeper_status(), 128 + deaths[_i].number);
    else
        meet_next();
}

TEST(signals_are_passed_on_and_the_end_after_one_is_the_keepers)
{
    static const int numbers[] = { SIGHUP, SIGUSR1, SIGTERM, SIGINT };
    start();
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        kill(keeper, numbers[i]);
        ck_assert_int_eq(asked(AWAIT, "", 0), numbers[i]);
    }
    request(END, "", 1); // which would be a crash otherwise
    ck_assert_int_eq(keeper_status(), 1);
}

TEST(a_keeper_that_is_stopped_in_a_pause_ends_at_once)
{
    start();
    atomic_store(&world->is_frozen, true);
    request(DIE, "", SIGKILL);
    while (atomic_load(&world->pause_count) == 0) sched_yield();
    kill(keeper, SIGTERM);
    ck_assert_int_eq(keeper_status(), 0);
}

TEST(an_upgrade_stops_the_process_and_starts_the_program_file_anew)
{
    char link[PATH_BYTES], script[PATH_BYTES];
    snprintf(link, sizeof link, "%s/program", folder);
    ck_assert_int_eq(symlink(self, link), 0);
    program = link;
    start();
    does(STORE, "x");
    for (int i = 0; i < 4; i++) { // it is no crash
        const pid_t before = hello.pid;
        kill(keeper, SIGUSR2);
        ck_assert_int_eq(asked(AWAIT, "", 0), SIGTERM);
        ck_assert_int_eq(asked(SAY, "STOPPING=1", 0), 0);
        request(END, "", i % 2);
        meet_next();
        ck_assert_int_ne(hello.pid, before);
        ck_assert_int_eq(hello.taken, 1);
        ck_assert(!hello.is_refused);
    }
    ck_assert_int_eq(atomic_load(&world->pause_count), 0);
    ck_assert_str_eq(outer_heard(), ""); // the service does not stop
    cairn_scratch_file(folder, "other", "#!/bin/sh\nexit 14\n", script, sizeof script);
    ck_assert_int_eq(chmod(script, 0700), 0);
    ck_assert_int_eq(rename(script, link), 0);
    kill(keeper, SIGUSR2);
    ck_assert_int_eq(asked(AWAIT, "", 0), SIGTERM);
    request(END, "", 0);
    ck_assert_int_eq(keeper_status(), 14);
}

TEST(an_end_during_an_upgrade_is_the_end)
{
    start();
    kill(keeper, SIGUSR2);
    ck_assert_int_eq(asked(AWAIT, "", 0), SIGTERM);
    kill(keeper, SIGTERM);
    kill(keeper, SIGUSR1); // handled after SIGTERM or before
    ck_assert_int_eq(asked(AWAIT, "", 0), SIGUSR1);
    does(SYNC, "");
    request(END, "", 0);
    ck_assert_int_eq(keeper_status(), 0);
}

TEST(the_keeper_has_as_many_descriptors_after_many_processes)
{
    start();
    does(STORE, "x");
    does(SYNC, "");
    const unsigned before = descriptors_of(keeper);
    for (int i = 0; i < 12; i++) {
        dies_and_comes_back(SIGKILL);
        does(STORE, "y");
        ck_assert_int_eq(asked(SAY, "STATUS=with a descriptor that nobody asked for", 0), 0);
        does(FORGET, "y");
        does(SYNC, "");
        ck_assert_uint_eq(descriptors_of(keeper), before);
    }
}

SUITE(60, set_up, tear_down);

/* ==== without a keeper ==== */

TEST(without_a_keeper_nothing_is_stored)
{
    struct sentence why;
    unsetenv("NOTIFY_SOCKET");
    ck_assert(!keeper_is_there());
    ck_assert_int_eq(keeper_store("x", 0, &why), CAIRN_ERR_UNSUPPORTED);
    ck_assert_int_eq(keeper_forget("x", &why), CAIRN_ERR_UNSUPPORTED);
    ck_assert_int_eq(keeper_sync(1, &why), CAIRN_ERR_UNSUPPORTED);
}

TEST(a_store_of_systemd_is_known_by_its_variables)
{
    setenv("NOTIFY_SOCKET", "@somewhere", 1);
    unsetenv("INVOCATION_ID");
    unsetenv("FDSTORE");
    unsetenv("MEMORY_PRESSURE_WATCH");
    ck_assert(!keeper_is_there());
    setenv("INVOCATION_ID", "0123", 1); // before 254
    ck_assert(keeper_is_there());
    setenv("MEMORY_PRESSURE_WATCH", "/sys", 1); // from 254 on, and without FDSTORE
    ck_assert(!keeper_is_there());
    setenv("FDSTORE", "64", 1);
    ck_assert(keeper_is_there());
}

TEST(descriptors_of_another_process_are_not_taken)
{
    struct kept_fd *list;
    struct sentence why;
    setenv("LISTEN_FDS", "2", 1);
    setenv("LISTEN_PID", "1", 1);
    setenv("LISTEN_FDNAMES", "a:b", 1);
    ck_assert_uint_eq(keeper_take(&list, &why), 0);
    ck_assert_ptr_null(list);
    ck_assert_str_eq(why.text, "");
    ck_assert_ptr_null(getenv("LISTEN_FDS"));
    ck_assert_ptr_null(getenv("LISTEN_PID"));
    ck_assert_ptr_null(getenv("LISTEN_FDNAMES"));
}

static const struct {
    const char *fds, *names, *why;
    unsigned taken;
} handed[] = {
    { "2", "a:b", "", 2 },
    { "2", "a:a", "", 2 },
    { "2", "a", "descriptor 601", 1 },
    { "2", NULL, "descriptor 601", 0 },
    { "2", "a:b:c", "", 2 },
    { "2", ":b", "descriptor 600, \"\"", 1 },
    { "2", "a:not_a_name", "descriptor 601, \"not_a_name\"", 1 },
    { "0", "", "", 0 },
    { "many", "a:b", "", 0 },
};

/* In a child of its own: what is there from 3 on belongs to nobody else there. */
static void take_handed(size_t row)
{
    struct kept_fd *list;
    struct sentence why;
    char pid[24];
    snprintf(pid, sizeof pid, "%d", (int)getpid());
    setenv("LISTEN_PID", pid, 1);
    setenv("LISTEN_FDS", handed[row].fds, 1);
    if (handed[row].names != NULL) setenv("LISTEN_FDNAMES", handed[row].names, 1);
    dup2(1, 3);
    dup2(1, 4);
    const size_t taken = keeper_take(&list, &why);
    const bool says = (why.text[0] != '\0') == (handed[row].why[0] != '\0');
    const bool is_closed = taken == 2 || handed[row].fds[0] != '2' ||
                           (fcntl(3, F_GETFD) < 0) + (fcntl(4, F_GETFD) < 0) == 2 - (int)taken;
    free(list);
    _exit(taken == handed[row].taken && says && is_closed ? 0 : 1);
}

TEST_EACH(a_descriptor_without_a_valid_name_is_closed, 0, sizeof handed / sizeof *handed)
{
    int status;
    const pid_t pid = fork();
    if (pid == 0) take_handed((size_t)_i);
    ck_assert_int_eq(waitpid(pid, &status, 0), pid);
    ck_assert_int_eq(status, 0);
}

SUITE(30);

int main(int argc, char **argv)
{
    if (argc >= 3 && strcmp(argv[1], "--kept") == 0) return run_kept(argv[2]);
    return suite_main();
}
