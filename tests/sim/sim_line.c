/* The line of a job: in each seed a job makes steps and snapshots, is taken back to former versions, is
 * amended, is restored by operators to whatever they like, and is lost. The rule by which a recovery then
 * picks a snapshot is the daemons' (core/line.h); the truth is a tree of versions. */
#include <inttypes.h>

#include "server/core/line.h"
#include "tests/sim/sim.h"

#define EVENTS    90
#define NODES_MAX (EVENTS + 1)
#define FORMER    4 /* versions that the shards keep */

struct node {
    struct cairn_version version;
    uint32_t parent; /* NOBODY: the first one */
    bool is_saved;
    struct origin origin; /* of the manifest */
};

struct history {
    struct node nodes[NODES_MAX];
    uint32_t count, now, first; /* first: of the part that serves, of which versions are kept */
    uint64_t generation;        /* the highest that was used */
    struct line line;
    bool
        is_rough; /* more may be left out: there were more turns than are kept, or a manifest said them */
};

static bool descends(const struct history *h, uint32_t node)
{
    uint32_t at = h->now;
    while (at != node && at != NOBODY) at = h->nodes[at].parent;
    return at == node;
}

static void add(struct history *h, uint32_t parent, struct cairn_version version)
{
    h->nodes[h->count] = (struct node) { .version = version, .parent = parent };
    h->now = h->count++;
}

static void add_generation(struct history *h, uint32_t parent)
{
    const uint64_t step = h->nodes[parent].version.step;
    add(h, parent, (struct cairn_version) { ++h->generation, step });
    h->first = h->now;
}

static void go_back(struct history *h, uint32_t node, const struct turns *turns)
{
    h->is_rough = h->is_rough || turns->count == CAIRN_TURNS_MAX;
    add_generation(h, node);
    h->line.origin = (struct origin) { h->generation, h->nodes[node].version };
    h->line.turns = *turns;
}

/* As inherit_former of server/coordinator/restore.c. */
static void restore(struct history *h, uint32_t node, bool is_known)
{
    struct turns turns;
    line_restore(is_known ? &h->line.origin : NULL, &h->line.turns, h->nodes[node].version,
                 &h->nodes[node].origin, &turns);
    const bool is_on = line_has(&h->line.origin, &h->line.turns, h->nodes[node].version);
    h->is_rough = h->is_rough || !is_known || !is_on;
    go_back(h, node, &turns);
}

static void roll_back(struct sim *sim, struct history *h, struct rng *rng)
{
    uint32_t node = h->now;
    for (uint64_t i = 1 + rng_below(rng, FORMER); i > 0 && node > h->first; i--)
        node = h->nodes[node].parent;
    struct turns turns;
    line_turn(&h->line.origin, &h->line.turns, h->nodes[node].version, &turns);
    go_back(h, node, &turns);
    sim->seen[SEEN_line_back]++;
}

/* The newest one that is saved and before `before`; NOBODY: there is none. */
static uint32_t next_older(const struct history *h, uint32_t before)
{
    uint32_t found = NOBODY;
    for (uint32_t i = 0; i < h->count; i++) {
        const bool is_before = before == NOBODY ||
                               version_compare(h->nodes[i].version, h->nodes[before].version) < 0;
        if (!h->nodes[i].is_saved || !is_before) continue;
        if (found == NOBODY || version_compare(h->nodes[i].version, h->nodes[found].version) > 0)
            found = i;
    }
    return found;
}

static void lose(struct sim *sim, struct history *h)
{
    struct line line = h->line;
    uint32_t chosen = NOBODY, newest = NOBODY;
    for (uint32_t at = next_older(h, NOBODY); at != NOBODY; at = next_older(h, at)) {
        const struct node *node = &h->nodes[at];
        const bool is_on = line_follow(&line, node->version, &node->origin);
        if (is_on && !descends(h, at))
            sim_fail(sim,
                     "version %" PRIu64 ".%" PRIu64 ", which was given up, counts as one that the "
                     "job descends from",
                     node->version.generation, node->version.step);
        if (is_on && chosen == NOBODY) chosen = at;
        if (newest == NOBODY && descends(h, at)) newest = at;
    }
    if (chosen != newest && !h->is_rough)
        sim_fail(sim, "a recovery passes the newest snapshot of its job by");
    if (chosen == NOBODY) return;
    sim->seen[SEEN_line_lost]++;
    restore(h, chosen, true);
}

static uint32_t any_saved(const struct history *h, struct rng *rng)
{
    const uint32_t first = (uint32_t)rng_below(rng, h->count);
    for (uint32_t i = 0; i < h->count; i++)
        if (h->nodes[(first + i) % h->count].is_saved) return (first + i) % h->count;
    return NOBODY;
}

static void do_one(struct sim *sim, struct history *h, struct rng *rng)
{
    const struct cairn_version now = h->nodes[h->now].version;
    const uint64_t kind = rng_below(rng, 100);
    const uint32_t saved = any_saved(h, rng);
    if (kind < 55) {
        add(h, h->now, (struct cairn_version) { now.generation, now.step + 1 });
    } else if (kind < 70) {
        h->nodes[h->now].is_saved = true;
        h->nodes[h->now].origin = line_as_one(&h->line.origin, &h->line.turns);
    } else if (kind < 82) {
        roll_back(sim, h, rng);
    } else if (kind < 85) {
        add_generation(h, h->now); // amended, or written
    } else if (kind < 92) {
        lose(sim, h);
    } else if (saved != NOBODY && kind < 96) {
        restore(h, saved, rng_chance(rng, 0.5)); // if not, it was dropped before
    } else if (saved != NOBODY) {
        h->nodes[saved].is_saved = false; // removed
    }
}

void line_run(struct sim *sim)
{
    struct rng rng = { mix(sim->seed, 118) };
    struct history history = { .count = 0 };
    add(&history, NOBODY, (struct cairn_version) { 1, 0 });
    history.generation = 1;
    for (uint32_t i = 0; i < EVENTS && !sim->failed; i++) do_one(sim, &history, &rng);
    if (!sim->failed) lose(sim, &history);
    sim->trace = mix(sim->trace, mix(history.generation, history.now));
}
