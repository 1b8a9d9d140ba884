/* Private to gpu/host: the kernels behind cairn_backend_host(), and what they share. */
#ifndef CAIRN_GPU_HOST_HOST_H
#define CAIRN_GPU_HOST_HOST_H

#include "gpu/gpu.h"

/* Builds a loop for AVX-512, AVX2 and plain x86-64 and picks one at start-up. The bits are the same:
 * nothing is contracted into fma, and lanes are fixed by the code, not by the vector's width. clang 14
 * has no such attribute in C, and the resolver runs before TSan and ASan are ready. */
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && \
    !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define CAIRN_CLONES __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define CAIRN_CLONES
#endif

/* Several passes over a block of this size cost one pass over memory: 8 KiB of fp32 stay in L1. */
#define CAIRN_HOST_BLOCK_ELEMS ((size_t)2048)

void cairn_host_fold(float *acc, const struct cairn_source *sources, size_t source_count,
                     bool first, size_t elems);
void cairn_host_sum_leaves(const float *acc, const struct cairn_geometry *geometry,
                           uint64_t first_leaf, uint64_t leaf_count, struct cairn_sums *sums);
void cairn_host_adamw(const struct cairn_update *update, const struct cairn_group_scalars *scalars);
void cairn_host_adam(const struct cairn_update *update, const struct cairn_group_scalars *scalars);
void cairn_host_sgd(const struct cairn_update *update, const struct cairn_group_scalars *scalars);
void cairn_host_convert(void *dst, cairn_dtype dst_dtype, const void *src, cairn_dtype src_dtype,
                        size_t elems);
void cairn_host_hash_leaves(const void *plane, cairn_dtype dtype,
                            const struct cairn_geometry *geometry, uint64_t leaf_count,
                            struct cairn_tree *tree);

/* The part [start, start + elems) of an update, and writing its wire copy once its param is done. */
struct cairn_update cairn_host_slice(const struct cairn_update *update, size_t start, size_t elems);
void cairn_host_publish(const struct cairn_update *slice);

/* bf16 to fp32. */
void cairn_host_widen(float *dst, const uint16_t *src, size_t elems);

#endif
