#include "tests/gpu/emulator/kernels.h"

static void add_ranges(const struct kernel_list *list, kernel_note_fn note, void *context)
{
    note(context, list->pieces, list->count * sizeof(uint32_t), false);
    note(context, list->items, list->count * sizeof(uint32_t), true);
}

static void add_run(const struct kernel_list *list, uint32_t block, uint32_t blocks)
{
    uint32_t *to = kernel_memory_at(list->items);
    const uint32_t *from = kernel_memory_at(list->pieces);
    for (uint64_t i = block; i < list->count; i += blocks) to[i] += from[i];
}

static void ticket_ranges(const struct kernel_list *list, kernel_note_fn note, void *context)
{
    note(context, list->items, list->count * sizeof(uint32_t), true);
}

static void ticket_run(const struct kernel_list *list, uint32_t block, uint32_t blocks)
{
    static uint32_t next;
    (void)blocks;
    uint32_t *to = kernel_memory_at(list->items);
    to[block] = __atomic_fetch_add(&next, 1, __ATOMIC_RELAXED);
}

const struct kernel emulator_own_kernels[] = {
    { "emulator_add", sizeof(uint32_t), 256, add_run, add_ranges },
    { "emulator_ticket", sizeof(uint32_t), 256, ticket_run, ticket_ranges },
    { 0 },
};
