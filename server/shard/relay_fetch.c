/* Published chunks of other shards for the workers of this host: asked for once, given to all of them out of
 * relay_cache.h.
 *
 *   worker ── FETCH ──► want ──► an entry that is HERE ─────────────────────────────► DATA
 *                        ├────► one that is on its way: waits, with others ──────────► DATA, or NAK
 *                        ├────► a new one: QUEUED ── FETCH ──► owner ── DATA ──► HERE
 *                        └────► no place is at rest: waits without one
 *
 * What a version is, its owner knows: NOT_READY and VERSION_GONE are passed on to all who wait. Any other
 * refusal may be of the relay, and not of the worker: it is told to ask the owner (NOT_FOUND).
 *
 * A worker that stops pins the places that are being sent to it, at most CAIRN_SHARD_REPLIES_MAX, until
 * its endpoint is cut. Loop thread; nothing is allocated after the relay was opened. */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "server/shard/relay_cache.h"

#define DAMAGED_MAX   16 /* then the way there is broken, and the workers shall try theirs */
#define IN_FLIGHT_MAX 8  /* chunks unanswered by one owner; it holds at most twice as many for us */

/* What is to be asked of an owner. */
struct asks {
    struct cairn_relay_entries queue;
    uint32_t in_flight; /* ASKED */
    bool busy;          /* it refused one for now: no more before an answer or the next tick */
};

struct cairn_relay_fetches {
    struct cairn_relay *relay; /* borrowed */
    struct cairn_relay_cache cache;
    struct asks *asks;              /* owned: [relay->owner_count] */
    struct cairn_relay_want *wants; /* owned: [want_count] as many as all members may have */
    uint32_t want_count;
    uint32_t under_way; /* sends and receives */
    struct cairn_relay_wants wants_free, without_place;
};

static struct asks *asks_of(const struct cairn_relay_owner *owner)
{
    return &owner->relay->fetches->asks[owner - owner->relay->owners];
}

static uint32_t rank_of(const struct cairn_relay *relay, uint64_t member)
{
    uint32_t i = 0;
    while (i < relay->member_count && relay->members[i] != member) i++;
    return i < relay->member_count ? i : UINT32_MAX;
}

/* ---- to workers ---- */

static void refuse(struct cairn_member *member, const struct cairn_chunk_header *header,
                   uint32_t owner, cairn_status status)
{
    struct cairn_chunk_header nak = *header;
    nak.kind = CAIRN_CHUNK_NAK;
    nak.value = (uint64_t)status;
    nak.payload_bytes = nak.checksum = 0;
    cairn_member_send_for(member, &nak, owner);
}

/* It is over, however it ended. */
static void want_end(struct cairn_relay_fetches *fetches, struct cairn_relay_want *want)
{
    struct cairn_member *member = cairn_member_find(fetches->relay->job, want->header.member);
    if (member != NULL && member->replies > 0) member->replies--;
    want->state = CAIRN_RELAY_WANT_FREE;
    STAILQ_INSERT_HEAD(&fetches->wants_free, want, link);
}

static void want_refuse(struct cairn_relay_fetches *fetches, struct cairn_relay_want *want,
                        cairn_status status)
{
    struct cairn_member *member = cairn_member_find(fetches->relay->job, want->header.member);
    if (member != NULL) refuse(member, &want->header, want->owner->index, status);
    want_end(fetches, want);
}

static void serve_waiting(struct cairn_relay_fetches *fetches);

static void on_sent(void *arg, cairn_status status)
{
    struct cairn_relay_want *want = arg;
    struct cairn_relay *relay = want->owner->relay;
    struct cairn_relay_fetches *fetches = relay->fetches;
    uint32_t rank = UINT32_MAX;
    fetches->under_way--;
    if (status == CAIRN_OK) {
        rank = rank_of(relay, want->header.member);
        cairn_bytes_fetched(relay->job, want->header.member, want->entry->byte_count, want->way);
    }
    cairn_relay_cache_return(&fetches->cache, want->entry, rank, relay->member_count);
    want_end(fetches, want);
    serve_waiting(fetches);
    cairn_relay_idle(relay);
}

/* The header of an answer: as the worker asked, with what it gets. */
static struct cairn_chunk_header data_header(const struct cairn_relay_want *want,
                                             const struct cairn_relay_entry *entry)
{
    struct cairn_chunk_header header = want->header;
    header.kind = CAIRN_CHUNK_DATA;
    header.tile = want->owner->index;
    header.dtype = (uint8_t)entry->dtype;
    header.payload_bytes = entry->byte_count;
    header.checksum = entry->checksum;
    return header;
}

static void want_send(struct cairn_relay_fetches *fetches, struct cairn_relay_want *want,
                      struct cairn_relay_entry *entry)
{
    struct cairn_relay *relay = fetches->relay;
    const struct cairn_member *member = cairn_member_find(relay->job, want->header.member);
    const struct cairn_chunk_header header = data_header(want, entry);
    uint8_t bytes[CAIRN_CHUNK_HEADER_BYTES];
    cairn_chunk_encode(&header, bytes);
    cairn_status status = CAIRN_ERR_CLOSED;
    cairn_relay_cache_lend(&fetches->cache, entry);
    want->entry = entry;
    if (member != NULL && member->peer != NULL) {
        const void *payload = cairn_relay_cache_bytes(&fetches->cache, entry);
        want->way = cairn_way_of(
            cairn_fabric_payload_path(member->peer, payload, entry->byte_count));
        status = cairn_fabric_send(member->peer, bytes, sizeof bytes, payload, entry->byte_count,
                                   on_sent, want);
    }
    if (status == CAIRN_OK) {
        want->state = CAIRN_RELAY_WANT_SENT;
        fetches->under_way++;
        cairn_relay_busy(relay);
        return;
    }
    cairn_relay_cache_return(&fetches->cache, entry, UINT32_MAX, relay->member_count);
    want_refuse(fetches, want, CAIRN_ERR_BUSY);
}

/* ---- to owners ---- */

static void enqueue(struct cairn_relay_entry *entry)
{
    entry->state = CAIRN_RELAY_ENTRY_QUEUED;
    TAILQ_INSERT_TAIL(&asks_of(entry->owner)->queue, entry, link);
}

static cairn_status ask(const struct cairn_relay_fetches *fetches,
                        const struct cairn_relay_entry *entry)
{
    const struct cairn_chunk_place place = cairn_shard_map_chunk(&entry->owner->map, entry->chunk);
    const uint64_t index = (uint64_t)(entry - fetches->cache.entries);
    struct cairn_chunk_header header = {
        .kind = CAIRN_CHUNK_FETCH,
        .plane = CAIRN_PLANE_WIRE,
        .tile = CAIRN_TILE_WHOLE,
        .table_hash = CAIRN_TABLE_HASH_WHOLE,
        .tensor = place.tensor,
        .first_leaf = place.first_leaf,
        .leaf_count = (uint32_t)place.leaf_count,
        .generation = entry->version.generation,
        .step = entry->version.step,
        .request = CAIRN_RELAY_FETCH_COOKIE | (uint64_t)entry->serial << 32 | index,
    };
    return cairn_relay_link_send(entry->owner, &header, NULL, 0, NULL, NULL);
}

static void pump(struct cairn_relay_owner *owner)
{
    struct asks *asks = asks_of(owner);
    // Before the owner's HELLO it is not known by which of its endpoints it will answer.
    while (owner->link.peer != NULL && owner->link.endpoint != 0 && !asks->busy &&
           asks->in_flight < IN_FLIGHT_MAX && !TAILQ_EMPTY(&asks->queue)) {
        struct cairn_relay_entry *entry = TAILQ_FIRST(&asks->queue);
        if (ask(owner->relay->fetches, entry) != CAIRN_OK)
            return; // BUSY: the next answer or tick; CLOSED: the next connection
        TAILQ_REMOVE(&asks->queue, entry, link);
        entry->state = CAIRN_RELAY_ENTRY_ASKED;
        asks->in_flight++;
    }
}

/* Gives the want what it asks for, or an entry to wait for. False: there is no place for one. */
static bool serve(struct cairn_relay_fetches *fetches, struct cairn_relay_want *want)
{
    struct cairn_relay_cache *cache = &fetches->cache;
    const struct cairn_version version = { want->header.generation, want->header.step };
    struct cairn_relay_entry *entry = cairn_relay_cache_find(cache, want->owner, want->chunk,
                                                             version);
    if (entry != NULL && entry->state == CAIRN_RELAY_ENTRY_HERE) {
        want_send(fetches, want, entry);
        return true;
    }
    const bool is_new = entry == NULL;
    if (is_new) entry = cairn_relay_cache_take(cache, want->owner, want->chunk, version);
    if (entry == NULL) return false;
    want->state = CAIRN_RELAY_WANT_ENTRY;
    want->entry = entry;
    STAILQ_INSERT_TAIL(&entry->wants, want, link);
    if (is_new) enqueue(entry);
    pump(want->owner);
    return true;
}

/* A place may be at rest, or free: in the order in which they came, those who can be served are. */
static void serve_waiting(struct cairn_relay_fetches *fetches)
{
    if (fetches->relay->leaving || fetches->relay->job->shard->closing) return;
    struct cairn_relay_wants waiting = STAILQ_HEAD_INITIALIZER(waiting);
    STAILQ_CONCAT(&waiting, &fetches->without_place);
    while (!STAILQ_EMPTY(&waiting)) {
        struct cairn_relay_want *want = STAILQ_FIRST(&waiting);
        STAILQ_REMOVE_HEAD(&waiting, link);
        if (!serve(fetches, want)) STAILQ_INSERT_TAIL(&fetches->without_place, want, link);
    }
}

/* ---- fetches of workers ---- */

/* Without side effects. CAIRN_ERR_NOT_FOUND: not by a relay. */
static cairn_status judge(const struct cairn_relay *relay, const struct cairn_member *member,
                          const struct cairn_chunk_header *header,
                          const struct cairn_relay_owner *owner, uint64_t *chunk_out)
{
    const struct cairn_shard_job *job = member->job;
    if (relay == NULL || relay->fetches == NULL || relay->fetches->cache.entry_max == 0 ||
        job->state != CAIRN_JOB_SERVING || rank_of(relay, member->number) == UINT32_MAX)
        return CAIRN_ERR_NOT_FOUND;
    if (owner == NULL || owner->index == job->map.shard) return CAIRN_ERR_NOT_FOUND;
    if (header->plane != CAIRN_PLANE_WIRE || header->tile != CAIRN_TILE_WHOLE ||
        header->table_hash != member->tiles_hash)
        return CAIRN_ERR_NOT_FOUND;
    if (cairn_shard_map_chunk_number(&owner->map, header->tensor, header->first_leaf,
                                     header->leaf_count, chunk_out) != CAIRN_OK)
        return CAIRN_ERR_MALFORMED;
    if (member->replies >= CAIRN_SHARD_REPLIES_MAX) return CAIRN_ERR_BUSY;
    return STAILQ_EMPTY(&relay->fetches->wants_free) ? CAIRN_ERR_BUSY : CAIRN_OK;
}

/* In whose name it is refused. */
static uint32_t owner_index(const struct cairn_shard_job *job,
                            const struct cairn_chunk_header *header)
{
    const struct cairn_extent *extent = cairn_layout_find(job->layout, header->tensor,
                                                          header->first_leaf);
    return extent != NULL ? extent->shard : job->map.shard;
}

static struct cairn_relay_want *want_open(struct cairn_relay_fetches *fetches,
                                          struct cairn_member *member,
                                          struct cairn_relay_owner *owner, uint64_t chunk,
                                          const struct cairn_chunk_header *header)
{
    struct cairn_relay_want *want = STAILQ_FIRST(&fetches->wants_free);
    STAILQ_REMOVE_HEAD(&fetches->wants_free, link);
    *want = (struct cairn_relay_want) {
        .state = CAIRN_RELAY_WANT_PLACE, .owner = owner, .chunk = chunk, .header = *header
    };
    member->replies++;
    return want;
}

void cairn_relay_fetch(struct cairn_member *member, const struct cairn_chunk_header *header,
                       struct cairn_fabric_message *message)
{
    struct cairn_shard_job *job = member->job;
    struct cairn_relay *relay = cairn_relay_of(job);
    struct cairn_relay_owner *owner = NULL;
    uint64_t chunk;
    const uint32_t index = owner_index(job, header);
    if (message != NULL) cairn_fabric_drop(message);
    if (relay != NULL) owner = cairn_relay_owner_find(relay, index);
    const cairn_status status = judge(relay, member, header, owner, &chunk);
    if (status != CAIRN_OK) {
        refuse(member, header, index, status);
        cairn_shard_job_settle(job);
        return;
    }
    struct cairn_relay_fetches *fetches = relay->fetches;
    struct cairn_relay_want *want = want_open(fetches, member, owner, chunk, header);
    STAILQ_INSERT_TAIL(&fetches->without_place, want, link);
    serve_waiting(fetches);
    // The shard's memory is used up by others, perhaps for long.
    if (want->state == CAIRN_RELAY_WANT_PLACE && fetches->cache.entry_count == 0) {
        STAILQ_REMOVE(&fetches->without_place, want, cairn_relay_want, link);
        want_refuse(fetches, want, CAIRN_ERR_NOT_FOUND);
    }
    cairn_relay_wake(job->shard);
    cairn_shard_job_settle(job);
}

/* ---- answers of owners ---- */

static void refuse_all(struct cairn_relay_fetches *fetches, struct cairn_relay_entry *entry,
                       cairn_status status)
{
    while (!STAILQ_EMPTY(&entry->wants)) {
        struct cairn_relay_want *want = STAILQ_FIRST(&entry->wants);
        STAILQ_REMOVE_HEAD(&entry->wants, link);
        want_refuse(fetches, want, status);
    }
    cairn_relay_cache_forget(&fetches->cache, entry);
}

static void send_all(struct cairn_relay_fetches *fetches, struct cairn_relay_entry *entry)
{
    while (!STAILQ_EMPTY(&entry->wants)) {
        struct cairn_relay_want *want = STAILQ_FIRST(&entry->wants);
        STAILQ_REMOVE_HEAD(&entry->wants, link);
        want_send(fetches, want, entry);
    }
}

static void ask_again_damaged(struct cairn_relay_fetches *fetches, struct cairn_relay_entry *entry)
{
    if (++entry->damaged < DAMAGED_MAX)
        enqueue(entry);
    else
        refuse_all(fetches, entry, CAIRN_ERR_NOT_FOUND);
}

static void on_received(void *arg, cairn_status status)
{
    struct cairn_relay_entry *entry = arg;
    struct cairn_relay_owner *owner = entry->owner;
    struct cairn_relay_fetches *fetches = owner->relay->fetches;
    const uint8_t *bytes = cairn_relay_cache_bytes(&fetches->cache, entry);
    fetches->under_way--;
    if (status == CAIRN_OK && cairn_chunk_checksum(bytes, entry->byte_count) == entry->checksum) {
        cairn_relay_cache_arrived(&fetches->cache, entry);
        send_all(fetches, entry);
    } else if (owner->link.lost) {
        entry->state = CAIRN_RELAY_ENTRY_ASKED; // the link's loss asks again
    } else {
        ask_again_damaged(fetches, entry);
    }
    pump(owner);
    serve_waiting(fetches);
    cairn_shard_job_settle(owner->relay->job);
    cairn_relay_link_loan_back(owner);
}

static bool is_answer_to(const struct cairn_chunk_header *header,
                         const struct cairn_relay_entry *entry)
{
    const struct cairn_chunk_place place = cairn_shard_map_chunk(&entry->owner->map, entry->chunk);
    return header->kind == CAIRN_CHUNK_DATA && header->tensor == place.tensor &&
           header->first_leaf == place.first_leaf && header->leaf_count == place.leaf_count &&
           header->plane == CAIRN_PLANE_WIRE && header->dtype == entry->dtype &&
           header->payload_bytes == entry->byte_count &&
           header->generation == entry->version.generation && header->step == entry->version.step;
}

static void receive(struct cairn_relay_fetches *fetches, struct cairn_relay_entry *entry,
                    const struct cairn_chunk_header *header, struct cairn_fabric_message *message)
{
    entry->checksum = header->checksum;
    const cairn_status status = cairn_fabric_receive(
        message, cairn_relay_cache_bytes(&fetches->cache, entry), fetches->cache.place_bytes,
        on_received, entry);
    if (status == CAIRN_OK) {
        entry->state = CAIRN_RELAY_ENTRY_RECEIVING;
        fetches->under_way++;
        cairn_relay_link_loan(entry->owner);
        return;
    }
    cairn_fabric_drop(message);
    asks_of(entry->owner)->busy = true;
    enqueue(entry);
}

static void on_nak(struct cairn_relay_fetches *fetches, struct cairn_relay_entry *entry,
                   uint64_t value)
{
    if (value == CAIRN_ERR_BUSY) {
        asks_of(entry->owner)->busy = true;
        enqueue(entry);
    } else {
        const bool is_of_version = value == CAIRN_ERR_NOT_READY || value == CAIRN_ERR_VERSION_GONE;
        refuse_all(fetches, entry, is_of_version ? (cairn_status)value : CAIRN_ERR_NOT_FOUND);
    }
}

/* The entry that an answer is for, no longer in flight; NULL: of a former use or connection. */
static struct cairn_relay_entry *entry_answered(struct cairn_relay_owner *owner,
                                                const struct cairn_chunk_header *header)
{
    const struct cairn_relay_cache *cache = &owner->relay->fetches->cache;
    const uint32_t index = (uint32_t)header->request;
    const uint32_t serial = (uint32_t)(header->request >> 32) & 0x7fffffffu;
    if (index >= cache->entry_count) return NULL;
    struct cairn_relay_entry *entry = &cache->entries[index];
    if (entry->state != CAIRN_RELAY_ENTRY_ASKED || entry->serial != serial || entry->owner != owner)
        return NULL;
    asks_of(owner)->in_flight--;
    asks_of(owner)->busy = false;
    return entry;
}

void cairn_relay_fetch_on_answer(struct cairn_relay_owner *owner,
                                 const struct cairn_chunk_header *header,
                                 struct cairn_fabric_message *message)
{
    struct cairn_relay_fetches *fetches = owner->relay->fetches;
    struct cairn_relay_entry *entry = NULL;
    if (fetches != NULL && !owner->relay->leaving) entry = entry_answered(owner, header);
    if (entry != NULL && message != NULL && is_answer_to(header, entry)) {
        receive(fetches, entry, header, message);
        message = NULL;
    } else if (entry != NULL && header->kind == CAIRN_CHUNK_NAK) {
        on_nak(fetches, entry, header->value);
    } else if (entry != NULL) {
        refuse_all(fetches, entry, CAIRN_ERR_NOT_FOUND);
    }
    if (message != NULL) cairn_fabric_drop(message);
    if (entry == NULL) return;
    pump(owner);
    serve_waiting(fetches);
    cairn_shard_job_settle(owner->relay->job);
}

/* ---- losses ---- */

void cairn_relay_fetch_tick(struct cairn_relay_owner *owner)
{
    struct cairn_relay_fetches *fetches = owner->relay->fetches;
    if (fetches == NULL) return;
    asks_of(owner)->busy = false;
    pump(owner);
    serve_waiting(fetches); // there may be memory again
}

void cairn_relay_fetch_lost(struct cairn_relay_owner *owner)
{
    struct cairn_relay_fetches *fetches = owner->relay->fetches;
    if (fetches == NULL || owner->relay->leaving) return;
    for (uint32_t i = 0; i < fetches->cache.entry_count; i++) {
        struct cairn_relay_entry *entry = &fetches->cache.entries[i];
        if (entry->state == CAIRN_RELAY_ENTRY_ASKED && entry->owner == owner) enqueue(entry);
    }
    asks_of(owner)->in_flight = 0;
    asks_of(owner)->busy = false;
    pump(owner);
}

bool cairn_relay_fetch_waits(const struct cairn_relay_owner *owner)
{
    if (owner->relay->fetches == NULL) return false;
    const struct asks *asks = asks_of(owner);
    return asks->in_flight > 0 || !TAILQ_EMPTY(&asks->queue);
}

/* Out of the list in which it waits. What nobody waits for any more is not asked for. */
static void want_detach(struct cairn_relay_fetches *fetches, struct cairn_relay_want *want)
{
    struct cairn_relay_entry *entry = want->entry;
    if (want->state == CAIRN_RELAY_WANT_PLACE) {
        STAILQ_REMOVE(&fetches->without_place, want, cairn_relay_want, link);
        return;
    }
    STAILQ_REMOVE(&entry->wants, want, cairn_relay_want, link);
    if (entry->state != CAIRN_RELAY_ENTRY_QUEUED || !STAILQ_EMPTY(&entry->wants)) return;
    TAILQ_REMOVE(&asks_of(entry->owner)->queue, entry, link);
    cairn_relay_cache_forget(&fetches->cache, entry);
}

static bool want_waits(const struct cairn_relay_want *want)
{
    return want->state == CAIRN_RELAY_WANT_PLACE || want->state == CAIRN_RELAY_WANT_ENTRY;
}

void cairn_relay_fetch_forget(struct cairn_relay *relay, uint64_t member)
{
    struct cairn_relay_fetches *fetches = relay->fetches;
    if (fetches == NULL) return;
    for (uint32_t i = 0; i < fetches->want_count; i++) {
        struct cairn_relay_want *want = &fetches->wants[i];
        if (!want_waits(want) || want->header.member != member) continue;
        want_detach(fetches, want);
        want_end(fetches, want);
    }
    serve_waiting(fetches);
}

static void refuse_waiting(struct cairn_relay_fetches *fetches)
{
    for (uint32_t i = 0; i < fetches->want_count; i++) {
        struct cairn_relay_want *want = &fetches->wants[i];
        if (!want_waits(want)) continue;
        want_detach(fetches, want);
        want_refuse(fetches, want, CAIRN_ERR_NOT_FOUND);
    }
}

/* ---- open and close ---- */

cairn_status cairn_relay_fetch_open(struct cairn_relay *relay, struct cairn_sentence *why)
{
    struct cairn_relay_fetches *fetches = calloc(1, sizeof *fetches);
    if (fetches == NULL) return cairn_fail(why, CAIRN_ERR_NO_MEMORY, "no memory for a relay");
    const cairn_status status = cairn_relay_cache_open(relay, &fetches->cache, why);
    if (status != CAIRN_OK) {
        free(fetches);
        return status;
    }
    relay->fetches = fetches;
    fetches->relay = relay;
    STAILQ_INIT(&fetches->wants_free);
    STAILQ_INIT(&fetches->without_place);
    fetches->want_count = relay->member_count * CAIRN_SHARD_REPLIES_MAX;
    fetches->asks = calloc(relay->owner_count, sizeof *fetches->asks);
    fetches->wants = calloc(fetches->want_count, sizeof *fetches->wants);
    if (fetches->asks == NULL || fetches->wants == NULL) {
        fetches->want_count = 0;
        cairn_relay_fetch_close(relay);
        return cairn_fail(why, CAIRN_ERR_NO_MEMORY, "no memory for a relay");
    }
    for (uint32_t i = 0; i < relay->owner_count; i++) TAILQ_INIT(&fetches->asks[i].queue);
    for (uint32_t i = 0; i < fetches->want_count; i++)
        STAILQ_INSERT_TAIL(&fetches->wants_free, &fetches->wants[i], link);
    return CAIRN_OK;
}

void cairn_relay_fetch_close(struct cairn_relay *relay)
{
    struct cairn_relay_fetches *fetches = relay->fetches;
    if (fetches == NULL) return;
    if (!relay->job->shard->closing) refuse_waiting(fetches);
    if (fetches->under_way > 0 && !relay->job->shard->closing) return;
    cairn_relay_cache_release(&fetches->cache);
    free(fetches->asks);
    free(fetches->wants);
    free(fetches);
    relay->fetches = NULL;
}
