#include "server/coordinator/cut/cost.h"

#include <uv.h>

#include "server/coordinator/base/job.h"
#include "server/coordinator/cluster.h"
#include "server/coordinator/cut/cut.h"

static void begin(struct cairn_cluster_cost *cost, const struct cairn_cluster_cut *cut)
{
    const bool comparable = cost->plain.count >= CAIRN_COST_STEPS;
    cost->is_counting = true;
    cost->has_ended = cost->is_committed = false;
    cost->number = cut->number;
    cost->extra_us = 0;
    cost->usual_us = comparable ? cairn_cluster_pace_median(&cost->plain) : 0;
}

static uint32_t bounded(int64_t us)
{
    return us < 0 ? 0 : us < UINT32_MAX ? (uint32_t)us : UINT32_MAX;
}

/* One that failed, or had nothing to be compared with, says nothing. */
static void conclude(struct cairn_cluster_cost *cost)
{
    cost->is_counting = false;
    if (!cost->is_committed || cost->usual_us == 0) return;
    cost->extras_us[cost->next] = bounded(cost->extra_us);
    cost->writes_us[cost->next] = bounded((int64_t)cost->write_us);
    cost->next = (cost->next + 1) % CAIRN_COST_SNAPSHOTS;
    if (cost->count < CAIRN_COST_SNAPSHOTS) cost->count++;
}

void cairn_cluster_cost_note_step(struct cairn_cluster_job *job)
{
    struct cairn_cluster_cost *cost = &job->snapshots.cost;
    const struct cairn_cluster_cut *cut = job->snapshots.cut;
    const uint32_t us = job->pace.last_us;
    if (!cost->is_counting && cut != NULL && cut->is_snapshot) begin(cost, cut);
    if (cost->is_counting) {
        cost->extra_us += (int64_t)us - cost->usual_us;
        if (cost->has_ended) conclude(cost);
    } else if (cut == NULL) { // a digest is neither
        cairn_cluster_pace_note(&cost->plain, us);
    }
}

void cairn_cluster_cost_ended(const struct cairn_cluster_cut *cut)
{
    struct cairn_cluster_cost *cost = &cut->job->snapshots.cost;
    if (!cut->is_snapshot) return;
    if (!cost->is_counting || cost->number != cut->number) begin(cost, cut); // within one step
    cost->has_ended = true;
    cost->is_committed = cut->status == CAIRN_OK;
    cost->write_us = 1000 * (uv_now(cut->job->cluster->loop) - cut->begun_ms);
}
