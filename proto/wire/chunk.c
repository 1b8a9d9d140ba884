#include "proto/wire/wire.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <sodium.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "proto/base/text.h"
#include "proto/base/xxh.h"
#include "proto/geometry/layout.h"
#include "proto/geometry/tensor.h"
#include "proto/spec/spec.h"

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__,
              "the wire is little-endian, and so are we");
static_assert(sizeof(struct chunk_header) == CAIRN_CHUNK_HEADER_BYTES, "wire format");
static_assert(offsetof(struct chunk_header, kind) == 4, "wire format");
static_assert(offsetof(struct chunk_header, job) == 8, "wire format");
static_assert(offsetof(struct chunk_header, epoch) == 16, "wire format");
static_assert(offsetof(struct chunk_header, round) == 24, "wire format");
static_assert(offsetof(struct chunk_header, member) == 32, "wire format");
static_assert(offsetof(struct chunk_header, token) == 40, "wire format");
static_assert(offsetof(struct chunk_header, table_hash) == 48, "wire format");
static_assert(offsetof(struct chunk_header, tile) == 56, "wire format");
static_assert(offsetof(struct chunk_header, tensor) == 60, "wire format");
static_assert(offsetof(struct chunk_header, first_leaf) == 64, "wire format");
static_assert(offsetof(struct chunk_header, leaf_count) == 72, "wire format");
static_assert(offsetof(struct chunk_header, micro) == 76, "wire format");
static_assert(offsetof(struct chunk_header, generation) == 80, "wire format");
static_assert(offsetof(struct chunk_header, step) == 88, "wire format");
static_assert(offsetof(struct chunk_header, request) == 96, "wire format");
static_assert(offsetof(struct chunk_header, value) == 104, "wire format");
static_assert(offsetof(struct chunk_header, payload_bytes) == 112, "wire format");
static_assert(offsetof(struct chunk_header, checksum) == 120, "wire format");

static const char *const kind_names[CAIRN_CHUNK_KIND_COUNT] = {
    NULL,        "HELLO",     "GRANT",  "PUSH", "ACK",   "NAK",
    "MICRO_END", "MICRO_ACK", "COMMIT", "PUT",  "FETCH", "DATA",
};

void chunk_encode(const struct chunk_header *header, uint8_t out[CAIRN_CHUNK_HEADER_BYTES])
{
    struct chunk_header wire = *header;
    wire.magic = CAIRN_CHUNK_MAGIC;
    wire.protocol = CAIRN_CHUNK_PROTOCOL;
    memcpy(out, &wire, sizeof wire);
}

static int names_a_chunk(unsigned kind)
{
    return kind == CAIRN_CHUNK_PUSH || kind == CAIRN_CHUNK_PUT || kind == CAIRN_CHUNK_FETCH ||
           kind == CAIRN_CHUNK_DATA;
}

static int carries_payload(unsigned kind)
{
    return kind == CAIRN_CHUNK_PUSH || kind == CAIRN_CHUNK_PUT || kind == CAIRN_CHUNK_DATA;
}

/* Judges a payload that consists of a box and of at least one element. Only the receiver knows the box's
 * length. */
static cairn_status judge_boxed(const struct chunk_header *h, size_t payload_bytes)
{
    const size_t elem_bytes = dtype_size(h->dtype);
    if (elem_bytes == 0 || payload_bytes < 4 + elem_bytes) return CAIRN_ERR_MALFORMED;
    if (payload_bytes - 4 - elem_bytes >
        CAIRN_BOX_BYTES_MAX + h->leaf_count * CAIRN_LEAF_ELEMS * elem_bytes)
        return CAIRN_ERR_MALFORMED;
    return CAIRN_OK;
}

static cairn_status judge_payload(const struct chunk_header *h, size_t payload_bytes)
{
    if (h->payload_bytes != payload_bytes) return CAIRN_ERR_MALFORMED;
    if (payload_bytes > CAIRN_CHUNK_PAYLOAD_MAX) return CAIRN_ERR_MALFORMED;
    if (h->kind == CAIRN_CHUNK_MICRO_END)
        return payload_bytes % sizeof(uint32_t) == 0 ? CAIRN_OK : CAIRN_ERR_MALFORMED;
    if (h->kind == CAIRN_CHUNK_FETCH && h->tile == CAIRN_TILE_BOX)
        return payload_bytes > 0 && payload_bytes <= CAIRN_BOX_BYTES_MAX ? CAIRN_OK
                                                                         : CAIRN_ERR_MALFORMED;
    if (h->kind == CAIRN_CHUNK_PUT && h->tile == CAIRN_TILE_BOX)
        return judge_boxed(h, payload_bytes);
    if (!carries_payload(h->kind)) return payload_bytes == 0 ? CAIRN_OK : CAIRN_ERR_MALFORMED;
    const size_t elem_bytes = dtype_size(h->dtype);
    if (elem_bytes == 0 || payload_bytes == 0) return CAIRN_ERR_MALFORMED;
    if (payload_bytes % elem_bytes != 0) return CAIRN_ERR_MALFORMED;
    // A leaf has at most CAIRN_LEAF_ELEMS elements and is never empty; a tile has any number of the leaf's
    // elements.
    const uint64_t elems = payload_bytes / elem_bytes;
    const bool whole = h->kind != CAIRN_CHUNK_DATA && h->tile == CAIRN_TILE_WHOLE;
    if (whole && elems < h->leaf_count) return CAIRN_ERR_MALFORMED;
    if (elems > h->leaf_count * CAIRN_LEAF_ELEMS) return CAIRN_ERR_MALFORMED;
    return CAIRN_OK;
}

static cairn_status judge_range(const struct chunk_header *h)
{
    if (h->leaf_count == 0) return CAIRN_ERR_MALFORMED;
    if (h->first_leaf > CAIRN_TENSOR_ELEMS_MAX) return CAIRN_ERR_MALFORMED;
    // In a shard's messages `tile` is the shard's index instead.
    const bool may_box = h->kind == CAIRN_CHUNK_FETCH || h->kind == CAIRN_CHUNK_PUT;
    const uint32_t tile_max = may_box ? CAIRN_TILE_BOX : CAIRN_TILE_OWN;
    if (h->kind != CAIRN_CHUNK_DATA && h->tile > tile_max) return CAIRN_ERR_MALFORMED;
    if (h->kind != CAIRN_CHUNK_PUSH && plane_name(h->plane) == NULL) return CAIRN_ERR_MALFORMED;
    return CAIRN_OK;
}

cairn_status chunk_decode(const void *bytes, size_t bytes_len, size_t payload_bytes,
                          struct chunk_header *header_out)
{
    struct chunk_header h;
    if (bytes_len != sizeof h) return CAIRN_ERR_MALFORMED;
    memcpy(&h, bytes, sizeof h);
    if (h.magic != CAIRN_CHUNK_MAGIC) return CAIRN_ERR_MALFORMED;
    if (h.protocol != CAIRN_CHUNK_PROTOCOL) return CAIRN_ERR_VERSION;
    if (h.kind == 0 || h.kind >= CAIRN_CHUNK_KIND_COUNT) return CAIRN_ERR_MALFORMED;
    if (names_a_chunk(h.kind) && judge_range(&h) != CAIRN_OK) return CAIRN_ERR_MALFORMED;
    if (judge_payload(&h, payload_bytes) != CAIRN_OK) return CAIRN_ERR_MALFORMED;
    *header_out = h;
    return CAIRN_OK;
}

uint64_t chunk_checksum(const void *payload, size_t payload_bytes)
{
    return payload_bytes == 0 ? 0 : XXH3_64bits(payload, payload_bytes);
}

const char *chunk_kind_name(unsigned kind)
{
    return kind > 0 && kind < CAIRN_CHUNK_KIND_COUNT ? kind_names[kind] : "?";
}

/* ==== tiles ==== */

void tiles_release(struct tiles *tiles)
{
    free(tiles->list);
    *tiles = (struct tiles) { 0 };
}

/* Returns the position of the first box whose tensor is not below `tensor`. */
static size_t place_of(const struct tiles *tiles, uint32_t tensor)
{
    return lower_bound(tiles->list, tiles->count, sizeof *tiles->list,
                       offsetof(struct tile_box, tensor), tensor);
}

cairn_status tiles_set(struct tiles *tiles, uint32_t tensor, const struct cairn_box *box)
{
    const size_t at = place_of(tiles, tensor);
    if (at == tiles->count || tiles->list[at].tensor != tensor) {
        // The list doubles at each power of two, so no capacity needs to be kept.
        if ((tiles->count & (tiles->count - 1)) == 0) {
            const size_t capacity = tiles->count == 0 ? 1 : 2 * tiles->count;
            struct tile_box *list = realloc(tiles->list, capacity * sizeof *list);
            if (list == NULL) return CAIRN_ERR_NO_MEMORY;
            tiles->list = list;
        }
        memmove(tiles->list + at + 1, tiles->list + at,
                (tiles->count - at) * sizeof tiles->list[0]);
        tiles->count++;
    }
    tiles->list[at] = (struct tile_box) { .tensor = tensor, .box = *box };
    return CAIRN_OK;
}

const struct cairn_box *tiles_find(const struct tiles *tiles, uint32_t tensor)
{
    const size_t at = place_of(tiles, tensor);
    return at < tiles->count && tiles->list[at].tensor == tensor ? &tiles->list[at].box : NULL;
}

bool tiles_equal(const struct tiles *a, const struct tiles *b)
{
    if (a->count != b->count) return false;
    for (size_t i = 0; i < a->count; i++)
        if (a->list[i].tensor != b->list[i].tensor || !box_equal(&a->list[i].box, &b->list[i].box))
            return false;
    return true;
}

static void hash_number(crypto_generichash_state *state, uint64_t value, size_t bytes)
{
    uint8_t little[8];
    le_put(little, value, bytes);
    crypto_generichash_update(state, little, bytes);
}

uint64_t tiles_digest(const struct tiles *tiles)
{
    static const char domain[] = "cairn tiles 1";
    if (tiles->count == 0) return CAIRN_TABLE_HASH_WHOLE;
    crypto_generichash_state state;
    crypto_generichash_init(&state, NULL, 0, crypto_generichash_BYTES);
    crypto_generichash_update(&state, (const uint8_t *)domain, sizeof domain);
    hash_number(&state, tiles->count, 8);
    for (size_t i = 0; i < tiles->count; i++) {
        uint8_t box[CAIRN_BOX_BYTES_MAX];
        const size_t bytes = box_encode(&tiles->list[i].box, box);
        hash_number(&state, tiles->list[i].tensor, 4);
        crypto_generichash_update(&state, box, bytes);
    }
    uint8_t hash[crypto_generichash_BYTES];
    crypto_generichash_final(&state, hash, sizeof hash);
    return le_get(hash, 8);
}

cairn_status tiles_pack(const struct tiles *tiles, uint8_t **bytes_out, size_t *bytes_len_out)
{
    Cairn__TileList list = CAIRN__TILE_LIST__INIT;
    Cairn__TileBox *boxes = calloc(tiles->count + 1, sizeof *boxes);
    list.boxes = calloc(tiles->count + 1, sizeof list.boxes[0]);
    list.n_boxes = tiles->count;
    uint8_t *bytes = NULL;
    if (boxes != NULL && list.boxes != NULL) {
        for (size_t i = 0; i < tiles->count; i++) {
            struct tile_box *in = &tiles->list[i];
            cairn__tile_box__init(&boxes[i]);
            boxes[i].tensor = in->tensor;
            boxes[i].n_start = boxes[i].n_extent = in->box.rank;
            boxes[i].start = in->box.start;
            boxes[i].extent = in->box.extent;
            list.boxes[i] = &boxes[i];
        }
        *bytes_len_out = cairn__tile_list__get_packed_size(&list);
        bytes = malloc(*bytes_len_out + 1);
        if (bytes != NULL) cairn__tile_list__pack(&list, bytes);
    }
    free(boxes);
    free(list.boxes);
    if (bytes == NULL) return CAIRN_ERR_NO_MEMORY;
    *bytes_out = bytes;
    return CAIRN_OK;
}

/* Validates one box of a stranger; `least`: the lowest tensor that the box may belong to. */
static cairn_status unpack_box(const Cairn__TileBox *in, const struct job_spec_data *spec,
                               uint64_t least, struct tile_box *out, struct sentence *why)
{
    if (in->tensor >= spec->tensor_count)
        return fail_with(why, CAIRN_ERR_INVALID,
                         "a tile is of tensor number %" PRIu32 ", but the job has %zu tensors",
                         in->tensor, spec->tensor_count);
    const struct tensor_spec *tensor = &spec->tensors[in->tensor];
    if (in->tensor < least)
        return fail_with(
            why, CAIRN_ERR_INVALID,
            "the tile of tensor %.80s is not in its place: order tiles by tensor, one each",
            tensor->name);
    if (in->n_start != in->n_extent || in->n_start > CAIRN_RANK_MAX)
        return fail_with(why, CAIRN_ERR_INVALID,
                         "the tile of tensor %.80s has %zu starts and %zu extents", tensor->name,
                         in->n_start, in->n_extent);
    *out = (struct tile_box) { .tensor = in->tensor, .box = { .rank = (uint32_t)in->n_start } };
    for (size_t d = 0; d < in->n_start; d++) {
        out->box.start[d] = in->start[d];
        out->box.extent[d] = in->extent[d];
    }
    struct sentence detail = { "" };
    if (box_check(&out->box, &tensor->shape, &detail) != CAIRN_OK)
        return fail_with(why, CAIRN_ERR_INVALID, "the tile of tensor %.80s: %s", tensor->name,
                         detail.text);
    if (box_is_whole(&out->box, &tensor->shape)) return CAIRN_OK;
    const struct spec_refusal *refused = combination_refused(CAIRN_COMBINATION_OF_CUT, tensor);
    if (refused == NULL) return CAIRN_OK;
    return fail_with(why, refused->status, "the tile of tensor %.80s: %s", tensor->name,
                     refused->why);
}

static cairn_status unpack_boxes(const Cairn__TileList *in, const struct job_spec_data *spec,
                                 struct tiles *out, struct sentence *why)
{
    if (in->n_boxes > spec->tensor_count)
        return fail_with(why, CAIRN_ERR_INVALID, "%zu tiles are declared for %zu tensors",
                         in->n_boxes, spec->tensor_count);
    for (size_t i = 0; i < in->n_boxes; i++) {
        const uint64_t least = i == 0 ? 0 : (uint64_t)in->boxes[i - 1]->tensor + 1;
        struct tile_box tile;
        cairn_status status = unpack_box(in->boxes[i], spec, least, &tile, why);
        if (status == CAIRN_OK) status = tiles_set(out, tile.tensor, &tile.box);
        if (status != CAIRN_OK) return status;
    }
    return CAIRN_OK;
}

cairn_status tiles_unpack(const uint8_t *bytes, size_t bytes_len, const struct job_spec_data *spec,
                          struct tiles *tiles_out, struct sentence *why)
{
    Cairn__TileList *in = (Cairn__TileList *)message_unpack(&cairn__tile_list__descriptor, bytes,
                                                            bytes_len);
    if (in == NULL && errno == ENOMEM)
        return fail_with(why, CAIRN_ERR_NO_MEMORY, "out of memory for tiles of %zu bytes",
                         bytes_len);
    if (in == NULL)
        return fail_with(why, CAIRN_ERR_MALFORMED,
                         "the tiles are not a valid TileList message of %zu bytes", bytes_len);
    struct tiles tiles = { 0 };
    cairn_status status = unpack_boxes(in, spec, &tiles, why);
    message_free(&in->base);
    if (status != CAIRN_OK) {
        tiles_release(&tiles);
        return status;
    }
    *tiles_out = tiles;
    return CAIRN_OK;
}

/* ==== tiles cover ==== */

/* Checks that the tiles of all ranks make up every tensor exactly: see wire.h.
 *
 * Ranks with equal lists are one holder. Straight cuts separate a tensor's different boxes: a group that is
 * sorted along a dimension splits into parts wherever no box reaches across. Real partitions split into
 * single boxes at once. Boxes that no cut in any dimension separates (a pinwheel, or boxes that overlap)
 * are compared by pairs. Boxes that do not overlap cover the tensor if the numbers of their elements add up
 * to the tensor's. */

#define PAIRS_BOXES_MAX 4096 /* the most boxes in a group that is compared by pairs */
#define DEPTH_MAX       64   /* the most cuts within cuts, before a group is compared by pairs */

/* A list that some ranks have, and the lowest of these ranks. */
struct holder {
    const struct tiles *tiles; /* borrowed */
    uint64_t hash;
    uint32_t rank;
};

/* One of a tensor's different boxes. */
struct held {
    struct cairn_box box;
    uint32_t rank; /* the lowest rank that holds the box */
};

struct cover {
    const struct tensor_spec *tensor;
    struct held *held; /* [count], sorted along the current dimension */
    struct sentence *why;
};

static int by_hash(const void *a, const void *b)
{
    const struct holder *x = a, *y = b;
    if (x->hash != y->hash) return x->hash < y->hash ? -1 : 1;
    return x->rank < y->rank ? -1 : x->rank > y->rank;
}

/* Keeps one holder of each list; returns how many holders are left. */
static uint32_t join_holders(struct holder *holders, uint32_t count)
{
    qsort(holders, count, sizeof *holders, by_hash);
    uint32_t kept = 0;
    for (uint32_t i = 0; i < count; i++)
        if (kept == 0 || !tiles_equal(holders[kept - 1].tiles, holders[i].tiles))
            holders[kept++] = holders[i];
    return kept;
}

static int compare_numbers(uint64_t a, uint64_t b)
{
    return a < b ? -1 : a > b;
}

static int by_box(const void *a, const void *b)
{
    const struct held *x = a, *y = b;
    for (uint32_t d = 0; d < x->box.rank; d++) {
        int order = compare_numbers(x->box.start[d], y->box.start[d]);
        if (order == 0) order = compare_numbers(x->box.extent[d], y->box.extent[d]);
        if (order != 0) return order;
    }
    return compare_numbers(x->rank, y->rank);
}

/* Collects the tensor's different boxes that are not empty; returns how many boxes there are. */
static size_t gather(struct cover *c, uint32_t tensor, const struct holder *holders, uint32_t count)
{
    size_t held = 0;
    for (uint32_t i = 0; i < count; i++) {
        const struct cairn_box *box = tiles_find(holders[i].tiles, tensor);
        const struct cairn_box whole = box_of_shape(&c->tensor->shape);
        if (box == NULL) box = &whole;
        if (box_element_count(box) > 0)
            c->held[held++] = (struct held) { .box = *box, .rank = holders[i].rank };
    }
    qsort(c->held, held, sizeof c->held[0], by_box);
    size_t kept = 0;
    for (size_t i = 0; i < held; i++)
        if (kept == 0 || !box_equal(&c->held[kept - 1].box, &c->held[i].box))
            c->held[kept++] = c->held[i];
    return kept;
}

static cairn_status compare_pairs(const struct cover *c, const struct held *group, size_t count)
{
    if (count > PAIRS_BOXES_MAX)
        return fail_with(c->why, CAIRN_ERR_UNSUPPORTED,
                         "the tiles of tensor %.80s are %zu boxes that no straight cut separates; "
                         "at most %d are supported",
                         c->tensor->name, count, PAIRS_BOXES_MAX);
    for (size_t i = 0; i < count; i++)
        for (size_t j = i + 1; j < count; j++) {
            if (!box_overlap(&group[i].box, &group[j].box)) continue;
            char first[CAIRN_BOX_TEXT_BYTES], second[CAIRN_BOX_TEXT_BYTES];
            return fail_with(c->why, CAIRN_ERR_MISMATCH,
                             "the tiles of tensor %.80s: rank %" PRIu32
                             " holds %s and rank %" PRIu32
                             " holds %s, which overlap; two ranks hold the same box or have no "
                             "element in common",
                             c->tensor->name, group[i].rank, box_text(&group[i].box, first),
                             group[j].rank, box_text(&group[j].box, second));
        }
    return CAIRN_OK;
}

static int by_start(const void *a, const void *b, void *dim)
{
    const uint32_t d = *(const uint32_t *)dim;
    return compare_numbers(((const struct held *)a)->box.start[d],
                           ((const struct held *)b)->box.start[d]);
}

/* Checks that no two boxes of the group overlap. The `tried` dimensions before `dim` do not cut the
 * group. */
static cairn_status take_apart(const struct cover *c, struct held *group, size_t count,
                               uint32_t dim, uint32_t tried, uint32_t depth)
{
    const uint32_t rank = c->tensor->shape.rank;
    if (count <= 1) return CAIRN_OK;
    if (tried == rank || depth == DEPTH_MAX) return compare_pairs(c, group, count);

    qsort_r(group, count, sizeof *group, by_start, &dim);
    const uint32_t next_dim = (dim + 1) % rank;
    size_t first = 0; // the first box of the current part
    uint64_t reach = 0;
    for (size_t i = 0; i < count; i++) {
        if (i > first && group[i].box.start[dim] >= reach) {
            CAIRN_TRY(take_apart(c, group + first, i - first, next_dim, 1, depth + 1));
            first = i;
        }
        const uint64_t end = group[i].box.start[dim] + group[i].box.extent[dim];
        if (end > reach) reach = end;
    }
    return take_apart(c, group + first, count - first, next_dim, first == 0 ? tried + 1 : 1,
                      depth + 1);
}

/* Returns the next position along a dimension where one of the boxes begins or ends. */
static uint64_t next_edge(const struct held *held, size_t count, uint32_t d, uint64_t at,
                          uint64_t end)
{
    for (size_t i = 0; i < count; i++) {
        const uint64_t start = held[i].box.start[d], stop = start + held[i].box.extent[d];
        if (start > at && start < end) end = start;
        if (stop > at && stop < end) end = stop;
    }
    return end;
}

static bool reaches(const struct held *h, uint32_t d, uint64_t at)
{
    return h->box.start[d] <= at && at - h->box.start[d] < h->box.extent[d];
}

/* Counts the elements that the boxes hold at one index of dimension d. */
static uint64_t slice_elems(const struct held *held, size_t count, uint32_t d, uint64_t at)
{
    uint64_t elems = 0;
    for (size_t i = 0; i < count; i++) {
        if (!reaches(&held[i], d, at)) continue;
        uint64_t inner = 1;
        for (uint32_t k = d + 1; k < held[i].box.rank; k++) inner *= held[i].box.extent[k];
        elems += inner;
    }
    return elems;
}

static size_t keep_reaching(struct held *held, size_t count, uint32_t d, uint64_t at)
{
    size_t kept = 0;
    for (size_t i = 0; i < count; i++)
        if (reaches(&held[i], d, at)) held[kept++] = held[i];
    return kept;
}

/* Finds a part that no box holds, if the boxes do not overlap and do not fill the tensor. Narrows the part
 * dimension by dimension to the first slice that is not full. */
static struct cairn_box find_hole(struct cover *c, size_t count)
{
    struct cairn_box hole = box_of_shape(&c->tensor->shape);
    uint64_t full = box_element_count(&hole);
    for (uint32_t d = 0; d < hole.rank; d++) {
        const uint64_t dim = hole.extent[d];
        full /= dim;
        uint64_t at = 0;
        while (slice_elems(c->held, count, d, at) == full) {
            at = next_edge(c->held, count, d, at, dim);
            assert(at < dim);
        }
        hole.start[d] = at;
        hole.extent[d] = next_edge(c->held, count, d, at, dim) - at;
        count = keep_reaching(c->held, count, d, at);
    }
    return hole;
}

static cairn_status cover_tensor(struct cover *c, size_t count)
{
    const struct cairn_box whole = box_of_shape(&c->tensor->shape);
    CAIRN_TRY(take_apart(c, c->held, count, 0, 0, 0));
    uint64_t elems = 0;
    for (size_t i = 0; i < count; i++) elems += box_element_count(&c->held[i].box);
    if (elems == box_element_count(&whole)) return CAIRN_OK;
    const struct cairn_box hole = find_hole(c, count);
    char text[CAIRN_BOX_TEXT_BYTES];
    return fail_with(c->why, CAIRN_ERR_MISMATCH,
                     "the tiles of tensor %.80s: no rank holds %s; the tiles of all ranks "
                     "together must make up the whole tensor",
                     c->tensor->name, box_text(&hole, text));
}

cairn_status tiles_cover(const struct job_spec_data *spec, const struct tiles *const *of_rank,
                         uint32_t world, struct sentence *why)
{
    cairn_status status = CAIRN_ERR_NO_MEMORY;
    struct holder *holders = calloc((size_t)world + 1, sizeof *holders);
    struct cover c = { .why = why, .held = calloc((size_t)world + 1, sizeof *c.held) };
    if (holders != NULL && c.held != NULL) {
        for (uint32_t r = 0; r < world; r++)
            holders[r] = (struct holder) { of_rank[r], tiles_digest(of_rank[r]), r };
        const uint32_t count = join_holders(holders, world);
        status = CAIRN_OK;
        for (size_t t = 0; status == CAIRN_OK && t < spec->tensor_count; t++) {
            c.tensor = &spec->tensors[t];
            if (c.tensor->alias_of != NULL) continue; // an alias is stored under its target's name
            status = cover_tensor(&c, gather(&c, (uint32_t)t, holders, count));
        }
    }
    free(holders);
    free(c.held);
    return status;
}
