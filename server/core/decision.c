#include "server/core/decision.h"

#include <assert.h>
#include <float.h>
#include <string.h>

#include "proto/base/text.h"
#include "proto/spec/spec.h"

/* Layout of the head, little-endian: u32 magic, u32 group_count, f64 grad_norm, f64 clip_scale, f64 lr,
 * f64 loss_scale, u32 good_rounds, u32 flags. */
#define PAYLOAD_MAGIC 0x31505243u /* "CRP1" */
#define FLAG_FINITE   1u
#define FLAG_FAIL     2u
#define FLAG_STATE    4u /* after the missed steps: the client state; absent: there is none */
#define FLAG_SKIPS    8u /* after the groups: u64 all, u64 revision, u32 in_row; absent: no skips */
#define FLAG_DRIVEN   16u /* after the skips: u32 count, f64 each; absent: no driven groups */
#define FLAG_MISSED   32u /* after the driven rates: see decision.h; absent: nothing was missed */
#define FLAGS         63u

static void put_f64(uint8_t *out, double x)
{
    le_put(out, f64_bits(x), 8);
}

static double get_f64(const uint8_t *in)
{
    return f64_of_bits(le_get(in, 8));
}

static void put_skips(uint8_t *out, const struct skips *skips)
{
    le_put(out, skips->all, 8);
    le_put(out + 8, skips->revision, 8);
    le_put(out + 16, skips->in_row, 4);
}

static struct skips get_skips(const uint8_t *in)
{
    return (struct skips) { .all = le_get(in, 8),
                            .revision = le_get(in + 8, 8),
                            .in_row = (uint32_t)le_get(in + 16, 4) };
}

static void put_driven(uint8_t *out, const struct payload *head)
{
    le_put(out, head->driven_count, 4);
    for (uint32_t i = 0; i < head->driven_count; i++) put_f64(out + 4 + 8 * i, head->driven[i]);
}

/* Checks the driven rates in the `rest` bytes after the skips. Returns false if they do not fit, or if a
 * rate is not valid. */
static bool judge_driven(const uint8_t *in, size_t rest, uint32_t *count_out)
{
    if (rest < 4) return false;
    const uint32_t count = (uint32_t)le_get(in, 4);
    if (count == 0 || count > (rest - 4) / 8) return false;
    for (uint32_t i = 0; i < count; i++) {
        const double lr = get_f64(in + 4 + 8 * (size_t)i);
        if (!(lr >= 0 && lr <= DBL_MAX)) return false;
    }
    *count_out = count;
    return true;
}

size_t payload_encode(const struct payload *head, const struct group_scalars *groups, uint8_t *out)
{
    const size_t groups_end = CAIRN_PAYLOAD_BYTES(head->group_count);
    const size_t skips_end = groups_end + (head->skips.all > 0 ? CAIRN_PAYLOAD_SKIPS_BYTES : 0);
    const size_t driven_end = skips_end + CAIRN_PAYLOAD_DRIVEN_BYTES(head->driven_count);
    const size_t fixed_bytes = driven_end + head->missed.size;
    // Move the state first: it may lie where the head of the new payload is written.
    if (head->state_bytes > 0) memmove(out + fixed_bytes, head->state, head->state_bytes);
    le_put(out, PAYLOAD_MAGIC, 4);
    le_put(out + 4, head->group_count, 4);
    put_f64(out + 8, head->grad_norm);
    put_f64(out + 16, head->clip_scale);
    put_f64(out + 24, head->lr);
    put_f64(out + 32, head->loss_scale);
    le_put(out + 40, head->good_rounds, 4);
    le_put(out + 44,
           (head->finite ? FLAG_FINITE : 0) | (head->fail ? FLAG_FAIL : 0) |
               (head->skips.all > 0 ? FLAG_SKIPS : 0) | (head->driven_count > 0 ? FLAG_DRIVEN : 0) |
               (head->missed.size > 0 ? FLAG_MISSED : 0) | (head->state_bytes > 0 ? FLAG_STATE : 0),
           4);
    if (head->skips.all > 0) put_skips(out + groups_end, &head->skips);
    if (head->driven_count > 0) put_driven(out + skips_end, head);
    if (head->missed.size > 0) memcpy(out + driven_end, head->missed.bytes, head->missed.size);
    for (uint32_t i = 0; i < head->group_count; i++)
        group_scalars_encode(&groups[i], out + CAIRN_PAYLOAD_BYTES(i));
    return fixed_bytes + head->state_bytes;
}

size_t payload_with_missed(const void *bytes, const struct payload *head,
                           const struct missed *missed, uint8_t *out)
{
    const size_t before = CAIRN_PAYLOAD_BYTES(head->group_count) +
                          (head->skips.all > 0 ? CAIRN_PAYLOAD_SKIPS_BYTES : 0) +
                          CAIRN_PAYLOAD_DRIVEN_BYTES(head->driven_count);
    memcpy(out, bytes, before);
    const uint32_t flags = (uint32_t)le_get(out + 44, 4) & ~FLAG_MISSED;
    le_put(out + 44, flags | (missed->size > 0 ? FLAG_MISSED : 0), 4);
    if (missed->size > 0) memcpy(out + before, missed->bytes, missed->size);
    if (head->state_bytes > 0) memcpy(out + before + missed->size, head->state, head->state_bytes);
    return before + missed->size + head->state_bytes;
}

cairn_status payload_decode(const void *bytes, size_t bytes_len, struct payload *head_out)
{
    const uint8_t *in = bytes;
    if (bytes_len < CAIRN_PAYLOAD_HEAD_BYTES || (uint32_t)le_get(in, 4) != PAYLOAD_MAGIC)
        return CAIRN_ERR_MALFORMED;
    const uint32_t groups = (uint32_t)le_get(in + 4, 4), flags = (uint32_t)le_get(in + 44, 4);
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
    struct missed missed = { .bytes = NULL };
    if ((flags & FLAG_MISSED) != 0 &&
        missed_decode(driven + driven_bytes, rest - skips_bytes - driven_bytes, &missed) !=
            CAIRN_OK)
        return CAIRN_ERR_MALFORMED;
    const size_t state_bytes = rest - skips_bytes - driven_bytes - missed.size;
    if ((state_bytes > 0) != ((flags & FLAG_STATE) != 0)) return CAIRN_ERR_MALFORMED;
    struct skips skips = { 0 };
    if (skips_bytes > 0) {
        skips = get_skips(in + CAIRN_PAYLOAD_BYTES(groups));
        if (skips.all == 0 || skips.in_row > skips.all) return CAIRN_ERR_MALFORMED;
    }
    *head_out = (struct payload) {
        .grad_norm = get_f64(in + 8),
        .clip_scale = get_f64(in + 16),
        .lr = get_f64(in + 24),
        .loss_scale = get_f64(in + 32),
        .good_rounds = (uint32_t)le_get(in + 40, 4),
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

void payload_set_loss_scale(uint8_t *bytes, double loss_scale)
{
    put_f64(bytes + 32, loss_scale);
    le_put(bytes + 40, 0, 4); // good_rounds: no round was applied with this loss scale yet
}

cairn_status payload_group(const void *bytes, size_t bytes_len, uint32_t group,
                           struct group_scalars *scalars_out)
{
    assert(CAIRN_PAYLOAD_BYTES((size_t)group + 1) <= bytes_len);
    const uint8_t *in = (const uint8_t *)bytes + CAIRN_PAYLOAD_BYTES(group);
    return group_scalars_decode(in, CAIRN_GROUP_SCALARS_BYTES, scalars_out);
}

double payload_driven(const void *bytes, const struct payload *head, uint32_t i)
{
    assert(i < head->driven_count);
    const size_t skips_bytes = head->skips.all > 0 ? CAIRN_PAYLOAD_SKIPS_BYTES : 0;
    const uint8_t *in = (const uint8_t *)bytes + CAIRN_PAYLOAD_BYTES(head->group_count);
    return get_f64(in + skips_bytes + 4 + 8 * (size_t)i);
}

/* ==== missed ==== */

_Static_assert(CAIRN_SPEC_LEAVE_MAX <= CAIRN_MISSED_RUNS_MAX, "each may be a run of its own");

#define CLASS_FLAGS ((uint32_t)CAIRN_MISSED_THIS | (uint32_t)CAIRN_MISSED_FIRST)

static uint32_t get_u32(const uint8_t *in)
{
    return (uint32_t)le_get(in, 4);
}

static void put_class(uint8_t *out, const struct missed_class *c)
{
    le_put(out, c->steps, 8);
    le_put(out + 8, c->group, 4);
    le_put(out + 12, c->flags, 4);
    le_put(out + 16, c->neg_step_size, 4);
    le_put(out + 20, c->sqrt_bc2, 4);
}

static struct missed_class get_class(const uint8_t *in)
{
    return (struct missed_class) { .steps = le_get(in, 8),
                                   .group = get_u32(in + 8),
                                   .flags = get_u32(in + 12),
                                   .neg_step_size = get_u32(in + 16),
                                   .sqrt_bc2 = get_u32(in + 20) };
}

static const uint8_t *class_at(const uint8_t *bytes, uint32_t c)
{
    return bytes + CAIRN_MISSED_HEAD_BYTES + (size_t)c * CAIRN_MISSED_CLASS_BYTES;
}

static bool finite_bits(uint32_t bits)
{
    return (bits & 0x7f800000u) != 0x7f800000u;
}

static bool class_ok(const struct missed_class *c)
{
    return c->steps > 0 && (c->flags & ~CLASS_FLAGS) == 0 && finite_bits(c->neg_step_size) &&
           finite_bits(c->sqrt_bc2);
}

/* ---- read ---- */

cairn_status missed_decode(const uint8_t *bytes, size_t bytes_len, struct missed *missed_out)
{
    if (bytes_len < CAIRN_MISSED_HEAD_BYTES) return CAIRN_ERR_MALFORMED;
    const uint32_t classes = get_u32(bytes), runs = get_u32(bytes + 4);
    if (classes == 0 || classes > CAIRN_MISSED_RUNS_MAX || runs == 0 ||
        runs > CAIRN_MISSED_RUNS_MAX)
        return CAIRN_ERR_MALFORMED;
    const size_t size = CAIRN_MISSED_HEAD_BYTES + (size_t)classes * CAIRN_MISSED_CLASS_BYTES +
                        (size_t)runs * CAIRN_MISSED_RUN_BYTES;
    if (size > bytes_len) return CAIRN_ERR_MALFORMED;
    for (uint32_t i = 0; i < classes; i++) {
        const struct missed_class c = get_class(class_at(bytes, i));
        if (!class_ok(&c)) return CAIRN_ERR_MALFORMED;
    }
    const uint8_t *run = class_at(bytes, classes);
    for (uint32_t i = 0; i < runs; i++, run += CAIRN_MISSED_RUN_BYTES) {
        const bool after = i == 0 || get_u32(run) > get_u32(run - CAIRN_MISSED_RUN_BYTES);
        if (!after || get_u32(run + 4) > classes) return CAIRN_ERR_MALFORMED;
    }
    *missed_out = (struct missed) { bytes, size };
    return CAIRN_OK;
}

uint32_t missed_class_count(const struct missed *missed)
{
    return missed->size > 0 ? get_u32(missed->bytes) : 0;
}

struct missed_class missed_class_at(const struct missed *missed, uint32_t c)
{
    assert(c < missed_class_count(missed));
    return get_class(class_at(missed->bytes, c));
}

uint32_t missed_class_of(const struct missed *missed, uint32_t tensor)
{
    if (missed->size == 0) return CAIRN_MISSED_NONE;
    const uint8_t *runs = class_at(missed->bytes, get_u32(missed->bytes));
    // bounds of the number of runs that begin at the tensor or before it
    uint32_t least = 0, most = get_u32(missed->bytes + 4);
    while (least < most) {
        const uint32_t middle = least + (most - least) / 2;
        if (get_u32(runs + (size_t)middle * CAIRN_MISSED_RUN_BYTES) <= tensor)
            least = middle + 1;
        else
            most = middle;
    }
    if (least == 0) return CAIRN_MISSED_NONE;
    const uint32_t c = get_u32(runs + (size_t)(least - 1) * CAIRN_MISSED_RUN_BYTES + 4);
    return c > 0 ? c - 1 : CAIRN_MISSED_NONE;
}

uint64_t missed_steps(const struct missed *missed, uint32_t tensor)
{
    const uint32_t c = missed_class_of(missed, tensor);
    return c == CAIRN_MISSED_NONE ? 0 : missed_class_at(missed, c).steps;
}

struct group_scalars missed_scalars(const struct missed_class *class_,
                                    const struct group_scalars *group)
{
    struct group_scalars scalars = *group;
    scalars.flags &= ~(uint32_t)CAIRN_SCALAR_FIRST_STEP;
    if ((class_->flags & CAIRN_MISSED_FIRST) != 0) scalars.flags |= CAIRN_SCALAR_FIRST_STEP;
    scalars.neg_step_size = class_->neg_step_size;
    scalars.sqrt_bc2 = class_->sqrt_bc2;
    return scalars;
}

/* ---- write ---- */

void missed_begin(struct missed_writer *writer, uint8_t *out, size_t tensors)
{
    *writer = (struct missed_writer) { .out = out, .room = (uint32_t)CAIRN_MISSED_RUNS(tensors) };
}

/* Returns the place of a run. While classes may still be added, the runs lie after the room for all
 * classes; missed_end moves them to their final place. */
static uint8_t *run_at(const struct missed_writer *writer, uint32_t run)
{
    return writer->out + CAIRN_MISSED_HEAD_BYTES + (size_t)writer->room * CAIRN_MISSED_CLASS_BYTES +
           (size_t)run * CAIRN_MISSED_RUN_BYTES;
}

/* Returns the number of the class, which is at least 1; 0 if there is no room. The list may contain a class
 * twice: this costs room, and changes nothing else. */
static uint32_t find_class(struct missed_writer *writer, const struct missed_class *c)
{
    const uint64_t hash = (c->steps ^ (uint64_t)c->group << 40 ^ (uint64_t)c->flags << 32) *
                          0x9e3779b97f4a7c15;
    uint32_t *cached = &writer->cache[hash >> 56];
    if (*cached != 0) {
        const struct missed_class there = missed_written(writer, *cached - 1);
        if (there.steps == c->steps && there.group == c->group && there.flags == c->flags)
            return *cached;
    }
    if (writer->class_count == writer->room) {
        writer->is_full = true;
        return 0;
    }
    put_class((uint8_t *)(uintptr_t)class_at(writer->out, writer->class_count), c);
    return *cached = ++writer->class_count;
}

void missed_put(struct missed_writer *writer, uint32_t tensor, uint64_t steps, uint32_t group,
                bool this_step)
{
    const struct missed_class c = { .steps = steps,
                                    .group = group,
                                    .flags = this_step ? CAIRN_MISSED_THIS : 0 };
    if (writer->is_full) return;
    const uint32_t number = steps > 0 ? find_class(writer, &c) : 0;
    // the run continues if the tensor has the class of the tensor before it (class 0 before the first
    // tensor)
    if (number == writer->run_class) return;
    if (writer->run_count == writer->room) writer->is_full = true;
    if (writer->is_full) return;
    uint8_t *run = run_at(writer, writer->run_count++);
    le_put(run, tensor, 4);
    le_put(run + 4, number, 4);
    writer->run_class = number;
}

struct missed_class missed_written(const struct missed_writer *writer, uint32_t c)
{
    assert(c < writer->class_count);
    return get_class(class_at(writer->out, c));
}

void missed_set(struct missed_writer *writer, uint32_t c, const struct group_scalars *scalars)
{
    struct missed_class one = missed_written(writer, c);
    if ((scalars->flags & CAIRN_SCALAR_FIRST_STEP) != 0) one.flags |= CAIRN_MISSED_FIRST;
    one.neg_step_size = scalars->neg_step_size;
    one.sqrt_bc2 = scalars->sqrt_bc2;
    put_class((uint8_t *)(uintptr_t)class_at(writer->out, c), &one);
}

struct missed missed_end(struct missed_writer *writer)
{
    if (writer->class_count == 0) return (struct missed) { .bytes = NULL };
    assert(!writer->is_full);
    le_put(writer->out, writer->class_count, 4);
    le_put(writer->out + 4, writer->run_count, 4);
    uint8_t *behind = (uint8_t *)(uintptr_t)class_at(writer->out, writer->class_count);
    memmove(behind, run_at(writer, 0), (size_t)writer->run_count * CAIRN_MISSED_RUN_BYTES);
    return (struct missed) { writer->out,
                             CAIRN_MISSED_HEAD_BYTES +
                                 (size_t)writer->class_count * CAIRN_MISSED_CLASS_BYTES +
                                 (size_t)writer->run_count * CAIRN_MISSED_RUN_BYTES };
}
