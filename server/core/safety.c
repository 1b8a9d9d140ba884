#include "server/core/safety.h"

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

bool safety_logs(cairn_durability asked)
{
    return (safety_wants(asked) & 1u << CAIRN_SAFE_LOG) != 0;
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
