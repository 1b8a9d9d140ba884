/* For whom a job waits, in words; and pauses, of workers that said that they are at work on something
 * else. */
#ifndef CAIRN_COORDINATOR_MEMBER_WAITING_H
#define CAIRN_COORDINATOR_MEMBER_WAITING_H

#include "server/coordinator/base/names.h"

#define CAIRN_MEMBER_PAUSE_BYTES 64

struct cairn_cluster_pause {
    uint64_t ends_ms; /* cairn_cluster_now_ms; 0: there is none */
    char what[CAIRN_MEMBER_PAUSE_BYTES];
};

/* For whom the job waits, and for what; empty: for nobody. */
void cairn_cluster_job_waiting(const struct cairn_cluster_job *job, struct cairn_sentence *out);
/* All whom the job awaits pause, for so long at most; 0: it awaits somebody else, too. */
uint64_t cairn_cluster_job_paused_ms(const struct cairn_cluster_job *job);
/* For how long the job has applied no round though it was to: JobStatus.still_ms. */
uint64_t cairn_cluster_job_still_ms(const struct cairn_cluster_job *job);
/* The job's round waits for a worker that lives and has not said why. */
bool cairn_cluster_job_waits_for_silent(const struct cairn_cluster_job *job);
/* The job's members are put out for a restore: who pauses is waited for in the restored job, too. */
void cairn_cluster_job_keep_pauses(struct cairn_cluster_job *job);
/* Pause, or the end of one: answered. */
void cairn_cluster_member_pause(struct cairn_cluster_member *member, uint32_t request,
                                const Cairn__Pause *pause);

#endif
