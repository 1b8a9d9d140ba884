/* The inside of a stream, shared by stream.c (moving frames, the end) and stream.c (the beginning). */
#ifndef CAIRN_LOOP_STREAM_PRIVATE_H
#define CAIRN_LOOP_STREAM_PRIVATE_H

#include "proto/loop/stream.h"

enum stream_state {
    CAIRN_STREAM_CONNECTING, /* frames wait in `pending` */
    CAIRN_STREAM_OPEN,
    CAIRN_STREAM_FINISHING, /* what is queued goes out, what arrives is dropped */
    CAIRN_STREAM_CLOSING,   /* handles are being closed; on_close comes when `open_count` is 0 */
};

struct stream {
    /* owned */
    union {
        uv_handle_t handle;
        uv_stream_t stream;
        uv_tcp_t tcp;
        uv_pipe_t pipe;
    } io;
    uv_timer_t timer; /* of the connection's beginning, then of its end */
    uv_idle_t turn; /* runs while frames that arrived wait for the next turn, and nothing is read */
    struct frame_decoder decoder;
    struct outbox pending; /* grows while `writing` is with the kernel */
    struct outbox_frames writing;
    uv_write_t write;
    uv_connect_t connect;
    uv_shutdown_t shutdown;
    uv_getaddrinfo_t resolve;

    enum stream_state state;
    int open_count; /* io, timer, turn and resolve, as far as libuv still knows them */
    bool is_resolving;
    bool is_writing;
    bool is_shut;        /* our direction was ended (FINISHING) */
    bool peer_shut;      /* the peer's was */
    cairn_status status; /* the reason of the end, once there is one */
    struct sentence why;
    size_t send_queue_bytes;
    size_t room_bytes;      /* of `room` that the decoder has */
    uint64_t unfinished_ms; /* when the frame began that is not whole, of the loop's clock */
    uint64_t timeout_ms;
    char peer[CAIRN_ADDRESS_TEXT_BYTES];

    /* borrowed */
    struct stream_room *room; /* or NULL */
    struct stream_events events;
    void *context;
};

#endif
