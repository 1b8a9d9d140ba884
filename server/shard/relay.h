/* A relay: this shard adds up what the workers of its host contribute to chunks that other shards own
 * (and to its own), and passes one contribution of the host on to each owner; and it fetches the owners'
 * published chunks once for all of them (design 5: a reduce group is a host).
 *
 *   coordinator ── RelaySet, RoundOpen, Fence ──► relay.c
 *   workers ── PUSH, MICRO_END, COMMIT ──► relay_collect.c ──► step.h (forwards), one core an owner
 *                                 relay_fold.c ◄── relay_act.c ◄──┘         │ FORWARD
 *   owners ◄── relay_link.c ◄───────────────── relay_send.c ◄──────────────┘
 *   workers ── FETCH ──► relay_fetch.c ──► relay_ask.c ──► relay_link.c ──► owners
 *
 * To its workers it is the owner (proto/wire/chunk.h, "Relays"); to an owner it is a worker: the member
 * `number`, whose rank is the least of its workers'. The bits are those of step.h: a strict left fold
 * within the host, and the owners fold the hosts' sums in the order of their least ranks.
 *
 * A FOLD that begins a chunk's sum takes a buffer of one chunk, which is free again when the owner has
 * folded it. So memory goes with what is under way, not with the model, as long as the workers push in
 * about the same order: what one has pushed and another not yet keeps its buffer. Buffers are taken from
 * the lowest on, and counted by the shard's budget when they are touched first.
 *
 * What it cannot pass on (no room for a sum that nothing but room could end, an owner that refuses it)
 * would be waited for by all: it says so to the coordinator, which does without the groups.
 *
 * A job has at most one relay that works; those before it end when nothing is under way. Loop thread. */
#ifndef CAIRN_SHARD_RELAY_H
#define CAIRN_SHARD_RELAY_H

#include "proto/wire/push.h"
#include "server/shard/shard.h"

struct cairn_relay;
struct cairn_relay_fetches;

/* The connection to an owner, as client/link.c's; of relay_link.c. */
struct cairn_relay_link {
    struct cairn_fabric_peer *peer; /* owned; NULL: connecting later */
    uint64_t retry_at_ms;
    uint32_t retry_delay_ms;
    uint32_t on_loan;    /* sends and receives that the fabric has not completed */
    bool lost;           /* the connection is gone; what was under way is not yet told */
    uint32_t connection; /* the number of `peer`, or of the last one */
    uint32_t endpoint;   /* the owner's to us, the newest heard of; 0: none on this connection */
    bool heard;          /* anything from it since the last tick */
    uint64_t quiet_since_ms;
    uint32_t silent_ticks; /* with something to wait for, and not a word from it */
};

enum { CAIRN_RELAY_NONE = UINT32_MAX }; /* no buffer */

enum cairn_relay_buffer_state {
    CAIRN_RELAY_FREE = 0,
    CAIRN_RELAY_SUMMING, /* of owner->sums */
    CAIRN_RELAY_SENDING, /* final: the owner has not folded it yet */
    CAIRN_RELAY_ENDING   /* nobody needs it: free when nothing is on loan, and no fold writes it */
};

/* Room for a chunk's sum. */
struct cairn_relay_buffer {
    enum cairn_relay_buffer_state state;
    struct cairn_relay_owner *owner; /* borrowed; of what is in it */
    uint32_t chunk;                  /* the core's number */
    uint32_t on_loan;                /* sends that the fabric has not completed, and a fold */
};

/* A contribution that is here; the core names it by its index. */
struct cairn_relay_slot {
    struct cairn_relay_owner *owner; /* borrowed */
    uint64_t member;
    uint32_t chunk;
    cairn_dtype dtype;
    size_t payload_bytes;
    uint64_t checksum;
    enum cairn_way way;
    struct cairn_fabric_message
        *message;            /* owned: the payload is in the worker's memory; or NULL */
    const void *view;        /* the payload, wherever */
    void *memory;            /* owned: the payload came another way; or NULL */
    bool folding, receiving; /* a compute thread reads it, the fabric fills it */
    cairn_status status;     /* of the receive that ended */
    struct cairn_relay_slot *next_landed; /* in owner->landed */
};

/* A fold under way, or one that waits for a buffer. */
struct cairn_relay_fold {
    struct cairn_task task;
    struct cairn_relay_owner *owner; /* borrowed */
    struct cairn_source sources[CAIRN_STEP_FOLD_MAX];
    uint32_t slots[CAIRN_STEP_FOLD_MAX]; /* of the sources */
    uint32_t source_count, chunk, buffer;
    bool first;
    bool viewed;                   /* a source is in a worker's memory */
    const void *failed_at;         /* there: it could not be read */
    struct cairn_relay_fold *next; /* in relay->folds_free or owner->folds_waiting */
};

/* The tensors that a micro-batch had nothing of: the payload of its end. Kept until the round is over. */
struct cairn_relay_note {
    struct cairn_relay_note *next;
    struct cairn_relay_owner *owner; /* borrowed */
    uint32_t micro, on_loan;
    bool is_over; /* freed when nothing is on loan */
    size_t count;
    uint32_t tensors[]; /* [count] ascending */
};

/* A shard to which we pass on. */
struct cairn_relay_owner {
    struct cairn_relay *relay; /* borrowed */
    uint32_t index;            /* in the layout */
    char name[64];
    uint8_t *address; /* owned */
    size_t address_bytes;
    struct cairn_relay_link link;

    struct cairn_shard_map map; /* owned: its */
    uint32_t *
        grad_first; /* owned: [map.extent_count] the core's number of a trained extent's first chunk */
    uint32_t *grad_chunks; /* owned: [grad_chunk_count] the core's number -> the map's */
    uint32_t grad_chunk_count;

    /* collecting */
    struct cairn_step *step;         /* owned */
    struct cairn_relay_slot *slots;  /* owned: [slot_count] */
    struct cairn_relay_slot *landed; /* receives that ended and were not told to the core yet */
    uint32_t slot_count;
    uint32_t
        *sums; /* owned: [grad_chunk_count] the buffer of the chunk's sum; or CAIRN_RELAY_NONE */
    bool *forwarded;         /* owned: [grad_chunk_count] in the micro-batch at hand */
    uint32_t held, sending;  /* buffers: SUMMING or SENDING; SENDING */
    uint64_t stuck_since_ms; /* nothing but room lets its folds go on; 0: something may */
    struct cairn_relay_fold *folds_waiting, **folds_waiting_end; /* for a buffer, oldest first */
    bool stepping, settling;
    uint64_t round, epoch;  /* that is open; 0: none */
    uint64_t spoiled_round; /* a sum of it is wrong: it is not passed on */

    /* sending */
    void *push_memory;       /* owned */
    struct cairn_push *push; /* in it; NULL: no round */
    struct cairn_push_actions push_actions;
    struct cairn_chunk_header grant; /* the last one; kind 0: none on this connection */
    struct cairn_relay_note *notes;  /* owned */
};

struct cairn_relay {
    struct cairn_relay *next;    /* of the job's: the first may work, others end */
    struct cairn_shard_job *job; /* borrowed */
    uint64_t number, token;
    uint64_t *members; /* owned: [member_count] by rank */
    uint32_t member_count;
    struct cairn_relay_owner *owners; /* owned: [owner_count] by index */
    uint32_t owner_count;
    uint64_t round; /* that it relays; 0: none */
    bool leaving;
    uint32_t busy;                     /* folds, loans and messages that refer to it */
    struct cairn_step_actions actions; /* of the core that is told something; owned */
    uint32_t *tensor_group;            /* owned: [spec.tensor_count] of trained tensors */

    /* of the contribution that a core is being told of */
    struct cairn_fabric_message *waiting; /* or NULL */
    void *waiting_memory;                 /* owned: for its payload, if it cannot be viewed */
    struct cairn_chunk_header waiting_header;

    struct cairn_arena
        sums; /* [buffer_count][buffer_bytes]; a page that was never touched is none */
    struct cairn_fabric_region *region;
    struct cairn_relay_buffer *buffers; /* owned: [buffer_count] */
    size_t buffer_bytes;
    uint32_t buffer_count,
        buffers_counted;       /* counted: of the first ones, those that were touched */
    uint32_t buffers_reserved; /* of the shard's budget, touched or not */
    uint32_t buffers_wanted;   /* more are taken only for an owner of which none is SENDING */
    uint32_t buffers_turn;     /* of owners, to have one that is free first */
    struct cairn_log_limit starving;
    uint64_t stuck_max_ms;      /* then it gives up */
    uint32_t silent_ticks_max;  /* the same of owners that do not answer */
    uint64_t roomless_since_ms; /* payloads are refused for lack of memory; 0: none was */
    bool given_up;
    struct cairn_relay_fold *folds; /* owned: as many as can be under way */
    struct cairn_relay_fold *folds_free;

    struct cairn_relay_fetches *fetches; /* owned: of relay_fetch.c */
};

/* ---- relay.c ---- */
/* Replaces the relay of the job. CAIRN_ERR_MALFORMED, CAIRN_ERR_NO_MEMORY: there is none then. */
CAIRN_MUST_CHECK cairn_status cairn_relay_set(struct cairn_shard_job *job,
                                              const Cairn__RelaySet *message,
                                              struct cairn_sentence *why);
/* The one that works; NULL: none. */
struct cairn_relay *cairn_relay_of(const struct cairn_shard_job *job);
struct cairn_relay_owner *cairn_relay_owner_find(struct cairn_relay *relay, uint32_t index);
/* The owner of a chunk of the grid; NULL: none that this relay is for. */
struct cairn_relay_owner *cairn_relay_owner_of_chunk(struct cairn_relay *relay, uint32_t tensor,
                                                     uint64_t first_leaf);
void cairn_relay_on_fence(struct cairn_shard_job *job, uint64_t epoch);
void cairn_relay_on_resolve(struct cairn_shard_job *job, uint64_t epoch);
/* A round is open. CAIRN_ERR_PROTOCOL: it names a relay that there is not. */
CAIRN_MUST_CHECK cairn_status cairn_relay_on_open(struct cairn_shard_job *job,
                                                  const Cairn__RoundOpen *message);
/* A worker's connection is UP or DOWN. */
void cairn_relay_on_peer(struct cairn_member *member, enum cairn_step_event_kind kind);
/* A message that an owner sent to a relay; false: it is not one. Takes or drops the message if so. */
bool cairn_relay_on_message(struct cairn_shard *shard, const struct cairn_chunk_header *header,
                            struct cairn_fabric_message *message);
/* All of a job: it leaves, or is stopped. */
void cairn_relay_leave(struct cairn_shard_job *job);
/* Whatever is in flight: the fabric and the pools are closed, or nothing is. */
void cairn_relay_free_all(struct cairn_shard_job *job);
/* What it has of the round cannot be passed on, nor will it be: the coordinator is told, once, and does
 * without it. A relay that is silent would be waited for by all. */
void cairn_relay_give_up(struct cairn_relay *relay, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
/* Something is to be waited for: ticks begin. */
void cairn_relay_wake(struct cairn_shard *shard);
void cairn_relay_busy(struct cairn_relay *relay);
void cairn_relay_idle(struct cairn_relay *relay); /* may free it, and its job */

/* ---- relay_link.c ---- */
/* Connects, retries, breaks a silence; tells relay_send and relay_fetch of a loss, when nothing is on loan
 * any more. */
void cairn_relay_link_tick(struct cairn_relay_owner *owner, uint64_t now_ms);
/* A message of the owner came. False: the connection is lost and that is not told yet: drop it. */
bool cairn_relay_link_heard(struct cairn_relay_owner *owner);
/* Sends a header to the owner as its member; payload on loan until on_sent (may be NULL without one), which
 * ends with cairn_relay_link_loan_back. CAIRN_ERR_CLOSED: not connected; CAIRN_ERR_BUSY. */
CAIRN_MUST_CHECK cairn_status cairn_relay_link_send(struct cairn_relay_owner *owner,
                                                    struct cairn_chunk_header *header,
                                                    const void *payload, size_t payload_bytes,
                                                    cairn_fabric_done_fn *on_sent, void *arg);
/* Something that came from the owner is being received, or is sent to it (link_send counts its own): a loss
 * is not told before it is back, nor the relay freed. The last word of a callback: it may free the relay. */
void cairn_relay_link_loan(struct cairn_relay_owner *owner);
void cairn_relay_link_loan_back(struct cairn_relay_owner *owner);
/* Judged to be from that owner. */
void cairn_relay_link_on_hello(struct cairn_relay_owner *owner,
                               const struct cairn_chunk_header *header);
void cairn_relay_link_close(struct cairn_relay_owner *owner);

/* ---- relay_owner.c: what is made for an owner, and freed ---- */
CAIRN_MUST_CHECK cairn_status cairn_relay_owner_open(struct cairn_relay *relay,
                                                     struct cairn_relay_owner *owner,
                                                     const Cairn__ShardInfo *info,
                                                     struct cairn_sentence *why);
void cairn_relay_owner_close(struct cairn_relay_owner *owner);
/* Chunks of a trained tensor there. */
uint64_t cairn_relay_owner_chunks(const struct cairn_relay_owner *owner, uint32_t tensor);

/* ---- relay_collect.c ---- */
/* A PUSH of a worker: false if it is meant for the shard's own part of the job. Takes or drops the message
 * if not. */
bool cairn_relay_on_push(struct cairn_member *member, const struct cairn_chunk_header *header,
                         struct cairn_fabric_message *message);
/* MICRO_END and COMMIT that name an owner (header->tensor), with a list of untouched tensors that is judged
 * to be ascending and of trained ones. */
void cairn_relay_on_micro_end(struct cairn_member *member, const struct cairn_chunk_header *header,
                              const uint32_t *tensors, size_t count);
void cairn_relay_on_commit(struct cairn_member *member, const struct cairn_chunk_header *header);
/* RECEIVE and DISCARD of a core: what waits goes into a slot, or is dropped. */
void cairn_relay_receive(struct cairn_relay_owner *owner, uint32_t slot, uint32_t chunk);
void cairn_relay_discard(struct cairn_relay *relay);
/* Nobody reads the slot's payload any more. */
void cairn_relay_slot_release(struct cairn_relay_slot *slot);
/* The relay ends: all that are not read or filled. */
void cairn_relay_slots_leave(struct cairn_relay_owner *owner);

/* ---- relay_act.c: the cores and what they ask for ---- */
/* Tells the owner's core and does its actions, and what follows from them. Not while owner->stepping. The
 * caller holds the relay (cairn_relay_busy). */
void cairn_relay_step(struct cairn_relay_owner *owner, const struct cairn_step_event *event);
/* Tells the core of receives that ended. */
void cairn_relay_settle(struct cairn_relay_owner *owner);

/* ---- relay_fold.c ---- */
CAIRN_MUST_CHECK cairn_status cairn_relay_folds_open(struct cairn_relay *relay,
                                                     struct cairn_sentence *why);
void cairn_relay_folds_close(struct cairn_relay *relay);
void cairn_relay_fold(struct cairn_relay_owner *owner, const struct cairn_step_action *action);
/* A buffer is free, or may be taken: folds that wait go on. */
void cairn_relay_folds_advance(struct cairn_relay *relay);
/* Gives the relay up if only room would let the owner's folds go on, and there has been none for long. */
void cairn_relay_folds_tick(struct cairn_relay_owner *owner, uint64_t now_ms);
/* The round is void: folds that wait are not done, and the sums are nobody's. Before the core drains. */
void cairn_relay_folds_void(struct cairn_relay *relay);
float *cairn_relay_buffer_at(const struct cairn_relay *relay, uint32_t buffer);
/* The owner is to have it now. */
void cairn_relay_buffer_sent(struct cairn_relay *relay, uint32_t buffer);
/* Nobody needs what is in it. */
void cairn_relay_buffer_end(struct cairn_relay *relay, uint32_t buffer);
/* A send or a fold of it ended. */
void cairn_relay_buffer_returned(struct cairn_relay *relay, uint32_t buffer);

/* ---- relay_send.c ---- */
/* The machine's memory. CAIRN_ERR_NO_MEMORY: too many chunks, too. */
CAIRN_MUST_CHECK cairn_status cairn_relay_send_open(struct cairn_relay_owner *owner);
void cairn_relay_send_begin(struct cairn_relay_owner *owner); /* a round opened */
void cairn_relay_send_end(struct cairn_relay_owner *owner);   /* it is void, or resolved */
/* The chunk's sum is final: the buffer of owner->sums. */
void cairn_relay_send_chunk(struct cairn_relay_owner *owner, uint32_t chunk, uint32_t micro);
void cairn_relay_send_micro_end(struct cairn_relay_owner *owner, uint32_t micro);
void cairn_relay_send_commit(struct cairn_relay_owner *owner, uint64_t weight);
/* GRANT, ACK, NAK, MICRO_ACK. */
void cairn_relay_send_on_answer(struct cairn_relay_owner *owner,
                                const struct cairn_chunk_header *header);
void cairn_relay_send_on_hello(struct cairn_relay_owner *owner, uint64_t way);
void cairn_relay_send_lost(struct cairn_relay_owner *owner);
bool cairn_relay_send_waits(const struct cairn_relay_owner *owner);

/* ---- relay_fetch.c: published chunks of owners, fetched once for the host ---- */
/* Called with the relay: memory is taken from the shard's budget as it is needed, up to its bound. Without
 * room for a chunk there is no cache, and every FETCH is told to ask the owner. CAIRN_ERR_NO_MEMORY. */
CAIRN_MUST_CHECK cairn_status cairn_relay_fetch_open(struct cairn_relay *relay,
                                                     struct cairn_sentence *why);
/* Who waits is told to ask the owner. Freed if nothing is in flight, or the fabric is closed; else by the
 * next call. */
void cairn_relay_fetch_close(struct cairn_relay *relay);
/* A FETCH of a member for a chunk that is not of this shard. Takes or drops the message (the box of a
 * CAIRN_TILE_BOX fetch). NAK NOT_FOUND: there is no relay, or it is not for that: the owner is to be
 * asked. */
void cairn_relay_fetch(struct cairn_member *member, const struct cairn_chunk_header *header,
                       struct cairn_fabric_message *message);
/* The member is gone: it waits for nothing any more. */
void cairn_relay_fetch_forget(struct cairn_relay *relay, uint64_t member);

/* ---- relay_ask.c: what owners are asked for ---- */
/* DATA or NAK of one of our FETCHes (request has CAIRN_RELAY_FETCH_COOKIE set). Takes or drops it. */
#define CAIRN_RELAY_FETCH_COOKIE ((uint64_t)1 << 63)
void cairn_relay_fetch_on_answer(struct cairn_relay_owner *owner,
                                 const struct cairn_chunk_header *header,
                                 struct cairn_fabric_message *message);
/* Of relay_link.c, while it is connected: what the owner had no time for is asked again. */
void cairn_relay_fetch_tick(struct cairn_relay_owner *owner);
/* The connection, or the owner's to us, is lost: what is unanswered is asked again. */
void cairn_relay_fetch_lost(struct cairn_relay_owner *owner);
bool cairn_relay_fetch_waits(const struct cairn_relay_owner *owner);

#endif
