/* A shard that is a relay adds up what the workers of its host contribute to chunks that other
 * shards own, and to its own chunks. It then passes one contribution of the host on to each owner.
 * The relay also fetches each published chunk of the owners once for all of these workers. The
 * workers of a host are a reduce group.
 *
 *   coordinator ── RelaySet, RoundOpen, Fence ──► relay.c
 *   workers ── PUSH, MICRO_END, COMMIT ──► relay.c: a collector for each owner (collect.h)
 *                                          relay.c ◄──┘            │ FORWARD
 *   owners ◄── relay.c ◄────────────────── relay_cache.c ◄─────────────┘
 *   workers ── FETCH ──► fetch.c ──► relay_cache.c ──► relay.c ──► owners
 *
 * To its workers the relay acts as the owner (proto/wire/wire.h, "Relays"). To an owner the relay
 * is a worker: the member `neighbours.number`, whose rank is the least rank of the relay's workers.
 * The sums have the bits that step.h defines: the relay folds strictly from the left within the
 * host, and the owners fold the hosts' sums in the order of the hosts' least ranks.
 *
 * A FOLD that begins a chunk's sum takes a buffer for one chunk. The buffer is free again when the
 * owner has folded the sum. A chunk keeps its buffer while some workers have pushed the chunk and
 * others have not. So if the workers push in about the same order, memory grows with the number of
 * sums under way, not with the model. buffer_pool.h decides which folds get a buffer and which
 * folds wait. The shard's budget counts a buffer when the buffer is first touched.
 *
 * A relay may be unable to pass a sum on, because it has no room and only more room would help, or
 * because an owner refuses the sum. All workers would then wait for the relay. So the relay tells
 * the coordinator, which continues without reduce groups.
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

/* Passes the sums, the ends of micro-batches and the commits of a relay on to an owner. */

struct relay_owner;

/* The tensors to which a micro-batch contributed nothing; its MICRO_END to the owner lists them.
 * Notes are kept until the round is over. */
struct relay_note {
    struct relay_note *next;
    uint32_t micro;
    size_t count;
    uint32_t tensors[]; /* [count] ascending */
};

struct relay_forward {
    struct pusher pusher;
    /* the owner's last GRANT; its kind is 0 if none arrived on this connection */
    struct chunk_header grant;
    /* owned: [table.trained_count] true: the chunk was forwarded in the current micro-batch */
    bool *sent;
    struct relay_note *notes; /* owned */
};

/* Allocates memory for the push machine. CAIRN_ERR_NO_MEMORY: there is no memory, or there are too
 * many chunks. */
CAIRN_MUST_CHECK cairn_status relay_forward_open(struct relay_owner *owner);
void relay_forward_close(struct relay_owner *owner);
/* Called when a round opens. */
void relay_forward_begin(struct relay_owner *owner, uint64_t epoch, uint64_t round);
/* Called when the round is void, or resolved. */
void relay_forward_end(struct relay_owner *owner);
/* Sends the chunk's sum, whose buffer owner->buffers.sums names. Called when the sum is final. */
void relay_forward_chunk(struct relay_owner *owner, uint32_t chunk, uint32_t micro);
void relay_forward_micro_end(struct relay_owner *owner, uint32_t micro);
void relay_forward_commit(struct relay_owner *owner, uint64_t weight);

/* ==== owner ==== */

/* A relay's knowledge of an owner: the owner's part of the job, the collector for this part, and
 * the machine that passes the sums on. */

struct relay;

/* A shard to which the relay passes sums on. */
struct relay_owner {
    struct neighbour neighbour; /* first; used for the fetches of the cache, too */
    struct relay *relay;        /* borrowed */
    struct chunk_table table;   /* owned: the chunks of the owner's part */

    struct collector collector;
    struct buffer_owner buffers; /* which buffers the owner's sums have; buffers.sums is owned */
    struct relay_forward forward;
};

/* ==== sums ==== */

/* The sums of a relay: the buffers in which they lie, and the folds that make them. */

struct relay_sums {
    /* decides which folds get a buffer, and which folds wait; pool.buffers is owned */
    struct buffer_pool pool;
    /* the buffers: [pool.count][buffer_bytes]; a buffer that was never used has no pages */
    struct arena arena;
    size_t buffer_bytes;
    /* how many buffers the shard's budget counts from the start, even if they are never used */
    uint32_t reserved;
    struct log_limit starving;
};

/* Lets folds continue that wait for a buffer. Called when a buffer has become free, or when the
 * budget may have room for one more. */
void relay_sums_advance(struct relay *relay);

float *relay_buffer_at(const struct relay *relay, uint32_t buffer);

/* ==== collect ==== */

/* Collects the contributions that workers send through a relay, with one collector for each
 * owner. */

/* The memory that the collectors for all owners share. */
struct relay_collect {
    /* owned: the list for the actions of the core that is handling an event */
    struct step_actions actions;
    /* owned: memory for the payload about which a core is deciding, if the payload cannot be read
     * where it lies; else NULL */
    void *memory;
    /* the time since which payloads are refused for lack of memory; 0: they are not refused */
    uint64_t roomless_since_ms;
};

/* Handles a PUSH of a worker, and takes or drops the message. Returns false if the PUSH is not for
 * the relay; then the caller handles the PUSH, which is meant for the shard's own part of the
 * job. */
bool relay_on_push(struct shard_member *member, const struct chunk_header *header,
                   struct fabric_message *message);
/* Handles a MICRO_END or COMMIT that names an owner in header->tensor. `tensors` are the untouched
 * tensors of a MICRO_END; the caller has checked that they are ascending and trained. */
void relay_on_end(struct shard_member *member, const struct chunk_header *header,
                  const uint32_t *tensors, size_t count);

/* ==== fetch ==== */

/* Fetches published chunks of owners, each once for all workers of the host. */

struct relay_fetches;

/* Opens the cache. Called when the relay is opened. Later the cache takes memory for chunks from
 * the shard's budget as it needs them, up to a bound. If the bound is less than a chunk, there is
 * no cache, and the answer to every FETCH is to ask the owner. CAIRN_ERR_NO_MEMORY. */
CAIRN_MUST_CHECK cairn_status relay_fetch_open(struct relay *relay, struct sentence *why);
/* Tells the waiting workers to ask the owner. Called when the relay leaves. */
void relay_fetch_leave(struct relay *relay);
/* Frees the cache. Call it when nothing is in flight, or when the fabric is closed. */
void relay_fetch_close(struct relay *relay);
/* Handles a member's FETCH for a chunk that another shard owns. Drops the message, which would have
 * the box of a CAIRN_TILE_BOX fetch. If there is no relay, or the relay does not serve this chunk,
 * the answer is NAK NOT_FOUND; the member must then ask the owner. */
void relay_fetch(struct shard_member *member, const struct chunk_header *header,
                 struct fabric_message *message);
/* Forgets the fetches of a member that still wait. Called when the member has left. */
void relay_fetch_forget(struct relay *relay, uint64_t member);

/* Serves those waiting fetches that can be served, in the order in which they arrived. Called when
 * a place of the cache may have come to rest, or become free. */
void relay_fetch_serve(struct relay *relay);

/* ==== relay ==== */

struct relay {
    /* in the job's list, in which the first relay may be active, and the others are ending */
    struct relay *next;
    struct shard_job *job;   /* borrowed */
    struct shard_view *view; /* counted: the owners' indices are those of the view's layout */
    uint32_t shard;          /* the index of this shard in the view's layout */
    struct neighbours neighbours;
    uint64_t *members; /* owned: [member_count] the workers of this host, by rank */
    uint32_t member_count;
    struct relay_owner *owners; /* owned: [owner_count] by index */
    uint32_t owner_count;
    uint64_t round; /* the round that the relay works for; 0: none */
    bool given_up;  /* the coordinator was told that the relay cannot continue */
    /* if an owner is silent for this time, the relay is given up */
    uint64_t silent_max_ms;

    struct relay_collect collect;
    struct relay_sums sums;
    struct relay_fetches *fetches; /* owned; NULL: not open */
};

/* Returns the job's active relay, or NULL. */
struct relay *job_relay(const struct shard_job *job);
struct relay_owner *relay_owner_find(struct relay *relay, uint32_t index);
/* Returns the index of a member in relay->members, or UINT32_MAX if it is not there. */
uint32_t relay_rank(const struct relay *relay, uint64_t member);
void relay_on_fence(struct shard_job *job, uint64_t epoch);
void relay_on_resolve(struct shard_job *job, uint64_t epoch);
/* Called when a round opens. CAIRN_ERR_PROTOCOL: the message names a relay that does not exist. */
CAIRN_MUST_CHECK cairn_status relay_on_open(struct shard_job *job, const Cairn__RoundOpen *message);
/* Called when a worker's connection is UP or DOWN. */
void relay_on_peer(struct shard_member *member, enum step_event_kind kind);
/* Ends all relays of a job. */
void relay_leave(struct shard_job *job);
/* Frees a relay. Nothing of the relay may be in flight, unless the fabric and the pools are
 * closed. */
void relay_free(struct relay *relay);
/* Gives the relay up, because the sums of the round cannot be passed on, now or later. The
 * coordinator is told once, and continues without the relay; otherwise all workers would wait for
 * the relay. */
void relay_give_up(struct relay *relay, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
/* The kind of neighbours that the owners of a relay are. This shard itself may be one of its
 * owners. */
extern const struct neighbour_kind relay_owner_kind;

/* ==== cache ==== */

/* The chunks of owners' published copies that a relay has or is fetching. Each chunk is held once,
 * in a place of its own. The places lie in memory that the workers of the host map, so an answer is
 * only a reference.
 *
 * An entry changes from FREE to COMING (to be asked for, asked for, or being received), then to
 * HERE. A HERE entry is at rest while it is not being sent. Only entries at rest give up their
 * places. The first to do so are the entries that every member of the relay has had, in the order
 * in which they came to rest. Next are the entries that were used least recently. Use counts only
 * for entries of the newest version that ever arrived, so older versions give up their places
 * first.
 *
 * All places have the size of the largest chunk. The bytes of a place are taken from the shard's
 * budget when the place is first used. Loop thread only. */

struct relay_entry;

enum relay_entry_state {
    CAIRN_RELAY_ENTRY_FREE = 0,
    CAIRN_RELAY_ENTRY_COMING,
    CAIRN_RELAY_ENTRY_HERE
};

enum relay_want_state {
    CAIRN_RELAY_WANT_FREE = 0,
    CAIRN_RELAY_WANT_PLACE, /* waits for a place */
    CAIRN_RELAY_WANT_ENTRY, /* waits until its entry is HERE; other wants may wait, too */
    CAIRN_RELAY_WANT_SENT   /* its entry is being sent */
};

/* A worker's FETCH. */
struct relay_want {
    STAILQ_ENTRY(relay_want) link;
    enum relay_want_state state;
    struct relay_owner *owner;  /* borrowed */
    uint64_t chunk;             /* the number of the chunk in the owner's map */
    struct relay_entry *entry;  /* borrowed; set in the states WANT_ENTRY and WANT_SENT */
    struct chunk_header header; /* the header that the worker sent */
    enum bytes_path path;       /* the path of the answer */
};
STAILQ_HEAD(relay_wants, relay_want);

struct relay_entry {
    TAILQ_ENTRY(relay_entry) link; /* in the list of entries at rest, or of free entries */
    struct relay_entry *next;      /* the next entry in the same bucket */
    enum relay_entry_state state;
    struct neighbour_fetch fetch; /* the fetch from the chunk's owner, while the entry is COMING */
    bool is_had;    /* every member has had the entry, so it is in cache->had when it is at rest */
    uint32_t sends; /* how many sends of the entry are under way */
    struct relay_owner *owner; /* borrowed */
    uint64_t chunk;            /* the number of the chunk in the owner's map */
    struct cairn_version version;
    cairn_dtype dtype;
    size_t byte_count;
    struct relay_wants wants; /* the wants that wait until the entry is HERE */
};
TAILQ_HEAD(relay_entries, relay_entry);

struct relay_cache {
    struct shard_job *job; /* borrowed */
    struct arena memory;   /* [entry_max][place_bytes] */
    size_t place_bytes;
    uint32_t entry_max;    /* the number of places that have addresses */
    uint32_t entry_count;  /* how many entries have memory, taken from the budget */
    uint64_t budget_bytes; /* all bytes that the cache has taken from the budget */
    /* owned: [entry_max]; the index of an entry is also the index of its place */
    struct relay_entry *entries;
    struct relay_entry **buckets; /* owned: [bucket_count], a power of two */
    uint32_t bucket_count;
    uint32_t member_words;
    /* owned: [entry_max][member_words] for each entry a bit for each member, by rank: the member
     * has had the entry */
    uint64_t *had_by;
    struct relay_entries free; /* the FREE entries among the first entry_count */
    /* the entries at rest: had: those that every member has had; kept: all others */
    struct relay_entries had, kept;
    struct cairn_version newest; /* the newest version that ever arrived */
};

/* Opens a cache of up to relay_cache_bytes (memory.h) for the chunks of all owners of the relay
 * except this shard. If there is no room for a chunk, entry_max is 0. After CAIRN_ERR_NO_MEMORY
 * nothing is allocated. */
CAIRN_MUST_CHECK cairn_status relay_cache_open(const struct relay *relay, struct relay_cache *cache,
                                               struct sentence *why);
void relay_cache_release(struct relay_cache *cache);

/* Returns the entry of a chunk; NULL: the chunk is neither HERE nor COMING. */
struct relay_entry *relay_cache_find(const struct relay_cache *cache,
                                     const struct relay_owner *owner, uint64_t chunk,
                                     struct cairn_version version);
/* Takes a new entry for a chunk that was not found. The entry is COMING, and the caller must ask
 * the owner for the chunk. NULL: no place is free or at rest. */
struct relay_entry *relay_cache_take(struct relay_cache *cache, struct relay_owner *owner,
                                     uint64_t chunk, struct cairn_version version);

/* Call when a send of the entry begins; the entry is then not at rest. */
void relay_cache_lend(struct relay_cache *cache, struct relay_entry *entry);
/* Call when a send of the entry has ended. `member` is the index, in relay->members, of the member
 * that received the entry; UINT32_MAX: no member received it. */
void relay_cache_return(struct relay_cache *cache, struct relay_entry *entry, uint32_t member,
                        uint32_t member_count);
/* Call when the entry's bytes have arrived. The entry is then HERE, and at rest until it is
 * sent. */
void relay_cache_arrived(struct relay_cache *cache, struct relay_entry *entry);

/* ==== fetches ==== */

/* Private to relay_cache.c. */

struct relay_fetches {
    struct relay *relay; /* borrowed */
    struct relay_cache cache;
    struct relay_want *wants; /* owned: [want_count], enough for all members */
    uint32_t want_count;
    struct relay_wants wants_free, without_place;
};

#endif
