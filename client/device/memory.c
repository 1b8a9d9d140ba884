/* Memory of a card that shards may import, and copies of a card's memory. */
#include "client/base/error.h"
#include "client/device/door.h"
#include "gpu/cuda/vmm.h"
#include "proto/base/numa.h"

static int map(struct card_memory *memory, int device)
{
    const struct cairn_driver *driver = memory->card->driver;
    const struct cairn_cu_access access = {
        .location = { .type = CAIRN_CU_LOCATION_DEVICE, .id = device },
        .flags = CAIRN_CU_ACCESS_READWRITE,
    };
    int result = driver->cuMemAddressReserve(&memory->at, memory->bytes, 0, 0, 0);
    if (result != CAIRN_CU_OK) return result;
    result = driver->cuMemMap(memory->at, memory->bytes, 0, memory->handle, 0);
    if (result == CAIRN_CU_OK) {
        result = driver->cuMemSetAccess(memory->at, memory->bytes, &access, 1);
        if (result == CAIRN_CU_OK) return result;
        (void)driver->cuMemUnmap(memory->at, memory->bytes);
    }
    (void)driver->cuMemAddressFree(memory->at, memory->bytes);
    return result;
}

/* As cairn_alloc says: zeros. */
static int zero(const struct card_memory *memory)
{
    const struct card *card = memory->card;
    const int result = card->driver->cuMemsetD8Async(memory->at, 0, memory->bytes, card->side);
    return result == CAIRN_CU_OK ? card->driver->cuStreamSynchronize(card->side) : result;
}

static void unmap(const struct card_memory *memory)
{
    (void)memory->card->driver->cuMemUnmap(memory->at, memory->bytes);
    (void)memory->card->driver->cuMemAddressFree(memory->at, memory->bytes);
}

static int take(struct card_memory *memory)
{
    const struct cairn_driver *driver = memory->card->driver;
    const struct cairn_cu_allocation how = cairn_vmm_allocation(memory->card->device, true,
                                                                memory->card->is_reached);
    int result = driver->cuMemCreate(&memory->handle, memory->bytes, &how, 0);
    if (result != CAIRN_CU_OK) return result;
    result = map(memory, memory->card->device);
    if (result == CAIRN_CU_OK) {
        result = zero(memory);
        if (result == CAIRN_CU_OK) return result;
        unmap(memory);
    }
    (void)driver->cuMemRelease(memory->handle);
    return result;
}

cairn_status cairn_card_memory_open(struct card *card, size_t bytes, struct card_memory *memory_out)
{
    struct card_memory memory = { .card = card };
    struct cairn_sentence why;
    if (!card->exports)
        return cairn_client_fail(
            CAIRN_ERR_UNSUPPORTED,
            "GPU %d has no memory that other processes may map (cuMemCreate with POSIX handles): "
            "give memory of torch or cudaMalloc, which is copied on its way",
            card->number);
    cairn_status status = CAIRN_ERR_NO_MEMORY;
    if (bytes > SIZE_MAX - card->granularity)
        return cairn_client_fail(status, "%zu bytes are more than GPU %d has", bytes, card->number);
    memory.bytes = (bytes + card->granularity - 1) / card->granularity * card->granularity;
    status = cairn_card_enter(card, &why);
    if (status == CAIRN_OK) {
        const int result = take(&memory);
        cairn_card_leave(card);
        if (result != CAIRN_CU_OK)
            status = cairn_card_fail(result, CAIRN_ERR_IO, "no memory", &why);
    }
    if (status != CAIRN_OK)
        return cairn_client_fail(status, "%zu bytes of GPU %d: %s", bytes, card->number, why.text);
    *memory_out = memory;
    return CAIRN_OK;
}

int cairn_card_memory_export(const struct card_memory *memory)
{
    int fd = -1;
    if (cairn_card_enter(memory->card, NULL) != CAIRN_OK) return -1;
    if (memory->card->driver->cuMemExportToShareableHandle(&fd, memory->handle,
                                                           CAIRN_CU_HANDLE_POSIX, 0) != CAIRN_CU_OK)
        fd = -1;
    cairn_card_leave(memory->card);
    return fd;
}

/* Inside of the context. When it has failed nothing is given back: what is there goes with it, and may be in
 * use until then. */
static bool has_failed(const struct card *card)
{
    size_t free_now, total;
    return card->driver->cuMemGetInfo(&free_now, &total) != CAIRN_CU_OK;
}

void cairn_card_memory_close(struct card_memory *memory)
{
    if (memory->card == NULL) return;
    if (cairn_card_enter(memory->card, NULL) == CAIRN_OK) {
        if (!has_failed(memory->card)) {
            unmap(memory);
            (void)memory->card->driver->cuMemRelease(memory->handle);
        }
        cairn_card_leave(memory->card);
    }
    memory->card = NULL;
}

static bool is_of(const struct card *card, uint64_t at)
{
    unsigned type = 0;
    int device = -1;
    const struct cairn_driver *driver = card->driver;
    return driver->cuPointerGetAttribute(&type, CAIRN_CU_POINTER_MEMORY_TYPE, at) == CAIRN_CU_OK &&
           type == CAIRN_CU_MEMORY_DEVICE &&
           driver->cuPointerGetAttribute(&device, CAIRN_CU_POINTER_DEVICE, at) == CAIRN_CU_OK &&
           device == card->number;
}

cairn_status cairn_card_judge(struct card *card, const void *ptr, size_t bytes)
{
    const uint64_t at = (uint64_t)(uintptr_t)ptr;
    struct cairn_sentence why;
    if (bytes == 0) return CAIRN_OK;
    const cairn_status status = cairn_card_enter(card, &why);
    if (status != CAIRN_OK) return cairn_client_fail(status, "GPU %d: %s", card->number, why.text);
    const bool begins = is_of(card, at);
    const bool ends = begins && bytes <= UINT64_MAX - at && is_of(card, at + bytes - 1);
    cairn_card_leave(card);
    if (begins && ends) return CAIRN_OK;
    return cairn_client_fail(
        CAIRN_ERR_INVALID,
        begins ? "mem.ptr %p is memory of GPU %d, but not %zu bytes of it"
               : "mem.ptr %p is no memory of GPU %d, as mem.device says (0: host memory), of which "
                 "%zu bytes are needed",
        ptr, card->number, bytes);
}

static int begin_copy(const struct card *card, void *to, const void *from, size_t bytes,
                      enum card_way way)
{
    const struct cairn_driver *driver = card->driver;
    const uint64_t target = (uint64_t)(uintptr_t)to, source = (uint64_t)(uintptr_t)from;
    if (way == CARD_TO_HOST) return driver->cuMemcpyDtoHAsync(to, source, bytes, card->side);
    if (way == CARD_FROM_HOST) return driver->cuMemcpyHtoDAsync(target, from, bytes, card->side);
    return driver->cuMemcpyDtoDAsync(target, source, bytes, card->side);
}

static int begin_numbered(struct card *card, void *to, const void *from, size_t bytes,
                          enum card_way way, uint64_t *copy_out)
{
    pthread_mutex_lock(&card->copies_lock);
    int result = begin_copy(card, to, from, bytes, way);
    if (result == CAIRN_CU_OK) {
        result = card->driver->cuEventRecord(card->copied, card->side);
        if (result == CAIRN_CU_OK)
            *copy_out = ++card->copies_begun;
        else // nobody could wait for it later
            (void)card->driver->cuStreamSynchronize(card->side);
    }
    pthread_mutex_unlock(&card->copies_lock);
    return result;
}

cairn_status cairn_card_copy_begin(struct card *card, void *to, const void *from, size_t bytes,
                                   enum card_way way, uint64_t *copy_out,
                                   struct cairn_sentence *why)
{
    *copy_out = 0;
    if (bytes == 0) return CAIRN_OK;
    const cairn_status status = cairn_card_enter(card, why);
    if (status != CAIRN_OK) return status;
    const int result = begin_numbered(card, to, from, bytes, way, copy_out);
    cairn_card_leave(card);
    return result == CAIRN_CU_OK
               ? CAIRN_OK
               : cairn_card_fail(result, CAIRN_ERR_IO,
                                 way == CARD_FROM_HOST ? "a copy to it" : "a copy from it", why);
}

/* The event may be recorded anew meanwhile: then it is behind later copies, too. */
cairn_status cairn_card_copy_wait(struct card *card, uint64_t copy, struct cairn_sentence *why)
{
    pthread_mutex_lock(&card->copies_lock);
    const uint64_t begun = card->copies_begun;
    const bool is_done = copy <= card->copies_done;
    pthread_mutex_unlock(&card->copies_lock);
    if (is_done) return CAIRN_OK;
    const cairn_status status = cairn_card_enter(card, why);
    if (status != CAIRN_OK) return status;
    const int result = card->driver->cuEventSynchronize(card->copied);
    cairn_card_leave(card);
    if (result != CAIRN_CU_OK)
        return cairn_card_fail(result, CAIRN_ERR_IO, "a copy from or to it", why);
    pthread_mutex_lock(&card->copies_lock);
    if (card->copies_done < begun) card->copies_done = begun;
    pthread_mutex_unlock(&card->copies_lock);
    return CAIRN_OK;
}

cairn_status cairn_card_copy(struct card *card, void *to, const void *from, size_t bytes,
                             enum card_way way, struct cairn_sentence *why)
{
    uint64_t copy;
    const cairn_status status = cairn_card_copy_begin(card, to, from, bytes, way, &copy, why);
    return status == CAIRN_OK ? cairn_card_copy_wait(card, copy, why) : status;
}

bool cairn_card_lands(const struct card *card)
{
    return card->is_reached && card->order != CAIRN_VMM_NEVER;
}

cairn_status cairn_card_landed(const struct card *card, struct cairn_sentence *why)
{
    if (card->order == CAIRN_VMM_ORDERED) return CAIRN_OK;
    const cairn_status status = cairn_card_enter(card, why);
    if (status != CAIRN_OK) return status;
    const int result = card->driver->cuFlushGPUDirectRDMAWrites(CAIRN_CU_FLUSH_CONTEXT,
                                                                CAIRN_CU_FLUSH_TO_OWNER);
    cairn_card_leave(card);
    return result == CAIRN_CU_OK
               ? CAIRN_OK
               : cairn_card_fail(result, CAIRN_ERR_IO, "what the network card wrote there", why);
}

bool cairn_card_pin(struct card *card, void *host, size_t bytes)
{
    if (cairn_card_enter(card, NULL) != CAIRN_OK) return false;
    cairn_numa_move(host, bytes, card->numa_node);
    const int result = card->driver->cuMemHostRegister(host, bytes,
                                                       CAIRN_CU_HOST_REGISTER_PORTABLE);
    cairn_card_leave(card);
    return result == CAIRN_CU_OK;
}

void cairn_card_unpin(struct card *card, void *host)
{
    if (cairn_card_enter(card, NULL) != CAIRN_OK) return;
    if (!has_failed(card)) (void)card->driver->cuMemHostUnregister(host);
    cairn_card_leave(card);
}
