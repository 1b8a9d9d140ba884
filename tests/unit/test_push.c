/* The push machine: what goes out, in which order, and when a buffer is the caller's again. */
#include <inttypes.h>
#include <check.h>
#include <stdio.h>
#include <stdlib.h>

#include "proto/base/status.h"
#include "proto/link/push.h"
#include "tests/support/suite.h"

#define SHARDS 2
#define QUEUE  12

static struct push_round *push;
static struct push_action list[64];
static struct push_actions out;
static uint64_t requests[SHARDS][300]; /* of the last sending, by cookie: 100 * micro + chunk */

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

/* ---- what the machine said ---- */

static int print(char *text, size_t room, const struct push_action *a)
{
    switch (a->kind) {
    case CAIRN_PUSH_SEND_CHUNK:
        requests[a->shard][a->cookie] = a->request;
        return snprintf(text, room, "s%u chunk %u%s", a->shard, a->chunk,
                        a->in_place ? " in place" : "");
    case CAIRN_PUSH_SEND_MICRO_END:
        return snprintf(text, room, "s%u end %u of %u", a->shard, a->micro, a->sent);
    case CAIRN_PUSH_SEND_COMMIT:
        return snprintf(text, room, "s%u commit %u weight %" PRIu64, a->shard, a->micro, a->weight);
    case CAIRN_PUSH_RELEASED:
        if (a->status == CAIRN_OK) return snprintf(text, room, "released %" PRIu64, a->cookie);
        if (a->status == CAIRN_ERR_EPOCH_CHANGED)
            return snprintf(text, room, "given back %" PRIu64, a->cookie);
        return snprintf(text, room, "failed %" PRIu64 " by %s", a->cookie,
                        status_code_name((int)a->status));
    default: return snprintf(text, room, "void by %s", status_code_name((int)a->status));
    }
}

/* All since the last time, in order: "s0 chunk 1, s0 end 0 of 2". */
static void said(const char *expected)
{
    char text[2048] = "";
    size_t length = 0;
    for (size_t i = 0; i < out.count; i++) {
        length += (size_t)snprintf(text + length, sizeof text - length, "%s", i > 0 ? ", " : "");
        length += (size_t)print(text + length, sizeof text - length, &list[i]);
    }
    out.count = 0;
    ck_assert_str_eq(text, expected);
}

/* ---- what it is told: chunks are of micro-batch 0, and known by their number ---- */

static struct push_chunk large(uint32_t chunk, uint64_t cookie)
{
    return (struct push_chunk) { .chunk = chunk, .cookie = cookie };
}

static void chunks(uint32_t shard, uint32_t micro, uint32_t count)
{
    for (uint32_t c = 0; c < count; c++)
        ck_assert_int_eq(push_chunk(push, shard, micro, large(c, 100 * micro + c), &out), CAIRN_OK);
}

static void chunk_of(struct push_chunk chunk)
{
    chunk.cookie = chunk.chunk;
    ck_assert_int_eq(push_chunk(push, 0, 0, chunk, &out), CAIRN_OK);
}

static void lying(uint32_t chunk, enum push_lies lies)
{
    chunk_of((struct push_chunk) { .chunk = chunk, .lies = lies });
}

static void end(uint32_t micro)
{
    ck_assert_int_eq(push_micro_end(push, micro, &out), CAIRN_OK);
}

static void commit(uint64_t weight)
{
    ck_assert_int_eq(push_commit(push, weight, &out), CAIRN_OK);
}

static void grant_by(uint32_t endpoint, struct push_window window)
{
    push_on_grant(push, 0, endpoint, window, &out);
}

static void grant(uint32_t shard, uint32_t endpoint, uint32_t count)
{
    push_on_grant(push, shard, endpoint, (struct push_window) { .chunks = count }, &out);
}

static void hello(uint32_t shard, uint32_t endpoint)
{
    push_on_hello(push, shard, endpoint, &out);
}

static void lost(uint32_t shard)
{
    push_on_lost(push, shard, &out);
}

static void ack(uint32_t shard, uint32_t chunk)
{
    push_on_ack(push, shard, requests[shard][chunk], &out);
}

static void refuse(uint32_t shard, uint32_t chunk, cairn_status status)
{
    push_on_refuse(push, shard, requests[shard][chunk], status, &out);
}

static void refuse_end(cairn_status status)
{
    push_on_refuse(push, 0, 0, status, &out);
}

TEST(nothing_is_sent_before_the_grant_and_then_no_more_than_the_window)
{
    chunks(0, 0, 4);
    said("");
    grant(0, 1, 2);
    said("s0 chunk 0, s0 chunk 1");
    grant(0, 1, 2); // a duplicate
    said("");
}

/* In the order of the queue: a large one that waits for its turn keeps those behind it. */
TEST(small_chunks_have_a_window_of_their_own)
{
    grant_by(1, (struct push_window) { .chunks = 1, .small = 2 });
    chunks(0, 0, 1);
    for (uint32_t c = 1; c < 4; c++) chunk_of((struct push_chunk) { .chunk = c, .is_small = true });
    said("s0 chunk 0, s0 chunk 1, s0 chunk 2");
    ack(0, 0); // a large one, which makes no room for a small one
    said("released 0");
    ack(0, 2);
    said("released 2, s0 chunk 3");
    // Without such a window they are counted as the others, those that are out included.
    grant(0, 1, 2);
    chunk_of((struct push_chunk) { .chunk = 4, .is_small = true });
    said("");
    ack(0, 1);
    said("released 1, s0 chunk 4");
}

/* ---- what is read where it lies ---- */

/* By a way that shares memory. */
static const struct push_window shared = { .chunks = 1, .in_place = 2, .on_card = 3 };

TEST(what_is_read_in_place_has_a_window_of_its_own)
{
    grant_by(1, shared);
    lying(0, CAIRN_PUSH_LIES_CARD);
    lying(3, CAIRN_PUSH_LIES_HOST);
    lying(1, CAIRN_PUSH_LIES_APART);
    lying(2, CAIRN_PUSH_LIES_CARD);
    said("s0 chunk 0 in place, s0 chunk 3 in place, s0 chunk 1");
    ack(0, 1); // makes no room for one that is read in place
    said("released 1");
    ack(0, 0);
    said("released 0, s0 chunk 2 in place");
}

TEST(memory_that_is_not_where_the_shard_adds_up_is_not_read_in_place)
{
    grant_by(1, shared);
    lying(2, CAIRN_PUSH_LIES_HOST);
    lying(3, CAIRN_PUSH_LIES_CARD);
    said("s0 chunk 2");
}

TEST(what_the_shard_cannot_read_in_place_is_sent_as_the_others)
{
    lying(0, CAIRN_PUSH_LIES_CARD);
    lying(1, CAIRN_PUSH_LIES_APART);
    grant_by(1, shared);
    said("s0 chunk 0 in place, s0 chunk 1");
    refuse(0, 0, CAIRN_ERR_BUSY);
    said(""); // the one slot is for the other one
    ack(0, 1);
    said("released 1, s0 chunk 0");
    refuse(0, 0, CAIRN_ERR_CHECKSUM);
    said("s0 chunk 0");
}

TEST(by_a_way_that_shares_no_memory_what_may_hold_a_slot_goes_first)
{
    lying(0, CAIRN_PUSH_LIES_CARD);
    lying(1, CAIRN_PUSH_LIES_APART);
    grant_by(1, shared);
    said("s0 chunk 0 in place, s0 chunk 1");
    lost(0);
    grant(0, 1, 1);
    said("s0 chunk 1");
    ack(0, 1);
    said("released 1, s0 chunk 0");
    lost(0); // and what was sent so stays so
    grant_by(1, shared);
    said("s0 chunk 0");
}

TEST(a_late_refusal_of_what_has_a_slot_gives_the_slot_to_nobody_else)
{
    lying(0, CAIRN_PUSH_LIES_CARD);
    lying(1, CAIRN_PUSH_LIES_CARD);
    grant_by(1, shared);
    said("s0 chunk 0 in place, s0 chunk 1 in place");
    refuse(0, 1, CAIRN_ERR_BUSY);
    refuse(0, 0, CAIRN_ERR_BUSY);
    said("s0 chunk 1");
    refuse(0, 1, CAIRN_ERR_BUSY); // of the sending before
    said("s0 chunk 1");
}

/* ---- answers, ends, commits ---- */

TEST(an_ack_releases_the_buffer_once_and_lets_the_next_chunk_go)
{
    chunks(0, 0, 3);
    grant(0, 1, 1);
    said("s0 chunk 0");
    ack(0, 0);
    ack(0, 0);
    said("released 0, s0 chunk 1");
}

TEST(ends_and_commits_follow_the_chunks_and_the_next_micro_batch_waits_for_its_ack)
{
    chunks(0, 0, 1);
    end(0);
    chunks(0, 1, 1);
    end(1);
    commit(7);
    grant(0, 1, 4);
    said("s0 chunk 0, s0 end 0 of 1");
    push_on_micro_ack(push, 0, 0, &out); // before the chunk's own ack: they may overtake
    said("s0 chunk 0, s0 end 1 of 1, s0 commit 1 weight 7");
    ack(0, 0);
    said("released 0");
}

TEST(a_shard_without_chunks_still_gets_the_end_and_the_commit)
{
    end(0);
    commit(1);
    grant(1, 1, 1);
    said("s1 end 0 of 0, s1 commit 0 weight 1");
}

TEST(a_shard_owes_something_until_the_last_end_is_answered)
{
    ck_assert(!push_waits(push, 0));
    chunks(0, 0, 1);
    ck_assert(push_waits(push, 0)); // the GRANT
    end(0);
    commit(1);
    grant(0, 1, 1);
    said("s0 chunk 0, s0 end 0 of 1, s0 commit 0 weight 1");
    ack(0, 0);
    ck_assert(push_waits(push, 0));
    push_on_micro_ack(push, 0, 0, &out);
    ck_assert(!push_waits(push, 0));
}

TEST(busy_and_checksum_send_the_chunk_again)
{
    chunks(0, 0, 2);
    grant(0, 1, 1);
    said("s0 chunk 0");
    refuse(0, 0, CAIRN_ERR_BUSY);
    said("s0 chunk 0");
    refuse(0, 0, CAIRN_ERR_CHECKSUM);
    said("s0 chunk 0");
    ck_assert(!push_voided(push));
    // In a void round, too: it may be a late answer to the sending before, and the shard reads this one.
    push_on_void(push, &out);
    said("given back 1");
    refuse(0, 0, CAIRN_ERR_CHECKSUM);
    said("s0 chunk 0");
    ck_assert(!push_idle(push));
}

TEST(busy_and_checksum_send_the_end_again)
{
    end(0);
    end(1);
    grant(0, 1, 1);
    said("s0 end 0 of 0");
    refuse_end(CAIRN_ERR_BUSY);
    said("s0 end 0 of 0"); // the first one, as only that was sent
    refuse_end(CAIRN_ERR_CHECKSUM);
    said("s0 end 0 of 0");
    push_on_void(push, &out);
    refuse_end(CAIRN_ERR_BUSY);
    said(""); // nobody waits for it
}

/* ---- connections that are lost, and endpoints that are new ---- */

TEST(a_lost_connection_sends_everything_unanswered_again_oldest_first)
{
    chunks(0, 0, 4);
    end(0);
    grant(0, 1, 3);
    said("s0 chunk 0, s0 chunk 1, s0 chunk 2");
    ack(0, 1);
    said("released 1, s0 chunk 3, s0 end 0 of 4");
    lost(0);
    grant(0, 1, 3);
    said("s0 chunk 0, s0 chunk 2, s0 chunk 3, s0 end 0 of 4");
}

TEST(an_ack_of_an_earlier_sending_is_good_for_a_chunk_that_is_queued_again)
{
    chunks(0, 0, 2);
    grant(0, 1, 2);
    said("s0 chunk 0, s0 chunk 1");
    lost(0);
    ack(0, 0);
    said("released 0");
    grant(0, 1, 2);
    said("s0 chunk 1");
}

TEST(a_grant_of_a_new_endpoint_sends_everything_unanswered_again_oldest_first)
{
    chunks(0, 0, 4);
    end(0);
    commit(7);
    grant(0, 4, 3);
    said("s0 chunk 0, s0 chunk 1, s0 chunk 2");
    const uint64_t first = requests[0][0];
    ack(0, 1);
    said("released 1, s0 chunk 3, s0 end 0 of 4, s0 commit 0 weight 7");
    grant(0, 4, 3); // the same endpoint: nothing was lost
    grant(0, 3, 1); // an earlier one: overtaken, its window too
    hello(0, 5);    // its GRANT comes when the past is over
    said("");
    grant(0, 5, 3);
    said("s0 chunk 0, s0 chunk 2, s0 chunk 3, s0 end 0 of 4, s0 commit 0 weight 7");
    ck_assert_uint_eq(requests[0][0], first); // an answer to either sending is good
    ack(0, 0);
    ack(0, 0); // both were answered
    said("released 0");
}

TEST(after_the_loss_of_the_connection_any_endpoint_is_new)
{
    chunks(0, 0, 1);
    grant(0, 7, 1);
    lost(0);
    said("s0 chunk 0");
    grant(0, 6, 1); // late, on its way when the connection was lost
    said("s0 chunk 0");
    grant(0, 8, 1); // the answer to the new connection
    said("s0 chunk 0");
}

/* ---- void rounds ---- */

TEST(in_a_void_round_a_new_endpoint_is_asked_again_who_reads_the_buffers)
{
    chunks(0, 0, 3);
    chunks(1, 0, 1);
    grant(0, 1, 2);
    grant(1, 1, 1);
    said("s0 chunk 0, s0 chunk 1, s1 chunk 0");
    hello(1, 2); // before the round is void, and the GRANT never comes
    said("");
    push_on_void(push, &out);
    said("given back 2, s1 chunk 0"); // the one was not sent
    hello(0, 1);
    said("");
    hello(0, 2);
    hello(0, 2);
    said("s0 chunk 0, s0 chunk 1");
    refuse(0, 0, CAIRN_ERR_STALE);
    refuse(0, 1, CAIRN_ERR_STALE);
    said("given back 0, given back 1");
    ck_assert(!push_idle(push));
}

TEST(in_a_void_round_a_grant_asks_again_what_the_shard_took_for_a_duplicate)
{
    chunks(0, 0, 1);
    grant(0, 1, 2);
    push_on_void(push, &out);
    said("s0 chunk 0");
    hello(0, 2); // sent again, while the shard still receives the first
    said("s0 chunk 0");
    grant(0, 1, 2); // of the lost endpoint
    said("");
    grant(0, 2, 2); // that receive has failed, and nobody is told
    said("s0 chunk 0");
    refuse(0, 0, CAIRN_ERR_STALE);
    ck_assert(push_idle(push));
}

TEST(a_refusal_makes_the_round_void_and_what_was_sent_stays_on_loan_until_answered)
{
    chunks(0, 0, 4);
    chunks(1, 0, 1);
    grant(0, 1, 2);
    said("s0 chunk 0, s0 chunk 1");
    refuse(0, 0, CAIRN_ERR_STALE);
    said("void by CAIRN_ERR_STALE, given back 0, given back 2, given back 3, given back 0");
    ck_assert(push_voided(push));
    ck_assert(!push_idle(push));
    ck_assert_int_eq(push_chunk(push, 0, 0, large(9, 9), &out), CAIRN_ERR_EPOCH_CHANGED);
    refuse(0, 1, CAIRN_ERR_STALE);
    said("given back 1"); // no second VOID
    ck_assert(push_idle(push));
}

TEST(a_refused_end_or_commit_makes_the_round_void)
{
    end(0);
    grant(0, 1, 1);
    said("s0 end 0 of 0");
    refuse_end(CAIRN_ERR_FENCED);
    said("void by CAIRN_ERR_FENCED");
}

TEST(the_coordinators_void_waits_for_answers_or_the_loss_of_the_connection)
{
    chunks(0, 0, 1);
    chunks(1, 0, 1);
    grant(0, 1, 1);
    grant(1, 1, 1);
    said("s0 chunk 0, s1 chunk 0");
    push_on_void(push, &out);
    said("");
    ack(0, 0);
    lost(1);
    said("given back 0, given back 0");
    ck_assert(push_idle(push));
}

TEST(the_result_of_a_committed_round_releases_everything)
{
    chunks(0, 0, 2);
    end(0);
    commit(1);
    grant(0, 1, 2);
    said("s0 chunk 0, s0 chunk 1, s0 end 0 of 2, s0 commit 0 weight 1");
    push_on_result(push, &out);
    said("released 0, released 1");
    ck_assert(push_idle(push));
}

/* ---- what is not taken ---- */

TEST(a_full_queue_is_busy_and_changes_nothing)
{
    chunks(0, 0, QUEUE);
    ck_assert_int_eq(push_chunk(push, 1, 0, large(0, 0), &out), CAIRN_ERR_BUSY);
    ck_assert_int_eq(push_micro_end(push, 0, &out), CAIRN_ERR_BUSY);
    said("");
    grant(0, 1, 2);
    said("s0 chunk 0, s0 chunk 1");
    ack(0, 0);
    ack(0, 1);
    end(0);
}

TEST(calls_out_of_order_are_invalid_and_change_nothing)
{
    ck_assert_int_eq(push_commit(push, 1, &out), CAIRN_ERR_INVALID);
    ck_assert_int_eq(push_chunk(push, 0, 1, large(0, 0), &out), CAIRN_ERR_INVALID);
    ck_assert_int_eq(push_chunk(push, SHARDS, 0, large(0, 0), &out), CAIRN_ERR_INVALID);
    ck_assert_int_eq(push_micro_end(push, 1, &out), CAIRN_ERR_INVALID);
    end(0);
    ck_assert_int_eq(push_micro_end(push, 0, &out), CAIRN_ERR_INVALID);
    chunks(0, 1, 1);
    ck_assert_int_eq(push_commit(push, 1, &out), CAIRN_ERR_INVALID);
    end(1);
    commit(1);
    ck_assert_int_eq(push_chunk(push, 0, 2, large(0, 0), &out), CAIRN_ERR_INVALID);
    ck_assert_int_eq(push_commit(push, 1, &out), CAIRN_ERR_INVALID);
}

TEST(answers_that_nobody_waits_for_change_nothing)
{
    chunks(0, 0, 1);
    grant(0, 1, 1);
    said("s0 chunk 0");
    const uint64_t request = requests[0][0];
    const uint64_t wrong[] = { 0, 1, request + 1, request ^ 1ull << 40, UINT64_MAX };
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        push_on_ack(push, 0, wrong[i], &out);
        push_on_refuse(push, 0, wrong[i], CAIRN_ERR_BUSY, &out);
    }
    push_on_ack(push, 1, request, &out); // another shard's
    push_on_ack(push, 99, request, &out);
    push_on_micro_ack(push, 0, 0, &out);
    grant(99, 1, 1);
    grant(0, 1, 0);
    said("");
    ck_assert(!push_idle(push));
}

TEST(a_shard_that_is_not_there_is_owed_nothing)
{
    push_absent(push, 0);
    push_absent(push, 0); // twice is once
    ck_assert_int_eq(push_chunk(push, 0, 0, large(0, 0), &out), CAIRN_ERR_INVALID);
    chunks(1, 0, QUEUE - 2); // with an end and a commit of one shard the queue is full
    end(0);
    commit(7);
    ck_assert(!push_waits(push, 0));
    grant(0, 1, 1); // of somebody who was there once
    hello(0, 2);
    lost(0);
    said("");
    grant(1, 1, QUEUE);
    ck_assert_uint_eq(out.count, QUEUE);
    for (size_t i = 0; i < out.count; i++) ck_assert_uint_eq(list[i].shard, 1);
}

TEST(a_configuration_that_cannot_work_has_no_size)
{
    const struct push_config bad[] = { { 0, 10 }, { 3, 5 }, { 1, UINT32_MAX } };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) ck_assert_uint_eq(push_bytes(&bad[i]), 0);
}

SUITE(30, set_up, tear_down);
