/* The client's inside: read this first.
 *
 * A session has one thread of its own that runs a libuv loop: the control connection to the coordinator,
 * the fabric, timers. The caller's threads never touch those. They meet at one lock:
 *
 *   asks      control requests of the caller's threads. A thread adds one and sleeps; the loop thread sends
 *             it when the connection stands and its job is attached, sends it again after a reconnect, and
 *             wakes the thread with the reply. A thread whose deadline passes takes its ask back.
 *   commands  put, push, micro-batch end, commit, fetch: done by the loop thread in the order given.
 *   ops       what put, push and fetch have under way; a thread waits for `done`.
 *
 * So everything marked "loop thread" needs no lock, and everything marked "lock" is short. A lost
 * coordinator or shard changes nothing above: the loop thread reconnects, attaches again under the
 * same member number, and repeats what was unanswered. */
#ifndef CAIRN_CLIENT_SESSION_H
#define CAIRN_CLIENT_SESSION_H

#include <cairn.h>

#include <pthread.h>
#include <stdatomic.h>
#include <uv.h>

#include "client/step_times.h"
#include "proto/wire/push.h"
#include "client/env.h"
#include "client/strides.h"
#include "proto/fabric/fabric.h"
#include "proto/loop/address.h"
#include "proto/loop/fabric_poll.h"
#include "proto/loop/stream.h"
#include "proto/wire/box.h"
#include "proto/wire/chunk.h"
#include "proto/wire/layout.h"
#include "proto/wire/messages.h"
#include "proto/wire/tiles.h"

#define CAIRN_CLIENT_SHARDS_MAX 4096

struct session;
struct job;
struct put_note;
struct written;
struct sum;
struct cache;
struct assembly;
struct region;
struct stitch;

/* A control request of a caller's thread, in its stack. All under the lock. */
struct ask {
    struct ask *next;
    struct job *job;                 /* NULL: of the session */
    uint16_t type;                   /* enum cairn_message */
    const ProtobufCMessage *message; /* borrowed from the thread */
    uint32_t request;                /* 0: not sent on this connection */
    bool done;
    cairn_status status;
    struct cairn_sentence why;
    uint16_t reply_type;
    ProtobufCMessage *reply; /* the thread frees it with cairn_message_free */
};

/* What a worker said that it holds: cairn_tiles. Constant once made. */
struct declared {
    struct cairn_tiles tiles; /* without whole tensors: those are not listed */
    uint64_t hash;
    uint32_t world;
    struct cairn_packed *packed; /* held: the same */
};

/* The part of a tensor that a put, push or fetch is about. */
struct piece {
    struct cairn_box box;
    bool whole;             /* it is the tensor */
    uint8_t tile;           /* enum cairn_chunk_tile */
    uint64_t table_hash;    /* of the declaration it was made by */
    struct strides strides; /* of the memory that it is put from, pushed from or fetched to */
};

/* Something under way. Freed with its last reference: one of the handle (if the caller wanted one), one of
 * the loop thread while `open_parts` is not 0. */
struct op {
    struct session *session; /* borrowed: outlives it */
    struct job *job;         /* borrowed, likewise */
    void *handle;            /* NULL: nobody waits for this one */
    uint8_t kind;            /* CAIRN_CHUNK_PUSH, _PUT, _FETCH */
    uint32_t tensor;
    const void *lent; /* memory of cairn_alloc; NULL: another's */
    uint8_t *ptr;     /* on loan */
    struct strides strides;
    /* Hears of the end, if it is one of the library's own; not under the lock. */
    void (*on_done)(void *context, cairn_status status, const char *why);
    void *context;
    struct op *next_awaiting; /* lock: of cache.c */
    uint32_t open_parts; /* loop thread: chunks that are not done; counted up while it is cut */
    size_t box_bytes;    /* of a fetch or a put of a box: what goes with each of its chunks */
    uint8_t box[CAIRN_BOX_BYTES_MAX];
    /* lock */
    bool done;
    cairn_status status;
    struct cairn_sentence why;
    uint32_t refs;
};

/* What a caller's thread wants the loop thread to do. */
struct command {
    struct command *next;
    /* Loop thread. False: it cannot go on now and is run again later, from where it stood. */
    bool (*run)(struct command *command);
    struct job *job;
    struct op *op; /* put, push, fetch: this command's reference */
    uint32_t tensor, micro;
    uint8_t plane, dtype;
    uint8_t *ptr; /* on loan: the piece */
    struct piece piece;
    uint64_t round, weight;
    struct cairn_version version;
    void (*on_done)(void *context, cairn_status status, const char *why); /* of its op */
    void *context;
    size_t next_extent; /* loop thread: where it stands */
    uint64_t next_chunk;
};

/* One chunk of an op on its way. Loop thread. Owned by its job, used again and again; it is over when it
 * is answered, stands in no queue, and the fabric has given back what it had on loan. */
struct part {
    struct job *job;
    struct op *op;     /* NULL: free */
    struct part *next; /* in the queue of a shard, or in the free list */
    uint32_t index;    /* its place in the job's table, with `serial` the cookie that travels */
    uint32_t serial;   /* grows with every use: an answer to a former one is dropped */
    uint8_t kind;      /* CAIRN_CHUNK_PUSH, _PUT, _FETCH */
    uint8_t plane, dtype, tile;
    bool queued, sent, answered;
    cairn_status status;
    uint32_t on_loan; /* sends and receives that the fabric has not completed */
    uint32_t shard;   /* the owner of the chunk */
    uint32_t via;     /* the shard to whose endpoint it went last: another's is a relay */
    bool direct;      /* a relay had no answer to this fetch */
    struct cairn_chunk_place place;
    uint64_t table_hash;
    /* [byte_count] what the piece has of the chunk: in the caller's buffer, or `packed`, which is made when
     * it is sent; NULL until then */
    uint8_t *bytes;
    uint8_t *packed; /* owned; of memory with strides, or behind a box */
    uint64_t first;  /* element of the piece */
    size_t byte_count;
    size_t head_bytes; /* before it in `packed`: the box of a put; 0: none */
    uint64_t checksum; /* of what a fetch is receiving, as the shard says */
    uint64_t came;     /* and as it came */
    uint32_t damaged;  /* times that its bytes did not arrive as they were sent */
    struct cairn_version version;
    uint64_t round; /* of a put in a write; else 0 */
};

/* A shard, as the owner of its chunks, and the connection to it. The two part where a relay speaks for the
 * owner (proto/wire/chunk.h): then what is pushed to the owner, and some of what is fetched, goes over
 * the connection of another link, its carrier. */
struct shard_link {
    struct job *job;
    uint32_t index;
    /* the owner */
    char name[64];
    uint8_t *address; /* owned */
    size_t address_bytes;
    struct cairn_shard_map map;
    uint64_t
        *published_at; /* owned: [map.extent_count] in the shard's copies; of mapped.c; or NULL */
    uint64_t published_bytes;        /* of a copy, once published_at is there */
    struct cairn_chunk_header grant; /* the last one; kind 0: none on its connection */
    struct shard_link
        *carrier;           /* of what is pushed in the round at hand; NULL: it is not granted */
    bool relayed;           /* it is marked for whom the carrier takes it */
    bool declined;          /* the relay that granted has no chunks of it to fetch */
    uint64_t granted_by_ms; /* fetches of the round at hand wait no longer to hear who relays */
    struct part *first_waiting, *last_waiting; /* puts and fetches to send */
    uint32_t in_flight;                        /* puts and fetches unanswered */
    bool busy; /* it refused one for now: no more before an answer or the next tick */
    /* the connection */
    struct cairn_fabric_peer *peer; /* NULL: connecting later */
    uint64_t retry_at_ms;
    uint32_t retry_delay_ms;
    uint32_t asked;      /* puts and fetches that went over it and are unanswered */
    bool relays;         /* it has granted for others */
    uint32_t on_loan;    /* sends and receives that the fabric has not completed */
    bool lost;           /* the connection is gone; what was under way is not yet told */
    uint32_t connection; /* the number of `peer`, or of the last one */
    uint64_t way;        /* the highest of its HELLOs */
    uint32_t endpoint;   /* the shard's to us, the newest heard of; 0: none on this connection */
    bool heard;          /* anything from it since the last tick */
    uint64_t quiet_since_ms;   /* or since we had nothing to wait for */
    bool reached;              /* something came from it, ever */
    uint64_t unheard_since_ms; /* that it is there and cannot be heard; 0: not seen to */
    uint64_t judged_ms;        /* when it was last looked whether it is */
};

enum job_state { JOB_DETACHED, JOB_ATTACHING, JOB_ATTACHED };

struct job {
    struct session *session; /* borrowed */
    struct job *next;        /* loop thread: the session's list */
    /* constant from open on */
    struct cairn_job_spec_data
        spec; /* canonical; of a reader: set by the first attach, then constant */
    struct cairn_packed *spec_packed; /* held; NULL for a reader */
    char *name;
    cairn_role role;
    uint32_t rank;
    uint32_t start_wait_ms;
    uint64_t open_flags; /* CAIRN_OPEN_* */
    uint64_t member, token;
    uint32_t number; /* of this process; in the rounds that it begins */
    void *handle;
    atomic_bool closing;

    /* lock */
    uint32_t
        launch; /* workers that came together; of the last round, once there was one. 0: not said */
    bool attached_once, closed;
    uint64_t pause_ends_ms; /* this worker is at work on something else; 0: it is not */
    char pause[64];
    bool initialized;
    cairn_status failed; /* not OK: fenced, mismatch, lost: every call says so */
    struct cairn_sentence failed_why;
    struct cairn_sentence put_off;    /* why the coordinator will be asked again; else empty */
    struct cairn_version newest;      /* that this client heard of */
    double clip_norm;                 /* likewise: amendments change it */
    bool awaited_asked, awaited_told; /* by a call that timed out; by the loop thread */
    struct cairn_sentence awaited;    /* which shards have not answered */
    uint64_t void_round;              /* the highest round known to be abandoned */
    uint64_t puts_open;               /* puts that are not done */
    uint64_t pushes_open;             /* pushes that are not done: their buffers are on loan */
    cairn_status puts_status;         /* the first failure of a put */
    struct cairn_sentence puts_why;
    struct sum *sums;            /* [tensor_count], of accumulate.c; NULL: nothing was added up */
    uint32_t adding;             /* pushes that are being added up, or copied */
    struct assembly *assemblies; /* owned: of assemble.c, tensors of which not all parts came */
    bool sums_ended;             /* the sums of this round are sent */
    struct cache *cache;         /* of cache.c; NULL: no unit was asked for */
    struct stitch *stitches;     /* owned: of stitch.c, in use or kept */
    size_t stitch_parts;         /* of all of them */
    struct put_note *puts;       /* [tensor_count], of puts.c; NULL: nothing was put */
    struct cairn_stats stats;
    struct step_times times; /* of a worker */
    uint64_t read_bytes;     /* of published memory, by ourselves: no shard counts them */
    uint64_t
        filling_round; /* of the caller's pushes, and its micro-batch, to refuse nonsense early */
    uint32_t filling_micro;
    bool filling_any, committed;
    struct cairn_round write;  /* that is open; round 0: none */
    struct written *written;   /* owned: what was put in it, of write.c */
    struct declared *declared; /* owned: what holds; NULL, or of world 0: whole tensors */
    struct declared
        *declaring;       /* of the call of cairn_tiles that waits for the others; NULL: none */
    bool declaring_holds; /* it is `declared` by now */
    bool *frozen;         /* [group_count] of a worker: takes no gradient in the round it has */
    double *driven; /* [group_count] of a worker: what cairn_group_lr gave, NaN: nothing yet */
    bool *frozen_tensors; /* [tensor_count] the same of tensors */
    uint8_t *filled;      /* [tensor_count] 1: pushed in the micro-batch being filled */
    uint32_t refs;        /* the handle, the session's list, ops */

    /* loop thread */
    enum job_state state;
    bool stalled; /* its first command could not go on: those behind it wait, other jobs' do not */
    uint32_t attach_request;
    uint64_t attach_at_ms; /* not before */
    uint32_t attach_delay_ms;
    bool lost_under_way; /* the first attach of CAIRN_OPEN_RESUME: it was, and asks again */
    uint64_t id, epoch;
    uint64_t read_told;     /* of read_bytes: what the coordinator was told last */
    uint64_t read_before;   /* of that: told when we were attached to it the time before */
    uint32_t tiles_request; /* of the tiles declared again after an attach; 0: it is answered */
    struct cairn_paged paged_spec, paged_layout;
    Cairn__Attached *attaching; /* owned: the reply whose pages are coming */
    struct cairn_layout *layout;
    struct shard_link *shards; /* [shard_count] */
    uint32_t shard_count;
    struct part **parts; /* [part_count] of part_capacity */
    uint32_t part_count, part_capacity;
    struct part *first_free_part;

    void *push_memory;       /* of the machine; big enough for this layout */
    struct cairn_push *push; /* NULL: no round */
    uint64_t push_round, push_epoch;
    uint8_t **pushed;     /* [micro_count][tensor_count] 1: pushed in that micro-batch */
    uint32_t micro_count; /* begun in this round */
    struct cairn_push_actions actions;
};

struct session {
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t changed; /* CLOCK_MONOTONIC */
    uv_loop_t loop;
    uv_async_t kick;
    uv_timer_t tick;
    struct cairn_address endpoint;
    char endpoint_text[CAIRN_ADDRESS_TEXT_BYTES];
    char *name;
    struct cairn_env_report env;          /* of the cluster */
    char data_path[CAIRN_SENTENCE_BYTES]; /* how it was opened; constant once cairn_open is over */
    uint64_t incarnation;
    struct cairn_fabric_mem_hub *hub; /* borrowed; NULL but in tests: the data path is that one */
    int event_fd;
    void *handle;
    uint64_t stop_by_ms; /* set before `stopping`: then the fabric is closed, whoever holds loans */
    atomic_bool stopping;

    /* lock */
    bool ended; /* the loop takes nothing more: asks and commands fail, nobody kicks it */
    struct ask *asks;
    struct command *first_command, *last_command;
    struct job *jobs; /* changed by the loop thread only */
    bool welcome;
    bool no_path;                /* connect_status and connect_why are of the data path, and last */
    uint32_t refs;               /* the handle, jobs */
    cairn_status connect_status; /* of the last attempt */
    struct cairn_sentence connect_why;
    uint64_t away_since_ms;
    struct region *regions; /* [region_count] of region_capacity, by address; of memory.c */
    size_t region_count, region_capacity;
    bool regions_changed;      /* since the fabric was told of them */
    struct gone *regions_gone; /* freed, and still known to the fabric; of memory.c */
    bool memory_closed;
    uint32_t prefetch_units; /* constant, as these */
    uint32_t connect_ms;     /* that cairn_open takes at most */
    cairn_wait_fn on_wait;
    void *on_wait_context;

    /* loop thread */
    struct cairn_fabric *fabric; /* NULL: the shards' places are not known yet (datapath.c) */
    uint64_t asked_places_ms;
    struct cairn_fabric_poll poll;
    struct cairn_stream *stream; /* NULL: not connected */
    bool hello_sent, ready;      /* Welcome came */
    bool is_choosing;            /* this connection was for the shards' places only */
    uint32_t next_request;
    uint64_t retry_at_ms;
    uint32_t retry_delay_ms; /* grows while connections end as soon as they stand */
    uint32_t heartbeat_ms, lease_ms;
    uint64_t heard_ms, spoke_ms, welcome_ms;
    uint64_t reads_told_ms; /* of all jobs' read_bytes */
    uint64_t coordinator_incarnation;
    struct published *published; /* copies of shards of this host; of mapped.c */
    bool was_given_up; /* the coordinator that lost the connection is the one that is back */
};

/* ---- error.c: this thread's last sentence ---- */
/* Returns `status`, so that a function ends with `return cairn_client_fail(...)`. */
cairn_status cairn_client_fail(cairn_status status, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));

/* ---- session.c ---- */
/* cairn_open; with a hub (tests) the data path is the mem fabric. Not exported. */
cairn_status cairn_client_open(const struct cairn_opts *opts, struct cairn_fabric_mem_hub *hub,
                               cairn **out) CAIRN_MUST_CHECK;
uint64_t cairn_client_now_ms(void);
/* Wakes the loop thread to look at asks and commands. Any thread. */
void cairn_session_kick(struct session *s);
/* Sleeps on `changed` until the deadline; false when it has passed. Under the lock. */
bool cairn_session_sleep(struct session *s, uint64_t deadline_ms);
/* Appends a command that the loop thread frees; ended at once if the session is. Any thread. */
void cairn_session_command(struct session *s, struct command *command);

/* ---- control.c, loop thread unless it says otherwise ---- */
void cairn_control_tick(struct session *s); /* connect, heartbeat, lease */
void cairn_control_run(struct session *s);  /* send what waits */
/* Sends without an ask; a failure shows as the stream's end. */
void cairn_control_send(struct session *s, uint16_t type, uint32_t request,
                        const ProtobufCMessage *message);
void cairn_control_send_pages(struct session *s, uint32_t request, enum cairn_page_what what,
                              struct cairn_packed *packed);
/* What the job's member read of published memory since it attached to this coordinator; it is to be told. */
uint64_t cairn_control_job_read(struct job *job);
/* Caller's thread: sends the request, waits for its reply of `reply_type` (*reply_out, freed by the
 * caller) or its failure. Sets this thread's sentence. */
cairn_status cairn_control_ask(struct session *s, struct job *job, uint16_t type,
                               const ProtobufCMessage *message, uint16_t reply_type,
                               uint64_t deadline_ms, ProtobufCMessage **reply_out) CAIRN_MUST_CHECK;

/* Caller's thread: sets this thread's sentence to whom a call waits for that has just timed out. */
cairn_status cairn_control_fail_awaited(struct session *s, struct job *job, uint16_t type);
/* The same thread: for whom; NULL: the coordinator does not say. Freed by the caller. */
Cairn__Awaited *cairn_control_awaited(struct session *s, struct job *job, uint16_t type);

/* ---- attach.c, loop thread ---- */
void cairn_attach_begin(struct job *job);
void cairn_attach_on_attached(struct job *job, Cairn__Attached *attached); /* takes it */
void cairn_attach_on_page(struct job *job, const Cairn__Page *page);
void cairn_attach_on_error(struct job *job, cairn_status status, const char *text);
void cairn_attach_on_shards(struct job *job, const Cairn__ShardsChanged *message);
void cairn_attach_lost(struct job *job); /* the control connection is gone */
void cairn_attach_release(struct job *job);
/* Fails the job for good: every call says so. */
void cairn_job_fail(struct job *job, cairn_status status, const char *text);

/* ---- tiles.c ---- */
/* Under the lock: the job has tiles. */
bool cairn_client_tiles_hold(const struct job *job);
/* Any thread: what this worker holds of a tensor. */
struct piece cairn_client_tiles_own(struct job *job, size_t tensor);
void cairn_client_tiles_free(struct declared *declared); /* NULL is fine */
/* Loop thread, attached again: what was declared is declared once more, before anything else. */
void cairn_client_tiles_again(struct job *job);
/* Loop thread: TilesSet, in reply to `request`. */
void cairn_client_tiles_on_set(struct job *job, uint32_t request);
/* Loop thread: an Error. False: it is not about tiles declared again. */
bool cairn_client_tiles_on_error(struct session *s, uint32_t request, cairn_status status,
                                 const char *text);

/* ---- datapath.c ---- */
/* Opens the fabric, unless its devices are to be chosen. */
cairn_status cairn_datapath_open(struct session *s, struct cairn_sentence *why) CAIRN_MUST_CHECK;
/* Loop thread, while there is none: chooses and opens, or fails. False: no shard is known yet, ask again. */
bool cairn_datapath_choose(struct session *s, const Cairn__Welcome *welcome,
                           struct cairn_sentence *why, cairn_status *status_out);
/* Loop thread, each tick: a shard that was never heard fails the job, with both ends' addresses. */
void cairn_datapath_judge(struct shard_link *link, uint64_t now_ms);

/* ---- link.c: endpoints to shards, loop thread ---- */
void cairn_link_tick(struct shard_link *link, uint64_t now_ms);
void cairn_link_close(struct shard_link *link);
/* What goes to it goes through memory that both ends have. */
bool cairn_link_shares(const struct shard_link *link);
/* Gives the connection up and begins anew; everything unanswered is asked again. */
void cairn_link_restart(struct shard_link *link);
/* The connection that the owner's last GRANT came by. */
struct shard_link *cairn_link_granter(struct shard_link *owner);
/* CAIRN_OK: taken by the fabric. on_sent may be NULL without payload. */
cairn_status cairn_link_send(struct shard_link *link, struct cairn_chunk_header *header,
                             const void *payload, size_t payload_bytes,
                             cairn_fabric_done_fn *on_sent, void *arg) CAIRN_MUST_CHECK;
void cairn_link_on_message(void *session, const void *header, size_t header_bytes,
                           size_t payload_bytes, struct cairn_fabric_message *message);

/* ---- part.c: loop thread ---- */
/* A part of the op for chunk `chunk` of the shard. NULL: out of memory. */
struct part *cairn_part_new(struct job *job, const struct command *command, uint32_t shard,
                            uint64_t chunk);
/* It was never sent: as if it had not been made. */
void cairn_part_undo(struct part *part);
/* Not 0. CAIRN_PART_COOKIE is set in it. */
#define CAIRN_PART_COOKIE ((uint64_t)1 << 63)
uint64_t cairn_part_cookie(const struct part *part);
/* NULL: a former use, or not one of ours. */
struct part *cairn_part_of_cookie(const struct job *job, uint64_t cookie);
/* It is answered; the first status stays. */
void cairn_part_end(struct part *part, cairn_status status);
/* Sends its chunk over the connection of shard `via`, and fills in of `header` what a part knows. */
cairn_status cairn_part_send(struct part *part, uint32_t via,
                             struct cairn_chunk_header *header) CAIRN_MUST_CHECK;
/* Before and behind what a fetch receives: memory of its own where the caller's has strides. */
cairn_status cairn_part_open(struct part *part) CAIRN_MUST_CHECK;
void cairn_part_arrived(struct part *part);
void cairn_part_loan(struct part *part);
void cairn_part_loan_back(struct part *part);
/* Its bytes go into the job's statistics; `shared`: through memory that both ends have. */
void cairn_part_count(const struct part *part, bool shared);
/* Where a put, push or fetch stands: the shard and chunk that are next, past those of which the piece has
 * nothing. False: it is cut whole. */
bool cairn_command_chunk(struct command *command, uint32_t *shard_out, uint64_t *chunk_out);
/* True, and the op is ended, if the job is closing or has failed. */
bool cairn_command_refused(struct command *command);

/* ---- transfer.c: puts and fetches; loop thread ---- */
bool cairn_transfer_run(struct command *command);
void cairn_transfer_pump(struct shard_link *link);
void cairn_transfer_on_answer(struct shard_link *link, const struct cairn_chunk_header *header);
void cairn_transfer_on_data(struct shard_link *link, const struct cairn_chunk_header *header,
                            struct cairn_fabric_message *message);
/* What went over this connection and is unanswered stays so: it waits to be sent again. */
void cairn_transfer_lost(struct shard_link *link);
/* Ends every put and fetch of the job with `status`. */
void cairn_transfer_fail_all(struct job *job, cairn_status status);

/* ---- round.c: pushes, loop thread ---- */
bool cairn_client_round_push_run(struct command *command);
bool cairn_client_round_micro_end_run(struct command *command);
bool cairn_client_round_commit_run(struct command *command);
void cairn_client_round_on_opened(struct job *job, const Cairn__RoundOpened *opened);
void cairn_client_round_on_grant(struct shard_link *owner);
/* Of the connection: what is pushed by it may have been answered in vain. */
void cairn_client_round_on_hello(struct shard_link *link, uint64_t way);
/* Something is owed to the open round's machine that comes, or may come, by this connection. */
bool cairn_client_round_waits(const struct shard_link *link);
void cairn_client_round_on_answer(struct shard_link *owner,
                                  const struct cairn_chunk_header *header);
/* The connection is lost, and with it the grants that came by it. */
void cairn_client_round_lost(struct shard_link *link);
/* The coordinator's word about a round. */
void cairn_client_round_on_result(struct job *job, const Cairn__RoundResult *result);
/* Every part of the machine ends; it is dropped. */
void cairn_client_round_drop(struct job *job, cairn_status status);

/* ---- puts.c ---- */
/* It may be put again. Under the lock. */
void cairn_puts_failed(struct job *job, size_t tensor);

/* ---- write.c ---- */
void cairn_client_write_release(struct job *job); /* with the job, or under the lock */

/* ---- explain.c: sentences for what went wrong; loop thread, not under the lock ---- */
void cairn_explain_part(const struct part *part, cairn_status status, struct cairn_sentence *out);

/* If a call asks: which shards have not answered, and what. */
void cairn_explain_awaited(struct job *job);

/* ---- op.c ---- */
/* A new op with the loop's reference, and one of the handle if `with_handle`. NULL: out of memory. */
struct op *cairn_op_new(struct job *job, uint8_t kind, bool with_handle);
void cairn_op_unref(struct op *op);
/* Loop thread: counts a part more, a part less; the last one completes the op. */
void cairn_op_part_begin(struct op *op);
void cairn_op_part_end(struct op *op, cairn_status status, const char *why);

void cairn_job_ref(struct job *job);   /* not under the lock */
void cairn_job_unref(struct job *job); /* frees it with the last one; not under the lock */
void cairn_session_unref(struct session *s);

#endif
