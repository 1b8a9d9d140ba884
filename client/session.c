/* A session: its thread, its loop, its end. */
#include "client/session.h"

#include <assert.h>
#include <errno.h>
#include <signal.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#include "client/handle.h"
#include "client/mapped.h"
#include "client/memory.h"
#include "client/struct.h"

#define TICK_MS        50
#define PREFETCH_UNITS 2
#define STOP_MS        300 /* what is under way may end by itself for so long */
#define GOODBYE_MS     300
#define CONNECT_MS     10000

uint64_t cairn_client_now_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000 + (uint64_t)t.tv_nsec / 1000000;
}

void cairn_session_kick(struct session *s)
{
    pthread_mutex_lock(
        &s->lock); // after the end the loop is gone, and libuv aborts on a dead handle
    if (!s->ended) uv_async_send(&s->kick);
    pthread_mutex_unlock(&s->lock);
}

bool cairn_session_sleep(struct session *s, uint64_t deadline_ms)
{
    const struct timespec until = { .tv_sec = (time_t)(deadline_ms / 1000),
                                    .tv_nsec = (long)(deadline_ms % 1000) * 1000000 };
    return pthread_cond_timedwait(&s->changed, &s->lock, &until) != ETIMEDOUT;
}

void cairn_session_command(struct session *s, struct command *command)
{
    command->next = NULL;
    pthread_mutex_lock(&s->lock);
    const bool ended = s->ended;
    if (!ended && s->last_command != NULL)
        s->last_command->next = command;
    else if (!ended)
        s->first_command = command;
    if (!ended) s->last_command = command;
    pthread_mutex_unlock(&s->lock);
    if (ended) {
        if (command->op != NULL)
            cairn_op_part_end(command->op, CAIRN_ERR_CLOSED, "the session is closed");
        cairn_job_unref(command->job);
        free(command);
    }
    cairn_session_kick(s);
}

void cairn_session_unref(struct session *s)
{
    pthread_mutex_lock(&s->lock);
    const uint32_t left = --s->refs;
    pthread_mutex_unlock(&s->lock);
    if (left > 0) return;
    cairn_memory_release(s);
    pthread_mutex_destroy(&s->lock);
    pthread_cond_destroy(&s->changed);
    close(s->event_fd);
    free(s->name);
    free(s);
}

static void on_handle_free(void *object)
{
    cairn_session_unref(object);
}

/* ---- the thread ---- */

static void on_walk_close(uv_handle_t *handle, void *arg)
{
    (void)arg;
    if (!uv_is_closing(handle)) uv_close(handle, NULL);
}

/* Every loan comes back by it, those of a shard that is stopped, too. */
static void close_fabric(struct session *s)
{
    if (s->fabric == NULL) return;
    cairn_fabric_poll_close(&s->poll, NULL, NULL);
    cairn_mapped_release(s);
    cairn_fabric_close(s->fabric);
    s->fabric = NULL;
}

/* The coordinator does not read to the end of what we said. */
static void on_goodbye_late(uv_timer_t *tick)
{
    struct session *s = tick->data;
    if (s->stream != NULL) cairn_stream_close(s->stream, CAIRN_OK, "the session is closed");
    uv_close((uv_handle_t *)tick, NULL);
}

static void stop_loop(struct session *s)
{
    close_fabric(s);
    uv_close((uv_handle_t *)&s->kick, NULL);
    uv_timer_start(&s->tick, on_goodbye_late, GOODBYE_MS, 0);
    if (s->stream != NULL)
        cairn_stream_finish(s->stream, CAIRN_OK, "the session is closed");
    else
        uv_close((uv_handle_t *)&s->tick, NULL);
}

static void on_kick(uv_async_t *kick)
{
    struct session *s = kick->data;
    if (s->ended) return; // set by this thread
    cairn_memory_show(s);
    cairn_mapped_sweep(s);
    cairn_control_run(s);
    for (struct job *job = s->jobs; job != NULL; job = job->next) cairn_explain_awaited(job);
    if (s->stopping && s->jobs != NULL && cairn_client_now_ms() >= s->stop_by_ms) {
        close_fabric(s);
        cairn_control_run(s); // the jobs have their loans back, and go
    }
    pthread_mutex_lock(&s->lock);
    s->ended = s->stopping && s->jobs == NULL && s->first_command == NULL;
    if (s->ended) pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->lock);
    if (s->ended) stop_loop(s);
}

static void on_tick(uv_timer_t *tick)
{
    struct session *s = tick->data;
    cairn_control_tick(s);
    on_kick(&s->kick);
}

static void *session_thread(void *arg)
{
    struct session *s = arg;
    cairn_control_tick(s);
    uv_run(&s->loop, UV_RUN_DEFAULT);
    if (uv_loop_close(&s->loop) != 0) { // a stream that would not end: cut what is left
        uv_walk(&s->loop, on_walk_close, NULL);
        uv_run(&s->loop, UV_RUN_DEFAULT);
        uv_loop_close(&s->loop);
    }
    return NULL;
}

/* ---- open ---- */

/* Endpoint, fabric, device and host: of the options, of the environment, the defaults. */
static cairn_status read_environment(const struct cairn_opts *opts, struct cairn_env_report *report)
{
    const struct cairn_env_input input = {
        .get = cairn_env_get,
        .given = { [CAIRN_ENV_ENDPOINT] = { opts->endpoint, "cairn_opts.endpoint" },
                   [CAIRN_ENV_FABRIC] = { opts->fabric, "cairn_opts.fabric" },
                   [CAIRN_ENV_DEVICE] = { opts->fabric_device, "cairn_opts.fabric_device" } },
    };
    struct cairn_sentence why = { "" };
    const cairn_status status = cairn_env_find_cluster(&input, report, &why);
    return status == CAIRN_OK ? CAIRN_OK : cairn_client_fail(status, "%s", why.text);
}

/* As the coordinator judges it: it would close the connection. */
static bool name_ok(const char *name)
{
    if (name == NULL) return true;
    const size_t length = strlen(name);
    for (size_t i = 0; i < length; i++)
        if ((unsigned char)name[i] < 0x20 || name[i] == 0x7f) return false;
    return length > 0 && length <= CAIRN_NAME_MAX;
}

static char *own_name(const struct cairn_opts *opts)
{
    char text[320], host[200] = "?";
    if (opts->name != NULL) return strdup(opts->name);
    gethostname(host, sizeof host - 1);
    snprintf(text, sizeof text, "pid %ld on %s", (long)getpid(), host);
    return strdup(text);
}

static cairn_status open_fabric(struct session *s)
{
    struct cairn_sentence why = { "" };
    const cairn_status status = cairn_datapath_open(s, &why);
    return status == CAIRN_OK
               ? status
               : cairn_client_fail(status, "the data path cannot be opened: %s", why.text);
}

static cairn_status init_loop(struct session *s)
{
    int error = uv_loop_init(&s->loop);
    if (error != 0)
        return cairn_client_fail(CAIRN_ERR_NO_MEMORY, "no event loop: %s", uv_strerror(error));
    error = uv_async_init(&s->loop, &s->kick, on_kick);
    if (error == 0) error = uv_timer_init(&s->loop, &s->tick);
    if (error == 0) error = uv_timer_start(&s->tick, on_tick, TICK_MS, TICK_MS);
    s->kick.data = s->tick.data = s;
    if (error == 0 &&
        (s->fabric == NULL || cairn_fabric_poll_init(&s->poll, &s->loop, s->fabric, 0) == CAIRN_OK))
        return CAIRN_OK;
    uv_walk(&s->loop, on_walk_close, NULL);
    uv_run(&s->loop, UV_RUN_DEFAULT);
    uv_loop_close(&s->loop);
    return cairn_client_fail(CAIRN_ERR_NO_MEMORY, "no event loop: out of descriptors or memory");
}

static cairn_status init_shared(struct session *s, const struct cairn_opts *opts)
{
    s->event_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (s->event_fd < 0)
        return cairn_client_fail(CAIRN_ERR_NO_MEMORY, "no descriptor: %s", strerror(errno));
    pthread_condattr_t attr;
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&s->changed, &attr);
    pthread_condattr_destroy(&attr);
    pthread_mutex_init(&s->lock, NULL);
    s->refs = 1;
    s->away_since_ms = cairn_client_now_ms();
    s->name = own_name(opts);
    randombytes_buf(&s->incarnation, sizeof s->incarnation);
    return s->name != NULL ? CAIRN_OK : cairn_client_fail(CAIRN_ERR_NO_MEMORY, "out of memory");
}

static cairn_status start_thread(struct session *s)
{
    const int error = pthread_create(&s->thread, NULL, session_thread, s);
    return error == 0 ? CAIRN_OK
                      : cairn_client_fail(CAIRN_ERR_NO_MEMORY, "no thread: %s", strerror(error));
}

static cairn_status await_welcome(struct session *s)
{
    const uint64_t deadline_ms = cairn_client_now_ms() + s->connect_ms;
    pthread_mutex_lock(&s->lock);
    while (!s->welcome && !s->no_path && s->connect_status != CAIRN_ERR_VERSION &&
           cairn_session_sleep(s, deadline_ms)) {}
    const bool welcome = s->welcome;
    const cairn_status last = s->connect_status;
    const struct cairn_sentence why = s->connect_why;
    const bool no_path = s->no_path;
    pthread_mutex_unlock(&s->lock);
    if (welcome) return CAIRN_OK;
    if (no_path) return cairn_client_fail(last, "the data path cannot be opened: %s", why.text);
    if (last == CAIRN_ERR_VERSION) return cairn_client_fail(last, "%s", why.text);
    return cairn_client_fail(
        CAIRN_ERR_UNREACHABLE,
        "no coordinator answered at %s within %u ms (%s); is cairn-coordinator running "
        "there? The address comes from cairn_opts.endpoint or CAIRN_ENDPOINT, else it is a socket "
        "in $XDG_RUNTIME_DIR/cairn or /run/cairn",
        s->endpoint_text, s->connect_ms, why.text[0] != 0 ? why.text : "no answer");
}

static void stop_thread(struct session *s)
{
    s->stop_by_ms = cairn_client_now_ms() + STOP_MS;
    s->stopping = true;
    cairn_session_kick(s);
    pthread_join(s->thread, NULL);
}

static cairn_status open_inside(struct session *s)
{
    cairn_status status = open_fabric(s);
    if (status != CAIRN_OK) return status;
    status = init_loop(s);
    if (status == CAIRN_OK) {
        status = start_thread(s);
        if (status == CAIRN_OK) return CAIRN_OK;
        if (s->fabric != NULL) cairn_fabric_poll_close(&s->poll, NULL, NULL);
        uv_walk(&s->loop, on_walk_close, NULL);
        uv_run(&s->loop, UV_RUN_DEFAULT);
        uv_loop_close(&s->loop);
    }
    cairn_fabric_close(s->fabric);
    return status;
}

/* The library's threads, UCX's own included, take no signal of their host's. */
static cairn_status open_unsignaled(struct session *s)
{
    sigset_t all, old;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    cairn_status status = open_inside(s);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    return status;
}

cairn_status cairn_open(const struct cairn_opts *opts, cairn **out)
{
    return cairn_client_open(opts, NULL, out);
}

cairn_status cairn_client_open(const struct cairn_opts *opts, struct cairn_fabric_mem_hub *hub,
                               cairn **out)
{
    struct cairn_opts taken = { .struct_size = sizeof taken };
    if (out == NULL) return cairn_client_fail(CAIRN_ERR_INVALID, "out is NULL");
    if (opts != NULL &&
        !cairn_struct_take(&taken, sizeof taken, offsetof(struct cairn_opts, prefetch_units), opts))
        return cairn_client_fail(CAIRN_ERR_INVALID,
                                 "opts.struct_size is %zu, this library's is %zu (a larger struct "
                                 "must be 0 behind it)",
                                 opts->struct_size, sizeof taken);
    opts = &taken;
    if (opts->connect_timeout_ms < 0)
        return cairn_client_fail(CAIRN_ERR_INVALID, "opts.connect_timeout_ms is negative");
    if (!name_ok(opts->name))
        return cairn_client_fail(CAIRN_ERR_INVALID,
                                 "opts.name must have 1 to %d bytes without control characters",
                                 CAIRN_NAME_MAX);
    if (sodium_init() < 0) return cairn_client_fail(CAIRN_ERR_INTERNAL, "libsodium does not start");
    struct session *s = calloc(1, sizeof *s);
    if (s == NULL) return cairn_client_fail(CAIRN_ERR_NO_MEMORY, "out of memory");
    s->hub = hub;
    s->on_wait = opts->on_wait;
    s->on_wait_context = opts->on_wait_context;
    s->prefetch_units = opts->prefetch_units != 0 ? opts->prefetch_units : PREFETCH_UNITS;
    s->connect_ms = opts->connect_timeout_ms > 0 ? (uint32_t)opts->connect_timeout_ms : CONNECT_MS;
    cairn_status status = read_environment(opts, &s->env);
    if (status != CAIRN_OK) {
        free(s);
        return status;
    }
    status = cairn_address_parse(s->env.values[CAIRN_ENV_ENDPOINT].text, &s->endpoint, NULL);
    assert(status == CAIRN_OK); // judged above
    cairn_address_print(&s->endpoint, s->endpoint_text);
    status = init_shared(s, opts);
    if (status != CAIRN_OK) {
        free(s);
        return status;
    }
    status = open_unsignaled(s);
    if (status == CAIRN_OK) {
        status = await_welcome(s);
        if (status == CAIRN_OK) {
            s->handle = cairn_handle_open(CAIRN_HANDLE_SESSION, s, on_handle_free);
            if (s->handle == NULL)
                status = cairn_client_fail(CAIRN_ERR_NO_MEMORY, "too many handles");
        }
        if (status != CAIRN_OK) stop_thread(s);
    }
    if (status != CAIRN_OK) {
        cairn_session_unref(s);
        return status;
    }
    *out = s->handle;
    return CAIRN_OK;
}

/* ---- close ---- */

/* The handle of a job that is open; it is told to close. One that is being opened has no handle yet and
 * fails by `stopping`. */
static cairn_job *next_job(struct session *s)
{
    pthread_mutex_lock(&s->lock);
    cairn_job *handle = NULL;
    for (struct job *job = s->jobs; job != NULL && handle == NULL; job = job->next)
        if (!job->closing && job->handle != NULL) {
            job->closing = true;
            handle = job->handle;
        }
    pthread_mutex_unlock(&s->lock);
    return handle;
}

void cairn_close(cairn *handle)
{
    struct session *s = cairn_handle_get(CAIRN_HANDLE_SESSION, handle);
    if (s == NULL) return;
    if (cairn_handle_close(CAIRN_HANDLE_SESSION, handle)) {
        // Not one after the other: each may wait for a shard.
        for (cairn_job *job; (job = next_job(s)) != NULL;)
            (void)cairn_handle_close(CAIRN_HANDLE_JOB, job);
        stop_thread(s);
        cairn_memory_close(s);
    }
    cairn_handle_put(handle);
}

const char *cairn_data_path(const cairn *handle)
{
    struct session *s = cairn_handle_get(CAIRN_HANDLE_SESSION, handle);
    if (s == NULL) {
        cairn_client_fail(CAIRN_ERR_HANDLE, "not an open session");
        return NULL;
    }
    cairn_handle_put(handle);
    return s->data_path; // constant once it is open
}

int cairn_event_fd(const cairn *handle)
{
    struct session *s = cairn_handle_get(CAIRN_HANDLE_SESSION, handle);
    if (s == NULL) {
        cairn_client_fail(CAIRN_ERR_HANDLE, "not an open session");
        return -1;
    }
    const int fd = s->event_fd;
    cairn_handle_put(handle);
    return fd;
}
