#include "server/core/decision.h"

#include <assert.h>
#include <float.h>
#include <string.h>

/* Layout of the head, little-endian: u32 magic, u32 group_count, f64 grad_norm, f64 clip_scale, f64 lr,
 * f64 loss_scale, u32 good_rounds, u32 flags. */
#define PAYLOAD_MAGIC 0x31505243u /* "CRP1" */
#define FLAG_FINITE   1u
#define FLAG_FAIL     2u
#define FLAG_STATE    4u /* the end is the client state, not empty */
#define FLAG_SKIPS    8u /* behind the groups: u64 all, u64 revision, u32 in_row; without it none */
#define FLAG_DRIVEN   16u /* behind those: u32 count, f64 each; without it none */
#define FLAG_MISSED   32u /* behind those: missed.h; without it nothing */
#define FLAGS         63u

static void put_u32(uint8_t *out, uint32_t x)
{
    for (int i = 0; i < 4; i++) out[i] = (uint8_t)(x >> (8 * i));
}

static void put_u64(uint8_t *out, uint64_t x)
{
    put_u32(out, (uint32_t)x);
    put_u32(out + 4, (uint32_t)(x >> 32));
}

static void put_f64(uint8_t *out, double x)
{
    put_u64(out, cairn_f64_bits(x));
}

static uint32_t get_u32(const uint8_t *in)
{
    return (uint32_t)in[0] | (uint32_t)in[1] << 8 | (uint32_t)in[2] << 16 | (uint32_t)in[3] << 24;
}

static uint64_t get_u64(const uint8_t *in)
{
    return (uint64_t)get_u32(in) | (uint64_t)get_u32(in + 4) << 32;
}

static double get_f64(const uint8_t *in)
{
    return cairn_f64_of_bits(get_u64(in));
}

static void put_skips(uint8_t *out, const struct cairn_skips *skips)
{
    put_u64(out, skips->all);
    put_u64(out + 8, skips->revision);
    put_u32(out + 16, skips->in_row);
}

static struct cairn_skips get_skips(const uint8_t *in)
{
    return (struct cairn_skips) { .all = get_u64(in),
                                  .revision = get_u64(in + 8),
                                  .in_row = get_u32(in + 16) };
}

static void put_driven(uint8_t *out, const struct cairn_payload *head)
{
    put_u32(out, head->driven_count);
    for (uint32_t i = 0; i < head->driven_count; i++) put_f64(out + 4 + 8 * i, head->driven[i]);
}

/* Of the `rest` behind the skips; false: it does not fit, or a rate is none. */
static bool judge_driven(const uint8_t *in, size_t rest, uint32_t *count_out)
{
    if (rest < 4) return false;
    const uint32_t count = get_u32(in);
    if (count == 0 || count > (rest - 4) / 8) return false;
    for (uint32_t i = 0; i < count; i++) {
        const double lr = get_f64(in + 4 + 8 * (size_t)i);
        if (!(lr >= 0 && lr <= DBL_MAX)) return false;
    }
    *count_out = count;
    return true;
}

size_t cairn_payload_encode(const struct cairn_payload *head,
                            const struct cairn_group_scalars *groups, uint8_t *out)
{
    const size_t groups_end = CAIRN_PAYLOAD_BYTES(head->group_count);
    const size_t skips_end = groups_end + (head->skips.all > 0 ? CAIRN_PAYLOAD_SKIPS_BYTES : 0);
    const size_t driven_end = skips_end + CAIRN_PAYLOAD_DRIVEN_BYTES(head->driven_count);
    const size_t fixed_bytes = driven_end + head->missed.size;
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
                          (head->skips.all > 0 ? FLAG_SKIPS : 0) |
                          (head->driven_count > 0 ? FLAG_DRIVEN : 0) |
                          (head->missed.size > 0 ? FLAG_MISSED : 0) |
                          (head->state_bytes > 0 ? FLAG_STATE : 0));
    if (head->skips.all > 0) put_skips(out + groups_end, &head->skips);
    if (head->driven_count > 0) put_driven(out + skips_end, head);
    if (head->missed.size > 0) memcpy(out + driven_end, head->missed.bytes, head->missed.size);
    for (uint32_t i = 0; i < head->group_count; i++)
        cairn_group_scalars_encode(&groups[i], out + CAIRN_PAYLOAD_BYTES(i));
    return fixed_bytes + head->state_bytes;
}

size_t cairn_payload_with_missed(const void *bytes, const struct cairn_payload *head,
                                 const struct cairn_missed *missed, uint8_t *out)
{
    const size_t before = CAIRN_PAYLOAD_BYTES(head->group_count) +
                          (head->skips.all > 0 ? CAIRN_PAYLOAD_SKIPS_BYTES : 0) +
                          CAIRN_PAYLOAD_DRIVEN_BYTES(head->driven_count);
    memcpy(out, bytes, before);
    const uint32_t flags = get_u32(out + 44) & ~FLAG_MISSED;
    put_u32(out + 44, flags | (missed->size > 0 ? FLAG_MISSED : 0));
    if (missed->size > 0) memcpy(out + before, missed->bytes, missed->size);
    if (head->state_bytes > 0) memcpy(out + before + missed->size, head->state, head->state_bytes);
    return before + missed->size + head->state_bytes;
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
    const size_t skips_bytes = (flags & FLAG_SKIPS) != 0 ? CAIRN_PAYLOAD_SKIPS_BYTES : 0;
    const size_t rest = tail - (size_t)groups * CAIRN_GROUP_SCALARS_BYTES;
    if ((flags & ~FLAGS) != 0 || rest < skips_bytes) return CAIRN_ERR_MALFORMED;
    const uint8_t *driven = in + CAIRN_PAYLOAD_BYTES(groups) + skips_bytes;
    uint32_t driven_count = 0;
    if ((flags & FLAG_DRIVEN) != 0 && !judge_driven(driven, rest - skips_bytes, &driven_count))
        return CAIRN_ERR_MALFORMED;
    const size_t driven_bytes = CAIRN_PAYLOAD_DRIVEN_BYTES(driven_count);
    struct cairn_missed missed = { .bytes = NULL };
    if ((flags & FLAG_MISSED) != 0 &&
        cairn_missed_decode(driven + driven_bytes, rest - skips_bytes - driven_bytes, &missed) !=
            CAIRN_OK)
        return CAIRN_ERR_MALFORMED;
    const size_t state_bytes = rest - skips_bytes - driven_bytes - missed.size;
    if ((state_bytes > 0) != ((flags & FLAG_STATE) != 0)) return CAIRN_ERR_MALFORMED;
    struct cairn_skips skips = { 0 };
    if (skips_bytes > 0) {
        skips = get_skips(in + CAIRN_PAYLOAD_BYTES(groups));
        if (skips.all == 0 || skips.in_row > skips.all) return CAIRN_ERR_MALFORMED;
    }
    *head_out = (struct cairn_payload) {
        .grad_norm = get_f64(in + 8),
        .clip_scale = get_f64(in + 16),
        .lr = get_f64(in + 24),
        .loss_scale = get_f64(in + 32),
        .good_rounds = get_u32(in + 40),
        .finite = (flags & FLAG_FINITE) != 0,
        .fail = (flags & FLAG_FAIL) != 0,
        .skips = skips,
        .group_count = groups,
        .driven_count = driven_count,
        .missed = missed,
        .state = state_bytes > 0 ? driven + driven_bytes + missed.size : NULL,
        .state_bytes = state_bytes,
    };
    return CAIRN_OK;
}

void cairn_payload_set_loss_scale(uint8_t *bytes, double loss_scale)
{
    put_f64(bytes + 32, loss_scale);
    put_u32(bytes + 40, 0); // rounds that were good with it
}

cairn_status cairn_payload_group(const void *bytes, size_t bytes_len, uint32_t group,
                                 struct cairn_group_scalars *scalars_out)
{
    assert(CAIRN_PAYLOAD_BYTES((size_t)group + 1) <= bytes_len);
    const uint8_t *in = (const uint8_t *)bytes + CAIRN_PAYLOAD_BYTES(group);
    return cairn_group_scalars_decode(in, CAIRN_GROUP_SCALARS_BYTES, scalars_out);
}

double cairn_payload_driven(const void *bytes, const struct cairn_payload *head, uint32_t i)
{
    assert(i < head->driven_count);
    const size_t skips_bytes = head->skips.all > 0 ? CAIRN_PAYLOAD_SKIPS_BYTES : 0;
    const uint8_t *in = (const uint8_t *)bytes + CAIRN_PAYLOAD_BYTES(head->group_count);
    return get_f64(in + skips_bytes + 4 + 8 * (size_t)i);
}
