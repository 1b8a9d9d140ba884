#include "proto/spec/schedule.h"

#include <assert.h>
#include <stdbool.h>
#include <string.h>

#define LR_MAX 1e18 // as every hyper-parameter (spec.h): scalars made of it are finite in fp32

static const char *const names[] = { "constant", "linear", "cosine", "wsd", "table", "driven" };
#define NAMES (sizeof names / sizeof names[0])

const char *cairn_schedule_name(int kind)
{
    return kind >= 0 && (size_t)kind < NAMES ? names[kind] : "?";
}

int cairn_schedule_number(const char *name)
{
    for (size_t i = 0; i < NAMES; i++) {
        if (strcmp(names[i], name) == 0) return (int)i;
    }
    return -1;
}

/* ---- the check ---- */

/* The beginning of every sentence of the check, and where it goes. */
struct subject {
    const char *group, *kind;
    struct cairn_sentence *why;
};

static bool count_in(const struct subject *s, const char *field, uint64_t value, uint64_t min,
                     uint64_t max)
{
    if (value >= min && value <= max) return true;
    cairn_sentence_set(s->why, "group \"%s\", schedule %s: %s is %llu; allowed: %llu to %llu",
                       s->group, s->kind, field, (unsigned long long)value, (unsigned long long)min,
                       (unsigned long long)max);
    return false;
}

static bool unused(const struct subject *s, const char *field, bool is_zero)
{
    if (is_zero) return true;
    cairn_sentence_set(s->why, "group \"%s\", schedule %s: it has no %s; allowed: 0 (not set)",
                       s->group, s->kind, field);
    return false;
}

static bool check_points(const struct subject *s, const struct cairn_schedule *schedule, double lr)
{
    if (!count_in(s, "point_count", schedule->point_count, 1, CAIRN_SCHEDULE_POINTS_MAX))
        return false;
    for (size_t i = 0; i < schedule->point_count; i++) {
        const struct cairn_schedule_point *p = &schedule->points[i];
        const uint64_t least = i > 0 ? schedule->points[i - 1].step + 1 : 0;
        if (!count_in(s, "the step of a point", p->step, least, CAIRN_SCHEDULE_STEPS_MAX))
            return false;
        if (p->factor >= 0 && p->factor <= LR_MAX && lr * p->factor <= LR_MAX) continue;
        cairn_sentence_set(s->why,
                           "group \"%s\", schedule table: the factor of point %zu is %g; allowed: "
                           "0 to %g, lr x factor too",
                           s->group, i, p->factor, LR_MAX);
        return false;
    }
    return true;
}

/* The end that linear, cosine and wsd run down to. */
static bool check_end(const struct subject *s, const struct cairn_schedule *schedule, double lr)
{
    const bool wsd = schedule->kind == CAIRN_SCHEDULE_WSD;
    if (wsd && !count_in(s, "decay_steps", schedule->decay_steps, 1, CAIRN_SCHEDULE_STEPS_MAX))
        return false;
    const uint64_t before = schedule->warmup_steps + (wsd ? schedule->decay_steps : 1);
    if (!count_in(s, "total_steps", schedule->total_steps, before, CAIRN_SCHEDULE_STEPS_MAX))
        return false;
    if (schedule->lr_min >= 0 && schedule->lr_min <= lr) return true;
    cairn_sentence_set(s->why,
                       "group \"%s\", schedule %s: lr_min is %g; allowed: 0 to the group's lr, %g",
                       s->group, s->kind, schedule->lr_min, lr);
    return false;
}

cairn_status cairn_schedule_check(const struct cairn_schedule *schedule, double lr,
                                  const char *group, struct cairn_sentence *why)
{
    const int kind = (int)schedule->kind;
    const struct subject s = { group, cairn_schedule_name(kind), why };
    const bool has_end = kind == CAIRN_SCHEDULE_LINEAR || kind == CAIRN_SCHEDULE_COSINE ||
                         kind == CAIRN_SCHEDULE_WSD;
    const bool has_points = kind == CAIRN_SCHEDULE_TABLE;
    if (kind < 0 || (size_t)kind >= NAMES) {
        return cairn_fail(why, CAIRN_ERR_INVALID,
                          "group \"%s\": schedule is %d; allowed: 0 (constant), 1 (linear), 2 "
                          "(cosine), 3 (wsd), 4 (table), 5 (driven)",
                          group, kind);
    }
    if (!count_in(&s, "warmup_steps", schedule->warmup_steps, 0, CAIRN_SCHEDULE_STEPS_MAX))
        return CAIRN_ERR_INVALID;
    if (!unused(&s, "warmup_steps", kind != CAIRN_SCHEDULE_DRIVEN || schedule->warmup_steps == 0) ||
        !unused(&s, "total_steps", has_end || schedule->total_steps == 0) ||
        !unused(&s, "decay_steps", kind == CAIRN_SCHEDULE_WSD || schedule->decay_steps == 0) ||
        !unused(&s, "lr_min", has_end || schedule->lr_min == 0) ||
        !unused(&s, "points", has_points || schedule->point_count == 0)) {
        return CAIRN_ERR_INVALID;
    }
    if (has_end && !check_end(&s, schedule, lr)) return CAIRN_ERR_INVALID;
    if (has_points && !check_points(&s, schedule, lr)) return CAIRN_ERR_INVALID;
    return CAIRN_OK;
}

/* ---- the rate ---- */

#define PI 3.14159265358979323846

/* |y| <= pi/4: the first term left out is below 3e-18. */
static double cos_near_0(double y)
{
    const double z = y * y;
    double sum = 1.0 / 20922789888000.0; // 1/16!
    sum = sum * z - 1.0 / 87178291200.0; // 1/14!
    sum = sum * z + 1.0 / 479001600.0;
    sum = sum * z - 1.0 / 3628800.0;
    sum = sum * z + 1.0 / 40320.0;
    sum = sum * z - 1.0 / 720.0;
    sum = sum * z + 1.0 / 24.0;
    sum = sum * z - 0.5;
    return sum * z + 1.0;
}

static double sin_near_0(double y)
{
    const double z = y * y;
    double sum = -1.0 / 1307674368000.0; // 1/15!
    sum = sum * z + 1.0 / 6227020800.0;
    sum = sum * z - 1.0 / 39916800.0;
    sum = sum * z + 1.0 / 362880.0;
    sum = sum * z - 1.0 / 5040.0;
    sum = sum * z + 1.0 / 120.0;
    sum = sum * z - 1.0 / 6.0;
    return y + sum * z * y;
}

double cairn_cos_pi(double x)
{
    if (x <= 0.25) return cos_near_0(PI * x);
    if (x < 0.75) return sin_near_0(PI * (0.5 - x));
    return -cos_near_0(PI * (1.0 - x));
}

/* Steps are at most 2^53 in a schedule that was judged. */
static double span(uint64_t from, uint64_t to)
{
    return (double)(to - from);
}

static double table_factor(const struct cairn_schedule *s, uint64_t k)
{
    size_t next = 0; // the first point behind k
    while (next < s->point_count && s->points[next].step <= k) next++;
    if (next == 0) return s->points[0].factor;
    const struct cairn_schedule_point *a = &s->points[next - 1], *b = a + 1;
    if (next == s->point_count) return a->factor;
    return a->factor + (b->factor - a->factor) * span(a->step, k) / span(a->step, b->step);
}

/* For k >= warmup_steps. */
static double body(const struct cairn_schedule *s, double lr, uint64_t k)
{
    const uint64_t warmup = s->warmup_steps, total = s->total_steps;
    switch (s->kind) {
    case CAIRN_SCHEDULE_CONSTANT:
    case CAIRN_SCHEDULE_DRIVEN: return lr;
    case CAIRN_SCHEDULE_LINEAR:
        if (k >= total) return s->lr_min;
        return s->lr_min + (lr - s->lr_min) * (span(k, total) / span(warmup, total));
    case CAIRN_SCHEDULE_COSINE:
        if (k >= total) return s->lr_min;
        return s->lr_min +
               (lr - s->lr_min) * (1.0 + cairn_cos_pi(span(warmup, k) / span(warmup, total))) / 2;
    case CAIRN_SCHEDULE_WSD:
        if (k < total - s->decay_steps) return lr;
        if (k >= total) return s->lr_min;
        return s->lr_min + (lr - s->lr_min) * (span(k, total) / (double)s->decay_steps);
    case CAIRN_SCHEDULE_TABLE: return lr * table_factor(s, k);
    }
    assert(false && "a schedule that was not judged");
    return 0;
}

double cairn_schedule_lr(const struct cairn_schedule *schedule, double lr, uint64_t step)
{
    const uint64_t warmup = schedule->warmup_steps;
    if (step >= warmup) return body(schedule, lr, step);
    return body(schedule, lr, warmup) * (span(0, step) / span(0, warmup));
}
