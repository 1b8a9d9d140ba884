/* Asks the owners, by one asker for each, for the chunks that the workers of this host want.
 *
 * Only its owner knows the state of a version: NOT_READY and VERSION_GONE are passed on to all who
 * wait. Any other refusal may be meant for the relay and not for the worker: then the worker is
 * told to ask the owner itself (NOT_FOUND). */
#include "server/shard/relay/fetches.h"

static struct cairn_relay_entry *entry_of(struct cairn_chunk_request *request)
{
    return (struct cairn_relay_entry *)((char *)request -
                                        offsetof(struct cairn_relay_entry, request));
}

cairn_status cairn_relay_ask_send(struct cairn_chunk_request *request)
{
    const struct cairn_relay_entry *entry = entry_of(request);
    const struct cairn_chunk_place place = cairn_shard_map_chunk(&entry->owner->table.map,
                                                                 entry->chunk);
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
        .request = cairn_chunk_request_number(request),
    };
    // Before the owner's HELLO it is not known by which of its endpoints it will answer.
    if (!cairn_chunk_link_is_up(&entry->owner->link)) return CAIRN_ERR_CLOSED;
    return cairn_chunk_link_send(&entry->owner->link, &header, NULL, 0, NULL, NULL);
}

/* ---- answers ---- */

/* It is asked again, or nobody gets it. */
static void refused(struct cairn_relay_entry *entry, uint64_t status)
{
    const bool is_of_version = status == CAIRN_ERR_NOT_READY || status == CAIRN_ERR_VERSION_GONE;
    if (cairn_asker_again(&entry->owner->asker, &entry->request, status)) return;
    cairn_relay_fetch_refuse_all(entry->owner->relay->fetches, entry,
                                 is_of_version ? (cairn_status)status : CAIRN_ERR_NOT_FOUND);
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
        cairn_asker_ask(&owner->asker, &entry->request);
    } else {
        refused(entry, CAIRN_ERR_CHECKSUM);
    }
    cairn_asker_pump(&owner->asker);
    cairn_relay_fetch_serve(fetches);
    cairn_shard_job_settle(owner->relay->job);
    cairn_chunk_link_loan_back(&owner->link);
}

static bool is_answer_to(const struct cairn_chunk_header *header,
                         const struct cairn_relay_entry *entry)
{
    const struct cairn_chunk_place place = cairn_shard_map_chunk(&entry->owner->table.map,
                                                                 entry->chunk);
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
        fetches->under_way++;
        cairn_chunk_link_loan(&entry->owner->link);
        return;
    }
    cairn_fabric_drop(message);
    refused(entry, CAIRN_ERR_BUSY);
}

/* The entry that an answer is for, no longer in flight; NULL: of a former use or connection. */
static struct cairn_relay_entry *entry_answered(struct cairn_relay_owner *owner,
                                                const struct cairn_chunk_header *header)
{
    const struct cairn_relay_cache *cache = &owner->relay->fetches->cache;
    const uint32_t index = (uint32_t)header->request;
    if (index >= cache->entry_count) return NULL;
    struct cairn_relay_entry *entry = &cache->entries[index];
    const bool is_its = entry->owner == owner &&
                        cairn_asker_answered(&owner->asker, &entry->request, header->request);
    return is_its ? entry : NULL;
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
        refused(entry, header->value);
    } else if (entry != NULL) {
        cairn_relay_fetch_refuse_all(fetches, entry, CAIRN_ERR_NOT_FOUND);
    }
    cairn_fabric_drop(message);
    if (entry == NULL) return;
    cairn_asker_pump(&owner->asker);
    cairn_relay_fetch_serve(fetches);
    cairn_shard_job_settle(owner->relay->job);
}

/* ---- losses ---- */

void cairn_relay_fetch_tick(struct cairn_relay_owner *owner)
{
    struct cairn_relay_fetches *fetches = owner->relay->fetches;
    if (fetches == NULL) return;
    cairn_asker_retry(&owner->asker);
    cairn_relay_fetch_serve(fetches); // there may be memory again
}

void cairn_relay_fetch_lost(struct cairn_relay_owner *owner)
{
    struct cairn_relay_fetches *fetches = owner->relay->fetches;
    if (fetches == NULL || owner->relay->leaving) return;
    for (uint32_t i = 0; i < fetches->cache.entry_count; i++) {
        struct cairn_relay_entry *entry = &fetches->cache.entries[i];
        if (entry->owner == owner) cairn_asker_lost(&owner->asker, &entry->request);
    }
    cairn_asker_retry(&owner->asker);
}

bool cairn_relay_fetch_waits(const struct cairn_relay_owner *owner)
{
    return owner->relay->fetches != NULL && cairn_asker_waits(&owner->asker);
}
