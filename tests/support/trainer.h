/* A trainer of real daemons, call by call: tensors of a table are opened, pushed, stepped, fetched and put.
 * What fails, fails the test with cairn_error(). Every wait is CLUSTER_WAIT_MS. */
#ifndef CAIRN_SUPPORT_TRAINER_H
#define CAIRN_SUPPORT_TRAINER_H

#include <cairn.h>

#include "tests/support/cluster.h"
#include "tests/support/good.h"

/* Rows of a table: of normal numbers made of `seed`, of ones, or as is said: .wire = CAIRN_BF16. */
// clang-format off
#define TRAINER_MATRIX(label, of_unit, rows, columns, seed, ...) \
    { .struct_size = sizeof(struct cairn_tensor), .name = (label), .unit = (of_unit), .rank = 2, \
      .shape = { (rows), (columns) }, .init = { CAIRN_INIT_NORMAL, 0, 1, (seed) }, __VA_ARGS__ }
#define TRAINER_ONES(label, of_unit, elems, ...) \
    { .struct_size = sizeof(struct cairn_tensor), .name = (label), .unit = (of_unit), .rank = 1, \
      .shape = { (elems) }, .init = { CAIRN_INIT_ONES, 0, 0, 0 }, __VA_ARGS__ }
// clang-format on
size_t trainer_elems(const struct cairn_tensor *tensor);
/* What it is published in, fp32 unless the row says bf16; and the bytes of that. */
cairn_dtype trainer_wire(const struct cairn_tensor *tensor);
size_t trainer_wire_bytes(const struct cairn_tensor *tensor);
/* All of them, in one group of AdamW by its defaults. What else the spec has stands behind: .rank = 1. */
struct cairn_job_spec trainer_spec(const struct cairn_tensor *tensors, size_t count);
extern const struct cairn_group trainer_adamw;
// clang-format off
#define TRAINER_SPEC(of_tensors, count, ...) \
    { .struct_size = sizeof(struct cairn_job_spec), .tensors = (of_tensors), .tensor_count = (count), \
      .groups = &trainer_adamw, .group_count = 1, __VA_ARGS__ }
// clang-format on

/* By the data path of that name; NULL: the default. */
cairn *trainer_session(const char *address, const char *fabric);
/* As a worker; neither put nor initialized. */
cairn_job *trainer_open(cairn *session, const char *name, const struct cairn_job_spec *spec);
/* As a worker, initialized by the tensors' initializers where it is new. */
cairn_job *trainer_ready(cairn *session, const char *name, const struct cairn_job_spec *spec);

/* A dense tensor of host memory. */
struct cairn_mem trainer_mem(const void *ptr, cairn_dtype dtype);
/* Its parameters, in fp32. */
void trainer_put(cairn_job *job, const char *tensor, const float *values);
struct cairn_round trainer_begin(cairn_job *job);
/* A gradient in fp32, which stays the job's until the round's end. */
void trainer_push(cairn_job *job, const struct cairn_round *round, const char *tensor,
                  const float *gradient);
/* It is applied. */
struct cairn_result trainer_commit(cairn_job *job, const struct cairn_round *round,
                                   uint64_t weight);
/* Its result, whether it is applied or skipped; it is of weight 1. */
struct cairn_result trainer_result(cairn_job *job, const struct cairn_round *round);
/* What becomes of a round of weight 1, with this client state. */
cairn_status trainer_try_commit(cairn_job *job, const struct cairn_round *round, const void *state,
                                size_t state_bytes, int timeout_ms);
/* A round of that one gradient, of weight 1. */
struct cairn_result trainer_step(cairn_job *job, const char *tensor, const float *gradient);
/* The same, which may fail; where it does not, it was applied, and the step after it is given. */
cairn_status trainer_try_step(cairn_job *job, const char *tensor, const float *gradient,
                              uint64_t *step_out);
/* plane NULL: the wire's. */
void trainer_fetch(cairn_job *job, struct cairn_version version, const char *tensor,
                   const char *plane, cairn_dtype dtype, void *out);
cairn_status trainer_try_fetch(cairn_job *job, struct cairn_version version, const char *tensor,
                               const char *plane, cairn_dtype dtype, void *out);
/* The job's content root, as `cairn job digest` prints it. */
void trainer_digest(const struct cluster *cluster, const char *name, char root_out[65]);
/* It is this one. */
void trainer_expect_digest(const struct cluster *cluster, const char *name, const char *root);

#endif
