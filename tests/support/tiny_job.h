/* The job that most end-to-end tests train: one fp32 tensor "w", made of ones, and one group. */
#ifndef CAIRN_SUPPORT_TINY_JOB_H
#define CAIRN_SUPPORT_TINY_JOB_H

#include <cairn.h>

#include "tests/support/trainer.h"

/* Its parts stay where they are: the spec points to them. */
struct tiny_job {
    struct cairn_tensor tensor;
    struct cairn_group group;
    struct cairn_job_spec spec;
};

/* Fills in all but the other terms of the spec, and returns the job. */
static inline struct tiny_job *tiny_complete(struct tiny_job *tiny, uint64_t elems)
{
    const struct cairn_group group = CAIRN_GROUP_INIT;
    tiny->group = group;
    tiny->tensor = (struct cairn_tensor) { .struct_size = sizeof tiny->tensor,
                                           .name = "w",
                                           .rank = 1,
                                           .shape = { elems },
                                           .init = { .kind = CAIRN_INIT_ONES } };
    tiny->spec.struct_size = sizeof tiny->spec;
    tiny->spec.tensors = &tiny->tensor;
    tiny->spec.groups = &tiny->group;
    tiny->spec.tensor_count = tiny->spec.group_count = 1;
    return tiny;
}

/* The job whose `w` has that many elements, in a group of AdamW by its defaults, until the block's end. What
 * is to be different of the spec stands behind: TINY(ELEMS, .rank = 1, .workers_min = 2). */
#define TINY(elems, ...) \
    tiny_complete(&(struct tiny_job) { .spec = { .struct_size = 0, __VA_ARGS__ } }, (elems))

/* By the data path of that name; NULL: the default. */
static inline cairn *tiny_session(const struct cluster *cluster, const char *fabric)
{
    return trainer_session(cluster->address, fabric);
}

/* The job under that name, initialized. */
static inline cairn_job *tiny_open(cairn *session, const char *name, const struct tiny_job *tiny)
{
    cairn_job *job = trainer_open(session, name, &tiny->spec);
    good(cairn_init_done(job, NULL, CLUSTER_WAIT_MS));
    return job;
}

struct trainer {
    cairn *session;
    cairn_job *job;
    const char *name; /* the job's */
};

/* A session of its own, and the job. */
static inline struct trainer tiny_attach(const struct cluster *cluster, const char *name,
                                         const struct tiny_job *tiny)
{
    struct trainer t = { .session = tiny_session(cluster, NULL), .name = name };
    t.job = tiny_open(t.session, name, tiny);
    return t;
}

/* Every element of the gradient is `value`. */
static inline void tiny_push(cairn_job *job, const struct cairn_round *round, uint64_t elems,
                             float value)
{
    static float gradient[1 << 16];
    ck_assert_uint_le(elems, 1 << 16);
    for (uint64_t i = 0; i < elems; i++) gradient[i] = value;
    trainer_push(job, round, "w", gradient);
}

/* A round with nothing in it; the step after it. */
static inline uint64_t tiny_step(cairn_job *job)
{
    const struct cairn_round round = trainer_begin(job);
    struct cairn_result result = { .struct_size = sizeof result };
    good(cairn_commit(job, &round, 1, NULL, 0, CLUSTER_WAIT_MS, &result));
    return result.step;
}

#endif
