/* A run: works are cut into plans, and slice after slice is carried out while the next one is filled. */
#include "gpu/cuda/mutant.h"
#include "gpu/cuda/stream.h"

/* Begins the slice that was filled; the one that comes next is empty then. */
static cairn_status next_slice(struct cairn_cuda_stream *stream, struct cairn_sentence *why)
{
    const cairn_status status = cairn_cuda_slice_begin(stream, &stream->slices[stream->next], why);
    if (status != CAIRN_OK) return status;
    stream->next = (stream->next + 1) % CAIRN_CUDA_SLICES;
    return cairn_cuda_slice_finish(stream, &stream->slices[stream->next], why);
}

static cairn_status add_work(struct cairn_cuda_stream *stream, struct cairn_work *work,
                             struct cairn_sentence *why)
{
    struct cairn_cuda_plan_cursor cursor = { 0 };
    cairn_status status = CAIRN_OK;
    while (status == CAIRN_OK &&
           !cairn_cuda_plan_add(&stream->slices[stream->next].plan, work, &cursor))
        status = next_slice(stream, why);
    return status;
}

static cairn_status finish_all(struct cairn_cuda_stream *stream, struct cairn_sentence *why)
{
    cairn_status status = next_slice(stream, why);
    for (uint32_t i = 0; i < CAIRN_CUDA_SLICES - MUTANT(13) && status == CAIRN_OK; i++)
        status = cairn_cuda_slice_finish(
            stream, &stream->slices[(stream->next + i) % CAIRN_CUDA_SLICES], why);
    return status;
}

cairn_status cairn_cuda_run(struct cairn_home_stream *of, struct cairn_work *works, size_t count,
                            struct cairn_sentence *why)
{
    struct cairn_cuda_stream *stream = (struct cairn_cuda_stream *)of;
    cairn_status status = cairn_cuda_stream_begin(of, why);
    if (status != CAIRN_OK) return status;
    atomic_fetch_add(&cairn_cuda_of(of->home)->use.runs, 1);
    for (size_t i = 0; i < count && status == CAIRN_OK; i++)
        status = add_work(stream, &works[i], why);
    if (status == CAIRN_OK) status = finish_all(stream, why);
    if (status != CAIRN_OK) cairn_cuda_slices_drop(stream);
    return status;
}
