/* How fast a job goes: the time from one version to the next, as it passes here. Loop thread only. */
#ifndef CAIRN_COORDINATOR_ROUND_PACE_H
#define CAIRN_COORDINATOR_ROUND_PACE_H

#include "server/coordinator/base/names.h"
#include "server/core/decision.h"

enum { CAIRN_PACE_STEPS = 32 };

/* The pace of a job's steps. Zero: nothing is known. */
struct cairn_cluster_pace {
    struct cairn_version seen;
    uint64_t seen_us;              /* when it came; 0: it was there before */
    uint32_t us[CAIRN_PACE_STEPS]; /* of the last steps */
    uint32_t next, count;
    uint32_t last_us; /* the last step; 0: none was seen */
};

/* An event of the core is over. True: with it a step is, which took last_us. */
bool cairn_cluster_pace_advance(struct cairn_cluster_job *job);
/* A step took so long. */
void cairn_cluster_pace_note(struct cairn_cluster_pace *pace, uint32_t us);
/* The median of the last steps, in microseconds; 0: not known. */
uint32_t cairn_cluster_pace_median(const struct cairn_cluster_pace *pace);
/* Nobody trains: no worker is there, or no step came for a second and for longer than three usual ones. */
bool cairn_cluster_pace_rests(const struct cairn_cluster_job *job);
/* It trains, by steps of a second at most, and one of them is about to end: it can be waited for. */
bool cairn_cluster_pace_nears_step(const struct cairn_cluster_job *job);

#endif
