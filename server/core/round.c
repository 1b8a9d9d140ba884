#include "server/core/round.h"

#include <inttypes.h>
#include <assert.h>
#include <string.h>

#include "proto/spec/spec.h"
#include "server/core/holes.h"
#include "proto/base/mutant.h"
#include "server/core/round_state.h"

static void round_layout_init(struct round_machine *core);
static bool round_layout_concerns(const struct round_machine *core, uint32_t shard);
static void round_on_layout(struct round_machine *core, const struct round_event *event);

/* ---- memory ---- */

/* Returns the number of shards for which the core has room. */
static uint32_t shards_of(const struct round_config *config)
{
    return config->shard_max > 0 ? config->shard_max : config->shard_count;
}

static bool config_ok(const struct round_config *config)
{
    const uint32_t shard_max = shards_of(config);
    return config->shard_count >= 1 && config->shard_count <= shard_max && shard_max <= 1u << 24 &&
           config->member_max >= 1 && config->member_max <= 1u << 24 &&
           config->terms.workers_min >= 1 && config->terms.workers_min <= config->member_max &&
           config->group_count <= 1u << 20 && config->tensor_count <= CAIRN_SPEC_TENSORS_MAX &&
           config->client_state_max <= CAIRN_SPEC_CLIENT_STATE_MAX;
}

size_t round_bytes(const struct round_config *config)
{
    if (!config_ok(config)) return 0; // within the limits of config_ok the sum cannot overflow
    return sizeof(struct round_machine) + shards_of(config) * sizeof(struct shard) +
           config->member_max * (sizeof(struct worker) + sizeof(struct absent) + sizeof(uint64_t)) +
           config->group_count * (sizeof(struct group_scalars) + 2 * sizeof(double)) +
           config->tensor_count * 2 * sizeof(uint64_t) + CAIRN_MISSED_BYTES(config->tensor_count) +
           CAIRN_PAYLOAD_MAX(config->group_count, config->tensor_count,
                             2 * (size_t)config->client_state_max);
}

size_t round_actions_max(const struct round_config *config)
{
    // One event gives each worker at most one RESULT without a request, the RESULTs that it asked for, a
    // FENCE, and an OPENED.
    return (3 + ENDS_ASKED_MAX) * (size_t)config->member_max + 16;
}

/* Finds the driven groups. No amendment changes which groups are driven. */
static void find_driven(struct round_machine *core)
{
    const struct round_terms *terms = &core->config.terms;
    for (uint32_t g = 0; g < core->config.group_count; g++) {
        core->driven.rates[g] = terms->groups[g].lr;
        if (terms->schedules != NULL && terms->schedules[g].kind == CAIRN_SCHEDULE_DRIVEN)
            core->driven.count = core->config.group_count;
    }
}

struct round_machine *round_init(void *memory, const struct round_config *config)
{
    assert(config_ok(config));
    struct round_machine *core = memory;
    memset(core, 0, round_bytes(config));
    core->config = *config;
    core->config.shard_max = shards_of(config);
    core->terms_newest = config->terms;
    core->shards = (struct shard *)(core + 1);
    core->workers = (struct worker *)(core->shards + core->config.shard_max);
    core->absent = (struct absent *)(core->workers + config->member_max);
    core->open.contributors = (uint64_t *)(core->absent + config->member_max);
    core->scalars = (struct group_scalars *)(core->open.contributors + config->member_max);
    core->driven.rates = (double *)(core->scalars + config->group_count);
    core->open.driven = core->driven.rates + config->group_count;
    core->missed.steps = (uint64_t *)(core->open.driven + config->group_count);
    core->open.untouched = core->missed.steps + config->tensor_count;
    core->payload.bytes = (uint8_t *)(core->open.untouched + config->tensor_count);
    core->payload.bytes_max = CAIRN_PAYLOAD_MAX(config->group_count, config->tensor_count,
                                                config->client_state_max);
    core->open.state = core->payload.bytes + core->payload.bytes_max;
    core->missed.room = core->open.state + config->client_state_max;
    core->last.payload = core->payload.bytes;
    core->epoch.number = config->epoch;
    core->numbers.next = config->round_reserved > 0 && !MUTANT(6) ? config->round_reserved : 1;
    core->scaling.scale = config->scaling.start;
    core->epoch.needed = true;
    round_layout_init(core);
    find_driven(core);
    return core;
}

struct round_action *round_act(struct round_actions *actions, enum round_action_kind kind)
{
    assert(actions->count < actions->capacity);
    struct round_action *action = &actions->list[actions->count++];
    memset(action, 0, sizeof *action);
    action->kind = kind;
    return action;
}

void round_fail(struct round_machine *core, uint32_t shard, const char *why,
                struct round_actions *actions)
{
    core->stage = CAIRN_ROUND_FAILED;
    struct round_action *action = round_act(actions, CAIRN_ROUND_FAIL);
    action->shard = shard;
    action->why = why;
}

/* ---- workers ---- */

struct worker *round_find_worker(const struct round_machine *core, uint64_t id)
{
    for (uint32_t i = 0; i < core->worker_count; i++)
        if (core->workers[i].id == id) return &core->workers[i];
    return NULL;
}

/* Returns the index of the first worker with this rank or a higher rank. */
static uint32_t rank_place(const struct round_machine *core, uint32_t rank)
{
    uint32_t i = 0;
    while (i < core->worker_count && core->workers[i].rank < rank) i++;
    return i;
}

static void send_fence(uint64_t member, cairn_status status, uint64_t round,
                       struct round_actions *actions)
{
    struct round_action *action = round_act(actions, CAIRN_ROUND_WORKER_FENCE);
    action->member = member;
    action->status = status;
    action->round = round;
}

/* Removes a worker. A round needs all contributors before its decision, but not after it. */
void round_remove_worker(struct round_machine *core, struct worker *worker)
{
    if (worker->contributor && core->stage == CAIRN_ROUND_OPEN) core->epoch.needed = true;
    core->epoch.members_changed = true;
    round_keep_ends(core, worker);
    const size_t index = (size_t)(worker - core->workers);
    core->worker_count--;
    memmove(worker, worker + 1, (core->worker_count - index) * sizeof *worker);
    if (core->worker_count == 0) core->started = false;
}

static void on_worker_join(struct round_machine *core, const struct round_event *event,
                           struct round_actions *actions)
{
    if (round_find_worker(core, event->member) != NULL) return;
    const uint32_t place = rank_place(core, event->rank);
    if (place < core->worker_count && core->workers[place].rank == event->rank) {
        send_fence(core->workers[place].id, CAIRN_ERR_FENCED, core->open.number, actions);
        round_remove_worker(core, &core->workers[place]);
    }
    if (core->worker_count == core->config.member_max) {
        send_fence(event->member, CAIRN_ERR_BUSY, 0, actions);
        return;
    }
    struct worker *worker = &core->workers[place];
    memmove(worker + 1, worker, (core->worker_count - place) * sizeof *worker);
    *worker = (struct worker) { .id = event->member,
                                .rank = event->rank,
                                .launch = event->world,
                                .start_ms = core->now_ms + event->wait_ms };
    core->worker_count++;
    core->epoch.members_changed = true;
    round_end_losses(core);
}

static void on_worker_down(struct round_machine *core, const struct round_event *event)
{
    struct worker *worker = round_find_worker(core, event->member);
    if (worker == NULL) return;
    (event->lost ? round_note_lost : round_note_left)(core);
    round_remove_worker(core, worker);
}

static void send_opened(const struct round_machine *core, struct worker *worker,
                        struct round_actions *actions)
{
    *(core->open.writing ? &worker->writes : &worker->wants) = false;
    struct round_action *action = round_act(actions, CAIRN_ROUND_WORKER_OPENED);
    action->member = worker->id;
    action->epoch = core->epoch.number;
    action->round = core->open.number;
    action->version = core->version;
    action->rank = worker->dense;
    action->world = core->open.world;
    action->loss_scale = core->scaling.scale;
    action->skips = core->skips.all;
    action->write = core->open.writing;
}

static void on_worker_begin(struct round_machine *core, uint64_t member,
                            struct round_actions *actions)
{
    struct worker *worker = round_find_worker(core, member);
    if (worker == NULL) return;
    worker->wants = true;
    // If a contributor asks before its commit, it has not heard of the open round, or the answer was lost.
    const bool open = core->stage == CAIRN_ROUND_OPEN && !core->open.writing;
    const bool idles = worker->surplus && !round_has_asked(worker, core->open.number);
    if (open && ((worker->contributor && !worker->committed) || idles))
        send_opened(core, worker, actions);
}

static void on_worker_write(struct round_machine *core, uint64_t member,
                            struct round_actions *actions)
{
    struct worker *worker = round_find_worker(core, member);
    if (worker == NULL) return;
    worker->writes = true;
    if (core->stage != CAIRN_ROUND_OPEN || !worker->contributor || worker->committed) return;
    if (core->open.writing)
        send_opened(core, worker, actions);
    else
        // the worker waits for its write, and the open round would wait for the worker
        core->epoch.needed = true;
}

static void on_worker_unwrite(struct round_machine *core, const struct round_event *event)
{
    struct worker *worker = round_find_worker(core, event->member);
    const bool open = core->stage == CAIRN_ROUND_OPEN && core->open.writing;
    const bool named = event->round == 0 || event->round == core->open.number;
    if (worker == NULL) return;
    worker->writes = false;
    if (open && named && worker->contributor) core->epoch.needed = true;
}

static void take_driven(struct round_machine *core, const struct round_event *event)
{
    if (core->driven.count == 0 || core->open.writing) return;
    assert(event->commit.driven != NULL);
    memcpy(core->open.driven, event->commit.driven,
           core->driven.count * sizeof *event->commit.driven);
}

/* Takes the state and the rates only from the first COMMIT in a round. A COMMIT that is repeated after a
 * reconnect has the same values. */
static void take_state(struct round_machine *core, const struct worker *worker,
                       const struct round_event *event)
{
    if (MUTANT(51) && !worker->committed) take_driven(core, event);
    if (worker->committed || worker->dense != 0) return;
    take_driven(core, event);
    assert(event->commit.state_bytes <= core->config.client_state_max);
    core->open.state_bytes = event->commit.state_bytes;
    if (event->commit.state_bytes > 0)
        memcpy(core->open.state, event->commit.state, event->commit.state_bytes);
}

static void on_worker_commit(struct round_machine *core, const struct round_event *event,
                             struct round_actions *actions)
{
    struct worker *worker = round_find_worker(core, event->member);
    if (worker == NULL) return;
    round_note_asked(worker, event->round);
    if (worker->contributor && core->stage == CAIRN_ROUND_OPEN &&
        event->round == core->open.number) {
        take_state(core, worker, event);
        worker->committed = true;
    }
    round_answer_asked(core, worker, actions);
}

/* The pushes of the worker cannot be undone, so an open round cannot go on without the worker: a change of
 * epoch makes it void. */
static void on_worker_abandon(struct round_machine *core, const struct round_event *event,
                              struct round_actions *actions)
{
    struct worker *worker = round_find_worker(core, event->member);
    if (worker == NULL) return;
    round_note_asked(worker, event->round);
    const bool open = core->stage == CAIRN_ROUND_OPEN && event->round == core->open.number;
    if (open && worker->contributor) core->epoch.needed = true;
    round_answer_asked(core, worker, actions);
}

/* ---- rounds ---- */

static bool shards_up(const struct round_machine *core)
{
    for (uint32_t s = 0; s < core->config.shard_count; s++)
        if ((!core->shards[s].gone || MUTANT(65)) && !core->shards[s].up) return false;
    return true;
}

static void count_end(struct round_machine *core, bool ended)
{
    if (core->open.number == 0) return;
    core->counts.abandoned += !ended;
    core->counts.applied += ended && core->last.kind == CAIRN_DECISION_APPLY;
    core->counts.skipped += ended && core->last.kind == CAIRN_DECISION_SKIP;
}

/* If a round is open, ends it: with `last` if `last` belongs to the round, and otherwise as void. Answers
 * the workers that asked, and changes to STEADY. */
static void finish_round(struct round_machine *core, struct round_actions *actions)
{
    const uint64_t round = core->open.number;
    const bool ended = round != 0 && core->last.round == round;
    count_end(core, ended);
    core->stage = CAIRN_ROUND_STEADY;
    core->open.number = 0;
    core->open.writing = false;
    core->open.deadline_ms = 0;
    core->version = core->last.version_after;
    round_note_end(core, round);
    for (uint32_t i = 0; i < core->worker_count; i++) {
        struct worker *worker = &core->workers[i];
        const bool told = worker->contributor || worker->surplus;
        const bool unasked = !round_has_asked(worker, round) && told && !ended;
        worker->contributor = worker->committed = worker->surplus = false;
        if (unasked) round_send_void(core, worker->id, round, actions);
        round_answer_asked(core, worker, actions);
    }
}

/* True if the gate lets a round of steps open. Workers are sorted by rank, and no rank occurs twice. So if
 * there are `world` workers, and the last of them has rank world - 1, the ranks are 0, ..., world - 1. */
static bool gate_lets(const struct round_machine *core)
{
    if (core->gate.shut) return false;
    if (core->gate.world == 0) return true;
    return core->worker_count == core->gate.world &&
           core->workers[core->worker_count - 1].rank == core->gate.world - 1;
}

/* Returns the number of workers for which the first round waits; 0 if it does not wait. */
static uint32_t round_start_world(const struct round_machine *core)
{
    uint32_t most = 0;
    if (core->started || MUTANT(47)) return 0;
    for (uint32_t i = 0; i < core->worker_count; i++) {
        const struct worker *worker = &core->workers[i];
        if (worker->launch == 0 || core->now_ms >= worker->start_ms) return 0;
        if (worker->launch > most) most = worker->launch;
    }
    return most;
}

static uint32_t workers_min(const struct round_machine *core)
{
    return MUTANT(48) ? core->config.terms.workers_min : core->terms_newest.workers_min;
}

/* Returns the worker of the lowest rank that wants to write; NULL if no worker wants to write. */
static struct worker *find_writer(const struct round_machine *core)
{
    for (uint32_t i = 0; core->ready && i < core->worker_count; i++)
        if (core->workers[i].writes) return &core->workers[i];
    return NULL;
}

static bool round_wanted(const struct round_machine *core)
{
    if (!core->gate.shut && find_writer(core) != NULL) return true;
    if (!gate_lets(core) || round_halted(core) || round_waits_for_lost(core)) return false;
    if (!core->ready || core->worker_count < workers_min(core) ||
        core->worker_count < round_start_world(core))
        return false;
    for (uint32_t i = 0; i < core->worker_count; i++)
        if (core->workers[i].wants) return true;
    return false;
}

/* Chooses the contributors. If a worker wants to write, the round is a write, and the writer is its only
 * contributor. */
static void choose_contributors(struct round_machine *core)
{
    const uint32_t most = core->config.contributors_max;
    struct worker *writer = find_writer(core);
    core->open.writing = writer != NULL;
    core->open.world = 0;
    for (uint32_t i = 0; i < core->worker_count; i++) {
        struct worker *worker = &core->workers[i];
        if (writer != NULL && worker != writer) continue;
        worker->surplus = writer == NULL && most != 0 && i >= most && !MUTANT(61);
        worker->contributor = !worker->surplus;
        worker->dense = writer != NULL ? 0 : MUTANT(62) ? worker->rank : i;
        if (worker->contributor) core->open.contributors[core->open.world++] = worker->id;
    }
}

static void open_round(struct round_machine *core, struct round_actions *actions)
{
    core->stage = CAIRN_ROUND_OPEN;
    core->config.terms = core->terms_newest;
    core->open.number = core->numbers.next++;
    choose_contributors(core);
    if (!core->open.writing) core->started = true;
    core->open.reduced_count = 0;
    core->open.asking = false;
    core->open.state_bytes = 0;
    memset(&core->open.sums, 0, sizeof core->open.sums);
    round_missed_begin(core);
    for (uint32_t s = 0; s < core->config.shard_count; s++) core->shards[s].reduced = false;
    if (core->config.step_deadline_ms > 0)
        core->open.deadline_ms = core->now_ms + core->config.step_deadline_ms;
    struct round_action *action = round_act(actions, CAIRN_ROUND_OPEN_SEND);
    action->write = core->open.writing;
    action->epoch = core->epoch.number;
    action->round = core->open.number;
    action->version = core->version;
    action->members = core->open.contributors;
    action->member_count = core->open.world;
    for (uint32_t i = 0; i < core->worker_count; i++) {
        struct worker *worker = &core->workers[i];
        const bool asked = core->open.writing ? worker->writes : worker->wants;
        if ((worker->contributor || worker->surplus) && asked) send_opened(core, worker, actions);
    }
}

static void on_published(struct round_machine *core, const struct round_event *event,
                         struct round_actions *actions)
{
    const bool awaited = core->stage == CAIRN_ROUND_RESOLVING || core->stage == CAIRN_ROUND_DECIDED;
    if (!awaited || event->epoch != core->epoch.number || event->round != core->last.round) return;
    const bool same = version_compare(event->version, core->last.version_after) == 0;
    const bool checked = core->last.round != 0 || (core->ready && !core->epoch.needed);
    if (!same && checked) {
        round_fail(core, event->shard, "it published a version other than the one decided",
                   actions);
        return;
    }
    core->shards[event->shard].published = true;
    core->shards[event->shard].nonfinite = event->nonfinite;
}

static bool all_published(const struct round_machine *core)
{
    for (uint32_t s = 0; s < core->config.shard_count; s++) {
        if (MUTANT(14) && core->shards[s].published) return true;
        if (!core->shards[s].gone && !core->shards[s].published) return false;
    }
    return true;
}

static bool all_answered(const struct round_machine *core)
{
    for (uint32_t s = 0; s < core->config.shard_count; s++)
        if (!core->shards[s].gone && !core->shards[s].answered) return false;
    return true;
}

static void send_pin(struct round_machine *core, struct round_actions *actions)
{
    core->pin.pending = false;
    struct round_action *action = round_act(actions, CAIRN_ROUND_PIN_SEND);
    action->snapshot = core->pin.snapshot;
    action->version = core->version;
}

/* ---- the world ---- */

static void on_shard(struct round_machine *core, const struct round_event *event,
                     struct round_actions *actions)
{
    const bool concerns = round_layout_concerns(core, event->shard);
    if (event->kind == CAIRN_ROUND_SHARD_EMPTY && concerns) {
        round_fail(core, event->shard, "it came back without the job's state", actions);
        return;
    }
    // An UP may come without a DOWN before it. Then the connection is new, too, and messages on the old
    // connection may be lost.
    core->shards[event->shard].up = event->kind == CAIRN_ROUND_SHARD_UP;
    if (concerns) core->epoch.needed = true;
}

static void on_tick(struct round_machine *core, uint64_t now_ms, struct round_actions *actions)
{
    core->now_ms = now_ms;
    round_end_pauses(core);
    round_end_losses(core);
    // if need_epoch is set, the round will be void anyway
    const bool open = core->stage == CAIRN_ROUND_OPEN && !core->epoch.needed;
    const bool due = open && core->open.deadline_ms != 0;
    if (!due || now_ms < core->open.deadline_ms) return;
    round_on_deadline(core, actions);
}

static void on_ready(struct round_machine *core, const struct round_event *event)
{
    core->ready = true;
    // in the new epoch the shards are asked again; all of them have this version now
    core->epoch.needed = true;
    core->version = event->version;
}

/* ---- what follows from the state: nothing above goes from stage to stage but here ---- */

/* Makes one transition, if one is due. */
static bool advance_stage(struct round_machine *core, struct round_actions *actions)
{
    const enum round_stage stage = core->stage;
    if (stage == CAIRN_ROUND_FAILED || core->epoch.persisting) return false;
    const bool layout_due = round_layout_due(core);
    if (!shards_up(core) && !layout_due) return false;
    const bool steady = stage == CAIRN_ROUND_STEADY;
    const bool wanted = steady && round_wanted(core);
    const bool used_up = core->numbers.next == core->numbers.end;
    if (core->epoch.needed || layout_due || (wanted && (core->epoch.members_changed || used_up)))
        round_epoch_begin(core, actions);
    else if (stage == CAIRN_ROUND_FENCING && all_answered(core))
        round_resolve(core, actions);
    else if (stage == CAIRN_ROUND_OPEN && core->open.reduced_count == core->layout.serving &&
             round_state_there(core))
        round_decide(core, actions);
    else if ((stage == CAIRN_ROUND_RESOLVING || stage == CAIRN_ROUND_DECIDED) &&
             all_published(core))
        finish_round(core, actions);
    else if ((steady || stage == CAIRN_ROUND_OPEN) && core->pin.pending)
        send_pin(core, actions);
    else if (wanted)
        open_round(core, actions);
    else
        return steady && round_refuse(core, actions);
    return true;
}

/* True for events that count only if they come from a shard of the layout in force. */
static bool is_of_layout(enum round_event_kind kind)
{
    return kind == CAIRN_ROUND_ANSWER || kind == CAIRN_ROUND_REDUCED ||
           kind == CAIRN_ROUND_PUBLISHED || kind == CAIRN_ROUND_LACKS;
}

static void take_event(struct round_machine *core, const struct round_event *event,
                       struct round_actions *actions)
{
    switch (event->kind) {
    case CAIRN_ROUND_TICK: on_tick(core, event->now_ms, actions); return;
    case CAIRN_ROUND_PERSISTED: round_on_persisted(core, event, actions); return;
    case CAIRN_ROUND_READY: on_ready(core, event); return;
    case CAIRN_ROUND_PIN:
        core->pin.pending = true;
        core->pin.snapshot = event->snapshot;
        return;
    case CAIRN_ROUND_AMEND:
        core->terms_newest = *event->terms;
        if (!MUTANT(60)) core->losses = (struct losses) { 0 };
        return;
    case CAIRN_ROUND_LAYOUT: round_on_layout(core, event); return;
    case CAIRN_ROUND_GATE:
        core->gate.world = event->world;
        core->gate.shut = event->shut;
        return;
    case CAIRN_ROUND_SHARD_UP:
    case CAIRN_ROUND_SHARD_DOWN:
    case CAIRN_ROUND_SHARD_EMPTY: on_shard(core, event, actions); return;
    case CAIRN_ROUND_ANSWER: round_on_answer(core, event, actions); return;
    case CAIRN_ROUND_REDUCED: round_on_reduced(core, event, actions); return;
    case CAIRN_ROUND_PUBLISHED: on_published(core, event, actions); return;
    case CAIRN_ROUND_LACKS: round_on_lacks(core, event, actions); return;
    case CAIRN_ROUND_WORKER_JOIN: on_worker_join(core, event, actions); return;
    case CAIRN_ROUND_WORKER_DOWN: on_worker_down(core, event); return;
    case CAIRN_ROUND_WORKER_BEGIN: on_worker_begin(core, event->member, actions); return;
    case CAIRN_ROUND_WORKER_COMMIT: on_worker_commit(core, event, actions); return;
    case CAIRN_ROUND_WORKER_ABANDON: on_worker_abandon(core, event, actions); return;
    case CAIRN_ROUND_WORKER_WRITE: on_worker_write(core, event->member, actions); return;
    case CAIRN_ROUND_WORKER_PAUSE: round_on_pause(core, event); return;
    case CAIRN_ROUND_WORKER_UNWRITE: on_worker_unwrite(core, event); return;
    }
    assert(false && "an event of a kind that there is not");
}

void round_on_event(struct round_machine *core, const struct round_event *event,
                    struct round_actions *actions)
{
    assert(event->shard < core->config.shard_max);
    if (core->stage == CAIRN_ROUND_FAILED) return;
    if (is_of_layout(event->kind) && core->shards[event->shard].gone) return;
    take_event(core, event, actions);
    while (advance_stage(core, actions)) {}
}

/* ==== round query ==== */

/* Answers questions about the coordinator's round machine. */

enum round_stage round_stage_of(const struct round_machine *core)
{
    return core->stage;
}

uint64_t round_epoch_of(const struct round_machine *core)
{
    return core->epoch.number;
}

uint64_t round_open_round(const struct round_machine *core)
{
    return core->open.number;
}

struct cairn_version round_version(const struct round_machine *core)
{
    return core->version;
}

double round_loss_scale(const struct round_machine *core)
{
    return core->scaling.scale;
}

struct skips round_skips(const struct round_machine *core)
{
    return core->skips;
}

const struct decision *round_last(const struct round_machine *core)
{
    return &core->last;
}

bool round_client_state(const struct round_machine *core, const uint8_t **state_out,
                        size_t *state_bytes_out)
{
    const bool resolved = core->stage == CAIRN_ROUND_STEADY || core->stage == CAIRN_ROUND_OPEN;
    struct payload head = { .state_bytes = 0 };
    if (!resolved || !core->ready) return false;
    const bool has = core->last.payload_bytes > 0;
    if (has && payload_decode(core->last.payload, core->last.payload_bytes, &head) != CAIRN_OK)
        return false;
    *state_out = head.state;
    *state_bytes_out = head.state_bytes;
    return true;
}

const struct round_terms *round_terms_of(const struct round_machine *core)
{
    return &core->config.terms;
}

double round_lr(const struct round_machine *core, uint32_t group)
{
    return round_group_lr(&core->terms_newest, core->driven.rates, group, core->version.step);
}

bool round_takes_driven(const struct round_machine *core, uint64_t member, uint64_t round)
{
    return core->driven.count > 0 && core->stage == CAIRN_ROUND_OPEN && !core->open.writing &&
           round == core->open.number && round_contributes(core, member);
}

bool round_pin_pending(const struct round_machine *core)
{
    return core->pin.pending;
}

uint32_t round_worker_count(const struct round_machine *core)
{
    return core->worker_count;
}

bool round_contributes(const struct round_machine *core, uint64_t member)
{
    for (uint32_t i = 0; i < core->worker_count; i++)
        if (core->workers[i].id == member) return core->workers[i].contributor;
    return false;
}

uint64_t round_paused_ms(const struct round_machine *core)
{
    uint64_t most_ms = 0;
    // no round is open, or the open round will be void, and waits for nobody
    if (core->stage != CAIRN_ROUND_OPEN || core->epoch.needed) return 0;
    for (uint32_t i = 0; i < core->worker_count; i++) {
        const struct worker *worker = &core->workers[i];
        if (!worker->contributor || worker->committed || worker->paused_ms <= core->now_ms)
            continue;
        const uint64_t left_ms = worker->paused_ms - core->now_ms;
        if (left_ms > most_ms) most_ms = left_ms;
    }
    return most_ms;
}

bool round_waits_for_silent(const struct round_machine *core)
{
    const bool summed = core->open.reduced_count == core->layout.serving;
    if (core->stage != CAIRN_ROUND_OPEN || core->epoch.needed || summed) return false;
    if (core->open.late.round == core->open.number) return false; // a shard causes the delay
    for (uint32_t i = 0; i < core->worker_count; i++) {
        const struct worker *worker = &core->workers[i];
        if (worker->contributor && !worker->committed && worker->paused_ms <= core->now_ms)
            return true;
    }
    return false;
}

struct round_counts round_counts_of(const struct round_machine *core)
{
    return core->counts;
}

/* ---- who is awaited ---- */

/* A list that is being written into a sentence: "shard 2 (what it has not done), shard 3 (...)". */
struct listing {
    const struct round_names *names;
    struct sentence *out;
    bool any;
};

static void begin_entry(struct listing *listing, bool is_shard, uint32_t number)
{
    const struct round_names *names = listing->names;
    if (listing->any) sentence_add(listing->out, ", ");
    listing->any = true;
    if (names != NULL && names->add(names->context, is_shard, number, listing->out)) return;
    sentence_add(listing->out, "%s %u", is_shard ? "shard" : "worker of rank", (unsigned)number);
}

static void list_shard(struct listing *listing, uint32_t shard, const char *what)
{
    begin_entry(listing, true, shard);
    sentence_add(listing->out, " (%s)", what);
}

static void list_shards(const struct round_machine *core, struct listing *listing)
{
    for (uint32_t s = 0; s < core->config.shard_count; s++) {
        const struct shard *shard = &core->shards[s];
        if (shard->gone) continue;
        if (!shard->up)
            list_shard(listing, s, "not connected");
        else if (core->stage == CAIRN_ROUND_FENCING && !shard->answered)
            list_shard(listing, s, "has not answered the fence");
        else if (core->stage == CAIRN_ROUND_RESOLVING && !shard->published)
            list_shard(listing, s, "has not resolved the round");
        else if (core->stage == CAIRN_ROUND_DECIDED && !shard->published)
            list_shard(listing, s, "has not published the update");
    }
}

static void list_worker(const struct round_machine *core, struct listing *listing, uint32_t rank,
                        bool summed)
{
    const uint64_t round = core->open.number;
    begin_entry(listing, false, rank);
    if (summed && core->config.client_state_max > 0)
        sentence_add(listing->out, " (its client state of round %" PRIu64 ")", round);
    else if (core->open.writing)
        sentence_add(listing->out, " (has not ended its write)");
    else
        sentence_add(listing->out, " (has not committed round %" PRIu64 ")", round);
}

static void list_open_round(const struct round_machine *core, struct listing *listing)
{
    const uint64_t round = core->open.number;
    if (core->open.late.round == core->open.number) {
        begin_entry(listing, true, core->open.late.shard);
        sentence_add(listing->out, " (lacks something of %u of %u workers in round %" PRIu64 ")",
                     (unsigned)core->open.late.lacks, (unsigned)core->open.world, round);
        return;
    }
    const bool summed = core->open.reduced_count == core->layout.serving;
    for (uint32_t i = 0; i < core->worker_count; i++) {
        const struct worker *worker = &core->workers[i];
        if (!worker->contributor || worker->committed) continue;
        // The shards have the worker's commit. Only its request to the coordinator is under way.
        if (summed && worker->dense != 0) continue;
        list_worker(core, listing, worker->rank, summed);
    }
    if (listing->any) return;
    for (uint32_t s = 0; s < core->config.shard_count; s++) {
        if (core->shards[s].gone || core->shards[s].reduced) continue;
        begin_entry(listing, true, s);
        sentence_add(listing->out, " (has not summed round %" PRIu64 ")", round);
    }
}

/* Writes that the job waits for more workers of the launch to which the attached workers belong. */
static void wait_for_start(const struct round_machine *core, struct sentence *out)
{
    const uint32_t world = round_start_world(core);
    uint64_t until_ms = UINT64_MAX;
    if (core->worker_count >= world) return;
    for (uint32_t i = 0; i < core->worker_count; i++)
        if (core->workers[i].start_ms < until_ms) until_ms = core->workers[i].start_ms;
    sentence_set(
        out, "%u more worker%s of this launch (%u of %u attached; without them in %" PRIu64 " s)",
        (unsigned)(world - core->worker_count), world - core->worker_count == 1 ? "" : "s",
        (unsigned)core->worker_count, (unsigned)world, (until_ms - core->now_ms + 999) / 1000);
}

static void wait_for_least(const struct round_machine *core, struct sentence *out)
{
    const uint32_t least = core->terms_newest.workers_min, missing = least - core->worker_count;
    sentence_set(out,
                 "%u more worker%s (%u of %u attached): start %s, or have the job take fewer "
                 "(`cairn job amend JOB --workers MIN:MAX`)",
                 (unsigned)missing, missing == 1 ? "" : "s", (unsigned)core->worker_count,
                 (unsigned)least, missing == 1 ? "it" : "them");
}

void round_waiting(const struct round_machine *core, const struct round_names *names,
                   struct sentence *out)
{
    struct listing listing = { names, out, false };
    sentence_set(out, "%s", "");
    list_shards(core, &listing);
    if (listing.any) return;
    if (core->epoch.persisting)
        sentence_set(out, "the store's disk (epoch %" PRIu64 ")", core->epoch.number);
    else if (core->stage == CAIRN_ROUND_OPEN)
        list_open_round(core, &listing);
    else if (core->stage == CAIRN_ROUND_STEADY && !core->ready)
        sentence_set(out, "the initial state of the job");
    else if (core->stage == CAIRN_ROUND_STEADY && round_halted_of_results(core))
        sentence_set(
            out, "a restore or a write (results of the update to step %" PRIu64 " are not finite)",
            core->version.step);
    else if (core->stage == CAIRN_ROUND_STEADY && round_halted_of_loss(core))
        sentence_set(out, "an amendment or a restore (a worker was lost, and on_worker_loss "
                          "is fail)");
    else if (core->stage == CAIRN_ROUND_STEADY && round_halted(core))
        sentence_set(out,
                     "an amendment or a restore (%u rounds in a row were skipped, their "
                     "gradients not finite, and the loss scale is at its least)",
                     (unsigned)core->skips.in_row);
    else if (core->stage == CAIRN_ROUND_STEADY &&
             core->worker_count < core->terms_newest.workers_min)
        wait_for_least(core, out);
    else if (core->stage == CAIRN_ROUND_STEADY && round_waits_for_lost(core))
        round_say_lost(core, out);
    else if (core->stage == CAIRN_ROUND_STEADY)
        wait_for_start(core, out);
}

/* ==== round layout ==== */

/* The layout says which shards the job has. A pending layout comes into force with a change of epoch in
 * STEADY. Then no round is open, and every shard has the same version, so no part of a round has to be
 * carried from one layout to the other.
 *
 * A layout that takes back the layout in force does not wait for STEADY, because a shard of the layout in
 * force is lost, and everything may be waiting for that shard. If nothing was decided under the layout that
 * is taken back, the shards of the new layout have all state that they need. The last outcome that these
 * shards know shows whether something was decided. */

static void count_serving(struct round_machine *core)
{
    core->layout.serving = 0;
    for (uint32_t s = 0; s < core->config.shard_count; s++)
        core->layout.serving += !core->shards[s].gone;
    assert(core->layout.serving > 0);
}

/* Takes over the holes of the layout that a new incarnation finds on the disk; config.shard_max is not 0
 * here. */
static void round_layout_init(struct round_machine *core)
{
    const struct round_config *config = &core->config;
    for (uint32_t s = 0; s < config->shard_max; s++)
        core->shards[s].gone = layout_is_hole(config->gone, config->shard_count, s);
    core->config.gone = NULL; // the holes were borrowed only for the call of round_init
    count_serving(core);
}

static void round_on_layout(struct round_machine *core, const struct round_event *event)
{
    // the pending layout is being made durable: it can neither be forgotten nor replaced
    if (core->layout.taken) return;
    if (event->layout.number == 0 && MUTANT(73)) return;
    core->layout.next.number = 0;
    if (event->layout.number == 0) return;
    assert(event->layout.number > core->config.layout);
    assert(event->layout.shard_count >= core->config.shard_count);
    assert(event->layout.shard_count <= core->config.shard_max);
    core->layout.next = event->layout;
    core->layout.next.gone = NULL; // the next lines copy it into the shards
    for (uint32_t s = 0; s < core->config.shard_max; s++)
        core->shards[s].gone_next = layout_is_hole(event->layout.gone, event->layout.shard_count,
                                                   s);
}

/* True if the shard is in the layout in force, or in the layout that is being made durable. */
static bool round_layout_concerns(const struct round_machine *core, uint32_t shard)
{
    const struct shard *s = &core->shards[shard];
    return !s->gone || (core->layout.taken && !s->gone_next);
}

static bool next_up(const struct round_machine *core)
{
    for (uint32_t s = 0; s < core->layout.next.shard_count; s++)
        if (!core->shards[s].gone_next && !core->shards[s].up) return false;
    return true;
}

bool round_layout_due(const struct round_machine *core)
{
    if (core->layout.next.number == 0 || core->layout.taken || !next_up(core)) return false;
    return core->layout.next.back ||
           ((core->stage == CAIRN_ROUND_STEADY || MUTANT(63)) && !core->epoch.needed);
}

void round_layout_take(struct round_machine *core)
{
    core->layout.taken = true;
}

void round_layout_enter(struct round_machine *core)
{
    const struct round_layout next = core->layout.next;
    core->layout.next = (struct round_layout) { .number = 0 };
    core->layout.taken = false;
    core->config.layout = next.number;
    core->config.shard_count = next.shard_count;
    if (!next.back) core->config.layout_at = core->version;
    core->layout.went_back = next.back && !next.empty;
    for (uint32_t s = 0; s < core->config.shard_max; s++) {
        core->shards[s].gone = core->shards[s].gone_next;
        if (core->shards[s].gone) core->shards[s].nonfinite = false;
    }
    count_serving(core);
}

const char *round_layout_judge(const struct round_machine *core)
{
    if (!core->layout.went_back) return NULL;
    const bool same = core->config.layout_at.generation != 0 &&
                      version_compare(core->last.version_after, core->config.layout_at) == 0;
    return same ? NULL : "a shard was lost, and part of the newest version with it";
}

uint64_t round_layout_of(const struct round_machine *core)
{
    return core->config.layout;
}

uint64_t round_layout_pending(const struct round_machine *core)
{
    return core->layout.taken ? 0 : core->layout.next.number;
}
