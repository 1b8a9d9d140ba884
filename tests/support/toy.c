#include "tests/support/toy.h"

#include <check.h>
#include <string.h>

#include "client/job.h"

const struct cairn_tensor toy_tensors[TOY_TENSORS] = {
    { .struct_size = sizeof(struct cairn_tensor),
      .name = "a.weight",
      .unit = "a",
      .rank = 2,
      .shape = { 60, 20 } },
    { .struct_size = sizeof(struct cairn_tensor),
      .name = "a.bias",
      .unit = "a",
      .rank = 1,
      .shape = { 20 } },
    { .struct_size = sizeof(struct cairn_tensor),
      .name = "b.weight",
      .unit = "b",
      .wire = CAIRN_BF16,
      .rank = 2,
      .shape = { 31, 33 } },
    { .struct_size = sizeof(struct cairn_tensor), .name = "scale" },
    { .struct_size = sizeof(struct cairn_tensor),
      .name = "table",
      .rank = 1,
      .shape = { 77 },
      .kind = CAIRN_FROZEN },
};

uint64_t toy_elems(int tensor)
{
    uint64_t elems = 1;
    for (uint32_t d = 0; d < toy_tensors[tensor].rank; d++) elems *= toy_tensors[tensor].shape[d];
    return elems;
}

const struct cairn_group toy_group = CAIRN_GROUP_INIT;

static cairn *given[TOY_SESSIONS_MAX];
static int given_count;

cairn *toy_session(const struct rooms *rooms, const char *name)
{
    const struct cairn_opts opts = { .struct_size = sizeof opts,
                                     .endpoint = rooms->address,
                                     .name = name };
    cairn *session = NULL;
    good(client_open(&opts, rooms->hub, &session));
    ck_assert_int_lt(given_count, TOY_SESSIONS_MAX);
    given[given_count++] = session;
    return session;
}

void toy_sessions_close(void)
{
    while (given_count > 0) cairn_close(given[--given_count]);
}

cairn_job *toy_open(cairn *session, const char *name, const struct cairn_job_spec *spec)
{
    cairn_job *job = NULL;
    good(cairn_job_open(session, name, spec, spec != NULL ? CAIRN_WORKER : CAIRN_READER,
                        TOY_WAIT_MS, &job));
    return job;
}

struct cairn_mem toy_mem(void *ptr, cairn_dtype dtype)
{
    return (
        struct cairn_mem) { .struct_size = sizeof(struct cairn_mem), .ptr = ptr, .dtype = dtype };
}

float toy_initial(int tensor, uint64_t elem)
{
    return (float)(tensor + 1) * 0.25f - (float)(elem % 97) / 64;
}

void toy_put(cairn_job *job)
{
    float values[TOY_ELEMS];
    for (int t = 0; t < TOY_TENSORS; t++) {
        cairn_op *op = NULL;
        for (uint64_t i = 0; i < toy_elems(t); i++) values[i] = toy_initial(t, i);
        const struct cairn_mem mem = toy_mem(values, CAIRN_F32);
        good(cairn_put(job, toy_tensors[t].name, "param", NULL, &mem, &op));
        good(cairn_wait(op, TOY_WAIT_MS));
    }
}

cairn_job *toy_ready(cairn *session, const char *name, const struct cairn_job_spec *spec)
{
    cairn_job *job = toy_open(session, name, spec);
    if (spec->rank == 0) toy_put(job);
    good(cairn_init_done(job, NULL, TOY_WAIT_MS));
    return job;
}

struct cairn_round toy_begin(cairn_job *job)
{
    struct cairn_round round = { .struct_size = sizeof round };
    good(cairn_round_begin(job, TOY_WAIT_MS, &round));
    return round;
}

void toy_push(cairn_job *job, const struct cairn_round *round, uint32_t micro, uint32_t seed)
{
    static _Thread_local float values[TOY_ELEMS];
    for (int t = 0; t < TOY_TENSORS; t++) {
        cairn_op *op = NULL;
        if (toy_tensors[t].kind == CAIRN_FROZEN) continue;
        for (uint64_t i = 0; i < toy_elems(t); i++)
            values[i] = (float)((i * 2654435761u + seed * 40503u + (uint32_t)t) % 2047) / 1021 - 1;
        const struct cairn_mem mem = toy_mem(values, CAIRN_F32);
        good(cairn_push(job, round, micro, toy_tensors[t].name, NULL, &mem, &op));
        good(cairn_wait(op, TOY_WAIT_MS));
    }
}

struct cairn_result toy_commit(cairn_job *job, const struct cairn_round *round)
{
    struct cairn_result result = { .struct_size = sizeof result };
    good(cairn_commit(job, round, 0, NULL, 0, TOY_WAIT_MS, &result));
    return result;
}

struct cairn_result toy_step(cairn_job *job, uint32_t seed)
{
    const struct cairn_round round = toy_begin(job);
    toy_push(job, &round, 0, seed);
    return toy_commit(job, &round);
}

struct cairn_stats toy_stats(cairn_job *job)
{
    struct cairn_stats stats = { .struct_size = sizeof stats };
    good(cairn_job_stats(job, &stats));
    return stats;
}

void toy_fetch(cairn_job *job, struct cairn_version version, int tensor, const char *plane,
               cairn_dtype dtype, void *out)
{
    cairn_op *op = NULL;
    const struct cairn_mem mem = toy_mem(out, dtype);
    struct cairn_box whole = { .rank = toy_tensors[tensor].rank }; // of a worker with tiles, too
    memcpy(whole.extent, toy_tensors[tensor].shape, sizeof whole.extent);
    good(cairn_fetch(job, version, toy_tensors[tensor].name, plane, &whole, &mem, &op));
    good(cairn_wait(op, TOY_WAIT_MS));
}
