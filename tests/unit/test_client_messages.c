/* What the library says when it is used in the wrong order: the sentence names the call that is missing. And
 * the initial state of several ranks, which is compared. */
#include <check.h>
#include <string.h>

#include "tests/support/suite.h"
#include "tests/support/toy_scene.h"

TEST(a_push_without_a_round_is_told_to_begin_one)
{
    cairn_job *job = toy_ready(session, "toy", TOY_SPEC());
    float value[1] = { 1 };
    struct cairn_round none = { .struct_size = sizeof none }, other;
    struct cairn_result result = { .struct_size = sizeof result };
    fails(cairn_push(job, &none, 0, "scale", NULL, TOY_F32(value), NULL), CAIRN_ERR_INVALID,
          "cairn_round_begin");
    fails(cairn_micro_end(job, &none, 0), CAIRN_ERR_INVALID, "cairn_round_begin");
    fails(cairn_commit(job, &none, 0, NULL, 0, TOY_WAIT_MS, &result), CAIRN_ERR_INVALID,
          "cairn_round_begin");
    other = none;
    other.round = 4711;
    fails(cairn_push(job, &other, 0, "scale", NULL, TOY_F32(value), NULL), CAIRN_ERR_STALE,
          "cairn_round_begin");
    fails(cairn_commit(job, &other, 0, NULL, 0, TOY_WAIT_MS, &result), CAIRN_ERR_STALE,
          "cairn_round_begin");
}

/* Its structs end where those of the first release did. */
TEST(a_caller_of_an_older_header_trains)
{
    cairn_job *job = toy_ready(session, "toy", TOY_SPEC());
    struct cairn_round round = { .struct_size = offsetof(struct cairn_round, skips), .index = 71 };
    struct cairn_result result = { .struct_size = offsetof(struct cairn_result, skips),
                                   .index = 72 };
    good(cairn_round_begin(job, TOY_WAIT_MS, &round));
    ck_assert_uint_eq(round.struct_size, offsetof(struct cairn_round, skips));
    toy_push(job, &round, 0, 1);
    good(cairn_commit(job, &round, 0, NULL, 0, TOY_WAIT_MS, &result));
    ck_assert_uint_eq(result.step, 1);
    ck_assert(round.index == 71 && result.index == 72); // not theirs
    result.struct_size--;
    fails(cairn_commit(job, &round, 0, NULL, 0, TOY_WAIT_MS, &result), CAIRN_ERR_INVALID,
          "struct_size");
    round.struct_size--;
    fails(cairn_round_begin(job, TOY_WAIT_MS, &round), CAIRN_ERR_INVALID, "struct_size");
}

TEST(a_push_after_the_commit_is_told_so)
{
    cairn_job *job = toy_ready(session, "toy", TOY_SPEC());
    float value[1] = { 1 };
    const struct cairn_round round = toy_begin(job);
    fails(cairn_push(job, &round, 1, "scale", NULL, TOY_F32(value), NULL), CAIRN_ERR_INVALID,
          "cairn_micro_end");
    toy_commit(job, &round); // without a push: an update of zeros
    fails(cairn_push(job, &round, 0, "scale", NULL, TOY_F32(value), NULL), CAIRN_ERR_STALE,
          "committed");
}

TEST(a_forgotten_init_done_is_named)
{
    cairn_job *job = toy_open(session, "toy", TOY_SPEC());
    struct cairn_round round = { .struct_size = sizeof round };
    fails(cairn_round_begin(job, TOY_WAIT_MS, &round), CAIRN_ERR_NOT_READY, "cairn_init_done");
    toy_put(job);
    fails(cairn_round_begin(job, TOY_WAIT_MS, &round), CAIRN_ERR_NOT_READY, "cairn_init_done");
    good(cairn_init_done(job, NULL, TOY_WAIT_MS));
    good(cairn_round_begin(job, TOY_WAIT_MS, &round));
}

TEST(a_tensor_is_put_once_and_again_if_some_were_missing)
{
    cairn_job *job = toy_open(session, "toy", TOY_SPEC());
    float value[1] = { 1 };
    const struct cairn_mem mem = toy_mem(value, CAIRN_F32);
    good(cairn_put(job, "scale", "param", NULL, &mem, NULL));
    fails(cairn_put(job, "scale", "param", NULL, &mem, NULL), CAIRN_ERR_EXISTS, "put once");
    fails(cairn_init_done(job, NULL, TOY_WAIT_MS), CAIRN_ERR_NOT_READY,
          "has no whole initial state of"); // the shard that answered first
    good(cairn_put(job, "scale", "param", NULL, &mem, NULL));
    fails(cairn_init_done(job, NULL, TOY_WAIT_MS), CAIRN_ERR_NOT_READY,
          "this worker has not put 4 tensors: a.bias, a.weight, b.weight, table");
    toy_put(job);
    good(cairn_init_done(job, NULL, TOY_WAIT_MS));
    fails(cairn_put(job, "scale", "param", NULL, &mem, NULL), CAIRN_ERR_EXISTS, "already");
}

TEST(a_version_of_the_future_is_not_called_gone)
{
    cairn_job *job = toy_open(session, "toy", TOY_SPEC());
    float value[1] = { 1 };
    cairn_op *op;
    const struct cairn_mem mem = toy_mem(value, CAIRN_F32);
    struct cairn_version version = { 1, 0 };
    good(cairn_fetch(job, version, "scale", NULL, NULL, &mem, &op));
    fails(cairn_wait(op, TOY_WAIT_MS), CAIRN_ERR_NOT_READY, "cairn_init_done");
    toy_put(job);
    good(cairn_init_done(job, NULL, TOY_WAIT_MS));
    for (uint32_t step = 0; step < 3; step++) version = toy_step(job, step).version;
    version.step++;
    good(cairn_fetch(job, version, "scale", NULL, NULL, &mem, &op));
    fails(cairn_wait(op, TOY_WAIT_MS), CAIRN_ERR_NOT_READY, "cairn_version_wait");
    good(cairn_fetch(job, version, "scale", "param", NULL, &mem, &op));
    fails(cairn_wait(op, TOY_WAIT_MS), CAIRN_ERR_NOT_READY, "not published yet");
    version.step = 0;
    good(cairn_fetch(job, version, "scale", NULL, NULL, &mem, &op));
    fails(cairn_wait(op, TOY_WAIT_MS), CAIRN_ERR_VERSION_GONE, "no longer kept");
}

TEST(who_lost_its_place_hears_that_it_is_meant)
{
    cairn_job *job = toy_ready(session, "toy", TOY_SPEC());
    cairn *second = toy_session(&rooms, "usurper");
    toy_open(second, "toy", TOY_SPEC(.open_flags = CAIRN_OPEN_TAKEOVER));
    struct cairn_round round = { .struct_size = sizeof round };
    fails(cairn_round_begin(job, TOY_WAIT_MS, &round), CAIRN_ERR_FENCED,
          "this worker lost its place: usurper attached as rank 0 of job toy");
    ck_assert_ptr_nonnull(strstr(cairn_error(), "a rank of its own"));
}

/* ---- the initial state of other ranks ---- */

TEST(ranks_that_hold_the_same_state_agree_and_nothing_of_it_travels)
{
    cairn *second = toy_session(&rooms, "second");
    cairn_job *job = toy_open(session, "toy", TOY_SPEC());
    cairn_job *other = toy_open(second, "toy", TOY_SPEC(.rank = 1));
    toy_put(other);
    toy_put(job);
    good(cairn_init_done(job, NULL, TOY_WAIT_MS));
    good(cairn_init_done(other, NULL, TOY_WAIT_MS));
    const struct cairn_stats stats = toy_stats(other);
    ck_assert_uint_eq(stats.put_bytes, 0);
}

TEST(a_rank_with_another_state_is_told_and_the_others_train_on)
{
    cairn *second = toy_session(&rooms, "second");
    cairn_job *job = toy_ready(session, "toy", TOY_SPEC());
    cairn_job *other = toy_open(second, "toy", TOY_SPEC(.rank = 1));
    float value[1] = { 42 };
    struct cairn_round round = { .struct_size = sizeof round };
    good(cairn_put(other, "scale", "param", NULL, TOY_F32(value), NULL));
    fails(cairn_init_done(other, NULL, TOY_WAIT_MS), CAIRN_ERR_MISMATCH,
          "rank 1 has another initial state of job toy than rank 0: digest ");
    ck_assert_ptr_nonnull(strstr(cairn_error(), "put 1 of the job's 5 tensors"));
    cairn_close(second);
    toy_step(job, 1);
    good(cairn_round_begin(job, TOY_WAIT_MS, &round));
}

TEST(one_bit_of_a_state_makes_another_digest)
{
    cairn *second = toy_session(&rooms, "second");
    cairn_job *other = toy_open(second, "toy", TOY_SPEC(.rank = 1));
    float values[TOY_ELEMS];
    for (int t = 0; t < TOY_TENSORS; t++) {
        for (uint64_t i = 0; i < toy_elems(t); i++) values[i] = toy_initial(t, i);
        if (t == 2) values[1022] = -values[1022];
        good(cairn_put(other, toy_tensors[t].name, "param", NULL, TOY_F32(values), NULL));
    }
    toy_ready(session, "toy", TOY_SPEC());
    fails(cairn_init_done(other, NULL, TOY_WAIT_MS), CAIRN_ERR_MISMATCH, "rank 1");
    ck_assert_ptr_null(strstr(cairn_error(), "tensors)"));
}

TEST(a_digest_of_the_caller_is_the_same_on_all_ranks_that_give_one)
{
    cairn *second = toy_session(&rooms, "second");
    cairn_job *job = toy_open(session, "toy", TOY_SPEC());
    cairn_job *other = toy_open(second, "toy", TOY_SPEC(.rank = 1));
    const uint8_t mine[32] = { 1, 2, 3 }, another[32] = { 1, 2, 4 };
    toy_put(job);
    good(cairn_init_done(job, mine, TOY_WAIT_MS));
    fails(cairn_init_done(other, another, TOY_WAIT_MS), CAIRN_ERR_MISMATCH,
          "digest 0102040000000000 here, 0102030000000000 there");
    good(cairn_init_done(other, mine, TOY_WAIT_MS));
    good(cairn_init_done(other, NULL, TOY_WAIT_MS)); // not compared
}

TEST(after_the_first_update_nothing_is_compared)
{
    cairn_job *job = toy_ready(session, "toy", TOY_SPEC());
    toy_step(job, 1);
    cairn *second = toy_session(&rooms, "second");
    cairn_job *other = toy_open(second, "toy", TOY_SPEC(.rank = 1));
    float value[1] = { 42 };
    fails(cairn_put(other, "scale", "param", NULL, TOY_F32(value), NULL), CAIRN_ERR_EXISTS,
          "has its state");
    good(cairn_init_done(other, NULL, TOY_WAIT_MS));
}

SUITE(60, toy_open_trainer, toy_stop);
