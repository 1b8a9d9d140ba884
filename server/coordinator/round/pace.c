#include "server/coordinator/round/pace.h"

#include <stdlib.h>
#include <uv.h>

#include "server/coordinator/base/job.h"

#define RESTS_US 1000000 /* without a step, at least */
#define NEAR_US  1000000 /* a step that takes longer is not near */

static uint64_t now_us(void)
{
    return uv_hrtime() / 1000;
}

void cairn_cluster_pace_note(struct cairn_cluster_pace *pace, uint32_t us)
{
    pace->last_us = us;
    pace->us[pace->next] = us;
    pace->next = (pace->next + 1) % CAIRN_PACE_STEPS;
    if (pace->count < CAIRN_PACE_STEPS) pace->count++;
}

bool cairn_cluster_pace_advance(struct cairn_cluster_job *job)
{
    struct cairn_cluster_pace *pace = &job->pace;
    const struct cairn_version now = cairn_cluster_job_version(job);
    if (cairn_version_compare(now, pace->seen) == 0) return false;
    const bool is_step = pace->seen_us != 0 && now.generation == pace->seen.generation &&
                         now.step == pace->seen.step + 1;
    const uint64_t at_us = now_us(), us = at_us - pace->seen_us;
    pace->seen = now;
    pace->seen_us = at_us;
    if (!is_step) return false;
    cairn_cluster_pace_note(pace, us < UINT32_MAX ? (uint32_t)us : UINT32_MAX);
    return true;
}

static int compare(const void *left, const void *right)
{
    const uint32_t a = *(const uint32_t *)left, b = *(const uint32_t *)right;
    return (a > b) - (a < b);
}

uint32_t cairn_cluster_pace_median(const struct cairn_cluster_pace *pace)
{
    uint32_t sorted[CAIRN_PACE_STEPS];
    if (pace->count == 0) return 0;
    for (uint32_t i = 0; i < pace->count; i++) sorted[i] = pace->us[i];
    qsort(sorted, pace->count, sizeof *sorted, compare);
    return sorted[pace->count / 2];
}

bool cairn_cluster_pace_rests(const struct cairn_cluster_job *job)
{
    if (job->core == NULL || cairn_round_worker_count(job->core) == 0) return true;
    const uint64_t quiet_us = now_us() - job->pace.seen_us;
    return quiet_us > RESTS_US && quiet_us > 3 * (uint64_t)cairn_cluster_pace_median(&job->pace);
}

bool cairn_cluster_pace_nears_step(const struct cairn_cluster_job *job)
{
    const uint64_t median_us = cairn_cluster_pace_median(&job->pace);
    return median_us <= NEAR_US && now_us() - job->pace.seen_us < 2 * median_us &&
           !cairn_cluster_pace_rests(job);
}
