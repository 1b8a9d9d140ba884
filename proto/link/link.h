/* A chunk link is the connection over which a worker, or a relay in its place, sends headers and payloads
 * to a shard (proto/wire/wire.h). The link connects, sends HELLO, and connects again when the connection is
 * lost.
 *
 * The shard's endpoint to us may be lost while our connection stays ("Ways" in wire.h): the shard's next
 * HELLO says so. The shard may not have noticed the loss, or may have cut us off. Therefore the link sends
 * a HELLO of its own when the shard is silent while something is awaited from the shard.
 *
 * A lost connection is reported (callbacks->lost) only when the fabric has given back every buffer that was
 * on loan for the connection: until then some of the data could still arrive. An answer could still arrive,
 * too, so the link accepts nothing from the shard until the loss is reported.
 *
 * The caller passes in the time. Loop thread. */
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

/* The callbacks by which a worker and a relay differ. */
struct chunk_link_callbacks {
    /* Fills in the sender: job, member and token. In a HELLO, also fills in all other fields except the
     * HELLO's number. */
    void (*sign)(const struct chunk_link *link, struct chunk_header *header);
    /* True if something is awaited from the shard. */
    bool (*waits)(const struct chunk_link *link);
    /* Called when everything that was sent and not answered is lost, and nothing more arrives by the
     * connection. */
    void (*lost)(struct chunk_link *link);
    /* Called at the moment when the connection goes down; may be NULL. */
    void (*down)(struct chunk_link *link, cairn_status why);
    /* Called when this process, while something is awaited, has had no memory for a second to send the
     * request or to connect. Called again at the next such shortage. May be NULL. */
    void (*starved)(struct chunk_link *link);
    /* loan is called when a loan has begun, loan_back when a loan has ended. After loan_back the link does
     * nothing more in that call. Either may be NULL. */
    void (*loan)(struct chunk_link *link);
    void (*loan_back)(struct chunk_link *link);
};

struct chunk_link {
    const struct chunk_link_callbacks *callbacks; /* static */
    struct fabric_peer *peer;                     /* owned; NULL: not connected */
    uint64_t retry_at_ms;
    uint32_t retry_delay_ms;
    uint32_t on_loan;    /* sends and receives that the fabric has not completed */
    bool lost;           /* the connection is gone, and callbacks->lost has not run yet */
    uint32_t connection; /* the number of the current connection, or of the last one */
    uint64_t way;        /* the highest number of the shard's HELLOs on this connection */
    uint32_t endpoint;   /* the shard's newest known endpoint to us; 0: none on this connection */
    bool heard;          /* a message arrived from the shard since the last tick */
    /* the time of the last message, or the last time that nothing was awaited */
    uint64_t quiet_since_ms;
    uint64_t unheard_since_ms; /* like quiet_since_ms, but not reset by what we send or connect */
    uint64_t looked_ms;        /* when unheard_since_ms was checked last */
    struct {
        /* a send failed for lack of memory, and no send of at least `bytes` has succeeded since */
        bool is_short;
        /* the size of the payload of the failed send; 0: a header alone, or a connection */
        size_t bytes;
        uint64_t since_ms; /* the time of the first tick that saw the shortage; 0: no tick has */
        bool is_told;      /* callbacks->starved ran */
    } starved;
};

/* Does what is due, and connects to the shard's address if there is no connection. If `fabric` is NULL,
 * does not connect now. address_bytes is 0 if the shard is away. */
void chunk_link_tick(struct chunk_link *link, struct fabric *fabric, const uint8_t *address,
                     size_t address_bytes, uint64_t now_ms);
/* Handles the link as if the connection were lost: the next ticks report the loss, and connect again. */
void chunk_link_close(struct chunk_link *link);
/* Like chunk_link_close, for a link whose fabric is closed and has therefore freed its peers. */
void chunk_link_forget(struct chunk_link *link);
/* Like chunk_link_close, for a shard that is back: connects at once, without the delay that has grown. */
void chunk_link_restart(struct chunk_link *link);
/* True if both ends have heard of each other, so that a request can be answered. */
bool chunk_link_is_up(const struct chunk_link *link);
/* True if the link uses shared memory of this host. */
bool chunk_link_shares(const struct chunk_link *link);
/* Notes whether a send over the link failed for lack of memory. chunk_link_send notes its own
 * sends. */
void chunk_link_note_memory(struct chunk_link *link, cairn_status status, size_t payload_bytes);
/* Returns for how long this process has had no memory to send a request whose answer is awaited; 0 if there
 * is memory. */
uint64_t chunk_link_starved_ms(const struct chunk_link *link, uint64_t now_ms);
/* Returns for how long something has been awaited while nothing arrived from the shard, times without a
 * connection included. Time in which this process did not run does not count. Returns 0 if the shard has
 * sent something, or if nothing is awaited from the shard. */
uint64_t chunk_link_silent_ms(const struct chunk_link *link, uint64_t now_ms);
/* Notes that a message of the shard arrived. Returns false if a loss has not been reported yet: then drop
 * the message. */
bool chunk_link_heard(struct chunk_link *link);
/* Handles a HELLO of the shard; `way` is the HELLO's header.request. Returns true if the shard has a new
 * endpoint to us: then the shard's answers on earlier endpoints may be lost. */
bool chunk_link_on_hello(struct chunk_link *link, uint64_t way);
/* Sends a message. The payload is on loan until on_sent runs; on_sent ends with a call of chunk_link_sent.
 * Without a payload on_sent may be NULL. CAIRN_ERR_CLOSED: not connected; CAIRN_ERR_BUSY. */
CAIRN_MUST_CHECK cairn_status chunk_link_send(struct chunk_link *link, struct chunk_header *header,
                                              const void *payload, size_t payload_bytes,
                                              fabric_done_fn *on_sent, void *arg);
/* Every payload's on_sent calls this last. A payload that failed for lack of memory did not arrive, so the
 * shard does not answer it: the link connects again, so that everything unanswered is sent again. */
void chunk_link_sent(struct chunk_link *link, cairn_status status);
/* Notes that something from the shard is being received: a loss is not reported before the buffer is given
 * back. Sends need no such call. */
void chunk_link_loan(struct chunk_link *link);
void chunk_link_loan_back(struct chunk_link *link);

/* ==== asker ==== */

/* An asker is the queue of the puts and fetches of a worker, or of a relay in its place, for one shard.
 * Requests are sent in the order in which they were queued, with only a few unanswered at a time. A request
 * is sent again, behind all others, when a connection is lost, when a chunk was damaged on its way, or when
 * the shard was busy.
 *
 *   asker_ask ──► WAITING ── send ──► SENT ── asker_answered ──► IDLE: over, or received
 *                          ▲                  │                                │
 *                          └── asker_lost ────┴───── asker_again, asker_ask ───┘
 *
 * An asker is pure: its user sends, receives, and reports ticks. */

/* Set in header.request of an asker's requests; clear in header.request of a push. */
#define CAIRN_REQUEST_OF_ASKER ((uint64_t)1 << 63)

enum chunk_request_state { CAIRN_REQUEST_IDLE = 0, CAIRN_REQUEST_WAITING, CAIRN_REQUEST_SENT };

/* A put or a fetch of one chunk. The asker's user keeps a table of requests, and sets their index and
 * serial; all other fields begin as 0. */
struct chunk_request {
    TAILQ_ENTRY(chunk_request) link; /* in the queue of WAITING or SENT requests */
    enum chunk_request_state state;
    uint32_t index;   /* in the table */
    uint32_t serial;  /* grows with every use: an answer to an earlier use is dropped */
    uint32_t damaged; /* how often the chunk arrived damaged */
};

struct asker {
    /* Sends a request. If the callback does not return CAIRN_OK, the request cannot be sent now, and stays
     * the first of the waiting requests. */
    cairn_status (*send)(struct chunk_request *request);
    TAILQ_HEAD(chunk_requests, chunk_request) waiting;
    struct chunk_requests
        unanswered; /* requests that are SENT, in the order in which they were sent */
    uint32_t sent;  /* how many requests are in `unanswered` */
    bool busy;      /* the shard was busy: nothing is sent before an answer or the next tick */
};

void asker_open(struct asker *asker, cairn_status (*send)(struct chunk_request *));
/* Returns the number for header.request: never 0. */
uint64_t chunk_request_number(const struct chunk_request *request);

/* Queues an IDLE request behind all waiting requests. */
void asker_ask(struct asker *asker, struct chunk_request *request);
/* Sends what may be sent now. Call asker_pump after each call of the functions below and of asker_ask, and
 * whenever `send` may succeed again. */
void asker_pump(struct asker *asker);
/* Tries again after a tick, or when there is a new connection to the shard: the shard may no longer be
 * busy. Calls asker_pump. */
void asker_retry(struct asker *asker);

/* Notes that an answer with this number arrived. Returns false if the answer belongs to a former use of the
 * request, or if the request is answered already. */
bool asker_answered(struct asker *asker, struct chunk_request *request, uint64_t number);
/* Does the same for a number alone. Returns the request that was answered; NULL: none was. */
struct chunk_request *asker_take(struct asker *asker, uint64_t number);
/* Handles a NAK with this status, which may be any number. If a chunk that was received is damaged, pass
 * CAIRN_ERR_CHECKSUM. Returns true if the request is queued again; false if the refusal is final, or the
 * path to the shard is broken. */
bool asker_again(struct asker *asker, struct chunk_request *request, uint64_t status);
/* Handles the loss of the connection by which the request was sent. Returns true if the request was
 * unanswered: then it is queued again. */
bool asker_lost(struct asker *asker, struct chunk_request *request);
/* Handles the loss for all requests. */
void asker_all_lost(struct asker *asker);
/* Drops the request, whatever its state. */
void asker_drop(struct asker *asker, struct chunk_request *request);
/* True if a request waits to be sent, or is unanswered. */
bool asker_waits(const struct asker *asker);

/* ==== pusher ==== */

/* A pusher: the push machine (push.h) of the open round, with its memory. A worker has one for all shards
 * of its job. A relay has one for each owner, and acts as a worker towards that owner. The pusher's user
 * calls the machine, which decides, and after each call carries the machine's actions out. The functions
 * below convert between the machine and messages (proto/wire/wire.h). Loop thread. */

struct pusher {
    void *memory; /* owned: the machine's */
    struct push_config config;
    struct push_round *push;     /* in `memory`; NULL: no round */
    struct push_actions actions; /* owned: not carried out yet */
    uint64_t epoch, round;       /* the numbers of the open round, or of the last round */
};

/* CAIRN_ERR_NO_MEMORY: there is no memory, or the configuration is too large for a machine; close the
 * pusher then, too. Open a pusher only once. */
CAIRN_MUST_CHECK cairn_status pusher_open(struct pusher *pusher, const struct push_config *config);
/* Also allowed for a pusher that was never opened, all zero. */
void pusher_close(struct pusher *pusher);
/* Call it when a round has opened; the round before has ended (`push` is NULL). */
void pusher_begin(struct pusher *pusher, uint64_t epoch, uint64_t round);

/* True if the header, not all zero, is of the open round. */
bool pusher_takes(const struct pusher *pusher, const struct chunk_header *header);
/* True if `grant` is newer than `last`, or if there is no last GRANT (`last` is of kind 0). The numbers of
 * rounds grow, and so do the numbers of a shard's ways: a GRANT that was overtaken is not newer. The ways
 * of several shards cannot be compared, but in one round all GRANTs for a shard have one carrier, the shard
 * itself or a relay. */
bool grant_is_newer(const struct chunk_header *last, const struct chunk_header *grant);
/* Returns the window of a GRANT; `shares`: the path to its sender shares memory of this host. */
struct push_window grant_window(const struct chunk_header *grant, bool shares);
/* Tells the machine of an ACK, NAK or MICRO_ACK of the open round. */
void pusher_on_answer(struct pusher *pusher, uint32_t shard, const struct chunk_header *header);

/* Returns the header of the message that an action sends. */
struct chunk_header pusher_header(const struct pusher *pusher, const struct push_action *action);
/* The payload of MICRO_END: the trained tensors of the shard that have no part in the micro-batch,
 * ascending. chunk_absent_new has room for `max`; NULL: no memory, which is noted on the link.
 * chunk_absent_send consumes the list, whose first `count` entries are filled in. */
struct chunk_absent {
    struct chunk_link *link; /* borrowed */
    uint32_t tensors[];
};
struct chunk_absent *chunk_absent_new(struct chunk_link *link, size_t max);
CAIRN_MUST_CHECK cairn_status chunk_absent_send(struct chunk_absent *absent,
                                                struct chunk_header *header, size_t count);

#endif
