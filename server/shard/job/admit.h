/* Memory is there before it is counted on. Loop thread. */
#ifndef CAIRN_SHARD_JOB_ADMIT_H
#define CAIRN_SHARD_JOB_ADMIT_H

#include "proto/wire/messages.h"
#include "server/shard/memory/arena.h"
#include "server/shard/memory/reserve.h"

/* Where chunks of a job land: a slot each. A worker's are those of its window, behind them those for small
 * chunks, and behind these those that have no memory: what they are for is read where it lies. */
struct cairn_landing {
    struct cairn_arena arena; /* a window of slots, then the next */
    /* slots of a worker; of these, those for small chunks, and those without memory */
    uint32_t window, small, in_place;
    size_t slot_bytes, small_bytes;
    uint32_t counted; /* slots in the budget: those of as many workers as there are */
    uint32_t taken;   /* slots that have their pages, too */
    uint32_t asked;   /* will have, when what the reserve at work takes is there */
    bool extra;       /* of more workers than there are: cairn_admit_left */
};

/* Where the slot begins in the arena; of the one behind the last: where that ends. */
uint64_t cairn_landing_at(const struct cairn_landing *landing, uint32_t slot);

/* LOADING: takes the memory of a job that was just opened, then loads or makes its state (`snapshot_path`,
 * extend.h, origin.h) or awaits it; Done or an error, and it leaves, answers job->load.asked. */
CAIRN_MUST_CHECK cairn_status cairn_admit_job(struct cairn_shard_job *job,
                                              const Cairn__JobCreate *create,
                                              struct cairn_sentence *why);
/* shard->up->loaded: seals the job, or awaits puts, or it leaves. */
void cairn_admit_loaded(struct cairn_shard_job *job, cairn_status status,
                        const struct cairn_sentence *why, bool puts_follow);
/* A member joined: answers when all workers that did have their landing slots; without room it leaves. */
void cairn_admit_member(struct cairn_shard_job *job, uint64_t member, struct cairn_request request);
/* Workers may have left: gives back what landed from more of them than there are, when no round uses it, and
 * so much of it in one turn of the loop; until then job->landing.extra is set, and this is called again. */
void cairn_admit_left(struct cairn_shard_job *job);
/* Without large pages the kernel takes 0.4 s for a GiB: 25 ms. */
#define CAIRN_GIVE_MAX_BYTES ((uint64_t)64 << 20)

#endif
