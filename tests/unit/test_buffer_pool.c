/* Who gets a buffer of a relay's pool, who waits, and when waiting is given up. */
#include "server/core/buffer_pool.h"
#include "tests/support/suite.h"

#define OWNERS 3
#define CHUNKS 4 /* of each owner */

static struct buffer buffers[OWNERS * CHUNKS];
static uint32_t sums[OWNERS][CHUNKS];
static struct buffer_owner owners[OWNERS];
static struct buffer_claim claims[OWNERS][CHUNKS];
static struct buffer_pool pool;
static uint32_t room; /* for so many buffers */

static bool touch(struct buffer_pool *asked)
{
    return asked->touched < room;
}

/* Each test has a process of its own: all is zero before. */
static void open_pool(uint32_t wanted)
{
    room = OWNERS * CHUNKS;
    pool = (struct buffer_pool) { .buffers = buffers,
                                  .count = OWNERS * CHUNKS,
                                  .wanted = wanted,
                                  .stuck_max_ms = 100,
                                  .touch = touch };
    for (int o = 0; o < OWNERS; o++) {
        owners[o].sums = sums[o];
        owners[o].chunk_count = CHUNKS;
        buffer_pool_add(&pool, &owners[o]);
    }
}

static bool claim(uint32_t owner, uint32_t chunk, bool begins)
{
    struct buffer_claim *made = &claims[owner][chunk];
    *made = (struct buffer_claim) { .owner = &owners[owner], .chunk = chunk, .begins = begins };
    return buffer_pool_claim(&pool, made);
}

/* A fold that begins and one that goes on; then the sum is final. Returns its buffer. */
static uint32_t send_sum(uint32_t owner, uint32_t chunk)
{
    for (int i = 0; i < 2; i++) {
        ck_assert(claim(owner, chunk, i == 0));
        buffer_pool_return(&pool, claims[owner][chunk].buffer);
    }
    return buffer_pool_final(&pool, &owners[owner], chunk);
}

/* The next in the list is that claim. */
static struct buffer_claim *expect(struct buffer_claim *list, uint32_t owner, uint32_t chunk)
{
    ck_assert_ptr_eq(list, &claims[owner][chunk]);
    return list->next;
}

TEST(the_lowest_free_buffer_is_taken_and_memory_touched_only_when_none_is_free)
{
    open_pool(OWNERS * CHUNKS);
    ck_assert_uint_eq(send_sum(0, 0), 0);
    ck_assert_uint_eq(send_sum(0, 1), 1);
    ck_assert_uint_eq(send_sum(1, 0), 2);
    buffer_pool_end(&pool, 1);
    ck_assert_uint_eq(send_sum(2, 3), 1);
    ck_assert_uint_eq(pool.touched, 3);
}

TEST(a_fold_waits_only_if_an_answer_of_its_own_owner_frees_a_buffer)
{
    open_pool(1);
    const uint32_t first = send_sum(0, 0);
    ck_assert(!claim(0, 1, true));
    ck_assert(claim(1, 0, true)); // the other's answer may wait for this
    ck_assert(claim(1, 1, true));
    ck_assert_ptr_null(buffer_pool_advance(&pool));
    buffer_pool_end(&pool, first);
    ck_assert_ptr_null(expect(buffer_pool_advance(&pool), 0, 1));
    ck_assert_uint_eq(claims[0][1].buffer, first);
    ck_assert_uint_eq(pool.touched, 3);
}

TEST(an_owner_holds_no_more_buffers_than_it_has_chunks)
{
    open_pool(OWNERS * CHUNKS);
    for (uint32_t c = 0; c < CHUNKS; c++) send_sum(0, c);
    ck_assert(!claim(0, 0, true)); // of the next micro-batch
    ck_assert_ptr_null(buffer_pool_advance(&pool));
    buffer_pool_end(&pool, 2);
    ck_assert_ptr_null(expect(buffer_pool_advance(&pool), 0, 0));
    ck_assert_uint_eq(claims[0][0].buffer, 2);
}

TEST(an_owners_oldest_claim_is_served_first_and_owners_in_turns)
{
    uint32_t sent[OWNERS];
    open_pool(2 * OWNERS);
    for (uint32_t o = 0; o < OWNERS; o++) {
        send_sum(o, 0); // whose answer is awaited
        sent[o] = send_sum(o, 1);
    }
    for (uint32_t o = OWNERS; o-- > 0;) {
        ck_assert(!claim(o, 3, true));
        ck_assert(!claim(o, 2, true));
    }
    for (uint32_t i = 0; i < OWNERS; i++) { // whosever buffer it was
        buffer_pool_end(&pool, sent[(i + 2) % OWNERS]);
        ck_assert_ptr_null(expect(buffer_pool_advance(&pool), i, 3));
    }
    buffer_pool_return(&pool, claims[1][3].buffer);
    buffer_pool_end(&pool, buffer_pool_final(&pool, &owners[1], 3));
    ck_assert_ptr_null(expect(buffer_pool_advance(&pool), 0, 2));
}

TEST(a_newcomer_does_not_go_before_its_owners_claims_but_a_sum_goes_on)
{
    open_pool(1);
    ck_assert(claim(0, 0, true));
    const uint32_t sent = send_sum(0, 1); // touched, as nothing was sent
    ck_assert(!claim(0, 2, true));
    buffer_pool_end(&pool, sent);
    ck_assert(!claim(0, 3, true));
    ck_assert(claim(0, 0, false));
    ck_assert_ptr_null(expect(expect(buffer_pool_advance(&pool), 0, 2), 0, 3));
}

TEST(a_buffer_on_loan_is_given_to_nobody)
{
    open_pool(1);
    const uint32_t sent = send_sum(0, 0);
    buffer_pool_loan(&pool, sent);
    buffer_pool_end(&pool, sent);
    ck_assert_uint_eq(buffers[sent].state, CAIRN_BUFFER_ENDING);
    ck_assert_uint_ne(send_sum(0, 0), sent);
    buffer_pool_return(&pool, sent);
    ck_assert_uint_eq(send_sum(1, 0), sent);
}

TEST(a_void_round_leaves_no_sum_and_no_claim)
{
    open_pool(3);
    ck_assert(claim(0, 0, true)); // still on loan to its fold
    const uint32_t sent = send_sum(0, 1), others = send_sum(1, 0);
    ck_assert(!claim(0, 2, true));
    ck_assert(!claim(1, 2, true));
    buffer_pool_end_sending(&pool, &owners[0]);
    ck_assert_int_eq(buffers[sent].state, CAIRN_BUFFER_FREE);
    ck_assert_int_eq(buffers[others].state, CAIRN_BUFFER_SENDING);
    ck_assert_ptr_null(expect(expect(buffer_pool_void(&pool), 0, 2), 1, 2));
    ck_assert_int_eq(buffers[claims[0][0].buffer].state, CAIRN_BUFFER_ENDING);
    ck_assert_uint_eq(owners[0].sums[0], CAIRN_BUFFER_NONE);
    ck_assert_uint_eq(owners[0].held, 0);
    ck_assert_ptr_null(buffer_pool_advance(&pool));
    buffer_pool_return(&pool, claims[0][0].buffer);
    ck_assert_int_eq(buffers[claims[0][0].buffer].state, CAIRN_BUFFER_FREE);
}

TEST(folds_wait_for_room_and_go_on_when_there_is_some)
{
    open_pool(OWNERS * CHUNKS);
    room = 1;
    ck_assert(claim(0, 0, true));
    ck_assert(!claim(0, 1, true));
    ck_assert(!claim(0, 2, true));
    room = 2;
    ck_assert_ptr_null(expect(buffer_pool_advance(&pool), 0, 1));
    room = 3;
    ck_assert_ptr_null(expect(buffer_pool_advance(&pool), 0, 2));
}

TEST(only_unbroken_time_in_which_nothing_but_room_helps_is_given_up)
{
    open_pool(OWNERS * CHUNKS);
    room = 1;
    ck_assert(claim(0, 0, true));
    ck_assert(!buffer_pool_is_stuck(&pool, &owners[0], false, 1000)); // nothing waits
    ck_assert(!claim(0, 1, true));
    ck_assert(!buffer_pool_is_stuck(&pool, &owners[0], false, 2000));
    ck_assert(!buffer_pool_is_stuck(&pool, &owners[0], false, 2099));
    ck_assert(buffer_pool_is_stuck(&pool, &owners[0], false, 2100));
    ck_assert(!buffer_pool_is_stuck(&pool, &owners[0], true, 2101)); // a worker may end a sum
    ck_assert(!buffer_pool_is_stuck(&pool, &owners[0], false, 2200));
    buffer_pool_final(&pool, &owners[0], 0);
    ck_assert(!buffer_pool_is_stuck(&pool, &owners[0], false, 2300)); // an answer may
    ck_assert(!buffer_pool_is_stuck(&pool, &owners[1], false, 2400));
}

SUITE(30);
