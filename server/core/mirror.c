#include "server/core/mirror.h"

#include <assert.h>
#include <stddef.h>

#include "proto/base/mutant.h"

bool mirror_takes_part(const struct mirror_state *mirror)
{
    return mirror->stage == CAIRN_MIRROR_FILLING || mirror->stage == CAIRN_MIRROR_STORING ||
           mirror->stage == CAIRN_MIRROR_IN_STEP;
}

bool mirror_is_taking(const struct mirror_state *mirror)
{
    return mirror->stage == CAIRN_MIRROR_TAKING;
}

enum mirror_verdict mirror_judge(const struct mirror_state *mirror, const struct mirror_view *view)
{
    if (view->has_owner)
        return (mirror_takes_part(mirror) || MUTANT(113)) && view->has_standby ? CAIRN_MIRROR_STAYS
                                                                               : CAIRN_MIRROR_ENDS;
    // Without the owner, a standby that was never in step has nothing that anybody could go on with.
    if (!mirror->is_stored && !MUTANT(109)) return CAIRN_MIRROR_ENDS;
    if (view->owner_comes && !MUTANT(128)) return CAIRN_MIRROR_STAYS;
    // A standby that is away may return in time. Nobody goes on without it, as nobody has the part.
    const bool is_given_up = view->owner_is_empty || view->away_ms >= view->patience_ms;
    return view->has_standby && is_given_up ? CAIRN_MIRROR_TAKES : CAIRN_MIRROR_STAYS;
}

/* Ends the mirror, unless the standby alone has the part, or has the owner's place. */
static enum mirror_order end_mirror(struct mirror_state *mirror, const struct mirror_view *view)
{
    if (mirror->stage == CAIRN_MIRROR_ENDING || mirror->stage == CAIRN_MIRROR_TAKING)
        return CAIRN_MIRROR_DO_NOTHING;
    if (mirror->stage == CAIRN_MIRROR_NONE && !mirror->is_stored) return CAIRN_MIRROR_DO_NOTHING;
    const bool is_last = mirror->is_stored && view->fits && !view->has_owner && !MUTANT(114);
    if (is_last) return CAIRN_MIRROR_DO_NOTHING;
    if (mirror->is_stored && !MUTANT(108)) {
        mirror->stage = CAIRN_MIRROR_ENDING;
        return CAIRN_MIRROR_DO_UNSTORE;
    }
    mirror->stage = CAIRN_MIRROR_NONE;
    mirror->is_stored = false;
    return CAIRN_MIRROR_DO_END;
}

static enum mirror_order on_saved(struct mirror_state *mirror)
{
    switch (mirror->stage) {
    case CAIRN_MIRROR_STORING: mirror->stage = CAIRN_MIRROR_IN_STEP; return CAIRN_MIRROR_DO_NOTHING;
    case CAIRN_MIRROR_TAKING: *mirror = (struct mirror_state) { 0 }; return CAIRN_MIRROR_DO_OWN;
    case CAIRN_MIRROR_ENDING:
        *mirror = (struct mirror_state) { 0 };
        return CAIRN_MIRROR_DO_GO_ALONE;
    default: return CAIRN_MIRROR_DO_NOTHING;
    }
}

/* The store may have what it was told all the same. */
static enum mirror_order on_not_saved(struct mirror_state *mirror, const struct mirror_view *view)
{
    if (mirror->stage == CAIRN_MIRROR_ENDING) {
        mirror->stage = CAIRN_MIRROR_NONE; // a later tick tries again
        if (MUTANT(115)) mirror->is_stored = false;
        return CAIRN_MIRROR_DO_NOTHING;
    }
    if (MUTANT(110) && mirror->stage == CAIRN_MIRROR_TAKING) return on_saved(mirror);
    if (mirror->stage != CAIRN_MIRROR_STORING) return CAIRN_MIRROR_DO_NOTHING;
    if (view->has_owner) return end_mirror(mirror, view);
    mirror->stage =
        CAIRN_MIRROR_NONE; // it has all that the owner had, and may be the last that has
    return CAIRN_MIRROR_DO_NOTHING;
}

static enum mirror_order on_tick(struct mirror_state *mirror, const struct mirror_view *view)
{
    const bool is_made = mirror->stage == CAIRN_MIRROR_MAKING ||
                         mirror->stage == CAIRN_MIRROR_JOINING ||
                         mirror->stage == CAIRN_MIRROR_READY;
    if (mirror->stage == CAIRN_MIRROR_TAKING) return CAIRN_MIRROR_DO_TAKE_AGAIN;
    if (mirror->stage == CAIRN_MIRROR_ENDING) return CAIRN_MIRROR_DO_NOTHING;
    if (mirror->stage == CAIRN_MIRROR_NONE && !mirror->is_stored) return CAIRN_MIRROR_DO_NOTHING;
    if (!view->fits) return end_mirror(mirror, view);
    if (is_made && view->may_mirror && view->has_owner) return CAIRN_MIRROR_DO_NOTHING;
    switch (mirror_judge(mirror, view)) {
    case CAIRN_MIRROR_ENDS: return end_mirror(mirror, view);
    case CAIRN_MIRROR_TAKES:
        if (!view->may_take) return CAIRN_MIRROR_DO_NOTHING;
        mirror->stage = CAIRN_MIRROR_TAKING;
        return CAIRN_MIRROR_DO_TAKE;
    default:
        return view->has_owner && !view->may_mirror ? end_mirror(mirror, view)
                                                    : CAIRN_MIRROR_DO_NOTHING;
    }
}

static enum mirror_order advance(struct mirror_state *mirror, enum mirror_stage from,
                                 enum mirror_stage to, enum mirror_order order)
{
    if (mirror->stage != from) return CAIRN_MIRROR_DO_NOTHING;
    mirror->stage = to;
    return order;
}

static enum mirror_order on_filled(struct mirror_state *mirror, const struct mirror_view *view)
{
    if (mirror->stage != CAIRN_MIRROR_FILLING) return CAIRN_MIRROR_DO_NOTHING;
    if (!view->fits) return end_mirror(mirror, view);
    mirror->stage = CAIRN_MIRROR_STORING;
    mirror->is_stored = !MUTANT(112); // or will be
    return CAIRN_MIRROR_DO_STORE;
}

static enum mirror_order on_standby_lost(struct mirror_state *mirror,
                                         const struct mirror_view *view)
{
    // While the owner is away, too, nobody goes on, so the standby stays in step.
    if (mirror->is_stored && !view->has_owner && view->fits && !MUTANT(114)) {
        if (mirror->stage != CAIRN_MIRROR_TAKING && mirror->stage != CAIRN_MIRROR_ENDING)
            mirror->stage = CAIRN_MIRROR_NONE;
        return CAIRN_MIRROR_DO_NOTHING;
    }
    return end_mirror(mirror, view);
}

static enum mirror_order on_owner_back(struct mirror_state *mirror, const struct mirror_view *view)
{
    if (mirror->stage == CAIRN_MIRROR_TAKING) return CAIRN_MIRROR_DO_NOTHING;
    const bool goes_on = mirror_takes_part(mirror) && view->has_standby && view->fits;
    return goes_on ? CAIRN_MIRROR_DO_PAIR : end_mirror(mirror, view);
}

enum mirror_order mirror_on(struct mirror_state *mirror, enum mirror_event event,
                            const struct mirror_view *view)
{
    switch (event) {
    case CAIRN_MIRROR_ON_BEGIN:
        assert(mirror->stage == CAIRN_MIRROR_NONE && !mirror->is_stored);
        *mirror = (struct mirror_state) { .stage = CAIRN_MIRROR_MAKING };
        return CAIRN_MIRROR_DO_NOTHING;
    case CAIRN_MIRROR_ON_MADE:
        return advance(mirror, CAIRN_MIRROR_MAKING, CAIRN_MIRROR_JOINING, CAIRN_MIRROR_DO_PAIR);
    case CAIRN_MIRROR_ON_PAIRED:
        return advance(mirror, CAIRN_MIRROR_JOINING, CAIRN_MIRROR_READY, CAIRN_MIRROR_DO_NOTHING);
    case CAIRN_MIRROR_ON_OPENS:
        if (!view->fits) return CAIRN_MIRROR_DO_NOTHING;
        return advance(mirror, CAIRN_MIRROR_READY, CAIRN_MIRROR_FILLING, CAIRN_MIRROR_DO_JOIN);
    case CAIRN_MIRROR_ON_FILLED: return on_filled(mirror, view);
    case CAIRN_MIRROR_ON_SAVED: return on_saved(mirror);
    case CAIRN_MIRROR_ON_NOT_SAVED: return on_not_saved(mirror, view);
    case CAIRN_MIRROR_ON_END: return end_mirror(mirror, view);
    case CAIRN_MIRROR_ON_STANDBY_LOST: return on_standby_lost(mirror, view);
    case CAIRN_MIRROR_ON_OWNER_LOST:
        return mirror->is_stored || MUTANT(109) ? CAIRN_MIRROR_DO_NOTHING
                                                : end_mirror(mirror, view);
    case CAIRN_MIRROR_ON_OWNER_BACK: return on_owner_back(mirror, view);
    case CAIRN_MIRROR_ON_TICK: return on_tick(mirror, view);
    }
    assert(false && "an event of a kind that there is not");
    return CAIRN_MIRROR_DO_NOTHING;
}

bool mirror_expects(const struct mirror_state *mirror, const struct mirror_view *view)
{
    const bool is_over = mirror->stage == CAIRN_MIRROR_ENDING ||
                         mirror->stage == CAIRN_MIRROR_TAKING;
    return mirror->is_stored && !is_over && view->fits;
}

void mirror_hears(struct mirror_state *mirror, enum mirror_report_kind kind,
                  struct mirror_report standby)
{
    mirror->heard[kind] = standby;
}

bool mirror_knows_more(uint64_t standby_round, uint64_t owner_round)
{
    return standby_round > owner_round && !MUTANT(116);
}

bool mirror_is_late(uint64_t waiting_ms, uint64_t silent_ms, uint64_t lease_ms)
{
    return waiting_ms > lease_ms + (MUTANT(117) ? 0 : silent_ms);
}

bool mirror_passes(const struct mirror_state *mirror, enum mirror_report_kind kind,
                   struct mirror_report owner)
{
    const struct mirror_report *heard = &mirror->heard[kind];
    if (!mirror->is_stored && !mirror_takes_part(mirror)) return true;
    if (MUTANT(111) && kind == CAIRN_MIRROR_ANSWER) return true;
    if (MUTANT(106) && kind == CAIRN_MIRROR_REDUCED) return true;
    if (MUTANT(107) && kind == CAIRN_MIRROR_PUBLISHED) return true;
    return heard->epoch == owner.epoch && heard->round == owner.round;
}

bool mirrors_pass(const struct mirror_state *const mirrors[static CAIRN_STANDBYS_MAX],
                  enum mirror_report_kind kind, struct mirror_report owner)
{
    int passes = 0;
    for (int i = 0; i < CAIRN_STANDBYS_MAX; i++) passes += mirror_passes(mirrors[i], kind, owner);
    return passes == CAIRN_STANDBYS_MAX || (passes > 0 && MUTANT(129));
}

int mirror_outvoted(const uint64_t *digests, int count)
{
    int alone = -1;
    for (int i = 0; i < count; i++) {
        int others = 0, like_it = 0;
        for (int j = 0; j < count; j++) {
            others += j != i && digests[j] != 0;
            like_it += j != i && digests[j] == digests[i];
        }
        if (digests[i] == 0 || like_it > 0) continue;
        if (others < 2 || alone >= 0) return -1;
        alone = i;
    }
    return alone;
}
