/* When what of a round was done. Loop thread. */
#ifndef CAIRN_SHARD_JOB_TIMES_H
#define CAIRN_SHARD_JOB_TIMES_H

#include "server/core/step.h"

struct cairn_shard_job;

/* Microseconds of CLOCK_MONOTONIC; 0: not yet. */
struct cairn_round_times {
    uint64_t round;
    uint64_t action_us[CAIRN_STEP_FAULT + 1];     /* the first of each kind */
    uint64_t folding_us, updating_us, updated_us; /* the last FOLD; the pass of the UPDATE */
};

/* The action is about to be done. */
void cairn_times_note(struct cairn_shard_job *job, const struct cairn_step_action *action);
/* The pass of an UPDATE begins, and has ended. */
void cairn_times_updating(struct cairn_shard_job *job);
void cairn_times_updated(struct cairn_shard_job *job);
/* The phases of the round that is being published, in microseconds: collect, until the last
 * contribution was there; fold and add up; update, which writes the published copy as well;
 * publish: waiting until nobody reads the copy that is written, and telling. */
void cairn_times_phases(const struct cairn_shard_job *job, uint32_t us_out[4]);

#endif
