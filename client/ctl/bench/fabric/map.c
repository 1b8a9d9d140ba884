/* cairn bench map: a unit of one tensor, cut over the shards, is mapped where they published it, and one
 * load of every cache line of it is summed; by one worker, and after a round, so that it is a version
 * that was never mapped before. The reference is memcpy of as many bytes to memory that was written before:
 * what gathering the unit would take at least. */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "client/ctl/bench/bench.h"
#include "client/ctl/bench/model.h"

#define PARAMS_DEFAULT 16777216u /* 64 MiB of fp32 */
#define LINE_BYTES     64

enum { ORDER_MAP = 1, ORDER_COPY = 2 };
enum { FIGURE_ALL, FIGURE_MAP, FIGURE_SUM, FIGURE_UNMAP, FIGURE_LENT, FIGURES };
static const char *const part_names[FIGURES] = { NULL, "1_map_s", "2_sum_s", "3_unmap_s", "lent" };

struct map_bench {
    const struct ctl *ctl;
    struct cairn_bench_result *result;
    struct cairn_bench_model model;
    struct cairn_bench_crew crew;
    double parts[FIGURES][CAIRN_BENCH_RUNS_MAX + 1];
    uint32_t part_count; /* the first is of the run that is not measured */
};

/* ---- the worker ---- */

struct map_worker {
    struct cairn_bench_member member;
    size_t bytes;    /* of the unit */
    uint8_t *memory; /* [2][bytes]: from and to, of the reference */
    uint64_t sum;    /* of what was read: the loads are for something */
};

static bool take_memory(struct map_worker *w)
{
    w->memory = mmap(NULL, 2 * w->bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1,
                     0);
    if (w->memory == MAP_FAILED) {
        (void)cairn_ctl_fail(CAIRN_ERR_NO_MEMORY, "no memory for twice %s",
                             cairn_ctl_bytes(w->bytes));
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

/* A round in which nothing is pushed: what is published is a new version all the same. */
static cairn_status make_version(struct map_worker *w, struct cairn_version *version_out)
{
    struct cairn_round round = { .struct_size = sizeof round };
    struct cairn_result result = { .struct_size = sizeof result };
    cairn_status status = cairn_round_begin(w->member.job, CAIRN_BENCH_CALL_MS, &round);
    if (status == CAIRN_OK)
        status = cairn_commit(w->member.job, &round, 1, NULL, 0, CAIRN_BENCH_CALL_MS, &result);
    *version_out = result.version;
    return status;
}

static cairn_status map_once(struct map_worker *w, struct cairn_version version, double at[4])
{
    struct cairn_view view = { .struct_size = sizeof view };
    size_t views = 1;
    cairn_op *op;
    at[0] = cairn_bench_now();
    cairn_status status = cairn_map(w->member.job, version, w->member.names[0], &view, &views, &op);
    if (status == CAIRN_OK) status = cairn_wait(op, CAIRN_BENCH_CALL_MS);
    if (status != CAIRN_OK) return status;
    at[1] = cairn_bench_now();
    w->sum += sum_lines(view.ptr, w->bytes);
    at[2] = cairn_bench_now();
    status = cairn_unmap(w->member.job, &view, NULL);
    at[3] = cairn_bench_now();
    return status;
}

static bool run_map(struct map_worker *w, struct cairn_bench_report *report)
{
    struct cairn_stats before = { .struct_size = sizeof before }, after = before;
    struct cairn_version version;
    double at[4] = { 0 };
    cairn_status status = cairn_job_stats(w->member.job, &before);
    if (status == CAIRN_OK) status = make_version(w, &version);
    if (status == CAIRN_OK) status = map_once(w, version, at);
    if (status == CAIRN_OK) status = cairn_job_stats(w->member.job, &after);
    *report = (struct cairn_bench_report) {
        .figures = { [FIGURE_ALL] = at[3] - at[0],
                     [FIGURE_MAP] = at[1] - at[0],
                     [FIGURE_SUM] = at[2] - at[1],
                     [FIGURE_UNMAP] = at[3] - at[2],
                     [FIGURE_LENT] = (double)(after.maps_lent - before.maps_lent) }
    };
    return cairn_bench_is_ok(status);
}

static void run_copy(struct map_worker *w, struct cairn_bench_report *report)
{
    const double begin = cairn_bench_now();
    memcpy(w->memory, w->memory + w->bytes, w->bytes);
    __asm__ volatile("" : : "r"(w->memory) : "memory"); // somebody reads it
    report->figures[FIGURE_ALL] = cairn_bench_now() - begin;
}

static int work(const struct cairn_bench_worker *worker)
{
    static struct map_worker w;
    const struct cairn_bench_model *model = worker->plan;
    struct cairn_bench_order order;
    struct cairn_bench_report report = { { 0 } };
    w.bytes = cairn_bench_model_elems(model) * (model->wire == CAIRN_F32 ? 4 : 2);
    if (!cairn_bench_member_open(&w.member, model, worker) || !take_memory(&w)) return 1;
    while (cairn_bench_worker_report(worker, &report) && cairn_bench_worker_next(worker, &order)) {
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
    return seconds > 0
               ? (double)cairn_bench_model_elems(&bench->model) * elem_bytes * 1e-9 / seconds
               : 0;
}

static double order(struct map_bench *bench, uint32_t word)
{
    struct cairn_bench_report report;
    const struct cairn_bench_order order = { word, 1 };
    if (!cairn_bench_crew_do(&bench->crew, order, &report)) return 0;
    if (word == ORDER_MAP && bench->part_count <= CAIRN_BENCH_RUNS_MAX) {
        for (int f = 0; f < FIGURES; f++) bench->parts[f][bench->part_count] = report.figures[f];
        bench->part_count++;
    }
    return giga_bytes(bench, report.figures[FIGURE_ALL]);
}

static double subject(void *context)
{
    return order(context, ORDER_MAP);
}

static double reference(void *context)
{
    return order(context, ORDER_COPY);
}

static void add_parts(struct map_bench *bench)
{
    bench->result->parts = json_pack("{s:f}", "first_GB/s",
                                     giga_bytes(bench, bench->parts[FIGURE_ALL][0]));
    for (int f = FIGURE_MAP; f < FIGURES; f++)
        json_object_set_new(
            bench->result->parts, part_names[f],
            json_real(cairn_bench_spread_of(bench->parts[f] + 1, bench->part_count - 1).median));
}

static int run_there(struct local *local, void *context)
{
    struct map_bench *bench = context;
    int done = 1;
    if (bench->ctl->path != NULL) setenv("CAIRN_FABRIC", bench->ctl->path, 1);
    if (cairn_bench_crew_start(&bench->crew, local, 1, work, &bench->model))
        done = cairn_bench_alternate(bench->result, bench->ctl->bench.seconds, subject, reference,
                                     bench);
    if (done < 0) add_parts(bench);
    cairn_bench_crew_stop(&bench->crew);
    return done;
}

static void make_model(struct map_bench *bench)
{
    const struct ctl_bench *asked = &bench->ctl->bench;
    struct cairn_bench_model *model = &bench->model;
    const uint64_t params = asked->params > 0 ? asked->params : PARAMS_DEFAULT;
    model->tensors = 1;
    model->rows = params / CAIRN_BENCH_COLUMNS + (params % CAIRN_BENCH_COLUMNS != 0);
    model->wire = asked->wire != NULL && strcmp(asked->wire, "bf16") == 0 ? CAIRN_BF16 : CAIRN_F32;
    snprintf(model->job, sizeof model->job, "bench.map.%llu.%s", (unsigned long long)model->rows,
             model->wire == CAIRN_F32 ? "f32" : "bf16");
}

/* -1: go on. */
static int judge(const struct map_bench *bench)
{
    const uint64_t needed = cairn_bench_model_elems(&bench->model) * 36;
    const uint64_t there = cairn_bench_memory_bytes();
    const char *path = bench->ctl->path;
    if (!cairn_bench_is_path(path))
        return cairn_ctl_fail(CAIRN_ERR_INVALID, "--path %s: auto, mapped and ucx are allowed",
                              path);
    if (bench->ctl->endpoint == NULL && needed > there)
        return cairn_ctl_fail(CAIRN_ERR_NO_MEMORY,
                              "it needs %s, and %s are free; give fewer --params",
                              cairn_ctl_bytes(needed), cairn_ctl_bytes(there));
    return -1;
}

int cairn_bench_map(struct ctl *ctl)
{
    static struct map_bench bench;
    static struct local local;
    struct cairn_bench_result result = {
        .bench = "map",
        .unit = "GB/s",
        .reference_name = "memcpy of the same size",
    };
    if (ctl->shards == 0) ctl->shards = 2;
    bench.ctl = local.ctl = ctl;
    bench.result = &result;
    make_model(&bench);
    int done = judge(&bench);
    if (done < 0) done = cairn_local_run(&local, run_there, &bench);
    if (done >= 0) return done;
    result.params = json_pack(
        "{s:I, s:I, s:s, s:s}", "params", (json_int_t)cairn_bench_model_elems(&bench.model),
        "shards", (json_int_t)ctl->shards, "wire", bench.model.wire == CAIRN_F32 ? "f32" : "bf16",
        "path", ctl->path != NULL ? ctl->path : "auto");
    return cairn_bench_print(&result, ctl);
}
