/* The terms of a job: its spec as the coordinator's store has it. Loop thread. */
#ifndef CAIRN_SHARD_JOB_TERMS_H
#define CAIRN_SHARD_JOB_TERMS_H

#include "proto/snapshot/digest_tree.h"
#include "proto/wire/messages.h"

struct cairn_shard;

struct cairn_terms {
    bool settled;               /* a coordinator has said that this generation is in its store */
    uint64_t revision;          /* of the newest spec that the shard was told of */
    struct cairn_paged amended; /* owned: the bytes of that spec; none if it is job->spec */
    struct cairn_hash digest;   /* of the bytes of that spec, as they came */
};

/* JobTerms; owns the message. */
void cairn_terms_on_message(struct cairn_shard *shard, uint32_t request, Cairn__JobTerms *message);

#endif
