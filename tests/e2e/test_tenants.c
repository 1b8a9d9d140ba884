/* A hostile tenant beside a good one: what it asks for is valid, and it asks for as much as it can. */
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "proto/wire/wire.h"
#include "tests/e2e/scene.h"
#include "tests/support/made.h"
#include "tests/support/now.h"
#include "tests/support/scratch.h"

/* CAIRN_TENANT_WINDOWS: more of them, for figures. LEAST: of the pace alone that the good job keeps. A noisy
 * machine of two cores takes its part, too. */
enum { WINDOW_MS = 250, WINDOWS = 6, ELEMS = 64 << 10 };
static const double least = 0.25;

/* What the hostile process and the test share. */
static struct shared {
    atomic_bool rests, is_ready;
    atomic_uint done; /* what it asked for, and got */
} * shared;

static void share_memory(void)
{
    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    ck_assert_ptr_ne(shared, MAP_FAILED);
}

/* ---- the hostile tenant ---- */

static void while_it_rests(void)
{
    while (shared->rests) poll(NULL, 0, 1);
}

/* A connection that has said Hello. */
static int connected(uint32_t role)
{
    Cairn__Hello hello = CAIRN__HELLO__INIT;
    uint8_t *frame;
    size_t bytes;
    hello.protocol = CAIRN_CONTROL_PROTOCOL;
    hello.role = role;
    hello.name = wire_text("hostile");
    hello.version = wire_text("test");
    hello.incarnation = 1;
    const int fd = cairn_scratch_dial(cluster.address);
    if (frame_pack(CAIRN_MSG_HELLO, 1, &hello.base, CAIRN_FRAME_BYTES_MAX, &frame, &bytes, NULL) !=
            CAIRN_OK ||
        write(fd, frame, bytes) != (ssize_t)bytes)
        _exit(2);
    free(frame);
    return fd;
}

static void drain(int fd)
{
    char bytes[65536];
    while (recv(fd, bytes, sizeof bytes, MSG_DONTWAIT) > 0) {}
}

/* As many valid questions as fit the sockets, on so many connections. */
static void ask_on(int *fds, int count, uint32_t role)
{
    enum { BATCH = 64 };
    uint8_t batch[BATCH * 64], *frame;
    size_t used = 0, bytes;
    Cairn__JobListGet list = CAIRN__JOB_LIST_GET__INIT;
    Cairn__WhoIsAwaited awaited = CAIRN__WHO_IS_AWAITED__INIT;
    const bool is_admin = role == CAIRN_ROLE_WIRE_ADMIN;
    for (int i = 0; i < BATCH; i++) {
        if (frame_pack(is_admin ? CAIRN_MSG_JOB_LIST_GET : CAIRN_MSG_WHO_IS_AWAITED,
                       (uint32_t)(i + 2), is_admin ? &list.base : &awaited.base,
                       CAIRN_FRAME_BYTES_MAX, &frame, &bytes, NULL) != CAIRN_OK)
            _exit(2);
        memcpy(batch + used, frame, bytes);
        used += bytes;
        free(frame);
    }
    for (int i = 0;; i = (i + 1) % count) {
        while_it_rests();
        drain(fds[i]);
        const ssize_t sent = send(fds[i], batch, used, MSG_DONTWAIT | MSG_NOSIGNAL);
        if (sent < 0 && errno != EAGAIN) fds[i] = connected(role);
        if (sent > 0 && (size_t)sent < used) // the rest of the frame that was cut
            for (size_t at = (size_t)sent; at < used;) {
                drain(fds[i]);
                const ssize_t more = send(fds[i], batch + at, used - at, MSG_NOSIGNAL);
                if (more <= 0) break;
                at += (size_t)more;
            }
        if (sent > 0) shared->done += BATCH;
    }
}

static void flood(void)
{
    int fd = connected(CAIRN_ROLE_WIRE_ADMIN);
    shared->is_ready = true;
    ask_on(&fd, 1, CAIRN_ROLE_WIRE_ADMIN);
}

static void flood_on_many_sessions(void)
{
    enum { SESSIONS = 1000 };
    static int fds[SESSIONS];
    for (int i = 0; i < SESSIONS; i++) fds[i] = connected(CAIRN_ROLE_WIRE_WORKER);
    shared->is_ready = true;
    ask_on(fds, SESSIONS, CAIRN_ROLE_WIRE_WORKER);
}

static void open_and_close(void)
{
    cairn *own = trainer_session(cluster.address, NULL);
    char name[32];
    shared->is_ready = true;
    for (unsigned i = 0;; i++) {
        cairn_job *one;
        while_it_rests();
        snprintf(name, sizeof name, "hostile-%u", i % 50);
        if (cairn_job_open(own, name, &TINY(100)->spec, CAIRN_WORKER, CLUSTER_WAIT_MS, &one) !=
            CAIRN_OK)
            continue;
        cairn_job_close(one);
        if (i % 2 == 1) (void)!cairn_job_drop(own, name, CAIRN_DROP_FORCE, CLUSTER_WAIT_MS);
        shared->done++;
    }
}

/* A round of it, whatever becomes of it. */
static void push_round(cairn_job *to, const float *values)
{
    const struct cairn_mem mem = trainer_mem(values, CAIRN_F32);
    struct cairn_round round = { .struct_size = sizeof round };
    struct cairn_result result = { .struct_size = sizeof result };
    cairn_status status = cairn_round_begin(to, CLUSTER_WAIT_MS, &round);
    if (status == CAIRN_OK) status = cairn_push(to, &round, 0, "w", NULL, &mem, NULL);
    if (status == CAIRN_OK) (void)!cairn_commit(to, &round, 1, NULL, 0, CLUSTER_WAIT_MS, &result);
}

static void push_garbage(void)
{
    static float garbage[16 * ELEMS];
    uint64_t seed = 7;
    for (size_t i = 0; i < sizeof garbage / sizeof *garbage; i++)
        memcpy(&garbage[i], &(uint32_t) { (uint32_t)cairn_scratch_random(&seed) }, 4);
    cairn *own = trainer_session(cluster.address, NULL);
    cairn_job *one = trainer_ready(own, "garbage", &TINY(16 * ELEMS)->spec);
    shared->is_ready = true;
    for (;;) {
        while_it_rests();
        push_round(one, garbage);
        shared->done++;
    }
}

static void bring_huge_specs(void)
{
    enum { TENSORS = 30000, NAME_BYTES = 24 };
    struct cairn_group group = CAIRN_GROUP_INIT;
    struct cairn_tensor *tensors = calloc(TENSORS, sizeof *tensors);
    char(*names)[NAME_BYTES] = calloc(TENSORS, NAME_BYTES);
    for (int i = 0; i < TENSORS; i++) {
        snprintf(names[i], NAME_BYTES, "tensor.%d", i);
        tensors[i] = (struct cairn_tensor) { .struct_size = sizeof *tensors,
                                             .name = names[i],
                                             .rank = 1,
                                             .shape = { 4 },
                                             .init = { .kind = CAIRN_INIT_ONES } };
    }
    const struct cairn_job_spec spec = { .struct_size = sizeof spec,
                                         .tensors = tensors,
                                         .tensor_count = TENSORS,
                                         .groups = &group,
                                         .group_count = 1 };
    cairn *own = trainer_session(cluster.address, NULL);
    shared->is_ready = true;
    for (;;) {
        cairn_job *one;
        while_it_rests();
        if (cairn_job_open(own, "huge", &spec, CAIRN_WORKER, CLUSTER_WAIT_MS, &one) != CAIRN_OK)
            continue;
        cairn_job_close(one);
        (void)!cairn_job_drop(own, "huge", CAIRN_DROP_FORCE, CLUSTER_WAIT_MS);
        shared->done++;
    }
}

static const struct attack {
    const char *what;
    void (*run)(void);
} attacks[] = {
    { "valid questions on a connection", flood },
    { "valid questions on 1,000 sessions", flood_on_many_sessions },
    { "jobs opened and closed", open_and_close },
    { "garbage pushed to its own job", push_garbage },
    { "specs of 30,000 tensors", bring_huge_specs },
};

/* Every user may connect. */
static void open_to_all(void)
{
    ck_assert_int_eq(chmod(cluster.folder, 0755), 0);
    ck_assert_int_eq(chmod(cluster.address, 0666), 0);
}

/* It is another user. It is nice, because elsewhere its own work would not be this machine's. */
static pid_t begin_attack(const struct attack *attack)
{
    const pid_t pid = fork();
    ck_assert_int_ge(pid, 0);
    if (pid > 0) return pid;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    setpriority(PRIO_PROCESS, 0, 19);
    if (!cairn_scratch_be_nobody()) _exit(1);
    attack->run();
    _exit(1);
}

/* ---- the good one ---- */

static unsigned rounds_beside(bool hostile)
{
    static const float gradient[ELEMS];
    uint64_t step;
    unsigned rounds = 0;
    shared->rests = !hostile;
    poll(NULL, 0, 20);
    const int64_t end_ms = now_ms() + WINDOW_MS;
    for (; now_ms() < end_ms; rounds++) good(trainer_try_step(job, "w", gradient, &step));
    return rounds;
}

TEST_EACH(a_hostile_tenant_does_not_slow_anothers_job, 0, sizeof attacks / sizeof *attacks)
{
    const char *asked = getenv("CAIRN_TENANT_WINDOWS");
    const int windows = asked != NULL ? atoi(asked) : WINDOWS;
    unsigned alone = 0, beside = 0;
    share_memory();
    shared->rests = true;
    start(2, .log_level = "error");
    open_to_all();
    const pid_t pid = begin_attack(&attacks[_i]);
    for (int i = 0; i < 5000 && !shared->is_ready; i++) poll(NULL, 0, 1);
    ck_assert(shared->is_ready);
    join("good", TINY(ELEMS));
    rounds_beside(false); // warm
    // where others have the processors, who is nice may have none for a while
    for (int i = 0; i < windows || (shared->done == 0 && i < 10 * windows); i++) {
        alone += rounds_beside(false);
        beside += rounds_beside(true);
    }
    printf("note: %s: of %d windows of %d ms, %u rounds alone, %u beside it (%.2f); it did %u\n",
           attacks[_i].what, windows, WINDOW_MS, alone, beside, (double)beside / alone,
           (unsigned)shared->done);
    fflush(stdout); // a test that fails does not
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
    ck_assert_uint_gt(shared->done, 0);
    ck_assert_double_gt(beside, alone * least);
}

/* ---- two users of a host ---- */

/* Whoever is no admin gets nothing of another's job but a sentence: to it the job is not there, except that
 * the name is taken. */
static int try_anothers(void)
{
    cairn *own = trainer_session(cluster.address, NULL);
    cairn_job *one;
    struct cairn_result result = { .struct_size = sizeof result };
    cairn_status got[] = {
        cairn_job_drop(own, "good", CAIRN_DROP_FORCE, CLUSTER_WAIT_MS),
        cairn_job_open(own, "good", &TINY(ELEMS, .rank = 1)->spec, CAIRN_WORKER, CLUSTER_WAIT_MS,
                       &one),
        cairn_job_open(own, "good", NULL, CAIRN_READER, CLUSTER_WAIT_MS, &one),
    };
    for (size_t i = 0; i < sizeof got / sizeof *got; i++) {
        if (got[i] == (i == 1 ? CAIRN_ERR_REFUSED : CAIRN_ERR_NOT_FOUND)) continue;
        fprintf(stderr, "%zu: %d: %s\n", i, (int)got[i], cairn_error());
        return 1;
    }
    one = trainer_ready(own, "mine", &TINY(100)->spec);
    push_round(one, (const float[100]) { 1 });
    cairn_job_close(one);
    const cairn_status dropped = cairn_job_drop(own, "mine", CAIRN_DROP_FORCE, CLUSTER_WAIT_MS);
    cairn_close(own);
    return dropped == CAIRN_OK ? 0 : 2;
}

TEST(another_user_of_the_host_neither_drops_nor_reads_nor_joins_a_job)
{
    int status;
    share_memory();
    start(2);
    open_to_all();
    const pid_t pid = fork(); // before there is a session, which no child has
    ck_assert_int_ge(pid, 0);
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        while (!shared->is_ready) poll(NULL, 0, 1);
        if (!cairn_scratch_be_nobody()) _exit(1);
        _exit(try_anothers());
    }
    join("good", TINY(ELEMS));
    shared->is_ready = true;
    ck_assert_int_eq(waitpid(pid, &status, 0), pid);
    ck_assert_msg(WIFEXITED(status) && WEXITSTATUS(status) == 0, "it ended with %d", status);
    train(3);
    says(0, "uid:0", "job show good");
    says(0, "made              by worker", "job show good");
}

SUITE(60, NULL, stop);

int main(void)
{
    if (cairn_scratch_has_nobody()) return suite_main();
    printf("skip: needs root, and folders that others may enter: nobody else is two users\n");
    return SUITE_SKIPPED;
}
