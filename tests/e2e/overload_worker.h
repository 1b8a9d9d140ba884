/* What the processes of test_overload.c do: children of the test, each with a session of its own. */
#ifndef CAIRN_E2E_OVERLOAD_WORKER_H
#define CAIRN_E2E_OVERLOAD_WORKER_H

#include <sys/types.h>

#include "tests/support/cluster.h"

enum {
    OVERLOAD_TENSORS = 16,
    OVERLOAD_ROWS =
        256, /* of 1024 columns, of each tensor: 4 Mi elements in all, fp32 on the wire */
    OVERLOAD_CHUNK_LEAVES = 16,
    OVERLOAD_CHUNK_BYTES = OVERLOAD_CHUNK_LEAVES * 4096 * 4,
    OVERLOAD_WINDOW = 8,
    OVERLOAD_ELEMS = OVERLOAD_TENSORS * OVERLOAD_ROWS * 1024
};

struct overload_plan {
    const struct cluster *cluster;
    const char *fabric; /* of the session */
    const char *job;
    uint32_t rank, world;
    uint32_t tensors;       /* of the job, up to OVERLOAD_TENSORS; OVERLOAD_TENSORS of who reads */
    uint32_t micros;        /* pushed in each round */
    int steps;              /* at each order */
    int orders_fd, said_fd; /* a byte each way: 'g' go on, 'e' end; what it did */
};

/* Pushes out of memory of cairn_alloc if its rank is even, else out of the heap; says 'r' when it is ready,
 * 's' after the steps that each order asks for, until it is to end. */
int overload_train(const struct overload_plan *plan);
/* Has many fetches of all tensors under way, always; says 'f' once, and waits for no order. At the order
 * that comes it lets them end, and ends. */
int overload_read(const struct overload_plan *plan);
/* Makes one step, maps every tensor, says 'm'; at the order that comes it reads them, gives them back, and
 * ends. */
int overload_hold(const struct overload_plan *plan);
/* One step, a fetch, a map; ends with its session, or (rank odd) by _exit. */
int overload_visit(const struct overload_plan *plan);

/* A process that runs it, with the other ends of the plan's pipes; killed with the test. */
struct overload_child {
    pid_t pid;
    int orders_fd, said_fd;
};
void overload_start(struct overload_child *child, const struct overload_plan *plan,
                    int (*run)(const struct overload_plan *plan));
void overload_order(const struct overload_child *child);
/* False: it has not said anything within timeout_ms; else it said `word`. */
bool overload_said(const struct overload_child *child, char word, int timeout_ms);
/* It is to end, with status 0. */
void overload_end(struct overload_child *child);

#endif
