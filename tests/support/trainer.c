#include "tests/support/trainer.h"

#include <stdio.h>

const struct cairn_group trainer_adamw = CAIRN_GROUP_INIT;

size_t trainer_elems(const struct cairn_tensor *tensor)
{
    size_t elems = 1;
    for (uint32_t i = 0; i < tensor->rank; i++) elems *= (size_t)tensor->shape[i];
    return elems;
}

cairn_dtype trainer_wire(const struct cairn_tensor *tensor)
{
    return tensor->wire == CAIRN_BF16 ? CAIRN_BF16 : CAIRN_F32;
}

size_t trainer_wire_bytes(const struct cairn_tensor *tensor)
{
    return trainer_elems(tensor) * (trainer_wire(tensor) == CAIRN_BF16 ? 2 : 4);
}

struct cairn_job_spec trainer_spec(const struct cairn_tensor *tensors, size_t count)
{
    return (struct cairn_job_spec)TRAINER_SPEC(tensors, count);
}

cairn *trainer_session(const char *address, const char *fabric)
{
    const struct cairn_opts opts = { .struct_size = sizeof opts,
                                     .endpoint = address,
                                     .fabric = fabric };
    cairn *session;
    good(cairn_open(&opts, &session));
    return session;
}

cairn_job *trainer_open(cairn *session, const char *name, const struct cairn_job_spec *spec)
{
    cairn_job *job;
    good(cairn_job_open(session, name, spec, CAIRN_WORKER, CLUSTER_WAIT_MS, &job));
    return job;
}

cairn_job *trainer_ready(cairn *session, const char *name, const struct cairn_job_spec *spec)
{
    cairn_job *job = trainer_open(session, name, spec);
    good(cairn_init_done(job, NULL, CLUSTER_WAIT_MS));
    return job;
}

struct cairn_mem trainer_mem(const void *ptr, cairn_dtype dtype)
{
    return (struct cairn_mem) { .struct_size = sizeof(struct cairn_mem),
                                .ptr = (void *)(uintptr_t)ptr,
                                .dtype = dtype };
}

void trainer_put(cairn_job *job, const char *tensor, const float *values)
{
    const struct cairn_mem mem = trainer_mem(values, CAIRN_F32);
    good(cairn_put(job, tensor, "param", NULL, &mem, NULL));
}

struct cairn_round trainer_begin(cairn_job *job)
{
    struct cairn_round round = { .struct_size = sizeof round };
    good(cairn_round_begin(job, CLUSTER_WAIT_MS, &round));
    return round;
}

void trainer_push(cairn_job *job, const struct cairn_round *round, const char *tensor,
                  const float *gradient)
{
    const struct cairn_mem mem = trainer_mem(gradient, CAIRN_F32);
    good(cairn_push(job, round, 0, tensor, NULL, &mem, NULL));
}

struct cairn_result trainer_commit(cairn_job *job, const struct cairn_round *round, uint64_t weight)
{
    struct cairn_result result = { .struct_size = sizeof result };
    good(cairn_commit(job, round, weight, NULL, 0, CLUSTER_WAIT_MS, &result));
    if (!result.applied) ck_abort_msg("the round was skipped: %s", cairn_error());
    return result;
}

struct cairn_result trainer_result(cairn_job *job, const struct cairn_round *round)
{
    struct cairn_result result = { .struct_size = sizeof result };
    good(cairn_commit(job, round, 1, NULL, 0, CLUSTER_WAIT_MS, &result));
    return result;
}

cairn_status trainer_try_commit(cairn_job *job, const struct cairn_round *round, const void *state,
                                size_t state_bytes, int timeout_ms)
{
    struct cairn_result result = { .struct_size = sizeof result };
    return cairn_commit(job, round, 1, state, state_bytes, timeout_ms, &result);
}

cairn_status trainer_try_step(cairn_job *job, const char *tensor, const float *gradient,
                              uint64_t *step_out)
{
    const struct cairn_mem mem = trainer_mem(gradient, CAIRN_F32);
    struct cairn_round round = { .struct_size = sizeof round };
    struct cairn_result result = { .struct_size = sizeof result };
    cairn_status status = cairn_round_begin(job, CLUSTER_WAIT_MS, &round);
    if (status == CAIRN_OK) status = cairn_push(job, &round, 0, tensor, NULL, &mem, NULL);
    if (status == CAIRN_OK)
        status = cairn_commit(job, &round, 1, NULL, 0, CLUSTER_WAIT_MS, &result);
    if (status != CAIRN_OK) return status;
    ck_assert(result.applied);
    *step_out = result.step;
    return CAIRN_OK;
}

struct cairn_result trainer_step(cairn_job *job, const char *tensor, const float *gradient)
{
    const struct cairn_round round = trainer_begin(job);
    trainer_push(job, &round, tensor, gradient);
    return trainer_commit(job, &round, 1);
}

cairn_status trainer_try_fetch(cairn_job *job, struct cairn_version version, const char *tensor,
                               const char *plane, cairn_dtype dtype, void *out)
{
    const struct cairn_mem mem = trainer_mem(out, dtype);
    cairn_op *op;
    const cairn_status status = cairn_fetch(job, version, tensor, plane, NULL, &mem, &op);
    return status == CAIRN_OK ? cairn_wait(op, CLUSTER_WAIT_MS) : status;
}

void trainer_fetch(cairn_job *job, struct cairn_version version, const char *tensor,
                   const char *plane, cairn_dtype dtype, void *out)
{
    good(trainer_try_fetch(job, version, tensor, plane, dtype, out));
}

void trainer_digest(const struct cluster *cluster, const char *name, char root_out[65])
{
    static struct cluster_said said;
    cluster_cli(cluster, &said, "job digest -q %s", name);
    ck_assert_msg(said.status == 0, "%s", said.err);
    snprintf(root_out, 65, "%.64s", said.out);
    ck_assert_uint_eq(strlen(root_out), 64);
}

void trainer_expect_digest(const struct cluster *cluster, const char *name, const char *root)
{
    char its[65];
    trainer_digest(cluster, name, its);
    ck_assert_str_eq(its, root);
}
