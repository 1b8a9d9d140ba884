/* How long the last steps took, by phase: each worker's as it tells with its commits, each shard's as it
 * tells with what it publishes; and who of the workers the others wait for. Loop thread only. */
#ifndef CAIRN_COORDINATOR_ROUND_TIMES_H
#define CAIRN_COORDINATOR_ROUND_TIMES_H

#include "server/coordinator/base/names.h"

enum { CAIRN_TIMES_STEPS = 32, CAIRN_TIMES_PHASES = 4 };

/* The last steps. Zero: none. */
struct cairn_step_ring {
    uint32_t us[CAIRN_TIMES_STEPS][CAIRN_TIMES_PHASES];
    uint32_t dealt[CAIRN_TIMES_STEPS]; /* micro-batches in each */
    uint32_t next, count;
    uint32_t
        micros; /* of global_batch: dealt to the worker in the step that it tells of next; 0: none are */
    bool has_memory; /* told with the last of them */
    Cairn__WorkerMemory memory;
};

/* NULL: it was not told. Phases that are missing are 0. */
void cairn_step_ring_take(struct cairn_step_ring *ring, const Cairn__StepTimes *told);
/* Medians; `out` is initialized and borrows `us`. False: there are no steps. */
bool cairn_step_ring_medians(const struct cairn_step_ring *ring, Cairn__StepTimes *out,
                             uint32_t us[CAIRN_TIMES_PHASES]);

/* The same of the last so many, and of what is the longer the more micro-batches were dealt: for one of them.
 * False: there are not half as many steps. */
bool cairn_step_ring_recent(const struct cairn_step_ring *ring, uint32_t steps,
                            uint32_t us[CAIRN_TIMES_PHASES]);
/* The upper one of two. Puts them in order. */
uint32_t cairn_times_median(uint32_t *values, size_t count);

struct cairn_times_view {
    struct cairn_times_entry *entries; /* owned */
    Cairn__StepTimes **list;           /* owned: to those of the entries */
};
/* Fills in `times` of the status. False: no memory. */
bool cairn_cluster_times_show(const struct cairn_cluster_job *job, struct cairn_times_view *view,
                              Cairn__JobStatus *status);
void cairn_cluster_times_release(struct cairn_times_view *view);

#endif
