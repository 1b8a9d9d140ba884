/* Writes at a step boundary, in the shard's round machine: WRITE updates to the next generation. */
#include "tests/support/suite.h"
#include "tests/unit/step_driver.h"

static struct decision write_to(uint64_t generation, uint64_t step_after)
{
    struct decision d = decision(CAIRN_DECISION_WRITE, 100, step_after);
    d.version_after.generation = generation;
    return d;
}

TEST(a_prepared_shard_takes_a_write_over_when_told)
{
    const struct decision write = write_to(2, 10);
    prepare();
    GIVE(.kind = CAIRN_STEP_DECIDE, .epoch = 5, .decision = &write);
    ck_assert_int_eq(expect(0, CAIRN_STEP_UPDATE)->decision->kind, CAIRN_DECISION_WRITE);
    ck_assert_uint_eq(step_version(step).generation, 1);
    GIVE(.kind = CAIRN_STEP_UPDATED);
    ck_assert_uint_eq(expect(0, CAIRN_STEP_PUBLISHED_REPORT)->version.generation, 2);
    ck_assert_uint_eq(list[0].version.step, 10);
    open_at(5, 101, 10); // of the generation before
    expect_fault();
}

TEST(a_prepared_shard_takes_the_write_over_that_another_has)
{
    const struct decision write = write_to(2, 10);
    prepare();
    fence(6);
    GIVE(.kind = CAIRN_STEP_RESOLVE, .epoch = 6, .decision = &write);
    expect(0, CAIRN_STEP_UPDATE);
    GIVE(.kind = CAIRN_STEP_UPDATED);
    ck_assert_uint_eq(expect(0, CAIRN_STEP_PUBLISHED_REPORT)->version.generation, 2);
}

TEST(a_write_that_skips_a_version_or_was_not_prepared_is_a_fault)
{
    const struct decision wrong[] = { write_to(1, 10), write_to(3, 10), write_to(2, 11) };
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        make(CHUNKS, WINDOW, 4);
        prepare();
        GIVE(.kind = CAIRN_STEP_DECIDE, .epoch = 5, .decision = &wrong[i]);
        expect_fault();
    }
    const struct decision write = write_to(2, 10);
    make(CHUNKS, WINDOW, 4);
    begin();
    GIVE(.kind = CAIRN_STEP_DECIDE, .epoch = 5, .decision = &write);
    expect_fault();
}

SUITE(30, set_up, tear_down);
