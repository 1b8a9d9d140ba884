/* What a shard knows of those that push to it, workers and relays: their connections, its own endpoints
 * to them, and the reading of what they contribute. */
#include <string.h>

#include "tests/sim/sim.h"

/* ---- who and where ---- */

uint32_t sim_place(const struct sim *sim, uint64_t member)
{
    const uint32_t place = (uint32_t)(member % 16);
    if (place < PROCS_MAX)
        return sim->procs[place].alive && sim->procs[place].life == member ? place : NOBODY;
    if (place >= PLACES_MAX) return NOBODY;
    return sim->relays[place - PROCS_MAX].number == member ? place : NOBODY;
}

struct link *sim_fabric(struct sim *sim, uint32_t place, uint32_t shard)
{
    if (shard >= OTHER) return &sim->no_link; // nobody pushes to a process that has no place
    if (place < PROCS_MAX) return &sim->procs[place].fabric[shard];
    return &sim->relays[place - PROCS_MAX].owners[shard].link;
}

/* Is the connection that the other one made the one that the shard knows? */
static bool stands(struct sim *sim, uint32_t shard, uint32_t place)
{
    const struct peer *peer = &shard_at(sim, shard)->peers[place];
    const struct link *link = sim_fabric(sim, place, shard);
    return peer->up && peer->conn == link->id && link->up;
}

/* ---- connections ---- */

static void tell(struct sim *sim, uint32_t shard, enum step_event_kind kind, uint64_t member)
{
    const struct step_event event = { .kind = kind, .member = member };
    if (shard_at(sim, shard)->core == NULL) return;
    shard_core_event(sim, shard, &event);
    relay_peer_event(sim, shard, &event);
}

/* A new endpoint to a worker that is connected: the shard says so by it. */
static void greet(struct sim *sim, uint32_t shard, uint32_t place)
{
    struct peer *peer = &shard_at(sim, shard)->peers[place];
    peer->endpoint = ++shard_at(sim, shard)->endpoints;
    peer->dead = false;
    const struct message hello = { .kind = M_HELLO,
                                   .member = peer->member,
                                   .endpoint = peer->endpoint };
    if (stands(sim, shard, place))
        sim_send_fabric(sim, sim_fabric(sim, place, shard), E_WORKER_FROM_SHARD, place, shard,
                        &hello);
}

void peer_hello(struct sim *sim, uint32_t shard, uint32_t place, uint64_t member, uint64_t conn)
{
    struct peer *peer = &shard_at(sim, shard)->peers[place];
    if (peer->up && peer->conn == conn && peer->member == member) return; // a duplicate
    if (peer->up) tell(sim, shard, CAIRN_STEP_PEER_DOWN, peer->member);
    *peer = (struct peer) { .member = member, .conn = conn, .up = true };
    greet(sim, shard, place);
    tell(sim, shard, CAIRN_STEP_PEER_UP, member);
}

void peer_down(struct sim *sim, uint32_t shard, uint32_t place, uint64_t conn)
{
    struct peer *peer = &shard_at(sim, shard)->peers[place];
    if (!peer->up || peer->conn != conn) return;
    peer->up = false;
    tell(sim, shard, CAIRN_STEP_PEER_DOWN, peer->member);
}

void shard_endpoint_break(struct sim *sim, uint32_t shard, uint32_t place)
{
    struct peer *peer = &shard_at(sim, shard)->peers[place];
    if (!stands(sim, shard, place) || peer->dead) return;
    peer->dead = true;
    sim->seen[place < PROCS_MAX ? SEEN_endpoint_lost : SEEN_relay_endpoint]++;
    sim_at(sim, rng_exponential(&sim->schedule, 2000), E_ENDPOINT_DOWN, shard, place,
           peer->endpoint);
}

/* The shard's own way to a worker is lost: it makes another at once. */
void peer_endpoint_down(struct sim *sim, uint32_t shard, uint32_t place, uint64_t endpoint)
{
    struct peer *peer = &shard_at(sim, shard)->peers[place];
    if (!peer->up || peer->endpoint != endpoint) return;
    tell(sim, shard, CAIRN_STEP_PEER_DOWN, peer->member);
    greet(sim, shard, place);
    tell(sim, shard, CAIRN_STEP_PEER_UP, peer->member);
}

void peer_send(struct sim *sim, uint32_t shard, struct message *message)
{
    const uint32_t place = sim_place(sim, message->member);
    if (place == NOBODY) return;
    const struct peer *peer = &shard_at(sim, shard)->peers[place];
    const struct link *link = sim_fabric(sim, place, shard);
    if (!peer->up || peer->member != message->member || peer->conn != link->id) return;
    if (peer->dead) {
        sim->seen[SEEN_endpoint_answers]++;
        return;
    }
    message->endpoint = peer->endpoint;
    sim_send_fabric(sim, link, E_WORKER_FROM_SHARD, place, shard, message);
}

struct message peer_answer(enum message_kind kind, const struct step_action *action, uint32_t owner,
                           bool relayed)
{
    return (struct message) { .kind = kind,
                              .status = action->status,
                              .epoch = action->epoch,
                              .round = action->round,
                              .member = action->member,
                              .micro = action->micro,
                              .chunk = action->chunk,
                              .window = { .chunks = action->window,
                                          .small = action->small,
                                          .in_place = action->in_place },
                              .request = action->request,
                              .owner = owner,
                              .relayed = relayed };
}

struct step_event peer_event_of(const struct message *message, uint64_t tag)
{
    struct step_event event = { .kind = CAIRN_STEP_CHUNK,
                                .epoch = message->epoch,
                                .round = message->round,
                                .member = message->member,
                                .micro = message->micro,
                                .chunk = message->chunk,
                                .sent = message->sent,
                                .absent = message->absent,
                                .weight = message->weight,
                                .request = message->request,
                                .is_small = message->is_small,
                                .in_place = message->in_place,
                                .tag = tag };
    if (message->kind == M_MICRO_END) event.kind = CAIRN_STEP_MICRO_END;
    if (message->kind == M_SHARD_COMMIT) event.kind = CAIRN_STEP_COMMIT;
    return event;
}

/* ---- reading ---- */

struct landing landing_of(const struct sim *sim, uint32_t shard, uint32_t chunk,
                          const struct message *message)
{
    const struct peer *peer = &shard_at(sim, shard)->peers[message->member % 16];
    return (struct landing) { .member = message->member,
                              .conn = peer->conn,
                              .endpoint = peer->endpoint,
                              .round = message->round,
                              .micro = message->micro,
                              .chunk = chunk };
}

/* A receive that began on an endpoint that is lost ends so or so: it is not said which way it reads. */
static bool lands(struct sim *sim, uint32_t shard, const struct landing *landing)
{
    const uint32_t place = sim_place(sim, landing->member);
    if (place == NOBODY) return false;
    const struct link *link = sim_fabric(sim, place, shard);
    const struct peer *peer = &shard_at(sim, shard)->peers[place];
    if (!link->up || link->id != landing->conn) return false;
    const bool lost = peer->dead || peer->endpoint != landing->endpoint;
    return !lost || rng_chance(&sim->schedule, 0.5);
}

/* The worker's buffer as it is now. */
static void read_worker(struct sim *sim, uint32_t shard, const struct landing *landing, float *out)
{
    const struct process *proc = &sim->procs[landing->member % 16];
    if (!proc->on_loan[landing->micro][landing->chunk])
        sim_fail(sim, "shard %u read chunk %u of micro-batch %u of a worker that has it back",
                 shard, landing->chunk, landing->micro);
    memcpy(out, proc->buffer[landing->micro][landing->chunk], ELEMS_MAX * sizeof *out);
}

bool sim_shares(const struct sim *sim, uint32_t place, uint32_t shard, uint64_t conn)
{
    return mix(mix(sim->seed, 114), conn * 64 + place * 8 + shard) % 3 > 0;
}

bool peer_reads(const struct sim *sim, uint32_t shard, const struct event *in)
{
    const struct message *message = in->message;
    const struct sim_layout *layout = shard_at(sim, shard)->layout;
    if (message->chunk >= layout->count[PLACE(shard)] || !sim_shares(sim, in->b, shard, in->conn))
        return false;
    const uint32_t chunk = layout->chunk[PLACE(shard)][message->chunk];
    const bool on_card = message->chunk < layout->count[PLACE(shard)] / 2;
    if (sim_lies(chunk) != (on_card ? CAIRN_PUSH_LIES_CARD : CAIRN_PUSH_LIES_HOST)) return false;
    return mix(mix(sim->seed, 115), in->conn * CHUNKS_MAX + chunk) % 8 > 0; // no room to map it
}

void landing_view(struct sim *sim, uint32_t shard, const struct landing *landing, float *out)
{
    sim->seen[SEEN_in_place]++;
    read_worker(sim, shard, landing, out);
}

/* Who is gone, or knows that the round is over, may write there: nobody takes that sum. */
void landing_folded(struct sim *sim, uint32_t shard, const struct landing *landing)
{
    if (!landing->in_place || shard >= OTHER) return; // of a relay nothing is
    const struct process *proc = &sim->procs[landing->member % 16];
    if (!proc->alive || proc->life != landing->member || !proc->pushing) return;
    if (proc->push_round != landing->round || push_voided(proc->push)) return;
    if (proc->fabric[shard].id != landing->conn || !proc->fabric[shard].up)
        sim->seen[SEEN_in_place_lost]++;
    if (!proc->on_loan[landing->micro][landing->chunk])
        sim_fail(sim, "shard %u adds chunk %u of micro-batch %u, which its worker has back", shard,
                 landing->chunk, landing->micro);
}

cairn_status landing_read(struct sim *sim, uint32_t shard, const struct landing *landing,
                          float *out)
{
    if (landing->in_place) return CAIRN_OK;
    if (!lands(sim, shard, landing)) {
        sim->seen[SEEN_landed_lost]++;
        return CAIRN_ERR_CLOSED;
    }
    if (landing->member % 16 < PROCS_MAX)
        read_worker(sim, shard, landing, out);
    else
        relay_read(sim, shard, landing, out);
    if (sim->healed || !rng_chance(&sim->fault, sim->scenario.corrupt)) return CAIRN_OK;
    memset(out, 0x7f, ELEMS_MAX * sizeof *out);
    return CAIRN_ERR_CHECKSUM;
}

/* ---- what members hold ---- */

const uint8_t *fill_holds(const struct sim *sim, const struct sim_layout *layout, uint32_t owner,
                          uint64_t round, const uint64_t *members, uint32_t count,
                          uint8_t out[HOLDS_MAX])
{
    if (sim->scenario.unheld <= 0) return NULL;
    const uint32_t chunks = layout->count[PLACE(owner)];
    const size_t row = CAIRN_STEP_HOLDS_BYTES(chunks);
    memset(out, 0, HOLDS_MAX);
    for (uint32_t i = 0; i < count; i++)
        for (uint32_t c = 0; c < chunks; c++)
            if (oracle_holds(sim, round, members[i], layout->chunk[PLACE(owner)][c]))
                out[i * row + c / 8] |= (uint8_t)(1u << c % 8);
    return out;
}
