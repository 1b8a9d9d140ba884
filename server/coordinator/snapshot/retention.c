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
    case CAIRN_RETENTION_CLOCK: return "one was taken in the future: the clock is wrong";
    case CAIRN_RETENTION_GOES: return "no rule keeps it";
    case CAIRN_RETENTION_TOO_MUCH: return "all together are too large";
    }
    return "?";
}

/* What the rules are about. */
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

/* What the rules say of one; `newer`: so many that count are newer. */
static enum cairn_retention_fate by_rules(const struct cairn_retention_rules *rules,
                                          uint64_t now_unix_s,
                                          const struct cairn_retention_item *items, size_t count,
                                          size_t i, uint64_t newer)
{
    if (is_first_of_steps(rules, items, count, i)) return CAIRN_RETENTION_EVERY;
    if (rules->keep_last == 0 && rules->keep_every == 0 && rules->keep_within_s == 0)
        return CAIRN_RETENTION_NO_RULE;
    if (counts(&items[i]) && newer < rules->keep_last) return CAIRN_RETENTION_LAST;
    const uint64_t created = items[i].created_unix_s;
    const uint64_t age_s = now_unix_s > created ? now_unix_s - created : 0;
    if (age_s < rules->keep_within_s) return CAIRN_RETENTION_WITHIN;
    return CAIRN_RETENTION_GOES;
}

/* What keeps one whatever the rules say; CAIRN_RETENTION_GOES: nothing. */
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

static bool clock_is_wrong(uint64_t now_unix_s, const struct cairn_retention_item *items,
                           size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (!items[i].is_others && items[i].created_unix_s > now_unix_s + CAIRN_RETENTION_SKEW_S)
            return true;
    return false;
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
            items[i].fate != CAIRN_RETENTION_NO_RULE)
            continue;
        items[i].fate = CAIRN_RETENTION_TOO_MUCH;
        bytes -= items[i].bytes;
    }
}

void cairn_retention_judge(const struct cairn_retention_rules *rules, uint64_t now_unix_s,
                           struct cairn_retention_item *items, size_t count)
{
    const bool in_doubt = clock_is_wrong(now_unix_s, items, count);
    bool has_verified = false;
    uint64_t newer = 0;
    for (size_t i = 0; i < count; i++) {
        struct cairn_retention_item *item = &items[i];
        item->fate = by_right(item, has_verified);
        if (item->fate == CAIRN_RETENTION_GOES)
            item->fate = by_rules(rules, now_unix_s, items, count, i, newer);
        if (in_doubt && cairn_retention_goes(item->fate)) item->fate = CAIRN_RETENTION_CLOCK;
        newer += counts(item);
        has_verified = has_verified || (item->is_verified && !item->is_others && !item->is_damaged);
    }
    if (!in_doubt) fit(rules, items, count);
}
