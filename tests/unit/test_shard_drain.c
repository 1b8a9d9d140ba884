/* A shard that is to end gives up first what it holds: whom it asks, what ends it, and what it says. */
#include <check.h>

#include "tests/support/shard_scene.h"
#include "tests/support/suite.h"

static struct scene scene;
static unsigned drained;

static void on_drained(struct shard_daemon *shard, void *context)
{
    (void)context;
    ck_assert_ptr_eq(shard, scene.shard);
    drained++;
}

static void open_shard(void)
{
    drained = 0;
    scene_open(&scene, "mem", 1, 0);
    scene.shard->events.on_drained = on_drained;
}

static void await_end(void)
{
    while (drained == 0) uv_run(&scene.loop, UV_RUN_ONCE);
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
    open_shard();
    shard_drain(scene.shard, 100);
    ck_assert_uint_eq(drained, 1);
    scene_settle(&scene);
    ck_assert_uint_eq(drained, 1);
    scene_close(&scene);
}

TEST(one_that_holds_a_part_asks_and_ends_when_the_coordinator_has_done_it)
{
    const Cairn__Done done = CAIRN__DONE__INIT;
    open_shard();
    scene_serve(&scene, 1, 1);
    const uint32_t request = ask(100);
    shard_drain(scene.shard, 100); // once is enough
    scene_settle(&scene);
    ck_assert_uint_eq(drained, 0);
    scene_say(&scene, CAIRN_MSG_DONE, request, &done.base);
    await_end();
    scene_close(&scene);
}

TEST(one_whose_part_nobody_can_take_says_so_and_ends)
{
    Cairn__Error error = CAIRN__ERROR__INIT;
    open_shard();
    scene_serve(&scene, 1, 1);
    error.status = CAIRN_ERR_UNSUPPORTED;
    error.text = (char *)"there is no other shard";
    scene_say(&scene, CAIRN_MSG_ERROR, ask(100), &error.base);
    await_end();
    scene_close(&scene);
}

TEST(one_that_nobody_answers_ends_when_its_time_is_over)
{
    open_shard();
    scene_serve(&scene, 1, 1);
    ask(1);
    await_end();
    scene_close(&scene);
}

/* Two leases are long enough for one that is started again. */
TEST_EACH(one_whose_coordinator_is_gone_does_not_wait_for_its_whole_time, 0, 2)
{
    struct shard_daemon *shard;
    open_shard();
    scene_serve(&scene, 1, 1);
    shard = scene.shard;
    if (_i == 1) ask(100); // and then it goes
    shard->session.address.port = 1;
    shard->session.lease_ms = 200;
    const uint64_t serial = shard->session.serial, begin_ms = uv_hrtime() / 1000000;
    peer_close(scene.session, CAIRN_OK, "it is gone");
    while (shard->session.serial == serial) uv_run(&scene.loop, UV_RUN_ONCE);
    if (_i == 0) shard_drain(shard, 100);
    await_end();
    const uint64_t took_ms = uv_hrtime() / 1000000 - begin_ms;
    ck_assert(took_ms >= 400 && took_ms < 10000);
    scene_close(&scene);
}

TEST(a_coordinator_that_comes_meanwhile_is_asked_too)
{
    const Cairn__Done done = CAIRN__DONE__INIT;
    open_shard();
    scene_serve(&scene, 1, 1);
    const uint32_t first = ask(100);
    peer_close(scene.session, CAIRN_OK, "another one comes");
    const struct scene_frame frame = scene_hear(&scene, CAIRN_MSG_DRAIN_ME);
    ck_assert_uint_gt(scene.hellos, 1);
    (void)first;
    scene_say(&scene, CAIRN_MSG_DONE, frame.request, &done.base);
    await_end();
    scene_close(&scene);
}

TEST(the_coordinator_may_say_that_it_is_to_end)
{
    Cairn__MemberEnd end = CAIRN__MEMBER_END__INIT;
    open_shard();
    end.why = (char *)"drained";
    scene_say(&scene, CAIRN_MSG_MEMBER_END, 0, &end.base);
    await_end();
    scene_close(&scene);
}

SUITE(30);
