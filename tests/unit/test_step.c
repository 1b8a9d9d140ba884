/* The shard's round machine while it collects, event by event. What it does under every kind of fault is
 * cairn-sim's; how a round ends is test_step_outcome.c's. */
#include "proto/spec/spec.h"
#include "tests/support/suite.h"
#include "tests/unit/step_driver.h"

TEST(every_contributor_of_a_new_round_is_granted)
{
    begin();
    ck_assert_uint_eq(out.count, 2);
    ck_assert_uint_eq(expect(0, CAIRN_STEP_GRANT)->member, A);
    ck_assert_uint_eq(list[0].round, 100);
    ck_assert_uint_eq(list[0].window, WINDOW);
    ck_assert_uint_eq(expect(1, CAIRN_STEP_GRANT)->member, B);
}

TEST(a_contribution_is_received_folded_and_acknowledged)
{
    begin();
    chunk(A, 0, 2);
    ck_assert_uint_eq(out.count, 1);
    const uint32_t slot = expect(0, CAIRN_STEP_RECEIVE)->slot;
    ck_assert_uint_eq(step_slots_used(step), 1);
    landed(slot, CAIRN_OK);
    ck_assert(expect(0, CAIRN_STEP_FOLD)->first);
    ck_assert_uint_eq(list[0].count, 1);
    ck_assert_uint_eq(list[0].slots[0], slot);
    folded(2);
    ck_assert_uint_eq(expect(0, CAIRN_STEP_ACK)->request, 1002);
    ck_assert_uint_eq(list[0].member, A);
    ck_assert_uint_eq(step_slots_used(step), 0);
}

TEST(contributions_fold_in_the_order_of_ranks_whatever_lands_first)
{
    begin();
    chunk(B, 0, 0);
    const uint32_t b = list[0].slot;
    chunk(A, 0, 0);
    const uint32_t a = list[0].slot;
    landed(b, CAIRN_OK);
    ck_assert_uint_eq(out.count, 0);
    landed(a, CAIRN_OK);
    ck_assert_uint_eq(expect(0, CAIRN_STEP_FOLD)->count, 2);
    ck_assert_uint_eq(list[0].slots[0], a);
    ck_assert_uint_eq(list[0].slots[1], b);
}

TEST(an_absent_contribution_is_not_waited_for_once_the_end_says_so)
{
    begin();
    chunk(B, 0, 0);
    landed(list[0].slot, CAIRN_OK);
    ck_assert_uint_eq(out.count, 0);
    micro_end(A, 0, 1); // one was sent, and has not come: it may be this one
    ck_assert_uint_eq(out.count, 0);
    chunk(A, 0, 3); // it was another one
    expect(0, CAIRN_STEP_RECEIVE);
    ck_assert_uint_eq(expect(1, CAIRN_STEP_FOLD)->chunk, 0);
}

TEST(a_micro_batch_is_acknowledged_when_every_chunk_is_past_it)
{
    begin();
    for (uint32_t c = 0; c < CHUNKS - 1; c++) contribute(A, 0, c);
    micro_end(A, 0, CHUNKS - 1);
    ck_assert_uint_eq(out.count, 1);
    ck_assert_uint_eq(expect(0, CAIRN_STEP_MICRO_ACK)->micro, 0);
    chunk(A, 1, 0); // the next one may begin
    expect(0, CAIRN_STEP_RECEIVE);
    landed(list[0].slot, CAIRN_OK);
    ck_assert_uint_eq(out.count, 0); // but waits for B's first
    micro_end(B, 0, 0);
    ck_assert_uint_eq(expect(0, CAIRN_STEP_FOLD)->chunk, 0);
    ck_assert_int_eq(list[1].kind, CAIRN_STEP_MICRO_ACK);
}

TEST(a_rank_with_fewer_micro_batches_is_absent_in_the_later_ones)
{
    begin();
    micro_end(A, 0, 0);
    commit(A, 0, 1);
    micro_end(B, 0, 0);
    contribute(B, 1, 0);
    micro_end(B, 1, 1);
    commit(B, 1, 1);
    ck_assert_int_eq(step_phase_of(step), CAIRN_STEP_REDUCING);
}

TEST(duplicates_are_acknowledged_when_folded_and_dropped_before)
{
    begin();
    chunk(A, 0, 0);
    const uint32_t slot = list[0].slot;
    chunk(A, 0, 0);
    ck_assert_uint_eq(out.count, 1);
    expect(0, CAIRN_STEP_DISCARD);
    landed(slot, CAIRN_OK);
    folded(0);
    chunk(A, 0, 0);
    ck_assert_uint_eq(out.count, 2);
    expect(0, CAIRN_STEP_DISCARD);
    ck_assert_uint_eq(expect(1, CAIRN_STEP_ACK)->request, 1000);
    micro_end(A, 0, 1);
    chunk(A, 0, 0); // of a micro-batch that is over
    expect(1, CAIRN_STEP_ACK);
    micro_end(A, 0, 1);
    expect(0, CAIRN_STEP_MICRO_ACK);
}

static const struct refusal {
    const char *what;
    struct step_event event;
    cairn_status status;
} refusals[] = {
    { "an older epoch", { .epoch = 4, .round = 100, .member = A }, CAIRN_ERR_STALE },
    { "an older round", { .epoch = 5, .round = 99, .member = A }, CAIRN_ERR_STALE },
    { "a future round", { .epoch = 5, .round = 101, .member = A }, CAIRN_ERR_PROTOCOL },
    { "a future epoch", { .epoch = 6, .round = 100, .member = A }, CAIRN_ERR_PROTOCOL },
    { "a stranger", { .epoch = 5, .round = 100, .member = 33 }, CAIRN_ERR_FENCED },
    { "no such chunk",
      { .epoch = 5, .round = 100, .member = A, .chunk = CHUNKS },
      CAIRN_ERR_MALFORMED },
    { "a far chunk",
      { .epoch = 5, .round = 100, .member = A, .chunk = UINT32_MAX },
      CAIRN_ERR_MALFORMED },
    { "a future micro-batch",
      { .epoch = 5, .round = 100, .member = A, .micro = 1 },
      CAIRN_ERR_PROTOCOL },
};

TEST_EACH(a_chunk_that_does_not_belong_changes_nothing, 0, sizeof refusals / sizeof *refusals)
{
    begin();
    struct step_event event = refusals[_i].event;
    event.kind = CAIRN_STEP_CHUNK;
    event.tag = 7;
    give(&event);
    expect_refused(refusals[_i].status);
    ck_assert_uint_eq(step_slots_used(step), 0);
    if (event.chunk > 0) return; // the same for what has no chunk
    event.kind = CAIRN_STEP_MICRO_END;
    event.sent = CHUNKS;
    give(&event);
    ck_assert_uint_eq(out.count, 1);
    ck_assert_int_eq(expect(0, CAIRN_STEP_REFUSE)->status, refusals[_i].status);
    ck_assert_uint_eq(list[0].chunk, CAIRN_STEP_NO_CHUNK);
}

TEST(a_chunk_beyond_the_window_finds_no_slot)
{
    begin();
    for (uint32_t c = 0; c < WINDOW; c++) chunk(A, 0, c);
    chunk(A, 0, WINDOW);
    expect_refused(CAIRN_ERR_BUSY);
    chunk(B, 0, 0); // another member's slots are its own
    expect(0, CAIRN_STEP_RECEIVE);
}

TEST(more_chunks_than_the_end_said_break_the_protocol)
{
    begin();
    micro_end(B, 0, 1);
    chunk(B, 0, 0);
    chunk(B, 0, 1);
    expect_refused(CAIRN_ERR_PROTOCOL);
    micro_end(A, 0, 0);
    ck_assert_int_eq(list[0].kind, CAIRN_STEP_MICRO_ACK);
    micro_end(B, 0, 2); // and so does another end
    ck_assert_int_eq(expect(0, CAIRN_STEP_REFUSE)->status, CAIRN_ERR_PROTOCOL);
}

TEST(a_chunk_declared_absent_cannot_come_when_another_was_lost)
{
    begin();
    micro_end(A, 0, 1);
    chunk(A, 0, 0);
    const uint32_t slot = list[0].slot; // now 1, 2, 3 are absent
    landed(slot, CAIRN_ERR_CLOSED);
    chunk(A, 0, 1);
    expect_refused(CAIRN_ERR_PROTOCOL);
    chunk(A, 0, 0);
    expect(0, CAIRN_STEP_RECEIVE);
}

TEST(counts_that_do_not_add_up_are_refused)
{
    begin();
    const uint32_t pairs[][2] = { { 0, 3 }, { 4, 1 }, { UINT32_MAX, 5 }, { 2, UINT32_MAX } };
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++) {
        GIVE(.kind = CAIRN_STEP_MICRO_END, .epoch = 5, .round = 100, .member = A,
             .sent = pairs[i][0], .absent = pairs[i][1]);
        ck_assert_int_eq(expect(0, CAIRN_STEP_REFUSE)->status, CAIRN_ERR_PROTOCOL);
    }
    chunk(A, 0, 0);
    chunk(A, 0, 1);
    micro_end(A, 0, 1); // two have arrived
    ck_assert_int_eq(expect(0, CAIRN_STEP_REFUSE)->status, CAIRN_ERR_PROTOCOL);
}

TEST(a_commit_that_contradicts_what_came_is_refused)
{
    begin();
    const uint64_t all = CAIRN_SPEC_WEIGHT_MAX;
    commit(A, 0, all + 1);
    ck_assert_int_eq(expect(0, CAIRN_STEP_REFUSE)->status, CAIRN_ERR_INVALID);
    commit(A, 0, all);
    ck_assert_uint_eq(out.count, 0);
    commit(A, 0, all); // a duplicate
    ck_assert_uint_eq(out.count, 0);
    commit(A, 1, all);
    ck_assert_int_eq(expect(0, CAIRN_STEP_REFUSE)->status, CAIRN_ERR_PROTOCOL);
    commit(A, 0, 1); // with another weight
    ck_assert_int_eq(expect(0, CAIRN_STEP_REFUSE)->status, CAIRN_ERR_PROTOCOL);
    commit(B, 0, 1); // over what all may have together
    ck_assert_int_eq(expect(0, CAIRN_STEP_REFUSE)->status, CAIRN_ERR_INVALID);
    commit(B, 0, UINT64_MAX);
    ck_assert_int_eq(expect(0, CAIRN_STEP_REFUSE)->status, CAIRN_ERR_INVALID);
    micro_end(A, 0, 0);
    micro_end(B, 0, 0);
    chunk(B, 1, 0);
    commit(B, 0, 0); // but micro-batch 1 has begun
    ck_assert_int_eq(expect(0, CAIRN_STEP_REFUSE)->status, CAIRN_ERR_PROTOCOL);
    chunk(A, 1, 0); // beyond the committed last one
    expect_refused(CAIRN_ERR_PROTOCOL);
}

TEST(a_damaged_chunk_is_refused_and_may_come_again)
{
    begin();
    chunk(A, 0, 0);
    landed(list[0].slot, CAIRN_ERR_CHECKSUM);
    ck_assert_int_eq(expect(0, CAIRN_STEP_REFUSE)->status, CAIRN_ERR_CHECKSUM);
    ck_assert_uint_eq(list[0].request, 1000);
    ck_assert_uint_eq(step_slots_used(step), 0);
    contribute(A, 0, 0);
}

TEST(a_worker_that_came_back_is_granted_when_nothing_of_its_past_is_in_flight)
{
    begin();
    chunk(A, 0, 0);
    const uint32_t slot = list[0].slot;
    GIVE(.kind = CAIRN_STEP_PEER_DOWN, .member = A);
    struct step_waiting waiting[2];
    ck_assert_uint_eq(step_waiting(step, waiting, 2), 2);
    ck_assert(!waiting[0].connected);
    ck_assert(waiting[1].connected);
    GIVE(.kind = CAIRN_STEP_PEER_UP, .member = A);
    ck_assert_uint_eq(out.count, 0);
    landed(slot, CAIRN_ERR_CLOSED);
    ck_assert_uint_eq(out.count, 1);
    ck_assert_uint_eq(expect(0, CAIRN_STEP_GRANT)->member, A);
    contribute(A, 0, 0);
    GIVE(.kind = CAIRN_STEP_PEER_UP, .member = 33); // a stranger
    ck_assert_uint_eq(out.count, 0);
}

TEST(a_chunk_that_nobody_contributed_is_zeroed_before_the_sums)
{
    begin();
    contribute(A, 0, 1);
    micro_end(A, 0, 1);
    micro_end(B, 0, 0);
    commit(A, 0, 1);
    commit(B, 0, 1);
    ck_assert_uint_eq(out.count, 4);
    const uint32_t zeroed[] = { 0, 2, 3 };
    for (size_t i = 0; i < 3; i++) ck_assert_uint_eq(expect(i, CAIRN_STEP_ZERO)->chunk, zeroed[i]);
    expect(3, CAIRN_STEP_REDUCE);
}

TEST(a_shard_without_chunks_takes_part)
{
    make(0, 1, 2);
    fence(5);
    resolve(5, CAIRN_DECISION_NONE, 0, 10);
    open_at(5, 100, 10);
    for (uint64_t member = A; member <= B; member += B - A) {
        GIVE(.kind = CAIRN_STEP_MICRO_END, .epoch = 5, .round = 100, .member = member);
        expect(0, CAIRN_STEP_MICRO_ACK);
        commit(member, 0, 1);
    }
    expect(0, CAIRN_STEP_REDUCE);
}

/* ---- members that hold some of the chunks ---- */

/* Rank 0 holds chunks 0 and 1, rank 1 the others; nobody holds a fifth one. */
static void begin_halves(uint32_t chunk_count)
{
    static const uint64_t members[] = { A, B };
    static const uint8_t holds[] = { 0x3, 0xc };
    make(chunk_count, WINDOW, 4);
    fence(5);
    resolve(5, CAIRN_DECISION_NONE, 0, 10);
    GIVE(.kind = CAIRN_STEP_OPEN, .epoch = 5, .round = 100, .version = { 1, 10 },
         .members = members, .member_count = 2, .holds = holds);
}

TEST(a_lower_rank_that_does_not_hold_the_chunk_is_not_waited_for)
{
    begin_halves(CHUNKS);
    for (uint32_t micro = 0; micro < 3; micro++) {
        contribute(B, micro, 3);
        ck_assert_uint_eq(expect(0, CAIRN_STEP_ACK)->request, 1003);
        contribute(B, micro, 2);
        micro_end(B, micro, 2);
        ck_assert_uint_eq(out.count, 1);
        ck_assert_uint_eq(expect(0, CAIRN_STEP_MICRO_ACK)->micro, micro);
    }
    commit(B, 2, 1);
    contribute(A, 0, 1); // and only now does the other one say anything
    micro_end(A, 0, 1);
    expect(0, CAIRN_STEP_MICRO_ACK);
    commit(A, 0, 1);
    ck_assert_uint_eq(expect(0, CAIRN_STEP_ZERO)->chunk, 0);
    expect(1, CAIRN_STEP_REDUCE);
}

TEST(an_absent_contribution_of_a_chunk_that_is_held_is_waited_for)
{
    begin_halves(CHUNKS);
    contribute(B, 0, 3);
    ck_assert_uint_eq(out.count, 1);
    micro_end(B, 0, 2);
    ck_assert_uint_eq(out.count, 0); // the other half of its micro-batch is under way
    contribute(B, 0, 2);
    expect(1, CAIRN_STEP_MICRO_ACK);
    micro_end(B, 1, 0); // everything is absent, and nobody is before it
    ck_assert_uint_eq(expect(0, CAIRN_STEP_MICRO_ACK)->micro, 1);
}

TEST(a_chunk_that_its_member_does_not_hold_is_refused)
{
    begin_halves(CHUNKS);
    chunk(A, 0, 2);
    expect_refused(CAIRN_ERR_MALFORMED);
    contribute(B, 0, 2);
    micro_end(B, 0, 3); // it holds two
    ck_assert_int_eq(expect(0, CAIRN_STEP_REFUSE)->status, CAIRN_ERR_PROTOCOL);
    contribute(B, 0, 3);
    micro_end(B, 0, 2);
    expect(0, CAIRN_STEP_MICRO_ACK);
}

TEST(a_chunk_that_nobody_holds_is_waited_for_by_nobody)
{
    begin_halves(CHUNKS + 1);
    for (uint64_t member = A; member <= B; member += B - A) {
        GIVE(.kind = CAIRN_STEP_MICRO_END, .epoch = 5, .round = 100, .member = member,
             .absent = CHUNKS + 1);
        expect(0, CAIRN_STEP_MICRO_ACK);
        commit(member, 0, 1);
    }
    for (uint32_t c = 0; c <= CHUNKS; c++) expect(c, CAIRN_STEP_ZERO);
    expect(CHUNKS + 1, CAIRN_STEP_REDUCE);
}

TEST(what_members_hold_is_of_one_round)
{
    begin_halves(CHUNKS);
    chunk(B, 0, 2);
    const uint32_t slot = list[0].slot;
    fence(6);
    resolve(6, CAIRN_DECISION_NONE, 0, 10);
    static const uint64_t members[] = { A, B };
    static const uint8_t holds[] = { 0xc, 0x3 };
    GIVE(.kind = CAIRN_STEP_OPEN, .epoch = 6, .round = 101, .version = { 1, 10 },
         .members = members, .member_count = 2, .holds = holds); // pending: it drains
    ck_assert_uint_eq(out.count, 0);
    landed(slot, CAIRN_OK);
    expect(1, CAIRN_STEP_GRANT);
    GIVE(.kind = CAIRN_STEP_CHUNK, .epoch = 6, .round = 101, .member = B, .chunk = 2, .tag = 7);
    expect_refused(CAIRN_ERR_MALFORMED);
    GIVE(.kind = CAIRN_STEP_CHUNK, .epoch = 6, .round = 101, .member = B, .chunk = 1, .tag = 7);
    landed(expect(0, CAIRN_STEP_RECEIVE)->slot, CAIRN_OK);
    expect(0, CAIRN_STEP_FOLD);
}

TEST(more_contributions_than_one_fold_takes_are_folded_in_two)
{
    make(1, 1, 20);
    uint64_t members[20];
    for (uint32_t i = 0; i < 20; i++) members[i] = i + 1;
    fence(5);
    resolve(5, CAIRN_DECISION_NONE, 0, 10);
    GIVE(.kind = CAIRN_STEP_OPEN, .epoch = 5, .round = 100, .version = { 1, 10 },
         .members = members, .member_count = 20);
    for (uint32_t i = 20; i-- > 0;) {
        chunk(members[i], 0, 0);
        landed(list[0].slot, CAIRN_OK);
    }
    ck_assert_uint_eq(expect(0, CAIRN_STEP_FOLD)->count, CAIRN_STEP_FOLD_MAX);
    ck_assert(list[0].first);
    folded(0);
    ck_assert_uint_eq(out.count, CAIRN_STEP_FOLD_MAX + 1);
    const struct step_action *second = expect(CAIRN_STEP_FOLD_MAX, CAIRN_STEP_FOLD);
    ck_assert_uint_eq(second->count, 20 - CAIRN_STEP_FOLD_MAX);
    ck_assert(!second->first);
}

static void send_sized(uint32_t index, bool is_small)
{
    GIVE(.kind = CAIRN_STEP_CHUNK, .epoch = 5, .round = 100, .member = A, .chunk = index,
         .request = 1000 + index, .is_small = is_small);
}

TEST(small_chunks_land_in_slots_of_their_own)
{
    make_with(&(const struct step_config) {
        .chunk_count = CHUNKS, .window = 3, .small = 2, .member_max = 2, .payload_bytes_max = 64 });
    begin();
    send_sized(0, true);
    ck_assert_uint_eq(expect(0, CAIRN_STEP_RECEIVE)->slot, 1);
    send_sized(1, true);
    ck_assert_uint_eq(expect(0, CAIRN_STEP_RECEIVE)->slot, 2);
    send_sized(2, true); // the large slot is free, and not for it
    ck_assert_int_eq(expect(1, CAIRN_STEP_REFUSE)->status, CAIRN_ERR_BUSY);
    send_sized(2, false);
    ck_assert_uint_eq(expect(0, CAIRN_STEP_RECEIVE)->slot, 0);
}

static void send_placed(uint32_t index, bool is_readable)
{
    GIVE(.kind = CAIRN_STEP_CHUNK, .epoch = 5, .round = 100, .member = A, .chunk = index,
         .request = 1000 + index, .is_small = true, .in_place = true, .is_readable = is_readable);
}

/* One slot with memory, one for small chunks, one for what is read in place. */
static void begin_placed(void)
{
    make_with(&(const struct step_config) { .chunk_count = CHUNKS,
                                            .window = 3,
                                            .small = 1,
                                            .in_place = 1,
                                            .member_max = 2,
                                            .payload_bytes_max = 64 });
    begin();
}

TEST(what_is_read_in_place_takes_a_slot_of_its_own)
{
    begin_placed();
    send_placed(0, true);
    ck_assert_uint_eq(expect(0, CAIRN_STEP_RECEIVE)->slot, 2);
    send_placed(1, true); // others are free, and not for it
    ck_assert_int_eq(expect(1, CAIRN_STEP_REFUSE)->status, CAIRN_ERR_BUSY);
    send_sized(1, true);
    ck_assert_uint_eq(expect(0, CAIRN_STEP_RECEIVE)->slot, 1);
    send_sized(2, false);
    ck_assert_uint_eq(expect(0, CAIRN_STEP_RECEIVE)->slot, 0);
}

TEST(what_cannot_be_read_in_place_is_refused_for_now)
{
    begin_placed();
    send_placed(0, false);
    ck_assert_int_eq(expect(1, CAIRN_STEP_REFUSE)->status, CAIRN_ERR_BUSY);
    send_sized(0, true);
    expect(0, CAIRN_STEP_RECEIVE);
    send_placed(0, false); // it is here: that is answered when it is folded
    ck_assert_uint_eq(out.count, 1);
    expect(0, CAIRN_STEP_DISCARD);
}

TEST(a_grant_tells_the_window_and_that_of_small_chunks_and_of_those_read_in_place)
{
    make_with(&(const struct step_config) { .chunk_count = CHUNKS,
                                            .window = 9,
                                            .small = 2,
                                            .in_place = 4,
                                            .member_max = 2,
                                            .payload_bytes_max = 64 });
    begin();
    ck_assert_uint_eq(expect(0, CAIRN_STEP_GRANT)->window, 3);
    ck_assert_uint_eq(list[0].small, 2);
    ck_assert_uint_eq(list[0].in_place, 4);
}

static void open_with_folds_wanted(uint32_t wanted)
{
    make_with(&(const struct step_config) { .chunk_count = CHUNKS,
                                            .window = CHUNKS,
                                            .member_max = 2,
                                            .payload_bytes_max = 64,
                                            .folds_wanted = wanted });
    fence(5);
    resolve(5, CAIRN_DECISION_NONE, 0, 10);
    GIVE(.kind = CAIRN_STEP_OPEN, .epoch = 5, .round = 100, .version = { 1, 10 },
         .members = (const uint64_t[]) { 1, 2 }, .member_count = 2);
}

static uint32_t land(uint64_t member, uint32_t number)
{
    chunk(member, 0, number);
    const uint32_t slot = expect(0, CAIRN_STEP_RECEIVE)->slot;
    landed(slot, CAIRN_OK);
    return slot;
}

TEST(what_lands_while_enough_is_folded_waits_for_company)
{
    open_with_folds_wanted(1);
    const uint32_t alone = land(1, 0);
    ck_assert_uint_eq(expect(0, CAIRN_STEP_FOLD)->slots[0], alone); // there was nothing to do
    const uint32_t first = land(1, 1);
    ck_assert_uint_eq(out.count, 0);
    const uint32_t second = land(2, 1); // its chunk has all there is: no reason to wait
    ck_assert_uint_eq(expect(0, CAIRN_STEP_FOLD)->count, 2);
    ck_assert_uint_eq(list[0].slots[0], first);
    ck_assert_uint_eq(list[0].slots[1], second);
}

TEST(what_waits_for_company_is_folded_when_there_is_less_to_do)
{
    open_with_folds_wanted(1);
    land(1, 0);
    const uint32_t older = land(1, 2);
    land(1, 1);
    ck_assert_uint_eq(out.count, 0);
    folded(0); // the oldest goes, the other goes on waiting
    ck_assert_uint_eq(out.count, 2);
    ck_assert_int_eq(expect(0, CAIRN_STEP_ACK)->chunk, 0);
    ck_assert_uint_eq(expect(1, CAIRN_STEP_FOLD)->slots[0], older);
    land(2, 1);
    ck_assert_uint_eq(expect(0, CAIRN_STEP_FOLD)->count, 2);
}

TEST(what_waits_for_company_is_refused_when_its_round_is_void)
{
    open_with_folds_wanted(1);
    land(1, 0);
    land(1, 1);
    land(1, 2);
    fence(6);
    ck_assert_int_eq(expect(0, CAIRN_STEP_REFUSE)->chunk, 1);
    ck_assert_int_eq(expect(1, CAIRN_STEP_REFUSE)->chunk, 2);
    resolve(6, CAIRN_DECISION_NONE, 0, 10);
    folded(0);
    GIVE(.kind = CAIRN_STEP_OPEN, .epoch = 6, .round = 101, .version = { 1, 10 },
         .members = (const uint64_t[]) { 1, 2 }, .member_count = 2);
    ck_assert_uint_eq(step_slots_used(step), 0);
}

/* Round 100 of as many micro-batches, all of A and B in chunk 0; what its last FOLD says of itself. */
static bool last_fold_of(uint32_t micros)
{
    bool likely_last = false;
    for (uint32_t micro = 0; micro < micros; micro++)
        for (uint64_t member = A; member <= B; member += B - A) {
            chunk(member, micro, 0);
            landed(list[0].slot, CAIRN_OK);
            likely_last = expect(0, CAIRN_STEP_FOLD)->likely_last;
            folded(0);
            micro_end(member, micro, 1);
        }
    commit(A, micros - 1, 1);
    commit(B, micros - 1, 1);
    ck_assert_int_eq(step_phase_of(step), CAIRN_STEP_REDUCING);
    return likely_last;
}

TEST(a_fold_is_likely_the_last_if_it_was_in_the_round_before)
{
    const struct step_sums sums = { .nonfinite = 1 };
    begin();
    ck_assert(last_fold_of(1));
    GIVE(.kind = CAIRN_STEP_SUMMED, .sums = &sums);
    decide(5, CAIRN_DECISION_SKIP, 100, 10);
    fence(6); // another world: the core forgets nothing of it
    resolve(6, CAIRN_DECISION_SKIP, 100, 10);
    open_at(6, 101, 10);
    GIVE(.kind = CAIRN_STEP_CHUNK, .epoch = 6, .round = 101, .member = A, .chunk = 0, .tag = 7);
    landed(list[0].slot, CAIRN_OK);
    ck_assert(!expect(0, CAIRN_STEP_FOLD)->likely_last); // B's is to come
}

TEST(every_fold_that_ends_the_micro_batch_expected_or_a_later_one_is_likely_the_last)
{
    begin();
    ck_assert(last_fold_of(3));
}

TEST(a_configuration_that_cannot_work_has_no_size)
{
    const struct step_config bad[] = {
        { .chunk_count = 1, .window = 0, .member_max = 1 },
        { .chunk_count = 1, .window = 1025, .member_max = 1 },
        { .chunk_count = 1, .window = 2, .small = 2, .member_max = 1 },
        { .chunk_count = 1, .window = 3, .small = 1, .in_place = 2, .member_max = 1 },
        { .chunk_count = 1, .window = 1, .member_max = 0 },
        { .chunk_count = 1, .window = 1024, .member_max = 1 << 22 },
        { .chunk_count = UINT32_MAX, .window = 1, .member_max = 1 },
        { .chunk_count = 1, .window = 1, .member_max = 1, .payload_bytes_max = SIZE_MAX },
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) ck_assert_uint_eq(step_bytes(&bad[i]), 0);
}

SUITE(30, set_up, tear_down);
