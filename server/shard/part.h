#ifndef CAIRN_SHARD_PART_H
#define CAIRN_SHARD_PART_H

#include "gpu/gpu.h"
#include "proto/snapshot/digest_tree.h"
#include "proto/spec/spec.h"
#include "proto/wire/wire.h"
#include "server/base/log.h"
#include "server/core/step.h"
#include "server/shard/base.h"
#include "server/shard/collect.h"
#include "server/shard/memory.h"

/* ==== times ==== */

/* The times at which the phases of a round were done. Loop thread. */

/* Microseconds of CLOCK_MONOTONIC; 0: not yet. */
struct round_times {
    uint64_t round;
    uint64_t action_us[CAIRN_STEP_FAULT + 1];     /* the first of each kind */
    uint64_t folding_us, updating_us, updated_us; /* the last FOLD; the pass of the UPDATE */
};

/* Called just before the action is done. */
void times_note(struct shard_job *job, const struct step_action *action);

/* ==== terms ==== */

/* The terms of a job: the job's spec as the coordinator's store has it. Loop thread. */

struct terms {
    bool settled;         /* a coordinator has confirmed that this generation is in its store */
    uint64_t revision;    /* of the newest spec that the shard received */
    struct paged amended; /* owned: the bytes of that spec; no bytes if that spec is job->spec */
    struct hash digest;   /* of the bytes of that spec, as received */
};

/* ==== pass ==== */

/* A pass: the same work for each of a job's chunks, in the home where the chunk lies. A job with chunks on
 * a device and in host memory has a part of the pass in each home; the parts run at the same time. Loop
 * thread, except for describe, conclude and the functions that they call. */

/* The functions in which kinds of passes differ; describe and conclude are as in struct
 * work_run. */
struct pass_kind {
    bool (*describe)(struct work_run *run, uint32_t item, uint32_t stage, struct works *works);
    void (*conclude)(struct work_run *run, uint32_t item, uint32_t thread);
    void (*done)(struct shard_job *job); /* called if the pass did not fail */
};

/* The part of a pass that is done in one home. Its items are some of the trained chunks, then some of all
 * chunks. */
struct pass_part {
    struct work_run run; /* first */
    struct shard_job *job;
    struct sums *sums;             /* owned: [lanes of run.compute] of the current pass */
    uint32_t trained_first, first; /* by chunk */
    uint32_t trained_count;        /* of the current pass */
};

/* The current round. REDUCE, UPDATE and the first publish are passes over the chunks here, one at a time.
 * Arrays of [table.trained_count] are indexed by chunk. */
struct job_pass {
    struct pass_part device, host;   /* of the current pass */
    uint32_t parts_left;             /* under way */
    bool failed;                     /* a part of the current pass failed */
    const struct pass_kind *kind;    /* of the current pass */
    const struct chunk_table *table; /* borrowed: of the part of the job over which the pass runs */
    struct step_actions actions;     /* owned: the list of the own part's collector */
    struct round_times times;        /* of the current round, or of the last one */
    bool is_small;                   /* a pass takes no longer than waking another thread for it */
    bool is_far; /* the planes exceed the caches: kernels may write around them */
    bool *zero;  /* owned: [trained_count] nobody contributed to the chunk: its sum is +0 */
    /* owned: [trained_count] chunk_sums[c]: sums made during chunk c's last fold, else by REDUCE. UPDATE
     * adds to `nonfinite` the number of nonfinite values that it made in the chunk. */
    struct sums *chunk_sums;
    /* owned: [trained_count] summed[c]: the sums of chunk c's last fold are still valid */
    bool *summed;
    /* owned: of the current UPDATE: [spec.group_count], then those of the classes of `missed` */
    struct group_scalars *scalars;
    struct missed missed; /* borrowed: from the decision, which the core keeps until the next one */
    struct cairn_version version_next; /* the version that the current UPDATE makes */
    struct results gradients;          /* the sums of the last REDUCE that are not finite */
    /* owned: [spec.tensor_count] of the last REDUCE, if tensors without gradients are left alone: tensors,
     * and for each the number of its elements on this shard for which nobody had a gradient */
    uint32_t *untouched_tensors;
    uint64_t *untouched_elems;
    uint32_t untouched_count;
    /* the results of the last UPDATE that are not finite; none for a write */
    struct results results;
    struct log_limit results_said;
    /* called when the newest version has been written once more; NULL: no such writing is under way */
    void (*republished)(struct shard_job *job);
    bool reduce_waits; /* REDUCE waits for that writing */
    bool updating;     /* the UPDATE was decided and is not published yet */
    /* the UPDATE (or that writing) waits for sends out of the copy to be written next */
    bool update_waits;
    bool update_writes; /* the UPDATE belongs to a write */
    bool settling;      /* shard_job_settle is running */
};

/* Called when the job is opened. CAIRN_ERR_NO_MEMORY: call pass_close all the same. */
CAIRN_MUST_CHECK cairn_status pass_open(struct shard_job *job, const struct chunk_table *table);
void pass_close(struct shard_job *job);
/* The arrays of a pass that are indexed by chunk, made for another table. */
struct pass_tables {
    const struct chunk_table *table; /* borrowed */
    bool *zero, *summed;             /* owned */
    struct sums *chunk_sums;         /* owned */
};
/* CAIRN_ERR_NO_MEMORY. */
CAIRN_MUST_CHECK cairn_status pass_tables_open(const struct chunk_table *table,
                                               struct pass_tables *tables_out);
/* Accepts tables that are all 0, too. */
void pass_tables_close(struct pass_tables *tables);
/* Makes later passes run over these chunks. No pass may be under way. Takes ownership of the tables. */
void pass_switch(struct shard_job *job, struct pass_tables *tables);

/* Call when planes have been moved. No pass may be under way. */
void pass_divide(struct shard_job *job);

/* Says that an item of a run counts among all chunks, so that the core has no number for its chunk. */
#define CAIRN_PASS_NOT_TRAINED UINT32_MAX

/* ==== park ==== */

/* Parking: moves a job's planes from a device to host memory, and back, for programs that want the device
 * to themselves between two phases.
 *
 *   PartPark ─► host memory is admitted (memory.h) ─► copies ─► the device's memory is given back ─► Done
 *   and back ─► the device's memory is judged and taken ─► copies ─► the host's is given back ─► Done
 *
 * The coordinator opens no round while a job is parked. Its planes then lie in host memory:
 * fetches, snapshots, digests and leases continue from host memory, and a failure of the device does not
 * affect the job. Loop thread. */

struct park {
    /* a coordinator has parked the job, whether the planes are moved already or not. The next coordinator
     * is told of this, and of a move under way, before it opens a round */
    bool is_parked;
    bool is_under_way, to_host; /* to_host: of the current move */
    struct request asked;       /* the current move's PartPark */
    struct work_run copy;       /* copies areas to their destination: memory.h */
    uint64_t host_bytes;        /* counted in memory.state, while the job is parked */
};

/* ==== admit ==== */

/* Makes memory before anything relies on it. Loop thread. */

/* The slots in which a job's chunks land. A worker has the slots of its window, then slots for small
 * chunks, then slots without memory, for payloads that are read in place. */
struct job_landing {
    struct arena arena; /* the slots of one worker, then those of the next */
    /* slots of each worker; of these, the slots for small chunks, and the slots without memory */
    uint32_t window, small, in_place;
    size_t slot_bytes, small_bytes;
    uint32_t counted; /* slots that the budget counts: for the present number of workers */
    uint32_t made;    /* slots that have their pages */
    uint32_t asked;   /* slots that will have pages when the current reserve is done */
    bool extra;       /* the arena has slots for more workers than are present: admit_left */
};

/* Returns where the slot begins in the arena. For the index after the last slot, returns the end of the
 * last slot. */
uint64_t landing_at(const struct job_landing *landing, uint32_t slot);

/* Called when workers may have left: gives back the landing slots of workers that are no longer present, if
 * no round uses these slots. Gives back at most CAIRN_GIVE_MAX_BYTES in one loop iteration. Until all these
 * slots are given back, job->landing.extra is set, and this function is called again. */
void admit_left(struct shard_job *job);
/* Without large pages the kernel takes 0.4 s per GiB, so 25 ms for this much. */
#define CAIRN_GIVE_MAX_BYTES ((uint64_t)64 << 20)

#endif
