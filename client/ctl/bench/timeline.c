#include "client/ctl/bench/timeline.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

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

static void add_worker(json_t *events, const struct cairn_bench_trace *trace, uint32_t worker,
                       double zero)
{
    add_process(events, (int)worker, "worker", (int)worker);
    for (uint32_t i = 0; i < trace->spans_each; i++) {
        const struct cairn_bench_span *span = &trace->spans[worker * trace->spans_each + i];
        if (span->kind == CAIRN_BENCH_SPAN_NONE) continue;
        char name[48];
        const bool whole = span->kind == CAIRN_BENCH_SPAN_COMMIT ||
                           span->kind == CAIRN_BENCH_SPAN_BACKWARD;
        snprintf(name, sizeof name, whole ? "%s" : "%s w%04u", kind_names[span->kind],
                 span->tensor);
        add_event(events, name, (int)worker, (int)span->kind, (span->begin - zero) * 1e6,
                  (span->end - zero) * 1e6);
    }
}

static void add_shard(json_t *events, const struct cairn_bench_times *times, int process,
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
    for (size_t i = 0; i < sizeof phases / sizeof *phases; i++)
        if (phases[i].begin != 0 && phases[i].end != 0)
            add_event(events, phases[i].name, process, (int)i, (double)phases[i].begin - zero_us,
                      (double)phases[i].end - zero_us);
}

static void add_shards(json_t *events, const struct cairn_bench_trace *trace,
                       const struct local *local, double zero)
{
    for (int s = 1; s < local->daemon_count; s++) {
        struct cairn_bench_times *times = NULL;
        size_t count = 0;
        const int process = (int)trace->workers + s - 1;
        if (!cairn_bench_times_read(local, s, &times, &count)) continue;
        add_process(events, process, "shard", s);
        for (size_t i = 0; i < count; i++)
            if (times[i].round == trace->rounds[0])
                add_shard(events, &times[i], process, zero * 1e6);
        free(times);
    }
}

static double first_begin(const struct cairn_bench_trace *trace)
{
    double first = 0;
    for (uint32_t i = 0; i < trace->workers * trace->spans_each; i++) {
        const struct cairn_bench_span *span = &trace->spans[i];
        if (span->kind != CAIRN_BENCH_SPAN_NONE && (first == 0 || span->begin < first))
            first = span->begin;
    }
    return first;
}

bool cairn_bench_timeline_write(const struct cairn_bench_trace *trace, const struct local *local,
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
        (void)cairn_ctl_fail(CAIRN_ERR_IO, "--timeline %s cannot be written: %s", path,
                             strerror(errno));
    return ok;
}

/* Pushes begin in order of time: so their union is a walk. */
static void add_overlap(const struct cairn_bench_span *spans, uint32_t count, double *both,
                        double *all)
{
    double begin = 0, end = 0, reached = 0;
    for (uint32_t i = 0; i < count; i++)
        if (spans[i].kind == CAIRN_BENCH_SPAN_BACKWARD) begin = spans[i].begin, end = spans[i].end;
    for (uint32_t i = 0; i < count; i++) {
        if (spans[i].kind != CAIRN_BENCH_SPAN_PUSH || spans[i].end <= reached) continue;
        const double from = spans[i].begin > reached ? spans[i].begin : reached;
        reached = spans[i].end;
        const double low = from > begin ? from : begin, high = reached < end ? reached : end;
        *all += reached - from;
        if (high > low) *both += high - low;
    }
}

double cairn_bench_timeline_overlap(const struct cairn_bench_trace *trace)
{
    double both = 0, all = 0;
    for (uint32_t w = 0; w < trace->workers; w++)
        add_overlap(trace->spans + w * trace->spans_each, trace->spans_each, &both, &all);
    return all > 0 ? both / all : 0;
}

/* How much of a fetch's time lies within uses of other tensors (uses do not overlap). */
static double used_meanwhile(const struct cairn_bench_span *fetch,
                             const struct cairn_bench_span *spans, uint32_t count)
{
    double both = 0;
    for (uint32_t i = 0; i < count; i++) {
        const struct cairn_bench_span *use = &spans[i];
        if (use->kind != CAIRN_BENCH_SPAN_USE || use->tensor == fetch->tensor) continue;
        const double low = use->begin > fetch->begin ? use->begin : fetch->begin;
        const double high = use->end < fetch->end ? use->end : fetch->end;
        if (high > low) both += high - low;
    }
    return both;
}

double cairn_bench_timeline_ahead(const struct cairn_bench_trace *trace)
{
    double both = 0, all = 0;
    for (uint32_t w = 0; w < trace->workers; w++) {
        const struct cairn_bench_span *spans = trace->spans + w * trace->spans_each;
        for (uint32_t i = 0; i < trace->spans_each; i++) {
            if (spans[i].kind != CAIRN_BENCH_SPAN_FETCH) continue;
            both += used_meanwhile(&spans[i], spans, trace->spans_each);
            all += spans[i].end - spans[i].begin;
        }
    }
    return all > 0 ? both / all : 0;
}
