/* Every function of the library with wrong, closed, NULL and concurrent handles: an error, never undefined
 * behaviour. The table below has all that client/libcairn.map exports, or the first test fails; each row is
 * a call with good arguments but for its handles, and one with none. Run under the sanitizers, too. */
#include <check.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/suite.h"
#include "tests/support/toy.h"

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

#define GIVEN(name)   static cairn_status given_##name(const struct arguments *a)
#define NOTHING(name) static cairn_status nothing_##name(const struct arguments *a)

/* ---- of no handle ---- */

GIVEN(cairn_open)
{
    const struct cairn_opts opts = { .struct_size = 1 };
    cairn *session;
    (void)a;
    return cairn_open(&opts, &session);
}
NOTHING(cairn_open)
{
    (void)a;
    return cairn_open(NULL, NULL);
}
GIVEN(cairn_env_read)
{
    struct cairn_env env = { .struct_size = 1 };
    (void)a;
    return cairn_env_read(&env);
}
NOTHING(cairn_env_read)
{
    (void)a;
    return cairn_env_read(NULL);
}
GIVEN(cairn_error)
{
    (void)a;
    return cairn_error() != NULL ? CAIRN_ERR_INVALID : CAIRN_OK; // never NULL
}
NOTHING(cairn_error)
{
    return given_cairn_error(a);
}

GIVEN(cairn_error_difference)
{
    struct cairn_difference difference = { .struct_size = sizeof difference };
    (void)a; // this thread's last error has none
    return cairn_error_difference(0, &difference) == CAIRN_ERR_NOT_FOUND ? CAIRN_ERR_INVALID
                                                                         : CAIRN_OK;
}
NOTHING(cairn_error_difference)
{
    (void)a;
    return cairn_error_difference(0, NULL);
}

GIVEN(cairn_status_name)
{
    (void)a;
    return strcmp(cairn_status_name(-1), "CAIRN_ERR_?") == 0 ? CAIRN_ERR_INVALID : CAIRN_OK;
}
NOTHING(cairn_status_name)
{
    return given_cairn_status_name(a);
}

GIVEN(cairn_version)
{
    (void)a;
    return strcmp(cairn_version(), CAIRN_VERSION) == 0 ? CAIRN_ERR_INVALID : CAIRN_OK;
}
NOTHING(cairn_version)
{
    return given_cairn_version(a);
}

GIVEN(cairn_micro_seed)
{
    const struct cairn_round round = { .struct_size = 1 };
    (void)a;
    return cairn_micro_seed(&round, 0) == 0 ? CAIRN_ERR_INVALID : CAIRN_OK;
}
NOTHING(cairn_micro_seed)
{
    (void)a;
    return cairn_micro_seed(NULL, 0) == 0 ? CAIRN_ERR_INVALID : CAIRN_OK;
}

/* ---- of a session ---- */

GIVEN(cairn_close)
{
    cairn_close(a->session);
    return CAIRN_ERR_HANDLE; // it says nothing
}
NOTHING(cairn_close)
{
    (void)a;
    cairn_close(NULL);
    return CAIRN_ERR_HANDLE;
}
GIVEN(cairn_event_fd)
{
    return cairn_event_fd(a->session) < 0 ? CAIRN_ERR_HANDLE : CAIRN_OK;
}
NOTHING(cairn_event_fd)
{
    (void)a;
    return cairn_event_fd(NULL) < 0 ? CAIRN_ERR_HANDLE : CAIRN_OK;
}
GIVEN(cairn_data_path)
{
    return cairn_data_path(a->session) == NULL ? CAIRN_ERR_HANDLE : CAIRN_OK;
}
NOTHING(cairn_data_path)
{
    (void)a;
    return cairn_data_path(NULL) == NULL ? CAIRN_ERR_HANDLE : CAIRN_OK;
}
GIVEN(cairn_alloc)
{
    void *ptr;
    const cairn_status status = cairn_alloc(a->session, 4096, 0, &ptr);
    return status == CAIRN_OK ? cairn_free(a->session, ptr) : status;
}
NOTHING(cairn_alloc)
{
    return cairn_alloc(a->session, 4096, 0, NULL);
}
GIVEN(cairn_free)
{
    return cairn_free(a->session, a->own);
}
NOTHING(cairn_free)
{
    return cairn_free(a->session, NULL);
}
GIVEN(cairn_detach_memory)
{
    return cairn_detach_memory(a->session, 0);
}
NOTHING(cairn_detach_memory)
{
    return cairn_detach_memory(a->session, -1);
}
GIVEN(cairn_attach_memory)
{
    return cairn_attach_memory(a->session, 0);
}
NOTHING(cairn_attach_memory)
{
    return cairn_attach_memory(a->session, -1);
}
GIVEN(cairn_register)
{
    return cairn_register(a->session, a->own, 16, 0);
}
NOTHING(cairn_register)
{
    return cairn_register(a->session, NULL, 0, 0);
}
GIVEN(cairn_unregister)
{
    return cairn_unregister(a->session, a->own);
}
NOTHING(cairn_unregister)
{
    return cairn_unregister(a->session, NULL);
}
GIVEN(cairn_job_open)
{
    cairn_job *job;
    return cairn_job_open(a->session, "nobody-made-it", NULL, CAIRN_READER, SHORT_MS, &job);
}
NOTHING(cairn_job_open)
{
    return cairn_job_open(a->session, NULL, NULL, CAIRN_READER, SHORT_MS, NULL);
}

/* ---- of a job ---- */

GIVEN(cairn_job_close)
{
    cairn_job_close(a->job);
    return CAIRN_ERR_HANDLE; // it says nothing
}
NOTHING(cairn_job_close)
{
    (void)a;
    cairn_job_close(NULL);
    return CAIRN_ERR_HANDLE;
}
GIVEN(cairn_job_list)
{
    size_t count = 0;
    return cairn_job_list(a->session, NULL, &count, SHORT_MS);
}
NOTHING(cairn_job_list)
{
    return cairn_job_list(a->session, NULL, NULL, -1);
}
GIVEN(cairn_job_drop)
{
    return cairn_job_drop(a->session, "none of this name", 0, SHORT_MS);
}
NOTHING(cairn_job_drop)
{
    return cairn_job_drop(a->session, NULL, UINT32_MAX, -1);
}
GIVEN(cairn_job_restore)
{
    return cairn_job_restore(a->session, "none of this name", "latest", 0, SHORT_MS, NULL, NULL);
}
NOTHING(cairn_job_restore)
{
    return cairn_job_restore(a->session, NULL, NULL, UINT32_MAX, -1, NULL, NULL);
}
GIVEN(cairn_job_stats)
{
    struct cairn_stats stats = { .struct_size = sizeof stats };
    return cairn_job_stats(a->job, &stats);
}
NOTHING(cairn_job_stats)
{
    return cairn_job_stats(a->job, NULL);
}
GIVEN(cairn_job_describe)
{
    struct cairn_job_info info = { .struct_size = sizeof info };
    return cairn_job_describe(a->job, &info);
}
NOTHING(cairn_job_describe)
{
    return cairn_job_describe(a->job, NULL);
}
GIVEN(cairn_job_tensor)
{
    struct cairn_tensor tensor = { .struct_size = sizeof tensor };
    return cairn_job_tensor(a->job, 0, &tensor);
}
NOTHING(cairn_job_tensor)
{
    return cairn_job_tensor(a->job, 0, NULL);
}
GIVEN(cairn_tiles)
{
    struct cairn_tile tile = { .struct_size = sizeof tile,
                               .tensor = "scale",
                               .box = { .rank = 0 } };
    return cairn_tiles(a->job, &tile, 1, 1, SHORT_MS);
}
NOTHING(cairn_tiles)
{
    return cairn_tiles(a->job, NULL, 1, 1, SHORT_MS);
}
GIVEN(cairn_job_amend)
{
    const struct cairn_amend amend = { .struct_size = sizeof amend, .set_clip_norm = true };
    return cairn_job_amend(a->job, &amend, SHORT_MS);
}
NOTHING(cairn_job_amend)
{
    return cairn_job_amend(a->job, NULL, -1);
}
GIVEN(cairn_put)
{
    const struct cairn_mem mem = toy_mem(gradient, CAIRN_F32);
    return cairn_put(a->job, "scale", "param", NULL, &mem, NULL);
}
NOTHING(cairn_put)
{
    return cairn_put(a->job, NULL, NULL, NULL, NULL, NULL);
}
GIVEN(cairn_init_done)
{
    return cairn_init_done(a->job, NULL, SHORT_MS);
}
NOTHING(cairn_init_done)
{
    return cairn_init_done(a->job, NULL, -1);
}
GIVEN(cairn_round_begin)
{
    struct cairn_round round = { .struct_size = sizeof round };
    return cairn_round_begin(a->job, SHORT_MS, &round);
}
NOTHING(cairn_round_begin)
{
    return cairn_round_begin(a->job, SHORT_MS, NULL);
}
GIVEN(cairn_push)
{
    const struct cairn_mem mem = toy_mem(gradient, CAIRN_F32);
    return cairn_push(a->job, &a->round, 0, "scale", NULL, &mem, NULL);
}
NOTHING(cairn_push)
{
    return cairn_push(a->job, NULL, 0, NULL, NULL, NULL, NULL);
}
GIVEN(cairn_micro_end)
{
    return cairn_micro_end(a->job, &a->round, 0);
}
NOTHING(cairn_micro_end)
{
    return cairn_micro_end(a->job, NULL, 0);
}
GIVEN(cairn_commit)
{
    struct cairn_result result = { .struct_size = sizeof result };
    return cairn_commit(a->job, &a->round, 0, NULL, 0, SHORT_MS, &result);
}
NOTHING(cairn_commit)
{
    return cairn_commit(a->job, NULL, 0, NULL, 0, SHORT_MS, NULL);
}
GIVEN(cairn_round_abandon)
{
    return cairn_round_abandon(a->job, &a->round, SHORT_MS);
}
NOTHING(cairn_round_abandon)
{
    return cairn_round_abandon(a->job, NULL, SHORT_MS);
}
GIVEN(cairn_group_lr)
{
    return cairn_group_lr(a->job, "default", 0.5);
}
NOTHING(cairn_group_lr)
{
    return cairn_group_lr(a->job, NULL, -1);
}
GIVEN(cairn_write_begin)
{
    return cairn_write_begin(a->job, SHORT_MS);
}
NOTHING(cairn_write_begin)
{
    return cairn_write_begin(a->job, -1);
}
GIVEN(cairn_write_end)
{
    struct cairn_version version;
    return cairn_write_end(a->job, SHORT_MS, &version);
}
NOTHING(cairn_write_end)
{
    return cairn_write_end(a->job, SHORT_MS, NULL);
}
GIVEN(cairn_fetch)
{
    const struct cairn_mem mem = toy_mem(a->own, CAIRN_F32);
    cairn_op *op;
    const struct cairn_version version = { 1, 0 };
    cairn_status status = cairn_fetch(a->job, version, "a.weight", NULL, NULL, &mem, &op);
    return status == CAIRN_OK ? cairn_wait(op, TOY_WAIT_MS) : status;
}
NOTHING(cairn_fetch)
{
    const struct cairn_version version = { 0, 0 };
    return cairn_fetch(a->job, version, NULL, NULL, NULL, NULL, NULL);
}
GIVEN(cairn_version_wait)
{
    struct cairn_version version;
    return cairn_version_wait(a->job, (struct cairn_version) { 0, 0 }, SHORT_MS, &version);
}
NOTHING(cairn_version_wait)
{
    return cairn_version_wait(a->job, (struct cairn_version) { 0, 0 }, SHORT_MS, NULL);
}
GIVEN(cairn_client_state)
{
    size_t bytes;
    return cairn_client_state(a->job, NULL, 0, SHORT_MS, &bytes, NULL);
}
NOTHING(cairn_client_state)
{
    return cairn_client_state(a->job, NULL, 1, SHORT_MS, NULL, NULL);
}
GIVEN(cairn_snapshot)
{
    char id[64];
    return cairn_snapshot(a->job, 0, SHORT_MS, id);
}
NOTHING(cairn_snapshot)
{
    return cairn_snapshot(a->job, 0, SHORT_MS, NULL);
}

GIVEN(cairn_lease)
{
    struct cairn_version version = { 0, 0 };
    return cairn_lease(a->job, version, 1000, SHORT_MS, &version);
}
NOTHING(cairn_lease)
{
    const struct cairn_version version = { 0, 0 };
    return cairn_lease(a->job, version, 0, -1, NULL);
}
GIVEN(cairn_pause)
{
    return cairn_pause(a->job, "evaluating", SHORT_MS, SHORT_MS);
}
NOTHING(cairn_pause)
{
    return cairn_pause(a->job, NULL, SHORT_MS, SHORT_MS);
}
GIVEN(cairn_pause_end)
{
    return cairn_pause_end(a->job, SHORT_MS);
}
NOTHING(cairn_pause_end)
{
    return cairn_pause_end(a->job, -1);
}
GIVEN(cairn_lease_end)
{
    return cairn_lease_end(a->job, (struct cairn_version) { 1, 0 }, SHORT_MS);
}
NOTHING(cairn_lease_end)
{
    return cairn_lease_end(a->job, (struct cairn_version) { 1, 0 }, -1);
}

GIVEN(cairn_prefetch)
{
    const char *const units[] = { "a", "b", "scale" };
    return cairn_prefetch(a->job, (struct cairn_version) { 1, 0 }, units, 3);
}
NOTHING(cairn_prefetch)
{
    return cairn_prefetch(a->job, (struct cairn_version) { 1, 0 }, NULL, 1);
}
GIVEN(cairn_map)
{
    struct cairn_view views[2] = { { .struct_size = sizeof *views } };
    size_t count = 2;
    cairn_op *op;
    cairn_status status = cairn_map(a->job, (struct cairn_version) { 1, 0 }, "a", views, &count,
                                    &op);
    return status == CAIRN_OK ? cairn_wait(op, TOY_WAIT_MS) : status; // unmapped by the close
}
NOTHING(cairn_map)
{
    return cairn_map(a->job, (struct cairn_version) { 1, 0 }, NULL, NULL, NULL, NULL);
}
GIVEN(cairn_map_device)
{
    struct cairn_view views[4] = { { .struct_size = sizeof views[0] } };
    size_t count = 4;
    cairn_op *op;
    cairn_status status = cairn_map_device(a->job, (struct cairn_version) { 1, 0 }, "a", 0, views,
                                           &count, &op);
    return status == CAIRN_OK ? cairn_wait(op, TOY_WAIT_MS) : status; // unmapped by the close
}
NOTHING(cairn_map_device)
{
    return cairn_map_device(a->job, (struct cairn_version) { 1, 0 }, NULL, 0, NULL, NULL, NULL);
}
GIVEN(cairn_unmap)
{
    const struct cairn_view view = { .struct_size = sizeof view, .loan = 1 };
    return cairn_unmap(a->job, &view, NULL);
}
NOTHING(cairn_unmap)
{
    return cairn_unmap(a->job, NULL, NULL);
}

/* ---- of an operation ---- */

GIVEN(cairn_wait)
{
    return cairn_wait(a->op, SHORT_MS);
}
NOTHING(cairn_wait)
{
    return cairn_wait(a->op, -1);
}
GIVEN(cairn_stream_wait)
{
    return cairn_stream_wait(a->op, NULL);
}
NOTHING(cairn_stream_wait)
{
    return cairn_stream_wait(a->op, NULL);
}

GIVEN(cairn_wait_any)
{
    size_t index;
    cairn_op *const ops[] = { a->op };
    return a->op != NULL ? cairn_wait_any(ops, 1, SHORT_MS, &index, NULL)
                         : cairn_wait(NULL, SHORT_MS); // NULL is passed by
}
NOTHING(cairn_wait_any)
{
    (void)a;
    return cairn_wait_any(NULL, 0, -1, NULL, NULL);
}
GIVEN(cairn_op_set_user)
{
    return cairn_op_set_user(a->op, NULL);
}
NOTHING(cairn_op_set_user)
{
    return cairn_wait(a->op, -1); // nothing but the handle can be wrong
}
GIVEN(cairn_cancel)
{
    return cairn_cancel(a->op);
}
NOTHING(cairn_cancel)
{
    const struct cairn_mem mem = toy_mem(gradient, CAIRN_F32);
    cairn_op *op = NULL;
    if (a->job == NULL) return cairn_cancel(NULL);
    toy_good(cairn_push(a->job, &a->round, 0, "a.bias", NULL, &mem, &op));
    const cairn_status status = cairn_cancel(op); // of a push
    toy_good(cairn_wait(op, TOY_WAIT_MS));
    return status;
}

/* ---- of a list: what is given here is none ---- */

static const struct cairn_part *part(void)
{
    static struct cairn_part part = { .struct_size = sizeof part, .tensor = "a.weight" };
    part.mem = toy_mem(gradient, CAIRN_F32);
    return &part;
}

GIVEN(cairn_push_list)
{
    cairn_list *list = NULL;
    const cairn_status status = cairn_push_list(a->job, part(), 1, &list);
    cairn_list_close(list);
    return status;
}
NOTHING(cairn_push_list)
{
    return cairn_push_list(a->job, NULL, 0, NULL);
}
GIVEN(cairn_fetch_list)
{
    cairn_list *list = NULL;
    const cairn_status status = cairn_fetch_list(a->job, "param", part(), 1, &list);
    cairn_list_close(list);
    return status;
}
NOTHING(cairn_fetch_list)
{
    return cairn_fetch_list(a->job, NULL, NULL, 0, NULL);
}
GIVEN(cairn_push_many)
{
    return cairn_push_many((cairn_list *)a->op, &a->round, 0, NULL);
}
NOTHING(cairn_push_many)
{
    cairn_list *list = NULL;
    cairn_status status = cairn_push_list(a->job, part(), 1, &list);
    if (status == CAIRN_OK) status = cairn_push_many(list, NULL, 0, NULL);
    cairn_list_close(list);
    return status;
}
GIVEN(cairn_fetch_many)
{
    cairn_op *op;
    return cairn_fetch_many((cairn_list *)a->op, a->round.version, &op);
}
NOTHING(cairn_fetch_many)
{
    return cairn_fetch_many(NULL, a->round.version, NULL);
}
GIVEN(cairn_list_close)
{
    cairn_list_close((cairn_list *)a->op);
    return CAIRN_ERR_HANDLE; // it says nothing
}
NOTHING(cairn_list_close)
{
    return given_cairn_list_close(a);
}

/* ---- the table ---- */

enum handle { NONE, OF_SESSION, OF_JOB, OF_OP };
static const struct call {
    const char *name;
    enum handle handle;
    cairn_status (*given)(const struct arguments *);
    cairn_status (*nothing)(const struct arguments *);
} calls[] = {
#define CALL(name, handle)                          \
    {                                               \
#name, handle, given_##name, nothing_##name \
    }
    CALL(cairn_open, NONE),
    CALL(cairn_env_read, NONE),
    CALL(cairn_data_path, OF_SESSION),
    CALL(cairn_error, NONE),
    CALL(cairn_error_difference, NONE),
    CALL(cairn_status_name, NONE),
    CALL(cairn_version, NONE),
    CALL(cairn_micro_seed, NONE),
    CALL(cairn_close, OF_SESSION),
    CALL(cairn_event_fd, OF_SESSION),
    CALL(cairn_alloc, OF_SESSION),
    CALL(cairn_free, OF_SESSION),
    CALL(cairn_detach_memory, OF_SESSION),
    CALL(cairn_attach_memory, OF_SESSION),
    CALL(cairn_register, OF_SESSION),
    CALL(cairn_unregister, OF_SESSION),
    CALL(cairn_job_open, OF_SESSION),
    CALL(cairn_job_close, OF_JOB),
    CALL(cairn_job_list, OF_SESSION),
    CALL(cairn_job_drop, OF_SESSION),
    CALL(cairn_job_restore, OF_SESSION),
    CALL(cairn_job_stats, OF_JOB),
    CALL(cairn_job_describe, OF_JOB),
    CALL(cairn_job_tensor, OF_JOB),
    CALL(cairn_tiles, OF_JOB),
    CALL(cairn_job_amend, OF_JOB),
    CALL(cairn_put, OF_JOB),
    CALL(cairn_init_done, OF_JOB),
    CALL(cairn_round_begin, OF_JOB),
    CALL(cairn_push, OF_JOB),
    CALL(cairn_micro_end, OF_JOB),
    CALL(cairn_commit, OF_JOB),
    CALL(cairn_round_abandon, OF_JOB),
    CALL(cairn_group_lr, OF_JOB),
    CALL(cairn_write_begin, OF_JOB),
    CALL(cairn_write_end, OF_JOB),
    CALL(cairn_fetch, OF_JOB),
    CALL(cairn_version_wait, OF_JOB),
    CALL(cairn_client_state, OF_JOB),
    CALL(cairn_snapshot, OF_JOB),
    CALL(cairn_lease, OF_JOB),
    CALL(cairn_lease_end, OF_JOB),
    CALL(cairn_pause, OF_JOB),
    CALL(cairn_pause_end, OF_JOB),
    CALL(cairn_prefetch, OF_JOB),
    CALL(cairn_map, OF_JOB),
    CALL(cairn_map_device, OF_JOB),
    CALL(cairn_unmap, OF_JOB),
    CALL(cairn_wait, OF_OP),
    CALL(cairn_stream_wait, OF_OP),
    CALL(cairn_wait_any, OF_OP),
    CALL(cairn_op_set_user, OF_OP),
    CALL(cairn_cancel, OF_OP),
    CALL(cairn_push_list, OF_JOB),
    CALL(cairn_fetch_list, OF_JOB),
    CALL(cairn_push_many, OF_OP),
    CALL(cairn_fetch_many, OF_OP),
    CALL(cairn_list_close, OF_OP),
#undef CALL
};
enum { CALLS = sizeof calls / sizeof *calls };

static bool in_table(const char *name)
{
    for (int i = 0; i < CALLS; i++)
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
    ck_assert_int_eq(exported, CALLS);
}

SUITE(30);

/* ---- the scene ---- */

static struct rooms rooms;
static struct arguments live;
static float own[THREADS + 1][TOY_ELEMS];

static void open_rooms(void)
{
    const struct cairn_fabric_mem_options fabric = { .seed = 7 };
    const struct cairn_job_spec spec = toy_spec(0, 1);
    rooms_open(&rooms, 2, &fabric);
    live.session = toy_session(&rooms, "trainer");
    live.job = toy_ready(live.session, "toy", &spec);
    live.round = toy_begin(live.job);
    live.own = own[0];
    const struct cairn_mem mem = toy_mem(own[THREADS], CAIRN_F32);
    toy_good(cairn_fetch(live.job, live.round.version, "a.weight", NULL, NULL, &mem, &live.op));
}

static void close_rooms(void)
{
    cairn_close(live.session);
    rooms_close(&rooms);
}

/* ---- wrong, closed, NULL ---- */

static bool says_nothing(const struct call *call)
{
    return call->given == given_cairn_close || call->given == given_cairn_job_close ||
           call->given == given_cairn_list_close;
}

static void check_all(const struct arguments *a, const char *what)
{
    for (int i = 0; i < CALLS; i++) {
        if (calls[i].handle == NONE) continue;
        const cairn_status status = calls[i].given(a);
        ck_assert_msg(status == CAIRN_ERR_HANDLE, "%s with %s gave %d: %s", calls[i].name, what,
                      (int)status, cairn_error());
        if (!says_nothing(&calls[i])) ck_assert_ptr_nonnull(strstr(cairn_error(), "not an open"));
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
    toy_good(cairn_wait(live.op, TOY_WAIT_MS));
    struct arguments a = live;
    cairn_job_close(live.job);
    for (int i = 0; i < CALLS; i++)
        if (calls[i].handle == OF_JOB || calls[i].handle == OF_OP)
            ck_assert_msg(calls[i].given(&a) == CAIRN_ERR_HANDLE, "%s", calls[i].name);
    cairn_close(live.session);
    check_all(&a, "a closed handle");
}

TEST(a_session_that_is_closed_takes_its_jobs_with_it)
{
    toy_good(cairn_wait(live.op, TOY_WAIT_MS));
    cairn_close(live.session);
    check_all(&live, "the handle of a closed session");
}

TEST(nothing_given_is_an_error_that_says_something)
{
    const struct arguments none = with(NULL);
    for (int i = 0; i < CALLS; i++) {
        ck_assert_msg(calls[i].nothing(&none) != CAIRN_OK, "%s of nothing", calls[i].name);
        if (says_nothing(&calls[i]) || strcmp(calls[i].name, "cairn_event_fd") == 0 ||
            strcmp(calls[i].name, "cairn_data_path") == 0)
            continue;
        const cairn_status status = calls[i].nothing(&live);
        ck_assert_msg(status == CAIRN_ERR_INVALID || status == CAIRN_ERR_UNSUPPORTED,
                      "%s without its arguments gave %d: %s", calls[i].name, (int)status,
                      cairn_error());
        ck_assert_int_ne(cairn_error()[0], 0);
    }
    toy_good(cairn_wait(live.op, TOY_WAIT_MS));
    toy_commit(live.job, &live.round); // nothing of it did any harm
}

/* ---- at once ---- */

static atomic_int turns;

static void *call_all(void *arg)
{
    const struct arguments *a = arg;
    for (bool open = true; open;) {
        open = false;
        for (int i = 0; i < CALLS; i++) {
            if (calls[i].handle == NONE || says_nothing(&calls[i])) continue;
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

SUITE(100, open_rooms, close_rooms);
