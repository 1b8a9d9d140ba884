#include "server/shard/relay.h"

#include <inttypes.h>
#include <assert.h>
#include <stdlib.h>
#include <string.h>

/* ==== cache ==== */

#define PLACE_ALIGN 4096u

static void relay_fetch_refuse_all(struct relay_fetches *fetches, struct relay_entry *entry,
                                   cairn_status status);
static void relay_fetch_send_all(struct relay_fetches *fetches, struct relay_entry *entry);

/* ---- the table ---- */

static struct relay_entry **bucket_of(const struct relay_cache *cache,
                                      const struct relay_owner *owner, uint64_t chunk,
                                      struct cairn_version version)
{
    const uint64_t odd = 0x9e3779b97f4a7c15ull;
    uint64_t hash = (chunk + 1) * odd ^ (uint64_t)owner->neighbour.index;
    hash = (hash ^ hash >> 29) * odd + version.step;
    hash = (hash ^ hash >> 32) * odd + version.generation;
    return &cache->buckets[(hash ^ hash >> 31) & (cache->bucket_count - 1)];
}

struct relay_entry *relay_cache_find(const struct relay_cache *cache,
                                     const struct relay_owner *owner, uint64_t chunk,
                                     struct cairn_version version)
{
    struct relay_entry *entry = *bucket_of(cache, owner, chunk, version);
    while (entry != NULL && (entry->owner != owner || entry->chunk != chunk ||
                             version_compare(entry->version, version) != 0))
        entry = entry->next;
    return entry;
}

static void unlink_entry(const struct relay_cache *cache, struct relay_entry *entry)
{
    struct relay_entry **link = bucket_of(cache, entry->owner, entry->chunk, entry->version);
    while (*link != entry) link = &(*link)->next;
    *link = entry->next;
}

/* ---- at rest ---- */

static uint64_t *had_by(const struct relay_cache *cache, const struct relay_entry *entry)
{
    return cache->had_by + (size_t)(entry - cache->entries) * cache->member_words;
}

static bool is_at_rest(const struct relay_entry *entry)
{
    return entry->state == CAIRN_RELAY_ENTRY_HERE && entry->sends == 0;
}

static void rest_entry(struct relay_cache *cache, struct relay_entry *entry)
{
    assert(is_at_rest(entry));
    if (entry->is_had)
        TAILQ_INSERT_TAIL(&cache->had, entry, link);
    else if (version_compare(entry->version, cache->newest) < 0)
        TAILQ_INSERT_HEAD(&cache->kept, entry, link);
    else
        TAILQ_INSERT_TAIL(&cache->kept, entry, link);
}

static void rouse_waiting(struct relay_cache *cache, struct relay_entry *entry)
{
    assert(is_at_rest(entry));
    TAILQ_REMOVE(entry->is_had ? &cache->had : &cache->kept, entry, link);
}

void relay_cache_arrived(struct relay_cache *cache, struct relay_entry *entry)
{
    entry->state = CAIRN_RELAY_ENTRY_HERE;
    if (version_compare(cache->newest, entry->version) < 0) cache->newest = entry->version;
    rest_entry(cache, entry);
}

void relay_cache_lend(struct relay_cache *cache, struct relay_entry *entry)
{
    assert(entry->state == CAIRN_RELAY_ENTRY_HERE);
    if (entry->sends == 0) rouse_waiting(cache, entry);
    entry->sends++;
}

static bool had_by_all(const uint64_t *bits, uint32_t member_count)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i * 64 < member_count; i++)
        count += (uint32_t)__builtin_popcountll(bits[i]);
    return count == member_count;
}

void relay_cache_return(struct relay_cache *cache, struct relay_entry *entry, uint32_t member,
                        uint32_t member_count)
{
    uint64_t *bits = had_by(cache, entry);
    assert(entry->sends > 0);
    if (member < member_count) {
        bits[member / 64] |= (uint64_t)1 << member % 64;
        entry->is_had = had_by_all(bits, member_count);
    }
    if (--entry->sends == 0) rest_entry(cache, entry);
}

static uint8_t *relay_cache_used(const struct relay_cache *cache, const struct relay_entry *entry)
{
    return cache->memory.base + (size_t)(entry - cache->entries) * cache->place_bytes;
}

/* ---- places ---- */

static cairn_status take_budget(struct relay_cache *cache, uint64_t bytes, struct sentence *why)
{
    struct shard_job *job = cache->job;
    const cairn_status status = shard_job_take(job, &job->memory.staging, bytes,
                                               "data fetched for this host", why);
    if (status == CAIRN_OK) cache->budget_bytes += bytes;
    return status;
}

static void give_budget(struct relay_cache *cache, uint64_t bytes)
{
    shard_job_give(cache->job, &cache->job->memory.staging, bytes);
    cache->budget_bytes -= bytes;
}

/* Adds an entry with memory for its chunk, if the budget and the host have this memory. */
static struct relay_entry *add_entry(struct relay_cache *cache)
{
    if (cache->entry_count == cache->entry_max) return NULL;
    if (take_budget(cache, cache->place_bytes, NULL) != CAIRN_OK) return NULL;
    const uint64_t at = (uint64_t)cache->entry_count * cache->place_bytes;
    if (arena_make_pages(&cache->memory, at, cache->place_bytes) != CAIRN_OK) {
        give_budget(cache, cache->place_bytes);
        return NULL;
    }
    return &cache->entries[cache->entry_count++];
}

static struct relay_entry *evict_entry(struct relay_cache *cache)
{
    struct relay_entry *entry = TAILQ_FIRST(&cache->had);
    if (entry == NULL) entry = TAILQ_FIRST(&cache->kept);
    if (entry == NULL) return NULL;
    rouse_waiting(cache, entry);
    unlink_entry(cache, entry);
    return entry;
}

static struct relay_entry *take_place(struct relay_cache *cache)
{
    struct relay_entry *entry = TAILQ_FIRST(&cache->free);
    if (entry != NULL) {
        TAILQ_REMOVE(&cache->free, entry, link);
        return entry;
    }
    entry = add_entry(cache);
    return entry != NULL ? entry : evict_entry(cache);
}

struct relay_entry *relay_cache_take(struct relay_cache *cache, struct relay_owner *owner,
                                     uint64_t chunk, struct cairn_version version)
{
    struct relay_entry *entry = take_place(cache);
    if (entry == NULL) return NULL;
    const struct chunk_place place = shard_map_chunk(&owner->table.map, chunk);
    const cairn_dtype dtype = cache->job->spec.tensors[place.tensor].wire;
    struct relay_entry **bucket = bucket_of(cache, owner, chunk, version);
    *entry = (struct relay_entry) {
        .next = *bucket,
        .state = CAIRN_RELAY_ENTRY_COMING,
        .fetch = { .request = { .index = (uint32_t)(entry - cache->entries),
                                .serial = entry->fetch.request.serial + 1 },
                   .neighbour = &owner->neighbour },
        .owner = owner,
        .chunk = chunk,
        .version = version,
        .dtype = dtype,
        .byte_count = (size_t)place.elem_count * dtype_size((int)dtype),
    };
    assert(entry->byte_count <= cache->place_bytes);
    STAILQ_INIT(&entry->wants);
    *bucket = entry;
    memset(had_by(cache, entry), 0, cache->member_words * sizeof(uint64_t));
    return entry;
}

/* Frees the place of a COMING entry whose chunk the owner cannot give, or no worker wants. The
 * owner must not be asked for the chunk any longer. */
static void relay_cache_forget(struct relay_cache *cache, struct relay_entry *entry)
{
    assert(entry->sends == 0 && STAILQ_EMPTY(&entry->wants));
    assert(entry->state == CAIRN_RELAY_ENTRY_COMING);
    assert(entry->fetch.request.state == CAIRN_REQUEST_IDLE);
    unlink_entry(cache, entry);
    entry->state = CAIRN_RELAY_ENTRY_FREE;
    TAILQ_INSERT_HEAD(&cache->free, entry, link);
}

/* ---- open and close ---- */

/* Returns how many chunks other shards own. *largest_out is the size of the largest of these
 * chunks. No chunk of an extent is larger than the first chunk of that extent, so only first chunks
 * are looked at. */
static uint64_t measure(const struct relay *relay, size_t *largest_out)
{
    const struct shard_job *job = relay->job;
    uint64_t count = 0;
    *largest_out = 0;
    for (uint32_t i = 0; i < relay->owner_count; i++) {
        const struct shard_map *map = &relay->owners[i].table.map;
        if (relay->owners[i].neighbour.index == job->view->table.map.shard) continue;
        count += map->chunk_count;
        for (size_t e = 0; e < map->extent_count; e++) {
            if (map->extents[e].chunk_count == 0) continue;
            const struct chunk_place place = shard_map_chunk(map, map->extents[e].first_chunk);
            const cairn_dtype dtype = job->spec.tensors[place.tensor].wire;
            const size_t bytes = (size_t)place.elem_count * dtype_size((int)dtype);
            if (bytes > *largest_out) *largest_out = bytes;
        }
    }
    return count;
}

static cairn_status open_tables(struct relay_cache *cache, struct sentence *why)
{
    // The tables take memory whether or not anything is fetched.
    const uint64_t bytes = cache->entry_max *
                               (sizeof *cache->entries + cache->member_words * sizeof(uint64_t)) +
                           cache->bucket_count * sizeof(struct relay_entry *);
    CAIRN_TRY(take_budget(cache, bytes, why));
    cache->entries = calloc(cache->entry_max, sizeof *cache->entries);
    cache->buckets = calloc(cache->bucket_count, sizeof *cache->buckets);
    cache->had_by = calloc(cache->entry_max, cache->member_words * sizeof *cache->had_by);
    if (cache->entries == NULL || cache->buckets == NULL || cache->had_by == NULL)
        return fail_with(why, CAIRN_ERR_NO_MEMORY, "out of memory for data fetched for this host");
    return arena_open_shared(home_host(), "cairn-relay-cache",
                             (uint64_t)cache->entry_max * cache->place_bytes, &cache->memory, why);
}

cairn_status relay_cache_open(const struct relay *relay, struct relay_cache *cache,
                              struct sentence *why)
{
    size_t largest;
    uint64_t count = measure(relay, &largest);
    *cache = (struct relay_cache) {
        .job = relay->job,
        .memory = CAIRN_ARENA_NONE,
        .place_bytes = (largest + PLACE_ALIGN - 1) / PLACE_ALIGN * PLACE_ALIGN,
        .member_words = (relay->member_count + 63) / 64,
    };
    TAILQ_INIT(&cache->free);
    TAILQ_INIT(&cache->had);
    TAILQ_INIT(&cache->kept);
    const uint64_t most = largest == 0
                              ? 0
                              : relay->job->shard->memory.relay_cache_bytes / cache->place_bytes;
    if (count > most) count = most;
    if (count > UINT32_MAX / 2) count = UINT32_MAX / 2;
    if (count == 0) return CAIRN_OK;
    cache->entry_max = (uint32_t)count;
    cache->bucket_count = 1;
    while (cache->bucket_count < cache->entry_max) cache->bucket_count *= 2;
    const cairn_status status = open_tables(cache, why);
    if (status != CAIRN_OK) {
        relay_cache_release(cache);
        return status;
    }
    if (!arena_share(&cache->memory, cache->job->shard->fabric, NULL))
        log_warn("job %s: data fetched for this host cannot be shared with it, so it is sent",
                 cache->job->spec.name);
    return CAIRN_OK;
}

void relay_cache_release(struct relay_cache *cache)
{
    arena_release(cache->job->shard, &cache->memory);
    free(cache->entries);
    free(cache->buckets);
    free(cache->had_by);
    cache->entries = NULL;
    cache->buckets = NULL;
    cache->had_by = NULL;
    cache->entry_max = cache->entry_count = 0;
    give_budget(cache, cache->budget_bytes);
}

/* ==== ask ==== */

/* Asks the owners for the chunks that the workers of this host want.
 *
 * Whether a version is ready or gone is known only to the owner, so NOT_READY and VERSION_GONE are
 * passed on to all workers that wait. Any other refusal may concern only the relay. Then the
 * workers are told to ask the owner themselves (NOT_FOUND). */

static struct relay_entry *entry_of(const struct neighbour_fetch *fetch)
{
    return (struct relay_entry *)((char *)(uintptr_t)fetch - offsetof(struct relay_entry, fetch));
}

static void describe_entry(const struct neighbour_fetch *fetch, struct chunk_header *header)
{
    const struct relay_entry *entry = entry_of(fetch);
    const struct chunk_place place = shard_map_chunk(&entry->owner->table.map, entry->chunk);
    header->plane = CAIRN_PLANE_WIRE;
    header->tensor = place.tensor;
    header->first_leaf = place.first_leaf;
    header->leaf_count = (uint32_t)place.leaf_count;
    header->generation = entry->version.generation;
    header->step = entry->version.step;
    header->dtype = (uint8_t)entry->dtype;
    header->payload_bytes = entry->byte_count;
}

static void *place_of_entry(struct neighbour_fetch *fetch)
{
    const struct relay_entry *entry = entry_of(fetch);
    return relay_cache_used(&entry->owner->relay->fetches->cache, entry);
}

static void entry_came(struct neighbour_fetch *fetch)
{
    struct relay_entry *entry = entry_of(fetch);
    struct relay *relay = entry->owner->relay;
    relay_cache_arrived(&relay->fetches->cache, entry);
    relay_fetch_send_all(relay->fetches, entry);
    relay_fetch_serve(relay);
    shard_job_settle(relay->job);
}

static void entry_refused(struct neighbour_fetch *fetch, uint64_t status)
{
    struct relay_entry *entry = entry_of(fetch);
    struct relay *relay = entry->owner->relay;
    const bool is_of_version = status == CAIRN_ERR_NOT_READY || status == CAIRN_ERR_VERSION_GONE;
    relay_fetch_refuse_all(relay->fetches, entry,
                           is_of_version ? (cairn_status)status : CAIRN_ERR_NOT_FOUND);
    relay_fetch_serve(relay);
    shard_job_settle(relay->job);
}

/* ==== fetch ==== */

/* Fetches published chunks of other shards for the workers of this host. The owner is asked for
 * each chunk once, and the chunk is sent to all workers out of the relay's cache.
 *
 *   worker ── FETCH ──► want ──► an entry that is HERE ─────────────────────────────► DATA
 *                        ├────► one that is COMING: waits, with others ──────────────► DATA, or NAK
 *                        ├────► a new one: COMING ── FETCH ──► owner ── DATA ──► HERE
 *                        └────► no place is at rest: waits without one
 *
 * If a worker stops, the places that are being sent to it (at most CAIRN_SHARD_REPLIES_MAX) cannot
 * be used for other chunks until the worker's endpoint is cut. Loop thread. After the relay was
 * opened, only pages of places are allocated. */

/* ---- to workers ---- */

/* Ends a want, however the worker was answered. */
static void want_end(struct relay_fetches *fetches, struct relay_want *want)
{
    struct shard_member *member = member_find(fetches->relay->job, want->header.member);
    if (member != NULL && member->replies > 0) member->replies--;
    want->state = CAIRN_RELAY_WANT_FREE;
    STAILQ_INSERT_HEAD(&fetches->wants_free, want, link);
}

static void want_refuse(struct relay_fetches *fetches, struct relay_want *want, cairn_status status)
{
    struct shard_member *member = member_find(fetches->relay->job, want->header.member);
    if (member != NULL)
        member_refuse_for(member, &want->header, status, want->owner->neighbour.index);
    want_end(fetches, want);
}

static void on_sent(void *arg, cairn_status status)
{
    struct relay_want *want = arg;
    struct relay *relay = want->owner->relay;
    struct relay_fetches *fetches = relay->fetches;
    uint32_t rank = UINT32_MAX;
    if (status == CAIRN_OK) {
        rank = relay_rank(relay, want->header.member);
        bytes_fetched(relay->job, want->header.member, want->entry->byte_count, want->path);
    }
    relay_cache_return(&fetches->cache, want->entry, rank, relay->member_count);
    want_end(fetches, want);
    relay_fetch_serve(relay);
    neighbours_idle(&relay->neighbours);
}

/* Returns the header of the DATA for a want. It is the header of the worker's request, with what is
 * known about the entry. */
static struct chunk_header data_header(const struct relay_want *want,
                                       const struct relay_entry *entry)
{
    struct chunk_header header = want->header;
    header.kind = CAIRN_CHUNK_DATA;
    header.tile = want->owner->neighbour.index;
    // the request's value may be UNSUMMED, but chunks in the cache have a checksum
    header.value = 0;
    header.dtype = (uint8_t)entry->dtype;
    header.payload_bytes = entry->byte_count;
    header.checksum = entry->fetch.checksum;
    return header;
}

static void want_send(struct relay_fetches *fetches, struct relay_want *want,
                      struct relay_entry *entry)
{
    struct relay *relay = fetches->relay;
    const struct shard_member *member = member_find(relay->job, want->header.member);
    const struct chunk_header header = data_header(want, entry);
    uint8_t bytes[CAIRN_CHUNK_HEADER_BYTES];
    chunk_encode(&header, bytes);
    cairn_status status = CAIRN_ERR_CLOSED;
    relay_cache_lend(&fetches->cache, entry);
    want->entry = entry;
    if (member != NULL && member->peer != NULL) {
        const void *payload = relay_cache_used(&fetches->cache, entry);
        want->path = bytes_path_of(fabric_payload_path(member->peer, payload, entry->byte_count));
        status = fabric_send(member->peer, bytes, sizeof bytes, payload, entry->byte_count, on_sent,
                             want);
    }
    if (status == CAIRN_OK) {
        want->state = CAIRN_RELAY_WANT_SENT;
        neighbours_busy(&relay->neighbours);
        return;
    }
    relay_cache_return(&fetches->cache, entry, UINT32_MAX, relay->member_count);
    want_refuse(fetches, want, CAIRN_ERR_BUSY);
}

/* ---- who waits ---- */

/* Sends the chunk that the want asks for, or makes the want wait for an entry. Returns false if a
 * new entry is needed, and no place is free for it. */
static bool serve_want(struct relay_fetches *fetches, struct relay_want *want)
{
    struct relay_cache *cache = &fetches->cache;
    const struct cairn_version version = { want->header.generation, want->header.step };
    struct relay_entry *entry = relay_cache_find(cache, want->owner, want->chunk, version);
    if (entry != NULL && entry->state == CAIRN_RELAY_ENTRY_HERE) {
        want_send(fetches, want, entry);
        return true;
    }
    const bool is_new = entry == NULL;
    if (is_new) entry = relay_cache_take(cache, want->owner, want->chunk, version);
    if (entry == NULL) return false;
    want->state = CAIRN_RELAY_WANT_ENTRY;
    want->entry = entry;
    STAILQ_INSERT_TAIL(&entry->wants, want, link);
    if (is_new) asker_ask(&want->owner->neighbour.asker, &entry->fetch.request);
    asker_pump(&want->owner->neighbour.asker);
    return true;
}

void relay_fetch_serve(struct relay *relay)
{
    struct relay_fetches *fetches = relay->fetches;
    if (fetches == NULL || relay->neighbours.is_leaving || relay->job->shard->closing) return;
    struct relay_wants waiting = STAILQ_HEAD_INITIALIZER(waiting);
    STAILQ_CONCAT(&waiting, &fetches->without_place);
    while (!STAILQ_EMPTY(&waiting)) {
        struct relay_want *want = STAILQ_FIRST(&waiting);
        STAILQ_REMOVE_HEAD(&waiting, link);
        if (!serve_want(fetches, want)) STAILQ_INSERT_TAIL(&fetches->without_place, want, link);
    }
}

/* Refuses the fetches of all workers that wait for the entry, because the owner cannot give its
 * chunk. Then forgets the entry. */
static void relay_fetch_refuse_all(struct relay_fetches *fetches, struct relay_entry *entry,
                                   cairn_status status)
{
    while (!STAILQ_EMPTY(&entry->wants)) {
        struct relay_want *want = STAILQ_FIRST(&entry->wants);
        STAILQ_REMOVE_HEAD(&entry->wants, link);
        want_refuse(fetches, want, status);
    }
    relay_cache_forget(&fetches->cache, entry);
}

/* Sends an entry that is HERE to all workers that wait for it. */
static void relay_fetch_send_all(struct relay_fetches *fetches, struct relay_entry *entry)
{
    while (!STAILQ_EMPTY(&entry->wants)) {
        struct relay_want *want = STAILQ_FIRST(&entry->wants);
        STAILQ_REMOVE_HEAD(&entry->wants, link);
        want_send(fetches, want, entry);
    }
}

/* ---- fetches of workers ---- */

/* Judges a fetch, without side effects. CAIRN_ERR_NOT_FOUND: the relay does not serve this
 * fetch. */
static cairn_status judge_fetch(const struct relay *relay, const struct shard_member *member,
                                const struct chunk_header *header, const struct relay_owner *owner,
                                uint64_t *chunk_out)
{
    const struct shard_job *job = member->job;
    if (relay == NULL || relay->fetches == NULL || relay->fetches->cache.entry_max == 0 ||
        job->state != CAIRN_JOB_SERVING || relay_rank(relay, member->number) == UINT32_MAX)
        return CAIRN_ERR_NOT_FOUND;
    if (owner == NULL || owner->neighbour.index == job->view->table.map.shard)
        return CAIRN_ERR_NOT_FOUND;
    if (header->plane != CAIRN_PLANE_WIRE || header->tile != CAIRN_TILE_WHOLE ||
        header->table_hash != member->tiles_hash)
        return CAIRN_ERR_NOT_FOUND;
    if (shard_map_chunk_number(&owner->table.map, header->tensor, header->first_leaf,
                               header->leaf_count, chunk_out) != CAIRN_OK)
        return CAIRN_ERR_MALFORMED;
    if (member->replies >= CAIRN_SHARD_REPLIES_MAX) return CAIRN_ERR_BUSY;
    return STAILQ_EMPTY(&relay->fetches->wants_free) ? CAIRN_ERR_BUSY : CAIRN_OK;
}

/* Returns the shard in whose name the fetch is refused. */
static uint32_t owner_index(const struct shard_job *job, const struct chunk_header *header)
{
    const struct extent *extent = layout_find(job->view->layout, header->tensor,
                                              header->first_leaf);
    return extent != NULL ? extent->shard : job->view->table.map.shard;
}

static struct relay_want *want_open(struct relay_fetches *fetches, struct shard_member *member,
                                    struct relay_owner *owner, uint64_t chunk,
                                    const struct chunk_header *header)
{
    struct relay_want *want = STAILQ_FIRST(&fetches->wants_free);
    STAILQ_REMOVE_HEAD(&fetches->wants_free, link);
    *want = (struct relay_want) {
        .state = CAIRN_RELAY_WANT_PLACE, .owner = owner, .chunk = chunk, .header = *header
    };
    member->replies++;
    return want;
}

void relay_fetch(struct shard_member *member, const struct chunk_header *header,
                 struct fabric_message *message)
{
    struct shard_job *job = member->job;
    struct relay *relay = job_relay(job);
    struct relay_owner *owner = NULL;
    uint64_t chunk;
    const uint32_t index = owner_index(job, header);
    fabric_drop(message);
    if (relay != NULL) owner = relay_owner_find(relay, index);
    const cairn_status status = judge_fetch(relay, member, header, owner, &chunk);
    if (status != CAIRN_OK) {
        member_refuse_for(member, header, status, index);
        shard_job_settle(job);
        return;
    }
    struct relay_fetches *fetches = relay->fetches;
    struct relay_want *want = want_open(fetches, member, owner, chunk, header);
    STAILQ_INSERT_TAIL(&fetches->without_place, want, link);
    relay_fetch_serve(relay);
    // If the cache could not get memory for a single entry, the shard's memory is used up, perhaps
    // for a long time. Then the relay does not serve.
    if (want->state == CAIRN_RELAY_WANT_PLACE && fetches->cache.entry_count == 0) {
        STAILQ_REMOVE(&fetches->without_place, want, relay_want, link);
        want_refuse(fetches, want, CAIRN_ERR_NOT_FOUND);
    }
    shard_wake(job->shard);
    shard_job_settle(job);
}

/* ---- who is gone ---- */

/* Takes the want out of the list in which it waits. If nobody waits for the want's entry any more,
 * and the owner was not asked for it yet, the owner is not asked. */
static void want_detach(struct relay_fetches *fetches, struct relay_want *want)
{
    struct relay_entry *entry = want->entry;
    if (want->state == CAIRN_RELAY_WANT_PLACE) {
        STAILQ_REMOVE(&fetches->without_place, want, relay_want, link);
        return;
    }
    STAILQ_REMOVE(&entry->wants, want, relay_want, link);
    struct chunk_request *request = &entry->fetch.request;
    if (request->state != CAIRN_REQUEST_WAITING || !STAILQ_EMPTY(&entry->wants)) return;
    asker_drop(&entry->owner->neighbour.asker, request);
    relay_cache_forget(&fetches->cache, entry);
}

static bool want_waits(const struct relay_want *want)
{
    return want->state == CAIRN_RELAY_WANT_PLACE || want->state == CAIRN_RELAY_WANT_ENTRY;
}

void relay_fetch_forget(struct relay *relay, uint64_t member)
{
    struct relay_fetches *fetches = relay->fetches;
    if (fetches == NULL) return;
    for (uint32_t i = 0; i < fetches->want_count; i++) {
        struct relay_want *want = &fetches->wants[i];
        if (!want_waits(want) || want->header.member != member) continue;
        want_detach(fetches, want);
        want_end(fetches, want);
    }
    relay_fetch_serve(relay);
}

void relay_fetch_leave(struct relay *relay)
{
    struct relay_fetches *fetches = relay->fetches;
    if (fetches == NULL || relay->job->shard->closing) return;
    for (uint32_t i = 0; i < fetches->want_count; i++) {
        struct relay_want *want = &fetches->wants[i];
        if (!want_waits(want)) continue;
        want_detach(fetches, want);
        want_refuse(fetches, want, CAIRN_ERR_NOT_FOUND);
    }
}

/* ---- open and close ---- */

cairn_status relay_fetch_open(struct relay *relay, struct sentence *why)
{
    struct relay_fetches *fetches = calloc(1, sizeof *fetches);
    if (fetches == NULL) return fail_with(why, CAIRN_ERR_NO_MEMORY, "out of memory for a relay");
    const cairn_status status = relay_cache_open(relay, &fetches->cache, why);
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
        relay_fetch_close(relay);
        return fail_with(why, CAIRN_ERR_NO_MEMORY, "out of memory for a relay");
    }
    for (uint32_t i = 0; i < fetches->want_count; i++)
        STAILQ_INSERT_TAIL(&fetches->wants_free, &fetches->wants[i], link);
    return CAIRN_OK;
}

void relay_fetch_close(struct relay *relay)
{
    struct relay_fetches *fetches = relay->fetches;
    if (fetches == NULL) return;
    relay_cache_release(&fetches->cache);
    free(fetches->wants);
    free(fetches);
    relay->fetches = NULL;
}

/* ==== forward ==== */

/* Passes the sums of a relay on to an owner. This is done by the machine with which workers push,
 * too (proto/link/push.h).
 *
 * A round is over for the machine as soon as the round is void or resolved. Buffers that are still
 * on loan to the fabric at that time are given back later. Nobody waits for answers any more. */

#define MICROS_AHEAD 4096 /* by how many micro-batches workers may be ahead of an owner */

static uint32_t buffer_of(uint64_t cookie)
{
    return (uint32_t)(cookie - 1);
}

/* ---- the machine's actions ---- */

static void on_chunk_sent(void *arg, cairn_status status)
{
    struct buffer *buffer = arg;
    struct relay_owner *owner = (struct relay_owner *)((char *)buffer->owner -
                                                       offsetof(struct relay_owner, buffers));
    struct relay *relay = owner->relay;
    buffer_pool_return(&relay->sums.pool, (uint32_t)(buffer - relay->sums.pool.buffers));
    if (!relay->job->shard->closing) relay_sums_advance(relay);
    chunk_link_sent(&owner->neighbour.link, status);
}

static cairn_status send_chunk(struct relay_owner *owner, const struct push_action *action,
                               struct chunk_header *header)
{
    struct relay *relay = owner->relay;
    const uint32_t number = buffer_of(action->cookie);
    const struct chunk_place place = chunk_table_place(&owner->table, action->chunk);
    header->dtype = CAIRN_F32;
    header->tensor = place.tensor;
    header->first_leaf = place.first_leaf;
    header->leaf_count = (uint32_t)place.leaf_count;
    header->table_hash = CAIRN_TABLE_HASH_WHOLE;
    buffer_pool_loan(&relay->sums.pool, number);
    const cairn_status status = chunk_link_send(
        &owner->neighbour.link, header, relay_buffer_at(relay, number),
        (size_t)place.elem_count * sizeof(float), on_chunk_sent, &relay->sums.pool.buffers[number]);
    if (status != CAIRN_OK) buffer_pool_return(&relay->sums.pool, number);
    return status;
}

static cairn_status send_micro_end(struct relay_owner *owner, struct chunk_header *header)
{
    const struct relay_note *note = owner->forward.notes;
    while (note != NULL && note->micro != header->micro) note = note->next;
    // If there is no note, the micro-batch had something of every tensor.
    const size_t count = note != NULL ? note->count : 0;
    struct chunk_absent *absent = chunk_absent_new(&owner->neighbour.link, count);
    if (absent == NULL) return CAIRN_ERR_NO_MEMORY;
    if (count > 0) memcpy(absent->tensors, note->tensors, count * sizeof *note->tensors);
    return chunk_absent_send(absent, header, count);
}

/* Sends a message as the machine's action says. If the send fails, for whatever reason, the
 * connection is ended, and the message is sent again on the next connection. */
static void send_forward(struct relay_owner *owner, const struct push_action *action)
{
    struct chunk_header header = pusher_header(&owner->forward.pusher, action);
    const cairn_status status = action->kind == CAIRN_PUSH_SEND_CHUNK
                                    ? send_chunk(owner, action, &header)
                                : action->kind == CAIRN_PUSH_SEND_MICRO_END
                                    ? send_micro_end(owner, &header)
                                    : chunk_link_send(&owner->neighbour.link, &header, NULL, 0,
                                                      NULL, NULL);
    if (status == CAIRN_OK) return;
    neighbour_unlink(&owner->neighbour);
    shard_wake(owner->relay->job->shard); // a tick reports the loss and connects again
}

/* Gives the relay up after a refusal, which is a fault of the owner or of this shard. If the
 * refusal only says that the round is void, nothing is done, because the coordinator knows this. */
static void refused_forward(struct relay_owner *owner, cairn_status status)
{
    if (status == CAIRN_ERR_STALE || status == CAIRN_ERR_FENCED) return;
    relay_give_up(owner->relay, "shard %s refuses what is relayed in round %" PRIu64 ": %s",
                  owner->neighbour.name, owner->forward.pusher.round, status_text((int)status));
}

/* Carries out the actions of the push machine. Called after each call of the machine. */
static void act(struct relay_owner *owner)
{
    struct push_actions *actions = &owner->forward.pusher.actions;
    for (size_t i = 0; i < actions->count; i++) {
        const struct push_action *action = &actions->list[i];
        switch (action->kind) {
        case CAIRN_PUSH_SEND_CHUNK:
        case CAIRN_PUSH_SEND_MICRO_END:
        case CAIRN_PUSH_SEND_COMMIT: send_forward(owner, action); break;
        case CAIRN_PUSH_RELEASED:
            buffer_pool_end(&owner->relay->sums.pool, buffer_of(action->cookie));
            break;
        case CAIRN_PUSH_VOID: refused_forward(owner, action->status); break;
        }
    }
    actions->count = 0;
}

/* ---- a round ---- */

cairn_status relay_forward_open(struct relay_owner *owner)
{
    const uint32_t chunks = owner->table.trained_count;
    if (chunks > UINT32_MAX / 8) return CAIRN_ERR_NO_MEMORY;
    owner->forward.sent = calloc((size_t)chunks + 1, sizeof *owner->forward.sent);
    if (owner->forward.sent == NULL) return CAIRN_ERR_NO_MEMORY;
    return pusher_open(
        &owner->forward.pusher,
        &(struct push_config) { .shard_count = 1, .queue_max = 2 * chunks + MICROS_AHEAD });
}

static void give_grant(struct relay_owner *owner)
{
    struct pusher *pusher = &owner->forward.pusher;
    const struct chunk_header *grant = &owner->forward.grant;
    if (!pusher_takes(pusher, grant)) return;
    push_on_grant(pusher->push, 0, grant->request,
                  grant_window(grant, chunk_link_shares(&owner->neighbour.link)), &pusher->actions);
    act(owner);
    // A HELLO may have overtaken the GRANT.
    push_on_hello(pusher->push, 0, owner->neighbour.link.way, &pusher->actions);
    act(owner);
}

void relay_forward_begin(struct relay_owner *owner, uint64_t epoch, uint64_t round)
{
    pusher_begin(&owner->forward.pusher, epoch, round);
    give_grant(owner); // the grant may have arrived before the round was opened
}

static void free_notes(struct relay_forward *forward)
{
    while (forward->notes != NULL) {
        struct relay_note *note = forward->notes;
        forward->notes = note->next;
        free(note);
    }
}

void relay_forward_end(struct relay_owner *owner)
{
    owner->forward.pusher.push = NULL;
    buffer_pool_end_sending(&owner->relay->sums.pool, &owner->buffers);
    free_notes(&owner->forward);
    memset(owner->forward.sent, 0, owner->table.trained_count * sizeof *owner->forward.sent);
}

void relay_forward_close(struct relay_owner *owner)
{
    free_notes(&owner->forward);
    free(owner->forward.sent);
    pusher_close(&owner->forward.pusher);
}

/* ---- what the core says ---- */

/* Gives the relay up if the machine's queue is full or there is no memory, because then the round
 * cannot end here. */
static void judge_queued(struct relay_owner *owner, cairn_status status)
{
    if (status == CAIRN_ERR_BUSY)
        relay_give_up(owner->relay, "its workers are more than %d micro-batches ahead of shard %s",
                      MICROS_AHEAD, owner->neighbour.name);
    else if (status != CAIRN_OK && status != CAIRN_ERR_EPOCH_CHANGED)
        relay_give_up(owner->relay, "data for shard %s cannot be passed on: %s",
                      owner->neighbour.name, status_text((int)status));
    if (status != CAIRN_OK) owner->collector.spoiled_round = owner->forward.pusher.round;
    shard_wake(owner->relay->job->shard);
}

static bool is_sent(const struct relay_owner *owner)
{
    return owner->forward.pusher.push != NULL &&
           owner->collector.spoiled_round != owner->forward.pusher.round;
}

void relay_forward_chunk(struct relay_owner *owner, uint32_t chunk, uint32_t micro)
{
    struct pusher *pusher = &owner->forward.pusher;
    struct buffer_pool *pool = &owner->relay->sums.pool;
    const uint32_t buffer = buffer_pool_final(pool, &owner->buffers, chunk);
    owner->forward.sent[chunk] = true;
    cairn_status status = CAIRN_ERR_EPOCH_CHANGED;
    if (is_sent(owner)) {
        const uint64_t elems = chunk_table_place(&owner->table, chunk).elem_count;
        const struct push_chunk next = {
            .chunk = chunk,
            .is_small = elems * sizeof(float) <= CAIRN_CHUNK_SMALL,
            .cookie = ((uint64_t)buffer + 1),
        };
        status = push_chunk(pusher->push, 0, micro, next, &pusher->actions);
        act(owner);
    }
    if (status != CAIRN_OK) buffer_pool_end(pool, buffer);
    judge_queued(owner, status);
}

/* Makes a note of the owner's tensors of which nothing was forwarded in this micro-batch. Returns
 * false if there is no memory. */
static bool note_absent(struct relay_owner *owner, uint32_t micro)
{
    const struct shard_map *map = &owner->table.map;
    const struct job_spec_data *spec = &owner->relay->job->spec;
    struct relay_note *note = malloc(sizeof *note +
                                     (map->extent_count + 1) * sizeof *note->tensors);
    if (note == NULL) return false;
    *note = (struct relay_note) { .next = owner->forward.notes, .micro = micro };
    for (size_t i = 0; i < map->extent_count; i++) {
        const struct local_extent *extent = &map->extents[i];
        if (spec->tensors[extent->tensor].kind != CAIRN_TRAINED || extent->chunk_count == 0)
            continue;
        if (owner->forward.sent[owner->table.first[i]])
            continue; // a tensor is pushed completely or not at all
        if (note->count == 0 || note->tensors[note->count - 1] != extent->tensor)
            note->tensors[note->count++] = extent->tensor;
    }
    if (note->count == 0)
        free(note);
    else
        owner->forward.notes = note;
    return true;
}

void relay_forward_micro_end(struct relay_owner *owner, uint32_t micro)
{
    struct pusher *pusher = &owner->forward.pusher;
    cairn_status status = CAIRN_ERR_EPOCH_CHANGED;
    if (is_sent(owner))
        status = note_absent(owner, micro) ? push_micro_end(pusher->push, micro, &pusher->actions)
                                           : CAIRN_ERR_NO_MEMORY;
    act(owner);
    memset(owner->forward.sent, 0, owner->table.trained_count * sizeof *owner->forward.sent);
    judge_queued(owner, status);
}

void relay_forward_commit(struct relay_owner *owner, uint64_t weight)
{
    struct pusher *pusher = &owner->forward.pusher;
    cairn_status status = CAIRN_ERR_EPOCH_CHANGED;
    if (is_sent(owner)) status = push_commit(pusher->push, weight, &pusher->actions);
    act(owner);
    judge_queued(owner, status);
}

/* ---- what the owner says ---- */

static void on_answered(struct neighbour *neighbour, const struct chunk_header *header)
{
    struct relay_owner *owner = (struct relay_owner *)neighbour;
    struct pusher *pusher = &owner->forward.pusher;
    if (header->kind == CAIRN_CHUNK_HELLO) {
        push_on_hello(pusher->push, 0, header->request, &pusher->actions);
        act(owner);
    } else if (header->kind == CAIRN_CHUNK_GRANT) {
        if (!grant_is_newer(&owner->forward.grant, header)) return;
        owner->forward.grant = *header;
        give_grant(owner);
    } else {
        if (pusher_takes(pusher, header)) {
            pusher_on_answer(pusher, 0, header);
            act(owner);
        }
        relay_sums_advance(owner->relay);
    }
}

/* ---- the connection ---- */

static bool owner_waits(const struct neighbour *neighbour)
{
    return push_waits(((const struct relay_owner *)neighbour)->forward.pusher.push, 0);
}

static void owner_lost(struct neighbour *neighbour)
{
    struct relay_owner *owner = (struct relay_owner *)neighbour;
    struct pusher *pusher = &owner->forward.pusher;
    owner->forward.grant = (struct chunk_header) { 0 };
    push_on_lost(pusher->push, 0, &pusher->actions);
    act(owner);
}

static void owner_down(struct neighbour *neighbour, cairn_status why)
{
    const struct shard_job *job = neighbour->all->job;
    log_info("job %s: the relay lost shard %s: %s", job->spec.name, neighbour->name,
             status_text((int)why));
    shard_wake(job->shard);
}

static void owner_starved(struct neighbour *neighbour)
{
    log_warn("job %s: the relay has no memory to send to shard %s (%zu bytes at a time): raise the "
             "limits of this process (ulimit -v, memory.max, vm.max_map_count)",
             neighbour->all->job->spec.name, neighbour->name, neighbour->link.starved.bytes);
}

static void owners_free(struct neighbours *all)
{
    relay_free((struct relay *)((char *)all - offsetof(struct relay, neighbours)));
}

const struct neighbour_kind relay_owner_kind = {
    .hello_value = CAIRN_CHUNK_OF_RELAY,
    .purpose = "relay to",
    .describe = describe_entry,
    .place = place_of_entry,
    .came = entry_came,
    .refused = entry_refused,
    .down = owner_down,
    .starved = owner_starved,
    .free = owners_free,
    .waits = owner_waits,
    .lost = owner_lost,
    .answered = on_answered,
};
