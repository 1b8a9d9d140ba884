/* A shard: one daemon's part of every job's state, and the struct to read first.
 *
 *   coordinator ── session.c ── handlers.c ─┐           ┌─ act.c ─► grant, ack, refuse (member.c)
 *                                            ├─ step.h ──┼─ act.c ─► fold, reduce, update (round.c)
 *   workers ────── landing.c ────────────────┘  (core)   └─ act.c ─► reduced, published (session.c)
 *                  put.c, origin.c: initial state    publish.c: fetch    pin.c, restore.c: snapshots
 *                  published.c: the versions that can be fetched    leases.c: those kept for longer
 *                  tiles.c: what workers hold of the tensors
 *
 * One loop thread runs the control session, the fabric and the cores, and makes every decision. Three
 * pools (pool.h) work for it: `compute` does arithmetic on the state, `files` (one thread) reads and
 * writes snapshots, `memory` makes pages. What they touch is theirs until the task's `done` has run on
 * the loop.
 *
 * Memory: a job's part is counted, admitted against what the host and its control groups have, and made, or
 * it is refused (need.h, reserve.h); landing slots likewise as workers join, until they leave. Between
 * landing and publishing nothing is allocated. Replies and staging are allocated under bounds and counted.
 *
 * A job's life: LOADING (a snapshot → SEALING; what origin.c makes → INITIALIZING) or INITIALIZING (puts)
 * → SEALING → SERVING → LEAVING. A job that is dropped is LEAVING until nothing in flight refers to it
 * (`busy` is 0); then it is freed. FAULTED: its coordinator broke the protocol; it does nothing any more.
 * A generation made of the one that serves is `staged`, a second job of its number: extend.h. */
#ifndef CAIRN_SHARD_SHARD_H
#define CAIRN_SHARD_SHARD_H

#include <uv.h>

#include "gpu/gpu.h"
#include "proto/fabric/fabric.h"
#include "proto/fabric/mem.h"
#include "proto/loop/fabric_poll.h"
#include "proto/loop/stream.h"
#include "proto/wire/chunk.h"
#include "proto/wire/digest_tree.h"
#include "proto/wire/layout.h"
#include "proto/wire/messages.h"
#include "proto/wire/tiles.h"
#include "server/base/log.h"
#include "server/base/pool.h"
#include "server/core/standing.h"
#include "server/core/step.h"
#include "server/shard/arena.h"
#include "server/shard/bytes.h"
#include "server/shard/leases.h"
#include "server/shard/need.h"
#include "server/shard/published.h"
#include "server/shard/reserve.h"
#include "server/shard/storage.h"

enum {
    CAIRN_SHARD_JOBS_MAX = 64,
    CAIRN_SHARD_MEMBERS_MAX = 6144, /* of a job: workers, readers, relays of two workers or more */
    CAIRN_SHARD_REPLIES_MAX = 16,   /* fetches of a member that wait or are being sent */
    CAIRN_SHARD_NOTES_MAX = 4, /* micro-batch ends of a member whose payload is being received */
    CAIRN_SHARD_PUTS_MAX = 16, /* puts of a job being received */
    CAIRN_SHARD_PINS_MAX = 4   /* snapshots and digests of a job at a time */
};

struct cairn_shard;
struct cairn_shard_job;

/* ---- open and close ---- */

/* Strings are copied; the hub is borrowed until the shard is closed. */
struct cairn_shard_options {
    const char *name;
    const char *coordinator;    /* "host:port" */
    const char *import_folders; /* that weights may be read from, ':' between them; NULL: none */
    uint64_t memory_bytes;      /* for state, landing, staging and replies of all jobs */
    uint64_t relay_cache_bytes; /* of them for what is fetched for a host, of a job */
    const char *memory_lock; /* what the shards of this host lock to take memory; NULL: as usual */
    const char *host_root;   /* of cairn_headroom_read; NULL: "" */
    uint32_t compute_threads;
    const char *fabric_kind;                       /* as of cairn_fabric_open */
    const char *fabric_device, *fabric_port_range; /* NULL: the fabric's defaults; ucx only */
    const char *fabric_host;                       /* NULL: the fabric's default */
    const char *fabric_transports;                 /* NULL: the fabric's default; ucx only */
    enum cairn_one_sided fabric_one_sided;
    struct cairn_fabric_mem_hub *hub; /* mem only */
    /* The first Welcome came: the shard serves. May be NULL. */
    void (*on_ready)(struct cairn_shard *shard, void *context);
    /* The coordinator said that this process is to end (the log has the sentence); it may be closed in here.
     * NULL: it goes on asking for its place. */
    void (*on_fenced)(struct cairn_shard *shard, void *context);
    void *context;
};

/* Opens the fabric and begins to connect; goes on trying for ever. CAIRN_ERR_CONFIG: a bad address.
 * CAIRN_ERR_UNREACHABLE: no such device or port. CAIRN_ERR_NO_MEMORY. Several shards may live in one
 * process and on one loop. */
CAIRN_MUST_CHECK cairn_status cairn_shard_open(uv_loop_t *loop,
                                               const struct cairn_shard_options *options,
                                               struct cairn_shard **shard_out,
                                               struct cairn_sentence *why);
/* Ends everything at once (waits for items that run on the threads), forgets all state, frees the
 * shard; on_closed (may be NULL) follows from the loop. */
void cairn_shard_close(struct cairn_shard *shard, void (*on_closed)(void *context), void *context);

/* ---- the structs ---- */

/* An extent of the job on this shard, as the kernels see it; numbered as map.extents. */
struct cairn_part {
    bool trained;
    cairn_dtype wire, master;  /* f32; a blob's is u8, both */
    uint32_t group;            /* of a trained tensor, in the spec's groups */
    struct cairn_tiled *tiled; /* of its tensor; NULL: every member holds all of it */
    uint32_t planes;           /* bits 1u << CAIRN_PLANE_...: what is kept beside param and wire */
    uint64_t wire_byte;        /* where its first element stands in a published copy */
    uint64_t grad_chunk;       /* of a trained tensor: the core's number of its first chunk */
};

/* A box of a tensor that members hold. Kept while someone holds it, and longer: see tiles.c. */
struct cairn_held {
    struct cairn_held *next; /* of the tensor's */
    struct cairn_box box;
    uint32_t holders;                  /* members */
    uint64_t first_chunk, chunk_count; /* of the map: it has no element in others */
    uint64_t touched;                  /* chunks that it has an element of */
    uint8_t mark
        []; /* [chunk_count] INITIALIZING: its part was put. Then: it was folded in this round */
};

/* A tensor of which some member holds a part only. */
struct cairn_tiled {
    struct cairn_tiled *next; /* of the job's */
    uint32_t tensor;
    struct cairn_held *held; /* the first is the whole tensor, whoever holds it */
};

/* What a member declared to hold of a tensor here. */
struct cairn_member_tile {
    uint32_t tensor;
    struct cairn_held *held; /* borrowed; NULL: a box that is all of it */
};

/* What a chunk has in common with a box. */
struct cairn_piece {
    struct cairn_held
        *held;             /* borrowed; NULL: all of it, and no member holds a part of the tensor */
    uint64_t first, count; /* elements of the box; of the chunk if held is NULL */
};

/* A contribution's place in the landing arena; the core names it by its index. */
struct cairn_slot {
    struct cairn_shard_job *job; /* borrowed */
    uint64_t member;             /* whose it is */
    uint32_t chunk;              /* the core's number */
    struct cairn_piece piece;    /* of the chunk: what the payload is */
    cairn_dtype dtype;
    size_t payload_bytes;
    uint64_t checksum;
    enum cairn_way way;
    /* The payload lies in the worker's memory, which is on loan until the message is dropped; or both
     * NULL */
    struct cairn_fabric_message *message; /* owned */
    const void *view;
    bool folding;                   /* a compute thread may be reading it */
    cairn_status status;            /* of the receive that ended */
    struct cairn_slot *next_landed; /* in job->landed */
};

/* A fold under way. */
struct cairn_fold {
    struct cairn_task task;
    struct cairn_shard_job *job; /* borrowed */
    struct cairn_source sources[CAIRN_STEP_FOLD_MAX];
    struct cairn_piece pieces[CAIRN_STEP_FOLD_MAX]; /* of the sources */
    uint32_t slots[CAIRN_STEP_FOLD_MAX];            /* of the sources */
    uint32_t source_count, chunk;
    bool first, tiled;     /* tiled: the sources may be parts of the chunk */
    bool viewed;           /* a source is in a worker's memory */
    bool sums;             /* job->chunk_sums of the chunk are made on the way */
    const void *failed_at; /* there: it could not be read */
    struct cairn_fold *next_free;
};

/* An initial chunk that is being received. */
struct cairn_put {
    struct cairn_shard_job *job; /* borrowed; NULL: free */
    struct cairn_chunk_header header;
    struct cairn_chunk_place place;
    struct cairn_piece piece;
    uint64_t chunk; /* in the map */
};

/* A member of a job: a worker or a reader. */
struct cairn_member {
    struct cairn_shard_job *job; /* borrowed */
    uint64_t number, token;
    uint64_t told; /* session.serial when the coordinator last told of it */
    uint32_t rank, role;
    char name[64];
    struct cairn_fabric_peer *peer; /* owned; NULL: not connected */
    bool is_relay;       /* of a host's workers: a shard, or this one (MemberJoin.relay) */
    bool heard;          /* since it was connected: worth connecting again when it goes down */
    bool again;          /* it went down after it was heard: one try more, by shard->again */
    bool cut;            /* a send failed: to be closed when the actions at hand are done */
    uint32_t endpoint;   /* the number of `peer`, or of the last one */
    uint32_t connection; /* of the member: the highest number that a HELLO of it had */
    uint32_t replies;    /* fetches that wait or are being sent */
    uint32_t notes;      /* micro-batch ends being received */
    uint64_t tiles_hash; /* of the list that it declared: CAIRN_TABLE_HASH_WHOLE without one */
    struct cairn_member_tile *tiles; /* owned: [tile_count], by tensor; those of tensors here */
    size_t tile_count;
    uint64_t untouched;       /* chunks of trained tensors here that it holds nothing of */
    struct cairn_bytes bytes; /* its own, since it joined */
    struct cairn_log_limit refusals;
    size_t address_bytes;
    uint8_t address[]; /* owned: [address_bytes], for the fabric */
};

/* A fetch: it waits (deferred), or its data is being sent. */
struct cairn_reply {
    struct cairn_shard_job *job; /* borrowed */
    struct cairn_chunk_header header;
    struct cairn_box box; /* what of the chunk; if `boxed` */
    bool boxed;
    enum cairn_way way;                     /* that the data goes */
    const struct cairn_published *lent;     /* what is sent right out of it; NULL: `bytes` are */
    uint8_t box_bytes[CAIRN_BOX_BYTES_MAX]; /* being received */
    struct cairn_reply *next;               /* in job->deferred or job->replies_free */
    uint8_t bytes[];                        /* owned: [job->reply_bytes] */
};

enum cairn_job_state {
    CAIRN_JOB_LOADING,
    CAIRN_JOB_INITIALIZING,
    CAIRN_JOB_SEALING, /* the first published copy is being made */
    CAIRN_JOB_SERVING,
    CAIRN_JOB_FAULTED,
    CAIRN_JOB_LEAVING
};

/* Microseconds of CLOCK_MONOTONIC; 0: not yet. */
struct cairn_round_times {
    uint64_t round;
    uint64_t action_us[CAIRN_STEP_FAULT + 1];     /* the first of each kind */
    uint64_t folding_us, updating_us, updated_us; /* the last FOLD; the pass of the UPDATE */
};

struct cairn_shard_job {
    struct cairn_shard *shard; /* borrowed */
    struct cairn_shard_job *next;
    enum cairn_job_state state;
    bool staged; /* made of another generation, which still serves: only handlers.c sees it */
    uint64_t number, generation, base_step;
    bool settled;      /* a coordinator has said that this generation is in its store */
    uint64_t revision; /* of the newest spec that it was told of .. */
    struct cairn_paged
        terms; /* owned: .. and its bytes, if it was amended since the job was made */
    struct cairn_hash spec_digest; /* of its bytes, as they came */
    struct cairn_memory memory;    /* taken of shard->budget, by kind */
    struct cairn_bytes bytes;      /* of all members that there were */
    uint64_t steps;                /* updated here, writes aside */

    /* what it is; constant; owned */
    struct cairn_job_spec_data spec;
    struct cairn_layout *layout;
    struct cairn_shard_map map;
    struct cairn_part *parts; /* [map.extent_count] */
    uint32_t *chunk_part;     /* [map.chunk_count] the extent of a chunk */
    uint32_t *grad_chunks;    /* [grad_chunk_count] the core's number of a chunk -> the map's */
    uint32_t grad_chunk_count;
    uint64_t plane_bytes[CAIRN_PLANE_COUNT]; /* of the elements here that have the plane */

    /* state, [map.elem_count] words of 4 bytes each, indexed by local element; a plane no group needs is
     * empty. A blob's bytes stand dense where its extent begins, and the rest of its words is never
     * touched: cairn_shard_job_plane_byte */
    struct cairn_arena param, exp_avg, exp_avg_sq; /* fp32; 0 where frozen or not kept */
    struct cairn_arena acc;                        /* fp32 sums of the round at hand */
    struct cairn_published published[CAIRN_SHARD_PUBLISHED_MAX]; /* see published.h */
    uint32_t newest, writing; /* which of them; writing: CAIRN_PUBLISHED_NONE between updates */
    struct cairn_shard_lease leases[CAIRN_SHARD_LEASES_MAX];

    /* the round */
    struct cairn_step *step; /* owned, as is its list of actions */
    struct cairn_step_actions actions;
    struct cairn_arena landing; /* [slot_count][slot_bytes] */
    uint32_t slots_counted;   /* of them are in the budget: those of as many workers as there are */
    uint32_t slots_taken;     /* have their pages, too */
    uint32_t slots_asked;     /* will have, when what the reserve at work takes is there */
    bool landing_extra;       /* of more workers than there are: cairn_admit_left */
    struct cairn_slot *slots; /* owned: [slot_count] */
    uint32_t slot_count;
    size_t slot_bytes;
    size_t put_bytes;          /* of a put: as many, and a box */
    struct cairn_slot *landed; /* receives that ended and were not told to the core yet */
    struct cairn_fold *folds;  /* owned: as many as can be under way */
    struct cairn_fold *folds_free;
    bool *zero;              /* owned: [grad_chunk_count], nobody contributed: sum is +0 */
    struct cairn_sums *sums; /* owned: [compute threads] of the REDUCE at hand */
    struct cairn_sums
        *chunk_sums; /* owned: [grad_chunk_count] of folds that were likely the last .. */
    bool *summed;    /* .. owned: [grad_chunk_count] and were it so far */
    bool far;        /* the planes are beyond the caches: kernels may write around them */
    struct cairn_group_scalars *scalars; /* owned: [spec.group_count] of the UPDATE at hand */
    bool *frozen;                        /* owned: [spec.group_count] take no gradient in .. */
    bool *frozen_tensors;                /* owned: [spec.tensor_count] the same of tensors, in .. */
    uint64_t frozen_round;               /* .. the round that was opened last */
    struct cairn_version version_next;   /* of the UPDATE at hand */
    struct cairn_task pass;              /* REDUCE, UPDATE or the first publish: one at a time */
    bool updating;                       /* the UPDATE was decided and is not published yet */
    bool update_waits;              /* for the copies of pins, and sends of what it overwrites */
    bool update_writes;             /* the UPDATE is a write's */
    struct cairn_write *write;      /* owned; NULL: none is open */
    uint64_t spoiled_round;         /* a sum of it is wrong: it is not reported */
    struct cairn_round_times times; /* of the round at hand, or the last one: times.c */
    bool stepping, settling;        /* the core's actions are being done: do not call it */
    struct cairn_fabric_message *waiting; /* of the CHUNK that the core is being told; or NULL */
    struct cairn_chunk_header waiting_header;
    struct cairn_piece waiting_piece;
    struct cairn_tiled *tiled; /* owned: tensors of which members hold parts */
    uint8_t *holds; /* owned: the table of the core's OPEN, for as many members as are allowed */
    uint32_t tiles_world; /* of the last MemberTiles; told to a new coordinator */

    /* members, puts, fetches, pins */
    struct cairn_member **members; /* owned: [member_capacity], by number, open addressing */
    size_t member_count, member_capacity;
    bool members_cut; /* some have `cut` set */
    uint8_t *have;    /* owned: [map.chunk_count] while INITIALIZING, 1 = put */
    struct cairn_put puts[CAIRN_SHARD_PUTS_MAX];
    struct cairn_arena putting; /* [put_max][put_bytes] until it serves */
    uint32_t put_max;
    size_t reply_bytes;
    struct cairn_reply *replies_free;
    struct cairn_reply *deferred;
    struct cairn_pin *pins;       /* owned; see pin.c */
    struct cairn_report *reports; /* owned; being sent: report.h */
    struct cairn_restore *restore;
    struct cairn_origin *origin; /* owned; while it is at work */
    struct cairn_extend *extend; /* owned; the same */
    uint32_t copies;             /* of pins, under way on the compute pool */

    struct cairn_relay *relays; /* owned; of relay.h, the first may work */

    uint32_t busy;                 /* receives, sends and tasks that refer to this job */
    char *snapshot_path;           /* owned: that it begins with; "": none */
    uint64_t snapshot_digest;      /* JobCreate.digest */
    struct cairn_request creating; /* or sealing */
    struct cairn_request dropping;
};

/* The connection to the coordinator; it comes and goes, and the state stays. */
struct cairn_session {
    struct cairn_address address;
    struct cairn_stream *stream; /* borrowed of itself; NULL: none */
    uint64_t serial;             /* counts connections, from 1 */
    bool welcome;
    bool served_before; /* on_ready was called */
    uv_timer_t timer;   /* next try, or next heartbeat */
    uint32_t heartbeat_ms, lease_ms;
    uint32_t backoff_ms;
    uint64_t heard_ms;    /* uv_now of the last frame */
    uint64_t roll_due_ms; /* when members not told of in this session are forgotten; 0: done */
    struct cairn_coordinator_id coordinator; /* whose Welcome came */
    enum cairn_standing standing;            /* of it to what we hold: we obey it, or not */
    struct cairn_log_limit down;
};

struct cairn_shard {
    /* owned */
    char *name, *import_folders, *memory_lock, *host_root;
    uint64_t incarnation;
    struct cairn_session session;
    struct cairn_shard_storage storage;
    struct cairn_fabric *fabric;
    struct cairn_fabric_poll poll;
    struct cairn_pool *compute, *files, *memory, *releaser;
    struct cairn_release *releases;   /* on their way: release.c */
    struct cairn_shard_job *jobs;     /* at most CAIRN_SHARD_JOBS_MAX, LEAVING ones included */
    struct cairn_arriving *arriving;  /* what of the coordinator's is on its way: arriving.h */
    struct cairn_coordinator_id seen; /* the newest coordinator that was obeyed; of what is held */
    struct cairn_budget budget;
    struct cairn_reserve *reserves; /* what takes memory, one at a time */
    uint64_t relay_cache_bytes;     /* of it, at most, for the relay of a job */

    const struct cairn_backend *backend; /* static */
    uint32_t without;                    /* bits of enum cairn_without */
    uv_loop_t *loop;                     /* borrowed */
    void (*on_ready)(struct cairn_shard *shard, void *context);
    void (*on_fenced)(struct cairn_shard *shard, void *context);
    void *context;

    Cairn__ShardStats stats;
    uint32_t endpoints_made;          /* to members: the number of the last one */
    uv_timer_t again;                 /* the next try to connect members with `again` */
    uv_timer_t relay_timer;           /* while a relay waits for something */
    uv_timer_t lease_timer;           /* the next end of a lease: leases.c */
    struct cairn_log_limit strangers; /* messages that belong to nobody */
    struct cairn_log_limit fabric_refusals;

    bool closing;
    int handles_open; /* of libuv, while closing */
    void (*on_closed)(void *context);
    void *closed_context;
};

/* Closing: the stream of the session is gone. */
void cairn_shard_stream_closed(struct cairn_shard *shard);

/* ---- session.c: to the coordinator. Sends are dropped while there is no session. ---- */
CAIRN_MUST_CHECK cairn_status cairn_session_open(struct cairn_shard *shard, const char *coordinator,
                                                 struct cairn_sentence *why);
void cairn_session_close(struct cairn_shard *shard, uv_close_cb on_timer_closed);
void cairn_session_send(struct cairn_shard *shard, uint16_t type, uint32_t request,
                        const ProtobufCMessage *message);
void cairn_session_send_pages(struct cairn_shard *shard, uint32_t request,
                              enum cairn_page_what what, struct cairn_packed *packed);
/* A heartbeat now. */
void cairn_session_beat(struct cairn_shard *shard);
/* The coordinator says, with this sentence, that this process is to end. */
void cairn_session_fenced(struct cairn_shard *shard, const char *text);
/* Ends the connection with a reason told to the coordinator; a new one is tried. */
void cairn_session_refuse(struct cairn_shard *shard, cairn_status status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* Answers a request if its session is still there, and forgets it. CAIRN_OK is Done. */
void cairn_session_answer(struct cairn_shard *shard, struct cairn_request *request,
                          cairn_status status, const struct cairn_sentence *why);
struct cairn_request cairn_session_request(const struct cairn_shard *shard, uint32_t number);

/* ---- handlers.c: what the coordinator says ---- */
void cairn_shard_on_frame(struct cairn_shard *shard, const struct cairn_frame *frame);

/* ---- job.c ---- */
/* NULL if there is none of that number that is not LEAVING or staged. */
struct cairn_shard_job *cairn_shard_job_find(struct cairn_shard *shard, uint64_t number);
/* Judges a create, of which spec and layout are here, and reserves everything. CAIRN_ERR_MALFORMED, _INVALID,
 * _UNSUPPORTED: the spec or the layout; CAIRN_ERR_NO_MEMORY: it does not fit, with the numbers. Not OK:
 * nothing is held. */
CAIRN_MUST_CHECK cairn_status cairn_shard_job_open(
    struct cairn_shard *shard, const Cairn__JobCreate *message, const struct cairn_paged *spec,
    const struct cairn_paged *layout, struct cairn_shard_job **job_out, struct cairn_sentence *why);
/* Makes it LEAVING: members are cut, and it is freed when nothing refers to it, perhaps at once. */
void cairn_shard_job_leave(struct cairn_shard_job *job);
/* Takes of the shard's budget, counted under `kind`, which is one of job->memory's; as cairn_budget_take. And
 * gives it back: what is not given back goes with the job. */
CAIRN_MUST_CHECK cairn_status cairn_shard_job_take(struct cairn_shard_job *job, uint64_t *kind,
                                                   uint64_t bytes, const char *what,
                                                   struct cairn_sentence *why);
void cairn_shard_job_give(struct cairn_shard_job *job, uint64_t *kind, uint64_t bytes);
/* Where a local element of an extent stands in a plane's arena, or in staging: what is behind it up to the
 * extent's end lies dense in the master dtype. */
uint64_t cairn_shard_job_plane_byte(const struct cairn_shard_job *job, uint32_t extent,
                                    uint64_t local_elem);
/* It does nothing any more: a wrong parameter must not be published. */
void cairn_shard_job_fault(struct cairn_shard_job *job, const char *why);
/* Something in flight began or ended. `idle` may free the job. */
void cairn_shard_job_busy(struct cairn_shard_job *job);
void cairn_shard_job_idle(struct cairn_shard_job *job);
/* Frees it whatever is in flight: the fabric and the pools are closed. */
void cairn_shard_job_free(struct cairn_shard_job *job);

/* ---- step_message.c: messages of the data plane as the core's events, and its actions as messages ---- */

/* What a PUSH, MICRO_END or COMMIT tells a core, of the shard's own part or a relay's; chunk and absent
 * are the caller's. */
struct cairn_step_event cairn_step_event_of(const struct cairn_chunk_header *header);
/* An answer's header: the numbers of the round, and of an ACK or NAK the place of the chunk, which the
 * core knows as action->chunk: grad_chunks[0 .. grad_chunk_count) are the numbers in the map. */
struct cairn_chunk_header cairn_step_header_of(const struct cairn_step_action *action, uint8_t kind,
                                               const struct cairn_shard_map *map,
                                               const uint32_t *grad_chunks,
                                               uint32_t grad_chunk_count);

/* ---- act.c: the core and what it asks for ---- */
/* Tells the core and does its actions, and what follows from them. Not while job->stepping. */
/* Bytes that a decision of the job may have beside itself. */
size_t cairn_shard_payload_max(const struct cairn_shard_job *job);
void cairn_shard_job_step(struct cairn_shard_job *job, const struct cairn_step_event *event);
/* Tells the core of receives that ended, and closes peers that were cut. */
void cairn_shard_job_settle(struct cairn_shard_job *job);

/* ---- times.c ---- */
/* The action is about to be done. */
void cairn_times_note(struct cairn_shard_job *job, const struct cairn_step_action *action);
/* The pass of an UPDATE begins, and has ended. */
void cairn_times_updating(struct cairn_shard_job *job);
void cairn_times_updated(struct cairn_shard_job *job);
/* Of the round that is being published, microseconds: collect, until the last contribution was there; fold
 * and add up; update, which writes the published copy as well; publish: waiting until nobody reads the
 * copy that is written, and telling. */
void cairn_times_phases(const struct cairn_shard_job *job, uint32_t us_out[4]);

/* ---- round.c: fold, reduce, update, first publish ---- */
void cairn_round_fold(struct cairn_shard_job *job, const struct cairn_step_action *action);
void cairn_round_zero(struct cairn_shard_job *job, uint32_t chunk);
void cairn_round_reduce(struct cairn_shard_job *job);
void cairn_round_update(struct cairn_shard_job *job, const struct cairn_decision *decision);
/* A copy of a pin, or what was sent of a published copy, ended: an update that waits may begin. */
void cairn_round_copies_ended(struct cairn_shard_job *job);
/* SEALING: publishes param as `generation, step of the core`, then SERVING. */
void cairn_round_seal(struct cairn_shard_job *job);

/* ---- member.c ---- */
struct cairn_member *cairn_member_find(const struct cairn_shard_job *job, uint64_t number);
/* Adds or replaces a member and begins to connect. */
CAIRN_MUST_CHECK cairn_status cairn_member_join(struct cairn_shard_job *job,
                                                const Cairn__MemberJoin *message,
                                                struct cairn_sentence *why);
void cairn_member_leave(struct cairn_shard_job *job, uint64_t number);
/* Its memory cannot be read: the coordinator is asked to put it out, and a round that it spoiled never
 * ends here. */
void cairn_member_unreadable(struct cairn_shard_job *job, uint64_t number);
/* Those that the coordinator has not told of in this session left while it was away: removed. */
void cairn_members_forget_untold(struct cairn_shard_job *job);
void cairn_members_release(struct cairn_shard_job *job);
/* Of shard->again: connects those that went down and have not spoken since. */
void cairn_members_connect_again(uv_timer_t *timer);
/* A message of the member came: connects it if it is not. */
void cairn_member_heard(struct cairn_member *member);
/* Closes its peer and tells the core. */
void cairn_member_down(struct cairn_member *member);
/* HELLO of the member's connection of that number: the same, it is greeted, and the core is told even if
 * it is connected: it may have lost a GRANT. */
void cairn_member_hello(struct cairn_member *member, uint64_t connection);
/* What HELLO and GRANT to it say: proto/wire/chunk.h. */
uint64_t cairn_member_way(const struct cairn_member *member);
/* Sends a header; job, member and token are filled in. Dropped if it is not connected. */
void cairn_member_send(struct cairn_member *member, struct cairn_chunk_header *header);
/* The same for another shard, by its index: an owner, whose relay we are. */
void cairn_member_send_for(struct cairn_member *member, struct cairn_chunk_header *header,
                           uint32_t shard);
/* NAK that echoes a request. */
void cairn_member_refuse(struct cairn_member *member, const struct cairn_chunk_header *header,
                         cairn_status status);

/* ---- tiles_told.c, tiles.c: what workers hold of the tensors ---- */
/* Owns the message. */
void cairn_tiles_on_message(struct cairn_shard *shard, uint32_t request,
                            Cairn__MemberTiles *message);
/* Replaces what the member holds by a judged list. CAIRN_ERR_NO_MEMORY, CAIRN_ERR_BUSY: as before. */
CAIRN_MUST_CHECK cairn_status cairn_tiles_set_member(struct cairn_member *member,
                                                     const struct cairn_tiles *tiles,
                                                     struct cairn_sentence *why);
/* It goes: it holds nothing any more. */
void cairn_tiles_forget(struct cairn_member *member);
/* `to` is the same member as `from`, told anew: it holds what it held. */
void cairn_tiles_move(struct cairn_member *from, struct cairn_member *to);
/* With the job. */
void cairn_tiles_free(struct cairn_shard_job *job);
/* Which of the core's chunks each of the `count` members holds an element of: struct cairn_step_event's
 * holds; one that is not known here holds all. Borrowed of the job until the next call. NULL: nobody
 * holds a part, or there are more members than a round of this job may have. */
const uint8_t *cairn_tiles_holds(struct cairn_shard_job *job, const uint64_t *members,
                                 uint32_t count);
/* What of a chunk the header of a PUSH, PUT or FETCH (not of a box) means, without side effects.
 * CAIRN_ERR_MISMATCH: not what the member declared; `why` (may be NULL) says so. */
CAIRN_MUST_CHECK cairn_status cairn_tiles_piece(const struct cairn_member *member,
                                                const struct cairn_chunk_header *header,
                                                uint64_t chunk,
                                                const struct cairn_chunk_place *place,
                                                struct cairn_piece *piece_out,
                                                struct cairn_sentence *why);
/* A chunk's first contribution of the round is folded next: no box has been. */
void cairn_tiles_begin_chunk(struct cairn_shard_job *job, uint64_t chunk);
/* On a pool thread: folds the sources, each its piece of the chunk, in their order. */
void cairn_tiles_fold(const struct cairn_fold *fold, uint64_t chunk,
                      const struct cairn_chunk_place *place, float *acc);
/* A piece was put. */
void cairn_tiles_put(struct cairn_shard_job *job, uint64_t chunk, const struct cairn_piece *piece,
                     const struct cairn_chunk_place *place, const float *values);
/* The boxes that were put make up the chunk. */
bool cairn_tiles_put_whole(const struct cairn_shard_job *job, uint64_t chunk);
/* Chunks of a trained tensor here that the member sends, if it touches the tensor. */
uint64_t cairn_tiles_touched(const struct cairn_member *member, uint32_t tensor);

/* ---- put.c, publish.c ---- */
void cairn_put_on_message(struct cairn_member *member, const struct cairn_chunk_header *header,
                          struct cairn_fabric_message *message);
/* CAIRN_OK: every chunk was put. CAIRN_ERR_NOT_READY: `why` names what is missing. */
CAIRN_MUST_CHECK cairn_status cairn_put_whole(const struct cairn_shard_job *job,
                                              struct cairn_sentence *why);
/* It serves: gives the buffers of puts back. */
void cairn_put_end(struct cairn_shard_job *job);
/* A write is open: they are needed again. CAIRN_ERR_NO_MEMORY. */
CAIRN_MUST_CHECK cairn_status cairn_put_open_buffers(struct cairn_shard_job *job,
                                                     struct cairn_sentence *why);
/* Takes or drops the message. */
void cairn_fetch_on_message(struct cairn_member *member, const struct cairn_chunk_header *header,
                            struct cairn_fabric_message *message);
/* UPDATED: answers what was deferred. */
void cairn_fetch_deferred(struct cairn_shard_job *job);
void cairn_fetch_release(struct cairn_shard_job *job);

#include "server/shard/moves.h"

#endif
