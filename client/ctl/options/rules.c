/* Options that say which snapshots a job takes, and which of them stay. */
#include <getopt.h>
#include <string.h>

#include "client/ctl/options/options.h"

/* "500", "500 steps", or a time: "10min", "10 min". */
static int parse_every(struct ctl *ctl, const char *text)
{
    struct ctl_rules *rules = &ctl->rules;
    const size_t digits = strspn(text, "0123456789");
    const char *unit = text + digits + strspn(text + digits, " ");
    char number[24];
    rules->has_every = true;
    rules->every = rules->every_s = 0;
    rules->by_time = unit[0] >= 'a' && unit[0] <= 'z' && strncmp(unit, "step", 4) != 0;
    if (rules->by_time)
        return cairn_ctl_parse_duration("snapshot-every", text, CAIRN_SPEC_SNAPSHOT_S_MAX,
                                        &rules->every_s);
    const bool named = strcmp(unit, "steps") == 0 || strcmp(unit, "step") == 0;
    snprintf(number, sizeof number, "%.*s", named ? (int)(digits < 23 ? digits : 23) : 23, text);
    return cairn_ctl_parse_count_or_none("snapshot-every", named ? number : text,
                                         CAIRN_SPEC_EVERY_MAX, &rules->every);
}

static int parse_fallback(struct ctl *ctl, const char *text)
{
    ctl->rules.has_fallback = true;
    ctl->rules.fallback = strcmp(text, "yes") == 0;
    if (ctl->rules.fallback || strcmp(text, "no") == 0) return -1;
    return cairn_ctl_fail(CAIRN_ERR_INVALID, "--snapshot-fallback %s: yes and no are allowed",
                          text);
}

static int parse_mtbf(struct ctl *ctl, const char *text)
{
    const int done = cairn_ctl_parse_duration("mtbf", text, CAIRN_SPEC_WITHIN_S_MAX, &ctl->mtbf_s);
    if (done >= 0 || ctl->mtbf_s > 0) return done;
    return cairn_ctl_fail(CAIRN_ERR_INVALID, "--mtbf %s: a time longer than 0 is needed", text);
}

/* Takes the options of `snapshot prune`. */
static int take_keeping(struct ctl *ctl, int option)
{
    struct ctl_rules *rules = &ctl->rules;
    switch (option) {
    case OPT_KEEP_LAST:
        rules->has_keep_last = true;
        return cairn_ctl_parse_count("keep-last", optarg, CAIRN_SPEC_KEEP_MAX, &rules->keep_last);
    case OPT_KEEP_EVERY:
        rules->has_keep_every = true;
        return cairn_ctl_parse_count("keep-every", optarg, CAIRN_SPEC_EVERY_MAX,
                                     &rules->keep_every);
    case OPT_KEEP_WITHIN:
        rules->has_keep_within = true;
        return cairn_ctl_parse_duration("keep-within", optarg, CAIRN_SPEC_WITHIN_S_MAX,
                                        &rules->keep_within_s);
    case OPT_MAX_BYTES:
        rules->has_max_bytes = true;
        return cairn_ctl_parse_count("max-bytes", optarg, CAIRN_SPEC_KEEP_BYTES_MAX,
                                     &rules->max_bytes);
    case OPT_DRY_RUN: rules->dry_run = true; return -1;
    case OPT_DELETE: ctl->deletes = true; return -1;
    case OPT_MTBF: return parse_mtbf(ctl, optarg);
    default: return cairn_ctl_take_bench(ctl, option);
    }
}

int cairn_ctl_take_rule(struct ctl *ctl, int option)
{
    struct ctl_rules *rules = &ctl->rules;
    switch (option) {
    case OPT_SNAPSHOT_EVERY: return parse_every(ctl, optarg);
    case OPT_SNAPSHOT_KEEP:
        rules->has_keep_last = true;
        return cairn_ctl_parse_count_or_none("snapshot-keep", optarg, CAIRN_SPEC_KEEP_MAX,
                                             &rules->keep_last);
    case OPT_SNAPSHOT_KEEP_EVERY:
        rules->has_keep_every = true;
        return cairn_ctl_parse_count_or_none("snapshot-keep-every", optarg, CAIRN_SPEC_EVERY_MAX,
                                             &rules->keep_every);
    case OPT_SNAPSHOT_KEEP_WITHIN:
        rules->has_keep_within = true;
        return cairn_ctl_parse_duration("snapshot-keep-within", optarg, CAIRN_SPEC_WITHIN_S_MAX,
                                        &rules->keep_within_s);
    case OPT_SNAPSHOT_MAX_BYTES:
        rules->has_max_bytes = true;
        return cairn_ctl_parse_count_or_none("snapshot-max-bytes", optarg,
                                             CAIRN_SPEC_KEEP_BYTES_MAX, &rules->max_bytes);
    case OPT_SNAPSHOT_STAGING: rules->staging = optarg; return -1;
    case OPT_SNAPSHOT_DURABLE_WITHIN:
        rules->has_durable_within = true;
        return cairn_ctl_parse_duration("snapshot-durable-within", optarg, CAIRN_SPEC_DURABLE_S_MAX,
                                        &rules->durable_within_s);
    case OPT_SNAPSHOT_FALLBACK: return parse_fallback(ctl, optarg);
    case OPT_SNAPSHOT_SCRUB_EVERY:
        rules->has_scrub_every = true;
        return cairn_ctl_parse_duration("snapshot-scrub-every", optarg, CAIRN_SPEC_SNAPSHOT_S_MAX,
                                        &rules->scrub_every_s);
    default: return take_keeping(ctl, option);
    }
}
