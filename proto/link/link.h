/* A chunk link: the connection over which a worker, or a relay in its place, sends headers and payloads to a
 * shard (proto/wire/wire.h). It connects, says HELLO, and begins again when it is lost.
 *
 * The shard's endpoint to us may be lost alone ("Ways" there): its HELLO says so. In case the shard does not
 * know either, or has cut us off, a silence while something is awaited is broken by a HELLO of ours.
 *
 * A lost connection is told (callbacks->lost) only when the fabric has given back every buffer that was on
 * loan on it: until then something of it could still arrive. So could an answer, which is why nothing of the
 * shard is heard in between.
 *
 * Time is passed in. Loop thread. */
#ifndef CAIRN_LINK_LINK_H
#define CAIRN_LINK_LINK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/queue.h>

#include "proto/base/status.h"
#include "proto/fabric/fabric.h"
#include "proto/link/push.h"
#include "proto/wire/wire.h"

#define CAIRN_LINK_SILENT_MS 5000 /* so long a silence is said to be one */

struct chunk_link;

/* The callbacks in which a worker and a relay differ. */
struct chunk_link_callbacks {
    /* Says who speaks: job, member and token; and in a HELLO, what it says beside its number. */
    void (*sign)(const struct chunk_link *link, struct chunk_header *header);
    /* Something is awaited from the shard. */
    bool (*waits)(const struct chunk_link *link);
    /* Everything that was sent and is unanswered is lost, and nothing of the connection arrives any
     * more. */
    void (*lost)(struct chunk_link *link);
    /* The connection went down, just now; may be NULL. */
    void (*down)(struct chunk_link *link, cairn_status why);
    /* Something is awaited, and for a second this process has had no memory to send what asks for it, or to
     * connect; may be NULL. Told again when it happens again. */
    void (*starved)(struct chunk_link *link);
    /* A loan more, and one less: the last word of a callback. May be NULL. */
    void (*loan)(struct chunk_link *link);
    void (*loan_back)(struct chunk_link *link);
};

struct chunk_link {
    const struct chunk_link_callbacks *callbacks; /* static */
    struct fabric_peer *peer;                     /* owned; NULL: connecting later */
    uint64_t retry_at_ms;
    uint32_t retry_delay_ms;
    uint32_t on_loan;    /* sends and receives that the fabric has not completed */
    bool lost;           /* the connection is gone; that is not told yet */
    uint32_t connection; /* the number of `peer`, or of the last one */
    uint64_t way;        /* the highest of the shard's HELLOs on this connection */
    uint32_t endpoint;   /* the shard's to us, the newest heard of; 0: none on this connection */
    bool heard;          /* anything from it since the last tick */
    uint64_t quiet_since_ms; /* or since there was nothing to wait for */
    uint64_t
        unheard_since_ms; /* the same, whatever was said and however often it was connected since */
    uint64_t looked_ms;   /* at that, last */
    struct {
        bool is_short;     /* of memory: the last thing of this size could not be sent */
        size_t bytes;      /* of its payload; 0: a header alone, or a connection */
        uint64_t since_ms; /* the tick that saw it first; 0: none has */
        bool is_told;
    } starved;
};

/* To the shard's address; `fabric` NULL: no connection is made now. address_bytes 0: the shard is away. */
void chunk_link_tick(struct chunk_link *link, struct fabric *fabric, const uint8_t *address,
                     size_t address_bytes, uint64_t now_ms);
/* As if the connection were lost: the next ticks tell that, and connect again. */
void chunk_link_close(struct chunk_link *link);
/* The same of a fabric that is closed, which has freed its peers. */
void chunk_link_forget(struct chunk_link *link);
/* The same at once, without the delay that grew: the shard is there. */
void chunk_link_restart(struct chunk_link *link);
/* Both ends are heard of: what is asked can be answered. */
bool chunk_link_is_up(const struct chunk_link *link);
/* Through memory of this host. */
bool chunk_link_shares(const struct chunk_link *link);
/* Notes whether a send over the link failed for want of memory. chunk_link_send notes its own
 * sends. */
void chunk_link_note_memory(struct chunk_link *link, cairn_status status, size_t payload_bytes);
/* For how long something has been awaited whose request this process has no memory to send; 0:
 * there is memory. */
uint64_t chunk_link_starved_ms(const struct chunk_link *link, uint64_t now_ms);
/* For how long something has been awaited, and nothing of the shard has come, also while there was no
 * connection to it. Time in which this process did not run counts as none. 0: it speaks, or need not. */
uint64_t chunk_link_silent_ms(const struct chunk_link *link, uint64_t now_ms);
/* Notes that a message of the shard came. False: a loss has not been told yet, so drop the
 * message. */
bool chunk_link_heard(struct chunk_link *link);
/* HELLO of the shard, its header.request. True: the shard has a new endpoint to us, and what it answered on
 * earlier ones may be lost. */
bool chunk_link_on_hello(struct chunk_link *link, uint64_t way);
/* The payload is on loan until on_sent (may be NULL without one), which ends with chunk_link_sent.
 * CAIRN_ERR_CLOSED: not connected; CAIRN_ERR_BUSY. */
CAIRN_MUST_CHECK cairn_status chunk_link_send(struct chunk_link *link, struct chunk_header *header,
                                              const void *payload, size_t payload_bytes,
                                              fabric_done_fn *on_sent, void *arg);
/* The last word of on_sent of a payload. A payload that failed for want of memory arrived nowhere,
 * and nobody answers it: the connection is made anew, so that all of it is sent again. */
void chunk_link_sent(struct chunk_link *link, cairn_status status);
/* Notes that something from the shard is being received: a loss is not told before it is given
 * back. Sends count themselves. */
void chunk_link_loan(struct chunk_link *link);
void chunk_link_loan_back(struct chunk_link *link);

/* ==== asker ==== */

/* An asker: the puts and fetches that a worker, or a relay in its place, has for one shard. They are sent in
 * the order in which they came, a few unanswered at a time; and again, behind all others, when a connection
 * is lost, when a chunk was damaged on its way, or when the shard had no time.
 *
 *   asker_ask ──► WAITING ── send ──► SENT ── asker_answered ──► IDLE: over, or received
 *                          ▲                  │                                │
 *                          └── _asker_lost ───┴───── _asker_again, _asker_ask ─┘
 *
 * Pure: its user sends, receives, and tells it of ticks. */

/* Set in header.request of what an asker asks; clear in that of a push. */
#define CAIRN_REQUEST_OF_ASKER ((uint64_t)1 << 63)

enum chunk_request_state { CAIRN_REQUEST_IDLE = 0, CAIRN_REQUEST_WAITING, CAIRN_REQUEST_SENT };

/* A put or a fetch of one chunk. The asker's user keeps a table of them, and sets index and serial; the rest
 * is 0. */
struct chunk_request {
    TAILQ_ENTRY(chunk_request) link; /* of those that are WAITING */
    enum chunk_request_state state;
    uint32_t index;   /* in the table */
    uint32_t serial;  /* grows with every use: an answer to a former one is dropped */
    uint32_t damaged; /* times that its bytes did not arrive as they were sent */
};

struct asker {
    /* Sends a request. Not OK: the request cannot be sent now, and stays the first of those that wait. */
    cairn_status (*send)(struct chunk_request *request);
    TAILQ_HEAD(, chunk_request) waiting;
    uint32_t sent; /* requests that are unanswered */
    bool busy;     /* the shard had no time: nothing is sent before an answer or the next tick */
};

void asker_open(struct asker *asker, cairn_status (*send)(struct chunk_request *));
/* The number to put into header.request: never 0. */
uint64_t chunk_request_number(const struct chunk_request *request);

/* Queues an IDLE request, behind all that wait. */
void asker_ask(struct asker *asker, struct chunk_request *request);
/* Sends what may be sent now. Call it after each of these calls, and whenever `send` may go on. */
void asker_pump(struct asker *asker);
/* Tries again after a tick, or when there is a new connection to the shard: the shard may have time
 * again. Pumps. */
void asker_retry(struct asker *asker);

/* Notes that an answer with this number came. False: it belongs to a former use of the request, or
 * to one that is answered already. */
bool asker_answered(struct asker *asker, struct chunk_request *request, uint64_t number);
/* The answer was NAK with this status, which may be any number, or what came is damaged
 * (CAIRN_ERR_CHECKSUM). True: the request is to be sent again. False: the refusal is for good, or the way to
 * the shard is broken. */
bool asker_again(struct asker *asker, struct chunk_request *request, uint64_t status);
/* The connection by which the request was sent is lost. True: it was unanswered, and is to be sent again. */
bool asker_lost(struct asker *asker, struct chunk_request *request);
/* The request is not asked for any more, whatever its state. */
void asker_drop(struct asker *asker, struct chunk_request *request);
/* A request is to be sent, or unanswered. */
bool asker_waits(const struct asker *asker);

/* ==== pusher ==== */

/* A pusher: it drives the push machine (push.h) of the open round over chunk links, and turns what that says
 * into messages (proto/wire/wire.h). A worker has one for all shards of its job; a relay has one for
 * each owner, to whom it is the worker. Loop thread. */

struct pusher;

/* The functions in which a worker and a relay differ. `shard` is the machine's number of a
 * shard. */
struct pusher_callbacks {
    /* The connection by which what is for the shard goes. */
    struct chunk_link *(*link)(struct pusher *pusher, uint32_t shard);
    /* It refused a send: whatever refuses it, a new connection sends it again. */
    void (*link_failed)(struct pusher *pusher, struct chunk_link *link);
    /* Sends the chunk of action->cookie; the header has the numbers of the round. */
    cairn_status (*send_chunk)(struct pusher *pusher, const struct push_action *action,
                               struct chunk_header *header);
    /* header.tensor of MICRO_END and COMMIT: 0, or whom a relay is told them for. NULL: 0. */
    uint32_t (*mark)(const struct pusher *pusher, uint32_t shard);
    /* Trained tensors of the shard that the micro-batch had nothing of, ascending: returns how many there
     * are, at most absent_max. */
    size_t (*absent_max)(const struct pusher *pusher, uint32_t shard);
    size_t (*absent)(const struct pusher *pusher, uint32_t shard, uint32_t micro,
                     uint32_t *tensors_out);
    void (*released)(struct pusher *pusher, const struct push_action *action);
    /* The shard refuses, so the round is void; may be NULL. */
    void (*refused)(struct pusher *pusher, const struct push_action *action);
};

struct pusher {
    const struct pusher_callbacks *callbacks; /* static */
    struct push_config config;
    void *memory;                /* owned: of the machine */
    struct push_round *push;     /* in it; NULL: no round */
    struct push_actions actions; /* owned */
    uint64_t epoch, round;       /* of the open round, or the last one */
};

/* CAIRN_ERR_NO_MEMORY: too much for a machine, too; close it. Once open, it is not opened again. */
CAIRN_MUST_CHECK cairn_status pusher_open(struct pusher *pusher,
                                          const struct pusher_callbacks *callbacks,
                                          const struct push_config *config);
/* Also of one that was never opened, all zero. */
void pusher_close(struct pusher *pusher);
/* A round opened; the one before has ended. */
void pusher_begin(struct pusher *pusher, uint64_t epoch, uint64_t round);
/* There is no such shard: right behind _begin. */
void pusher_absent(struct pusher *pusher, uint32_t shard);
/* It is void, or resolved: what the fabric has on loan is given back by itself. */
void pusher_end(struct pusher *pusher);

/* ---- the caller's side, of an open round: as in push.h; what the machine then says is done ---- */
CAIRN_MUST_CHECK cairn_status pusher_chunk(struct pusher *pusher, uint32_t shard, uint32_t micro,
                                           struct push_chunk chunk);
CAIRN_MUST_CHECK cairn_status pusher_micro_end(struct pusher *pusher, uint32_t micro);
CAIRN_MUST_CHECK cairn_status pusher_commit(struct pusher *pusher, uint64_t weight);
void pusher_resolved(struct pusher *pusher);

/* ---- the shards. Without a round, or of another round or shard, nothing happens ---- */
/* Rounds grow, and so do the numbers of a shard's ways: one that was overtaken is no newer than `last` (of
 * kind 0: none). Ways of several shards cannot be compared, but a round has one carrier. */
bool grant_is_newer(const struct chunk_header *last, const struct chunk_header *grant);
/* `way`: the highest that the carrier's HELLOs had; one may have overtaken the GRANT. */
void pusher_on_grant(struct pusher *pusher, uint32_t shard, const struct chunk_header *grant,
                     uint64_t way);
void pusher_on_hello(struct pusher *pusher, uint32_t shard, uint64_t way);
/* ACK, NAK, MICRO_ACK. */
void pusher_on_answer(struct pusher *pusher, uint32_t shard, const struct chunk_header *header);
void pusher_on_lost(struct pusher *pusher, uint32_t shard);
bool pusher_waits(const struct pusher *pusher, uint32_t shard);

#endif
