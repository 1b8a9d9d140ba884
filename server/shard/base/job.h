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
/* What works where a local element of the job's planes lies; any thread. */
struct cairn_compute *cairn_shard_job_home(const struct cairn_shard_job *job, uint64_t local_elem);
/* The job does nothing any more: a wrong parameter must not be published. */
void cairn_shard_job_fault(struct cairn_shard_job *job, const char *why);
/* Of work on the job's planes: true if it failed. Then the job is stopped; with it, if its home failed, are
 * all that have planes there, but for those that are LOADING: their load ends so. */
bool cairn_shard_job_failed(struct cairn_shard_job *job, cairn_status status,
                            const struct cairn_sentence *why);
/* The same of a run; `why` is the compute's. */
bool cairn_shard_job_run_failed(struct cairn_shard_job *job, const struct cairn_run *run);
/* Bytes that a decision of the job may have beside itself. */
size_t cairn_shard_payload_max(const struct cairn_shard_job *job);

#endif
