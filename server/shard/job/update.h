/* The arithmetic of a round behind its folds: reduce, update, first publish. Loop thread. */
#ifndef CAIRN_SHARD_JOB_UPDATE_H
#define CAIRN_SHARD_JOB_UPDATE_H

#include "gpu/gpu.h"
#include "proto/spec/results.h"
#include "server/base/log.h"
#include "server/shard/base/compute.h"
#include "server/shard/collect/collector.h"
#include "server/shard/job/times.h"

struct cairn_shard_job;

struct cairn_pass_kind;

/* The round at hand. REDUCE, UPDATE and the first publish are passes over the chunks here, one at a time:
 * what has [table.trained_count] elements is by chunk. */
struct cairn_pass {
    struct cairn_run run;                  /* the pass at hand */
    const struct cairn_pass_kind *kind;    /* of it */
    const struct cairn_chunk_table *table; /* borrowed: of the part that is worked on */
    struct cairn_step_actions actions;     /* owned: the list of the own part's collector */
    struct cairn_round_times times;        /* of the round at hand, or of the last one */
    bool is_small; /* a pass takes no longer than to wake another thread for it */
    bool is_far;   /* the planes exceed the caches: kernels may write around them */
    bool *zero;    /* owned: [trained_count] nobody contributed to the chunk: its sum is +0 */
    /* owned: [trained_count] chunk_sums[c]: sums made during chunk c's last fold, else by REDUCE. UPDATE
     * notes in `nonfinite` what it made of the chunk. */
    struct cairn_sums *chunk_sums;
    /* owned: [trained_count] summed[c]: the sums of chunk c's last fold are still valid */
    bool *summed;
    struct cairn_sums *sums;             /* owned: [lanes of the compute] of the pass at hand */
    struct cairn_group_scalars *scalars; /* owned: [spec.group_count] of the UPDATE at hand */
    struct cairn_version version_next;   /* that the UPDATE at hand makes */
    struct cairn_results gradients;      /* sums of the last REDUCE that are not finite */
    struct cairn_results results;        /* of the last UPDATE, likewise; of a write: none */
    struct cairn_log_limit results_said;
    bool updating;      /* the UPDATE was decided and is not published yet */
    bool update_waits;  /* for copies of pins, and for sends out of the copy that is written next */
    bool update_writes; /* the UPDATE is a write's */
    bool settling;      /* cairn_shard_job_settle is at work */
};

/* With the job. CAIRN_ERR_NO_MEMORY: to be freed all the same. */
CAIRN_MUST_CHECK cairn_status cairn_pass_open(struct cairn_shard_job *job,
                                              const struct cairn_chunk_table *table);
void cairn_pass_close(struct cairn_shard_job *job);

/* What the core asks for. */
void cairn_pass_zero(struct cairn_shard_job *job, uint32_t chunk);
void cairn_pass_reduce(struct cairn_shard_job *job);
void cairn_pass_update(struct cairn_shard_job *job, const struct cairn_decision *decision);
/* A copy of a pin, or what was sent of a published copy, ended: an update that waits may begin. */
void cairn_pass_copies_ended(struct cairn_shard_job *job);
/* SEALING: publishes param as `generation, step of the core`, then SERVING. */
void cairn_pass_seal(struct cairn_shard_job *job);

#endif
