/* What a relay asks the owners for, for the workers of its host: a few chunks at a time of each, again when a
 * connection is lost, a chunk was damaged on its way, or the owner had no time.
 *
 * What a version is, its owner knows: NOT_READY and VERSION_GONE are passed on to all who wait. Any other
 * refusal may be of the relay, and not of the worker: it is told to ask the owner (NOT_FOUND). */
#include "server/shard/relay_fetch.h"

#define DAMAGED_MAX   16 /* then the way there is broken, and the workers shall try theirs */
#define IN_FLIGHT_MAX 8  /* chunks unanswered by one owner; it holds at most twice as many for us */

/* ---- questions ---- */

void cairn_relay_ask(struct cairn_relay_entry *entry)
{
    entry->state = CAIRN_RELAY_ENTRY_QUEUED;
    TAILQ_INSERT_TAIL(&cairn_relay_asks_of(entry->owner)->queue, entry, link);
}

static cairn_status send_fetch(const struct cairn_relay_fetches *fetches,
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

void cairn_relay_ask_not(struct cairn_relay_entry *entry)
{
    TAILQ_REMOVE(&cairn_relay_asks_of(entry->owner)->queue, entry, link);
}

void cairn_relay_ask_pump(struct cairn_relay_owner *owner)
{
    struct cairn_relay_asks *asks = cairn_relay_asks_of(owner);
    // Before the owner's HELLO it is not known by which of its endpoints it will answer.
    while (owner->link.peer != NULL && owner->link.endpoint != 0 && !asks->busy &&
           asks->in_flight < IN_FLIGHT_MAX && !TAILQ_EMPTY(&asks->queue)) {
        struct cairn_relay_entry *entry = TAILQ_FIRST(&asks->queue);
        if (send_fetch(owner->relay->fetches, entry) != CAIRN_OK)
            return; // BUSY: the next answer or tick; CLOSED: the next connection
        TAILQ_REMOVE(&asks->queue, entry, link);
        entry->state = CAIRN_RELAY_ENTRY_ASKED;
        asks->in_flight++;
    }
}

/* ---- answers ---- */

static void ask_again_damaged(struct cairn_relay_fetches *fetches, struct cairn_relay_entry *entry)
{
    if (++entry->damaged < DAMAGED_MAX)
        cairn_relay_ask(entry);
    else
        cairn_relay_fetch_refuse_all(fetches, entry, CAIRN_ERR_NOT_FOUND);
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
        cairn_relay_fetch_send_all(fetches, entry);
    } else if (owner->link.lost) {
        entry->state = CAIRN_RELAY_ENTRY_ASKED; // the link's loss asks again
    } else {
        ask_again_damaged(fetches, entry);
    }
    cairn_relay_ask_pump(owner);
    cairn_relay_fetch_serve(fetches);
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
    cairn_relay_asks_of(entry->owner)->busy = true;
    cairn_relay_ask(entry);
}

static void on_nak(struct cairn_relay_fetches *fetches, struct cairn_relay_entry *entry,
                   uint64_t value)
{
    if (value == CAIRN_ERR_BUSY) {
        cairn_relay_asks_of(entry->owner)->busy = true;
        cairn_relay_ask(entry);
    } else {
        const bool is_of_version = value == CAIRN_ERR_NOT_READY || value == CAIRN_ERR_VERSION_GONE;
        cairn_relay_fetch_refuse_all(fetches, entry,
                                     is_of_version ? (cairn_status)value : CAIRN_ERR_NOT_FOUND);
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
    cairn_relay_asks_of(owner)->in_flight--;
    cairn_relay_asks_of(owner)->busy = false;
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
        cairn_relay_fetch_refuse_all(fetches, entry, CAIRN_ERR_NOT_FOUND);
    }
    if (message != NULL) cairn_fabric_drop(message);
    if (entry == NULL) return;
    cairn_relay_ask_pump(owner);
    cairn_relay_fetch_serve(fetches);
    cairn_shard_job_settle(owner->relay->job);
}

/* ---- losses ---- */

void cairn_relay_fetch_tick(struct cairn_relay_owner *owner)
{
    struct cairn_relay_fetches *fetches = owner->relay->fetches;
    if (fetches == NULL) return;
    cairn_relay_asks_of(owner)->busy = false;
    cairn_relay_ask_pump(owner);
    cairn_relay_fetch_serve(fetches); // there may be memory again
}

void cairn_relay_fetch_lost(struct cairn_relay_owner *owner)
{
    struct cairn_relay_fetches *fetches = owner->relay->fetches;
    if (fetches == NULL || owner->relay->leaving) return;
    for (uint32_t i = 0; i < fetches->cache.entry_count; i++) {
        struct cairn_relay_entry *entry = &fetches->cache.entries[i];
        if (entry->state == CAIRN_RELAY_ENTRY_ASKED && entry->owner == owner)
            cairn_relay_ask(entry);
    }
    cairn_relay_asks_of(owner)->in_flight = 0;
    cairn_relay_asks_of(owner)->busy = false;
    cairn_relay_ask_pump(owner);
}

bool cairn_relay_fetch_waits(const struct cairn_relay_owner *owner)
{
    if (owner->relay->fetches == NULL) return false;
    const struct cairn_relay_asks *asks = cairn_relay_asks_of(owner);
    return asks->in_flight > 0 || !TAILQ_EMPTY(&asks->queue);
}
