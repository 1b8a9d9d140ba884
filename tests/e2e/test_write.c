/* Writes at a step boundary over real daemons: one new version on all shards, or nothing. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "proto/geometry/tensor.h"
#include "tests/support/suite.h"
#include "tests/support/trainer.h"

enum { TENSORS = 3, WAIT_MS = 20000, ELEMS_MAX = 129 * 257 };

static const struct tensor {
    const char *name;
    cairn_kind kind;
    cairn_dtype wire;
    uint64_t rows, columns;
} model[TENSORS] = { { "bias", CAIRN_TRAINED, CAIRN_F32, 1, 5000 },
                     { "fixed", CAIRN_FROZEN, CAIRN_F32, 97, 61 },
                     { "weight", CAIRN_TRAINED, CAIRN_F32, 129, 257 } };

static size_t elems_of(int t)
{
    return (size_t)(model[t].rows * model[t].columns);
}

static cairn_job *open_job(const struct cluster *cluster, uint32_t rank, uint32_t workers,
                           cairn **session_out)
{
    struct cairn_tensor tensors[TENSORS];
    for (int t = 0; t < TENSORS; t++) {
        tensors[t] = (struct cairn_tensor) { .struct_size = sizeof tensors[t],
                                             .name = model[t].name,
                                             .kind = model[t].kind,
                                             .wire = model[t].wire,
                                             .rank = 2,
                                             .shape = { model[t].rows, model[t].columns },
                                             .init = { CAIRN_INIT_CONSTANT, t + 1, 0, 0 } };
    }
    const struct cairn_job_spec spec = TRAINER_SPEC(tensors, TENSORS, .rank = rank,
                                                    .workers_min = workers);
    *session_out = trainer_session(cluster->address, NULL);
    return trainer_ready(*session_out, "w", &spec);
}

static cairn_status put(cairn_job *job, int t, const char *plane, float value)
{
    static float values[ELEMS_MAX];
    const struct cairn_mem mem = trainer_mem(values, CAIRN_F32);
    cairn_op *op;
    for (size_t i = 0; i < elems_of(t); i++) values[i] = value + (float)(i % 7);
    cairn_status status = cairn_put(job, model[t].name, plane, NULL, &mem, &op);
    return status == CAIRN_OK ? cairn_wait(op, WAIT_MS) : status;
}

/* Every element of the plane is value + i % 7 * step at that version. */
static void check_values(cairn_job *job, struct cairn_version version, int t, const char *plane,
                         float value, float step)
{
    static float values[ELEMS_MAX];
    const struct cairn_mem mem = trainer_mem(values, CAIRN_F32);
    cairn_op *op;
    good(cairn_fetch(job, version, model[t].name, plane, NULL, &mem, &op));
    ck_assert_msg(cairn_wait(op, WAIT_MS) == CAIRN_OK, "%s: %s", plane, cairn_error());
    for (size_t i = 0; i < elems_of(t); i++)
        ck_assert_msg(values[i] == value + (float)(i % 7) * step, "%s %s [%zu] is %g",
                      model[t].name, plane, i, (double)values[i]);
}

/* One update with gradients of zero: with fresh moments and no decay nothing moves. */
static struct cairn_version train_a_step(cairn_job *job)
{
    const struct cairn_round round = trainer_begin(job);
    const struct cairn_result result = trainer_commit(job, &round, 1);
    return result.version;
}

TEST(a_write_is_one_new_version_and_the_old_one_stays_readable)
{
    struct cluster cluster;
    struct cairn_version version = { 0, 0 };
    cairn *session;
    cluster_start(&cluster, 3, NULL);
    cairn_job *job = open_job(&cluster, 0, 1, &session);
    ck_assert_uint_eq(train_a_step(job).step, 1);
    good(cairn_write_begin(job, WAIT_MS));
    ck_assert_int_eq(put(job, 0, "param", 50), CAIRN_OK);
    ck_assert_int_eq(put(job, 1, "param", 70), CAIRN_OK);
    ck_assert_int_eq(put(job, 2, "exp_avg_sq", 4), CAIRN_OK);
    check_values(job, (struct cairn_version) { 1, 1 }, 0, "param", 1, 0); // not before the end
    good(cairn_write_end(job, WAIT_MS, &version));
    ck_assert_uint_eq(version.generation, 2);
    ck_assert_uint_eq(version.step, 1);
    check_values(job, version, 0, "wire", 50, 1);
    check_values(job, version, 1, "wire", 70, 1);
    check_values(job, version, 2, "wire", 3, 0);
    check_values(job, version, 2, "exp_avg_sq", 4, 1);
    check_values(job, (struct cairn_version) { 1, 1 }, 0, "wire", 1, 0);
    check_values(job, (struct cairn_version) { 1, 1 }, 1, "wire", 2, 0);
    for (int i = 0; i < 3; i++) { // both published copies have the frozen tensor's new values
        version = train_a_step(job);
        check_values(job, version, 1, "wire", 70, 1);
        check_values(job, version, 0, "wire", 50, 1);
    }
    ck_assert_uint_eq(version.generation, 2);
    ck_assert_uint_eq(version.step, 4);
    cairn_close(session);
    cluster_stop(&cluster);
}

TEST(a_wrong_write_changes_nothing)
{
    struct cluster cluster;
    struct cairn_version version = { 0, 0 };
    struct cairn_round round = { .struct_size = sizeof round };
    cairn *session;
    cluster_start(&cluster, 2, NULL);
    cairn_job *job = open_job(&cluster, 0, 1, &session);
    ck_assert_int_eq(cairn_write_end(job, 0, &version), CAIRN_ERR_INVALID);
    good(cairn_round_begin(job, WAIT_MS, &round));
    ck_assert_int_eq(cairn_write_begin(job, WAIT_MS), CAIRN_ERR_REFUSED);
    trainer_commit(job, &round, 1);
    good(cairn_write_begin(job, WAIT_MS));
    ck_assert_int_eq(cairn_write_begin(job, WAIT_MS), CAIRN_ERR_EXISTS);
    fails(cairn_round_begin(job, 50, &round), CAIRN_ERR_TIMEOUT, "cairn_write_end");
    ck_assert_int_eq(put(job, 0, "wire", 50), CAIRN_ERR_UNSUPPORTED);
    ck_assert_int_eq(put(job, 0, "param", 50), CAIRN_OK);
    ck_assert_int_eq(put(job, 1, "exp_avg", 50), CAIRN_ERR_NOT_FOUND); // a frozen tensor has none
    ck_assert_ptr_nonnull(strstr(cairn_error(), "frozen"));
    good(cairn_write_end(job, WAIT_MS, &version)); // the rest is written
    ck_assert_uint_eq(version.generation, 2);
    check_values(job, version, 0, "param", 50, 1);
    cairn_close(session);
    cluster_stop(&cluster);
}

/* A box of the weight, every element `value`. */
static cairn_status put_box(cairn_job *job, const char *plane, float value, uint64_t row,
                            uint64_t column, uint64_t rows, uint64_t columns)
{
    static float values[ELEMS_MAX];
    const struct cairn_mem mem = trainer_mem(values, CAIRN_F32);
    const struct cairn_box box = { 2, { row, column }, { rows, columns } };
    cairn_op *op;
    for (size_t i = 0; i < ELEMS_MAX; i++) values[i] = value;
    const cairn_status status = cairn_put(job, "weight", plane, &box, &mem, &op);
    return status == CAIRN_OK ? cairn_wait(op, WAIT_MS) : status;
}

/* The weight is 3, but 7 in columns 200 to 203, and 8 in rows 100 to 128 of the first 150 columns. */
static void check_boxes(cairn_job *job, struct cairn_version version)
{
    static float values[ELEMS_MAX];
    const struct cairn_mem mem = trainer_mem(values, CAIRN_F32);
    cairn_op *op;
    good(cairn_fetch(job, version, "weight", "param", NULL, &mem, &op));
    good(cairn_wait(op, WAIT_MS));
    for (uint64_t r = 0; r < 129; r++)
        for (uint64_t c = 0; c < 257; c++)
            ck_assert_float_eq(values[r * 257 + c], c >= 200 && c < 204   ? 7
                                                    : r >= 100 && c < 150 ? 8
                                                                          : 3);
}

TEST(boxes_are_written_and_the_rest_of_the_tensor_stays)
{
    struct cluster cluster;
    struct cairn_version version = { 0, 0 };
    cairn *session;
    cluster_start(&cluster, 3, NULL);
    cairn_job *job = open_job(&cluster, 0, 1, &session);
    good(cairn_write_begin(job, WAIT_MS));
    ck_assert_int_eq(put_box(job, "param", 7, 0, 200, 129, 4), CAIRN_OK);
    ck_assert_int_eq(put_box(job, "param", 8, 100, 0, 29, 150), CAIRN_OK);
    ck_assert_int_eq(put_box(job, "exp_avg", 2, 100, 0, 29, 150), CAIRN_OK); // another plane
    fails(put_box(job, "param", 9, 128, 149, 1, 10), CAIRN_ERR_EXISTS, "[100:129, 0:150]");
    ck_assert_int_eq(put(job, 2, "param", 9), CAIRN_ERR_EXISTS);
    ck_assert_int_eq(put_box(job, "param", 9, 120, 0, 10, 1), CAIRN_ERR_INVALID);
    good(cairn_write_end(job, WAIT_MS, &version));
    check_boxes(job, version);
    good(cairn_write_begin(job, WAIT_MS)); // and may be put again
    ck_assert_int_eq(put_box(job, "param", 7, 0, 200, 129, 4), CAIRN_OK);
    good(cairn_write_end(job, WAIT_MS, &version));
    check_boxes(job, version);
    cairn_close(session);
    cluster_stop(&cluster);
}

static void *train_once(void *job)
{
    train_a_step(job);
    return NULL;
}

/* The same worker: a thread of it trains, another one writes. */
TEST(a_round_of_another_thread_waits_for_the_write_to_end)
{
    struct cluster cluster;
    struct cairn_version version = { 0, 0 };
    struct cairn_round round = { .struct_size = sizeof round };
    cairn *session;
    pthread_t thread;
    cluster_start(&cluster, 2, NULL);
    cairn_job *job = open_job(&cluster, 0, 1, &session);
    for (int i = 0; i < 3; i++) {
        good(cairn_write_begin(job, WAIT_MS));
        fails(cairn_round_begin(job, i * 20, &round), CAIRN_ERR_TIMEOUT, "a write of this worker");
        pthread_create(&thread, NULL, train_once, job);
        ck_assert_int_eq(put(job, 1, "param", 50), CAIRN_OK);
        good(cairn_write_end(job, WAIT_MS, &version));
        pthread_join(thread, NULL);
    }
    good(cairn_write_begin(job, WAIT_MS)); // a coordinator that dies voids it
    pthread_create(&thread, NULL, train_once, job);
    cluster_kill_coordinator(&cluster);
    cluster_restart_coordinator(&cluster);
    pthread_join(thread, NULL);
    ck_assert_int_eq(cairn_write_end(job, WAIT_MS, &version), CAIRN_ERR_EPOCH_CHANGED);
    version = train_a_step(job);
    ck_assert_uint_eq(version.generation, 4);
    ck_assert_uint_eq(version.step, 5);
    cairn_close(session);
    cluster_stop(&cluster);
}

TEST(a_writer_that_dies_has_written_nothing_and_training_goes_on)
{
    struct cluster cluster;
    cairn *writer, *trainer;
    pthread_t thread;
    cluster_start(&cluster, 2, NULL);
    cairn_job *writes = open_job(&cluster, 1, 1, &writer);
    cairn_job *trains = open_job(&cluster, 0, 1, &trainer);
    good(cairn_write_begin(writes, WAIT_MS));
    ck_assert_int_eq(put(writes, 0, "param", 50), CAIRN_OK);
    ck_assert_int_eq(cairn_write_begin(trains, 100), CAIRN_ERR_TIMEOUT);
    pthread_create(&thread, NULL, train_once, trains); // waits for the write
    cairn_close(writer);
    pthread_join(thread, NULL);
    const struct cairn_version version = train_a_step(trains);
    ck_assert_uint_eq(version.generation, 1);
    ck_assert_uint_eq(version.step, 2);
    check_values(trains, version, 0, "param", 1, 0);
    cairn_close(trainer);
    cluster_stop(&cluster);
}

TEST(a_coordinator_that_dies_in_a_write_voids_it_and_one_after_it_finds_it)
{
    struct cluster cluster;
    struct cairn_version version = { 0, 0 };
    cairn *session;
    cluster_start(&cluster, 2, NULL);
    cairn_job *job = open_job(&cluster, 0, 1, &session);
    good(cairn_write_begin(job, WAIT_MS));
    ck_assert_int_eq(put(job, 0, "param", 50), CAIRN_OK);
    cluster_kill_coordinator(&cluster);
    cluster_restart_coordinator(&cluster);
    ck_assert_int_eq(cairn_write_end(job, WAIT_MS, &version), CAIRN_ERR_EPOCH_CHANGED);
    good(cairn_write_begin(job, WAIT_MS));
    ck_assert_int_eq(put(job, 2, "param", 60), CAIRN_OK);
    good(cairn_write_end(job, WAIT_MS, &version));
    ck_assert_uint_eq(version.generation, 2);
    cluster_kill_coordinator(&cluster);
    cluster_restart_coordinator(&cluster);
    version = train_a_step(job);
    ck_assert_uint_eq(version.generation, 2);
    ck_assert_uint_eq(version.step, 1);
    check_values(job, version, 0, "param", 1, 0);
    check_values(job, version, 2, "param", 60, 1);
    cairn_close(session);
    cluster_stop(&cluster);
}

TEST(a_snapshot_of_a_write_is_restored_into_a_newer_generation)
{
    struct cluster cluster;
    struct cairn_version version = { 0, 0 };
    char id[64];
    cairn *session;
    cluster_start(&cluster, 2, NULL);
    cairn_job *job = open_job(&cluster, 0, 1, &session);
    good(cairn_write_begin(job, WAIT_MS));
    ck_assert_int_eq(put(job, 1, "param", 50), CAIRN_OK);
    good(cairn_write_end(job, WAIT_MS, &version));
    good(cairn_snapshot(job, CAIRN_SNAPSHOT_WAIT, WAIT_MS, id));
    good(cairn_write_begin(job, WAIT_MS));
    ck_assert_int_eq(put(job, 1, "param", 90), CAIRN_OK);
    good(cairn_write_end(job, WAIT_MS, &version));
    ck_assert_uint_eq(version.generation, 3);
    cairn_close(session);
    cluster_says(&cluster, 0, "", "snapshot", "restore", "w", id, "--yes", NULL);
    job = open_job(&cluster, 0, 1, &session);
    version = train_a_step(job);
    ck_assert_uint_gt(version.generation, 3); // no version is ever given twice
    check_values(job, version, 1, "param", 50, 1);
    cairn_close(session);
    cluster_stop(&cluster);
}

SUITE(60);
