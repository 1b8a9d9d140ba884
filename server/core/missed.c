#include "server/core/missed.h"

#include <assert.h>
#include <string.h>

#include "proto/base/little_endian.h"
#include "proto/spec/spec.h"

_Static_assert(CAIRN_SPEC_LEAVE_MAX <= CAIRN_MISSED_RUNS_MAX, "each may be a run of its own");

#define CLASS_FLAGS ((uint32_t)CAIRN_MISSED_THIS | (uint32_t)CAIRN_MISSED_FIRST)

static uint32_t get_u32(const uint8_t *in)
{
    return (uint32_t)cairn_le_get(in, 4);
}

static void put_class(uint8_t *out, const struct cairn_missed_class *c)
{
    cairn_le_put(out, c->steps, 8);
    cairn_le_put(out + 8, c->group, 4);
    cairn_le_put(out + 12, c->flags, 4);
    cairn_le_put(out + 16, c->neg_step_size, 4);
    cairn_le_put(out + 20, c->sqrt_bc2, 4);
}

static struct cairn_missed_class get_class(const uint8_t *in)
{
    return (struct cairn_missed_class) { .steps = cairn_le_get(in, 8),
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

static bool class_ok(const struct cairn_missed_class *c)
{
    return c->steps > 0 && (c->flags & ~CLASS_FLAGS) == 0 && finite_bits(c->neg_step_size) &&
           finite_bits(c->sqrt_bc2);
}

/* ---- read ---- */

cairn_status cairn_missed_decode(const uint8_t *bytes, size_t bytes_len,
                                 struct cairn_missed *missed_out)
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
        const struct cairn_missed_class c = get_class(class_at(bytes, i));
        if (!class_ok(&c)) return CAIRN_ERR_MALFORMED;
    }
    const uint8_t *run = class_at(bytes, classes);
    for (uint32_t i = 0; i < runs; i++, run += CAIRN_MISSED_RUN_BYTES) {
        const bool after = i == 0 || get_u32(run) > get_u32(run - CAIRN_MISSED_RUN_BYTES);
        if (!after || get_u32(run + 4) > classes) return CAIRN_ERR_MALFORMED;
    }
    *missed_out = (struct cairn_missed) { bytes, size };
    return CAIRN_OK;
}

uint32_t cairn_missed_class_count(const struct cairn_missed *missed)
{
    return missed->size > 0 ? get_u32(missed->bytes) : 0;
}

struct cairn_missed_class cairn_missed_class_at(const struct cairn_missed *missed, uint32_t c)
{
    assert(c < cairn_missed_class_count(missed));
    return get_class(class_at(missed->bytes, c));
}

uint32_t cairn_missed_class_of(const struct cairn_missed *missed, uint32_t tensor)
{
    if (missed->size == 0) return CAIRN_MISSED_NONE;
    const uint8_t *runs = class_at(missed->bytes, get_u32(missed->bytes));
    uint32_t least = 0, most = get_u32(missed->bytes + 4); // of how many begin at it or before
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

uint64_t cairn_missed_steps(const struct cairn_missed *missed, uint32_t tensor)
{
    const uint32_t c = cairn_missed_class_of(missed, tensor);
    return c == CAIRN_MISSED_NONE ? 0 : cairn_missed_class_at(missed, c).steps;
}

struct cairn_group_scalars cairn_missed_scalars(const struct cairn_missed_class *class_,
                                                const struct cairn_group_scalars *group)
{
    struct cairn_group_scalars scalars = *group;
    scalars.flags &= ~(uint32_t)CAIRN_SCALAR_FIRST_STEP;
    if ((class_->flags & CAIRN_MISSED_FIRST) != 0) scalars.flags |= CAIRN_SCALAR_FIRST_STEP;
    scalars.neg_step_size = class_->neg_step_size;
    scalars.sqrt_bc2 = class_->sqrt_bc2;
    return scalars;
}

/* ---- write ---- */

void cairn_missed_begin(struct cairn_missed_writer *writer, uint8_t *out, size_t tensors)
{
    *writer = (struct cairn_missed_writer) { .out = out,
                                             .room = (uint32_t)CAIRN_MISSED_RUNS(tensors) };
}

/* Runs stand behind the room of all classes until the end, which knows how many there are. */
static uint8_t *run_at(const struct cairn_missed_writer *writer, uint32_t run)
{
    return writer->out + CAIRN_MISSED_HEAD_BYTES + (size_t)writer->room * CAIRN_MISSED_CLASS_BYTES +
           (size_t)run * CAIRN_MISSED_RUN_BYTES;
}

/* Its number from 1 on. The same may be there twice, which changes nothing but the size. */
static uint32_t find_class(struct cairn_missed_writer *writer, const struct cairn_missed_class *c)
{
    const uint64_t hash = (c->steps ^ (uint64_t)c->group << 40 ^ (uint64_t)c->flags << 32) *
                          0x9e3779b97f4a7c15;
    uint32_t *cached = &writer->cache[hash >> 56];
    if (*cached != 0) {
        const struct cairn_missed_class there = cairn_missed_written(writer, *cached - 1);
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

void cairn_missed_put(struct cairn_missed_writer *writer, uint32_t tensor, uint64_t steps,
                      uint32_t group, bool this_step)
{
    const struct cairn_missed_class c = { .steps = steps,
                                          .group = group,
                                          .flags = this_step ? CAIRN_MISSED_THIS : 0 };
    if (writer->is_full) return;
    const uint32_t number = steps > 0 ? find_class(writer, &c) : 0;
    if (number == writer->run_class) return; // as the one before, and as what is before the first
    if (writer->run_count == writer->room) writer->is_full = true;
    if (writer->is_full) return;
    uint8_t *run = run_at(writer, writer->run_count++);
    cairn_le_put(run, tensor, 4);
    cairn_le_put(run + 4, number, 4);
    writer->run_class = number;
}

struct cairn_missed_class cairn_missed_written(const struct cairn_missed_writer *writer, uint32_t c)
{
    assert(c < writer->class_count);
    return get_class(class_at(writer->out, c));
}

void cairn_missed_set(struct cairn_missed_writer *writer, uint32_t c,
                      const struct cairn_group_scalars *scalars)
{
    struct cairn_missed_class one = cairn_missed_written(writer, c);
    if ((scalars->flags & CAIRN_SCALAR_FIRST_STEP) != 0) one.flags |= CAIRN_MISSED_FIRST;
    one.neg_step_size = scalars->neg_step_size;
    one.sqrt_bc2 = scalars->sqrt_bc2;
    put_class((uint8_t *)(uintptr_t)class_at(writer->out, c), &one);
}

struct cairn_missed cairn_missed_end(struct cairn_missed_writer *writer)
{
    if (writer->class_count == 0) return (struct cairn_missed) { .bytes = NULL };
    assert(!writer->is_full);
    cairn_le_put(writer->out, writer->class_count, 4);
    cairn_le_put(writer->out + 4, writer->run_count, 4);
    uint8_t *behind = (uint8_t *)(uintptr_t)class_at(writer->out, writer->class_count);
    memmove(behind, run_at(writer, 0), (size_t)writer->run_count * CAIRN_MISSED_RUN_BYTES);
    return (struct cairn_missed) { writer->out,
                                   CAIRN_MISSED_HEAD_BYTES +
                                       (size_t)writer->class_count * CAIRN_MISSED_CLASS_BYTES +
                                       (size_t)writer->run_count * CAIRN_MISSED_RUN_BYTES };
}
