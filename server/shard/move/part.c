#include "server/shard/move/part.h"

#include <stdlib.h>

#include "server/shard/job/members.h"
#include "server/shard/job/open.h"
#include "server/shard/move/force.h"

#define TICK_MS 20

void cairn_move_part_drop(struct cairn_shard_job *job, struct cairn_move_part *part)
{
    if (part == NULL) return;
    const bool ends = job->shard->closing || job->state == CAIRN_JOB_LEAVING;
    for (size_t i = 0; i < part->mover_count && !ends; i++)
        cairn_member_leave(job, part->movers[i]);
    if (job->shard->closing && part->take != NULL)
        cairn_take_free(part->take);
    else
        cairn_take_leave(part->take);
    cairn_shard_job_give(job, &job->memory.staging, part->staging);
    cairn_shard_view_unref(part->view);
    free(part->movers);
    free(part);
}

const struct cairn_shard_view *cairn_move_kept(const struct cairn_shard_job *job)
{
    return job->move.now != NULL && !job->move.now->is_back ? job->move.before : NULL;
}

/* ---- bytes ---- */

struct sum {
    const struct cairn_shard_view *view;
    uint64_t bytes;
};

static void add_run(void *context, const struct cairn_shard_view_run *run)
{
    struct sum *sum = context;
    for (enum cairn_plane p = 0; p < CAIRN_PLANES; p++)
        sum->bytes += cairn_form_bytes(&sum->view->forms[run->extent], p, run->elem_count);
}

uint64_t cairn_move_bytes_beyond(const struct cairn_shard_job *job,
                                 const struct cairn_shard_view *view,
                                 const struct cairn_shard_view *beside)
{
    struct sum sum = { .view = view };
    if (job->planes.host_from == 0) cairn_shard_view_beyond(view, beside, add_run, &sum);
    return sum.bytes;
}

void cairn_move_trim(struct cairn_shard_job *job)
{
    const struct cairn_move *move = &job->move;
    const struct cairn_shard_view *views[] = { job->view, move->before,
                                               move->next != NULL ? move->next->view : NULL };
    // State may still come to a place that was given up: then the next call tries again.
    if (job->planes.host_from == 0 || move->leaving != NULL || job->shard->closing) return;
    cairn_shard_views_keep(views, sizeof views / sizeof *views, &job->planes, job->shard);
    job->memory.device = cairn_shard_job_device_bytes(job, false);
}

/* ---- time ---- */

/* True: something is waited for. */
static bool tick_job(struct cairn_shard_job *job, uint64_t now_ms)
{
    bool waits = false;
    if (job->move.now != NULL && job->move.now->take != NULL)
        waits = cairn_take_tick(job->move.now->take, now_ms);
    cairn_move_rests(job);
    if (job->move.is_settling) cairn_move_settle(job);
    return waits || job->move.is_settling || job->move.fence.epoch != 0;
}

static void on_tick(uv_timer_t *timer)
{
    const struct cairn_shard *shard = timer->data;
    bool waits = false;
    for (struct cairn_shard_job *job = shard->jobs; job != NULL; job = job->next)
        if (job->state == CAIRN_JOB_SERVING && tick_job(job, uv_now(shard->loop))) waits = true;
    if (!waits) uv_timer_stop(timer);
}

void cairn_move_wake(struct cairn_shard *shard)
{
    if (shard->closing || uv_is_active((uv_handle_t *)&shard->move_timer)) return;
    uv_timer_start(&shard->move_timer, on_tick, TICK_MS, TICK_MS);
}
