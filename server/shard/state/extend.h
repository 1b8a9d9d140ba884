/* A generation of a job, made of the one that serves. It is a second job of the same number, `staged`: seen
 * by handlers.c alone, until JobSwitch says which of the two stays. */
#ifndef CAIRN_SHARD_STATE_EXTEND_H
#define CAIRN_SHARD_STATE_EXTEND_H

#include "server/shard/shard.h"

/* LOADING: copies what `from`, which serves, has of the job's tensors, and makes the rest. CAIRN_ERR_INVALID:
 * a tensor stands elsewhere than it did, or is new and has no initializer. CAIRN_ERR_NOT_READY: `from` is not
 * at the job's step, or (the job's load ends so) changed meanwhile. CAIRN_ERR_NO_MEMORY. */
CAIRN_MUST_CHECK cairn_status cairn_extend_begin(struct cairn_shard_job *job,
                                                 struct cairn_shard_job *from,
                                                 struct cairn_sentence *why);

#endif
