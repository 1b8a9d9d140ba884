/* Fetches. Loop thread. */
#ifndef CAIRN_SHARD_READ_FETCH_H
#define CAIRN_SHARD_READ_FETCH_H

#include "proto/fabric/fabric.h"
#include "proto/wire/chunk.h"

struct cairn_shard_job;
struct cairn_member;
struct cairn_reply;

/* Takes or drops the message. */
void cairn_fetch_on_message(struct cairn_member *member, const struct cairn_chunk_header *header,
                            struct cairn_fabric_message *message);
/* The chunk that it asks for begins in this shard's part, by the layout of that version. */
bool cairn_fetch_is_here(const struct cairn_member *member,
                         const struct cairn_chunk_header *header);
/* An UPDATE has ended, or a job is where it is to be (park.h): answers what was deferred. */
void cairn_fetch_deferred(struct cairn_shard_job *job);
/* The chunk that it waited for is in host memory (bring.h); not OK: it is not. */
void cairn_fetch_brought(struct cairn_reply *reply, cairn_status status);

#endif
