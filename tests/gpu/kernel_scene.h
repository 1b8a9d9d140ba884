/* Memory for kernels that run as functions of this process, and launches of them that are watched.
 *
 * The memory lies at addresses that are none: who follows one past the kernels' accessor dies. A launch
 * is run twice, with other numbers of blocks, in another order, and the second time with all bytes
 * changed that it did not say to touch: what it writes must be the same, and everything else stays as it
 * was. */
#ifndef CAIRN_TESTS_GPU_KERNEL_SCENE_H
#define CAIRN_TESTS_GPU_KERNEL_SCENE_H

#include <inttypes.h>
#include <check.h>
#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "tests/gpu/kernels/host.h"
#include "tests/support/random.h"

#define SCENE_AT    ((uint64_t)1 << 60)
#define SCENE_BYTES ((uint64_t)24 << 20)
#define SCENE_ITEMS 6 /* of a list, at most */

enum { SCENE_READ = 1, SCENE_WRITTEN = 2 };

static struct {
    uint8_t *memory, *before, *touched, *after; /* [SCENE_BYTES] */
    uint64_t used;
} scene;

static inline void scene_begin(uint64_t seed)
{
    random_state = seed;
    if (scene.memory == NULL) {
        scene.memory = calloc(4, SCENE_BYTES);
        ck_assert_ptr_nonnull(scene.memory);
        scene.before = scene.memory + SCENE_BYTES;
        scene.touched = scene.before + SCENE_BYTES;
        scene.after = scene.touched + SCENE_BYTES;
    }
    scene.used = 64;
    kernel_memory = (struct kernel_memory) {
        .at = SCENE_AT,
        .bytes = SCENE_BYTES,
        .distance = (uint64_t)(uintptr_t)scene.memory - SCENE_AT,
    };
}

static inline void *scene_at(uint64_t address)
{
    return scene.memory + (address - SCENE_AT);
}

/* Aligned to `unit`, and half of the time to nothing more. */
static inline uint64_t scene_take(uint64_t bytes, uint64_t unit)
{
    scene.used = (scene.used + 63) / 64 * 64;
    if (random_below(2) == 0) scene.used += unit * random_below(64 / unit);
    const uint64_t at = SCENE_AT + scene.used;
    scene.used += bytes;
    ck_assert_uint_le(scene.used, SCENE_BYTES);
    return at;
}

static inline void scene_note(void *context, uint64_t address, uint64_t bytes, bool writes)
{
    (void)context;
    ck_assert(address >= SCENE_AT && address + bytes <= SCENE_AT + scene.used);
    uint8_t *touched = scene.touched + (address - SCENE_AT);
    for (uint64_t i = 0; i < bytes; i++) {
        if (touched[i] == SCENE_WRITTEN ||
            (touched[i] != 0 && writes)) // an assert a byte would take long
            ck_abort_msg("byte %#" PRIx64 " is written, and not by one item alone", (address + i));
        touched[i] = writes ? SCENE_WRITTEN : SCENE_READ;
    }
}

static inline void scene_run_blocks(const struct kernel *kernel, const struct kernel_list *list)
{
    const enum kernel_number number = (enum kernel_number)(kernel - kernel_table);
    const uint32_t all = kernel_blocks(number, list->pieces, 72), blocks = all == 0 ? 1 : all;
    const uint32_t some = 1 + (uint32_t)random_below(blocks), first = (uint32_t)random_below(some);
    const bool backwards = random_below(2) == 0;
    for (uint32_t i = 0; i < some; i++)
        kernel->run(list, (first + (backwards ? some - i : i)) % some, some);
}

static inline void scene_run(enum kernel_number number, const void *items, uint64_t count,
                             uint64_t pieces)
{
    const struct kernel *kernel = &kernel_table[number];
    const uint64_t at = scene_take(count * kernel->item_bytes, 8);
    const struct kernel_list list = { at, count, pieces };
    ck_assert_ptr_eq(kernel_named(kernel->name), kernel);
    memcpy(scene_at(at), items, count * kernel->item_bytes);
    memset(scene.touched, 0, scene.used);
    kernel_misaligned = 0;
    kernel->ranges(&list, scene_note, NULL);
    memcpy(scene.before, scene.memory, scene.used);
    scene_run_blocks(kernel, &list);
    memcpy(scene.after, scene.memory, scene.used);
    for (uint64_t i = 0; i < scene.used; i++) {
        if (scene.touched[i] != SCENE_WRITTEN && scene.after[i] != scene.before[i])
            ck_abort_msg("%s writes byte %#" PRIx64, kernel->name, i);
        scene.memory[i] = scene.touched[i] == 0 ? (uint8_t)~scene.before[i] : scene.before[i];
    }
    scene_run_blocks(kernel, &list);
    for (uint64_t i = 0; i < scene.used; i++) {
        if (scene.touched[i] != 0 && scene.after[i] != scene.memory[i])
            ck_abort_msg("%s is not the same at byte %#" PRIx64, kernel->name, i);
    }
    memcpy(scene.memory, scene.after, scene.used);
    ck_assert_msg(kernel_misaligned == 0, "%s reaches %#" PRIx64 ", which is not aligned",
                  kernel->name, kernel_misaligned);
}

/* ---- numbers ---- */

/* Of any exponent, or of gradients; subnormals and zeros of both signs among them, and where `odd` some
 * that are infinite or NaN. */
static inline uint32_t scene_bits(bool any, bool odd)
{
    uint32_t bits = (uint32_t)random_next();
    const uint64_t chance = random_below(600);
    if (!any) bits = (bits & 0x83ffffffu) | 0x3c000000u;
    if ((bits & 0x7f800000u) == 0x7f800000u) bits ^= 0x40000000u;
    if (chance < 20) bits &= 0x80000000u;
    if (chance >= 20 && chance < 40) bits &= 0x807fffffu;
    if (chance == 40) bits = (bits & 0x80000000u) | 0x7f7fffffu;
    if (odd && chance == 41) bits = (bits & 0x80000000u) | 0x7f800000u;
    if (odd && chance == 42) bits |= 0x7f810000u;
    return bits;
}

static inline void scene_fill(uint64_t address, cairn_dtype dtype, uint64_t elems)
{
    const bool any = random_below(2) == 0, odd = random_below(3) == 0;
    for (uint64_t i = 0; i < elems; i++) {
        const uint32_t bits = scene_bits(any, odd);
        const uint16_t half = (uint16_t)(bits >> 16);
        if (dtype == CAIRN_F32)
            memcpy(scene_at(address + 4 * i), &bits, sizeof bits);
        else
            memcpy(scene_at(address + 2 * i), &half, sizeof half);
    }
}

static inline uint64_t scene_plane(cairn_dtype dtype, uint64_t elems)
{
    const uint64_t bytes = dtype_size((int)dtype), at = scene_take(elems * bytes, bytes);
    scene_fill(at, dtype, elems);
    return at;
}

static inline uint64_t scene_elems(void)
{
    static const uint64_t edges[] = { 0,   1,   2,   3,   4,    5,    31,  127,
                                      128, 129, 511, 513, 4095, 4096, 4097 };
    if (random_below(2) == 0) return edges[random_below(sizeof edges / sizeof edges[0])];
    return random_below(3 * CAIRN_PIECE_ELEMS);
}

/* NaN is NaN: payloads and signs are not promised. */
static inline void scene_same_f32(const char *what, uint64_t address, const float *want,
                                  uint64_t elems)
{
    const float *got = scene_at(address);
    for (uint64_t i = 0; i < elems; i++) {
        float x;
        memcpy(&x, got + i, sizeof x);
        if ((isnan(x) && isnan(want[i])) || f32_bits(x) == f32_bits(want[i])) continue;
        ck_abort_msg("%s, element %" PRIu64 " of %" PRIu64 ": %a, not %a", what, i, elems,
                     (double)x, (double)want[i]);
    }
}

static inline void scene_same_bytes(const char *what, uint64_t address, const void *want,
                                    uint64_t bytes)
{
    for (uint64_t i = 0; i < bytes; i++)
        if (((const uint8_t *)scene_at(address))[i] != ((const uint8_t *)want)[i])
            ck_abort_msg("%s, byte %" PRIu64 " of %" PRIu64, what, i, bytes);
}

/* A copy that the host works on; free it. */
static inline void *scene_copy(uint64_t address, uint64_t bytes)
{
    void *copy = malloc(bytes + 64);
    ck_assert_ptr_nonnull(copy);
    if (bytes != 0) memcpy(copy, scene_at(address), bytes);
    return copy;
}

#endif
