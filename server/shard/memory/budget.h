/* Bytes that a shard may use for state, landing, staging and replies: counted when they are promised, touched
 * or not. Loop thread. */
#ifndef CAIRN_SHARD_MEMORY_BUDGET_H
#define CAIRN_SHARD_MEMORY_BUDGET_H

#include <stdint.h>

#include "proto/base/sentence.h"

struct cairn_shard_job;

struct cairn_budget {
    uint64_t limit_bytes, used_bytes;
};
/* CAIRN_ERR_NO_MEMORY, with the numbers, if `bytes` more are over the limit; then nothing is taken. */
CAIRN_MUST_CHECK cairn_status cairn_budget_take(struct cairn_budget *budget, uint64_t bytes,
                                                const char *what, struct cairn_sentence *why);
void cairn_budget_give(struct cairn_budget *budget, uint64_t bytes);

/* Takes of the shard's budget, counted under `kind`, which is one of job->memory's; as cairn_budget_take. And
 * gives it back: what is not given back goes with the job. */
CAIRN_MUST_CHECK cairn_status cairn_shard_job_take(struct cairn_shard_job *job, uint64_t *kind,
                                                   uint64_t bytes, const char *what,
                                                   struct cairn_sentence *why);
void cairn_shard_job_give(struct cairn_shard_job *job, uint64_t *kind, uint64_t bytes);

#endif
