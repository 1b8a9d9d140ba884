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
    /* `thread` is below the thread count, or that: the loop's, within submit. */
    void (*run)(struct cairn_task *task, uint32_t item, uint32_t thread);
    void (*done)(struct cairn_task *task); /* loop thread */
    uint32_t item_count;                   /* 0: done follows at once */
    /* Quicker done than told to a thread: run within submit. Not for what may meet a SIGBUS. */
    bool is_small;
    bool ends_items; /* `run` itself ends its item, by cairn_pool_end; not of what is small */
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

/* An item of a task. */
struct cairn_pool_item {
    struct cairn_task *task;
    uint32_t item;
};

/* Within `run`, on a thread of the pool: takes what is next, of whichever tasks, to be done together with
 * what is at hand. Returns how many there were, at most `max`; cairn_pool_end ends them. Only in a pool where
 * every task is done in one way. */
uint32_t cairn_pool_take(struct cairn_pool *pool, struct cairn_pool_item *items_out, uint32_t max);
/* The same, but nothing while a thread is idle, which takes what is next itself. */
uint32_t cairn_pool_take_ahead(struct cairn_pool *pool, struct cairn_pool_item *items_out,
                               uint32_t max);
void cairn_pool_end(struct cairn_pool *pool, const struct cairn_pool_item *items, uint32_t count);

#endif
