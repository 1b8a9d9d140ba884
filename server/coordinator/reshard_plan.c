/* Plans a re-sharding: its target, and whether the run is possible. See reshard.h. */
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "proto/plan/plan.h"
#include "server/base/log.h"
#include "server/coordinator/base.h"
#include "server/coordinator/cluster.h"
#include "server/coordinator/job.h"
#include "server/coordinator/members.h"
#include "server/coordinator/reshard.h"
#include "server/coordinator/store.h"

#define SLICE_BYTES_MAX ((uint64_t)64 << 20)
#define SLICE_PART_MAX  0.02 /* of what the shard owns, where that is more */

static cairn_status reshard_wish_asked(const struct coord_job *job, const Cairn__ReshardAsk *ask,
                                       struct coord_reshard_wish *wish_out, struct sentence *why);

/* ---- may it be? ---- */

static cairn_status judge_stage_0(const struct coord_job *job,
                                  const struct coord_reshard_wish *wish, struct sentence *why)
{
    const uint32_t owners = coord_reshard_wish_owners(wish);
    if (job->spec.stage != 0 || owners == 1) return CAIRN_OK;
    return fail_with(why, CAIRN_ERR_INVALID,
                     "job %s has stage 0: one shard has all of its state, and it cannot be spread "
                     "over %" PRIu32
                     "; it can move to another one, or be made with stage 1 or more",
                     job->spec.name, owners);
}

static cairn_status judge_wish(const struct coord_job *job, const struct coord_reshard_wish *wish,
                               struct sentence *why)
{
    if (job->state == CAIRN_CLUSTER_JOB_LOST)
        return fail_with(why, CAIRN_ERR_JOB_LOST, "job %s is %s", job->spec.name,
                         job->loss.why.text);
    if (job->state != CAIRN_CLUSTER_JOB_RUNNING || !job->initialized || job->core == NULL)
        return fail_with(why, CAIRN_ERR_NOT_READY, "job %s is %s: ask again when it runs",
                         job->spec.name, coord_job_state_name(job));
    if (coord_job_has_device(job) && job->spec.offload_fraction > 0)
        return fail_with(why, CAIRN_ERR_UNSUPPORTED,
                         "job %s has offload_fraction %g: what lies partly on devices cannot move "
                         "while it goes on: save it and restore it over the shards that it is to "
                         "have (`cairn snapshot create %s`, `cairn snapshot restore %s latest`)",
                         job->spec.name, job->spec.offload_fraction, job->spec.name,
                         job->spec.name);
    if (wish->count > job->shard_room)
        return fail_with(why, CAIRN_ERR_REFUSED,
                         "%d shards have joined job %s since the coordinator started, which are "
                         "the most: start the coordinator again, or restore a snapshot of the job",
                         CAIRN_JOB_JOINS_MAX, job->spec.name);
    for (uint32_t i = 0; i < wish->count; i++) {
        if (wish->shards[i].entry == NULL || coord_shard_obeys(wish->shards[i].entry)) continue;
        return fail_with(why, CAIRN_ERR_NOT_READY,
                         "shard %s is away: a re-sharding begins when all shards of it are here",
                         wish->shards[i].entry->name);
    }
    return judge_stage_0(job, wish, why);
}

static bool is_of(const Cairn__MemoryTold *told, const struct coord_job *job)
{
    return told->job == job->id;
}

static uint64_t beside_state(const Cairn__MemoryTold *told)
{
    return told->landing + told->staging + told->tables;
}

/* The memory that a joining shard will need beside its state: as much as the most that one of
 * the job's other shards has. */
static uint64_t beside_state_max(const struct coord_job *job)
{
    uint64_t most = 0;
    CAIRN_EACH_SHARD (job, s) {
        const struct coord_shard_entry *entry = job->shards[s].entry;
        for (size_t i = 0; entry != NULL && i < entry->memory_count; i++)
            if (is_of(&entry->memory[i], job) && beside_state(&entry->memory[i]) > most)
                most = beside_state(&entry->memory[i]);
    }
    return most;
}

/* The bytes of its device that a shard may use for state of the job, if room for a slice stays
 * free; 0: it keeps none there. */
static uint64_t device_capacity_of(const struct coord_job *job,
                                   const struct coord_shard_entry *entry, uint64_t slice_bytes)
{
    const struct coord_session *session = entry != NULL ? entry->session : NULL;
    if (session == NULL || session->home == NULL || session->home->total_bytes == 0 ||
        job->spec.offload_fraction > 0)
        return 0;
    uint64_t taken = session->home->taken_bytes + slice_bytes;
    for (size_t i = 0; i < entry->memory_count; i++)
        if (!is_of(&entry->memory[i], job)) taken += entry->memory[i].device;
    return taken < session->home->total_bytes ? session->home->total_bytes - taken : 1;
}

/* The bytes of its memory that a shard may use for state of the job, if room for a slice stays
 * free; 0: not known. A shard that has just come has not yet said what is taken, so all of its
 * memory counts. */
static uint64_t capacity_of(const struct coord_job *job, const struct coord_shard_entry *entry,
                            uint64_t slice_bytes)
{
    uint64_t taken = slice_bytes;
    bool has_part = false;
    const uint64_t device = device_capacity_of(job, entry, slice_bytes);
    if (device > 0) return device;
    if (entry == NULL || entry->memory_bytes == 0) return 0;
    for (size_t i = 0; i < entry->memory_count; i++) {
        const Cairn__MemoryTold *told = &entry->memory[i];
        taken += beside_state(told);
        if (is_of(told, job))
            has_part = true;
        else
            taken += told->state + told->published;
    }
    if (!has_part) taken += beside_state_max(job);
    return taken < entry->memory_bytes ? entry->memory_bytes - taken : 1;
}

/* ---- the target ---- */

static uint64_t bytes_of(const struct coord_job *job)
{
    uint64_t bytes = 0;
    for (size_t e = 0; e < job->layout->extent_count; e++)
        bytes += plan_extent_bytes(&job->spec, job->layout, &job->layout->extents[e]);
    return bytes;
}

/* A shard of it is being stopped, and ends in some seconds whatever has moved: no more than must moves. */
static int is_in_haste(const struct coord_reshard_wish *wish)
{
    for (uint32_t i = 0; i < wish->count; i++)
        if (wish->shards[i].entry != NULL && wish->shards[i].entry->drain.request != 0) return 1;
    return 0;
}

/* The arrays about the shards that the planner asks for: [count] each, owned. */
struct asked {
    double *weights;
    uint64_t *capacities;
    const char **names;
};

static void asked_release(struct asked *asked)
{
    free(asked->weights);
    free(asked->capacities);
    free(asked->names);
}

static bool asked_init(struct asked *asked, const struct coord_job *job,
                       const struct coord_reshard_wish *wish)
{
    asked->weights = calloc((size_t)wish->count + 1, sizeof *asked->weights);
    asked->capacities = calloc((size_t)wish->count + 1, sizeof *asked->capacities);
    asked->names = calloc((size_t)wish->count + 1, sizeof *asked->names);
    if (asked->weights == NULL || asked->capacities == NULL || asked->names == NULL) {
        asked_release(asked);
        return false;
    }
    const uint64_t all = bytes_of(job);
    const uint64_t slice_bytes = all < SLICE_BYTES_MAX ? all : SLICE_BYTES_MAX;
    for (uint32_t i = 0; i < wish->count; i++) {
        const struct coord_shard_entry *entry = wish->shards[i].entry;
        asked->weights[i] = entry != NULL ? wish->shards[i].weight : 0;
        asked->capacities[i] = capacity_of(job, entry, slice_bytes);
        asked->names[i] = entry != NULL ? entry->name : "";
    }
    return true;
}

/* The most that a slice takes or gives at each shard, in bytes; [shard_count], malloc'ed. NULL: no memory. */
static uint64_t *limits_of(const struct coord_job *job, uint32_t shard_count, uint64_t most)
{
    uint64_t *limits = calloc((size_t)shard_count + 1, sizeof *limits);
    if (limits == NULL) return NULL;
    for (size_t e = 0; e < job->layout->extent_count; e++) {
        const struct extent *extent = &job->layout->extents[e];
        limits[extent->shard] += plan_extent_bytes(&job->spec, job->layout, extent);
    }
    for (uint32_t i = 0; i < shard_count; i++) {
        const uint64_t part = (uint64_t)((double)limits[i] * SLICE_PART_MAX);
        const uint64_t top = part > SLICE_BYTES_MAX ? part : SLICE_BYTES_MAX;
        limits[i] = most < top ? most : top;
    }
    return limits;
}

/* The most that a slice brings any of them. */
static uint64_t largest_slice(const struct coord_job *job, uint32_t shard_count)
{
    const uint64_t all = bytes_of(job);
    uint64_t *limits = limits_of(job, shard_count, all);
    uint64_t largest = limits == NULL ? all : 0;
    for (uint32_t i = 0; limits != NULL && i < shard_count; i++)
        if (limits[i] > largest) largest = limits[i];
    free(limits);
    return largest;
}

static cairn_status count_slices(const struct coord_job *job, struct layout_tensor *tensors,
                                 struct coord_reshard_target *target)
{
    uint64_t *limits = limits_of(job, target->layout->shard_count, coord_reshard_slice_most(job));
    struct slice_left left = { 0 };
    if (limits == NULL) return CAIRN_ERR_NO_MEMORY;
    const struct slice_request request = { .tensors = tensors,
                                           .tensor_count = (uint32_t)job->spec.tensor_count,
                                           .current = job->layout,
                                           .target = target->layout,
                                           .limit_bytes = limits,
                                           .chunk_leaves = job->spec.chunk_leaves };
    const cairn_status status = plan_slices_left(&request, &left);
    free(limits);
    target->slices = left.slices;
    return status;
}

void coord_reshard_target_release(struct coord_reshard_target *target)
{
    layout_close(target->layout);
    if (target->report != NULL) reshard_report_release(target->report);
    free(target->report);
    target->layout = NULL;
    target->report = NULL;
}

cairn_status coord_reshard_plan(const struct coord_job *job, const struct coord_reshard_wish *wish,
                                struct coord_reshard_target *target_out, struct sentence *why)
{
    struct asked asked;
    struct coord_reshard_target target = { NULL, NULL, 0 };
    CAIRN_TRY(judge_wish(job, wish, why));
    struct layout_tensor *tensors = plan_tensors(&job->spec);
    target.report = calloc(1, sizeof *target.report);
    if (tensors == NULL || target.report == NULL || !asked_init(&asked, job, wish)) {
        free(tensors);
        free(target.report);
        return fail_with(why, CAIRN_ERR_NO_MEMORY, "the coordinator is out of memory");
    }
    const struct reshard_request request = {
        .tensors = tensors,
        .tensor_count = (uint32_t)job->spec.tensor_count,
        .current = job->layout,
        .shard_count = wish->count,
        .weights = asked.weights,
        .capacity_bytes = asked.capacities,
        .slice_bytes = largest_slice(job, wish->count),
        .least = is_in_haste(wish),
        .names = asked.names,
        .spread = job->spec.spread,
    };
    struct sentence reason = { "" };
    cairn_status status = plan_reshard(&request, &target.layout, target.report, &reason);
    if (status == CAIRN_OK) status = count_slices(job, tensors, &target);
    free(tensors);
    asked_release(&asked);
    if (status == CAIRN_OK) {
        *target_out = target;
        return CAIRN_OK;
    }
    coord_reshard_target_release(&target);
    return fail_with(why, status, "job %s cannot be spread so: %s", job->spec.name,
                     reason.text[0] != '\0' ? reason.text : status_text((int)status));
}

cairn_status coord_reshard_slice(const struct coord_job *job, struct layout **next_out,
                                 uint64_t *bytes_out)
{
    struct layout_tensor *tensors = plan_tensors(&job->spec);
    uint64_t *limits = limits_of(job, job->reshard.target->shard_count,
                                 coord_reshard_slice_most(job));
    cairn_status status = CAIRN_ERR_NO_MEMORY;
    *next_out = NULL;
    *bytes_out = 0;
    if (tensors != NULL && limits != NULL) {
        const struct slice_request request = {
            .tensors = tensors,
            .tensor_count = (uint32_t)job->spec.tensor_count,
            .current = job->layout,
            .target = job->reshard.target,
            .limit_bytes = limits,
            .chunk_leaves = job->spec.chunk_leaves,
        };
        status = plan_slice(&request, next_out, bytes_out);
    }
    free(tensors);
    free(limits);
    return status;
}

/* ==== reshard admin ==== */

/* Answers operators about re-shardings: they are planned, begun, shown, canceled. See reshard.h. */

/* ---- what is told ---- */

/* A job's answer with what it owns. */
struct view {
    Cairn__ReshardJob message;
    struct sentence text;
    Cairn__ReshardPair *pairs; /* owned */
    Cairn__ReshardPair **list; /* owned */
    uint32_t serial; /* of the run that begins with it, once that is in the store; 0: none */
};

static const char *state_name(enum coord_reshard_state state)
{
    static const char *const names[] = { "none", "moving", "done", "canceled", "failed" };
    return names[state];
}

void coord_reshard_show(const struct coord_job *job, struct sentence *out)
{
    const struct coord_reshard_progress *progress = &job->reshard.progress;
    out->text[0] = '\0';
    if (!job->reshard.running) return;
    sentence_set(out, "slice %" PRIu32 " of %" PRIu32 ", %" PRIu64 " of %" PRIu64 " bytes%s",
                 progress->slice, progress->slices, progress->moved_bytes, progress->all_bytes,
                 job->reshard.canceled ? "; it ends after this slice" : "");
}

/* Says that the slice under way waits for this shard, if it does. */
static void say_slice_waiting(const struct coord_reshard *r, uint32_t shard, const char *name,
                              struct sentence *out)
{
    if (r->move == NULL || !move_waits_for(r->move, shard)) return;
    sentence_set(out, "it waits for shard %s%s", name,
                 move_stage_of(r->move) == CAIRN_MOVE_PREPARING ? " to make room for what comes"
                                                                : " to have all that it owns");
}

static void say_waiting(const struct coord_job *job, struct sentence *out)
{
    const struct coord_reshard *r = &job->reshard;
    *out = r->progress.text;
    if (!r->running) return;
    if (job->snapshots.running != NULL)
        sentence_set(out, "it waits for a snapshot or digest that is being taken");
    else if (job->park.shut)
        sentence_set(out, "it waits until the job is not parked any more");
    else if (r->asking != NULL)
        sentence_set(out, "it waits for %s", r->asking);
    for (uint32_t i = 0; i < r->joiner_count; i++)
        if (!coord_shard_obeys(r->joiners[i].entry))
            sentence_set(out, "it waits for shard %s, which is not here",
                         r->joiners[i].entry->name);
    CAIRN_EACH_SHARD (job, i) {
        const char *name = job->shards[i].entry->name;
        say_slice_waiting(r, i, name, out);
        if (!job->shards[i].up) sentence_set(out, "it waits for shard %s", name);
    }
}

/* Counts the shards that will hold the job after the run, without those lost since it began. */
static uint32_t count_staying(const struct coord_job *job)
{
    const struct coord_reshard *r = &job->reshard;
    uint32_t count = 0;
    CAIRN_EACH_SHARD (job, i) count += job->shards[i].weight > 0;
    for (uint32_t i = 0; i < r->joiner_count; i++) count += r->joiners[i].weight > 0;
    return count;
}

static void view_run(const struct coord_job *job, struct view *view)
{
    const struct coord_reshard_progress *progress = &job->reshard.progress;
    Cairn__ReshardJob *out = &view->message;
    cairn__reshard_job__init(out);
    say_waiting(job, &view->text);
    out->name = job->spec.name;
    out->state = wire_text(
        state_name(job->reshard.running ? CAIRN_RESHARD_MOVING : progress->state));
    out->text = view->text.text;
    out->layout_hash = layout_number(job->layout);
    out->least_bytes = progress->least_bytes;
    out->all_bytes = progress->all_bytes;
    out->moved_bytes = progress->moved_bytes;
    out->heaviest_before = progress->heaviest_before;
    out->heaviest_after = progress->heaviest_after;
    out->slices = progress->slices > progress->slice ? progress->slices : progress->slice;
    out->slice = progress->slice;
    out->shards_before = progress->shards_before;
    out->shards_after = job->reshard.running ? count_staying(job) : progress->shards_after;
    if (progress->begun_ms != 0)
        out->elapsed_ms = (job->reshard.running ? coord_now_ms(job->cluster) : progress->ended_ms) -
                          progress->begun_ms;
    if (progress->median_us > 0) out->worst_step = (double)progress->worst_us / progress->median_us;
    out->state_bytes = progress->state_bytes;
    out->state_us = progress->state_us;
    out->prepare_us = progress->stage_us[CAIRN_MOVE_PREPARING];
    out->cut_us = progress->stage_us[CAIRN_MOVE_CUTTING];
    out->move_us = progress->stage_us[CAIRN_MOVE_MOVING];
    out->rests = coord_pace_rests(job);
}

static bool view_plan(const struct coord_job *job, const struct coord_reshard_wish *wish,
                      const struct coord_reshard_target *target, struct view *view)
{
    const struct reshard_report *report = target->report;
    Cairn__ReshardJob *out = &view->message;
    view_run(job, view);
    view->pairs = calloc(report->pair_count + 1, sizeof *view->pairs);
    view->list = calloc(report->pair_count + 1, sizeof *view->list);
    if (view->pairs == NULL || view->list == NULL) return false;
    for (size_t i = 0; i < report->pair_count; i++) {
        cairn__reshard_pair__init(&view->pairs[i]);
        view->pairs[i].from = wish->shards[report->pairs[i].from].entry->name;
        view->pairs[i].to = wish->shards[report->pairs[i].to].entry->name;
        view->pairs[i].bytes = report->pairs[i].bytes;
        view->list[i] = &view->pairs[i];
    }
    view->text.text[0] = '\0';
    out->state = wire_text("planned");
    out->pairs = view->list;
    out->n_pairs = report->pair_count;
    out->least_bytes = report->least_bytes;
    out->all_bytes = report->moved_bytes;
    out->moved_bytes = out->elapsed_ms = out->slice = 0;
    out->heaviest_before = report->heaviest_before;
    out->heaviest_after = report->heaviest_after;
    out->pieces_before = layout_pieces(job->layout);
    out->pieces_after = layout_pieces(target->layout);
    out->pieces_fresh = report->pieces_fresh;
    out->afresh = report->afresh_count;
    out->slices = target->slices;
    out->shards_before = job->entry_count;
    out->shards_after = coord_reshard_wish_owners(wish);
    out->worst_step = 0;
    out->expected_s = coord_reshard_expected_s(job, target);
    out->expected_pause_s = coord_reshard_expected_pause_s(job, wish->pause);
    return true;
}

/* Shows why a wish is refused. The run that the job may have under way is not shown with it. */
static void view_refused(const struct coord_job *job, const struct sentence *why, struct view *view)
{
    cairn__reshard_job__init(&view->message);
    view->text = *why;
    view->message.name = job->spec.name;
    view->message.state = wire_text("refused");
    view->message.text = view->text.text;
    view->message.layout_hash = layout_number(job->layout);
}

static void view_release(struct view *view)
{
    free(view->pairs);
    free(view->list);
}

/* ---- one job ---- */

static cairn_status judge_hash(const struct coord_job *job, const Cairn__ReshardAsk *ask,
                               struct sentence *why)
{
    if (ask->layout_hash == 0 || ask->layout_hash == layout_number(job->layout)) return CAIRN_OK;
    return fail_with(why, CAIRN_ERR_MISMATCH,
                     "job %s has another layout now than the one that was planned for: plan again",
                     job->spec.name);
}

static cairn_status plan_asked(struct coord_job *job, const Cairn__ReshardAsk *ask,
                               struct view *view, struct sentence *why)
{
    struct coord_reshard_wish wish;
    struct coord_reshard_target target;
    CAIRN_TRY(reshard_wish_asked(job, ask, &wish, why));
    cairn_status status = coord_reshard_plan(job, &wish, &target, why);
    if (status == CAIRN_OK) {
        if (!view_plan(job, &wish, &target, view))
            status = fail_with(why, CAIRN_ERR_NO_MEMORY, "the coordinator is out of memory");
        coord_reshard_target_release(&target);
    }
    coord_reshard_wish_release(&wish);
    return status;
}

static cairn_status apply_asked(struct coord_job *job, const Cairn__ReshardAsk *ask,
                                struct view *view, struct sentence *why)
{
    struct coord_reshard_wish wish;
    cairn_status status = judge_hash(job, ask, why);
    if (status == CAIRN_OK) status = reshard_wish_asked(job, ask, &wish, why);
    if (status != CAIRN_OK) return status;
    status = coord_reshard_begin(job, &wish, why);
    coord_reshard_wish_release(&wish);
    if (status == CAIRN_OK) view_run(job, view);
    if (status == CAIRN_OK) view->serial = job->reshard.serial;
    return status;
}

/* A drain, too, which would begin it again. */
static cairn_status cancel_asked(struct coord_job *job, struct sentence *why)
{
    const bool was_drain = coord_drains_cancel(job);
    const cairn_status status = coord_reshard_cancel(job, why);
    return was_drain ? CAIRN_OK : status;
}

static cairn_status answer_job(struct coord_job *job, const Cairn__ReshardAsk *ask,
                               struct view *view, struct sentence *why)
{
    cairn_status status = CAIRN_OK;
    switch (ask->op) {
    case CAIRN_RESHARD_PLAN: return plan_asked(job, ask, view, why);
    case CAIRN_RESHARD_APPLY: return apply_asked(job, ask, view, why);
    case CAIRN_RESHARD_CANCEL: status = cancel_asked(job, why); break;
    case CAIRN_RESHARD_STATUS: break;
    default:
        return fail_with(why, CAIRN_ERR_INVALID, "%" PRIu32 " is no request of a re-sharding",
                         ask->op);
    }
    if (status == CAIRN_OK) view_run(job, view);
    return status;
}

/* ---- what waits for the store ---- */

/* Runs have begun, and who asked for them hears of it when the store has them: a coordinator that ends before
 * that forgets them. Writes end in their order, so the last one has them all. */
struct coord_reshard_asked {
    struct coord_reshard_asked *next; /* of the cluster's list */
    struct coord_waiter *waiter;
    uint32_t first, last;   /* the runs, by their serials */
    ProtobufCMessage *told; /* owned */
    cairn_status status;    /* of the store */
    struct sentence why;
};

static void asked_free(struct coord_reshard_asked *asked)
{
    coord_waiters_release(&asked->waiter);
    if (asked->told != NULL) message_free(asked->told);
    free(asked);
}

void coord_reshard_stored(const struct coord_saved *saved)
{
    struct coord_reshard_asked **at = &saved->cluster->asked, *asked;
    while ((asked = *at) != NULL && (saved->number < asked->first || saved->number > asked->last))
        at = &asked->next;
    if (asked == NULL) return; // a run by policy, or of a drain
    if (saved->status != CAIRN_OK) {
        asked->status = saved->status;
        sentence_set(&asked->why, "%s", saved->why);
    }
    if (saved->number != asked->last) return;
    *at = asked->next;
    if (asked->status == CAIRN_OK)
        coord_waiters_answer(&asked->waiter, CAIRN_MSG_RESHARD_TOLD, asked->told);
    else
        coord_waiters_fail(&asked->waiter, asked->status, asked->why.text);
    asked_free(asked);
}

void coord_reshard_forget(struct coord *cluster, const struct coord_session *session)
{
    for (struct coord_reshard_asked *a = cluster->asked; a != NULL; a = a->next)
        coord_waiters_forget(&a->waiter, session);
}

void coord_reshard_asked_close(struct coord *cluster)
{
    while (cluster->asked != NULL) {
        struct coord_reshard_asked *asked = cluster->asked;
        cluster->asked = asked->next;
        asked_free(asked);
    }
}

static ProtobufCMessage *copy_progress(const Cairn__ReshardTold *told)
{
    const size_t size = protobuf_c_message_get_packed_size(&told->base);
    uint8_t *packed = malloc(size + 1);
    if (packed == NULL) return NULL;
    protobuf_c_message_pack(&told->base, packed);
    ProtobufCMessage *copy = message_unpack(told->base.descriptor, packed, size);
    free(packed);
    return copy;
}

static bool tell_later(struct coord_session *session, uint32_t request,
                       const Cairn__ReshardTold *told, uint32_t first, uint32_t last)
{
    struct coord_reshard_asked *asked = calloc(1, sizeof *asked);
    if (asked == NULL) return false;
    asked->first = first;
    asked->last = last;
    asked->told = copy_progress(told);
    if (asked->told == NULL || !coord_waiters_add(&asked->waiter, session, request)) {
        asked_free(asked);
        return false;
    }
    asked->next = session->cluster->asked;
    session->cluster->asked = asked;
    return true;
}

/* ---- asked ---- */

/* At once, or when the runs that begin with it are in the store. */
static void answer_asked(struct coord_session *session, uint32_t request, Cairn__ReshardJob **list,
                         const struct view *views, size_t count)
{
    Cairn__ReshardTold told = CAIRN__RESHARD_TOLD__INIT;
    uint32_t first = 0, last = 0;
    told.jobs = list;
    told.n_jobs = count;
    for (size_t i = 0; i < count; i++) {
        if (views[i].serial == 0) continue;
        first = first == 0 ? views[i].serial : first;
        last = views[i].serial;
    }
    if (last == 0)
        coord_session_send(session, CAIRN_MSG_RESHARD_TOLD, request, &told.base);
    else if (!tell_later(session, request, &told, first, last))
        coord_session_error(session, request, CAIRN_ERR_BUSY,
                            "it begins, and too many requests wait on this connection to "
                            "say when it is in the store: `cairn reshard status`");
}

/* Answers a wish for all jobs; a job that refuses it is listed with the reason. */
static void answer_all(struct coord_session *session, uint32_t request,
                       const Cairn__ReshardAsk *ask)
{
    struct view *views = calloc(CAIRN_JOBS_MAX, sizeof *views);
    Cairn__ReshardJob **list = calloc(CAIRN_JOBS_MAX, sizeof *list);
    struct coord_job *next;
    size_t count = 0;
    if (views == NULL || list == NULL) {
        coord_session_error(session, request, CAIRN_ERR_NO_MEMORY, "out of memory");
    } else {
        for (struct coord_job *j = session->cluster->jobs; j != NULL; j = next) {
            struct view *view = &views[count];
            struct sentence why;
            next = j->next;
            if (answer_job(j, ask, view, &why) != CAIRN_OK) view_refused(j, &why, view);
            list[count++] = &view->message;
        }
        answer_asked(session, request, list, views, count);
        for (size_t i = 0; i < count; i++) view_release(&views[i]);
    }
    free(views);
    free(list);
}

void coord_reshard_ask(struct coord_session *session, uint32_t request,
                       const Cairn__ReshardAsk *ask)
{
    struct coord_job *job = coord_job_find(session->cluster, ask->job);
    struct sentence why;
    struct view view = { .pairs = NULL };
    if (ask->all || (ask->job[0] == '\0' && ask->op == CAIRN_RESHARD_STATUS)) {
        answer_all(session, request, ask);
        return;
    }
    const cairn_status status =
        job == NULL
            ? fail_with(&why, CAIRN_ERR_NOT_FOUND,
                        "there is no job \"%.128s\"; `cairn job list` shows those there are",
                        ask->job)
            : answer_job(job, ask, &view, &why);
    if (status == CAIRN_OK) {
        Cairn__ReshardJob *one = &view.message;
        answer_asked(session, request, &one, &view, 1);
    } else {
        coord_session_error(session, request, status, why.text);
    }
    view_release(&view);
}

/* ==== reshard wish ==== */

/* Makes the wish for a run: an operator's, the run's own, or all shards that are here. See
 * reshard.h. */

void coord_reshard_wish_release(struct coord_reshard_wish *wish)
{
    free(wish->shards);
    wish->shards = NULL;
    wish->count = 0;
}

cairn_status coord_reshard_wish_of(const struct coord_job *job, struct coord_reshard_wish *wish_out)
{
    const struct coord_reshard *r = &job->reshard;
    *wish_out = (struct coord_reshard_wish) { .pause = r->pace.pause };
    wish_out->shards = calloc((size_t)job->shard_count + r->joiner_count + 1,
                              sizeof *wish_out->shards);
    if (wish_out->shards == NULL) return CAIRN_ERR_NO_MEMORY;
    for (uint32_t i = 0; i < job->shard_count; i++)
        wish_out->shards[wish_out->count++] = (struct coord_joiner) { job->shards[i].entry,
                                                                      job->shards[i].weight };
    for (uint32_t i = 0; i < r->joiner_count; i++)
        wish_out->shards[wish_out->count++] = r->joiners[i];
    return CAIRN_OK;
}

uint32_t coord_reshard_wish_owners(const struct coord_reshard_wish *wish)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < wish->count; i++) count += wish->shards[i].weight > 0;
    return count;
}

/* ---- of what there is ---- */

static struct coord_joiner *find_wished(struct coord_reshard_wish *wish,
                                        const struct coord_shard_entry *entry)
{
    for (uint32_t i = 0; i < wish->count; i++)
        if (wish->shards[i].entry == entry) return &wish->shards[i];
    return NULL;
}

static bool is_named(char *const *names, size_t count, const struct coord_shard_entry *entry)
{
    size_t i = 0;
    while (i < count && strcmp(names[i], entry->name) != 0) i++;
    return i < count;
}

static void add_wished(struct coord_reshard_wish *wish, struct coord_shard_entry *entry)
{
    struct coord_joiner *there = find_wished(wish, entry);
    if (there == NULL) there = &wish->shards[wish->count++];
    *there = (struct coord_joiner) { entry, 1 };
}

cairn_status coord_reshard_wish_present(const struct coord_job *job,
                                        struct coord_reshard_wish *wish_out)
{
    size_t room = job->shard_count + 1;
    for (const struct coord_shard_entry *s = job->cluster->shards; s != NULL; s = s->next) room++;
    *wish_out = (struct coord_reshard_wish) { .shards = calloc(room, sizeof *wish_out->shards) };
    if (wish_out->shards == NULL) return CAIRN_ERR_NO_MEMORY;
    for (uint32_t i = 0; i < job->shard_count; i++) {
        struct coord_shard_entry *entry = job->shards[i].entry;
        const bool unfit = entry != NULL && coord_shard_stays(entry) && coord_shard_unfit(entry) &&
                           !coord_shard_fits(entry, &job->spec);
        const bool goes = entry == NULL || entry->leaving || unfit;
        const double weight = goes ? 0 : 1;
        wish_out->shards[wish_out->count++] = (struct coord_joiner) { entry, weight };
    }
    return CAIRN_OK;
}

void coord_reshard_wish_all(const struct coord_job *job, struct coord_reshard_wish *wish)
{
    if (job->spec.stage == 0 && coord_reshard_wish_owners(wish) > 0) return;
    for (struct coord_shard_entry *s = job->cluster->shards; s != NULL; s = s->next)
        if (coord_shard_fits(s, &job->spec) &&
            (job->spec.stage != 0 || coord_reshard_wish_owners(wish) == 0))
            add_wished(wish, s);
}

/* ---- of what operators say ---- */

static struct coord_shard_entry *entry_named(const struct coord *cluster, const char *name,
                                             struct sentence *why)
{
    struct coord_shard_entry *entry = coord_shard_find(cluster, name);
    if (entry == NULL)
        sentence_set(why, "there is no shard \"%.128s\"; `cairn cluster status` lists them", name);
    return entry;
}

static const char *why_not(const struct coord_shard_entry *entry)
{
    if (entry->leaving) return "is being drained";
    if (!coord_shard_stays(entry)) return "is not here";
    return coord_shard_apart(entry) ? CAIRN_SHARD_APART_TEXT : "is unfit, since its device failed";
}

static cairn_status take_names(const struct coord_job *job, const Cairn__ReshardAsk *ask,
                               struct coord_reshard_wish *wish, struct sentence *why)
{
    for (size_t i = 0; i < ask->n_add; i++) {
        struct coord_shard_entry *entry = entry_named(job->cluster, ask->add[i], why);
        if (entry == NULL) return CAIRN_ERR_NOT_FOUND;
        if (!coord_shard_fits(entry, &job->spec))
            return fail_with(why, CAIRN_ERR_NOT_READY, "nothing can go to shard %s, which %s",
                             entry->name, why_not(entry));
        add_wished(wish, entry);
    }
    for (size_t i = 0; i < ask->n_drain; i++) {
        const struct coord_shard_entry *entry = entry_named(job->cluster, ask->drain[i], why);
        if (entry == NULL) return CAIRN_ERR_NOT_FOUND;
        if (is_named(ask->add, ask->n_add, entry))
            return fail_with(why, CAIRN_ERR_INVALID,
                             "shard %s is to be added and drained: one of them", entry->name);
        struct coord_joiner *there = find_wished(wish, entry);
        if (there == NULL && ask->all) continue;
        if (there == NULL)
            return fail_with(why, CAIRN_ERR_INVALID,
                             "job %s has no part on shard %s: there is nothing to drain",
                             job->spec.name, entry->name);
        there->weight = 0;
    }
    if (coord_reshard_wish_owners(wish) > 0) return CAIRN_OK;
    return fail_with(why, CAIRN_ERR_INVALID,
                     "no shard would be left for job %s: add another one first", job->spec.name);
}

/* The last ones go, but for those that are added; the next ones by name come. */
static cairn_status take_count(const struct coord_job *job, const Cairn__ReshardAsk *ask,
                               struct coord_reshard_wish *wish, struct sentence *why)
{
    uint32_t owners = coord_reshard_wish_owners(wish), here = 0;
    for (uint32_t i = wish->count; i-- > 0 && owners > ask->shards;) {
        struct coord_joiner *shard = &wish->shards[i];
        if (shard->weight <= 0 || is_named(ask->add, ask->n_add, shard->entry)) continue;
        shard->weight = 0;
        owners--;
    }
    if (owners > ask->shards)
        return fail_with(why, CAIRN_ERR_INVALID,
                         "%zu shards are to be added, and %" PRIu32
                         " are to have job %s in all: give a higher number",
                         ask->n_add, ask->shards, job->spec.name);
    for (struct coord_shard_entry *s = job->cluster->shards; s != NULL; s = s->next) {
        here += coord_shard_fits(s, &job->spec);
        const struct coord_joiner *there = find_wished(wish, s);
        if (owners >= ask->shards || !coord_shard_fits(s, &job->spec) ||
            is_named(ask->drain, ask->n_drain, s) || (there != NULL && there->weight > 0))
            continue;
        add_wished(wish, s);
        owners++;
    }
    if (owners == ask->shards) return CAIRN_OK;
    return fail_with(why, CAIRN_ERR_INVALID,
                     "job %s cannot be spread over %" PRIu32 " shards: %" PRIu32
                     " are here that it could have, of %" PRIu32,
                     job->spec.name, ask->shards, owners, here);
}

static cairn_status take_weights(const struct coord_job *job, const Cairn__ReshardAsk *ask,
                                 struct coord_reshard_wish *wish, struct sentence *why)
{
    for (size_t i = 0; i < ask->n_weights; i++) {
        const Cairn__ShardWeight *w = ask->weights[i];
        if (!isfinite(w->weight) || w->weight <= 0 || w->weight > 1e6)
            return fail_with(why, CAIRN_ERR_INVALID,
                             "the weight of shard %.128s is %g: give a number above 0, at most "
                             "1000000; --drain takes everything off a shard",
                             w->name, w->weight);
        const struct coord_shard_entry *entry = entry_named(job->cluster, w->name, why);
        if (entry == NULL) return CAIRN_ERR_NOT_FOUND;
        struct coord_joiner *there = find_wished(wish, entry);
        if (there == NULL || there->weight <= 0)
            return fail_with(why, CAIRN_ERR_INVALID,
                             "shard %s has a weight, and job %s is not to be on it: add it, too",
                             entry->name, job->spec.name);
        there->weight = w->weight;
    }
    return CAIRN_OK;
}

/* Reads an operator's wish. CAIRN_ERR_INVALID, CAIRN_ERR_NOT_FOUND, CAIRN_ERR_NOT_READY and
 * CAIRN_ERR_NO_MEMORY, with what is wrong with the wish. */
static cairn_status reshard_wish_asked(const struct coord_job *job, const Cairn__ReshardAsk *ask,
                                       struct coord_reshard_wish *wish_out, struct sentence *why)
{
    if (!isfinite(ask->pause) || ask->pause < 0 || ask->pause > 100)
        return fail_with(why, CAIRN_ERR_INVALID,
                         "a pause of %g: give a part of a step from 0 to 100, as 0.1", ask->pause);
    cairn_status status = coord_reshard_wish_present(job, wish_out);
    if (status != CAIRN_OK) return fail_with(why, status, "the coordinator is out of memory");
    wish_out->pause = ask->pause;
    if (ask->shards == 0 && ask->n_add == 0 && ask->n_drain == 0)
        coord_reshard_wish_all(job, wish_out);
    status = take_names(job, ask, wish_out, why);
    if (status == CAIRN_OK && ask->shards > 0) status = take_count(job, ask, wish_out, why);
    if (status == CAIRN_OK) status = take_weights(job, ask, wish_out, why);
    if (status != CAIRN_OK) coord_reshard_wish_release(wish_out);
    return status;
}

/* ==== reshard join ==== */

/* Shards that join a job: each gets a part that owns nothing and serves at once, so that it can prepare the
 * next layout as the others do; and, if that is the policy, its share. See reshard.h. */

/* They have their parts: from here on they are told what the others are told. */
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

static void on_joined(struct coord_job *job, const void *about, cairn_status status,
                      const char *text)
{
    struct coord_reshard *r = &job->reshard;
    struct sentence why;
    if (r->asking == NULL || r->serial != *(const uint32_t *)about) return;
    r->asking = NULL;
    for (uint32_t i = 0; i < r->joiner_count && status == CAIRN_OK; i++)
        if (r->joiners[i].entry->session == NULL || r->joiners[i].entry->session->closing)
            status = fail_with(&why, CAIRN_ERR_CLOSED, "shard %s went away",
                               r->joiners[i].entry->name);
        else
            sentence_set(&why, "%s", text);
    if (status != CAIRN_OK) {
        if (text[0] != '\0') sentence_set(&why, "%s", text);
        coord_reshard_end(job, CAIRN_RESHARD_FAILED, why.text);
        return;
    }
    take_in(job);
    coord_reshard_advance(job);
}

/* The layout in force, over as many shards as there will be. NULL: no memory. */
static struct packed *pack_wider(const struct coord_job *job)
{
    struct layout *wider;
    if (plan_job_widen(&job->spec, job->layout, job->shard_count + job->reshard.joiner_count,
                       &wider) != CAIRN_OK)
        return NULL;
    wider->version = job->layout->version; // they join it, nothing follows it yet
    struct packed *packed = packed_layout(wider);
    layout_close(wider);
    return packed;
}

static void ask_all(struct coord_job *job, struct packed *layout, struct coord_gather *gather)
{
    struct decision last = *round_last(job->core); // schedule and loss scale
    last.kind = CAIRN_DECISION_NONE;
    last.version_after = (struct cairn_version) { job->generation, job->base_step };
    const struct coord_job_load load = { .joins = true,
                                         .version = last.version_after,
                                         .last = &last };
    for (uint32_t i = 0; i < job->reshard.joiner_count; i++) {
        struct coord_shard_entry *entry = job->reshard.joiners[i].entry;
        // Drop the part that an earlier run may have left on this shard: it is of no use.
        coord_job_send_drop(job->cluster, entry, job->id);
        coord_job_ask_create(job, &load, job->shard_count + i, entry, layout, gather);
    }
}

void coord_reshard_join(struct coord_job *job)
{
    struct coord_reshard *r = &job->reshard;
    struct packed *layout = pack_wider(job);
    r->serial = coord_request_new(job->cluster);
    struct coord_gather *gather =
        layout == NULL ? NULL : coord_gather_open_job(job, on_joined, &r->serial, sizeof r->serial);
    if (gather != NULL) {
        r->asking = "the shards that join, to make room";
        ask_all(job, layout, gather);
        coord_gather_start(gather);
    }
    packed_release(layout);
}

void coord_reshard_unjoin(struct coord_job *job)
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

/* ---- by policy ---- */

/* Over all that are here, if the heaviest would be too much heavier than its share where nothing moves. */
static cairn_status spread_if_uneven(struct coord_job *job, const struct coord_reshard_wish *wish,
                                     struct sentence *why)
{
    struct coord_reshard_target target;
    CAIRN_TRY(coord_reshard_plan(job, wish, &target, why));
    const double above = (double)job->cluster->options->rebalance_above / 1000;
    const bool uneven = target.report->heaviest_before > above && target.report->moved_bytes > 0;
    coord_reshard_target_release(&target);
    return uneven ? coord_reshard_begin(job, wish, why) : CAIRN_OK;
}

/* Once for the shards that came; what was refused, with each tick, and said once. */
static void spread_job(struct coord_job *job)
{
    struct coord_reshard *r = &job->reshard;
    const uint64_t entries = job->cluster->arrivals;
    struct coord_reshard_wish wish;
    struct sentence why;
    if (job->state != CAIRN_CLUSTER_JOB_RUNNING || r->running || !coord_job_shards_up(job) ||
        !job->rounds.heard || r->arrivals_seen == entries ||
        coord_reshard_wish_present(job, &wish) != CAIRN_OK)
        return;
    coord_reshard_wish_all(job, &wish);
    const cairn_status status = spread_if_uneven(job, &wish, &why);
    coord_reshard_wish_release(&wish);
    if (status == CAIRN_OK)
        r->arrivals_seen = entries;
    else if (r->arrivals_refused != entries)
        log_warn("job %s is not spread over the shards that came: %s", job->spec.name, why.text);
    if (status != CAIRN_OK) r->arrivals_refused = entries;
}

void coord_reshard_spread(struct coord *cluster)
{
    const char *policy = cluster->options->reshard;
    if (policy == NULL || strcmp(policy, "on_join") != 0) return;
    for (struct coord_job *j = cluster->jobs; j != NULL; j = j->next) spread_job(j);
}
