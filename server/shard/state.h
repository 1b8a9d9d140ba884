#ifndef CAIRN_SHARD_STATE_H
#define CAIRN_SHARD_STATE_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/queue.h>

#include "proto/store/confine.h"
#include "proto/base/text.h"
#include "proto/fabric/fabric.h"
#include "proto/geometry/layout.h"
#include "proto/spec/spec.h"
#include "proto/wire/wire.h"
#include "server/base/daemon.h"
#include "server/shard/base.h"
#include "server/shard/collect.h"
#include "server/shard/memory.h"

/* A snapshot, or a digest, of a version while training continues:
 *
 *   pin ────────► stage ──────────────► read ──► hash ──────────► write ───────────► report
 *   the version   updates save what     in       each plane's     the files, of a    SnapshotParts
 *   is fixed      they overwrite        place    leaves           snapshot alone     (jobs.h)
 *   pin.c         staging.c             or       pin.c            pin.c, by the      restore.c
 *                                       saved                     pace of staging.c
 *
 * The loop thread pins and reports, updates stage, and one thread of low priority does the rest. */

/* ==== pace ==== */

/* The pace at which a snapshot is written. While nobody trains, the snapshot is written as fast as
 * the disk takes it. During training it is written slowly enough that steps take no longer than
 * before the snapshot began, but as fast as its deadline requires. */

/* Rates, in bytes a second. */
#define CAIRN_PACE_LEAST ((uint64_t)64 << 20)  /* the least, even if steps take longer with it */
#define CAIRN_PACE_FIRST ((uint64_t)256 << 20) /* used until the first step has ended */
#define CAIRN_PACE_FREE  UINT64_MAX

struct pace {
    /* this field is used only by the loop thread */
    uint64_t before_us; /* how long a step took before the snapshot; 0: not known */
    /* the next fields are read by the writer */
    uint64_t total_bytes, deadline_us;
    _Atomic uint64_t rate; /* the rate at which steps are not slowed down */
    /* when the last step ended, by a monotonic clock; 0: none has ended */
    _Atomic uint64_t step_us;
    atomic_bool hurry; /* a caller waits for the end of the snapshot */
    /* these two fields are used only by the writer */
    uint64_t counted_us; /* the time up to which `allowance` was counted */
    uint64_t allowance;  /* bytes that may be written now */
    /* set by the writer, read by all threads */
    _Atomic uint64_t done_bytes;
};

/* Call it on the loop thread, before the writer begins. total_bytes are to be written by the time
 * deadline_us. before_us is how long a step took before the snapshot, and last_us is the time at
 * which the last step ended; both are 0 if that is not known. */
void pace_init(struct pace *pace, uint64_t total_bytes, uint64_t before_us, uint64_t last_us,
               uint64_t deadline_us);
/* Notes the end of a step that took took_us microseconds. Loop thread. */
void pace_step(struct pace *pace, uint64_t took_us, uint64_t now_us);
/* Returns the bytes a second that may be written now. Any thread. */
uint64_t pace_rate(const struct pace *pace, uint64_t now_us);

/* True if the deadline requires a higher rate than the steps allow, or a caller waits. Then the
 * writing must no longer give way to training. Any thread. */
bool pace_presses(const struct pace *pace, uint64_t now_us);
/* True if nobody trains, a caller waits for the end, or the deadline has passed. Any thread. */
bool pace_is_free(const struct pace *pace, uint64_t now_us);
/* Returns how long the writer must rest before it writes `bytes` more bytes. After the rest the
 * writer asks again. On 0 the writer may write now, and the bytes are counted as written. Only the
 * writer calls this. */
uint64_t pace_rest_us(struct pace *pace, uint64_t bytes, uint64_t now_us);

/* ==== staging ==== */

/* A staging keeps the state of one version readable while updates continue. The state is read in
 * place, and an update saves the old state before overwriting it.
 *
 *   a piece (a plane of a chunk)   PENDING ─► SAVING ─► SAVED      by a pass over the state, any thread
 *                                        └──► TAKEN ◄──┘           by the reader, one thread
 *
 * A pass never waits while the reader copies a piece. After copying, the reader checks that the
 * piece is still PENDING. If it is not, the copy may be torn, and the reader takes the saved piece.
 * So even a reader of the lowest priority delays nobody. If the room for saved pieces is small, a
 * pass waits until the reader has freed some room, and the time is counted. If the reader frees no
 * room for a long time, because the storage hangs, the staging is given up: training has
 * priority. */

/* The host memory that a "small" staging takes, unless the planes of one chunk take more. */
#define CAIRN_STAGING_SMALL_BYTES ((uint64_t)64 << 20)

struct staging {
    struct task touch; /* makes the staging's pages, so that no update has to make them */
    /* borrowed; the job's planes must not move until the staging is closed */
    struct shard_job *job;
    struct shard_view *view;        /* counted */
    void (*touched)(void *context); /* as passed to staging_touch, with its context */
    void *context;
    uint64_t press_ns; /* the uv_hrtime from which on the pages are made at full speed */
    /* owned: [chunk_count][CAIRN_PLANE_COUNT] the state of each piece: an enum in staging.c */
    _Atomic uint8_t *pieces;
    /* owned: [chunk_count][CAIRN_PLANE_COUNT] where each piece was saved */
    uint8_t **saved;
    struct arena room; /* owned */
    bool again;        /* the staging is small: `room` is reused, in slots of slot_bytes */
    size_t slot_bytes;
    uint64_t wait_us_max;       /* CAIRN_STAGING_WAIT_US */
    atomic_bool reading;        /* the reader reads the planes, or is about to read them */
    atomic_bool canceled;       /* nobody reads the staging any longer */
    atomic_bool stalled;        /* canceled because a pass had waited for wait_us_max */
    atomic_bool failed;         /* a copy failed */
    _Atomic uint32_t waiting;   /* how many passes wait for room */
    _Atomic uint64_t waited_us; /* the total time that passes have waited */
    _Atomic uint64_t saved_bytes;
    _Atomic uint64_t used; /* bytes of `room` that were taken at least once */
    /* the rest is for a room that is reused */
    pthread_mutex_t lock; /* guards the fields below */
    pthread_cond_t freed;
    uint8_t *spare; /* the free slots; each slot begins with a pointer to the next free slot */
};

/* The longest time that a pass waits for room. After this time the staging is canceled: nothing
 * more is saved, and the reader is told. */
#define CAIRN_STAGING_WAIT_US ((uint64_t)30000000)

/* Returns the bytes that a staging of the job's part takes. `room` says whether the staging is
 * small. */
uint64_t staging_bytes(const struct shard_job *job, cairn_snapshot_staging room);

/* ---- loop thread ---- */
/* Opens a staging of the present state, with room of `bytes`. No pass over the state may be under
 * way. If the room is smaller than the state, the room is reused. After CAIRN_ERR_NO_MEMORY close
 * `staging`, too. */
CAIRN_MUST_CHECK cairn_status staging_open(struct staging *staging, struct shard_job *job,
                                           uint64_t bytes, struct sentence *why);
/* Begins to make the pages of the staging. `touched` is called on the loop when all pages are made;
 * do not close the staging before that. */
void staging_touch(struct staging *staging, void (*touched)(void *context), void *context);
/* Makes passes save nothing more, and wait no longer. Call it when nobody reads the staging any
 * longer. */
void staging_cancel(struct staging *staging);
/* Returns CAIRN_OK unless the staging was canceled. Then returns CAIRN_ERR_TIMEOUT if a pass had
 * waited for too long, else CAIRN_ERR_CANCELED, with `why`. Any thread. */
CAIRN_MUST_CHECK cairn_status staging_check(const struct staging *staging, struct sentence *why);
/* Closes the staging. No pass that saves into it may be under way. A staging that is all 0 may be
 * closed, too. Loop thread. */
void staging_close(struct staging *staging);

/* ---- a pass; any thread ---- */
/* Saves the chunk's pending pieces, which can no longer be read in place when the chunk is
 * overwritten. Call it before adding works that overwrite any part of the chunk. Runs all works in
 * the list. */
void staging_save(struct staging *staging, struct works *works, uint64_t chunk);

/* ---- the one thread that reads ---- */
/* Copies `elems` elements of a chunk's plane to host memory, as they were at the version of the
 * staging. `first` is the first of these elements, counted in the chunk. `ends` is true if no later
 * elements of the piece will be requested. `works` is the reader's list, in the chunk's home.
 * Returns a status of works_run or staging_check. */
CAIRN_MUST_CHECK cairn_status staging_read(struct staging *staging, struct works *works,
                                           uint64_t chunk, enum plane plane, uint64_t first,
                                           uint64_t elems, bool ends, void *to,
                                           struct sentence *why);

/* Saves as much as possible before the next pass begins, so that the pass has less to save; does
 * nothing if the staging is small. Stops when the pace presses. Call it only if a pass is near,
 * because a piece that is read in place is copied once less. */
void staging_save_ahead(struct staging *staging, const struct pace *pace);

/* ==== load ==== */

/* Loaders fill the state of a job that is LOADING. They read a snapshot (restore.c), or weights and
 * initializers (put.c), or the generation that serves (restore.c). Afterwards members put what is
 * still missing, which put.c receives. */

struct loader_part {
    struct work_run run;   /* first */
    struct loader *loader; /* borrowed: the loader that contains this part */
};

/* A loader at work. This struct is the first field of a struct that restore.c or put.c
 * allocates. */
struct loader {
    struct task task;                      /* the work on the files thread */
    struct loader_part device, host;       /* the work on the planes: one part in each home */
    uint32_t parts_left;                   /* the parts that are under way */
    struct shard_job *job;                 /* borrowed; busy until loader_end */
    void (*filled)(struct loader *loader); /* from loader_fill */
    /* after the load members put the rest: the job is INITIALIZING, and not sealed yet */
    bool puts_follow;
    atomic_bool canceled;
    cairn_status status; /* the result */
    struct sentence why;
    /* Frees what the containing struct owns besides the loader. May be NULL. */
    void (*release)(struct loader *loader);
};

/* The load of a job. */
struct load {
    char *path; /* owned: the snapshot's path; "": no snapshot is loaded */
    /* the part owns no elements yet, so nothing is loaded and the part serves immediately */
    bool joins;
    bool goes_back;               /* the state is that of a former version (part.h) .. */
    struct cairn_version back_to; /* .. which is this one */
    /* the number of the SnapshotPart that reports digests of the loaded state; 0: nobody wants
     * digests */
    uint64_t digest;
    struct request asked;   /* the JobCreate, or a JobSeal: answered when the state is complete */
    struct loader *at_work; /* owned */
    /* A snapshot is read while the pages of the state are made. begun: the reading has begun;
     * pages_there: all pages are made; loaded: the reading has ended. The job goes on when the last
     * two are true. */
    bool begun, pages_there, loaded;
    struct made_pages made;
};

/* Starts the loader for the job. The fields that the caller has not set must be 0. */
void loader_begin(struct loader *loader, struct shard_job *job);
/* Reads files on the files thread: runs `read` with no rights but those of `confine`, and those that the
 * shard's card needs. If it cannot run, loader->status says why. */
void loader_read(struct loader *loader, struct confine *confine, void (*read)(void *loader));
/* Runs `describe` for each chunk, in the chunk's home, then calls `done`. `describe` finds its
 * loader with loader_of(run). */
void loader_fill(struct loader *loader,
                 bool (*describe)(struct work_run *run, uint32_t chunk, uint32_t stage,
                                  struct works *works),
                 void (*done)(struct loader *loader));
struct loader *loader_of(struct work_run *run);
/* Frees the loader, which has ended with loader->status. Then calls shard->up->loaded, which
 * continues with the job and may free the job. */
void loader_end(struct loader *loader);

/* Fills the parameters of a chunk by the initializer of the chunk's tensor. Any thread. */
void load_init_chunk(struct works *works, const struct shard_job *job, uint64_t chunk);

/* ==== put ==== */

/* Chunks that members put, into the initial state or for a write. Loop thread. */

struct write;

enum { CAIRN_SHARD_PUTS_MAX = 16 }; /* the most puts of a job that are received at a time */

/* A chunk that is being received. */
struct chunk_put {
    struct shard_job *job; /* borrowed; NULL: this entry is free */
    struct chunk_header header;
    struct chunk_place place;
    struct chunk_piece piece;
    uint64_t chunk; /* the chunk's number in the map */
};

/* Bits that a chunk has for each plane. HAS: the plane was put. STALE: the state has moments that
 * do not count, because the member that put them did not finish. When the job is sealed, such
 * moments become 0. An average counts as a moment; without one that counts, the seal begins it with
 * the parameters, unless it came with the rest of the state (AVERAGED). */
#define CAIRN_PUT_HAS(plane)   (1u << (plane))
#define CAIRN_PUT_STALE(plane) (CAIRN_PUT_HAS(plane) << CAIRN_PUT_STALE_SHIFT)
#define CAIRN_PUT_STALE_SHIFT  8
#define CAIRN_PUT_AVERAGED     1u
_Static_assert(CAIRN_PUT_STALE(CAIRN_PLANE_COUNT - 1) <= UINT16_MAX, "they have 16 bits");

/* The puts of a job. */
struct job_puts {
    struct chunk_put list[CAIRN_SHARD_PUTS_MAX]; /* the first `max` entries are used */
    uint32_t max;
    size_t bytes;        /* the memory of each put, for a chunk and a box */
    struct arena arena;  /* [max][bytes], exists while the job is not SERVING, or a write is open */
    uint16_t *have;      /* owned: [map.chunk_count] the bits CAIRN_PUT_... of the initial state */
    uint64_t moments_of; /* the member whose moments count; 0: no member's */
    struct write *write; /* owned; NULL: no write is open */
};

void put_on_message(struct shard_member *member, const struct chunk_header *header,
                    struct fabric_message *message);
/* Judges a JobSeal. If the JobSeal is accepted, the moments that member `moments_of` has put count,
 * and all other moments are stale. CAIRN_ERR_NOT_READY: `why` names tensors that nobody has put.
 * CAIRN_ERR_EXISTS: the job serves already, with other moments. */
CAIRN_MUST_CHECK cairn_status put_judge_seal(struct shard_job *job, uint64_t moments_of,
                                             struct sentence *why);
/* Gives back the buffers of puts. Called when the job serves. */
void job_puts_end(struct shard_job *job);

/* ==== write ==== */

/* Writes at a step boundary. Loop thread, except where noted. */

/* Opens the write of a member, for which the round was opened. Drops data that an earlier write
 * left. */
void write_open(struct shard_job *job, uint64_t round, uint64_t member);
void write_close(struct shard_job *job);

/* True if the write has data for the chunk. Any thread. */
bool write_has(const struct shard_job *job, uint64_t chunk);
/* True if the write has parameters, so that readers get new data. */
bool write_has_param(const struct shard_job *job);
/* Copies the write's data for the chunk into the state. Returns the chunk's new parameters, or NULL
 * if the parameters did not change. Any thread. */
const void *write_apply(struct works *works, const struct shard_job *job, uint64_t chunk,
                        const struct chunk_place *place);
/* Called when the coordinator has decided round `round`. Drops the write if it belongs to another
 * round. */
void write_resolved(struct shard_job *job, uint64_t round);

/* ==== pin ==== */

/* A pin keeps a version of a job for a snapshot or a digest. Loop thread, except where noted. */

struct report;

enum { CAIRN_SHARD_PINS_MAX = 4 }; /* the most pins that a job has at a time */

/* The pins of a job, and their reports. */
struct pins {
    LIST_HEAD(, pin) list;       /* owned */
    LIST_HEAD(, report) reports; /* owned: the reports that are being sent */
    /* Borrowed: [saving_count] the stagings into which the current UPDATE saves the state that it
     * overwrites; constant during the UPDATE. */
    struct staging *saving[CAIRN_SHARD_PINS_MAX];
    uint32_t saving_count;
    /* the pass of an UPDATE is under way, and needs the bandwidth of memory */
    atomic_bool updating;
    _Atomic uint64_t passes; /* how many passes of UPDATEs have begun */
    /* how long a step takes while no pin is read, smoothed; 0: not known */
    uint64_t step_us;
    uint64_t last_us; /* when the last UPDATE was published; 0: none was */
};

/* Gives back the staging of prepared pins that have not begun. Call it when the planes are about to
 * move. */
void pins_unprepare(struct shard_job *job);
/* Call pins_updating when the pass of an UPDATE is about to begin, and pin_updated when the UPDATE
 * is published. In pin_updated the pins that waited for the UPDATE begin. */
void pins_updating(struct shard_job *job);
void pin_updated(struct shard_job *job);
/* Calls staging_save for each staging in `saving`. Any thread, in the pass of an UPDATE. */
void pins_save(const struct shard_job *job, struct works *works, uint64_t chunk);
/* Lists the progress of the pins of all jobs. */
#define CAIRN_PINS_TOLD_MAX 256 /* the most pins in one heartbeat */
struct pins_list {
    size_t count;
    Cairn__PinTold told[CAIRN_PINS_TOLD_MAX];
    Cairn__PinTold *pointers[CAIRN_PINS_TOLD_MAX];
};
void pins_list(const struct shard_daemon *shard, struct pins_list *out);
/* Makes the pins be written at full speed. Call it when somebody waits for the end of the pins. */
void pins_hurry(const struct shard_job *job);
/* True if no pin reads the planes any longer. Even then, a pin that was given up may still be
 * blocked in a call to the storage. */
bool pins_rest(const struct shard_job *job);
/* Gives all pins up, so that their work on the snapshots thread ends soon. Call it when the job
 * leaves, or when nobody waits for the pins. */
void pin_cancel(struct shard_job *job);

/* ==== origin ==== */

/* Initial state that the shards make themselves. Loop thread. */

/* Makes the state of a LOADING job, as far as the job names weights or initializers; members put
 * the rest. After CAIRN_ERR_NO_MEMORY nothing was begun. */
CAIRN_MUST_CHECK cairn_status origin_begin(struct shard_job *job, struct sentence *why);

/* ==== restore ==== */

/* Loading a snapshot. Loop thread. */

/* Reads the state of a LOADING job from the snapshot job->load.path. If job->load.digest is not 0,
 * the digests of the state are then reported in the SnapshotPart of that number. After
 * CAIRN_ERR_NO_MEMORY nothing was begun. */
CAIRN_MUST_CHECK cairn_status restore_begin(struct shard_job *job, struct sentence *why);

#endif
