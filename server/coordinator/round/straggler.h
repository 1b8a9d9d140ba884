/* Finds who holds a job's rounds up, by worker and phase. Two signs count. Over the last steps,
 * a phase takes one worker more than twice as long as the middle of the others, and a step is at
 * least a tenth longer for it. Or the open round has waited for a worker for more than a second,
 * and longer than two of the others' steps. A worker that says that what it fetches or has
 * pushed is still on its way is held up by its link, not by its compute. Nobody is named unless
 * it is clear. Loop thread only. */
#ifndef CAIRN_COORDINATOR_ROUND_STRAGGLER_H
#define CAIRN_COORDINATOR_ROUND_STRAGGLER_H

#include "server/coordinator/base/names.h"
#include "server/coordinator/round/times.h"

enum { CAIRN_STRAGGLER_STEPS = 8, CAIRN_STRAGGLER_LACKS = 8 };

/* The phases of a worker's step, as StepTimes has them. */
enum cairn_phase { CAIRN_PHASE_COMPUTE, CAIRN_PHASE_PUSH, CAIRN_PHASE_WAIT, CAIRN_PHASE_FETCH };

/* A worker's medians over its last CAIRN_STRAGGLER_STEPS steps. Where micro-batches are dealt,
 * compute and push are for one micro-batch, since one worker may have more of them than another. */
struct cairn_straggler_sample {
    uint32_t us[CAIRN_TIMES_PHASES];
    uint32_t micros; /* that it has in a step, at least 1 */
    bool told;       /* there are enough of them */
};
struct cairn_straggler_found {
    size_t index; /* in the samples */
    enum cairn_phase phase;
    uint32_t us, others_us; /* of that phase: its own, the middle of the others */
    uint64_t longer_us;     /* a step is, by that */
};
/* Judges the last steps. Pure; scratch: [count]. False: nobody clearly holds the others up. */
bool cairn_straggler_find(const struct cairn_straggler_sample *samples, size_t count,
                          uint32_t *scratch, struct cairn_straggler_found *out);

/* A member of whom a shard lacks something of the round; begun: it has a part of it. */
struct cairn_straggler_lack {
    uint64_t member;
    bool begun;
};

/* The straggler of a job. */
struct cairn_cluster_straggler {
    uint64_t round,
        opened_ms;     /* cairn_cluster_now_ms: the last round that opened; round 0: a write */
    uint64_t asked_ms; /* its shards were asked whom they lack */
    bool answered;     /* a shard has, since */
    struct cairn_straggler_lack lacks[CAIRN_STRAGGLER_LACKS]; /* of all shards that answered */
    uint32_t lack_count;
    /* what was found last; member 0: nobody */
    uint64_t member, waited_ms; /* waited_ms: by the open round; 0: over the last steps */
    uint32_t others;            /* beside it, for whom the open round waits, too */
    enum cairn_phase phase;
    bool flies; /* the open round waits for what is on its way to or from the worker */
    uint32_t us, others_us;
    /* what the log was told, and when */
    uint64_t said_member, said_ms;
    enum cairn_phase said_phase;
};

/* A round is open, of steps or (write) of a write. */
void cairn_cluster_straggler_opened(struct cairn_cluster_job *job, uint64_t round, bool write);
/* Takes a shard's word of what it lacks of the open round, at the step's deadline or since we
 * asked. */
void cairn_cluster_straggler_lacks(struct cairn_cluster_job *job, const Cairn__Lacks *lacks);
/* Judges anew, and tells the log what is new. */
void cairn_cluster_straggler_tick(struct cairn_cluster_job *job);

/* A message with what it borrows. */
struct cairn_straggler_view {
    Cairn__Straggler told;
    struct cairn_sentence text;
};
/* Fills in `straggler` of the status; NULL stays where nobody holds the job up. */
void cairn_cluster_straggler_show(const struct cairn_cluster_job *job,
                                  struct cairn_straggler_view *view, Cairn__JobStatus *status);

#endif
