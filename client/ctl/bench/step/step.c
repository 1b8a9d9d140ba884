/* cairn bench step: a whole step of real worker processes: begin, push all gradients, commit, fetch all
 * parameters; seconds of the slowest worker. Gradients are made outside the clock; with bf16 on the wire
 * their cast from fp32 is within it. The reference is the least that any way of doing this moves: every
 * worker copies its gradients once and its parameters once (twice where they are read as stage 3 does), by
 * memcpy, all workers at a time. With --backend cuda the shards of the bench's own cluster have their state
 * on a card; then it is also said what each phase took there, and how much of the card all took. With
 * --memory device workers have gradients and parameters there, too, and the reference copies on the card.
 * With --global-batch the reference is the same step with its micro-batches added up in the workers. */
#include <stdlib.h>
#include <string.h>

#include "client/ctl/bench/bench.h"
#include "client/ctl/bench/card.h"
#include "client/ctl/bench/step/shards.h"
#include "client/ctl/bench/step/step.h"

#define PARAMS_DEFAULT  64000000u
#define TENSORS_DEFAULT 64
#define SHARD_BYTES     28 /* an element of state: with what is beside it */
#define SHARD_BYTES_OF_CARD \
    12 /* what of that stays in host memory: two published copies, landing */

struct step_bench {
    const struct ctl *ctl;
    struct cairn_bench_result *result;
    struct step_plan plan;
    uint32_t workers;
    struct cairn_bench_crew crew;
    struct cairn_bench_report reports[CAIRN_BENCH_WORKERS_MAX];
    double parts[STEP_FIGURES][CAIRN_BENCH_RUNS_MAX + 1];
    /* of a traced one: what of the pushes lies within the backward, of the fetches within uses of others */
    double overlaps[CAIRN_BENCH_RUNS_MAX + 1], aheads[CAIRN_BENCH_RUNS_MAX + 1];
    uint32_t part_count; /* the first is of the run that is not measured */
    uint64_t card_bytes; /* free of the card before there was a cluster */
    double added_bytes;  /* that a worker pushed where it added up */
};

static double most(const struct step_bench *bench, int figure)
{
    double value = 0;
    for (uint32_t i = 0; i < bench->workers; i++)
        if (bench->reports[i].figures[figure] > value) value = bench->reports[i].figures[figure];
    return value;
}

static struct cairn_bench_trace trace_of(const struct step_bench *bench)
{
    return (struct cairn_bench_trace) {
        .spans = bench->plan.spans,
        .rounds = bench->plan.rounds,
        .workers = bench->workers,
        .spans_each = STEP_SPANS_EACH(bench->plan.model.tensors),
    };
}

static bool is_by_units(const struct step_bench *bench)
{
    return bench->plan.read == STEP_READ_UNITS;
}

static double run_step(void *context)
{
    struct step_bench *bench = context;
    const struct cairn_bench_order order = { STEP_ORDER_STEP, 1 };
    if (!cairn_bench_crew_do(&bench->crew, order, bench->reports)) return 0;
    if (bench->part_count <= CAIRN_BENCH_RUNS_MAX) {
        for (int f = 0; f < STEP_FIGURES; f++) bench->parts[f][bench->part_count] = most(bench, f);
        const struct cairn_bench_trace trace = trace_of(bench);
        bench->overlaps[bench->part_count] = cairn_bench_timeline_overlap(&trace);
        bench->aheads[bench->part_count] = is_by_units(bench) ? cairn_bench_timeline_ahead(&trace)
                                                              : 0;
        bench->part_count++;
    }
    return most(bench, STEP_FIGURE_ALL);
}

static double run_copy(void *context)
{
    struct step_bench *bench = context;
    const struct cairn_bench_order order = { STEP_ORDER_COPY, 1 };
    if (!cairn_bench_crew_do(&bench->crew, order, bench->reports)) return 0;
    return most(bench, STEP_FIGURE_ALL);
}

static double run_added(void *context)
{
    struct step_bench *bench = context;
    const struct cairn_bench_order order = { STEP_ORDER_ADDED, 1 };
    if (!cairn_bench_crew_do(&bench->crew, order, bench->reports)) return 0;
    bench->added_bytes = most(bench, STEP_FIGURE_PUSHED_BYTES);
    return most(bench, STEP_FIGURE_ALL);
}

/* ---- what is asked for ---- */

static bool is_on_card(const struct step_bench *bench)
{
    const char *backend = bench->ctl->bench.backend;
    return backend != NULL && strcmp(backend, "cuda") == 0;
}

static uint64_t bytes_needed(const struct step_bench *bench)
{
    const struct cairn_bench_model *model = &bench->plan.model;
    const uint64_t elems = model->tensors * cairn_bench_model_elems(model);
    const uint64_t worker = model->wire == CAIRN_F32 ? 4 + 4 : 4 + 2 + 2;
    const uint64_t shards = is_on_card(bench) ? SHARD_BYTES_OF_CARD : SHARD_BYTES;
    if (model->batch > 0) return elems * (bench->workers * (worker + 4) + 2 * shards);
    return elems * (bench->workers * worker + shards);
}

static const char *const read_names[] = { "fetch", "map", "units" }; /* by enum step_read */

/* NULL: fetch. False: there is no such way. */
static bool read_of(const char *name, enum step_read *out)
{
    for (size_t i = 0; name != NULL && i < sizeof read_names / sizeof *read_names; i++) {
        if (strcmp(read_names[i], name) != 0) continue;
        *out = (enum step_read)i;
        return true;
    }
    return name == NULL;
}

/* -1: go on. */
static int judge_device_memory(const struct step_bench *bench)
{
    const struct ctl *ctl = bench->ctl;
    if (!is_on_card(bench) && ctl->endpoint == NULL)
        return cairn_ctl_usage_fail(ctl, "--memory device: it is the shards' card; with --backend "
                                         "cuda, or --endpoint of a cluster on one");
    if (bench->plan.card < 0)
        return cairn_ctl_usage_fail(ctl, "--memory device with --device %s: give its number",
                                    ctl->bench.device);
    if (bench->plan.read == STEP_READ_FETCH) return -1;
    return cairn_ctl_usage_fail(ctl, "--memory device: parameters are fetched; leave --read out");
}

/* -1: go on. */
static int judge_batch(const struct step_bench *bench)
{
    const struct ctl_bench *asked = &bench->ctl->bench;
    if (asked->timeline == NULL && asked->backward_ms <= 0 && !asked->has_device_memory &&
        bench->plan.read == STEP_READ_FETCH)
        return -1;
    return cairn_ctl_usage_fail(bench->ctl, "--global-batch: leave --timeline, --backward, --read "
                                            "and --memory device out");
}

/* -1: go on. */
static int judge(struct step_bench *bench)
{
    const struct ctl *ctl = bench->ctl;
    if (bench->workers > CAIRN_BENCH_WORKERS_MAX)
        return cairn_ctl_fail(CAIRN_ERR_INVALID, "--workers %u: 1 to %d is allowed", bench->workers,
                              CAIRN_BENCH_WORKERS_MAX);
    if (bench->plan.model.tensors > CAIRN_BENCH_TENSORS_MAX)
        return cairn_ctl_fail(CAIRN_ERR_INVALID, "--tensors %u: 1 to %d is allowed",
                              bench->plan.model.tensors, CAIRN_BENCH_TENSORS_MAX);
    if (!cairn_bench_is_path(ctl->path))
        return cairn_ctl_fail(CAIRN_ERR_INVALID, "--path %s: auto, mapped and ucx are allowed",
                              ctl->path);
    if (!read_of(ctl->bench.read, &bench->plan.read))
        return cairn_ctl_fail(CAIRN_ERR_INVALID, "--read %s: fetch, map and units are allowed",
                              ctl->bench.read);
    if (ctl->endpoint != NULL && ctl->bench.backend != NULL)
        return cairn_ctl_usage_fail(ctl,
                                    "--backend %s: it is of a cluster of the bench's own; "
                                    "leave it or --endpoint out",
                                    ctl->bench.backend);
    if (ctl->bench.device != NULL && !is_on_card(bench))
        return cairn_ctl_usage_fail(ctl, "--device %s: the host has none; with --backend cuda",
                                    ctl->bench.device);
    if (ctl->bench.has_device_memory) {
        const int done = judge_device_memory(bench);
        if (done >= 0) return done;
    }
    if (ctl->bench.global_batch > 0) {
        const int done = judge_batch(bench);
        if (done >= 0) return done;
    }
    const uint64_t needed = bytes_needed(bench), there = cairn_bench_memory_bytes();
    if (ctl->endpoint == NULL && needed > there)
        return cairn_ctl_fail(CAIRN_ERR_NO_MEMORY,
                              "it needs %s, and %s are free; give fewer --params or --workers",
                              cairn_ctl_bytes(needed), cairn_ctl_bytes(there));
    return -1;
}

/* The number of --device; the first card without one, -1 of a UUID. */
static int card_of(const char *device)
{
    if (device == NULL) return 0;
    return device[strspn(device, "0123456789")] == '\0' ? (int)strtol(device, NULL, 10) : -1;
}

static void make_model(struct step_bench *bench)
{
    const struct ctl_bench *asked = &bench->ctl->bench;
    struct cairn_bench_model *model = &bench->plan.model;
    const uint64_t params = asked->params > 0 ? asked->params : PARAMS_DEFAULT;
    model->tensors = asked->tensors > 0 ? asked->tensors : TENSORS_DEFAULT;
    cairn_bench_model_cut(model, params);
    model->wire = asked->wire == NULL || strcmp(asked->wire, "bf16") == 0 ? CAIRN_BF16 : CAIRN_F32;
    char batch[16] = "";
    model->batch = asked->global_batch;
    if (model->batch > 0) snprintf(batch, sizeof batch, ".k%u", model->batch);
    snprintf(model->job, sizeof model->job, "bench.step.%llux%u.%s.w%u%s%s",
             (unsigned long long)model->rows, model->tensors,
             model->wire == CAIRN_F32 ? "f32" : "bf16", bench->workers,
             asked->has_device_memory ? ".device" : "", batch);
    bench->plan.backward_seconds = asked->backward_ms * 1e-3;
    bench->plan.is_traced = asked->timeline != NULL;
    bench->plan.device = asked->device;
    bench->plan.card = asked->has_device_memory ? card_of(asked->device) : -1;
    model->begins_random = asked->has_device_memory;
    model->device = bench->plan.card >= 0 ? CAIRN_GPU(bench->plan.card) : 0;
}

/* ---- the bench ---- */

static double part(struct step_bench *bench, int figure)
{
    return cairn_bench_spread_of(bench->parts[figure] + 1, bench->part_count - 1).median;
}

static bool report_card(const struct step_bench *bench, json_t *parts)
{
    uint64_t bytes = 0;
    if (!cairn_bench_card_free(bench->ctl->bench.device, &bytes)) return false;
    json_object_set_new(parts, "card_taken_bytes",
                        json_integer((json_int_t)bench->card_bytes - (json_int_t)bytes));
    return true;
}

static int report(struct step_bench *bench, const struct local *local)
{
    const struct cairn_bench_trace trace = trace_of(bench);
    json_t *parts = json_pack(
        "{s:f, s:f, s:f, s:f, s:f, s:f}", "1_begin_cast_push_s", part(bench, STEP_FIGURE_PUSH),
        "2_commit_s", part(bench, STEP_FIGURE_COMMIT), "3_fetch_s", part(bench, STEP_FIGURE_FETCH),
        "pushed_bytes_a_worker", part(bench, STEP_FIGURE_PUSHED_BYTES), "fetched_bytes_a_worker",
        part(bench, STEP_FIGURE_FETCHED_BYTES), "host_bytes_a_worker",
        part(bench, STEP_FIGURE_HOST_BYTES));
    bench->result->parts = parts;
    if (bench->plan.model.batch > 0)
        json_object_set_new(parts, "added_pushed_bytes_a_worker", json_real(bench->added_bytes));
    if (bench->ctl->bench.backend != NULL) step_shards_report(local, &bench->crew, parts);
    if (is_on_card(bench) && !report_card(bench, parts)) return 1;
    if (!bench->plan.is_traced) return -1;
    const double within = cairn_bench_spread_of(bench->overlaps + 1, bench->part_count - 1).median;
    json_object_set_new(parts, "push_within_backward", json_real(within));
    if (is_by_units(bench))
        json_object_set_new(
            parts, "fetch_within_use_of_others",
            json_real(cairn_bench_spread_of(bench->aheads + 1, bench->part_count - 1).median));
    return cairn_bench_timeline_write(&trace, local, bench->ctl->bench.timeline) ? -1 : 1;
}

static int run_there(struct local *local, void *context)
{
    struct step_bench *bench = context;
    int done = 1;
    if (bench->ctl->path != NULL) setenv("CAIRN_FABRIC", bench->ctl->path, 1);
    if (cairn_bench_crew_start(&bench->crew, local, bench->workers, cairn_bench_step_work,
                               &bench->plan))
        done = cairn_bench_alternate(bench->result, bench->ctl->bench.seconds, run_step,
                                     bench->plan.model.batch > 0 ? run_added : run_copy, bench);
    if (done < 0) done = report(bench, local);
    cairn_bench_crew_stop(&bench->crew);
    return done;
}

static json_t *params_of(const struct step_bench *bench)
{
    const struct ctl *ctl = bench->ctl;
    const struct cairn_bench_model *model = &bench->plan.model;
    return json_pack("{s:I, s:I, s:I, s:I, s:I, s:I, s:s, s:s, s:s, s:f, s:s, s:s}", "params",
                     (json_int_t)(model->tensors * cairn_bench_model_elems(model)), "tensors",
                     (json_int_t)model->tensors, "global_batch", (json_int_t)model->batch,
                     "workers", (json_int_t)bench->workers, "shards", (json_int_t)ctl->shards,
                     "threads", (json_int_t)ctl->bench.threads, "wire",
                     model->wire == CAIRN_F32 ? "f32" : "bf16", "path",
                     ctl->path != NULL ? ctl->path : "auto", "read", read_names[bench->plan.read],
                     "backward_ms", ctl->bench.backward_ms, "memory",
                     ctl->bench.has_device_memory ? "device" : "host", "backend",
                     ctl->endpoint != NULL        ? "the cluster's"
                     : ctl->bench.backend != NULL ? ctl->bench.backend
                                                  : "host");
}

int cairn_bench_step(struct ctl *ctl)
{
    static struct step_bench bench;
    static struct local local;
    struct cairn_bench_result result = {
        .bench = "step",
        .unit = "s",
        .reference_name = ctl->bench.has_device_memory
                              ? "copy on the card of every byte pushed and fetched"
                              : "memcpy of every byte pushed and fetched",
        .less_is_better = true,
    };
    if (ctl->bench.global_batch > 0)
        result.reference_name = "the same, added up in each worker and pushed once";
    if (ctl->shards == 0) ctl->shards = 2;
    bench.ctl = local.ctl = ctl;
    bench.result = &result;
    bench.workers = ctl->bench.workers > 0 ? ctl->bench.workers : 2;
    make_model(&bench);
    local.is_debug = bench.plan.is_traced || ctl->bench.backend != NULL;
    local.threads = ctl->bench.threads;
    local.backend = ctl->bench.backend;
    local.device = ctl->bench.device;
    int done = judge(&bench);
    if (done >= 0) return done;
    if (is_on_card(&bench) && !cairn_bench_card_free(ctl->bench.device, &bench.card_bytes))
        return 1;
    if (!cairn_bench_step_plan_share(&bench.plan, bench.workers)) return 1;
    done = cairn_local_run(&local, run_there, &bench);
    cairn_bench_step_plan_release(&bench.plan, bench.workers);
    if (done >= 0) return done;
    result.params = params_of(&bench);
    return cairn_bench_print(&result, ctl);
}
