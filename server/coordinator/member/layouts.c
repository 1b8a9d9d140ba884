#include "server/coordinator/member/layouts.h"

#include <stdlib.h>
#include <string.h>

#include "proto/plan/plan_job.h"
#include "server/coordinator/base/job.h"
#include "server/coordinator/base/member.h"
#include "server/coordinator/base/seat.h"
#include "server/coordinator/base/session.h"
#include "server/coordinator/store/store.h"
#include "server/core/holes.h"

cairn_status cairn_cluster_layouts_load(struct cairn_cluster_job *job,
                                        const struct cairn_stored_job *row)
{
    struct cairn_layout *before;
    const cairn_status status = cairn_plan_job_decode(&job->spec, row->layout_before,
                                                      row->layout_before_bytes, &before);
    if (status != CAIRN_OK) return status;
    job->layouts.before = cairn_packed_copy(row->layout_before, row->layout_before_bytes);
    job->layouts.before_shards = before->shard_count;
    // It may be older than the layout that the slice under way began with: then there is no way back to that.
    if (before->version + 1 == job->layout->version)
        job->reshard.prior = before;
    else
        cairn_layout_close(before);
    return job->layouts.before != NULL ? CAIRN_OK : CAIRN_ERR_NO_MEMORY;
}

void cairn_cluster_layouts_drop_next(struct cairn_cluster_job *job)
{
    struct cairn_cluster_layouts *l = &job->layouts;
    cairn_layout_close(l->next);
    cairn_packed_release(l->next_packed);
    free(l->next_gone);
    l->next = NULL;
    l->next_packed = NULL;
    l->next_gone = NULL;
    l->storing = false;
}

void cairn_cluster_layouts_release(struct cairn_cluster_job *job)
{
    cairn_cluster_layouts_drop_next(job);
    cairn_packed_release(job->layouts.before);
    job->layouts.before = NULL;
}

/* ---- from one to the next ---- */

bool cairn_cluster_layouts_behind(const struct cairn_cluster_job *job)
{
    return job->layouts.before != NULL &&
           cairn_version_compare(cairn_cluster_job_version(job), job->layouts.at) <= 0;
}

bool cairn_cluster_layouts_serves(const struct cairn_cluster_job *job, uint32_t shard)
{
    const struct cairn_packed *packed = job->layouts.before;
    struct cairn_layout *before;
    if (!cairn_cluster_layouts_behind(job)) return false;
    if (cairn_plan_job_decode(&job->spec, packed->bytes, packed->size, &before) != CAIRN_OK)
        return true;
    const bool serves = cairn_layout_owns(before, shard);
    cairn_layout_close(before);
    return serves;
}

static void make_holes(struct cairn_cluster_job *job)
{
    const struct cairn_cluster_layouts *l = &job->layouts;
    CAIRN_EACH_SHARD (job, i) {
        if (i >= l->next->shard_count || !cairn_is_hole(l->next_gone, l->next->shard_count, i))
            continue;
        cairn_cluster_members_forget_shard(job, i);
        cairn_cluster_job_set_seat(job, i, NULL);
    }
}

struct cairn_layout *cairn_cluster_layouts_take_next(struct cairn_cluster_job *job,
                                                     struct cairn_version now)
{
    struct cairn_cluster_layouts *l = &job->layouts;
    uint32_t before_shards;
    struct cairn_packed *before = cairn_cluster_job_before_next(job, now, &before_shards);
    if (before != NULL) before = cairn_packed_hold(before);
    cairn_packed_release(l->before);
    l->before = before;
    l->before_shards = before_shards;
    l->at = now;
    CAIRN_EACH_SHARD (job, i) {
        if (i >= job->layout->shard_count) job->shards[i].joined_at = now;
    }
    make_holes(job);
    struct cairn_layout *was = job->layout;
    cairn_packed_release(job->planned.layout);
    job->layout = l->next;
    job->planned.layout = l->next_packed;
    job->planned.heaviest_over_mean = 0;
    free(job->planned.shard_bytes);
    job->planned.shard_bytes = NULL;
    job->tiles.changed = true; // all shards are to know of them, no more and no fewer
    l->next = NULL;
    l->next_packed = NULL;
    cairn_cluster_layouts_drop_next(job);
    return was;
}

void cairn_cluster_layouts_published(struct cairn_cluster_job *job)
{
    cairn_packed_release(job->layouts.before);
    job->layouts.before = NULL;
}

/* ---- what members hear ---- */

static void send_changed(struct cairn_cluster_member *member,
                         const struct cairn_cluster_shard_infos *infos)
{
    const struct cairn_cluster_job *job = member->job;
    const bool behind = job->layouts.before != NULL;
    Cairn__LayoutChanged message = CAIRN__LAYOUT_CHANGED__INIT;
    message.job = job->id;
    message.layout = job->layout->version;
    message.since_generation = job->layouts.at.generation;
    message.since_step = job->layouts.at.step + (behind ? 1 : 0);
    message.layout_bytes = job->planned.layout->size;
    message.shards = infos->list;
    message.n_shards = infos->count;
    cairn_cluster_session_send(member->session, CAIRN_MSG_LAYOUT_CHANGED, 0, &message.base);
    cairn_cluster_session_pages(member->session, 0, CAIRN_PAGE_LAYOUT, job->planned.layout);
}

void cairn_cluster_member_layout_changed(struct cairn_cluster_member *member)
{
    struct cairn_cluster_shard_infos infos;
    if (cairn_cluster_shard_infos_init(&infos, member->job, member->job->layout->shard_count)) {
        send_changed(member, &infos);
        cairn_cluster_shard_infos_release(&infos);
        return;
    }
    // It would read and push by a layout that is not in force any more: it connects anew.
    struct cairn_cluster_session *session = member->session;
    if (session->closing) return;
    session->closing = true;
    cairn_peer_finish(session->peer, CAIRN_ERR_CLOSED, "the coordinator is out of memory");
}

void cairn_cluster_members_layout_changed(struct cairn_cluster_job *job)
{
    struct cairn_cluster_member *next;
    for (struct cairn_cluster_member *m = job->members.list; m != NULL; m = next) {
        next = m->next_of_job;
        if (m->phase == CAIRN_MEMBER_ATTACHED) cairn_cluster_member_layout_changed(m);
    }
}
