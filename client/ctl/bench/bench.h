/* cairn bench: what this machine, or this cluster, makes of Cairn's work, beside a reference that is
 * measured in the same run. One bench a file; it has a row among the subcommands (client/ctl/main.c) that
 * says which options it takes, and its function below.
 *
 * A bench makes its memory, hands two functions to cairn_bench_alternate, which calls them by turns, and
 * prints the result. Speeds of one machine differ by half from one minute to the next; ratios of runs that
 * alternate do not, so it is the ratio that counts.
 *
 * In JSON: bench, value, unit, reference, reference_name, ratio: the medians; value_min, value_max and
 * so on; runs; params: what was done, as numbers and words; parts: other figures of the same runs, by
 * name; machine. One thread prints; a bench may have threads of its own. */
#ifndef CAIRN_CTL_BENCH_BENCH_H
#define CAIRN_CTL_BENCH_BENCH_H

#include <stdint.h>

#include "client/ctl/ctl.h"

#define CAIRN_BENCH_RUNS_MIN 5   /* of subject and reference each, however long they take */
#define CAIRN_BENCH_RUNS_MAX 501 /* an odd number has a middle */

struct cairn_bench_spread {
    double median, min, max;
};

struct cairn_bench_result {
    /* filled in by the bench; borrowed */
    const char *bench;          /* "update" */
    const char *unit;           /* "GB/s", "s": of value and reference */
    const char *reference_name; /* "in-place update of 6 streams" */
    bool less_is_better;        /* of the unit: a time */
    /* owned: freed by cairn_bench_print */
    json_t *params; /* an object, or NULL */
    json_t *parts;  /* an object of numbers "update_GB/s": ..., or NULL */
    /* filled in by cairn_bench_alternate or by the bench. The ratio is of runs that followed each other, and
     * above 1 where the subject is better than the reference, whatever the unit. */
    struct cairn_bench_spread value, reference, ratio;
    uint32_t runs;
};

/* One run: its figure, in the result's unit, above 0. Anything else: it failed and has said why. */
typedef double (*cairn_bench_fn)(void *context);

/* Calls subject and reference by turns, once each unmeasured, then for `seconds` (0: 5) but at least
 * CAIRN_BENCH_RUNS_MIN times. -1: go on; else the exit status: a run failed. */
int cairn_bench_alternate(struct cairn_bench_result *result, double seconds, cairn_bench_fn subject,
                          cairn_bench_fn reference, void *context);
/* Median, least and greatest of values[count], count >= 1; puts them in order. */
struct cairn_bench_spread cairn_bench_spread_of(double *values, uint32_t count);
/* Prints it as ctl asks, releases what it owns, and returns 0. */
int cairn_bench_print(struct cairn_bench_result *result, const struct ctl *ctl);

/* Seconds of a clock that does not jump. */
double cairn_bench_now(void);
/* Cores that this process may use, and the memory that is available now. */
uint32_t cairn_bench_core_count(void);
uint64_t cairn_bench_memory_bytes(void);
/* cpu, cores, memory_bytes, kernel, isa (of the kernels in gpu/host), l1d_bytes and _ways, l2_bytes,
 * l3_bytes (of a core). A new object. */
json_t *cairn_bench_machine(void);

/* ---- the benches; each returns the exit status ---- */
int cairn_bench_update(struct ctl *ctl);
int cairn_bench_layout(struct ctl *ctl);
int cairn_bench_latency(struct ctl *ctl);
int cairn_bench_tensors(struct ctl *ctl);
int cairn_bench_open(struct ctl *ctl);
int cairn_bench_fabric(struct ctl *ctl);
int cairn_bench_step(struct ctl *ctl);
int cairn_bench_map(struct ctl *ctl);
int cairn_bench_reshard(struct ctl *ctl);
int cairn_bench_snapshot(struct ctl *ctl);

#endif
