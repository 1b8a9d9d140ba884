/* fp32 and bf16, the upper half of an fp32; any other dtype is only copied. */
#include <assert.h>
#include <string.h>

#include "gpu/host/host.h"

bool cairn_wire_dtype_ok(int dtype)
{
    return dtype == CAIRN_F32 || dtype == CAIRN_BF16;
}

CAIRN_CLONES void cairn_host_widen(float *restrict dst, const uint16_t *restrict src, size_t elems)
{
    for (size_t i = 0; i < elems; i++) dst[i] = cairn_f32_of_bits((uint32_t)src[i] << 16);
}

/* To nearest even: adding 0x7fff carries when the lower half is above one half, and the kept part's
 * last bit makes the tie even. FLT_MAX goes to infinity, as it is nearer to the next step up. */
static inline uint16_t narrow(float x)
{
    uint32_t u = cairn_f32_bits(x);
    uint32_t rounded = (u + 0x7fffu + ((u >> 16) & 1u)) >> 16;
    return (uint16_t)((u & 0x7fffffffu) > 0x7f800000u ? 0x7fc0u : rounded);
}

CAIRN_CLONES static void narrow_all(uint16_t *restrict dst, const float *restrict src, size_t elems)
{
    for (size_t i = 0; i < elems; i++) dst[i] = narrow(src[i]);
}

void cairn_host_convert(void *dst, cairn_dtype dst_dtype, const void *src, cairn_dtype src_dtype,
                        size_t elems)
{
    if (elems == 0) return; // the pointers may be NULL
    if (dst_dtype == src_dtype) {
        memcpy(dst, src, elems * cairn_dtype_bytes((int)dst_dtype));
        return;
    }
    assert(cairn_wire_dtype_ok((int)dst_dtype) && cairn_wire_dtype_ok((int)src_dtype));
    if (dst_dtype == CAIRN_F32) {
        cairn_host_widen(dst, src, elems);
    } else {
        narrow_all(dst, src, elems);
    }
}
