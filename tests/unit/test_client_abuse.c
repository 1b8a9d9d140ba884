/* Every function of the library with wrong, closed, NULL and concurrent handles: an error, never undefined
 * behaviour. The rows CALL below are all that client/libcairn.map exports, or the first test fails. Run
 * under the sanitizers, too. */
#include <check.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "tests/support/suite.h"
#include "tests/support/toy_scene.h"

enum { SHORT_MS = 3, THREADS = 4 };

/* The handles of a call, and memory that is read only, or the thread's own. */
struct arguments {
    cairn *session;
    cairn_job *job;
    cairn_op *op;
    struct cairn_round round;
    float *own; /* [TOY_ELEMS] */
};

static float gradient[TOY_ELEMS]; /* never written */

#define CALLS_MAX 128

enum handle { NONE, OF_SESSION, OF_JOB, OF_OP };
static struct call {
    const char *name;
    enum handle handle;
    bool says_nothing; /* it returns no status */
    cairn_status (*given)(const struct arguments *);
    cairn_status (*nothing)(const struct arguments *);
} calls[CALLS_MAX];
static int call_count;

/* A row of the table: a call, the handle that it takes, what it says to good arguments but for that, and
 * what it says without them. */
#define CALL(function, of, with_arguments, without)                                      \
    static cairn_status given_##function(const struct arguments *a)                      \
    {                                                                                    \
        (void)a;                                                                         \
        return with_arguments;                                                           \
    }                                                                                    \
    static cairn_status nothing_##function(const struct arguments *a)                    \
    {                                                                                    \
        (void)a;                                                                         \
        return without;                                                                  \
    }                                                                                    \
    __attribute__((constructor)) static void add_##function(void)                        \
    {                                                                                    \
        if (call_count == CALLS_MAX) abort();                                            \
        calls[call_count++] = (struct call) { .name = #function,                         \
                                              .handle = (of),                            \
                                              .says_nothing = #with_arguments[0] == '(', \
                                              .given = given_##function,                 \
                                              .nothing = nothing_##function };           \
    }                                                                                    \
    _Static_assert(1, "a semicolon follows")

#define VERSION     ((struct cairn_version) { 1, 0 })
#define NO_VERSION  ((struct cairn_version) { 0, 0 })
#define EMPTY(type) (&(struct type) { .struct_size = sizeof(struct type) })

/* ---- of no handle: what cannot be wrong says CAIRN_OK where it is ---- */

static cairn_status wrong_if(bool is_wrong)
{
    return is_wrong ? CAIRN_OK : CAIRN_ERR_INVALID;
}

CALL(cairn_open, NONE, cairn_open(&(struct cairn_opts) { .struct_size = 1 }, &(cairn *) { NULL }),
     cairn_open(NULL, NULL));
CALL(cairn_env_read, NONE, cairn_env_read(&(struct cairn_env) { .struct_size = 1 }),
     cairn_env_read(NULL));
CALL(cairn_error, NONE, wrong_if(cairn_error() == NULL), wrong_if(cairn_error() == NULL));
CALL(cairn_error_difference, NONE, // this thread's last error has none
     wrong_if(cairn_error_difference(0, EMPTY(cairn_difference)) != CAIRN_ERR_NOT_FOUND),
     cairn_error_difference(0, NULL));
CALL(cairn_status_name, NONE, wrong_if(strcmp(cairn_status_name(-1), "CAIRN_ERR_?") != 0),
     wrong_if(strcmp(cairn_status_name(-1), "CAIRN_ERR_?") != 0));
CALL(cairn_version, NONE, wrong_if(strcmp(cairn_version(), CAIRN_VERSION) != 0),
     wrong_if(strcmp(cairn_version(), CAIRN_VERSION) != 0));
CALL(cairn_micro_seed, NONE,
     wrong_if(cairn_micro_seed(&(struct cairn_round) { .struct_size = 1 }, 0) != 0),
     wrong_if(cairn_micro_seed(NULL, 0) != 0));

/* ---- of a session ---- */

static cairn_status handle_if(bool is_said)
{
    return is_said ? CAIRN_ERR_HANDLE : CAIRN_OK;
}

static cairn_status alloc_and_free(const struct arguments *a)
{
    void *ptr;
    const cairn_status status = cairn_alloc(a->session, 4096, 0, &ptr);
    return status == CAIRN_OK ? cairn_free(a->session, ptr) : status;
}

CALL(cairn_close, OF_SESSION, (cairn_close(a->session), CAIRN_ERR_HANDLE),
     (cairn_close(NULL), CAIRN_ERR_HANDLE));
CALL(cairn_event_fd, OF_SESSION, handle_if(cairn_event_fd(a->session) < 0),
     handle_if(cairn_event_fd(NULL) < 0));
CALL(cairn_data_path, OF_SESSION, handle_if(cairn_data_path(a->session) == NULL),
     handle_if(cairn_data_path(NULL) == NULL));
CALL(cairn_alloc, OF_SESSION, alloc_and_free(a), cairn_alloc(a->session, 4096, 0, NULL));
CALL(cairn_free, OF_SESSION, cairn_free(a->session, a->own), cairn_free(a->session, NULL));
CALL(cairn_detach_memory, OF_SESSION, cairn_detach_memory(a->session, 0),
     cairn_detach_memory(a->session, -1));
CALL(cairn_attach_memory, OF_SESSION, cairn_attach_memory(a->session, 0),
     cairn_attach_memory(a->session, -1));
CALL(cairn_register, OF_SESSION, cairn_register(a->session, a->own, 16, 0),
     cairn_register(a->session, NULL, 0, 0));
CALL(cairn_unregister, OF_SESSION, cairn_unregister(a->session, a->own),
     cairn_unregister(a->session, NULL));
CALL(cairn_job_open, OF_SESSION,
     cairn_job_open(a->session, "nobody-made-it", NULL, CAIRN_READER, SHORT_MS,
                    &(cairn_job *) { NULL }),
     cairn_job_open(a->session, NULL, NULL, CAIRN_READER, SHORT_MS, NULL));
CALL(cairn_job_list, OF_SESSION, cairn_job_list(a->session, NULL, &(size_t) { 0 }, SHORT_MS),
     cairn_job_list(a->session, NULL, NULL, -1));
CALL(cairn_job_drop, OF_SESSION, cairn_job_drop(a->session, "none of this name", 0, SHORT_MS),
     cairn_job_drop(a->session, NULL, UINT32_MAX, -1));
CALL(cairn_job_restore, OF_SESSION,
     cairn_job_restore(a->session, "none of this name", "latest", 0, SHORT_MS, NULL, NULL),
     cairn_job_restore(a->session, NULL, NULL, UINT32_MAX, -1, NULL, NULL));
CALL(cairn_job_rollback, OF_SESSION,
     cairn_job_rollback(a->session, "none of this name", (struct cairn_version) { 0, 1 }, SHORT_MS,
                        NULL),
     cairn_job_rollback(a->session, NULL, (struct cairn_version) { UINT64_MAX, UINT64_MAX }, -1,
                        NULL));

/* ---- of a job ---- */

/* What is begun is waited for; what it maps is unmapped by the close. */
static cairn_status finish(cairn_status status, cairn_op *op)
{
    return status == CAIRN_OK ? cairn_wait(op, TOY_WAIT_MS) : status;
}

static cairn_status fetch(const struct arguments *a)
{
    cairn_op *op = NULL;
    const cairn_status status = cairn_fetch(a->job, VERSION, "a.weight", NULL, NULL,
                                            TOY_F32(a->own), &op);
    return finish(status, op);
}

static cairn_status map(const struct arguments *a)
{
    struct cairn_view views[2] = { { .struct_size = sizeof *views } };
    size_t count = 2;
    cairn_op *op = NULL;
    const cairn_status status = cairn_map(a->job, VERSION, "a", views, &count, &op);
    return finish(status, op);
}

static cairn_status map_device(const struct arguments *a)
{
    struct cairn_view views[4] = { { .struct_size = sizeof *views } };
    size_t count = 4;
    cairn_op *op = NULL;
    const cairn_status status = cairn_map_device(a->job, VERSION, "a", 0, views, &count, &op);
    return finish(status, op);
}

CALL(cairn_job_close, OF_JOB, (cairn_job_close(a->job), CAIRN_ERR_HANDLE),
     (cairn_job_close(NULL), CAIRN_ERR_HANDLE));
CALL(cairn_job_stats, OF_JOB, cairn_job_stats(a->job, EMPTY(cairn_stats)),
     cairn_job_stats(a->job, NULL));
CALL(cairn_job_describe, OF_JOB, cairn_job_describe(a->job, EMPTY(cairn_job_info)),
     cairn_job_describe(a->job, NULL));
CALL(cairn_job_tensor, OF_JOB, cairn_job_tensor(a->job, 0, EMPTY(cairn_tensor)),
     cairn_job_tensor(a->job, 0, NULL));
CALL(cairn_job_has_plane, OF_JOB, cairn_job_has_plane(a->job, "a", "ema", &(bool) { false }),
     cairn_job_has_plane(a->job, NULL, "ema", NULL));
CALL(cairn_tiles, OF_JOB,
     cairn_tiles(a->job, &(struct cairn_tile) { sizeof(struct cairn_tile), "scale", { .rank = 0 } },
                 1, 1, SHORT_MS),
     cairn_tiles(a->job, NULL, 1, 1, SHORT_MS));
CALL(cairn_job_amend, OF_JOB,
     cairn_job_amend(a->job,
                     &(struct cairn_amend) { .struct_size = sizeof(struct cairn_amend),
                                             .set_clip_norm = true },
                     SHORT_MS),
     cairn_job_amend(a->job, NULL, -1));
CALL(cairn_put, OF_JOB, cairn_put(a->job, "scale", "param", NULL, TOY_F32(gradient), NULL),
     cairn_put(a->job, NULL, NULL, NULL, NULL, NULL));
CALL(cairn_init_done, OF_JOB, cairn_init_done(a->job, NULL, SHORT_MS),
     cairn_init_done(a->job, NULL, -1));
CALL(cairn_round_begin, OF_JOB, cairn_round_begin(a->job, SHORT_MS, EMPTY(cairn_round)),
     cairn_round_begin(a->job, SHORT_MS, NULL));
CALL(cairn_push, OF_JOB, cairn_push(a->job, &a->round, 0, "scale", NULL, TOY_F32(gradient), NULL),
     cairn_push(a->job, NULL, 0, NULL, NULL, NULL, NULL));
CALL(cairn_micro_end, OF_JOB, cairn_micro_end(a->job, &a->round, 0),
     cairn_micro_end(a->job, NULL, 0));
CALL(cairn_commit, OF_JOB,
     cairn_commit(a->job, &a->round, 0, NULL, 0, SHORT_MS, EMPTY(cairn_result)),
     cairn_commit(a->job, NULL, 0, NULL, 0, SHORT_MS, NULL));
CALL(cairn_round_abandon, OF_JOB, cairn_round_abandon(a->job, &a->round, SHORT_MS),
     cairn_round_abandon(a->job, NULL, SHORT_MS));
CALL(cairn_group_lr, OF_JOB, cairn_group_lr(a->job, "default", 0.5),
     cairn_group_lr(a->job, NULL, -1));
CALL(cairn_write_begin, OF_JOB, cairn_write_begin(a->job, SHORT_MS), cairn_write_begin(a->job, -1));
CALL(cairn_write_end, OF_JOB, cairn_write_end(a->job, SHORT_MS, &NO_VERSION),
     cairn_write_end(a->job, SHORT_MS, NULL));
CALL(cairn_fetch, OF_JOB, fetch(a), cairn_fetch(a->job, NO_VERSION, NULL, NULL, NULL, NULL, NULL));
CALL(cairn_version_wait, OF_JOB, cairn_version_wait(a->job, NO_VERSION, SHORT_MS, &NO_VERSION),
     cairn_version_wait(a->job, NO_VERSION, SHORT_MS, NULL));
CALL(cairn_client_state, OF_JOB,
     cairn_client_state(a->job, NULL, 0, SHORT_MS, &(size_t) { 0 }, NULL),
     cairn_client_state(a->job, NULL, 1, SHORT_MS, NULL, NULL));
CALL(cairn_snapshot, OF_JOB, cairn_snapshot(a->job, 0, SHORT_MS, (char[64]) { "" }),
     cairn_snapshot(a->job, 0, SHORT_MS, NULL));
CALL(cairn_lease, OF_JOB, cairn_lease(a->job, NO_VERSION, 1000, SHORT_MS, &NO_VERSION),
     cairn_lease(a->job, NO_VERSION, 0, -1, NULL));
CALL(cairn_lease_end, OF_JOB, cairn_lease_end(a->job, VERSION, SHORT_MS),
     cairn_lease_end(a->job, VERSION, -1));
CALL(cairn_pause, OF_JOB, cairn_pause(a->job, "evaluating", SHORT_MS, SHORT_MS),
     cairn_pause(a->job, NULL, SHORT_MS, SHORT_MS));
CALL(cairn_pause_end, OF_JOB, cairn_pause_end(a->job, SHORT_MS), cairn_pause_end(a->job, -1));
CALL(cairn_prefetch, OF_JOB,
     cairn_prefetch(a->job, VERSION, (const char *const[]) { "a", "b", "scale" }, 3),
     cairn_prefetch(a->job, VERSION, NULL, 1));
CALL(cairn_map, OF_JOB, map(a), cairn_map(a->job, VERSION, NULL, NULL, NULL, NULL));
CALL(cairn_map_device, OF_JOB, map_device(a),
     cairn_map_device(a->job, VERSION, NULL, 0, NULL, NULL, NULL));
CALL(cairn_unmap, OF_JOB,
     cairn_unmap(a->job,
                 &(struct cairn_view) { .struct_size = sizeof(struct cairn_view), .loan = 1 },
                 NULL),
     cairn_unmap(a->job, NULL, NULL));

/* ---- of an operation ---- */

static cairn_status wait_any(cairn_op *op)
{
    size_t index;
    if (op == NULL) return cairn_wait(NULL, SHORT_MS); // NULL is passed by
    return cairn_wait_any(&op, 1, SHORT_MS, &index, NULL);
}

static cairn_status cancel_a_push(const struct arguments *a)
{
    cairn_op *op = NULL;
    if (a->job == NULL) return cairn_cancel(NULL);
    good(cairn_push(a->job, &a->round, 0, "a.bias", NULL, TOY_F32(gradient), &op));
    const cairn_status status = cairn_cancel(op);
    good(cairn_wait(op, TOY_WAIT_MS));
    return status;
}

CALL(cairn_wait, OF_OP, cairn_wait(a->op, SHORT_MS), cairn_wait(a->op, -1));
CALL(cairn_stream_wait, OF_OP, cairn_stream_wait(a->op, NULL), cairn_stream_wait(a->op, NULL));
CALL(cairn_wait_any, OF_OP, wait_any(a->op), cairn_wait_any(NULL, 0, -1, NULL, NULL));
CALL(cairn_op_set_user, OF_OP, cairn_op_set_user(a->op, NULL),
     cairn_wait(a->op, -1)); // nothing but the handle can be wrong
CALL(cairn_cancel, OF_OP, cairn_cancel(a->op), cancel_a_push(a));

/* ---- of a list: what is given here is none ---- */

static cairn_list *list_of(cairn_job *job, bool is_push, cairn_status *status)
{
    const struct cairn_part part = { .struct_size = sizeof part,
                                     .tensor = "a.weight",
                                     .mem = TOY_MEM(gradient, CAIRN_F32) };
    cairn_list *list = NULL;
    *status = is_push ? cairn_push_list(job, &part, 1, &list)
                      : cairn_fetch_list(job, "param", &part, 1, &list);
    return list;
}

static cairn_status open_list(cairn_job *job, bool is_push)
{
    cairn_status status;
    cairn_list_close(list_of(job, is_push, &status));
    return status;
}

static cairn_status post_without_round(cairn_job *job)
{
    cairn_status status;
    cairn_list *list = list_of(job, true, &status);
    if (status == CAIRN_OK) status = cairn_push_many(list, NULL, 0, NULL);
    cairn_list_close(list);
    return status;
}

CALL(cairn_push_list, OF_JOB, open_list(a->job, true), cairn_push_list(a->job, NULL, 0, NULL));
CALL(cairn_fetch_list, OF_JOB, open_list(a->job, false),
     cairn_fetch_list(a->job, NULL, NULL, 0, NULL));
CALL(cairn_push_many, OF_OP, cairn_push_many((cairn_list *)a->op, &a->round, 0, NULL),
     post_without_round(a->job));
CALL(cairn_fetch_many, OF_OP,
     cairn_fetch_many((cairn_list *)a->op, a->round.version, &(cairn_op *) { NULL }),
     cairn_fetch_many(NULL, a->round.version, NULL));
CALL(cairn_list_close, OF_OP, (cairn_list_close((cairn_list *)a->op), CAIRN_ERR_HANDLE),
     (cairn_list_close((cairn_list *)a->op), CAIRN_ERR_HANDLE));

static bool in_table(const char *name)
{
    for (int i = 0; i < call_count; i++)
        if (strcmp(calls[i].name, name) == 0) return true;
    return false;
}

TEST(the_table_has_every_function_that_is_exported)
{
    char word[128];
    int exported = 0;
    FILE *map = fopen(CAIRN_SOURCE_DIR "/client/libcairn.map", "re");
    ck_assert_ptr_nonnull(map);
    while (fscanf(map, "%*[^c]") != EOF && fscanf(map, "%127[a-z_]", word) == 1) {
        if (strncmp(word, "cairn_", 6) != 0) continue;
        exported++;
        ck_assert_msg(in_table(word), "%s is exported, and not in the table of this test", word);
    }
    fclose(map);
    ck_assert_int_eq(exported, call_count);
}

SUITE(30);

/* ---- the scene ---- */

static struct arguments live;
static float own[THREADS + 1][TOY_ELEMS];

static void open_live(void)
{
    toy_open_trainer();
    live.session = session;
    live.job = toy_ready(live.session, "toy", TOY_SPEC());
    live.round = toy_begin(live.job);
    live.own = own[0];
    good(cairn_fetch(live.job, live.round.version, "a.weight", NULL, NULL, TOY_F32(own[THREADS]),
                     &live.op));
}

/* ---- wrong, closed, NULL ---- */

static void check_all(const struct arguments *a, const char *what)
{
    for (int i = 0; i < call_count; i++) {
        if (calls[i].handle == NONE) continue;
        const cairn_status status = calls[i].given(a);
        ck_assert_msg(status == CAIRN_ERR_HANDLE, "%s with %s gave %d: %s", calls[i].name, what,
                      (int)status, cairn_error());
        if (!calls[i].says_nothing) ck_assert_ptr_nonnull(strstr(cairn_error(), "not an open"));
    }
}

static struct arguments with(void *handle)
{
    struct arguments a = live;
    a.session = handle;
    a.job = handle;
    a.op = handle;
    return a;
}

TEST(pointers_that_are_no_handles_are_said_to_be_none)
{
    int mine = 0;
    const uintptr_t real = (uintptr_t)live.session;
    void *const wrong[] = { NULL,
                            &mine,
                            live.own,
                            (void *)(uintptr_t)1,
                            (void *)UINTPTR_MAX,
                            (void *)(real ^ 1u << 20), // another use of the slot
                            (void *)(real | 0xfffff),  // no such slot
                            (void *)(real ^ (uintptr_t)1 << 60) };
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        const struct arguments a = with(wrong[i]);
        char what[64];
        snprintf(what, sizeof what, "the pointer %p", wrong[i]);
        check_all(&a, what);
    }
}

TEST(handles_of_another_kind_are_no_handles)
{
    struct arguments a = live;
    a.session = (cairn *)live.job;
    a.job = (cairn_job *)live.op;
    a.op = (cairn_op *)live.session;
    check_all(&a, "a handle of another kind");
    a.session = (cairn *)live.op;
    a.job = (cairn_job *)live.session;
    a.op = (cairn_op *)live.job;
    check_all(&a, "a handle of another kind");
}

TEST(closed_handles_are_no_handles)
{
    good(cairn_wait(live.op, TOY_WAIT_MS));
    struct arguments a = live;
    cairn_job_close(live.job);
    for (int i = 0; i < call_count; i++)
        if (calls[i].handle == OF_JOB || calls[i].handle == OF_OP)
            ck_assert_msg(calls[i].given(&a) == CAIRN_ERR_HANDLE, "%s", calls[i].name);
    cairn_close(live.session);
    check_all(&a, "a closed handle");
}

TEST(a_session_that_is_closed_takes_its_jobs_with_it)
{
    good(cairn_wait(live.op, TOY_WAIT_MS));
    cairn_close(live.session);
    check_all(&live, "the handle of a closed session");
}

TEST(nothing_given_is_an_error_that_says_something)
{
    const struct arguments none = with(NULL);
    for (int i = 0; i < call_count; i++) {
        ck_assert_msg(calls[i].nothing(&none) != CAIRN_OK, "%s of nothing", calls[i].name);
        if (calls[i].says_nothing || strcmp(calls[i].name, "cairn_event_fd") == 0 ||
            strcmp(calls[i].name, "cairn_data_path") == 0)
            continue;
        const cairn_status status = calls[i].nothing(&live);
        ck_assert_msg(status == CAIRN_ERR_INVALID || status == CAIRN_ERR_UNSUPPORTED,
                      "%s without its arguments gave %d: %s", calls[i].name, (int)status,
                      cairn_error());
        ck_assert_int_ne(cairn_error()[0], 0);
    }
    good(cairn_wait(live.op, TOY_WAIT_MS));
    toy_commit(live.job, &live.round); // nothing of it did any harm
}

/* ---- at once ---- */

static atomic_int turns;

static void *call_all(void *arg)
{
    const struct arguments *a = arg;
    for (bool open = true; open;) {
        open = false;
        for (int i = 0; i < call_count; i++) {
            if (calls[i].handle == NONE || calls[i].says_nothing) continue;
            open |= calls[i].given(a) != CAIRN_ERR_HANDLE;
        }
        atomic_fetch_add(&turns, 1);
    }
    return NULL;
}

/* Every thread calls everything until all handles are closed. */
static void close_beside_threads(void (*close_it)(void))
{
    pthread_t threads[THREADS];
    struct arguments a[THREADS];
    turns = 0;
    for (int i = 0; i < THREADS; i++) {
        a[i] = live;
        a[i].own = own[i];
        ck_assert_int_eq(pthread_create(&threads[i], NULL, call_all, &a[i]), 0);
    }
    while (atomic_load(&turns) < 2 * THREADS) sched_yield();
    close_it();
    for (int i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
}

static void close_job_then_session(void)
{
    cairn_job_close(live.job);
    cairn_close(live.session);
}

static void close_session(void)
{
    cairn_close(live.session);
}

TEST(any_thread_may_close_the_job_that_others_use)
{
    close_beside_threads(close_job_then_session);
}

TEST(any_thread_may_close_the_session_that_others_use)
{
    close_beside_threads(close_session);
}

static void *close_both(void *arg)
{
    (void)arg;
    cairn_job_close(live.job);
    cairn_close(live.session);
    return NULL;
}

TEST(threads_may_close_the_same_handle_at_once)
{
    pthread_t threads[THREADS];
    for (int i = 0; i < THREADS; i++)
        ck_assert_int_eq(pthread_create(&threads[i], NULL, close_both, NULL), 0);
    for (int i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
}

SUITE(100, open_live, toy_stop);
