/* What the library says when it is used in the wrong order: the sentence names the call that is missing. And
 * the initial state of several ranks, which is compared. */
#include <check.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/suite.h"
#include "tests/support/toy_scene.h"

static void open_rooms(void)
{
    toy_start(2, .seed = 5);
    session = toy_session(&rooms, "trainer");
}

TEST(a_push_without_a_round_is_told_to_begin_one)
{
    const struct cairn_job_spec spec = toy_spec(0, 1);
    cairn_job *job = toy_ready(session, "toy", &spec);
    float value[1] = { 1 };
    const struct cairn_mem mem = toy_mem(value, CAIRN_F32);
    struct cairn_round none = { .struct_size = sizeof none }, other;
    struct cairn_result result = { .struct_size = sizeof result };
    toy_fails(cairn_push(job, &none, 0, "scale", NULL, &mem, NULL), CAIRN_ERR_INVALID,
              "cairn_round_begin");
    toy_fails(cairn_micro_end(job, &none, 0), CAIRN_ERR_INVALID, "cairn_round_begin");
    toy_fails(cairn_commit(job, &none, 0, NULL, 0, TOY_WAIT_MS, &result), CAIRN_ERR_INVALID,
              "cairn_round_begin");
    other = none;
    other.round = 4711;
    toy_fails(cairn_push(job, &other, 0, "scale", NULL, &mem, NULL), CAIRN_ERR_STALE,
              "cairn_round_begin");
    toy_fails(cairn_commit(job, &other, 0, NULL, 0, TOY_WAIT_MS, &result), CAIRN_ERR_STALE,
              "cairn_round_begin");
}

/* Its structs end where those of the first release did. */
TEST(a_caller_of_an_older_header_trains)
{
    const struct cairn_job_spec spec = toy_spec(0, 1);
    cairn_job *job = toy_ready(session, "toy", &spec);
    struct cairn_round round = { .struct_size = offsetof(struct cairn_round, skips), .index = 71 };
    struct cairn_result result = { .struct_size = offsetof(struct cairn_result, skips),
                                   .index = 72 };
    toy_good(cairn_round_begin(job, TOY_WAIT_MS, &round));
    ck_assert_uint_eq(round.struct_size, offsetof(struct cairn_round, skips));
    toy_push(job, &round, 0, 1);
    toy_good(cairn_commit(job, &round, 0, NULL, 0, TOY_WAIT_MS, &result));
    ck_assert_uint_eq(result.step, 1);
    ck_assert(round.index == 71 && result.index == 72); // not theirs
    result.struct_size--;
    toy_fails(cairn_commit(job, &round, 0, NULL, 0, TOY_WAIT_MS, &result), CAIRN_ERR_INVALID,
              "struct_size");
    round.struct_size--;
    toy_fails(cairn_round_begin(job, TOY_WAIT_MS, &round), CAIRN_ERR_INVALID, "struct_size");
}

TEST(a_push_after_the_commit_is_told_so)
{
    const struct cairn_job_spec spec = toy_spec(0, 1);
    cairn_job *job = toy_ready(session, "toy", &spec);
    float value[1] = { 1 };
    const struct cairn_mem mem = toy_mem(value, CAIRN_F32);
    const struct cairn_round round = toy_begin(job);
    toy_fails(cairn_push(job, &round, 1, "scale", NULL, &mem, NULL), CAIRN_ERR_INVALID,
              "cairn_micro_end");
    toy_commit(job, &round); // without a push: an update of zeros
    toy_fails(cairn_push(job, &round, 0, "scale", NULL, &mem, NULL), CAIRN_ERR_STALE, "committed");
}

TEST(a_forgotten_init_done_is_named)
{
    const struct cairn_job_spec spec = toy_spec(0, 1);
    cairn_job *job = toy_open(session, "toy", &spec);
    struct cairn_round round = { .struct_size = sizeof round };
    toy_fails(cairn_round_begin(job, TOY_WAIT_MS, &round), CAIRN_ERR_NOT_READY, "cairn_init_done");
    toy_put(job);
    toy_fails(cairn_round_begin(job, TOY_WAIT_MS, &round), CAIRN_ERR_NOT_READY, "cairn_init_done");
    toy_good(cairn_init_done(job, NULL, TOY_WAIT_MS));
    toy_good(cairn_round_begin(job, TOY_WAIT_MS, &round));
}

TEST(a_tensor_is_put_once_and_again_if_some_were_missing)
{
    const struct cairn_job_spec spec = toy_spec(0, 1);
    cairn_job *job = toy_open(session, "toy", &spec);
    float value[1] = { 1 };
    const struct cairn_mem mem = toy_mem(value, CAIRN_F32);
    toy_good(cairn_put(job, "scale", "param", NULL, &mem, NULL));
    toy_fails(cairn_put(job, "scale", "param", NULL, &mem, NULL), CAIRN_ERR_EXISTS, "put once");
    toy_fails(cairn_init_done(job, NULL, TOY_WAIT_MS), CAIRN_ERR_NOT_READY,
              "has no whole initial state of"); // the shard that answered first
    toy_good(cairn_put(job, "scale", "param", NULL, &mem, NULL));
    toy_fails(cairn_init_done(job, NULL, TOY_WAIT_MS), CAIRN_ERR_NOT_READY,
              "this worker has not put 4 tensors: a.bias, a.weight, b.weight, table");
    toy_put(job);
    toy_good(cairn_init_done(job, NULL, TOY_WAIT_MS));
    toy_fails(cairn_put(job, "scale", "param", NULL, &mem, NULL), CAIRN_ERR_EXISTS, "already");
}

TEST(a_version_of_the_future_is_not_called_gone)
{
    const struct cairn_job_spec spec = toy_spec(0, 1);
    cairn_job *job = toy_open(session, "toy", &spec);
    float value[1] = { 1 };
    cairn_op *op;
    const struct cairn_mem mem = toy_mem(value, CAIRN_F32);
    struct cairn_version version = { 1, 0 };
    toy_good(cairn_fetch(job, version, "scale", NULL, NULL, &mem, &op));
    toy_fails(cairn_wait(op, TOY_WAIT_MS), CAIRN_ERR_NOT_READY, "cairn_init_done");
    toy_put(job);
    toy_good(cairn_init_done(job, NULL, TOY_WAIT_MS));
    for (uint32_t step = 0; step < 3; step++) version = toy_step(job, step).version;
    version.step++;
    toy_good(cairn_fetch(job, version, "scale", NULL, NULL, &mem, &op));
    toy_fails(cairn_wait(op, TOY_WAIT_MS), CAIRN_ERR_NOT_READY, "cairn_version_wait");
    toy_good(cairn_fetch(job, version, "scale", "param", NULL, &mem, &op));
    toy_fails(cairn_wait(op, TOY_WAIT_MS), CAIRN_ERR_NOT_READY, "not published yet");
    version.step = 0;
    toy_good(cairn_fetch(job, version, "scale", NULL, NULL, &mem, &op));
    toy_fails(cairn_wait(op, TOY_WAIT_MS), CAIRN_ERR_VERSION_GONE, "no longer kept");
}

TEST(who_lost_its_place_hears_that_it_is_meant)
{
    struct cairn_job_spec spec = toy_spec(0, 1);
    cairn_job *job = toy_ready(session, "toy", &spec);
    cairn *second = toy_session(&rooms, "usurper");
    spec.open_flags = CAIRN_OPEN_TAKEOVER;
    toy_open(second, "toy", &spec);
    struct cairn_round round = { .struct_size = sizeof round };
    toy_fails(cairn_round_begin(job, TOY_WAIT_MS, &round), CAIRN_ERR_FENCED,
              "this worker lost its place: usurper attached as rank 0 of job toy");
    ck_assert_ptr_nonnull(strstr(cairn_error(), "a rank of its own"));
    cairn_close(second);
}

/* ---- the initial state of other ranks ---- */

TEST(ranks_that_hold_the_same_state_agree_and_nothing_of_it_travels)
{
    const struct cairn_job_spec source = toy_spec(0, 1), same = toy_spec(1, 1);
    cairn *second = toy_session(&rooms, "second");
    cairn_job *job = toy_open(session, "toy", &source);
    cairn_job *other = toy_open(second, "toy", &same);
    struct cairn_stats stats = { .struct_size = sizeof stats };
    toy_put(other);
    toy_put(job);
    toy_good(cairn_init_done(job, NULL, TOY_WAIT_MS));
    toy_good(cairn_init_done(other, NULL, TOY_WAIT_MS));
    toy_good(cairn_job_stats(other, &stats));
    ck_assert_uint_eq(stats.put_bytes, 0);
    cairn_close(second);
}

TEST(a_rank_with_another_state_is_told_and_the_others_train_on)
{
    const struct cairn_job_spec source = toy_spec(0, 1), different = toy_spec(1, 1);
    cairn *second = toy_session(&rooms, "second");
    cairn_job *job = toy_ready(session, "toy", &source);
    cairn_job *other = toy_open(second, "toy", &different);
    float value[1] = { 42 };
    const struct cairn_mem mem = toy_mem(value, CAIRN_F32);
    struct cairn_round round = { .struct_size = sizeof round };
    toy_good(cairn_put(other, "scale", "param", NULL, &mem, NULL));
    toy_fails(cairn_init_done(other, NULL, TOY_WAIT_MS), CAIRN_ERR_MISMATCH,
              "rank 1 has another initial state of job toy than rank 0: digest ");
    ck_assert_ptr_nonnull(strstr(cairn_error(), "put 1 of the job's 5 tensors"));
    cairn_close(second);
    toy_step(job, 1);
    toy_good(cairn_round_begin(job, TOY_WAIT_MS, &round));
}

TEST(one_bit_of_a_state_makes_another_digest)
{
    const struct cairn_job_spec source = toy_spec(0, 1), different = toy_spec(1, 1);
    cairn *second = toy_session(&rooms, "second");
    cairn_job *other = toy_open(second, "toy", &different);
    float values[TOY_ELEMS];
    for (int t = 0; t < TOY_TENSORS; t++) {
        for (uint64_t i = 0; i < toy_elems(t); i++) values[i] = toy_initial(t, i);
        if (t == 2) values[1022] = -values[1022];
        const struct cairn_mem mem = toy_mem(values, CAIRN_F32);
        toy_good(cairn_put(other, toy_tensors[t].name, "param", NULL, &mem, NULL));
    }
    toy_ready(session, "toy", &source);
    toy_fails(cairn_init_done(other, NULL, TOY_WAIT_MS), CAIRN_ERR_MISMATCH, "rank 1");
    ck_assert_ptr_null(strstr(cairn_error(), "tensors)"));
    cairn_close(second);
}

TEST(a_digest_of_the_caller_is_the_same_on_all_ranks_that_give_one)
{
    const struct cairn_job_spec source = toy_spec(0, 1), next = toy_spec(1, 1);
    cairn *second = toy_session(&rooms, "second");
    cairn_job *job = toy_open(session, "toy", &source);
    cairn_job *other = toy_open(second, "toy", &next);
    const uint8_t mine[32] = { 1, 2, 3 }, another[32] = { 1, 2, 4 };
    toy_put(job);
    toy_good(cairn_init_done(job, mine, TOY_WAIT_MS));
    toy_fails(cairn_init_done(other, another, TOY_WAIT_MS), CAIRN_ERR_MISMATCH,
              "digest 0102040000000000 here, 0102030000000000 there");
    toy_good(cairn_init_done(other, mine, TOY_WAIT_MS));
    toy_good(cairn_init_done(other, NULL, TOY_WAIT_MS)); // not compared
    cairn_close(second);
}

TEST(after_the_first_update_nothing_is_compared)
{
    const struct cairn_job_spec source = toy_spec(0, 1), late = toy_spec(1, 1);
    cairn_job *job = toy_ready(session, "toy", &source);
    toy_step(job, 1);
    cairn *second = toy_session(&rooms, "second");
    cairn_job *other = toy_open(second, "toy", &late);
    float value[1] = { 42 };
    const struct cairn_mem mem = toy_mem(value, CAIRN_F32);
    toy_fails(cairn_put(other, "scale", "param", NULL, &mem, NULL), CAIRN_ERR_EXISTS,
              "has its state");
    toy_good(cairn_init_done(other, NULL, TOY_WAIT_MS));
    cairn_close(second);
}

SUITE(60, open_rooms, toy_stop);
