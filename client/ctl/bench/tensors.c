/* cairn bench tensors: what it costs that a model has many small tensors. A step (begin, push all, commit,
 * fetch all) of 5,000 tensors of 1,024 elements, against the step of one tensor of as many bytes, in the
 * same workers and shards: the ratio is what is paid for the number of tensors.
 *
 * All tensors are pushed by one call of cairn_push_many, and fetched by one of cairn_fetch_many;
 * _singly_s_ is the step in which each has calls of its own.
 *
 * The parts are of both steps, _many_ and _one_: what the worker waited for, and what the slowest shard
 * did with the round meanwhile, by its log (bench.h), in a cluster of the bench's own, and processor
 * time. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "client/ctl/bench/bench.h"

#define TENSORS_DEFAULT 5000

enum { ORDER_MANY = 1, ORDER_ONE = 2, ORDER_SINGLY = 3 };
enum { FIGURE_ALL, FIGURE_PUSH, FIGURE_COMMIT, FIGURE_FETCH, FIGURE_CPU, FIGURE_BEGIN, FIGURES };

/* The parts of a run: the times of the slowest worker, then those of the slowest shard. */
enum {
    PART_PUSH,
    PART_COMMIT,
    PART_FETCH,
    PART_CPU,
    PART_DAEMONS_CPU, /* the following: of daemons of its own */
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
    double parts[PARTS][CAIRN_BENCH_RUNS_MAX + 1];
    double begin[CAIRN_BENCH_RUNS_MAX + 1], end[CAIRN_BENCH_RUNS_MAX + 1];
    uint32_t count; /* the first is of the run that is not measured */
};

struct tensors_bench {
    const struct ctl *ctl;
    struct bench_result *result;
    struct bench_model many, one;
    uint32_t workers;
    struct bench_crew crew;
    struct bench_report reports[CAIRN_BENCH_WORKERS_MAX];
    struct side many_side, one_side;
};

/* ---- a worker ---- */

struct tensors_worker {
    struct bench_member many, one;
    cairn_list *many_pushes, *many_fetches, *one_pushes, *one_fetches;
    char *grads, *params;
    cairn_op *ops[CAIRN_BENCH_TENSORS_MAX];
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
        status = cairn_wait(w->ops[i], CAIRN_BENCH_CALL_MS);
    return status;
}

/* The calls by which a step moves its tensors: lists, or one call a tensor. */
struct way {
    const struct bench_member *member;
    const struct bench_model *model;
    cairn_list *pushes, *fetches; /* NULL: a call a tensor */
};

static cairn_status push(const struct tensors_worker *w, const struct way *way,
                         const struct cairn_round *round)
{
    return way->pushes != NULL ? cairn_push_many(way->pushes, round, 0, NULL)
                               : push_all(w, way->member, way->model, round);
}

static cairn_status fetch(struct tensors_worker *w, const struct way *way,
                          struct cairn_version version)
{
    if (way->fetches == NULL) return fetch_all(w, way->member, way->model, version);
    const cairn_status status = cairn_fetch_many(way->fetches, version, &w->ops[0]);
    return status == CAIRN_OK ? cairn_wait(w->ops[0], CAIRN_BENCH_CALL_MS) : status;
}

static bool run_step(struct tensors_worker *w, const struct way *way, struct bench_report *report)
{
    struct cairn_round round = { .struct_size = sizeof round };
    struct cairn_result result = { .struct_size = sizeof result };
    cairn_job *job = way->member->job;
    const double cpu = cpu_s(), t0 = bench_now();
    cairn_status status = cairn_round_begin(job, CAIRN_BENCH_CALL_MS, &round);
    if (status == CAIRN_OK) status = push(w, way, &round);
    const double t1 = bench_now();
    if (status == CAIRN_OK)
        status = cairn_commit(job, &round, 1, NULL, 0, CAIRN_BENCH_CALL_MS, &result);
    const double t2 = bench_now();
    if (status == CAIRN_OK) status = fetch(w, way, result.version);
    const double t3 = bench_now();
    *report = (struct bench_report) { .figures = { [FIGURE_ALL] = t3 - t0,
                                                   [FIGURE_PUSH] = t1 - t0,
                                                   [FIGURE_COMMIT] = t2 - t1,
                                                   [FIGURE_FETCH] = t3 - t2,
                                                   [FIGURE_CPU] = cpu_s() - cpu,
                                                   [FIGURE_BEGIN] = t0 } };
    return bench_is_ok(status);
}

/* All tensors of the model, in that memory. */
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

static int work(const struct bench_worker *worker)
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
    double value = 0;
    for (uint32_t i = 0; i < bench->workers; i++)
        if (bench->reports[i].figures[figure] > value) value = bench->reports[i].figures[figure];
    return value;
}

/* Processor time of all daemons so far. */
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
    if (side->count > CAIRN_BENCH_RUNS_MAX) return all;
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

/* Behind the runs by turns. False: it failed. */
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

static void take(double *greatest, uint64_t from_us, uint64_t to_us)
{
    const double s = to_us > from_us ? (double)(to_us - from_us) * 1e-6 : 0;
    if (s > *greatest) *greatest = s;
}

/* A run's round is the one that was granted while it ran. */
static void add_shard(struct side *side, const struct bench_times *times, size_t count)
{
    size_t at = 0;
    for (uint32_t i = 0; i < side->count; i++) {
        while (at < count && (double)times[at].grant * 1e-6 < side->begin[i]) at++;
        if (at == count || (double)times[at].grant * 1e-6 > side->end[i]) continue;
        take(&side->parts[PART_COLLECT][i], times[at].receive, times[at].reduce);
        take(&side->parts[PART_SUMS][i], times[at].reduce, times[at].reduced);
        take(&side->parts[PART_UPDATE][i], times[at].update, times[at].published);
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

static void report(struct tensors_bench *bench, const struct local *local)
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
    if (bench_crew_start(&bench->crew, local, bench->workers, work, bench))
        done = bench_alternate(bench->result, bench->ctl->bench.seconds, run_many, run_one, bench);
    double singly;
    if (done < 0 && !run_singly(bench, &singly)) done = 1;
    if (done < 0) report(bench, local);
    if (done < 0) json_object_set_new(bench->result->parts, "singly_s", json_real(singly));
    bench_crew_stop(&bench->crew);
    return done;
}

/* ---- what is asked for ---- */

static void make_models(struct tensors_bench *bench)
{
    const struct ctl_bench *asked = &bench->ctl->bench;
    struct bench_model *many = &bench->many, *one = &bench->one;
    many->tensors = asked->tensors > 0 ? asked->tensors : TENSORS_DEFAULT;
    bench_model_cut(many, asked->params > 0 ? asked->params
                                            : (uint64_t)many->tensors * CAIRN_BENCH_COLUMNS);
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
    if (bench.workers > CAIRN_BENCH_WORKERS_MAX)
        return ctl_fail(CAIRN_ERR_INVALID, "--workers %u: 1 to %d is allowed", bench.workers,
                        CAIRN_BENCH_WORKERS_MAX);
    make_models(&bench);
    if (bench.many.tensors > CAIRN_BENCH_TENSORS_MAX)
        return ctl_fail(CAIRN_ERR_INVALID, "--tensors %u: 1 to %d is allowed", bench.many.tensors,
                        CAIRN_BENCH_TENSORS_MAX);
    if (!bench_is_path(ctl->path))
        return ctl_fail(CAIRN_ERR_INVALID, "--path %s: auto, mapped and ucx are allowed",
                        ctl->path);
    local.is_debug = true;
    const int done = local_run(&local, run_there, &bench);
    if (done >= 0) return done;
    result.params = json_pack(
        "{s:I, s:I, s:I, s:I, s:s, s:s}", "params", (json_int_t)bench_model_elems(&bench.one),
        "tensors", (json_int_t)bench.many.tensors, "workers", (json_int_t)bench.workers, "shards",
        (json_int_t)ctl->shards, "wire", bench.many.wire == CAIRN_F32 ? "f32" : "bf16", "path",
        ctl->path != NULL ? ctl->path : "auto");
    return bench_print(&result, ctl);
}
