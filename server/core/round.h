/* The coordinator's round machine of one job: members, epochs, rounds and their one decision (design
 * 3). Pure, as step.h: events go in, actions come out; the caller owns the memory. Actions to shards
 * go to every shard of the job, over its ordered control channel.
 *
 *            shards all up, PERSISTED        all answered            all PUBLISHED
 *   WAITING ───────────► FENCING ───────────► RESOLVING ───────────► STEADY ◄──────────┐
 *   (for shards, for     FENCE sent           RESOLVE sent            │ a worker asked, │ all
 *    the disk)                                                        ▼ and enough      │ PUBLISHED
 *                                                                    OPEN ───────────► DECIDED
 *                                                                        all REDUCED
 *
 *  - One path serves every change of epoch: a new incarnation, a shard that was away, a contributor
 *    lost before the decision or giving its round up, members that changed since the last round, used-up
 *    round numbers.
 *    Epoch+1 and a block of round numbers are made durable first, then all shards are fenced, then
 *    they answer with the last decision they know. The newest of those is the outcome: all get it by
 *    RESOLVE, and any other open round is void. So nothing is written to disk per round, and nothing that an
 *    incarnation remembers but the epoch and the reserved round numbers is needed by the next.
 *  - A decision stands once it is made. A worker lost after it changes the epoch before the next round.
 *  - A round's contributors are the workers attached when it opens, by rank. Joins never disturb it. Where
 *    workers hold tiles of tensors a gate stands before it: a round needs exactly certain ranks.
 *  - With contributors_max only the first so many by rank contribute. The others are surplus: they are told
 *    of the round, with a place from its world on, may ask how it ends, and nobody waits for them.
 *  - Workers hear "committed" only when all shards have published.
 *  - Where the trainer gives states, one belongs to each version: that of the round's rank 0, without whose
 *    COMMIT nothing is decided; a skip and a write keep it. It travels in the payload, as the loss scale.
 *  - So does the learning rate of a driven group: the update goes by what rank 0 gave with its COMMIT.
 *  - And what tensors have missed (decision.h): a step passes by what is frozen, or untouched where that is
 *    left alone, and the update of a tensor goes by its own count.
 *  - A skip leaves step and parameters, and is counted for good: step + skips is the number of the batch that
 *    comes next. After skips_max of them in a row that no loss scale could help no round of steps opens, and
 *    who asks for one is refused, until there are other terms, a write or a restore.
 *
 *  - A write is a round of one contributor, who puts planes instead of gradients: opened and decided (WRITE:
 *    the next generation of the same step), void and resolved as any other. While it is open nobody else
 *    has a round; a writer that is lost, or does not commit in time, has changed nothing.
 *
 *  - The layout belongs to the epoch, too: another one comes by a change of epoch in STEADY, so no round is
 *    open then and all shards are at one version. It is made durable with the epoch, and the fence brings it.
 *    From then on the shards of that layout are awaited, and no others.
 *  - A layout may take back the one before: at the version of that time, its shards have whatever a
 *    lost shard should have got. The lost shard is not awaited, and nothing may have been decided
 *    since.
 *
 * Workers are named by their session's number, which is never reused; a reconnect keeps it. */
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
    uint32_t group; /* CAIRN_ROUND_UNTRAINED: it is in none */
    bool frozen;    /* it takes no gradient, whatever its group does */
};
#define CAIRN_ROUND_UNTRAINED UINT32_MAX

/* The terms of the update that an amendment may change, in the spec's order. They are borrowed
 * from when the core is told of them until it says that others are in force
 * (round_terms_of). */
struct round_terms {
    const struct group_hyper *groups; /* [group_count] */
    const struct schedule *schedules; /* [group_count], of their lr; NULL: all are constant */
    const bool *frozen;               /* [group_count], take no gradient; NULL: none */
    /* [tensor_count]; group and elems are what they were */
    const struct round_tensor *tensors;
    bool any_frozen;   /* of the tensors, by itself or with its group */
    double clip_norm;  /* 0 = no clipping */
    uint64_t revision; /* of their spec */
    /* 1 to member_max: a round opens with at least so many workers. The newest value counts at once. */
    uint32_t workers_min;
    /* Likewise: what follows when a worker is lost, from now on. */
    cairn_worker_loss on_worker_loss;
    uint64_t worker_loss_wait_ms;
};

/* How the loss scale moves; its value stands in every payload. */
struct round_scaling {
    double start; /* at the job's beginning; 1 = none */
    /* A skip halves it, down to min; growth_rounds applied in a row double it, up to max. */
    bool dynamic;
    double min, max;
    uint32_t growth_rounds;
};

struct round_config {
    uint32_t shard_count; /* of the layout in force, holes among them; at least 1 */
    uint32_t shard_max;   /* of any layout; 0: as many as there are */
    /* [(shard_count + 7) / 8] bit s % 8 of byte s / 8: a hole, no such shard. NULL: none. Borrowed for the
     * call. */
    const uint8_t *gone;
    uint32_t member_max;       /* attached workers at a time, at least 1 */
    uint32_t contributors_max; /* to a round of steps; 0: all that are attached */
    /* So long after a round opened the shards are asked whom they wait for, and those workers are dropped;
     * 0 = never. */
    uint64_t step_deadline_ms;
    struct round_terms terms;
    uint32_t group_count;
    /* 0: no tensor is told of, and each has the job's count of updates. */
    uint32_t tensor_count;
    /* A tensor to which nobody contributed is left alone, and misses the step. False: its gradient is 0. */
    bool leaves_untouched;
    /* Bytes of client state, at most CAIRN_SPEC_CLIENT_STATE_MAX; 0: the trainer gives none. */
    uint32_t client_state_max;
    struct round_scaling scaling;
    bool fail_nonfinite; /* sums that are not finite: the workers are told (and it is a skip) */
    bool halt_nonfinite; /* after results that are not finite no round opens, until a write */
    uint32_t skips_max;  /* in a row (struct skips); 0 = any number */
    /* what the disk says: both 0 in a fresh job */
    uint64_t epoch;          /* the last one made durable */
    uint64_t round_reserved; /* no incarnation has used this round number or a higher one */
    uint64_t layout;         /* the number of the one in force */
    /* The version that the shards had when it came into force; generation 0: not known, or it is
     * the first. */
    struct cairn_version layout_at;
};

/* A contributor that is not done with a round at a shard, or at the relay there. */
struct round_lack {
    uint64_t member; /* a worker, or a relay */
    uint32_t micro;  /* the micro-batch that it is in */
    bool waits; /* what it can send is here, and others come first. False: something of it lacks */
    bool relayed; /* the relay says so, and not the shard for its own part */
};

/* A tensor on a shard: so many of its elements have no gradient in the round. */
struct round_untouched {
    uint64_t elems;
    uint32_t tensor; /* may be there more than once */
};

enum round_event_kind {
    /* the world */
    CAIRN_ROUND_TICK,      /* now_ms, monotonic: for step_deadline; a few a second */
    CAIRN_ROUND_PERSISTED, /* epoch: the last PERSIST is durable */
    CAIRN_ROUND_READY, /* version: every trained plane has its source and every shard was told. Rounds
                            * may open. Also first thing in a new incarnation of an initialized job */
    CAIRN_ROUND_PIN,   /* snapshot; one that is pending (round_pin_pending) is forgotten */
    CAIRN_ROUND_GATE, /* world, shut: from now a round opens only of exactly the ranks 0, ..., world - 1
                        * (world 0: of any workers), and not while it is shut. Before: 0, not shut */
    CAIRN_ROUND_AMEND, /* terms: in force from the next round that opens. No loss of before counts any more */
    CAIRN_ROUND_LAYOUT, /* layout, shard_count, gone, back: every shard of that layout is prepared for it. It
                         * comes into force between two rounds: none opens before, once all its shards are
                         * up. 0: the one that is pending is forgotten. back: at once, whether the others
                         * are up or not; shards of the layout in force that it has not were lost. empty:
                         * those had nothing in that one either, and everything stays where it is: a
                         * shard that is prepared stays so, and it does not matter what was decided */
    /* shards. If the layout in force does not have a shard, its UP and DOWN are remembered, and
     * nothing else of it counts */
    CAIRN_ROUND_SHARD_UP,   /* shard: its control channel is up, with its state of the job */
    CAIRN_ROUND_SHARD_DOWN, /* shard */
    CAIRN_ROUND_SHARD_EMPTY, /* shard: it is back without the state. (Where it had nothing that was settled
                              * it is DOWN, and the layout goes back) */
    CAIRN_ROUND_ANSWER, /* shard, epoch, refused, phase, round, version, decision; as step.h's ANSWER */
    CAIRN_ROUND_REDUCED, /* shard, epoch, round, sums, untouched: with leaves_untouched, of all chunks of
                            * the shard that nobody contributed to */
    CAIRN_ROUND_PUBLISHED, /* shard, epoch, round, version, nonfinite */
    CAIRN_ROUND_LACKS, /* shard, epoch, round, lacks: the answer to ASK_LACKS; nothing, if none */
    /* workers. Requests may be repeated after a reconnect */
    CAIRN_ROUND_WORKER_JOIN, /* member, rank: attached. Known already: nothing changes. world, wait_ms: so
                              * many came together, and the first round after all were gone waits for them,
                              * until one has been there for its wait_ms. 0: it waits for nobody */
    CAIRN_ROUND_WORKER_DOWN,  /* member, lost: left by itself, or it was lost (on_worker_loss) */
    CAIRN_ROUND_WORKER_BEGIN, /* member: wants a round → WORKER_OPENED, later */
    CAIRN_ROUND_WORKER_COMMIT, /* member, round, state, driven: how does it end? → WORKER_RESULT, later. State
                                * and rates of the open round's rank 0 count, the first that it gives */
    CAIRN_ROUND_WORKER_ABANDON, /* member, round: it gave up, uncommitted, and stays: void, if that is open
                                 * → WORKER_RESULT, later */
    CAIRN_ROUND_WORKER_WRITE, /* member: wants to write → WORKER_OPENED, `write` set, later. An open round of
                               * steps that waits for its commit is void: it was opened for others */
    CAIRN_ROUND_WORKER_PAUSE, /* member, wait_ms: it is at work on something else for so long at most (0: no
                               * more), which suspends the step's deadline for it; when that ends, the
                               * deadline begins anew */
    CAIRN_ROUND_WORKER_UNWRITE, /* member, round: it does not want to, any more; its open write of that
                                 * round, or (0) of any, is void */
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
    uint64_t layout; /* a higher number than that of any before */
    uint32_t shard_count;
    uint32_t world;
    bool shut, refused, back, empty, lost;
    bool nonfinite; /* the update of that version left something there that is not finite */
    /* borrowed for the call */
    const struct decision *decision;
    const struct step_sums *sums;
    const struct round_untouched *untouched; /* [untouched_count] */
    uint32_t untouched_count;
    const struct round_terms *terms; /* what they point to: see there */
    const struct round_lack *lacks;  /* [lack_count] */
    uint32_t lack_count;
    const uint8_t *gone;  /* as in the configuration; a shard that was one stays one */
    const uint8_t *state; /* [state_bytes], at most client_state_max */
    size_t state_bytes;
    /* [group_count] learning rates of driven groups; NULL unless round_takes_driven */
    const double *driven;
};

enum round_action_kind {
    CAIRN_ROUND_PERSIST, /* epoch, round_reserved, layout, version = its layout_at: make all durable in one
                          * write → PERSISTED. A later one replaces it */
    /* to every shard of the layout in force */
    CAIRN_ROUND_FENCE,     /* epoch, layout: the one in force from now on, this very one perhaps */
    CAIRN_ROUND_RESOLVE,   /* epoch, decision, round: none of a higher number has begun */
    CAIRN_ROUND_OPEN_SEND, /* epoch, round, version, members by rank */
    CAIRN_ROUND_DECIDE,    /* epoch, decision */
    CAIRN_ROUND_PIN_SEND,  /* snapshot, version: what all shards have now */
    CAIRN_ROUND_ASK_LACKS, /* epoch, round: whose contributions lack → LACKS */
    /* to the worker `member` */
    CAIRN_ROUND_WORKER_OPENED, /* epoch, round, version, rank = the dense one, world, loss_scale; it goes by
                                * the terms in force. rank >= world: the worker is surplus */
    CAIRN_ROUND_WORKER_RESULT, /* round, status, version. OK or CAIRN_ERR_NONFINITE: how it ended is in
                                * `decision` (its payload perhaps without groups and state), at that version;
                                * of each worker the last step and the last write that it was in are known.
                                * CAIRN_ERR_EPOCH_CHANGED: void, recompute; comes unasked, too, to each
                                * contributor of a round that is abandoned; version = now. With `why` not NULL
                                * it is not known any more whether the round was void: it is older, or of a
                                * former incarnation, or the worker was away for long */
    CAIRN_ROUND_WORKER_FENCE,   /* status: it is no member (any more).
                                *   FENCED   a newer member has its rank
                                *   TIMEOUT  it passed step_deadline in `round`; world = the shards or relays
                                *            that lack something of it, `shard` is one; 0: it did not end
                                *            its write, or give its client state
                                *   BUSY     member_max are attached already */
    CAIRN_ROUND_WORKER_REFUSED, /* what it began: no round opens, see round_halted */
    CAIRN_ROUND_SHARD_LATE, /* shard, round, world = contributors of which it lacks something: step_deadline
                             * has passed, and no worker is to blame. It comes again with each deadline */
    CAIRN_ROUND_FAIL, /* shard, why: the job is lost until a restore; nothing more will come */
    CAIRN_ROUND_BEHIND, /* shard, epoch: it has seen this one, which we know nothing of: what the disk says is
                         * an older copy. Nothing more will come */
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
    uint64_t skips; /* WORKER_OPENED: of the job so far */
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

/* Filled from count on; the core asserts that it fits. */
struct round_actions {
    struct round_action *list; /* [capacity] */
    size_t count, capacity;
};
/* No event gives more actions than this. */
size_t round_actions_max(const struct round_config *config);

struct round_machine;

/* Bytes of memory for a core of this configuration; 0 if it is not valid or overflows. */
size_t round_bytes(const struct round_config *config);
/* A new incarnation in `memory` (round_bytes, aligned as by malloc; borrowed until it is dropped;
 * nothing to release). All shards down, no worker, not ready. */
struct round_machine *round_init(void *memory, const struct round_config *config);

/* Takes one event. An event of another epoch, round or stage changes nothing. */
void round_on_event(struct round_machine *core, const struct round_event *event,
                    struct round_actions *actions);

/* ---- questions ---- */
enum round_stage round_stage_of(const struct round_machine *core);
uint64_t round_epoch_of(const struct round_machine *core);
uint64_t round_open_round(const struct round_machine *core); /* not resolved yet; 0 = none */
/* The one that all shards have published; in FENCING and before, the last that was known. */
struct cairn_version round_version(const struct round_machine *core);
double round_loss_scale(const struct round_machine *core);
/* In FENCING and before, what was known last. */
struct skips round_skips(const struct round_machine *core);
/* No round of steps opens: skips_max in a row were skipped by the newest terms, or (of_results) the last
 * update left what is not finite, and halt_nonfinite is set, or (of_loss) a worker was lost, and
 * on_worker_loss is FAIL. */
bool round_halted(const struct round_machine *core);
bool round_halted_of_results(const struct round_machine *core);
bool round_halted_of_loss(const struct round_machine *core);
/* No round of steps opens yet: on_worker_loss is WAIT, and fewer workers are there than before a loss. */
bool round_waits_for_lost(const struct round_machine *core);
const struct decision *round_last(const struct round_machine *core);
/* The client state of round_version; valid until the next event. False: not known now, because an epoch
 * changes or a decision is being carried out. */
bool round_client_state(const struct round_machine *core, const uint8_t **state_out,
                        size_t *state_bytes_out);
/* The terms of the open round, or of the last one. Besides them only those of the newest AMEND are still
 * read. */
const struct round_terms *round_terms_of(const struct round_machine *core);
/* The member's COMMIT of that round has to bring the rates of driven groups: each one is finite, and the
 * group's hyper-parameters pass their check with it. */
bool round_takes_driven(const struct round_machine *core, uint64_t member, uint64_t round);
/* The learning rate of a group in the next round, by the newest terms; of a driven group the one that was
 * given last. */
double round_lr(const struct round_machine *core, uint32_t group);
/* How many steps passed a trained tensor by. */
uint64_t round_missed(const struct round_machine *core, uint32_t tensor);
bool round_pin_pending(const struct round_machine *core);
/* The layout in force: the last one that is durable. */
uint64_t round_layout_of(const struct round_machine *core);
/* The one that waits, and can be forgotten; 0: none, or it is being made durable. */
uint64_t round_layout_pending(const struct round_machine *core);
uint32_t round_worker_count(const struct round_machine *core);
/* The open round, decided or not, counts on the worker. */
bool round_contributes(const struct round_machine *core, uint64_t member);
/* How long, at most, the open round may still wait for workers that pause; 0: it waits for none. */
uint64_t round_paused_ms(const struct round_machine *core);
/* The open round waits for a worker that lives and does not pause. */
bool round_waits_for_silent(const struct round_machine *core);
/* Since this incarnation began. */
struct round_counts {
    uint64_t applied, skipped, abandoned;
};
struct round_counts round_counts_of(const struct round_machine *core);

/* Whom it waits for, as the end of a sentence: "shard 2 (not connected)", "worker of rank 1 (has not
 * committed round 4711)", "2 more workers (1 of 3 attached)"; empty when it waits for nobody. */
struct round_names { /* of those that the core knows by number */
    /* Adds who it is to `out`; false, and adds nothing: the number will do. */
    bool (*add)(const void *context, bool is_shard, uint32_t number, struct sentence *out);
    const void *context;
};
/* names may be NULL. */
void round_waiting(const struct round_machine *core, const struct round_names *names,
                   struct sentence *out);

#endif
