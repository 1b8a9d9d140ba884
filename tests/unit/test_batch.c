/* How the micro-batches of a step are dealt, and their seeds. */
#include "proto/spec/spec.h"

#include <check.h>

#include "tests/support/suite.h"

TEST(every_number_is_dealt_once_and_the_fold_has_them_in_order)
{
    for (uint32_t total = 1; total <= 13; total++) {
        for (uint32_t world = 1; world <= total; world++) {
            uint32_t next = 0; // of the fold: by place, then by rank
            for (uint32_t place = 0; next < total; place++) {
                for (uint32_t rank = 0; rank < world; rank++) {
                    const struct spec_batch batch = { total, rank, world };
                    uint32_t back = UINT32_MAX;
                    if (place >= batch_count(&batch)) continue;
                    ck_assert_uint_eq(batch_number(&batch, place), next++);
                    ck_assert(batch_place(&batch, next - 1, &back));
                    ck_assert_uint_eq(back, place);
                }
            }
            ck_assert_uint_eq(next, total);
        }
    }
}

TEST(what_is_not_the_ranks_is_not_its_own)
{
    const struct spec_batch second = { 5, 1, 3 }, surplus = { 3, 3, 3 }, far = { 3, 7, 3 };
    uint32_t place = 77;
    ck_assert_uint_eq(batch_count(&second), 2);
    ck_assert(!batch_place(&second, 0, &place));
    ck_assert(!batch_place(&second, 7, &place)); // it would be, of a step of eight
    ck_assert(!batch_place(&surplus, 0, &place));
    ck_assert(!batch_place(&far, 1, &place));
    ck_assert_uint_eq(batch_count(&surplus), 0);
    ck_assert_uint_eq(batch_count(&far), 0);
    ck_assert_uint_eq(place, 77);
}

TEST(without_a_total_a_number_is_the_place)
{
    const struct spec_batch none = { 0, 2, 3 };
    uint32_t place = 0;
    ck_assert_uint_eq(batch_number(&none, 9), 9);
    ck_assert(batch_place(&none, 9, &place));
    ck_assert_uint_eq(place, 9);
}

/* Worked out from the formula in cairn.h, by another program. */
TEST(seeds_are_what_they_were)
{
    ck_assert_uint_eq(batch_seed(0, 0, 0), UINT64_C(1279368494785126216));
    ck_assert_uint_eq(batch_seed(7, 41, 3), UINT64_C(5593022079028785566));
    ck_assert_uint_eq(batch_seed(9007199254740991, UINT64_C(1) << 40, 65535),
                      UINT64_C(7377203000000226703));
}

SUITE(10, NULL, NULL);
