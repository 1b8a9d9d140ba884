/* Initial state that the shards make themselves. Loop thread. */
#ifndef CAIRN_SHARD_STATE_ORIGIN_H
#define CAIRN_SHARD_STATE_ORIGIN_H

#include <stdbool.h>

#include "proto/base/sentence.h"

struct cairn_shard_job;

/* The job names weights, or a tensor here has an initializer. */
bool cairn_origin_wanted(const struct cairn_shard_job *job);
/* LOADING: makes what there is to make; what is left is to be put. CAIRN_ERR_NO_MEMORY: not begun. */
CAIRN_MUST_CHECK cairn_status cairn_origin_begin(struct cairn_shard_job *job,
                                                 struct cairn_sentence *why);

#endif
