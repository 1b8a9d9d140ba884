/* Writes what happened when in one step, as a trace that browsers draw (chrome://tracing,
 * ui.perfetto.dev): JSON, one event ("ph": "X") a span, a process a worker or shard. */
#ifndef CAIRN_CTL_BENCH_TIMELINE_H
#define CAIRN_CTL_BENCH_TIMELINE_H

#include "client/ctl/bench/times.h"

enum cairn_bench_span_kind { /* the row a span is drawn in */
                             CAIRN_BENCH_SPAN_NONE = 0,
                             CAIRN_BENCH_SPAN_BACKWARD,
                             CAIRN_BENCH_SPAN_CAST,
                             CAIRN_BENCH_SPAN_PUSH, /* from the call to the last acknowledgement */
                             CAIRN_BENCH_SPAN_COMMIT,
                             CAIRN_BENCH_SPAN_FETCH,
                             CAIRN_BENCH_SPAN_USE /* of a unit that is read as stage 3 does */
};

/* Seconds of CLOCK_MONOTONIC. */
struct cairn_bench_span {
    double begin, end;
    uint32_t kind, tensor;
};

/* The steps of some workers: spans [workers][spans_each], kind NONE: not used; rounds [workers], which the
 * steps are of. */
struct cairn_bench_trace {
    const struct cairn_bench_span *spans;
    const uint64_t *rounds;
    uint32_t workers, spans_each;
};

/* Writes the file; of the shards, too, if they are the bench's own. False, and said. */
bool cairn_bench_timeline_write(const struct cairn_bench_trace *trace, const struct local *local,
                                const char *path);
/* How much of the time in which a push was under way a backward was, too, of all workers; 0 to 1. */
double cairn_bench_timeline_overlap(const struct cairn_bench_trace *trace);
/* How much of the time in which a tensor was fetched another one was used, of all workers; 0 to 1. */
double cairn_bench_timeline_ahead(const struct cairn_bench_trace *trace);

#endif
