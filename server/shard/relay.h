/* A relay: this shard adds up the contributions of its host's workers to chunks that other shards own (and
 * to its own chunks), and passes one contribution of the host on to each owner. The relay also fetches the
 * owners' published chunks once for all of these workers. A reduce group is a host.
 *
 *   coordinator ── RelaySet, RoundOpen, Fence ──► relay.c
 *   workers ── PUSH, MICRO_END, COMMIT ──► relay.c: a collector for each owner (collect.h)
 *                                          relay.c ◄──┘            │ FORWARD
 *   owners ◄── relay.c ◄────────────────── relay_cache.c ◄─────────────┘
 *   workers ── FETCH ──► fetch.c ──► relay_cache.c ──► relay.c ──► owners
 *
 * To its workers the relay is the owner (proto/wire/wire.h, "Relays"); to an owner it is a worker:
 * the member `number`, whose rank is the least of its workers'. The bits are those of step.h: a
 * strict left fold within the host, and the owners fold the hosts' sums in the order of their least
 * ranks.
 *
 * A FOLD that begins a chunk's sum takes a buffer of one chunk, which is free again when the owner has
 * folded it. So memory grows with the number of sums under way, not with the model, as long as the workers
 * push in about the same order: a chunk keeps its buffer while some workers have pushed it and others have
 * not. buffer_pool.h decides which folds get a buffer and which wait; the shard's budget counts a buffer
 * when it is first touched.
 *
 * If the relay cannot pass a sum on (it has no room and only more room would help, or an owner refuses the
 * sum), all workers would wait for it. So the relay tells the coordinator, which continues without reduce
 * groups.
 *
 * A job has at most one active relay; earlier relays end when none of their work is under way. Loop
 * thread. */
#ifndef CAIRN_SHARD_RELAY_H
#define CAIRN_SHARD_RELAY_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/queue.h>

#include "proto/base/text.h"
#include "proto/fabric/fabric.h"
#include "proto/wire/wire.h"
#include "server/base/log.h"
#include "server/core/buffer_pool.h"
#include "server/core/step.h"
#include "server/shard/collect.h"
#include "server/shard/memory.h"
#include "server/shard/shard.h"

/* ==== forward ==== */

/* Passes sums, ends of micro-batches and commits of a relay on to an owner. */

struct relay_owner;

/* The tensors to which a micro-batch contributed nothing, as its MICRO_END says. Kept until the round is
 * over. */
struct relay_note {
    struct relay_note *next;
    uint32_t micro;
    size_t count;
    uint32_t tensors[]; /* [count] ascending */
};

struct relay_forward {
    struct pusher pusher;
    struct chunk_header grant; /* the owner's last GRANT; kind 0: none on this connection */
    bool *sent; /* owned: [table.trained_count] chunks forwarded in the current micro-batch */
    struct relay_note *notes; /* owned */
};

/* Allocates memory for the machine. CAIRN_ERR_NO_MEMORY, also if there are too many chunks. */
CAIRN_MUST_CHECK cairn_status relay_forward_open(struct relay_owner *owner);
void relay_forward_close(struct relay_owner *owner);
/* Called when a round opens. */
void relay_forward_begin(struct relay_owner *owner, uint64_t epoch, uint64_t round);
/* Called when the round is void, or resolved. */
void relay_forward_end(struct relay_owner *owner);
/* Called when the chunk's sum is final: sends its buffer, as found in owner->buffers.sums. */
void relay_forward_chunk(struct relay_owner *owner, uint32_t chunk, uint32_t micro);
void relay_forward_micro_end(struct relay_owner *owner, uint32_t micro);
void relay_forward_commit(struct relay_owner *owner, uint64_t weight);

/* ==== owner ==== */

/* An owner, as its relay sees it: the owner's part of the job, the collector for it, and the machine that
 * passes the sums on. */

struct relay;

/* A shard to which the relay passes sums on. */
struct relay_owner {
    struct neighbour neighbour; /* first; its fetches are the cache's */
    struct relay *relay;        /* borrowed */
    struct chunk_table table;   /* owned: of the owner's part */

    struct collector collector;
    struct buffer_owner buffers; /* of the sums; buffers.sums is owned */
    struct relay_forward forward;
};

/* ==== sums ==== */

/* The sums of a relay: the buffers in which they lie, and the folds that make them. */

struct relay_sums {
    /* decides which fold gets a buffer, and which waits; pool.buffers is owned */
    struct buffer_pool pool;
    /* [pool.count][buffer_bytes] pages that were never touched do not exist */
    struct arena arena;
    size_t buffer_bytes;
    uint32_t reserved; /* buffers that the shard's budget counts from the start, touched or not */
    struct log_limit starving;
};

/* Called when a buffer is free, or may be taken: lets folds that wait for a buffer continue. */
void relay_sums_advance(struct relay *relay);

float *relay_buffer_at(const struct relay *relay, uint32_t buffer);

/* ==== collect ==== */

/* Collects the contributions that workers send through a relay, with one collector for each owner. */

/* Shared by the collectors of all owners. */
struct relay_collect {
    struct step_actions actions; /* owned: the actions of the core that is handling an event */
    void *memory; /* owned: for the payload that a core is deciding on, if it cannot be viewed */
    /* since when payloads are refused for lack of memory; 0: none is refused */
    uint64_t roomless_since_ms;
};

/* Handles a PUSH of a worker, and takes or drops the message. False: the PUSH is meant for the shard's own
 * part of the job, and is left to the caller. */
bool relay_on_push(struct shard_member *member, const struct chunk_header *header,
                   struct fabric_message *message);
/* Handle a MICRO_END or COMMIT that names an owner (header->tensor). The list of untouched tensors was
 * judged: it is ascending, and all tensors are trained. */
void relay_on_micro_end(struct shard_member *member, const struct chunk_header *header,
                        const uint32_t *tensors, size_t count);
void relay_on_commit(struct shard_member *member, const struct chunk_header *header);
/* ==== fetch ==== */

/* Published chunks of owners, fetched once for the host. */

struct relay_fetches;

/* Called when the relay is opened: takes memory from the shard's budget as the cache needs it, up to the
 * cache's bound. Without room for a chunk there is no cache, and every FETCH is told to ask the owner.
 * CAIRN_ERR_NO_MEMORY. */
CAIRN_MUST_CHECK cairn_status relay_fetch_open(struct relay *relay, struct sentence *why);
/* The relay leaves: tells the waiting workers to ask the owner. */
void relay_fetch_leave(struct relay *relay);
/* Call when nothing is in flight, or the fabric is closed. */
void relay_fetch_close(struct relay *relay);
/* Handles a member's FETCH for a chunk that another shard owns. Takes or drops the message (the box of a
 * CAIRN_TILE_BOX fetch). Answers NAK NOT_FOUND if there is no relay, or the relay does not serve this
 * chunk; the member must then ask the owner. */
void relay_fetch(struct shard_member *member, const struct chunk_header *header,
                 struct fabric_message *message);
/* Called when the member left: it no longer waits for anything. */
void relay_fetch_forget(struct relay *relay, uint64_t member);

/* Serves the members' fetches that can be served, in their order of arrival. Called when a place may have
 * come to rest or become free. */
void relay_fetch_serve(struct relay *relay);

/* ==== relay ==== */

struct relay {
    struct relay *next;      /* in the job's list: the first may be active, the others are ending */
    struct shard_job *job;   /* borrowed */
    struct shard_view *view; /* counted: its layout numbers the owners */
    uint32_t shard;          /* our own index in that layout */
    struct neighbours neighbours;
    uint64_t *members; /* owned: [member_count] by rank */
    uint32_t member_count;
    struct relay_owner *owners; /* owned: [owner_count] by index */
    uint32_t owner_count;
    uint64_t round; /* the round that it relays; 0: none */
    bool given_up;  /* the coordinator was told that the relay cannot continue */
    /* if an owner does not answer for this time, the relay is given up */
    uint64_t silent_max_ms;

    struct relay_collect collect;
    struct relay_sums sums;
    struct relay_fetches *fetches; /* owned; NULL: they are closed */
};

/* The job's active relay; NULL: none. */
struct relay *job_relay(const struct shard_job *job);
struct relay_owner *relay_owner_find(struct relay *relay, uint32_t index);
/* Returns the rank of a member among those of the relay; UINT32_MAX: it is none of them. */
uint32_t relay_rank(const struct relay *relay, uint64_t member);
void relay_on_fence(struct shard_job *job, uint64_t epoch);
void relay_on_resolve(struct shard_job *job, uint64_t epoch);
/* Called when a round opens. CAIRN_ERR_PROTOCOL: the message names a relay that does not exist. */
CAIRN_MUST_CHECK cairn_status relay_on_open(struct shard_job *job, const Cairn__RoundOpen *message);
/* Called when a worker's connection is UP or DOWN. */
void relay_on_peer(struct shard_member *member, enum step_event_kind kind);
/* Ends all relays of a job. */
void relay_leave(struct shard_job *job);
/* Frees a relay; nothing may be in flight, unless the fabric and the pools are closed. */
void relay_free(struct relay *relay);
/* Gives the relay up: the relay's sums of the round cannot be passed on, now or later. The coordinator is
 * told once and continues without the relay, because otherwise all workers would wait for the silent
 * relay. */
void relay_give_up(struct relay *relay, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
/* How the relay reaches the owners; this very shard may be one of them. */
extern const struct neighbour_kind relay_owner_kind;

/* ==== cache ==== */

/* Chunks of owners' published copies that a relay has, or is fetching. Each chunk is held once, in its own
 * place in memory that workers of the host map, so that an answer is only a reference.
 *
 * An entry changes from FREE to COMING (to be asked for, asked for, or being received) to HERE, and is at
 * rest when nothing of it is being sent. Only an entry at rest gives up its place: first the entries that
 * every member of the relay has had, in the order in which they came to rest, then the least recently used.
 * Only entries of the newest version that ever arrived are renewed by use, so older versions give up their
 * places first.
 *
 * All places have the size of the largest chunk. Their bytes are taken from the shard's budget when they
 * are first touched, up to a bound. Loop thread only. */

struct relay_entry;

enum relay_entry_state {
    CAIRN_RELAY_ENTRY_FREE = 0,
    CAIRN_RELAY_ENTRY_COMING,
    CAIRN_RELAY_ENTRY_HERE
};

enum relay_want_state {
    CAIRN_RELAY_WANT_FREE = 0,
    CAIRN_RELAY_WANT_PLACE, /* waits for a free entry */
    CAIRN_RELAY_WANT_ENTRY, /* waits, with others, for its entry to arrive */
    CAIRN_RELAY_WANT_SENT   /* its entry is being sent */
};

/* A worker's FETCH. */
struct relay_want {
    STAILQ_ENTRY(relay_want) link;
    enum relay_want_state state;
    struct relay_owner *owner;  /* borrowed */
    uint64_t chunk;             /* of the owner's map */
    struct relay_entry *entry;  /* borrowed; in WANT_ENTRY and WANT_SENT */
    struct chunk_header header; /* as the worker sent it */
    enum bytes_path path;       /* of the answer */
};
STAILQ_HEAD(relay_wants, relay_want);

struct relay_entry {
    TAILQ_ENTRY(relay_entry) link; /* in the list of entries at rest, or of free entries */
    struct relay_entry *next;      /* in its bucket */
    enum relay_entry_state state;
    struct neighbour_fetch fetch; /* from the chunk's owner, while the entry is COMING */
    bool is_had;                  /* every member has had the entry; at rest it is in cache->had */
    uint32_t sends;               /* sends under way */
    struct relay_owner *owner;    /* borrowed */
    uint64_t chunk;               /* of the owner's map */
    struct cairn_version version;
    cairn_dtype dtype;
    size_t byte_count;
    struct relay_wants wants; /* waiting until the entry is HERE */
};
TAILQ_HEAD(relay_entries, relay_entry);

struct relay_cache {
    struct shard_job *job; /* borrowed */
    struct arena memory;   /* [entry_max][place_bytes] */
    size_t place_bytes;
    uint32_t entry_max;           /* the number of places that have addresses */
    uint32_t entry_count;         /* entries whose memory was taken from the budget */
    uint64_t budget_bytes;        /* taken from the budget in all */
    struct relay_entry *entries;  /* owned: [entry_max], an entry's index is also its place */
    struct relay_entry **buckets; /* owned: [bucket_count], a power of two */
    uint32_t bucket_count;
    uint32_t member_words;
    uint64_t *had_by;               /* owned: [entry_max][member_words] bits, by rank */
    struct relay_entries free;      /* of the first entry_count */
    struct relay_entries had, kept; /* at rest: entries that every member has had, and all others */
    struct cairn_version newest;    /* the newest version that ever arrived */
};

/* Opens a cache of up to relay_cache_bytes (memory.h) for the chunks of all the relay's owners except its
 * own shard. entry_max 0: there is no room for a chunk. CAIRN_ERR_NO_MEMORY: nothing is allocated. */
CAIRN_MUST_CHECK cairn_status relay_cache_open(const struct relay *relay, struct relay_cache *cache,
                                               struct sentence *why);
void relay_cache_release(struct relay_cache *cache);

/* NULL: the chunk is neither HERE nor COMING. */
struct relay_entry *relay_cache_find(const struct relay_cache *cache,
                                     const struct relay_owner *owner, uint64_t chunk,
                                     struct cairn_version version);
/* Takes a new entry for a chunk that was not found. The entry is COMING: the caller must ask for it. NULL:
 * every place is in use. */
struct relay_entry *relay_cache_take(struct relay_cache *cache, struct relay_owner *owner,
                                     uint64_t chunk, struct cairn_version version);

/* A send of the entry begins: it is not at rest. */
void relay_cache_lend(struct relay_cache *cache, struct relay_entry *entry);
/* The send ended. `member`: the rank, among the relay's members, of the member that received the entry;
 * UINT32_MAX: none. */
void relay_cache_return(struct relay_cache *cache, struct relay_entry *entry, uint32_t member,
                        uint32_t member_count);
/* The entry's bytes have arrived: it is HERE, at rest until it is sent. */
void relay_cache_arrived(struct relay_cache *cache, struct relay_entry *entry);

/* ==== fetches ==== */

/* Private to relay_cache.c. */

struct relay_fetches {
    struct relay *relay; /* borrowed */
    struct relay_cache cache;
    struct relay_want *wants; /* owned: [want_count] enough for all members */
    uint32_t want_count;
    struct relay_wants wants_free, without_place;
};

#endif
