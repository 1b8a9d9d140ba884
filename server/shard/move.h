/* A job's layout changes while rounds continue. This header is about the layout that a shard has
 * prepared, the layout that it uses, and the state that it still has to give to other shards or to
 * get from them.
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

/* Pieces are the state that a shard receives when one layout follows another. A piece is the part
 * that the shard needs of one chunk of one plane. The sender, which owned the chunk before,
 * determines where chunks begin and end. Pure; any thread. */

struct state_piece {
    uint32_t sender; /* the sender's index in the layouts */
    uint32_t extent; /* the extent in the next view of this shard */
    enum plane plane;
    uint64_t first_leaf; /* the first leaf of the sender's chunk, counted in the tensor */
    uint32_t leaf_count;
    uint64_t chunk_elem, chunk_elems; /* the elements of the chunk, counted in the tensor */
    uint64_t first_elem, elem_count;  /* those elements of the chunk that this shard needs */
};

struct state_pieces {
    struct state_piece *list; /* owned: [count], by sender, then by extent, chunk and plane */
    size_t count;
    uint64_t bytes; /* the bytes of all pieces */
    /* bytes of the largest chunk that arrives only in part; 0: all chunks arrive complete */
    size_t cut_bytes;
    size_t chunk_bytes;    /* bytes of the largest chunk */
    uint32_t sender_count; /* how many shards give state */
};

/* True if this shard needs the sender's complete chunk. */
static inline bool piece_is_whole(const struct state_piece *piece)
{
    return piece->elem_count == piece->chunk_elems;
}

/* Lists the pieces of all state that is on this shard in `next`, and on another shard in `now`.
 * State that is in `retained` is left out, because it is still here; `retained` may be NULL.
 * CAIRN_ERR_NO_MEMORY. */
CAIRN_MUST_CHECK cairn_status pieces_list(const struct shard_view *now,
                                          const struct shard_view *next,
                                          const struct shard_view *retained,
                                          struct state_pieces *out);
void pieces_release(struct state_pieces *pieces);

/* ==== receiver ==== */

/* A receiver asks the senders for the state that this shard gets with a layout. It asks each sender
 * for a few chunks at a time, and receives them into the planes while rounds continue.
 *
 *   receiver_open (all memory) ─► _begin: the senders use the new layout, too ─► FETCH, DATA, ...
 *       ─► `done`: everything is here ─► receiver_leave; freed when nothing refers to it
 *
 * To a sender this shard is a member of the job, a mover; the coordinator has told both about it
 * (PartPrepare). A complete chunk is received directly in its place in the planes. Nobody reads
 * that place before all state has arrived, and a damaged chunk is requested again. A chunk of which
 * only a part is needed (a cut chunk) is received in staging, and the needed part is copied from
 * there. If the job has state on a device, every chunk is received in staging; then there are fewer
 * slots, and their staging is pinned. Loop thread, except for the copies. */

struct receiver;

/* Takes over the pieces, even on failure. `mover` is the member as which this shard asks.
 * CAIRN_ERR_MALFORMED: a shard that gives state is not among `shards`. CAIRN_ERR_NO_MEMORY. */
CAIRN_MUST_CHECK cairn_status receiver_open(struct shard_job *job, struct shard_view *view,
                                            struct state_pieces *pieces, const Cairn__Mover *mover,
                                            Cairn__ShardInfo *const *shards, size_t shard_count,
                                            struct receiver **receiver_out, struct sentence *why);
/* Returns the bytes of the budget that a receiver of these pieces needs in addition to the
 * planes. */
uint64_t receiver_staging_bytes(const struct shard_job *job, const struct state_pieces *pieces);
/* Begins to ask for the state at `version`. The job must already use the view. `done` is called
 * when all pieces have arrived. */
void receiver_begin(struct receiver *receiver, struct cairn_version version,
                    void (*done)(struct receiver *receiver));
/* Stops asking, and frees the receiver now, or as soon as nothing refers to the receiver. NULL is
 * fine. */
void receiver_leave(struct receiver *receiver);
/* Frees the receiver. Nothing may refer to the receiver, unless the fabric and the pools are
 * closed. */
void receiver_free(struct receiver *receiver);

/* Calls neighbour_tick for each sender. Returns true if pieces have still to arrive. */
bool receiver_tick(struct receiver *receiver, uint64_t now_ms);

/* ---- inside: receiver.c, and its tests ---- */

struct sender;

/* A slot for a piece that was requested, or is being copied. */
struct receiver_slot {
    struct work_run run; /* first: the copy out of `staging` */
    struct sender *sender;
    /* the index of its request is the index of the slot in sender->slots */
    struct neighbour_fetch fetch;
    const struct state_piece *piece; /* NULL: the slot is free */
    /* borrowed: [receiver->staged.bytes]; NULL: this slot takes only pieces that are received
     * directly in their place */
    uint8_t *staging;
    void *to; /* where in the planes the piece belongs */
};

/* The staging: memory for chunks that are received outside the planes and then copied into them. */
struct receiver_staging {
    /* every chunk is staged, because the planes lie on a device; otherwise only cut chunks are
     * staged */
    bool all;
    uint32_t each;    /* how many slots of a sender have staging; these are the first ones */
    uint32_t of_each; /* how many slots a sender has */
    size_t bytes;     /* the bytes of the staging of one slot */
};

/* A shard from which state arrives. */
struct sender {
    struct neighbour neighbour;  /* first */
    struct receiver *receiver;   /* borrowed */
    struct receiver_slot *slots; /* owned: [receiver->staged.of_each] */
    /* the range, in pieces.list, of the sender's pieces that were not requested yet */
    size_t next, end;
};

struct receiver {
    struct neighbours neighbours; /* first: the senders */
    LIST_ENTRY(receiver) leaving; /* in move.leaving, after the receiver began to leave */
    struct shard_job *job;        /* borrowed */
    struct shard_view *view;      /* counted: the view with which the state arrives */
    struct cairn_version version;
    struct state_pieces pieces; /* owned */
    struct sender *senders;     /* owned: [neighbours.count] by index */
    struct receiver_staging staged;
    struct arena staging; /* owned: memory for the slots that have staging */
    size_t left;          /* how many pieces have not arrived */
    /* begun_ns: when receiver_begin was called; us: how long it took until `left` was 0 */
    uint64_t begun_ns, us;
    void (*done)(struct receiver *receiver);
};

/* ==== move ==== */

/* One change of the layout, as far as this shard is concerned. */
struct move_part {
    struct shard_view *view; /* counted: the view of the layout to which the change leads */
    /* owned: receives arriving state; NULL: all has arrived, or none arrives */
    struct receiver *receiver;
    uint64_t *movers; /* owned: [mover_count] members that ask this shard for state */
    size_t mover_count;
    bool is_back;     /* this change is in force, and it took back a change that was not settled */
    bool is_ready;    /* the pages for arriving state are made */
    bool is_unwanted; /* the change is to be forgotten as soon as it is ready */
    /* a process before has received the state that comes; so the receiver is NULL */
    bool is_whole;
    bool awaits_settled;    /* in force: the part is REDUCED only when the layout is settled */
    struct packed *message; /* counted: the PartPrepare; NULL: there was no memory */
    struct request asked;   /* the PartPrepare; answered when the change is ready */
    uint64_t session;       /* the session in which the PartPrepare arrived */
    /* what was taken from the budget for this change, and is given back with it: the planes and the
     * staging for arriving state, and the additional need of copies and tables. When the change has
     * come into force, only the staging */
    struct memory_need taken;
    uint64_t
        /* the bytes of state that shifts to another place on this shard; the bytes at the old
         * places are given back when the change is settled */
        shifted;
    uint64_t comes;                 /* the bytes of arriving state */
    uint64_t moved_bytes, moved_us; /* the bytes of the state that arrived, and how long it took */
};

struct move {
    struct move_part *next; /* owned: the change that is prepared; NULL: none is */
    /* owned: the change that is in force and not settled; NULL: the layout in force is settled */
    struct move_part *now;
    struct shard_view *before; /* counted: the view in force before `now` */
    /* the layout in force is not the one with which the part was made */
    bool has_moved;
    bool is_settling; /* PartSettled has arrived, but given state is still being sent */
    uint32_t sends;   /* how many sends of given state, directly out of the planes, are under way */
    struct {
        /* the epoch of a Fence that waits until the collector rests; 0: none waits */
        uint64_t epoch;
        uint64_t since_ms; /* the loop time since which the Fence waits */
    } fence;
    struct request publishing;     /* the PartPublish in progress */
    LIST_HEAD(, receiver) leaving; /* owned: receivers to which something in flight still refers */
};

/* ==== force ==== */

/* Brings a prepared layout into force, and takes the state that arrives with it. Loop thread. */

/* Handles a Fence of a new epoch. `layout` is the number in the Fence; 0 stands for the layout in
 * force. If this is the prepared layout, it comes into force as soon as the collector rests,
 * perhaps before this call returns, and this module does everything that follows from the Fence. A
 * prepared layout that the Fence does not name is forgotten if it was prepared in an earlier
 * session. Returns false if no layout comes into force through this Fence; then the caller tells
 * the core. */
bool move_on_fence(struct shard_job *job, uint64_t epoch, uint64_t layout);
/* Called when all shards use the layout in force, after the core was told this. */
void move_on_resolve(struct shard_job *job, uint64_t epoch);

/* ==== mirror ==== */

/* A part that mirrors another shard's, the owner's: it has the bits of the owner, and can take the owner's
 * place at once. It is a part as any other, with planes, a round machine and published copies. Only its sums
 * come another way: the owner's sums of the round are fetched, in place of the contributions of workers. So
 * both carry out the same decisions with the same sums.
 *
 *   JobCreate{mirror} ─► SERVING, with nothing ── MirrorOf ─► state is fetched between updates
 *        each round: RoundOpen of one member, this mirror ── MirrorSums ─► sums are fetched ─► REDUCED
 *   all state is here ─► MirrorFilled ─► the coordinator may give it the owner's place: MirrorOf{0}
 *
 * The chunks that were fetched take part in the updates from then on. All others are worthless until they
 * are fetched, all planes of a chunk at one version; what the updates make of them does no harm. Loop
 * thread. */

struct mirror;

struct mirrors {
    /* the part was made to mirror another, and has not been given that one's place; so it is not kept, and
     * nobody adopts it */
    bool is_mirror;
    struct mirror *now;          /* owned: the owner, and what is asked of it; NULL: nothing is */
    LIST_HEAD(, mirror) leaving; /* owned: those to which something in flight still refers */
    /* the MirrorOf that ended the mirror; answered when nothing leaves any more */
    struct request ending;
};

/* True if the sums of the round that ends are the owner's, so that the plane of sums has them. */
bool mirror_has_sums(const struct shard_job *job);
/* An update waits while this is true: chunks of the version before are arriving. Nothing is asked for until
 * the update has ended. */
bool mirror_is_receiving(struct shard_job *job);
/* A version is published, so chunks can be asked for again. */
void mirror_go_on(struct shard_job *job);

#endif
