/* What the files of this room have in common: one change of the layout, and the clock of all. Private to
 * them. */
#ifndef CAIRN_SHARD_MOVE_PART_H
#define CAIRN_SHARD_MOVE_PART_H

#include "server/shard/move/take.h"
#include "server/shard/shard.h"

/* Forgets it: who asks us by it leaves, what it asks for is not awaited, what it took of the budget for
 * itself is back. NULL is fine. */
void cairn_move_part_drop(struct cairn_shard_job *job, struct cairn_move_part *part);
/* The view of before whose state is here still: what goes back to it has not to come. NULL: settled, or the
 * one in force went back to it. */
const struct cairn_shard_view *cairn_move_kept(const struct cairn_shard_job *job);
/* Of all planes in host memory, what `view` has and `beside` has not. */
uint64_t cairn_move_bytes_beyond(const struct cairn_shard_job *job,
                                 const struct cairn_shard_view *view,
                                 const struct cairn_shard_view *beside);
/* What of a device no view has any more that is in force, prepared or not settled goes back. */
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
