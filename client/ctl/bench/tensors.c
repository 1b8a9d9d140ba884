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
    FIGURE_UPDATE,
    FIGURES
};
static const char *const part_names[FIGURES] = {
    [BENCH_FIGURE_PUSH] = "1_begin_push_s", [BENCH_FIGURE_COMMIT] = "2_commit_s",
    [BENCH_FIGURE_FETCH] = "3_fetch_s",     [FIGURE_CPU] = "worker_cpu_s",
    [FIGURE_DAEMONS_CPU] = "daemons_cpu_s", [FIGURE_COLLECT] = "shard_collect_s",
    [FIGURE_SUMS] = "shard_sums_s",         [FIGURE_UPDATE] = "shard_update_publish_s",
};

struct tensors_bench {
    struct bench b; /* b.model is the model of many tensors */
    struct bench_model one;
    struct bench_series many_runs, one_runs;
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

static double run_side(struct bench *b, uint32_t word, struct bench_series *runs)
{
    const uint32_t i = runs->count;
    const double before = daemons_cpu_s(b->local);
    const double all = bench_series_run(b, word, runs);
    if (runs->count > i) runs->values[FIGURE_DAEMONS_CPU][i] = daemons_cpu_s(b->local) - before;
    return all;
}

static double run_many(void *bench)
{
    return run_side(bench, ORDER_MANY, &((struct tensors_bench *)bench)->many_runs);
}

static double run_one(void *bench)
{
    return run_side(bench, ORDER_ONE, &((struct tensors_bench *)bench)->one_runs);
}

/* ---- the parts ---- */

#define SINGLY_RUNS 5

static void add_longest(double *greatest, uint64_t from_us, uint64_t to_us)
{
    const double s = to_us > from_us ? (double)(to_us - from_us) * 1e-6 : 0;
    if (s > *greatest) *greatest = s;
}

/* Assigns to each run the round that was granted while the run was active. */
static void add_shard(struct bench_series *runs, const struct bench_times *times, size_t count)
{
    size_t at = 0;
    for (uint32_t i = 0; i < runs->count; i++) {
        const double begin = runs->values[FIGURE_BEGIN][i];
        const double end = begin + runs->values[BENCH_FIGURE_ALL][i];
        while (at < count && (double)times[at].grant * 1e-6 < begin) at++;
        if (at == count || (double)times[at].grant * 1e-6 > end) continue;
        add_longest(&runs->values[FIGURE_COLLECT][i], times[at].receive, times[at].reduce);
        add_longest(&runs->values[FIGURE_SUMS][i], times[at].reduce, times[at].reduced);
        add_longest(&runs->values[FIGURE_UPDATE][i], times[at].update, times[at].published);
    }
}

static void add_side(struct bench *b, const char *side_name, struct bench_series *runs)
{
    const int count = b->local->daemon_count > 0 ? FIGURES : FIGURE_DAEMONS_CPU;
    for (int f = 0; f < count; f++) {
        char key[64];
        snprintf(key, sizeof key, "%s_%s", side_name, part_names[f] != NULL ? part_names[f] : "");
        if (part_names[f] != NULL) BENCH_PARTS(b, { key, bench_series_median(runs, f) });
    }
}

static int report_tensors(void *bench)
{
    struct tensors_bench *t = bench;
    const struct local *local = t->b.local;
    double singly[SINGLY_RUNS];
    for (int i = 0; i < SINGLY_RUNS; i++)
        if (!((singly[i] = bench_order(&t->b, ORDER_SINGLY, 1)) > 0)) return 1;
    for (int s = 1; s < local->daemon_count; s++) {
        struct bench_times *times = NULL;
        size_t count = 0;
        if (!bench_times_read(local, s, &times, &count)) continue;
        add_shard(&t->many_runs, times, count);
        add_shard(&t->one_runs, times, count);
        free(times);
    }
    add_side(&t->b, "many", &t->many_runs);
    add_side(&t->b, "one", &t->one_runs);
    BENCH_PARTS(&t->b, { "singly_s", bench_spread_of(singly, SINGLY_RUNS).median });
    return -1;
}

/* ---- the row ---- */

static int prepare_tensors(void *bench)
{
    struct tensors_bench *t = bench;
    struct bench_model *many = &t->b.model, *one = &t->one;
    if (t->b.ctl->bench.params == 0) many->rows = 1;
    snprintf(many->job, sizeof many->job, "bench.tensors.%" PRIu64 "x%u.%s.w%u", many->rows,
             many->tensors, bench_wire_name(many), t->b.workers);
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
    struct bench b;
    struct bench_series runs;
};

/* ---- the worker ---- */

struct map_worker {
    struct bench_member member;
    size_t bytes;    /* the bytes of the unit */
    uint8_t *memory; /* [2][bytes]: source and destination of the reference */
    uint64_t sum;    /* the sum of the bytes read, so that the loads are not optimized away */
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
    if (!bench_member_open(&w.member, &b->model, worker) || !take_memory(&w)) return 1;
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
    return giga_bytes(bench,
                      bench_series_run(bench, ORDER_MAP, &((struct map_bench *)bench)->runs));
}

static double copy_map(void *bench)
{
    return giga_bytes(bench, bench_order(bench, ORDER_COPY, 1));
}

static int report_map(void *bench)
{
    struct map_bench *m = bench;
    BENCH_PARTS(&m->b, { "first_GB/s", giga_bytes(&m->b, m->runs.values[MAP_FIGURE_ALL][0]) });
    for (int f = MAP_FIGURE_MAP; f < MAP_FIGURES; f++)
        BENCH_PARTS(&m->b, { map_part_names[f], bench_series_median(&m->runs, f) });
    return -1;
}

static int prepare_map(void *bench)
{
    struct bench *b = bench;
    struct bench_model *model = &b->model;
    snprintf(model->job, sizeof model->job, "bench.map.%" PRIu64 ".%s", model->rows,
             bench_wire_name(model));
    if (b->ctl->endpoint != NULL) return -1;
    return bench_check_memory(bench_model_elems(model) * 36, "", "--params");
}

const struct bench_row bench_map = {
    .name = "map",
    .unit = "GB/s",
    .reference_name = "memcpy of the same size",
    .in_cluster = true,
    .bytes = sizeof(struct map_bench),
    .params_told = "params shards wire path",
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
#define OPEN_RUNS            (BENCH_RUNS_MIN + 1)
#define OPEN_MS              300000
#define NAME_BYTES           24

/* Shared with the child processes. */
struct shared {
    atomic_bool measuring;
    _Atomic double longest_s; /* the longest step since measuring began */
    double open_s, trainer_bytes;
};

struct open_bench {
    struct bench b;
    struct shared *shared;
    uint32_t tensors, runs;
    double open_s[OPEN_RUNS], trainer_bytes[OPEN_RUNS]; /* the first run is not measured */
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
    struct shared *shared = ((const struct open_bench *)worker->bench)->shared;
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

static double run_opening(void *bench)
{
    struct open_bench *o = bench;
    int status = 0;
    begin_measure(o);
    const pid_t child = fork();
    if (child == 0) _exit(open_many(o));
    if (child < 0 || waitpid(child, &status, 0) != child || status != 0) return 0;
    o->open_s[o->runs] = o->shared->open_s;
    o->trainer_bytes[o->runs] = o->shared->trainer_bytes;
    return end_measure(o);
}

static double run_at_rest(void *bench)
{
    struct open_bench *o = bench;
    begin_measure(o);
    const double rest_s = o->open_s[o->runs++];
    usleep((useconds_t)(rest_s * 1e6));
    const double longest_s = end_measure(o);
    // Where no step has ended in that time, the step is at least as long.
    return bench_is_interrupted(o->b.local) ? 0 : longest_s > 0 ? longest_s : rest_s;
}

static int report_open(void *bench)
{
    struct open_bench *o = bench;
    BENCH_PARTS(
        &o->b, { "open_s", bench_spread_of(o->open_s + 1, BENCH_RUNS_MIN).median },
        { "trainer_bytes_a_tensor", bench_spread_of(o->trainer_bytes + 1, BENCH_RUNS_MIN).median });
    return bench_add_params(&o->b, json_pack("{s:I}", "tensors", (json_int_t)o->tensors));
}

static int prepare_open(void *bench)
{
    struct open_bench *o = bench;
    o->tensors = o->b.ctl->bench.tensors > 0 ? o->b.ctl->bench.tensors : OPEN_TENSORS_DEFAULT;
    o->shared = bench_share(sizeof *o->shared);
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
    .shards = 2,
    .workers = 1,
    .seconds = 0.001,
    .prepare = prepare_open,
    .work = step_for_ever,
    .run = run_opening,
    .reference = run_at_rest,
    .report = report_open,
};
