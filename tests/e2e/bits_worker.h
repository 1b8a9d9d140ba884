/* The two workers of the bits job, through libcairn. */
#ifndef CAIRN_E2E_BITS_WORKER_H
#define CAIRN_E2E_BITS_WORKER_H

#include <pthread.h>

#include "tests/e2e/bits_job.h"
#include "tests/support/mem.h"

#define BITS_WAIT_MS 30000 /* for any one call */

struct bits_worker {
    const char *endpoint;
    struct fabric_hub *hub; /* NULL: ucx */
    uint32_t rank, window;  /* window 0: 8 */
    uint64_t until_step;
    uint64_t shuffle; /* not 0: a seed; tensors in another order each time, with delays */
    double offload_fraction;
    bool allocated;  /* pushes out of memory of cairn_alloc, not of malloc */
    uint64_t die_at; /* not 0: killed by itself in the middle of this step's round */
    void (*on_step)(void *context, uint64_t step); /* NULL: nobody asks */
    void *context;
    /* results */
    uint32_t skipped, void_rounds;
    char error[512]; /* "": it went well */
};

/* Trains to until_step; false with `error` set. Any thread; Check is not called. */
bool bits_worker_run(struct bits_worker *worker);

/* Both as threads of this process. */
struct bits_run {
    struct bits_worker worker[BITS_WORKERS];
    pthread_t thread[BITS_WORKERS];
    pthread_mutex_t lock;
    pthread_cond_t moved;
    uint64_t step; /* the newest that one of them saw */
    uint32_t worker_count, ended;
};
/* Starts the first `worker_count` workers like `pattern`, with ranks 0, 1. */
void bits_run_start(struct bits_run *run, const struct bits_worker *pattern, uint32_t worker_count);
/* Until a step as new was applied; fails the test if the workers end before. */
void bits_run_await(struct bits_run *run, uint64_t step);
/* Until both have ended; fails the test if one of them did badly. */
void bits_run_join(struct bits_run *run);

#endif
