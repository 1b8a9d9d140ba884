/* A run: works are cut into plans, and slice after slice is carried out while the next one is filled. A list
 * that is begun before the one ahead of it is finished goes on in the same ring of slices. */
#include <assert.h>

#include "gpu/cuda/mutant.h"
#include "gpu/cuda/stream.h"

/* ---- slices, in their ring ---- */

/* Told by the finish of that list, which is under way still. */
static void note_failed(struct cairn_cuda_stream *stream, uint64_t list, cairn_status status,
                        const struct cairn_sentence *why)
{
    stream->list_failed = list;
    stream->failed_status = status;
    stream->failed_why = *why;
}

/* Before the next slice is filled: whoever had it, this list or the one ahead, has what it made. */
static cairn_status empty_next(struct cairn_cuda_stream *stream, struct cairn_sentence *why)
{
    struct cairn_cuda_slice *slice = &stream->slices[stream->next];
    const bool is_of_other = slice->list != stream->lists_begun;
    struct cairn_sentence said = { "" };
    if (MUTANT(18) && is_of_other) return CAIRN_OK;
    const cairn_status status = cairn_cuda_slice_finish(stream, slice, &said);
    if (status == CAIRN_OK) return status;
    if (is_of_other) note_failed(stream, slice->list, status, &said);
    return cairn_fail(why, status, "%s", said.text);
}

/* Begins the slice that was filled. */
static cairn_status begin_next(struct cairn_cuda_stream *stream, struct cairn_sentence *why)
{
    struct cairn_cuda_slice *slice = &stream->slices[stream->next];
    slice->list = stream->lists_begun;
    const cairn_status status = cairn_cuda_slice_begin(stream, slice, why);
    if (status == CAIRN_OK) stream->next = (stream->next + 1) % CAIRN_CUDA_SLICES;
    return status;
}

static cairn_status add_work(struct cairn_cuda_stream *stream, struct cairn_work *work,
                             struct cairn_sentence *why)
{
    struct cairn_cuda_plan_cursor cursor = { 0 };
    cairn_status status = empty_next(stream, why);
    while (status == CAIRN_OK &&
           !cairn_cuda_plan_add(&stream->slices[stream->next].plan, work, &cursor)) {
        status = begin_next(stream, why);
        if (status == CAIRN_OK) status = empty_next(stream, why);
    }
    return status;
}

/* ---- lists ---- */

cairn_status cairn_cuda_run_begin(struct cairn_home_stream *of, struct cairn_work *works,
                                  size_t count, struct cairn_sentence *why)
{
    struct cairn_cuda_stream *stream = (struct cairn_cuda_stream *)of;
    cairn_status status = cairn_cuda_stream_begin(of, why);
    if (status != CAIRN_OK) return status;
    assert(stream->lists_begun - stream->lists_finished < CAIRN_CUDA_LISTS);
    stream->lists_begun++;
    atomic_fetch_add(&cairn_cuda_of(of->home)->use.runs, 1);
    for (size_t i = 0; i < count && status == CAIRN_OK; i++)
        status = add_work(stream, &works[i], why);
    if (status == CAIRN_OK) status = begin_next(stream, why);
    if (status == CAIRN_OK) return CAIRN_OK;
    cairn_cuda_slices_drop(stream, stream->lists_begun);
    stream->lists_begun--;
    return status;
}

cairn_status cairn_cuda_run_finish(struct cairn_home_stream *of, struct cairn_sentence *why)
{
    struct cairn_cuda_stream *stream = (struct cairn_cuda_stream *)of;
    const uint64_t list = ++stream->lists_finished;
    assert(list <= stream->lists_begun);
    cairn_status status = cairn_cuda_enter(cairn_cuda_of(of->home), why);
    if (status == CAIRN_OK && stream->list_failed == list)
        status = cairn_fail(why, stream->failed_status, "%s", stream->failed_why.text);
    for (uint32_t i = 0; i < CAIRN_CUDA_SLICES - MUTANT(13) && status == CAIRN_OK; i++) {
        struct cairn_cuda_slice *slice = &stream->slices[(stream->next + i) % CAIRN_CUDA_SLICES];
        if (slice->list == list) status = cairn_cuda_slice_finish(stream, slice, why);
    }
    if (status != CAIRN_OK) cairn_cuda_slices_drop(stream, list);
    if (stream->list_failed == list) stream->list_failed = 0;
    return status;
}
