#include "server/core/round_state.h"

#include <inttypes.h>
#include <assert.h>
#include <string.h>

#include "proto/base/mutant.h"

/* ==== round epoch ==== */

/* Every change of epoch takes these four steps: make the number of the epoch durable, fence the shards,
 * collect what each shard knows, and send the newest outcome to all shards. None of these steps uses what
 * this incarnation remembers of a round, so a new incarnation finds the same outcome. */

void round_epoch_begin(struct round_machine *core, struct round_actions *actions)
{
    assert(!core->epoch.persisting);
    if (round_layout_due(core)) round_layout_take(core);
    core->epoch.number++;
    core->numbers.end = core->numbers.next + CAIRN_ROUND_BLOCK;
    core->epoch.needed = false;
    core->epoch.members_changed = false;
    core->epoch.persisting = true;
    core->stage = CAIRN_ROUND_WAITING;
    struct round_action *action = round_act(actions, CAIRN_ROUND_PERSIST);
    action->epoch = core->epoch.number;
    action->round_reserved = core->numbers.end;
    const bool carries = core->layout.taken;
    action->layout = carries && !MUTANT(64) ? core->layout.next.number : core->config.layout;
    const bool since_now = carries && !core->layout.next.back && !MUTANT(77);
    action->version = since_now ? core->version : core->config.layout_at;
}

void round_on_persisted(struct round_machine *core, const struct round_event *event,
                        struct round_actions *actions)
{
    if (!core->epoch.persisting || event->epoch != core->epoch.number) return;
    core->epoch.persisting = false;
    if (core->layout.taken) round_layout_enter(core);
    // a shard or a contributor went away meanwhile, so another epoch is needed
    if (core->epoch.needed) return;
    core->stage = CAIRN_ROUND_FENCING;
    for (uint32_t s = 0; s < core->config.shard_count; s++) {
        core->shards[s].answered = false;
        core->shards[s].published = false;
    }
    core->last.kind = CAIRN_DECISION_NONE;
    core->last.round = 0;
    core->last.payload_bytes = 0;
    struct round_action *action = round_act(actions, CAIRN_ROUND_FENCE);
    action->epoch = core->epoch.number;
    action->layout = core->config.layout;
}

static bool first_answer(const struct round_machine *core)
{
    for (uint32_t s = 0; s < core->config.shard_count; s++)
        if (core->shards[s].answered && !core->shards[s].joins) return false;
    return true;
}

static void keep(struct round_machine *core, const struct decision *decision)
{
    core->last = *decision;
    core->last.payload = core->payload.bytes;
    if (decision->payload_bytes > 0)
        memcpy(core->payload.bytes, decision->payload, decision->payload_bytes);
}

void round_on_answer(struct round_machine *core, const struct round_event *event,
                     struct round_actions *actions)
{
    if (core->stage != CAIRN_ROUND_FENCING) return;
    if (event->refused && event->epoch >= core->epoch.number) {
        core->stage = CAIRN_ROUND_FAILED;
        struct round_action *action = round_act(actions, CAIRN_ROUND_BEHIND);
        action->shard = event->shard;
        action->epoch = event->epoch;
        return;
    }
    if (event->refused || event->epoch != core->epoch.number) return;
    struct shard *shard = &core->shards[event->shard];
    if (shard->answered) return;
    if (event->decision->payload_bytes > core->payload.bytes_max) {
        round_fail(core, event->shard, "its last decision is of a job with more groups", actions);
        return;
    }
    shard->joins = event->phase == CAIRN_STEP_JOINING;
    const bool newer = event->decision->round > core->last.round && !MUTANT(4);
    if (!shard->joins && (first_answer(core) || newer)) keep(core, event->decision);
    shard->answered = true;
    shard->prepared = event->phase == CAIRN_STEP_REDUCED ? event->round : 0;
    shard->last_round = event->decision->round;
    shard->version = event->version;
}

/* Returns NULL if the shard can take over the outcome; otherwise says why it cannot. */
static const char *judge_answer(const struct round_machine *core, const struct shard *shard)
{
    const struct decision *last = &core->last;
    const bool has_it = shard->last_round == last->round;
    if (shard->joins && !MUTANT(75)) return NULL;
    if (!has_it && shard->prepared != last->round && !MUTANT(4))
        return "it knows nothing of a round that another shard has applied";
    if (last->round != 0 || !core->ready) return NULL;
    const bool same = version_compare(shard->version, last->version_after) == 0;
    return same ? NULL : "its version differs from the other shards'";
}

/* Takes the learning rates of driven groups from the payload; from the spec, if the payload has none. */
static cairn_status take_driven(struct round_machine *core, const struct payload *head)
{
    const uint32_t count = head != NULL && !MUTANT(50) ? head->driven_count : 0;
    if (count != 0 && count != core->config.group_count) return CAIRN_ERR_MALFORMED;
    for (uint32_t g = 0; g < core->config.group_count; g++)
        core->driven.rates[g] = count > 0 ? payload_driven(core->last.payload, head, g)
                                          : core->config.terms.groups[g].lr;
    return CAIRN_OK;
}

/* Takes over the part of the job's state that exists only in the last payload. (The client state stays in
 * the payload.) */
static cairn_status take_job_state(struct round_machine *core)
{
    core->scaling.scale = core->config.scaling.start;
    core->scaling.good_rounds = 0;
    round_take_skips(core, NULL);
    if (core->last.payload_bytes == 0 || MUTANT(15)) {
        const cairn_status none = round_missed_take(core, NULL);
        return none == CAIRN_OK ? take_driven(core, NULL) : none;
    }
    struct payload head;
    CAIRN_TRY(payload_decode(core->last.payload, core->last.payload_bytes, &head));
    if (head.state_bytes > core->config.client_state_max) return CAIRN_ERR_MALFORMED;
    core->scaling.scale = head.loss_scale;
    core->scaling.good_rounds = head.good_rounds;
    round_take_skips(core, &head.skips);
    const cairn_status taken = round_missed_take(core, &head);
    return taken == CAIRN_OK ? take_driven(core, &head) : taken;
}

void round_resolve(struct round_machine *core, struct round_actions *actions)
{
    for (uint32_t s = 0; s < core->config.shard_count; s++) {
        if (core->shards[s].gone) continue;
        const char *why = judge_answer(core, &core->shards[s]);
        if (why == NULL) why = round_layout_judge(core);
        if (why == NULL) continue;
        round_fail(core, s, why, actions);
        return;
    }
    core->layout.went_back = false;
    if (take_job_state(core) != CAIRN_OK) {
        round_fail(core, 0, "the payload of the last decision is malformed", actions);
        return;
    }
    core->stage = CAIRN_ROUND_RESOLVING;
    struct round_action *action = round_act(actions, CAIRN_ROUND_RESOLVE);
    action->epoch = core->epoch.number;
    action->round = core->numbers.next - 1;
    action->decision = &core->last;
}

/* ==== round loss ==== */

/* Reacts to the loss of a worker as the job's on_worker_loss says. (If the worker contributes to the open
 * round, the round is void in any case.) A new incarnation does not know about losses: it knows only the
 * workers that connect to it. */

/* Called before a worker is removed. When the last worker leaves, the failure no longer counts, because
 * workers that join later were started after the failure, to continue the job. */
static void note_last(struct round_machine *core)
{
    if (core->worker_count == 1) core->losses.failed = false;
}

/* Notes that a worker was lost. If another worker is lost during the wait, the job still waits for as many
 * workers as before the first loss. */
void round_note_lost(struct round_machine *core)
{
    const struct round_terms *terms = &core->terms_newest;
    struct losses *losses = &core->losses;
    if (terms->on_worker_loss == CAIRN_WORKER_LOSS_FAIL) losses->failed = true;
    note_last(core);
    if (terms->on_worker_loss != CAIRN_WORKER_LOSS_WAIT) return;
    if (core->worker_count > losses->world) losses->world = core->worker_count;
    losses->until_ms = core->now_ms + terms->worker_loss_wait_ms;
}

/* Notes that a worker left. Nobody waits for this worker. If it was the last one, nobody waits for lost
 * workers either, because the run has ended. */
void round_note_left(struct round_machine *core)
{
    struct losses *losses = &core->losses;
    note_last(core);
    if (losses->world > 0) losses->world--;
    if (core->worker_count == 1) losses->world = 0;
}

void round_end_losses(struct round_machine *core)
{
    struct losses *losses = &core->losses;
    if (core->worker_count >= losses->world || core->now_ms >= losses->until_ms) losses->world = 0;
}

bool round_waits_for_lost(const struct round_machine *core)
{
    return core->worker_count < core->losses.world && !MUTANT(59);
}

bool round_halted_of_loss(const struct round_machine *core)
{
    return core->losses.failed;
}

void round_say_lost(const struct round_machine *core, struct sentence *out)
{
    const uint32_t world = core->losses.world, missing = world - core->worker_count;
    sentence_set(out,
                 "%u more worker%s (%u of %u attached since a loss; without %s in %" PRIu64 " s): "
                 "start %s, or amend "
                 "the job (`cairn job amend JOB --on-worker-loss redo`)",
                 (unsigned)missing, missing == 1 ? "" : "s", (unsigned)core->worker_count,
                 (unsigned)world, missing == 1 ? "it" : "them",
                 (core->losses.until_ms - core->now_ms + 999) / 1000, missing == 1 ? "it" : "them");
}

/* ==== round ends ==== */

/* Tells workers how a round ended, and keeps the outcome for workers that ask late. A worker may ask late
 * because one of its threads slept while another wrote, or because its connection was lost for a time.
 * Meanwhile there may be other rounds. So the ends of the last step and the last write in which a worker
 * had a part are kept, even while the worker is away. */

/* ---- what is kept ---- */

/* Copies `last` as an end, but leaves out the groups, their learning rates, the missed steps and the client
 * state, because nobody asks for these. */
static void take_end(const struct round_machine *core, struct end *end)
{
    struct payload head;
    end->decision = core->last;
    end->decision.payload = NULL;
    end->decision.payload_bytes = 0;
    if (core->last.payload_bytes == 0) return;
    const cairn_status status = payload_decode(core->last.payload, core->last.payload_bytes, &head);
    // a payload that cannot be decoded is of no use for an answer
    if (status != CAIRN_OK) return;
    head.group_count = head.driven_count = 0;
    head.missed = (struct missed) { .bytes = NULL };
    head.state_bytes = 0;
    end->decision.payload_bytes = payload_encode(&head, NULL, end->head);
}

/* Notes the end of the round for contributors that left before. Until now it was not known how the round
 * ends. */
static void note_absent(struct round_machine *core, uint64_t round, int kind, const struct end *end)
{
    if (!core->open.absent_contribute) return;
    core->open.absent_contribute = false;
    for (uint32_t i = 0; i < core->config.member_max; i++) {
        struct absent *absent = &core->absent[i];
        if (absent->id == 0 || absent->round != round) continue;
        absent->round = 0;
        if (end != NULL) absent->ends[kind] = *end;
    }
}

void round_note_end(struct round_machine *core, uint64_t round)
{
    struct end end;
    const int kind = core->last.kind == CAIRN_DECISION_WRITE ? END_OF_WRITE : END_OF_STEP;
    const bool ended = round != 0 && core->last.round == round;
    if (round == 0) {
        if (core->last.round > core->inherited.decision.round) take_end(core, &core->inherited);
        return;
    }
    if (ended) take_end(core, &end);
    for (uint32_t i = 0; ended && i < core->worker_count; i++)
        if (core->workers[i].contributor || core->workers[i].surplus)
            core->workers[i].ends[kind] = end;
    note_absent(core, round, kind, ended ? &end : NULL);
}

static struct absent *find_absent(struct round_machine *core, uint64_t id)
{
    for (uint32_t i = 0; i < core->config.member_max; i++)
        if (core->absent[i].id == id) return &core->absent[i];
    return NULL;
}

/* Returns a free place, or the place of the worker that left first. */
static struct absent *make_place(struct round_machine *core, uint64_t id)
{
    struct absent *place = find_absent(core, 0);
    if (place == NULL) {
        place = &core->absent[0];
        for (uint32_t i = 1; i < core->config.member_max; i++)
            if (core->absent[i].since < place->since) place = &core->absent[i];
    }
    *place = (struct absent) { .id = id };
    return place;
}

void round_keep_ends(struct round_machine *core, const struct worker *worker)
{
    const bool has_none = worker->ends[END_OF_STEP].decision.round == 0 &&
                          worker->ends[END_OF_WRITE].decision.round == 0;
    const bool told = worker->contributor || worker->surplus;
    if (has_none && !told) return;
    struct absent *place = find_absent(core, worker->id);
    if (place == NULL) place = make_place(core, worker->id);
    place->since = ++core->left;
    if (told) {
        place->round = core->open.number;
        core->open.absent_contribute = true;
    }
    for (int i = 0; i < ENDS; i++)
        if (worker->ends[i].decision.round > place->ends[i].decision.round)
            place->ends[i] = worker->ends[i];
}

/* Returns the decision with which the round ended; NULL if the round was void, or if its end is no longer
 * known. */
static const struct decision *find_end(struct round_machine *core, struct worker *worker,
                                       uint64_t round)
{
    struct absent *absent = find_absent(core, worker->id);
    struct end *const ends[] = { &core->inherited, &worker->ends[END_OF_STEP],
                                 &worker->ends[END_OF_WRITE],
                                 absent != NULL ? &absent->ends[END_OF_STEP] : NULL,
                                 absent != NULL ? &absent->ends[END_OF_WRITE] : NULL };
    if (round == core->last.round) return &core->last;
    for (size_t i = 0; i < sizeof ends / sizeof *ends && !MUTANT(37); i++) {
        if (ends[i] == NULL || ends[i]->decision.round != round) continue;
        if (ends[i]->decision.payload_bytes > 0) ends[i]->decision.payload = ends[i]->head;
        return &ends[i]->decision;
    }
    return NULL;
}

/* ---- who asks ---- */

static void send_result(const struct round_machine *core, uint64_t member, uint64_t round,
                        const struct decision *decision, struct round_actions *actions)
{
    struct payload head = { .fail = false };
    struct round_action *action = round_act(actions, CAIRN_ROUND_WORKER_RESULT);
    action->member = member;
    action->round = round;
    action->decision = decision;
    if (decision == NULL) {
        action->status = CAIRN_ERR_EPOCH_CHANGED;
        action->version = core->version;
        if (round < core->last.round)
            action->why = "the round is over; how it ended is no longer known";
        return;
    }
    if (payload_decode(decision->payload, decision->payload_bytes, &head) != CAIRN_OK)
        head.fail = false;
    action->status = head.fail ? CAIRN_ERR_NONFINITE : CAIRN_OK;
    action->version = decision->version_after;
}

void round_send_void(const struct round_machine *core, uint64_t member, uint64_t round,
                     struct round_actions *actions)
{
    send_result(core, member, round, NULL, actions);
}

/* True if the core can say now how the round ended. In STEADY and OPEN `last` is resolved, so every round
 * except the open one has ended. */
static bool end_known(const struct round_machine *core, uint64_t round)
{
    const bool resolved = core->stage == CAIRN_ROUND_STEADY || core->stage == CAIRN_ROUND_OPEN;
    return resolved && round != core->open.number;
}

void round_answer_asked(struct round_machine *core, struct worker *worker,
                        struct round_actions *actions)
{
    for (int i = 0; i < ENDS_ASKED_MAX; i++) {
        const uint64_t round = worker->asked[i];
        if (round == 0 || !end_known(core, round)) continue;
        worker->asked[i] = 0;
        send_result(core, worker->id, round, find_end(core, worker, round), actions);
    }
}

bool round_has_asked(const struct worker *worker, uint64_t round)
{
    for (int i = 0; i < ENDS_ASKED_MAX; i++)
        if (worker->asked[i] == round) return true;
    return false;
}

/* Notes that the worker asks about the round; its other threads may be asking about other rounds. If there
 * are too many requests, the request about the oldest round gets no answer. */
void round_note_asked(struct worker *worker, uint64_t round)
{
    uint64_t *place = &worker->asked[0];
    if (round_has_asked(worker, round)) return;
    for (int i = 1; i < ENDS_ASKED_MAX; i++)
        if (worker->asked[i] < *place) place = &worker->asked[i];
    *place = round;
}
