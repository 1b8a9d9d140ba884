/* A chunk link: the connection over which a worker, or a relay in its place, sends headers and payloads to a
 * shard (proto/wire/chunk.h). It connects, says HELLO, and begins again when it is lost.
 *
 * The shard's endpoint to us may be lost alone ("Ways" there): its HELLO says so. In case the shard does not
 * know either, or has cut us off, a silence while something is awaited is broken by a HELLO of ours.
 *
 * A lost connection is told (hands->lost) only when the fabric has given back every buffer that was on loan
 * on it: until then something of it could still arrive. So could an answer, which is why nothing of the shard
 * is heard in between.
 *
 * Time is passed in. Loop thread. */
#ifndef CAIRN_LINK_CHUNK_LINK_H
#define CAIRN_LINK_CHUNK_LINK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "proto/base/status.h"
#include "proto/fabric/fabric.h"
#include "proto/wire/chunk.h"

#define CAIRN_LINK_SILENT_MS 5000 /* so long a silence is said to be one */

struct cairn_chunk_link;

/* The callbacks in which a worker and a relay differ. */
struct cairn_chunk_link_hands {
    /* Says who speaks: job, member and token; and in a HELLO, what it says beside its number. */
    void (*sign)(const struct cairn_chunk_link *link, struct cairn_chunk_header *header);
    /* Something is awaited from the shard. */
    bool (*waits)(const struct cairn_chunk_link *link);
    /* Everything that was sent and is unanswered is lost, and nothing of the connection arrives any
     * more. */
    void (*lost)(struct cairn_chunk_link *link);
    /* The connection went down, just now; may be NULL. */
    void (*down)(struct cairn_chunk_link *link, cairn_status why);
    /* Something is awaited, and for a second this process has had no memory to send what asks for it, or to
     * connect; may be NULL. Told again when it happens again. */
    void (*starved)(struct cairn_chunk_link *link);
    /* A loan more, and one less: the last word of a callback. May be NULL. */
    void (*loan)(struct cairn_chunk_link *link);
    void (*loan_back)(struct cairn_chunk_link *link);
};

struct cairn_chunk_link {
    const struct cairn_chunk_link_hands *hands; /* static */
    struct cairn_fabric_peer *peer;             /* owned; NULL: connecting later */
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
void cairn_chunk_link_tick(struct cairn_chunk_link *link, struct cairn_fabric *fabric,
                           const uint8_t *address, size_t address_bytes, uint64_t now_ms);
/* As if the connection were lost: the next ticks tell that, and connect again. */
void cairn_chunk_link_close(struct cairn_chunk_link *link);
/* The same of a fabric that is closed, which has freed its peers. */
void cairn_chunk_link_forget(struct cairn_chunk_link *link);
/* The same at once, without the delay that grew: the shard is there. */
void cairn_chunk_link_restart(struct cairn_chunk_link *link);
/* Both ends are heard of: what is asked can be answered. */
bool cairn_chunk_link_is_up(const struct cairn_chunk_link *link);
/* Through memory of this host. */
bool cairn_chunk_link_shares(const struct cairn_chunk_link *link);
/* Notes whether a send over the link failed for want of memory. cairn_chunk_link_send notes its own
 * sends. */
void cairn_chunk_link_note_memory(struct cairn_chunk_link *link, cairn_status status,
                                  size_t payload_bytes);
/* For how long something has been awaited whose request this process has no memory to send; 0:
 * there is memory. */
uint64_t cairn_chunk_link_starved_ms(const struct cairn_chunk_link *link, uint64_t now_ms);
/* For how long something has been awaited, and nothing of the shard has come, also while there was no
 * connection to it. Time in which this process did not run counts as none. 0: it speaks, or need not. */
uint64_t cairn_chunk_link_silent_ms(const struct cairn_chunk_link *link, uint64_t now_ms);
/* Notes that a message of the shard came. False: a loss has not been told yet, so drop the
 * message. */
bool cairn_chunk_link_heard(struct cairn_chunk_link *link);
/* HELLO of the shard, its header.request. True: the shard has a new endpoint to us, and what it answered on
 * earlier ones may be lost. */
bool cairn_chunk_link_on_hello(struct cairn_chunk_link *link, uint64_t way);
/* The payload is on loan until on_sent (may be NULL without one), which ends with cairn_chunk_link_sent.
 * CAIRN_ERR_CLOSED: not connected; CAIRN_ERR_BUSY. */
CAIRN_MUST_CHECK cairn_status cairn_chunk_link_send(struct cairn_chunk_link *link,
                                                    struct cairn_chunk_header *header,
                                                    const void *payload, size_t payload_bytes,
                                                    cairn_fabric_done_fn *on_sent, void *arg);
/* The last word of on_sent of a payload. A payload that failed for want of memory arrived nowhere,
 * and nobody answers it: the connection is made anew, so that all of it is sent again. */
void cairn_chunk_link_sent(struct cairn_chunk_link *link, cairn_status status);
/* Notes that something from the shard is being received: a loss is not told before it is given
 * back. Sends count themselves. */
void cairn_chunk_link_loan(struct cairn_chunk_link *link);
void cairn_chunk_link_loan_back(struct cairn_chunk_link *link);

#endif
