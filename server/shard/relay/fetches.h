/* Shared by fetch.c and ask.c. Private to them. */
#ifndef CAIRN_SHARD_RELAY_FETCHES_H
#define CAIRN_SHARD_RELAY_FETCHES_H

#include "server/shard/relay/cache.h"

struct cairn_relay_fetches {
    struct cairn_relay *relay; /* borrowed */
    struct cairn_relay_cache cache;
    struct cairn_relay_want *wants; /* owned: [want_count] as many as all members may have */
    uint32_t want_count;
    uint32_t under_way; /* sends and receives */
    struct cairn_relay_wants wants_free, without_place;
};

/* ---- ask.c ---- */
/* Called by the owners' askers: sends the FETCH of an entry to its owner. */
CAIRN_MUST_CHECK cairn_status cairn_relay_ask_send(struct cairn_chunk_request *request);

/* ---- fetch.c ---- */
/* It is HERE: all who wait for it are sent it. */
void cairn_relay_fetch_send_all(struct cairn_relay_fetches *fetches,
                                struct cairn_relay_entry *entry);
/* It is not to be had: all who wait for it are told, and it is forgotten. */
void cairn_relay_fetch_refuse_all(struct cairn_relay_fetches *fetches,
                                  struct cairn_relay_entry *entry, cairn_status status);
/* A place may be at rest, or free: in the order in which they came, those who can be served are. */
void cairn_relay_fetch_serve(struct cairn_relay_fetches *fetches);

#endif
