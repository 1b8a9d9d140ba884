/* The hands of the own part's collector: where contributions land and are added up, what its core asks for
 * beside, and what follows. */
#include <assert.h>

#include "server/shard/job/admit.h"
#include "server/shard/job/members.h"
#include "server/shard/job/own.h"
#include "server/shard/job/update.h"
#include "server/shard/shard.h"

#define TINY_ELEMS 8192 /* of all that is folded */

/* ---- to the coordinator ---- */

/* A message's list of tensors, and what the list points to. */
struct told_tensors {
    Cairn__TensorElems elems[CAIRN_RESULTS_TENSORS], *list[CAIRN_RESULTS_TENSORS];
};

static Cairn__TensorElems **tell_tensors(struct told_tensors *told,
                                         const struct cairn_results *results)
{
    for (uint32_t i = 0; i < results->tensor_count; i++) {
        cairn__tensor_elems__init(&told->elems[i]);
        told->elems[i].tensor = results->tensors[i].tensor;
        told->elems[i].elems = results->tensors[i].elems;
        told->list[i] = &told->elems[i];
    }
    return told->list;
}

static void report_reduced(struct cairn_shard_job *job, const struct cairn_step_action *action)
{
    if (action->round == job->collector.spoiled_round)
        return; // it is abandoned: cairn_member_unreadable
    uint8_t squares[CAIRN_EXACT_BYTES], nonfinite[8], weight[8];
    cairn_exact_encode(&action->sums.sum_squares, squares);
    for (int i = 0; i < 8; i++) {
        nonfinite[i] = (uint8_t)(action->sums.nonfinite >> 8 * i);
        weight[i] = (uint8_t)(action->sums.weight >> 8 * i);
    }
    Cairn__ReducedValue values[3];
    Cairn__ReducedValue *list[3] = { &values[0], &values[1], &values[2] };
    for (int i = 0; i < 3; i++) {
        cairn__reduced_value__init(&values[i]);
        values[i].key = values[i].op = (uint32_t)i + 1;
    }
    values[0].value = (ProtobufCBinaryData) { sizeof squares, squares };
    values[1].value = (ProtobufCBinaryData) { sizeof nonfinite, nonfinite };
    values[2].value = (ProtobufCBinaryData) { sizeof weight, weight };
    Cairn__Reduced reduced = CAIRN__REDUCED__INIT;
    reduced.job = job->number;
    reduced.epoch = action->epoch;
    reduced.round = action->round;
    reduced.n_values = 3;
    reduced.values = list;
    struct told_tensors tensors;
    reduced.nonfinite_tensors = tell_tensors(&tensors, &job->pass.gradients);
    reduced.n_nonfinite_tensors = job->pass.gradients.tensor_count;
    reduced.untouched_tensors = job->pass.untouched_tensors;
    reduced.untouched_elems = job->pass.untouched_elems;
    reduced.n_untouched_tensors = reduced.n_untouched_elems = job->pass.untouched_count;
    cairn_session_send(job->shard, CAIRN_MSG_REDUCED, 0, &reduced.base);
}

static void report_published(struct cairn_shard_job *job, const struct cairn_step_action *action)
{
    Cairn__Published published = CAIRN__PUBLISHED__INIT;
    published.job = job->number;
    published.epoch = action->epoch;
    published.round = action->round;
    published.generation = action->version.generation;
    published.step = action->version.step;
    uint32_t us[4];
    Cairn__StepTimes times = CAIRN__STEP_TIMES__INIT;
    cairn_times_phases(job, us);
    times.us = us;
    times.n_us = 4;
    // Told once; 0: nothing was granted.
    if (job->pass.times.round != 0 && action->round == job->pass.times.round)
        published.times = &times;
    job->pass.times.round = 0;
    struct told_tensors tensors;
    published.nonfinite = job->pass.results.nonfinite;
    published.nonfinite_tensors = tell_tensors(&tensors, &job->pass.results);
    published.n_nonfinite_tensors = job->pass.results.tensor_count;
    cairn_session_send(job->shard, CAIRN_MSG_PUBLISHED, 0, &published.base);
}

static void send_answer(struct cairn_shard_job *job, const struct cairn_step_action *action)
{
    Cairn__Decision last = CAIRN__DECISION__INIT;
    last.kind = (uint32_t)action->decision->kind;
    last.round = action->decision->round;
    last.generation = action->decision->version_after.generation;
    last.step = action->decision->version_after.step;
    last.payload = (ProtobufCBinaryData) { action->decision->payload_bytes,
                                           (uint8_t *)action->decision->payload };
    Cairn__Answer answer = CAIRN__ANSWER__INIT;
    answer.job = job->number;
    answer.epoch = action->epoch;
    answer.phase = (uint32_t)action->phase;
    answer.open_round = action->round;
    answer.generation = action->version.generation;
    answer.step = action->version.step;
    answer.last = &last;
    answer.tiles_world = job->tiling.world;
    answer.refused = action->refused;
    cairn_session_send(job->shard, CAIRN_MSG_ANSWER, 0, &answer.base);
}

/* ---- hands ---- */

static bool takes_events(const struct cairn_collector *collector)
{
    const struct cairn_shard_job *job = collector->job;
    return job->state != CAIRN_JOB_FAULTED && job->state != CAIRN_JOB_LEAVING &&
           !job->shard->closing;
}

static void act(struct cairn_collector *collector, const struct cairn_step_action *action)
{
    struct cairn_shard_job *job = collector->job;
    cairn_times_note(job, action);
    switch (action->kind) {
    case CAIRN_STEP_ZERO: cairn_pass_zero(job, action->chunk); break;
    case CAIRN_STEP_REDUCE: cairn_pass_reduce(job); break;
    case CAIRN_STEP_UPDATE: cairn_pass_update(job, action->decision); break;
    case CAIRN_STEP_REDUCED_REPORT: report_reduced(job, action); break;
    case CAIRN_STEP_PUBLISHED_REPORT: report_published(job, action); break;
    case CAIRN_STEP_ANSWER: send_answer(job, action); break;
    case CAIRN_STEP_FORWARD: // a relay's machine only: relay/collect.c
    case CAIRN_STEP_FORWARD_END:
    case CAIRN_STEP_FORWARD_COMMIT: assert(false); break;
    default: break; // the collector does it
    }
}

static void send_as_owner(const struct cairn_collector *collector, struct cairn_member *member,
                          struct cairn_chunk_header *header)
{
    (void)collector;
    cairn_member_send(member, header);
}

static cairn_status judge_piece(const struct cairn_collector *collector,
                                const struct cairn_member *member,
                                const struct cairn_chunk_header *header,
                                const struct cairn_chunk_place *place,
                                struct cairn_piece *piece_out, struct cairn_sentence *why)
{
    (void)collector;
    return cairn_tiles_piece(member, header, place, piece_out, why);
}

static void *landing_slot(struct cairn_collector *collector, uint32_t slot)
{
    struct cairn_shard_job *job = collector->job;
    const uint64_t at = cairn_landing_at(&job->landing, slot);
    assert(collector->slots[slot].payload_bytes <= cairn_landing_at(&job->landing, slot + 1) - at);
    return job->landing.arena.base + at;
}

/* It takes a microsecond or two where it stands; a thread to be woken, and to wake the loop, takes more. */
static bool is_tiny(const struct cairn_fold *fold)
{
    const struct cairn_chunk_table *table = fold->collector->table;
    const uint64_t elems = cairn_chunk_table_place(table, fold->chunk).elem_count;
    return elems * fold->source_count <= TINY_ELEMS && cairn_compute_is_host(fold->run.compute);
}

static bool fold_place(struct cairn_fold *fold)
{
    struct cairn_shard_job *job = fold->collector->job;
    fold->run.task.is_small = (job->pass.is_small && !fold->viewed) || is_tiny(fold);
    if (fold->first) {
        job->pass.zero[fold->chunk] = false;
        cairn_tiles_begin_chunk(job, fold->collector->table->trained[fold->chunk]);
    }
    return true; // the plane of sums has a place for each chunk
}

/* Of pieces; what nobody contributes stays 0. */
static bool fold_pieces(const struct cairn_fold *fold, uint32_t stage, struct cairn_works *works,
                        uint32_t chunk, const struct cairn_chunk_place *place, float *acc)
{
    if (stage == 0 && fold->first) {
        struct cairn_work *work = cairn_works_add(works, CAIRN_WORK_ZERO);
        work->zero.at = acc;
        work->zero.bytes = (size_t)place->elem_count * sizeof *acc;
        return true;
    }
    cairn_tiles_fold(works, fold, chunk, place, acc);
    return fold->likely_last;
}

static void add_sums(const struct cairn_fold *fold, bool is_folded, struct cairn_works *works,
                     const struct cairn_chunk_place *place, float *acc)
{
    const struct cairn_shard_job *job = fold->collector->job;
    struct cairn_sums *sums = &job->pass.chunk_sums[fold->chunk];
    *sums = (struct cairn_sums) { 0 };
    cairn_works_add(works, CAIRN_WORK_FOLD_SUMS)->fold_sums = (struct cairn_leaf_fold) {
        .acc = acc,
        .sources = fold->sources,
        .source_count = is_folded ? 0 : fold->source_count,
        .first = fold->first,
        .far = job->pass.is_far,
        .geometry = &fold->collector->table->map.layout->geometry[place->tensor],
        .first_leaf = place->first_leaf,
        .leaf_count = place->leaf_count,
        .sums = sums,
    };
}

static bool fold_sources(const struct cairn_fold *fold, uint32_t stage, struct cairn_works *works)
{
    const struct cairn_shard_job *job = fold->collector->job;
    const struct cairn_chunk_table *table = fold->collector->table;
    const uint32_t chunk = table->trained[fold->chunk];
    const struct cairn_chunk_place place = cairn_chunk_table_place(table, fold->chunk);
    float *acc = cairn_planes_at(&job->planes, CAIRN_PLANE_SUM, table->extent_of[chunk],
                                 place.local_elem);
    const bool tiled = fold->pieces[0].held != NULL;
    const uint32_t last = fold->first ? 2 : 1; // of pieces: the sums, while they are in the cache
    if (tiled && stage < last) return fold_pieces(fold, stage, works, chunk, &place, acc);
    if (fold->likely_last)
        add_sums(fold, tiled, works, &place, acc);
    else
        cairn_works_fold(works, acc, fold->sources, fold->source_count, fold->first,
                         (size_t)place.elem_count);
    return false;
}

static struct cairn_compute *home_of(const struct cairn_collector *collector, uint32_t chunk)
{
    return cairn_shard_job_home(collector->job,
                                cairn_chunk_table_place(collector->table, chunk).local_elem);
}

static void fold_done(struct cairn_fold *fold)
{
    fold->collector->job->pass.summed[fold->chunk] = fold->likely_last;
}

static void no_page(struct cairn_collector *collector)
{
    const struct cairn_shard_job *job = collector->job;
    cairn_log_error("job %s: the host of shard %s has no page for a sum: it is out of memory, and "
                    "round %llu cannot end; give it more, and have a worker attach again",
                    job->spec.name, job->shard->name, (unsigned long long)collector->spoiled_round);
}

static void busy(struct cairn_collector *collector)
{
    cairn_shard_job_busy(collector->job);
}

static void idle(struct cairn_collector *collector)
{
    cairn_shard_job_idle(collector->job);
}

static const struct cairn_collector_hands own_part = {
    .takes_events = takes_events,
    .act = act,
    .send = send_as_owner,
    .judge_piece = judge_piece,
    .slot_memory = landing_slot,
    .compute = home_of,
    .fold_place = fold_place,
    .fold = fold_sources,
    .fold_done = fold_done,
    .no_page = no_page,
    .busy = busy,
    .idle = idle,
};

cairn_status cairn_own_open(struct cairn_shard_job *job, const struct cairn_step_config *config,
                            const Cairn__JobCreate *message, struct cairn_sentence *why)
{
    const Cairn__Decision *last = message->last;
    struct cairn_decision decision = { .kind = CAIRN_DECISION_NONE };
    if (last != NULL) {
        decision.payload = last->payload.data;
        decision.payload_bytes = last->payload.len;
    }
    const cairn_status status = cairn_collector_open(
        &job->collector, &(struct cairn_collector_options) {
                             .hands = &own_part,
                             .job = job,
                             .table = &job->view->table,
                             .shard_name = job->shard->name,
                             .step = config,
                             .version = { message->generation, message->step },
                             .last = last != NULL ? &decision : NULL,
                             .actions = &job->pass.actions,
                         });
    if (status == CAIRN_OK) return CAIRN_OK;
    return cairn_fail(why, status, "no memory for the round machine of a job");
}

/* ---- what follows ---- */

/* Closes what was cut; the list may change under us, so from the start each time. */
static void close_cut(struct cairn_shard_job *job)
{
    job->members.cut = false;
    for (size_t i = 0; i < job->members.capacity; i++) {
        struct cairn_member *member = job->members.list[i];
        if (member != NULL && member->cut) cairn_member_down(member);
    }
}

void cairn_own_settle(struct cairn_shard_job *job)
{
    if (job->pass.settling || job->collector.stepping) return;
    job->pass.settling = true;
    while (job->collector.landed != NULL || job->members.cut) {
        cairn_collector_settle(&job->collector);
        if (job->members.cut) close_cut(job);
    }
    job->pass.settling = false;
    if (job->move.fence.epoch != 0) job->shard->up->rests(job);
    if (job->landing.extra) cairn_admit_left(job);
}

void cairn_own_step(struct cairn_shard_job *job, const struct cairn_step_event *event)
{
    cairn_collector_step(&job->collector, event);
    cairn_own_settle(job);
}
