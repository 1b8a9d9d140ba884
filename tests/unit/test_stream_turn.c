/* What one peer of a TCP stream can take of the loop's time and of its memory. */
#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>
#include <uv.h>

static uint64_t fake_ns; /* each look at the clock is so much later */

static uint64_t slow_hrtime(void)
{
    static uint64_t now_ns;
    return now_ns += fake_ns;
}
#define uv_hrtime slow_hrtime
#include "proto/loop/stream.c" // and what it holds of a peer
#undef uv_hrtime
#include "tests/support/keys.h"
#include "tests/support/suite.h"

#include <check.h>

static uv_loop_t loop;
static uv_tcp_t server;
static struct stream *far;
static struct channel *near; /* the peer's, whose socket is `fd` */
static struct byte_queue wire;
static int fd, frame_count, close_count;

static void count_frame(struct stream *stream, const struct wire_frame *frame, void *context)
{
    (void)stream;
    (void)frame;
    (void)context;
    frame_count++;
}

static void count_close(struct stream *stream, cairn_status status, const char *why, void *context)
{
    (void)stream;
    (void)status;
    (void)why;
    (void)context;
    close_count++;
    far = NULL;
}

static void accept_far(uv_stream_t *tcp, int error)
{
    static const struct stream_events events = { .on_frame = count_frame, .on_close = count_close };
    const struct stream_options options = { .limits = { 1, 90, CAIRN_FRAME_BYTES_MAX },
                                            .secure = keys_serve() };
    ck_assert_int_eq(error, 0);
    ck_assert_int_eq(stream_accept(tcp, &options, &events, NULL, &far, NULL), CAIRN_OK);
}

static void push(void)
{
    while (byte_queue_count(&wire) > 0) {
        const ssize_t sent = send(fd, wire.bytes + wire.start, byte_queue_count(&wire),
                                  MSG_DONTWAIT);
        if (sent > 0) byte_queue_drop(&wire, (size_t)sent);
        uv_run(&loop, UV_RUN_NOWAIT);
    }
}

static void set_up(void)
{
    struct sockaddr_in addr;
    int addr_bytes = sizeof addr;
    signal(SIGPIPE, SIG_IGN);
    fake_ns = 0;
    uv_loop_init(&loop);
    uv_tcp_init(&loop, &server);
    uv_ip4_addr("127.0.0.1", 0, &addr);
    ck_assert_int_eq(uv_tcp_bind(&server, (struct sockaddr *)&addr, 0), 0);
    ck_assert_int_eq(uv_listen((uv_stream_t *)&server, 4, accept_far), 0);
    ck_assert_int_eq(uv_tcp_getsockname(&server, (struct sockaddr *)&addr, &addr_bytes), 0);
    fd = socket(AF_INET, SOCK_STREAM, 0);
    ck_assert_int_eq(connect(fd, (struct sockaddr *)&addr, sizeof addr), 0);
    while (far == NULL) uv_run(&loop, UV_RUN_ONCE);
    ck_assert_int_eq(channel_open(keys_join(), &near), CAIRN_OK);
}

static void tear_down(void)
{
    if (far != NULL) stream_close(far, CAIRN_OK, "end of test");
    uv_close((uv_handle_t *)&server, NULL);
    uv_run(&loop, UV_RUN_DEFAULT);
    ck_assert_int_eq(uv_loop_close(&loop), 0);
    ck_assert_int_eq(close_count, 1);
    channel_close(near);
    byte_queue_release(&wire);
    close(fd);
}

static void shake_hands(void)
{
    struct byte_queue none = { 0 };
    struct sentence why;
    while (!channel_is_up(near)) {
        uint8_t bytes[CAIRN_HANDSHAKE_MOST_BYTES];
        size_t used;
        ck_assert_int_eq(channel_greet(near, &wire), CAIRN_OK);
        push();
        const ssize_t got = recv(fd, bytes, sizeof bytes, MSG_DONTWAIT);
        if (got > 0)
            ck_assert_int_eq(channel_take(near, bytes, (size_t)got, 1, &used, &none, &why),
                             CAIRN_OK);
        uv_run(&loop, UV_RUN_NOWAIT);
    }
    ck_assert_int_eq(channel_greet(near, &wire), CAIRN_OK);
    push();
    while (!channel_is_up(far->records.channel)) uv_run(&loop, UV_RUN_ONCE);
}

/* Seals a frame in records of `piece` bytes. */
static void seal_frame(size_t payload_bytes, size_t piece)
{
    static uint8_t frame[CAIRN_FRAME_BYTES_MAX];
    const size_t frame_bytes = CAIRN_FRAME_HEADER_BYTES + payload_bytes;
    frame_header_write(frame, 3, 1, (uint32_t)payload_bytes);
    for (size_t at = 0; at < frame_bytes; at += piece) {
        const size_t rest = frame_bytes - at;
        ck_assert_int_eq(channel_seal(near, frame + at, rest < piece ? rest : piece, 0, &wire),
                         CAIRN_OK);
    }
}

/* The clock is looked at after each record: one that brings little, and completes no frame, costs as much. */
TEST(many_small_records_take_many_turns)
{
    shake_hands();
    seal_frame(100, 1);
    ck_assert_int_gt(send(fd, wire.bytes + wire.start, byte_queue_count(&wire), 0), 0);
    byte_queue_drop(&wire, byte_queue_count(&wire));
    fake_ns = TURN_NS / 4;
    while (byte_queue_count(&far->records.arrived) == 0) uv_run(&loop, UV_RUN_ONCE);
    int turns = 1;
    for (; frame_count == 0; turns++) {
        ck_assert(is_waiting(far)); // and others have their turn
        uv_run(&loop, UV_RUN_NOWAIT);
    }
    ck_assert_int_ge(turns, 100 / 5);
}

TEST(a_stranger_has_little_memory)
{
    static const uint8_t bytes[CAIRN_HANDSHAKE_FIRST_BYTES - 1];
    ck_assert_int_eq(send(fd, "CAIRNSE1", 8, 0), 8);
    ck_assert_int_eq(send(fd, bytes, sizeof bytes - 8, 0), sizeof bytes - 8);
    while (far->records.arrived.capacity == 0) uv_run(&loop, UV_RUN_ONCE);
    ck_assert_uint_le(far->records.arrived.capacity, 512);
    ck_assert_uint_eq(far->decoder.capacity + far->records.plain.capacity, 0);
    ck_assert(!stream_is_proved(far));
    const size_t handshake_bytes = 2048; // which handshake.c asserts
    const size_t channel_bytes = 512;    // which channel.c asserts
    ck_assert_uint_le(far->records.arrived.capacity + far->records.sealed.capacity +
                          handshake_bytes + channel_bytes,
                      4096);
}

/* A heartbeat neither makes nor wipes a large buffer; a large frame leaves none behind. */
TEST(an_idle_peer_keeps_small_buffers)
{
    shake_hands();
    seal_frame(0, 100);
    push();
    while (frame_count < 1) uv_run(&loop, UV_RUN_ONCE);
    const uint8_t *arrived = far->records.arrived.bytes, *plain = far->records.plain.bytes;
    ck_assert_ptr_nonnull(arrived);
    seal_frame(0, 100);
    push();
    while (frame_count < 2) uv_run(&loop, UV_RUN_ONCE);
    ck_assert_ptr_eq(far->records.arrived.bytes, arrived);
    ck_assert_ptr_eq(far->records.plain.bytes, plain);
    seal_frame(1000000, CAIRN_RECORD_BYTES_MAX);
    push();
    while (frame_count < 3) uv_run(&loop, UV_RUN_ONCE);
    ck_assert_uint_le(far->records.arrived.capacity + far->records.plain.capacity, 4 * READ_BYTES);
}
SUITE(30, set_up, tear_down);
