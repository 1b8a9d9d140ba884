/* The memory of published copies: made, shown to members, brought to another view, closed; and the sides that
 * they have, in host memory and on a device. Which copy has which version: published.c. Private to read/. */
#ifndef CAIRN_SHARD_READ_COPIES_H
#define CAIRN_SHARD_READ_COPIES_H

#include "server/shard/read/published.h"

#define CAIRN_COPIES_ALWAYS 2 /* of every job; the others are for leases */

bool cairn_copy_is_there(const struct cairn_published *copy);
/* How many are there. */
uint32_t cairn_copy_count(const struct cairn_shard_job *job);
/* The bytes of the budget that one more copy takes. */
uint64_t cairn_copy_bytes(const struct cairn_shard_job *job);
/* The bytes of device memory that the copy takes. */
uint64_t cairn_copy_device_bytes(const struct cairn_published *copy);
struct cairn_published_head *cairn_copy_head(const struct cairn_published *copy);
/* Bits of enum cairn_published_side. */
uint32_t cairn_copy_sides(const struct cairn_published *copy);
/* In the job's view. CAIRN_ERR_NO_MEMORY, CAIRN_ERR_IO: there is none. */
CAIRN_MUST_CHECK cairn_status cairn_copy_open(struct cairn_shard_job *job, uint32_t index,
                                              struct cairn_sentence *why);
void cairn_copy_close(const struct cairn_shard_job *job, struct cairn_published *copy);
/* Prepares a copy to be written in the job's view. It keeps its memory, except what it has too
 * much, and gets what it lacks; it is shown anew, under another number, and its old contents are
 * gone. Nothing of it is being sent. CAIRN_ERR_NO_MEMORY: it may be closed. */
CAIRN_MUST_CHECK cairn_status cairn_copy_follow(struct cairn_shard_job *job,
                                                struct cairn_published *copy,
                                                struct cairn_sentence *why);

#endif
