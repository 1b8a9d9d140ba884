#include "client/loop/loop.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>

#include "client/device/card.h"
#include "client/device/import.h"
#include "client/job.h"
#include "client/op.h"
#include "client/push/stage.h"
#include "proto/base/at_hand.h"

#define DESCRIPTORS 32 /* that a session opens at most before it is welcome; 21 were counted */
#define THREADS     2  /* ours, and UCX's */
#define TICK_MS     50
#define SOON_MS     1   /* an event of a stream tells nobody */
#define STOP_MS     300 /* what is under way may end by itself for so long */
#define GOODBYE_MS  300
#define STREAMS_MS  1000 /* then a stream may hold up this thread, and is let go */

/* ---- the thread ---- */

static void on_walk_close(uv_handle_t *handle, void *arg)
{
    (void)arg;
    if (!uv_is_closing(handle)) uv_close(handle, NULL);
}

/* Whatever is open in it is closed. */
static void cut_loop(struct session *s)
{
    uv_walk(&s->loop.uv, on_walk_close, NULL);
    uv_run(&s->loop.uv, UV_RUN_DEFAULT);
    uv_loop_close(&s->loop.uv);
}

/* The coordinator does not read to the end of what we said. */
static void on_goodbye_late(uv_timer_t *tick)
{
    struct session *s = tick->data;
    if (s->control.stream != NULL)
        cairn_stream_close(s->control.stream, CAIRN_OK, "the session is closed");
    uv_close((uv_handle_t *)tick, NULL);
}

static void stop_loop(struct session *s)
{
    cairn_datapath_close(s);
    uv_close((uv_handle_t *)&s->loop.kick, NULL);
    uv_close((uv_handle_t *)&s->loop.soon, NULL);
    uv_close((uv_handle_t *)&s->loop.rest, NULL);
    uv_timer_start(&s->loop.tick, on_goodbye_late, GOODBYE_MS, 0);
    if (s->control.stream != NULL)
        cairn_stream_finish(s->control.stream, CAIRN_OK, "the session is closed");
    else
        uv_close((uv_handle_t *)&s->loop.tick, NULL);
}

/* Maps what was put off while a stream waited. */
static void map_late(struct session *s)
{
    if (!cairn_card_imports_wait(s->imports) || !cairn_card_change_begin()) return;
    cairn_card_imports_turn(s->imports);
    cairn_card_change_end();
    cairn_mapped_settle(s);
}

static void on_kick(uv_async_t *kick)
{
    struct session *s = kick->data;
    if (s->ended) return; // set by this thread
    cairn_memory_show(s);
    cairn_mapped_sweep(s);
    map_late(s);
    cairn_detach_turn(s);
    cairn_turn_run(s);
    for (struct job *job = s->jobs; job != NULL; job = job->next) cairn_explain_awaited(job);
    if (s->loop.stopping && s->jobs != NULL && cairn_client_now_ms() >= s->loop.stop_by_ms) {
        cairn_datapath_close(s);
        cairn_turn_run(s); // the jobs have their loans back, and go
    }
    pthread_mutex_lock(&s->lock);
    s->ended = s->loop.stopping && s->jobs == NULL && s->commands.first == NULL;
    if (s->ended) pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->lock);
    if (s->ended) stop_loop(s);
}

static void on_rest(uv_prepare_t *rest)
{
    struct session *s = rest->data;
    for (struct job *job = s->jobs; job != NULL; job = job->next) cairn_stage_settle(job);
    cairn_session_wake_due(s);
}

static void on_tick(uv_timer_t *tick)
{
    struct session *s = tick->data;
    cairn_control_tick(s);
    on_kick(&s->loop.kick);
}

static void on_soon(uv_timer_t *soon)
{
    on_kick(&((struct session *)soon->data)->loop.kick);
}

void cairn_loop_look_soon(struct session *s, bool looks)
{
    if (looks == (uv_is_active((uv_handle_t *)&s->loop.soon) != 0)) return;
    if (looks)
        uv_timer_start(&s->loop.soon, on_soon, SOON_MS, SOON_MS);
    else
        uv_timer_stop(&s->loop.soon);
}

static void *session_thread(void *arg)
{
    struct session *s = arg;
    cairn_control_tick(s);
    uv_run(&s->loop.uv, UV_RUN_DEFAULT);
    if (uv_loop_close(&s->loop.uv) != 0) cut_loop(s); // a stream that would not end
    return NULL;
}

/* ---- its beginning and end ---- */

/* Judges whether a session's descriptors and threads can be had, before libraries take them;
 * proto/base/at_hand.h says why. */
static cairn_status find_room(const struct session *s)
{
    struct cairn_sentence why = { "" };
    cairn_status status = cairn_descriptors_at_hand(s->event_fd, DESCRIPTORS, "a session", &why);
    if (status == CAIRN_OK) status = cairn_threads_at_hand(THREADS, "a session", &why);
    return status == CAIRN_OK ? CAIRN_OK : cairn_client_fail(status, "%s", why.text);
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
    int error = uv_loop_init(&s->loop.uv);
    if (error != 0)
        return cairn_client_fail(CAIRN_ERR_NO_MEMORY, "no event loop: %s", uv_strerror(error));
    error = uv_async_init(&s->loop.uv, &s->loop.kick, on_kick);
    if (error == 0) error = uv_timer_init(&s->loop.uv, &s->loop.tick);
    if (error == 0) error = uv_timer_init(&s->loop.uv, &s->loop.soon);
    if (error == 0) error = uv_timer_start(&s->loop.tick, on_tick, TICK_MS, TICK_MS);
    if (error == 0) error = uv_prepare_init(&s->loop.uv, &s->loop.rest);
    if (error == 0) error = uv_prepare_start(&s->loop.rest, on_rest);
    s->loop.kick.data = s->loop.tick.data = s->loop.soon.data = s->loop.rest.data = s;
    if (error == 0 &&
        (s->path.fabric == NULL ||
         cairn_fabric_poll_init(&s->path.poll, &s->loop.uv, s->path.fabric, 0) == CAIRN_OK))
        return CAIRN_OK;
    cut_loop(s);
    return cairn_client_fail(CAIRN_ERR_NO_MEMORY, "no event loop: out of descriptors or memory");
}

static cairn_status start_thread(struct session *s)
{
    const int error = pthread_create(&s->loop.thread, NULL, session_thread, s);
    return error == 0 ? CAIRN_OK
                      : cairn_client_fail(CAIRN_ERR_NO_MEMORY, "no thread: %s", strerror(error));
}

static cairn_status open_inside(struct session *s)
{
    cairn_status status = open_fabric(s);
    if (status != CAIRN_OK) return status;
    status = init_loop(s);
    if (status == CAIRN_OK) {
        status = start_thread(s);
        if (status == CAIRN_OK) return CAIRN_OK;
        if (s->path.fabric != NULL) cairn_fabric_poll_close(&s->path.poll, NULL, NULL);
        cut_loop(s);
    }
    cairn_fabric_close(s->path.fabric);
    return status;
}

/* The library's threads, UCX's own included, take no signal of their host's. */
cairn_status cairn_loop_start(struct session *s)
{
    sigset_t all, old;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    cairn_status status = find_room(s);
    if (status == CAIRN_OK) status = open_inside(s);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    return status;
}

void cairn_loop_stop(struct session *s)
{
    s->loop.stop_by_ms = cairn_client_now_ms() + STOP_MS;
    s->loop.stopping = true;
    cairn_streams_close_at(s, cairn_client_now_ms() + STREAMS_MS);
    cairn_session_kick(s);
    pthread_join(s->loop.thread, NULL);
    cairn_streams_end(s);
}
