/* A worker of the bench of a step. The gradients are created once, as fp32, as autograd produces them. A
 * step begins a round and casts the gradients if the wire has bf16. It pushes each tensor when the tensor
 * is ready, commits, and fetches all parameters, unless it has read them unit by unit before the commit
 * (below). All memory of the worker is from cairn_alloc, like the gradients of the Python package. So the
 * library can use the shortest path, and the memory has large pages. On a card (below) gradients already
 * have the wire's type. */
#include "client/ctl/bench/bench.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "gpu/gpu.h"

#define TURNS 4096 /* between two looks at the clock */

/* The state of a worker of the bench of a step, in the worker's process. */

/* A unit that was requested, and may not have arrived yet. */
struct step_asked {
    cairn_op *op; /* NULL: no request */
    uint32_t tensor;
    double begin;
};

struct step_worker {
    const struct step_plan *plan;
    uint32_t rank;
    struct bench_member member;
    /* for a batch: the member, in the same session, of the job that receives pushed sums */
    struct bench_member added;
    /* elems: the elements of a tensor. elem_bytes: the bytes of an element on the wire */
    size_t elems, elem_bytes;
    float *made; /* [tensors * elems]: the output of backward; NULL: `grads` is this output */
    char *grads,
        *params; /* [tensors * elems], of the wire's type; not dereferenceable if plan->card >= 0 */
    struct step_card *card; /* owned: on plan->card; NULL: everything is in host memory */
    cairn_op *ops[BENCH_TENSORS_MAX];
    struct cairn_view views[BENCH_TENSORS_MAX];
    uint32_t lent;           /* mapped views, in a step that reads all parameters at its end */
    struct step_asked asked; /* the requested unit, in a step that reads unit by unit */
    struct bench_step step;  /* the step that runs */
    /* for a batch, the member of this step: `member` or `added` */
    const struct bench_member *stepped;
    bool is_busy;  /* true if the backward of this step computes */
    double waited; /* seconds of this step spent waiting for units */
    /* [STEP_SPANS_EACH] of the plan; entries from span_count on are free */
    struct bench_span *spans;
    uint32_t span_count;
    /* a pipe to the thread that waits for acknowledgements; the pipe carries the indices of push spans, in
     * order */
    int acks[2];
    bool acks_ok;
};

/* ---- spans ---- */

/* Adds a span that ends now, if the step is traced. */
static void add_span(struct step_worker *w, enum bench_span_kind kind, uint32_t tensor,
                     double begin)
{
    if (!w->plan->is_traced) return;
    w->spans[w->span_count++] = (struct bench_span) { begin, bench_now(), kind, tensor };
}

/* Waits for the acknowledgements in the order of the pushes, and records when they arrived. */
static void *await_acks(void *argument)
{
    struct step_worker *w = argument;
    uint32_t at; /* the index of the push's span */
    w->acks_ok = true;
    while (w->acks_ok && read(w->acks[0], &at, sizeof at) == sizeof at && at != UINT32_MAX) {
        struct bench_span *span = &w->spans[at];
        w->acks_ok = bench_is_ok(cairn_wait(w->ops[span->tensor], BENCH_CALL_MS));
        span->end = bench_now();
    }
    return NULL;
}

/* ---- a step ---- */

/* Reads one byte of each page of a tensor, so that the cost of accessing the tensor is measured. */
static void look_at(const struct step_worker *w, const struct cairn_view *view)
{
    const volatile uint8_t *from = view->ptr;
    const size_t bytes = w->elems * w->elem_bytes;
    unsigned sum = 0;
    for (size_t i = 0; i < bytes; i += 4096) sum += from[i];
    (void)sum;
}

static void sleep_until(double seconds)
{
    const struct timespec until = { .tv_sec = (time_t)seconds,
                                    .tv_nsec = (long)((seconds - (double)(time_t)seconds) * 1e9) };
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, NULL) != 0) {}
}

static void compute_until(void *seconds, uint32_t number)
{
    volatile float sum = 0;
    (void)number;
    while (bench_now() < *(double *)seconds)
        for (int i = 0; i < TURNS; i++) sum = sum * 0.999f + 1.0f;
}

/* Lets the time go by as a backward does: asleep, or computing on every core, as a trainer on the host
 * does. */
static void be_backward_until(const struct step_worker *w, double seconds)
{
    const uint32_t cores = bench_core_count();
    if (!w->is_busy)
        sleep_until(seconds);
    else // a core whose thread cannot be started stays idle
        (void)bench_threads_run(cores < BENCH_THREADS_MAX ? cores : BENCH_THREADS_MAX,
                                compute_until, &seconds);
}

/* Called when the gradient of tensor i is ready: casts it, if needed, and pushes it. */
static cairn_status push_one(struct step_worker *w, const struct cairn_round *round, uint32_t i)
{
    const bool is_traced = w->plan->is_traced;
    struct cairn_mem grad = bench_mem_of(&w->plan->b.model, w->grads, i);
    double begin = bench_now();
    if (w->made != NULL) {
        backend_host()->convert(grad.ptr, CAIRN_BF16, w->made + i * w->elems, CAIRN_F32, w->elems);
        add_span(w, BENCH_SPAN_CAST, i, begin);
        begin = bench_now();
    }
    const cairn_status status = cairn_push(w->member.job, round, 0, w->member.names[i], NULL, &grad,
                                           is_traced ? &w->ops[i] : NULL);
    if (status != CAIRN_OK || !is_traced) return status;
    const uint32_t at = w->span_count;
    add_span(w, BENCH_SPAN_PUSH, i, begin);
    return write(w->acks[1], &at, sizeof at) == sizeof at ? CAIRN_OK : CAIRN_ERR_IO;
}

/* Fetches all parameters of the member's job to `memory`. */
static cairn_status fetch_all(struct step_worker *w, const struct bench_member *member,
                              struct cairn_version version, char *memory)
{
    const double begin = bench_now();
    cairn_status status = bench_fetch_each(member, &w->plan->b.model, version, memory, w->ops);
    for (uint32_t i = 0; i < w->plan->b.model.tensors && status == CAIRN_OK; i++) {
        status = cairn_wait(w->ops[i], BENCH_CALL_MS);
        add_span(w, BENCH_SPAN_FETCH, i, begin);
    }
    return status;
}

/* Returns the bytes that passed through the host instead of moving directly between memories of the
 * card. */
static double host_bytes(const struct cairn_stats *stats)
{
    return (double)(stats->pushed_bytes - stats->device_pushed_bytes + stats->fetched_bytes -
                    stats->device_fetched_bytes);
}

/* Runs the step and reports it, with the bytes that the library counted. Returns false after printing the
 * error if the step failed. */
static bool run_counted(struct bench_step *step, struct bench_report *report)
{
    struct cairn_stats before = { .struct_size = sizeof before }, after = before;
    double *figures = report->figures;
    *report = (struct bench_report) { { 0 } };
    if (!bench_is_ok(cairn_job_stats(step->job, &before)) || !bench_step_run(step, report) ||
        !bench_is_ok(cairn_job_stats(step->job, &after)))
        return false;
    figures[STEP_FIGURE_PUSHED_BYTES] = (double)(after.pushed_bytes - before.pushed_bytes);
    figures[STEP_FIGURE_FETCHED_BYTES] = (double)(after.fetched_bytes - before.fetched_bytes);
    figures[STEP_FIGURE_HOST_BYTES] = host_bytes(&after) - host_bytes(&before);
    return true;
}

/* ==== batch ==== */

/* cairn bench step --global-batch: measures a step of K micro-batches that are distributed over the workers
 * and pushed separately. The reference is a job of stage 1 with the same micro-batches, where each worker
 * accumulates its own micro-batches and pushes the sums once. Both jobs push the same gradients, which are
 * cast to the wire's type before the clock starts. */

/* Opens the second job, and casts the gradients to the wire's type. Returns false after printing the error
 * if this failed. */
static bool open_batch(struct step_worker *w, const struct bench_worker *worker)
{
    struct bench_model model = w->plan->b.model;
    snprintf(model.job, sizeof model.job, "%.50s.added", w->plan->b.model.job);
    model.added = (model.batch + worker->world - 1) / worker->world;
    model.batch = 0;
    w->added.session = w->member.session;
    if (w->made != NULL)
        backend_host()->convert(w->grads, CAIRN_BF16, w->made, CAIRN_F32, model.tensors * w->elems);
    return bench_member_join(&w->added, &model, worker);
}

static cairn_status push_micro(struct step_worker *w, const struct bench_member *member,
                               const struct cairn_round *round, uint32_t micro)
{
    const cairn_status status = bench_push_each(member, &w->plan->b.model, round, micro, w->grads);
    return status == CAIRN_OK ? cairn_micro_end(member->job, round, micro) : status;
}

/* Pushes the micro-batches. In the job whose workers accumulate, each worker counts its own
 * micro-batches. */
static cairn_status push_batch(void *own, const struct cairn_round *round)
{
    struct step_worker *w = own;
    cairn_status status = CAIRN_OK;
    uint32_t count = 0;
    for (uint32_t k = round->rank; k < w->plan->b.model.batch && status == CAIRN_OK;
         k += round->world, count++)
        status = push_micro(w, w->stepped, round, w->stepped == &w->added ? count : k);
    return status;
}

static cairn_status fetch_batch(void *own, struct cairn_version version)
{
    struct step_worker *w = own;
    return fetch_all(w, w->stepped, version, w->params);
}

/* Runs a step of all micro-batches, in `member` or in `added`. */
static bool run_batch(struct step_worker *w, const struct bench_member *member,
                      struct bench_report *report)
{
    w->stepped = member;
    w->step = (struct bench_step) { member->job, 0, push_batch, fetch_batch, .own = w };
    return run_counted(&w->step, report);
}

/* ==== card ==== */

/* The functions of a worker whose gradients and parameters are on a card. */

/* Used only by the reference: the memory that is copied on the card, and the stream that copies this
 * memory. */
struct step_card {
    struct home *home;
    struct home_stream *stream;
    struct home_memory from, to; /* each has the bytes of all gradients */
};

static bool is_ok(cairn_status status, const struct sentence *why)
{
    if (status != CAIRN_OK) (void)ctl_fail(status, "a worker of the bench: %s", why->text);
    return status == CAIRN_OK;
}

/* Opens the memory and stream of the reference; no call closes them, since the process ends after the
 * bench. */
static bool open_reference(struct step_worker *w, size_t bytes)
{
    struct sentence why;
    struct step_card *card = calloc(1, sizeof *card);
    if (card == NULL) return bench_is_ok(CAIRN_ERR_NO_MEMORY);
    cairn_status status = home_open_cuda(w->plan->device, &card->home, &why);
    if (status == CAIRN_OK) status = home_stream_open(card->home, &card->stream, &why);
    if (status == CAIRN_OK)
        status = home_memory_open(card->home, "bench", bytes, &card->from, &why);
    if (status == CAIRN_OK) status = home_memory_open(card->home, "bench", bytes, &card->to, &why);
    w->card = card;
    return is_ok(status, &why);
}

/* Fetches the initial parameters as gradients. */
static cairn_status fetch_gradients(struct step_worker *w)
{
    struct cairn_version newest;
    const cairn_status status = cairn_version_wait(w->member.job, (struct cairn_version) { 0 },
                                                   BENCH_CALL_MS, &newest);
    return status == CAIRN_OK ? fetch_all(w, &w->member, newest, w->grads) : status;
}

/* Allocates memory on the card for gradients and parameters. The gradients are the job's initial
 * parameters, which are random, because this process cannot write to a card directly. Returns false after
 * printing the error if this failed. */
static bool take_card(struct step_worker *w)
{
    const size_t bytes = w->plan->b.model.tensors * w->elems * w->elem_bytes;
    void *grads = NULL, *params = NULL;
    cairn_status status = cairn_alloc(w->member.session, bytes, CAIRN_GPU(w->plan->card), &grads);
    if (status == CAIRN_OK)
        status = cairn_alloc(w->member.session, bytes, CAIRN_GPU(w->plan->card), &params);
    w->grads = grads;
    w->params = params;
    if (status == CAIRN_OK) status = fetch_gradients(w);
    return bench_is_ok(status) && open_reference(w, bytes);
}

/* Copies the bytes of all gradients on the card `copies` times. Returns seconds. Returns 0 after printing
 * the error if a copy failed. */
static double copy_on_card(struct step_worker *w, int copies)
{
    struct sentence why;
    struct home_work work = {
        .kind = CAIRN_WORK_COPY,
        .copy = { .to = w->card->to.base, .from = w->card->from.base, .bytes = w->card->to.bytes }
    };
    cairn_status status = CAIRN_OK;
    const double begin = bench_now();
    for (int i = 0; i < copies && status == CAIRN_OK; i++)
        status = home_run(w->card->stream, &work, 1, &why);
    return is_ok(status, &why) ? bench_now() - begin : 0;
}

/* ==== units ==== */

/* A step like that of a trainer in stage 3: the worker holds a unit (here a tensor) only while it
 * uses the unit. Meanwhile, the next unit is already requested:
 *
 *   forward    w0 ─ w1 ─ ... ─ wn   half as long as the backward
 *   backward   wn ─ ... ─ w1 ─ w0   each is read again, and its gradient is pushed after its use
 *
 * Using a unit means reading a byte of each of its pages and sleeping. */

static cairn_status map_tensor(struct step_worker *w, struct cairn_version version, uint32_t i,
                               cairn_op **op_out)
{
    size_t count = 1;
    w->views[i] = (struct cairn_view) { .struct_size = sizeof w->views[i] };
    return cairn_map(w->member.job, version, w->member.names[i], &w->views[i], &count, op_out);
}

static cairn_status ask_unit(struct step_worker *w, struct cairn_version version, uint32_t i)
{
    w->asked = (struct step_asked) { .tensor = i, .begin = bench_now() };
    return map_tensor(w, version, i, &w->asked.op);
}

/* Waits for the requested unit; CAIRN_ERR_TIMEOUT: the unit has not arrived yet. */
static cairn_status await_asked(struct step_worker *w, int timeout_ms)
{
    if (w->asked.op == NULL) return CAIRN_OK;
    const cairn_status status = cairn_wait(w->asked.op, timeout_ms);
    if (status == CAIRN_ERR_TIMEOUT) return status;
    w->asked.op = NULL;
    add_span(w, BENCH_SPAN_FETCH, w->asked.tensor, w->asked.begin);
    return status;
}

/* Uses a unit while the next unit is fetched. */
static cairn_status use_unit(struct step_worker *w, uint32_t i, double seconds)
{
    const double begin = bench_now(), end = begin + seconds;
    look_at(w, &w->views[i]);
    const double left = end - bench_now();
    const cairn_status status = await_asked(w, left > 0 ? (int)(left * 1000) : 0);
    sleep_until(end);
    add_span(w, BENCH_SPAN_USE, i, begin);
    return status == CAIRN_ERR_TIMEOUT ? CAIRN_OK : status;
}

/* Uses tensor i; `ahead` is the tensor to request next; UINT32_MAX: none. */
static cairn_status visit_unit(struct step_worker *w, struct cairn_version version, uint32_t i,
                               uint32_t ahead, double seconds)
{
    const double begin = bench_now();
    cairn_status status = await_asked(w, BENCH_CALL_MS);
    w->waited += bench_now() - begin;
    if (status == CAIRN_OK && ahead != UINT32_MAX) status = ask_unit(w, version, ahead);
    if (status == CAIRN_OK) status = use_unit(w, i, seconds);
    return status;
}

static cairn_status forward(struct step_worker *w, struct cairn_version version)
{
    const uint32_t tensors = w->plan->b.model.tensors;
    const double each = w->plan->backward_seconds / 2 / tensors;
    cairn_status status = ask_unit(w, version, 0);
    for (uint32_t i = 0; i < tensors && status == CAIRN_OK; i++) {
        status = visit_unit(w, version, i, i + 1 < tensors ? i + 1 : UINT32_MAX, each);
        if (status == CAIRN_OK) status = cairn_unmap(w->member.job, &w->views[i], NULL);
    }
    return status;
}

static cairn_status backward(struct step_worker *w, const struct cairn_round *round)
{
    const uint32_t tensors = w->plan->b.model.tensors;
    const double begin = bench_now(), each = w->plan->backward_seconds / tensors;
    cairn_status status = ask_unit(w, round->version, tensors - 1);
    for (uint32_t i = tensors; i-- > 0 && status == CAIRN_OK;) {
        status = visit_unit(w, round->version, i, i > 0 ? i - 1 : UINT32_MAX, each);
        if (i == 0) add_span(w, BENCH_SPAN_BACKWARD, 0, begin);
        if (status == CAIRN_OK) status = push_one(w, round, i);
        if (status == CAIRN_OK) status = cairn_unmap(w->member.job, &w->views[i], NULL);
    }
    return status;
}

/* Runs forward and backward with the parameters of the round's version, unit by unit, with all pushes. */
static cairn_status run_units(struct step_worker *w, const struct cairn_round *round)
{
    w->waited = 0;
    const cairn_status status = forward(w, round->version);
    return status == CAIRN_OK ? backward(w, round) : status;
}

/* ==== a step ==== */

static void fill_gradients(float *grads, size_t count, uint32_t rank)
{
    for (size_t i = 0; i < count; i++)
        grads[i] = (float)((i * 2654435761u + rank * 40503u) >> 8 & 4095) * 1e-6f - 2e-3f;
}

static bool take_memory(struct step_worker *w)
{
    const size_t count = w->plan->b.model.tensors * w->elems, bytes = count * w->elem_bytes;
    void *grads = NULL, *params = NULL, *made = NULL;
    if (w->plan->card >= 0) return take_card(w);
    cairn_status status = cairn_alloc(w->member.session, bytes, 0, &grads);
    if (status == CAIRN_OK) status = cairn_alloc(w->member.session, bytes, 0, &params);
    if (!bench_is_ok(status)) return false;
    w->grads = grads;
    w->params = params;
    memset(params, 1, bytes);
    if (w->plan->b.model.wire == CAIRN_F32) {
        fill_gradients(grads, count, w->rank);
        return true;
    }
    memset(grads, 1, bytes);
    status = cairn_alloc(w->member.session, count * sizeof *w->made, 0, &made);
    if (!bench_is_ok(status)) return false;
    w->made = made;
    fill_gradients(w->made, count, w->rank);
    return true;
}

/* Pushes the gradients. They become ready one after the other; the last gradient becomes ready at the end
 * of the backward. */
static cairn_status push_all(struct step_worker *w, const struct cairn_round *round)
{
    const uint32_t tensors = w->plan->b.model.tensors;
    const double begin = bench_now(), each = w->plan->backward_seconds / tensors;
    cairn_status status = CAIRN_OK;
    for (uint32_t i = 0; i < tensors && status == CAIRN_OK; i++) {
        if (each > 0) be_backward_until(w, begin + each * (i + 1));
        if (each > 0 && i + 1 == tensors) add_span(w, BENCH_SPAN_BACKWARD, 0, begin);
        status = push_one(w, round, i);
    }
    return status;
}

/* Does everything before the commit. */
static cairn_status compute(struct step_worker *w, const struct cairn_round *round)
{
    return w->plan->read == STEP_READ_UNITS ? run_units(w, round) : push_all(w, round);
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

static cairn_status give_views_back(struct step_worker *w)
{
    cairn_status status = CAIRN_OK;
    for (; w->lent > 0 && status == CAIRN_OK; w->lent--)
        status = cairn_unmap(w->member.job, &w->views[w->lent - 1], NULL);
    return status;
}

/* Maps one unit per tensor in the memory where the shards published the tensor, if the shards are on this
 * host. */
static cairn_status map_all(struct step_worker *w, struct cairn_version version)
{
    cairn_status status = give_views_back(w);
    const double begin = bench_now();
    for (uint32_t i = 0; i < w->plan->b.model.tensors && status == CAIRN_OK; i++) {
        status = map_tensor(w, version, i, &w->ops[i]);
        if (status == CAIRN_OK) status = cairn_wait(w->ops[i], BENCH_CALL_MS);
        if (status != CAIRN_OK) break;
        w->lent++;
        look_at(w, &w->views[i]);
        add_span(w, BENCH_SPAN_FETCH, i, begin);
    }
    return status;
}

static cairn_status push_step(void *own, const struct cairn_round *round)
{
    struct step_worker *w = own;
    return w->plan->is_traced ? compute_traced(w, round) : compute(w, round);
}

static cairn_status fetch_step(void *own, struct cairn_version version)
{
    struct step_worker *w = own;
    add_span(w, BENCH_SPAN_COMMIT, 0, w->step.at[2]);
    // the parameters are already read, unit by unit
    if (w->plan->read == STEP_READ_UNITS) return CAIRN_OK;
    return w->plan->read == STEP_READ_MAP ? map_all(w, version)
                                          : fetch_all(w, &w->member, version, w->params);
}

static bool run_step(struct step_worker *w, struct bench_report *report)
{
    memset(w->spans, 0, STEP_SPANS_EACH(w->plan->b.model.tensors) * sizeof *w->spans);
    w->span_count = 0;
    w->step = (struct bench_step) { w->member.job, 1, push_step, fetch_step, .own = w };
    if (!run_counted(&w->step, report)) return false;
    w->plan->rounds[w->rank] = w->step.round.round;
    report->figures[BENCH_FIGURE_FETCH] += w->waited;
    return true;
}

/* Copies as many bytes as a step must move: the gradients once, and the parameters once, or twice if
 * backward reads them again. The copied parameters are wrong, but the next fetch overwrites them with the
 * correct values. */
static bool run_copy(struct step_worker *w, struct bench_report *report)
{
    const size_t bytes = w->plan->b.model.tensors * w->elems * w->elem_bytes;
    const double begin = bench_now();
    const int copies = w->plan->read == STEP_READ_UNITS ? 3 : 2;
    if (w->card != NULL) {
        report->figures[BENCH_FIGURE_ALL] = copy_on_card(w, copies);
        return report->figures[BENCH_FIGURE_ALL] > 0;
    }
    for (int i = 0; i < copies; i++) memcpy(w->params, w->grads, bytes);
    report->figures[BENCH_FIGURE_ALL] = bench_now() - begin;
    return true;
}

static bool obey_step(void *own, const struct bench_order *order, struct bench_report *report)
{
    struct step_worker *w = own;
    if (order->word == STEP_ORDER_BESIDE) return run_step(&w[1], report);
    w->is_busy = order->word == STEP_ORDER_BUSY;
    if (order->word == STEP_ORDER_COPY) return run_copy(w, report);
    if (order->word == STEP_ORDER_ADDED) return run_batch(w, &w->added, report);
    return w->plan->b.model.batch > 0 ? run_batch(w, &w->member, report) : run_step(w, report);
}

/* Opens a worker of the job of that cluster. */
static bool open_worker(struct step_worker *w, const struct bench_worker *worker,
                        const struct local *cluster)
{
    w->plan = worker->bench;
    struct bench_model model = w->plan->b.model;
    if (cluster != NULL) {
        model.endpoint = cluster->endpoint;
        model.is_logged = false;
    }
    w->rank = worker->rank;
    w->elems = bench_model_elems(&model);
    w->elem_bytes = model.wire == CAIRN_F32 ? 4 : 2;
    w->spans = w->plan->spans + worker->rank * STEP_SPANS_EACH(model.tensors);
    if (pipe(w->acks) != 0) return false;
    if (!bench_member_open(&w->member, &model, worker) || !take_memory(w)) return false;
    return model.batch == 0 || open_batch(w, worker);
}

int bench_step_work(const struct bench_worker *worker)
{
    static struct step_worker workers[2]; // [1]: in the cluster without the tier
    const struct step_plan *plan = worker->bench;
    if (!open_worker(&workers[0], worker, NULL)) return 1;
    if (plan->b.is_compared && !open_worker(&workers[1], worker, plan->b.beside)) return 1;
    return bench_serve(worker, &workers[0].member, obey_step, workers);
}
