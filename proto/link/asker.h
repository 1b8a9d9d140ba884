/* An asker: the puts and fetches that a worker, or a relay in its place, has for one shard. They are sent in
 * the order in which they came, a few unanswered at a time; and again, behind all others, when a connection
 * is lost, when a chunk was damaged on its way, or when the shard had no time.
 *
 *   cairn_asker_ask ──► WAITING ── send ──► SENT ── cairn_asker_answered ──► IDLE: over, or received
 *                          ▲                  │                                │
 *                          └── _asker_lost ───┴───── _asker_again, _asker_ask ─┘
 *
 * Pure: its user sends, receives, and tells it of ticks. */
#ifndef CAIRN_LINK_ASKER_H
#define CAIRN_LINK_ASKER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/queue.h>

#include "proto/base/status.h"

/* Set in header.request of what an asker asks; clear in that of a push. */
#define CAIRN_REQUEST_OF_ASKER ((uint64_t)1 << 63)

enum cairn_chunk_request_state {
    CAIRN_REQUEST_IDLE = 0,
    CAIRN_REQUEST_WAITING,
    CAIRN_REQUEST_SENT
};

/* A put or a fetch of one chunk. The asker's user keeps a table of them, and sets index and serial; the rest
 * is 0. */
struct cairn_chunk_request {
    TAILQ_ENTRY(cairn_chunk_request) link; /* of those that are WAITING */
    enum cairn_chunk_request_state state;
    uint32_t index;   /* in the table */
    uint32_t serial;  /* grows with every use: an answer to a former one is dropped */
    uint32_t damaged; /* times that its bytes did not arrive as they were sent */
};

struct cairn_asker {
    /* Sends a request. Not OK: the request cannot be sent now, and stays the first of those that wait. */
    cairn_status (*send)(struct cairn_chunk_request *request);
    TAILQ_HEAD(, cairn_chunk_request) waiting;
    uint32_t sent; /* requests that are unanswered */
    bool busy;     /* the shard had no time: nothing is sent before an answer or the next tick */
};

void cairn_asker_open(struct cairn_asker *asker,
                      cairn_status (*send)(struct cairn_chunk_request *));
/* The number to put into header.request: never 0. */
uint64_t cairn_chunk_request_number(const struct cairn_chunk_request *request);

/* Queues an IDLE request, behind all that wait. */
void cairn_asker_ask(struct cairn_asker *asker, struct cairn_chunk_request *request);
/* Sends what may be sent now. Call it after each of these calls, and whenever `send` may go on. */
void cairn_asker_pump(struct cairn_asker *asker);
/* Tries again after a tick, or when there is a new connection to the shard: the shard may have time
 * again. Pumps. */
void cairn_asker_retry(struct cairn_asker *asker);

/* Notes that an answer with this number came. False: it belongs to a former use of the request, or
 * to one that is answered already. */
bool cairn_asker_answered(struct cairn_asker *asker, struct cairn_chunk_request *request,
                          uint64_t number);
/* The answer was NAK with this status, which may be any number, or what came is damaged
 * (CAIRN_ERR_CHECKSUM). True: the request is to be sent again. False: the refusal is for good, or the way to
 * the shard is broken. */
bool cairn_asker_again(struct cairn_asker *asker, struct cairn_chunk_request *request,
                       uint64_t status);
/* The connection by which the request was sent is lost. True: it was unanswered, and is to be sent again. */
bool cairn_asker_lost(struct cairn_asker *asker, struct cairn_chunk_request *request);
/* The request is not asked for any more, whatever its state. */
void cairn_asker_drop(struct cairn_asker *asker, struct cairn_chunk_request *request);
/* A request is to be sent, or unanswered. */
bool cairn_asker_waits(const struct cairn_asker *asker);

#endif
