#include "server/core/standing.h"

#include <assert.h>
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

/* ==== mirror ==== */

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

/* ==== durability ==== */

#define NAMED_MAX 8 /* shards that a sentence names */

/* Why a part lacks a tier, after the shard's name, or several; and what to do. */
static const struct {
    const char *lacks_one, *lack, *advice, *because;
} usual[CAIRN_SAFE_TIERS] = {
    [CAIRN_SAFE_PROCESS] = { "loses its part when its process ends",
                             "lose their parts when their processes end",
                             "start it under systemd with FileDescriptorStoreMax=, or by "
                             "`cairn-shard --keep`; a part on a GPU is not kept",
                             "" },
    [CAIRN_SAFE_PEER] = { "has no standby", "have no standby",
                          "start a shard on another host with shard.standby_of = the shard's name",
                          "is not mirrored: " },
    [CAIRN_SAFE_LOG] = { "has no folder for a log", "have no folder for a log",
                         "give the shard one (log.path)", "" },
};

static unsigned safety_wants(cairn_durability asked)
{
    switch (asked) {
    case CAIRN_DURABILITY_PROCESS: return 1u << CAIRN_SAFE_PROCESS;
    case CAIRN_DURABILITY_PEER: return 1u << CAIRN_SAFE_PEER;
    case CAIRN_DURABILITY_LOG: return 1u << CAIRN_SAFE_LOG;
    case CAIRN_DURABILITY_LOG_PEER: return 1u << CAIRN_SAFE_LOG | 1u << CAIRN_SAFE_PEER;
    case CAIRN_DURABILITY_DEFAULT: break;
    }
    return 0;
}

bool safety_mirrors(cairn_durability asked)
{
    return asked == CAIRN_DURABILITY_DEFAULT || (safety_wants(asked) & 1u << CAIRN_SAFE_PEER) != 0;
}

static bool is_wanted(cairn_durability asked, const struct safety_part *part, int tier)
{
    if (asked == CAIRN_DURABILITY_DEFAULT) return part->of[tier].is_due;
    return (safety_wants(asked) & 1u << tier) != 0;
}

/* The question of a tier: has each part it, or could each part have it? */
struct question {
    cairn_durability asked;
    bool may;
};

static bool lacks(const struct question *question, const struct safety_part *part, int tier)
{
    const struct safety_of *of = &part->of[tier];
    return is_wanted(question->asked, part, tier) && !(question->may ? of->may : of->has);
}

/* Adds which parts lack the tier, and what to do: first those that have a reason of their own. */
static void add_lacking(const struct question *question, const struct safety_part *parts,
                        size_t count, int tier, struct sentence *why)
{
    size_t named = 0, alike = 0;
    for (size_t i = 0; i < count; i++) {
        if (!lacks(question, &parts[i], tier)) continue;
        const char *reason = parts[i].of[tier].why;
        if (reason == NULL) alike++;
        if (reason == NULL || named++ >= NAMED_MAX) continue;
        sentence_add(why, "%sshard %s %s%s", why->text[0] != '\0' ? "; " : "", parts[i].shard,
                     usual[tier].because, reason);
    }
    if (alike == 0) return;
    sentence_add(why, "%sshard%s", why->text[0] != '\0' ? "; " : "", alike == 1 ? "" : "s");
    for (size_t i = 0, at = 0; i < count; i++) {
        if (!lacks(question, &parts[i], tier) || parts[i].of[tier].why != NULL) continue;
        if (at++ < NAMED_MAX) sentence_add(why, "%s %s", at > 1 ? "," : "", parts[i].shard);
    }
    if (alike > NAMED_MAX) sentence_add(why, " and %zu more", alike - NAMED_MAX);
    sentence_add(why, " %s: %s", alike == 1 ? usual[tier].lacks_one : usual[tier].lack,
                 usual[tier].advice);
}

struct safety safety_judge(cairn_durability asked, const struct safety_part *parts, size_t count)
{
    struct safety safety = { .asked = asked, .is_coming = true };
    const struct question question = { .asked = asked };
    for (int tier = 0; tier < CAIRN_SAFE_TIERS; tier++) {
        bool all_have = count > 0;
        const uint32_t before = safety.lacking;
        for (size_t i = 0; i < count; i++) {
            const struct safety_of *of = &parts[i].of[tier];
            all_have &= of->has;
            if (!lacks(&question, &parts[i], tier)) continue;
            safety.lacking++;
            safety.is_coming &= of->is_coming;
        }
        if (all_have) safety.has |= 1u << tier;
        if (safety.lacking > before) add_lacking(&question, parts, count, tier, &safety.why);
    }
    return safety;
}

cairn_status safety_may(cairn_durability asked, const struct safety_part *parts, size_t count,
                        struct sentence *why)
{
    const struct question question = { .asked = asked, .may = true };
    struct sentence missing = { "" };
    if (asked == CAIRN_DURABILITY_DEFAULT) return CAIRN_OK;
    for (int tier = 0; tier < CAIRN_SAFE_TIERS; tier++)
        add_lacking(&question, parts, count, tier, &missing);
    if (missing.text[0] == '\0') return CAIRN_OK;
    return fail_with(why, CAIRN_ERR_UNSUPPORTED, "durability %s cannot be had: %s",
                     capability_name(CAIRN_CAPABILITY_DURABILITY, (int)asked), missing.text);
}

const char *safety_text(unsigned has)
{
    static const char *const texts[1u << CAIRN_SAFE_TIERS] = {
        "none", "process",     "peer",     "process+peer",
        "log",  "process+log", "log+peer", "process+log+peer",
    };
    return texts[has % (1u << CAIRN_SAFE_TIERS)];
}
