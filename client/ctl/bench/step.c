/* cairn bench step: a whole step of real worker processes: begin, push all gradients, commit, fetch all
 * parameters; seconds of the slowest worker. Gradients are made outside the clock; with bf16 on the wire
 * their cast from fp32 is within it. The reference is the least that any way of doing this moves: every
 * worker copies its gradients once and its parameters once (twice where they are read as stage 3 does), by
 * memcpy, all workers at a time. With --backend cuda the shards of the bench's own cluster have their state
 * on a card; then it is also said what each phase took there, and how much of the card all took. With
 * --memory device workers have gradients and parameters there, too, and the reference copies on the card.
 * With --global-batch the reference is the same step with its micro-batches added up in the workers. */
#include <inttypes.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "client/ctl/bench/bench.h"
#include "gpu/gpu.h"

#define PARAMS_DEFAULT       64000000u
#define STEP_TENSORS_DEFAULT 64
#define SHARD_BYTES          28 /* an element of state: with what is beside it */
#define SHARD_BYTES_OF_CARD \
    12 /* what of that stays in host memory: two published copies, landing */

struct step_bench {
    const struct ctl *ctl;
    struct bench_result *result;
    struct step_plan plan;
    uint32_t workers;
    struct bench_crew crew;
    struct bench_report reports[CAIRN_BENCH_WORKERS_MAX];
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

static struct bench_trace trace_of(const struct step_bench *bench)
{
    return (struct bench_trace) {
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
    const struct bench_order order = { STEP_ORDER_STEP, 1 };
    if (!bench_crew_do(&bench->crew, order, bench->reports)) return 0;
    if (bench->part_count <= CAIRN_BENCH_RUNS_MAX) {
        for (int f = 0; f < STEP_FIGURES; f++) bench->parts[f][bench->part_count] = most(bench, f);
        const struct bench_trace trace = trace_of(bench);
        bench->overlaps[bench->part_count] = bench_timeline_overlap(&trace);
        bench->aheads[bench->part_count] = is_by_units(bench) ? bench_timeline_ahead(&trace) : 0;
        bench->part_count++;
    }
    return most(bench, STEP_FIGURE_ALL);
}

static double run_copy(void *context)
{
    struct step_bench *bench = context;
    const struct bench_order order = { STEP_ORDER_COPY, 1 };
    if (!bench_crew_do(&bench->crew, order, bench->reports)) return 0;
    return most(bench, STEP_FIGURE_ALL);
}

static double run_added(void *context)
{
    struct step_bench *bench = context;
    const struct bench_order order = { STEP_ORDER_ADDED, 1 };
    if (!bench_crew_do(&bench->crew, order, bench->reports)) return 0;
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
    const struct bench_model *model = &bench->plan.model;
    const uint64_t elems = model->tensors * bench_model_elems(model);
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
        return ctl_usage_fail(ctl, "--memory device: it is the shards' card; with --backend "
                                   "cuda, or --endpoint of a cluster on one");
    if (bench->plan.card < 0)
        return ctl_usage_fail(ctl, "--memory device with --device %s: give its number",
                              ctl->bench.device);
    if (bench->plan.read == STEP_READ_FETCH) return -1;
    return ctl_usage_fail(ctl, "--memory device: parameters are fetched; leave --read out");
}

/* -1: go on. */
static int judge_batch(const struct step_bench *bench)
{
    const struct ctl_bench *asked = &bench->ctl->bench;
    if (asked->timeline == NULL && asked->backward_ms <= 0 && !asked->has_device_memory &&
        bench->plan.read == STEP_READ_FETCH)
        return -1;
    return ctl_usage_fail(bench->ctl, "--global-batch: leave --timeline, --backward, --read "
                                      "and --memory device out");
}

/* -1: go on. */
static int judge(struct step_bench *bench)
{
    const struct ctl *ctl = bench->ctl;
    if (bench->workers > CAIRN_BENCH_WORKERS_MAX)
        return ctl_fail(CAIRN_ERR_INVALID, "--workers %u: 1 to %d is allowed", bench->workers,
                        CAIRN_BENCH_WORKERS_MAX);
    if (bench->plan.model.tensors > CAIRN_BENCH_TENSORS_MAX)
        return ctl_fail(CAIRN_ERR_INVALID, "--tensors %u: 1 to %d is allowed",
                        bench->plan.model.tensors, CAIRN_BENCH_TENSORS_MAX);
    if (!bench_is_path(ctl->path))
        return ctl_fail(CAIRN_ERR_INVALID, "--path %s: auto, mapped and ucx are allowed",
                        ctl->path);
    if (!read_of(ctl->bench.read, &bench->plan.read))
        return ctl_fail(CAIRN_ERR_INVALID, "--read %s: fetch, map and units are allowed",
                        ctl->bench.read);
    if (ctl->endpoint != NULL && ctl->bench.backend != NULL)
        return ctl_usage_fail(ctl,
                              "--backend %s: it is of a cluster of the bench's own; "
                              "leave it or --endpoint out",
                              ctl->bench.backend);
    if (ctl->bench.device != NULL && !is_on_card(bench))
        return ctl_usage_fail(ctl, "--device %s: the host has none; with --backend cuda",
                              ctl->bench.device);
    if (ctl->bench.has_device_memory) {
        const int done = judge_device_memory(bench);
        if (done >= 0) return done;
    }
    if (ctl->bench.global_batch > 0) {
        const int done = judge_batch(bench);
        if (done >= 0) return done;
    }
    const uint64_t needed = bytes_needed(bench), there = bench_memory_bytes();
    if (ctl->endpoint == NULL && needed > there)
        return ctl_fail(CAIRN_ERR_NO_MEMORY,
                        "it needs %s, and %s are free; give fewer --params or --workers",
                        ctl_bytes(needed), ctl_bytes(there));
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
    struct bench_model *model = &bench->plan.model;
    const uint64_t params = asked->params > 0 ? asked->params : PARAMS_DEFAULT;
    model->tensors = asked->tensors > 0 ? asked->tensors : STEP_TENSORS_DEFAULT;
    bench_model_cut(model, params);
    model->wire = asked->wire == NULL || strcmp(asked->wire, "bf16") == 0 ? CAIRN_BF16 : CAIRN_F32;
    char batch[16] = "";
    model->batch = asked->global_batch;
    if (model->batch > 0) snprintf(batch, sizeof batch, ".k%u", model->batch);
    snprintf(model->job, sizeof model->job, "bench.step.%" PRIu64 "x%u.%s.w%u%s%s", model->rows,
             model->tensors, model->wire == CAIRN_F32 ? "f32" : "bf16", bench->workers,
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
    return bench_spread_of(bench->parts[figure] + 1, bench->part_count - 1).median;
}

static bool report_card(const struct step_bench *bench, json_t *parts)
{
    uint64_t bytes = 0;
    if (!bench_card_free(bench->ctl->bench.device, &bytes)) return false;
    json_object_set_new(parts, "card_taken_bytes",
                        json_integer((json_int_t)bench->card_bytes - (json_int_t)bytes));
    return true;
}

static int report(struct step_bench *bench, const struct local *local)
{
    const struct bench_trace trace = trace_of(bench);
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
    const double within = bench_spread_of(bench->overlaps + 1, bench->part_count - 1).median;
    json_object_set_new(parts, "push_within_backward", json_real(within));
    if (is_by_units(bench))
        json_object_set_new(
            parts, "fetch_within_use_of_others",
            json_real(bench_spread_of(bench->aheads + 1, bench->part_count - 1).median));
    return bench_timeline_write(&trace, local, bench->ctl->bench.timeline) ? -1 : 1;
}

static int run_there_step(struct local *local, void *context)
{
    struct step_bench *bench = context;
    int done = 1;
    if (bench->ctl->path != NULL) setenv("CAIRN_FABRIC", bench->ctl->path, 1);
    if (bench_crew_start(&bench->crew, local, bench->workers, bench_step_work, &bench->plan))
        done = bench_alternate(bench->result, bench->ctl->bench.seconds, run_step,
                               bench->plan.model.batch > 0 ? run_added : run_copy, bench);
    if (done < 0) done = report(bench, local);
    bench_crew_stop(&bench->crew);
    return done;
}

static json_t *params_of(const struct step_bench *bench)
{
    const struct ctl *ctl = bench->ctl;
    const struct bench_model *model = &bench->plan.model;
    return json_pack("{s:I, s:I, s:I, s:I, s:I, s:I, s:s, s:s, s:s, s:f, s:s, s:s}", "params",
                     (json_int_t)(model->tensors * bench_model_elems(model)), "tensors",
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

int bench_step(struct ctl *ctl)
{
    static struct step_bench bench;
    static struct local local;
    struct bench_result result = {
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
    if (is_on_card(&bench) && !bench_card_free(ctl->bench.device, &bench.card_bytes)) return 1;
    if (!bench_step_plan_share(&bench.plan, bench.workers)) return 1;
    done = local_run(&local, run_there_step, &bench);
    bench_step_plan_release(&bench.plan, bench.workers);
    if (done >= 0) return done;
    result.params = params_of(&bench);
    return bench_print(&result, ctl);
}

/* ==== open ==== */

/* cairn bench open: what others feel while a job of very many tensors is opened, in a cluster of the bench's
 * own. One process steps a small job all the time; another opens a new job of 300,000 tensors of 3 elements,
 * again and again. The subject is the longest step of the first one while the other opens, the reference its
 * longest step in as long a time at rest.
 *
 * The parts: how long an opening took (open_s), and what of memory it left in the trainer for each tensor
 * (trainer_bytes_a_tensor), by its greatest resident memory. */

#define OPEN_TENSORS_DEFAULT 300000
#define RUNS                 5
#define OPEN_MS              300000
#define NAME_BYTES           24

/* Shared with the processes. */
struct shared {
    atomic_bool measuring;
    _Atomic double longest_s; /* step since measuring began */
    double open_s, trainer_bytes;
};

struct open_bench {
    struct bench_result *result;
    struct bench_crew crew;
    struct shared *shared;
    uint32_t tensors, runs;
    double open_s[RUNS + 1], trainer_bytes[RUNS + 1];
};

/* ---- who steps all the time ---- */

static bool step_once(struct bench_member *member, const float *gradient)
{
    const struct cairn_mem mem = { .struct_size = sizeof mem,
                                   .ptr = (void *)(uintptr_t)gradient,
                                   .dtype = CAIRN_F32 };
    struct cairn_round round = { .struct_size = sizeof round };
    struct cairn_result result = { .struct_size = sizeof result };
    cairn_status status = cairn_round_begin(member->job, CAIRN_BENCH_CALL_MS, &round);
    if (status == CAIRN_OK)
        status = cairn_push(member->job, &round, 0, member->names[0], NULL, &mem, NULL);
    if (status == CAIRN_OK)
        status = cairn_commit(member->job, &round, 1, NULL, 0, CAIRN_BENCH_CALL_MS, &result);
    return status == CAIRN_ERR_EPOCH_CHANGED || bench_is_ok(status);
}

static int step_for_ever(const struct bench_worker *worker)
{
    static struct bench_member member;
    static float gradient[CAIRN_BENCH_COLUMNS];
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

/* ---- who opens ---- */

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

static double longest(struct open_bench *bench)
{
    atomic_store(&bench->shared->measuring, false);
    return atomic_load(&bench->shared->longest_s);
}

static void measure(struct open_bench *bench)
{
    atomic_store(&bench->shared->longest_s, 0);
    atomic_store(&bench->shared->measuring, true);
}

/* 0: it failed, and has said why. */
static double run_opening(struct open_bench *bench)
{
    int status = 0;
    measure(bench);
    const pid_t child = fork();
    if (child == 0) _exit(open_many(bench));
    if (child < 0 || waitpid(child, &status, 0) != child || status != 0) return 0;
    bench->open_s[bench->runs] = bench->shared->open_s;
    bench->trainer_bytes[bench->runs] = bench->shared->trainer_bytes;
    return longest(bench);
}

static double run_at_rest(struct open_bench *bench)
{
    const double s = bench->open_s[bench->runs];
    measure(bench);
    usleep((useconds_t)(s * 1e6));
    return longest(bench);
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

/* ==== batch ==== */

/* cairn bench step --global-batch: a step of K micro-batches that the workers deal, each pushed for itself,
 * and beside it the same micro-batches in a job of stage 1, where each worker adds its own up and pushes the
 * sums once. Both push the same gradients, which are as the wire has them before the clock starts. */

bool step_batch_open(struct step_worker *w, const struct bench_worker *worker)
{
    struct bench_model model = w->plan->model;
    snprintf(model.job, sizeof model.job, "%.50s.added", w->plan->model.job);
    model.added = (model.batch + worker->world - 1) / worker->world;
    model.batch = 0;
    w->added.session = w->member.session;
    if (w->made != NULL)
        backend_host()->convert(w->grads, CAIRN_BF16, w->made, CAIRN_F32, model.tensors * w->elems);
    return bench_member_join(&w->added, &model, worker);
}

static cairn_status push_micro(struct step_worker *w, const struct bench_member *member,
                               const struct cairn_round *round, uint32_t micro)
{
    cairn_status status = CAIRN_OK;
    for (uint32_t i = 0; i < w->plan->model.tensors && status == CAIRN_OK; i++) {
        const struct cairn_mem grad = step_tensor_of(w, w->grads, i);
        status = cairn_push(member->job, round, micro, member->names[i], NULL, &grad, NULL);
    }
    return status == CAIRN_OK ? cairn_micro_end(member->job, round, micro) : status;
}

/* Where they are added up each worker counts its own. */
static cairn_status push_batch(struct step_worker *w, const struct bench_member *member,
                               const struct cairn_round *round)
{
    cairn_status status = CAIRN_OK;
    uint32_t own = 0;
    for (uint32_t k = round->rank; k < w->plan->model.batch && status == CAIRN_OK;
         k += round->world, own++)
        status = push_micro(w, member, round, member == &w->added ? own : k);
    return status;
}

bool step_batch_run(struct step_worker *w, const struct bench_member *member,
                    struct bench_report *report)
{
    struct cairn_round round = { .struct_size = sizeof round };
    struct cairn_result result = { .struct_size = sizeof result };
    struct cairn_stats before = { .struct_size = sizeof before }, after = before;
    cairn_status status = cairn_job_stats(member->job, &before);
    const double t0 = bench_now();
    if (status == CAIRN_OK) status = cairn_round_begin(member->job, CAIRN_BENCH_CALL_MS, &round);
    if (status == CAIRN_OK) status = push_batch(w, member, &round);
    const double t1 = bench_now();
    if (status == CAIRN_OK)
        status = cairn_commit(member->job, &round, 0, NULL, 0, CAIRN_BENCH_CALL_MS, &result);
    const double t2 = bench_now();
    if (status == CAIRN_OK) status = step_fetch_all(w, member, result.version);
    const double t3 = bench_now();
    if (status == CAIRN_OK) status = cairn_job_stats(member->job, &after);
    *report = (struct bench_report) { .figures = { [STEP_FIGURE_ALL] = t3 - t0,
                                                   [STEP_FIGURE_PUSH] = t1 - t0,
                                                   [STEP_FIGURE_COMMIT] = t2 - t1,
                                                   [STEP_FIGURE_FETCH] = t3 - t2 } };
    step_count_bytes(&before, &after, report);
    return bench_is_ok(status);
}

/* ==== card ==== */

/* A worker of the bench of a step whose gradients and parameters lie on a card. */

/* For the reference alone: what is copied on the card, and the stream that copies it. */
struct step_card {
    struct home *home;
    struct home_stream *stream;
    struct home_memory from, to; /* as many bytes as all gradients */
};

static bool is_ok(cairn_status status, const struct sentence *why)
{
    if (status != CAIRN_OK) (void)ctl_fail(status, "a worker of the bench: %s", why->text);
    return status == CAIRN_OK;
}

/* The process ends with it: nothing is given back. */
static bool open_reference(struct step_worker *w, size_t bytes)
{
    struct sentence why;
    struct step_card *card = calloc(1, sizeof *card);
    if (card == NULL) return bench_is_ok(CAIRN_ERR_NO_MEMORY);
    cairn_status status = home_open_cuda(w->plan->device, &card->home, &why);
    if (status == CAIRN_OK) status = home_stream_open(card->home, &card->stream, &why);
    if (status == CAIRN_OK)
        status = home_memory_open(card->home, "bench", bytes, &card->from, &why);
    if (status == CAIRN_OK) status = home_memory_open(card->home, "bench", bytes, &card->to, &why);
    w->card = card;
    return is_ok(status, &why);
}

/* The gradients are the parameters as they begin. */
static cairn_status fill_gradients(struct step_worker *w)
{
    struct cairn_version newest;
    const uint32_t tensors = w->plan->model.tensors;
    cairn_status status = cairn_version_wait(w->member.job, (struct cairn_version) { 0 },
                                             CAIRN_BENCH_CALL_MS, &newest);
    for (uint32_t i = 0; i < tensors && status == CAIRN_OK; i++) {
        struct cairn_mem grad = step_tensor_of(w, w->grads, i);
        status = cairn_fetch(w->member.job, newest, w->member.names[i], NULL, NULL, &grad,
                             &w->ops[i]);
    }
    for (uint32_t i = 0; i < tensors && status == CAIRN_OK; i++)
        status = cairn_wait(w->ops[i], CAIRN_BENCH_CALL_MS);
    return status;
}

bool step_card_take(struct step_worker *w)
{
    const size_t bytes = w->plan->model.tensors * w->elems * w->elem_bytes;
    void *grads = NULL, *params = NULL;
    cairn_status status = cairn_alloc(w->member.session, bytes, CAIRN_GPU(w->plan->card), &grads);
    if (status == CAIRN_OK)
        status = cairn_alloc(w->member.session, bytes, CAIRN_GPU(w->plan->card), &params);
    w->grads = grads;
    w->params = params;
    if (status == CAIRN_OK) status = fill_gradients(w);
    return bench_is_ok(status) && open_reference(w, bytes);
}

double step_card_copy(struct step_worker *w, int copies)
{
    struct sentence why;
    struct home_work work = {
        .kind = CAIRN_WORK_COPY,
        .copy = { .to = w->card->to.base, .from = w->card->from.base, .bytes = w->card->to.bytes }
    };
    cairn_status status = CAIRN_OK;
    const double begin = bench_now();
    for (int i = 0; i < copies && status == CAIRN_OK; i++)
        status = home_run(w->card->stream, &work, 1, &why);
    return is_ok(status, &why) ? bench_now() - begin : 0;
}

/* ==== plan ==== */

/* The memory that the bench shares with its workers: they write there what happened when. */

static size_t spans_bytes(const struct step_plan *plan, uint32_t workers)
{
    return (size_t)workers * STEP_SPANS_EACH(plan->model.tensors) * sizeof *plan->spans;
}

static size_t shared_bytes(const struct step_plan *plan, uint32_t workers)
{
    return spans_bytes(plan, workers) + workers * sizeof *plan->rounds;
}

bool bench_step_plan_share(struct step_plan *plan, uint32_t workers)
{
    void *shared = mmap(NULL, shared_bytes(plan, workers), PROT_READ | PROT_WRITE,
                        MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED) {
        (void)ctl_fail(CAIRN_ERR_NO_MEMORY, "out of memory");
        return false;
    }
    plan->spans = shared;
    plan->rounds = (uint64_t *)(void *)((char *)shared + spans_bytes(plan, workers));
    return true;
}

void bench_step_plan_release(struct step_plan *plan, uint32_t workers)
{
    munmap(plan->spans, shared_bytes(plan, workers));
    plan->spans = NULL;
    plan->rounds = NULL;
}

/* ==== shards ==== */

/* The figures of a shard in one round, measured from the round before it where they are
 * counters. */
enum { RECEIVE_FOLD, SUMS, UPDATE_PUBLISH, LAUNCHES, IN_BYTES, OUT_BYTES, FIGURES };
static const char *const names[FIGURES] = { "shard_receive_fold_s",   "shard_sums_s",
                                            "shard_update_publish_s", "shard_launches",
                                            "shard_in_bytes",         "shard_out_bytes" };

static double seconds(uint64_t from_us, uint64_t to_us)
{
    return from_us != 0 && to_us > from_us ? (double)(to_us - from_us) * 1e-6 : 0;
}

static double figure_of(const struct bench_times *t, int figure)
{
    const struct bench_times *before = t - 1;
    switch (figure) {
    case RECEIVE_FOLD: return seconds(t->receive, t->reduce);
    case SUMS: return seconds(t->reduce, t->reduced);
    case UPDATE_PUBLISH: return seconds(t->update, t->published);
    case LAUNCHES: return (double)(t->launches - before->launches);
    case IN_BYTES: return (double)(t->in_bytes - before->in_bytes);
    default: return (double)(t->out_bytes - before->out_bytes);
    }
}

/* medians[FIGURES], of one shard; false: its log has no second round. */
static bool read_shard(const struct local *local, int number, double *medians)
{
    struct bench_times *times = NULL;
    size_t count = 0;
    if (!bench_times_read(local, number, &times, &count)) return false;
    double *values = count > 1 ? calloc(count - 1, sizeof *values) : NULL;
    for (int f = 0; f < FIGURES && values != NULL; f++) {
        for (size_t i = 1; i < count; i++) values[i - 1] = figure_of(&times[i], f);
        medians[f] = bench_spread_of(values, (uint32_t)(count - 1)).median;
    }
    free(times);
    const bool is_read = values != NULL;
    free(values);
    return is_read;
}

static void add_figures(const struct local *local, json_t *parts)
{
    double greatest[FIGURES] = { 0 }, medians[FIGURES];
    for (int s = 1; s < local->daemon_count; s++) {
        if (!read_shard(local, s, medians)) return;
        for (int f = 0; f < FIGURES; f++)
            if (medians[f] > greatest[f]) greatest[f] = medians[f];
    }
    for (int f = 0; f < FIGURES; f++) json_object_set_new(parts, names[f], json_real(greatest[f]));
}

void step_shards_report(const struct local *local, const struct bench_crew *crew, json_t *parts)
{
    uint64_t shard = 0, worker = 0;
    add_figures(local, parts);
    for (int s = 1; s < local->daemon_count; s++) {
        const uint64_t bytes = bench_process_bytes(local->daemons[s].pid);
        if (bytes > shard) shard = bytes;
    }
    for (uint32_t w = 0; w < crew->count; w++) {
        const uint64_t bytes = bench_process_bytes(crew->pids[w]);
        if (bytes > worker) worker = bytes;
    }
    json_object_set_new(parts, "shard_resident_bytes", json_integer((json_int_t)shard));
    json_object_set_new(parts, "worker_resident_bytes", json_integer((json_int_t)worker));
}

/* ==== units ==== */

/* A step as a trainer of stage 3 makes it: it has a unit (here a tensor) while it uses it, and has asked for
 * the next one by then:
 *
 *   forward    w0 ─ w1 ─ ... ─ wn   half as long as the backward
 *   backward   wn ─ ... ─ w1 ─ w0   each is read again, and its gradient pushed when it was used
 *
 * To use one is to look at each of its pages and to sleep. */

static cairn_status ask(struct step_worker *w, struct cairn_version version, uint32_t i)
{
    struct cairn_view *view = &w->views[i];
    size_t count = 1;
    *view = (struct cairn_view) { .struct_size = sizeof *view };
    w->asked = (struct step_asked) { .tensor = i, .begin = bench_now() };
    return cairn_map(w->member.job, version, w->member.names[i], view, &count, &w->asked.op);
}

/* Waits for the unit that was asked for; CAIRN_ERR_TIMEOUT: it is not there yet. */
static cairn_status await_asked(struct step_worker *w, int timeout_ms)
{
    if (w->asked.op == NULL) return CAIRN_OK;
    const cairn_status status = cairn_wait(w->asked.op, timeout_ms);
    if (status == CAIRN_ERR_TIMEOUT) return status;
    w->asked.op = NULL;
    if (w->plan->is_traced)
        step_add_span(w, CAIRN_BENCH_SPAN_FETCH, w->asked.tensor, w->asked.begin);
    return status;
}

/* The next unit is fetched meanwhile. */
static cairn_status use(struct step_worker *w, uint32_t i, double seconds)
{
    const double begin = bench_now(), end = begin + seconds;
    step_look_at(w, &w->views[i]);
    const double left = end - bench_now();
    const cairn_status status = await_asked(w, left > 0 ? (int)(left * 1000) : 0);
    step_sleep_until(end);
    if (w->plan->is_traced) step_add_span(w, CAIRN_BENCH_SPAN_USE, i, begin);
    return status == CAIRN_ERR_TIMEOUT ? CAIRN_OK : status;
}

/* Tensor i is the next to be used, `ahead` the one behind it; UINT32_MAX: there is none. */
static cairn_status visit(struct step_worker *w, struct cairn_version version, uint32_t i,
                          uint32_t ahead, double seconds)
{
    const double begin = bench_now();
    cairn_status status = await_asked(w, CAIRN_BENCH_CALL_MS);
    w->waited += bench_now() - begin;
    if (status == CAIRN_OK && ahead != UINT32_MAX) status = ask(w, version, ahead);
    if (status == CAIRN_OK) status = use(w, i, seconds);
    return status;
}

static cairn_status forward(struct step_worker *w, struct cairn_version version)
{
    const uint32_t tensors = w->plan->model.tensors;
    const double each = w->plan->backward_seconds / 2 / tensors;
    cairn_status status = ask(w, version, 0);
    for (uint32_t i = 0; i < tensors && status == CAIRN_OK; i++) {
        status = visit(w, version, i, i + 1 < tensors ? i + 1 : UINT32_MAX, each);
        if (status == CAIRN_OK) status = cairn_unmap(w->member.job, &w->views[i], NULL);
    }
    return status;
}

static cairn_status backward(struct step_worker *w, const struct cairn_round *round)
{
    const uint32_t tensors = w->plan->model.tensors;
    const double begin = bench_now(), each = w->plan->backward_seconds / tensors;
    cairn_status status = ask(w, round->version, tensors - 1);
    for (uint32_t i = tensors; i-- > 0 && status == CAIRN_OK;) {
        status = visit(w, round->version, i, i > 0 ? i - 1 : UINT32_MAX, each);
        if (i == 0 && w->plan->is_traced) step_add_span(w, CAIRN_BENCH_SPAN_BACKWARD, 0, begin);
        if (status == CAIRN_OK) status = step_push_one(w, round, i);
        if (status == CAIRN_OK) status = cairn_unmap(w->member.job, &w->views[i], NULL);
    }
    return status;
}

cairn_status step_units_run(struct step_worker *w, const struct cairn_round *round)
{
    w->waited = 0;
    const cairn_status status = forward(w, round->version);
    return status == CAIRN_OK ? backward(w, round) : status;
}
