/* Shared by the files of this room: one change of the layout, and the clock of all changes. Private
 * to them. */
#ifndef CAIRN_SHARD_MOVE_PART_H
#define CAIRN_SHARD_MOVE_PART_H

#include "server/shard/move/take.h"
#include "server/shard/shard.h"

/* Forgets a change of the layout: shards that take from us by it leave, its take is not awaited any
 * more, and what it took of the budget for itself goes back. NULL is fine. */
void cairn_move_part_drop(struct cairn_shard_job *job, struct cairn_move_part *part);
/* The view before the one in force, while its state is still here: parts of it need not come again.
 * NULL: it is settled, or the view in force has gone back to it. */
const struct cairn_shard_view *cairn_move_kept(const struct cairn_shard_job *job);
/* The bytes, over all planes in host memory, that `view` has and `beside` does not have. */
uint64_t cairn_move_bytes_beyond(const struct cairn_shard_job *job,
                                 const struct cairn_shard_view *view,
                                 const struct cairn_shard_view *beside);
/* Gives back the device memory that no view uses any more: neither the one in force, nor the
 * prepared one, nor the one before that is not settled. */
void cairn_move_trim(struct cairn_shard_job *job);
/* Calls cairn_move_tick until nothing waits any more. */
void cairn_move_wake(struct cairn_shard *shard);

/* ---- prepare.c ---- */
/* The prepared layout is not to come into force. */
void cairn_move_forget(struct cairn_shard_job *job);
/* A PartPrepare that waits until what was given, or prepared before it, is forgotten. */
void cairn_move_go_on(struct cairn_shard *shard, uint64_t job);

/* ---- give.c ---- */
/* PartSettled came: ends `now` if nothing of what was given is being sent any more. */
void cairn_move_settle(struct cairn_shard_job *job);

#endif
