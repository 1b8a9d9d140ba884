#include "server/shard/memory/budget.h"

#include <assert.h>

#include "server/shard/shard.h"

cairn_status cairn_budget_take(struct cairn_budget *budget, uint64_t bytes, const char *what,
                               struct cairn_sentence *why)
{
    uint64_t left = budget->limit_bytes - budget->used_bytes;
    if (bytes > left) {
        return cairn_fail(why, CAIRN_ERR_NO_MEMORY,
                          "%s needs %llu bytes, and %llu of memory.limit = %llu are left: raise "
                          "memory.limit, or add shards",
                          what, (unsigned long long)bytes, (unsigned long long)left,
                          (unsigned long long)budget->limit_bytes);
    }
    budget->used_bytes += bytes;
    return CAIRN_OK;
}

void cairn_budget_give(struct cairn_budget *budget, uint64_t bytes)
{
    assert(bytes <= budget->used_bytes);
    budget->used_bytes -= bytes;
}

cairn_status cairn_shard_job_take(struct cairn_shard_job *job, uint64_t *kind, uint64_t bytes,
                                  const char *what, struct cairn_sentence *why)
{
    const cairn_status status = cairn_budget_take(&job->shard->memory.budget, bytes, what, why);
    if (status == CAIRN_OK) *kind += bytes;
    return status;
}

void cairn_shard_job_give(struct cairn_shard_job *job, uint64_t *kind, uint64_t bytes)
{
    assert(bytes <= *kind);
    cairn_budget_give(&job->shard->memory.budget, bytes);
    *kind -= bytes;
}
