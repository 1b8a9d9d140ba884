/* The shard's round machine of one job: which contribution is received, when it is folded, when the
 * shard is prepared, and by whose word it resolves. Pure: events go in, actions come out;
 * no clock, socket, file, thread or allocation. The caller (the daemon's loop, the simulator) owns the
 * memory, does what the actions say, in order, and reports what became of it as events.
 *
 *            OPEN                all in           SUMMED             DECIDE APPLY
 *   IDLE ───────────► COLLECTING ──────► REDUCING ──────► REDUCED ─────────────► UPDATING
 *     ▲                   │ FENCE           │ FENCE       (prepared) │ DECIDE SKIP    │ UPDATED
 *     │   in flight ended ▼                 ▼                 │      │                │
 *     ├────────────── DRAINING ◄────────────┘                 │      │                │
 *     └───────────────────────────────────────────────────────┴──────┴────────────────┘
 *
 *  - A fence (new epoch) makes every round void that is not prepared: its outcome cannot have been
 *    decided. A prepared one waits for RESOLVE, which carries the last outcome anyone knows: that
 *    round's, and the shard does as everyone did; or an earlier one's, and the round is void.
 *  - The sum of a chunk is a strict left fold in (micro-batch, rank) order. Each chunk has a cursor;
 *    what has landed is folded when the cursor reaches it, several in one FOLD (see config.folds_wanted).
 *    It stops only for members that hold the chunk (OPEN says which do), until they contribute or say
 *    that they have nothing.
 *  - A member is in one micro-batch at a time: it starts m+1 only after MICRO_ACK of m, which is given
 *    when every chunk's cursor is past (m, rank). So one table [member][chunk] detects duplicates.
 *  - With config.forwards it is the machine of a relay instead: the sums of its members, who share a host,
 *    are one contribution of each micro-batch to the shard that owns the chunks. When all are past
 *    (chunk, micro-batch), and one of them had something, it is a FORWARD; the next FOLD of the chunk
 *    is `first` again. The chunks of micro-batch m+1 wait for FORWARD_END of m, which comes when one member
 *    is done with m, and every chunk past it; who holds nothing is at most one ahead. After FORWARD_COMMIT it
 *    stands in REDUCING; the next OPEN says that the round was resolved, a FENCE that it may be void. It
 *    is told neither READY nor DECIDE, holds no version, and its ANSWERs say nothing.
 *  - A shard that was made for a job later holds nothing of it: it is JOINING until it hears of the first
 *    outcome, and takes that, whichever it is.
 *  - When a layout brings a shard other chunks it goes on as another machine (step_init_from). State
 *    that is still on its way to it is what LACKS_STATE and WHOLE tell of: until then it is not REDUCED, so
 *    nothing is decided, and no update is made of what is not there.
 *  - Every CHUNK gets exactly one of RECEIVE and DISCARD with its tag; every contribution is answered to
 *    its worker by one ACK or REFUSE (more after a resend), unless the connection was lost meanwhile.
 *  - Messages of one member may overtake each other and come twice; those of the coordinator come
 *    in order, once.
 *
 * Members are named by their session's number (never reused); a slot is member index × window + k. */
#ifndef CAIRN_CORE_STEP_H
#define CAIRN_CORE_STEP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "proto/base/exact.h"
#include "proto/base/status.h"
#include "server/core/decision.h"

#define CAIRN_STEP_FOLD_MAX 16         /* contributions in one FOLD */
#define CAIRN_STEP_NO_CHUNK UINT32_MAX /* in REFUSE: of a MICRO_END or COMMIT */
/* Bytes of a member's row in struct step_event's `holds`. */
#define CAIRN_STEP_HOLDS_BYTES(chunk_count) (((size_t)(chunk_count) + 7) / 8)

/* Numbers go over the wire (control.proto, Answer.phase). */
enum step_phase {
    CAIRN_STEP_IDLE = 0,
    CAIRN_STEP_COLLECTING = 1,
    CAIRN_STEP_REDUCING = 2, /* everything is in; the world computes the sums */
    CAIRN_STEP_REDUCED = 3,  /* prepared: resolves only by the coordinator's word */
    CAIRN_STEP_UPDATING = 4,
    CAIRN_STEP_DRAINING = 5, /* void; receives, folds or sums in flight must end first */
    CAIRN_STEP_JOINING = 6   /* it has heard of no outcome yet */
};

struct step_config {
    uint32_t chunk_count; /* of the job on this shard; 0 is allowed */
    /* Slots of each member, 1 to 1024, in this order: those that have memory, of which there is one at
     * least; `small` with less memory, for small chunks, which take no others; and `in_place` without any,
     * for what is read where it lies. */
    uint32_t window, small, in_place;
    uint32_t member_max; /* contributors in a round, at least 1 */
    size_t payload_bytes_max;
    /* How many FOLDs under way keep the world at work. While there are so many, what has landed waits until
     * all contributions to its chunk and micro-batch have landed, and goes through memory once with them.
     * 0: nothing waits. The bits are the same. */
    uint32_t folds_wanted;
    bool forwards; /* of a relay */
    bool joins;    /* it begins JOINING, whatever version and decision it is given */
};

/* The numbers that a shard reports of its sums. */
struct step_sums {
    struct exact sum_squares;
    uint64_t nonfinite; /* elements that are NaN or infinite */
    uint64_t weight;    /* of all members; the same on every shard. Filled in by the core */
};

enum step_event_kind {
    /* from the coordinator, in order; an older epoch than the last FENCE's is ignored, and a FENCE of it or
     * of the last one is answered by what was seen: it is of a coordinator whose store is an older copy */
    CAIRN_STEP_READY, /* version: the initial state is complete; only before the first OPEN */
    CAIRN_STEP_FENCE, /* epoch → ANSWER */
    CAIRN_STEP_RESOLVE, /* epoch, decision: the last outcome anyone knows; round: the highest so far */
    CAIRN_STEP_OPEN,    /* epoch, round, version, members sorted by rank, holds → GRANT to each */
    CAIRN_STEP_DECIDE, /* epoch, decision of this round: APPLY, SKIP or WRITE */
    /* from workers, over the fabric; the connection has proved who `member` is */
    /* member, epoch, round, micro, chunk, request, tag, is_small, in_place, is_readable: its header came */
    CAIRN_STEP_CHUNK,
    CAIRN_STEP_MICRO_END, /* member, epoch, round, micro, sent, absent: chunks; their sum is chunk_count.
                           * Chunks that the member does not hold count as absent */
    CAIRN_STEP_COMMIT,  /* member, epoch, round, micro = the last one, weight */
    CAIRN_STEP_PEER_UP, /* member: (re)connected; → GRANT, when nothing of its past is in flight */
    CAIRN_STEP_PEER_DOWN, /* member: its RECEIVEs in flight may end by LANDED not OK */
    /* the end of what an action began */
    CAIRN_STEP_LANDED, /* slot, status: OK, CAIRN_ERR_CHECKSUM (answered), or else (connection lost) */
    CAIRN_STEP_FOLDED,  /* chunk */
    CAIRN_STEP_SUMMED,  /* sums (but for the weight) */
    CAIRN_STEP_UPDATED, /* the version is published: readable */
    /* master and moments of some chunks are on their way here; before it is REDUCED */
    CAIRN_STEP_LACKS_STATE,
    CAIRN_STEP_WHOLE, /* they are here, at the published version; may be said again */
    /* A FENCE that takes a layout back is here: what is open is void at once, so that the machine can go on
     * as another one, which is told of the FENCE. So is what is prepared: it cannot have been decided. */
    CAIRN_STEP_GIVE_UP,
};

struct step_event {
    enum step_event_kind kind;
    uint64_t epoch, round;
    uint64_t member;
    uint32_t micro, chunk, slot;
    uint32_t sent, absent;
    uint64_t weight;
    uint64_t request; /* the worker's cookie of a chunk; echoed in its ACK or REFUSE */
    uint64_t tag;     /* the world's name for the message whose payload waits */
    bool is_small;    /* of a chunk: it fits into a small slot; so whenever it comes */
    /* in_place: the sender of a chunk counts it among those that are read where they lie;
     * is_readable: it can be read so. Both may differ when the chunk comes again by another way. */
    bool in_place, is_readable;
    cairn_status status;
    struct cairn_version version;
    /* borrowed for the call */
    const uint64_t *members; /* [member_count] sorted by rank, none twice */
    uint32_t member_count;
    /* [member_count][CAIRN_STEP_HOLDS_BYTES(chunk_count)] bit c % 8 of byte c / 8: the member may
     * contribute to chunk c in this round. NULL: each to all. */
    const uint8_t *holds;
    const struct decision *decision;
    const struct step_sums *sums;
};

enum step_action_kind {
    /* to the worker `member` (dropped by the world when it is not connected) */
    CAIRN_STEP_GRANT, /* epoch, round, window, small, in_place: push in this round, so many chunks at a
                       * time, and small ones, and those read in place, each if that is not 0, not counted
                       * among them. The world adds the number of the endpoint that it goes by: at a higher
                       * one than before, the worker resends all unanswered */
    CAIRN_STEP_ACK,    /* epoch, round, micro, chunk, request: folded; buffer and credit are back */
    CAIRN_STEP_REFUSE, /* the same, and status; request and chunk mean nothing for NO_CHUNK:
                           *   STALE      of a void, finished or older round
                           *   FENCED     not a contributor of this round
                           *   CHECKSUM   send it again
                           *   BUSY       no slot is free: send it again after the next ACK; or it cannot
                           *              be read where it lies: send it as one that is not
                           *   MALFORMED  no such chunk, or not one that the member holds
                           *   PROTOCOL   a future round or micro-batch, a count that does not add up, ...
                           *   */
    CAIRN_STEP_MICRO_ACK, /* epoch, round, micro: the next micro-batch may start */
    /* work of the world; slots belong to it until the event that ends it */
    CAIRN_STEP_RECEIVE, /* member, tag, slot, chunk: read the payload into the slot → LANDED */
    CAIRN_STEP_DISCARD, /* tag: the payload is not wanted */
    CAIRN_STEP_FOLD, /* chunk, slots[count] in this order, first: copy slots[0], likely_last → FOLDED */
    CAIRN_STEP_ZERO, /* chunk: nobody contributed; its sum is +0. Done before the next REDUCE */
    /* of a relay: the world sends on what it has, in this order, until the owner has folded it */
    CAIRN_STEP_FORWARD,     /* chunk, micro: its sum is final; the next FOLD of it begins another */
    CAIRN_STEP_FORWARD_END, /* micro, count: FORWARDs of it; the other chunks have no contribution */
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
    /* No FOLD of this chunk follows if the round has as many micro-batches as the one before. So the sums may
     * be made on the way: they are valid unless another FOLD follows after all. */
    bool likely_last;
    uint64_t weight;
    enum step_phase phase;
    struct cairn_version version;
    struct step_sums sums;
    /* borrowed: the core's, valid (and its payload) until the next DECIDE or RESOLVE */
    const struct decision *decision;
    const char *why; /* static */
};

/* Filled from count on; the core asserts that it fits. */
struct step_actions {
    struct step_action *list; /* [capacity] */
    size_t count, capacity;
};
/* No event gives more actions than this. */
size_t step_actions_max(const struct step_config *config);

struct step_machine;

/* Bytes of memory for a core of this configuration; 0 if it is not valid or overflows. */
size_t step_bytes(const struct step_config *config);
/* Makes a core in `memory` (step_bytes, aligned as by malloc; borrowed until it is dropped; there
 * is nothing to release). `last`: NULL in a fresh job; in a restored one the decision of the
 * snapshot, which carries the job's state: kept with kind NONE and round 0. IDLE, epoch 0. */
struct step_machine *step_init(void *memory, const struct step_config *config,
                               struct cairn_version version, const struct decision *last);

/* The machine `before` goes on in `memory` (other memory) with another configuration: it knows the epoch,
 * the fence, the version and the last decision; no round is open in it, and it lacks no state. For a FENCE
 * that brings another layout: give it to `before`, which makes void what is open, keep the ANSWER back until
 * nothing is in flight, and go on. `before` is IDLE then, or JOINING; DRAINING it may be although no round is
 * open in the job. (By a layout that takes one back, it may be REDUCED: that round is given up.) It is not
 * changed, and may be dropped. */
struct step_machine *step_init_from(void *memory, const struct step_config *config,
                                    const struct step_machine *before);

/* One event. Events of strangers are judged; a world that breaks its own promises (LANDED of a
 * slot that was not receiving, ...) trips an assert. */
void step_on_event(struct step_machine *step, const struct step_event *event,
                   struct step_actions *actions);

/* ---- questions ---- */
enum step_phase step_phase_of(const struct step_machine *step);
uint64_t step_epoch(const struct step_machine *step);
uint64_t step_round_of(const struct step_machine *step); /* of the phase; 0 = none yet, or void */
/* The highest round that was opened here. */
uint64_t step_round_seen(const struct step_machine *step);
struct cairn_version step_version(const struct step_machine *step); /* the published one */
const struct decision *step_last(const struct step_machine *step);
uint32_t step_slots_used(const struct step_machine *step);

/* Whom COLLECTING waits for. */
struct step_waiting {
    uint64_t member;
    uint32_t micro;        /* the micro-batch it is in */
    uint32_t arrived;      /* chunks of it that are here */
    bool connected, ended; /* ended: the micro-batch's end is here */
    /* All that it can send now is here, and it waits for others: its slots are full, or its
     * micro-batch is complete. */
    bool waits;
};
/* Fills the first `out_max` contributors that are not done, by rank; returns how many there are. */
size_t step_waiting(const struct step_machine *step, struct step_waiting *out, size_t out_max);
/* For a relay: a member may still contribute to the micro-batch at hand, and has a slot for it. If
 * it is false while COLLECTING, the round can go on only by a fold of what is here. */
bool step_may_receive(const struct step_machine *step);

#endif
