/* The arithmetic of a round, on the compute pool: folds, the sums, the update, the first publish.
 *
 * A FOLD works on one chunk's sum; the passes (REDUCE, UPDATE, the seal) take a chunk an item. The round
 * machine never asks for two things of one chunk at a time, nor for a pass while anything runs.
 *
 * An update goes through memory twice: the folds write the sums, the UPDATE reads them (8 of 38 bytes an
 * element, with bf16 on the wire). One pass would overwrite parameters before the decision, which
 * comes after all chunks of all shards even without a clip and where non-finite sums are applied: until
 * then a worker may die and the round be abandoned, and the parameters must be those before it. */
#include <assert.h>
#include <string.h>

#include "server/base/guard.h"
#include "server/shard/shard.h"

/* A pass over so few takes some 10 us; a thread to be woken, and to wake the loop, takes as long. */
#define SMALL_ELEMS 16384

static float *plane_at(const struct cairn_arena *arena, uint64_t local_elem)
{
    return arena->base == NULL ? NULL : (float *)arena->base + local_elem;
}

static struct cairn_shard_job *job_of_pass(struct cairn_task *task)
{
    return (struct cairn_shard_job *)((char *)task - offsetof(struct cairn_shard_job, pass));
}

static void submit_pass(struct cairn_shard_job *job, uint32_t item_count,
                        void (*run)(struct cairn_task *task, uint32_t item, uint32_t thread),
                        void (*done)(struct cairn_task *task))
{
    job->pass = (struct cairn_task) {
        .run = run,
        .done = done,
        .item_count = item_count,
        .is_small = job->map.elem_count <= SMALL_ELEMS,
    };
    cairn_shard_job_busy(job);
    cairn_pool_submit(job->shard->compute, &job->pass);
}

/* ---- fold ---- */

static void fold_sources(void *arg)
{
    const struct cairn_fold *fold = arg;
    const struct cairn_shard_job *job = fold->job;
    const uint32_t chunk = job->grad_chunks[fold->chunk];
    const struct cairn_chunk_place place = cairn_shard_map_chunk(&job->map, chunk);
    float *acc = plane_at(&job->acc, place.local_elem);
    if (fold->tiled)
        cairn_tiles_fold(fold, chunk, &place, acc);
    else if (!fold->sums)
        job->shard->backend->fold(acc, fold->sources, fold->source_count, fold->first,
                                  (size_t)place.elem_count);
    if (!fold->sums) return;
    struct cairn_sums *sums = &job->chunk_sums[fold->chunk];
    const struct cairn_geometry *geometry = &job->layout->geometry[place.tensor];
    *sums = (struct cairn_sums) { 0 };
    if (fold->tiled) // while it is in the cache
        job->shard->backend->sum_leaves(acc, geometry, place.first_leaf, place.leaf_count, sums);
    else
        job->shard->backend->fold_leaves(&(struct cairn_leaf_fold) {
            .acc = acc,
            .sources = fold->sources,
            .source_count = fold->source_count,
            .first = fold->first,
            .far = job->far,
            .geometry = geometry,
            .first_leaf = place.first_leaf,
            .leaf_count = place.leaf_count,
            .sums = sums,
        });
}

static void run_fold(struct cairn_task *task, uint32_t item, uint32_t thread)
{
    struct cairn_fold *fold = (struct cairn_fold *)task;
    (void)item;
    (void)thread;
    if (fold->viewed)
        fold->failed_at = cairn_guard_run(fold_sources, fold);
    else
        fold_sources(fold);
}

/* The sum is wrong for good, as folds go on from it: the round must not be reported. */
static void spoil(struct cairn_shard_job *job, const struct cairn_fold *fold)
{
    bool is_ours = true;
    job->spoiled_round = cairn_step_round_seen(job->step);
    for (uint32_t i = 0; i < fold->source_count; i++) {
        const struct cairn_slot *slot = &job->slots[fold->slots[i]];
        const uintptr_t from = (uintptr_t)slot->view, at = (uintptr_t)fold->failed_at;
        if (slot->view == NULL || at - from >= slot->payload_bytes) continue;
        is_ours = false;
        cairn_member_unreadable(job, slot->member);
    }
    if (is_ours)
        cairn_log_error(
            "job %s: the host of shard %s has no page for a sum: it is out of memory, and "
            "round %llu cannot end; give it more, and have a worker attach again",
            job->spec.name, job->shard->name, (unsigned long long)job->spoiled_round);
}

static void fold_done(struct cairn_task *task)
{
    struct cairn_fold *fold = (struct cairn_fold *)task;
    struct cairn_shard_job *job = fold->job;
    if (fold->failed_at != NULL) spoil(job, fold);
    job->summed[fold->chunk] = fold->sums;
    for (uint32_t i = 0; i < fold->source_count; i++) {
        job->slots[fold->slots[i]].folding = false;
        cairn_landing_release(&job->slots[fold->slots[i]]);
    }
    fold->next_free = job->folds_free;
    job->folds_free = fold;
    cairn_shard_job_step(
        job, &(struct cairn_step_event) { .kind = CAIRN_STEP_FOLDED, .chunk = fold->chunk });
    cairn_shard_job_idle(job);
}

void cairn_round_fold(struct cairn_shard_job *job, const struct cairn_step_action *action)
{
    struct cairn_fold *fold = job->folds_free;
    assert(fold != NULL); // one fold a chunk, and each has a slot
    job->folds_free = fold->next_free;
    fold->task = (struct cairn_task) { .run = run_fold, .done = fold_done, .item_count = 1 };
    fold->chunk = action->chunk;
    fold->first = action->first;
    fold->source_count = action->count;
    fold->viewed = false;
    fold->sums = action->likely_last;
    fold->failed_at = NULL;
    for (uint32_t i = 0; i < action->count; i++) {
        const uint32_t number = action->slots[i];
        struct cairn_slot *slot = &job->slots[number];
        const void *landed = job->landing.base + (size_t)number * job->slot_bytes;
        fold->sources[i] = (struct cairn_source) {
            .data = slot->view != NULL ? slot->view : landed,
            .dtype = slot->dtype,
        };
        fold->pieces[i] = slot->piece;
        fold->slots[i] = number;
        fold->viewed = fold->viewed || slot->view != NULL;
        slot->folding = true;
    }
    fold->tiled = fold->pieces[0].held != NULL;
    if (action->first) {
        job->zero[action->chunk] = false;
        cairn_tiles_begin_chunk(job, job->grad_chunks[action->chunk]);
    }
    fold->task.is_small = job->map.elem_count <= SMALL_ELEMS && !fold->viewed;
    cairn_shard_job_busy(job);
    cairn_pool_submit(job->shard->compute, &fold->task);
}

/* ---- reduce ---- */

void cairn_round_zero(struct cairn_shard_job *job, uint32_t chunk)
{
    job->zero[chunk] = true; // REDUCE, which follows, writes the zeros
}

static void run_reduce(struct cairn_task *task, uint32_t item, uint32_t thread)
{
    const struct cairn_shard_job *job = job_of_pass(task);
    const struct cairn_chunk_place place = cairn_shard_map_chunk(&job->map, job->grad_chunks[item]);
    float *acc = plane_at(&job->acc, place.local_elem);
    if (job->zero[item]) {
        memset(acc, 0, (size_t)place.elem_count * sizeof *acc); // and adds nothing
        return;
    }
    if (!job->summed[item]) {
        job->shard->backend->sum_leaves(acc, &job->layout->geometry[place.tensor], place.first_leaf,
                                        place.leaf_count, &job->sums[thread]);
        return;
    }
    cairn_status status = cairn_exact_add(&job->sums[thread].sum_squares,
                                          &job->chunk_sums[item].sum_squares);
    assert(status == CAIRN_OK);
    (void)status;
    job->sums[thread].nonfinite += job->chunk_sums[item].nonfinite;
}

static void reduce_done(struct cairn_task *task)
{
    struct cairn_shard_job *job = job_of_pass(task);
    struct cairn_step_sums sums = { 0 };
    for (uint32_t i = 0; i < cairn_pool_thread_count(job->shard->compute); i++) {
        cairn_status status = cairn_exact_add(&sums.sum_squares, &job->sums[i].sum_squares);
        assert(status == CAIRN_OK); // 2^74 leaves would fit
        (void)status;
        sums.nonfinite += job->sums[i].nonfinite;
    }
    cairn_shard_job_step(job,
                         &(struct cairn_step_event) { .kind = CAIRN_STEP_SUMMED, .sums = &sums });
    cairn_shard_job_idle(job);
}

void cairn_round_reduce(struct cairn_shard_job *job)
{
    const size_t threads = cairn_pool_thread_count(job->shard->compute);
    memset(job->sums, 0, threads * sizeof *job->sums);
    submit_pass(job, job->grad_chunk_count, run_reduce, reduce_done);
}

/* ---- update ---- */

/* The scalars of the groups, out of the decision; NULL, or why it cannot be applied. */
static const char *read_scalars(struct cairn_shard_job *job, const struct cairn_decision *decision)
{
    struct cairn_payload head;
    cairn_status status = cairn_payload_decode(decision->payload, decision->payload_bytes, &head);
    if (status != CAIRN_OK) return "the payload of an APPLY is malformed";
    if (head.group_count != job->spec.group_count)
        return "the payload of an APPLY has another number of groups";
    for (uint32_t g = 0; g < head.group_count; g++) {
        const struct cairn_group_spec *group = &job->spec.groups[g];
        struct cairn_group_scalars *scalars = &job->scalars[g];
        status = cairn_payload_group(decision->payload, decision->payload_bytes, g, scalars);
        if (status != CAIRN_OK) return "the scalars of an APPLY are malformed";
        if (scalars->optimizer != cairn_optimizer_by_name(group->optimizer)->id)
            return "the scalars of an APPLY are of another optimizer";
        const bool momentum = (scalars->flags & CAIRN_SCALAR_MOMENTUM) != 0;
        if (scalars->optimizer == CAIRN_OPTIMIZER_SGD && momentum != (group->momentum != 0))
            return "the scalars of an APPLY disagree with the spec about momentum";
    }
    return NULL;
}

/* Where a chunk's wire copy stands in a published version. */
static void *wire_of(const struct cairn_shard_job *job, const struct cairn_published *published,
                     uint64_t chunk, const struct cairn_chunk_place *place)
{
    const uint32_t part = job->chunk_part[chunk];
    const uint64_t elems = place->local_elem - job->map.extents[part].local_elem;
    return published->wire.base + job->parts[part].wire_byte +
           elems * cairn_dtype_bytes((int)job->parts[part].wire);
}

static float *kept_plane(const struct cairn_part *part, enum cairn_plane plane,
                         const struct cairn_arena *arena, uint64_t local_elem)
{
    return (part->planes & 1u << plane) != 0 ? plane_at(arena, local_elem) : NULL;
}

/* A chunk whose parameters no update changes. */
static void publish_chunk(struct cairn_shard_job *job, struct cairn_published *published,
                          uint32_t chunk, const struct cairn_chunk_place *place)
{
    const uint32_t part = job->chunk_part[chunk];
    job->shard->backend->convert(wire_of(job, published, chunk, place), job->parts[part].wire,
                                 job->param.base +
                                     cairn_shard_job_plane_byte(job, part, place->local_elem),
                                 job->parts[part].master, (size_t)place->elem_count);
    published->checksums[chunk] = 0; // made when it is asked for
}

/* Updates pass frozen tensors by; after a write the older copies have to take them over once, and so has
 * one that a lease made. */
static void refresh_frozen(struct cairn_shard_job *job, struct cairn_published *next,
                           uint32_t chunk)
{
    if (job->parts[job->chunk_part[chunk]].trained) return;
    const struct cairn_chunk_place place = cairn_shard_map_chunk(&job->map, chunk);
    publish_chunk(job, next, chunk, &place);
}

static void run_write(struct cairn_task *task, uint32_t item, uint32_t thread)
{
    (void)thread;
    struct cairn_shard_job *job = job_of_pass(task);
    const struct cairn_chunk_place place = cairn_shard_map_chunk(&job->map, item);
    cairn_write_apply(job, item, &place);
    publish_chunk(job, &job->published[job->writing], item, &place);
}

static void run_update(struct cairn_task *task, uint32_t item, uint32_t thread)
{
    (void)thread;
    struct cairn_shard_job *job = job_of_pass(task);
    struct cairn_published *next = &job->published[job->writing];
    if (item >= job->grad_chunk_count) {
        refresh_frozen(job, next, item - job->grad_chunk_count);
        return;
    }
    const uint32_t chunk = job->grad_chunks[item];
    const struct cairn_chunk_place place = cairn_shard_map_chunk(&job->map, chunk);
    const struct cairn_part *part = &job->parts[job->chunk_part[chunk]];
    const struct cairn_group_scalars *scalars = &job->scalars[part->group];
    // A prepared shard has seen the opening of the round that is decided: frozen_tensors are that round's.
    if ((scalars->flags & CAIRN_SCALAR_FROZEN) != 0 || job->frozen_tensors[place.tensor]) {
        publish_chunk(job, next, chunk, &place);
        return;
    }
    const struct cairn_update update = {
        .grad = plane_at(&job->acc, place.local_elem),
        .param = plane_at(&job->param, place.local_elem),
        .exp_avg = kept_plane(part, CAIRN_PLANE_EXP_AVG, &job->exp_avg, place.local_elem),
        .exp_avg_sq = kept_plane(part, CAIRN_PLANE_EXP_AVG_SQ, &job->exp_avg_sq, place.local_elem),
        .wire = wire_of(job, next, chunk, &place),
        .wire_dtype = part->wire,
        .elems = (size_t)place.elem_count,
        .far = job->far,
    };
    job->shard->backend->update[scalars->optimizer](&update, scalars);
    next->checksums[chunk] = 0;
}

static void update_done(struct cairn_task *task)
{
    struct cairn_shard_job *job = job_of_pass(task);
    cairn_times_updated(job);
    cairn_published_end(job, job->version_next, job->update_writes);
    job->updating = false;
    if (job->update_writes) {
        job->update_writes = false;
        cairn_write_close(job);
    }
    cairn_log_debug("job %s: published %llu.%llu", job->spec.name,
                    (unsigned long long)job->version_next.generation,
                    (unsigned long long)job->version_next.step);
    cairn_shard_job_step(job, &(struct cairn_step_event) { .kind = CAIRN_STEP_UPDATED });
    cairn_pin_updated(job);
    cairn_fetch_deferred(job);
    cairn_shard_job_idle(job);
}

static void begin_update(struct cairn_shard_job *job)
{
    const struct cairn_published *next = &job->published[job->writing];
    job->update_waits = false;
    cairn_times_updating(job);
    const uint32_t all = (uint32_t)job->map.chunk_count;
    if (job->update_writes)
        submit_pass(job, all, run_write, update_done);
    else
        submit_pass(job, job->grad_chunk_count + (next->stale ? all : 0), run_update, update_done);
}

void cairn_round_update(struct cairn_shard_job *job, const struct cairn_decision *decision)
{
    job->update_writes = decision->kind == CAIRN_DECISION_WRITE;
    const char *why = job->update_writes ? NULL : read_scalars(job, decision);
    if (why != NULL) {
        cairn_shard_job_fault(job, why);
        return;
    }
    job->version_next = decision->version_after;
    job->steps += !job->update_writes;
    job->updating = true;
    // The version that was there is gone from here on: without leases, the one before the newest.
    (void)cairn_published_begin(job);
    job->update_waits = true;
    cairn_round_copies_ended(job);
}

void cairn_round_copies_ended(struct cairn_shard_job *job)
{
    if (!job->update_waits || job->copies > 0 || job->published[job->writing].sends > 0) return;
    begin_update(job);
}

/* ---- the first publish ---- */

static void run_seal(struct cairn_task *task, uint32_t item, uint32_t thread)
{
    (void)thread;
    struct cairn_shard_job *job = job_of_pass(task);
    const struct cairn_chunk_place place = cairn_shard_map_chunk(&job->map, item);
    publish_chunk(job, &job->published[0], item, &place);
    // Updates pass frozen tensors by, so both copies have them from the start.
    if (!job->parts[job->chunk_part[item]].trained)
        publish_chunk(job, &job->published[1], item, &place);
}

static void seal_done(struct cairn_task *task)
{
    struct cairn_shard_job *job = job_of_pass(task);
    if (job->state == CAIRN_JOB_SEALING) {
        const struct cairn_version version = cairn_step_version(job->step);
        cairn_published_seal(job, version);
        job->state = CAIRN_JOB_SERVING;
        cairn_put_end(job);
        cairn_log_info("job %s: ready at version %llu.%llu", job->spec.name,
                       (unsigned long long)version.generation, (unsigned long long)version.step);
        cairn_shard_job_step(
            job, &(struct cairn_step_event) { .kind = CAIRN_STEP_READY, .version = version });
        cairn_session_answer(job->shard, &job->creating, CAIRN_OK, NULL);
    }
    cairn_shard_job_idle(job);
}

void cairn_round_seal(struct cairn_shard_job *job)
{
    assert(job->state == CAIRN_JOB_INITIALIZING || job->state == CAIRN_JOB_LOADING);
    job->state = CAIRN_JOB_SEALING;
    submit_pass(job, (uint32_t)job->map.chunk_count, run_seal, seal_done);
}
