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
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/ctl/ctl.h"
#include "gpu/gpu.h"

#define PARAMS_DEFAULT       64000000u
#define STEP_TENSORS_DEFAULT 64
#define SHARD_BYTES          28 /* per element: its state, with the shard's other memory */
#define SHARD_BYTES_OF_CARD \
    12 /* the part of SHARD_BYTES that stays in host memory: two published copies, landing */

struct step_bench {
    struct step_plan plan;
    double card_bytes; /* the bytes that were free on the card before the cluster started */
};

int bench_step_share(struct step_plan *plan)
{
    const size_t spans = (size_t)plan->b.workers * STEP_SPANS_EACH(plan->b.model.tensors);
    const size_t bytes = spans * sizeof *plan->spans;
    plan->spans = bench_memory_map(bytes + plan->b.workers * sizeof *plan->rounds, BENCH_SHARED);
    if (plan->spans == NULL) return 1;
    plan->rounds = (uint64_t *)(void *)(plan->spans + spans);
    return -1;
}

/* Returns the spans of one worker, [STEP_SPANS_EACH(tensors)], where kind NONE is unused. */
static const struct bench_span *spans_of(const struct step_plan *plan, uint32_t worker)
{
    return plan->spans + (size_t)worker * STEP_SPANS_EACH(plan->b.model.tensors);
}

/* ==== card ==== */

/* This runs in a process of its own. */
static int print_card_free(void *bench)
{
    const struct step_bench *s = bench;
    struct home *home = NULL;
    struct sentence why;
    const cairn_status status = home_open_cuda(s->plan.device, &home, &why);
    if (status != CAIRN_OK) return ctl_fail(status, "%s", why.text);
    printf("%" PRIu64 " 0\n", home_free_bytes(home));
    home_close(home);
    return 0;
}

/* Returns the bytes of the card that are free now. A separate process asks, because processes that the
 * bench forks later could not use a context that this process had opened. The memory of the context itself
 * is the same each time. Returns false after printing the error if there is no such card. */
static bool read_card_free(struct step_bench *s, double *bytes_out)
{
    struct bench_child child;
    double numbers[2];
    if (!bench_child_start(&child, NULL, print_card_free, s) ||
        bench_child_numbers(&child, NULL, numbers) <= 0)
        return false;
    *bytes_out = numbers[0];
    return true;
}

/* ==== timeline ==== */

/* Writes the times of one step as a trace that browsers draw (chrome://tracing, ui.perfetto.dev): JSON
 * with one event ("ph": "X") per span and one process per worker or shard. */

static const char *const kind_names[] = {
    "", "backward", "cast", "push", "commit", "fetch", "use"
};

static void add_event(json_t *events, const char *name, uint32_t process, uint32_t row,
                      double begin_us, double end_us)
{
    json_array_append_new(events,
                          json_pack("{s:s, s:s, s:i, s:i, s:f, s:f}", "name", name, "ph", "X",
                                    "pid", (int)process, "tid", (int)row, "ts", begin_us, "dur",
                                    end_us > begin_us ? end_us - begin_us : 0));
}

static void add_process(json_t *events, uint32_t process, const char *kind, uint32_t number)
{
    char name[32];
    snprintf(name, sizeof name, "%s %u", kind, number);
    json_array_append_new(events, json_pack("{s:s, s:s, s:i, s:{s:s}}", "name", "process_name",
                                            "ph", "M", "pid", (int)process, "args", "name", name));
}

static void add_worker(json_t *events, const struct step_plan *plan, uint32_t worker, double zero)
{
    const struct bench_span *spans = spans_of(plan, worker);
    add_process(events, worker, "worker", worker);
    for (uint32_t i = 0; i < STEP_SPANS_EACH(plan->b.model.tensors); i++) {
        const struct bench_span *span = &spans[i];
        if (span->kind == BENCH_SPAN_NONE) continue;
        char name[48];
        const bool whole = span->kind == BENCH_SPAN_COMMIT || span->kind == BENCH_SPAN_BACKWARD;
        snprintf(name, sizeof name, whole ? "%s" : "%s w%04u", kind_names[span->kind],
                 span->tensor);
        add_event(events, name, worker, span->kind, (span->begin - zero) * 1e6,
                  (span->end - zero) * 1e6);
    }
}

static void add_shard(json_t *events, const struct bench_times *times, uint32_t process,
                      double zero_us)
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
    add_process(events, process, "shard", times->shard);
    for (uint32_t i = 0; i < sizeof phases / sizeof *phases; i++)
        if (phases[i].begin != 0 && phases[i].end != 0)
            add_event(events, phases[i].name, process, i, (double)phases[i].begin - zero_us,
                      (double)phases[i].end - zero_us);
}

/* Returns when the first span of all workers began. */
static double first_begin(const struct step_plan *plan)
{
    double first = 0;
    for (uint32_t i = 0; i < plan->b.workers * STEP_SPANS_EACH(plan->b.model.tensors); i++) {
        const struct bench_span *span = &plan->spans[i];
        if (span->kind != BENCH_SPAN_NONE && (first == 0 || span->begin < first))
            first = span->begin;
    }
    return first;
}

/* Writes the file, with the shards if they belong to the bench's own cluster. Returns -1 to continue, else
 * the exit status. */
static int write_timeline(const struct step_plan *plan)
{
    const struct bench *b = &plan->b;
    const char *path = b->ctl->bench.timeline;
    const double zero = first_begin(plan);
    json_t *events = json_array();
    for (uint32_t w = 0; w < b->workers; w++) add_worker(events, plan, w, zero);
    for (size_t i = 0; i < b->time_count; i++)
        if (b->times[i].round == plan->rounds[0])
            add_shard(events, &b->times[i], b->workers + b->times[i].shard - 1, zero * 1e6);
    json_t *object = json_pack("{s:o, s:s}", "traceEvents", events, "displayTimeUnit", "ms");
    const bool ok = json_dump_file(object, path, JSON_COMPACT | JSON_REAL_PRECISION(9)) == 0;
    json_decref(object);
    if (ok) return -1;
    return ctl_fail(CAIRN_ERR_IO, "--timeline %s cannot be written: %s", path, strerror(errno));
}

/* Returns the time that two spans of time have in common. */
static double common(double begin, double end, const struct bench_span *span)
{
    const double low = begin > span->begin ? begin : span->begin;
    const double high = end < span->end ? end : span->end;
    return high > low ? high - low : 0;
}

/* Adds up the time with a push in flight, and its part within the backward. Pushes are sorted by their
 * begin, so a single walk finds their union. */
static void add_overlap(const struct bench_span *spans, uint32_t count, double *both, double *all)
{
    struct bench_span backward = { .begin = 0 };
    double reached = 0;
    for (uint32_t i = 0; i < count; i++)
        if (spans[i].kind == BENCH_SPAN_BACKWARD) backward = spans[i];
    for (uint32_t i = 0; i < count; i++) {
        if (spans[i].kind != BENCH_SPAN_PUSH || spans[i].end <= reached) continue;
        const double from = spans[i].begin > reached ? spans[i].begin : reached;
        reached = spans[i].end;
        *all += reached - from;
        *both += common(from, reached, &backward);
    }
}

/* Adds up the time of fetches of tensors, and its part within uses of other tensors (uses do not
 * overlap). */
static void add_ahead(const struct bench_span *spans, uint32_t count, double *both, double *all)
{
    for (uint32_t i = 0; i < count; i++) {
        const struct bench_span *fetch = &spans[i];
        if (fetch->kind != BENCH_SPAN_FETCH) continue;
        *all += fetch->end - fetch->begin;
        for (uint32_t k = 0; k < count; k++)
            if (spans[k].kind == BENCH_SPAN_USE && spans[k].tensor != fetch->tensor)
                *both += common(fetch->begin, fetch->end, &spans[k]);
    }
}

/* Returns the fraction, 0 to 1, over all workers. */
static double share_of(const struct step_plan *plan,
                       void (*add)(const struct bench_span *spans, uint32_t count, double *both,
                                   double *all))
{
    double both = 0, all = 0;
    for (uint32_t w = 0; w < plan->b.workers; w++)
        add(spans_of(plan, w), STEP_SPANS_EACH(plan->b.model.tensors), &both, &all);
    return all > 0 ? both / all : 0;
}

/* ==== shards ==== */

/* The figures of a shard in one round; counters are differences from the round before. */
enum { RECEIVE_FOLD, SUMS, UPDATE_PUBLISH, LAUNCHES, IN_BYTES, OUT_BYTES, FIGURES };
static const char *const names[FIGURES] = { "shard_receive_fold_s",   "shard_sums_s",
                                            "shard_update_publish_s", "shard_launches",
                                            "shard_in_bytes",         "shard_out_bytes" };

static double figure_of(const struct bench_times *t, int figure)
{
    const struct bench_times *before = t - 1;
    switch (figure) {
    case RECEIVE_FOLD: return bench_between_s(t->receive, t->reduce);
    case SUMS: return bench_between_s(t->reduce, t->reduced);
    case UPDATE_PUBLISH: return bench_between_s(t->update, t->published);
    case LAUNCHES: return (double)(t->launches - before->launches);
    case IN_BYTES: return (double)(t->in_bytes - before->in_bytes);
    default: return (double)(t->out_bytes - before->out_bytes);
    }
}

/* Returns the median over all rounds of the shard but the first. */
static double median_of(const struct bench *b, int shard, int figure, double *values)
{
    uint32_t count = 0;
    for (size_t i = 1; i < b->time_count; i++)
        if (b->times[i].shard == (uint32_t)shard && b->times[i - 1].shard == (uint32_t)shard)
            values[count++] = figure_of(&b->times[i], figure);
    return count > 0 ? bench_spread_of(values, count).median : 0;
}

static uint64_t more_of(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

/* Adds the times of a shard's phases, the work of its device (launches, bytes copied to the device and from
 * it), and the memory that a shard and a worker use now, in bytes. With several shards or workers, each
 * figure is the maximum. */
static void report_shards(struct bench *b)
{
    uint64_t shard = 0, worker = 0;
    double *values = calloc(b->time_count + 1, sizeof *values);
    for (int f = 0; f < FIGURES && values != NULL; f++) {
        double greatest = 0;
        for (int s = 1; s < b->local->daemon_count; s++) {
            const double median = median_of(b, s, f, values);
            if (median > greatest) greatest = median;
        }
        BENCH_PARTS(b, { names[f], greatest });
    }
    free(values);
    for (int s = 1; s < b->local->daemon_count; s++)
        shard = more_of(shard, bench_process_bytes(b->local->daemons[s].pid));
    for (uint32_t w = 0; w < b->crew.count; w++)
        worker = more_of(worker, bench_process_bytes(b->crew.pids[w]));
    bench_add_count(b, "shard_resident_bytes", shard);
    bench_add_count(b, "worker_resident_bytes", worker);
}

/* ==== the options ==== */

static uint64_t bytes_needed(const struct step_bench *s)
{
    const struct bench_model *model = &s->plan.b.model;
    const uint64_t elems = bench_model_params(model), workers = s->plan.b.workers;
    const uint64_t worker = model->wire == CAIRN_F32 ? 4 + 4 : 4 + 2 + 2;
    const uint64_t shards = bench_is_on_card(s->plan.b.ctl) ? SHARD_BYTES_OF_CARD : SHARD_BYTES;
    const uint64_t copies = s->plan.b.tier == BENCH_TIER_PEER ? 3 : 2;
    if (s->plan.b.is_compared) return elems * (2 * workers * worker + copies * shards);
    if (model->batch > 0) return elems * (workers * (worker + 4) + 2 * shards);
    return elems * (workers * worker + shards);
}

/* Returns -1 to continue, else the exit status. */
static int check_device_memory(const struct step_bench *s)
{
    const struct ctl *ctl = s->plan.b.ctl;
    if (!bench_is_on_card(ctl) && ctl->endpoint == NULL)
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
static int check_tier(const struct step_bench *s)
{
    const struct ctl *ctl = s->plan.b.ctl;
    const struct ctl_bench *asked = &ctl->bench;
    if (asked->timeline == NULL && asked->backend == NULL && asked->global_batch == 0 &&
        ctl->endpoint == NULL && !asked->has_device_memory)
        return ctl->shards <= CTL_SHARDS_MAX / 2
                   ? -1
                   : ctl_usage_fail(ctl, "--shards %u: 1 to %d is allowed with --tier", ctl->shards,
                                    CTL_SHARDS_MAX / 2);
    return ctl_usage_fail(ctl,
                          "--tier: leave --timeline, --backend, --global-batch, --memory device "
                          "and --endpoint out");
}

/* Returns -1 to continue, else the exit status. */
static int check_step(struct step_bench *s)
{
    const struct ctl *ctl = s->plan.b.ctl;
    uint64_t read = STEP_READ_FETCH;
    int done = -1;
    if (ctl->bench.read != NULL)
        done = ctl_parse_choice("read", "fetch|map|units", ctl->bench.read, &read);
    s->plan.read = (enum step_read)read;
    if (done < 0 && ctl->endpoint != NULL && ctl->bench.backend != NULL)
        return ctl_usage_fail(
            ctl, "--backend %s is for a cluster of the bench's own; leave it or --endpoint out",
            ctl->bench.backend);
    if (done < 0) done = bench_check_device(ctl);
    if (done < 0 && ctl->bench.has_device_memory) done = check_device_memory(s);
    if (done < 0 && ctl->bench.global_batch > 0) done = check_batch(s);
    if (done < 0 && ctl->bench.tier != NULL) done = check_tier(s);
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
             model->tensors, bench_wire_name(model->wire), plan->b.workers,
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
    plan->b.is_compared = plan->b.tier != BENCH_TIER_NONE;
    // the times of sums are in the daemons' own logs
    plan->b.logs_rounds |= plan->b.is_compared;
    if (plan->b.is_compared)
        plan->b.result.reference_name = "the same step in a cluster that survives nothing";
    if (model->batch > 0)
        plan->b.result.reference_name = "the same, added up in each worker and pushed once";
}

static int prepare_step(void *bench)
{
    struct step_bench *s = bench;
    struct bench *b = bench;
    const struct ctl_bench *asked = &b->ctl->bench;
    plan_step(s);
    const int done = check_step(s);
    if (done >= 0) return done;
    bench_add_params(b, json_pack("{s:s}", "tier", bench_tier_name(b->tier)));
    bench_add_params(b, json_pack("{s:I, s:s, s:f, s:s, s:s}", "global_batch",
                                  (json_int_t)b->model.batch, "read",
                                  asked->read != NULL ? asked->read : "fetch", "backward_ms",
                                  asked->backward_ms, "memory",
                                  asked->has_device_memory ? "device" : "host", "backend",
                                  b->ctl->endpoint != NULL ? "the cluster's"
                                  : asked->backend != NULL ? asked->backend
                                                           : "host"));
    if (bench_is_on_card(b->ctl) && !read_card_free(s, &s->card_bytes)) return 1;
    return bench_step_share(&s->plan);
}

/* ==== the row ==== */

static double run_step(void *bench)
{
    struct step_bench *s = bench;
    struct bench *b = bench;
    const double all = b->is_compared ? bench_tier_order(b, STEP_ORDER_STEP, b->local)
                                      : bench_order(b, STEP_ORDER_STEP, 1);
    b->figures[STEP_FIGURE_OVERLAP] = share_of(&s->plan, add_overlap);
    if (s->plan.read == STEP_READ_UNITS)
        b->figures[STEP_FIGURE_AHEAD] = share_of(&s->plan, add_ahead);
    return all;
}

/* The reference: a copy; for a batch, the step that accumulates in the worker; with a tier, the step without
 * it. */
static double run_other(void *bench)
{
    struct bench *b = bench;
    if (b->is_compared) return bench_tier_order(b, STEP_ORDER_BESIDE, b->beside);
    return bench_order(b, b->model.batch > 0 ? STEP_ORDER_ADDED : STEP_ORDER_COPY, 1);
}

static int open_step(void *bench)
{
    return bench_tier_open(bench);
}

static int begin_step(void *bench)
{
    struct bench *b = bench;
    return !b->is_compared || bench_tier_await(b, STEP_ORDER_STEP) ? -1 : 1;
}

static const struct bench_column step_columns[] = {
    { "1_begin_cast_push_s", BENCH_FIGURE_PUSH, NULL },
    { "2_commit_s", BENCH_FIGURE_COMMIT, NULL },
    { "3_fetch_s", BENCH_FIGURE_FETCH, NULL },
    { "pushed_bytes_a_worker", STEP_FIGURE_PUSHED_BYTES, NULL },
    { "fetched_bytes_a_worker", STEP_FIGURE_FETCHED_BYTES, NULL },
    { "host_bytes_a_worker", STEP_FIGURE_HOST_BYTES, NULL },
    { .name = NULL },
};

static int report_step(void *bench)
{
    struct step_bench *s = bench;
    struct bench *b = bench;
    if (b->model.batch > 0)
        BENCH_PARTS(b, { "added_pushed_bytes_a_worker",
                         bench_median(b, BENCH_REFERENCE, STEP_FIGURE_PUSHED_BYTES) });
    if (b->ctl->bench.backend != NULL) report_shards(b);
    if (bench_is_on_card(b->ctl)) {
        double bytes;
        if (!read_card_free(s, &bytes)) return 1;
        bench_add_count(b, "card_taken_bytes", (uint64_t)(s->card_bytes - bytes));
    }
    if (!s->plan.is_traced) return -1;
    BENCH_PARTS(b, { "push_within_backward", bench_median(b, BENCH_SUBJECT, STEP_FIGURE_OVERLAP) });
    if (s->plan.read == STEP_READ_UNITS)
        BENCH_PARTS(
            b, { "fetch_within_use_of_others", bench_median(b, BENCH_SUBJECT, STEP_FIGURE_AHEAD) });
    return write_timeline(&s->plan);
}

const struct bench_row bench_step = {
    .name = "step",
    .unit = "s",
    .reference_name = "memcpy of every byte pushed and fetched",
    .less_is_better = true,
    .in_cluster = true,
    .bytes = sizeof(struct step_bench),
    .params_told = "params tensors workers shards threads wire path",
    .columns = step_columns,
    .shards = 2,
    .workers = 2,
    .tensors = STEP_TENSORS_DEFAULT,
    .params = PARAMS_DEFAULT,
    .wire = CAIRN_BF16,
    .prepare = prepare_step,
    .open = open_step,
    .work = bench_step_work,
    .begin = begin_step,
    .run = run_step,
    .reference = run_other,
    .report = report_step,
};
