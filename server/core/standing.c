#include "server/core/standing.h"

#include <stddef.h>

#include "proto/base/mutant.h"

/* ==== seat ==== */

enum seat_verdict seat_judge(const struct seat_claim *claim)
{
    if (!claim->taken || claim->same) return CAIRN_SEAT_TAKES;
    if (claim->probe == CAIRN_SEAT_SILENT || MUTANT(34)) return CAIRN_SEAT_TAKES;
    if (claim->newcomer_holds && !claim->sitter_holds && !MUTANT(35)) return CAIRN_SEAT_RELIEVES;
    if (claim->probe == CAIRN_SEAT_UNASKED) return CAIRN_SEAT_PROBES;
    if (claim->probe == CAIRN_SEAT_ASKED) return CAIRN_SEAT_WAITS;
    return claim->newcomer_holds ? CAIRN_SEAT_STANDS : CAIRN_SEAT_ENDS;
}

bool seat_has(const struct seat_part *part, const struct seat_part *held, size_t held_count)
{
    bool other = false; // a part of another layout is held, beside which `part` may be prepared
    for (size_t i = 0; i < held_count; i++) {
        if (held[i].job != part->job || held[i].generation != part->generation) continue;
        if (held[i].layout_hash == part->layout_hash) return true;
        other = true;
    }
    return !other && MUTANT(36);
}

/* ==== standing ==== */

enum standing standing_of(const struct coordinator_id *coordinator,
                          const struct coordinator_id *seen)
{
    if (seen->store == 0) return CAIRN_STANDING_GOOD;
    if (seen->store != coordinator->store && !MUTANT(40)) return CAIRN_STANDING_FOREIGN;
    const bool newer = seen->incarnation > coordinator->incarnation;
    const bool twin = seen->incarnation == coordinator->incarnation &&
                      seen->process != coordinator->process;
    return newer || twin ? CAIRN_STANDING_SUPERSEDED : CAIRN_STANDING_GOOD;
}

const char *marks_behind(const struct marks *store, const struct marks *seen)
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

void marks_add(struct marks *all, const struct marks *seen)
{
    grow(&all->generation, seen->generation);
    if (!MUTANT(42) || all->epoch == 0) grow(&all->epoch, seen->epoch);
    grow(&all->revision, seen->revision);
    grow(&all->round, seen->round);
}

void marks_above(struct marks *all, uint64_t round_block)
{
    all->round += MUTANT(43) ? 0 : round_block + 1;
}
