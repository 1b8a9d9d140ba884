/* The storage of the snapshots, as this shard sees it: what is wrong goes with the heartbeats. Loop thread.
 * */
#ifndef CAIRN_SHARD_STORAGE_H
#define CAIRN_SHARD_STORAGE_H

#include "server/base/storage_watch.h"

struct cairn_shard;

CAIRN_MUST_CHECK cairn_status cairn_shard_storage_open(struct cairn_shard *shard,
                                                       struct cairn_sentence *why);

#endif
