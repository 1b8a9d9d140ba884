/* Which of the host's tables is used, and what a thread must be like to use it. */
#include <assert.h>
#include <fenv.h>
#include <float.h>
#include <stdlib.h>
#include <string.h>
#if defined(__SSE2__)
#include <xmmintrin.h>
#endif

#include "gpu/host/host.h"

_Static_assert(FLT_EVAL_METHOD == 0, "fp32 operations round to fp32, not to x87 registers");

const char *cairn_backend_host_isa(uint32_t isa)
{
    static const char *const names[CAIRN_HOST_ISA_COUNT] = { "plain", "avx2", "avx512" };
    assert(isa < CAIRN_HOST_ISA_COUNT);
    return names[isa];
}

const struct cairn_backend *cairn_backend_host_at(uint32_t isa)
{
    assert(isa < CAIRN_HOST_ISA_COUNT);
#if defined(__x86_64__)
    if (isa == 2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl"))
        return &cairn_host_avx512;
    if (isa == 1 && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
        return &cairn_host_avx2;
#endif
    return isa == 0 ? &cairn_host_plain : NULL;
}

const struct cairn_backend *cairn_backend_host(void)
{
    static const struct cairn_backend *chosen; // whoever chooses at the same time chooses the same
    const struct cairn_backend *host = __atomic_load_n(&chosen, __ATOMIC_ACQUIRE);
    if (host != NULL) return host;
    const char *wanted = getenv("CAIRN_HOST_ISA");
    for (uint32_t isa = 0; isa < CAIRN_HOST_ISA_COUNT; isa++) {
        const struct cairn_backend *at = cairn_backend_host_at(isa);
        if (at == NULL) continue;
        host = at;
        if (wanted != NULL && strcmp(wanted, at->isa) == 0) break;
    }
    __atomic_store_n(&chosen, host, __ATOMIC_RELEASE);
    return host;
}

bool cairn_wire_dtype_ok(int dtype)
{
    return dtype == CAIRN_F32 || dtype == CAIRN_BF16;
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
