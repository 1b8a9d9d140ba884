/* Copies of a card's memory that pass through the host. A push to a shard that cannot read the
 * memory where it lies begins its copy a few chunks before the chunk is sent; a fetch begins its
 * copy as a chunk comes, and ends that chunk a few chunks later. So one wait serves several copies,
 * and the card copies while the shards work. Loop thread. */
#ifndef CAIRN_CLIENT_PUSH_STAGE_H
#define CAIRN_CLIENT_PUSH_STAGE_H

#include "proto/base/status.h"

struct job;
struct parcel;
struct shard_link;

/* How many chunks of an owner may be copied ahead of being sent, and how many chunks of a job may
 * be copied after they came. */
#define CAIRN_STAGE_AHEAD 8

/* A push that was just cut; whoever pushes host memory may call it, too. */
void cairn_stage_queue(struct parcel *parcel);
/* Begins copies of what is queued for the owner, as many as may be ahead. */
void cairn_stage_fill(struct shard_link *owner);
/* Sets the parcel's bytes to what is sent over that connection, the memory itself or its copy, and waits
 * until they are complete. */
cairn_status cairn_stage_place(struct parcel *parcel,
                               const struct shard_link *via) CAIRN_MUST_CHECK;
/* Begins the copy of bytes that came for a card's memory. The parcel ends when they are copied, at
 * the latest in cairn_stage_settle. */
void cairn_stage_land(struct parcel *parcel);
/* Before the loop sleeps: waits for the copies to the card and ends their parcels, if some
 * operation has nothing left but these. If none has, the rest of the operations is awaited first,
 * and the card copies meanwhile. */
void cairn_stage_settle(struct job *job);
/* The parcel is over, sent or not: nothing of its copy is under way any more. */
void cairn_stage_end(struct parcel *parcel);

#endif
