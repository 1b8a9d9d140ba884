/* fp32 and bf16, against rounding done in double. CAIRN_TEST_LONG=1 goes through all 2^32 inputs. */
#include <check.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gpu/gpu.h"
#include "tests/support/suite.h"

static double value_of_bf16(uint16_t bits) // infinity counts as the next step, 2^128
{
    if ((bits & 0x7fff) == 0x7f80) return bits >> 15 ? -0x1p128 : 0x1p128;
    return (double)f32_from_bits((uint32_t)bits << 16);
}

static uint16_t slow_narrow(float x)
{
    if (isnan(x)) return 0x7fc0;
    uint16_t toward_zero = (uint16_t)(f32_bits(x) >> 16);
    if (isinf(x)) return toward_zero;
    uint16_t away = (uint16_t)(toward_zero + 1);
    double to_zero = fabs((double)x - value_of_bf16(toward_zero));
    double to_away = fabs((double)x - value_of_bf16(away));
    if (to_zero != to_away) return to_zero < to_away ? toward_zero : away;
    return toward_zero % 2 == 0 ? toward_zero : away;
}

#define BATCH 4096

/* The inputs first, first + stride, ...: a batch at a time, as the kernel works on arrays. */
static void check_inputs(const struct backend *host, uint64_t first, uint64_t stride)
{
    static float in[BATCH];
    static uint16_t out[BATCH];
    for (uint64_t bits = first; bits < (uint64_t)1 << 32;) {
        size_t n = 0;
        for (; n < BATCH && bits < (uint64_t)1 << 32; bits += stride) {
            in[n++] = f32_from_bits((uint32_t)bits);
        }
        host->convert(out, CAIRN_BF16, in, CAIRN_F32, n);
        for (size_t i = 0; i < n; i++) {
            if (out[i] == slow_narrow(in[i])) continue;
            ck_abort_msg("%08x became %04x, not %04x", f32_bits(in[i]), out[i], slow_narrow(in[i]));
        }
    }
}

TEST(bf16_is_the_nearest_ties_to_even_for_sampled_inputs)
{
    const struct backend *host = backend_host();
    check_inputs(host, 0, 9973);
    for (uint64_t low = 0x7ffe; low <= 0x8001; low++)
        check_inputs(host, low, 0x10000); // about the ties
    check_inputs(host, 0, 0x10000);
    check_inputs(host, 0xffff, 0x10000);
}

TEST_EACH(bf16_is_the_nearest_ties_to_even_for_all_inputs, 0,
          CAIRN_HOST_ISA_COUNT) // of an instruction set
{
    if (getenv("CAIRN_TEST_LONG") == NULL) return;
    const struct backend *host = backend_host_at((uint32_t)_i);
    if (host == NULL) return;
    check_inputs(host, 0, 1);
}

TEST(every_bf16_widens_exactly_and_comes_back)
{
    const struct backend *host = backend_host();
    static uint16_t in[65536], back[65536];
    static float wide[65536];
    for (uint32_t i = 0; i < 65536; i++) in[i] = (uint16_t)i;
    host->convert(wide, CAIRN_F32, in, CAIRN_BF16, 65536);
    host->convert(back, CAIRN_BF16, wide, CAIRN_F32, 65536);
    for (uint32_t i = 0; i < 65536; i++) {
        ck_assert_uint_eq(f32_bits(wide[i]), i << 16);
        ck_assert_uint_eq(back[i], isnan(wide[i]) ? 0x7fc0 : i);
    }
}

/* Of an instruction set; long ones go around the caches. */
TEST_EACH(a_long_run_has_the_bits_of_short_ones, 0, CAIRN_HOST_ISA_COUNT)
{
    enum { LONG = 64 * CAIRN_LEAF_ELEMS + 37, SHORT = 1000 };
    const struct backend *host = backend_host_at((uint32_t)_i);
    if (host == NULL) return;
    float *in = malloc(LONG * sizeof *in);
    uint16_t *shorts = malloc(LONG * sizeof *shorts),
             *longs = aligned_alloc(64, (LONG + 64) / 64 * 128);
    ck_assert(in != NULL && shorts != NULL && longs != NULL);
    for (uint32_t i = 0; i < LONG; i++) in[i] = f32_from_bits(i * 2654435761u);
    for (size_t i = 0; i < LONG; i += SHORT)
        host->convert(shorts + i, CAIRN_BF16, in + i, CAIRN_F32,
                      LONG - i < SHORT ? LONG - i : SHORT);
    for (size_t offset = 0; offset < 2; offset++) {
        host->convert(longs + offset, CAIRN_BF16, in, CAIRN_F32, LONG);
        ck_assert_int_eq(memcmp(longs + offset, shorts, LONG * sizeof *shorts), 0);
    }
    free(in);
    free(shorts);
    free(longs);
}

TEST(the_same_dtype_is_copied_and_no_elements_touch_nothing)
{
    const struct backend *host = backend_host();
    const float in[3] = { 1.5f, -0.0f, 0x1p-149f };
    float out[3] = { 0 };
    host->convert(out, CAIRN_F32, in, CAIRN_F32, 3);
    ck_assert_mem_eq(in, out, sizeof in);
    host->convert(NULL, CAIRN_BF16, NULL, CAIRN_F32, 0);
    uint8_t bytes[256], copy[256];
    for (int i = 0; i < 256; i++) bytes[i] = (uint8_t)(255 - i);
    for (size_t count = 1; count < 10; count++) {
        memset(copy, 0, sizeof copy);
        host->convert(copy, CAIRN_U8, bytes, CAIRN_U8, count);
        ck_assert_mem_eq(copy, bytes, count);
        ck_assert_uint_eq(copy[count], 0);
    }
    host->convert(copy, CAIRN_U8, bytes, CAIRN_U8, 256);
    ck_assert_mem_eq(copy, bytes, 256);
}

TEST(only_f32_and_bf16_go_over_the_wire)
{
    ck_assert(wire_dtype_ok(CAIRN_F32) && wire_dtype_ok(CAIRN_BF16));
    ck_assert(!wire_dtype_ok(CAIRN_F16) && !wire_dtype_ok(CAIRN_F64));
    ck_assert(!wire_dtype_ok(CAIRN_U8)); // of blobs, which are never contributed to
    ck_assert(!wire_dtype_ok(0) && !wire_dtype_ok(-1));
}

SUITE(600);
