/* Memory of the card, or of others that it reads by itself, which other processes own: a handle that came as
 * a descriptor, mapped to be read in the home's own reservation, so that works find it there. A bad
 * descriptor harms nothing: no result here breaks the home. Nor does it harm if too much is shown: at
 * most as much as the cards have is mapped at a time, at addresses that planes do not use. */
#include <inttypes.h>
#include <string.h>
#include <unistd.h>

#include "gpu/cuda/cuda.h"
#include "gpu/cuda/vmm.h"

/* The driver does not say whether the descriptor is wrong or this process lacks something: in both cases its
 * owner is told that nothing is imported here, and goes through the host. */
static cairn_status refuse(const struct cairn_cuda *cuda, int result, const char *what,
                           struct cairn_sentence *why)
{
    char text[32];
    return cairn_fail(why, result == CAIRN_CU_OUT_OF_MEMORY ? CAIRN_ERR_NO_MEMORY : CAIRN_ERR_IO,
                      "%s: %s", what, cairn_driver_error(&cuda->driver, result, text));
}

/* 0: so much is not to be had. */
static uint64_t take_addresses(struct cairn_cuda *cuda, uint64_t bytes)
{
    if (bytes > cuda->imported_max - cuda->imported_bytes) return 0;
    const uint64_t at = cairn_cuda_take_addresses(cuda, cuda->imports, bytes);
    if (at != 0) cuda->imported_bytes += bytes;
    return at;
}

static void give_addresses(struct cairn_cuda *cuda, uint64_t at, uint64_t bytes)
{
    cairn_cuda_give_addresses(cuda, at);
    cuda->imported_bytes -= bytes;
}

static cairn_status map(struct cairn_cuda *cuda, unsigned long long handle, uint64_t bytes,
                        uint64_t *at_out, struct cairn_sentence *why)
{
    const uint64_t at = take_addresses(cuda, bytes);
    if (at == 0)
        return cairn_fail(why, CAIRN_ERR_NO_MEMORY,
                          "it has %" PRIu64 " bytes, and %" PRIu64 " are mapped of the %" PRIu64
                          " that may be at a time: as many as the cards have",
                          bytes, cuda->imported_bytes, cuda->imported_max);
    int result = cuda->driver.cuMemMap(at, (size_t)bytes, 0, handle, 0);
    if (result != CAIRN_CU_OK) {
        give_addresses(cuda, at, bytes);
        return refuse(cuda, result, "the driver does not map it at the size that its owner says",
                      why);
    }
    result = cairn_vmm_open_to_read(&cuda->driver, cuda->device, at, bytes);
    if (result != CAIRN_CU_OK) {
        (void)cuda->driver.cuMemUnmap(at, (size_t)bytes);
        give_addresses(cuda, at, bytes);
        return refuse(cuda, result, "the card may not read it", why);
    }
    *at_out = at;
    return CAIRN_OK;
}

void cairn_cuda_find_peers(struct cairn_cuda *cuda, int device_count)
{
    struct cairn_home_info *info = &cuda->home.info;
    struct cairn_cu_uuid uuid;
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

static bool is_read(const struct cairn_cuda *cuda, int device)
{
    bool is = device == cuda->device;
    for (uint32_t i = 0; i < cuda->home.info.peer_count; i++) is = is || device == cuda->peers[i];
    return is;
}

static cairn_status judge(const struct cairn_cuda *cuda, unsigned long long handle,
                          struct cairn_sentence *why)
{
    struct cairn_cu_allocation how = { 0 };
    const int result = cuda->driver.cuMemGetAllocationPropertiesFromHandle(&how, handle);
    if (result != CAIRN_CU_OK) return refuse(cuda, result, "the driver does not describe it", why);
    if (how.location.type == CAIRN_CU_LOCATION_DEVICE && is_read(cuda, how.location.id))
        return CAIRN_OK;
    return cairn_fail(why, CAIRN_ERR_REFUSED, "it is not memory of %s, or of one that it reads",
                      cuda->home.info.device);
}

static cairn_status import(struct cairn_cuda *cuda, int fd, uint64_t bytes, uint64_t *at_out,
                           struct cairn_sentence *why)
{
    unsigned long long handle;
    cairn_status status = cairn_cuda_enter(cuda, why);
    if (status != CAIRN_OK) return status;
    if (bytes == 0 || bytes % cuda->granularity != 0 || bytes > cuda->home.info.total_bytes)
        return cairn_fail(why, CAIRN_ERR_REFUSED,
                          "%" PRIu64
                          " bytes are no size of memory of a card: multiples of %" PRIu64,
                          bytes, cuda->granularity);
    const int result = cuda->driver.cuMemImportFromShareableHandle(
        &handle, (void *)(uintptr_t)(unsigned)fd, CAIRN_CU_HANDLE_POSIX);
    if (result != CAIRN_CU_OK) return refuse(cuda, result, "the driver does not import it", why);
    status = judge(cuda, handle, why);
    if (status == CAIRN_OK) status = map(cuda, handle, bytes, at_out, why);
    (void)cuda->driver.cuMemRelease(handle); // the mapping keeps the memory
    return status;
}

cairn_status cairn_cuda_import(struct cairn_home *home, int fd, uint64_t bytes,
                               const void **address_out, struct cairn_sentence *why)
{
    uint64_t at = 0;
    const cairn_status status = import(cairn_cuda_of(home), fd, bytes, &at, why);
    close(fd); // an open one keeps the memory taken
    if (status == CAIRN_OK) *address_out = (const void *)(uintptr_t)at;
    return status;
}

void cairn_cuda_import_release(struct cairn_home *home, const void *address, uint64_t bytes)
{
    struct cairn_cuda *cuda = cairn_cuda_of(home);
    const uint64_t at = (uint64_t)(uintptr_t)address;
    cairn_cuda_enter_anyway(cuda);
    if (!atomic_load(&cuda->has_failed)) // else it goes with the context
        (void)cuda->driver.cuMemUnmap(at, (size_t)bytes);
    give_addresses(cuda, at, bytes);
}
