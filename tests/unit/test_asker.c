/* The asker: what is sent to a shard, in which order, how much at a time, and when again. */
#include <check.h>

#include "proto/link/link.h"
#include "tests/support/suite.h"

enum { REQUESTS = 20, WINDOW = 8, DAMAGED_MAX = 16 };

static struct asker asker;
static struct chunk_request requests[REQUESTS];
static uint32_t sent[10 * REQUESTS], sent_count; /* by index, in order */
static cairn_status refusal;                     /* of the fabric */

static cairn_status send_one(struct chunk_request *request)
{
    if (refusal != CAIRN_OK) return refusal;
    ck_assert_uint_lt(sent_count, sizeof sent / sizeof *sent);
    sent[sent_count++] = request->index;
    return CAIRN_OK;
}

static void set_up(void)
{
    asker_open(&asker, send_one);
    for (uint32_t i = 0; i < REQUESTS; i++)
        requests[i] = (struct chunk_request) { .index = i, .serial = 1 };
    sent_count = 0;
    refusal = CAIRN_OK;
}

static void ask(uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) asker_ask(&asker, &requests[i]);
    asker_pump(&asker);
}

static bool answer(uint32_t index)
{
    return asker_answered(&asker, &requests[index], chunk_request_number(&requests[index]));
}

static bool refuse(uint32_t index, uint64_t status)
{
    ck_assert(answer(index));
    const bool again = asker_again(&asker, &requests[index], status);
    asker_pump(&asker);
    return again;
}

/* All that was sent is `first`, `first` + 1, ... */
static void expect_sent(uint32_t first, uint32_t count)
{
    ck_assert_uint_eq(sent_count, count);
    for (uint32_t i = 0; i < count; i++) ck_assert_uint_eq(sent[i], first + i);
    sent_count = 0;
}

TEST(no_more_than_the_window_is_unanswered_and_the_first_that_came_goes_first)
{
    ask(WINDOW + 2);
    expect_sent(0, WINDOW);
    ck_assert(answer(3));
    asker_pump(&asker);
    expect_sent(WINDOW, 1);
    asker_pump(&asker);
    expect_sent(0, 0);
    ck_assert(answer(0));
    asker_pump(&asker);
    expect_sent(WINDOW + 1, 1);
}

TEST(a_number_is_of_one_use_of_one_request_and_never_of_a_push)
{
    const uint64_t number = chunk_request_number(&requests[1]);
    ck_assert_uint_ne(number & CAIRN_REQUEST_OF_ASKER, 0);
    ck_assert_uint_ne(number, chunk_request_number(&requests[2]));
    requests[1].serial++;
    ck_assert_uint_ne(number, chunk_request_number(&requests[1]));
    ck_assert_uint_eq((uint32_t)number, 1);
}

static const uint32_t serials[] = { 0, INT32_MAX, UINT32_MAX };

TEST_EACH(a_serial_that_grows_out_of_its_bits_is_still_told_from_the_one_before, 0,
          sizeof serials / sizeof *serials)
{
    requests[1].serial = serials[_i];
    const uint64_t former = chunk_request_number(&requests[1]);
    requests[1].serial++;
    const uint64_t number = chunk_request_number(&requests[1]);
    ck_assert_uint_ne(number, former);
    ck_assert_uint_ne(number & CAIRN_REQUEST_OF_ASKER, 0);
    ck_assert_uint_eq((uint32_t)number, 1);
    ask(2);
    ck_assert(!asker_answered(&asker, &requests[1], former));
    ck_assert(answer(1));
}

TEST(an_answer_is_taken_once_and_only_to_what_is_asked)
{
    ck_assert(!answer(0));
    ask(2);
    ck_assert(!asker_answered(&asker, &requests[0], chunk_request_number(&requests[1])));
    ck_assert(answer(0));
    ck_assert(!answer(0));
    ck_assert(answer(1));
    ck_assert(!asker_waits(&asker));
    const uint64_t former = chunk_request_number(&requests[0]);
    requests[0].serial++;
    asker_ask(&asker, &requests[0]);
    ck_assert(!asker_answered(&asker, &requests[0], former)); // it only waits
    asker_pump(&asker);
    ck_assert(!asker_answered(&asker, &requests[0], former));
    ck_assert(answer(0));
}

TEST(what_cannot_be_sent_stays_first)
{
    refusal = CAIRN_ERR_BUSY;
    ask(3);
    asker_pump(&asker);
    expect_sent(0, 0);
    ck_assert(asker_waits(&asker));
    refusal = CAIRN_OK;
    asker_pump(&asker);
    expect_sent(0, 3);
}

TEST(after_a_shard_had_no_time_nothing_is_sent_before_a_tick)
{
    ask(2);
    sent_count = 0;
    ck_assert(refuse(0, CAIRN_ERR_BUSY));
    asker_ask(&asker, &requests[2]);
    asker_pump(&asker);
    expect_sent(0, 0);
    asker_retry(&asker);
    ck_assert_uint_eq(sent_count, 2);
    ck_assert_uint_eq(sent[0], 0);
    ck_assert_uint_eq(sent[1], 2);
}

TEST(or_before_it_answers_another)
{
    ask(2);
    sent_count = 0;
    ck_assert(refuse(0, CAIRN_ERR_BUSY));
    expect_sent(0, 0);
    ck_assert(answer(1));
    asker_pump(&asker);
    expect_sent(0, 1);
}

TEST(a_shard_may_have_no_time_as_often_as_it_says_so)
{
    ask(1);
    for (int i = 0; i < 10 * DAMAGED_MAX; i++) {
        ck_assert(refuse(0, CAIRN_ERR_BUSY));
        asker_retry(&asker);
    }
    ck_assert_uint_eq(requests[0].damaged, 0);
    ck_assert_uint_eq(requests[0].state, CAIRN_REQUEST_SENT);
}

TEST(what_came_damaged_is_asked_again_behind_what_waits_and_at_last_given_up)
{
    ask(WINDOW + 1);
    sent_count = 0;
    ck_assert(refuse(0, CAIRN_ERR_CHECKSUM));
    expect_sent(WINDOW, 1); // it was waiting
    ck_assert(answer(1));
    asker_pump(&asker);
    expect_sent(0, 1);
    for (int i = 2; i < DAMAGED_MAX; i++) {
        ck_assert(refuse(0, CAIRN_ERR_CHECKSUM));
        expect_sent(0, 1);
    }
    ck_assert(!refuse(0, CAIRN_ERR_CHECKSUM));
    ck_assert_uint_eq(requests[0].state, CAIRN_REQUEST_IDLE);
    expect_sent(0, 0);
}

static const uint64_t final[] = { CAIRN_ERR_NOT_FOUND, CAIRN_ERR_VERSION_GONE, CAIRN_ERR_CLOSED,
                                  CAIRN_OK, UINT64_MAX };

TEST_EACH(any_other_refusal_is_for_good, 0, sizeof final / sizeof *final)
{
    ask(1);
    ck_assert(!refuse(0, final[_i]));
    ck_assert(!asker_waits(&asker));
    expect_sent(0, 1);
}

TEST(what_is_unanswered_on_a_lost_connection_is_sent_again_and_nothing_else)
{
    ask(3);
    sent_count = 0;
    ck_assert(answer(1)); // and is being received, say
    for (uint32_t i = 0; i < REQUESTS; i++)
        ck_assert_int_eq(asker_lost(&asker, &requests[i]), i == 0 || i == 2);
    ck_assert(!asker_lost(&asker, &requests[0])); // it waits
    asker_pump(&asker);
    ck_assert_uint_eq(sent_count, 2);
    ck_assert_uint_eq(sent[0], 0);
    ck_assert_uint_eq(sent[1], 2);
    ck_assert_uint_eq(requests[0].damaged, 0);
}

TEST(all_that_is_lost_at_once_is_sent_again_in_its_order_before_what_is_asked_later)
{
    ask(3);
    sent_count = 0;
    ck_assert(answer(1));
    asker_all_lost(&asker);
    asker_ask(&asker, &requests[3]);
    asker_pump(&asker);
    ck_assert_uint_eq(sent_count, 3);
    ck_assert_uint_eq(sent[0], 0);
    ck_assert_uint_eq(sent[1], 2);
    ck_assert_uint_eq(sent[2], 3);
}

TEST(an_answer_finds_its_request_by_the_number_once)
{
    ask(2);
    const uint64_t number = chunk_request_number(&requests[1]);
    ck_assert_ptr_eq(asker_take(&asker, number), &requests[1]);
    ck_assert_ptr_null(asker_take(&asker, number));
    requests[1].serial++;
    asker_ask(&asker, &requests[1]);
    asker_pump(&asker);
    ck_assert_ptr_null(asker_take(&asker, number)); // of a former use
}

TEST(what_is_lost_while_the_shard_had_no_time_waits_for_a_tick_behind_what_waited)
{
    ask(3);
    ck_assert(refuse(0, CAIRN_ERR_BUSY));
    sent_count = 0;
    ck_assert(asker_lost(&asker, &requests[1]));
    ck_assert(asker_lost(&asker, &requests[2]));
    asker_pump(&asker);
    expect_sent(0, 0);
    ck_assert_uint_eq(asker.sent, 0);
    asker_retry(&asker);
    expect_sent(0, 3);
}

TEST(what_is_dropped_is_neither_sent_nor_in_the_window)
{
    ask(WINDOW + 2);
    sent_count = 0;
    asker_drop(&asker, &requests[WINDOW]); // waits
    asker_drop(&asker, &requests[0]);      // is unanswered
    asker_drop(&asker, &requests[0]);      // is neither
    asker_pump(&asker);
    expect_sent(WINDOW + 1, 1);
    ck_assert(!answer(0));
    ck_assert_uint_eq(asker.sent, WINDOW);
}

SUITE(30, set_up);
