/* Copies and fills.
 *
 * Pinned host memory is read and written when the copy runs, and then it is compared with what it was when
 * the copy was put into the queue: a host that has written to it in between is found. Where a copy will
 * write to host memory, there is EMULATOR_POISON until it has. Pageable memory is staged, as documented: to
 * the device it is read at once, and what comes from the device is there when the call returns. */
#include "tests/gpu/emulator/emulator.h"
#include "tests/gpu/kernels/host.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <xxhash.h>

struct copy_op {
    struct emulator_op op;
    uint64_t to, from,
        bytes;     /* where the bytes are: addresses in the device are moved by the distance */
    void *staged;  /* owned; NULL, or what `from` was */
    uint64_t hash; /* of `from` when it was put there */
    bool hashed, poisoned;
};

struct fill_op {
    struct emulator_op op;
    uint64_t to, bytes;
    uint8_t value;
};

static bool all_poison(const uint8_t *bytes, uint64_t count)
{
    return count == 0 || (bytes[0] == EMULATOR_POISON && memcmp(bytes, bytes + 1, count - 1) == 0);
}

static void be_slow(uint64_t bytes)
{
    if (emulator_options.copy_rate == 0) return;
    const double s = (double)bytes / (double)emulator_options.copy_rate;
    nanosleep(&(struct timespec) { (time_t)s, (long)(1e9 * (s - (double)(time_t)s)) }, NULL);
}

static void complain_of(const struct copy_op *copy, const char *of, uint64_t address)
{
    emulator_complain("race: %s (operation %" PRIu64
                      ") and the host, which wrote to the copy's %s, %" PRIu64 " "
                      "bytes at %#" PRIx64 ", "
                      "before it was over",
                      copy->op.name, copy->op.number, of, copy->bytes, address);
}

static enum emulator_result run_copy(struct emulator_op *op)
{
    const struct copy_op *copy = (const struct copy_op *)op;
    const void *from = copy->staged != NULL ? copy->staged : kernel_memory_at(copy->from);
    be_slow(copy->bytes);
    const bool changed = copy->hashed && XXH3_64bits(from, copy->bytes) != copy->hash;
    const bool touched = copy->poisoned && !all_poison(kernel_memory_at(copy->to), copy->bytes);
    memmove(kernel_memory_at(copy->to), from, copy->bytes);
    if (!changed && !touched) return EMULATOR_OK;
    pthread_mutex_lock(&emulator_lock);
    if (changed && !emulator_order_written(copy->from, copy->bytes))
        complain_of(copy, "source", copy->from);
    if (touched && !emulator_order_written(copy->to, copy->bytes))
        complain_of(copy, "destination", copy->to);
    pthread_mutex_unlock(&emulator_lock);
    return EMULATOR_OK;
}

static void close_copy(struct emulator_op *op)
{
    free(((struct copy_op *)op)->staged);
    free(op);
}

/* What the call says of its addresses, and what they are. */
static enum emulator_result judge(uint64_t to, uint64_t from, uint64_t bytes, enum emulator_way way)
{
    const bool to_device = emulator_memory_has(to), from_device = emulator_memory_has(from);
    if (to_device != (way != EMULATOR_TO_HOST) || from_device != (way != EMULATOR_TO_DEVICE)) {
        emulator_say("a copy from %#" PRIx64 " to %#" PRIx64
                     ": one of them is not what the call says",
                     from, to);
        return EMULATOR_INVALID_VALUE;
    }
    if ((!to_device && emulator_host_pinned(to, bytes) == EMULATOR_PARTLY_PINNED) ||
        (!from_device && emulator_host_pinned(from, bytes) == EMULATOR_PARTLY_PINNED)) {
        emulator_say("a copy from %#" PRIx64 " to %#" PRIx64 ": a part of it is pinned", from, to);
        return EMULATOR_INVALID_VALUE;
    }
    return EMULATOR_OK;
}

/* Before it is put into the queue, so that what is pending is others'. */
static enum emulator_result prepare(struct copy_op *copy, bool from_pageable)
{
    if (from_pageable) {
        copy->staged = malloc(copy->bytes);
        if (copy->staged == NULL) return EMULATOR_OUT_OF_MEMORY;
        memcpy(copy->staged, kernel_memory_at(copy->from), copy->bytes);
    } else if (!emulator_memory_has(copy->from) &&
               !emulator_order_pending(copy->from, copy->bytes, false)) {
        copy->hashed = true;
        copy->hash = XXH3_64bits(kernel_memory_at(copy->from), copy->bytes);
    }
    if (!emulator_memory_has(copy->to) && !emulator_order_pending(copy->to, copy->bytes, true)) {
        copy->poisoned = true;
        memset(kernel_memory_at(copy->to), EMULATOR_POISON, copy->bytes);
    }
    return EMULATOR_OK;
}

static enum emulator_result open_copy(struct copy_op *with, bool from_pageable,
                                      struct copy_op **copy_out)
{
    struct copy_op *copy = malloc(sizeof *copy);
    if (copy == NULL) return EMULATOR_OUT_OF_MEMORY;
    *copy = *with;
    enum emulator_result result = prepare(copy, from_pageable);
    if (result == EMULATOR_OK)
        *copy_out = copy;
    else
        free(copy);
    return result;
}

enum emulator_result emulator_copy(uint64_t to, uint64_t from, uint64_t bytes,
                                   enum emulator_way way, uint32_t slot, uint32_t device)
{
    static const char *const names[] = { "a copy to the device", "a copy to the host",
                                         "a copy in the device" };
    struct copy_op *copy = NULL, with = { .to = to, .from = from, .bytes = bytes };
    with.op = (struct emulator_op) {
        .name = names[way], .run = run_copy, .close = close_copy, .counts = true
    };
    if (bytes == 0) return EMULATOR_OK;
    enum emulator_result result = judge(to, from, bytes, way);
    if (result == EMULATOR_OK && way == EMULATOR_TO_HOST)
        result = emulator_fault_call(&emulator_options.copy_fails);
    if (result != EMULATOR_OK) return result;
    const bool from_pageable = way == EMULATOR_TO_DEVICE &&
                               emulator_host_pinned(from, bytes) == EMULATOR_PAGEABLE;
    const bool to_pageable = way == EMULATOR_TO_HOST &&
                             emulator_host_pinned(to, bytes) == EMULATOR_PAGEABLE;
    struct emulator_touch touch = { .to_host = way == EMULATOR_TO_HOST };
    result = emulator_memory_touch(&touch, device, to, bytes, true, names[way]);
    if (result == EMULATOR_OK && !from_pageable)
        result = emulator_memory_touch(&touch, device, from, bytes, false, names[way]);
    if (result == EMULATOR_OK) result = open_copy(&with, from_pageable, &copy);
    if (result != EMULATOR_OK) {
        emulator_touch_release(&touch);
        return result == EMULATOR_ILLEGAL_ADDRESS ? EMULATOR_INVALID_VALUE : result;
    }
    emulator_touch_sort(&touch);
    emulator_stream_put(slot, device, &copy->op, &touch);
    if (!to_pageable) return EMULATOR_OK;
    const struct emulator_mark mark = emulator_stream_mark(slot, device);
    return emulator_stream_wait(&mark);
}

static enum emulator_result run_fill(struct emulator_op *op)
{
    const struct fill_op *fill = (const struct fill_op *)op;
    memset(kernel_memory_at(fill->to), fill->value, fill->bytes);
    return EMULATOR_OK;
}

static void close_fill(struct emulator_op *op)
{
    free(op);
}

enum emulator_result emulator_fill(uint64_t to, uint8_t value, uint64_t bytes, uint32_t slot,
                                   uint32_t device)
{
    struct emulator_touch touch = { 0 };
    if (bytes == 0) return EMULATOR_OK;
    if (!emulator_memory_has(to) ||
        emulator_memory_touch(&touch, device, to, bytes, true, "a fill") != EMULATOR_OK) {
        emulator_touch_release(&touch);
        return EMULATOR_INVALID_VALUE;
    }
    struct fill_op *fill = calloc(1, sizeof *fill);
    if (fill == NULL) {
        emulator_touch_release(&touch);
        return EMULATOR_OUT_OF_MEMORY;
    }
    fill->op = (struct emulator_op) {
        .name = "a fill", .run = run_fill, .close = close_fill, .counts = true
    };
    fill->to = to;
    fill->bytes = bytes;
    fill->value = value;
    emulator_touch_sort(&touch);
    emulator_stream_put(slot, device, &fill->op, &touch);
    return EMULATOR_OK;
}
