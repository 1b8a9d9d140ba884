/* A worker of the bench of a step. Its gradients are made once, as fp32, as autograd leaves them; a step
 * begins a round, casts them for the wire where that is bf16, pushes each tensor as it is ready, commits,
 * and fetches all parameters (or had read them before, unit by unit: units.c). All of its memory is of
 * cairn_alloc, as the gradients of the Python package are: so the library may take the shortest way there is,
 * and it has large pages. On a card (card.c) gradients are of the wire's type already. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "client/ctl/bench/bench.h"
#include "client/ctl/bench/step/worker.h"
#include "gpu/gpu.h"

/* ---- memory ---- */

static void fill(float *grads, size_t count, uint32_t rank)
{
    for (size_t i = 0; i < count; i++)
        grads[i] = (float)((i * 2654435761u + rank * 40503u) >> 8 & 4095) * 1e-6f - 2e-3f;
}

static bool take_memory(struct step_worker *w)
{
    const size_t count = w->plan->model.tensors * w->elems, bytes = count * w->elem_bytes;
    void *grads = NULL, *params = NULL, *made = NULL;
    if (w->plan->card >= 0) return step_card_take(w);
    cairn_status status = cairn_alloc(w->member.session, bytes, 0, &grads);
    if (status == CAIRN_OK) status = cairn_alloc(w->member.session, bytes, 0, &params);
    if (!cairn_bench_is_ok(status)) return false;
    w->grads = grads;
    w->params = params;
    memset(params, 1, bytes);
    if (w->plan->model.wire == CAIRN_F32) {
        fill(grads, count, w->rank);
        return true;
    }
    memset(grads, 1, bytes);
    status = cairn_alloc(w->member.session, count * sizeof *w->made, 0, &made);
    if (!cairn_bench_is_ok(status)) return false;
    w->made = made;
    fill(w->made, count, w->rank);
    return true;
}

struct cairn_mem step_tensor_of(const struct step_worker *w, char *memory, uint32_t tensor)
{
    return (struct cairn_mem) { .struct_size = sizeof(struct cairn_mem),
                                .ptr = memory + tensor * w->elems * w->elem_bytes,
                                .dtype = w->plan->model.wire,
                                .bytes = w->elems * w->elem_bytes,
                                .device = w->plan->card >= 0 ? CAIRN_GPU(w->plan->card) : 0 };
}

/* ---- spans ---- */

struct cairn_bench_span *step_add_span(struct step_worker *w, enum cairn_bench_span_kind kind,
                                       uint32_t tensor, double begin)
{
    struct cairn_bench_span *span = &w->spans[w->span_count++];
    *span = (struct cairn_bench_span) { begin, cairn_bench_now(), kind, tensor };
    return span;
}

/* Waits for the acknowledgements in the order of the pushes, and notes when they came. */
static void *await_acks(void *argument)
{
    struct step_worker *w = argument;
    uint32_t at; /* of the push's span */
    w->acks_ok = true;
    while (w->acks_ok && read(w->acks[0], &at, sizeof at) == sizeof at && at != UINT32_MAX) {
        struct cairn_bench_span *span = &w->spans[at];
        w->acks_ok = cairn_bench_is_ok(cairn_wait(w->ops[span->tensor], CAIRN_BENCH_CALL_MS));
        span->end = cairn_bench_now();
    }
    return NULL;
}

/* ---- a step ---- */

void step_look_at(const struct step_worker *w, const struct cairn_view *view)
{
    const volatile uint8_t *from = view->ptr;
    const size_t bytes = w->elems * w->elem_bytes;
    unsigned sum = 0;
    for (size_t i = 0; i < bytes; i += 4096) sum += from[i];
    (void)sum;
}

void step_sleep_until(double seconds)
{
    const struct timespec until = { .tv_sec = (time_t)seconds,
                                    .tv_nsec = (long)((seconds - (double)(time_t)seconds) * 1e9) };
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, NULL) != 0) {}
}

cairn_status step_push_one(struct step_worker *w, const struct cairn_round *round, uint32_t i)
{
    const bool is_traced = w->plan->is_traced;
    struct cairn_mem grad = step_tensor_of(w, w->grads, i);
    double begin = cairn_bench_now();
    if (w->made != NULL) {
        cairn_backend_host()->convert(grad.ptr, CAIRN_BF16, w->made + i * w->elems, CAIRN_F32,
                                      w->elems);
        if (is_traced) step_add_span(w, CAIRN_BENCH_SPAN_CAST, i, begin);
        begin = cairn_bench_now();
    }
    const cairn_status status = cairn_push(w->member.job, round, 0, w->member.names[i], NULL, &grad,
                                           is_traced ? &w->ops[i] : NULL);
    if (status != CAIRN_OK || !is_traced) return status;
    const uint32_t at = w->span_count;
    step_add_span(w, CAIRN_BENCH_SPAN_PUSH, i, begin);
    return write(w->acks[1], &at, sizeof at) == sizeof at ? CAIRN_OK : CAIRN_ERR_IO;
}

/* Gradients become ready one after the other, the last one at the end of the backward. */
static cairn_status push_all(struct step_worker *w, const struct cairn_round *round)
{
    const uint32_t tensors = w->plan->model.tensors;
    const double begin = cairn_bench_now(), each = w->plan->backward_seconds / tensors;
    cairn_status status = CAIRN_OK;
    for (uint32_t i = 0; i < tensors && status == CAIRN_OK; i++) {
        if (each > 0 && w->is_busy)
            step_compute_until(begin + each * (i + 1));
        else if (each > 0)
            step_sleep_until(begin + each * (i + 1));
        if (each > 0 && i + 1 == tensors && w->plan->is_traced)
            step_add_span(w, CAIRN_BENCH_SPAN_BACKWARD, 0, begin);
        status = step_push_one(w, round, i);
    }
    return status;
}

/* All that comes before the commit. */
static cairn_status compute(struct step_worker *w, const struct cairn_round *round)
{
    return w->plan->read == STEP_READ_UNITS ? step_units_run(w, round) : push_all(w, round);
}

static cairn_status compute_traced(struct step_worker *w, const struct cairn_round *round)
{
    static const uint32_t end = UINT32_MAX;
    pthread_t thread;
    if (pthread_create(&thread, NULL, await_acks, w) != 0) return CAIRN_ERR_NO_MEMORY;
    cairn_status status = compute(w, round);
    if (write(w->acks[1], &end, sizeof end) != sizeof end) status = CAIRN_ERR_IO;
    pthread_join(thread, NULL);
    return status == CAIRN_OK && !w->acks_ok ? CAIRN_ERR_CLOSED : status;
}

cairn_status step_fetch_all(struct step_worker *w, const struct cairn_bench_member *member,
                            struct cairn_version version)
{
    cairn_status status = CAIRN_OK;
    const double begin = cairn_bench_now();
    for (uint32_t i = 0; i < w->plan->model.tensors && status == CAIRN_OK; i++) {
        struct cairn_mem param = step_tensor_of(w, w->params, i);
        status = cairn_fetch(member->job, version, member->names[i], NULL, NULL, &param,
                             &w->ops[i]);
    }
    for (uint32_t i = 0; i < w->plan->model.tensors && status == CAIRN_OK; i++) {
        status = cairn_wait(w->ops[i], CAIRN_BENCH_CALL_MS);
        if (w->plan->is_traced) step_add_span(w, CAIRN_BENCH_SPAN_FETCH, i, begin);
    }
    return status;
}

static cairn_status give_back(struct step_worker *w)
{
    cairn_status status = CAIRN_OK;
    for (; w->lent > 0 && status == CAIRN_OK; w->lent--)
        status = cairn_unmap(w->member.job, &w->views[w->lent - 1], NULL);
    return status;
}

/* A unit a tensor: where the shards published it, if they are on this host. */
static cairn_status map_all(struct step_worker *w, struct cairn_version version)
{
    cairn_status status = give_back(w);
    const double begin = cairn_bench_now();
    for (uint32_t i = 0; i < w->plan->model.tensors && status == CAIRN_OK; i++) {
        struct cairn_view *view = &w->views[i];
        size_t count = 1;
        *view = (struct cairn_view) { .struct_size = sizeof *view };
        status = cairn_map(w->member.job, version, w->member.names[i], view, &count, &w->ops[i]);
        if (status == CAIRN_OK) status = cairn_wait(w->ops[i], CAIRN_BENCH_CALL_MS);
        if (status != CAIRN_OK) break;
        w->lent++;
        step_look_at(w, view);
        if (w->plan->is_traced) step_add_span(w, CAIRN_BENCH_SPAN_FETCH, i, begin);
    }
    return status;
}

static cairn_status read_all(struct step_worker *w, struct cairn_version version)
{
    if (w->plan->read == STEP_READ_UNITS) return CAIRN_OK; // it has, before
    return w->plan->read == STEP_READ_MAP ? map_all(w, version)
                                          : step_fetch_all(w, &w->member, version);
}

/* Bytes that passed the host, not directly from one memory of the card to another. */
static double host_bytes(const struct cairn_stats *stats)
{
    return (double)(stats->pushed_bytes - stats->device_pushed_bytes + stats->fetched_bytes -
                    stats->device_fetched_bytes);
}

void step_count_bytes(const struct cairn_stats *before, const struct cairn_stats *after,
                      struct cairn_bench_report *report)
{
    double *figures = report->figures;
    figures[STEP_FIGURE_PUSHED_BYTES] = (double)(after->pushed_bytes - before->pushed_bytes);
    figures[STEP_FIGURE_FETCHED_BYTES] = (double)(after->fetched_bytes - before->fetched_bytes);
    figures[STEP_FIGURE_HOST_BYTES] = host_bytes(after) - host_bytes(before);
}

static bool run_step(struct step_worker *w, struct cairn_bench_report *report)
{
    struct cairn_round round = { .struct_size = sizeof round };
    struct cairn_result result = { .struct_size = sizeof result };
    struct cairn_stats before = { .struct_size = sizeof before }, after = before;
    const size_t spans = STEP_SPANS_EACH(w->plan->model.tensors);
    memset(w->spans, 0, spans * sizeof *w->spans);
    w->span_count = 0;
    cairn_status status = cairn_job_stats(w->member.job, &before);
    const double t0 = cairn_bench_now();
    if (status == CAIRN_OK) status = cairn_round_begin(w->member.job, CAIRN_BENCH_CALL_MS, &round);
    if (status == CAIRN_OK)
        status = w->plan->is_traced ? compute_traced(w, &round) : compute(w, &round);
    const double t1 = cairn_bench_now();
    if (status == CAIRN_OK)
        status = cairn_commit(w->member.job, &round, 1, NULL, 0, CAIRN_BENCH_CALL_MS, &result);
    const double t2 = cairn_bench_now();
    if (w->plan->is_traced) step_add_span(w, CAIRN_BENCH_SPAN_COMMIT, 0, t1);
    if (status == CAIRN_OK) status = read_all(w, result.version);
    const double t3 = cairn_bench_now();
    if (status == CAIRN_OK) status = cairn_job_stats(w->member.job, &after);
    w->plan->rounds[w->rank] = round.round;
    *report =
        (struct cairn_bench_report) { .figures = { [STEP_FIGURE_ALL] = t3 - t0,
                                                   [STEP_FIGURE_PUSH] = t1 - t0,
                                                   [STEP_FIGURE_COMMIT] = t2 - t1,
                                                   [STEP_FIGURE_FETCH] = t3 - t2 + w->waited } };
    step_count_bytes(&before, &after, report);
    return cairn_bench_is_ok(status);
}

/* Moves as many bytes as a step must: every byte of the gradients once, every byte of the
 * parameters once, or twice where backward reads them again. The next fetch overwrites the
 * parameters with the right values. */
static bool run_copy(struct step_worker *w, struct cairn_bench_report *report)
{
    const size_t bytes = w->plan->model.tensors * w->elems * w->elem_bytes;
    const double begin = cairn_bench_now();
    const int copies = w->plan->read == STEP_READ_UNITS ? 3 : 2;
    if (w->card != NULL) {
        report->figures[STEP_FIGURE_ALL] = step_card_copy(w, copies);
        return report->figures[STEP_FIGURE_ALL] > 0;
    }
    for (int i = 0; i < copies; i++) memcpy(w->params, w->grads, bytes);
    report->figures[STEP_FIGURE_ALL] = cairn_bench_now() - begin;
    return true;
}

static bool obey(struct step_worker *w, uint32_t word, struct cairn_bench_report *report)
{
    w->is_busy = word == STEP_ORDER_BUSY;
    if (word == STEP_ORDER_COPY) return run_copy(w, report);
    if (word == STEP_ORDER_ADDED) return step_batch_run(w, &w->added, report);
    return w->plan->model.batch > 0 ? step_batch_run(w, &w->member, report) : run_step(w, report);
}

int cairn_bench_step_work(const struct cairn_bench_worker *worker)
{
    static struct step_worker w;
    w.plan = worker->plan;
    w.rank = worker->rank;
    w.elems = cairn_bench_model_elems(&w.plan->model);
    w.elem_bytes = w.plan->model.wire == CAIRN_F32 ? 4 : 2;
    w.spans = w.plan->spans + worker->rank * STEP_SPANS_EACH(w.plan->model.tensors);
    struct cairn_bench_order order;
    struct cairn_bench_report report = { { 0 } };
    if (pipe(w.acks) != 0) return 1;
    if (!cairn_bench_member_open(&w.member, &w.plan->model, worker) || !take_memory(&w)) return 1;
    if (w.plan->model.batch > 0 && !step_batch_open(&w, worker)) return 1;
    while (cairn_bench_worker_report(worker, &report) && cairn_bench_worker_next(worker, &order))
        if (!obey(&w, order.word, &report)) return 1;
    cairn_close(w.member.session);
    return 0;
}
