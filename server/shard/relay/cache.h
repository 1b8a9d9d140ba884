/* Chunks of owners' published copies that a relay has, or is fetching: each once, in a place of its own in
 * memory that workers of the host map, so that an answer is a reference.
 *
 * An entry goes FREE → COMING (to be asked for, asked for, or being received) → HERE, and is at rest when
 * nothing of it is being sent. Only one at rest gives its place away: first those that every member of the
 * relay has had, in the order in which they came to rest, then the least recently used. Only the newest
 * version that ever arrived gets younger by use: so older ones go before it.
 *
 * Places are of one size, the largest chunk's, and taken from the shard's budget as they are touched first,
 * up to a bound. Loop thread only. */
#ifndef CAIRN_SHARD_RELAY_CACHE_H
#define CAIRN_SHARD_RELAY_CACHE_H

#include <sys/queue.h>

#include "proto/link/asker.h"
#include "server/shard/relay/relay.h"

struct cairn_relay_entry;

enum cairn_relay_entry_state {
    CAIRN_RELAY_ENTRY_FREE = 0,
    CAIRN_RELAY_ENTRY_COMING,
    CAIRN_RELAY_ENTRY_HERE
};

enum cairn_relay_want_state {
    CAIRN_RELAY_WANT_FREE = 0,
    CAIRN_RELAY_WANT_PLACE, /* waits for an entry to be free */
    CAIRN_RELAY_WANT_ENTRY, /* waits for its entry to come, with others */
    CAIRN_RELAY_WANT_SENT   /* its entry is being sent */
};

/* A worker's FETCH. */
struct cairn_relay_want {
    STAILQ_ENTRY(cairn_relay_want) link;
    enum cairn_relay_want_state state;
    struct cairn_relay_owner *owner;  /* borrowed */
    uint64_t chunk;                   /* of the owner's map */
    struct cairn_relay_entry *entry;  /* borrowed; of WANT_ENTRY and WANT_SENT */
    struct cairn_chunk_header header; /* as the worker sent it */
    enum cairn_way way;               /* of the answer */
};
STAILQ_HEAD(cairn_relay_wants, cairn_relay_want);

struct cairn_relay_entry {
    TAILQ_ENTRY(cairn_relay_entry) link; /* among those at rest, or those that are free */
    struct cairn_relay_entry *next;      /* in its bucket */
    enum cairn_relay_entry_state state;
    struct cairn_chunk_request request; /* to its owner, while it is COMING */
    bool is_had;                        /* every member has had it; at rest it is in cache->had */
    uint32_t sends;                     /* how many are under way */
    struct cairn_relay_owner *owner;    /* borrowed */
    uint64_t chunk;                     /* of the owner's map */
    struct cairn_version version;
    cairn_dtype dtype;
    size_t byte_count;
    uint64_t checksum;
    struct cairn_relay_wants wants; /* until it is HERE */
};
TAILQ_HEAD(cairn_relay_entries, cairn_relay_entry);

struct cairn_relay_cache {
    struct cairn_shard_job *job; /* borrowed */
    struct cairn_arena memory;   /* [entry_max][place_bytes] */
    size_t place_bytes;
    uint32_t entry_max;                 /* as many as there are addresses for */
    uint32_t entry_count;               /* those whose memory was taken from the budget */
    uint64_t budget_bytes;              /* taken from the budget in all */
    struct cairn_relay_entry *entries;  /* owned: [entry_max], an entry's place is its index */
    struct cairn_relay_entry **buckets; /* owned: [bucket_count], a power of two */
    uint32_t bucket_count;
    uint32_t member_words;
    uint64_t *had_by;                     /* owned: [entry_max][member_words] bits, by rank */
    struct cairn_relay_entries free;      /* of the first entry_count */
    struct cairn_relay_entries had, kept; /* at rest: had by every member; and the others */
    struct cairn_version newest;          /* the newest version that ever arrived */
};

/* For what the relay's owners but its own shard have, up to shard->relay_cache_bytes; entry_max 0: there is
 * no room for a chunk. CAIRN_ERR_NO_MEMORY: nothing is held. */
CAIRN_MUST_CHECK cairn_status cairn_relay_cache_open(const struct cairn_relay *relay,
                                                     struct cairn_relay_cache *cache,
                                                     struct cairn_sentence *why);
void cairn_relay_cache_release(struct cairn_relay_cache *cache);

/* NULL: the chunk is not here, and is not COMING. */
struct cairn_relay_entry *cairn_relay_cache_find(const struct cairn_relay_cache *cache,
                                                 const struct cairn_relay_owner *owner,
                                                 uint64_t chunk, struct cairn_version version);
/* A new entry for a chunk that is not found. It is COMING: the caller asks for it. NULL: every place is in
 * use. */
struct cairn_relay_entry *cairn_relay_cache_take(struct cairn_relay_cache *cache,
                                                 struct cairn_relay_owner *owner, uint64_t chunk,
                                                 struct cairn_version version);
/* A COMING entry is not to be had, and is not asked for any more: frees its place. */
void cairn_relay_cache_forget(struct cairn_relay_cache *cache, struct cairn_relay_entry *entry);
/* A send of the entry begins: it is not at rest. */
void cairn_relay_cache_lend(struct cairn_relay_cache *cache, struct cairn_relay_entry *entry);
/* The send ended. `member`: the rank among the relay's members of who has had the entry by it; UINT32_MAX:
 * nobody. */
void cairn_relay_cache_return(struct cairn_relay_cache *cache, struct cairn_relay_entry *entry,
                              uint32_t member, uint32_t member_count);
/* The entry's bytes are here: it is HERE, at rest until it is lent. */
void cairn_relay_cache_arrived(struct cairn_relay_cache *cache, struct cairn_relay_entry *entry);
uint8_t *cairn_relay_cache_bytes(const struct cairn_relay_cache *cache,
                                 const struct cairn_relay_entry *entry);

#endif
