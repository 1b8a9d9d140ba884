/* Carries out the actions of a job's core, in their order: tells shards and workers, pins cuts,
 * fences workers. */
#include <inttypes.h>

#include "proto/spec/batch.h"
#include "server/base/log.h"
#include "server/coordinator/base/job.h"
#include "server/coordinator/base/member.h"
#include "server/coordinator/base/seat.h"
#include "server/coordinator/base/session.h"
#include "server/coordinator/cluster.h"
#include "server/coordinator/cut/cuts.h"
#include "server/coordinator/member/relapse.h"
#include "server/coordinator/job/jobs.h"
#include "server/coordinator/round/groups.h"
#include "server/coordinator/round/terms.h"

/* ---- to the shards ---- */

static void send_fence(struct cairn_cluster_job *job, const struct cairn_round_action *action)
{
    Cairn__Fence fence = CAIRN__FENCE__INIT;
    fence.job = job->id;
    fence.epoch = action->epoch;
    fence.layout = action->layout;
    cairn_log_info("job %s: epoch %" PRIu64 ", because %s", job->spec.name, action->epoch,
                   job->rounds.epoch_why.text);
    cairn_cluster_job_send_all(job, CAIRN_MSG_FENCE, &fence.base);
}

static void send_resolve(struct cairn_cluster_job *job, const struct cairn_round_action *action)
{
    Cairn__Decision decision;
    Cairn__Resolve resolve = CAIRN__RESOLVE__INIT;
    cairn_cluster_decision_to_message(action->decision, &decision);
    resolve.job = job->id;
    resolve.epoch = action->epoch;
    resolve.round = action->round;
    resolve.decision = &decision;
    cairn_cluster_job_send_all(job, CAIRN_MSG_RESOLVE, &resolve.base);
}

/* The groups that are frozen in the round that is open. Returns how many. */
static size_t list_frozen(const struct cairn_cluster_job *job,
                          uint32_t frozen[CAIRN_SPEC_GROUPS_MAX])
{
    const bool *flags = cairn_round_terms_of(job->core)->frozen;
    size_t count = 0;
    for (uint32_t g = 0; g < job->spec.group_count; g++) {
        if (flags[g]) frozen[count++] = g;
    }
    return count;
}

static void send_open(struct cairn_cluster_job *job, const struct cairn_round_action *action)
{
    uint32_t frozen[CAIRN_SPEC_GROUPS_MAX];
    Cairn__RoundOpen open = CAIRN__ROUND_OPEN__INIT;
    open.frozen = frozen;
    open.n_frozen = list_frozen(job, frozen);
    open.frozen_tensors = cairn_cluster_terms_in_force(job)->frozen_tensors;
    open.n_frozen_tensors = cairn_cluster_terms_in_force(job)->frozen_tensor_count;
    open.job = job->id;
    open.epoch = action->epoch;
    open.round = action->round;
    open.generation = action->version.generation;
    open.step = action->version.step;
    open.members = (uint64_t *)(uintptr_t)action->members;
    open.n_members = action->member_count;
    open.write = action->write;
    cairn_cluster_straggler_opened(job, action->round, action->write);
    cairn_log_debug("job %s: round %" PRIu64 " of step %" PRIu64 " open for %" PRIu32 " workers",
                    job->spec.name, action->round, action->version.step, action->member_count);
    if (action->write ||
        !cairn_cluster_groups_open(job, action->round, action->members, action->member_count)) {
        cairn_cluster_job_send_all(job, CAIRN_MSG_ROUND_OPEN, &open.base);
        return;
    }
    CAIRN_EACH_SHARD (job, i) {
        if (!job->shards[i].up || !cairn_cluster_job_in_force(job, i)) continue;
        cairn_cluster_groups_fill(job, i, &open);
        cairn_cluster_session_send(job->shards[i].seat->session, CAIRN_MSG_ROUND_OPEN, 0,
                                   &open.base);
    }
}

static void send_decide(struct cairn_cluster_job *job, const struct cairn_round_action *action)
{
    Cairn__Decision decision;
    Cairn__Decide decide = CAIRN__DECIDE__INIT;
    cairn_cluster_decision_to_message(action->decision, &decision);
    if (decision.kind == CAIRN_DECISION_APPLY) {
        cairn_cluster_groups_stepped(job);
        job->rounds.has_stepped = true;
        job->rounds.stepped_ms = cairn_cluster_now_ms(job->cluster);
    }
    decide.job = job->id;
    decide.epoch = action->epoch;
    decide.decision = &decision;
    cairn_log_debug("job %s: round %" PRIu64 " decided: %s", job->spec.name, decision.round,
                    decision.kind == CAIRN_DECISION_APPLY   ? "apply"
                    : decision.kind == CAIRN_DECISION_WRITE ? "write"
                                                            : "skip");
    cairn_cluster_job_send_all(job, CAIRN_MSG_DECIDE, &decide.base);
    if (decision.kind == CAIRN_DECISION_SKIP) cairn_cluster_halts_skipped(job, action->decision);
    if (decision.kind == CAIRN_DECISION_APPLY) cairn_cluster_terms_applied(job);
}

/* ---- to the workers ---- */

static void send_opened(struct cairn_cluster_job *job, const struct cairn_round_action *action)
{
    struct cairn_cluster_member *member = cairn_cluster_job_member(job, action->member);
    uint32_t frozen[CAIRN_SPEC_GROUPS_MAX];
    if (member == NULL) return;
    uint32_t *request = action->write ? &member->write.request : &member->begin_request;
    member->opened_round = action->round;
    if (!action->write)
        member->times.micros = cairn_batch_count(
            &(struct cairn_batch) { job->spec.global_batch, action->rank, action->world });
    if (*request == 0) return; // it asks again after a reconnect
    Cairn__RoundOpened opened = CAIRN__ROUND_OPENED__INIT;
    opened.job = job->id;
    opened.epoch = action->epoch;
    opened.round = action->round;
    opened.generation = action->version.generation;
    opened.step = action->version.step;
    opened.rank = action->rank;
    opened.world = action->world;
    opened.loss_scale = action->loss_scale;
    opened.skips = action->skips;
    opened.micro_batches = job->spec.micro_batches;
    opened.revision = cairn_round_terms_of(job->core)->revision;
    opened.clip_norm = cairn_round_terms_of(job->core)->clip_norm;
    opened.frozen = frozen;
    opened.n_frozen = list_frozen(job, frozen);
    opened.frozen_tensors = cairn_cluster_terms_in_force(job)->frozen_tensors;
    opened.n_frozen_tensors = cairn_cluster_terms_in_force(job)->frozen_tensor_count;
    cairn_cluster_session_send(member->session, CAIRN_MSG_ROUND_OPENED, *request, &opened.base);
    *request = 0;
}

static void refuse_begin(struct cairn_cluster_job *job, const struct cairn_round_action *action)
{
    struct cairn_cluster_member *member = cairn_cluster_job_member(job, action->member);
    struct cairn_sentence text;
    if (member == NULL || member->begin_request == 0) return; // it asks again after a reconnect
    cairn_cluster_halts_why(job, &text);
    cairn_cluster_session_error(member->session, member->begin_request, CAIRN_ERR_HALTED,
                                text.text);
    member->begin_request = 0;
}

/* It made the version that there is, so that what the shards say of theirs is of it. */
static bool made_newest(const struct cairn_cluster_job *job,
                        const struct cairn_round_action *action)
{
    return action->decision->kind == CAIRN_DECISION_APPLY &&
           cairn_version_compare(action->version, cairn_round_version(job->core)) == 0;
}

/* Says which gradients were not finite, for a round that they ended. */
static void fill_gradients(const struct cairn_cluster_job *job,
                           const struct cairn_round_action *action, Cairn__RoundResult *result,
                           struct cairn_sentence *text, char tensors[static CAIRN_RESULTS_BYTES])
{
    const struct cairn_results gradients = cairn_cluster_halts_gradients(job, action->round);
    cairn_results_list(&gradients, &job->spec, tensors);
    result->nonfinite = gradients.nonfinite;
    result->nonfinite_tensors = tensors;
    if (action->status != CAIRN_ERR_NONFINITE) return;
    cairn_results_gradient(&gradients, &job->spec, text);
    cairn_sentence_set(
        text,
        "round %" PRIu64
        ": %s and the job's policy is to fail; nothing was applied; to find the worker, look at "
        "the loss of each, and at its gradients before they are pushed",
        action->round, text->text);
}

static void fill_result(const struct cairn_cluster_job *job,
                        const struct cairn_round_action *action, Cairn__RoundResult *result,
                        struct cairn_sentence *text, char tensors[static CAIRN_RESULTS_BYTES])
{
    struct cairn_payload head = { .clip_scale = 1 };
    const struct cairn_decision *decision = action->decision;
    text->text[0] = '\0';
    result->job = job->id;
    result->round = action->round;
    result->status = (int32_t)action->status;
    result->generation = action->version.generation;
    result->step = action->version.step;
    result->text = text->text;
    if (action->why != NULL) {
        cairn_sentence_set(text, "round %" PRIu64 ": %s; the job is at step %" PRIu64 " now",
                           action->round, action->why, action->version.step);
        return;
    }
    if (action->status == CAIRN_ERR_EPOCH_CHANGED) {
        cairn_sentence_set(text, "round %" PRIu64 " is void: %s; recompute the step", action->round,
                           job->rounds.epoch_why.text);
        return;
    }
    if (decision == NULL || decision->payload_bytes == 0) return;
    if (cairn_payload_decode(decision->payload, decision->payload_bytes, &head) != CAIRN_OK) return;
    result->applied = decision->kind != CAIRN_DECISION_SKIP;
    result->finite = head.finite;
    result->grad_norm = head.grad_norm;
    result->clip_scale = head.clip_scale;
    result->lr = head.lr;
    result->skips = head.skips.all;
    if (made_newest(job, action)) {
        result->nonfinite = cairn_cluster_halts_nonfinite(job, tensors);
        result->nonfinite_tensors = tensors;
    }
    if (!head.finite) fill_gradients(job, action, result, text, tensors);
}

static void send_result(struct cairn_cluster_job *job, const struct cairn_round_action *action)
{
    struct cairn_cluster_member *member = cairn_cluster_job_member(job, action->member);
    if (member == NULL) return;
    if (action->status != CAIRN_ERR_EPOCH_CHANGED) cairn_cluster_relapse_over(member);
    Cairn__RoundResult result = CAIRN__ROUND_RESULT__INIT;
    struct cairn_sentence text;
    char tensors[CAIRN_RESULTS_BYTES];
    fill_result(job, action, &result, &text, tensors);
    if (cairn_cluster_commits_answer(member, &result)) return;
    if (action->status != CAIRN_ERR_EPOCH_CHANGED) return; // nobody asked: it asks again
    cairn_cluster_session_send(member->session, CAIRN_MSG_ROUND_RESULT, 0, &result.base);
}

static const char *name_of_rank(const struct cairn_cluster_job *job,
                                const struct cairn_cluster_member *other)
{
    for (const struct cairn_cluster_member *m = job->members.list; m != NULL; m = m->next_of_job) {
        const bool worker = m->role == CAIRN_ROLE_WIRE_WORKER;
        if (m != other && worker && m->rank == other->rank && m->phase == CAIRN_MEMBER_ATTACHED) {
            return m->session->name;
        }
    }
    return "another worker";
}

/* Why a worker is dropped at the step's deadline. */
static void say_late(const struct cairn_cluster_job *job, const struct cairn_round_action *action,
                     struct cairn_sentence *out)
{
    if (action->world == 0) {
        cairn_sentence_set(out, "round %" PRIu64 " was not ended", action->round);
    } else {
        cairn_sentence_set(out, "shard %s", job->shards[action->shard].seat->name);
        if (action->world > 1) cairn_sentence_add(out, " and %" PRIu32 " more", action->world - 1);
        cairn_sentence_add(out, " did not get all that it contributes to round %" PRIu64,
                           action->round);
    }
    cairn_sentence_add(
        out, " within round.step_deadline (%" PRId64 " ms); close the job and open it again",
        job->cluster->options->step_deadline_ms);
}

/* Whoever is to blame, no worker is: the round goes on. */
static void say_late_shard(const struct cairn_cluster_job *job,
                           const struct cairn_round_action *action)
{
    cairn_log_warn("job %s: shard %s holds round %" PRIu64
                   " up: after round.step_deadline (%" PRId64 " ms) it lacks something of %" PRIu32
                   " workers, of which the other shards have all; look at it, and at its network",
                   job->spec.name, job->shards[action->shard].seat->name, action->round,
                   job->cluster->options->step_deadline_ms, action->world);
}

static void ask_lacks(struct cairn_cluster_job *job, const struct cairn_round_action *action)
{
    Cairn__LacksGet get = CAIRN__LACKS_GET__INIT;
    get.job = job->id;
    get.epoch = action->epoch;
    get.round = action->round;
    cairn_cluster_job_send_all(job, CAIRN_MSG_LACKS_GET, &get.base);
}

static void fence_worker(struct cairn_cluster_job *job, const struct cairn_round_action *action)
{
    struct cairn_cluster_member *member = cairn_cluster_job_member(job, action->member);
    struct cairn_sentence text;
    if (member == NULL) return;
    cairn_status status = CAIRN_ERR_FENCED;
    if (action->status == CAIRN_ERR_TIMEOUT) { // nobody has its place: it may come again
        status = CAIRN_ERR_REOPEN;
        say_late(job, action, &text);
        cairn_sentence_set(&job->rounds.epoch_reason,
                           "worker %s (rank %" PRIu32 ") was put out: %s", member->session->name,
                           member->rank, text.text);
        job->rounds.put_out = job->rounds.epoch_reason;
        cairn_cluster_halts_lost(job, member, text.text);
    } else if (action->status == CAIRN_ERR_BUSY) {
        status = CAIRN_ERR_BUSY;
        cairn_sentence_set(&text, "job %s has round.workers_max workers (%" PRId64 ")",
                           job->spec.name, job->cluster->options->workers_max);
    } else {
        const char *newer = name_of_rank(job, member);
        cairn_sentence_set(
            &text,
            "this worker lost its place: %s attached as rank %" PRIu32
            " of job %s, too; end this one, or if both are to work, give each a rank of its own",
            newer, member->rank, job->spec.name);
        cairn_sentence_set(&job->rounds.epoch_reason, "%s took the place of %s (rank %" PRIu32 ")",
                           newer, member->session->name, member->rank);
    }
    cairn_cluster_member_expel(member, status, text.text);
}

/* ---- one event ---- */

static void act(struct cairn_cluster_job *job, const struct cairn_round_action *action)
{
    switch (action->kind) {
    case CAIRN_ROUND_PERSIST: break; // the core's own
    case CAIRN_ROUND_FENCE: send_fence(job, action); break;
    case CAIRN_ROUND_RESOLVE: send_resolve(job, action); break;
    case CAIRN_ROUND_OPEN_SEND: send_open(job, action); break;
    case CAIRN_ROUND_DECIDE: send_decide(job, action); break;
    case CAIRN_ROUND_PIN_SEND:
        cairn_cluster_cut_on_pin(job, action->snapshot, action->version);
        break;
    case CAIRN_ROUND_ASK_LACKS: ask_lacks(job, action); break;
    case CAIRN_ROUND_SHARD_LATE: say_late_shard(job, action); break;
    case CAIRN_ROUND_WORKER_OPENED: send_opened(job, action); break;
    case CAIRN_ROUND_WORKER_RESULT: send_result(job, action); break;
    case CAIRN_ROUND_WORKER_FENCE: fence_worker(job, action); break;
    case CAIRN_ROUND_WORKER_REFUSED: refuse_begin(job, action); break;
    case CAIRN_ROUND_BEHIND:
        cairn_cluster_job_behind(job, "shard", job->shards[action->shard].seat->name, "epoch");
        break;
    case CAIRN_ROUND_FAIL:
        cairn_cluster_job_lose(job, false, "%s: %s", job->shards[action->shard].seat->name,
                               action->why);
        break;
    }
}

static void after(struct cairn_cluster_job *job)
{
    if (job->tiles.changed) cairn_cluster_tiles_advance(job);
    if (!job->rounds.heard && cairn_round_stage_of(job->core) >= CAIRN_ROUND_STEADY) {
        job->rounds.heard = true;
        job->version_unknown = false;
        cairn_cluster_members_attach(job);
    }
    cairn_cluster_halts_advance(job);
    cairn_cluster_members_answer_states(job);
    cairn_cluster_members_tell_version(job);
    cairn_cluster_leases_advance(job);
    cairn_cluster_extend_advance(job);
    cairn_cluster_park_advance(job);
    if (cairn_cluster_pace_advance(job)) {
        cairn_cluster_reshard_note_step(job);
        cairn_cluster_cost_note_step(job);
        cairn_cluster_cut_resume(job, false);
    }
    cairn_cluster_reshard_advance(job);
    cairn_cluster_periodic_advance(job);
}

cairn_status cairn_cluster_job_core_open(struct cairn_cluster_job *job, struct cairn_sentence *why)
{
    static const struct cairn_cluster_hands hands = { .act = act,
                                                      .in_force = cairn_cluster_slice_in_force,
                                                      .after = after };
    // A layout of a former coordinator's: nobody has said here that all have what they own in it.
    const bool unsettled = job->version_unknown && job->layouts.at.generation != 0;
    if (cairn_cluster_reshard_open(job, unsettled) != CAIRN_OK)
        return cairn_fail(why, CAIRN_ERR_NO_MEMORY, "the coordinator is out of memory");
    return cairn_cluster_core_open(job, &hands, why);
}
