/* One slice of a re-sharding: its machine (server/core/move.h), and the messages to the shards. See
 * reshard.h. */
#include "server/coordinator/reshard.h"

#include <assert.h>
#include <inttypes.h>
#include <sodium.h>
#include <stdlib.h>
#include <uv.h>

#include "proto/plan/plan.h"
#include "server/coordinator/cluster.h"
#include "server/core/holes.h"

/* True if the next layout has the shard `shard`. */
static bool has_next(const struct coord_job *job, uint32_t shard)
{
    const struct coord_layouts *l = &job->layouts;
    return job->shards[shard].entry != NULL &&
           !layout_is_hole(l->next_gone, l->next->shard_count, shard);
}

/* ---- prepare ---- */

/* The shards that receive something in a slice. The shards that give the state know each receiver
 * as a member. */
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

static void fill_mover(const struct coord_job *job, uint32_t shard, Cairn__Mover *mover)
{
    const struct coord_shard_entry *entry = job->shards[shard].entry;
    cairn__mover__init(mover);
    mover->shard = shard;
    // The member's number is random, because a counted number may be one that an earlier
    // coordinator has given.
    randombytes_buf(&mover->member, sizeof mover->member);
    randombytes_buf(&mover->token, sizeof mover->token);
    mover->member |= 1; // the number is never 0
    mover->name = entry->name;
    mover->fabric_address = (ProtobufCBinaryData) { entry->fabric_address_bytes,
                                                    entry->fabric_address };
}

/* Marks the shards that receive something in the slice. */
static void mark_takers(const struct coord_job *job, bool *takes)
{
    // the owners are compared without their bytes, so the walk needs no tensors
    struct plan_walk walk = { .current = job->layout, .target = job->layouts.next };
    struct plan_run run;
    while (plan_walk_next(&walk, &run))
        if (run.to != run.extent->shard) takes[run.to] = true;
}

static bool movers_init(struct movers *movers, const struct coord_job *job)
{
    const uint32_t count = job->layouts.next->shard_count;
    bool *takes = calloc((size_t)count + 1, sizeof *takes);
    movers->count = 0;
    movers->movers = calloc((size_t)count + 1, sizeof *movers->movers);
    movers->list = calloc((size_t)count + 1, sizeof *movers->list);
    const bool whole = takes != NULL && movers->movers != NULL && movers->list != NULL;
    if (whole) mark_takers(job, takes);
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

/* A PartPrepare that the shard has not answered yet. `slice` is the serial of the slice. The number
 * of the layout does not identify a slice, because after a slice was taken back the next slice may
 * use the same number. */
struct preparing {
    uint64_t layout;
    uint32_t shard, slice;
};

static void on_prepared(struct coord_job *job, const void *about, cairn_status status,
                        const char *text)
{
    const struct preparing *preparing = about;
    struct move_event event = { .kind = CAIRN_MOVE_PREPARED,
                                .shard = preparing->shard,
                                .layout = preparing->layout,
                                .status = status };
    // If the shard's connection was lost, the slice ends as after SHARD_DOWN, so that the run tries
    // again. If another slice is under way, the answer is stale.
    if (status == CAIRN_ERR_CLOSED) event.status = CAIRN_ERR_UNREACHABLE;
    if (job->reshard.move != NULL && preparing->slice == job->reshard.slice_serial)
        coord_slice_event(job, &event, text);
}

/* Asks one shard to prepare the layout. Each shard has a gather of its own, so that the coordinator
 * knows which shard refuses. */
static void ask_shard(struct coord_job *job, uint32_t shard, Cairn__PartPrepare *message)
{
    struct coord_shard_entry *entry = job->shards[shard].entry;
    const struct preparing preparing = { message->layout, shard, job->reshard.slice_serial };
    struct coord_gather *gather = coord_gather_open_job(job, on_prepared, &preparing,
                                                        sizeof preparing);
    if (gather == NULL) {
        on_prepared(job, &preparing, CAIRN_ERR_NO_MEMORY, "the coordinator is out of memory");
        return;
    }
    message->shard_index = shard;
    const uint32_t request = coord_gather_send(gather, entry, CAIRN_MSG_PART_PREPARE,
                                               &message->base);
    if (request != 0)
        coord_session_pages(entry->session, request, CAIRN_PAGE_LAYOUT, job->layouts.next_packed);
    coord_gather_start(gather);
}

static void prepare_slice(struct coord_job *job, uint64_t layout)
{
    struct coord_shard_infos infos;
    struct movers movers;
    Cairn__PartPrepare message = CAIRN__PART_PREPARE__INIT;
    const uint32_t count = job->layouts.next->shard_count;
    const struct preparing first = { layout, coord_job_shard_from(job, 0),
                                     job->reshard.slice_serial };
    if (!coord_shard_infos_init(&infos, job, count)) {
        on_prepared(job, &first, CAIRN_ERR_NO_MEMORY, "the coordinator is out of memory");
        return;
    }
    if (!movers_init(&movers, job)) {
        coord_shard_infos_release(&infos);
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
    // If a shard is found to refuse at once, the slice ends, `next` is dropped, and no further
    // shard is asked.
    CAIRN_EACH_SHARD (job, i) {
        if (job->layouts.next == NULL || job->layouts.next->version != layout) break;
        if (i < count && has_next(job, i)) ask_shard(job, i, &message);
    }
    movers_release(&movers);
    coord_shard_infos_release(&infos);
}

/* ---- what else is said ---- */

static void unprepare_at(const struct coord_job *job, uint32_t shard, uint64_t layout)
{
    Cairn__PartUnprepare message = CAIRN__PART_UNPREPARE__INIT;
    message.job = job->id;
    message.layout = layout;
    coord_session_send(job->shards[shard].entry->session, CAIRN_MSG_PART_UNPREPARE, 0,
                       &message.base);
}

static void unprepare_slice(const struct coord_job *job, uint64_t layout)
{
    CAIRN_EACH_SHARD (job, i)
        if (job->shards[i].up) unprepare_at(job, i, layout);
}

void coord_slice_prepared(const struct coord_job *job, uint32_t shard, uint64_t layout)
{
    if (layout > job->layout->version &&
        (job->layouts.next == NULL || job->layouts.next->version != layout))
        unprepare_at(job, shard, layout);
}

static void settle_slice(struct coord_job *job, const struct move_action *action)
{
    Cairn__PartSettled message = CAIRN__PART_SETTLED__INIT;
    message.job = job->id;
    message.layout = action->layout;
    CAIRN_EACH_SHARD (job, i)
        if (job->shards[i].up && (action->shard == CAIRN_MOVE_ALL || action->shard == i))
            coord_session_send(job->shards[i].entry->session, CAIRN_MSG_PART_SETTLED, 0,
                               &message.base);
}

/* Hands the layout to the core, which then uses it. Layout 0 withdraws the pending layout. */
static void cut_over(struct coord_job *job, uint64_t layout, bool back)
{
    const struct coord_layouts *l = &job->layouts;
    const struct round_event event = { .kind = CAIRN_ROUND_LAYOUT,
                                       .layout = { .number = layout,
                                                   .shard_count = l->next->shard_count,
                                                   .gone = l->next_gone,
                                                   .back = back,
                                                   .empty = back && job->reshard.lost_empty } };
    if (layout != 0 && job->rounds.epoch_reason.text[0] == '\0')
        sentence_set(&job->rounds.epoch_reason, "another layout comes into force");
    coord_job_event(job, &event);
}

/* ---- the machine ---- */

/* True if each shard other than `shard` has all that it owns in the layout in force. A lost shard
 * has nothing of what it owns there. */
static bool others_whole(const struct coord_job *job, uint32_t shard)
{
    // a version was decided in this layout, or nothing has moved
    if (!coord_layouts_behind(job)) return true;
    CAIRN_EACH_SHARD (job, i) {
        const bool lacks = job->shards[i].lost ? layout_owns(job->layout, i)
                                               : !move_has_moved(job->reshard.move, i);
        if (i != shard && coord_job_in_force(job, i) && lacks) return false;
    }
    return true;
}

/* True if a hole owns something. No layout may give anything to a hole, because what a hole owns is
 * lost. */
static bool is_owned_by_holes(const struct layout *layout, const uint8_t *gone)
{
    for (size_t i = 0; i < layout->extent_count; i++)
        if (layout_is_hole(gone, layout->shard_count, layout->extents[i].shard)) return true;
    return false;
}

/* Turns the lost shards into holes. Nothing may move to these shards any more, so the target is dropped
 * and planned anew. */
static uint8_t *leave_out(struct coord_job *job)
{
    uint8_t *gone = coord_holes(job, job->layout->shard_count);
    for (uint32_t i = 0; gone != NULL && i < job->layout->shard_count; i++) {
        if (!job->shards[i].lost) continue;
        gone[i / 8] = (uint8_t)(gone[i / 8] | 1u << i % 8);
        job->shards[i].weight = 0;
    }
    layout_close(job->reshard.target);
    job->reshard.target = NULL;
    return gone;
}

/* Returns the layout to which the slice is taken back. This layout has the owners of `prior`, with
 * which the slice began. If the lost shards own nothing in the layout in force, and no other shard
 * lacks anything (lost_empty), it has the owners of the layout in force. Returns NULL if `prior` is
 * needed and not known, or if there is no memory. */
static struct layout *layout_back(const struct coord_job *job)
{
    struct layout *next = NULL;
    struct layout_tensor *tensors = plan_tensors(&job->spec);
    const struct slice_request request = { .tensors = tensors,
                                           .tensor_count = (uint32_t)job->spec.tensor_count,
                                           .current = job->layout,
                                           .target = job->reshard.prior,
                                           .chunk_leaves = job->spec.chunk_leaves };
    const bool moves = !job->reshard.lost_empty;
    cairn_status status = CAIRN_OK;
    if (moves && (tensors == NULL || job->reshard.prior == NULL)) status = CAIRN_ERR_NOT_FOUND;
    if (moves && status == CAIRN_OK) status = plan_slice(&request, &next, NULL);
    if (status == CAIRN_OK && next == NULL)
        (void)!plan_job_widen(&job->spec, job->layout, job->layout->shard_count, &next);
    free(tensors);
    return next;
}

/* Takes the slice back, without the lost shards. `lost` is one of them. If that is impossible, the
 * job is lost. */
static void go_back(struct coord_job *job, uint32_t lost)
{
    struct coord_reshard *r = &job->reshard;
    uint8_t *gone = leave_out(job);
    r->lost_empty = others_whole(job, lost) && !layout_owns(job->layout, lost);
    struct layout *next = gone == NULL ? NULL : layout_back(job);
    if (next != NULL && !is_owned_by_holes(next, gone)) {
        log_warn("job %s: shard %s was lost before it had its share: the layout goes back",
                 job->spec.name, job->shards[lost].entry->name);
        const struct move_action all = { .layout = job->layout->version, .shard = CAIRN_MOVE_ALL };
        // the lost shard owns nothing, so no report is missing
        if (r->lost_empty) settle_slice(job, &all);
        coord_slice_begin(job, next, gone, 0, true);
        return;
    }
    free(gone);
    layout_close(next);
    // a lost shard may come back with its part
    CAIRN_EACH_SHARD (job, i) job->shards[i].lost = false;
    coord_job_lose(job, true, "%s was lost while its share of the job came to it",
                   job->shards[lost].entry->name);
}

static void slice_ended(struct coord_job *job, const struct move_action *action, const char *text)
{
    struct coord_reshard *r = &job->reshard;
    if (action->status == CAIRN_ERR_JOB_LOST) {
        go_back(job, action->shard);
        return;
    }
    if (action->status == CAIRN_OK) {
        layout_close(r->prior);
        r->prior = NULL;
    } else {
        coord_layouts_drop_next(job);
    }
    r->slice_ended(job, action->status, text);
}

static void do_action(struct coord_job *job, const struct move_action *action, const char *text)
{
    switch (action->kind) {
    case CAIRN_MOVE_PREPARE: prepare_slice(job, action->layout); break;
    case CAIRN_MOVE_UNPREPARE: unprepare_slice(job, action->layout); break;
    case CAIRN_MOVE_CUT_OVER: cut_over(job, action->layout, action->back); break;
    case CAIRN_MOVE_WITHDRAW: cut_over(job, 0, false); break;
    case CAIRN_MOVE_SETTLE: settle_slice(job, action); break;
    case CAIRN_MOVE_ENDED: slice_ended(job, action, text); break;
    }
}

static void count_stage(struct coord_reshard *r, enum move_stage was)
{
    const uint64_t now_us = uv_hrtime() / 1000;
    if (move_stage_of(r->move) == was) return;
    r->progress.stage_us[was] += now_us - r->stage_since_us;
    r->stage_since_us = now_us;
}

void coord_slice_event(struct coord_job *job, struct move_event *event, const char *text)
{
    const enum move_stage was = move_stage_of(job->reshard.move);
    struct move_action list[CAIRN_MOVE_ACTIONS_MAX];
    struct move_actions actions = { list, 0, CAIRN_MOVE_ACTIONS_MAX };
    const bool was_busy = job->reshard.busy;
    event->pending = job->core != NULL && job->layouts.next != NULL &&
                     round_layout_pending(job->core) == job->layouts.next->version;
    move_on_event(job->reshard.move, event, &actions);
    count_stage(&job->reshard, was);
    job->reshard.busy = true;
    for (size_t i = 0; i < actions.count; i++) do_action(job, &list[i], text);
    job->reshard.busy = was_busy;
}

void coord_slice_begin(struct coord_job *job, struct layout *next, uint8_t *gone, uint64_t bytes,
                       bool back)
{
    struct coord_layouts *l = &job->layouts;
    assert(!is_owned_by_holes(next, gone));
    struct packed *packed = packed_layout(next);
    if (packed == NULL) {
        layout_close(next);
        free(gone);
        return; // the next tick tries again
    }
    coord_mirrors_end(job, "the job's layout changes");
    coord_layouts_drop_next(job);
    l->next = next;
    l->next_packed = packed;
    l->next_gone = gone;
    job->reshard.slice_bytes = bytes;
    job->reshard.came_bytes = job->reshard.came_us = 0;
    job->reshard.slice_serial++;
    job->reshard.back = back;
    if (!back) job->reshard.progress.slice++;
    struct move_event event = { .kind = CAIRN_MOVE_BEGIN,
                                .layout = next->version,
                                .shard_count = next->shard_count,
                                .gone = gone,
                                .back = back,
                                .empty = back && job->reshard.lost_empty };
    coord_slice_event(job, &event, "");
}

void coord_slice_tick(struct coord_job *job)
{
    const struct coord_reshard *r = &job->reshard;
    uint32_t lost = job->shard_count;
    if (r->move == NULL || move_stage_of(r->move) != CAIRN_MOVE_LOST) return;
    CAIRN_EACH_SHARD (job, i) {
        if (job->shards[i].lost)
            lost = i;
        else if (!job->shards[i].up && coord_job_in_force(job, i))
            return;
    }
    if (lost < job->shard_count) go_back(job, lost);
}

/* ---- it is in force ---- */

static void make_holes(struct coord_job *job)
{
    const struct coord_layouts *l = &job->layouts;
    CAIRN_EACH_SHARD (job, i) {
        if (i >= l->next->shard_count || !layout_is_hole(l->next_gone, l->next->shard_count, i))
            continue;
        coord_members_forget_shard(job, i);
        coord_job_set_shard(job, i, NULL);
    }
}

/* Puts the next layout in force as of the version `now`. Shards that are not in the new layout become holes.
 * Nobody is told. Nothing is allocated, because the layout is durable already. Returns the layout that was in
 * force before, which the caller owns. */
static struct layout *take_next(struct coord_job *job, struct cairn_version now)
{
    struct coord_layouts *l = &job->layouts;
    uint32_t before_shards;
    struct packed *before = coord_job_before_next(job, now, &before_shards);
    if (before != NULL) before = packed_hold(before);
    packed_release(l->before);
    l->before = before;
    l->before_shards = before_shards;
    l->at = now;
    CAIRN_EACH_SHARD (job, i) {
        if (i >= job->layout->shard_count) job->shards[i].joined_at = now;
    }
    make_holes(job);
    struct layout *was = job->layout;
    packed_release(job->planned.layout);
    job->layout = l->next;
    job->planned.layout = l->next_packed;
    job->planned.heaviest_over_mean = 0;
    free(job->planned.shard_bytes);
    job->planned.shard_bytes = NULL;
    job->tiles.changed = true; // the shards of the new layout, and no others, must know the tiles
    l->next = NULL;
    l->next_packed = NULL;
    coord_layouts_drop_next(job);
    return was;
}

void coord_slice_in_force(struct coord_job *job)
{
    struct move_event event = { .kind = CAIRN_MOVE_IN_FORCE, .layout = round_layout_of(job->core) };
    assert(job->layouts.next != NULL && job->layouts.next->version == event.layout);
    coord_groups_forget_sent(job);
    // A shard that leaves the job keeps nothing of the job.
    CAIRN_EACH_SHARD (job, i) {
        if (i >= job->layouts.next->shard_count || has_next(job, i)) continue;
        log_info("job %s: shard %s is not one of its shards any more", job->spec.name,
                 job->shards[i].entry->name);
        coord_event_note_shard(job->cluster, CAIRN_EVENT_SHARD_LEFT, job->spec.name,
                               job->shards[i].entry->name, "it has no part of the job any more");
        coord_job_send_drop(job->cluster, job->shards[i].entry, job->id);
    }
    struct layout *was = take_next(job, round_version(job->core));
    if (job->reshard.back && !job->reshard.lost_empty) {
        // `prior` stays: the layout now in force has all state where `prior` has it
        layout_close(was);
    } else {
        layout_close(job->reshard.prior);
        job->reshard.prior = was;
    }
    coord_members_layout_changed(job);
    log_info("job %s: layout %" PRIu64 " is in force from epoch %" PRIu64, job->spec.name,
             event.layout, job->epoch);
    coord_slice_event(job, &event, "");
}

/* True if the newest version is published in an older layout, and members fetch a part of it from that
 * shard. */
static bool serves_before(const struct coord_job *job, uint32_t shard)
{
    const struct packed *packed = job->layouts.before;
    struct layout *before;
    if (!coord_layouts_behind(job)) return false;
    if (plan_job_decode(&job->spec, packed->bytes, packed->size, &before) != CAIRN_OK) return true;
    const bool serves = layout_owns(before, shard);
    layout_close(before);
    return serves;
}

/* True if no state is lost with the shard. Either the shard owns nothing in the layout in force, or
 * it owned nothing before the slice, and the shards that gave it state have not forgotten that
 * state yet. */
static bool is_fresh(const struct coord_job *job, uint32_t shard)
{
    const struct layout *prior = job->reshard.prior;
    if (job->reshard.move == NULL || !coord_job_in_force(job, shard)) return false;
    // In a job that was never re-sharded, a part that owns nothing is lost like any other part, and
    // on_shard_loss decides.
    if (!job->reshard.running && job->layout->version == 1) return false;
    const bool was_fresh = prior != NULL && !layout_owns(prior, shard);
    if (layout_owns(job->layout, shard))
        return was_fresh && move_stage_of(job->reshard.move) != CAIRN_MOVE_REST;
    // The shard owns nothing. It is needed nevertheless if members still fetch the newest version
    // from it, or if another shard may not have yet what this shard gave away.
    return !serves_before(job, shard) && (was_fresh || others_whole(job, shard));
}

bool coord_slice_shard_lost(struct coord_job *job, uint32_t shard)
{
    struct move_event event = { .kind = CAIRN_MOVE_SHARD_LOST, .shard = shard };
    struct sentence text;
    if (!is_fresh(job, shard)) return false;
    job->shards[shard].lost = true;
    sentence_set(&text, "shard %s was lost", job->shards[shard].entry->name);
    coord_slice_event(job, &event, text.text);
    return true;
}
