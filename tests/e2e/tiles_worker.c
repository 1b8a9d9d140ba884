#include "tests/e2e/tiles_worker.h"
#include "tests/support/good.h"

#include <inttypes.h>
#include <check.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "client/job.h"

/* What a rank has while it runs. */
struct trainer {
    struct tiles_worker *worker;
    cairn_job *job;
    struct cairn_box box[TILES_TENSORS];
    void *wire[TILES_TENSORS];                       /* owned: what the rank holds */
    void *gradient[TILES_MICROS_MAX][TILES_TENSORS]; /* owned, likewise */
};

static bool wrong(struct tiles_worker *w, const char *what)
{
    snprintf(w->error, sizeof w->error, "rank %u: %s: %s", w->rank, what, cairn_error());
    return false;
}

static bool holds(const struct trainer *t, int tensor)
{
    return tiles_box_elems(&t->box[tensor]) > 0;
}

static cairn_status fetch_all(struct trainer *t, struct cairn_version version)
{
    cairn_op *ops[TILES_TENSORS];
    int count = 0;
    cairn_status status = CAIRN_OK;
    for (int n = 0; n < TILES_TENSORS && status == CAIRN_OK; n++) {
        const struct cairn_mem mem = { .struct_size = sizeof mem,
                                       .ptr = t->wire[n],
                                       .dtype = tiles_tensors[n].wire };
        status = cairn_fetch(t->job, version, tiles_tensors[n].name, NULL, &t->box[n], &mem,
                             &ops[count]);
        if (status == CAIRN_OK) count++;
    }
    for (int i = 0; i < count; i++) {
        const cairn_status waited = cairn_wait(ops[i], TILES_WAIT_MS);
        if (status == CAIRN_OK) status = waited;
    }
    return status;
}

/* The box is said or left out by turns. */
static cairn_status push_micro(struct trainer *t, const struct cairn_round *round, uint32_t micro)
{
    const struct tiles_worker *w = t->worker;
    const uint64_t step = round->version.step;
    for (int i = 0; i < TILES_TENSORS; i++) {
        const int n = (i + (int)w->rank) % TILES_TENSORS;
        if (!tiles_touches(w->mesh, step, w->rank, micro, n)) continue;
        tiles_gradient(step, w->rank, micro, n, &t->box[n], t->wire[n], t->gradient[micro][n]);
        const struct cairn_mem mem = { .struct_size = sizeof mem,
                                       .ptr = t->gradient[micro][n],
                                       .dtype = tiles_push_dtype(w->rank, n) };
        const cairn_status status = cairn_push(t->job, round, micro, tiles_tensors[n].name,
                                               n % 2 == 0 ? NULL : &t->box[n], &mem, NULL);
        if (status != CAIRN_OK) return status;
    }
    return CAIRN_OK;
}

/* True in `died` if the rank is to die in the middle of this round. */
static cairn_status run_round(struct trainer *t, struct cairn_result *result, bool *died)
{
    struct tiles_worker *w = t->worker;
    struct cairn_round round = { .struct_size = sizeof round };
    cairn_status status = cairn_round_begin(t->job, TILES_WAIT_MS, &round);
    if (status == CAIRN_OK) status = fetch_all(t, round.version);
    if (status != CAIRN_OK) return status;
    const uint64_t step = round.version.step;
    const uint32_t micros = tiles_micros(step, w->rank);
    for (uint32_t m = 0; m < micros && status == CAIRN_OK; m++) {
        status = push_micro(t, &round, m);
        *died = status == CAIRN_OK && w->restart_at != 0 && step == w->restart_at;
        if (*died && w->by_signal) kill(getpid(), SIGKILL);
        if (*died) return CAIRN_OK;
        if (status == CAIRN_OK) status = cairn_micro_end(t->job, &round, m);
    }
    if (status != CAIRN_OK) return status;
    return cairn_commit(t->job, &round, tiles_weight(w->mesh, step, w->rank), NULL, 0,
                        TILES_WAIT_MS, result);
}

static void saw(struct tiles_run *run, uint64_t step)
{
    if (run == NULL) return;
    pthread_mutex_lock(&run->lock);
    if (step > run->step) run->step = step;
    pthread_cond_broadcast(&run->moved);
    pthread_mutex_unlock(&run->lock);
}

static bool train(struct trainer *t, bool *died)
{
    struct tiles_worker *w = t->worker;
    struct cairn_version at;
    if (cairn_version_wait(t->job, (struct cairn_version) { 0, 0 }, TILES_WAIT_MS, &at) != CAIRN_OK)
        return wrong(w, "version_wait");
    while (at.step < w->until_step) {
        struct cairn_result result = { .struct_size = sizeof result };
        const cairn_status status = run_round(t, &result, died);
        if (*died) return true;
        if (status == CAIRN_ERR_EPOCH_CHANGED) {
            w->void_rounds++;
            continue;
        }
        if (status != CAIRN_OK) return wrong(w, "a round");
        at = result.version;
        saw(w->run, at.step);
    }
    return true;
}

/* ---- initial state ---- */

static cairn_status put(struct trainer *t, int tensor, const struct cairn_box *box)
{
    const uint64_t elems = tiles_box_elems(box);
    float *values = malloc(elems * sizeof *values + 1);
    cairn_op *op;
    if (values == NULL) return CAIRN_ERR_NO_MEMORY;
    for (uint64_t k = 0; k < elems; k++)
        values[k] = tiles_initial(tensor, tiles_index(tensor, box, k));
    const struct cairn_mem mem = { .struct_size = sizeof mem, .ptr = values, .dtype = CAIRN_F32 };
    cairn_status status = cairn_put(t->job, tiles_tensors[tensor].name, "param", box, &mem, &op);
    if (status == CAIRN_OK) status = cairn_wait(op, TILES_WAIT_MS);
    free(values);
    return status;
}

static bool init_job(struct trainer *t)
{
    struct tiles_worker *w = t->worker;
    const struct tiles_mesh alone = { .tp = 1, .dp = 1 };
    for (int n = 0; n < TILES_TENSORS; n++) {
        const struct cairn_box whole = tiles_box(alone, n, 0);
        if (w->rank_0_puts ? w->rank != 0 : !holds(t, n)) continue;
        const cairn_status status = put(t, n, w->rank_0_puts ? &whole : &t->box[n]);
        if (status == CAIRN_ERR_EXISTS) break; // it has its state already
        if (status != CAIRN_OK) return wrong(w, tiles_tensors[n].name);
    }
    return cairn_init_done(t->job, NULL, TILES_WAIT_MS) == CAIRN_OK || wrong(w, "init_done");
}

size_t tiles_list(struct tiles_mesh mesh, uint32_t rank, struct cairn_tile out[TILES_TENSORS])
{
    size_t count = 0;
    for (int n = 0; n < TILES_TENSORS; n++) {
        if (tiles_tensors[n].cut == TILES_WHOLE) continue;
        out[count++] = (struct cairn_tile) { .struct_size = sizeof *out,
                                             .tensor = tiles_tensors[n].name,
                                             .box = tiles_box(mesh, n, rank) };
    }
    return count;
}

static bool declare(struct trainer *t)
{
    struct tiles_worker *w = t->worker;
    struct cairn_tile tiles[TILES_TENSORS];
    const size_t count = tiles_list(w->mesh, w->rank, tiles);
    return cairn_tiles(t->job, tiles, count, w->mesh.tp * w->mesh.dp, TILES_WAIT_MS) == CAIRN_OK ||
           wrong(w, "tiles");
}

/* ---- a rank ---- */

static bool attend(struct tiles_worker *w, cairn *session, bool *died)
{
    struct cairn_tensor tensors[TILES_TENSORS];
    const struct cairn_job_spec spec = tiles_spec(tensors, w->mesh, w->rank);
    struct trainer t = { .worker = w };
    if (cairn_job_open(session, TILES_JOB, &spec, CAIRN_WORKER, TILES_WAIT_MS, &t.job) != CAIRN_OK)
        return wrong(w, "job_open");
    for (int n = 0; n < TILES_TENSORS; n++) {
        t.box[n] = tiles_box(w->mesh, n, w->rank);
        const size_t bytes = tiles_box_elems(&t.box[n]) * sizeof(float) + 1;
        t.wire[n] = calloc(1, bytes);
        for (int m = 0; m < TILES_MICROS_MAX; m++) t.gradient[m][n] = calloc(1, bytes);
    }
    const bool good = declare(&t) && init_job(&t) && train(&t, died);
    cairn_job_close(t.job); // the buffers are ours again
    for (int n = 0; n < TILES_TENSORS; n++) {
        free(t.wire[n]);
        for (int m = 0; m < TILES_MICROS_MAX; m++) free(t.gradient[m][n]);
    }
    return good;
}

cairn *tiles_session(const char *endpoint, struct fabric_hub *hub)
{
    const struct cairn_opts opts = { .struct_size = sizeof opts, .endpoint = endpoint };
    cairn *session = NULL;
    good(client_open(&opts, hub, &session));
    return session;
}

void tiles_worker_run(struct tiles_worker *w)
{
    char name[32];
    bool died = true;
    snprintf(name, sizeof name, "rank-%u", w->rank);
    const struct cairn_opts opts = { .struct_size = sizeof opts,
                                     .endpoint = w->endpoint,
                                     .name = name };
    while (died) {
        cairn *session;
        died = false;
        if (client_open(&opts, w->hub, &session) != CAIRN_OK) {
            wrong(w, "open");
            return;
        }
        attend(w, session, &died);
        cairn_close(session);
        w->restart_at = 0;
    }
}

static void *worker_thread(void *arg)
{
    struct tiles_worker *w = arg;
    struct tiles_run *run = w->run;
    tiles_worker_run(w);
    pthread_mutex_lock(&run->lock);
    run->ended++;
    pthread_cond_broadcast(&run->moved);
    pthread_mutex_unlock(&run->lock);
    return NULL;
}

/* ---- all ranks ---- */

void tiles_run_start(struct tiles_run *run, const struct tiles_worker *pattern)
{
    memset(run, 0, sizeof *run);
    pthread_mutex_init(&run->lock, NULL);
    pthread_cond_init(&run->moved, NULL);
    run->worker_count = pattern->mesh.tp * pattern->mesh.dp;
    for (uint32_t i = 0; i < run->worker_count; i++) {
        run->worker[i] = *pattern;
        run->worker[i].rank = i;
        run->worker[i].run = run;
        if (i + 1 < run->worker_count) run->worker[i].restart_at = 0;
        ck_assert_int_eq(pthread_create(&run->thread[i], NULL, worker_thread, &run->worker[i]), 0);
    }
}

/* Bounded by the deadlines of the workers' own calls. */
void tiles_run_await(struct tiles_run *run, uint64_t step)
{
    pthread_mutex_lock(&run->lock);
    while (run->step < step && run->ended == 0) pthread_cond_wait(&run->moved, &run->lock);
    const uint64_t at = run->step;
    pthread_mutex_unlock(&run->lock);
    ck_assert_msg(at >= step, "a rank ended at step %" PRIu64, at);
}

void tiles_run_join(struct tiles_run *run)
{
    for (uint32_t i = 0; i < run->worker_count; i++) pthread_join(run->thread[i], NULL);
    for (uint32_t i = 0; i < run->worker_count; i++)
        ck_assert_msg(run->worker[i].error[0] == 0, "%s", run->worker[i].error);
    pthread_mutex_destroy(&run->lock);
    pthread_cond_destroy(&run->moved);
}
