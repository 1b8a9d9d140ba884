/* Random numbers, the heap of events, and messages on their way. */
#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tests/sim/sim.h"

/* splitmix64 (Vigna, public domain): one multiplication chain, good enough and the same everywhere. */
uint64_t rng_next(struct rng *rng)
{
    uint64_t z = (rng->state += 0x9e3779b97f4a7c15u);
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

uint64_t mix(uint64_t a, uint64_t b)
{
    struct rng rng = { a ^ (b * 0xd1342543de82ef95u + 0x632be59bd9b4e019u) };
    return rng_next(&rng);
}

uint64_t rng_below(struct rng *rng, uint64_t bound)
{
    return bound == 0 ? 0 : rng_next(rng) % bound;
}

double rng_unit(struct rng *rng)
{
    return (double)(rng_next(rng) >> 11) * 0x1p-53;
}

bool rng_chance(struct rng *rng, double probability)
{
    return rng_unit(rng) < probability;
}

/* A sum of three uniform numbers and, sometimes, a long one: close enough to a network's delays, and
 * without libm, which differs between machines. */
uint64_t rng_exponential(struct rng *rng, double mean)
{
    double x = (rng_unit(rng) + rng_unit(rng) + rng_unit(rng)) / 1.5;
    if (rng_chance(rng, 0.05)) x *= 8;
    return (uint64_t)(x * mean) + 1;
}

/* ---- the heap ---- */

static bool before(const struct event *a, const struct event *b)
{
    return a->time != b->time ? a->time < b->time : a->order < b->order;
}

struct event *sim_at(struct sim *sim, uint64_t delay, enum event_kind kind, uint32_t a, uint32_t b,
                     uint64_t conn)
{
    if (sim->heap_count == sim->heap_capacity) {
        sim->heap_capacity = sim->heap_capacity * 2 + 256;
        sim->heap = realloc(sim->heap, sim->heap_capacity * sizeof *sim->heap);
        assert(sim->heap != NULL);
    }
    const struct event event = {
        .time = sim->now + delay, .order = sim->order++, .kind = kind, .a = a, .b = b, .conn = conn
    };
    size_t i = sim->heap_count++;
    while (i > 0 && before(&event, &sim->heap[(i - 1) / 2])) {
        sim->heap[i] = sim->heap[(i - 1) / 2];
        i = (i - 1) / 2;
    }
    sim->heap[i] = event;
    return &sim->heap[i];
}

bool sim_pop(struct sim *sim, struct event *out)
{
    if (sim->heap_count == 0) return false;
    *out = sim->heap[0];
    const struct event last = sim->heap[--sim->heap_count];
    size_t i = 0;
    for (;;) {
        size_t child = 2 * i + 1;
        if (child >= sim->heap_count) break;
        if (child + 1 < sim->heap_count && before(&sim->heap[child + 1], &sim->heap[child]))
            child++;
        if (!before(&sim->heap[child], &last)) break;
        sim->heap[i] = sim->heap[child];
        i = child;
    }
    sim->heap[i] = last;
    return true;
}

void sim_forget_work(struct sim *sim, uint32_t shard)
{
    for (size_t i = 0; i < sim->heap_count; i++) {
        struct event *event = &sim->heap[i];
        const bool is_work = event->kind == E_LANDED || event->kind == E_FOLDED ||
                             event->kind == E_SUMMED || event->kind == E_UPDATED ||
                             event->kind == E_MIRROR_FEED || event->kind == E_MIRROR_PIECE ||
                             event->kind == E_MIRROR_SUMS || event->kind == E_LOGGED;
        if (is_work && event->a == shard) event->kind = E_NOTHING; // its place in the heap stays
    }
}

static bool is_for_process(const struct event *event)
{
    switch (event->kind) {
    case E_SHARD_FROM_COORDINATOR:
    case E_SHARD_FROM_WORKER:
    case E_LANDED:
    case E_FOLDED:
    case E_SUMMED:
    case E_UPDATED:
    case E_SHARD_DOWN:
    case E_PEER_DOWN:
    case E_ENDPOINT_DOWN:
    case E_CONTROL_RECONNECT:
    case E_TAKEN:
    case E_TAKE_AGAIN:
    case E_HOST_START:
    case E_MIRROR_FEED:
    case E_MIRROR_PIECE:
    case E_MIRROR_SUMS: return event->a != NOBODY;
    default: return false;
    }
}

void sim_rename_work(struct sim *sim, uint32_t place, uint32_t id)
{
    for (size_t i = 0; i < sim->heap_count; i++) {
        struct event *event = &sim->heap[i];
        uint32_t *process = is_for_process(event)                     ? &event->a
                            : event->kind == E_COORDINATOR_FROM_SHARD ? &event->b
                                                                      : NULL;
        if (process == NULL || (*process != place && *process != id)) continue;
        *process = *process == place ? id : place;
    }
}

void sim_net_reset(struct sim *sim)
{
    for (size_t i = 0; i < sim->heap_count; i++)
        if (sim->heap[i].message != NULL) sim_message_free(sim, sim->heap[i].message);
    sim->heap_count = 0;
    sim->order = 0;
}

/* ---- messages ---- */

struct message *sim_message_copy(struct sim *sim, const struct message *from)
{
    if (sim->free_count == 0) {
        sim->pool_count++;
        sim->free_list = realloc(sim->free_list, sim->pool_count * sizeof *sim->free_list);
        assert(sim->free_list != NULL);
        sim->free_list[sim->free_count++] = malloc(sizeof(struct message));
    }
    struct message *message = sim->free_list[--sim->free_count];
    assert(message != NULL);
    *message = *from;
    if (from->decision.payload != NULL) {
        assert(from->decision.payload_bytes <= PAYLOAD_MAX);
        memcpy(message->payload, from->decision.payload, from->decision.payload_bytes);
    }
    message->decision.payload = message->payload;
    return message;
}

void sim_message_free(struct sim *sim, struct message *message)
{
    sim->free_list[sim->free_count++] = message;
}

void sim_send_control(struct sim *sim, struct link *link, int way, enum event_kind kind,
                      uint32_t to, uint32_t from, const struct message *message)
{
    if (!link->up ||
        (way == 1 && sim->scenario.coordinators > 0 && link->to != sim->coordinator.incarnation))
        return;
    uint64_t at = sim->now + rng_exponential(&sim->schedule, sim->scenario.control_delay);
    if (at <= link->arrives[way]) at = link->arrives[way] + 1;
    link->arrives[way] = at;
    struct message *copy = sim_message_copy(sim, message);
    attack_seal(sim, link, way, copy);
    sim_at(sim, at - sim->now, kind, to, from, link->id)->message = copy;
}

void sim_send_fabric(struct sim *sim, const struct link *link, enum event_kind kind, uint32_t to,
                     uint32_t from, const struct message *message)
{
    if (!link->up) return;
    do {
        const uint64_t delay = rng_exponential(&sim->schedule, sim->scenario.fabric_delay);
        sim_at(sim, delay, kind, to, from, link->id)->message = sim_message_copy(sim, message);
    } while (rng_chance(&sim->schedule, sim->scenario.duplicate));
}

void link_cut(struct sim *sim, struct link *link)
{
    link->up = false;
    link->drains_until = sim->now + rng_exponential(&sim->schedule, sim->scenario.control_delay);
}

struct process *sim_process(struct sim *sim, uint64_t member)
{
    const uint64_t index = member % 16;
    if (index >= PROCS_MAX) return NULL;
    struct process *proc = &sim->procs[index];
    return proc->alive && proc->life == member ? proc : NULL;
}
