/* The calls of a round: begin, push, micro-batch end, commit, abandon. */
#include "client/job.h"

#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/base.h"
#include "client/op.h"
#include "client/push.h"
#include "client/session.h"
#include "proto/base/text.h"
#include "proto/spec/spec.h"

/* The client state and the driven rates that a commit carries. Both have been validated. */
struct commit_words {
    ProtobufCBinaryData state; /* the client state */
    double *driven;            /* [group_count] rates of driven groups; NULL: no group is driven */
};

/* The calls that ask the coordinator. */
ASK_CALL(round_begin, "cairn_round_begin", ROUND_BEGIN, ROUND_OPENED, .is_of_round = true);
ASK_CALL(write_begin, "cairn_write_begin", WRITE_BEGIN, ROUND_OPENED, .is_of_round = true);
#define END_AWAITED "the shards to tell how the round ended"
ASK_CALL(commit, "cairn_commit", ROUND_COMMIT, ROUND_RESULT, .is_of_round = true,
         .rest = END_AWAITED);
ASK_CALL(write_end, "cairn_write_end", ROUND_COMMIT, ROUND_RESULT, .is_of_round = true,
         .rest = END_AWAITED);
ASK_CALL(abandon, "cairn_round_abandon", ROUND_COMMIT, ROUND_RESULT, .is_of_round = true,
         .rest = END_AWAITED);
ASK_CALL(write_cancel, "WriteCancel", WRITE_CANCEL, DONE);

/* ==== driven ==== */

/* Driven groups: the trainer sets their learning rates, and each commit carries them. */

#define RATE_MAX 1e18 // the limit that every hyper-parameter has

static bool is_driven(const struct job *job, size_t group)
{
    return job->spec.groups[group].schedule.kind == CAIRN_SCHEDULE_DRIVEN;
}

cairn_status cairn_group_lr(cairn_job *handle, const char *name, double lr)
{
    API_ENTER(job, handle);
    if (name == NULL) name = "default";
    if (job->member.role != CAIRN_WORKER)
        return client_fail(CAIRN_ERR_REFUSED, "a reader gives no learning rate");
    if (!(lr >= 0 && lr <= RATE_MAX))
        return client_fail(CAIRN_ERR_INVALID, "group %.64s: lr is %g; allowed: 0 to %g", name, lr,
                           RATE_MAX);
    const size_t group = spec_find_group(&job->spec, name);
    if (group == SIZE_MAX)
        return client_fail(CAIRN_ERR_NOT_FOUND, "job %s has no group \"%.64s\"", job->name, name);
    if (!is_driven(job, group))
        return client_fail(CAIRN_ERR_REFUSED,
                           "group %s is not driven: the servers have its schedule, %s; "
                           "change it by cairn_job_amend, or declare CAIRN_SCHEDULE_DRIVEN",
                           name, schedule_name((int)job->spec.groups[group].schedule.kind));
    HOLD_LOCK(&job->session->lock);
    job->filling.rates[group] = lr;
    return CAIRN_OK;
}

/* Collects the rates that a commit carries, by group; `room`: [group_count]. *driven_out: `room`,
 * or NULL if no group is driven. CAIRN_ERR_INVALID: a driven group has no rate yet. */
static cairn_status driven_rates(struct job *job, double *room, double **driven_out)
{
    size_t missing = SIZE_MAX;
    *driven_out = NULL;
    HOLD_LOCK(&job->session->lock);
    for (size_t g = 0; g < job->spec.group_count; g++) {
        room[g] = is_driven(job, g) ? job->filling.rates[g] : 0;
        if (is_driven(job, g)) *driven_out = room;
        if (isnan(room[g]) && missing == SIZE_MAX) missing = g;
    }
    if (missing == SIZE_MAX) return CAIRN_OK;
    return client_fail(CAIRN_ERR_INVALID,
                       "group %s is driven, and has no learning rate yet: every worker calls "
                       "cairn_group_lr before its first commit",
                       job->spec.groups[missing].name);
}

/* ==== round ==== */

/* Under the lock, with global_batch: checks that all of this worker's micro-batches are ended, or
 * all except the last one. *is_open is true if the last micro-batch must still be ended.
 * CAIRN_ERR_INVALID: earlier micro-batches are missing. Without global_batch nothing is checked,
 * and *is_open is unchanged. */
static cairn_status batch_judge_commit(const struct job *job, bool *is_open)
{
    const struct spec_batch *batch = &job->filling.batch;
    const uint32_t own = batch_count(batch), micro = job->filling.micro;
    if (batch->total == 0) return CAIRN_OK;
    *is_open = micro < own;
    if (micro + 1 >= own) return CAIRN_OK;
    return client_fail(CAIRN_ERR_INVALID,
                       "micro-batch %u of %u is not ended, nor are the next %u of this worker: "
                       "every step has all of them; end each with cairn_micro_end, also one "
                       "without gradients, or give the round up with cairn_round_abandon",
                       batch_number(batch, micro), batch->total, own - micro - 1);
}

/* ---- writes that are open ---- */

static cairn_status await_write(struct job *job, uint64_t deadline_ms)
{
    struct session *s = job->session;
    pthread_mutex_lock(&s->lock);
    while (job_is_writing(job) && !job->closed && !s->ended && job->failure.status == CAIRN_OK &&
           session_sleep(s, deadline_ms)) {}
    const bool ended = job->closed || s->ended;
    const uint64_t open = job_is_writing(job) && !ended ? job->writing.round.round : 0;
    pthread_mutex_unlock(&s->lock);
    const cairn_status status = api_check(job);
    // if the session is closed, the next request reports it
    if (status != CAIRN_OK || open == 0) return status;
    return client_fail(CAIRN_ERR_TIMEOUT,
                       "a write of this worker is open (round %" PRIu64
                       "): no round opens before its cairn_write_end",
                       open);
}

/* ---- rounds ---- */

static void note_frozen(struct job *job, const Cairn__RoundOpened *opened)
{
    const struct job_spec_data *spec = &job->spec;
    memset(job->filling.frozen_groups, 0, spec->group_count * sizeof *job->filling.frozen_groups);
    memset(job->filling.frozen_tensors, 0,
           spec->tensor_count * sizeof *job->filling.frozen_tensors);
    for (size_t i = 0; i < opened->n_frozen; i++)
        if (opened->frozen[i] < spec->group_count)
            job->filling.frozen_groups[opened->frozen[i]] = true;
    for (size_t i = 0; i < opened->n_frozen_tensors; i++)
        if (opened->frozen_tensors[i] < spec->tensor_count)
            job->filling.frozen_tensors[opened->frozen_tensors[i]] = true;
}

/* Under the lock. */
static void note_batch(struct job *job, const Cairn__RoundOpened *opened, bool is_write)
{
    struct filling *filling = &job->filling;
    filling->batch = (struct spec_batch) { is_write ? 0 : job->spec.global_batch, opened->rank,
                                           opened->world };
    uint32_t place;
    if (filling->batch.total > 0)
        filling->had_last = batch_place(&filling->batch, filling->batch.total - 1, &place);
}

/* Returns true if the round can be used, because nothing voided it since its reply arrived. */
static bool open_round(struct job *job, const Cairn__RoundOpened *opened, bool is_write,
                       struct cairn_round *out)
{
    pthread_mutex_lock(&job->session->lock);
    const bool good = opened->round > job->filling.void_round;
    job->known.clip_norm = opened->clip_norm;
    if (good && opened->round != job->filling.round) {
        job->filling.round = opened->round;
        job->filling.micro = 0;
        job->filling.any = job->filling.committed = job->filling.end_unsent = false;
        note_batch(job, opened, is_write);
        memset(job->filling.tensors, 0, job->spec.tensor_count);
        note_frozen(job, opened);
        accumulate_new_round(job);
    }
    pthread_mutex_unlock(&job->session->lock);
    if (!good) return false;
    out->round = opened->round;
    out->step = opened->step;
    out->epoch = opened->epoch;
    out->version = (struct cairn_version) { opened->generation, opened->step };
    out->rank = opened->rank;
    out->world = opened->world;
    out->loss_scale = opened->loss_scale;
    out->revision = opened->revision;
    out->micro_batches = opened->micro_batches;
    if (job->spec.global_batch > 0)
        out->micro_batches = batch_count(
            &(struct spec_batch) { job->spec.global_batch, opened->rank, opened->world });
    out->job = job->member.number;
    out->skips = opened->skips;
    out->index = opened->step + opened->skips;
    out->seed = job->spec.seed;
    out->global_batch = job->spec.global_batch;
    return true;
}

/* Waits until all pushes of this worker are done. First waits for threads that still add pushes up;
 * such a thread waits for nothing, and may send its sum. Then waits for the shards. */
static cairn_status await_pushes(struct job *job, uint64_t deadline_ms)
{
    WITH_LOCK(&job->session->lock, api_await_added(job));
    return api_await_none(job, &job->filling.pushes_open, "pushes", deadline_ms);
}

/* Waits for the beginning of a round, of this worker alone (write_begin) or of all workers
 * (round_begin). */
static cairn_status begin_round(struct job *job, const struct ask_call *call, uint64_t deadline_ms,
                                struct cairn_round *out)
{
    const bool initialized = WITH_LOCK(&job->session->lock, job->known.initialized);
    if (!initialized)
        return client_fail(CAIRN_ERR_NOT_READY,
                           "job %s: every worker calls cairn_init_done before its first "
                           "round, rank 0 after its cairn_put of each tensor",
                           job->name);
    // The buffers of a void round are returned first, because the caller fills them again.
    const uint64_t from_us = monotonic_us();
    cairn_status status = await_pushes(job, deadline_ms);
    const bool is_write = call == &write_begin;
    for (bool is_open = false; status == CAIRN_OK && !is_open;) {
        Cairn__RoundBegin begin = CAIRN__ROUND_BEGIN__INIT;
        Cairn__WriteBegin write = CAIRN__WRITE_BEGIN__INIT;
        ProtobufCMessage *reply;
        status = ask_coordinator(job, call, is_write ? &write.base : &begin.base, deadline_ms,
                                 &reply);
        if (status != CAIRN_OK) break;
        // Another thread may have pushed while this one waited for its turn.
        status = await_pushes(job, deadline_ms);
        is_open = status == CAIRN_OK &&
                  open_round(job, (const Cairn__RoundOpened *)reply, is_write, out);
        message_free(reply);
    }
    HOLD_LOCK(&job->session->lock);
    step_times_waited(&job->measured.times, CAIRN_TIME_WAIT, from_us);
    // If this worker attaches to a new coordinator, that coordinator must wait for the workers of
    // this round.
    if (status == CAIRN_OK && !is_write && job->attachment.launch != 0)
        job->attachment.launch = out->world;
    return status;
}

cairn_status cairn_round_begin(cairn_job *handle, int timeout_ms, struct cairn_round *out)
{
    API_ENTER(job, handle);
    struct cairn_round round = { .struct_size = sizeof round };
    if (!struct_fits(out, CAIRN_API_ROUND_LEAST) || timeout_ms < 0)
        return client_fail(CAIRN_ERR_INVALID,
                           "give out with its struct_size, and a timeout_ms of 0 or more");
    if (job->member.role != CAIRN_WORKER)
        return client_fail(CAIRN_ERR_REFUSED, "a reader takes no part in rounds");
    const uint64_t deadline_ms = api_deadline(timeout_ms);
    CAIRN_TRY(await_write(job, deadline_ms));
    CAIRN_TRY(begin_round(job, &round_begin, deadline_ms, &round));
    struct_copy_out(out, &round, sizeof round);
    return CAIRN_OK;
}

static cairn_status send_word(struct job *job, bool (*run)(struct command *),
                              const struct cairn_round *round, uint32_t micro, uint64_t weight)
{
    struct command *command = op_command(job, run);
    if (command == NULL) return client_fail(CAIRN_ERR_NO_MEMORY, "out of memory");
    command->round = round->round;
    command->micro = micro;
    command->weight = weight;
    session_command(job->session, command);
    return CAIRN_OK;
}

/* Under the lock. Stages 0 and 1: reserves the sums of the round for this call, which sends them;
 * nothing is added to these sums any more. */
static bool claim_sums(struct job *job, const struct cairn_round *round)
{
    const bool mine = accumulate_wanted(job) && !job->sums.ended &&
                      job->filling.round == round->round;
    if (mine) job->sums.ended = true;
    return mine;
}

/* Sends the sums that this call claimed by claim_sums, and the end of the micro-batches. `status`
 * is the result of the work since the claim. After a failure the claim is undone, so that the
 * caller may repeat the entire call. */
static cairn_status send_claimed(struct job *job, const struct cairn_round *round,
                                 cairn_status status)
{
    if (status == CAIRN_OK) status = accumulate_send(job, round);
    if (status == CAIRN_OK) status = send_word(job, pushes_micro_end_run, round, 0, 0);
    if (status == CAIRN_OK) return CAIRN_OK;
    HOLD_LOCK(&job->session->lock);
    if (job->filling.round == round->round) job->sums.ended = false;
    return status;
}

static cairn_status send_sums(struct job *job, const struct cairn_round *round)
{
    const bool mine = WITH_LOCK(&job->session->lock, claim_sums(job, round));
    return mine ? send_claimed(job, round, CAIRN_OK) : CAIRN_OK;
}

/* Sends everything that belongs to the end of a micro-batch. The caller has already recorded the
 * end. */
static cairn_status send_micro_end(struct job *job, const struct cairn_round *round, uint32_t micro)
{
    CAIRN_TRY(api_push_incomplete(job, round, micro));
    if (!accumulate_wanted(job)) return send_word(job, pushes_micro_end_run, round, micro, 0);
    return micro + 1 == job->spec.micro_batches ? send_sums(job, round) : CAIRN_OK;
}

/* Returns true if this call must send the end of the micro-batch, because an earlier call recorded
 * the end but could not send it. */
static bool claim_end(struct job *job, const struct cairn_round *round, uint32_t micro)
{
    HOLD_LOCK(&job->session->lock);
    const bool mine = job->filling.end_unsent && job->filling.round == round->round &&
                      job->filling.micro == micro + 1;
    if (mine) job->filling.end_unsent = false;
    return mine;
}

/* Records the end of a micro-batch and sends it. If memory for sending is lacking, the repeated
 * call sends the end. */
static cairn_status end_micro(struct job *job, const struct cairn_round *round, uint32_t micro)
{
    CAIRN_TRY(claim_end(job, round, micro)
                  ? CAIRN_OK
                  : api_judge_fill(job, round, micro, CAIRN_API_NO_TENSOR));
    cairn_status status = send_micro_end(job, round, micro);
    if (status == CAIRN_OK) return CAIRN_OK;
    HOLD_LOCK(&job->session->lock);
    if (job->filling.round == round->round) job->filling.end_unsent = true;
    return status;
}

cairn_status cairn_micro_end(cairn_job *handle, const struct cairn_round *round, uint32_t micro)
{
    API_ENTER(job, handle);
    CAIRN_TRY(api_batch_place(job, round, &micro));
    return end_micro(job, round, micro);
}

static cairn_status note_committed(struct job *job, const struct cairn_round *round)
{
    HOLD_LOCK(&job->session->lock);
    if (job->filling.round == round->round)
        job->filling.committed = true; // else a write came in between
    return CAIRN_OK;
}

/* Under the lock, for a round that was committed before: a repeated call is allowed, and has no
 * effect. */
static cairn_status judge_again(const struct job *job, const struct cairn_round *round,
                                uint64_t weight)
{
    if (weight == job->filling.weight) return CAIRN_OK;
    return client_fail(CAIRN_ERR_INVALID,
                       "this worker committed round %" PRIu64 " with the weight %" PRIu64
                       ", and %" PRIu64 " cannot replace it: repeat the call as it was",
                       round->round, job->filling.weight, weight);
}

static cairn_status judge_weight(uint64_t weight)
{
    if (weight <= CAIRN_SPEC_WEIGHT_MAX || weight == CAIRN_WEIGHT_NONE) return CAIRN_OK;
    return client_fail(CAIRN_ERR_INVALID,
                       "the weight is %" PRIu64
                       "; allowed: 0 to 2^53, for all workers together, or "
                       "CAIRN_WEIGHT_NONE",
                       weight);
}

/* Ends the micro-batch being filled, if any, and commits; does nothing if this was done before. */
static cairn_status commit_once(struct job *job, const struct cairn_round *round, uint64_t weight)
{
    pthread_mutex_lock(&job->session->lock);
    const bool is_void = round->round != 0 && round->round <= job->filling.void_round;
    const bool is_done = job->filling.committed && round->round == job->filling.round;
    const uint32_t micro = job->filling.micro;
    bool open = job->filling.any || micro == 0;
    cairn_status status = is_void   ? CAIRN_OK
                          : is_done ? judge_again(job, round, weight)
                                    : api_judge_round(job, round);
    if (!is_void && !is_done && status == CAIRN_OK) status = batch_judge_commit(job, &open);
    const bool is_surplus = batch_is_surplus(job), end_unsent = job->filling.end_unsent;
    if (!is_void && !is_done) job->filling.weight = weight;
    // The claim comes before the end of the micro-batch. Otherwise a push could come between this
    // end and the sums.
    const bool mine = !is_void && !is_done && status == CAIRN_OK && claim_sums(job, round);
    pthread_mutex_unlock(&job->session->lock);
    if (is_void || is_done || status != CAIRN_OK)
        return status; // the coordinator reports how the round ended
    if (is_surplus) return note_committed(job, round);
    if (end_unsent) status = end_micro(job, round, micro - 1);
    if (status == CAIRN_OK && open) status = end_micro(job, round, micro);
    if (mine) status = send_claimed(job, round, status);
    if (status != CAIRN_OK) return status;
    const bool summed = accumulate_wanted(job);
    const uint32_t micros = micro + (open ? 1 : 0);
    if (weight == 0) weight = micros;
    if (weight == CAIRN_WEIGHT_NONE) weight = 0;
    status = send_word(job, pushes_commit_run, round, summed ? 0 : micros - 1, weight);
    return status == CAIRN_OK ? note_committed(job, round) : status;
}

/* Returns CAIRN_OK if the shards accepted everything that this worker sent in that round. */
static cairn_status judge_refused(struct job *job, uint64_t round)
{
    HOLD_LOCK(&job->session->lock);
    return round == job->filling.refused_round
               ? client_fail(job->filling.refused_status, "%s", job->filling.refused_why.text)
               : CAIRN_OK;
}

static cairn_status copy_result(const Cairn__RoundResult *result, struct cairn_result *out)
{
    const cairn_status status = status_known(result->status) ? (cairn_status)result->status
                                                             : CAIRN_ERR_PROTOCOL;
    if (status != CAIRN_OK)
        return client_fail(status, "%s",
                           result->text[0] != 0 ? result->text : status_text((int)status));
    out->step = result->step;
    out->version = (struct cairn_version) { result->generation, result->step };
    out->grad_norm = result->grad_norm;
    out->clip_scale = result->clip_scale;
    out->lr = result->lr;
    out->applied = result->applied;
    out->finite = result->finite;
    out->skips = result->skips;
    out->index = result->step + result->skips;
    out->nonfinite = result->nonfinite;
    snprintf(out->nonfinite_tensors, sizeof out->nonfinite_tensors, "%s",
             result->nonfinite_tensors);
    return CAIRN_OK;
}

/* Fills in the times and the memory that a commit reports to the coordinator. False if the commit
 * reports none. */
static bool tell_times(struct job *job, uint64_t round, Cairn__StepTimes *out,
                       Cairn__WorkerMemory *memory)
{
    cairn__worker_memory__init(memory);
    HOLD_LOCK(&job->session->lock);
    const bool has_times = step_times_commit(&job->measured.times, round, out) &&
                           // a surplus worker did nothing that could be compared with others
                           !batch_is_surplus(job);
    memory->shared = memory_host_bytes(job->session);
    memory->sums = job->measured.stats.accumulated_bytes;
    memory->units = job->measured.stats.mapped_bytes;
    memory->copies = job->measured.stats.packed_bytes + job->measured.stats.assembled_bytes;
    if (has_times) out->memory = memory;
    return has_times;
}

/* Commits the round once, and waits for the end of the round. */
static cairn_status commit_round(struct job *job, const struct ask_call *call,
                                 const struct cairn_round *round, uint64_t weight,
                                 const struct commit_words *words, uint64_t deadline_ms,
                                 struct cairn_result *out)
{
    CAIRN_TRY(api_judge_begun(job, round));
    CAIRN_TRY(commit_once(job, round, weight));
    Cairn__RoundCommit message = CAIRN__ROUND_COMMIT__INIT;
    Cairn__StepTimes times;
    Cairn__WorkerMemory memory;
    message.round = round->round;
    message.client_state = words->state;
    if (tell_times(job, round->round, &times, &memory)) message.times = &times;
    const uint64_t from_us = monotonic_us();
    message.driven = words->driven;
    message.n_driven = words->driven != NULL ? job->spec.group_count : 0;
    ProtobufCMessage *reply;
    cairn_status status = ask_coordinator(job, call, &message.base, deadline_ms, &reply);
    WITH_LOCK(&job->session->lock, step_times_ended(&job->measured.times, from_us));
    if (status != CAIRN_OK) return status;
    status = await_pushes(job, deadline_ms);
    if (status == CAIRN_OK) status = judge_refused(job, round->round);
    if (status == CAIRN_OK) status = copy_result((const Cairn__RoundResult *)reply, out);
    message_free(reply);
    return status;
}

static cairn_status judge_state(const struct job *job, const struct cairn_round *round,
                                const ProtobufCBinaryData *state)
{
    const uint32_t max = job->spec.client_state_max;
    if (state->data == NULL && state->len == 0) return CAIRN_OK;
    if (state->data == NULL)
        return client_fail(CAIRN_ERR_INVALID, "client_state is NULL, its size is %zu", state->len);
    if (max == 0)
        return client_fail(
            CAIRN_ERR_REFUSED,
            "job %s keeps no client state; declare client_state_max in its spec, or give NULL",
            job->name);
    if (round->rank != 0)
        return client_fail(
            CAIRN_ERR_REFUSED,
            "only rank 0 of the round gives client_state, and this is rank %u; give NULL",
            round->rank);
    if (state->len <= max) return CAIRN_OK;
    return client_fail(CAIRN_ERR_INVALID,
                       "client_state of %zu bytes; job %s declares client_state_max = %u",
                       state->len, job->name, max);
}

cairn_status cairn_commit(cairn_job *handle, const struct cairn_round *round, uint64_t weight,
                          const void *client_state, size_t state_bytes, int timeout_ms,
                          struct cairn_result *out)
{
    API_ENTER(job, handle);
    double room[CAIRN_SPEC_GROUPS_MAX];
    struct commit_words words = { { state_bytes, (uint8_t *)(uintptr_t)client_state }, NULL };
    struct cairn_result result = { .struct_size = sizeof result };
    if (!struct_fits(out, CAIRN_API_RESULT_LEAST) || timeout_ms < 0 ||
        !struct_fits(round, CAIRN_API_ROUND_LEAST))
        return client_fail(
            CAIRN_ERR_INVALID,
            "give round and out with their struct_size, and a timeout_ms of 0 or more");
    CAIRN_TRY(judge_weight(weight));
    CAIRN_TRY(judge_state(job, round, &words.state));
    CAIRN_TRY(driven_rates(job, room, &words.driven));
    CAIRN_TRY(commit_round(job, &commit, round, weight, &words, api_deadline(timeout_ms), &result));
    struct_copy_out(out, &result, sizeof result);
    return CAIRN_OK;
}

/* Checks whether this worker can give the round up. Returns CAIRN_OK with *over_out if the round is
 * already void, or if this worker cannot give it up. */
static cairn_status judge_abandon(struct job *job, const struct cairn_round *round, bool *over_out)
{
    HOLD_LOCK(&job->session->lock);
    cairn_status status = api_judge_round(job, round);
    *over_out = status == CAIRN_ERR_EPOCH_CHANGED || (status == CAIRN_OK && batch_is_surplus(job));
    return *over_out ? CAIRN_OK : status;
}

cairn_status cairn_round_abandon(cairn_job *handle, const struct cairn_round *round, int timeout_ms)
{
    API_ENTER(job, handle);
    if (!struct_fits(round, CAIRN_API_ROUND_LEAST) || timeout_ms < 0)
        return client_fail(CAIRN_ERR_INVALID,
                           "give round with its struct_size, and a timeout_ms of 0 or more");
    const uint64_t deadline_ms = api_deadline(timeout_ms);
    bool is_over;
    cairn_status status = judge_abandon(job, round, &is_over);
    if (status == CAIRN_OK && !is_over) {
        Cairn__RoundCommit message = CAIRN__ROUND_COMMIT__INIT;
        message.round = round->round;
        message.abandon = true;
        ProtobufCMessage *reply;
        CAIRN_TRY(ask_coordinator(job, &abandon, &message.base, deadline_ms, &reply));
        if (((const Cairn__RoundResult *)reply)->status != CAIRN_ERR_EPOCH_CHANGED)
            status = client_fail(CAIRN_ERR_STALE,
                                 "round %" PRIu64
                                 " is not abandoned: it was committed meanwhile, and ended",
                                 ((const Cairn__RoundResult *)reply)->round);
        message_free(reply);
    }
    if (status != CAIRN_OK) return status;
    return await_pushes(job, deadline_ms);
}

/* ==== write ==== */

/* Checks that this worker may write a buffer. CAIRN_ERR_REFUSED. */
static cairn_status judge_buffer(struct job *job, size_t tensor)
{
    const struct tensor_spec *t = &job->spec.tensors[tensor];
    if (job->spec.global_batch == 0 || t->kind != CAIRN_BUFFER) return CAIRN_OK;
    HOLD_LOCK(&job->session->lock);
    const bool may = job->filling.had_last;
    if (may) return CAIRN_OK;
    return client_fail(CAIRN_ERR_REFUSED,
                       "tensor %s is a buffer, and job %s has global_batch = %u: the worker "
                       "of micro-batch %u of the last round writes it, so that the bits do "
                       "not depend on how many workers there are; this one had others",
                       t->name, job->name, job->spec.global_batch, job->spec.global_batch - 1);
}

/* Writing planes at a step boundary: a round of this worker alone, with puts instead of gradients. */

#define CANCEL_MS 1000

static struct cairn_round open_write(struct job *job)
{
    HOLD_LOCK(&job->session->lock);
    const struct cairn_round round = job->writing.round;
    return round;
}

uint64_t api_write_round(struct job *job)
{
    return open_write(job).round;
}

/* Voids the write, or withdraws the request for a write (round 0); keeps this thread's sentence. */
static void cancel_write(struct job *job, uint64_t round)
{
    struct sentence said;
    Cairn__WriteCancel message = CAIRN__WRITE_CANCEL__INIT;
    sentence_set(&said, "%s", cairn_error());
    message.round = round;
    // Even if this request is not answered, the write is void, because nobody commits it.
    (void)!ask_coordinator(job, &write_cancel, &message.base, api_deadline(CANCEL_MS), NULL);
    client_fail(CAIRN_OK, "%s", said.text);
}

/* Gives up the write. No worker will commit this write. So this process treats the write as void
 * before the coordinator says so, and the next write may begin. */
static void give_up(struct job *job, uint64_t round)
{
    pthread_mutex_lock(&job->session->lock);
    job->writing.round = (struct cairn_round) { .round = 0 };
    if (round > job->filling.void_round) {
        job->filling.void_round = round;
        job->filling.void_why.text[0] = '\0';
    }
    pthread_cond_broadcast(&job->session->changed);
    pthread_mutex_unlock(&job->session->lock);
    cancel_write(job, round);
}

/* ---- begin ---- */

static cairn_status judge_begin(struct job *job)
{
    if (job->member.role != CAIRN_WORKER)
        return client_fail(CAIRN_ERR_REFUSED, "a reader cannot write");
    HOLD_LOCK(&job->session->lock);
    const bool writing = job->writing.round.round != 0;
    const bool open = job->filling.round > job->filling.void_round && !job->filling.committed;
    if (writing)
        return client_fail(CAIRN_ERR_EXISTS, "a write is open: end it with cairn_write_end");
    if (open)
        return client_fail(CAIRN_ERR_REFUSED,
                           "this worker has a round open: commit it, then write");
    return CAIRN_OK;
}

cairn_status cairn_write_begin(cairn_job *handle, int timeout_ms)
{
    API_ENTER(job, handle);
    CAIRN_TRY(api_judge_call(NULL, NULL, timeout_ms));
    const uint64_t deadline_ms = api_deadline(timeout_ms);
    struct cairn_round round = { .struct_size = sizeof round };
    CAIRN_TRY(judge_begin(job));
    cairn_status status = begin_round(job, &write_begin, deadline_ms, &round);
    if (status == CAIRN_ERR_TIMEOUT) cancel_write(job, 0);
    if (status != CAIRN_OK) return status;
    HOLD_LOCK(&job->session->lock);
    write_release(job);
    job->writing.round = round;
    job->puts.status = CAIRN_OK;
    return CAIRN_OK;
}

/* ---- put ---- */

/* A box of a plane that was put in the open write. */
struct written {
    LIST_ENTRY(written) next;
    uint32_t tensor;
    uint8_t plane;
    struct cairn_box box;
};

void write_release(struct job *job)
{
    for (struct written *w; (w = LIST_FIRST(&job->writing.boxes)) != NULL; free(w))
        LIST_REMOVE(w, next);
}

/* Records what is put, so that no element is put twice. */
static cairn_status claim(struct job *job, const struct command *pattern)
{
    char mine[CAIRN_BOX_TEXT_BYTES], theirs[CAIRN_BOX_TEXT_BYTES];
    struct written *fresh = malloc(sizeof *fresh);
    if (fresh == NULL) return client_fail(CAIRN_ERR_NO_MEMORY, "out of memory");
    *fresh = (struct written) { .tensor = pattern->tensor,
                                .plane = pattern->plane,
                                .box = pattern->piece.box };
    pthread_mutex_lock(&job->session->lock);
    const struct written *had = LIST_FIRST(&job->writing.boxes);
    while (had != NULL && (had->tensor != fresh->tensor || had->plane != fresh->plane ||
                           !box_overlap(&had->box, &fresh->box)))
        had = LIST_NEXT(had, next);
    const bool twice = had != NULL;
    if (twice)
        box_text(&had->box, theirs);
    else
        LIST_INSERT_HEAD(&job->writing.boxes, fresh, next);
    pthread_mutex_unlock(&job->session->lock);
    if (!twice) return CAIRN_OK;
    box_text(&fresh->box, mine);
    free(fresh);
    return client_fail(CAIRN_ERR_EXISTS,
                       "tensor %s, %s: box %s has elements of %s, which was put in this "
                       "write already; each element is put once",
                       job->spec.tensors[pattern->tensor].name, plane_name(pattern->plane), mine,
                       theirs);
}

/* Removes the record of a box that was not put in the end. */
static void unclaim(struct job *job, const struct command *pattern)
{
    pthread_mutex_lock(&job->session->lock);
    struct written *gone = LIST_FIRST(&job->writing.boxes);
    while (gone != NULL && (gone->tensor != pattern->tensor || gone->plane != pattern->plane ||
                            !box_equal(&gone->box, &pattern->piece.box)))
        gone = LIST_NEXT(gone, next);
    if (gone != NULL) LIST_REMOVE(gone, next);
    pthread_mutex_unlock(&job->session->lock);
    free(gone);
}

cairn_status api_write_put(struct job *job, uint64_t round, const char *tensor, const char *plane,
                           const struct cairn_box *box, const struct cairn_mem *given,
                           cairn_op **op_out)
{
    size_t index;
    struct cairn_mem mem;
    struct cairn_box of_target;
    CAIRN_TRY(api_judge_boxed(job, tensor, given, &mem, &index, &box, &of_target));
    int number;
    CAIRN_TRY(api_judge_state(job, index, plane, &number));
    CAIRN_TRY(judge_buffer(job, index));
    CAIRN_TRY(api_judge_dtype(job, index, number, &mem));
    struct command pattern = { .tensor = (uint32_t)index,
                               .plane = (uint8_t)number,
                               .round = round };
    CAIRN_TRY(api_judge_box(job, index, box, &mem, &pattern.piece));
    if (job->spec.tensors[index].kind == CAIRN_BLOB && !pattern.piece.whole)
        return client_fail(
            CAIRN_ERR_INVALID,
            "tensor %s: a blob is written whole; give NULL for the box, or [0, %" PRIu64 ")",
            tensor, job->spec.tensors[index].shape.dim[0]);
    cairn_status status = api_prepare(&mem, true, &pattern);
    if (status == CAIRN_OK) status = claim(job, &pattern);
    if (status == CAIRN_OK) {
        status = op_begin(job, CAIRN_CHUNK_PUT, &pattern, op_out);
        if (status != CAIRN_OK) unclaim(job, &pattern);
    }
    if (status != CAIRN_OK) api_unprepare(&pattern);
    return status;
}

/* ---- end ---- */

/* Returns the first failure of a put since the write began. */
static cairn_status judge_puts(struct job *job)
{
    HOLD_LOCK(&job->session->lock);
    const cairn_status status = job->puts.status;
    const struct sentence why = job->puts.why;
    if (status == CAIRN_OK) return CAIRN_OK;
    if (status == CAIRN_ERR_STALE) // the write had become void, which is not the put's fault
        return client_fail(CAIRN_ERR_EPOCH_CHANGED, "nothing was written, begin again: %s",
                           why.text);
    return client_fail(status, "nothing was written, because a put failed: %s", why.text);
}

cairn_status cairn_write_end(cairn_job *handle, int timeout_ms, struct cairn_version *out)
{
    API_ENTER(job, handle);
    CAIRN_TRY(api_judge_call("out", out, timeout_ms));
    const uint64_t deadline_ms = api_deadline(timeout_ms);
    const struct cairn_round round = open_write(job);
    struct cairn_result result = { .struct_size = sizeof result };
    if (round.round == 0)
        return client_fail(CAIRN_ERR_INVALID, "no write is open: begin one with cairn_write_begin");
    CAIRN_TRY(api_await_none(job, &job->puts.open, "puts", deadline_ms));
    cairn_status status = judge_puts(job);
    if (status != CAIRN_OK) {
        give_up(job, round.round);
        return status;
    }
    status = commit_round(job, &write_end, &round, 1, &(struct commit_words) { { 0, NULL }, NULL },
                          deadline_ms, &result);
    if (status == CAIRN_ERR_TIMEOUT || status == CAIRN_ERR_NO_MEMORY)
        return status; // the caller may repeat the call, which then continues
    pthread_mutex_lock(&job->session->lock);
    job->writing.round = (struct cairn_round) { .round = 0 };
    pthread_cond_broadcast(&job->session->changed);
    pthread_mutex_unlock(&job->session->lock);
    if (status == CAIRN_OK) *out = result.version;
    if (status != CAIRN_ERR_EPOCH_CHANGED) return status;
    struct sentence why;
    sentence_set(&why, "%s", cairn_error());
    return client_fail(status, "nothing was written, begin again: %s", why.text);
}
