/* The memory that we share with peers: regions of the owner, and the staging area, into which
 * payloads are copied that lie in no region.
 *
 * The staging area is up to four memfds, made when they are needed, handed out in pages, first fit (what
 * was read last is taken again first, while it is in the cache). A peer may have as many pages as are
 * left for all others: however many never release, the next one finds some. */
#include "proto/fabric/mapped.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "proto/base/machine.h"

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

cairn_status mapped_region_add(struct fabric_region *common)
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

void mapped_region_drop(struct fabric_region *common)
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

/* ==== mapped mapping ==== */

/* Memory of peers, mapped here to be read, or read by copies where there is no room to map it. A mapping
 * lives as long as its slot, a message or a holder refers to it, so that nobody who reads is harmed by its
 * maker's end. Nor by its emptiness: a page that is missing would be made for whoever reads it, at the cost
 * of the reader's control group, which may kill it for that; so nothing is read that is not there, and seals
 * keep it there. */

/* Once: a limit of this process holds for all that comes. */
static void tell_unmapped(struct mapped_fabric *fabric, uint64_t bytes, int why)
{
    const struct fabric_options *options = &fabric->common.options;
    struct sentence text;
    if (fabric->has_told_unmapped || options->on_refused == NULL) return;
    fabric->has_told_unmapped = true;
    sentence_set(&text,
                 "%" PRIu64 " bytes of memory that a process of this host showed cannot be "
                 "mapped here: %s; what lies there is read by copies, which is slower: raise "
                 "this process's limit of addresses (ulimit -v) or vm.max_map_count",
                 bytes, strerror(why));
    options->on_refused(options->on_message_arg, text.text);
}

/* OK: the descriptor is the mapping's. Without room in this process's addresses the memory stays unmapped,
 * and is read through the descriptor. */
static cairn_status map_host(struct fabric_mapping *mapping, struct mapped_fabric *fabric,
                             uint64_t bytes, int fd)
{
    if (fabric_judge_memory(fd, bytes) != CAIRN_OK) return CAIRN_ERR_REFUSED;
    void *memory = pages_map(bytes, PROT_READ, MAP_SHARED, fd);
    if (memory == MAP_FAILED) tell_unmapped(fabric, bytes, errno);
    struct stat file;
    mapping->memory = memory != MAP_FAILED ? memory : NULL;
    mapping->bytes = bytes;
    mapping->fd = fd;
    mapping->is_whole = fstat(fd, &file) == 0 &&
                        (uint64_t)file.st_blocks * 512 >= (uint64_t)file.st_size;
    return CAIRN_OK;
}

bool mapped_mapping_copy(const struct fabric_mapping *mapping, uint64_t offset, void *to,
                         size_t bytes)
{
    for (size_t done = 0; done < bytes;) {
        const ssize_t got = pread(mapping->fd, (uint8_t *)to + done, bytes - done,
                                  (off_t)(offset + done));
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0) return false;
        done += (size_t)got;
    }
    return true;
}

bool mapped_mapping_has(const struct fabric_mapping *mapping, uint64_t offset, size_t bytes)
{
    if (mapping->is_whole) return true;
    const off_t hole = lseek(mapping->fd, (off_t)offset, SEEK_HOLE);
    return hole >= 0 && (uint64_t)hole >= offset + bytes;
}

static void tell_refused(const struct fabric_options *options, const char *what_comes,
                         const char *why)
{
    struct sentence text;
    if (options->on_refused == NULL) return;
    sentence_set(&text, "memory of a card that a process of this host showed is %s: %s", what_comes,
                 why);
    options->on_refused(options->on_message_arg, text.text);
}

/* It is right, but there is no room for it here, or the card has failed: whoever shows it is told once, and
 * then sends what lies there through the host. If the socket is full it is not told, and loses a connection
 * by what it sends of it. */
void mapped_import_none_of(struct mapped_in *in, const char *why)
{
    const struct frame_head head = frame_head(FRAME_NO_IMPORTS);
    in->imports_none = true;
    tell_refused(&in->fabric->common.options,
                 "not read where it lies, and passes the host from now on", why);
    (void)frame_write_one(in->link.fd, &head, sizeof head, -1);
}

/* Uses the descriptor up. */
static cairn_status import(struct fabric_mapping *mapping, struct mapped_in *in,
                           const struct frame_region *frame, int fd)
{
    const struct mapped_fabric *fabric = in->fabric;
    const struct fabric_options *options = &fabric->common.options;
    const struct fabric_device *device = options->device;
    const struct fabric_offer offer = { .uuid = frame->uuid,
                                        .bytes = frame->bytes,
                                        .note = frame->note,
                                        .note_bytes = frame->note_bytes };
    struct sentence why = { "it is of a card whose memory is not imported here" };
    cairn_status status = CAIRN_ERR_REFUSED;
    mapping->fd = -1;
    if (mapped_cards_have(&fabric->cards, frame->uuid) && !in->imports_none)
        status = device->import(device->context, &offer, fd, &mapping->memory, &why);
    else
        close(fd);
    if (in->imports_none) return CAIRN_OK; // shown before it heard of that
    if (status == CAIRN_ERR_NO_MEMORY || status == CAIRN_ERR_IO) {
        mapped_import_none_of(in, why.text);
        return CAIRN_OK;
    }
    if (status != CAIRN_OK) {
        tell_refused(options, "refused, and its connection with it", why.text);
        return status;
    }
    mapping->bytes = frame->bytes;
    mapping->device = device;
    memcpy(mapping->uuid, frame->uuid, sizeof mapping->uuid);
    mapping->is_whole = true;
    return CAIRN_OK;
}

/* Uses the descriptor up if it is not OK. */
static cairn_status map(struct fabric_mapping *mapping, struct mapped_in *in,
                        const struct frame_region *frame, int fd)
{
    if (frame->memory == FRAME_MEMORY_DEVICE) return import(mapping, in, frame, fd);
    const cairn_status status = map_host(mapping, in->fabric, frame->bytes, fd);
    if (status != CAIRN_OK) close(fd);
    return status;
}

cairn_status mapped_mapping_open(struct mapped_in *in, const struct frame_region *frame, int fd,
                                 struct fabric_mapping **mapping_out)
{
    const struct fabric_options *options = &in->fabric->common.options;
    struct fabric_mapping *mapping = NULL;
    cairn_status status = CAIRN_ERR_REFUSED;
    if (frame->bytes > options->mapped_max - in->mapped_bytes) goto err_close;
    status = CAIRN_ERR_NO_MEMORY;
    if ((mapping = calloc(1, sizeof *mapping)) == NULL) goto err_close;
    if ((status = map(mapping, in, frame, fd)) != CAIRN_OK) {
        free(mapping);
        return status;
    }
    mapping->references = 1;
    mapping->in = in;
    LIST_INSERT_HEAD(&in->all, mapping, entry);
    in->mapped_bytes += mapping->bytes;
    mapping->is_staging = frame->memory == FRAME_MEMORY_STAGING;
    mapping->note_bytes = frame->note_bytes;
    memcpy(mapping->note, frame->note, sizeof mapping->note);
    if (mapping->fd >= 0 && mapping->is_whole && mapping->memory != NULL) {
        close(mapping->fd);
        mapping->fd = -1;
    }
    *mapping_out = mapping;
    return CAIRN_OK;
err_close:
    close(fd);
    return status;
}

void mapped_mapping_end(struct fabric_mapping *mapping)
{
    const struct fabric_options *options = &mapping->in->fabric->common.options;
    if (mapping->is_shown && options->on_mapping_gone != NULL)
        options->on_mapping_gone(options->on_message_arg, mapping);
    fabric_mapping_release(mapping);
}

const void *fabric_mapping_memory(const struct fabric_mapping *mapping, size_t *bytes_out)
{
    *bytes_out = mapping->bytes;
    return mapping->memory;
}

const void *fabric_mapping_note(const struct fabric_mapping *mapping, size_t *note_bytes_out)
{
    *note_bytes_out = mapping->note_bytes;
    return mapping->note;
}

const uint8_t *fabric_mapping_uuid(const struct fabric_mapping *mapping)
{
    return mapping->device != NULL ? mapping->uuid : NULL;
}

void fabric_mapping_refuse(struct fabric_mapping *mapping, const char *why)
{
    struct mapped_in *in = mapping->in;
    if (in != NULL && !in->is_over && !in->imports_none) mapped_import_none_of(in, why);
}

void fabric_mapping_hold(struct fabric_mapping *mapping)
{
    mapping->references++;
}

void fabric_mapping_release(struct fabric_mapping *mapping)
{
    assert(mapping->references > 0);
    if (--mapping->references > 0) return;
    if (mapping->in != NULL) {
        LIST_REMOVE(mapping, entry);
        mapping->in->mapped_bytes -= mapping->bytes;
    }
    if (mapping->device != NULL)
        mapping->device->release(mapping->device->context, mapping->memory, mapping->bytes);
    else if (mapping->bytes > 0 && mapping->memory != NULL)
        munmap(mapping->memory, mapping->bytes);
    if (mapping->fd >= 0) close(mapping->fd);
    free(mapping);
}
