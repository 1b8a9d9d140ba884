#include "tests/support/now.h"
#include "tests/support/tracer.h"

#include <check.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "tests/support/cluster.h"

enum { SYSCALL_STOP = SIGTRAP | 0x80 }; /* by PTRACE_O_TRACESYSGOOD, beside a SIGTRAP of its own */
/* It looks at the latest then: another thread of the test may have had the signal that there is something. */
enum { LOOK_MS = 20 };

static void *as_pointer(long data)
{
    union { // ptrace takes options and signals as a pointer
        long number;
        void *pointer;
    } as = { .number = data };
    return as.pointer;
}

static bool seize(pid_t thread)
{
    const long options = PTRACE_O_TRACESYSGOOD | PTRACE_O_TRACECLONE | PTRACE_O_TRACEEXEC;
    return ptrace(PTRACE_SEIZE, thread, NULL, as_pointer(options)) == 0;
}

/* A thread that was killed meanwhile is not there to go on. */
static void go_on(pid_t thread, int signal)
{
    if (ptrace(PTRACE_SYSCALL, thread, NULL, as_pointer(signal)) == 0) return;
    ck_assert_msg(errno == ESRCH, "thread %d does not go on: %s", (int)thread, strerror(errno));
}

/* ---- its threads ---- */

static struct tracer_thread *find(struct tracer *t, pid_t id)
{
    for (size_t i = 0; i < t->thread_count; i++)
        if (t->threads[i].id == id) return &t->threads[i];
    return NULL;
}

static struct tracer_thread *find_or_add(struct tracer *t, pid_t id)
{
    struct tracer_thread *thread = find(t, id);
    if (thread != NULL) return thread;
    ck_assert_uint_lt(t->thread_count, TRACER_THREADS_MAX);
    thread = &t->threads[t->thread_count++];
    *thread = (struct tracer_thread) { .id = id };
    return thread;
}

static void forget(struct tracer *t, pid_t id)
{
    struct tracer_thread *thread = find(t, id);
    if (thread != NULL) *thread = t->threads[--t->thread_count];
}

/* ---- what it stops for ---- */

static void enter_call(struct tracer *t, struct tracer_thread *thread,
                       const struct __ptrace_syscall_info *info)
{
    const struct tracer_call call = { .thread = thread->id,
                                      .name = tracer_call_name(info->entry.nr),
                                      .first = info->entry.args[0] };
    const int fate = call.name != NULL ? t->judge(t->context, &call) : 0;
    if (fate == TRACER_KILLS) {
        kill(t->process,
             SIGKILL); // who is stopped at the entry of a call and killed does not enter
        t->judge = NULL;
        return;
    }
    thread->error = fate;
    if (fate != 0) tracer_call_skip(thread->id);
    go_on(thread->id, 0);
}

static void stop_at_call(struct tracer *t, struct tracer_thread *thread)
{
    struct __ptrace_syscall_info info = { .op = PTRACE_SYSCALL_INFO_NONE };
    ptrace(PTRACE_GET_SYSCALL_INFO, thread->id, as_pointer(sizeof info), &info);
    if (info.op == PTRACE_SYSCALL_INFO_ENTRY && t->judge != NULL) {
        enter_call(t, thread, &info);
        return;
    }
    if (info.op == PTRACE_SYSCALL_INFO_EXIT && thread->error != 0) {
        tracer_call_fail(thread->id, thread->error);
        thread->error = 0;
    }
    go_on(thread->id, 0);
}

static bool stops_a_group(int signal)
{
    return signal == SIGSTOP || signal == SIGTSTP || signal == SIGTTIN || signal == SIGTTOU;
}

static void stop_for_event(struct tracer *t, pid_t id, int event, int signal)
{
    unsigned long born = 0;
    if (event == PTRACE_EVENT_STOP && stops_a_group(signal)) {
        ptrace(PTRACE_LISTEN, id, NULL, NULL); // it stays stopped until somebody continues it
        return;
    }
    if (event == PTRACE_EVENT_CLONE && ptrace(PTRACE_GETEVENTMSG, id, NULL, &born) == 0)
        (void)find_or_add(t, (pid_t)born); // it is traced, and stops for the first time soon
    if (event == PTRACE_EVENT_EXEC) {
        t->thread_count = 0; // there is one left, under the number of the process
        find_or_add(t, id)->watched = true;
    }
    go_on(id, 0);
}

/* What waitpid has said of one of its threads. */
static void take(struct tracer *t, pid_t id, int status)
{
    if (!WIFSTOPPED(status)) { // a thread that was killed before it was known, too
        forget(t, id);
        if (id == t->process)
            t->status = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
        return;
    }
    struct tracer_thread *thread = find_or_add(t, id);
    thread->watched = true;
    const int event = status >> 16, signal = WSTOPSIG(status);
    if (event != 0)
        stop_for_event(t, id, event, signal);
    else if (signal == SYSCALL_STOP)
        stop_at_call(t, thread);
    else
        go_on(id, signal); // which it was sent
}

/* ---- waiting ---- */

/* What there is next to be said of anybody; status_out: of `child`, another than the traced one. False: there
 * was nothing before the deadline. */
static bool take_next(struct tracer *t, pid_t child, int *status_out, int64_t deadline_ms)
{
    for (sigset_t some;;) {
        int status;
        const pid_t id = waitpid(-1, &status, WNOHANG | __WALL);
        ck_assert_msg(id >= 0, "waitpid: %s", strerror(errno));
        if (id == child && id != t->process) {
            *status_out = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
            return true;
        }
        if (id > 0) {
            take(t, id, status);
            return true;
        }
        const int64_t left_ms = deadline_ms - now_ms();
        if (left_ms <= 0) return false;
        const int64_t wait_ms = left_ms < LOOK_MS ? left_ms : LOOK_MS;
        const struct timespec wait = { .tv_nsec = wait_ms * 1000000 };
        sigemptyset(&some);
        sigaddset(&some, SIGCHLD);
        (void)sigtimedwait(&some, NULL, &wait);
    }
}

static bool all_watched(const struct tracer *t)
{
    for (size_t i = 0; i < t->thread_count; i++)
        if (!t->threads[i].watched) return false;
    return true;
}

/* A SIGCHLD that comes between a look and a wait is there at the wait. Nobody is started meanwhile, who would
 * inherit that. */
static void hold_signal(sigset_t *before)
{
    sigset_t held;
    sigemptyset(&held);
    sigaddset(&held, SIGCHLD);
    sigprocmask(SIG_BLOCK, &held, before);
}

int tracer_await(struct tracer *t, pid_t child, int timeout_ms)
{
    const int64_t deadline_ms = now_ms() + timeout_ms;
    const int *status = &t->status;
    int other = -1;
    sigset_t before;
    if (child != t->process) status = &other;
    hold_signal(&before);
    while (*status == -1 && take_next(t, child, &other, deadline_ms)) {}
    sigprocmask(SIG_SETMASK, &before, NULL);
    return *status;
}

/* ---- from when to when ---- */

static void begin(struct tracer *t, pid_t process, tracer_judge_fn *judge, void *context)
{
    *t = (struct tracer) { .process = process, .status = -1, .judge = judge, .context = context };
}

/* Whether one of them was not traced before. One that was begun meanwhile by one that is, is too. */
static bool seize_all(struct tracer *t)
{
    char path[64];
    bool any = false;
    snprintf(path, sizeof path, "/proc/%d/task", (int)t->process);
    DIR *dir = opendir(path);
    ck_assert_msg(dir != NULL, "%s: %s", path, strerror(errno));
    for (const struct dirent *e; (e = readdir(dir)) != NULL;) {
        const pid_t id = (pid_t)strtol(e->d_name, NULL, 10);
        if (id == 0 || find(t, id) != NULL) continue;
        const bool seized = seize(id);
        ck_assert_msg(seized || t->thread_count > 0, "nobody traces %d: %s", id, strerror(errno));
        if (!seized) continue; // it has ended, or is traced from its beginning
        (void)find_or_add(t, id);
        ptrace(PTRACE_INTERRUPT, id, NULL, NULL);
        any = true;
    }
    closedir(dir);
    return any;
}

void tracer_attach(struct tracer *t, pid_t process, tracer_judge_fn *judge, void *context)
{
    const int64_t deadline_ms = now_ms() + CLUSTER_WAIT_MS;
    int none;
    sigset_t before;
    begin(t, process, judge, context);
    while (seize_all(t)) {}
    hold_signal(&before);
    while (t->status == -1 && !all_watched(t))
        ck_assert_msg(take_next(t, 0, &none, deadline_ms), "%d does not stop", (int)process);
    sigprocmask(SIG_SETMASK, &before, NULL);
}

/* In the child: the program, as soon as it is traced. */
static void become(const char *const *argv, const char *log_path, int go, pid_t parent)
{
    char none;
    union { // execvp takes them as they are and writes nothing
        const char *const *in;
        char *const *out;
    } args = { .in = argv };
    const char *asan = getenv("ASAN_OPTIONS");
    char options[256];
    snprintf(options, sizeof options, "%s:detect_leaks=0", asan != NULL ? asan : "");
    setenv("ASAN_OPTIONS", options, 1); // nobody finds leaks who is traced
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    const int log = open(log_path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
    if (getppid() != parent || log < 0 || read(go, &none, 1) != 0) _exit(126);
    dup2(log, STDOUT_FILENO);
    dup2(log, STDERR_FILENO);
    execvp(argv[0], args.out);
    _exit(127);
}

void tracer_start(struct tracer *t, const char *const *argv, const char *log_path,
                  tracer_judge_fn *judge, void *context)
{
    int go[2];
    ck_assert_int_eq(pipe2(go, O_CLOEXEC), 0);
    const pid_t parent = getpid(), child = fork();
    ck_assert_msg(child >= 0, "fork: %s", strerror(errno));
    if (child == 0) {
        close(go[1]);
        become(argv, log_path, go[0], parent);
    }
    begin(t, child, judge, context);
    ck_assert_msg(seize(child), "nobody traces %d: %s", (int)child, strerror(errno));
    (void)find_or_add(t, child);
    close(go[0]);
    close(go[1]); // it stops for the first time when it has become the program
}

/* Where it stops; false: it has ended. */
static bool stop(struct tracer *t, pid_t id, int *status_out)
{
    const bool is_there = ptrace(PTRACE_INTERRUPT, id, NULL, NULL) == 0;
    if (waitpid(id, status_out, __WALL | (is_there ? 0 : WNOHANG)) != id) return false;
    if (!WIFSTOPPED(*status_out)) take(t, id, *status_out);
    return WIFSTOPPED(*status_out);
}

/* It goes on untraced from where it stops next, but for a call in between that has to be failed. */
static void let_go(struct tracer *t, pid_t id)
{
    int status, signal = 0;
    unsigned long born = 0;
    bool stopped = stop(t, id, &status);
    while (stopped && find_or_add(t, id)->error != 0) {
        take(t, id, status);
        stopped = stop(t, id, &status);
    }
    if (stopped) {
        if (status >> 16 == 0 && WSTOPSIG(status) != SYSCALL_STOP) signal = WSTOPSIG(status);
        if (status >> 16 == PTRACE_EVENT_CLONE && ptrace(PTRACE_GETEVENTMSG, id, NULL, &born) == 0)
            (void)find_or_add(t, (pid_t)born);
        ptrace(PTRACE_DETACH, id, NULL, as_pointer(signal));
    }
    forget(t, id);
}

void tracer_detach(struct tracer *t)
{
    while (t->thread_count > 0) let_go(t, t->threads[0].id);
}

bool tracer_works(void)
{
    struct __ptrace_syscall_info info;
    int status;
    if (!tracer_call_skips()) {
        printf("skip: nobody has said how a system call is skipped on this architecture\n");
        return false;
    }
    const pid_t child = fork();
    if (child == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        for (;;) pause();
    }
    const bool works = child > 0 && seize(child) &&
                       ptrace(PTRACE_INTERRUPT, child, NULL, NULL) == 0 &&
                       waitpid(child, &status, __WALL) == child &&
                       ptrace(PTRACE_GET_SYSCALL_INFO, child, as_pointer(sizeof info), &info) > 0;
    if (!works) printf("skip: nobody may trace here: %s\n", strerror(errno));
    if (child > 0) {
        kill(child, SIGKILL);
        while (waitpid(child, &status, __WALL) == child && WIFSTOPPED(status)) {}
    }
    return works;
}
