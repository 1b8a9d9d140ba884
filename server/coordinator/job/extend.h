/* A new generation of a job at the same step, with other tensors or terms. */
#ifndef CAIRN_COORDINATOR_JOB_EXTEND_H
#define CAIRN_COORDINATOR_JOB_EXTEND_H

#include "server/coordinator/base/names.h"

/* A job's change to a new generation, if one is under way. */
struct cairn_cluster_extension {
    /* owned: spec, layout, shards and generation as they will be; NULL: the tensors stay what they are */
    struct cairn_cluster_job *body;
    bool making; /* the shards are at work: nobody joins */
    bool broken; /* one went away meanwhile, and may have dropped what it made */
};

/* Begins one, and takes `next`, a judged spec; those whose amend.request is set are answered at its end, and
 * job->amends.waiters. The open round is void if it is `member`'s, whose amendment it is (NULL: an admin's),
 * too. CAIRN_ERR_BUSY, CAIRN_ERR_NOT_READY,
 * CAIRN_ERR_NO_MEMORY, CAIRN_ERR_INVALID (too large): nothing was begun or taken. */
cairn_status cairn_cluster_extend_begin(struct cairn_cluster_job *job,
                                        struct cairn_cluster_member *member,
                                        struct cairn_job_spec_data *next,
                                        struct cairn_sentence *why) CAIRN_MUST_CHECK;
/* An event of the core is over: is this a step boundary? */
void cairn_cluster_extend_advance(struct cairn_cluster_job *job);
/* The job is lost: nothing is made of it. */
void cairn_cluster_extend_lost(struct cairn_cluster_job *job);
/* A shard of the job is gone. */
void cairn_cluster_extend_shard_gone(struct cairn_cluster_job *job);
/* The amendment with this key is under way. */
bool cairn_cluster_extend_is(const struct cairn_cluster_job *job, uint64_t key);
/* The job is freed, or the extension given up. */
void cairn_cluster_extension_release(struct cairn_cluster_job *job);
/* JobSwitch: only the part of that generation stays on the shard. */
void cairn_cluster_job_send_switch(const struct cairn_cluster_job *job,
                                   const struct cairn_cluster_seat *seat, uint64_t generation);

#endif
