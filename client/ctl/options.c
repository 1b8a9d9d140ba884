/* The command line. A table with one row per option drives the parsing, checking and help of
 * options. The words of the command line name a row of the tables of commands. */
#include "client/ctl/ctl.h"

#include <inttypes.h>
#include <ctype.h>
#include <errno.h>
#include <float.h>
#include <getopt.h>
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "client/env.h"
#include "proto/geometry/layout.h"
#include "proto/spec/spec_fields.h"

#define WATCH_EVERY_S  2
#define UNTIL_S_MAX    (100 * 366 * 86400u) // of --until
#define GRACE_S_MAX    (30 * 86400u)        // the coordinator has the same limit
#define DEVICE_LETTERS "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ-/"

/* The type of a value, and of the field of struct ctl that receives it. */
enum option_type {
    BARE,   /* takes no value, and has no field: ctl_is_given says whether it was given */
    FLAG,   /* bool; takes no value */
    TEXT,   /* const char * */
    CHOICE, /* const char *: one of the words shown for the value, "f32|bf16" */
    /* bool: one of two words, shown as for CHOICE; true for the word numbered `max`, from 0 */
    SWITCH,
    NAMES,        /* struct ctl_names: each use adds one name */
    NUMBER,       /* uint32_t, 1 to max; K, M, G or T multiplies by powers of a thousand */
    COUNT,        /* uint64_t, like NUMBER */
    REAL,         /* double, from 0 to max (0: no limit) */
    PERCENT,      /* double: a fraction, at most max percent */
    SECONDS,      /* double, above 0 */
    MILLISECONDS, /* double */
    DURATION,     /* uint32_t, seconds, up to max: 90, 90s, 10min, 36h, 7d */
    FIELD,        /* a setting: the field of the job's spec that `field` names */
    LONGER,       /* uint32_t, like DURATION, above 0 */
    PARSED,       /* read by a function */
};

/* One row. The commands that take an option name it in their usage, or in `takes`. An option with
 * two meanings has two rows; the first row determines how the option is parsed. */
struct option_row {
    const char *name;
    const char *value; /* as help shows it; "[SECONDS]": may be omitted; NULL: takes no value */
    /* for PARSED; returns -1 to continue, else the exit status */
    int (*parse)(struct ctl *ctl, char *text);
    enum option_type type;
    size_t offset; /* the field's offset in struct ctl */
    uint64_t max;
    const char *help;  /* NULL: not shown */
    const char *field; /* for FIELD */
    const char *shown; /* NULL: built from name and value */
    char letter;       /* -o */
    /* The command, or the noun, for which the option has this meaning. NULL: the other commands that name
     * it. "": every command takes it */
    const char *of;
};

/* ==== since ==== */

/* Parses a time in the past, as people write it: --since. */

/* Parses "2h", "1.5d", "90s" as a time before now. */
static bool parse_ago(const char *text, uint64_t now_ms, uint64_t *unix_ms_out)
{
    static const struct {
        const char *unit;
        double ms;
    } units[] = { { "ms", 1 }, { "s", 1e3 }, { "m", 60e3 }, { "h", 3600e3 }, { "d", 86400e3 } };
    char *end;
    if (!isdigit((unsigned char)*text)) return false;
    const double number = strtod(text, &end);
    for (size_t i = 0; i < sizeof units / sizeof *units; i++) {
        if (strcmp(end, units[i].unit) != 0) continue;
        const double ago_ms = number * units[i].ms;
        *unix_ms_out = ago_ms < (double)now_ms ? now_ms - (uint64_t)ago_ms : 0;
        return true;
    }
    return false;
}

/* Parses the rest of the time after the seconds: ".250", then "Z" or "+02:00". */
static bool parse_rest(const char *text, int64_t *ms_out, int64_t *offset_s_out)
{
    int hours, minutes, read = 0;
    char sign;
    double fraction = 0;
    if (*text == '.') {
        char *end;
        fraction = strtod(text, &end);
        text = end;
    }
    *ms_out = (int64_t)(fraction * 1000);
    *offset_s_out = 0;
    if ((*text == 'Z' || *text == 'z') && text[1] == '\0') return true;
    if (sscanf(text, "%c%2d:%2d%n", &sign, &hours, &minutes, &read) != 3 || text[read] != '\0')
        return false;
    if ((sign != '+' && sign != '-') || hours < 0 || hours > 23 || minutes < 0 || minutes > 59)
        return false;
    *offset_s_out = (sign == '+' ? 1 : -1) * (hours * 3600 + minutes * 60);
    return true;
}

/* Parses an RFC 3339 time. */
static bool parse_time(const char *text, uint64_t *unix_ms_out)
{
    struct tm utc = { .tm_sec = 0 };
    int64_t ms, offset_s;
    const char *rest = strptime(text, "%Y-%m-%dT%H:%M:%S", &utc);
    if (rest == NULL || !parse_rest(rest, &ms, &offset_s)) return false;
    const int64_t seconds = (int64_t)timegm(&utc) - offset_s;
    if (seconds < 0) return false;
    *unix_ms_out = (uint64_t)(seconds * 1000 + ms);
    return true;
}

bool ctl_since(const char *text, uint64_t now_ms, uint64_t *unix_ms_out)
{
    return parse_ago(text, now_ms, unix_ms_out) || parse_time(text, unix_ms_out);
}

/* ==== values ==== */

/* All functions return -1 to continue, or else the exit status after printing the error. */

/* Reads a number from `least` to `most`, followed by `unit`; an error says what is allowed. */
static int parse_double(const char *name, const char *text, const char *unit, double least,
                        double most, const char *allowed, double *out)
{
    char *end;
    errno = 0;
    *out = strtod(text, &end);
    if (errno == 0 && end != text && strcmp(end, unit) == 0 && *out >= least && *out <= most)
        return -1;
    return ctl_fail(CAIRN_ERR_INVALID, "--%s %s: %s allowed", name, text, allowed);
}

static int parse_seconds(const char *name, const char *text, double *out)
{
    return parse_double(name, text, "", DBL_TRUE_MIN, 1e6,
                        "seconds, more than 0 and at most 1000000, are", out);
}

/* Reads a number from 1 to max; K, M, G or T multiplies by powers of a thousand. */
static int parse_count(const char *name, const char *text, uint64_t max, uint64_t *out)
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
    const int done = parse_count(name, text, max, &count);
    *out = (uint32_t)count;
    return done;
}

/* Reads the number like parse_count, but allows 0. */
static int parse_count_or_none(const char *name, const char *text, uint64_t max, uint64_t *out)
{
    *out = 0;
    return strcmp(text, "0") == 0 ? -1 : parse_count(name, text, max, out);
}

static int parse_real(const char *name, const char *text, double max, double *out)
{
    const int done = parse_double(name, text, "", 0, 1e30, "a number of at least 0 is", out);
    if (done >= 0 || max == 0 || *out <= max) return done;
    return ctl_fail(CAIRN_ERR_INVALID, "--%s %s: 0 to %g is allowed", name, text, max);
}

static int parse_percent(const char *name, const char *text, double most, double *out)
{
    char allowed[64];
    snprintf(allowed, sizeof allowed, "a percentage above 0 and up to %.0f, as 10%%, is", most);
    const int done = parse_double(name, text, "%", DBL_TRUE_MIN, most, allowed, out);
    *out /= 100;
    return done;
}

/* Reads "90", in seconds, or a number followed by s, m, min, h or d; 0 is allowed. */
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

static int too_many(const char *option)
{
    return ctl_fail(CAIRN_ERR_INVALID, "--%s may be given %d times", option, CTL_NAMES_MAX);
}

static int parse_name(struct ctl_names *names, const char *option, const char *text)
{
    if (text[0] == '\0')
        return ctl_fail(CAIRN_ERR_INVALID, "--%s needs the name of a shard", option);
    if (names->count == CTL_NAMES_MAX) return too_many(option);
    names->names[names->count++] = text;
    return -1;
}

/* ---- values of one option ---- */

static int parse_timeout(struct ctl *ctl, char *text)
{
    double seconds;
    const int done = parse_seconds("timeout", text, &seconds);
    if (done >= 0) return done;
    ctl->call.timeout_ms = (int)(seconds * 1000);
    if (ctl->call.timeout_ms == 0) ctl->call.timeout_ms = 1;
    return -1;
}

/* Reads the seconds, which may also be the next word, if that word is a number. */
static int parse_watch(struct ctl *ctl, char *text)
{
    char *next = text == NULL && optind < ctl->argc ? ctl->argv[optind] : NULL;
    ctl->watch = true;
    ctl->times.every_s = WATCH_EVERY_S;
    if (next != NULL && next[strspn(next, "0123456789.")] == '\0' && next[0] != '\0') {
        text = next;
        optind++;
    }
    return text != NULL ? parse_seconds("watch", text, &ctl->times.every_s) : -1;
}

static int parse_since(struct ctl *ctl, char *text)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    const uint64_t now_ms = (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
    if (ctl_since(text, now_ms, &ctl->times.since_unix_ms)) return -1;
    return ctl_usage_fail(ctl,
                          "--since %s: give a duration (2h) or a time "
                          "(2026-11-24T14:00:00Z)",
                          text);
}

/* Reads a time to come: "90d", "2027-01-31" (the day's beginning, UTC), or RFC 3339. */
static int parse_until(struct ctl *ctl, char *text)
{
    struct tm utc = { .tm_sec = 0 };
    uint32_t seconds = 0;
    const char *rest = strptime(text, "%Y-%m-%d", &utc);
    if (rest != NULL && *rest == '\0') {
        ctl->key.until_unix_ms = (uint64_t)timegm(&utc) * 1000;
        return -1;
    }
    if (parse_time(text, &ctl->key.until_unix_ms)) return -1;
    if (!isdigit((unsigned char)text[0]))
        return ctl_usage_fail(ctl, "--until %s: give a date (2027-01-31), or a time from now (90d)",
                              text);
    const int done = parse_duration("until", text, UNTIL_S_MAX, &seconds);
    if (done < 0) ctl->key.until_unix_ms = ((uint64_t)time(NULL) + seconds) * 1000;
    return done;
}

/* Reads "4", or, for a job, "1:4". */
static int parse_workers(struct ctl *ctl, char *text)
{
    const char *colon = strchr(text, ':');
    char first[16];
    if (colon == NULL) {
        const int done = ctl_parse_number("workers", text, 65535, &ctl->terms.workers_max);
        ctl->terms.workers_min = ctl->bench.workers = ctl->terms.workers_max;
        return done;
    }
    snprintf(first, sizeof first, "%.*s", (int)(colon - text < 15 ? colon - text : 15), text);
    int done = ctl_parse_number("workers", first, 65535, &ctl->terms.workers_min);
    if (done < 0) done = ctl_parse_number("workers", colon + 1, 65535, &ctl->terms.workers_max);
    if (done >= 0 || ctl->terms.workers_min <= ctl->terms.workers_max) return done;
    return ctl_fail(CAIRN_ERR_INVALID, "--workers %s: MIN must not be more than MAX", text);
}

/* Adds a setting, whose strings must outlive the request. */
static int add_setting(struct ctl *ctl, const char *option, const char *key, const char *value)
{
    struct ctl_settings *settings = &ctl->terms.set;
    if (settings->count == CTL_NAMES_MAX) return too_many(option);
    Cairn__Setting *setting = &settings->room[settings->count];
    cairn__setting__init(setting);
    setting->key = wire_text(key);
    setting->value = wire_text(value);
    settings->list[settings->count++] = setting;
    return -1;
}

int ctl_set_field(struct ctl *ctl, const char *option, const char *name,
                  const struct job_spec_data *from)
{
    struct ctl_settings *settings = &ctl->terms.set;
    if (settings->count == CTL_NAMES_MAX) return too_many(option);
    const struct spec_field *field = spec_field_find(&spec_fields, name, strlen(name));
    char *text = settings->values[settings->count];
    spec_setting_text(field, from, text);
    return add_setting(ctl, option, field->name, text);
}

/* Reads "500", "500 steps", or a time: "10min", "10 min". */
static int parse_every(struct ctl *ctl, char *text)
{
    struct job_spec_data spec; // owns nothing
    const size_t digits = strspn(text, "0123456789");
    const char *unit = text + digits + strspn(text + digits, " ");
    char number[24];
    spec_init(&spec);
    const bool by_time = unit[0] >= 'a' && unit[0] <= 'z' && strncmp(unit, "step", 4) != 0;
    const bool named = strcmp(unit, "steps") == 0 || strcmp(unit, "step") == 0;
    snprintf(number, sizeof number, "%.*s", named ? (int)(digits < 23 ? digits : 23) : 23, text);
    int done = by_time ? parse_duration("snapshot-every", text, CAIRN_SPEC_SNAPSHOT_S_MAX,
                                        &spec.policy.snapshot_every_s)
                       : parse_count_or_none("snapshot-every", named ? number : text,
                                             CAIRN_SPEC_EVERY_MAX, &spec.policy.snapshot_every);
    if (done < 0) done = ctl_set_field(ctl, "snapshot-every", "snapshot_every", &spec);
    return done < 0 ? ctl_set_field(ctl, "snapshot-every", "snapshot_every_s", &spec) : done;
}

/* Checks that the value can be copied into a configuration unchanged. */
static int parse_device(struct ctl *ctl, char *text)
{
    const size_t length = strlen(text);
    ctl->bench.device = text;
    if (length > 0 && length < 64 && strspn(text, DEVICE_LETTERS) == length) return -1;
    return ctl_fail(CAIRN_ERR_INVALID,
                    "--device %s: a number, or a UUID as nvidia-smi -L has it, is allowed", text);
}

static int parse_stage(struct ctl *ctl, char *text)
{
    ctl->plan.stage = (uint32_t)(text[0] - '0');
    if (text[0] >= '0' && text[0] <= '3' && text[1] == '\0') return -1;
    return ctl_fail(CAIRN_ERR_INVALID, "--stage %s: 0 to 3 is allowed", text);
}

/* Reads a size in the form of the Hub's tools: 5GB, 500MB; a B at the end may be omitted. */
static int parse_max_file(struct ctl *ctl, char *text)
{
    const size_t length = strlen(text);
    if (length > 1 && text[length - 1] == 'B') text[length - 1] = '\0';
    return parse_count("max-file", text, UINT64_C(1) << 60, &ctl->export.file_bytes_max);
}

static int parse_weight(struct ctl *ctl, char *text)
{
    struct ctl_names *names = &ctl->reshard.weight;
    char *equals = strrchr(text, '=');
    char *end = NULL;
    errno = 0;
    const double weight = equals != NULL ? strtod(equals + 1, &end) : 0;
    const bool is_number = end != NULL && end != equals + 1 && *end == '\0' && errno == 0;
    if (!is_number || equals == text)
        return ctl_fail(CAIRN_ERR_INVALID, "--weight %s: NAME=W, a shard and a number, is allowed",
                        text);
    if (!isfinite(weight) || weight <= 0)
        return ctl_fail(CAIRN_ERR_INVALID,
                        "--weight %s: a number above 0 is allowed; --drain takes all off a shard",
                        text);
    *equals = '\0';
    const size_t at = names->count;
    const int done = parse_name(names, "weight", text);
    if (done < 0) names->weights[at] = weight;
    return done;
}

static int parse_setting(struct ctl *ctl, char *text)
{
    char *equals = strchr(text, '=');
    if (equals == NULL || equals == text)
        return ctl_fail(CAIRN_ERR_INVALID,
                        "--set %s: KEY=VALUE is allowed, as stage=3 or default.lr=1e-4", text);
    *equals = '\0';
    return add_setting(ctl, "set", text, equals + 1);
}

static int parse_path(struct ctl *ctl, char *text)
{
    ctl->path_before = ctl->path;
    ctl->path = text;
    return -1;
}

/* Reads "[GENERATION:]STEP". */
static int parse_former(struct ctl *ctl, char *text)
{
    uint64_t first, step;
    int end = 0;
    const bool has_both = sscanf(text, "%20" SCNu64 ":%20" SCNu64 "%n", &first, &step, &end) == 2;
    if (!has_both && sscanf(text, "%20" SCNu64 "%n", &step, &end) != 1) end = 0;
    if (end == 0 || text[end] != '\0' || text[0] == '-' || text[0] == '+' ||
        (has_both && first == 0))
        return ctl_usage_fail(ctl, "--to-version %s: give a step, as 1200, or GENERATION:STEP",
                              text);
    ctl->restore.back_to = (struct cairn_version) { has_both ? first : 0, step };
    return -1;
}

static int parse_version(struct ctl *ctl, char *text)
{
    (void)text;
    printf("cairn %s\n", ctl->program->build);
    return 0;
}

/* ==== table ==== */

#define AS(is, member, most) .type = is, .offset = offsetof(struct ctl, member), .max = most
#define GIVEN                .type = BARE, .offset = 0, .max = 0
#define BY(function)         .parse = function, .type = PARSED, .offset = 0, .max = 0
#define SETS(name)           .field = #name, .type = FIELD, .offset = 0, .max = 0

static const struct option_row rows[] = {
    { "endpoint", "ADDRESS", AS(TEXT, endpoint, 0),
      "the coordinator, HOST:PORT or /PATH, or several of which one leads, with commas (else "
      "CAIRN_ENDPOINT, else a socket in "
      "$XDG_RUNTIME_DIR/cairn or /run/cairn)" },
    { "token-file", "FILE", AS(TEXT, token_file, 0),
      "the token that a coordinator at HOST:PORT asks for (cairn-token in "
      "$CREDENTIALS_DIRECTORY goes first; else CAIRN_TOKEN_FILE)" },
    { "timeout", "SECONDS", BY(parse_timeout),
      "how long to wait for an answer (30; snapshots and digests 600)" },
    { "output", "table|json", AS(SWITCH, json, 1), "how to print (table)", .letter = 'o' },
    { "no-headers", NULL, AS(FLAG, no_headers, 0), "a table without its first line" },
    { "quiet", NULL, AS(FLAG, quiet, 0),
      "only what was asked for: names, an id, a root; local: only errors", .letter = 'q' },
    { "yes", NULL, AS(FLAG, yes, 0), "do it, without being asked or shown what would be done" },
    { "force", NULL, GIVEN,
      "even while workers or readers are attached (they are put out) or the job is being saved" },
    { "watch", "[SECONDS]", BY(parse_watch),
      "again and again until it is interrupted (every 2 seconds)" },
    { "watch", "[SECONDS]", BY(parse_watch),
      "then follow new events until it is interrupted (asked every 2 seconds)",
      .of = "cluster events" },
    { "check", NULL, GIVEN,
      "only what is wrong, a line each; the exit status says which kind is the worst" },
    { "snapshot-age", "TIME", AS(DURATION, times.snapshot_age_s, CAIRN_SPEC_WITHIN_S_MAX),
      "report a job whose newest snapshot is older (90s, 10min, 36h, 7d)" },
    { "every", "SECONDS", AS(SECONDS, times.every_s, 0), "how long between two pictures (1)" },
    { "once", NULL, GIVEN, "one picture, as -o json has it" },
    { "wait", NULL, GIVEN, "return when it is committed" },
    { "path", "FOLDER", BY(parse_path), "the folder of a snapshot", .of = "snapshot restore" },
    { "job", "NAME", AS(TEXT, restore.job, 0), "its job (else the snapshot's)" },
    { "path", "FOLDER", BY(parse_path), "the folder of a snapshot, read without a coordinator" },
    { "allow-unsigned", NULL, GIVEN, "take a snapshot that nobody signed" },
    { "allow-untrusted", NULL, GIVEN, "take one that was signed by a key that is not trusted" },
    { "fallback", NULL, GIVEN,
      "if it is damaged, take the newest good one that is older (also by snapshot_fallback of the "
      "job)" },
    { "quick", NULL, GIVEN, "manifest, sizes and headers" },
    { "read-data-subset", "P%", AS(PERCENT, verify.subset, 100),
      "this share of the blocks, at random (all)" },
    { "key", "FILE|KEY", AS(TEXT, verify.key, 0),
      "the key that must have signed it (else one that the coordinator trusts)" },
    { "shards", "N", AS(NUMBER, shards, CAIRN_SHARDS_MAX), "how many shards" },
    { "endpoint-file", "FILE", AS(TEXT, local.endpoint_file, 0),
      "holds the endpoint while the cluster is up" },
    { "keep", "FOLDER", AS(TEXT, local.keep, 0),
      "use this folder and leave it there (else a temporary one)" },
    { "import", "FOLDER", AS(TEXT, local.import, 0),
      "weights may be read from it (else from the working folder)" },
    { "workers", "N", BY(parse_workers), "how many workers" },
    { "workers", "MIN:MAX", BY(parse_workers),
      "a round opens with MIN workers, and MAX may attach; N is N:N", .of = "job amend" },
    { "lr", "X", AS(REAL, terms.lr, 0), "the learning rate, which its schedule scales" },
    { "group", "NAME", AS(TEXT, terms.group, 0), "whose (else of all)" },
    /* The next lines are made by tests/tree/spec_fields.py. */
    { "clip-norm", "X", SETS(clip_norm), "limit of the global gradient norm; 0: no limit" },
    { "snapshot-every", "N|TIME", BY(parse_every),
      "from one periodic snapshot to the next: steps (500), or a time (10min); 0: none" },
    { "snapshot-keep", "N", SETS(snapshot_keep),
      "the newest N of them stay; 0: no such rule. Any rule keeps one; without a rule all stay" },
    { "snapshot-keep-every", "N", SETS(snapshot_keep_every),
      "the first of every N steps stays for good; 0: no such rule" },
    { "snapshot-keep-within", "TIME", SETS(snapshot_keep_within_s),
      "all younger than that stay (36h; s, min, h, d); 0: no such rule" },
    { "snapshot-max-bytes", "N", SETS(snapshot_max_bytes),
      "limit of all the job's snapshots; over it the oldest go (500G); 0: no limit" },
    { "snapshot-staging", "state|small", SETS(snapshot_staging),
      "room for what updates overwrite while a snapshot is written" },
    { "snapshot-durable-within", "TIME", SETS(snapshot_durable_within_s),
      "a snapshot is to be on disk by then; 0: no deadline" },
    { "snapshot-fallback", "yes|no", SETS(snapshot_fallback),
      "a restore that finds a snapshot damaged takes the newest good one before it" },
    { "snapshot-scrub-every", "TIME", SETS(snapshot_scrub_every_s),
      "every snapshot is read again and checked (7d); 0: by command only" },
    { "on-shard-loss", "wait|restore-latest", SETS(on_shard_loss),
      "what the job does when a shard has lost its part" },
    { "shard-loss-wait", "SECONDS", SETS(shard_loss_wait_s),
      "how long a shard may be away before that (300)" },
    { "on-worker-loss", "redo|wait|fail", SETS(on_worker_loss),
      "what the job does when a worker was lost" },
    { "worker-loss-wait", "SECONDS", SETS(worker_loss_wait_s),
      "how long to wait for another one (300)" },
    { "audit-every", "N", SETS(audit_every),
      "every N steps all state is compared with its checksums; 0: never" },
    { "keep-versions", "K", SETS(keep_versions),
      "the last K versions can be gone back to (`job rollback`); each takes memory; 0: none" },
    /* From here on by hand. */
    { "keep-last", "N", AS(COUNT, rules.keep_last, CAIRN_SPEC_KEEP_MAX),
      "the newest N stay; this and the next options replace the job's rules" },
    { "keep-every", "N", AS(COUNT, rules.keep_every, CAIRN_SPEC_EVERY_MAX),
      "the first of every N steps stays" },
    { "keep-within", "TIME", AS(DURATION, rules.keep_within_s, CAIRN_SPEC_WITHIN_S_MAX),
      "all younger than that stay (36h; s, min, h, d)" },
    { "max-bytes", "N", AS(COUNT, rules.max_bytes, CAIRN_SPEC_KEEP_BYTES_MAX),
      "limit of all the job's snapshots; over it the oldest go (500G)" },
    { "dry-run", NULL, GIVEN, "only say which would go, and why the others stay" },
    { "mtbf", "TIME", AS(LONGER, times.mtbf_s, CAIRN_SPEC_WITHIN_S_MAX),
      "mean time between faults (else from the cluster's events); 90s, 10min, 36h, 7d" },
    { "delete", NULL, GIVEN, "take the tag off" },
    { "read-only", NULL, GIVEN, "they may read the job, and not train it" },
    { "force", NULL, GIVEN, "also one that has a tag, and the only verified one",
      .of = "snapshot rm" },
    { "all", NULL, GIVEN, "all jobs" },
    { "add", "NAME", AS(NAMES, reshard.add, 0),
      "a shard that is to own a part of it, too; repeat for each" },
    { "drain", "NAME", AS(NAMES, reshard.drain, 0), "a shard to move all off; repeat for each" },
    { "weight", "NAME=W", BY(parse_weight),
      "W times as much as a shard without a weight, which has 1; repeat for each" },
    { "pause", "P%", AS(PERCENT, reshard.pause, 10000),
      "by how much a step may become longer meanwhile (10%)" },
    { "since", "TIME", BY(parse_since),
      "only what happened since then: 2h (ms, s, m, h, d) before now, or 2026-11-24T14:00:00Z" },
    { "from", "N", AS(TEXT, from, 0), "how many shards before (4)", .of = "bench" },
    { "from", "JOB/ID|FOLDER", AS(TEXT, from, 0),
      "the snapshot that it begins with; an id may be latest" },
    { "as", "NAME", AS(TEXT, restore.as, 0), "its name (else the snapshot's)" },
    { "set", "KEY=VALUE", BY(parse_setting),
      "a field of the spec: stage=3, wire=bf16, GROUP.lr=1e-4 (again and again)" },
    { "to-version", "VERSION", BY(parse_former),
      "a step, as 1200, or GENERATION:STEP; without it those that there are are listed" },
    { "dry-run", NULL, GIVEN, "only say what would be made, and what it takes",
      .of = "job create" },
    { "to", "N", AS(TEXT, to, 0), "and after (one more)", .of = "bench" },
    { "to", "DIR", AS(TEXT, to, 0), "a new folder, which is written", .of = "snapshot export" },
    { "to", "ROOT", AS(TEXT, to, 0), "a folder of snapshots: the copy is ROOT/JOB/ID" },
    { "format", "hf|dcp|torch", AS(CHOICE, export.format, 0),
      "the weights as transformers has them (hf), or with the optimizer's state: a folder of "
      "PyTorch's distributed checkpoint (dcp), or one file of torch.save (torch)" },
    { "dtype", "f32|bf16", AS(CHOICE, export.dtype, 0),
      "write weights as they are (f32), or rounded" },
    { "ema", NULL, AS(FLAG, export.ema, 0),
      "the moving averages of the weights, where the job keeps them (GROUP.ema)" },
    { "max-file", "BYTES", BY(parse_max_file), "of a file, unless one tensor is larger (5GB)" },
    { "stats", NULL, GIVEN,
      "also every tensor's minimum, maximum, mean, norm, what is not finite (reads all of it)" },
    { "threads", "N", AS(NUMBER, bench.threads, 1024),
      "how many compute threads (else one a core)" },
    { "params", "N", AS(COUNT, bench.params, UINT64_C(1) << 56),
      "parameters of the model; 64M is 64000000; K, G and T likewise" },
    { "tensors", "N", AS(NUMBER, bench.tensors, CAIRN_LAYOUT_TENSORS_MAX), "of how many tensors" },
    { "wire", "f32|bf16", AS(CHOICE, bench.wire, 0),
      "dtype of gradients and parameters on the wire (bf16; of a plan: the spec's)" },
    { "path", "NAME", BY(parse_path), "how the data travels", .of = "bench" },
    { "only", "NAME", AS(TEXT, bench.only, 0),
      "one part of it: of update adamw, zeros, fold, hash, copy; of snapshot write, read, "
      "interval, export, import, manifest" },
    { "dir", "FOLDER", AS(TEXT, bench.folder, 0),
      "on the disk that is measured; what is written there is removed" },
    { "tier", "process|peer|log", AS(CHOICE, bench.tier, 0),
      "what the shards survive: the end of their process, by a keeper; of their host, by a "
      "standby; of all hosts at once, by logs" },
    { "kills", "N", AS(NUMBER, bench.kills, 501),
      "how many shards are killed, one after the other (30)" },
    { "planned", NULL, AS(FLAG, bench.is_planned, 0),
      "exchange the process, as for an upgrade, instead of killing it" },
    { "backend", "host|cuda", AS(CHOICE, bench.backend, 0),
      "where state is, and what works on it (host)" },
    { "device", "N", BY(parse_device), "of cuda: its number or UUID (the first)" },
    { "stage", "N", BY(parse_stage), "0 to 3 (else the spec's)" },
    { "offload", "X", AS(REAL, plan.offload, 1),
      "of cuda: the fraction of state in host memory, 0 to 1 (else the spec's)" },
    { "memory", "host|device", AS(SWITCH, bench.has_device_memory, 1),
      "where workers have gradients and parameters: device is the shards' card (host)" },
    { "global-batch", "K", AS(NUMBER, bench.global_batch, CAIRN_SPEC_MICRO_MAX),
      "a step of K micro-batches, dealt to the workers, against adding up in each" },
    { "timeline", "FILE", AS(TEXT, bench.timeline, 0),
      "write what happened when in the last step, as a Chrome trace" },
    { "backward", "MS", AS(MILLISECONDS, bench.backward_ms, 0),
      "gradients become ready one after the other during that time (0: at once)" },
    { "read", "fetch|map|units", AS(TEXT, bench.read, 0),
      "parameters into memory of the worker's own (fetch), or lent: all (map), or as stage 3" },
    { "chunk", "BYTES", AS(COUNT, bench.chunk, 4 << 20),
      "message size (1048576), at most 4194304" },
    { "seconds", "N", AS(SECONDS, bench.seconds, 0),
      "how long to measure (5); a run that has begun is finished" },
    { "role", "ROLES", AS(TEXT, key.roles, 0),
      "what its owner may be, separated by ',': worker, reader, shard, admin, monitor" },
    { "owner", "TEAM", AS(TEXT, key.owner, 0), "who owns the jobs that it makes (else its name)" },
    { "jobs", "NAMES", AS(TEXT, key.jobs, 0),
      "the jobs that it may touch: names separated by ',', where * is any text (else its "
      "owner's)" },
    { "until", "DATE|TIME", BY(parse_until), "it is valid until then: 2027-01-31, 90d, 12h" },
    { "grace", "TIME", AS(DURATION, key.grace_s, GRACE_S_MAX),
      "how long the former token is valid, too (1h); then its connections are closed" },
    { "cluster", NULL, GIVEN, "the key by which nodes and trainers know the coordinator" },
    { "to", "FILE", AS(TEXT, to, 0),
      "write the token into this file, mode 0600, and print no secret", .of = "key" },
    { "help", NULL, GIVEN, "this; which version it is", .shown = "--help, --version", .of = "" },
    { "version", NULL, BY(parse_version), NULL, .of = "" },
};
#define ROW_COUNT (sizeof rows / sizeof *rows)
_Static_assert(ROW_COUNT <= CTL_OPTIONS_MAX, "a flag each");

/* Returns the first row of an option; this row determines how the option is parsed. */
static size_t first_row(size_t row)
{
    size_t first = 0;
    while (strcmp(rows[first].name, rows[row].name) != 0) first++;
    return first;
}

/* Returns true if the word stands in `words`, which blanks or commas divide. */
static bool has_word(const char *words, const char *word)
{
    const size_t length = strlen(word);
    for (const char *at = words; (at = strstr(at, word)) != NULL; at += length)
        if ((at == words || strchr(" ,", at[-1]) != NULL) && strchr(" ,", at[length]) != NULL)
            return true;
    return false;
}

/* Returns true if the usage of a command names the option: "[--check [--snapshot-age TIME]]". */
static bool names_option(const char *usage, const char *name)
{
    const size_t length = strlen(name);
    for (const char *at = usage; (at = strstr(at, "--")) != NULL; at += 2)
        if (strncmp(at + 2, name, length) == 0 && strchr(" ]|", at[2 + length]) != NULL)
            return true;
    return false;
}

static bool takes(const struct ctl_row *command, const char *name)
{
    return has_word(command->takes, name) || names_option(command->arguments, name);
}

/* Returns true if the option's row is for this command, or for its noun. */
static bool is_of(const struct option_row *row, const struct ctl_row *command)
{
    const size_t noun = strlen(command->noun);
    if (row->of == NULL || strncmp(row->of, command->noun, noun) != 0) return false;
    return row->of[noun] == '\0' || strcmp(row->of + noun + 1, command->verb) == 0;
}

/* True if the command takes the option with the meaning of this row. */
static bool is_taken(const struct option_row *row, const struct ctl_row *command)
{
    if (row->of != NULL && row->of[0] == '\0') return true;
    if (!takes(command, row->name) || is_of(row, command)) return takes(command, row->name);
    if (row->of != NULL) return false;
    for (size_t i = 0; i < ROW_COUNT; i++)
        if (strcmp(rows[i].name, row->name) == 0 && is_of(&rows[i], command)) return false;
    return true;
}

/* Prints the options that any of the commands takes. */
static void print_options(FILE *out, const struct ctl_row *const *commands, size_t count)
{
    fprintf(out, "\noptions:\n");
    for (const struct option_row *row = rows; row < rows + ROW_COUNT; row++) {
        char shown[48];
        bool is_any = false;
        for (size_t i = 0; i < count && row->help != NULL; i++)
            is_any = is_any || is_taken(row, commands[i]);
        if (!is_any) continue;
        if (row->letter != 0)
            snprintf(shown, sizeof shown, row->value != NULL ? "-%c %s" : "-%c, --%s", row->letter,
                     row->value != NULL ? row->value : row->name);
        else
            snprintf(shown, sizeof shown, "--%s%s%s", row->name, row->value != NULL ? " " : "",
                     row->value != NULL ? row->value : "");
        fprintf(out, "  %-21s %s\n", row->shown != NULL ? row->shown : shown, row->help);
    }
}

int ctl_parse_choice(const char *option, const char *choices, const char *text,
                     uint64_t *number_out)
{
    struct sentence allowed = { "" };
    char words[64], *rest = words;
    snprintf(words, sizeof words, "%s", choices);
    *number_out = 0;
    for (char *word; (word = strsep(&rest, "|")) != NULL; ++*number_out) {
        if (strcmp(word, text) == 0) return -1;
        sentence_add(&allowed, "%s%s",
                     allowed.text[0] == '\0' ? ""
                     : rest != NULL          ? ", "
                                             : " and ",
                     word);
    }
    return ctl_fail(CAIRN_ERR_INVALID, "%s%s %s: %s are allowed", option[1] != '\0' ? "--" : "-",
                    option, text, allowed.text);
}

static int parse_choice(const struct option_row *row, const char *text, uint64_t *number_out)
{
    return ctl_parse_choice(row->letter != 0 ? "o" : row->name, row->value, text, number_out);
}

/* Adds the setting of the row's field. The value is one of the words shown for the option, or is
 * read in the unit of the field. */
static int parse_field(struct ctl *ctl, const struct option_row *row, char *text)
{
    const struct spec_field *field = spec_field_find(&spec_fields, row->field, strlen(row->field));
    struct job_spec_data spec; // owns nothing
    uint64_t count = 0;
    uint32_t seconds = 0;
    double real = 0;
    int done;
    spec_init(&spec);
    if (field->kind == CAIRN_SPEC_CHOICE || field->kind == CAIRN_SPEC_FLAG) {
        done = parse_choice(row, text, &count);
        return done >= 0 ? done : add_setting(ctl, row->name, row->field, text);
    }
    if (field->kind == CAIRN_SPEC_COUNT && strcmp(row->value, "TIME") == 0)
        done = parse_duration(row->name, text, (uint32_t)field->max, &seconds);
    else if (field->kind == CAIRN_SPEC_COUNT && strcmp(row->value, "SECONDS") == 0)
        done = ctl_parse_number(row->name, text, (uint32_t)field->max, &seconds);
    else if (field->kind == CAIRN_SPEC_COUNT)
        done = parse_count_or_none(row->name, text, (uint64_t)field->max, &count);
    else
        done = parse_real(row->name, text, 0, &real);
    if (field->kind == CAIRN_SPEC_COUNT)
        spec_field_set_bits(field, &spec, count + seconds);
    else
        spec_field_set_number(field, &spec, real);
    return done >= 0 ? done : ctl_set_field(ctl, row->name, row->field, &spec);
}

static int parse_value(struct ctl *ctl, const struct option_row *row, char *text)
{
    void *to = (char *)ctl + row->offset;
    const char *name = row->name;
    uint64_t number;
    int done = -1;
    switch (row->type) {
    case BARE: break;
    case FLAG: *(bool *)to = true; break;
    case TEXT: *(const char **)to = text; break;
    case CHOICE:
        *(const char **)to = text;
        done = parse_choice(row, text, &number);
        break;
    case SWITCH:
        done = parse_choice(row, text, &number);
        *(bool *)to = number == row->max;
        break;
    case NAMES: return parse_name(to, name, text);
    case NUMBER: return ctl_parse_number(name, text, (uint32_t)row->max, to);
    case COUNT: return parse_count(name, text, row->max, to);
    case REAL: return parse_real(name, text, (double)row->max, to);
    case PERCENT: return parse_percent(name, text, (double)row->max, to);
    case SECONDS: return parse_seconds(name, text, to);
    case MILLISECONDS:
        return parse_double(name, text, "", 0, 1e6, "milliseconds, 0 to 1000000, are", to);
    case DURATION: return parse_duration(name, text, (uint32_t)row->max, to);
    case FIELD: return parse_field(ctl, row, text);
    case LONGER:
        done = parse_duration(name, text, (uint32_t)row->max, to);
        if (done >= 0 || *(uint32_t *)to > 0) return done;
        return ctl_fail(CAIRN_ERR_INVALID, "--%s %s: a time longer than 0 is needed", name, text);
    case PARSED: return row->parse(ctl, text);
    }
    return done;
}

/* ==== the line ==== */

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

/* Rejects an option that getopt does not know or cannot read; `text` is the argument that contains it. */
static int refuse_option(const struct ctl *ctl, int answer, const char *text)
{
    // For --quiet=3 optopt is 'q', too.
    const bool is_short = optopt > 0 && optopt < 256 && optopt != 'q';
    if (answer == ':') return ctl_usage_fail(ctl, "%s needs a value", text);
    if (is_short) return ctl_usage_fail(ctl, "there is no option -%c", optopt);
    if (optopt != 0) return ctl_usage_fail(ctl, "%s: it takes no value", text);
    return ctl_usage_fail(ctl, "there is no option %s", text);
}

static int read_options(struct ctl *ctl, bool all)
{
    struct option known[ROW_COUNT + 1] = { 0 };
    for (size_t i = 0; i < ROW_COUNT; i++) {
        const char *value = rows[i].value;
        known[i] = (struct option) { .name = rows[i].name,
                                     .has_arg = value == NULL     ? 0
                                                : value[0] == '[' ? 2
                                                                  : 1,
                                     .val = 256 + (int)first_row(i) };
    }
    opterr = 0;
    optind = 0; // this makes glibc's getopt start again
    // getopt skips argv[0] as the program's name; here that is the previous word.
    for (int c;
         (c = getopt_long(ctl->argc, ctl->argv, all ? ":o:q" : "+:o:q", known, NULL)) != -1;) {
        if (c == '?' || c == ':') return refuse_option(ctl, c, ctl->argv[optind - 1]);
        size_t row = c >= 256 ? (size_t)c - 256 : 0;
        while (c < 256 && rows[row].letter != c) row++;
        ctl->reading.given[row] = true;
        const int done = parse_value(ctl, &rows[row], optarg);
        if (done >= 0) return done;
    }
    ctl->argc -= optind;
    ctl->argv += optind;
    return -1;
}

bool ctl_is_given(const struct ctl *ctl, const char *options)
{
    for (size_t i = 0; i < ROW_COUNT; i++)
        if (ctl->reading.given[i] && has_word(options, rows[i].name)) return true;
    return false;
}

uint64_t ctl_option_number(const struct ctl *ctl, const char *option)
{
    const struct option_row *row = rows;
    while (strcmp(row->name, option) != 0) row++;
    const void *at = (const char *)ctl + row->offset;
    return row->type == COUNT ? *(const uint64_t *)at : *(const uint32_t *)at;
}

static int check_options(const struct ctl *ctl)
{
    for (size_t i = 0; i < ROW_COUNT; i++) {
        const struct option_row *row = rows;
        if (!ctl->reading.given[i]) continue;
        while (row < rows + ROW_COUNT &&
               (strcmp(row->name, rows[i].name) != 0 || !is_taken(row, ctl->row)))
            row++;
        if (row == rows + ROW_COUNT)
            return ctl_usage_fail(ctl, "cairn %s does not take --%s", ctl->words, rows[i].name);
        if (row->parse == parse_workers && strcmp(row->value, "N") == 0 &&
            ctl->terms.workers_max != ctl->bench.workers)
            return ctl_usage_fail(ctl, "--workers of cairn %s is a number", ctl->words);
    }
    return -1;
}

/* ==== words ==== */

/* Returns the command of these words; `verb` NULL stands for any verb. Returns NULL if there is no
 * such command. */
static const struct ctl_row *find_row_of(const struct ctl *ctl, const char *noun, const char *verb)
{
    for (const struct ctl_row *const *table = ctl->program->tables; *table != NULL; table++)
        for (const struct ctl_row *row = *table; row->noun != NULL; row++)
            if (strcmp(row->noun, noun) == 0 && (verb == NULL || strcmp(row->verb, verb) == 0))
                return row;
    return NULL;
}

#define COMMANDS_MAX 128

/* Prints the usage of all commands, of a noun's commands, or of one command. */
static void print_usage(FILE *out, const struct ctl *ctl, const char *noun, const char *verb)
{
    const struct ctl_row *listed[COMMANDS_MAX];
    size_t count = 0;
    fprintf(out, noun == NULL ? "usage: cairn [OPTIONS] NOUN VERB [ARGUMENTS]\n\n" : "usage:\n");
    for (const struct ctl_row *const *table = ctl->program->tables; *table != NULL; table++)
        for (const struct ctl_row *row = *table; row->noun != NULL && count < COMMANDS_MAX; row++) {
            if ((noun != NULL && strcmp(row->noun, noun) != 0) ||
                (verb != NULL && strcmp(row->verb, verb) != 0))
                continue;
            fprintf(out, "  cairn %s%s%s%s%s\n        %s\n", row->noun,
                    row->verb[0] != 0 ? " " : "", row->verb, row->arguments[0] != 0 ? " " : "",
                    row->arguments, row->help);
            listed[count++] = row;
        }
    print_options(out, listed, count);
    fprintf(out,
            "\nexit status: 0 done, 1 failed, 2 usage, 4 not found, 5 damaged data, 10 "
            "unreachable,\n  11 busy, 12 not allowed, 13 another protocol, 124 timeout, 130 "
            "interrupted; local: the command's;\n  of a check: 20 a shard is missing, 21 a job "
            "waits, 22 snapshots, 23 degraded, 3 less safe\n");
}

static void add_word(struct ctl *ctl, const char *word)
{
    const size_t length = strlen(ctl->words);
    snprintf(ctl->words + length, sizeof ctl->words - length, "%s%.24s", length > 0 ? " " : "",
             word);
}

/* Reads the options up to the next word of the line, and then this word. -1: continue; *word_out is NULL at
 * the line's end. */
static int next_word(struct ctl *ctl, const char **word_out)
{
    const int done = read_options(ctl, false);
    if (done >= 0) return done;
    *word_out = ctl->argc > 0 ? ctl->argv[0] : NULL;
    if (*word_out != NULL) add_word(ctl, *word_out);
    return -1;
}

static int refuse_words(struct ctl *ctl, const char *noun, const char *verb)
{
    const bool is_noun = noun != NULL && find_row_of(ctl, noun, NULL) != NULL;
    if (ctl_is_given(ctl, "help") && (noun == NULL || is_noun)) {
        print_usage(stdout, ctl, noun, NULL);
        return 0;
    }
    if (noun == NULL) {
        print_usage(stderr, ctl, NULL, NULL);
        return 2;
    }
    if (!is_noun || verb != NULL)
        return ctl_fail(CAIRN_ERR_INVALID,
                        "there is no subcommand \"%s%s%s\"; see cairn %s%s--help", noun,
                        verb != NULL && is_noun ? " " : "", verb != NULL && is_noun ? verb : "",
                        is_noun ? noun : "", is_noun ? " " : "");
    return ctl_usage_fail(ctl, "cairn %s needs a verb", noun);
}

/* Reads the words that name the command, up to its arguments. -1: continue. */
static int read_words(struct ctl *ctl)
{
    const char *noun = ctl->program->noun, *verb = NULL;
    char **const line = ctl->argv;
    int done = -1;
    if (noun == NULL)
        done = next_word(ctl, &noun);
    else
        add_word(ctl, noun);
    if (done >= 0) return done;
    ctl->reading.noun_at = ctl->argv - line;
    ctl->row = noun != NULL ? find_row_of(ctl, noun, "") : NULL;
    if (ctl->row == NULL && noun != NULL && find_row_of(ctl, noun, NULL) != NULL) {
        done = next_word(ctl, &verb);
        if (done >= 0) return done;
        ctl->row = verb != NULL ? find_row_of(ctl, noun, verb) : NULL;
    }
    return ctl->row != NULL ? -1 : refuse_words(ctl, noun, verb);
}

/* Parses the line into a command and its arguments. -1: continue. */
static int parse_line(struct ctl *ctl)
{
    int done = read_words(ctl);
    if (done >= 0) return done;
    const struct ctl_row *row = ctl->row;
    done = read_options(ctl, row->max_args != CTL_ANY_ARGS); // a command has its own options
    if (done >= 0) return done;
    if (ctl_is_given(ctl, "help")) {
        print_usage(stdout, ctl, row->noun, row->verb);
        return 0;
    }
    done = check_options(ctl);
    if (done >= 0) return done;
    if (ctl->argc >= row->min_args && ctl->argc <= row->max_args) return -1;
    return ctl_usage_fail(ctl, "usage: cairn %s%s%s", ctl->words, row->arguments[0] != 0 ? " " : "",
                          row->arguments);
}

/* ==== the command ==== */

/* Replaces this process by the program of this noun; the new program reads the line again. */
static int become_program(const struct ctl *ctl)
{
    char name[32], path[PATH_MAX];
    struct sentence why = { "" };
    char **line = ctl->reading.line;
    snprintf(name, sizeof name, "cairn-%s", ctl->row->noun);
    if (!local_find_program(name, path, &why)) return ctl_fail(CAIRN_ERR_NOT_FOUND, "%s", why.text);
    for (char **at = line + ctl->reading.noun_at; *at != NULL; at++) at[0] = at[1];
    line[0] = name;
    execv(path, line);
    return ctl_fail(CAIRN_ERR_IO, "%s: %s", path, strerror(errno));
}

static int run_row(struct ctl *ctl)
{
    const struct ctl_row *row = ctl->row;
    if (row->question != NULL && row->question->run != NULL) return row->question->run(ctl);
    if (row->question != NULL) return ctl_ask(ctl, row->question);
    return ctl->program->run != NULL ? ctl->program->run(ctl) : become_program(ctl);
}

/* Finds the coordinator that the line or the environment names. -1: continue. */
static int find_endpoint(struct ctl *ctl)
{
    static struct env_report env;
    const struct env_input input = { .get = env_get,
                                     .given[CAIRN_ENV_ENDPOINT] = { ctl->endpoint, "--endpoint" } };
    struct sentence why;
    const cairn_status status = env_find(&input, CAIRN_ENV_ENDPOINT, &env, &why);
    if (status != CAIRN_OK) return ctl_fail(status, "%s", why.text);
    ctl->endpoint = env.values[CAIRN_ENV_ENDPOINT].text;
    return -1;
}

int ctl_main(int argc, char **argv, const struct ctl_program *program)
{
    static struct ctl ctl;
    ctl = (struct ctl) { .argc = argc, .argv = argv, .program = program };
    // a copy, because reading the line moves its words
    ctl.reading.line = calloc((size_t)argc + 1, sizeof *ctl.reading.line);
    if (ctl.reading.line == NULL) return ctl_fail(CAIRN_ERR_NO_MEMORY, "out of memory");
    memcpy(ctl.reading.line, argv, (size_t)argc * sizeof *argv);
    int done = parse_line(&ctl);
    if (done < 0 && takes(ctl.row, "timeout")) done = find_endpoint(&ctl);
    const bool repeats = done < 0 && ctl.watch && ctl.row->question != NULL &&
                         ctl.row->question->run == NULL; // a function watches by itself
    if (done < 0) done = repeats ? ctl_watch(&ctl, run_row) : run_row(&ctl);
    free(ctl.reading.line);
    return done;
}

/* ==== benches ==== */

/* The benches: cairn-bench (bench/bench.h) runs them, and cairn prints their usage. */

#define BENCHES "output seconds "

const struct ctl_row ctl_bench_rows[] = {
    { "bench", "update", "",
      "the shard's arithmetic (fold of 2 workers, norm, AdamW, publish) against the speed of "
      "memory; parts of it with --only; on a device with --backend cuda",
      0, 0, BENCHES "params threads wire only backend device", NULL },
    { "bench", "layout", "", "the planner, as a process of its own, against 1 s and 1 GiB", 0, 0,
      BENCHES "params shards tensors", NULL },
    { "bench", "latency", "",
      "an empty step of a tiny model and its parts, in a cluster of its own or in yours, against "
      "raw TCP",
      0, 0, BENCHES "endpoint shards workers", NULL },
    { "bench", "fabric", "",
      "pushes and fetches between two processes, as the fabric moves them, against raw UCX or "
      "memcpy",
      0, 0, BENCHES "path chunk", NULL },
    { "bench", "step", "",
      "a step of worker processes: push, update, fetch; in a cluster of its own or in yours, "
      "against memcpy",
      0, 0,
      BENCHES "endpoint shards workers params tensors threads wire path timeline backward read "
              "backend device memory global-batch tier",
      NULL },
    { "bench", "tensors", "",
      "a step of many small tensors, in a cluster of its own or in yours, against the step of one "
      "tensor of as many bytes",
      0, 0, BENCHES "endpoint shards workers params tensors wire path", NULL },
    { "bench", "open", "",
      "the longest step of a small job while one of very many tensors is opened, against its "
      "longest step at rest",
      0, 0, BENCHES "shards tensors", NULL },
    { "bench", "reshard", "[--from N] [--to N]",
      "a job moves from so many shards to so many, at rest against memcpy, and while it trains", 0,
      0, BENCHES "params tensors threads wire", NULL },
    { "bench", "snapshot", "--dir FOLDER",
      "a snapshot, its restore, and what training feels of it, against the raw rate of the disk "
      "and torch.save",
      0, 0, BENCHES "shards workers params tensors only", NULL },
    { "bench", "recover", "",
      "from the death of a shard to the next step, at a tier, against torchrun, which starts a "
      "trainer again that loads a checkpoint",
      0, 0, BENCHES "shards workers params tensors threads wire path tier kills planned", NULL },
    { "bench", "map", "",
      "one tensor over all shards, mapped where they published it and read, in a cluster of its "
      "own or in yours, against memcpy",
      0, 0, BENCHES "endpoint shards params wire path", NULL },
    { .noun = NULL },
};
