/* A shard is a daemon that holds a part of every job's state. This is the header to read first.
 *
 *  coordinator ─ connection.c ─ handlers.c ┐                    ┌► grant, ack, refuse: base.c
 *                                          ├ step.h ─ members.c ┼► fold, reduce, update: update.c
 *  workers ────────────────── handlers.c ──┘ (core)             └► reduced, published: base.c
 *
 * The headers, from the ground up. No header includes a later header (tests/tree/tidy.py checks
 * that). The code of earlier headers calls later code through struct shard_up:
 *   need.h        how much memory a job's part takes, to the byte
 *   base.h        what all others use: the session's sends, works on state, a job's ledger, its members,
 *                 the other shards that it asks
 *   memory.h      the memory of a job: reserved, made, given back; the planes in which the state lies
 *   collect.h     the contributions of workers: judged, landed, folded; the tiles that workers hold
 *   kept.h        what outlives this process, and is resumed by the next one
 *   read.h        the versions that can be fetched, the leased ones, and the fetches
 *   state.h       the initial state (load, put), writes, snapshots and digests (pin)
 *   part.h        the terms, times, passes, parking and admission of a job's part
 *   move.h        the state that the part gets and gives when the layout changes; the part as a mirror
 *   shard.h       the shard itself; its connection, its device, its storage, its draining
 *   jobs.h        a complete job: made, held, freed; its members' connections; its own part's rounds
 *   relay.h       does for other owners, on behalf of this host's workers, what collect.h and read.h do
 *
 * One loop thread runs the control session, the fabric and the cores, and makes every decision.
 * Pools of threads (server/base/daemon.h) work for the loop thread. The pools of `host` and
 * `device` do arithmetic on the state, each in its home (base.h). The thread of `files` reads
 * snapshots, the thread of `snapshots` writes snapshots, and the threads of `memory.pool` make
 * pages. A pool owns the memory that its task touches until `done` has run on the loop thread.
 * There is one exception: the thread of `snapshots` reads state that is being updated (state.h).
 *
 * Memory: the bytes of a job's part are counted, admitted if the host and its control groups have
 * them free, and then made. Otherwise the part is refused (need.h, memory.h). The landing slots of
 * a worker are treated in the same way when the worker joins, and given back when it leaves.
 * Between landing and publishing nothing is allocated. Replies (read.h) and staging are allocated
 * within bounds, and counted.
 *
 * A job's life: LOADING → INITIALIZING (members put state) → SEALING → SERVING → LEAVING. If the
 * complete state is loaded, the job goes from LOADING to SEALING. A job that is dropped is LEAVING
 * until nothing in flight refers to the job (`busy` is 0); then the job is freed. A FAULTED job
 * does no more work, because its state may be wrong or its coordinator broke the protocol. A
 * generation that is made from the serving generation is `staged`, a second struct shard_job of the
 * same number: jobs.h. */
#ifndef CAIRN_SHARD_SHARD_H
#define CAIRN_SHARD_SHARD_H

#include <stdbool.h>
#include <stdint.h>
#include <uv.h>

#include "gpu/gpu.h"
#include "proto/fabric/fabric.h"
#include "proto/geometry/layout.h"
#include "proto/loop/loop.h"
#include "proto/snapshot/digest_tree.h"
#include "proto/wire/wire.h"
#include "server/base/daemon.h"
#include "server/base/log.h"
#include "server/core/step.h"
#include "server/shard/base.h"
#include "server/shard/collect.h"
#include "server/shard/journal.h"
#include "server/shard/kept.h"
#include "server/shard/memory.h"
#include "server/shard/move.h"
#include "server/shard/need.h"
#include "server/shard/part.h"
#include "server/shard/read.h"
#include "server/shard/state.h"

/* ==== drain ==== */

/* A drain ends a shard after its state was brought to other shards, which the shard asks the
 * coordinator to do (DrainMe). The shard ends when this is done, is impossible or takes too long,
 * or when there is no coordinator to ask. The shard also ends when the coordinator says, at an
 * operator's request, that the shard holds nothing and must end (MemberEnd). Loop thread. */

struct drain {
    uv_timer_t timer; /* fires when the time for the drain is over */
    uint64_t due_ms;  /* the uv_now at which the time for the drain is over */
    bool is_wanted;
    uint64_t asked; /* session.serial when the coordinator was asked; 0: no coordinator was asked */
};

/* Begins the drain, unless it has begun. shard->events.on_end is called, perhaps before this
 * call returns, when the shard holds nothing any longer, when `seconds` (at least 1) have passed,
 * or when the coordinator has refused. */
void shard_drain(struct shard_daemon *shard, uint32_t seconds);
/* ==== unfit ==== */

/* A shard whose device has failed is unfit: no state on the device can be trusted, and every
 * restore on this shard would fail. The shard says so in its Hello, so the coordinator places no
 * more state on the device. Until it ends, the shard serves the jobs that have nothing on the
 * device. The shard ends when it holds no such job any longer; its supervisor may then start it
 * again, with a new context on the device. */

struct unfit {
    bool is_told; /* the Hello of this session reported that the shard is unfit */
    bool is_said; /* the log says that other jobs are still served */
    uint32_t beats;
};

/* Looks whether the device has failed, and acts if it has. Called with each heartbeat, in a session
 * whose Welcome has arrived. This must be the caller's last call, because the shard may be closed
 * in it. */
void unfit_look(struct shard_daemon *shard);

/* ==== shard ==== */

enum {
    /* the most jobs, including idle jobs; two generations of a job count as two */
    CAIRN_SHARD_JOBS_MAX = CAIRN_HELD_JOBS_MAX,
    /* the most members of each job: workers, readers, and relays */
    CAIRN_SHARD_MEMBERS_MAX = 6144,
    /* of each member: the most fetches that wait or are being answered */
    CAIRN_SHARD_REPLIES_MAX = 16,
    /* of each member: the most micro-batch ends whose payload is being received */
    CAIRN_SHARD_NOTES_MAX = 4
};

/* ---- open and close ---- */

/* Called when something happens that the owner of the shard must know. Each callback may close the
 * shard, and each may be NULL. */
struct shard_events {
    /* The first Welcome arrived, so the shard serves. */
    void (*on_ready)(struct shard_daemon *shard, void *context);
    /* The shard must end. CAIRN_OK: shard_drain is done, or the coordinator said so. CAIRN_ERR_FENCED:
     * the coordinator said that this process has lost its place; the log has the coordinator's message.
     * CAIRN_ERR_IO: the shard's device has failed, and the shard holds no job that can do without the
     * device. NULL: the shard continues, and asks for its place in the cluster again. */
    void (*on_end)(struct shard_daemon *shard, cairn_status why, void *context);
    void *context;
};

/* The strings are read only in shard_open, except `build`, which is borrowed, like `hub`, until the
 * shard is closed. */
struct shard_options {
    const char *name;
    const char *coordinator; /* "host:port" or "/path" */
    /* for a coordinator over TCP: the configured file of the token, NULL: none; and the folder of this
     * shard's key and of what --join wrote, NULL: join_state_folder("") */
    const char *token_file, *state;
    /* the folders from which weights may be read, ':' between them; NULL: none */
    const char *import_folders;
    const char *standby_of; /* the shard whose parts this one mirrors; NULL: none */
    const char *log_path;   /* a folder for the logs of jobs (journal.h); NULL or "": none */
    uint64_t log_budget;    /* of each job; 0: by its state */
    const char *domain;     /* it fails as a whole, with this host; NULL: the host alone */
    uint64_t memory_bytes;  /* for state, landing, staging and replies of all jobs */
    /* how much of memory_bytes each job may use for chunks that are fetched for the host */
    uint64_t relay_cache_bytes;
    /* the folder or file that the shards of this host lock while they take memory; NULL: the
     * default */
    const char *memory_lock;
    const char *host_root; /* for headroom_read; NULL: "" */
    uint32_t compute_threads;
    /* "host", "cuda", or "auto": cuda if a device is available, else host; NULL: host */
    const char *backend;
    const char *device;                            /* as in home_open_cuda */
    const char *fabric_kind;                       /* as in fabric_open */
    const char *fabric_device, *fabric_port_range; /* NULL: the fabric's defaults */
    const char *fabric_host;                       /* NULL: the fabric's default */
    const char *build;             /* the name of this program's build; NULL: only the version */
    const char *fabric_transports; /* NULL: the fabric's default; ucx only */
    unsigned fabric_ways;          /* bits of enum fabric_way; auto only */
    enum one_sided fabric_one_sided;
    enum device_memory fabric_device_memory;
    struct fabric_hub *hub; /* mem only */
    /* the keeper handed them over (base/keeper.h): [kept_count]; shard_open takes ownership of
     * them, even on failure */
    struct kept_fd *kept;
    size_t kept_count;
    struct shard_events events;
};

/* Opens a shard, which begins to connect to the coordinator and never stops trying.
 * CAIRN_ERR_CONFIG: the address is bad. CAIRN_ERR_UNREACHABLE: there is no such device or port.
 * CAIRN_ERR_NO_MEMORY. Several shards may live in one process and on one loop. */
CAIRN_MUST_CHECK cairn_status shard_open(uv_loop_t *loop, const struct shard_options *options,
                                         struct shard_daemon **shard_out, struct sentence *why);
/* Ends everything that the shard does, and waits only for items that run on its threads. Forgets
 * all state and frees the shard. The loop calls on_closed (may be NULL) afterwards. */
void shard_close(struct shard_daemon *shard, void (*on_closed)(void *context), void *context);

/* ---- the structs ---- */

enum shard_job_state {
    CAIRN_JOB_LOADING,
    CAIRN_JOB_INITIALIZING,
    CAIRN_JOB_SEALING, /* the first published copy is being made */
    CAIRN_JOB_SERVING,
    CAIRN_JOB_FAULTED,
    CAIRN_JOB_LEAVING
};

struct shard_job {
    struct shard_daemon *shard; /* borrowed */
    struct shard_job *next;
    enum shard_job_state state;
    char *stopped; /* owned: why the job is FAULTED; NULL: it is not */
    /* made from another generation, which still serves: shard_job_find does not find this job yet
     * (jobs.h) */
    bool staged;
    uint64_t number, generation, base_step;
    struct memory_need memory; /* what the job has taken from shard->memory.budget, by kind */
    Cairn__BytesTold bytes;    /* the counts of all members, including those that have left */
    uint32_t busy;             /* how many receives, sends and tasks refer to this job */
    struct request dropping;

    /* the job's definition, owned. The spec is constant; the view changes between rounds: jobs.h */
    struct job_spec_data spec;
    struct shard_view *view; /* the view of the layout in force */
    /* borrowed: the device's compute if planes lie on the device, else the host's. It is used for
     * works on memory of any home; works in one home use shard_job_home */
    struct compute *compute;

    /* the job's data */
    struct terms terms;
    struct job_kept kept;       /* what outlives this process */
    struct job_journal journal; /* what outlives all processes */
    struct state_planes planes;
    struct park park;         /* whether the planes lie in host memory for now */
    struct move move;         /* the state that arrives and leaves when the layout changes */
    struct mirrors mirrors;   /* whose part this one mirrors */
    struct versions versions; /* the versions that can be fetched */
    struct members members;
    struct tiling tiling; /* the parts of the tensors that members hold */

    /* the round: members.c and update.c */
    struct collector collector; /* the collector of the shard's own part */
    struct job_landing landing;
    struct frozen frozen;
    struct job_pass pass;
    struct audit audit;
    struct former former; /* the versions to which it can go back */

    /* the rest of the traffic, in and out */
    struct load load;
    struct job_puts puts;
    struct replies replies;
    struct pins pins;
    struct relay *relays;          /* owned: only the first may be active */
    LIST_HEAD(, neighbours) asked; /* borrowed: the neighbours whose messages are taken */
};

/* Returns for how many members the job's tables have room. */
static inline uint32_t shard_job_member_max(const struct shard_job *of)
{
    return of->collector.slot_count / of->landing.window;
}

/* The calls from the code of earlier headers to later code. There is one such table, in open.c. */
struct shard_up {
    /* Called when nothing refers to the job any longer. */
    void (*unused)(struct shard_job *job);
    /* The functions behind shard_job_fault and shard_job_settle. */
    void (*fault)(struct shard_job *job, const char *why);
    void (*settle)(struct shard_job *job);
    /* Called when the load of a LOADING job has ended. */
    void (*loaded)(struct shard_job *job, cairn_status status, const struct sentence *why,
                   bool puts_follow);
    /* Called when memory that was released is unmapped. */
    void (*memory_back)(struct shard_daemon *shard);
    /* Makes a job from a part that was kept, or, if `part` is NULL, from a journal. The job takes it if the
     * status is CAIRN_OK. */
    cairn_status (*resume)(struct shard_daemon *shard, const struct kept_create *create,
                           struct kept_part *part, struct journal_resumed *journal,
                           struct sentence *why);
    /* Returns how many bytes of memory.limit resume needs, at least. */
    cairn_status (*resume_bytes)(struct shard_daemon *shard, const struct kept_create *create,
                                 uint64_t *bytes_out, struct sentence *why);
    /* Called when no part is being resumed any longer: connection_begin. */
    void (*resumed)(struct shard_daemon *shard);
};
extern const struct shard_up shard_job_up;

/* The connections to members. */
struct shard_connects {
    uint32_t made;    /* how many endpoints to members were made; the last one has this number */
    uv_timer_t again; /* fires when members with `again` set are to be connected */
};

/* The fabric in the loop. */
struct shard_links {
    struct fabric_poll poll;
    /* the functions by which the fabric uses the device; uuid_count 0: it uses no device */
    struct fabric_device imports;
    struct log_limit strangers; /* for the log: messages that belong to no member */
    struct log_limit refusals;  /* for the log: what the fabric refuses */
};

/* The end of a shard that is closing. */
struct shard_end {
    int handles; /* how many things are still being closed; the last one frees the shard */
    /* called when the session's stream, one of these things, is closed */
    void (*stream_closed)(struct shard_daemon *shard);
    void (*on_closed)(void *context);
    void *context;
};

struct shard_daemon {
    /* owned */
    const char *build; /* borrowed */
    char *name, *import_folders;
    char *standby_of; /* the shard whose parts this one mirrors; "": it is no standby */
    char *domain;     /* it fails as a whole, with this host; "": the host alone */
    uint64_t incarnation;
    /* how many times a published copy was shown; each time it gets the next number */
    uint32_t copies_made;
    struct coordinator_session session;
    struct storage_watch storage;
    struct drain drain;
    struct fabric *fabric;
    struct shard_links links;
    struct compute host, device; /* device is all 0 if there is no device */
    struct pool *files;
    struct pool *snapshots; /* one thread, with a lower priority than all other threads: state.h */
    struct shard_memory memory;
    struct shard_kept kept;
    struct shard_journals journals;
    struct shard_job *jobs;        /* at most CAIRN_SHARD_JOBS_MAX jobs, including LEAVING jobs */
    struct arriving_list arriving; /* messages of the coordinator */
    struct arriving_list
        arriving_dropped; /* messages that were dropped while a thread prepares them */

    const struct shard_up *up;
    uint32_t without; /* the optional features that are missing: bits of enum spec_without */
    struct sentence no_device; /* why there is no device; empty: there is a device */
    /* whether the coordinator and the log were told that the device has failed */
    struct unfit unfit;
    uv_loop_t *loop; /* borrowed */
    struct shard_events events;

    Cairn__ShardStats stats;
    struct shard_connects connects;
    uv_timer_t tick_timer;  /* runs while a module waits for something */
    uv_timer_t lease_timer; /* fires when the next lease ends: published.c */

    bool closing;
    struct shard_end end; /* used while the shard is closing */
};

/* ==== modules ==== */

/* A type of message that the coordinator may send to a shard. Either `pages` or one of the handlers
 * is set. */
struct shard_message {
    uint16_t type; /* 0: the end of a table of messages */
    bool from_any; /* handled even if this shard does not obey the coordinator */
    const struct arriving_kind *pages; /* set if pages follow: arriving_begin takes the message */
    /* Handles a message about a job, which this shard holds and which is not faulted. */
    void (*on_job)(struct shard_job *job, const void *message);
    void (*on_shard)(struct shard_daemon *shard, const void *message);
    /* The same two, for messages that are answered. */
    void (*ask_job)(struct shard_job *job, struct request asked, const void *message);
    void (*ask_shard)(struct shard_daemon *shard, struct request asked, const void *message);
};

/* Events of a job that concern several modules. */
enum shard_event {
    SHARD_JOB_STOPS, /* the job does no more work, because it is faulted or leaves */
    /* the job leaves, or the shard closes: the job's work on threads is to end soon */
    SHARD_JOB_CANCELS,
    SHARD_JOB_LEAVES, /* the job leaves; STOPS and CANCELS were told before */
    /* the job is being freed: nothing refers to it, or the fabric and the pools are closed */
    SHARD_JOB_FREED,
    /* the collector may have come to rest, for which a Fence may wait (job->move.fence) */
    SHARD_JOB_MAY_REST,
    /* all sends out of a published copy have ended, for which an UPDATE may wait */
    SHARD_COPIES_ENDED,
    /* the job goes on with what a process before left, and the layout that was prepared is to be
     * prepared again (kept_prepare_next) */
    SHARD_JOB_RESUMES,
    SHARD_JOB_CHANGED,   /* the part serves, or its spec has changed */
    SHARD_SESSION_ENDED, /* the session with the coordinator has ended */
    SHARD_EVENTS
};

/* A module is the code of one subject. Code that serves all subjects knows modules only by this
 * struct. */
struct shard_module {
    const struct shard_message *messages; /* NULL: none */
    /* what the module does at each event; NULL: nothing */
    void (*const on[SHARD_EVENTS])(struct shard_job *job);
    /* The module's tick, which returns true if the module waits for something. After shard_wake all
     * ticks are called for all jobs every CAIRN_SHARD_TICK_MS, until all of them return false. May
     * be NULL. */
    bool (*tick)(struct shard_job *job, uint64_t now_ms);
};
#define CAIRN_SHARD_TICK_MS 20

extern const struct shard_module audit_module, create_module, fetch_module, held_module,
    journal_module, kept_module, kept_resume_module, member_module, mirror_module, move_module,
    park_module, pin_module, published_module, put_module, relay_module, reserve_module,
    restore_module, round_module, session_module, tile_module, update_module, terms_module;

/* All modules, in the order in which they are told of events. In this order a relay and a move end
 * before the members leave, and the members leave before the replies that they keep are freed. */
extern const struct shard_module *const shard_modules[];
extern const size_t shard_module_count;

/* Tells all modules of the event, in the order of shard_modules. */
void shard_tell(struct shard_job *job, enum shard_event event);
/* Starts the ticks. Call it when a module has something to wait for. */
void shard_wake(struct shard_daemon *shard);

/* ==== connection ==== */

/* The connection to the coordinator. It opens a session and, when that session is lost, the next
 * session. Loop thread. */

CAIRN_MUST_CHECK cairn_status connection_open(struct shard_daemon *shard,
                                              const struct shard_options *options,
                                              struct sentence *why);
/* Connects, at first and after each loss. Called after connection_open, when no part is being
 * resumed. */
void connection_begin(struct shard_daemon *shard);
void connection_close(struct shard_daemon *shard, uv_close_cb on_timer_closed);
/* Frees session.keys, the keys that the coordinator trusts. */
void held_keys_release(struct shard_daemon *shard);
/* Sends a heartbeat now. */
void connection_beat(struct shard_daemon *shard);

/* handlers.c: handles the coordinator's messages. */
void shard_on_frame(struct shard_daemon *shard, const struct wire_frame *frame);

/* ==== device ==== */

/* If there is a device, fills in the counts of all work that the device has done. */
void shard_device_stats(const struct shard_daemon *shard, Cairn__ShardStats *stats);
/* Fills in the description of the device, or of the host if there is no device. `out` borrows from
 * the shard. */
void device_tell(struct shard_daemon *shard, Cairn__Home *out);

/* ==== landing ==== */

/* Handles messages from the fabric. Each message is judged, then received, answered or dropped.
 * Loop thread. */

void landing_on_message(void *shard, const void *header, size_t header_bytes, size_t payload_bytes,
                        struct fabric_message *message);

#endif
