/* The options of the command line: one table, from which they are read, judged and explained. */
#include "client/ctl/options.h"

#include <inttypes.h>
#include <errno.h>
#include <getopt.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "proto/geometry/layout.h"

#define WATCH_EVERY_S 2

static int parse_duration(const char *name, const char *text, uint32_t max_s, uint32_t *out);
static int take_rule(struct ctl *ctl, int option);

int ctl_usage_fail(const struct ctl *ctl, const char *fmt, ...)
{
    struct sentence text;
    va_list arguments;
    va_start(arguments, fmt);
    vsnprintf(text.text, sizeof text.text, fmt, arguments);
    va_end(arguments);
    return ctl_fail(CAIRN_ERR_INVALID, "%s; see cairn %s%s--help", text.text, ctl->words,
                    ctl->words[0] != 0 ? " " : "");
}

void ctl_options_print(FILE *out, uint64_t takes)
{
    fprintf(out, "\noptions:\n");
    for (size_t i = 0; i < ctl_option_count; i++)
        if (ctl_options[i].shown != NULL &&
            (ctl_options[i].kind == 0 || (takes & ctl_options[i].kind) != 0))
            fprintf(out, "  %-21s %s\n", ctl_options[i].shown, ctl_options[i].help);
}

/* ---- values ---- */

static int parse_timeout(struct ctl *ctl, const char *text)
{
    double seconds;
    const int done = ctl_parse_seconds("timeout", text, &seconds);
    if (done >= 0) return done;
    ctl->timeout_ms = (int)(seconds * 1000);
    if (ctl->timeout_ms == 0) ctl->timeout_ms = 1;
    return -1;
}

/* The seconds may be the next word, if it is a number. */
static int parse_watch(struct ctl *ctl)
{
    const char *next = optarg == NULL && optind < ctl->argc ? ctl->argv[optind] : NULL;
    ctl->watch = true;
    ctl->every_s = WATCH_EVERY_S;
    if (next != NULL && next[strspn(next, "0123456789.")] == '\0' && next[0] != '\0') {
        optarg = ctl->argv[optind++];
    }
    return optarg != NULL ? ctl_parse_seconds("watch", optarg, &ctl->every_s) : -1;
}

static int parse_output(struct ctl *ctl, const char *text)
{
    ctl->json = strcmp(text, "json") == 0;
    if (ctl->json || strcmp(text, "table") == 0) return -1;
    return ctl_fail(CAIRN_ERR_INVALID, "-o %s: table and json are allowed", text);
}

static int parse_since(struct ctl *ctl)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    const uint64_t now_ms = (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
    if (ctl_since(optarg, now_ms, &ctl->since_unix_ms)) return -1;
    return ctl_usage_fail(ctl,
                          "--since %s: give a duration (2h) or a time "
                          "(2026-11-24T14:00:00Z)",
                          optarg);
}

/* "4", or, of a job, "1:4". */
static int parse_workers(struct ctl *ctl, const char *text)
{
    const char *colon = strchr(text, ':');
    char first[16];
    if (colon == NULL) {
        const int done = ctl_parse_number("workers", text, 65535, &ctl->workers_max);
        ctl->workers_min = ctl->bench.workers = ctl->workers_max;
        return done;
    }
    snprintf(first, sizeof first, "%.*s", (int)(colon - text < 15 ? colon - text : 15), text);
    int done = ctl_parse_number("workers", first, 65535, &ctl->workers_min);
    if (done < 0) done = ctl_parse_number("workers", colon + 1, 65535, &ctl->workers_max);
    if (done >= 0 || ctl->workers_min <= ctl->workers_max) return done;
    return ctl_fail(CAIRN_ERR_INVALID, "--workers %s: at most as many as may attach are needed",
                    text);
}

static int take(struct ctl *ctl, int option)
{
    switch (option) {
    case OPT_ENDPOINT: ctl->endpoint = optarg; return -1;
    case OPT_TIMEOUT: return parse_timeout(ctl, optarg);
    case 'o': return parse_output(ctl, optarg);
    case OPT_NO_HEADERS: ctl->no_headers = true; return -1;
    case 'q': ctl->quiet = true; return -1;
    case OPT_WAIT: ctl->wait = true; return -1;
    case OPT_YES: ctl->yes = true; return -1;
    case OPT_FORCE: ctl->force = true; return -1;
    case OPT_WATCH: return parse_watch(ctl);
    case OPT_CHECK: ctl->check = true; return -1;
    case OPT_SNAPSHOT_AGE:
        return parse_duration("snapshot-age", optarg, CAIRN_SPEC_WITHIN_S_MAX,
                              &ctl->snapshot_age_s);
    case OPT_EVERY: return ctl_parse_seconds("every", optarg, &ctl->every_s);
    case OPT_ONCE: ctl->once = true; return -1;
    case OPT_JOB: ctl->job = optarg; return -1;
    case OPT_PATH:
        ctl->path_before = ctl->path;
        ctl->path = optarg;
        return -1;
    case OPT_FROM: ctl->from = optarg; return -1;
    case OPT_AS: ctl->as = optarg; return -1;
    case OPT_SET: return ctl_parse_setting(&ctl->set, optarg);
    case OPT_TO: ctl->to = optarg; return -1;
    case OPT_SHARDS: return ctl_parse_number("shards", optarg, CAIRN_SHARDS_MAX, &ctl->shards);
    case OPT_WORKERS: return parse_workers(ctl, optarg);
    case OPT_LR: ctl->has_lr = true; return ctl_parse_real("lr", optarg, &ctl->lr);
    case OPT_GROUP: ctl->group = optarg; return -1;
    case OPT_CLIP_NORM:
        ctl->has_clip_norm = true;
        return ctl_parse_real("clip-norm", optarg, &ctl->clip_norm);
    case OPT_ON_SHARD_LOSS: ctl->on_shard_loss = optarg; return -1;
    case OPT_SHARD_LOSS_WAIT:
        return ctl_parse_number("shard-loss-wait", optarg, CAIRN_SPEC_LOSS_WAIT_MAX_S,
                                &ctl->shard_loss_wait_s);
    case OPT_ALL: ctl->reshard.all = true; return -1;
    case OPT_ADD: return ctl_parse_name(&ctl->reshard.add, "add", optarg);
    case OPT_DRAIN: return ctl_parse_name(&ctl->reshard.drain, "drain", optarg);
    case OPT_WEIGHT: return ctl_parse_weight(&ctl->reshard.weight, optarg);
    case OPT_PAUSE: return ctl_parse_percent("pause", optarg, 10000, &ctl->reshard.pause);
    case OPT_SINCE: return parse_since(ctl);
    case OPT_ON_WORKER_LOSS: ctl->on_worker_loss = optarg; return -1;
    case OPT_WORKER_LOSS_WAIT:
        return ctl_parse_number("worker-loss-wait", optarg, CAIRN_SPEC_LOSS_WAIT_MAX_S,
                                &ctl->worker_loss_wait_s);
    case OPT_ENDPOINT_FILE: ctl->endpoint_file = optarg; return -1;
    case OPT_KEEP: ctl->keep = optarg; return -1;
    case OPT_IMPORT: ctl->import = optarg; return -1;
    case OPT_HELP: ctl->help = true; return -1;
    case OPT_VERSION: printf("cairn %s\n", ctl->build); return 0;
    default: return take_rule(ctl, option);
    }
}

/* ---- the line ---- */

/* Refuses an option that getopt does not know or cannot read; `text` is the argument it stands
 * in. */
static int refuse(const struct ctl *ctl, int answer, const char *text)
{
    const bool is_short = optopt > 0 && optopt < 256 && optopt != 'q'; // it is --quiet=3, not -q
    if (answer == ':') return ctl_usage_fail(ctl, "%s needs a value", text);
    if (is_short) return ctl_usage_fail(ctl, "there is no option -%c", optopt);
    if (optopt != 0) return ctl_usage_fail(ctl, "%s: it takes no value", text);
    return ctl_usage_fail(ctl, "there is no option %s", text);
}

static void note(struct ctl *ctl, int option)
{
    for (size_t i = 0; i < ctl_option_count; i++)
        if (ctl_options[i].option.val == option) ctl->given[i] = true;
}

int ctl_options_read(struct ctl *ctl, bool all)
{
    struct option known[CTL_OPTIONS_MAX + 1] = { 0 };
    for (size_t i = 0; i < ctl_option_count; i++) known[i] = ctl_options[i].option;
    opterr = 0;
    optind = 0; // glibc's getopt starts over
    // It takes argv[0] for a program's name: the word before.
    for (int c;
         (c = getopt_long(ctl->argc, ctl->argv, all ? ":o:q" : "+:o:q", known, NULL)) != -1;) {
        if (c == '?' || c == ':') return refuse(ctl, c, ctl->argv[optind - 1]);
        note(ctl, c);
        const int done = take(ctl, c);
        if (done >= 0) return done;
    }
    ctl->argc -= optind;
    ctl->argv += optind;
    return -1;
}

static bool is_taken(int option, uint64_t takes)
{
    for (size_t i = 0; i < ctl_option_count; i++)
        if (ctl_options[i].option.val == option &&
            (ctl_options[i].kind == 0 || (ctl_options[i].kind & takes) != 0))
            return true;
    return false;
}

int ctl_options_judge(const struct ctl *ctl, uint64_t takes)
{
    for (size_t i = 0; i < ctl_option_count; i++)
        if (ctl->given[i] && !is_taken(ctl_options[i].option.val, takes))
            return ctl_usage_fail(ctl, "cairn %s does not take --%s", ctl->words,
                                  ctl_options[i].option.name);
    if ((takes & CTL_TAKES_WORKERS) != 0 && ctl->workers_max != ctl->bench.workers)
        return ctl_usage_fail(ctl, "--workers of cairn %s is a number", ctl->words);
    return -1;
}

/* ==== values ==== */

/* Values of options: times, counts, numbers. */

int ctl_parse_seconds(const char *name, const char *text, double *out)
{
    char *end;
    errno = 0;
    const double seconds = strtod(text, &end);
    if (errno != 0 || end == text || *end != 0 || !(seconds > 0) || seconds > 1e6)
        return ctl_fail(CAIRN_ERR_INVALID,
                        "--%s %s: seconds, more than 0 and at most 1000000, are allowed", name,
                        text);
    *out = seconds;
    return -1;
}

int ctl_parse_milliseconds(const char *name, const char *text, double *out)
{
    char *end;
    errno = 0;
    const double ms = strtod(text, &end);
    if (errno != 0 || end == text || *end != 0 || !(ms >= 0) || ms > 1e6)
        return ctl_fail(CAIRN_ERR_INVALID, "--%s %s: milliseconds, 0 to 1000000, are allowed", name,
                        text);
    *out = ms;
    return -1;
}

/* 1 to max, with K, M, G or T for thousands of it. */
int ctl_parse_count(const char *name, const char *text, uint64_t max, uint64_t *out)
{
    static const char suffixes[] = "KMGT";
    char *end;
    errno = 0;
    uint64_t count = strtoull(text, &end, 10);
    bool ok = text[0] >= '0' && text[0] <= '9' && errno == 0 && count >= 1 && count <= max;
    const char *suffix = ok && *end != 0 ? strchr(suffixes, *end) : NULL;
    for (const char *s = suffixes; suffix != NULL && s <= suffix && ok; s++) {
        ok = count <= max / 1000;
        count *= 1000;
    }
    if (!ok || end[suffix != NULL] != 0)
        return ctl_fail(CAIRN_ERR_INVALID, "--%s %s: 1 to %" PRIu64 " is allowed", name, text, max);
    *out = count;
    return -1;
}

int ctl_parse_number(const char *name, const char *text, uint32_t max, uint32_t *out)
{
    uint64_t count = 0;
    const int done = ctl_parse_count(name, text, max, &count);
    *out = (uint32_t)count;
    return done;
}

/* The number is read as by ctl_parse_count, but may be 0. */
static int parse_count_or_none(const char *name, const char *text, uint64_t max, uint64_t *out)
{
    *out = 0;
    return strcmp(text, "0") == 0 ? -1 : ctl_parse_count(name, text, max, out);
}

int ctl_parse_real(const char *name, const char *text, double *out)
{
    char *end;
    errno = 0;
    *out = strtod(text, &end);
    if (errno == 0 && end != text && *end == 0 && *out >= 0 && *out <= 1e30) return -1;
    return ctl_fail(CAIRN_ERR_INVALID, "--%s %s: a number of at least 0 is allowed", name, text);
}

/* The text is "90", seconds, or has s, m, min, h or d behind it; 0 is allowed. */
static int parse_duration(const char *name, const char *text, uint32_t max_s, uint32_t *out)
{
    static const struct {
        const char *name;
        uint32_t seconds;
    } units[] = {
        { "", 1 }, { "s", 1 }, { "m", 60 }, { "min", 60 }, { "h", 3600 }, { "d", 86400 }
    };
    char *end;
    errno = 0;
    const uint64_t count = strtoull(text, &end, 10);
    const bool ok = text[0] >= '0' && text[0] <= '9' && errno == 0;
    const char *unit = end + strspn(end, " ");
    for (size_t i = 0; ok && i < sizeof units / sizeof units[0]; i++) {
        if (strcmp(unit, units[i].name) != 0 || count > max_s / units[i].seconds) continue;
        *out = (uint32_t)count * units[i].seconds;
        return -1;
    }
    return ctl_fail(CAIRN_ERR_INVALID,
                    "--%s %s: a time like 90s, 10min, 36h or 7d is allowed, at most %us, or 0",
                    name, text, max_s);
}

/* ==== rules ==== */

/* Options that say which snapshots a job takes, and which of them stay. */

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
        return parse_duration("snapshot-every", text, CAIRN_SPEC_SNAPSHOT_S_MAX, &rules->every_s);
    const bool named = strcmp(unit, "steps") == 0 || strcmp(unit, "step") == 0;
    snprintf(number, sizeof number, "%.*s", named ? (int)(digits < 23 ? digits : 23) : 23, text);
    return parse_count_or_none("snapshot-every", named ? number : text, CAIRN_SPEC_EVERY_MAX,
                               &rules->every);
}

static int parse_fallback(struct ctl *ctl, const char *text)
{
    ctl->rules.has_fallback = true;
    ctl->rules.fallback = strcmp(text, "yes") == 0;
    if (ctl->rules.fallback || strcmp(text, "no") == 0) return -1;
    return ctl_fail(CAIRN_ERR_INVALID, "--snapshot-fallback %s: yes and no are allowed", text);
}

static int parse_mtbf(struct ctl *ctl, const char *text)
{
    const int done = parse_duration("mtbf", text, CAIRN_SPEC_WITHIN_S_MAX, &ctl->mtbf_s);
    if (done >= 0 || ctl->mtbf_s > 0) return done;
    return ctl_fail(CAIRN_ERR_INVALID, "--mtbf %s: a time longer than 0 is needed", text);
}

/* Takes the options of `snapshot prune`. */
static int take_keeping(struct ctl *ctl, int option)
{
    struct ctl_rules *rules = &ctl->rules;
    switch (option) {
    case OPT_KEEP_LAST:
        rules->has_keep_last = true;
        return ctl_parse_count("keep-last", optarg, CAIRN_SPEC_KEEP_MAX, &rules->keep_last);
    case OPT_KEEP_EVERY:
        rules->has_keep_every = true;
        return ctl_parse_count("keep-every", optarg, CAIRN_SPEC_EVERY_MAX, &rules->keep_every);
    case OPT_KEEP_WITHIN:
        rules->has_keep_within = true;
        return parse_duration("keep-within", optarg, CAIRN_SPEC_WITHIN_S_MAX,
                              &rules->keep_within_s);
    case OPT_MAX_BYTES:
        rules->has_max_bytes = true;
        return ctl_parse_count("max-bytes", optarg, CAIRN_SPEC_KEEP_BYTES_MAX, &rules->max_bytes);
    case OPT_DRY_RUN: rules->dry_run = true; return -1;
    case OPT_DELETE: ctl->deletes = true; return -1;
    case OPT_MTBF: return parse_mtbf(ctl, optarg);
    default: return ctl_take_bench(ctl, option);
    }
}

/* The others go to ctl_take_bench. */
static int take_rule(struct ctl *ctl, int option)
{
    struct ctl_rules *rules = &ctl->rules;
    switch (option) {
    case OPT_SNAPSHOT_EVERY: return parse_every(ctl, optarg);
    case OPT_SNAPSHOT_KEEP:
        rules->has_keep_last = true;
        return parse_count_or_none("snapshot-keep", optarg, CAIRN_SPEC_KEEP_MAX, &rules->keep_last);
    case OPT_SNAPSHOT_KEEP_EVERY:
        rules->has_keep_every = true;
        return parse_count_or_none("snapshot-keep-every", optarg, CAIRN_SPEC_EVERY_MAX,
                                   &rules->keep_every);
    case OPT_SNAPSHOT_KEEP_WITHIN:
        rules->has_keep_within = true;
        return parse_duration("snapshot-keep-within", optarg, CAIRN_SPEC_WITHIN_S_MAX,
                              &rules->keep_within_s);
    case OPT_SNAPSHOT_MAX_BYTES:
        rules->has_max_bytes = true;
        return parse_count_or_none("snapshot-max-bytes", optarg, CAIRN_SPEC_KEEP_BYTES_MAX,
                                   &rules->max_bytes);
    case OPT_SNAPSHOT_STAGING: rules->staging = optarg; return -1;
    case OPT_SNAPSHOT_DURABLE_WITHIN:
        rules->has_durable_within = true;
        return parse_duration("snapshot-durable-within", optarg, CAIRN_SPEC_DURABLE_S_MAX,
                              &rules->durable_within_s);
    case OPT_SNAPSHOT_FALLBACK: return parse_fallback(ctl, optarg);
    case OPT_SNAPSHOT_SCRUB_EVERY:
        rules->has_scrub_every = true;
        return parse_duration("snapshot-scrub-every", optarg, CAIRN_SPEC_SNAPSHOT_S_MAX,
                              &rules->scrub_every_s);
    default: return take_keeping(ctl, option);
    }
}
