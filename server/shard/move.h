/* The layout of a job changes while rounds go on: what of it a shard has prepared, goes by, and is still to
 * give or to get.
 *
 *   PartPrepare ─► next (move.c) ── Fence{layout} ──► now (move.c) ── PartSettled ──► settled (move.c)
 *                     │ PartUnprepare, another Fence        │ receiver.c: what comes
 *                     ▼                                     ▼
 *                  forgotten                             PartMoved
 *
 * Loop thread. README.md says what goes on meanwhile, and what waits. */
#ifndef CAIRN_SHARD_MOVE_H
#define CAIRN_SHARD_MOVE_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/queue.h>

#include "proto/fabric/fabric.h"
#include "proto/link/link.h"
#include "proto/wire/wire.h"
#include "server/shard/base.h"
#include "server/shard/collect.h"
#include "server/shard/memory.h"

/* ==== piece ==== */

/* Pieces: what comes to a shard when one layout follows another. A piece is the part that the shard
 * needs of one chunk of one plane, by the chunk grid of the chunk's owner, the sender. Pure; any
 * thread. */

struct state_piece {
    uint32_t sender; /* its index in the layouts */
    uint32_t extent; /* here, in the view that follows */
    enum plane plane;
    uint64_t first_leaf; /* of the sender's chunk, in the tensor */
    uint32_t leaf_count;
    uint64_t chunk_elem, chunk_elems; /* its elements in the tensor */
    uint64_t first_elem, elem_count;  /* of them, those that come */
};

struct state_pieces {
    struct state_piece *list; /* owned: [count], by sender, then by extent, chunk and plane */
    size_t count;
    uint64_t bytes;        /* of what comes */
    size_t cut_bytes;      /* of the largest chunk that does not come whole; 0: all do */
    size_t chunk_bytes;    /* of the largest chunk */
    uint32_t sender_count; /* shards that give something */
};

/* The sender's chunk comes, nothing of it stays elsewhere. */
static inline bool piece_is_whole(const struct state_piece *piece)
{
    return piece->elem_count == piece->chunk_elems;
}

void pieces_release(struct state_pieces *pieces);

/* ==== receiver ==== */

/* A receiver asks the senders for the state that comes to this shard with a layout, a few chunks of each
 * sender at a time, and receives it into the planes, while rounds go on.
 *
 *   receiver_open (all memory) ─► _begin: the senders go by the new layout, too ─► FETCH, DATA, ...
 *       ─► `done`: everything is here ─► receiver_leave; freed when nothing refers to it
 *
 * To a sender this shard is a member of the job, a mover; the coordinator has told both of it
 * (PartPrepare). A chunk that comes whole is received where it belongs: nobody reads there before
 * everything is here, and a damaged chunk is asked for again. A chunk that is cut is received in
 * staging, and its part is copied from there; so is every chunk of a job with state on a device, in
 * fewer slots, which are pinned. A request that a sender does not answer, or answers on a connection
 * that is lost, is sent again. Loop thread, except for the copies. */

struct receiver;

/* Takes over the pieces, also when it fails. `mover`: as whom we ask. CAIRN_ERR_MALFORMED: a shard that gives
 * something is not among `shards`; CAIRN_ERR_NO_MEMORY. */
CAIRN_MUST_CHECK cairn_status receiver_open(struct shard_job *job, struct shard_view *view,
                                            struct state_pieces *pieces, const Cairn__Mover *mover,
                                            Cairn__ShardInfo *const *shards, size_t shard_count,
                                            struct receiver **receiver_out, struct sentence *why);
/* Bytes of the budget for what is received beside the planes, of a receiver of these pieces by the job. */
uint64_t receiver_staging_bytes(const struct shard_job *job, const struct state_pieces *pieces);
/* The job goes by the view, at the version that is asked for. `done` follows, once. */
void receiver_begin(struct receiver *receiver, struct cairn_version version,
                    void (*done)(struct receiver *receiver));
/* Asks for nothing any more; frees it now, or when nothing refers to it. NULL is fine. */
void receiver_leave(struct receiver *receiver);
/* With the job, whatever is in flight: the fabric and the pools are closed. And those that were leaving. */
void receiver_free(struct receiver *receiver);

/* Takes or drops a sender's message for a receiver of one of our jobs. False: the message is not from a
 * sender, and is left to the caller. */
bool receiver_on_message(struct shard_daemon *shard, const struct chunk_header *header,
                         struct fabric_message *message);
/* Time: connects, breaks silences, asks again. True: it waits for something. */
bool receiver_tick(struct receiver *receiver, uint64_t now_ms);

/* ---- inside: receiver.c, and its tests ---- */

struct sender;

/* A piece that is asked for, or being copied. */
struct receiver_slot {
    struct work_run run; /* first: the copy */
    struct sender *sender;
    struct chunk_request request;    /* numbered as sender->slots */
    const struct state_piece *piece; /* NULL: the slot is free */
    uint8_t *
        staging; /* borrowed: [receiver->staged.bytes]; NULL: for what is received where it belongs */
    void *to;    /* where in the planes the piece belongs */
    uint64_t checksum, came; /* that the chunk is to have, and has */
};

/* The staging: chunks that are received beside the planes and copied into them. */
struct receiver_staging {
    bool all;         /* the planes lie on a device; else of what is cut */
    uint32_t each;    /* slots of a sender that have staging: its first ones */
    uint32_t of_each; /* slots that it has */
    size_t bytes;     /* of one */
};

/* A shard from which something comes. */
struct sender {
    struct receiver *receiver; /* borrowed */
    uint32_t index;            /* in the layouts */
    char name[64];
    uint8_t *address; /* owned */
    size_t address_bytes;
    struct chunk_link link;
    struct asker asker;
    struct receiver_slot *slots; /* owned: [receiver->staged.of_each] */
    size_t next, end;            /* of its pieces, those that are not asked for yet */
};

struct receiver {
    LIST_ENTRY(receiver) leaving; /* once it leaves */
    struct shard_job *job;        /* borrowed */
    struct shard_view *view;      /* counted: in which the pieces are here */
    uint64_t number, token;       /* of the mover that we are */
    struct cairn_version version;
    struct state_pieces pieces; /* owned */
    struct sender *senders;     /* owned: [sender_count] by index */
    uint32_t sender_count;
    struct receiver_staging staged;
    struct arena staging;  /* owned: of the slots that have some */
    size_t left;           /* pieces that are not here */
    uint64_t begun_ns, us; /* us: that it took, once left is 0 */
    uint32_t busy;         /* loans and copies that refer to it */
    bool is_begun, is_leaving;
    void (*done)(struct receiver *receiver);
};

/* ==== move ==== */

/* One change of the layout, on this shard. */
struct move_part {
    struct shard_view *view;   /* counted: of the layout that it leads to */
    struct receiver *receiver; /* owned: what comes; NULL: nothing does */
    uint64_t *movers;          /* owned: [mover_count] members that ask us */
    size_t mover_count;
    bool is_back;         /* in force, it took back one that was not settled */
    bool is_ready;        /* the pages for what comes are made */
    bool is_unwanted;     /* it is forgotten as soon as it is ready */
    struct request asked; /* the PartPrepare; answered when it is ready */
    uint64_t session;     /* that it came in */
    /* bytes that were taken of the budget: of the planes, for what comes; for what is received; and of what
     * copies and tables take more */
    uint64_t room, shifted, staging, published, tables;
    uint64_t comes;                 /* bytes of state */
    uint64_t moved_bytes, moved_us; /* of what came */
};

struct move {
    struct move_part *next;    /* owned: prepared; NULL: none is */
    struct move_part *now;     /* owned: in force, and not settled; NULL: settled */
    struct shard_view *before; /* counted: what was in force before `now` */
    bool has_moved;            /* a layout came into force that the part was not made with */
    bool is_settling;          /* PartSettled came, and something of what was given is being sent */
    uint32_t sends;            /* of what was given, right out of the planes */
    struct {
        uint64_t epoch;    /* a Fence of this session, until the collector rests; epoch 0: none */
        uint64_t since_ms; /* of the loop: where epoch is not 0 */
    } fence;
    struct request publishing;     /* the PartPublish at work */
    LIST_HEAD(, receiver) leaving; /* owned: receivers that something in flight refers to */
};

/* Starts the clock of changes, which ticks until nothing waits any more. */
void move_wake(struct shard_daemon *shard);

/* ==== give ==== */

/* Forgets what this shard gave to others once the layout is settled, and publishes the newest
 * version by the layout in force. Loop thread. */

void move_on_settled(struct shard_job *job, const Cairn__PartSettled *message);
/* Answered when the newest version can be fetched by the layout in force. */
void move_on_publish(struct shard_job *job, uint32_t request, const Cairn__PartPublish *message);

/* Of shard->up: the job does nothing any more; and: it is freed. */
void move_leave(struct shard_job *job);
void move_release(struct shard_job *job);

/* ==== force ==== */

/* A prepared layout comes into force, and what comes with it is taken. Loop thread. */

/* A Fence of a new epoch; layout 0: the one in force. The layout is forgotten that it does not name, and
 * the one prepared that it names comes into force, if the collector rests, or when it does: then all that
 * the Fence brings follows from here. False: the layout stays as it is, the caller tells the core. */
bool move_on_fence(struct shard_job *job, uint64_t epoch, uint64_t layout);
/* The core was told: all shards go by the layout in force. */
void move_on_resolve(struct shard_job *job, uint64_t epoch);
/* Of shard->up: the collector may rest, and a Fence waits for it. */
void move_rests(struct shard_job *job);

/* ==== prepare ==== */

/* The next layout of a job is prepared beside the one in force. Loop thread. */

/* Owns the message. Answered when the memory for what comes is there: Done; or Error, and nothing changed. */
void move_on_prepare(struct shard_daemon *shard, uint32_t request, Cairn__PartPrepare *message);
void move_on_unprepare(struct shard_job *job, const Cairn__PartUnprepare *message);

#endif
