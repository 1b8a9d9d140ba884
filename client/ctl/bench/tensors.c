/* Benches of tensors: many small tensors, a mapped tensor, and the opening of very many tensors. */
#include "client/ctl/bench/bench.h"

#include <inttypes.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include "gpu/gpu.h"

/* ==== tensors ==== */

/* cairn bench tensors: the cost of having many small tensors in a model. A step (begin, push all, commit,
 * fetch all) of 5,000 tensors of 1,024 elements is compared with a step of one tensor with the same number
 * of bytes, in the same workers and shards: the ratio is the cost of the number of tensors.
 *
 * All tensors are pushed by one call of cairn_push_many, and fetched by one of cairn_fetch_many; _singly_s_
 * is the step in which each tensor is pushed and fetched by separate calls.
 *
 * The parts describe both steps, _many_ and _one_: the waits of the worker; the work of the slowest shard
 * on the round meanwhile, according to the shard's log (bench.h), in the bench's own cluster; and the
 * processor time. */

#define TENSORS_DEFAULT 5000

enum { ORDER_MANY = 1, ORDER_ONE = 2, ORDER_SINGLY = 3 };
enum { FIGURE_ALL, FIGURE_PUSH, FIGURE_COMMIT, FIGURE_FETCH, FIGURE_CPU, FIGURE_BEGIN, FIGURES };

/* The parts of a run: the times of the slowest worker, then those of the slowest shard. */
enum {
    PART_PUSH,
    PART_COMMIT,
    PART_FETCH,
    PART_CPU,
    PART_DAEMONS_CPU, /* this part and those after it: only for the bench's own daemons */
    PART_COLLECT,
    PART_SUMS,
    PART_UPDATE,
    PARTS
};
static const char *const part_names[PARTS] = {
    "1_begin_push_s", "2_commit_s",      "3_fetch_s",    "worker_cpu_s",
    "daemons_cpu_s",  "shard_collect_s", "shard_sums_s", "shard_update_publish_s",
};

struct side {
    double parts[PARTS][BENCH_RUNS_MAX + 1];
    double begin[BENCH_RUNS_MAX + 1], end[BENCH_RUNS_MAX + 1];
    uint32_t count; /* the first entry belongs to the run that is not measured */
};

struct tensors_bench {
    const struct ctl *ctl;
    struct bench_result *result;
    struct bench_model many, one;
    uint32_t workers;
    struct bench_crew crew;
    struct bench_report reports[BENCH_WORKERS_MAX];
    struct side many_side, one_side;
};

/* ---- a worker ---- */

struct tensors_worker {
    struct bench_member many, one;
    cairn_list *many_pushes, *many_fetches, *one_pushes, *one_fetches;
    char *grads, *params;
    cairn_op *ops[BENCH_TENSORS_MAX];
};

static double cpu_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static struct cairn_mem tensor_of(const struct bench_model *model, char *memory, uint32_t i)
{
    const size_t bytes = bench_model_elems(model) * (model->wire == CAIRN_F32 ? 4 : 2);
    return (struct cairn_mem) { .struct_size = sizeof(struct cairn_mem),
                                .ptr = memory + i * bytes,
                                .dtype = model->wire };
}

static cairn_status push_all(const struct tensors_worker *w, const struct bench_member *member,
                             const struct bench_model *model, const struct cairn_round *round)
{
    cairn_status status = CAIRN_OK;
    for (uint32_t i = 0; i < model->tensors && status == CAIRN_OK; i++) {
        const struct cairn_mem mem = tensor_of(model, w->grads, i);
        status = cairn_push(member->job, round, 0, member->names[i], NULL, &mem, NULL);
    }
    return status;
}

static cairn_status fetch_all(struct tensors_worker *w, const struct bench_member *member,
                              const struct bench_model *model, struct cairn_version version)
{
    cairn_status status = CAIRN_OK;
    for (uint32_t i = 0; i < model->tensors && status == CAIRN_OK; i++) {
        const struct cairn_mem mem = tensor_of(model, w->params, i);
        status = cairn_fetch(member->job, version, member->names[i], NULL, NULL, &mem, &w->ops[i]);
    }
    for (uint32_t i = 0; i < model->tensors && status == CAIRN_OK; i++)
        status = cairn_wait(w->ops[i], BENCH_CALL_MS);
    return status;
}

/* How a step moves its tensors: by lists, or by one call per tensor. */
struct way {
    const struct bench_member *member;
    const struct bench_model *model;
    cairn_list *pushes, *fetches; /* NULL: one call per tensor */
};

static cairn_status push_step(const struct tensors_worker *w, const struct way *way,
                              const struct cairn_round *round)
{
    return way->pushes != NULL ? cairn_push_many(way->pushes, round, 0, NULL)
                               : push_all(w, way->member, way->model, round);
}

static cairn_status fetch_step(struct tensors_worker *w, const struct way *way,
                               struct cairn_version version)
{
    if (way->fetches == NULL) return fetch_all(w, way->member, way->model, version);
    const cairn_status status = cairn_fetch_many(way->fetches, version, &w->ops[0]);
    return status == CAIRN_OK ? cairn_wait(w->ops[0], BENCH_CALL_MS) : status;
}

static bool run_step(struct tensors_worker *w, const struct way *way, struct bench_report *report)
{
    struct cairn_round round = { .struct_size = sizeof round };
    struct cairn_result result = { .struct_size = sizeof result };
    cairn_job *job = way->member->job;
    const double cpu = cpu_s(), t0 = bench_now();
    cairn_status status = cairn_round_begin(job, BENCH_CALL_MS, &round);
    if (status == CAIRN_OK) status = push_step(w, way, &round);
    const double t1 = bench_now();
    if (status == CAIRN_OK) status = cairn_commit(job, &round, 1, NULL, 0, BENCH_CALL_MS, &result);
    const double t2 = bench_now();
    if (status == CAIRN_OK) status = fetch_step(w, way, result.version);
    const double t3 = bench_now();
    *report = (struct bench_report) { .figures = { [FIGURE_ALL] = t3 - t0,
                                                   [FIGURE_PUSH] = t1 - t0,
                                                   [FIGURE_COMMIT] = t2 - t1,
                                                   [FIGURE_FETCH] = t3 - t2,
                                                   [FIGURE_CPU] = cpu_s() - cpu,
                                                   [FIGURE_BEGIN] = t0 } };
    return bench_is_ok(status);
}

/* Returns one cairn_part per tensor of the model, each in the given memory. */
static struct cairn_part *parts_of(const struct bench_member *member,
                                   const struct bench_model *model, char *memory)
{
    struct cairn_part *parts = calloc(model->tensors, sizeof *parts);
    for (uint32_t i = 0; parts != NULL && i < model->tensors; i++)
        parts[i] = (struct cairn_part) { .struct_size = sizeof *parts,
                                         .tensor = member->names[i],
                                         .mem = tensor_of(model, memory, i) };
    return parts;
}

static bool open_lists(const struct tensors_worker *w, const struct bench_member *member,
                       const struct bench_model *model, cairn_list **pushes, cairn_list **fetches)
{
    struct cairn_part *grads = parts_of(member, model, w->grads);
    struct cairn_part *params = parts_of(member, model, w->params);
    cairn_status status = CAIRN_ERR_NO_MEMORY;
    if (grads != NULL && params != NULL)
        status = cairn_push_list(member->job, grads, model->tensors, pushes);
    if (status == CAIRN_OK)
        status = cairn_fetch_list(member->job, NULL, params, model->tensors, fetches);
    free(grads);
    free(params);
    return bench_is_ok(status);
}

static bool open_worker(struct tensors_worker *w, const struct tensors_bench *bench,
                        const struct bench_worker *worker)
{
    const struct bench_model *one = &bench->one;
    const size_t bytes = bench_model_elems(one) * (one->wire == CAIRN_F32 ? 4 : 2);
    void *grads = NULL, *params = NULL;
    if (!bench_member_open(&w->many, &bench->many, worker)) return false;
    w->one.session = w->many.session;
    if (!bench_member_join(&w->one, one, worker)) return false;
    cairn_status status = cairn_alloc(w->many.session, bytes, 0, &grads);
    if (status == CAIRN_OK) status = cairn_alloc(w->many.session, bytes, 0, &params);
    if (!bench_is_ok(status)) return false;
    w->grads = grads;
    w->params = params;
    memset(w->grads, 1, bytes);
    return open_lists(w, &w->many, &bench->many, &w->many_pushes, &w->many_fetches) &&
           open_lists(w, &w->one, one, &w->one_pushes, &w->one_fetches);
}

static int work_tensors(const struct bench_worker *worker)
{
    static struct tensors_worker w;
    const struct tensors_bench *bench = worker->plan;
    struct bench_order order;
    struct bench_report report = { { 0 } };
    if (!open_worker(&w, bench, worker)) return 1;
    while (bench_worker_report(worker, &report) && bench_worker_next(worker, &order)) {
        struct way way = { &w.many, &bench->many, w.many_pushes, w.many_fetches };
        if (order.word == ORDER_SINGLY) way.pushes = way.fetches = NULL;
        if (order.word == ORDER_ONE)
            way = (struct way) { &w.one, &bench->one, w.one_pushes, w.one_fetches };
        if (!run_step(&w, &way, &report)) return 1;
    }
    cairn_close(w.many.session);
    return 0;
}

/* ---- subject and reference ---- */

static double most(const struct tensors_bench *bench, int figure)
{
    return bench_greatest(bench->reports, bench->workers, figure);
}

/* Returns the processor time of all daemons so far. */
static double daemons_cpu_s(const struct tensors_bench *bench)
{
    const struct local *local = bench->crew.local;
    double sum = 0;
    for (int i = 0; i < local->daemon_count; i++) sum += bench_used_s(local->daemons[i].pid);
    return sum;
}

static double run_side(struct tensors_bench *bench, uint32_t word, struct side *side)
{
    const double daemons = daemons_cpu_s(bench);
    if (!bench_crew_do(&bench->crew, (struct bench_order) { word, 1 }, bench->reports)) return 0;
    const double all = most(bench, FIGURE_ALL);
    if (side->count > BENCH_RUNS_MAX) return all;
    const uint32_t i = side->count++;
    side->parts[PART_PUSH][i] = most(bench, FIGURE_PUSH);
    side->parts[PART_COMMIT][i] = most(bench, FIGURE_COMMIT);
    side->parts[PART_FETCH][i] = most(bench, FIGURE_FETCH);
    side->parts[PART_CPU][i] = most(bench, FIGURE_CPU);
    side->parts[PART_DAEMONS_CPU][i] = daemons_cpu_s(bench) - daemons;
    side->begin[i] = most(bench, FIGURE_BEGIN);
    side->end[i] = side->begin[i] + all;
    return all;
}

static double run_many(void *context)
{
    struct tensors_bench *bench = context;
    return run_side(bench, ORDER_MANY, &bench->many_side);
}

static double run_one(void *context)
{
    struct tensors_bench *bench = context;
    return run_side(bench, ORDER_ONE, &bench->one_side);
}

/* ---- the parts ---- */

#define SINGLY_RUNS 5

/* This runs after the alternating runs. False: the run failed. */
static bool run_singly(struct tensors_bench *bench, double *median_out)
{
    double values[SINGLY_RUNS];
    const struct bench_order order = { ORDER_SINGLY, 1 };
    for (int i = 0; i < SINGLY_RUNS; i++) {
        if (!bench_crew_do(&bench->crew, order, bench->reports)) return false;
        values[i] = most(bench, FIGURE_ALL);
    }
    *median_out = bench_spread_of(values, SINGLY_RUNS).median;
    return true;
}

static void add_longest(double *greatest, uint64_t from_us, uint64_t to_us)
{
    const double s = to_us > from_us ? (double)(to_us - from_us) * 1e-6 : 0;
    if (s > *greatest) *greatest = s;
}

/* Assigns to each run the round that was granted while the run was active. */
static void add_shard(struct side *side, const struct bench_times *times, size_t count)
{
    size_t at = 0;
    for (uint32_t i = 0; i < side->count; i++) {
        while (at < count && (double)times[at].grant * 1e-6 < side->begin[i]) at++;
        if (at == count || (double)times[at].grant * 1e-6 > side->end[i]) continue;
        add_longest(&side->parts[PART_COLLECT][i], times[at].receive, times[at].reduce);
        add_longest(&side->parts[PART_SUMS][i], times[at].reduce, times[at].reduced);
        add_longest(&side->parts[PART_UPDATE][i], times[at].update, times[at].published);
    }
}

static void add_parts(json_t *parts, const char *side_name, struct side *side, int part_count)
{
    char key[64];
    for (int p = 0; p < part_count; p++) {
        snprintf(key, sizeof key, "%s_%s", side_name, part_names[p]);
        json_object_set_new(parts, key,
                            json_real(bench_spread_of(side->parts[p] + 1, side->count - 1).median));
    }
}

static void report_tensors(struct tensors_bench *bench, const struct local *local)
{
    const int parts = local->daemon_count > 0 ? PARTS : PART_DAEMONS_CPU;
    for (int s = 1; s < local->daemon_count; s++) {
        struct bench_times *times = NULL;
        size_t count = 0;
        if (!bench_times_read(local, s, &times, &count)) continue;
        add_shard(&bench->many_side, times, count);
        add_shard(&bench->one_side, times, count);
        free(times);
    }
    bench->result->parts = json_object();
    add_parts(bench->result->parts, "many", &bench->many_side, parts);
    add_parts(bench->result->parts, "one", &bench->one_side, parts);
}

static int run_there(struct local *local, void *context)
{
    struct tensors_bench *bench = context;
    int done = 1;
    if (bench->ctl->path != NULL) setenv("CAIRN_FABRIC", bench->ctl->path, 1);
    if (bench_crew_start(&bench->crew, local, bench->workers, work_tensors, bench))
        done = bench_alternate(bench->result, bench->ctl->bench.seconds, run_many, run_one, bench);
    double singly;
    if (done < 0 && !run_singly(bench, &singly)) done = 1;
    if (done < 0) report_tensors(bench, local);
    if (done < 0) json_object_set_new(bench->result->parts, "singly_s", json_real(singly));
    bench_crew_stop(&bench->crew);
    return done;
}

/* ---- the options ---- */

static void make_models(struct tensors_bench *bench)
{
    const struct ctl_bench *asked = &bench->ctl->bench;
    struct bench_model *many = &bench->many, *one = &bench->one;
    many->tensors = asked->tensors > 0 ? asked->tensors : TENSORS_DEFAULT;
    bench_model_cut(many,
                    asked->params > 0 ? asked->params : (uint64_t)many->tensors * BENCH_COLUMNS);
    many->wire = asked->wire != NULL && strcmp(asked->wire, "bf16") == 0 ? CAIRN_BF16 : CAIRN_F32;
    snprintf(many->job, sizeof many->job, "bench.tensors.%" PRIu64 "x%u.%s.w%u", many->rows,
             many->tensors, many->wire == CAIRN_F32 ? "f32" : "bf16", bench->workers);
    *one = *many;
    one->rows *= many->tensors;
    one->tensors = 1;
    snprintf(one->job, sizeof one->job, "%.50s.one", many->job);
}

int bench_tensors(struct ctl *ctl)
{
    static struct tensors_bench bench;
    static struct local local;
    struct bench_result result = { .bench = "tensors",
                                   .unit = "s",
                                   .reference_name = "the step of one tensor of as many bytes",
                                   .less_is_better = true };
    if (ctl->shards == 0) ctl->shards = 2;
    bench.ctl = local.ctl = ctl;
    bench.result = &result;
    bench.workers = ctl->bench.workers > 0 ? ctl->bench.workers : 1;
    make_models(&bench);
    int done = bench_check(ctl, bench.workers, bench.many.tensors);
    if (done >= 0) return done;
    local.is_debug = true;
    done = local_run(&local, run_there, &bench);
    if (done >= 0) return done;
    result.params = json_pack(
        "{s:I, s:I, s:I, s:I, s:s, s:s}", "params", (json_int_t)bench_model_elems(&bench.one),
        "tensors", (json_int_t)bench.many.tensors, "workers", (json_int_t)bench.workers, "shards",
        (json_int_t)ctl->shards, "wire", bench.many.wire == CAIRN_F32 ? "f32" : "bf16", "path",
        ctl->path != NULL ? ctl->path : "auto");
    return bench_print(&result, ctl);
}

/* ==== map ==== */

/* cairn bench map: maps a unit of one tensor in the memory where the shards published it (the tensor is
 * split over the shards), and sums one load from each cache line of the unit. One worker does this after a
 * round, so that the version was never mapped before. The reference is a memcpy of the same number of bytes
 * to memory that was written before: the least cost of gathering the unit. */

#define MAP_PARAMS_DEFAULT 16777216u /* 64 MiB of fp32 */
#define LINE_BYTES         64

enum { ORDER_MAP = 1, ORDER_COPY = 2 };
enum {
    MAP_FIGURE_ALL,
    MAP_FIGURE_MAP,
    MAP_FIGURE_SUM,
    MAP_FIGURE_UNMAP,
    MAP_FIGURE_LENT,
    MAP_FIGURES
};
static const char *const map_part_names[MAP_FIGURES] = { NULL, "1_map_s", "2_sum_s", "3_unmap_s",
                                                         "lent" };

struct map_bench {
    const struct ctl *ctl;
    struct bench_result *result;
    struct bench_model model;
    struct bench_crew crew;
    double parts[MAP_FIGURES][BENCH_RUNS_MAX + 1];
    uint32_t part_count; /* the first entry belongs to the run that is not measured */
};

/* ---- the worker ---- */

struct map_worker {
    struct bench_member member;
    size_t bytes;    /* of the unit */
    uint8_t *memory; /* [2][bytes]: source and destination of the reference */
    uint64_t sum;    /* of the bytes read, so that the loads are not optimized away */
};

static bool take_memory(struct map_worker *w)
{
    w->memory = mmap(NULL, 2 * w->bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1,
                     0);
    if (w->memory == MAP_FAILED) {
        (void)ctl_fail(CAIRN_ERR_NO_MEMORY, "out of memory for twice %s", ctl_bytes(w->bytes));
        return false;
    }
    madvise(w->memory, 2 * w->bytes, MADV_HUGEPAGE);
    memset(w->memory, 1, 2 * w->bytes);
    return true;
}

static uint64_t sum_lines(const uint8_t *memory, size_t bytes)
{
    uint64_t sum = 0, line;
    for (size_t at = 0; at + LINE_BYTES <= bytes; at += LINE_BYTES) {
        memcpy(&line, memory + at, sizeof line);
        sum += line;
    }
    return sum;
}

/* Runs a round in which nothing is pushed; the round publishes a new version nevertheless. */
static cairn_status make_version(struct map_worker *w, struct cairn_version *version_out)
{
    struct cairn_round round = { .struct_size = sizeof round };
    struct cairn_result result = { .struct_size = sizeof result };
    cairn_status status = cairn_round_begin(w->member.job, BENCH_CALL_MS, &round);
    if (status == CAIRN_OK)
        status = cairn_commit(w->member.job, &round, 1, NULL, 0, BENCH_CALL_MS, &result);
    *version_out = result.version;
    return status;
}

static cairn_status map_once(struct map_worker *w, struct cairn_version version, double at[4])
{
    struct cairn_view view = { .struct_size = sizeof view };
    size_t views = 1;
    cairn_op *op;
    at[0] = bench_now();
    cairn_status status = cairn_map(w->member.job, version, w->member.names[0], &view, &views, &op);
    if (status == CAIRN_OK) status = cairn_wait(op, BENCH_CALL_MS);
    if (status != CAIRN_OK) return status;
    at[1] = bench_now();
    w->sum += sum_lines(view.ptr, w->bytes);
    at[2] = bench_now();
    status = cairn_unmap(w->member.job, &view, NULL);
    at[3] = bench_now();
    return status;
}

static bool run_map(struct map_worker *w, struct bench_report *report)
{
    struct cairn_stats before = { .struct_size = sizeof before }, after = before;
    struct cairn_version version;
    double at[4] = { 0 };
    cairn_status status = cairn_job_stats(w->member.job, &before);
    if (status == CAIRN_OK) status = make_version(w, &version);
    if (status == CAIRN_OK) status = map_once(w, version, at);
    if (status == CAIRN_OK) status = cairn_job_stats(w->member.job, &after);
    *report = (struct bench_report) {
        .figures = { [MAP_FIGURE_ALL] = at[3] - at[0],
                     [MAP_FIGURE_MAP] = at[1] - at[0],
                     [MAP_FIGURE_SUM] = at[2] - at[1],
                     [MAP_FIGURE_UNMAP] = at[3] - at[2],
                     [MAP_FIGURE_LENT] = (double)(after.maps_lent - before.maps_lent) }
    };
    return bench_is_ok(status);
}

static void run_copy(struct map_worker *w, struct bench_report *report)
{
    const double begin = bench_now();
    memcpy(w->memory, w->memory + w->bytes, w->bytes);
    __asm__ volatile("" : : "r"(w->memory) : "memory"); // forces the compiler to keep the copy
    report->figures[MAP_FIGURE_ALL] = bench_now() - begin;
}

static int map_work(const struct bench_worker *worker)
{
    static struct map_worker w;
    const struct bench_model *model = worker->plan;
    struct bench_order order;
    struct bench_report report = { { 0 } };
    w.bytes = bench_model_elems(model) * (model->wire == CAIRN_F32 ? 4 : 2);
    if (!bench_member_open(&w.member, model, worker) || !take_memory(&w)) return 1;
    while (bench_worker_report(worker, &report) && bench_worker_next(worker, &order)) {
        if (order.word == ORDER_COPY)
            run_copy(&w, &report);
        else if (!run_map(&w, &report))
            return 1;
    }
    __asm__ volatile("" : : "r"(w.sum));
    cairn_close(w.member.session);
    return 0;
}

/* ---- the bench ---- */

static double giga_bytes(const struct map_bench *bench, double seconds)
{
    const double elem_bytes = bench->model.wire == CAIRN_F32 ? 4 : 2;
    return seconds > 0 ? (double)bench_model_elems(&bench->model) * elem_bytes * 1e-9 / seconds : 0;
}

static double order_map(struct map_bench *bench, uint32_t word)
{
    struct bench_report report;
    const struct bench_order order = { word, 1 };
    if (!bench_crew_do(&bench->crew, order, &report)) return 0;
    if (word == ORDER_MAP && bench->part_count <= BENCH_RUNS_MAX) {
        for (int f = 0; f < MAP_FIGURES; f++)
            bench->parts[f][bench->part_count] = report.figures[f];
        bench->part_count++;
    }
    return giga_bytes(bench, report.figures[MAP_FIGURE_ALL]);
}

static double map_subject(void *context)
{
    return order_map(context, ORDER_MAP);
}

static double map_reference(void *context)
{
    return order_map(context, ORDER_COPY);
}

static void add_map_parts(struct map_bench *bench)
{
    bench->result->parts = json_pack("{s:f}", "first_GB/s",
                                     giga_bytes(bench, bench->parts[MAP_FIGURE_ALL][0]));
    for (int f = MAP_FIGURE_MAP; f < MAP_FIGURES; f++)
        json_object_set_new(
            bench->result->parts, map_part_names[f],
            json_real(bench_spread_of(bench->parts[f] + 1, bench->part_count - 1).median));
}

static int run_there_map(struct local *local, void *context)
{
    struct map_bench *bench = context;
    int done = 1;
    if (bench->ctl->path != NULL) setenv("CAIRN_FABRIC", bench->ctl->path, 1);
    if (bench_crew_start(&bench->crew, local, 1, map_work, &bench->model))
        done = bench_alternate(bench->result, bench->ctl->bench.seconds, map_subject, map_reference,
                               bench);
    if (done < 0) add_map_parts(bench);
    bench_crew_stop(&bench->crew);
    return done;
}

static void make_model_map(struct map_bench *bench)
{
    const struct ctl_bench *asked = &bench->ctl->bench;
    struct bench_model *model = &bench->model;
    const uint64_t params = asked->params > 0 ? asked->params : MAP_PARAMS_DEFAULT;
    model->tensors = 1;
    model->rows = params / BENCH_COLUMNS + (params % BENCH_COLUMNS != 0);
    model->wire = asked->wire != NULL && strcmp(asked->wire, "bf16") == 0 ? CAIRN_BF16 : CAIRN_F32;
    snprintf(model->job, sizeof model->job, "bench.map.%" PRIu64 ".%s", model->rows,
             model->wire == CAIRN_F32 ? "f32" : "bf16");
}

/* -1: continue. */
static int check_map(const struct map_bench *bench)
{
    const int done = bench_check(bench->ctl, 1, 1);
    if (done >= 0 || bench->ctl->endpoint != NULL) return done;
    return bench_check_memory(bench_model_elems(&bench->model) * 36, "", "--params");
}

int bench_map(struct ctl *ctl)
{
    static struct map_bench bench;
    static struct local local;
    struct bench_result result = {
        .bench = "map",
        .unit = "GB/s",
        .reference_name = "memcpy of the same size",
    };
    if (ctl->shards == 0) ctl->shards = 2;
    bench.ctl = local.ctl = ctl;
    bench.result = &result;
    make_model_map(&bench);
    int done = check_map(&bench);
    if (done < 0) done = local_run(&local, run_there_map, &bench);
    if (done >= 0) return done;
    result.params = json_pack(
        "{s:I, s:I, s:s, s:s}", "params", (json_int_t)bench_model_elems(&bench.model), "shards",
        (json_int_t)ctl->shards, "wire", bench.model.wire == CAIRN_F32 ? "f32" : "bf16", "path",
        ctl->path != NULL ? ctl->path : "auto");
    return bench_print(&result, ctl);
}

/* ==== open ==== */

/* cairn bench open: measures how opening a job of very many tensors affects other jobs, in the bench's own
 * cluster. One process continuously steps a small job; another repeatedly opens a new job of 300,000
 * tensors of 3 elements. The subject is the first process's longest step during an opening; the reference
 * is its longest step at rest, over a period of the same length.
 *
 * The parts are the time of an opening (open_s), and the memory per tensor that an opening left in the
 * trainer (trainer_bytes_a_tensor), computed from the trainer's peak resident memory. */

#define OPEN_TENSORS_DEFAULT 300000
#define RUNS                 5
#define OPEN_MS              300000
#define NAME_BYTES           24

/* Shared with the child processes. */
struct shared {
    atomic_bool measuring;
    _Atomic double longest_s; /* the longest step since measuring began */
    double open_s, trainer_bytes;
};

struct open_bench {
    struct bench_result *result;
    struct bench_crew crew;
    struct shared *shared;
    uint32_t tensors, runs;
    double open_s[RUNS + 1], trainer_bytes[RUNS + 1];
};

/* ---- the process that steps continuously ---- */

static bool step_once(struct bench_member *member, const float *gradient)
{
    const struct cairn_mem mem = { .struct_size = sizeof mem,
                                   .ptr = (void *)(uintptr_t)gradient,
                                   .dtype = CAIRN_F32 };
    struct cairn_round round = { .struct_size = sizeof round };
    struct cairn_result result = { .struct_size = sizeof result };
    cairn_status status = cairn_round_begin(member->job, BENCH_CALL_MS, &round);
    if (status == CAIRN_OK)
        status = cairn_push(member->job, &round, 0, member->names[0], NULL, &mem, NULL);
    if (status == CAIRN_OK)
        status = cairn_commit(member->job, &round, 1, NULL, 0, BENCH_CALL_MS, &result);
    return status == CAIRN_ERR_EPOCH_CHANGED || bench_is_ok(status);
}

static int step_for_ever(const struct bench_worker *worker)
{
    static struct bench_member member;
    static float gradient[BENCH_COLUMNS];
    const struct open_bench *bench = worker->plan;
    struct shared *shared = bench->shared;
    const struct bench_model model = {
        .job = "bench.open.small", .tensors = 1, .rows = 1, .wire = CAIRN_F32
    };
    const struct bench_report ready = { { 1 } };
    const pid_t parent = getppid();
    if (!bench_member_open(&member, &model, worker) || !bench_worker_report(worker, &ready))
        return 1;
    while (getppid() == parent) {
        const double begin = bench_now();
        if (!step_once(&member, gradient)) return 1;
        const double took = bench_now() - begin;
        if (atomic_load(&shared->measuring) && took > atomic_load(&shared->longest_s))
            atomic_store(&shared->longest_s, took);
    }
    return 0;
}

/* ---- the process that opens jobs ---- */

static double resident_bytes(void)
{
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return (double)usage.ru_maxrss * 1024;
}

static int open_many(const struct open_bench *bench)
{
    struct cairn_tensor *tensors = calloc(bench->tensors, sizeof *tensors);
    char(*names)[NAME_BYTES] = calloc(bench->tensors, sizeof *names);
    const struct cairn_opts opts = { .struct_size = sizeof opts };
    const struct cairn_group group = CAIRN_GROUP_INIT;
    const struct cairn_job_spec spec = { .struct_size = sizeof spec,
                                         .tensors = tensors,
                                         .tensor_count = bench->tensors,
                                         .groups = &group,
                                         .group_count = 1 };
    char job_name[64];
    cairn *session;
    cairn_job *job;
    if (tensors == NULL || names == NULL) return 1;
    for (uint32_t i = 0; i < bench->tensors; i++) {
        snprintf(names[i], NAME_BYTES, "block.%u.scale", i);
        tensors[i] = (struct cairn_tensor) { .struct_size = sizeof *tensors,
                                             .name = names[i],
                                             .unit = "all",
                                             .rank = 1,
                                             .shape = { 3 },
                                             .init = { .kind = CAIRN_INIT_ONES } };
    }
    snprintf(job_name, sizeof job_name, "bench.open.%u", bench->runs);
    if (!bench_is_ok(cairn_open(&opts, &session))) return 1;
    const double before = resident_bytes(), begin = bench_now();
    cairn_status status = cairn_job_open(session, job_name, &spec, CAIRN_WORKER, OPEN_MS, &job);
    if (status == CAIRN_OK) status = cairn_init_done(job, NULL, OPEN_MS);
    bench->shared->open_s = bench_now() - begin;
    bench->shared->trainer_bytes = (resident_bytes() - before) / bench->tensors;
    if (!bench_is_ok(status)) return 1;
    cairn_close(session);
    free(tensors);
    free(names);
    return 0;
}

/* ---- subject and reference ---- */

static double end_measure(struct open_bench *bench)
{
    atomic_store(&bench->shared->measuring, false);
    return atomic_load(&bench->shared->longest_s);
}

static void begin_measure(struct open_bench *bench)
{
    atomic_store(&bench->shared->longest_s, 0);
    atomic_store(&bench->shared->measuring, true);
}

/* Returns 0 after printing the error if the opening failed. */
static double run_opening(struct open_bench *bench)
{
    int status = 0;
    begin_measure(bench);
    const pid_t child = fork();
    if (child == 0) _exit(open_many(bench));
    if (child < 0 || waitpid(child, &status, 0) != child || status != 0) return 0;
    bench->open_s[bench->runs] = bench->shared->open_s;
    bench->trainer_bytes[bench->runs] = bench->shared->trainer_bytes;
    return end_measure(bench);
}

static double run_at_rest(struct open_bench *bench)
{
    const double s = bench->open_s[bench->runs];
    begin_measure(bench);
    usleep((useconds_t)(s * 1e6));
    return end_measure(bench);
}

static int run_all(struct open_bench *bench, struct local *local)
{
    double opening[RUNS], rest[RUNS], ratio[RUNS];
    for (bench->runs = 0; bench->runs < RUNS; bench->runs++) {
        const uint32_t i = bench->runs;
        opening[i] = run_opening(bench);
        if (opening[i] <= 0) return 1;
        rest[i] = run_at_rest(bench);
        ratio[i] = rest[i] / opening[i];
        if (bench_is_interrupted(local)) return 1;
    }
    bench->result->value = bench_spread_of(opening, RUNS);
    bench->result->reference = bench_spread_of(rest, RUNS);
    bench->result->ratio = bench_spread_of(ratio, RUNS);
    bench->result->runs = RUNS;
    bench->result->parts = json_pack(
        "{s:f, s:f}", "open_s", bench_spread_of(bench->open_s, RUNS).median,
        "trainer_bytes_a_tensor", bench_spread_of(bench->trainer_bytes, RUNS).median);
    return -1;
}

static int run_there_open(struct local *local, void *context)
{
    struct open_bench *bench = context;
    int done = 1;
    if (bench_crew_start(&bench->crew, local, 1, step_for_ever, bench))
        done = run_all(bench, local);
    bench_crew_stop(&bench->crew);
    return done;
}

int bench_open(struct ctl *ctl)
{
    static struct open_bench bench;
    static struct local local;
    struct bench_result result = { .bench = "open",
                                   .unit = "s",
                                   .reference_name = "the longest step at rest",
                                   .less_is_better = true };
    if (ctl->shards == 0) ctl->shards = 2;
    local.ctl = ctl;
    bench.result = &result;
    bench.tensors = ctl->bench.tensors > 0 ? ctl->bench.tensors : OPEN_TENSORS_DEFAULT;
    bench.shared = mmap(NULL, sizeof *bench.shared, PROT_READ | PROT_WRITE,
                        MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (bench.shared == MAP_FAILED)
        return ctl_fail(CAIRN_ERR_NO_MEMORY, "out of memory for the bench");
    const int done = local_run(&local, run_there_open, &bench);
    if (done >= 0) return done;
    result.params = json_pack("{s:I, s:I}", "tensors", (json_int_t)bench.tensors, "shards",
                              (json_int_t)ctl->shards);
    return bench_print(&result, ctl);
}
