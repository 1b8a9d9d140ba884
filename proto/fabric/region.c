/* Regions: shared memory of ours that peers of this host may map. What is common to all fabrics; those that
 * cannot map keep the object and do no more. */
#include "proto/fabric/backend.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/vfs.h>

/* F_GET_SEALS fails on all but memfds and files of tmpfs, and the latter cannot get these seals. */
cairn_status fabric_judge_memory(int fd, uint64_t bytes)
{
    const int needed = F_SEAL_SEAL | F_SEAL_SHRINK | F_SEAL_GROW;
    struct stat file;
    struct statfs system;
    const int seals = fcntl(fd, F_GET_SEALS);
    if (seals == -1 || (seals & needed) != needed) return CAIRN_ERR_INVALID;
    if (fstat(fd, &file) != 0 || fstatfs(fd, &system) != 0) return CAIRN_ERR_INVALID;
    if (bytes == 0 || bytes > (uint64_t)file.st_size) return CAIRN_ERR_INVALID;
    // Huge pages are unmapped whole.
    if (system.f_type == HUGETLBFS_MAGIC && bytes % (uint64_t)system.f_bsize != 0)
        return CAIRN_ERR_INVALID;
    return CAIRN_OK;
}

/* Two regions at one address would make it a matter of luck which of them a payload is of. */
static bool overlaps(const struct cairn_fabric *fabric, uintptr_t first, size_t bytes)
{
    const struct cairn_fabric_region *region;
    LIST_FOREACH (region, &fabric->regions, link) {
        const uintptr_t base = (uintptr_t)region->base;
        if (first < base ? bytes > base - first : region->bytes > first - base) return true;
    }
    return false;
}

cairn_status cairn_fabric_region_add(struct cairn_fabric *fabric, const void *base, size_t bytes,
                                     int fd, const void *note, size_t note_bytes,
                                     struct cairn_fabric_region **region_out)
{
    struct cairn_fabric *inside = NULL;
    if (fabric->backend->regions_inside != NULL) inside = fabric->backend->regions_inside(fabric);
    if (inside != NULL)
        return cairn_fabric_region_add(inside, base, bytes, fd, note, note_bytes, region_out);
    const struct fabric_backend *backend = fabric->backend;
    if (base == NULL || note_bytes > CAIRN_FABRIC_NOTE_MAX) return CAIRN_ERR_INVALID;
    if (note_bytes > 0 && note == NULL) return CAIRN_ERR_INVALID;
    if (overlaps(fabric, (uintptr_t)base, bytes)) return CAIRN_ERR_INVALID;
    cairn_status status = fabric_judge_memory(fd, bytes);
    if (status != CAIRN_OK) return status;

    const size_t own_bytes = backend->region_bytes;
    struct cairn_fabric_region *region = calloc(1, own_bytes > 0 ? own_bytes : sizeof *region);
    if (region == NULL) return CAIRN_ERR_NO_MEMORY;
    region->fabric = fabric;
    region->base = base;
    region->bytes = bytes;
    region->fd = fd;
    region->note_bytes = note_bytes;
    if (note_bytes > 0) memcpy(region->note, note, note_bytes);
    if (backend->region_add != NULL) status = backend->region_add(region);
    if (status != CAIRN_OK) {
        free(region);
        return status;
    }
    LIST_INSERT_HEAD(&fabric->regions, region, link);
    *region_out = region;
    return CAIRN_OK;
}

cairn_status cairn_fabric_region_show(struct cairn_fabric_region *region,
                                      struct cairn_fabric_peer *peer)
{
    if (peer->is_down || peer->is_closed || peer->fabric->is_closing) return CAIRN_ERR_CLOSED;
    if (peer->fabric != region->fabric || peer->fabric->backend->region_show == NULL)
        return CAIRN_OK;
    return peer->fabric->backend->region_show(region, peer);
}

void cairn_fabric_region_drop(struct cairn_fabric_region *region)
{
    if (region == NULL) return;
    if (region->fabric->backend->region_drop != NULL) region->fabric->backend->region_drop(region);
    LIST_REMOVE(region, link);
    free(region);
}

void fabric_free_regions(struct cairn_fabric *fabric)
{
    while (!LIST_EMPTY(&fabric->regions)) {
        struct cairn_fabric_region *region = LIST_FIRST(&fabric->regions);
        LIST_REMOVE(region, link);
        free(region);
    }
}
