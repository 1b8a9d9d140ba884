/* Lists of tensors: the bits of single calls, all or nothing, one operation; waiting for one of several, and
 * fetches that nobody wants any more. */
#include <check.h>
#include <string.h>

#include "tests/support/suite.h"
#include "tests/support/toy_scene.h"

enum { TRAINED = 4, FROZEN = 4 }; /* tensors of the toy; and the frozen one */

static cairn_job *job;
static float grads[TRAINED][TOY_ELEMS];
static uint8_t fetched[TRAINED][TOY_ELEMS * 4];

static void open_rooms(void)
{
    toy_start(2, .seed = 9, .delay_max_ticks = 2);
    session = toy_session(&rooms, "trainer");
    job = toy_ready(session, "toy", TOY_SPEC());
    for (int t = 0; t < TRAINED; t++)
        for (int i = 0; i < TOY_ELEMS; i++) grads[t][i] = (float)(t * 31 + i % 17 - 8) * 0.125f;
}

static struct cairn_part part_of(int tensor, void *memory, cairn_dtype dtype)
{
    return (struct cairn_part) { .struct_size = sizeof(struct cairn_part),
                                 .tensor = toy_tensors[tensor].name,
                                 .mem = toy_mem(memory, dtype) };
}

static void gradient_parts(struct cairn_part parts[TRAINED])
{
    for (int t = 0; t < TRAINED; t++) parts[t] = part_of(t, grads[t], CAIRN_F32);
}

static cairn_list *push_list(void)
{
    struct cairn_part parts[TRAINED];
    cairn_list *list = NULL;
    gradient_parts(parts);
    good(cairn_push_list(job, parts, TRAINED, &list));
    return list;
}

static cairn_list *fetch_list(const char *plane)
{
    struct cairn_part parts[TRAINED];
    cairn_list *list = NULL;
    for (int t = 0; t < TRAINED; t++) parts[t] = part_of(t, fetched[t], CAIRN_F32);
    good(cairn_fetch_list(job, plane, parts, TRAINED, &list));
    return list;
}

static void check_params(struct cairn_version version)
{
    float expected[TOY_ELEMS];
    for (int t = 0; t < TRAINED; t++) {
        toy_fetch(job, version, t, "param", CAIRN_F32, expected);
        ck_assert_int_eq(memcmp(fetched[t], expected, toy_elems(t) * sizeof(float)), 0);
    }
}

/* Pushed one by one in a job of its own: what a list has to come to. */
static struct cairn_version step_by_single_calls(cairn_job *other)
{
    const struct cairn_round round = toy_begin(other);
    for (int t = 0; t < TRAINED; t++) {
        good(cairn_push(other, &round, 0, toy_tensors[t].name, NULL, TOY_F32(grads[t]), NULL));
    }
    return toy_commit(other, &round).version;
}

TEST(a_list_has_the_bits_of_single_calls_as_often_as_it_is_posted)
{
    cairn_job *other = toy_ready(session, "other", TOY_SPEC());
    cairn_list *pushes = push_list(), *fetches = fetch_list("param");
    for (int step = 0; step < 3; step++) {
        cairn_op *op = NULL;
        const struct cairn_round round = toy_begin(job);
        good(cairn_push_many(pushes, &round, 0, step == 1 ? NULL : &op));
        if (op != NULL) good(cairn_wait(op, TOY_WAIT_MS));
        const struct cairn_version version = toy_commit(job, &round).version;
        good(cairn_fetch_many(fetches, version, &op));
        good(cairn_wait(op, TOY_WAIT_MS));
        check_params(version);
        float expected[TOY_ELEMS];
        const struct cairn_version single = step_by_single_calls(other);
        for (int t = 0; t < TRAINED; t++) {
            toy_fetch(other, single, t, "param", CAIRN_F32, expected);
            ck_assert_int_eq(memcmp(fetched[t], expected, toy_elems(t) * sizeof(float)), 0);
        }
    }
    cairn_list_close(pushes);
    cairn_list_close(fetches);
    cairn_list_close(NULL);
}

/* Memory of cairn_alloc that the list is of, as much as all tensors need. */
static cairn_list *list_in(void *memory, bool is_push)
{
    struct cairn_part parts[TRAINED];
    cairn_list *list = NULL;
    for (int t = 0; t < TRAINED; t++)
        parts[t] = part_of(t, (uint8_t *)memory + t * TOY_ELEMS * 4, CAIRN_F32);
    good(is_push ? cairn_push_list(job, parts, TRAINED, &list)
                 : cairn_fetch_list(job, "param", parts, TRAINED, &list));
    return list;
}

TEST(a_list_that_is_closed_while_it_is_under_way_comes_to_its_end)
{
    void *pushed, *read;
    cairn_op *op = NULL;
    good(cairn_alloc(session, sizeof grads, 0, &pushed));
    good(cairn_alloc(session, sizeof grads, 0, &read));
    memcpy(pushed, grads, sizeof grads);
    cairn_list *pushes = list_in(pushed, true), *fetches = list_in(read, false);
    const struct cairn_round round = toy_begin(job);
    good(cairn_push_many(pushes, &round, 0, NULL));
    cairn_list_close(pushes);
    const struct cairn_version version = toy_commit(job, &round).version;
    good(cairn_fetch_many(fetches, version, &op));
    cairn_list_close(fetches);
    good(cairn_wait(op, TOY_WAIT_MS));
    memcpy(fetched, read, sizeof fetched);
    check_params(version);
    good(cairn_free(session, pushed)); // all of it is given back
    good(cairn_free(session, read));
}

/* ---- what is wrong ---- */

enum wrong { NO_NAME, NO_TENSOR, NOT_TRAINED, TWICE, OLD_STRUCT, WRONG_DTYPE, TOO_SHORT, WRONGS };
static const struct {
    cairn_status status;
    const char *word;
} refusals[WRONGS] = {
    [NO_NAME] = { CAIRN_ERR_INVALID, "entry 2 of the list (without a name)" },
    [NO_TENSOR] = { CAIRN_ERR_NOT_FOUND, "entry 2 of the list (nothing)" },
    [NOT_TRAINED] = { CAIRN_ERR_INVALID, "takes no gradient" },
    [TWICE] = { CAIRN_ERR_EXISTS, "entry 2 of the list" },
    [OLD_STRUCT] = { CAIRN_ERR_INVALID, "struct_size is 8" },
    [WRONG_DTYPE] = { CAIRN_ERR_INVALID, "entry 2 of the list" },
    [TOO_SHORT] = { CAIRN_ERR_INVALID, "entry 2 of the list" },
};

TEST_EACH(a_wrong_entry_is_named_and_there_is_no_list, 0, WRONGS)
{
    struct cairn_part parts[TRAINED];
    cairn_list *list = NULL;
    gradient_parts(parts);
    if (_i == NO_NAME) parts[2].tensor = NULL;
    if (_i == NO_TENSOR) parts[2].tensor = "nothing";
    if (_i == NOT_TRAINED) parts[2].tensor = toy_tensors[FROZEN].name;
    if (_i == TWICE) parts[2].tensor = parts[0].tensor;
    if (_i == OLD_STRUCT) parts[2].struct_size = 8;
    if (_i == WRONG_DTYPE) parts[2].mem.dtype = CAIRN_F64;
    if (_i == TOO_SHORT) parts[2].mem.bytes = 4;
    fails(cairn_push_list(job, parts, TRAINED, &list), refusals[_i].status, refusals[_i].word);
    ck_assert_ptr_null(list);
}

TEST(a_list_of_which_an_entry_reaches_beyond_its_memory_lends_nothing)
{
    void *memory;
    cairn_op *op = NULL;
    const size_t bytes = 4 * 4096;
    good(cairn_alloc(session, bytes, 0, &memory));
    struct cairn_part parts[TRAINED];
    cairn_list *list = NULL;
    for (int t = 0; t < TRAINED; t++) parts[t] = part_of(t, memory, CAIRN_F32);
    parts[2].mem.ptr = (uint8_t *)memory + bytes - 4;
    good(cairn_fetch_list(job, "param", parts, TRAINED, &list));
    fails(cairn_fetch_many(list, toy_step(job, 1).version, &op), CAIRN_ERR_INVALID,
          "entry 2 of the list (");
    good(cairn_free(session, memory));
    cairn_list_close(list);
}

TEST(a_list_of_which_one_was_pushed_already_pushes_nothing)
{
    cairn_list *pushes = push_list();
    const struct cairn_round round = toy_begin(job);
    good(cairn_push(job, &round, 0, toy_tensors[2].name, NULL, TOY_F32(grads[2]), NULL));
    fails(cairn_push_many(pushes, &round, 0, NULL), CAIRN_ERR_EXISTS, "entry 2 of the list");
    for (int t = 0; t < TRAINED; t++) { // all others can be pushed still
        if (t != 2)
            good(cairn_push(job, &round, 0, toy_tensors[t].name, NULL, TOY_F32(grads[t]), NULL));
    }
    toy_commit(job, &round);
    fails(cairn_push_many(pushes, &round, 0, NULL), CAIRN_ERR_STALE, "");
    cairn_list_close(pushes);
}

TEST(a_list_is_of_one_kind_and_of_one_job)
{
    cairn_op *op = NULL;
    cairn_list *pushes = push_list(), *fetches = fetch_list("param");
    const struct cairn_round round = toy_begin(job);
    fails(cairn_push_many(fetches, &round, 0, NULL), CAIRN_ERR_HANDLE, "cairn_fetch_list");
    fails(cairn_fetch_many(pushes, round.version, &op), CAIRN_ERR_HANDLE, "cairn_push_list");
    fails(cairn_fetch_many(fetches, round.version, NULL), CAIRN_ERR_INVALID, "op_out");
    cairn_job_close(job);
    fails(cairn_push_many(pushes, &round, 0, NULL), CAIRN_ERR_HANDLE, "closed");
    cairn_list_close(pushes);
    fails(cairn_push_many(pushes, &round, 0, NULL), CAIRN_ERR_HANDLE, "");
    cairn_list_close(fetches);
}

TEST(micro_batches_that_are_added_up_may_be_lists)
{
    cairn_job *added = toy_ready(session, "added",
                                 TOY_SPEC(.stage = CAIRN_STAGE(1), .micro_batches = 2));
    struct cairn_part parts[TRAINED];
    cairn_list *list = NULL;
    gradient_parts(parts);
    good(cairn_push_list(added, parts, TRAINED, &list));
    const struct cairn_round round = toy_begin(added);
    for (uint32_t micro = 0; micro < 2; micro++) {
        good(cairn_push_many(list, &round, micro, NULL));
        fails(cairn_push_many(list, &round, micro, NULL), CAIRN_ERR_EXISTS, "entry 0");
        good(cairn_micro_end(added, &round, micro));
    }
    ck_assert(toy_commit(added, &round).applied);
    cairn_list_close(list);
}

/* ---- one of several ---- */

TEST(the_operation_that_is_over_is_told_with_the_pointer_it_has)
{
    cairn_list *fetches = fetch_list("param");
    const struct cairn_version version = toy_step(job, 1).version;
    cairn_op *ops[3] = { NULL };
    static int users[3];
    void *user = NULL;
    size_t index = 7;
    for (int i = 0; i < 3; i++) {
        good(cairn_fetch_many(fetches, version, &ops[i]));
        good(cairn_op_set_user(ops[i], &users[i]));
    }
    for (int i = 0; i < 3; i++) {
        good(cairn_wait_any(ops, 3, TOY_WAIT_MS, &index, &user));
        ck_assert_uint_lt(index, 3);
        ck_assert_ptr_eq(user, &users[index]);
        fails(cairn_wait(ops[index], 0), CAIRN_ERR_HANDLE, ""); // it is freed
        ops[index] = NULL;
    }
    fails(cairn_wait_any(ops, 3, 0, &index, NULL), CAIRN_ERR_INVALID, "no operation");
    ck_assert_uint_eq(index, 3);
    fails(cairn_wait_any(NULL, 2, 0, &index, NULL), CAIRN_ERR_INVALID, "no operation");
    ck_assert_uint_eq(index, 2);
    fails(cairn_wait_any(ops, 3, -1, &index, NULL), CAIRN_ERR_INVALID, "timeout_ms is -1");
    ck_assert_uint_eq(index, 3);
    cairn_list_close(fetches);
}

TEST(one_that_fails_is_over_too_and_time_runs_out_over_none)
{
    cairn_op *op = NULL;
    size_t index;
    cairn_list *fetches = fetch_list("param");
    const struct cairn_version none = { 1, 1000 };
    good(cairn_fetch_many(fetches, none, &op));
    fails(cairn_wait_any(&op, 1, TOY_WAIT_MS, &index, NULL), CAIRN_ERR_NOT_READY, "");
    ck_assert_uint_eq(index, 0);
    cairn_list_close(fetches);
    // A push waits for the other worker's.
    cairn *second = toy_session(&rooms, "second");
    cairn_job *jobs[2] = { toy_open(session, "two", TOY_SPEC(.workers_min = 2)),
                           toy_open(second, "two", TOY_SPEC(.rank = 1, .workers_min = 2)) };
    toy_put(jobs[0]);
    for (int i = 0; i < 2; i++) good(cairn_init_done(jobs[i], NULL, TOY_WAIT_MS));
}

/* ---- what nobody wants ---- */

TEST(a_canceled_fetch_ends_and_its_memory_is_back)
{
    cairn_list *fetches = fetch_list("param");
    const struct cairn_version version = toy_step(job, 1).version;
    for (int i = 0; i < 20; i++) {
        cairn_op *op = NULL;
        good(cairn_fetch_many(fetches, version, &op));
        good(cairn_cancel(op));
        const cairn_status status = cairn_wait(op, TOY_WAIT_MS);
        ck_assert_msg(status == CAIRN_OK || status == CAIRN_ERR_CANCELED, "%d", (int)status);
        memset(fetched, 0x5a, sizeof fetched); // what is late writes no more to it
        fails(cairn_cancel(op), CAIRN_ERR_HANDLE, "");
    }
    uint8_t before[sizeof fetched];
    memcpy(before, fetched, sizeof fetched);
    toy_step(job, 2);
    ck_assert_int_eq(memcmp(before, fetched, sizeof fetched), 0);
    cairn_op *op = NULL;
    good(cairn_fetch_many(fetches, toy_step(job, 3).version, &op));
    good(cairn_wait(op, TOY_WAIT_MS));
    cairn_list_close(fetches);
}

TEST(a_push_cannot_be_canceled)
{
    cairn_op *op = NULL;
    cairn_list *pushes = push_list();
    const struct cairn_round round = toy_begin(job);
    good(cairn_push_many(pushes, &round, 0, &op));
    fails(cairn_cancel(op), CAIRN_ERR_UNSUPPORTED, "cairn_round_abandon");
    good(cairn_wait(op, TOY_WAIT_MS));
    toy_commit(job, &round);
    cairn_list_close(pushes);
}

SUITE(60, open_rooms, toy_stop);
