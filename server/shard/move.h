/* A job's layout changes while rounds continue. This header has the layout that a shard has prepared, the
 * layout that it uses, and the state that it still has to give or to get.
 *
 *   PartPrepare ─► next (move.c) ── Fence{layout} ──► now (move.c) ── PartSettled ──► settled (move.c)
 *                     │ PartUnprepare, another Fence        │ receiver.c: arriving state
 *                     ▼                                     ▼
 *                  forgotten                             PartMoved
 *
 * Loop thread. README.md says what continues meanwhile, and what waits. */
#ifndef CAIRN_SHARD_MOVE_H
#define CAIRN_SHARD_MOVE_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/queue.h>

#include "proto/fabric/fabric.h"
#include "proto/wire/wire.h"
#include "server/shard/base.h"
#include "server/shard/collect.h"
#include "server/shard/memory.h"

/* ==== piece ==== */

/* Pieces: the state that a shard receives when one layout follows another. A piece is the part that the
 * shard needs of one chunk of one plane. The chunk grid is that of the chunk's owner, the sender. Pure; any
 * thread. */

struct state_piece {
    uint32_t sender; /* the sender's index in the layouts */
    uint32_t extent; /* here, in the next view */
    enum plane plane;
    uint64_t first_leaf; /* the first leaf of the sender's chunk, in the tensor */
    uint32_t leaf_count;
    uint64_t chunk_elem, chunk_elems; /* the chunk's elements in the tensor */
    uint64_t first_elem, elem_count;  /* of these, the elements that the shard receives */
};

struct state_pieces {
    struct state_piece *list; /* owned: [count], by sender, then by extent, chunk and plane */
    size_t count;
    uint64_t bytes; /* that arrive in all */
    /* bytes of the largest chunk that arrives only in part; 0: all chunks arrive complete */
    size_t cut_bytes;
    size_t chunk_bytes;    /* bytes of the largest chunk */
    uint32_t sender_count; /* shards that give state */
};

/* True if the sender's complete chunk arrives, and no other shard gets a part of it. */
static inline bool piece_is_whole(const struct state_piece *piece)
{
    return piece->elem_count == piece->chunk_elems;
}

void pieces_release(struct state_pieces *pieces);

/* ==== receiver ==== */

/* A receiver asks the senders for the state that this shard gets with a layout, a few chunks of each sender
 * at a time. It receives the state into the planes while rounds continue.
 *
 *   receiver_open (all memory) ─► _begin: the senders use the new layout, too ─► FETCH, DATA, ...
 *       ─► `done`: everything is here ─► receiver_leave; freed when nothing refers to it
 *
 * To a sender this shard is a member of the job, a mover; the coordinator has told both about it
 * (PartPrepare). A complete chunk is received directly in its place in the planes. Nobody reads that place
 * before all state has arrived, and a damaged chunk is requested again. A chunk that is cut is received in
 * staging, and the needed part is copied from there. The same is done with every chunk of a job with state
 * on a device; the slots are then fewer, and pinned. Loop thread, except for the copies. */

struct receiver;

/* Takes over the pieces, even on failure. `mover`: the member as which this shard asks.
 * CAIRN_ERR_MALFORMED: a shard that gives state is not among `shards`; CAIRN_ERR_NO_MEMORY. */
CAIRN_MUST_CHECK cairn_status receiver_open(struct shard_job *job, struct shard_view *view,
                                            struct state_pieces *pieces, const Cairn__Mover *mover,
                                            Cairn__ShardInfo *const *shards, size_t shard_count,
                                            struct receiver **receiver_out, struct sentence *why);
/* The bytes of the budget that a receiver of these pieces needs in addition to the planes. */
uint64_t receiver_staging_bytes(const struct shard_job *job, const struct state_pieces *pieces);
/* Begins to ask: the job uses the view, and the state is wanted at `version`. `done` is called once. */
void receiver_begin(struct receiver *receiver, struct cairn_version version,
                    void (*done)(struct receiver *receiver));
/* Stops asking, and frees the receiver now, or as soon as nothing refers to it. NULL is fine. */
void receiver_leave(struct receiver *receiver);
/* Called when the job is freed, whatever is in flight; the fabric and the pools must be closed before.
 * Frees the job's leaving receivers, too. */
void receiver_free(struct receiver *receiver);

/* The periodic tick. Returns true if pieces have still to arrive. */
bool receiver_tick(struct receiver *receiver, uint64_t now_ms);

/* ---- inside: receiver.c, and its tests ---- */

struct sender;

/* A slot for a piece that was requested, or is being copied. */
struct receiver_slot {
    struct work_run run; /* first: the copy */
    struct sender *sender;
    struct neighbour_fetch fetch;    /* numbered as sender->slots */
    const struct state_piece *piece; /* NULL: the slot is free */
    /* borrowed: [receiver->staged.bytes]; NULL: the piece is received directly in its place */
    uint8_t *staging;
    void *to; /* where in the planes the piece belongs */
};

/* The staging: memory for chunks that are received outside the planes and then copied into them. */
struct receiver_staging {
    /* every chunk is staged, because the planes lie on a device; otherwise only cut chunks are staged */
    bool all;
    uint32_t each;    /* how many of a sender's slots, the first ones, have staging */
    uint32_t of_each; /* slots of a sender */
    size_t bytes;     /* of one slot's staging */
};

/* A shard from which state arrives. */
struct sender {
    struct neighbour neighbour;  /* first */
    struct receiver *receiver;   /* borrowed */
    struct receiver_slot *slots; /* owned: [receiver->staged.of_each] */
    size_t next, end;            /* the range of its pieces that were not requested yet */
};

struct receiver {
    struct neighbours neighbours; /* first: the senders */
    LIST_ENTRY(receiver) leaving; /* once the receiver leaves */
    struct shard_job *job;        /* borrowed */
    struct shard_view *view;      /* counted: the view by which the pieces lie here */
    struct cairn_version version;
    struct state_pieces pieces; /* owned */
    struct sender *senders;     /* owned: [neighbours.count] by index */
    struct receiver_staging staged;
    struct arena staging;  /* owned: for the slots that have staging */
    size_t left;           /* pieces that have not arrived */
    uint64_t begun_ns, us; /* us: the duration, once left is 0 */
    void (*done)(struct receiver *receiver);
};

/* ==== move ==== */

/* One change of the layout, on this shard. */
struct move_part {
    struct shard_view *view;   /* counted: of the layout to which the change leads */
    struct receiver *receiver; /* owned: for arriving state; NULL: none arrives */
    uint64_t *movers;          /* owned: [mover_count] members that ask this shard for state */
    size_t mover_count;
    bool is_back;     /* this change is in force, and it reversed a change that was not settled */
    bool is_ready;    /* the pages for arriving state are made */
    bool is_unwanted; /* the change is to be forgotten as soon as it is ready */
    struct request asked; /* the PartPrepare; answered when the change is ready */
    uint64_t session;     /* the session in which the PartPrepare arrived */
    /* taken, and given back with the change: the planes and the staging of arriving state, and the
     * additional need of copies and tables; once the change is in force, only the staging */
    struct memory_need taken;
    uint64_t
        shifted;    /* bytes of the planes from which state shifts; given back when it is settled */
    uint64_t comes; /* bytes of arriving state */
    uint64_t moved_bytes, moved_us; /* of the state that arrived */
};

struct move {
    struct move_part *next;    /* owned: prepared; NULL: none is */
    struct move_part *now;     /* owned: in force, and not settled; NULL: settled */
    struct shard_view *before; /* counted: the view in force before `now` */
    /* a layout has come into force that is not the one with which the part was made */
    bool has_moved;
    bool is_settling; /* PartSettled arrived while some of the given state is being sent */
    uint32_t sends;   /* sends of given state, directly out of the planes */
    struct {
        /* a Fence of this session that waits until the collector rests; epoch 0: none */
        uint64_t epoch;
        uint64_t since_ms; /* loop time, if epoch is not 0 */
    } fence;
    struct request publishing;     /* the PartPublish in progress */
    LIST_HEAD(, receiver) leaving; /* owned: receivers to which something in flight still refers */
};

/* ==== force ==== */

/* Brings a prepared layout into force, and takes the state that arrives with it. Loop thread. */

/* Handles a Fence of a new epoch; layout 0: the layout in force. A prepared layout that the Fence does not
 * name is forgotten. A prepared layout that it names comes into force as soon as the collector rests,
 * perhaps at once; then this module does everything that follows from the Fence. False: the layout stays as
 * it is, and the caller tells the core. */
bool move_on_fence(struct shard_job *job, uint64_t epoch, uint64_t layout);
/* Called when all shards use the layout in force, after the core was told so. */
void move_on_resolve(struct shard_job *job, uint64_t epoch);

#endif
