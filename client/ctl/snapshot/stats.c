#include "client/ctl/snapshot/stats.h"

#include <math.h>
#include <string.h>

#define BLOCK \
    ((size_t)1024) // elements that are added up plainly: a double holds their squares' sum

static void add(struct ctl_sum *s, double x)
{
    const double sum = s->sum + x;
    s->rest += fabs(s->sum) >= fabs(x) ? s->sum - sum + x : x - sum + s->sum;
    s->sum = sum;
}

static void add_block(struct ctl_stats *stats, const float *elems, size_t count)
{
    double sum = 0, squares = 0;
    float min = INFINITY, max = -INFINITY;
    size_t finite = 0;
    for (size_t i = 0; i < count; i++) {
        const float x = elems[i];
        if (!isfinite(x)) continue;
        finite++;
        sum += (double)x;
        squares += (double)x * (double)x;
        min = x < min ? x : min;
        max = x > max ? x : max;
    }
    stats->nonfinite += count - finite;
    if (finite == 0) return;
    if (stats->finite == 0 || min < stats->min) stats->min = min;
    if (stats->finite == 0 || max > stats->max) stats->max = max;
    stats->finite += finite;
    add(&stats->sum, sum);
    add(&stats->squares, squares);
}

void cairn_ctl_stats_add(struct ctl_stats *stats, const float *elems, size_t count)
{
    for (size_t done = 0; done < count; done += BLOCK)
        add_block(stats, elems + done, count - done < BLOCK ? count - done : BLOCK);
}

static void join(struct ctl_sum *s, const struct ctl_sum *more)
{
    add(s, more->sum);
    s->rest += more->rest;
}

void cairn_ctl_stats_join(struct ctl_stats *stats, const struct ctl_stats *more)
{
    stats->nonfinite += more->nonfinite;
    if (more->finite == 0) return;
    if (stats->finite == 0 || more->min < stats->min) stats->min = more->min;
    if (stats->finite == 0 || more->max > stats->max) stats->max = more->max;
    stats->finite += more->finite;
    join(&stats->sum, &more->sum);
    join(&stats->squares, &more->squares);
}

double cairn_ctl_stats_mean(const struct ctl_stats *stats)
{
    return stats->finite > 0 ? cairn_ctl_sum_of(&stats->sum) / (double)stats->finite : 0;
}

double cairn_ctl_stats_norm(const struct ctl_stats *stats)
{
    return sqrt(cairn_ctl_sum_of(&stats->squares));
}

static void note_first(struct ctl_difference *d, uint64_t elem)
{
    if (d->elems == 0 || elem < d->first_elem) d->first_elem = elem;
    d->elems++;
}

void cairn_ctl_difference_add(struct ctl_difference *d, uint64_t first_elem, const float *a,
                              const float *b, size_t count)
{
    for (size_t done = 0; done < count; done += BLOCK) {
        const size_t end = count - done < BLOCK ? count : done + BLOCK;
        double squares = 0, squares_a = 0;
        for (size_t i = done; i < end; i++) {
            const bool same = memcmp(&a[i], &b[i], sizeof a[i]) == 0;
            if (!same) note_first(d, first_elem + i);
            if (!isfinite(a[i]) || !isfinite(b[i])) {
                d->unlike += !same;
                continue;
            }
            const double by = fabs((double)b[i] - (double)a[i]);
            d->max = by > d->max ? by : d->max;
            squares += by * by;
            squares_a += (double)a[i] * (double)a[i];
        }
        add(&d->squares, squares);
        add(&d->squares_a, squares_a);
    }
}

void cairn_ctl_difference_add_bytes(struct ctl_difference *d, uint64_t first_elem, const uint8_t *a,
                                    const uint8_t *b, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (a[i] != b[i]) note_first(d, first_elem + i);
}

void cairn_ctl_difference_join(struct ctl_difference *d, const struct ctl_difference *more)
{
    if (more->elems > 0 && (d->elems == 0 || more->first_elem < d->first_elem))
        d->first_elem = more->first_elem;
    d->elems += more->elems;
    d->unlike += more->unlike;
    d->max = more->max > d->max ? more->max : d->max;
    join(&d->squares, &more->squares);
    join(&d->squares_a, &more->squares_a);
}

double cairn_ctl_difference_relative(const struct ctl_difference *d)
{
    const double by = cairn_ctl_sum_of(&d->squares), of = cairn_ctl_sum_of(&d->squares_a);
    return by > 0 ? sqrt(by / of) : 0;
}
