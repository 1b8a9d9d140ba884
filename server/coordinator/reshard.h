/* A job is spread over other shards, or otherwise, while it goes on: a re-sharding, in slices.
 *
 *   reshard.c        run    which step is next: shards join, slices follow each other, the end
 *                    slice  the machine of one slice (server/core/move.h), and the words to shards
 *                    join   shards that have no part yet get one that owns nothing
 *   reshard_plan.c   plan   over which shards, where to
 *                    wish   what is asked for: by the run itself, or all that is here
 *                    pace   how large a slice is while steps are made, and when one may begin
 *   reshard_asked.c  by operators, who are told of it; by policy; by shards that leave: drain.c
 *
 * A run is in the store by the weights of its shards, so that a coordinator that is started again goes on
 * with it: it plans anew from where the layout is. The layouts themselves: members.h. */
#ifndef CAIRN_COORDINATOR_RESHARD_H
#define CAIRN_COORDINATOR_RESHARD_H

#include "proto/wire/wire.h"
#include "server/coordinator/base.h"
#include "server/core/move.h"

struct coord_saved;

/* A shard of the job as it is to be, by what it gets in proportion; 0: all goes off it. */
struct coord_joiner {
    struct coord_shard_entry *entry;
    double weight;
};

/* The wish that a run is to fulfil: the shards, and their weights. */
struct coord_reshard_wish {
    /* [count]: one of each shard of the job, by index, then those that join; holes have no entry */
    struct coord_joiner *shards; /* owned */
    uint32_t count;
    double pause; /* a step may become longer by this part; 0: the default */
};

enum coord_reshard_state {
    CAIRN_RESHARD_NONE, /* no run was there since the coordinator started */
    CAIRN_RESHARD_MOVING,
    CAIRN_RESHARD_DONE,
    CAIRN_RESHARD_CANCELED,
    CAIRN_RESHARD_FAILED,
};

/* The state and the numbers of a run, as operators are told them. */
struct coord_reshard_progress {
    enum coord_reshard_state state;
    struct sentence text; /* why it ended, or waits */
    uint64_t least_bytes, all_bytes, moved_bytes;
    double heaviest_before, heaviest_after;
    uint32_t slices, slice;
    uint32_t shards_before, shards_after;
    uint64_t begun_ms, ended_ms;  /* coord_now_ms */
    uint32_t median_us, worst_us; /* steps before it, and the longest while it moved */
    /* of settled slices: what came to shards, and in how long to the slowest of each slice */
    uint64_t state_bytes, state_us;
    uint64_t stage_us[CAIRN_MOVE_LOST + 1]; /* that the slices were in each stage of the machine */
};

/* How much longer slices may make the steps between which they come, and how long those steps
 * were. */
struct coord_reshard_pace {
    double pause;        /* a step may become longer by this part */
    uint32_t usual_us;   /* a step without slices; 0: not known */
    uint32_t longest_us; /* the longest step since the last slice began; 0: none was */
    uint64_t most_bytes; /* that a slice brings a shard */
};

/* A job's re-sharding. */
struct coord_reshard {
    bool running;  /* in the store, too */
    bool canceled; /* no further slice begins */
    struct coord_reshard_pace pace;
    struct coord_joiner *joiners; /* owned: [joiner_count], of the indices behind shard_count */
    uint32_t joiner_count;
    struct layout *target; /* owned; NULL: it is to be planned */
    const char *asking;    /* static: what shards or the store are asked for; NULL: nothing */
    uint32_t serial;       /* of what is asked: an answer of another one is stale */
    bool publishing;       /* no round opens */
    bool busy;             /* an event of it is at work: no step begins in the middle of that */
    bool is_refused;       /* what was asked for was refused, and is asked for with the next tick */
    /* cluster->arrivals when it was last spread over the shards there are, and when that was refused */
    uint64_t arrivals_seen, arrivals_refused;

    struct move *move;       /* owned; NULL: no core */
    struct layout *prior;    /* owned: the layout before the slice; NULL: not known */
    uint64_t slice_bytes;    /* of the slice under way */
    uint64_t came_bytes;     /* to shards that are whole in it, and .. */
    uint64_t came_us;        /* .. in how long to the slowest */
    uint64_t stage_since_us; /* when the machine's stage began */
    uint32_t slice_serial;   /* its number in this process: that of its layout may come again */
    bool back;               /* that slice takes the one before it back */
    bool lost_empty; /* who was lost has nothing in the layout in force, and all others are whole */
    double rate;     /* bytes a microsecond of the slowest of the last slice; 0: not known */
    struct coord_reshard_progress progress;
};

/* ---- the run ---- */

/* Begins one. CAIRN_ERR_BUSY: there is one; else as coord_reshard_plan. */
cairn_status coord_reshard_begin(struct coord_job *job, const struct coord_reshard_wish *wish,
                                 struct sentence *why) CAIRN_MUST_CHECK;
/* The job's tensors are others now: a run that is under way goes on, and the store hears of it again. */
void coord_reshard_go_on(struct coord_job *job);
/* No further slice begins. CAIRN_ERR_NOT_FOUND: nothing is under way. */
cairn_status coord_reshard_cancel(struct coord_job *job, struct sentence *why) CAIRN_MUST_CHECK;
/* Ends the run in this state, and forgets what it had begun to prepare. */
void coord_reshard_end(struct coord_job *job, enum coord_reshard_state state, const char *text);
/* An event of the core is over. */
void coord_reshard_advance(struct coord_job *job);
void coord_reshard_tick(struct coord_job *job);
void coord_reshard_close(struct coord_job *job);
/* The job is freed. */
void coord_reshard_release(struct coord_job *job);

/* ---- the wish ---- */

void coord_reshard_wish_release(struct coord_reshard_wish *wish);
/* Shards that are to own something. */
uint32_t coord_reshard_wish_owners(const struct coord_reshard_wish *wish);
/* A wish that leaves everything where it is, but off those that leave; with room for every shard there is.
 * CAIRN_ERR_NO_MEMORY. */
cairn_status coord_reshard_wish_present(const struct coord_job *job,
                                        struct coord_reshard_wish *wish_out) CAIRN_MUST_CHECK;
/* NULL: it is not in it. */
struct coord_joiner *coord_reshard_wish_find(struct coord_reshard_wish *wish,
                                             const struct coord_shard_entry *entry);
/* Adds the shard, with the weight of one, or takes it back in. */
void coord_reshard_wish_add(struct coord_reshard_wish *wish, struct coord_shard_entry *entry);
/* Adds every shard that is here and stays; of stage 0 one, if it has none. */
void coord_reshard_wish_all(const struct coord_job *job, struct coord_reshard_wish *wish);

/* ---- the plan ---- */

struct coord_reshard_target {
    struct layout *layout;         /* owned */
    struct reshard_report *report; /* owned */
    uint32_t slices;
};
/* NOT_READY, JOB_LOST, UNSUPPORTED, INVALID, NO_MEMORY (a shard has too little of it: with the numbers). */
cairn_status coord_reshard_plan(const struct coord_job *job, const struct coord_reshard_wish *wish,
                                struct coord_reshard_target *target_out,
                                struct sentence *why) CAIRN_MUST_CHECK;
void coord_reshard_target_release(struct coord_reshard_target *target);
/* The run found in the store, or one whose job's tensors changed, plans from where the layout is. */
cairn_status coord_reshard_plan_anew(struct coord_job *job, struct sentence *why) CAIRN_MUST_CHECK;
/* Marks, for a slice, the shards to which something comes. False: no memory. */
bool coord_reshard_mark_takers(const struct coord_job *job, bool *takes);
/* The layout in force, over as many shards as there will be. NULL: no memory. */
struct packed *coord_reshard_pack_wider(const struct coord_job *job);
/* The next slice on the way to the target; *next_out NULL: it is reached. */
cairn_status coord_reshard_slice(const struct coord_job *job, struct layout **next_out,
                                 uint64_t *bytes_out) CAIRN_MUST_CHECK;

/* ---- the pace ---- */

/* A run begins, with that pause (0: the default), after steps of that median (0: not known). */
void coord_reshard_pace_begin(struct coord_reshard_pace *pace, double pause, uint32_t median_us);
/* A step was made. */
void coord_reshard_pace_step(struct coord_reshard_pace *pace, uint32_t us);
/* A slice is to begin: what the steps took since the last one says how large it may be. */
void coord_reshard_pace_slice(struct coord_reshard_pace *pace);
/* It brings so much to all shards together. */
void coord_reshard_pace_cut(struct coord_reshard_pace *pace, uint64_t bytes);
/* A slice may begin. */
bool coord_reshard_is_paced(const struct coord_job *job);
/* Seconds that a run to the target takes, and that a step of it is longer at most; 0: not known. While steps
 * are made a slice takes two of them; slices that grow make it shorter. */
double coord_reshard_expected_s(const struct coord_job *job,
                                const struct coord_reshard_target *target);
double coord_reshard_expected_pause_s(const struct coord_job *job, double pause);

/* ---- shards that join ---- */

/* At each tick: spreads jobs whose policy on_join asks for it over shards that came. */
void coord_reshard_spread(struct coord *cluster);

/* ---- the slice ---- */

/* The core goes by the next layout. */
void coord_slice_in_force(struct coord_job *job);
/* A layout that is to go back is begun anew, if a shard that it needs was away. */
void coord_slice_tick(struct coord_job *job);
void coord_slice_moved(struct coord_job *job, uint32_t shard, const Cairn__PartMoved *message);
/* The shard's channel is gone; or it is back without what it had, or away for too long: true if it had
 * nothing before the slice, which is taken back. */
void coord_slice_shard_down(struct coord_job *job, uint32_t shard);
bool coord_slice_shard_lost(struct coord_job *job, uint32_t shard);
/* The shard is back, and has that layout prepared: if nothing comes of it, it is to forget it. */
void coord_slice_prepared(const struct coord_job *job, uint32_t shard, uint64_t layout);

/* ---- asked ---- */

void coord_reshard_ask(struct coord_session *session, uint32_t request,
                       const Cairn__ReshardAsk *message);
/* Who asked for the runs of these serials hears what is told when the store has them all. False: no memory,
 * or the session waits for too much. */
bool coord_reshard_tell_later(struct coord_session *session, uint32_t request,
                              const Cairn__ReshardTold *told, uint32_t first, uint32_t last);
/* The beginning of a run is in the store, or is not: who asked for it hears so. */
void coord_reshard_stored(const struct coord_saved *saved);
void coord_reshard_asked_close(struct coord *cluster);

/* ==== amend ==== */

/* Amendments of a job's spec: judged, made durable, told to the shards, answered. */

/* On its way to the store. */
struct coord_amending {
    /* owned */
    struct job_spec_data next; /* judged */
    struct coord_terms *terms;
    struct packed *spec_packed;
};

/* A job's amendments. */
struct coord_amends {
    /* owned: what is on its way to the store; NULL: nothing is */
    struct coord_amending *amending;
    struct coord_waiters waiters; /* admins, of the one amendment that is theirs */
    uint64_t revision;            /* of that amendment, once it is in the store; else 0 */
};

/* A member's requests to amend its job. */
struct coord_amend_wait {
    uint32_t request;
    /* of the request, once it is in the store: answered when all shards have it */
    uint64_t revision;
    /* owned: of the request, while another one is on its way to the store */
    Cairn__JobAmend *later;
};

/* Judges an amendment, and takes it when it is durable; then the member is answered. */
void coord_job_amend(struct coord_member *member, uint32_t request, const Cairn__JobAmend *amend);
/* The same, by an admin. */
void coord_job_amend_by_name(struct coord_session *session, uint32_t request,
                             const Cairn__JobAmend *amend);
/* The job is LOST: nobody waits for its shards to have the amendment. */
void coord_amenders_lost(struct coord_job *job);
/* With the job; NULL is fine. */
void coord_amending_free(struct coord_amending *amending);

/* ---- terms.c: what the shards know of the spec that is in the store ---- */

/* Its generation is in the store, with this spec: to a shard that is up, if it does not know that yet. */
void coord_terms_tell(struct coord_job *job, uint32_t shard, bool settled);
void coord_terms_tell_all(struct coord_job *job);
/* Answers the amendments that all shards have. */
void coord_terms_advance(struct coord_job *job);
/* The member's amendment, if it waits for one, is answered. */
void coord_amend_done(struct coord_member *member, uint64_t revision);
void coord_amend_failed(struct coord_member *member, cairn_status status, const char *text);

/* ==== extend ==== */

/* A new generation of a job at the same step, with other tensors or terms. */

/* A job's change to a new generation, if one is under way. */
struct coord_extension {
    /* owned: spec, layout, shards and generation as they will be; NULL: the tensors stay what they are */
    struct coord_job *staged_job;
    bool making; /* the shards are at work: nobody joins */
    bool broken; /* one went away meanwhile, and may have dropped what it made */
};

/* An event of the core is over: is this a step boundary? */
void coord_extend_advance(struct coord_job *job);
/* The job is lost: nothing is made of it. */
void coord_extend_lost(struct coord_job *job);
/* The job is freed, or the extension given up. */
void coord_extension_release(struct coord_job *job);
/* JobSwitch: only the part of that generation stays on the shard. */
void coord_job_send_switch(const struct coord_job *job, const struct coord_shard_entry *entry,
                           uint64_t generation);

/* ==== park ==== */

/* A job is parked by the operator's word: what its shards have of it on devices goes to host memory, and no
 * round opens until it is back. */

/* A job's parking. It is not in the store: shards say whether their parts are parked, and a job
 * counts as parked if one part is. */
struct coord_park {
    bool shut;          /* no round opens */
    uint64_t opened_ms; /* coord_now_ms: when it was open again, last; 0: it always was */
    bool wanted;        /* that the parts are parked; shut, and not wanted: they are coming back */
    bool asking;        /* the shards are at work */
    bool settled;       /* all of them have said that it is so */
    bool undoes;        /* what was asked failed: the parts go back to what they were */
    struct coord_waiters waiters; /* owned: who asked */
};

/* Something of the job lies on a device. */
bool coord_job_has_device(const struct coord_job *job);
void coord_job_park(struct coord_session *session, uint32_t request, const Cairn__JobPark *message);
/* An event of the core is over, or a tick: is this a step boundary? */
void coord_park_advance(struct coord_job *job);
/* The job is freed, or lost. */
void coord_park_release(struct coord_job *job);

/* ==== drain ==== */

/* Shards that leave the cluster: all that they hold goes to others first. So it goes off one whose device has
 * failed, without a word of anybody, while another shard is here that is well. */

/* Drains a shard because an operator asks for it. Done is sent when the shard is drained or,
 * without `wait`, when the store has the wish. A coordinator that starts later goes on with it. */
void coord_member_drain(struct coord_session *session, uint32_t request,
                        const Cairn__MemberDrain *message);
/* Drains a shard because it asks itself: it is being stopped. If it cannot be drained, or three
 * quarters of its time are over, its jobs are saved. */
void coord_drain_me(struct coord_session *session, uint32_t request, const Cairn__DrainMe *message);
/* Loads the drains that the store has. CAIRN_ERR_NO_MEMORY, or an error of the store. */
cairn_status coord_drains_load(struct coord *cluster, struct sentence *why) CAIRN_MUST_CHECK;
/* The next steps of all that leave. */
void coord_drains_tick(struct coord *cluster);
/* Shards with a part of the job that leave by an operator's word do not leave any more, nor goes anything of
 * other jobs off them. True: there was one. */
bool coord_drains_cancel(struct coord_job *job);
/* The shard is here: does it leave? A process that was drained does still; another one of its name is new. */
void coord_drain_come(struct coord *cluster, struct coord_shard_entry *entry);
/* The shard is gone: it does not leave any more. */
void coord_drain_gone(struct coord *cluster, struct coord_shard_entry *entry);

#endif
