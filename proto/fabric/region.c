/* Regions: shared memory of ours that peers of this host may map. Common to all fabrics; fabrics
 * that cannot map keep the object and do no more. */
#include "proto/fabric/backend.h"

#include <assert.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/vfs.h>

/* F_GET_SEALS fails on all but memfds and files of tmpfs, and the latter cannot get these seals. */
cairn_status fabric_judge_memory(int fd, uint64_t bytes)
{
    struct stat file;
    struct statfs system;
    const int seals = fcntl(fd, F_GET_SEALS);
    if (seals == -1 || (seals & CAIRN_FABRIC_SEALS) != CAIRN_FABRIC_SEALS) return CAIRN_ERR_INVALID;
    if (fstat(fd, &file) != 0 || fstatfs(fd, &system) != 0) return CAIRN_ERR_INVALID;
    if (bytes == 0 || bytes > (uint64_t)file.st_size) return CAIRN_ERR_INVALID;
    // The pool of huge pages may be empty when one is touched first, which would be a SIGBUS.
    return system.f_type == HUGETLBFS_MAGIC ? CAIRN_ERR_INVALID : CAIRN_OK;
}

/* -- by address --------------------------------------------------------------------------------- */

/* How many regions begin at or before this address. */
static uint32_t rank_of(const struct cairn_fabric *fabric, const void *address)
{
    uint32_t low = 0, high = fabric->region_count;
    while (low < high) {
        const uint32_t middle = low + (high - low) / 2;
        if ((uintptr_t)fabric->regions[middle]->base <= (uintptr_t)address)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

struct cairn_fabric_region *fabric_region_find(const struct cairn_fabric *fabric,
                                               const void *memory, size_t bytes)
{
    const uint32_t rank = rank_of(fabric, memory);
    if (rank == 0) return NULL;
    struct cairn_fabric_region *region = fabric->regions[rank - 1];
    const size_t offset = (uintptr_t)memory - (uintptr_t)region->base;
    const bool is_inside = offset < region->bytes && bytes <= region->bytes - offset;
    return is_inside ? region : NULL;
}

/* Two regions at one address would make it a matter of luck which of them a payload is of. */
static bool overlaps(const struct cairn_fabric *fabric, const void *base, size_t bytes)
{
    const uint32_t rank = rank_of(fabric, base);
    const struct cairn_fabric_region *before = rank > 0 ? fabric->regions[rank - 1] : NULL;
    const struct cairn_fabric_region *behind = NULL;
    if (rank < fabric->region_count) behind = fabric->regions[rank];
    if (before != NULL && (uintptr_t)base - (uintptr_t)before->base < before->bytes) return true;
    return behind != NULL && (uintptr_t)behind->base - (uintptr_t)base < bytes;
}

static bool make_room(struct cairn_fabric *fabric)
{
    if (fabric->region_count < fabric->region_capacity) return true;
    const uint32_t capacity = 2 * fabric->region_capacity + 16;
    struct cairn_fabric_region **regions = realloc(fabric->regions, capacity * sizeof *regions);
    if (regions == NULL) return false;
    fabric->regions = regions;
    fabric->region_capacity = capacity;
    return true;
}

static void put_in(struct cairn_fabric *fabric, struct cairn_fabric_region *region)
{
    const uint32_t rank = rank_of(fabric, region->base);
    memmove(fabric->regions + rank + 1, fabric->regions + rank,
            (fabric->region_count - rank) * sizeof(*fabric->regions));
    fabric->regions[rank] = region;
    fabric->region_count++;
}

static void take_out(struct cairn_fabric *fabric, const struct cairn_fabric_region *region)
{
    const uint32_t rank = rank_of(fabric, region->base) - 1;
    assert(fabric->regions[rank] == region);
    fabric->region_count--;
    memmove(fabric->regions + rank, fabric->regions + rank + 1,
            (fabric->region_count - rank) * sizeof(*fabric->regions));
}

/* -- the calls ---------------------------------------------------------------------------------- */

static cairn_status judge_common(const struct cairn_fabric *fabric,
                                 const struct cairn_fabric_region *wanted, const void *note)
{
    if (wanted->base == NULL || wanted->bytes == 0) return CAIRN_ERR_INVALID;
    if (wanted->note_bytes > CAIRN_FABRIC_NOTE_MAX) return CAIRN_ERR_INVALID;
    if (wanted->note_bytes > 0 && note == NULL) return CAIRN_ERR_INVALID;
    return overlaps(fabric, wanted->base, wanted->bytes) ? CAIRN_ERR_INVALID : CAIRN_OK;
}

/* A backend that takes no memory of cards keeps the address all the same: it knows what not to read. */
static cairn_status tell_backend(struct cairn_fabric_region *region)
{
    const struct fabric_backend *backend = region->fabric->backend;
    const bool has_cards = backend->imports != NULL || backend->connect_inside != NULL;
    if (backend->region_add == NULL || (region->is_device && !has_cards)) return CAIRN_OK;
    return backend->region_add(region);
}

static cairn_status add(struct cairn_fabric *fabric, const struct cairn_fabric_region *wanted,
                        const void *note, struct cairn_fabric_region **region_out)
{
    const size_t own_bytes = fabric->backend->region_bytes;
    if (!make_room(fabric)) return CAIRN_ERR_NO_MEMORY;
    struct cairn_fabric_region *region = calloc(1, own_bytes > 0 ? own_bytes : sizeof *region);
    if (region == NULL) return CAIRN_ERR_NO_MEMORY;
    *region = *wanted;
    region->fabric = fabric;
    if (wanted->note_bytes > 0) memcpy(region->note, note, wanted->note_bytes);
    const cairn_status status = tell_backend(region);
    if (status != CAIRN_OK) {
        free(region);
        return status;
    }
    put_in(fabric, region);
    fabric->device_region_count += region->is_device;
    *region_out = region;
    return CAIRN_OK;
}

cairn_status cairn_fabric_region_add(struct cairn_fabric *fabric, const void *base, size_t bytes,
                                     int fd, const void *note, size_t note_bytes,
                                     struct cairn_fabric_region **region_out)
{
    const struct cairn_fabric_region wanted = {
        .base = base, .bytes = bytes, .fd = fd, .note_bytes = note_bytes
    };
    cairn_status status = judge_common(fabric, &wanted, note);
    if (status == CAIRN_OK) status = fabric_judge_memory(fd, bytes);
    return status == CAIRN_OK ? add(fabric, &wanted, note, region_out) : status;
}

cairn_status cairn_fabric_region_add_device(struct cairn_fabric *fabric, const void *base,
                                            size_t bytes, int fd, const uint8_t *uuid,
                                            const void *note, size_t note_bytes,
                                            struct cairn_fabric_region **region_out)
{
    struct cairn_fabric_region wanted = {
        .base = base, .bytes = bytes, .fd = fd, .is_device = true, .note_bytes = note_bytes
    };
    if (fd < 0 || uuid == NULL) return CAIRN_ERR_INVALID;
    memcpy(wanted.uuid, uuid, sizeof wanted.uuid);
    const cairn_status status = judge_common(fabric, &wanted, note);
    return status == CAIRN_OK ? add(fabric, &wanted, note, region_out) : status;
}

bool cairn_fabric_peer_imports(const struct cairn_fabric_peer *peer, const uint8_t *uuid)
{
    const struct fabric_backend *backend = peer->fabric->backend;
    return backend->imports != NULL && backend->imports(peer, uuid);
}

bool fabric_region_goes(const struct cairn_fabric_peer *peer, const void *payload, size_t bytes,
                        const struct cairn_fabric_region **device_out)
{
    *device_out = NULL;
    if (peer->fabric->device_region_count == 0 || bytes == 0) return true;
    const struct cairn_fabric_region *region = fabric_region_find(peer->fabric, payload, 1);
    if (region == NULL || !region->is_device) return true;
    *device_out = region;
    return bytes <= region->bytes - (size_t)((const uint8_t *)payload - region->base) &&
           ((peer->fabric->takes_device && bytes >= CAIRN_FABRIC_DIRECT_MIN) ||
            cairn_fabric_peer_imports(peer, region->uuid));
}

cairn_status cairn_fabric_region_show(struct cairn_fabric_region *region,
                                      struct cairn_fabric_peer *peer)
{
    if (peer->is_down || peer->is_closed || peer->fabric->is_closing) return CAIRN_ERR_CLOSED;
    const struct fabric_backend *backend = region->fabric->backend;
    if (backend->region_show == NULL) return CAIRN_OK;
    return backend->region_show(region, peer);
}

void cairn_fabric_region_drop(struct cairn_fabric_region *region)
{
    if (region == NULL) return;
    take_out(region->fabric, region);
    region->fabric->device_region_count -= region->is_device;
    if (region->fabric->backend->region_drop != NULL) region->fabric->backend->region_drop(region);
    free(region);
}

void fabric_free_regions(struct cairn_fabric *fabric)
{
    for (uint32_t i = 0; i < fabric->region_count; i++) free(fabric->regions[i]);
    free(fabric->regions);
    fabric->regions = NULL;
    fabric->region_count = fabric->region_capacity = 0;
}
