/* A chunk link: the connection over which a worker, or a relay in its place, sends headers and payloads to
 * a shard (proto/wire/wire.h). The link connects, sends HELLO, and connects again when the connection is
 * lost.
 *
 * The shard's endpoint to us may be lost alone ("Ways" in wire.h): the shard's next HELLO says so. In case
 * the shard has not noticed the loss either, or has cut us off, the link sends a HELLO of its own when the
 * shard is silent while something is awaited from it.
 *
 * A lost connection is reported (callbacks->lost) only when the fabric has given back every buffer that was
 * on loan on it: until then some of the data could still arrive. So could an answer, which is why nothing
 * from the shard is accepted in between.
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

#define CAIRN_LINK_SILENT_MS 5000 /* a silence of this length is reported */

struct chunk_link;

/* The callbacks in which a worker and a relay differ. */
struct chunk_link_callbacks {
    /* Fills in the sender: job, member and token; and in a HELLO, the fields beside its number. */
    void (*sign)(const struct chunk_link *link, struct chunk_header *header);
    /* True: something is awaited from the shard. */
    bool (*waits)(const struct chunk_link *link);
    /* Everything that was sent and is unanswered is lost, and nothing more arrives by the
     * connection. */
    void (*lost)(struct chunk_link *link);
    /* The connection went down, just now; may be NULL. */
    void (*down)(struct chunk_link *link, cairn_status why);
    /* Something is awaited, and for a second this process has had no memory to send the request for it, or
     * to connect; may be NULL. Called again when it happens again. */
    void (*starved)(struct chunk_link *link);
    /* A loan began, and a loan ended; the link does nothing after this call. May be NULL. */
    void (*loan)(struct chunk_link *link);
    void (*loan_back)(struct chunk_link *link);
};

struct chunk_link {
    const struct chunk_link_callbacks *callbacks; /* static */
    struct fabric_peer *peer;                     /* owned; NULL: connecting later */
    uint64_t retry_at_ms;
    uint32_t retry_delay_ms;
    uint32_t on_loan;    /* sends and receives that the fabric has not completed */
    bool lost;           /* the connection is gone, and callbacks->lost has not run yet */
    uint32_t connection; /* the number of `peer`, or of the last one */
    uint64_t way;        /* the highest of the shard's HELLOs on this connection */
    uint32_t endpoint;   /* the shard's newest known endpoint to us; 0: none on this connection */
    bool heard;          /* a message arrived from the shard since the last tick */
    uint64_t quiet_since_ms; /* the last message, or the last time that nothing was awaited */
    uint64_t
        unheard_since_ms; /* the same, but never reset by our own HELLOs or by new connections */
    uint64_t looked_ms;   /* when unheard_since_ms was checked last */
    struct {
        bool is_short;     /* of memory: the last message of this size could not be sent */
        size_t bytes;      /* of the message's payload; 0: a header alone, or a connection */
        uint64_t since_ms; /* the tick that saw the shortage first; 0: none has */
        bool is_told;      /* callbacks->starved ran */
    } starved;
};

/* Connects to the shard's address; `fabric` NULL: not now. address_bytes 0: the shard is away. */
void chunk_link_tick(struct chunk_link *link, struct fabric *fabric, const uint8_t *address,
                     size_t address_bytes, uint64_t now_ms);
/* Handles the link as if the connection were lost: the next ticks report that, and connect again. */
void chunk_link_close(struct chunk_link *link);
/* The same for a fabric that is closed, which has freed its peers. */
void chunk_link_forget(struct chunk_link *link);
/* The same, but connects at once, without the delay that grew: the shard is back. */
void chunk_link_restart(struct chunk_link *link);
/* True: both ends have heard of each other, so a request can be answered. */
bool chunk_link_is_up(const struct chunk_link *link);
/* True: the link uses shared memory of this host. */
bool chunk_link_shares(const struct chunk_link *link);
/* Notes whether a send over the link failed for lack of memory. chunk_link_send notes its own
 * sends. */
void chunk_link_note_memory(struct chunk_link *link, cairn_status status, size_t payload_bytes);
/* Returns for how long something has been awaited whose request this process has no memory to send; 0:
 * there is memory. */
uint64_t chunk_link_starved_ms(const struct chunk_link *link, uint64_t now_ms);
/* Returns for how long something has been awaited while nothing arrived from the shard, times without a
 * connection included. Time in which this process did not run does not count. 0: the shard has sent
 * something, or need not. */
uint64_t chunk_link_silent_ms(const struct chunk_link *link, uint64_t now_ms);
/* Notes that a message of the shard arrived. False: a loss has not been reported yet, so drop the
 * message. */
bool chunk_link_heard(struct chunk_link *link);
/* Handles a HELLO of the shard; `way` is its header.request. True: the shard has a new endpoint to us, and
 * its answers on earlier endpoints may be lost. */
bool chunk_link_on_hello(struct chunk_link *link, uint64_t way);
/* Sends a message. The payload is on loan until on_sent (may be NULL without one), which ends with
 * chunk_link_sent.
 * CAIRN_ERR_CLOSED: not connected; CAIRN_ERR_BUSY. */
CAIRN_MUST_CHECK cairn_status chunk_link_send(struct chunk_link *link, struct chunk_header *header,
                                              const void *payload, size_t payload_bytes,
                                              fabric_done_fn *on_sent, void *arg);
/* The last call of a payload's on_sent. A payload that failed for lack of memory arrived nowhere,
 * and nobody answers it: the link connects again, so that everything unanswered is sent again. */
void chunk_link_sent(struct chunk_link *link, cairn_status status);
/* Notes that something from the shard is being received: a loss is not reported before the buffer is given
 * back. Sends note themselves. */
void chunk_link_loan(struct chunk_link *link);
void chunk_link_loan_back(struct chunk_link *link);

/* ==== asker ==== */

/* An asker: the puts and fetches of a worker, or of a relay in its place, for one shard. They are sent in
 * the order in which they were queued, a few unanswered at a time; and again, behind all others, when a
 * connection is lost, when a chunk was damaged on its way, or when the shard was busy.
 *
 *   asker_ask ──► WAITING ── send ──► SENT ── asker_answered ──► IDLE: over, or received
 *                          ▲                  │                                │
 *                          └── _asker_lost ───┴───── _asker_again, _asker_ask ─┘
 *
 * Pure: its user sends, receives, and reports ticks. */

/* Set in header.request of an asker's requests; clear in that of a push. */
#define CAIRN_REQUEST_OF_ASKER ((uint64_t)1 << 63)

enum chunk_request_state { CAIRN_REQUEST_IDLE = 0, CAIRN_REQUEST_WAITING, CAIRN_REQUEST_SENT };

/* A put or a fetch of one chunk. The asker's user keeps a table of them, and sets index and serial; the
 * other fields are 0. */
struct chunk_request {
    TAILQ_ENTRY(chunk_request) link; /* of the WAITING requests */
    enum chunk_request_state state;
    uint32_t index;   /* in the table */
    uint32_t serial;  /* grows with every use: an answer to an earlier use is dropped */
    uint32_t damaged; /* how often its bytes arrived damaged */
};

struct asker {
    /* Sends a request. Not OK: the request cannot be sent now, and stays the first of the waiting ones. */
    cairn_status (*send)(struct chunk_request *request);
    TAILQ_HEAD(, chunk_request) waiting;
    uint32_t sent; /* requests that are unanswered */
    bool busy;     /* the shard was busy: nothing is sent before an answer or the next tick */
};

void asker_open(struct asker *asker, cairn_status (*send)(struct chunk_request *));
/* Returns the number for header.request: never 0. */
uint64_t chunk_request_number(const struct chunk_request *request);

/* Queues an IDLE request, behind all waiting ones. */
void asker_ask(struct asker *asker, struct chunk_request *request);
/* Sends what may be sent now. Call it after each of these calls, and whenever `send` may succeed again. */
void asker_pump(struct asker *asker);
/* Tries again after a tick, or when there is a new connection to the shard: the shard may no longer be
 * busy. Pumps. */
void asker_retry(struct asker *asker);

/* Notes that an answer with this number arrived. False: it belongs to a former use of the request, or
 * the request is answered already. */
bool asker_answered(struct asker *asker, struct chunk_request *request, uint64_t number);
/* The answer was NAK with this status, which may be any number, or the received bytes are damaged
 * (CAIRN_ERR_CHECKSUM). True: the request must be sent again. False: the refusal is final, or the path to
 * the shard is broken. */
bool asker_again(struct asker *asker, struct chunk_request *request, uint64_t status);
/* The connection by which the request was sent is lost. True: it was unanswered, and must be sent again. */
bool asker_lost(struct asker *asker, struct chunk_request *request);
/* Drops the request, whatever its state. */
void asker_drop(struct asker *asker, struct chunk_request *request);
/* True: a request waits to be sent, or is unanswered. */
bool asker_waits(const struct asker *asker);

/* ==== pusher ==== */

/* A pusher: it drives the push machine (push.h) of the open round over chunk links, and turns the machine's
 * actions into messages (proto/wire/wire.h). A worker has one for all shards of its job; a relay has one
 * for each owner, and acts as a worker towards it. Loop thread. */

struct pusher;

/* The functions in which a worker and a relay differ. `shard` is the machine's number of a
 * shard. */
struct pusher_callbacks {
    /* The link over which messages to the shard are sent. */
    struct chunk_link *(*link)(struct pusher *pusher, uint32_t shard);
    /* The link refused a send: whatever the reason, a new connection sends the message again. */
    void (*link_failed)(struct pusher *pusher, struct chunk_link *link);
    /* Sends the chunk of action->cookie; the header has the numbers of the round. */
    cairn_status (*send_chunk)(struct pusher *pusher, const struct push_action *action,
                               struct chunk_header *header);
    /* Returns header.tensor of MICRO_END and COMMIT: 0, or, to a relay, 1 + the owner's index. NULL: 0. */
    uint32_t (*mark)(const struct pusher *pusher, uint32_t shard);
    /* Writes the trained tensors of the shard that have no part in the micro-batch, ascending: returns how
     * many there are, at most absent_max. */
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
    void *memory;                /* owned: the machine's */
    struct push_round *push;     /* in `memory`; NULL: no round */
    struct push_actions actions; /* owned */
    uint64_t epoch, round;       /* of the open round, or the last one */
};

/* CAIRN_ERR_NO_MEMORY: also if the configuration is too large for a machine; close it. Open it only
 * once. */
CAIRN_MUST_CHECK cairn_status pusher_open(struct pusher *pusher,
                                          const struct pusher_callbacks *callbacks,
                                          const struct push_config *config);
/* Also allowed for a pusher that was never opened, all zero. */
void pusher_close(struct pusher *pusher);
/* A round opened; the one before has ended. */
void pusher_begin(struct pusher *pusher, uint64_t epoch, uint64_t round);
/* The shard does not exist: call it right behind pusher_begin. */
void pusher_absent(struct pusher *pusher, uint32_t shard);
/* The round is void, or resolved: the fabric gives its loans back by itself. */
void pusher_end(struct pusher *pusher);

/* ---- the caller's side, of an open round: as in push.h, and carries out the machine's actions ---- */
CAIRN_MUST_CHECK cairn_status pusher_chunk(struct pusher *pusher, uint32_t shard, uint32_t micro,
                                           struct push_chunk chunk);
CAIRN_MUST_CHECK cairn_status pusher_micro_end(struct pusher *pusher, uint32_t micro);
CAIRN_MUST_CHECK cairn_status pusher_commit(struct pusher *pusher, uint64_t weight);
void pusher_resolved(struct pusher *pusher);

/* ---- the shards. Without a round, or for another round or shard, nothing happens ---- */
/* True: `grant` is newer than `last` (of kind 0: none). Rounds grow, and so do the numbers of a shard's
 * ways: a GRANT that was overtaken is not newer. Ways of several shards cannot be compared, but a round has
 * one carrier. */
bool grant_is_newer(const struct chunk_header *last, const struct chunk_header *grant);
/* `way`: the highest number in the carrier's HELLOs; a HELLO may have overtaken the GRANT. */
void pusher_on_grant(struct pusher *pusher, uint32_t shard, const struct chunk_header *grant,
                     uint64_t way);
void pusher_on_hello(struct pusher *pusher, uint32_t shard, uint64_t way);
/* Handles ACK, NAK and MICRO_ACK. */
void pusher_on_answer(struct pusher *pusher, uint32_t shard, const struct chunk_header *header);
void pusher_on_lost(struct pusher *pusher, uint32_t shard);
bool pusher_waits(const struct pusher *pusher, uint32_t shard);

#endif
