/* An attacker on the network, in a quarter of the seeds. Control messages then travel in records of the real
 * channels (proto/secure), and he changes, forges, repeats, exchanges and withholds the records. An end that
 * refuses a record gives the connection up, and the cluster goes on as after any lost connection. No message
 * may reach a process but in the order in which it was sent, and each once.
 *
 * He also shakes hands with the coordinator, by bytes that he has overheard of others. */
#include <assert.h>
#include <sodium.h>
#include <stdlib.h>
#include <string.h>

#include "proto/secure/secure.h"
#include "tests/sim/sim.h"

enum { KEPT_MAX = 64, SERIAL_BYTES = 8 };

/* The channels of one connection. */
struct wire {
    struct channel *ends[2];    /* owned: the member's, and the coordinator's */
    uint64_t sent[2], taken[2]; /* records of each way */
    bool touched;
};

struct attack {
    bool active;
    struct rng rng;
    struct wire *wires; /* owned: [count]; messages and links name them by number, from 1 */
    size_t count, capacity;
    struct sim_record kept[KEPT_MAX]; /* overheard */
    uint64_t kept_count;
    /* what he overheard of a handshake, and whom he tries it on */
    uint8_t overheard[CAIRN_HANDSHAKE_FIRST_BYTES + 66];
    struct curve_key coordinator;
    struct handshake_row row;
};

struct attack *attack_open(void)
{
    struct attack *attack = calloc(1, sizeof *attack);
    if (attack == NULL || sodium_init() < 0) abort();
    return attack;
}

static void close_wires(struct attack *attack)
{
    for (size_t i = 0; i < attack->count; i++) {
        channel_close(attack->wires[i].ends[0]);
        channel_close(attack->wires[i].ends[1]);
    }
    attack->count = 0;
}

void attack_close(struct attack *attack)
{
    close_wires(attack);
    free(attack->wires);
    free(attack);
}

void attack_start(struct sim *sim)
{
    struct attack *attack = sim->attack;
    close_wires(attack);
    attack->rng.state = mix(sim->seed, 4);
    attack->kept_count = 0;
    attack->active = rng_chance(&attack->rng, 0.25);
    if (attack->active) sim_at(sim, rng_exponential(&attack->rng, MS(20)), E_ATTACK, 0, 0, 0);
}

/* ==== records ==== */

/* Two ends whose handshake is done. */
static uint32_t new_wire(struct sim *sim)
{
    struct attack *attack = sim->attack;
    struct handshake_result keys = { .send_key = { 1 }, .receive_key = { 2 } };
    struct wire wire = { .touched = false };
    if (array_reserve(&attack->wires, attack->count, 1, &attack->capacity, sizeof wire) != CAIRN_OK)
        abort();
    le_put(keys.send_key + 1, mix(sim->seed, attack->count), 8);
    le_put(keys.receive_key + 1, mix(sim->seed, attack->count), 8);
    if (channel_open_up(&keys, &wire.ends[0]) != CAIRN_OK) abort();
    const struct handshake_result other = keys;
    memcpy(keys.send_key, other.receive_key, sizeof keys.send_key);
    memcpy(keys.receive_key, other.send_key, sizeof keys.receive_key);
    if (channel_open_up(&keys, &wire.ends[1]) != CAIRN_OK) abort();
    attack->wires[attack->count] = wire;
    return (uint32_t)++attack->count;
}

void attack_seal(struct sim *sim, struct link *link, int way, struct message *message)
{
    struct attack *attack = sim->attack;
    message->sealed = (struct sim_record) { .wire = 0 };
    if (!attack->active) return;
    if (link->wire == 0 || link->wire_id != link->id) link->wire = new_wire(sim);
    link->wire_id = link->id;
    struct wire *wire = &attack->wires[link->wire - 1];
    struct sim_record *sealed = &message->sealed;
    struct byte_queue out = { 0 };
    uint8_t serial[SERIAL_BYTES];
    le_put(serial, wire->sent[way], sizeof serial);
    if (channel_seal(wire->ends[way], serial, sizeof serial, sim->now / 1000, &out) != CAIRN_OK)
        abort();
    assert(out.end <= sizeof sealed->bytes);
    *sealed = (struct sim_record) {
        .wire = link->wire, .way = way, .serial = wire->sent[way]++, .count = out.end
    };
    memcpy(sealed->bytes, out.bytes, out.end);
    byte_queue_release(&out);
    attack->kept[attack->kept_count++ % KEPT_MAX] = *sealed;
}

static void give_up(struct sim *sim, const struct event *event)
{
    sim->seen[SEEN_records_refused]++;
    switch (event->kind) {
    case E_COORDINATOR_FROM_SHARD: shard_link_break(sim, event->b, NOTICE); return;
    case E_SHARD_FROM_COORDINATOR: shard_link_break(sim, event->a, NOTICE); return;
    case E_COORDINATOR_FROM_WORKER: process_link_break(sim, event->b); return;
    case E_WORKER_FROM_COORDINATOR: process_link_break(sim, event->a); return;
    default: return; // a twin's: its next messages are refused, too
    }
}

bool attack_take(struct sim *sim, const struct event *event)
{
    const struct sim_record *sealed = &event->message->sealed;
    if (sealed->wire == 0) return true;
    struct wire *wire = &sim->attack->wires[sealed->wire - 1];
    struct byte_queue plain = { 0 };
    size_t used;
    const cairn_status status = channel_take(wire->ends[1 - sealed->way], sealed->bytes,
                                             sealed->count, SIZE_MAX, &used, &plain, NULL);
    const bool is_taken = status == CAIRN_OK && plain.end == SERIAL_BYTES;
    if (is_taken && le_get(plain.bytes, SERIAL_BYTES) != sealed->serial)
        sim_fail(sim, "a record was taken for another one");
    if (is_taken && sealed->serial != wire->taken[sealed->way]++)
        sim_fail(sim, "a record was taken twice, or before another one");
    if (!is_taken && !wire->touched) sim_fail(sim, "a record was refused that nobody had touched");
    byte_queue_release(&plain);
    if (!is_taken) give_up(sim, event);
    return is_taken;
}

/* ==== what he does ==== */

/* A record on its way; NULL: there is none. */
static struct event *any_record(struct sim *sim)
{
    const size_t first = (size_t)rng_below(&sim->attack->rng, sim->heap_count);
    for (size_t i = 0; i < sim->heap_count; i++) {
        struct event *event = &sim->heap[(first + i) % sim->heap_count];
        if (event->message != NULL && event->message->sealed.wire != 0) return event;
    }
    return NULL;
}

static void touch(struct sim *sim, const struct sim_record *sealed)
{
    sim->attack->wires[sealed->wire - 1].touched = true;
}

static void set_bytes(struct sim_record *to, const struct sim_record *from)
{
    memcpy(to->bytes, from->bytes, sizeof to->bytes);
    to->count = from->count;
}

/* The message is there once more, with the same record or a made-up one, sooner or later than the first. */
static void insert(struct sim *sim, const struct event *event, bool is_forged)
{
    struct rng *rng = &sim->attack->rng;
    const struct event like = *event;
    const uint64_t delay = rng_below(rng, 2 * (like.time - sim->now) + 2);
    struct message *message = sim_message_copy(sim, like.message);
    struct sim_record *sealed = &message->sealed;
    for (size_t i = 0; is_forged && i < sealed->count; i++)
        if (i >= 4 || rng_chance(rng, 0.1)) sealed->bytes[i] = (uint8_t)rng_next(rng);
    sim_at(sim, delay, like.kind, like.a, like.b, like.conn)->message = message;
}

static void meddle(struct sim *sim)
{
    struct attack *attack = sim->attack;
    struct event *event = any_record(sim);
    if (event == NULL) return;
    struct sim_record *sealed = &event->message->sealed;
    struct event *other = any_record(sim);
    const struct sim_record before = *sealed;
    const uint64_t kept = attack->kept_count < KEPT_MAX ? attack->kept_count : KEPT_MAX;
    touch(sim, sealed);
    sim->seen[SEEN_attacks]++;
    switch (rng_below(&attack->rng, 6)) {
    case 0:
        sealed->bytes[rng_below(&attack->rng, sealed->count)] ^=
            (uint8_t)(1u << rng_below(&attack->rng, 8));
        return;
    case 1: insert(sim, event, false); return;
    case 2: insert(sim, event, true); return;
    case 3: set_bytes(sealed, &attack->kept[rng_below(&attack->rng, kept)]); return;
    case 4: sealed->count = 0; return; // it never comes
    default:
        touch(sim, &other->message->sealed);
        set_bytes(sealed, &other->message->sealed);
        set_bytes(&other->message->sealed, &before);
        return;
    }
}

/* ==== handshakes ==== */

static bool find_row(void *arg, const uint8_t *key_id, struct handshake_row *row_out)
{
    const struct attack *attack = arg;
    (void)key_id;
    *row_out = attack->row;
    return true;
}

static size_t exchange(struct handshake *to, const uint8_t *bytes, size_t count, uint8_t *answer,
                       enum handshake_state *state_out)
{
    size_t used, left;
    cairn_status status;
    *state_out = handshake_take(to, bytes, count, &used, &status, NULL);
    const uint8_t *sent = handshake_to_send(to, &left);
    memcpy(answer, sent, left);
    return left;
}

static struct handshake *responder(struct attack *attack)
{
    const struct handshake_options options = { .purpose = CAIRN_PURPOSE_CONTROL,
                                               .find = find_row,
                                               .arg = attack };
    struct handshake *handshake;
    if (handshake_open(&options, &handshake) != CAIRN_OK) abort();
    return handshake;
}

/* A member shakes hands, and he listens. */
static void overhear(struct attack *attack)
{
    struct curve_key member;
    uint8_t answer[CAIRN_HANDSHAKE_MOST_BYTES];
    enum handshake_state state;
    curve_key_make(&attack->coordinator);
    curve_key_make(&member);
    attack->row = (struct handshake_row) { .own = &attack->coordinator, .secret = { 7 } };
    const struct handshake_options options = { .is_initiator = true,
                                               .purpose = CAIRN_PURPOSE_CONTROL,
                                               .own = &member,
                                               .secret = { 7 },
                                               .expected = attack->coordinator.open };
    struct handshake *a, *b = responder(attack);
    if (handshake_open(&options, &a) != CAIRN_OK) abort();
    exchange(a, NULL, 0, attack->overheard, &state);
    const size_t count = exchange(b, attack->overheard, CAIRN_HANDSHAKE_FIRST_BYTES, answer,
                                  &state);
    exchange(a, answer, count, attack->overheard + CAIRN_HANDSHAKE_FIRST_BYTES, &state);
    assert(state == CAIRN_HANDSHAKE_DONE);
    handshake_close(a);
    handshake_close(b);
}

/* He repeats it, or changes a bit. */
static void shake_hands(struct sim *sim)
{
    struct attack *attack = sim->attack;
    uint8_t bytes[sizeof attack->overheard], answer[CAIRN_HANDSHAKE_MOST_BYTES];
    enum handshake_state state;
    if (attack->overheard[0] == 0) overhear(attack);
    memcpy(bytes, attack->overheard, sizeof bytes);
    const uint64_t bit = rng_below(&attack->rng, 16 * sizeof bytes);
    if (bit / 8 < sizeof bytes) bytes[bit / 8] ^= (uint8_t)(1u << bit % 8);
    struct handshake *b = responder(attack);
    const size_t count = exchange(b, bytes, CAIRN_HANDSHAKE_FIRST_BYTES, answer, &state);
    if (bit / 8 < CAIRN_HANDSHAKE_FIRST_BYTES && count > 0)
        sim_fail(sim, "a changed first message was answered");
    exchange(b, bytes + CAIRN_HANDSHAKE_FIRST_BYTES, sizeof bytes - CAIRN_HANDSHAKE_FIRST_BYTES,
             answer, &state);
    if (state == CAIRN_HANDSHAKE_DONE) sim_fail(sim, "a stranger was let in");
    handshake_close(b);
    sim->seen[SEEN_handshakes_refused]++;
}

void attack_event(struct sim *sim)
{
    if (sim->healed) return;
    sim_at(sim, rng_exponential(&sim->attack->rng, MS(20)), E_ATTACK, 0, 0, 0);
    if (rng_chance(&sim->attack->rng, 0.05))
        shake_hands(sim);
    else
        meddle(sim);
}
