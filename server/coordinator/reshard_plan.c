/* Plans a re-sharding: its target, and whether the run is possible. See reshard.h. */
#include <inttypes.h>
#include <stdlib.h>

#include "proto/plan/plan.h"
#include "server/coordinator/cluster.h"

/* ==== reshard pace ==== */

/* How large slices are while steps are made, and when a slice may begin. See reshard.h.
 *
 * A slice makes two steps longer: the step in which the slice is prepared, and the step in which
 * its state moves. Some of the time goes to pages, copies and sums, which compete with the backward
 * pass for cores. The rest goes to work that is done while no backward pass runs. How much longer
 * the steps become depends on the machine and on what trainers do, so it is measured, by the
 * longest step since the last slice began. If this step was longer than a usual step by at most
 * half of the pause, the size of slices doubles. If it was longer by more than the pause, the size
 * is halved. The length of a usual step is measured in the same way: it is set to the longest step
 * if even this step was clearly shorter, or if it was longer although slices have the smallest
 * size, since then the slices are not the cause. */

#define SLICE_BYTES_MIN   ((uint64_t)1 << 20)
#define SLICE_BYTES_FIRST ((uint64_t)8 << 20)
#define SLICE_BYTES_MOST  ((uint64_t)1 << 40) /* limits_of sets a lower limit for every shard */
#define PAUSE_DEFAULT     0.1

double coord_reshard_pause(double asked)
{
    return asked > 0 ? asked : PAUSE_DEFAULT;
}

void coord_reshard_pace_begin(struct coord_reshard_pace *pace, double pause, uint32_t median_us)
{
    *pace = (struct coord_reshard_pace) { .pause = coord_reshard_pause(pause),
                                          .usual_us = median_us,
                                          .most_bytes = SLICE_BYTES_FIRST };
}

void coord_reshard_pace_step(struct coord_reshard_pace *pace, uint32_t us)
{
    if (us > pace->longest_us) pace->longest_us = us;
}

void coord_reshard_pace_slice(struct coord_reshard_pace *pace)
{
    const double longest = pace->longest_us, usual = pace->usual_us;
    pace->longest_us = 0;
    if (longest <= 0) return;
    if (usual <= 0 || longest * (1 + pace->pause) < usual) {
        pace->usual_us = (uint32_t)longest;
    } else if (longest <= usual * (1 + pace->pause / 2)) {
        if (pace->most_bytes < SLICE_BYTES_MOST) pace->most_bytes *= 2;
    } else if (longest > usual * (1 + pace->pause)) {
        // If slices have the smallest size already, they are not the cause, so this is the usual
        // length of a step now.
        if (pace->most_bytes <= SLICE_BYTES_MIN) pace->usual_us = (uint32_t)longest;
        if (pace->most_bytes > SLICE_BYTES_MIN) pace->most_bytes /= 2;
    }
}

/* Lowers the limit to the size of the slice that begins. If the limit stayed far above this size,
 * the next halvings would have no effect. */
void coord_reshard_pace_cut(struct coord_reshard_pace *pace, uint64_t bytes)
{
    if (bytes >= SLICE_BYTES_FIRST && pace->most_bytes > bytes) pace->most_bytes = bytes;
}

/* Returns the most bytes that a slice brings a shard now. If nobody trains, this is as much as the shard
 * can take. */
static uint64_t reshard_slice_most(const struct coord_job *job)
{
    const struct coord_reshard *r = &job->reshard;
    if (coord_pace_rests(job)) return UINT64_MAX;
    // without a run: the size with which a run begins
    return r->running ? r->pace.most_bytes : SLICE_BYTES_FIRST;
}

#define SLICE_BYTES_MAX ((uint64_t)64 << 20)
#define SLICE_PART_MAX  0.02 /* or this part of what the shard owns, if that is more */

/* ---- may it be? ---- */

static cairn_status judge_wish(const struct coord_job *job, const struct coord_reshard_wish *wish,
                               struct sentence *why)
{
    if (job->state != CAIRN_CLUSTER_JOB_RUNNING || !job->initialized || job->core == NULL)
        return coord_job_fail_not_running(job, why);
    if (coord_job_has_device(job) && job->spec.offload_fraction > 0)
        return fail_with(
            why, CAIRN_ERR_UNSUPPORTED,
            "job %s has offload_fraction %g: state that lies partly on devices cannot move while "
            "the job runs: save it and restore it over the shards that it is to have (`cairn "
            "snapshot create %s`, `cairn snapshot restore %s latest`)",
            job->spec.name, job->spec.offload_fraction, job->spec.name, job->spec.name);
    if (wish->count > job->shard_room)
        return fail_with(why, CAIRN_ERR_REFUSED,
                         "%d shards have joined job %s since the coordinator started, the most "
                         "allowed: start the coordinator again, or restore a snapshot of the job",
                         CAIRN_JOB_JOINS_MAX, job->spec.name);
    for (uint32_t i = 0; i < wish->count; i++) {
        if (wish->shards[i].entry == NULL || coord_shard_obeys(wish->shards[i].entry)) continue;
        return fail_with(why, CAIRN_ERR_NOT_READY,
                         "shard %s is away: a re-sharding begins when all shards of it are here",
                         wish->shards[i].entry->name);
    }
    const uint32_t owners = coord_reshard_wish_owners(wish);
    if (job->spec.stage != 0 || owners == 1) return CAIRN_OK;
    return fail_with(why, CAIRN_ERR_INVALID,
                     "job %s has stage 0: one shard has all of its state, and it cannot be spread "
                     "over %" PRIu32
                     "; it can move to another one, or be made with stage 1 or more",
                     job->spec.name, owners);
}

static bool is_of(const Cairn__MemoryTold *told, const struct coord_job *job)
{
    return told->job == job->id;
}

static uint64_t beside_state(const Cairn__MemoryTold *told)
{
    return told->landing + told->staging + told->tables;
}

/* Returns the memory that a joining shard will need beside its state. This is the largest such
 * amount that a shard of the job reports. */
static uint64_t beside_state_max(const struct coord_job *job)
{
    uint64_t most = 0;
    CAIRN_EACH_SHARD (job, s) {
        const struct coord_shard_entry *entry = job->shards[s].entry;
        for (size_t i = 0; entry != NULL && i < entry->told.memory_count; i++)
            if (is_of(&entry->told.memory[i], job) && beside_state(&entry->told.memory[i]) > most)
                most = beside_state(&entry->told.memory[i]);
    }
    return most;
}

/* Returns how many bytes of device memory a shard may use for state of the job. Room for a slice
 * stays free in addition. Returns 0 if the shard keeps no state on a device. */
static uint64_t device_capacity_of(const struct coord_job *job,
                                   const struct coord_shard_entry *entry, uint64_t slice_bytes)
{
    const struct coord_session *session = entry != NULL ? entry->session : NULL;
    if (session == NULL || session->home == NULL || session->home->total_bytes == 0 ||
        job->spec.offload_fraction > 0)
        return 0;
    uint64_t taken = session->home->taken_bytes + slice_bytes;
    for (size_t i = 0; i < entry->told.memory_count; i++)
        if (!is_of(&entry->told.memory[i], job)) taken += entry->told.memory[i].device;
    return taken < session->home->total_bytes ? session->home->total_bytes - taken : 1;
}

/* Returns how many bytes of memory a shard may use for state of the job. Room for a slice stays
 * free in addition. Returns 0 if the number is not known. A shard that has just connected has not
 * reported yet how much of its memory other jobs take, so their memory counts as free. */
static uint64_t capacity_of(const struct coord_job *job, const struct coord_shard_entry *entry,
                            uint64_t slice_bytes)
{
    uint64_t taken = slice_bytes;
    bool has_part = false;
    const uint64_t device = device_capacity_of(job, entry, slice_bytes);
    if (device > 0) return device;
    if (entry == NULL || entry->memory_bytes == 0) return 0;
    for (size_t i = 0; i < entry->told.memory_count; i++) {
        const Cairn__MemoryTold *told = &entry->told.memory[i];
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

/* True if a shard of the wish is being stopped. The shard will end in some seconds, even if not all
 * state has moved, so the plan moves no more than it must. */
static bool is_in_haste(const struct coord_reshard_wish *wish)
{
    for (uint32_t i = 0; i < wish->count; i++)
        if (wish->shards[i].entry != NULL && wish->shards[i].entry->drain.request != 0) return true;
    return false;
}

/* Arrays for the planner, each of which has an element for each shard of the wish. All are
 * owned. */
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

/* Returns, for each shard, the most bytes that a slice brings to the shard or takes from the shard;
 * [shard_count], malloc'ed. Returns NULL if there is no memory. */
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

/* Returns the most bytes that a slice brings to any shard. */
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
    uint64_t *limits = limits_of(job, target->layout->shard_count, reshard_slice_most(job));
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
        .plan = { .tensors = tensors,
                  .tensor_count = (uint32_t)job->spec.tensor_count,
                  .shard_count = wish->count,
                  .spread = job->spec.spread,
                  .held = job->layout,
                  .free = is_in_haste(wish) ? CAIRN_FREE_LEAST : CAIRN_FREE_SURPLUS },
        .weights = asked.weights,
        .capacity_bytes = asked.capacities,
        .slice_bytes = largest_slice(job, wish->count),
        .names = asked.names,
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
    uint64_t *limits = limits_of(job, job->reshard.target->shard_count, reshard_slice_most(job));
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

/* ==== reshard wish ==== */

/* Makes wishes: the wish of the run under way, a wish by which no state moves, and additions to a
 * wish. See reshard.h. */

void coord_reshard_wish_release(struct coord_reshard_wish *wish)
{
    free(wish->shards);
    wish->shards = NULL;
    wish->count = 0;
}

/* Makes the wish that the job's present run fulfils. CAIRN_ERR_NO_MEMORY. */
static cairn_status wish_of(const struct coord_job *job, struct coord_reshard_wish *wish_out)
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

struct coord_joiner *coord_reshard_wish_find(struct coord_reshard_wish *wish,
                                             const struct coord_shard_entry *entry)
{
    for (uint32_t i = 0; i < wish->count; i++)
        if (wish->shards[i].entry == entry) return &wish->shards[i];
    return NULL;
}

void coord_reshard_wish_add(struct coord_reshard_wish *wish, struct coord_shard_entry *entry)
{
    struct coord_joiner *there = coord_reshard_wish_find(wish, entry);
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
            coord_reshard_wish_add(wish, s);
}

/* ==== what waits for the store ==== */

/* A request that has begun runs. It is answered when the store has these runs, because a
 * coordinator that ends earlier forgets them. Writes to the store end in order, so when the last
 * run is stored, the others are stored, too. */
struct coord_reshard_asked {
    struct coord_reshard_asked *next; /* of the cluster's list */
    struct coord_waiters waiter;
    uint32_t first, last;   /* the runs have the serials from `first` to `last` */
    ProtobufCMessage *told; /* owned */
    /* the status of a write to the store that has failed; CAIRN_OK: none has */
    cairn_status status;
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
    struct coord_reshard_asked **at = &saved->cluster->under_way.asked, *asked;
    while ((asked = *at) != NULL && (saved->number < asked->first || saved->number > asked->last))
        at = &asked->next;
    if (asked == NULL) return; // nobody waits: the policy or a drain began the run
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

void coord_reshard_asked_close(struct coord *cluster)
{
    while (cluster->under_way.asked != NULL) {
        struct coord_reshard_asked *asked = cluster->under_way.asked;
        cluster->under_way.asked = asked->next;
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

bool coord_reshard_tell_later(struct coord_session *session, uint32_t request,
                              const Cairn__ReshardTold *told, uint32_t first, uint32_t last)
{
    struct coord_reshard_asked *asked = calloc(1, sizeof *asked);
    if (asked == NULL) return false;
    asked->first = first;
    asked->last = last;
    asked->told = copy_progress(told);
    struct sentence unsaid;
    if (asked->told == NULL ||
        coord_waiters_add(&asked->waiter, session, request, &unsaid) != CAIRN_OK) {
        asked_free(asked);
        return false;
    }
    asked->next = session->cluster->under_way.asked;
    session->cluster->under_way.asked = asked;
    return true;
}

/* ==== for the run ==== */

cairn_status coord_reshard_plan_anew(struct coord_job *job, struct sentence *why)
{
    struct coord_reshard_wish wish;
    struct coord_reshard_target target;
    cairn_status status = wish_of(job, &wish);
    if (status != CAIRN_OK) return fail_with(why, status, "the coordinator is out of memory");
    status = coord_reshard_plan(job, &wish, &target, why);
    coord_reshard_wish_release(&wish);
    if (status != CAIRN_OK) return status;
    struct coord_reshard_progress *progress = &job->reshard.progress;
    job->reshard.target = target.layout;
    target.layout = NULL;
    progress->least_bytes = progress->moved_bytes + target.report->plan.moved_bytes_bound;
    progress->all_bytes = progress->moved_bytes + target.report->plan.moved_bytes;
    progress->slices = progress->slice + target.slices;
    progress->heaviest_after = target.report->heaviest_after;
    if (progress->heaviest_before <= 0) progress->heaviest_before = target.report->heaviest_before;
    coord_reshard_target_release(&target);
    return CAIRN_OK;
}
