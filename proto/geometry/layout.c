#include "proto/geometry/layout.h"

#include <assert.h>
#include <sodium.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "proto/base/mutant.h"

#define FORMAT       1
#define HEADER_BYTES ((size_t)32)
#define COUNT_BYTES  ((size_t)4)
#define EXTENT_BYTES ((size_t)12)

static const char hash_domain[] = "cairn layout 1";
static const uint8_t magic[4] = { 'C', 'L', 'A', 'Y' };

/* --- making ------------------------------------------------------------------------------------ */

static cairn_status measure_tensors(struct layout *layout, const struct layout_tensor *tensors)
{
    for (uint32_t t = 0; t < layout->tensor_count; t++) {
        const size_t length = strnlen(tensors[t].name, CAIRN_NAME_MAX + 1);
        if (length == 0 || length > CAIRN_NAME_MAX) return CAIRN_ERR_INVALID;
        CAIRN_TRY(shape_check(&tensors[t].shape));
        layout->geometry[t] = geometry_of(&tensors[t].shape);
    }
    return CAIRN_OK;
}

/* Checks that the extents from number `at` on cover tensor t exactly. Sets *end_out to the number after the
 * tensor's last extent. */
static cairn_status judge_tensor(const struct layout *layout, uint32_t t, size_t at,
                                 size_t *end_out)
{
    const uint64_t quantum_count = layout->geometry[t].quantum_count;
    uint64_t next = 0;
    for (; at < layout->extent_count && layout->extents[at].tensor == t; at++) {
        const struct extent *e = &layout->extents[at];
        if (e->shard >= layout->shard_count) return CAIRN_ERR_INVALID;
        if (e->first_quantum != next || e->quantum_count == 0) return CAIRN_ERR_INVALID;
        if (e->quantum_count > quantum_count - next) return CAIRN_ERR_INVALID;
        next += e->quantum_count;
    }
    if (next != quantum_count) return CAIRN_ERR_INVALID;
    *end_out = at;
    return CAIRN_OK;
}

static cairn_status index_tensors(struct layout *layout)
{
    size_t at = 0;
    for (uint32_t t = 0; t < layout->tensor_count; t++) {
        layout->tensor_extents[t] = at;
        CAIRN_TRY(judge_tensor(layout, t, at, &at));
    }
    layout->tensor_extents[layout->tensor_count] = at;
    return at == layout->extent_count ? CAIRN_OK : CAIRN_ERR_INVALID;
}

/* A counting sort. shard_extents first has the count of each shard's extents, then the end of its part of
 * by_shard, and at last the beginning. */
static void index_shards(struct layout *layout)
{
    for (size_t e = 0; e < layout->extent_count; e++)
        layout->shard_extents[layout->extents[e].shard]++;
    size_t end = 0;
    for (uint32_t s = 0; s < layout->shard_count; s++)
        layout->shard_extents[s] = end += layout->shard_extents[s];
    layout->shard_extents[layout->shard_count] = end;
    for (size_t e = layout->extent_count; e-- > 0;)
        layout->by_shard[--layout->shard_extents[layout->extents[e].shard]] = (uint32_t)e;
}

static int compare_names(const void *a, const void *b, void *tensors)
{
    const struct layout_tensor *list = tensors;
    return strcmp(list[*(const uint32_t *)a].name, list[*(const uint32_t *)b].name);
}

static void hash_tensor(crypto_generichash_state *state, const struct layout *layout, uint32_t t,
                        const struct layout_tensor *tensor)
{
    uint8_t head[16 + 8 * CAIRN_RANK_MAX] = { 0 };
    const size_t name_bytes = strlen(tensor->name);
    le_put(head, (uint32_t)name_bytes, 4);
    le_put(head + 4, tensor->shape.rank, 4);
    le_put(head + 8, layout->tensor_extents[t + 1] - layout->tensor_extents[t], 8);
    for (uint32_t d = 0; d < tensor->shape.rank; d++)
        le_put(head + 16 + 8 * d, tensor->shape.dim[d], 8);
    crypto_generichash_update(state, head, sizeof head);
    crypto_generichash_update(state, (const uint8_t *)tensor->name, name_bytes);

    for (size_t e = layout->tensor_extents[t]; e < layout->tensor_extents[t + 1]; e++) {
        uint8_t owner[EXTENT_BYTES];
        le_put(owner, layout->extents[e].quantum_count, 8);
        le_put(owner + 8, layout->extents[e].shard, 4);
        crypto_generichash_update(state, owner, sizeof owner);
    }
}

/* Hashes the tensors in the order of their names, so that the order of the job's list does not matter. */
static cairn_status hash_table(struct layout *layout, const struct layout_tensor *tensors)
{
    const uint32_t count = layout->tensor_count;
    uint32_t *order = calloc((size_t)count + 1, sizeof *order);
    if (order == NULL) return CAIRN_ERR_NO_MEMORY;
    for (uint32_t t = 0; t < count; t++) order[t] = t;
    qsort_r(order, count, sizeof *order, compare_names, (void *)(uintptr_t)tensors);

    cairn_status status = CAIRN_OK;
    uint8_t head[8];
    le_put(head, layout->shard_count, 4);
    le_put(head + 4, count, 4);
    crypto_generichash_state state;
    crypto_generichash_init(&state, NULL, 0, sizeof layout->hash);
    crypto_generichash_update(&state, (const uint8_t *)hash_domain, sizeof hash_domain);
    crypto_generichash_update(&state, head, sizeof head);
    for (uint32_t i = 0; i < count && status == CAIRN_OK; i++) {
        const uint32_t t = order[i];
        if (i > 0 && strcmp(tensors[order[i - 1]].name, tensors[t].name) == 0)
            status = CAIRN_ERR_INVALID;
        hash_tensor(&state, layout, t, &tensors[t]);
    }
    crypto_generichash_final(&state, layout->hash, sizeof layout->hash);
    free(order);
    return status;
}

/* Every array has one item more than it needs, so that none is empty. */
static cairn_status allocate_indexes(struct layout *layout)
{
    layout->tensor_extents = calloc((size_t)layout->tensor_count + 1, sizeof(size_t));
    layout->shard_extents = calloc((size_t)layout->shard_count + 1, sizeof(size_t));
    layout->by_shard = calloc(layout->extent_count + 1, sizeof(uint32_t));
    layout->geometry = calloc((size_t)layout->tensor_count + 1, sizeof(struct geometry));
    const int got_all = layout->tensor_extents != NULL && layout->shard_extents != NULL &&
                        layout->by_shard != NULL && layout->geometry != NULL;
    return got_all ? CAIRN_OK : CAIRN_ERR_NO_MEMORY;
}

cairn_status layout_make(const struct layout_tensor *tensors, uint32_t tensor_count,
                         uint32_t shard_count, uint64_t version, struct extent *extents,
                         size_t extent_count, struct layout **layout_out)
{
    if (shard_count == 0 || shard_count > CAIRN_SHARDS_MAX) return CAIRN_ERR_INVALID;
    if (tensor_count > CAIRN_LAYOUT_TENSORS_MAX || extent_count > UINT32_MAX)
        return CAIRN_ERR_INVALID;
    if (version == 0) return CAIRN_ERR_INVALID;

    struct layout *layout = calloc(1, sizeof *layout);
    if (layout == NULL) return CAIRN_ERR_NO_MEMORY;
    layout->version = version;
    layout->shard_count = shard_count;
    layout->tensor_count = tensor_count;
    layout->extents = extents;
    layout->extent_count = extent_count;
    cairn_status status = allocate_indexes(layout);
    if (status == CAIRN_OK) status = measure_tensors(layout, tensors);
    if (status == CAIRN_OK) status = index_tensors(layout);
    if (status == CAIRN_OK) status = hash_table(layout, tensors);
    if (status != CAIRN_OK) {
        layout->extents = NULL; // the extents stay the caller's
        layout_close(layout);
        return status;
    }
    index_shards(layout);
    *layout_out = layout;
    return CAIRN_OK;
}

void layout_close(struct layout *layout)
{
    if (layout == NULL) return;
    free(layout->extents);
    free(layout->tensor_extents);
    free(layout->by_shard);
    free(layout->shard_extents);
    free(layout->geometry);
    free(layout);
}

/* --- bytes ------------------------------------------------------------------------------------- */

size_t layout_encoded_bytes(const struct layout *layout)
{
    return HEADER_BYTES + layout->tensor_count * COUNT_BYTES + layout->extent_count * EXTENT_BYTES +
           CAIRN_LAYOUT_HASH_BYTES;
}

void layout_encode(const struct layout *layout, uint8_t *out)
{
    memcpy(out, magic, sizeof magic);
    le_put(out + 4, FORMAT, 4);
    le_put(out + 8, layout->version, 8);
    le_put(out + 16, layout->shard_count, 4);
    le_put(out + 20, layout->tensor_count, 4);
    le_put(out + 24, layout->extent_count, 8);
    out += HEADER_BYTES;
    for (uint32_t t = 0; t < layout->tensor_count; t++, out += COUNT_BYTES)
        le_put(out, (uint32_t)(layout->tensor_extents[t + 1] - layout->tensor_extents[t]), 4);
    for (size_t e = 0; e < layout->extent_count; e++, out += EXTENT_BYTES) {
        le_put(out, layout->extents[e].quantum_count, 8);
        le_put(out + 8, layout->extents[e].shard, 4);
    }
    memcpy(out, layout->hash, sizeof layout->hash);
}

/* True if there are exactly as many bytes as the counts in the header need. This is checked before anything
 * is allocated. */
static int counts_fit(const uint8_t *data, size_t bytes, uint32_t tensor_count)
{
    const size_t fixed = HEADER_BYTES + tensor_count * COUNT_BYTES + CAIRN_LAYOUT_HASH_BYTES;
    if (bytes < fixed) return 0;
    if (memcmp(data, magic, sizeof magic) != 0 || le_get(data + 4, 4) != FORMAT) return 0;
    if (le_get(data + 20, 4) != tensor_count) return 0;
    if ((bytes - fixed) % EXTENT_BYTES != 0) return 0;
    return le_get(data + 24, 8) == (bytes - fixed) / EXTENT_BYTES;
}

/* Reads the extents, and sets the tensor and the first quantum of each. The counts of extents are
 * untrusted. */
static cairn_status read_extents(const uint8_t *data, uint32_t tensor_count, struct extent *extents,
                                 size_t extent_count)
{
    const uint8_t *counts = data + HEADER_BYTES;
    const uint8_t *in = counts + tensor_count * COUNT_BYTES;
    size_t at = 0;
    for (uint32_t t = 0; t < tensor_count; t++, counts += COUNT_BYTES) {
        const uint32_t count = (uint32_t)le_get(counts, 4);
        if (count > extent_count - at) return CAIRN_ERR_MALFORMED;
        uint64_t next = 0;
        for (const size_t end = at + count; at < end; at++, in += EXTENT_BYTES) {
            extents[at] = (struct extent) { t, (uint32_t)le_get(in + 8, 4), next, le_get(in, 8) };
            if (extents[at].quantum_count > UINT64_MAX - next) return CAIRN_ERR_MALFORMED;
            next += extents[at].quantum_count;
        }
    }
    return at == extent_count ? CAIRN_OK : CAIRN_ERR_MALFORMED;
}

/* True if the caller's tensors are valid. Then a table that is refused is the sender's fault. */
static int tensors_are_sound(const struct layout_tensor *tensors, uint32_t tensor_count)
{
    for (uint32_t t = 0; t < tensor_count; t++)
        if (shape_check(&tensors[t].shape) != CAIRN_OK) return 0;
    return 1;
}

cairn_status layout_decode(const uint8_t *data, size_t bytes, const struct layout_tensor *tensors,
                           uint32_t tensor_count, struct layout **layout_out)
{
    if (tensor_count > CAIRN_LAYOUT_TENSORS_MAX) return CAIRN_ERR_INVALID;
    if (!counts_fit(data, bytes, tensor_count)) return CAIRN_ERR_MALFORMED;
    if (!tensors_are_sound(tensors, tensor_count)) return CAIRN_ERR_INVALID;

    const size_t extent_count = (size_t)le_get(data + 24, 8);
    struct extent *extents = calloc(extent_count + 1, sizeof *extents);
    if (extents == NULL) return CAIRN_ERR_NO_MEMORY;
    struct layout *layout = NULL;
    cairn_status status = read_extents(data, tensor_count, extents, extent_count);
    if (status == CAIRN_OK)
        status = layout_make(tensors, tensor_count, (uint32_t)le_get(data + 16, 4),
                             le_get(data + 8, 8), extents, extent_count, &layout);
    if (status != CAIRN_OK) {
        free(extents);
        return status == CAIRN_ERR_INVALID ? CAIRN_ERR_MALFORMED : status;
    }
    const uint8_t *hash = data + bytes - CAIRN_LAYOUT_HASH_BYTES;
    if (memcmp(hash, layout->hash, sizeof layout->hash) != 0) {
        layout_close(layout);
        return CAIRN_ERR_MALFORMED;
    }
    *layout_out = layout;
    return CAIRN_OK;
}

/* --- queries ----------------------------------------------------------------------------------- */

const struct extent *layout_tensor_extents(const struct layout *layout, uint32_t tensor,
                                           size_t *count_out)
{
    assert(tensor < layout->tensor_count);
    const size_t first = layout->tensor_extents[tensor];
    *count_out = layout->tensor_extents[tensor + 1] - first;
    return layout->extents + first;
}

const struct extent *layout_find(const struct layout *layout, uint32_t tensor, uint64_t leaf)
{
    if (tensor >= layout->tensor_count) return NULL;
    const struct geometry *g = &layout->geometry[tensor];
    if (leaf >= g->leaf_count) return NULL;
    const uint64_t quantum = leaf / g->leaves_per_quantum;
    size_t low = layout->tensor_extents[tensor], high = layout->tensor_extents[tensor + 1];
    while (high - low > 1) {
        const size_t middle = low + (high - low) / 2;
        if (layout->extents[middle].first_quantum <= quantum)
            low = middle;
        else
            high = middle;
    }
    return &layout->extents[low];
}

bool layout_owns(const struct layout *layout, uint32_t shard)
{
    return shard < layout->shard_count &&
           layout->shard_extents[shard + 1] > layout->shard_extents[shard];
}

size_t layout_pieces(const struct layout *layout)
{
    size_t pieces = 0;
    for (size_t e = 0; e < layout->extent_count; e++)
        pieces += e == 0 || layout->extents[e].tensor != layout->extents[e - 1].tensor ||
                  layout->extents[e].shard != layout->extents[e - 1].shard;
    return pieces;
}

bool layout_same(const struct layout *a, const struct layout *b)
{
    return a->shard_count == b->shard_count && memcmp(a->hash, b->hash, sizeof a->hash) == 0;
}

uint64_t layout_number(const struct layout *layout)
{
    return le_get(layout->hash, 8);
}

/* ==== shard map ==== */

/* The part of a job that one shard owns, and the chunks of this part: see layout.h. */

static struct local_extent localize(const struct shard_map *map, const struct extent *e)
{
    const struct geometry *g = &map->layout->geometry[e->tensor];
    const uint64_t end = e->first_quantum + e->quantum_count;
    struct local_extent local = {
        .tensor = e->tensor,
        .first_leaf = quantum_first_leaf(g, e->first_quantum),
        .first_elem = quantum_first_elem(g, e->first_quantum),
        .local_elem = map->elem_count,
        .first_chunk = map->chunk_count,
    };
    local.leaf_count = quantum_first_leaf(g, end) - local.first_leaf;
    local.elem_count = quantum_first_elem(g, end) - local.first_elem;
    local.chunk_count = (local.leaf_count - 1) / map->chunk_leaves + 1;
    return local;
}

cairn_status shard_map_init(struct shard_map *map, const struct layout *layout, uint32_t shard,
                            uint32_t chunk_leaves)
{
    if (shard >= layout->shard_count || chunk_leaves == 0) return CAIRN_ERR_INVALID;
    const size_t first = layout->shard_extents[shard];
    const size_t count = layout->shard_extents[shard + 1] - first;
    struct local_extent *extents = calloc(count + 1, sizeof *extents);
    if (extents == NULL) return CAIRN_ERR_NO_MEMORY;

    *map = (struct shard_map) {
        .shard = shard,
        .chunk_leaves = chunk_leaves,
        .extent_count = count,
        .extents = extents,
        .layout = layout,
    };
    for (size_t i = 0; i < count; i++) {
        extents[i] = localize(map, &layout->extents[layout->by_shard[first + i]]);
        map->elem_count += extents[i].elem_count;
        map->leaf_count += extents[i].leaf_count;
        map->chunk_count += extents[i].chunk_count;
    }
    map->local_end = map->elem_count;
    return CAIRN_OK;
}

void shard_map_release(struct shard_map *map)
{
    free(map->extents);
    *map = (struct shard_map) { 0 };
}

/* Returns how many extents of the map begin at the leaf or before it. */
static size_t extents_up_to(const struct shard_map *map, uint32_t tensor, uint64_t leaf)
{
    size_t low = 0, high = map->extent_count;
    while (low < high) {
        const size_t middle = low + (high - low) / 2;
        const struct local_extent *e = &map->extents[middle];
        if (e->tensor < tensor || (e->tensor == tensor && e->first_leaf <= leaf))
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

const struct local_extent *shard_map_find(const struct shard_map *map, uint32_t tensor,
                                          uint64_t leaf)
{
    const size_t count = extents_up_to(map, tensor, leaf);
    if (count == 0) return NULL;
    const struct local_extent *e = &map->extents[count - 1];
    return e->tensor == tensor && leaf - e->first_leaf < e->leaf_count ? e : NULL;
}

/* Searches only as far as necessary. Each extent has at least one chunk, so at most `chunk` extents come
 * before the chunk. `beyond` is the number of chunks that are not the first of their extent, so at least
 * chunk - beyond extents come before the chunk. With many small tensors, little is left to search. */
const struct local_extent *shard_map_extent(const struct shard_map *map, uint64_t chunk)
{
    assert(chunk < map->chunk_count);
    const uint64_t beyond = map->chunk_count - map->extent_count;
    size_t low = (size_t)(chunk > beyond ? chunk - beyond : 0);
    size_t high = chunk < map->extent_count ? (size_t)chunk + 1 : map->extent_count;
    while (high - low > 1) {
        const size_t middle = low + (high - low) / 2;
        if (map->extents[middle].first_chunk <= chunk)
            low = middle;
        else
            high = middle;
    }
    return &map->extents[low];
}

/* Returns the number of leaves of the chunk that begins `within` leaves after the beginning of the
 * extent. */
static uint64_t chunk_size(const struct shard_map *map, const struct local_extent *e,
                           uint64_t within)
{
    const uint64_t left = e->leaf_count - within;
    return left < map->chunk_leaves ? left : map->chunk_leaves;
}

struct chunk_place shard_map_chunk(const struct shard_map *map, uint64_t chunk)
{
    const struct local_extent *e = shard_map_extent(map, chunk);
    // the chunk is the whole extent, so the tensor's geometry need not be read
    if (e->chunk_count == 1)
        return (struct chunk_place) { .tensor = e->tensor,
                                      .first_leaf = e->first_leaf,
                                      .leaf_count = e->leaf_count,
                                      .first_elem = e->first_elem,
                                      .elem_count = e->elem_count,
                                      .local_elem = e->local_elem };
    const struct geometry *g = &map->layout->geometry[e->tensor];
    const uint64_t within = (chunk - e->first_chunk) * map->chunk_leaves;
    struct chunk_place place = {
        .tensor = e->tensor,
        .first_leaf = e->first_leaf + within,
        .leaf_count = chunk_size(map, e, within),
    };
    place.first_elem = leaf_start(g, place.first_leaf);
    place.elem_count = leaf_start(g, place.first_leaf + place.leaf_count) - place.first_elem;
    place.local_elem = e->local_elem + (place.first_elem - e->first_elem);
    return place;
}

cairn_status shard_map_chunk_number(const struct shard_map *map, uint32_t tensor,
                                    uint64_t first_leaf, uint64_t leaf_count, uint64_t *chunk_out)
{
    const struct local_extent *e = shard_map_find(map, tensor, first_leaf);
    if (e == NULL) return CAIRN_ERR_NOT_FOUND;
    const uint64_t within = first_leaf - e->first_leaf;
    if (within % map->chunk_leaves != 0) return CAIRN_ERR_INVALID;
    if (leaf_count != chunk_size(map, e, within)) return CAIRN_ERR_INVALID;
    *chunk_out = e->first_chunk + within / map->chunk_leaves;
    return CAIRN_OK;
}

/* ---- a map that follows another ---- */

/* A range of local elements. */
struct range {
    uint64_t first, end;
};

struct ranges {
    struct range *list; /* owned */
    size_t count;
};

static int compare_ranges(const void *a, const void *b)
{
    const struct range *x = a, *y = b;
    return (x->first > y->first) - (x->first < y->first);
}

static void add_ranges(struct ranges *ranges, const struct shard_map *map)
{
    for (size_t i = 0; map != NULL && i < map->extent_count; i++) {
        const struct local_extent *e = &map->extents[i];
        ranges->list[ranges->count++] = (struct range) { e->local_elem,
                                                         e->local_elem + e->elem_count };
    }
}

/* Finds the ranges of local elements that neither map uses. The last range has no end. */
static cairn_status find_gaps(const struct shard_map *before, const struct shard_map *beside,
                              struct ranges *gaps)
{
    const size_t most = before->extent_count + (beside != NULL ? beside->extent_count : 0);
    struct ranges taken = { .list = calloc(most + 1, sizeof *taken.list) };
    *gaps = (struct ranges) { .list = calloc(most + 1, sizeof *gaps->list) };
    if (taken.list == NULL || gaps->list == NULL) {
        free(taken.list);
        return CAIRN_ERR_NO_MEMORY;
    }
    add_ranges(&taken, before);
    add_ranges(&taken, beside);
    qsort(taken.list, taken.count, sizeof *taken.list, compare_ranges);
    uint64_t at = 0;
    for (size_t i = 0; i < taken.count; i++) {
        if (taken.list[i].first > at)
            gaps->list[gaps->count++] = (struct range) { at, taken.list[i].first };
        if (taken.list[i].end > at) at = taken.list[i].end;
    }
    gaps->list[gaps->count++] = (struct range) { at, UINT64_MAX };
    free(taken.list);
    return CAIRN_OK;
}

/* Finds the extent of `before` that contains the whole extent; NULL: the extent does not lie in `before`.
 * CAIRN_ERR_INVALID: only a part of the extent lies in `before`, or the extent lies in two extents of
 * `before`. */
static cairn_status find_before(const struct shard_map *before, const struct local_extent *extent,
                                const struct local_extent **out)
{
    const uint64_t end = extent->first_leaf + extent->leaf_count;
    const struct local_extent *first = shard_map_find(before, extent->tensor, extent->first_leaf);
    *out = first;
    if (first != NULL)
        return end <= first->first_leaf + first->leaf_count ? CAIRN_OK : CAIRN_ERR_INVALID;
    const bool begins_later = extents_up_to(before, extent->tensor, end - 1) >
                              extents_up_to(before, extent->tensor, extent->first_leaf);
    return begins_later ? CAIRN_ERR_INVALID : CAIRN_OK;
}

static void place(struct ranges *gaps, struct local_extent *extent)
{
    struct range *gap = gaps->list;
    while (gap->end - gap->first < extent->elem_count) gap++; // the last gap always has room
    extent->local_elem = gap->first;
    gap->first += extent->elem_count;
}

cairn_status shard_map_init_from(struct shard_map *map, const struct layout *layout, uint32_t shard,
                                 uint32_t chunk_leaves, const struct shard_map *before,
                                 const struct shard_map *beside, const bool *dense)
{
    struct ranges gaps;
    cairn_status status = find_gaps(before, beside, &gaps);
    if (status == CAIRN_OK) status = shard_map_init(map, layout, shard, chunk_leaves);
    if (status != CAIRN_OK) {
        free(gaps.list);
        return status;
    }
    map->local_end = 0;
    for (size_t i = 0; i < map->extent_count && status == CAIRN_OK; i++) {
        struct local_extent *extent = &map->extents[i];
        const struct local_extent *was;
        status = find_before(before, extent, &was);
        const bool is_new = was == NULL || (dense != NULL && dense[extent->tensor] &&
                                            was->first_leaf != extent->first_leaf);
        if (status == CAIRN_OK && is_new)
            place(&gaps, extent);
        else if (status == CAIRN_OK)
            extent->local_elem = was->local_elem + (extent->first_elem - was->first_elem);
        const uint64_t end = extent->local_elem + extent->elem_count;
        if (end > map->local_end) map->local_end = end;
    }
    free(gaps.list);
    if (status != CAIRN_OK) shard_map_release(map);
    return status;
}

/* ==== published ==== */

/* ThreadSanitizer does not support fences, so its builds have none. They run only on x86, where a fence of
 * this file compiles to nothing, or the exchange already does its work. */
#if defined(__SANITIZE_THREAD__)
#define TSAN 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define TSAN 1
#endif
#endif
#ifdef TSAN
#define FENCE(order)
#else
#define FENCE(order) atomic_thread_fence(order)
#endif

static_assert(sizeof(struct published_head) <= CAIRN_PUBLISHED_PAGE_BYTES, "one page");
static_assert(offsetof(struct published_head, sequence) == 32, "shared between processes");
static_assert(offsetof(struct published_head, sides) == 56, "shared between processes");
static_assert(sizeof(struct published_note) == 48, "shared between processes");
static_assert(ATOMIC_LLONG_LOCK_FREE == 2, "an atomic in shared memory has no lock of a process");

#define ALIGN_BYTES ((uint64_t)64)

uint64_t published_place(const struct shard_map *map, size_t extent, size_t elem_bytes,
                         uint64_t *end)
{
    const struct local_extent *e = &map->extents[extent];
    const uint64_t page = CAIRN_PUBLISHED_PAGE_BYTES;
    const bool whole = e->elem_count == map->layout->geometry[e->tensor].elems;
    uint64_t at = (*end + ALIGN_BYTES - 1) / ALIGN_BYTES * ALIGN_BYTES;
    // unsigned, so this is the distance upwards
    if (!whole) at += (e->first_elem * elem_bytes - at) % page;
    *end = at + e->elem_count * elem_bytes;
    return at;
}

void published_head_init(struct published_head *head, const struct shard_map *map, uint64_t job,
                         uint64_t bytes)
{
    head->magic = CAIRN_PUBLISHED_MAGIC;
    head->shard = map->shard;
    head->job = job;
    memcpy(&head->layout_hash, map->layout->hash, sizeof head->layout_hash);
    head->bytes = bytes;
    atomic_store_explicit(&head->sequence, 1, memory_order_release);
}

void published_set_copy(struct published_head *head, uint32_t copy)
{
    atomic_store_explicit(&head->copy, copy, memory_order_release);
}

void published_write_begin(struct published_head *head)
{
    const uint64_t sequence = atomic_load_explicit(&head->sequence, memory_order_relaxed);
    (void)atomic_exchange(&head->sequence, sequence | 1);
    // readers see the odd sequence before they can see any byte of the new version
    FENCE(memory_order_release);
}

void published_write_end(struct published_head *head, struct cairn_version version, uint32_t sides)
{
    const uint64_t sequence = atomic_load_explicit(&head->sequence, memory_order_relaxed);
    assert(sequence % 2 == 1);
    atomic_store_explicit(&head->generation, version.generation, memory_order_relaxed);
    atomic_store_explicit(&head->step, version.step, memory_order_relaxed);
    atomic_store_explicit(&head->sides, sides, memory_order_relaxed);
    atomic_store_explicit(&head->sequence, sequence + 1, memory_order_release);
}

void published_set_sides(struct published_head *head, uint32_t sides)
{
    // the contents of the sides are written before
    atomic_store_explicit(&head->sides, sides, memory_order_release);
}

bool published_read_begin(const struct published_head *head, uint32_t copy,
                          struct cairn_version version, enum published_side side,
                          uint64_t *sequence_out)
{
    const uint64_t sequence = atomic_load_explicit(&head->sequence, memory_order_acquire);
    if (sequence % 2 == 1) return false;
    // Read after the sequence: if the version was written to new regions, this is the number of the new
    // regions.
    if (atomic_load_explicit(&head->copy, memory_order_relaxed) != copy) return false;
    if (atomic_load_explicit(&head->generation, memory_order_relaxed) != version.generation ||
        atomic_load_explicit(&head->step, memory_order_relaxed) != version.step ||
        (atomic_load_explicit(&head->sides, memory_order_acquire) & (uint32_t)side) == 0)
        return false;
    *sequence_out = sequence;
    return true;
}

bool published_read_end(const struct published_head *head, uint64_t sequence)
{
    FENCE(memory_order_acquire); // the reads of the copy come before the read of the sequence
    return atomic_load_explicit(&head->sequence, memory_order_acquire) == sequence;
}

/* ==== since ==== */

struct cairn_version since_attached(struct cairn_version since, struct cairn_version newest)
{
    return !MUTANT(81) && version_compare(since, newest) > 0 ? newest : since;
}

bool layout_goes_back(uint64_t newest_known, uint64_t in_force)
{
    return in_force < newest_known && !MUTANT(82);
}
