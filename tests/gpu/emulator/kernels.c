#include "tests/gpu/emulator/kernels.h"

#include "tests/gpu/emulator/emulator.h"

void *emulator_at(uint64_t address)
{
    return (void *)(uintptr_t)(emulator_memory_has(address) ? address + emulator_distance
                                                            : address);
}

static void add_ranges(const void *args, uint32_t blocks, emulator_range_fn range, void *context)
{
    const struct emulator_add_args *a = args;
    (void)blocks;
    range(context, a->from, a->count * sizeof(uint32_t), false);
    range(context, a->to, a->count * sizeof(uint32_t), true);
}

static void add_block(const void *args, uint32_t block, uint32_t blocks)
{
    const struct emulator_add_args *a = args;
    uint32_t *to = emulator_at(a->to);
    const uint32_t *from = emulator_at(a->from);
    for (uint64_t i = block; i < a->count; i += blocks) to[i] += from[i];
}

static void ticket_ranges(const void *args, uint32_t blocks, emulator_range_fn range, void *context)
{
    range(context, ((const struct emulator_ticket_args *)args)->to, blocks * sizeof(uint32_t),
          true);
}

static void ticket_block(const void *args, uint32_t block, uint32_t blocks)
{
    static uint32_t next;
    (void)blocks;
    uint32_t *to = emulator_at(((const struct emulator_ticket_args *)args)->to);
    to[block] = __atomic_fetch_add(&next, 1, __ATOMIC_RELAXED);
}

const struct emulator_kernel emulator_own_kernels[] = {
    { "emulator_add", sizeof(struct emulator_add_args), add_ranges, add_block },
    { "emulator_ticket", sizeof(struct emulator_ticket_args), ticket_ranges, ticket_block },
    { 0 },
};
