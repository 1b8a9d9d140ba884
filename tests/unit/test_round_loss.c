/* on_worker_loss: what follows when a worker was lost. */
#include "tests/unit/round_driver.h"

static const struct decision none = { .kind = CAIRN_DECISION_NONE, .version_after = { 1, 0 } };

static void tick(uint64_t now_ms)
{
    GIVE(.kind = CAIRN_ROUND_TICK, .now_ms = now_ms);
}

static void lose(uint64_t member)
{
    GIVE(.kind = CAIRN_ROUND_WORKER_DOWN, .member = member, .lost = true);
}

static bool is_open(void)
{
    while (round_stage_of(core) == CAIRN_ROUND_WAITING) resolve_all(&none, 0);
    return find(CAIRN_ROUND_OPEN_SEND, 0) != NULL;
}

/* Three workers in an open round. */
static void begin(cairn_worker_loss what)
{
    config.terms.on_worker_loss = what;
    config.terms.worker_loss_wait_ms = 5000;
    config.step_deadline_ms = 0;
    make(0, 0);
    start();
    tick(100);
    join(A, 0);
    join(B, 1);
    join(C, 2);
    want(A);
    ck_assert(is_open());
    clear();
}

/* With the same terms again, or others. */
static void amend(cairn_worker_loss what)
{
    struct round_terms terms = config.terms;
    terms.on_worker_loss = what;
    GIVE(.kind = CAIRN_ROUND_AMEND, .terms = &terms);
}

TEST(redo_opens_at_once_with_those_who_are_left)
{
    begin(CAIRN_WORKER_LOSS_REDO);
    lose(B);
    want(A);
    ck_assert(is_open());
    ck_assert_uint_eq(expect(CAIRN_ROUND_OPEN_SEND)->member_count, 2);
}

TEST(wait_opens_no_round_before_as_many_are_there)
{
    struct sentence waiting;
    begin(CAIRN_WORKER_LOSS_WAIT);
    lose(B);
    want(A);
    ck_assert(!is_open());
    ck_assert(round_waits_for_lost(core));
    round_waiting(core, NULL, &waiting);
    ck_assert_str_eq(
        waiting.text,
        "1 more worker (2 of 3 attached since a loss; without it in 5 s): start it, or "
        "amend the job (`cairn job amend JOB --on-worker-loss redo`)");
    join(B + 100, 1);
    ck_assert(is_open());
    ck_assert_uint_eq(expect(CAIRN_ROUND_OPEN_SEND)->member_count, 3);
    ck_assert(!round_waits_for_lost(core));
}

TEST(its_time_runs_from_the_last_loss)
{
    begin(CAIRN_WORKER_LOSS_WAIT);
    lose(B);
    want(A);
    tick(5000);
    lose(C);
    tick(9999);
    ck_assert(!is_open());
    join(B, 1); // of three
    ck_assert(!is_open());
    tick(10000);
    ck_assert(is_open());
    ck_assert_uint_eq(expect(CAIRN_ROUND_OPEN_SEND)->member_count, 2);
}

TEST(any_amendment_ends_the_wait)
{
    begin(CAIRN_WORKER_LOSS_WAIT);
    lose(B);
    want(A);
    amend(CAIRN_WORKER_LOSS_WAIT);
    ck_assert(is_open());
}

TEST(who_leaves_by_itself_is_not_waited_for)
{
    begin(CAIRN_WORKER_LOSS_WAIT);
    down(B);
    want(A);
    ck_assert(is_open());
    clear();
    lose(C);
    want(A);
    ck_assert(!is_open());
    down(A); // the last: who comes then begins anew
    join(A, 0);
    want(A);
    ck_assert(is_open());
}

TEST(a_write_waits_for_nobody)
{
    begin(CAIRN_WORKER_LOSS_WAIT);
    lose(B);
    GIVE(.kind = CAIRN_ROUND_WORKER_WRITE, .member = A);
    ck_assert(is_open());
    ck_assert(expect(CAIRN_ROUND_OPEN_SEND)->write);
}

TEST(fail_refuses_rounds_until_somebody_amends)
{
    struct sentence waiting;
    begin(CAIRN_WORKER_LOSS_FAIL);
    lose(B);
    want(A);
    ck_assert(!is_open());
    ck_assert_uint_eq(expect(CAIRN_ROUND_WORKER_REFUSED)->member, A);
    ck_assert(round_halted(core) && round_halted_of_loss(core));
    round_waiting(core, NULL, &waiting);
    ck_assert_str_eq(waiting.text,
                     "an amendment or a restore (a worker was lost, and on_worker_loss is fail)");
    join(B, 1); // it alone does not mend it
    want(A);
    ck_assert(!is_open());
    amend(CAIRN_WORKER_LOSS_FAIL);
    want(A);
    ck_assert(is_open());
}

TEST(fail_ends_when_all_have_gone)
{
    begin(CAIRN_WORKER_LOSS_FAIL);
    lose(B);
    down(A);
    lose(C);
    ck_assert(!round_halted(core));
    join(A, 0);
    want(A);
    ck_assert(is_open());
}

TEST(who_is_put_out_at_the_deadline_is_lost_and_who_is_replaced_is_not)
{
    begin(CAIRN_WORKER_LOSS_FAIL);
    join(B + 100, 1);
    ck_assert(!round_halted(core));
    config.step_deadline_ms = 1000;
    make(0, 0);
    start();
    join(A, 0);
    join(B, 1);
    GIVE(.kind = CAIRN_ROUND_WORKER_WRITE, .member = A);
    ck_assert(is_open());
    tick(1000);
    ck_assert_uint_eq(expect(CAIRN_ROUND_WORKER_FENCE)->member, A);
    ck_assert(round_halted_of_loss(core));
}

SUITE(30, set_up, tear_down);
