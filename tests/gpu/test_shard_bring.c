/* What is published on a card comes to host memory as it is asked for, and not with every update: a shard
 * whose state lies on the emulated card, with members that map nothing. */
#include <check.h>
#include <stdlib.h>
#include <string.h>

#include "server/shard/jobs.h"
#include "server/shard/read.h"
#include "tests/support/emulated.h"
#include "tests/support/shard_model.h"
#include "tests/support/suite.h"

enum { READER = 3, MODELS = 4 };

static struct scene scene;
static struct emulated card;
static struct model now, then[MODELS]; /* then[s]: as it was at step s */

/* Two workers and a reader, at version 1.0; then so many steps. */
static void open_scene(const char *kind, uint64_t steps)
{
    card = emulated_open("quiet=1");
    ck_assert_int_eq(setenv("CAIRN_TEST_BACKEND", "cuda", 1), 0);
    scene_open(&scene, kind, 1, 0);
    scene_serve(&scene, 2, 1);
    scene_join(&scene, READER, CAIRN_ROLE_WIRE_READER);
    model_open(&now, &scene);
    model_copy(&then[0], &now);
    for (uint64_t step = 0; step < steps; step++) {
        model_round(&now, &scene, step + 1, step);
        model_copy(&then[step + 1], &now);
    }
}

static void close_scene(void)
{
    model_close(&now);
    for (int i = 0; i < MODELS; i++) model_close(&then[i]);
    scene_close(&scene);
}

static struct shard_job *the_job(void)
{
    return scene.shard->jobs;
}

static uint64_t copied_out(void)
{
    return home_use(scene.shard->device.home).bytes_out;
}

static uint64_t chunk_of(uint32_t tensor)
{
    return scene_chunk_of(&scene, tensor);
}

static size_t bytes_of(uint64_t chunk)
{
    const struct chunk_place place = shard_map_chunk(&scene.map, chunk);
    size_t bytes;
    (void)model_bytes(&now, CAIRN_PLANE_WIRE, &place, &bytes);
    return bytes;
}

static void ask(uint64_t member, uint64_t chunk, uint64_t step)
{
    scene_fetch(&scene, member, chunk, CAIRN_PLANE_WIRE, 1, step);
}

static void expect_bits(const struct scene_note *data, uint64_t chunk, uint64_t step)
{
    const struct chunk_place place = shard_map_chunk(&scene.map, chunk);
    size_t bytes;
    const void *wanted = model_bytes(&then[step], CAIRN_PLANE_WIRE, &place, &bytes);
    ck_assert_uint_eq(data->header.step, step);
    ck_assert_uint_eq(data->header.first_leaf, place.first_leaf);
    ck_assert_uint_eq(data->header.payload_bytes, bytes);
    ck_assert_mem_eq(data->payload, wanted, bytes);
    ck_assert_uint_eq(data->header.checksum, chunk_checksum(wanted, bytes));
}

static void expect_data(uint64_t chunk, uint64_t step)
{
    expect_bits(scene_note(&scene, CAIRN_CHUNK_DATA), chunk, step);
}

/* What is copied to the host for it. */
static uint64_t fetch(uint64_t member, uint64_t chunk, uint64_t step)
{
    const uint64_t before = copied_out();
    ask(member, chunk, step);
    expect_data(chunk, step);
    return copied_out() - before;
}

/* Until so many have asked for what the card, where nothing runs now, does not bring. */
static void expect_coming(uint32_t count)
{
    for (uint32_t coming = 0; coming < count;) {
        uv_run(&scene.loop, UV_RUN_ONCE);
        ck_assert_uint_eq(scene_waiting(&scene, CAIRN_CHUNK_DATA), 0);
        coming = 0;
        for (struct reply *r = the_job()->replies.coming; r != NULL; r = r->next) coming++;
    }
}

static const char *const kinds[] = { "mem", "ucx" };

TEST_EACH(a_step_copies_to_the_host_what_is_asked_for_of_its_version_each_chunk_once, 0, 2)
{
    uint64_t trained = 0;
    open_scene(kinds[_i], 2);
    const uint64_t first = chunk_of(T_WEIGHT), before = copied_out();
    for (uint64_t c = 0; c < scene.map.chunk_count; c++)
        if (shard_map_chunk(&scene.map, c).tensor != T_FROZEN) trained += bytes_of(c);
    model_round(&now, &scene, 3, 2);
    model_copy(&then[3], &now);
    ck_assert_uint_lt(copied_out() - before, trained / 4); // sums, and counts
    ck_assert_uint_eq(fetch(READER, first, 3), bytes_of(first));
    for (uint64_t member = 1; member <= READER; member++)
        ck_assert_uint_eq(fetch(member, first, 3), 0);
    uint64_t copied = bytes_of(first);
    for (uint64_t c = 0; c < scene.map.chunk_count; c++) copied += fetch(1 + c % READER, c, 3);
    ck_assert_uint_eq(copied, trained);
    copied = 0;
    for (uint64_t c = 0; c < scene.map.chunk_count; c++) copied += fetch(READER, c, 2);
    ck_assert_uint_eq(copied, trained); // of the version before, likewise
}

TEST(what_a_job_begins_with_is_brought_likewise)
{
    open_scene("mem", 0);
    for (uint64_t c = 0; c < scene.map.chunk_count; c++) {
        const bool is_frozen = shard_map_chunk(&scene.map, c).tensor == T_FROZEN;
        ck_assert_uint_eq(fetch(READER, c, 0), is_frozen ? 0 : bytes_of(c));
        ck_assert_uint_eq(fetch(1, c, 0), 0);
    }
}

TEST(who_asks_for_a_chunk_that_is_on_its_way_waits_for_that_copy)
{
    open_scene("mem", 1);
    const uint64_t chunk = chunk_of(T_EMB), before = copied_out();
    emulated_set(&card, "stuck=1");
    for (uint64_t member = 1; member <= READER; member++) ask(member, chunk, 1);
    ask(READER, chunk_of(T_FROZEN), 1); // which is there: nothing keeps it
    expect_data(chunk_of(T_FROZEN), 1);
    expect_coming(READER);
    ck_assert_uint_eq(scene_waiting(&scene, CAIRN_CHUNK_DATA), 0);
    emulated_set(&card, "stuck=0");
    for (uint64_t member = 1; member <= READER; member++) expect_data(chunk, 1);
    ck_assert_uint_eq(copied_out() - before, bytes_of(chunk));
}

TEST(what_was_asked_for_in_time_is_answered_and_the_update_over_it_waits)
{
    struct group_scalars scalars[2];
    open_scene("mem", 2);
    const uint64_t gone = chunk_of(T_WEIGHT), newest = chunk_of(T_EMB);
    model_push_round(&scene, 3, 2);
    (void)scene_hear(&scene, CAIRN_MSG_REDUCED);
    emulated_set(&card, "stuck=1");
    ask(READER, gone, 1);
    expect_coming(1);
    model_update(&now, 3, 2, scalars);
    model_copy(&then[3], &now);
    model_say_apply(&scene, 3, 2, CAIRN_MSG_DECIDE, scalars);
    scene_until(&scene, the_job()->pass.updating);
    ck_assert(the_job()->pass.update_waits);
    ask(READER, gone + 1, 1); // too late
    ck_assert_int_eq((int)scene_note(&scene, CAIRN_CHUNK_NAK)->header.value,
                     CAIRN_ERR_VERSION_GONE);
    ask(READER, newest, 2); // beside the update
    expect_coming(2);
    emulated_set(&card, "stuck=0");
    for (int i = 0; i < 2; i++) { // in any order
        const struct scene_note *data = scene_note(&scene, CAIRN_CHUNK_DATA);
        expect_bits(data, data->header.step == 1 ? gone : newest, data->header.step);
    }
    (void)scene_hear(&scene, CAIRN_MSG_PUBLISHED);
    for (uint64_t c = 0; c < scene.map.chunk_count; c++) (void)fetch(READER, c, 3);
}

TEST(a_copy_that_fails_is_told_and_not_served_and_the_job_is_stopped)
{
    open_scene("mem", 1);
    emulated_set(&card, "stuck=1");
    ask(READER, chunk_of(T_WEIGHT), 1);
    ask(1, chunk_of(T_WEIGHT), 1);
    expect_coming(2);
    emulated_set(&card, "ecc_at=1");
    emulated_set(&card, "stuck=0");
    for (int i = 0; i < 2; i++)
        ck_assert_int_eq((int)scene_note(&scene, CAIRN_CHUNK_NAK)->header.value,
                         CAIRN_ERR_NOT_READY);
    const Cairn__Error *error = scene_heard(&scene, Error);
    ck_assert_msg(strstr(error->text, "ECC") != NULL, "%s", error->text);
    ck_assert_int_eq(the_job()->state, CAIRN_JOB_FAULTED);
    ck_assert_uint_eq(scene_waiting(&scene, CAIRN_CHUNK_DATA), 0);
}

TEST(a_copy_that_finds_no_memory_is_to_be_asked_for_again_and_the_job_goes_on)
{
    open_scene("mem", 1);
    const uint64_t chunk = chunk_of(T_WEIGHT);
    emulated_set(&card, "result=2,copy_fails=1"); // CUDA_ERROR_OUT_OF_MEMORY
    ask(READER, chunk, 1);
    ck_assert_int_eq((int)scene_note(&scene, CAIRN_CHUNK_NAK)->header.value, CAIRN_ERR_BUSY);
    ck_assert_uint_eq(fetch(READER, chunk, 1), bytes_of(chunk));
    ck_assert_int_eq(the_job()->state, CAIRN_JOB_SERVING);
}

static const uint64_t leaving[] = { READER, 2 };

TEST_EACH(a_member_that_leaves_meanwhile_gives_its_reply_back, 0, 2)
{
    open_scene("mem", 1);
    const uint64_t chunk = chunk_of(T_WEIGHT);
    const struct budget *budget = &scene.shard->memory.budget;
    (void)fetch(1, chunk_of(T_BIAS), 1);
    const uint64_t used = budget->used_bytes;
    emulated_set(&card, "copy_rate=100K"); // some 100 ms
    ask(leaving[_i], chunk, 1);
    ask(1, chunk, 1);
    expect_coming(2);
    members_leave(the_job(), leaving[_i]);
    ck_assert(bring_works(the_job()));
    expect_data(chunk, 1);
    scene_settle(&scene);
    ck_assert_uint_eq(scene_waiting(&scene, CAIRN_CHUNK_DATA), 0);
    if (leaving[_i] == READER) // who keeps none: the job does
        ck_assert_uint_eq(budget->used_bytes, used + reply_memory_bytes(the_job()->replies.bytes));
    else
        ck_assert_uint_lt(budget->used_bytes, used);
}

TEST(a_job_that_is_dropped_meanwhile_is_freed_when_the_copy_has_ended)
{
    open_scene("mem", 1);
    emulated_set(&card, "stuck=1");
    ask(READER, chunk_of(T_WEIGHT), 1);
    ask(1, chunk_of(T_WEIGHT), 1);
    expect_coming(1);
    scene_tell(&scene, 11, JobDrop, .job = SCENE_JOB);
    scene_until(&scene, the_job()->state == CAIRN_JOB_LEAVING);
    emulated_set(&card, "stuck=0");
    scene_done(&scene, 11);
    ck_assert_uint_eq(scene.shard->memory.budget.used_bytes, 0);
}

TEST(a_shard_that_is_closed_meanwhile_leaves_nothing)
{
    open_scene("mem", 1);
    emulated_set(&card, "copy_rate=1M"); // some ms
    ask(READER, chunk_of(T_WEIGHT), 1);
    ask(1, chunk_of(T_WEIGHT), 1);
    expect_coming(1);
}

static void say_park(void)
{
    scene_tell(&scene, 9, PartPark, .job = SCENE_JOB, .parked = true);
}

TEST(a_job_is_not_parked_while_a_chunk_comes_and_while_it_is_parked_none_comes)
{
    open_scene("mem", 2);
    emulated_set(&card, "stuck=1");
    ask(READER, chunk_of(T_WEIGHT), 2);
    expect_coming(1);
    say_park();
    scene_refused(&scene, 9, CAIRN_ERR_BUSY, "");
    emulated_set(&card, "stuck=0");
    expect_data(chunk_of(T_WEIGHT), 2);
    scene_settle(&scene);
    emulated_set(&card, "stuck=1");
    say_park();
    scene_until(&scene, the_job()->park.is_under_way);
    (void)fetch(READER, chunk_of(T_WEIGHT), 2); // it is there
    ask(READER, chunk_of(T_EMB), 1);
    scene_until(&scene, the_job()->replies.deferred != NULL);
    emulated_set(&card, "stuck=0");
    expect_data(chunk_of(T_EMB), 1);
    scene_done(&scene, 9);
    for (uint64_t c = 0; c < scene.map.chunk_count; c++)
        ck_assert_uint_eq(fetch(READER, c, 1 + c % 2), 0);
}

SUITE(60, .tear_down = close_scene);
