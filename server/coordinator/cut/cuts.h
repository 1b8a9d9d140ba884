/* Cuts of jobs, for those who ask for one and those who tell of its shards: cut.h says what one is. */
#ifndef CAIRN_COORDINATOR_CUT_CUTS_H
#define CAIRN_COORDINATOR_CUT_CUTS_H

#include "server/coordinator/base/names.h"
#include "server/core/decision.h"

enum cairn_cut_cause {
    CAIRN_CUT_ASKED,
    CAIRN_CUT_PERIODIC /* periodic.h */,
    CAIRN_CUT_PARTING /* parting.h */
};

/* Begins one; `is_snapshot` false: a digest. The session is answered later. A snapshot that is asked for
 * while a periodic one is being taken begins behind it. */
cairn_status cairn_cluster_cut_begin(struct cairn_cluster_job *job, bool is_snapshot,
                                     struct cairn_cluster_session *session, uint32_t request,
                                     bool wait, struct cairn_sentence *why) CAIRN_MUST_CHECK;
/* A snapshot that nobody waits for. CAIRN_ERR_BUSY: one is being taken. */
cairn_status cairn_cluster_cut_begin_unasked(struct cairn_cluster_job *job,
                                             enum cairn_cut_cause cause,
                                             struct cairn_sentence *why) CAIRN_MUST_CHECK;
/* The snapshot of that id is being taken. */
bool cairn_cluster_cut_takes(const struct cairn_cluster_job *job, const char *id);
/* For whom the job's cut waits; empty: for nobody. True: for somebody who is not there. */
bool cairn_cluster_cut_waiting(const struct cairn_cluster_job *job, struct cairn_sentence *out);
/* Which is being taken, for how long, and for whom it waits; empty: none is. */
void cairn_cluster_cut_show(const struct cairn_cluster_job *job, struct cairn_sentence *out);
/* One is there, and waits for whom: CAIRN_ERR_BUSY. */
cairn_status cairn_cluster_cut_refuse(const struct cairn_cluster_job *job,
                                      struct cairn_sentence *why) CAIRN_MUST_CHECK;
/* Gives up the one of that id, or with "" whichever there is; answered when it has ended.
 * CAIRN_ERR_NOT_FOUND, CAIRN_ERR_BUSY. */
cairn_status cairn_cluster_cut_cancel(struct cairn_cluster_job *job, const char *id,
                                      struct cairn_cluster_session *session, uint32_t request,
                                      struct cairn_sentence *why) CAIRN_MUST_CHECK;
void cairn_cluster_cut_on_pin(struct cairn_cluster_job *job, uint64_t number,
                              struct cairn_version version);
void cairn_cluster_cut_on_part(struct cairn_cluster_job *job, uint32_t shard,
                               const Cairn__SnapshotPart *part);
/* Takes note of what a shard's heartbeat says about cuts. */
void cairn_cluster_cut_on_progress(struct cairn_cluster *cluster,
                                   const struct cairn_cluster_seat *seat,
                                   const Cairn__Heartbeat *message);
/* How far the shards of the job's cut are together, as they told last. */
struct cairn_cut_progress {
    uint64_t done_bytes, total_bytes;
    /* the longest that updates of a shard waited for its staging, threads added up */
    uint64_t waited_ms;
    uint64_t bytes_per_s;
    uint64_t left_s; /* if it goes on like that */
};
/* False: there is no cut, or nobody has told yet. */
bool cairn_cluster_cut_progress(const struct cairn_cluster_job *job,
                                struct cairn_cut_progress *out);
void cairn_cluster_cut_shard_gone(struct cairn_cluster_job *job, uint32_t shard);
/* The shard came without its part of the job: nothing will be pinned. */
void cairn_cluster_cut_part_missed(struct cairn_cluster_job *job, uint32_t shard);
/* Something waits for the end of the one that stands, if any: that waits for no memory any more. */
void cairn_cluster_cut_hurry(struct cairn_cluster_job *job);
/* The layout may stand still again, or a step has ended: a cut that waited for that is pinned; not if it
 * awaits the next step. One that is pinned between two steps gives shards the longest time to copy what the
 * next update overwrites. */
void cairn_cluster_cut_resume(struct cairn_cluster_job *job, bool awaits_step);
/* It stands still for a cut; one that waits for that holds nothing up, or both would wait for ever. */
bool cairn_cluster_cut_holds_layout(const struct cairn_cluster_job *job);
/* One by steps is due in so many: shards prepare it, if that is soon. */
void cairn_cluster_cut_prepare_ahead(struct cairn_cluster_job *job, uint64_t steps);
/* None is due any more: what was prepared goes. */
void cairn_cluster_cut_unprepare(struct cairn_cluster_job *job);
/* One that waits for a shard in vain for longer than a lease is given up. */
void cairn_cluster_cut_tick(struct cairn_cluster_job *job);
/* The job is lost or to be dropped: it ends as soon as its thread has ended. */
void cairn_cluster_cut_abort(struct cairn_cluster_job *job, const char *reason);
/* The job is freed now: it has no cut after this, and who waited for one has heard why. */
void cairn_cluster_cut_orphan(struct cairn_cluster_job *job, const char *reason);
/* A session went: nobody waits with it any more. */
void cairn_cluster_cut_forget(struct cairn_cluster_job *job,
                              const struct cairn_cluster_session *session);
/* With the cluster. */
void cairn_cluster_cut_close(struct cairn_cluster_job *job);

#endif
