/* Device memory: handles, addresses, mappings, as cuMemCreate and its kin have them.
 *
 *   handed out:  [ reservation ...|guard| reservation ... ]   PROT_NONE for ever: who follows one dies
 *                      + emulator_distance
 *   hidden:      [ memfd | memfd ||     | ...             ]   where kernels and copies reach what is mapped
 *
 * A handle is a memfd, so that it goes to another process as a descriptor. Memory is not zero when it is
 * made. */
#include "tests/gpu/emulator/emulator.h"

#include "tests/gpu/kernels/host.h"

#include <inttypes.h>
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define SPAN_LEAST  ((uint64_t)256 << 30)
#define HANDLES     4096
#define PHYSICAL    ((uint64_t)1 << 60) /* numbers of device memory begin here, above all addresses */
#define MEMORY_NAME "cairn-emulated-card-"
#define FRESH       0xFF /* bytes of what nobody has written: NaN */

struct allocation {
    uint64_t bytes, physical;
    uint32_t generation;
    uint32_t references, mappings; /* neither: free */
    uint32_t device;
    int descriptor; /* owned */
    bool exportable, imported;
    dev_t dev;
    ino_t ino;
};

struct page {
    uint32_t reservation;     /* the first page of it, + 1; 0: nobody's */
    uint32_t allocation;      /* + 1; 0: nothing is mapped */
    uint32_t offset;          /* pages into the allocation */
    uint8_t readers, writers; /* bits of devices */
};

uint64_t emulator_distance;
static uint64_t arena, span_bytes; /* 0: not yet there */
static struct page *pages;         /* [span_bytes / EMULATOR_PAGE], 0 where nobody was */
static size_t pages_end;           /* beyond the last that was ever reserved */
static struct allocation allocations[HANDLES];
static uint64_t next_physical = PHYSICAL, used[EMULATOR_DEVICES];

/* Room for a home of each card, which takes several times what it may map: its own memory, and that of each
 * card that it reads (gpu/cuda/home.c). */
static uint64_t choose_span(void)
{
    const uint64_t cards = emulator_options.devices;
    const uint64_t bytes = emulator_options.total * cards *
                           (5 + 2 * (emulator_options.peers ? cards : 1));
    const uint64_t whole = (bytes + EMULATOR_PAGE - 1) / EMULATOR_PAGE * EMULATOR_PAGE;
    return whole > SPAN_LEAST ? whole : SPAN_LEAST;
}

static enum emulator_result open_arena(void)
{
    if (arena != 0) return EMULATOR_OK;
    const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
    const uint64_t span = choose_span(), table_bytes = span / EMULATOR_PAGE * sizeof *pages;
    void *table = mmap(NULL, table_bytes, PROT_READ | PROT_WRITE, flags, -1, 0);
    void *at = mmap(NULL, 2 * span + EMULATOR_PAGE, PROT_NONE, flags, -1, 0);
    if (at == MAP_FAILED || table == MAP_FAILED) {
        if (at != MAP_FAILED) munmap(at, 2 * span + EMULATOR_PAGE);
        if (table != MAP_FAILED) munmap(table, table_bytes);
        return EMULATOR_OUT_OF_MEMORY;
    }
    pages = table;
    span_bytes = span;
    arena = ((uint64_t)(uintptr_t)at + EMULATOR_PAGE - 1) / EMULATOR_PAGE * EMULATOR_PAGE;
    emulator_distance = span;
    kernel_memory = (struct kernel_memory) { arena, span, emulator_distance };
    return EMULATOR_OK;
}

bool emulator_memory_has(uint64_t address)
{
    return arena != 0 && address - arena < span_bytes;
}

bool emulator_memory_at(uint64_t address, uint32_t *device_out)
{
    const struct page *page = emulator_memory_has(address)
                                  ? &pages[(address - arena) / EMULATOR_PAGE]
                                  : NULL;
    if (page == NULL || page->allocation == 0) return false;
    *device_out = allocations[page->allocation - 1].device;
    return true;
}

/* ---- handles ---- */

static uint64_t handle_of(const struct allocation *a)
{
    return emulator_handle(EMULATOR_MEMORY, a->generation, (uint32_t)(a - allocations));
}

static struct allocation *find(uint64_t handle)
{
    struct allocation *a = &allocations[emulator_handle_index(handle) % HANDLES];
    return a->references > 0 && handle_of(a) == handle ? a : NULL;
}

static bool is_free(const struct allocation *a)
{
    return a->references == 0 && a->mappings == 0;
}

static struct allocation *find_free(void)
{
    for (size_t i = 0; i < HANDLES; i++)
        if (is_free(&allocations[i])) return &allocations[i];
    return NULL;
}

static void begin(struct allocation *a, struct allocation with)
{
    struct stat stat;
    assert(fstat(with.descriptor, &stat) == 0);
    with.generation = a->generation + 1;
    with.references = 1;
    with.dev = stat.st_dev;
    with.ino = stat.st_ino;
    for (size_t i = 0; i < HANDLES && with.physical == 0; i++)
        if (!is_free(&allocations[i]) && allocations[i].ino == with.ino &&
            allocations[i].dev == with.dev)
            with.physical = allocations[i].physical;
    if (with.physical == 0) {
        with.physical = next_physical;
        next_physical += with.bytes;
    }
    *a = with;
    if (!a->imported) used[a->device] += a->bytes;
}

static void free_if_last(const struct allocation *a)
{
    if (!is_free(a)) return;
    if (!a->imported) used[a->device] -= a->bytes;
    close(a->descriptor);
}

void emulator_memory_info(uint32_t device, struct emulator_memory_info *info_out)
{
    const uint64_t total = emulator_options.total, taken = used[device] + emulator_options.others;
    *info_out = (struct emulator_memory_info) { total, taken < total ? total - taken : 0 };
}

static enum emulator_result make_file(uint32_t device, uint64_t bytes, int *descriptor_out)
{
    char name[64];
    snprintf(name, sizeof name, MEMORY_NAME "%u", device);
    const int descriptor = memfd_create(name, MFD_CLOEXEC);
    if (descriptor < 0) return EMULATOR_OPERATING_SYSTEM;
    void *at = MAP_FAILED;
    if (ftruncate(descriptor, (off_t)bytes) == 0)
        at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
    if (at == MAP_FAILED) {
        close(descriptor);
        return EMULATOR_OUT_OF_MEMORY;
    }
    memset(at, FRESH, bytes);
    munmap(at, bytes);
    *descriptor_out = descriptor;
    return EMULATOR_OK;
}

enum emulator_result emulator_memory_create(uint32_t device, uint64_t bytes, bool exportable,
                                            uint64_t *handle_out)
{
    struct emulator_memory_info info;
    struct allocation *a = find_free();
    int descriptor = -1;
    if (bytes == 0 || bytes % EMULATOR_PAGE != 0 || device >= emulator_options.devices)
        return EMULATOR_INVALID_VALUE;
    emulator_memory_info(device, &info);
    enum emulator_result result = emulator_fault_alloc();
    if (result == EMULATOR_OK && (bytes > info.free || a == NULL)) result = EMULATOR_OUT_OF_MEMORY;
    if (result == EMULATOR_OK) result = make_file(device, bytes, &descriptor);
    if (result != EMULATOR_OK) return result;
    begin(a, (struct allocation) { .bytes = bytes,
                                   .device = device,
                                   .descriptor = descriptor,
                                   .exportable = exportable });
    *handle_out = handle_of(a);
    return EMULATOR_OK;
}

enum emulator_result emulator_memory_release(uint64_t handle)
{
    struct allocation *a = find(handle);
    if (a == NULL) return EMULATOR_INVALID_VALUE;
    a->references--;
    free_if_last(a);
    return EMULATOR_OK;
}

enum emulator_result emulator_memory_export(uint64_t handle, int *descriptor_out)
{
    const struct allocation *a = find(handle);
    if (a == NULL || !a->exportable) return EMULATOR_INVALID_VALUE;
    const enum emulator_result result = emulator_fault_refusal(EMULATOR_EXPORT_HANDLE);
    if (result != EMULATOR_OK) return result;
    const int descriptor = fcntl(a->descriptor, F_DUPFD_CLOEXEC, 0);
    if (descriptor < 0) return EMULATOR_OPERATING_SYSTEM;
    *descriptor_out = descriptor;
    return EMULATOR_OK;
}

/* The descriptor stays its caller's. */
enum emulator_result emulator_memory_import(int descriptor, uint64_t *handle_out)
{
    char path[64], name[128];
    unsigned device;
    struct stat stat;
    struct allocation *a = find_free();
    snprintf(path, sizeof path, "/proc/self/fd/%d", descriptor);
    const ssize_t length = readlink(path, name, sizeof name - 1);
    if (length < 0) return EMULATOR_INVALID_VALUE;
    name[length] = '\0';
    if (sscanf(name, "/memfd:" MEMORY_NAME "%u", &device) != 1 || fstat(descriptor, &stat) != 0) {
        emulator_say("descriptor %d is no memory of a card: %s", descriptor, name);
        return EMULATOR_INVALID_VALUE;
    }
    if (device >= emulator_options.devices) return EMULATOR_INVALID_DEVICE;
    const enum emulator_result result = emulator_fault_refusal(EMULATOR_IMPORT);
    if (result != EMULATOR_OK) return result;
    if (a == NULL) return EMULATOR_OUT_OF_MEMORY;
    const int own = fcntl(descriptor, F_DUPFD_CLOEXEC, 0);
    if (own < 0) return EMULATOR_OPERATING_SYSTEM;
    begin(a, (struct allocation) { .bytes = (uint64_t)stat.st_size,
                                   .device = device,
                                   .descriptor = own,
                                   .exportable = true,
                                   .imported = true });
    *handle_out = handle_of(a);
    return EMULATOR_OK;
}

enum emulator_result emulator_memory_retain(uint64_t address, uint64_t *handle_out)
{
    uint32_t device;
    if (!emulator_memory_at(address, &device)) return EMULATOR_INVALID_VALUE;
    struct allocation *a = &allocations[pages[(address - arena) / EMULATOR_PAGE].allocation - 1];
    a->references++;
    *handle_out = handle_of(a);
    return EMULATOR_OK;
}

enum emulator_result emulator_memory_device(uint64_t handle, uint32_t *device_out)
{
    const struct allocation *a = find(handle);
    if (a == NULL) return EMULATOR_INVALID_VALUE;
    *device_out = a->device;
    return EMULATOR_OK;
}

/* ---- addresses ---- */

/* Pages of addresses at which [address, + bytes) begins and ends; false if they are not whole, or nobody's.
 * */
static bool pages_of(uint64_t address, uint64_t bytes, size_t *first_out, size_t *end_out)
{
    if (!emulator_memory_has(address) || address % EMULATOR_PAGE != 0 || bytes % EMULATOR_PAGE != 0)
        return false;
    if (bytes == 0 || bytes > arena + span_bytes - address) return false;
    *first_out = (address - arena) / EMULATOR_PAGE;
    *end_out = *first_out + bytes / EMULATOR_PAGE;
    for (size_t i = *first_out; i < *end_out; i++)
        if (pages[i].reservation == 0) return false;
    return true;
}

static bool all_free(size_t first, size_t end)
{
    for (size_t i = first; i < end; i++)
        if (pages[i].reservation != 0) return false;
    return true;
}

/* A page stays free on both sides of each: who runs over the end meets nothing. */
enum emulator_result emulator_memory_reserve(uint64_t bytes, uint64_t alignment,
                                             uint64_t *address_out)
{
    const uint64_t align = alignment < EMULATOR_PAGE ? EMULATOR_PAGE : alignment;
    const size_t count = bytes / EMULATOR_PAGE;
    if (bytes == 0 || bytes % EMULATOR_PAGE != 0) return EMULATOR_INVALID_VALUE;
    if ((alignment & (alignment - 1)) != 0) return EMULATOR_INVALID_VALUE;
    enum emulator_result result = emulator_fault_refusal(EMULATOR_RESERVE);
    if (result == EMULATOR_OK) result = open_arena();
    if (result != EMULATOR_OK) return result;
    if (align > span_bytes || bytes > span_bytes) return EMULATOR_OUT_OF_MEMORY;
    uint64_t at = (arena + EMULATOR_PAGE + align - 1) / align * align;
    for (; at - arena + bytes + EMULATOR_PAGE <= span_bytes; at += align) {
        const size_t first = (at - arena) / EMULATOR_PAGE;
        if (!all_free(first - 1, first + count + 1)) continue;
        for (size_t page = first; page < first + count; page++)
            pages[page].reservation = (uint32_t)first + 1;
        if (pages_end < first + count) pages_end = first + count;
        *address_out = at;
        return EMULATOR_OK;
    }
    return EMULATOR_OUT_OF_MEMORY;
}

enum emulator_result emulator_memory_unreserve(uint64_t address, uint64_t bytes)
{
    size_t first, end;
    if (!pages_of(address, bytes, &first, &end)) return EMULATOR_INVALID_VALUE;
    for (size_t i = first; i < end; i++)
        if (pages[i].reservation != first + 1 || pages[i].allocation != 0)
            return EMULATOR_INVALID_VALUE;
    if (end < pages_end && pages[end].reservation == first + 1) return EMULATOR_INVALID_VALUE;
    memset(&pages[first], 0, (end - first) * sizeof pages[0]);
    return EMULATOR_OK;
}

static void *hidden(uint64_t address)
{
    return (void *)(uintptr_t)(address + emulator_distance);
}

/* Only whole handles are mapped, as cards do. */
enum emulator_result emulator_memory_map(uint64_t address, uint64_t bytes, uint64_t offset,
                                         uint64_t handle)
{
    size_t first, end;
    struct allocation *a = find(handle);
    if (a == NULL || offset != 0 || bytes != a->bytes) return EMULATOR_INVALID_VALUE;
    if (!pages_of(address, bytes, &first, &end)) {
        emulator_say("no reserved addresses to map to at %#" PRIx64, address);
        return EMULATOR_INVALID_VALUE;
    }
    for (size_t i = first; i < end; i++)
        if (pages[i].allocation != 0 || pages[i].reservation != pages[first].reservation)
            return EMULATOR_INVALID_VALUE;
    const enum emulator_result result = emulator_fault_refusal(EMULATOR_MAP);
    if (result != EMULATOR_OK) return result;
    void *at = mmap(hidden(address), bytes, PROT_NONE, MAP_SHARED | MAP_FIXED, a->descriptor, 0);
    if (at == MAP_FAILED) return EMULATOR_OUT_OF_MEMORY;
    for (size_t i = first; i < end; i++) {
        pages[i].allocation = (uint32_t)(a - allocations) + 1;
        pages[i].offset = (uint32_t)(i - first);
    }
    a->mappings++;
    return EMULATOR_OK;
}

/* The whole of one mapping or of several, and nothing else. */
static bool whole_mappings(size_t first, size_t end)
{
    for (size_t i = first; i < end; i++)
        if (pages[i].allocation == 0) return false;
    return pages[first].offset == 0 &&
           pages[end - 1].offset + 1 ==
               allocations[pages[end - 1].allocation - 1].bytes / EMULATOR_PAGE;
}

enum emulator_result emulator_memory_unmap(uint64_t address, uint64_t bytes)
{
    size_t first, end;
    if (!pages_of(address, bytes, &first, &end) || !whole_mappings(first, end))
        return EMULATOR_INVALID_VALUE;
    struct emulator_touch touch = { 0 };
    for (size_t i = first; i < end; i++) {
        const struct allocation *a = &allocations[pages[i].allocation - 1];
        emulator_touch_add(&touch, a->physical + pages[i].offset * EMULATOR_PAGE, EMULATOR_PAGE,
                           true);
    }
    emulator_touch_sort(&touch);
    emulator_order_host(&touch, "unmaps it");
    emulator_touch_release(&touch);
    const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED;
    assert(mmap(hidden(address), bytes, PROT_NONE, flags, -1, 0) != MAP_FAILED);
    for (size_t i = first; i < end; i++) {
        struct allocation *a = &allocations[pages[i].allocation - 1];
        const bool last = pages[i].offset + 1 == a->bytes / EMULATOR_PAGE;
        pages[i] = (struct page) { .reservation = pages[i].reservation };
        if (!last) continue;
        a->mappings--;
        free_if_last(a);
    }
    return EMULATOR_OK;
}

enum emulator_result emulator_memory_access(uint64_t address, uint64_t bytes, uint32_t device,
                                            bool reads, bool writes)
{
    size_t first, end;
    if (!pages_of(address, bytes, &first, &end) || !whole_mappings(first, end)) {
        emulator_say("access to what is not mapped, at %#" PRIx64, address);
        return EMULATOR_INVALID_VALUE;
    }
    if (device >= emulator_options.devices) return EMULATOR_INVALID_DEVICE;
    for (size_t i = first; i < end; i++)
        if (allocations[pages[i].allocation - 1].device != device && !emulator_options.peers)
            return EMULATOR_INVALID_DEVICE; // it does not read that card's memory
    const enum emulator_result result = reads && !writes
                                            ? emulator_fault_refusal(EMULATOR_READ_ONLY)
                                            : EMULATOR_OK;
    if (result != EMULATOR_OK) return result;
    const uint8_t bit = (uint8_t)(1u << device);
    if (mprotect(hidden(address), bytes, PROT_READ | PROT_WRITE) != 0)
        return EMULATOR_OPERATING_SYSTEM;
    for (size_t i = first; i < end; i++) {
        pages[i].readers = (uint8_t)(reads ? pages[i].readers | bit : pages[i].readers & ~bit);
        pages[i].writers = (uint8_t)(writes ? pages[i].writers | bit : pages[i].writers & ~bit);
    }
    return EMULATOR_OK;
}

uint64_t emulator_memory_left(void)
{
    uint64_t left = 0;
    for (size_t i = 0; i < HANDLES; i++)
        left += allocations[i].references + allocations[i].mappings;
    for (size_t i = 0; i < pages_end; i++) left += pages[i].reservation == i + 1;
    return left;
}

/* ---- what operations touch ---- */

static enum emulator_result refuse(const char *who, const char *why, uint64_t address)
{
    emulator_say("%s: %s at %#" PRIx64, who, why, address);
    return EMULATOR_ILLEGAL_ADDRESS;
}

enum emulator_result emulator_memory_touch(struct emulator_touch *touch, uint32_t device,
                                           uint64_t address, uint64_t bytes, bool writes,
                                           const char *who)
{
    if (bytes > UINT64_MAX - address)
        return refuse(who, "more bytes than there are addresses", address);
    if (!emulator_memory_has(address)) {
        if (bytes > 0) emulator_touch_add(touch, address, bytes, writes);
        return EMULATOR_OK;
    }
    while (bytes > 0) {
        const struct page *page = &pages[(address - arena) / EMULATOR_PAGE];
        const uint64_t rest = EMULATOR_PAGE - address % EMULATOR_PAGE,
                       part = bytes < rest ? bytes : rest;
        if (page->allocation == 0) return refuse(who, "nothing is mapped", address);
        if (((writes ? page->writers : page->readers) >> device & 1) == 0)
            return refuse(who, "no access was given", address);
        const struct allocation *a = &allocations[page->allocation - 1];
        emulator_touch_add(touch,
                           a->physical + page->offset * EMULATOR_PAGE + address % EMULATOR_PAGE,
                           part, writes);
        address += part;
        bytes -= part;
        if (bytes > 0 && !emulator_memory_has(address))
            return refuse(who, "nothing is mapped", address);
    }
    return EMULATOR_OK;
}

void emulator_memory_name(uint64_t number, char *text, size_t text_bytes)
{
    if (number < PHYSICAL) {
        snprintf(text, text_bytes, "%#" PRIx64 " (host)", number);
        return;
    }
    for (size_t i = 0; i < pages_end; i++) {
        if (pages[i].allocation == 0) continue;
        const uint64_t begin_number = allocations[pages[i].allocation - 1].physical +
                                      pages[i].offset * EMULATOR_PAGE;
        if (number - begin_number >= EMULATOR_PAGE) continue;
        snprintf(text, text_bytes, "%#" PRIx64,
                 (arena + i * EMULATOR_PAGE + (number - begin_number)));
        return;
    }
    snprintf(text, text_bytes, "an address that is no longer mapped");
}
