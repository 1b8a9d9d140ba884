/* Learning-rate schedules: what the coordinator works out before each decision. Pure, and only + - * /,
 * so that every host gets the same bits (libm's cos differs between hosts).
 *
 *   k    the step of the round: the updates that were applied before it, from 0. The update of that
 *        round makes version k + 1. It is torch's `last_epoch` and Hugging Face's `current_step`
 *   b    lr of the group            m    lr_min, an absolute lr, at most b
 *   W    warmup_steps               T    total_steps          D    decay_steps
 *
 *   body(k)
 *     constant  b
 *     linear    m + (b - m) * (T - k) / (T - W)                      for k < T, then m
 *     cosine    m + (b - m) * (1 + cos(pi * (k - W) / (T - W))) / 2  for k < T, then m
 *     wsd       b for k < T - D (stable), then m + (b - m) * (T - k) / D for k < T, then m
 *     table     b * factor, linear between the points (step, factor); the first point's factor before
 *               it, the last one's after it. Steps of points are k, counted from the job's beginning
 *     driven    what the trainer gives with each commit (the caller's b); no warm-up
 *   lr(k) = body(k) for k >= W, and in the warm-up before it body(W) * k / W: from 0 in the first round.
 *
 * Sources: Hugging Face transformers, optimization.py: get_constant_schedule_with_warmup,
 * get_linear_schedule_with_warmup (m = 0), get_cosine_schedule_with_warmup (m = 0, num_cycles 0.5; that one
 * rises again behind T, this one stays at m), get_wsd_schedule (decay_type linear, min_lr_ratio m / b,
 * T = warm-up + stable + decay); torch.optim.lr_scheduler.CosineAnnealingLR (W = 0, T_max = T, eta_min = m),
 * LambdaLR. Golden values of those: tests/golden/schedule_golden.h. */
#ifndef CAIRN_SPEC_SCHEDULE_H
#define CAIRN_SPEC_SCHEDULE_H

#include <stddef.h>
#include <stdint.h>

#include "proto/base/sentence.h"
#include "proto/base/status.h"

#define CAIRN_SCHEDULE_POINTS_MAX 1024
#define CAIRN_SCHEDULE_STEPS_MAX  ((uint64_t)1 << 53) /* steps are exact as doubles */

#ifndef CAIRN_SCHEDULE_DEFINED /* cairn.h, which stands alone, has the same numbers (tested) */
#define CAIRN_SCHEDULE_DEFINED
typedef enum cairn_schedule_kind {
    CAIRN_SCHEDULE_CONSTANT = 0,
    CAIRN_SCHEDULE_LINEAR = 1,
    CAIRN_SCHEDULE_COSINE = 2,
    CAIRN_SCHEDULE_WSD = 3,
    CAIRN_SCHEDULE_TABLE = 4,
    CAIRN_SCHEDULE_DRIVEN = 5
} cairn_schedule_kind;
struct cairn_schedule_point {
    uint64_t step;
    double factor; /* of the group's lr */
};
#endif

/* All zero: the group's lr, always. Fields that a kind does not use are 0. */
struct cairn_schedule {
    cairn_schedule_kind kind;
    uint64_t warmup_steps; /* every kind but driven */
    uint64_t total_steps; /* linear, cosine, wsd: more than warmup_steps, that of wsd's decay too */
    uint64_t decay_steps; /* wsd: at least 1 */
    double lr_min;        /* linear, cosine, wsd */
    const struct cairn_schedule_point *points; /* table: [point_count], steps ascending; borrowed */
    size_t point_count;
};

/* "constant", "linear", ...; "?" for a number that is not a kind. */
const char *cairn_schedule_name(int kind);
/* The kind of that name; -1 if there is none. */
int cairn_schedule_number(const char *name);

/* CAIRN_ERR_INVALID: a value out of its range, or one that the kind does not use. `why` (may be NULL)
 * begins with `group`, and names field, value and what is allowed. */
cairn_status cairn_schedule_check(const struct cairn_schedule *schedule, double lr,
                                  const char *group, struct cairn_sentence *why) CAIRN_MUST_CHECK;

/* The learning rate of the round of step `step` (k above) for a group of `lr`. The schedule passes the
 * check. Each operation rounds once, in the order written above. */
double cairn_schedule_lr(const struct cairn_schedule *schedule, double lr, uint64_t step);

/* cos(pi * x) for 0 <= x <= 1: Taylor's polynomials of cos and sin on [-pi/4, pi/4] after the symmetries
 * (exact: x is reduced before pi comes in). Absolute error below 4e-16. */
double cairn_cos_pi(double x);

#endif
