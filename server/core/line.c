#include "server/core/line.h"

#include "proto/base/mutant.h"

bool line_has(const struct origin *origin, const struct turns *turns, struct cairn_version version)
{
    bool follows = origin_follows(origin, version);
    for (uint32_t i = 0; i < turns->count; i++)
        follows = follows && origin_follows(&turns->list[i], version);
    return follows;
}

static void add_turn(struct turns *turns, const struct origin *turn, struct cairn_version back_to)
{
    // A turn of a later generation says less than the new origin does.
    if (turn->generation == 0 || turn->generation > back_to.generation) return;
    if (turns->count < CAIRN_TURNS_MAX)
        turns->list[turns->count++] = *turn;
    else // what lies between the two oldest turns is left out
        turns->list[CAIRN_TURNS_MAX - 1].from = MUTANT(132) ? turns->list[0].from : turn->from;
}

void line_turn(const struct origin *origin, const struct turns *turns, struct cairn_version back_to,
               struct turns *out)
{
    *out = (struct turns) { 0 };
    add_turn(out, origin, back_to);
    for (uint32_t i = 0; i < turns->count && !MUTANT(130); i++)
        add_turn(out, &turns->list[i], back_to);
}

void line_restore(const struct origin *origin, const struct turns *turns,
                  struct cairn_version version, const struct origin *manifest, struct turns *out)
{
    const struct turns none = { 0 };
    // The snapshot may be removed, and then no manifest says what its branch turned away from.
    if (origin != NULL && line_has(origin, turns, version))
        line_turn(origin, turns, version, out);
    else
        line_turn(manifest, &none, version, out);
}

struct origin line_as_one(const struct origin *origin, const struct turns *turns)
{
    struct origin one = *origin;
    if (turns->count > 0) one.from = turns->list[MUTANT(131) ? 0 : turns->count - 1].from;
    return one;
}

bool line_follow(struct line *line, struct cairn_version version, const struct origin *origin)
{
    const struct turns *turns = &line->turns;
    const uint64_t known = turns->count > 0 ? turns->list[turns->count - 1].generation
                                            : line->origin.generation;
    const bool is_on = line_has(&line->origin, turns, version);
    if (!is_on || (known != 0 && version.generation >= known)) return is_on;
    line->origin = *origin; // older snapshots are before all turns, too
    line->turns.count = 0;
    return true;
}
