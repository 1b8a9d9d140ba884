/* The home on a card: opened in the order of struct cairn_cuda, closed in reverse. */
#include <inttypes.h>
#include <stdlib.h>

#include "gpu/cuda/cuda.h"
#include "gpu/cuda/image.h"
#include "gpu/cuda/mutant.h"
#include "gpu/cuda/stream.h"

/* Addresses cost nothing: so many that what comes and goes leaves gaps that are large enough, and where a
 * process may not have so many, half of them. */
#define SPACE_PER_MEMORY 4
#define SPACE_PER_IMPORT 2
#define SPACE_HALVINGS   1
#define WORKS_BEST       256

static const char *const kernel_names[CAIRN_KERNEL_COUNT] = {
#define CAIRN_KERNEL_NAME(name, item, warps) "cairn_kernel_" #name,
    CAIRN_KERNELS(CAIRN_KERNEL_NAME)
#undef CAIRN_KERNEL_NAME
};

/* ---- failures ---- */

/* "a launch of fold failed on CARD: CUDA_ERROR_...", what comes of it, and what to do. */
static void describe(const struct cairn_cuda *cuda, int result, const char *doing,
                     const char *what_comes, struct cairn_sentence *out)
{
    char text[32];
    const char *advice = cairn_driver_advice(result);
    cairn_sentence_set(out, "%s failed on %s: %s%s%s%s", doing, cuda->home.info.device,
                       cairn_driver_error(&cuda->driver, result, text), what_comes,
                       advice[0] == '\0' ? "" : ": ", advice);
}

static void note_failure(struct cairn_cuda *cuda, int result, const char *doing)
{
    pthread_mutex_lock(&cuda->lock);
    if (!atomic_load(&cuda->has_failed)) {
        describe(cuda, result, doing, "; nothing there can be trusted any more", &cuda->failure);
        atomic_store(&cuda->has_failed, true);
    }
    pthread_mutex_unlock(&cuda->lock);
}

/* The call failed, and nothing else. */
static cairn_status tell_refusal(const struct cairn_cuda *cuda, int result, const char *doing,
                                 struct cairn_sentence *why)
{
    struct cairn_sentence said;
    describe(cuda, result, doing, "", &said);
    return cairn_fail(why, CAIRN_ERR_IO, "%s", said.text);
}

static cairn_status tell_failure(struct cairn_cuda *cuda, struct cairn_sentence *why)
{
    return cairn_fail(why, CAIRN_ERR_IO, "%s", cuda->failure.text); // constant since has_failed
}

cairn_status cairn_cuda_check(struct cairn_cuda *cuda, int result, const char *doing,
                              struct cairn_sentence *why)
{
    if (result == CAIRN_CU_OK) return CAIRN_OK;
    if (result == CAIRN_CU_OUT_OF_MEMORY)
        return cairn_fail(why, CAIRN_ERR_NO_MEMORY,
                          "%s: no memory is left on %s, or pinned for it: %s", doing,
                          cuda->home.info.device, cairn_driver_advice(result));
    if (!cairn_driver_breaks(result)) return tell_refusal(cuda, result, doing, why);
    note_failure(cuda, result, doing);
    return tell_failure(cuda, why);
}

cairn_status cairn_cuda_enter(struct cairn_cuda *cuda, struct cairn_sentence *why)
{
    const int result = cuda->driver.cuCtxSetCurrent(cuda->context);
    if (atomic_load(&cuda->has_failed)) return tell_failure(cuda, why);
    return cairn_cuda_check(cuda, result, "entering the context", why);
}

void cairn_cuda_enter_anyway(struct cairn_cuda *cuda)
{
    (void)cuda->driver.cuCtxSetCurrent(cuda->context);
}

int cairn_cuda_wait(const struct cairn_cuda *cuda, struct CUstream_st *stream,
                    struct CUevent_st *event)
{
    const int result = cuda->driver.cuEventRecord(event, MUTANT(17) ? NULL : stream);
    return result == CAIRN_CU_OK ? cuda->driver.cuEventSynchronize(event) : result;
}

/* ---- what the kind gives ---- */

static uint64_t free_bytes(struct cairn_home *home)
{
    struct cairn_cuda *cuda = cairn_cuda_of(home);
    size_t free_now = 0, total = 0;
    if (cairn_cuda_enter(cuda, NULL) != CAIRN_OK) return 0;
    return cuda->driver.cuMemGetInfo(&free_now, &total) == CAIRN_CU_OK ? free_now : 0;
}

static const char *failure(struct cairn_home *home)
{
    const struct cairn_cuda *cuda = cairn_cuda_of(home);
    return atomic_load(&cuda->has_failed) ? cuda->failure.text : NULL; // constant since has_failed
}

static struct cairn_home_use use(struct cairn_home *home)
{
    struct cairn_cuda *cuda = cairn_cuda_of(home);
    return (struct cairn_home_use) {
        .runs = atomic_load(&cuda->use.runs),
        .launches = atomic_load(&cuda->use.launches),
        .bytes_in = atomic_load(&cuda->use.bytes_in),
        .bytes_out = atomic_load(&cuda->use.bytes_out),
        .pinned_bytes = atomic_load(&cuda->use.pinned_bytes),
        .unpinned_bytes = atomic_load(&cuda->use.unpinned_bytes),
    };
}

static bool has(const struct cairn_home *home, const void *address)
{
    const struct cairn_cuda *cuda = (const struct cairn_cuda *)home;
    return (uint64_t)(uintptr_t)address - cuda->space.at < cuda->space.bytes;
}

/* Closes a home also if its card has failed, or if it was opened only in part. */
static void close_home(struct cairn_home *home)
{
    struct cairn_cuda *cuda = cairn_cuda_of(home);
    if (cuda->is_retained) {
        cairn_cuda_enter_anyway(cuda);
        if (cuda->space.bytes > 0)
            (void)cuda->driver.cuMemAddressFree(cuda->space.at, (size_t)cuda->space.bytes);
        if (cuda->zeroed != NULL) (void)cuda->driver.cuEventDestroy(cuda->zeroed);
        if (cuda->zeroing != NULL) (void)cuda->driver.cuStreamDestroy(cuda->zeroing);
        if (cuda->library != NULL) (void)cuda->driver.cuLibraryUnload(cuda->library);
        (void)cuda->driver.cuDevicePrimaryCtxRelease(cuda->device);
    }
    free(cuda->used.list);
    free(cuda->pinned.list);
    pthread_mutex_destroy(&cuda->lock);
    free(cuda);
}

static const struct cairn_home_kind kind = {
    .close = close_home,
    .free_bytes = free_bytes,
    .failure = failure,
    .use = use,
    .has = has,
    .memory_open = cairn_cuda_memory_open,
    .memory_close = cairn_cuda_memory_close,
    .memory_export = cairn_cuda_memory_export,
    .import = cairn_cuda_import,
    .import_release = cairn_cuda_import_release,
    .memory_give = cairn_cuda_memory_give,
    .pin = cairn_cuda_pin,
    .unpin = cairn_cuda_unpin,
    .stream_open = cairn_cuda_stream_open,
    .stream_close = cairn_cuda_stream_close,
    .stream_begin = cairn_cuda_stream_begin,
    .run_begin = cairn_cuda_run_begin,
    .run_finish = cairn_cuda_run_finish,
};

/* ---- opening ---- */

/* A driver of an older major version than the toolkit loads nothing of it, whatever it says why. */
static bool is_of_other_time(int result, int version, int toolkit)
{
    return version / 1000 < toolkit / 1000 || result == CAIRN_CU_NO_BINARY_FOR_GPU ||
           result == CAIRN_CU_UNSUPPORTED_PTX_VERSION || result == CAIRN_CU_INVALID_IMAGE ||
           result == CAIRN_CU_INVALID_PTX;
}

static cairn_status refuse_image(struct cairn_cuda *cuda, int result, struct cairn_sentence *why)
{
    const int version = cuda->driver.version, toolkit = cairn_image().toolkit;
    char text[32];
    if (!is_of_other_time(result, version, toolkit))
        return cairn_cuda_check(cuda, result, "loading the kernels", why);
    return cairn_fail(
        why, CAIRN_ERR_UNSUPPORTED,
        "%s does not load the kernels, which were compiled by CUDA %d.%d: %s. The driver is of "
        "CUDA %d.%d: update it, or build with an older toolkit; cards older than compute "
        "capability 8.0 will not do",
        cuda->home.info.device, toolkit / 1000, toolkit % 1000 / 10,
        cairn_driver_error(&cuda->driver, result, text), version / 1000, version % 1000 / 10);
}

/* All at once: none is loaded for the first time in the middle of a step. */
static cairn_status load_kernels(struct cairn_cuda *cuda, struct cairn_sentence *why)
{
    static const char no_image[8] = { 0 }; // for a library that has the kernels itself
    const void *image = cairn_image().bytes;
    const struct cairn_driver *driver = &cuda->driver;
    struct CUfunc_st *loaded;
    int result = driver->cuLibraryLoadData(&cuda->library, image == NULL ? no_image : image, NULL,
                                           NULL, 0, NULL, NULL, 0);
    for (int i = 0; i < CAIRN_KERNEL_COUNT && result == CAIRN_CU_OK; i++) {
        result = driver->cuLibraryGetKernel(&cuda->kernels[i], cuda->library, kernel_names[i]);
        if (result == CAIRN_CU_OK) result = driver->cuKernelGetFunction(&loaded, cuda->kernels[i]);
    }
    return result == CAIRN_CU_OK ? CAIRN_OK : refuse_image(cuda, result, why);
}

/* Whole segments are found sooner, but nothing needs them: a driver may refuse the alignment. CUresult. */
static int reserve_bytes(struct cairn_cuda *cuda, uint64_t bytes)
{
    uint64_t *at_out = &cuda->space.at;
    int result = cuda->driver.cuMemAddressReserve(at_out, (size_t)bytes,
                                                  (size_t)CAIRN_SEGMENT_BYTES, 0, 0);
    if (result != CAIRN_CU_OK && !cairn_driver_breaks(result))
        result = cuda->driver.cuMemAddressReserve(at_out, (size_t)bytes, 0, 0, 0);
    return result;
}

/* No memory of the card is asked for here, whatever the driver calls that which is lacking. */
static cairn_status refuse_addresses(struct cairn_cuda *cuda, int result, uint64_t bytes,
                                     struct cairn_sentence *why)
{
    char text[32];
    if (cairn_driver_breaks(result))
        return cairn_cuda_check(cuda, result, "reserving addresses", why);
    return cairn_fail(
        why, CAIRN_ERR_NO_MEMORY,
        "the driver reserves no %" PRIu64 " GiB of addresses for %s: %s. They take no "
        "memory, but this process may not have so many: look at ulimit -v "
        "(RLIMIT_AS; LimitAS= of its unit) and at vm.overcommit_memory",
        bytes >> 30, cuda->home.info.device, cairn_driver_error(&cuda->driver, result, text));
}

static cairn_status reserve(struct cairn_cuda *cuda, struct cairn_sentence *why)
{
    const uint64_t cards = 1 + cuda->home.info.peer_count;
    const uint64_t segments = cuda->home.info.total_bytes / CAIRN_SEGMENT_BYTES + 1;
    uint64_t planes = 0, imports = 0;
    int result = CAIRN_CU_OUT_OF_MEMORY;
    for (int half = 0; half <= SPACE_HALVINGS && result != CAIRN_CU_OK; half++) {
        planes = (segments * SPACE_PER_MEMORY >> half) * CAIRN_SEGMENT_BYTES;
        imports = (segments * SPACE_PER_IMPORT >> half) * CAIRN_SEGMENT_BYTES * cards;
        result = reserve_bytes(cuda, planes + imports);
        if (cairn_driver_breaks(result)) break;
    }
    if (result != CAIRN_CU_OK) return refuse_addresses(cuda, result, planes + imports, why);
    cuda->space.bytes = planes + imports;
    cuda->planes = (struct cairn_cuda_span) { cuda->space.at, planes };
    cuda->imports = (struct cairn_cuda_span) { cuda->space.at + planes, imports };
    cuda->imported_max = cuda->home.info.total_bytes * cards;
    return CAIRN_OK;
}

static cairn_status open_context(struct cairn_cuda *cuda, struct cairn_sentence *why)
{
    const int result = cuda->driver.cuDevicePrimaryCtxRetain(&cuda->context, cuda->device);
    cuda->is_retained = result == CAIRN_CU_OK;
    const cairn_status status = cairn_cuda_check(cuda, result, "opening a context", why);
    return status == CAIRN_OK ? cairn_cuda_enter(cuda, why) : status;
}

static cairn_status open_zeroing(struct cairn_cuda *cuda, struct cairn_sentence *why)
{
    int result = cuda->driver.cuStreamCreate(&cuda->zeroing, CAIRN_CU_STREAM_NON_BLOCKING);
    if (result == CAIRN_CU_OK) result = cuda->driver.cuEventCreate(&cuda->zeroed, CAIRN_CUDA_EVENT);
    return cairn_cuda_check(cuda, result, "opening a stream", why);
}

static cairn_status open_all(struct cairn_cuda *cuda, const char *device,
                             struct cairn_sentence *why)
{
    cairn_status status = cairn_driver_open(&cuda->driver, why);
    if (status == CAIRN_OK) status = cairn_cuda_find(cuda, device, why);
    if (status == CAIRN_OK) status = open_context(cuda, why);
    if (status == CAIRN_OK) status = load_kernels(cuda, why);
    if (status == CAIRN_OK) status = open_zeroing(cuda, why);
    if (status == CAIRN_OK) status = reserve(cuda, why);
    if (status != CAIRN_OK) return status;
    struct cairn_home_info *info = &cuda->home.info;
    info->taken_bytes = info->total_bytes - free_bytes(&cuda->home);
    info->stream_bytes = cairn_cuda_staging_bytes(info->total_bytes);
    return CAIRN_OK;
}

cairn_status cairn_home_open_cuda(const char *device, struct cairn_home **home_out,
                                  struct cairn_sentence *why)
{
    if (cairn_image().bytes == NULL && !cairn_driver_stands_in())
        return cairn_fail(
            why, CAIRN_ERR_UNSUPPORTED,
            "this daemon was built without kernels for CUDA devices: build it where nvcc is");
    struct cairn_cuda *cuda = calloc(1, sizeof *cuda);
    if (cuda == NULL) return cairn_fail(why, CAIRN_ERR_NO_MEMORY, "no memory for a home");
    cuda->home = (struct cairn_home) {
        .kind = &kind,
        .info = { .backend = "cuda",
                  .works_best = WORKS_BEST,
                  .lists_max = CAIRN_CUDA_LISTS,
                  .numa_node = CAIRN_NUMA_NONE },
    };
    pthread_mutex_init(&cuda->lock, NULL);
    const cairn_status status = open_all(cuda, device, why);
    if (status == CAIRN_OK)
        *home_out = &cuda->home;
    else
        close_home(&cuda->home);
    return status;
}
