#include "server/core/decision.h"

#include <assert.h>
#include <float.h>
#include <string.h>

#include "proto/base/little_endian.h"

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

static void put_f64(uint8_t *out, double x)
{
    cairn_le_put(out, cairn_f64_bits(x), 8);
}

static double get_f64(const uint8_t *in)
{
    return cairn_f64_of_bits(cairn_le_get(in, 8));
}

static void put_skips(uint8_t *out, const struct cairn_skips *skips)
{
    cairn_le_put(out, skips->all, 8);
    cairn_le_put(out + 8, skips->revision, 8);
    cairn_le_put(out + 16, skips->in_row, 4);
}

static struct cairn_skips get_skips(const uint8_t *in)
{
    return (struct cairn_skips) { .all = cairn_le_get(in, 8),
                                  .revision = cairn_le_get(in + 8, 8),
                                  .in_row = (uint32_t)cairn_le_get(in + 16, 4) };
}

static void put_driven(uint8_t *out, const struct cairn_payload *head)
{
    cairn_le_put(out, head->driven_count, 4);
    for (uint32_t i = 0; i < head->driven_count; i++) put_f64(out + 4 + 8 * i, head->driven[i]);
}

/* Judges the driven rates in the `rest` bytes behind the skips; false: they do not fit, or one
 * is no valid rate. */
static bool judge_driven(const uint8_t *in, size_t rest, uint32_t *count_out)
{
    if (rest < 4) return false;
    const uint32_t count = (uint32_t)cairn_le_get(in, 4);
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
    cairn_le_put(out, PAYLOAD_MAGIC, 4);
    cairn_le_put(out + 4, head->group_count, 4);
    put_f64(out + 8, head->grad_norm);
    put_f64(out + 16, head->clip_scale);
    put_f64(out + 24, head->lr);
    put_f64(out + 32, head->loss_scale);
    cairn_le_put(out + 40, head->good_rounds, 4);
    cairn_le_put(
        out + 44,
        (head->finite ? FLAG_FINITE : 0) | (head->fail ? FLAG_FAIL : 0) |
            (head->skips.all > 0 ? FLAG_SKIPS : 0) | (head->driven_count > 0 ? FLAG_DRIVEN : 0) |
            (head->missed.size > 0 ? FLAG_MISSED : 0) | (head->state_bytes > 0 ? FLAG_STATE : 0),
        4);
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
    const uint32_t flags = (uint32_t)cairn_le_get(out + 44, 4) & ~FLAG_MISSED;
    cairn_le_put(out + 44, flags | (missed->size > 0 ? FLAG_MISSED : 0), 4);
    if (missed->size > 0) memcpy(out + before, missed->bytes, missed->size);
    if (head->state_bytes > 0) memcpy(out + before + missed->size, head->state, head->state_bytes);
    return before + missed->size + head->state_bytes;
}

cairn_status cairn_payload_decode(const void *bytes, size_t bytes_len,
                                  struct cairn_payload *head_out)
{
    const uint8_t *in = bytes;
    if (bytes_len < CAIRN_PAYLOAD_HEAD_BYTES || (uint32_t)cairn_le_get(in, 4) != PAYLOAD_MAGIC)
        return CAIRN_ERR_MALFORMED;
    const uint32_t groups = (uint32_t)cairn_le_get(in + 4, 4),
                   flags = (uint32_t)cairn_le_get(in + 44, 4);
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
        .good_rounds = (uint32_t)cairn_le_get(in + 40, 4),
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
    cairn_le_put(bytes + 40, 0, 4); // rounds that were good with it
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
