/* The caller's memory with strides: what is put, pushed and fetched is what dense memory would be. */
#include <check.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/suite.h"
#include "tests/support/toy_scene.h"

enum { WEIGHT = 0, ROWS = 60, COLUMNS = 20, SPREAD = 3, FAR = ROWS * COLUMNS * SPREAD };

/* a.weight as its transpose lies, with unused elements between. */
static struct cairn_mem transposed(float *ptr)
{
    struct cairn_mem mem = toy_mem(ptr, CAIRN_F32);
    mem.stride[0] = SPREAD;
    mem.stride[1] = (int64_t)ROWS * SPREAD;
    return mem;
}

static float *place(float *ptr, uint64_t elem)
{
    return &ptr[elem / COLUMNS * SPREAD + elem % COLUMNS * ROWS * SPREAD];
}

static void put_transposed(cairn_job *job)
{
    static float far[FAR];
    float dense[TOY_ELEMS];
    for (int t = 0; t < TOY_TENSORS; t++) {
        cairn_op *op = NULL;
        for (uint64_t i = 0; i < toy_elems(t); i++) dense[i] = toy_initial(t, i);
        for (uint64_t i = 0; t == WEIGHT && i < toy_elems(t); i++) *place(far, i) = dense[i];
        const struct cairn_mem mem = t == WEIGHT ? transposed(far) : toy_mem(dense, CAIRN_F32);
        good(cairn_put(job, toy_tensors[t].name, "param", NULL, &mem, &op));
        good(cairn_wait(op, TOY_WAIT_MS));
    }
    good(cairn_init_done(job, NULL, TOY_WAIT_MS));
}

/* Pushes a.weight's gradient in every micro-batch, dense or not, and gives what came of it. */
static void train(const char *name, uint32_t stage, bool dense, float out[TOY_ELEMS])
{
    static float far[FAR], near[TOY_ELEMS];
    cairn_job *job = toy_ready(session, name,
                               TOY_SPEC(.stage = CAIRN_STAGE(stage), .micro_batches = 2));
    const struct cairn_round round = toy_begin(job);
    for (uint32_t m = 0; m < 2; m++) {
        cairn_op *op = NULL;
        for (uint64_t i = 0; i < TOY_ELEMS; i++)
            near[i] = *place(far, i) = (float)((i * 7919 + m) % 1000) / 300 - 1;
        const struct cairn_mem mem = dense ? toy_mem(near, CAIRN_F32) : transposed(far);
        good(cairn_push(job, &round, m, "a.weight", NULL, &mem, &op));
        good(cairn_wait(op, TOY_WAIT_MS));
        good(cairn_micro_end(job, &round, m));
    }
    toy_fetch(job, toy_commit(job, &round).version, WEIGHT, "param", CAIRN_F32, out);
    cairn_job_close(job);
}

TEST(what_is_put_from_a_transpose_is_the_tensor)
{
    cairn_job *job = toy_open(session, "toy", TOY_SPEC());
    float got[TOY_ELEMS];
    put_transposed(job);
    const struct cairn_round round = toy_begin(job);
    toy_fetch(job, round.version, WEIGHT, NULL, CAIRN_F32, got);
    for (uint64_t i = 0; i < TOY_ELEMS; i++) ck_assert_float_eq(got[i], toy_initial(WEIGHT, i));
}

TEST(its_digest_is_that_of_the_dense_tensor)
{
    cairn *other = toy_session(&rooms, "second");
    toy_ready(session, "toy", TOY_SPEC());
    put_transposed(toy_open(other, "toy", TOY_SPEC(.rank = 1))); // only hashed: rank 0 has put
}

TEST(a_gradient_with_strides_has_the_bits_of_a_dense_one)
{
    float dense[TOY_ELEMS], apart[TOY_ELEMS];
    for (uint32_t stage = 1; stage < 3; stage++) { // added up here, and pushed as it is
        const char names[2][3] = { { 'd', (char)('0' + stage) }, { 's', (char)('0' + stage) } };
        train(names[0], stage, true, dense);
        train(names[1], stage, false, apart);
        ck_assert_int_eq(memcmp(dense, apart, sizeof dense), 0);
    }
}

TEST(a_fetch_writes_what_the_strides_name_and_nothing_else)
{
    cairn_job *job = toy_ready(session, "toy", TOY_SPEC());
    static float far[FAR];
    cairn_op *op = NULL;
    for (int i = 0; i < FAR; i++) far[i] = -77;
    const struct cairn_round round = toy_begin(job);
    const struct cairn_mem mem = transposed(far);
    const struct cairn_box box = { .rank = 2, .start = { 7, 3 }, .extent = { 50, 9 } };
    good(cairn_fetch(job, round.version, "a.weight", NULL, &box, &mem, &op));
    good(cairn_wait(op, TOY_WAIT_MS));
    int written = 0;
    for (int i = 0; i < FAR; i++) written += far[i] != -77;
    ck_assert_int_eq(written, 50 * 9);
    for (uint64_t r = 0; r < 50; r++)
        for (uint64_t c = 0; c < 9; c++)
            ck_assert_float_eq(*place(far, r * COLUMNS + c),
                               toy_initial(WEIGHT, (r + 7) * COLUMNS + c + 3));
}

TEST(copies_are_counted_and_given_back)
{
    cairn_job *job = toy_open(session, "toy", TOY_SPEC());
    put_transposed(job);
    const struct cairn_stats stats = toy_stats(job);
    ck_assert_uint_eq(stats.packed_bytes, 0);
    ck_assert_uint_gt(stats.packed_bytes_peak, 0);
    ck_assert_uint_le(stats.packed_bytes_peak, TOY_ELEMS * sizeof(float));
}

TEST(memory_that_cannot_be_is_refused)
{
    cairn_job *job = toy_ready(session, "toy", TOY_SPEC());
    static float far[FAR];
    cairn_op *op = NULL;
    struct cairn_round round = toy_begin(job);
    struct cairn_mem mem = transposed(far);
    mem.stride[0] = 0; // every row the same: may be pushed
    good(cairn_push(job, &round, 0, "a.weight", NULL, &mem, NULL));
    fails(cairn_fetch(job, round.version, "a.weight", NULL, NULL, &mem, &op), CAIRN_ERR_INVALID,
          "share memory");
    mem.stride[0] = -1;
    fails(cairn_push(job, &round, 0, "a.weight", NULL, &mem, NULL), CAIRN_ERR_INVALID,
          "stride[0] is -1");
    mem = toy_mem(far, CAIRN_F32);
    mem.device = CAIRN_GPU(0);
    ck_assert_int_eq(setenv("CAIRN_CUDA_DRIVER", "/nonexistent/libcuda.so.1", 1), 0);
    fails(cairn_push(job, &round, 0, "a.bias", NULL, &mem, NULL), CAIRN_ERR_UNSUPPORTED,
          "no GPU can be used: no CUDA driver");
    mem.device = -2;
    fails(cairn_push(job, &round, 0, "a.bias", NULL, &mem, NULL), CAIRN_ERR_INVALID, "device");
    mem.device = 0;
    mem.stream = &round;
    fails(cairn_push(job, &round, 0, "a.bias", NULL, &mem, NULL), CAIRN_ERR_INVALID,
          "mem.stream is");
    mem.stream = NULL;
    good(cairn_push(job, &round, 0, "a.bias", NULL, &mem, NULL));
    toy_commit(job, &round);
}

TEST(memory_of_cairn_alloc_must_hold_all_that_the_strides_reach)
{
    cairn_job *job = toy_ready(session, "toy", TOY_SPEC());
    const struct cairn_round round = toy_begin(job);
    void *ptr = NULL;
    cairn_op *op = NULL;
    good(cairn_alloc(session, 12288, 0, &ptr)); // dense it fits
    const struct cairn_mem mem = transposed(ptr);
    fails(cairn_fetch(job, round.version, "a.weight", NULL, NULL, &mem, &op), CAIRN_ERR_INVALID,
          "12288 bytes to the end");
}

/* Memory of so many bytes, as each call sees it: a.weight is 60 x 20 of fp32, 4800 bytes. */
static const struct sized {
    const char *what;
    bool is_far; /* as its transpose lies: 4 * (59 * 3 + 19 * 180 + 1) bytes */
    size_t bytes;
    bool is_right;
} sizes[] = {
    { "not said", false, 0, true },
    { "just it", false, 4800, true },
    { "too little", false, 4799, false },
    { "of a larger tensor", false, 4804, false },
    { "all that there are", false, SIZE_MAX, false },
    { "of the wire's dtype", false, 2400, false },
    { "strides: just to its end", true, 14392, true },
    { "strides: more behind it", true, FAR * 4, true },
    { "strides: too little", true, 14391, false },
    { "strides: as if dense", true, 4800, false },
};

TEST(memory_whose_size_is_said_is_judged_by_every_call)
{
    static float far[FAR];
    cairn_job *job = toy_ready(session, "toy", TOY_SPEC());
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        const struct cairn_round round = toy_begin(job);
        struct cairn_mem mem = sizes[i].is_far ? transposed(far) : toy_mem(far, CAIRN_F32);
        cairn_op *op = NULL;
        mem.bytes = sizes[i].bytes;
        const cairn_status wanted = sizes[i].is_right ? CAIRN_OK : CAIRN_ERR_INVALID;
        cairn_status status = cairn_fetch(job, round.version, "a.weight", NULL, NULL, &mem, &op);
        ck_assert_msg(status == wanted, "%s: %s", sizes[i].what, cairn_error());
        if (status == CAIRN_OK) good(cairn_wait(op, TOY_WAIT_MS));
        status = cairn_push(job, &round, 0, "a.weight", NULL, &mem, NULL);
        ck_assert_msg(status == wanted, "%s: %s", sizes[i].what, cairn_error());
        toy_commit(job, &round);
        good(cairn_write_begin(job, TOY_WAIT_MS));
        status = cairn_put(job, "a.weight", "param", NULL, &mem, NULL);
        ck_assert_msg(status == wanted, "%s: %s", sizes[i].what, cairn_error());
        if (wanted != CAIRN_OK)
            ck_assert_msg(strstr(cairn_error(), "mem.bytes") != NULL, "%s", cairn_error());
        struct cairn_version version;
        good(cairn_write_end(job, TOY_WAIT_MS, &version));
    }
    cairn_job_close(job);
}

TEST(the_struct_of_the_first_release_is_dense_memory_of_the_host)
{
    cairn_job *job = toy_ready(session, "toy", TOY_SPEC());
    const struct cairn_round round = toy_begin(job);
    float got[COLUMNS];
    struct cairn_mem mem = toy_mem(got, CAIRN_F32);
    cairn_op *op = NULL;
    memset(&mem.stride, 0xff, sizeof mem - offsetof(struct cairn_mem, stride)); // not its own
    mem.struct_size = offsetof(struct cairn_mem, stride);
    good(cairn_fetch(job, round.version, "a.bias", NULL, NULL, &mem, &op));
    good(cairn_wait(op, TOY_WAIT_MS));
    for (uint64_t i = 0; i < COLUMNS; i++) ck_assert_float_eq(got[i], toy_initial(1, i));
}

SUITE(30, toy_open_trainer, toy_stop);
