/* An adoption on its way: adopt.c asks the shards, adopt_plan.c judges what they hold, adopt_write.c puts it
 * into the store and goes on by it. */
#ifndef CAIRN_COORDINATOR_RESTORE_ADOPT_PRIVATE_H
#define CAIRN_COORDINATOR_RESTORE_ADOPT_PRIVATE_H

#include "server/base/pool.h"
#include "server/coordinator/base/names.h"
#include "server/coordinator/restore/adopt.h"
#include "server/coordinator/store/store.h"
#include "server/coordinator/trust/keys.h"
#include "server/core/standing.h"

/* A job that is to be adopted; what points into parts is good until the next HeldJobs. */
struct cairn_cluster_adoptee {
    Cairn__HeldJob *best;            /* borrowed: of the newest spec */
    struct cairn_cluster_seat *from; /* who has it */
    struct cairn_marks marks;        /* the highest of all */
    uint64_t generation, below;      /* the one that is judged; it is older than that */
    uint64_t version_generation, step, lowest_step;
    struct cairn_sentence refused; /* empty: it is whole */
    /* owned */
    char *name;
    struct cairn_stored_shard
        *shards; /* [CAIRN_SEATS_MAX], shard_count of them; names borrowed of the seats */
    uint32_t shard_count;
    struct cairn_paged spec, layout;
    uint64_t id, base_step;
    uint32_t request; /* of its PartGet; 0: not asked, or its pages are here */
};

struct cairn_cluster_adoption {
    struct cairn_task task;
    struct cairn_cluster *cluster;
    struct cairn_cluster_waiter *waiter;
    struct cairn_cluster_gather *gather; /* borrowed: what is asked; NULL: it is being written */
    uint32_t number;                     /* of no other adoption */
    bool plan;
    uint64_t began_ms;                  /* what is asked */
    struct cairn_cluster_adoptee *jobs; /* owned: [job_count] */
    size_t job_count;
    size_t asked_count; /* of the jobs: their parts were asked for, or they are refused */
    char **
        silent; /* owned: [silent_count], names borrowed of the seats: they did not say what they hold */
    size_t silent_count;
    struct cairn_stored_job *rows; /* owned: [row_count] */
    size_t row_count;
    struct cairn_trusted_key
        keys[CAIRN_KEYS_MAX]; /* [key_count]: who has what is adopted trusts them */
    size_t key_count;
    uint64_t former; /* the store that they were of; 0: of several, or of ours */
    uint64_t incarnation;
    cairn_status status;
    struct cairn_sentence why;
};

/* adopt_plan.c: which jobs there are on the shards that are here, each whole or refused. A shard that does
 * not say what it holds is taken as one that is away, and is named. */
cairn_status cairn_cluster_adoption_plan(struct cairn_cluster_adoption *adoption) CAIRN_MUST_CHECK;
/* It has answered this adoption. */
bool cairn_cluster_adoption_knows(const struct cairn_cluster_seat *seat);
/* Part `index` of it is nowhere: by which shard that may be. */
void cairn_cluster_adoption_missing(const struct cairn_cluster_adoption *adoption,
                                    const struct cairn_cluster_adoptee *job, uint32_t index,
                                    struct cairn_sentence *out);

/* adopt_write.c: the pages of all that is whole are here. Ends by an answer. */
void cairn_cluster_adoption_write(struct cairn_cluster_adoption *adoption);

/* adopt.c: the two ends of an adoption. They tell what is adopted, or would be; or why nothing
 * was. Both free the adoption. */
void cairn_cluster_adoption_answer(struct cairn_cluster_adoption *adoption);
void cairn_cluster_adoption_fail(struct cairn_cluster_adoption *adoption, cairn_status status,
                                 const char *text);

#endif
