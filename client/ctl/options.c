/* The options of the command line: a table with one row per option. The table drives parsing, checking and
 * help. */
#include "client/ctl/ctl.h"

#include <inttypes.h>
#include <errno.h>
#include <float.h>
#include <getopt.h>
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "proto/geometry/layout.h"
#include "proto/spec/spec_fields.h"

#define WATCH_EVERY_S  2
#define DEVICE_LETTERS "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ-/"

/* The type of a value, and of the field of struct ctl that receives it. */
enum option_type {
    FLAG,         /* bool; takes no value */
    TEXT,         /* const char * */
    CHOICE,       /* const char *: one of the words shown for the value, "f32|bf16" */
    SWITCH,       /* bool: one of two such words; true for the word numbered `max`, from 0 */
    NAMES,        /* struct ctl_names: each use adds one */
    NUMBER,       /* uint32_t, 1 to max; K, M, G or T multiplies by powers of a thousand */
    COUNT,        /* uint64_t, the same */
    COUNT_OR_0,   /* the same, or 0 */
    REAL,         /* double, from 0 to max (0: no limit) */
    PERCENT,      /* double: a fraction, at most max percent */
    SECONDS,      /* double, above 0 */
    MILLISECONDS, /* double */
    DURATION,     /* uint32_t, seconds, up to max: 90, 90s, 10min, 36h, 7d */
    FIELD,        /* a setting: the field of the job's spec that `field` names */
    PARSED,       /* read by a function */
};

/* One row. An option with two meanings has two rows; the first one determines how it is parsed. */
struct option_row {
    const char *name;
    const char *value; /* as help shows it; "[SECONDS]": may be omitted; NULL: takes no value */
    /* The kinds by which subcommands accept the option. NULL: the only kind is the option's name. "": every
     * subcommand accepts the option. */
    const char *kinds;
    /* for PARSED; returns -1 to continue, else the exit status */
    int (*parse)(struct ctl *ctl, char *text);
    enum option_type type;
    size_t offset; /* in struct ctl */
    uint64_t max;
    const char *help;  /* NULL: not shown */
    const char *field; /* for FIELD */
    const char *shown; /* NULL: built from name and value */
    char letter;       /* -o */
};

/* ==== values ==== */

/* All functions return -1 to continue, or else the exit status after printing the error. */

/* Reads a number from `least` to `most`, followed by `unit`. */
static bool read_real(const char *text, const char *unit, double least, double most, double *out)
{
    char *end;
    errno = 0;
    *out = strtod(text, &end);
    return errno == 0 && end != text && strcmp(end, unit) == 0 && *out >= least && *out <= most;
}

static int parse_seconds(const char *name, const char *text, double *out)
{
    if (read_real(text, "", DBL_TRUE_MIN, 1e6, out)) return -1;
    return ctl_fail(CAIRN_ERR_INVALID,
                    "--%s %s: seconds, more than 0 and at most 1000000, are allowed", name, text);
}

static int parse_milliseconds(const char *name, const char *text, double *out)
{
    if (read_real(text, "", 0, 1e6, out)) return -1;
    return ctl_fail(CAIRN_ERR_INVALID, "--%s %s: milliseconds, 0 to 1000000, are allowed", name,
                    text);
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
    if (!read_real(text, "", 0, 1e30, out))
        return ctl_fail(CAIRN_ERR_INVALID, "--%s %s: a number of at least 0 is allowed", name,
                        text);
    if (max == 0 || *out <= max) return -1;
    return ctl_fail(CAIRN_ERR_INVALID, "--%s %s: 0 to %g is allowed", name, text, max);
}

static int parse_percent(const char *name, const char *text, double most, double *out)
{
    const bool is_percent = read_real(text, "%", DBL_TRUE_MIN, most, out);
    *out /= 100;
    if (is_percent) return -1;
    return ctl_fail(CAIRN_ERR_INVALID,
                    "--%s %s: a percentage above 0 and up to %.0f, as 10%%, is allowed", name, text,
                    most);
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

static int parse_name(struct ctl_names *names, const char *option, const char *text)
{
    if (text[0] == '\0')
        return ctl_fail(CAIRN_ERR_INVALID, "--%s needs the name of a shard", option);
    if (names->count == CTL_NAMES_MAX)
        return ctl_fail(CAIRN_ERR_INVALID, "--%s may be given %d times", option, CTL_NAMES_MAX);
    names->names[names->count++] = text;
    return -1;
}

/* ---- values of one option ---- */

static int parse_timeout(struct ctl *ctl, char *text)
{
    double seconds;
    const int done = parse_seconds("timeout", text, &seconds);
    if (done >= 0) return done;
    ctl->timeout_ms = (int)(seconds * 1000);
    if (ctl->timeout_ms == 0) ctl->timeout_ms = 1;
    return -1;
}

/* Reads the seconds, which may also be the next word, if that word is a number. */
static int parse_watch(struct ctl *ctl, char *text)
{
    char *next = text == NULL && optind < ctl->argc ? ctl->argv[optind] : NULL;
    ctl->watch = true;
    ctl->every_s = WATCH_EVERY_S;
    if (next != NULL && next[strspn(next, "0123456789.")] == '\0' && next[0] != '\0') {
        text = next;
        optind++;
    }
    return text != NULL ? parse_seconds("watch", text, &ctl->every_s) : -1;
}

static int parse_since(struct ctl *ctl, char *text)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    const uint64_t now_ms = (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
    if (ctl_since(text, now_ms, &ctl->since_unix_ms)) return -1;
    return ctl_usage_fail(ctl,
                          "--since %s: give a duration (2h) or a time "
                          "(2026-11-24T14:00:00Z)",
                          text);
}

/* Reads "4", or, for a job, "1:4". */
static int parse_workers(struct ctl *ctl, char *text)
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
    return ctl_fail(CAIRN_ERR_INVALID, "--workers %s: MIN must not be more than MAX", text);
}

/* The strings must outlive the request. */
static bool add_setting(struct ctl_settings *settings, const char *key, const char *value)
{
    if (settings->count == CTL_NAMES_MAX) return false;
    Cairn__Setting *setting = &settings->room[settings->count];
    cairn__setting__init(setting);
    setting->key = wire_text(key);
    setting->value = wire_text(value);
    settings->list[settings->count++] = setting;
    return true;
}

bool ctl_setting_add_field(struct ctl_settings *settings, const char *name,
                           const struct job_spec_data *from)
{
    if (settings->count == CTL_NAMES_MAX) return false;
    const struct spec_field *field = spec_field_find(&spec_fields, name, strlen(name));
    char *text = settings->values[settings->count];
    spec_setting_text(field, from, text);
    return add_setting(settings, field->name, text);
}

static int too_many(const char *option)
{
    return ctl_fail(CAIRN_ERR_INVALID, "--%s may be given %d times", option, CTL_NAMES_MAX);
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
    if (done >= 0) return done;
    return ctl_setting_add_field(&ctl->set, "snapshot_every", &spec) &&
                   ctl_setting_add_field(&ctl->set, "snapshot_every_s", &spec)
               ? -1
               : too_many("snapshot-every");
}

static int parse_mtbf(struct ctl *ctl, char *text)
{
    const int done = parse_duration("mtbf", text, CAIRN_SPEC_WITHIN_S_MAX, &ctl->mtbf_s);
    if (done >= 0 || ctl->mtbf_s > 0) return done;
    return ctl_fail(CAIRN_ERR_INVALID, "--mtbf %s: a time longer than 0 is needed", text);
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
    struct ctl_settings *settings = &ctl->set;
    char *equals = strchr(text, '=');
    if (equals == NULL || equals == text)
        return ctl_fail(CAIRN_ERR_INVALID,
                        "--set %s: KEY=VALUE is allowed, as stage=3 or default.lr=1e-4", text);
    *equals = '\0';
    return add_setting(settings, text, equals + 1) ? -1 : too_many("set");
}

static int parse_path(struct ctl *ctl, char *text)
{
    ctl->path_before = ctl->path;
    ctl->path = text;
    return -1;
}

static int parse_version(struct ctl *ctl, char *text)
{
    (void)text;
    printf("cairn %s\n", ctl->build);
    return 0;
}

/* ==== table ==== */

#define AS(is, member, most) .type = is, .offset = offsetof(struct ctl, member), .max = most
#define BY(function)         .parse = function, .type = PARSED, .offset = 0, .max = 0
#define SETS(name)           .field = #name, .type = FIELD, .offset = 0, .max = 0

static const struct option_row rows[] = {
    { "endpoint", "ADDRESS", NULL, AS(TEXT, endpoint, 0),
      "the coordinator, HOST:PORT or /PATH (else CAIRN_ENDPOINT, else a socket in "
      "$XDG_RUNTIME_DIR/cairn or /run/cairn)" },
    { "timeout", "SECONDS", NULL, BY(parse_timeout),
      "how long to wait for an answer (30; snapshots and digests 600)" },
    { "output", "table|json", NULL, AS(SWITCH, json, 1), "how to print (table)", .letter = 'o' },
    { "no-headers", NULL, NULL, AS(FLAG, no_headers, 0), "a table without its first line" },
    { "quiet", NULL, NULL, AS(FLAG, quiet, 0),
      "only what was asked for: names, an id, a root; local: only errors", .letter = 'q' },
    { "yes", NULL, NULL, AS(FLAG, yes, 0),
      "do it, without being asked or shown what would be done" },
    { "force", NULL, NULL, AS(FLAG, force, 0),
      "even while workers or readers are attached (they are put out) or the job is being saved" },
    { "watch", "[SECONDS]", NULL, BY(parse_watch),
      "again and again until it is interrupted (every 2 seconds)" },
    { "watch", "[SECONDS]", "follow", BY(parse_watch),
      "then follow new events until it is interrupted (asked every 2 seconds)" },
    { "check", NULL, NULL, AS(FLAG, check, 0),
      "only what is wrong, a line each; the exit status says which kind is the worst" },
    { "snapshot-age", "TIME", NULL, AS(DURATION, snapshot_age_s, CAIRN_SPEC_WITHIN_S_MAX),
      "report a job whose newest snapshot is older (90s, 10min, 36h, 7d)" },
    { "every", "SECONDS", NULL, AS(SECONDS, every_s, 0), "how long between two pictures (1)" },
    { "once", NULL, "every", AS(FLAG, once, 0), "one picture, as -o json has it" },
    { "wait", NULL, NULL, AS(FLAG, wait, 0), "return when it is committed" },
    { "path", "FOLDER", "restore", BY(parse_path), "the folder of a snapshot" },
    { "job", "NAME", "restore", AS(TEXT, job, 0), "its job (else the snapshot's)" },
    { "path", "FOLDER", "place places", BY(parse_path),
      "the folder of a snapshot, read without a coordinator" },
    { "allow-unsigned", NULL, "trust", AS(FLAG, allow_unsigned, 0),
      "take a snapshot that nobody signed" },
    { "allow-untrusted", NULL, "trust", AS(FLAG, allow_untrusted, 0),
      "take one that was signed by a key that is not trusted" },
    { "fallback", NULL, "trust", AS(FLAG, fallback, 0),
      "if it is damaged, take the newest good one that is older (also by snapshot_fallback of the "
      "job)" },
    { "quick", NULL, "verify", AS(FLAG, quick, 0), "manifest, sizes and headers" },
    { "read-data-subset", "P%", "verify", AS(PERCENT, subset, 100),
      "this share of the blocks, at random (all)" },
    { "key", "FILE|KEY", "verify", AS(TEXT, key, 0),
      "the key that must have signed it (else one that the coordinator trusts)" },
    { "shards", "N", NULL, AS(NUMBER, shards, CAIRN_SHARDS_MAX), "how many shards" },
    { "endpoint-file", "FILE", "local", AS(TEXT, endpoint_file, 0),
      "holds the endpoint while the cluster is up" },
    { "keep", "FOLDER", "local", AS(TEXT, keep, 0),
      "use this folder and leave it there (else a temporary one)" },
    { "import", "FOLDER", "local", AS(TEXT, import, 0),
      "weights may be read from it (else from the working folder)" },
    { "workers", "N", NULL, BY(parse_workers), "how many workers" },
    { "workers", "MIN:MAX", "terms", BY(parse_workers),
      "a round opens with MIN workers, and MAX may attach; N is N:N" },
    { "lr", "X", "terms", AS(REAL, lr, 0), "the learning rate, which its schedule scales" },
    { "group", "NAME", "terms", AS(TEXT, group, 0), "whose (else of all)" },
    /* The next lines are made by tests/tree/spec_fields.py. */
    { "clip-norm", "X", "terms", SETS(clip_norm),
      "limit of the global gradient norm; 0: no limit" },
    { "snapshot-every", "N|TIME", "terms", BY(parse_every),
      "from one periodic snapshot to the next: steps (500), or a time (10min); 0: none" },
    { "snapshot-keep", "N", "terms", SETS(snapshot_keep),
      "the newest N of them stay; 0: no such rule. Any rule keeps one; without a rule all stay" },
    { "snapshot-keep-every", "N", "terms", SETS(snapshot_keep_every),
      "the first of every N steps stays for good; 0: no such rule" },
    { "snapshot-keep-within", "TIME", "terms", SETS(snapshot_keep_within_s),
      "all younger than that stay (36h; s, min, h, d); 0: no such rule" },
    { "snapshot-max-bytes", "N", "terms", SETS(snapshot_max_bytes),
      "limit of all the job's snapshots; over it the oldest go (500G); 0: no limit" },
    { "snapshot-staging", "state|small", "terms", SETS(snapshot_staging),
      "room for what updates overwrite while a snapshot is written" },
    { "snapshot-durable-within", "TIME", "terms", SETS(snapshot_durable_within_s),
      "a snapshot is to be on disk by then; 0: no deadline" },
    { "snapshot-fallback", "yes|no", "terms", SETS(snapshot_fallback),
      "a restore that finds a snapshot damaged takes the newest good one before it" },
    { "snapshot-scrub-every", "TIME", "terms", SETS(snapshot_scrub_every_s),
      "every snapshot is read again and checked (7d); 0: by command only" },
    { "on-shard-loss", "wait|restore-latest", "terms", SETS(on_shard_loss),
      "what the job does when a shard has lost its part" },
    { "shard-loss-wait", "SECONDS", "terms", SETS(shard_loss_wait_s),
      "how long a shard may be away before that (300)" },
    { "on-worker-loss", "redo|wait|fail", "terms", SETS(on_worker_loss),
      "what the job does when a worker was lost" },
    { "worker-loss-wait", "SECONDS", "terms", SETS(worker_loss_wait_s),
      "how long to wait for another one (300)" },
    /* From here on by hand. */
    { "keep-last", "N", "keeping", AS(COUNT, rules.keep_last, CAIRN_SPEC_KEEP_MAX),
      "the newest N stay; this and the next options replace the job's rules" },
    { "keep-every", "N", "keeping", AS(COUNT, rules.keep_every, CAIRN_SPEC_EVERY_MAX),
      "the first of every N steps stays" },
    { "keep-within", "TIME", "keeping", AS(DURATION, rules.keep_within_s, CAIRN_SPEC_WITHIN_S_MAX),
      "all younger than that stay (36h; s, min, h, d)" },
    { "max-bytes", "N", "keeping", AS(COUNT, rules.max_bytes, CAIRN_SPEC_KEEP_BYTES_MAX),
      "limit of all the job's snapshots; over it the oldest go (500G)" },
    { "dry-run", NULL, "keeping", AS(FLAG, rules.dry_run, 0),
      "only say which would go, and why the others stay" },
    { "mtbf", "TIME", NULL, BY(parse_mtbf),
      "mean time between faults (else from the cluster's events); 90s, 10min, 36h, 7d" },
    { "delete", NULL, NULL, AS(FLAG, deletes, 0), "take the tag off" },
    { "force", NULL, "rm", AS(FLAG, force, 0),
      "also one that has a tag, and the only verified one" },
    { "all", NULL, NULL, AS(FLAG, reshard.all, 0), "all jobs" },
    { "add", "NAME", "reshard", AS(NAMES, reshard.add, 0),
      "a shard that is to own a part of it, too; repeat for each" },
    { "drain", "NAME", "reshard", AS(NAMES, reshard.drain, 0),
      "a shard to move all off; repeat for each" },
    { "weight", "NAME=W", "reshard", BY(parse_weight),
      "W times as much as a shard without a weight, which has 1; repeat for each" },
    { "pause", "P%", NULL, AS(PERCENT, reshard.pause, 10000),
      "by how much a step may become longer meanwhile (10%)" },
    { "since", "TIME", NULL, BY(parse_since),
      "only what happened since then: 2h (ms, s, m, h, d) before now, or 2026-11-24T14:00:00Z" },
    { "from", "N", "from-to", AS(TEXT, from, 0), "how many shards before (4)" },
    { "from", "JOB/ID|FOLDER", "create", AS(TEXT, from, 0),
      "the snapshot that it begins with; an id may be latest" },
    { "as", "NAME", "create", AS(TEXT, as, 0), "its name (else the snapshot's)" },
    { "set", "KEY=VALUE", NULL, BY(parse_setting),
      "a field of the spec: stage=3, wire=bf16, GROUP.lr=1e-4 (again and again)" },
    { "dry-run", NULL, "create", AS(FLAG, rules.dry_run, 0),
      "only say what would be made, and what it takes" },
    { "to", "N", "from-to", AS(TEXT, to, 0), "and after (one more)" },
    { "to", "DIR", "export", AS(TEXT, to, 0), "a new folder, which is written" },
    { "to", "ROOT", "copy", AS(TEXT, to, 0), "a folder of snapshots: the copy is ROOT/JOB/ID" },
    { "format", "hf|dcp|torch", "export", AS(CHOICE, export.format, 0),
      "the weights as transformers has them (hf), or with the optimizer's state: a folder of "
      "PyTorch's distributed checkpoint (dcp), or one file of torch.save (torch)" },
    { "dtype", "f32|bf16", "export", AS(CHOICE, export.dtype, 0),
      "write weights as they are (f32), or rounded" },
    { "max-file", "BYTES", "export", BY(parse_max_file),
      "of a file, unless one tensor is larger (5GB)" },
    { "stats", NULL, NULL, AS(FLAG, export.stats, 0),
      "also every tensor's minimum, maximum, mean, norm, what is not finite (reads all of it)" },
    { "threads", "N", NULL, AS(NUMBER, bench.threads, 1024),
      "how many compute threads (else one a core)" },
    { "params", "N", NULL, AS(COUNT, bench.params, UINT64_C(1) << 56),
      "parameters of the model; 64M is 64000000; K, G and T likewise" },
    { "tensors", "N", NULL, AS(NUMBER, bench.tensors, CAIRN_LAYOUT_TENSORS_MAX),
      "of how many tensors" },
    { "wire", "f32|bf16", "wire plan", AS(CHOICE, bench.wire, 0),
      "dtype of gradients and parameters on the wire (bf16; of a plan: the spec's)" },
    { "path", "NAME", "way", BY(parse_path), "how the data travels" },
    { "only", "NAME", NULL, AS(TEXT, bench.only, 0),
      "one part of it: of update adamw, zeros, fold, hash, copy; of snapshot write, read, "
      "interval, export, import, manifest" },
    { "dir", "FOLDER", NULL, AS(TEXT, bench.folder, 0),
      "on the disk that is measured; what is written there is removed" },
    { "backend", "host|cuda", "backend plan", AS(CHOICE, bench.backend, 0),
      "where state is, and what works on it (host)" },
    { "device", "N", "backend", BY(parse_device), "of cuda: its number or UUID (the first)" },
    { "stage", "N", "plan", BY(parse_stage), "0 to 3 (else the spec's)" },
    { "offload", "X", "plan", AS(REAL, plan.offload, 1),
      "of cuda: the fraction of state in host memory, 0 to 1 (else the spec's)" },
    { "memory", "host|device", NULL, AS(SWITCH, bench.has_device_memory, 1),
      "where workers have gradients and parameters: device is the shards' card (host)" },
    { "global-batch", "K", "memory", AS(NUMBER, bench.global_batch, CAIRN_SPEC_MICRO_MAX),
      "a step of K micro-batches, dealt to the workers, against adding up in each" },
    { "timeline", "FILE", NULL, AS(TEXT, bench.timeline, 0),
      "write what happened when in the last step, as a Chrome trace" },
    { "backward", "MS", "timeline", AS(MILLISECONDS, bench.backward_ms, 0),
      "gradients become ready one after the other during that time (0: at once)" },
    { "read", "fetch|map|units", "timeline", AS(TEXT, bench.read, 0),
      "parameters into memory of the worker's own (fetch), or lent: all (map), or as stage 3" },
    { "chunk", "BYTES", NULL, AS(COUNT, bench.chunk, 4 << 20),
      "message size (1048576), at most 4194304" },
    { "seconds", "N", NULL, AS(SECONDS, bench.seconds, 0),
      "how long to measure (5); a run that has begun is finished" },
    { "help", NULL, "", AS(FLAG, help, 0), "this; which version it is",
      .shown = "--help, --version" },
    { "version", NULL, "", BY(parse_version), NULL },
};
#define ROW_COUNT (sizeof rows / sizeof *rows)
_Static_assert(ROW_COUNT <= CTL_OPTIONS_MAX, "a flag each");

/* Returns the first row of an option, which determines how it is parsed. */
static size_t first_row(size_t row)
{
    size_t first = 0;
    while (strcmp(rows[first].name, rows[row].name) != 0) first++;
    return first;
}

bool ctl_takes(const char *takes, const char *kind)
{
    const size_t length = strlen(kind);
    for (const char *at = takes; (at = strstr(at, kind)) != NULL; at += length)
        if ((at == takes || at[-1] == ' ') && (at[length] == ' ' || at[length] == '\0'))
            return true;
    return false;
}

/* True if a subcommand that accepts these kinds accepts the option with the meaning of this row. */
static bool is_taken(const struct option_row *row, const char *takes)
{
    char kinds[32], *rest = kinds;
    if (row->kinds == NULL) return ctl_takes(takes, row->name);
    snprintf(kinds, sizeof kinds, "%s", row->kinds);
    if (kinds[0] == '\0') return true;
    for (char *kind; (kind = strsep(&rest, " ")) != NULL;)
        if (ctl_takes(takes, kind)) return true;
    return false;
}

void ctl_options_print(FILE *out, const char *takes)
{
    fprintf(out, "\noptions:\n");
    for (const struct option_row *row = rows; row < rows + ROW_COUNT; row++) {
        char shown[48];
        if (row->help == NULL || !is_taken(row, takes)) continue;
        if (row->letter != 0)
            snprintf(shown, sizeof shown, row->value != NULL ? "-%c %s" : "-%c, --%s", row->letter,
                     row->value != NULL ? row->value : row->name);
        else
            snprintf(shown, sizeof shown, "--%s%s%s", row->name, row->value != NULL ? " " : "",
                     row->value != NULL ? row->value : "");
        fprintf(out, "  %-21s %s\n", row->shown != NULL ? row->shown : shown, row->help);
    }
}

/* Checks that the text is one of the words of "f32|bf16". *number_out: its number, from 0. */
static int parse_choice(const struct option_row *row, const char *text, uint64_t *number_out)
{
    struct sentence allowed = { "" };
    char words[64], *rest = words;
    snprintf(words, sizeof words, "%s", row->value);
    *number_out = 0;
    for (char *word; (word = strsep(&rest, "|")) != NULL; ++*number_out) {
        if (strcmp(word, text) == 0) return -1;
        sentence_add(&allowed, "%s%s",
                     allowed.text[0] == '\0' ? ""
                     : rest != NULL          ? ", "
                                             : " and ",
                     word);
    }
    return ctl_fail(CAIRN_ERR_INVALID, "%s%s %s: %s are allowed", row->letter != 0 ? "-" : "--",
                    row->letter != 0 ? "o" : row->name, text, allowed.text);
}

/* Adds the setting of the row's field. The value is one of the words shown for it, or is read as its unit
 * says. */
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
        if (done >= 0) return done;
        return add_setting(&ctl->set, row->field, text) ? -1 : too_many(row->name);
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
    if (done >= 0) return done;
    return ctl_setting_add_field(&ctl->set, row->field, &spec) ? -1 : too_many(row->name);
}

static int parse_value(struct ctl *ctl, const struct option_row *row, char *text)
{
    void *to = (char *)ctl + row->offset;
    const char *name = row->name;
    uint64_t number;
    int done = -1;
    switch (row->type) {
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
    case COUNT_OR_0: return parse_count_or_none(name, text, row->max, to);
    case REAL: return parse_real(name, text, (double)row->max, to);
    case PERCENT: return parse_percent(name, text, (double)row->max, to);
    case SECONDS: return parse_seconds(name, text, to);
    case MILLISECONDS: return parse_milliseconds(name, text, to);
    case DURATION: return parse_duration(name, text, (uint32_t)row->max, to);
    case FIELD: return parse_field(ctl, row, text);
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

int ctl_options_read(struct ctl *ctl, bool all)
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
    optind = 0; // glibc's getopt restarts
    // getopt skips argv[0] as the program's name; here that is the previous word.
    for (int c;
         (c = getopt_long(ctl->argc, ctl->argv, all ? ":o:q" : "+:o:q", known, NULL)) != -1;) {
        if (c == '?' || c == ':') return refuse_option(ctl, c, ctl->argv[optind - 1]);
        size_t row = c >= 256 ? (size_t)c - 256 : 0;
        while (c < 256 && rows[row].letter != c) row++;
        ctl->given[row] = true;
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
        if (ctl->given[i] && ctl_takes(options, rows[i].name)) return true;
    return false;
}

int ctl_options_check(const struct ctl *ctl, const char *takes)
{
    for (size_t i = 0; i < ROW_COUNT; i++) {
        bool taken = false;
        if (!ctl->given[i]) continue;
        for (size_t row = i; row < ROW_COUNT; row++)
            taken = taken || (first_row(row) == i && is_taken(&rows[row], takes));
        if (!taken)
            return ctl_usage_fail(ctl, "cairn %s does not take --%s", ctl->words, rows[i].name);
    }
    if (ctl_takes(takes, "workers") && ctl->workers_max != ctl->bench.workers)
        return ctl_usage_fail(ctl, "--workers of cairn %s is a number", ctl->words);
    return -1;
}
