/* The home on a card. The fields of struct cuda are opened in their order, and closed in reverse. */
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#include "gpu/cuda/cuda.h"
#include "proto/base/mutant.h"

/* Addresses cost nothing, so the reservation is a multiple of the card's memory, in which allocations and
 * frees always leave gaps that are large enough. If the process may not have so many addresses, half as
 * many are reserved. */
#define SPACE_PER_MEMORY 4
#define SPACE_PER_IMPORT 2
#define SPACE_HALVINGS   1
#define WORKS_BEST       256

static void cuda_find_peers(struct cuda *cuda, int device_count);

/* ==== spans ==== */

/* Spans of addresses. There are few, so an ordered list is fast enough. */

/* Returns the index of the first span that ends after the address; spans->count if there is none. */
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

/* Adds a span. CAIRN_ERR_EXISTS: the span overlaps another one. CAIRN_ERR_NO_MEMORY. */
static cairn_status cuda_spans_add(struct cuda_spans *spans, struct cuda_span span)
{
    const size_t index = first_behind(spans, span.at);
    if (index < spans->count && spans->list[index].at - span.at < span.bytes)
        return CAIRN_ERR_EXISTS;
    if (index < spans->count && spans->list[index].at <= span.at) return CAIRN_ERR_EXISTS;
    CAIRN_TRY(array_reserve(&spans->list, spans->count, 1, &spans->capacity, sizeof *spans->list));
    memmove(&spans->list[index + 1], &spans->list[index], (spans->count - index) * sizeof span);
    spans->list[index] = span;
    spans->count++;
    return CAIRN_OK;
}

/* Removes and returns the span that begins at the address; 0 bytes: none does. */
static struct cuda_span cuda_spans_take(struct cuda_spans *spans, uint64_t at)
{
    const size_t index = first_behind(spans, at);
    struct cuda_span span = { 0 };
    if (index == spans->count || spans->list[index].at != at) return span;
    span = spans->list[index];
    spans->count--;
    memmove(&spans->list[index], &spans->list[index + 1], (spans->count - index) * sizeof span);
    return span;
}

/* Returns the first span that overlaps `with`; 0 bytes: none does. */
static struct cuda_span cuda_spans_overlapping(const struct cuda_spans *spans,
                                               struct cuda_span with)
{
    const size_t index = first_behind(spans, with.at);
    if (index == spans->count || spans->list[index].at >= with.at + with.bytes)
        return (struct cuda_span) { 0 };
    return spans->list[index];
}

/* Cuts off the parts at both ends of *span that the spans already cover. Sets it to 0 bytes if nothing
 * remains. */
static void cuda_spans_trim(const struct cuda_spans *spans, struct cuda_span *span)
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

/* True if one span contains the whole range. */
static bool cuda_spans_have(const struct cuda_spans *spans, uint64_t at, uint64_t bytes)
{
    const size_t index = first_behind(spans, at);
    if (index == spans->count || spans->list[index].at > at) return false;
    return bytes <= spans->list[index].at + spans->list[index].bytes - at;
}

/* Returns the address of the first gap in `within` that has that many bytes; 0: there is none. */
static uint64_t cuda_spans_gap(const struct cuda_spans *spans, struct cuda_span within,
                               uint64_t bytes)
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

/* ==== device ==== */

/* Selects the card (by its number, by its UUID, or the first one), and describes it. */

#define NAME_BYTES 64
#define UUID_BYTES 48 /* "GPU-", 36 characters, NUL */

static void write_uuid(const struct cu_uuid *uuid, bool is_slice, char text[UUID_BYTES])
{
    const unsigned char *b = uuid->bytes;
    snprintf(text, UUID_BYTES,
             "%s-%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x",
             is_slice ? "MIG" : "GPU", b[0], b[1], b[2], b[3], b[4], b[5], b[6], b[7], b[8], b[9],
             b[10], b[11], b[12], b[13], b[14], b[15]);
}

/* Finds the name and the UUID of a device. If the driver does not report them, the texts are empty and the
 * UUID is 0. */
static void describe_device(const struct driver *driver, int device, char name[NAME_BYTES],
                            char uuid_text[UUID_BYTES], struct cu_uuid *uuid_out)
{
    *uuid_out = (struct cu_uuid) { { 0 } };
    name[0] = uuid_text[0] = '\0';
    if (driver->cuDeviceGetName(name, NAME_BYTES, device) != CAIRN_CU_OK) name[0] = '\0';
    if (driver->cuDeviceGetUuid(uuid_out, device) == CAIRN_CU_OK)
        write_uuid(uuid_out, strstr(name, "MIG ") != NULL, uuid_text);
}

static cairn_status find_by_uuid(struct cuda *cuda, const char *wanted, int count, int *number_out,
                                 struct sentence *why)
{
    char name[NAME_BYTES], uuid[UUID_BYTES];
    struct cu_uuid bytes;
    for (int i = 0; i < count; i++) {
        int device;
        if (cuda->driver.cuDeviceGet(&device, i) != CAIRN_CU_OK) continue;
        describe_device(&cuda->driver, device, name, uuid, &bytes);
        if (strcasecmp(uuid, wanted) != 0) continue;
        *number_out = i;
        return CAIRN_OK;
    }
    return fail_with(
        why, CAIRN_ERR_NOT_FOUND,
        "no device %s among the %d that this process sees: look at nvidia-smi -L, and at the "
        "environment's CUDA_VISIBLE_DEVICES",
        wanted, count);
}

static cairn_status find_number(struct cuda *cuda, const char *wanted, int count, int *number_out,
                                struct sentence *why)
{
    *number_out = 0;
    if (wanted == NULL) return CAIRN_OK;
    if (strncasecmp(wanted, "GPU-", 4) == 0 || strncasecmp(wanted, "MIG-", 4) == 0)
        return find_by_uuid(cuda, wanted, count, number_out, why);
    char *end;
    const unsigned long number = strtoul(wanted, &end, 10);
    if (wanted[0] < '0' || wanted[0] > '9' || *end != '\0')
        return fail_with(
            why, CAIRN_ERR_NOT_FOUND,
            "\"%s\" names no device: a number, or a UUID that begins with GPU- or MIG-", wanted);
    if (number >= (unsigned long)count)
        return fail_with(why, CAIRN_ERR_NOT_FOUND,
                         "no device %s: this process sees %d, and they count from 0", wanted,
                         count);
    *number_out = (int)number;
    return CAIRN_OK;
}

static int attribute(const struct cuda *cuda, int which)
{
    int value = 0;
    if (cuda->driver.cuDeviceGetAttribute(&value, which, cuda->device) != CAIRN_CU_OK) return 0;
    return value;
}

/* True if a control daemon of MPS has its pipe in the usual place. Used with older drivers, which do not
 * tell whether MPS runs. */
static bool has_control_daemon(void)
{
    const char *folder = getenv("CUDA_MPS_PIPE_DIRECTORY");
    char path[PATH_MAX];
    const int length = snprintf(path, sizeof path, "%s/control",
                                folder != NULL ? folder : "/tmp/nvidia-mps");
    return length > 0 && (size_t)length < sizeof path && access(path, F_OK) == 0;
}

static void warn(struct cuda *cuda)
{
    struct home_info *info = &cuda->home.info;
    int shared = 0;
    const bool is_told = cuda->driver.cuDeviceGetAttribute(&shared, CAIRN_CU_IS_UNDER_MPS,
                                                           cuda->device) == CAIRN_CU_OK;
    if (is_told ? shared != 0 : has_control_daemon())
        snprintf(info->warning, sizeof info->warning,
                 "this card is shared by MPS: a fault of one of its processes ends all of them, so "
                 "that a trainer's bug takes the state here with it; keep snapshots, or stop the "
                 "control daemon (echo quit | nvidia-cuda-mps-control)");
    else if (attribute(cuda, CAIRN_CU_COMPUTE_MODE) == CAIRN_CU_MODE_EXCLUSIVE_PROCESS)
        snprintf(info->warning, sizeof info->warning,
                 "this card is for one process alone: no trainer can use it beside the shard; "
                 "nvidia-smi -c 0 lets them");
}

static cairn_status look(struct cuda *cuda, struct sentence *why)
{
    struct home_info *info = &cuda->home.info;
    // Exportable memory has the largest pages, so its granularity suits all memory.
    const struct cu_allocation how = vmm_allocation(cuda->device, info->exports, info->is_reached);
    size_t granularity = 0, total = 0;
    if (attribute(cuda, CAIRN_CU_HAS_VIRTUAL_MEMORY) == 0)
        return fail_with(why, CAIRN_ERR_UNSUPPORTED, "%s cannot map memory (cuMemCreate)",
                         info->device);
    int result = cuda->driver.cuDeviceTotalMem(&total, cuda->device);
    if (result == CAIRN_CU_OK)
        result = cuda->driver.cuMemGetAllocationGranularity(&granularity, &how,
                                                            CAIRN_CU_GRANULARITY_MINIMUM);
    if (result != CAIRN_CU_OK || granularity == 0 || CAIRN_SEGMENT_BYTES % granularity != 0)
        return cuda_check(cuda, result == CAIRN_CU_OK ? CAIRN_CU_INVALID_VALUE : result,
                          "asking for the memory", why);
    info->total_bytes = total;
    cuda->granularity = granularity;
    cuda->multiprocessors = (unsigned)attribute(cuda, CAIRN_CU_MULTIPROCESSOR_COUNT);
    if (cuda->multiprocessors == 0) cuda->multiprocessors = 1;
    warn(cuda);
    return CAIRN_OK;
}

/* Finds the device, and its properties: info, granularity and multiprocessors. The errors are those of
 * home_open_cuda. */
static cairn_status cuda_find(struct cuda *cuda, const char *wanted, struct sentence *why)
{
    char name[NAME_BYTES], uuid[UUID_BYTES];
    int count = 0, number = 0;
    struct home_info *info = &cuda->home.info;
    if (cuda->driver.cuDeviceGetCount(&count) != CAIRN_CU_OK || count <= 0)
        return fail_with(
            why, CAIRN_ERR_NOT_FOUND,
            "this process sees no CUDA device: look at nvidia-smi, and at the environment's "
            "CUDA_VISIBLE_DEVICES");
    CAIRN_TRY(find_number(cuda, wanted, count, &number, why));
    if (cuda->driver.cuDeviceGet(&cuda->device, number) != CAIRN_CU_OK)
        return fail_with(why, CAIRN_ERR_NOT_FOUND, "the driver does not open device %d", number);
    struct cu_uuid bytes;
    describe_device(&cuda->driver, cuda->device, name, uuid, &bytes);
    memcpy(info->uuid, bytes.bytes, sizeof info->uuid);
    info->numa_node = driver_numa_node(&cuda->driver, cuda->device);
    snprintf(info->device, sizeof info->device, "%s, %s", name, uuid);
    const int version = cuda->driver.version, toolkit = cuda_image().toolkit;
    snprintf(info->driver, sizeof info->driver, "CUDA driver %d.%d, image of %d.%d", version / 1000,
             version % 1000 / 10, toolkit / 1000, toolkit % 1000 / 10);
    info->exports = attribute(cuda, CAIRN_CU_HAS_POSIX_HANDLES) != 0;
    info->is_reached = vmm_is_reached(&cuda->driver, cuda->device);
    info->has_dma_buf = vmm_has_dma_buf(&cuda->driver, cuda->device);
    cuda_find_peers(cuda, count);
    return look(cuda, why);
}

/* ==== memory ==== */

/* Planes on a card lie in segments of at most 64 MiB. Each segment has its own handle, and all are mapped
 * side by side. */

struct home_segment {
    unsigned long long handle;
    uint64_t bytes; /* 0: not allocated */
    bool is_mapped;
};

/* An allocation in progress. It has complete pages. */
struct taken {
    uint64_t at, bytes;
    bool is_exportable;
    struct home_segment *segments; /* [memory_segments(bytes)], all 0 at first */
};

static uint64_t round_up(uint64_t bytes, uint64_t unit)
{
    return (bytes + unit - 1) / unit * unit;
}

/* ---- freeing: resources that cannot be freed are lost with the card ---- */

static void release_segment(struct cuda *cuda, struct home_segment *segment, uint64_t at)
{
    if (segment->is_mapped) (void)cuda->driver.cuMemUnmap(at, (size_t)segment->bytes);
    if (segment->bytes > 0) (void)cuda->driver.cuMemRelease(segment->handle);
    *segment = (struct home_segment) { .bytes = 0 };
}

static void release_segments(struct cuda *cuda, struct home_segment *segments, uint64_t count,
                             uint64_t at)
{
    for (uint64_t i = 0; i < count; i++)
        release_segment(cuda, &segments[i], at + i * CAIRN_SEGMENT_BYTES);
}

static void cuda_give_addresses(struct cuda *cuda, uint64_t at)
{
    HOLD_LOCK(&cuda->lock);
    (void)cuda_spans_take(&cuda->used, at);
}

/* ---- allocating ---- */

static uint64_t cuda_take_addresses(struct cuda *cuda, struct cuda_span part, uint64_t bytes)
{
    HOLD_LOCK(&cuda->lock);
    uint64_t at = cuda_spans_gap(&cuda->used, part, bytes);
    const struct cuda_span span = { at, bytes };
    if (at != 0 && cuda_spans_add(&cuda->used, span) != CAIRN_OK) at = 0;
    return at;
}

static int create_segment(struct cuda *cuda, struct home_segment *segment,
                          const struct cu_allocation *how, uint64_t bytes, uint64_t at)
{
    int result = cuda->driver.cuMemCreate(&segment->handle, (size_t)bytes, how, 0);
    if (result != CAIRN_CU_OK) return result;
    segment->bytes = bytes;
    result = cuda->driver.cuMemMap(at, (size_t)bytes, 0, segment->handle, 0);
    segment->is_mapped = result == CAIRN_CU_OK;
    return result;
}

static int create_segments(struct cuda *cuda, const struct taken *taken)
{
    const struct cu_allocation how = vmm_allocation(cuda->device, taken->is_exportable,
                                                    cuda->home.info.is_reached);
    struct home_segment *segments = taken->segments;
    int result = CAIRN_CU_OK;
    for (uint64_t done = 0; done < taken->bytes && result == CAIRN_CU_OK;
         done += segments++->bytes) {
        result = create_segment(cuda, segments, &how,
                                segment_bytes(taken->bytes, done / CAIRN_SEGMENT_BYTES),
                                taken->at + done);
    }
    return result;
}

static int open_and_zero(struct cuda *cuda, uint64_t at, uint64_t bytes)
{
    const struct cu_access access = {
        .location = { .type = CAIRN_CU_LOCATION_DEVICE, .id = cuda->device },
        .flags = CAIRN_CU_ACCESS_READWRITE,
    };
    int result = cuda->driver.cuMemSetAccess(at, (size_t)bytes, &access, 1);
    if (result == CAIRN_CU_OK)
        result = cuda->driver.cuMemsetD8Async(at, 0, (size_t)bytes, cuda->zeroing);
    if (GPU_MUTANT(12)) return result;
    // All threads use this stream, so this also waits for zeros that another thread has queued meanwhile.
    return result == CAIRN_CU_OK ? cuda_wait(cuda, cuda->zeroing, cuda->zeroed) : result;
}

static cairn_status is_full(struct cuda *cuda, const char *label, uint64_t bytes,
                            struct sentence *why)
{
    return fail_with(why, CAIRN_ERR_NO_MEMORY,
                     "%s: out of memory for %" PRIu64 " MiB: %" PRIu64 " of the %" PRIu64
                     " MiB of %s are free",
                     label, (bytes + (1 << 20) - 1) >> 20, home_free_bytes(&cuda->home) >> 20,
                     cuda->home.info.total_bytes >> 20, cuda->home.info.device);
}

static cairn_status fill_memory(struct cuda *cuda, const char *label, const struct taken *taken,
                                struct sentence *why)
{
    int result = create_segments(cuda, taken);
    if (result == CAIRN_CU_OK) result = open_and_zero(cuda, taken->at, taken->bytes);
    if (result == CAIRN_CU_OK) return CAIRN_OK;
    const bool is_out = result == CAIRN_CU_OUT_OF_MEMORY;
    const cairn_status status = is_out ? is_full(cuda, label, taken->bytes, why)
                                       : cuda_check(cuda, result, "taking memory", why);
    // otherwise the memory is freed with the context, because it may be in use
    if (!atomic_load(&cuda->has_failed))
        release_segments(cuda, taken->segments, memory_segments(taken->bytes), taken->at);
    return status;
}

static cairn_status cuda_memory_open(struct home *home, const char *label,
                                     struct home_memory *memory_out, struct sentence *why)
{
    struct cuda *cuda = home_cuda(home);
    CAIRN_TRY(cuda_enter(cuda, why));
    if (memory_out->bytes > home->info.total_bytes)
        return is_full(cuda, label, memory_out->bytes, why);
    struct taken taken = { .bytes = round_up(memory_out->bytes, cuda->granularity),
                           .is_exportable = memory_out->is_exportable };
    taken.at = cuda_take_addresses(cuda, cuda->planes, taken.bytes);
    if (taken.at == 0) return is_full(cuda, label, taken.bytes, why);
    taken.segments = calloc((size_t)memory_segments(taken.bytes), sizeof *taken.segments);
    cairn_status status = taken.segments == NULL ? fail_with(why, CAIRN_ERR_NO_MEMORY,
                                                             "out of memory for a plane's segments")
                                                 : fill_memory(cuda, label, &taken, why);
    if (status != CAIRN_OK) goto err_addresses;
    memory_out->base = (void *)(uintptr_t)taken.at;
    memory_out->segments = taken.segments;
    return CAIRN_OK;
err_addresses:
    free(taken.segments);
    cuda_give_addresses(cuda, taken.at);
    return status;
}

static cairn_status cuda_memory_export(const struct home_memory *memory, uint64_t segment,
                                       int *fd_out, uint64_t *bytes_out, struct sentence *why)
{
    struct cuda *cuda = home_cuda(memory->home);
    int fd = -1;
    CAIRN_TRY(cuda_enter(cuda, why));
    const int result = cuda->driver.cuMemExportToShareableHandle(
        &fd, memory->segments[segment].handle, CAIRN_CU_HANDLE_POSIX, 0);
    if (result != CAIRN_CU_OK) return cuda_check(cuda, result, "exporting memory", why);
    *fd_out = fd;
    *bytes_out = memory->segments[segment].bytes;
    return CAIRN_OK;
}

static void cuda_memory_give(struct home_memory *memory, uint64_t segment)
{
    struct cuda *cuda = home_cuda(memory->home);
    cuda_enter_anyway(cuda);
    if (!atomic_load(&cuda->has_failed))
        release_segment(cuda, &memory->segments[segment],
                        (uint64_t)(uintptr_t)memory->base + segment * CAIRN_SEGMENT_BYTES);
}

static void cuda_memory_close(struct home_memory *memory)
{
    struct cuda *cuda = home_cuda(memory->home);
    const uint64_t at = (uint64_t)(uintptr_t)memory->base;
    cuda_enter_anyway(cuda);
    if (!atomic_load(&cuda->has_failed)) // otherwise the memory is freed with the context
        release_segments(cuda, memory->segments,
                         memory_segments(round_up(memory->bytes, cuda->granularity)), at);
    cuda_give_addresses(cuda, at);
    free(memory->segments);
}

/* ==== pin ==== */

/* Host memory from and to which the card copies directly. The driver pins complete pages, and no page
 * twice. So a request is rounded to pages, and pages at its ends that are already pinned are skipped. A
 * copy is direct if one span contains all its bytes. */

#define PAGE_BYTES ((uint64_t)4096)

static struct cuda_span pages_of(const void *host, uint64_t bytes)
{
    const uint64_t at = (uint64_t)(uintptr_t)host / PAGE_BYTES * PAGE_BYTES;
    const uint64_t end = ((uint64_t)(uintptr_t)host + bytes + PAGE_BYTES - 1) / PAGE_BYTES;
    return (struct cuda_span) { at, end * PAGE_BYTES - at };
}

static void count(struct cuda *cuda, uint64_t pinned, uint64_t refused)
{
    // `pinned` may be a negative number, wrapped around
    atomic_fetch_add(&cuda->use.pinned_bytes, pinned);
    atomic_fetch_add(&cuda->use.unpinned_bytes, refused);
}

/* ---- pinning ---- */

/* Cuts off the ends of the span that are already pinned, and notes the rest, so that no other thread pins
 * it. */
static cairn_status claim(struct cuda *cuda, struct cuda_span *span)
{
    cairn_status status = CAIRN_OK;
    HOLD_LOCK(&cuda->lock);
    cuda_spans_trim(&cuda->pinned, span);
    if (span->bytes > 0) status = cuda_spans_add(&cuda->pinned, *span);
    return status;
}

static cairn_status refuse_pin(struct cuda *cuda, uint64_t bytes, const char *reason,
                               const char *advice, struct sentence *why)
{
    count(cuda, 0, bytes);
    return fail_with(why, CAIRN_ERR_NO_MEMORY,
                     "cannot pin %" PRIu64
                     " bytes of host memory for %s, so that copies of it are slower: "
                     "%s%s%s",
                     bytes, cuda->home.info.device, reason, advice[0] == '\0' ? "" : ": ", advice);
}

/* Pins a span. If the driver refuses, the home is not broken; if the card has failed, the next run reports
 * that. */
static cairn_status pin_span(struct cuda *cuda, struct cuda_span span, struct sentence *why)
{
    char text[32];
    const cairn_status status = claim(cuda, &span);
    if (status != CAIRN_OK)
        return refuse_pin(cuda, span.bytes,
                          status == CAIRN_ERR_EXISTS
                              ? "parts in the middle of it are pinned already"
                              : "out of memory for the list of pins",
                          "", why);
    if (span.bytes == 0) return CAIRN_OK;
    numa_move((void *)(uintptr_t)span.at, (size_t)span.bytes, cuda->home.info.numa_node);
    const int result = cuda->driver.cuMemHostRegister(
        (void *)(uintptr_t)span.at, (size_t)span.bytes, CAIRN_CU_HOST_REGISTER_PORTABLE);
    if (result == CAIRN_CU_OK) {
        count(cuda, span.bytes, 0);
        return CAIRN_OK;
    }
    WITH_LOCK(&cuda->lock, cuda_spans_take(&cuda->pinned, span.at));
    return refuse_pin(cuda, span.bytes, driver_error(&cuda->driver, result, text),
                      result == CAIRN_CU_OUT_OF_MEMORY
                          ? "the host has too little that may be pinned"
                          : driver_advice(result),
                      why);
}

static cairn_status cuda_pin(struct home *home, void *host, uint64_t bytes, struct sentence *why)
{
    struct cuda *cuda = home_cuda(home);
    const cairn_status status = cuda_enter(cuda, why);
    if (status != CAIRN_OK || bytes == 0) return status;
    return pin_span(cuda, pages_of(host, bytes), why);
}

/* ---- unpinning ---- */

static struct cuda_span take_overlapping(struct cuda *cuda, struct cuda_span with)
{
    HOLD_LOCK(&cuda->lock);
    const struct cuda_span span = cuda_spans_overlapping(&cuda->pinned, with);
    if (span.bytes > 0) (void)cuda_spans_take(&cuda->pinned, span.at);
    return span;
}

/* Pins the rest of a span, of which a part was unpinned, again. If the driver refuses, copies of the rest
 * are slower. */
static void pin_again(struct cuda *cuda, uint64_t at, uint64_t end)
{
    if (at < end && pin_span(cuda, (struct cuda_span) { at, end - at }, NULL) != CAIRN_OK)
        return; // pin_span has counted the bytes as unpinned
}

static void cuda_unpin(struct home *home, void *host, uint64_t bytes)
{
    struct cuda *cuda = home_cuda(home);
    const struct cuda_span all = pages_of(host, bytes);
    struct cuda_span span;
    if (bytes == 0) return;
    cuda_enter_anyway(cuda);
    while ((span = take_overlapping(cuda, all)).bytes > 0) {
        count(cuda, -span.bytes, 0);
        if (atomic_load(&cuda->has_failed)) continue; // a copy may still use the pages
        (void)cuda->driver.cuMemHostUnregister((void *)(uintptr_t)span.at);
        pin_again(cuda, span.at, all.at);
        pin_again(cuda, all.at + all.bytes, span.at + span.bytes);
    }
}

bool cuda_is_pinned(struct cuda *cuda, const void *host, uint64_t bytes)
{
    HOLD_LOCK(&cuda->lock);
    return cuda_spans_have(&cuda->pinned, (uint64_t)(uintptr_t)host, bytes);
}

/* ==== import ==== */

/* Memory of the card, or of its peers, that other processes own. It arrives as a descriptor, and is mapped
 * for reading in the home's reservation, so that work items can use it. A bad descriptor does no harm,
 * because no result of these calls breaks the home. A process that exports too much does no harm either: at
 * most as many bytes as the cards have are mapped at a time, at addresses that are not for planes. */

/* Refuses an import. The driver does not say whether the descriptor is invalid, or whether this process
 * lacks a resource. In both cases the owner is told that its memory cannot be imported, and sends its data
 * through the host. */
static cairn_status refuse_import(const struct cuda *cuda, int result, const char *what,
                                  struct sentence *why)
{
    char text[32];
    return fail_with(why, result == CAIRN_CU_OUT_OF_MEMORY ? CAIRN_ERR_NO_MEMORY : CAIRN_ERR_IO,
                     "%s: %s", what, driver_error(&cuda->driver, result, text));
}

/* Reserves addresses for an import; 0: there are not enough. */
static uint64_t take_addresses(struct cuda *cuda, uint64_t bytes)
{
    if (bytes > cuda->imported_max - cuda->imported_bytes) return 0;
    const uint64_t at = cuda_take_addresses(cuda, cuda->imports, bytes);
    if (at != 0) cuda->imported_bytes += bytes;
    return at;
}

static void give_addresses(struct cuda *cuda, uint64_t at, uint64_t bytes)
{
    cuda_give_addresses(cuda, at);
    cuda->imported_bytes -= bytes;
}

static cairn_status map_import(struct cuda *cuda, unsigned long long handle, uint64_t bytes,
                               uint64_t *at_out, struct sentence *why)
{
    const uint64_t at = take_addresses(cuda, bytes);
    if (at == 0)
        return fail_with(why, CAIRN_ERR_NO_MEMORY,
                         "it has %" PRIu64 " bytes, and %" PRIu64 " of the %" PRIu64
                         " that may be mapped at a time already are: as many as the cards have",
                         bytes, cuda->imported_bytes, cuda->imported_max);
    int result = cuda->driver.cuMemMap(at, (size_t)bytes, 0, handle, 0);
    if (result != CAIRN_CU_OK) {
        give_addresses(cuda, at, bytes);
        return refuse_import(cuda, result,
                             "the driver does not map it at the size that its owner says", why);
    }
    result = vmm_open_to_read(&cuda->driver, cuda->device, at, bytes);
    if (result != CAIRN_CU_OK) {
        (void)cuda->driver.cuMemUnmap(at, (size_t)bytes);
        give_addresses(cuda, at, bytes);
        return refuse_import(cuda, result, "the card may not read it", why);
    }
    *at_out = at;
    return CAIRN_OK;
}

/* Finds the devices whose memory this device reads directly. */
static void cuda_find_peers(struct cuda *cuda, int device_count)
{
    struct home_info *info = &cuda->home.info;
    struct cu_uuid uuid;
    for (int i = 0; i < device_count && info->peer_count < CAIRN_HOME_PEERS_MAX; i++) {
        int device, can = 0;
        if (cuda->driver.cuDeviceGet(&device, i) != CAIRN_CU_OK || device == cuda->device) continue;
        if (cuda->driver.cuDeviceCanAccessPeer(&can, cuda->device, device) != CAIRN_CU_OK ||
            can == 0 || cuda->driver.cuDeviceGetUuid(&uuid, device) != CAIRN_CU_OK)
            continue;
        memcpy(info->peer_uuids[info->peer_count], uuid.bytes, sizeof uuid.bytes);
        cuda->peers[info->peer_count++] = device;
    }
}

static bool is_read(const struct cuda *cuda, int device)
{
    bool is = device == cuda->device;
    for (uint32_t i = 0; i < cuda->home.info.peer_count; i++) is = is || device == cuda->peers[i];
    return is;
}

static cairn_status judge_import(const struct cuda *cuda, unsigned long long handle,
                                 struct sentence *why)
{
    struct cu_allocation how = { 0 };
    const int result = cuda->driver.cuMemGetAllocationPropertiesFromHandle(&how, handle);
    if (result != CAIRN_CU_OK)
        return refuse_import(cuda, result, "the driver does not describe it", why);
    if (how.location.type == CAIRN_CU_LOCATION_DEVICE && is_read(cuda, how.location.id))
        return CAIRN_OK;
    return fail_with(why, CAIRN_ERR_REFUSED, "it is memory neither of %s nor of a card it reads",
                     cuda->home.info.device);
}

static cairn_status import_handle(struct cuda *cuda, int fd, uint64_t bytes, uint64_t *at_out,
                                  struct sentence *why)
{
    unsigned long long handle;
    CAIRN_TRY(cuda_enter(cuda, why));
    if (bytes == 0 || bytes % cuda->granularity != 0 || bytes > cuda->home.info.total_bytes)
        return fail_with(why, CAIRN_ERR_REFUSED,
                         "%" PRIu64
                         " bytes is no size of card memory: sizes are multiples of %" PRIu64,
                         bytes, cuda->granularity);
    const int result = cuda->driver.cuMemImportFromShareableHandle(
        &handle, (void *)(uintptr_t)(unsigned)fd, CAIRN_CU_HANDLE_POSIX);
    if (result != CAIRN_CU_OK)
        return refuse_import(cuda, result, "the driver does not import it", why);
    cairn_status status = judge_import(cuda, handle, why);
    if (status == CAIRN_OK) status = map_import(cuda, handle, bytes, at_out, why);
    (void)cuda->driver.cuMemRelease(handle); // the mapping keeps the memory
    return status;
}

static cairn_status cuda_import(struct home *home, int fd, uint64_t bytes, const void **address_out,
                                struct sentence *why)
{
    uint64_t at = 0;
    const cairn_status status = import_handle(home_cuda(home), fd, bytes, &at, why);
    close(fd); // an open descriptor would prevent that the memory is freed
    if (status == CAIRN_OK) *address_out = (const void *)(uintptr_t)at;
    return status;
}

static void cuda_import_release(struct home *home, const void *address, uint64_t bytes)
{
    struct cuda *cuda = home_cuda(home);
    const uint64_t at = (uint64_t)(uintptr_t)address;
    cuda_enter_anyway(cuda);
    if (!atomic_load(&cuda->has_failed)) // otherwise the memory is unmapped with the context
        (void)cuda->driver.cuMemUnmap(at, (size_t)bytes);
    give_addresses(cuda, at, bytes);
}

/* ==== card ==== */

static const char *const kernel_names[CAIRN_KERNEL_COUNT] = {
#define CAIRN_KERNEL_NAME(name, item, warps, size) "cairn_kernel_" #name,
    CAIRN_KERNELS(CAIRN_KERNEL_NAME)
#undef CAIRN_KERNEL_NAME
};

/* ---- failures ---- */

/* Writes "a launch of fold failed on CARD: CUDA_ERROR_...", then the consequence, and what to do. */
static void describe_home(const struct cuda *cuda, int result, const char *doing,
                          const char *what_comes, struct sentence *out)
{
    char text[32];
    const char *advice = driver_advice(result);
    sentence_set(out, "%s failed on %s: %s%s%s%s", doing, cuda->home.info.device,
                 driver_error(&cuda->driver, result, text), what_comes,
                 advice[0] == '\0' ? "" : ": ", advice);
}

static void note_failure(struct cuda *cuda, int result, const char *doing)
{
    HOLD_LOCK(&cuda->lock);
    if (!atomic_load(&cuda->has_failed)) {
        describe_home(cuda, result, doing, "; nothing there can be trusted any more",
                      &cuda->failure);
        atomic_store(&cuda->has_failed, true);
    }
}

/* Reports a call that failed without further damage. */
static cairn_status tell_refusal(const struct cuda *cuda, int result, const char *doing,
                                 struct sentence *why)
{
    struct sentence said;
    describe_home(cuda, result, doing, "", &said);
    return fail_with(why, CAIRN_ERR_IO, "%s", said.text);
}

static cairn_status tell_failure(struct cuda *cuda, struct sentence *why)
{
    return fail_with(why, CAIRN_ERR_IO, "%s", cuda->failure.text); // now constant
}

cairn_status cuda_check(struct cuda *cuda, int result, const char *doing, struct sentence *why)
{
    if (result == CAIRN_CU_OK) return CAIRN_OK;
    if (result == CAIRN_CU_OUT_OF_MEMORY)
        return fail_with(why, CAIRN_ERR_NO_MEMORY,
                         "%s: no memory is left on %s, or pinned for it: %s", doing,
                         cuda->home.info.device, driver_advice(result));
    if (!driver_breaks(result)) return tell_refusal(cuda, result, doing, why);
    note_failure(cuda, result, doing);
    return tell_failure(cuda, why);
}

cairn_status cuda_enter(struct cuda *cuda, struct sentence *why)
{
    const int result = cuda->driver.cuCtxSetCurrent(cuda->context);
    if (atomic_load(&cuda->has_failed)) return tell_failure(cuda, why);
    return cuda_check(cuda, result, "entering the context", why);
}

void cuda_enter_anyway(struct cuda *cuda)
{
    (void)cuda->driver.cuCtxSetCurrent(cuda->context);
}

int cuda_wait(const struct cuda *cuda, struct CUstream_st *stream, struct CUevent_st *event)
{
    const int result = cuda->driver.cuEventRecord(event, GPU_MUTANT(17) ? NULL : stream);
    return result == CAIRN_CU_OK ? cuda->driver.cuEventSynchronize(event) : result;
}

/* ---- the functions of the kind ---- */

static uint64_t free_bytes(struct home *home)
{
    struct cuda *cuda = home_cuda(home);
    size_t free_now = 0, total = 0;
    if (cuda_enter(cuda, NULL) != CAIRN_OK) return 0;
    return cuda->driver.cuMemGetInfo(&free_now, &total) == CAIRN_CU_OK ? free_now : 0;
}

static const char *failure(struct home *home)
{
    const struct cuda *cuda = home_cuda(home);
    return atomic_load(&cuda->has_failed) ? cuda->failure.text : NULL; // now constant
}

static struct home_use cuda_use(struct home *home)
{
    struct cuda *cuda = home_cuda(home);
    return (struct home_use) {
        .runs = atomic_load(&cuda->use.runs),
        .launches = atomic_load(&cuda->use.launches),
        .bytes_in = atomic_load(&cuda->use.bytes_in),
        .bytes_out = atomic_load(&cuda->use.bytes_out),
        .pinned_bytes = atomic_load(&cuda->use.pinned_bytes),
        .unpinned_bytes = atomic_load(&cuda->use.unpinned_bytes),
    };
}

/* Closes a home, even if its card has failed, or if only a part of it was opened. */
static void close_home(struct home *home)
{
    struct cuda *cuda = home_cuda(home);
    if (cuda->is_retained) {
        cuda_enter_anyway(cuda);
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

static const struct home_kind kind = {
    .close = close_home,
    .free_bytes = free_bytes,
    .failure = failure,
    .use = cuda_use,
    .memory_open = cuda_memory_open,
    .memory_close = cuda_memory_close,
    .memory_export = cuda_memory_export,
    .import = cuda_import,
    .import_release = cuda_import_release,
    .memory_give = cuda_memory_give,
    .pin = cuda_pin,
    .unpin = cuda_unpin,
    .stream_open = cuda_stream_open,
    .stream_close = cuda_stream_close,
    .stream_begin = cuda_stream_begin,
    .run_begin = cuda_run_begin,
    .run_finish = cuda_run_finish,
};

/* ---- opening ---- */

/* True if the image and the driver do not fit together. A driver whose major version is older than the
 * toolkit's cannot load the image, whatever reason it gives. */
static bool is_of_other_time(int result, int version, int toolkit)
{
    return version / 1000 < toolkit / 1000 || result == CAIRN_CU_NO_BINARY_FOR_GPU ||
           result == CAIRN_CU_UNSUPPORTED_PTX_VERSION || result == CAIRN_CU_INVALID_IMAGE ||
           result == CAIRN_CU_INVALID_PTX;
}

static cairn_status refuse_image(struct cuda *cuda, int result, struct sentence *why)
{
    const int version = cuda->driver.version, toolkit = cuda_image().toolkit;
    char text[32];
    if (!is_of_other_time(result, version, toolkit))
        return cuda_check(cuda, result, "loading the kernels", why);
    return fail_with(
        why, CAIRN_ERR_UNSUPPORTED,
        "%s does not load the kernels, which were compiled by CUDA %d.%d: %s. The driver is of "
        "CUDA %d.%d: update it, or build with an older toolkit; cards older than compute "
        "capability 8.0 will not do",
        cuda->home.info.device, toolkit / 1000, toolkit % 1000 / 10,
        driver_error(&cuda->driver, result, text), version / 1000, version % 1000 / 10);
}

/* Loads all kernels at once, so that none is loaded for the first time during a step. */
static cairn_status load_kernels(struct cuda *cuda, struct sentence *why)
{
    static const char no_image[8] = { 0 }; // for a library that has the kernels in itself
    const void *image = cuda_image().bytes;
    const struct driver *driver = &cuda->driver;
    struct CUfunc_st *loaded;
    int result = driver->cuLibraryLoadData(&cuda->library, image == NULL ? no_image : image, NULL,
                                           NULL, 0, NULL, NULL, 0);
    for (int i = 0; i < CAIRN_KERNEL_COUNT && result == CAIRN_CU_OK; i++) {
        result = driver->cuLibraryGetKernel(&cuda->kernels[i], cuda->library, kernel_names[i]);
        if (result == CAIRN_CU_OK) result = driver->cuKernelGetFunction(&loaded, cuda->kernels[i]);
    }
    return result == CAIRN_CU_OK ? CAIRN_OK : refuse_image(cuda, result, why);
}

/* Reserves addresses, aligned to segments if the driver allows that. (The alignment is not needed, but
 * makes searches faster.) Returns a CUresult. */
static int reserve_bytes(struct cuda *cuda, uint64_t bytes)
{
    uint64_t *at_out = &cuda->space.at;
    int result = cuda->driver.cuMemAddressReserve(at_out, (size_t)bytes,
                                                  (size_t)CAIRN_SEGMENT_BYTES, 0, 0);
    if (result != CAIRN_CU_OK && !driver_breaks(result))
        result = cuda->driver.cuMemAddressReserve(at_out, (size_t)bytes, 0, 0, 0);
    return result;
}

/* Reports that addresses are lacking. The driver may say that memory is lacking, but none was requested
 * here. */
static cairn_status refuse_addresses(struct cuda *cuda, int result, uint64_t bytes,
                                     struct sentence *why)
{
    char text[32];
    if (driver_breaks(result)) return cuda_check(cuda, result, "reserving addresses", why);
    return fail_with(
        why, CAIRN_ERR_NO_MEMORY,
        "the driver cannot reserve %" PRIu64
        " GiB of addresses for %s: %s. They take no memory, but this process may be limited to "
        "fewer: look at ulimit -v (RLIMIT_AS; LimitAS= of its unit) and at vm.overcommit_memory",
        bytes >> 30, cuda->home.info.device, driver_error(&cuda->driver, result, text));
}

static cairn_status reserve(struct cuda *cuda, struct sentence *why)
{
    const uint64_t cards = 1 + cuda->home.info.peer_count;
    const uint64_t segments = cuda->home.info.total_bytes / CAIRN_SEGMENT_BYTES + 1;
    uint64_t planes = 0, imports = 0;
    int result = CAIRN_CU_OUT_OF_MEMORY;
    for (int half = 0; half <= SPACE_HALVINGS && result != CAIRN_CU_OK; half++) {
        planes = (segments * SPACE_PER_MEMORY >> half) * CAIRN_SEGMENT_BYTES;
        imports = (segments * SPACE_PER_IMPORT >> half) * CAIRN_SEGMENT_BYTES * cards;
        result = reserve_bytes(cuda, planes + imports);
        if (driver_breaks(result)) break;
    }
    if (result != CAIRN_CU_OK) return refuse_addresses(cuda, result, planes + imports, why);
    cuda->space.bytes = planes + imports;
    cuda->planes = (struct cuda_span) { cuda->space.at, planes };
    cuda->imports = (struct cuda_span) { cuda->space.at + planes, imports };
    cuda->imported_max = cuda->home.info.total_bytes * cards;
    return CAIRN_OK;
}

static cairn_status open_context(struct cuda *cuda, struct sentence *why)
{
    const int result = cuda->driver.cuDevicePrimaryCtxRetain(&cuda->context, cuda->device);
    cuda->is_retained = result == CAIRN_CU_OK;
    const cairn_status status = cuda_check(cuda, result, "opening a context", why);
    return status == CAIRN_OK ? cuda_enter(cuda, why) : status;
}

static cairn_status open_zeroing(struct cuda *cuda, struct sentence *why)
{
    int result = cuda->driver.cuStreamCreate(&cuda->zeroing, CAIRN_CU_STREAM_NON_BLOCKING);
    if (result == CAIRN_CU_OK) result = cuda->driver.cuEventCreate(&cuda->zeroed, CAIRN_CUDA_EVENT);
    return cuda_check(cuda, result, "opening a stream", why);
}

static cairn_status open_all(struct cuda *cuda, const char *device, struct sentence *why)
{
    cairn_status status = driver_open(&cuda->driver, why);
    if (status == CAIRN_OK) status = cuda_find(cuda, device, why);
    if (status == CAIRN_OK) status = open_context(cuda, why);
    if (status == CAIRN_OK) status = load_kernels(cuda, why);
    if (status == CAIRN_OK) status = open_zeroing(cuda, why);
    if (status == CAIRN_OK) status = reserve(cuda, why);
    if (status != CAIRN_OK) return status;
    struct home_info *info = &cuda->home.info;
    info->taken_bytes = info->total_bytes - free_bytes(&cuda->home);
    info->stream_bytes = cuda_staging_bytes(info->total_bytes);
    return CAIRN_OK;
}

cairn_status home_open_cuda(const char *device, struct home **home_out, struct sentence *why)
{
    if (cuda_image().bytes == NULL && !driver_stands_in())
        return fail_with(
            why, CAIRN_ERR_UNSUPPORTED,
            "this daemon was built without kernels for CUDA devices: build it where nvcc is");
    struct cuda *cuda = calloc(1, sizeof *cuda);
    if (cuda == NULL) return fail_with(why, CAIRN_ERR_NO_MEMORY, "out of memory for a home");
    cuda->home = (struct home) {
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
