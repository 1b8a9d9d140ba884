/* A shard: one daemon's part of every job's state, and the struct to read first.
 *
 *  coordinator ─ connection.c ─ handlers.c ┐                    ┌► grant, ack, refuse: base.c
 *                                          ├ step.h ─ members.c ┼► fold, reduce, update: update.c
 *  workers ────────────────── handlers.c ──┘ (core)             └► reduced, published: base.c
 *
 * The headers, from the ground up. No header includes a later header (tests/tree/tidy.py checks that).
 * Earlier headers call later ones through struct shard_up:
 *   need.h        how much memory a job's part takes, to the byte
 *   base.h        what all others use: the session's sends, works on state, a job's ledger, its members,
 *                 the other shards that it asks
 *   memory.h      the memory of a job: reserved, made, given back; the planes in which the state lies
 *   collect.h     the contributions of workers: judged, landed, folded; the tiles that workers hold
 *   read.h        the versions that can be fetched, the leased ones, and the fetches
 *   state.h       the initial state (load, put), writes, snapshots and digests (pin)
 *   part.h        the terms, times, passes, parking and admission of a job's part
 *   move.h        the state that the part gets and gives when the layout changes
 *   shard.h       the shard itself; its connection, its device, its storage, its draining
 *   jobs.h        a complete job: made, held, freed; its members' connections; its own part's rounds
 *   relay.h       does for other owners, on behalf of this host's workers, what collect.h and read.h do
 *
 * One loop thread runs the control session, the fabric and the cores, and makes every decision. Pools
 * (server/base/daemon.h) work for it: the pools of `host` and `device` do arithmetic on the state, each in
 * its home (base.h), `files` (one thread) reads snapshots, `snapshots` (one) writes them, `memory` makes
 * pages. A pool owns the memory that its task touches until `done` has run on the loop thread. The
 * exception is the state that `snapshots` reads while it is updated: state.h.
 *
 * Memory: a job's part is counted, admitted against the free memory of the host and its control groups, and
 * made; or it is refused (need.h, memory.h). The same holds for a worker's landing slots, from when the
 * worker joins until it leaves. Between landing and publishing nothing is allocated. Replies (read.h) and
 * staging are allocated under bounds and counted.
 *
 * A job's life: LOADING (a snapshot → SEALING; state made by put.c → INITIALIZING) or INITIALIZING (puts) →
 * SEALING → SERVING → LEAVING. A job that is dropped is LEAVING until nothing in flight refers to it
 * (`busy` is 0); then it is freed. FAULTED: the job's coordinator broke the protocol; the job does no more
 * work. A generation made from the serving one is `staged`, a second job of the same number: jobs.h. */
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
#include "server/shard/memory.h"
#include "server/shard/move.h"
#include "server/shard/need.h"
#include "server/shard/part.h"
#include "server/shard/read.h"
#include "server/shard/state.h"

/* ==== drain ==== */

/* The end of a shard that first gives up the state that it holds: it asks the coordinator to bring the
 * state to other shards (DrainMe). The shard ends when that is done, is impossible or takes too long, or
 * when there is no coordinator to ask. It also ends when the coordinator, at an operator's request, says
 * that the shard holds nothing and must end (MemberEnd). Loop thread. */

struct drain {
    uv_timer_t timer; /* ends the time allowed */
    uint64_t due_ms;  /* uv_now of that end */
    bool is_wanted;
    uint64_t asked; /* session.serial when the coordinator was asked; 0: it has not been asked */
};

/* Begins the drain, once. shard->events.on_drained follows, perhaps at once: when the shard's parts are on
 * other shards, or `seconds` (at least 1) have passed, or the coordinator refused. */
void shard_drain(struct shard_daemon *shard, uint32_t seconds);
/* ==== unfit ==== */

/* A shard whose device has failed is unfit: no state on the device can be trusted, and every restore on
 * this shard would fail. The shard says so in its Hello, so the coordinator places no more state on the
 * device. The shard ends as soon as it holds nothing else; its supervisor may then start it with a new
 * context. Until then the shard serves the jobs that have nothing on the device. */

struct unfit {
    bool is_told; /* the Hello of this session reported it */
    bool is_said; /* the log says that other jobs are still served */
    uint32_t beats;
};

/* Called with each heartbeat, in a welcomed session. This must be the caller's last call, because the shard
 * may be closed in it. */
void unfit_look(struct shard_daemon *shard);

/* ==== shard ==== */

enum {
    /* including idle ones, and two generations of a job */
    CAIRN_SHARD_JOBS_MAX = CAIRN_HELD_JOBS_MAX,
    /* of each job: workers, readers, relays of two workers or more */
    CAIRN_SHARD_MEMBERS_MAX = 6144,
    CAIRN_SHARD_REPLIES_MAX = 16, /* of each member: fetches that wait or are being sent */
    CAIRN_SHARD_NOTES_MAX = 4 /* of each member: micro-batch ends whose payload is being received */
};

/* ---- open and close ---- */

/* The owner of a shard is told of these. The callbacks may close the shard; each may be NULL. */
struct shard_events {
    /* The first Welcome arrived: the shard serves; the callback may close it. May be NULL. */
    void (*on_ready)(struct shard_daemon *shard, void *context);
    /* The coordinator said that this process must end (the log has its message). The callback may close the
     * shard. NULL: the shard continues to ask for its place. */
    void (*on_fenced)(struct shard_daemon *shard, void *context);
    /* The shard must end, because shard_drain is done or the coordinator said so. The callback may close
     * the shard. NULL: the shard continues. */
    void (*on_drained)(struct shard_daemon *shard, void *context);
    /* The shard's device failed, and the shard holds nothing else. The callback may close the shard. NULL:
     * the shard continues. */
    void (*on_unfit)(struct shard_daemon *shard, void *context);
    void *context;
};

/* Strings are copied; the hub is borrowed until the shard is closed. */
struct shard_options {
    const char *name;
    const char *coordinator;    /* "host:port" */
    const char *import_folders; /* from which weights may be read, ':' between them; NULL: none */
    uint64_t memory_bytes;      /* for state, landing, staging and replies of all jobs */
    uint64_t relay_cache_bytes; /* of memory_bytes, for each job: chunks fetched for the host */
    /* the folder or file that the shards of this host lock to take memory; NULL: the default */
    const char *memory_lock;
    const char *host_root; /* for headroom_read; NULL: "" */
    uint32_t compute_threads;
    const char *backend;     /* "host", "cuda", "auto": cuda if it is available; NULL: host */
    const char *device;      /* as in home_open_cuda */
    const char *fabric_kind; /* as in fabric_open */
    const char *fabric_device, *fabric_port_range; /* NULL: the fabric's defaults; ucx only */
    const char *fabric_host;                       /* NULL: the fabric's default */
    const char *build;             /* the name of this program's build; NULL: only the version */
    const char *fabric_transports; /* NULL: the fabric's default; ucx only */
    enum one_sided fabric_one_sided;
    enum device_memory fabric_device_memory;
    struct fabric_hub *hub; /* mem only */
    struct shard_events events;
};

/* Opens the fabric and begins to connect; the shard never stops trying. CAIRN_ERR_CONFIG: a bad address.
 * CAIRN_ERR_UNREACHABLE: no such device or port. CAIRN_ERR_NO_MEMORY. Several shards may live in one
 * process and on one loop. */
CAIRN_MUST_CHECK cairn_status shard_open(uv_loop_t *loop, const struct shard_options *options,
                                         struct shard_daemon **shard_out, struct sentence *why);
/* Ends everything at once, except that it waits for items that run on the threads. Forgets all state and
 * frees the shard. The loop calls on_closed (may be NULL) afterwards. */
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
    /* made from another generation, which still serves: only handlers.c sees this job */
    bool staged;
    uint64_t number, generation, base_step;
    struct memory_need memory; /* taken from shard->memory.budget, by kind */
    Cairn__BytesTold bytes;    /* of all members so far */
    uint32_t busy;             /* receives, sends and tasks that refer to this job */
    struct request dropping;

    /* the job's definition; owned: the spec is constant, the view changes between rounds: jobs.h */
    struct job_spec_data spec;
    struct shard_view *view; /* of the layout in force */
    /* borrowed: the device's compute if planes lie on the device, else the host's. Works that may use any
     * memory use this compute, all other works use shard_job_home */
    struct compute *compute;

    /* the job's data */
    struct terms terms;
    struct state_planes planes;
    struct park park;         /* of the planes: the memory in which they lie for now */
    struct move move;         /* of the planes: the state that arrives and leaves */
    struct versions versions; /* the versions that can be fetched */
    struct members members;
    struct tiling tiling; /* the parts of the tensors that members hold */

    /* the round: members.c and update.c */
    struct collector collector; /* of the own part */
    struct job_landing landing;
    struct frozen frozen;
    struct job_pass pass;

    /* the rest of the traffic, in and out */
    struct load load;
    struct job_puts puts;
    struct replies replies;
    struct pins pins;
    struct relay *relays;          /* owned: the first may be active */
    LIST_HEAD(, neighbours) asked; /* borrowed: the other shards whose messages are taken */
};

/* The calls from lower modules to higher ones. There is one such table, in open.c. */
struct shard_up {
    /* Nothing refers to the job any longer. */
    void (*unused)(struct shard_job *job);
    /* shard_job_fault, shard_job_settle */
    void (*fault)(struct shard_job *job, const char *why);
    void (*settle)(struct shard_job *job);
    /* The load of a LOADING job has ended. */
    void (*loaded)(struct shard_job *job, cairn_status status, const struct sentence *why,
                   bool puts_follow);
    /* Memory that was released is unmapped. */
    void (*memory_back)(struct shard_daemon *shard);
};
extern const struct shard_up shard_job_up;

/* The connections to members. */
struct shard_connects {
    uint32_t made;    /* endpoints to members so far: the number of the last one */
    uv_timer_t again; /* the next try to connect members with `again` set */
};

/* The fabric in the loop. */
struct shard_links {
    struct fabric_poll poll;
    /* the calls that the fabric makes to `device`; uuid_count 0: none */
    struct fabric_device imports;
    struct log_limit strangers; /* messages that belong to no member */
    struct log_limit refusals;  /* of the fabric */
};

/* The end of a shard that is closing. */
struct shard_end {
    int handles;                                       /* of libuv, still open */
    void (*stream_closed)(struct shard_daemon *shard); /* the session's stream is one of them */
    void (*on_closed)(void *context);
    void *context;
};

struct shard_daemon {
    /* owned */
    const char *build; /* borrowed */
    char *name, *import_folders;
    uint64_t incarnation;
    uint32_t copies_made; /* published copies so far: each has a number */
    struct coordinator_session session;
    struct storage_watch storage;
    struct drain drain;
    struct fabric *fabric;
    struct shard_links links;
    struct compute host, device; /* device: all 0 if there is none */
    struct pool *files;
    struct pool *snapshots; /* one thread, with a lower priority than all others: state.h */
    struct shard_memory memory;
    struct shard_job *jobs;        /* at most CAIRN_SHARD_JOBS_MAX, LEAVING ones included */
    struct arriving_list arriving; /* messages of the coordinator */
    struct arriving_list
        arriving_dropped; /* those that were dropped, and that a thread still prepares */

    const struct shard_up *up;
    uint32_t without;          /* bits of enum spec_without */
    struct sentence no_device; /* why there is no device; empty: there is a device */
    struct unfit unfit;        /* the device failed */
    uv_loop_t *loop;           /* borrowed */
    struct shard_events events;

    Cairn__ShardStats stats;
    struct shard_connects connects;
    uv_timer_t tick_timer;  /* while a module waits for something */
    uv_timer_t lease_timer; /* at the next end of a lease: published.c */

    bool closing;
    struct shard_end end; /* while closing */
};

/* ==== modules ==== */

/* A message that the coordinator may send to a shard. One of the handlers is set. */
struct shard_message {
    uint16_t type; /* 0: the end of a table */
    bool from_any; /* handled even if this shard does not obey the coordinator */
    const struct arriving_kind *pages; /* pages follow: arriving_begin takes the message */
    /* The message is about a job that this shard holds, and that is not faulted. */
    void (*on_job)(struct shard_job *job, const void *message);
    void (*on_shard)(struct shard_daemon *shard, const void *message);
    /* Likewise for a message that is answered. */
    void (*ask_job)(struct shard_job *job, struct request asked, const void *message);
    void (*ask_shard)(struct shard_daemon *shard, struct request asked, const void *message);
};

/* Events of a job that concern several modules. */
enum shard_event {
    SHARD_JOB_STOPS,   /* it does no more work: it is faulted, or leaves */
    SHARD_JOB_CANCELS, /* it leaves, or the shard closes: work on threads is to end soon */
    SHARD_JOB_LEAVES,  /* the above has happened */
    SHARD_JOB_FREED,   /* nothing refers to it, or the fabric and the pools are closed */
    SHARD_JOB_MAY_REST, /* the collector may be at rest: a Fence may wait for that (job->move.fence) */
    SHARD_COPIES_ENDED,  /* sends out of a published copy: an UPDATE may wait for that */
    SHARD_SESSION_ENDED, /* the session with the coordinator */
    SHARD_EVENTS
};

/* A module: the code of one subject, as the files that serve all subjects see it. */
struct shard_module {
    const struct shard_message *messages;                  /* NULL: none */
    void (*const on[SHARD_EVENTS])(struct shard_job *job); /* NULL: nothing follows */
    /* Called every CAIRN_SHARD_TICK_MS, as long as it returns true for a job; shard_wake begins that. */
    bool (*tick)(struct shard_job *job, uint64_t now_ms);
};
#define CAIRN_SHARD_TICK_MS 20

extern const struct shard_module create_module, fetch_module, held_module, member_module,
    move_module, park_module, pin_module, published_module, put_module, relay_module,
    reserve_module, restore_module, round_module, session_module, tile_module, update_module;

/* All modules, in the order in which they are told of events: a relay and a move end before the members
 * leave, and the members before the replies that they keep. */
extern const struct shard_module *const shard_modules[];
extern const size_t shard_module_count;

/* Tells all modules, in their order. */
void shard_tell(struct shard_job *job, enum shard_event event);
/* Starts the ticks, when a module has something to wait for. */
void shard_wake(struct shard_daemon *shard);

/* ==== connection ==== */

/* The connection to the coordinator: opens a session and, after a loss, the next one. Loop thread. */

CAIRN_MUST_CHECK cairn_status connection_open(struct shard_daemon *shard, const char *coordinator,
                                              struct sentence *why);
void connection_close(struct shard_daemon *shard, uv_close_cb on_timer_closed);
/* Forgets the keys that the coordinator trusts. */
void held_keys_release(struct shard_daemon *shard);
/* Sends a heartbeat now. */
void connection_beat(struct shard_daemon *shard);

/* handlers.c: handles the coordinator's messages. */
void shard_on_frame(struct shard_daemon *shard, const struct wire_frame *frame);

/* ==== device ==== */

/* Fills in the counts of the device's work so far, if there is a device. */
void shard_device_stats(const struct shard_daemon *shard, Cairn__ShardStats *stats);
/* Fills in the description of the device, or of the host if there is none. `out` borrows from the
 * shard. */
void device_tell(struct shard_daemon *shard, Cairn__Home *out);

/* ==== landing ==== */

/* Messages from the fabric: each message is judged, then received, answered or dropped. Loop thread. */

void landing_on_message(void *shard, const void *header, size_t header_bytes, size_t payload_bytes,
                        struct fabric_message *message);

#endif
