#ifndef CAIRN_COORDINATOR_ROUND_H
#define CAIRN_COORDINATOR_ROUND_H

#include "proto/spec/spec.h"
#include "server/base/log.h"
#include "server/coordinator/base.h"
#include "server/core/decision.h"
#include "server/core/round.h"

/* ==== core ==== */

/* The core of a job (server/core/round.h) decides the job's rounds and epochs. The coordinator tells the
 * core what happens, and carries out the actions that the core returns. */

/* Callbacks for the actions of a job's core, and for the loss of a job. They are in parts.c. */
struct coord_callbacks {
    void (*act)(struct coord_job *job, const struct round_action *action);
    /* The core now uses the next layout, which is durable. This is called before the event's other
     * actions. */
    void (*in_force)(struct coord_job *job);
    /* An event is over, and the core may be entered again. */
    void (*after)(struct coord_job *job);
    /* The job is lost: everything that is under way for the job ends. */
    void (*lost)(struct coord_job *job);
};

/* Makes the job's core, and tells it which of the job's shards are up. */
cairn_status coord_core_open(struct coord_job *job, struct sentence *why) CAIRN_MUST_CHECK;
void coord_job_core_close(struct coord_job *job);
/* Gives the core an event. Must not be called from within an event. */
void coord_job_event(struct coord_job *job, const struct round_event *event);
/* Tells the core the time. If a write to the store has failed, repeats it. */
void coord_job_tick(struct coord_job *job, uint64_t now_ms);
void coord_decision_to_message(const struct decision *decision, Cairn__Decision *out);

/* ==== terms ==== */

/* Terms: the parts of a spec that the core uses. An amendment may change them between two rounds. */

/* The parts of a spec that the core borrows. */
struct coord_terms {
    struct coord_terms *older; /* older terms that the core may still use */
    /* owned: the groups. `core` points to the points of their schedules */
    struct job_spec_data own;
    struct round_terms core;  /* the arrays in this struct are owned */
    uint32_t *frozen_tensors; /* owned: [frozen_tensor_count], by index */
    size_t frozen_tensor_count;
    /* owned: [group_count]: for how many applied steps in a row the group's learning rate was 0 */
    uint32_t *still;
};

/* Makes the terms of a spec that was judged already. */
cairn_status coord_terms_make(const struct job_spec_data *spec, struct coord_terms **terms_out,
                              struct sentence *why) CAIRN_MUST_CHECK;
void coord_terms_free(struct coord_terms *terms); /* frees also the older terms; NULL is fine */
/* A round is being applied: if a group has not learned for long, warns once. */
void coord_terms_applied(struct coord_job *job);

/* ==== halts ==== */

/* A job may halt because of skipped rounds, or because of results that are not finite. Both are explained
 * in round.c. */

/* The halts and losses of a job that the log has reported. */
struct coord_halts {
    struct log_limit skips_limit, results_limit;
    struct cairn_version said; /* the version whose results were last examined */
    struct sentence lost;      /* the last worker that was lost, and how; empty: none was lost */
    bool loss_said;
};

/* The results that a shard has reported for its part of a job. */
struct coord_part_results {
    struct results published; /* results of the version that the shard last published */
    /* results of gradients_round, which is the round whose sums the shard last reported */
    struct results gradients;
    uint64_t gradients_round; /* 0: the shard has reported none */
};

/* Takes a shard's report that it has published a version. A shard repeats the report when it is asked
 * again. */
void coord_halts_take(struct coord_job *job, uint32_t shard, const Cairn__Published *message);
/* Returns how many elements of the newest version have results that are not finite, and names the tensors
 * of these elements (proto/spec/spec.h). */
uint64_t coord_halts_nonfinite(const struct coord_job *job,
                               char tensors_out[static CAIRN_RESULTS_BYTES]);
/* Returns the results that are not finite, if they damage the job. In a job with init_nonfinite_ok they do
 * not. */
struct results coord_halts_damage(const struct coord_job *job);
/* Takes a shard's report that `nonfinite` elements of the sums of a round are not finite. */
void coord_halts_reduced(struct coord_job *job, uint32_t shard, const Cairn__Reduced *message,
                         uint64_t nonfinite);
/* Returns which gradients of that round are not finite. The coordinator knows this only as far as shards
 * have reported it since the coordinator started. */
struct results coord_halts_gradients(const struct coord_job *job, uint64_t round);
/* Notes that the member is lost and why, because messages about the loss say this. Called before the core
 * is told. */
void coord_halts_lost(struct coord_job *job, const struct coord_member *member, const char *why);
/* Called after each event of the core: logs the loss of a worker, and each new version that has results
 * which are not finite. */
void coord_halts_advance(struct coord_job *job);
/* Logs a round that was skipped because gradients were not finite. A skip that only lowers the loss scale
 * is normal, and is not logged. */
void coord_halts_skipped(struct coord_job *job, const struct decision *skip);
/* Writes why no round opens, for the answers to members that ask for a round, and for the log. The job's
 * core must be halted. */
void coord_halts_why(const struct coord_job *job, struct sentence *out);

/* ==== pace ==== */

/* The speed of a job: the time from one version to the next, as measured here. Loop thread only. */

enum { CAIRN_PACE_STEPS = 32 };

/* The pace of a job's steps. Zero: nothing is known. */
struct coord_pace {
    struct cairn_version seen;
    /* when `seen` was reached; 0: not known, because `seen` was reached before this process first looked */
    uint64_t seen_us;
    uint32_t us[CAIRN_PACE_STEPS]; /* durations of the last steps */
    uint32_t next, count;
    uint32_t last_us; /* duration of the last step; 0: no step was seen */
};

/* Called after an event of the core. Returns true if the event ended a step, which took last_us. */
bool coord_pace_advance(struct coord_job *job);
/* Notes that a step took `us` microseconds. */
void coord_pace_note(struct coord_pace *pace, uint32_t us);
/* Returns the median of the last steps, in microseconds; 0: not known. */
uint32_t coord_pace_median(const struct coord_pace *pace);
/* Returns true if nobody trains: there is no worker, or the last step ended more than a second and more
 * than three usual steps ago. */
bool coord_pace_rests(const struct coord_job *job);
/* Returns true if the job trains with steps of a second at most, and a step is about to end. The caller can
 * then wait for the end of the step. */
bool coord_pace_nears_step(const struct coord_job *job);

/* ==== times ==== */

/* How long the last steps took, by phase, and which worker the others wait for. Each worker reports its
 * times with its commits, each shard with the versions that it publishes. Loop thread only. */

enum { CAIRN_TIMES_STEPS = 32, CAIRN_TIMES_PHASES = 4 };

/* The last steps. Zero: none. */
struct step_ring {
    uint32_t us[CAIRN_TIMES_STEPS][CAIRN_TIMES_PHASES];
    uint32_t dealt[CAIRN_TIMES_STEPS]; /* number of micro-batches in each step */
    uint32_t next, count;
    /* number of micro-batches, out of global_batch, that are dealt to the worker in the step that it
     * reports next; 0: none are dealt */
    uint32_t micros;
    bool has_memory; /* true: the last report included the worker's memory */
    Cairn__WorkerMemory memory;
};

/* Adds the reported times to the ring. `told` may be NULL: nothing was reported. Phases that are missing
 * count as 0. */
void step_ring_take(struct step_ring *ring, const Cairn__StepTimes *told);
/* Fills in the medians; `out` is initialized and borrows `us`. False: there are no steps. */
bool step_ring_medians(const struct step_ring *ring, Cairn__StepTimes *out,
                       uint32_t us[CAIRN_TIMES_PHASES]);

/* Computes the medians of the last `steps` steps. Phases that grow with the number of micro-batches are
 * divided by that number. Returns false if the ring has fewer than steps / 2 steps. */
bool step_ring_recent(const struct step_ring *ring, uint32_t steps,
                      uint32_t us[CAIRN_TIMES_PHASES]);
/* Returns the median. If the number of values is even, this is the greater of the two middle values. Sorts
 * the values. */
uint32_t times_median(uint32_t *values, size_t count);

/* Fills in `times` of the status. */
void coord_times_show(const struct coord_job *job, struct coord_answer *answer,
                      Cairn__JobStatus *status);

/* ==== straggler ==== */

/* Finds the worker that delays a job's rounds, and the phase in which it does so. Two signs count. The
 * first sign is about the last steps: one worker needed more than twice as long for a phase as the median
 * of the other workers, and this made each step at least a tenth longer. The second sign is about the open
 * round: it has waited for a worker for more than a second, and for longer than the other workers need for
 * two steps. If a worker says that data is still in flight, which it fetches or has pushed, the worker is
 * slow because of its link, and not because of its compute. A worker is named only if the case is clear.
 * Loop thread only. */

enum { CAIRN_STRAGGLER_STEPS = 8, CAIRN_STRAGGLER_LACKS = 8 };

/* The phases of a worker's step, as StepTimes has them. */
enum phase { CAIRN_PHASE_COMPUTE, CAIRN_PHASE_PUSH, CAIRN_PHASE_WAIT, CAIRN_PHASE_FETCH };

/* A worker's medians over its last CAIRN_STRAGGLER_STEPS steps. If micro-batches are dealt, the times of
 * compute and push are for one micro-batch, because one worker may have more micro-batches than another. */
struct straggler_sample {
    uint32_t us[CAIRN_TIMES_PHASES];
    uint32_t micros; /* number of micro-batches that the worker has in a step, at least 1 */
    bool told;       /* true: there are enough steps for a sample */
};
struct straggler_found {
    size_t index; /* index of the worker in the samples */
    enum phase phase;
    /* us: the worker's time in this phase. others_us: the median of the other workers' times in it */
    uint32_t us, others_us;
    uint64_t longer_us; /* how much longer a step takes because of this worker */
};
/* Judges the last steps. Pure; scratch: [count]. Returns false if no worker clearly delays the others. */
bool straggler_find(const struct straggler_sample *samples, size_t count, uint32_t *scratch,
                    struct straggler_found *out);

/* A member from which a shard still lacks data of the round. begun: the shard has received some of this
 * data. */
struct straggler_lack {
    uint64_t member;
    bool begun;
};

/* The straggler of a job. */
struct coord_straggler {
    /* round: the last round that opened; 0: a write. opened_ms (coord_now_ms): when the round opened */
    uint64_t round, opened_ms;
    uint64_t asked_ms; /* when the shards were asked from which members they lack data */
    bool answered;     /* true: a shard has answered since then */
    /* the data that shards lack, from all shards that have answered */
    struct straggler_lack lacks[CAIRN_STRAGGLER_LACKS];
    uint32_t lack_count;
    /* the last finding. member: who delays the job; 0: nobody. waited_ms: how long the open round has
     * waited for the member; 0: the member was found by its last steps */
    uint64_t member, waited_ms;
    uint32_t others; /* the number of other workers that the open round waits for */
    enum phase phase;
    bool flies; /* true: the open round waits for data in flight to or from the worker */
    uint32_t us, others_us;
    /* the last finding that was logged, and when it was logged */
    uint64_t said_member, said_ms;
    enum phase said_phase;
};

/* A round has opened, for a step or (if `write`) for a write. */
void coord_straggler_opened(struct coord_job *job, uint64_t round, bool write);
/* Takes a shard's report of the data that it lacks for the open round. The shard sends such a report at the
 * step's deadline, or when it is asked. */
void coord_straggler_lacks(struct coord_job *job, const Cairn__Lacks *lacks);
/* Judges again, and logs what is new. */
void coord_straggler_tick(struct coord_job *job);

/* Fills in `straggler` of the status. If nobody delays the job, leaves `straggler` NULL. */
void coord_straggler_show(const struct coord_job *job, struct coord_answer *answer,
                          Cairn__JobStatus *status);

/* ==== rounds ==== */

/* A job's core, and the state around it. */
struct coord_rounds {
    /* owned */
    void *core_memory;
    struct round_actions actions;
    /* the terms of the spec, the newest first, made together with the plan or the core. NULL: neither the
     * plan nor the core exists yet */
    struct coord_terms *terms;

    bool in_event; /* true: the core is handling an event, and may not be entered again */
    bool heard;    /* true: the shards have reported the job's version to this core */
    /* true: the core waits until the job's epoch and reserved.round are durable */
    bool persist_waits;
    /* true: the epoch and reserved.round could not be stored, and the tick tries again */
    bool persist_failed;
    struct log_limit persist_failures;
    /* Why the next epoch will begin, set by the code that causes the epoch; empty: not set. */
    struct sentence epoch_reason;
    struct sentence epoch_why; /* why the present epoch began, for logs and workers */
    struct sentence put_out; /* for status: the last worker that was put out at a step's deadline */
    bool has_stepped;        /* true: a round was applied */
    uint64_t stepped_ms;     /* coord_now_ms, for status: when a round was last applied */
    struct coord_pace pace;
    struct coord_straggler straggler;
};

/* ==== groups ==== */

/* Reduce groups: the workers of a host contribute together, through shards of their host (the shard's side
 * is server/shard/relay.h).
 *
 * If a job's spec asks for groups, each round of steps is opened in groups. A host that has two or more
 * contributors and a shard of the job forms a group, and the shards of this host are the group's relays.
 * Every other worker contributes by itself. Each relay serves some shards, which are called its owners:
 * itself, and shards of other hosts, which are assigned to it by index. The coordinator tells an owner
 * about its relays as if they were workers (one MemberJoin for each relay, with the least rank of the
 * relay's group). It tells a relay about its workers and owners (RelaySet). Then the coordinator sends each
 * shard a RoundOpen of its own. In it the contributors, in the order of their least ranks, are the relays
 * that serve the shard and the workers without a group. Workers are told nothing.
 *
 * Shards use the same groups in the following rounds, until a contributor or a shard joins or leaves. The
 * groups are then formed again. If the groups differ, or a shard has forgotten them, the coordinator
 * withdraws all groups and sends them anew, with new numbers. Relays are not members of the job: they are
 * not counted, leased or stored. A new incarnation of the coordinator forms its own relays.
 *
 * The bits of a step depend on the groups, so the groups are logged when they change, shown in the status,
 * and written to the manifest of a snapshot. */

/* ---- groups.c: pure ---- */

#define CAIRN_GROUPS_ALONE UINT32_MAX

struct groups_plan {
    /* owned: freed by groups_plan_release */
    /* [worker_count]: the group of each worker; groups are numbered in the order of their least ranks */
    uint32_t *group_of;
    uint32_t *first; /* [group_count]: the worker of least rank in each group */
    /* [relay_count]: the shards that relay, one group after the other; within a group their indices
     * ascend */
    uint32_t *relays;
    /* [group_count]: the index after each group's last relay. A group without relays is one worker alone */
    uint32_t *ends;
    uint32_t worker_count, group_count, relay_count;
};

/* Plans the groups from the names of hosts: worker_hosts of the contributors, by rank, shard_hosts of the
 * shards. A name "" means that the host is not known, or that the shard is away. CAIRN_ERR_NO_MEMORY. */
cairn_status groups_plan_make(const char *const *worker_hosts, uint32_t worker_count,
                              const char *const *shard_hosts, uint32_t shard_count,
                              struct groups_plan *plan_out) CAIRN_MUST_CHECK;
void groups_plan_release(struct groups_plan *plan);

/* Returns which relay of the group serves the owner, as an index in plan->relays. CAIRN_GROUPS_ALONE: the
 * group has no relay, and its worker contributes by itself. */
uint32_t groups_relay_of(const struct groups_plan *plan, uint32_t group, uint32_t owner);

/* ---- a job's groups ---- */

struct group_relay {
    uint64_t number, token; /* the relay's identity as a member, for its owners */
    uint32_t shard, group;
};

struct coord_groups {
    /* owned: the next fields are for the last round of steps that opened */
    uint64_t *members; /* [plan.worker_count]: ids of the round's workers, by rank */
    struct groups_plan plan;
    struct group_relay *relays; /* [plan.relay_count]: in the order of plan.relays */
    /* [shard_room]: index of each shard in relays; CAIRN_GROUPS_ALONE: the shard does not relay */
    uint32_t *relay_of;
    /* [now.group_count]: the group's relays, such as "s0, s1"; NULL: not known, or no relay */
    char **names;
    uint64_t *opened; /* [plan.group_count]: memory that coord_groups_fill uses */
    /* owned: which ranks are added up together. now: the ranks of the present groups. before: those of the
     * last step that other groups made */
    struct rank_groups now, before;
    bool made_step; /* true: the groups `now` made the last step */
    /* owned: the next fields say what the shards know */
    /* [shard_room]: true: the shard still has the connection on which it was told the groups */
    bool *knows;
    /* [shard_room]: true: the shard may have a RelaySet, from this incarnation of the coordinator or an
     * earlier one */
    bool *may_relay;

    bool stale; /* true: a member or a shard has left, so the groups must be judged again */
    bool tiled; /* true: the workers held tiles when the groups were formed */
    /* why a shard has refused the groups, so that there are none; empty: no shard has refused them */
    struct sentence refused;
    struct sentence off;  /* why there are no groups; empty: there are groups */
    struct sentence told; /* the last log line about the groups */
};

/* ---- groups.c ---- */

/* The job was loaded from the store: notes that its shards may still be relays, as an earlier incarnation
 * of the coordinator told them. */
cairn_status coord_groups_doubt(struct coord_job *job) CAIRN_MUST_CHECK;
/* The job was restored from a snapshot: notes which groups made the last step. */
cairn_status coord_groups_restored(struct coord_job *job,
                                   const struct rank_groups *groups) CAIRN_MUST_CHECK;
void coord_groups_free(struct coord_job *job);
/* The job has a new generation: notes that the shards have dropped the groups. */
void coord_groups_forget(struct coord_job *job);
/* The layout is changing: ends the relays, and makes their owners forget them. The next round forms the
 * groups anew. */
void coord_groups_forget_sent(struct coord_job *job);
/* A member left: the next round judges the groups again. */
void coord_groups_member_gone(struct coord_job *job);
/* The shard's connection ended: notes that the shard no longer knows the groups. */
void coord_groups_shard_gone(struct coord_job *job, uint32_t shard);

/* A round of steps opens: forms the groups, and tells the shards about new groups. Returns false if the
 * round has no groups; every shard then gets the same RoundOpen. */
bool coord_groups_open(struct coord_job *job, uint64_t round, const uint64_t *members,
                       uint32_t member_count);
/* The open round has become a step: notes which groups made it. */
void coord_groups_stepped(struct coord_job *job);
/* Fills in the round's contributors for one shard, and the relay that the shard itself is. Both are
 * borrowed until the next call. */
void coord_groups_fill(const struct coord_job *job, uint32_t shard, Cairn__RoundOpen *open);
/* A shard reports a fault of `member`: returns true if the member is a relay. In that case the open round
 * is void, and there are no groups until a member or a shard joins or leaves. */
bool coord_groups_fault(struct coord_job *job, uint64_t member, const char *text);

/* ---- status ---- */

/* The reason given wherever workers hold tiles in a job that asks for groups. */
#define CAIRN_GROUPS_NOT_OF_TILES "the workers hold tiles"

#define CAIRN_GROUPS_SHOWN 64
/* Shows the groups of the last round that opened, borrowed from the job. If workers hold tiles,
 * there are none. */
void coord_groups_show(const struct coord_job *job, struct coord_answer *answer,
                       Cairn__JobStatus *out);

#endif
