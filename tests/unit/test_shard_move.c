/* The layout of a job changes while rounds go on: two shards, of which one gives and the other takes, a
 * third one that joins, and what becomes of rounds and fetches meanwhile. */
#include <check.h>
#include <stdlib.h>
#include <string.h>

#include "server/core/step_state.h"
#include "tests/support/move_stage.h"
#include "tests/support/suite.h"

/* What moves there and back has the same bits, and goes on as if it had not. */
static void move_there_and_back(const char *kind)
{
    stage_open(kind);
    stage_round();
    stage_round();
    stage_check();
    stage_move(stage_half);
    stage_check();
    for (int i = 0; i < 3; i++) stage_round();
    stage_check();
    stage_move(stage_back);
    stage_check();
    stage_round();
    stage_check();
    stage_close();
}

TEST(what_moves_there_and_back_has_the_same_bits_and_goes_on_as_if_it_had_not)
{
    move_there_and_back("mem");
}

TEST(so_it_has_over_ucx)
{
    move_there_and_back("ucx");
}

SUITE(60);

/* ---- two shards ---- */

static struct model then; /* of the version before */

static void leave(void)
{
    if (then.scene != NULL) model_close(&then);
    stage_close();
}

TEST(rounds_go_on_by_the_new_layout_while_the_version_of_before_is_fetched_by_the_old_one)
{
    stage_round();
    stage_prepare(stage_half);
    stage_round(); // what is prepared changes nothing
    model_copy(&then, &stage.model);
    stage_force(stage_half);
    stage_check_version(2, stage_before, &then);
    stage_resolve();
    stage_push(); // while state comes
    stage_check_version(2, stage_before, &then);
    stage_apply();
    stage_check();
    stage_check_version(2, stage_before, &then);
    stage_check_version(3, stage_half, &stage.model);
    stage_hear_moved();
    stage_settle();
    stage_check_version(2, stage_before, &then);
    stage_check();
}

TEST(a_taker_is_not_reduced_before_all_of_its_state_is_here)
{
    stage_round();
    stage_begin_move(stage_half);
    stage_job(0)->state = CAIRN_JOB_SEALING; // refuses what is asked for
    stage.round++;
    model_push_round(&stage.shard[1], stage.round, stage.step);
    scene_settle(&stage.shard[1]);
    ck_assert(stage_job(1)->collector.step->lacks_state);
    ck_assert_int_eq(step_phase_of(stage_job(1)->collector.step), CAIRN_STEP_REDUCING);
    stage_job(0)->state = CAIRN_JOB_SERVING;
    model_push_round(&stage.shard[0], stage.round, stage.step);
    stage_apply();
    stage_check();
    stage_hear_moved();
    stage_settle();
}

TEST(a_shard_that_joins_takes_state_at_the_version_that_there_is_and_another_gives_all_it_has)
{
    stage_round();
    stage_move(stage_half);
    stage_round();
    stage_join(stage_half);
    stage_fence(stage.layout); // the joiner is there: it has all of what it owns, which is nothing
    stage_resolve();
    stage_hear_moved();
    stage_round();
    stage_move(stage_out);
    stage_check();
    ck_assert_uint_eq(stage_job(1)->view->table.map.elem_count, 0);
    stage_round();
    stage_round();
    stage_check();
}

TEST(a_skipped_round_changes_nothing_of_a_move)
{
    stage_round();
    stage_begin_move(stage_half);
    stage_push();
    stage_skip();
    stage_hear_moved();
    stage_check();
    stage_round();
    stage_settle();
    stage_check();
}

TEST(an_abandoned_round_and_a_new_epoch_change_nothing_of_a_move)
{
    stage_round();
    stage_begin_move(stage_half);
    stage_push();
    stage_fence(stage.layout); // a worker died
    stage_resolve();
    stage_hear_moved();
    stage_round();
    stage_settle();
    stage_check();
}

static void say_publish(struct scene *scene, uint32_t request)
{
    scene_tell(scene, request, PartPublish, .job = SCENE_JOB, .layout = stage.layout);
}

TEST(a_version_at_rest_is_published_once_more_in_the_layout_in_force)
{
    stage_round();
    stage_move(stage_half);
    stage_check_version(1, stage_before, &stage.model);
    for (uint32_t i = 0; i < stage.count; i++) {
        // Who asks again while it is at work has given the first request up.
        say_publish(&stage.shard[i], 40 + i);
        say_publish(&stage.shard[i], 50 + i);
        scene_done(&stage.shard[i], 50 + i);
        const uint64_t versions = stage.shard[i].shard->copies_made;
        say_publish(&stage.shard[i], 60 + i);
        scene_done(&stage.shard[i], 60 + i);
        ck_assert_uint_eq(stage.shard[i].shard->copies_made, versions); // it was done
    }
    stage_check_version(1, stage_half, &stage.model);
    stage_round();
    stage_check();
}

/* ---- what is refused, and forgotten ---- */

TEST(what_has_no_room_is_refused_with_the_numbers_and_nothing_changes)
{
    struct scene *taker = &stage.shard[1];
    struct budget *budget = &taker->shard->memory.budget;
    const uint64_t used = budget->used_bytes, limit = budget->limit_bytes;
    budget->limit_bytes = used + 100000;
    const uint32_t request = stage_say_prepare(taker, stage_half, 2, 2);
    scene_refused(taker, request, CAIRN_ERR_NO_MEMORY, "incoming state of job play in layout 2");
    ck_assert_uint_eq(budget->used_bytes, used);
    ck_assert_ptr_null(stage_job(1)->move.next);
    budget->limit_bytes = limit;
    stage_round();
    stage_move(stage_half); // with room it moves
    stage_check();
}

TEST(a_layout_that_does_not_follow_or_of_other_tensors_is_refused)
{
    struct scene *scene = &stage.shard[0];
    scene_refused(scene, stage_say_prepare(scene, stage_half, 1, 2), CAIRN_ERR_INVALID,
                  "layout 1 of job play does not follow layout 1");
    stage_round();
    stage_check();
}

TEST(a_prepared_layout_is_forgotten_by_word)
{
    uint64_t used[2];
    stage_round();
    for (uint32_t i = 0; i < 2; i++) used[i] = stage.shard[i].shard->memory.budget.used_bytes;
    stage_prepare(stage_half);
    for (uint32_t i = 0; i < 2; i++) {
        scene_tell(&stage.shard[i], 0, PartUnprepare, .job = SCENE_JOB, .layout = 2);
        scene_settle(&stage.shard[i]);
        ck_assert_ptr_null(stage_job(i)->move.next);
        ck_assert_uint_eq(stage.shard[i].shard->memory.budget.used_bytes, used[i]);
    }
    stage_round();
    stage_check();
    stage_move(stage_half);
    stage_check();
}

/* A worker that comes or goes while shards prepare is no reason to begin anew. */
TEST(a_new_epoch_of_the_layout_in_force_leaves_what_is_prepared)
{
    stage_round();
    stage_prepare(stage_half);
    stage_fence(1);
    stage_resolve();
    stage_round();
    stage_force(stage_half);
    stage_complete();
    stage_round();
    stage_check();
}

TEST(a_fence_that_brings_a_layout_which_is_not_prepared_stops_the_job_with_a_sentence)
{
    log_init("test", CAIRN_LOG_ERROR);
    scene_tell(&stage.shard[0], 0, Fence, .job = SCENE_JOB, .epoch = 9, .layout = 2);
    scene_refused(&stage.shard[0], 0, CAIRN_ERR_PROTOCOL,
                  "a Fence brings layout 2, and layout 1 is in force");
}

/* Bytes of the planes of a shard that have pages: shared memory, which stays until it is given back. */
static uint64_t resident(uint32_t shard)
{
    uint64_t bytes = 0;
    for (int p = 0; p < CAIRN_PLANES; p++) {
        const struct arena *arena = &stage_job(shard)->planes.host[p];
        if (arena->base != NULL) bytes += scene_resident(arena);
    }
    return bytes;
}

TEST(a_move_takes_no_more_than_what_comes_and_what_was_given_is_the_systems_once_it_is_settled)
{
    if (!stage_is_on_host(0) || !stage_is_on_host(1)) return; // tests/gpu/test_shard_move_device.c
    stage_round();
    const struct budget *taker = &stage.shard[1].shard->memory.budget;
    const uint64_t before = stage_job(0)->memory.state + stage_job(1)->memory.state,
                   had = stage_job(0)->memory.state, had_pages = resident(0),
                   taker_pages = resident(1), taker_used = taker->used_bytes;
    stage_prepare(stage_half);
    const struct move_part *next = stage_job(1)->move.next;
    const uint64_t slice = next->taken.state - next->shifted,
                   mover = reply_memory_bytes(stage_job(1)->replies.bytes);
    const uint64_t most = slice + next->taken.staging + next->taken.published + next->taken.tables +
                          mover;
    ck_assert_uint_le(taker->used_bytes, taker_used + most);
    stage_force(stage_half);
    stage_resolve();
    stage_hear_moved();
    ck_assert_uint_eq(resident(0), had_pages);
    ck_assert_uint_le(resident(1), taker_pages + slice + slice / 4);
    stage_settle();
    ck_assert_uint_lt(stage_job(0)->memory.state, had);
    ck_assert_uint_eq(stage_job(0)->memory.state + stage_job(1)->memory.state, before);
    while (resident(0) > had_pages - slice / 4 * 3) scene_settle(&stage.shard[0]); // on a thread
    stage_round();
    stage_check();
    stage_move(stage_back);
    ck_assert_uint_eq(stage_job(0)->memory.state, had);
    stage_check();
}

TEST(the_next_layout_is_prepared_when_the_last_of_what_was_given_is_sent)
{
    stage_round();
    stage_begin_move(stage_half);
    stage_hear_moved();
    stage_job(0)->move.sends++; // one is under way
    scene_tell(&stage.shard[0], 0, PartSettled, .job = SCENE_JOB, .layout = stage.layout);
    const uint32_t request = stage_say_prepare(&stage.shard[0], stage_back, stage.layout + 1,
                                               stage.count);
    for (int i = 0; i < 3; i++) scene_settle(&stage.shard[0]);
    ck_assert(stage_job(0)->move.is_settling);
    stage_job(0)->move.sends--;
    scene_done(&stage.shard[0], request);
    stage_settle();
    stage_move(stage_back);
    stage_check();
}

SUITE(60, stage_open_two, leave);
