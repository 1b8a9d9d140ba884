/* The state at one version, while updates go on: it is read where it lies, and what an update is about to
 * overwrite is saved first.
 *
 *   a piece (a plane of a chunk)   PENDING ─► SAVING ─► SAVED      by a pass over the state, any thread
 *                                        └──► TAKEN ◄──┘           by who reads it, one thread
 *
 * No pass ever waits for a reader that copies: the reader looks, when it has copied a piece, whether that is
 * PENDING still; else what it read may be torn, and it takes what was saved. So a reader of the lowest
 * priority holds nobody up. Where the room for what is saved is small, a pass waits until the reader has
 * made some, and how long is counted; where it makes none for long (the storage hangs), the staging is given
 * up, for training comes first. */
#ifndef CAIRN_SHARD_STATE_STAGING_H
#define CAIRN_SHARD_STATE_STAGING_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

#include "proto/spec/spec.h"
#include "server/base/pool.h"
#include "server/shard/base/works.h"
#include "server/shard/memory/plane.h"
#include "server/shard/state/pace.h"

struct cairn_shard_job;
struct cairn_shard_view;

/* The host memory that "small" takes, unless a chunk's planes take more. */
#define CAIRN_STAGING_SMALL_BYTES ((uint64_t)64 << 20)

struct cairn_staging {
    struct cairn_task touch;     /* makes its pages, so that no update has to */
    struct cairn_shard_job *job; /* borrowed; its planes lie where they lie until this is closed */
    struct cairn_shard_view *view;  /* counted */
    void (*touched)(void *context); /* of cairn_staging_touch */
    void *context;
    uint64_t press_ns; /* uv_hrtime: from then on the pages are made in nobody's way no more */
    _Atomic uint8_t *pieces; /* owned: [chunk_count][CAIRN_PLANE_COUNT] enum */
    uint8_t **saved;         /* owned: the same: where it was saved */
    struct cairn_arena room; /* owned */
    bool again;              /* small: room is used again, by slots of slot_bytes */
    size_t slot_bytes;
    uint64_t wait_us_max;       /* CAIRN_STAGING_WAIT_US */
    atomic_bool reading;        /* the reader is at the planes, or about to be */
    atomic_bool canceled;       /* nobody reads it any more */
    atomic_bool stalled;        /* for a pass had waited that long */
    atomic_bool failed;         /* a copy did */
    _Atomic uint32_t waiting;   /* passes that wait for room */
    _Atomic uint64_t waited_us; /* for how long they did, added up */
    _Atomic uint64_t saved_bytes;
    _Atomic uint64_t used; /* of the room, ever */
    /* of a room that is used again */
    pthread_mutex_t lock; /* guards all below */
    pthread_cond_t freed;
    uint8_t *spare; /* slots that are free: each begins with the next one */
};

/* For so long at most a pass waits for room: then nothing is saved any more, and the reader is told. */
#define CAIRN_STAGING_WAIT_US ((uint64_t)30000000)

/* The bytes of the staging for a job's part; and the least with which it can be opened. */
uint64_t cairn_staging_bytes(const struct cairn_shard_job *job, cairn_snapshot_staging room);
uint64_t cairn_staging_least(const struct cairn_shard_job *job);

/* ---- loop thread ---- */
/* Opens a staging of the state as it is now. No pass over the state may be under way. If there is
 * less room than for all of the state, room is used again. On CAIRN_ERR_NO_MEMORY `staging` is to
 * be closed all the same. */
CAIRN_MUST_CHECK cairn_status cairn_staging_open(struct cairn_staging *staging,
                                                 struct cairn_shard_job *job, uint64_t bytes,
                                                 struct cairn_sentence *why);
/* Begins to make the pages; `touched` follows on the loop, and the staging is not closed before. */
void cairn_staging_touch(struct cairn_staging *staging, void (*touched)(void *context),
                         void *context);
/* Nobody reads it any more: no pass saves anything, or waits. */
void cairn_staging_cancel(struct cairn_staging *staging);
/* It was, and its reader looks at the planes no more, though it may hang in storage: they may move. */
bool cairn_staging_is_quiet(const struct cairn_staging *staging);
/* Whether it was: then why, and CAIRN_ERR_CANCELED, or CAIRN_ERR_TIMEOUT if a pass had waited for too long.
 * Any thread. */
CAIRN_MUST_CHECK cairn_status cairn_staging_check(const struct cairn_staging *staging,
                                                  struct cairn_sentence *why);
/* No pass that saves into it may be under way. A staging that is all 0 may be closed, too. Loop
 * thread. */
void cairn_staging_close(struct cairn_staging *staging);

/* ---- a pass; any thread ---- */
/* Before what overwrites any of the chunk is added to the works: saves what is pending of it, for its version
 * may not be read here any more. Runs what is in the list. */
void cairn_staging_save(struct cairn_staging *staging, struct cairn_works *works, uint64_t chunk);

/* ---- the one thread that reads ---- */
/* Copies elements of a chunk's plane, as they were at that version, to host memory: `elems` of
 * them, from `first` on (counted in the chunk). `ends`: they are the last that are asked for of the
 * piece. `works` is the reader's, in the chunk's home. Returns as cairn_works_run, or as
 * cairn_staging_check. */
CAIRN_MUST_CHECK cairn_status cairn_staging_read(struct cairn_staging *staging,
                                                 struct cairn_works *works, uint64_t chunk,
                                                 enum cairn_plane plane, uint64_t first,
                                                 uint64_t elems, bool ends, void *to,
                                                 struct cairn_sentence *why);

/* Where there is room for all: saves what it can before the next pass begins, which then has less to save;
 * until the pace presses. It is not to be called where no pass is near: what is read where it lies is copied
 * once less. */
void cairn_staging_save_ahead(struct cairn_staging *staging, const struct cairn_pace *pace);

#endif
