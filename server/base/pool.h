/* Threads that do a daemon's file work, and a shard's arithmetic, so that the loop never waits for either.
 *
 * A task is a number of items, run in any order by any of the pool's threads; when the last has
 * run, `done` is called on the loop's thread, and the task is its owner's again. Tasks begin in the
 * order of submission: with one thread, one after the other. The queue is a list through the tasks
 * themselves: it takes no memory, and is bounded by the tasks that their owners have.
 *
 * The threads block all signals but SIGBUS. */
#ifndef CAIRN_BASE_POOL_H
#define CAIRN_BASE_POOL_H

#include <stdbool.h>
#include <stdint.h>
#include <uv.h>

#include "proto/base/sentence.h"

#define CAIRN_POOL_THREADS_MAX 64

struct cairn_pool;

/* Embedded in what the task works on. */
struct cairn_task {
    /* the owner's, constant while the task is with the pool */
    void (*run)(struct cairn_task *task, uint32_t item, uint32_t thread); /* < thread count */
    void (*done)(struct cairn_task *task);                                /* loop thread */
    uint32_t item_count; /* 0: done follows at once */
    /* Quicker done than told to a thread: run within submit, as thread 0. Not for what may meet a SIGBUS. */
    bool is_small;
    /* private to the pool */
    struct cairn_task *next;
    uint32_t items_taken, items_ended;
};

/* Starts the threads. `name` (at most 15 bytes) is what they are called in ps; `begin` (may be NULL) is the
 * first that each of them does. CAIRN_ERR_NO_MEMORY. */
CAIRN_MUST_CHECK cairn_status cairn_pool_open(uv_loop_t *loop, const char *name,
                                              uint32_t thread_count, void (*begin)(void),
                                              struct cairn_pool **pool_out,
                                              struct cairn_sentence *why);
/* Lets the items that run end, joins the threads, and closes its handle; on_closed (may be NULL)
 * follows from the loop. No task's `done` is called any more: tasks are their owners' at once. */
void cairn_pool_close(struct cairn_pool *pool, void (*on_closed)(void *context), void *context);
/* The same for a pool of one thread whose item may hang: it is waited for so long at most. False: it still
 * runs, on memory that is its own from here on, for ever. */
bool cairn_pool_close_within(struct cairn_pool *pool, uint32_t most_ms,
                             void (*on_closed)(void *context), void *context);

/* Gives a task to the threads; loop thread. */
void cairn_pool_submit(struct cairn_pool *pool, struct cairn_task *task);
uint32_t cairn_pool_thread_count(const struct cairn_pool *pool);

#endif
