/* The coordinator's machine that changes the layout of one job. A reshard consists of slices, and each
 * slice is one change of layout. First every shard prepares the new layout. Then the layout comes into
 * force, with a change of epoch (server/core/round.h). Then each shard receives the state that is new to
 * it. At last the shards that gave state away may forget it. The machine is pure, as in step.h: events go
 * in, actions come out.
 *
 *           BEGIN              all PREPARED           IN_FORCE             all MOVED
 *    REST ─────────► PREPARING ────────────► CUTTING ──────────► MOVING ────────────► REST
 *     ▲                  │ refused, a shard is    │ the same, while  │ SHARD_LOST
 *     └──────────────────┴ away, or CANCEL ◄──────┘ it can be        └──────► LOST ──BEGIN back──► PREPARING
 *                                                   taken back
 *
 *  - Until the new layout is being made durable, the slice can be taken back. It is taken back when a shard
 *    goes away, because training must not wait for a change that is not necessary.
 *  - The epoch may change while a layout is prepared. So a shard keeps its prepared layout when a fence
 *    names the layout in force. The shard forgets its prepared layout when it is told to, when it prepares
 *    another layout, and when a fence comes from a coordinator that did not ask for the prepared layout:
 *    under that coordinator the layout never came into force.
 *  - When the layout is durable, only a complete move ends the slice, however many epochs and incarnations
 *    this takes. Shards report MOVED again after each change of epoch, and the next incarnation begins in
 *    MOVING.
 *  - No shard forgets any state before every shard of the layout has all its state.
 *  - A shard that had no state before the slice may be lost during the slice. Then no state is lost, and
 *    the previous layout, without that shard, takes the slice back (round.h, back). There is one exception:
 *    if all other shards are complete, the slice may be settled already, and the shards that gave state
 *    away may have forgotten it. If then the lost shard has no state in the slice's layout either, the next
 *    layout is the layout in force without that shard (round.h, empty). Otherwise the job is lost.
 *
 * The machine knows the layouts only by number. The daemon sends the layouts themselves to the shards. */
#ifndef CAIRN_CORE_MOVE_H
#define CAIRN_CORE_MOVE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "proto/base/status.h"

#define CAIRN_MOVE_ALL UINT32_MAX /* in an action: every shard of the action's layout */

enum move_stage {
    CAIRN_MOVE_REST = 0,  /* no slice is under way */
    CAIRN_MOVE_PREPARING, /* the machine waits for PREPARED */
    CAIRN_MOVE_CUTTING,   /* the round machine waits for the end of a round, or for the disk */
    CAIRN_MOVE_MOVING,    /* the machine waits for MOVED */
    /* a shard of the layout in force was lost: the machine waits for a BEGIN with `back` */
    CAIRN_MOVE_LOST
};

struct move_config {
    uint32_t shard_max;   /* the most shards of any layout, at least 1 */
    uint32_t shard_count; /* shards of the layout in force, including its holes; at least 1 */
    /* [(shard_count + 7) / 8] as in struct round_config. NULL: there are no holes. Borrowed for the call */
    const uint8_t *gone;
    uint64_t layout; /* the number of the layout in force */
    /* It is not known whether the slice that led to this layout is settled. A new incarnation sets this for
     * every layout except the first. */
    bool unsettled;
};

enum move_event_kind {
    CAIRN_MOVE_BEGIN, /* layout, shard_count, gone, back, empty: a slice begins, in REST; or, with `back`, the
                       * slice that lost a shard is taken back, in LOST. empty, with back: all other shards
                       * have all their state, and the layout moves none (round.h, empty) */
    /* shard, layout, status: the shard has prepared the layout; or, if status is not OK, the shard refuses,
     * and keeps nothing of the layout */
    CAIRN_MOVE_PREPARED,
    /* layout: round_layout_of returns this layout now, so the layout is durable. (Its fence may have to
     * wait.) */
    CAIRN_MOVE_IN_FORCE,
    CAIRN_MOVE_MOVED, /* shard, layout: the shard has all its state of the layout. A shard reports this
                       * after each change of epoch. It also reports this when it connects, because an
                       * incarnation cannot change the epoch while a shard is lost */
    CAIRN_MOVE_SHARD_DOWN, /* shard, pending: the shard's control channel is lost, and the shard may return.
                            * The event also comes when the shard has already returned on another channel,
                            * because messages to it may be lost */
    CAIRN_MOVE_SHARD_LOST, /* shard, pending: the shard will not return, or has returned without the state
                            * that it got in the slice. It had no state before the slice */
    /* pending: the slice is taken back if this is still possible; otherwise it goes on to its end */
    CAIRN_MOVE_CANCEL
};

struct move_event {
    enum move_event_kind kind;
    uint64_t layout;
    uint32_t shard; /* below shard_max */
    uint32_t shard_count;
    const uint8_t *gone; /* borrowed for the call */
    cairn_status status;
    bool back, empty;
    /* In CUTTING: true if round_layout_pending returns the slice's layout, so the slice can still be taken
     * back. */
    bool pending;
};

enum move_action_kind {
    CAIRN_MOVE_PREPARE, /* layout, to every shard of the layout → PREPARED from each */
    CAIRN_MOVE_UNPREPARE, /* layout, to every shard of the layout: the shard forgets the layout. If the
                           * message is lost with the connection, the next fence has the same effect */
    CAIRN_MOVE_CUT_OVER, /* layout, back: CAIRN_ROUND_LAYOUT → IN_FORCE */
    CAIRN_MOVE_WITHDRAW, /* CAIRN_ROUND_LAYOUT with layout 0 */
    /* layout; shard, or CAIRN_MOVE_ALL: all shards are complete. So this shard, or every shard, may forget
     * the state that it gave away */
    CAIRN_MOVE_SETTLE,
    CAIRN_MOVE_ENDED, /* layout, status: the slice has ended, and was
                       *   OK                   settled
                       *   CANCELED             taken back, as requested
                       *   UNREACHABLE          taken back, because `shard` went away
                       *   JOB_LOST             taken back, or is in force, or there was no slice. The
                       *                        layout in force has `shard`, which is lost: BEGIN, back
                       *   anything else        taken back, because `shard` refused with this status */
};

struct move_action {
    enum move_action_kind kind;
    uint64_t layout;
    uint32_t shard;
    cairn_status status;
    bool back;
};

/* The machine appends actions at `count`, and asserts that there is room. */
struct move_actions {
    struct move_action *list; /* [capacity] */
    size_t count, capacity;
};
#define CAIRN_MOVE_ACTIONS_MAX 4 /* the most actions from one event */

struct move;

/* The bytes of memory for a machine with this configuration; 0 if the configuration is not valid. */
size_t move_bytes(const struct move_config *config);
/* Makes a machine in `memory`, in REST, or in MOVING if `unsettled` is set. The memory is aligned as by
 * malloc. The machine borrows it until the caller drops the machine, and there is nothing to release. */
struct move *move_init(void *memory, const struct move_config *config);

/* Takes one event. An event of another layout or stage changes nothing. */
void move_on_event(struct move *move, const struct move_event *event, struct move_actions *actions);

/* ---- questions ---- */
enum move_stage move_stage_of(const struct move *move);
/* True if the shard's PREPARED is awaited (in PREPARING), or its MOVED (in MOVING). */
bool move_waits_for(const struct move *move, uint32_t shard);
/* True if the shard has all its state in the layout in force. In a layout that began `empty` this is known
 * before the shard reports MOVED, which the shard cannot do before the epoch has an outcome. */
bool move_has_moved(const struct move *move, uint32_t shard);

#endif
