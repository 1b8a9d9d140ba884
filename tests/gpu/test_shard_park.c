/* A job whose state lies on the emulated card is parked in host memory and taken back. */
#include <inttypes.h>
#include <check.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "proto/geometry/layout.h"
#include "tests/support/emulated.h"
#include "tests/support/shard_model.h"
#include "tests/support/suite.h"

static struct scene scene;
static struct model model;

/* madvise is this file's (tests/gpu/CMakeLists.txt): a page alone is not to be had while this is so. */
static bool no_page;

int __real_madvise(void *at, size_t bytes, int advice);
int __wrap_madvise(void *at, size_t bytes, int advice);
int __wrap_madvise(void *at, size_t bytes, int advice)
{
    if (!no_page || advice != MADV_POPULATE_WRITE || bytes != CAIRN_PUBLISHED_PAGE_BYTES)
        return __real_madvise(at, bytes, advice);
    errno = ENOMEM;
    return -1;
}

/* A job that has made a step. */
static struct emulated open_scene(const char *offload, uint64_t limit_bytes)
{
    const struct emulated card = emulated_open("quiet=1");
    ck_assert_int_eq(setenv("CAIRN_TEST_BACKEND", "cuda", 1), 0);
    ck_assert_int_eq(setenv("CAIRN_TEST_OFFLOAD", offload, 1), 0);
    scene_open(&scene, "mem", 1, limit_bytes);
    scene_serve(&scene, 2, 1);
    model_open(&model, &scene);
    model_round(&model, &scene, 1, 0);
    return card;
}

static void close_scene(void)
{
    model_close(&model);
    scene_close(&scene);
}

static struct shard_job *the_job(void)
{
    return scene.shard->jobs;
}

static uint64_t free_bytes(void)
{
    return home_free_bytes(scene.shard->device.home);
}

static void ask(bool parked)
{
    scene_tell(&scene, 9, PartPark, .job = SCENE_JOB, .parked = parked);
}

static void expect_done(bool parked)
{
    ask(parked);
    scene_done(&scene, 9);
    ck_assert(the_job()->planes.parked == parked);
}

static void expect_refused(bool parked, cairn_status status, const char *word)
{
    ask(parked);
    scene_refused(&scene, 9, status, word);
}

static void expect_bits(void)
{
    const struct shard_job *job = the_job();
    for (int p = 0; p < CAIRN_PLANE_COUNT; p++) {
        if (!plane_is_state(p)) continue;
        const float *plane = scene_plane(job, (enum plane)p);
        for (uint64_t c = 0; c < scene.map.chunk_count; c++) {
            const struct chunk_place place = shard_map_chunk(&scene.map, c);
            size_t bytes;
            if (!model_keeps(place.tensor, p)) continue;
            const void *expected = model_bytes(&model, p, &place, &bytes);
            ck_assert_msg(memcmp(plane + place.local_elem, expected, bytes) == 0,
                          "plane %d, chunk %" PRIu64, p, c);
        }
    }
}

static const char *const fractions[] = { "0", "0.5" };

TEST_EACH(a_parked_job_leaves_the_card_and_comes_back_with_the_same_bits, 0, 2)
{
    (void)open_scene(fractions[_i], 0);
    const uint64_t there = free_bytes(), device = the_job()->memory.device;
    const uint64_t used = scene.shard->memory.budget.used_bytes;
    ck_assert_uint_gt(device, 0);
    for (uint64_t round = 2; round < 4; round++) {
        expect_done(true);
        ck_assert_uint_eq(free_bytes(), there + device); // as before the job came
        ck_assert_uint_eq(the_job()->memory.device, 0);
        ck_assert_uint_gt(scene.shard->memory.budget.used_bytes, used);
        expect_bits();
        expect_done(true); // is so already
        expect_done(false);
        ck_assert_uint_eq(free_bytes(), there);
        ck_assert_uint_eq(the_job()->memory.device, device);
        ck_assert_uint_eq(scene.shard->memory.budget.used_bytes, used);
        expect_bits();
        model_round(&model, &scene, round, round - 1);
    }
    expect_bits();
}

static void end_lease(uint64_t lease)
{
    scene_tell(&scene, 0, LeaseEnd, .job = SCENE_JOB, .lease = lease);
}

/* Of each lease a published copy more, which has a side on the card. */
TEST(leased_versions_leave_the_card_and_come_back_with_the_rest)
{
    (void)open_scene("0", 0);
    const uint64_t all = free_bytes() + the_job()->memory.device;
    scene_lease(&scene, 1, 1, 1);
    ck_assert_uint_eq(free_bytes() + the_job()->memory.device, all);
    expect_done(true);
    ck_assert_uint_eq(free_bytes(), all);
    scene_lease(&scene, 2, 1, 0);
    ck_assert_uint_eq(free_bytes(), all); // a parked job's copies are in host memory
    expect_done(false);
    ck_assert_uint_eq(free_bytes() + the_job()->memory.device, all);
    for (uint64_t lease = 1; lease <= 2; lease++) end_lease(lease);
    model_round(&model, &scene, 2, 1);
    for (int tries = 0; tries < 1000 && free_bytes() + the_job()->memory.device != all; tries++)
        scene_settle(&scene); // another thread gives it back
    ck_assert_uint_eq(free_bytes() + the_job()->memory.device, all);
    expect_bits();
}

static const struct published_copy *copy_of(uint64_t step)
{
    const struct published_copy *copy = published_find(the_job(),
                                                       (struct cairn_version) { 1, step });
    ck_assert_ptr_nonnull(copy);
    return copy;
}

static bool has(const struct published_copy *copy, enum published_side side, uint64_t *sequence)
{
    const struct published_head *head = (const struct published_head *)copy->head.base;
    return published_read_begin(head, atomic_load(&head->copy), copy->version, side, sequence);
}

static bool is_whole(const struct published_copy *copy, uint64_t sequence)
{
    return published_read_end((const struct published_head *)copy->head.base, sequence);
}

TEST(what_was_read_of_a_version_is_whole_wherever_its_job_went_meanwhile)
{
    uint64_t newest, leased, sequence;
    (void)open_scene("0", 0);
    scene_lease(&scene, 1, 1, 0);
    const struct published_copy *first = copy_of(0), *second = copy_of(1);
    ck_assert(has(first, CAIRN_PUBLISHED_DEVICE, &leased));
    ck_assert(has(second, CAIRN_PUBLISHED_DEVICE, &newest));
    expect_done(true);
    ck_assert(is_whole(first, leased) && is_whole(second, newest));
    ck_assert(!has(second, CAIRN_PUBLISHED_DEVICE, &sequence));
    ck_assert(has(second, CAIRN_PUBLISHED_HOST, &sequence));
    expect_done(false);
    ck_assert(is_whole(first, leased) && is_whole(second, newest));
    ck_assert(has(second, CAIRN_PUBLISHED_DEVICE, &sequence));
    for (uint64_t round = 2; round < 4; round++) model_round(&model, &scene, round, round - 1);
    ck_assert(is_whole(first, leased) && !is_whole(second, newest)); // written over
}

/* The copy of a lease is read in host memory then. */
TEST(a_job_comes_back_although_the_card_has_no_room_for_copies_of_leases)
{
    const struct emulated card = open_scene("0", 0);
    const uint64_t device = the_job()->memory.device;
    char others[64];
    scene_lease(&scene, 1, 1, 0);
    expect_done(true);
    const uint64_t staging = compute_staging_left(&scene.shard->device);
    snprintf(others, sizeof others, "others=%" PRIu64, (free_bytes() - device - staging));
    emulated_set(&card, others);
    expect_done(false);
    ck_assert_uint_eq(the_job()->memory.device, device);
    ck_assert_uint_eq(free_bytes(), staging);
    expect_bits();
    for (uint64_t round = 2; round < 5; round++) model_round(&model, &scene, round, round - 1);
    expect_bits();
    end_lease(1);
    emulated_set(&card, "others=0");
    expect_done(true);
    expect_done(false);
    expect_bits();
}

TEST(a_lease_whose_copy_has_no_head_is_refused)
{
    (void)open_scene("0", 0);
    const uint64_t used = scene.shard->memory.budget.used_bytes;
    no_page = true;
    scene_tell(&scene, 40, LeaseKeep, .job = SCENE_JOB, .lease = 1, .generation = 1, .step = 1,
               .ttl_ms = 60000);
    scene_refused(&scene, 40, CAIRN_ERR_NO_MEMORY, "");
    no_page = false;
    ck_assert_uint_eq(scene.shard->memory.budget.used_bytes, used);
    scene_lease(&scene, 1, 1, 1);
    model_round(&model, &scene, 2, 1);
    expect_bits();
}

/* ---- a coordinator that goes and comes ---- */

/* A move that takes a while, in which another coordinator, or the same again, is told of it. */
static void lose_coordinator(const struct emulated *card, bool to_host)
{
    emulated_set(card, "copy_rate=2M");
    ask(to_host);
    scene_until(&scene, the_job()->park.is_under_way);
    peer_close(scene.session, CAIRN_OK, "gone");
    const Cairn__Hello *hello = scene_heard(&scene, Hello);
    ck_assert_uint_eq(hello->n_held, 1);
    ck_assert(hello->held[0]->parked);
}

TEST_EACH(a_coordinator_that_comes_in_mid_move_is_told_of_it_and_waits_for_its_end, 0, 2)
{
    const struct emulated card = open_scene("0", 0);
    const bool to_host = _i == 0;
    if (!to_host) expect_done(true);
    lose_coordinator(&card, to_host);
    expect_done(to_host);
    emulated_set(&card, "copy_rate=0");
    expect_done(false);
    model_round(&model, &scene, 2, 1);
    expect_bits();
}

TEST(a_round_that_is_opened_in_mid_move_ends_the_session_and_nothing_else)
{
    const struct emulated card = open_scene("0", 0);
    lose_coordinator(&card, true);
    scene_round_open(&scene, 2, 1, 2);
    const Cairn__Hello *hello = scene_heard(&scene, Hello);
    ck_assert(hello->n_held == 1 && hello->held[0]->parked);
    expect_done(true);
    emulated_set(&card, "copy_rate=0");
    expect_done(false);
    expect_bits();
}

TEST(a_job_for_which_the_card_has_no_room_any_more_stays_parked)
{
    const struct emulated card = open_scene("0", 0);
    expect_done(true);
    emulated_set(&card, "others=8G");
    expect_refused(false, CAIRN_ERR_NO_MEMORY, "of Emulated card 0");
    ck_assert(the_job()->planes.parked);
    expect_bits();
    emulated_set(&card, "others=0");
    expect_done(false);
    model_round(&model, &scene, 2, 1);
    expect_bits();
}

TEST(a_job_for_which_the_host_has_no_room_stays_on_the_card)
{
    (void)open_scene("0", 0);
    struct budget *budget = &scene.shard->memory.budget;
    const uint64_t limit = budget->limit_bytes, device = the_job()->memory.device;
    budget->limit_bytes = budget->used_bytes + 4096;
    expect_refused(true, CAIRN_ERR_NO_MEMORY, "job play, parked, needs ");
    ck_assert_uint_eq(the_job()->memory.device, device);
    budget->limit_bytes = limit;
    model_round(&model, &scene, 2, 1);
    expect_bits();
}

TEST(a_card_that_fails_does_not_touch_a_parked_job)
{
    const struct emulated card = open_scene("0", 0);
    expect_done(true);
    emulated_set(&card, "ecc_at=1");
    expect_refused(false, CAIRN_ERR_IO, "ECC");
    ck_assert_int_eq(the_job()->state, CAIRN_JOB_SERVING);
    model_round(&model, &scene, 2, 1); // no coordinator asks for it; it would be right
    expect_bits();
}

TEST(a_job_that_is_at_work_is_not_moved)
{
    (void)open_scene("0", 0);
    scene_round_begin(&scene, 2, 1, 2);
    expect_refused(true, CAIRN_ERR_BUSY, "at work");
}

TEST(of_a_job_that_lies_in_host_memory_nothing_is_moved)
{
    (void)open_scene("1", 0);
    const uint64_t there = free_bytes();
    ask(true);
    scene_done(&scene, 9);
    ck_assert(!the_job()->planes.parked);
    ck_assert_uint_eq(free_bytes(), there);
    model_round(&model, &scene, 2, 1);
    expect_bits();
}

TEST(a_parked_job_is_dropped_with_all_that_it_took)
{
    (void)open_scene("0", 0);
    expect_done(true);
    scene_drop(&scene);
    ck_assert_uint_eq(scene.shard->memory.budget.used_bytes, 0);
}

SUITE(60, .tear_down = close_scene);
