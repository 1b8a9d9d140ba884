/* A trainer's side for tests: sessions and jobs of libcairn against the rooms of one process. Everything that
 * is not what the test is about fails the test (Check) with cairn_error(). */
#ifndef CAIRN_SUPPORT_TOY_H
#define CAIRN_SUPPORT_TOY_H

#include <cairn.h>

#include "tests/support/good.h"
#include "tests/support/rooms.h"

enum {
    TOY_TENSORS = 5,
    TOY_ELEMS = 1200,
    TOY_VALUES = 1200 + 20 + 1023 + 1 + 77,
    TOY_WAIT_MS = 20000,
    TOY_SESSIONS_MAX = 256
};

/* In three units: "a" of two tensors, "b" of one whose wire is bf16, each of the others alone; the last
 * one is frozen. */
extern const struct cairn_tensor toy_tensors[TOY_TENSORS];
uint64_t toy_elems(int tensor);
/* A job of them in one group of AdamW by its defaults, for rank 0 of one worker, until the block's end.
 * What is to be different stands behind: TOY_SPEC(.rank = 1, .workers_min = 2). */
#define TOY_SPEC(...) (&(struct cairn_job_spec) { TOY_MODEL, __VA_ARGS__ })
// clang-format off
#define TOY_MODEL \
    .struct_size = sizeof(struct cairn_job_spec), .tensors = toy_tensors, .tensor_count = TOY_TENSORS, \
    .groups = &toy_group, .group_count = 1
// clang-format on
extern const struct cairn_group toy_group;
/* Host memory for one call, dense. */
#define TOY_F32(values)  (&(struct cairn_mem)TOY_MEM(values, CAIRN_F32))
#define TOY_BF16(values) (&(struct cairn_mem)TOY_MEM(values, CAIRN_BF16))
#define TOY_MEM(values, of)                                                     \
    {                                                                           \
        .struct_size = sizeof(struct cairn_mem), .ptr = (values), .dtype = (of) \
    }

cairn *toy_session(const struct rooms *rooms, const char *name);
/* All that toy_session has given: a handle that is closed already may be closed again. */
void toy_sessions_close(void);
cairn_job *toy_open(cairn *session, const char *job, const struct cairn_job_spec *spec);
/* A dense tensor of host memory. */
struct cairn_mem toy_mem(void *ptr, cairn_dtype dtype);
/* Element i of a tensor's initial state. */
float toy_initial(int tensor, uint64_t elem);
/* Puts all tensors, as toy_initial has them; does not call cairn_init_done. */
void toy_put(cairn_job *job);
/* toy_open, toy_put of rank 0, and cairn_init_done. */
cairn_job *toy_ready(cairn *session, const char *job, const struct cairn_job_spec *spec);
struct cairn_round toy_begin(cairn_job *job);
/* Pushes a gradient for every trained tensor: a number made of `seed`, tensor and element. */
void toy_push(cairn_job *job, const struct cairn_round *round, uint32_t micro, uint32_t seed);
struct cairn_result toy_commit(cairn_job *job, const struct cairn_round *round);
/* Begin, push, commit. */
struct cairn_result toy_step(cairn_job *job, uint32_t seed);
struct cairn_stats toy_stats(cairn_job *job);
/* The plane's values of a whole tensor. */
void toy_fetch(cairn_job *job, struct cairn_version version, int tensor, const char *plane,
               cairn_dtype dtype, void *out);

#endif
