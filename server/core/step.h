/* The shard's round machine of one job: it decides which contribution is received, when a contribution is
 * folded, when the shard is prepared, and which message resolves the round. The machine is pure: events go
 * in, actions come out, and it uses no clock, socket, file, thread or allocation. The caller (the daemon's
 * loop, the simulator) owns the memory, carries out the actions in order, and reports their results as
 * events.
 *
 *            OPEN                all in           SUMMED             DECIDE APPLY
 *   IDLE ───────────► COLLECTING ──────► REDUCING ──────► REDUCED ─────────────► UPDATING
 *     ▲                   │ FENCE           │ FENCE       (prepared) │ DECIDE SKIP    │ UPDATED
 *     │   in flight ended ▼                 ▼                 │      │                │
 *     ├────────────── DRAINING ◄────────────┘                 │      │                │
 *     └───────────────────────────────────────────────────────┴──────┴────────────────┘
 *
 *  - A fence (new epoch) voids every round that is not prepared, because the outcome of such a round cannot
 *    have been decided. A prepared round waits for RESOLVE, which carries the last outcome that any shard
 *    knows. If that outcome belongs to the prepared round, the shard carries the outcome out, as all other
 *    shards do. If the outcome belongs to an earlier round, the prepared round is void.
 *  - The sum of a chunk is a strict left fold in (micro-batch, rank) order. Each chunk has a cursor. Landed
 *    contributions are folded when the cursor reaches them, and one FOLD can take several (see
 *    config.folds_wanted). The cursor stops at each member that holds the chunk, until the member
 *    contributes or reports that it has nothing. OPEN says which members hold which chunks.
 *  - A member is in one micro-batch at a time: it starts m+1 only after MICRO_ACK of m, which is sent
 *    when every chunk's cursor is past (m, rank). So one table, [member][chunk], is enough to detect
 *    duplicates.
 *  - With config.forwards the machine is the machine of a relay. The relay's members share a host. In each
 *    micro-batch the relay adds up what its members contribute to a chunk, and the sum is one contribution
 *    to the shard that owns the chunk. When all members are past (chunk, micro-batch), and at least one
 *    member contributed, the sum leaves as a FORWARD, and the next FOLD of the chunk is `first` again.
 *    FORWARD_END of micro-batch m follows when at least one member has finished m and every chunk is past
 *    m; the chunks of m+1 wait for this FORWARD_END. A member that holds nothing is at most one micro-batch
 *    ahead. After FORWARD_COMMIT the machine is in REDUCING. Then the next OPEN means that the round was
 *    resolved, and a FENCE means that the round may be void. A relay's machine gets neither READY nor
 *    DECIDE and holds no version, and its ANSWERs carry no information.
 *  - A shard that is added to a running job holds no state of the job. It is JOINING until it hears of an
 *    outcome, and accepts this first outcome whatever the outcome is.
 *  - When a layout gives a shard other chunks, the shard continues with a new machine (step_init_from).
 *    LACKS_STATE reports that some state has yet to arrive at the shard; WHOLE reports that all state has
 *    arrived. Until WHOLE the shard is not REDUCED. So nothing is decided, and no update runs on missing
 *    state.
 *  - For every CHUNK there is exactly one action with its tag, either RECEIVE or DISCARD. For every
 *    contribution the worker gets one ACK or REFUSE, unless the connection was lost meanwhile; after a
 *    resend the worker may get more.
 *  - Messages of one member may overtake each other, and may arrive twice. Messages of the coordinator
 *    arrive once and in order.
 *
 * Members are identified by their session's number, which is never reused. The number of a slot is member
 * index × window + k, with k < window. */
#ifndef CAIRN_CORE_STEP_H
#define CAIRN_CORE_STEP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "proto/base/exact.h"
#include "proto/base/status.h"
#include "server/core/decision.h"

#define CAIRN_STEP_FOLD_MAX 16         /* the most contributions in one FOLD */
#define CAIRN_STEP_NO_CHUNK UINT32_MAX /* in REFUSE: the action answers a MICRO_END or COMMIT */
/* Bytes of a member's row in struct step_event's `holds`. */
#define CAIRN_STEP_HOLDS_BYTES(chunk_count) (((size_t)(chunk_count) + 7) / 8)

/* The numbers are sent on the wire (control.proto, Answer.phase). */
enum step_phase {
    CAIRN_STEP_IDLE = 0,
    CAIRN_STEP_COLLECTING = 1,
    CAIRN_STEP_REDUCING = 2, /* all contributions have arrived; the caller computes the sums */
    CAIRN_STEP_REDUCED = 3,  /* prepared: only a message of the coordinator resolves the round */
    CAIRN_STEP_UPDATING = 4,
    /* the round is void; receives, folds or sums in flight must end first */
    CAIRN_STEP_DRAINING = 5,
    CAIRN_STEP_JOINING = 6 /* the shard has heard of no outcome yet */
};

struct step_config {
    uint32_t chunk_count; /* chunks of the job on this shard; 0 is allowed */
    /* window: the number of slots of each member, 1 to 1024. The first slots, at least one, have memory for
     * any chunk. The next `small` slots have less memory; if there are any, small chunks take only these.
     * The last `in_place` slots have no memory: they are for chunks that are read in place. */
    uint32_t window, small, in_place;
    uint32_t member_max; /* the most contributors in a round, at least 1 */
    size_t payload_bytes_max;
    /* The number of FOLDs under way that keeps the caller busy. While so many FOLDs are under way, a landed
     * contribution waits until all contributions to its chunk and micro-batch have landed. Then one pass
     * through memory folds them all. 0: nothing waits. The sums have the same bits in either case. */
    uint32_t folds_wanted;
    bool forwards; /* the machine is a relay's */
    bool joins;    /* the machine begins in JOINING, whatever version and decision step_init gets */
};

/* The numbers that a shard reports of its sums. */
struct step_sums {
    struct exact sum_squares;
    uint64_t nonfinite; /* elements that are NaN or infinite */
    /* the sum of the members' weights, the same on every shard. The core sets this field */
    uint64_t weight;
};

enum step_event_kind {
    /* from the coordinator, in order. An event of an epoch before the last FENCE's is ignored. A FENCE
     * whose epoch is not newer than the last FENCE's is refused, and the answer names the last FENCE's
     * epoch: the store of the coordinator that sent it is an older copy. (A relay accepts its last epoch
     * again.) */
    CAIRN_STEP_READY, /* version: the initial state is complete; only before the first OPEN */
    CAIRN_STEP_FENCE, /* epoch → ANSWER */
    /* epoch, decision: the last outcome that any shard knows; round: no round with a higher number has
     * begun */
    CAIRN_STEP_RESOLVE,
    CAIRN_STEP_OPEN,   /* epoch, round, version, members sorted by rank, holds → GRANT to each */
    CAIRN_STEP_DECIDE, /* epoch, decision of this round: APPLY, SKIP or WRITE */
    /* from workers, over the fabric; the connection proves who `member` is */
    /* member, epoch, round, micro, chunk, request, tag, is_small, in_place, is_readable: the chunk's header
     * arrived */
    CAIRN_STEP_CHUNK,
    CAIRN_STEP_MICRO_END, /* member, epoch, round, micro; sent and absent: the numbers of chunks that the
                           * member sent and did not send. sent + absent is chunk_count: chunks that the
                           * member does not hold count as absent */
    CAIRN_STEP_COMMIT, /* member, epoch, round, micro = the last micro-batch, weight */
    /* member: the member has connected, perhaps again → GRANT, as soon as no earlier RECEIVE of the
     * member is in flight */
    CAIRN_STEP_PEER_UP,
    /* member: its connection was lost; its RECEIVEs in flight may end by a LANDED that is not OK */
    CAIRN_STEP_PEER_DOWN,
    /* the end of work that an action began */
    /* slot, status: OK; CAIRN_ERR_CHECKSUM: the worker gets a REFUSE; any other status: the connection was
     * lost, and nothing is answered */
    CAIRN_STEP_LANDED,
    CAIRN_STEP_FOLDED,  /* chunk */
    CAIRN_STEP_SUMMED,  /* sums, without the weight */
    CAIRN_STEP_UPDATED, /* the version is published: members can read it */
    /* master and moments of some chunks have yet to arrive; sent before the shard is REDUCED */
    CAIRN_STEP_LACKS_STATE,
    CAIRN_STEP_WHOLE, /* all state has arrived, at the published version; may be repeated */
    /* A FENCE that takes a layout back has arrived. An open round is void at once, so that another machine
     * can continue this one (step_init_from) and get the FENCE. A prepared round is void, too: in this case
     * it cannot have been decided. */
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
    /* CHUNK: the chunk fits into a small slot. The value is the same each time the chunk is sent */
    bool is_small;
    /* CHUNK. in_place: the sender counts the chunk among the chunks that are read in place. is_readable:
     * this shard can read the chunk in place. The two may differ when the chunk is sent again by another
     * path. */
    bool in_place, is_readable;
    cairn_status status;
    struct cairn_version version;
    /* borrowed for the call */
    const uint64_t *members; /* [member_count] sorted by rank, none twice */
    uint32_t member_count;
    /* [member_count][CAIRN_STEP_HOLDS_BYTES(chunk_count)] In a member's row, bit c % 8 of byte c / 8 is set
     * if the member may contribute to chunk c in this round. NULL: every member may contribute to every
     * chunk. */
    const uint8_t *holds;
    const struct decision *decision;
    const struct step_sums *sums;
};

enum step_action_kind {
    /* to the worker `member`; if the worker is not connected, the caller drops the action */
    CAIRN_STEP_GRANT, /* epoch, round, window, small, in_place: the worker may push in this round, at most
                       * `window` chunks at a time. If `small` is not 0, it is the limit for small chunks,
                       * which then do not count in the window; likewise `in_place` for chunks that are read
                       * in place. The caller adds the number of the endpoint that it uses: if this number
                       * is higher than before, the worker sends again whatever was not answered */
    /* epoch, round, micro, chunk, request: the chunk is folded; the worker's buffer and credit are free
     * again */
    CAIRN_STEP_ACK,
    CAIRN_STEP_REFUSE, /* the fields of ACK, and status; if chunk is NO_CHUNK, `request` means nothing.
                           *   STALE      the message belongs to a void, finished or older round
                           *   FENCED     the member does not contribute to this round
                           *   CHECKSUM   send the chunk again
                           *   BUSY       no slot is free: send the chunk again after the next ACK; or the
                           *              chunk cannot be read where it lies: send it again, as a chunk
                           *              that is not read in place
                           *   MALFORMED  no such chunk, or the member does not hold it
                           *   INVALID    the sum of the weights is too large
                           *   PROTOCOL   a future round or micro-batch, a count that does not add up, ... */
    CAIRN_STEP_MICRO_ACK, /* epoch, round, micro: the next micro-batch may start */
    /* work for the caller, who owns the slots until the event that ends the work */
    CAIRN_STEP_RECEIVE, /* member, tag, slot, chunk: read the payload into the slot → LANDED */
    CAIRN_STEP_DISCARD, /* tag: the payload is not wanted */
    /* chunk, slots[count] in this order, first: copy slots[0] instead of adding it, likely_last → FOLDED */
    CAIRN_STEP_FOLD,
    /* chunk: nobody contributed, and the chunk's sum is +0. The caller sets the sum before the next
     * REDUCE */
    CAIRN_STEP_ZERO,
    /* for a relay: the caller passes the next three actions on in this order, and sends them again until
     * the owner of the chunks has folded everything */
    /* chunk, micro: the chunk's sum is final; the next FOLD of the chunk begins another sum */
    CAIRN_STEP_FORWARD,
    /* micro, count: the number of FORWARDs of this micro-batch; the other chunks have no contribution */
    CAIRN_STEP_FORWARD_END,
    CAIRN_STEP_FORWARD_COMMIT, /* micro = the last micro-batch; weight: the sum over all members */
    CAIRN_STEP_REDUCE,         /* every chunk's sum is final: add up → SUMMED */
    /* decision: an APPLY, with all scalars in its payload, or a WRITE → UPDATED */
    CAIRN_STEP_UPDATE,
    /* to the coordinator */
    CAIRN_STEP_REDUCED_REPORT,   /* epoch, round, sums */
    CAIRN_STEP_PUBLISHED_REPORT, /* epoch, round, version */
    CAIRN_STEP_ANSWER, /* epoch, phase, round = the prepared round or 0, version, decision = the last one.
                        * If `refused` is set, `epoch` is the last FENCE's epoch */
    /* the coordinator broke the protocol: the caller stops this job here rather than publish wrong
     * parameters */
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
    /* FOLD: if the round has as many micro-batches as the round before, no FOLD of this chunk follows. So
     * the caller may compute the chunk's sums during this FOLD; they are valid unless another FOLD follows
     * after all. */
    bool likely_last;
    uint64_t weight;
    enum step_phase phase;
    struct cairn_version version;
    struct step_sums sums;
    /* borrowed from the core: the decision and its payload are valid until the next DECIDE or RESOLVE */
    const struct decision *decision;
    const char *why; /* static */
};

/* The core appends actions at `count`, and asserts that there is room. */
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
/* Makes a core in `memory`, which has step_bytes bytes and is aligned as by malloc. The core borrows this
 * memory until the caller drops the core, and there is nothing to release. `last` is NULL in a fresh job.
 * In a restored job it is the decision of the snapshot, which carries the job's state; the core keeps it
 * with kind NONE and round 0. The core begins IDLE (JOINING with config.joins), at epoch 0. */
struct step_machine *step_init(void *memory, const struct step_config *config,
                               struct cairn_version version, const struct decision *last);

/* All that a machine with the configuration of `step` needs in order to continue it, if the process dies and
 * its memory does not. Nothing is kept of a round that is not prepared: its contributions would have to come
 * again. */
struct step_kept {
    enum step_phase phase; /* IDLE, REDUCED, UPDATING or JOINING */
    /* epoch: of the last FENCE; round: REDUCED: the prepared round, else 0; round_seen: the newest round that
     * began, in round_epoch */
    uint64_t epoch, round, round_seen, round_epoch;
    struct cairn_version version; /* UPDATING: before the update */
    struct decision last;         /* UPDATING: the decision that is being carried out. Borrowed */
};
struct step_kept step_keep(const struct step_machine *step);
/* Makes a machine in `memory` as step_init does, which continues the one that was kept. The caller has
 * carried out the decision of UPDATING to its end, so the machine is IDLE after it. It waits for a FENCE,
 * as a shard that was away does. The caller gives no READY. */
struct step_machine *step_init_kept(void *memory, const struct step_config *config,
                                    const struct step_kept *kept);

/* Makes a machine in `memory` that continues the machine `before` with another configuration; `memory` is
 * not the memory of `before`. The new machine takes over the epoch, the fence, the version and the last
 * decision. No round is open in it, and it lacks no state. When a FENCE brings another layout, the caller
 * passes the FENCE to `before`, which voids an open round, and holds the ANSWER back until nothing is in
 * flight. Then the caller calls this function, with `before` in IDLE or JOINING; meanwhile `before` may be
 * DRAINING although no round is open in the job. (If the layout takes another layout back, `before` may be
 * REDUCED: its round is given up.) The function does not change `before`, which may be dropped
 * afterwards. */
struct step_machine *step_init_from(void *memory, const struct step_config *config,
                                    const struct step_machine *before);

/* Takes one event. Events from other processes are checked. If the caller breaks its own promises (LANDED
 * for a slot that was not receiving, ...), an assert fails. */
void step_on_event(struct step_machine *step, const struct step_event *event,
                   struct step_actions *actions);

/* ---- questions ---- */
enum step_phase step_phase_of(const struct step_machine *step);
uint64_t step_epoch(const struct step_machine *step);
uint64_t step_round_of(const struct step_machine *step); /* 0 = none yet, or void */
/* The highest round that was opened on this shard. */
uint64_t step_round_seen(const struct step_machine *step);
struct cairn_version step_version(const struct step_machine *step); /* the published version */
const struct decision *step_last(const struct step_machine *step);
uint32_t step_slots_used(const struct step_machine *step);

/* A contributor for which COLLECTING waits. */
struct step_waiting {
    uint64_t member;
    uint32_t micro;        /* the member's current micro-batch */
    uint32_t arrived;      /* chunks of the micro-batch that have arrived */
    bool connected, ended; /* ended: the MICRO_END has arrived */
    /* All that the member can send now has arrived, and the member waits for other members. */
    bool waits;
};
/* Writes to `out` the first `out_max` contributors, by rank, that are not done. Returns the number of all
 * contributors that are not done; 0 unless COLLECTING. */
size_t step_waiting(const struct step_machine *step, struct step_waiting *out, size_t out_max);
/* For a relay: true if some member may still contribute to the current micro-batch and has a free slot. If
 * the result is false while COLLECTING, only a fold of landed contributions can continue the round. */
bool step_may_receive(const struct step_machine *step);

#endif
