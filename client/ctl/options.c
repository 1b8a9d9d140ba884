/* The options of the command line: one table, from which they are read, judged and explained. */
#include <errno.h>
#include <getopt.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "client/ctl/ctl.h"
#include "proto/geometry/layout.h"

#define WATCH_EVERY_S  2
#define DEVICE_LETTERS "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ-/"

enum {
    OPT_ENDPOINT = 256,
    OPT_TIMEOUT,
    OPT_NO_HEADERS,
    OPT_WAIT,
    OPT_YES,
    OPT_FORCE,
    OPT_JOB,
    OPT_PATH,
    OPT_SHARDS,
    OPT_ENDPOINT_FILE,
    OPT_KEEP,
    OPT_IMPORT,
    OPT_SECONDS,
    OPT_PARAMS,
    OPT_WORKERS,
    OPT_THREADS,
    OPT_TENSORS,
    OPT_WIRE,
    OPT_ONLY,
    OPT_BACKEND,
    OPT_DEVICE,
    OPT_STAGE,
    OPT_OFFLOAD,
    OPT_MEMORY,
    OPT_GLOBAL_BATCH,
    OPT_TIMELINE,
    OPT_BACKWARD,
    OPT_READ,
    OPT_CHUNK,
    OPT_WATCH,
    OPT_EVERY,
    OPT_ONCE,
    OPT_LR,
    OPT_GROUP,
    OPT_CLIP_NORM,
    OPT_SNAPSHOT_EVERY,
    OPT_SNAPSHOT_KEEP,
    OPT_ON_SHARD_LOSS,
    OPT_SHARD_LOSS_WAIT,
    OPT_ALL,
    OPT_ADD,
    OPT_DRAIN,
    OPT_WEIGHT,
    OPT_PAUSE,
    OPT_SINCE,
    OPT_ON_WORKER_LOSS,
    OPT_WORKER_LOSS_WAIT,
    OPT_FROM,
    OPT_TO,
    OPT_HELP,
    OPT_VERSION
};

/* An option that means two things has two lines, and one number. */
static const struct {
    struct option option;
    unsigned kind; /* CTL_TAKES_*; 0: of every subcommand */
    const char *shown, *help;
} table[] = {
    { { "endpoint", 1, 0, OPT_ENDPOINT },
      CTL_TAKES_ENDPOINT,
      "--endpoint ADDRESS",
      "the coordinator, HOST:PORT or /PATH (else CAIRN_ENDPOINT, else a socket in "
      "$XDG_RUNTIME_DIR/cairn or /run/cairn)" },
    { { "timeout", 1, 0, OPT_TIMEOUT },
      CTL_TAKES_TIMEOUT,
      "--timeout SECONDS",
      "how long to wait for an answer (30; snapshots and digests 600)" },
    { { "output", 1, 0, 'o' }, CTL_TAKES_OUTPUT, "-o table|json", "how to print (table)" },
    { { "no-headers", 0, 0, OPT_NO_HEADERS },
      CTL_TAKES_NO_HEADERS,
      "--no-headers",
      "a table without its first line" },
    { { "quiet", 0, 0, 'q' },
      CTL_TAKES_QUIET,
      "-q, --quiet",
      "only what was asked for: names, an id, a root; local: no word that is not an error" },
    { { "yes", 0, 0, OPT_YES },
      CTL_TAKES_YES,
      "--yes",
      "do it, without being asked or shown what would be done" },
    { { "force", 0, 0, OPT_FORCE },
      CTL_TAKES_FORCE,
      "--force",
      "also while workers or readers are attached, who are put out, or it is being saved" },
    { { "watch", 2, 0, OPT_WATCH },
      CTL_TAKES_WATCH,
      "--watch [SECONDS]",
      "again and again until it is interrupted (every 2 seconds)" },
    { { "every", 1, 0, OPT_EVERY },
      CTL_TAKES_EVERY,
      "--every SECONDS",
      "how long between two pictures (1)" },
    { { "once", 0, 0, OPT_ONCE }, CTL_TAKES_EVERY, "--once", "one picture, as -o json has it" },
    { { "wait", 0, 0, OPT_WAIT }, CTL_TAKES_WAIT, "--wait", "return when it is committed" },
    { { "path", 1, 0, OPT_PATH }, CTL_TAKES_RESTORE, "--path FOLDER", "the folder of a snapshot" },
    { { "job", 1, 0, OPT_JOB }, CTL_TAKES_RESTORE, "--job NAME", "its job (else the snapshot's)" },
    { { "shards", 1, 0, OPT_SHARDS }, CTL_TAKES_SHARDS, "--shards N", "how many shards" },
    { { "endpoint-file", 1, 0, OPT_ENDPOINT_FILE },
      CTL_TAKES_LOCAL,
      "--endpoint-file FILE",
      "holds the endpoint while the cluster is up" },
    { { "keep", 1, 0, OPT_KEEP },
      CTL_TAKES_LOCAL,
      "--keep FOLDER",
      "use this folder and leave it there (else a temporary one)" },
    { { "import", 1, 0, OPT_IMPORT },
      CTL_TAKES_LOCAL,
      "--import FOLDER",
      "weights may be read from it (else from the working folder)" },
    { { "workers", 1, 0, OPT_WORKERS }, CTL_TAKES_WORKERS, "--workers N", "how many workers" },
    { { "workers", 1, 0, OPT_WORKERS },
      CTL_TAKES_TERMS,
      "--workers MIN:MAX",
      "a round opens with MIN workers, and MAX may attach; N is N:N" },
    { { "lr", 1, 0, OPT_LR },
      CTL_TAKES_TERMS,
      "--lr X",
      "the learning rate, at which its schedule is 1" },
    { { "group", 1, 0, OPT_GROUP }, CTL_TAKES_TERMS, "--group NAME", "whose (else of all)" },
    { { "clip-norm", 1, 0, OPT_CLIP_NORM },
      CTL_TAKES_TERMS,
      "--clip-norm X",
      "of the global gradient norm; 0: no clipping" },
    { { "snapshot-every", 1, 0, OPT_SNAPSHOT_EVERY },
      CTL_TAKES_TERMS,
      "--snapshot-every N",
      "steps from one periodic snapshot to the next; 0: none" },
    { { "snapshot-keep", 1, 0, OPT_SNAPSHOT_KEEP },
      CTL_TAKES_TERMS,
      "--snapshot-keep N",
      "of them, so many stay; 0: all" },
    { { "on-shard-loss", 1, 0, OPT_ON_SHARD_LOSS },
      CTL_TAKES_TERMS,
      "--on-shard-loss wait|restore-latest",
      "what the job does when a shard has lost its part" },
    { { "shard-loss-wait", 1, 0, OPT_SHARD_LOSS_WAIT },
      CTL_TAKES_TERMS,
      "--shard-loss-wait SECONDS",
      "so long a shard may be away before that (300)" },
    { { "all", 0, 0, OPT_ALL }, CTL_TAKES_ALL, "--all", "all jobs" },
    { { "add", 1, 0, OPT_ADD },
      CTL_TAKES_RESHARD,
      "--add NAME",
      "a shard that is to own something of it, too; again for each" },
    { { "drain", 1, 0, OPT_DRAIN },
      CTL_TAKES_RESHARD,
      "--drain NAME",
      "a shard that all goes off; again for each" },
    { { "weight", 1, 0, OPT_WEIGHT },
      CTL_TAKES_RESHARD,
      "--weight NAME=W",
      "so much more than a shard without a weight, which has 1; again for each" },
    { { "pause", 1, 0, OPT_PAUSE },
      CTL_TAKES_PAUSE,
      "--pause P%",
      "by how much a step may become longer meanwhile (10%)" },
    { { "since", 1, 0, OPT_SINCE },
      CTL_TAKES_SINCE,
      "--since TIME",
      "only what happened since then: 2h (ms, s, m, h, d) before now, or 2026-11-24T14:00:00Z" },
    { { "on-worker-loss", 1, 0, OPT_ON_WORKER_LOSS },
      CTL_TAKES_TERMS,
      "--on-worker-loss redo|wait|fail",
      "what the job does when a worker was lost" },
    { { "worker-loss-wait", 1, 0, OPT_WORKER_LOSS_WAIT },
      CTL_TAKES_TERMS,
      "--worker-loss-wait SECONDS",
      "so long another one is waited for (300)" },
    { { "from", 1, 0, OPT_FROM }, CTL_TAKES_FROM_TO, "--from N", "so many shards before (4)" },
    { { "to", 1, 0, OPT_TO }, CTL_TAKES_FROM_TO, "--to N", "and after (one more)" },
    { { "threads", 1, 0, OPT_THREADS },
      CTL_TAKES_THREADS,
      "--threads N",
      "how many compute threads (else one a core)" },
    { { "params", 1, 0, OPT_PARAMS },
      CTL_TAKES_PARAMS,
      "--params N",
      "parameters of the model; 64M is 64000000, and K, G, T as that" },
    { { "tensors", 1, 0, OPT_TENSORS }, CTL_TAKES_TENSORS, "--tensors N", "of how many tensors" },
    { { "wire", 1, 0, OPT_WIRE },
      CTL_TAKES_WIRE | CTL_TAKES_PLAN,
      "--wire f32|bf16",
      "what gradients and parameters travel as (bf16; of a plan: as the spec says)" },
    { { "path", 1, 0, OPT_PATH }, CTL_TAKES_WAY, "--path NAME", "the way of the data" },
    { { "only", 1, 0, OPT_ONLY },
      CTL_TAKES_ONLY,
      "--only NAME",
      "one part of it: adamw, fold, hash, copy" },
    { { "backend", 1, 0, OPT_BACKEND },
      CTL_TAKES_BACKEND | CTL_TAKES_PLAN,
      "--backend host|cuda",
      "where state is, and what works on it (host)" },
    { { "device", 1, 0, OPT_DEVICE },
      CTL_TAKES_BACKEND,
      "--device N",
      "of cuda: its number or UUID (the first)" },
    { { "stage", 1, 0, OPT_STAGE }, CTL_TAKES_PLAN, "--stage N", "0 to 3 (else the spec's)" },
    { { "offload", 1, 0, OPT_OFFLOAD },
      CTL_TAKES_PLAN,
      "--offload X",
      "of cuda: the fraction of state in host memory, 0 to 1 (else the spec's)" },
    { { "memory", 1, 0, OPT_MEMORY },
      CTL_TAKES_MEMORY,
      "--memory host|device",
      "where workers have gradients and parameters: device is the shards' card (host)" },
    { { "global-batch", 1, 0, OPT_GLOBAL_BATCH },
      CTL_TAKES_MEMORY,
      "--global-batch K",
      "a step of K micro-batches, dealt to the workers, against adding up in each" },
    { { "timeline", 1, 0, OPT_TIMELINE },
      CTL_TAKES_TIMELINE,
      "--timeline FILE",
      "write what happened when in the last step, as a Chrome trace" },
    { { "backward", 1, 0, OPT_BACKWARD },
      CTL_TAKES_TIMELINE,
      "--backward MS",
      "gradients become ready one after the other during that time (0: at once)" },
    { { "read", 1, 0, OPT_READ },
      CTL_TAKES_TIMELINE,
      "--read fetch|map|units",
      "parameters into memory of the worker's own (fetch), or lent: all (map), or as stage 3" },
    { { "chunk", 1, 0, OPT_CHUNK },
      CTL_TAKES_CHUNK,
      "--chunk BYTES",
      "of a message (1048576), at most 4194304" },
    { { "seconds", 1, 0, OPT_SECONDS },
      CTL_TAKES_SECONDS,
      "--seconds N",
      "how long to measure (5); a run that has begun is ended" },
    { { "help", 0, 0, OPT_HELP }, 0, "--help, --version", "this; which version it is" },
    { { "version", 0, 0, OPT_VERSION }, 0, NULL, NULL },
};
enum { OPTIONS = sizeof table / sizeof *table };
_Static_assert(OPTIONS <= 64, "a bit each");

int cairn_ctl_usage_fail(const struct ctl *ctl, const char *fmt, ...)
{
    struct cairn_sentence text;
    va_list arguments;
    va_start(arguments, fmt);
    vsnprintf(text.text, sizeof text.text, fmt, arguments);
    va_end(arguments);
    return cairn_ctl_fail(CAIRN_ERR_INVALID, "%s; see cairn %s%s--help", text.text, ctl->words,
                          ctl->words[0] != 0 ? " " : "");
}

void cairn_ctl_options_print(FILE *out, unsigned takes)
{
    fprintf(out, "\noptions:\n");
    for (size_t i = 0; i < OPTIONS; i++)
        if (table[i].shown != NULL && (table[i].kind == 0 || (takes & table[i].kind) != 0))
            fprintf(out, "  %-21s %s\n", table[i].shown, table[i].help);
}

/* ---- values ---- */

static int parse_seconds(const char *name, const char *text, double *out)
{
    char *end;
    errno = 0;
    const double seconds = strtod(text, &end);
    if (errno != 0 || end == text || *end != 0 || !(seconds > 0) || seconds > 1e6)
        return cairn_ctl_fail(CAIRN_ERR_INVALID,
                              "--%s %s: seconds, more than 0 and at most 1000000, are allowed",
                              name, text);
    *out = seconds;
    return -1;
}

static int parse_milliseconds(const char *name, const char *text, double *out)
{
    char *end;
    errno = 0;
    const double ms = strtod(text, &end);
    if (errno != 0 || end == text || *end != 0 || !(ms >= 0) || ms > 1e6)
        return cairn_ctl_fail(CAIRN_ERR_INVALID, "--%s %s: milliseconds, 0 to 1000000, are allowed",
                              name, text);
    *out = ms;
    return -1;
}

static int parse_timeout(struct ctl *ctl, const char *text)
{
    double seconds;
    const int done = parse_seconds("timeout", text, &seconds);
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
    return optarg != NULL ? parse_seconds("watch", optarg, &ctl->every_s) : -1;
}

static int parse_output(struct ctl *ctl, const char *text)
{
    ctl->json = strcmp(text, "json") == 0;
    if (ctl->json || strcmp(text, "table") == 0) return -1;
    return cairn_ctl_fail(CAIRN_ERR_INVALID, "-o %s: table and json are allowed", text);
}

static int parse_wire(struct ctl *ctl, const char *text)
{
    ctl->bench.wire = text;
    if (strcmp(text, "f32") == 0 || strcmp(text, "bf16") == 0) return -1;
    return cairn_ctl_fail(CAIRN_ERR_INVALID, "--wire %s: f32 and bf16 are allowed", text);
}

static int parse_backend(struct ctl *ctl, const char *text)
{
    ctl->bench.backend = text;
    if (strcmp(text, "host") == 0 || strcmp(text, "cuda") == 0) return -1;
    return cairn_ctl_fail(CAIRN_ERR_INVALID, "--backend %s: host and cuda are allowed", text);
}

static int parse_memory(struct ctl *ctl, const char *text)
{
    ctl->bench.has_device_memory = strcmp(text, "device") == 0;
    if (ctl->bench.has_device_memory || strcmp(text, "host") == 0) return -1;
    return cairn_ctl_fail(CAIRN_ERR_INVALID, "--memory %s: host and device are allowed", text);
}

/* It goes into configurations as it is. */
static int parse_device(struct ctl *ctl, const char *text)
{
    const size_t length = strlen(text);
    ctl->bench.device = text;
    if (length > 0 && length < 64 && strspn(text, DEVICE_LETTERS) == length) return -1;
    return cairn_ctl_fail(CAIRN_ERR_INVALID,
                          "--device %s: a number, or a UUID as nvidia-smi -L has it, is allowed",
                          text);
}

/* 1 to max, with K, M, G or T for thousands of it. */
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
        return cairn_ctl_fail(CAIRN_ERR_INVALID, "--%s %s: 1 to %llu is allowed", name, text,
                              (unsigned long long)max);
    *out = count;
    return -1;
}

static int parse_number(const char *name, const char *text, uint32_t max, uint32_t *out)
{
    uint64_t count = 0;
    const int done = parse_count(name, text, max, &count);
    *out = (uint32_t)count;
    return done;
}

/* The same, or 0. */
static int parse_count_or_none(const char *name, const char *text, uint64_t max, uint64_t *out)
{
    *out = 0;
    return strcmp(text, "0") == 0 ? -1 : parse_count(name, text, max, out);
}

static int parse_real(const char *name, const char *text, double *out)
{
    char *end;
    errno = 0;
    *out = strtod(text, &end);
    if (errno == 0 && end != text && *end == 0 && *out >= 0 && *out <= 1e30) return -1;
    return cairn_ctl_fail(CAIRN_ERR_INVALID, "--%s %s: a number of at least 0 is allowed", name,
                          text);
}

static int parse_since(struct ctl *ctl)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    const uint64_t now_ms = (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
    if (cairn_ctl_since(optarg, now_ms, &ctl->since_unix_ms)) return -1;
    return cairn_ctl_usage_fail(ctl,
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
        const int done = parse_number("workers", text, 65535, &ctl->workers_max);
        ctl->workers_min = ctl->bench.workers = ctl->workers_max;
        return done;
    }
    snprintf(first, sizeof first, "%.*s", (int)(colon - text < 15 ? colon - text : 15), text);
    int done = parse_number("workers", first, 65535, &ctl->workers_min);
    if (done < 0) done = parse_number("workers", colon + 1, 65535, &ctl->workers_max);
    if (done >= 0 || ctl->workers_min <= ctl->workers_max) return done;
    return cairn_ctl_fail(CAIRN_ERR_INVALID,
                          "--workers %s: at most as many as may attach are needed", text);
}

static int parse_stage(struct ctl *ctl, const char *text)
{
    ctl->plan.has_stage = true;
    ctl->plan.stage = (uint32_t)(text[0] - '0');
    if (text[0] >= '0' && text[0] <= '3' && text[1] == '\0') return -1;
    return cairn_ctl_fail(CAIRN_ERR_INVALID, "--stage %s: 0 to 3 is allowed", text);
}

static int parse_offload(struct ctl *ctl, const char *text)
{
    ctl->plan.has_offload = true;
    const int done = parse_real("offload", text, &ctl->plan.offload);
    if (done >= 0 || ctl->plan.offload <= 1) return done;
    return cairn_ctl_fail(CAIRN_ERR_INVALID, "--offload %s: 0 to 1 is allowed", text);
}

/* Those of `cairn bench`, and of `cairn plan`. */
static int take_bench(struct ctl *ctl, int option)
{
    switch (option) {
    case OPT_FROM: return parse_number("from", optarg, CTL_SHARDS_MAX, &ctl->bench.from);
    case OPT_TO: return parse_number("to", optarg, CTL_SHARDS_MAX, &ctl->bench.to);
    case OPT_THREADS: return parse_number("threads", optarg, 1024, &ctl->bench.threads);
    case OPT_TENSORS:
        return parse_number("tensors", optarg, CAIRN_LAYOUT_TENSORS_MAX, &ctl->bench.tensors);
    case OPT_PARAMS: return parse_count("params", optarg, (uint64_t)1 << 56, &ctl->bench.params);
    case OPT_SECONDS: return parse_seconds("seconds", optarg, &ctl->bench.seconds);
    case OPT_WIRE: return parse_wire(ctl, optarg);
    case OPT_BACKEND: return parse_backend(ctl, optarg);
    case OPT_DEVICE: return parse_device(ctl, optarg);
    case OPT_STAGE: return parse_stage(ctl, optarg);
    case OPT_OFFLOAD: return parse_offload(ctl, optarg);
    case OPT_MEMORY: return parse_memory(ctl, optarg);
    case OPT_GLOBAL_BATCH:
        return parse_number("global-batch", optarg, CAIRN_SPEC_MICRO_MAX, &ctl->bench.global_batch);
    case OPT_TIMELINE: ctl->bench.timeline = optarg; return -1;
    case OPT_READ: ctl->bench.read = optarg; return -1;
    case OPT_BACKWARD: return parse_milliseconds("backward", optarg, &ctl->bench.backward_ms);
    case OPT_CHUNK: return parse_count("chunk", optarg, 4 << 20, &ctl->bench.chunk);
    case OPT_ONLY: ctl->bench.only = optarg; return -1;
    default: abort(); // getopt gives what is in the table
    }
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
    case OPT_EVERY: return parse_seconds("every", optarg, &ctl->every_s);
    case OPT_ONCE: ctl->once = true; return -1;
    case OPT_JOB: ctl->job = optarg; return -1;
    case OPT_PATH: ctl->path = optarg; return -1;
    case OPT_SHARDS: return parse_number("shards", optarg, CAIRN_SHARDS_MAX, &ctl->shards);
    case OPT_WORKERS: return parse_workers(ctl, optarg);
    case OPT_LR: ctl->has_lr = true; return parse_real("lr", optarg, &ctl->lr);
    case OPT_GROUP: ctl->group = optarg; return -1;
    case OPT_CLIP_NORM:
        ctl->has_clip_norm = true;
        return parse_real("clip-norm", optarg, &ctl->clip_norm);
    case OPT_SNAPSHOT_EVERY:
        ctl->has_snapshot_every = true;
        return parse_count_or_none("snapshot-every", optarg, CAIRN_SPEC_EVERY_MAX,
                                   &ctl->snapshot_every);
    case OPT_SNAPSHOT_KEEP:
        ctl->has_snapshot_keep = true;
        return parse_count_or_none("snapshot-keep", optarg, CAIRN_SPEC_KEEP_MAX,
                                   &ctl->snapshot_keep);
    case OPT_ON_SHARD_LOSS: ctl->on_shard_loss = optarg; return -1;
    case OPT_SHARD_LOSS_WAIT:
        return parse_number("shard-loss-wait", optarg, CAIRN_SPEC_LOSS_WAIT_MAX_S,
                            &ctl->shard_loss_wait_s);
    case OPT_ALL: ctl->reshard.all = true; return -1;
    case OPT_ADD: return cairn_ctl_parse_name(&ctl->reshard.add, "add", optarg);
    case OPT_DRAIN: return cairn_ctl_parse_name(&ctl->reshard.drain, "drain", optarg);
    case OPT_WEIGHT: return cairn_ctl_parse_weight(&ctl->reshard.weight, optarg);
    case OPT_PAUSE: return cairn_ctl_parse_pause(optarg, &ctl->reshard.pause);
    case OPT_SINCE: return parse_since(ctl);
    case OPT_ON_WORKER_LOSS: ctl->on_worker_loss = optarg; return -1;
    case OPT_WORKER_LOSS_WAIT:
        return parse_number("worker-loss-wait", optarg, CAIRN_SPEC_LOSS_WAIT_MAX_S,
                            &ctl->worker_loss_wait_s);
    case OPT_ENDPOINT_FILE: ctl->endpoint_file = optarg; return -1;
    case OPT_KEEP: ctl->keep = optarg; return -1;
    case OPT_IMPORT: ctl->import = optarg; return -1;
    case OPT_HELP: ctl->help = true; return -1;
    case OPT_VERSION: printf("cairn %s\n", CAIRN_VERSION); return 0;
    default: return take_bench(ctl, option);
    }
}

/* ---- the line ---- */

/* What getopt does not know; `text` is the argument it stands in. */
static int refuse(const struct ctl *ctl, int answer, const char *text)
{
    const bool is_short = optopt > 0 && optopt < 256 && optopt != 'q'; // it is --quiet=3, not -q
    if (answer == ':') return cairn_ctl_usage_fail(ctl, "%s needs a value", text);
    if (is_short) return cairn_ctl_usage_fail(ctl, "there is no option -%c", optopt);
    if (optopt != 0) return cairn_ctl_usage_fail(ctl, "%s: it takes no value", text);
    return cairn_ctl_usage_fail(ctl, "there is no option %s", text);
}

static void note(struct ctl *ctl, int option)
{
    for (size_t i = 0; i < OPTIONS; i++)
        if (table[i].option.val == option) ctl->given |= (uint64_t)1 << i;
}

int cairn_ctl_options_read(struct ctl *ctl, bool all)
{
    struct option known[OPTIONS + 1] = { 0 };
    for (size_t i = 0; i < OPTIONS; i++) known[i] = table[i].option;
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

static bool is_taken(int option, unsigned takes)
{
    for (size_t i = 0; i < OPTIONS; i++)
        if (table[i].option.val == option && (table[i].kind == 0 || (table[i].kind & takes) != 0))
            return true;
    return false;
}

int cairn_ctl_options_judge(const struct ctl *ctl, unsigned takes)
{
    for (size_t i = 0; i < OPTIONS; i++)
        if ((ctl->given >> i & 1) != 0 && !is_taken(table[i].option.val, takes))
            return cairn_ctl_usage_fail(ctl, "cairn %s does not take --%s", ctl->words,
                                        table[i].option.name);
    if ((takes & CTL_TAKES_WORKERS) != 0 && ctl->workers_max != ctl->bench.workers)
        return cairn_ctl_usage_fail(ctl, "--workers of cairn %s is a number", ctl->words);
    return -1;
}
