/* A step as a trainer of stage 3 makes it: it has a unit (here a tensor) while it uses it, and has asked for
 * the next one by then:
 *
 *   forward    w0 ─ w1 ─ ... ─ wn   half as long as the backward
 *   backward   wn ─ ... ─ w1 ─ w0   each is read again, and its gradient pushed when it was used
 *
 * To use one is to look at each of its pages and to sleep. */
#include "client/ctl/bench/bench.h"
#include "client/ctl/bench/step/worker.h"

static cairn_status ask(struct step_worker *w, struct cairn_version version, uint32_t i)
{
    struct cairn_view *view = &w->views[i];
    size_t count = 1;
    *view = (struct cairn_view) { .struct_size = sizeof *view };
    w->asked = (struct step_asked) { .tensor = i, .begin = cairn_bench_now() };
    return cairn_map(w->member.job, version, w->member.names[i], view, &count, &w->asked.op);
}

/* Waits for the unit that was asked for; CAIRN_ERR_TIMEOUT: it is not there yet. */
static cairn_status await_asked(struct step_worker *w, int timeout_ms)
{
    if (w->asked.op == NULL) return CAIRN_OK;
    const cairn_status status = cairn_wait(w->asked.op, timeout_ms);
    if (status == CAIRN_ERR_TIMEOUT) return status;
    w->asked.op = NULL;
    if (w->plan->is_traced)
        step_add_span(w, CAIRN_BENCH_SPAN_FETCH, w->asked.tensor, w->asked.begin);
    return status;
}

/* The next unit is fetched meanwhile. */
static cairn_status use(struct step_worker *w, uint32_t i, double seconds)
{
    const double begin = cairn_bench_now(), end = begin + seconds;
    step_look_at(w, &w->views[i]);
    const double left = end - cairn_bench_now();
    const cairn_status status = await_asked(w, left > 0 ? (int)(left * 1000) : 0);
    step_sleep_until(end);
    if (w->plan->is_traced) step_add_span(w, CAIRN_BENCH_SPAN_USE, i, begin);
    return status == CAIRN_ERR_TIMEOUT ? CAIRN_OK : status;
}

/* Tensor i is the next to be used, `ahead` the one behind it; UINT32_MAX: there is none. */
static cairn_status visit(struct step_worker *w, struct cairn_version version, uint32_t i,
                          uint32_t ahead, double seconds)
{
    const double begin = cairn_bench_now();
    cairn_status status = await_asked(w, CAIRN_BENCH_CALL_MS);
    w->waited += cairn_bench_now() - begin;
    if (status == CAIRN_OK && ahead != UINT32_MAX) status = ask(w, version, ahead);
    if (status == CAIRN_OK) status = use(w, i, seconds);
    return status;
}

static cairn_status forward(struct step_worker *w, struct cairn_version version)
{
    const uint32_t tensors = w->plan->model.tensors;
    const double each = w->plan->backward_seconds / 2 / tensors;
    cairn_status status = ask(w, version, 0);
    for (uint32_t i = 0; i < tensors && status == CAIRN_OK; i++) {
        status = visit(w, version, i, i + 1 < tensors ? i + 1 : UINT32_MAX, each);
        if (status == CAIRN_OK) status = cairn_unmap(w->member.job, &w->views[i], NULL);
    }
    return status;
}

static cairn_status backward(struct step_worker *w, const struct cairn_round *round)
{
    const uint32_t tensors = w->plan->model.tensors;
    const double begin = cairn_bench_now(), each = w->plan->backward_seconds / tensors;
    cairn_status status = ask(w, round->version, tensors - 1);
    for (uint32_t i = tensors; i-- > 0 && status == CAIRN_OK;) {
        status = visit(w, round->version, i, i > 0 ? i - 1 : UINT32_MAX, each);
        if (i == 0 && w->plan->is_traced) step_add_span(w, CAIRN_BENCH_SPAN_BACKWARD, 0, begin);
        if (status == CAIRN_OK) status = step_push_one(w, round, i);
        if (status == CAIRN_OK) status = cairn_unmap(w->member.job, &w->views[i], NULL);
    }
    return status;
}

cairn_status step_units_run(struct step_worker *w, const struct cairn_round *round)
{
    w->waited = 0;
    const cairn_status status = forward(w, round->version);
    return status == CAIRN_OK ? backward(w, round) : status;
}
