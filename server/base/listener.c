#include "server/base/control_socket.h"
#include "server/base/listener_private.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define GRACE_MS         100 // a half-open peer keeps its place at least so long
#define UNFINISHED_BYTES (256u << 20)

static uint64_t now_ms(const struct cairn_listener *listener)
{
    return uv_now(listener->timer.loop);
}

static void watch_half_open(struct cairn_listener *listener);
static void accept_waiting(struct cairn_listener *listener);

// Half-open peers stand in order of arrival, so the first is the next one due.
static void on_half_open_due(uv_timer_t *timer)
{
    struct cairn_listener *listener = timer->data;
    const struct cairn_peer *oldest = listener->half_open_first;
    if (oldest != NULL && now_ms(listener) >= oldest->since_ms + listener->hello_timeout_ms)
        cairn_peer_close(listener->half_open_first, CAIRN_ERR_TIMEOUT, "no Hello within %llu ms",
                         (unsigned long long)listener->hello_timeout_ms);
    accept_waiting(listener);
    watch_half_open(listener);
}

static bool connection_waits(const struct cairn_listener *listener)
{
    for (size_t i = 0; i < listener->door_count; i++)
        if (listener->doors[i].connection_waits) return true;
    return false;
}

// Sets the timer to the moment when the oldest half-open peer must go, or may be pushed out.
static void watch_half_open(struct cairn_listener *listener)
{
    const struct cairn_peer *oldest = listener->half_open_first;
    if (listener->is_closing) return;
    if (oldest == NULL) {
        uv_timer_stop(&listener->timer);
        return;
    }
    const uint64_t life_ms = connection_waits(listener) ? GRACE_MS : listener->hello_timeout_ms;
    const uint64_t due_ms = oldest->since_ms + life_ms;
    const uint64_t now = now_ms(listener);
    uv_timer_start(&listener->timer, on_half_open_due, due_ms > now ? due_ms - now : 0, 0);
}

// False: none yet, the timer will see to it.
static bool make_place(struct cairn_listener *listener)
{
    struct cairn_peer *oldest = listener->half_open_first;
    if (listener->half_open_count < listener->half_open_max) return true;
    if (now_ms(listener) < oldest->since_ms + GRACE_MS) return false;
    cairn_log_limited(&listener->flood_limit, CAIRN_LOG_WARN,
                      "%zu connections have not said Hello: closing the oldest, %s",
                      listener->half_open_count, cairn_peer_name(oldest));
    cairn_peer_close(oldest, CAIRN_ERR_BUSY, "too many connections have not said Hello");
    return true;
}

// libuv holds one accepted connection of a door and polls for no other until we take it: so new ones
// wait in the kernel while all half-open places are taken.
static void accept_at(struct cairn_listener *listener, struct cairn_door *door)
{
    if (!door->connection_waits || listener->is_closing || !make_place(listener)) return;
    struct cairn_sentence why;
    const cairn_status status = cairn_peer_accept(door, &why);
    door->connection_waits = status == CAIRN_ERR_NO_MEMORY; // not taken: again later
    if (status != CAIRN_OK)
        cairn_log_limited(&listener->accept_limit, CAIRN_LOG_WARN, "%s", why.text);
}

static void accept_waiting(struct cairn_listener *listener)
{
    for (size_t i = 0; i < listener->door_count; i++) accept_at(listener, &listener->doors[i]);
}

void cairn_listener_on_connection(uv_stream_t *server, int error)
{
    struct cairn_door *door = server->data;
    if (error != 0) {
        cairn_log_limited(&door->listener->accept_limit, CAIRN_LOG_WARN,
                          "cannot accept a connection: %s", uv_strerror(error));
        return;
    }
    door->connection_waits = true;
    accept_at(door->listener, door);
    watch_half_open(door->listener);
}

void cairn_listener_place_freed(struct cairn_listener *listener)
{
    accept_waiting(listener);
    watch_half_open(listener);
}

static void free_when_empty(struct cairn_listener *listener)
{
    if (listener->open_handles > 0 || listener->peer_count > 0) return;
    void (*on_closed)(void *) = listener->on_closed;
    void *context = listener->context;
    free(listener);
    if (on_closed != NULL) on_closed(context);
}

static void handle_closed(struct cairn_listener *listener)
{
    listener->open_handles--;
    free_when_empty(listener);
}

static void on_timer_closed(uv_handle_t *handle)
{
    handle_closed(handle->data);
}

static void on_door_closed(uv_handle_t *handle)
{
    const struct cairn_door *door = handle->data;
    handle_closed(door->listener);
}

void cairn_listener_peer_gone(struct cairn_listener *listener)
{
    if (listener->is_closing)
        free_when_empty(listener);
    else
        cairn_listener_place_freed(listener);
}

static void close_handles(struct cairn_listener *listener)
{
    listener->is_closing = true;
    for (size_t i = 0; i < listener->door_count; i++)
        if (listener->doors[i].is_open) cairn_door_close(&listener->doors[i], on_door_closed);
    uv_close((uv_handle_t *)&listener->timer, on_timer_closed);
}

void cairn_listener_close(struct cairn_listener *listener, void (*on_closed)(void *context))
{
    if (listener->is_closing) return;
    listener->on_closed = on_closed;
    close_handles(listener);
    cairn_peer_close_all(listener);
}

// The next of the addresses in *at, between which blanks stand. False: there is none.
static bool next_address(const char **at, char one_out[CAIRN_ADDRESS_TEXT_BYTES])
{
    *at += strspn(*at, " ");
    const size_t length = strcspn(*at, " ");
    snprintf(one_out, CAIRN_ADDRESS_TEXT_BYTES, "%.*s", (int)length, *at);
    *at += length;
    return length > 0;
}

cairn_status cairn_listener_judge(const struct cairn_listener_options *options,
                                  struct cairn_sentence *why)
{
    char one[CAIRN_ADDRESS_TEXT_BYTES];
    size_t count = 0;
    for (const char *at = options->listen; next_address(&at, one);) {
        if (++count > CAIRN_LISTEN_MAX)
            return cairn_fail(why, CAIRN_ERR_CONFIG,
                              "listen in [network] has more than %d addresses", CAIRN_LISTEN_MAX);
        const cairn_status status = cairn_door_judge(one, options, why);
        if (status != CAIRN_OK) return status;
    }
    return CAIRN_OK;
}

static cairn_status open_doors(struct cairn_listener *listener, const char *text,
                               const struct cairn_listener_options *options,
                               struct cairn_sentence *why)
{
    char one[CAIRN_ADDRESS_TEXT_BYTES];
    while (next_address(&text, one)) {
        struct cairn_door *door = &listener->doors[listener->door_count++];
        door->listener = listener;
        const cairn_status status = cairn_door_open(door, one, options, why);
        listener->open_handles += door->is_open;
        if (status != CAIRN_OK) return status;
        const size_t length = strlen(listener->address);
        snprintf(listener->address + length, sizeof listener->address - length, "%s%s",
                 length > 0 ? " " : "", door->address);
    }
    return CAIRN_OK;
}

static cairn_status open_all(struct cairn_listener *listener,
                             const struct cairn_listener_options *options,
                             struct cairn_sentence *why)
{
    char place[CAIRN_ADDRESS_TEXT_BYTES];
    cairn_status status = cairn_listener_judge(options, why);
    if (status != CAIRN_OK) return status;
    if (options->listen[strspn(options->listen, " ")] != '\0')
        return open_doors(listener, options->listen, options, why);
    cairn_address_default(getenv("XDG_RUNTIME_DIR"), place);
    status = cairn_control_socket_folder(place, why);
    return status == CAIRN_OK ? open_doors(listener, place, options, why) : status;
}

static void on_room_full(void *context)
{
    cairn_peer_close_unfinished(context);
}

static void take_options(struct cairn_listener *listener,
                         const struct cairn_listener_options *options, uint16_t hello_type,
                         uint16_t type_max)
{
    listener->connections_max = (size_t)options->connections_max;
    listener->half_open_max = (size_t)options->half_open_max;
    listener->hello_timeout_ms = (uint64_t)options->hello_timeout_ms;
    listener->send_queue_bytes = (size_t)options->send_queue_bytes;
    listener->room = (struct cairn_stream_room) { .max_bytes = UNFINISHED_BYTES,
                                                  .on_full = on_room_full,
                                                  .context = listener };
    listener->before_hello = (struct cairn_frame_limits) { hello_type, hello_type,
                                                           CAIRN_FRAME_HELLO_BYTES };
    listener->after_hello = (struct cairn_frame_limits) { 1, type_max, CAIRN_FRAME_BYTES_MAX };
}

cairn_status cairn_listener_open(uv_loop_t *loop, const struct cairn_listener_options *options,
                                 uint16_t hello_type, uint16_t type_max,
                                 const struct cairn_listener_events *events, void *context,
                                 struct cairn_listener **listener_out, struct cairn_sentence *why)
{
    struct cairn_listener *listener = calloc(1, sizeof *listener);
    if (listener == NULL) return cairn_fail(why, CAIRN_ERR_NO_MEMORY, "no memory for a listener");
    take_options(listener, options, hello_type, type_max);
    listener->events = *events;
    listener->context = context;
    uv_timer_init(loop, &listener->timer);
    listener->timer.data = listener;
    listener->open_handles = 1;
    const cairn_status status = open_all(listener, options, why);
    if (status != CAIRN_OK) {
        close_handles(listener); // frees it in the next turn of the loop
        return status;
    }
    *listener_out = listener;
    return CAIRN_OK;
}

const char *cairn_listener_address(const struct cairn_listener *listener)
{
    return listener->address;
}
