/* A layout changes while connections are lost, the coordinator is another one, or one that joined dies. */
#include <check.h>
#include <stdlib.h>
#include <string.h>

#include "server/shard/shard.h"
#include "tests/support/move_stage.h"
#include "tests/support/suite.h"

static void end_taking(void)
{
    stage_job(0)->state = CAIRN_JOB_SERVING;
    scene_hear(&stage.shard[1], CAIRN_MSG_PART_MOVED);
    stage_settle();
    stage_round();
    stage_check();
}

TEST(a_connection_that_the_taker_loses_is_made_again)
{
    stage_begin_taking();
    struct neighbour *sender = &stage_job(1)->move.now->receiver->senders[0].neighbour;
    const uint32_t connection = sender->link.connection;
    chunk_link_close(&sender->link);
    while (sender->link.connection == connection) scene_settle(&stage.shard[1]);
    end_taking();
}

/* No request waits for an answer then, and nobody else connects again if the connection ends. */
TEST(ticks_go_on_while_all_that_was_asked_for_is_being_received)
{
    stage_begin_taking();
    struct receiver *receiver = stage_job(1)->move.now->receiver;
    struct sender *sender = &receiver->senders[0];
    for (uint32_t i = 0; i < receiver->staged.of_each; i++)
        if (sender->slots[i].piece != NULL)
            asker_drop(&sender->neighbour.asker, &sender->slots[i].fetch.request);
    ck_assert(receiver_tick(receiver, uv_now(stage.shard[1].shard->loop)));
    for (uint32_t i = 0; i < receiver->staged.of_each; i++)
        if (sender->slots[i].piece != NULL)
            asker_ask(&sender->neighbour.asker, &sender->slots[i].fetch.request);
    end_taking();
}

/* So many shards of which the taker says in a heartbeat that it does not hear them. */
static void await_unheard(size_t count)
{
    for (;;) {
        const struct scene_frame frame = scene_hear(&stage.shard[1], CAIRN_MSG_HEARTBEAT);
        const Cairn__Heartbeat *beat = (const Cairn__Heartbeat *)frame.message;
        if (beat->n_unheard != count) continue;
        if (count > 0)
            ck_assert_str_eq(beat->unheard[0],
                             stage_job(1)->move.now->receiver->senders[0].neighbour.name);
        return;
    }
}

TEST(a_giver_that_says_nothing_is_named_to_the_coordinator_until_it_does)
{
    stage_begin_taking();
    struct neighbour *sender = &stage_job(1)->move.now->receiver->senders[0].neighbour;
    const size_t address_bytes = sender->address_bytes;
    stage.shard[1].shard->session.unheard_ms = 100;
    await_unheard(0);
    sender->address_bytes = 0; // nothing leads there
    chunk_link_close(&sender->link);
    await_unheard(1);
    sender->address_bytes = address_bytes;
    await_unheard(0);
    end_taking();
}

TEST(a_connection_that_the_giver_loses_is_made_again)
{
    stage_begin_taking();
    const struct move_part *now = stage_job(0)->move.now;
    member_cut(stage_job(0), now->movers[0]);
    shard_job_settle(stage_job(0));
    for (int i = 0; i < 3; i++) scene_settle(&stage.shard[1]);
    end_taking();
}

/* The next coordinator is there: the shards have said Hello again. */
static void come_back(void)
{
    for (uint32_t i = 0; i < stage.count; i++) {
        const unsigned hellos = stage.shard[i].hellos;
        for (size_t k = 0; k < stage.shard[i].frame_count; k++)
            stage.shard[i].frames[k].taken = true;
        peer_close(stage.shard[i].session, CAIRN_OK, "the coordinator ends");
        while (stage.shard[i].hellos == hellos) scene_hear(&stage.shard[i], CAIRN_MSG_HELLO);
    }
}

static const Cairn__HeldJob *held_of(uint32_t shard)
{
    struct scene *scene = &stage.shard[shard];
    scene_tell(scene, 77, PartGet);
    for (;;) {
        const struct scene_frame frame = scene_hear(scene, CAIRN_MSG_HELD_JOBS);
        if (frame.request == 77) return ((const Cairn__HeldJobs *)frame.message)->held[0];
    }
}

TEST(another_coordinator_finds_what_is_prepared_and_brings_it_into_force)
{
    stage_round();
    stage_prepare(stage_half);
    come_back();
    for (uint32_t i = 0; i < stage.count; i++) {
        ck_assert_uint_eq(held_of(i)->layout_version, 1);
        ck_assert_uint_eq(held_of(i)->next_layout_version, 2);
    }
    stage_force(stage_half);
    for (uint32_t i = 0; i < stage.count; i++) {
        ck_assert_uint_eq(held_of(i)->layout_version, 2);
        ck_assert_uint_eq(held_of(i)->next_layout_version, 0);
    }
    stage_complete();
    stage_round();
    stage_check();
}

TEST(a_fence_of_another_coordinator_that_does_not_bring_what_is_prepared_ends_it)
{
    uint64_t used[2];
    stage_round();
    for (uint32_t i = 0; i < 2; i++) used[i] = stage.shard[i].shard->memory.budget.used_bytes;
    stage_prepare(stage_half);
    come_back();
    stage_fence(1);
    stage_resolve();
    for (uint32_t i = 0; i < 2; i++) {
        ck_assert_ptr_null(stage_job(i)->move.next);
        ck_assert_uint_eq(stage.shard[i].shard->memory.budget.used_bytes, used[i]);
    }
    stage_move(stage_half);
    stage_round();
    stage_check();
}

/* What a Hello says of the layout in force stays true until the next Fence. */
TEST(a_fence_that_waits_ends_with_its_coordinator)
{
    stage_round();
    stage_prepare(stage_half);
    for (uint32_t i = 0; i < stage.count; i++) {
        struct shard_job *job = stage_job(i);
        job->park.is_under_way = true; // it is not at rest
        scene_tell(&stage.shard[i], 0, Fence, .job = SCENE_JOB, .epoch = stage.epoch + 1,
                   .layout = 2);
        while (job->move.fence.epoch == 0) scene_settle(&stage.shard[i]);
    }
    come_back();
    for (uint32_t i = 0; i < stage.count; i++) {
        stage_job(i)->park.is_under_way = false;
        shard_wake(stage.shard[i].shard);
        scene_settle(&stage.shard[i]);
        ck_assert_uint_eq(held_of(i)->layout_version, 1);
        ck_assert_uint_eq(held_of(i)->next_layout_version, 2);
    }
    stage_force(stage_half);
    stage_complete();
    stage_round();
    stage_check();
}

/* It would wait for a Pin that may never come. */
TEST(a_fence_that_brings_a_layout_gives_back_what_a_snapshot_has_prepared)
{
    const struct budget *budget = &stage.shard[0].shard->memory.budget;
    stage_prepare(stage_half);
    const uint64_t before = budget->used_bytes;
    scene_tell(&stage.shard[0], 70, PinPrepare, .job = SCENE_JOB, .snapshot = 10);
    (void)scene_hear(&stage.shard[0], CAIRN_MSG_DONE);
    ck_assert_uint_gt(budget->used_bytes, before);
    stage_force(stage_half);
    ck_assert_ptr_null(LIST_FIRST(&stage_job(0)->pins.list));
    stage_complete();
}

TEST(another_coordinator_hears_again_who_is_whole_and_settles)
{
    stage_round();
    stage_begin_move(stage_half);
    stage_hear_moved();
    come_back();
    stage_fence(2);
    stage_complete();
    come_back();
    stage_fence(2); // it does not know that all is settled
    stage_resolve();
    stage_hear_moved();
    stage_round();
    stage_check();
}

TEST(a_coordinator_that_comes_in_the_middle_does_not_stop_what_comes)
{
    stage_begin_taking();
    stage_job(0)->state = CAIRN_JOB_SERVING;
    come_back();
    stage_fence(2);
    stage_complete();
    stage_round();
    stage_check();
}

/* One that joined dies before it is whole, and its slice is taken back. */
static void lose_a_joiner(void)
{
    stage_round();
    stage_move(stage_half);
    stage_round();
    stage_join(stage_half);
    stage_prepare(stage_out);
    stage_force(stage_out);
    scene_close(&stage.shard[--stage.count]);
    stage_prepare(stage_half);
    stage_force(stage_half);
}

/* Nobody lacks anything, at once: nothing was fetched. */
static void go_on_with_all_there(void)
{
    stage_resolve();
    stage_hear_moved();
    stage_check();
    stage_settle();
    stage_round();
    stage_check();
}

TEST(when_one_that_joined_dies_before_it_is_whole_the_givers_have_all_that_they_gave)
{
    lose_a_joiner();
    go_on_with_all_there();
}

/* Two that joined die in one slice: what comes after the way back moves nothing. */
TEST(the_way_back_is_taken_again_without_another_shard)
{
    lose_a_joiner();
    stage_prepare(stage_half);
    stage_force(stage_half);
    go_on_with_all_there();
}

static void open_round(struct scene *scene)
{
    scene_round_open(scene, stage.round, stage.step, STAGE_WORKERS);
    for (int i = 0; i < STAGE_WORKERS; i++) scene_note(scene, CAIRN_CHUNK_GRANT);
}

/* One that is open by the layout that is taken back, and one of which all is here. */
TEST_EACH(the_way_back_ends_a_round_that_is_open, 0, 2)
{
    stage_round();
    stage_move(stage_half);
    stage_join(stage_half);
    stage_begin_move(stage_out);
    scene_close(&stage.shard[--stage.count]);
    stage_hear_moved();
    if (_i == 0)
        stage.round++;
    else
        stage_push();
    for (uint32_t i = 0; i < stage.count; i++) {
        if (_i == 0)
            open_round(&stage.shard[i]);
        else
            scene_hear(&stage.shard[i], CAIRN_MSG_REDUCED);
    }
    stage_begin_move(stage_half);
    stage_hear_moved();
    stage_check();
    stage_settle();
    stage_round();
    stage_check();
}

/* Who was lost had nothing: the round may have been applied on others. */
TEST(a_layout_that_moves_nothing_leaves_a_prepared_round_as_it_is)
{
    stage_round();
    stage_move(stage_half);
    stage_push();
    for (uint32_t i = 0; i < stage.count; i++) scene_hear(&stage.shard[i], CAIRN_MSG_REDUCED);
    model_update(&stage.model, stage.round, stage.step, stage.last.scalars);
    model_say_apply(&stage.shard[0], stage.round, stage.step, CAIRN_MSG_DECIDE, stage.last.scalars);
    scene_hear(&stage.shard[0], CAIRN_MSG_PUBLISHED);
    stage.last.round = stage.round;
    stage.step++;
    stage_begin_move(stage_half);
    stage_hear_moved();
    stage_check();
    stage_settle();
    stage_round();
    stage_check();
}

TEST(a_job_that_is_dropped_in_the_middle_gives_all_back)
{
    stage_begin_taking();
    for (uint32_t i = 0; i < stage.count; i++) scene_drop(&stage.shard[i]);
}

TEST(a_shard_that_is_closed_in_the_middle_frees_all)
{
    stage_begin_taking();
}

SUITE(60, stage_open_two, stage_close);
