/* The push machine: what goes out, in which order, and when a buffer is the caller's again. */
#include <check.h>
#include <stdlib.h>
#include <string.h>

#include "proto/link/push.h"
#include "tests/support/suite.h"

#define SHARDS 2
#define QUEUE  12

static struct push_round *push;
static struct push_action list[64];
static struct push_actions out;

static void set_up(void)
{
    const struct push_config config = { .shard_count = SHARDS, .queue_max = QUEUE };
    void *memory = malloc(push_bytes(&config));
    ck_assert_ptr_nonnull(memory);
    push = push_init(memory, &config);
    out = (struct push_actions) { list, 0, push_actions_max(&config) };
    ck_assert_uint_le(out.capacity, sizeof list / sizeof *list);
}

static void tear_down(void)
{
    free(push);
}

static struct push_window window_of(uint32_t chunks)
{
    return (struct push_window) { .chunks = chunks };
}

static struct push_chunk large(uint32_t chunk, uint64_t cookie)
{
    return (struct push_chunk) { .chunk = chunk, .cookie = cookie };
}

static void push_chunks(uint32_t shard, uint32_t micro, uint32_t count)
{
    for (uint32_t c = 0; c < count; c++)
        ck_assert_int_eq(push_chunk(push, shard, micro, large(c, 100 * micro + c), &out), CAIRN_OK);
}

static void expect(size_t index, enum push_action_kind kind, uint32_t chunk_or_sent)
{
    ck_assert_uint_lt(index, out.count);
    ck_assert_int_eq(list[index].kind, kind);
    ck_assert_uint_eq(list[index].chunk, chunk_or_sent);
}

TEST(nothing_is_sent_before_the_grant_and_then_no_more_than_the_window)
{
    push_chunks(0, 0, 4);
    ck_assert_uint_eq(out.count, 0);
    push_on_grant(push, 0, 1, window_of(2), &out);
    ck_assert_uint_eq(out.count, 2);
    expect(0, CAIRN_PUSH_SEND_CHUNK, 0);
    expect(1, CAIRN_PUSH_SEND_CHUNK, 1);
    push_on_grant(push, 0, 1, window_of(2), &out); // a duplicate sends nothing again
    ck_assert_uint_eq(out.count, 2);
}

static void push_small(uint32_t chunk)
{
    const struct push_chunk small = { .chunk = chunk, .is_small = true, .cookie = chunk };
    ck_assert_int_eq(push_chunk(push, 0, 0, small, &out), CAIRN_OK);
}

/* In the order of the queue: a large one that waits for its turn keeps those behind it. */
TEST(small_chunks_have_a_window_of_their_own)
{
    push_on_grant(push, 0, 1, (struct push_window) { .chunks = 1, .small = 2 }, &out);
    push_chunks(0, 0, 1);
    for (uint32_t c = 1; c < 4; c++) push_small(c);
    ck_assert_uint_eq(out.count, 3);
    for (uint32_t c = 0; c < 3; c++) expect(c, CAIRN_PUSH_SEND_CHUNK, c);
    push_on_ack(push, 0, list[0].request,
                &out); // a large one, which makes no room for a small one
    ck_assert_uint_eq(out.count, 4);
    push_on_ack(push, 0, list[2].request, &out);
    ck_assert_uint_eq(out.count, 6);
    expect(5, CAIRN_PUSH_SEND_CHUNK, 3);
    // Without such a window they are counted as the others, those that are out included.
    push_on_grant(push, 0, 1, window_of(2), &out);
    push_small(4);
    ck_assert_uint_eq(out.count, 6);
    push_on_ack(push, 0, list[1].request, &out);
    ck_assert_uint_eq(out.count, 8);
    expect(7, CAIRN_PUSH_SEND_CHUNK, 4);
}

/* ---- what is read where it lies ---- */

static void push_lying(uint32_t chunk, enum push_lies lies)
{
    const struct push_chunk lying = { .chunk = chunk, .lies = lies, .cookie = chunk };
    ck_assert_int_eq(push_chunk(push, 0, 0, lying, &out), CAIRN_OK);
}

static void expect_sent(size_t index, uint32_t chunk, bool in_place)
{
    expect(index, CAIRN_PUSH_SEND_CHUNK, chunk);
    ck_assert(list[index].in_place == in_place);
}

/* By a way that shares memory. */
static const struct push_window shared = { .chunks = 1, .in_place = 2, .on_card = 3 };

TEST(what_is_read_in_place_has_a_window_of_its_own)
{
    push_on_grant(push, 0, 1, shared, &out);
    push_lying(0, CAIRN_PUSH_LIES_CARD);
    push_lying(3, CAIRN_PUSH_LIES_HOST);
    push_lying(1, CAIRN_PUSH_LIES_APART);
    push_lying(2, CAIRN_PUSH_LIES_CARD);
    ck_assert_uint_eq(out.count, 3);
    expect_sent(0, 0, true);
    expect_sent(1, 3, true);
    expect_sent(2, 1, false);
    push_on_ack(push, 0, list[2].request,
                &out); // makes no room for one that is read in place
    ck_assert_uint_eq(out.count, 4);
    push_on_ack(push, 0, list[0].request, &out);
    ck_assert_uint_eq(out.count, 6);
    expect_sent(5, 2, true);
}

TEST(memory_that_is_not_where_the_shard_adds_up_is_not_read_in_place)
{
    push_on_grant(push, 0, 1, shared, &out);
    push_lying(2, CAIRN_PUSH_LIES_HOST);
    push_lying(3, CAIRN_PUSH_LIES_CARD);
    ck_assert_uint_eq(out.count, 1);
    expect_sent(0, 2, false);
}

TEST(what_the_shard_cannot_read_in_place_is_sent_as_the_others)
{
    push_lying(0, CAIRN_PUSH_LIES_CARD);
    push_lying(1, CAIRN_PUSH_LIES_APART);
    push_on_grant(push, 0, 1, shared, &out);
    const uint64_t first = list[0].request, second = list[1].request;
    out.count = 0;
    push_on_refuse(push, 0, first, CAIRN_ERR_BUSY, &out);
    ck_assert_uint_eq(out.count, 0); // the one slot is for the other one
    push_on_ack(push, 0, second, &out);
    ck_assert_uint_eq(out.count, 2);
    expect_sent(1, 0, false);
    push_on_refuse(push, 0, first, CAIRN_ERR_CHECKSUM, &out);
    ck_assert_uint_eq(out.count, 3);
    expect_sent(2, 0, false);
}

TEST(by_a_way_that_shares_no_memory_what_may_hold_a_slot_goes_first)
{
    push_lying(0, CAIRN_PUSH_LIES_CARD);
    push_lying(1, CAIRN_PUSH_LIES_APART);
    push_on_grant(push, 0, 1, shared, &out);
    const uint64_t second = list[1].request;
    push_on_lost(push, 0, &out);
    out.count = 0;
    push_on_grant(push, 0, 1, window_of(1), &out);
    ck_assert_uint_eq(out.count, 1);
    expect_sent(0, 1, false);
    push_on_ack(push, 0, second, &out);
    ck_assert_uint_eq(out.count, 3);
    expect_sent(2, 0, false);
    push_on_lost(push, 0, &out); // and what was sent so stays so
    out.count = 0;
    push_on_grant(push, 0, 1, shared, &out);
    ck_assert_uint_eq(out.count, 1);
    expect_sent(0, 0, false);
}

TEST(a_late_refusal_of_what_has_a_slot_gives_the_slot_to_nobody_else)
{
    push_lying(0, CAIRN_PUSH_LIES_CARD);
    push_lying(1, CAIRN_PUSH_LIES_CARD);
    push_on_grant(push, 0, 1, shared, &out);
    const uint64_t first = list[0].request, second = list[1].request;
    out.count = 0;
    push_on_refuse(push, 0, second, CAIRN_ERR_BUSY, &out);
    push_on_refuse(push, 0, first, CAIRN_ERR_BUSY, &out);
    ck_assert_uint_eq(out.count, 1);
    expect_sent(0, 1, false);
    push_on_refuse(push, 0, second, CAIRN_ERR_BUSY, &out); // of the sending before
    ck_assert_uint_eq(out.count, 2);
    expect_sent(1, 1, false);
}

TEST(an_ack_releases_the_buffer_once_and_lets_the_next_chunk_go)
{
    push_chunks(0, 0, 3);
    push_on_grant(push, 0, 1, window_of(1), &out);
    const uint64_t request = list[0].request;
    out.count = 0;
    push_on_ack(push, 0, request, &out);
    push_on_ack(push, 0, request, &out);
    ck_assert_uint_eq(out.count, 2);
    expect(0, CAIRN_PUSH_RELEASED, 0);
    ck_assert_int_eq(list[0].status, CAIRN_OK);
    expect(1, CAIRN_PUSH_SEND_CHUNK, 1);
}

TEST(ends_and_commits_follow_the_chunks_and_the_next_micro_batch_waits_for_its_ack)
{
    push_chunks(0, 0, 1);
    ck_assert_int_eq(push_micro_end(push, 0, &out), CAIRN_OK);
    push_chunks(0, 1, 1);
    ck_assert_int_eq(push_micro_end(push, 1, &out), CAIRN_OK);
    ck_assert_int_eq(push_commit(push, 7, &out), CAIRN_OK);
    push_on_grant(push, 0, 1, window_of(4), &out);
    ck_assert_uint_eq(out.count, 2);
    expect(0, CAIRN_PUSH_SEND_CHUNK, 0);
    expect(1, CAIRN_PUSH_SEND_MICRO_END, 1);
    const uint64_t first = list[0].request;
    out.count = 0;
    push_on_micro_ack(push, 0, 0, &out); // before the chunk's own ack: they may overtake
    ck_assert_uint_eq(out.count, 3);
    expect(0, CAIRN_PUSH_SEND_CHUNK, 0);
    expect(1, CAIRN_PUSH_SEND_MICRO_END, 1);
    ck_assert_int_eq(list[2].kind, CAIRN_PUSH_SEND_COMMIT);
    ck_assert_uint_eq(list[2].micro, 1);
    ck_assert_uint_eq(list[2].weight, 7);
    out.count = 0;
    push_on_ack(push, 0, first, &out);
    ck_assert_uint_eq(out.count, 1);
}

TEST(a_shard_without_chunks_still_gets_the_end_and_the_commit)
{
    ck_assert_int_eq(push_micro_end(push, 0, &out), CAIRN_OK);
    ck_assert_int_eq(push_commit(push, 1, &out), CAIRN_OK);
    push_on_grant(push, 1, 1, window_of(1), &out);
    ck_assert_uint_eq(out.count, 2);
    expect(0, CAIRN_PUSH_SEND_MICRO_END, 0);
    ck_assert_int_eq(list[1].kind, CAIRN_PUSH_SEND_COMMIT);
}

TEST(a_lost_connection_sends_everything_unanswered_again_oldest_first)
{
    push_chunks(0, 0, 4);
    ck_assert_int_eq(push_micro_end(push, 0, &out), CAIRN_OK);
    push_on_grant(push, 0, 1, window_of(3), &out);
    const uint64_t second = list[1].request;
    out.count = 0;
    push_on_ack(push, 0, second, &out); // 1 is done, 3 is sent
    push_on_lost(push, 0, &out);
    out.count = 0;
    push_on_grant(push, 0, 1, window_of(3), &out);
    ck_assert_uint_eq(out.count, 4);
    expect(0, CAIRN_PUSH_SEND_CHUNK, 0);
    expect(1, CAIRN_PUSH_SEND_CHUNK, 2);
    expect(2, CAIRN_PUSH_SEND_CHUNK, 3);
    expect(3, CAIRN_PUSH_SEND_MICRO_END, 4);
}

TEST(an_ack_of_an_earlier_sending_is_good_for_a_chunk_that_is_queued_again)
{
    push_chunks(0, 0, 2);
    push_on_grant(push, 0, 1, window_of(2), &out);
    const uint64_t first = list[0].request;
    push_on_lost(push, 0, &out);
    out.count = 0;
    push_on_ack(push, 0, first, &out);
    expect(0, CAIRN_PUSH_RELEASED, 0);
    out.count = 0;
    push_on_grant(push, 0, 1, window_of(2), &out);
    ck_assert_uint_eq(out.count, 1);
    expect(0, CAIRN_PUSH_SEND_CHUNK, 1);
}

TEST(a_grant_of_a_new_endpoint_sends_everything_unanswered_again_oldest_first)
{
    push_chunks(0, 0, 4);
    ck_assert_int_eq(push_micro_end(push, 0, &out), CAIRN_OK);
    ck_assert_int_eq(push_commit(push, 7, &out), CAIRN_OK);
    push_on_grant(push, 0, 4, window_of(3), &out);
    const uint64_t first = list[0].request, second = list[1].request;
    push_on_ack(push, 0, second,
                &out); // 0, 2 and 3 are unanswered, and so are end and commit
    out.count = 0;
    push_on_grant(push, 0, 4, window_of(3), &out); // the same endpoint: nothing was lost
    push_on_grant(push, 0, 3, window_of(1),
                  &out);             // an earlier one: overtaken, its window too
    push_on_hello(push, 0, 5, &out); // its GRANT comes when the past is over
    ck_assert_uint_eq(out.count, 0);
    push_on_grant(push, 0, 5, window_of(3), &out);
    ck_assert_uint_eq(out.count, 5);
    expect(0, CAIRN_PUSH_SEND_CHUNK, 0);
    ck_assert_uint_eq(list[0].request, first); // an answer to either sending is good
    expect(1, CAIRN_PUSH_SEND_CHUNK, 2);
    expect(2, CAIRN_PUSH_SEND_CHUNK, 3);
    expect(3, CAIRN_PUSH_SEND_MICRO_END, 4);
    ck_assert_int_eq(list[4].kind, CAIRN_PUSH_SEND_COMMIT);
    out.count = 0;
    push_on_ack(push, 0, first, &out);
    push_on_ack(push, 0, first, &out); // both were answered
    ck_assert_uint_eq(out.count, 1);
}

TEST(after_the_loss_of_the_connection_any_endpoint_is_new)
{
    push_chunks(0, 0, 1);
    push_on_grant(push, 0, 7, window_of(1), &out);
    push_on_lost(push, 0, &out);
    out.count = 0;
    push_on_grant(push, 0, 6, window_of(1),
                  &out); // late, on its way when the connection was lost
    ck_assert_uint_eq(out.count, 1);
    push_on_grant(push, 0, 8, window_of(1), &out); // the answer to the new connection
    ck_assert_uint_eq(out.count, 2);
    expect(1, CAIRN_PUSH_SEND_CHUNK, 0);
}

TEST(in_a_void_round_a_new_endpoint_is_asked_again_who_reads_the_buffers)
{
    push_chunks(0, 0, 3);
    push_chunks(1, 0, 1);
    push_on_grant(push, 0, 1, window_of(2), &out);
    push_on_grant(push, 1, 1, window_of(1), &out);
    const uint64_t requests[] = { list[0].request, list[1].request };
    push_on_hello(push, 1, 2, &out); // before the round is void, and the GRANT never comes
    out.count = 0;
    push_on_void(push, &out);
    ck_assert_uint_eq(out.count, 2);
    expect(0, CAIRN_PUSH_RELEASED, 2); // was not sent
    expect(1, CAIRN_PUSH_SEND_CHUNK, 0);
    ck_assert_uint_eq(list[1].shard, 1);
    out.count = 0;
    push_on_hello(push, 0, 1, &out);
    ck_assert_uint_eq(out.count, 0);
    push_on_hello(push, 0, 2, &out);
    push_on_hello(push, 0, 2, &out);
    ck_assert_uint_eq(out.count, 2);
    expect(0, CAIRN_PUSH_SEND_CHUNK, 0);
    expect(1, CAIRN_PUSH_SEND_CHUNK, 1);
    out.count = 0;
    for (int i = 0; i < 2; i++) push_on_refuse(push, 0, requests[i], CAIRN_ERR_STALE, &out);
    ck_assert_uint_eq(out.count, 2);
    expect(1, CAIRN_PUSH_RELEASED, 1);
    ck_assert(!push_idle(push));
}

TEST(in_a_void_round_a_grant_asks_again_what_the_shard_took_for_a_duplicate)
{
    push_chunks(0, 0, 1);
    push_on_grant(push, 0, 1, window_of(2), &out);
    push_on_void(push, &out);
    push_on_hello(push, 0, 2, &out); // sent again, while the shard still receives the first
    out.count = 0;
    push_on_grant(push, 0, 1, window_of(2), &out); // of the lost endpoint
    ck_assert_uint_eq(out.count, 0);
    push_on_grant(push, 0, 2, window_of(2),
                  &out); // that receive has failed, and nobody is told
    ck_assert_uint_eq(out.count, 1);
    expect(0, CAIRN_PUSH_SEND_CHUNK, 0);
    push_on_refuse(push, 0, list[0].request, CAIRN_ERR_STALE, &out);
    ck_assert(push_idle(push));
}

TEST(a_shard_owes_something_until_the_last_end_is_answered)
{
    ck_assert(!push_waits(push, 0));
    push_chunks(0, 0, 1);
    ck_assert(push_waits(push, 0)); // the GRANT
    ck_assert_int_eq(push_micro_end(push, 0, &out), CAIRN_OK);
    ck_assert_int_eq(push_commit(push, 1, &out), CAIRN_OK);
    push_on_grant(push, 0, 1, window_of(1), &out);
    const uint64_t request = list[0].request;
    push_on_ack(push, 0, request, &out);
    ck_assert(push_waits(push, 0));
    push_on_micro_ack(push, 0, 0, &out);
    ck_assert(!push_waits(push, 0));
}

TEST(busy_and_checksum_send_the_chunk_again)
{
    push_chunks(0, 0, 2);
    push_on_grant(push, 0, 1, window_of(1), &out);
    const uint64_t request = list[0].request;
    const cairn_status again[] = { CAIRN_ERR_BUSY, CAIRN_ERR_CHECKSUM };
    for (int i = 0; i < 2; i++) {
        out.count = 0;
        push_on_refuse(push, 0, request, again[i], &out);
        ck_assert_uint_eq(out.count, 1);
        expect(0, CAIRN_PUSH_SEND_CHUNK, 0);
    }
    ck_assert(!push_voided(push));
    // In a void round, too: it may be a late answer to the sending before, and the shard reads this one.
    push_on_void(push, &out);
    out.count = 0;
    push_on_refuse(push, 0, request, CAIRN_ERR_CHECKSUM, &out);
    ck_assert_uint_eq(out.count, 1);
    expect(0, CAIRN_PUSH_SEND_CHUNK, 0);
    ck_assert(!push_idle(push));
}

TEST(a_refusal_makes_the_round_void_and_what_was_sent_stays_on_loan_until_answered)
{
    push_chunks(0, 0, 4);
    push_chunks(1, 0, 1);
    push_on_grant(push, 0, 1, window_of(2), &out);
    const uint64_t first = list[0].request, second = list[1].request;
    out.count = 0;
    push_on_refuse(push, 0, first, CAIRN_ERR_STALE, &out);
    ck_assert_uint_eq(out.count, 5); // VOID, and all released but the second
    ck_assert_int_eq(list[0].kind, CAIRN_PUSH_VOID);
    ck_assert_int_eq(list[0].status, CAIRN_ERR_STALE);
    expect(1, CAIRN_PUSH_RELEASED, 0);
    ck_assert_int_eq(list[1].status, CAIRN_ERR_EPOCH_CHANGED);
    ck_assert(push_voided(push));
    ck_assert(!push_idle(push));
    ck_assert_int_eq(push_chunk(push, 0, 0, large(9, 9), &out), CAIRN_ERR_EPOCH_CHANGED);
    out.count = 0;
    push_on_refuse(push, 0, second, CAIRN_ERR_STALE, &out);
    ck_assert_uint_eq(out.count, 1); // no second VOID
    expect(0, CAIRN_PUSH_RELEASED, 1);
    ck_assert(push_idle(push));
}

TEST(the_coordinators_void_waits_for_answers_or_the_loss_of_the_connection)
{
    push_chunks(0, 0, 1);
    push_chunks(1, 0, 1);
    push_on_grant(push, 0, 1, window_of(1), &out);
    push_on_grant(push, 1, 1, window_of(1), &out);
    const uint64_t request = list[0].request;
    out.count = 0;
    push_on_void(push, &out);
    ck_assert_uint_eq(out.count, 0);
    push_on_ack(push, 0, request, &out);
    push_on_lost(push, 1, &out);
    ck_assert_uint_eq(out.count, 2);
    ck_assert(push_idle(push));
}

TEST(the_result_of_a_committed_round_releases_everything)
{
    push_chunks(0, 0, 2);
    ck_assert_int_eq(push_micro_end(push, 0, &out), CAIRN_OK);
    ck_assert_int_eq(push_commit(push, 1, &out), CAIRN_OK);
    push_on_grant(push, 0, 1, window_of(2), &out);
    out.count = 0;
    push_on_result(push, &out);
    ck_assert_uint_eq(out.count, 2);
    ck_assert_int_eq(list[0].status, CAIRN_OK);
    ck_assert(push_idle(push));
}

TEST(a_full_queue_is_busy_and_changes_nothing)
{
    push_chunks(0, 0, QUEUE);
    ck_assert_int_eq(push_chunk(push, 1, 0, large(0, 0), &out), CAIRN_ERR_BUSY);
    ck_assert_int_eq(push_micro_end(push, 0, &out), CAIRN_ERR_BUSY);
    ck_assert_uint_eq(out.count, 0);
    push_on_grant(push, 0, 1, window_of(2), &out);
    const uint64_t requests[] = { list[0].request, list[1].request };
    for (int i = 0; i < 2; i++) push_on_ack(push, 0, requests[i], &out);
    ck_assert_int_eq(push_micro_end(push, 0, &out), CAIRN_OK);
}

TEST(calls_out_of_order_are_invalid_and_change_nothing)
{
    ck_assert_int_eq(push_commit(push, 1, &out), CAIRN_ERR_INVALID);
    ck_assert_int_eq(push_chunk(push, 0, 1, large(0, 0), &out), CAIRN_ERR_INVALID);
    ck_assert_int_eq(push_chunk(push, SHARDS, 0, large(0, 0), &out), CAIRN_ERR_INVALID);
    ck_assert_int_eq(push_micro_end(push, 1, &out), CAIRN_ERR_INVALID);
    ck_assert_int_eq(push_micro_end(push, 0, &out), CAIRN_OK);
    ck_assert_int_eq(push_micro_end(push, 0, &out), CAIRN_ERR_INVALID);
    push_chunks(0, 1, 1);
    ck_assert_int_eq(push_commit(push, 1, &out), CAIRN_ERR_INVALID);
    ck_assert_int_eq(push_micro_end(push, 1, &out), CAIRN_OK);
    ck_assert_int_eq(push_commit(push, 1, &out), CAIRN_OK);
    ck_assert_int_eq(push_chunk(push, 0, 2, large(0, 0), &out), CAIRN_ERR_INVALID);
    ck_assert_int_eq(push_commit(push, 1, &out), CAIRN_ERR_INVALID);
}

TEST(answers_that_nobody_waits_for_change_nothing)
{
    push_chunks(0, 0, 1);
    push_on_grant(push, 0, 1, window_of(1), &out);
    const uint64_t request = list[0].request;
    out.count = 0;
    const uint64_t wrong[] = { 0, 1, request + 1, request ^ 1ull << 40, UINT64_MAX };
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        push_on_ack(push, 0, wrong[i], &out);
        push_on_refuse(push, 0, wrong[i], CAIRN_ERR_BUSY, &out);
    }
    push_on_ack(push, 1, request, &out); // another shard's
    push_on_ack(push, 99, request, &out);
    push_on_micro_ack(push, 0, 0, &out);
    push_on_grant(push, 99, 1, window_of(1), &out);
    push_on_grant(push, 0, 1, window_of(0), &out);
    ck_assert_uint_eq(out.count, 0);
    ck_assert(!push_idle(push));
}

TEST(busy_and_checksum_send_the_end_again)
{
    ck_assert_int_eq(push_micro_end(push, 0, &out), CAIRN_OK);
    ck_assert_int_eq(push_micro_end(push, 1, &out), CAIRN_OK);
    push_on_grant(push, 0, 1, window_of(1), &out);
    const cairn_status again[] = { CAIRN_ERR_BUSY, CAIRN_ERR_CHECKSUM };
    for (int i = 0; i < 2; i++) {
        out.count = 0;
        push_on_refuse(push, 0, 0, again[i], &out);
        ck_assert_uint_eq(out.count, 1); // the first one, as only that was sent
        expect(0, CAIRN_PUSH_SEND_MICRO_END, 0);
        ck_assert_uint_eq(list[0].micro, 0);
    }
    push_on_void(push, &out);
    out.count = 0;
    push_on_refuse(push, 0, 0, CAIRN_ERR_BUSY, &out);
    ck_assert_uint_eq(out.count, 0); // nobody waits for it
}

TEST(a_refused_end_or_commit_makes_the_round_void)
{
    ck_assert_int_eq(push_micro_end(push, 0, &out), CAIRN_OK);
    push_on_grant(push, 0, 1, window_of(1), &out);
    out.count = 0;
    push_on_refuse(push, 0, 0, CAIRN_ERR_FENCED, &out);
    ck_assert_uint_eq(out.count, 1);
    ck_assert_int_eq(list[0].kind, CAIRN_PUSH_VOID);
}

TEST(a_shard_that_is_not_there_is_owed_nothing)
{
    push_absent(push, 0);
    push_absent(push, 0); // twice is once
    ck_assert_int_eq(push_chunk(push, 0, 0, large(0, 0), &out), CAIRN_ERR_INVALID);
    push_chunks(1, 0, QUEUE - 2); // with an end and a commit of one shard the queue is full
    ck_assert_int_eq(push_micro_end(push, 0, &out), CAIRN_OK);
    ck_assert_int_eq(push_commit(push, 7, &out), CAIRN_OK);
    ck_assert(!push_waits(push, 0));
    push_on_grant(push, 0, 1, window_of(1), &out); // of somebody who was there once
    push_on_hello(push, 0, 2, &out);
    push_on_lost(push, 0, &out);
    ck_assert_uint_eq(out.count, 0);
    push_on_grant(push, 1, 1, window_of(QUEUE), &out);
    ck_assert_uint_eq(out.count, QUEUE);
    for (size_t i = 0; i < out.count; i++) ck_assert_uint_eq(list[i].shard, 1);
}

TEST(a_configuration_that_cannot_work_has_no_size)
{
    const struct push_config bad[] = { { 0, 10 }, { 3, 5 }, { 1, UINT32_MAX } };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) ck_assert_uint_eq(push_bytes(&bad[i]), 0);
}

SUITE(30, set_up, tear_down);
