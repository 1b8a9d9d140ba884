#ifndef CAIRN_SHARD_STATE_H
#define CAIRN_SHARD_STATE_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/queue.h>

#include "proto/base/text.h"
#include "proto/fabric/fabric.h"
#include "proto/geometry/layout.h"
#include "proto/spec/spec.h"
#include "proto/wire/wire.h"
#include "server/base/daemon.h"
#include "server/shard/base.h"
#include "server/shard/collect.h"
#include "server/shard/memory.h"

/* ==== pace ==== */

/* How fast a snapshot is written. While nobody trains, it is written as fast as the disk takes it. During
 * training it is written so that steps take no longer than before the snapshot began, but never slower than
 * the snapshot's deadline requires. */

/* Bytes a second. */
#define CAIRN_PACE_LEAST ((uint64_t)64 << 20)  /* even if the steps allow less */
#define CAIRN_PACE_FIRST ((uint64_t)256 << 20) /* until the first step has ended */
#define CAIRN_PACE_FREE  UINT64_MAX

struct pace {
    /* used by the loop thread alone */
    uint64_t before_us; /* the duration of a step before the snapshot; 0: not known */
    /* read by the writer */
    uint64_t total_bytes, deadline_us;
    _Atomic uint64_t rate; /* the rate that steps allow */
    /* when the last step ended, by a monotonic clock; 0: none has ended */
    _Atomic uint64_t step_us;
    atomic_bool hurry; /* a caller waits for the end of the snapshot */
    /* used by the writer alone */
    uint64_t counted_us; /* the time up to which the allowance was counted */
    uint64_t allowance;  /* bytes */
    /* set by the writer, read by all */
    _Atomic uint64_t done_bytes;
};

/* Call on the loop thread, before the writer begins. total_bytes are to be written by deadline_us.
 * before_us: how long a step took; last_us: when the last step ended; 0: no step has ended. */
void pace_init(struct pace *pace, uint64_t total_bytes, uint64_t before_us, uint64_t last_us,
               uint64_t deadline_us);
/* Loop thread: notes the end of a step, which took took_us. */
void pace_step(struct pace *pace, uint64_t took_us, uint64_t now_us);
/* The bytes a second that may be written now; any thread. */
uint64_t pace_rate(const struct pace *pace, uint64_t now_us);

/* True if the deadline requires a higher rate than the steps allow, or a caller waits. Then the writing
 * must no longer give way to training. Any thread. */
bool pace_presses(const struct pace *pace, uint64_t now_us);
/* True if nobody trains, a caller waits for the end, or the deadline has passed. Any thread. */
bool pace_is_free(const struct pace *pace, uint64_t now_us);
/* Called by the writer: returns how long it must rest before it writes `bytes` more. After the rest the
 * writer asks again. 0: the writer may write now, and the bytes are counted. */
uint64_t pace_rest_us(struct pace *pace, uint64_t bytes, uint64_t now_us);

/* ==== staging ==== */

/* The state at one version, kept readable while updates continue. The state is read in place, and an update
 * saves the old state before overwriting it.
 *
 *   a piece (a plane of a chunk)   PENDING ─► SAVING ─► SAVED      by a pass over the state, any thread
 *                                        └──► TAKEN ◄──┘           by the reader, one thread
 *
 * No pass ever waits for a reader that copies: when the reader has copied a piece, it checks that the piece
 * is still PENDING; if not, the copy may be torn, and the reader takes the saved piece. So a reader of the
 * lowest priority delays nobody. If the room for saved pieces is small, a pass waits until the reader has
 * freed some room, and the waiting time is counted. If the reader frees no room for long (the storage
 * hangs), the staging is given up, because training has priority. */

/* The host memory that "small" staging takes, unless a chunk's planes take more. */
#define CAIRN_STAGING_SMALL_BYTES ((uint64_t)64 << 20)

struct staging {
    struct task touch;       /* makes the staging's pages, so that no update has to */
    struct shard_job *job;   /* borrowed; its planes must not move until the staging is closed */
    struct shard_view *view; /* counted */
    void (*touched)(void *context); /* from staging_touch */
    void *context;
    uint64_t press_ns;       /* uv_hrtime: from then on the pages are made at full speed */
    _Atomic uint8_t *pieces; /* owned: [chunk_count][CAIRN_PLANE_COUNT] enum */
    /* owned: [chunk_count][CAIRN_PLANE_COUNT] where each piece was saved */
    uint8_t **saved;
    struct arena room; /* owned */
    bool again;        /* small: room is reused, in slots of slot_bytes */
    size_t slot_bytes;
    uint64_t wait_us_max;       /* CAIRN_STAGING_WAIT_US */
    atomic_bool reading;        /* the reader reads the planes, or is about to */
    atomic_bool canceled;       /* nobody reads the staging any longer */
    atomic_bool stalled;        /* canceled because a pass had waited for wait_us_max */
    atomic_bool failed;         /* a copy failed */
    _Atomic uint32_t waiting;   /* passes that wait for room */
    _Atomic uint64_t waited_us; /* the total time that passes have waited */
    _Atomic uint64_t saved_bytes;
    _Atomic uint64_t used; /* bytes of the room, ever */
    /* for a room that is reused */
    pthread_mutex_t lock; /* guards all below */
    pthread_cond_t freed;
    uint8_t *spare; /* free slots: each begins with a pointer to the next */
};

/* The longest time that a pass waits for room. After that nothing more is saved, and the reader is told. */
#define CAIRN_STAGING_WAIT_US ((uint64_t)30000000)

/* The bytes of the staging for a job's part. */
uint64_t staging_bytes(const struct shard_job *job, cairn_snapshot_staging room);

/* ---- loop thread ---- */
/* Opens a staging of the present state. No pass over the state may be under way. If the room is smaller
 * than the state, the room is reused. On CAIRN_ERR_NO_MEMORY close `staging` all the same. */
CAIRN_MUST_CHECK cairn_status staging_open(struct staging *staging, struct shard_job *job,
                                           uint64_t bytes, struct sentence *why);
/* Begins to make the pages. `touched` is called on the loop when that is done; do not close the staging
 * before then. */
void staging_touch(struct staging *staging, void (*touched)(void *context), void *context);
/* Call when nobody reads the staging any longer: no pass saves anything more, or waits. */
void staging_cancel(struct staging *staging);
/* Checks whether the staging was canceled: then returns, with `why`, CAIRN_ERR_CANCELED, or
 * CAIRN_ERR_TIMEOUT if a pass had waited for too long. Any thread. */
CAIRN_MUST_CHECK cairn_status staging_check(const struct staging *staging, struct sentence *why);
/* No pass that saves into the staging may be under way. A staging that is all 0 may be closed, too. Loop
 * thread. */
void staging_close(struct staging *staging);

/* ---- a pass; any thread ---- */
/* Call before adding works that overwrite any part of the chunk. Saves the chunk's pending pieces, because
 * afterwards their version can no longer be read in place. Runs the works in the list. */
void staging_save(struct staging *staging, struct works *works, uint64_t chunk);

/* ---- the one thread that reads ---- */
/* Copies elements of a chunk's plane, as they were at that version, to host memory: `elems` elements, from
 * `first` on (counted in the chunk). `ends`: no later elements of the piece will be requested. `works` is
 * the reader's list, in the chunk's home. Returns as works_run, or as staging_check. */
CAIRN_MUST_CHECK cairn_status staging_read(struct staging *staging, struct works *works,
                                           uint64_t chunk, enum plane plane, uint64_t first,
                                           uint64_t elems, bool ends, void *to,
                                           struct sentence *why);

/* If there is room for everything: saves as much as possible before the next pass begins, so that the pass
 * has less to save. Stops when the pace presses. Do not call it when no pass is near, because reading a
 * piece in place saves one copy. */
void staging_save_ahead(struct staging *staging, const struct pace *pace);

/* ==== load ==== */

/* Loaders fill the state of a job that is LOADING: from a snapshot (restore.c), from weights and
 * initializers (put.c), or from the generation that serves (restore.c). Members then put the rest, which
 * put.c takes. */

struct loader_part {
    struct work_run run;   /* first */
    struct loader *loader; /* borrowed: the loader that contains this part */
};

/* A loader at work; the first field of the struct that restore.c or put.c allocates. */
struct loader {
    struct task task;                      /* on the files thread */
    struct loader_part device, host;       /* the work on the planes, a part for each home */
    uint32_t parts_left;                   /* under way */
    struct shard_job *job;                 /* borrowed; busy until loader_end */
    void (*filled)(struct loader *loader); /* from loader_fill */
    /* after the load the job is INITIALIZING, and not sealed yet */
    bool puts_follow;
    atomic_bool canceled;
    cairn_status status; /* the result */
    struct sentence why;
    /* Frees what else the struct owns; NULL: nothing. */
    void (*release)(struct loader *loader);
};

/* The load of a job. */
struct load {
    char *path; /* owned: the snapshot; "": none */
    bool joins; /* the part owns nothing yet: nothing is loaded, and the part serves at once */
    /* the SnapshotPart that reports digests of the loaded state; 0: nobody wants them */
    uint64_t digest;
    struct request asked;   /* the JobCreate, or a JobSeal: answered when the state is complete */
    struct loader *at_work; /* owned */
    /* A snapshot is read while the pages of the state are made. Both the reading and the making must
     * end. */
    bool begun, pages_there, loaded;
    struct made_pages made;
};

/* Starts the loader for the job. All fields that the caller has not set must be zero. */
void loader_begin(struct loader *loader, struct shard_job *job);
/* Runs `describe` for each chunk, in the chunk's home; loader_of returns the loader to which the `run`
 * belongs. */
void loader_fill(struct loader *loader,
                 bool (*describe)(struct work_run *run, uint32_t chunk, uint32_t stage,
                                  struct works *works),
                 void (*done)(struct loader *loader));
struct loader *loader_of(struct work_run *run);
/* Called when the loader has ended, with loader->status: frees the loader. shard->up->loaded then continues
 * with the job, and may free the job. */
void loader_end(struct loader *loader);

/* Fills a chunk of the parameters with the tensor's initializer. Any thread. */
void load_init_chunk(struct works *works, const struct shard_job *job, uint64_t chunk);

/* ==== put ==== */

/* Chunks that members put, into the initial state or for a write. Loop thread. */

struct write;

enum { CAIRN_SHARD_PUTS_MAX = 16 }; /* puts of each job that are being received */

/* A chunk that is being received. */
struct chunk_put {
    struct shard_job *job; /* borrowed; NULL: free */
    struct chunk_header header;
    struct chunk_place place;
    struct chunk_piece piece;
    uint64_t chunk; /* in the map */
};

/* Bits for a chunk. HAS: the plane was put. STALE: moments that are in the state but do not count, because
 * the member that put them did not finish; the seal makes these moments 0. */
#define CAIRN_PUT_HAS(plane)   (1u << (plane))
#define CAIRN_PUT_STALE(plane) (CAIRN_PUT_HAS(plane) << CAIRN_PUT_STALE_SHIFT)
#define CAIRN_PUT_STALE_SHIFT  3
_Static_assert(CAIRN_PUT_STALE(CAIRN_PLANE_EXP_AVG_SQ) <= UINT8_MAX, "they are bytes");

/* The puts of a job. */
struct job_puts {
    struct chunk_put list[CAIRN_SHARD_PUTS_MAX]; /* `max` of them are used */
    uint32_t max;
    size_t bytes;        /* the memory of each put: a chunk and a box */
    struct arena arena;  /* [max][bytes], while the job is not SERVING or a write is open */
    uint8_t *have;       /* owned: [map.chunk_count] CAIRN_PUT_... for the initial state */
    uint64_t moments_of; /* the member whose moments count; 0: none */
    struct write *write; /* owned; NULL: no write is open */
};

void put_on_message(struct shard_member *member, const struct chunk_header *header,
                    struct fabric_message *message);
/* Judges a JobSeal, and counts the moments that the member has put. CAIRN_ERR_NOT_READY: `why` names the
 * tensors that nobody has put; CAIRN_ERR_EXISTS: the job serves already, with other moments. */
CAIRN_MUST_CHECK cairn_status put_judge_seal(struct shard_job *job, uint64_t moments_of,
                                             struct sentence *why);
/* Called when the job serves: gives back the buffers of puts. */
void job_puts_end(struct shard_job *job);

/* ==== write ==== */

/* Writes at a step boundary. Loop thread, except where noted. */

/* Notes that the round is a write of that member. Drops data left by another write. */
void write_open(struct shard_job *job, uint64_t round, uint64_t member);
void write_close(struct shard_job *job);

/* Any thread: true if a put for the chunk was kept. */
bool write_has(const struct shard_job *job, uint64_t chunk);
/* True if parameters were kept, so that the data of readers changes. */
bool write_has_param(const struct shard_job *job);
/* Any thread: copies the data kept for the chunk into the state. Returns the chunk's new parameters; NULL:
 * they did not change. */
const void *write_apply(struct works *works, const struct shard_job *job, uint64_t chunk,
                        const struct chunk_place *place);
/* Called when the outcome of that round was reported: voids a write of another round. */
void write_resolved(struct shard_job *job, uint64_t round);

/* ==== pin ==== */

/* Snapshots and digests of a version. Loop thread, except where noted. */

struct report;

enum { CAIRN_SHARD_PINS_MAX = 4 }; /* the most snapshots and digests of each job at a time */

/* The pins of a job, and their reports. */
struct pins {
    LIST_HEAD(, pin) list;       /* owned */
    LIST_HEAD(, report) reports; /* owned: being sent */
    /* Borrowed: [saving_count] stagings into which the current UPDATE saves the state that it overwrites;
     * constant during it. */
    struct staging *saving[CAIRN_SHARD_PINS_MAX];
    uint32_t saving_count;
    atomic_bool updating;    /* an UPDATE's pass is under way and needs the memory's bandwidth */
    _Atomic uint64_t passes; /* the number of UPDATE passes that have begun so far */
    /* the duration of a step while there are no pins, smoothed; 0: not known */
    uint64_t step_us;
    uint64_t last_us; /* when the last UPDATE was published; 0: none was */
};

/* Gives back the staging of the pins that have not begun: the planes are about to move. */
void pins_unprepare(struct shard_job *job);
/* pins_updating: call when the pass of an UPDATE is about to begin. pin_updated: call when the UPDATE is
 * published; the pins that waited then begin. */
void pins_updating(struct shard_job *job);
void pin_updated(struct shard_job *job);
/* Does staging_save for all pins. Any thread, in the pass of an UPDATE. */
void pins_save(const struct shard_job *job, struct works *works, uint64_t chunk);
/* Lists the progress of the pins of all jobs. */
#define CAIRN_PINS_TOLD_MAX 256 /* in one heartbeat */
struct pins_list {
    size_t count;
    Cairn__PinTold told[CAIRN_PINS_TOLD_MAX];
    Cairn__PinTold *pointers[CAIRN_PINS_TOLD_MAX];
};
void pins_list(const struct shard_daemon *shard, struct pins_list *out);
/* Call when somebody waits for the end of the pins: they are then written at full speed. */
void pins_hurry(const struct shard_job *job);
/* True if no pin reads the planes any longer. A pin that was given up may still be blocked in storage. */
bool pins_rest(const struct shard_job *job);
/* Call when the job leaves, or nobody waits for the pins: makes work on the snapshots thread end soon. */
void pin_cancel(struct shard_job *job);

/* ==== origin ==== */

/* Initial state that the shards make themselves. Loop thread. */

/* LOADING: makes the state that the shards can make; members put the rest. CAIRN_ERR_NO_MEMORY: nothing was
 * begun. */
CAIRN_MUST_CHECK cairn_status origin_begin(struct shard_job *job, struct sentence *why);

/* ==== restore ==== */

/* Loading a snapshot. Loop thread. */

/* LOADING: reads the state from job->load.path; if job->load.digest is not 0, then reports the digests of
 * the state as that SnapshotPart. CAIRN_ERR_NO_MEMORY: nothing was begun. */
CAIRN_MUST_CHECK cairn_status restore_begin(struct shard_job *job, struct sentence *why);

#endif
