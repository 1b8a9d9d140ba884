/* Memory of cairn_alloc: its regions and loans, and the calls that allocate and free it. */
#include "client/session.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include "client/base.h"
#include "client/device.h"
#include "client/job.h"
#include "proto/base/machine.h"

/* The bytes of one allocation by the kernel. The size is bounded because an allocation that a
 * signal interrupts frees the bytes that it allocated. */
#define TAKE_BYTES ((size_t)32 << 20)

struct region {
    uint8_t *base; /* for a card: not to be dereferenced */
    size_t bytes;
    int fd; /* sealed: the file's size is fixed and no page can be removed; -1 for a card */
    struct card_memory card;
    uint32_t loans;
    struct fabric_region *shown; /* the loop thread's; NULL: the fabric does not know the region */
    bool asked;                  /* the fabric was told of the region, or refused it */
};

/* Memory that is still to be unmapped. Either it is a region that the loop thread must first
 * withdraw from the fabric, or it is memory of a card that was never among the session's regions,
 * and is unmapped when no stream waits. */
struct gone {
    struct gone *next;
    struct region region;
};

/* Finds the region that contains the address; *at is its index, or the index at which it would be
 * inserted. Under the lock. */
static struct region *find_region(struct session *s, const uint8_t *address, size_t *at)
{
    size_t low = 0, high = s->memory.count;
    while (low < high) {
        const size_t middle = low + (high - low) / 2;
        if (s->memory.regions[middle].base <= address)
            low = middle + 1;
        else
            high = middle;
    }
    *at = low;
    if (low == 0) return NULL;
    struct region *region = &s->memory.regions[low - 1];
    if ((size_t)(address - region->base) >= region->bytes) return NULL;
    *at = low - 1;
    return region;
}

static void unmap(struct region region)
{
    if (region.card.card != NULL) {
        card_memory_close(&region.card);
        return;
    }
    munmap(region.base, region.bytes);
    close(region.fd);
}

static struct region remove_region(struct session *s, size_t at)
{
    const struct region region = s->memory.regions[at];
    s->memory.count--;
    memmove(&s->memory.regions[at], &s->memory.regions[at + 1],
            (s->memory.count - at) * sizeof *s->memory.regions);
    return region;
}

/* Refuses memory whose region is not where the caller says: the region is on the host or on another
 * card instead of the named card, or on a card instead of the host. */
static cairn_status refuse_place(const struct region *region, const void *ptr)
{
    const struct card *card = region->card.card;
    if (card == NULL)
        return client_fail(CAIRN_ERR_INVALID,
                           "mem.ptr %p is host memory of cairn_alloc: set mem.device to 0", ptr);
    return client_fail(CAIRN_ERR_INVALID,
                       "mem.ptr %p is memory of GPU %d: set mem.device to CAIRN_GPU(%d)", ptr,
                       card_number(card), card_number(card));
}

cairn_status memory_lend(struct session *s, const void *ptr, size_t bytes, const struct card *card,
                         const void **base_out)
{
    size_t at;
    cairn_status status = CAIRN_OK;
    *base_out = NULL;
    HOLD_LOCK(&s->lock);
    struct region *region = bytes > 0 ? find_region(s, ptr, &at) : NULL;
    const size_t left = region != NULL
                            ? region->bytes - (size_t)((const uint8_t *)ptr - region->base)
                            : bytes;
    if (region != NULL && region->card.card != card)
        status = refuse_place(region, ptr);
    else if (region != NULL && left < bytes)
        status = client_fail(
            CAIRN_ERR_INVALID,
            "mem.ptr has %zu bytes to the end of its cairn_alloc memory, %zu are needed", left,
            bytes);
    else if (region != NULL) {
        region->loans++;
        *base_out = region->base;
    }
    return status;
}

void memory_return(struct session *s, const void *base)
{
    size_t at;
    struct region last = { .base = NULL };
    if (base == NULL) return;
    pthread_mutex_lock(&s->lock);
    struct region *region = find_region(s, base, &at);
    if (region != NULL && --region->loans == 0 && s->memory.closed) last = remove_region(s, at);
    pthread_mutex_unlock(&s->lock);
    if (last.base != NULL) unmap(last);
}

size_t memory_host_bytes(const struct session *s)
{
    size_t bytes = 0;
    for (size_t i = 0; i < s->memory.count; i++)
        if (s->memory.regions[i].card.card == NULL) bytes += s->memory.regions[i].bytes;
    return bytes;
}

static cairn_status show(struct fabric *fabric, struct region *region)
{
    if (region->card.card == NULL)
        return fabric_region_add(fabric, region->base, region->bytes, region->fd, NULL, 0,
                                 &region->shown);
    const int fd = card_memory_export(&region->card);
    if (fd < 0) return CAIRN_ERR_UNSUPPORTED;
    const cairn_status status = fabric_region_add_device(fabric, region->base, region->bytes, fd,
                                                         card_uuid(region->card.card), NULL, 0,
                                                         &region->shown);
    close(fd);
    return status;
}

/* Unmaps the region; a region of a card may be unmapped only when no stream waits. */
static void let_go(struct session *s, struct gone *gone)
{
    const bool is_of_card = gone->region.card.card != NULL;
    if (is_of_card && !card_change_begin()) {
        pthread_mutex_lock(&s->lock);
        gone->next = s->memory.gone;
        s->memory.gone = gone;
        pthread_mutex_unlock(&s->lock);
        return;
    }
    unmap(gone->region);
    if (is_of_card) card_change_end();
    free(gone);
}

void memory_show(struct session *s)
{
    pthread_mutex_lock(&s->lock);
    const bool changed = s->memory.changed;
    struct gone *gone = s->memory.gone;
    s->memory.gone = NULL;
    s->memory.changed = false;
    for (size_t i = 0; changed && s->path.fabric != NULL && i < s->memory.count; i++) {
        struct region *region = &s->memory.regions[i];
        if (region->asked) continue;
        region->asked = true;
        if (show(s->path.fabric, region) != CAIRN_OK)
            region->shown = NULL; // the region is then copied when it is sent, like other memory
    }
    pthread_mutex_unlock(&s->lock);
    while (gone != NULL) {
        struct gone *next = gone->next;
        if (s->path.fabric != NULL) fabric_region_drop(gone->region.shown);
        gone->region.shown = NULL;
        let_go(s, gone);
        gone = next;
    }
}

bool memory_is_shown(struct session *s, const void *base)
{
    size_t at;
    HOLD_LOCK(&s->lock);
    const struct region *region = find_region(s, base, &at);
    return region != NULL && region->shown != NULL;
}

static struct gone *next_gone(struct session *s)
{
    HOLD_LOCK(&s->lock);
    struct gone *gone = s->memory.gone;
    if (gone != NULL) s->memory.gone = gone->next;
    return gone;
}

void memory_close_session(struct session *s)
{
    for (bool more = true; more;) {
        struct region region = { .base = NULL };
        pthread_mutex_lock(&s->lock);
        s->memory.closed = true;
        for (size_t i = 0; i < s->memory.count && region.base == NULL; i++)
            if (s->memory.regions[i].loans == 0) region = remove_region(s, i);
        pthread_mutex_unlock(&s->lock);
        more = region.base != NULL;
        if (more) unmap(region);
    }
    for (struct gone *gone; (gone = next_gone(s)) != NULL;) {
        unmap(gone->region);
        free(gone);
    }
}

void memory_release(struct session *s)
{
    memory_close_session(s);
    free(s->memory.regions);
}

/* ---- taking and giving back ---- */

/* Allocates all pages, large ones where the kernel has them, so that later accesses need no new
 * memory. */
static bool fill_pages(int fd, void *base, size_t bytes)
{
    (void)pages_back(base, bytes);
    for (size_t at = 0, part; at < bytes; at += part) {
        part = bytes - at < TAKE_BYTES ? bytes - at : TAKE_BYTES;
        int status;
        do {
            status = fallocate(fd, 0, (off_t)at, (off_t)part);
        } while (status != 0 && errno == EINTR);
        if (status != 0) return false;
    }
    return true;
}

static cairn_status map_card(struct card *card, size_t bytes, struct region *out)
{
    struct card_memory memory;
    const cairn_status status = card_memory_open(card, bytes, &memory);
    if (status == CAIRN_OK)
        *out = (struct region) {
            .base = (uint8_t *)(uintptr_t)memory.at, .bytes = memory.bytes, .fd = -1, .card = memory
        };
    return status;
}

struct gone *memory_apart(struct card *card, size_t bytes)
{
    struct gone *apart = calloc(1, sizeof *apart);
    if (apart != NULL && map_card(card, bytes, &apart->region) == CAIRN_OK) return apart;
    free(apart);
    return NULL;
}

void *memory_apart_at(const struct gone *apart)
{
    return apart->region.base;
}

void memory_leave(struct session *s, struct gone *apart)
{
    apart->next = s->memory.gone;
    s->memory.gone = apart;
}

bool memory_await_left(struct session *s)
{
    enum { TRIES = 100, PAUSE_US = 10000 };
    bool is_left = true;
    for (int i = 0; i < TRIES && is_left; i++) {
        if (i > 0) usleep(PAUSE_US);
        is_left = WITH_LOCK(&s->lock, s->memory.gone != NULL);
        if (!is_left) return i > 0;
        session_kick(s);
    }
    return true;
}

static cairn_status map(size_t bytes, struct region *out)
{
    const size_t page = (size_t)sysconf(_SC_PAGESIZE), whole = (bytes + page - 1) / page * page;
    const int fd = memfd_create("cairn", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    void *base = MAP_FAILED;
    if (fd >= 0 && ftruncate(fd, (off_t)whole) == 0)
        base = pages_map(whole, PROT_READ | PROT_WRITE, MAP_SHARED, fd);
    if (base == MAP_FAILED || fcntl(fd, F_ADD_SEALS, CAIRN_FABRIC_SEALS) != 0 ||
        !fill_pages(fd, base, whole)) {
        const int error = errno;
        if (base != MAP_FAILED) munmap(base, whole);
        if (fd >= 0) close(fd);
        return client_fail(CAIRN_ERR_NO_MEMORY, "%zu bytes of shared memory: %s", bytes,
                           strerror(error));
    }
    *out = (struct region) { .base = base, .bytes = whole, .fd = fd };
    return CAIRN_OK;
}

static cairn_status add_region(struct session *s, struct region region)
{
    size_t at;
    cairn_status status = CAIRN_OK;
    HOLD_LOCK(&s->lock);
    if (s->memory.count == s->memory.capacity) {
        const size_t capacity = s->memory.capacity == 0 ? 16 : s->memory.capacity * 2;
        struct region *more = realloc(s->memory.regions, capacity * sizeof *more);
        if (more != NULL) {
            s->memory.regions = more;
            s->memory.capacity = capacity;
        }
    }
    if (s->memory.closed)
        status = client_fail(CAIRN_ERR_HANDLE, "the session is closed");
    else if (s->memory.count == s->memory.capacity)
        status = client_fail(CAIRN_ERR_NO_MEMORY, "out of memory");
    else {
        find_region(s, region.base, &at);
        memmove(&s->memory.regions[at + 1], &s->memory.regions[at],
                (s->memory.count - at) * sizeof *s->memory.regions);
        s->memory.regions[at] = region;
        s->memory.count++;
        s->memory.changed = true;
    }
    return status;
}

cairn_status memory_allocate(struct session *s, size_t bytes, struct card *card, void **out)
{
    struct region region;
    cairn_status status = card != NULL ? map_card(card, bytes, &region) : map(bytes, &region);
    if (status == CAIRN_OK && (status = add_region(s, region)) != CAIRN_OK) unmap(region);
    if (status != CAIRN_OK) return status;
    session_kick(s);
    *out = region.base;
    return CAIRN_OK;
}

cairn_status memory_free(struct session *s, const void *ptr)
{
    size_t at;
    struct gone *gone = malloc(sizeof *gone);
    if (gone == NULL) return client_fail(CAIRN_ERR_NO_MEMORY, "out of memory");
    pthread_mutex_lock(&s->lock);
    const struct region *region = find_region(s, ptr, &at);
    const bool ours = region != NULL && region->base == ptr;
    const uint32_t loans = ours ? region->loans : 0;
    const bool freed = ours && loans == 0;
    // The session's thread frees the region later. It first withdraws the memory from the fabric,
    // and it unmaps a card's memory only when no stream waits.
    const bool goes_later = freed && (region->shown != NULL || region->card.card != NULL);
    if (freed) *gone = (struct gone) { .next = s->memory.gone, .region = remove_region(s, at) };
    if (goes_later) s->memory.gone = gone;
    pthread_mutex_unlock(&s->lock);
    if (goes_later) {
        session_kick(s);
        return CAIRN_OK;
    }
    if (freed) unmap(gone->region);
    free(gone);
    if (!ours)
        return client_fail(CAIRN_ERR_INVALID,
                           "%p is not memory of cairn_alloc, or was freed already", ptr);
    if (loans > 0)
        return client_fail(CAIRN_ERR_BUSY,
                           "%u operations have this memory on loan; wait for them first "
                           "(cairn_wait, cairn_commit)",
                           (unsigned)loans);
    return CAIRN_OK;
}

/* ==== memory ==== */

/* Refuses more memory than the machine has: the kernel would grant such a request, and kill the
 * process later. */
static cairn_status judge_bytes(size_t bytes)
{
    const long pages = sysconf(_SC_PHYS_PAGES), page = sysconf(_SC_PAGESIZE);
    struct rlimit file;
    // Beyond this limit, the kernel would send a signal.
    if (getrlimit(RLIMIT_FSIZE, &file) == 0 && bytes > file.rlim_cur)
        return client_fail(CAIRN_ERR_NO_MEMORY,
                           "%zu bytes of shared memory are more than this process's limit of "
                           "file size (%" PRIu64 "): raise it (ulimit -f)",
                           bytes, file.rlim_cur);
    if (pages <= 0 || page <= 0 || bytes / (size_t)page < (size_t)pages) return CAIRN_OK;
    return client_fail(CAIRN_ERR_NO_MEMORY, "%zu bytes are more than this machine has (%zu)", bytes,
                       (size_t)pages * (size_t)page);
}

cairn_status cairn_alloc(cairn *handle, size_t bytes, int device, void **out)
{
    if (out == NULL) return client_fail(CAIRN_ERR_INVALID, "out is NULL");
    API_SESSION(s, handle);
    struct card *card;
    CAIRN_TRY(card_of_device(device, "device", &card));
    if (bytes == 0) return client_fail(CAIRN_ERR_INVALID, "bytes is 0");
    if (card == NULL) CAIRN_TRY(judge_bytes(bytes));
    return memory_allocate(s, bytes, card, out);
}

cairn_status cairn_free(cairn *handle, void *ptr)
{
    API_SESSION(s, handle);
    return memory_free(s, ptr);
}

cairn_status cairn_register(cairn *handle, void *ptr, size_t bytes, int device)
{
    API_SESSION(s, handle);
    struct card *card;
    CAIRN_TRY(card_of_device(device, "device", &card));
    if (ptr == NULL || bytes == 0)
        return client_fail(CAIRN_ERR_INVALID, "ptr is NULL or bytes is 0");
    return client_fail(CAIRN_ERR_UNSUPPORTED,
                       "this build stages memory of the caller and does not register it: put, push "
                       "and fetch work with it as they are");
}

cairn_status cairn_unregister(cairn *handle, void *ptr)
{
    API_SESSION(s, handle);
    return client_fail(CAIRN_ERR_INVALID, "%p is not registered", ptr);
}
