/* cairn bench step: what its parts share. The bench (step.c) orders, workers (worker.c) do it. */
#ifndef CAIRN_CTL_BENCH_STEP_STEP_H
#define CAIRN_CTL_BENCH_STEP_STEP_H

#include "client/ctl/bench/model.h"
#include "client/ctl/bench/timeline.h"

#define STEP_SPANS_EACH(tensors) \
    (6 * (tensors) + 2) /* cast, push, two fetches and two uses of each; backward, commit */

/* A step whose backward sleeps; a copy; a step that adds up in the worker; one whose backward computes on
 * every core. */
enum { STEP_ORDER_STEP = 1, STEP_ORDER_COPY = 2, STEP_ORDER_ADDED = 3, STEP_ORDER_BUSY = 4 };
/* The figures of a worker's report: seconds; bytes of this step, by the library's own count. */
enum {
    STEP_FIGURE_ALL,
    STEP_FIGURE_PUSH, /* round_begin, backward, casts, pushes that left or wait */
    STEP_FIGURE_COMMIT,
    STEP_FIGURE_FETCH, /* or, unit by unit, what of the first was waiting for them */
    STEP_FIGURE_PUSHED_BYTES,
    STEP_FIGURE_FETCHED_BYTES,
    STEP_FIGURE_HOST_BYTES, /* of both: what passed the host */
    STEP_FIGURES
};

/* How the parameters are read: all of them behind the commit, copied or lent (and one byte of each page is
 * read), or unit by unit, in a forward and a backward (units.c). */
enum step_read { STEP_READ_FETCH, STEP_READ_MAP, STEP_READ_UNITS };

struct step_plan {
    struct cairn_bench_model model;
    double backward_seconds; /* 0: all gradients are there at once */
    bool is_traced;
    enum step_read read;
    int card; /* gradients and parameters lie on that one, by cairn_alloc; -1: in host memory */
    const char *device; /* the same, as --device says it; borrowed */
    /* shared with the workers: [workers][STEP_SPANS_EACH(tensors)], [workers]; of the last step */
    struct cairn_bench_span *spans;
    uint64_t *rounds;
};

/* Maps what workers share with the bench, which has filled in the rest. False, and said: no memory. */
bool cairn_bench_step_plan_share(struct step_plan *plan, uint32_t workers);
void cairn_bench_step_plan_release(struct step_plan *plan, uint32_t workers);

int cairn_bench_step_work(const struct cairn_bench_worker *worker);

#endif
