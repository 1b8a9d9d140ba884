/* The client's manners that need no cluster: numbers of cairn.h, handles, arguments, unreachable servers. */
#include <cairn.h>

#include <check.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "client/handle.h"
#include "proto/wire/status.h"
#include "proto/wire/tensor.h"
#include "tests/support/suite.h"

START_TEST(cairn_h_has_the_numbers_of_the_status_table)
{
#define X(name, number, exit_code, text) ck_assert_int_eq((int)CAIRN_##name, number);
    CAIRN_STATUS_TABLE(X)
#undef X
}
END_TEST

START_TEST(cairn_h_has_the_numbers_of_the_wire)
{
    ck_assert_str_eq(cairn_dtype_name(CAIRN_F32), "f32");
    ck_assert_str_eq(cairn_dtype_name(CAIRN_BF16), "bf16");
    ck_assert_str_eq(cairn_dtype_name(CAIRN_F16), "f16");
    ck_assert_str_eq(cairn_dtype_name(CAIRN_F64), "f64");
    ck_assert_uint_eq(sizeof(struct cairn_box), 4 + 4 + 2 * 8 * 8);
    ck_assert_uint_eq(sizeof(struct cairn_version), 16);
}
END_TEST

static atomic_int freed;

static void count_free(void *object)
{
    (void)object;
    atomic_fetch_add(&freed, 1);
}

START_TEST(a_closed_handle_is_no_handle)
{
    int object;
    freed = 0;
    void *handle = cairn_handle_open(CAIRN_HANDLE_JOB, &object, count_free);
    ck_assert_ptr_eq(cairn_handle_get(CAIRN_HANDLE_JOB, handle), &object);
    ck_assert_ptr_null(cairn_handle_get(CAIRN_HANDLE_OP, handle)); // another kind
    ck_assert_int_eq(cairn_handle_close(CAIRN_HANDLE_JOB, handle), 1);
    ck_assert_int_eq(freed, 0); // still counted
    ck_assert_ptr_null(cairn_handle_get(CAIRN_HANDLE_JOB, handle));
    ck_assert_int_eq(cairn_handle_close(CAIRN_HANDLE_JOB, handle), 0);
    cairn_handle_put(handle);
    ck_assert_int_eq(freed, 1);
    void *next = cairn_handle_open(CAIRN_HANDLE_JOB, &object, count_free); // the same slot
    ck_assert_ptr_ne(next, handle);
    ck_assert_ptr_null(cairn_handle_get(CAIRN_HANDLE_JOB, handle));
    ck_assert_int_eq(cairn_handle_close(CAIRN_HANDLE_JOB, next), 1);
    ck_assert_ptr_null(cairn_handle_get(CAIRN_HANDLE_JOB, &object)); // a pointer of somebody else
    ck_assert_ptr_null(cairn_handle_get(CAIRN_HANDLE_JOB, NULL));
}
END_TEST

enum { THREADS = 4, TURNS = 20000 };
static void *shared_handle;

static void *get_and_put(void *arg)
{
    int *misses = arg;
    for (int i = 0; i < TURNS; i++) {
        if (cairn_handle_get(CAIRN_HANDLE_OP, shared_handle) != NULL)
            cairn_handle_put(shared_handle);
        else
            (*misses)++;
        if (i == TURNS / 2) cairn_handle_close(CAIRN_HANDLE_OP, shared_handle);
    }
    return NULL;
}

START_TEST(threads_may_close_and_use_a_handle_at_once)
{
    pthread_t threads[THREADS];
    int object, misses[THREADS] = { 0 };
    freed = 0;
    shared_handle = cairn_handle_open(CAIRN_HANDLE_OP, &object, count_free);
    for (int i = 0; i < THREADS; i++)
        ck_assert_int_eq(pthread_create(&threads[i], NULL, get_and_put, &misses[i]), 0);
    for (int i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
    ck_assert_int_eq(freed, 1);
    for (int i = 0; i < THREADS; i++) ck_assert_int_gt(misses[i], 0);
}
END_TEST

START_TEST(wrong_handles_are_errors_everywhere)
{
    int mine = 0;
    cairn *no_session = (cairn *)&mine;
    cairn_job *no_job = (cairn_job *)&mine, *job = NULL;
    cairn_op *op = NULL;
    struct cairn_round round = { .struct_size = sizeof round };
    struct cairn_result result = { .struct_size = sizeof result };
    struct cairn_stats stats = { .struct_size = sizeof stats };
    struct cairn_mem mem = { .struct_size = sizeof mem, .ptr = &mine, .dtype = CAIRN_F32 };
    struct cairn_version version = { 0, 0 };
    char id[64];
    ck_assert_int_eq(cairn_job_open(no_session, "j", NULL, CAIRN_READER, 1, &job),
                     CAIRN_ERR_HANDLE);
    ck_assert_int_eq(cairn_put(no_job, "t", "param", NULL, &mem, &op), CAIRN_ERR_HANDLE);
    ck_assert_int_eq(cairn_init_done(no_job, NULL, 1), CAIRN_ERR_HANDLE);
    ck_assert_int_eq(cairn_round_begin(no_job, 1, &round), CAIRN_ERR_HANDLE);
    ck_assert_int_eq(cairn_push(no_job, &round, 0, "t", NULL, &mem, &op), CAIRN_ERR_HANDLE);
    ck_assert_int_eq(cairn_micro_end(no_job, &round, 0), CAIRN_ERR_HANDLE);
    ck_assert_int_eq(cairn_commit(no_job, &round, 1, NULL, 0, 1, &result), CAIRN_ERR_HANDLE);
    ck_assert_int_eq(cairn_fetch(no_job, version, "t", NULL, NULL, &mem, &op), CAIRN_ERR_HANDLE);
    ck_assert_int_eq(cairn_version_wait(NULL, version, 1, &version), CAIRN_ERR_HANDLE);
    ck_assert_int_eq(cairn_wait((cairn_op *)&mine, 1), CAIRN_ERR_HANDLE);
    ck_assert_int_eq(cairn_snapshot(no_job, 0, 1, id), CAIRN_ERR_HANDLE);
    ck_assert_int_eq(cairn_job_stats(no_job, &stats), CAIRN_ERR_HANDLE);
    ck_assert_int_eq(cairn_event_fd(no_session), -1);
    ck_assert_int_ne(cairn_error()[0], 0);
    cairn_close(no_session);
    cairn_close(NULL);
    cairn_job_close(no_job);
    ck_assert_ptr_null(job);
    ck_assert_ptr_null(op);
}
END_TEST

START_TEST(nobody_at_the_endpoint_is_said_within_the_time_given)
{
    cairn *session = NULL;
    const struct cairn_opts opts = { .struct_size = sizeof opts,
                                     .endpoint = "127.0.0.1:1",
                                     .connect_timeout_ms = 200 };
    ck_assert_int_eq(cairn_open(&opts, &session), CAIRN_ERR_UNREACHABLE);
    ck_assert_ptr_nonnull(strstr(cairn_error(), "127.0.0.1:1"));
    ck_assert_ptr_null(session);
}
END_TEST

START_TEST(options_that_make_no_sense_are_refused)
{
    cairn *session = NULL;
    struct cairn_opts opts = { .struct_size = 3 };
    ck_assert_int_eq(cairn_open(&opts, &session), CAIRN_ERR_INVALID);
    opts = (struct cairn_opts) { .struct_size = sizeof opts, .endpoint = "no port" };
    ck_assert_int_eq(cairn_open(&opts, &session), CAIRN_ERR_INVALID);
    ck_assert_ptr_nonnull(strstr(cairn_error(), "no port"));
    opts = (struct cairn_opts) { .struct_size = sizeof opts, .connect_timeout_ms = -1 };
    ck_assert_int_eq(cairn_open(&opts, &session), CAIRN_ERR_INVALID);
    ck_assert_int_eq(cairn_open(&opts, NULL), CAIRN_ERR_INVALID);
    ck_assert_ptr_null(session);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("client");
    TCase *tcase = tcase_create("client");
    tcase_set_timeout(tcase, 30);
    tcase_add_test(tcase, cairn_h_has_the_numbers_of_the_status_table);
    tcase_add_test(tcase, cairn_h_has_the_numbers_of_the_wire);
    tcase_add_test(tcase, a_closed_handle_is_no_handle);
    tcase_add_test(tcase, threads_may_close_and_use_a_handle_at_once);
    tcase_add_test(tcase, wrong_handles_are_errors_everywhere);
    tcase_add_test(tcase, nobody_at_the_endpoint_is_said_within_the_time_given);
    tcase_add_test(tcase, options_that_make_no_sense_are_refused);
    suite_add_tcase(suite, tcase);
    return suite_run(suite);
}
