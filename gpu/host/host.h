/* Private to gpu/host: the tables behind backend_host(), and the kernel that all of them share.
 *
 * isa/ has the kernels, one file an idea, written once as arithmetic on vectors (isa/vector.h) and compiled
 * for each instruction set (isa/table.c). The bits are the same: nothing is contracted into fma, and what
 * is added to what is fixed by the code, not by the vector's width. */
#ifndef CAIRN_GPU_HOST_HOST_H
#define CAIRN_GPU_HOST_HOST_H

#include "gpu/gpu.h"
#include "gpu/home_kind.h"

extern const struct backend host_plain;
#if defined(__x86_64__)
extern const struct backend host_avx2, host_avx512;
#endif

/* The elements with every NaN as the one of its dtype; bytes as they are. */
void host_canonical(void *out, const void *in, cairn_dtype dtype, size_t elems);
/* A leaf after the other, by libsodium: as hash_each of gpu.h. */
void host_hash_each(const void *plane, cairn_dtype dtype, const struct geometry *geometry,
                    uint64_t first_leaf, uint64_t leaf_count, struct hash *hashes_out);

/* ==== memory ==== */

/* The host's home: its memory, as of gpu/home_kind.h. Private to gpu/host. */

#endif
