/* The runs of re-shardings: the shards that join, the next step of a run, and its end. See reshard.h. */
#include "server/coordinator/reshard.h"

#include <inttypes.h>
#include <stdlib.h>
#include <uv.h>

#include "proto/plan/plan.h"
#include "server/coordinator/cluster.h"

static void advance_reshard(struct coord_job *job);

/* ==== reshard join ==== */

/* Shards that join a job. Each joining shard first gets a part that owns nothing and serves at once, so
 * that the shard can prepare the next layout as the others do. Then the shard gets its share, if the
 * policy says so. See reshard.h. */

/* Called when the joining shards have their parts: from now on they are told what the other shards are
 * told. */
static void take_in(struct coord_job *job)
{
    struct coord_reshard *r = &job->reshard;
    const uint32_t first = job->shard_count;
    for (uint32_t i = 0; i < r->joiner_count; i++) {
        struct coord_shard_entry *entry = r->joiners[i].entry;
        coord_job_set_shard(job, first + i, entry);
        job->shards[first + i].weight = r->joiners[i].weight;
        job->shards[first + i].incarnation = entry->incarnation;
        job->shards[first + i].revision = job->spec.revision;
        job->shards[first + i].up = true;
        (void)coord_job_shard_moved(&job->shards[first + i]);
        log_info("job %s: shard %s joins", job->spec.name, entry->name);
        coord_event_note_shard(job->cluster, CAIRN_EVENT_SHARD_JOINED, job->spec.name, entry->name,
                               "it has a part of the job");
    }
    r->joiner_count = 0;
    for (uint32_t i = first; i < job->shard_count; i++) {
        const struct round_event up = { .kind = CAIRN_ROUND_SHARD_UP, .shard = i };
        coord_terms_tell(job, i, false);
        coord_members_tell_shard(job, i);
        coord_job_event(job, &up);
    }
    coord_gate_update(job);
}

/* Packs the layout in force, with the shards that join added to it. NULL: no memory. */
static struct packed *pack_wider(const struct coord_job *job)
{
    struct layout *wider;
    if (plan_job_widen(&job->spec, job->layout, job->shard_count + job->reshard.joiner_count,
                       &wider) != CAIRN_OK)
        return NULL;
    // not a new number, because the shards join the layout in force
    wider->version = job->layout->version;
    struct packed *packed = packed_layout(wider);
    layout_close(wider);
    return packed;
}

static cairn_status ask_joiners(struct coord_steps *steps, struct sentence *why)
{
    struct coord_job *job = steps->job;
    struct packed *layout = pack_wider(job);
    struct decision last = *round_last(job->core); // the copy has the schedule and the loss scale
    last.kind = CAIRN_DECISION_NONE;
    last.version_after = (struct cairn_version) { job->generation, job->base_step };
    const struct coord_create load = { .joins = true,
                                       .version = last.version_after,
                                       .last = &last };
    if (layout == NULL) return fail_with(why, CAIRN_ERR_NO_MEMORY, "out of memory for the layout");
    for (uint32_t i = 0; i < job->reshard.joiner_count; i++) {
        struct coord_shard_entry *entry = job->reshard.joiners[i].entry;
        // An earlier run may have left a part on this shard. Such a part is of no use, and is
        // dropped.
        coord_job_send_drop(job->cluster, entry, job->id);
        coord_job_ask_create(job, &load, job->shard_count + i, entry, layout, steps->gather);
    }
    packed_release(layout);
    return CAIRN_OK;
}

static cairn_status judge_joined(struct coord_steps *steps, cairn_status status,
                                 struct sentence *why)
{
    const struct coord_reshard *r = &steps->job->reshard;
    for (uint32_t i = 0; i < r->joiner_count && status == CAIRN_OK; i++)
        if (r->joiners[i].entry->session == NULL || r->joiners[i].entry->session->closing)
            status = fail_with(why, CAIRN_ERR_CLOSED, "shard %s went away",
                               r->joiners[i].entry->name);
    return status;
}

static void done_joining(struct coord_steps *steps)
{
    take_in(steps->job);
    advance_reshard(steps->job);
}

static void fail_run(struct coord_steps *steps, cairn_status status, const char *why)
{
    (void)status;
    coord_reshard_end(steps->job, CAIRN_RESHARD_FAILED, why);
}

static const struct coord_step join_steps[] = {
    { CAIRN_STEP_ASK, CAIRN_STAGE_JOINING, "the shards that join, to make room",
      .begin = ask_joiners, .end = judge_joined },
    { .kind = CAIRN_STEP_LAST },
};

/* Gives the joining shards parts that own nothing. The run advances when they have their parts. */
static const struct coord_operation_plan join_plan = { join_steps, .done = done_joining,
                                                       .failed = fail_run };

/* Begins what the run waits for next. */
static void begin_plan(struct coord_job *job, const struct coord_operation_plan *plan)
{
    coord_steps_start(&job->reshard.steps, plan, job->cluster, job);
    coord_steps_advance(&job->reshard.steps);
}

/* Removes from the job the shards that have joined but are not in the layout in force. */
static void reshard_unjoin(struct coord_job *job)
{
    const bool was_busy = job->reshard.busy;
    job->reshard.busy = true;
    while (job->shard_count > job->layout->shard_count && !job->layouts.storing) {
        const uint32_t shard = job->shard_count - 1;
        const struct round_event down = { .kind = CAIRN_ROUND_SHARD_DOWN, .shard = shard };
        struct coord_shard_entry *entry = job->shards[shard].entry;
        const bool was_up = job->shards[shard].up;
        coord_members_forget_shard(job, shard);
        coord_job_set_shard(job, shard, NULL);
        job->shard_count = shard;
        coord_job_send_drop(job->cluster, entry, job->id);
        if (was_up && job->core != NULL) coord_job_event(job, &down);
    }
    coord_gate_update(job);
    coord_members_attach(job);
    job->reshard.busy = was_busy;
}

/* ---- the end ---- */

static void on_saved(const struct coord_saved *saved)
{
    if (saved->status != CAIRN_OK)
        log_error("job %016" PRIx64 ": the state of its re-sharding is not in the store: %s",
                  saved->job, saved->why);
}

static void save_run(struct coord_job *job)
{
    struct sentence why;
    if (coord_save_job(job, CAIRN_STORE_LAYOUT, NULL, 0, on_saved, &why) != CAIRN_OK)
        log_error("job %s: the state of its re-sharding is not in the store: %s", job->spec.name,
                  why.text);
}

void coord_reshard_end(struct coord_job *job, enum coord_reshard_state state, const char *text)
{
    struct coord_reshard *r = &job->reshard;
    const Cairn__Done done = CAIRN__DONE__INIT;
    if (!r->running) return;
    log_info("job %s: its re-sharding %s: %s", job->spec.name,
             state == CAIRN_RESHARD_DONE       ? "is done"
             : state == CAIRN_RESHARD_CANCELED ? "was canceled"
                                               : "has failed",
             text);
    coord_event_note(job->cluster, CAIRN_EVENT_RESHARD_ENDED, job->spec.name, NULL, "%s%s",
                     state == CAIRN_RESHARD_DONE       ? ""
                     : state == CAIRN_RESHARD_CANCELED ? "canceled: "
                                                       : "failed: ",
                     text);
    if (state == CAIRN_RESHARD_DONE)
        coord_waiters_answer(&r->ends, CAIRN_MSG_DONE, &done.base);
    else
        coord_waiters_fail(&r->ends, CAIRN_ERR_CANCELED, text);
    reshard_unjoin(job);
    free(r->joiners);
    layout_close(r->target);
    r->joiners = NULL;
    r->joiner_count = 0;
    r->target = NULL;
    r->running = r->canceled = r->publishing = r->is_refused = false;
    (void)coord_steps_cancel(&r->steps);
    r->progress.state = state;
    r->progress.ended_ms = coord_now_ms(job->cluster);
    r->progress.shards_after = job->entry_count;
    sentence_set(&r->progress.text, "%s", text);
    // save_run deletes the weights in the store, too, unless the job itself is no longer in the
    // store.
    CAIRN_EACH_SHARD (job, i) job->shards[i].weight = 0;
    if (job->state == CAIRN_CLUSTER_JOB_CREATING || !job->stored) return;
    save_run(job);
}

/* Notes in the run how a slice ended: OK, or the status and the text of its failure. */
static void reshard_slice_ended(struct coord_job *job, cairn_status status, const char *text)
{
    struct coord_reshard *r = &job->reshard;
    // A slice that has failed does not count, and may be begun again.
    if (status != CAIRN_OK && !r->back && r->progress.slice > 0) r->progress.slice--;
    if (status == CAIRN_OK) {
        r->progress.moved_bytes += r->slice_bytes;
        r->progress.state_bytes += r->came_bytes;
        r->progress.state_us += r->came_us;
    } else if (status == CAIRN_ERR_BUSY || status == CAIRN_ERR_NOT_READY) {
        sentence_set(&r->progress.text, "%s", text);
        r->is_refused = true; // the cause passes by itself, so the next tick tries again
    } else if (status == CAIRN_ERR_UNREACHABLE && r->joiner_count == 0 &&
               job->shard_count == job->layout->shard_count) {
        // the slice is tried again when all shards are up
        sentence_set(&r->progress.text, "%s", text);
    } else if (status != CAIRN_ERR_CANCELED) {
        coord_reshard_end(job, CAIRN_RESHARD_FAILED, text);
    }
    coord_snapshot_resume(job, false);
}

/* ---- the last steps ---- */

/* True if a leased version is read in an earlier layout than the layout in force. */
static bool is_leased(const struct coord_job *job)
{
    for (const struct coord_held_version *k = job->leases.held; k != NULL; k = k->next)
        if (version_compare(k->version, job->layouts.at) <= 0) return true;
    return false;
}

/* Asks the shards to publish the newest version in the layout in force. While nobody trains, no
 * step publishes a version there. */
static cairn_status ask_to_publish(struct coord_steps *steps, struct sentence *why)
{
    const struct coord_job *job = steps->job;
    Cairn__PartPublish message = CAIRN__PART_PUBLISH__INIT;
    message.job = job->id;
    message.layout = job->layout->version;
    (void)why;
    CAIRN_EACH_SHARD (job, i) {
        if (coord_job_in_force(job, i))
            (void)coord_gather_send(steps->gather, job->shards[i].entry, CAIRN_MSG_PART_PUBLISH,
                                    &message.base);
    }
    return CAIRN_OK;
}

static void note_published(struct coord_job *job)
{
    packed_release(job->layouts.before);
    job->layouts.before = NULL;
}

/* The run goes on even if the version was not published. The next tick tries again then. */
static cairn_status judge_published(struct coord_steps *steps, cairn_status status,
                                    struct sentence *why)
{
    struct coord_job *job = steps->job;
    struct coord_reshard *r = &job->reshard;
    r->publishing = false;
    if (status == CAIRN_OK) {
        note_published(job);
        // Without this write a coordinator that is started again would name the earlier layout,
        // which members that joined later never had.
        save_run(job);
        coord_leases_republished(job);
        coord_members_layout_changed(job);
    } else {
        sentence_set(&r->progress.text, "publishing it in the new layout: %s",
                     sentence_brief(why->text, 600).text);
        r->is_refused = true;
    }
    return CAIRN_OK;
}

static void done_publishing(struct coord_steps *steps)
{
    coord_gate_update(steps->job); // opens the gate
    advance_reshard(steps->job);
}

static const struct coord_step publish_steps[] = {
    { CAIRN_STEP_ASK, CAIRN_STAGE_PUBLISHING, "to publish it in the new layout",
      .begin = ask_to_publish, .end = judge_published },
    { .kind = CAIRN_STEP_LAST },
};

static const struct coord_operation_plan publish_plan = { publish_steps, .done = done_publishing };

static void republish_version(struct coord_job *job)
{
    struct coord_reshard *r = &job->reshard;
    r->publishing = true;
    coord_gate_update(job); // shuts the gate
    if (r->steps.at == NULL && round_stage_of(job->core) == CAIRN_ROUND_STEADY)
        begin_plan(job, &publish_plan);
}

/* True if the newest version is published in the layout in force. Otherwise, if nobody trains,
 * begins to publish it there. */
static bool is_published(struct coord_job *job)
{
    if (!coord_layouts_behind(job)) {
        const bool was_shut = job->reshard.publishing;
        job->reshard.publishing = false;
        note_published(job);
        // a round has published the version, so the gate opens
        if (was_shut) coord_gate_update(job);
        // after false, this is called again when a round opens, or at the next tick
        return !was_shut;
    }
    if (coord_pace_rests(job) || job->reshard.publishing) republish_version(job);
    return false;
}

void coord_reshard_publish_anew(struct coord_job *job)
{
    if (job->reshard.running && coord_layouts_behind(job)) job->reshard.publishing = true;
}

/* Begins a slice that leaves out the shards that own nothing any more, so that these shards leave
 * the job. Returns true if this slice has begun, or if the run has to wait before the slice can
 * begin. */
static bool begin_leaving(struct coord_job *job)
{
    const uint32_t count = job->layout->shard_count;
    uint32_t leaving = 0;
    CAIRN_EACH_SHARD (job, i) leaving += job->shards[i].weight <= 0 && !layout_owns(job->layout, i);
    if (leaving == 0 || job->reshard.canceled) return false;
    if (is_leased(job)) {
        sentence_set(&job->reshard.progress.text,
                     "it waits for the leases of versions that leaving shards still have; see "
                     "`cairn job show %s`",
                     job->spec.name);
        return true;
    }
    uint8_t *gone = coord_holes(job, count);
    struct layout *next = NULL;
    if (gone == NULL || plan_job_widen(&job->spec, job->layout, count, &next) != CAIRN_OK) {
        free(gone);
        return true; // the next tick tries again
    }
    CAIRN_EACH_SHARD (job, i)
        if (job->shards[i].weight <= 0 && !layout_owns(job->layout, i))
            gone[i / 8] = (uint8_t)(gone[i / 8] | 1u << i % 8);
    coord_slice_begin(job, next, gone, 0, false);
    return true;
}

static void finish_run(struct coord_job *job)
{
    const bool canceled = job->reshard.canceled;
    struct sentence text;
    if (!is_published(job)) return;
    if (begin_leaving(job)) return;
    sentence_set(&text, "%" PRIu64 " bytes have moved, over %" PRIu32 " shards now",
                 job->reshard.progress.moved_bytes, job->entry_count);
    coord_reshard_end(job, canceled ? CAIRN_RESHARD_CANCELED : CAIRN_RESHARD_DONE, text.text);
}

/* ---- the next step ---- */

/* True if the run may take its next step: the layout is settled, all shards are up, and nothing
 * needs the layout to stay as it is. While an epoch is being stored, the run waits, because a
 * joining shard must not hear of that epoch. If the epoch were never stored, the shard would seem
 * to prove that the store is an older copy. */
static bool may_step(const struct coord_job *job)
{
    const struct coord_reshard *r = &job->reshard;
    if (!r->running || r->busy || r->is_refused || r->steps.at != NULL || r->move == NULL ||
        job->rounds.in_event || job->cluster->closing || job->rounds.persist_waits ||
        job->state != CAIRN_CLUSTER_JOB_RUNNING || !job->rounds.heard ||
        move_stage_of(r->move) != CAIRN_MOVE_REST ||
        !coord_operation_may_begin(job, CAIRN_OPERATION_RESHARD) || round_pin_pending(job->core) ||
        !coord_job_shards_up(job))
        return false;
    for (uint32_t i = 0; i < r->joiner_count; i++)
        if (!coord_shard_obeys(r->joiners[i].entry)) return false;
    const enum round_stage stage = round_stage_of(job->core);
    return stage >= CAIRN_ROUND_STEADY && stage != CAIRN_ROUND_FAILED;
}

static void begin_slice(struct coord_job *job)
{
    struct layout *next;
    uint64_t bytes;
    coord_reshard_pace_slice(&job->reshard.pace);
    const cairn_status status = coord_reshard_slice(job, &next, &bytes);
    if (status != CAIRN_OK) {
        coord_reshard_end(job, CAIRN_RESHARD_FAILED, status_text((int)status));
        return;
    }
    const bool joins = job->shard_count > job->layout->shard_count;
    if (next == NULL && !joins) {
        finish_run(job);
        return;
    }
    uint8_t *gone = coord_holes(job, job->shard_count);
    if (next == NULL) // the next layout has the shards that join, and gives them no state
        (void)!plan_job_widen(&job->spec, job->layout, job->shard_count, &next);
    if (gone == NULL || next == NULL) {
        free(gone);
        layout_close(next);
        return; // the next tick tries again
    }
    coord_reshard_pace_cut(&job->reshard.pace, bytes);
    coord_slice_begin(job, next, gone, bytes, false);
}

static void advance_reshard(struct coord_job *job)
{
    struct coord_reshard *r = &job->reshard;
    struct sentence why;
    if (!may_step(job)) return;
    if (r->publishing && !is_published(job)) return;
    if (r->canceled) {
        if (job->shard_count > job->layout->shard_count) reshard_unjoin(job);
        finish_run(job);
    } else if (r->joiner_count > 0) {
        begin_plan(job, &join_plan);
    } else if (r->target == NULL && coord_reshard_plan_anew(job, &why) != CAIRN_OK) {
        coord_reshard_end(job, CAIRN_RESHARD_FAILED, why.text);
    } else if (coord_pace_rests(job) ||
               version_compare(coord_job_version(job), job->layouts.at) > 0) {
        begin_slice(job); // a step was made in the layout in force, or nobody trains
    }
}

static void tick_reshard(struct coord_job *job)
{
    job->reshard.is_refused = false;
    advance_reshard(job);
}

/* ---- the beginning ---- */

static void on_begun(const struct coord_saved *saved)
{
    coord_reshard_stored(saved);
    if (coord_steps_stored(saved, on_begun) || saved->status == CAIRN_OK) return;
    // a new generation has ended the steps meanwhile, and the run goes on in that
    struct coord_job *job = coord_job_by_id(saved->cluster, saved->job);
    if (job != NULL && job->reshard.running && job->reshard.serial == saved->number)
        coord_reshard_end(job, CAIRN_RESHARD_FAILED, saved->why);
}

static cairn_status save_begun(struct coord_steps *steps, struct sentence *why)
{
    return coord_steps_save_as(steps, steps->job, CAIRN_STORE_LAYOUT, steps->job->reshard.serial,
                               on_begun, why);
}

static void done_beginning(struct coord_steps *steps)
{
    advance_reshard(steps->job);
}

static const struct coord_step begin_steps[] = {
    { CAIRN_STEP_STORE, CAIRN_STAGE_RESHARD_STORING, "the store's disk", .begin = save_begun },
    { .kind = CAIRN_STEP_LAST },
};

static const struct coord_operation_plan run_plan = { begin_steps, .done = done_beginning,
                                                      .failed = fail_run };

static bool take_wish(struct coord_job *job, const struct coord_reshard_wish *wish)
{
    struct coord_reshard *r = &job->reshard;
    const uint32_t joiners = wish->count - job->shard_count;
    free(r->joiners); // if the job was loaded from the store, this is an empty list
    r->joiners = calloc((size_t)joiners + 1, sizeof *r->joiners);
    if (r->joiners == NULL) return false;
    for (uint32_t i = 0; i < joiners; i++) r->joiners[i] = wish->shards[job->shard_count + i];
    r->joiner_count = joiners;
    CAIRN_EACH_SHARD (job, i) job->shards[i].weight = wish->shards[i].weight;
    coord_mirrors_end(job, "the job's state is being moved"); // a standby may be one that joins
    r->running = true;
    r->canceled = false;
    coord_reshard_pace_begin(&r->pace, wish->pause, coord_pace_median(&job->rounds.pace));
    return true;
}

static void note_begin(struct coord_job *job, const struct coord_reshard_wish *wish,
                       const struct coord_reshard_target *target)
{
    struct coord_reshard_progress *progress = &job->reshard.progress;
    *progress = (struct coord_reshard_progress) {
        .state = CAIRN_RESHARD_MOVING,
        .least_bytes = target->report->plan.moved_bytes_bound,
        .all_bytes = target->report->plan.moved_bytes,
        .heaviest_before = target->report->heaviest_before,
        .heaviest_after = target->report->heaviest_after,
        .slices = target->slices,
        .shards_before = job->entry_count,
        .begun_ms = coord_now_ms(job->cluster),
        .median_us = coord_pace_median(&job->rounds.pace),
        .shards_after = coord_reshard_wish_owners(wish),
    };
}

cairn_status coord_reshard_begin(struct coord_job *job, const struct coord_reshard_wish *wish,
                                 struct sentence *why)
{
    struct coord_reshard *r = &job->reshard;
    struct coord_reshard_target target;
    if (r->running)
        return fail_with(why, CAIRN_ERR_BUSY,
                         "a re-sharding of job %s is under way: ask again when it has ended "
                         "(`cairn reshard status %s`), or end it: `cairn reshard cancel %s`",
                         job->spec.name, job->spec.name, job->spec.name);
    CAIRN_TRY(coord_quota_judge_workers(
        job, quota_in_flight_if(job, &job->spec, coord_reshard_wish_owners(wish)), why));
    cairn_status status = coord_reshard_plan(job, wish, &target, why);
    if (status != CAIRN_OK) return status;
    if (!take_wish(job, wish)) {
        coord_reshard_target_release(&target);
        return fail_with(why, CAIRN_ERR_NO_MEMORY, "the coordinator is out of memory");
    }
    note_begin(job, wish, &target);
    const uint32_t afresh = target.report->plan.afresh_count;
    r->target = target.layout;
    target.layout = NULL;
    coord_reshard_target_release(&target);
    r->serial = coord_request_new(job->cluster);
    begin_plan(job, &run_plan);
    if (!r->running) return fail_with(why, CAIRN_ERR_NO_MEMORY, "%s", r->progress.text.text);
    log_info("job %s: a re-sharding begins, over %" PRIu32 " shards: %" PRIu64 " bytes in %" PRIu32
             " slices",
             job->spec.name, r->progress.shards_after, r->progress.all_bytes, r->progress.slices);
    coord_event_note(job->cluster, CAIRN_EVENT_RESHARD, job->spec.name, NULL,
                     "over %" PRIu32 " shards: %" PRIu64 " bytes in %" PRIu32 " slices",
                     r->progress.shards_after, r->progress.all_bytes, r->progress.slices);
    if (afresh > 0)
        log_info("job %s: the least that levels the shards is %" PRIu64 " bytes; %" PRIu32
                 " tensors would lie in too many pieces then",
                 job->spec.name, r->progress.least_bytes, afresh);
    return CAIRN_OK;
}

void coord_reshard_go_on(struct coord_job *job)
{
    if (job->reshard.running) save_run(job);
}

/* ---- with the core ---- */

/* Opens the machine of the slices together with the job's core. `unsettled`: the layout was loaded from
 * the store, and may not be settled. CAIRN_ERR_NO_MEMORY. */
static cairn_status open_reshard(struct coord_job *job, bool unsettled)
{
    uint8_t *gone = coord_holes(job, job->layout->shard_count);
    const struct move_config config = { .shard_max = job->shard_room,
                                        .shard_count = job->layout->shard_count,
                                        .gone = gone,
                                        .layout = job->layout->version,
                                        .unsettled = unsettled };
    void *memory = gone == NULL ? NULL : malloc(move_bytes(&config));
    if (memory != NULL) job->reshard.move = move_init(memory, &config);
    job->reshard.slice_ended = reshard_slice_ended;
    job->reshard.stage_since_us = uv_hrtime() / 1000;
    free(gone);
    return memory != NULL ? CAIRN_OK : CAIRN_ERR_NO_MEMORY;
}

void coord_reshard_close(struct coord_job *job)
{
    free(job->reshard.move);
    job->reshard.move = NULL;
    (void)coord_steps_cancel(&job->reshard.steps);
    job->reshard.publishing = false;
    layout_close(job->reshard.prior);
    layout_close(job->reshard.target); // the job may get other tensors than the target has
    job->reshard.prior = job->reshard.target = NULL;
    coord_layouts_drop_next(job);
}

static void release_reshard(struct coord_job *job)
{
    coord_reshard_close(job);
    coord_waiters_release(&job->reshard.ends);
    coord_layouts_release(job);
    free(job->reshard.joiners);
    job->reshard.joiners = NULL;
    job->reshard.joiner_count = 0;
}

/* ---- what happens meanwhile ---- */

cairn_status coord_reshard_cancel(struct coord_job *job, struct sentence *why)
{
    if (!job->reshard.running)
        return fail_with(why, CAIRN_ERR_NOT_FOUND,
                         "no re-sharding of job %s is under way: there is nothing to cancel",
                         job->spec.name);
    struct move_event event = { .kind = CAIRN_MOVE_CANCEL };
    job->reshard.canceled = true;
    if (job->reshard.move != NULL) coord_slice_event(job, &event, "it was canceled");
    advance_reshard(job);
    return CAIRN_OK;
}

static bool on_part_moved(struct coord_job *job, uint32_t shard, const void *any)
{
    const Cairn__PartMoved *message = any;
    struct coord_reshard *r = &job->reshard;
    struct move_event event = { .kind = CAIRN_MOVE_MOVED,
                                .shard = shard,
                                .layout = message->layout };
    if (r->move == NULL) return true;
    if (message->us > 0 && message->bytes > 0 && move_waits_for(r->move, shard)) {
        const double rate = (double)message->bytes / (double)message->us;
        // A rate higher than the previous one has little weight, so that the expected duration of a
        // run follows the slowest recent slice.
        r->rate = r->rate <= 0 || rate < r->rate ? rate : 0.75 * r->rate + 0.25 * rate;
        r->came_bytes += message->bytes;
        if (message->us > r->came_us) r->came_us = message->us;
    }
    coord_slice_event(job, &event, "");
    advance_reshard(job);
    return true;
}

static void lose_connection(struct coord_job *job, uint32_t shard)
{
    struct move_event event = { .kind = CAIRN_MOVE_SHARD_DOWN, .shard = shard };
    struct sentence text;
    sentence_set(&text, "shard %s went away", job->shards[shard].entry->name);
    if (job->reshard.move != NULL) coord_slice_event(job, &event, text.text);
    // If the shard was joining the job, and no layout that has the shard is being stored, the run
    // fails.
    if (shard < job->shard_count && shard >= job->layout->shard_count && !job->layouts.storing)
        coord_reshard_end(job, CAIRN_RESHARD_FAILED, text.text);
}

/* ==== as an operation ==== */

static enum operation_stage stage_of_reshard(const struct coord_job *job)
{
    const struct coord_reshard *r = &job->reshard;
    const bool moves = r->move != NULL && move_stage_of(r->move) != CAIRN_MOVE_REST;
    const bool have_joined = job->layout != NULL && job->shard_count > job->layout->shard_count;
    const bool is_asking = r->steps.at != NULL;
    if (r->publishing)
        return moves || is_asking ? CAIRN_STAGE_PUBLISHING : CAIRN_STAGE_PUBLISH_WAITS;
    return moves         ? CAIRN_STAGE_SLICING
           : is_asking   ? r->steps.at->stage
           : have_joined ? CAIRN_STAGE_JOINED
           : r->running  ? CAIRN_STAGE_RESTING
                         : CAIRN_STAGE_NONE;
}

/* Notes a step for the pace of the run. */
static void note_step(struct coord_job *job)
{
    struct coord_reshard *r = &job->reshard;
    if (!r->running) return;
    coord_reshard_pace_step(&r->pace, job->rounds.pace.last_us);
    if (r->progress.slice > 0 && job->rounds.pace.last_us > r->progress.worst_us)
        r->progress.worst_us = job->rounds.pace.last_us;
}

static void lose_run(struct coord_job *job)
{
    if (!job->loss.may_return) coord_reshard_end(job, CAIRN_RESHARD_FAILED, "the job is lost");
}

const struct coord_operation coord_resharding = {
    .stage = stage_of_reshard,
    .advance = advance_reshard,
    .tick = tick_reshard,
    .stepped = note_step,
    .shard_down = lose_connection,
    .lost = lose_run,
    .release = release_reshard,
    .being = "re-sharded",
    .until = "until the layout is settled",
};

/* ==== the core ==== */

cairn_status coord_job_core_open(struct coord_job *job, struct sentence *why)
{
    // True if the layout comes from an earlier coordinator. Then no shard has told this coordinator
    // yet that all of its state has arrived.
    const bool unsettled = job->version_unknown && job->layouts.at.generation != 0;
    if (open_reshard(job, unsettled) != CAIRN_OK)
        return fail_with(why, CAIRN_ERR_NO_MEMORY, "the coordinator is out of memory");
    return coord_core_open(job, why);
}

/* ==== messages ==== */

const struct coord_row coord_reshard_rows[] = {
    { CAIRN_MSG_PART_MOVED, CAIRN_FROM_PART, .by_part = on_part_moved },
    { 0 },
};
