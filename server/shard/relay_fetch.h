/* What the two halves of a relay's fetches have in common: relay_fetch.c, for the workers, and
 * relay_ask.c, at the owners. Private to them. */
#ifndef CAIRN_SHARD_RELAY_FETCH_H
#define CAIRN_SHARD_RELAY_FETCH_H

#include "server/shard/relay_cache.h"

/* What is to be asked of an owner. */
struct cairn_relay_asks {
    struct cairn_relay_entries queue;
    uint32_t in_flight; /* ASKED */
    bool busy;          /* it refused one for now: no more before an answer or the next tick */
};

struct cairn_relay_fetches {
    struct cairn_relay *relay; /* borrowed */
    struct cairn_relay_cache cache;
    struct cairn_relay_asks *asks;  /* owned: [relay->owner_count] */
    struct cairn_relay_want *wants; /* owned: [want_count] as many as all members may have */
    uint32_t want_count;
    uint32_t under_way; /* sends and receives */
    struct cairn_relay_wants wants_free, without_place;
};

static inline struct cairn_relay_asks *cairn_relay_asks_of(const struct cairn_relay_owner *owner)
{
    return &owner->relay->fetches->asks[owner - owner->relay->owners];
}

/* ---- relay_ask.c ---- */
/* The entry is in no list: its owner is asked for it, in its turn. */
void cairn_relay_ask(struct cairn_relay_entry *entry);
/* It is QUEUED, and is not to be asked for. It is in no list then. */
void cairn_relay_ask_not(struct cairn_relay_entry *entry);
/* Asks the owner for what it may be asked now. */
void cairn_relay_ask_pump(struct cairn_relay_owner *owner);

/* ---- relay_fetch.c ---- */
/* It is HERE: all who wait for it are sent it. */
void cairn_relay_fetch_send_all(struct cairn_relay_fetches *fetches,
                                struct cairn_relay_entry *entry);
/* It is not to be had: all who wait for it are told, and it is forgotten. */
void cairn_relay_fetch_refuse_all(struct cairn_relay_fetches *fetches,
                                  struct cairn_relay_entry *entry, cairn_status status);
/* A place may be at rest, or free: in the order in which they came, those who can be served are. */
void cairn_relay_fetch_serve(struct cairn_relay_fetches *fetches);

#endif
