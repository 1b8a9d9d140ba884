#include "tests/e2e/crew.h"

#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "client/job.h"
#include "tests/support/scratch.h"
#include "tests/support/suite.h"
#include "tests/support/trainer.h"

/* What a worker has while it runs. */
struct hand {
    struct crew_worker *worker;
    const struct crew_job *job;
    cairn *session;
    cairn_job *open;
    struct cairn_box box[CREW_TENSORS_MAX];
    void *wire[CREW_TENSORS_MAX];                      /* owned: what the rank holds */
    void *gradient[CREW_MICROS_MAX][CREW_TENSORS_MAX]; /* owned, likewise */
    uint64_t random;
    bool has_died; /* in the round that it is in: it leaves */
};

static bool wrong(struct crew_worker *w, const char *what)
{
    snprintf(w->error, sizeof w->error, "rank %u: %s: %s", w->rank, what, cairn_error());
    return false;
}

/* Without tiles a call says no box: its tensors are whole. */
static const struct cairn_box *box_of(const struct hand *h, int tensor)
{
    return h->job->workers != 0 ? NULL : &h->box[tensor];
}

/* The order to go through the tensors in. */
static void shuffle(struct hand *h, int order[CREW_TENSORS_MAX])
{
    const int count = h->job->tensor_count;
    for (int i = 0; i < count; i++) order[i] = (i + (int)h->worker->rank) % count;
    if (h->worker->crew.shuffle == 0) return;
    for (int i = count - 1; i > 0; i--) {
        const int j = (int)(cairn_scratch_random(&h->random) % (uint64_t)(i + 1)), o = order[i];
        order[i] = order[j];
        order[j] = o;
    }
}

static void delay(struct hand *h)
{
    if (h->worker->crew.shuffle == 0) return;
    const uint64_t r = cairn_scratch_random(&h->random);
    const struct timespec pause = { .tv_nsec = (long)(r >> 8) % 2000000 };
    if (r % 4 == 0) nanosleep(&pause, NULL);
}

static cairn_status fetch_all(struct hand *h, struct cairn_version version)
{
    cairn_op *ops[CREW_TENSORS_MAX];
    int order[CREW_TENSORS_MAX], count = 0;
    cairn_status status = CAIRN_OK;
    shuffle(h, order);
    for (int i = 0; i < h->job->tensor_count && status == CAIRN_OK; i++) {
        const struct crew_tensor *tensor = &h->job->tensors[order[i]];
        const struct cairn_mem mem = trainer_mem(h->wire[order[i]], tensor->wire);
        status = cairn_fetch(h->open, version, tensor->name, NULL, box_of(h, order[i]), &mem,
                             &ops[count]);
        if (status == CAIRN_OK) count++;
    }
    for (int i = 0; i < count; i++) {
        const cairn_status waited = cairn_wait(ops[i], CREW_WAIT_MS);
        if (status == CAIRN_OK) status = waited;
    }
    return status;
}

/* In mid-round: some of the tensors are pushed, and nothing is committed. */
static void die(struct hand *h, const struct cairn_round *round, int turn)
{
    const struct crew *crew = &h->worker->crew;
    if (crew->die_at == 0 || round->version.step != crew->die_at || turn != 4) return;
    if (!crew->comes_again) kill(getpid(), SIGKILL);
    h->has_died = true;
}

/* A box is said or left out by turns. */
static cairn_status push_micro(struct hand *h, const struct cairn_round *round, uint32_t micro)
{
    const struct crew_worker *w = h->worker;
    struct crew_gradient of = { .job = h->job,
                                .step = round->version.step,
                                .rank = round->rank,
                                .micro = micro,
                                .loss_scale = round->loss_scale };
    of.with_nan = of.step == h->job->nan_step && w->skipped == 0 && of.rank == 1 && micro == 0;
    int order[CREW_TENSORS_MAX];
    shuffle(h, order);
    for (int i = 0; i < h->job->tensor_count; i++) {
        const int n = of.tensor = order[i];
        die(h, round, i);
        if (h->has_died) return CAIRN_OK;
        if (!crew_touches(h->job, w->crew.mesh, of.step, of.rank, micro, n)) continue;
        delay(h);
        of.box = &h->box[n];
        crew_gradient(&of, h->wire[n], h->gradient[micro][n]);
        const struct cairn_mem mem = trainer_mem(h->gradient[micro][n],
                                                 crew_push_dtype(of.rank, n));
        const cairn_status status = cairn_push(h->open, round, micro, h->job->tensors[n].name,
                                               n % 2 == 0 ? NULL : box_of(h, n), &mem, NULL);
        if (status != CAIRN_OK) return status;
    }
    return cairn_micro_end(h->open, round, micro);
}

static cairn_status run_round(struct hand *h, struct cairn_result *result)
{
    struct cairn_round round = { .struct_size = sizeof round };
    cairn_status status = cairn_round_begin(h->open, CREW_WAIT_MS, &round);
    if (status == CAIRN_OK) status = fetch_all(h, round.version);
    if (status != CAIRN_OK) return status;
    const uint32_t micros = h->job->micros(round.version.step, round.rank);
    for (uint32_t m = 0; m < micros && status == CAIRN_OK && !h->has_died; m++)
        status = push_micro(h, &round, m);
    if (status != CAIRN_OK || h->has_died) return status;
    const uint64_t weight = h->job->weight(h->worker->crew.mesh, round.version.step, round.rank);
    return cairn_commit(h->open, &round, weight, NULL, 0, CREW_WAIT_MS, result);
}

static void saw(struct crew_run *run, uint64_t step)
{
    if (run == NULL) return;
    pthread_mutex_lock(&run->lock);
    if (step > run->step) run->step = step;
    pthread_cond_broadcast(&run->moved);
    pthread_mutex_unlock(&run->lock);
}

static bool train(struct hand *h)
{
    struct crew_worker *w = h->worker;
    struct cairn_version at = { 0, 0 };
    if (cairn_version_wait(h->open, at, CREW_WAIT_MS, &at) != CAIRN_OK)
        return wrong(w, "version_wait");
    while (at.step < w->crew.until_step) {
        struct cairn_result result = { .struct_size = sizeof result };
        const cairn_status status = run_round(h, &result);
        if (h->has_died) return true;
        if (status == CAIRN_ERR_EPOCH_CHANGED) {
            w->void_rounds++;
            continue;
        }
        if (status != CAIRN_OK) return wrong(w, "a round");
        if (!result.applied) w->skipped++;
        at = result.version;
        saw(w->run, at.step);
    }
    return true;
}

/* ---- initial state ---- */

static cairn_status put(struct hand *h, int tensor, const struct cairn_box *box)
{
    const uint64_t elems = crew_box_elems(box);
    float *values = reference_zeros(elems);
    cairn_op *op;
    for (uint64_t k = 0; k < elems; k++)
        values[k] = crew_initial(tensor, crew_index(h->job, tensor, box, k));
    const struct cairn_mem mem = trainer_mem(values, CAIRN_F32);
    cairn_status status = cairn_put(h->open, h->job->tensors[tensor].name, "param",
                                    h->job->workers != 0 ? NULL : box, &mem, &op);
    if (status == CAIRN_OK) status = cairn_wait(op, CREW_WAIT_MS);
    free(values);
    return status;
}

/* None if the job has its state already. */
static bool init_job(struct hand *h)
{
    struct crew_worker *w = h->worker;
    const struct crew_mesh alone = { .tp = 1, .dp = 1 };
    const bool rank_0_puts = w->crew.rank_0_puts || h->job->workers != 0;
    for (int n = 0; n < h->job->tensor_count; n++) {
        const struct cairn_box whole = crew_box(h->job, alone, n, 0);
        if (rank_0_puts ? w->rank != 0 : crew_box_elems(&h->box[n]) == 0) continue;
        const cairn_status status = put(h, n, rank_0_puts ? &whole : &h->box[n]);
        if (status == CAIRN_ERR_EXISTS) break;
        if (status != CAIRN_OK) return wrong(w, h->job->tensors[n].name);
    }
    return cairn_init_done(h->open, NULL, CREW_WAIT_MS) == CAIRN_OK || wrong(w, "init_done");
}

/* Replicated tensors are not in the list, which ascends by tensor. */
static bool declare(struct hand *h)
{
    struct crew_worker *w = h->worker;
    struct cairn_tile tiles[CREW_TENSORS_MAX];
    size_t count = 0;
    if (h->job->workers != 0) return true;
    for (int n = 0; n < h->job->tensor_count; n++) {
        if (h->job->tensors[n].cut == CREW_WHOLE) continue;
        tiles[count++] = (struct cairn_tile) { .struct_size = sizeof *tiles,
                                               .tensor = h->job->tensors[n].name,
                                               .box = h->box[n] };
    }
    return cairn_tiles(h->open, tiles, count, crew_world(h->job, w->crew.mesh), CREW_WAIT_MS) ==
               CAIRN_OK ||
           wrong(w, "tiles");
}

/* ---- a worker ---- */

static void *take_memory(const struct hand *h, size_t bytes)
{
    void *memory = NULL;
    if (!h->worker->crew.allocated) return calloc(1, bytes);
    return cairn_alloc(h->session, bytes, 0, &memory) == CAIRN_OK ? memory : NULL;
}

static void give_memory(const struct hand *h, void *memory)
{
    if (!h->worker->crew.allocated)
        free(memory);
    else if (cairn_free(h->session, memory) != CAIRN_OK && h->worker->error[0] == 0)
        wrong(h->worker, "a gradient is still on loan");
}

/* True: it died, and has to come again. */
static bool attend(struct crew_worker *w, cairn *session)
{
    const struct crew_job *job = w->crew.job;
    struct cairn_tensor tensors[CREW_TENSORS_MAX];
    struct cairn_job_spec spec = crew_spec(job, tensors, w->crew.mesh, w->rank);
    spec.offload_fraction = w->crew.offload_fraction;
    spec.window = w->crew.window;
    struct hand h = { .worker = w, .job = job, .session = session };
    h.random = w->crew.shuffle * 2 + w->rank;
    if (cairn_job_open(session, job->name, &spec, CAIRN_WORKER, CREW_WAIT_MS, &h.open) !=
        CAIRN_OK) {
        wrong(w, "job_open");
        return false;
    }
    for (int n = 0; n < job->tensor_count; n++) {
        h.box[n] = crew_box(job, w->crew.mesh, n, w->rank);
        const size_t bytes = (crew_box_elems(&h.box[n]) + 1) * sizeof(float);
        h.wire[n] = calloc(1, bytes);
        for (int m = 0; m < CREW_MICROS_MAX; m++) h.gradient[m][n] = take_memory(&h, bytes);
    }
    (void)(declare(&h) && init_job(&h) && train(&h));
    cairn_job_close(h.open); // the buffers are ours again
    for (int n = 0; n < job->tensor_count; n++) {
        free(h.wire[n]);
        for (int m = 0; m < CREW_MICROS_MAX; m++) give_memory(&h, h.gradient[m][n]);
    }
    return h.has_died;
}

/* Until it has ended, well or with `error` set. Any thread; Check is not called. */
static void run_worker(struct crew_worker *w)
{
    char name[32];
    snprintf(name, sizeof name, "worker-%u", w->rank);
    const struct cairn_opts opts = { .struct_size = sizeof opts,
                                     .endpoint = w->crew.endpoint,
                                     .name = name };
    for (bool comes = true; comes; w->crew.die_at = 0) {
        cairn *session;
        if (client_open(&opts, w->crew.hub, &session) != CAIRN_OK) {
            wrong(w, "open");
            return;
        }
        comes = attend(w, session);
        cairn_close(session);
    }
}

/* ---- all of them ---- */

static void *worker_thread(void *arg)
{
    struct crew_worker *w = arg;
    struct crew_run *run = w->run;
    run_worker(w);
    pthread_mutex_lock(&run->lock);
    run->ended++;
    pthread_cond_broadcast(&run->moved);
    pthread_mutex_unlock(&run->lock);
    return NULL;
}

void crew_start(struct crew_run *run, const struct crew *crew)
{
    memset(run, 0, sizeof *run);
    pthread_mutex_init(&run->lock, NULL);
    pthread_cond_init(&run->moved, NULL);
    run->worker_count = crew_world(crew->job, crew->mesh);
    for (uint32_t i = 0; i < run->worker_count; i++) {
        run->worker[i] = (struct crew_worker) { .crew = *crew, .rank = i, .run = run };
        if (i + 1 < run->worker_count) run->worker[i].crew.die_at = 0;
        ck_assert_int_eq(pthread_create(&run->thread[i], NULL, worker_thread, &run->worker[i]), 0);
    }
}

/* Bounded by the deadlines of the workers' own calls. */
void crew_await(struct crew_run *run, uint64_t step)
{
    pthread_mutex_lock(&run->lock);
    while (run->step < step && run->ended == 0) pthread_cond_wait(&run->moved, &run->lock);
    const uint64_t at = run->step;
    pthread_mutex_unlock(&run->lock);
    ck_assert_msg(at >= step, "the workers ended at step %" PRIu64 ": %s%s", at,
                  run->worker[0].error, run->worker[1].error);
}

void crew_join(struct crew_run *run)
{
    for (uint32_t i = 0; i < run->worker_count; i++) pthread_join(run->thread[i], NULL);
    for (uint32_t i = 0; i < run->worker_count; i++)
        ck_assert_msg(run->worker[i].error[0] == 0, "%s", run->worker[i].error);
    pthread_mutex_destroy(&run->lock);
    pthread_cond_destroy(&run->moved);
}

void crew_train(const struct crew *crew)
{
    struct crew_run run;
    crew_start(&run, crew);
    crew_join(&run);
}

void crew_train_quietly(const struct crew *crew, uint32_t skipped)
{
    struct crew_run run;
    crew_start(&run, crew);
    crew_join(&run);
    for (uint32_t i = 0; i < run.worker_count; i++) {
        ck_assert_uint_eq(run.worker[i].void_rounds, 0);
        ck_assert_uint_eq(run.worker[i].skipped, skipped);
    }
}

/* ---- as processes: `PROGRAM --worker ENDPOINT RANK DIE_AT` ---- */

static pid_t spawn(const struct cluster *cluster, uint32_t rank, uint64_t die_at)
{
    char log[32];
    snprintf(log, sizeof log, "worker-%u.log", rank);
    return cluster_run(cluster, NULL, log, "self --worker %s %d %d", cluster->address, (int)rank,
                       (int)die_at);
}

void crew_kill_in_mid_round(const struct cluster *cluster, const struct crew *crew, uint32_t rank,
                            uint64_t step)
{
    const uint32_t count = crew_world(crew->job, crew->mesh);
    pid_t workers[CREW_RANKS_MAX] = { 0 };
    for (uint32_t r = 0; r < count; r++) workers[r] = spawn(cluster, r, r == rank ? step : 0);
    ck_assert_int_eq(cluster_wait(workers[rank], CLUSTER_WAIT_MS), 128 + SIGKILL);
    workers[rank] = spawn(cluster, rank, 0);
    for (uint32_t r = 0; r < count; r++)
        ck_assert_msg(cluster_wait(workers[r], CLUSTER_WAIT_MS) == 0, "see %s", cluster->folder);
}

int crew_main(int argc, char **argv, struct crew crew)
{
    if (argc != 5 || strcmp(argv[1], "--worker") != 0) return suite_main();
    crew.endpoint = argv[2];
    crew.die_at = strtoull(argv[4], NULL, 10);
    struct crew_worker worker = { .crew = crew, .rank = (uint32_t)atoi(argv[3]) };
    run_worker(&worker);
    if (worker.error[0] == 0) return 0;
    fprintf(stderr, "%s\n", worker.error);
    return 1;
}

cairn *crew_session(const char *endpoint, struct fabric_hub *hub)
{
    const struct cairn_opts opts = { .struct_size = sizeof opts, .endpoint = endpoint };
    cairn *session = NULL;
    good(client_open(&opts, hub, &session));
    return session;
}

/* ---- roots ---- */

void crew_root(const char *endpoint, const struct crew_job *job, char hex_out[65])
{
    struct cluster at = { .folder = "" };
    snprintf(at.address, sizeof at.address, "%s", endpoint);
    trainer_digest(&at, job->name, hex_out);
}

void crew_check_root(const char *endpoint, const struct crew_job *job, const char *root)
{
    char its[65];
    crew_root(endpoint, job, its);
    ck_assert_str_eq(its, root);
}

void bits_root_at(uint64_t step, char hex_out[65])
{
    struct crew_reference ref;
    crew_reference_open(&ref, &bits_job, (struct crew_mesh) { 0 });
    crew_reference_run(&ref, step);
    crew_reference_root(&ref, hex_out);
    crew_reference_close(&ref);
}

void bits_check_root_at(const char *endpoint, uint64_t step)
{
    struct crew_reference ref;
    char digest[65], before[65], behind[65];
    crew_root(endpoint, &bits_job, digest);
    crew_reference_open(&ref, &bits_job, (struct crew_mesh) { 0 });
    crew_reference_run(&ref, step);
    crew_reference_root(&ref, before);
    if (step == BITS_NAN_STEP) crew_reference_skip(&ref);
    crew_reference_root(&ref, behind);
    crew_reference_close(&ref);
    ck_assert_msg(strcmp(digest, before) == 0 || strcmp(digest, behind) == 0,
                  "step %" PRIu64 ": %s, not %s or %s", step, digest, before, behind);
}

/* ---- planes ---- */

/* What is read: a box of a plane of a tensor. */
struct look {
    const struct crew_job *of;
    cairn_job *job;
    struct cairn_version version;
    int tensor, plane;
    const uint8_t *expected; /* [elements of the tensor] */
};

static cairn_dtype dtype_of(const struct look *r)
{
    return r->plane == CAIRN_PLANE_WIRE ? r->of->tensors[r->tensor].wire : CAIRN_F32;
}

/* box NULL: the whole tensor. */
static void *fetch(const struct look *r, const struct cairn_box *box, uint64_t elems)
{
    void *got = malloc(elems * dtype_size((int)dtype_of(r)) + 1);
    const struct cairn_mem mem = trainer_mem(got, dtype_of(r));
    cairn_op *op;
    good(cairn_fetch(r->job, r->version, r->of->tensors[r->tensor].name, plane_name(r->plane), box,
                     &mem, &op));
    good(cairn_wait(op, CREW_WAIT_MS));
    return got;
}

static void check_whole(const struct look *r)
{
    const uint64_t elems = crew_elems(r->of, r->tensor);
    void *got = fetch(r, NULL, elems);
    ck_assert_msg(memcmp(got, r->expected, elems * dtype_size((int)dtype_of(r))) == 0,
                  "%s of %s has other bits", plane_name(r->plane), r->of->tensors[r->tensor].name);
    free(got);
}

static void check_box(const struct look *r, const struct cairn_box *box)
{
    const uint64_t elems = crew_box_elems(box);
    const size_t bytes = dtype_size((int)dtype_of(r));
    uint8_t *got = fetch(r, box, elems);
    bool same = true; // one assertion: Check's process is told of each by a system call
    for (uint64_t k = 0; k < elems && same; k++)
        same = memcmp(got + k * bytes, r->expected + crew_index(r->of, r->tensor, box, k) * bytes,
                      bytes) == 0;
    ck_assert_msg(same, "%s of %s has other bits in a box", plane_name(r->plane),
                  r->of->tensors[r->tensor].name);
    free(got);
}

/* Dimension d in d + 2 parts that are not equal. */
static void check_grid(const struct look *r)
{
    const struct shape *shape = &r->of->tensors[r->tensor].shape;
    uint64_t boxes = 1;
    for (uint32_t d = 0; d < shape->rank; d++) boxes *= d + 2;
    for (uint64_t i = 0; i < boxes; i++) {
        struct cairn_box box = { .rank = shape->rank };
        uint64_t rest = i;
        for (uint32_t d = 0; d < shape->rank; rest /= d + 2, d++) {
            const uint64_t at = rest % (d + 2), dim = shape->dim[d];
            box.start[d] = dim * at * at / ((d + 2) * (d + 2));
            box.extent[d] = dim * (at + 1) * (at + 1) / ((d + 2) * (d + 2)) - box.start[d];
        }
        check_box(r, &box);
    }
}

void crew_check(const char *endpoint, struct fabric_hub *hub, const struct crew_reference *ref,
                enum crew_reading reading)
{
    struct look r = { .of = ref->job };
    cairn *session = crew_session(endpoint, hub);
    good(cairn_job_open(session, ref->job->name, NULL, CAIRN_READER, CREW_WAIT_MS, &r.job));
    good(cairn_version_wait(r.job, r.version, CREW_WAIT_MS, &r.version));
    ck_assert_uint_eq(r.version.step, ref->step);
    for (r.tensor = 0; r.tensor < ref->job->tensor_count; r.tensor++) {
        const struct reference_tensor *its = &ref->tensor[r.tensor];
        for (r.plane = CAIRN_PLANE_WIRE; r.plane < CAIRN_PLANE_COUNT; r.plane++) {
            r.expected = r.plane == CAIRN_PLANE_WIRE ? its->wire : (void *)its->plane[r.plane];
            if (r.expected == NULL) continue;
            check_whole(&r);
            if (reading == CREW_IN_BOXES && r.plane <= CAIRN_PLANE_EXP_AVG) check_grid(&r);
        }
    }
    cairn_close(session);
}

void crew_check_state(const struct crew *crew, enum crew_reading reading)
{
    struct crew_reference ref;
    crew_reference_open(&ref, crew->job, crew->mesh);
    crew_reference_run(&ref, crew->until_step);
    crew_check(crew->endpoint, crew->hub, &ref, reading);
    crew_reference_close(&ref);
}
