/* A pass: the same for each of a job's chunks, in the home where it lies. A job that has some on a device and
 * some in host memory has a part of it in each; they work beside each other. Loop thread, but for what
 * describe and conclude call. */
#ifndef CAIRN_SHARD_JOB_PASS_H
#define CAIRN_SHARD_JOB_PASS_H

#include "gpu/gpu.h"
#include "proto/spec/results.h"
#include "server/base/log.h"
#include "server/shard/base/compute.h"
#include "server/shard/collect/collector.h"
#include "server/shard/job/times.h"

struct cairn_shard_job;

/* The functions in which kinds of passes differ; describe and conclude are as in struct
 * cairn_run. */
struct cairn_pass_kind {
    bool (*describe)(struct cairn_run *run, uint32_t item, uint32_t stage,
                     struct cairn_works *works);
    void (*conclude)(struct cairn_run *run, uint32_t item, uint32_t thread);
    void (*done)(struct cairn_shard_job *job); /* of one that did not fail */
};

/* The part of a pass that is done in one home: some of the trained chunks, then some of all
 * chunks. */
struct cairn_pass_part {
    struct cairn_run run; /* first */
    struct cairn_shard_job *job;
    struct cairn_sums *sums;       /* owned: [lanes of run.compute] of the pass at hand */
    uint32_t trained_first, first; /* by chunk */
    uint32_t trained_count;        /* of the pass at hand */
};

/* The round at hand. REDUCE, UPDATE and the first publish are passes over the chunks here, one at a
 * time. Arrays of [table.trained_count] are indexed by chunk. */
struct cairn_pass {
    struct cairn_pass_part device, host;   /* of the pass at hand */
    uint32_t parts_left;                   /* under way */
    bool failed;                           /* a part of the pass at hand did */
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
    /* owned: of the UPDATE at hand: [spec.group_count], then those of the classes of `missed` */
    struct cairn_group_scalars *scalars;
    struct cairn_missed missed; /* borrowed: in the decision that the core has until the next one */
    struct cairn_version version_next; /* that the UPDATE at hand makes */
    struct cairn_results gradients;    /* sums of the last REDUCE that are not finite */
    /* owned: [spec.tensor_count] of the last REDUCE, if missing gradients are left: tensors, and of how many
     * of their elements here nobody has a gradient */
    uint32_t *untouched_tensors;
    uint64_t *untouched_elems;
    uint32_t untouched_count;
    struct cairn_results results; /* of the last UPDATE, likewise; of a write: none */
    struct cairn_log_limit results_said;
    /* the newest version is being written once more; what follows. NULL: it is not */
    void (*republished)(struct cairn_shard_job *job);
    bool reduce_waits;  /* for that */
    bool updating;      /* the UPDATE was decided and is not published yet */
    bool update_waits;  /* (or that) for sends out of the copy that is written next */
    bool update_writes; /* the UPDATE is a write's */
    bool settling;      /* cairn_shard_job_settle is at work */
};

/* With the job. CAIRN_ERR_NO_MEMORY: to be freed all the same. */
CAIRN_MUST_CHECK cairn_status cairn_pass_open(struct cairn_shard_job *job,
                                              const struct cairn_chunk_table *table);
void cairn_pass_close(struct cairn_shard_job *job);
/* The arrays of a pass that are indexed by chunk, made for another table. */
struct cairn_pass_tables {
    const struct cairn_chunk_table *table; /* borrowed */
    bool *zero, *summed;                   /* owned */
    struct cairn_sums *chunk_sums;         /* owned */
};
/* CAIRN_ERR_NO_MEMORY. */
CAIRN_MUST_CHECK cairn_status cairn_pass_tables_open(const struct cairn_chunk_table *table,
                                                     struct cairn_pass_tables *tables_out);
/* Also of what is all zero. */
void cairn_pass_tables_close(struct cairn_pass_tables *tables);
/* Passes are over these chunks from here on; none is under way. Takes the tables. */
void cairn_pass_switch(struct cairn_shard_job *job, struct cairn_pass_tables *tables);

/* Planes lie elsewhere than they did: none is under way. */
void cairn_pass_divide(struct cairn_shard_job *job);
/* Begins a pass over the trained chunks, then over all chunks, if each is wanted. One pass at a
 * time. */
void cairn_pass_submit(struct cairn_shard_job *job, bool trained, bool all,
                       const struct cairn_pass_kind *kind);
/* The sums of all threads of the pass that ended, in both homes. */
struct cairn_step_sums cairn_pass_sums(const struct cairn_shard_job *job);

/* ---- of a run of a pass; any thread ---- */
struct cairn_shard_job *cairn_pass_job(const struct cairn_run *run);
#define CAIRN_PASS_NOT_TRAINED UINT32_MAX
/* The core's number of an item's chunk; CAIRN_PASS_NOT_TRAINED: the item is one of all chunks. */
uint32_t cairn_pass_trained(const struct cairn_run *run, uint32_t item);
/* The map's. */
uint32_t cairn_pass_chunk(const struct cairn_run *run, uint32_t item);

#endif
