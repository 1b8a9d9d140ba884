/* How large slices are while steps are made, and when one may begin. See reshard.h.
 *
 * A slice costs time in the step in which it is prepared and in the step in which it moves: for
 * pages, copies and sums that need the cores of the backward pass, and for work that no backward
 * pass hides. How much time depends on the machine and on what trainers do, so it is measured:
 * the slice size doubles while the steps around the last slice were within half of the pause,
 * and halves when one of them was longer than the pause allows. The usual length of a step is
 * measured by the same steps. It is set anew when all of them were clearly shorter, or when they
 * are longer though slices are already the smallest: then something else makes steps longer. */
#include "proto/plan/reshard.h"
#include "server/coordinator/base/job.h"

#define SLICE_BYTES_MIN   ((uint64_t)1 << 20)
#define SLICE_BYTES_FIRST ((uint64_t)8 << 20)
#define SLICE_BYTES_MOST  ((uint64_t)1 << 40) /* what a shard can take is less: reshard_plan.c */
#define PAUSE_DEFAULT     0.1
#define STEPS_A_SLICE     2 /* one in which it is prepared, one in which it moves */

static double pause_of(double asked)
{
    return asked > 0 ? asked : PAUSE_DEFAULT;
}

void cairn_cluster_reshard_pace_begin(struct cairn_cluster_reshard_pace *pace, double pause,
                                      uint32_t median_us)
{
    *pace = (struct cairn_cluster_reshard_pace) { .pause = pause_of(pause),
                                                  .usual_us = median_us,
                                                  .most_bytes = SLICE_BYTES_FIRST };
}

void cairn_cluster_reshard_pace_step(struct cairn_cluster_reshard_pace *pace, uint32_t us)
{
    if (us > pace->longest_us) pace->longest_us = us;
}

void cairn_cluster_reshard_pace_slice(struct cairn_cluster_reshard_pace *pace)
{
    const double longest = pace->longest_us, usual = pace->usual_us;
    pace->longest_us = 0;
    if (longest <= 0) return;
    if (usual <= 0 || longest * (1 + pace->pause) < usual) {
        pace->usual_us = (uint32_t)longest;
    } else if (longest <= usual * (1 + pace->pause / 2)) {
        if (pace->most_bytes < SLICE_BYTES_MOST) pace->most_bytes *= 2;
    } else if (longest > usual * (1 + pace->pause)) {
        // The least slice is not what makes steps longer: they have become so by themselves.
        if (pace->most_bytes <= SLICE_BYTES_MIN) pace->usual_us = (uint32_t)longest;
        if (pace->most_bytes > SLICE_BYTES_MIN) pace->most_bytes /= 2;
    }
}

/* A limit beyond what shards can take is none: many halves of it would change nothing. */
void cairn_cluster_reshard_pace_cut(struct cairn_cluster_reshard_pace *pace, uint64_t bytes)
{
    if (bytes >= SLICE_BYTES_FIRST && pace->most_bytes > bytes) pace->most_bytes = bytes;
}

uint64_t cairn_cluster_reshard_slice_most(const struct cairn_cluster_job *job)
{
    const struct cairn_cluster_reshard *r = &job->reshard;
    if (cairn_cluster_pace_rests(job)) return UINT64_MAX;
    return r->running ? r->pace.most_bytes : SLICE_BYTES_FIRST; // as a run begins
}

double cairn_cluster_reshard_expected_s(const struct cairn_cluster_job *job,
                                        const struct cairn_cluster_reshard_target *target)
{
    const double rate = job->reshard.rate, median_us = cairn_cluster_pace_median(&job->pace);
    if (!cairn_cluster_pace_rests(job)) return target->slices * STEPS_A_SLICE * median_us * 1e-6;
    return rate > 0 ? (double)target->report->moved_bytes / rate * 1e-6 : 0;
}

double cairn_cluster_reshard_expected_pause_s(const struct cairn_cluster_job *job, double pause)
{
    if (cairn_cluster_pace_rests(job)) return 0; // nobody makes steps
    return pause_of(pause) * cairn_cluster_pace_median(&job->pace) * 1e-6;
}

bool cairn_cluster_reshard_is_paced(const struct cairn_cluster_job *job)
{
    return cairn_cluster_pace_rests(job) ||
           cairn_version_compare(cairn_cluster_job_version(job), job->layouts.at) > 0;
}
