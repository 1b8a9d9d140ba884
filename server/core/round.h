/* The coordinator's round machine of one job: it keeps the members, the epochs and the rounds, and makes
 * the one decision of each round. The machine is pure, as in step.h: events go in, actions come out, and
 * the caller owns the memory. An action to shards is sent to every shard of the job, over the shard's
 * ordered control channel.
 *
 *            shards all up, PERSISTED        all answered            all PUBLISHED
 *   WAITING ───────────► FENCING ───────────► RESOLVING ───────────► STEADY ◄──────────┐
 *   (for shards, for     FENCE sent           RESOLVE sent            │ a worker asked, │ all
 *    the disk)                                                        ▼ and enough      │ PUBLISHED
 *                                                                    OPEN ───────────► DECIDED
 *                                                                        all REDUCED
 *
 *  - Every change of epoch takes the same path, whatever its cause: a new incarnation, a shard that was
 *    away, a contributor that was lost before the decision or gave its round up, members that changed since
 *    the last round, or used-up round numbers. First the next epoch and a block of round numbers are made
 *    durable. Then all shards are fenced, and answer with the last decision they know. The newest of these
 *    decisions is the outcome: all shards get it by RESOLVE, and any other open round is void. So no round
 *    needs a write to disk, and all that the next incarnation needs is this incarnation's epoch and
 *    reserved round numbers.
 *  - A decision is final. If a worker is lost after the decision, the epoch changes before the next round.
 *  - A round's contributors are the workers that are attached when the round opens, by rank. A worker that
 *    joins later never disturbs the round. If workers hold tiles of tensors, there is a gate: a round then
 *    opens only with exactly certain ranks.
 *  - If contributors_max is not 0, only the first contributors_max workers, by rank, contribute. The other
 *    workers are surplus: they are told of the round, with a rank that is not below the round's world, and
 *    may ask how the round ends. Nobody waits for them.
 *  - Workers hear "committed" only when all shards have published.
 *  - If the trainer gives client states, each version has one. It comes from the round's rank 0, and
 *    nothing is decided before the COMMIT of rank 0. A skip and a write keep the state. The state travels
 *    in the payload, as the loss scale does.
 *  - The learning rates of driven groups travel in the payload, too. The update uses the rates that rank 0
 *    gave with its COMMIT.
 *  - The steps that tensors missed travel in the payload, too (decision.h). A tensor misses a step if it is
 *    frozen, or if nobody contributed to it and such tensors are left alone. The update of a tensor uses
 *    the tensor's own count of updates.
 *  - A skip leaves the step and the parameters unchanged, and is counted for ever: step + skips is the
 *    number of the next batch. After skips_max consecutive skips that no lower loss scale could prevent, no
 *    round of steps opens, and workers that ask for one are refused. An amendment, a write or a restore
 *    ends this.
 *
 *  - A write is a round of one contributor, which sends planes instead of gradients. A write is opened,
 *    decided, voided and resolved as any other round; its decision, WRITE, begins the next generation at
 *    the same step. While a write is open no other worker has a round. If the writer is lost or does not
 *    commit in time, nothing has changed.
 *
 *  - The layout belongs to the epoch, too. Another layout takes effect with a change of epoch in STEADY,
 *    because then no round is open and all shards have the same version. The layout is made durable with
 *    the epoch, and the fence brings it to the shards. From then on the machine waits for the shards of
 *    that layout, and for no others.
 *  - A layout may take back the previous layout, in which a shard was lost. The shards of the new layout
 *    still have all state that the lost shard should have received, at the version at which the previous
 *    layout began. So nothing may have been decided since, and nobody waits for the lost shard.
 *
 * Workers are identified by the number of their session, which is never used again, and which stays the
 * same after a reconnect. */
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

/* The properties of a tensor that matter to an update. */
struct round_tensor {
    uint64_t elems;
    uint32_t group; /* CAIRN_ROUND_UNTRAINED: the tensor is in no group */
    bool frozen;    /* the tensor takes no gradient, even if its group does */
};
#define CAIRN_ROUND_UNTRAINED UINT32_MAX

/* The terms of the update that an amendment may change, in the spec's order. The core borrows the terms
 * when it receives them, and keeps them until round_terms_of returns other terms. */
struct round_terms {
    const struct group_hyper *groups; /* [group_count] */
    /* [group_count] of the learning rates; NULL: all rates are constant */
    const struct schedule *schedules;
    /* [group_count] true: the group takes no gradient; NULL: none is frozen */
    const bool *frozen;
    /* [tensor_count]; group and elems never change */
    const struct round_tensor *tensors;
    bool any_frozen;   /* some tensor is frozen, alone or with its group */
    double clip_norm;  /* 0 = no clipping */
    uint64_t revision; /* the revision of the spec that has these terms */
    /* 1 to member_max: a round of steps opens with at least this many workers. The newest value takes
     * effect at once. */
    uint32_t workers_min;
    /* The consequences when a worker is lost. The newest values take effect at once, too. */
    cairn_worker_loss on_worker_loss;
    uint64_t worker_loss_wait_ms;
};

/* How the loss scale changes. Every payload contains the scale. */
struct round_scaling {
    double start; /* the scale at the job's beginning; 1 = no scaling */
    /* True: a skip halves the scale, but not below min; growth_rounds consecutive applied rounds double it,
     * but not above max. */
    bool dynamic;
    double min, max;
    uint32_t growth_rounds;
};

struct round_config {
    uint32_t shard_count; /* shards of the layout in force, including its holes; at least 1 */
    uint32_t shard_max;   /* the most shards of any layout; 0: shard_count */
    /* [(shard_count + 7) / 8] If bit s % 8 of byte s / 8 is set, s is a hole: there is no shard s. NULL:
     * there are no holes. Borrowed for the call. */
    const uint8_t *gone;
    uint32_t member_max;       /* the most workers attached at a time, at least 1 */
    uint32_t contributors_max; /* the most contributors to a step; 0: all attached workers */
    /* When a round has been open for this long, the shards are asked for which workers they wait. The
     * workers that cause the delay are dropped; if no worker causes it, SHARD_LATE follows. 0 = no
     * deadline. */
    uint64_t step_deadline_ms;
    struct round_terms terms;
    uint32_t group_count;
    /* 0: the core does not know the tensors, and each tensor has the job's count of updates. */
    uint32_t tensor_count;
    /* True: a tensor to which nobody contributed is left alone, and misses the step. False: the gradient of
     * such a tensor is 0. */
    bool leaves_untouched;
    /* The most bytes of client state, not above CAIRN_SPEC_CLIENT_STATE_MAX; 0: the trainer gives none. */
    uint32_t client_state_max;
    struct round_scaling scaling;
    /* True: if a round is skipped because its gradients are not finite, its workers get an error */
    bool fail_nonfinite;
    /* after results that are not finite, no round of steps opens until a write or a restore */
    bool halt_nonfinite;
    uint32_t skips_max; /* the most skips in a row (struct skips); 0 = no limit */
    /* read from the disk; epoch and round_reserved are 0 in a fresh job */
    uint64_t epoch;          /* the last durable epoch */
    uint64_t round_reserved; /* no incarnation has used this round number or a higher one */
    uint64_t layout;         /* the number of the layout in force */
    /* The version that the shards had when that layout came into force. Generation 0: the version is not
     * known, or the layout is the job's first. */
    struct cairn_version layout_at;
};

/* A contributor that has not finished a round at a shard, or at the relay in that shard. */
struct round_lack {
    uint64_t member; /* a worker, or a relay */
    uint32_t micro;  /* the member's current micro-batch */
    /* True: all that the member can send now has arrived, and it waits for other members. False: something
     * of this member is missing */
    bool waits;
    bool relayed; /* the relay reports this, not the shard for its own part */
};

/* Elements of a tensor on a shard to which nobody contributed in the round. */
struct round_untouched {
    uint64_t elems;
    uint32_t tensor; /* a report may name a tensor more than once */
};

enum round_event_kind {
    /* from the caller */
    CAIRN_ROUND_TICK,      /* now_ms, monotonic: the present time; sent a few times a second */
    CAIRN_ROUND_PERSISTED, /* epoch: the last PERSIST, which was of this epoch, is durable */
    CAIRN_ROUND_READY, /* version: the job's initial state is complete, every shard was told, and rounds may
                        * open. In a new incarnation of an initialized job this is the first event */
    CAIRN_ROUND_PIN, /* snapshot: replaces a pending PIN (round_pin_pending) */
    CAIRN_ROUND_GATE, /* world, shut: from now on a round of steps opens only with exactly the ranks 0, ...,
                       * world - 1 (world 0: with any workers), and while `shut` is set no round opens. At
                       * first world is 0, and the gate is open */
    /* terms: they come into force with the next round that opens. Workers lost earlier no longer count */
    CAIRN_ROUND_AMEND,
    CAIRN_ROUND_LAYOUT, /* layout: every shard of that layout is prepared
                         * for it. The layout comes into force between two rounds, as soon as all its shards
                         * are up. layout 0: the pending layout is forgotten. back: the layout does not wait
                         * for the end of a round; the shards that are in the layout in force and not in
                         * this layout were lost. empty, with back: the lost shards had no state in the
                         * layout in force, so all state stays where it is, whatever was decided since */
    /* from shards. If a shard is not in the layout in force, its UP and DOWN are remembered, and its other
     * events are ignored */
    CAIRN_ROUND_SHARD_UP,   /* shard: its control channel is up, and it has its state of the job */
    CAIRN_ROUND_SHARD_DOWN, /* shard */
    CAIRN_ROUND_SHARD_EMPTY, /* shard: the shard has returned without its state of the job. (If the shard
                              * had no settled state, the caller sends DOWN instead, and takes the layout
                              * back) */
    /* shard, epoch, refused, phase, round, version, decision: as ANSWER in step.h */
    CAIRN_ROUND_ANSWER,
    CAIRN_ROUND_REDUCED, /* shard, epoch, round, sums, untouched: only with leaves_untouched, the elements
                          * in all chunks of the shard to which nobody contributed */
    CAIRN_ROUND_PUBLISHED, /* shard, epoch, round, version, nonfinite */
    CAIRN_ROUND_LACKS, /* shard, epoch, round, lacks: the answer to ASK_LACKS; lacks may be empty */
    /* from workers, who may repeat requests after a reconnect */
    CAIRN_ROUND_WORKER_JOIN, /* member, rank, world, wait_ms: the worker is attached. If it is known
                              * already, nothing changes. `world` workers were launched together: the first
                              * round after a time without workers waits until `world` workers are attached,
                              * or until one of them has been attached for its wait_ms. world 0: the round
                              * waits for nobody */
    /* member, lost: the worker left by itself, or, if `lost` is set, was lost (on_worker_loss) */
    CAIRN_ROUND_WORKER_DOWN,
    CAIRN_ROUND_WORKER_BEGIN,  /* member: the worker wants a round → WORKER_OPENED, later */
    CAIRN_ROUND_WORKER_COMMIT, /* member, round, commit: the worker committed, and asks how the round
                                * ends → WORKER_RESULT, later. `state` and `driven` count only in the first
                                * COMMIT of the open round's rank 0 */
    CAIRN_ROUND_WORKER_ABANDON, /* member, round: the worker gave the round up before its commit, and stays
                                 * attached. If the round is open, it is void → WORKER_RESULT, later */
    CAIRN_ROUND_WORKER_WRITE, /* member: the worker wants to write → WORKER_OPENED with `write` set, later.
                               * If an open round of steps waits for the worker's commit, that round is
                               * void, because the worker cannot serve it meanwhile */
    CAIRN_ROUND_WORKER_PAUSE, /* member, wait_ms: the worker works on something else for at most wait_ms (0:
                               * the worker is back). Meanwhile the worker is never late, and at the end of
                               * the pause the step's deadline begins anew */
    CAIRN_ROUND_WORKER_UNWRITE, /* member, round: the worker no longer wants to write. If its write is open
                                 * in that round (round 0: in any round), the write is void */
};

/* A layout that is to come into force. */
struct round_layout {
    uint64_t number; /* a higher number than that of any layout before */
    uint32_t shard_count;
    const uint8_t *gone; /* borrowed: as in the configuration; a hole stays a hole */
    bool back, empty;
};

/* The things that a COMMIT brings, all borrowed. */
struct round_commit {
    const uint8_t *state; /* [state_bytes], at most client_state_max */
    size_t state_bytes;
    /* [group_count] the learning rates of driven groups; needed if round_takes_driven */
    const double *driven;
};

struct round_event {
    enum round_event_kind kind;
    uint64_t epoch, round;
    uint64_t member;
    uint32_t rank, world;
    uint32_t shard; /* below shard_max */
    enum step_phase phase;
    struct cairn_version version;
    uint64_t now_ms, wait_ms;
    uint64_t snapshot;
    bool shut, refused, lost;
    bool nonfinite; /* the update to `version` left values on the shard that are not finite */
    struct round_layout layout;
    struct round_commit commit;
    /* borrowed for the call */
    const struct decision *decision;
    const struct step_sums *sums;
    struct {
        const struct round_untouched *list; /* [count] */
        uint32_t count;
    } untouched;
    struct {
        const struct round_lack *list; /* [count] */
        uint32_t count;
    } lacks;
    const struct round_terms *terms; /* how long the terms are borrowed: see there */
};

enum round_action_kind {
    CAIRN_ROUND_PERSIST, /* epoch, round_reserved, layout, version = the layout's layout_at: the caller
                          * makes all of them durable in one write → PERSISTED */
    /* to every shard of the layout in force */
    /* epoch, layout: the layout in force from now on; often it was in force before */
    CAIRN_ROUND_FENCE,
    CAIRN_ROUND_RESOLVE,   /* epoch, decision, round: no round with a higher number has begun */
    CAIRN_ROUND_OPEN_SEND, /* epoch, round, version, members by rank */
    CAIRN_ROUND_DECIDE,    /* epoch, decision */
    CAIRN_ROUND_PIN_SEND,  /* snapshot, version: the version that all shards have now */
    CAIRN_ROUND_ASK_LACKS, /* epoch, round: asks whose contributions are missing → LACKS */
    /* to the worker `member` */
    CAIRN_ROUND_WORKER_OPENED, /* epoch, round, version, rank, world, loss_scale, skips, write. `rank` is
                                * the worker's place in the round, without gaps; if it is not below world,
                                * the worker is surplus. The round uses the terms that round_terms_of
                                * returns */
    CAIRN_ROUND_WORKER_RESULT, /* round, status, version, decision, why. OK or CAIRN_ERR_NONFINITE: the
                                * round ended with `decision` (whose payload may lack groups and state), and
                                * `version` is the version after it. The core keeps the outcome of each
                                * worker's last step and last write. CAIRN_ERR_EPOCH_CHANGED: the round is
                                * void, and the worker has to compute again; `version` is the present
                                * version. The contributors and surplus workers of a void round get this
                                * without a request, too. If `why` is not NULL, it is no longer known
                                * whether the round was void: there were later rounds, or a new incarnation,
                                * or the worker was away for long */
    CAIRN_ROUND_WORKER_FENCE, /* status: the worker is not a member, or no longer a member.
                                 *   FENCED   a newer member has its rank
                                 *   TIMEOUT  the worker passed the deadline in `round`. `world` shards or
                                 *            relays lack something of the worker's data, and `shard` is one
                                 *            of them. world 0: the worker did not end its write, or did not
                                 *            give its client state
                                 *   BUSY     member_max are attached already */
    /* the answer to the worker's BEGIN: no round opens, see round_halted */
    CAIRN_ROUND_WORKER_REFUSED,
    CAIRN_ROUND_SHARD_LATE, /* shard, round, world = the number of contributors of which the shard lacks
                             * something. The deadline has passed, and no worker is to blame. The action is
                             * repeated at each deadline */
    CAIRN_ROUND_FAIL, /* shard, why: the job is lost until a restore; no further actions follow */
    CAIRN_ROUND_BEHIND, /* shard, epoch: the shard has seen this epoch, and the core does not know it, so
                         * the disk holds an older copy. No further actions follow */
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
    uint64_t skips; /* WORKER_OPENED: the number of skips of the job until now */
    cairn_status status;
    struct cairn_version version;
    uint64_t snapshot;
    uint64_t layout;
    /* borrowed from the core until the next event */
    const struct decision *decision;
    const uint64_t *members; /* [member_count] */
    uint32_t member_count;
    const char *why; /* static */
};

/* The core appends actions at `count`, and asserts that there is room. */
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
/* Begins a new incarnation. `memory` has round_bytes bytes and is aligned as by malloc. The core borrows it
 * until the caller drops the core, and there is nothing to release. At first all shards are down, no worker
 * is attached, and the core is not ready. */
struct round_machine *round_init(void *memory, const struct round_config *config);

/* Takes one event. An event of another epoch, round or stage changes nothing. */
void round_on_event(struct round_machine *core, const struct round_event *event,
                    struct round_actions *actions);

/* ---- questions ---- */
enum round_stage round_stage_of(const struct round_machine *core);
uint64_t round_epoch_of(const struct round_machine *core);
/* the round that is not resolved yet; 0 = none */
uint64_t round_open_round(const struct round_machine *core);
/* The version that all shards have published; in WAITING and FENCING, the last version known to the
 * core. */
struct cairn_version round_version(const struct round_machine *core);
double round_loss_scale(const struct round_machine *core);
/* In WAITING and FENCING, the counts that were known last. */
struct skips round_skips(const struct round_machine *core);
/* True if the job is halted: no round of steps opens. There are three causes. The first: skips_max
 * consecutive rounds were skipped under the newest terms. The second (_of_results): halt_nonfinite is set,
 * and the last update left values that are not finite. The third (_of_loss): on_worker_loss was FAIL when a
 * worker was lost. */
bool round_halted(const struct round_machine *core);
bool round_halted_of_results(const struct round_machine *core);
bool round_halted_of_loss(const struct round_machine *core);
/* True if no round of steps opens yet because a worker was lost, on_worker_loss was WAIT, and the job still
 * waits for as many workers as before the loss. */
bool round_waits_for_lost(const struct round_machine *core);
const struct decision *round_last(const struct round_machine *core);
/* The client state of round_version; valid until the next event. False: the state is not known now, because
 * an epoch is changing or a decision is being carried out. */
bool round_client_state(const struct round_machine *core, const uint8_t **state_out,
                        size_t *state_bytes_out);
/* The terms of the open round, or of the last round. The core reads these terms and the terms of the newest
 * AMEND, and no others. */
const struct round_terms *round_terms_of(const struct round_machine *core);
/* True if the member's COMMIT of that round must bring the learning rates of driven groups. The caller
 * checks them before: each rate is finite, and the group's hyper-parameters with this rate are valid. */
bool round_takes_driven(const struct round_machine *core, uint64_t member, uint64_t round);
/* The learning rate of a group in the next round, by the newest terms; for a driven group, the rate with
 * which the newest version was made. */
double round_lr(const struct round_machine *core, uint32_t group);
/* The number of steps that a trained tensor missed. */
uint64_t round_missed(const struct round_machine *core, uint32_t tensor);
bool round_pin_pending(const struct round_machine *core);
/* The layout in force, which is the last durable layout. */
uint64_t round_layout_of(const struct round_machine *core);
/* The pending layout, which can still be forgotten. 0: no layout is pending, or the pending layout is being
 * made durable. */
uint64_t round_layout_pending(const struct round_machine *core);
uint32_t round_worker_count(const struct round_machine *core);
/* True if the worker contributes to the open round, decided or not. */
bool round_contributes(const struct round_machine *core, uint64_t member);
/* The longest time that the open round may still wait for workers that pause; 0: it waits for no such
 * worker. */
uint64_t round_paused_ms(const struct round_machine *core);
/* True if the open round waits for a worker that is alive and does not pause. */
bool round_waits_for_silent(const struct round_machine *core);
/* How many rounds ended in which way since this incarnation began. */
struct round_counts {
    uint64_t applied, skipped, abandoned;
};
struct round_counts round_counts_of(const struct round_machine *core);

/* Writes what the core waits for, as the end of a sentence: "shard 2 (not connected)", "worker of rank 1
 * (has not committed round 4711)", "2 more workers (1 of 3 attached)"; empty if it waits for nothing. */
struct round_names { /* the names of shards and workers, which the core knows only by number */
    /* Adds the name to `out`, and returns true. Returns false, and adds nothing, if there is no name: then
     * the number is written. */
    bool (*add)(const void *context, bool is_shard, uint32_t number, struct sentence *out);
    const void *context;
};
/* names may be NULL. */
void round_waiting(const struct round_machine *core, const struct round_names *names,
                   struct sentence *out);

#endif
