/* The arithmetic of a round after its folds (members.c): the sums and the update. The first publish
 * of a job is here, too. All of this runs on the compute pools.
 *
 * A FOLD works on the sum of one chunk. A pass (part.h), such as REDUCE, UPDATE and the seal, has
 * one item for each chunk. The core never asks for two works on one chunk at a time, and asks for
 * no pass while anything else runs.
 *
 * A round goes through memory twice: the folds write the sums, and the UPDATE reads the sums again.
 * With bf16 on the wire this takes 8 of the 38 bytes that are moved for each element. A single pass
 * would overwrite parameters before the decision, which is made after all chunks of all shards are
 * summed. This is so even without a clip, and even if non-finite sums are applied. Until the
 * decision a worker may die and the round may be abandoned; then the parameters must be as they
 * were before the round. */
#include <inttypes.h>
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "server/shard/base.h"
#include "server/shard/jobs.h"
#include "server/shard/part.h"
#include "server/shard/read.h"
#include "server/shard/shard.h"
#include "server/shard/state.h"

static struct step_sums pass_sums(const struct shard_job *job);
static void pass_submit(struct shard_job *job, bool trained, bool all,
                        const struct pass_kind *kind);
static void times_updated(struct shard_job *job);
static void times_updating(struct shard_job *job);

static struct chunk_place place_of(const struct shard_job *job, uint64_t chunk)
{
    return shard_map_chunk(&job->pass.table->map, chunk);
}

/* Returns where the plane of a chunk lies; NULL if the chunk's extent does not keep the plane. */
static float *plane_at(const struct shard_job *job, enum plane plane, uint32_t chunk,
                       const struct chunk_place *place)
{
    return planes_at(&job->planes, plane, job->pass.table->extent_of[chunk], place->local_elem);
}

/* ---- reduce ---- */

static struct shard_job *pass_job(const struct work_run *run)
{
    return ((const struct pass_part *)run)->job;
}

/* Returns the core's number of an item's chunk; CAIRN_PASS_NOT_TRAINED if the item is one of those
 * that go over all chunks. */
static uint32_t pass_trained(const struct work_run *run, uint32_t item)
{
    const struct pass_part *part = (const struct pass_part *)run;
    return item < part->trained_count ? part->trained_first + item : CAIRN_PASS_NOT_TRAINED;
}

/* Returns the map's number of an item's chunk. */
static uint32_t pass_chunk(const struct work_run *run, uint32_t item)
{
    const struct pass_part *part = (const struct pass_part *)run;
    const uint32_t trained = pass_trained(run, item);
    return trained != CAIRN_PASS_NOT_TRAINED ? part->job->pass.table->trained[trained]
                                             : part->first + (item - part->trained_count);
}

static bool describe_reduce(struct work_run *run, uint32_t item, uint32_t stage,
                            struct works *works)
{
    const struct shard_job *job = pass_job(run);
    const uint32_t trained = pass_trained(run, item), chunk = pass_chunk(run, item);
    const struct chunk_place place = place_of(job, chunk);
    float *acc = plane_at(job, CAIRN_PLANE_SUM, chunk, &place);
    struct sums *sums = &job->pass.chunk_sums[trained];
    (void)stage;
    if (job->pass.zero[trained] || !job->pass.summed[trained]) *sums = (struct sums) { 0 };
    if (job->pass.zero[trained]) { // the chunk adds nothing to the sums
        struct home_work *work = works_add(works, CAIRN_WORK_ZERO);
        work->zero.at = acc;
        work->zero.bytes = (size_t)place.elem_count * sizeof *acc;
    } else if (!job->pass.summed[trained]) {
        works_add(works, CAIRN_WORK_FOLD_SUMS)->fold_sums = (struct leaf_fold) {
            .acc = acc,
            .geometry = &job->pass.table->map.layout->geometry[place.tensor],
            .first_leaf = place.first_leaf,
            .leaf_count = place.leaf_count,
            .sums = sums,
        };
    }
    return false;
}

static void conclude_reduce(struct work_run *run, uint32_t item, uint32_t thread)
{
    const struct pass_part *part = (const struct pass_part *)run;
    const struct sums *sums = &part->job->pass.chunk_sums[pass_trained(run, item)];
    cairn_status status = exact_add(&part->sums[thread].sum_squares, &sums->sum_squares);
    assert(status == CAIRN_OK);
    (void)status;
    part->sums[thread].nonfinite += sums->nonfinite;
}

/* Counts the non-finite values of a pass, by tensor. `any` is their number in all; it is usually 0,
 * and then no chunk is looked at. */
static struct results collect_nonfinite(const struct shard_job *job, uint64_t any)
{
    struct results results = { 0 };
    for (uint32_t item = 0; any > 0 && item < job->pass.table->trained_count; item++) {
        if (job->pass.chunk_sums[item].nonfinite == 0) continue;
        const struct chunk_place place = place_of(job, job->pass.table->trained[item]);
        results_add(&results, (uint32_t)place.tensor, job->pass.chunk_sums[item].nonfinite);
    }
    return results;
}

/* Counts, by tensor, the elements for which nobody has a gradient. A shard's chunks are in the
 * order of their tensors, so a chunk belongs to the tensor that was listed last, or to one that is
 * not listed yet. */
static void collect_untouched(struct shard_job *job)
{
    struct job_pass *pass = &job->pass;
    pass->untouched_count = 0;
    if (job->spec.missing_gradients != CAIRN_MISSING_LEAVE) return;
    for (uint32_t item = 0; item < pass->table->trained_count; item++) {
        if (!pass->zero[item]) continue;
        const struct chunk_place place = place_of(job, pass->table->trained[item]);
        const uint32_t tensor = (uint32_t)place.tensor, count = pass->untouched_count;
        if (count == 0 || pass->untouched_tensors[count - 1] != tensor) {
            assert(count < job->spec.tensor_count);
            pass->untouched_tensors[count] = tensor;
            pass->untouched_elems[count] = 0;
            pass->untouched_count++;
        }
        pass->untouched_elems[pass->untouched_count - 1] += place.elem_count;
    }
}

static void reduce_done(struct shard_job *job)
{
    struct step_sums sums = pass_sums(job);
    job->pass.gradients = collect_nonfinite(job, sums.nonfinite);
    collect_untouched(job);
    if (journal_takes_round(job, &sums)) return;
    own_step(job, &(struct step_event) { .kind = CAIRN_STEP_SUMMED, .sums = &sums });
}

void pass_reduce(struct shard_job *job)
{
    static const struct pass_kind reduce = { describe_reduce, conclude_reduce, reduce_done };
    job->pass.reduce_waits = job->pass.republished != NULL; // one pass at a time
    if (!job->pass.reduce_waits) pass_submit(job, true, false, &reduce);
}

/* ---- update ---- */

/* Reads the scalars of tensors that have missed steps, and stores them after the scalars of the
 * groups. Returns NULL, or the reason why the decision cannot be applied. */
static const char *read_missed(struct shard_job *job, const struct missed *missed)
{
    const uint32_t count = missed_class_count(missed), groups = (uint32_t)job->spec.group_count;
    if (count > CAIRN_MISSED_RUNS(job->spec.tensor_count))
        return "the payload of an APPLY names more tensors than there are";
    for (uint32_t c = 0; c < count; c++) {
        const struct missed_class one = missed_class_at(missed, c);
        if (one.group >= groups) return "the payload of an APPLY names a group that does not exist";
        job->pass.scalars[groups + c] = missed_scalars(&one, &job->pass.scalars[one.group]);
        if ((one.flags & CAIRN_MISSED_THIS) != 0)
            job->pass.scalars[groups + c].flags |= CAIRN_SCALAR_FROZEN;
    }
    job->pass.missed = *missed;
    return NULL;
}

/* Returns the scalars for the update of a tensor. */
static const struct group_scalars *scalars_of(const struct shard_job *job, uint64_t tensor,
                                              uint32_t group)
{
    const uint32_t c = missed_class_of(&job->pass.missed, (uint32_t)tensor);
    return &job->pass.scalars[c == CAIRN_MISSED_NONE ? group : job->spec.group_count + c];
}

/* Reads the scalars of the decision. Returns NULL, or the reason why the decision cannot be
 * applied. */
static const char *read_scalars(struct shard_job *job, const struct decision *decision)
{
    struct payload head;
    cairn_status status = payload_decode(decision->payload, decision->payload_bytes, &head);
    if (status != CAIRN_OK) return "the payload of an APPLY is malformed";
    if (head.group_count != job->spec.group_count)
        return "the payload of an APPLY has another number of groups";
    for (uint32_t g = 0; g < head.group_count; g++) {
        const struct group_spec *group = &job->spec.groups[g];
        struct group_scalars *scalars = &job->pass.scalars[g];
        status = payload_group(decision->payload, decision->payload_bytes, g, scalars);
        if (status != CAIRN_OK) return "the scalars of an APPLY are malformed";
        if (scalars->optimizer != optimizer_by_name(group->optimizer)->id)
            return "the scalars of an APPLY are of another optimizer";
        const bool momentum = (scalars->flags & CAIRN_SCALAR_MOMENTUM) != 0;
        if (scalars->optimizer == CAIRN_OPTIMIZER_SGD && momentum != (group->momentum != 0))
            return "the scalars of an APPLY disagree with the spec about momentum";
        if ((scalars->ema_weight != 0) != (group->ema > 0))
            return "the scalars of an APPLY disagree with the spec about ema";
    }
    return read_missed(job, &head.missed);
}

/* Returns where the chunk lies in the published copy. */
static void *wire_of(const struct published_copy *published, uint64_t chunk,
                     const struct chunk_place *place)
{
    return copy_chunk_at(published, chunk, place->local_elem);
}

/* Adds the work that publishes a chunk out of the parameters at `param`, without an update. */
static void publish_from(struct works *works, const void *param, const struct shard_job *job,
                         struct published_copy *published, uint32_t chunk,
                         const struct chunk_place *place)
{
    const struct form *form = &job->view->forms[job->pass.table->extent_of[chunk]];
    struct home_work *work = works_add(works, CAIRN_WORK_CONVERT);
    work->convert.dst = wire_of(published, chunk, place);
    work->convert.dst_dtype = form->wire;
    work->convert.src = param;
    work->convert.src_dtype = form->master;
    work->convert.elems = (size_t)place->elem_count;
    published_forget(published, chunk);
}

static void publish_chunk(struct works *works, const struct shard_job *job,
                          struct published_copy *published, uint32_t chunk,
                          const struct chunk_place *place)
{
    publish_from(works, plane_at(job, CAIRN_PLANE_PARAM, chunk, place), job, published, chunk,
                 place);
}

/* True if the chunk must be copied to host memory after it was written. If a published copy has a
 * side on the device, that side is written first. Host memory then gets all chunks, or only chunks
 * of frozen tensors, which updates skip (on_host in read.h). */
static bool host_follows(const struct shard_job *job, const struct published_copy *published,
                         uint32_t chunk)
{
    return published->device.base != NULL &&
           (published->on_host || !job->view->forms[job->pass.table->extent_of[chunk]].trained);
}

/* Publishes a chunk of a frozen tensor. Updates skip frozen tensors, so a copy must get these
 * tensors once after a write has changed them, and once after the copy was made for a lease. Chunks
 * of other tensors are left out. */
static bool refresh_frozen(struct works *works, const struct shard_job *job,
                           struct published_copy *next, uint32_t chunk)
{
    if (job->view->forms[job->pass.table->extent_of[chunk]].trained) return false;
    const struct chunk_place place = place_of(job, chunk);
    publish_chunk(works, job, next, chunk, &place);
    return host_follows(job, next, chunk);
}

static bool describe_write(struct work_run *run, uint32_t item, uint32_t stage, struct works *works)
{
    struct shard_job *job = pass_job(run);
    const uint32_t chunk = pass_chunk(run, item);
    struct published_copy *next = &job->versions.copies[job->versions.writing];
    const struct chunk_place place = place_of(job, chunk);
    if (stage > 0) {
        published_fill(works, next, chunk);
        return false;
    }
    if (next->holds_params && !write_has(job, chunk)) return false;
    if (write_has(job, chunk)) audit_compare(job, chunk);
    pins_save(job, works, chunk);
    if (write_has(job, chunk)) former_save(job, works, chunk);
    const void *param = write_apply(works, job, chunk, &place);
    if (next->holds_params && param == NULL) return false;
    if (param == NULL) param = plane_at(job, CAIRN_PLANE_PARAM, chunk, &place);
    publish_from(works, param, job, next, chunk, &place);
    return host_follows(job, next, chunk);
}

static void conclude_write(struct work_run *run, uint32_t item, uint32_t thread)
{
    struct shard_job *job = pass_job(run);
    const uint32_t chunk = pass_chunk(run, item);
    (void)thread;
    if (write_has(job, chunk)) audit_take(job, chunk);
}

/* True if the update leaves the tensor's parameters and moments alone. The decided round was
 * opened on this shard, so job->frozen belongs to that round. */
static bool is_left_alone(const struct shard_job *job, uint32_t chunk,
                          const struct chunk_place *place)
{
    const struct form *form = &job->view->forms[job->pass.table->extent_of[chunk]];
    return (scalars_of(job, place->tensor, form->group)->flags & CAIRN_SCALAR_FROZEN) != 0 ||
           job->frozen.tensors[place->tensor];
}

/* Adds the update of a chunk, which also writes its published copy. */
static struct update_work *add_update(struct works *works, struct shard_job *job,
                                      struct published_copy *next, uint32_t trained,
                                      const struct chunk_place *place)
{
    const uint32_t chunk = job->pass.table->trained[trained];
    const struct form *form = &job->view->forms[job->pass.table->extent_of[chunk]];
    struct update_work *update = &works_add(works, CAIRN_WORK_UPDATE)->update;
    update->planes = (struct update) {
        .grad = plane_at(job, CAIRN_PLANE_SUM, chunk, place),
        .param = plane_at(job, CAIRN_PLANE_PARAM, chunk, place),
        .exp_avg = plane_at(job, CAIRN_PLANE_EXP_AVG, chunk, place),
        .exp_avg_sq = plane_at(job, CAIRN_PLANE_EXP_AVG_SQ, chunk, place),
        .ema = form_keeps(form, CAIRN_PLANE_EMA) ? plane_at(job, CAIRN_PLANE_EMA, chunk, place)
                                                 : NULL,
        .wire = wire_of(next, chunk, place),
        .wire_dtype = form->wire,
        .elems = (size_t)place->elem_count,
        .far = job->pass.is_far,
    };
    update->scalars = scalars_of(job, place->tensor, form->group);
    update->nonfinite = &job->pass.chunk_sums[trained].nonfinite;
    kept_update(job, trained, works->lane, update);
    audit_update(job, chunk, place, &update->checks);
    return update;
}

/* A chunk of a frozen tensor, of which updates only make sure that it is as it was, and that it is
 * published. */
static bool describe_frozen(struct works *works, struct shard_job *job, struct published_copy *next,
                            uint32_t chunk)
{
    if (job->view->forms[job->pass.table->extent_of[chunk]].trained) return false;
    audit_compare(job, chunk);
    return next->stale && refresh_frozen(works, job, next, chunk);
}

static bool describe_update(struct work_run *run, uint32_t item, uint32_t stage,
                            struct works *works)
{
    struct shard_job *job = pass_job(run);
    struct published_copy *next = &job->versions.copies[job->versions.writing];
    const uint32_t trained = pass_trained(run, item), chunk = pass_chunk(run, item);
    if (stage > 0) {
        published_fill(works, next, chunk);
        return false;
    }
    if (trained == CAIRN_PASS_NOT_TRAINED) return describe_frozen(works, job, next, chunk);
    const struct chunk_place place = place_of(job, chunk);
    job->pass.chunk_sums[trained].nonfinite = 0; // the sums are not needed after the decision
    if (is_left_alone(job, chunk, &place)) {
        audit_compare(job, chunk);
        publish_chunk(works, job, next, chunk, &place);
        return host_follows(job, next, chunk);
    }
    pins_save(job, works, chunk);
    former_save(job, works, chunk);
    (void)add_update(works, job, next, trained, &place);
    published_forget(next, chunk);
    return host_follows(job, next, chunk);
}

static void conclude_update(struct work_run *run, uint32_t item, uint32_t thread)
{
    const struct pass_part *part = (const struct pass_part *)run;
    const uint32_t trained = pass_trained(run, item);
    if (trained != CAIRN_PASS_NOT_TRAINED)
        part->sums[thread].nonfinite += part->job->pass.chunk_sums[trained].nonfinite;
}

static void collect_results(struct shard_job *job)
{
    const uint64_t any = pass_sums(job).nonfinite;
    job->pass.results = collect_nonfinite(job, any);
    if (any == 0) return;
    char tensors[CAIRN_RESULTS_BYTES];
    results_list(&job->pass.results, &job->spec, tensors);
    log_limited(&job->pass.results_said, CAIRN_LOG_WARN,
                "job %s: %" PRIu64
                " elements here have a non-finite result after the update to step %" PRIu64 ": %s",
                job->spec.name, any, job->pass.version_next.step, tensors);
}

static void update_done(struct shard_job *job)
{
    const bool writes = job->pass.update_writes, has_param = write_has_param(job);
    if (audit_end(job)) return; // damage must not be published
    times_updated(job);
    published_end(job, job->pass.version_next, writes && has_param);
    if (!writes || has_param || !job->versions.knows_param) published_note_params(job);
    collect_results(job);
    job->pass.updating = false;
    former_end(job);
    if (job->pass.update_writes) {
        job->pass.update_writes = false;
        write_close(job);
    }
    log_debug("job %s: published %" PRIu64 ".%" PRIu64, job->spec.name,
              job->pass.version_next.generation, job->pass.version_next.step);
    own_step(job, &(struct step_event) { .kind = CAIRN_STEP_UPDATED });
    kept_note(job); // a machine that is fenced tells nobody yet
    pin_updated(job);
    fetch_deferred(job);
    if (job->kept.is_due) kept_begin(job);
    if (job->journal.wanted && !job->journal.is_open) shard_tell(job, SHARD_JOB_CHANGED);
}

/* Prepares the copy that is written next. Returns false if this fails; then the job is stopped. */
static bool is_ready(struct shard_job *job)
{
    struct sentence why;
    const cairn_status status = published_ready(job, &why);
    if (status != CAIRN_OK) shard_job_fault(job, why.text);
    return status == CAIRN_OK;
}

static void begin_republish(struct shard_job *job);

static void begin_update(struct shard_job *job)
{
    static const struct pass_kind write = { describe_write, conclude_write, update_done };
    static const struct pass_kind update = { describe_update, conclude_update, update_done };
    const struct published_copy *next = &job->versions.copies[job->versions.writing];
    job->pass.update_waits = false;
    if (!is_ready(job)) return;
    times_updating(job);
    pins_updating(job);
    audit_begin(job, false);
    former_begin(job);
    if (job->pass.update_writes)
        pass_submit(job, false, true, &write);
    else
        pass_submit(job, true, next->stale || job->audit.turns != 0, &update);
}

/* Begins the UPDATE, or the work of pass_republish, that waits, unless something is being sent out
 * of the copy that it will write. */
static void begin_when_unsent(struct shard_job *job)
{
    if (!job->pass.update_waits || job->versions.copies[job->versions.writing].sends > 0 ||
        mirror_is_receiving(job) || journal_holds_update(job))
        return;
    if (job->pass.republished != NULL)
        begin_republish(job);
    else
        begin_update(job);
}

void pass_update(struct shard_job *job, const struct decision *decision)
{
    job->pass.update_writes = decision->kind == CAIRN_DECISION_WRITE;
    const char *why = job->pass.update_writes ? NULL : read_scalars(job, decision);
    if (why != NULL) {
        shard_job_fault(job, why);
        return;
    }
    job->pass.version_next = decision->version_after;
    job->bytes.steps += !job->pass.update_writes;
    job->pass.updating = true;
    kept_marks(job);
    journal_decided(job, decision);
    // The copy that is chosen here loses its version. Without leases this is the version before the
    // newest.
    published_begin(job);
    job->pass.update_waits = true;
    begin_when_unsent(job);
}

/* ---- the newest version once more ---- */

static bool describe_republish(struct work_run *run, uint32_t item, uint32_t stage,
                               struct works *works)
{
    struct shard_job *job = pass_job(run);
    struct published_copy *next = &job->versions.copies[job->versions.writing];
    const uint32_t chunk = pass_chunk(run, item);
    const struct chunk_place place = place_of(job, chunk);
    if (stage > 0) {
        published_fill(works, next, chunk);
        return false;
    }
    publish_chunk(works, job, next, chunk, &place);
    return host_follows(job, next, chunk);
}

static void republish_done(struct shard_job *job)
{
    void (*done)(struct shard_job *) = job->pass.republished;
    published_end(job, step_version(job->collector.step), false);
    job->pass.republished = NULL;
    if (job->pass.reduce_waits) pass_reduce(job);
    done(job);
}

static void begin_republish(struct shard_job *job)
{
    static const struct pass_kind republish = { describe_republish, NULL, republish_done };
    job->pass.update_waits = false;
    if (is_ready(job)) pass_submit(job, false, true, &republish);
}

cairn_status pass_republish(struct shard_job *job, void (*done)(struct shard_job *job),
                            struct sentence *why)
{
    const enum step_phase phase = step_phase_of(job->collector.step);
    const bool works = job->pass.updating || job->pass.parts_left > 0 ||
                       job->pass.republished != NULL || phase == CAIRN_STEP_REDUCING;
    if (job->state != CAIRN_JOB_SERVING || works)
        return fail_with(why, CAIRN_ERR_BUSY, "a version of job %s is being made", job->spec.name);
    job->pass.republished = done;
    job->pass.update_waits = true;
    published_begin(job);
    begin_when_unsent(job);
    return CAIRN_OK;
}

/* ---- the first publish ---- */

/* Sets stale moments to 0, because the member that put them did not finish. */
static void forget_moments(struct works *works, struct shard_job *job, uint32_t chunk,
                           const struct chunk_place *place)
{
    static const enum plane moments[] = { CAIRN_PLANE_EXP_AVG, CAIRN_PLANE_EXP_AVG_SQ };
    for (size_t i = 0; i < sizeof moments / sizeof *moments; i++) {
        if ((job->puts.have[chunk] & CAIRN_PUT_STALE(moments[i])) == 0) continue;
        job->puts.have[chunk] ^= (uint16_t)CAIRN_PUT_STALE(moments[i]);
        struct home_work *work = works_add(works, CAIRN_WORK_ZERO);
        work->zero.at = plane_at(job, moments[i], chunk, place);
        work->zero.bytes = (size_t)place->elem_count * sizeof(float);
    }
}

/* Begins the average of a chunk with the parameters, unless somebody put an average, or the chunk's state
 * had one before it came here. */
static void begin_average(struct works *works, struct shard_job *job, uint32_t chunk,
                          const struct chunk_place *place)
{
    const struct form *form = &job->view->forms[job->pass.table->extent_of[chunk]];
    const unsigned there = CAIRN_PUT_HAS(CAIRN_PLANE_EMA) | CAIRN_PUT_AVERAGED;
    const bool has_state = job->load.joins || job->kept.was_kept;
    if (!form_keeps(form, CAIRN_PLANE_EMA) || has_state || (job->puts.have[chunk] & there) != 0)
        return;
    job->puts.have[chunk] &= (uint16_t)~CAIRN_PUT_STALE(CAIRN_PLANE_EMA);
    works_copy(works, plane_at(job, CAIRN_PLANE_EMA, chunk, place),
               plane_at(job, CAIRN_PLANE_PARAM, chunk, place),
               (size_t)form_bytes(form, CAIRN_PLANE_EMA, place->elem_count));
}

static bool describe_seal(struct work_run *run, uint32_t item, uint32_t stage, struct works *works)
{
    struct shard_job *job = pass_job(run);
    const uint32_t chunk = pass_chunk(run, item);
    const struct chunk_place place = place_of(job, chunk);
    // Updates skip frozen tensors, so both copies get these tensors here.
    const bool is_frozen = !job->view->forms[job->pass.table->extent_of[chunk]].trained;
    if (stage == 0) forget_moments(works, job, chunk, &place);
    if (stage == 0) begin_average(works, job, chunk, &place);
    for (int i = 0; i < (is_frozen ? 2 : 1); i++) {
        struct published_copy *copy = &job->versions.copies[i];
        if (stage == 0)
            publish_chunk(works, job, copy, chunk, &place);
        else
            published_fill(works, copy, chunk);
    }
    return stage == 0 && host_follows(job, &job->versions.copies[0], chunk);
}

static void conclude_seal(struct work_run *run, uint32_t item, uint32_t thread)
{
    (void)thread;
    audit_take(pass_job(run), pass_chunk(run, item));
}

static void seal_done(struct shard_job *job)
{
    if (job->state != CAIRN_JOB_SEALING) return;
    const struct cairn_version version = step_version(job->collector.step);
    published_seal_end(job, version);
    job->state = CAIRN_JOB_SERVING;
    job_puts_end(job);
    log_info("job %s: ready at version %" PRIu64 ".%" PRIu64 "%s", job->spec.name,
             version.generation, version.step,
             job->kept.was_kept ? ", as the process before left it" : "");
    // if the part joins, it learns the job's version with the first Resolve
    if (!job->load.joins && !job->kept.was_kept)
        own_step(job, &(struct step_event) { .kind = CAIRN_STEP_READY, .version = version });
    if (job->kept.is_stored) // by the process before
        kept_note(job);
    else
        kept_begin(job);
    shard_tell(job, SHARD_JOB_CHANGED);
    kept_resumed(job);
    session_answer(job->shard, &job->load.asked, CAIRN_OK, NULL);
}

/* ---- an update that was cut off ---- */

/* The copy that the end of such an update is written to; the seal writes the version to the
 * other copy. */
static struct published_copy *other_copy(struct shard_job *job)
{
    return &job->versions.copies[1];
}

static bool describe_resume(struct work_run *run, uint32_t item, uint32_t stage,
                            struct works *works)
{
    struct shard_job *job = pass_job(run);
    const uint32_t trained = pass_trained(run, item), chunk = pass_chunk(run, item);
    const struct chunk_place place = place_of(job, chunk);
    assert(stage == 0);
    if (!kept_has_ended(job, trained) && !is_left_alone(job, chunk, &place))
        (void)add_update(works, job, other_copy(job), trained, &place);
    return false;
}

/* Ends the chunks that the threads of the process before were at, each in the undo that it is
 * in: a pass would use the undos for other chunks. */
static cairn_status end_chunks(struct shard_job *job, uint32_t *count_out, struct sentence *why)
{
    struct works *works = compute_loop(&job->shard->host);
    struct update_undo *undo;
    uint32_t trained;
    bool is_of;
    *count_out = 0;
    for (uint32_t i = 0; (undo = kept_undo(job, i, &is_of, &trained)) != NULL; i++) {
        if (!is_of) continue;
        const struct chunk_place place = place_of(job, job->pass.table->trained[trained]);
        add_update(works, job, other_copy(job), trained, &place)->undo = undo;
        CAIRN_TRY(works_run(works, why));
        ++*count_out;
    }
    return CAIRN_OK;
}

cairn_status pass_resume(struct shard_job *job, struct sentence *why)
{
    static const struct pass_kind resume = { describe_resume, NULL, pass_seal };
    const struct decision *last = step_last(job->collector.step);
    bool was_cut;
    uint32_t count;
    CAIRN_TRY(kept_take(job, &was_cut, why));
    if (!was_cut) {
        pass_seal(job);
        return CAIRN_OK;
    }
    const char *reason = read_scalars(job, last);
    if (reason != NULL) return fail_with(why, CAIRN_ERR_MALFORMED, "%s", reason);
    CAIRN_TRY(end_chunks(job, &count, why));
    log_info("job %s: the update to version %" PRIu64 ".%" PRIu64
             " is ended, which was cut off in %u chunks",
             job->spec.name, last->version_after.generation, last->version_after.step, count);
    pass_submit(job, true, false, &resume);
    return CAIRN_OK;
}

/* ---- an update that is done again ---- */

static bool describe_replay(struct work_run *run, uint32_t item, uint32_t stage,
                            struct works *works)
{
    struct shard_job *job = pass_job(run);
    const uint32_t trained = pass_trained(run, item), chunk = pass_chunk(run, item);
    const struct chunk_place place = place_of(job, chunk);
    (void)stage;
    if (!is_left_alone(job, chunk, &place))
        (void)add_update(works, job, other_copy(job), trained, &place);
    return false;
}

cairn_status pass_replay(struct shard_job *job, const struct decision *decision,
                         struct sentence *why)
{
    static const struct pass_kind replay = { describe_replay, NULL, journal_replayed };
    const char *reason = read_scalars(job, decision);
    if (reason != NULL) return fail_with(why, CAIRN_ERR_MALFORMED, "%s", reason);
    pass_submit(job, true, false, &replay);
    return CAIRN_OK;
}

void pass_seal(struct shard_job *job)
{
    static const struct pass_kind seal = { describe_seal, conclude_seal, seal_done };
    assert(job->state == CAIRN_JOB_INITIALIZING || job->state == CAIRN_JOB_LOADING);
    struct sentence why;
    job->state = CAIRN_JOB_SEALING;
    if (published_seal_begin(job, &why) != CAIRN_OK) {
        shard_job_fault(job, why.text);
        return;
    }
    audit_begin(job, true);
    pass_submit(job, false, true, &seal);
}

/* ==== pass ==== */

/* A pass over at most this many elements takes some 10 us. Waking another thread, which then wakes
 * the loop thread, takes as long. */
#define SMALL_ELEMS 16384
/* If a pass goes over at least this many elements, its data is no longer in a cache when the next
 * pass reads the data. The number was measured. */
#define FAR_ELEMS ((uint64_t)4 << 20)

void pass_divide(struct shard_job *job)
{
    struct job_pass *pass = &job->pass;
    const struct shard_map *map = &pass->table->map;
    const uint64_t device_end = planes_device_end(&job->planes);
    uint32_t chunk = 0, trained = 0;
    while (chunk < map->chunk_count && shard_map_chunk(map, chunk).local_elem < device_end) chunk++;
    while (trained < pass->table->trained_count && pass->table->trained[trained] < chunk) trained++;
    pass->host.first = chunk;
    pass->host.trained_first = trained;
}

static void open_parts(struct shard_job *job)
{
    struct job_pass *pass = &job->pass;
    pass->device = pass->host = (struct pass_part) { .job = job };
    if (job->planes.host_from > 0)
        pass->device.sums = calloc(compute_lanes(&job->shard->device), sizeof *pass->device.sums);
    pass->host.sums = calloc(compute_lanes(&job->shard->host), sizeof *pass->host.sums);
    pass_divide(job);
}

cairn_status pass_tables_open(const struct chunk_table *table, struct pass_tables *tables_out)
{
    const size_t trained = table->trained_count;
    struct pass_tables tables = {
        .table = table,
        .zero = calloc(trained + 1, sizeof *tables.zero),
        .chunk_sums = calloc(trained + 1, sizeof *tables.chunk_sums),
        .summed = calloc(trained + 1, sizeof *tables.summed),
    };
    if (tables.zero == NULL || tables.chunk_sums == NULL || tables.summed == NULL) {
        pass_tables_close(&tables);
        return CAIRN_ERR_NO_MEMORY;
    }
    *tables_out = tables;
    return CAIRN_OK;
}

void pass_tables_close(struct pass_tables *tables)
{
    free(tables->zero);
    free(tables->chunk_sums);
    free(tables->summed);
}

static void take_tables(struct shard_job *job, struct pass_tables *tables)
{
    struct job_pass *pass = &job->pass;
    const struct shard_map *map = &tables->table->map;
    pass->table = tables->table;
    pass->is_small = map->elem_count <= SMALL_ELEMS && job->planes.host_from == 0;
    pass->is_far = map->elem_count >= FAR_ELEMS;
    pass->zero = tables->zero;
    pass->chunk_sums = tables->chunk_sums;
    pass->summed = tables->summed;
    *tables = (struct pass_tables) { .table = NULL };
}

void pass_switch(struct shard_job *job, struct pass_tables *tables)
{
    struct job_pass *pass = &job->pass;
    struct pass_tables before = { pass->table, pass->zero, pass->summed, pass->chunk_sums };
    take_tables(job, tables);
    pass_tables_close(&before);
    pass_divide(job);
}

cairn_status pass_open(struct shard_job *job, const struct chunk_table *table)
{
    struct job_pass *pass = &job->pass;
    struct pass_tables tables;
    if (pass_tables_open(table, &tables) != CAIRN_OK) return CAIRN_ERR_NO_MEMORY;
    take_tables(job, &tables);
    open_parts(job);
    pass->scalars = calloc(job->spec.group_count + CAIRN_MISSED_RUNS(job->spec.tensor_count) + 1,
                           sizeof *pass->scalars);
    const bool leaves = job->spec.missing_gradients == CAIRN_MISSING_LEAVE;
    const size_t tensors = leaves ? job->spec.tensor_count : 0;
    pass->untouched_tensors = calloc(tensors + 1, sizeof *pass->untouched_tensors);
    pass->untouched_elems = calloc(tensors + 1, sizeof *pass->untouched_elems);
    const bool have = pass->scalars != NULL && pass->untouched_tensors != NULL &&
                      pass->untouched_elems != NULL && pass->host.sums != NULL &&
                      (job->planes.host_from == 0 || pass->device.sums != NULL);
    return have ? CAIRN_OK : CAIRN_ERR_NO_MEMORY;
}

void pass_close(struct shard_job *job)
{
    free(job->pass.zero);
    free(job->pass.device.sums);
    free(job->pass.host.sums);
    free(job->pass.chunk_sums);
    free(job->pass.summed);
    free(job->pass.scalars);
    free(job->pass.untouched_tensors);
    free(job->pass.untouched_elems);
}

/* ---- the parts ---- */

/* Ends a part of a pass. If a part has failed, the job is stopped, and nothing of the pass is
 * reported or published. */
static void part_done(struct work_run *run)
{
    struct shard_job *job = pass_job(run);
    const bool is_last = --job->pass.parts_left == 0;
    job->pass.failed = shard_job_run_failed(job, run) || job->pass.failed;
    if (is_last && !job->pass.failed) job->pass.kind->done(job);
    shard_job_idle(job);
}

static void clear_sums(struct pass_part *part, const struct compute *compute)
{
    if (part->sums != NULL) memset(part->sums, 0, compute_lanes(compute) * sizeof *part->sums);
}

static void submit_part(struct pass_part *part, struct compute *compute, uint32_t item_count)
{
    const struct job_pass *pass = &part->job->pass;
    part->run = (struct work_run) {
        .task.is_small = pass->is_small,
        .compute = compute,
        .item_count = item_count,
        .describe = pass->kind->describe,
        .conclude = pass->kind->conclude,
        .done = part_done,
    };
    shard_job_busy(part->job);
    compute_submit(&part->run);
}

/* Begins a pass: over the trained chunks if `trained` is true, and then over all chunks if `all` is
 * true. No other pass may be under way. */
static void pass_submit(struct shard_job *job, bool trained, bool all, const struct pass_kind *kind)
{
    struct job_pass *pass = &job->pass;
    struct pass_part *device = &pass->device, *host = &pass->host;
    const uint32_t chunks = (uint32_t)pass->table->map.chunk_count;
    device->trained_count = trained ? host->trained_first : 0;
    host->trained_count = trained ? pass->table->trained_count - host->trained_first : 0;
    const uint32_t on_device = device->trained_count + (all ? host->first : 0);
    const uint32_t on_host = host->trained_count + (all ? chunks - host->first : 0);
    const bool takes_host = on_host > 0 || on_device == 0;
    clear_sums(device, &job->shard->device);
    clear_sums(host, &job->shard->host);
    pass->kind = kind;
    pass->failed = false;
    pass->parts_left = (on_device > 0 ? 1u : 0u) + (takes_host ? 1u : 0u);
    if (on_device > 0) submit_part(device, &job->shard->device, on_device);
    if (takes_host) submit_part(host, &job->shard->host, on_host);
}

static void add_part(struct step_sums *sums, const struct pass_part *part,
                     const struct compute *compute)
{
    for (uint32_t i = 0; part->sums != NULL && i < compute_lanes(compute); i++) {
        const cairn_status status = exact_add(&sums->sum_squares, &part->sums[i].sum_squares);
        assert(status == CAIRN_OK); // 2^74 leaves would fit
        (void)status;
        sums->nonfinite += part->sums[i].nonfinite;
    }
}

/* Returns what all threads have summed, in both homes, in the pass that has just ended. */
static struct step_sums pass_sums(const struct shard_job *job)
{
    struct step_sums sums = { 0 };
    add_part(&sums, &job->pass.device, &job->shard->device);
    add_part(&sums, &job->pass.host, &job->shard->host);
    return sums;
}

/* ==== times ==== */

/* The times at which a round reached its phases on this shard, in microseconds of CLOCK_MONOTONIC,
 * which all processes of a host share. The shard reports how long each phase took to the
 * coordinator with Published. For `cairn bench` the times are one line of the log, at level
 * debug. */

static uint64_t now_us(void)
{
    return uv_hrtime() / 1000;
}

static void log_times(const struct shard_job *job, uint64_t round)
{
    const uint64_t *us = job->pass.times.action_us;
    struct home_use use = { 0 }; // the counts of all jobs since the device was opened
    if (job->shard->device.home != NULL) use = home_use(job->shard->device.home);
    log_fields(CAIRN_LOG_DEBUG,
               CAIRN_FIELDS({ "job", job->spec.name, 0 }, { "round", NULL, round },
                            { "grant_us", NULL, us[CAIRN_STEP_GRANT] },
                            { "receive_us", NULL, us[CAIRN_STEP_RECEIVE] },
                            { "fold_us", NULL, us[CAIRN_STEP_FOLD] },
                            { "reduce_us", NULL, us[CAIRN_STEP_REDUCE] },
                            { "reduced_us", NULL, us[CAIRN_STEP_REDUCED_REPORT] },
                            { "update_us", NULL, us[CAIRN_STEP_UPDATE] },
                            { "published_us", NULL, us[CAIRN_STEP_PUBLISHED_REPORT] },
                            { "launches", NULL, use.launches }, { "in_bytes", NULL, use.bytes_in },
                            { "out_bytes", NULL, use.bytes_out }),
               "times of a round");
}

void times_note(struct shard_job *job, const struct step_action *action)
{
    struct round_times *times = &job->pass.times;
    const enum step_action_kind kind = action->kind;
    if (kind == CAIRN_STEP_GRANT && action->round != times->round)
        *times = (struct round_times) { .round = action->round };
    if (kind == CAIRN_STEP_FOLD) times->folding_us = now_us();
    if (times->action_us[kind] == 0) times->action_us[kind] = now_us();
    if (kind == CAIRN_STEP_PUBLISHED_REPORT && log_enabled(CAIRN_LOG_DEBUG))
        log_times(job, action->round);
}

/* Notes when the pass of an UPDATE begins. times_updated notes when it ends. */
static void times_updating(struct shard_job *job)
{
    job->pass.times.updating_us = now_us();
}

static void times_updated(struct shard_job *job)
{
    job->pass.times.updated_us = now_us();
}

const struct shard_module update_module = {
    .on = { [SHARD_COPIES_ENDED] = begin_when_unsent },
};
