/* Benches of tensors: many small tensors, a mapped tensor, and the opening of very many tensors. */
#include "client/ctl/bench/bench.h"

#include <inttypes.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include <sys/resource.h>

/* ==== tensors ==== */

/* cairn bench tensors: the cost of having many small tensors in a model. A step (begin, push all, commit,
 * fetch all) of 5,000 tensors of 1,024 elements is compared with a step of one tensor with the same number
 * of bytes, in the same workers and shards: the ratio is the cost of the number of tensors.
 *
 * All tensors are pushed by one call of cairn_push_many, and fetched by one call of
 * cairn_fetch_many; _singly_s_ is the step in which each tensor is pushed and fetched by separate
 * calls.
 *
 * The parts describe both steps, _many_ and _one_. They are the waits of the worker, the processor
 * time, and, in the bench's own cluster, the simultaneous work of the slowest shard on the round,
 * according to the shard's log (bench.h). */

#define TENSORS_DEFAULT 5000

enum { ORDER_MANY = 1, ORDER_ONE = 2, ORDER_SINGLY = 3 };

/* The figures of a run: the times of the slowest worker, then those of the slowest shard. */
enum {
    FIGURE_CPU = BENCH_STEP_FIGURES,
    FIGURE_BEGIN,
    FIGURE_DAEMONS_CPU, /* this figure and those after it: only for the bench's own daemons */
    FIGURE_COLLECT,
    FIGURE_SUMS,
    FIGURE_UPDATE
};
static const struct bench_column tensors_columns[] = {
    { "1_begin_push_s", BENCH_FIGURE_PUSH, NULL },
    { "2_commit_s", BENCH_FIGURE_COMMIT, NULL },
    { "3_fetch_s", BENCH_FIGURE_FETCH, NULL },
    { "worker_cpu_s", FIGURE_CPU, NULL },
    { .name = NULL },
};
static const struct bench_column daemons_columns[] = {
    { "daemons_cpu_s", FIGURE_DAEMONS_CPU, NULL },
    { "shard_collect_s", FIGURE_COLLECT, NULL },
    { "shard_sums_s", FIGURE_SUMS, NULL },
    { "shard_update_publish_s", FIGURE_UPDATE, NULL },
    { .name = NULL },
};

struct tensors_bench {
    struct bench b; /* b.model is the model of many tensors */
    struct bench_model one;
};

/* ---- a worker ---- */

/* A job, and how a step moves its tensors: by lists, or by one call per tensor. */
struct side {
    struct bench_member member;
    const struct bench_model *model;
    cairn_list *pushes, *fetches;
};

struct tensors_worker {
    struct side many, one;
    char *grads, *params;
    cairn_op *ops[BENCH_TENSORS_MAX];
    const struct side *side; /* the side of this step */
    bool is_singly;
};

static cairn_status push_all(void *own, const struct cairn_round *round)
{
    struct tensors_worker *w = own;
    const struct side *side = w->side;
    return w->is_singly ? bench_push_each(&side->member, side->model, round, 0, w->grads)
                        : cairn_push_many(side->pushes, round, 0, NULL);
}

static cairn_status fetch_all(void *own, struct cairn_version version)
{
    struct tensors_worker *w = own;
    const struct side *side = w->side;
    const uint32_t calls = w->is_singly ? side->model->tensors : 1;
    cairn_status status = w->is_singly ? bench_fetch_each(&side->member, side->model, version,
                                                          w->params, w->ops)
                                       : cairn_fetch_many(side->fetches, version, &w->ops[0]);
    for (uint32_t i = 0; i < calls && status == CAIRN_OK; i++)
        status = cairn_wait(w->ops[i], BENCH_CALL_MS);
    return status;
}

static bool obey_tensors(void *own, const struct bench_order *order, struct bench_report *report)
{
    struct tensors_worker *w = own;
    w->side = order->word == ORDER_ONE ? &w->one : &w->many;
    w->is_singly = order->word == ORDER_SINGLY;
    struct bench_step step = { w->side->member.job, 1, push_all, fetch_all, .own = w };
    const double cpu = bench_clock(CLOCK_PROCESS_CPUTIME_ID);
    const bool is_done = bench_step_run(&step, report);
    report->figures[FIGURE_CPU] = bench_clock(CLOCK_PROCESS_CPUTIME_ID) - cpu;
    report->figures[FIGURE_BEGIN] = step.at[0];
    return is_done;
}

/* Returns one cairn_part per tensor of the model, each in the given memory. */
static struct cairn_part *parts_of(const struct bench_member *member,
                                   const struct bench_model *model, char *memory)
{
    struct cairn_part *parts = calloc(model->tensors, sizeof *parts);
    for (uint32_t i = 0; parts != NULL && i < model->tensors; i++)
        parts[i] = (struct cairn_part) { .struct_size = sizeof *parts,
                                         .tensor = member->names[i],
                                         .mem = bench_mem_of(model, memory, i) };
    return parts;
}

static bool open_lists(const struct tensors_worker *w, struct side *side)
{
    struct cairn_part *grads = parts_of(&side->member, side->model, w->grads);
    struct cairn_part *params = parts_of(&side->member, side->model, w->params);
    cairn_status status = CAIRN_ERR_NO_MEMORY;
    if (grads != NULL && params != NULL)
        status = cairn_push_list(side->member.job, grads, side->model->tensors, &side->pushes);
    if (status == CAIRN_OK)
        status = cairn_fetch_list(side->member.job, NULL, params, side->model->tensors,
                                  &side->fetches);
    free(grads);
    free(params);
    return bench_is_ok(status);
}

static bool open_worker(struct tensors_worker *w, const struct bench_worker *worker)
{
    const struct tensors_bench *t = worker->bench;
    const size_t bytes = bench_model_bytes(&t->one);
    void *grads = NULL, *params = NULL;
    w->many.model = &t->b.model;
    w->one.model = &t->one;
    if (!bench_member_open(&w->many.member, w->many.model, worker)) return false;
    cairn *session = w->one.member.session = w->many.member.session;
    if (!bench_member_join(&w->one.member, w->one.model, worker)) return false;
    cairn_status status = cairn_alloc(session, bytes, 0, &grads);
    if (status == CAIRN_OK) status = cairn_alloc(session, bytes, 0, &params);
    if (!bench_is_ok(status)) return false;
    w->grads = grads;
    w->params = params;
    memset(w->grads, 1, bytes);
    return open_lists(w, &w->many) && open_lists(w, &w->one);
}

static int work_tensors(const struct bench_worker *worker)
{
    static struct tensors_worker w;
    return open_worker(&w, worker) ? bench_serve(worker, &w.many.member, obey_tensors, &w) : 1;
}

/* ---- subject and reference ---- */

/* Returns the processor time that all daemons have used since they began. */
static double daemons_cpu_s(const struct local *local)
{
    double sum = 0;
    for (int i = 0; i < local->daemon_count; i++) sum += bench_used_s(local->daemons[i].pid);
    return sum;
}

static double run_side(struct bench *b, uint32_t word)
{
    const double before = daemons_cpu_s(b->local);
    const double all = bench_order(b, word, 1);
    b->figures[FIGURE_DAEMONS_CPU] = daemons_cpu_s(b->local) - before;
    return all;
}

static double run_many(void *bench)
{
    return run_side(bench, ORDER_MANY);
}

static double run_one(void *bench)
{
    return run_side(bench, ORDER_ONE);
}

/* ---- the parts ---- */

#define SINGLY_RUNS 5

static void take_longest(double *longest, double seconds)
{
    if (seconds > *longest) *longest = seconds;
}

/* Assigns to a run the rounds that were granted while the run was active, one of each shard. */
static void add_shards(const struct bench *b, struct bench_series *runs, uint32_t i)
{
    const double begin = runs->values[FIGURE_BEGIN][i];
    const double end = begin + runs->values[BENCH_FIGURE_ALL][i];
    for (size_t t = 0; t < b->time_count; t++) {
        const struct bench_times *times = &b->times[t];
        const double grant = (double)times->grant * 1e-6;
        if (grant < begin || grant > end) continue;
        take_longest(&runs->values[FIGURE_COLLECT][i],
                     bench_between_s(times->receive, times->reduce));
        take_longest(&runs->values[FIGURE_SUMS][i], bench_between_s(times->reduce, times->reduced));
        take_longest(&runs->values[FIGURE_UPDATE][i],
                     bench_between_s(times->update, times->published));
    }
}

static int report_tensors(void *bench)
{
    static const char *const prefixes[BENCH_SIDES] = { "many_", "one_" };
    struct bench *b = bench;
    double singly[SINGLY_RUNS];
    for (int i = 0; i < SINGLY_RUNS; i++)
        if (!((singly[i] = bench_order(b, ORDER_SINGLY, 1)) > 0)) return 1;
    for (int side = 0; side < BENCH_SIDES; side++) {
        // before the medians, which sort the runs
        for (uint32_t i = 0; i < b->series[side].count; i++) add_shards(b, &b->series[side], i);
        bench_add_columns(b, side, prefixes[side], tensors_columns);
        if (b->local->daemon_count > 0) bench_add_columns(b, side, prefixes[side], daemons_columns);
    }
    BENCH_PARTS(b, { "singly_s", bench_spread_of(singly, SINGLY_RUNS).median });
    return -1;
}

/* ---- the row ---- */

static int prepare_tensors(void *bench)
{
    struct tensors_bench *t = bench;
    struct bench_model *many = &t->b.model, *one = &t->one;
    if (t->b.ctl->bench.params == 0) many->rows = 1;
    snprintf(many->job, sizeof many->job, "bench.tensors.%" PRIu64 "x%u.%s.w%u", many->rows,
             many->tensors, bench_wire_name(many->wire), t->b.workers);
    *one = *many;
    one->rows *= many->tensors;
    one->tensors = 1;
    snprintf(one->job, sizeof one->job, "%.50s.one", many->job);
    return -1;
}

const struct bench_row bench_tensors = {
    .name = "tensors",
    .unit = "s",
    .reference_name = "the step of one tensor of as many bytes",
    .less_is_better = true,
    .in_cluster = true,
    .logs_rounds = true,
    .bytes = sizeof(struct tensors_bench),
    .params_told = "params tensors workers shards wire path",
    .shards = 2,
    .workers = 1,
    .tensors = TENSORS_DEFAULT,
    .wire = CAIRN_F32,
    .prepare = prepare_tensors,
    .work = work_tensors,
    .run = run_many,
    .reference = run_one,
    .report = report_tensors,
};

/* ==== map ==== */

/* cairn bench map: maps a unit of one tensor in the memory where the shards published it (the tensor is
 * split over the shards), and sums one load from each cache line of the unit. One worker does this after a
 * round, so that the version was never mapped before. The reference is a memcpy of the same number of bytes
 * to memory that was written before: the least cost of gathering the unit. */

#define MAP_PARAMS_DEFAULT 16777216u /* 64 MiB of fp32 */
#define LINE_BYTES         64

enum { ORDER_MAP = 1, ORDER_COPY = 2 };
enum { MAP_FIGURE_ALL, MAP_FIGURE_MAP, MAP_FIGURE_SUM, MAP_FIGURE_UNMAP, MAP_FIGURE_LENT };
static const struct bench_column map_columns[] = {
    { "1_map_s", MAP_FIGURE_MAP, NULL },
    { "2_sum_s", MAP_FIGURE_SUM, NULL },
    { "3_unmap_s", MAP_FIGURE_UNMAP, NULL },
    { "lent", MAP_FIGURE_LENT, NULL },
    { .name = NULL },
};

/* ---- the worker ---- */

struct map_worker {
    struct bench_member member;
    size_t bytes;    /* the bytes of the unit */
    uint8_t *memory; /* [2][bytes]: source and destination of the reference */
    uint64_t sum;    /* the sum of the bytes read, so that the loads are not optimized away */
};

static uint64_t sum_lines(const uint8_t *memory, size_t bytes)
{
    uint64_t sum = 0, line;
    for (size_t at = 0; at + LINE_BYTES <= bytes; at += LINE_BYTES) {
        memcpy(&line, memory + at, sizeof line);
        sum += line;
    }
    return sum;
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
    struct bench_step step = { .job = w->member.job, .micros = 1 }; // makes a version, all the same
    double at[4] = { 0 };
    cairn_status status = cairn_job_stats(w->member.job, &before);
    if (status == CAIRN_OK) status = bench_step_do(&step);
    if (status == CAIRN_OK) status = map_once(w, step.version, at);
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

static bool obey_map(void *own, const struct bench_order *order, struct bench_report *report)
{
    struct map_worker *w = own;
    if (order->word == ORDER_MAP) return run_map(w, report);
    const double begin = bench_now();
    memcpy(w->memory, w->memory + w->bytes, w->bytes);
    __asm__ volatile("" : : "r"(w->memory) : "memory"); // forces the compiler to keep the copy
    report->figures[MAP_FIGURE_ALL] = bench_now() - begin;
    return true;
}

static int work_map(const struct bench_worker *worker)
{
    static struct map_worker w;
    const struct bench *b = worker->bench;
    w.bytes = bench_model_bytes(&b->model);
    w.memory = bench_memory_map(2 * w.bytes, BENCH_LARGE);
    if (w.memory == NULL || !bench_member_open(&w.member, &b->model, worker)) return 1;
    memset(w.memory, 1, 2 * w.bytes);
    const int done = bench_serve(worker, &w.member, obey_map, &w);
    __asm__ volatile("" : : "r"(w.sum));
    return done;
}

/* ---- the row ---- */

static double giga_bytes(const struct bench *b, double seconds)
{
    return seconds > 0 ? (double)bench_model_bytes(&b->model) * 1e-9 / seconds : 0;
}

static double run_map_once(void *bench)
{
    return giga_bytes(bench, bench_order(bench, ORDER_MAP, 1));
}

static double copy_map(void *bench)
{
    return giga_bytes(bench, bench_order(bench, ORDER_COPY, 1));
}

static int report_map(void *bench)
{
    struct bench *b = bench;
    const double first_s = b->series[BENCH_SUBJECT].values[MAP_FIGURE_ALL][0];
    BENCH_PARTS(b, { "first_GB/s", giga_bytes(b, first_s) });
    return -1;
}

static int prepare_map(void *bench)
{
    struct bench *b = bench;
    struct bench_model *model = &b->model;
    snprintf(model->job, sizeof model->job, "bench.map.%" PRIu64 ".%s", model->rows,
             bench_wire_name(model->wire));
    if (b->ctl->endpoint != NULL) return -1;
    return bench_check_memory(bench_model_elems(model) * 36, "", "--params");
}

const struct bench_row bench_map = {
    .name = "map",
    .unit = "GB/s",
    .reference_name = "memcpy of the same size",
    .in_cluster = true,
    .bytes = sizeof(struct bench),
    .params_told = "params shards wire path",
    .columns = map_columns,
    .shards = 2,
    .workers = 1,
    .tensors = 1,
    .params = MAP_PARAMS_DEFAULT,
    .wire = CAIRN_F32,
    .prepare = prepare_map,
    .work = work_map,
    .run = run_map_once,
    .reference = copy_map,
    .report = report_map,
};

/* ==== open ==== */

/* cairn bench open: measures how opening a job of very many tensors affects other jobs, in the
 * bench's own cluster. One process continuously steps a small job; another process repeatedly opens
 * a new job of 300,000 tensors of 3 elements. The subject is the first process's longest step
 * during an opening; the reference is its longest step at rest, over a period of the same length.
 *
 * The parts are the time of an opening (open_s), and the memory per tensor that an opening left in the
 * trainer (trainer_bytes_a_tensor), computed from the trainer's peak resident memory. */

#define OPEN_TENSORS_DEFAULT 300000
#define OPEN_MS              300000
#define NAME_BYTES           24

enum { OPEN_FIGURE_OPEN, OPEN_FIGURE_TRAINER };
static const struct bench_column open_columns[] = {
    { "open_s", OPEN_FIGURE_OPEN, NULL },
    { "trainer_bytes_a_tensor", OPEN_FIGURE_TRAINER, NULL },
    { .name = NULL },
};

/* Shared with the process that steps. */
struct shared {
    atomic_bool measuring;
    _Atomic double longest_s; /* the longest step since measuring began */
};

struct open_bench {
    struct bench b;
    struct shared *shared;
    uint32_t tensors;
};

/* ---- the process that steps continuously ---- */

static cairn_status push_one_row(void *member, const struct cairn_round *round)
{
    static float gradient[BENCH_COLUMNS];
    const struct bench_member *m = member;
    const struct cairn_mem mem = { .struct_size = sizeof mem, .ptr = gradient, .dtype = CAIRN_F32 };
    return cairn_push(m->job, round, 0, m->names[0], NULL, &mem, NULL);
}

static int step_for_ever(const struct bench_worker *worker)
{
    static struct bench_member member;
    struct shared *shared = ((const struct open_bench *)worker->bench)->shared;
    const struct bench_model model = {
        .job = "bench.open.small", .tensors = 1, .rows = 1, .wire = CAIRN_F32
    };
    const struct bench_report ready = { { 1 } };
    const pid_t parent = getppid();
    if (!bench_member_open(&member, &model, worker) || !bench_worker_report(worker, &ready))
        return 1;
    while (getppid() == parent) {
        struct bench_step step = { member.job, 1, push_one_row, NULL, .own = &member };
        const cairn_status status = bench_step_do(&step);
        const double took = step.at[4] - step.at[0];
        if (status != CAIRN_ERR_EPOCH_CHANGED && !bench_is_ok(status)) return 1;
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

/* Prints the seconds of the opening, and the bytes of memory for each tensor. */
static int open_many(void *own)
{
    const struct open_bench *bench = own;
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
    snprintf(job_name, sizeof job_name, "bench.open.%u", bench->b.series[BENCH_SUBJECT].count);
    if (!bench_is_ok(cairn_open(&opts, &session))) return 1;
    const double before = resident_bytes(), begin = bench_now();
    cairn_status status = cairn_job_open(session, job_name, &spec, CAIRN_WORKER, OPEN_MS, &job);
    if (status == CAIRN_OK) status = cairn_init_done(job, NULL, OPEN_MS);
    if (!bench_is_ok(status)) return 1;
    printf("%.9g %.9g\n", bench_now() - begin, (resident_bytes() - before) / bench->tensors);
    cairn_close(session);
    free(tensors);
    free(names);
    return 0;
}

/* ---- subject and reference ---- */

static void begin_measure(struct open_bench *o)
{
    atomic_store(&o->shared->longest_s, 0);
    atomic_store(&o->shared->measuring, true);
}

static double end_measure(struct open_bench *o)
{
    atomic_store(&o->shared->measuring, false);
    return atomic_load(&o->shared->longest_s);
}

static double run_opening(void *bench)
{
    struct open_bench *o = bench;
    struct bench_child child;
    begin_measure(o);
    if (!bench_child_start(&child, o->b.local, open_many, o) ||
        bench_child_numbers(&child, o->b.local, o->b.figures) <= 0)
        return 0;
    return end_measure(o);
}

/* Measures as long a time as the last opening took. */
static double run_at_rest(void *bench)
{
    struct open_bench *o = bench;
    const double rest_s = o->b.figures[OPEN_FIGURE_OPEN];
    begin_measure(o);
    usleep((useconds_t)(rest_s * 1e6));
    const double longest_s = end_measure(o);
    // Where no step has ended in that time, the step is at least as long.
    return bench_is_interrupted(o->b.local) ? 0 : longest_s > 0 ? longest_s : rest_s;
}

static int report_open(void *bench)
{
    struct open_bench *o = bench;
    return bench_add_params(&o->b, json_pack("{s:I}", "tensors", (json_int_t)o->tensors));
}

static int prepare_open(void *bench)
{
    struct open_bench *o = bench;
    o->tensors = o->b.ctl->bench.tensors > 0 ? o->b.ctl->bench.tensors : OPEN_TENSORS_DEFAULT;
    o->shared = bench_memory_map(sizeof *o->shared, BENCH_SHARED);
    return o->shared != NULL ? -1 : 1;
}

const struct bench_row bench_open = {
    .name = "open",
    .unit = "s",
    .reference_name = "the longest step at rest",
    .less_is_better = true,
    .in_cluster = true,
    .bytes = sizeof(struct open_bench),
    .params_told = "shards",
    .columns = open_columns,
    .shards = 2,
    .workers = 1,
    .seconds = 0.001,
    .prepare = prepare_open,
    .work = step_for_ever,
    .run = run_opening,
    .reference = run_at_rest,
    .report = report_open,
};
