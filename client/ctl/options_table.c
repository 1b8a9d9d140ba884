#include "client/ctl/options.h"

#include <errno.h>
#include <getopt.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "proto/geometry/layout.h"

/* ==== table ==== */

/* The options, a line each. An option that means two things has two lines, and one number. */

const struct ctl_option ctl_options[] = {
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
    { { "watch", 2, 0, OPT_WATCH },
      CTL_TAKES_FOLLOW,
      "--watch [SECONDS]",
      "go on with what happens from then on, until it is interrupted (asked every 2 seconds)" },
    { { "check", 0, 0, OPT_CHECK },
      CTL_TAKES_CHECK,
      "--check",
      "only what is not well, a line each; the exit status says which kind is the worst" },
    { { "snapshot-age", 1, 0, OPT_SNAPSHOT_AGE },
      CTL_TAKES_AGE,
      "--snapshot-age TIME",
      "a job whose newest snapshot is older is not well (90s, 10min, 36h, 7d)" },
    { { "every", 1, 0, OPT_EVERY },
      CTL_TAKES_EVERY,
      "--every SECONDS",
      "how long between two pictures (1)" },
    { { "once", 0, 0, OPT_ONCE }, CTL_TAKES_EVERY, "--once", "one picture, as -o json has it" },
    { { "wait", 0, 0, OPT_WAIT }, CTL_TAKES_WAIT, "--wait", "return when it is committed" },
    { { "path", 1, 0, OPT_PATH }, CTL_TAKES_RESTORE, "--path FOLDER", "the folder of a snapshot" },
    { { "job", 1, 0, OPT_JOB }, CTL_TAKES_RESTORE, "--job NAME", "its job (else the snapshot's)" },
    { { "path", 1, 0, OPT_PATH },
      CTL_TAKES_PLACE | CTL_TAKES_PLACES,
      "--path FOLDER",
      "the folder of a snapshot, read without a coordinator" },
    { { "allow-unsigned", 0, 0, OPT_ALLOW_UNSIGNED },
      CTL_TAKES_TRUST,
      "--allow-unsigned",
      "take a snapshot that nobody signed" },
    { { "allow-untrusted", 0, 0, OPT_ALLOW_UNTRUSTED },
      CTL_TAKES_TRUST,
      "--allow-untrusted",
      "take one that was signed by a key that is not trusted" },
    { { "fallback", 0, 0, OPT_FALLBACK },
      CTL_TAKES_TRUST,
      "--fallback",
      "where it is damaged, the newest good one that is older (also by snapshot_fallback of the "
      "job)" },
    { { "quick", 0, 0, OPT_QUICK }, CTL_TAKES_VERIFY, "--quick", "manifest, sizes and headers" },
    { { "read-data-subset", 1, 0, OPT_READ_DATA_SUBSET },
      CTL_TAKES_VERIFY,
      "--read-data-subset P%",
      "so many of the blocks, at random (all)" },
    { { "key", 1, 0, OPT_KEY },
      CTL_TAKES_VERIFY,
      "--key FILE|KEY",
      "whose signature it has to have (else one that the coordinator trusts)" },
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
      "--snapshot-every N|TIME",
      "from one periodic snapshot to the next: steps (500), or a time (10min); 0: none" },
    { { "snapshot-keep", 1, 0, OPT_SNAPSHOT_KEEP },
      CTL_TAKES_TERMS,
      "--snapshot-keep N",
      "of them, so many stay; 0: no such rule. Any rule keeps one; without a rule all stay" },
    { { "snapshot-keep-every", 1, 0, OPT_SNAPSHOT_KEEP_EVERY },
      CTL_TAKES_TERMS,
      "--snapshot-keep-every N",
      "the first of every N steps stays for good; 0: no such rule" },
    { { "snapshot-keep-within", 1, 0, OPT_SNAPSHOT_KEEP_WITHIN },
      CTL_TAKES_TERMS,
      "--snapshot-keep-within TIME",
      "all younger than that stay (36h; s, min, h, d); 0: no such rule" },
    { { "snapshot-max-bytes", 1, 0, OPT_SNAPSHOT_MAX_BYTES },
      CTL_TAKES_TERMS,
      "--snapshot-max-bytes N",
      "of all snapshots of the job; over it the oldest go (500G); 0: no bound" },
    { { "snapshot-staging", 1, 0, OPT_SNAPSHOT_STAGING },
      CTL_TAKES_TERMS,
      "--snapshot-staging state|small",
      "room for what updates overwrite while a snapshot is written" },
    { { "snapshot-durable-within", 1, 0, OPT_SNAPSHOT_DURABLE_WITHIN },
      CTL_TAKES_TERMS,
      "--snapshot-durable-within TIME",
      "a snapshot is to be on disk by then; 0: no deadline" },
    { { "snapshot-fallback", 1, 0, OPT_SNAPSHOT_FALLBACK },
      CTL_TAKES_TERMS,
      "--snapshot-fallback yes|no",
      "a restore that finds a snapshot damaged takes the newest good one before it" },
    { { "snapshot-scrub-every", 1, 0, OPT_SNAPSHOT_SCRUB_EVERY },
      CTL_TAKES_TERMS,
      "--snapshot-scrub-every TIME",
      "every snapshot is read again and checked (7d); 0: by command only" },
    { { "keep-last", 1, 0, OPT_KEEP_LAST },
      CTL_TAKES_KEEPING,
      "--keep-last N",
      "the newest N stay; this and what follows: instead of the job's rules" },
    { { "keep-every", 1, 0, OPT_KEEP_EVERY },
      CTL_TAKES_KEEPING,
      "--keep-every N",
      "the first of every N steps stays" },
    { { "keep-within", 1, 0, OPT_KEEP_WITHIN },
      CTL_TAKES_KEEPING,
      "--keep-within TIME",
      "all younger than that stay (36h; s, min, h, d)" },
    { { "max-bytes", 1, 0, OPT_MAX_BYTES },
      CTL_TAKES_KEEPING,
      "--max-bytes N",
      "of all snapshots of the job; over it the oldest go (500G)" },
    { { "dry-run", 0, 0, OPT_DRY_RUN },
      CTL_TAKES_KEEPING,
      "--dry-run",
      "only say which would go, and why the others stay" },
    { { "mtbf", 1, 0, OPT_MTBF },
      CTL_TAKES_MTBF,
      "--mtbf TIME",
      "mean time between faults (else from the cluster's events); 90s, 10min, 36h, 7d" },
    { { "delete", 0, 0, OPT_DELETE }, CTL_TAKES_DELETE, "--delete", "take the tag off" },
    { { "force", 0, 0, OPT_FORCE },
      CTL_TAKES_FORCE_RM,
      "--force",
      "also one that has a tag, and the only verified one" },
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
    { { "from", 1, 0, OPT_FROM },
      CTL_TAKES_CREATE,
      "--from JOB/ID|FOLDER",
      "the snapshot that it begins with; an id may be latest" },
    { { "as", 1, 0, OPT_AS }, CTL_TAKES_CREATE, "--as NAME", "its name (else the snapshot's)" },
    { { "set", 1, 0, OPT_SET },
      CTL_TAKES_SET,
      "--set KEY=VALUE",
      "a field of the spec: stage=3, wire=bf16, GROUP.lr=1e-4 (again and again)" },
    { { "dry-run", 0, 0, OPT_DRY_RUN },
      CTL_TAKES_CREATE,
      "--dry-run",
      "only say what would be made, and what it takes" },
    { { "to", 1, 0, OPT_TO }, CTL_TAKES_FROM_TO, "--to N", "and after (one more)" },
    { { "to", 1, 0, OPT_TO }, CTL_TAKES_EXPORT, "--to DIR", "a new folder, which is written" },
    { { "to", 1, 0, OPT_TO },
      CTL_TAKES_COPY,
      "--to ROOT",
      "a folder of snapshots: the copy is ROOT/JOB/ID" },
    { { "format", 1, 0, OPT_FORMAT },
      CTL_TAKES_EXPORT,
      "--format hf|dcp|torch",
      "the weights as transformers has them (hf), or with the optimizer's state: a folder of "
      "PyTorch's distributed checkpoint (dcp), or one file of torch.save (torch)" },
    { { "dtype", 1, 0, OPT_DTYPE },
      CTL_TAKES_EXPORT,
      "--dtype f32|bf16",
      "of the weights: as they are (f32), or rounded" },
    { { "max-file", 1, 0, OPT_MAX_FILE },
      CTL_TAKES_EXPORT,
      "--max-file BYTES",
      "of a file, unless one tensor is larger (5GB)" },
    { { "stats", 0, 0, OPT_STATS },
      CTL_TAKES_STATS,
      "--stats",
      "of every tensor, too: minimum, maximum, mean, norm, what is not finite (reads all of it)" },
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
      "one part of it: of update adamw, zeros, fold, hash, copy; of snapshot write, read, "
      "interval, export, import, manifest" },
    { { "dir", 1, 0, OPT_DIR },
      CTL_TAKES_DIR,
      "--dir FOLDER",
      "on the disk that is measured; what is written there is removed" },
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
const size_t ctl_option_count = sizeof ctl_options / sizeof *ctl_options;
_Static_assert(sizeof ctl_options / sizeof *ctl_options <= CTL_OPTIONS_MAX, "a flag each");

/* ==== bench ==== */

/* The options of `cairn bench`, and of `cairn job plan`. */

#define DEVICE_LETTERS "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ-/"

static int take_snapshot(struct ctl *ctl, int option);

static int parse_wire(struct ctl *ctl, const char *text)
{
    ctl->bench.wire = text;
    if (strcmp(text, "f32") == 0 || strcmp(text, "bf16") == 0) return -1;
    return ctl_fail(CAIRN_ERR_INVALID, "--wire %s: f32 and bf16 are allowed", text);
}

static int parse_backend(struct ctl *ctl, const char *text)
{
    ctl->bench.backend = text;
    if (strcmp(text, "host") == 0 || strcmp(text, "cuda") == 0) return -1;
    return ctl_fail(CAIRN_ERR_INVALID, "--backend %s: host and cuda are allowed", text);
}

static int parse_memory(struct ctl *ctl, const char *text)
{
    ctl->bench.has_device_memory = strcmp(text, "device") == 0;
    if (ctl->bench.has_device_memory || strcmp(text, "host") == 0) return -1;
    return ctl_fail(CAIRN_ERR_INVALID, "--memory %s: host and device are allowed", text);
}

/* It goes into configurations as it is. */
static int parse_device(struct ctl *ctl, const char *text)
{
    const size_t length = strlen(text);
    ctl->bench.device = text;
    if (length > 0 && length < 64 && strspn(text, DEVICE_LETTERS) == length) return -1;
    return ctl_fail(CAIRN_ERR_INVALID,
                    "--device %s: a number, or a UUID as nvidia-smi -L has it, is allowed", text);
}

static int parse_stage(struct ctl *ctl, const char *text)
{
    ctl->plan.has_stage = true;
    ctl->plan.stage = (uint32_t)(text[0] - '0');
    if (text[0] >= '0' && text[0] <= '3' && text[1] == '\0') return -1;
    return ctl_fail(CAIRN_ERR_INVALID, "--stage %s: 0 to 3 is allowed", text);
}

static int parse_offload(struct ctl *ctl, const char *text)
{
    ctl->plan.has_offload = true;
    const int done = ctl_parse_real("offload", text, &ctl->plan.offload);
    if (done >= 0 || ctl->plan.offload <= 1) return done;
    return ctl_fail(CAIRN_ERR_INVALID, "--offload %s: 0 to 1 is allowed", text);
}

/* Takes the options of `cairn bench` and of `cairn plan`. */
int ctl_take_bench(struct ctl *ctl, int option)
{
    switch (option) {
    case OPT_THREADS: return ctl_parse_number("threads", optarg, 1024, &ctl->bench.threads);
    case OPT_TENSORS:
        return ctl_parse_number("tensors", optarg, CAIRN_LAYOUT_TENSORS_MAX, &ctl->bench.tensors);
    case OPT_PARAMS:
        return ctl_parse_count("params", optarg, (uint64_t)1 << 56, &ctl->bench.params);
    case OPT_SECONDS: return ctl_parse_seconds("seconds", optarg, &ctl->bench.seconds);
    case OPT_WIRE: return parse_wire(ctl, optarg);
    case OPT_BACKEND: return parse_backend(ctl, optarg);
    case OPT_DEVICE: return parse_device(ctl, optarg);
    case OPT_STAGE: return parse_stage(ctl, optarg);
    case OPT_OFFLOAD: return parse_offload(ctl, optarg);
    case OPT_MEMORY: return parse_memory(ctl, optarg);
    case OPT_GLOBAL_BATCH:
        return ctl_parse_number("global-batch", optarg, CAIRN_SPEC_MICRO_MAX,
                                &ctl->bench.global_batch);
    case OPT_TIMELINE: ctl->bench.timeline = optarg; return -1;
    case OPT_READ: ctl->bench.read = optarg; return -1;
    case OPT_BACKWARD: return ctl_parse_milliseconds("backward", optarg, &ctl->bench.backward_ms);
    case OPT_CHUNK: return ctl_parse_count("chunk", optarg, 4 << 20, &ctl->bench.chunk);
    case OPT_DIR: ctl->bench.folder = optarg; return -1;
    case OPT_ONLY: ctl->bench.only = optarg; return -1;
    default: return take_snapshot(ctl, option);
    }
}

/* ==== reshard ==== */

/* Values of the options that say over which shards a job is spread, and what it is otherwise. */

int ctl_parse_name(struct ctl_names *names, const char *option, const char *text)
{
    if (text[0] == '\0')
        return ctl_fail(CAIRN_ERR_INVALID, "--%s needs the name of a shard", option);
    if (names->count == CTL_NAMES_MAX)
        return ctl_fail(CAIRN_ERR_INVALID, "--%s may be given %d times", option, CTL_NAMES_MAX);
    names->names[names->count++] = text;
    return -1;
}

int ctl_parse_weight(struct ctl_names *names, char *text)
{
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
    const int done = ctl_parse_name(names, "weight", text);
    if (done < 0) names->weights[at] = weight;
    return done;
}

int ctl_parse_setting(struct ctl_settings *settings, char *text)
{
    char *equals = strchr(text, '=');
    if (equals == NULL || equals == text)
        return ctl_fail(CAIRN_ERR_INVALID,
                        "--set %s: KEY=VALUE is allowed, as stage=3 or default.lr=1e-4", text);
    if (settings->count == CTL_NAMES_MAX)
        return ctl_fail(CAIRN_ERR_INVALID, "--set may be given %d times", CTL_NAMES_MAX);
    Cairn__Setting *setting = &settings->room[settings->count];
    *equals = '\0';
    cairn__setting__init(setting);
    setting->key = text;
    setting->value = equals + 1;
    settings->list[settings->count++] = setting;
    return -1;
}

int ctl_parse_percent(const char *name, const char *text, double most, double *out)
{
    char *end;
    errno = 0;
    const double percent = strtod(text, &end);
    if (errno != 0 || end == text || strcmp(end, "%") != 0 || !(percent > 0) || percent > most)
        return ctl_fail(CAIRN_ERR_INVALID,
                        "--%s %s: a percentage above 0 and up to %.0f, as 10%%, is allowed", name,
                        text, most);
    *out = percent / 100;
    return -1;
}

/* ==== snapshot ==== */

/* The options of `cairn snapshot`. */

static int parse_format(const char *text, const char **out)
{
    *out = text;
    if (strcmp(text, "hf") == 0 || strcmp(text, "dcp") == 0 || strcmp(text, "torch") == 0)
        return -1;
    return ctl_fail(CAIRN_ERR_INVALID, "--format %s: hf, dcp and torch are allowed", text);
}

static int parse_word(const char *name, const char *text, const char *one, const char *other,
                      const char **out)
{
    *out = text;
    if (strcmp(text, one) == 0 || strcmp(text, other) == 0) return -1;
    return ctl_fail(CAIRN_ERR_INVALID, "--%s %s: %s and %s are allowed", name, text, one, other);
}

/* As the Hub's tools write it: 5GB, 500MB; a B at the end may be left out. */
static int parse_max_file(struct ctl *ctl, char *text)
{
    const size_t length = strlen(text);
    if (length > 1 && text[length - 1] == 'B') text[length - 1] = '\0';
    return ctl_parse_count("max-file", text, UINT64_C(1) << 60, &ctl->export.file_bytes_max);
}

static int take_snapshot(struct ctl *ctl, int option)
{
    switch (option) {
    case OPT_FORMAT: return parse_format(optarg, &ctl->export.format);
    case OPT_DTYPE: return parse_word("dtype", optarg, "f32", "bf16", &ctl->export.dtype);
    case OPT_MAX_FILE: return parse_max_file(ctl, optarg);
    case OPT_ALLOW_UNSIGNED: ctl->allow_unsigned = true; return -1;
    case OPT_ALLOW_UNTRUSTED: ctl->allow_untrusted = true; return -1;
    case OPT_FALLBACK: ctl->fallback = true; return -1;
    case OPT_QUICK: ctl->quick = true; return -1;
    case OPT_READ_DATA_SUBSET:
        return ctl_parse_percent("read-data-subset", optarg, 100, &ctl->subset);
    case OPT_KEY: ctl->key = optarg; return -1;
    case OPT_STATS: ctl->export.stats = true; return -1;
    default: abort(); // getopt gives what is in the table
    }
}
