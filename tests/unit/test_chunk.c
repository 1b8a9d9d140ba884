/* The chunk header: its bytes, and what its judge refuses. */
#include <check.h>
#include <stdlib.h>
#include <string.h>

#include "proto/geometry/tensor.h"
#include "proto/wire/wire.h"
#include "tests/support/suite.h"

static struct chunk_header a_push(void)
{
    return (struct chunk_header) {
        .kind = CAIRN_CHUNK_PUSH,
        .dtype = CAIRN_F32,
        .job = 7,
        .epoch = 3,
        .round = 41,
        .member = 0x1122334455667788,
        .token = 99,
        .table_hash = CAIRN_TABLE_HASH_WHOLE,
        .tensor = 5,
        .first_leaf = 16,
        .leaf_count = 2,
        .micro = 1,
        .request = 12,
        .payload_bytes = 2 * 4096 * 4,
        .checksum = 1,
    };
}

static cairn_status judge(struct chunk_header header, size_t payload_bytes)
{
    uint8_t bytes[CAIRN_CHUNK_HEADER_BYTES];
    struct chunk_header out;
    chunk_encode(&header, bytes);
    return chunk_decode(bytes, sizeof bytes, payload_bytes, &out);
}

TEST(a_header_comes_back_as_it_was_written)
{
    const struct chunk_header header = a_push();
    uint8_t bytes[CAIRN_CHUNK_HEADER_BYTES];
    struct chunk_header back;
    chunk_encode(&header, bytes);
    ck_assert_int_eq(chunk_decode(bytes, sizeof bytes, header.payload_bytes, &back), CAIRN_OK);
    ck_assert_uint_eq(back.magic, CAIRN_CHUNK_MAGIC);
    ck_assert_uint_eq(back.member, header.member);
    ck_assert_uint_eq(back.first_leaf, header.first_leaf);
    ck_assert_uint_eq(back.leaf_count, header.leaf_count);
    ck_assert_uint_eq(back.checksum, header.checksum);
}

TEST(the_bytes_are_nailed_down)
{
    struct chunk_header header = a_push();
    uint8_t bytes[CAIRN_CHUNK_HEADER_BYTES];
    chunk_encode(&header, bytes);
    ck_assert_uint_eq(bytes[0], 'C');
    ck_assert_uint_eq(bytes[3], 'C');
    ck_assert_uint_eq(bytes[4], CAIRN_CHUNK_PUSH);
    ck_assert_uint_eq(bytes[5], CAIRN_CHUNK_PROTOCOL);
    ck_assert_uint_eq(bytes[8], 7);     // job
    ck_assert_uint_eq(bytes[24], 41);   // round
    ck_assert_uint_eq(bytes[32], 0x88); // member
    ck_assert_uint_eq(bytes[60], 5);    // tensor
    ck_assert_uint_eq(bytes[64], 16);   // first leaf
    ck_assert_uint_eq(bytes[72], 2);    // leaf count
}

static const struct refusal {
    const char *what;
    struct chunk_header change; /* fields that are not 0 replace those of a good push */
    size_t payload_bytes;       /* 0: what the header says */
    cairn_status status;
} refusals[] = {
    { "kind 12 is not one", { .kind = CAIRN_CHUNK_KIND_COUNT }, 0, CAIRN_ERR_MALFORMED },
    { "kind 255 is not one", { .kind = 255 }, 0, CAIRN_ERR_MALFORMED },
    { "dtype 9 is not one", { .dtype = 9 }, 0, CAIRN_ERR_MALFORMED },
    { "the payload is not the one announced", { .kind = 0 }, 4096, CAIRN_ERR_MALFORMED },
    { "a payload larger than its leaves", { .leaf_count = 1 }, 0, CAIRN_ERR_MALFORMED },
    { "a payload smaller than one element a leaf", { .leaf_count = 9000 }, 0, CAIRN_ERR_MALFORMED },
    { "leaves beyond any tensor", { .first_leaf = UINT64_MAX }, 0, CAIRN_ERR_MALFORMED },
    { "a fetch of no plane",
      { .kind = CAIRN_CHUNK_FETCH, .payload_bytes = 0 },
      0,
      CAIRN_ERR_MALFORMED },
    { "a payload over the limit",
      { .leaf_count = 1 << 20, .payload_bytes = CAIRN_CHUNK_PAYLOAD_MAX + 4 },
      0,
      CAIRN_ERR_MALFORMED },
    { "a list of tensors that is cut",
      { .kind = CAIRN_CHUNK_MICRO_END, .payload_bytes = 6 },
      0,
      CAIRN_ERR_MALFORMED },
};

TEST_EACH(a_bad_header_is_refused, 0, sizeof refusals / sizeof refusals[0])
{
    const struct refusal *row = &refusals[_i];
    struct chunk_header h = a_push();
    if (row->change.kind != 0) h.kind = row->change.kind;
    if (row->change.dtype != 0) h.dtype = row->change.dtype;
    if (row->change.leaf_count != 0) h.leaf_count = row->change.leaf_count;
    if (row->change.first_leaf != 0) h.first_leaf = row->change.first_leaf;
    if (row->change.payload_bytes != 0) h.payload_bytes = row->change.payload_bytes;
    const size_t payload_bytes = row->payload_bytes != 0 ? row->payload_bytes : h.payload_bytes;
    ck_assert_msg(judge(h, payload_bytes) == row->status, "%s", row->what);
}

TEST(a_tile_may_have_fewer_elements_than_leaves_and_is_one_that_is_known)
{
    struct chunk_header push = a_push();
    push.payload_bytes = 4;
    ck_assert_int_eq(judge(push, 4), CAIRN_ERR_MALFORMED);
    push.tile = CAIRN_TILE_OWN;
    ck_assert_int_eq(judge(push, 4), CAIRN_OK);
    push.payload_bytes = 0;
    ck_assert_int_eq(judge(push, 0), CAIRN_ERR_MALFORMED);
    push.payload_bytes = 4;
    push.tile = CAIRN_TILE_BOX;
    ck_assert_int_eq(judge(push, 4), CAIRN_ERR_MALFORMED);
    struct chunk_header data = push; // from a shard: the number of the shard
    data.kind = CAIRN_CHUNK_DATA;
    data.plane = CAIRN_PLANE_WIRE;
    data.tile = 4711;
    ck_assert_int_eq(judge(data, 4), CAIRN_OK);
}

TEST(a_fetch_carries_a_box_if_it_asks_for_one_and_else_nothing)
{
    struct chunk_header fetch = a_push();
    fetch.kind = CAIRN_CHUNK_FETCH;
    fetch.plane = CAIRN_PLANE_WIRE;
    fetch.payload_bytes = 0;
    ck_assert_int_eq(judge(fetch, 0), CAIRN_OK);
    fetch.tile = CAIRN_TILE_OWN;
    ck_assert_int_eq(judge(fetch, 0), CAIRN_OK);
    fetch.tile = CAIRN_TILE_BOX;
    ck_assert_int_eq(judge(fetch, 0), CAIRN_ERR_MALFORMED);
    fetch.payload_bytes = 36;
    ck_assert_int_eq(judge(fetch, 36), CAIRN_OK);
    fetch.payload_bytes = 133;
    ck_assert_int_eq(judge(fetch, 133), CAIRN_ERR_MALFORMED);
    fetch.payload_bytes = 36;
    fetch.tile = CAIRN_TILE_BOX + 1;
    ck_assert_int_eq(judge(fetch, 36), CAIRN_ERR_MALFORMED);
}

TEST(a_put_of_a_box_carries_it_before_at_least_one_element)
{
    struct chunk_header put = a_push();
    put.kind = CAIRN_CHUNK_PUT;
    put.plane = CAIRN_PLANE_PARAM;
    put.dtype = CAIRN_F32;
    put.tile = CAIRN_TILE_BOX;
    put.leaf_count = 1;
    const size_t most = 4096 * 4 + 132;
    const size_t good[] = { 8, 36 + 4, most }, bad[] = { 0, 4, 7, most + 100 };
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        put.payload_bytes = good[i];
        ck_assert_int_eq(judge(put, good[i]), CAIRN_OK);
    }
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        put.payload_bytes = bad[i];
        ck_assert_int_eq(judge(put, bad[i]), CAIRN_ERR_MALFORMED);
    }
}

TEST(another_protocol_and_another_magic_are_told_apart)
{
    struct chunk_header header = a_push(), out;
    uint8_t bytes[CAIRN_CHUNK_HEADER_BYTES];
    chunk_encode(&header, bytes);
    bytes[5]++;
    ck_assert_int_eq(chunk_decode(bytes, sizeof bytes, header.payload_bytes, &out),
                     CAIRN_ERR_VERSION);
    bytes[0] ^= 1;
    ck_assert_int_eq(chunk_decode(bytes, sizeof bytes, header.payload_bytes, &out),
                     CAIRN_ERR_MALFORMED);
    ck_assert_int_eq(chunk_decode(bytes, 127, header.payload_bytes, &out), CAIRN_ERR_MALFORMED);
}

TEST(random_headers_never_pass_with_a_size_that_is_not_theirs)
{
    unsigned seed = 12345;
    for (int i = 0; i < 200000; i++) {
        uint8_t bytes[CAIRN_CHUNK_HEADER_BYTES];
        struct chunk_header out, good = a_push();
        chunk_encode(&good, bytes);
        for (int k = 0; k < 6; k++) bytes[4 + rand_r(&seed) % 124] = (uint8_t)rand_r(&seed);
        if (chunk_decode(bytes, sizeof bytes, good.payload_bytes, &out) != CAIRN_OK) continue;
        ck_assert_uint_eq(out.payload_bytes, good.payload_bytes);
        ck_assert_uint_lt(out.kind, CAIRN_CHUNK_KIND_COUNT);
    }
}

SUITE(60);
