#include "client/device/import.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "client/base/error.h"
#include "client/device/door.h"
#include "gpu/cuda/vmm.h"
#include "proto/geometry/published.h"

/* The segments of one copy: no shard publishes more on a card. */
#define SEGMENTS_MAX 4092
#define LATE_MAX     256 /* segments that are mapped later; each keeps a descriptor */

/* FREE ─► SHOWN ─► MAPPED ─► LEFT ─► FREE: where a stream waits, SHOWN and LEFT wait for the next turn. */
enum slot_state { SLOT_FREE, SLOT_SHOWN, SLOT_MAPPED, SLOT_LEFT, SLOT_REFUSED };

/* Where a segment is, or will be. */
struct slot {
    enum slot_state state;
    int fd;         /* owned, of SLOT_SHOWN */
    uint64_t bytes; /* of what was shown */
};

/* Addresses for the segments of a copy. */
struct span {
    struct span *next;
    struct cairn_published_note note; /* of the copy: its segment is 0 */
    uint64_t at, bytes;
    uint32_t used;       /* slots that are not SLOT_FREE */
    struct slot slots[]; /* [note.segment_count] */
};

struct card_imports {
    struct cairn_fabric_device table;
    const struct card *card;
    struct span *spans;
    uint32_t late;             /* slots of SLOT_SHOWN and SLOT_LEFT */
    struct cairn_sentence why; /* of the last of SLOT_REFUSED */
};

/* ---- addresses ---- */

static cairn_status find_span(struct card_imports *imports, struct cairn_published_note note,
                              struct span **span_out, struct cairn_sentence *why)
{
    struct span *span = imports->spans;
    const uint32_t segment = note.segment;
    note.segment = 0;
    // A shard that was lost shows it again, perhaps while somebody still reads what it showed before.
    while (span != NULL && (memcmp(&span->note, &note, sizeof note) != 0 ||
                            span->slots[segment].state != SLOT_FREE))
        span = span->next;
    *span_out = span;
    if (span != NULL) return CAIRN_OK;
    span = calloc(1, sizeof *span + note.segment_count * sizeof *span->slots);
    if (span == NULL) return cairn_fail(why, CAIRN_ERR_NO_MEMORY, "out of memory");
    span->note = note;
    span->bytes = note.segment_count * CAIRN_SEGMENT_BYTES;
    const int result = imports->card->driver->cuMemAddressReserve(&span->at, (size_t)span->bytes, 0,
                                                                  0, 0);
    if (result != CAIRN_CU_OK) {
        free(span);
        return cairn_card_fail(result, CAIRN_ERR_IO, "no addresses for a published copy", why);
    }
    span->next = imports->spans;
    imports->spans = *span_out = span;
    return CAIRN_OK;
}

static void drop_if_empty(struct card_imports *imports, struct span *span)
{
    struct span **link = &imports->spans;
    if (span->used > 0) return;
    while (*link != span) link = &(*link)->next;
    *link = span->next;
    (void)imports->card->driver->cuMemAddressFree(span->at, (size_t)span->bytes);
    free(span);
}

/* ---- one segment ---- */

/* The driver does not say whether the descriptor is wrong or this process lacks something: a refusal is
 * CAIRN_ERR_IO, by which the shard is told to send what it publishes through the host. */
static cairn_status map(const struct card *card, uint64_t at, uint64_t bytes, int fd,
                        struct cairn_sentence *why)
{
    const struct cairn_driver *driver = card->driver;
    unsigned long long handle;
    int result = driver->cuMemImportFromShareableHandle(&handle, (void *)(uintptr_t)(unsigned)fd,
                                                        CAIRN_CU_HANDLE_POSIX);
    if (result != CAIRN_CU_OK)
        return cairn_card_fail(result, CAIRN_ERR_IO, "the driver does not import it", why);
    result = driver->cuMemMap(at, (size_t)bytes, 0, handle, 0);
    if (result == CAIRN_CU_OK) {
        result = cairn_vmm_open_to_read(driver, card->device, at, bytes);
        if (result != CAIRN_CU_OK) (void)driver->cuMemUnmap(at, (size_t)bytes);
    }
    (void)driver->cuMemRelease(handle); // the map keeps the memory
    return result == CAIRN_CU_OK
               ? CAIRN_OK
               : cairn_card_fail(result, CAIRN_ERR_IO,
                                 "the driver does not map what a shard publishes", why);
}

/* Between cairn_card_change_begin and _end. */
static cairn_status map_slot(const struct card_imports *imports, struct span *span,
                             struct slot *slot, int fd, struct cairn_sentence *why)
{
    const uint64_t at = span->at + (uint64_t)(slot - span->slots) * CAIRN_SEGMENT_BYTES;
    return map(imports->card, at, slot->bytes, fd, why);
}

static void set(struct card_imports *imports, struct span *span, struct slot *slot,
                enum slot_state state)
{
    imports->late -= slot->state == SLOT_SHOWN || slot->state == SLOT_LEFT;
    imports->late += state == SLOT_SHOWN || state == SLOT_LEFT;
    span->used -= slot->state != SLOT_FREE;
    span->used += state != SLOT_FREE;
    slot->state = state;
}

/* Uses the descriptor up if it is OK. */
static cairn_status import_segment(struct card_imports *imports, uint64_t bytes,
                                   const struct cairn_published_note *note, int fd,
                                   void **address_out, struct cairn_sentence *why)
{
    struct span *span;
    cairn_status status = find_span(imports, *note, &span, why);
    if (status != CAIRN_OK) return status;
    struct slot *slot = &span->slots[note->segment];
    slot->bytes = bytes;
    if (cairn_card_change_begin()) {
        status = map_slot(imports, span, slot, fd, why);
        cairn_card_change_end();
        if (status == CAIRN_OK) {
            set(imports, span, slot, SLOT_MAPPED);
            close(fd); // an open one keeps the memory taken
        }
    } else if (imports->late >= LATE_MAX) {
        status = cairn_fail(why, CAIRN_ERR_NO_MEMORY,
                            "more is shown than can be put off while a stream waits");
    } else {
        set(imports, span, slot, SLOT_SHOWN);
        slot->fd = fd;
    }
    if (status == CAIRN_OK)
        *address_out = (void *)(uintptr_t)(span->at + note->segment * CAIRN_SEGMENT_BYTES);
    drop_if_empty(imports, span);
    return status;
}

/* ---- what was put off ---- */

static struct slot *slot_at(const struct card_imports *imports, const void *address,
                            struct span **span_out)
{
    const uint64_t at = (uint64_t)(uintptr_t)address;
    struct span *span = imports->spans;
    while (at - span->at >= span->bytes) span = span->next; // it is in one
    *span_out = span;
    return &span->slots[(at - span->at) / CAIRN_SEGMENT_BYTES];
}

static void map_late(struct card_imports *imports, struct span *span, struct slot *slot)
{
    const cairn_status status = map_slot(imports, span, slot, slot->fd, &imports->why);
    close(slot->fd);
    set(imports, span, slot, status == CAIRN_OK ? SLOT_MAPPED : SLOT_REFUSED);
}

static void unmap(struct card_imports *imports, struct span *span, struct slot *slot)
{
    const uint64_t at = span->at + (uint64_t)(slot - span->slots) * CAIRN_SEGMENT_BYTES;
    (void)imports->card->driver->cuMemUnmap(at, (size_t)slot->bytes);
    set(imports, span, slot, SLOT_FREE);
}

void cairn_card_imports_turn(struct card_imports *imports)
{
    if (imports == NULL || imports->late == 0) return;
    if (cairn_card_enter(imports->card, NULL) != CAIRN_OK) return; // all is gone with the context
    for (struct span *span = imports->spans, *next; span != NULL; span = next) {
        next = span->next;
        for (uint32_t i = 0; i < span->note.segment_count; i++) {
            struct slot *slot = &span->slots[i];
            if (slot->state == SLOT_SHOWN) map_late(imports, span, slot);
            if (slot->state == SLOT_LEFT) unmap(imports, span, slot);
        }
        drop_if_empty(imports, span);
    }
    cairn_card_leave(imports->card);
}

bool cairn_card_imports_wait(const struct card_imports *imports)
{
    return imports != NULL && imports->late > 0;
}

enum card_import cairn_card_imports_state(const struct card_imports *imports, const void *address)
{
    struct span *span;
    const enum slot_state state = slot_at(imports, address, &span)->state;
    if (state == SLOT_MAPPED) return CARD_IMPORT_THERE;
    return state == SLOT_REFUSED ? CARD_IMPORT_REFUSED : CARD_IMPORT_LATER;
}

const char *cairn_card_imports_why(const struct card_imports *imports)
{
    return imports->why.text;
}

/* ---- the fabric's ---- */

static cairn_status import(void *context, const struct cairn_fabric_offer *offer, int fd,
                           void **address_out, struct cairn_sentence *why)
{
    struct card_imports *imports = context;
    struct cairn_published_note note;
    cairn_status status = CAIRN_ERR_REFUSED;
    cairn_sentence_set(why, "memory of a card is shown that is no published copy");
    if (offer->note_bytes == sizeof note) {
        memcpy(&note, offer->note, sizeof note);
        if (note.magic == CAIRN_PUBLISHED_MAGIC && note.side == CAIRN_PUBLISHED_DEVICE &&
            note.segment_count <= SEGMENTS_MAX && note.segment < note.segment_count &&
            offer->bytes <= CAIRN_SEGMENT_BYTES)
            status = cairn_card_enter(imports->card, why);
    }
    if (status == CAIRN_OK) {
        status = import_segment(imports, offer->bytes, &note, fd, address_out, why);
        cairn_card_leave(imports->card);
    }
    if (status != CAIRN_OK) close(fd);
    return status;
}

static void release(void *context, void *address, uint64_t bytes)
{
    struct card_imports *imports = context;
    struct span *span;
    struct slot *slot = slot_at(imports, address, &span);
    (void)bytes; // the slot's
    if (slot->state == SLOT_SHOWN) close(slot->fd);
    if (cairn_card_enter(imports->card, NULL) != CAIRN_OK) { // it is gone with the context
        if (slot->state == SLOT_SHOWN) set(imports, span, slot, SLOT_REFUSED);
        return;
    }
    if (slot->state != SLOT_MAPPED) {
        set(imports, span, slot, SLOT_FREE);
    } else if (cairn_card_change_begin()) {
        unmap(imports, span, slot);
        cairn_card_change_end();
    } else {
        set(imports, span, slot, SLOT_LEFT);
    }
    drop_if_empty(imports, span);
    cairn_card_leave(imports->card);
}

/* Copies published memory to the host for the fabric. If its segment is not mapped yet this fails,
 * and the fabric has the bytes sent again, through the host. Our shards send nothing from such
 * memory. */
static cairn_status copy(void *context, void *to_host, const void *from_device, size_t bytes)
{
    const struct card_imports *imports = context;
    struct cairn_sentence why;
    if (cairn_card_imports_state(imports, from_device) != CARD_IMPORT_THERE) return CAIRN_ERR_IO;
    return cairn_card_copy((struct card *)(uintptr_t)imports->card, to_host, from_device, bytes,
                           true, &why);
}

cairn_status cairn_card_imports_open(struct card *card, struct card_imports **imports_out)
{
    if (!card->exports)
        return cairn_client_fail(CAIRN_ERR_UNSUPPORTED,
                                 "GPU %d maps no memory of other processes (cuMemCreate with POSIX "
                                 "handles): leave cairn_opts.device out",
                                 card->number);
    struct card_imports *imports = calloc(1, sizeof *imports);
    if (imports == NULL) return cairn_client_fail(CAIRN_ERR_NO_MEMORY, "out of memory");
    imports->card = card;
    imports->table = (struct cairn_fabric_device) { .uuid_count = 1,
                                                    .is_reached = card->is_reached,
                                                    .has_dma_buf = card->has_dma_buf,
                                                    .context = imports,
                                                    .import = import,
                                                    .release = release,
                                                    .copy = copy };
    memcpy(imports->table.uuids[0], card->uuid, sizeof card->uuid);
    *imports_out = imports;
    return CAIRN_OK;
}

void cairn_card_imports_close(struct card_imports *imports)
{
    if (imports == NULL) return;
    cairn_card_imports_turn(imports); // no operation is left that a stream could wait for
    while (imports->spans != NULL) {  // those of a context that is gone
        struct span *span = imports->spans;
        imports->spans = span->next;
        free(span);
    }
    free(imports);
}

const struct cairn_fabric_device *cairn_card_imports_table(const struct card_imports *imports)
{
    return imports != NULL ? &imports->table : NULL;
}
