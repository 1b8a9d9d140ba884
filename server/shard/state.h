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

/* How fast a snapshot is written beside training: as fast as the disk takes it while nobody trains; else so
 * that steps take no longer than before it began, but never slower than its deadline asks. */

/* Bytes a second. */
#define CAIRN_PACE_LEAST ((uint64_t)64 << 20)  /* whatever the steps do */
#define CAIRN_PACE_FIRST ((uint64_t)256 << 20) /* until the first step has ended */
#define CAIRN_PACE_FREE  UINT64_MAX

struct pace {
    /* the loop thread's */
    uint64_t before_us; /* what a step took before; 0: nobody knows */
    /* read by the writer */
    uint64_t total_bytes, deadline_us;
    _Atomic uint64_t rate;    /* that steps allow */
    _Atomic uint64_t step_us; /* when the last one ended, of a monotonic clock; 0: none ever did */
    atomic_bool hurry;        /* somebody waits for its end */
    /* the writer's alone */
    uint64_t counted_us; /* up to when there is an allowance */
    uint64_t allowance;  /* bytes */
    /* the writer's, read by all */
    _Atomic uint64_t done_bytes;
};

/* Loop thread, before the writer begins: of so many bytes, that are to be written by deadline_us. before_us,
 * last_us: how long a step took, and when the last one ended; 0: none did. */
void pace_init(struct pace *pace, uint64_t total_bytes, uint64_t before_us, uint64_t last_us,
               uint64_t deadline_us);
/* Loop thread: a step ended, which took so long. */
void pace_step(struct pace *pace, uint64_t took_us, uint64_t now_us);
/* Bytes a second that may be written now; any thread. */
uint64_t pace_rate(const struct pace *pace, uint64_t now_us);

/* The deadline asks for more than the steps allow, or somebody waits: it is time to be in nobody's way no
 * more. Any thread. */
bool pace_presses(const struct pace *pace, uint64_t now_us);
/* Nobody trains, or nobody minds. Any thread. */
bool pace_is_free(const struct pace *pace, uint64_t now_us);
/* The writer: how long to rest before so many bytes more are written; it is to ask again after that. 0: go
 * on, they are counted. */
uint64_t pace_rest_us(struct pace *pace, uint64_t bytes, uint64_t now_us);

/* ==== staging ==== */

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

/* The host memory that "small" takes, unless a chunk's planes take more. */
#define CAIRN_STAGING_SMALL_BYTES ((uint64_t)64 << 20)

struct staging {
    struct task touch;       /* makes its pages, so that no update has to */
    struct shard_job *job;   /* borrowed; its planes lie where they lie until this is closed */
    struct shard_view *view; /* counted */
    void (*touched)(void *context); /* of staging_touch */
    void *context;
    uint64_t press_ns; /* uv_hrtime: from then on the pages are made in nobody's way no more */
    _Atomic uint8_t *pieces; /* owned: [chunk_count][CAIRN_PLANE_COUNT] enum */
    uint8_t **saved;         /* owned: the same: where it was saved */
    struct arena room;       /* owned */
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

/* The bytes of the staging for a job's part. */
uint64_t staging_bytes(const struct shard_job *job, cairn_snapshot_staging room);

/* ---- loop thread ---- */
/* Opens a staging of the state as it is now. No pass over the state may be under way. If there is
 * less room than for all of the state, room is used again. On CAIRN_ERR_NO_MEMORY `staging` is to
 * be closed all the same. */
CAIRN_MUST_CHECK cairn_status staging_open(struct staging *staging, struct shard_job *job,
                                           uint64_t bytes, struct sentence *why);
/* Begins to make the pages; `touched` follows on the loop, and the staging is not closed before. */
void staging_touch(struct staging *staging, void (*touched)(void *context), void *context);
/* Nobody reads it any more: no pass saves anything, or waits. */
void staging_cancel(struct staging *staging);
/* Whether it was: then why, and CAIRN_ERR_CANCELED, or CAIRN_ERR_TIMEOUT if a pass had waited for too long.
 * Any thread. */
CAIRN_MUST_CHECK cairn_status staging_check(const struct staging *staging, struct sentence *why);
/* No pass that saves into it may be under way. A staging that is all 0 may be closed, too. Loop
 * thread. */
void staging_close(struct staging *staging);

/* ---- a pass; any thread ---- */
/* Before what overwrites any of the chunk is added to the works: saves what is pending of it, for its version
 * may not be read here any more. Runs what is in the list. */
void staging_save(struct staging *staging, struct works *works, uint64_t chunk);

/* ---- the one thread that reads ---- */
/* Copies elements of a chunk's plane, as they were at that version, to host memory: `elems` of
 * them, from `first` on (counted in the chunk). `ends`: they are the last that are asked for of the
 * piece. `works` is the reader's, in the chunk's home. Returns as works_run, or as
 * staging_check. */
CAIRN_MUST_CHECK cairn_status staging_read(struct staging *staging, struct works *works,
                                           uint64_t chunk, enum plane plane, uint64_t first,
                                           uint64_t elems, bool ends, void *to,
                                           struct sentence *why);

/* Where there is room for all: saves what it can before the next pass begins, which then has less to save;
 * until the pace presses. It is not to be called where no pass is near: what is read where it lies is copied
 * once less. */
void staging_save_ahead(struct staging *staging, const struct pace *pace);

/* ==== load ==== */

/* Loaders fill the state of a job that is LOADING: from a snapshot (restore.c), from weights and
 * initializers (put.c), or from the generation that serves (restore.c). put.c afterwards takes
 * what is left for members to put. */

struct loader_part {
    struct work_run run;   /* first */
    struct loader *loader; /* borrowed: the one that it is in */
};

/* One of these at work; the first field of the struct that restore.c or put.c allocates. */
struct loader {
    struct task task;                      /* on the files thread */
    struct loader_part device, host;       /* on the planes, each in one home */
    uint32_t parts_left;                   /* under way */
    struct shard_job *job;                 /* borrowed; busy until loader_end */
    void (*filled)(struct loader *loader); /* of loader_fill */
    bool puts_follow;                      /* the job is INITIALIZING then, and not sealed yet */
    atomic_bool canceled;
    cairn_status status; /* the result */
    struct sentence why;
    /* Frees what the struct owns beside itself; NULL: nothing. */
    void (*release)(struct loader *loader);
};

/* A job's. */
struct load {
    char *path;           /* owned: the snapshot; "": none */
    bool joins;           /* the part owns nothing yet: nothing fills it, and it serves at once */
    uint64_t digest;      /* the SnapshotPart that tells digests of what was read; 0: nobody asks */
    struct request asked; /* the JobCreate, or a JobSeal: answered when the state is there */
    struct loader *at_work; /* owned */
    /* A snapshot is read while the pages of the state are made: both have to end. */
    bool begun, pages_there, loaded;
    struct made_pages made;
};

/* The loader, zero but for what its file has set, begins to work for the job. */
void loader_begin(struct loader *loader, struct shard_job *job);
/* In the home of each chunk, its `describe`, whose `run` is loader_of's. */
void loader_fill(struct loader *loader,
                 bool (*describe)(struct work_run *run, uint32_t chunk, uint32_t stage,
                                  struct works *works),
                 void (*done)(struct loader *loader));
struct loader *loader_of(struct work_run *run);
/* It has ended, with loader->status: it is freed, and shard->up->loaded goes on with the job. Perhaps the job
 * is freed, too. */
void loader_end(struct loader *loader);
/* The job leaves: the loader ends soon. */
void load_cancel(struct shard_job *job);
void load_release(struct shard_job *job);

/* Fills a chunk of param by the tensor's initializer. Any thread. */
void load_init_chunk(struct works *works, const struct shard_job *job, uint64_t chunk);

/* ==== put ==== */

/* Chunks that members put: of the initial state, or of a write. Loop thread. */

struct write;

enum { CAIRN_SHARD_PUTS_MAX = 16 }; /* of a job, being received */

/* A chunk that is being received. */
struct chunk_put {
    struct shard_job *job; /* borrowed; NULL: free */
    struct chunk_header header;
    struct chunk_place place;
    struct chunk_piece piece;
    uint64_t chunk; /* in the map */
};

/* Bits of a chunk: the planes that were put; and the moments that lie there but do not count,
 * because their member did not come to the end: the seal makes these 0. */
#define CAIRN_PUT_HAS(plane)   (1u << (plane))
#define CAIRN_PUT_STALE(plane) (CAIRN_PUT_HAS(plane) << CAIRN_PUT_STALE_SHIFT)
#define CAIRN_PUT_STALE_SHIFT  3
_Static_assert(CAIRN_PUT_STALE(CAIRN_PLANE_EXP_AVG_SQ) <= UINT8_MAX, "they are bytes");

/* The puts of a job. */
struct job_puts {
    struct chunk_put list[CAIRN_SHARD_PUTS_MAX]; /* `max` of them are used */
    uint32_t max;
    size_t bytes;        /* of each: a chunk and a box */
    struct arena arena;  /* [max][bytes], while the job is not SERVING or a write is open */
    uint8_t *have;       /* owned: [map.chunk_count] CAIRN_PUT_... of the initial state */
    uint64_t moments_of; /* the member whose moments count; 0: nobody's */
    struct write *write; /* owned; NULL: no write is open */
};

void put_on_message(struct shard_member *member, const struct chunk_header *header,
                    struct fabric_message *message);
/* The moments of this member count, and those that others put are stale. */
void put_count_moments(struct shard_job *job, uint64_t member);
/* Sealed before, when another shard's part was missing: all moments that are sealed count, so their member
 * put them, or put them again. CAIRN_ERR_EXISTS. */
CAIRN_MUST_CHECK cairn_status put_judge_again(const struct shard_job *job, struct sentence *why);
/* It serves: gives the buffers of puts back. */
void job_puts_end(struct shard_job *job);

/* ==== write ==== */

/* Writes at a step boundary. Loop thread unless it says otherwise. */

/* The round is a write of that member; what another write left is forgotten. */
void write_open(struct shard_job *job, uint64_t round, uint64_t member);
void write_close(struct shard_job *job);

/* Any thread: something of the chunk was kept. */
bool write_has(const struct shard_job *job, uint64_t chunk);
/* Parameters were kept: what readers have changes. */
bool write_has_param(const struct shard_job *job);
/* Any thread: what was kept of the chunk goes into the state. Returns what its parameters are then; NULL:
 * what they were. */
const void *write_apply(struct works *works, const struct shard_job *job, uint64_t chunk,
                        const struct chunk_place *place);
/* The outcome of that round was told: a write of another one is void. */
void write_resolved(struct shard_job *job, uint64_t round);

/* ==== pin ==== */

/* Snapshots and digests of a version. Loop thread, unless it says otherwise. */

struct report;

enum { CAIRN_SHARD_PINS_MAX = 4 }; /* snapshots and digests of a job at a time */

/* The pins of a job, and what is told of them. */
struct pins {
    LIST_HEAD(, pin) list;       /* owned */
    LIST_HEAD(, report) reports; /* owned: being sent */
    /* Borrowed: [saving_count] into which the UPDATE at hand saves what it overwrites; constant during it. */
    struct staging *saving[CAIRN_SHARD_PINS_MAX];
    uint32_t saving_count;
    atomic_bool updating;    /* an UPDATE\'s pass is under way: it needs the memory\'s bandwidth */
    _Atomic uint64_t passes; /* of UPDATEs that have begun, ever */
    uint64_t step_us;        /* what a step takes while none is there, smoothed; 0: not known */
    uint64_t last_us;        /* when the last UPDATE was published; 0: none was */
};

/* Makes the staging of one that is soon to begin; answers when its pages are there. */
void pin_on_prepare(struct shard_job *job, uint32_t request, const Cairn__PinPrepare *message);
/* Gives back the staging of the pins that have not begun: the planes are about to lie elsewhere. */
void pins_unprepare(struct shard_job *job);
void pin_begin(struct shard_job *job, const Cairn__Pin *message);
/* Where it is to be written, if anywhere. */
void pin_on_folder(struct shard_job *job, const Cairn__PinFolder *message);
/* The session ended: no folder comes any more to those that wait for one. */
void pin_session_ended(struct shard_job *job);
/* The pass of an UPDATE is about to begin; it is published: begins the pins that waited. */
void pins_updating(struct shard_job *job);
void pin_updated(struct shard_job *job);
/* Any thread, in the pass of an UPDATE: as staging_save, for all pins. */
void pins_save(const struct shard_job *job, struct works *works, uint64_t chunk);
/* How far those of all jobs are. */
#define CAIRN_PINS_TOLD_MAX 256 /* that a heartbeat tells of */
struct pins_list {
    size_t count;
    Cairn__PinTold told[CAIRN_PINS_TOLD_MAX];
    Cairn__PinTold *pointers[CAIRN_PINS_TOLD_MAX];
};
void pins_list(const struct shard_daemon *shard, struct pins_list *out);
/* Somebody waits for their end: they are written as fast as it goes. */
void pins_hurry(const struct shard_job *job);
/* None looks at the planes any more: those that were given up may hang in storage still. */
bool pins_rest(const struct shard_job *job);
/* The job leaves, or others wait no longer: what runs on the snapshots thread ends soon. */
void pin_cancel(struct shard_job *job);
void pin_release(struct shard_job *job);

/* ==== pin write ==== */

/* Reads a pinned version's bytes once, hashes and writes them, on one thread. */

struct pin_write {
    struct staging *staging; /* borrowed */
    struct pace *pace;       /* borrowed */
    struct report *report;   /* borrowed: digests and files are added */
    const char *path;        /* borrowed: the snapshot's folder; NULL: digests alone */
};

/* Digests of all of it; and files, if a folder is given: not CAIRN_OK: none are left. CAIRN_ERR_CANCELED, or
 * as snapshot_writer_put and staging_read. */
CAIRN_MUST_CHECK cairn_status pin_write(const struct pin_write *write, struct sentence *why);

/* ==== origin ==== */

/* Initial state that the shards make themselves. Loop thread. */

/* LOADING: makes what there is to make; what is left is to be put. CAIRN_ERR_NO_MEMORY: not begun. */
CAIRN_MUST_CHECK cairn_status origin_begin(struct shard_job *job, struct sentence *why);

/* ==== restore ==== */

/* Loading a snapshot. Loop thread. */

/* LOADING: reads the state out of job->load.path, and tells the digests of what it has then as the
 * SnapshotPart job->load.digest, if that is not 0. CAIRN_ERR_NO_MEMORY: not begun. */
CAIRN_MUST_CHECK cairn_status restore_begin(struct shard_job *job, struct sentence *why);

#endif
