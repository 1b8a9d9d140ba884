/* cairn bench step: measures a complete step of real worker processes: begin, push all gradients,
 * commit, fetch all parameters. The figure is the time of the slowest worker, in seconds. This time
 * excludes the creation of the gradients, but with bf16 on the wire it includes their cast from
 * fp32. The reference is the least data movement that any implementation needs: every worker copies
 * its gradients once and its parameters once (twice if they are read as in stage 3), by memcpy, at
 * the same time as all other workers. With --backend cuda the shards of the bench's own cluster
 * have their state on a card. The bench then also reports the time of each phase on the card, and
 * how much of the card's memory is used. With --memory device workers have gradients and parameters
 * on the card, too, and the reference copies on the card. With --global-batch the reference is the
 * same step, but with the micro-batches accumulated in the workers. */
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

/* Returns, over all workers, the fraction (0 to 1) of the time with a push in flight during which a
 * backward also ran. */
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

/* Returns, over all workers, the fraction (0 to 1) of the fetch time of tensors during which
 * another tensor was in use. */
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

static size_t spans_bytes(const struct step_plan *plan)
{
    return (size_t)plan->b.workers * STEP_SPANS_EACH(plan->b.model.tensors) * sizeof *plan->spans;
}

static size_t shared_bytes(const struct step_plan *plan)
{
    return spans_bytes(plan) + plan->b.workers * sizeof *plan->rounds;
}

int bench_step_share(struct step_plan *plan)
{
    plan->spans = bench_share(shared_bytes(plan));
    if (plan->spans == NULL) return 1;
    plan->rounds = (uint64_t *)(void *)((char *)plan->spans + spans_bytes(plan));
    return -1;
}

void bench_step_release(void *bench)
{
    struct step_plan *plan = bench;
    if (plan->spans != NULL) munmap(plan->spans, shared_bytes(plan));
    plan->spans = NULL;
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

static void add_figures(struct bench *b)
{
    double greatest[FIGURES] = { 0 }, medians[FIGURES];
    for (int s = 1; s < b->local->daemon_count; s++) {
        if (!read_shard(b->local, s, medians)) return;
        for (int f = 0; f < FIGURES; f++)
            if (medians[f] > greatest[f]) greatest[f] = medians[f];
    }
    for (int f = 0; f < FIGURES; f++) BENCH_PARTS(b, { names[f], greatest[f] });
}

/* Adds to the parts the medians, over all rounds but the first, of the times of a shard's phases and of the
 * work of its device (launches, bytes copied to the device and from it). Also adds the memory in bytes that
 * a shard and a worker use now. With several shards or workers, each figure is the maximum. */
static void report_shards(struct bench *b)
{
    uint64_t shard = 0, worker = 0;
    add_figures(b);
    for (int s = 1; s < b->local->daemon_count; s++) {
        const uint64_t bytes = bench_process_bytes(b->local->daemons[s].pid);
        if (bytes > shard) shard = bytes;
    }
    for (uint32_t w = 0; w < b->crew.count; w++) {
        const uint64_t bytes = bench_process_bytes(b->crew.pids[w]);
        if (bytes > worker) worker = bytes;
    }
    bench_add_count(b, "shard_resident_bytes", shard);
    bench_add_count(b, "worker_resident_bytes", worker);
}

/* ==== bench ==== */

#define PARAMS_DEFAULT       64000000u
#define STEP_TENSORS_DEFAULT 64
#define SHARD_BYTES          28 /* per element: its state, with the shard's other memory */
#define SHARD_BYTES_OF_CARD \
    12 /* the part of SHARD_BYTES that stays in host memory: two published copies, landing */

struct step_bench {
    struct step_plan plan;
    struct bench_series runs;
    uint64_t card_bytes; /* the bytes that were free on the card before the cluster started */
    /* the bytes that a worker pushed in the steps that accumulate in the worker */
    double added_bytes;
};

static struct bench_trace trace_of(const struct step_plan *plan)
{
    return (struct bench_trace) {
        .spans = plan->spans,
        .rounds = plan->rounds,
        .workers = plan->b.workers,
        .spans_each = STEP_SPANS_EACH(plan->b.model.tensors),
    };
}

static double run_step(void *bench)
{
    struct step_bench *s = bench;
    const uint32_t i = s->runs.count;
    const double all = bench_series_run(bench, STEP_ORDER_STEP, &s->runs);
    const struct bench_trace trace = trace_of(&s->plan);
    if (s->runs.count == i) return all;
    s->runs.values[STEP_FIGURE_OVERLAP][i] = bench_timeline_overlap(&trace);
    if (s->plan.read == STEP_READ_UNITS)
        s->runs.values[STEP_FIGURE_AHEAD][i] = bench_timeline_ahead(&trace);
    return all;
}

/* The reference: a copy, or, for a batch, the step that accumulates in the worker. */
static double run_other(void *bench)
{
    struct step_bench *s = bench;
    const bool is_batch = s->plan.b.model.batch > 0;
    const double all = bench_order(bench, is_batch ? STEP_ORDER_ADDED : STEP_ORDER_COPY, 1);
    s->added_bytes = bench_most(bench, STEP_FIGURE_PUSHED_BYTES);
    return all;
}

/* ---- the options ---- */

static bool is_on_card(const struct step_bench *s)
{
    const char *backend = s->plan.b.ctl->bench.backend;
    return backend != NULL && strcmp(backend, "cuda") == 0;
}

static uint64_t bytes_needed(const struct step_bench *s)
{
    const struct bench_model *model = &s->plan.b.model;
    const uint64_t elems = bench_model_params(model), workers = s->plan.b.workers;
    const uint64_t worker = model->wire == CAIRN_F32 ? 4 + 4 : 4 + 2 + 2;
    const uint64_t shards = is_on_card(s) ? SHARD_BYTES_OF_CARD : SHARD_BYTES;
    if (model->batch > 0) return elems * (workers * (worker + 4) + 2 * shards);
    return elems * (workers * worker + shards);
}

static const char *const read_names[] = { "fetch", "map", "units" }; /* indexed by enum step_read */

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

/* Returns -1 to continue, else the exit status. */
static int check_device_memory(const struct step_bench *s)
{
    const struct ctl *ctl = s->plan.b.ctl;
    if (!is_on_card(s) && ctl->endpoint == NULL)
        return ctl_usage_fail(ctl, "--memory device is the shards' card: give --backend cuda, too, "
                                   "or --endpoint of a cluster on one");
    if (s->plan.card < 0)
        return ctl_usage_fail(ctl, "--memory device with --device %s: give its number",
                              ctl->bench.device);
    if (s->plan.read == STEP_READ_FETCH) return -1;
    return ctl_usage_fail(ctl, "--memory device: parameters are fetched; leave --read out");
}

/* Returns -1 to continue, else the exit status. */
static int check_batch(const struct step_bench *s)
{
    const struct ctl_bench *asked = &s->plan.b.ctl->bench;
    if (asked->timeline == NULL && asked->backward_ms <= 0 && !asked->has_device_memory &&
        s->plan.read == STEP_READ_FETCH)
        return -1;
    return ctl_usage_fail(s->plan.b.ctl, "--global-batch: leave --timeline, --backward, --read "
                                         "and --memory device out");
}

/* Returns -1 to continue, else the exit status. */
static int check_step(struct step_bench *s)
{
    const struct ctl *ctl = s->plan.b.ctl;
    int done = -1;
    if (!read_of(ctl->bench.read, &s->plan.read))
        return ctl_fail(CAIRN_ERR_INVALID, "--read %s: fetch, map and units are allowed",
                        ctl->bench.read);
    if (ctl->endpoint != NULL && ctl->bench.backend != NULL)
        return ctl_usage_fail(
            ctl, "--backend %s is for a cluster of the bench's own; leave it or --endpoint out",
            ctl->bench.backend);
    if (ctl->bench.device != NULL && !is_on_card(s))
        return ctl_usage_fail(ctl, "--device %s: the host has none; give --backend cuda, too",
                              ctl->bench.device);
    if (ctl->bench.has_device_memory) done = check_device_memory(s);
    if (done < 0 && ctl->bench.global_batch > 0) done = check_batch(s);
    if (done >= 0 || ctl->endpoint != NULL) return done;
    return bench_check_memory(bytes_needed(s), "", "--params or --workers");
}

/* Returns the card number that --device gives; 0, the first card, without --device; -1 for a UUID. */
static int card_of(const char *device)
{
    if (device == NULL) return 0;
    return device[strspn(device, "0123456789")] == '\0' ? (int)strtol(device, NULL, 10) : -1;
}

static void plan_step(struct step_bench *s)
{
    struct step_plan *plan = &s->plan;
    const struct ctl_bench *asked = &plan->b.ctl->bench;
    struct bench_model *model = &plan->b.model;
    char batch[16] = "";
    model->batch = asked->global_batch;
    if (model->batch > 0) snprintf(batch, sizeof batch, ".k%u", model->batch);
    snprintf(model->job, sizeof model->job, "bench.step.%" PRIu64 "x%u.%s.w%u%s%s", model->rows,
             model->tensors, bench_wire_name(model), plan->b.workers,
             asked->has_device_memory ? ".device" : "", batch);
    plan->backward_seconds = asked->backward_ms * 1e-3;
    plan->is_traced = asked->timeline != NULL;
    plan->device = asked->device;
    plan->card = asked->has_device_memory ? card_of(asked->device) : -1;
    model->begins_random = asked->has_device_memory;
    model->device = plan->card >= 0 ? CAIRN_GPU(plan->card) : 0;
    plan->b.logs_rounds = plan->is_traced || asked->backend != NULL;
    if (asked->has_device_memory)
        plan->b.result.reference_name = "copy on the card of every byte pushed and fetched";
    if (model->batch > 0)
        plan->b.result.reference_name = "the same, added up in each worker and pushed once";
}

static void tell_step(const struct step_bench *s, struct bench *b)
{
    const struct ctl *ctl = b->ctl;
    bench_add_params(b, json_pack("{s:I, s:s, s:f, s:s, s:s}", "global_batch",
                                  (json_int_t)b->model.batch, "read", read_names[s->plan.read],
                                  "backward_ms", ctl->bench.backward_ms, "memory",
                                  ctl->bench.has_device_memory ? "device" : "host", "backend",
                                  ctl->endpoint != NULL        ? "the cluster's"
                                  : ctl->bench.backend != NULL ? ctl->bench.backend
                                                               : "host"));
}

static int prepare_step(void *bench)
{
    struct step_bench *s = bench;
    plan_step(s);
    const int done = check_step(s);
    tell_step(s, bench);
    if (done >= 0) return done;
    if (is_on_card(s) && !bench_card_free(s->plan.device, &s->card_bytes)) return 1;
    return bench_step_share(&s->plan);
}

/* ---- the row ---- */

/* Returns false after printing the error if the card does not report its memory. */
static bool report_card(struct step_bench *s)
{
    uint64_t bytes = 0;
    if (!bench_card_free(s->plan.device, &bytes)) return false;
    bench_add_count(&s->plan.b, "card_taken_bytes", s->card_bytes - bytes);
    return true;
}

static int report_step(void *bench)
{
    struct step_bench *s = bench;
    struct bench *b = bench;
    const struct bench_trace trace = trace_of(&s->plan);
    BENCH_PARTS(
        b, { "1_begin_cast_push_s", bench_series_median(&s->runs, BENCH_FIGURE_PUSH) },
        { "2_commit_s", bench_series_median(&s->runs, BENCH_FIGURE_COMMIT) },
        { "3_fetch_s", bench_series_median(&s->runs, BENCH_FIGURE_FETCH) },
        { "pushed_bytes_a_worker", bench_series_median(&s->runs, STEP_FIGURE_PUSHED_BYTES) },
        { "fetched_bytes_a_worker", bench_series_median(&s->runs, STEP_FIGURE_FETCHED_BYTES) },
        { "host_bytes_a_worker", bench_series_median(&s->runs, STEP_FIGURE_HOST_BYTES) });
    if (b->model.batch > 0) BENCH_PARTS(b, { "added_pushed_bytes_a_worker", s->added_bytes });
    if (b->ctl->bench.backend != NULL) report_shards(b);
    if (is_on_card(s) && !report_card(s)) return 1;
    if (!s->plan.is_traced) return -1;
    BENCH_PARTS(b, { "push_within_backward", bench_series_median(&s->runs, STEP_FIGURE_OVERLAP) });
    if (s->plan.read == STEP_READ_UNITS)
        BENCH_PARTS(
            b, { "fetch_within_use_of_others", bench_series_median(&s->runs, STEP_FIGURE_AHEAD) });
    return bench_timeline_write(&trace, b->local, b->ctl->bench.timeline) ? -1 : 1;
}

const struct bench_row bench_step = {
    .name = "step",
    .unit = "s",
    .reference_name = "memcpy of every byte pushed and fetched",
    .less_is_better = true,
    .in_cluster = true,
    .bytes = sizeof(struct step_bench),
    .params_told = "params tensors workers shards threads wire path",
    .shards = 2,
    .workers = 2,
    .tensors = STEP_TENSORS_DEFAULT,
    .params = PARAMS_DEFAULT,
    .wire = CAIRN_BF16,
    .prepare = prepare_step,
    .work = bench_step_work,
    .run = run_step,
    .reference = run_other,
    .report = report_step,
    .close = bench_step_release,
};
