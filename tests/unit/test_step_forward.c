/* The shard's round machine as that of a relay (config.forwards): what it passes on, and when. Members A
 * and B, as in step_driver.h; begin_relay opens round 100 of epoch 5. */
#include "tests/support/suite.h"
#include "tests/unit/step_driver.h"

static void begin_members(uint32_t chunk_count, uint32_t window, const uint64_t *members,
                          uint32_t member_count, const uint8_t *holds)
{
    make_with(&(const struct step_config) { .chunk_count = chunk_count,
                                            .window = window,
                                            .member_max = member_count,
                                            .payload_bytes_max = 64,
                                            .forwards = true });
    fence(5);
    resolve(5, CAIRN_DECISION_NONE, 0, 0);
    GIVE(.kind = CAIRN_STEP_OPEN, .epoch = 5, .round = 100, .members = members,
         .member_count = member_count, .holds = holds);
}

static const uint64_t both[] = { A, B };

static void begin_relay(uint32_t chunk_count, const uint8_t *holds)
{
    begin_members(chunk_count, WINDOW, both, 2, holds);
}

/* The actions of the last event, of one kind. */
static uint32_t count_of(enum step_action_kind kind)
{
    uint32_t count = 0;
    for (size_t i = 0; i < out.count; i++) count += list[i].kind == kind;
    return count;
}

/* The only one of its kind. */
static const struct step_action *only(enum step_action_kind kind)
{
    ck_assert_uint_eq(count_of(kind), 1);
    size_t i = 0;
    while (list[i].kind != kind) i++;
    return &list[i];
}

static uint32_t receive(uint64_t member, uint32_t micro, uint32_t index)
{
    chunk(member, micro, index);
    return only(CAIRN_STEP_RECEIVE)->slot;
}

/* The end of a micro-batch of a member that leaves out `absent` of the owner's chunks. */
static void end_micro(uint64_t member, uint32_t micro, uint32_t sent, uint32_t absent)
{
    GIVE(.kind = CAIRN_STEP_MICRO_END, .epoch = 5, .round = 100, .member = member, .micro = micro,
         .sent = sent, .absent = absent);
}

/* A round of one empty micro-batch; stands in REDUCING. */
static void finish(void)
{
    micro_end(A, 0, 0);
    micro_end(B, 0, 0);
    commit(A, 0, 1);
    commit(B, 0, 1);
    ck_assert_int_eq(step_phase_of(step), CAIRN_STEP_REDUCING);
}

TEST(a_sum_is_passed_on_once_when_all_members_are_past_it_and_not_before_its_fold_ended)
{
    begin_relay(CHUNKS, NULL);
    contribute(A, 0, 2);
    ck_assert_uint_eq(count_of(CAIRN_STEP_FORWARD), 0); // B's may come
    const uint32_t slot = receive(B, 0, 2);
    landed(slot, CAIRN_OK);
    ck_assert(!only(CAIRN_STEP_FOLD)->first);
    ck_assert_uint_eq(count_of(CAIRN_STEP_FORWARD), 0); // it is being added
    folded(2);
    ck_assert_uint_eq(only(CAIRN_STEP_FORWARD)->chunk, 2);
    ck_assert_uint_eq(only(CAIRN_STEP_FORWARD)->micro, 0);
    ck_assert_uint_eq(only(CAIRN_STEP_FORWARD)->round, 100);
    micro_end(A, 0, 1);
    ck_assert_uint_eq(count_of(CAIRN_STEP_FORWARD), 0);
    micro_end(B, 0, 1);
    ck_assert_uint_eq(count_of(CAIRN_STEP_FORWARD), 0);
    ck_assert_uint_eq(only(CAIRN_STEP_FORWARD_END)->count, 1);
}

TEST(what_only_one_member_has_is_passed_on_when_the_others_say_that_they_have_nothing)
{
    begin_relay(CHUNKS, NULL);
    contribute(A, 0, 0);
    contribute(A, 0, 3);
    micro_end(A, 0, 2);
    ck_assert_uint_eq(count_of(CAIRN_STEP_FORWARD), 0);
    micro_end(B, 0, 0);
    ck_assert_uint_eq(count_of(CAIRN_STEP_FORWARD), 2);
    ck_assert_uint_eq(only(CAIRN_STEP_FORWARD_END)->count, 2); // nothing of the chunks 1 and 2
    ck_assert_uint_eq(only(CAIRN_STEP_FORWARD_END)->micro, 0);
}

TEST(the_next_micro_batch_waits_for_the_end_of_this_one_and_begins_another_sum)
{
    begin_relay(CHUNKS, NULL);
    contribute(A, 0, 0);
    micro_end(A, 0, 1);
    expect(0, CAIRN_STEP_MICRO_ACK);
    contribute(B, 0, 0);
    only(CAIRN_STEP_FORWARD); // of chunk 0; the others are not past the micro-batch
    const uint32_t next = receive(A, 1, 0);
    landed(next, CAIRN_OK);
    ck_assert_uint_eq(out.count, 0);
    micro_end(B, 0, 1);
    ck_assert_uint_eq(only(CAIRN_STEP_FORWARD_END)->count, 1);
    ck_assert(only(CAIRN_STEP_FOLD)->first);
    ck_assert_uint_eq(only(CAIRN_STEP_FOLD)->slots[0], next);
    folded(0);
    ck_assert_uint_eq(count_of(CAIRN_STEP_FORWARD), 0);
    const uint32_t last = receive(B, 1, 0);
    landed(last, CAIRN_OK);
    ck_assert(!only(CAIRN_STEP_FOLD)->first);
    folded(0);
    ck_assert_uint_eq(only(CAIRN_STEP_FORWARD)->micro, 1);
}

TEST(members_may_have_different_numbers_of_micro_batches)
{
    begin_relay(1, NULL);
    contribute(A, 0, 0);
    end_micro(A, 0, 1, 0);
    commit(A, 0, 3);
    contribute(B, 0, 0);
    ck_assert_uint_eq(only(CAIRN_STEP_FORWARD_END)->micro, 0);
    end_micro(B, 0, 1, 0);
    for (uint32_t micro = 1; micro < 3; micro++) {
        contribute(B, micro, 0);
        ck_assert_uint_eq(only(CAIRN_STEP_FORWARD)->micro, micro);
        end_micro(B, micro, 1, 0);
        ck_assert_uint_eq(only(CAIRN_STEP_FORWARD_END)->micro, micro);
        ck_assert_uint_eq(only(CAIRN_STEP_FORWARD_END)->count, 1);
    }
    commit(B, 2, 4);
    ck_assert_uint_eq(only(CAIRN_STEP_FORWARD_COMMIT)->micro, 2);
    ck_assert_uint_eq(only(CAIRN_STEP_FORWARD_COMMIT)->weight, 7);
    ck_assert_uint_eq(only(CAIRN_STEP_FORWARD_COMMIT)->round, 100);
    ck_assert_uint_eq(count_of(CAIRN_STEP_REDUCE) + count_of(CAIRN_STEP_ZERO), 0);
    ck_assert_int_eq(step_phase_of(step), CAIRN_STEP_REDUCING);
}

TEST(a_commit_that_overtakes_the_ends_waits_for_them)
{
    begin_relay(1, NULL);
    commit(A, 1, 1);
    commit(B, 0, 1);
    ck_assert_uint_eq(out.count, 0);
    end_micro(B, 0, 0, 1);
    end_micro(A, 0, 0, 1);
    ck_assert_uint_eq(only(CAIRN_STEP_FORWARD_END)->count, 0);
    ck_assert_uint_eq(count_of(CAIRN_STEP_FORWARD_COMMIT), 0);
    end_micro(A, 1, 0, 1);
    ck_assert_uint_eq(only(CAIRN_STEP_FORWARD_END)->micro, 1);
    only(CAIRN_STEP_FORWARD_COMMIT);
}

TEST(an_owner_without_chunks_is_told_of_every_micro_batch_and_of_the_commit)
{
    begin_relay(0, NULL);
    for (uint32_t micro = 0; micro < 1000; micro++) { // one is far ahead: no event says it all
        end_micro(A, micro, 0, 0);
        ck_assert_uint_eq(only(CAIRN_STEP_MICRO_ACK)->micro, micro);
        ck_assert_uint_eq(only(CAIRN_STEP_FORWARD_END)->micro, micro);
    }
    commit(A, 999, 5);
    end_micro(B, 0, 0, 0);
    ck_assert_uint_eq(count_of(CAIRN_STEP_FORWARD_END), 0);
    commit(B, 0, 6);
    ck_assert_uint_eq(out.count, 1);
    ck_assert_uint_eq(only(CAIRN_STEP_FORWARD_COMMIT)->micro, 999);
    ck_assert_uint_eq(only(CAIRN_STEP_FORWARD_COMMIT)->weight, 11);
}

TEST(chunks_that_nobody_holds_are_past_every_micro_batch)
{
    static const uint8_t none[] = { 0, 0 };
    begin_relay(CHUNKS, none);
    micro_end(A, 0, 0);
    only(CAIRN_STEP_MICRO_ACK);
    ck_assert_uint_eq(only(CAIRN_STEP_FORWARD_END)->count, 0);
    commit(A, 0, 1);
    micro_end(B, 0, 0);
    ck_assert_uint_eq(count_of(CAIRN_STEP_FORWARD_END), 0); // there is no second one, yet
    commit(B, 0, 1);
    ck_assert_uint_eq(out.count, 1);
    ck_assert_uint_eq(only(CAIRN_STEP_FORWARD_COMMIT)->micro, 0);
}

/* B holds nothing, A the chunk: what A commits says that there is no other micro-batch. */
TEST(no_micro_batch_ends_that_nobody_began)
{
    static const uint8_t halves[] = { 1, 0 };
    begin_relay(1, halves);
    commit(A, 0, 1);
    contribute(A, 0, 0);
    only(CAIRN_STEP_FORWARD);
    end_micro(A, 0, 1, 0);
    ck_assert_uint_eq(only(CAIRN_STEP_FORWARD_END)->micro, 0);
    end_micro(B, 0, 0, 1);
    ck_assert_uint_eq(only(CAIRN_STEP_MICRO_ACK)->member, B);
    ck_assert_uint_eq(count_of(CAIRN_STEP_FORWARD_END), 0);
    end_micro(B, 1, 0, 1);
    ck_assert_uint_eq(only(CAIRN_STEP_FORWARD_END)->micro, 1);
    commit(B, 1, 1);
    ck_assert_uint_eq(only(CAIRN_STEP_FORWARD_COMMIT)->micro, 1);
}

TEST(a_member_that_holds_nothing_is_at_most_one_micro_batch_ahead)
{
    static const uint8_t halves[] = { 1, 0 };
    begin_relay(1, halves);
    end_micro(B, 0, 0, 1);
    only(CAIRN_STEP_MICRO_ACK);
    end_micro(B, 1, 0, 1);
    ck_assert_uint_eq(out.count, 0); // A is in the first
    end_micro(B, 1, 0, 1);
    ck_assert_uint_eq(out.count, 0); // a duplicate
    end_micro(B, 2, 0, 1);
    ck_assert_int_eq(only(CAIRN_STEP_REFUSE)->status, CAIRN_ERR_PROTOCOL);
    contribute(A, 0, 0);
    ck_assert_uint_eq(only(CAIRN_STEP_FORWARD_END)->micro, 0);
    ck_assert_uint_eq(only(CAIRN_STEP_MICRO_ACK)->member, B);
    ck_assert_uint_eq(only(CAIRN_STEP_MICRO_ACK)->micro, 1);
    end_micro(A, 0, 1, 0);
    ck_assert_uint_eq(count_of(CAIRN_STEP_FORWARD_END), 0);
    commit(A, 0, 1);
    ck_assert_uint_eq(only(CAIRN_STEP_FORWARD_END)->micro, 1);
    end_micro(B, 2, 0, 1);
    ck_assert_uint_eq(only(CAIRN_STEP_FORWARD_END)->micro, 2);
    commit(B, 2, 1);
    ck_assert_uint_eq(only(CAIRN_STEP_FORWARD_COMMIT)->micro, 2);
}

TEST(what_comes_again_after_the_end_is_acknowledged)
{
    begin_relay(CHUNKS, NULL);
    contribute(A, 0, 1);
    micro_end(A, 0, 1);
    micro_end(B, 0, 0);
    commit(A, 0, 1);
    commit(B, 0, 1);
    only(CAIRN_STEP_FORWARD_COMMIT);
    GIVE(.kind = CAIRN_STEP_PEER_DOWN, .member = A);
    GIVE(.kind = CAIRN_STEP_PEER_UP, .member = A);
    ck_assert_uint_eq(only(CAIRN_STEP_GRANT)->round, 100); // what is unanswered there comes again
    chunk(A, 0, 1);
    ck_assert_uint_eq(out.count, 2);
    expect(0, CAIRN_STEP_DISCARD);
    expect(1, CAIRN_STEP_ACK);
    micro_end(A, 0, 1);
    ck_assert_uint_eq(out.count, 1);
    expect(0, CAIRN_STEP_MICRO_ACK);
    commit(A, 0, 1);
    ck_assert_uint_eq(out.count, 0);
}

TEST(a_fence_in_the_middle_ends_what_is_under_way_and_passes_nothing_on)
{
    begin_relay(CHUNKS, NULL);
    const uint32_t first = receive(A, 0, 0), second = receive(B, 0, 1);
    landed(first, CAIRN_OK);
    only(CAIRN_STEP_FOLD);
    landed(second, CAIRN_OK);
    fence(6);
    ck_assert_int_eq(only(CAIRN_STEP_REFUSE)->status, CAIRN_ERR_STALE); // B's waited for A
    ck_assert_int_eq(step_phase_of(step), CAIRN_STEP_DRAINING);
    resolve(6, CAIRN_DECISION_NONE, 0, 0);
    GIVE(.kind = CAIRN_STEP_OPEN, .epoch = 6, .round = 101, .members = (const uint64_t[]) { B },
         .member_count = 1);
    ck_assert_uint_eq(out.count, 0); // it drains
    folded(0);
    ck_assert_uint_eq(count_of(CAIRN_STEP_FORWARD), 0);
    ck_assert_uint_eq(only(CAIRN_STEP_GRANT)->member, B);
    ck_assert_uint_eq(only(CAIRN_STEP_GRANT)->round, 101);
    GIVE(.kind = CAIRN_STEP_CHUNK, .epoch = 6, .round = 101, .member = B, .chunk = 0, .tag = 7);
    landed(only(CAIRN_STEP_RECEIVE)->slot, CAIRN_OK);
    ck_assert(only(CAIRN_STEP_FOLD)->first); // nothing of the void one
    folded(0);
    ck_assert_uint_eq(only(CAIRN_STEP_FORWARD)->round, 101);
}

TEST(a_fence_after_the_commit_makes_it_idle_and_the_round_unknown)
{
    begin_relay(CHUNKS, NULL);
    finish();
    fence(6);
    only(CAIRN_STEP_ANSWER);
    ck_assert_int_eq(step_phase_of(step), CAIRN_STEP_IDLE);
    chunk(A, 0, 0);
    expect_refused(CAIRN_ERR_STALE);
    resolve(6, CAIRN_DECISION_APPLY, 100,
            11); // whatever became of it, it is not the relay's to say
    ck_assert_uint_eq(out.count, 0);
    GIVE(.kind = CAIRN_STEP_OPEN, .epoch = 6, .round = 101, .members = both, .member_count = 2);
    ck_assert_uint_eq(count_of(CAIRN_STEP_GRANT), 2);
}

TEST(the_next_round_opens_without_a_fence_when_everything_was_passed_on)
{
    begin_relay(CHUNKS, NULL);
    GIVE(.kind = CAIRN_STEP_OPEN, .epoch = 5, .round = 101, .members = both, .member_count = 2);
    expect_fault(); // this one is not at its end
    begin_relay(CHUNKS, NULL);
    finish();
    GIVE(.kind = CAIRN_STEP_OPEN, .epoch = 5, .round = 101, .members = both, .member_count = 2);
    ck_assert_uint_eq(count_of(CAIRN_STEP_GRANT), 2);
    chunk(A, 0, 0);
    expect_refused(CAIRN_ERR_STALE);
    GIVE(.kind = CAIRN_STEP_CHUNK, .epoch = 5, .round = 101, .member = A, .chunk = 0, .tag = 7);
    landed(only(CAIRN_STEP_RECEIVE)->slot, CAIRN_OK);
    ck_assert(only(CAIRN_STEP_FOLD)->first);
}

TEST(more_members_than_one_fold_takes_are_one_contribution)
{
    uint64_t members[20];
    for (uint32_t i = 0; i < 20; i++) members[i] = i + 1;
    begin_members(1, 1, members, 20, NULL);
    for (uint32_t i = 20; i-- > 0;) {
        const uint32_t slot = receive(members[i], 0, 0);
        landed(slot, CAIRN_OK);
    }
    ck_assert_uint_eq(only(CAIRN_STEP_FOLD)->count, CAIRN_STEP_FOLD_MAX);
    folded(0);
    ck_assert_uint_eq(count_of(CAIRN_STEP_FORWARD), 0);
    ck_assert(!only(CAIRN_STEP_FOLD)->first);
    folded(0);
    only(CAIRN_STEP_FORWARD);
    for (uint32_t i = 0; i < 20; i++) end_micro(members[i], 0, 1, 0);
    for (uint32_t i = 0; i < 20; i++) commit(members[i], 0, 1 + i);
    ck_assert_uint_eq(only(CAIRN_STEP_FORWARD_COMMIT)->weight, 210);
}

TEST(what_waits_for_company_is_not_forgotten_at_the_end_of_a_micro_batch)
{
    make_with(&(const struct step_config) { .chunk_count = 2,
                                            .window = 2,
                                            .member_max = 2,
                                            .payload_bytes_max = 64,
                                            .folds_wanted = 1,
                                            .forwards = true });
    fence(5);
    resolve(5, CAIRN_DECISION_NONE, 0, 0);
    GIVE(.kind = CAIRN_STEP_OPEN, .epoch = 5, .round = 100, .members = both, .member_count = 2);
    end_micro(A, 0, 0, 2);
    const uint32_t first = receive(B, 0, 0);
    landed(first, CAIRN_OK);
    only(CAIRN_STEP_FOLD); // under way until the end
    const uint32_t early = receive(A, 1, 1);
    landed(early, CAIRN_OK);
    ck_assert_uint_eq(out.count, 0);
    end_micro(B, 0, 1, 1);
    ck_assert_uint_eq(out.count, 0);
    folded(0);
    only(CAIRN_STEP_FORWARD);
    only(CAIRN_STEP_FORWARD_END);
    ck_assert_uint_eq(only(CAIRN_STEP_FOLD)->slots[0], early);
}

/* All that one event can set free: every member's window in every chunk, and the ends of two
 * micro-batches. The driver's list has no more room than step_actions_max. */
TEST(no_event_gives_more_actions_than_there_is_room_for)
{
    enum { MEMBERS = 12, WIDTH = 4, COUNT = 4 };
    uint64_t members[MEMBERS];
    uint8_t holds[MEMBERS];
    for (uint32_t i = 0; i < MEMBERS; i++) {
        members[i] = i + 1;
        holds[i] = i % 3 == 2 ? 0 : 0xf;
    }
    begin_members(COUNT, WIDTH, members, MEMBERS, holds);
    for (uint32_t i = 1; i < MEMBERS; i++) {
        for (uint32_t c = 0; c < COUNT && holds[i] != 0; c++) {
            const uint32_t slot = receive(members[i], 0, c);
            landed(slot, CAIRN_OK);
        }
        end_micro(members[i], 0, holds[i] != 0 ? COUNT : 0, holds[i] != 0 ? 0 : COUNT);
        if (holds[i] == 0) end_micro(members[i], 1, 0, COUNT);
        commit(members[i], holds[i] != 0 ? 0 : 1, 1);
    }
    commit(members[0], 0, 1);
    end_micro(members[0], 0, 0, COUNT); // and now everything moves
    ck_assert_uint_eq(count_of(CAIRN_STEP_FOLD), COUNT);
    for (uint32_t c = 0; c + 1 < COUNT; c++) folded(c);
    folded(COUNT - 1);
    ck_assert_uint_eq(count_of(CAIRN_STEP_FORWARD_END), 2);
    ck_assert_uint_eq(only(CAIRN_STEP_FORWARD_COMMIT)->weight, MEMBERS);
}

TEST(who_may_still_contribute_has_a_slot_and_something_left_of_this_micro_batch)
{
    begin_relay(CHUNKS, NULL);
    ck_assert(step_may_receive(step));
    for (uint32_t c = 0; c < WINDOW; c++) receive(B, 0, c); // A's come before them
    ck_assert(step_may_receive(step));
    contribute(A, 0, 3);
    end_micro(A, 0, 1, CHUNKS - 1);
    receive(A, 1, 3); // and no more of the one at hand
    ck_assert(!step_may_receive(step));
    landed(0 + WINDOW, CAIRN_OK);
    folded(0);
    ck_assert(step_may_receive(step)); // B has a slot
    fence(6);
    ck_assert(!step_may_receive(step));
}

SUITE(30, set_up, tear_down);
