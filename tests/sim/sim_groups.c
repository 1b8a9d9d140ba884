/* Groups, as the coordinator forms them: the members of a host that has shards, who are several, are one
 * member to the owners. */
#include <string.h>

#include "tests/sim/sim.h"

/* The shard of that host that relays to that owner. */
static uint32_t relay_for(const struct sim *sim, uint32_t host, uint32_t owner)
{
    uint32_t here[SHARDS_MAX], count = 0;
    for (uint32_t s = 0; s < sim->scenario.room; s++)
        if (layout_has(sim->coordinator.layout, s) && sim->scenario.shard_host[s] == host)
            here[count++] = s;
    return here[owner % count];
}

static uint32_t owners_of(const struct sim *sim, uint32_t shard)
{
    uint32_t bits = 0;
    for (uint32_t o = 0; o < sim->scenario.room; o++)
        if (layout_has(sim->coordinator.layout, o) &&
            relay_for(sim, sim->scenario.shard_host[shard], o) == shard)
            bits |= 1u << o;
    return bits;
}

static bool grouped(const struct sim *sim, const struct round_action *open, uint32_t i)
{
    return truth_grouped(sim, sim->coordinator.layout->shards, open->members, open->member_count,
                         i);
}

/* Who of a round pushes by way of that shard, by rank; returns how many. */
static uint32_t members_of(const struct sim *sim, uint32_t shard, const struct round_action *open,
                           uint64_t out[PROCS_MAX])
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < open->member_count; i++)
        if (!open->write && grouped(sim, open, i) &&
            truth_host(sim, open->members[i]) == sim->scenario.shard_host[shard])
            out[count++] = open->members[i];
    return owners_of(sim, shard) != 0 ? count : 0;
}

/* A relay with other members than before, or in another layout, is another one. */
void groups_form(struct sim *sim, const struct round_action *open)
{
    for (uint32_t s = 0; sim->scenario.hosts > 0 && s < sim->scenario.room; s++) {
        uint64_t members[PROCS_MAX] = { 0 };
        const bool there = layout_has(sim->coordinator.layout, s);
        const uint32_t count = there ? members_of(sim, s, open, members) : 0;
        const bool same = sim->coordinator.relays[s].number != 0 &&
                          sim->coordinator.relays[s].layout == sim->coordinator.layout &&
                          memcmp(members, sim->coordinator.relays[s].members, sizeof members) == 0;
        sim->coordinator.relays[s].member_count = count;
        if (count == 0 || same) continue;
        sim->coordinator.relays[s].number = ++sim->lives * 16 + PROCS_MAX + s;
        sim->coordinator.relays[s].layout = sim->coordinator.layout;
        memcpy(sim->coordinator.relays[s].members, members, sizeof members);
    }
}

void groups_put_members(struct sim *sim, uint32_t owner, const struct round_action *open,
                        struct message *message)
{
    for (uint32_t i = 0; i < open->member_count; i++) {
        uint64_t member = open->members[i];
        if (!open->write && grouped(sim, open, i)) {
            const uint32_t relay = relay_for(sim, truth_host(sim, member), owner);
            member = sim->coordinator.relays[relay].number;
        } else if (sim->scenario.hosts > 0) {
            sim->seen[SEEN_relay_alone]++;
        }
        bool there = false;
        for (uint32_t k = 0; k < message->member_count; k++)
            there = there || message->members[k] == member;
        if (!there) message->members[message->member_count++] = member;
    }
}

void groups_put_relay(const struct sim *sim, uint32_t shard, struct message *message)
{
    const uint32_t count = sim->coordinator.relays[shard].member_count;
    if (count == 0) return;
    message->relay = sim->coordinator.relays[shard].number;
    message->relay_owners = owners_of(sim, shard);
    message->relay_member_count = count;
    memcpy(message->relay_members, sim->coordinator.relays[shard].members,
           count * sizeof message->relay_members[0]);
}
