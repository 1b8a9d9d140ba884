/* Which parts a shard holds, and of which store; and what a coordinator needs to adopt them. */
#ifndef CAIRN_SHARD_JOB_HELD_H
#define CAIRN_SHARD_JOB_HELD_H

#include "server/shard/shard.h"

/* Counts the parts that are held. If there are none, any coordinator is obeyed. */
size_t cairn_held_count(const struct cairn_shard *shard);
/* The part of that generation, faulted ones too; NULL: there is none, or it leaves. */
struct cairn_shard_job *cairn_held_find(struct cairn_shard *shard, uint64_t number,
                                        uint64_t generation);
/* Fills Hello's list, of at most CAIRN_SHARD_JOBS_MAX; returns how many. */
size_t cairn_held_list(const struct cairn_shard *shard, Cairn__HeldJob *out, bool full);
/* A coordinator says who it is: notes whether it is obeyed. */
void cairn_held_judge(struct cairn_shard *shard, const char *cluster);
/* The keys that a coordinator trusts; NULL: it tells of none. They are kept if that one is obeyed, for who
 * adopts what is held. */
void cairn_held_keys(struct cairn_shard *shard, const Cairn__Keys *keys);
void cairn_held_keys_release(struct cairn_shard *shard);
/* Handles the messages that a coordinator may send even if it is not obeyed, and refuses all others
 * of such a coordinator. False: the message is left to the caller. */
bool cairn_held_on_message(struct cairn_shard *shard, const struct cairn_frame *frame,
                           const ProtobufCMessage *message);

#endif
