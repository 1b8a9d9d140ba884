/* Copies of a card's memory that pass the host. Of what is pushed to shards that do not take it from where
 * it lies they are begun a few chunks before they are sent; of what is fetched, as it comes, and a chunk ends
 * a few later. So one wait is for several, and the card copies while the shards work. Loop thread. */
#ifndef CAIRN_CLIENT_PUSH_STAGE_H
#define CAIRN_CLIENT_PUSH_STAGE_H

#include "proto/base/status.h"

struct job;
struct parcel;
struct shard_link;

/* As many chunks are copied before they are sent, of an owner; or after they came, of a job. */
#define CAIRN_STAGE_AHEAD 8

/* A push that was just cut; whoever pushes host memory may call it, too. */
void cairn_stage_queue(struct parcel *parcel);
/* Begins copies of what is queued for the owner, as many as may be ahead. */
void cairn_stage_fill(struct shard_link *owner);
/* What is sent over that connection now is there: the memory itself, or its copy. */
cairn_status cairn_stage_place(struct parcel *parcel,
                               const struct shard_link *via) CAIRN_MUST_CHECK;
/* What came for a card's memory is on its way there; the parcel ends when it is copied, at the latest behind
 * cairn_stage_settle. */
void cairn_stage_land(struct parcel *parcel);
/* Before the loop sleeps: ends what came, if some operation has nothing left but that. Of another one the
 * rest is awaited, and what came is copied meanwhile. */
void cairn_stage_settle(struct job *job);
/* The parcel is over, sent or not: nothing of its copy is under way any more. */
void cairn_stage_end(struct parcel *parcel);

#endif
