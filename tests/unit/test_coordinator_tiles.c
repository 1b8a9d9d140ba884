/* The coordinator and workers that hold boxes of tensors: declarations, the cover, who may open a round,
 * restarts. The shards are scripted; what they do with tiles is test_shard_tiles.c's. */
#include <check.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/pages.h"
#include "tests/support/suite.h"
#include "tests/support/trained_toy.h"

enum { BIAS, WEIGHT }; /* of fake_spec: [10] and [128, 1024] */

static struct fake_peer w0 = { .fd = -1 }, w1 = { .fd = -1 }, w2 = { .fd = -1 };

static void set_up(void)
{
    open_fake();
    fake_shards_up(&fake, 2);
    w0 = worker("w0");
    w1 = worker("w1");
}

static void tear_down(void)
{
    fake_peer_close(&w0);
    fake_peer_close(&w1);
    fake_peer_close(&w2);
    close_fake();
}

/* ---- declaring ---- */

static uint32_t declare_tiles(struct fake_peer *peer, uint32_t world, const struct tiles *tiles)
{
    uint8_t *bytes;
    size_t size;
    ck_assert_int_eq(tiles_pack(tiles, &bytes, &size), CAIRN_OK);
    const uint32_t request = fake_ask(peer, TilesDeclare, .job = job, .world = world,
                                      .tiles_bytes = size);
    pages_each(CAIRN_PAGE_TILES, bytes, size, fake_send_page, peer);
    free(bytes);
    return request;
}

/* The columns [first, first + count) of weight, and all of bias. */
static uint32_t declare_columns(struct fake_peer *peer, uint32_t world, uint64_t first,
                                uint64_t count)
{
    struct tiles tiles = { 0 };
    const struct cairn_box box = { 2, { 0, first }, { 128, count } };
    ck_assert_int_eq(tiles_set(&tiles, WEIGHT, &box), CAIRN_OK);
    const uint32_t request = declare_tiles(peer, world, &tiles);
    tiles_release(&tiles);
    return request;
}

/* The half of rank 0 or 1. */
static uint32_t declare_half(struct fake_peer *peer, uint32_t rank)
{
    return declare_columns(peer, 2, 512 * (uint64_t)rank, 512);
}

static void expect_set(struct fake_peer *peer, uint32_t request)
{
    fake_hear(peer, TilesSet, request);
}

static uint64_t expect_opened(struct fake_peer *peer, uint32_t request, uint32_t world)
{
    Cairn__RoundOpened *opened = fake_hear(peer, RoundOpened, request);
    ck_assert_uint_eq(opened->world, world);
    return opened->round;
}

/* Both declare their halves, and hear that all have. */
static void set_halves(void)
{
    const uint32_t first = declare_half(&w0, 0), second = declare_half(&w1, 1);
    expect_set(&w0, first);
    expect_set(&w1, second);
}

static void attach_both(void)
{
    job = fake_attach(&w0, 10, 0, 1);
    fake_attach(&w1, 11, 1, 1);
}

/* Two ranks of one half each, set, before the initial state. */
static void two_halves(void)
{
    attach_both();
    set_halves();
}

static uint32_t ask_init(struct fake_peer *peer, bool source)
{
    return fake_ask(peer, InitDone, .job = job, .source = source);
}

/* The same, ready for rounds. */
static void running_halves(void)
{
    two_halves();
    const uint32_t first = ask_init(&w0, true), second = ask_init(&w1, false);
    fake_hear(&w0, Done, first);
    fake_hear(&w1, Done, second);
}

/* A round of both, to its end; the step after it. */
static uint64_t one_round(void)
{
    fake_hold_reduced(&fake, true); // until both are in it
    const uint32_t first = fake_ask_begin(&w0, job), second = fake_ask_begin(&w1, job);
    const uint64_t round = expect_opened(&w0, first, 2);
    ck_assert_uint_eq(expect_opened(&w1, second, 2), round);
    fake_until(&fake, fake.shards[0].round == round && fake.shards[1].round == round);
    fake_hold_reduced(&fake, false);
    for (int i = 0; i < 2; i++) fake_shard_report_reduced(&fake.shards[i]);
    fake_commit(&w0, job, round);
    return fake_commit(&w1, job, round);
}

static void lose_w1(void)
{
    fake_peer_close(&w1);
    fake_until(&fake, fake.shards[0].seen[CAIRN_MSG_MEMBER_LEAVE] == 1);
}

TEST(tiles_are_set_when_all_ranks_have_declared_theirs)
{
    job = fake_attach(&w0, 10, 0, 1);
    const uint32_t first = declare_half(&w0, 0);
    fake_expect_awaited(&w0, job, "rank 1 (not attached)");
    fake_attach(&w1, 11, 1, 1);
    fake_expect_awaited(&w0, job, "worker w1 of rank 1 (has not declared its tiles)");
    const uint32_t second = declare_half(&w1, 1);
    expect_set(&w0, first);
    expect_set(&w1, second);
    for (int i = 0; i < 2; i++) {
        ck_assert_uint_eq(fake.shards[i].seen[CAIRN_MSG_MEMBER_TILES], 2);
        ck_assert_uint_eq(fake.shards[i].tiles_world, 2);
    }
}

TEST(a_cover_that_is_not_exact_fails_for_all_who_wait)
{
    attach_both();
    uint32_t first = declare_half(&w0, 0);
    uint32_t second = declare_columns(&w1, 2, 500, 524);
    fake_expect_error(&w0, first, CAIRN_ERR_MISMATCH,
                      "fc.weight: rank 0 holds [0:128, 0:512] and rank 1 holds [0:128, 500:1024]");
    fake_expect_error(&w1, second, CAIRN_ERR_MISMATCH, "which overlap");
    first = declare_half(&w0, 0);
    second = declare_columns(&w1, 2, 512, 511);
    fake_expect_error(&w0, first, CAIRN_ERR_MISMATCH, "no rank holds [0:128, 1023:1024]");
    fake_expect_error(&w1, second, CAIRN_ERR_MISMATCH, "no rank holds");
    ck_assert_uint_eq(fake.shards[0].seen[CAIRN_MSG_MEMBER_TILES], 0);
    set_halves();
}

/* A list of so many bytes in one page, which says how many there are. */
static uint32_t declare_page(uint64_t announced, uint64_t said, const char *bytes, size_t count)
{
    const uint32_t request = fake_ask(&w0, TilesDeclare, .job = job, .world = 4,
                                      .tiles_bytes = announced);
    if (count > 0)
        fake_say(&w0, request, Page, .what = CAIRN_PAGE_TILES, .total_bytes = said,
                 .bytes = { count, (uint8_t *)(uintptr_t)bytes });
    return request;
}

TEST(a_declaration_that_cannot_be_is_refused)
{
    job = fake_attach(&w0, 10, 3, 1);
    fake_expect_error(&w0, declare_columns(&w0, 2, 0, 1), CAIRN_ERR_INVALID, "declared by rank 3");
    fake_expect_error(&w0, declare_columns(&w0, 9, 0, 1), CAIRN_ERR_INVALID, "round.workers_max");
    fake_expect_error(&w0, declare_columns(&w0, 4, 1000, 25), CAIRN_ERR_INVALID, "fc.weight");
    fake_expect_error(&w0, declare_page(UINT64_MAX, 0, "", 0), CAIRN_ERR_INVALID, "64 MiB");
    fake_expect_error(&w0, declare_page(8, 9, "abcd", 4), CAIRN_ERR_PROTOCOL, "pages");
    fake_expect_error(&w0, declare_page(8, 8, "\xff\xff\xff\xff\xff\xff\xff", 8),
                      CAIRN_ERR_MALFORMED, "TileList");
    fake_expect_awaited(&w0, job, "the initial state"); // none of it counts
}

TEST(a_shard_without_room_for_the_tiles_refuses_them)
{
    attach_both();
    fake.shards[1].refuse_tiles = "over the limit";
    uint32_t first = declare_half(&w0, 0), second = declare_half(&w1, 1);
    fake_expect_error(&w0, first, CAIRN_ERR_NO_MEMORY, "s1: over the limit");
    fake_expect_error(&w1, second, CAIRN_ERR_NO_MEMORY, "s1: over the limit");
    fake.shards[1].refuse_tiles = NULL;
    set_halves();
}

/* ---- initial state ---- */

TEST(a_tiled_job_is_sealed_when_all_ranks_have_put)
{
    two_halves();
    const uint32_t first = ask_init(&w0, true);
    fake_expect_silence(&w0, job);
    ck_assert_uint_eq(fake.shards[0].seen[CAIRN_MSG_JOB_SEAL], 0);
    const uint32_t second = ask_init(&w1, true);
    fake_hear(&w0, Done, first);
    fake_hear(&w1, Done, second);
    ck_assert_uint_eq(one_round(), 1);
}

/* ---- rounds ---- */

TEST(a_restarted_rank_goes_on_when_it_has_declared_the_same)
{
    running_halves();
    ck_assert_uint_eq(one_round(), 1);
    lose_w1();
    const uint32_t begin = fake_ask_begin(&w0, job);
    fake_expect_awaited(&w0, job, "rank 1 (not attached)");
    w1 = worker("w1-again");
    fake_attach(&w1, 12, 1, 1);
    const uint32_t second = fake_ask_begin(&w1, job); // before it has declared
    fake_expect_awaited(&w0, job, "worker w1-again of rank 1 (has not declared its tiles)");
    expect_set(&w1, declare_half(&w1, 1));
    const uint64_t round = expect_opened(&w0, begin, 2);
    ck_assert_uint_eq(expect_opened(&w1, second, 2), round);
    ck_assert_uint_eq(fake_commit(&w0, job, round), 2);
}

TEST(a_worker_that_is_not_one_of_the_ranks_is_waited_out)
{
    running_halves();
    w2 = worker("w2");
    fake_attach(&w2, 12, 2, 1);
    const uint32_t begin = fake_ask_begin(&w0, job);
    fake_expect_awaited(&w0, job, "worker w2 of rank 2 (is not one of the ranks");
    fake_peer_close(&w2);
    expect_opened(&w0, begin, 2);
}

TEST(tiles_change_between_rounds_only)
{
    running_halves();
    fake_hold_reduced(&fake, true);
    const uint64_t round = fake_begin(&w0, job);
    expect_set(&w0, declare_half(&w0, 0)); // the same: as after a reconnect
    uint32_t request = declare_columns(&w0, 2, 0, 400);
    fake_expect_error(&w0, request, CAIRN_ERR_BUSY, "between rounds");
    request = declare_columns(&w1, 1, 0, 400);
    fake_expect_error(&w1, request, CAIRN_ERR_INVALID, "rank 1");
    for (int i = 0; i < 2; i++) fake_shard_report_reduced(&fake.shards[i]);
    fake_hold_reduced(&fake, false);
    ck_assert_uint_eq(fake_commit(&w0, job, round), 1);
    const uint32_t first = declare_columns(&w0, 2, 0, 400);
    fake_expect_awaited(&w0, job, "rank 1 (has not declared its tiles)"); // all begin anew
    const uint32_t second = declare_columns(&w1, 2, 400, 624);
    expect_set(&w0, first);
    expect_set(&w1, second);
    ck_assert_uint_eq(one_round(), 2);
}

TEST(a_newcomer_has_to_fit_to_the_ranks_that_stay)
{
    running_halves();
    lose_w1();
    w1 = worker("w1-again");
    fake_attach(&w1, 12, 1, 1);
    fake_expect_error(&w1, declare_columns(&w1, 2, 500, 524), CAIRN_ERR_MISMATCH, "overlap");
    expect_set(&w1, declare_half(&w1, 1));
    ck_assert_uint_eq(one_round(), 1);
}

TEST(another_number_of_ranks_clears_what_was_declared)
{
    running_halves();
    w2 = worker("w2");
    fake_attach(&w2, 12, 2, 1);
    const uint32_t first = declare_columns(&w0, 3, 0, 300);
    fake_expect_awaited(&w0, job,
                        "worker w1 of rank 1 (has not declared its tiles), worker w2 of rank 2");
    uint32_t second = declare_columns(&w1, 3, 300, 300);
    fake_expect_silence(&w1, job);                  // it is there before the third
    uint32_t third = declare_columns(&w2, 4, 0, 1); // w2 thinks of four: the others hear it
    fake_expect_error(&w0, first, CAIRN_ERR_MISMATCH, "rank 2 declared tiles of 4 ranks");
    fake_expect_error(&w1, second, CAIRN_ERR_MISMATCH, "declare again");
    const uint32_t again = declare_columns(&w0, 3, 0, 300);
    fake_expect_error(&w2, third, CAIRN_ERR_MISMATCH, "rank 0 declared tiles of 3 ranks");
    second = declare_columns(&w1, 3, 300, 300);
    third = declare_columns(&w2, 3, 600, 424);
    expect_set(&w0, again);
    expect_set(&w1, second);
    expect_set(&w2, third);
    const uint32_t begin = fake_ask_begin(&w0, job);
    expect_opened(&w0, begin, 3);
}

TEST(a_job_goes_on_with_whole_tensors_when_nobody_with_tiles_is_left)
{
    running_halves();
    fake_peer_close(&w0);
    fake_peer_close(&w1);
    fake_until(&fake, fake.shards[0].seen[CAIRN_MSG_MEMBER_LEAVE] == 2);
    struct fake_peer plain = worker("plain");
    fake_attach(&plain, 20, 0, 1);
    const uint32_t begin = fake_ask_begin(&plain, job);
    const uint64_t round = expect_opened(&plain, begin, 1);
    ck_assert_uint_eq(fake.shards[0].tiles_world, 0); // the shards were told first
    ck_assert_uint_eq(fake_commit(&plain, job, round), 1);
    fake_peer_close(&plain);
}

TEST(no_ranks_at_all_ends_the_tiles)
{
    running_halves();
    const struct tiles none = { 0 };
    expect_set(&w0, declare_tiles(&w0, 0, &none));
    ck_assert_uint_eq(fake.shards[0].tiles_world, 0);
    lose_w1();
    const uint32_t begin = fake_ask_begin(&w0, job);
    expect_opened(&w0, begin, 1);
}

/* ---- restarts ---- */

TEST(a_shard_that_comes_back_is_told_again_before_a_round)
{
    running_halves();
    const uint32_t told = fake.shards[1].seen[CAIRN_MSG_MEMBER_TILES];
    fake_shard_away(&fake, 1);
    const uint32_t begin = fake_ask_begin(&w0, job);
    fake_expect_awaited(&w0, job, "shard s1 (it is away)");
    fake_shard_up(&fake, 1);
    expect_opened(&w0, begin, 2);
    ck_assert_uint_eq(fake.shards[1].seen[CAIRN_MSG_MEMBER_TILES], told + 2);
}

/* Stops it and starts it; the shards are back. */
static void restart(void)
{
    fake_peer_close(&w0);
    fake_peer_close(&w1);
    fake_coordinator_restart(&fake);
    fake_shards_up(&fake, 2);
}

TEST(a_new_coordinator_opens_no_round_before_all_have_declared_again)
{
    running_halves();
    ck_assert_uint_eq(one_round(), 1);
    restart();
    const uint32_t opened = fake.shards[0].seen[CAIRN_MSG_ROUND_OPEN];
    w0 = worker("w0");
    fake_attach(&w0, 10, 0, 1);
    fake_expect_awaited(&w0, job, "worker w0 of rank 0 (has not declared its tiles), rank 1");
    const uint32_t first = declare_half(&w0, 0);
    const uint32_t begin = fake_ask_begin(&w0, job);
    fake_expect_awaited(&w0, job, "rank 1 (not attached)");
    ck_assert_uint_eq(fake.shards[0].seen[CAIRN_MSG_ROUND_OPEN], opened);
    w1 = worker("w1");
    fake_attach(&w1, 11, 1, 1);
    const uint32_t second = declare_half(&w1, 1);
    expect_set(&w0, first);
    expect_set(&w1, second);
    const uint64_t round = expect_opened(&w0, begin, 2);
    ck_assert_uint_eq(fake_commit(&w0, job, round), 2);
}

TEST(a_round_that_was_prepared_when_the_coordinator_died_is_resolved_first)
{
    running_halves();
    fake.shards[1].holds_reduced = true;
    const uint64_t round = fake_begin(&w0, job);
    fake_until(&fake, fake.shards[0].reduced && fake.shards[1].round == round);
    restart();
    fake.shards[1].holds_reduced = false;
    w0 = worker("w0");
    w1 = worker("w1");
    fake_attach(&w0, 10, 0, 1);
    fake_attach(&w1, 11, 1, 1);
    set_halves();
    ck_assert_uint_eq(one_round(), 1); // the other one was void
}

TEST(a_session_that_reconnects_keeps_its_tiles)
{
    running_halves();
    struct fake_peer again = worker("w0");
    fake_attach(&again, 10, 0, 1);
    const uint32_t begin = fake_ask_begin(&again, job);
    expect_opened(&again, begin, 2);
    expect_set(&again, declare_half(&again, 0)); // in an open round, too
    fake_peer_close(&w0);
    fake_peer_close(&again);
}

SUITE(60, set_up, tear_down);
