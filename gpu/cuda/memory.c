/* Planes on a card: segments of at most 64 MiB, each a handle of its own, mapped side by side. */
#include <inttypes.h>
#include <stdlib.h>

#include "gpu/cuda/cuda.h"
#include "gpu/cuda/mutant.h"
#include "gpu/cuda/vmm.h"

struct cairn_home_segment {
    unsigned long long handle;
    uint64_t bytes; /* 0: it is not there */
    bool is_mapped;
};

/* An allocation in the making: whole pages at its addresses. */
struct taken {
    uint64_t at, bytes;
    bool is_exportable;
    struct cairn_home_segment *segments; /* [cairn_segments(bytes)], all 0 at first */
};

static uint64_t round_up(uint64_t bytes, uint64_t unit)
{
    return (bytes + unit - 1) / unit * unit;
}

/* ---- the way back: what fails is lost, with the card ---- */

static void release_segment(struct cairn_cuda *cuda, struct cairn_home_segment *segment,
                            uint64_t at)
{
    if (segment->is_mapped) (void)cuda->driver.cuMemUnmap(at, (size_t)segment->bytes);
    if (segment->bytes > 0) (void)cuda->driver.cuMemRelease(segment->handle);
    *segment = (struct cairn_home_segment) { .bytes = 0 };
}

static void release_segments(struct cairn_cuda *cuda, struct cairn_home_segment *segments,
                             uint64_t count, uint64_t at)
{
    for (uint64_t i = 0; i < count; i++)
        release_segment(cuda, &segments[i], at + i * CAIRN_SEGMENT_BYTES);
}

void cairn_cuda_give_addresses(struct cairn_cuda *cuda, uint64_t at)
{
    pthread_mutex_lock(&cuda->lock);
    (void)cairn_cuda_spans_take(&cuda->used, at);
    pthread_mutex_unlock(&cuda->lock);
}

/* ---- the way there ---- */

uint64_t cairn_cuda_take_addresses(struct cairn_cuda *cuda, struct cairn_cuda_span part,
                                   uint64_t bytes)
{
    pthread_mutex_lock(&cuda->lock);
    uint64_t at = cairn_cuda_spans_gap(&cuda->used, part, bytes);
    const struct cairn_cuda_span span = { at, bytes };
    if (at != 0 && cairn_cuda_spans_add(&cuda->used, span) != CAIRN_OK) at = 0;
    pthread_mutex_unlock(&cuda->lock);
    return at;
}

static int create_segment(struct cairn_cuda *cuda, struct cairn_home_segment *segment,
                          const struct cairn_cu_allocation *how, uint64_t bytes, uint64_t at)
{
    int result = cuda->driver.cuMemCreate(&segment->handle, (size_t)bytes, how, 0);
    if (result != CAIRN_CU_OK) return result;
    segment->bytes = bytes;
    result = cuda->driver.cuMemMap(at, (size_t)bytes, 0, segment->handle, 0);
    segment->is_mapped = result == CAIRN_CU_OK;
    return result;
}

static int create_segments(struct cairn_cuda *cuda, const struct taken *taken)
{
    const struct cairn_cu_allocation how = cairn_vmm_allocation(cuda->device, taken->is_exportable,
                                                                cuda->home.info.is_reached);
    struct cairn_home_segment *segments = taken->segments;
    int result = CAIRN_CU_OK;
    for (uint64_t done = 0; done < taken->bytes && result == CAIRN_CU_OK;
         done += segments++->bytes) {
        result = create_segment(cuda, segments, &how,
                                cairn_segment_bytes(taken->bytes, done / CAIRN_SEGMENT_BYTES),
                                taken->at + done);
    }
    return result;
}

static int open_and_zero(struct cairn_cuda *cuda, uint64_t at, uint64_t bytes)
{
    const struct cairn_cu_access access = {
        .location = { .type = CAIRN_CU_LOCATION_DEVICE, .id = cuda->device },
        .flags = CAIRN_CU_ACCESS_READWRITE,
    };
    int result = cuda->driver.cuMemSetAccess(at, (size_t)bytes, &access, 1);
    if (result == CAIRN_CU_OK)
        result = cuda->driver.cuMemsetD8Async(at, 0, (size_t)bytes, cuda->zeroing);
    if (MUTANT(12)) return result;
    // The stream is everybody's: zeros that another thread queues in between are waited for, too.
    return result == CAIRN_CU_OK ? cairn_cuda_wait(cuda, cuda->zeroing, cuda->zeroed) : result;
}

static cairn_status is_full(struct cairn_cuda *cuda, const char *label, uint64_t bytes,
                            struct cairn_sentence *why)
{
    return cairn_fail(
        why, CAIRN_ERR_NO_MEMORY,
        "%s: no memory for %" PRIu64 " MiB: %" PRIu64 " of the %" PRIu64 " MiB of %s are free",
        label, (bytes + (1 << 20) - 1) >> 20, cairn_home_free_bytes(&cuda->home) >> 20,
        cuda->home.info.total_bytes >> 20, cuda->home.info.device);
}

static cairn_status fill(struct cairn_cuda *cuda, const char *label, const struct taken *taken,
                         struct cairn_sentence *why)
{
    int result = create_segments(cuda, taken);
    if (result == CAIRN_CU_OK) result = open_and_zero(cuda, taken->at, taken->bytes);
    if (result == CAIRN_CU_OK) return CAIRN_OK;
    const bool is_out = result == CAIRN_CU_OUT_OF_MEMORY;
    const cairn_status status = is_out ? is_full(cuda, label, taken->bytes, why)
                                       : cairn_cuda_check(cuda, result, "taking memory", why);
    if (!atomic_load(&cuda->has_failed)) // else it may be filled still, and goes with the context
        release_segments(cuda, taken->segments, cairn_segments(taken->bytes), taken->at);
    return status;
}

cairn_status cairn_cuda_memory_open(struct cairn_home *home, const char *label,
                                    struct cairn_home_memory *memory_out,
                                    struct cairn_sentence *why)
{
    struct cairn_cuda *cuda = cairn_cuda_of(home);
    cairn_status status = cairn_cuda_enter(cuda, why);
    if (status != CAIRN_OK) return status;
    if (memory_out->bytes > home->info.total_bytes)
        return is_full(cuda, label, memory_out->bytes, why);
    struct taken taken = { .bytes = round_up(memory_out->bytes, cuda->granularity),
                           .is_exportable = memory_out->is_exportable };
    taken.at = cairn_cuda_take_addresses(cuda, cuda->planes, taken.bytes);
    if (taken.at == 0) return is_full(cuda, label, taken.bytes, why);
    taken.segments = calloc((size_t)cairn_segments(taken.bytes), sizeof *taken.segments);
    status = taken.segments == NULL
                 ? cairn_fail(why, CAIRN_ERR_NO_MEMORY, "no memory for a plane's segments")
                 : fill(cuda, label, &taken, why);
    if (status != CAIRN_OK) goto err_addresses;
    memory_out->base = (void *)(uintptr_t)taken.at;
    memory_out->segments = taken.segments;
    return CAIRN_OK;
err_addresses:
    free(taken.segments);
    cairn_cuda_give_addresses(cuda, taken.at);
    return status;
}

cairn_status cairn_cuda_memory_export(const struct cairn_home_memory *memory, uint64_t segment,
                                      int *fd_out, uint64_t *bytes_out, struct cairn_sentence *why)
{
    struct cairn_cuda *cuda = cairn_cuda_of(memory->home);
    int fd = -1;
    const cairn_status status = cairn_cuda_enter(cuda, why);
    if (status != CAIRN_OK) return status;
    const int result = cuda->driver.cuMemExportToShareableHandle(
        &fd, memory->segments[segment].handle, CAIRN_CU_HANDLE_POSIX, 0);
    if (result != CAIRN_CU_OK) return cairn_cuda_check(cuda, result, "exporting memory", why);
    *fd_out = fd;
    *bytes_out = memory->segments[segment].bytes;
    return CAIRN_OK;
}

void cairn_cuda_memory_give(struct cairn_home_memory *memory, uint64_t segment)
{
    struct cairn_cuda *cuda = cairn_cuda_of(memory->home);
    cairn_cuda_enter_anyway(cuda);
    if (!atomic_load(&cuda->has_failed))
        release_segment(cuda, &memory->segments[segment],
                        (uint64_t)(uintptr_t)memory->base + segment * CAIRN_SEGMENT_BYTES);
}

void cairn_cuda_memory_close(struct cairn_home_memory *memory)
{
    struct cairn_cuda *cuda = cairn_cuda_of(memory->home);
    const uint64_t at = (uint64_t)(uintptr_t)memory->base;
    cairn_cuda_enter_anyway(cuda);
    if (!atomic_load(&cuda->has_failed)) // else it goes with the context
        release_segments(cuda, memory->segments,
                         cairn_segments(round_up(memory->bytes, cuda->granularity)), at);
    cairn_cuda_give_addresses(cuda, at);
    free(memory->segments);
}
