/* A shard as the relay of its host (server/shard/relay*.c): one core an owner, and the real pool of buffers
 * for the sums. */
#include <string.h>

#include "tests/sim/sim.h"

#define ROOMLESS     MS(3) /* a host, on average */
#define TICK         MS(2)
#define STUCK_MAX_MS 300 /* far longer than any host is roomless */

static void do_event(struct sim *sim, uint32_t shard, uint32_t owner,
                     const struct step_event *event, const struct message *message);

static bool relays(const struct sim *sim, uint32_t shard, uint32_t owner)
{
    return (sim->relays[shard].owner_bits >> owner & 1) != 0;
}

/* The pool's question. There is room for all, but perhaps not now. */
static bool touch_another(struct buffer_pool *pool)
{
    struct sim_relay *relay = (struct sim_relay *)((char *)pool - offsetof(struct sim_relay, pool));
    struct sim *sim = relay->sim;
    if (sim->now < relay->room_at) return false;
    if (sim->scenario.roomless > 0 && rng_chance(&sim->schedule, sim->scenario.roomless)) {
        sim->seen[SEEN_relay_roomless]++;
        relay->room_at = sim->now + rng_exponential(&sim->schedule, ROOMLESS);
        return false;
    }
    if (pool->touched >= pool->wanted) sim->seen[SEEN_relay_more]++;
    return true;
}

/* What it reads in place would need as many buffers for sums as it has of them. */
static struct step_config config_of(const struct sim *sim, uint32_t shard, uint32_t owner)
{
    struct step_config config = sim_step_config(sim, sim->relays[shard].layout, owner);
    config.window -= config.in_place;
    config.in_place = 0;
    config.forwards = true;
    return config;
}

void relay_start(struct sim *sim, uint32_t shard)
{
    struct sim_relay *relay = &sim->relays[shard];
    memset(relay, 0, sizeof *relay);
    relay->sim = sim;
    relay->pool = (struct buffer_pool) { .buffers = relay->buffers,
                                         .count = sim->scenario.chunks,
                                         .wanted = sim->scenario.buffers_wanted,
                                         .stuck_max_ms = STUCK_MAX_MS,
                                         .touch = touch_another };
    relay->layout = sim->shards[shard].layout;
    for (uint32_t o = 0; o < sim->scenario.room; o++) {
        struct relay_owner *owner = &relay->owners[o];
        const struct step_config config = config_of(sim, shard, o);
        owner->core = step_init(sim->relay_step_memory[0][shard][o], &config,
                                (struct cairn_version) { 0 }, NULL);
        owner->buffers.sums = owner->sums;
        owner->buffers.chunk_count = relay->layout->count[o];
        buffer_pool_add(&relay->pool, &owner->buffers);
    }
}

/* ---- folds ---- */

static struct relay_owner *owner_of(const struct buffer_claim *claim)
{
    return (struct relay_owner *)((char *)claim->owner - offsetof(struct relay_owner, buffers));
}

/* It has its buffer. */
static void begin_fold(struct sim *sim, uint32_t shard, const struct buffer_claim *claim)
{
    struct sim_relay *relay = &sim->relays[shard];
    const uint32_t index = (uint32_t)(owner_of(claim) - relay->owners);
    struct relay_sum *sum = &relay->sums[claim->buffer];
    if (claim->begins) {
        memset(sum->elems, 0x5a, sizeof sum->elems);
        sum->sent = NOT_SENT;
    }
    if (sum->folding) sim_fail(sim, "two folds of relay %u write one buffer", shard);
    sum->folding = true;
    sim_at(sim, rng_exponential(&sim->schedule, sim->scenario.work_delay), E_RELAY_FOLDED, shard,
           OWNED(index, claim->chunk), 0);
}

static void wake(struct sim *sim, uint32_t shard)
{
    if (sim->relays[shard].ticking) return;
    sim->relays[shard].ticking = true;
    sim_at(sim, TICK, E_RELAY_TICK, shard, NOBODY, 0);
}

static void fold(struct sim *sim, uint32_t shard, uint32_t index, const struct step_action *action)
{
    struct sim_relay *relay = &sim->relays[shard];
    struct relay_owner *owner = &relay->owners[index];
    struct buffer_claim *claim = &owner->claims[action->chunk];
    if (!action->first && owner->sums[action->chunk] == CAIRN_BUFFER_NONE) {
        sim_fail(sim, "relay %u adds to a sum that it has not begun", shard);
        return;
    }
    owner->folds[action->chunk] = *action;
    *claim = (struct buffer_claim) { .owner = &owner->buffers,
                                     .chunk = action->chunk,
                                     .begins = action->first };
    if (buffer_pool_claim(&relay->pool, claim)) {
        begin_fold(sim, shard, claim);
        return;
    }
    sim->seen[SEEN_relay_waited]++;
    wake(sim, shard);
}

/* Somebody holds each buffer that there is. */
static bool all_held(const struct sim_relay *relay)
{
    for (uint32_t i = 0; i < relay->pool.count; i++)
        if (relay->buffers[i].state != CAIRN_BUFFER_SUMMING &&
            relay->buffers[i].state != CAIRN_BUFFER_SENDING)
            return false;
    return true;
}

/* Another buffer may be touched now. */
static bool has_another(const struct sim_relay *relay)
{
    return relay->pool.touched < relay->pool.count && relay->sim->now >= relay->room_at;
}

/* Room always comes, so no relay is given up. And no owner that needs a buffer, of which no answer frees
 * one, waits for those that other owners hold: neither when they hold all nor while there may be another. */
static void judge_room(struct sim *sim, uint32_t shard)
{
    struct sim_relay *relay = &sim->relays[shard];
    for (uint32_t o = 0; o < sim->scenario.room; o++) {
        struct relay_owner *owner = &relay->owners[o];
        const bool was_stuck = owner->buffers.stuck_since_ms != 0;
        if (buffer_pool_is_stuck(&relay->pool, &owner->buffers, step_may_receive(owner->core),
                                 sim->now / 1000))
            sim_fail(sim, "relay %u is given up for want of room to shard %u", shard, o);
        if (owner->buffers.waiting != NULL && owner->buffers.sending == 0) {
            if (all_held(relay))
                sim_fail(sim, "other shards hold all buffers of relay %u, and %u needs one", shard,
                         o);
            if (has_another(relay))
                sim_fail(sim, "relay %u touches no buffer for shard %u, which may wait for ever",
                         shard, o);
        }
        if (!was_stuck && owner->buffers.stuck_since_ms != 0) sim->seen[SEEN_relay_stuck]++;
    }
}

void relay_advance(struct sim *sim, uint32_t shard)
{
    const struct buffer_claim *claim = buffer_pool_advance(&sim->relays[shard].pool);
    for (; claim != NULL; claim = claim->next) begin_fold(sim, shard, claim);
    judge_room(sim, shard);
}

void relay_tick(struct sim *sim, uint32_t shard)
{
    struct sim_relay *relay = &sim->relays[shard];
    relay->ticking = false;
    relay_advance(sim, shard); // there may be room again
    for (uint32_t o = 0; o < sim->scenario.room; o++)
        if (relay->owners[o].buffers.waiting != NULL) wake(sim, shard);
}

static void folded(struct sim *sim, uint32_t shard, uint32_t index, uint32_t chunk)
{
    struct sim_relay *relay = &sim->relays[shard];
    struct relay_owner *owner = &relay->owners[index];
    const struct step_action *action = &owner->folds[chunk];
    const uint32_t buffer = owner->claims[chunk].buffer;
    struct fold_source sources[CAIRN_STEP_FOLD_MAX];
    for (uint32_t i = 0; i < action->count; i++)
        sources[i] = (struct fold_source) { owner->slots[action->slots[i]], CAIRN_F32 };
    backend_host()->fold(relay->sums[buffer].elems, sources, action->count, action->first,
                         sim->scenario.elems[relay->layout->chunk[index][chunk]]);
    relay->sums[buffer].folding = false;
    buffer_pool_return(&relay->pool, buffer);
    const struct step_event event = { .kind = CAIRN_STEP_FOLDED, .chunk = chunk };
    do_event(sim, shard, index, &event, NULL);
    relay_advance(sim, shard);
}

/* The rounds of all cores are void: no sum is gone on with, and who waited for a buffer needs none. */
static void void_folds(struct sim *sim, uint32_t shard)
{
    struct sim_relay *relay = &sim->relays[shard];
    const struct buffer_claim *claim = buffer_pool_void(&relay->pool);
    while (claim != NULL) {
        const uint32_t index = (uint32_t)(owner_of(claim) - relay->owners);
        const struct step_event event = { .kind = CAIRN_STEP_FOLDED, .chunk = claim->chunk };
        claim = claim->next;
        do_event(sim, shard, index, &event, NULL);
    }
    judge_room(sim, shard);
}

/* ---- what a core says ---- */

static void to_member(struct sim *sim, uint32_t shard, uint32_t owner, enum message_kind kind,
                      const struct step_action *action)
{
    struct message message = peer_answer(kind, action, owner, true);
    peer_send(sim, shard, &message);
}

static void receive(struct sim *sim, uint32_t shard, uint32_t index, uint32_t slot,
                    const struct message *message)
{
    struct sim_relay *relay = &sim->relays[shard];
    const uint32_t chunk = relay->layout->chunk[index][message->chunk];
    relay->owners[index].landing[slot] = landing_of(sim, shard, chunk, message);
    sim_at(sim, rng_exponential(&sim->schedule, sim->scenario.receive_delay), E_RELAY_LANDED, shard,
           OWNED(index, slot), 0);
}

static void do_action(struct sim *sim, uint32_t shard, uint32_t owner,
                      const struct step_action *action, const struct message *message)
{
    sim_trace(sim, step_action_name(action->kind), (uint64_t)shard << 8 | owner | 0x10000,
              action->round, (uint64_t)action->chunk << 32 | action->micro);
    switch (action->kind) {
    case CAIRN_STEP_GRANT: to_member(sim, shard, owner, M_GRANT, action); return;
    case CAIRN_STEP_ACK: to_member(sim, shard, owner, M_ACK, action); return;
    case CAIRN_STEP_MICRO_ACK: to_member(sim, shard, owner, M_MICRO_ACK, action); return;
    case CAIRN_STEP_REFUSE: to_member(sim, shard, owner, M_REFUSE, action); return;
    case CAIRN_STEP_RECEIVE: receive(sim, shard, owner, action->slot, message); return;
    case CAIRN_STEP_DISCARD:
    case CAIRN_STEP_ANSWER: return;
    case CAIRN_STEP_FOLD: fold(sim, shard, owner, action); return;
    case CAIRN_STEP_FORWARD:
    case CAIRN_STEP_FORWARD_END:
    case CAIRN_STEP_FORWARD_COMMIT: relay_forward(sim, shard, owner, action); return;
    case CAIRN_STEP_FAULT: sim_fail(sim, "relay %u stops: %s", shard, action->why); return;
    default: sim_fail(sim, "relay %u has a version of its own", shard); return;
    }
}

static void see(struct sim *sim, const struct step_machine *core, enum step_phase before,
                const struct step_event *event, const struct step_actions *actions)
{
    const bool void_now = event->kind == CAIRN_STEP_FENCE && step_round_of(core) == 0;
    if (void_now && before == CAIRN_STEP_COLLECTING) sim->seen[SEEN_relay_void]++;
    if (void_now && before == CAIRN_STEP_REDUCING) sim->seen[SEEN_relay_committed_void]++;
    if (event->kind == CAIRN_STEP_OPEN && before == CAIRN_STEP_DRAINING)
        sim->seen[SEEN_relay_pending]++;
    bool ended = false;
    for (size_t i = 0; i < actions->count; i++) {
        const enum step_action_kind kind = actions->list[i].kind;
        if (kind == CAIRN_STEP_FORWARD) sim->seen[SEEN_forwards]++;
        if (kind == CAIRN_STEP_FORWARD_END) ended = true;
        if (kind == CAIRN_STEP_FOLD && ended) sim->seen[SEEN_relay_barrier]++;
    }
}

static void do_event(struct sim *sim, uint32_t shard, uint32_t index,
                     const struct step_event *event, const struct message *message)
{
    struct step_machine *core = sim->relays[shard].owners[index].core;
    const struct step_config config = config_of(sim, shard, index);
    struct step_actions actions = { sim->step_list, 0, step_actions_max(&config) };
    const enum step_phase before = step_phase_of(core);
    step_on_event(core, event, &actions);
    see(sim, core, before, event, &actions);
    for (size_t i = 0; i < actions.count; i++)
        do_action(sim, shard, index, &actions.list[i], message);
}

static void tell_all(struct sim *sim, uint32_t shard, const struct step_event *event)
{
    for (uint32_t o = 0; o < sim->scenario.room; o++) do_event(sim, shard, o, event, NULL);
}

void relay_peer_event(struct sim *sim, uint32_t shard, const struct step_event *event)
{
    if (sim->scenario.hosts > 0) tell_all(sim, shard, event);
}

/* ---- another layout ---- */

bool relay_idle(const struct sim *sim, uint32_t shard)
{
    if (sim->scenario.hosts == 0) return true;
    for (uint32_t o = 0; o < sim->scenario.room; o++)
        if (step_phase_of(sim->relays[shard].owners[o].core) != CAIRN_STEP_IDLE) return false;
    return true;
}

void relay_recut(struct sim *sim, uint32_t shard)
{
    struct sim_relay *relay = &sim->relays[shard];
    if (sim->scenario.hosts == 0) return;
    relay->layout = sim->shards[shard].layout;
    relay->core_place ^= 1;
    for (uint32_t o = 0; o < sim->scenario.room; o++) {
        struct relay_owner *owner = &relay->owners[o];
        const struct step_config config = config_of(sim, shard, o);
        owner->core = step_init_from(sim->relay_step_memory[relay->core_place][shard][o], &config,
                                     owner->core);
        owner->buffers.chunk_count = relay->layout->count[o];
        for (uint32_t c = 0; c < CHUNKS_MAX; c++) owner->sums[c] = CAIRN_BUFFER_NONE;
    }
}

/* ---- rounds ---- */

/* Void or resolved: for what sends, it is over. */
static void end_round(struct sim *sim, uint32_t shard)
{
    sim->relays[shard].round = 0;
    for (uint32_t o = 0; o < sim->scenario.room; o++) relay_send_end(sim, shard, o);
}

/* Other members: to the owners it is another one, on connections of its own. */
static void become(struct sim *sim, uint32_t shard, const struct message *open)
{
    struct sim_relay *relay = &sim->relays[shard];
    sim->seen[SEEN_relay_new]++;
    relay->number = open->relay;
    relay->owner_bits = open->relay_owners;
    for (uint32_t o = 0; o < sim->scenario.room; o++) {
        if (relay->owners[o].link.up)
            relay_break(sim, shard, o);
        else if (relays(sim, shard, o))
            sim_at(sim, rng_exponential(&sim->schedule, 500), E_FABRIC_RECONNECT, o,
                   PROCS_MAX + shard, relay->number);
    }
}

static void on_open(struct sim *sim, uint32_t shard, const struct message *open)
{
    struct sim_relay *relay = &sim->relays[shard];
    end_round(sim, shard); // the one before is resolved
    if (open->relay == 0) return;
    if (relay->number != open->relay) become(sim, shard, open);
    relay->round = open->round;
    relay->epoch = open->epoch;
    for (uint32_t o = 0; o < sim->scenario.room; o++) {
        if (!relays(sim, shard, o)) continue;
        uint8_t holds[HOLDS_MAX];
        relay_send_begin(sim, shard, o);
        const struct step_event event = {
            .kind = CAIRN_STEP_OPEN,
            .epoch = open->epoch,
            .round = open->round,
            .members = open->relay_members,
            .member_count = open->relay_member_count,
            .holds = fill_holds(sim, relay->layout, o, open->round, open->relay_members,
                                open->relay_member_count, holds),
        };
        do_event(sim, shard, o, &event, NULL);
    }
}

void relay_from_coordinator(struct sim *sim, uint32_t shard, const struct message *message)
{
    struct step_event event = { .epoch = message->epoch };
    if (sim->scenario.hosts == 0 || sim->shards[shard].core == NULL) return;
    if (message->epoch < step_epoch(sim->relays[shard].owners[0].core)) return;
    switch (message->kind) {
    case M_FENCE:
        end_round(sim, shard);
        event.kind = CAIRN_STEP_FENCE;
        tell_all(sim, shard, &event);
        void_folds(sim, shard);
        return;
    case M_RESOLVE:
        event.kind = CAIRN_STEP_RESOLVE;
        tell_all(sim, shard, &event);
        return;
    case M_OPEN: on_open(sim, shard, message); return;
    default: return;
    }
}

/* ---- what comes in ---- */

void relay_from_worker(struct sim *sim, uint32_t shard, const struct event *in)
{
    const struct step_event event = peer_event_of(in->message, in->order);
    do_event(sim, shard, in->message->owner, &event, in->message);
}

void relay_garbage(struct sim *sim, uint32_t shard, const struct step_event *garbage)
{
    if (sim->scenario.hosts == 0) return;
    const uint32_t owner = (uint32_t)rng_below(&sim->fault, sim->scenario.room);
    const struct step_machine *core = sim->relays[shard].owners[owner].core;
    const enum step_phase phase = step_phase_of(core);
    const uint32_t used = step_slots_used(core);
    do_event(sim, shard, owner, garbage, NULL);
    if (step_phase_of(core) != phase || step_slots_used(core) != used)
        sim_fail(sim, "relay %u did something for a stranger", shard);
}

void relay_work_event(struct sim *sim, const struct event *in)
{
    const uint32_t index = in->b >> 8, what = in->b & 0xff;
    if (in->kind == E_RELAY_FOLDED) {
        folded(sim, in->a, index, what);
        return;
    }
    struct relay_owner *owner = &sim->relays[in->a].owners[index];
    const struct step_event event = {
        .kind = CAIRN_STEP_LANDED,
        .slot = what,
        .status = landing_read(sim, in->a, &owner->landing[what], owner->slots[what]),
    };
    do_event(sim, in->a, index, &event, NULL);
}

void relay_lacks(const struct sim *sim, uint32_t shard, uint64_t round, struct message *out)
{
    const struct sim_relay *relay = &sim->relays[shard];
    if (relay->round != round) return;
    for (uint32_t o = 0; o < sim->scenario.room; o++)
        if ((relay->owner_bits >> o & 1) != 0) core_lacks(relay->owners[o].core, true, out);
}
