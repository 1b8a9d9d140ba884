#include "server/core/decision.h"

#include <assert.h>
#include <string.h>

/* Layout of the head, little-endian: u32 magic, u32 group_count, f64 grad_norm, f64 clip_scale, f64 lr,
 * f64 loss_scale, u32 good_rounds, u32 flags. */
#define PAYLOAD_MAGIC 0x31505243u /* "CRP1" */
#define FLAG_FINITE   1u
#define FLAG_FAIL     2u
#define FLAG_STATE    4u /* what follows the groups is the client state, not empty */

static void put_u32(uint8_t *out, uint32_t x)
{
    for (int i = 0; i < 4; i++) out[i] = (uint8_t)(x >> (8 * i));
}

static void put_f64(uint8_t *out, double x)
{
    const uint64_t bits = cairn_f64_bits(x);
    put_u32(out, (uint32_t)bits);
    put_u32(out + 4, (uint32_t)(bits >> 32));
}

static uint32_t get_u32(const uint8_t *in)
{
    return (uint32_t)in[0] | (uint32_t)in[1] << 8 | (uint32_t)in[2] << 16 | (uint32_t)in[3] << 24;
}

static double get_f64(const uint8_t *in)
{
    return cairn_f64_of_bits((uint64_t)get_u32(in) | (uint64_t)get_u32(in + 4) << 32);
}

size_t cairn_payload_encode(const struct cairn_payload *head,
                            const struct cairn_group_scalars *groups, uint8_t *out)
{
    const size_t fixed_bytes = CAIRN_PAYLOAD_BYTES(head->group_count);
    // First: it may be where the head of the new payload goes.
    if (head->state_bytes > 0) memmove(out + fixed_bytes, head->state, head->state_bytes);
    put_u32(out, PAYLOAD_MAGIC);
    put_u32(out + 4, head->group_count);
    put_f64(out + 8, head->grad_norm);
    put_f64(out + 16, head->clip_scale);
    put_f64(out + 24, head->lr);
    put_f64(out + 32, head->loss_scale);
    put_u32(out + 40, head->good_rounds);
    put_u32(out + 44, (head->finite ? FLAG_FINITE : 0) | (head->fail ? FLAG_FAIL : 0) |
                          (head->state_bytes > 0 ? FLAG_STATE : 0));
    for (uint32_t i = 0; i < head->group_count; i++)
        cairn_group_scalars_encode(&groups[i], out + CAIRN_PAYLOAD_BYTES(i));
    return fixed_bytes + head->state_bytes;
}

cairn_status cairn_payload_decode(const void *bytes, size_t bytes_len,
                                  struct cairn_payload *head_out)
{
    const uint8_t *in = bytes;
    if (bytes_len < CAIRN_PAYLOAD_HEAD_BYTES || get_u32(in) != PAYLOAD_MAGIC)
        return CAIRN_ERR_MALFORMED;
    const uint32_t groups = get_u32(in + 4), flags = get_u32(in + 44);
    const size_t tail = bytes_len - CAIRN_PAYLOAD_HEAD_BYTES;
    if (groups > tail / CAIRN_GROUP_SCALARS_BYTES) return CAIRN_ERR_MALFORMED;
    const size_t state_bytes = tail - (size_t)groups * CAIRN_GROUP_SCALARS_BYTES;
    if ((flags & ~(FLAG_FINITE | FLAG_FAIL | FLAG_STATE)) != 0) return CAIRN_ERR_MALFORMED;
    if ((state_bytes > 0) != ((flags & FLAG_STATE) != 0)) return CAIRN_ERR_MALFORMED;
    *head_out = (struct cairn_payload) {
        .grad_norm = get_f64(in + 8),
        .clip_scale = get_f64(in + 16),
        .lr = get_f64(in + 24),
        .loss_scale = get_f64(in + 32),
        .good_rounds = get_u32(in + 40),
        .finite = (flags & FLAG_FINITE) != 0,
        .fail = (flags & FLAG_FAIL) != 0,
        .group_count = groups,
        .state = state_bytes > 0 ? in + CAIRN_PAYLOAD_BYTES(groups) : NULL,
        .state_bytes = state_bytes,
    };
    return CAIRN_OK;
}

cairn_status cairn_payload_group(const void *bytes, size_t bytes_len, uint32_t group,
                                 struct cairn_group_scalars *scalars_out)
{
    assert(CAIRN_PAYLOAD_BYTES((size_t)group + 1) <= bytes_len);
    const uint8_t *in = (const uint8_t *)bytes + CAIRN_PAYLOAD_BYTES(group);
    return cairn_group_scalars_decode(in, CAIRN_GROUP_SCALARS_BYTES, scalars_out);
}
