#ifndef CAIRN_COORDINATOR_ROUND_H
#define CAIRN_COORDINATOR_ROUND_H

#include "proto/spec/spec.h"
#include "server/base/log.h"
#include "server/coordinator/base.h"
#include "server/core/decision.h"
#include "server/core/round.h"

/* ==== core ==== */

/* The core of a job (server/core/round.h) decides its rounds and epochs: it is told what happens, and its
 * hands do what it says. */

/* Called when the core of a job says something, and when a job is lost: parts.c. */
struct coord_callbacks {
    void (*act)(struct coord_job *job, const struct round_action *action);
    /* The core goes by the next layout: it is durable. Before what the event asks for is done. */
    void (*in_force)(struct coord_job *job);
    /* An event is over, and the core may be entered again. */
    void (*after)(struct coord_job *job);
    /* The job is lost: what is under way for it ends. */
    void (*lost)(struct coord_job *job);
};

/* A job's core, and the state around it. */
struct coord_rounds {
    /* owned */
    void *core_memory;
    struct round_actions actions;
    /* of the spec, the newest first; made with the plan, or with the core. NULL: neither is there */
    struct coord_terms *terms;

    bool in_event;       /* the core is not entered twice */
    bool heard;          /* the shards have told this core the job's version */
    bool persist_waits;  /* the core waits until epoch and reserved.round are durable */
    bool persist_failed; /* they are to be stored again, by the tick */
    struct log_limit persist_failures;
    /* Why the next epoch will begin, set by whoever brings it about; empty: nobody has. */
    struct sentence epoch_reason;
    struct sentence epoch_why; /* why the present one began, for logs and workers */
    struct sentence put_out;   /* who was, last, at the step's deadline; for status */
    bool has_stepped;          /* a round was applied, */
    uint64_t stepped_ms;       /* coord_now_ms: then; for status */
};

/* Makes the job's core, and tells it which of its shards are up. */
cairn_status coord_core_open(struct coord_job *job, struct sentence *why) CAIRN_MUST_CHECK;
void coord_job_core_close(struct coord_job *job);
/* Not from within an event. */
void coord_job_event(struct coord_job *job, const struct round_event *event);
/* Tells the core the time, and stores again what could not be stored. */
void coord_job_tick(struct coord_job *job, uint64_t now_ms);
void coord_decision_to_message(const struct decision *decision, Cairn__Decision *out);

/* ==== terms ==== */

/* Terms: what the core goes by of a spec, which an amendment may change between rounds. */

/* The parts of a spec that the core borrows. */
struct coord_terms {
    struct coord_terms *older; /* the core may still go by them */
    struct job_spec_data own;  /* owned: the groups, for their points */
    struct round_terms core;   /* its arrays are owned */
    uint32_t *frozen_tensors;  /* owned: [frozen_tensor_count], by index */
    size_t frozen_tensor_count;
    uint32_t *still; /* owned: [group_count], applied steps in a row with a learning rate of 0 */
};

/* Makes the terms of a spec that was judged. */
cairn_status coord_terms_make(const struct job_spec_data *spec, struct coord_terms **terms_out,
                              struct sentence *why) CAIRN_MUST_CHECK;
void coord_terms_free(struct coord_terms *terms); /* and the older; NULL is fine */
/* A round is being applied: warns, once, of a group that does not learn for long. */
void coord_terms_applied(struct coord_job *job);

/* ==== halts ==== */

/* A job may halt for rounds that are skipped, and for results that are not finite: see round.c. */

/* The halts of a job that the log was told of. */
struct coord_halts {
    struct log_limit skips_limit, results_limit;
    struct cairn_version said; /* it was looked at the results of this one */
    struct sentence lost;      /* the worker that was lost last, and how; empty: none was */
    bool loss_said;
};

/* The results that a shard told of its part of a job. */
struct coord_part_results {
    struct results published; /* of the version that the shard published last */
    struct results gradients; /* of gradients_round, whose sums it told last */
    uint64_t gradients_round; /* 0: it has told none */
};

/* Takes a shard's report of the version that it has published; asked again, a shard reports the
 * same again. */
void coord_halts_take(struct coord_job *job, uint32_t shard, const Cairn__Published *message);
/* Elements of the newest version with a result that is not finite, and their tensors
 * (proto/spec/spec.h). */
uint64_t coord_halts_nonfinite(const struct coord_job *job,
                               char tensors_out[static CAIRN_RESULTS_BYTES]);
/* The same of a job that is damaged by them: of one with init_nonfinite_ok, none. */
struct results coord_halts_damage(const struct coord_job *job);
/* Takes a shard's report that so many elements of the sums of a round are not finite. */
void coord_halts_reduced(struct coord_job *job, uint32_t shard, const Cairn__Reduced *message,
                         uint64_t nonfinite);
/* The gradients of that round that are not finite, as far as shards told this coordinator. */
struct results coord_halts_gradients(const struct coord_job *job, uint64_t round);
/* The member is lost: who it is, and why, for what is said of it. Before the core hears of it. */
void coord_halts_lost(struct coord_job *job, const struct coord_member *member, const char *why);
/* After each event of the core: of a new version that has some, the log says so. */
void coord_halts_advance(struct coord_job *job);
/* The log hears of a skip for want of finite gradients. One that lowers the loss scale is the way things
 * go. */
void coord_halts_skipped(struct coord_job *job, const struct decision *skip);
/* Says why no round opens, to whoever asks for one, and to the log. The job's core must be
 * halted. */
void coord_halts_why(const struct coord_job *job, struct sentence *out);

/* ==== pace ==== */

/* How fast a job goes: the time from one version to the next, as it passes here. Loop thread only. */

enum { CAIRN_PACE_STEPS = 32 };

/* The pace of a job's steps. Zero: nothing is known. */
struct coord_pace {
    struct cairn_version seen;
    uint64_t seen_us;              /* when it came; 0: it was there before */
    uint32_t us[CAIRN_PACE_STEPS]; /* of the last steps */
    uint32_t next, count;
    uint32_t last_us; /* the last step; 0: none was seen */
};

/* An event of the core is over. True: with it a step is, which took last_us. */
bool coord_pace_advance(struct coord_job *job);
/* A step took so long. */
void coord_pace_note(struct coord_pace *pace, uint32_t us);
/* The median of the last steps, in microseconds; 0: not known. */
uint32_t coord_pace_median(const struct coord_pace *pace);
/* Nobody trains: no worker is there, or no step came for a second and for longer than three usual ones. */
bool coord_pace_rests(const struct coord_job *job);
/* It trains, by steps of a second at most, and one of them is about to end: it can be waited for. */
bool coord_pace_nears_step(const struct coord_job *job);

/* ==== times ==== */

/* How long the last steps took, by phase: each worker's as it tells with its commits, each shard's as it
 * tells with what it publishes; and who of the workers the others wait for. Loop thread only. */

enum { CAIRN_TIMES_STEPS = 32, CAIRN_TIMES_PHASES = 4 };

/* The last steps. Zero: none. */
struct step_ring {
    uint32_t us[CAIRN_TIMES_STEPS][CAIRN_TIMES_PHASES];
    uint32_t dealt[CAIRN_TIMES_STEPS]; /* micro-batches in each */
    uint32_t next, count;
    uint32_t
        micros; /* of global_batch: dealt to the worker in the step that it tells of next; 0: none are */
    bool has_memory; /* told with the last of them */
    Cairn__WorkerMemory memory;
};

/* NULL: it was not told. Phases that are missing are 0. */
void step_ring_take(struct step_ring *ring, const Cairn__StepTimes *told);
/* Medians; `out` is initialized and borrows `us`. False: there are no steps. */
bool step_ring_medians(const struct step_ring *ring, Cairn__StepTimes *out,
                       uint32_t us[CAIRN_TIMES_PHASES]);

/* The same of the last so many, and of what is the longer the more micro-batches were dealt: for one of them.
 * False: there are not half as many steps. */
bool step_ring_recent(const struct step_ring *ring, uint32_t steps,
                      uint32_t us[CAIRN_TIMES_PHASES]);
/* The upper one of two. Puts them in order. */
uint32_t times_median(uint32_t *values, size_t count);

struct times_view {
    struct times_entry *entries; /* owned */
    Cairn__StepTimes **list;     /* owned: to those of the entries */
};
/* Fills in `times` of the status. False: no memory. */
bool coord_times_show(const struct coord_job *job, struct times_view *view,
                      Cairn__JobStatus *status);
void coord_times_release(struct times_view *view);

/* ==== straggler ==== */

/* Finds who holds a job's rounds up, by worker and phase. Two signs count. Over the last steps,
 * a phase takes one worker more than twice as long as the middle of the others, and a step is at
 * least a tenth longer for it. Or the open round has waited for a worker for more than a second,
 * and longer than two of the others' steps. A worker that says that what it fetches or has
 * pushed is still on its way is held up by its link, not by its compute. Nobody is named unless
 * it is clear. Loop thread only. */

enum { CAIRN_STRAGGLER_STEPS = 8, CAIRN_STRAGGLER_LACKS = 8 };

/* The phases of a worker's step, as StepTimes has them. */
enum phase { CAIRN_PHASE_COMPUTE, CAIRN_PHASE_PUSH, CAIRN_PHASE_WAIT, CAIRN_PHASE_FETCH };

/* A worker's medians over its last CAIRN_STRAGGLER_STEPS steps. Where micro-batches are dealt,
 * compute and push are for one micro-batch, since one worker may have more of them than another. */
struct straggler_sample {
    uint32_t us[CAIRN_TIMES_PHASES];
    uint32_t micros; /* that it has in a step, at least 1 */
    bool told;       /* there are enough of them */
};
struct straggler_found {
    size_t index; /* in the samples */
    enum phase phase;
    uint32_t us, others_us; /* of that phase: its own, the middle of the others */
    uint64_t longer_us;     /* a step is, by that */
};
/* Judges the last steps. Pure; scratch: [count]. False: nobody clearly holds the others up. */
bool straggler_find(const struct straggler_sample *samples, size_t count, uint32_t *scratch,
                    struct straggler_found *out);

/* A member of whom a shard lacks something of the round; begun: it has a part of it. */
struct straggler_lack {
    uint64_t member;
    bool begun;
};

/* The straggler of a job. */
struct coord_straggler {
    uint64_t round, opened_ms; /* coord_now_ms: the last round that opened; round 0: a write */
    uint64_t asked_ms;         /* its shards were asked whom they lack */
    bool answered;             /* a shard has, since */
    struct straggler_lack lacks[CAIRN_STRAGGLER_LACKS]; /* of all shards that answered */
    uint32_t lack_count;
    /* what was found last; member 0: nobody */
    uint64_t member, waited_ms; /* waited_ms: by the open round; 0: over the last steps */
    uint32_t others;            /* beside it, for whom the open round waits, too */
    enum phase phase;
    bool flies; /* the open round waits for what is on its way to or from the worker */
    uint32_t us, others_us;
    /* what the log was told, and when */
    uint64_t said_member, said_ms;
    enum phase said_phase;
};

/* A round is open, of steps or (write) of a write. */
void coord_straggler_opened(struct coord_job *job, uint64_t round, bool write);
/* Takes a shard's word of what it lacks of the open round, at the step's deadline or since we
 * asked. */
void coord_straggler_lacks(struct coord_job *job, const Cairn__Lacks *lacks);
/* Judges anew, and tells the log what is new. */
void coord_straggler_tick(struct coord_job *job);

/* A message with what it borrows. */
struct straggler_view {
    Cairn__Straggler told;
    struct sentence text;
};
/* Fills in `straggler` of the status; NULL stays where nobody holds the job up. */
void coord_straggler_show(const struct coord_job *job, struct straggler_view *view,
                          Cairn__JobStatus *status);

/* ==== groups ==== */

/* Reduce groups: the workers of a host contribute together, through shards of their host
 * (the shard's side is server/shard/relay.h).
 *
 * If a job's spec says so, a round of steps is opened in groups: a host with two or more
 * contributors and a shard of the job is a group, and its shards are the relays; every other worker
 * contributes by itself. Each relay serves some owners: itself, and those shards of other hosts
 * whose index falls to it. An owner is told of its relays as of workers (MemberJoin: one member a
 * relay, whose rank is the group's least), and a relay is told of its workers and owners
 * (RelaySet). Then comes RoundOpen, made for each shard: its contributors, by least rank, are the
 * relays that serve it and the workers that are alone. Workers are told nothing.
 *
 * Shards keep these groups for the rounds that follow, until a contributor or a shard comes or
 * goes. Then the groups are formed again, and if they are others, or a shard has forgotten them,
 * all of it is taken back and told anew, with new numbers. Relays are no members of the job: they
 * are not counted, leased or stored, and a new incarnation forms its own.
 *
 * The bits of a step depend on the groups, so they are logged when they change, shown, and stand
 * in the manifest of a snapshot. */

/* ---- groups.c: pure ---- */

#define CAIRN_GROUPS_ALONE UINT32_MAX

struct groups_plan {
    /* owned: freed by groups_plan_release */
    uint32_t *group_of; /* [worker_count] groups are numbered by their least rank */
    uint32_t *first;    /* [group_count] its worker of least rank */
    uint32_t *relays;   /* [relay_count] shards, ascending in a group, group behind group */
    uint32_t *ends;     /* [group_count] of each group's relays, one behind its last; none: alone */
    uint32_t worker_count, group_count, relay_count;
};

/* Contributors by rank and shards, each by the name of its host ("": not known, or a shard that is away).
 * CAIRN_ERR_NO_MEMORY. */
cairn_status groups_plan_make(const char *const *worker_hosts, uint32_t worker_count,
                              const char *const *shard_hosts, uint32_t shard_count,
                              struct groups_plan *plan_out) CAIRN_MUST_CHECK;
void groups_plan_release(struct groups_plan *plan);

/* Which of plan->relays serves the owner in that group; CAIRN_GROUPS_ALONE: its worker does. */
uint32_t groups_relay_of(const struct groups_plan *plan, uint32_t group, uint32_t owner);

/* ---- what a job keeps of them ---- */

struct group_relay {
    uint64_t number, token; /* as a member of owners */
    uint32_t shard, group;
};

struct coord_groups {
    /* owned: of the last round of steps that opened */
    uint64_t *members; /* [plan.worker_count] by rank */
    struct groups_plan plan;
    struct group_relay *relays; /* [plan.relay_count], as plan.relays */
    uint32_t *relay_of; /* [shard_room] place in relays; CAIRN_GROUPS_ALONE: it does not relay */
    char **names;       /* [now.group_count] "s0, s1"; NULL: not known, or no relay */
    uint64_t *opened;   /* [plan.group_count] for coord_groups_fill */
    /* owned: who is added up together; before: in the last step that others than `now` made */
    struct rank_groups now, before;
    bool made_step; /* `now` made the last one */
    /* owned: of shards */
    bool *knows;     /* [shard_room] its connection is the one on which it was told */
    bool *may_relay; /* [shard_room] it may have a RelaySet, of this incarnation or another */

    bool stale;              /* somebody went: look again */
    bool tiled;              /* the workers held tiles */
    struct sentence refused; /* by a shard: no groups; empty: none did */
    struct sentence off;     /* why there are none; empty: there are */
    struct sentence told;    /* of the last log line */
};

/* ---- groups.c ---- */

/* A job that was in the store: its shards may relay for what an incarnation before this one told them. */
cairn_status coord_groups_doubt(struct coord_job *job) CAIRN_MUST_CHECK;
/* A snapshot became the job: these groups made its last step. */
cairn_status coord_groups_restored(struct coord_job *job,
                                   const struct rank_groups *groups) CAIRN_MUST_CHECK;
void coord_groups_free(struct coord_job *job);
/* The shards have dropped what they were told: another generation of the job. */
void coord_groups_forget(struct coord_job *job);
/* Another layout comes: relays end, and owners forget them; the next round forms the groups anew. */
void coord_groups_forget_sent(struct coord_job *job);
/* A member left: the next round looks again. */
void coord_groups_member_gone(struct coord_job *job);
/* The shard's connection ended: it forgets members that it is not told of again. */
void coord_groups_shard_gone(struct coord_job *job, uint32_t shard);

/* A round of steps opens: forms the groups, and tells the shards what they do not know yet. False: there
 * are none in it, every shard is opened alike. */
bool coord_groups_open(struct coord_job *job, uint64_t round, const uint64_t *members,
                       uint32_t member_count);
/* The open round is decided: it is a step. */
void coord_groups_stepped(struct coord_job *job);
/* The contributors of that round at a shard, and as what it relays; borrowed until the next call. */
void coord_groups_fill(const struct coord_job *job, uint32_t shard, Cairn__RoundOpen *open);
/* A shard cannot do with that relay: true if it is one. There are no groups then until somebody comes or
 * goes, and the open round is void. */
bool coord_groups_fault(struct coord_job *job, uint64_t member, const char *text);

/* ---- what there is ---- */

/* Said wherever workers hold tiles in a job that wants groups. */
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
