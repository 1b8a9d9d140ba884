#include "server/core/standing.h"

#include <stddef.h>

#include "server/core/mutant.h"

enum cairn_standing cairn_standing_of(const struct cairn_coordinator_id *coordinator,
                                      const struct cairn_coordinator_id *seen)
{
    if (seen->store == 0) return CAIRN_STANDING_GOOD;
    if (seen->store != coordinator->store && !MUTANT(40)) return CAIRN_STANDING_FOREIGN;
    const bool newer = seen->incarnation > coordinator->incarnation;
    const bool twin = seen->incarnation == coordinator->incarnation &&
                      seen->process != coordinator->process;
    return newer || twin ? CAIRN_STANDING_SUPERSEDED : CAIRN_STANDING_GOOD;
}

const char *cairn_marks_behind(const struct cairn_marks *store, const struct cairn_marks *seen)
{
    if (seen->generation > store->generation) return "generation";
    if (seen->epoch > store->epoch && !MUTANT(41)) return "epoch";
    if (seen->revision > store->revision) return "revision";
    if (store->round != 0 && seen->round >= store->round) return "round";
    return NULL;
}

static void grow(uint64_t *to, uint64_t value)
{
    if (value > *to) *to = value;
}

void cairn_marks_add(struct cairn_marks *all, const struct cairn_marks *seen)
{
    grow(&all->generation, seen->generation);
    if (!MUTANT(42) || all->epoch == 0) grow(&all->epoch, seen->epoch);
    grow(&all->revision, seen->revision);
    grow(&all->round, seen->round);
}

void cairn_marks_above(struct cairn_marks *all, uint64_t round_block)
{
    all->round += MUTANT(43) ? 0 : round_block + 1;
}
