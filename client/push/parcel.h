/* Parcels: what a put, push or fetch has of the chunks of shards, each on its way by itself. Loop thread. */
#ifndef CAIRN_CLIENT_PUSH_PARCEL_H
#define CAIRN_CLIENT_PUSH_PARCEL_H

#include <cairn.h>

#include <sys/queue.h>

#include "proto/base/sentence.h"
#include "proto/geometry/layout.h"
#include "proto/link/asker.h"
#include "client/pieces.h"
#include "proto/wire/chunk.h"

struct command;
struct job;
struct op;
struct target;

/* The part of one chunk that an op sends or fetches. Its job owns the parcel, and uses it again and
 * again; a parcel is over when it is answered, and the fabric has given back what it had on
 * loan. */
struct parcel {
    struct job *job;
    struct op *op;                      /* NULL: free */
    const struct target *target;        /* of the op's: what it is about */
    struct parcel *next;                /* in the free list */
    struct cairn_chunk_request request; /* of a put or fetch, to its owner; of a push: its cookie */
    uint8_t kind;                       /* CAIRN_CHUNK_PUSH, _PUT, _FETCH */
    uint8_t plane, dtype, tile;
    bool answered;
    cairn_status status;
    uint32_t on_loan; /* sends and receives that the fabric has not completed */
    uint64_t layout;  /* the version of the one that it was cut by */
    uint32_t shard;   /* the owner of the chunk there */
    uint32_t via;     /* the shard to whose endpoint it went last: another's is a relay */
    bool direct;      /* a relay had no answer to this fetch */
    struct cairn_chunk_place place;
    uint64_t table_hash;
    /* [byte_count] what the piece has of the chunk: in the caller's buffer, or `packed`, which is made when
     * it is sent; NULL until then */
    uint8_t *bytes;
    uint8_t *packed; /* owned; of memory with strides, or behind a box */
    /* of a card's memory: its copy, for shards that do not take it from where it lies */
    struct staged staged;
    uint64_t copy; /* its number, of one that was not waited for (card.h); else 0 */
    bool is_queued, is_ahead, is_landed; /* stage.c */
    TAILQ_ENTRY(parcel) queued; /* of a push among those of its owner; of a fetch, of its job */
    bool on_card;               /* `bytes` is memory of a card, and goes by reference */
    uint64_t first;             /* element of the piece */
    size_t byte_count;
    size_t head_bytes; /* before it in `packed`: the box of a put; 0: none */
    bool lands;        /* what is received comes to the card by the network card */
    bool is_unsummed;  /* CAIRN_CHUNK_UNSUMMED: what is being received, or sent from the card */
    uint64_t checksum; /* of what a fetch is receiving, as the shard says */
    uint64_t came;     /* and as it came */
    struct cairn_version version;
    uint64_t round;      /* of a put in a write; else 0 */
    uint64_t word_by_ms; /* the shard knows no such chunk, and is asked again until then; else 0 */
};

/* All parcels of a job, those in use and the free ones. */
struct parcel_table {
    struct parcel **all; /* owned: [count] of capacity */
    uint32_t count, capacity;
    struct parcel *first_free;
};

/* A parcel of the op for chunk `chunk` of the shard in the command's body. NULL: out of memory. */
struct parcel *cairn_parcel_new(struct job *job, const struct command *command, uint32_t shard,
                                uint64_t chunk);
/* Takes back a parcel that was never sent, as if it had not been made. */
void cairn_parcel_undo(struct parcel *parcel);
/* The parcel whose request has that number. NULL: the number is of a former use, or not one of
 * ours. */
struct parcel *cairn_parcel_of_request(const struct job *job, uint64_t number);
/* The parcel is answered; if it is so more than once, the first status stays. */
void cairn_parcel_end(struct parcel *parcel, cairn_status status);
/* Sends its chunk over the connection of shard `via`, and fills in of `header` what the parcel knows. */
cairn_status cairn_parcel_send(struct parcel *parcel, uint32_t via,
                               struct cairn_chunk_header *header) CAIRN_MUST_CHECK;
/* Gives the parcel memory of its own where the caller's does not do: it has strides, is of a card
 * (for a fetch), or a box goes before the payload. */
cairn_status cairn_parcel_open(struct parcel *parcel) CAIRN_MUST_CHECK;
/* A fetch has been received: ends the parcel, or has it end when the card has the bytes. */
void cairn_parcel_arrived(struct parcel *parcel);
/* Adds to, and takes from, the job's statistics of memory that parcels have of their own. */
void cairn_parcel_count_packed(struct job *job, size_t more, size_t less);
void cairn_parcel_loan(struct parcel *parcel);
void cairn_parcel_loan_back(struct parcel *parcel);
void cairn_parcels_release(struct parcel_table *parcels); /* with the job: none is under way */

/* explain.c: what went wrong with a chunk; and, if a call asks, which shards have not answered, and what. Not
 * under the lock. */
void cairn_explain_parcel(const struct parcel *parcel, cairn_status status,
                          struct cairn_sentence *out);
void cairn_explain_awaited(struct job *job);

/* Where a put, push or fetch stands: the shard and chunk that are next, past those of which the piece has
 * nothing. False: it is cut whole. */
bool cairn_command_chunk(struct command *command, uint32_t *shard_out, uint64_t *chunk_out);
/* Goes on with the next of its targets; false: this was the last. */
bool cairn_command_next(struct command *command);
/* The piece has an element of this chunk of the command's body. */
bool cairn_command_touches(const struct command *command, uint32_t shard, uint64_t chunk);
/* True, and the op is ended, if the job is closing or has failed. */
bool cairn_command_refused(struct command *command);

#endif
