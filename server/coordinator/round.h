#ifndef CAIRN_COORDINATOR_ROUND_H
#define CAIRN_COORDINATOR_ROUND_H

#include "proto/spec/spec.h"
#include "server/base/log.h"
#include "server/coordinator/base.h"
#include "server/core/decision.h"
#include "server/core/round.h"

/* ==== core ==== */

/* The core of a job (server/core/round.h) decides the job's rounds and epochs. The core is told what
 * happens, and the coordinator carries out the actions that the core returns. */

/* Callbacks for the actions of a job's core, and for the loss of a job: parts.c. */
struct coord_callbacks {
    void (*act)(struct coord_job *job, const struct round_action *action);
    /* The core now uses the next layout, which is durable. This is called before the event's other
     * actions. */
    void (*in_force)(struct coord_job *job);
    /* An event is over, and the core may be entered again. */
    void (*after)(struct coord_job *job);
    /* The job is lost: whatever is under way for it ends. */
    void (*lost)(struct coord_job *job);
};

/* A job's core, and the state around it. */
struct coord_rounds {
    /* owned */
    void *core_memory;
    struct round_actions actions;
    /* the terms of the spec, the newest first; they are made with the plan or with the core. NULL: neither
     * plan nor core exists yet */
    struct coord_terms *terms;

    bool in_event;       /* true: the core is handling an event, and may not be entered again */
    bool heard;          /* the shards have reported the job's version to this core */
    bool persist_waits;  /* the core waits until epoch and reserved.round are durable */
    bool persist_failed; /* true: storing these two failed, and the tick tries again */
    struct log_limit persist_failures;
    /* Why the next epoch will begin, set by the code that causes it; empty: not set. */
    struct sentence epoch_reason;
    struct sentence epoch_why; /* why the present epoch began, for logs and workers */
    struct sentence put_out; /* the last worker that was put out at a step's deadline; for status */
    bool has_stepped;        /* a round was applied */
    uint64_t stepped_ms;     /* coord_now_ms: when a round was last applied; for status */
};

/* Makes the job's core, and tells it which of its shards are up. */
cairn_status coord_core_open(struct coord_job *job, struct sentence *why) CAIRN_MUST_CHECK;
void coord_job_core_close(struct coord_job *job);
/* Gives the core an event. Must not be called from within an event. */
void coord_job_event(struct coord_job *job, const struct round_event *event);
/* Tells the core the time, and repeats a write to the store that failed. */
void coord_job_tick(struct coord_job *job, uint64_t now_ms);
void coord_decision_to_message(const struct decision *decision, Cairn__Decision *out);

/* ==== terms ==== */

/* Terms: the parts of a spec that the core uses, and that an amendment may change between rounds. */

/* The parts of a spec that the core borrows. */
struct coord_terms {
    struct coord_terms *older; /* older terms that the core may still use */
    struct job_spec_data own;  /* owned: the groups, to whose points `core` refers */
    struct round_terms core;   /* the arrays in it are owned */
    uint32_t *frozen_tensors;  /* owned: [frozen_tensor_count], by index */
    size_t frozen_tensor_count;
    uint32_t *still; /* owned: [group_count], applied steps in a row with a learning rate of 0 */
};

/* Makes the terms of a spec that was judged already. */
cairn_status coord_terms_make(const struct job_spec_data *spec, struct coord_terms **terms_out,
                              struct sentence *why) CAIRN_MUST_CHECK;
void coord_terms_free(struct coord_terms *terms); /* and the older ones; NULL is fine */
/* A round is being applied: warns, once, of a group that has not learned for long. */
void coord_terms_applied(struct coord_job *job);

/* ==== halts ==== */

/* A job may halt because of skipped rounds, or because of results that are not finite: see round.c. */

/* The halts of a job that the log has reported. */
struct coord_halts {
    struct log_limit skips_limit, results_limit;
    struct cairn_version said; /* the version whose results were last examined */
    struct sentence lost;      /* the last worker that was lost, and how; empty: none was lost */
    bool loss_said;
};

/* The results that a shard reported of its part of a job. */
struct coord_part_results {
    struct results published; /* results of the version that the shard last published */
    /* results of gradients_round, the round whose sums it last reported */
    struct results gradients;
    uint64_t gradients_round; /* 0: it has reported none */
};

/* Takes a shard's report of the version that it has published. A shard repeats the report when it is asked
 * again. */
void coord_halts_take(struct coord_job *job, uint32_t shard, const Cairn__Published *message);
/* Counts the elements of the newest version whose results are not finite, and names their tensors
 * (proto/spec/spec.h). */
uint64_t coord_halts_nonfinite(const struct coord_job *job,
                               char tensors_out[static CAIRN_RESULTS_BYTES]);
/* Returns the results that are not finite, if they damage the job. A job with init_nonfinite_ok has
 * none. */
struct results coord_halts_damage(const struct coord_job *job);
/* Takes a shard's report that `nonfinite` elements of the sums of a round are not finite. */
void coord_halts_reduced(struct coord_job *job, uint32_t shard, const Cairn__Reduced *message,
                         uint64_t nonfinite);
/* Returns which gradients of that round are not finite, as far as shards reported this to this
 * coordinator. */
struct results coord_halts_gradients(const struct coord_job *job, uint64_t round);
/* Notes that the member is lost, and why, for messages about the loss. Called before the core is told. */
void coord_halts_lost(struct coord_job *job, const struct coord_member *member, const char *why);
/* Called after each event of the core: logs a new version if some of its results are not finite. */
void coord_halts_advance(struct coord_job *job);
/* Logs a round that was skipped because gradients were not finite. A skip that only lowers the loss scale
 * is normal, and is not logged. */
void coord_halts_skipped(struct coord_job *job, const struct decision *skip);
/* Says why no round opens, to whoever asks for one, and to the log. The job's core must be
 * halted. */
void coord_halts_why(const struct coord_job *job, struct sentence *out);

/* ==== pace ==== */

/* The speed of a job: the time from one version to the next, as measured here. Loop thread only. */

enum { CAIRN_PACE_STEPS = 32 };

/* The pace of a job's steps. Zero: nothing is known. */
struct coord_pace {
    struct cairn_version seen;
    /* when `seen` was reached; 0: not known, because it was reached before this process first looked */
    uint64_t seen_us;
    uint32_t us[CAIRN_PACE_STEPS]; /* durations of the last steps */
    uint32_t next, count;
    uint32_t last_us; /* duration of the last step; 0: no step was seen */
};

/* Called after an event of the core. Returns true if the event ended a step; the step took last_us. */
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
    uint32_t dealt[CAIRN_TIMES_STEPS]; /* micro-batches in each */
    uint32_t next, count;
    /* micro-batches of global_batch that are dealt to the worker in the step that it reports next; 0: none
     * are dealt */
    uint32_t micros;
    bool has_memory; /* the last report included its memory */
    Cairn__WorkerMemory memory;
};

/* Adds reported times to the ring. NULL: nothing was reported. Missing phases count as 0. */
void step_ring_take(struct step_ring *ring, const Cairn__StepTimes *told);
/* Fills in the medians; `out` is initialized and borrows `us`. False: there are no steps. */
bool step_ring_medians(const struct step_ring *ring, Cairn__StepTimes *out,
                       uint32_t us[CAIRN_TIMES_PHASES]);

/* Computes the medians of the last `steps` steps. Phases that grow with the number of micro-batches are
 * divided by that number. Returns false if the ring has fewer than steps / 2 steps. */
bool step_ring_recent(const struct step_ring *ring, uint32_t steps,
                      uint32_t us[CAIRN_TIMES_PHASES]);
/* Returns the median; for an even number of values, the upper one of the middle two. Sorts the values. */
uint32_t times_median(uint32_t *values, size_t count);

struct times_view {
    struct times_entry *entries; /* owned */
    Cairn__StepTimes **list;     /* owned: points into the entries */
};
/* Fills in `times` of the status. False: no memory. */
bool coord_times_show(const struct coord_job *job, struct times_view *view,
                      Cairn__JobStatus *status);
void coord_times_release(struct times_view *view);

/* ==== straggler ==== */

/* Finds the worker, and the phase, that delays a job's rounds. Two signs count. First: over the last steps,
 * a phase took one worker more than twice as long as the median of the other workers, and made each step at
 * least a tenth longer. Second: the open round has waited for a worker for more than a second, and longer
 * than two steps of the other workers. If a worker says that data which it fetches or has pushed is still
 * in flight, its link delays the worker, not its compute. A worker is named only if the case is clear. Loop
 * thread only. */

enum { CAIRN_STRAGGLER_STEPS = 8, CAIRN_STRAGGLER_LACKS = 8 };

/* The phases of a worker's step, as StepTimes has them. */
enum phase { CAIRN_PHASE_COMPUTE, CAIRN_PHASE_PUSH, CAIRN_PHASE_WAIT, CAIRN_PHASE_FETCH };

/* A worker's medians over its last CAIRN_STRAGGLER_STEPS steps. Where micro-batches are dealt, compute and
 * push are for one micro-batch, since one worker may have more micro-batches than another. */
struct straggler_sample {
    uint32_t us[CAIRN_TIMES_PHASES];
    uint32_t micros; /* micro-batches that it has in a step, at least 1 */
    bool told;       /* true: there are enough steps for a sample */
};
struct straggler_found {
    size_t index; /* in the samples */
    enum phase phase;
    uint32_t us, others_us; /* time of that phase: its own, and the median of the others */
    uint64_t longer_us;     /* how much longer a step is because of that */
};
/* Judges the last steps. Pure; scratch: [count]. Returns false if no worker clearly delays the others. */
bool straggler_find(const struct straggler_sample *samples, size_t count, uint32_t *scratch,
                    struct straggler_found *out);

/* A member from which a shard still lacks data of the round. begun: the shard has received a part of that
 * data. */
struct straggler_lack {
    uint64_t member;
    bool begun;
};

/* The straggler of a job. */
struct coord_straggler {
    /* the last round that opened, and when (coord_now_ms); round 0: a write */
    uint64_t round, opened_ms;
    uint64_t asked_ms; /* when its shards were asked from whom they lack something */
    bool answered;     /* a shard has answered since */
    struct straggler_lack lacks[CAIRN_STRAGGLER_LACKS]; /* from all shards that answered */
    uint32_t lack_count;
    /* the last finding. member 0: nobody. waited_ms: how long the open round waited; 0: the worker was
     * found by its last steps */
    uint64_t member, waited_ms;
    uint32_t others; /* how many other workers the open round also waits for */
    enum phase phase;
    bool flies; /* true: the open round waits for data in flight to or from the worker */
    uint32_t us, others_us;
    /* the last finding that was logged, and when */
    uint64_t said_member, said_ms;
    enum phase said_phase;
};

/* A round has opened: for a step or, if `write`, for a write. */
void coord_straggler_opened(struct coord_job *job, uint64_t round, bool write);
/* Takes a shard's report of what it lacks of the open round, sent at the step's deadline or because we
 * asked. */
void coord_straggler_lacks(struct coord_job *job, const Cairn__Lacks *lacks);
/* Judges again, and logs what is new. */
void coord_straggler_tick(struct coord_job *job);

/* A message with the text that it borrows. */
struct straggler_view {
    Cairn__Straggler told;
    struct sentence text;
};
/* Fills in `straggler` of the status; leaves it NULL if nobody delays the job. */
void coord_straggler_show(const struct coord_job *job, struct straggler_view *view,
                          Cairn__JobStatus *status);

/* ==== groups ==== */

/* Reduce groups: the workers of a host contribute together, through shards of their host (the shard's side
 * is server/shard/relay.h).
 *
 * If a job's spec asks for it, a round of steps is opened in groups: a host with two or more contributors
 * and a shard of the job forms a group, and its shards are the relays; every other worker contributes by
 * itself. Each relay serves some owners: itself, and the shards of other hosts that are assigned to it by
 * index. The coordinator tells an owner of its relays as if they were workers (one MemberJoin for each
 * relay, with the least rank of its group), and tells a relay of its workers and owners (RelaySet). Then it
 * sends each shard its own RoundOpen: the contributors, by least rank, are the relays that serve the shard
 * and the workers without a group. Workers are told nothing.
 *
 * Shards keep these groups for the following rounds, until a contributor or a shard joins or leaves. Then
 * the groups are formed again. If the groups differ, or a shard has forgotten them, the coordinator
 * withdraws all groups and sends them anew, with new numbers. Relays are not members of the job: they are
 * not counted, leased or stored. A new incarnation of the coordinator forms its own relays.
 *
 * The bits of a step depend on the groups, so the groups are logged when they change, shown in the status,
 * and written to the manifest of a snapshot. */

/* ---- groups.c: pure ---- */

#define CAIRN_GROUPS_ALONE UINT32_MAX

struct groups_plan {
    /* owned: freed by groups_plan_release */
    uint32_t *group_of; /* [worker_count] groups are numbered by their least rank */
    uint32_t *first;    /* [group_count] the group's worker of least rank */
    /* [relay_count] the shards that relay: one group after the other, ascending within a group */
    uint32_t *relays;
    /* [group_count] the end of each group's relays, exclusive; a group without relays is a worker alone */
    uint32_t *ends;
    uint32_t worker_count, group_count, relay_count;
};

/* Plans the groups from the host names of the contributors, by rank, and of the shards ("": not known, or a
 * shard that is away). CAIRN_ERR_NO_MEMORY. */
cairn_status groups_plan_make(const char *const *worker_hosts, uint32_t worker_count,
                              const char *const *shard_hosts, uint32_t shard_count,
                              struct groups_plan *plan_out) CAIRN_MUST_CHECK;
void groups_plan_release(struct groups_plan *plan);

/* Returns the index in plan->relays of the relay that serves the owner for that group; CAIRN_GROUPS_ALONE:
 * the worker itself does. */
uint32_t groups_relay_of(const struct groups_plan *plan, uint32_t group, uint32_t owner);

/* ---- what a job keeps of them ---- */

struct group_relay {
    uint64_t number, token; /* its identity as a member at its owners */
    uint32_t shard, group;
};

struct coord_groups {
    /* owned: for the last round of steps that opened */
    uint64_t *members; /* [plan.worker_count] ids of its workers, by rank */
    struct groups_plan plan;
    struct group_relay *relays; /* [plan.relay_count], as plan.relays */
    /* [shard_room] index in relays; CAIRN_GROUPS_ALONE: the shard does not relay */
    uint32_t *relay_of;
    char **names;     /* [now.group_count] "s0, s1"; NULL: not known, or no relay */
    uint64_t *opened; /* [plan.group_count] room for coord_groups_fill */
    /* owned: which ranks are added up together. now: in the present groups. before: in the last step that
     * was made by other groups */
    struct rank_groups now, before;
    bool made_step; /* `now` made the last step */
    /* owned: what shards know */
    /* [shard_room] true: the shard still has the connection on which it was told of the groups */
    bool *knows;
    /* [shard_room] true: the shard may have a RelaySet, from this incarnation or an earlier one */
    bool *may_relay;

    bool stale; /* a member or shard left: the groups must be judged again */
    bool tiled; /* the workers held tiles when the groups were formed */
    /* if there are no groups because a shard refused them: why it refused; empty: no shard refused */
    struct sentence refused;
    struct sentence off;  /* why there are no groups; empty: there are groups */
    struct sentence told; /* the last log line about them */
};

/* ---- groups.c ---- */

/* The job was loaded from the store: its shards may still relay as an earlier incarnation told them. */
cairn_status coord_groups_doubt(struct coord_job *job) CAIRN_MUST_CHECK;
/* The job was restored from a snapshot: these groups made its last step. */
cairn_status coord_groups_restored(struct coord_job *job,
                                   const struct rank_groups *groups) CAIRN_MUST_CHECK;
void coord_groups_free(struct coord_job *job);
/* The shards have dropped the groups that they were told, because the job has a new generation. */
void coord_groups_forget(struct coord_job *job);
/* The layout is changing: ends the relays, and makes owners forget the relays. The next round forms the
 * groups anew. */
void coord_groups_forget_sent(struct coord_job *job);
/* A member left: the next round judges the groups again. */
void coord_groups_member_gone(struct coord_job *job);
/* The shard's connection ended: the shard forgets members that it is not told of again. */
void coord_groups_shard_gone(struct coord_job *job, uint32_t shard);

/* A round of steps opens: forms the groups, and tells the shards what they do not know yet. False: the
 * round has no groups, so every shard gets the same RoundOpen. */
bool coord_groups_open(struct coord_job *job, uint64_t round, const uint64_t *members,
                       uint32_t member_count);
/* The open round is decided as a step. */
void coord_groups_stepped(struct coord_job *job);
/* Fills in the contributors of that round at a shard, and the shard's own relay. The result is
 * borrowed until the next call. */
void coord_groups_fill(const struct coord_job *job, uint32_t shard, Cairn__RoundOpen *open);
/* A shard reports a fault of `member`: returns true if the member is a relay. In that case the open round
 * is void, and there are no groups until a member or shard joins or leaves. */
bool coord_groups_fault(struct coord_job *job, uint64_t member, const char *text);

/* ---- what there is ---- */

/* The reason given wherever workers hold tiles in a job that asks for groups. */
#define CAIRN_GROUPS_NOT_OF_TILES "the workers hold tiles"

#define CAIRN_GROUPS_SHOWN 64
struct groups_view {
    Cairn__ReduceGroup groups[CAIRN_GROUPS_SHOWN];
    Cairn__ReduceGroup *list[CAIRN_GROUPS_SHOWN];
};
/* Shows the groups of the last round that opened, borrowed from the job. If workers hold tiles,
 * there are none. */
void coord_groups_show(const struct coord_job *job, struct groups_view *view,
                       Cairn__JobStatus *out);

#endif
