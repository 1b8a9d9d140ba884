/* A job is found, kept while something refers to it, and faulted. Loop thread. */
#ifndef CAIRN_SHARD_BASE_JOB_H
#define CAIRN_SHARD_BASE_JOB_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "proto/base/sentence.h"

struct cairn_compute;
struct cairn_run;
struct cairn_shard;
struct cairn_shard_job;

/* NULL if there is none of that number that is not LEAVING or staged. */
struct cairn_shard_job *cairn_shard_job_find(struct cairn_shard *shard, uint64_t number);
/* Something in flight began or ended. `idle` may free the job. */
void cairn_shard_job_busy(struct cairn_shard_job *job);
void cairn_shard_job_idle(struct cairn_shard_job *job);
/* At the end of what the fabric calls: tells the core of receives that ended, and closes peers that were
 * cut. */
void cairn_shard_job_settle(struct cairn_shard_job *job);
/* The compute that works where a local element of the job's planes lies. Any thread. */
struct cairn_compute *cairn_shard_job_home(const struct cairn_shard_job *job, uint64_t local_elem);
/* The job does nothing any more: a wrong parameter must not be published. */
void cairn_shard_job_fault(struct cairn_shard_job *job, const char *why);
/* To be called after work on the job's planes: true if the work failed. Then the job is stopped. If
 * its home failed, all jobs with planes in that home are stopped too, except those that are
 * LOADING: their own load ends with the failure. */
bool cairn_shard_job_failed(struct cairn_shard_job *job, cairn_status status,
                            const struct cairn_sentence *why);
/* The same for a run; the reason is that of the run's compute. */
bool cairn_shard_job_run_failed(struct cairn_shard_job *job, const struct cairn_run *run);
/* Bytes that a decision of the job may have beside itself. */
size_t cairn_shard_payload_max(const struct cairn_shard_job *job);

#endif
