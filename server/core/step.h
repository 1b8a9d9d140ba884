/* The shard's round machine of one job: it decides which contribution is received, when a contribution is
 * folded, when the shard is prepared, and by which message the round resolves. Pure: events go in, actions
 * come out; no clock, socket, file, thread or allocation. The caller (the daemon's loop, the simulator)
 * owns the memory, carries out the actions in order, and reports their results as events.
 *
 *            OPEN                all in           SUMMED             DECIDE APPLY
 *   IDLE ───────────► COLLECTING ──────► REDUCING ──────► REDUCED ─────────────► UPDATING
 *     ▲                   │ FENCE           │ FENCE       (prepared) │ DECIDE SKIP    │ UPDATED
 *     │   in flight ended ▼                 ▼                 │      │                │
 *     ├────────────── DRAINING ◄────────────┘                 │      │                │
 *     └───────────────────────────────────────────────────────┴──────┴────────────────┘
 *
 *  - A fence (new epoch) voids every round that is not prepared: its outcome cannot have been decided. A
 *    prepared round waits for RESOLVE, which carries the last outcome that any shard knows: if that outcome
 *    belongs to the prepared round, the shard does as all other shards did. If it belongs to an earlier
 *    round, the prepared round is void.
 *  - The sum of a chunk is a strict left fold in (micro-batch, rank) order. Each chunk has a cursor;
 *    landed contributions are folded when the cursor reaches them, several in one FOLD (see
 *    config.folds_wanted). The cursor stops only for members that hold the chunk (OPEN says which do),
 *    until these members contribute or report that they have nothing.
 *  - A member is in one micro-batch at a time: it starts m+1 only after MICRO_ACK of m, which is sent
 *    when every chunk's cursor is past (m, rank). So one table [member][chunk] detects duplicates.
 *  - With config.forwards this is the machine of a relay instead: the sums of its members, which share a
 *    host, are one contribution of each micro-batch to the shard that owns the chunks. When all members are
 *    past (chunk, micro-batch), and at least one of them contributed, the sum is a FORWARD; the next FOLD
 *    of the chunk is `first` again. The chunks of micro-batch m+1 wait for FORWARD_END of m, which follows
 *    when one member has finished m, and every chunk is past it; a member that holds nothing is at most one
 *    micro-batch ahead. After FORWARD_COMMIT the machine is in REDUCING; the next OPEN means that the round
 *    was resolved, a FENCE that it may be void. The machine gets neither READY nor DECIDE, holds no
 *    version, and its ANSWERs carry no information.
 *  - A shard that was added to a job later holds nothing of it: it is JOINING until it hears of the first
 *    outcome, and accepts that outcome, whichever it is.
 *  - When a layout brings a shard other chunks, it continues as another machine (step_init_from).
 *    LACKS_STATE reports that some state has yet to arrive at the shard, WHOLE that all state has arrived.
 *    Until WHOLE the shard is not REDUCED, so nothing is decided, and no update runs on missing state.
 *  - Every CHUNK gets exactly one of RECEIVE and DISCARD with its tag; every contribution is answered to
 *    its worker by one ACK or REFUSE (more after a resend), unless the connection was lost meanwhile.
 *  - Messages of one member may overtake each other and arrive twice; messages of the coordinator arrive
 *    in order, once.
 *
 * Members are identified by their session's number (never reused); a slot is member index × window + k. */
#ifndef CAIRN_CORE_STEP_H
#define CAIRN_CORE_STEP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "proto/base/exact.h"
#include "proto/base/status.h"
#include "server/core/decision.h"

#define CAIRN_STEP_FOLD_MAX 16         /* contributions in one FOLD */
#define CAIRN_STEP_NO_CHUNK UINT32_MAX /* in REFUSE: it answers a MICRO_END or COMMIT */
/* Bytes of a member's row in struct step_event's `holds`. */
#define CAIRN_STEP_HOLDS_BYTES(chunk_count) (((size_t)(chunk_count) + 7) / 8)

/* The numbers are sent on the wire (control.proto, Answer.phase). */
enum step_phase {
    CAIRN_STEP_IDLE = 0,
    CAIRN_STEP_COLLECTING = 1,
    CAIRN_STEP_REDUCING = 2, /* all contributions have arrived; the caller computes the sums */
    CAIRN_STEP_REDUCED = 3,  /* prepared: only the coordinator's message resolves it */
    CAIRN_STEP_UPDATING = 4,
    CAIRN_STEP_DRAINING = 5, /* void; receives, folds or sums in flight must end first */
    CAIRN_STEP_JOINING = 6   /* it has heard of no outcome yet */
};

struct step_config {
    uint32_t chunk_count; /* of the job on this shard; 0 is allowed */
    /* Slots of each member, 1 to 1024, in this order: slots with memory, at least one; `small` slots with
     * less memory, for small chunks, which take no others; and `in_place` slots without memory, for chunks
     * that are read in place. */
    uint32_t window, small, in_place;
    uint32_t member_max; /* contributors in a round, at least 1 */
    size_t payload_bytes_max;
    /* The number of FOLDs under way that keeps the caller busy. While there are that many, a landed
     * contribution waits until all contributions to its chunk and micro-batch have landed, and is folded
     * with them in one pass through memory. 0: nothing waits. The bits are the same. */
    uint32_t folds_wanted;
    bool forwards; /* for a relay */
    bool joins;    /* it begins in JOINING, whatever version and decision it is given */
};

/* The numbers that a shard reports of its sums. */
struct step_sums {
    struct exact sum_squares;
    uint64_t nonfinite; /* elements that are NaN or infinite */
    uint64_t weight;    /* of all members; the same on every shard. The core fills it in */
};

enum step_event_kind {
    /* from the coordinator, in order; an event of an older epoch than the last FENCE's is ignored. A FENCE
     * with an older epoch or with the last one is answered with the last epoch, because the store of its
     * coordinator is an older copy */
    CAIRN_STEP_READY, /* version: the initial state is complete; only before the first OPEN */
    CAIRN_STEP_FENCE, /* epoch → ANSWER */
    /* epoch, decision: the last outcome that any shard knows; round: the highest so far */
    CAIRN_STEP_RESOLVE,
    CAIRN_STEP_OPEN,   /* epoch, round, version, members sorted by rank, holds → GRANT to each */
    CAIRN_STEP_DECIDE, /* epoch, decision of this round: APPLY, SKIP or WRITE */
    /* from workers, over the fabric; the connection has proved who `member` is */
    /* member, epoch, round, micro, chunk, request, tag, is_small, in_place, is_readable: its header
     * arrived */
    CAIRN_STEP_CHUNK,
    CAIRN_STEP_MICRO_END, /* member, epoch, round, micro, sent, absent: chunks; their sum is chunk_count.
                           * Chunks that the member does not hold count as absent */
    CAIRN_STEP_COMMIT, /* member, epoch, round, micro = the last one, weight */
    CAIRN_STEP_PEER_UP, /* member: (re)connected; → GRANT, when no earlier receive of it is in flight */
    CAIRN_STEP_PEER_DOWN, /* member: its RECEIVEs in flight may end by LANDED not OK */
    /* the end of work that an action began */
    /* slot, status: OK, CAIRN_ERR_CHECKSUM (answered), or another (connection lost) */
    CAIRN_STEP_LANDED,
    CAIRN_STEP_FOLDED,  /* chunk */
    CAIRN_STEP_SUMMED,  /* sums (except the weight) */
    CAIRN_STEP_UPDATED, /* the version is published: readable */
    /* master and moments of some chunks have yet to arrive; sent before the shard is REDUCED */
    CAIRN_STEP_LACKS_STATE,
    CAIRN_STEP_WHOLE, /* all state has arrived, at the published version; may be repeated */
    /* A FENCE that takes a layout back has arrived: an open round is void at once, so that the machine can
     * continue as another one, which then gets the FENCE. A prepared round is void too: it cannot have been
     * decided. */
    CAIRN_STEP_GIVE_UP,
};

struct step_event {
    enum step_event_kind kind;
    uint64_t epoch, round;
    uint64_t member;
    uint32_t micro, chunk, slot;
    uint32_t sent, absent;
    uint64_t weight;
    uint64_t request; /* the worker's number for a chunk; echoed in its ACK or REFUSE */
    uint64_t tag;     /* the caller's name for the message whose payload waits */
    /* for a chunk: the chunk fits into a small slot; the same each time the chunk is sent */
    bool is_small;
    /* in_place: the sender counts the chunk among those that are read in place; is_readable: it can be read
     * in place. They may differ when the chunk is sent again by another path. */
    bool in_place, is_readable;
    cairn_status status;
    struct cairn_version version;
    /* borrowed for the call */
    const uint64_t *members; /* [member_count] sorted by rank, none twice */
    uint32_t member_count;
    /* [member_count][CAIRN_STEP_HOLDS_BYTES(chunk_count)] bit c % 8 of byte c / 8 is set: the member may
     * contribute to chunk c in this round. NULL: every member may contribute to all. */
    const uint8_t *holds;
    const struct decision *decision;
    const struct step_sums *sums;
};

enum step_action_kind {
    /* to the worker `member` (the caller drops them if it is not connected) */
    CAIRN_STEP_GRANT, /* epoch, round, window, small, in_place: push in this round, at most window chunks at
                       * a time; small chunks, and chunks read in place, have their own limits if these are
                       * not 0, and do not count in the window. The caller adds the number of the endpoint
                       * that it uses: if it is higher than before, the worker resends all unanswered */
    CAIRN_STEP_ACK, /* epoch, round, micro, chunk, request: folded; buffer and credit are free again */
    CAIRN_STEP_REFUSE,    /* the same, and status; request and chunk mean nothing for NO_CHUNK:
                           *   STALE      of a void, finished or older round
                           *   FENCED     not a contributor of this round
                           *   CHECKSUM   send it again
                           *   BUSY       no slot is free: send it again after the next ACK; or the chunk
                           *              cannot be read where it lies: send it again as one that is not
                           *              read in place
                           *   MALFORMED  no such chunk, or not one that the member holds
                           *   PROTOCOL   a future round or micro-batch, a count that does not add up, ...
                           *   */
    CAIRN_STEP_MICRO_ACK, /* epoch, round, micro: the next micro-batch may start */
    /* work for the caller; it owns the slots until the event that ends the work */
    CAIRN_STEP_RECEIVE, /* member, tag, slot, chunk: read the payload into the slot → LANDED */
    CAIRN_STEP_DISCARD, /* tag: the payload is not wanted */
    CAIRN_STEP_FOLD, /* chunk, slots[count] in this order, first: copy slots[0], likely_last → FOLDED */
    CAIRN_STEP_ZERO, /* chunk: nobody contributed; its sum is +0. Done before the next REDUCE */
    /* for a relay: the caller passes these on in this order, and resends them until the owner folded all */
    CAIRN_STEP_FORWARD, /* chunk, micro: its sum is final; the next FOLD of the chunk begins another */
    CAIRN_STEP_FORWARD_END, /* micro, count: its FORWARDs; the other chunks have no contribution */
    CAIRN_STEP_FORWARD_COMMIT, /* micro = the last one, weight: of all members */
    CAIRN_STEP_REDUCE,         /* every chunk's sum is final: add up → SUMMED */
    CAIRN_STEP_UPDATE, /* decision: APPLY, all scalars in the payload; or WRITE → UPDATED */
    /* to the coordinator */
    CAIRN_STEP_REDUCED_REPORT,   /* epoch, round, sums */
    CAIRN_STEP_PUBLISHED_REPORT, /* epoch, round, version */
    CAIRN_STEP_ANSWER, /* epoch, phase, round = the prepared one or 0, version, decision = the last; or
                        * refused, epoch = the last one */
    /* the coordinator broke the protocol: stop this job here rather than publish a wrong parameter */
    CAIRN_STEP_FAULT, /* why */
};

struct step_action {
    enum step_action_kind kind;
    uint64_t epoch, round;
    uint64_t member;
    uint32_t micro, chunk, slot;
    uint32_t window, small, in_place;
    uint64_t request, tag;
    cairn_status status;
    uint32_t slots[CAIRN_STEP_FOLD_MAX];
    uint32_t count;
    bool first;
    bool refused;
    /* No FOLD of this chunk follows if the round has as many micro-batches as the round before. So the sums
     * may be computed during this FOLD: they are valid unless another FOLD follows after all. */
    bool likely_last;
    uint64_t weight;
    enum step_phase phase;
    struct cairn_version version;
    struct step_sums sums;
    /* borrowed: owned by the core, valid (and its payload) until the next DECIDE or RESOLVE */
    const struct decision *decision;
    const char *why; /* static */
};

/* The core appends from `count` on, and asserts that there is room. */
struct step_actions {
    struct step_action *list; /* [capacity] */
    size_t count, capacity;
};
/* The most actions that one event produces. */
size_t step_actions_max(const struct step_config *config);

struct step_machine;

/* The bytes of memory for a core with this configuration; 0 if the configuration is not valid, or
 * overflows. */
size_t step_bytes(const struct step_config *config);
/* Makes a core in `memory` (step_bytes, aligned as by malloc; borrowed until it is dropped; there is
 * nothing to release). `last`: NULL in a fresh job; in a restored one the decision of the snapshot, which
 * carries the job's state: kept with kind NONE and round 0. The core begins IDLE, at epoch 0. */
struct step_machine *step_init(void *memory, const struct step_config *config,
                               struct cairn_version version, const struct decision *last);

/* Continues the machine `before` in `memory` (other memory) with another configuration: the new machine has
 * the epoch, the fence, the version and the last decision; no round is open in it, and it lacks no state.
 * For a FENCE that brings another layout: pass it to `before`, which voids what is open, hold the ANSWER
 * back until nothing is in flight, and then call this. `before` must then be IDLE or JOINING; until then it
 * may be DRAINING although no round is open in the job. (For a layout that takes one back, it may be
 * REDUCED: that round is given up.) `before` is not changed, and may be dropped. */
struct step_machine *step_init_from(void *memory, const struct step_config *config,
                                    const struct step_machine *before);

/* Takes one event. Events from other processes are checked; a caller that breaks its own promises (LANDED
 * for a slot that was not receiving, ...) trips an assert. */
void step_on_event(struct step_machine *step, const struct step_event *event,
                   struct step_actions *actions);

/* ---- questions ---- */
enum step_phase step_phase_of(const struct step_machine *step);
uint64_t step_epoch(const struct step_machine *step);
uint64_t step_round_of(const struct step_machine *step); /* of the phase; 0 = none yet, or void */
/* The highest round that was opened on this shard. */
uint64_t step_round_seen(const struct step_machine *step);
struct cairn_version step_version(const struct step_machine *step); /* the published one */
const struct decision *step_last(const struct step_machine *step);
uint32_t step_slots_used(const struct step_machine *step);

/* A contributor for which COLLECTING waits. */
struct step_waiting {
    uint64_t member;
    uint32_t micro;        /* the micro-batch it is in */
    uint32_t arrived;      /* chunks of the micro-batch that have arrived */
    bool connected, ended; /* ended: the micro-batch's end has arrived */
    /* All that the member can send now has arrived, and it waits for other members: its slots are full, or
     * its micro-batch is complete. */
    bool waits;
};
/* Fills the first `out_max` contributors that are not done, by rank; returns the number of all that are not
 * done. */
size_t step_waiting(const struct step_machine *step, struct step_waiting *out, size_t out_max);
/* For a relay: true if a member may still contribute to the current micro-batch, and has a slot for it. If
 * it is false while COLLECTING, only a fold of landed contributions can continue the round. */
bool step_may_receive(const struct step_machine *step);

#endif
