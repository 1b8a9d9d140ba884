/* Shards that join a job: each gets a part that owns nothing and serves at once, so that it can prepare the
 * next layout as the others do; and, if that is the policy, its share. See reshard.h. */
#include <string.h>

#include "proto/plan/plan_job.h"
#include "proto/plan/reshard.h"
#include "server/base/log.h"
#include "server/coordinator/base/calls.h"
#include "server/coordinator/base/job.h"
#include "server/coordinator/base/seat.h"
#include "server/coordinator/base/session.h"
#include "server/coordinator/cluster.h"
#include "server/coordinator/job/jobs.h"
#include "server/coordinator/store/events.h"

/* They have their parts: from here on they are told what the others are told. */
static void take_in(struct cairn_cluster_job *job)
{
    struct cairn_cluster_reshard *r = &job->reshard;
    const uint32_t first = job->shard_count;
    for (uint32_t i = 0; i < r->joiner_count; i++) {
        struct cairn_cluster_seat *seat = r->joiners[i].seat;
        cairn_cluster_job_set_seat(job, first + i, seat);
        job->shards[first + i].weight = r->joiners[i].weight;
        job->shards[first + i].incarnation = seat->incarnation;
        job->shards[first + i].revision = job->spec.revision;
        job->shards[first + i].up = true;
        (void)cairn_cluster_job_shard_moved(&job->shards[first + i]);
        cairn_log_info("job %s: shard %s joins", job->spec.name, seat->name);
        cairn_cluster_event_note_shard(job->cluster, CAIRN_EVENT_SHARD_JOINED, job->spec.name,
                                       seat->name, "it has a part of the job");
    }
    r->joiner_count = 0;
    for (uint32_t i = first; i < job->shard_count; i++) {
        const struct cairn_round_event up = { .kind = CAIRN_ROUND_SHARD_UP, .shard = i };
        cairn_cluster_terms_tell(job, i, false);
        cairn_cluster_members_tell_shard(job, i);
        cairn_cluster_job_event(job, &up);
    }
    cairn_cluster_tiles_advance(job);
}

static void on_joined(struct cairn_cluster_job *job, const void *about, cairn_status status,
                      const char *text)
{
    struct cairn_cluster_reshard *r = &job->reshard;
    struct cairn_sentence why;
    if (r->asking == NULL || r->serial != *(const uint32_t *)about) return;
    r->asking = NULL;
    for (uint32_t i = 0; i < r->joiner_count && status == CAIRN_OK; i++)
        if (r->joiners[i].seat->session == NULL || r->joiners[i].seat->session->closing)
            status = cairn_fail(&why, CAIRN_ERR_CLOSED, "shard %s went away",
                                r->joiners[i].seat->name);
        else
            cairn_sentence_set(&why, "%s", text);
    if (status != CAIRN_OK) {
        if (text[0] != '\0') cairn_sentence_set(&why, "%s", text);
        cairn_cluster_reshard_end(job, CAIRN_RESHARD_FAILED, why.text);
        return;
    }
    take_in(job);
    cairn_cluster_reshard_advance(job);
}

/* The layout in force, over as many shards as there will be. NULL: no memory. */
static struct cairn_packed *pack_wider(const struct cairn_cluster_job *job)
{
    struct cairn_layout *wider;
    if (cairn_plan_job_widen(&job->spec, job->layout, job->shard_count + job->reshard.joiner_count,
                             &wider) != CAIRN_OK)
        return NULL;
    wider->version = job->layout->version; // they join it, nothing follows it yet
    struct cairn_packed *packed = cairn_packed_layout(wider);
    cairn_layout_close(wider);
    return packed;
}

static void ask_all(struct cairn_cluster_job *job, struct cairn_packed *layout,
                    struct cairn_cluster_gather *gather)
{
    struct cairn_decision last = *cairn_round_last(job->core); // schedule and loss scale
    last.kind = CAIRN_DECISION_NONE;
    last.version_after = (struct cairn_version) { job->generation, job->base_step };
    const struct cairn_cluster_job_load load = { .joins = true,
                                                 .version = last.version_after,
                                                 .last = &last };
    for (uint32_t i = 0; i < job->reshard.joiner_count; i++) {
        struct cairn_cluster_seat *seat = job->reshard.joiners[i].seat;
        // Drop the part that an earlier run may have left on this shard: it is of no use.
        cairn_cluster_job_send_drop(job->cluster, seat, job->id);
        cairn_cluster_job_ask_create(job, &load, job->shard_count + i, seat, layout, gather);
    }
}

void cairn_cluster_reshard_join(struct cairn_cluster_job *job)
{
    struct cairn_cluster_reshard *r = &job->reshard;
    struct cairn_packed *layout = pack_wider(job);
    r->serial = cairn_cluster_request_new(job->cluster);
    struct cairn_cluster_gather *gather = layout == NULL
                                              ? NULL
                                              : cairn_cluster_gather_open_job(
                                                    job, on_joined, &r->serial, sizeof r->serial);
    if (gather != NULL) {
        r->asking = "the shards that join, to make room";
        ask_all(job, layout, gather);
        cairn_cluster_gather_start(gather);
    }
    cairn_packed_release(layout);
}

void cairn_cluster_reshard_unjoin(struct cairn_cluster_job *job)
{
    const bool was_busy = job->reshard.busy;
    job->reshard.busy = true;
    while (job->shard_count > job->layout->shard_count && !job->layouts.storing) {
        const uint32_t shard = job->shard_count - 1;
        const struct cairn_round_event down = { .kind = CAIRN_ROUND_SHARD_DOWN, .shard = shard };
        struct cairn_cluster_seat *seat = job->shards[shard].seat;
        const bool was_up = job->shards[shard].up;
        cairn_cluster_members_forget_shard(job, shard);
        cairn_cluster_job_set_seat(job, shard, NULL);
        job->shard_count = shard;
        cairn_cluster_job_send_drop(job->cluster, seat, job->id);
        if (was_up && job->core != NULL) cairn_cluster_job_event(job, &down);
    }
    cairn_cluster_tiles_advance(job);
    cairn_cluster_members_attach(job);
    job->reshard.busy = was_busy;
}

/* ---- by policy ---- */

/* Over all that are here, if the heaviest would be too much heavier than its share where nothing moves. */
static cairn_status spread_if_uneven(struct cairn_cluster_job *job,
                                     const struct cairn_cluster_reshard_wish *wish,
                                     struct cairn_sentence *why)
{
    struct cairn_cluster_reshard_target target;
    const cairn_status status = cairn_cluster_reshard_plan(job, wish, &target, why);
    if (status != CAIRN_OK) return status;
    const double above = (double)job->cluster->options->rebalance_above / 1000;
    const bool uneven = target.report->heaviest_before > above && target.report->moved_bytes > 0;
    cairn_cluster_reshard_target_release(&target);
    return uneven ? cairn_cluster_reshard_begin(job, wish, why) : CAIRN_OK;
}

/* Once for the shards that came; what was refused, with each tick, and said once. */
static void spread(struct cairn_cluster_job *job)
{
    struct cairn_cluster_reshard *r = &job->reshard;
    const uint64_t seats = job->cluster->seats_taken;
    struct cairn_cluster_reshard_wish wish;
    struct cairn_sentence why;
    if (job->state != CAIRN_CLUSTER_JOB_RUNNING || r->running ||
        !cairn_cluster_job_shards_up(job) || !job->rounds.heard || r->seats_seen == seats ||
        cairn_cluster_reshard_wish_present(job, &wish) != CAIRN_OK)
        return;
    cairn_cluster_reshard_wish_all(job, &wish);
    const cairn_status status = spread_if_uneven(job, &wish, &why);
    cairn_cluster_reshard_wish_release(&wish);
    if (status == CAIRN_OK)
        r->seats_seen = seats;
    else if (r->seats_refused != seats)
        cairn_log_warn("job %s is not spread over the shards that came: %s", job->spec.name,
                       why.text);
    if (status != CAIRN_OK) r->seats_refused = seats;
}

void cairn_cluster_reshard_spread(struct cairn_cluster *cluster)
{
    const char *policy = cluster->options->reshard;
    if (policy == NULL || strcmp(policy, "on_join") != 0) return;
    for (struct cairn_cluster_job *j = cluster->jobs; j != NULL; j = j->next) spread(j);
}
