/* One slice of a re-sharding: its machine (server/core/move.h), and what is said to the shards. See
 * reshard.h. */
#include <assert.h>
#include <inttypes.h>
#include <sodium.h>
#include <stdlib.h>
#include <uv.h>

#include "proto/plan/moves.h"
#include "proto/plan/plan_job.h"
#include "proto/plan/reshard.h"
#include "server/base/log.h"
#include "server/coordinator/base/calls.h"
#include "server/coordinator/base/job.h"
#include "server/coordinator/base/seat.h"
#include "server/coordinator/base/session.h"
#include "server/coordinator/cluster.h"
#include "server/coordinator/round/groups.h"
#include "server/coordinator/store/events.h"
#include "server/core/holes.h"

/* The next layout has that shard. */
static bool has_next(const struct cairn_cluster_job *job, uint32_t shard)
{
    const struct cairn_cluster_layouts *l = &job->layouts;
    return job->shards[shard].seat != NULL &&
           !cairn_is_hole(l->next_gone, l->next->shard_count, shard);
}

/* ---- prepare ---- */

/* The shards to which something comes, as members of the shards that give it. */
struct movers {
    Cairn__Mover *movers; /* owned: [count] */
    Cairn__Mover **list;  /* owned */
    size_t count;
};

static void movers_release(struct movers *movers)
{
    free(movers->movers);
    free(movers->list);
}

/* Marks the shards to which something comes. */
static bool mark_takers(const struct cairn_cluster_job *job, bool *takes)
{
    struct cairn_layout_tensor *tensors = cairn_plan_tensors(&job->spec);
    if (tensors == NULL) return false;
    struct plan_walk walk = { .tensors = tensors,
                              .current = job->layout,
                              .target = job->layouts.next };
    struct plan_run run;
    while (cairn_plan_walk_next(&walk, &run))
        if (run.to != run.extent->shard) takes[run.to] = true;
    free(tensors);
    return true;
}

static void fill_mover(const struct cairn_cluster_job *job, uint32_t shard, Cairn__Mover *mover)
{
    const struct cairn_cluster_seat *seat = job->shards[shard].seat;
    cairn__mover__init(mover);
    mover->shard = shard;
    // Drawn, not counted: a coordinator before this one may have given any.
    randombytes_buf(&mover->member, sizeof mover->member);
    randombytes_buf(&mover->token, sizeof mover->token);
    mover->member |= 1; // never 0
    mover->name = seat->name;
    mover->fabric_address = (ProtobufCBinaryData) { seat->fabric_address_bytes,
                                                    seat->fabric_address };
}

static bool movers_init(struct movers *movers, const struct cairn_cluster_job *job)
{
    const uint32_t count = job->layouts.next->shard_count;
    bool *takes = calloc((size_t)count + 1, sizeof *takes);
    movers->count = 0;
    movers->movers = calloc((size_t)count + 1, sizeof *movers->movers);
    movers->list = calloc((size_t)count + 1, sizeof *movers->list);
    const bool whole = takes != NULL && movers->movers != NULL && movers->list != NULL &&
                       mark_takers(job, takes);
    for (uint32_t i = 0; whole && i < count; i++) {
        if (!takes[i] || !has_next(job, i)) continue;
        fill_mover(job, i, &movers->movers[movers->count]);
        movers->list[movers->count] = &movers->movers[movers->count];
        movers->count++;
    }
    free(takes);
    if (!whole) movers_release(movers);
    return whole;
}

static void happened(struct cairn_cluster_job *job, struct cairn_move_event *event,
                     const char *text);

/* A PartPrepare on its way. A slice that was taken back may have had the same number as the one after it. */
struct preparing {
    uint64_t layout;
    uint32_t shard, slice;
};

static void on_prepared(struct cairn_cluster_job *job, const void *about, cairn_status status,
                        const char *text)
{
    const struct preparing *preparing = about;
    struct cairn_move_event event = { .kind = CAIRN_MOVE_PREPARED,
                                      .shard = preparing->shard,
                                      .layout = preparing->layout,
                                      .status = status };
    // Its connection was lost: the machine hears of that by itself, or the slice is another one.
    if (status == CAIRN_ERR_CLOSED) event.status = CAIRN_ERR_UNREACHABLE;
    if (job->reshard.move != NULL && preparing->slice == job->reshard.slice_serial)
        happened(job, &event, text);
}

/* In the order of the shards, each by itself: which one refuses is known. */
static void ask_shard(struct cairn_cluster_job *job, uint32_t shard, Cairn__PartPrepare *message)
{
    struct cairn_cluster_seat *seat = job->shards[shard].seat;
    const struct preparing preparing = { message->layout, shard, job->reshard.slice_serial };
    struct cairn_cluster_gather *gather = cairn_cluster_gather_open_job(
        job, on_prepared, &preparing, sizeof preparing);
    if (gather == NULL) {
        on_prepared(job, &preparing, CAIRN_ERR_NO_MEMORY, "the coordinator is out of memory");
        return;
    }
    message->shard_index = shard;
    const uint32_t request = cairn_cluster_gather_send(gather, seat, CAIRN_MSG_PART_PREPARE,
                                                       &message->base);
    if (request != 0)
        cairn_cluster_session_pages(seat->session, request, CAIRN_PAGE_LAYOUT,
                                    job->layouts.next_packed);
    cairn_cluster_gather_start(gather);
}

static void prepare(struct cairn_cluster_job *job, uint64_t layout)
{
    struct cairn_cluster_shard_infos infos;
    struct movers movers;
    Cairn__PartPrepare message = CAIRN__PART_PREPARE__INIT;
    const uint32_t count = job->layouts.next->shard_count;
    const struct preparing first = { layout, cairn_cluster_job_shard_from(job, 0),
                                     job->reshard.slice_serial };
    if (!cairn_cluster_shard_infos_init(&infos, job, count)) {
        on_prepared(job, &first, CAIRN_ERR_NO_MEMORY, "the coordinator is out of memory");
        return;
    }
    if (!movers_init(&movers, job)) {
        cairn_cluster_shard_infos_release(&infos);
        on_prepared(job, &first, CAIRN_ERR_NO_MEMORY, "the coordinator is out of memory");
        return;
    }
    size_t kept = 0;
    for (size_t i = 0; i < infos.count; i++)
        if (has_next(job, infos.list[i]->index)) infos.list[kept++] = infos.list[i];
    message.job = job->id;
    message.layout = layout;
    message.layout_bytes = job->layouts.next_packed->size;
    message.movers = movers.list;
    message.n_movers = movers.count;
    message.shards = infos.list;
    message.n_shards = kept;
    // A refusal ends the slice, and what comes after it is of none.
    CAIRN_EACH_SHARD (job, i) {
        if (job->layouts.next == NULL || job->layouts.next->version != layout) break;
        if (i < count && has_next(job, i)) ask_shard(job, i, &message);
    }
    movers_release(&movers);
    cairn_cluster_shard_infos_release(&infos);
}

/* ---- what else is said ---- */

static void unprepare_at(const struct cairn_cluster_job *job, uint32_t shard, uint64_t layout)
{
    Cairn__PartUnprepare message = CAIRN__PART_UNPREPARE__INIT;
    message.job = job->id;
    message.layout = layout;
    cairn_cluster_session_send(job->shards[shard].seat->session, CAIRN_MSG_PART_UNPREPARE, 0,
                               &message.base);
}

static void unprepare(const struct cairn_cluster_job *job, uint64_t layout)
{
    CAIRN_EACH_SHARD (job, i)
        if (job->shards[i].up) unprepare_at(job, i, layout);
}

void cairn_cluster_slice_prepared(const struct cairn_cluster_job *job, uint32_t shard,
                                  uint64_t layout)
{
    if (layout > job->layout->version &&
        (job->layouts.next == NULL || job->layouts.next->version != layout))
        unprepare_at(job, shard, layout);
}

static void settle(struct cairn_cluster_job *job, const struct cairn_move_action *action)
{
    Cairn__PartSettled message = CAIRN__PART_SETTLED__INIT;
    message.job = job->id;
    message.layout = action->layout;
    CAIRN_EACH_SHARD (job, i)
        if (job->shards[i].up && (action->shard == CAIRN_MOVE_ALL || action->shard == i))
            cairn_cluster_session_send(job->shards[i].seat->session, CAIRN_MSG_PART_SETTLED, 0,
                                       &message.base);
}

/* layout 0: the pending one is forgotten. */
static void cut_over(struct cairn_cluster_job *job, uint64_t layout, bool back)
{
    const struct cairn_cluster_layouts *l = &job->layouts;
    const struct cairn_round_event event = { .kind = CAIRN_ROUND_LAYOUT,
                                             .layout = layout,
                                             .shard_count = l->next->shard_count,
                                             .gone = l->next_gone,
                                             .back = back,
                                             .empty = back && job->reshard.lost_empty };
    if (layout != 0 && job->rounds.epoch_reason.text[0] == '\0')
        cairn_sentence_set(&job->rounds.epoch_reason, "another layout comes into force");
    cairn_cluster_job_event(job, &event);
}

/* ---- the machine ---- */

static void settle_without(struct cairn_cluster_job *job)
{
    const struct cairn_move_action all = { .layout = job->layout->version,
                                           .shard = CAIRN_MOVE_ALL };
    settle(job, &all);
}

/* All but that shard have what they own in the layout in force, or own nothing. */
static bool others_whole(const struct cairn_cluster_job *job, uint32_t shard)
{
    if (!cairn_cluster_layouts_behind(job)) return true; // a version was decided, or nothing moved
    CAIRN_EACH_SHARD (job, i) {
        const bool lacks = job->shards[i].lost ? cairn_layout_owns(job->layout, i)
                                               : !cairn_move_has_moved(job->reshard.move, i);
        if (i != shard && cairn_cluster_job_in_force(job, i) && lacks) return false;
    }
    return true;
}

/* True if a hole owns something: a layout must not give it anything, since that would be lost. */
static bool is_owned_by_holes(const struct cairn_layout *layout, const uint8_t *gone)
{
    for (size_t i = 0; i < layout->extent_count; i++)
        if (cairn_is_hole(gone, layout->shard_count, layout->extents[i].shard)) return true;
    return false;
}

/* Makes the shards that were lost holes. Nothing is to go to them any more, so the target is
 * dropped and planned anew. */
static uint8_t *leave_out(struct cairn_cluster_job *job)
{
    uint8_t *gone = cairn_cluster_holes(job, job->layout->shard_count);
    for (uint32_t i = 0; gone != NULL && i < job->layout->shard_count; i++) {
        if (!job->shards[i].lost) continue;
        gone[i / 8] = (uint8_t)(gone[i / 8] | 1u << i % 8);
        job->shards[i].weight = 0;
    }
    cairn_layout_close(job->reshard.target);
    job->reshard.target = NULL;
    return gone;
}

/* The layout that the slice began with; the one in force where that is the same, or who was lost has nothing
 * in it and nobody lacks anything. NULL: there is none that the others have, or no memory. */
static struct cairn_layout *layout_back(const struct cairn_cluster_job *job)
{
    struct cairn_layout *next = NULL;
    struct cairn_layout_tensor *tensors = cairn_plan_tensors(&job->spec);
    const struct cairn_slice_request request = { .tensors = tensors,
                                                 .tensor_count = (uint32_t)job->spec.tensor_count,
                                                 .current = job->layout,
                                                 .target = job->reshard.prior,
                                                 .chunk_leaves = job->spec.chunk_leaves };
    const bool moves = !job->reshard.lost_empty;
    cairn_status status = CAIRN_OK;
    if (moves && (tensors == NULL || job->reshard.prior == NULL)) status = CAIRN_ERR_NOT_FOUND;
    if (moves && status == CAIRN_OK) status = cairn_plan_slice(&request, &next, NULL);
    if (status == CAIRN_OK && next == NULL)
        (void)!cairn_plan_job_widen(&job->spec, job->layout, job->layout->shard_count, &next);
    free(tensors);
    return next;
}

/* Leaves out who was lost, of which `lost` is the last. */
static void go_back(struct cairn_cluster_job *job, uint32_t lost)
{
    struct cairn_cluster_reshard *r = &job->reshard;
    uint8_t *gone = leave_out(job);
    r->lost_empty = others_whole(job, lost) && !cairn_layout_owns(job->layout, lost);
    struct cairn_layout *next = gone == NULL ? NULL : layout_back(job);
    if (next != NULL && !is_owned_by_holes(next, gone)) {
        cairn_log_warn("job %s: shard %s was lost before it had its share: the layout goes back",
                       job->spec.name, job->shards[lost].seat->name);
        if (r->lost_empty)
            settle_without(job); // it had nothing to say, and the others have said it
        cairn_cluster_slice_begin(job, next, gone, 0, true);
        return;
    }
    free(gone);
    cairn_layout_close(next);
    CAIRN_EACH_SHARD (job, i) job->shards[i].lost = false; // it may be back with what it has
    cairn_cluster_job_lose(job, true, "%s was lost while its share of the job came to it",
                           job->shards[lost].seat->name);
}

static void ended(struct cairn_cluster_job *job, const struct cairn_move_action *action,
                  const char *text)
{
    struct cairn_cluster_reshard *r = &job->reshard;
    if (action->status == CAIRN_ERR_JOB_LOST) {
        go_back(job, action->shard);
        return;
    }
    if (action->status == CAIRN_OK) {
        cairn_layout_close(r->prior);
        r->prior = NULL;
    } else {
        cairn_cluster_layouts_drop_next(job);
    }
    cairn_cluster_reshard_slice_ended(job, action->status, text);
}

static void do_action(struct cairn_cluster_job *job, const struct cairn_move_action *action,
                      const char *text)
{
    switch (action->kind) {
    case CAIRN_MOVE_PREPARE: prepare(job, action->layout); break;
    case CAIRN_MOVE_UNPREPARE: unprepare(job, action->layout); break;
    case CAIRN_MOVE_CUT_OVER: cut_over(job, action->layout, action->back); break;
    case CAIRN_MOVE_WITHDRAW: cut_over(job, 0, false); break;
    case CAIRN_MOVE_SETTLE: settle(job, action); break;
    case CAIRN_MOVE_ENDED: ended(job, action, text); break;
    }
}

static void count_stage(struct cairn_cluster_reshard *r, enum cairn_move_stage was)
{
    const uint64_t now_us = uv_hrtime() / 1000;
    if (cairn_move_stage_of(r->move) == was) return;
    r->told.stage_us[was] += now_us - r->stage_since_us;
    r->stage_since_us = now_us;
}

static void happened(struct cairn_cluster_job *job, struct cairn_move_event *event,
                     const char *text)
{
    const enum cairn_move_stage was = cairn_move_stage_of(job->reshard.move);
    struct cairn_move_action list[CAIRN_MOVE_ACTIONS_MAX];
    struct cairn_move_actions actions = { list, 0, CAIRN_MOVE_ACTIONS_MAX };
    const bool was_busy = job->reshard.busy;
    event->pending = job->core != NULL && job->layouts.next != NULL &&
                     cairn_round_layout_pending(job->core) == job->layouts.next->version;
    cairn_move_on_event(job->reshard.move, event, &actions);
    count_stage(&job->reshard, was);
    job->reshard.busy = true;
    for (size_t i = 0; i < actions.count; i++) do_action(job, &list[i], text);
    job->reshard.busy = was_busy;
}

void cairn_cluster_slice_begin(struct cairn_cluster_job *job, struct cairn_layout *next,
                               uint8_t *gone, uint64_t bytes, bool back)
{
    struct cairn_cluster_layouts *l = &job->layouts;
    assert(!is_owned_by_holes(next, gone));
    struct cairn_packed *packed = cairn_packed_layout(next);
    if (packed == NULL) {
        cairn_layout_close(next);
        free(gone);
        return; // with the next tick
    }
    cairn_cluster_layouts_drop_next(job);
    l->next = next;
    l->next_packed = packed;
    l->next_gone = gone;
    job->reshard.slice_bytes = bytes;
    job->reshard.came_bytes = job->reshard.came_us = 0;
    job->reshard.slice_serial++;
    job->reshard.back = back;
    if (!back) job->reshard.told.slice++;
    struct cairn_move_event event = { .kind = CAIRN_MOVE_BEGIN,
                                      .layout = next->version,
                                      .shard_count = next->shard_count,
                                      .gone = gone,
                                      .back = back };
    happened(job, &event, "");
}

void cairn_cluster_slice_tick(struct cairn_cluster_job *job)
{
    const struct cairn_cluster_reshard *r = &job->reshard;
    uint32_t lost = job->shard_count;
    if (r->move == NULL || cairn_move_stage_of(r->move) != CAIRN_MOVE_LOST) return;
    CAIRN_EACH_SHARD (job, i) {
        if (job->shards[i].lost)
            lost = i;
        else if (!job->shards[i].up && cairn_cluster_job_in_force(job, i))
            return;
    }
    if (lost < job->shard_count) go_back(job, lost);
}

void cairn_cluster_slice_cancel(struct cairn_cluster_job *job)
{
    struct cairn_move_event event = { .kind = CAIRN_MOVE_CANCEL };
    if (job->reshard.move != NULL) happened(job, &event, "it was canceled");
}

/* ---- it is in force ---- */

/* Who leaves the job keeps nothing of it. */
static void drop_parts(struct cairn_cluster_job *job)
{
    CAIRN_EACH_SHARD (job, i) {
        if (i >= job->layouts.next->shard_count || has_next(job, i)) continue;
        cairn_log_info("job %s: shard %s is not one of its shards any more", job->spec.name,
                       job->shards[i].seat->name);
        cairn_cluster_event_note_shard(job->cluster, CAIRN_EVENT_SHARD_LEFT, job->spec.name,
                                       job->shards[i].seat->name,
                                       "it has no part of the job any more");
        cairn_cluster_job_send_drop(job->cluster, job->shards[i].seat, job->id);
    }
}

void cairn_cluster_slice_in_force(struct cairn_cluster_job *job)
{
    struct cairn_move_event event = { .kind = CAIRN_MOVE_IN_FORCE,
                                      .layout = cairn_round_layout(job->core) };
    assert(job->layouts.next != NULL && job->layouts.next->version == event.layout);
    cairn_cluster_groups_forget_told(job);
    drop_parts(job);
    struct cairn_layout *was = cairn_cluster_layouts_take_next(job, cairn_round_version(job->core));
    if (job->reshard.back && !job->reshard.lost_empty) {
        cairn_layout_close(was); // `prior` is where the slice began, and all is there again
    } else {
        cairn_layout_close(job->reshard.prior);
        job->reshard.prior = was;
    }
    cairn_cluster_members_layout_changed(job);
    cairn_log_info("job %s: layout %" PRIu64 " is in force from epoch %" PRIu64, job->spec.name,
                   event.layout, job->epoch);
    happened(job, &event, "");
}

/* ---- from shards ---- */

void cairn_cluster_slice_moved(struct cairn_cluster_job *job, uint32_t shard,
                               const Cairn__PartMoved *message)
{
    struct cairn_cluster_reshard *r = &job->reshard;
    struct cairn_move_event event = { .kind = CAIRN_MOVE_MOVED,
                                      .shard = shard,
                                      .layout = message->layout };
    if (r->move == NULL) return;
    if (message->us > 0 && message->bytes > 0 && cairn_move_waits_for(r->move, shard)) {
        const double rate = (double)message->bytes / (double)message->us;
        // Faster ones count slowly: what the next slice may be goes by the slowest of late.
        r->rate = r->rate <= 0 || rate < r->rate ? rate : 0.75 * r->rate + 0.25 * rate;
        r->came_bytes += message->bytes;
        if (message->us > r->came_us) r->came_us = message->us;
    }
    happened(job, &event, "");
    cairn_cluster_reshard_advance(job);
}

/* True if nothing is lost with the shard: it owns nothing, or it owned nothing before the slice
 * and what it got is not settled. */
static bool is_fresh(const struct cairn_cluster_job *job, uint32_t shard)
{
    const struct cairn_layout *prior = job->reshard.prior;
    if (job->reshard.move == NULL || !cairn_cluster_job_in_force(job, shard)) return false;
    // If nobody re-shards the job, the shard is a part like the others: on_shard_loss decides.
    if (!job->reshard.running && job->layout->version == 1) return false;
    const bool was_fresh = prior != NULL && !cairn_layout_owns(prior, shard);
    if (cairn_layout_owns(job->layout, shard))
        return was_fresh && cairn_move_stage_of(job->reshard.move) != CAIRN_MOVE_REST;
    // The newest version may still be fetched from it, or it may be the only one that has what it
    // gave.
    return !cairn_cluster_layouts_serves(job, shard) && (was_fresh || others_whole(job, shard));
}

void cairn_cluster_slice_shard_down(struct cairn_cluster_job *job, uint32_t shard)
{
    struct cairn_move_event event = { .kind = CAIRN_MOVE_SHARD_DOWN, .shard = shard };
    struct cairn_sentence text;
    cairn_sentence_set(&text, "shard %s went away", job->shards[shard].seat->name);
    if (job->reshard.move != NULL) happened(job, &event, text.text);
    // It was to join, and a layout that has it is not on its way to the store.
    if (shard < job->shard_count && shard >= job->layout->shard_count && !job->layouts.storing)
        cairn_cluster_reshard_end(job, CAIRN_RESHARD_FAILED, text.text);
}

bool cairn_cluster_slice_shard_lost(struct cairn_cluster_job *job, uint32_t shard)
{
    struct cairn_move_event event = { .kind = CAIRN_MOVE_SHARD_LOST, .shard = shard };
    struct cairn_sentence text;
    if (!is_fresh(job, shard)) return false;
    job->shards[shard].lost = true;
    cairn_sentence_set(&text, "shard %s was lost", job->shards[shard].seat->name);
    happened(job, &event, text.text);
    return true;
}

bool cairn_cluster_slice_left_out(const struct cairn_cluster_job *job, uint32_t shard)
{
    const struct cairn_cluster_reshard *r = &job->reshard;
    return job->shards[shard].lost && r->move != NULL &&
           cairn_move_stage_of(r->move) != CAIRN_MOVE_REST;
}
