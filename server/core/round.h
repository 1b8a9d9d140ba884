/* The coordinator's round machine of one job: members, epochs, rounds and the one decision of each (design
 * 3). Pure, as step.h: events go in, actions come out; the caller owns the memory. Actions to shards are
 * sent to every shard of the job, over its ordered control channel.
 *
 *            shards all up, PERSISTED        all answered            all PUBLISHED
 *   WAITING ───────────► FENCING ───────────► RESOLVING ───────────► STEADY ◄──────────┐
 *   (for shards, for     FENCE sent           RESOLVE sent            │ a worker asked, │ all
 *    the disk)                                                        ▼ and enough      │ PUBLISHED
 *                                                                    OPEN ───────────► DECIDED
 *                                                                        all REDUCED
 *
 *  - One path serves every change of epoch: a new incarnation, a shard that was away, a contributor that
 *    was lost before the decision or gave its round up, members that changed since the last round, used-up
 *    round numbers.
 *    Epoch+1 and a block of round numbers are made durable first. Then all shards are fenced, and answer
 *    with the last decision they know. The newest of these decisions is the outcome: all shards get it by
 *    RESOLVE, and any other open round is void. So no round needs a write to disk, and the next incarnation
 *    needs only the epoch and the reserved round numbers of this one.
 *  - A decision is final. If a worker is lost after it, the epoch changes before the next round.
 *  - A round's contributors are the workers attached when it opens, by rank. Joins never disturb it. If
 *    workers hold tiles of tensors, a gate guards the round: it needs exactly certain ranks.
 *  - With contributors_max only that many workers contribute, the first by rank. The others are surplus:
 *    they are told of the round, with a rank of at least its world, and may ask how it ends. Nobody waits
 *    for them.
 *  - Workers hear "committed" only when all shards have published.
 *  - If the trainer gives states, one state belongs to each version: the state given by the round's rank 0,
 *    without whose COMMIT nothing is decided. A skip and a write keep the state. The state travels in the
 *    payload, as the loss scale does.
 *  - The learning rate of a driven group travels likewise: the update uses the rate that rank 0 gave with
 *    its COMMIT.
 *  - The steps that tensors missed travel likewise (decision.h): a tensor misses a step if it is frozen, or
 *    if it is untouched and untouched tensors are left alone; its update uses its own count.
 *  - A skip leaves step and parameters unchanged, and counts permanently: step + skips is the number of the
 *    next batch. After skips_max consecutive skips that no loss scale could prevent, no round of steps
 *    opens, and workers that ask for one are refused, until there are other terms, a write or a restore.
 *
 *  - A write is a round of one contributor, which puts planes instead of gradients: it is opened, decided
 *    (WRITE: the next generation of the same step), voided and resolved as any other round. While a write
 *    is open no other worker has a round; a writer that is lost, or does not commit in time, has changed
 *    nothing.
 *
 *  - The layout belongs to the epoch, too: another layout takes effect by a change of epoch in STEADY, so
 *    no round is open then and all shards are at one version. The layout is made durable with the epoch,
 *    and the fence brings it to the shards. From then on the shards of that layout are awaited, and no
 *    others.
 *  - A layout may take back the previous layout: at the version at which the previous layout began, the
 *    shards of the new layout have all state that a lost shard should have received. The lost shard is not
 *    awaited, and nothing may have been decided since.
 *
 * Workers are identified by their session's number, which is never reused; a reconnect keeps it. */
#ifndef CAIRN_CORE_ROUND_H
#define CAIRN_CORE_ROUND_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "proto/base/text.h"
#include "proto/spec/scalars.h"
#include "proto/spec/spec.h"
#include "server/core/decision.h"
#include "server/core/step.h"

#define CAIRN_ROUND_BLOCK 4096 /* round numbers made durable with an epoch */

enum round_stage {
    CAIRN_ROUND_WAITING = 0, /* for shards that are not up, or for PERSISTED */
    CAIRN_ROUND_FENCING = 1,
    CAIRN_ROUND_RESOLVING = 2,
    CAIRN_ROUND_STEADY = 3,
    CAIRN_ROUND_OPEN = 4,
    CAIRN_ROUND_DECIDED = 5,
    CAIRN_ROUND_FAILED = 6 /* a shard lost its state, or shards disagree: restore a snapshot */
};

/* A tensor, as updates see it. */
struct round_tensor {
    uint64_t elems;
    uint32_t group; /* CAIRN_ROUND_UNTRAINED: in no group */
    bool frozen;    /* the tensor takes no gradient, whatever its group does */
};
#define CAIRN_ROUND_UNTRAINED UINT32_MAX

/* The terms of the update that an amendment may change, in the spec's order. The core borrows the terms
 * from when it receives them until round_terms_of returns other terms. */
struct round_terms {
    const struct group_hyper *groups; /* [group_count] */
    const struct schedule *schedules; /* [group_count], of their lr; NULL: all are constant */
    const bool *frozen;               /* [group_count], these take no gradient; NULL: none */
    /* [tensor_count]; group and elems never change */
    const struct round_tensor *tensors;
    bool any_frozen;   /* some tensor is frozen, by itself or with its group */
    double clip_norm;  /* 0 = no clipping */
    uint64_t revision; /* of the spec that contains them */
    /* 1 to member_max: a round opens with at least this many workers. The newest value takes effect at
     * once. */
    uint32_t workers_min;
    /* The consequences of losing a worker. The newest values take effect at once, too. */
    cairn_worker_loss on_worker_loss;
    uint64_t worker_loss_wait_ms;
};

/* How the loss scale changes; every payload contains its value. */
struct round_scaling {
    double start; /* at the job's beginning; 1 = none */
    /* A skip halves it, down to min; growth_rounds consecutive applied rounds double it, up to max. */
    bool dynamic;
    double min, max;
    uint32_t growth_rounds;
};

struct round_config {
    uint32_t shard_count; /* of the layout in force, including its holes; at least 1 */
    uint32_t shard_max;   /* of any layout; 0: shard_count */
    /* [(shard_count + 7) / 8] bit s % 8 of byte s / 8 is set: a hole, no such shard. NULL: none. Borrowed
     * for the call. */
    const uint8_t *gone;
    uint32_t member_max;       /* attached workers at a time, at least 1 */
    uint32_t contributors_max; /* to a round of steps; 0: all that are attached */
    /* When a round has been open for this long, the shards are asked for which workers they wait, and these
     * workers are dropped; 0 = never. */
    uint64_t step_deadline_ms;
    struct round_terms terms;
    uint32_t group_count;
    /* 0: the core knows no tensors, and each tensor has the job's count of updates. */
    uint32_t tensor_count;
    /* True: a tensor to which nobody contributed is left alone, and misses the step. False: the gradient of
     * such a tensor is 0. */
    bool leaves_untouched;
    /* Bytes of client state, at most CAIRN_SPEC_CLIENT_STATE_MAX; 0: the trainer gives none. */
    uint32_t client_state_max;
    struct round_scaling scaling;
    /* True: if sums are not finite, the workers are told so (and the round is a skip) */
    bool fail_nonfinite;
    bool halt_nonfinite; /* after results that are not finite no round opens until a write */
    uint32_t skips_max;  /* in a row (struct skips); 0 = any number */
    /* from the disk: epoch and round_reserved are 0 in a fresh job */
    uint64_t epoch;          /* the last durable epoch */
    uint64_t round_reserved; /* no incarnation has used this round number or a higher one */
    uint64_t layout;         /* the number of the layout in force */
    /* The version that the shards had when that layout came into force; generation 0: not known, or it is
     * the first layout. */
    struct cairn_version layout_at;
};

/* A contributor that has not finished a round at a shard, or at the relay there. */
struct round_lack {
    uint64_t member; /* a worker, or a relay */
    uint32_t micro;  /* its current micro-batch */
    /* True: all that the member can send has arrived, and other members are due before it. False: something
     * of this member is missing */
    bool waits;
    bool relayed; /* reported by the relay, not by the shard for its own part */
};

/* A tensor on a shard, and how many of its elements have no gradient in the round. */
struct round_untouched {
    uint64_t elems;
    uint32_t tensor; /* may occur more than once */
};

enum round_event_kind {
    /* from the caller */
    CAIRN_ROUND_TICK,      /* now_ms, monotonic: for step_deadline; sent a few times a second */
    CAIRN_ROUND_PERSISTED, /* epoch: the last PERSIST is durable */
    CAIRN_ROUND_READY, /* version: every trained plane has its source and every shard was told. Rounds
                            * may open. Also the first event in a new incarnation of an initialized job */
    CAIRN_ROUND_PIN,   /* snapshot; replaces a pending one (round_pin_pending) */
    CAIRN_ROUND_GATE, /* world, shut: from now on a round opens only with exactly the ranks 0, ...,
                        * world - 1 (world 0: any workers), and not while it is shut. At first 0, open */
    CAIRN_ROUND_AMEND, /* terms: in force from the next round that opens. Earlier losses no longer count */
    CAIRN_ROUND_LAYOUT, /* layout, shard_count, gone, back: every shard of that layout is prepared for it.
                         * The layout comes into force between two rounds, once all its shards are up; no
                         * round opens before. layout 0: the pending layout is forgotten. back: the layout
                         * comes into force at once, even if other shards are not up; the shards that it
                         * lacks of the layout in force were lost. empty: the lost shards had no state in
                         * that layout either, and all state stays where it is: a prepared shard stays
                         * prepared, whatever was decided since */
    /* shards. For a shard that is not in the layout in force, UP and DOWN are remembered, and other events
     * are ignored */
    CAIRN_ROUND_SHARD_UP,   /* shard: its control channel is up, with its state of the job */
    CAIRN_ROUND_SHARD_DOWN, /* shard */
    CAIRN_ROUND_SHARD_EMPTY, /* shard: it returned without the state. (If the shard had nothing that was
                              * settled, the event is DOWN instead, and the layout goes back) */
    CAIRN_ROUND_ANSWER, /* shard, epoch, refused, phase, round, version, decision; as step.h's ANSWER */
    CAIRN_ROUND_REDUCED, /* shard, epoch, round, sums, untouched (only with leaves_untouched): the elements,
                            * in all chunks of the shard, to which nobody contributed */
    CAIRN_ROUND_PUBLISHED, /* shard, epoch, round, version, nonfinite */
    CAIRN_ROUND_LACKS, /* shard, epoch, round, lacks: the answer to ASK_LACKS; lacks may be empty */
    /* workers. Requests may be repeated after a reconnect */
    CAIRN_ROUND_WORKER_JOIN, /* member, rank: attached. If the worker is known already, nothing changes.
                              * world, wait_ms: `world` workers were launched together. The first round
                              * after a time without workers waits until `world` workers are attached, or
                              * until any one of them has been attached for its wait_ms. 0: the round waits
                              * for nobody */
    CAIRN_ROUND_WORKER_DOWN,  /* member, lost: left by itself, or it was lost (on_worker_loss) */
    CAIRN_ROUND_WORKER_BEGIN, /* member: wants a round → WORKER_OPENED, later */
    CAIRN_ROUND_WORKER_COMMIT, /* member, round, state, driven: asks how the round ends → WORKER_RESULT,
                                * later. Only the open round's rank 0 sets state and rates, by its first
                                * commit */
    CAIRN_ROUND_WORKER_ABANDON, /* member, round: the worker gave up before its commit, and stays attached.
                                 * The round is void if it is open → WORKER_RESULT, later */
    CAIRN_ROUND_WORKER_WRITE, /* member: wants to write → WORKER_OPENED, `write` set, later. An open round
                               * of steps that waits for the worker's commit is void, because the worker
                               * cannot serve that round meanwhile */
    CAIRN_ROUND_WORKER_PAUSE, /* member, wait_ms: the member is at work on something else for at most
                               * wait_ms (0: no longer), which suspends the step's deadline for this member;
                               * when that ends, the deadline begins anew */
    CAIRN_ROUND_WORKER_UNWRITE, /* member, round: the worker no longer wants to write. Its open write of
                                 * that round, or (round 0) of any round, is void */
};

struct round_event {
    enum round_event_kind kind;
    uint64_t epoch, round;
    uint64_t member;
    uint32_t rank;
    uint32_t shard; /* below shard_max */
    enum step_phase phase;
    struct cairn_version version;
    uint64_t now_ms, wait_ms;
    uint64_t snapshot;
    uint64_t layout; /* a higher number than any before */
    uint32_t shard_count;
    uint32_t world;
    bool shut, refused, back, empty, lost;
    bool nonfinite; /* the update to that version left values on the shard that are not finite */
    /* borrowed for the call */
    const struct decision *decision;
    const struct step_sums *sums;
    const struct round_untouched *untouched; /* [untouched_count] */
    uint32_t untouched_count;
    const struct round_terms *terms; /* see there for the memory that they point to */
    const struct round_lack *lacks;  /* [lack_count] */
    uint32_t lack_count;
    const uint8_t *gone;  /* as in the configuration; a hole stays a hole */
    const uint8_t *state; /* [state_bytes], at most client_state_max */
    size_t state_bytes;
    /* [group_count] learning rates of driven groups; NULL unless round_takes_driven */
    const double *driven;
};

enum round_action_kind {
    CAIRN_ROUND_PERSIST, /* epoch, round_reserved, layout, version = its layout_at: make all durable in one
                          * write → PERSISTED. A later PERSIST replaces it */
    /* to every shard of the layout in force */
    /* epoch, layout: the layout in force from now on; it may be the present one */
    CAIRN_ROUND_FENCE,
    CAIRN_ROUND_RESOLVE,   /* epoch, decision, round: no round with a higher number has begun */
    CAIRN_ROUND_OPEN_SEND, /* epoch, round, version, members by rank */
    CAIRN_ROUND_DECIDE,    /* epoch, decision */
    CAIRN_ROUND_PIN_SEND,  /* snapshot, version: the one that all shards have now */
    CAIRN_ROUND_ASK_LACKS, /* epoch, round: whose contributions are missing → LACKS */
    /* to the worker `member` */
    CAIRN_ROUND_WORKER_OPENED, /* epoch, round, version, rank = the dense one, world, loss_scale; the round
                                * uses the terms in force. rank >= world: the worker is surplus */
    CAIRN_ROUND_WORKER_RESULT, /* round, status, version. OK or CAIRN_ERR_NONFINITE: `decision` tells how
                                * the round ended (its payload may lack groups and state), at that version;
                                * the core knows the outcome of each worker's last step and last write.
                                * CAIRN_ERR_EPOCH_CHANGED: void, recompute; also sent without a request to
                                * each contributor to an abandoned round; version = now. If `why` is not
                                * NULL, it is no longer known whether the round was void: it is older, or
                                * belongs to an earlier incarnation, or the worker was away for long */
    CAIRN_ROUND_WORKER_FENCE,   /* status: it is not a member, or no longer.
                                *   FENCED   a newer member has its rank
                                *   TIMEOUT  it passed step_deadline in `round`; `world` is how many shards
                                *            or relays lack something of the worker's data, and `shard` is
                                *            one of them; world 0: the worker did not end its write, or did
                                *            not give its client state
                                *   BUSY     member_max are attached already */
    CAIRN_ROUND_WORKER_REFUSED, /* the answer to its BEGIN: no round opens, see round_halted */
    CAIRN_ROUND_SHARD_LATE, /* shard, round, world = the number of contributors of which the shard lacks
                             * something. step_deadline has passed, and no worker is to blame. Repeated at
                             * each deadline */
    CAIRN_ROUND_FAIL, /* shard, why: the job is lost until a restore; no further actions follow */
    CAIRN_ROUND_BEHIND, /* shard, epoch: the shard has seen this epoch, which the core does not know: the
                         * disk holds an older copy. No further actions follow */
};

struct round_action {
    enum round_action_kind kind;
    uint64_t epoch, round;
    uint64_t round_reserved;
    uint64_t member;
    uint32_t rank, world;
    bool write; /* OPEN_SEND, WORKER_OPENED */
    uint32_t shard;
    double loss_scale;
    uint64_t skips; /* WORKER_OPENED: the job's number so far */
    cairn_status status;
    struct cairn_version version;
    uint64_t snapshot;
    uint64_t layout;
    /* borrowed: the core's, valid until the next event */
    const struct decision *decision;
    const uint64_t *members; /* [member_count] */
    uint32_t member_count;
    const char *why; /* static */
};

/* The core appends from `count` on, and asserts that there is room. */
struct round_actions {
    struct round_action *list; /* [capacity] */
    size_t count, capacity;
};
/* The most actions that one event produces. */
size_t round_actions_max(const struct round_config *config);

struct round_machine;

/* The bytes of memory for a core with this configuration; 0 if the configuration is not valid, or
 * overflows. */
size_t round_bytes(const struct round_config *config);
/* Begins a new incarnation in `memory` (round_bytes, aligned as by malloc; borrowed until it is dropped;
 * nothing to release). All shards are down, no worker is attached, and the core is not ready. */
struct round_machine *round_init(void *memory, const struct round_config *config);

/* Takes one event. An event of another epoch, round or stage changes nothing. */
void round_on_event(struct round_machine *core, const struct round_event *event,
                    struct round_actions *actions);

/* ---- questions ---- */
enum round_stage round_stage_of(const struct round_machine *core);
uint64_t round_epoch_of(const struct round_machine *core);
uint64_t round_open_round(const struct round_machine *core); /* not resolved yet; 0 = none */
/* The version that all shards have published; in FENCING and before, the last known one. */
struct cairn_version round_version(const struct round_machine *core);
double round_loss_scale(const struct round_machine *core);
/* In FENCING and before, the last known counts. */
struct skips round_skips(const struct round_machine *core);
/* True if no round of steps opens: skips_max consecutive rounds were skipped under the newest terms, or
 * (of_results) the last update left values that are not finite, and halt_nonfinite is set, or (of_loss) a
 * worker was lost, and on_worker_loss is FAIL. */
bool round_halted(const struct round_machine *core);
bool round_halted_of_results(const struct round_machine *core);
bool round_halted_of_loss(const struct round_machine *core);
/* True if no round of steps opens yet: on_worker_loss is WAIT, and fewer workers are attached than before a
 * loss. */
bool round_waits_for_lost(const struct round_machine *core);
const struct decision *round_last(const struct round_machine *core);
/* The client state of round_version; valid until the next event. False: the state is not known now, because
 * an epoch is changing or a decision is being carried out. */
bool round_client_state(const struct round_machine *core, const uint8_t **state_out,
                        size_t *state_bytes_out);
/* The terms of the open round, or of the last one. The core still reads only these and the terms of the
 * newest AMEND. */
const struct round_terms *round_terms_of(const struct round_machine *core);
/* True if the member's COMMIT of that round must bring the rates of driven groups: each rate must be
 * finite, and the group's hyper-parameters must pass their check with it. */
bool round_takes_driven(const struct round_machine *core, uint64_t member, uint64_t round);
/* The learning rate of a group in the next round, by the newest terms; for a driven group the rate that was
 * given last. */
double round_lr(const struct round_machine *core, uint32_t group);
/* The number of steps that a trained tensor missed. */
uint64_t round_missed(const struct round_machine *core, uint32_t tensor);
bool round_pin_pending(const struct round_machine *core);
/* The layout in force: the last durable one. */
uint64_t round_layout_of(const struct round_machine *core);
/* The pending layout, which can be forgotten; 0: none, or it is being made durable. */
uint64_t round_layout_pending(const struct round_machine *core);
uint32_t round_worker_count(const struct round_machine *core);
/* True if the worker contributes to the open round, decided or not. */
bool round_contributes(const struct round_machine *core, uint64_t member);
/* The longest time that the open round may still wait for pausing workers; 0: it waits for none. */
uint64_t round_paused_ms(const struct round_machine *core);
/* True if the open round waits for a worker that is alive and does not pause. */
bool round_waits_for_silent(const struct round_machine *core);
/* Since this incarnation began. */
struct round_counts {
    uint64_t applied, skipped, abandoned;
};
struct round_counts round_counts_of(const struct round_machine *core);

/* Writes what the core waits for, as the end of a sentence: "shard 2 (not connected)", "worker of rank 1
 * (has not committed round 4711)", "2 more workers (1 of 3 attached)"; empty if it waits for nothing. */
struct round_names { /* of shards and workers that the core knows by number */
    /* Adds the name to `out`; false, and adds nothing: the number is used instead. */
    bool (*add)(const void *context, bool is_shard, uint32_t number, struct sentence *out);
    const void *context;
};
/* names may be NULL. */
void round_waiting(const struct round_machine *core, const struct round_names *names,
                   struct sentence *out);

#endif
