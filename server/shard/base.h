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
#include "proto/link/link.h"
#include "proto/loop/loop.h"
#include "proto/wire/wire.h"
#include "server/base/daemon.h"
#include "server/base/log.h"
#include "server/core/standing.h"
#include "server/core/step.h"

/* The least multiple of `to` that is not below n. */
#define ALIGN_UP(n, to) (((n) + (to)-1) / (to) * (to))

/* ==== bytes ==== */

/* The shard counts payload bytes by job, worker and path, and memory by job and kind. Each
 * Heartbeat reports these counts to the coordinator. Loop thread only. */

struct shard_daemon;
struct shard_job;

enum bytes_path {
    BYTES_PATH_CARRIED,
    BYTES_PATH_SHARED,    /* through memory of this host */
    BYTES_PATH_ONE_SIDED, /* carried: the receiver reads the bytes out of the sender's memory */
    BYTES_PATH_DEVICE,    /* shared: the receiver reads the bytes in place, in memory of a card */
    BYTES_PATH_DIRECT,    /* carried: the bytes are sent directly out of a card's memory */
};
/* Returns the path with this name (proto/fabric/fabric.h). */
enum bytes_path bytes_path_of(const char *path);

/* The counts are kept in the message that reports them (Cairn__BytesTold). Shared bytes pass
 * through memory of this host or of its cards; `device` counts those shared bytes that the host did
 * not see. Carried bytes take any other path; `one_sided` and `direct` count some of the carried
 * bytes. In a job's counts `steps` is the number of steps that were updated here; writes do not
 * count. In a member's counts `steps` is the value that the job's `steps` had when the member
 * joined. */

/* Both functions add to the job's counts, and to the member's counts if the member has not left. */
void bytes_pushed(struct shard_job *job, uint64_t member, uint64_t bytes, enum bytes_path path);
void bytes_fetched(struct shard_job *job, uint64_t member, uint64_t bytes, enum bytes_path path);

/* ==== works ==== */

/* A list of work for a home (gpu/gpu.h). One thread at a time fills the list. The list runs when it
 * is full, and when works_run is called. The home may do the works of one list in any order. So a
 * work that must follow other works is added after works_run, or in the next stage of a struct
 * work_run (below).
 *
 * The host reads data in a home with works_get, and writes data there with works_put. The host
 * works in place if it may dereference addresses of the home. Otherwise the data is copied to or
 * from scratch memory. works_run returns any failure since its previous call.
 *
 * If the home takes two lists, one list can be filled while the other list runs (works_send in
 * compute.c). Then the home may do the works of both lists in any order. */

/* The most bytes that one works_get or works_put takes. The largest chunk has fewer bytes. */
#define CAIRN_WORKS_SCRATCH_BYTES ((size_t)16 << 20)

/* The works that the home receives together. The list does not change until the works are
 * done. */
struct works_list {
    /* owned */
    struct home_work *works;                            /* [capacity] */
    struct fold_source (*sources)[CAIRN_STEP_FOLD_MAX]; /* [capacity] */
    uint8_t *scratch; /* [CAIRN_WORKS_SCRATCH_BYTES] in separate pages; NULL if works.in_place */
    bool is_pinned;   /* set when `scratch` is first used, even if it could not be pinned */
    uint32_t count;
    size_t scratch_used;
    bool is_under_way; /* the home has begun the list, and has not finished it */
    /* the failure since the last works_run or works_await (compute.c) */
    cairn_status status;
    const void *failed_at; /* the address at which a guarded work met a missing page; NULL: none */
    struct sentence why;
};

#define CAIRN_WORKS_LISTS 2

struct works {
    struct home_stream *stream; /* owned */
    struct home *home;          /* borrowed */
    bool in_place;              /* the host may dereference addresses of the home */
    /* the works may meet missing pages, because they read memory of other processes; only for the
     * host's home */
    bool is_guarded;
    struct works_list lists[CAIRN_WORKS_LISTS]; /* [list_count] */
    uint32_t list_count, capacity;
    uint32_t lane; /* of struct compute: no other thread has the same at a time */
    /* first: the list that was sent first; sent: how many lists are sent and not awaited yet */
    uint32_t first, sent;
    atomic_bool is_begun; /* the stream has taken its staging memory */
};

/* `items` is the number of items for which one list has room. `lists` is the number of lists: 1, or
 * more if lists are sent while others run. Fails with CAIRN_ERR_NO_MEMORY, or with a status of
 * home_stream_open. Call works_close even after a failure. */
CAIRN_MUST_CHECK cairn_status works_open(struct works *works, struct home *home, uint32_t items,
                                         uint32_t lists, struct sentence *why);

/* Also accepts a struct works that is all 0. */
void works_close(struct works *works);

/* Adds one work of this kind. The caller fills in the work's other fields, which are 0. */
struct home_work *works_add(struct works *works, enum work_kind kind);
void works_copy(struct works *works, void *to, const void *from, size_t bytes);
/* The part of a tensor's elements [first_elem, first_elem + elem_count) that lies in a box.
 * works_pack copies this part from `range` to `packed`, and works_unpack copies it back. `range`
 * begins with first_elem; `packed` holds only the elements of the box, without gaps. At most one of
 * `range` and `packed` lies in the home. Both functions return the number of bytes in `packed`. */
struct works_box {
    const struct cairn_box *box;
    const struct shape *shape;
    uint64_t first_elem, elem_count;
    size_t elem_bytes;
};
size_t works_pack(struct works *works, const struct works_box *of, void *packed, const void *range);
size_t works_unpack(struct works *works, const struct works_box *of, void *range,
                    const void *packed);
/* Adds a fold of `count` sources into `acc`. The list keeps a copy of `sources`. */
void works_fold(struct works *works, float *acc, const struct fold_source *sources, uint32_t count,
                bool first, size_t elems);

/* Runs the list, then returns the bytes at an address of the home. The caller may read these bytes
 * until it calls another function of `works`. */
const void *works_get(struct works *works, const void *at, size_t bytes);
/* Returns memory that the caller fills before it calls another function of `works`. When the list
 * has run, the bytes are at the home's address `at`. */
void *works_put(struct works *works, void *at, size_t bytes);
/* Runs the list, which is then empty. If the status is not CAIRN_OK, no result may be used of the
 * works that were added since the previous call. */
cairn_status works_run(struct works *works, struct sentence *why);
/* Runs the list as works_run does, but leaves any failure for the next works_run to return. */
void works_flush(struct works *works);

/* Returns the list that is being filled. Its `status` and `failed_at` tell whether it has already
 * failed. */
const struct works_list *works_now(const struct works *works);

/* ==== compute ==== */

/* Threads that pass lists of work on state to a home (gpu/gpu.h).
 *
 *   submit(run) ─► a thread takes an item, and as many other waiting items, of any run, as the home
 *       wants in a list ─► describe: each item adds its works ─► the home does them ─► conclude
 *       ─► done (loop)
 *
 * For the host's home a list holds one item, and the thread that took the item does the item's
 * works itself. So as many items are done at a time as there are threads. For a device a list holds
 * the items that arrived while the earlier lists were done. If there are more items than the other
 * threads take, a thread begins a list before it waits for the previous list. */

struct compute_lane;

struct compute {
    struct home *home;          /* owned; NULL: this compute does not exist */
    struct pool *pool;          /* owned */
    struct compute_lane *lanes; /* owned: [lane_count] */
    /* lanes: one for each thread of the pool, then one each for the loop, the files and the
     * snapshots thread */
    uint32_t lane_count;
    pthread_mutex_t lock; /* guards `why` */
    struct sentence why;  /* the reason of the last failure of a list */
};

/* A run of works. This struct is part of the struct on which the works are done. */
struct work_run {
    /* first; private, except that the owner may set task.is_small before it submits the run */
    struct task task;
    /* from here to `done`: set by the owner, constant while the run is under way */
    struct compute *compute;
    uint32_t item_count;
    uint32_t item_first; /* the number of the first item */
    /* the works read workers' memory in place, where a page may be missing: see failed_at */
    bool is_guarded;
    /* Adds the works of one stage of an item. Returns false if the item has no more works; if true,
     * `describe` is called for the next stage when these works are done. Called on any thread, but
     * for one item only on one thread at a time. */
    bool (*describe)(struct work_run *run, uint32_t item, uint32_t stage, struct works *works);
    /* Called on any thread when the works of an item are done. `thread` numbers that thread, and is
     * less than compute_lanes. May be NULL. */
    void (*conclude)(struct work_run *run, uint32_t item, uint32_t thread);
    void (*done)(struct work_run *run); /* called on the loop thread; must check `status` first */
    /* the result */
    /* not OK: no result of the works may be used; compute_why tells the reason */
    _Atomic cairn_status status;
    /* in a guarded run of one item: the address whose page is missing; NULL: no page was missing */
    const void *failed_at;
};

/* Takes over the home, even on failure. `threads` is the number of threads of the pool. After
 * CAIRN_ERR_NO_MEMORY or CAIRN_ERR_IO call compute_close, too. */
CAIRN_MUST_CHECK cairn_status compute_open(struct compute *compute, uv_loop_t *loop,
                                           struct home *home, const char *name, uint32_t threads,
                                           struct sentence *why);
/* Ends the threads, as pool_close does. Returns false if no threads exist; then on_closed is not
 * called. */
bool compute_stop(struct compute *compute, void (*on_closed)(void *context), void *context);
/* Call after compute_stop, when no memory of the home is in use. */
void compute_close(struct compute *compute);

/* ---- loop thread ---- */
void compute_submit(struct work_run *run);
uint32_t compute_lanes(const struct compute *compute);
/* The number of items that keeps the home busy. */
uint32_t compute_items_wanted(const struct compute *compute);
/* Gives every stream its staging memory. Call it before the first job is placed in the home, so
 * that no stream lacks staging memory in a round. On the first call no run may be under way.
 * Returns the statuses of home_stream_begin. */
CAIRN_MUST_CHECK cairn_status compute_begin(struct compute *compute, struct sentence *why);
/* Returns the bytes of device memory that the streams will still take for their staging. The
 * streams will also take the same number of bytes of host memory. */
uint64_t compute_staging_left(const struct compute *compute);
/* The list of the loop thread. A caller that adds works to the list also runs the list. */
struct works *compute_loop(const struct compute *compute);

/* ---- any thread ---- */
/* The list of the files thread. A caller that adds works to the list also runs the list. */
struct works *compute_files(const struct compute *compute);
/* The list of the snapshots thread. A caller that adds works to the list also runs the list. */
struct works *compute_snapshots(const struct compute *compute);
bool compute_is_host(const struct compute *compute);
void compute_why(struct compute *compute, struct sentence *why_out);
/* True if data on the card is sent to other hosts directly from the card, not through host memory.
 * In both cases *why_out is set to the reason. */
bool device_goes_directly(const struct shard_daemon *shard, const char **why_out);

/* ==== session ==== */

/* The session with the coordinator, and the messages that are sent in it. connection.c makes one
 * session after the other. Loop thread. Sends are dropped while there is no session. */

/* A request of the coordinator that is answered later, but only in the session in which the request
 * arrived. */
struct request {
    uint64_t session; /* session.serial; 0: no request waits */
    uint32_t number;
};

/* The shard's knowledge of its coordinator. Sessions end and begin anew, but this struct stays. */
struct coordinator_session {
    struct endpoints endpoints;
    struct stream_address address; /* the one of them that was tried last */
    struct entrance entrance;      /* for an address of TCP */
    char *token_file;              /* owned; where the token is, if configured */
    char *token_fallback;          /* owned; and where, if it is nowhere else */
    struct stream *stream;         /* borrowed, because a stream owns itself; NULL: none */
    uint64_t serial;               /* counts connections, from 1 */
    bool welcome;
    bool served_before; /* on_ready was called */
    uv_timer_t timer;   /* for the next try to connect, or the next heartbeat */
    uint32_t heartbeat_ms, lease_ms;
    uint32_t backoff_ms;
    uint64_t heard_ms; /* uv_now when the last frame arrived */
    /* when the shard drops the members that the coordinator has not named in this session; 0: it
     * has dropped them */
    uint64_t roll_due_ms;
    struct coordinator_id coordinator; /* the coordinator whose Welcome arrived */
    /* the newest coordinator that this shard has obeyed; the held jobs belong to that coordinator's
     * store */
    struct coordinator_id seen;
    /* owned: the keys that the obeyed coordinator trusts; NULL: none was reported */
    Cairn__Keys *keys;
    /* how long the link to another shard may be silent before heartbeats name that shard */
    uint64_t unheard_ms;
    /* whether this shard obeys the coordinator, judged by the store to which the held jobs
     * belong */
    enum standing standing;
    struct log_limit down;
    struct wall wall;
};

void session_send(struct shard_daemon *shard, uint16_t type, uint32_t request,
                  const ProtobufCMessage *message);
void session_send_pages(struct shard_daemon *shard, uint32_t request, enum page_what what,
                        struct packed *packed);
/* Ends the connection and tells the coordinator the reason. The shard then tries a new
 * connection. */
void session_refuse(struct shard_daemon *shard, cairn_status status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* Answers the request if the session in which it arrived still exists, then clears *request.
 * CAIRN_OK is sent as Done. */
void session_answer(struct shard_daemon *shard, struct request *request, cairn_status status,
                    const struct sentence *why);
struct request session_request(const struct shard_daemon *shard, uint32_t number);
/* Called when the coordinator says that this process must end; `text` is the coordinator's
 * sentence. */
void session_fenced(struct shard_daemon *shard, const char *text);
/* Tells the owner of the shard that the shard must end. The caller may not use the shard afterwards,
 * because the owner's callback may close it. */
void shard_end(struct shard_daemon *shard, cairn_status why);

/* ==== member ==== */

/* The members of a job. members.c connects to them. Loop thread. */

struct member_tile;

/* A member of a job: a worker or a reader. */
struct shard_member {
    struct shard_job *job; /* borrowed */
    uint64_t number, token;
    uint64_t confirmed; /* session.serial when the coordinator last named the member */
    uint32_t rank, role;
    char name[64];
    struct fabric_peer *peer; /* owned; NULL: not connected */
    /* a shard, perhaps this one, that relays for a host's workers (MemberJoin.relay) */
    bool is_relay;
    /* a shard that takes state from this shard (move.h); it is a member only during the move */
    bool is_mover;
    bool is_expected; /* the fabric lets it in without a peer (fabric_expect) */
    bool maps;        /* it is on this host, and was shown the published copies */
    /* a message of the member came on this connection; so the shard tries again when the connection
     * goes down */
    bool heard;
    /* the connection went down after the member was heard; the timer shard->connects.again tries
     * once more */
    bool again;
    /* `peer` is to be closed when the current actions are done, for example because a send
     * failed */
    bool cut;
    uint32_t endpoint;   /* the number of `peer`; if `peer` is NULL, of the previous peer */
    uint32_t connection; /* the highest connection number in a HELLO of the member */
    uint32_t replies;    /* answers to the member's fetches that wait or are being sent */
    /* owned: the reply that a worker or a mover keeps (read.h). NULL: the member is a reader, or it
     * waits for the reply of a member that left */
    struct reply *kept;
    uint32_t notes; /* micro-batch ends of the member whose payload is being received */
    /* the hash of the list of tiles that the member declared; CAIRN_TABLE_HASH_WHOLE if it declared
     * none */
    uint64_t tiles_hash;
    /* owned: [tile_count], by tensor: the list that the member declared */
    struct member_tile *tiles;
    size_t tile_count;
    /* chunks of trained tensors on this shard in which the member holds no element */
    uint64_t untouched;
    Cairn__BytesTold bytes; /* the member's counts since it joined */
    struct log_limit refusals;
    size_t address_bytes;
    uint8_t address[]; /* owned: [address_bytes], for the fabric */
};

struct members {
    /* owned: [capacity], a hash table by number, with open addressing */
    struct shard_member **list;
    size_t count, capacity;
    bool cut; /* some members have `cut` set */
};

struct shard_member *member_find(const struct shard_job *job, uint64_t number);
/* Makes room for one more member. CAIRN_ERR_NO_MEMORY. */
CAIRN_MUST_CHECK cairn_status members_make_room(struct shard_job *job);
void members_add(struct shard_job *job, struct shard_member *member);
void members_take_out(struct shard_job *job, const struct shard_member *member);

/* The way number (CAIRN_CHUNK_WAY, proto/wire/wire.h) of the member's endpoint and connection,
 * which HELLO and GRANT to the member carry. */
uint64_t member_way(const struct shard_member *member);
/* Marks the member's connection, if it has one, for closing when the current actions are done. */
void member_cut(struct shard_job *job, uint64_t number);
/* Sends a header, of which this function fills in job, member and token. If the member is not
 * connected, nothing is sent. */
void member_send(struct shard_member *member, struct chunk_header *header);
/* Sends a header like member_send, but in the name of another shard. `shard` is the index of that
 * shard, an owner for which this shard relays. */
void member_send_for(struct shard_member *member, struct chunk_header *header, uint32_t shard);
/* Sends a NAK that echoes a request. */
void member_refuse(struct shard_member *member, const struct chunk_header *header,
                   cairn_status status);
void member_refuse_for(struct shard_member *member, const struct chunk_header *header,
                       cairn_status status, uint32_t shard);
/* Counts and logs a refusal, and sends the NAK. */
void member_refuse_why(struct shard_member *member, const struct chunk_header *header,
                       cairn_status status, const char *why);
/* Counts and logs a refusal. */
void member_note_refusal(struct shard_member *member, const struct chunk_header *header,
                         const char *why);

/* ==== neighbours ==== */

/* Neighbours are other shards that this shard asks for chunks, or to which this shard passes sums
 * on. To a neighbour this shard is a member of the job: a relay (relay.h), or a mover, which
 * receives state (move.h).
 *
 *   neighbour_open ─► neighbours_begin ─► HELLO ◄─► HELLO
 *       ─► asker_ask ── FETCH ──► DATA ─► place, received ─► came
 *                 ▲                 └─ busy, damaged, lost ─┐ └─► refused
 *                 └─────────────────────────────────────────┘
 *       ─► neighbours_end; freed when nothing in flight refers to the neighbours
 *
 * The tick of a module (shard.h) calls neighbour_tick, which connects, gives up connections that
 * are silent for too long, and repeats requests. Loop thread. */

struct neighbour;
struct neighbours;

/* A chunk for which a neighbour is asked. This struct is part of a struct of the user, who sets
 * request.index, request.serial and `neighbour`. */
struct neighbour_fetch {
    struct chunk_request request; /* first */
    struct neighbour *neighbour;  /* borrowed */
    /* checksum: what the sender announced; came: what the received bytes have, if kind->is_far */
    uint64_t checksum, came;
};

/* The values and functions in which the users of neighbours differ. */
struct neighbour_kind {
    uint64_t hello_value; /* the `value` of a HELLO to a neighbour */
    bool is_far; /* chunks are received with fabric_receive_far, around the processor's caches */
    const char *purpose; /* for the text of a refusal, for example "take state from" */
    /* Fills in, of the header of the wanted DATA, the fields that tell the chunk and its form. */
    void (*describe)(const struct neighbour_fetch *fetch, struct chunk_header *header);
    /* Returns where the chunk is received. */
    void *(*place)(struct neighbour_fetch *fetch);
    /* Called when the chunk is in its place, undamaged. */
    void (*came)(struct neighbour_fetch *fetch);
    /* Called when the neighbour refused the chunk and is not asked again. `status` is the
     * neighbour's. It is CAIRN_ERR_PROTOCOL if the answer is not about the chunk, and
     * CAIRN_ERR_CHECKSUM if the chunk arrived damaged again and again. */
    void (*refused)(struct neighbour_fetch *fetch, uint64_t status);
    /* As in struct chunk_link_callbacks. */
    void (*down)(struct neighbour *neighbour, cairn_status why);
    void (*starved)(struct neighbour *neighbour);
    /* Frees the neighbours. Called when they have ended and nothing refers to them. */
    void (*free)(struct neighbours *all);
    /* These three are for neighbours that are asked for more than chunks, and are NULL for others.
     * `waits` returns true if an answer about something else than a chunk is awaited. `lost` is
     * called when the connection, and such an answer with it, is lost. `answered` is called when
     * the neighbour said HELLO, or sent a message that is not about a chunk. */
    bool (*waits)(const struct neighbour *neighbour);
    void (*lost)(struct neighbour *neighbour);
    void (*answered)(struct neighbour *neighbour, const struct chunk_header *header);
};

/* Another shard, and the connection to it. */
struct neighbour {
    struct neighbours *all; /* borrowed; NULL: not opened */
    uint32_t index;         /* in the layout */
    char name[64];
    uint8_t *address; /* owned */
    size_t address_bytes;
    struct chunk_link link;
    struct asker asker;
};

/* The neighbours of one user. Each of them is the first field of a struct in the user's array. */
struct neighbours {
    LIST_ENTRY(neighbours) link; /* in job->asked, from _begin to _end */
    const struct neighbour_kind *kind;
    struct shard_job *job;   /* borrowed */
    uint64_t number, token;  /* the member of the job as which this shard asks */
    struct neighbour *first; /* borrowed: [count], `stride` bytes apart, ascending by index */
    size_t stride;
    uint32_t count;
    uint32_t busy; /* operations in flight that refer to the neighbours */
    bool is_begun, is_leaving;
};

/* Fills in a zeroed neighbour, to which nothing is sent yet. CAIRN_ERR_MALFORMED,
 * CAIRN_ERR_NO_MEMORY. */
CAIRN_MUST_CHECK cairn_status neighbour_open(struct neighbours *all, struct neighbour *neighbour,
                                             const Cairn__ShardInfo *info, struct sentence *why);
/* Notes where the neighbour is now. If that is another place, the next ticks report the loss of the
 * connection and connect again. */
void neighbour_move(struct neighbour *neighbour, const Cairn__ShardInfo *info);
/* Safe for a neighbour that was not opened. */
void neighbour_close(struct neighbour *neighbour);
/* Ends the connection. The next ticks report the loss and connect again, unless the neighbours
 * end. */
void neighbour_unlink(struct neighbour *neighbour);
/* Connects, ends the connection or repeats requests, whichever is due. Returns true if something is
 * awaited from the neighbour. */
bool neighbour_tick(struct neighbour *neighbour, uint64_t now_ms);

/* After this call the messages of the neighbours are taken. */
void neighbours_begin(struct neighbours *all);
/* After this call the neighbours are asked for nothing, and their messages are not taken.
 * kind->free is called when nothing refers to them, perhaps before this call returns. */
void neighbours_end(struct neighbours *all);
/* Returns the i-th neighbour. */
struct neighbour *neighbours_at(const struct neighbours *all, uint32_t i);
/* Returns the neighbour with that index in the layout, or NULL. */
struct neighbour *neighbours_find(const struct neighbours *all, uint32_t index);
/* Call neighbours_busy when an operation in flight begins, and neighbours_idle when it ends.
 * neighbours_idle may free the neighbours, and their job. */
void neighbours_busy(struct neighbours *all);
void neighbours_idle(struct neighbours *all);

/* Returns the neighbours to which the sender of a message belongs, or NULL. */
struct neighbours *neighbours_of(const struct shard_job *job, const struct chunk_header *header);
/* Takes or drops a message of a neighbour. */
void neighbours_on_message(struct neighbours *all, const struct chunk_header *header,
                           struct fabric_message *message);

/* ==== job ==== */

/* Finding a job, keeping it while something refers to it, and faulting it. Loop thread. */

/* Returns NULL if no job has that number, or if the job is LEAVING or staged. */
struct shard_job *shard_job_find(struct shard_daemon *shard, uint64_t number);
/* Returns the shard's part of that generation of the job, even if the part is faulted or staged.
 * Returns NULL if the part does not exist or is LEAVING. */
struct shard_job *shard_job_find_part(struct shard_daemon *shard, uint64_t number,
                                      uint64_t generation);
/* Call shard_job_busy when an operation in flight begins, and shard_job_idle when it ends.
 * shard_job_idle may free the job. */
void shard_job_busy(struct shard_job *job);
void shard_job_idle(struct shard_job *job);
/* Tells the core about receives that ended, and closes peers that were cut. Call it at the end of
 * each fabric callback. */
void shard_job_settle(struct shard_job *job);
/* Returns the compute of the home in which this local element of the job's planes lies. Any
 * thread. */
struct compute *shard_job_home(const struct shard_job *job, uint64_t local_elem);
/* Stops all work of the job, because a wrong parameter must not be published. */
void shard_job_fault(struct shard_job *job, const char *why);
/* Call after work on the job's planes. Returns true if the work failed; then the job is stopped. If
 * the job's home failed, all jobs with planes in that home are stopped too. Jobs that are LOADING
 * are not stopped: their own load ends with the failure. */
bool shard_job_failed(struct shard_job *job, cairn_status status, const struct sentence *why);
/* Does what shard_job_failed does, with the status of a run. The reason comes from the run's
 * compute. */
bool shard_job_run_failed(struct shard_job *job, const struct work_run *run);
/* The most payload bytes that a decision of the job may have. */
size_t shard_payload_max(const struct shard_job *job);

/* ==== arriving ==== */

/* Messages of the coordinator whose bytes follow in pages: JobCreate, MemberTiles, JobTerms. When
 * the last page has arrived, a thread runs the kind's `prepare`, so that a large job does not delay
 * any round. Then the kind's `whole` is called. In `whole` or later, the code calls arriving_end,
 * which answers the message and frees it. Before that, `whole` may pass the message to a thread
 * again (arriving_make). All messages are dropped when the connection ends. Loop thread. */

#define CAIRN_ARRIVING_MAX   8 /* for each kind */
#define CAIRN_ARRIVING_PAGED 2

struct arriving;

struct arriving_kind {
    const char *name; /* for a refusal: "a job" */
    /* what the pages of each part contain; 0: there is no such part */
    enum page_what what[CAIRN_ARRIVING_PAGED];
    size_t bytes_at
        /* the offset, in the message, of the uint64_t that tells the part's size */
        [CAIRN_ARRIVING_PAGED];
    /* a part may have 0 bytes; otherwise a message with such a part is refused */
    bool may_be_empty;
    /* Makes `made` out of the message. Called on a thread when all pages have arrived. May read the
     * message, its pages, and constant fields of the shard. If the status is not CAIRN_OK, the
     * message is refused with `why`. If `prepare` is NULL, or the pages have no bytes, nothing is
     * made. */
    cairn_status (*prepare)(struct arriving *arriving, void **made_out, struct sentence *why);
    /* Runs on a thread after arriving_make, and completes `made`. If the status is not CAIRN_OK,
     * the message is refused with `why`. */
    cairn_status (*make)(const struct arriving *arriving, void *made, struct sentence *why);
    void (*unmake)(void *made); /* frees `made` if nobody took it; called on the loop thread */
    /* Called when the message is complete. Code that keeps the message waiting may call `whole`
     * again. */
    void (*whole)(struct shard_daemon *shard, struct arriving *arriving);
};

struct arriving {
    struct task task;           /* private, as `phase`, `status`, `why` and `is_small` are */
    TAILQ_ENTRY(arriving) link; /* in the shard's list, or in the list of dropped messages */
    bool is_dropped;
    const struct arriving_kind *kind;
    uint32_t request;
    ProtobufCMessage *message; /* owned */
    struct paged paged[CAIRN_ARRIVING_PAGED];
    struct shard_daemon *shard;
    void *made; /* owned until `whole` takes it (arriving_take) */
    /* PREPARING: a thread reads the message, so a dropped message is kept in a separate list until
     * the thread is done. */
    enum { CAIRN_ARRIVING_PAGES, CAIRN_ARRIVING_PREPARING, CAIRN_ARRIVING_PREPARED } phase;
    /* the pages have so few bytes that waking a thread would take longer than the work */
    bool is_small;
    cairn_status status;
    struct sentence why;
};

TAILQ_HEAD(arriving_list, arriving);

/* Takes over the message. If the message is refused, answers it. */
void arriving_begin(struct shard_daemon *shard, const struct arriving_kind *kind, uint32_t request,
                    ProtobufCMessage *message);
/* True if all pages have arrived and the message is prepared. */
bool arriving_whole(const struct arriving *arriving);
/* Has a thread run the kind's `make`; then `whole` is called again. This must be the last call in
 * `whole`. */
void arriving_make(struct arriving *arriving);
/* Answers the message (CAIRN_OK is sent as Done), and frees it. */
void arriving_end(struct shard_daemon *shard, struct arriving *arriving, cairn_status status,
                  const struct sentence *why);
/* Frees the message without an answer. */
void arriving_drop(struct shard_daemon *shard, struct arriving *arriving);
void arriving_drop_all(struct shard_daemon *shard);
/* Frees the messages that were dropped while a thread prepared them. Call it when the threads have
 * ended. */
void arriving_release(struct shard_daemon *shard);

#endif
