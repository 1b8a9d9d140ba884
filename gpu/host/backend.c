/* The table of the host's kernels, and what its optimizers share. */
#include <assert.h>
#include <fenv.h>
#include <float.h>
#if defined(__SSE2__)
#include <xmmintrin.h>
#endif

#include "gpu/host/host.h"

_Static_assert(FLT_EVAL_METHOD == 0, "fp32 operations round to fp32, not to x87 registers");

const struct cairn_backend *cairn_backend_host(void)
{
    static const struct cairn_backend host = {
        .name = "host",
        .isa = "by loop",
        .fold = cairn_host_fold,
        .sum_leaves = cairn_host_sum_leaves,
        .update = { [CAIRN_OPTIMIZER_ADAMW] = cairn_host_adamw,
                    [CAIRN_OPTIMIZER_ADAM] = cairn_host_adam,
                    [CAIRN_OPTIMIZER_SGD] = cairn_host_sgd },
        .convert = cairn_host_convert,
        .hash_leaves = cairn_host_hash_leaves,
    };
    return &host;
}

struct cairn_update cairn_host_slice(const struct cairn_update *update, size_t start, size_t elems)
{
    assert(start < update->elems);
    size_t left = update->elems - start;
    struct cairn_update slice = *update;
    slice.elems = elems < left ? elems : left;
    slice.grad += start;
    slice.param += start;
    if (slice.exp_avg != NULL) slice.exp_avg += start;
    if (slice.exp_avg_sq != NULL) slice.exp_avg_sq += start;
    if (slice.wire != NULL) {
        slice.wire = (char *)slice.wire + start * cairn_dtype_bytes((int)slice.wire_dtype);
    }
    return slice;
}

void cairn_host_publish(const struct cairn_update *slice)
{
    if (slice->wire == NULL) return;
    cairn_host_convert(slice->wire, slice->wire_dtype, slice->param, CAIRN_F32, slice->elems);
}

bool cairn_float_env_ok(void)
{
#if defined(__SSE2__)
    // All exceptions masked, to nearest, no flush to zero, subnormals are not read as zero. The low
    // six bits are sticky flags that any operation may have set.
    return (_mm_getcsr() & ~0x3fu) == 0x1f80;
#else
    volatile float least_normal = FLT_MIN;
    return fegetround() == FE_TONEAREST && least_normal / 2 != 0;
#endif
}
