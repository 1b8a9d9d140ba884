/* Memory of the library for the caller: shared memory, so that shards of this host can map it. A region is
 * on loan while an operation reads or writes it, and is not freed meanwhile. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include "client/handle.h"
#include "client/memory.h"
#include "proto/fabric/pages.h"

/* Taken from the kernel at a time: a call that a signal breaks off gives back what it took. */
#define TAKE_BYTES ((size_t)32 << 20)

struct region {
    uint8_t *base;
    size_t bytes;
    int fd; /* sealed: its size never changes, and none of its pages goes */
    uint32_t loans;
    struct cairn_fabric_region *shown; /* the loop thread's; NULL: the fabric does not know it */
    bool asked;                        /* the fabric was told, or would not take it */
};

/* A region that the loop thread has to take from the fabric before it is unmapped. */
struct gone {
    struct gone *next;
    struct region region;
};

/* The region that has the address; its place, or where one would go, in *at. Under the lock. */
static struct region *find(struct session *s, const uint8_t *address, size_t *at)
{
    size_t low = 0, high = s->region_count;
    while (low < high) {
        const size_t middle = low + (high - low) / 2;
        if (s->regions[middle].base <= address)
            low = middle + 1;
        else
            high = middle;
    }
    *at = low;
    if (low == 0) return NULL;
    struct region *region = &s->regions[low - 1];
    if ((size_t)(address - region->base) >= region->bytes) return NULL;
    *at = low - 1;
    return region;
}

static void unmap(struct region region)
{
    munmap(region.base, region.bytes);
    close(region.fd);
}

static struct region take_out(struct session *s, size_t at)
{
    const struct region region = s->regions[at];
    s->region_count--;
    memmove(&s->regions[at], &s->regions[at + 1], (s->region_count - at) * sizeof *s->regions);
    return region;
}

cairn_status cairn_memory_lend(struct session *s, const void *ptr, size_t bytes,
                               const void **lent_out)
{
    size_t at;
    cairn_status status = CAIRN_OK;
    *lent_out = NULL;
    pthread_mutex_lock(&s->lock);
    struct region *region = bytes > 0 ? find(s, ptr, &at) : NULL;
    const size_t left = region != NULL
                            ? region->bytes - (size_t)((const uint8_t *)ptr - region->base)
                            : bytes;
    if (region != NULL && left < bytes)
        status = cairn_client_fail(
            CAIRN_ERR_INVALID,
            "mem.ptr has %zu bytes to the end of its cairn_alloc memory, %zu "
            "are needed",
            left, bytes);
    else if (region != NULL) {
        region->loans++;
        *lent_out = region->base;
    }
    pthread_mutex_unlock(&s->lock);
    return status;
}

void cairn_memory_return(struct session *s, const void *lent)
{
    size_t at;
    struct region last = { .base = NULL };
    if (lent == NULL) return;
    pthread_mutex_lock(&s->lock);
    struct region *region = find(s, lent, &at);
    if (region != NULL && --region->loans == 0 && s->memory_closed) last = take_out(s, at);
    pthread_mutex_unlock(&s->lock);
    if (last.base != NULL) unmap(last);
}

void cairn_memory_show(struct session *s)
{
    pthread_mutex_lock(&s->lock);
    const bool changed = s->regions_changed;
    struct gone *gone = s->regions_gone;
    s->regions_gone = NULL;
    s->regions_changed = false;
    for (size_t i = 0; changed && s->fabric != NULL && i < s->region_count; i++) {
        struct region *region = &s->regions[i];
        if (region->asked) continue;
        region->asked = true;
        if (cairn_fabric_region_add(s->fabric, region->base, region->bytes, region->fd, NULL, 0,
                                    &region->shown) != CAIRN_OK)
            region->shown = NULL; // copied on its way, as other memory is
    }
    pthread_mutex_unlock(&s->lock);
    while (gone != NULL) {
        struct gone *next = gone->next;
        if (s->fabric != NULL) cairn_fabric_region_drop(gone->region.shown);
        unmap(gone->region);
        free(gone);
        gone = next;
    }
}

static void forget_gone(struct session *s)
{
    while (s->regions_gone != NULL) {
        struct gone *gone = s->regions_gone;
        s->regions_gone = gone->next;
        unmap(gone->region);
        free(gone);
    }
}

void cairn_memory_close(struct session *s)
{
    for (bool more = true; more;) {
        struct region region = { .base = NULL };
        pthread_mutex_lock(&s->lock);
        s->memory_closed = true;
        for (size_t i = 0; i < s->region_count && region.base == NULL; i++)
            if (s->regions[i].loans == 0) region = take_out(s, i);
        pthread_mutex_unlock(&s->lock);
        more = region.base != NULL;
        if (more) unmap(region);
    }
}

void cairn_memory_release(struct session *s)
{
    cairn_memory_close(s);
    forget_gone(s);
    free(s->regions);
}

/* ---- the calls ---- */

static cairn_status judge_device(int device)
{
    if (device < -1)
        return cairn_client_fail(CAIRN_ERR_INVALID, "device is %d; allowed: -1 (host) or more",
                                 device);
    return device == -1 ? CAIRN_OK
                        : cairn_client_fail(CAIRN_ERR_UNSUPPORTED,
                                            "device %d: this build of the library has no CUDA; -1 "
                                            "is host memory",
                                            device);
}

/* More than the machine has is refused now: it is not reserved, and would end the process later. */
static cairn_status judge_bytes(size_t bytes)
{
    const long pages = sysconf(_SC_PHYS_PAGES), page = sysconf(_SC_PAGESIZE);
    struct rlimit file;
    if (bytes == 0) return cairn_client_fail(CAIRN_ERR_INVALID, "bytes is 0");
    // The kernel would answer with a signal.
    if (getrlimit(RLIMIT_FSIZE, &file) == 0 && bytes > file.rlim_cur)
        return cairn_client_fail(CAIRN_ERR_NO_MEMORY,
                                 "%zu bytes of shared memory are more than this process's limit of "
                                 "file size (%llu): raise it (ulimit -f)",
                                 bytes, (unsigned long long)file.rlim_cur);
    if (pages <= 0 || page <= 0 || bytes / (size_t)page < (size_t)pages) return CAIRN_OK;
    return cairn_client_fail(CAIRN_ERR_NO_MEMORY, "%zu bytes are more than this machine has (%zu)",
                             bytes, (size_t)pages * (size_t)page);
}

/* All of it, in large pages where the kernel has them: what is touched later is there. */
static bool take(int fd, void *base, size_t bytes)
{
    (void)cairn_pages_back(base, bytes);
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

static cairn_status map(size_t bytes, struct region *out)
{
    const size_t page = (size_t)sysconf(_SC_PAGESIZE), whole = (bytes + page - 1) / page * page;
    const int fd = memfd_create("cairn", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    void *base = MAP_FAILED;
    if (fd >= 0 && ftruncate(fd, (off_t)whole) == 0)
        base = cairn_pages_map(whole, PROT_READ | PROT_WRITE, MAP_SHARED, fd);
    if (base == MAP_FAILED || fcntl(fd, F_ADD_SEALS, CAIRN_FABRIC_SEALS) != 0 ||
        !take(fd, base, whole)) {
        const int error = errno;
        if (base != MAP_FAILED) munmap(base, whole);
        if (fd >= 0) close(fd);
        return cairn_client_fail(CAIRN_ERR_NO_MEMORY, "%zu bytes of shared memory: %s", bytes,
                                 strerror(error));
    }
    *out = (struct region) { .base = base, .bytes = whole, .fd = fd };
    return CAIRN_OK;
}

static cairn_status add(struct session *s, struct region region)
{
    size_t at;
    cairn_status status = CAIRN_OK;
    pthread_mutex_lock(&s->lock);
    if (s->region_count == s->region_capacity) {
        const size_t capacity = s->region_capacity == 0 ? 16 : s->region_capacity * 2;
        struct region *more = realloc(s->regions, capacity * sizeof *more);
        if (more != NULL) {
            s->regions = more;
            s->region_capacity = capacity;
        }
    }
    if (s->memory_closed)
        status = cairn_client_fail(CAIRN_ERR_HANDLE, "the session is closed");
    else if (s->region_count == s->region_capacity)
        status = cairn_client_fail(CAIRN_ERR_NO_MEMORY, "out of memory");
    else {
        find(s, region.base, &at);
        memmove(&s->regions[at + 1], &s->regions[at], (s->region_count - at) * sizeof *s->regions);
        s->regions[at] = region;
        s->region_count++;
        s->regions_changed = true;
    }
    pthread_mutex_unlock(&s->lock);
    return status;
}

cairn_status cairn_alloc(cairn *handle, size_t bytes, int device, void **out)
{
    if (out == NULL) return cairn_client_fail(CAIRN_ERR_INVALID, "out is NULL");
    struct session *s = cairn_handle_get(CAIRN_HANDLE_SESSION, handle);
    if (s == NULL) return cairn_client_fail(CAIRN_ERR_HANDLE, "not an open session");
    struct region region;
    cairn_status status = judge_device(device);
    if (status == CAIRN_OK) status = judge_bytes(bytes);
    if (status == CAIRN_OK) status = map(bytes, &region);
    if (status == CAIRN_OK && (status = add(s, region)) != CAIRN_OK) unmap(region);
    if (status == CAIRN_OK) cairn_session_kick(s);
    if (status == CAIRN_OK) *out = region.base;
    cairn_handle_put(handle);
    return status;
}

static cairn_status free_inside(struct session *s, const void *ptr)
{
    size_t at;
    struct gone *gone = malloc(sizeof *gone);
    if (gone == NULL) return cairn_client_fail(CAIRN_ERR_NO_MEMORY, "out of memory");
    pthread_mutex_lock(&s->lock);
    const struct region *region = find(s, ptr, &at);
    const bool ours = region != NULL && region->base == ptr;
    const uint32_t loans = ours ? region->loans : 0;
    const bool freed = ours && loans == 0, shown = freed && region->shown != NULL;
    if (freed) *gone = (struct gone) { .next = s->regions_gone, .region = take_out(s, at) };
    if (shown) s->regions_gone = gone;
    pthread_mutex_unlock(&s->lock);
    if (shown) {
        cairn_session_kick(s);
        return CAIRN_OK;
    }
    if (freed) unmap(gone->region);
    free(gone);
    if (!ours)
        return cairn_client_fail(CAIRN_ERR_INVALID,
                                 "%p is not memory of cairn_alloc, or was freed already", ptr);
    if (loans > 0)
        return cairn_client_fail(CAIRN_ERR_BUSY,
                                 "%u operations have this memory on loan; wait for them first "
                                 "(cairn_wait, cairn_commit)",
                                 (unsigned)loans);
    return CAIRN_OK;
}

cairn_status cairn_free(cairn *handle, void *ptr)
{
    struct session *s = cairn_handle_get(CAIRN_HANDLE_SESSION, handle);
    if (s == NULL) return cairn_client_fail(CAIRN_ERR_HANDLE, "not an open session");
    const cairn_status status = free_inside(s, ptr);
    cairn_handle_put(handle);
    return status;
}

cairn_status cairn_register(cairn *handle, void *ptr, size_t bytes, int device)
{
    struct session *s = cairn_handle_get(CAIRN_HANDLE_SESSION, handle);
    if (s == NULL) return cairn_client_fail(CAIRN_ERR_HANDLE, "not an open session");
    cairn_status status = judge_device(device);
    if (status == CAIRN_OK && (ptr == NULL || bytes == 0))
        status = cairn_client_fail(CAIRN_ERR_INVALID, "ptr is NULL or bytes is 0");
    if (status == CAIRN_OK)
        status = cairn_client_fail(CAIRN_ERR_UNSUPPORTED,
                                   "memory of the caller is staged, not registered, in this build: "
                                   "put, push and fetch of it are right as they are");
    cairn_handle_put(handle);
    return status;
}

cairn_status cairn_unregister(cairn *handle, void *ptr)
{
    struct session *s = cairn_handle_get(CAIRN_HANDLE_SESSION, handle);
    if (s == NULL) return cairn_client_fail(CAIRN_ERR_HANDLE, "not an open session");
    cairn_handle_put(handle);
    return cairn_client_fail(CAIRN_ERR_INVALID, "%p is not registered", ptr);
}
