/* Training in plain sight: whole tensors in one process, no daemon, no layout, no chunks. What a cluster
 * comes to is held against it, bit for bit.
 *
 * A test's job says what its tensors and groups are and what its ranks contribute, and folds that into `sum`
 * as it sees fit: whole tensors, or element by element out of boxes. All that follows from a sum is here. It
 * calls the kernels and the scalars.
 *
 * Not Check's: some programs run it outside of a suite. What fails aborts, with a line that says what. */
#ifndef CAIRN_SUPPORT_REFERENCE_H
#define CAIRN_SUPPORT_REFERENCE_H

#include <cairn.h>

#include "gpu/gpu.h"
#include "proto/snapshot/digest_tree.h"
#include "proto/spec/spec.h"

struct reference_tensor {
    const char *name; /* borrowed; NULL: there is none */
    cairn_dtype wire_dtype;
    struct geometry geometry;
    struct shape shape;
    float *plane[CAIRN_PLANE_COUNT]; /* owned: [elems]; NULL: not kept. [CAIRN_PLANE_WIRE] NULL */
    void *wire;                      /* owned: [elems], in wire_dtype */
    float *sum;                      /* owned: [elems], of the round at hand */
    uint64_t missed;                 /* steps that passed it by */
};

void reference_must(bool holds, const char *what);
/* [elems] floats of 0, to be freed. */
void *reference_zeros(uint64_t elems);
/* In [-1, 1), a multiple of 2^-15: exact in fp32. */
float reference_noise(uint64_t seed, uint64_t elem);

/* What the group's optimizer uses of it, its lr without the schedule. */
struct group_hyper reference_hyper(const struct cairn_group *group);

/* Before the first step, with these values: [elems], taken over, from reference_zeros. */
void reference_open(struct reference_tensor *tensor, const char *name, const struct shape *shape,
                    cairn_dtype wire_dtype, float *param);
void reference_close(struct reference_tensor *tensor);
/* From now on, after `step` steps, it is trained: with the optimizer's planes, 0 at first, and its average,
 * which is at first the parameters. */
void reference_train(struct reference_tensor *tensor, const struct group_hyper *hyper,
                     uint64_t step);

/* Adds the squares of the sum to those of the round. */
void reference_measure(const struct reference_tensor *tensor, struct sums *sums);
/* The update that makes version `step` (from 1) out of the sum, by the tensor's own count. */
void reference_update(struct reference_tensor *tensor, const struct group_hyper *hyper,
                      uint64_t step, uint32_t grad_scale);

/* The roots of its planes; returns how many. */
size_t reference_digest(const struct reference_tensor *tensor,
                        struct plane_digest out[CAIRN_PLANE_COUNT]);
/* Adds the tensor to `list`, which `count` are in, if it has missed steps; returns how many then are. */
size_t reference_missed(const struct reference_tensor *tensor, struct missed_digest *list,
                        size_t count);
/* The content root of a job without client state, which is set here. */
void reference_root(struct plane_digest *planes, size_t plane_count, struct content *content,
                    char hex_out[65]);

#endif
