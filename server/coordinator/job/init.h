/* The initial state of a job: who put it, whether all put the same, and its seal. */
#ifndef CAIRN_COORDINATOR_JOB_INIT_H
#define CAIRN_COORDINATOR_JOB_INIT_H

#include "server/coordinator/base/names.h"

#define CAIRN_INIT_DIGEST_BYTES 32
/* The digest of the initial state that a rank has, as that rank reports it. */
struct cairn_init_digest {
    bool known;
    uint8_t bytes[CAIRN_INIT_DIGEST_BYTES];
    uint32_t rank;
};

/* A job's initial state. Digests are kept while this coordinator lives. */
struct cairn_cluster_init {
    bool seal_wanted, seal_running; /* the source said InitDone; the shards are asked */
    bool sourced;        /* a source said InitDone; with tiles the others put theirs, too */
    uint64_t moments_of; /* the member that put moments, too; 0: none did */
    struct cairn_init_digest source, given; /* what the source put, and what the callers gave */
    /* owned: what its tensors have missed before it began, until it is made; NULL: nothing */
    uint8_t *payload;
    size_t payload_bytes;
};

/* A member's InitDone. */
struct cairn_cluster_member_init {
    uint32_t request;                /* InitDone */
    struct cairn_init_digest digest; /* of what it put */
    uint8_t *held; /* owned: InitDone.held, [tensor_count]; NULL: not to be compared */
};

void cairn_cluster_member_init_done(struct cairn_cluster_member *member, uint32_t request,
                                    const Cairn__InitDone *message);
/* Seals it, if that is wanted and all shards are there. */
void cairn_cluster_job_try_seal(struct cairn_cluster_job *job);

/* ---- replicas.c ---- */

#define CAIRN_INIT_HELD_BYTES 8 /* a tensor */
/* InitDone.held of a member. CAIRN_ERR_MALFORMED, CAIRN_ERR_NO_MEMORY. */
CAIRN_MUST_CHECK cairn_status cairn_cluster_replicas_take(struct cairn_cluster_member *member,
                                                          const ProtobufCBinaryData *held);
/* Ranks that hold the same box of a tensor have put the same; else false, and why. */
bool cairn_cluster_replicas_agree(const struct cairn_cluster_job *job, struct cairn_sentence *why);

#endif
