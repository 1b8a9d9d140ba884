/* Measures for cairn bench update --only hash: one thread hashes a plane by each instruction set
 * that this CPU has, by turns; "plain" is libsodium, a leaf after the other. Seconds are processor
 * time of the thread, as others may use the cores, too. */
#include <time.h>

#include "client/ctl/bench/bench.h"
#include "client/ctl/bench/update/update.h"

#define ROUNDS      9
#define ROUND_ELEMS ((size_t)4 << 20)

static double processor_seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* GB/s */
static double rate_of(size_t elems, double seconds)
{
    return (double)(elems * sizeof(float)) / seconds * 1e-9;
}

static double by_set(const struct cairn_update_arrays *arrays, size_t elems,
                     const struct cairn_backend *host)
{
    struct cairn_hash hashes[CAIRN_UPDATE_CHUNK_LEAVES];
    const double start = processor_seconds();
    for (size_t i = 0; i < elems; i += CAIRN_UPDATE_CHUNK_ELEMS)
        host->hash_each(arrays->param + i, CAIRN_F32, &arrays->geometry, i / CAIRN_LEAF_ELEMS,
                        CAIRN_UPDATE_CHUNK_LEAVES, hashes);
    return rate_of(elems, processor_seconds() - start);
}

static void set_median(json_t *parts, const char *set, const char *what, double *values)
{
    char key[32];
    snprintf(key, sizeof key, "%s_%s", set, what);
    json_object_set_new(parts, key, json_real(cairn_bench_spread_of(values, ROUNDS).median));
}

void cairn_update_hash_sets(const struct cairn_update_arrays *arrays, json_t *parts)
{
    double rate[CAIRN_HOST_ISA_COUNT][ROUNDS];
    double ratio[CAIRN_HOST_ISA_COUNT][ROUNDS];
    const size_t elems = arrays->elems < ROUND_ELEMS ? arrays->elems : ROUND_ELEMS;
    for (uint32_t round = 0; round < ROUNDS; round++) {
        for (uint32_t isa = 0; isa < CAIRN_HOST_ISA_COUNT; isa++) {
            const struct cairn_backend *host = cairn_backend_host_at(isa);
            if (host == NULL) continue;
            rate[isa][round] = by_set(arrays, elems, host);
            ratio[isa][round] = rate[isa][round] / rate[0][round];
        }
    }
    for (uint32_t isa = 0; isa < CAIRN_HOST_ISA_COUNT; isa++) {
        if (cairn_backend_host_at(isa) == NULL) continue;
        set_median(parts, cairn_backend_host_isa(isa), "gbps", rate[isa]);
        set_median(parts, cairn_backend_host_isa(isa), "ratio", ratio[isa]);
    }
}
