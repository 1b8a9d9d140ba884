/* The next layout of a job is prepared beside the one in force. Loop thread. */
#ifndef CAIRN_SHARD_MOVE_PREPARE_H
#define CAIRN_SHARD_MOVE_PREPARE_H

#include "proto/wire/messages.h"

struct cairn_shard;
struct cairn_shard_job;

/* Owns the message. Answered when the memory for what comes is there: Done; or Error, and nothing changed. */
void cairn_move_on_prepare(struct cairn_shard *shard, uint32_t request,
                           Cairn__PartPrepare *message);
void cairn_move_on_unprepare(struct cairn_shard_job *job, const Cairn__PartUnprepare *message);

#endif
