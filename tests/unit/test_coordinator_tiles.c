/* The coordinator and workers that hold boxes of tensors: declarations, the cover, who may open a round,
 * restarts. The shards are scripted; what they do with tiles is test_shard_tiles.c's. */
#include <check.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/fake_cluster.h"
#include "tests/support/pages.h"
#include "tests/support/suite.h"

enum { BIAS, WEIGHT }; /* of fake_spec: [10] and [128, 1024] */

static struct fake_cluster fake;

static void set_up(void)
{
    fake_open(&fake, 2);
    fake_shards_up(&fake, 2);
}
static void tear_down(void)
{
    fake_close(&fake);
}

static struct fake_peer worker(const char *name)
{
    return fake_connect(&fake, CAIRN_ROLE_WIRE_WORKER, name);
}

/* ---- declaring ---- */

struct target {
    struct fake_peer *peer;
    uint32_t request;
};
static void send_page(void *context, const Cairn__Page *page)
{
    const struct target *target = context;
    fake_send(target->peer, CAIRN_MSG_PAGE, target->request, &page->base);
}

static uint32_t declare_tiles(struct fake_peer *peer, uint64_t job, uint32_t world,
                              const struct tiles *tiles)
{
    uint8_t *bytes;
    size_t size;
    ck_assert_int_eq(tiles_pack(tiles, &bytes, &size), CAIRN_OK);
    struct target target = { peer, fake_ask(peer, TilesDeclare, .job = job, .world = world,
                                            .tiles_bytes = size) };
    pages_each(CAIRN_PAGE_TILES, bytes, size, send_page, &target);
    free(bytes);
    return target.request;
}

/* The columns [first, first + count) of weight, and all of bias. */
static uint32_t declare_columns(struct fake_peer *peer, uint64_t job, uint32_t world,
                                uint64_t first, uint64_t count)
{
    struct tiles tiles = { 0 };
    const struct cairn_box box = { 2, { 0, first }, { 128, count } };
    ck_assert_int_eq(tiles_set(&tiles, WEIGHT, &box), CAIRN_OK);
    const uint32_t request = declare_tiles(peer, job, world, &tiles);
    tiles_release(&tiles);
    return request;
}

/* The half of rank 0 or 1. */
static uint32_t declare_half(struct fake_peer *peer, uint64_t job, uint32_t rank)
{
    return declare_columns(peer, job, 2, 512 * (uint64_t)rank, 512);
}

static void expect_set(struct fake_peer *peer, uint32_t request)
{
    fake_hear(peer, TilesSet, request);
}

static uint64_t expect_opened(struct fake_peer *peer, uint32_t request, uint32_t world)
{
    Cairn__RoundOpened *opened = fake_hear(peer, RoundOpened, request);
    ck_assert_uint_eq(opened->world, world);
    const uint64_t round = opened->round;
    return round;
}

/* Two ranks of one half each, set, before the initial state. */
static uint64_t two_halves(struct fake_peer *w0, struct fake_peer *w1)
{
    *w0 = worker("w0");
    *w1 = worker("w1");
    const uint64_t job = fake_attach(w0, 10, 0, 1);
    fake_attach(w1, 11, 1, 1);
    const uint32_t first = declare_half(w0, job, 0), second = declare_half(w1, job, 1);
    expect_set(w0, first);
    expect_set(w1, second);
    return job;
}

static uint32_t ask_init(struct fake_peer *peer, uint64_t job, bool source)
{
    return fake_ask(peer, InitDone, .job = job, .source = source);
}

/* The same, ready for rounds. */
static uint64_t running_halves(struct fake_peer *w0, struct fake_peer *w1)
{
    const uint64_t job = two_halves(w0, w1);
    const uint32_t first = ask_init(w0, job, true), second = ask_init(w1, job, false);
    fake_hear(w0, Done, first);
    fake_hear(w1, Done, second);
    return job;
}

/* A round of both, to its end; the step after it. */
static uint64_t one_round(struct fake_peer *w0, struct fake_peer *w1, uint64_t job)
{
    for (int i = 0; i < 2; i++) fake.shards[i].holds_reduced = true; // until both are in it
    const uint32_t first = fake_ask_begin(w0, job);
    const uint32_t second = fake_ask_begin(w1, job);
    const uint64_t round = expect_opened(w0, first, 2);
    ck_assert_uint_eq(expect_opened(w1, second, 2), round);
    fake_until(&fake, fake.shards[0].round == round && fake.shards[1].round == round);
    for (int i = 0; i < 2; i++) {
        fake.shards[i].holds_reduced = false;
        fake_shard_report_reduced(&fake.shards[i]);
    }
    fake_commit(w0, job, round);
    return fake_commit(w1, job, round);
}

TEST(tiles_are_set_when_all_ranks_have_declared_theirs)
{
    struct fake_peer w0 = worker("w0"), w1 = worker("w1");
    const uint64_t job = fake_attach(&w0, 10, 0, 1);
    const uint32_t first = declare_half(&w0, job, 0);
    fake_expect_awaited(&w0, job, "rank 1 (not attached)");
    fake_attach(&w1, 11, 1, 1);
    fake_expect_awaited(&w0, job, "worker w1 of rank 1 (has not declared its tiles)");
    const uint32_t second = declare_half(&w1, job, 1);
    expect_set(&w0, first);
    expect_set(&w1, second);
    for (int i = 0; i < 2; i++) {
        ck_assert_uint_eq(fake.shards[i].seen[CAIRN_MSG_MEMBER_TILES], 2);
        ck_assert_uint_eq(fake.shards[i].tiles_world, 2);
    }
    fake_peer_close(&w0);
    fake_peer_close(&w1);
}

TEST(a_cover_that_is_not_exact_fails_for_all_who_wait)
{
    struct fake_peer w0 = worker("w0"), w1 = worker("w1");
    const uint64_t job = fake_attach(&w0, 10, 0, 1);
    fake_attach(&w1, 11, 1, 1);
    uint32_t first = declare_half(&w0, job, 0);
    uint32_t second = declare_columns(&w1, job, 2, 500, 524);
    fake_expect_error(&w0, first, CAIRN_ERR_MISMATCH,
                      "fc.weight: rank 0 holds [0:128, 0:512] and rank 1 holds [0:128, 500:1024]");
    fake_expect_error(&w1, second, CAIRN_ERR_MISMATCH, "which overlap");
    first = declare_half(&w0, job, 0);
    second = declare_columns(&w1, job, 2, 512, 511);
    fake_expect_error(&w0, first, CAIRN_ERR_MISMATCH, "no rank holds [0:128, 1023:1024]");
    fake_expect_error(&w1, second, CAIRN_ERR_MISMATCH, "no rank holds");
    ck_assert_uint_eq(fake.shards[0].seen[CAIRN_MSG_MEMBER_TILES], 0);
    first = declare_half(&w0, job, 0);
    second = declare_half(&w1, job, 1);
    expect_set(&w0, first);
    expect_set(&w1, second);
    fake_peer_close(&w0);
    fake_peer_close(&w1);
}

TEST(a_declaration_that_cannot_be_is_refused)
{
    struct fake_peer w0 = worker("w0");
    const uint64_t job = fake_attach(&w0, 10, 3, 1);
    uint32_t request = declare_columns(&w0, job, 2, 0, 1);
    fake_expect_error(&w0, request, CAIRN_ERR_INVALID, "declared by rank 3");
    request = declare_columns(&w0, job, 9, 0, 1);
    fake_expect_error(&w0, request, CAIRN_ERR_INVALID, "round.workers_max");
    request = declare_columns(&w0, job, 4, 1000, 25);
    fake_expect_error(&w0, request, CAIRN_ERR_INVALID, "fc.weight");
    Cairn__TilesDeclare message = CAIRN__TILES_DECLARE__INIT;
    message.job = job;
    message.world = 4;
    message.tiles_bytes = UINT64_MAX;
    request = fake_request(&w0, CAIRN_MSG_TILES_DECLARE, &message.base);
    fake_expect_error(&w0, request, CAIRN_ERR_INVALID, "64 MiB");
    message.tiles_bytes = 8;
    request = fake_request(&w0, CAIRN_MSG_TILES_DECLARE, &message.base);
    Cairn__Page page = CAIRN__PAGE__INIT;
    page.what = CAIRN_PAGE_TILES;
    page.total_bytes = 9;
    page.bytes = (ProtobufCBinaryData) { 4, (uint8_t *)(uintptr_t) "abcd" };
    fake_send(&w0, CAIRN_MSG_PAGE, request, &page.base);
    fake_expect_error(&w0, request, CAIRN_ERR_PROTOCOL, "pages");
    request = fake_request(&w0, CAIRN_MSG_TILES_DECLARE, &message.base);
    page.total_bytes = 8;
    page.bytes = (ProtobufCBinaryData) { 8, (uint8_t *)(uintptr_t) "\xff\xff\xff\xff\xff\xff\xff" };
    fake_send(&w0, CAIRN_MSG_PAGE, request, &page.base);
    fake_expect_error(&w0, request, CAIRN_ERR_MALFORMED, "TileList");
    fake_expect_awaited(&w0, job, "the initial state"); // none of it counts
    fake_peer_close(&w0);
}

TEST(a_shard_without_room_for_the_tiles_refuses_them)
{
    struct fake_peer w0 = worker("w0"), w1 = worker("w1");
    const uint64_t job = fake_attach(&w0, 10, 0, 1);
    fake_attach(&w1, 11, 1, 1);
    fake.shards[1].refuse_tiles = "over the limit";
    uint32_t first = declare_half(&w0, job, 0), second = declare_half(&w1, job, 1);
    fake_expect_error(&w0, first, CAIRN_ERR_NO_MEMORY, "s1: over the limit");
    fake_expect_error(&w1, second, CAIRN_ERR_NO_MEMORY, "s1: over the limit");
    fake.shards[1].refuse_tiles = NULL;
    first = declare_half(&w0, job, 0);
    second = declare_half(&w1, job, 1);
    expect_set(&w0, first);
    expect_set(&w1, second);
    fake_peer_close(&w0);
    fake_peer_close(&w1);
}

/* ---- initial state ---- */

TEST(a_tiled_job_is_sealed_when_all_ranks_have_put)
{
    struct fake_peer w0, w1;
    const uint64_t job = two_halves(&w0, &w1);
    const uint32_t first = ask_init(&w0, job, true);
    fake_expect_silence(&w0, job);
    ck_assert_uint_eq(fake.shards[0].seen[CAIRN_MSG_JOB_SEAL], 0);
    const uint32_t second = ask_init(&w1, job, true);
    fake_hear(&w0, Done, first);
    fake_hear(&w1, Done, second);
    ck_assert_uint_eq(one_round(&w0, &w1, job), 1);
    fake_peer_close(&w0);
    fake_peer_close(&w1);
}

/* ---- rounds ---- */

TEST(a_restarted_rank_goes_on_when_it_has_declared_the_same)
{
    struct fake_peer w0, w1;
    const uint64_t job = running_halves(&w0, &w1);
    ck_assert_uint_eq(one_round(&w0, &w1, job), 1);
    fake_peer_close(&w1);
    fake_until(&fake, fake.shards[0].seen[CAIRN_MSG_MEMBER_LEAVE] == 1);
    const uint32_t begin = fake_ask_begin(&w0, job);
    fake_expect_awaited(&w0, job, "rank 1 (not attached)");
    w1 = worker("w1-again");
    fake_attach(&w1, 12, 1, 1);
    const uint32_t second = fake_ask_begin(&w1, job); // before it has declared
    fake_expect_awaited(&w0, job, "worker w1-again of rank 1 (has not declared its tiles)");
    expect_set(&w1, declare_half(&w1, job, 1));
    const uint64_t round = expect_opened(&w0, begin, 2);
    ck_assert_uint_eq(expect_opened(&w1, second, 2), round);
    ck_assert_uint_eq(fake_commit(&w0, job, round), 2);
    fake_peer_close(&w0);
    fake_peer_close(&w1);
}

TEST(a_worker_that_is_not_one_of_the_ranks_is_waited_out)
{
    struct fake_peer w0, w1;
    const uint64_t job = running_halves(&w0, &w1);
    struct fake_peer w2 = worker("w2");
    fake_attach(&w2, 12, 2, 1);
    const uint32_t begin = fake_ask_begin(&w0, job);
    fake_expect_awaited(&w0, job, "worker w2 of rank 2 (is not one of the ranks");
    fake_peer_close(&w2);
    expect_opened(&w0, begin, 2);
    fake_peer_close(&w0);
    fake_peer_close(&w1);
}

TEST(tiles_change_between_rounds_only)
{
    struct fake_peer w0, w1;
    const uint64_t job = running_halves(&w0, &w1);
    fake.shards[0].holds_reduced = fake.shards[1].holds_reduced = true;
    const uint64_t round = fake_begin(&w0, job);
    expect_set(&w0, declare_half(&w0, job, 0)); // the same: as after a reconnect
    uint32_t request = declare_columns(&w0, job, 2, 0, 400);
    fake_expect_error(&w0, request, CAIRN_ERR_BUSY, "between rounds");
    request = declare_columns(&w1, job, 1, 0, 400);
    fake_expect_error(&w1, request, CAIRN_ERR_INVALID, "rank 1");
    for (int i = 0; i < 2; i++) fake_shard_report_reduced(&fake.shards[i]);
    fake.shards[0].holds_reduced = fake.shards[1].holds_reduced = false;
    ck_assert_uint_eq(fake_commit(&w0, job, round), 1);
    const uint32_t first = declare_columns(&w0, job, 2, 0, 400);
    fake_expect_awaited(&w0, job, "rank 1 (has not declared its tiles)"); // all begin anew
    const uint32_t second = declare_columns(&w1, job, 2, 400, 624);
    expect_set(&w0, first);
    expect_set(&w1, second);
    ck_assert_uint_eq(one_round(&w0, &w1, job), 2);
    fake_peer_close(&w0);
    fake_peer_close(&w1);
}

TEST(a_newcomer_has_to_fit_to_the_ranks_that_stay)
{
    struct fake_peer w0, w1;
    const uint64_t job = running_halves(&w0, &w1);
    fake_peer_close(&w1);
    fake_until(&fake, fake.shards[0].seen[CAIRN_MSG_MEMBER_LEAVE] == 1);
    w1 = worker("w1-again");
    fake_attach(&w1, 12, 1, 1);
    fake_expect_error(&w1, declare_columns(&w1, job, 2, 500, 524), CAIRN_ERR_MISMATCH, "overlap");
    expect_set(&w1, declare_half(&w1, job, 1));
    ck_assert_uint_eq(one_round(&w0, &w1, job), 1);
    fake_peer_close(&w0);
    fake_peer_close(&w1);
}

TEST(another_number_of_ranks_clears_what_was_declared)
{
    struct fake_peer w0, w1;
    const uint64_t job = running_halves(&w0, &w1);
    struct fake_peer w2 = worker("w2");
    fake_attach(&w2, 12, 2, 1);
    const uint32_t first = declare_columns(&w0, job, 3, 0, 300);
    fake_expect_awaited(&w0, job,
                        "worker w1 of rank 1 (has not declared its tiles), worker w2 of rank 2");
    uint32_t second = declare_columns(&w1, job, 3, 300, 300);
    fake_expect_silence(&w1, job);                       // it is there before the third
    uint32_t third = declare_columns(&w2, job, 4, 0, 1); // w2 thinks of four: the others hear it
    fake_expect_error(&w0, first, CAIRN_ERR_MISMATCH, "rank 2 declared tiles of 4 ranks");
    fake_expect_error(&w1, second, CAIRN_ERR_MISMATCH, "declare again");
    const uint32_t again = declare_columns(&w0, job, 3, 0, 300);
    fake_expect_error(&w2, third, CAIRN_ERR_MISMATCH, "rank 0 declared tiles of 3 ranks");
    second = declare_columns(&w1, job, 3, 300, 300);
    third = declare_columns(&w2, job, 3, 600, 424);
    expect_set(&w0, again);
    expect_set(&w1, second);
    expect_set(&w2, third);
    const uint32_t begin = fake_ask_begin(&w0, job);
    expect_opened(&w0, begin, 3);
    fake_peer_close(&w0);
    fake_peer_close(&w1);
    fake_peer_close(&w2);
}

TEST(a_job_goes_on_with_whole_tensors_when_nobody_with_tiles_is_left)
{
    struct fake_peer w0, w1;
    const uint64_t job = running_halves(&w0, &w1);
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
    struct fake_peer w0, w1;
    const uint64_t job = running_halves(&w0, &w1);
    const struct tiles none = { 0 };
    expect_set(&w0, declare_tiles(&w0, job, 0, &none));
    ck_assert_uint_eq(fake.shards[0].tiles_world, 0);
    fake_peer_close(&w1);
    fake_until(&fake, fake.shards[0].seen[CAIRN_MSG_MEMBER_LEAVE] == 1);
    const uint32_t begin = fake_ask_begin(&w0, job);
    expect_opened(&w0, begin, 1);
    fake_peer_close(&w0);
}

/* ---- restarts ---- */

TEST(a_shard_that_comes_back_is_told_again_before_a_round)
{
    struct fake_peer w0, w1;
    const uint64_t job = running_halves(&w0, &w1);
    const uint32_t told = fake.shards[1].seen[CAIRN_MSG_MEMBER_TILES];
    fake_shard_away(&fake, 1);
    const uint32_t begin = fake_ask_begin(&w0, job);
    fake_expect_awaited(&w0, job, "shard s1 (it is away)");
    fake_shard_up(&fake, 1);
    expect_opened(&w0, begin, 2);
    ck_assert_uint_eq(fake.shards[1].seen[CAIRN_MSG_MEMBER_TILES], told + 2);
    fake_peer_close(&w0);
    fake_peer_close(&w1);
}

/* Stops it and starts it; the shards are back. */
static void restart(struct fake_peer *w0, struct fake_peer *w1)
{
    fake_peer_close(w0);
    fake_peer_close(w1);
    fake_coordinator_stop(&fake);
    fake_coordinator_start(&fake);
    fake_shards_up(&fake, 2);
}

TEST(a_new_coordinator_opens_no_round_before_all_have_declared_again)
{
    struct fake_peer w0, w1;
    const uint64_t job = running_halves(&w0, &w1);
    ck_assert_uint_eq(one_round(&w0, &w1, job), 1);
    restart(&w0, &w1);
    const uint32_t opened = fake.shards[0].seen[CAIRN_MSG_ROUND_OPEN];
    w0 = worker("w0");
    fake_attach(&w0, 10, 0, 1);
    fake_expect_awaited(&w0, job, "worker w0 of rank 0 (has not declared its tiles), rank 1");
    const uint32_t first = declare_half(&w0, job, 0);
    const uint32_t begin = fake_ask_begin(&w0, job);
    fake_expect_awaited(&w0, job, "rank 1 (not attached)");
    ck_assert_uint_eq(fake.shards[0].seen[CAIRN_MSG_ROUND_OPEN], opened);
    w1 = worker("w1");
    fake_attach(&w1, 11, 1, 1);
    const uint32_t second = declare_half(&w1, job, 1);
    expect_set(&w0, first);
    expect_set(&w1, second);
    const uint64_t round = expect_opened(&w0, begin, 2);
    ck_assert_uint_eq(fake_commit(&w0, job, round), 2);
    fake_peer_close(&w0);
    fake_peer_close(&w1);
}

TEST(a_round_that_was_prepared_when_the_coordinator_died_is_resolved_first)
{
    struct fake_peer w0, w1;
    const uint64_t job = running_halves(&w0, &w1);
    fake.shards[1].holds_reduced = true;
    const uint64_t round = fake_begin(&w0, job);
    fake_until(&fake, fake.shards[0].reduced && fake.shards[1].round == round);
    restart(&w0, &w1);
    fake.shards[1].holds_reduced = false;
    w0 = worker("w0");
    w1 = worker("w1");
    fake_attach(&w0, 10, 0, 1);
    fake_attach(&w1, 11, 1, 1);
    const uint32_t first = declare_half(&w0, job, 0), second = declare_half(&w1, job, 1);
    expect_set(&w0, first);
    expect_set(&w1, second);
    ck_assert_uint_eq(one_round(&w0, &w1, job), 1); // the other one was void
    fake_peer_close(&w0);
    fake_peer_close(&w1);
}

TEST(a_session_that_reconnects_keeps_its_tiles)
{
    struct fake_peer w0, w1;
    const uint64_t job = running_halves(&w0, &w1);
    struct fake_peer again = worker("w0");
    fake_attach(&again, 10, 0, 1);
    const uint32_t begin = fake_ask_begin(&again, job);
    expect_opened(&again, begin, 2);
    expect_set(&again, declare_half(&again, job, 0)); // in an open round, too
    fake_peer_close(&w0);
    fake_peer_close(&again);
    fake_peer_close(&w1);
}

SUITE(60, set_up, tear_down);
