#include "server/core/lead.h"

#include "proto/base/mutant.h"

bool lead_may_write(const struct lead_term *term, uint64_t now_ms)
{
    return lead_leads(term) && now_ms < term->until_ms;
}

void lead_ends(struct lead_term *term)
{
    term->until_ms = 0;
}

void lead_released(struct lead_term *term)
{
    if (lead_leads(term) || term->stage == CAIRN_LEAD_LED) term->is_released = true;
}

/* ---- what is to be done ---- */

static struct lead_order rest(uint64_t rest_ms)
{
    return (struct lead_order) { .kind = CAIRN_LEAD_REST, .rest_ms = rest_ms };
}

static struct lead_order ask(struct lead_term *term, enum lead_order_kind kind, uint64_t now_ms)
{
    term->began_ms = now_ms;
    return (struct lead_order) { .kind = kind, .lease = term->lease };
}

struct lead_order lead_next(struct lead_term *term, uint64_t now_ms)
{
    switch (term->stage) {
    case CAIRN_LEAD_STANDS_BY: return ask(term, CAIRN_LEAD_LOOK, now_ms);
    case CAIRN_LEAD_GRANTS: return ask(term, CAIRN_LEAD_GRANT, now_ms);
    case CAIRN_LEAD_MAKES: // the lease counts from the grant
        return (struct lead_order) { .kind = CAIRN_LEAD_MAKE, .lease = term->lease };
    case CAIRN_LEAD_FAILED:
    case CAIRN_LEAD_DROPS: return ask(term, CAIRN_LEAD_DROP, now_ms);
    case CAIRN_LEAD_LEADS: return rest(term->lease_ms / 5);
    case CAIRN_LEAD_RENEWS: return ask(term, CAIRN_LEAD_RENEW, now_ms);
    case CAIRN_LEAD_RECOVERS: return rest(term->lease_ms / 2);
    case CAIRN_LEAD_WAITS:
    case CAIRN_LEAD_LED: break;
    }
    return rest(term->lease_ms / 10);
}

/* ---- what came of it ---- */

static void made(struct lead_term *term, const struct lead_answer *answer)
{
    // The key may have been made although the answer was lost: it ends with its lease.
    const bool is_made = MUTANT(124) ? !answer->is_known || answer->made != 0
                                     : answer->is_known && answer->made != 0;
    term->stage = is_made ? CAIRN_LEAD_LEADS : CAIRN_LEAD_FAILED;
    if (!is_made) return;
    term->made = answer->made;
    term->is_released = false;
    term->until_ms = term->began_ms + term->lease_ms;
}

static void renewed(struct lead_term *term, const struct lead_answer *answer, uint64_t now_ms)
{
    const uint64_t began_ms = MUTANT(123) ? now_ms : term->began_ms;
    const bool is_ended = term->until_ms == 0 && !MUTANT(126); // a lease that is alive is none then
    if (answer->is_known && !answer->is_alive) term->until_ms = 0;
    if (answer->is_known && answer->is_alive && !is_ended)
        term->until_ms = began_ms + term->lease_ms;
    term->stage = now_ms < term->until_ms ? CAIRN_LEAD_LEADS : CAIRN_LEAD_LED;
}

void lead_hears(struct lead_term *term, const struct lead_answer *answer, uint64_t now_ms)
{
    switch (term->stage) {
    case CAIRN_LEAD_STANDS_BY:
        term->stage = answer->is_known && !answer->is_led ? CAIRN_LEAD_GRANTS : CAIRN_LEAD_WAITS;
        return;
    case CAIRN_LEAD_GRANTS:
        term->lease = answer->lease;
        term->stage = answer->is_known ? CAIRN_LEAD_MAKES : CAIRN_LEAD_WAITS;
        return;
    case CAIRN_LEAD_MAKES: made(term, answer); return;
    case CAIRN_LEAD_FAILED: term->stage = CAIRN_LEAD_WAITS; return;
    case CAIRN_LEAD_WAITS: term->stage = CAIRN_LEAD_STANDS_BY; return;
    case CAIRN_LEAD_LEADS:
        term->stage = term->is_released ? CAIRN_LEAD_DROPS : CAIRN_LEAD_RENEWS;
        return;
    case CAIRN_LEAD_RENEWS: renewed(term, answer, now_ms); return;
    case CAIRN_LEAD_LED:
        if (term->is_released) term->stage = CAIRN_LEAD_DROPS;
        return;
    case CAIRN_LEAD_DROPS: term->stage = CAIRN_LEAD_RECOVERS; return;
    case CAIRN_LEAD_RECOVERS:
        term->stage = CAIRN_LEAD_STANDS_BY;
        term->is_released = false;
        return;
    }
}

/* ---- writes ---- */

enum lead_verdict lead_judge(const struct lead_term *term, const struct lead_written *written,
                             uint64_t now_ms)
{
    if (written->is_answered) return written->is_leader ? CAIRN_LEAD_WRITTEN : CAIRN_LEAD_ENDS;
    if (written->is_unreachable && lead_may_write(term, now_ms)) return CAIRN_LEAD_AGAIN;
    if (written->is_unreachable && !MUTANT(125)) return CAIRN_LEAD_ENDS;
    return written->may_be_done && !MUTANT(127) ? CAIRN_LEAD_ENDS : CAIRN_LEAD_REFUSED;
}
