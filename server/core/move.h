/* The coordinator's machine of one job for what a change of layout needs besides the change of epoch: every
 * shard prepares the new layout, then it comes into force (server/core/round.h), then what is new to a shard
 * moves there, and at last who gave it may forget it. Pure, as step.h: events go in, actions come out.
 *
 *           BEGIN              all PREPARED           IN_FORCE             all MOVED
 *    REST ─────────► PREPARING ────────────► CUTTING ──────────► MOVING ────────────► REST
 *     ▲                  │ refused, a shard is    │ the same, while  │ SHARD_LOST
 *     └──────────────────┴ away, or CANCEL ◄──────┘ it can be        └──────► LOST ──BEGIN back──► PREPARING
 *                                                   taken back
 *
 *  - Before the layout is being made durable everything can be taken back, and is when a shard goes away:
 *    no training waits for what need not be.
 *  - A shard keeps what it prepared through fences with the layout in force: an epoch may change meanwhile.
 *    It forgets it when told to, for another one, and by the fence of another coordinator than the one that
 *    had it prepared: there it never came into force.
 *  - After it only a whole move ends the slice, through any number of epochs and incarnations: shards say
 *    MOVED again after each change of epoch, and the next incarnation begins in MOVING.
 *  - Nobody forgets anything before every shard of the layout is whole in it.
 *  - A shard that had nothing before the slice, and is lost in it, loses nothing: a layout that is the one
 *    before, without that shard, takes the slice back (round.h, back). If all others are whole the slice may
 *    be settled, and what they gave forgotten: then the lost one had nothing in it either, or the job is
 *    lost, and the layout in force without it is what comes next (empty).
 *
 * The daemon gives the layouts themselves to the shards: the machine knows them by number. */
#ifndef CAIRN_CORE_MOVE_H
#define CAIRN_CORE_MOVE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "proto/base/status.h"

#define CAIRN_MOVE_ALL UINT32_MAX /* in an action: every shard of that layout */

enum move_stage {
    CAIRN_MOVE_REST = 0,  /* no slice is under way */
    CAIRN_MOVE_PREPARING, /* for PREPARED */
    CAIRN_MOVE_CUTTING,   /* the round core waits for the end of a round, or the disk */
    CAIRN_MOVE_MOVING,    /* for MOVED */
    CAIRN_MOVE_LOST /* the layout in force has a shard that was lost with the slice: for BEGIN, back */
};

struct move_config {
    uint32_t shard_max;   /* of any layout, at least 1 */
    uint32_t shard_count; /* of the layout in force, holes among them; at least 1 */
    /* [(shard_count + 7) / 8] as in struct round_config. NULL: no hole. Borrowed for the call */
    const uint8_t *gone;
    uint64_t layout; /* the number of the one in force */
    /* It is not known whether its slice was settled: any but the first layout, in a new incarnation. */
    bool unsettled;
};

enum move_event_kind {
    CAIRN_MOVE_BEGIN, /* layout, shard_count, gone; back: it takes the slice back that lost a shard. Only in
                       * REST, and in LOST with `back` */
    CAIRN_MOVE_PREPARED, /* shard, layout, status: not OK, it refuses, and nothing is kept of it there */
    CAIRN_MOVE_IN_FORCE, /* layout: it is durable (round_layout_of says it; a fence may have to wait) */
    CAIRN_MOVE_MOVED, /* shard, layout: the shard is whole in it. Said after each change of epoch, and (for an
                       * incarnation that cannot make one, since a shard is lost) by who comes */
    CAIRN_MOVE_SHARD_DOWN, /* shard, pending: its control channel is gone; it may be back. Also when it is
                            * back on another one and nobody noticed: what it was told may be lost */
    CAIRN_MOVE_SHARD_LOST, /* shard, pending: it will not be back, or is without what it got; it had nothing
                            * before the slice */
    CAIRN_MOVE_CANCEL /* pending: the slice is taken back if it can be; else it goes on to its end */
};

struct move_event {
    enum move_event_kind kind;
    uint64_t layout;
    uint32_t shard; /* below shard_max */
    uint32_t shard_count;
    const uint8_t *gone; /* borrowed for the call */
    cairn_status status;
    bool back;
    /* In CUTTING: round_layout_pending says the slice's layout, so that it can be taken back. */
    bool pending;
};

enum move_action_kind {
    CAIRN_MOVE_PREPARE, /* layout, to every shard of it → PREPARED of each */
    CAIRN_MOVE_UNPREPARE, /* layout, to every shard of it: forget it. May be lost with the connection: the
                           * next fence says so, too */
    CAIRN_MOVE_CUT_OVER, /* layout, back: CAIRN_ROUND_LAYOUT → IN_FORCE */
    CAIRN_MOVE_WITHDRAW, /* CAIRN_ROUND_LAYOUT with layout 0 */
    CAIRN_MOVE_SETTLE, /* layout; shard, or CAIRN_MOVE_ALL: everybody is whole, forget what you gave */
    CAIRN_MOVE_ENDED, /* layout, status: the slice is
                           *   OK                   settled
                           *   CANCELED             taken back, as was asked
                           *   UNREACHABLE          taken back: `shard` went away
                           *   JOB_LOST             taken back, or in force, or no slice is under way; and the
                           *                        layout in force has `shard`: begin one that goes back
                           *   anything else        taken back: `shard` refused it so */
};

struct move_action {
    enum move_action_kind kind;
    uint64_t layout;
    uint32_t shard;
    cairn_status status;
    bool back;
};

/* Filled from count on; the machine asserts that it fits. */
struct move_actions {
    struct move_action *list; /* [capacity] */
    size_t count, capacity;
};
#define CAIRN_MOVE_ACTIONS_MAX 4 /* that one event gives */

struct move;

/* Bytes of memory for a machine of this configuration; 0 if it is not valid. */
size_t move_bytes(const struct move_config *config);
/* In REST; MOVING, if it is `unsettled`. Memory: aligned as by malloc; borrowed until it is dropped; nothing
 * to release. */
struct move *move_init(void *memory, const struct move_config *config);

/* Takes one event. An event of another layout or stage changes nothing. */
void move_on_event(struct move *move, const struct move_event *event, struct move_actions *actions);

/* ---- questions ---- */
enum move_stage move_stage_of(const struct move *move);
/* PREPARING: its answer is awaited; MOVING: it is not whole. */
bool move_waits_for(const struct move *move, uint32_t shard);
/* It is whole in the layout in force. */
bool move_has_moved(const struct move *move, uint32_t shard);

#endif
