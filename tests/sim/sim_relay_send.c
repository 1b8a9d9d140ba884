/* What a relay passes on: to an owner it is a worker, with sums for chunks. A round is over for it as
 * soon as it is void or resolved: the fabric keeps what it has on loan, and nobody waits for answers. */
#include <string.h>

#include "tests/sim/sim.h"

static struct push_actions push_actions(struct sim *sim)
{
    const struct push_config config = sim_relay_push_config();
    return (struct push_actions) { sim->push_list, 0, push_actions_max(&config) };
}

/* ---- what the machine says ---- */

static void send(struct sim *sim, uint32_t shard, uint32_t owner, const struct push_action *action)
{
    struct sim_relay *relay = &sim->relays[shard];
    struct message message = { .member = relay->number,
                               .epoch = relay->epoch,
                               .round = relay->round,
                               .micro = action->micro,
                               .owner = owner };
    if (action->kind == CAIRN_PUSH_SEND_CHUNK) {
        message.kind = M_CHUNK;
        message.chunk = action->chunk;
        message.is_small = sim_is_small(relay->layout->chunk[owner][action->chunk]);
        message.request = action->request;
        uint8_t *sent = &relay->sums[action->cookie].sent;
        if (*sent != NOT_SENT) sim->seen[SEEN_relay_resent]++;
        *sent = SENT;
    } else if (action->kind == CAIRN_PUSH_SEND_MICRO_END) {
        message.kind = M_MICRO_END;
        message.sent = action->sent;
        message.absent = relay->layout->count[owner] - action->sent;
    } else {
        message.kind = M_SHARD_COMMIT;
        message.weight = action->weight;
    }
    sim_send_fabric(sim, &relay->owners[owner].link, E_SHARD_FROM_WORKER, owner, PROCS_MAX + shard,
                    &message);
}

static void act(struct sim *sim, uint32_t shard, uint32_t owner, const struct push_actions *actions)
{
    struct sim_relay *relay = &sim->relays[shard];
    for (size_t i = 0; i < actions->count; i++) {
        const struct push_action *action = &actions->list[i];
        switch (action->kind) {
        case CAIRN_PUSH_RELEASED: buffer_pool_end(&relay->pool, (uint32_t)action->cookie); break;
        case CAIRN_PUSH_VOID: // the coordinator knows by itself
            if (action->status != CAIRN_ERR_STALE && action->status != CAIRN_ERR_FENCED)
                sim_fail(sim, "shard %u refused an honest relay: %s", owner,
                         status_code_name((int)action->status));
            break;
        default: send(sim, shard, owner, action); break;
        }
    }
    relay_advance(sim, shard);
}

/* ---- a round ---- */

static void give_grant(struct sim *sim, uint32_t shard, uint32_t index)
{
    struct relay_owner *owner = &sim->relays[shard].owners[index];
    if (owner->push == NULL || owner->grant.round != sim->relays[shard].round) return;
    struct push_actions actions = push_actions(sim);
    push_on_grant(owner->push, 0, owner->grant.endpoint, owner->grant.window, &actions);
    act(sim, shard, index, &actions);
}

void relay_send_begin(struct sim *sim, uint32_t shard, uint32_t index)
{
    const struct push_config config = sim_relay_push_config();
    struct relay_owner *owner = &sim->relays[shard].owners[index];
    owner->push = push_init(sim->relay_push_memory[shard][index], &config);
    owner->forwards = owner->micros = 0;
    give_grant(sim, shard, index);
}

void relay_send_end(struct sim *sim, uint32_t shard, uint32_t index)
{
    struct sim_relay *relay = &sim->relays[shard];
    relay->owners[index].push = NULL;
    buffer_pool_end_sending(&relay->pool, &relay->owners[index].buffers);
}

static cairn_status pass_on(struct sim *sim, uint32_t shard, uint32_t index,
                            const struct step_action *action, struct push_actions *actions)
{
    struct sim_relay *relay = &sim->relays[shard];
    struct relay_owner *owner = &relay->owners[index];
    if (owner->sums[action->chunk] == CAIRN_BUFFER_NONE) {
        sim_fail(sim, "relay %u passes on a sum that it has not begun", shard);
        return CAIRN_OK;
    }
    const uint32_t buffer = buffer_pool_final(&relay->pool, &owner->buffers, action->chunk);
    relay->sums[buffer].micro = action->micro;
    const uint32_t chunk = relay->layout->chunk[index][action->chunk];
    const struct push_chunk next = { .chunk = action->chunk,
                                     .is_small = sim_is_small(chunk),
                                     .cookie = buffer };
    const cairn_status status = push_chunk(owner->push, 0, action->micro, next, actions);
    if (status != CAIRN_OK) buffer_pool_end(&relay->pool, buffer);
    return status;
}

/* What a core says of micro-batches has to be what it did. */
static void judge_forward(struct sim *sim, uint32_t shard, struct relay_owner *owner,
                          const struct step_action *action)
{
    const bool commits = action->kind == CAIRN_STEP_FORWARD_COMMIT;
    if (owner->push == NULL || action->round != sim->relays[shard].round)
        sim_fail(sim, "relay %u passes on something of no round", shard);
    if (action->micro + commits != owner->micros)
        sim_fail(sim, "relay %u passes on something of micro-batch %u; %u have ended", shard,
                 action->micro, owner->micros);
    if (action->kind == CAIRN_STEP_FORWARD) owner->forwards++;
    if (action->kind != CAIRN_STEP_FORWARD_END) return;
    if (action->count != owner->forwards)
        sim_fail(sim, "relay %u has passed on %u sums, and says %u", shard, owner->forwards,
                 action->count);
    owner->micros++;
    owner->forwards = 0;
}

void relay_forward(struct sim *sim, uint32_t shard, uint32_t index,
                   const struct step_action *action)
{
    struct relay_owner *owner = &sim->relays[shard].owners[index];
    judge_forward(sim, shard, owner, action);
    if (sim->failed) return;
    struct push_actions actions = push_actions(sim);
    cairn_status status;
    if (action->kind == CAIRN_STEP_FORWARD)
        status = pass_on(sim, shard, index, action, &actions);
    else if (action->kind == CAIRN_STEP_FORWARD_END)
        status = push_micro_end(owner->push, action->micro, &actions);
    else
        status = push_commit(owner->push, action->weight, &actions);
    if (status != CAIRN_OK && status != CAIRN_ERR_EPOCH_CHANGED)
        sim_fail(sim, "relay %u cannot pass on: %s", shard, status_code_name((int)status));
    act(sim, shard, index, &actions);
}

void relay_read(struct sim *sim, uint32_t owner, const struct landing *landing, float *out)
{
    const uint32_t shard = (uint32_t)(landing->member % 16) - PROCS_MAX;
    const struct sim_relay *relay = &sim->relays[shard];
    // What is read for a round that is over here is the fabric's: it may be anything, and means nothing.
    memset(out, 0x5a, ELEMS_MAX * sizeof *out);
    if (relay->round != landing->round) return;
    if (relay->layout->owner[landing->chunk] != owner) {
        sim_fail(sim, "shard %u reads a chunk for another layout than the relay's", owner);
        return;
    }
    const uint32_t chunk = relay->layout->local[landing->chunk];
    for (uint32_t i = 0; i < relay->pool.touched; i++) {
        const struct buffer *buffer = &relay->buffers[i];
        const struct relay_sum *sum = &relay->sums[i];
        if (buffer->state != CAIRN_BUFFER_SENDING || buffer->chunk != chunk ||
            buffer->owner != &relay->owners[owner].buffers || sum->micro != landing->micro)
            continue;
        memcpy(out, sum->elems, sizeof sum->elems);
        return;
    }
    sim_fail(sim, "shard %u read chunk %u of micro-batch %u of a relay that has it back", owner,
             landing->chunk, landing->micro);
}

/* ---- what an owner says ---- */

static void on_grant(struct sim *sim, uint32_t shard, uint32_t index, const struct message *message)
{
    struct relay_owner *owner = &sim->relays[shard].owners[index];
    if (message->round < owner->grant.round || message->endpoint < owner->grant.endpoint) return;
    owner->grant.round = message->round;
    owner->grant.endpoint = message->endpoint;
    owner->grant.window = message->window;
    give_grant(sim, shard, index);
}

void relay_from_owner(struct sim *sim, uint32_t shard, uint32_t index,
                      const struct message *message)
{
    struct push_round *push = sim->relays[shard].owners[index].push;
    if (message->kind == M_GRANT) {
        on_grant(sim, shard, index, message);
        return;
    }
    if (push == NULL) return;
    if (message->kind != M_HELLO && message->round != sim->relays[shard].round) return;
    struct push_actions actions = push_actions(sim);
    switch (message->kind) {
    case M_HELLO: push_on_hello(push, 0, message->endpoint, &actions); break;
    case M_ACK: push_on_ack(push, 0, message->request, &actions); break;
    case M_MICRO_ACK: push_on_micro_ack(push, 0, message->micro, &actions); break;
    case M_REFUSE:
        if (message->status == CAIRN_ERR_BUSY)
            sim_fail(sim, "shard %u had no slot for an honest relay", index);
        push_on_refuse(push, 0, message->request, message->status, &actions);
        break;
    default: sim_fail(sim, "a relay got message %d", (int)message->kind); return;
    }
    act(sim, shard, index, &actions);
}

/* ---- connections ---- */

void relay_break(struct sim *sim, uint32_t shard, uint32_t index)
{
    struct sim_relay *relay = &sim->relays[shard];
    struct relay_owner *owner = &relay->owners[index];
    if (!owner->link.up) return;
    owner->link.up = false;
    owner->grant.round = owner->grant.endpoint = 0;
    sim_at(sim, rng_exponential(&sim->schedule, 2000), E_PEER_DOWN, index, PROCS_MAX + shard,
           owner->link.id);
    if ((relay->owner_bits >> index & 1) != 0)
        sim_at(sim, rng_exponential(&sim->schedule, 1500), E_FABRIC_RECONNECT, index,
               PROCS_MAX + shard, relay->number);
}

void relay_reconnect(struct sim *sim, uint32_t shard, uint32_t index)
{
    struct sim_relay *relay = &sim->relays[shard];
    struct relay_owner *owner = &relay->owners[index];
    if (owner->link.up || !sim->shards[shard].alive) return;
    if (owner->push != NULL) { // it notices, and connects again
        struct push_actions actions = push_actions(sim);
        push_on_lost(owner->push, 0, &actions);
        act(sim, shard, index, &actions);
    }
    if (!sim->shards[index].alive) return;
    owner->link.id++;
    owner->link.up = true;
    const struct message hello = { .kind = M_HELLO, .member = relay->number };
    sim_send_fabric(sim, &owner->link, E_SHARD_FROM_WORKER, index, PROCS_MAX + shard, &hello);
}
