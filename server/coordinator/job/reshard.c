/* The run of a re-sharding: which step is next. See reshard.h. */
#include "server/coordinator/job/reshard.h"

#include <inttypes.h>
#include <stdlib.h>
#include <uv.h>

#include "proto/plan/plan_job.h"
#include "proto/plan/reshard.h"
#include "server/base/log.h"
#include "server/coordinator/base/calls.h"
#include "server/coordinator/base/job.h"
#include "server/coordinator/base/seat.h"
#include "server/coordinator/base/session.h"
#include "server/coordinator/cluster.h"
#include "server/coordinator/cut/cuts.h"
#include "server/coordinator/store/events.h"
#include "server/coordinator/store/saves.h"

/* ---- the end ---- */

static void on_saved(const struct cairn_cluster_saved *saved)
{
    if (saved->status != CAIRN_OK)
        cairn_log_error("job %016" PRIx64 ": where its re-sharding stands is not in the store: %s",
                        saved->job, saved->why);
}

static void save(struct cairn_cluster_job *job)
{
    struct cairn_sentence why;
    if (cairn_cluster_save_job(job, CAIRN_STORE_LAYOUT, NULL, 0, on_saved, &why) != CAIRN_OK)
        cairn_log_error("job %s: where its re-sharding stands is not in the store: %s",
                        job->spec.name, why.text);
}

/* The weights are forgotten in the store, too. A job that is not in it any more has none there. */
static void forget_weights(struct cairn_cluster_job *job)
{
    CAIRN_EACH_SHARD (job, i) job->shards[i].weight = 0;
    if (job->state == CAIRN_CLUSTER_JOB_CREATING || !job->stored) return;
    save(job);
}

void cairn_cluster_reshard_end(struct cairn_cluster_job *job,
                               enum cairn_cluster_reshard_state state, const char *text)
{
    struct cairn_cluster_reshard *r = &job->reshard;
    if (!r->running) return;
    cairn_log_info("job %s: its re-sharding %s: %s", job->spec.name,
                   state == CAIRN_RESHARD_DONE       ? "is done"
                   : state == CAIRN_RESHARD_CANCELED ? "was canceled"
                                                     : "has failed",
                   text);
    cairn_cluster_event_note(job->cluster, CAIRN_EVENT_RESHARD_ENDED, job->spec.name, NULL, "%s%s",
                             state == CAIRN_RESHARD_DONE       ? ""
                             : state == CAIRN_RESHARD_CANCELED ? "canceled: "
                                                               : "failed: ",
                             text);
    cairn_cluster_reshard_unjoin(job);
    free(r->joiners);
    cairn_layout_close(r->target);
    r->joiners = NULL;
    r->joiner_count = 0;
    r->target = NULL;
    r->running = r->canceled = r->publishing = r->is_refused = false;
    r->asking = NULL;
    r->told.state = state;
    r->told.ended_ms = cairn_cluster_now_ms(job->cluster);
    r->told.shards_after = job->seat_count;
    cairn_sentence_set(&r->told.text, "%s", text);
    forget_weights(job);
}

void cairn_cluster_reshard_slice_ended(struct cairn_cluster_job *job, cairn_status status,
                                       const char *text)
{
    struct cairn_cluster_reshard *r = &job->reshard;
    // It was none, and may be asked for again.
    if (status != CAIRN_OK && !r->back && r->told.slice > 0) r->told.slice--;
    if (status == CAIRN_OK) {
        r->told.moved_bytes += r->slice_bytes;
        r->told.state_bytes += r->came_bytes;
        r->told.state_us += r->came_us;
    } else if (status == CAIRN_ERR_BUSY || status == CAIRN_ERR_NOT_READY) {
        cairn_sentence_set(&r->told.text, "%s", text);
        r->is_refused = true; // what passes by itself is waited for
    } else if (status == CAIRN_ERR_UNREACHABLE && r->joiner_count == 0 &&
               job->shard_count == job->layout->shard_count) {
        cairn_sentence_set(&r->told.text, "%s", text); // again, when all are there
    } else if (status != CAIRN_ERR_CANCELED) {
        cairn_cluster_reshard_end(job, CAIRN_RESHARD_FAILED, text);
    }
    cairn_cluster_cut_resume(job, false);
}

/* ---- the last steps ---- */

/* A version that is leased is read where its layout has it. */
static bool is_leased(const struct cairn_cluster_job *job)
{
    for (const struct cairn_cluster_kept *k = job->leases.kept; k != NULL; k = k->next)
        if (cairn_version_compare(k->version, job->layouts.at) <= 0) return true;
    return false;
}

/* The run that asked is the one that hears. */
static struct cairn_cluster_gather *ask(struct cairn_cluster_job *job, const char *what,
                                        cairn_cluster_job_gather_fn on_done)
{
    struct cairn_cluster_reshard *r = &job->reshard;
    r->serial = cairn_cluster_request_new(job->cluster);
    struct cairn_cluster_gather *gather = cairn_cluster_gather_open_job(job, on_done, &r->serial,
                                                                        sizeof r->serial);
    if (gather != NULL) r->asking = what;
    return gather;
}

static void on_republished(struct cairn_cluster_job *job, const void *about, cairn_status status,
                           const char *text)
{
    struct cairn_cluster_reshard *r = &job->reshard;
    if (r->asking == NULL || r->serial != *(const uint32_t *)about) return;
    r->asking = NULL;
    r->publishing = false;
    if (status == CAIRN_OK) {
        cairn_cluster_layouts_published(job);
        save(job); // else a new coordinator names the layout before, which later members never had
        cairn_cluster_leases_republished(job);
        cairn_cluster_members_layout_changed(job);
    } else {
        cairn_sentence_set(&r->told.text, "publishing it in the new layout: %s",
                           cairn_sentence_brief(text, 600).text);
        r->is_refused = true;
    }
    cairn_cluster_tiles_advance(job); // opens the gate
    cairn_cluster_reshard_advance(job);
}

/* At rest nothing publishes the newest version in the layout in force but this. */
static void republish(struct cairn_cluster_job *job)
{
    struct cairn_cluster_reshard *r = &job->reshard;
    r->publishing = true;
    cairn_cluster_tiles_advance(job); // shuts the gate
    if (r->asking != NULL || cairn_round_stage_of(job->core) != CAIRN_ROUND_STEADY) return;
    struct cairn_cluster_gather *gather = ask(job, "to publish it in the new layout",
                                              on_republished);
    if (gather == NULL) return; // with the next event, or tick
    Cairn__PartPublish message = CAIRN__PART_PUBLISH__INIT;
    message.job = job->id;
    message.layout = job->layout->version;
    CAIRN_EACH_SHARD (job, i) {
        if (cairn_cluster_job_in_force(job, i))
            (void)cairn_cluster_gather_send(gather, job->shards[i].seat, CAIRN_MSG_PART_PUBLISH,
                                            &message.base);
    }
    cairn_cluster_gather_start(gather);
}

/* The newest version is to be had by the layout in force. False: not yet. */
static bool is_published(struct cairn_cluster_job *job)
{
    if (!cairn_cluster_layouts_behind(job)) {
        const bool was_shut = job->reshard.publishing;
        job->reshard.publishing = false;
        cairn_cluster_layouts_published(job);
        if (was_shut) cairn_cluster_tiles_advance(job); // a round published it: opens the gate
        return !was_shut; // the round that opens comes here by itself; else the next tick does
    }
    if (cairn_cluster_pace_rests(job) || job->reshard.publishing) republish(job);
    return false;
}

/* Begins a slice without the shards that own nothing any more: they leave the job. True: that
 * slice has begun, or is waited for. */
static bool leave(struct cairn_cluster_job *job)
{
    const uint32_t count = job->layout->shard_count;
    uint32_t leaving = 0;
    CAIRN_EACH_SHARD (job, i)
        leaving += job->shards[i].weight <= 0 && !cairn_layout_owns(job->layout, i);
    if (leaving == 0 || job->reshard.canceled) return false;
    if (is_leased(job)) {
        cairn_sentence_set(&job->reshard.told.text,
                           "it waits for the leases of versions that the shards that leave still "
                           "have; `cairn job show %s`",
                           job->spec.name);
        return true;
    }
    uint8_t *gone = cairn_cluster_holes(job, count);
    struct cairn_layout *next = NULL;
    if (gone == NULL || cairn_plan_job_widen(&job->spec, job->layout, count, &next) != CAIRN_OK) {
        free(gone);
        return true; // with the next tick
    }
    CAIRN_EACH_SHARD (job, i)
        if (job->shards[i].weight <= 0 && !cairn_layout_owns(job->layout, i))
            gone[i / 8] = (uint8_t)(gone[i / 8] | 1u << i % 8);
    cairn_cluster_slice_begin(job, next, gone, 0, false);
    return true;
}

static void finish(struct cairn_cluster_job *job)
{
    const bool canceled = job->reshard.canceled;
    struct cairn_sentence text;
    if (!is_published(job)) return;
    if (leave(job)) return;
    cairn_sentence_set(&text, "%" PRIu64 " bytes have moved, over %" PRIu32 " shards now",
                       job->reshard.told.moved_bytes, job->seat_count);
    cairn_cluster_reshard_end(job, canceled ? CAIRN_RESHARD_CANCELED : CAIRN_RESHARD_DONE,
                              text.text);
}

/* ---- the next step ---- */

/* A layout that stands still, with all shards there and nothing that needs it so. While an epoch is on its
 * way to the store, nobody who joins hears of it: who has seen one that the store does not know of shows that
 * it is an older copy. */
static bool may_step(const struct cairn_cluster_job *job)
{
    const struct cairn_cluster_reshard *r = &job->reshard;
    if (!r->running || r->busy || r->is_refused || r->asking != NULL || r->move == NULL ||
        job->rounds.in_event || job->core == NULL || job->cluster->closing ||
        job->rounds.persist_waits || job->state != CAIRN_CLUSTER_JOB_RUNNING ||
        !job->rounds.heard || cairn_move_stage_of(r->move) != CAIRN_MOVE_REST)
        return false;
    if (cairn_cluster_cut_holds_layout(job) || cairn_round_pin_pending(job->core) ||
        job->extension.body != NULL || job->amends.amending != NULL || job->park.shut ||
        !cairn_cluster_job_shards_up(job))
        return false;
    for (uint32_t i = 0; i < r->joiner_count; i++)
        if (!cairn_cluster_seat_obeys(r->joiners[i].seat)) return false;
    const enum cairn_round_stage stage = cairn_round_stage_of(job->core);
    return stage >= CAIRN_ROUND_STEADY && stage != CAIRN_ROUND_FAILED;
}

/* The run found in the store, or one whose job's tensors changed, plans from where the layout is. */
static cairn_status plan_anew(struct cairn_cluster_job *job, struct cairn_sentence *why)
{
    struct cairn_cluster_reshard_wish wish;
    struct cairn_cluster_reshard_target target;
    cairn_status status = cairn_cluster_reshard_wish_of(job, &wish);
    if (status != CAIRN_OK) return cairn_fail(why, status, "the coordinator is out of memory");
    status = cairn_cluster_reshard_plan(job, &wish, &target, why);
    cairn_cluster_reshard_wish_release(&wish);
    if (status != CAIRN_OK) return status;
    struct cairn_cluster_reshard_told *told = &job->reshard.told;
    job->reshard.target = target.layout;
    target.layout = NULL;
    told->least_bytes = told->moved_bytes + target.report->least_bytes;
    told->all_bytes = told->moved_bytes + target.report->moved_bytes;
    told->slices = told->slice + target.slices;
    told->heaviest_after = target.report->heaviest_after;
    if (told->heaviest_before <= 0) told->heaviest_before = target.report->heaviest_before;
    cairn_cluster_reshard_target_release(&target);
    return CAIRN_OK;
}

static void slice(struct cairn_cluster_job *job)
{
    struct cairn_layout *next;
    uint64_t bytes;
    cairn_cluster_reshard_pace_slice(&job->reshard.pace);
    const cairn_status status = cairn_cluster_reshard_slice(job, &next, &bytes);
    if (status != CAIRN_OK) {
        cairn_cluster_reshard_end(job, CAIRN_RESHARD_FAILED, cairn_status_text((int)status));
        return;
    }
    const bool joins = job->shard_count > job->layout->shard_count;
    if (next == NULL && !joins) {
        finish(job);
        return;
    }
    uint8_t *gone = cairn_cluster_holes(job, job->shard_count);
    if (next == NULL) // it joins, and gets nothing
        (void)!cairn_plan_job_widen(&job->spec, job->layout, job->shard_count, &next);
    if (gone == NULL || next == NULL) {
        free(gone);
        cairn_layout_close(next);
        return; // with the next tick
    }
    cairn_cluster_reshard_pace_cut(&job->reshard.pace, bytes);
    cairn_cluster_slice_begin(job, next, gone, bytes, false);
}

void cairn_cluster_reshard_note_step(struct cairn_cluster_job *job)
{
    struct cairn_cluster_reshard *r = &job->reshard;
    if (!r->running) return;
    cairn_cluster_reshard_pace_step(&r->pace, job->pace.last_us);
    if (r->told.slice > 0 && job->pace.last_us > r->told.worst_us)
        r->told.worst_us = job->pace.last_us;
}

void cairn_cluster_reshard_advance(struct cairn_cluster_job *job)
{
    struct cairn_cluster_reshard *r = &job->reshard;
    struct cairn_sentence why;
    if (!may_step(job)) return;
    if (r->canceled) {
        if (job->shard_count > job->layout->shard_count) cairn_cluster_reshard_unjoin(job);
        finish(job);
    } else if (r->joiner_count > 0) {
        cairn_cluster_reshard_join(job);
    } else if (r->target == NULL && plan_anew(job, &why) != CAIRN_OK) {
        cairn_cluster_reshard_end(job, CAIRN_RESHARD_FAILED, why.text);
    } else if (cairn_cluster_reshard_is_paced(job)) {
        slice(job);
    }
}

void cairn_cluster_reshard_tick(struct cairn_cluster_job *job)
{
    job->reshard.is_refused = false;
    cairn_cluster_reshard_advance(job);
}

/* ---- the beginning ---- */

static void on_begun(const struct cairn_cluster_saved *saved)
{
    struct cairn_cluster_job *job = cairn_cluster_job_by_id(saved->cluster, saved->job);
    cairn_cluster_reshard_stored(saved);
    if (job == NULL || !job->reshard.running || job->reshard.serial != saved->number) return;
    job->reshard.asking = NULL;
    if (saved->status == CAIRN_OK)
        cairn_cluster_reshard_advance(job);
    else
        cairn_cluster_reshard_end(job, CAIRN_RESHARD_FAILED, saved->why);
}

static bool take_wish(struct cairn_cluster_job *job, const struct cairn_cluster_reshard_wish *wish)
{
    struct cairn_cluster_reshard *r = &job->reshard;
    const uint32_t joiners = wish->count - job->shard_count;
    free(r->joiners); // of a job that came out of the store: empty
    r->joiners = calloc((size_t)joiners + 1, sizeof *r->joiners);
    if (r->joiners == NULL) return false;
    for (uint32_t i = 0; i < joiners; i++) r->joiners[i] = wish->shards[job->shard_count + i];
    r->joiner_count = joiners;
    CAIRN_EACH_SHARD (job, i) job->shards[i].weight = wish->shards[i].weight;
    r->running = true;
    r->canceled = false;
    cairn_cluster_reshard_pace_begin(&r->pace, wish->pause, cairn_cluster_pace_median(&job->pace));
    return true;
}

static void note_begin(struct cairn_cluster_job *job, const struct cairn_cluster_reshard_wish *wish,
                       const struct cairn_cluster_reshard_target *target)
{
    struct cairn_cluster_reshard_told *told = &job->reshard.told;
    *told = (struct cairn_cluster_reshard_told) {
        .state = CAIRN_RESHARD_MOVING,
        .least_bytes = target->report->least_bytes,
        .all_bytes = target->report->moved_bytes,
        .heaviest_before = target->report->heaviest_before,
        .heaviest_after = target->report->heaviest_after,
        .slices = target->slices,
        .shards_before = job->seat_count,
        .begun_ms = cairn_cluster_now_ms(job->cluster),
        .median_us = cairn_cluster_pace_median(&job->pace),
        .shards_after = cairn_cluster_reshard_wish_owners(wish),
    };
}

cairn_status cairn_cluster_reshard_begin(struct cairn_cluster_job *job,
                                         const struct cairn_cluster_reshard_wish *wish,
                                         struct cairn_sentence *why)
{
    struct cairn_cluster_reshard *r = &job->reshard;
    struct cairn_cluster_reshard_target target;
    if (r->running)
        return cairn_fail(why, CAIRN_ERR_BUSY,
                          "a re-sharding of job %s is under way: ask again when it has ended "
                          "(`cairn reshard status %s`), or end it: `cairn reshard cancel %s`",
                          job->spec.name, job->spec.name, job->spec.name);
    cairn_status status = cairn_cluster_reshard_plan(job, wish, &target, why);
    if (status != CAIRN_OK) return status;
    if (!take_wish(job, wish)) {
        cairn_cluster_reshard_target_release(&target);
        return cairn_fail(why, CAIRN_ERR_NO_MEMORY, "the coordinator is out of memory");
    }
    note_begin(job, wish, &target);
    const uint32_t afresh = target.report->afresh_count;
    r->target = target.layout;
    target.layout = NULL;
    cairn_cluster_reshard_target_release(&target);
    r->asking = "the store's disk";
    r->serial = cairn_cluster_request_new(job->cluster);
    status = cairn_cluster_save_job(job, CAIRN_STORE_LAYOUT, NULL, r->serial, on_begun, why);
    if (status != CAIRN_OK) {
        cairn_cluster_reshard_end(job, CAIRN_RESHARD_FAILED, why->text);
        return status;
    }
    cairn_log_info("job %s: a re-sharding begins, over %" PRIu32 " shards: %" PRIu64
                   " bytes in %" PRIu32 " slices",
                   job->spec.name, r->told.shards_after, r->told.all_bytes, r->told.slices);
    cairn_cluster_event_note(job->cluster, CAIRN_EVENT_RESHARD, job->spec.name, NULL,
                             "over %" PRIu32 " shards: %" PRIu64 " bytes in %" PRIu32 " slices",
                             r->told.shards_after, r->told.all_bytes, r->told.slices);
    if (afresh > 0)
        cairn_log_info("job %s: the least that levels the shards is %" PRIu64 " bytes; %" PRIu32
                       " tensors would lie in too many pieces then",
                       job->spec.name, r->told.least_bytes, afresh);
    return CAIRN_OK;
}

void cairn_cluster_reshard_go_on(struct cairn_cluster_job *job)
{
    if (job->reshard.running) save(job);
}

cairn_status cairn_cluster_reshard_cancel(struct cairn_cluster_job *job, struct cairn_sentence *why)
{
    if (!job->reshard.running)
        return cairn_fail(why, CAIRN_ERR_NOT_FOUND,
                          "no re-sharding of job %s is under way: there is nothing to cancel",
                          job->spec.name);
    job->reshard.canceled = true;
    cairn_cluster_slice_cancel(job);
    cairn_cluster_reshard_advance(job);
    return CAIRN_OK;
}

/* ---- with the core ---- */

cairn_status cairn_cluster_reshard_open(struct cairn_cluster_job *job, bool unsettled)
{
    uint8_t *gone = cairn_cluster_holes(job, job->layout->shard_count);
    const struct cairn_move_config config = { .shard_max = job->shard_room,
                                              .shard_count = job->layout->shard_count,
                                              .gone = gone,
                                              .layout = job->layout->version,
                                              .unsettled = unsettled };
    void *memory = gone == NULL ? NULL : malloc(cairn_move_bytes(&config));
    if (memory != NULL) job->reshard.move = cairn_move_init(memory, &config);
    job->reshard.stage_since_us = uv_hrtime() / 1000;
    free(gone);
    return memory != NULL ? CAIRN_OK : CAIRN_ERR_NO_MEMORY;
}

void cairn_cluster_reshard_close(struct cairn_cluster_job *job)
{
    free(job->reshard.move);
    job->reshard.move = NULL;
    job->reshard.asking = NULL;
    job->reshard.publishing = false;
    cairn_layout_close(job->reshard.prior);
    cairn_layout_close(job->reshard.target); // of other tensors, perhaps
    job->reshard.prior = job->reshard.target = NULL;
    cairn_cluster_layouts_drop_next(job);
}

void cairn_cluster_reshard_release(struct cairn_cluster_job *job)
{
    cairn_cluster_reshard_close(job);
    cairn_cluster_layouts_release(job);
    free(job->reshard.joiners);
    job->reshard.joiners = NULL;
    job->reshard.joiner_count = 0;
}
