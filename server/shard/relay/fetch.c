/* Published chunks of other shards for the workers of this host: asked for once, given to all of them out of
 * cache.h.
 *
 *   worker ── FETCH ──► want ──► an entry that is HERE ─────────────────────────────► DATA
 *                        ├────► one that is on its way: waits, with others ──────────► DATA, or NAK
 *                        ├────► a new one: COMING ── FETCH ──► owner ── DATA ──► HERE
 *                        └────► no place is at rest: waits without one
 *
 * A worker that stops pins the places that are being sent to it, at most CAIRN_SHARD_REPLIES_MAX, until
 * its endpoint is cut. Loop thread; nothing is allocated after the relay was opened. */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "server/shard/relay/fetches.h"

static uint32_t rank_of(const struct cairn_relay *relay, uint64_t member)
{
    uint32_t i = 0;
    while (i < relay->member_count && relay->members[i] != member) i++;
    return i < relay->member_count ? i : UINT32_MAX;
}

/* ---- to workers ---- */

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
    if (member != NULL) cairn_member_refuse_for(member, &want->header, status, want->owner->index);
    want_end(fetches, want);
}

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
    cairn_relay_fetch_serve(fetches);
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

/* ---- who waits ---- */

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
    if (is_new) cairn_asker_ask(&want->owner->asker, &entry->request);
    cairn_asker_pump(&want->owner->asker);
    return true;
}

void cairn_relay_fetch_serve(struct cairn_relay_fetches *fetches)
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

void cairn_relay_fetch_refuse_all(struct cairn_relay_fetches *fetches,
                                  struct cairn_relay_entry *entry, cairn_status status)
{
    while (!STAILQ_EMPTY(&entry->wants)) {
        struct cairn_relay_want *want = STAILQ_FIRST(&entry->wants);
        STAILQ_REMOVE_HEAD(&entry->wants, link);
        want_refuse(fetches, want, status);
    }
    cairn_relay_cache_forget(&fetches->cache, entry);
}

void cairn_relay_fetch_send_all(struct cairn_relay_fetches *fetches,
                                struct cairn_relay_entry *entry)
{
    while (!STAILQ_EMPTY(&entry->wants)) {
        struct cairn_relay_want *want = STAILQ_FIRST(&entry->wants);
        STAILQ_REMOVE_HEAD(&entry->wants, link);
        want_send(fetches, want, entry);
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
    if (owner == NULL || owner->index == job->view->table.map.shard) return CAIRN_ERR_NOT_FOUND;
    if (header->plane != CAIRN_PLANE_WIRE || header->tile != CAIRN_TILE_WHOLE ||
        header->table_hash != member->tiles_hash)
        return CAIRN_ERR_NOT_FOUND;
    if (cairn_shard_map_chunk_number(&owner->table.map, header->tensor, header->first_leaf,
                                     header->leaf_count, chunk_out) != CAIRN_OK)
        return CAIRN_ERR_MALFORMED;
    if (member->replies >= CAIRN_SHARD_REPLIES_MAX) return CAIRN_ERR_BUSY;
    return STAILQ_EMPTY(&relay->fetches->wants_free) ? CAIRN_ERR_BUSY : CAIRN_OK;
}

/* In whose name it is refused. */
static uint32_t owner_index(const struct cairn_shard_job *job,
                            const struct cairn_chunk_header *header)
{
    const struct cairn_extent *extent = cairn_layout_find(job->view->layout, header->tensor,
                                                          header->first_leaf);
    return extent != NULL ? extent->shard : job->view->table.map.shard;
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
    cairn_fabric_drop(message);
    if (relay != NULL) owner = cairn_relay_owner_find(relay, index);
    const cairn_status status = judge(relay, member, header, owner, &chunk);
    if (status != CAIRN_OK) {
        cairn_member_refuse_for(member, header, status, index);
        cairn_shard_job_settle(job);
        return;
    }
    struct cairn_relay_fetches *fetches = relay->fetches;
    struct cairn_relay_want *want = want_open(fetches, member, owner, chunk, header);
    STAILQ_INSERT_TAIL(&fetches->without_place, want, link);
    cairn_relay_fetch_serve(fetches);
    // The shard's memory is used up by others, perhaps for long.
    if (want->state == CAIRN_RELAY_WANT_PLACE && fetches->cache.entry_count == 0) {
        STAILQ_REMOVE(&fetches->without_place, want, cairn_relay_want, link);
        want_refuse(fetches, want, CAIRN_ERR_NOT_FOUND);
    }
    cairn_relay_wake(job->shard);
    cairn_shard_job_settle(job);
}

/* ---- who is gone ---- */

/* Takes the want out of the list in which it waits. A chunk that nobody waits for any more is not
 * asked for. */
static void want_detach(struct cairn_relay_fetches *fetches, struct cairn_relay_want *want)
{
    struct cairn_relay_entry *entry = want->entry;
    if (want->state == CAIRN_RELAY_WANT_PLACE) {
        STAILQ_REMOVE(&fetches->without_place, want, cairn_relay_want, link);
        return;
    }
    STAILQ_REMOVE(&entry->wants, want, cairn_relay_want, link);
    if (entry->request.state != CAIRN_REQUEST_WAITING || !STAILQ_EMPTY(&entry->wants)) return;
    cairn_asker_drop(&entry->owner->asker, &entry->request);
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
    cairn_relay_fetch_serve(fetches);
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
    fetches->wants = calloc(fetches->want_count, sizeof *fetches->wants);
    if (fetches->wants == NULL) {
        fetches->want_count = 0;
        cairn_relay_fetch_close(relay);
        return cairn_fail(why, CAIRN_ERR_NO_MEMORY, "no memory for a relay");
    }
    for (uint32_t i = 0; i < relay->owner_count; i++)
        cairn_asker_open(&relay->owners[i].asker, cairn_relay_ask_send);
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
    free(fetches->wants);
    free(fetches);
    relay->fetches = NULL;
}
