/* Chunks of owners' published copies that a relay has, or is fetching: each once, in a place of its own in
 * memory that workers of the host map, so that an answer is a reference.
 *
 * An entry goes FREE → QUEUED (it is to be asked for) → ASKED → RECEIVING → HERE, and is at rest when nothing
 * of it is being sent. Only one at rest gives its place away: first those that every member of the relay has
 * had, in the order in which they came to rest, then the least recently used. Only the newest version that
 * ever arrived gets younger by use: so older ones go before it.
 *
 * Places are of one size, the largest chunk's, and taken from the shard's budget as they are touched first,
 * up to a bound. Loop thread only. */
#ifndef CAIRN_SHARD_RELAY_CACHE_H
#define CAIRN_SHARD_RELAY_CACHE_H

#include <sys/queue.h>

#include "server/shard/relay.h"

struct cairn_relay_entry;

enum cairn_relay_entry_state {
    CAIRN_RELAY_ENTRY_FREE = 0,
    CAIRN_RELAY_ENTRY_QUEUED,
    CAIRN_RELAY_ENTRY_ASKED,
    CAIRN_RELAY_ENTRY_RECEIVING,
    CAIRN_RELAY_ENTRY_HERE
};

enum cairn_relay_want_state {
    CAIRN_RELAY_WANT_FREE = 0,
    CAIRN_RELAY_WANT_PLACE, /* of those without a place */
    CAIRN_RELAY_WANT_ENTRY, /* waits for its entry, with others */
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
    enum cairn_way way;               /* that the answer goes */
};
STAILQ_HEAD(cairn_relay_wants, cairn_relay_want);

struct cairn_relay_entry {
    TAILQ_ENTRY(cairn_relay_entry) link; /* of its owner's queue, at rest, or free */
    struct cairn_relay_entry *next;      /* in its bucket */
    enum cairn_relay_entry_state state;
    bool is_had;      /* by every member; while at rest: it is in cache->had */
    uint32_t serial;  /* grows with every use: an answer to a former one is dropped */
    uint32_t damaged; /* times that its bytes did not arrive as they were sent */
    uint32_t sends;   /* of it, under way */
    struct cairn_relay_owner *owner; /* borrowed */
    uint64_t chunk;                  /* of the owner's map */
    struct cairn_version version;
    cairn_dtype dtype;
    size_t byte_count;
    uint64_t checksum;
    struct cairn_relay_wants wants; /* until it is HERE */
};
TAILQ_HEAD(cairn_relay_entries, cairn_relay_entry);

struct cairn_relay_cache {
    struct cairn_shard_job *job;        /* borrowed */
    struct cairn_arena memory;          /* [entry_max][place_bytes] */
    struct cairn_fabric_region *region; /* owned; NULL: nobody maps it */
    size_t place_bytes;
    uint32_t entry_max, entry_count;    /* of entry_count the memory is taken from the budget */
    uint64_t budget_bytes;              /* taken in all */
    struct cairn_relay_entry *entries;  /* owned: [entry_max], an entry's place is its index */
    struct cairn_relay_entry **buckets; /* owned: [bucket_count], a power of two */
    uint32_t bucket_count;
    uint32_t member_words;
    uint64_t *had_by;                     /* owned: [entry_max][member_words] bits, by rank */
    struct cairn_relay_entries free;      /* of the first entry_count */
    struct cairn_relay_entries had, kept; /* at rest */
    struct cairn_version newest;          /* that ever arrived */
};

/* For what the relay's owners but its own shard have, up to shard->relay_cache_bytes; entry_max 0: there is
 * no room for a chunk. CAIRN_ERR_NO_MEMORY: nothing is held. */
CAIRN_MUST_CHECK cairn_status cairn_relay_cache_open(const struct cairn_relay *relay,
                                                     struct cairn_relay_cache *cache,
                                                     struct cairn_sentence *why);
void cairn_relay_cache_release(struct cairn_relay_cache *cache);

/* NULL: it is not here and nobody asked for it. */
struct cairn_relay_entry *cairn_relay_cache_find(const struct cairn_relay_cache *cache,
                                                 const struct cairn_relay_owner *owner,
                                                 uint64_t chunk, struct cairn_version version);
/* An entry for what is not found, QUEUED and in no list. NULL: every place is in use. */
struct cairn_relay_entry *cairn_relay_cache_take(struct cairn_relay_cache *cache,
                                                 struct cairn_relay_owner *owner, uint64_t chunk,
                                                 struct cairn_version version);
/* It is not to be had, and in no list: its place is free. */
void cairn_relay_cache_forget(struct cairn_relay_cache *cache, struct cairn_relay_entry *entry);
/* A send of it begins: it is not at rest. And ended; `member` is the rank among the relay's of who has had
 * it, UINT32_MAX: nobody. */
void cairn_relay_cache_lend(struct cairn_relay_cache *cache, struct cairn_relay_entry *entry);
void cairn_relay_cache_return(struct cairn_relay_cache *cache, struct cairn_relay_entry *entry,
                              uint32_t member, uint32_t member_count);
/* HERE now; at rest until it is lent. */
void cairn_relay_cache_arrived(struct cairn_relay_cache *cache, struct cairn_relay_entry *entry);
uint8_t *cairn_relay_cache_bytes(const struct cairn_relay_cache *cache,
                                 const struct cairn_relay_entry *entry);

#endif
