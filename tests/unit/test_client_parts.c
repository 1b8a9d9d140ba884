/* Aliases of boxes of a tensor: what is put and pushed by them is what the tensor itself would be. */
#include <check.h>
#include <string.h>

#include "tests/support/suite.h"
#include "tests/support/toy_scene.h"

enum { ROWS = 50, COLUMNS = 30, ELEMS = ROWS * COLUMNS, GATE_ROWS = 20, TENSORS = 5 };

/* "fused", its rows "gate" and "up", and "middle" of both; another tensor. */
static const struct cairn_box gate = { 2, { 0, 0 }, { GATE_ROWS, COLUMNS } };
static const struct cairn_box up = { 2, { GATE_ROWS, 0 }, { ROWS - GATE_ROWS, COLUMNS } };
static const struct cairn_box middle = { 2, { 10, 5 }, { 20, 10 } };

static struct cairn_tensor tensor(const char *name, const struct cairn_box *box)
{
    struct cairn_tensor t = { .struct_size = sizeof t, .name = name, .rank = 2 };
    t.shape[0] = box != NULL ? box->extent[0] : ROWS;
    t.shape[1] = box != NULL ? box->extent[1] : COLUMNS;
    t.alias_of = box != NULL ? "fused" : NULL;
    t.alias_box = box;
    return t;
}

static struct cairn_job_spec spec_of(uint32_t rank, uint32_t workers, uint32_t stage,
                                     uint32_t micros)
{
    static struct cairn_tensor tensors[TENSORS];
    struct cairn_job_spec spec = *TOY_SPEC(.rank = rank, .workers_min = workers,
                                           .stage = CAIRN_STAGE(stage), .micro_batches = micros);
    tensors[0] = tensor("fused", NULL);
    tensors[1] = tensor("gate", &gate);
    tensors[2] = tensor("up", &up);
    tensors[3] = tensor("middle", &middle);
    tensors[4] = tensor("other", NULL);
    tensors[4].init = (struct cairn_init) { CAIRN_INIT_ZEROS, 0, 0, 0 };
    spec.tensors = tensors;
    spec.tensor_count = TENSORS;
    return spec;
}

static float value(uint32_t seed, uint64_t elem)
{
    return (float)((elem * 2654435761u + seed * 40503u) % 2047) / 1021 - 1;
}

/* The memory of a part, which is one dimension of rows: dense, or its transpose. */
static struct cairn_mem memory_of(float *values, uint32_t seed, uint64_t row, uint64_t rows,
                                  bool turned)
{
    for (uint64_t r = 0; r < rows; r++)
        for (uint64_t c = 0; c < COLUMNS; c++)
            values[turned ? c * rows + r : r * COLUMNS + c] = value(seed, (row + r) * COLUMNS + c);
    struct cairn_mem mem = toy_mem(values, CAIRN_F32);
    if (turned) mem.stride[0] = 1, mem.stride[1] = (int64_t)rows;
    return mem;
}

static cairn_status push_rows(cairn_job *job, const struct cairn_round *round, uint32_t micro,
                              const char *name, uint32_t seed, uint64_t row, uint64_t rows)
{
    static _Thread_local float values[ELEMS];
    cairn_op *op = NULL;
    const struct cairn_mem mem = memory_of(values, seed, row, rows, name[0] == 'u');
    const cairn_status status = cairn_push(job, round, micro, name, NULL, &mem, &op);
    if (status != CAIRN_OK) return status;
    good(cairn_wait(op, TOY_WAIT_MS));
    memset(values, 0xff, sizeof values); // it is ours again
    return CAIRN_OK;
}

static void push(cairn_job *job, const struct cairn_round *round, uint32_t micro, uint32_t seed,
                 bool by_parts)
{
    if (by_parts) {
        good(push_rows(job, round, micro, "up", seed, GATE_ROWS, ROWS - GATE_ROWS));
        good(push_rows(job, round, micro, "gate", seed, 0, GATE_ROWS));
    } else {
        good(push_rows(job, round, micro, "fused", seed, 0, ROWS));
    }
}

static void fetch(cairn_job *job, struct cairn_version version, float *out)
{
    cairn_op *op = NULL;
    good(cairn_fetch(job, version, "fused", "param", NULL, TOY_F32(out), &op));
    good(cairn_wait(op, TOY_WAIT_MS));
}

static cairn_job *ready(cairn *of, const char *name, const struct cairn_job_spec *spec, bool parts)
{
    static float values[ELEMS];
    cairn_job *job = toy_open(of, name, spec);
    if (parts) {
        struct cairn_mem mem = memory_of(values, 77, GATE_ROWS, ROWS - GATE_ROWS, true);
        good(cairn_put(job, "up", "param", NULL, &mem, NULL));
        fails(cairn_init_done(job, NULL, 0), CAIRN_ERR_NOT_READY, "only parts were put");
        mem = memory_of(values, 77, 0, GATE_ROWS, false);
        good(cairn_put(job, "gate", "param", NULL, &mem, NULL));
    } else {
        const struct cairn_mem mem = memory_of(values, 77, 0, ROWS, false);
        good(cairn_put(job, "fused", "param", NULL, &mem, NULL));
    }
    good(cairn_init_done(job, NULL, TOY_WAIT_MS));
    return job;
}

TEST(a_tensor_put_by_its_parts_is_the_tensor_and_has_its_digest)
{
    const struct cairn_job_spec first = spec_of(0, 1, 2, 1), second = spec_of(1, 1, 2, 1);
    cairn *other = toy_session(&rooms, "second");
    cairn_job *job = ready(session, "toy", &first, true);
    ready(other, "toy", &second, false); // only hashed, and found the same
    float got[ELEMS];
    fetch(job, toy_begin(job).version, got);
    for (uint64_t i = 0; i < ELEMS; i++) ck_assert_float_eq(got[i], value(77, i));
    const struct cairn_stats stats = toy_stats(job);
    ck_assert_uint_eq(stats.assembled_bytes, 0);
    ck_assert_uint_eq(stats.assembled_bytes_peak, ELEMS * sizeof(float));
}

/* Two steps of micro-batches; what came of it. */
static void train(const char *name, uint32_t stage, bool by_parts, float out[ELEMS])
{
    const struct cairn_job_spec spec = spec_of(0, 1, stage, 3);
    cairn_job *job = ready(session, name, &spec, by_parts);
    struct cairn_result result = { .struct_size = sizeof result };
    for (uint32_t step = 0; step < 2; step++) {
        const struct cairn_round round = toy_begin(job);
        for (uint32_t m = 0; m < 3; m++) {
            push(job, &round, m, step * 10 + m, by_parts);
            good(cairn_micro_end(job, &round, m));
        }
        result = toy_commit(job, &round);
    }
    fetch(job, result.version, out);
    cairn_job_close(job);
}

TEST(a_gradient_by_parts_has_the_bits_of_the_fused_one)
{
    float fused[ELEMS], parts[ELEMS];
    for (uint32_t stage = 1; stage < 3; stage++) {
        const char names[2][3] = { { 'f', (char)('0' + stage) }, { 'p', (char)('0' + stage) } };
        train(names[0], stage, false, fused);
        train(names[1], stage, true, parts);
        ck_assert_int_eq(memcmp(fused, parts, sizeof fused), 0);
    }
}

/* A step of two workers; the first one by parts or not. */
static void step_of_two(const char *name, bool by_parts, float out[ELEMS])
{
    const struct cairn_job_spec first = spec_of(0, 2, 2, 1), second = spec_of(1, 2, 2, 1);
    cairn *other = toy_session(&rooms, "second");
    cairn_job *job = toy_open(session, name, &first);
    cairn_job *beside = toy_open(other, name, &second);
    static float values[ELEMS];
    const struct cairn_mem mem = memory_of(values, 77, 0, ROWS, false);
    good(cairn_put(job, "fused", "param", NULL, &mem, NULL));
    good(cairn_init_done(job, NULL, TOY_WAIT_MS));
    good(cairn_init_done(beside, NULL, TOY_WAIT_MS));
    const struct cairn_round round = toy_begin(job), there = toy_begin(beside);
    static float theirs[ELEMS];
    const struct cairn_mem whole = memory_of(theirs, 6, 0, ROWS, false);
    good(cairn_push(beside, &there, 0, "fused", NULL, &whole, NULL));
    push(job, &round, 0, 5, by_parts);
    struct cairn_result result = { .struct_size = sizeof result };
    fails(cairn_commit(beside, &there, 0, NULL, 0, 0, &result), CAIRN_ERR_TIMEOUT, "");
    toy_commit(job, &round);
    good(cairn_commit(beside, &there, 0, NULL, 0, TOY_WAIT_MS, &result));
    fetch(job, result.version, out);
    cairn_close(other);
    cairn_job_close(job);
}

TEST(beside_a_worker_that_pushes_the_fused_one_it_is_the_same)
{
    float fused[ELEMS], parts[ELEMS];
    step_of_two("fused", false, fused);
    step_of_two("parts", true, parts);
    ck_assert_int_eq(memcmp(fused, parts, sizeof fused), 0);
}

TEST(a_part_that_is_missing_counts_as_zeros)
{
    const struct cairn_job_spec spec = spec_of(0, 1, 2, 1);
    float wanted[ELEMS], got[ELEMS];
    static float zeros[ELEMS];
    cairn_job *job = ready(session, "whole", &spec, false);
    struct cairn_round round = toy_begin(job);
    for (uint64_t i = 0; i < ELEMS; i++) zeros[i] = i < GATE_ROWS * COLUMNS ? value(5, i) : 0;
    good(cairn_push(job, &round, 0, "fused", NULL, TOY_F32(zeros), NULL));
    fetch(job, toy_commit(job, &round).version, wanted);
    cairn_job_close(job);
    job = ready(session, "part", &spec, false);
    round = toy_begin(job);
    good(push_rows(job, &round, 0, "gate", 5, 0, GATE_ROWS));
    fetch(job, toy_commit(job, &round).version, got);
    ck_assert_int_eq(memcmp(wanted, got, sizeof got), 0);
}

TEST(what_was_pushed_in_a_void_round_is_forgotten)
{
    const struct cairn_job_spec first = spec_of(0, 1, 2, 1), second = spec_of(1, 1, 2, 1);
    cairn *other = toy_session(&rooms, "second");
    cairn_job *job = ready(session, "toy", &first, false);
    cairn_job *leaves = toy_open(other, "toy", &second);
    good(cairn_init_done(leaves, NULL, TOY_WAIT_MS));
    struct cairn_round round = toy_begin(job);
    while (round.world == 1) { // it joins with a round to come
        toy_commit(job, &round);
        round = toy_begin(job);
    }
    good(push_rows(job, &round, 0, "gate", 5, 0, GATE_ROWS));
    cairn_close(other);
    struct cairn_result result = { .struct_size = sizeof result };
    fails(cairn_commit(job, &round, 0, NULL, 0, TOY_WAIT_MS, &result), CAIRN_ERR_EPOCH_CHANGED, "");
    round = toy_begin(job);
    push(job, &round, 0, 6, true);
    toy_commit(job, &round);
    const struct cairn_stats stats = toy_stats(job);
    ck_assert_uint_eq(stats.assembled_bytes, 0);
}

TEST(no_element_goes_twice)
{
    const struct cairn_job_spec spec = spec_of(0, 1, 2, 1);
    static float values[ELEMS];
    cairn_job *job = ready(session, "toy", &spec, false);
    const struct cairn_mem mem = toy_mem(values, CAIRN_F32);
    const struct cairn_box some = { 2, { 0, 0 }, { 1, 1 } };
    struct cairn_round round = toy_begin(job);
    good(push_rows(job, &round, 0, "gate", 5, 0, GATE_ROWS));
    fails(push_rows(job, &round, 0, "gate", 5, 0, GATE_ROWS), CAIRN_ERR_EXISTS, "[0:20, 0:30]");
    fails(cairn_push(job, &round, 0, "middle", NULL, &mem, NULL), CAIRN_ERR_EXISTS, "middle");
    fails(cairn_push(job, &round, 0, "fused", NULL, &mem, NULL), CAIRN_ERR_EXISTS, "fused");
    fails(cairn_push(job, &round, 0, "up", &some, &mem, NULL), CAIRN_ERR_INVALID, "whole");
    fails(cairn_push(job, &round, 0, "up", NULL, TOY_BF16(values), NULL), CAIRN_ERR_INVALID,
          "bf16");
    good(push_rows(job, &round, 0, "up", 5, GATE_ROWS, ROWS - GATE_ROWS));
    fails(push_rows(job, &round, 0, "gate", 5, 0, GATE_ROWS), CAIRN_ERR_EXISTS, "all of which");
    toy_commit(job, &round);
    cairn_job_close(job);
    job = toy_open(session, "put", &spec);
    good(cairn_put(job, "gate", "param", NULL, &mem, NULL));
    fails(cairn_put(job, "middle", "param", NULL, &mem, NULL), CAIRN_ERR_EXISTS, "middle");
    fails(cairn_put(job, "fused", "param", NULL, &mem, NULL), CAIRN_ERR_EXISTS, "fused");
}

TEST(a_worker_with_a_tile_of_the_tensor_gives_that)
{
    const struct cairn_job_spec spec = spec_of(0, 1, 2, 1);
    static float values[ELEMS];
    cairn_job *job = toy_open(session, "toy", &spec);
    const struct cairn_tile none = { sizeof none, "fused", { 2, { 0, 0 }, { 0, COLUMNS } } };
    fails(cairn_tiles(job, &none, 1, 1, TOY_WAIT_MS), CAIRN_ERR_MISMATCH, "fused");
    good(cairn_tiles(job, NULL, 0, 1, TOY_WAIT_MS)); // holds it whole
    good(cairn_put(job, "gate", "param", NULL, TOY_F32(values), NULL));
    good(cairn_put(job, "up", "param", NULL, TOY_F32(values), NULL));
    good(cairn_init_done(job, NULL, TOY_WAIT_MS));
    const struct cairn_round round = toy_begin(job);
    push(job, &round, 0, 6, true);
    toy_commit(job, &round);
}

TEST(a_write_of_a_part_is_of_its_box)
{
    const struct cairn_job_spec spec = spec_of(0, 1, 2, 1);
    cairn_job *job = ready(session, "toy", &spec, false);
    struct cairn_version version;
    float values[ELEMS], got[ELEMS];
    cairn_op *op = NULL;
    for (int i = 0; i < ELEMS; i++) values[i] = 9;
    good(cairn_write_begin(job, TOY_WAIT_MS));
    good(cairn_put(job, "middle", "param", NULL, TOY_F32(values), &op));
    good(cairn_wait(op, TOY_WAIT_MS));
    fails(cairn_put(job, "gate", "param", NULL, TOY_F32(values), &op), CAIRN_ERR_EXISTS, "fused");
    good(cairn_write_end(job, TOY_WAIT_MS, &version));
    fetch(job, version, got);
    for (uint64_t i = 0; i < ELEMS; i++) {
        const uint64_t r = i / COLUMNS, c = i % COLUMNS;
        const bool written = r >= 10 && r < 30 && c >= 5 && c < 15;
        ck_assert_float_eq(got[i], written ? 9 : value(77, i));
    }
}

SUITE(30, toy_open_trainer, toy_stop);
