/* cairn bench step: measures a complete step of real worker processes, in seconds of the slowest worker:
 * begin, push all gradients, commit, fetch all parameters. The time excludes the creation of the gradients,
 * but with bf16 on the wire it includes their cast from fp32. The reference is the least data movement that
 * any implementation needs: every worker copies its gradients once and its parameters once (twice if they
 * are read as in stage 3), by memcpy, at the same time as all other workers. With --backend cuda the shards
 * of the bench's own cluster have their state on a card. The bench then also reports the time of each phase
 * on the card, and how much of the card's memory is used. With --memory device workers have gradients and
 * parameters on the card, too, and the reference copies on the card. With --global-batch the reference is
 * the same step, but with the micro-batches accumulated in the workers. */
#include "client/ctl/bench/bench.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <sys/mman.h>
#include <sys/wait.h>

#include "client/ctl/ctl.h"
#include "gpu/gpu.h"

/* ==== card ==== */

/* Measures the memory of a card and of processes, for benches. One thread. */

/* This runs in a process of its own, and returns the exit status of that process. */
static int ask_card(const char *device, int answer_fd)
{
    struct home *home = NULL;
    struct sentence why;
    const cairn_status status = home_open_cuda(device, &home, &why);
    if (status != CAIRN_OK) return ctl_fail(status, "%s", why.text);
    const uint64_t bytes = home_free_bytes(home);
    home_close(home);
    return write(answer_fd, &bytes, sizeof bytes) == sizeof bytes ? 0 : 1;
}

/* Returns the bytes of the card that are free now; `device` as for home_open_cuda. A separate process asks,
 * because processes that a bench forks later could not use a context that this process had opened. The
 * memory of the context itself is the same each time. Returns false after printing the error if there is no
 * such card. */
static bool bench_card_free(const char *device, uint64_t *bytes_out)
{
    int fds[2];
    if (pipe2(fds, O_CLOEXEC) != 0) return false;
    fflush(NULL); // else buffered output would be written twice
    const pid_t pid = fork();
    if (pid == 0) _exit(ask_card(device, fds[1]));
    close(fds[1]);
    uint64_t bytes = 0;
    const bool is_told = pid > 0 && read(fds[0], &bytes, sizeof bytes) == sizeof bytes;
    close(fds[0]);
    while (pid > 0 && waitpid(pid, NULL, 0) < 0 && errno == EINTR) {}
    if (is_told) *bytes_out = bytes;
    return is_told;
}

/* ==== timeline ==== */

/* Writes the times of one step as a trace that browsers draw (chrome://tracing, ui.perfetto.dev): JSON
 * with one event ("ph": "X") per span and one process per worker or shard. */

/* The steps of several workers: spans [workers][spans_each], where kind NONE is unused; rounds
 * [workers], the round of each worker's step. */
struct bench_trace {
    const struct bench_span *spans;
    const uint64_t *rounds;
    uint32_t workers, spans_each;
};

static const char *const kind_names[] = {
    "", "backward", "cast", "push", "commit", "fetch", "use"
};

static void add_event(json_t *events, const char *name, int process, int row, double begin_us,
                      double end_us)
{
    json_array_append_new(events, json_pack("{s:s, s:s, s:i, s:i, s:f, s:f}", "name", name, "ph",
                                            "X", "pid", process, "tid", row, "ts", begin_us, "dur",
                                            end_us > begin_us ? end_us - begin_us : 0));
}

static void add_process(json_t *events, int process, const char *kind, int number)
{
    char name[32];
    snprintf(name, sizeof name, "%s %d", kind, number);
    json_array_append_new(events, json_pack("{s:s, s:s, s:i, s:{s:s}}", "name", "process_name",
                                            "ph", "M", "pid", process, "args", "name", name));
}

static void add_worker(json_t *events, const struct bench_trace *trace, uint32_t worker,
                       double zero)
{
    add_process(events, (int)worker, "worker", (int)worker);
    for (uint32_t i = 0; i < trace->spans_each; i++) {
        const struct bench_span *span = &trace->spans[worker * trace->spans_each + i];
        if (span->kind == BENCH_SPAN_NONE) continue;
        char name[48];
        const bool whole = span->kind == BENCH_SPAN_COMMIT || span->kind == BENCH_SPAN_BACKWARD;
        snprintf(name, sizeof name, whole ? "%s" : "%s w%04u", kind_names[span->kind],
                 span->tensor);
        add_event(events, name, (int)worker, (int)span->kind, (span->begin - zero) * 1e6,
                  (span->end - zero) * 1e6);
    }
}

static void add_shard(json_t *events, const struct bench_times *times, int process, double zero_us)
{
    const struct {
        const char *name;
        uint64_t begin, end;
    } phases[] = {
        { "receive", times->receive, times->reduce },
        { "fold", times->fold, times->reduce },
        { "sums", times->reduce, times->reduced },
        { "decision", times->reduced, times->update },
        { "update, publish", times->update, times->published },
    };
    for (size_t i = 0; i < sizeof phases / sizeof *phases; i++)
        if (phases[i].begin != 0 && phases[i].end != 0)
            add_event(events, phases[i].name, process, (int)i, (double)phases[i].begin - zero_us,
                      (double)phases[i].end - zero_us);
}

static void add_shards(json_t *events, const struct bench_trace *trace, const struct local *local,
                       double zero)
{
    for (int s = 1; s < local->daemon_count; s++) {
        struct bench_times *times = NULL;
        size_t count = 0;
        const int process = (int)trace->workers + s - 1;
        if (!bench_times_read(local, s, &times, &count)) continue;
        add_process(events, process, "shard", s);
        for (size_t i = 0; i < count; i++)
            if (times[i].round == trace->rounds[0])
                add_shard(events, &times[i], process, zero * 1e6);
        free(times);
    }
}

static double first_begin(const struct bench_trace *trace)
{
    double first = 0;
    for (uint32_t i = 0; i < trace->workers * trace->spans_each; i++) {
        const struct bench_span *span = &trace->spans[i];
        if (span->kind != BENCH_SPAN_NONE && (first == 0 || span->begin < first))
            first = span->begin;
    }
    return first;
}

/* Writes the file, with the shards if they belong to the bench's own cluster. Returns false after printing
 * the error if this failed. */
static bool bench_timeline_write(const struct bench_trace *trace, const struct local *local,
                                 const char *path)
{
    const double zero = first_begin(trace);
    json_t *events = json_array();
    for (uint32_t w = 0; w < trace->workers; w++) add_worker(events, trace, w, zero);
    add_shards(events, trace, local, zero);
    json_t *object = json_pack("{s:o, s:s}", "traceEvents", events, "displayTimeUnit", "ms");
    const bool ok = json_dump_file(object, path, JSON_COMPACT | JSON_REAL_PRECISION(9)) == 0;
    json_decref(object);
    if (!ok)
        (void)ctl_fail(CAIRN_ERR_IO, "--timeline %s cannot be written: %s", path, strerror(errno));
    return ok;
}

/* Pushes are sorted by their begin, so a single walk finds their union. */
static void add_overlap(const struct bench_span *spans, uint32_t count, double *both, double *all)
{
    double begin = 0, end = 0, reached = 0;
    for (uint32_t i = 0; i < count; i++)
        if (spans[i].kind == BENCH_SPAN_BACKWARD) begin = spans[i].begin, end = spans[i].end;
    for (uint32_t i = 0; i < count; i++) {
        if (spans[i].kind != BENCH_SPAN_PUSH || spans[i].end <= reached) continue;
        const double from = spans[i].begin > reached ? spans[i].begin : reached;
        reached = spans[i].end;
        const double low = from > begin ? from : begin, high = reached < end ? reached : end;
        *all += reached - from;
        if (high > low) *both += high - low;
    }
}

/* Over all workers: the fraction (0 to 1) of the time with a push in flight during which a backward also
 * ran. */
static double bench_timeline_overlap(const struct bench_trace *trace)
{
    double both = 0, all = 0;
    for (uint32_t w = 0; w < trace->workers; w++)
        add_overlap(trace->spans + w * trace->spans_each, trace->spans_each, &both, &all);
    return all > 0 ? both / all : 0;
}

/* Returns the part of a fetch's time that lies within uses of other tensors (uses do not overlap). */
static double used_meanwhile(const struct bench_span *fetch, const struct bench_span *spans,
                             uint32_t count)
{
    double both = 0;
    for (uint32_t i = 0; i < count; i++) {
        const struct bench_span *use = &spans[i];
        if (use->kind != BENCH_SPAN_USE || use->tensor == fetch->tensor) continue;
        const double low = use->begin > fetch->begin ? use->begin : fetch->begin;
        const double high = use->end < fetch->end ? use->end : fetch->end;
        if (high > low) both += high - low;
    }
    return both;
}

/* Over all workers: the fraction (0 to 1) of the fetch time of tensors during which another tensor was in
 * use. */
static double bench_timeline_ahead(const struct bench_trace *trace)
{
    double both = 0, all = 0;
    for (uint32_t w = 0; w < trace->workers; w++) {
        const struct bench_span *spans = trace->spans + w * trace->spans_each;
        for (uint32_t i = 0; i < trace->spans_each; i++) {
            if (spans[i].kind != BENCH_SPAN_FETCH) continue;
            both += used_meanwhile(&spans[i], spans, trace->spans_each);
            all += spans[i].end - spans[i].begin;
        }
    }
    return all > 0 ? both / all : 0;
}

/* ==== plan ==== */

/* The memory that the bench shares with its workers, which record the times of their steps there. */

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

/* The figures of a shard in one round; counters are differences from the round before. */
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

/* Computes medians[FIGURES] of one shard; false: its log has no second round. */
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

/* Adds to `parts` the medians, over all rounds but the first, of the times of a shard's phases and of the
 * work of its device (launches, bytes copied to the device and from it). Also adds the memory in bytes that
 * a shard and a worker use now. With several shards or workers, each figure is the maximum. */
static void step_shards_report(const struct local *local, const struct bench_crew *crew,
                               json_t *parts)
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

/* ==== bench ==== */

#define PARAMS_DEFAULT       64000000u
#define STEP_TENSORS_DEFAULT 64
#define SHARD_BYTES          28 /* per element: its state, with the shard's other memory */
#define SHARD_BYTES_OF_CARD \
    12 /* the part of SHARD_BYTES that stays in host memory: two published copies, landing */

struct step_bench {
    const struct ctl *ctl;
    struct bench_result *result;
    struct step_plan plan;
    uint32_t workers;
    struct bench_crew crew;
    struct bench_report reports[BENCH_WORKERS_MAX];
    double parts[STEP_FIGURES][BENCH_RUNS_MAX + 1];
    /* for a traced step: the fraction of the push time within the backward, and of the fetch time within
     * uses of other tensors */
    double overlaps[BENCH_RUNS_MAX + 1], aheads[BENCH_RUNS_MAX + 1];
    uint32_t part_count; /* the first entry belongs to the run that is not measured */
    uint64_t card_bytes; /* free on the card before the cluster started */
    double added_bytes;  /* pushed by a worker in the steps that accumulate in the worker */
};

static double most(const struct step_bench *bench, int figure)
{
    return bench_greatest(bench->reports, bench->workers, figure);
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
    if (bench->part_count <= BENCH_RUNS_MAX) {
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

/* ---- the options ---- */

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

/* Parses --read; NULL means fetch. False: unknown name. */
static bool read_of(const char *name, enum step_read *out)
{
    for (size_t i = 0; name != NULL && i < sizeof read_names / sizeof *read_names; i++) {
        if (strcmp(read_names[i], name) != 0) continue;
        *out = (enum step_read)i;
        return true;
    }
    return name == NULL;
}

/* -1: continue. */
static int check_device_memory(const struct step_bench *bench)
{
    const struct ctl *ctl = bench->ctl;
    if (!is_on_card(bench) && ctl->endpoint == NULL)
        return ctl_usage_fail(ctl, "--memory device is the shards' card: give --backend cuda, too, "
                                   "or --endpoint of a cluster on one");
    if (bench->plan.card < 0)
        return ctl_usage_fail(ctl, "--memory device with --device %s: give its number",
                              ctl->bench.device);
    if (bench->plan.read == STEP_READ_FETCH) return -1;
    return ctl_usage_fail(ctl, "--memory device: parameters are fetched; leave --read out");
}

/* -1: continue. */
static int check_batch(const struct step_bench *bench)
{
    const struct ctl_bench *asked = &bench->ctl->bench;
    if (asked->timeline == NULL && asked->backward_ms <= 0 && !asked->has_device_memory &&
        bench->plan.read == STEP_READ_FETCH)
        return -1;
    return ctl_usage_fail(bench->ctl, "--global-batch: leave --timeline, --backward, --read "
                                      "and --memory device out");
}

/* -1: continue. */
static int check_step(struct step_bench *bench)
{
    const struct ctl *ctl = bench->ctl;
    int done = bench_check(ctl, bench->workers, bench->plan.model.tensors);
    if (done >= 0) return done;
    if (!read_of(ctl->bench.read, &bench->plan.read))
        return ctl_fail(CAIRN_ERR_INVALID, "--read %s: fetch, map and units are allowed",
                        ctl->bench.read);
    if (ctl->endpoint != NULL && ctl->bench.backend != NULL)
        return ctl_usage_fail(
            ctl, "--backend %s is for a cluster of the bench's own; leave it or --endpoint out",
            ctl->bench.backend);
    if (ctl->bench.device != NULL && !is_on_card(bench))
        return ctl_usage_fail(ctl, "--device %s: the host has none; give --backend cuda, too",
                              ctl->bench.device);
    if (ctl->bench.has_device_memory) done = check_device_memory(bench);
    if (done < 0 && ctl->bench.global_batch > 0) done = check_batch(bench);
    if (done >= 0 || ctl->endpoint != NULL) return done;
    return bench_check_memory(bytes_needed(bench), "", "--params or --workers");
}

/* Returns the card number that --device gives; 0, the first card, without --device; -1 for a UUID. */
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

static double median_part(struct step_bench *bench, int figure)
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

static int report_step(struct step_bench *bench, const struct local *local)
{
    const struct bench_trace trace = trace_of(bench);
    json_t *parts = json_pack(
        "{s:f, s:f, s:f, s:f, s:f, s:f}", "1_begin_cast_push_s",
        median_part(bench, STEP_FIGURE_PUSH), "2_commit_s", median_part(bench, STEP_FIGURE_COMMIT),
        "3_fetch_s", median_part(bench, STEP_FIGURE_FETCH), "pushed_bytes_a_worker",
        median_part(bench, STEP_FIGURE_PUSHED_BYTES), "fetched_bytes_a_worker",
        median_part(bench, STEP_FIGURE_FETCHED_BYTES), "host_bytes_a_worker",
        median_part(bench, STEP_FIGURE_HOST_BYTES));
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
    if (done < 0) done = report_step(bench, local);
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
    int done = check_step(&bench);
    if (done >= 0) return done;
    if (is_on_card(&bench) && !bench_card_free(ctl->bench.device, &bench.card_bytes)) return 1;
    if (!bench_step_plan_share(&bench.plan, bench.workers)) return 1;
    done = local_run(&local, run_there_step, &bench);
    bench_step_plan_release(&bench.plan, bench.workers);
    if (done >= 0) return done;
    result.params = params_of(&bench);
    return bench_print(&result, ctl);
}
