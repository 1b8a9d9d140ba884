#include "server/shard/relay/cache.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#define PLACE_ALIGN 4096u

/* ---- the table ---- */

static struct cairn_relay_entry **bucket_of(const struct cairn_relay_cache *cache,
                                            const struct cairn_relay_owner *owner, uint64_t chunk,
                                            struct cairn_version version)
{
    const uint64_t odd = 0x9e3779b97f4a7c15ull;
    uint64_t hash = (chunk + 1) * odd ^ (uint64_t)owner->index;
    hash = (hash ^ hash >> 29) * odd + version.step;
    hash = (hash ^ hash >> 32) * odd + version.generation;
    return &cache->buckets[(hash ^ hash >> 31) & (cache->bucket_count - 1)];
}

struct cairn_relay_entry *cairn_relay_cache_find(const struct cairn_relay_cache *cache,
                                                 const struct cairn_relay_owner *owner,
                                                 uint64_t chunk, struct cairn_version version)
{
    struct cairn_relay_entry *entry = *bucket_of(cache, owner, chunk, version);
    while (entry != NULL && (entry->owner != owner || entry->chunk != chunk ||
                             cairn_version_compare(entry->version, version) != 0))
        entry = entry->next;
    return entry;
}

static void unlink_entry(const struct cairn_relay_cache *cache, struct cairn_relay_entry *entry)
{
    struct cairn_relay_entry **link = bucket_of(cache, entry->owner, entry->chunk, entry->version);
    while (*link != entry) link = &(*link)->next;
    *link = entry->next;
}

/* ---- at rest ---- */

static uint64_t *had_by(const struct cairn_relay_cache *cache,
                        const struct cairn_relay_entry *entry)
{
    return cache->had_by + (size_t)(entry - cache->entries) * cache->member_words;
}

static bool is_at_rest(const struct cairn_relay_entry *entry)
{
    return entry->state == CAIRN_RELAY_ENTRY_HERE && entry->sends == 0;
}

static void rest(struct cairn_relay_cache *cache, struct cairn_relay_entry *entry)
{
    assert(is_at_rest(entry));
    if (entry->is_had)
        TAILQ_INSERT_TAIL(&cache->had, entry, link);
    else if (cairn_version_compare(entry->version, cache->newest) < 0)
        TAILQ_INSERT_HEAD(&cache->kept, entry, link);
    else
        TAILQ_INSERT_TAIL(&cache->kept, entry, link);
}

static void rouse(struct cairn_relay_cache *cache, struct cairn_relay_entry *entry)
{
    assert(is_at_rest(entry));
    TAILQ_REMOVE(entry->is_had ? &cache->had : &cache->kept, entry, link);
}

void cairn_relay_cache_arrived(struct cairn_relay_cache *cache, struct cairn_relay_entry *entry)
{
    entry->state = CAIRN_RELAY_ENTRY_HERE;
    if (cairn_version_compare(cache->newest, entry->version) < 0) cache->newest = entry->version;
    rest(cache, entry);
}

void cairn_relay_cache_lend(struct cairn_relay_cache *cache, struct cairn_relay_entry *entry)
{
    assert(entry->state == CAIRN_RELAY_ENTRY_HERE);
    if (entry->sends == 0) rouse(cache, entry);
    entry->sends++;
}

static bool had_by_all(const uint64_t *bits, uint32_t member_count)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i * 64 < member_count; i++)
        count += (uint32_t)__builtin_popcountll(bits[i]);
    return count == member_count;
}

void cairn_relay_cache_return(struct cairn_relay_cache *cache, struct cairn_relay_entry *entry,
                              uint32_t member, uint32_t member_count)
{
    uint64_t *bits = had_by(cache, entry);
    assert(entry->sends > 0);
    if (member < member_count) {
        bits[member / 64] |= (uint64_t)1 << member % 64;
        entry->is_had = had_by_all(bits, member_count);
    }
    if (--entry->sends == 0) rest(cache, entry);
}

uint8_t *cairn_relay_cache_bytes(const struct cairn_relay_cache *cache,
                                 const struct cairn_relay_entry *entry)
{
    return cache->memory.base + (size_t)(entry - cache->entries) * cache->place_bytes;
}

/* ---- places ---- */

static cairn_status take_budget(struct cairn_relay_cache *cache, uint64_t bytes,
                                struct cairn_sentence *why)
{
    struct cairn_shard_job *job = cache->job;
    const cairn_status status = cairn_shard_job_take(job, &job->memory.staging, bytes,
                                                     "what is fetched for this host", why);
    if (status == CAIRN_OK) cache->budget_bytes += bytes;
    return status;
}

static void give_budget(struct cairn_relay_cache *cache, uint64_t bytes)
{
    cairn_shard_job_give(cache->job, &cache->job->memory.staging, bytes);
    cache->budget_bytes -= bytes;
}

/* One more of the memory, if there is budget for it, and the host has the pages: workers read them. */
static struct cairn_relay_entry *add_entry(struct cairn_relay_cache *cache)
{
    if (cache->entry_count == cache->entry_max) return NULL;
    if (take_budget(cache, cache->place_bytes, NULL) != CAIRN_OK) return NULL;
    const uint64_t at = (uint64_t)cache->entry_count * cache->place_bytes;
    if (cairn_arena_take(&cache->memory, at, cache->place_bytes) != CAIRN_OK) {
        give_budget(cache, cache->place_bytes);
        return NULL;
    }
    return &cache->entries[cache->entry_count++];
}

static struct cairn_relay_entry *evict(struct cairn_relay_cache *cache)
{
    struct cairn_relay_entry *entry = TAILQ_FIRST(&cache->had);
    if (entry == NULL) entry = TAILQ_FIRST(&cache->kept);
    if (entry == NULL) return NULL;
    rouse(cache, entry);
    unlink_entry(cache, entry);
    return entry;
}

static struct cairn_relay_entry *take_place(struct cairn_relay_cache *cache)
{
    struct cairn_relay_entry *entry = TAILQ_FIRST(&cache->free);
    if (entry != NULL) {
        TAILQ_REMOVE(&cache->free, entry, link);
        return entry;
    }
    entry = add_entry(cache);
    return entry != NULL ? entry : evict(cache);
}

struct cairn_relay_entry *cairn_relay_cache_take(struct cairn_relay_cache *cache,
                                                 struct cairn_relay_owner *owner, uint64_t chunk,
                                                 struct cairn_version version)
{
    struct cairn_relay_entry *entry = take_place(cache);
    if (entry == NULL) return NULL;
    const struct cairn_chunk_place place = cairn_shard_map_chunk(&owner->table.map, chunk);
    const cairn_dtype dtype = cache->job->spec.tensors[place.tensor].wire;
    struct cairn_relay_entry **bucket = bucket_of(cache, owner, chunk, version);
    *entry = (struct cairn_relay_entry) {
        .next = *bucket,
        .state = CAIRN_RELAY_ENTRY_COMING,
        .request = { .index = (uint32_t)(entry - cache->entries),
                     .serial = entry->request.serial + 1 },
        .owner = owner,
        .chunk = chunk,
        .version = version,
        .dtype = dtype,
        .byte_count = (size_t)place.elem_count * cairn_dtype_bytes((int)dtype),
    };
    assert(entry->byte_count <= cache->place_bytes);
    STAILQ_INIT(&entry->wants);
    *bucket = entry;
    memset(had_by(cache, entry), 0, cache->member_words * sizeof(uint64_t));
    return entry;
}

void cairn_relay_cache_forget(struct cairn_relay_cache *cache, struct cairn_relay_entry *entry)
{
    assert(entry->sends == 0 && STAILQ_EMPTY(&entry->wants));
    assert(entry->state == CAIRN_RELAY_ENTRY_COMING && entry->request.state == CAIRN_REQUEST_IDLE);
    unlink_entry(cache, entry);
    entry->state = CAIRN_RELAY_ENTRY_FREE;
    TAILQ_INSERT_HEAD(&cache->free, entry, link);
}

/* ---- open and close ---- */

/* The number of chunks that others own, and the bytes of the largest. In an extent no chunk is
 * larger than the first. */
static uint64_t measure(const struct cairn_relay *relay, size_t *largest_out)
{
    const struct cairn_shard_job *job = relay->job;
    uint64_t count = 0;
    *largest_out = 0;
    for (uint32_t i = 0; i < relay->owner_count; i++) {
        const struct cairn_shard_map *map = &relay->owners[i].table.map;
        if (relay->owners[i].index == job->view->table.map.shard) continue;
        count += map->chunk_count;
        for (size_t e = 0; e < map->extent_count; e++) {
            if (map->extents[e].chunk_count == 0) continue;
            const struct cairn_chunk_place place = cairn_shard_map_chunk(
                map, map->extents[e].first_chunk);
            const cairn_dtype dtype = job->spec.tensors[place.tensor].wire;
            const size_t bytes = (size_t)place.elem_count * cairn_dtype_bytes((int)dtype);
            if (bytes > *largest_out) *largest_out = bytes;
        }
    }
    return count;
}

/* The bytes of the tables, which are there whether or not anything is fetched. */
static uint64_t table_bytes(const struct cairn_relay_cache *cache)
{
    return cache->entry_max * (sizeof *cache->entries + cache->member_words * sizeof(uint64_t)) +
           cache->bucket_count * sizeof(struct cairn_relay_entry *);
}

static cairn_status open_tables(struct cairn_relay_cache *cache, struct cairn_sentence *why)
{
    cairn_status status = take_budget(cache, table_bytes(cache), why);
    if (status != CAIRN_OK) return status;
    cache->entries = calloc(cache->entry_max, sizeof *cache->entries);
    cache->buckets = calloc(cache->bucket_count, sizeof *cache->buckets);
    cache->had_by = calloc(cache->entry_max, cache->member_words * sizeof *cache->had_by);
    if (cache->entries == NULL || cache->buckets == NULL || cache->had_by == NULL)
        return cairn_fail(why, CAIRN_ERR_NO_MEMORY, "no memory for what is fetched for this host");
    return cairn_arena_open_shared(cairn_home_host(), "cairn-relay-cache",
                                   (uint64_t)cache->entry_max * cache->place_bytes, &cache->memory,
                                   why);
}

cairn_status cairn_relay_cache_open(const struct cairn_relay *relay,
                                    struct cairn_relay_cache *cache, struct cairn_sentence *why)
{
    size_t largest;
    uint64_t count = measure(relay, &largest);
    *cache = (struct cairn_relay_cache) {
        .job = relay->job,
        .memory = CAIRN_ARENA_NONE,
        .place_bytes = (largest + PLACE_ALIGN - 1) / PLACE_ALIGN * PLACE_ALIGN,
        .member_words = (relay->member_count + 63) / 64,
    };
    TAILQ_INIT(&cache->free);
    TAILQ_INIT(&cache->had);
    TAILQ_INIT(&cache->kept);
    const uint64_t most = largest == 0 ? 0
                                       : relay->job->shard->relay_cache_bytes / cache->place_bytes;
    if (count > most) count = most;
    if (count > UINT32_MAX / 2) count = UINT32_MAX / 2;
    if (count == 0) return CAIRN_OK;
    cache->entry_max = (uint32_t)count;
    cache->bucket_count = 1;
    while (cache->bucket_count < cache->entry_max) cache->bucket_count *= 2;
    const cairn_status status = open_tables(cache, why);
    if (status != CAIRN_OK) {
        cairn_relay_cache_release(cache);
        return status;
    }
    if (!cairn_arena_share(&cache->memory, cache->job->shard->fabric, NULL))
        cairn_log_warn("job %s: what is fetched for this host cannot be shared with it: it is sent",
                       cache->job->spec.name);
    return CAIRN_OK;
}

void cairn_relay_cache_release(struct cairn_relay_cache *cache)
{
    cairn_release(cache->job->shard, &cache->memory);
    free(cache->entries);
    free(cache->buckets);
    free(cache->had_by);
    cache->entries = NULL;
    cache->buckets = NULL;
    cache->had_by = NULL;
    cache->entry_max = cache->entry_count = 0;
    give_budget(cache, cache->budget_bytes);
}
