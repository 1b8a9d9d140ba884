#include "proto/wire/tiles.h"

#include <inttypes.h>
#include <sodium.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "proto/base/lower_bound.h"
#include "proto/spec/capability.h"
#include "proto/wire/chunk.h"
#include "proto/wire/messages.h"

void cairn_tiles_release(struct cairn_tiles *tiles)
{
    free(tiles->list);
    *tiles = (struct cairn_tiles) { 0 };
}

/* The place of the first box whose tensor is not below. */
static size_t place_of(const struct cairn_tiles *tiles, uint32_t tensor)
{
    return cairn_lower_bound(tiles->list, tiles->count, sizeof *tiles->list,
                             offsetof(struct cairn_tile_box, tensor), tensor);
}

cairn_status cairn_tiles_set(struct cairn_tiles *tiles, uint32_t tensor,
                             const struct cairn_box *box)
{
    const size_t at = place_of(tiles, tensor);
    if (at == tiles->count || tiles->list[at].tensor != tensor) {
        // Doubled at each power of two, so that no capacity needs to be kept.
        if ((tiles->count & (tiles->count - 1)) == 0) {
            const size_t capacity = tiles->count == 0 ? 1 : 2 * tiles->count;
            struct cairn_tile_box *list = realloc(tiles->list, capacity * sizeof *list);
            if (list == NULL) return CAIRN_ERR_NO_MEMORY;
            tiles->list = list;
        }
        memmove(tiles->list + at + 1, tiles->list + at,
                (tiles->count - at) * sizeof tiles->list[0]);
        tiles->count++;
    }
    tiles->list[at] = (struct cairn_tile_box) { .tensor = tensor, .box = *box };
    return CAIRN_OK;
}

const struct cairn_box *cairn_tiles_find(const struct cairn_tiles *tiles, uint32_t tensor)
{
    const size_t at = place_of(tiles, tensor);
    return at < tiles->count && tiles->list[at].tensor == tensor ? &tiles->list[at].box : NULL;
}

bool cairn_tiles_equal(const struct cairn_tiles *a, const struct cairn_tiles *b)
{
    if (a->count != b->count) return false;
    for (size_t i = 0; i < a->count; i++)
        if (a->list[i].tensor != b->list[i].tensor ||
            !cairn_box_equal(&a->list[i].box, &b->list[i].box))
            return false;
    return true;
}

static void hash_number(crypto_generichash_state *state, uint64_t value, size_t bytes)
{
    uint8_t little[8];
    for (size_t i = 0; i < bytes; i++) little[i] = (uint8_t)(value >> (8 * i));
    crypto_generichash_update(state, little, bytes);
}

uint64_t cairn_tiles_hash(const struct cairn_tiles *tiles)
{
    static const char domain[] = "cairn tiles 1";
    if (tiles->count == 0) return CAIRN_TABLE_HASH_WHOLE;
    crypto_generichash_state state;
    crypto_generichash_init(&state, NULL, 0, crypto_generichash_BYTES);
    crypto_generichash_update(&state, (const uint8_t *)domain, sizeof domain);
    hash_number(&state, tiles->count, 8);
    for (size_t i = 0; i < tiles->count; i++) {
        uint8_t box[CAIRN_BOX_BYTES_MAX];
        const size_t bytes = cairn_box_encode(&tiles->list[i].box, box);
        hash_number(&state, tiles->list[i].tensor, 4);
        crypto_generichash_update(&state, box, bytes);
    }
    uint8_t hash[crypto_generichash_BYTES];
    crypto_generichash_final(&state, hash, sizeof hash);
    uint64_t first = 0;
    for (size_t i = 0; i < 8; i++) first |= (uint64_t)hash[i] << (8 * i);
    return first;
}

cairn_status cairn_tiles_pack(const struct cairn_tiles *tiles, uint8_t **bytes_out,
                              size_t *bytes_len_out)
{
    Cairn__TileList list = CAIRN__TILE_LIST__INIT;
    Cairn__TileBox *boxes = calloc(tiles->count + 1, sizeof *boxes);
    list.boxes = calloc(tiles->count + 1, sizeof list.boxes[0]);
    list.n_boxes = tiles->count;
    uint8_t *bytes = NULL;
    if (boxes != NULL && list.boxes != NULL) {
        for (size_t i = 0; i < tiles->count; i++) {
            struct cairn_tile_box *in = &tiles->list[i];
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

/* Judges one box of a stranger; `least`: the lowest tensor it may be of. */
static cairn_status unpack_box(const Cairn__TileBox *in, const struct cairn_job_spec_data *spec,
                               uint64_t least, struct cairn_tile_box *out,
                               struct cairn_sentence *why)
{
    if (in->tensor >= spec->tensor_count)
        return cairn_fail(why, CAIRN_ERR_INVALID,
                          "a tile is of tensor number %" PRIu32 ", but the job has %zu tensors",
                          in->tensor, spec->tensor_count);
    const struct cairn_tensor_spec *tensor = &spec->tensors[in->tensor];
    if (in->tensor < least)
        return cairn_fail(
            why, CAIRN_ERR_INVALID,
            "the tile of tensor %.80s is not in its place: tiles go up by tensor, one each",
            tensor->name);
    if (in->n_start != in->n_extent || in->n_start > CAIRN_RANK_MAX)
        return cairn_fail(why, CAIRN_ERR_INVALID,
                          "the tile of tensor %.80s has %zu starts and %zu extents", tensor->name,
                          in->n_start, in->n_extent);
    *out = (struct cairn_tile_box) { .tensor = in->tensor,
                                     .box = { .rank = (uint32_t)in->n_start } };
    for (size_t d = 0; d < in->n_start; d++) {
        out->box.start[d] = in->start[d];
        out->box.extent[d] = in->extent[d];
    }
    struct cairn_sentence detail = { "" };
    if (cairn_box_check(&out->box, &tensor->shape, &detail) != CAIRN_OK)
        return cairn_fail(why, CAIRN_ERR_INVALID, "the tile of tensor %.80s: %s", tensor->name,
                          detail.text);
    if (cairn_box_is_whole(&out->box, &tensor->shape)) return CAIRN_OK;
    const struct cairn_refusal *refused = cairn_combination_refused(CAIRN_COMBINATION_OF_CUT,
                                                                    tensor);
    if (refused == NULL) return CAIRN_OK;
    return cairn_fail(why, refused->status, "the tile of tensor %.80s: %s", tensor->name,
                      refused->why);
}

static cairn_status unpack_boxes(const Cairn__TileList *in, const struct cairn_job_spec_data *spec,
                                 struct cairn_tiles *out, struct cairn_sentence *why)
{
    if (in->n_boxes > spec->tensor_count)
        return cairn_fail(why, CAIRN_ERR_INVALID, "%zu tiles are declared for %zu tensors",
                          in->n_boxes, spec->tensor_count);
    for (size_t i = 0; i < in->n_boxes; i++) {
        const uint64_t least = i == 0 ? 0 : (uint64_t)in->boxes[i - 1]->tensor + 1;
        struct cairn_tile_box tile;
        cairn_status status = unpack_box(in->boxes[i], spec, least, &tile, why);
        if (status == CAIRN_OK) status = cairn_tiles_set(out, tile.tensor, &tile.box);
        if (status != CAIRN_OK) return status;
    }
    return CAIRN_OK;
}

cairn_status cairn_tiles_unpack(const uint8_t *bytes, size_t bytes_len,
                                const struct cairn_job_spec_data *spec,
                                struct cairn_tiles *tiles_out, struct cairn_sentence *why)
{
    Cairn__TileList *in = (Cairn__TileList *)cairn_message_unpack(&cairn__tile_list__descriptor,
                                                                  bytes, bytes_len);
    if (in == NULL && errno == ENOMEM)
        return cairn_fail(why, CAIRN_ERR_NO_MEMORY, "no memory for tiles of %zu bytes", bytes_len);
    if (in == NULL)
        return cairn_fail(why, CAIRN_ERR_MALFORMED,
                          "the tiles are not a valid TileList message of %zu bytes", bytes_len);
    struct cairn_tiles tiles = { 0 };
    cairn_status status = unpack_boxes(in, spec, &tiles, why);
    cairn_message_free(&in->base);
    if (status != CAIRN_OK) {
        cairn_tiles_release(&tiles);
        return status;
    }
    *tiles_out = tiles;
    return CAIRN_OK;
}
