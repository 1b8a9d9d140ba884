/* Lists the contributors of which something is missing in the open round. Loop thread. */
#ifndef CAIRN_SHARD_LATE_H
#define CAIRN_SHARD_LATE_H

#include "proto/wire/messages.h"

struct cairn_shard_job;

/* Answers by Lacks. */
void cairn_shard_job_tell_lacks(struct cairn_shard_job *job, const Cairn__LacksGet *message);

#endif
