/* A shard that is to end gives up first what it holds: whom it asks, what ends it, and what it says. */
#include <check.h>

#include "tests/support/shard_scene.h"
#include "tests/support/suite.h"

static struct scene scene;
static unsigned drained;

static void on_end(struct shard_daemon *shard, cairn_status why, void *context)
{
    (void)context;
    ck_assert_int_eq(why, CAIRN_OK);
    ck_assert_ptr_eq(shard, scene.shard);
    drained++;
}

static void open_shard(void)
{
    scene_open(&scene, "mem", 1, 0);
    scene.shard->events.on_end = on_end;
}

static void close_shard(void)
{
    scene_close(&scene);
}

static void await_end(void)
{
    scene_until(&scene, drained != 0);
    ck_assert_uint_eq(drained, 1);
}

/* Asks to end, and gives the number of what the coordinator heard. */
static uint32_t ask(uint32_t seconds)
{
    shard_drain(scene.shard, seconds);
    const struct scene_frame frame = scene_hear(&scene, CAIRN_MSG_DRAIN_ME);
    ck_assert_uint_eq(((const Cairn__DrainMe *)frame.message)->seconds, seconds);
    ck_assert_uint_ne(frame.request, 0);
    return frame.request;
}

TEST(one_that_holds_nothing_ends_at_once)
{
    shard_drain(scene.shard, 100);
    ck_assert_uint_eq(drained, 1);
    scene_settle(&scene);
    ck_assert_uint_eq(drained, 1);
}

TEST(one_that_holds_a_part_asks_and_ends_when_the_coordinator_has_done_it)
{
    scene_serve(&scene, 1, 1);
    const uint32_t request = ask(100);
    shard_drain(scene.shard, 100); // once is enough
    scene_settle(&scene);
    ck_assert_uint_eq(drained, 0);
    scene_tell(&scene, request, Done);
    await_end();
}

TEST(one_whose_part_nobody_can_take_says_so_and_ends)
{
    scene_serve(&scene, 1, 1);
    scene_tell(&scene, ask(100), Error, .status = CAIRN_ERR_UNSUPPORTED,
               .text = (char *)"there is no other shard");
    await_end();
}

TEST(one_that_nobody_answers_ends_when_its_time_is_over)
{
    scene_serve(&scene, 1, 1);
    ask(1);
    await_end();
}

/* Two leases are long enough for one that is started again. */
TEST_EACH(one_whose_coordinator_is_gone_does_not_wait_for_its_whole_time, 0, 2)
{
    scene_serve(&scene, 1, 1);
    struct shard_daemon *shard = scene.shard;
    if (_i == 1) ask(100); // and then it goes
    struct stream_address *coordinator = &shard->session.endpoints.list[0];
    snprintf(coordinator->host, sizeof coordinator->host, "%.200s/nowhere", scene.folder);
    shard->session.lease_ms = 200;
    const uint64_t serial = shard->session.serial, begin_ms = uv_hrtime() / 1000000;
    peer_close(scene.session, CAIRN_OK, "it is gone");
    scene_until(&scene, shard->session.serial != serial);
    if (_i == 0) shard_drain(shard, 100);
    await_end();
    const uint64_t took_ms = uv_hrtime() / 1000000 - begin_ms;
    ck_assert(took_ms >= 400 && took_ms < 10000);
}

TEST(a_coordinator_that_comes_meanwhile_is_asked_too)
{
    scene_serve(&scene, 1, 1);
    ask(100);
    peer_close(scene.session, CAIRN_OK, "another one comes");
    const struct scene_frame frame = scene_hear(&scene, CAIRN_MSG_DRAIN_ME);
    ck_assert_uint_gt(scene.hellos, 1);
    scene_tell(&scene, frame.request, Done);
    await_end();
}

TEST(the_coordinator_may_say_that_it_is_to_end)
{
    scene_tell(&scene, 0, MemberEnd, .why = (char *)"drained");
    await_end();
}

SUITE(30, open_shard, close_shard);
