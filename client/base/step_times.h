/* How long each phase of a worker's step took, from one commit to the next. The coordinator is told
 * with the commit. Under the session's lock, any thread. */
#ifndef CAIRN_CLIENT_BASE_STEP_TIMES_H
#define CAIRN_CLIENT_BASE_STEP_TIMES_H

#include <stdint.h>

#include "proto/wire/messages.h"

enum cairn_step_phase_times {
    CAIRN_TIME_COMPUTE, /* whatever is none of the others */
    CAIRN_TIME_PUSH,    /* calls waited until shards had added up what was pushed */
    CAIRN_TIME_WAIT,    /* for the end of a round and for the next one */
    CAIRN_TIME_FETCH,   /* for parameters */
    CAIRN_TIMES
};

struct step_times {
    uint64_t committed_round, committed_us; /* since then */
    uint64_t pushed_us;                     /* when nothing was left to be pushed, last */
    uint64_t us[CAIRN_TIMES];
    uint32_t told[CAIRN_TIMES]; /* of the step before */
};

/* A call waited for it, from then until now. */
void cairn_step_times_waited(struct step_times *times, enum cairn_step_phase_times phase,
                             uint64_t from_us);
/* Nothing that was pushed is under way any more. */
void cairn_step_times_pushed(struct step_times *times);
/* A call of commit returns, which began then: it waited for its pushes first, then for the round's end. */
void cairn_step_times_ended(struct step_times *times, uint64_t from_us);
/* The round is about to be committed: `out`, which borrows `times`, is for the coordinator. False: there
 * is no step before, or the round was committed already. */
bool cairn_step_times_commit(struct step_times *times, uint64_t round, Cairn__StepTimes *out);

#endif
