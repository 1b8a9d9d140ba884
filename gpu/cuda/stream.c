#include "gpu/cuda/stream.h"

#include <stdlib.h>

#define SIDES         (2u * CAIRN_CUDA_SLICES)
#define CARD_PER_PLAN 8192u

static int open_streams(struct cairn_cuda_stream *stream, const struct cairn_driver *driver)
{
    int result = driver->cuStreamCreate(&stream->in, CAIRN_CU_STREAM_NON_BLOCKING);
    if (result == CAIRN_CU_OK)
        result = driver->cuStreamCreate(&stream->compute, CAIRN_CU_STREAM_NON_BLOCKING);
    if (result == CAIRN_CU_OK)
        result = driver->cuStreamCreate(&stream->out, CAIRN_CU_STREAM_NON_BLOCKING);
    return result;
}

static int open_events(struct cairn_cuda_slice *slice, const struct cairn_driver *driver)
{
    int result = driver->cuEventCreate(&slice->loaded, CAIRN_CUDA_EVENT);
    if (result == CAIRN_CU_OK) result = driver->cuEventCreate(&slice->computed, CAIRN_CUDA_EVENT);
    if (result == CAIRN_CU_OK) result = driver->cuEventCreate(&slice->done, CAIRN_CUDA_EVENT);
    return result;
}

uint64_t cairn_cuda_staging_bytes(uint64_t card_bytes)
{
    const uint64_t page = 4096, most = CAIRN_CUDA_PLAN_BYTES_MAX, least = most / 4;
    uint64_t bytes = card_bytes / CARD_PER_PLAN / page * page;
    if (bytes < least) bytes = least;
    return SIDES * (bytes < most ? bytes : most);
}

static cairn_status open_plan(struct cairn_cuda_stream *stream, int index,
                              struct cairn_sentence *why)
{
    struct cairn_cuda *cuda = cairn_cuda_of(stream->stream.home);
    struct cairn_cuda_plan *plan = &stream->slices[index].plan;
    const size_t bytes = (size_t)cuda->home.info.stream_bytes / SIDES, in = (size_t)index * bytes,
                 out = in + CAIRN_CUDA_SLICES * bytes;
    const uint64_t device = (uint64_t)(uintptr_t)stream->staging.base;
    plan->bytes = bytes;
    plan->space = cuda->space;
    plan->is_pinned = cairn_cuda_is_pinned;
    plan->cuda = cuda;
    plan->in = (struct cairn_cuda_plan_side) { .host = stream->pinned + in, .device = device + in };
    plan->out = (struct cairn_cuda_plan_side) { .host = stream->pinned + out,
                                                .device = device + out };
    if (cairn_cuda_plan_init(plan) == CAIRN_OK) return CAIRN_OK;
    return cairn_fail(why, CAIRN_ERR_NO_MEMORY, "no memory for a stream's plans");
}

static void close_staging(struct cairn_cuda_stream *stream)
{
    struct cairn_cuda *cuda = cairn_cuda_of(stream->stream.home);
    for (int i = 0; i < CAIRN_CUDA_SLICES; i++) cairn_cuda_plan_release(&stream->slices[i].plan);
    cairn_home_memory_close(&stream->staging);
    if (stream->pinned != NULL && !atomic_load(&cuda->has_failed))
        (void)cuda->driver.cuMemFreeHost(stream->pinned);
    stream->pinned = NULL;
}

static cairn_status open_all(struct cairn_cuda_stream *stream, struct cairn_sentence *why)
{
    struct cairn_cuda *cuda = cairn_cuda_of(stream->stream.home);
    cairn_status status = cairn_cuda_enter(cuda, why);
    if (status != CAIRN_OK) return status;
    int result = open_streams(stream, &cuda->driver);
    for (int i = 0; i < CAIRN_CUDA_SLICES && result == CAIRN_CU_OK; i++)
        result = open_events(&stream->slices[i], &cuda->driver);
    return cairn_cuda_check(cuda, result, "opening a stream", why);
}

/* On the card's side of the host, whose thread this is for so long. */
static int pin_staging(struct cairn_cuda *cuda, uint8_t **pinned_out, size_t bytes)
{
    struct cairn_numa_before before;
    (void)cairn_numa_go(cuda->home.info.numa_node, &before); // or it lies where it lies
    const int result = cuda->driver.cuMemAllocHost((void **)pinned_out, bytes);
    cairn_numa_return(&before);
    return result;
}

cairn_status cairn_cuda_stream_begin(struct cairn_home_stream *begun, struct cairn_sentence *why)
{
    struct cairn_cuda_stream *stream = (struct cairn_cuda_stream *)begun;
    struct cairn_cuda *cuda = cairn_cuda_of(begun->home);
    cairn_status status = cairn_cuda_enter(cuda, why);
    if (status != CAIRN_OK || stream->pinned != NULL) return status;
    uint8_t *pinned = NULL;
    const size_t bytes = (size_t)cuda->home.info.stream_bytes;
    status = cairn_home_memory_open(&cuda->home, "a stream's staging", bytes, &stream->staging,
                                    why);
    if (status == CAIRN_OK)
        status = cairn_cuda_check(cuda, pin_staging(cuda, &pinned, bytes),
                                  "pinning a stream's staging", why);
    stream->pinned = pinned;
    for (int i = 0; i < CAIRN_CUDA_SLICES && status == CAIRN_OK; i++)
        status = open_plan(stream, i, why);
    if (status == CAIRN_OK) return CAIRN_OK;
    close_staging(stream);
    return status;
}

static void close_slice(struct cairn_cuda_slice *slice, const struct cairn_driver *driver)
{
    if (slice->loaded != NULL) (void)driver->cuEventDestroy(slice->loaded);
    if (slice->computed != NULL) (void)driver->cuEventDestroy(slice->computed);
    if (slice->done != NULL) (void)driver->cuEventDestroy(slice->done);
}

void cairn_cuda_stream_close(struct cairn_home_stream *closed)
{
    struct cairn_cuda_stream *stream = (struct cairn_cuda_stream *)closed;
    struct cairn_cuda *cuda = cairn_cuda_of(closed->home);
    cairn_cuda_enter_anyway(cuda);
    for (int i = 0; i < CAIRN_CUDA_SLICES; i++) close_slice(&stream->slices[i], &cuda->driver);
    close_staging(stream);
    if (stream->in != NULL) (void)cuda->driver.cuStreamDestroy(stream->in);
    if (stream->compute != NULL) (void)cuda->driver.cuStreamDestroy(stream->compute);
    if (stream->out != NULL) (void)cuda->driver.cuStreamDestroy(stream->out);
    free(stream);
}

cairn_status cairn_cuda_stream_open(struct cairn_home *home, struct cairn_home_stream **stream_out,
                                    struct cairn_sentence *why)
{
    struct cairn_cuda_stream *stream = calloc(1, sizeof *stream);
    if (stream == NULL) return cairn_fail(why, CAIRN_ERR_NO_MEMORY, "no memory for a stream");
    stream->stream.home = home;
    const cairn_status status = open_all(stream, why);
    if (status == CAIRN_OK)
        *stream_out = &stream->stream;
    else
        cairn_cuda_stream_close(&stream->stream);
    return status;
}
