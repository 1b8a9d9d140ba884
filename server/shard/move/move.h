/* The layout of a job changes while rounds go on: what of it a shard has prepared, goes by, and is still to
 * give or to get.
 *
 *   PartPrepare ─► next (prepare.c) ── Fence{layout} ──► now (force.c) ── PartSettled ──► settled (give.c)
 *                     │ PartUnprepare, another Fence        │ take.c: what comes
 *                     ▼                                     ▼
 *                  forgotten                             PartMoved
 *
 * Loop thread. README.md says what goes on meanwhile, and what waits. */
#ifndef CAIRN_SHARD_MOVE_MOVE_H
#define CAIRN_SHARD_MOVE_MOVE_H

#include "proto/wire/messages.h"
#include "server/shard/base/session.h"
#include "server/shard/collect/view.h"

struct cairn_shard;
struct cairn_shard_job;
struct cairn_take;

/* One change of the layout, on this shard. */
struct cairn_move_part {
    struct cairn_shard_view *view; /* counted: of the layout that it leads to */
    struct cairn_take *take;       /* owned: what comes; NULL: nothing does */
    uint64_t *movers;              /* owned: [mover_count] members that ask us */
    size_t mover_count;
    bool is_back;               /* in force, it took back one that was not settled */
    bool is_ready;              /* the pages for what comes are made */
    bool is_unwanted;           /* it is forgotten as soon as it is ready */
    struct cairn_request asked; /* the PartPrepare; answered when it is ready */
    uint64_t session;           /* that it came in */
    /* bytes that were taken of the budget: of the planes, for what comes; for what is received; and of what
     * copies and tables take more */
    uint64_t room, shifted, staging, published, tables;
    uint64_t comes;                 /* bytes of state */
    uint64_t moved_bytes, moved_us; /* of what came */
};

struct cairn_move {
    struct cairn_move_part *next;    /* owned: prepared; NULL: none is */
    struct cairn_move_part *now;     /* owned: in force, and not settled; NULL: settled */
    struct cairn_shard_view *before; /* counted: what was in force before `now` */
    bool has_moved;                  /* a layout came into force that the part was not made with */
    bool is_settling; /* PartSettled came, and something of what was given is being sent */
    uint32_t sends;   /* of what was given, right out of the planes */
    struct {
        uint64_t epoch;    /* a Fence of this session, until the collector rests; epoch 0: none */
        uint64_t since_ms; /* of the loop: where epoch is not 0 */
    } fence;
    struct cairn_request publishing; /* the PartPublish at work */
    struct cairn_take *leaving;      /* owned: takes that something in flight refers to */
};

#endif
