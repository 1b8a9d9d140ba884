/* A man in the middle of a connection over TCP, by a seed: he changes, drops, repeats, invents and cuts off
 * what he passes on. Each end hears nothing but the frames that the other one has said, in their order, from
 * the first one on; and both ends end. */
#include <check.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "proto/loop/loop.h"
#include "proto/wire/wire.h"
#include "tests/support/keys.h"
#include "tests/support/random.h"
#include "tests/support/suite.h"

enum { FRAMES = 40, PAYLOAD_MAX = 3000, CHUNK_BYTES = 700, KEPT_MAX = 32, SEEDS = 300 };

static uv_loop_t loop;
static uint64_t seed_now;

/* ==== the ends ==== */

struct end {
    struct stream *stream;
    int number; /* 0: connects, 1: accepts */
    int heard;  /* frames */
    int opened, closed;
    cairn_status status;
};
static struct end ends[2];

static void holds(bool condition, const char *what)
{
    if (!condition) ck_abort_msg("seed %llu: %s", (unsigned long long)seed_now, what);
}

/* Frame `index` of an end, which the other one can make up as well. */
static size_t payload_of(int end, int index, uint8_t *out)
{
    uint64_t state = seed_now * 1000003 + (uint64_t)(end * FRAMES + index);
    const size_t count = (size_t)(state * 0x9e3779b97f4a7c15u >> 32) % PAYLOAD_MAX;
    for (size_t i = 0; i < count; i++) out[i] = (uint8_t)((state += 0x9e3779b97f4a7c15u) >> 56);
    return count;
}

static void say_all(struct end *end)
{
    uint8_t payload[PAYLOAD_MAX];
    for (int i = 0; i < FRAMES; i++) {
        const size_t count = payload_of(end->number, i, payload);
        ck_assert_int_eq(stream_send_bytes(end->stream, 3, (uint32_t)i + 1, payload, count, NULL),
                         CAIRN_OK);
    }
}

static void on_open(struct stream *stream, void *context)
{
    struct end *end = context;
    (void)stream;
    end->opened++;
    if (end->number == 1) say_all(end);
}

static void on_frame(struct stream *stream, const struct wire_frame *frame, void *context)
{
    struct end *end = context;
    uint8_t payload[PAYLOAD_MAX];
    (void)stream;
    holds(end->opened == 1 && end->heard < FRAMES, "a frame too many was heard");
    const size_t count = payload_of(1 - end->number, end->heard, payload);
    holds(frame->type == 3 && frame->request == (uint32_t)++end->heard, "another frame was heard");
    holds(frame->payload_bytes == count && memcmp(frame->payload, payload, count) == 0,
          "a frame was heard that was not said");
}

static void on_close(struct stream *stream, cairn_status status, const char *why, void *context)
{
    struct end *end = context;
    (void)stream;
    (void)why;
    end->closed++;
    end->status = status;
    end->stream = NULL;
}

static const struct stream_events events = { .on_open = on_open,
                                             .on_frame = on_frame,
                                             .on_close = on_close };

/* ==== the man ==== */

struct side {
    uv_tcp_t tcp;
    bool is_up; /* else nothing is written to it */
};

struct chunk {
    uv_write_t write;
    size_t count;
    char bytes[2 * CHUNK_BYTES];
};

static struct man {
    uv_tcp_t listener;    /* to which the first end connects */
    uv_tcp_t server;      /* of the second end */
    struct side sides[2]; /* towards the first end, and towards the second */
    uv_connect_t connect;
    uv_timer_t patience; /* he cuts off what stands still */
    struct chunk kept[KEPT_MAX];
    uint64_t kept_count;
    uint64_t one_in; /* how seldom he meddles; 0: never */
    bool touched;
} man;

static void cut(void)
{
    for (int i = 0; i < 2; i++) {
        if (man.sides[i].is_up) uv_close((uv_handle_t *)&man.sides[i].tcp, NULL);
        man.sides[i].is_up = false;
    }
}

static void on_patience(uv_timer_t *timer)
{
    (void)timer;
    if (man.touched) cut();
}

static void on_written(uv_write_t *write, int error)
{
    (void)error;
    free(write->data);
}

static void pass(struct side *to, const struct chunk *chunk)
{
    struct chunk *copy = malloc(sizeof *copy);
    if (!to->is_up || chunk->count == 0) {
        free(copy);
        return;
    }
    *copy = *chunk;
    copy->write.data = copy;
    const uv_buf_t buf = uv_buf_init(copy->bytes, (unsigned)copy->count);
    if (uv_write(&copy->write, (uv_stream_t *)&to->tcp, &buf, 1, on_written) != 0) free(copy);
}

/* Does something to a chunk. False: he cuts the connection. */
static bool meddle(struct chunk *chunk)
{
    const uint64_t those = man.kept_count < KEPT_MAX ? man.kept_count : KEPT_MAX;
    man.touched = true;
    switch (random_below(7)) {
    case 0: chunk->bytes[random_below(chunk->count)] ^= (char)(1 << random_below(7)); break;
    case 1: chunk->count = 0; break;
    case 2: chunk->count -= random_below(chunk->count); break;
    case 3:
        memcpy(chunk->bytes + chunk->count, chunk->bytes, chunk->count);
        chunk->count *= 2;
        break;
    case 4: *chunk = man.kept[random_below(those)]; break;
    case 5:
        for (size_t i = 0; i < chunk->count; i++) chunk->bytes[i] = (char)random_next();
        break;
    default: return false;
    }
    return true;
}

static void on_room(uv_handle_t *handle, size_t wanted, uv_buf_t *buf)
{
    static char room[CHUNK_BYTES];
    (void)handle;
    (void)wanted;
    *buf = uv_buf_init(room, sizeof room);
}

static void on_read(uv_stream_t *from, ssize_t got, const uv_buf_t *buf)
{
    struct side *to = &man.sides[from == (uv_stream_t *)&man.sides[0].tcp ? 1 : 0];
    uv_timer_start(&man.patience, on_patience, 5, 0);
    if (got <= 0) {
        if (got < 0) cut();
        return;
    }
    struct chunk chunk = { .count = (size_t)got };
    memcpy(chunk.bytes, buf->base, chunk.count);
    man.kept[man.kept_count++ % KEPT_MAX] = chunk;
    if (man.one_in > 0 && random_below(man.one_in) == 0 && !meddle(&chunk))
        cut();
    else
        pass(to, &chunk);
}

static void on_connected(uv_connect_t *connect, int error)
{
    (void)connect;
    if (error != 0 || !man.sides[0].is_up) return;
    man.sides[1].is_up = true;
    for (int i = 0; i < 2; i++) uv_read_start((uv_stream_t *)&man.sides[i].tcp, on_room, on_read);
}

static uint16_t listen_at(uv_tcp_t *tcp, uv_connection_cb on_connection)
{
    struct sockaddr_in address;
    int bytes = sizeof address;
    uv_tcp_init(&loop, tcp);
    uv_ip4_addr("127.0.0.1", 0, &address);
    ck_assert_int_eq(uv_tcp_bind(tcp, (struct sockaddr *)&address, 0), 0);
    ck_assert_int_eq(uv_listen((uv_stream_t *)tcp, 16, on_connection), 0);
    ck_assert_int_eq(uv_tcp_getsockname(tcp, (struct sockaddr *)&address, &bytes), 0);
    return ntohs(address.sin_port);
}

static uint16_t server_port;

static void on_first_end(uv_stream_t *listener, int error)
{
    struct sockaddr_in address;
    ck_assert_int_eq(error, 0);
    uv_ip4_addr("127.0.0.1", server_port, &address);
    for (int i = 0; i < 2; i++) uv_tcp_init(&loop, &man.sides[i].tcp);
    ck_assert_int_eq(uv_accept(listener, (uv_stream_t *)&man.sides[0].tcp), 0);
    man.sides[0].is_up = true;
    ck_assert_int_eq(
        uv_tcp_connect(&man.connect, &man.sides[1].tcp, (struct sockaddr *)&address, on_connected),
        0);
}

static void on_second_end(uv_stream_t *server, int error)
{
    const struct stream_options options = { .limits = { 1, 90, CAIRN_FRAME_BYTES_MAX },
                                            .secure = keys_serve() };
    ck_assert_int_eq(error, 0);
    ck_assert_int_eq(stream_accept(server, &options, &events, &ends[1], &ends[1].stream, NULL),
                     CAIRN_OK);
}

/* ==== one seed ==== */

static bool is_over(void)
{
    const bool all = ends[0].heard == FRAMES && ends[1].heard == FRAMES;
    return all || ends[0].closed + ends[1].closed > 0;
}

static void run(uint64_t seed)
{
    struct stream_address address = { .host = "127.0.0.1" };
    const struct stream_options options = { .limits = { 1, 90, CAIRN_FRAME_BYTES_MAX },
                                            .secure = keys_join() };
    random_state = seed_now = seed;
    man.touched = false;
    man.kept_count = 0;
    man.one_in = seed % 8 == 0 ? 0 : 1 + random_below(150);
    for (int i = 0; i < 2; i++) ends[i] = (struct end) { .number = i };
    address.port = listen_at(&man.listener, on_first_end);
    server_port = listen_at(&man.server, on_second_end);
    uv_timer_init(&loop, &man.patience);
    ck_assert_int_eq(
        stream_connect(&loop, &address, 5000, &options, &events, &ends[0], &ends[0].stream, NULL),
        CAIRN_OK);
    say_all(&ends[0]);
    while (!is_over()) uv_run(&loop, UV_RUN_ONCE);
    holds(man.touched || (ends[0].heard == FRAMES && ends[1].heard == FRAMES),
          "frames that nobody touched did not arrive");
    cut();
    for (int i = 0; i < 2; i++)
        if (ends[i].stream != NULL) stream_close(ends[i].stream, CAIRN_OK, "over");
    uv_close((uv_handle_t *)&man.listener, NULL);
    uv_close((uv_handle_t *)&man.server, NULL);
    uv_close((uv_handle_t *)&man.patience, NULL);
    uv_run(&loop, UV_RUN_DEFAULT);
}

TEST(a_man_in_the_middle_of_a_stream_gains_nothing)
{
    int torn = 0, whole = 0;
    signal(SIGPIPE, SIG_IGN);
    ck_assert_int_eq(uv_loop_init(&loop), 0);
    for (uint64_t seed = 1; seed <= SEEDS; seed++) {
        mark_point();
        run(seed);
        torn += ends[0].heard < FRAMES || ends[1].heard < FRAMES;
        whole += ends[0].heard == FRAMES && ends[1].heard == FRAMES;
    }
    ck_assert_int_eq(uv_loop_close(&loop), 0);
    ck_assert_int_gt(torn, SEEDS / 4);
    ck_assert_int_gt(whole, SEEDS / 20);
}
SUITE(60);
