/* The list of the operations of jobs, and the functions that ask or tell every operation something.
 * See job.h. */
#include "server/coordinator/cluster.h"

static const struct coord_operation *const operations[CAIRN_OPERATIONS] = {
    [CAIRN_OPERATION_MAKE] = &coord_making,        [CAIRN_OPERATION_AMEND] = &coord_amending,
    [CAIRN_OPERATION_EXTEND] = &coord_extending,   [CAIRN_OPERATION_PARK] = &coord_parking,
    [CAIRN_OPERATION_RESHARD] = &coord_resharding, [CAIRN_OPERATION_SNAPSHOT] = &coord_snapshotting,
};

/* ---- what is under way ---- */

enum operation_stage coord_stage(const struct coord_job *job, enum operation operation)
{
    return operations[operation]->stage(job);
}

static struct operations stages_of(const struct coord_job *job)
{
    struct operations all;
    for (enum operation i = 0; i < CAIRN_OPERATIONS; i++) all.at[i] = operations[i]->stage(job);
    return all;
}

unsigned coord_operations_hold(const struct coord_job *job)
{
    const struct operations all = stages_of(job);
    return operations_hold(&all);
}

cairn_status coord_operation_judge(const struct coord_job *job, enum operation asked,
                                   struct sentence *why)
{
    const struct operations all = stages_of(job);
    const enum operation other = operations_refuse(&all, asked);
    return other == CAIRN_OPERATIONS ? CAIRN_OK : operations[other]->refuse(job, why);
}

bool coord_operation_may_begin(const struct coord_job *job, enum operation waiting)
{
    const struct operations all = stages_of(job);
    return job->core != NULL && operations_block(&all, waiting) == CAIRN_OPERATIONS;
}

bool coord_operation_may_begin_at_rest(const struct coord_job *job, enum operation waiting)
{
    if (job->rounds.in_event || !coord_operation_may_begin(job, waiting) ||
        round_stage_of(job->core) != CAIRN_ROUND_STEADY)
        return false;
    CAIRN_EACH_SHARD (job, i)
        if (!job->shards[i].up || job->shards[i].entry->session == NULL) return false;
    return true;
}

const char *coord_operation_waits(const struct coord_job *job, enum operation waiting)
{
    const struct operations all = stages_of(job);
    const enum operation other = operations_block(&all, waiting);
    return other != CAIRN_OPERATIONS ? operations[other]->until : NULL;
}

bool coord_operations_waiting(const struct coord_job *job, struct sentence *out)
{
    for (enum operation i = 0; i < CAIRN_OPERATIONS; i++)
        if (operations[i]->waiting != NULL && operations[i]->waiting(job, out)) return true;
    return false;
}

/* ---- what happens to them ---- */

#define EACH_WITH(function)                               \
    for (enum operation i = 0; i < CAIRN_OPERATIONS; i++) \
        if (operations[i]->function != NULL) operations[i]->function

void coord_operations_advance(struct coord_job *job)
{
    EACH_WITH(advance)(job);
}

void coord_operations_tick(struct coord_job *job)
{
    for (enum operation i = 0; i < CAIRN_OPERATIONS; i++) {
        const struct coord_operation *o = operations[i];
        void (*const tick)(struct coord_job *) = o->tick != NULL ? o->tick : o->advance;
        if (tick != NULL) tick(job);
    }
}

void coord_operations_stepped(struct coord_job *job)
{
    EACH_WITH(stepped)(job);
}

void coord_operations_shard_up(struct coord_job *job, const Cairn__HeldJob *part)
{
    EACH_WITH(shard_up)(job, part);
}

void coord_operations_shard_down(struct coord_job *job, uint32_t shard)
{
    EACH_WITH(shard_down)(job, shard);
}

void coord_operations_lost(struct coord_job *job)
{
    EACH_WITH(lost)(job);
}

void coord_operations_release(struct coord_job *job)
{
    EACH_WITH(release)(job);
}
