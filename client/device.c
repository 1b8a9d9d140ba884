#include "client/device.h"

#include <cairn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "client/base.h"
#include "gpu/cuda/driver.h"
#include "proto/base/machine.h"
#include "proto/base/mutant.h"
#include "proto/geometry/layout.h"

/* ==== card ==== */

#define CARDS_MAX 64

static struct {
    pthread_mutex_t lock; /* guards what follows */
    bool is_open;
    struct driver driver; /* constant while is_open is true */
    struct card *cards[CARDS_MAX];
} gpus = { .lock = PTHREAD_MUTEX_INITIALIZER };

static void card_make_words(struct card *card);

/* Returns CAIRN_ERR_NO_MEMORY if the driver ran out of memory, otherwise `status`. */
static cairn_status card_fail(int result, cairn_status status, const char *doing,
                              struct sentence *why)
{
    char text[CAIRN_DRIVER_TEXT_BYTES];
    return fail_with(why, result == CAIRN_CU_OUT_OF_MEMORY ? CAIRN_ERR_NO_MEMORY : status, "%s: %s",
                     doing, driver_explain(&gpus.driver, result, text));
}

/* ---- the context ---- */

/* For each thread. depth: the depth of its library calls. mode_outside: its capture mode outside of
 * these calls. */
static __thread int depth, mode_outside;

/* Relaxes the thread's capture mode. The library's calls then do not become part of a graph that the
 * caller captures, and do not end a capture by another thread. */
static int relax(const struct driver *driver)
{
    int mode = CAIRN_CU_CAPTURE_RELAXED;
    if (depth > 0) return depth++, CAIRN_CU_OK;
    const int result = driver->cuThreadExchangeStreamCaptureMode(&mode);
    if (result != CAIRN_CU_OK) return result;
    mode_outside = mode;
    depth++;
    return CAIRN_CU_OK;
}

static void unrelax(const struct driver *driver)
{
    if (--depth == 0) (void)driver->cuThreadExchangeStreamCaptureMode(&mode_outside);
}

/* Makes the card's context the thread's current one, and sets the capture mode so that the thread's
 * calls disturb no graph capture. card_leave restores the former state. */
static cairn_status card_enter(const struct card *card, struct sentence *why)
{
    int result = relax(card->driver);
    if (result == CAIRN_CU_OK) {
        result = card->driver->cuCtxPushCurrent(card->context);
        if (result != CAIRN_CU_OK) unrelax(card->driver);
    }
    return result == CAIRN_CU_OK
               ? CAIRN_OK
               : card_fail(result, CAIRN_ERR_IO, "its context is not available", why);
}

static void card_leave(const struct card *card)
{
    struct CUctx_st *own;
    (void)card->driver->cuCtxPopCurrent(&own);
    unrelax(card->driver);
}

/* ---- opening ---- */

/* Opens the side stream with the greatest priority. Streams of this priority have hardware queues that
 * the caller's streams do not share. In a shared queue, a copy could be stuck behind the wait that this
 * copy has to end. */
static int open_side(struct card *card)
{
    int least, greatest;
    const int result = card->driver->cuCtxGetStreamPriorityRange(&least, &greatest);
    if (result != CAIRN_CU_OK) return result;
    return card->driver->cuStreamCreateWithPriority(&card->side, CAIRN_CU_STREAM_NON_BLOCKING,
                                                    greatest);
}

static cairn_status open_context(struct card *card, struct sentence *why)
{
    const struct driver *driver = card->driver;
    struct cu_uuid uuid;
    int has_memory = 0, has_handles = 0;
    size_t granularity = 0;
    int result = driver->cuDeviceGet(&card->device, card->number);
    if (result == CAIRN_CU_OK) result = driver->cuDeviceGetUuid(&uuid, card->device);
    if (result == CAIRN_CU_OK)
        result = driver->cuDeviceGetAttribute(&has_memory, CAIRN_CU_HAS_VIRTUAL_MEMORY,
                                              card->device);
    if (result == CAIRN_CU_OK)
        result = driver->cuDeviceGetAttribute(&has_handles, CAIRN_CU_HAS_POSIX_HANDLES,
                                              card->device);
    if (result != CAIRN_CU_OK)
        return card_fail(result, CAIRN_ERR_IO, "the driver does not describe it", why);
    memcpy(card->uuid, uuid.bytes, sizeof card->uuid);
    card->numa_node = driver_numa_node(driver, card->device);
    card->exports = has_memory != 0 && has_handles != 0;
    card->is_reached = vmm_is_reached(driver, card->device);
    card->has_dma_buf = vmm_has_dma_buf(driver, card->device);
    card->order = vmm_order(driver, card->device);
    result = driver->cuDevicePrimaryCtxRetain(&card->context, card->device);
    if (result != CAIRN_CU_OK)
        return card_fail(result, CAIRN_ERR_IO, "its context does not open", why);
    const struct cu_allocation how = vmm_allocation(card->device, true, card->is_reached);
    CAIRN_TRY(card_enter(card, why));
    if (card->exports)
        result = driver->cuMemGetAllocationGranularity(&granularity, &how,
                                                       CAIRN_CU_GRANULARITY_MINIMUM);
    if (result == CAIRN_CU_OK) result = open_side(card);
    pthread_mutex_init(&card->copies_lock, NULL);
    if (result == CAIRN_CU_OK)
        result = driver->cuEventCreate(&card->copied, CAIRN_CU_EVENT_BLOCKING_SYNC |
                                                          CAIRN_CU_EVENT_DISABLE_TIMING);
    card_leave(card);
    card->granularity = granularity;
    return result == CAIRN_CU_OK ? CAIRN_OK
                                 : card_fail(result, CAIRN_ERR_IO, "no stream of it", why);
}

/* Under the lock. */
static cairn_status open_driver(void)
{
    struct sentence why;
    if (gpus.is_open) return CAIRN_OK;
    const cairn_status status = driver_open(&gpus.driver, &why);
    if (status != CAIRN_OK)
        return client_fail(CAIRN_ERR_UNSUPPORTED, "no GPU can be used: %s; give host memory",
                           why.text);
    gpus.is_open = true;
    return CAIRN_OK;
}

static cairn_status open_card(int number, struct card **card_out)
{
    int count = 0;
    struct sentence why;
    if (gpus.driver.cuDeviceGetCount(&count) != CAIRN_CU_OK) count = 0;
    if (number < 0 || number >= count || number >= CARDS_MAX)
        return client_fail(CAIRN_ERR_INVALID,
                           "there is no GPU %d: this process sees %d, and they count from 0 "
                           "(nvidia-smi -L, and the environment's CUDA_VISIBLE_DEVICES)",
                           number, count);
    struct card *card = calloc(1, sizeof *card);
    if (card == NULL) return client_fail(CAIRN_ERR_NO_MEMORY, "out of memory");
    card->driver = &gpus.driver;
    card->number = number;
    cairn_status status = CAIRN_ERR_IO;
    const int result = relax(&gpus.driver);
    if (result == CAIRN_CU_OK) {
        status = open_context(card, &why);
        unrelax(&gpus.driver);
    } else
        card_fail(result, status, "the driver refuses to start on it", &why);
    if (status == CAIRN_OK) {
        card_make_words(card);
        *card_out = card;
        return CAIRN_OK;
    }
    if (card->context != NULL) (void)gpus.driver.cuDevicePrimaryCtxRelease(card->device);
    free(card);
    return client_fail(status, "GPU %d: %s", number, why.text);
}

cairn_status card_get(int number, struct card **card_out)
{
    pthread_mutex_lock(&gpus.lock);
    cairn_status status = open_driver();
    struct card *card = number >= 0 && number < CARDS_MAX ? gpus.cards[number] : NULL;
    if (status == CAIRN_OK && card == NULL) status = open_card(number, &card);
    if (status == CAIRN_OK) gpus.cards[number] = card;
    pthread_mutex_unlock(&gpus.lock);
    if (status == CAIRN_OK) *card_out = card;
    return status;
}

cairn_status card_of_device(int device, const char *what, struct card **card_out)
{
    *card_out = NULL;
    if (device == 0) return CAIRN_OK;
    if (device >= CAIRN_GPU(0)) return card_get(device - CAIRN_GPU(0), card_out);
    return client_fail(CAIRN_ERR_INVALID, "%s is %d; allowed: 0 = the host, CAIRN_GPU(n) = GPU n",
                       what, device);
}

cairn_status card_of_thread(struct card *other, struct card **card_out)
{
    const cairn_status status = WITH_LOCK(&gpus.lock, open_driver());
    int device = 0;
    if (status != CAIRN_OK) return status;
    if (gpus.driver.cuCtxGetDevice(&device) == CAIRN_CU_OK) return card_get(device, card_out);
    if (other == NULL) return card_get(0, card_out);
    *card_out = other;
    return CAIRN_OK;
}

int card_number(const struct card *card)
{
    return card->number;
}

const uint8_t *card_uuid(const struct card *card)
{
    return card->uuid;
}

/* ==== import ==== */

/* The most segments that one copy on a card has. */
#define SEGMENTS_MAX 4092
#define LATE_MAX     256 /* segments to be mapped or unmapped later; each may hold a descriptor */

/* FREE ─► SHOWN ─► MAPPED ─► LEFT ─► FREE: while a stream waits, SHOWN and LEFT stay until the next
 * turn. */
enum slot_state { SLOT_FREE, SLOT_SHOWN, SLOT_MAPPED, SLOT_LEFT, SLOT_REFUSED };

/* The place of one segment, mapped or not. */
struct slot {
    enum slot_state state;
    int fd;         /* owned, in SLOT_SHOWN */
    uint64_t bytes; /* the size of the shown memory */
};

/* The address range for the segments of a copy. */
struct span {
    struct span *next;
    struct published_note note; /* the copy's note, with segment 0 */
    uint64_t at, bytes;
    uint32_t used;       /* slots that are not SLOT_FREE */
    struct slot slots[]; /* [note.segment_count] */
};

struct card_imports {
    struct fabric_device table;
    const struct card *card;
    struct span *spans;
    uint32_t late;       /* slots in SLOT_SHOWN and SLOT_LEFT */
    struct sentence why; /* why the last slot in SLOT_REFUSED was refused */
};

/* ---- addresses ---- */

static cairn_status find_span(struct card_imports *imports, struct published_note note,
                              struct span **span_out, struct sentence *why)
{
    struct span *span = imports->spans;
    const uint32_t segment = note.segment;
    note.segment = 0;
    // A shard that was lost shows its copy again, perhaps while someone still reads the former mapping.
    while (span != NULL && (memcmp(&span->note, &note, sizeof note) != 0 ||
                            span->slots[segment].state != SLOT_FREE))
        span = span->next;
    *span_out = span;
    if (span != NULL) return CAIRN_OK;
    span = calloc(1, sizeof *span + note.segment_count * sizeof *span->slots);
    if (span == NULL) return fail_with(why, CAIRN_ERR_NO_MEMORY, "out of memory");
    span->note = note;
    span->bytes = note.segment_count * CAIRN_SEGMENT_BYTES;
    const int result = imports->card->driver->cuMemAddressReserve(&span->at, (size_t)span->bytes, 0,
                                                                  0, 0);
    if (result != CAIRN_CU_OK) {
        free(span);
        return card_fail(result, CAIRN_ERR_IO, "no addresses for a published copy", why);
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

/* The driver does not report whether the descriptor is wrong or this process lacks a resource. So a
 * refusal is CAIRN_ERR_IO, and the shard is told to send its published data through the host. */
static cairn_status map_import(const struct card *card, uint64_t at, uint64_t bytes, int fd,
                               struct sentence *why)
{
    const struct driver *driver = card->driver;
    unsigned long long handle;
    int result = driver->cuMemImportFromShareableHandle(&handle, (void *)(uintptr_t)(unsigned)fd,
                                                        CAIRN_CU_HANDLE_POSIX);
    if (result != CAIRN_CU_OK)
        return card_fail(result, CAIRN_ERR_IO, "the driver does not import it", why);
    result = driver->cuMemMap(at, (size_t)bytes, 0, handle, 0);
    if (result == CAIRN_CU_OK) {
        result = vmm_open_to_read(driver, card->device, at, bytes);
        if (result != CAIRN_CU_OK) (void)driver->cuMemUnmap(at, (size_t)bytes);
    }
    (void)driver->cuMemRelease(handle); // the mapping keeps the memory
    return result == CAIRN_CU_OK ? CAIRN_OK
                                 : card_fail(result, CAIRN_ERR_IO,
                                             "the driver does not map what a shard publishes", why);
}

/* Called between card_change_begin and _end. */
static cairn_status map_slot(const struct card_imports *imports, struct span *span,
                             struct slot *slot, int fd, struct sentence *why)
{
    const uint64_t at = span->at + (uint64_t)(slot - span->slots) * CAIRN_SEGMENT_BYTES;
    return map_import(imports->card, at, slot->bytes, fd, why);
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

/* Takes over the descriptor on success. */
static cairn_status import_segment(struct card_imports *imports, uint64_t bytes,
                                   const struct published_note *note, int fd, void **address_out,
                                   struct sentence *why)
{
    struct span *span;
    cairn_status status = find_span(imports, *note, &span, why);
    if (status != CAIRN_OK) return status;
    struct slot *slot = &span->slots[note->segment];
    slot->bytes = bytes;
    if (card_change_begin()) {
        status = map_slot(imports, span, slot, fd, why);
        card_change_end();
        if (status == CAIRN_OK) {
            set(imports, span, slot, SLOT_MAPPED);
            close(fd); // an open descriptor keeps the memory allocated
        }
    } else if (imports->late >= LATE_MAX) {
        status = fail_with(why, CAIRN_ERR_NO_MEMORY,
                           "too many segments are put off while a stream waits");
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
    while (at - span->at >= span->bytes) span = span->next; // one of the spans contains the address
    *span_out = span;
    return &span->slots[(at - span->at) / CAIRN_SEGMENT_BYTES];
}

static void map_late(struct card_imports *imports, struct span *span, struct slot *slot)
{
    const cairn_status status = map_slot(imports, span, slot, slot->fd, &imports->why);
    close(slot->fd);
    set(imports, span, slot, status == CAIRN_OK ? SLOT_MAPPED : SLOT_REFUSED);
}

static void unmap_import(struct card_imports *imports, struct span *span, struct slot *slot)
{
    const uint64_t at = span->at + (uint64_t)(slot - span->slots) * CAIRN_SEGMENT_BYTES;
    (void)imports->card->driver->cuMemUnmap(at, (size_t)slot->bytes);
    set(imports, span, slot, SLOT_FREE);
}

void card_imports_turn(struct card_imports *imports)
{
    if (imports == NULL || imports->late == 0) return;
    // the mappings are gone with the context
    if (card_enter(imports->card, NULL) != CAIRN_OK) return;
    for (struct span *span = imports->spans, *next; span != NULL; span = next) {
        next = span->next;
        for (uint32_t i = 0; i < span->note.segment_count; i++) {
            struct slot *slot = &span->slots[i];
            if (slot->state == SLOT_SHOWN) map_late(imports, span, slot);
            if (slot->state == SLOT_LEFT) unmap_import(imports, span, slot);
        }
        drop_if_empty(imports, span);
    }
    card_leave(imports->card);
}

bool card_imports_wait(const struct card_imports *imports)
{
    return imports != NULL && imports->late > 0;
}

enum card_import card_imports_state(const struct card_imports *imports, const void *address)
{
    struct span *span;
    const enum slot_state state = slot_at(imports, address, &span)->state;
    if (state == SLOT_MAPPED) return CARD_IMPORT_THERE;
    return state == SLOT_REFUSED ? CARD_IMPORT_REFUSED : CARD_IMPORT_LATER;
}

const char *card_imports_why(const struct card_imports *imports)
{
    return imports->why.text;
}

/* ---- the fabric's ---- */

static cairn_status import(void *context, const struct fabric_offer *offer, int fd,
                           void **address_out, struct sentence *why)
{
    struct card_imports *imports = context;
    struct published_note note;
    cairn_status status = CAIRN_ERR_REFUSED;
    sentence_set(why, "the card memory that is shown is not a published copy");
    if (offer->note_bytes == sizeof note) {
        memcpy(&note, offer->note, sizeof note);
        if (note.magic == CAIRN_PUBLISHED_MAGIC && note.side == CAIRN_PUBLISHED_DEVICE &&
            note.segment_count <= SEGMENTS_MAX && note.segment < note.segment_count &&
            offer->bytes <= CAIRN_SEGMENT_BYTES)
            status = card_enter(imports->card, why);
    }
    if (status == CAIRN_OK) {
        status = import_segment(imports, offer->bytes, &note, fd, address_out, why);
        card_leave(imports->card);
    }
    if (status != CAIRN_OK) close(fd);
    return status;
}

static void release_import(void *context, void *address, uint64_t bytes)
{
    struct card_imports *imports = context;
    struct span *span;
    struct slot *slot = slot_at(imports, address, &span);
    (void)bytes; // the slot has the size
    if (slot->state == SLOT_SHOWN) close(slot->fd);
    // the slot's mapping is gone with the context
    if (card_enter(imports->card, NULL) != CAIRN_OK) {
        if (slot->state == SLOT_SHOWN) set(imports, span, slot, SLOT_REFUSED);
        return;
    }
    if (slot->state != SLOT_MAPPED) {
        set(imports, span, slot, SLOT_FREE);
    } else if (card_change_begin()) {
        unmap_import(imports, span, slot);
        card_change_end();
    } else {
        set(imports, span, slot, SLOT_LEFT);
    }
    drop_if_empty(imports, span);
    card_leave(imports->card);
}

/* Copies published memory to the host for the fabric. If the memory's segment is not mapped yet,
 * this fails, and the fabric then requests the bytes again, through the host. Cairn's shards never
 * send from such memory. */
static cairn_status copy_to_host(void *context, void *to_host, const void *from_device,
                                 size_t bytes)
{
    const struct card_imports *imports = context;
    struct sentence why;
    if (card_imports_state(imports, from_device) != CARD_IMPORT_THERE) return CAIRN_ERR_IO;
    return card_copy((struct card *)(uintptr_t)imports->card, to_host, from_device, bytes,
                     CARD_TO_HOST, &why);
}

cairn_status card_imports_open(struct card *card, struct card_imports **imports_out)
{
    if (!card->exports)
        return client_fail(CAIRN_ERR_UNSUPPORTED,
                           "GPU %d maps no memory of other processes (cuMemCreate with POSIX "
                           "handles): leave cairn_opts.device out",
                           card->number);
    struct card_imports *imports = calloc(1, sizeof *imports);
    if (imports == NULL) return client_fail(CAIRN_ERR_NO_MEMORY, "out of memory");
    imports->card = card;
    imports->table = (struct fabric_device) { .uuid_count = 1,
                                              .is_reached = card->is_reached,
                                              .has_dma_buf = card->has_dma_buf,
                                              .context = imports,
                                              .import = import,
                                              .release = release_import,
                                              .copy = copy_to_host };
    memcpy(imports->table.uuids[0], card->uuid, sizeof card->uuid);
    *imports_out = imports;
    return CAIRN_OK;
}

void card_imports_close(struct card_imports *imports)
{
    if (imports == NULL) return;
    card_imports_turn(imports);      // no operation that a stream could wait for remains
    while (imports->spans != NULL) { // spans of a context that is gone
        struct span *span = imports->spans;
        imports->spans = span->next;
        free(span);
    }
    free(imports);
}

const struct fabric_device *card_imports_table(const struct card_imports *imports)
{
    return imports != NULL ? &imports->table : NULL;
}

/* ==== memory ==== */

/* Memory of a card that shards may import, and copies of a card's memory. */

static int map_memory(struct card_memory *memory, int device)
{
    const struct driver *driver = memory->card->driver;
    const struct cu_access access = {
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

static void unmap_memory(const struct card_memory *memory)
{
    (void)memory->card->driver->cuMemUnmap(memory->at, memory->bytes);
    (void)memory->card->driver->cuMemAddressFree(memory->at, memory->bytes);
}

static int create_memory(struct card_memory *memory)
{
    const struct driver *driver = memory->card->driver;
    const struct cu_allocation how = vmm_allocation(memory->card->device, true,
                                                    memory->card->is_reached);
    int result = driver->cuMemCreate(&memory->handle, memory->bytes, &how, 0);
    if (result != CAIRN_CU_OK) return result;
    result = map_memory(memory, memory->card->device);
    if (result == CAIRN_CU_OK) {
        struct CUstream_st *side = memory->card->side;
        result = driver->cuMemsetD8Async(memory->at, 0, memory->bytes, side);
        if (result == CAIRN_CU_OK) result = driver->cuStreamSynchronize(side);
        if (result == CAIRN_CU_OK) return result;
        unmap_memory(memory);
    }
    (void)driver->cuMemRelease(memory->handle);
    return result;
}

cairn_status card_memory_open(struct card *card, size_t bytes, struct card_memory *memory_out)
{
    struct card_memory memory = { .card = card };
    struct sentence why;
    if (!card->exports)
        return client_fail(
            CAIRN_ERR_UNSUPPORTED,
            "GPU %d has no memory that other processes may map (cuMemCreate with POSIX handles): "
            "give memory of torch or cudaMalloc, which is copied on its way",
            card->number);
    cairn_status status = CAIRN_ERR_NO_MEMORY;
    if (bytes > SIZE_MAX - card->granularity)
        return client_fail(status, "%zu bytes are more than GPU %d has", bytes, card->number);
    memory.bytes = (bytes + card->granularity - 1) / card->granularity * card->granularity;
    status = card_enter(card, &why);
    if (status == CAIRN_OK) {
        const int result = create_memory(&memory);
        card_leave(card);
        if (result != CAIRN_CU_OK) status = card_fail(result, CAIRN_ERR_IO, "out of memory", &why);
    }
    if (status != CAIRN_OK)
        return client_fail(status, "%zu bytes of GPU %d: %s", bytes, card->number, why.text);
    *memory_out = memory;
    return CAIRN_OK;
}

int card_memory_export(const struct card_memory *memory)
{
    int fd = -1;
    if (card_enter(memory->card, NULL) != CAIRN_OK) return -1;
    if (memory->card->driver->cuMemExportToShareableHandle(&fd, memory->handle,
                                                           CAIRN_CU_HANDLE_POSIX, 0) != CAIRN_CU_OK)
        fd = -1;
    card_leave(memory->card);
    return fd;
}

/* Inside the context. If the context has failed, nothing is freed: the memory is lost with the context,
 * and may be in use until then. */
static bool has_failed(const struct card *card)
{
    size_t free_now, total;
    return card->driver->cuMemGetInfo(&free_now, &total) != CAIRN_CU_OK;
}

void card_memory_close(struct card_memory *memory)
{
    if (memory->card == NULL) return;
    if (card_enter(memory->card, NULL) == CAIRN_OK) {
        if (!has_failed(memory->card)) {
            unmap_memory(memory);
            (void)memory->card->driver->cuMemRelease(memory->handle);
        }
        card_leave(memory->card);
    }
    memory->card = NULL;
}

static bool is_of(const struct card *card, uint64_t at)
{
    unsigned type = 0;
    int device = -1;
    const struct driver *driver = card->driver;
    return driver->cuPointerGetAttribute(&type, CAIRN_CU_POINTER_MEMORY_TYPE, at) == CAIRN_CU_OK &&
           type == CAIRN_CU_MEMORY_DEVICE &&
           driver->cuPointerGetAttribute(&device, CAIRN_CU_POINTER_DEVICE, at) == CAIRN_CU_OK &&
           device == card->number;
}

cairn_status card_judge(struct card *card, const void *ptr, size_t bytes)
{
    const uint64_t at = (uint64_t)(uintptr_t)ptr;
    struct sentence why;
    if (bytes == 0) return CAIRN_OK;
    const cairn_status status = card_enter(card, &why);
    if (status != CAIRN_OK) return client_fail(status, "GPU %d: %s", card->number, why.text);
    const bool begins = is_of(card, at);
    const bool ends = begins && bytes <= UINT64_MAX - at && is_of(card, at + bytes - 1);
    card_leave(card);
    if (begins && ends) return CAIRN_OK;
    return client_fail(CAIRN_ERR_INVALID,
                       begins ? "mem.ptr %p is memory of GPU %d, but not %zu bytes of it"
                              : "mem.ptr %p is not memory of GPU %d, though mem.device says so (0: "
                                "host memory); %zu bytes of it are needed",
                       ptr, card->number, bytes);
}

static int begin_copy(const struct card *card, void *to, const void *from, size_t bytes,
                      enum card_direction direction)
{
    const struct driver *driver = card->driver;
    const uint64_t target = (uint64_t)(uintptr_t)to, source = (uint64_t)(uintptr_t)from;
    if (direction == CARD_TO_HOST) return driver->cuMemcpyDtoHAsync(to, source, bytes, card->side);
    if (direction == CARD_FROM_HOST)
        return driver->cuMemcpyHtoDAsync(target, from, bytes, card->side);
    return driver->cuMemcpyDtoDAsync(target, source, bytes, card->side);
}

static int begin_numbered(struct card *card, void *to, const void *from, size_t bytes,
                          enum card_direction direction, uint64_t *copy_out)
{
    HOLD_LOCK(&card->copies_lock);
    int result = begin_copy(card, to, from, bytes, direction);
    if (result == CAIRN_CU_OK) {
        result = card->driver->cuEventRecord(card->copied, card->side);
        if (result == CAIRN_CU_OK)
            *copy_out = ++card->copies_begun;
        else // nobody could wait for this copy later
            (void)card->driver->cuStreamSynchronize(card->side);
    }
    return result;
}

cairn_status card_copy_begin(struct card *card, void *to, const void *from, size_t bytes,
                             enum card_direction direction, uint64_t *copy_out,
                             struct sentence *why)
{
    *copy_out = 0;
    if (bytes == 0) return CAIRN_OK;
    CAIRN_TRY(card_enter(card, why));
    const int result = begin_numbered(card, to, from, bytes, direction, copy_out);
    card_leave(card);
    return result == CAIRN_CU_OK
               ? CAIRN_OK
               : card_fail(result, CAIRN_ERR_IO,
                           direction == CARD_FROM_HOST ? "a copy to it" : "a copy from it", why);
}

/* The event may be recorded again meanwhile; the wait then also covers later copies. */
cairn_status card_copy_wait(struct card *card, uint64_t copy, struct sentence *why)
{
    pthread_mutex_lock(&card->copies_lock);
    const uint64_t begun = card->copies_begun;
    const bool is_done = copy <= card->copies_done;
    pthread_mutex_unlock(&card->copies_lock);
    if (is_done) return CAIRN_OK;
    CAIRN_TRY(card_enter(card, why));
    const int result = card->driver->cuEventSynchronize(card->copied);
    card_leave(card);
    if (result != CAIRN_CU_OK) return card_fail(result, CAIRN_ERR_IO, "a copy from or to it", why);
    pthread_mutex_lock(&card->copies_lock);
    if (card->copies_done < begun) card->copies_done = begun;
    pthread_mutex_unlock(&card->copies_lock);
    return CAIRN_OK;
}

cairn_status card_copy(struct card *card, void *to, const void *from, size_t bytes,
                       enum card_direction direction, struct sentence *why)
{
    uint64_t copy;
    const cairn_status status = card_copy_begin(card, to, from, bytes, direction, &copy, why);
    return status == CAIRN_OK ? card_copy_wait(card, copy, why) : status;
}

bool card_lands(const struct card *card)
{
    return card->is_reached && card->order != CAIRN_VMM_NEVER;
}

cairn_status card_landed(const struct card *card, struct sentence *why)
{
    if (card->order == CAIRN_VMM_ORDERED) return CAIRN_OK;
    CAIRN_TRY(card_enter(card, why));
    const int result = card->driver->cuFlushGPUDirectRDMAWrites(CAIRN_CU_FLUSH_CONTEXT,
                                                                CAIRN_CU_FLUSH_TO_OWNER);
    card_leave(card);
    return result == CAIRN_CU_OK
               ? CAIRN_OK
               : card_fail(result, CAIRN_ERR_IO, "what the network card wrote there", why);
}

bool card_pin(struct card *card, void *host, size_t bytes)
{
    if (card_enter(card, NULL) != CAIRN_OK) return false;
    numa_move(host, bytes, card->numa_node);
    const int result = card->driver->cuMemHostRegister(host, bytes,
                                                       CAIRN_CU_HOST_REGISTER_PORTABLE);
    card_leave(card);
    return result == CAIRN_CU_OK;
}

void card_unpin(struct card *card, void *host)
{
    if (card_enter(card, NULL) != CAIRN_OK) return;
    if (!has_failed(card)) (void)card->driver->cuMemHostUnregister(host);
    card_leave(card);
}

/* ==== stream ==== */

/* Events, which mark the work queued on a caller's stream, and words, which a stream waits for. */

#define WORDS_BYTES 4096 /* the bytes that are pinned at a time */

struct card_event {
    const struct card *card;
    struct CUevent_st *event;
};

static cairn_status refuse_stream(const struct card *card, int result, const void *stream)
{
    struct sentence why;
    card_fail(result, CAIRN_ERR_INVALID, "", &why);
    return client_fail(CAIRN_ERR_INVALID,
                       "stream %p does not belong to GPU %d's primary context (the CUDA "
                       "runtime's), or was destroyed, or its context is gone%s",
                       stream, card->number, why.text);
}

/* Inside the context. Refuses a stream that is being captured into a graph. The graph would run
 * later, with another round's gradient or with none, so the calls that it captures must neither
 * push nor wait. */
static cairn_status judge_stream(const struct card *card, void *stream)
{
    int capture = CAIRN_CU_CAPTURES_NOTHING;
    const int result = card->driver->cuStreamIsCapturing(stream, &capture);
    if (result == CAIRN_CU_OK && capture == CAIRN_CU_CAPTURES_NOTHING) return CAIRN_OK;
    if (result != CAIRN_CU_OK && result != CAIRN_CU_CAPTURE_IMPLICIT)
        return refuse_stream(card, result, stream);
    return client_fail(CAIRN_ERR_INVALID,
                       "stream %p of GPU %d is being captured into a CUDA graph%s: call this "
                       "outside of the capture",
                       stream, card->number,
                       result == CAIRN_CU_OK ? "" : " (through another one, which it waits for)");
}

static int record(const struct card *card, void *stream, struct CUevent_st **event_out)
{
    int result = card->driver->cuEventCreate(event_out, CAIRN_CU_EVENT_BLOCKING_SYNC |
                                                            CAIRN_CU_EVENT_DISABLE_TIMING);
    if (result != CAIRN_CU_OK) return result;
    result = card->driver->cuEventRecord(*event_out, stream);
    if (result != CAIRN_CU_OK) (void)card->driver->cuEventDestroy(*event_out);
    return result;
}

cairn_status card_mark(struct card *card, void *stream, struct card_event **event_out)
{
    struct sentence why;
    struct card_event *event = calloc(1, sizeof *event);
    if (event == NULL) return client_fail(CAIRN_ERR_NO_MEMORY, "out of memory");
    event->card = card;
    cairn_status status = card_enter(card, &why);
    if (status != CAIRN_OK) {
        free(event);
        return client_fail(status, "GPU %d: %s", card->number, why.text);
    }
    status = judge_stream(card, stream);
    if (status == CAIRN_OK) {
        const int result = record(card, stream, &event->event);
        if (result != CAIRN_CU_OK) status = refuse_stream(card, result, stream);
    }
    card_leave(card);
    if (status == CAIRN_OK)
        *event_out = event;
    else
        free(event);
    return status;
}

enum card_state card_event_state(const struct card_event *event, struct sentence *why)
{
    if (card_enter(event->card, why) != CAIRN_OK) return CARD_FAILED;
    const int result = event->card->driver->cuEventQuery(event->event);
    card_leave(event->card);
    if (result == CAIRN_CU_OK) return CARD_DONE;
    // An error about a capture of the stream does not show whether the work queued before is done.
    if (result == CAIRN_CU_NOT_READY ||
        (result >= CAIRN_CU_CAPTURE_UNSUPPORTED && result <= CAIRN_CU_CAPTURE_WRONG_THREAD))
        return CARD_WAITS;
    (void)card_fail(result, CAIRN_ERR_IO, "what was queued on its stream failed", why);
    return CARD_FAILED;
}

cairn_status card_event_wait(const struct card_event *event)
{
    struct sentence why;
    cairn_status status = card_enter(event->card, &why);
    if (status == CAIRN_OK) {
        const int result = event->card->driver->cuEventSynchronize(event->event);
        card_leave(event->card);
        if (result == CAIRN_CU_OK) return CAIRN_OK;
        status = card_fail(result, CAIRN_ERR_IO, "what was queued on its stream failed", &why);
    }
    return client_fail(status, "GPU %d: %s", event->card->number, why.text);
}

void card_event_free(struct card_event *event)
{
    if (event == NULL) return;
    if (card_enter(event->card, NULL) == CAIRN_OK) {
        (void)event->card->driver->cuEventDestroy(event->event);
        card_leave(event->card);
    }
    free(event);
}

/* ---- words ---- */

/* Guards the lists of all cards. No driver call is made while this lock is held, since releasing a
 * stream must not wait for a driver call. */
static pthread_mutex_t words_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t words_changed = PTHREAD_COND_INITIALIZER;
static uint32_t words_taken; /* words that are not set yet */
static uint32_t changes;     /* changes of mappings in progress */

bool card_change_begin(void)
{
    HOLD_LOCK(&words_lock);
    const bool may = words_taken == 0 || DEVICE_MUTANT(1);
    changes += may;
    return may;
}

void card_change_end(void)
{
    HOLD_LOCK(&words_lock);
    if (--changes == 0) pthread_cond_broadcast(&words_changed);
}

/* Inside the context. If the page cannot be pinned, memory that the driver allocates replaces it. */
static int pin_page(const struct card *card, void **page, uint64_t *at_out)
{
    const struct driver *driver = card->driver;
    numa_move(*page, WORDS_BYTES, card->numa_node);
    int result = driver->cuMemHostRegister(
        *page, WORDS_BYTES, CAIRN_CU_HOST_REGISTER_PORTABLE | CAIRN_CU_HOST_REGISTER_DEVICEMAP);
    if (result != CAIRN_CU_OK) {
        munmap(*page, WORDS_BYTES);
        result = driver->cuMemAllocHost(page, WORDS_BYTES);
    }
    return result == CAIRN_CU_OK ? driver->cuMemHostGetDevicePointer(at_out, *page, 0) : result;
}

static void add_words(struct card *card, uint32_t *values, uint64_t at)
{
    for (size_t i = 0; i < WORDS_BYTES / sizeof *values; i++) {
        struct card_word *word = calloc(1, sizeof *word);
        if (word == NULL) break;
        values[i] = 0;
        *word =
            (struct card_word) { .card = card, .value = &values[i], .at = at + i * sizeof *values };
        pthread_mutex_lock(&words_lock);
        word->next = card->words;
        card->words = word;
        pthread_mutex_unlock(&words_lock);
    }
}

/* Creates words ahead of time, so that the first wait needs no driver call. If memory or pinning
 * fails, a wait tries again. */
static void card_make_words(struct card *card)
{
    uint64_t at;
    // Never unmapped: a stream may reach its wait after everything else is closed, and the value
    // written there outlives the card's context.
    void *page = mmap(NULL, WORDS_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1,
                      0);
    if (page == MAP_FAILED) return;
    if (card_enter(card, NULL) != CAIRN_OK) {
        munmap(page, WORDS_BYTES);
        return;
    }
    const int result = pin_page(card, &page, &at);
    card_leave(card);
    if (result == CAIRN_CU_OK) add_words(card, page, at);
}

static struct card_word *take_free(struct card *card)
{
    HOLD_LOCK(&words_lock);
    while (changes > 0 && !DEVICE_MUTANT(2)) pthread_cond_wait(&words_changed, &words_lock);
    struct card_word *word = card->words;
    if (word != NULL) card->words = word->next;
    words_taken += word != NULL;
    return word;
}

cairn_status card_word_acquire(struct card *card, struct card_word **word_out,
                               struct card_wait *wait_out)
{
    struct card_word *word = take_free(card);
    if (word == NULL) {
        card_make_words(card);
        word = take_free(card);
    }
    if (word == NULL)
        return client_fail(CAIRN_ERR_NO_MEMORY, "no pinned memory for a stream's wait");
    word->target++;
    *word_out = word;
    *wait_out = (struct card_wait) { word->at, word->target };
    return CAIRN_OK;
}

/* Any later value also releases a stream that waits for an earlier target: the comparison is cyclic. */
void card_word_set(struct card_word *word)
{
    struct card *card = word->card;
    atomic_store_explicit((_Atomic uint32_t *)word->value, word->target, memory_order_release);
    HOLD_LOCK(&words_lock);
    word->next = card->words;
    card->words = word;
    words_taken -= !DEVICE_MUTANT(3);
}

cairn_status card_stream_await_word(struct card *card, void *stream, const struct card_wait *wait)
{
    struct sentence why;
    cairn_status status = card_enter(card, &why);
    if (status != CAIRN_OK) return client_fail(status, "GPU %d: %s", card->number, why.text);
    status = judge_stream(card, stream);
    if (status == CAIRN_OK) {
        const int result = card->driver->cuStreamWaitValue32(stream, wait->at, wait->value,
                                                             CAIRN_CU_STREAM_WAIT_GEQ);
        if (result == CAIRN_CU_NOT_SUPPORTED)
            status = client_fail(CAIRN_ERR_UNSUPPORTED,
                                 "the driver has no stream memory operations: use "
                                 "cairn_wait");
        else if (result != CAIRN_CU_OK)
            status = refuse_stream(card, result, stream);
    }
    card_leave(card);
    return status;
}
