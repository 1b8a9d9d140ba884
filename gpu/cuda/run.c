/* A run: works are cut into plans, and slice after slice is carried out while the next one is filled. A list
 * that is begun before the one ahead of it is finished goes on in the same ring of slices. */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "gpu/cuda/cuda.h"
#include "proto/base/mutant.h"

static cairn_status cuda_slice_finish(struct cuda_stream *stream, struct cuda_slice *slice,
                                      struct sentence *why);
static cairn_status cuda_slice_begin(struct cuda_stream *stream, struct cuda_slice *slice,
                                     struct sentence *why);
static void cuda_slices_drop(struct cuda_stream *stream, uint64_t list);

/* ---- slices, in their ring ---- */

/* Told by the finish of that list, which is under way still. */
static void note_failed(struct cuda_stream *stream, uint64_t list, cairn_status status,
                        const struct sentence *why)
{
    stream->list_failed = list;
    stream->failed_status = status;
    stream->failed_why = *why;
}

/* Before the next slice is filled: whoever had it, this list or the one ahead, has what it made. */
static cairn_status empty_next(struct cuda_stream *stream, struct sentence *why)
{
    struct cuda_slice *slice = &stream->slices[stream->next];
    const bool is_of_other = slice->list != stream->lists_begun;
    struct sentence said = { "" };
    if (GPU_MUTANT(18) && is_of_other) return CAIRN_OK;
    const cairn_status status = cuda_slice_finish(stream, slice, &said);
    if (status == CAIRN_OK) return status;
    if (is_of_other) note_failed(stream, slice->list, status, &said);
    return fail_with(why, status, "%s", said.text);
}

/* Begins the slice that was filled. */
static cairn_status begin_next(struct cuda_stream *stream, struct sentence *why)
{
    struct cuda_slice *slice = &stream->slices[stream->next];
    slice->list = stream->lists_begun;
    const cairn_status status = cuda_slice_begin(stream, slice, why);
    if (status == CAIRN_OK) stream->next = (stream->next + 1) % CAIRN_CUDA_SLICES;
    return status;
}

static cairn_status add_work(struct cuda_stream *stream, struct home_work *work,
                             struct sentence *why)
{
    struct cuda_plan_cursor cursor = { 0 };
    cairn_status status = empty_next(stream, why);
    while (status == CAIRN_OK &&
           !cuda_plan_add(&stream->slices[stream->next].plan, work, &cursor)) {
        status = begin_next(stream, why);
        if (status == CAIRN_OK) status = empty_next(stream, why);
    }
    return status;
}

/* ---- lists ---- */

cairn_status cuda_run_begin(struct home_stream *of, struct home_work *works, size_t count,
                            struct sentence *why)
{
    struct cuda_stream *stream = (struct cuda_stream *)of;
    cairn_status status = cuda_stream_begin(of, why);
    if (status != CAIRN_OK) return status;
    assert(stream->lists_begun - stream->lists_finished < CAIRN_CUDA_LISTS);
    stream->lists_begun++;
    atomic_fetch_add(&home_cuda(of->home)->use.runs, 1);
    for (size_t i = 0; i < count && status == CAIRN_OK; i++)
        status = add_work(stream, &works[i], why);
    if (status == CAIRN_OK) status = begin_next(stream, why);
    if (status == CAIRN_OK) return CAIRN_OK;
    cuda_slices_drop(stream, stream->lists_begun);
    stream->lists_begun--;
    return status;
}

cairn_status cuda_run_finish(struct home_stream *of, struct sentence *why)
{
    struct cuda_stream *stream = (struct cuda_stream *)of;
    const uint64_t list = ++stream->lists_finished;
    assert(list <= stream->lists_begun);
    cairn_status status = cuda_enter(home_cuda(of->home), why);
    if (status == CAIRN_OK && stream->list_failed == list)
        status = fail_with(why, stream->failed_status, "%s", stream->failed_why.text);
    for (uint32_t i = 0; i < CAIRN_CUDA_SLICES - GPU_MUTANT(13) && status == CAIRN_OK; i++) {
        struct cuda_slice *slice = &stream->slices[(stream->next + i) % CAIRN_CUDA_SLICES];
        if (slice->list == list) status = cuda_slice_finish(stream, slice, why);
    }
    if (status != CAIRN_OK) cuda_slices_drop(stream, list);
    if (stream->list_failed == list) stream->list_failed = 0;
    return status;
}

/* ==== slice ==== */

/* Carries out what a plan says: copies in, kernels, copies out. */

#define SMALL_BYTES         ((size_t)64 << 10)
#define WARPS_PER_PROCESSOR 128u

static struct cuda *cuda_of(const struct cuda_stream *stream)
{
    return home_cuda(stream->stream.home);
}

static const char *const launch_names[CAIRN_KERNEL_COUNT] = {
#define CAIRN_KERNEL_LAUNCH(name, item, warps) "a launch of " #name,
    CAIRN_KERNELS(CAIRN_KERNEL_LAUNCH)
#undef CAIRN_KERNEL_LAUNCH
};

/* ---- order ---- */

/* Orders two streams: all that is put into `later` from now on runs behind all that is in `earlier`
 * now. */
static int order(const struct driver *driver, struct CUstream_st *earlier, struct CUevent_st *event,
                 struct CUstream_st *later)
{
    if (earlier == later) return CAIRN_CU_OK;
    if (GPU_MUTANT(3)) (void)driver->cuStreamWaitEvent(later, event, 0);
    const int result = driver->cuEventRecord(event, GPU_MUTANT(1) ? later : earlier);
    if (GPU_MUTANT(3)) return result;
    return result == CAIRN_CU_OK ? driver->cuStreamWaitEvent(later, event, 0) : result;
}

/* ---- in ---- */

static struct CUstream_st *stream_in(const struct cuda_stream *stream, const struct cuda_plan *plan)
{
    return plan->in_count == 0 && plan->in.used <= SMALL_BYTES ? stream->compute : stream->in;
}

static int load(const struct cuda_stream *stream, const struct cuda_slice *slice)
{
    const struct driver *driver = &cuda_of(stream)->driver;
    const struct cuda_plan *plan = &slice->plan;
    struct CUstream_st *in = stream_in(stream, plan);
    int result = CAIRN_CU_OK;
    if (plan->in.used > 0)
        result = driver->cuMemcpyHtoDAsync(plan->in.device, plan->in.host, plan->in.used, in);
    if (GPU_MUTANT(9)) result = order(driver, in, slice->loaded, stream->compute);
    for (size_t i = 0; i < plan->in_count && result == CAIRN_CU_OK; i++)
        result = driver->cuMemcpyHtoDAsync(plan->copies_in[i].device, plan->copies_in[i].host,
                                           plan->copies_in[i].bytes, in);
    if (GPU_MUTANT(2) || GPU_MUTANT(9)) return result;
    if (GPU_MUTANT(14))
        return driver->cuStreamWaitEvent(stream->compute, stream->slices[0].loaded, 0);
    return result == CAIRN_CU_OK ? order(driver, in, slice->loaded, stream->compute) : result;
}

/* ---- kernels ---- */

static int launch(const struct cuda_stream *stream, enum kernel_number kernel,
                  struct kernel_list *list)
{
    struct cuda *cuda = cuda_of(stream);
    void *parameters[] = { list };
    const uint32_t blocks = kernel_blocks(kernel, list->pieces,
                                          WARPS_PER_PROCESSOR * cuda->multiprocessors);
    if (blocks == 0) return CAIRN_CU_OK;
    atomic_fetch_add(&cuda->use.launches, 1);
    return cuda->driver.cuLaunchKernel(cuda->kernels[kernel], blocks, 1, 1,
                                       kernel_block_threads(kernel), 1, 1, 0, stream->compute,
                                       parameters, NULL);
}

static cairn_status launch_all(const struct cuda_stream *stream, const struct cuda_plan *plan,
                               struct kernel_list lists[CAIRN_KERNEL_COUNT], struct sentence *why)
{
    struct cuda *cuda = cuda_of(stream);
    int result = CAIRN_CU_OK;
    if (plan->counts)
        result = cuda->driver.cuMemsetD8Async(plan->out.device, 0, plan->out.used,
                                              GPU_MUTANT(11) ? stream->in : stream->compute);
    cairn_status status = cuda_check(cuda, result, "zeroing", why);
    for (int i = 0; i < CAIRN_KERNEL_COUNT && status == CAIRN_OK; i++)
        status = cuda_check(cuda, launch(stream, (enum kernel_number)i, &lists[i]), launch_names[i],
                            why);
    return status;
}

/* ---- out ---- */

static struct CUstream_st *stream_out(const struct cuda_stream *stream,
                                      const struct cuda_plan *plan)
{
    return plan->out_count == 0 && plan->out.used <= SMALL_BYTES ? stream->compute : stream->out;
}

static int unload(const struct cuda_stream *stream, const struct cuda_slice *slice)
{
    const struct driver *driver = &cuda_of(stream)->driver;
    const struct cuda_plan *plan = &slice->plan;
    struct CUstream_st *out = stream_out(stream, plan);
    int result = GPU_MUTANT(4)    ? CAIRN_CU_OK
                 : GPU_MUTANT(10) ? driver->cuStreamWaitEvent(out, slice->loaded, 0)
                                  : order(driver, stream->compute, slice->computed, out);
    if (plan->out.used > 0 && result == CAIRN_CU_OK)
        result = driver->cuMemcpyDtoHAsync(plan->out.host, plan->out.device, plan->out.used, out);
    if (GPU_MUTANT(8)) (void)driver->cuEventRecord(slice->done, out);
    for (size_t i = 0; i < plan->out_count && result == CAIRN_CU_OK; i++)
        result = driver->cuMemcpyDtoHAsync(plan->copies_out[i].host, plan->copies_out[i].device,
                                           plan->copies_out[i].bytes, out);
    if (GPU_MUTANT(5) || GPU_MUTANT(8)) return result;
    return result == CAIRN_CU_OK
               ? driver->cuEventRecord(slice->done, GPU_MUTANT(7) ? stream->compute : out)
               : result;
}

/* ---- all of it ---- */

static uint64_t bytes_of(const struct cuda_plan_copy *copies, size_t count)
{
    uint64_t bytes = 0;
    for (size_t i = 0; i < count; i++) bytes += copies[i].bytes;
    return bytes;
}

static void count_copies(struct cuda *cuda, const struct cuda_plan *plan)
{
    atomic_fetch_add(&cuda->use.bytes_in,
                     plan->in.used + bytes_of(plan->copies_in, plan->in_count));
    atomic_fetch_add(&cuda->use.bytes_out,
                     plan->out.used + bytes_of(plan->copies_out, plan->out_count));
}

/* Carries the plan out: returns at once. */
static cairn_status cuda_slice_begin(struct cuda_stream *stream, struct cuda_slice *slice,
                                     struct sentence *why)
{
    struct cuda *cuda = cuda_of(stream);
    struct kernel_list lists[CAIRN_KERNEL_COUNT];
    if (cuda_plan_is_empty(&slice->plan)) return CAIRN_OK;
    cuda_plan_place(&slice->plan, lists);
    count_copies(cuda, &slice->plan);
    slice->is_under_way = true;
    cairn_status status = cuda_check(cuda, load(stream, slice), "a copy to the device", why);
    if (status == CAIRN_OK) status = launch_all(stream, &slice->plan, lists, why);
    if (status == CAIRN_OK)
        status = cuda_check(cuda, unload(stream, slice), "a copy from the device", why);
    return status;
}

/* Waits, if it is under way, and gives the host what it made; the plan is empty then. */
static cairn_status cuda_slice_finish(struct cuda_stream *stream, struct cuda_slice *slice,
                                      struct sentence *why)
{
    struct cuda *cuda = cuda_of(stream);
    if (!slice->is_under_way) return CAIRN_OK;
    const int result = GPU_MUTANT(6) ? CAIRN_CU_OK : cuda->driver.cuEventSynchronize(slice->done);
    CAIRN_TRY(cuda_check(cuda, result, "a list of work", why));
    cuda_plan_end(&slice->plan);
    cuda_plan_clear(&slice->plan);
    slice->is_under_way = false;
    return CAIRN_OK;
}

/* Waits until all that is under way has ended, well or not, and empties the slices of the list: the
 * host gets nothing of what they made. */
static void cuda_slices_drop(struct cuda_stream *stream, uint64_t list)
{
    const struct cuda *cuda = cuda_of(stream);
    const struct cuda_slice *slice = &stream->slices[0];
    if (!GPU_MUTANT(15)) {
        (void)cuda_wait(cuda, stream->in, slice->loaded);
        (void)cuda_wait(cuda, stream->compute, slice->computed);
        if (!GPU_MUTANT(16)) (void)cuda_wait(cuda, stream->out, slice->done);
    }
    for (int i = 0; i < CAIRN_CUDA_SLICES; i++) {
        if (stream->slices[i].is_under_way && stream->slices[i].list != list) continue;
        cuda_plan_clear(&stream->slices[i].plan);
        stream->slices[i].is_under_way = false;
    }
}

/* ==== spans ==== */

/* Spans of addresses: few, so that a list in order does. */

/* The first span that ends behind the address; count if none does. */
static size_t first_behind(const struct cuda_spans *spans, uint64_t at)
{
    size_t low = 0, high = spans->count;
    while (low < high) {
        const size_t middle = low + (high - low) / 2;
        if (spans->list[middle].at + spans->list[middle].bytes > at)
            high = middle;
        else
            low = middle + 1;
    }
    return low;
}

static cairn_status make_room(struct cuda_spans *spans)
{
    if (spans->count < spans->capacity) return CAIRN_OK;
    const size_t capacity = spans->capacity == 0 ? 64 : 2 * spans->capacity;
    struct cuda_span *list = realloc(spans->list, capacity * sizeof *list);
    if (list == NULL) return CAIRN_ERR_NO_MEMORY;
    spans->list = list;
    spans->capacity = capacity;
    return CAIRN_OK;
}

cairn_status cuda_spans_add(struct cuda_spans *spans, struct cuda_span span)
{
    const size_t index = first_behind(spans, span.at);
    if (index < spans->count && spans->list[index].at - span.at < span.bytes)
        return CAIRN_ERR_EXISTS;
    if (index < spans->count && spans->list[index].at <= span.at) return CAIRN_ERR_EXISTS;
    CAIRN_TRY(make_room(spans));
    memmove(&spans->list[index + 1], &spans->list[index], (spans->count - index) * sizeof span);
    spans->list[index] = span;
    spans->count++;
    return CAIRN_OK;
}

struct cuda_span cuda_spans_take(struct cuda_spans *spans, uint64_t at)
{
    const size_t index = first_behind(spans, at);
    struct cuda_span span = { 0 };
    if (index == spans->count || spans->list[index].at != at) return span;
    span = spans->list[index];
    spans->count--;
    memmove(&spans->list[index], &spans->list[index + 1], (spans->count - index) * sizeof span);
    return span;
}

struct cuda_span cuda_spans_overlapping(const struct cuda_spans *spans, struct cuda_span with)
{
    const size_t index = first_behind(spans, with.at);
    if (index == spans->count || spans->list[index].at >= with.at + with.bytes)
        return (struct cuda_span) { 0 };
    return spans->list[index];
}

void cuda_spans_trim(const struct cuda_spans *spans, struct cuda_span *span)
{
    uint64_t at = span->at, end = span->at + span->bytes;
    while (at < end) {
        const struct cuda_span first = cuda_spans_overlapping(spans, (struct cuda_span) { at, 1 });
        if (first.bytes == 0) break;
        at = first.at + first.bytes;
    }
    while (at < end) {
        const struct cuda_span last = cuda_spans_overlapping(spans,
                                                             (struct cuda_span) { end - 1, 1 });
        if (last.bytes == 0) break;
        end = last.at;
    }
    *span = (struct cuda_span) { at, at < end ? end - at : 0 };
}

bool cuda_spans_have(const struct cuda_spans *spans, uint64_t at, uint64_t bytes)
{
    const size_t index = first_behind(spans, at);
    if (index == spans->count || spans->list[index].at > at) return false;
    return bytes <= spans->list[index].at + spans->list[index].bytes - at;
}

uint64_t cuda_spans_gap(const struct cuda_spans *spans, struct cuda_span within, uint64_t bytes)
{
    const uint64_t end = within.at + within.bytes;
    uint64_t at = within.at;
    size_t i = first_behind(spans, at);
    for (; i < spans->count && spans->list[i].at < end; i++) {
        if (spans->list[i].at - at >= bytes) return at;
        at = spans->list[i].at + spans->list[i].bytes;
    }
    return end - at >= bytes ? at : 0;
}

/* ==== stream ==== */

#define SIDES         (2u * CAIRN_CUDA_SLICES)
#define CARD_PER_PLAN 8192u

static int open_streams(struct cuda_stream *stream, const struct driver *driver)
{
    int result = driver->cuStreamCreate(&stream->in, CAIRN_CU_STREAM_NON_BLOCKING);
    if (result == CAIRN_CU_OK)
        result = driver->cuStreamCreate(&stream->compute, CAIRN_CU_STREAM_NON_BLOCKING);
    if (result == CAIRN_CU_OK)
        result = driver->cuStreamCreate(&stream->out, CAIRN_CU_STREAM_NON_BLOCKING);
    return result;
}

static int open_events(struct cuda_slice *slice, const struct driver *driver)
{
    int result = driver->cuEventCreate(&slice->loaded, CAIRN_CUDA_EVENT);
    if (result == CAIRN_CU_OK) result = driver->cuEventCreate(&slice->computed, CAIRN_CUDA_EVENT);
    if (result == CAIRN_CU_OK) result = driver->cuEventCreate(&slice->done, CAIRN_CUDA_EVENT);
    return result;
}

uint64_t cuda_staging_bytes(uint64_t card_bytes)
{
    const uint64_t page = 4096, most = CAIRN_CUDA_PLAN_BYTES_MAX, least = most / 4;
    uint64_t bytes = card_bytes / CARD_PER_PLAN / page * page;
    if (bytes < least) bytes = least;
    return SIDES * (bytes < most ? bytes : most);
}

static cairn_status open_plan(struct cuda_stream *stream, int index, struct sentence *why)
{
    struct cuda *cuda = home_cuda(stream->stream.home);
    struct cuda_plan *plan = &stream->slices[index].plan;
    const size_t bytes = (size_t)cuda->home.info.stream_bytes / SIDES, in = (size_t)index * bytes,
                 out = in + CAIRN_CUDA_SLICES * bytes;
    const uint64_t device = (uint64_t)(uintptr_t)stream->staging.base;
    plan->bytes = bytes;
    plan->space = cuda->space;
    plan->is_pinned = cuda_is_pinned;
    plan->cuda = cuda;
    plan->in = (struct cuda_plan_side) { .host = stream->pinned + in, .device = device + in };
    plan->out = (struct cuda_plan_side) { .host = stream->pinned + out, .device = device + out };
    if (cuda_plan_init(plan) == CAIRN_OK) return CAIRN_OK;
    return fail_with(why, CAIRN_ERR_NO_MEMORY, "out of memory for a stream's plans");
}

static void close_staging(struct cuda_stream *stream)
{
    struct cuda *cuda = home_cuda(stream->stream.home);
    for (int i = 0; i < CAIRN_CUDA_SLICES; i++) cuda_plan_release(&stream->slices[i].plan);
    home_memory_close(&stream->staging);
    if (stream->pinned != NULL && !atomic_load(&cuda->has_failed))
        (void)cuda->driver.cuMemFreeHost(stream->pinned);
    stream->pinned = NULL;
}

static cairn_status open_all(struct cuda_stream *stream, struct sentence *why)
{
    struct cuda *cuda = home_cuda(stream->stream.home);
    CAIRN_TRY(cuda_enter(cuda, why));
    int result = open_streams(stream, &cuda->driver);
    for (int i = 0; i < CAIRN_CUDA_SLICES && result == CAIRN_CU_OK; i++)
        result = open_events(&stream->slices[i], &cuda->driver);
    return cuda_check(cuda, result, "opening a stream", why);
}

/* On the card's side of the host, whose thread this is for so long. */
static int pin_staging(struct cuda *cuda, uint8_t **pinned_out, size_t bytes)
{
    struct numa_before before;
    (void)numa_go(cuda->home.info.numa_node, &before); // or it lies where it lies
    const int result = cuda->driver.cuMemAllocHost((void **)pinned_out, bytes);
    numa_return(&before);
    return result;
}

cairn_status cuda_stream_begin(struct home_stream *begun, struct sentence *why)
{
    struct cuda_stream *stream = (struct cuda_stream *)begun;
    struct cuda *cuda = home_cuda(begun->home);
    cairn_status status = cuda_enter(cuda, why);
    if (status != CAIRN_OK || stream->pinned != NULL) return status;
    uint8_t *pinned = NULL;
    const size_t bytes = (size_t)cuda->home.info.stream_bytes;
    status = home_memory_open(&cuda->home, "a stream's staging", bytes, &stream->staging, why);
    if (status == CAIRN_OK)
        status = cuda_check(cuda, pin_staging(cuda, &pinned, bytes), "pinning a stream's staging",
                            why);
    stream->pinned = pinned;
    for (int i = 0; i < CAIRN_CUDA_SLICES && status == CAIRN_OK; i++)
        status = open_plan(stream, i, why);
    if (status == CAIRN_OK) return CAIRN_OK;
    close_staging(stream);
    return status;
}

static void close_slice(struct cuda_slice *slice, const struct driver *driver)
{
    if (slice->loaded != NULL) (void)driver->cuEventDestroy(slice->loaded);
    if (slice->computed != NULL) (void)driver->cuEventDestroy(slice->computed);
    if (slice->done != NULL) (void)driver->cuEventDestroy(slice->done);
}

void cuda_stream_close(struct home_stream *closed)
{
    struct cuda_stream *stream = (struct cuda_stream *)closed;
    struct cuda *cuda = home_cuda(closed->home);
    cuda_enter_anyway(cuda);
    for (int i = 0; i < CAIRN_CUDA_SLICES; i++) close_slice(&stream->slices[i], &cuda->driver);
    close_staging(stream);
    if (stream->in != NULL) (void)cuda->driver.cuStreamDestroy(stream->in);
    if (stream->compute != NULL) (void)cuda->driver.cuStreamDestroy(stream->compute);
    if (stream->out != NULL) (void)cuda->driver.cuStreamDestroy(stream->out);
    free(stream);
}

cairn_status cuda_stream_open(struct home *home, struct home_stream **stream_out,
                              struct sentence *why)
{
    struct cuda_stream *stream = calloc(1, sizeof *stream);
    if (stream == NULL) return fail_with(why, CAIRN_ERR_NO_MEMORY, "out of memory for a stream");
    stream->stream.home = home;
    const cairn_status status = open_all(stream, why);
    if (status == CAIRN_OK)
        *stream_out = &stream->stream;
    else
        cuda_stream_close(&stream->stream);
    return status;
}
