/* Launches: a kernel's blocks, one after the other, in an order of the seed's.
 *
 * What it touches is asked when it runs, not when it is launched: its list of work may come by a copy
 * before it. */
#include "tests/gpu/emulator/emulator.h"
#include "tests/gpu/emulator/kernels.h"

#include <inttypes.h>
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#define THREADS_MAX 1024
#define SHARED_MAX  (48 << 10) /* what every card has without being asked for more */

struct launch_op {
    struct emulator_op op;
    const struct kernel *kernel;
    /* a copy: the caller's is its own again when the launch returns */
    struct kernel_list list;
    uint32_t blocks, first, stride; /* block i is (first + i * stride) mod blocks */
    enum emulator_result fails;     /* with this, when it runs */
};

struct sink {
    struct emulator_touch *touch;
    const char *name;
    uint32_t device;
    enum emulator_result result;
};

/* Cairn's, then the emulator's own. */
static const struct kernel *kernel_at(uint32_t i)
{
    return i < CAIRN_KERNEL_COUNT ? &kernel_table[i]
                                  : &emulator_own_kernels[i - CAIRN_KERNEL_COUNT];
}

enum emulator_result emulator_kernel_find(const char *name, uint64_t *kernel_out)
{
    for (uint32_t i = 0; kernel_at(i)->name != NULL; i++) {
        if (strcmp(kernel_at(i)->name, name) != 0) continue;
        *kernel_out = emulator_handle(EMULATOR_KERNEL, 1, i);
        return EMULATOR_OK;
    }
    emulator_say("no kernel has the name %s", name);
    return EMULATOR_NOT_FOUND;
}

static const struct kernel *find(uint64_t kernel)
{
    for (uint32_t i = 0; kernel_at(i)->name != NULL; i++)
        if (kernel == emulator_handle(EMULATOR_KERNEL, 1, i)) return kernel_at(i);
    return NULL;
}

bool emulator_kernel_known(uint64_t kernel)
{
    return find(kernel) != NULL;
}

static void add_range(void *context, uint64_t address, uint64_t bytes, bool writes)
{
    struct sink *sink = context;
    if (sink->result != EMULATOR_OK || bytes == 0) return;
    if (!emulator_memory_has(address) && emulator_host_pinned(address, bytes) != EMULATOR_PINNED) {
        emulator_say("%s: host memory that is not pinned, at %#" PRIx64, sink->name, address);
        sink->result = EMULATOR_ILLEGAL_ADDRESS;
        return;
    }
    sink->result = emulator_memory_touch(sink->touch, sink->device, address, bytes, writes,
                                         sink->name);
}

/* With the lock: of the kernel that this thread has just run, or asked for its ranges. */
static enum emulator_result judge_alignment(const struct emulator_op *op)
{
    if (kernel_misaligned == 0) return EMULATOR_OK;
    emulator_say("%s: address %#" PRIx64 " is not aligned to what is accessed there", op->name,
                 kernel_misaligned);
    return EMULATOR_MISALIGNED_ADDRESS;
}

static enum emulator_result touch_launch(struct emulator_op *op, struct emulator_touch *touch)
{
    const struct launch_op *launch = (const struct launch_op *)op;
    const struct kernel_list *list = &launch->list;
    struct sink sink = { touch, op->name, op->device, EMULATOR_OK };
    if (launch->fails != EMULATOR_OK) return launch->fails;
    kernel_misaligned = 0;
    add_range(&sink, list->items, list->count * launch->kernel->item_bytes, false);
    if (sink.result == EMULATOR_OK) launch->kernel->ranges(list, add_range, &sink);
    const enum emulator_result result = judge_alignment(op);
    return result != EMULATOR_OK ? result : sink.result;
}

static enum emulator_result run_launch(struct emulator_op *op)
{
    const struct launch_op *launch = (const struct launch_op *)op;
    uint64_t block = launch->first;
    kernel_misaligned = 0;
    for (uint32_t i = 0; i < launch->blocks && kernel_misaligned == 0; i++) {
        launch->kernel->run(&launch->list, (uint32_t)block, launch->blocks);
        block = (block + launch->stride) % launch->blocks;
    }
    pthread_mutex_lock(&emulator_lock);
    const enum emulator_result result = judge_alignment(op);
    pthread_mutex_unlock(&emulator_lock);
    return result;
}

/* ---- gaps ---- */

uint64_t emulator_launches, emulator_gaps;
static uint64_t last[EMULATOR_DEVICES]
                    [EMULATOR_SLOTS]; /* launch of each stream, as streams count */

static void count_launch(uint32_t slot, uint32_t device, uint64_t number)
{
    bool is_gap = true;
    for (uint32_t i = 0; i < EMULATOR_SLOTS; i++)
        is_gap = is_gap && emulator_host.at[i] >= last[device][i];
    last[device][slot] = number;
    emulator_launches++;
    if (is_gap) emulator_gaps++;
}

static void close_launch(struct emulator_op *op)
{
    free(op);
}

static uint32_t common_divisor(uint32_t a, uint32_t b)
{
    while (b != 0) {
        const uint32_t rest = a % b;
        a = b;
        b = rest;
    }
    return a;
}

static enum emulator_result judge(const struct emulator_grid *grid)
{
    const uint64_t threads = (uint64_t)grid->threads[0] * grid->threads[1] * grid->threads[2];
    const uint32_t *b = grid->blocks;
    if (threads == 0 || threads > THREADS_MAX || grid->threads[2] > 64)
        return EMULATOR_INVALID_VALUE;
    if (b[0] == 0 || b[1] == 0 || b[2] == 0 || b[0] > INT32_MAX) return EMULATOR_INVALID_VALUE;
    if (grid->shared_bytes > SHARED_MAX) return EMULATOR_INVALID_VALUE;
    if (b[1] > 1 || b[2] > 1 || grid->threads[1] > 1 || grid->threads[2] > 1) {
        emulator_say(
            "a launch of more than one dimension: the emulated card has none of these kernels");
        return EMULATOR_NOT_SUPPORTED;
    }
    return EMULATOR_OK;
}

enum emulator_result emulator_launch(uint64_t handle, const struct emulator_grid *grid,
                                     uint32_t slot, uint32_t device, void **parameters)
{
    const struct kernel *kernel = find(handle);
    if (kernel == NULL) return EMULATOR_INVALID_HANDLE;
    enum emulator_result result = judge(grid);
    if (result == EMULATOR_OK && (parameters == NULL || parameters[0] == NULL))
        result = EMULATOR_INVALID_VALUE;
    if (result == EMULATOR_OK) result = emulator_fault_call(&emulator_options.call_fails);
    if (result != EMULATOR_OK) return result;
    if (grid->threads[0] != kernel->block_threads)
        emulator_complain("%s: blocks of %u threads, where all of it have %u", kernel->name,
                          grid->threads[0], kernel->block_threads);
    struct launch_op *launch = calloc(1, sizeof *launch);
    if (launch == NULL) return EMULATOR_OUT_OF_MEMORY;
    launch->op.name = kernel->name;
    launch->op.touch = touch_launch;
    launch->op.run = run_launch;
    launch->op.close = close_launch;
    launch->op.counts = true;
    launch->kernel = kernel;
    launch->blocks = grid->blocks[0];
    launch->first = (uint32_t)emulator_chance(launch->blocks);
    do launch->stride = 1 + (uint32_t)emulator_chance(launch->blocks);
    while (common_divisor(launch->stride, launch->blocks) != 1);
    launch->fails = emulator_fault_launch();
    memcpy(&launch->list, parameters[0], sizeof launch->list);
    count_launch(slot, device, emulator_stream_mark(slot, device).number + 1);
    emulator_stream_put(slot, device, &launch->op, NULL);
    return EMULATOR_OK;
}
