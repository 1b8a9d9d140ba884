#include "tests/e2e/overload_worker.h"

#include <cairn.h>
#include <check.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

enum { TENSOR_ELEMS = OVERLOAD_ROWS * 1024, TENSOR_BYTES = TENSOR_ELEMS * 4 };

/* In a child that is no test: what fails is said in the output of the test. */
#define good(call)                                                                        \
    do {                                                                                  \
        const cairn_status good_status = (call);                                          \
        if (good_status != CAIRN_OK) {                                                    \
            fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #call, cairn_error()); \
            _exit(1);                                                                     \
        }                                                                                 \
    } while (0)

struct open {
    cairn *session;
    cairn_job *job;
    char names[OVERLOAD_TENSORS][8];
};

static void open_job(struct open *open, const struct overload_plan *plan, cairn_role role)
{
    struct cairn_tensor tensors[OVERLOAD_TENSORS];
    const struct cairn_opts opts = { .struct_size = sizeof opts,
                                     .endpoint = plan->cluster->address,
                                     .fabric = plan->fabric };
    const struct cairn_group group = CAIRN_GROUP_INIT;
    for (uint32_t t = 0; t < plan->tensors; t++) {
        snprintf(open->names[t], sizeof open->names[t], "t%02u", t % 100);
        tensors[t] = (struct cairn_tensor) { .struct_size = sizeof tensors[t],
                                             .name = open->names[t],
                                             .rank = 2,
                                             .shape = { OVERLOAD_ROWS, 1024 },
                                             .init.kind = CAIRN_INIT_ONES };
    }
    const struct cairn_job_spec spec = { .struct_size = sizeof spec,
                                         .tensors = tensors,
                                         .tensor_count = plan->tensors,
                                         .groups = &group,
                                         .group_count = 1,
                                         .rank = plan->rank,
                                         .workers_min = plan->world,
                                         .chunk_leaves = OVERLOAD_CHUNK_LEAVES,
                                         .window = OVERLOAD_WINDOW,
                                         .micro_batches = plan->micros };
    good(cairn_open(&opts, &open->session));
    good(cairn_job_open(open->session, plan->job, role == CAIRN_WORKER ? &spec : NULL, role,
                        CLUSTER_WAIT_MS, &open->job));
    if (role == CAIRN_WORKER) good(cairn_init_done(open->job, NULL, CLUSTER_WAIT_MS));
}

static void say(const struct overload_plan *plan, char word)
{
    if (write(plan->said_fd, &word, 1) != 1) _exit(1);
}

/* False: there is none any more. */
static bool next_order(const struct overload_plan *plan)
{
    char word;
    return read(plan->orders_fd, &word, 1) == 1 && word == 'g';
}

static struct cairn_version step(struct open *open, const struct overload_plan *plan, void *grads)
{
    struct cairn_round round = { .struct_size = sizeof round };
    struct cairn_result result = { .struct_size = sizeof result };
    good(cairn_round_begin(open->job, CLUSTER_WAIT_MS, &round));
    for (uint32_t micro = 0; micro < plan->micros; micro++) {
        for (uint32_t t = 0; t < plan->tensors; t++) {
            const struct cairn_mem mem = { .struct_size = sizeof mem,
                                           .ptr = (char *)grads + (size_t)t * TENSOR_BYTES,
                                           .dtype = CAIRN_F32 };
            good(cairn_push(open->job, &round, micro, open->names[t], NULL, &mem, NULL));
        }
        good(cairn_micro_end(open->job, &round, micro));
    }
    good(cairn_commit(open->job, &round, 1, NULL, 0, CLUSTER_WAIT_MS, &result));
    return result.version;
}

static void *take_grads(struct open *open, const struct overload_plan *plan, bool allocated)
{
    const size_t bytes = (size_t)plan->tensors * TENSOR_BYTES;
    void *grads = NULL;
    if (allocated)
        good(cairn_alloc(open->session, bytes, 0, &grads));
    else
        grads = malloc(bytes);
    if (grads == NULL) _exit(1);
    memset(grads, 1, bytes);
    return grads;
}

int overload_train(const struct overload_plan *plan)
{
    static struct open open;
    open_job(&open, plan, CAIRN_WORKER);
    const bool allocated = plan->rank % 2 == 0;
    void *grads = take_grads(&open, plan, allocated);
    say(plan, 'r');
    while (next_order(plan)) {
        for (int i = 0; i < plan->steps; i++) (void)step(&open, plan, grads);
        say(plan, 's');
    }
    cairn_close(open.session);
    if (!allocated) free(grads);
    return 0;
}

/* ---- who reads ---- */

enum { READS = 4 * OVERLOAD_TENSORS };

static void begin_fetch(struct open *open, struct cairn_version version, void *to, int i,
                        cairn_op **op_out)
{
    const struct cairn_mem mem = { .struct_size = sizeof mem,
                                   .ptr = (char *)to + (size_t)i * TENSOR_BYTES,
                                   .dtype = CAIRN_F32 };
    good(cairn_fetch(open->job, version, open->names[i % OVERLOAD_TENSORS], NULL, NULL, &mem,
                     op_out));
}

/* A version that training left behind while we were stopped is gone, and said to be. */
static void end_fetch(cairn_op *op)
{
    const cairn_status status = cairn_wait(op, CLUSTER_WAIT_MS);
    if (status == CAIRN_OK || status == CAIRN_ERR_VERSION_GONE) return;
    fprintf(stderr, "a fetch: %s\n", cairn_error());
    _exit(1);
}

int overload_read(const struct overload_plan *plan)
{
    static struct open open;
    cairn_op *ops[READS];
    struct pollfd order = { .fd = plan->orders_fd, .events = POLLIN };
    char *to = malloc((size_t)READS * TENSOR_BYTES);
    bool said = false;
    if (to == NULL) return 1;
    open_job(&open, plan, CAIRN_READER);
    while (poll(&order, 1, 0) == 0) {
        struct cairn_version newest;
        good(cairn_version_wait(open.job, (struct cairn_version) { 0 }, CLUSTER_WAIT_MS, &newest));
        for (int i = 0; i < READS; i++) begin_fetch(&open, newest, to, i, &ops[i]);
        if (!said) say(plan, 'f');
        said = true;
        for (int i = 0; i < READS; i++) end_fetch(ops[i]);
    }
    cairn_close(open.session);
    free(to);
    return 0;
}

static void map_tensor(struct open *open, struct cairn_version version, uint32_t t,
                       struct cairn_view *view)
{
    size_t count = 1;
    cairn_op *op;
    view->struct_size = sizeof *view;
    good(cairn_map(open->job, version, open->names[t], view, &count, &op));
    good(cairn_wait(op, CLUSTER_WAIT_MS));
}

int overload_hold(const struct overload_plan *plan)
{
    static struct open open;
    struct cairn_view views[OVERLOAD_TENSORS];
    double sum = 0;
    open_job(&open, plan, CAIRN_WORKER);
    void *grads = take_grads(&open, plan, true);
    const struct cairn_version version = step(&open, plan, grads);
    for (uint32_t t = 0; t < plan->tensors; t++) map_tensor(&open, version, t, &views[t]);
    say(plan, 'm');
    (void)next_order(plan);
    for (uint32_t t = 0; t < plan->tensors; t++) {
        for (int i = 0; i < TENSOR_ELEMS; i++) sum += ((const float *)views[t].ptr)[i];
        good(cairn_unmap(open.job, &views[t], NULL));
    }
    cairn_close(open.session);
    return sum > 0 ? 0 : 1;
}

int overload_visit(const struct overload_plan *plan)
{
    static struct open open;
    struct cairn_view view;
    cairn_op *fetch;
    open_job(&open, plan, CAIRN_WORKER);
    void *grads = take_grads(&open, plan, plan->rank % 2 == 0);
    const struct cairn_version version = step(&open, plan, grads);
    begin_fetch(&open, version, grads, 0, &fetch);
    good(cairn_wait(fetch, CLUSTER_WAIT_MS));
    map_tensor(&open, version, 1, &view);
    if (plan->rank % 2 == 1) _exit(0);
    cairn_close(open.session);
    return 0;
}

/* ---- processes ---- */

void overload_start(struct overload_child *child, const struct overload_plan *plan,
                    int (*run)(const struct overload_plan *plan))
{
    int orders[2], said[2];
    const pid_t parent = getpid();
    ck_assert(pipe2(orders, O_CLOEXEC) == 0 && pipe2(said, O_CLOEXEC) == 0);
    child->pid = fork();
    ck_assert_int_ge(child->pid, 0);
    if (child->pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (getppid() != parent) _exit(1);
        struct overload_plan its = *plan;
        close(orders[1]);
        close(said[0]);
        its.orders_fd = orders[0];
        its.said_fd = said[1];
        _exit(run(&its));
    }
    close(orders[0]);
    close(said[1]);
    child->orders_fd = orders[1];
    child->said_fd = said[0];
}

void overload_order(const struct overload_child *child)
{
    ck_assert_int_eq(write(child->orders_fd, "g", 1), 1);
}

bool overload_said(const struct overload_child *child, char word, int timeout_ms)
{
    struct pollfd said = { .fd = child->said_fd, .events = POLLIN };
    char its;
    if (poll(&said, 1, timeout_ms) != 1) return false;
    ck_assert_msg(read(child->said_fd, &its, 1) == 1, "a process ended; see its error above");
    ck_assert_int_eq(its, word);
    return true;
}

void overload_end(struct overload_child *child)
{
    (void)!write(child->orders_fd, "e", 1); // other children have this end, too
    close(child->orders_fd);
    ck_assert_int_eq(cluster_wait(child->pid, CLUSTER_WAIT_MS), 0);
    close(child->said_fd);
}
