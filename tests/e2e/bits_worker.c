#include "tests/e2e/bits_worker.h"

#include <inttypes.h>
#include <check.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "client/job.h"
#include "tests/support/scratch.h"

/* What a worker has while it runs. */
struct trainer {
    struct bits_worker *worker;
    cairn *session;
    cairn_job *job;
    void *wire[BITS_TENSORS];        /* owned */
    void *gradient[3][BITS_TENSORS]; /* owned, by micro-batch */
    uint64_t random;
};

static bool wrong(struct bits_worker *w, const char *what)
{
    snprintf(w->error, sizeof w->error, "worker %u: %s: %s", w->rank, what, cairn_error());
    return false;
}

/* The order to go through the tensors in, and a delay now and then, if it is to be shuffled. */
static void shuffle(struct trainer *t, int order[BITS_TENSORS])
{
    for (int i = 0; i < BITS_TENSORS; i++) order[i] = i;
    if (t->worker->shuffle == 0) return;
    for (int i = BITS_TENSORS - 1; i > 0; i--) {
        const int j = (int)(cairn_scratch_random(&t->random) % (uint64_t)(i + 1)), o = order[i];
        order[i] = order[j];
        order[j] = o;
    }
}

static void delay(struct trainer *t)
{
    if (t->worker->shuffle == 0) return;
    const uint64_t r = cairn_scratch_random(&t->random);
    const struct timespec pause = { .tv_nsec = (long)(r >> 8) % 2000000 };
    if (r % 4 == 0) nanosleep(&pause, NULL);
}

static cairn_status fetch_all(struct trainer *t, struct cairn_version version)
{
    cairn_op *ops[BITS_TENSORS];
    int order[BITS_TENSORS], count = 0;
    shuffle(t, order);
    cairn_status status = CAIRN_OK;
    for (int i = 0; i < BITS_TENSORS && status == CAIRN_OK; i++) {
        const struct bits_tensor *tensor = &bits_tensors[order[i]];
        const struct cairn_mem mem = { .struct_size = sizeof mem,
                                       .ptr = t->wire[order[i]],
                                       .dtype = tensor->wire };
        status = cairn_fetch(t->job, version, tensor->name, NULL, NULL, &mem, &ops[count]);
        if (status == CAIRN_OK) count++;
    }
    for (int i = 0; i < count; i++) {
        const cairn_status waited = cairn_wait(ops[i], BITS_WAIT_MS);
        if (status == CAIRN_OK) status = waited;
    }
    return status;
}

/* In mid-round: some of the tensors are pushed, and nothing is committed. */
static bool dies_here(const struct trainer *t, const struct cairn_round *round, int pushed)
{
    return t->worker->die_at != 0 && round->version.step == t->worker->die_at && pushed == 4;
}

static cairn_status push_micro(struct trainer *t, const struct cairn_round *round, uint32_t micro)
{
    const uint64_t step = round->version.step;
    const bool with_nan = step == BITS_NAN_STEP && t->worker->skipped == 0 && round->rank == 1 &&
                          micro == 0;
    int order[BITS_TENSORS];
    shuffle(t, order);
    for (int i = 0; i < BITS_TENSORS; i++) {
        const int n = order[i];
        if (dies_here(t, round, i)) kill(getpid(), SIGKILL);
        if (!bits_touches(step, round->rank, micro, n)) continue;
        delay(t);
        bits_gradient(step, round->rank, micro, n, round->loss_scale, with_nan && n == 0,
                      t->wire[n], t->gradient[micro][n]);
        const struct cairn_mem mem = { .struct_size = sizeof mem,
                                       .ptr = t->gradient[micro][n],
                                       .dtype = bits_push_dtype(round->rank, n) };
        const cairn_status status = cairn_push(t->job, round, micro, bits_tensors[n].name, NULL,
                                               &mem, NULL);
        if (status != CAIRN_OK) return status;
    }
    return cairn_micro_end(t->job, round, micro);
}

static cairn_status run_round(struct trainer *t, struct cairn_result *result)
{
    struct cairn_round round = { .struct_size = sizeof round };
    cairn_status status = cairn_round_begin(t->job, BITS_WAIT_MS, &round);
    if (status == CAIRN_OK) status = fetch_all(t, round.version);
    if (status != CAIRN_OK) return status;
    const uint32_t micros = bits_micros(round.version.step, round.rank);
    for (uint32_t m = 0; m < micros && status == CAIRN_OK; m++) status = push_micro(t, &round, m);
    if (status != CAIRN_OK) return status;
    return cairn_commit(t->job, &round, bits_weight(round.version.step, round.rank), NULL, 0,
                        BITS_WAIT_MS, result);
}

static bool train(struct trainer *t)
{
    struct bits_worker *w = t->worker;
    struct cairn_version at;
    if (cairn_version_wait(t->job, (struct cairn_version) { 0, 0 }, BITS_WAIT_MS, &at) != CAIRN_OK)
        return wrong(w, "version_wait");
    while (at.step < w->until_step) {
        struct cairn_result result = { .struct_size = sizeof result };
        const cairn_status status = run_round(t, &result);
        if (status == CAIRN_ERR_EPOCH_CHANGED) {
            w->void_rounds++;
            continue;
        }
        if (status != CAIRN_OK) return wrong(w, "a round");
        if (!result.applied) w->skipped++;
        at = result.version;
        if (w->on_step != NULL) w->on_step(w->context, at.step);
    }
    return true;
}

/* All by rank 0; none if the job has its state already. */
static bool init_job(struct trainer *t)
{
    struct bits_worker *w = t->worker;
    for (int n = 0; n < BITS_TENSORS && w->rank == 0; n++) {
        const uint64_t elems = bits_elems(n);
        float *values = malloc(elems * sizeof *values + 1);
        cairn_op *op;
        if (values == NULL) return wrong(w, "memory");
        for (uint64_t i = 0; i < elems; i++) values[i] = bits_initial(n, i);
        const struct cairn_mem mem = { .struct_size = sizeof mem,
                                       .ptr = values,
                                       .dtype = CAIRN_F32 };
        cairn_status status = cairn_put(t->job, bits_tensors[n].name, "param", NULL, &mem, &op);
        const bool has_state = status == CAIRN_ERR_EXISTS;
        if (status == CAIRN_OK) status = cairn_wait(op, BITS_WAIT_MS);
        free(values);
        if (has_state) break;
        if (status != CAIRN_OK) return wrong(w, bits_tensors[n].name);
    }
    return cairn_init_done(t->job, NULL, BITS_WAIT_MS) == CAIRN_OK || wrong(w, "init_done");
}

static void *take_memory(const struct trainer *t, size_t bytes)
{
    void *memory = NULL;
    if (!t->worker->allocated) return calloc(1, bytes);
    return cairn_alloc(t->session, bytes, 0, &memory) == CAIRN_OK ? memory : NULL;
}

static void give_memory(const struct trainer *t, void *memory)
{
    if (!t->worker->allocated)
        free(memory);
    else if (cairn_free(t->session, memory) != CAIRN_OK && t->worker->error[0] == 0)
        wrong(t->worker, "a gradient is still on loan");
}

static bool train_with(struct bits_worker *w, cairn *session)
{
    struct cairn_tensor tensors[BITS_TENSORS];
    struct cairn_job_spec spec = bits_spec(tensors, w->rank, w->window);
    spec.offload_fraction = w->offload_fraction;
    struct trainer t = { .worker = w, .session = session, .random = w->shuffle * 2 + w->rank };
    if (cairn_job_open(session, BITS_JOB, &spec, CAIRN_WORKER, BITS_WAIT_MS, &t.job) != CAIRN_OK)
        return wrong(w, "job_open");
    for (int n = 0; n < BITS_TENSORS; n++) {
        t.wire[n] = calloc(bits_elems(n) + 1, sizeof(float));
        for (int m = 0; m < 3; m++)
            t.gradient[m][n] = take_memory(&t, (bits_elems(n) + 1) * sizeof(float));
    }
    bool good = init_job(&t) && train(&t);
    cairn_job_close(t.job); // the buffers are ours again
    for (int n = 0; n < BITS_TENSORS; n++) {
        free(t.wire[n]);
        for (int m = 0; m < 3; m++) give_memory(&t, t.gradient[m][n]);
    }
    if (w->error[0] != 0) good = false;
    return good;
}

bool bits_worker_run(struct bits_worker *w)
{
    char name[32];
    snprintf(name, sizeof name, "worker-%u", w->rank);
    const struct cairn_opts opts = { .struct_size = sizeof opts,
                                     .endpoint = w->endpoint,
                                     .name = name };
    cairn *session;
    w->error[0] = 0;
    if (client_open(&opts, w->hub, &session) != CAIRN_OK) return wrong(w, "open");
    const bool good = train_with(w, session);
    cairn_close(session);
    return good;
}

/* ---- both as threads ---- */

static void on_step(void *context, uint64_t step)
{
    struct bits_run *run = context;
    pthread_mutex_lock(&run->lock);
    if (step > run->step) run->step = step;
    pthread_cond_broadcast(&run->moved);
    pthread_mutex_unlock(&run->lock);
}

static void *worker_thread(void *arg)
{
    struct bits_worker *w = arg;
    struct bits_run *run = w->context;
    bits_worker_run(w);
    pthread_mutex_lock(&run->lock);
    run->ended++;
    pthread_cond_broadcast(&run->moved);
    pthread_mutex_unlock(&run->lock);
    return NULL;
}

void bits_run_start(struct bits_run *run, const struct bits_worker *pattern, uint32_t worker_count)
{
    memset(run, 0, sizeof *run);
    pthread_mutex_init(&run->lock, NULL);
    pthread_cond_init(&run->moved, NULL);
    run->worker_count = worker_count;
    for (uint32_t i = 0; i < worker_count; i++) {
        run->worker[i] = *pattern;
        run->worker[i].rank = i;
        run->worker[i].on_step = on_step;
        run->worker[i].context = run;
        ck_assert_int_eq(pthread_create(&run->thread[i], NULL, worker_thread, &run->worker[i]), 0);
    }
}

/* Bounded by the deadlines of the workers' own calls. */
void bits_run_await(struct bits_run *run, uint64_t step)
{
    pthread_mutex_lock(&run->lock);
    while (run->step < step && run->ended == 0) pthread_cond_wait(&run->moved, &run->lock);
    const uint64_t at = run->step;
    pthread_mutex_unlock(&run->lock);
    ck_assert_msg(at >= step, "the workers ended at step %" PRIu64 ": %s%s", at,
                  run->worker[0].error, run->worker[1].error);
}

void bits_run_join(struct bits_run *run)
{
    for (uint32_t i = 0; i < run->worker_count; i++) pthread_join(run->thread[i], NULL);
    for (uint32_t i = 0; i < run->worker_count; i++)
        ck_assert_msg(run->worker[i].error[0] == 0, "%s", run->worker[i].error);
    pthread_mutex_destroy(&run->lock);
    pthread_cond_destroy(&run->moved);
}
