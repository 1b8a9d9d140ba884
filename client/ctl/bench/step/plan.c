/* The memory that the bench shares with its workers: they write there what happened when. */
#include <sys/mman.h>

#include "client/ctl/bench/bench.h"
#include "client/ctl/bench/step/step.h"

static size_t spans_bytes(const struct step_plan *plan, uint32_t workers)
{
    return (size_t)workers * STEP_SPANS_EACH(plan->model.tensors) * sizeof *plan->spans;
}

static size_t shared_bytes(const struct step_plan *plan, uint32_t workers)
{
    return spans_bytes(plan, workers) + workers * sizeof *plan->rounds;
}

bool cairn_bench_step_plan_share(struct step_plan *plan, uint32_t workers)
{
    void *shared = mmap(NULL, shared_bytes(plan, workers), PROT_READ | PROT_WRITE,
                        MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED) {
        (void)cairn_ctl_fail(CAIRN_ERR_NO_MEMORY, "no memory");
        return false;
    }
    plan->spans = shared;
    plan->rounds = (uint64_t *)(void *)((char *)shared + spans_bytes(plan, workers));
    return true;
}

void cairn_bench_step_plan_release(struct step_plan *plan, uint32_t workers)
{
    munmap(plan->spans, shared_bytes(plan, workers));
    plan->spans = NULL;
    plan->rounds = NULL;
}
