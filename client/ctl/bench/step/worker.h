/* A worker of the bench of a step, in its process: what worker.c and units.c share. */
#ifndef CAIRN_CTL_BENCH_STEP_WORKER_H
#define CAIRN_CTL_BENCH_STEP_WORKER_H

#include "client/ctl/bench/step/step.h"

/* A unit that was asked for, and is not known to be there. */
struct step_asked {
    cairn_op *op; /* NULL: there is none */
    uint32_t tensor;
    double begin;
};

struct step_worker {
    const struct step_plan *plan;
    uint32_t rank;
    struct cairn_bench_member member;
    struct cairn_bench_member added; /* of a batch: the job to which it pushes sums; same session */
    size_t elems, elem_bytes;        /* of a tensor; of an element on the wire */
    float *made; /* [tensors * elems]: what backward gives; NULL: `grads` are that */
    char *grads,
        *params; /* [tensors * elems], of the wire's type; plan->card >= 0: not to be followed */
    struct step_card *card; /* owned: of plan->card; NULL: all is in host memory */
    cairn_op *ops[CAIRN_BENCH_TENSORS_MAX];
    struct cairn_view views[CAIRN_BENCH_TENSORS_MAX];
    uint32_t lent;                  /* views, by a step that reads all at its end */
    struct step_asked asked;        /* by one that reads unit by unit */
    bool is_busy;                   /* the backward of this step computes */
    double waited;                  /* seconds of this step, for units that were not there */
    struct cairn_bench_span *spans; /* [STEP_SPANS_EACH] of the plan, from span_count on free */
    uint32_t span_count;
    int acks[2]; /* a pipe to the thread that waits for acknowledgements: tensors in order */
    bool acks_ok;
};

/* A span that ends now; only of a traced step. */
struct cairn_bench_span *step_add_span(struct step_worker *w, enum cairn_bench_span_kind kind,
                                       uint32_t tensor, double begin);
void step_sleep_until(double seconds);
/* ---- busy.c ---- */
void step_compute_until(double seconds);
/* A look at each page of a tensor, so that to have it there is in the time. */
void step_look_at(const struct step_worker *w, const struct cairn_view *view);
/* The gradient of tensor i is ready: its cast, if it needs one, and its push. */
cairn_status step_push_one(struct step_worker *w, const struct cairn_round *round, uint32_t i);

/* The figures of bytes: what came to the library's counts from `before` to `after`. */
void step_count_bytes(const struct cairn_stats *before, const struct cairn_stats *after,
                      struct cairn_bench_report *report);
struct cairn_mem step_tensor_of(const struct step_worker *w, char *memory, uint32_t tensor);
/* All parameters of that job. */
cairn_status step_fetch_all(struct step_worker *w, const struct cairn_bench_member *member,
                            struct cairn_version version);

/* ---- batch.c ---- */
/* The second job, and gradients as the wire has them. False, and said. */
bool step_batch_open(struct step_worker *w, const struct cairn_bench_worker *worker);
/* A step of all micro-batches, of `member` or of `added`. False, and said. */
bool step_batch_run(struct step_worker *w, const struct cairn_bench_member *member,
                    struct cairn_bench_report *report);

/* ---- card.c ---- */
/* Memory on the card for gradients and parameters. The gradients are what the parameters of the job are,
 * which begin as random numbers: nothing here writes to a card by itself. False, and said. */
bool step_card_take(struct step_worker *w);
/* Copies the bytes of all gradients on the card so many times. Seconds; 0, and said: it failed. */
double step_card_copy(struct step_worker *w, int copies);

/* ---- units.c ---- */
/* Forward and backward of the round's version, unit by unit, with all pushes. */
cairn_status step_units_run(struct step_worker *w, const struct cairn_round *round);

#endif
