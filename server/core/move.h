/* The coordinator's machine, for one job, that does what a change of layout needs besides the change of
 * epoch: every shard prepares the new layout, then it comes into force (server/core/round.h), then each
 * shard receives the state that is new to it, and at last the givers may forget that state. Pure, as
 * step.h: events go in, actions come out.
 *
 *           BEGIN              all PREPARED           IN_FORCE             all MOVED
 *    REST ─────────► PREPARING ────────────► CUTTING ──────────► MOVING ────────────► REST
 *     ▲                  │ refused, a shard is    │ the same, while  │ SHARD_LOST
 *     └──────────────────┴ away, or CANCEL ◄──────┘ it can be        └──────► LOST ──BEGIN back──► PREPARING
 *                                                   taken back
 *
 *  - Until the layout is being made durable, the change can be taken back, and it is when a shard goes
 *    away, so that training does not wait for a change that is not necessary.
 *  - A shard keeps its prepared layout through fences that name the layout in force, because an epoch may
 *    change meanwhile. It forgets the prepared layout when it is told to, when another one is prepared,
 *    and at the fence of another coordinator than the one that had it prepared: there it never came into
 *    force.
 *  - Once the layout is durable, only a complete move ends the slice, through any number of epochs and
 *    incarnations: shards report MOVED again after each change of epoch, and the next incarnation begins in
 *    MOVING.
 *  - No shard forgets anything before every shard of the layout has all its state.
 *  - If a shard that had nothing before the slice is lost in it, no state is lost: the previous layout,
 *    without that shard, takes the slice back (round.h, back). If all other shards are complete, the slice
 *    may already be settled, and the given state forgotten: then either the lost shard had nothing in the
 *    slice's layout either, and the next layout is the one in force without that shard (empty), or the job
 *    is lost.
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
    /* Whether its slice was settled is not known: true in a new incarnation, for any but the first
     * layout. */
    bool unsettled;
};

enum move_event_kind {
    CAIRN_MOVE_BEGIN, /* layout, shard_count, gone; back: it takes back the slice that lost a shard. Only in
                       * REST, and in LOST with `back` */
    CAIRN_MOVE_PREPARED, /* shard, layout, status: not OK: the shard refuses, and keeps nothing of it */
    CAIRN_MOVE_IN_FORCE, /* layout: it is durable (by round_layout_of; a fence may have to wait) */
    CAIRN_MOVE_MOVED, /* shard, layout: the shard has all its state in it. Reported after each change of
                       * epoch, and by a shard that connects, because an incarnation cannot change the
                       * epoch while a shard is lost */
    CAIRN_MOVE_SHARD_DOWN, /* shard, pending: its control channel is lost; the shard may return. Also when
                            * it returned on another channel unnoticed: messages to it may be lost */
    CAIRN_MOVE_SHARD_LOST, /* shard, pending: it will not return, or returned without the state that it
                            * got; it had none before the slice */
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
    CAIRN_MOVE_SETTLE, /* layout; shard, or CAIRN_MOVE_ALL: all shards are complete, forget given state */
    CAIRN_MOVE_ENDED, /* layout, status: the slice is
                           *   OK                   settled
                           *   CANCELED             taken back, as requested
                           *   UNREACHABLE          taken back: `shard` went away
                           *   JOB_LOST             taken back, or in force, or no slice is under way; and the
                           *                        layout in force has `shard`: begin one that goes back
                           *   anything else        taken back: `shard` refused with this status */
};

struct move_action {
    enum move_action_kind kind;
    uint64_t layout;
    uint32_t shard;
    cairn_status status;
    bool back;
};

/* The machine appends from `count` on, and asserts that there is room. */
struct move_actions {
    struct move_action *list; /* [capacity] */
    size_t count, capacity;
};
#define CAIRN_MOVE_ACTIONS_MAX 4 /* from one event */

struct move;

/* The bytes of memory for a machine with this configuration; 0 if the configuration is not valid. */
size_t move_bytes(const struct move_config *config);
/* Begins in REST, or in MOVING if `unsettled` is set. Memory: aligned as by malloc; borrowed until it is
 * dropped; nothing to release. */
struct move *move_init(void *memory, const struct move_config *config);

/* Takes one event. An event of another layout or stage changes nothing. */
void move_on_event(struct move *move, const struct move_event *event, struct move_actions *actions);

/* ---- questions ---- */
enum move_stage move_stage_of(const struct move *move);
/* PREPARING: the shard's answer is awaited; MOVING: the shard is not complete. */
bool move_waits_for(const struct move *move, uint32_t shard);
/* The shard has all its state in the layout in force. */
bool move_has_moved(const struct move *move, uint32_t shard);

#endif
