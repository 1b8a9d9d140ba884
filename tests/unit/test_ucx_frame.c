/* What ucx nodes tell each other about memory, and bundles of messages, judged before anything is done with
 * them; and which lanes an endpoint has, read out of what UCX prints for people. */
#include <check.h>
#include <stdlib.h>
#include <string.h>

#include "proto/fabric/ucx.h"
#include "tests/support/suite.h"

TEST(a_frame_is_exactly_as_long_as_it_says)
{
    static const struct ucx_frame_region region = { .head = { UCX_FRAME_MAGIC, UCX_FRAME_REGION,
                                                              1 },
                                                    .bytes = 10,
                                                    .generation = 1,
                                                    .key_bytes = 12 };
    static const struct ucx_frame_reference reference = { .head = { UCX_FRAME_MAGIC,
                                                                    UCX_FRAME_REFERENCE, 1 },
                                                          .serial = 1,
                                                          .payload_bytes = 1,
                                                          .generation = 1,
                                                          .header_bytes = 12 };
    static const struct ucx_frame_hello hello = { .head = { UCX_FRAME_MAGIC, UCX_FRAME_HELLO, 1 },
                                                  .endpoint = 1,
                                                  .oldest = 1 };
    static const struct ucx_frame_hello bye = { .head = { UCX_FRAME_MAGIC, UCX_FRAME_BYE, 1 },
                                                .endpoint = 1 };
    const struct {
        const void *bytes;
        size_t size, rest;
    } frames[] = { { &region, sizeof region, 12 },
                   { &reference, sizeof reference, 12 },
                   { &hello, sizeof hello, 0 },
                   { &bye, sizeof bye, 0 } };
    for (unsigned i = 0; i < 4; i++) {
        uint8_t bytes[100] = { 0 };
        union ucx_frame frame;
        size_t size = 0;
        memcpy(bytes, frames[i].bytes, frames[i].size);
        const size_t whole = frames[i].size + frames[i].rest;
        for (size_t count = 0; count < sizeof bytes; count++)
            ck_assert_int_eq(ucx_frame_judge(bytes, count, &frame, &size) != UCX_FRAME_MALFORMED,
                             count == whole);
        ck_assert_uint_eq(size, frames[i].size);
        for (size_t at = 0; at < 8; at++) { // the magic, and the kind
            bytes[at] ^= 0x40;
            ck_assert_int_eq(ucx_frame_judge(bytes, whole, &frame, &size), UCX_FRAME_MALFORMED);
            bytes[at] ^= 0x40;
        }
    }
}

/* ---- bundles ---- */

/* Of messages with a header of 3 bytes and a payload of 0, 1, 2, ..; returns how long it is. */
static size_t make_bundle(uint8_t *bytes, uint32_t count)
{
    const struct ucx_frame_bundle head = { .magic = UCX_FRAME_MAGIC, .count = count };
    size_t at = sizeof head;
    memcpy(bytes, &head, sizeof head);
    for (uint32_t i = 0; i < count; i++) {
        const struct ucx_frame_bundled lengths = { .header_bytes = 3, .payload_bytes = i };
        memcpy(bytes + at, &lengths, sizeof lengths);
        at += ucx_frame_bundled_bytes(&lengths);
    }
    return at;
}

TEST(a_bundle_is_whole_or_none_of_it_is_taken)
{
    uint8_t bytes[600] = { 0 };
    for (uint32_t count = 0; count < 20; count++) {
        const size_t whole = make_bundle(bytes, count);
        for (size_t size = 0; size <= whole + 16; size++)
            ck_assert_int_eq(ucx_frame_is_bundle(bytes, size), count > 0 && size == whole);
        for (size_t at = 0; at < sizeof(struct ucx_frame_bundle); at++) { // the magic, the count
            bytes[at] ^= 0x40;
            ck_assert(!ucx_frame_is_bundle(bytes, whole));
            bytes[at] ^= 0x40;
        }
    }
}

TEST(lengths_that_lead_out_of_a_bundle_are_refused)
{
    static const struct ucx_frame_bundled wrong[] = {
        { 0, 8 },    { CAIRN_FABRIC_HEADER_MAX + 1, 0 }, { UINT32_MAX, 0 }, { 1, UINT32_MAX },
        { 3, 4096 }, { UINT32_MAX, UINT32_MAX },         { 3, 0xfffffff8u }
    };
    uint8_t bytes[600] = { 0 };
    const size_t whole = make_bundle(bytes, 4);
    for (unsigned i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        uint8_t damaged[sizeof bytes];
        struct ucx_frame_bundled lengths;
        size_t at = sizeof(struct ucx_frame_bundle);
        memcpy(damaged, bytes, sizeof damaged);
        memcpy(damaged + at, &wrong[i], sizeof wrong[i]);
        ck_assert(!ucx_frame_is_bundle(damaged, whole));
        ck_assert(!ucx_frame_next_bundled(damaged, whole, &at, &lengths));
        ck_assert_uint_eq(at, sizeof(struct ucx_frame_bundle));
    }
}

TEST(numbers_that_nobody_means_are_no_frame)
{
    const struct ucx_frame_region regions[] = {
        { .bytes = 0, .generation = 1, .key_bytes = 1 },
        { .bytes = 1, .generation = 0, .key_bytes = 1 },
        { .bytes = 1, .generation = 1, .key_bytes = 1, .slot = UCX_FRAME_SLOTS },
        { .bytes = 2, .generation = 1, .key_bytes = 1, .address = UINT64_MAX - 1 },
    };
    union ucx_frame frame;
    size_t size;
    for (unsigned i = 0; i < 4; i++) {
        uint8_t bytes[sizeof regions[i] + 1] = { 0 };
        struct ucx_frame_region region = regions[i];
        region.head = ucx_frame_head(UCX_FRAME_REGION, 1);
        memcpy(bytes, &region, sizeof region);
        ck_assert_int_eq(ucx_frame_judge(bytes, sizeof bytes, &frame, &size), UCX_FRAME_MALFORMED);
    }
    struct ucx_frame_region longest = { .head = ucx_frame_head(UCX_FRAME_REGION, 1),
                                        .bytes = 1,
                                        .generation = 1,
                                        .key_bytes = UCX_FRAME_KEY_MAX + 1 };
    uint8_t bytes[UCX_FRAME_MAX + 1] = { 0 };
    memcpy(bytes, &longest, sizeof longest);
    ck_assert_int_eq(ucx_frame_judge(bytes, sizeof bytes, &frame, &size), UCX_FRAME_MALFORMED);
    const struct ucx_frame_hello hellos[] = {
        { .head = ucx_frame_head(UCX_FRAME_HELLO, 1), .endpoint = 3 },
        { .head = ucx_frame_head(UCX_FRAME_HELLO, 1), .endpoint = 3, .oldest = 4 },
        { .head = ucx_frame_head(UCX_FRAME_HELLO, 1), .endpoint = 3, .oldest = 3, .zero[5] = 1 },
        { .head = ucx_frame_head(UCX_FRAME_BYE, 1), .endpoint = 3, .oldest = 3 },
        { .head = ucx_frame_head(UCX_FRAME_BYE, 1), .endpoint = 3, .reads = 1 },
    };
    for (unsigned i = 0; i < 5; i++)
        ck_assert_int_eq(ucx_frame_judge(&hellos[i], sizeof hellos[i], &frame, &size),
                         UCX_FRAME_MALFORMED);
    const struct ucx_frame_release why = { .head = ucx_frame_head(UCX_FRAME_DECLINE, 1), .why = 2 };
    ck_assert_int_eq(ucx_frame_judge(&why, sizeof why, &frame, &size), UCX_FRAME_MALFORMED);
}

#define LANE(n, resource, uses) \
    "#                 lane[" n "]:  " resource " md[1]      -> md[1]/x/sysdev[255] " uses "\n"

static const struct {
    const char *text;
    bool is_native;
} lanes[] = {
    { "", false },
    { LANE("0", "0:tcp/lo.0", "am am_bw#0 wireup"), false },
    { LANE("0", "0:tcp/lo.0", "rma_bw#0 am am_bw#0 wireup"), false },
    { LANE("0", "6:rc_mlx5/mlx5_0:1.0", "rma#0 rma_bw#0 am am_bw#0 wireup{ud_mlx5/mlx5_0:1}"),
      true },
    { LANE("0", "0:tcp/eth0.0", "am am_bw#0") LANE("1", "14:rc_verbs/mlx4_0:1.0", "rma_bw#0"),
      true },
    { LANE("0", "4:dc_mlx5/mlx5_0:1.0", "rma_bw#0 am am_bw#0 wireup keepalive"), true },
    { LANE("0", "4:dc_mlx5/mlx5_0:1.0", "am am_bw#0 wireup"), false },          // it sends only
    { LANE("0", "5:ud_mlx5/mlx5_0:1.0", "am am_bw#0 rma_bw#0 wireup"), false }, // ud reads nothing
    { LANE("0", "1:sysv/memory.0", "am am_bw#0") LANE("1", "2:cma/memory.0", "rma_bw#0"), false },
    { LANE("0", "0:tcp/rc_mlx5.0", "rma_bw#0 am"), false }, // a device of that name
    { "#   peer: rc_mlx5/mlx5_0:1.0 rma_bw#0\n", false },
    { "lane[0]: 3:rc_mlx5/", false },
    { "lane[", false },
    { "lane[0]:", false },
    { "lane[0]: 3:rc_mlx5\nlane[1]: 2:tcp/lo.0 rma#0\n", false },
};

TEST_EACH(lanes_that_read_are_told_from_those_that_do_not, 0, sizeof lanes / sizeof *lanes)
{
    ck_assert_int_eq(ucx_lanes_are_native(lanes[_i].text), lanes[_i].is_native);
}

SUITE(30);
