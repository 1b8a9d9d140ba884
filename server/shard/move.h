/* The layout of a job changes while rounds go on: what of it a shard has prepared, goes by, and is still to
 * give or to get.
 *
 *   PartPrepare ─► next (move.c) ── Fence{layout} ──► now (move.c) ── PartSettled ──► settled (move.c)
 *                     │ PartUnprepare, another Fence        │ take.c: what comes
 *                     ▼                                     ▼
 *                  forgotten                             PartMoved
 *
 * Loop thread. README.md says what goes on meanwhile, and what waits. */
#ifndef CAIRN_SHARD_MOVE_H
#define CAIRN_SHARD_MOVE_H

#include <stdbool.h>
#include <stdint.h>

#include "proto/fabric/fabric.h"
#include "proto/wire/messages.h"
#include "server/shard/base.h"
#include "server/shard/collect.h"

/* ==== lot ==== */

/* Lots: what comes to a shard when one layout follows another. A lot is the part that the shard
 * needs of one chunk of one plane, by the chunk grid of the chunk's owner, the giver. Pure; any
 * thread. */

struct lot {
    uint32_t giver;  /* its index in the layouts */
    uint32_t extent; /* here, in the view that follows */
    enum plane plane;
    uint64_t first_leaf; /* of the giver's chunk, in the tensor */
    uint32_t leaf_count;
    uint64_t chunk_elem, chunk_elems; /* its elements in the tensor */
    uint64_t first_elem, elem_count;  /* of them, those that come */
};

struct lots {
    struct lot *list; /* owned: [count], by giver, then by extent, chunk and plane */
    size_t count;
    uint64_t bytes;       /* of what comes */
    size_t cut_bytes;     /* of the largest chunk that does not come whole; 0: all do */
    size_t chunk_bytes;   /* of the largest chunk */
    uint32_t giver_count; /* shards that give something */
};

/* The giver's chunk comes, nothing of it stays elsewhere. */
static inline bool lot_is_whole(const struct lot *lot)
{
    return lot->elem_count == lot->chunk_elems;
}

void lots_release(struct lots *lots);

/* ==== take ==== */

/* A take asks the givers for the state that comes to this shard with a layout, a few chunks of each
 * giver at a time, and receives it into the planes, while rounds go on.
 *
 *   take_open (all memory) ─► _begin: the givers go by the new layout, too ─► FETCH, DATA, ...
 *       ─► `done`: everything is here ─► take_leave; freed when nothing refers to it
 *
 * To a giver this shard is a member of the job, a mover; the coordinator has told both of it
 * (PartPrepare). A chunk that comes whole is received where it belongs: nobody reads there before
 * everything is here, and a damaged chunk is asked for again. A chunk that is cut is received in
 * staging, and its part is copied from there; so is every chunk of a job with state on a device, in
 * fewer slots, which are pinned. A request that a giver does not answer, or answers on a connection
 * that is lost, is sent again. Loop thread, except for the copies. */

struct chunk_header;
struct chunk_link;
struct reserve;
struct shard_daemon;
struct shard_job;
struct take;

/* Takes over the lots, also when it fails. `mover`: as whom we ask. CAIRN_ERR_MALFORMED: a shard that gives
 * something is not among `shards`; CAIRN_ERR_NO_MEMORY. */
CAIRN_MUST_CHECK cairn_status take_open(struct shard_job *job, struct shard_view *view,
                                        struct lots *lots, const Cairn__Mover *mover,
                                        Cairn__ShardInfo *const *shards, size_t shard_count,
                                        struct take **take_out, struct sentence *why);
/* Bytes of the budget for what is received beside the planes, of a take of these lots by the job. */
uint64_t take_staging_bytes(const struct shard_job *job, const struct lots *lots);
/* Within `prepare` of a reserve: these. */
CAIRN_MUST_CHECK cairn_status take_reserve(const struct take *take, struct reserve *reserve);
/* The job goes by the view, at the version that is asked for. `done` follows, once. */
void take_begin(struct take *take, struct cairn_version version, void (*done)(struct take *take));
/* It was begun. */
bool take_is_begun(const struct take *take);
struct shard_job *take_job(const struct take *take);
/* All of it is here: so many bytes in so many microseconds. */
bool take_is_done(const struct take *take, uint64_t *bytes_out, uint64_t *us_out);
/* Asks for nothing any more; frees it now, or when nothing refers to it. NULL is fine. */
void take_leave(struct take *take);
/* With the job, whatever is in flight: the fabric and the pools are closed. And those that were leaving. */
void receiver_free(struct take *take);
void take_free_leaving(struct shard_job *job);

/* Takes or drops a giver's message for a take of one of our jobs. False: the message is not from a
 * giver, and is left to the caller. */
bool take_on_message(struct shard_daemon *shard, const struct chunk_header *header,
                     struct fabric_message *message);
/* Time: connects, breaks silences, asks again. True: it waits for something. */
bool take_tick(struct take *take, uint64_t now_ms);
/* The link to the i-th giver, and its name, borrowed; NULL: there is none, or nothing is asked of them. */
const struct chunk_link *take_link(struct take *take, uint32_t i, char **name_out);

/* ==== move ==== */

/* One change of the layout, on this shard. */
struct move_part {
    struct shard_view *view; /* counted: of the layout that it leads to */
    struct take *take;       /* owned: what comes; NULL: nothing does */
    uint64_t *movers;        /* owned: [mover_count] members that ask us */
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
    struct request publishing; /* the PartPublish at work */
    struct take *leaving;      /* owned: takes that something in flight refers to */
};

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
