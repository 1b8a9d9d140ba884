/* A job is parked by the operator's word: what its shards have of it on devices goes to host memory, and no
 * round opens until it is back. */
#ifndef CAIRN_COORDINATOR_JOB_PARK_H
#define CAIRN_COORDINATOR_JOB_PARK_H

#include "proto/wire/messages.h"
#include "server/coordinator/base/names.h"

/* A job's parking. It is not in the store: shards say whether their parts are parked, and a job
 * counts as parked if one part is. */
struct cairn_cluster_park {
    bool shut;          /* no round opens */
    uint64_t opened_ms; /* cairn_cluster_now_ms: when it was open again, last; 0: it always was */
    bool wanted;        /* that the parts are parked; shut, and not wanted: they are coming back */
    bool asking;        /* the shards are at work */
    bool settled;       /* all of them have said that it is so */
    bool undoes;        /* what was asked failed: the parts go back to what they were */
    struct cairn_cluster_waiter *waiters; /* owned: who asked */
};

/* Something of the job lies on a device. */
bool cairn_cluster_job_has_device(const struct cairn_cluster_job *job);
void cairn_cluster_job_park(struct cairn_cluster_session *session, uint32_t request,
                            const Cairn__JobPark *message);
/* An event of the core is over, or a tick: is this a step boundary? */
void cairn_cluster_park_advance(struct cairn_cluster_job *job);
/* A shard is back with its part. */
void cairn_cluster_park_part(struct cairn_cluster_job *job, bool is_parked);
void cairn_cluster_park_forget(struct cairn_cluster *cluster,
                               const struct cairn_cluster_session *session);
/* The job is freed, or lost. */
void cairn_cluster_park_release(struct cairn_cluster_job *job);

#endif
