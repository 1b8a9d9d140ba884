/* The job that most end-to-end tests train: one fp32 tensor "w", made of ones, and one group. */
#ifndef CAIRN_SUPPORT_TINY_JOB_H
#define CAIRN_SUPPORT_TINY_JOB_H

#include <cairn.h>

#include "tests/support/cluster.h"
#include "tests/support/good.h"

/* Its parts stay where they are: the spec points to them. */
struct tiny_job {
    struct cairn_tensor tensor;
    struct cairn_group group;
    struct cairn_job_spec spec;
};

/* `w` has that many elements. The group is AdamW by its defaults. A test changes what is to be different. */
static inline void tiny_describe(struct tiny_job *tiny, uint64_t elems)
{
    const struct cairn_group group = CAIRN_GROUP_INIT;
    tiny->group = group;
    tiny->tensor = (struct cairn_tensor) { .struct_size = sizeof tiny->tensor,
                                           .name = "w",
                                           .rank = 1,
                                           .shape = { elems },
                                           .init = { .kind = CAIRN_INIT_ONES } };
    tiny->spec = (struct cairn_job_spec) { .struct_size = sizeof tiny->spec,
                                           .tensors = &tiny->tensor,
                                           .tensor_count = 1,
                                           .groups = &tiny->group,
                                           .group_count = 1 };
}

/* By the data path of that name; NULL: the default. */
static inline cairn *tiny_session(const struct cluster *cluster, const char *fabric)
{
    const struct cairn_opts opts = { .struct_size = sizeof opts,
                                     .endpoint = cluster->address,
                                     .fabric = fabric };
    cairn *session;
    good(cairn_open(&opts, &session));
    return session;
}

/* The job under that name, initialized. */
static inline cairn_job *tiny_open(cairn *session, const char *name, const struct tiny_job *tiny)
{
    cairn_job *job;
    good(cairn_job_open(session, name, &tiny->spec, CAIRN_WORKER, CLUSTER_WAIT_MS, &job));
    good(cairn_init_done(job, NULL, CLUSTER_WAIT_MS));
    return job;
}

/* A round with nothing in it; the step after it. */
static inline uint64_t tiny_step(cairn_job *job)
{
    struct cairn_round round = { .struct_size = sizeof round };
    struct cairn_result result = { .struct_size = sizeof result };
    good(cairn_round_begin(job, CLUSTER_WAIT_MS, &round));
    good(cairn_commit(job, &round, 1, NULL, 0, CLUSTER_WAIT_MS, &result));
    return result.step;
}

#endif
