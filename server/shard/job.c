/* A job on this shard: judged, sized, reserved as a whole, and freed as a whole. */
#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proto/wire/published.h"
#include "server/shard/create.h"
#include "server/shard/extend.h"
#include "server/shard/relay.h"
#include "server/shard/report.h"
#include "server/shard/shard.h"

/* From here on nothing of a pass is in a cache when the next one comes to it, by measurement. */
#define FAR_ELEMS ((uint64_t)4 << 20)

struct cairn_shard_job *cairn_shard_job_find(struct cairn_shard *shard, uint64_t number)
{
    struct cairn_shard_job *job = shard->jobs;
    while (job != NULL && (job->number != number || job->state == CAIRN_JOB_LEAVING || job->staged))
        job = job->next;
    return job;
}

/* ---- what it is: spec, layout, parts ---- */

static cairn_status decode_layout(struct cairn_shard_job *job, const struct cairn_paged *bytes,
                                  struct cairn_sentence *why)
{
    const size_t count = job->spec.tensor_count;
    struct cairn_layout_tensor *tensors = calloc(count + 1, sizeof *tensors);
    if (tensors == NULL) return cairn_fail(why, CAIRN_ERR_NO_MEMORY, "no memory for a layout");
    for (size_t t = 0; t < count; t++) {
        const struct cairn_tensor_spec *spec = &job->spec.tensors[t];
        tensors[t] = (struct cairn_layout_tensor) {
            .name = spec->name, .unit = spec->unit, .shape = spec->shape, .elem_bytes = 1
        };
    }
    cairn_status status = cairn_layout_decode(bytes->bytes, bytes->have_bytes, tensors,
                                              (uint32_t)count, &job->layout);
    free(tensors);
    if (status != CAIRN_OK) {
        return cairn_fail(why, status, "the layout of %zu bytes does not fit the job's tensors: %s",
                          bytes->have_bytes, cairn_status_text((int)status));
    }
    return CAIRN_OK;
}

static cairn_status decode_parts(struct cairn_shard_job *job, const Cairn__JobCreate *message,
                                 const struct cairn_paged *spec, const struct cairn_paged *layout,
                                 struct cairn_sentence *why)
{
    const uint32_t index = message->shard_index;
    cairn_status status = cairn_spec_unpack(spec->bytes, spec->have_bytes, cairn_optimizer_names(),
                                            &job->spec, why);
    if (status != CAIRN_OK) return status;
    job->revision = job->spec.revision;
    status = decode_layout(job, layout, why);
    if (status != CAIRN_OK) return status;
    if (index >= job->layout->shard_count) {
        return cairn_fail(why, CAIRN_ERR_INVALID, "shard index %u of a layout of %u shards", index,
                          job->layout->shard_count);
    }
    status = cairn_shard_map_init(&job->map, job->layout, index, job->spec.chunk_leaves);
    if (status != CAIRN_OK) return cairn_fail(why, status, "no memory for the map of a job");
    if (job->map.chunk_count >= UINT32_MAX) {
        return cairn_fail(why, CAIRN_ERR_INVALID,
                          "%llu chunks on one shard: raise chunk_leaves or add shards",
                          (unsigned long long)job->map.chunk_count);
    }
    return CAIRN_OK;
}

static cairn_status make_parts(struct cairn_shard_job *job, uint32_t member_max,
                               struct cairn_need *need, struct cairn_sentence *why)
{
    job->parts = calloc(job->map.extent_count + 1, sizeof *job->parts);
    if (job->parts == NULL) return cairn_fail(why, CAIRN_ERR_NO_MEMORY, "no memory for a job");
    cairn_status status = cairn_need_of(&job->spec, &job->map, member_max, job->parts, need, why);
    if (status != CAIRN_OK) return status;
    need->step.folds_wanted = cairn_pool_thread_count(job->shard->compute) +
                              1; // one is handed over
    job->grad_chunk_count = need->step.chunk_count;
    memcpy(job->plane_bytes, need->plane_bytes, sizeof job->plane_bytes);
    job->slot_count = need->slot_count;
    job->slot_bytes = need->slot_bytes;
    job->put_max = need->put_max;
    job->put_bytes = need->put_bytes;
    job->reply_bytes = need->reply_bytes;
    return CAIRN_OK;
}

uint64_t cairn_shard_job_plane_byte(const struct cairn_shard_job *job, uint32_t extent,
                                    uint64_t local_elem)
{
    const uint64_t first = job->map.extents[extent].local_elem;
    return first * sizeof(float) +
           (local_elem - first) * cairn_dtype_bytes((int)job->parts[extent].master);
}

const enum cairn_plane cairn_state_planes[CAIRN_STATE_PLANES] = { CAIRN_PLANE_PARAM,
                                                                  CAIRN_PLANE_EXP_AVG,
                                                                  CAIRN_PLANE_EXP_AVG_SQ };

bool cairn_part_keeps(const struct cairn_part *part, enum cairn_plane plane)
{
    return plane == CAIRN_PLANE_PARAM || (part->planes & 1u << plane) != 0;
}

cairn_dtype cairn_part_dtype(const struct cairn_part *part, enum cairn_plane plane)
{
    return plane == CAIRN_PLANE_PARAM ? part->master : CAIRN_F32;
}

const struct cairn_arena *cairn_shard_job_plane(const struct cairn_shard_job *job,
                                                enum cairn_plane plane)
{
    return plane == CAIRN_PLANE_PARAM     ? &job->param
           : plane == CAIRN_PLANE_EXP_AVG ? &job->exp_avg
                                          : &job->exp_avg_sq;
}

uint8_t *cairn_shard_job_at(const struct cairn_shard_job *job, enum cairn_plane plane,
                            uint32_t extent, uint64_t local_elem)
{
    return cairn_shard_job_plane(job, plane)->base +
           cairn_shard_job_plane_byte(job, extent, local_elem);
}

/* The tables that make a chunk's place a matter of one look. */
static cairn_status make_tables(struct cairn_shard_job *job, struct cairn_sentence *why)
{
    job->chunk_part = calloc((size_t)job->map.chunk_count + 1, sizeof *job->chunk_part);
    job->grad_chunks = calloc((size_t)job->grad_chunk_count + 1, sizeof *job->grad_chunks);
    job->have = calloc((size_t)job->map.chunk_count + 1, 1);
    if (job->chunk_part == NULL || job->grad_chunks == NULL || job->have == NULL) {
        return cairn_fail(why, CAIRN_ERR_NO_MEMORY, "no memory for the chunks of a job");
    }
    for (uint32_t i = 0; i < job->map.extent_count; i++) {
        const struct cairn_local_extent *extent = &job->map.extents[i];
        for (uint64_t c = 0; c < extent->chunk_count; c++) {
            job->chunk_part[extent->first_chunk + c] = i;
            if (!job->parts[i].trained) continue;
            job->grad_chunks[job->parts[i].grad_chunk + c] = (uint32_t)(extent->first_chunk + c);
        }
    }
    return CAIRN_OK;
}

/* ---- reserving ---- */

/* Of a row for each member that may be in a round. */
static size_t holds_bytes(const struct cairn_shard_job *job)
{
    const size_t members = job->slot_count / job->spec.window;
    return members * CAIRN_STEP_HOLDS_BYTES(job->grad_chunk_count);
}

/* Of the budget: what it takes, and the landing memory of the workers without whom no round opens. */
static uint64_t least_bytes(const struct cairn_shard_job *job, const struct cairn_need *need)
{
    return cairn_memory_sum(&need->memory) + job->spec.workers_min * need->landing_bytes;
}

/* With chunks of half as many leaves, and so on, until it fits: there are more of them, and with them more of
 * the rest. 0: it never does. */
static uint32_t leaves_that_fit(const struct cairn_shard_job *job, const struct cairn_need *need,
                                uint64_t room)
{
    const struct cairn_memory *memory = &need->memory;
    const uint64_t leaf_bytes = CAIRN_LEAF_ELEMS * sizeof(float);
    const uint64_t now = (job->reply_bytes - 1) / leaf_bytes +
                         1; // the last one may be a part of one
    const uint64_t chunks = (uint64_t)job->spec.workers_min * job->spec.window + job->put_max;
    const uint64_t boxes = job->put_max * (uint64_t)(job->put_bytes - job->slot_bytes) +
                           chunks * CAIRN_STAGGER_BYTES;
    for (uint64_t leaves = now / 2; leaves > 0; leaves /= 2)
        if (memory->state + memory->published + boxes + chunks * leaves * leaf_bytes +
                memory->tables * ((now - 1) / leaves + 1) <=
            room)
            return (uint32_t)leaves;
    return 0;
}

static uint32_t window_that_fits(const struct cairn_shard_job *job, const struct cairn_need *need,
                                 uint64_t room)
{
    const uint64_t per_window = (uint64_t)job->spec.workers_min * job->slot_bytes;
    for (uint32_t window = job->spec.window / 2; window > 0; window /= 2)
        if (least_bytes(job, need) - per_window * (job->spec.window - window) <= room)
            return window;
    return 0;
}

/* How the job would fit into the room there is, if its chunks in flight are what is too much. */
static void advise(const struct cairn_shard_job *job, const struct cairn_need *need,
                   struct cairn_sentence *why)
{
    const uint64_t room = job->shard->budget.limit_bytes - job->shard->budget.used_bytes;
    const uint32_t leaves = leaves_that_fit(job, need, room);
    const uint32_t window = window_that_fits(job, need, room);
    if (leaves > 0)
        cairn_sentence_add(why, "; it fits with chunk_leaves %u (now %u)", leaves,
                           job->spec.chunk_leaves);
    if (window > 0)
        cairn_sentence_add(why, "%s window %u (now %u)", leaves > 0 ? ", or" : "; it fits with",
                           window, job->spec.window);
}

/* Landing memory is taken as workers join (admit.c): a job that could never open a round is refused now. */
static cairn_status take_budget(struct cairn_shard_job *job, const struct cairn_need *need,
                                struct cairn_sentence *why)
{
    struct cairn_budget *budget = &job->shard->budget;
    const uint64_t bytes = cairn_memory_sum(&need->memory);
    char what[CAIRN_NAME_MAX + 200];
    snprintf(what, sizeof what,
             "job %s (%llu elements here: state %llu bytes, published %llu, landing %u x %zu bytes "
             "for %u worker%s)",
             job->spec.name, (unsigned long long)job->map.elem_count,
             (unsigned long long)need->memory.state, (unsigned long long)need->memory.published,
             job->spec.workers_min * job->spec.window, job->slot_bytes, job->spec.workers_min,
             job->spec.workers_min == 1 ? "" : "s");
    cairn_status status = cairn_budget_take(budget, least_bytes(job, need), what, why);
    if (status == CAIRN_OK) {
        cairn_budget_give(budget, least_bytes(job, need) - bytes);
        job->memory = need->memory;
    } else {
        advise(job, need, why);
    }
    return status;
}

cairn_status cairn_shard_job_take(struct cairn_shard_job *job, uint64_t *kind, uint64_t bytes,
                                  const char *what, struct cairn_sentence *why)
{
    const cairn_status status = cairn_budget_take(&job->shard->budget, bytes, what, why);
    if (status == CAIRN_OK) *kind += bytes;
    return status;
}

void cairn_shard_job_give(struct cairn_shard_job *job, uint64_t *kind, uint64_t bytes)
{
    assert(bytes <= *kind);
    cairn_budget_give(&job->shard->budget, bytes);
    *kind -= bytes;
}

static cairn_status open_arenas(struct cairn_shard_job *job, const struct cairn_need *need,
                                struct cairn_sentence *why)
{
    const uint64_t plane_bytes = job->map.elem_count * sizeof(float);
    const struct {
        const char *label;
        struct cairn_arena *arena;
        enum cairn_update_stream stream;
        bool is_kept;
    } wanted[] = {
        { "cairn-param", &job->param, CAIRN_STREAM_PARAM, true },
        { "cairn-exp_avg", &job->exp_avg, CAIRN_STREAM_EXP_AVG,
          need->plane_bytes[CAIRN_PLANE_EXP_AVG] > 0 },
        { "cairn-exp_avg_sq", &job->exp_avg_sq, CAIRN_STREAM_EXP_AVG_SQ,
          need->plane_bytes[CAIRN_PLANE_EXP_AVG_SQ] > 0 },
        { "cairn-acc", &job->acc, CAIRN_STREAM_SUM, need->trained_elems > 0 },
    };
    cairn_status status = CAIRN_OK;
    for (size_t i = 0; status == CAIRN_OK && i < sizeof wanted / sizeof *wanted; i++) {
        status = cairn_arena_open_state(wanted[i].label, wanted[i].is_kept ? plane_bytes : 0,
                                        wanted[i].stream, wanted[i].arena, why);
    }
    if (status == CAIRN_OK) status = cairn_published_open(job, need->wire_bytes, why);
    if (status != CAIRN_OK) return status;
    status = cairn_arena_open_scratch("puts", (uint64_t)job->put_max * job->put_bytes,
                                      &job->putting, why);
    if (status != CAIRN_OK) return status;
    return cairn_arena_open_scratch("landing", (uint64_t)job->slot_count * job->slot_bytes,
                                    &job->landing, why);
}

/* The small arrays of a round. */
static cairn_status make_round(struct cairn_shard_job *job, struct cairn_sentence *why)
{
    const uint32_t fold_count = job->slot_count < job->grad_chunk_count ? job->slot_count
                                                                        : job->grad_chunk_count;
    job->slots = calloc(job->slot_count, sizeof *job->slots);
    job->folds = calloc(fold_count + 1, sizeof *job->folds);
    job->zero = calloc((size_t)job->grad_chunk_count + 1, sizeof *job->zero);
    job->sums = calloc(cairn_pool_thread_count(job->shard->compute), sizeof *job->sums);
    job->chunk_sums = calloc((size_t)job->grad_chunk_count + 1, sizeof *job->chunk_sums);
    job->summed = calloc((size_t)job->grad_chunk_count + 1, sizeof *job->summed);
    job->far = job->map.elem_count >= FAR_ELEMS;
    job->scalars = calloc(job->spec.group_count + 1, sizeof *job->scalars);
    job->frozen = calloc(job->spec.group_count + 1, sizeof *job->frozen);
    job->frozen_tensors = calloc(job->spec.tensor_count + 1, sizeof *job->frozen_tensors);
    job->holds = malloc(holds_bytes(job) + 1);
    if (job->slots == NULL || job->folds == NULL || job->zero == NULL || job->sums == NULL ||
        job->chunk_sums == NULL || job->summed == NULL || job->scalars == NULL ||
        job->frozen == NULL || job->frozen_tensors == NULL || job->holds == NULL) {
        return cairn_fail(why, CAIRN_ERR_NO_MEMORY, "no memory for the rounds of a job");
    }
    for (uint32_t i = 0; i < job->slot_count; i++) job->slots[i].job = job;
    for (uint32_t i = 0; i < fold_count; i++) {
        job->folds[i].job = job;
        job->folds[i].next_free = job->folds_free;
        job->folds_free = &job->folds[i];
    }
    return CAIRN_OK;
}

static cairn_status make_step(struct cairn_shard_job *job, const struct cairn_step_config *config,
                              const Cairn__JobCreate *message, struct cairn_sentence *why)
{
    const size_t actions_max = cairn_step_actions_max(config);
    void *memory = malloc(cairn_step_bytes(config));
    job->actions.list = calloc(actions_max, sizeof *job->actions.list);
    job->actions.capacity = actions_max;
    if (memory == NULL || job->actions.list == NULL) {
        free(memory);
        return cairn_fail(why, CAIRN_ERR_NO_MEMORY, "no memory for the round machine of a job");
    }
    const Cairn__Decision *last = message->last;
    struct cairn_decision decision = { .kind = CAIRN_DECISION_NONE };
    if (last != NULL) {
        decision.payload = last->payload.data;
        decision.payload_bytes = last->payload.len;
    }
    job->step = cairn_step_init(memory, config,
                                (struct cairn_version) { message->generation, message->step },
                                last != NULL ? &decision : NULL);
    return CAIRN_OK;
}

size_t cairn_shard_payload_max(const struct cairn_shard_job *job)
{
    return CAIRN_PAYLOAD_MAX(job->spec.group_count, job->spec.client_state_max);
}

static cairn_status reserve(struct cairn_shard_job *job, const struct cairn_need *need,
                            const Cairn__JobCreate *message, struct cairn_sentence *why)
{
    if (message->last != NULL && message->last->payload.len > need->step.payload_bytes_max) {
        return cairn_fail(why, CAIRN_ERR_INVALID, "a last decision of %zu bytes, at most %zu",
                          message->last->payload.len, need->step.payload_bytes_max);
    }
    cairn_status status = take_budget(job, need, why);
    if (status == CAIRN_OK) status = make_tables(job, why); // as large as a worker's shapes say
    if (status == CAIRN_OK) status = open_arenas(job, need, why);
    if (status == CAIRN_OK) status = make_round(job, why);
    if (status == CAIRN_OK) status = make_step(job, &need->step, message, why);
    return status;
}

cairn_status cairn_shard_job_open(struct cairn_shard *shard, const Cairn__JobCreate *message,
                                  const struct cairn_paged *spec, const struct cairn_paged *layout,
                                  struct cairn_shard_job **job_out, struct cairn_sentence *why)
{
    size_t count = 0;
    for (struct cairn_shard_job *other = shard->jobs; other != NULL; other = other->next) count++;
    if (count >= CAIRN_SHARD_JOBS_MAX) {
        return cairn_fail(why, CAIRN_ERR_NO_MEMORY, "shard %s holds %zu jobs, the most it can",
                          shard->name, count);
    }
    struct cairn_shard_job *job = calloc(1, sizeof *job);
    if (job == NULL) return cairn_fail(why, CAIRN_ERR_NO_MEMORY, "no memory for a job");
    job->shard = shard;
    job->number = message->job;
    job->generation = message->generation;
    job->base_step = message->step;
    cairn_leaf_hash(spec->bytes, spec->have_bytes, &job->spec_digest);
    job->staged = message->extend;
    job->state = CAIRN_JOB_INITIALIZING;
    job->param = job->exp_avg = job->exp_avg_sq = job->acc = CAIRN_ARENA_NONE;
    job->landing = job->putting = CAIRN_ARENA_NONE;
    job->writing = CAIRN_PUBLISHED_NONE;
    cairn_spec_init(&job->spec);
    job->next = shard->jobs;
    shard->jobs = job;

    struct cairn_need need;
    cairn_status status = decode_parts(job, message, spec, layout, why);
    if (status == CAIRN_OK) status = make_parts(job, message->member_max, &need, why);
    if (status == CAIRN_OK) status = reserve(job, &need, message, why);
    if (status != CAIRN_OK) {
        cairn_shard_job_free(job);
        return status;
    }
    *job_out = job;
    return CAIRN_OK;
}

/* ---- the end ---- */

/* The memory is there until it is unmapped; then `request`, if it is one, is answered. */
static void free_job(struct cairn_shard_job *job, const struct cairn_request *request)
{
    struct cairn_shard_job **link = &job->shard->jobs;
    while (*link != job) link = &(*link)->next;
    *link = job->next;

    cairn_relay_free_all(job);
    cairn_pin_release(job);
    cairn_reports_drop(job);
    cairn_restore_release(job);
    cairn_origin_release(job);
    cairn_extend_release(job);
    cairn_write_close(job);
    cairn_fetch_release(job);
    cairn_members_release(job);
    cairn_tiles_free(job);
    for (uint32_t i = 0; job->slots != NULL && i < job->slot_count; i++)
        cairn_landing_release(&job->slots[i]);
    struct cairn_arena *arenas[] = {
        &job->param, &job->exp_avg, &job->exp_avg_sq, &job->acc, &job->landing, &job->putting,
    };
    for (size_t i = 0; i < sizeof arenas / sizeof *arenas; i++)
        cairn_release(job->shard, arenas[i]);
    cairn_published_close(job);
    free(job->snapshot_path);
    free(job->step);
    free(job->actions.list);
    free(job->slots);
    free(job->folds);
    free(job->zero);
    free(job->sums);
    free(job->chunk_sums);
    free(job->summed);
    free(job->scalars);
    free(job->frozen);
    free(job->frozen_tensors);
    free(job->holds);
    free(job->have);
    free(job->grad_chunks);
    free(job->chunk_part);
    free(job->parts);
    cairn_shard_map_release(&job->map);
    cairn_layout_close(job->layout);
    cairn_paged_release(&job->terms);
    cairn_spec_release(&job->spec);
    cairn_release_bytes(job->shard, cairn_memory_sum(&job->memory), request);
    free(job);
}

void cairn_shard_job_free(struct cairn_shard_job *job)
{
    free_job(job, NULL);
}

void cairn_shard_job_busy(struct cairn_shard_job *job)
{
    job->busy++;
}

void cairn_shard_job_idle(struct cairn_shard_job *job)
{
    assert(job->busy > 0);
    if (--job->busy > 0 || job->state != CAIRN_JOB_LEAVING) return;
    struct cairn_shard *shard = job->shard;
    if (shard->closing) return; // cairn_shard_close frees it
    cairn_log_info("dropped job %s, generation %llu: %llu bytes are being freed", job->spec.name,
                   (unsigned long long)job->generation,
                   (unsigned long long)cairn_memory_sum(&job->memory));
    const struct cairn_request dropping = job->dropping;
    free_job(job, &dropping);
    cairn_create_on_memory_back(shard);
}

void cairn_shard_job_leave(struct cairn_shard_job *job)
{
    assert(job->state != CAIRN_JOB_LEAVING);
    struct cairn_sentence why;
    cairn_sentence_set(&why, "job %s was dropped before it was ready", job->spec.name);
    if (job->creating.session != 0) {
        cairn_session_answer(job->shard, &job->creating, CAIRN_ERR_CANCELED, &why);
    }
    cairn_shard_job_busy(job); // not freed before we are through
    job->state = CAIRN_JOB_LEAVING;
    cairn_relay_leave(job);
    cairn_reserve_cancel(job);
    cairn_pin_cancel(job);
    cairn_restore_cancel(job);
    cairn_origin_cancel(job);
    cairn_extend_cancel(job);
    cairn_members_release(job);
    cairn_fetch_release(job);
    cairn_landing_release_all(job);
    cairn_shard_job_idle(job);
}

void cairn_shard_job_fault(struct cairn_shard_job *job, const char *why)
{
    if (job->state == CAIRN_JOB_FAULTED || job->state == CAIRN_JOB_LEAVING) return;
    job->state = CAIRN_JOB_FAULTED;
    cairn_landing_release_all(job);
    cairn_relay_leave(job);
    cairn_log_error("job %s is stopped here, at version %llu.%llu: %s; restore a snapshot",
                    job->spec.name, (unsigned long long)job->generation,
                    (unsigned long long)cairn_step_version(job->step).step, why);
    // Hello of the next session no longer names the job: the coordinator sees that it is lost here.
    cairn_session_refuse(job->shard, CAIRN_ERR_PROTOCOL, "job %s on shard %s: %s", job->spec.name,
                         job->shard->name, why);
}
