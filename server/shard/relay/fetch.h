/* Published chunks of owners, fetched once for the host: fetch.c for the workers, ask.c at the owners. */
#ifndef CAIRN_SHARD_RELAY_FETCH_H
#define CAIRN_SHARD_RELAY_FETCH_H

#include "proto/base/sentence.h"
#include "proto/fabric/fabric.h"
#include "proto/wire/chunk.h"

struct cairn_member;
struct cairn_relay;
struct cairn_relay_fetches;
struct cairn_relay_owner;

/* Called with the relay: memory is taken from the shard's budget as it is needed, up to its bound. Without
 * room for a chunk there is no cache, and every FETCH is told to ask the owner. CAIRN_ERR_NO_MEMORY. */
CAIRN_MUST_CHECK cairn_status cairn_relay_fetch_open(struct cairn_relay *relay,
                                                     struct cairn_sentence *why);
/* Who waits is told to ask the owner. Freed if nothing is in flight, or the fabric is closed; else by the
 * next call. */
void cairn_relay_fetch_close(struct cairn_relay *relay);
/* A FETCH of a member for a chunk that is not of this shard. Takes or drops the message (the box of a
 * CAIRN_TILE_BOX fetch). NAK NOT_FOUND: there is no relay, or it is not for that: the owner is to be
 * asked. */
void cairn_relay_fetch(struct cairn_member *member, const struct cairn_chunk_header *header,
                       struct cairn_fabric_message *message);
/* The member is gone: it waits for nothing any more. */
void cairn_relay_fetch_forget(struct cairn_relay *relay, uint64_t member);

/* ---- ask.c ---- */
/* DATA or NAK of one of our FETCHes (request has CAIRN_REQUEST_OF_ASKER set). Takes or drops it. */
void cairn_relay_fetch_on_answer(struct cairn_relay_owner *owner,
                                 const struct cairn_chunk_header *header,
                                 struct cairn_fabric_message *message);
/* Called by link.c while the owner is connected: asks again for what the owner had no time for. */
void cairn_relay_fetch_tick(struct cairn_relay_owner *owner);
/* The connection, or the owner's connection to us, is lost: unanswered requests are asked again. */
void cairn_relay_fetch_lost(struct cairn_relay_owner *owner);
bool cairn_relay_fetch_waits(const struct cairn_relay_owner *owner);

#endif
