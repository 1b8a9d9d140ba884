/* The memory that we share with peers: regions of the owner, and the staging area, into which
 * payloads are copied that lie in no region.
 *
 * The staging area is up to four memfds, made when they are needed, handed out in pages, first fit (what
 * was read last is taken again first, while it is in the cache). A peer may have as many pages as are
 * left for all others: however many never release, the next one finds some. */
#include "proto/fabric/mapped.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* -- shares ------------------------------------------------------------------------------------- */

/* `fd` stays the caller's. */
static struct mapped_share *share_new(int fd, uint64_t bytes, uint16_t slot)
{
    struct mapped_share *share = calloc(1, sizeof *share);
    if (share == NULL) return NULL;
    share->fd = fcntl(fd, F_DUPFD_CLOEXEC, 0);
    if (share->fd < 0) {
        free(share);
        return NULL;
    }
    share->references = 1;
    share->frame =
        (struct frame_region) { .head = frame_head(FRAME_REGION), .bytes = bytes, .slot = slot };
    return share;
}

void mapped_share_release(struct mapped_share *share)
{
    if (--share->references > 0) return;
    close(share->fd);
    free(share);
}

/* -- regions ------------------------------------------------------------------------------------ */

cairn_status mapped_region_add(struct cairn_fabric_region *common)
{
    struct mapped_fabric *fabric = mapped_of(common->fabric);
    struct mapped_region *region = (struct mapped_region *)common;
    uint16_t slot = MAPPED_ARENAS;
    while (slot < FRAME_SLOTS && fabric->shares[slot] != NULL) slot++;
    if (slot == FRAME_SLOTS) return CAIRN_ERR_BUSY;
    struct mapped_share *share = share_new(common->fd, common->bytes, slot);
    if (share == NULL) return CAIRN_ERR_NO_MEMORY;
    share->frame.note_bytes = (uint32_t)common->note_bytes;
    memcpy(share->frame.note, common->note, sizeof common->note);
    if (common->is_device) share->frame.memory = FRAME_MEMORY_DEVICE;
    memcpy(share->frame.uuid, common->uuid, sizeof common->uuid); // zero of host memory
    region->share = fabric->shares[slot] = share;
    return CAIRN_OK;
}

void mapped_region_drop(struct cairn_fabric_region *common)
{
    struct mapped_fabric *fabric = mapped_of(common->fabric);
    struct mapped_region *region = (struct mapped_region *)common;
    const uint16_t slot = region->share->frame.slot;
    struct mapped_out *out;
    LIST_FOREACH (out, &fabric->outs, entry) mapped_take_back(out, slot);
    fabric->shares[slot] = NULL;
    mapped_share_release(region->share);
}

/* -- the staging area --------------------------------------------------------------------------- */

/* FUTURE_WRITE comes after our own map: from then on nobody gets another that can write. */
static cairn_status arena_open(struct mapped_fabric *fabric, uint16_t slot)
{
    struct mapped_arena *arena = &fabric->arenas[slot];
    const size_t bytes = (size_t)fabric->arena_pages * MAPPED_PAGE;
    int fd = memfd_create("cairn-staging", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd < 0) return CAIRN_ERR_NO_MEMORY;
    void *memory = MAP_FAILED;
    if (ftruncate(fd, (off_t)bytes) == 0)
        memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    arena->taken = calloc(fabric->arena_pages / 64, sizeof *arena->taken);
    if (memory != MAP_FAILED && arena->taken != NULL &&
        fcntl(fd, F_ADD_SEALS, CAIRN_FABRIC_SEALS) == 0)
        arena->share = share_new(fd, bytes, slot);
    close(fd);
    if (arena->share == NULL) goto err_unmap;
    arena->memory = memory;
    arena->share->frame.memory = FRAME_MEMORY_STAGING;
    fabric->shares[slot] = arena->share;
    return CAIRN_OK;
err_unmap:
    if (memory != MAP_FAILED) munmap(memory, bytes);
    free(arena->taken);
    arena->taken = NULL;
    return CAIRN_ERR_NO_MEMORY;
}

static bool is_taken(const struct mapped_arena *arena, uint32_t page)
{
    return (arena->taken[page / 64] >> page % 64 & 1) != 0;
}

static void mark(struct mapped_arena *arena, uint32_t first, uint32_t count, bool taken)
{
    for (uint32_t page = first; page < first + count; page++) {
        assert(is_taken(arena, page) != taken);
        arena->taken[page / 64] ^= UINT64_C(1) << page % 64;
    }
}

static bool find_run(const struct mapped_fabric *fabric, const struct mapped_arena *arena,
                     uint32_t count, uint32_t *first_out)
{
    uint32_t run = 0;
    for (uint32_t page = 0; page < fabric->arena_pages; page++) {
        if (page % 64 == 0 && arena->taken[page / 64] == UINT64_MAX) {
            run = 0;
            page += 63;
            continue;
        }
        run = is_taken(arena, page) ? 0 : run + 1;
        if (run < count) continue;
        *first_out = page + 1 - count;
        return true;
    }
    return false;
}

static bool is_fair(const struct mapped_fabric *fabric, uint32_t own_pages, uint32_t count)
{
    const uint32_t all = MAPPED_ARENAS * fabric->arena_pages;
    return own_pages == 0 || own_pages + count <= all - fabric->staged_pages;
}

cairn_status mapped_stage(struct mapped_fabric *fabric, uint32_t own_pages, size_t bytes,
                          struct fabric_pages *pages_out)
{
    struct fabric_pages pages = { .count = (uint32_t)((bytes + MAPPED_PAGE - 1) / MAPPED_PAGE) };
    if (!is_fair(fabric, own_pages, pages.count)) return CAIRN_ERR_BUSY;
    for (; pages.arena < MAPPED_ARENAS; pages.arena++) {
        struct mapped_arena *arena = &fabric->arenas[pages.arena];
        if (arena->share == NULL && arena_open(fabric, (uint16_t)pages.arena) != CAIRN_OK)
            return fabric->staged_pages > 0 ? CAIRN_ERR_BUSY : CAIRN_ERR_NO_MEMORY;
        if (!find_run(fabric, arena, pages.count, &pages.first)) continue;
        mark(arena, pages.first, pages.count, true);
        fabric->staged_pages += pages.count;
        *pages_out = pages;
        return CAIRN_OK;
    }
    return CAIRN_ERR_BUSY;
}

uint8_t *mapped_staged(const struct mapped_fabric *fabric, struct fabric_pages pages)
{
    return fabric->arenas[pages.arena].memory + (size_t)pages.first * MAPPED_PAGE;
}

void mapped_unstage(struct mapped_fabric *fabric, struct fabric_pages pages)
{
    if (pages.count == 0) return;
    mark(&fabric->arenas[pages.arena], pages.first, pages.count, false);
    fabric->staged_pages -= pages.count;
    fabric->is_room = true;
}

void mapped_memory_close(struct mapped_fabric *fabric)
{
    for (uint32_t i = 0; i < MAPPED_ARENAS; i++) {
        struct mapped_arena *arena = &fabric->arenas[i];
        if (arena->share == NULL) continue;
        mapped_share_release(arena->share);
        munmap(arena->memory, (size_t)fabric->arena_pages * MAPPED_PAGE);
        free(arena->taken);
    }
    for (uint32_t i = 0; i < fabric->common.region_count; i++) // fabric.c frees the objects
        mapped_share_release(((struct mapped_region *)fabric->common.regions[i])->share);
}
