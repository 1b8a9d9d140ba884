/* The strict left fold of contributions into the fp32 accumulator. */
#include <assert.h>
#include <string.h>

#include "gpu/host/host.h"

CAIRN_CLONES static void add_f32(float *restrict acc, const float *restrict src, size_t elems)
{
    for (size_t i = 0; i < elems; i++) acc[i] += src[i];
}

CAIRN_CLONES static void add_bf16(float *restrict acc, const uint16_t *restrict src, size_t elems)
{
    for (size_t i = 0; i < elems; i++) acc[i] += cairn_f32_of_bits((uint32_t)src[i] << 16);
}

static void fold_one(float *acc, const struct cairn_source *source, bool first, size_t start,
                     size_t elems)
{
    if (source->dtype == CAIRN_F32) {
        const float *data = (const float *)source->data + start;
        if (first) {
            memcpy(acc + start, data, elems * sizeof *data); // not 0 + x, which would lose -0
        } else {
            add_f32(acc + start, data, elems);
        }
    } else {
        assert(source->dtype == CAIRN_BF16);
        const uint16_t *data = (const uint16_t *)source->data + start;
        if (first) {
            cairn_host_widen(acc + start, data, elems);
        } else {
            add_bf16(acc + start, data, elems);
        }
    }
}

void cairn_host_fold(float *acc, const struct cairn_source *sources, size_t source_count,
                     bool first, size_t elems)
{
    if (source_count == 0) {
        if (first && elems != 0) memset(acc, 0, elems * sizeof *acc);
        return;
    }
    // Block by block, so that acc goes through memory once however many sources there are.
    for (size_t start = 0; start < elems; start += CAIRN_HOST_BLOCK_ELEMS) {
        size_t left = elems - start;
        size_t block = left < CAIRN_HOST_BLOCK_ELEMS ? left : CAIRN_HOST_BLOCK_ELEMS;
        for (size_t i = 0; i < source_count; i++) {
            fold_one(acc, &sources[i], first && i == 0, start, block);
        }
    }
}
