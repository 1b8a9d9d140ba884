/* Loading a snapshot. Loop thread. */
#ifndef CAIRN_SHARD_STATE_RESTORE_H
#define CAIRN_SHARD_STATE_RESTORE_H

#include "proto/base/sentence.h"

struct cairn_shard_job;

/* LOADING: reads the state out of job->load.path, and tells the digests of what it has then as the
 * SnapshotPart job->load.digest, if that is not 0. CAIRN_ERR_NO_MEMORY: not begun. */
CAIRN_MUST_CHECK cairn_status cairn_restore_begin(struct cairn_shard_job *job,
                                                  struct cairn_sentence *why);

#endif
