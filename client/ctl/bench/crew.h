/* The workers of a bench of rounds: processes of their own, each with a session, which do what the bench
 * says, all at a time, and report how long it took.
 *
 *   bench (cairn)   ── order ──►  worker 0, worker 1, ...    pipes; an order is a word and a number
 *                   ◄── report ─
 *
 * A worker that fails has said why; the bench then ends the others. Workers die with the bench. */
#ifndef CAIRN_CTL_BENCH_CREW_H
#define CAIRN_CTL_BENCH_CREW_H

#include <sys/types.h>

#include "client/ctl/local/local.h"

#define CAIRN_BENCH_WORKERS_MAX 64
#define CAIRN_BENCH_FIGURES     8

struct cairn_bench_order {
    uint32_t word; /* the bench's; never 0 */
    uint32_t count;
};

struct cairn_bench_report {
    double figures[CAIRN_BENCH_FIGURES]; /* the bench's; figures[0] is above 0 */
};

/* A worker's end, in its process. */
struct cairn_bench_worker {
    uint32_t rank, world;
    int orders_fd, reports_fd;
    const void *plan; /* the bench's */
};
/* The next order; false: there is none any more. */
bool cairn_bench_worker_next(const struct cairn_bench_worker *worker,
                             struct cairn_bench_order *order_out);
/* Order 0, the first, is "ready": answered so by every worker when it is. */
bool cairn_bench_worker_report(const struct cairn_bench_worker *worker,
                               const struct cairn_bench_report *report);

/* A signal from outside, or a daemon that ended, which is said: the bench is over. Each is told of once. */
bool cairn_bench_is_interrupted(struct local *local);

struct cairn_bench_crew {
    struct local *local; /* borrowed */
    uint32_t count;
    pid_t pids[CAIRN_BENCH_WORKERS_MAX];
    int orders_fds[CAIRN_BENCH_WORKERS_MAX], reports_fds[CAIRN_BENCH_WORKERS_MAX];
};

/* Starts `count` workers, each of which runs `run` to its exit status, and waits for the first report of
 * each. False, and said: one of them failed; stop is still needed. */
bool cairn_bench_crew_start(struct cairn_bench_crew *crew, struct local *local, uint32_t count,
                            int (*run)(const struct cairn_bench_worker *worker), const void *plan);
/* All do it at a time. reports_out [count]. False, and said: one failed, a daemon ended or a signal came. */
bool cairn_bench_crew_do(struct cairn_bench_crew *crew, struct cairn_bench_order order,
                         struct cairn_bench_report *reports_out);
/* They end: by themselves, or killed after a second. */
void cairn_bench_crew_stop(struct cairn_bench_crew *crew);

#endif
