/* Re-sharding: a running job is moved to other shards, or spread over them differently, in slices.
 *
 *   reshard.c        run    decides the next step: a shard joins, a slice begins, or the run ends
 *                    join   shards that have no part yet get one that owns nothing
 *   reshard_slice.c  slice  the machine of one slice (server/core/move.h), and the messages to shards
 *   reshard_plan.c   plan   decides over which shards a job is spread, and in which layout
 *                    wish   lists the wanted shards: those that the run asks for, or all that are connected
 *                    pace   decides how large a slice is while steps are made, and when a slice may begin
 *   reshard_asked.c  runs that operators ask for, or the policy; for shards that leave see drain.c
 *
 * The store has, of a run, the weights of the shards. A coordinator that is started again thus continues
 * the run, with a new plan that begins at the layout which the job has by then. For the layouts themselves
 * see members.h. */
#ifndef CAIRN_COORDINATOR_RESHARD_H
#define CAIRN_COORDINATOR_RESHARD_H

#include "proto/wire/wire.h"
#include "server/coordinator/base.h"
#include "server/coordinator/operations.h"
#include "server/core/operation.h"
#include "server/core/move.h"

struct coord_saved;

/* A shard that the job will have after the run, and the weight of the shard's share. Weight 0: everything
 * moves off the shard. */
struct coord_joiner {
    struct coord_shard_entry *entry;
    double weight;
};

/* The wish that a run carries out: the shards, and their weights. */
struct coord_reshard_wish {
    /* owned: [count]: the shards of the job, by index, then the shards that join; a hole has no entry */
    struct coord_joiner *shards;
    uint32_t count;
    double pause; /* the fraction by which slices may lengthen a step; 0: the default */
};

enum coord_reshard_state {
    CAIRN_RESHARD_NONE, /* there was no run since the coordinator started */
    CAIRN_RESHARD_MOVING,
    CAIRN_RESHARD_DONE,
    CAIRN_RESHARD_CANCELED,
    CAIRN_RESHARD_FAILED,
};

/* The state and the numbers of a run, as shown to operators. */
struct coord_reshard_progress {
    enum coord_reshard_state state;
    struct sentence text; /* why the run has ended, or what the run waits for */
    uint64_t least_bytes, all_bytes, moved_bytes;
    double heaviest_before, heaviest_after;
    uint32_t slices, slice;
    uint32_t shards_before, shards_after;
    uint64_t begun_ms, ended_ms; /* coord_now_ms */
    /* median_us: the median step before the run. worst_us: the longest step during the run */
    uint32_t median_us, worst_us;
    /* sums over all settled slices. state_bytes: bytes that shards received. state_us: time that the
     * slowest shard of each slice took */
    uint64_t state_bytes, state_us;
    /* the time that the slices spent in each stage of struct move */
    uint64_t stage_us[CAIRN_MOVE_LOST + 1];
};

/* The amount by which slices may lengthen the steps around them, and how long these steps were. */
struct coord_reshard_pace {
    double pause;      /* the fraction by which slices may lengthen a step */
    uint32_t usual_us; /* duration of a step without slices; 0: not known */
    /* duration of the longest step since the last slice began; 0: no step has ended since then */
    uint32_t longest_us;
    uint64_t most_bytes; /* the most bytes that a slice brings to a shard */
};

/* A job's re-sharding. */
struct coord_reshard {
    bool running;              /* true: a run is under way; the store has the run, too */
    struct coord_waiters ends; /* owned: for the audit log, which says how the run ended */
    bool canceled;             /* no further slice begins */
    struct coord_reshard_pace pace;
    struct coord_joiner *joiners; /* owned: [joiner_count], whose indices follow shard_count */
    uint32_t joiner_count;
    struct layout *target; /* owned; NULL: the target has to be planned */
    /* what the run waits for between two slices: the store, or the answers of shards */
    struct coord_steps steps;
    uint32_t
        serial; /* number of the run, by which coord_reshard_stored tells that it is in the store */
    bool publishing; /* true: the version is being published again, and no round opens */
    /* true: an event of the run is being handled, and no further step of the run begins meanwhile */
    bool busy;
    bool is_refused; /* true: the last request was refused, and is repeated at the next tick */
    /* cluster->arrivals at the time when the job was last spread over the connected shards (arrivals_seen),
     * or when such a run was last refused (arrivals_refused) */
    uint64_t arrivals_seen, arrivals_refused;

    struct move *move; /* owned; NULL: no core */
    /* tells the run how a slice ended: CAIRN_OK, or the status and the text of its failure */
    void (*slice_ended)(struct coord_job *job, cairn_status status, const char *text);
    struct layout *prior;    /* owned: the layout before the slice; NULL: not known */
    uint64_t slice_bytes;    /* bytes of the slice under way */
    uint64_t came_bytes;     /* bytes received by the shards that have all of the slice */
    uint64_t came_us;        /* time that the slowest of these shards took */
    uint64_t stage_since_us; /* when the present stage of `move` began */
    /* number of the slice in this process. The version of the slice's layout is no such number, because
     * another slice may use it again */
    uint32_t slice_serial;
    bool back; /* true: this slice takes back the previous slice */
    /* true: the lost shard has nothing in the layout in force, and all other shards are complete */
    bool lost_empty;
    /* the rate of the slowest shard in the last slice, in bytes per microsecond; 0: not known */
    double rate;
    struct coord_reshard_progress progress;
};

/* ---- the run ---- */

/* Begins a run. CAIRN_ERR_BUSY: a run is under way already. Any other error is one of
 * coord_reshard_plan. */
cairn_status coord_reshard_begin(struct coord_job *job, const struct coord_reshard_wish *wish,
                                 struct sentence *why) CAIRN_MUST_CHECK;
/* Called when the job's tensors have changed: if a run is under way, it continues, and is written to the
 * store again. */
void coord_reshard_go_on(struct coord_job *job);
/* Cancels the run: no further slice begins. CAIRN_ERR_NOT_FOUND: no run is under way. */
cairn_status coord_reshard_cancel(struct coord_job *job, struct sentence *why) CAIRN_MUST_CHECK;
/* Ends the run in this state, and drops what the run was preparing. */
void coord_reshard_end(struct coord_job *job, enum coord_reshard_state state, const char *text);
void coord_reshard_close(struct coord_job *job);
/* The process of a shard may be a new one, which has not published the newest version in an earlier
 * layout. So before a round opens, all shards publish that version in the layout in force. */
void coord_reshard_publish_anew(struct coord_job *job);

/* ---- the wish ---- */

void coord_reshard_wish_release(struct coord_reshard_wish *wish);
/* Counts the shards that are to own something. */
uint32_t coord_reshard_wish_owners(const struct coord_reshard_wish *wish);
/* Makes a wish by which all state moves off the shards that leave or whose device has failed, and all other
 * state stays where it is. The wish has room for every known shard. CAIRN_ERR_NO_MEMORY. */
cairn_status coord_reshard_wish_present(const struct coord_job *job,
                                        struct coord_reshard_wish *wish_out) CAIRN_MUST_CHECK;
/* Returns NULL if the shard is not in the wish. */
struct coord_joiner *coord_reshard_wish_find(struct coord_reshard_wish *wish,
                                             const struct coord_shard_entry *entry);
/* Adds the shard with weight 1, or, if the wish has the shard already, sets its weight to 1. */
void coord_reshard_wish_add(struct coord_reshard_wish *wish, struct coord_shard_entry *entry);
/* Adds every shard that may get a part of the job. If the job is of stage 0, adds only one shard, and only
 * if the wish has no shard that owns something. */
void coord_reshard_wish_all(const struct coord_job *job, struct coord_reshard_wish *wish);

/* ---- the plan ---- */

struct coord_reshard_target {
    struct layout *layout;         /* owned */
    struct reshard_report *report; /* owned */
    uint32_t slices;
};
/* Plans the target of a run. CAIRN_ERR_NOT_READY, _JOB_LOST, _UNSUPPORTED, _INVALID, _NO_MEMORY (if a shard
 * has too little memory, `why` gives the numbers). */
cairn_status coord_reshard_plan(const struct coord_job *job, const struct coord_reshard_wish *wish,
                                struct coord_reshard_target *target_out,
                                struct sentence *why) CAIRN_MUST_CHECK;
void coord_reshard_target_release(struct coord_reshard_target *target);
/* Plans a run again, beginning at the present layout. Called when the run was found in the store, or the
 * job's tensors have changed. */
cairn_status coord_reshard_plan_anew(struct coord_job *job, struct sentence *why) CAIRN_MUST_CHECK;
/* Plans the next slice towards the target. *next_out is NULL if the target is reached. */
cairn_status coord_reshard_slice(const struct coord_job *job, struct layout **next_out,
                                 uint64_t *bytes_out) CAIRN_MUST_CHECK;

/* ---- the pace ---- */

/* Begins the pace of a run. `pause` 0: the default. `median_us` is the median duration of the steps before
 * the run; 0: not known. */
void coord_reshard_pace_begin(struct coord_reshard_pace *pace, double pause, uint32_t median_us);
/* Notes the duration of a step. */
void coord_reshard_pace_step(struct coord_reshard_pace *pace, uint32_t us);
/* A slice is about to begin: derives its largest size from the steps since the last slice. */
void coord_reshard_pace_slice(struct coord_reshard_pace *pace);
/* Notes how many bytes the slice brings to all shards together. */
void coord_reshard_pace_cut(struct coord_reshard_pace *pace, uint64_t bytes);
/* Returns the pause that was asked for, or the usual one if none (0) was. */
double coord_reshard_pause(double asked);

/* ---- shards that join ---- */

/* Called at each tick: spreads jobs with the policy on_join over the shards that have connected. */
void coord_reshard_spread(struct coord *cluster);

/* ---- the slice ---- */

/* Begins a slice; if `back` is set, the slice takes back the previous slice. Takes ownership of `next` and
 * of `gone`, which is malloc'ed and has a bit set for each hole of `next`. */
void coord_slice_begin(struct coord_job *job, struct layout *next, uint8_t *gone, uint64_t bytes,
                       bool back);
/* Something has happened to the slice, or to the layout in force: the machine decides what follows. */
void coord_slice_event(struct coord_job *job, struct move_event *event, const char *text);
/* The core now uses the next layout. */
void coord_slice_in_force(struct coord_job *job);
/* After the loss of a shard, begins to take back the slice as soon as all other shards in force are up. */
void coord_slice_tick(struct coord_job *job);
/* The shard is back without its part, or away for too long. Returns true if the shard had nothing before the
 * slice; in that case the slice is taken back. */
bool coord_slice_shard_lost(struct coord_job *job, uint32_t shard);
/* Called when the shard is back, and has prepared `layout`. If this layout will not be used, tells the
 * shard to forget it. */
void coord_slice_prepared(const struct coord_job *job, uint32_t shard, uint64_t layout);

/* ---- asked ---- */

/* Sends `told` to the session as soon as the store has all runs with serials from `first` to `last`.
 * Returns false if there is no memory, or the session waits for too many answers. */
bool coord_reshard_tell_later(struct coord_session *session, uint32_t request,
                              const Cairn__ReshardTold *told, uint32_t first, uint32_t last);
/* Called when the beginning of a run was stored, or could not be stored: answers the sessions that asked
 * for the run. */
void coord_reshard_stored(const struct coord_saved *saved);
void coord_reshard_asked_close(struct coord *cluster);

/* ==== amend ==== */

/* Amendments of a job's spec: how they are judged, made durable, sent to the shards, and answered. */

/* An amendment that is being written to the store. */
struct coord_amending {
    /* owned */
    struct job_spec_data next; /* the amended spec, judged already */
    struct coord_terms *terms;
    struct packed *spec_packed;
};

/* A job's change to a new generation, if one is under way. */
struct coord_extension {
    struct coord_steps steps;
    /* owned: has the spec, layout, shards and generation that the job will have; NULL: the tensors do not
     * change */
    struct coord_job *staged_job;
    /* true: the job goes back to the former version `back_to` (rollback.c), and is not amended */
    bool goes_back;
    struct cairn_version back_to;
    struct cairn_version made_at; /* the job's version when the staged parts were made */
};

/* A job's amendments. */
struct coord_amends {
    struct coord_steps steps;
    /* owned: the amendment that is being written to the store; NULL: none */
    struct coord_amending *amending;
    /* the admins that wait for the amendment that an admin asked for; there is at most one such
     * amendment */
    struct coord_waiters waiters;
    /* revision that the admin's amendment made, when it is in the store; else 0 */
    uint64_t revision;
    struct coord_extension extension;
    struct coord_waiters rollbacks; /* owned: who has the job taken back to a former version */
    uint64_t rollbacks_asked;       /* so many were asked for: tells late answers of shards apart */
};

/* A member's requests to amend its job. */
struct coord_amend_wait {
    uint32_t request;
    /* revision that the amendment made, when it is in the store; else 0. The member is answered when all
     * shards have this revision */
    uint64_t revision;
    /* owned: the amendment that the member asks for, while another one is being written to the store */
    Cairn__JobAmend *later;
};

/* ---- terms.c: what the shards know of the spec that is in the store ---- */

/* Tells the shard, if it is up, the job's generation and present spec, which are in the store. With
 * `settled`, a shard is told only if it has an older revision of the spec. */
void coord_terms_tell(struct coord_job *job, uint32_t shard, bool settled);
void coord_terms_tell_all(struct coord_job *job);
/* Answers each request for an amendment if all shards have that amendment. */
void coord_terms_advance(struct coord_job *job);
/* Answers the member's amendment, if the member waits for one. */
void coord_amend_done(struct coord_member *member, uint64_t revision);
void coord_amend_failed(struct coord_member *member, cairn_status status, const char *text);

/* ==== extend ==== */

/* How a job gets a new generation, with other tensors or terms, at the step at which it is. */

/* Begins to take the job back to a former version. At the end job->amends.rollbacks is answered. The statuses
 * of an amendment's beginning: nothing was begun. */
cairn_status coord_extend_back(struct coord_job *job, struct cairn_version version,
                               struct sentence *why) CAIRN_MUST_CHECK;

/* Sends JobSwitch: the shard keeps its part of that generation, and drops its parts of all others. */
void coord_job_send_switch(const struct coord_job *job, const struct coord_shard_entry *entry,
                           uint64_t generation);

/* ==== park ==== */

/* An operator parks a job: its shards move their parts from devices to host memory, and no round opens
 * until the parts are back on the devices. */

/* A job's parking. The store does not record it: shards say whether their parts are parked, and a job
 * counts as parked if at least one part is parked. */
struct coord_park {
    struct coord_steps steps;
    /* coord_now_ms: when the job was last opened again; 0: it was always open */
    uint64_t opened_ms;
    bool wanted; /* true: the parts are to be parked; false: the parts are to be moved back */
    bool undoes; /* true: the request has failed, and all parts are moved back to where they were */
    struct coord_waiters waiters; /* owned: the requests to park or unpark */
};

/* Returns true if any state of the job is on a device. */
bool coord_job_has_device(const struct coord_job *job);

/* ==== drain ==== */

/* Shards that leave the cluster: everything that they hold is first moved to other shards. A shard whose
 * device has failed is drained in the same way, as long as a sound shard is connected. Nobody has to ask
 * for such a drain. */

/* Loads the drains that the store has. CAIRN_ERR_NO_MEMORY, or an error of the store. */
cairn_status coord_drains_load(struct coord *cluster, struct sentence *why) CAIRN_MUST_CHECK;
/* Takes the next steps for all shards that leave. */
void coord_drains_tick(struct coord *cluster);
/* Cancels the drain of each shard that has a part of the job, unless the shard is being stopped. The parts
 * of other jobs then stay on the shard, too. Returns true if there was such a drain. */
bool coord_drains_cancel(struct coord_job *job);
/* The shard has connected: decides whether it leaves. It leaves if the store has an unfinished drain of the
 * shard, or if this same process was drained already. Another process of the same name stays. */
void coord_drain_come(struct coord *cluster, struct coord_shard_entry *entry);
/* The shard is gone: ends its drain. */
void coord_drain_gone(struct coord *cluster, struct coord_shard_entry *entry);

#endif
