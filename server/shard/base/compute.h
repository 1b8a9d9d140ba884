/* Work on state: threads that give lists of it to a home (gpu/home.h).
 *
 *   submit(run) ─► a thread takes an item, and of what else waits, of any run, as much as the home wants
 *       in a list ─► describe: each item adds its works ─► the home does them ─► conclude ─► done (loop)
 *
 * For `host` a list is an item's, and the thread that took it does it at once: so many items are done at a
 * time as there are threads. For a device it is what came while the lists before were done; a thread begins a
 * list before it waits for the one ahead, if there is more than the other threads take. */
#ifndef CAIRN_SHARD_BASE_COMPUTE_H
#define CAIRN_SHARD_BASE_COMPUTE_H

#include <pthread.h>
#include <stdatomic.h>

#include "server/base/pool.h"
#include "server/shard/base/works.h"

struct cairn_compute_lane;
struct cairn_shard_job;

struct cairn_compute {
    struct cairn_home *home;          /* owned; NULL: this one is not there */
    struct cairn_pool *pool;          /* owned */
    struct cairn_compute_lane *lanes; /* owned: [lane_count] */
    uint32_t lane_count;       /* of each thread, the loop, the files and the snapshots thread */
    pthread_mutex_t lock;      /* guards `why` */
    struct cairn_sentence why; /* of the last list that failed */
};

/* Embedded in what the run works on. */
struct cairn_run {
    struct cairn_task task; /* first; private, but for is_small, before it is submitted */
    /* the owner's, constant while the run is under way */
    struct cairn_compute *compute;
    uint32_t item_count;
    uint32_t item_first; /* items are numbered from there */
    bool is_guarded;     /* works read memory of workers, where they lie: see failed_at */
    /* Adds the works of an item. False: these are all. True: it is asked for the next stage when they are
     * done. Any thread; of an item one. */
    bool (*describe)(struct cairn_run *run, uint32_t item, uint32_t stage,
                     struct cairn_works *works);
    /* The works of an item are done; likewise. `thread` is below cairn_compute_lanes. May be NULL. */
    void (*conclude)(struct cairn_run *run, uint32_t item, uint32_t thread);
    void (*done)(struct cairn_run *run); /* loop thread: look at the status first */
    /* the result */
    /* not OK: nothing that the works make may be used; cairn_compute_why */
    _Atomic cairn_status status;
    /* of a guarded run of one item: the address whose page is missing; NULL: none */
    const void *failed_at;
};

/* Takes the home over, also when it fails. threads: those of the pool.
 * CAIRN_ERR_NO_MEMORY, CAIRN_ERR_IO: to be closed all the same. */
CAIRN_MUST_CHECK cairn_status cairn_compute_open(struct cairn_compute *compute, uv_loop_t *loop,
                                                 struct cairn_home *home, const char *name,
                                                 uint32_t threads, struct cairn_sentence *why);
/* Ends the threads, as cairn_pool_close. False: there are none, on_closed does not follow. */
bool cairn_compute_stop(struct cairn_compute *compute, void (*on_closed)(void *context),
                        void *context);
/* Behind cairn_compute_stop, when no memory of the home is in use. */
void cairn_compute_close(struct cairn_compute *compute);

/* ---- loop thread ---- */
void cairn_compute_submit(struct cairn_run *run);
uint32_t cairn_compute_lanes(const struct cairn_compute *compute);
/* As many items as keep the home at work. */
uint32_t cairn_compute_items_wanted(const struct cairn_compute *compute);
/* Before the first job lies there: every stream takes its staging, so that none of them lacks it in a round.
 * No run is under way, or it was called before. As cairn_home_stream_begin. */
CAIRN_MUST_CHECK cairn_status cairn_compute_begin(struct cairn_compute *compute,
                                                  struct cairn_sentence *why);
/* Bytes of the device, and as many of host memory, that streams have still to take for it. */
uint64_t cairn_compute_staging_left(const struct cairn_compute *compute);
/* The list of the loop thread; what a caller added it also runs. */
struct cairn_works *cairn_compute_loop(const struct cairn_compute *compute);

/* ---- any thread ---- */
/* The list of the files thread, the same. */
struct cairn_works *cairn_compute_files(const struct cairn_compute *compute);
/* The list of the snapshots thread, the same. */
struct cairn_works *cairn_compute_snapshots(const struct cairn_compute *compute);
bool cairn_compute_is_host(const struct cairn_compute *compute);
void cairn_compute_why(struct cairn_compute *compute, struct cairn_sentence *why_out);

#endif
