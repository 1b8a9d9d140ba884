#include "server/core/seat.h"

#include "server/core/mutant.h"

enum cairn_seat_verdict cairn_seat_judge(const struct cairn_seat_claim *claim)
{
    if (!claim->taken || claim->same) return CAIRN_SEAT_TAKES;
    if (claim->probe == CAIRN_SEAT_SILENT || MUTANT(34)) return CAIRN_SEAT_TAKES;
    if (claim->newcomer_holds && !claim->sitter_holds && !MUTANT(35)) return CAIRN_SEAT_RELIEVES;
    if (claim->probe == CAIRN_SEAT_UNASKED) return CAIRN_SEAT_PROBES;
    if (claim->probe == CAIRN_SEAT_ASKED) return CAIRN_SEAT_WAITS;
    return claim->newcomer_holds ? CAIRN_SEAT_STANDS : CAIRN_SEAT_ENDS;
}

bool cairn_seat_has(const struct cairn_seat_part *part, const struct cairn_seat_part *held,
                    size_t held_count)
{
    bool other = false; // another layout of it is held, beside which one may be prepared
    for (size_t i = 0; i < held_count; i++) {
        if (held[i].job != part->job || held[i].generation != part->generation) continue;
        if (held[i].layout_hash == part->layout_hash) return true;
        other = true;
    }
    return !other && MUTANT(36);
}
