#include "server/coordinator/snapshot/retention.h"

const char *cairn_retention_reason(enum cairn_retention_fate fate)
{
    switch (fate) {
    case CAIRN_RETENTION_LAST: return "one of the newest that are kept";
    case CAIRN_RETENTION_EVERY: return "the first of so many steps, kept for good";
    case CAIRN_RETENTION_WITHIN: return "young enough";
    case CAIRN_RETENTION_NO_RULE: return "no rule removes any";
    case CAIRN_RETENTION_OTHERS: return "taken of another job of the name";
    case CAIRN_RETENTION_ASKED: return "somebody asked for it";
    case CAIRN_RETENTION_TAGGED: return "it has a tag";
    case CAIRN_RETENTION_LATEST: return "it is the latest";
    case CAIRN_RETENTION_VERIFIED: return "the newest verified one";
    case CAIRN_RETENTION_NEEDED: return "no newer one is verified";
    case CAIRN_RETENTION_CLOCK: return "how old it is cannot be told: the clock jumped";
    case CAIRN_RETENTION_GOES: return "no rule keeps it";
    case CAIRN_RETENTION_TOO_MUCH: return "all together are too large";
    }
    return "?";
}

/* True if the snapshot counts for keep_last and keep_every: a periodic one of the job that is
 * not damaged. */
static bool counts(const struct cairn_retention_item *item)
{
    return item->is_periodic && !item->is_others && !item->is_damaged;
}

static bool is_first_of_steps(const struct cairn_retention_rules *rules,
                              const struct cairn_retention_item *items, size_t count, size_t i)
{
    const uint64_t every = rules->keep_every, bucket = every > 0 ? items[i].step / every : 0;
    if (bucket == 0 || !counts(&items[i])) return false;
    for (size_t k = 0; k < count; k++) {
        if (k == i || !counts(&items[k]) || items[k].step / every != bucket) continue;
        // After a restore a step may come twice: the older one stays.
        if (items[k].step < items[i].step || (items[k].step == items[i].step && k > i))
            return false;
    }
    return true;
}

/* Its time cannot be right: it lies in the future, or before that of an older one. */
static bool is_odd(const struct cairn_retention_item *items, size_t count, size_t i,
                   uint64_t latest_s)
{
    if (items[i].created_unix_s > latest_s) return true;
    for (size_t k = i + 1; k < count; k++)
        if (!items[k].is_others && items[k].created_unix_s <= latest_s &&
            items[k].created_unix_s > items[i].created_unix_s)
            return true;
    return false;
}

/* So old it is at least: of an odd one, as old as the next newer one that is not. */
static uint64_t age_s(const struct cairn_retention_clock *clock,
                      const struct cairn_retention_item *items, size_t count, size_t i)
{
    const uint64_t latest_s = clock->now_unix_s + CAIRN_RETENTION_SKEW_S;
    while (i < count && is_odd(items, count, i, latest_s)) i = i > 0 ? i - 1 : count;
    if (i == count || items[i].created_unix_s > clock->now_unix_s) return 0;
    return clock->now_unix_s - items[i].created_unix_s;
}

/* The fate of a snapshot by the rules alone; `newer`: so many snapshots that count are newer. */
static enum cairn_retention_fate by_rules(const struct cairn_retention_rules *rules,
                                          const struct cairn_retention_clock *clock,
                                          const struct cairn_retention_item *items, size_t count,
                                          size_t i, uint64_t newer)
{
    if (is_first_of_steps(rules, items, count, i)) return CAIRN_RETENTION_EVERY;
    if (rules->keep_last == 0 && rules->keep_every == 0 && rules->keep_within_s == 0)
        return CAIRN_RETENTION_NO_RULE;
    if (counts(&items[i]) && newer < rules->keep_last) return CAIRN_RETENTION_LAST;
    if (age_s(clock, items, count, i) < rules->keep_within_s) return CAIRN_RETENTION_WITHIN;
    return clock->sound_s < rules->keep_within_s ? CAIRN_RETENTION_CLOCK : CAIRN_RETENTION_GOES;
}

/* The reason to keep a snapshot whatever the rules say; CAIRN_RETENTION_GOES: there is none. */
static enum cairn_retention_fate by_right(const struct cairn_retention_item *item,
                                          bool has_verified)
{
    if (item->is_others) return CAIRN_RETENTION_OTHERS;
    if (item->is_tagged) return CAIRN_RETENTION_TAGGED;
    if (!item->is_periodic) return CAIRN_RETENTION_ASKED;
    if (item->is_latest) return CAIRN_RETENTION_LATEST;
    if (!has_verified) return item->is_verified ? CAIRN_RETENTION_VERIFIED : CAIRN_RETENTION_NEEDED;
    return CAIRN_RETENTION_GOES;
}

/* The oldest first, but for those of keep_every, and what is kept by right. */
static void fit(const struct cairn_retention_rules *rules, struct cairn_retention_item *items,
                size_t count)
{
    uint64_t bytes = 0;
    for (size_t i = 0; i < count; i++)
        if (!items[i].is_others && !cairn_retention_goes(items[i].fate)) bytes += items[i].bytes;
    for (size_t i = count; i-- > 0 && rules->max_bytes > 0 && bytes > rules->max_bytes;) {
        if (items[i].fate != CAIRN_RETENTION_LAST && items[i].fate != CAIRN_RETENTION_WITHIN &&
            items[i].fate != CAIRN_RETENTION_CLOCK && items[i].fate != CAIRN_RETENTION_NO_RULE)
            continue;
        items[i].fate = CAIRN_RETENTION_TOO_MUCH;
        bytes -= items[i].bytes;
    }
}

void cairn_retention_judge(const struct cairn_retention_rules *rules,
                           const struct cairn_retention_clock *clock,
                           struct cairn_retention_item *items, size_t count)
{
    bool has_verified = false, any_verified = false; // any: also what the job turned away from
    uint64_t newer = 0, any_newer = 0;
    for (size_t i = 0; i < count; i++) {
        struct cairn_retention_item *item = &items[i];
        item->fate = by_right(item, item->is_left ? any_verified : has_verified);
        if (item->fate == CAIRN_RETENTION_GOES)
            item->fate = by_rules(rules, clock, items, count, i, item->is_left ? any_newer : newer);
        any_newer += counts(item);
        newer += counts(item) && !item->is_left;
        const bool stands = item->is_verified && !item->is_others && !item->is_damaged;
        any_verified = any_verified || stands;
        has_verified = has_verified || (stands && !item->is_left);
    }
    fit(rules, items, count);
}
