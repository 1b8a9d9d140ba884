/* Amendments of a job's spec: judged, made durable, told to the shards, answered. */
#ifndef CAIRN_COORDINATOR_JOB_AMEND_H
#define CAIRN_COORDINATOR_JOB_AMEND_H

#include "server/coordinator/base/names.h"

struct cairn_cluster_waiter;
struct cairn_cluster_amending;

/* A job's amendments. */
struct cairn_cluster_amends {
    /* owned: what is on its way to the store; NULL: nothing is */
    struct cairn_cluster_amending *amending;
    struct cairn_cluster_waiter *waiters; /* admins, of the one amendment that is theirs */
    uint64_t revision;                    /* of that amendment, once it is in the store; else 0 */
};

/* A member's requests to amend its job. */
struct cairn_cluster_amend_wait {
    uint32_t request;
    /* of the request, once it is in the store: answered when all shards have it */
    uint64_t revision;
    /* owned: of the request, while another one is on its way to the store */
    Cairn__JobAmend *later;
};

/* Judges an amendment, and takes it when it is durable; then the member is answered. */
void cairn_cluster_job_amend(struct cairn_cluster_member *member, uint32_t request,
                             const Cairn__JobAmend *amend);
/* The same, by an admin. */
void cairn_cluster_job_amend_by_name(struct cairn_cluster_session *session, uint32_t request,
                                     const Cairn__JobAmend *amend);
/* The job is LOST: nobody waits for its shards to have the amendment. */
void cairn_cluster_amenders_lost(struct cairn_cluster_job *job);
void cairn_cluster_amenders_forget(struct cairn_cluster *cluster,
                                   const struct cairn_cluster_session *session);
/* With the job; NULL is fine. */
void cairn_cluster_amending_free(struct cairn_cluster_amending *amending);
/* Does to a copy of the job's spec what the amendment says of tensors; canonical after it, not judged.
 * *extends_out: planes begin or end, so the shards have to make a new generation. */
cairn_status cairn_cluster_amend_tensors(struct cairn_job_spec_data *next,
                                         const Cairn__JobAmend *amend, bool *extends_out,
                                         struct cairn_sentence *why) CAIRN_MUST_CHECK;

/* ---- amend_shards.c: what the shards know of the spec that is in the store ---- */

/* Its generation is in the store, with this spec: to a shard that is up, if it does not know that yet. */
void cairn_cluster_terms_tell(struct cairn_cluster_job *job, uint32_t shard, bool settled);
void cairn_cluster_terms_tell_all(struct cairn_cluster_job *job);
/* The member's amendment, if it waits for one, is answered. */
void cairn_cluster_amend_done(struct cairn_cluster_member *member, uint64_t revision);
void cairn_cluster_amend_failed(struct cairn_cluster_member *member, cairn_status status,
                                const char *text);
/* Answers the amendments that all shards have. */
void cairn_cluster_terms_advance(struct cairn_cluster_job *job);

#endif
