#include "proto/wire/chunk.h"

#include <assert.h>
#include <stdbool.h>
#include <string.h>

#include "proto/base/xxh.h"
#include "proto/geometry/box.h"
#include "proto/geometry/tensor.h"

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__,
              "the wire is little-endian, and so are we");
static_assert(sizeof(struct cairn_chunk_header) == CAIRN_CHUNK_HEADER_BYTES, "wire format");
static_assert(offsetof(struct cairn_chunk_header, kind) == 4, "wire format");
static_assert(offsetof(struct cairn_chunk_header, job) == 8, "wire format");
static_assert(offsetof(struct cairn_chunk_header, epoch) == 16, "wire format");
static_assert(offsetof(struct cairn_chunk_header, round) == 24, "wire format");
static_assert(offsetof(struct cairn_chunk_header, member) == 32, "wire format");
static_assert(offsetof(struct cairn_chunk_header, token) == 40, "wire format");
static_assert(offsetof(struct cairn_chunk_header, table_hash) == 48, "wire format");
static_assert(offsetof(struct cairn_chunk_header, tile) == 56, "wire format");
static_assert(offsetof(struct cairn_chunk_header, tensor) == 60, "wire format");
static_assert(offsetof(struct cairn_chunk_header, first_leaf) == 64, "wire format");
static_assert(offsetof(struct cairn_chunk_header, leaf_count) == 72, "wire format");
static_assert(offsetof(struct cairn_chunk_header, micro) == 76, "wire format");
static_assert(offsetof(struct cairn_chunk_header, generation) == 80, "wire format");
static_assert(offsetof(struct cairn_chunk_header, step) == 88, "wire format");
static_assert(offsetof(struct cairn_chunk_header, request) == 96, "wire format");
static_assert(offsetof(struct cairn_chunk_header, value) == 104, "wire format");
static_assert(offsetof(struct cairn_chunk_header, payload_bytes) == 112, "wire format");
static_assert(offsetof(struct cairn_chunk_header, checksum) == 120, "wire format");

static const char *const kind_names[CAIRN_CHUNK_KIND_COUNT] = {
    NULL,        "HELLO",     "GRANT",  "PUSH", "ACK",   "NAK",
    "MICRO_END", "MICRO_ACK", "COMMIT", "PUT",  "FETCH", "DATA",
};

void cairn_chunk_encode(const struct cairn_chunk_header *header,
                        uint8_t out[CAIRN_CHUNK_HEADER_BYTES])
{
    struct cairn_chunk_header wire = *header;
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

/* A box, of which only the receiver knows how long it is, and at least one element. */
static cairn_status judge_boxed(const struct cairn_chunk_header *h, size_t payload_bytes)
{
    const size_t elem_bytes = cairn_dtype_bytes(h->dtype);
    if (elem_bytes == 0 || payload_bytes < 4 + elem_bytes) return CAIRN_ERR_MALFORMED;
    if (payload_bytes - 4 - elem_bytes >
        CAIRN_BOX_BYTES_MAX + h->leaf_count * CAIRN_LEAF_ELEMS * elem_bytes)
        return CAIRN_ERR_MALFORMED;
    return CAIRN_OK;
}

static cairn_status judge_payload(const struct cairn_chunk_header *h, size_t payload_bytes)
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
    const size_t elem_bytes = cairn_dtype_bytes(h->dtype);
    if (elem_bytes == 0 || payload_bytes == 0) return CAIRN_ERR_MALFORMED;
    if (payload_bytes % elem_bytes != 0) return CAIRN_ERR_MALFORMED;
    // A leaf is at most CAIRN_LEAF_ELEMS elements and never empty; of a tile it may have any number.
    const uint64_t elems = payload_bytes / elem_bytes;
    const bool whole = h->kind != CAIRN_CHUNK_DATA && h->tile == CAIRN_TILE_WHOLE;
    if (whole && elems < h->leaf_count) return CAIRN_ERR_MALFORMED;
    if (elems > h->leaf_count * CAIRN_LEAF_ELEMS) return CAIRN_ERR_MALFORMED;
    return CAIRN_OK;
}

static cairn_status judge_range(const struct cairn_chunk_header *h)
{
    if (h->leaf_count == 0) return CAIRN_ERR_MALFORMED;
    if (h->first_leaf > CAIRN_TENSOR_ELEMS_MAX) return CAIRN_ERR_MALFORMED;
    // A shard has its index in `tile` instead.
    const bool may_box = h->kind == CAIRN_CHUNK_FETCH || h->kind == CAIRN_CHUNK_PUT;
    const uint32_t tile_max = may_box ? CAIRN_TILE_BOX : CAIRN_TILE_OWN;
    if (h->kind != CAIRN_CHUNK_DATA && h->tile > tile_max) return CAIRN_ERR_MALFORMED;
    if (h->kind != CAIRN_CHUNK_PUSH && cairn_plane_name(h->plane) == NULL)
        return CAIRN_ERR_MALFORMED;
    return CAIRN_OK;
}

cairn_status cairn_chunk_decode(const void *bytes, size_t bytes_len, size_t payload_bytes,
                                struct cairn_chunk_header *header_out)
{
    struct cairn_chunk_header h;
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

uint64_t cairn_chunk_checksum(const void *payload, size_t payload_bytes)
{
    return payload_bytes == 0 ? 0 : XXH3_64bits(payload, payload_bytes);
}

const char *cairn_chunk_kind_name(unsigned kind)
{
    return kind > 0 && kind < CAIRN_CHUNK_KIND_COUNT ? kind_names[kind] : "?";
}
