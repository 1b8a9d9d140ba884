/* A process of two threads that make folders by turns: the tracer sees the calls of both in one order, kills
 * the process before any, lets any fail, and leaves the process as nobody had traced it. */
#include <check.h>
#include <errno.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/support/cluster.h"
#include "tests/support/scratch_folder.h"
#include "tests/support/suite.h"
#include "tests/support/tracer.h"

enum { TURNS = 6, FAILED = 1, SENT = SIGUSR1 };

static struct tracer tracer;

static void set_up(void)
{
    cairn_scratch_make_quick(scratch);
}

static void name_of(int turn, char out[CAIRN_SCRATCH_BYTES + 16])
{
    snprintf(out, CAIRN_SCRATCH_BYTES + 16, "%s/%d", scratch, turn);
}

static bool is_made(int turn)
{
    char name[CAIRN_SCRATCH_BYTES + 16];
    name_of(turn, name);
    return access(name, F_OK) == 0;
}

/* ---- the process ---- */

struct toy {
    pid_t pid;
    int go; /* closed, as by the end of whoever started it: it begins */
};
static sem_t turn_of[2];
static int errors; /* calls that failed with EIO */

static void make(int turn)
{
    char name[CAIRN_SCRATCH_BYTES + 16];
    name_of(turn, name);
    if (mkdir(name, 0700) != 0 && errno == EIO) errors++;
}

static void *make_by_turns(void *context)
{
    const int own = *(const int *)context;
    for (int turn = own; turn < TURNS; turn += 2) {
        while (sem_wait(&turn_of[own]) != 0) {}
        make(turn);
        sem_post(&turn_of[1 - own]);
    }
    return NULL;
}

static void two_threads(void)
{
    static int ids[] = { 0, 1 };
    pthread_t threads[2];
    sem_init(&turn_of[0], 0, 1);
    sem_init(&turn_of[1], 0, 0);
    for (int i = 0; i < 2; i++) pthread_create(&threads[i], NULL, make_by_turns, &ids[i]);
    for (int i = 0; i < 2; i++) pthread_join(threads[i], NULL);
}

static void *make_one(void *context)
{
    make(*(const int *)context);
    return NULL;
}

static void a_thread_for_each(void)
{
    for (int turn = 0; turn < TURNS; turn++) {
        pthread_t thread;
        pthread_create(&thread, NULL, make_one, &turn);
        pthread_join(thread, NULL);
    }
}

static void on_signal(int signal)
{
    (void)signal;
    make(TURNS);
}

/* It makes them when `go` is closed, and ends with the number of those that failed. */
static struct toy start(void (*work)(void))
{
    int go[2];
    char none;
    ck_assert_int_eq(pipe(go), 0);
    signal(SENT, on_signal); // and the child's
    const struct toy toy = { .pid = fork(), .go = go[1] };
    if (toy.pid != 0) {
        close(go[0]);
        return toy;
    }
    close(go[1]);
    while (read(go[0], &none, 1) < 0 && errno == EINTR) {}
    work();
    _exit(errors);
}

/* ---- what is done to it ---- */

struct asked {
    int nth, fate;
    int seen;
    pid_t threads[TURNS + 1];
};

static int judge(void *context, const struct tracer_call *call)
{
    struct asked *asked = context;
    if (strncmp(call->name, "mkdir", 5) != 0) return 0;
    ck_assert_int_le(asked->seen, TURNS);
    asked->threads[asked->seen++] = call->thread;
    return asked->seen == asked->nth ? asked->fate : 0;
}

static int run(void (*work)(void), struct asked *asked)
{
    const struct toy toy = start(work);
    tracer_attach(&tracer, toy.pid, judge, asked);
    close(toy.go);
    const int status = tracer_await(&tracer, toy.pid, CLUSTER_WAIT_MS);
    ck_assert_int_eq(tracer.status, status);
    tracer_detach(&tracer);
    return status;
}

TEST(calls_of_both_threads_are_seen_in_their_order)
{
    struct asked asked = { .nth = 0 };
    ck_assert_int_eq(run(two_threads, &asked), 0);
    ck_assert_int_eq(asked.seen, TURNS);
    ck_assert_int_ne(asked.threads[0], asked.threads[1]);
    for (int i = 2; i < TURNS; i++) ck_assert_int_eq(asked.threads[i], asked.threads[i - 2]);
    for (int i = 0; i < TURNS; i++) ck_assert(is_made(i));
}

TEST_EACH(whoever_is_killed_has_done_what_came_before_and_no_more, 0, TURNS)
{
    struct asked asked = { .nth = _i + 1, .fate = TRACER_KILLS };
    ck_assert_int_eq(run(two_threads, &asked), 128 + SIGKILL);
    for (int i = 0; i < TURNS; i++) ck_assert_int_eq(is_made(i), i < _i);
}

TEST_EACH(a_call_that_fails_has_not_happened_and_the_others_have, 0, TURNS)
{
    struct asked asked = { .nth = _i + 1, .fate = EIO };
    ck_assert_int_eq(run(two_threads, &asked), FAILED);
    for (int i = 0; i < TURNS; i++) ck_assert_int_eq(is_made(i), i != _i);
}

TEST_EACH(threads_that_come_and_go_are_counted_on, 0, TURNS)
{
    struct asked asked = { .nth = _i + 1, .fate = TRACER_KILLS };
    ck_assert_int_eq(run(a_thread_for_each, &asked), 128 + SIGKILL);
    for (int i = 0; i < TURNS; i++) ck_assert_int_eq(is_made(i), i < _i);
}

/* ---- a program ---- */

static int run_program(struct asked *asked)
{
    char names[3][CAIRN_SCRATCH_BYTES + 16];
    for (int i = 0; i < 3; i++) name_of(i, names[i]);
    const char *const argv[] = { "mkdir", names[0], names[1], names[2], NULL };
    tracer_start(&tracer, argv, "/dev/null", judge, asked);
    return tracer_await(&tracer, tracer.process, CLUSTER_WAIT_MS);
}

TEST(a_program_is_traced_from_its_beginning)
{
    struct asked killed = { .nth = 2, .fate = TRACER_KILLS };
    ck_assert_int_eq(run_program(&killed), 128 + SIGKILL);
    ck_assert(is_made(0) && !is_made(1) && !is_made(2));
    scratch_remove();
    set_up();
    struct asked failed = { .nth = 2, .fate = EIO };
    ck_assert_int_eq(run_program(&failed), 1);
    ck_assert(is_made(0) && !is_made(1) && is_made(2));
}

TEST(a_program_that_is_not_there_says_so)
{
    const char *const argv[] = { "/nothing", NULL };
    tracer_start(&tracer, argv, "/dev/null", judge, &(struct asked) { .nth = 0 });
    ck_assert_int_eq(tracer_await(&tracer, tracer.process, CLUSTER_WAIT_MS), 127);
}

/* ---- signals, and the end of the tracing ---- */

static bool status_says(pid_t pid, const char *text)
{
    char path[64], line[256];
    bool says = false;
    snprintf(path, sizeof path, "/proc/%d/status", (int)pid);
    FILE *file = fopen(path, "re");
    ck_assert_ptr_nonnull(file);
    while (!says && fgets(line, sizeof line, file) != NULL)
        says = strncmp(line, text, strlen(text)) == 0;
    fclose(file);
    return says;
}

TEST(a_signal_arrives)
{
    struct asked asked = { .nth = 0 };
    const struct toy toy = start(two_threads);
    tracer_attach(&tracer, toy.pid, judge, &asked);
    kill(toy.pid, SENT);
    while (asked.seen == 0) ck_assert_int_eq(tracer_await(&tracer, toy.pid, 1), -1);
    close(toy.go);
    ck_assert_int_eq(tracer_await(&tracer, toy.pid, CLUSTER_WAIT_MS), 0);
    ck_assert(is_made(TURNS));
    ck_assert_int_eq(asked.seen, TURNS + 1);
}

TEST(a_process_that_is_stopped_stays_so_until_it_is_continued)
{
    struct asked asked = { .nth = 0 };
    const struct toy toy = start(two_threads);
    tracer_attach(&tracer, toy.pid, judge, &asked);
    kill(toy.pid, SIGSTOP);
    close(toy.go);
    ck_assert_int_eq(tracer_await(&tracer, toy.pid, 50), -1);
    ck_assert_int_eq(asked.seen, 0);
    tracer_detach(&tracer);
    while (!status_says(toy.pid, "State:\tT")) ck_assert_int_eq(cluster_wait(toy.pid, 1), -1);
    tracer_attach(&tracer, toy.pid, judge, &asked);
    kill(toy.pid, SIGCONT);
    ck_assert_int_eq(tracer_await(&tracer, toy.pid, CLUSTER_WAIT_MS), 0);
    ck_assert_int_eq(asked.seen, TURNS);
}

TEST(who_is_let_go_is_traced_by_nobody_and_goes_on)
{
    struct asked asked = { .nth = 0 };
    const struct toy toy = start(two_threads);
    tracer_attach(&tracer, toy.pid, judge, &asked);
    ck_assert(!status_says(toy.pid, "TracerPid:\t0"));
    tracer_detach(&tracer);
    ck_assert(status_says(toy.pid, "TracerPid:\t0"));
    close(toy.go);
    ck_assert_int_eq(cluster_wait(toy.pid, CLUSTER_WAIT_MS), 0);
    ck_assert_int_eq(asked.seen, 0);
    for (int i = 0; i < TURNS; i++) ck_assert(is_made(i));
}

TEST(who_is_let_go_within_a_call_that_fails_meets_the_failure)
{
    struct asked asked = { .nth = 1, .fate = EIO };
    const struct toy toy = start(two_threads);
    tracer_attach(&tracer, toy.pid, judge, &asked);
    close(toy.go);
    while (asked.seen == 0) (void)tracer_await(&tracer, toy.pid, 0);
    tracer_detach(&tracer);
    const bool has_ended = tracer.status != -1; // as fast as that, now and then
    ck_assert_int_eq(has_ended ? tracer.status : cluster_wait(toy.pid, CLUSTER_WAIT_MS), FAILED);
    for (int i = 0; i < TURNS; i++) ck_assert_int_eq(is_made(i), i != 0);
}

/* Who traces ends without a word; the process is another's child then: of this one, which adopts it. */
TEST(who_loses_the_tracer_goes_on)
{
    int said[2];
    pid_t toy = 0;
    ck_assert_int_eq(pipe(said), 0);
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    const pid_t middle = fork();
    if (middle == 0) {
        struct asked asked = { .nth = 0 };
        const struct toy traced = start(two_threads);
        tracer_attach(&tracer, traced.pid, judge, &asked);
        _exit(write(said[1], &traced.pid, sizeof traced.pid) == sizeof traced.pid ? 0 : 1);
    }
    ck_assert_int_eq(read(said[0], &toy, sizeof toy), sizeof toy);
    ck_assert_int_eq(cluster_wait(middle, CLUSTER_WAIT_MS), 0);
    ck_assert_int_eq(cluster_wait(toy, CLUSTER_WAIT_MS), 0);
    for (int i = 0; i < TURNS; i++) ck_assert(is_made(i));
}

SUITE(60, set_up, scratch_remove);

int main(void)
{
    return tracer_works() ? suite_main() : SUITE_SKIPPED;
}
