/* A worker's process: a trainer, and what the client library does around the push machine. It has no
 * state that matters: a new one may take its rank at any time. */
#include <inttypes.h>
#include <string.h>

#include "proto/geometry/layout.h"
#include "tests/sim/sim.h"

static void proceed(struct sim *sim, uint32_t index);

static struct push_actions push_actions(struct sim *sim)
{
    const struct push_config config = sim_push_config(sim);
    return (struct push_actions) { sim->push_list, 0, push_actions_max(&config) };
}

/* ---- life and connections ---- */

void process_start(struct sim *sim, uint32_t rank)
{
    for (uint32_t i = 0; i < PROCS_MAX; i++) {
        struct process *proc = &sim->procs[i];
        if (proc->alive) continue;
        // Nothing of the last life of this place can be mistaken for this one's.
        const uint64_t control_id = proc->control.id;
        uint64_t fabric_id[SHARDS_MAX];
        for (uint32_t s = 0; s < SHARDS_MAX; s++) fabric_id[s] = proc->fabric[s].id;
        memset(proc, 0, sizeof *proc);
        proc->control.id = control_id;
        for (uint32_t s = 0; s < SHARDS_MAX; s++) proc->fabric[s].id = fabric_id[s];
        proc->alive = true;
        proc->layout = &sim->layouts[0]; // until it hears of another
        proc->life = ++sim->lives * 16 + i;
        proc->rank = rank;
        sim_trace(sim, "process starts", i, rank, proc->life);
        sim_at(sim, rng_exponential(&sim->schedule, 500), E_CONTROL_RECONNECT, NOBODY, i,
               proc->life);
        for (uint32_t s = 0; s < sim->shard_count; s++)
            sim_at(sim, rng_exponential(&sim->schedule, 500), E_FABRIC_RECONNECT, s, i, proc->life);
        return;
    }
    sim_at(sim, MS(10), E_PROCESS_START, rank, 0, 0); // the zombies have taken every place
}

void process_kill(struct sim *sim, uint32_t index)
{
    struct process *proc = &sim->procs[index];
    sim_trace(sim, "process dies", index, proc->rank, proc->life);
    process_link_break(sim, index);
    for (uint32_t s = 0; s < sim->shard_count; s++) fabric_break(sim, s, index);
    proc->alive = false;
    if (!proc->zombie)
        sim_at(sim, rng_exponential(&sim->schedule, 20000), E_PROCESS_START, proc->rank, 0, 0);
}

void process_link_break(struct sim *sim, uint32_t index)
{
    struct process *proc = &sim->procs[index];
    if (!proc->control.up) return;
    link_cut(sim, &proc->control);
    sim_at(sim, LEASE, E_LEASE, 0, 0, proc->life);
    sim_at(sim, rng_exponential(&sim->schedule, 4000), E_CONTROL_RECONNECT, NOBODY, index,
           proc->life);
}

static void to_coordinator(struct sim *sim, uint32_t index, enum message_kind kind, uint64_t round)
{
    struct process *proc = &sim->procs[index];
    struct message message = {
        .kind = kind, .member = proc->life, .rank = proc->rank, .round = round, .epoch = proc->epoch
    };
    if (kind == M_PAUSE) message.weight = (proc->pause_ends - sim->now) / 1000;
    if (kind == M_COMMIT) message.state_bytes = truth_state(sim, round, proc->life, message.state);
    for (uint32_t g = 0; g < GROUPS; g++) message.driven[g] = truth_lr(sim, round, proc->life, g);
    sim_send_control(sim, &proc->control, 0, E_COORDINATOR_FROM_WORKER, 0, index, &message);
}

static void ask(struct sim *sim, uint32_t index)
{
    to_coordinator(sim, index, sim->procs[index].wishes ? M_WRITE : M_BEGIN, 0);
}

/* How does the round end? */
static void ask_end(struct sim *sim, uint32_t index)
{
    const struct process *proc = &sim->procs[index];
    to_coordinator(sim, index, proc->state == T_GIVING_UP ? M_ABANDON : M_COMMIT, proc->round);
}

void process_pause(struct sim *sim, uint32_t index, uint64_t at_most_ms)
{
    sim->procs[index].pause_ends = sim->now + MS(at_most_ms);
    if (sim->procs[index].control.up) to_coordinator(sim, index, M_PAUSE, 0);
}

void process_connect(struct sim *sim, uint32_t index)
{
    struct process *proc = &sim->procs[index];
    if (proc->control.up) return;
    const uint64_t found = lead_found(sim);
    if (found == 0) {
        sim_at(sim, rng_exponential(&sim->schedule, 2000), E_CONTROL_RECONNECT, NOBODY, index,
               proc->life);
        return;
    }
    proc->control.id++;
    proc->control.up = true;
    proc->control.to = found;
    proc->control.arrives[0] = proc->control.arrives[1] = sim->now;
    to_coordinator(sim, index, M_ATTACH, 0);
    reshard_attached(sim, index); // nothing comes before what the answer says
    if (proc->pause_ends > sim->now) to_coordinator(sim, index, M_PAUSE, 0);
    // Whatever was asked may have been lost. Of a round that is open here: how does it end? (A round that
    // a coordinator told us of, and died before it told the shards, gets no GRANT, ever.)
    if (proc->state == T_IDLE)
        ask(sim, index);
    else
        ask_end(sim, index);
}

/* What was sent for that owner's chunks was sent on a connection that is lost. */
static void note_lost(struct process *proc, uint32_t owner)
{
    const struct sim_layout *layout = proc->push_layout;
    for (uint32_t m = 0; m < MICROS_MAX; m++)
        for (uint32_t c = 0; c < layout->count[owner]; c++) {
            uint8_t *sent = &proc->sent[m][layout->chunk[owner][c]];
            if (*sent == SENT) *sent = SENT_BEFORE;
        }
}

void fabric_break(struct sim *sim, uint32_t shard, uint32_t index)
{
    struct process *proc = &sim->procs[index];
    struct link *link = &proc->fabric[shard];
    if (!link->up) return;
    link->up = false;
    for (uint32_t o = 0; o < sim->scenario.room; o++) {
        if (proc->grant[o].via == shard) proc->grant[o].round = proc->grant[o].endpoint = 0;
        if (proc->push_layout != NULL && proc->push_via[o] == shard) note_lost(proc, o);
    }
    sim_at(sim, rng_exponential(&sim->schedule, 2000), E_PEER_DOWN, shard, index, link->id);
    sim_at(sim, rng_exponential(&sim->schedule, 1500), E_FABRIC_RECONNECT, shard, index,
           proc->life);
}

static void fabric_connect(struct sim *sim, uint32_t shard, uint32_t index)
{
    struct process *proc = &sim->procs[index];
    struct link *link = &proc->fabric[shard];
    if (link->up) return;
    if (!sim->shards[shard].alive) return;
    link->id++;
    link->up = true;
    const struct message hello = { .kind = M_HELLO, .member = proc->life };
    sim_send_fabric(sim, link, E_SHARD_FROM_WORKER, shard, index, &hello);
}

/* ---- what the push machine says ---- */

static void send_push(struct sim *sim, uint32_t index, const struct push_action *action)
{
    struct process *proc = &sim->procs[index];
    const struct sim_layout *layout = proc->push_layout;
    struct message message = { .member = proc->life,
                               .epoch = proc->push_epoch,
                               .round = proc->push_round,
                               .micro = action->micro,
                               .owner = action->shard,
                               .relayed = proc->push_relayed[action->shard] };
    if (action->kind == CAIRN_PUSH_SEND_CHUNK) {
        message.kind = M_CHUNK;
        message.chunk = action->chunk;
        message.request = action->request;
        const uint32_t chunk = layout->chunk[action->shard][action->chunk];
        message.is_small = sim_is_small(chunk);
        message.in_place = action->in_place;
        uint8_t *sent = &proc->sent[action->micro][chunk];
        if (*sent == SENT_BEFORE) sim->seen[SEEN_resent]++;
        *sent = SENT;
    } else if (action->kind == CAIRN_PUSH_SEND_MICRO_END) {
        message.kind = M_MICRO_END;
        message.sent = action->sent;
        message.absent = layout->count[action->shard] - action->sent;
    } else {
        message.kind = M_SHARD_COMMIT;
        message.weight = action->weight;
    }
    const uint32_t via = proc->push_via[action->shard];
    sim_send_fabric(sim, &proc->fabric[via], E_SHARD_FROM_WORKER, via, index, &message);
}

/* The buffer is the trainer's again, which writes something else into it at once. */
static void released(struct sim *sim, struct process *proc, uint64_t cookie)
{
    const uint32_t micro = (uint32_t)(cookie >> 32), chunk = (uint32_t)cookie;
    if (!proc->on_loan[micro][chunk])
        sim_fail(sim, "chunk %u of micro-batch %u was released twice", chunk, micro);
    proc->on_loan[micro][chunk] = false;
    memset(proc->buffer[micro][chunk], 0x5a, sizeof proc->buffer[micro][chunk]);
}

static void do_push_actions(struct sim *sim, uint32_t index, const struct push_actions *actions)
{
    struct process *proc = &sim->procs[index];
    for (size_t i = 0; i < actions->count; i++) {
        const struct push_action *action = &actions->list[i];
        switch (action->kind) {
        case CAIRN_PUSH_RELEASED: released(sim, proc, action->cookie); break;
        case CAIRN_PUSH_VOID:
            if (action->status != CAIRN_ERR_STALE && action->status != CAIRN_ERR_FENCED)
                sim_fail(sim, "shard %u refused an honest worker: %s", action->shard,
                         status_code_name((int)action->status));
            if (proc->state != T_IDLE && proc->push_round == proc->round) ask_end(sim, index);
            break;
        default: send_push(sim, index, action); break;
        }
    }
}

/* ---- the trainer ---- */

static void begin(struct sim *sim, uint32_t index)
{
    struct process *proc = &sim->procs[index];
    proc->state = T_IDLE;
    proc->wishes = !sim->healed && rng_chance(&sim->fault, sim->scenario.write);
    ask(sim, index);
}

/* A buffer with the gradient goes on loan. */
static cairn_status push_one(struct sim *sim, struct process *proc, uint32_t chunk,
                             struct push_actions *actions)
{
    const uint32_t shard = proc->push_layout->owner[chunk];
    const uint32_t micro = proc->next_micro, number = batch_number(&proc->batch, micro);
    const uint32_t local = proc->push_layout->local[chunk];
    const uint64_t cookie = (uint64_t)micro << 32 | chunk;
    const struct push_chunk next = { local, sim_is_small(chunk), sim_lies(chunk), cookie };
    const cairn_status status = push_chunk(proc->push, shard, micro, next, actions);
    if (status != CAIRN_OK) return status;
    proc->on_loan[micro][chunk] = true;
    truth_gradient(sim, proc->round, truth_owner(sim, proc->life), number, chunk,
                   proc->buffer[micro][chunk]);
    return CAIRN_OK;
}

static uint32_t micros_of(const struct sim *sim, const struct process *proc)
{
    if (proc->writes) return 1;
    if (proc->batch.total > 0) return batch_count(&proc->batch);
    return truth_micros(sim, proc->round, proc->life);
}

/* With a batch each micro-batch has a weight. */
static uint64_t weight_of(const struct sim *sim, const struct process *proc)
{
    uint64_t weight = 0;
    if (proc->writes) return 1;
    if (proc->batch.total == 0) return truth_weight(sim, proc->round, proc->life);
    for (uint32_t m = 0; m < micros_of(sim, proc); m++)
        weight += truth_weight(sim, proc->round, batch_number(&proc->batch, m));
    return weight;
}

/* One call of the library; false if there is nothing to do, or it has to wait. */
static bool push_next(struct sim *sim, uint32_t index)
{
    struct process *proc = &sim->procs[index];
    struct push_actions actions = push_actions(sim);
    cairn_status status = CAIRN_OK;
    if (proc->next_micro == micros_of(sim, proc)) {
        status = push_commit(proc->push, weight_of(sim, proc), &actions);
        proc->committed = status == CAIRN_OK;
    } else if (proc->next_chunk == sim->scenario.chunks) {
        status = push_micro_end(proc->push, proc->next_micro, &actions);
        if (status == CAIRN_OK) {
            proc->next_micro++;
            proc->next_chunk = 0;
        }
    } else {
        const uint32_t chunk = proc->next_chunk;
        const uint32_t number = batch_number(&proc->batch, proc->next_micro);
        const bool present = truth_present(sim, proc->round, truth_owner(sim, proc->life), number,
                                           chunk);
        if (present && !proc->writes) status = push_one(sim, proc, chunk, &actions);
        if (status == CAIRN_OK) proc->next_chunk++;
    }
    do_push_actions(sim, index, &actions);
    return status == CAIRN_OK;
}

/* The grant for an owner's chunks, if it is of this round. */
static void give_grant(struct sim *sim, uint32_t index, uint32_t owner)
{
    struct process *proc = &sim->procs[index];
    if (!proc->pushing || proc->push_round != proc->grant[owner].round) return;
    proc->push_via[owner] = proc->grant[owner].via;
    proc->push_relayed[owner] = proc->grant[owner].relayed;
    const uint32_t via = proc->push_via[owner];
    struct push_window window = proc->grant[owner].window;
    const bool shares = sim_shares(sim, index, via, proc->fabric[via].id);
    proc->push_ways[owner] |= shares ? SIM_WAY_SHARED : SIM_WAY_SENT;
    if (!shares) window.in_place = 0;
    window.on_card = proc->push_layout->count[owner] / 2;
    struct push_actions actions = push_actions(sim);
    push_on_grant(proc->push, owner, proc->grant[owner].endpoint, window, &actions);
    do_push_actions(sim, index, &actions);
}

/* The gradient is ready and the last round's machine holds no buffer any more. */
static void start_pushing(struct sim *sim, uint32_t index)
{
    struct process *proc = &sim->procs[index];
    const struct push_config config = sim_push_config(sim);
    proc->push = push_init(sim->push_memory[index], &config);
    proc->pushing = true;
    proc->push_layout = proc->round_layout;
    for (uint32_t s = 0; s < sim->scenario.room; s++)
        if (!layout_has(proc->push_layout, s)) push_absent(proc->push, s);
    proc->push_epoch = proc->epoch;
    proc->push_round = proc->round;
    proc->next_micro = proc->next_chunk = 0;
    proc->committed = false;
    proc->state = T_PUSHING;
    memset(proc->sent, 0, sizeof proc->sent);
    memset(proc->push_ways, 0, sizeof proc->push_ways);
    for (uint32_t o = 0; o < SHARDS_MAX; o++) proc->push_via[o] = NOBODY;
    for (uint32_t o = 0; o < sim->scenario.room; o++) give_grant(sim, index, o);
}

/* Does whatever can be done now. */
static void proceed(struct sim *sim, uint32_t index)
{
    struct process *proc = &sim->procs[index];
    if (!proc->alive || proc->stalled) return;
    if (proc->pushing && push_voided(proc->push) && push_idle(proc->push)) proc->pushing = false;
    if (proc->state == T_COMPUTING && proc->surplus) {
        sim->seen[SEEN_surplus]++;
        proc->state = T_WAITING;
        ask_end(sim, index);
    }
    if (proc->state == T_COMPUTING && proc->computed && !proc->pushing) start_pushing(sim, index);
    if (proc->state != T_PUSHING || proc->push_round != proc->round) return;
    while (!proc->committed && proc->calls_left > 0 && push_next(sim, index)) proc->calls_left--;
    if (proc->state != T_PUSHING || (!proc->committed && proc->calls_left > 0)) return;
    if (!proc->committed) sim->seen[SEEN_given_up]++;
    proc->state = proc->committed ? T_WAITING : T_GIVING_UP;
    ask_end(sim, index);
}

/* ---- what comes in ---- */

/* NULL: the process does not know it. */
static struct kept_layout *find_kept(struct process *proc, const struct sim_layout *layout)
{
    for (uint32_t i = 0; i < proc->kept_count; i++)
        if (proc->kept[i].layout == layout) return &proc->kept[i];
    return NULL;
}

/* Those go that serve no version, since a newer one serves from the same one on. */
static void trim(struct process *proc)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < proc->kept_count; i++) {
        const struct kept_layout *newer = count > 0 ? &proc->kept[count - 1] : NULL;
        if (newer == NULL || version_compare(newer->since, proc->kept[i].since) > 0)
            proc->kept[count++] = proc->kept[i];
    }
    proc->kept_count = count;
}

static void keep(struct process *proc, const struct sim_layout *layout, struct cairn_version since)
{
    if (proc->kept_count == LAYOUTS_KEPT) proc->kept_count--;
    memmove(proc->kept + 1, proc->kept, proc->kept_count * sizeof *proc->kept);
    proc->kept[0] = (struct kept_layout) { layout, since };
    proc->kept_count++;
}

/* As client/attach.c. The shards that it has not met it meets. */
static void on_layout(struct sim *sim, uint32_t index, const struct message *message)
{
    struct process *proc = &sim->procs[index];
    const struct sim_layout *layout = &sim->layouts[message->layout];
    const struct sim_layout *in_force = &sim->layouts[message->sent];
    // A store that is an older copy goes on from an older layout: then a trainer opens the job anew.
    const struct sim_layout *newest = proc->kept_count > 0 ? proc->kept[0].layout : in_force;
    const bool is_another = newest != in_force && newest->number == in_force->number;
    if (is_another || layout_goes_back(newest->number, in_force->number)) {
        sim->seen[SEEN_opened_anew]++;
        proc->kept_count = 0;
    }
    struct kept_layout *known = find_kept(proc, layout);
    if (known == NULL)
        keep(proc, layout, message->version);
    else if (message->kind == M_LAYOUT)
        known->since = message->version;
    else
        known->since = since_attached(known->since, message->version);
    trim(proc);
    proc->layout = proc->kept[0].layout;
    for (uint32_t s = 0; s < sim->scenario.room; s++)
        if (layout_has(proc->layout, s) && !proc->fabric[s].up)
            sim_at(sim, rng_exponential(&sim->schedule, 500), E_FABRIC_RECONNECT, s, index,
                   proc->life);
}

/* The parameters that it is to compute with, each from the side that has it. */
static void fetch(struct sim *sim, const struct process *proc, struct cairn_version version)
{
    uint32_t at = 0;
    while (at + 1 < proc->kept_count && version_compare(proc->kept[at].since, version) > 0) at++;
    const struct sim_layout *layout = proc->kept[at].layout;
    for (uint32_t c = 0; c < sim->scenario.chunks; c++) take_fetch(sim, layout, c, version);
}

static void on_opened(struct sim *sim, uint32_t index, const struct message *message)
{
    struct process *proc = &sim->procs[index];
    if (proc->state != T_IDLE) return; // asked twice, answered twice
    // A former leader that does not know yet tells of one that is over: no shard takes what comes of it.
    const bool is_former = sim->scenario.coordinators > 0 &&
                           proc->control.to != sim->coordinator.incarnation;
    if (message->round <= proc->round && !is_former)
        sim_fail(sim, "a worker was told of round %" PRIu64 " after round %" PRIu64, message->round,
                 proc->round);
    if (sim->scenario.reshards) fetch(sim, proc, message->version);
    proc->epoch = message->epoch;
    proc->round = message->round;
    proc->round_layout = proc->layout; // a coordinator with an older store may tell of an older one
    proc->writes = message->write;
    proc->batch = (struct spec_batch) { message->write ? 0 : sim->scenario.batch, message->rank,
                                        message->world };
    proc->surplus = proc->batch.total > 0 && batch_count(&proc->batch) == 0;
    proc->state = T_COMPUTING;
    proc->computed = false;
    proc->calls_left = sim->healed ? UINT32_MAX : truth_gives_up(sim, proc->round, proc->life);
    const uint64_t delay = rng_exponential(&sim->schedule, sim->scenario.compute_delay);
    sim_at(sim, delay, E_COMPUTED, index, (uint32_t)proc->round, proc->life);
}

static void on_result(struct sim *sim, uint32_t index, const struct message *message)
{
    struct process *proc = &sim->procs[index];
    oracle_result(sim, message);
    if (proc->state == T_IDLE || message->round != proc->round) return;
    const bool ended = message->status != CAIRN_ERR_EPOCH_CHANGED;
    if (ended && proc->state != T_WAITING)
        sim_fail(sim, "round %" PRIu64 " ended before this contributor committed", message->round);
    if (proc->pushing && proc->push_round == message->round) {
        struct push_actions actions = push_actions(sim);
        if (ended)
            push_on_result(proc->push, &actions);
        else
            push_on_void(proc->push, &actions);
        do_push_actions(sim, index, &actions);
    }
    begin(sim, index);
    proceed(sim, index);
}

static void from_coordinator(struct sim *sim, uint32_t index, const struct message *message)
{
    struct process *proc = &sim->procs[index];
    const bool is_layout = message->kind == M_ATTACHED || message->kind == M_LAYOUT;
    if (proc->stalled && message->kind != M_FENCED && !is_layout) return;
    if (is_layout) on_layout(sim, index, message);
    if (message->kind == M_OPENED) on_opened(sim, index, message);
    if (message->kind == M_RESULT) on_result(sim, index, message);
    if (message->kind == M_REFUSED)
        sim_at(sim, rng_exponential(&sim->schedule, 3000), E_ASK_AGAIN, index, 0, proc->life);
    if (message->kind == M_FENCED)
        process_kill(sim, index); // the library tells the trainer, which exits
}

static void on_grant(struct sim *sim, uint32_t shard, uint32_t index, const struct message *message)
{
    struct process *proc = &sim->procs[index];
    const uint32_t owner = message->owner;
    if (message->round < proc->grant[owner].round) return; // overtaken by a newer one
    if (proc->grant[owner].via == shard && message->endpoint < proc->grant[owner].endpoint) return;
    proc->grant[owner].round = message->round;
    proc->grant[owner].endpoint = message->endpoint;
    proc->grant[owner].window = message->window;
    proc->grant[owner].via = shard;
    proc->grant[owner].relayed = message->relayed;
    give_grant(sim, index, owner);
}

/* The shard has a new way to us: for its own chunks, and for those that it relays. */
static void on_hello(struct sim *sim, uint32_t shard, uint32_t index, const struct message *message)
{
    struct process *proc = &sim->procs[index];
    if (!proc->pushing) return;
    for (uint32_t o = 0; o < sim->scenario.room; o++) {
        if (proc->push_via[o] != shard) continue;
        struct push_actions actions = push_actions(sim);
        push_on_hello(proc->push, o, message->endpoint, &actions);
        sim->seen[SEEN_endpoint_void] += actions.count;
        do_push_actions(sim, index, &actions);
    }
}

static void see_ack(struct sim *sim, const struct process *proc, uint32_t shard,
                    const struct message *message)
{
    const uint32_t chunk = proc->push_layout->chunk[shard][message->chunk];
    if (proc->on_loan[message->micro][chunk] && proc->sent[message->micro][chunk] == SENT_BEFORE)
        sim->seen[SEEN_acked_late]++;
}

/* A slot is free for what is received. For what is to be read in place there may be none, where it could not
 * be read; or where something was sent to be received since, and holds its place on. And in a void round all
 * is sent again, also what became one that is received. */
static bool may_be_busy(struct process *proc, uint32_t owner, const struct message *message)
{
    if (message->unreadable) proc->push_ways[owner] |= SIM_WAY_UNREADABLE;
    const uint8_t ways = proc->push_ways[owner], both = SIM_WAY_SENT | SIM_WAY_SHARED;
    if (push_voided(proc->push)) return (ways & SIM_WAY_UNREADABLE) != 0;
    return message->unreadable || (message->in_place && (ways & both) == both);
}

static void from_shard(struct sim *sim, uint32_t shard, uint32_t index,
                       const struct message *message)
{
    struct process *proc = &sim->procs[index];
    if (message->kind == M_GRANT) {
        on_grant(sim, shard, index, message);
        return;
    }
    if (message->kind == M_HELLO) {
        on_hello(sim, shard, index, message);
        return;
    }
    if (!proc->pushing || message->round != proc->push_round) return;
    const uint32_t owner = message->owner;
    struct push_actions actions = push_actions(sim);
    switch (message->kind) {
    case M_ACK:
        see_ack(sim, proc, owner, message);
        push_on_ack(proc->push, owner, message->request, &actions);
        break;
    case M_MICRO_ACK: push_on_micro_ack(proc->push, owner, message->micro, &actions); break;
    case M_REFUSE:
        if (message->status == CAIRN_ERR_BUSY && !may_be_busy(proc, owner, message))
            sim_fail(sim, "shard %u had no slot for an honest worker", shard);
        push_on_refuse(proc->push, owner, message->request, message->status, &actions);
        break;
    default: sim_fail(sim, "a worker got message %d", (int)message->kind); return;
    }
    do_push_actions(sim, index, &actions);
}

static void lost(struct sim *sim, uint32_t shard, uint32_t index)
{
    struct process *proc = &sim->procs[index];
    if (!proc->pushing) return;
    for (uint32_t o = 0; o < sim->scenario.room; o++) {
        if (proc->push_via[o] != shard) continue;
        struct push_actions actions = push_actions(sim);
        push_on_lost(proc->push, o, &actions);
        do_push_actions(sim, index, &actions);
    }
}

void process_event(struct sim *sim, const struct event *event)
{
    if (event->kind == E_FABRIC_RECONNECT || event->kind == E_CONTROL_RECONNECT) {
        struct process *proc = &sim->procs[event->b];
        if (!proc->alive || proc->life != event->conn) return;
        if (event->kind == E_CONTROL_RECONNECT) {
            process_connect(sim, event->b);
            return;
        }
        if (proc->fabric[event->a].up) return;
        lost(sim, event->a, event->b); // it notices, and connects again
        fabric_connect(sim, event->a, event->b);
        proceed(sim, event->b);
        return;
    }
    struct process *proc = &sim->procs[event->a];
    switch (event->kind) {
    case E_COMPUTED:
        if (!proc->alive || proc->life != event->conn || (uint32_t)proc->round != event->b) return;
        proc->computed = true;
        break;
    case E_ASK_AGAIN:
        if (proc->alive && proc->life == event->conn && proc->state == T_IDLE) ask(sim, event->a);
        return;
    case E_WORKER_FROM_COORDINATOR: from_coordinator(sim, event->a, event->message); break;
    case E_WORKER_FROM_SHARD: from_shard(sim, event->b, event->a, event->message); break;
    default: return;
    }
    proceed(sim, event->a);
}
