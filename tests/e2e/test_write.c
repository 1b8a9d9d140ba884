/* Writes at a step boundary over real daemons: one new version on all shards, or nothing. */
#include <pthread.h>
#include <stdlib.h>

#include "proto/geometry/tensor.h"
#include "tests/e2e/scene.h"

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

static cairn_job *open_job(uint32_t rank, cairn **session_out)
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
    const struct cairn_job_spec spec = TRAINER_SPEC(tensors, TENSORS, .rank = rank);
    *session_out = trainer_session(cluster.address, NULL);
    return trainer_ready(*session_out, "w", &spec);
}

static void enter(void)
{
    job = open_job(0, &session);
}

static void set_up(void)
{
    start(3);
    enter();
}

static cairn_status put(cairn_job *of, int t, const char *plane, float value)
{
    static float values[ELEMS_MAX];
    const struct cairn_mem mem = trainer_mem(values, CAIRN_F32);
    cairn_op *op;
    for (size_t i = 0; i < elems_of(t); i++) values[i] = value + (float)(i % 7);
    cairn_status status = cairn_put(of, model[t].name, plane, NULL, &mem, &op);
    return status == CAIRN_OK ? cairn_wait(op, WAIT_MS) : status;
}

/* Every element of the plane is value + i % 7 * step at that version. */
static void check_values(cairn_job *of, struct cairn_version version, int t, const char *plane,
                         float value, float step)
{
    static float values[ELEMS_MAX];
    trainer_fetch(of, version, model[t].name, plane, CAIRN_F32, values);
    for (size_t i = 0; i < elems_of(t); i++)
        ck_assert_msg(values[i] == value + (float)(i % 7) * step, "%s %s [%zu] is %g",
                      model[t].name, plane, i, (double)values[i]);
}

/* One update with gradients of zero: with fresh moments and no decay nothing moves. */
static struct cairn_version train_a_step(cairn_job *of)
{
    const struct cairn_round round = trainer_begin(of);
    const struct cairn_result result = trainer_commit(of, &round, 1);
    return result.version;
}

TEST(a_write_is_one_new_version_and_the_old_one_stays_readable)
{
    struct cairn_version version = { 0, 0 };
    ck_assert_uint_eq(train_a_step(job).step, 1);
    good(cairn_write_begin(job, WAIT_MS));
    good(put(job, 0, "param", 50));
    good(put(job, 1, "param", 70));
    good(put(job, 2, "exp_avg_sq", 4));
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
}

TEST(a_wrong_write_changes_nothing)
{
    struct cairn_version version = { 0, 0 };
    struct cairn_round round = { .struct_size = sizeof round };
    ck_assert_int_eq(cairn_write_end(job, 0, &version), CAIRN_ERR_INVALID);
    good(cairn_round_begin(job, WAIT_MS, &round));
    ck_assert_int_eq(cairn_write_begin(job, WAIT_MS), CAIRN_ERR_REFUSED);
    trainer_commit(job, &round, 1);
    good(cairn_write_begin(job, WAIT_MS));
    ck_assert_int_eq(cairn_write_begin(job, WAIT_MS), CAIRN_ERR_EXISTS);
    fails(cairn_round_begin(job, 50, &round), CAIRN_ERR_TIMEOUT, "cairn_write_end");
    ck_assert_int_eq(put(job, 0, "wire", 50), CAIRN_ERR_UNSUPPORTED);
    good(put(job, 0, "param", 50));
    ck_assert_int_eq(put(job, 1, "exp_avg", 50), CAIRN_ERR_NOT_FOUND); // a frozen tensor has none
    expect_error("frozen");
    good(cairn_write_end(job, WAIT_MS, &version)); // the rest is written
    ck_assert_uint_eq(version.generation, 2);
    check_values(job, version, 0, "param", 50, 1);
}

/* A box of the weight, every element `value`. */
static cairn_status put_box(const char *plane, float value, uint64_t row, uint64_t column,
                            uint64_t rows, uint64_t columns)
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
static void check_boxes(struct cairn_version version)
{
    static float values[ELEMS_MAX];
    trainer_fetch(job, version, "weight", "param", CAIRN_F32, values);
    for (uint64_t r = 0; r < 129; r++)
        for (uint64_t c = 0; c < 257; c++)
            ck_assert_float_eq(values[r * 257 + c], c >= 200 && c < 204   ? 7
                                                    : r >= 100 && c < 150 ? 8
                                                                          : 3);
}

TEST(boxes_are_written_and_the_rest_of_the_tensor_stays)
{
    struct cairn_version version = { 0, 0 };
    good(cairn_write_begin(job, WAIT_MS));
    good(put_box("param", 7, 0, 200, 129, 4));
    good(put_box("param", 8, 100, 0, 29, 150));
    good(put_box("exp_avg", 2, 100, 0, 29, 150)); // another plane
    fails(put_box("param", 9, 128, 149, 1, 10), CAIRN_ERR_EXISTS, "[100:129, 0:150]");
    ck_assert_int_eq(put(job, 2, "param", 9), CAIRN_ERR_EXISTS);
    ck_assert_int_eq(put_box("param", 9, 120, 0, 10, 1), CAIRN_ERR_INVALID);
    good(cairn_write_end(job, WAIT_MS, &version));
    check_boxes(version);
    good(cairn_write_begin(job, WAIT_MS)); // and may be put again
    good(put_box("param", 7, 0, 200, 129, 4));
    good(cairn_write_end(job, WAIT_MS, &version));
    check_boxes(version);
}

static void *train_once(void *of)
{
    train_a_step(of);
    return NULL;
}

/* The same worker: a thread of it job, another one writes. */
TEST(a_round_of_another_thread_waits_for_the_write_to_end)
{
    struct cairn_version version = { 0, 0 };
    struct cairn_round round = { .struct_size = sizeof round };
    pthread_t thread;
    for (int i = 0; i < 3; i++) {
        good(cairn_write_begin(job, WAIT_MS));
        fails(cairn_round_begin(job, i * 20, &round), CAIRN_ERR_TIMEOUT, "a write of this worker");
        pthread_create(&thread, NULL, train_once, job);
        good(put(job, 1, "param", 50));
        good(cairn_write_end(job, WAIT_MS, &version));
        pthread_join(thread, NULL);
    }
    good(cairn_write_begin(job, WAIT_MS)); // a coordinator that dies voids it
    pthread_create(&thread, NULL, train_once, job);
    restart_coordinator();
    pthread_join(thread, NULL);
    ck_assert_int_eq(cairn_write_end(job, WAIT_MS, &version), CAIRN_ERR_EPOCH_CHANGED);
    version = train_a_step(job);
    ck_assert_uint_eq(version.generation, 4);
    ck_assert_uint_eq(version.step, 5);
}

TEST(a_writer_that_dies_has_written_nothing_and_training_goes_on)
{
    cairn *writer;
    pthread_t thread;
    cairn_job *writes = open_job(1, &writer);
    good(cairn_write_begin(writes, WAIT_MS));
    good(put(writes, 0, "param", 50));
    ck_assert_int_eq(cairn_write_begin(job, 100), CAIRN_ERR_TIMEOUT);
    pthread_create(&thread, NULL, train_once, job); // waits for the write
    cairn_close(writer);
    pthread_join(thread, NULL);
    const struct cairn_version version = train_a_step(job);
    ck_assert_uint_eq(version.generation, 1);
    ck_assert_uint_eq(version.step, 2);
    check_values(job, version, 0, "param", 1, 0);
}

TEST(a_coordinator_that_dies_in_a_write_voids_it_and_one_after_it_finds_it)
{
    struct cairn_version version = { 0, 0 };
    good(cairn_write_begin(job, WAIT_MS));
    good(put(job, 0, "param", 50));
    restart_coordinator();
    ck_assert_int_eq(cairn_write_end(job, WAIT_MS, &version), CAIRN_ERR_EPOCH_CHANGED);
    good(cairn_write_begin(job, WAIT_MS));
    good(put(job, 2, "param", 60));
    good(cairn_write_end(job, WAIT_MS, &version));
    ck_assert_uint_eq(version.generation, 2);
    restart_coordinator();
    version = train_a_step(job);
    ck_assert_uint_eq(version.generation, 2);
    ck_assert_uint_eq(version.step, 1);
    check_values(job, version, 0, "param", 1, 0);
    check_values(job, version, 2, "param", 60, 1);
}

TEST(a_snapshot_of_a_write_is_restored_into_a_newer_generation)
{
    struct cairn_version version = { 0, 0 };
    char id[64];
    good(cairn_write_begin(job, WAIT_MS));
    good(put(job, 1, "param", 50));
    good(cairn_write_end(job, WAIT_MS, &version));
    good(cairn_snapshot(job, CAIRN_SNAPSHOT_WAIT, WAIT_MS, id));
    good(cairn_write_begin(job, WAIT_MS));
    good(put(job, 1, "param", 90));
    good(cairn_write_end(job, WAIT_MS, &version));
    ck_assert_uint_eq(version.generation, 3);
    leave();
    says(0, "", "snapshot restore w %s --yes", id);
    enter();
    version = train_a_step(job);
    ck_assert_uint_gt(version.generation, 3); // no version is ever given twice
    check_values(job, version, 1, "param", 50, 1);
}

SUITE(60, set_up, stop);
