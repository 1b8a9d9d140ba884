/* The initial state that was put in part: what stays, and what may be put again. A whole cluster in this
 * process. */
#include <cairn.h>
#include <check.h>
#include <pthread.h>
#include <string.h>

#include "client/job.h"
#include "tests/support/suite.h"
#include "tests/support/toy_scene.h"

enum { ELEMS = 30, SHARDS = 2, FIRST_STEP = 7, WAIT_MS = 20000 };

static cairn_job *job;
static float first[ELEMS], other[ELEMS], copy[ELEMS];

static cairn_job *open_job_of(cairn *by, uint32_t rank, const char *name, struct cairn_group group,
                              uint64_t first_step)
{
    static const struct cairn_tensor tensors[] = {
        { .struct_size = sizeof *tensors, .name = "a", .rank = 1, .shape = { ELEMS } },
        { .struct_size = sizeof *tensors, .name = "b", .rank = 1, .shape = { ELEMS } },
    };
    const struct cairn_job_spec spec = { .struct_size = sizeof spec,
                                         .tensors = tensors,
                                         .tensor_count = 2,
                                         .groups = &group,
                                         .group_count = 1,
                                         .rank = rank,
                                         .first_step = first_step };
    cairn_job *opened;
    good(cairn_job_open(by, name, &spec, CAIRN_WORKER, WAIT_MS, &opened));
    return opened;
}

static cairn_job *open_job(cairn *by, uint32_t rank)
{
    return open_job_of(by, rank, "w", (struct cairn_group)CAIRN_GROUP_INIT, FIRST_STEP);
}

static void set_up(void)
{
    toy_start(SHARDS, .seed = 7);
    session = toy_session(&rooms, "worker");
    job = open_job(session, 0);
    for (int i = 0; i < ELEMS; i++) {
        first[i] = (float)i;
        other[i] = (float)(100 + i);
    }
}

static cairn_status put_plane(cairn_job *by, const char *tensor, const char *plane, float *values)
{
    cairn_op *op;
    const cairn_status status = cairn_put(by, tensor, plane, NULL, TOY_F32(values), &op);
    return status == CAIRN_OK ? cairn_wait(op, WAIT_MS) : status;
}

static cairn_status put(const char *tensor, float *values)
{
    return put_plane(job, tensor, "param", values);
}

static void check_plane(const char *tensor, const char *plane, const float *values)
{
    struct cairn_version version;
    cairn_op *op;
    good(cairn_version_wait(job, (struct cairn_version) { 0, 0 }, WAIT_MS, &version));
    ck_assert_uint_eq(version.step, FIRST_STEP);
    good(cairn_fetch(job, version, tensor, plane, NULL, TOY_F32(copy), &op));
    good(cairn_wait(op, WAIT_MS));
    ck_assert_mem_eq(copy, values, sizeof copy);
}

static void check_values(const char *tensor, const float *values)
{
    check_plane(tensor, "param", values);
}

/* a's shard has its whole part and is sealed, b's has nothing. */
static void put_half(void)
{
    good(put("a", first));
    fails(cairn_init_done(job, NULL, WAIT_MS), CAIRN_ERR_NOT_READY, "b");
}

TEST(what_was_missing_is_put_and_the_rest_stays)
{
    put_half();
    good(put("b", other));
    good(cairn_init_done(job, NULL, WAIT_MS));
    check_values("a", first);
    check_values("b", other);
}

TEST(momentum_that_the_first_update_would_throw_away_is_refused)
{
    struct cairn_group group = CAIRN_GROUP_INIT;
    group.optimizer = "sgd";
    group.momentum = 0.9;
    cairn_job *at_0 = open_job_of(session, 0, "at-0", group, 0);
    fails(put_plane(at_0, "a", "exp_avg", first), CAIRN_ERR_INVALID, "set first_step");
    cairn_job *at_1 = open_job_of(session, 0, "at-1", group, 1);
    good(put_plane(at_1, "a", "exp_avg", first));
}

TEST(the_same_values_may_be_put_again)
{
    put_half();
    good(put("a", first));
    good(put("b", first));
    good(cairn_init_done(job, NULL, WAIT_MS));
    check_values("a", first);
}

TEST(nothing_is_sealed_with_other_values_than_were_put_last)
{
    put_half();
    fails(put("a", other), CAIRN_ERR_EXISTS, "");
    good(put("b", other));
    for (int i = 0; i < 2; i++)
        fails(cairn_init_done(job, NULL, WAIT_MS), CAIRN_ERR_EXISTS,
              "with other values before; give those, or drop the job");
    good(put("a", first));
    good(cairn_init_done(job, NULL, WAIT_MS));
    check_values("a", first);
}

/* ---- moments ---- */

static const float zeros[ELEMS];

TEST(moments_are_put_with_the_parameters_and_the_rest_of_them_is_0)
{
    good(put("a", first));
    good(put_plane(job, "a", "exp_avg_sq", other));
    fails(put_plane(job, "a", "exp_avg_sq", other), CAIRN_ERR_EXISTS, "");
    good(put_plane(job, "b", "exp_avg", first));
    fails(cairn_init_done(job, NULL, WAIT_MS), CAIRN_ERR_NOT_READY, "");
    good(put("b", other)); // what was put before stays, and may be put again
    good(put_plane(job, "a", "exp_avg_sq", other));
    good(cairn_init_done(job, NULL, WAIT_MS));
    check_values("a", first);
    check_plane("a", "exp_avg", zeros);
    check_plane("a", "exp_avg_sq", other);
    check_plane("b", "exp_avg", first);
    check_plane("b", "exp_avg_sq", zeros);
    fails(put_plane(job, "b", "exp_avg", first), CAIRN_ERR_EXISTS, "");
}

TEST(moments_of_a_worker_that_went_before_the_end_are_0)
{
    good(put("a", other));
    good(put_plane(job, "a", "exp_avg", other));
    good(put_plane(job, "a", "exp_avg_sq", other));
    good(put_plane(job, "b", "exp_avg", other));
    cairn_job_close(job);
    job = open_job(session, 0);
    good(put("a", first));
    good(put("b", first));
    good(put_plane(job, "a", "exp_avg", first));
    good(cairn_init_done(job, NULL, WAIT_MS));
    check_values("a", first);
    check_plane("a", "exp_avg", first);
    check_plane("a", "exp_avg_sq", zeros);
    check_plane("b", "exp_avg", zeros);
}

/* a's shard is sealed with a's exp_avg; another worker of that rank has put both parameters. */
static void put_again_after_half_with_moments(void)
{
    good(put_plane(job, "a", "exp_avg", other));
    put_half();
    cairn_job_close(job);
    job = open_job(session, 0);
    good(put("a", first));
    good(put("b", first));
}

TEST(a_state_that_is_sealed_in_part_with_moments_is_not_ended_without_them)
{
    put_again_after_half_with_moments();
    fails(put_plane(job, "a", "exp_avg", first), CAIRN_ERR_EXISTS, "");
    good(put_plane(job, "b", "exp_avg", first));
    fails(cairn_init_done(job, NULL, WAIT_MS), CAIRN_ERR_EXISTS, ""); // that put has failed
    good(put_plane(job, "a", "exp_avg_sq", (float *)zeros));
    good(put_plane(job, "a", "exp_avg", other));
    good(cairn_init_done(job, NULL, WAIT_MS));
    check_plane("a", "exp_avg", other);
    check_plane("b", "exp_avg", first);
}

TEST(other_moments_than_those_that_are_sealed_in_part_do_not_end_it)
{
    put_again_after_half_with_moments();
    good(put_plane(job, "b", "exp_avg", first));
    for (int i = 0; i < 2; i++)
        fails(cairn_init_done(job, NULL, WAIT_MS), CAIRN_ERR_EXISTS,
              "already, with moments of a: put them, too, or drop");
    good(put_plane(job, "a", "exp_avg", other));
    good(cairn_init_done(job, NULL, WAIT_MS));
    check_plane("a", "exp_avg", other);
    check_plane("b", "exp_avg", first);
}

TEST(only_rank_0_puts_moments_and_only_planes_that_there_are)
{
    cairn *beside = toy_session(&rooms, "worker");
    cairn_job *second = open_job(beside, 1);
    fails(put_plane(second, "a", "exp_avg", first), CAIRN_ERR_REFUSED,
          "rank 0 puts moments, this is rank 1");
    fails(put_plane(job, "a", "wire", first), CAIRN_ERR_UNSUPPORTED, "");
    fails(put_plane(job, "a", "none", first), CAIRN_ERR_UNSUPPORTED, "");
}

/* ---- tiles ---- */

static void declare(cairn_job *by, uint32_t rank)
{
    const struct cairn_tile half = {
        .struct_size = sizeof half,
        .tensor = "a",
        .box = { .rank = 1, .start = { rank * ELEMS / 2 }, .extent = { ELEMS / 2 } },
    };
    good(cairn_tiles(by, &half, 1, 2, WAIT_MS));
}

static void *declare_second(void *second)
{
    declare(second, 1);
    return NULL;
}

static void *end_second(void *second)
{
    good(cairn_init_done(second, NULL, WAIT_MS));
    return NULL;
}

TEST(with_tiles_rank_0_puts_moments_whole)
{
    cairn *beside = toy_session(&rooms, "worker");
    cairn_job *second = open_job(beside, 1);
    pthread_t thread;
    ck_assert_int_eq(pthread_create(&thread, NULL, declare_second, second), 0);
    declare(job, 0);
    pthread_join(thread, NULL);
    const struct cairn_box whole = { .rank = 1, .extent = { ELEMS } };
    good(put("a", first)); // its half
    good(put_plane(second, "a", "param", first + ELEMS / 2));
    good(put("b", first));
    fails(put_plane(job, "a", "exp_avg", other), CAIRN_ERR_UNSUPPORTED, "");
    cairn_op *op;
    good(cairn_put(job, "a", "exp_avg", &whole, TOY_F32(other), &op));
    good(cairn_wait(op, WAIT_MS));
    ck_assert_int_eq(pthread_create(&thread, NULL, end_second, second), 0);
    good(cairn_init_done(job, NULL, WAIT_MS));
    pthread_join(thread, NULL);
}

SUITE(60, set_up, toy_stop);
