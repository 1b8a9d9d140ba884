/* A round that a worker gives up, staying in the job: void for all, and the step is done again. */
#include <check.h>
#include <stdlib.h>

#include "tests/support/suite.h"
#include "tests/support/toy_scene.h"

static cairn_job *jobs[2];

static void open_both(void)
{
    toy_start(2, .seed = 3, .delay_max_ticks = 2);
    for (uint32_t rank = 0; rank < 2; rank++)
        jobs[rank] = toy_ready(toy_session(&rooms, rank == 0 ? "zero" : "one"), "given-up",
                               TOY_SPEC(.rank = rank, .workers_min = 2));
}

static struct cairn_result commit_both(const struct cairn_round rounds[2])
{
    struct cairn_result first = { .struct_size = sizeof first };
    fails(cairn_commit(jobs[0], &rounds[0], 0, NULL, 0, 1, &first), CAIRN_ERR_TIMEOUT, "one");
    toy_commit(jobs[1], &rounds[1]);
    good(cairn_commit(jobs[0], &rounds[0], 0, NULL, 0, TOY_WAIT_MS, &first));
    return first;
}

TEST(a_round_given_up_is_void_for_all_and_its_step_is_done_again)
{
    struct cairn_round rounds[2] = { toy_begin(jobs[0]), toy_begin(jobs[1]) }, again[2];
    struct cairn_result result = { .struct_size = sizeof result };
    const struct cairn_mem mem = toy_mem(calloc(TOY_ELEMS, 4), CAIRN_F32);
    for (int i = 0; i < 2; i++)
        good(cairn_push(jobs[i], &rounds[i], 0, "a.weight", NULL, &mem, NULL));
    good(cairn_round_abandon(jobs[0], &rounds[0], TOY_WAIT_MS));
    good(cairn_round_abandon(jobs[0], &rounds[0], 0)); // it is over, as was wanted
    fails(cairn_commit(jobs[1], &rounds[1], 0, NULL, 0, TOY_WAIT_MS, &result),
          CAIRN_ERR_EPOCH_CHANGED, "worker zero (rank 0) gave the round up");
    free(mem.ptr); // nothing reads it any more: a sanitizer would know
    fails(cairn_push(jobs[0], &rounds[0], 0, "scale", NULL, &mem, NULL), CAIRN_ERR_EPOCH_CHANGED,
          "gave the round up; recompute the step (step 0 was abandoned");
    for (int i = 0; i < 2; i++) {
        again[i] = toy_begin(jobs[i]);
        ck_assert_uint_eq(again[i].step, rounds[i].step);
        ck_assert_uint_gt(again[i].round, rounds[i].round);
        ck_assert_uint_eq(again[i].world, 2);
        toy_push(jobs[i], &again[i], 0, 7);
    }
    result = commit_both(again);
    ck_assert(result.applied);
    ck_assert_uint_eq(result.step, rounds[0].step + 1);
}

TEST(what_is_committed_is_not_given_up)
{
    struct cairn_round rounds[2] = { toy_begin(jobs[0]), toy_begin(jobs[1]) };
    struct cairn_result result = { .struct_size = sizeof result };
    for (int i = 0; i < 2; i++) toy_push(jobs[i], &rounds[i], 0, 7);
    fails(cairn_commit(jobs[0], &rounds[0], 0, NULL, 0, 1, &result), CAIRN_ERR_TIMEOUT, "one");
    fails(cairn_round_abandon(jobs[0], &rounds[0], TOY_WAIT_MS), CAIRN_ERR_STALE, "committed");
    ck_assert(toy_commit(jobs[1], &rounds[1]).applied); // it went on
    fails(cairn_round_abandon(jobs[1], &rounds[1], TOY_WAIT_MS), CAIRN_ERR_STALE, "committed");
}

TEST(a_round_that_is_none_is_not_given_up)
{
    const struct cairn_round nothing = { .struct_size = sizeof nothing };
    struct cairn_round round = toy_begin(jobs[0]);
    fails(cairn_round_abandon(jobs[0], &nothing, 0), CAIRN_ERR_INVALID, "cairn_round_begin");
    fails(cairn_round_abandon(jobs[1], &round, 0), CAIRN_ERR_STALE, "not begun on this handle");
    fails(cairn_round_abandon(jobs[0], &round, -1), CAIRN_ERR_INVALID, "timeout_ms");
    round.round += 1000;
    fails(cairn_round_abandon(jobs[0], &round, 0), CAIRN_ERR_STALE, "not the one");
}

SUITE(60, open_both, toy_stop);
