/* Which generations of a job are held: JobCreate makes one, in the place of an older one or beside it,
 * JobSwitch says which of two serves, JobDrop ends all, and what
 * was to be made. Loop thread. */
#ifndef CAIRN_SHARD_JOB_CREATE_H
#define CAIRN_SHARD_JOB_CREATE_H

#include "server/shard/base/arriving.h"

enum { CAIRN_CREATE_SPEC, CAIRN_CREATE_LAYOUT }; /* what of a JobCreate comes in pages */

/* Owns the message. */
void cairn_create_on_message(struct cairn_shard *shard, uint32_t request,
                             Cairn__JobCreate *message);
void cairn_create_on_switch(struct cairn_shard *shard, const Cairn__JobSwitch *message);
void cairn_create_on_drop(struct cairn_shard *shard, uint32_t request,
                          const Cairn__JobDrop *message);
/* Memory, or what was held of a job, was given back: creates that waited for it go on, if nothing more is on
 * its way back. */
void cairn_create_on_memory_back(struct cairn_shard *shard);

#endif
