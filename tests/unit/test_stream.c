#include "client/admin.h"
#include "proto/loop/loop.h"
#include "proto/wire/wire.h"
#include "tests/support/keys.h"
#include "tests/support/scratch.h"
#include "tests/support/suite.h"

#include <arpa/inet.h>
#include <check.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <netdb.h>
#include <semaphore.h>
#include <netinet/in.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static struct stream_options plain = { .limits = { 1, 90, CAIRN_FRAME_BYTES_MAX } };

// What one end of a connection saw.
struct end {
    struct stream *stream;
    int open_count;
    int frame_count;
    int close_count;
    int out_of_order; // frames whose request id was not the next one
    size_t payload_bytes;
    cairn_status status;
    char why[CAIRN_SENTENCE_BYTES];
    char last[64];
    int echo;            // answers each frame with the same
    int close_on;        // closes at this frame
    uint64_t work_ns;    // each frame costs so much
    struct paged *paged; // takes the pages
};

static uv_loop_t loop;
static uv_tcp_t server_tcp;
static uv_pipe_t server_pipe;
static uv_timer_t watch; // the test's own end of patience
static struct end near;
static struct end far;
static struct stream_options far_options;
static struct stream_address address;
static char folder[CAIRN_SCRATCH_BYTES];

static void on_open(struct stream *stream, void *context)
{
    struct end *end = context;
    ck_assert_ptr_eq(stream, end->stream);
    end->open_count++;
}

static void take_page(struct paged *paged, const struct wire_frame *frame)
{
    ProtobufCMessage *page = message_unpack(&cairn__page__descriptor, frame->payload,
                                            frame->payload_bytes);
    ck_assert_ptr_nonnull(page);
    ck_assert_int_eq(paged_add(paged, 1, (const Cairn__Page *)page), CAIRN_OK);
    protobuf_c_message_free_unpacked(page, NULL);
}

static void on_frame(struct stream *stream, const struct wire_frame *frame, void *context)
{
    struct end *end = context;
    if (end->paged != NULL && frame->type == CAIRN_MSG_PAGE) take_page(end->paged, frame);
    ck_assert_int_eq(end->close_count, 0);
    end->frame_count++;
    end->out_of_order += frame->request != (uint32_t)end->frame_count;
    end->payload_bytes += frame->payload_bytes;
    snprintf(end->last, sizeof end->last, "%.*s",
             (int)(frame->payload_bytes < 60 ? frame->payload_bytes : 60),
             (const char *)frame->payload);
    if (end->echo)
        ck_assert_int_eq(stream_send_bytes(stream, frame->type, frame->request, frame->payload,
                                           frame->payload_bytes, NULL),
                         CAIRN_OK);
    for (const uint64_t begin = uv_hrtime(); uv_hrtime() - begin < end->work_ns;) {}
    if (end->close_on == end->frame_count) stream_close(stream, CAIRN_OK, "enough");
}

static void on_close(struct stream *stream, cairn_status status, const char *why, void *context)
{
    struct end *end = context;
    ck_assert_ptr_eq(stream, end->stream);
    end->close_count++;
    end->status = status;
    snprintf(end->why, sizeof end->why, "%s", why);
    end->stream = NULL;
}

static const struct stream_events events = { .on_open = on_open,
                                             .on_frame = on_frame,
                                             .on_close = on_close };

static void on_connection(uv_stream_t *server, int error)
{
    ck_assert_int_eq(error, 0);
    far_options.secure = server == (uv_stream_t *)&server_tcp ? keys_serve() : NULL;
    ck_assert_int_eq(stream_accept(server, &far_options, &events, &far, &far.stream, NULL),
                     CAIRN_OK);
}

static void on_patience_end(uv_timer_t *timer)
{
    (void)timer;
    ck_abort_msg("it took too long");
}

static void set_up(void)
{
    struct sockaddr_in addr;
    int addr_bytes = sizeof addr;
    signal(SIGPIPE, SIG_IGN);
    uv_loop_init(&loop);
    uv_tcp_init(&loop, &server_tcp);
    uv_pipe_init(&loop, &server_pipe, 0);
    uv_timer_init(&loop, &watch);
    uv_timer_start(&watch, on_patience_end, 20000, 0);
    uv_ip4_addr("127.0.0.1", 0, &addr);
    ck_assert_int_eq(uv_tcp_bind(&server_tcp, (struct sockaddr *)&addr, 0), 0);
    ck_assert_int_eq(uv_listen((uv_stream_t *)&server_tcp, 16, on_connection), 0);
    ck_assert_int_eq(uv_tcp_getsockname(&server_tcp, (struct sockaddr *)&addr, &addr_bytes), 0);
    snprintf(address.host, sizeof address.host, "127.0.0.1");
    address.port = ntohs(addr.sin_port);
    plain.secure = keys_join();
    far_options = plain;
    cairn_scratch_make(folder);
}

/* ---- the name service ---- */

/* What the name "several" has, in this order, for libuv, too, which calls this getaddrinfo. */
static const char *several[16];
static bool is_slow; /* it answers when the test says so */
static sem_t may_answer;

static struct addrinfo *addrinfo_of(const char *text, const char *port)
{
    struct addrinfo *item = calloc(1,
                                   sizeof *item + sizeof(struct sockaddr_in6)); // as glibc has it
    struct sockaddr_in *v4 = (struct sockaddr_in *)(item + 1);
    struct sockaddr_in6 *v6 = (struct sockaddr_in6 *)(item + 1);
    const bool is_v6 = strchr(text, ':') != NULL;
    item->ai_socktype = SOCK_STREAM;
    item->ai_family = is_v6 ? AF_INET6 : AF_INET;
    item->ai_addrlen = is_v6 ? sizeof *v6 : sizeof *v4;
    item->ai_addr = (struct sockaddr *)(item + 1);
    if (is_v6)
        ck_assert_int_eq(uv_ip6_addr(text, atoi(port), v6), 0);
    else
        ck_assert_int_eq(uv_ip4_addr(text, atoi(port), v4), 0);
    return item;
}

__attribute__((visibility("default"))) int getaddrinfo(const char *host, const char *port,
                                                       const struct addrinfo *hints,
                                                       struct addrinfo **found)
{
    typedef int resolve_fn(const char *, const char *, const struct addrinfo *, struct addrinfo **);
    resolve_fn *real;
    *(void **)&real = dlsym(RTLD_NEXT, "getaddrinfo");
    if (host == NULL || strcmp(host, "several") != 0) return real(host, port, hints, found);
    if (is_slow) sem_wait(&may_answer);
    for (size_t i = 0; several[i] != NULL; i++, found = &(*found)->ai_next)
        *found = addrinfo_of(several[i], port);
    *found = NULL;
    return 0;
}

// The last line of each test: everything is closed, the loop is empty.
static void tear_down(void)
{
    if (near.stream != NULL) stream_close(near.stream, CAIRN_OK, "end of test");
    if (far.stream != NULL) stream_close(far.stream, CAIRN_OK, "end of test");
    uv_close((uv_handle_t *)&server_tcp, NULL);
    uv_close((uv_handle_t *)&server_pipe, NULL);
    uv_close((uv_handle_t *)&watch, NULL);
    uv_run(&loop, UV_RUN_DEFAULT);
    ck_assert_int_eq(uv_loop_close(&loop), 0);
    ck_assert_ptr_null(near.stream);
    ck_assert_ptr_null(far.stream);
    cairn_scratch_remove(folder);
}

static void connect_near(const struct stream_options *options)
{
    struct sentence why;
    ck_assert_msg(stream_connect(&loop, &address, 5000, options, &events, &near, &near.stream,
                                 &why) == CAIRN_OK,
                  "%s", why.text);
    ck_assert_int_eq(near.close_count, 0); // never from inside the call
}

#define run_until(condition)                             \
    do {                                                 \
        while (!(condition)) uv_run(&loop, UV_RUN_ONCE); \
    } while (0)

/* It has ended once, with this status and a sentence that has the word. */
static void expect_end(struct end *end, cairn_status status, const char *word)
{
    run_until(end->close_count == 1);
    ck_assert_int_eq(end->status, status);
    ck_assert_msg(strstr(end->why, word) != NULL, "%s", end->why);
}

static void send_near(uint32_t request, const void *payload, size_t payload_bytes)
{
    ck_assert_int_eq(stream_send_bytes(near.stream, 3, request, payload, payload_bytes, NULL),
                     CAIRN_OK);
}

TEST(frames_arrive_whole_and_in_order_both_ways)
{
    static uint8_t payload[60000];
    uint64_t seed = 1;
    size_t sent_bytes = 0;
    far.echo = 1;
    connect_near(&plain);
    for (uint32_t i = 1; i <= 2000; i++) { // the first ones before the connection stands
        const size_t n = i % 100 == 0 ? sizeof payload : cairn_scratch_random(&seed) % 300;
        send_near(i, payload, n);
        sent_bytes += n;
        if (i % 50 == 0) run_until(far.frame_count >= (int)i - 20);
    }
    run_until(near.frame_count == 2000);
    ck_assert_int_eq(near.open_count, 1);
    ck_assert_int_eq(near.out_of_order + far.out_of_order, 0);
    ck_assert_uint_eq(near.payload_bytes, sent_bytes);
    ck_assert_uint_eq(stream_queued_bytes(near.stream), 0);
    ck_assert_int_eq(strncmp(stream_peer(far.stream), "127.0.0.1:", 10), 0);
}

static void on_loop_turn(uv_prepare_t *prepare)
{
    ++*(int *)prepare->data;
}

/* All of them arrive in one read; the loop has other peers. */
TEST(what_costs_more_than_a_turn_goes_on_in_the_next_one)
{
    int turns = 0;
    static uv_prepare_t prepare;
    uv_prepare_init(&loop, &prepare);
    prepare.data = &turns;
    far.work_ns = CAIRN_STREAM_TURN_MS * UINT64_C(500000);
    connect_near(&plain);
    for (uint32_t i = 1; i <= 60; i++) send_near(i, "x", 1);
    run_until(far.frame_count > 0);
    uv_prepare_start(&prepare, on_loop_turn);
    run_until(far.frame_count == 60);
    ck_assert_int_ge(turns, 15);
    ck_assert_int_eq(far.out_of_order, 0);
    stream_close(near.stream, CAIRN_OK, "while frames wait");
    run_until(far.close_count == 1); // what comes behind them is read
    uv_close((uv_handle_t *)&prepare, NULL);
}

TEST(a_stream_that_ends_between_two_turns_ends_well)
{
    far.work_ns = CAIRN_STREAM_TURN_MS * UINT64_C(2000000);
    connect_near(&plain);
    for (uint32_t i = 1; i <= 9; i++) send_near(i, "x", 1);
    run_until(far.frame_count == 1);
    stream_finish(far.stream, CAIRN_OK, "enough");
    run_until(near.close_count == 1 && far.close_count == 1);
    ck_assert_int_eq(far.frame_count, 1);
}

TEST(the_largest_frame_passes_and_a_larger_one_is_not_sent)
{
    uint8_t *payload = calloc(1, CAIRN_FRAME_BYTES_MAX);
    struct sentence why;
    connect_near(&plain);
    ck_assert_int_eq(
        stream_send_bytes(near.stream, 3, 1, payload, CAIRN_FRAME_BYTES_MAX - 15, &why),
        CAIRN_ERR_INVALID);
    send_near(1, payload, CAIRN_FRAME_BYTES_MAX - 16);
    run_until(far.frame_count == 1);
    ck_assert_uint_eq(far.payload_bytes, CAIRN_FRAME_BYTES_MAX - 16);
    free(payload);
}

TEST(a_message_is_packed_and_sent)
{
    Cairn__Error error = CAIRN__ERROR__INIT;
    error.text = "why";
    connect_near(&plain);
    ck_assert_int_eq(stream_send(near.stream, 3, 1, &error.base, NULL), CAIRN_OK);
    run_until(far.frame_count == 1);
    ck_assert_str_eq(far.last, "\x12\x03why");
}

enum { PAGED = 30 * CAIRN_PAGE_BYTES + 5 };

static struct packed *make_packed(void)
{
    uint8_t *bytes = malloc(PAGED);
    for (size_t i = 0; i < PAGED; i++) bytes[i] = (uint8_t)(i * 31 >> 3);
    return packed_take(bytes, PAGED);
}

static void send_pages(struct packed *packed)
{
    ck_assert_int_eq(stream_send_pages(near.stream, 2, CAIRN_PAGE_SPEC, packed, NULL), CAIRN_OK);
}

/* Hundreds of times the queue's bound, twice, in order with what is sent before, between and behind. */
TEST(pages_are_cut_when_their_turn_comes)
{
    const struct stream_options narrow = { .limits = plain.limits,
                                           .send_queue_bytes = 32 << 10,
                                           .secure = plain.secure };
    struct packed *packed = make_packed();
    struct paged paged;
    uint64_t total = 0;
    size_t queued_max = 0;
    connect_near(&narrow);
    for (int turn = 0; turn < 2; turn++) { // the first before the connection stands
        ck_assert_int_eq(paged_init(&paged, CAIRN_PAGE_SPEC, PAGED), CAIRN_OK);
        far.paged = &paged;
        send_near(1, "before", 6);
        send_pages(packed);
        ck_assert_uint_eq(packed->holds, 2);
        send_near(3, "behind", 6);
        total += 2 + 31;
        while (far.frame_count < (int)total) {
            uv_run(&loop, UV_RUN_ONCE);
            const size_t queued = stream_queued_bytes(near.stream);
            if (queued > queued_max) queued_max = queued;
        }
        ck_assert_str_eq(far.last, "behind");
        ck_assert(paged_whole(&paged, 1));
        ck_assert_mem_eq(paged.bytes, packed->bytes, PAGED);
        paged_release(&paged, 1);
    }
    ck_assert_uint_le(queued_max, CAIRN_PAGE_BYTES + 1024);
    ck_assert_uint_eq(packed->holds, 1);
    packed_release(packed);
}

TEST(an_end_gives_back_the_pages_that_wait)
{
    struct packed *packed = make_packed();
    connect_near(&plain);
    run_until(far.stream != NULL && near.open_count == 1);
    send_pages(packed);
    send_pages(packed);
    ck_assert_uint_eq(packed->holds, 3);
    stream_close(near.stream, CAIRN_OK, "enough");
    ck_assert_int_eq(stream_send_pages(near.stream, 2, CAIRN_PAGE_SPEC, packed, NULL),
                     CAIRN_ERR_CLOSED);
    run_until(near.close_count == 1);
    ck_assert_uint_eq(packed->holds, 1);
    packed_release(packed);
}

TEST(a_peer_that_takes_no_pages_is_closed)
{
    struct packed *packed = make_packed();
    cairn_status status = CAIRN_OK;
    uint64_t held = 0;
    connect_near(&plain);
    while (status == CAIRN_OK && held <= CAIRN_STREAM_PAGED_BYTES) {
        status = stream_send_pages(near.stream, 2, CAIRN_PAGE_SPEC, packed, NULL);
        if (status == CAIRN_OK) held += PAGED;
    }
    ck_assert_int_eq(status, CAIRN_ERR_BUSY);
    ck_assert_uint_gt(held, CAIRN_STREAM_PAGED_BYTES - PAGED);
    expect_end(&near, CAIRN_ERR_BUSY, "");
    ck_assert_uint_eq(packed->holds, 1);
    packed_release(packed);
}

TEST(finish_sends_the_pages_that_wait)
{
    struct packed *packed = make_packed();
    struct paged paged;
    ck_assert_int_eq(paged_init(&paged, CAIRN_PAGE_SPEC, PAGED), CAIRN_OK);
    connect_near(&plain);
    run_until(far.stream != NULL && near.open_count == 1);
    far.paged = &paged;
    send_pages(packed);
    stream_finish(near.stream, CAIRN_OK, "that was all");
    run_until(far.close_count == 1);
    ck_assert(paged_whole(&paged, 1));
    paged_release(&paged, 1);
    run_until(near.close_count == 1);
    packed_release(packed);
}

TEST(a_unix_socket_works_the_same)
{
    snprintf(address.host, sizeof address.host, "%s/socket", folder);
    address.is_unix = true;
    ck_assert_int_eq(uv_pipe_bind(&server_pipe, address.host), 0);
    ck_assert_int_eq(uv_listen((uv_stream_t *)&server_pipe, 16, on_connection), 0);
    far.echo = 1;
    plain.secure = NULL;
    connect_near(&plain);
    send_near(1, "hello", 5);
    run_until(near.frame_count == 1);
    ck_assert_str_eq(near.last, "hello");
    char who[64];
    snprintf(who, sizeof who, "pid=%ld,uid=%lu", (long)getpid(), (unsigned long)getuid());
    ck_assert_str_eq(stream_peer(far.stream), who);
}

/* Without a hosts file the name goes to a name server, which may be out of reach: a chroot, say. */
static bool localhost_is_here(void)
{
    char line[256];
    bool found = false;
    FILE *hosts = fopen("/etc/hosts", "re");
    while (hosts != NULL && !found && fgets(line, sizeof line, hosts) != NULL)
        found = strstr(line, "localhost") != NULL;
    if (hosts != NULL) fclose(hosts);
    if (!found) printf("skip: /etc/hosts has no localhost, no name was resolved\n");
    return found;
}

TEST(a_name_is_resolved)
{
    if (!localhost_is_here()) return;
    snprintf(address.host, sizeof address.host, "localhost");
    connect_near(&plain);
    run_until(near.open_count == 1 && far.stream != NULL);
}

TEST_EACH(a_connect_closed_at_once_ends_once, 0, 2)
{
    snprintf(address.host, sizeof address.host, _i == 0 ? "127.0.0.1" : "localhost");
    connect_near(&plain);
    stream_close(near.stream, CAIRN_ERR_CANCELED, "no more wanted");
    stream_close(near.stream, CAIRN_ERR_IO, "a later reason");
    ck_assert_int_eq(near.close_count, 0);
    expect_end(&near, CAIRN_ERR_CANCELED, "");
    ck_assert_str_eq(near.why, "no more wanted");
    ck_assert_int_eq(near.open_count, 0);
}

TEST(a_peer_that_is_not_there_is_unreachable)
{
    address.port = cairn_scratch_port();
    connect_near(&plain);
    expect_end(&near, CAIRN_ERR_UNREACHABLE, "connection refused");
    ck_assert_ptr_nonnull(strstr(near.why, "127.0.0.1:"));
}

TEST(a_name_that_is_none_is_unreachable)
{
    snprintf(address.host, sizeof address.host, "no such name");
    connect_near(&plain);
    expect_end(&near, CAIRN_ERR_UNREACHABLE, "");
}

// A listener whose queue is full answers nothing: connecting hangs until the deadline.
struct silent {
    int fd, clients[8];
    uint16_t port;
};

static void silent_open(struct silent *silent, const char *host)
{
    struct sockaddr_in addr;
    socklen_t addr_bytes = sizeof addr;
    uv_ip4_addr(host, 0, &addr);
    silent->fd = socket(AF_INET, SOCK_STREAM, 0);
    ck_assert_int_eq(bind(silent->fd, (struct sockaddr *)&addr, sizeof addr), 0);
    ck_assert_int_eq(listen(silent->fd, 0), 0);
    ck_assert_int_eq(getsockname(silent->fd, (struct sockaddr *)&addr, &addr_bytes), 0);
    for (int i = 0; i < 8; i++) {
        silent->clients[i] = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
        (void)!connect(silent->clients[i], (struct sockaddr *)&addr, sizeof addr);
    }
    silent->port = ntohs(addr.sin_port);
}

static void silent_close(const struct silent *silent)
{
    for (int i = 0; i < 8; i++) close(silent->clients[i]);
    close(silent->fd);
}

TEST(a_silent_host_is_a_timeout)
{
    struct silent silent;
    silent_open(&silent, "127.0.0.1");
    address.port = silent.port;
    ck_assert_int_eq(
        stream_connect(&loop, &address, 50, &plain, &events, &near, &near.stream, NULL), CAIRN_OK);
    expect_end(&near, CAIRN_ERR_TIMEOUT, "within 50 ms");
    silent_close(&silent);
}

/* ---- a name with several addresses ---- */

/* Opens the server anew at 127.0.0.1, at the port at which 127.0.0.2 is silent. Somebody else may have the
 * port at 127.0.0.1, so it is tried until nobody has. */
static void silent_open_beside(struct silent *silent)
{
    struct sockaddr_in addr;
    int error;
    do {
        silent_open(silent, "127.0.0.2");
        uv_close((uv_handle_t *)&server_tcp, NULL);
        uv_run(&loop, UV_RUN_NOWAIT);
        uv_tcp_init(&loop, &server_tcp);
        uv_ip4_addr("127.0.0.1", silent->port, &addr);
        error = uv_tcp_bind(&server_tcp, (struct sockaddr *)&addr, 0);
        if (error == 0) error = uv_listen((uv_stream_t *)&server_tcp, 16, on_connection);
        if (error != 0) silent_close(silent);
    } while (error == UV_EADDRINUSE);
    ck_assert_int_eq(error, 0);
    address.port = silent->port;
}

/* The server listens at 127.0.0.1 alone; at the others nobody does. */
static const char *const orders[][4] = {
    { "127.0.0.1" },
    { "127.0.0.2", "127.0.0.1" },
    { "127.0.0.2", "127.0.0.3", "127.0.0.1" },
    { "127.0.0.1", "127.0.0.2" },
    { "::1", "127.0.0.1" },
    { "127.0.0.1", "::1" },
    { "2001:db8::1", "127.0.0.1" }, // no route leads there, or nobody answers
    { "192.0.2.1", "127.0.0.1" },
};

static void connect_several(const char *const *addresses)
{
    size_t count = 0;
    for (; addresses[count] != NULL; count++) several[count] = addresses[count];
    several[count] = NULL;
    snprintf(address.host, sizeof address.host, "several");
    connect_near(&plain);
}

TEST_EACH(each_address_of_a_name_is_tried_until_one_answers, 0, sizeof orders / sizeof *orders)
{
    connect_several(orders[_i]);
    run_until(near.open_count == 1 && far.open_count == 1);
    send_near(1, "hello", 5);
    run_until(far.frame_count == 1);
    ck_assert_str_eq(far.last, "hello");
}

TEST(an_address_that_is_silent_does_not_take_the_time_of_the_next)
{
    struct silent silent;
    silent_open_beside(&silent);
    connect_several((const char *const[]) { "127.0.0.2", "127.0.0.1", NULL });
    const uint64_t begin = uv_hrtime();
    run_until(near.open_count == 1 && far.open_count == 1);
    ck_assert_uint_lt((uv_hrtime() - begin) / 1000000, 4000); // of 5000
    silent_close(&silent);
}

static void answer_name(uv_timer_t *timer)
{
    (void)timer;
    sem_post(&may_answer);
}

/* The name service has taken most of the time. */
TEST(all_addresses_of_a_name_have_what_is_left_of_the_time_and_no_more)
{
    static uv_timer_t late; // closed behind the test
    struct silent silent;
    silent_open(&silent, "127.0.0.2");
    address.port = silent.port;
    for (int i = 0; i < CAIRN_SOCKET_ADDRESSES_MAX; i++) several[i] = "127.0.0.2";
    several[CAIRN_SOCKET_ADDRESSES_MAX] = NULL;
    snprintf(address.host, sizeof address.host, "several");
    sem_init(&may_answer, 0, 0);
    is_slow = true;
    uv_timer_init(&loop, &late);
    uv_timer_start(&late, answer_name, 1800, 0);
    const uint64_t begin = uv_hrtime();
    ck_assert_int_eq(
        stream_connect(&loop, &address, 2000, &plain, &events, &near, &near.stream, NULL),
        CAIRN_OK);
    expect_end(&near, CAIRN_ERR_TIMEOUT, "within 2000 ms");
    ck_assert_uint_lt((uv_hrtime() - begin) / 1000000, 3000);
    uv_close((uv_handle_t *)&late, NULL);
    is_slow = false;
    sem_destroy(&may_answer);
    silent_close(&silent);
}

static void *admin_main(void *arg)
{
    struct sentence why;
    ProtobufCMessage *reply;
    const Cairn__ClusterStatusGet get = CAIRN__CLUSTER_STATUS_GET__INIT;
    const cairn_status status = admin_call(arg, CAIRN_MSG_CLUSTER_STATUS_GET, &get.base,
                                           CAIRN_MSG_CLUSTER_STATUS, &reply, NULL, &why);
    ck_assert_int_ne(status, CAIRN_OK); // the server here knows no answer
    return NULL;
}

TEST_EACH(a_command_tries_each_address_too, 0, 2)
{
    struct silent silent;
    pthread_t thread;
    char endpoint[32];
    keys_show(folder);
    silent_open_beside(&silent);
    snprintf(endpoint, sizeof endpoint, "several:%u", address.port);
    struct admin admin = { .endpoint = endpoint, .name = "t", .advice = "", .timeout_ms = 5000 };
    several[0] = _i == 0 ? "127.0.0.3" : "127.0.0.2"; // refused; silent
    several[1] = "127.0.0.1", several[2] = NULL;
    ck_assert_int_eq(pthread_create(&thread, NULL, admin_main, &admin), 0);
    run_until(far.frame_count == 1); // the Hello
    stream_close(far.stream, CAIRN_OK, "enough");
    run_until(far.close_count == 1);
    pthread_join(thread, NULL);
    silent_close(&silent);
}

TEST(a_name_of_which_no_address_answers_says_so_of_the_last)
{
    address.port = cairn_scratch_port();
    connect_several((const char *const[]) { "127.0.0.2", "127.0.0.3", NULL });
    expect_end(&near, CAIRN_ERR_UNREACHABLE, "is the last of its 2 addresses: connection refused");
    ck_assert_ptr_nonnull(strstr(near.why, "several:"));
    ck_assert_ptr_nonnull(strstr(near.why, "127.0.0.3:"));
}

TEST(a_stream_that_is_closed_between_two_addresses_ends_once)
{
    connect_several((const char *const[]) { "127.0.0.2", "127.0.0.1", NULL });
    for (int turn = 0; turn < 3 && near.close_count == 0; turn++) uv_run(&loop, UV_RUN_ONCE);
    if (near.stream != NULL) stream_close(near.stream, CAIRN_ERR_CANCELED, "no more wanted");
    run_until(near.close_count == 1);
}

/* "localhost" means the same for a listener and its peers, since any user of the host may listen at the
 * others; for all other names the name service decides. */
TEST(v4_comes_first_where_all_is_loopback)
{
    struct stream_address name = { .host = "several", .port = 80 };
    struct socket_addresses found;
    struct sentence why;
    several[0] = "::1", several[1] = "127.0.0.1", several[2] = NULL;
    ck_assert_int_eq(address_resolve(&name, &found, &why), CAIRN_OK);
    ck_assert_uint_eq(found.count, 2);
    ck_assert_int_eq(found.list[0].ss_family, AF_INET);
    ck_assert_ptr_eq(address_to_listen(&found), &found.list[0]);
    several[0] = "2001:db8::1", several[1] = "192.0.2.1";
    ck_assert_int_eq(address_resolve(&name, &found, &why), CAIRN_OK);
    ck_assert_int_eq(found.list[0].ss_family, AF_INET6);
    ck_assert_int_eq(found.list[1].ss_family, AF_INET);
    ck_assert_ptr_eq(address_to_listen(&found), &found.list[1]);
}

TEST(more_addresses_than_are_tried_are_left_out)
{
    struct stream_address name = { .host = "several", .port = 80 };
    struct socket_addresses found;
    struct sentence why;
    for (int i = 0; i < 12; i++) several[i] = "192.0.2.1";
    several[12] = NULL;
    ck_assert_int_eq(address_resolve(&name, &found, &why), CAIRN_OK);
    ck_assert_uint_eq(found.count, CAIRN_SOCKET_ADDRESSES_MAX);
    several[0] = NULL;
    ck_assert_int_eq(address_resolve(&name, &found, &why), CAIRN_ERR_UNREACHABLE);
}

// A plain socket that writes what it is given and, unless asked, never reads.
static int raw_client(const void *bytes, size_t byte_count)
{
    struct sockaddr_in addr = { .sin_family = AF_INET, .sin_port = htons(address.port) };
    addr.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    const int fd = socket(AF_INET, SOCK_STREAM, 0);
    ck_assert_int_eq(connect(fd, (struct sockaddr *)&addr, sizeof addr), 0);
    ck_assert_int_eq(write(fd, bytes, byte_count), (ssize_t)byte_count);
    return fd;
}

struct member {
    struct sealed sealed;
    const void *bytes;
    size_t byte_count;
    bool is_up;
};

static void *member_main(void *arg)
{
    struct member *member = arg;
    member->is_up = sealed_open(&member->sealed, member->sealed.fd, keys_join());
    if (member->is_up) sealed_send(&member->sealed, member->bytes, member->byte_count);
    return NULL;
}

// Like raw_client, but one that has shaken hands before.
static int member_client(struct member *member, const void *bytes, size_t byte_count)
{
    pthread_t thread;
    *member = (struct member) { .bytes = bytes, .byte_count = byte_count };
    const int fd = member->sealed.fd = raw_client("", 0);
    ck_assert_int_eq(pthread_create(&thread, NULL, member_main, member), 0);
    run_until(far.open_count == 1);
    pthread_join(thread, NULL);
    ck_assert(member->is_up);
    return fd;
}

TEST(a_peer_that_does_not_read_is_closed_and_memory_stays_bounded)
{
    static const uint8_t payload[100000];
    struct sentence why;
    far_options.send_queue_bytes = 1 << 20;
    struct member member;
    const int fd = member_client(&member, "C", 1);
    cairn_status status = CAIRN_OK;
    for (int i = 0; status == CAIRN_OK && i < 1000; i++) {
        status = stream_send_bytes(far.stream, 3, 0, payload, sizeof payload, &why);
        ck_assert_uint_le(stream_queued_bytes(far.stream), 1 << 20);
    }
    ck_assert_int_eq(status, CAIRN_ERR_BUSY);
    ck_assert_ptr_nonnull(strstr(why.text, "does not read"));
    ck_assert_int_eq(stream_send_bytes(far.stream, 3, 0, payload, 1, &why), CAIRN_ERR_CLOSED);
    expect_end(&far, CAIRN_ERR_BUSY, "");
    sealed_release(&member.sealed);
    close(fd);
}

TEST(garbage_closes_without_a_word)
{
    char answer;
    const int fd = raw_client("GET / HTTP/1.1\r\n\r\n", 18);
    expect_end(&far, CAIRN_ERR_PROTOCOL, "does not begin with Cairn's handshake");
    ck_assert_int_eq(far.frame_count, 0);
    ck_assert_int_le(read(fd, &answer, 1), 0);
    close(fd);
}

TEST(garbage_of_a_member_closes_with_a_reason)
{
    struct member member;
    const int fd = member_client(&member, "GET / HTTP/1.1\r\n\r\n", 18);
    expect_end(&far, CAIRN_ERR_PROTOCOL, "not Cairn's protocol");
    ck_assert_int_eq(far.frame_count, 0);
    sealed_release(&member.sealed);
    close(fd);
}

TEST(what_came_before_garbage_is_delivered)
{
    uint8_t bytes[20] = { 0 };
    struct member member;
    frame_header_write(bytes, 3, 1, 0);
    const int fd = member_client(&member, bytes, sizeof bytes);
    run_until(far.close_count == 1);
    ck_assert_int_eq(far.frame_count, 1);
    ck_assert_int_eq(far.status, CAIRN_ERR_PROTOCOL);
    sealed_release(&member.sealed);
    close(fd);
}

/* ---- who is there ---- */

TEST(each_end_knows_the_others_key)
{
    connect_near(&plain);
    ck_assert_ptr_null(stream_session(near.stream)); // not yet
    run_until(near.open_count == 1 && far.open_count == 1);
    const struct handshake_result *here = stream_session(near.stream),
                                  *there = stream_session(far.stream);
    uint8_t pin[CAIRN_PIN_BYTES];
    curve_pin(here->peer_key, pin);
    ck_assert_mem_eq(pin, keys_token()->pin, sizeof pin);
    ck_assert_mem_eq(there->peer_key, keys_join()->own->open, CAIRN_CURVE_BYTES);
    ck_assert_mem_eq(there->key_id, keys_token()->id, CAIRN_PSK_ID_BYTES);
    ck_assert_mem_eq(here->session_hash, there->session_hash, CAIRN_SESSION_HASH_BYTES);
}

static struct handshake_options strange;

static void connect_strange(void)
{
    plain.secure = &strange;
    connect_near(&plain);
    send_near(1, "let me in", 9);
}

TEST_EACH(a_stranger_hears_nothing, 0, 2)
{
    strange = *keys_join();
    if (_i == 0)
        strange.key_id[3] ^= 1; // the token is unknown there
    else
        strange.secret[3] ^= 1;
    connect_strange();
    expect_end(&near, CAIRN_ERR_PROTOCOL, "closed the connection without a word");
    expect_end(&far, CAIRN_ERR_PROTOCOL, _i == 0 ? "not known here" : "does not know its secret");
    ck_assert_int_eq(near.open_count + far.open_count + far.frame_count, 0);
}

TEST(a_coordinator_that_is_another_than_the_tokens_hears_no_frame)
{
    static const uint8_t pin[CAIRN_PIN_BYTES] = { 1 };
    strange = *keys_join();
    strange.pin = pin;
    connect_strange();
    expect_end(&near, CAIRN_ERR_PROTOCOL, "another key than the token expects");
    run_until(far.close_count == 1);
    ck_assert_int_eq(near.open_count + far.open_count + far.frame_count, 0);
}

static bool find_revoked(void *arg, const uint8_t *key_id, struct handshake_row *row_out)
{
    if (!keys_find(key_id, row_out, arg)) return false;
    row_out->refused = CAIRN_ERR_REFUSED;
    sentence_set(&row_out->why, "the token was revoked: ask for another");
    return true;
}

static struct handshake_options revoking;

static void on_revoking_connection(uv_stream_t *server, int error)
{
    ck_assert_int_eq(error, 0);
    far_options.secure = &revoking;
    ck_assert_int_eq(stream_accept(server, &far_options, &events, &far, &far.stream, NULL),
                     CAIRN_OK);
}

TEST(who_has_the_secret_is_told_why_it_is_refused)
{
    revoking = *keys_serve();
    revoking.find = find_revoked;
    server_tcp.connection_cb = on_revoking_connection;
    connect_near(&plain);
    expect_end(&near, CAIRN_ERR_REFUSED, "the token was revoked: ask for another");
    expect_end(&far, CAIRN_ERR_REFUSED, "revoked");
}

TEST(a_peer_that_dies_is_told_from_one_that_closes)
{
    struct member member;
    const int fd = member_client(&member, "C", 1);
    sealed_release(&member.sealed);
    close(fd);
    expect_end(&far, CAIRN_ERR_CLOSED, "was cut off");
}

TEST(a_peer_that_closes_says_so)
{
    connect_near(&plain);
    run_until(near.open_count == 1 && far.open_count == 1);
    stream_close(near.stream, CAIRN_OK, "enough");
    expect_end(&far, CAIRN_ERR_CLOSED, "closed the connection");
}

// A host that takes connections and says nothing.
TEST(a_handshake_that_is_not_answered_is_a_timeout)
{
    struct sockaddr_in addr = { .sin_family = AF_INET };
    socklen_t addr_bytes = sizeof addr;
    addr.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    const int fd = socket(AF_INET, SOCK_STREAM, 0);
    ck_assert_int_eq(bind(fd, (struct sockaddr *)&addr, sizeof addr), 0);
    ck_assert_int_eq(listen(fd, 4), 0);
    ck_assert_int_eq(getsockname(fd, (struct sockaddr *)&addr, &addr_bytes), 0);
    address.port = ntohs(addr.sin_port);
    ck_assert_int_eq(
        stream_connect(&loop, &address, 50, &plain, &events, &near, &near.stream, NULL), CAIRN_OK);
    expect_end(&near, CAIRN_ERR_TIMEOUT, "not the handshake within 50 ms");
    close(fd);
}

TEST(closing_inside_on_frame_stops_further_frames)
{
    far.close_on = 2;
    connect_near(&plain);
    for (uint32_t i = 1; i <= 5; i++) send_near(i, "x", 1);
    run_until(near.close_count == 1);
    ck_assert_int_eq(far.frame_count, 2);
    ck_assert_int_eq(far.status, CAIRN_OK);
    ck_assert_int_eq(near.status, CAIRN_ERR_CLOSED);
}

TEST(limits_hold_for_the_next_frame)
{
    far_options.limits = (struct frame_limits) { 3, 3, CAIRN_FRAME_HELLO_BYTES };
    static const uint8_t payload[2 * CAIRN_FRAME_HELLO_BYTES];
    connect_near(&plain);
    send_near(1, payload, 4000);
    run_until(far.frame_count == 1);
    stream_limit(far.stream, plain.limits);
    send_near(2, payload, sizeof payload);
    run_until(far.frame_count == 2);
    stream_limit(far.stream, far_options.limits);
    send_near(3, payload, sizeof payload);
    run_until(far.close_count == 1);
    char limit[80];
    snprintf(limit, sizeof limit, "claims %zu bytes of payload, the limit is %u", sizeof payload,
             CAIRN_FRAME_HELLO_BYTES - CAIRN_FRAME_HEADER_BYTES);
    ck_assert_ptr_nonnull(strstr(far.why, limit));
}

// The peer has sent more than we read, so that closing early would reset the connection and destroy
// the last words.
TEST(finish_delivers_the_last_words)
{
    static const uint8_t payload[300000];
    connect_near(&plain);
    run_until(far.open_count == 1 && near.open_count == 1);
    for (uint32_t i = 1; i <= 5; i++) send_near(i, payload, sizeof payload);
    for (uint32_t i = 1; i <= 9; i++)
        ck_assert_int_eq(stream_send_bytes(far.stream, 3, i, payload, sizeof payload, NULL),
                         CAIRN_OK);
    ck_assert_int_eq(stream_send_bytes(far.stream, 3, 10, "because", 7, NULL), CAIRN_OK);
    stream_finish(far.stream, CAIRN_ERR_REFUSED, "told why");
    stream_finish(far.stream, CAIRN_ERR_IO, "again");
    run_until(near.close_count == 1 && far.close_count == 1);
    ck_assert_int_eq(near.frame_count, 10);
    ck_assert_str_eq(near.last, "because");
    ck_assert_int_eq(near.status, CAIRN_ERR_CLOSED);
    ck_assert_int_eq(far.status, CAIRN_ERR_REFUSED);
    ck_assert_str_eq(far.why, "told why");
    ck_assert_int_eq(far.frame_count, 0);
}

TEST(finish_does_not_wait_for_ever)
{
    static const uint8_t payload[8000000];
    far_options.send_queue_bytes = 64 << 20;
    struct member member;
    const int fd = member_client(&member, "C", 1);
    for (int i = 0; i < 40; i++)
        ck_assert_int_eq(stream_send_bytes(far.stream, 3, 0, payload, 1000000, NULL), CAIRN_OK);
    const uint64_t begin = uv_hrtime();
    stream_finish(far.stream, CAIRN_OK, "bye");
    run_until(far.close_count == 1);
    ck_assert_uint_lt(uv_hrtime() - begin, UINT64_C(10000000000));
    sealed_release(&member.sealed);
    close(fd);
}

SUITE(60, set_up, tear_down);
