/* Carries out what a plan says: copies in, kernels, copies out. */
#include "gpu/cuda/mutant.h"
#include "gpu/cuda/stream.h"

#define SMALL_BYTES         ((size_t)64 << 10)
#define WARPS_PER_PROCESSOR 128u

static struct cairn_cuda *cuda_of(const struct cairn_cuda_stream *stream)
{
    return cairn_cuda_of(stream->stream.home);
}

static const char *const launch_names[CAIRN_KERNEL_COUNT] = {
#define CAIRN_KERNEL_LAUNCH(name, item, warps) "a launch of " #name,
    CAIRN_KERNELS(CAIRN_KERNEL_LAUNCH)
#undef CAIRN_KERNEL_LAUNCH
};

/* ---- order ---- */

/* Orders two streams: all that is put into `later` from now on runs behind all that is in `earlier`
 * now. */
static int order(const struct cairn_driver *driver, struct CUstream_st *earlier,
                 struct CUevent_st *event, struct CUstream_st *later)
{
    if (earlier == later) return CAIRN_CU_OK;
    if (MUTANT(3)) (void)driver->cuStreamWaitEvent(later, event, 0);
    const int result = driver->cuEventRecord(event, MUTANT(1) ? later : earlier);
    if (MUTANT(3)) return result;
    return result == CAIRN_CU_OK ? driver->cuStreamWaitEvent(later, event, 0) : result;
}

/* ---- in ---- */

static struct CUstream_st *stream_in(const struct cairn_cuda_stream *stream,
                                     const struct cairn_cuda_plan *plan)
{
    return plan->in_count == 0 && plan->in.used <= SMALL_BYTES ? stream->compute : stream->in;
}

static int load(const struct cairn_cuda_stream *stream, const struct cairn_cuda_slice *slice)
{
    const struct cairn_driver *driver = &cuda_of(stream)->driver;
    const struct cairn_cuda_plan *plan = &slice->plan;
    struct CUstream_st *in = stream_in(stream, plan);
    int result = CAIRN_CU_OK;
    if (plan->in.used > 0)
        result = driver->cuMemcpyHtoDAsync(plan->in.device, plan->in.host, plan->in.used, in);
    if (MUTANT(9)) result = order(driver, in, slice->loaded, stream->compute);
    for (size_t i = 0; i < plan->in_count && result == CAIRN_CU_OK; i++)
        result = driver->cuMemcpyHtoDAsync(plan->copies_in[i].device, plan->copies_in[i].host,
                                           plan->copies_in[i].bytes, in);
    if (MUTANT(2) || MUTANT(9)) return result;
    if (MUTANT(14)) return driver->cuStreamWaitEvent(stream->compute, stream->slices[0].loaded, 0);
    return result == CAIRN_CU_OK ? order(driver, in, slice->loaded, stream->compute) : result;
}

/* ---- kernels ---- */

static int launch(const struct cairn_cuda_stream *stream, enum cairn_kernel_number kernel,
                  struct cairn_kernel_list *list)
{
    struct cairn_cuda *cuda = cuda_of(stream);
    void *parameters[] = { list };
    const uint32_t blocks = cairn_kernel_blocks(kernel, list->pieces,
                                                WARPS_PER_PROCESSOR * cuda->multiprocessors);
    if (blocks == 0) return CAIRN_CU_OK;
    atomic_fetch_add(&cuda->use.launches, 1);
    return cuda->driver.cuLaunchKernel(cuda->kernels[kernel], blocks, 1, 1,
                                       cairn_kernel_block_threads(kernel), 1, 1, 0, stream->compute,
                                       parameters, NULL);
}

static cairn_status launch_all(const struct cairn_cuda_stream *stream,
                               const struct cairn_cuda_plan *plan,
                               struct cairn_kernel_list lists[CAIRN_KERNEL_COUNT],
                               struct cairn_sentence *why)
{
    struct cairn_cuda *cuda = cuda_of(stream);
    int result = CAIRN_CU_OK;
    if (plan->counts)
        result = cuda->driver.cuMemsetD8Async(plan->out.device, 0, plan->out.used,
                                              MUTANT(11) ? stream->in : stream->compute);
    cairn_status status = cairn_cuda_check(cuda, result, "zeroing", why);
    for (int i = 0; i < CAIRN_KERNEL_COUNT && status == CAIRN_OK; i++)
        status = cairn_cuda_check(cuda, launch(stream, (enum cairn_kernel_number)i, &lists[i]),
                                  launch_names[i], why);
    return status;
}

/* ---- out ---- */

static struct CUstream_st *stream_out(const struct cairn_cuda_stream *stream,
                                      const struct cairn_cuda_plan *plan)
{
    return plan->out_count == 0 && plan->out.used <= SMALL_BYTES ? stream->compute : stream->out;
}

static int unload(const struct cairn_cuda_stream *stream, const struct cairn_cuda_slice *slice)
{
    const struct cairn_driver *driver = &cuda_of(stream)->driver;
    const struct cairn_cuda_plan *plan = &slice->plan;
    struct CUstream_st *out = stream_out(stream, plan);
    int result = MUTANT(4)    ? CAIRN_CU_OK
                 : MUTANT(10) ? driver->cuStreamWaitEvent(out, slice->loaded, 0)
                              : order(driver, stream->compute, slice->computed, out);
    if (plan->out.used > 0 && result == CAIRN_CU_OK)
        result = driver->cuMemcpyDtoHAsync(plan->out.host, plan->out.device, plan->out.used, out);
    if (MUTANT(8)) (void)driver->cuEventRecord(slice->done, out);
    for (size_t i = 0; i < plan->out_count && result == CAIRN_CU_OK; i++)
        result = driver->cuMemcpyDtoHAsync(plan->copies_out[i].host, plan->copies_out[i].device,
                                           plan->copies_out[i].bytes, out);
    if (MUTANT(5) || MUTANT(8)) return result;
    return result == CAIRN_CU_OK
               ? driver->cuEventRecord(slice->done, MUTANT(7) ? stream->compute : out)
               : result;
}

/* ---- all of it ---- */

static uint64_t bytes_of(const struct cairn_cuda_plan_copy *copies, size_t count)
{
    uint64_t bytes = 0;
    for (size_t i = 0; i < count; i++) bytes += copies[i].bytes;
    return bytes;
}

static void count_copies(struct cairn_cuda *cuda, const struct cairn_cuda_plan *plan)
{
    atomic_fetch_add(&cuda->use.bytes_in,
                     plan->in.used + bytes_of(plan->copies_in, plan->in_count));
    atomic_fetch_add(&cuda->use.bytes_out,
                     plan->out.used + bytes_of(plan->copies_out, plan->out_count));
}

cairn_status cairn_cuda_slice_begin(struct cairn_cuda_stream *stream,
                                    struct cairn_cuda_slice *slice, struct cairn_sentence *why)
{
    struct cairn_cuda *cuda = cuda_of(stream);
    struct cairn_kernel_list lists[CAIRN_KERNEL_COUNT];
    if (cairn_cuda_plan_is_empty(&slice->plan)) return CAIRN_OK;
    cairn_cuda_plan_place(&slice->plan, lists);
    count_copies(cuda, &slice->plan);
    slice->is_under_way = true;
    cairn_status status = cairn_cuda_check(cuda, load(stream, slice), "a copy to the device", why);
    if (status == CAIRN_OK) status = launch_all(stream, &slice->plan, lists, why);
    if (status == CAIRN_OK)
        status = cairn_cuda_check(cuda, unload(stream, slice), "a copy from the device", why);
    return status;
}

cairn_status cairn_cuda_slice_finish(struct cairn_cuda_stream *stream,
                                     struct cairn_cuda_slice *slice, struct cairn_sentence *why)
{
    struct cairn_cuda *cuda = cuda_of(stream);
    if (!slice->is_under_way) return CAIRN_OK;
    const int result = MUTANT(6) ? CAIRN_CU_OK : cuda->driver.cuEventSynchronize(slice->done);
    const cairn_status status = cairn_cuda_check(cuda, result, "a list of work", why);
    if (status != CAIRN_OK) return status;
    cairn_cuda_plan_end(&slice->plan);
    cairn_cuda_plan_clear(&slice->plan);
    slice->is_under_way = false;
    return CAIRN_OK;
}

void cairn_cuda_slices_drop(struct cairn_cuda_stream *stream, uint64_t list)
{
    const struct cairn_cuda *cuda = cuda_of(stream);
    const struct cairn_cuda_slice *slice = &stream->slices[0];
    if (!MUTANT(15)) {
        (void)cairn_cuda_wait(cuda, stream->in, slice->loaded);
        (void)cairn_cuda_wait(cuda, stream->compute, slice->computed);
        if (!MUTANT(16)) (void)cairn_cuda_wait(cuda, stream->out, slice->done);
    }
    for (int i = 0; i < CAIRN_CUDA_SLICES; i++) {
        if (stream->slices[i].is_under_way && stream->slices[i].list != list) continue;
        cairn_cuda_plan_clear(&stream->slices[i].plan);
        stream->slices[i].is_under_way = false;
    }
}
