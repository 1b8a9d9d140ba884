#include "server/shard/move/force.h"

#include <stdio.h>

#include "server/shard/job/own.h"
#include "server/shard/job/switch.h"
#include "server/shard/move/part.h"
#include "server/shard/move/shift.h"
#include "server/shard/read/fetch.h"
#include "server/shard/relay/relay.h"
#include "server/shard/state/write.h"

#define PINS_MS 30000 /* that a Fence waits for snapshots */

static uint64_t version_of(const struct cairn_move_part *part)
{
    return part->view->layout->version;
}

/* ---- it is whole ---- */

static void tell_moved(struct cairn_shard_job *job)
{
    const struct cairn_move_part *now = job->move.now;
    Cairn__PartMoved moved = CAIRN__PART_MOVED__INIT;
    moved.job = job->number;
    moved.layout = job->view->layout->version;
    moved.bytes = now != NULL ? now->moved_bytes : 0;
    moved.us = now != NULL ? now->moved_us : 0;
    cairn_session_send(job->shard, CAIRN_MSG_PART_MOVED, 0, &moved.base);
    cairn_log_debug("job %s: layout %llu: the coordinator is told that all is here", job->spec.name,
                    (unsigned long long)moved.layout);
}

static void on_taken(struct cairn_take *take)
{
    struct cairn_shard_job *job = cairn_take_job(take);
    struct cairn_move_part *now = job->move.now;
    (void)cairn_take_is_done(take, &now->moved_bytes, &now->moved_us);
    cairn_log_info("job %s: layout %llu: all that comes is here: %llu bytes in %llu us",
                   job->spec.name, (unsigned long long)version_of(now),
                   (unsigned long long)now->moved_bytes, (unsigned long long)now->moved_us);
    now->take = NULL;
    cairn_shard_job_give(job, &job->memory.staging, now->staging);
    now->staging = 0;
    cairn_take_leave(take);
    cairn_published_forget_params(job);
    tell_moved(job);
    cairn_own_step(job, &(struct cairn_step_event) { .kind = CAIRN_STEP_WHOLE });
    cairn_fetch_deferred(job);
}

/* A part that joined has heard at which version the job is: it has nothing of it, and so all. */
static void note_version(struct cairn_shard_job *job)
{
    struct cairn_published *newest = &job->versions.copies[job->versions.newest];
    const struct cairn_version version = cairn_step_version(job->collector.step);
    if (newest->view->table.map.elem_count == 0 &&
        cairn_version_compare(newest->version, version) < 0)
        newest->version = version;
}

void cairn_move_on_resolve(struct cairn_shard_job *job, uint64_t epoch)
{
    struct cairn_move_part *now = job->move.now;
    if (job->load.joins) note_version(job);
    if ((!job->move.has_moved && !job->load.joins) || job->state != CAIRN_JOB_SERVING ||
        epoch != cairn_step_epoch(job->collector.step) || job->move.fence.epoch != 0)
        return;
    if (now == NULL || now->take == NULL) {
        tell_moved(job);
    } else if (!cairn_take_is_begun(now->take)) {
        cairn_log_debug("job %s: layout %llu: what comes is asked for", job->spec.name,
                        (unsigned long long)version_of(now));
        cairn_take_begin(now->take, cairn_step_version(job->collector.step), on_taken);
        cairn_move_wake(job->shard);
    }
}

/* ---- it comes into force ---- */

static void tell_core(struct cairn_shard_job *job, uint64_t epoch)
{
    cairn_own_step(job, &(struct cairn_step_event) { .kind = CAIRN_STEP_FENCE, .epoch = epoch });
    cairn_relay_on_fence(job, epoch);
}

static void force(struct cairn_shard_job *job)
{
    struct cairn_move *move = &job->move;
    struct cairn_move_part *part = move->next;
    struct cairn_shard_view *before = cairn_shard_view_ref(job->view);
    const uint64_t epoch = move->fence.epoch;
    struct cairn_sentence why;
    move->fence.epoch = 0;
    cairn_status status = cairn_shift_copy(job, part->view, cairn_move_kept(job), &why);
    if (status == CAIRN_OK) status = cairn_shard_job_switch(job, part->view, &why);
    if (status != CAIRN_OK) {
        cairn_shard_view_unref(before);
        cairn_shard_job_fault(job, why.text);
        return;
    }
    part->is_back = move->now != NULL;
    cairn_move_part_drop(job, move->now); // of a way that was given up
    cairn_shard_view_unref(move->before);
    move->next = NULL;
    move->now = part;
    move->before = before;
    move->has_moved = true;
    move->is_settling = false;
    cairn_log_info("job %s: layout %llu is in force from epoch %llu: %llu elements here, and %llu "
                   "bytes are to come",
                   job->spec.name, (unsigned long long)version_of(part), (unsigned long long)epoch,
                   (unsigned long long)job->view->table.map.elem_count,
                   (unsigned long long)part->comes);
    if (part->take != NULL)
        cairn_own_step(job, &(struct cairn_step_event) { .kind = CAIRN_STEP_LACKS_STATE });
    tell_core(job, epoch);
    cairn_move_go_on(job->shard, job->number); // what was to be prepared meanwhile
}

/* True if the prepared layout is the one in force, under another number. */
static bool is_renamed(const struct cairn_shard_job *job)
{
    const struct cairn_move_part *next = job->move.next;
    return next->take == NULL && cairn_layout_same(job->view->layout, next->view->layout);
}

/* Nothing moves, and what is open, prepared or being applied goes on. */
static void rename_layout(struct cairn_shard_job *job)
{
    job->view->layout->version = version_of(job->move.next);
    job->move.has_moved = true;
    cairn_relay_leave(job);
    cairn_move_forget(job);
    cairn_log_info("job %s: layout %llu is in force, and all stays where it is", job->spec.name,
                   (unsigned long long)job->view->layout->version);
}

/* True if the Fence may bring layout `layout`; else `why` says why not. */
static bool judge(const struct cairn_shard_job *job, uint64_t layout, struct cairn_sentence *why)
{
    const struct cairn_move_part *next = job->move.next;
    const enum cairn_step_phase phase = cairn_step_phase_of(job->collector.step);
    if (next == NULL || !next->is_ready || version_of(next) != layout) {
        cairn_sentence_set(why,
                           "a Fence brings layout %llu, and layout %llu is in force here, with %s "
                           "prepared",
                           (unsigned long long)layout,
                           (unsigned long long)job->view->layout->version,
                           next == NULL ? "none" : "another one");
        return false;
    }
    if (is_renamed(job)) return true;
    if (phase == CAIRN_STEP_IDLE || phase == CAIRN_STEP_JOINING || phase == CAIRN_STEP_DRAINING)
        return true;
    // A layout that follows one which is not settled takes that one back, and waits for no round.
    if (job->move.now != NULL && phase != CAIRN_STEP_UPDATING) return true;
    cairn_sentence_set(why, "a Fence brings layout %llu while a round is open",
                       (unsigned long long)layout);
    return false;
}

/* Handles a Fence that does not bring the prepared layout: a member that came or went has changed
 * the epoch, and the slice goes on. If the layout was prepared in another session it is forgotten,
 * since that session may have said that it is not wanted, and the message was lost. */
static void keep_or_forget(struct cairn_shard_job *job)
{
    const struct cairn_move_part *next = job->move.next;
    if (next != NULL && next->session != job->shard->session.serial) cairn_move_forget(job);
}

bool cairn_move_on_fence(struct cairn_shard_job *job, uint64_t epoch, uint64_t layout)
{
    struct cairn_sentence why;
    job->move.fence.epoch = 0; // a later word counts
    if (job->state != CAIRN_JOB_SERVING) return false;
    if (layout == 0 || layout == job->view->layout->version) {
        keep_or_forget(job);
        return false;
    }
    if (!judge(job, layout, &why)) {
        cairn_shard_job_fault(job, why.text);
        return true;
    }
    cairn_log_debug("job %s: a Fence brings layout %llu", job->spec.name,
                    (unsigned long long)layout);
    if (is_renamed(job)) {
        rename_layout(job);
        return false;
    }
    job->move.fence.epoch = epoch;
    job->move.fence.since_ms = uv_now(job->shard->loop);
    cairn_pins_unprepare(job);
    cairn_pins_hurry(job);  // it waits for them
    cairn_write_close(job); // of a round that is void
    cairn_own_step(job, &(struct cairn_step_event) { .kind = CAIRN_STEP_GIVE_UP });
    cairn_move_rests(job);
    if (job->move.fence.epoch != 0) cairn_move_wake(job->shard);
    return true;
}

void cairn_move_rests(struct cairn_shard_job *job)
{
    if (job->move.fence.epoch != 0 && !cairn_pins_rest(job) &&
        uv_now(job->shard->loop) - job->move.fence.since_ms > PINS_MS)
        cairn_pin_cancel(job); // training goes on, whatever the storage does
    if (job->move.fence.epoch != 0 && job->state == CAIRN_JOB_SERVING && cairn_shard_job_rests(job))
        force(job);
}
