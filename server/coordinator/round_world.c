/* The world of a job's core: tells it what happens, does what it says, in its order. */
#include <assert.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "server/base/log.h"
#include "server/coordinator/cluster.h"
#include "server/coordinator/cuts.h"
#include "server/coordinator/groups.h"
#include "server/coordinator/leases.h"
#include "server/coordinator/saves.h"
#include "server/coordinator/standing.h"

void cairn_cluster_decision_to_message(const struct cairn_decision *decision, Cairn__Decision *out)
{
    cairn__decision__init(out);
    if (decision == NULL) return;
    out->kind = decision->kind;
    out->round = decision->round;
    out->generation = decision->version_after.generation;
    out->step = decision->version_after.step;
    out->payload.data = (uint8_t *)(uintptr_t)decision->payload;
    out->payload.len = decision->payload_bytes;
}

cairn_status cairn_cluster_decision_of_message(const Cairn__Decision *message,
                                               struct cairn_decision *out)
{
    struct cairn_payload head;
    if (message->kind > CAIRN_DECISION_WRITE) return CAIRN_ERR_MALFORMED;
    if (message->payload.len > 0 &&
        cairn_payload_decode(message->payload.data, message->payload.len, &head) != CAIRN_OK) {
        return CAIRN_ERR_MALFORMED;
    }
    *out = (struct cairn_decision) { .kind = (enum cairn_decision_kind)message->kind,
                                     .round = message->round,
                                     .version_after = { message->generation, message->step },
                                     .payload = message->payload.data,
                                     .payload_bytes = message->payload.len };
    return CAIRN_OK;
}

/* ---- a core ---- */

static struct cairn_round_config core_config(const struct cairn_cluster_job *job)
{
    const struct cairn_cluster_options *options = job->cluster->options;
    const struct cairn_job_spec_data *spec = &job->spec;
    return (struct cairn_round_config) {
        .shard_count = job->layout->shard_count,
        .member_max = (uint32_t)options->workers_max,
        .step_deadline_ms = (uint64_t)options->step_deadline_ms,
        .terms = job->terms->core,
        .group_count = (uint32_t)spec->group_count,
        .client_state_max = spec->client_state_max,
        .scaling = { .start = spec->loss_scale,
                     .dynamic = spec->loss_scale_policy == CAIRN_LOSS_SCALE_DYNAMIC,
                     .min = spec->loss_scale_min,
                     .max = spec->loss_scale_max,
                     .growth_rounds = spec->loss_scale_growth_steps },
        .fail_nonfinite = spec->on_nonfinite == CAIRN_NONFINITE_FAIL,
        .skips_max = spec->skips_max,
        .epoch = job->epoch,
        .round_reserved = job->round_reserved,
    };
}

/* Shards that took their part and are still the same process. */
static void announce_shards(struct cairn_cluster_job *job)
{
    for (uint32_t i = 0; i < job->layout->shard_count; i++) {
        struct cairn_cluster_job_shard *s = &job->shards[i];
        if (s->incarnation == 0 || s->seat->session == NULL) continue;
        if (s->seat->incarnation != s->incarnation) continue;
        s->up = true;
        (void)cairn_cluster_job_shard_moved(s);
        const struct cairn_round_event up = { .kind = CAIRN_ROUND_SHARD_UP, .shard = i };
        cairn_cluster_job_event(job, &up);
    }
}

cairn_status cairn_cluster_job_core_open(struct cairn_cluster_job *job, struct cairn_sentence *why)
{
    cairn_status status = cairn_cluster_terms_make(&job->spec, &job->terms, why);
    if (status != CAIRN_OK) return status;
    const struct cairn_round_config config = core_config(job);
    const size_t bytes = cairn_round_bytes(&config);
    if (bytes == 0) {
        return cairn_fail(
            why, CAIRN_ERR_INVALID,
            "job %s: workers_min %" PRIu32 " does not go with round.workers_max %" PRId64,
            job->spec.name, job->spec.workers_min, job->cluster->options->workers_max);
    }
    job->actions.capacity = cairn_round_actions_max(&config);
    job->actions.list = calloc(job->actions.capacity, sizeof *job->actions.list);
    job->core_memory = malloc(bytes);
    if (job->actions.list == NULL || job->core_memory == NULL) {
        return cairn_fail(why, CAIRN_ERR_NO_MEMORY, "no memory for the rounds of job %s",
                          job->spec.name);
    }
    job->core = cairn_round_init(job->core_memory, &config);
    job->heard = false;
    // The core's clock starts here: a deadline set before its first tick would have passed at once.
    cairn_cluster_job_tick(job, cairn_cluster_now_ms(job->cluster));
    if (job->initialized) {
        const struct cairn_round_event ready = { .kind = CAIRN_ROUND_READY,
                                                 .version = { job->generation, job->base_step } };
        cairn_cluster_job_event(job, &ready);
    }
    announce_shards(job);
    return CAIRN_OK;
}

void cairn_cluster_job_core_close(struct cairn_cluster_job *job)
{
    job->core = NULL;
    free(job->core_memory);
    free(job->actions.list);
    cairn_cluster_terms_free(job->terms);
    job->core_memory = NULL;
    job->actions.list = NULL;
    job->terms = NULL;
}

/* ---- to the shards ---- */

void cairn_cluster_job_send_all(struct cairn_cluster_job *job, uint16_t type,
                                const ProtobufCMessage *message)
{
    for (uint32_t i = 0; i < job->layout->shard_count; i++) {
        if (job->shards[i].up)
            cairn_cluster_session_send(job->shards[i].seat->session, type, 0, message);
    }
}

static void send_fence(struct cairn_cluster_job *job, const struct cairn_round_action *action)
{
    Cairn__Fence fence = CAIRN__FENCE__INIT;
    fence.job = job->id;
    fence.epoch = action->epoch;
    cairn_log_info("job %s: epoch %" PRIu64 ", because %s", job->spec.name, action->epoch,
                   job->epoch_reason.text[0] != '\0' ? job->epoch_reason.text : "the job begins");
    cairn_cluster_job_send_all(job, CAIRN_MSG_FENCE, &fence.base);
}

static void send_resolve(struct cairn_cluster_job *job, const struct cairn_round_action *action)
{
    Cairn__Decision decision;
    Cairn__Resolve resolve = CAIRN__RESOLVE__INIT;
    cairn_cluster_decision_to_message(action->decision, &decision);
    resolve.job = job->id;
    resolve.epoch = action->epoch;
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
    cairn_log_debug("job %s: round %" PRIu64 " of step %" PRIu64 " open for %" PRIu32 " workers",
                    job->spec.name, action->round, action->version.step, action->member_count);
    if (action->write ||
        !cairn_cluster_groups_open(job, action->round, action->members, action->member_count)) {
        cairn_cluster_job_send_all(job, CAIRN_MSG_ROUND_OPEN, &open.base);
        return;
    }
    for (uint32_t i = 0; i < job->layout->shard_count; i++) {
        if (!job->shards[i].up) continue;
        cairn_cluster_groups_fill(job, i, &open);
        cairn_cluster_session_send(job->shards[i].seat->session, CAIRN_MSG_ROUND_OPEN, 0,
                                   &open.base);
    }
}

/* Why no round opens, to whoever asks for one, and to the log. */
static void say_halted(const struct cairn_cluster_job *job, struct cairn_sentence *out)
{
    cairn_sentence_set(out,
                       "job %s is halted at step %" PRIu64 ": %" PRIu32
                       " rounds in a row were skipped, because gradients were not finite, and the "
                       "loss scale is at its least (skips_max is %" PRIu32
                       "); no round opens until it is amended (a lower lr, say), or restored from "
                       "a snapshot",
                       job->spec.name, cairn_round_version(job->core).step,
                       cairn_round_skips(job->core).in_row, job->spec.skips_max);
}

/* Of gradients that are not finite. One that lowers the loss scale is the way things go. */
static void say_skip(struct cairn_cluster_job *job, const struct cairn_decision *skip)
{
    struct cairn_payload head;
    struct cairn_sentence text;
    const cairn_status status = cairn_payload_decode(skip->payload, skip->payload_bytes, &head);
    if (status != CAIRN_OK || head.finite || head.skips.in_row == 0) return;
    if (cairn_round_halted(job->core)) {
        say_halted(job, &text);
        cairn_log_error("%s", text.text);
        return;
    }
    cairn_log_limited(
        &job->skips_said, CAIRN_LOG_WARN,
        "job %s: round %" PRIu64 " of step %" PRIu64
        " is skipped, because a gradient is not finite: %" PRIu32 " in a row, %" PRIu64 " so far",
        job->spec.name, skip->round, skip->version_after.step, head.skips.in_row, head.skips.all);
}

static void send_decide(struct cairn_cluster_job *job, const struct cairn_round_action *action)
{
    Cairn__Decision decision;
    Cairn__Decide decide = CAIRN__DECIDE__INIT;
    cairn_cluster_decision_to_message(action->decision, &decision);
    if (decision.kind == CAIRN_DECISION_APPLY) cairn_cluster_groups_stepped(job);
    decide.job = job->id;
    decide.epoch = action->epoch;
    decide.decision = &decision;
    cairn_log_debug("job %s: round %" PRIu64 " decided: %s", job->spec.name, decision.round,
                    decision.kind == CAIRN_DECISION_APPLY   ? "apply"
                    : decision.kind == CAIRN_DECISION_WRITE ? "write"
                                                            : "skip");
    cairn_cluster_job_send_all(job, CAIRN_MSG_DECIDE, &decide.base);
    if (decision.kind == CAIRN_DECISION_SKIP) say_skip(job, action->decision);
    if (decision.kind == CAIRN_DECISION_APPLY) cairn_cluster_terms_applied(job);
}

/* ---- to the workers ---- */

static void send_opened(struct cairn_cluster_job *job, const struct cairn_round_action *action)
{
    struct cairn_cluster_member *member = cairn_cluster_job_member(job, action->member);
    uint32_t frozen[CAIRN_SPEC_GROUPS_MAX];
    if (member == NULL) return;
    uint32_t *request = action->write ? &member->write_request : &member->begin_request;
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
    say_halted(job, &text);
    cairn_cluster_session_error(member->session, member->begin_request, CAIRN_ERR_HALTED,
                                text.text);
    member->begin_request = 0;
}

static void fill_result(const struct cairn_cluster_job *job,
                        const struct cairn_round_action *action, Cairn__RoundResult *result,
                        struct cairn_sentence *text)
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
                           job->epoch_reason.text[0] != '\0' ? job->epoch_reason.text
                                                             : "the members changed");
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
    if (action->status == CAIRN_ERR_NONFINITE)
        cairn_sentence_set(text,
                           "a gradient of round %" PRIu64
                           " is not finite and the job's policy is to fail; nothing was applied",
                           action->round);
}

static void send_result(struct cairn_cluster_job *job, const struct cairn_round_action *action)
{
    struct cairn_cluster_member *member = cairn_cluster_job_member(job, action->member);
    if (member == NULL) return;
    Cairn__RoundResult result = CAIRN__ROUND_RESULT__INIT;
    struct cairn_sentence text;
    fill_result(job, action, &result, &text);
    if (cairn_cluster_commits_answer(member, &result)) return;
    if (action->status != CAIRN_ERR_EPOCH_CHANGED) return; // nobody asked: it asks again
    cairn_cluster_session_send(member->session, CAIRN_MSG_ROUND_RESULT, 0, &result.base);
}

static const char *name_of_rank(const struct cairn_cluster_job *job,
                                const struct cairn_cluster_member *other)
{
    for (const struct cairn_cluster_member *m = job->members; m != NULL; m = m->next_of_job) {
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
    cairn_sentence_add(out, " within round.step_deadline (%" PRId64 " ms); open the job again",
                       job->cluster->options->step_deadline_ms);
}

/* Whoever is to blame, no worker is: the round goes on. */
static void say_late_shard(const struct cairn_cluster_job *job,
                           const struct cairn_round_action *action)
{
    cairn_log_warn("job %s: shard %s holds round %" PRIu64
                   " up: after round.step_deadline (%" PRId64 " ms) it lacks something of %" PRIu32
                   " workers, of which the other shards have "
                   "all; look at it, and at its network",
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
    if (action->status == CAIRN_ERR_TIMEOUT) {
        say_late(job, action, &text);
        cairn_sentence_set(&job->epoch_reason, "worker %s (rank %" PRIu32 ") was put out: %s",
                           member->session->name, member->rank, text.text);
        job->put_out = job->epoch_reason;
    } else if (action->status == CAIRN_ERR_BUSY) {
        status = CAIRN_ERR_BUSY;
        cairn_sentence_set(&text, "job %s has round.workers_max workers (%" PRId64 ")",
                           job->spec.name, job->cluster->options->workers_max);
    } else {
        const char *newer = name_of_rank(job, member);
        cairn_sentence_set(&text,
                           "this worker lost its place: %s attached as rank %" PRIu32 " of job %s, "
                           "too; end this one, or if both are to work, give each a rank of its own",
                           newer, member->rank, job->spec.name);
        cairn_sentence_set(&job->epoch_reason, "%s took the place of %s (rank %" PRIu32 ")", newer,
                           member->session->name, member->rank);
    }
    cairn_cluster_member_expel(member, status, text.text);
}

/* ---- the disk ---- */

static void persist_again(struct cairn_cluster_job *job, const char *why)
{
    job->persist_failed = true;
    cairn_log_limited(&job->persist_failures, CAIRN_LOG_ERROR,
                      "job %s waits: epoch %" PRIu64 " cannot be stored: %s", job->spec.name,
                      job->epoch, why); // with every tick while the disk is full
}

static void on_persisted(const struct cairn_cluster_saved *saved)
{
    struct cairn_cluster_job *job = cairn_cluster_job_by_id(saved->cluster, saved->job);
    if (job == NULL || job->epoch != saved->number) return; // a later one is on its way
    if (saved->status != CAIRN_OK) {
        persist_again(job, saved->why);
        return;
    }
    job->persist_waits = false;
    const struct cairn_round_event done = { .kind = CAIRN_ROUND_PERSISTED, .epoch = job->epoch };
    cairn_cluster_job_event(job, &done);
}

static void persist(struct cairn_cluster_job *job)
{
    struct cairn_sentence why;
    job->persist_waits = true;
    job->persist_failed = false;
    if (cairn_cluster_save_epoch(job, on_persisted, &why) != CAIRN_OK) persist_again(job, why.text);
}

/* ---- one event ---- */

static void act(struct cairn_cluster_job *job, const struct cairn_round_action *action)
{
    switch (action->kind) {
    case CAIRN_ROUND_PERSIST:
        job->epoch = action->epoch;
        job->round_reserved = action->round_reserved;
        persist(job);
        break;
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
        cairn_cluster_job_behind(job, job->shards[action->shard].seat->name, "epoch");
        break;
    case CAIRN_ROUND_FAIL:
        cairn_cluster_job_lose(job, false, "%s: %s", job->shards[action->shard].seat->name,
                               action->why);
        break;
    }
}

void cairn_cluster_job_event(struct cairn_cluster_job *job, const struct cairn_round_event *event)
{
    if (job->core == NULL || cairn_cluster_job_dead(job)) return;
    assert(!job->in_event);
    job->in_event = true;
    job->actions.count = 0;
    cairn_round_on_event(job->core, event, &job->actions);
    for (size_t i = 0; i < job->actions.count && !cairn_cluster_job_dead(job); i++) {
        act(job, &job->actions.list[i]);
    }
    job->in_event = false;
    if (job->tiles.changed) cairn_cluster_tiles_advance(job);
    if (!job->heard && cairn_round_stage_of(job->core) >= CAIRN_ROUND_STEADY) {
        job->heard = true;
        job->version_unknown = false;
        cairn_cluster_members_attach(job);
    }
    cairn_cluster_members_answer_states(job);
    cairn_cluster_members_tell_version(job);
    cairn_cluster_leases_advance(job);
    cairn_cluster_extend_advance(job);
    cairn_cluster_periodic_advance(job);
}

void cairn_cluster_job_tick(struct cairn_cluster_job *job, uint64_t now_ms)
{
    const struct cairn_round_event tick = { .kind = CAIRN_ROUND_TICK, .now_ms = now_ms };
    cairn_cluster_job_event(job, &tick);
    if (job->core != NULL && !cairn_cluster_job_dead(job) && job->persist_failed) persist(job);
}
