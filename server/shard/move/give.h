/* Forgets what this shard gave to others once the layout is settled, and publishes the newest
 * version by the layout in force. Loop thread. */
#ifndef CAIRN_SHARD_MOVE_GIVE_H
#define CAIRN_SHARD_MOVE_GIVE_H

#include "proto/wire/messages.h"

struct cairn_shard_job;

void cairn_move_on_settled(struct cairn_shard_job *job, const Cairn__PartSettled *message);
/* Answered when the newest version can be fetched by the layout in force. */
void cairn_move_on_publish(struct cairn_shard_job *job, uint32_t request,
                           const Cairn__PartPublish *message);

/* Of shard->up: the job does nothing any more; and: it is freed. */
void cairn_move_leave(struct cairn_shard_job *job);
void cairn_move_release(struct cairn_shard_job *job);

#endif
