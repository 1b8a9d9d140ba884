/* cairn bench snapshot: the cost of a snapshot and of its restore, beside the raw rate of the disk
 * that has the snapshot, in the same run; the effect on training; and the manifest of a large
 * snapshot. */
#include "client/ctl/bench/bench.h"
#include "bench/torch_async.h"
#include "bench/torch_import.h"
#include "bench/torch_save.h"

#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <sys/stat.h>
#include <sys/statvfs.h>

#include "proto/snapshot/snapshot.h"
#include "proto/snapshot_io/snapshot_io.h"

/* ==== shared ==== */

/* The declarations that the parts of cairn bench snapshot share. Each part runs in the bench's own cluster.
 * The cluster's folder is in --dir and has everything that is written, so all of it is removed with the
 * folder. */

#define SNAPSHOT_RUNS 5     /* the runs of each kind */
#define AT_LEAST_S    0.001 /* so short that no more than the least number of runs is made */

struct snapshot_bench {
    struct step_plan plan;
    double seconds;         /* per interval */
    struct bench_disk disk; /* with the raw file to read, of this part */
    struct bench_saver saver;
    double stall_s; /* how long async_save of the same state blocks its callers; 0: not measured */
};

#define SNAPSHOT_TENSORS_DEFAULT 64
#define REST_PARAMS              180000000u /* 2 GiB of state */
#define INTERVAL_PARAMS          64000000u
#define INTERVAL_SECONDS         60.0
#define BACKWARD_S               0.2 /* less if an interval is too short for ten such steps */
/* a snapshot must be durable after this time, even if that slows the steps */
#define DURABLE_S     30
#define STATE_BYTES   12 /* per element in a snapshot: the parameter, two moments */
#define SHARD_BYTES   28 /* per element of state, with the shard's other memory */
#define STAGING_BYTES 12 /* per element, while a snapshot is taken */
#define WORKER_BYTES  8
/* the disk space needed, as a multiple of a snapshot: a snapshot, raw or torch files, overhead */
#define ON_DISK 3.2

/* ---- what the parts share ---- */

static uint64_t snapshot_bytes(const struct snapshot_bench *b)
{
    return bench_model_params(&b->plan.b.model) * STATE_BYTES;
}

static struct bench_disk *disk_of(void *bench)
{
    struct snapshot_bench *b = bench;
    b->disk.bytes = snapshot_bytes(b);
    return &b->disk;
}

static double write_raw(void *bench)
{
    return bench_disk_write(disk_of(bench));
}

/* The first call writes the file. */
static double read_raw(void *bench)
{
    return bench_disk_read(disk_of(bench));
}

/* Reads the file and writes another one at the same time. */
static double copy_raw(void *bench)
{
    return bench_disk_copy(disk_of(bench));
}

/* ==== torch ==== */

struct torch {
    double save_s;  /* torch.save and fsync of all bytes, by one process; 0: no torch */
    double stall_s; /* how long torch.distributed.checkpoint.async_save blocks callers; 0: none */
    double async_s; /* until async_save has written all bytes */
};

/* Saves `elems` f32 parameters, and as many elements of each moment, in two ways. One process saves
 * everything with torch.save: save_s is the median of three runs. Then `workers` processes at the
 * same time save a part each with async_save: the times are those of the second run, whose memory
 * is already allocated. python3 is found in PATH, else /usr/bin/python3. If python3 or a module is
 * missing, a message says so. False: a signal came. */
static bool measure_torch(struct local *local, uint64_t elems, uint32_t workers, struct torch *out)
{
    double numbers[2];
    *out = (struct torch) { .save_s = 0 };
    int is_there = bench_torch_run(local, torch_save, elems, 1, numbers);
    if (is_there < 0) return false;
    if (is_there > 0) out->save_s = numbers[0];
    if (is_there == 0) fprintf(stderr, "skip: torch.save: no python3 has torch, or it failed\n");
    is_there = is_there > 0 ? bench_torch_run(local, torch_async, elems, workers, numbers) : 0;
    if (is_there < 0) return false;
    if (is_there > 0) out->stall_s = numbers[0], out->async_s = numbers[1];
    if (is_there == 0)
        fprintf(stderr, "skip: async_save of torch.distributed.checkpoint: no python3 has it, or "
                        "it failed\n");
    return true;
}

/* ==== rest ==== */

/* Measures a job at rest. The snapshot of the job is compared with a file of the same size and with
 * torch.save. Then the snapshot is restored onto the same shards, and onto one more shard, while
 * nothing of the snapshot is in the page cache. */

/* ---- writing ---- */

static double write_once(void *bench)
{
    struct snapshot_bench *b = bench;
    if (!bench_save_remove(&b->saver)) return 0;
    const double seconds = bench_save(&b->saver);
    return seconds > 0 ? (double)b->saver.bytes * 1e-9 / seconds : 0;
}

/* Creates the job's first version; afterwards nobody trains the job. */
static int make_job(void *bench)
{
    struct snapshot_bench *b = bench;
    const bool is_made = bench_crew_start(bench, bench_step_work) &&
                         bench_order(&b->plan.b, STEP_ORDER_STEP, 1) > 0;
    bench_crew_stop(bench);
    return is_made ? -1 : 1;
}

/* Creates a job at rest, and a snapshot of the job. */
static int make_snapshot(void *bench)
{
    struct snapshot_bench *b = bench;
    return make_job(b) < 0 && bench_save(&b->saver) > 0 ? -1 : 1;
}

static int report_torch(void *bench)
{
    struct snapshot_bench *b = bench;
    struct bench *base = bench;
    const double gigabytes = (double)snapshot_bytes(b) * 1e-9;
    struct torch torch;
    if (!measure_torch(base->local, bench_model_params(&base->model), base->workers, &torch))
        return 1;
    if (torch.save_s > 0)
        BENCH_PARTS(
            base, { "torch_save_GB/s", gigabytes / torch.save_s },
            { "write_over_torch_save", base->result.value.median / (gigabytes / torch.save_s) });
    if (torch.async_s > 0) BENCH_PARTS(base, { "dcp_async_save_GB/s", gigabytes / torch.async_s });
    return -1;
}

/* ---- reading ---- */

/* Restores over the live job. The live job is given up only after the files of the snapshot have been
 * verified. */
static double read_over_job(struct snapshot_bench *b)
{
    bench_save_make_cold(&b->saver);
    b->saver.restores = true;
    const double seconds = bench_save(&b->saver);
    b->saver.restores = false;
    return seconds > 0 ? (double)b->saver.bytes * 1e-9 / seconds : 0;
}

/* Restores when the job does not exist. */
static double read_once(void *bench)
{
    struct snapshot_bench *b = bench;
    return bench_save_drop_job(&b->saver) ? read_over_job(b) : 0;
}

/* Restores the snapshot in place of the job. Then restores the snapshot onto one more shard than
 * the number of shards that wrote it. */
static int report_read(void *bench)
{
    struct snapshot_bench *b = bench;
    double values[SNAPSHOT_RUNS];
    const double replacing = read_over_job(b);
    if (!(replacing > 0)) return 1;
    const int done = local_shard_add(b->plan.b.local, 0);
    if (done >= 0) return done;
    for (int i = 0; i < SNAPSHOT_RUNS; i++)
        if (!((values[i] = read_once(b)) > 0)) return 1;
    const double speed = bench_spread_of(values, SNAPSHOT_RUNS).median;
    BENCH_PARTS(bench, { "read_replacing_a_job_GB/s", replacing },
                { "read_by_one_shard_more_GB/s", speed },
                { "read_by_one_shard_more_ratio", speed / b->plan.b.result.reference.median });
    return -1;
}

/* ==== interval ==== */

/* Measures a training job with one snapshot per interval. Intervals without and with a snapshot
 * alternate, so that other load on the machine affects both kinds. The part runs twice: with a backward
 * that sleeps, and with a backward that computes on every core. */

#define PAIRS     2
#define STEPS_MIN 5   /* per interval, however short it is */
#define BEFORE    0.1 /* the fraction of an interval before the snapshot is requested */

static const struct kind {
    const char *how;
    uint32_t word; /* the order for a step */
} kinds[] = { { "sleeping", STEP_ORDER_STEP }, { "computing", STEP_ORDER_BUSY } };
#define KINDS ((int)(sizeof kinds / sizeof *kinds))

static void forget_peaks(const struct local *local)
{
    for (int s = 1; s < local->daemon_count; s++) (void)bench_process_peak(local->daemons[s].pid);
}

static void take_peaks(const struct local *local, struct bench_interval *interval)
{
    const int most = (int)(sizeof interval->shard_bytes / sizeof *interval->shard_bytes);
    for (int s = 1; s < local->daemon_count && s <= most; s++)
        interval->shard_bytes[s - 1] = bench_process_peak(local->daemons[s].pid);
}

/* Runs one more step. Returns false after printing the error if the step failed. */
static bool add_step(struct snapshot_bench *b, uint32_t word, struct bench_interval *interval)
{
    const double seconds = bench_order(&b->plan.b, word, 1);
    if (!(seconds > 0)) return false;
    if (bench_interval_add(interval, seconds)) return true;
    (void)ctl_fail(CAIRN_ERR_NO_MEMORY, "out of memory");
    return false;
}

static bool run_without(struct snapshot_bench *b, const struct kind *kind,
                        struct bench_interval *interval)
{
    forget_peaks(b->plan.b.local);
    interval->begin = bench_now();
    const double end = interval->begin + b->seconds;
    while (interval->count < STEPS_MIN || bench_now() < end)
        if (!add_step(b, kind->word, interval)) return false;
    take_peaks(b->plan.b.local, interval);
    return true;
}

/* Runs an interval with a snapshot, at least until the snapshot is committed. */
static bool run_with(struct snapshot_bench *b, const struct kind *kind,
                     struct bench_interval *interval)
{
    bool is_asked = false, is_ok = true;
    if (!bench_save_remove(&b->saver)) return false;
    forget_peaks(b->plan.b.local);
    interval->begin = bench_now();
    const double ask = interval->begin + BEFORE * b->seconds, end = interval->begin + b->seconds;
    while (is_ok && (interval->count < STEPS_MIN || bench_now() < end ||
                     !atomic_load(&b->saver.task.is_over))) {
        if (!is_asked && interval->count > 0 && bench_now() >= ask) {
            if (!bench_save_begin(&b->saver)) return false;
            is_asked = true;
        }
        is_ok = add_step(b, kind->word, interval);
    }
    take_peaks(b->plan.b.local, interval);
    if (is_asked && !bench_save_end(&b->saver, !is_ok)) return false;
    interval->snapshot_begin = b->saver.begin;
    interval->snapshot_end = b->saver.end;
    return is_ok;
}

/* ---- reporting ---- */

static json_t *steps_json(const struct bench_interval *interval)
{
    json_t *steps = json_array();
    for (uint32_t i = 0; i < interval->count; i++)
        json_array_append_new(steps, json_real(interval->steps[i]));
    json_t *object = json_pack("{s:o}", "steps_s", steps);
    if (interval->snapshot_end > 0) {
        json_object_set_new(object, "snapshot_begin_s",
                            json_real(interval->snapshot_begin - interval->begin));
        json_object_set_new(object, "snapshot_end_s",
                            json_real(interval->snapshot_end - interval->begin));
    }
    return object;
}

/* Adds every step to the figures, so that a reader can see which steps caused a bad ratio. */
static void add_steps(struct snapshot_bench *b, const char *how, struct bench_interval (*pairs)[2])
{
    char name[48];
    json_t *all = json_array();
    for (int i = 0; i < PAIRS; i++) {
        json_array_append_new(all, steps_json(&pairs[i][0]));
        json_array_append_new(all, steps_json(&pairs[i][1]));
    }
    snprintf(name, sizeof name, "%s_intervals", how);
    json_object_set_new(b->plan.b.parts, name, all);
}

static void add_figure(struct snapshot_bench *b, const char *how, const char *what, double value)
{
    char name[64];
    snprintf(name, sizeof name, "%s_%s", how, what);
    BENCH_PARTS(&b->plan.b, { name, value });
}

static void report_interval(struct snapshot_bench *b, const char *how,
                            const struct bench_slowdown *figures, double snapshot_s)
{
    add_figure(b, how, "mean_without_s", figures->mean_without);
    add_figure(b, how, "mean_with_s", figures->mean_with);
    add_figure(b, how, "slowdown", figures->slowdown);
    add_figure(b, how, "median_s", figures->median);
    add_figure(b, how, "worst_over_median", figures->worst_over_median);
    add_figure(b, how, "worst_over_median_without", figures->worst_without / figures->median);
    add_figure(b, how, "worst_added_s", figures->worst_added);
    if (b->stall_s > 0)
        add_figure(b, how, "worst_added_over_stall", figures->worst_added / b->stall_s);
    add_figure(b, how, "shard_memory_added_bytes", figures->memory_added);
    add_figure(b, how, "snapshot_s", snapshot_s);
}

/* ---- the part ---- */

/* *out is set only on success. */
static bool measure_interval(struct snapshot_bench *b, const struct kind *kind,
                             struct bench_slowdown *out)
{
    struct bench_interval pairs[PAIRS][2];
    double snapshot_s = 0;
    memset(pairs, 0, sizeof pairs);
    bool is_ok = true;
    for (int i = 0; i < PAIRS && is_ok; i++) {
        is_ok = run_without(b, kind, &pairs[i][0]) && run_with(b, kind, &pairs[i][1]);
        snapshot_s += (pairs[i][1].snapshot_end - pairs[i][1].snapshot_begin) / PAIRS;
    }
    if (is_ok && !bench_slowdown_of((const struct bench_interval(*)[2])pairs, PAIRS, out)) {
        (void)ctl_fail(CAIRN_ERR_NO_MEMORY, "out of memory");
        is_ok = false;
    }
    if (is_ok) report_interval(b, kind->how, out, snapshot_s);
    if (is_ok && b->plan.b.ctl->json) add_steps(b, kind->how, pairs);
    for (int i = 0; i < PAIRS; i++) free(pairs[i][0].steps), free(pairs[i][1].steps);
    return is_ok;
}

static struct bench_spread spread_of_one(double value)
{
    return (struct bench_spread) { value, value, value };
}

/* This runs before training starts, because it would take cores from the training. */
static int measure_stall(void *bench)
{
    struct snapshot_bench *b = bench;
    struct bench *base = bench;
    struct torch torch;
    if (!measure_torch(base->local, bench_model_params(&base->model), base->workers, &torch))
        return 1;
    b->stall_s = torch.stall_s > 0 ? torch.stall_s : torch.save_s;
    if (torch.stall_s > 0) BENCH_PARTS(base, { "stall_of_dcp_async_save_s", torch.stall_s });
    if (!(torch.stall_s > 0) && torch.save_s > 0) {
        fprintf(stderr, "note: the stall is all of torch.save and fsync\n");
        BENCH_PARTS(base, { "stall_of_torch_save_s", torch.save_s });
    }
    return -1;
}

static int measure_intervals(void *bench)
{
    struct snapshot_bench *b = bench;
    struct bench_result *result = &b->plan.b.result;
    struct bench_slowdown figures[KINDS];
    bool is_ok = bench_order(&b->plan.b, STEP_ORDER_STEP, 1) > 0;
    for (int k = 0; k < KINDS; k++) is_ok = is_ok && measure_interval(b, &kinds[k], &figures[k]);
    if (!is_ok) return 1;
    const struct bench_slowdown *sleeping = &figures[0];
    result->value = spread_of_one(sleeping->mean_with);
    result->reference = spread_of_one(sleeping->mean_without);
    result->ratio = spread_of_one(sleeping->mean_without / sleeping->mean_with);
    result->runs = sleeping->steps;
    return -1;
}

/* ==== figures ==== */

bool bench_interval_add(struct bench_interval *interval, double seconds)
{
    if (interval->count == interval->capacity) {
        const uint32_t capacity = interval->capacity > 0 ? 2 * interval->capacity : 256;
        double *steps = realloc(interval->steps, capacity * sizeof *steps);
        if (steps == NULL) return false;
        interval->steps = steps;
        interval->capacity = capacity;
    }
    interval->steps[interval->count++] = seconds;
    return true;
}

/* All steps of one kind, from all pairs. */
struct gathered {
    double *steps; /* owned */
    uint32_t count;
    double mean, worst;
};

static bool gather_steps(const struct bench_interval (*pairs)[2], uint32_t pair_count, int kind,
                         struct gathered *out)
{
    *out = (struct gathered) { .count = 0 };
    for (uint32_t p = 0; p < pair_count; p++) out->count += pairs[p][kind].count;
    out->steps = malloc(out->count * sizeof *out->steps);
    if (out->steps == NULL) return false;
    double *to = out->steps;
    for (uint32_t p = 0; p < pair_count; p++) {
        const struct bench_interval *interval = &pairs[p][kind];
        memcpy(to, interval->steps, interval->count * sizeof *to);
        to += interval->count;
    }
    for (uint32_t i = 0; i < out->count; i++) {
        out->mean += out->steps[i] / out->count;
        if (out->steps[i] > out->worst) out->worst = out->steps[i];
    }
    return true;
}

static double memory_added(const struct bench_interval (*pairs)[2], uint32_t pair_count)
{
    double worst = 0;
    for (uint32_t p = 0; p < pair_count; p++)
        for (size_t s = 0; s < sizeof pairs[p][0].shard_bytes / sizeof(uint64_t); s++) {
            const double added = (double)pairs[p][1].shard_bytes[s] -
                                 (double)pairs[p][0].shard_bytes[s];
            if (added > worst) worst = added;
        }
    return worst;
}

bool bench_slowdown_of(const struct bench_interval (*pairs)[2], uint32_t pair_count,
                       struct bench_slowdown *out)
{
    struct gathered without, with = { .steps = NULL };
    const bool is_there = gather_steps(pairs, pair_count, 0, &without) &&
                          gather_steps(pairs, pair_count, 1, &with);
    if (is_there) {
        const double median = bench_spread_of(without.steps, without.count).median;
        *out = (struct bench_slowdown) {
            .steps = without.count < with.count ? without.count : with.count,
            .mean_without = without.mean,
            .mean_with = with.mean,
            .slowdown = (with.mean - without.mean) / without.mean,
            .median = median,
            .worst_without = without.worst,
            .worst_with = with.worst,
            .worst_over_median = with.worst / median,
            .worst_added = with.worst - median,
            .memory_added = memory_added(pairs, pair_count),
        };
    }
    free(without.steps);
    free(with.steps);
    return is_there;
}

/* ==== manifest ==== */

/* Measures the manifest of a large snapshot, which is written durably, then read and verified. The
 * snapshot's other files have the sizes that the manifest lists, but no blocks on the disk. */

#define MANIFEST_TENSORS_DEFAULT 100000
#define SHARDS_DEFAULT           256
#define ROWS                     768 /* 79 G parameters in 1024 columns, split like a large model */
#define LIMIT_S                  5.0

static struct manifest_bench {
    struct manifest manifest;
    uint32_t tensors, shards;
    double write_s, read_s; /* the times of the last run */
    char folder[PATH_MAX + 32];
} large;

static cairn_status add_tensors(struct job_spec_data *spec, uint32_t count)
{
    struct group_spec group = group_default();
    group.name = wire_text("all");
    group.optimizer = wire_text("adamw");
    cairn_status status = spec_set_name(spec, "bench.manifest");
    if (status == CAIRN_OK) status = spec_add_group(spec, &group);
    for (uint32_t i = 0; i < count && status == CAIRN_OK; i++) {
        char name[64];
        snprintf(name, sizeof name, "model.layers.%u.mlp.experts.%u.up_proj.weight", i / 512,
                 i % 512);
        const struct tensor_spec tensor = { .name = name,
                                            .group = wire_text("all"),
                                            .kind = CAIRN_TRAINED,
                                            .wire = CAIRN_BF16,
                                            .reduce = CAIRN_F32,
                                            .master = CAIRN_F32,
                                            .shape = { 2, { ROWS, BENCH_COLUMNS } } };
        status = spec_add_tensor(spec, &tensor);
    }
    spec_canonicalize(spec);
    return status;
}

/* Creates a sparse file of that size, which uses no space on the disk. */
static bool make_file(const char *folder, const char *path, uint64_t bytes)
{
    char name[PATH_MAX + 128];
    snprintf(name, sizeof name, "%s/%s", folder, path);
    const int fd = open(name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    const bool is_made = fd >= 0 && ftruncate(fd, (off_t)bytes) == 0;
    if (!is_made) (void)ctl_fail(CAIRN_ERR_IO, "%s: %s", name, strerror(errno));
    if (fd >= 0) close(fd);
    return is_made;
}

/* Returns the block sums of one file of the bench: [blocks] sums, which all differ. NULL: no memory. */
static uint8_t *make_sums(uint64_t blocks)
{
    const size_t bytes = (size_t)blocks * CAIRN_SNAPSHOT_SUM_BYTES;
    uint8_t *sums = malloc(bytes);
    for (size_t i = 0; sums != NULL && i < bytes; i++) sums[i] = (uint8_t)(i * 2654435761u >> 11);
    return sums;
}

/* Adds each shard's share of the parameters and of both moments. */
static bool add_files(struct manifest_bench *m)
{
    static const char *const folders[] = { "model", "optim" };
    const uint64_t planes_bytes = (uint64_t)m->tensors * ROWS * BENCH_COLUMNS * 4;
    uint8_t *sums = make_sums(snapshot_block_count(2 * planes_bytes / m->shards));
    bool all_made = sums != NULL;
    for (uint32_t f = 0; f < 2 && all_made; f++) {
        char path[PATH_MAX + 64];
        snprintf(path, sizeof path, "%s/%s", m->folder, folders[f]);
        bool is_made = mkdir(path, 0700) == 0;
        for (uint32_t s = 1; s <= m->shards && is_made; s++) {
            const uint64_t bytes = (f + 1) * planes_bytes / m->shards;
            snprintf(path, sizeof path, "%s/shard-%05u-model-00001-of-00001.safetensors",
                     folders[f], s);
            is_made = make_file(m->folder, path, bytes) &&
                      manifest_add_file(&m->manifest, path, bytes, sums, false) == CAIRN_OK;
        }
        all_made = all_made && is_made;
    }
    free(sums);
    return all_made;
}

static int make_manifest(void *bench)
{
    const struct bench *b = bench;
    const uint32_t tensors = b->ctl->bench.tensors;
    struct manifest_bench *m = &large;
    m->tensors = tensors > 0 ? tensors : MANIFEST_TENSORS_DEFAULT;
    m->shards = SHARDS_DEFAULT;
    snprintf(m->folder, sizeof m->folder, "%s/manifest", b->local->folder);
    manifest_init(&m->manifest);
    m->manifest.generation = m->manifest.step = m->manifest.epoch = 1;
    m->manifest.created_unix_s = 1;
    m->manifest.loss_scale = 1;
    m->manifest.shard_count = m->shards;
    if (mkdir(m->folder, 0700) == 0 && add_tensors(&m->manifest.spec, m->tensors) == CAIRN_OK &&
        add_files(m))
        return -1;
    return ctl_fail(CAIRN_ERR_IO, "%s: a snapshot's folder cannot be made", m->folder);
}

/* Writes and reads the manifest. Returns the seconds of both. */
static double write_and_read(void *bench)
{
    struct manifest_bench *m = &large;
    struct manifest read;
    struct sentence why;
    (void)bench;
    char path[sizeof m->folder + 32];
    snprintf(path, sizeof path, "%s/%s", m->folder, CAIRN_MANIFEST_NAME);
    unlink(path); // the manifest of the previous run, since a manifest never replaces another
    const double begin = bench_now();
    cairn_status status = manifest_commit(m->folder, &m->manifest, &why);
    const double written = bench_now();
    if (status == CAIRN_OK) status = manifest_load(m->folder, &read, &why);
    m->write_s = written - begin;
    m->read_s = bench_now() - written;
    if (status != CAIRN_OK) {
        (void)ctl_fail(status, "%s", why.text);
        return 0;
    }
    manifest_release(&read);
    return m->write_s + m->read_s;
}

static double manifest_limit(void *bench)
{
    (void)bench;
    return LIMIT_S;
}

static int report_manifest(void *bench)
{
    char path[sizeof large.folder + 32];
    struct stat st;
    BENCH_PARTS(bench, { "manifest_write_s", large.write_s }, { "manifest_read_s", large.read_s });
    snprintf(path, sizeof path, "%s/%s", large.folder, CAIRN_MANIFEST_NAME);
    if (stat(path, &st) == 0) BENCH_PARTS(bench, { "manifest_bytes", (double)st.st_size });
    manifest_release(&large.manifest);
    return -1;
}

/* ==== export ==== */

/* Measures cairn snapshot export of a complete snapshot, in a separate process. The export is compared with
 * writing a file of the same size, and with reading and writing such a file. */

static int remove_one(const char *path, const struct stat *st, int type, struct FTW *walk)
{
    (void)st;
    (void)type;
    (void)walk;
    return remove(path);
}

/* This runs in the child process. */
static int become_export(void *bench)
{
    const struct snapshot_bench *b = bench;
    char program[PATH_MAX], to[PATH_MAX + 16];
    struct sentence why;
    snprintf(to, sizeof to, "%s/export", b->plan.b.local->folder);
    if (!local_find_program("cairn", program, &why))
        return ctl_fail(CAIRN_ERR_NOT_FOUND, "%s", why.text);
    execl(program, "cairn", "snapshot", "export", "--path", b->saver.path, "--to", to, "--format",
          "dcp", "--quiet", (char *)NULL);
    return 127;
}

/* Waits for the process. True: it succeeded. */
static bool await_export(const struct snapshot_bench *b, struct bench_child *child)
{
    char nothing[16];
    const bool gives_up = bench_child_read(child, b->plan.b.local, -1, nothing, sizeof nothing) < 0;
    // after SIGINT the export removes the files that it has written
    return bench_child_end(child, gives_up ? SIGINT : 0) == 0 && !gives_up;
}

/* Exports the snapshot. Returns the GB/s of the snapshot's bytes, counted once, although each byte is both
 * read from the disk and written to it. */
static double export_once(void *bench)
{
    struct snapshot_bench *b = bench;
    char to[PATH_MAX + 16];
    snprintf(to, sizeof to, "%s/export", b->plan.b.local->folder);
    bench_save_make_cold(&b->saver);
    const double begin = bench_now();
    struct bench_child child;
    const bool is_ok = bench_child_start(&child, b->plan.b.local, become_export, b) &&
                       await_export(b, &child);
    const double seconds = bench_now() - begin;
    nftw(to, remove_one, 16, FTW_DEPTH | FTW_PHYS);
    return is_ok ? (double)b->saver.bytes * 1e-9 / seconds : 0;
}

/* An export cannot be faster than the disk reads and writes the same bytes. The ratio shows which part of
 * that speed the export reaches. */
static int report_export(void *bench)
{
    struct bench_result copy = { .unit = "GB/s" };
    const int done = bench_alternate(bench, &copy, AT_LEAST_S, export_once, copy_raw);
    if (done >= 0) return done;
    BENCH_PARTS(bench, { "export_disk_copy_GB/s", copy.reference.median },
                { "export_over_disk_copy", copy.ratio.median });
    return -1;
}

/* ==== import ==== */

/* Measures cairn.import_checkpoint of a torch.save file with both moments, by one worker. The import is
 * compared with direct reads of a file of the same size. */

/* Imports the file and returns GB/s of its bytes. */
static double import_once(void *bench)
{
    struct snapshot_bench *b = bench;
    struct local *local = b->plan.b.local;
    const uint64_t elems = bench_model_params(&b->plan.b.model);
    double numbers[2]; // seconds, bytes
    const int ran = bench_torch_run(local, torch_import, elems, 1, numbers);
    if (ran == 0)
        (void)ctl_fail(CAIRN_ERR_IO, "cairn.import_checkpoint of %s in %s failed",
                       ctl_bytes(snapshot_bytes(b)), local->folder);
    if (ran <= 0) return 0;
    return bench_save_drop_job(&b->saver) ? numbers[1] * 1e-9 / numbers[0] : 0;
}

static int measure_import(void *bench)
{
    static const char import_test[] = "import torch, cairn\nprint(1, 1, flush=True)\n";
    struct bench *b = bench;
    double numbers[2];
    const int is_there = bench_torch_run(b->local, import_test, 0, 1, numbers);
    if (is_there > 0) return bench_alternate(b, &b->result, AT_LEAST_S, import_once, read_raw);
    if (is_there < 0) return 1;
    if (b->ctl->bench.only != NULL)
        return ctl_fail(CAIRN_ERR_NOT_FOUND,
                        "no python3 has torch and cairn; set PYTHONPATH to where they are");
    fprintf(stderr, "skip: import: no python3 has torch and cairn\n");
    return -1;
}

/* ==== parts ==== */

/* Returns -1 to continue, else the exit status. */
static int check_room(const struct snapshot_bench *b)
{
    struct statvfs fs;
    const struct bench *base = &b->plan.b;
    const char *folder = base->ctl->bench.folder;
    const uint64_t an_elem = SHARD_BYTES + STAGING_BYTES + base->workers * WORKER_BYTES;
    const uint64_t on_disk = (uint64_t)((double)snapshot_bytes(b) * ON_DISK);
    const int done = bench_check_memory(bench_model_params(&base->model) * an_elem, " of memory",
                                        "--params");
    if (done >= 0) return done;
    if (statvfs(folder, &fs) != 0 || (uint64_t)fs.f_bavail * fs.f_frsize >= on_disk) return -1;
    return ctl_fail(CAIRN_ERR_NO_SPACE,
                    "the bench needs %s in %s, %s are free; give fewer --params",
                    ctl_bytes(on_disk), folder, ctl_bytes((uint64_t)fs.f_bavail * fs.f_frsize));
}

static int prepare_part(void *bench)
{
    struct snapshot_bench *b = bench;
    struct bench_model *model = &b->plan.b.model;
    b->plan.backward_seconds = b->seconds < 10 * BACKWARD_S ? b->seconds / 10 : BACKWARD_S;
    b->plan.card = -1;
    model->durable_s = DURABLE_S;
    snprintf(model->job, sizeof model->job, "bench.snapshot");
    b->saver = (struct bench_saver) { .task.b = bench };
    if (b->disk.raw_fd > 0) close(b->disk.raw_fd); // of the part before
    b->disk.raw_fd = 0;
    b->disk.b = bench;
    bench_add_params(bench, json_pack("{s:f, s:s}", "seconds", b->seconds, "folder",
                                      b->plan.b.ctl->bench.folder));
    const int done = b->plan.b.row->params > 0 ? check_room(b) : -1;
    return done < 0 ? bench_step_share(&b->plan) : done;
}

#define PART                                                                         \
    .in_cluster = true, .params_told = "params tensors workers shards", .shards = 2, \
    .tensors = SNAPSHOT_TENSORS_DEFAULT, .wire = CAIRN_BF16, .seconds = AT_LEAST_S,  \
    .prepare = prepare_part
#define WRITES .unit = "GB/s", .reference_name = "direct sequential writes of a file, and fsync"
#define READS  .unit = "GB/s", .reference_name = "direct sequential reads of a file"

static const struct bench_row parts[] = {
    { PART, WRITES, .name = "write", .params = REST_PARAMS, .workers = 1, .open = make_job,
      .run = write_once, .reference = write_raw, .report = report_torch },
    { PART, READS, .name = "read", .params = REST_PARAMS, .workers = 1, .open = make_snapshot,
      .run = read_once, .reference = read_raw, .report = report_read },
    { PART, .name = "interval", .unit = "s", .reference_name = "the mean step without a snapshot",
      .less_is_better = true, .params = INTERVAL_PARAMS, .workers = 2, .open = measure_stall,
      .work = bench_step_work, .report = measure_intervals },
    { PART, WRITES, .name = "export", .params = REST_PARAMS, .workers = 1, .open = make_snapshot,
      .run = export_once, .reference = write_raw, .report = report_export },
    { PART, READS, .name = "import", .params = INTERVAL_PARAMS, .workers = 1,
      .report = measure_import },
    { PART, .name = "manifest", .unit = "s", .reference_name = "a limit of 5 s",
      .less_is_better = true, .workers = 1, .open = make_manifest, .run = write_and_read,
      .reference = manifest_limit, .report = report_manifest },
};
#define PART_COUNT (sizeof parts / sizeof *parts)
#define PART_NAMES "write|read|interval|export|import|manifest"

/* ==== the row ==== */

/* Returns -1 to continue, else the exit status. */
static int check_snapshot(const struct ctl *ctl)
{
    struct statvfs fs;
    const char *only = ctl->bench.only;
    uint64_t part;
    const int done = only != NULL ? ctl_parse_choice("only", PART_NAMES, only, &part) : -1;
    if (done >= 0) return done;
    if (ctl->bench.folder == NULL)
        return ctl_usage_fail(ctl, "give --dir FOLDER, on the disk that is to be measured");
    if (statvfs(ctl->bench.folder, &fs) != 0)
        return ctl_fail(CAIRN_ERR_INVALID, "--dir %s: it is no folder that can be read",
                        ctl->bench.folder);
    const bool is_cut = only == NULL || strcmp(only, "manifest") != 0;
    return bench_check(ctl, ctl->bench.workers, is_cut ? ctl->bench.tensors : 0);
}

/* Adds the medians of the part that ended to the parts of the complete bench. */
static void add_result(struct bench *b)
{
    const char *name = b->row->name, *unit = b->row->unit;
    char value[64], reference[64], ratio[64];
    if (!(b->result.value.median > 0)) return; // the part was skipped
    snprintf(value, sizeof value, "%s_%s", name, unit);
    snprintf(reference, sizeof reference, "%s_reference_%s", name, unit);
    snprintf(ratio, sizeof ratio, "%s_ratio", name);
    BENCH_PARTS(b, { value, b->result.value.median }, { reference, b->result.reference.median },
                { ratio, b->result.ratio.median });
}

/* Runs the parts. The result of the bench is that of the first part; the figures of the other parts
 * become `parts`. */
static int run_snapshot(void *bench)
{
    struct snapshot_bench *s = bench;
    struct bench *b = bench;
    const struct bench_row *row = b->row;
    const char *only = b->ctl->bench.only;
    struct bench_result first = { .unit = NULL };
    int done = check_snapshot(b->ctl);
    if (done >= 0) return done;
    setenv("TMPDIR", b->ctl->bench.folder, 1); // where the clusters' folders are created
    s->seconds = b->ctl->bench.seconds > 0 ? b->ctl->bench.seconds : INTERVAL_SECONDS;
    for (size_t i = 0; i < PART_COUNT; i++) {
        if (only != NULL && strcmp(only, parts[i].name) != 0) continue;
        b->row = &parts[i];
        done = bench_measure(bench);
        if (done >= 0) return done;
        add_result(b);
        if (first.unit == NULL) first = b->result;
    }
    b->row = row;
    b->result = first;
    return -1;
}

const struct bench_row bench_snapshot = {
    .name = "snapshot",
    .bytes = sizeof(struct snapshot_bench),
    .all = run_snapshot,
};
