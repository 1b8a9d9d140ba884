#include "proto/plan/moves.h"

int cairn_plan_same_tensors(const struct cairn_layout *a, const struct cairn_layout *b)
{
    if (a->tensor_count != b->tensor_count) return 0;
    for (uint32_t t = 0; t < a->tensor_count; t++)
        if (a->geometry[t].quantum_count != b->geometry[t].quantum_count) return 0;
    return 1;
}

/* Both tables cover the same quanta in the same order, so the walk needs no look at the tensors. */
int cairn_plan_walk_next(struct plan_walk *walk, struct plan_run *run_out)
{
    if (walk->at_current == walk->current->extent_count) return 0;
    const struct cairn_extent *now = &walk->current->extents[walk->at_current];
    const struct cairn_extent *then = &walk->target->extents[walk->at_target];
    const uint64_t now_end = now->first_quantum + now->quantum_count;
    const uint64_t then_end = then->first_quantum + then->quantum_count;
    const uint64_t end = now_end < then_end ? now_end : then_end;
    const uint64_t first = now->first_quantum > then->first_quantum ? now->first_quantum
                                                                    : then->first_quantum;
    *run_out = (struct plan_run) { now, then, first, end - first, then->shard };
    walk->at_current += end == now_end;
    walk->at_target += end == then_end;
    return 1;
}

uint64_t cairn_plan_run_bytes(const struct plan_walk *walk, const struct plan_run *run,
                              uint64_t first, uint64_t count)
{
    const struct cairn_geometry *g = &walk->current->geometry[run->extent->tensor];
    const uint64_t elems = cairn_quantum_first_elem(g, first + count) -
                           cairn_quantum_first_elem(g, first);
    return elems * walk->tensors[run->extent->tensor].elem_bytes;
}
