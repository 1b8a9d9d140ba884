/* The coordinator's machine, for one job, that does what a change of layout needs in addition to the change
 * of epoch. Every shard prepares the new layout. Then the layout comes into force (server/core/round.h).
 * Then each shard receives the state that is new to it, and at last the givers may forget that state. Pure,
 * as step.h: events go in, actions come out.
 *
 *           BEGIN              all PREPARED           IN_FORCE             all MOVED
 *    REST ─────────► PREPARING ────────────► CUTTING ──────────► MOVING ────────────► REST
 *     ▲                  │ refused, a shard is    │ the same, while  │ SHARD_LOST
 *     └──────────────────┴ away, or CANCEL ◄──────┘ it can be        └──────► LOST ──BEGIN back──► PREPARING
 *                                                   taken back
 *
 *  - Until the layout is being made durable, the change can be taken back. It is taken back when a shard
 *    goes away, so that training does not wait for a change that is not necessary.
 *  - A shard keeps its prepared layout through fences that name the layout in force, because an epoch may
 *    change meanwhile. A shard forgets its prepared layout when it is told to, when another layout is
 *    prepared, and at the fence of a coordinator other than the one that had the layout prepared: for that
 *    coordinator the layout never came into force.
 *  - Once the layout is durable, only a complete move ends the slice, after any number of epochs and
 *    incarnations: shards report MOVED again after each change of epoch, and the next incarnation begins in
 *    MOVING.
 *  - No shard forgets any state before every shard of the layout has all of its own state.
 *  - If a shard that had nothing before the slice is lost during the slice, no state is lost: the previous
 *    layout, without that shard, takes the slice back (round.h, back). If all other shards are complete,
 *    however, the slice may already be settled, and the given state forgotten. If the lost shard had
 *    nothing in the slice's layout either, the next layout is then the one in force, without that shard
 *    (empty). Otherwise the job is lost.
 *
 * The daemon passes the layouts themselves to the shards: the machine knows them by number. */
#ifndef CAIRN_CORE_MOVE_H
#define CAIRN_CORE_MOVE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "proto/base/status.h"

#define CAIRN_MOVE_ALL UINT32_MAX /* in an action: every shard of that layout */

enum move_stage {
    CAIRN_MOVE_REST = 0,  /* no slice is under way */
    CAIRN_MOVE_PREPARING, /* waits for PREPARED */
    CAIRN_MOVE_CUTTING,   /* the round core waits for the end of a round, or for the disk */
    CAIRN_MOVE_MOVING,    /* waits for MOVED */
    /* a shard of the layout in force was lost with the slice: waits for BEGIN, back */
    CAIRN_MOVE_LOST
};

struct move_config {
    uint32_t shard_max;   /* of any layout, at least 1 */
    uint32_t shard_count; /* of the layout in force, including its holes; at least 1 */
    /* [(shard_count + 7) / 8] as in struct round_config. NULL: no hole. Borrowed for the call */
    const uint8_t *gone;
    uint64_t layout; /* the number of the layout in force */
    /* It is not known whether the layout's slice was settled. Set in a new incarnation for every layout
     * except the first. */
    bool unsettled;
};

enum move_event_kind {
    CAIRN_MOVE_BEGIN, /* layout, shard_count, gone; back: the layout takes back the slice that lost a shard.
                       * Only in REST, and in LOST with `back` */
    /* shard, layout, status: not OK: the shard refuses, and keeps nothing of the layout */
    CAIRN_MOVE_PREPARED,
    CAIRN_MOVE_IN_FORCE, /* layout: the layout is durable (by round_layout_of; a fence may have to wait) */
    CAIRN_MOVE_MOVED, /* shard, layout: the shard has all its state in it. Reported after each change of
                       * epoch, and by a shard that connects, because an incarnation cannot change the
                       * epoch while a shard is lost */
    CAIRN_MOVE_SHARD_DOWN, /* shard, pending: its control channel is lost; the shard may return. Also
                            * reported when the shard returned on another channel unnoticed, because
                            * messages to it may be lost */
    CAIRN_MOVE_SHARD_LOST, /* shard, pending: the shard will not return, or returned without the state that
                            * it got. It had no state before the slice */
    CAIRN_MOVE_CANCEL /* pending: the slice is taken back if possible; otherwise it continues to its end */
};

struct move_event {
    enum move_event_kind kind;
    uint64_t layout;
    uint32_t shard; /* below shard_max */
    uint32_t shard_count;
    const uint8_t *gone; /* borrowed for the call */
    cairn_status status;
    bool back;
    /* In CUTTING: round_layout_pending returns the slice's layout, so that it can be taken back. */
    bool pending;
};

enum move_action_kind {
    CAIRN_MOVE_PREPARE, /* layout, to every shard of it → PREPARED of each */
    CAIRN_MOVE_UNPREPARE, /* layout, to every shard of it: forget it. May be lost with the connection: the
                           * next fence has the same effect */
    CAIRN_MOVE_CUT_OVER, /* layout, back: CAIRN_ROUND_LAYOUT → IN_FORCE */
    CAIRN_MOVE_WITHDRAW, /* CAIRN_ROUND_LAYOUT with layout 0 */
    /* layout; shard, or CAIRN_MOVE_ALL: all shards are complete, so this shard, or each shard, may forget
     * the state that it gave */
    CAIRN_MOVE_SETTLE,
    CAIRN_MOVE_ENDED, /* layout, status: the slice is
                           *   OK                   settled
                           *   CANCELED             taken back, as requested
                           *   UNREACHABLE          taken back: `shard` went away
                           *   JOB_LOST             taken back, or in force, or no slice is under way;
                           *                        the layout in force has `shard`: begin a slice back
                           *   anything else        taken back: `shard` refused with this status */
};

struct move_action {
    enum move_action_kind kind;
    uint64_t layout;
    uint32_t shard;
    cairn_status status;
    bool back;
};

/* The machine appends to the list from `count` on, and asserts that there is room. */
struct move_actions {
    struct move_action *list; /* [capacity] */
    size_t count, capacity;
};
#define CAIRN_MOVE_ACTIONS_MAX 4 /* from one event */

struct move;

/* The bytes of memory for a machine with this configuration; 0 if the configuration is not valid. */
size_t move_bytes(const struct move_config *config);
/* Begins in REST, or in MOVING if `unsettled` is set. `memory` is aligned as by malloc, and borrowed until
 * the machine is dropped; there is nothing to release. */
struct move *move_init(void *memory, const struct move_config *config);

/* Takes one event. An event of another layout or stage changes nothing. */
void move_on_event(struct move *move, const struct move_event *event, struct move_actions *actions);

/* ---- questions ---- */
enum move_stage move_stage_of(const struct move *move);
/* True in PREPARING if the shard's answer is awaited, in MOVING if the shard is not complete. */
bool move_waits_for(const struct move *move, uint32_t shard);
/* True if the shard has all its state in the layout in force. */
bool move_has_moved(const struct move *move, uint32_t shard);

#endif
