/* Statistics of the elements of a plane, gathered piece by piece. Pure. */
#ifndef CAIRN_CTL_SNAPSHOT_STATS_H
#define CAIRN_CTL_SNAPSHOT_STATS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* A sum that knows what it has rounded off (Neumaier). */
struct ctl_sum {
    double sum, rest;
};
static inline double cairn_ctl_sum_of(const struct ctl_sum *s)
{
    return s->sum + s->rest;
}

/* All of the elements that are finite, but nonfinite. Zeroed: of none. */
struct ctl_stats {
    uint64_t finite, nonfinite; /* elements */
    float min, max;             /* where finite is above 0 */
    struct ctl_sum sum, squares;
};
void cairn_ctl_stats_add(struct ctl_stats *stats, const float *elems, size_t count);
/* Adds all that `more` has. */
void cairn_ctl_stats_join(struct ctl_stats *stats, const struct ctl_stats *more);
/* Mean and norm of the finite elements; 0 if there are none. */
double cairn_ctl_stats_mean(const struct ctl_stats *stats);
double cairn_ctl_stats_norm(const struct ctl_stats *stats); /* L2 */

/* How elements b differ from elements a of the same place. Zeroed: of none. */
struct ctl_difference {
    uint64_t elems;      /* whose bits differ */
    uint64_t first_elem; /* of them, where elems is above 0 */
    uint64_t unlike; /* of them, those of which one is not finite: in none of the figures below */
    double max;      /* of |b - a| */
    struct ctl_sum squares, squares_a; /* of b - a; of a, where both are finite */
};
void cairn_ctl_difference_add(struct ctl_difference *difference, uint64_t first_elem,
                              const float *a, const float *b, size_t count);
/* The same of bytes: only elems and first_elem. */
void cairn_ctl_difference_add_bytes(struct ctl_difference *difference, uint64_t first_elem,
                                    const uint8_t *a, const uint8_t *b, size_t count);
/* And all of `more`, of other elements of the same plane. */
void cairn_ctl_difference_join(struct ctl_difference *difference,
                               const struct ctl_difference *more);
/* |b - a| / |a| in the L2 norm; infinite if a is 0 and b is not, 0 if they are the same. */
double cairn_ctl_difference_relative(const struct ctl_difference *difference);

#endif
