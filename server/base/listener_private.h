/* The inside of a listener (listener.c: places), its doors (listener.c: one address each) and its
 * peers (listener.c:
 * one connection each). */
#ifndef CAIRN_BASE_LISTENER_PRIVATE_H
#define CAIRN_BASE_LISTENER_PRIVATE_H

#include "server/base/listener.h"
#include "server/base/log.h"

/* One accepted connection. It stands in exactly one of the listener's two lists until its end. */
struct cairn_peer {
    /* owned: the stream; peer and stream end together */
    struct stream *stream;
    struct cairn_peer *before; /* of the list it is in */
    struct cairn_peer *after;
    uint64_t since_ms; /* accepted at, of the loop's clock */
    bool is_half_open; /* in the list half_open, else in admitted */
    bool was_heard;    /* on_frame was called: on_gone is due */
    /* borrowed */
    struct listener *listener;
    void *context;
};

struct door {
    union {
        uv_handle_t handle;
        uv_stream_t stream;
        uv_tcp_t tcp;
        uv_pipe_t pipe;
    } io;
    bool is_open;          /* io is libuv's */
    bool is_made;          /* a socket, by us, at a path */
    bool connection_waits; /* libuv holds one that was not taken */
    char address[CAIRN_ADDRESS_TEXT_BYTES];
    struct control_socket made; /* if is_made; its fd is io's */
    struct listener *listener;  /* borrowed */
};

struct listener {
    struct door doors[CAIRN_LISTEN_MAX]; /* [door_count] */
    size_t door_count;
    uv_timer_t timer; /* runs only while there are half-open peers */
    int open_handles; /* of doors and timer, those whose close is not done */
    bool is_closing;
    char address[CAIRN_LISTEN_MAX * CAIRN_ADDRESS_TEXT_BYTES];

    /* owned: doubly linked, in order of arrival */
    struct cairn_peer *half_open_first;
    struct cairn_peer *half_open_last;
    struct cairn_peer *admitted_first;
    struct cairn_peer *admitted_last;
    size_t half_open_count;
    size_t peer_count; /* of both lists, and those whose end is not done */

    size_t connections_max;
    size_t half_open_max;
    uint64_t hello_timeout_ms;
    size_t send_queue_bytes;
    struct stream_room room; /* receive buffers of all peers */
    struct frame_limits before_hello;
    struct frame_limits after_hello;

    struct log_limit garbage_limit; /* one kind of warning each */
    struct log_limit silent_limit;
    struct log_limit flood_limit;
    struct log_limit full_limit;
    struct log_limit accept_limit;
    struct log_limit room_limit;

    /* borrowed */
    struct listener_events events;
    void (*on_closed)(void *context);
    void *context;
};

#endif
