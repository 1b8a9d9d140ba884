/* Copies of a card's memory for shards that do not take it from where it lies: begun a few chunks before they
 * are sent, so that one wait is for several, and the card copies while the shards work. Loop thread. */
#ifndef CAIRN_CLIENT_PUSH_STAGE_H
#define CAIRN_CLIENT_PUSH_STAGE_H

#include "proto/base/status.h"

struct cairn_fabric_peer;
struct parcel;
struct shard_link;

/* Of an owner: as many chunks are copied before they are sent. */
#define CAIRN_STAGE_AHEAD 8

/* A push that was just cut; whoever pushes host memory may call it, too. */
void cairn_stage_queue(struct parcel *parcel);
/* Begins copies of what is queued for the owner, as many as may be ahead. */
void cairn_stage_fill(struct shard_link *owner);
/* What is sent to the peer now is there: the memory itself, or its copy. */
cairn_status cairn_stage_place(struct parcel *parcel,
                               const struct cairn_fabric_peer *peer) CAIRN_MUST_CHECK;
/* The parcel is over, sent or not: nothing of its copy is under way any more. */
void cairn_stage_end(struct parcel *parcel);

#endif
