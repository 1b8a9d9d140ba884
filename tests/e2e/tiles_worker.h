/* The ranks of the tiles job, through libcairn, as threads of this process. */
#ifndef CAIRN_E2E_TILES_WORKER_H
#define CAIRN_E2E_TILES_WORKER_H

#include <pthread.h>

#include "tests/e2e/tiles_job.h"
#include "tests/support/mem.h"

#define TILES_WAIT_MS 30000 /* for any one call */

struct tiles_worker {
    const char *endpoint;
    struct fabric_hub *hub; /* NULL: ucx */
    struct tiles_mesh mesh;
    uint32_t rank;
    uint64_t until_step;
    bool rank_0_puts;    /* everything; else each rank puts what it holds */
    uint64_t restart_at; /* not 0: in mid-round of this step the rank leaves, and a new one comes */
    bool by_signal;      /* it does so by SIGKILL: its process ends */
    /* results */
    uint32_t void_rounds;
    char error[1024]; /* "": it went well */
    /* private */
    struct tiles_run *run; /* NULL: of no run */
};
/* Until it has ended, well or with `error` set. Any thread; Check is not called. */
void tiles_worker_run(struct tiles_worker *worker);

/* All ranks of a mesh. */
struct tiles_run {
    struct tiles_worker worker[TILES_RANKS_MAX];
    pthread_t thread[TILES_RANKS_MAX];
    pthread_mutex_t lock;
    pthread_cond_t moved;
    uint64_t step; /* the newest that one of them saw */
    uint32_t worker_count, ended;
};
/* Starts the ranks like `pattern`; the last one has its restart_at. */
void tiles_run_start(struct tiles_run *run, const struct tiles_worker *pattern);
/* Until a step as new was applied; fails the test if a rank ends before. */
void tiles_run_await(struct tiles_run *run, uint64_t step);
/* Until all have ended; fails the test if one of them did badly. */
void tiles_run_join(struct tiles_run *run);

/* A session that ends with the caller's cairn_close; fails the test. hub as in struct tiles_worker. */
cairn *tiles_session(const char *endpoint, struct fabric_hub *hub);
/* What rank `rank` of the mesh declares, ascending by tensor; replicated tensors are not in it. Returns how
 * many. */
size_t tiles_list(struct tiles_mesh mesh, uint32_t rank, struct cairn_tile out[TILES_TENSORS]);

#endif
