/* Gathered units: what cairn_prefetch and cairn_map have in the library's memory, by unit and version.
 *
 * A block holds the tensors of one unit at one version. It is fetched once, whoever asks for it first; it is
 * lent to each cairn_map until its cairn_unmap, and goes when it is on loan no more and was not prefetched
 * again. At most `window` blocks are held: a prefetch beyond it puts out the oldest one that is not on
 * loan, or is dropped; a map beyond it is counted. A block of an older version than the one that is
 * asked for goes, too, unless it is on loan. Any thread; one lock, the session's. */
#ifndef CAIRN_CLIENT_READ_CACHE_H
#define CAIRN_CLIENT_READ_CACHE_H

#include <cairn.h>

#include "client/base/piece.h"
#include "client/device/card.h"
#include "proto/base/sentence.h"

struct gone;
struct job;
struct lent;
struct loan;
struct op;

/* A tensor of a unit as this worker gets it: what it holds, or all; of an alias, what it stands for. */
struct unit_tensor {
    uint32_t named, fetched; /* tensors of the spec */
    struct piece piece;
    cairn_dtype dtype;
    size_t at, byte_count; /* in the block */
};

/* Which tensors, and where each of them lies. */
struct unit_shape {
    size_t unit;
    struct unit_tensor *tensors; /* owned; [count] */
    size_t count, byte_count;
    uint64_t table_hash; /* of the tiles by which this worker's pieces were chosen */
};

struct block {
    struct block *next; /* newest first */
    struct job *job;    /* borrowed: outlives it */
    struct cairn_version version;
    struct unit_shape shape; /* owned */
    struct card *card;       /* whose addresses the views have; NULL: the host's */
    struct gone *own;        /* owned: `memory`, if it is of a card */
    uint8_t *memory;         /* owned; [shape.byte_count]; NULL: it is lent */
    struct lent *lent;       /* owned; where the shards of this host published it; or NULL */
    uint32_t pending;        /* fetches that are not done, and one more while they are begun */
    cairn_status status;
    struct cairn_sentence why;
    bool wanted;         /* prefetched, and not mapped since */
    uint64_t call;       /* the prefetch that wanted it last */
    struct loan *loans;  /* owned */
    struct op *awaiting; /* operations of cairn_map that wait for it */
};

struct cache {
    struct cairn_units *units; /* owned */
    struct block *blocks;      /* owned */
    uint32_t block_count;
    uint64_t last_loan, last_call;
};

/* The job's cache, made by the first who asks. */
cairn_status cairn_cache_open(struct job *job) CAIRN_MUST_CHECK;
/* With the job: no operation is under way any more. */
void cairn_cache_release(struct job *job);

/* Under the lock: gives up what nobody has on loan. False: something is on loan, or being fetched. */
bool cairn_cache_forget(struct job *job);

/* Lists the tensors of the unit; the caller frees out->tensors. CAIRN_ERR_BUSY: tiles are being
 * declared. */
cairn_status cairn_cache_shape(struct job *job, size_t unit,
                               struct unit_shape *out) CAIRN_MUST_CHECK;
/* Returns the number of a new prefetch, and drops the blocks of versions older than this one. */
uint64_t cairn_cache_new_call(struct job *job, struct cairn_version version);
/* The prefetch `call` wants the unit. A block that is made takes the shape's tensors, and the caller begins
 * its fetches; NULL: none is made, or it is there at once. */
struct block *cairn_cache_want(struct job *job, struct cairn_version version,
                               struct unit_shape *shape, uint64_t call);
/* A block of the unit and version on loan, in views, on the card (NULL: the host); op ends when it is there.
 * *made_out: NULL, or a block of which the caller begins the fetches, also where this fails. */
cairn_status cairn_cache_lend(struct job *job, struct cairn_version version, struct card *card,
                              struct unit_shape *shape, struct op *op, struct cairn_view *views,
                              struct block **made_out) CAIRN_MUST_CHECK;
/* One of the block's fetches is over, or the beginning of them; with the last, whoever waits hears of it. */
void cairn_cache_fetched(struct block *block, cairn_status status, const char *why);
/* Under the lock: whose addresses a loan has; NULL: the host's, or there is no such loan. */
struct card *cairn_cache_card(const struct job *job, uint64_t loan);
/* Under the lock. CAIRN_ERR_INVALID: no such loan; CAIRN_ERR_VERSION_GONE: it was overwritten meanwhile. */
cairn_status cairn_cache_give_back(struct job *job, uint64_t loan) CAIRN_MUST_CHECK;

#endif
