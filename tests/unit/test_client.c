/* The client's manners that need no cluster: numbers of cairn.h, handles, arguments, unreachable servers. */
#include <cairn.h>

#include <check.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "client/base.h"
#include "proto/base/status.h"
#include "proto/geometry/tensor.h"
#include "tests/support/keys.h"
#include "tests/support/scratch.h"
#include "tests/support/suite.h"

TEST(cairn_h_has_the_numbers_of_the_status_table)
{
#define X(name, number, exit_code, text) ck_assert_int_eq((int)CAIRN_##name, number);
    CAIRN_STATUS_TABLE(X)
#undef X
}

TEST(cairn_h_has_the_numbers_of_the_wire)
{
    ck_assert_str_eq(dtype_label(CAIRN_F32), "f32");
    ck_assert_str_eq(dtype_label(CAIRN_BF16), "bf16");
    ck_assert_str_eq(dtype_label(CAIRN_F16), "f16");
    ck_assert_str_eq(dtype_label(CAIRN_F64), "f64");
    ck_assert_uint_eq(sizeof(struct cairn_box), 4 + 4 + 2 * 8 * 8);
    ck_assert_uint_eq(sizeof(struct cairn_version), 16);
}

static atomic_int freed;

static void count_free(void *object)
{
    (void)object;
    atomic_fetch_add(&freed, 1);
}

TEST(a_closed_handle_is_no_handle)
{
    int object;
    freed = 0;
    void *handle = handle_open(CAIRN_HANDLE_JOB, &object, count_free);
    ck_assert_ptr_eq(handle_get(CAIRN_HANDLE_JOB, handle), &object);
    ck_assert_ptr_null(handle_get(CAIRN_HANDLE_OP, handle)); // another kind
    ck_assert_int_eq(handle_close(CAIRN_HANDLE_JOB, handle), 1);
    ck_assert_int_eq(freed, 0); // still counted
    ck_assert_ptr_null(handle_get(CAIRN_HANDLE_JOB, handle));
    ck_assert_int_eq(handle_close(CAIRN_HANDLE_JOB, handle), 0);
    handle_put(handle);
    ck_assert_int_eq(freed, 1);
    void *next = handle_open(CAIRN_HANDLE_JOB, &object, count_free); // the same slot
    ck_assert_ptr_ne(next, handle);
    ck_assert_ptr_null(handle_get(CAIRN_HANDLE_JOB, handle));
    ck_assert_int_eq(handle_close(CAIRN_HANDLE_JOB, next), 1);
    ck_assert_ptr_null(handle_get(CAIRN_HANDLE_JOB, &object)); // a pointer of somebody else
    ck_assert_ptr_null(handle_get(CAIRN_HANDLE_JOB, NULL));
}

TEST(a_handle_is_no_handle_in_a_forked_process)
{
    int object, status;
    char who[32];
    void *handle = handle_open(CAIRN_HANDLE_SESSION, &object, NULL);
    snprintf(who, sizeof who, "process %ld,", (long)getpid());
    const pid_t child = fork();
    ck_assert_int_ge(child, 0);
    if (child == 0) {
        void *buffer, *own = handle_open(CAIRN_HANDLE_SESSION, &object, NULL);
        cairn_close(handle); // nothing to wait for
        _exit(cairn_alloc(handle, 1, 0, &buffer) == CAIRN_ERR_HANDLE &&
                      strstr(cairn_error(), who) != NULL &&
                      handle_get(CAIRN_HANDLE_SESSION, own) == &object
                  ? 0
                  : 1);
    }
    ck_assert_int_eq(waitpid(child, &status, 0), child);
    ck_assert(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    ck_assert_ptr_eq(handle_get(CAIRN_HANDLE_SESSION, handle), &object);
}

enum { THREADS = 4, TURNS = 20000 };
static void *shared_handle;

static void *get_and_put(void *arg)
{
    int *misses = arg;
    for (int i = 0; i < TURNS; i++) {
        if (handle_get(CAIRN_HANDLE_OP, shared_handle) != NULL)
            handle_put(shared_handle);
        else
            (*misses)++;
        if (i == TURNS / 2) handle_close(CAIRN_HANDLE_OP, shared_handle);
    }
    return NULL;
}

TEST(threads_may_close_and_use_a_handle_at_once)
{
    pthread_t threads[THREADS];
    int object, misses[THREADS] = { 0 };
    freed = 0;
    shared_handle = handle_open(CAIRN_HANDLE_OP, &object, count_free);
    for (int i = 0; i < THREADS; i++)
        ck_assert_int_eq(pthread_create(&threads[i], NULL, get_and_put, &misses[i]), 0);
    for (int i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
    ck_assert_int_eq(freed, 1);
    for (int i = 0; i < THREADS; i++) ck_assert_int_gt(misses[i], 0);
}

TEST(wrong_handles_are_errors_everywhere)
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

TEST(nobody_at_the_endpoint_is_said_within_the_time_given)
{
    cairn *session = NULL;
    char folder[CAIRN_SCRATCH_BYTES];
    const struct cairn_opts opts = { .struct_size = sizeof opts,
                                     .endpoint = "127.0.0.1:1",
                                     .connect_timeout_ms = 200 };
    cairn_scratch_make(folder);
    keys_show(folder);
    ck_assert_int_eq(cairn_open(&opts, &session), CAIRN_ERR_UNREACHABLE);
    ck_assert_ptr_nonnull(strstr(cairn_error(), "127.0.0.1:1"));
    ck_assert_ptr_null(session);
    cairn_scratch_remove(folder);
}

/* Each of them at once, whatever the time given. */
TEST(who_has_no_good_token_hears_what_to_do)
{
    cairn *session = NULL;
    char folder[CAIRN_SCRATCH_BYTES], path[CAIRN_SCRATCH_BYTES + 16];
    struct cairn_opts opts = { .struct_size = sizeof opts,
                               .endpoint = "127.0.0.1:1",
                               .connect_timeout_ms = 60000 };
    cairn_scratch_make(folder);
    ck_assert_int_eq(cairn_open(&opts, &session), CAIRN_ERR_REFUSED);
    ck_assert_ptr_nonnull(strstr(cairn_error(), "127.0.0.1:1 is reached over TCP"));
    ck_assert_ptr_nonnull(strstr(cairn_error(), "CAIRN_TOKEN_FILE"));
    keys_show(folder);
    snprintf(path, sizeof path, "%s/token", folder);
    ck_assert_int_eq(chmod(path, 0644), 0);
    ck_assert_int_eq(cairn_open(&opts, &session), CAIRN_ERR_REFUSED);
    ck_assert_ptr_nonnull(strstr(cairn_error(), "chmod"));
    cairn_scratch_file(folder, "typo", "cairn1-abc\n", path, sizeof path);
    ck_assert_int_eq(chmod(path, 0600), 0);
    opts.token_file = path; // goes before the environment
    ck_assert_int_eq(cairn_open(&opts, &session), CAIRN_ERR_MALFORMED);
    ck_assert_ptr_nonnull(strstr(cairn_error(), path));
    ck_assert_ptr_null(session);
    cairn_scratch_remove(folder);
}

TEST(who_may_not_use_the_socket_hears_at_once_who_may)
{
    struct sockaddr_un address = { .sun_family = AF_UNIX };
    char folder[CAIRN_SCRATCH_BYTES];
    cairn *session = NULL;
    cairn_scratch_make(folder);
    snprintf(address.sun_path, sizeof address.sun_path, "%s/s", folder);
    const struct cairn_opts opts = { .struct_size = sizeof opts,
                                     .endpoint = address.sun_path,
                                     .connect_timeout_ms = 60000 }; // longer than the test's time
    const int fd = socket(AF_UNIX, SOCK_STREAM, 0);
    ck_assert_int_eq(bind(fd, (struct sockaddr *)&address, sizeof address), 0);
    ck_assert_int_eq(listen(fd, 1), 0);
    ck_assert_int_eq(chmod(address.sun_path, 0), 0);
    ck_assert_int_eq(chmod(folder, 0777), 0);
    if (geteuid() == 0) ck_assert_int_eq(seteuid(65534), 0); // root may all
    ck_assert_int_eq(cairn_open(&opts, &session), CAIRN_ERR_REFUSED);
    ck_assert_msg(strstr(cairn_error(), "permission denied") != NULL &&
                      strstr(cairn_error(), "its group") != NULL,
                  "%s", cairn_error());
    if (getuid() == 0) ck_assert_int_eq(seteuid(0), 0);
    close(fd);
    cairn_scratch_remove(folder);
}

TEST(an_error_quotes_no_bytes_that_are_no_text)
{
    cairn *session = NULL;
    const struct cairn_opts opts = { .struct_size = sizeof opts, .endpoint = "ho\xffst" };
    ck_assert_int_eq(cairn_open(&opts, &session), CAIRN_ERR_INVALID);
    ck_assert_msg(strstr(cairn_error(), "ho?st") != NULL, "%s", cairn_error());
}

TEST(options_that_make_no_sense_are_refused)
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
    opts = (struct cairn_opts) { .struct_size = sizeof opts, .name = "w\xff" };
    ck_assert_int_eq(cairn_open(&opts, &session), CAIRN_ERR_INVALID);
    ck_assert_ptr_nonnull(strstr(cairn_error(), "opts.name: byte 0xff at 1 is no UTF-8"));
    ck_assert_ptr_null(session);
}

SUITE(30);
