#ifndef CAIRN_SHARD_BASE_H
#define CAIRN_SHARD_BASE_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/queue.h>
#include <uv.h>

#include "gpu/gpu.h"
#include "proto/base/text.h"
#include "proto/fabric/fabric.h"
#include "proto/geometry/tensor.h"
#include "proto/loop/loop.h"
#include "proto/wire/wire.h"
#include "server/base/daemon.h"
#include "server/base/log.h"
#include "server/core/standing.h"
#include "server/core/step.h"

/* ==== bytes ==== */

/* Payload bytes by job, worker and path, and memory by job and kind: told to the coordinator with each
 * Heartbeat. Loop thread only. */

struct shard_daemon;
struct shard_job;

enum bytes_path {
    BYTES_PATH_CARRIED,
    BYTES_PATH_SHARED,    /* through memory of this host */
    BYTES_PATH_ONE_SIDED, /* carried, and read by the receiver out of the sender's memory */
    BYTES_PATH_DEVICE,    /* shared, and memory of a card, which reads it where it lies */
    BYTES_PATH_DIRECT,    /* carried, and memory of a card, sent from where it lies */
};
/* The way that a path's name (proto/fabric/fabric.h) stands for. */
enum bytes_path bytes_path_of(const char *path);

/* Bytes by way. Shared: through memory of this host or of its cards; `device` counts the part of it
 * that the host did not see. Carried: by any other way; `one_sided` and `direct` count parts of it. */
struct bytes {
    uint64_t pushed_shared, pushed_carried, fetched_shared, fetched_carried, put;
    uint64_t pushed_one_sided, fetched_one_sided;
    uint64_t pushed_device, fetched_device;
    uint64_t pushed_direct, fetched_direct;
    /* of a job: updated here, writes aside; of a member: its job's when it joined */
    uint64_t steps;
};

/* The member may be gone: then the job's count alone grows. */
void bytes_pushed(struct shard_job *job, uint64_t member, uint64_t bytes, enum bytes_path path);
void bytes_fetched(struct shard_job *job, uint64_t member, uint64_t bytes, enum bytes_path path);

struct bytes_list {
    size_t count;
    Cairn__BytesTold *told;      /* owned: [count] */
    Cairn__BytesTold **pointers; /* owned: [count], to these */
};
/* Lists an entry for each job, then an entry for each worker of a job, at most CAIRN_BYTES_TOLD_MAX
 * in all. Jobs that are staged or LEAVING are left out. Without memory the list is empty. */
void bytes_list(const struct shard_daemon *shard, struct bytes_list *out);

#define CAIRN_MEMORY_TOLD_JOBS 1024 /* CAIRN_SHARD_JOBS_MAX */
struct memory_list {
    size_t count;
    Cairn__MemoryTold told[CAIRN_MEMORY_TOLD_JOBS];
    Cairn__MemoryTold *pointers[CAIRN_MEMORY_TOLD_JOBS];
};
/* Lists the memory of each job; the generations of a job are added up. */
void memory_list(const struct shard_daemon *shard, struct memory_list *out);

/* ==== works ==== */

/* A list of work that is being made for a home (gpu/gpu.h), by one thread at a time. It is run when it is
 * full, and by works_run. The works of one list are done in any order: a work that must come after
 * others is added after works_run, or in a run's next stage (below).
 *
 * The host reads and writes what lies in a home by get, put and edit: where it lies if the host may follow
 * the address, else in scratch, between copies. Whatever fails in between is told by works_run.
 *
 * Where the home takes two lists, one is made while the other is under way (works_send). Then the
 * works of both are done in any order. */

/* The most bytes that get, put and edit take: more than the largest chunk has. */
#define CAIRN_WORKS_SCRATCH_BYTES ((size_t)16 << 20)

/* The works that the home is given at a time; a list stays unchanged until they are done. */
struct works_list {
    /* owned */
    struct home_work *works;                            /* [capacity] */
    struct fold_source (*sources)[CAIRN_STEP_FOLD_MAX]; /* [capacity] */
    uint8_t *scratch; /* [CAIRN_WORKS_SCRATCH_BYTES], pages of its own; NULL if in_place */
    bool is_pinned;   /* once it is used, if it can be */
    uint32_t count;
    size_t scratch_used;
    bool is_under_way; /* begun, and not finished */
    /* since the last works_run or _await */
    cairn_status status;
    const void *failed_at; /* where a guarded work met a missing page; NULL: nowhere */
    struct sentence why;
};

#define CAIRN_WORKS_LISTS 2

struct works {
    struct home_stream *stream; /* owned */
    struct home *home;          /* borrowed */
    bool in_place;              /* the host may follow addresses of the home */
    /* Works read memory that other processes may have taken pages of; of a home that is the host only. */
    bool is_guarded;
    struct works_list lists[CAIRN_WORKS_LISTS]; /* [list_count] */
    uint32_t list_count, capacity;
    uint32_t first,
        sent; /* of the lists that were sent: which is the first, and how many there are */
    atomic_bool is_begun; /* the stream has its staging */
};

/* items: of how many a list is made; lists: 1, or as many as are sent at a time. CAIRN_ERR_NO_MEMORY, or as
 * home_stream_open: close it. */
CAIRN_MUST_CHECK cairn_status works_open(struct works *works, struct home *home, uint32_t items,
                                         uint32_t lists, struct sentence *why);

/* Also of what is all 0. */
void works_close(struct works *works);

/* One more, all else 0. */
struct home_work *works_add(struct works *works, enum work_kind kind);
void works_copy(struct works *works, void *to, const void *from, size_t bytes);
/* The part that a box has of the elements [first_elem, first_elem + elem_count) of a tensor.
 * `range` begins with first_elem; `packed` holds only the elements of the box, one behind another.
 * One of the two lies in the home, or neither. Packing and unpacking return the bytes of
 * `packed`. */
struct works_box {
    const struct cairn_box *box;
    const struct shape *shape;
    uint64_t first_elem, elem_count;
    size_t elem_bytes;
};
size_t works_pack(struct works *works, const struct works_box *of, void *packed, const void *range);
size_t works_unpack(struct works *works, const struct works_box *of, void *range,
                    const void *packed);
/* A fold of sources [count] that the list keeps. */
void works_fold(struct works *works, float *acc, const struct fold_source *sources, uint32_t count,
                bool first, size_t elems);

/* The bytes at an address of the home, to read: until the next call. */
const void *works_get(struct works *works, const void *at, size_t bytes);
/* Where to write now what is at the address when the list has run. */
void *works_put(struct works *works, void *at, size_t bytes);
/* Does what is in the list; it is empty then. Not OK: of what was added since the last call nothing may be
 * used. */
cairn_status works_run(struct works *works, struct sentence *why);
/* The same, but what failed is told by the next call. */
void works_flush(struct works *works);

/* The list that is being made, with what became of it so far. */
const struct works_list *works_now(const struct works *works);

/* ==== compute ==== */

/* Work on state: threads that give lists of it to a home (gpu/gpu.h).
 *
 *   submit(run) ─► a thread takes an item, and of what else waits, of any run, as much as the home wants
 *       in a list ─► describe: each item adds its works ─► the home does them ─► conclude ─► done (loop)
 *
 * For `host` a list is an item's, and the thread that took it does it at once: so many items are done at a
 * time as there are threads. For a device it is what came while the lists before were done; a thread begins a
 * list before it waits for the one ahead, if there is more than the other threads take. */

struct compute_lane;

struct compute {
    struct home *home;          /* owned; NULL: this one is not there */
    struct pool *pool;          /* owned */
    struct compute_lane *lanes; /* owned: [lane_count] */
    uint32_t lane_count;        /* of each thread, the loop, the files and the snapshots thread */
    pthread_mutex_t lock;       /* guards `why` */
    struct sentence why;        /* of the last list that failed */
};

/* Embedded in what the run works on. */
struct work_run {
    struct task task; /* first; private, but for is_small, before it is submitted */
    /* the owner's, constant while the run is under way */
    struct compute *compute;
    uint32_t item_count;
    uint32_t item_first; /* items are numbered from there */
    bool is_guarded;     /* works read memory of workers, where they lie: see failed_at */
    /* Adds the works of an item. False: these are all. True: it is asked for the next stage when they are
     * done. Any thread; of an item one. */
    bool (*describe)(struct work_run *run, uint32_t item, uint32_t stage, struct works *works);
    /* The works of an item are done; likewise. `thread` is below compute_lanes. May be NULL. */
    void (*conclude)(struct work_run *run, uint32_t item, uint32_t thread);
    void (*done)(struct work_run *run); /* loop thread: look at the status first */
    /* the result */
    /* not OK: nothing that the works make may be used; compute_why */
    _Atomic cairn_status status;
    /* of a guarded run of one item: the address whose page is missing; NULL: none */
    const void *failed_at;
};

/* Takes the home over, also when it fails. threads: those of the pool.
 * CAIRN_ERR_NO_MEMORY, CAIRN_ERR_IO: to be closed all the same. */
CAIRN_MUST_CHECK cairn_status compute_open(struct compute *compute, uv_loop_t *loop,
                                           struct home *home, const char *name, uint32_t threads,
                                           struct sentence *why);
/* Ends the threads, as pool_close. False: there are none, on_closed does not follow. */
bool compute_stop(struct compute *compute, void (*on_closed)(void *context), void *context);
/* Behind compute_stop, when no memory of the home is in use. */
void compute_close(struct compute *compute);

/* ---- loop thread ---- */
void compute_submit(struct work_run *run);
uint32_t compute_lanes(const struct compute *compute);
/* As many items as keep the home at work. */
uint32_t compute_items_wanted(const struct compute *compute);
/* Before the first job lies there: every stream takes its staging, so that none of them lacks it in a round.
 * No run is under way, or it was called before. As home_stream_begin. */
CAIRN_MUST_CHECK cairn_status compute_begin(struct compute *compute, struct sentence *why);
/* Bytes of the device, and as many of host memory, that streams have still to take for it. */
uint64_t compute_staging_left(const struct compute *compute);
/* The list of the loop thread; what a caller added it also runs. */
struct works *compute_loop(const struct compute *compute);

/* ---- any thread ---- */
/* The list of the files thread, the same. */
struct works *compute_files(const struct compute *compute);
/* The list of the snapshots thread, the same. */
struct works *compute_snapshots(const struct compute *compute);
bool compute_is_host(const struct compute *compute);
void compute_why(struct compute *compute, struct sentence *why_out);
/* Data on the card goes to other hosts from there, not through host memory. `why_out`: why, or why not. */
bool device_goes_directly(const struct shard_daemon *shard, const char **why_out);

/* ==== session ==== */

/* The session with the coordinator, and what is said in it. connection.c makes sessions, one after the other.
 * Loop thread. Sends are dropped while there is none. */

/* A request of the coordinator that is answered later, on the session it came by. */
struct request {
    uint64_t session; /* session.serial; 0: none waits */
    uint32_t number;
};

/* It comes and goes, and the state stays. */
struct coordinator_session {
    struct stream_address address;
    struct stream *stream; /* borrowed of itself; NULL: none */
    uint64_t serial;       /* counts connections, from 1 */
    bool welcome;
    bool served_before; /* on_ready was called */
    uv_timer_t timer;   /* next try, or next heartbeat */
    uint32_t heartbeat_ms, lease_ms;
    uint32_t backoff_ms;
    uint64_t heard_ms;    /* uv_now of the last frame */
    uint64_t roll_due_ms; /* when members not told of in this session are forgotten; 0: done */
    struct coordinator_id coordinator; /* whose Welcome came */
    enum standing standing;            /* of it to what we hold: we obey it, or not */
    struct log_limit down;
};

void session_send(struct shard_daemon *shard, uint16_t type, uint32_t request,
                  const ProtobufCMessage *message);
void session_send_pages(struct shard_daemon *shard, uint32_t request, enum page_what what,
                        struct packed *packed);
/* Ends the connection with a reason told to the coordinator; a new one is tried. */
void session_refuse(struct shard_daemon *shard, cairn_status status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* Answers a request if its session is still there, and forgets it. CAIRN_OK is Done. */
void session_answer(struct shard_daemon *shard, struct request *request, cairn_status status,
                    const struct sentence *why);
struct request session_request(const struct shard_daemon *shard, uint32_t number);
/* The coordinator says, with this sentence, that this process is to end. */
void session_fenced(struct shard_daemon *shard, const char *text);

/* ==== member ==== */

/* The members of a job: members.c connects them. Loop thread. */

struct member_tile;

/* A member of a job: a worker or a reader. */
struct shard_member {
    struct shard_job *job; /* borrowed */
    uint64_t number, token;
    uint64_t confirmed; /* session.serial when the coordinator last told of it */
    uint32_t rank, role;
    char name[64];
    struct fabric_peer *peer; /* owned; NULL: not connected */
    bool is_relay;            /* of a host's workers: a shard, or this one (MemberJoin.relay) */
    bool is_mover;     /* a shard that takes what we give: move/; it is there as long as that */
    bool heard;        /* since it was connected: worth connecting again when it goes down */
    bool again;        /* it went down after it was heard: one try more, by shard->connects.again */
    bool cut;          /* a send failed: to be closed when the actions at hand are done */
    uint32_t endpoint; /* the number of `peer`, or of the last one */
    uint32_t connection; /* of the member: the highest number that a HELLO of it had */
    uint32_t replies;    /* fetches that wait or are being sent */
    struct reply *kept;  /* owned: read.h, of a worker; NULL: it gets one that comes back */
    uint32_t notes;      /* micro-batch ends being received */
    uint64_t tiles_hash; /* of the list that it declared: CAIRN_TABLE_HASH_WHOLE without one */
    struct member_tile *tiles; /* owned: [tile_count], by tensor; those of tensors here */
    size_t tile_count;
    uint64_t untouched; /* chunks of trained tensors here that it holds nothing of */
    struct bytes bytes; /* its own, since it joined */
    struct log_limit refusals;
    size_t address_bytes;
    uint8_t address[]; /* owned: [address_bytes], for the fabric */
};

struct members {
    struct shard_member **list; /* owned: [capacity], by number, open addressing */
    size_t count, capacity;
    bool cut; /* some have `cut` set */
};

struct shard_member *member_find(const struct shard_job *job, uint64_t number);
/* So that one more can be added. CAIRN_ERR_NO_MEMORY. */
CAIRN_MUST_CHECK cairn_status members_make_room(struct shard_job *job);
void members_add(struct shard_job *job, struct shard_member *member);
void members_take_out(struct shard_job *job, const struct shard_member *member);

/* The way's number that HELLO and GRANT to the member carry: proto/wire/wire.h. */
uint64_t member_way(const struct shard_member *member);
/* Its connection, if it has one, is to be closed when the actions at hand are done. */
void member_cut(struct shard_job *job, uint64_t number);
/* Sends a header; job, member and token are filled in. Dropped if it is not connected. */
void member_send(struct shard_member *member, struct chunk_header *header);
/* The same in the name of another shard, by its index: an owner, whose relay we are. */
void member_send_for(struct shard_member *member, struct chunk_header *header, uint32_t shard);
/* NAK that echoes a request. */
void member_refuse(struct shard_member *member, const struct chunk_header *header,
                   cairn_status status);
void member_refuse_for(struct shard_member *member, const struct chunk_header *header,
                       cairn_status status, uint32_t shard);
/* Counts a refusal, and says it in the log. */
void member_note_refusal(struct shard_member *member, const struct chunk_header *header,
                         const char *why);

/* ==== job ==== */

/* A job is found, kept while something refers to it, and faulted. Loop thread. */

/* NULL if there is none of that number that is not LEAVING or staged. */
struct shard_job *shard_job_find(struct shard_daemon *shard, uint64_t number);
/* The part of that generation, faulted ones too; NULL: there is none, or it leaves. */
struct shard_job *shard_job_find_part(struct shard_daemon *shard, uint64_t number,
                                      uint64_t generation);
/* Something in flight began or ended. `idle` may free the job. */
void shard_job_busy(struct shard_job *job);
void shard_job_idle(struct shard_job *job);
/* At the end of what the fabric calls: tells the core of receives that ended, and closes peers that were
 * cut. */
void shard_job_settle(struct shard_job *job);
/* The compute that works where a local element of the job's planes lies. Any thread. */
struct compute *shard_job_home(const struct shard_job *job, uint64_t local_elem);
/* The job does nothing any more: a wrong parameter must not be published. */
void shard_job_fault(struct shard_job *job, const char *why);
/* To be called after work on the job's planes: true if the work failed. Then the job is stopped. If
 * its home failed, all jobs with planes in that home are stopped too, except those that are
 * LOADING: their own load ends with the failure. */
bool shard_job_failed(struct shard_job *job, cairn_status status, const struct sentence *why);
/* The same for a run; the reason is that of the run's compute. */
bool shard_job_run_failed(struct shard_job *job, const struct work_run *run);
/* Bytes that a decision of the job may have beside itself. */
size_t shard_payload_max(const struct shard_job *job);

/* ==== arriving ==== */

/* Messages of the coordinator whose bytes follow in pages: JobCreate, MemberTiles, JobTerms. When the last
 * page is here, a thread runs the kind's `prepare`, so that a large job holds nobody's round up, and then the
 * kind's `whole` is called; the message is answered and gone with arriving_end, then or later. `whole`
 * may give it to a thread once more (arriving_make). All of them are gone with the connection. Loop
 * thread. */

#define CAIRN_ARRIVING_MAX   8 /* of a kind */
#define CAIRN_ARRIVING_PAGED 2

struct arriving;

struct arriving_kind {
    const char *name;                          /* "a job": in a refusal */
    enum page_what what[CAIRN_ARRIVING_PAGED]; /* of each of them; 0: none */
    bool may_be_empty;                         /* what has 0 bytes has come */
    /* On a thread, when all of it is here: makes `made`. It reads the message, its pages, and what of the
     * shard is constant. Not CAIRN_OK, with `why`: the message is refused. NULL, or no bytes came: nothing is
     * made. */
    cairn_status (*prepare)(struct arriving *arriving, void **made_out, struct sentence *why);
    /* On a thread, of arriving_make: makes `made` complete. Not CAIRN_OK: as of `prepare`. */
    cairn_status (*make)(const struct arriving *arriving, void *made, struct sentence *why);
    void (*unmake)(void *made); /* frees what nobody took; loop thread */
    /* All of it is here. It may be called again by whoever keeps it waiting. */
    void (*whole)(struct shard_daemon *shard, struct arriving *arriving);
};

struct arriving {
    struct task task;           /* private, as `phase`, `status`, `why` and `is_small` are */
    TAILQ_ENTRY(arriving) link; /* of the shard's, or of the dropped ones */
    bool is_dropped;
    const struct arriving_kind *kind;
    uint32_t request;
    ProtobufCMessage *message; /* owned */
    struct paged paged[CAIRN_ARRIVING_PAGED];
    struct shard_daemon *shard;
    void *made; /* owned until `whole` takes it (arriving_take) */
    /* PREPARING: a thread reads it, so it is kept apart if it is dropped, until the thread is through. */
    enum { CAIRN_ARRIVING_PAGES, CAIRN_ARRIVING_PREPARING, CAIRN_ARRIVING_PREPARED } phase;
    bool is_small; /* so few bytes came that a thread would take longer to be told of them */
    cairn_status status;
    struct sentence why;
};

/* Takes the message, whose pages are so many bytes; a message that is refused is answered. */
void arriving_begin(struct shard_daemon *shard, const struct arriving_kind *kind, uint32_t request,
                    ProtobufCMessage *message, const uint64_t bytes[CAIRN_ARRIVING_PAGED]);
/* A page of one of them, or of one that was refused. */
void arriving_on_page(struct shard_daemon *shard, uint32_t request, const Cairn__Page *page);
/* All pages are here, and what is made of them. */
bool arriving_whole(const struct arriving *arriving);
/* Within `whole`, as its last act: a thread runs the kind's `make`, then `whole` is called once more. */
void arriving_make(struct arriving *arriving);
/* Answers it (CAIRN_OK is Done), and frees it. */
void arriving_end(struct shard_daemon *shard, struct arriving *arriving, cairn_status status,
                  const struct sentence *why);
/* Frees it without an answer. */
void arriving_drop(struct shard_daemon *shard, struct arriving *arriving);
void arriving_drop_all(struct shard_daemon *shard);
/* Frees the messages that were dropped while a thread prepared them. The threads must have
 * ended. */
void arriving_release(struct shard_daemon *shard);

#endif
