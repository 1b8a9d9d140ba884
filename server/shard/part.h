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

/* When what of a round was done. Loop thread. */

/* Microseconds of CLOCK_MONOTONIC; 0: not yet. */
struct round_times {
    uint64_t round;
    uint64_t action_us[CAIRN_STEP_FAULT + 1];     /* the first of each kind */
    uint64_t folding_us, updating_us, updated_us; /* the last FOLD; the pass of the UPDATE */
};

/* The action is about to be done. */
void times_note(struct shard_job *job, const struct step_action *action);

/* ==== terms ==== */

/* The terms of a job: its spec as the coordinator's store has it. Loop thread. */

struct terms {
    bool settled;         /* a coordinator has said that this generation is in its store */
    uint64_t revision;    /* of the newest spec that the shard was told of */
    struct paged amended; /* owned: the bytes of that spec; none if it is job->spec */
    struct hash digest;   /* of the bytes of that spec, as they came */
};

/* JobTerms; owns the message. */
void terms_on_message(struct shard_daemon *shard, uint32_t request, Cairn__JobTerms *message);

/* ==== pass ==== */

/* A pass: the same for each of a job's chunks, in the home where it lies. A job that has some on a device and
 * some in host memory has a part of it in each; they work beside each other. Loop thread, but for what
 * describe and conclude call. */

/* The functions in which kinds of passes differ; describe and conclude are as in struct
 * work_run. */
struct pass_kind {
    bool (*describe)(struct work_run *run, uint32_t item, uint32_t stage, struct works *works);
    void (*conclude)(struct work_run *run, uint32_t item, uint32_t thread);
    void (*done)(struct shard_job *job); /* of one that did not fail */
};

/* The part of a pass that is done in one home: some of the trained chunks, then some of all
 * chunks. */
struct pass_part {
    struct work_run run; /* first */
    struct shard_job *job;
    struct sums *sums;             /* owned: [lanes of run.compute] of the pass at hand */
    uint32_t trained_first, first; /* by chunk */
    uint32_t trained_count;        /* of the pass at hand */
};

/* The round at hand. REDUCE, UPDATE and the first publish are passes over the chunks here, one at a
 * time. Arrays of [table.trained_count] are indexed by chunk. */
struct job_pass {
    struct pass_part device, host;   /* of the pass at hand */
    uint32_t parts_left;             /* under way */
    bool failed;                     /* a part of the pass at hand did */
    const struct pass_kind *kind;    /* of it */
    const struct chunk_table *table; /* borrowed: of the part that is worked on */
    struct step_actions actions;     /* owned: the list of the own part's collector */
    struct round_times times;        /* of the round at hand, or of the last one */
    bool is_small;                   /* a pass takes no longer than to wake another thread for it */
    bool is_far; /* the planes exceed the caches: kernels may write around them */
    bool *zero;  /* owned: [trained_count] nobody contributed to the chunk: its sum is +0 */
    /* owned: [trained_count] chunk_sums[c]: sums made during chunk c's last fold, else by REDUCE. UPDATE
     * notes in `nonfinite` what it made of the chunk. */
    struct sums *chunk_sums;
    /* owned: [trained_count] summed[c]: the sums of chunk c's last fold are still valid */
    bool *summed;
    /* owned: of the UPDATE at hand: [spec.group_count], then those of the classes of `missed` */
    struct group_scalars *scalars;
    struct missed missed; /* borrowed: in the decision that the core has until the next one */
    struct cairn_version version_next; /* that the UPDATE at hand makes */
    struct results gradients;          /* sums of the last REDUCE that are not finite */
    /* owned: [spec.tensor_count] of the last REDUCE, if missing gradients are left: tensors, and of how many
     * of their elements here nobody has a gradient */
    uint32_t *untouched_tensors;
    uint64_t *untouched_elems;
    uint32_t untouched_count;
    struct results results; /* of the last UPDATE, likewise; of a write: none */
    struct log_limit results_said;
    /* the newest version is being written once more; what follows. NULL: it is not */
    void (*republished)(struct shard_job *job);
    bool reduce_waits;  /* for that */
    bool updating;      /* the UPDATE was decided and is not published yet */
    bool update_waits;  /* (or that) for sends out of the copy that is written next */
    bool update_writes; /* the UPDATE is a write's */
    bool settling;      /* shard_job_settle is at work */
};

/* With the job. CAIRN_ERR_NO_MEMORY: to be freed all the same. */
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
/* Also of what is all zero. */
void pass_tables_close(struct pass_tables *tables);
/* Passes are over these chunks from here on; none is under way. Takes the tables. */
void pass_switch(struct shard_job *job, struct pass_tables *tables);

/* Planes lie elsewhere than they did: none is under way. */
void pass_divide(struct shard_job *job);

/* The item of a run of a pass is one of all chunks: the core has no number for its chunk. */
#define CAIRN_PASS_NOT_TRAINED UINT32_MAX

/* ==== park ==== */

/* Parking: moves a job's planes from a device to host memory, and back, for programs that want the
 * device to themselves between two phases.
 *
 *   PartPark ─► host memory is admitted (memory.h) ─► copies ─► the device's memory goes back ─► Done
 *   the other way ─► the device's memory is judged and taken ─► copies ─► the host's goes back ─► Done
 *
 * The coordinator opens no round while a job is parked. Its planes then lie in host memory:
 * fetches, snapshots, digests and leases go on from there, and a device that fails does not affect
 * it. Loop thread. */

struct park {
    /* a coordinator has parked the job, whether its planes are moved already or not; the next
     * coordinator hears of it, and of a move under way, before it opens a round */
    bool is_parked;
    bool is_under_way, to_host; /* to_host: of the move at hand */
    struct request asked;       /* its PartPark */
    struct work_run copy;       /* of areas to where they go: memory.h */
    uint64_t host_bytes;        /* of memory.state, while it is parked */
};

/* Parks the job, or brings it back, and answers when that is done: at once if nothing of the job is
 * on a device, and at the end of a move to the same place that is under way, whoever began it.
 * CAIRN_ERR_NOT_READY; CAIRN_ERR_BUSY: the job is at work, or moves the other way, and is to be
 * asked again; CAIRN_ERR_NO_MEMORY: it stays where it is, with the numbers; CAIRN_ERR_IO: the
 * device failed. */
void park_on_message(struct shard_job *job, uint32_t request, const Cairn__PartPark *message);

/* ==== admit ==== */

/* Memory is there before it is counted on. Loop thread. */

/* Where chunks of a job land: a slot each. A worker's are those of its window, behind them those for small
 * chunks, and behind these those that have no memory: what they are for is read where it lies. */
struct job_landing {
    struct arena arena; /* a window of slots, then the next */
    /* slots of a worker; of these, those for small chunks, and those without memory */
    uint32_t window, small, in_place;
    size_t slot_bytes, small_bytes;
    uint32_t counted; /* slots in the budget: those of as many workers as there are */
    uint32_t made;    /* slots that have their pages, too */
    uint32_t asked;   /* will have, when what the reserve at work takes is there */
    bool extra;       /* of more workers than there are: admit_left */
};

/* Where the slot begins in the arena; of the one behind the last: where that ends. */
uint64_t landing_at(const struct job_landing *landing, uint32_t slot);

/* shard->up->loaded: seals the job, or awaits puts, or it leaves. */
void admit_loaded(struct shard_job *job, cairn_status status, const struct sentence *why,
                  bool puts_follow);
/* A member joined: answers when all workers that did have their landing slots; without room it leaves. */
void admit_member(struct shard_job *job, uint64_t member, struct request request);
/* Workers may have left: gives back what landed from more of them than there are, when no round uses it, and
 * so much of it in one turn of the loop; until then job->landing.extra is set, and this is called again. */
void admit_left(struct shard_job *job);
/* Without large pages the kernel takes 0.4 s for a GiB: 25 ms. */
#define CAIRN_GIVE_MAX_BYTES ((uint64_t)64 << 20)

#endif
