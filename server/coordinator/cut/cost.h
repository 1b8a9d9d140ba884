/* The cost of a job's snapshots: by how much its steps took longer while a snapshot was written.
 * It is counted with each step, in memory alone: a new incarnation of the coordinator begins
 * anew. Loop thread only. */
#ifndef CAIRN_COORDINATOR_CUT_COST_H
#define CAIRN_COORDINATOR_CUT_COST_H

#include "server/coordinator/base/names.h"
#include "server/coordinator/round/pace.h"

struct cairn_cluster_cut;

enum {
    CAIRN_COST_SNAPSHOTS = 8, /* the last so many count */
    CAIRN_COST_STEPS = 8      /* without a cut, before one can be compared with them */
};

/* A job's costs. Zero: nothing was measured. */
struct cairn_cluster_cost {
    struct cairn_cluster_pace plain; /* steps without a cut; seen stays unused */
    /* of the snapshot that is being taken, or ended within the open step */
    bool is_counting, has_ended, is_committed;
    uint64_t number;            /* the cut's */
    int64_t extra_us, usual_us; /* usual_us 0: there was nothing to compare with */
    uint64_t write_us;
    /* of the last that were committed */
    uint32_t extras_us[CAIRN_COST_SNAPSHOTS], writes_us[CAIRN_COST_SNAPSHOTS];
    uint32_t next, count;
};

/* A step of the job has ended, and took job->pace.last_us; before anybody begins a cut at its version. */
void cairn_cluster_cost_note_step(struct cairn_cluster_job *job);
/* The cut has ended, well or not. */
void cairn_cluster_cost_ended(const struct cairn_cluster_cut *cut);

#endif
