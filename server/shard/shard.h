/* A shard: one daemon's part of every job's state, and the struct to read first.
 *
 *  coordinator ─ connection.c ─ handlers.c ┐                    ┌► grant, ack, refuse: base.c
 *                                          ├ step.h ─ members.c ┼► fold, reduce, update: update.c
 *  workers ────────────────── handlers.c ──┘ (core)             └► reduced, published: base.c
 *
 * The headers, from the ground up; none includes one behind it (tests/tree/tidy.py holds that). A lower
 * one tells those behind it by struct shard_up:
 *   base.h        what all stand on: the session's sends, works on state, a job's ledger, its members
 *   memory.h      what a job takes: reserved, made, given back; the planes that the state lies in
 *   collect.h     what workers push: judged, landed, folded; which tiles workers hold
 *   read.h        the versions that can be fetched, those kept for longer, and the fetches
 *   state.h       the initial state (load, put), writes, snapshots and digests (pin)
 *   need.h        how much memory a job's part takes, to the byte
 *   part.h        what a job's part goes by: terms, times, passes over it, parking, admission
 *   move.h        what comes to the part and goes from it when the layout changes
 *   shard.h       the shard itself; its connection, its device, its storage, what drains it
 *   jobs.h        a job as a whole: made, held, freed; its members' connections; its own part's rounds
 *   relay.h       what collect.h and read.h do, for owners elsewhere, on behalf of the workers of this host
 *
 * One loop thread runs the control session, the fabric and the cores, and makes every decision.
 * Pools (server/base/daemon.h) work for it: those of `host` and `device` do arithmetic on the
 * state, each in its home (base.h), `files` (one thread) reads snapshots, `snapshots` (one) writes
 * them, `memory` makes pages. A pool owns the memory that its task touches until `done` has run on
 * the loop thread. The exception is the state that `snapshots` reads while it is updated: state.h.
 *
 * Memory: a job's part is counted, admitted against what the host and its control groups have, and
 * made; or it is refused (need.h, memory.h). The same holds for landing slots, from when a worker
 * joins until it leaves. Between landing and publishing nothing is allocated. Replies (read.h) and
 * staging are allocated under bounds and counted.
 *
 * A job's life: LOADING (a snapshot → SEALING; what put.c makes → INITIALIZING) or INITIALIZING
 * (puts) → SEALING → SERVING → LEAVING. A job that is dropped is LEAVING until nothing in flight
 * refers to it (`busy` is 0); then it is freed. FAULTED: the job's coordinator broke the protocol;
 * the job does nothing any more. A generation made of the one that serves is `staged`, a second job
 * of its number: jobs.h. */
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

/* The end of a shard that gives up first what it holds: it asks the coordinator to bring it to other shards
 * (DrainMe), and ends when that is done, cannot be, takes too long, or nobody is there to ask; or when the
 * coordinator, by an operator's word, says that it holds nothing and is to end (MemberEnd). Loop thread. */

struct drain {
    uv_timer_t timer; /* the end of the time that there is */
    uint64_t due_ms;  /* uv_now of that */
    bool is_wanted;
    uint64_t asked; /* session.serial when the coordinator was asked; 0: it was not */
};

/* Once. shard->events.on_drained follows, perhaps at once: its parts are elsewhere, or `seconds` (at least
 * 1) have passed, or the coordinator refused. */
void shard_drain(struct shard_daemon *shard, uint32_t seconds);
/* A session began: a coordinator that was not asked is. */
void drain_on_welcome(struct shard_daemon *shard);
/* It ended, though it was welcome: for the next one it is waited for two leases. */
void drain_on_lost(struct shard_daemon *shard);
/* A frame of the coordinator. True: it was the answer to DrainMe, or MemberEnd; the shard may be closed. */
bool drain_on_message(struct shard_daemon *shard, const struct wire_frame *frame,
                      const ProtobufCMessage *message);

/* ==== storage ==== */

/* The storage of the snapshots, as this shard sees it: what is wrong goes with the heartbeats. Loop thread.
 * */

/* ==== unfit ==== */

/* A shard whose device has failed is unfit: nothing that lies on the device can be trusted, and each restore
 * that came here would fail. The shard says so in its Hello, by which nothing that would lie there comes. It
 * ends as soon as it holds nothing else, so that whoever started it may start it with a new context, or not;
 * until then it serves the jobs of which it has nothing on the device. */

struct unfit {
    bool is_told; /* the Hello of this session said it */
    bool is_said; /* in the log, that other jobs are served on */
    uint32_t beats;
};

/* With each heartbeat, in a session that stands. The last word: the shard may be closed in it. */
void unfit_look(struct shard_daemon *shard);

/* ==== shard ==== */

enum {
    CAIRN_SHARD_JOBS_MAX = CAIRN_HELD_JOBS_MAX, /* idle ones, and two generations of one, too */
    CAIRN_SHARD_MEMBERS_MAX = 6144, /* of a job: workers, readers, relays of two workers or more */
    CAIRN_SHARD_REPLIES_MAX = 16,   /* of a member: fetches that wait or are being sent */
    CAIRN_SHARD_NOTES_MAX = 4 /* of a member: micro-batch ends whose payload is being received */
};

/* ---- open and close ---- */

/* Strings are copied; the hub is borrowed until the shard is closed. */
struct shard_options {
    const char *name;
    const char *coordinator;    /* "host:port" */
    const char *import_folders; /* that weights may be read from, ':' between them; NULL: none */
    uint64_t memory_bytes;      /* for state, landing, staging and replies of all jobs */
    uint64_t relay_cache_bytes; /* of them for what is fetched for a host, of a job */
    const char *memory_lock; /* what the shards of this host lock to take memory; NULL: as usual */
    const char *host_root;   /* of headroom_read; NULL: "" */
    uint32_t compute_threads;
    const char *backend;     /* "host", "cuda", "auto": cuda if it can be had; NULL: host */
    const char *device;      /* as of home_open_cuda */
    const char *fabric_kind; /* as of fabric_open */
    const char *fabric_device, *fabric_port_range; /* NULL: the fabric's defaults; ucx only */
    const char *fabric_host;                       /* NULL: the fabric's default */
    const char *build;             /* what this program calls its build; NULL: the version alone */
    const char *fabric_transports; /* NULL: the fabric's default; ucx only */
    enum one_sided fabric_one_sided;
    enum device_memory fabric_device_memory;
    struct fabric_hub *hub; /* mem only */
    /* The first Welcome came: the shard serves; it may be closed in here. May be NULL. */
    void (*on_ready)(struct shard_daemon *shard, void *context);
    /* The coordinator said that this process is to end (the log has the sentence); it may be closed in here.
     * NULL: it goes on asking for its place. */
    void (*on_fenced)(struct shard_daemon *shard, void *context);
    /* It is time to end: of shard_drain, or the coordinator said so; it may be closed in here. NULL:
     * it goes on. */
    void (*on_drained)(struct shard_daemon *shard, void *context);
    /* Its device failed, and it holds nothing else; it may be closed in here. NULL: it goes on. */
    void (*on_unfit)(struct shard_daemon *shard, void *context);
    void *context;
};

/* Opens the fabric and begins to connect; goes on trying for ever. CAIRN_ERR_CONFIG: a bad address.
 * CAIRN_ERR_UNREACHABLE: no such device or port. CAIRN_ERR_NO_MEMORY. Several shards may live in one
 * process and on one loop. */
CAIRN_MUST_CHECK cairn_status shard_open(uv_loop_t *loop, const struct shard_options *options,
                                         struct shard_daemon **shard_out, struct sentence *why);
/* Ends everything at once (waits for items that run on the threads), forgets all state, frees the
 * shard; on_closed (may be NULL) follows from the loop. */
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
    bool staged; /* made of another generation, which still serves: only handlers.c sees it */
    uint64_t number, generation, base_step;
    struct memory_need memory; /* taken of shard->memory.budget, by kind */
    struct bytes bytes;        /* of all members that there were */
    uint32_t busy;             /* receives, sends and tasks that refer to this job */
    struct request dropping;

    /* what it is; owned: the spec is constant, the view changes between rounds: jobs.h */
    struct job_spec_data spec;
    struct shard_view *view; /* of the layout in force */
    /* borrowed: that of the device if planes lie there, else the host's; works that take any memory go by it,
     * all others by shard_job_home */
    struct compute *compute;

    /* what it has */
    struct terms terms;
    struct state_planes planes;
    struct park park;         /* of these, where they lie for now */
    struct move move;         /* of these, what comes and goes */
    struct versions versions; /* that can be fetched */
    struct members members;
    struct tiling tiling; /* what members hold of the tensors */

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
    struct relay *relays; /* owned: the first may work */
};

/* The calls by which rooms tell the rooms above them. There is one table, in shard.c. */
struct shard_up {
    /* Nothing refers to the job any more. */
    void (*unused)(struct shard_job *job);
    /* shard_job_fault, shard_job_settle */
    void (*fault)(struct shard_job *job, const char *why);
    void (*settle)(struct shard_job *job);
    /* The load of a LOADING job has ended. */
    void (*loaded)(struct shard_job *job, cairn_status status, const struct sentence *why,
                   bool puts_follow);
    /* Sends out of a published copy have ended: an UPDATE may wait for that. */
    void (*copies_ended)(struct shard_job *job);
    /* The collector may rest, and a Fence waits for that: job->move.fence. */
    void (*rests)(struct shard_job *job);
    /* The job does nothing any more, or (moves_free) is being freed: its moves end. */
    void (*moves_end)(struct shard_job *job);
    void (*moves_free)(struct shard_job *job);
    /* Memory that was released is unmapped. */
    void (*memory_back)(struct shard_daemon *shard);
    /* While the shard closes, the stream of the session is gone. */
    void (*stream_closed)(struct shard_daemon *shard);
};

struct shard_daemon {
    /* owned */
    const char *build; /* borrowed */
    char *name, *import_folders;
    uint64_t incarnation;
    uint32_t copies_made; /* published ones: each has a number */
    struct coordinator_session session;
    struct storage_watch storage;
    struct drain drain;
    struct wall wall;
    struct fabric *fabric;
    struct fabric_poll poll;
    struct compute host, device; /* device: all 0 if there is none */
    /* what the fabric asks of `device`; uuid_count 0: nothing */
    struct fabric_device imports;
    struct pool *files;
    struct pool *snapshots; /* one thread, which gives way to all others: state.h */
    struct shard_memory memory;
    struct shard_job *jobs;          /* at most CAIRN_SHARD_JOBS_MAX, LEAVING ones included */
    TAILQ_HEAD(, arriving) arriving; /* messages of the coordinator whose pages are on their way */
    TAILQ_HEAD(, arriving) arriving_dropped; /* of them, those that a thread still prepares */
    struct coordinator_id seen; /* the newest coordinator that was obeyed; of what is held */
    Cairn__Keys *keys;          /* those that it trusts; NULL: it has told of none */
    uint64_t relay_cache_bytes; /* of the memory, at most, for the relay of a job */
    uint64_t unheard_ms;        /* so long a shard may say nothing before it is told */

    const struct shard_up *up;
    uint32_t without;          /* bits of enum spec_without */
    struct sentence no_device; /* why there is no device; empty: there is one */
    struct unfit unfit;        /* the device failed */
    uv_loop_t *loop;           /* borrowed */
    struct {
        void (*on_ready)(struct shard_daemon *shard, void *context);
        void (*on_fenced)(struct shard_daemon *shard, void *context);
        void (*on_drained)(struct shard_daemon *shard, void *context);
        void (*on_unfit)(struct shard_daemon *shard, void *context);
        void *context;
    } events; /* as of shard_options */

    Cairn__ShardStats stats;
    struct {
        uint32_t made;    /* endpoints to members: the number of the last one */
        uv_timer_t again; /* the next try to connect members with `again` */
    } connects;
    uv_timer_t relay_timer;     /* while a relay waits for something */
    uv_timer_t lease_timer;     /* the next end of a lease: published.c */
    uv_timer_t move_timer;      /* while a move waits for something: move.c */
    struct log_limit strangers; /* messages that belong to nobody */
    struct log_limit fabric_refusals;

    bool closing;
    struct {
        int handles; /* of libuv, that are still open */
        void (*on_closed)(void *context);
        void *context;
    } end; /* while closing */
};

/* ==== connection ==== */

/* The connection to the coordinator, which opens a session and, after a loss, the next. Loop thread. */

CAIRN_MUST_CHECK cairn_status connection_open(struct shard_daemon *shard, const char *coordinator,
                                              struct sentence *why);
void connection_close(struct shard_daemon *shard, uv_close_cb on_timer_closed);
/* A heartbeat now. */
void connection_beat(struct shard_daemon *shard);

/* handlers.c: what the coordinator says. */
void shard_on_frame(struct shard_daemon *shard, const struct wire_frame *frame);

/* ==== addresses ==== */

/* The devices that bulk data goes over, and their addresses. At boot a device may be made late (a bond, a
 * virtual function), and may be there before its address is (DHCP, a switch that takes its time). UCX cannot
 * be opened on it then, and a daemon that ended for that, again and again, would be given up by its
 * supervisor. So it waits, and says for what. Loop thread. */

struct addresses {
    uv_timer_t timer;
    const char *devices; /* borrowed: as fabric.device has them */
    uint64_t said_ms;    /* uv_now */
    bool said_absent;    /* then: no device, and not no address */
    void (*on_there)(void *context);
    void *context;
};

/* The first of these devices that this host does not have. */
bool addresses_find_absent(const char *devices, char out[CAIRN_PLACE_DEVICES_BYTES]);
/* Calls on_there when this host has all of these devices, and each network one that is up and has an address;
 * at once if so, else from the loop. */
void addresses_await(struct addresses *addresses, uv_loop_t *loop, const char *devices,
                     void (*on_there)(void *context), void *context);
/* Safe to call again. on_there is not called any more. */
void addresses_close(struct addresses *addresses);

/* ==== device ==== */

/* Fills in what the device has done so far, if there is one. */
void shard_device_stats(const struct shard_daemon *shard, Cairn__ShardStats *stats);
/* Fills in the description of the device, or of the host if there is none. `out` borrows from the
 * shard. */
void device_tell(struct shard_daemon *shard, Cairn__Home *out);

/* ==== landing ==== */

/* Messages from the fabric: each one is judged, then received, answered or dropped. Loop thread. */

void landing_on_message(void *shard, const void *header, size_t header_bytes, size_t payload_bytes,
                        struct fabric_message *message);

#endif
