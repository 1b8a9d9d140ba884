/* Host memory that is pinned: copies of it do not wait for the host, nor the host for them. */
#include "tests/gpu/emulator/emulator.h"

#include <linux/mempolicy.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#define PINNED     4096
#define HOST_PAGE  4096
#define HOST_FRESH 0xA5
#define DEVICE_BIT ((uint64_t)1 << 60) /* what a card calls registered memory is another address */

static struct pinned {
    uint64_t address, bytes; /* no bytes: free */
    uint32_t device;
    bool ours;
    bool is_gone; /* with its context, and nobody has given it back before */
} pinned[PINNED];

static struct pinned *find(uint64_t address)
{
    for (size_t i = 0; i < PINNED; i++)
        if (pinned[i].bytes > 0 && !pinned[i].is_gone && pinned[i].address == address)
            return &pinned[i];
    return NULL;
}

enum emulator_pinned emulator_host_pinned(uint64_t address, uint64_t bytes)
{
    for (size_t i = 0; i < PINNED; i++) {
        const struct pinned *p = &pinned[i];
        if (p->bytes == 0 || p->is_gone || address >= p->address + p->bytes ||
            p->address >= address + bytes)
            continue;
        const bool whole = address >= p->address && bytes <= p->address + p->bytes - address;
        return whole ? EMULATOR_PINNED : EMULATOR_PARTLY_PINNED;
    }
    return EMULATOR_PAGEABLE;
}

int emulator_host_node = -1;

/* The node of memory that those pages are to be of: of what the driver gives by the thread's policy, else by
 * the pages'. -1: any. */
static int node_of(uint64_t address, bool ours)
{
    unsigned long nodes[16] = { 0 };
    int mode = MPOL_DEFAULT;
    if (syscall(SYS_get_mempolicy, &mode, nodes, 8 * sizeof nodes, ours ? 0 : address,
                ours ? 0ul : (unsigned long)MPOL_F_ADDR) != 0 ||
        mode != MPOL_PREFERRED)
        return -1;
    for (int node = 0; node < (int)(8 * sizeof nodes); node++)
        if (nodes[node / 64] >> node % 64 & 1) return node;
    return -1;
}

static enum emulator_result pin(uint64_t address, uint64_t bytes, uint32_t device, bool ours)
{
    for (size_t i = 0; i < PINNED; i++) {
        if (pinned[i].bytes > 0) continue;
        emulator_host_node = node_of(address, ours);
        pinned[i] = (struct pinned) { address, bytes, device, ours, false };
        return EMULATOR_OK;
    }
    return EMULATOR_OUT_OF_MEMORY;
}

static void unpin(struct pinned *p, const char *what)
{
    struct emulator_touch touch = { 0 };
    emulator_touch_add(&touch, p->address, p->bytes, true);
    emulator_order_host(&touch, what);
    emulator_touch_release(&touch);
    p->bytes = 0;
}

static void unmap(const struct pinned *p)
{
    const uint64_t whole = (p->bytes + HOST_PAGE - 1) / HOST_PAGE * HOST_PAGE;
    munmap((char *)(uintptr_t)p->address - HOST_PAGE, whole + 2 * HOST_PAGE);
}

/* The context is gone: with it the memory that the driver gave; pages of others are pinned no more. */
void emulator_host_forget(uint32_t device)
{
    for (size_t i = 0; i < PINNED; i++) {
        struct pinned *p = &pinned[i];
        if (p->bytes == 0 || p->is_gone || p->device != device) continue;
        if (p->ours) unmap(p);
        p->is_gone = true;
    }
}

/* With a page on both sides that nobody may touch. */
enum emulator_result emulator_host_alloc(uint64_t bytes, uint32_t device, void **memory_out)
{
    if (bytes == 0 || bytes > (uint64_t)1 << 40) return EMULATOR_INVALID_VALUE;
    if (emulator_options.no_pinning == 1) return EMULATOR_OUT_OF_MEMORY;
    const uint64_t whole = (bytes + HOST_PAGE - 1) / HOST_PAGE * HOST_PAGE;
    char *at = mmap(NULL, whole + 2 * HOST_PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED) return EMULATOR_OUT_OF_MEMORY;
    if (mprotect(at + HOST_PAGE, whole, PROT_READ | PROT_WRITE) != 0 ||
        pin((uint64_t)(uintptr_t)at + HOST_PAGE, bytes, device, true) != EMULATOR_OK) {
        munmap(at, whole + 2 * HOST_PAGE);
        return EMULATOR_OUT_OF_MEMORY;
    }
    memset(at + HOST_PAGE, HOST_FRESH, bytes);
    *memory_out = at + HOST_PAGE;
    return EMULATOR_OK;
}

enum emulator_result emulator_host_free(uint64_t address)
{
    struct pinned *p = find(address);
    if (p == NULL || !p->ours) return EMULATOR_INVALID_VALUE;
    const struct pinned freed = *p;
    unpin(p, "frees it");
    unmap(&freed);
    return EMULATOR_OK;
}

enum emulator_result emulator_host_register(uint64_t address, uint64_t bytes, uint32_t device)
{
    if (bytes == 0 || address == 0 || emulator_memory_has(address)) return EMULATOR_INVALID_VALUE;
    const uint64_t first = address / HOST_PAGE * HOST_PAGE;
    const uint64_t end = (address + bytes + HOST_PAGE - 1) / HOST_PAGE * HOST_PAGE;
    if (emulator_host_pinned(first, end - first) != EMULATOR_PAGEABLE) // a page is pinned once
        return EMULATOR_ALREADY_REGISTERED;
    const enum emulator_result result = emulator_fault_refusal(EMULATOR_REGISTER);
    if (result != EMULATOR_OK) return result;
    if (emulator_options.no_pinning) return EMULATOR_OUT_OF_MEMORY;
    return pin(address, bytes, device, false);
}

enum emulator_result emulator_host_unregister(uint64_t address)
{
    struct pinned *p = find(address);
    if (p == NULL || p->ours) return EMULATOR_NOT_REGISTERED;
    unpin(p, "unregisters it");
    return EMULATOR_OK;
}

enum emulator_result emulator_host_to_device(uint64_t address, uint64_t *at_out)
{
    if (emulator_host_pinned(address, 1) != EMULATOR_PINNED) return EMULATOR_INVALID_VALUE;
    *at_out = address | DEVICE_BIT;
    return EMULATOR_OK;
}

/* No memory of the host, if it is none that cuMemHostGetDevicePointer gave. */
uint64_t emulator_host_from_device(uint64_t at)
{
    return at ^ DEVICE_BIT;
}

uint64_t emulator_host_left(void)
{
    uint64_t left = 0;
    for (size_t i = 0; i < PINNED; i++) left += pinned[i].bytes > 0;
    return left;
}
