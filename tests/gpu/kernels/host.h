/* The kernels of a device as functions of this process: for an emulated driver, and for tests.
 *
 *   launch   kernel = kernel_named(name); list: the launch's one parameter
 *   it runs  kernel->ranges(&list, note, context)       what it is about to read and write
 *            kernel->run(&list, block, blocks)          for each block, in any order, once
 *
 * Both follow the list's addresses: call them when the stream comes to the launch, not before, as copies
 * of the same stream bring the items. Any thread; several may run blocks of one launch. */
#ifndef CAIRN_TESTS_GPU_KERNELS_HOST_H
#define CAIRN_TESTS_GPU_KERNELS_HOST_H

#include <stdbool.h>

#include "gpu/kernel/list.h"

/* Addresses in [at, at + bytes) lie `distance` bytes further in this process (it wraps around); all
 * others where they say. Set before the first kernel runs, and not changed while one does; all 0: nothing
 * is moved. */
struct kernel_memory {
    uint64_t at, bytes, distance;
};
extern struct kernel_memory kernel_memory;

static inline void *kernel_memory_at(uint64_t address)
{
    const struct kernel_memory *m = &kernel_memory;
    return (void *)(uintptr_t)(address - m->at < m->bytes ? address + m->distance : address);
}

/* The first address that a kernel, or its ranges, reached on this thread without its type's
 * alignment; 0: none. A device would end the launch there (CUDA_ERROR_MISALIGNED_ADDRESS). Whoever
 * runs a kernel sets it to 0 before. Such an access reads zeros, and its writes are lost. */
extern _Thread_local uint64_t kernel_misaligned;
/* Memory for such an access of `bytes`: zeros. */
void *kernel_misaligned_at(uint64_t address, size_t bytes);

static inline void *kernel_aligned_at(uint64_t address, size_t bytes, size_t align)
{
    return address % align == 0 ? kernel_memory_at(address) : kernel_misaligned_at(address, bytes);
}
#define CAIRN_KERNEL_AT(type, address) \
    ((type *)kernel_aligned_at(address, sizeof(type), _Alignof(type)))

/* One range that a launch reads, or writes (and may read, too). Addresses as in the items; bytes is not
 * 0. */
typedef void (*kernel_note_fn)(void *context, uint64_t address, uint64_t bytes, bool writes);

struct kernel {
    const char *name; /* "cairn_kernel_fold", as cuLibraryGetKernel is asked for it */
    size_t item_bytes;
    uint32_t block_threads;
    void (*run)(const struct kernel_list *list, uint32_t block, uint32_t blocks);
    /* All that any order of the blocks touches: the list itself, its sources, planes and results. */
    void (*ranges)(const struct kernel_list *list, kernel_note_fn note, void *context);
};

extern const struct kernel kernel_table[CAIRN_KERNEL_COUNT]; /* by enum kernel_number */
/* NULL: there is none of that name. */
const struct kernel *kernel_named(const char *name);

/* The `ranges` of each kernel: ranges.c. */
#define CAIRN_KERNEL_RANGES(name, item, block, size) \
    void ranges_##name(const struct kernel_list *list, kernel_note_fn note, void *context);
CAIRN_KERNELS(CAIRN_KERNEL_RANGES)
#undef CAIRN_KERNEL_RANGES

#endif
