/* cairn bench snapshot: what a snapshot costs, and its restore, beside the raw rate of the disk that it is
 * on, in the same run; what training feels of it; and the manifest of a large one. */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/statvfs.h>

#include "client/ctl/bench/snapshot/snapshot.h"

#define TENSORS_DEFAULT  64
#define REST_PARAMS      180000000u /* 2 GiB of state */
#define INTERVAL_PARAMS  64000000u
#define INTERVAL_SECONDS 60.0
#define BACKWARD_S       0.2 /* less where an interval has no room for ten of them */
#define DURABLE_S        30  /* a snapshot is to be there by then, whatever the steps feel */
#define STATE_BYTES      12  /* an element in a snapshot: the parameter, two moments */
#define SHARD_BYTES      28  /* of state, with what is beside it */
#define STAGING_BYTES    12  /* of it, while a snapshot is taken */
#define WORKER_BYTES     8
#define ON_DISK          3.2 /* a snapshot, and raw files or torch's; with what is beside them */

static const struct part {
    const char *name, *unit, *reference_name;
    bool less_is_better;
    uint64_t params;  /* by default; 0: it has no job */
    uint32_t workers; /* the same */
    int (*run)(struct snapshot_bench *b);
} parts[] = {
    { "write", "GB/s", "direct sequential writes of a file, and fsync", false, REST_PARAMS, 1,
      snapshot_write },
    { "read", "GB/s", "direct sequential reads of a file", false, REST_PARAMS, 1, snapshot_read },
    { "interval", "s", "the mean step without a snapshot", true, INTERVAL_PARAMS, 2,
      snapshot_interval },
    { "export", "GB/s", "direct sequential writes of a file, and fsync", false, REST_PARAMS, 1,
      snapshot_export },
    { "import", "GB/s", "direct sequential reads of a file", false, INTERVAL_PARAMS, 1,
      snapshot_import },
    { "manifest", "s", "a limit of 5 s", true, 0, 1, snapshot_manifest },
};
#define PART_COUNT (sizeof parts / sizeof *parts)

/* ---- what the parts share ---- */

uint64_t snapshot_elems(const struct snapshot_bench *b)
{
    return b->plan.model.tensors * (uint64_t)cairn_bench_model_elems(&b->plan.model);
}

uint64_t snapshot_bytes(const struct snapshot_bench *b)
{
    return snapshot_elems(b) * STATE_BYTES;
}

void snapshot_set(struct snapshot_bench *b, const char *name, double value)
{
    json_object_set_new(b->parts, name, json_real(value));
}

double snapshot_step(struct snapshot_bench *b, uint32_t word)
{
    struct cairn_bench_report reports[CAIRN_BENCH_WORKERS_MAX];
    const struct cairn_bench_order order = { word, 1 };
    double slowest = 0;
    if (!cairn_bench_crew_do(&b->crew, order, reports)) return 0;
    b->steps++;
    for (uint32_t i = 0; i < b->workers; i++)
        if (reports[i].figures[STEP_FIGURE_ALL] > slowest)
            slowest = reports[i].figures[STEP_FIGURE_ALL];
    return slowest;
}

bool snapshot_crew_start(struct snapshot_bench *b)
{
    return cairn_bench_crew_start(&b->crew, b->local, b->workers, cairn_bench_step_work,
                                  &b->plan) &&
           snapshot_step(b, STEP_ORDER_STEP) > 0;
}

/* ---- a part ---- */

static void make_model(struct snapshot_bench *b, const struct part *part)
{
    const struct ctl_bench *asked = &b->ctl->bench;
    struct cairn_bench_model *model = &b->plan.model;
    b->workers = asked->workers > 0 ? asked->workers : part->workers;
    b->plan.backward_seconds = b->seconds < 10 * BACKWARD_S ? b->seconds / 10 : BACKWARD_S;
    b->plan.card = -1;
    model->wire = CAIRN_BF16;
    model->durable_s = DURABLE_S;
    model->tensors = asked->tensors > 0 ? asked->tensors : TENSORS_DEFAULT;
    cairn_bench_model_cut(model, asked->params > 0 ? asked->params : part->params);
    snprintf(model->job, sizeof model->job, "bench.snapshot");
}

/* -1: go on. */
static int judge_room(const struct snapshot_bench *b)
{
    struct statvfs fs;
    const uint64_t elems = snapshot_elems(b), memory = cairn_bench_memory_bytes();
    const uint64_t needed = elems * (SHARD_BYTES + STAGING_BYTES + b->workers * WORKER_BYTES);
    const uint64_t on_disk = (uint64_t)((double)snapshot_bytes(b) * ON_DISK);
    if (needed > memory)
        return cairn_ctl_fail(CAIRN_ERR_NO_MEMORY,
                              "it needs %s of memory, and %s are free; give fewer --params",
                              cairn_ctl_bytes(needed), cairn_ctl_bytes(memory));
    if (statvfs(b->ctl->bench.folder, &fs) != 0 || (uint64_t)fs.f_bavail * fs.f_frsize >= on_disk)
        return -1;
    return cairn_ctl_fail(CAIRN_ERR_NO_SPACE,
                          "it needs %s in %s, and %s are free; give fewer --params",
                          cairn_ctl_bytes(on_disk), b->ctl->bench.folder,
                          cairn_ctl_bytes((uint64_t)fs.f_bavail * fs.f_frsize));
}

static const struct part *running; /* what run_there runs */

static int run_there(struct local *local, void *context)
{
    struct snapshot_bench *b = context;
    b->local = b->disk.local = b->saver.local = local;
    b->saver.job = b->plan.model.job;
    b->saver.id[0] = '\0';
    b->steps = 0;
    const int done = running->run(b);
    cairn_bench_disk_close(&b->disk);
    return done;
}

/* In a cluster of its own. */
static int run_part(struct snapshot_bench *b, const struct part *part)
{
    static struct local local;
    local.ctl = b->ctl;
    running = part;
    make_model(b, part);
    int done = part->params > 0 ? judge_room(b) : -1;
    if (done >= 0) return done;
    if (!cairn_bench_step_plan_share(&b->plan, b->workers)) return 1;
    done = cairn_local_run(&local, run_there, b);
    cairn_bench_step_plan_release(&b->plan, b->workers);
    return done;
}

/* Adds the medians of this part to the parts of the whole bench. */
static void add_result(struct snapshot_bench *b, const struct part *part)
{
    char name[64];
    if (!(b->result->value.median > 0)) return; // it was skipped
    snprintf(name, sizeof name, "%s_%s", part->name, part->unit);
    snapshot_set(b, name, b->result->value.median);
    snprintf(name, sizeof name, "%s_reference_%s", part->name, part->unit);
    snapshot_set(b, name, b->result->reference.median);
    snprintf(name, sizeof name, "%s_ratio", part->name);
    snapshot_set(b, name, b->result->ratio.median);
}

/* ---- the bench ---- */

/* -1: go on. */
static int judge(struct ctl *ctl)
{
    struct statvfs fs;
    const char *only = ctl->bench.only;
    bool is_known = only == NULL;
    for (size_t i = 0; i < PART_COUNT && !is_known; i++)
        is_known = strcmp(parts[i].name, only) == 0;
    if (!is_known)
        return cairn_ctl_fail(CAIRN_ERR_INVALID,
                              "--only %s: write, read, interval, export, import and manifest are "
                              "allowed",
                              only);
    if (ctl->bench.folder == NULL)
        return cairn_ctl_usage_fail(ctl, "--dir FOLDER is needed: whose disk is to be measured");
    if (statvfs(ctl->bench.folder, &fs) != 0)
        return cairn_ctl_fail(CAIRN_ERR_INVALID, "--dir %s: it is no folder that can be read",
                              ctl->bench.folder);
    if (ctl->bench.workers > CAIRN_BENCH_WORKERS_MAX)
        return cairn_ctl_fail(CAIRN_ERR_INVALID, "--workers %u: 1 to %d is allowed",
                              ctl->bench.workers, CAIRN_BENCH_WORKERS_MAX);
    if (ctl->bench.tensors > CAIRN_BENCH_TENSORS_MAX &&
        (only == NULL || strcmp(only, "manifest") != 0))
        return cairn_ctl_fail(CAIRN_ERR_INVALID, "--tensors %u: 1 to %d is allowed",
                              ctl->bench.tensors, CAIRN_BENCH_TENSORS_MAX);
    return -1;
}

static json_t *params_of(const struct snapshot_bench *b)
{
    return json_pack("{s:I, s:I, s:I, s:I, s:f, s:s}", "params", (json_int_t)snapshot_elems(b),
                     "tensors", (json_int_t)b->plan.model.tensors, "workers",
                     (json_int_t)b->workers, "shards", (json_int_t)b->ctl->shards, "seconds",
                     b->seconds, "folder", b->ctl->bench.folder);
}

/* `result` is what the first part says; the others are among its parts. */
static int run_parts(struct snapshot_bench *b, struct cairn_bench_result *result)
{
    const char *only = b->ctl->bench.only;
    for (size_t i = 0; i < PART_COUNT; i++) {
        const struct part *part = &parts[i];
        struct cairn_bench_result own = { .bench = only != NULL ? NULL : "snapshot",
                                          .unit = part->unit,
                                          .reference_name = part->reference_name,
                                          .less_is_better = part->less_is_better };
        if (only != NULL && strcmp(only, part->name) != 0) continue;
        b->result = &own;
        const int done = run_part(b, part);
        if (done >= 0) return done;
        add_result(b, part);
        if (result->params != NULL) continue;
        *result = own;
        result->params = params_of(b);
    }
    return -1;
}

int cairn_bench_snapshot(struct ctl *ctl)
{
    static struct snapshot_bench bench;
    struct cairn_bench_result result = { .params = NULL };
    char name[32] = "snapshot";
    int done = judge(ctl);
    if (done >= 0) return done;
    setenv("TMPDIR", ctl->bench.folder, 1); // where the clusters' folders are
    if (ctl->shards == 0) ctl->shards = 2;
    bench.ctl = ctl;
    bench.parts = json_object();
    bench.seconds = ctl->bench.seconds > 0 ? ctl->bench.seconds : INTERVAL_SECONDS;
    done = run_parts(&bench, &result);
    if (done >= 0) {
        json_decref(bench.parts);
        json_decref(result.params);
        return done;
    }
    if (ctl->bench.only != NULL) snprintf(name, sizeof name, "snapshot.%s", ctl->bench.only);
    result.bench = name;
    result.parts = bench.parts;
    return cairn_bench_print(&result, ctl);
}
