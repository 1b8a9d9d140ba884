/* How many workers a round waits for: workers_min, amended while somebody waits, and those who were launched
 * together, when all of them begin. */
#include "tests/unit/round_driver.h"

static const struct decision none = { .kind = CAIRN_DECISION_NONE, .version_after = { 1, 0 } };

static void tick(uint64_t now_ms)
{
    GIVE(.kind = CAIRN_ROUND_TICK, .now_ms = now_ms);
}

/* One of two that come together, and wait a second for each other. */
static void join_of_two(uint64_t member, uint32_t rank)
{
    GIVE(.kind = CAIRN_ROUND_WORKER_JOIN, .member = member, .rank = rank, .world = 2,
         .wait_ms = 1000);
    want(member);
}

static bool is_open(void)
{
    if (round_stage_of(core) == CAIRN_ROUND_WAITING) resolve_all(&none, 0);
    return find(CAIRN_ROUND_OPEN_SEND, 0) != NULL;
}

TEST(the_first_of_a_launch_waits_for_the_others)
{
    struct sentence waiting;
    start();
    tick(5000);
    join_of_two(A, 0);
    tick(5999);
    ck_assert(!is_open());
    round_waiting(core, NULL, &waiting);
    ck_assert_str_eq(waiting.text,
                     "1 more worker of this launch (1 of 2 attached; without them in 1 s)");
    join_of_two(B, 1);
    ck_assert(is_open());
    ck_assert_uint_eq(expect(CAIRN_ROUND_OPEN_SEND)->member_count, 2);
}

TEST(and_begins_without_them_when_it_has_waited)
{
    start();
    join_of_two(A, 0);
    tick(1000);
    ck_assert(is_open());
    ck_assert_uint_eq(expect(CAIRN_ROUND_OPEN_SEND)->member_count, 1);
}

TEST(who_is_left_goes_on_at_once_and_a_new_launch_waits_again)
{
    start();
    join_of_two(A, 0);
    join_of_two(B, 1);
    ck_assert(is_open());
    clear();
    down(B);
    ck_assert(!is_open());
    want(A);
    ck_assert(is_open()); // without waiting for another
    clear();
    down(A);
    join_of_two(C, 0);
    ck_assert(!is_open());
    tick(1000);
    ck_assert(is_open());
}

TEST(a_write_waits_for_no_launch)
{
    start();
    join_of_two(A, 0);
    GIVE(.kind = CAIRN_ROUND_WORKER_WRITE, .member = A);
    ck_assert(is_open());
    ck_assert(expect(CAIRN_ROUND_OPEN_SEND)->write);
}

TEST(who_waits_for_workers_min_goes_on_when_it_is_lowered)
{
    struct sentence waiting;
    config.terms.workers_min = 2;
    make(0, 0);
    start();
    join(A, 0);
    want(A);
    round_waiting(core, NULL, &waiting);
    ck_assert_str_eq(waiting.text,
                     "1 more worker (1 of 2 attached): start it, or have the job take fewer "
                     "(`cairn job amend JOB --workers MIN:MAX`)");
    struct round_terms terms = config.terms;
    terms.workers_min = 1;
    GIVE(.kind = CAIRN_ROUND_AMEND, .terms = &terms);
    ck_assert(is_open());
}

SUITE(30, set_up, tear_down);
