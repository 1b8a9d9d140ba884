/* The parts of jobs, while shards come and go. */
#ifndef CAIRN_COORDINATOR_JOB_PARTS_H
#define CAIRN_COORDINATOR_JOB_PARTS_H

#include "server/coordinator/base/names.h"

/* The shard is there and says what it holds (held), or it is gone. */
void cairn_cluster_jobs_seat_up(struct cairn_cluster *cluster, struct cairn_cluster_seat *seat,
                                Cairn__HeldJob *const *held, size_t held_count);
void cairn_cluster_jobs_seat_down(struct cairn_cluster *cluster, struct cairn_cluster_seat *seat);
/* A shard, or a member ("worker"), has seen that epoch of the job. If our store does not know of it, that is
 * an older copy, and nothing is done with the job. */
void cairn_cluster_job_seen(struct cairn_cluster_job *job, const char *kind, const char *name,
                            uint64_t epoch);
/* A part that is missing for too long makes its job LOST, until it is back. */
void cairn_cluster_job_parts_tick(struct cairn_cluster_job *job);

#endif
