#include "proto/wire/wire.h"

#include <stdlib.h>

static int refused; /* so many allocations of the listener still fail */

static void *refuse_or_calloc(size_t count, size_t bytes)
{
    return refused > 0 && refused-- > 0 ? NULL : calloc(count, bytes);
}
#define calloc refuse_or_calloc
#include "server/base/listener.c" // and what it holds: peers, and the room of all of them
#undef calloc
#include "tests/support/keys.h"
#include "tests/support/scratch.h"
#include "tests/support/suite.h"

#include <check.h>
#include <malloc.h>
#include <netinet/in.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

static uv_loop_t loop;
static uv_async_t clients_done;
static uv_timer_t watch;
static struct listener *listener;
static struct listener_options options;
static int hello_count;
static int echo_count;
static int gone_count;
static int closed_count;
static cairn_status gone_status;
static char gone_why[CAIRN_SENTENCE_BYTES];
static char folder[CAIRN_SCRATCH_BYTES];
static char place[CAIRN_SCRATCH_BYTES + 16]; // of the socket, or of TCP
static struct identity last_identity;

// The daemon under test: admits a Hello named "good", answers it, echoes the rest.
static void on_frame(struct peer *peer, const struct wire_frame *frame, void *context)
{
    ck_assert_ptr_eq(context, &loop);
    last_identity = *peer_identity(peer);
    Cairn__Welcome welcome = CAIRN__WELCOME__INIT;
    Cairn__Error error = CAIRN__ERROR__INIT;
    if (frame->type != 1) {
        echo_count++;
        ck_assert_int_eq(peer_send(peer, 3, frame->request, &error.base), CAIRN_OK);
    } else if (frame->payload_bytes > 0) {
        error.text = "no";
        ck_assert_int_eq(peer_send(peer, 3, frame->request, &error.base), CAIRN_OK);
        peer_finish(peer, CAIRN_ERR_VERSION, "another version");
    } else {
        hello_count++;
        peer_set_context(peer, &hello_count);
        peer_admit(peer);
        ck_assert_int_eq(peer_send(peer, 2, frame->request, &welcome.base), CAIRN_OK);
    }
}

static void on_gone(struct peer *peer, cairn_status status, const char *why, void *context)
{
    ck_assert_ptr_eq(context, &loop);
    ck_assert_ptr_nonnull(peer_name(peer));
    gone_count++;
    gone_status = status;
    snprintf(gone_why, sizeof gone_why, "%s", why);
}

static bool is_refused; // by identify, whoever comes

static cairn_status identify(const struct handshake_result *result, struct identity *identity_out,
                             struct sentence *why, void *context)
{
    ck_assert_ptr_eq(context, &loop);
    if (is_refused) return fail_with(why, CAIRN_ERR_REFUSED, "the name is another's");
    return keys_identify(result, identity_out, why, context);
}

static const struct listener_events events = {
    .on_frame = on_frame, .on_gone = on_gone, .find = keys_find, .identify = identify
};

static void on_clients_done(uv_async_t *async)
{
    (void)async;
    uv_stop(&loop);
}

static void on_patience_end(uv_timer_t *timer)
{
    (void)timer;
    ck_abort_msg("it took too long");
}

static void on_closed(void *context)
{
    ck_assert_ptr_eq(context, &loop);
    closed_count++;
}

static void set_up(void)
{
    const struct rlimit files = { 4096, 4096 };
    setrlimit(RLIMIT_NOFILE, &files);
    signal(SIGPIPE, SIG_IGN);
    uv_loop_init(&loop);
    uv_async_init(&loop, &clients_done, on_clients_done);
    uv_timer_init(&loop, &watch);
    uv_timer_start(&watch, on_patience_end, 50000, 0);
    cairn_scratch_make_quick(folder);
    snprintf(place, sizeof place, "%s/socket", folder);
    (void)keys_token(); // before any thread asks for it
    options = (struct listener_options) { .listen = place,
                                          .connections_max = 4096,
                                          .half_open_max = 64,
                                          .hello_timeout_ms = 5000,
                                          .send_queue_bytes = 1 << 20 };
}

static void open_listener(void)
{
    struct sentence why;
    ck_assert_msg(listener_open(&loop, &options, 1, 90, &events, &loop, &listener, &why) ==
                      CAIRN_OK,
                  "%s", why.text);
}

static void tear_down(void)
{
    if (listener != NULL) {
        listener_close(listener, on_closed);
        listener_close(listener, on_closed);
    }
    uv_close((uv_handle_t *)&clients_done, NULL);
    uv_close((uv_handle_t *)&watch, NULL);
    uv_run(&loop, UV_RUN_DEFAULT);
    ck_assert_int_eq(closed_count, listener != NULL);
    ck_assert_int_eq(uv_loop_close(&loop), 0);
    cairn_scratch_remove(folder);
}

// ---- clients: plain blocking sockets on a thread of their own ----

static uint16_t listener_port(void)
{
    return (uint16_t)atoi(strrchr(listener_address(listener), ':') + 1);
}

static int dial_tcp(void)
{
    struct sockaddr_in addr = { .sin_family = AF_INET, .sin_port = htons(listener_port()) };
    addr.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    const int fd = socket(AF_INET, SOCK_STREAM, 0);
    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(connect(fd, (struct sockaddr *)&addr, sizeof addr), 0);
    return fd;
}

static int client_connect(void)
{
    const struct timeval patience = { 20, 0 };
    const int fd = strchr(place, ':') != NULL ? dial_tcp() : cairn_scratch_dial(place);
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    return fd;
}

static void client_send(int fd, uint16_t type, uint32_t payload_bytes)
{
    static const uint8_t zeros[100000];
    uint8_t header[CAIRN_FRAME_HEADER_BYTES];
    frame_header_write(header, type, 5, payload_bytes);
    (void)!write(fd, header, sizeof header);
    if (payload_bytes > 0 && payload_bytes <= sizeof zeros) (void)!write(fd, zeros, payload_bytes);
}

// The type of the next frame; 0 at the end of the connection, -1 when nothing comes.
static int client_receive(int fd)
{
    uint8_t bytes[64];
    const ssize_t n = read(fd, bytes, CAIRN_FRAME_HEADER_BYTES);
    if (n < (ssize_t)CAIRN_FRAME_HEADER_BYTES) return n < 0 ? -1 : 0;
    if (bytes[8] > 0) (void)!read(fd, bytes + 16, bytes[8]);
    return bytes[4];
}

static int good_client(void)
{
    const int fd = client_connect();
    client_send(fd, 1, 0);
    ck_assert_int_eq(client_receive(fd), 2);
    client_send(fd, 7, 50000); // larger than a Hello may be, and of another type
    ck_assert_int_eq(client_receive(fd), 3);
    return fd;
}

static void *clients_main(void *work)
{
    ((void (*)(void))work)();
    uv_async_send(&clients_done);
    return NULL;
}

static void run_with(void (*work)(void))
{
    pthread_t thread;
    ck_assert_int_eq(pthread_create(&thread, NULL, clients_main, (void *)work), 0);
    uv_run(&loop, UV_RUN_DEFAULT);
    pthread_join(thread, NULL);
}

static void settle(void)
{
    while (listener->peer_count > 0) uv_run(&loop, UV_RUN_ONCE);
}

static void one_good_client(void)
{
    close(good_client());
}

TEST(a_good_peer_is_served_and_its_end_is_told)
{
    open_listener();
    ck_assert_str_eq(listener_address(listener), place);
    run_with(one_good_client);
    settle();
    ck_assert_int_eq(hello_count, 1);
    ck_assert_int_eq(echo_count, 1);
    ck_assert_int_eq(gone_count, 1);
    ck_assert_int_eq(gone_status, CAIRN_ERR_CLOSED);
    ck_assert(last_identity.is_local);
    ck_assert_uint_eq(last_identity.uid, getuid());
}

static void thousand_garbage_clients(void)
{
    uint64_t seed = 7;
    for (int i = 0; i < 1000; i++) {
        uint8_t bytes[600];
        const int fd = client_connect();
        const size_t n = (i % 4 == 0 ? 1 : 16) + cairn_scratch_random(&seed) % 500;
        for (size_t k = 0; k < n; k++) bytes[k] = (uint8_t)cairn_scratch_random(&seed);
        if (i % 4 == 1) frame_header_write(bytes, 1, 0, UINT32_MAX); // 4 GiB
        if (i % 4 == 2) frame_header_write(bytes, 7, 0, 0);          // not a Hello
        if (i % 4 == 3) frame_header_write(bytes, 1, 0, 4000);       // the rest never comes
        (void)!write(fd, bytes, n);
        if (i % 3 > 0) (void)!read(fd, bytes, i % 4 == 3 ? 0 : 1); // some wait to be closed
        close(fd);
        if (i % 250 == 0) close(good_client());
    }
}

static void one_member(void);

/* Each begins like a member's connection, and goes on in a wrong way. */
static void thousand_strangers(void)
{
    uint64_t seed = 11;
    for (int i = 0; i < 1000; i++) {
        uint8_t first[CAIRN_HANDSHAKE_FIRST_BYTES];
        struct byte_queue wire = { 0 };
        struct channel *channel;
        const int fd = client_connect();
        ck_assert_int_eq(channel_open(keys_join(), &channel), CAIRN_OK);
        ck_assert_int_eq(channel_greet(channel, &wire), CAIRN_OK);
        memcpy(first, wire.bytes + wire.start, sizeof first);
        if (i % 4 != 0) first[cairn_scratch_random(&seed) % sizeof first] ^= 1;
        (void)!write(fd, first, i % 4 == 1 ? 50 : sizeof first);
        if (i % 4 == 2) (void)!read(fd, first, 1); // waits to be closed
        close(fd);
        channel_close(channel);
        byte_queue_release(&wire);
        if (i % 250 == 0) one_member();
    }
}

static long resident_bytes(void)
{
    long pages = 0;
    FILE *file = fopen("/proc/self/statm", "r");
    ck_assert_int_eq(fscanf(file, "%*d %ld", &pages), 1);
    fclose(file);
    return pages * sysconf(_SC_PAGESIZE);
}

TEST(a_thousand_garbage_connections_leave_nothing_behind)
{
    open_listener();
    run_with(one_good_client); // whatever is allocated once
    settle();
    const size_t allocated_before = mallinfo2().uordblks;
    const long resident_before = resident_bytes();
    run_with(thousand_garbage_clients);
    settle();
    ck_assert_int_eq(hello_count, 1 + 4);
    if (allocated_before > 0) { // 0 under a sanitizer, which keeps freed memory to find its use
        ck_assert_uint_le(mallinfo2().uordblks, allocated_before + (16 << 10));
        ck_assert_int_le(resident_bytes(), resident_before + (1 << 20));
    }
    run_with(one_good_client);
    ck_assert_int_eq(hello_count, 1 + 4 + 1);
}

static int silent_fds[300];

static void silent_clients_and_a_good_one(void)
{
    for (int i = 0; i < 300; i++) silent_fds[i] = client_connect();
    close(good_client());
    for (int i = 0; i < 300; i++) close(silent_fds[i]);
}

TEST(silent_connections_delay_a_good_peer_but_never_shut_it_out)
{
    open_listener();
    const uint64_t begin = uv_hrtime();
    run_with(silent_clients_and_a_good_one);
    ck_assert_int_eq(hello_count, 1);
    ck_assert_uint_lt(uv_hrtime() - begin, UINT64_C(20000000000));
    settle();
}

static int greedy_fds[40];

/* Each begins a message of 200,000 bytes and sends half of it. */
static void greedy_clients_and_a_good_one(void)
{
    static const uint8_t half[100000];
    for (int i = 0; i < 40; i++) {
        uint8_t header[CAIRN_FRAME_HEADER_BYTES];
        greedy_fds[i] = client_connect();
        client_send(greedy_fds[i], 1, 0);
        ck_assert_int_eq(client_receive(greedy_fds[i]), 2);
        frame_header_write(header, 7, 5, 200000);
        ck_assert_int_eq(write(greedy_fds[i], header, sizeof header), sizeof header);
        ck_assert_int_eq(write(greedy_fds[i], half, sizeof half), sizeof half);
    }
    close(good_client()); // whose message is whole, and larger than what is left
    ck_assert_int_eq(client_receive(greedy_fds[0]), 0);
    for (int i = 0; i < 40; i++) close(greedy_fds[i]);
}

TEST(messages_that_never_end_have_little_memory_together)
{
    open_listener();
    listener->room.max_bytes = 1 << 20;
    run_with(greedy_clients_and_a_good_one);
    settle();
    ck_assert_int_eq(hello_count, 41);
    ck_assert_uint_eq(listener->room.used_bytes, 0);
}

static void one_silent_client(void)
{
    const int fd = client_connect();
    ck_assert_int_eq(client_receive(fd), 0); // closed by the daemon
    close(fd);
}

TEST(a_connection_that_says_nothing_is_closed)
{
    options.hello_timeout_ms = 30;
    open_listener();
    run_with(one_silent_client);
    settle();
    ck_assert_int_eq(gone_count, 0); // the daemon never knew of it
}

TEST(a_connection_that_no_memory_was_left_for_is_taken_later_though_no_other_one_comes)
{
    open_listener();
    refused = 3;
    run_with(one_good_client);
    ck_assert_int_eq(refused, 0);
    ck_assert_int_eq(hello_count, 1);
}

static void one_client_of_another_version(void)
{
    const int fd = client_connect();
    client_send(fd, 1, 9);
    ck_assert_int_eq(client_receive(fd), 3); // the answer first,
    ck_assert_int_eq(client_receive(fd), 0); // then the end
    close(fd);
}

TEST(a_refused_hello_is_answered_and_then_closed)
{
    open_listener();
    run_with(one_client_of_another_version);
    settle();
    ck_assert_int_eq(hello_count, 0);
    ck_assert_int_eq(gone_count, 1);
    ck_assert_int_eq(gone_status, CAIRN_ERR_VERSION);
    ck_assert_str_eq(gone_why, "another version");
}

static void one_client_too_many(void)
{
    const int first = good_client();
    const int second = good_client();
    const int third = client_connect();
    ck_assert_int_eq(client_receive(third), 0);
    close(third);
    close(second);
    close(first);
}

TEST(connections_above_the_limit_are_closed)
{
    options.connections_max = 2;
    open_listener();
    run_with(one_client_too_many);
    ck_assert_int_eq(hello_count, 2);
    settle();
}

static int kept_fd;

static void one_client_that_stays(void)
{
    kept_fd = good_client();
}

TEST(closing_the_listener_ends_its_peers)
{
    open_listener();
    run_with(one_client_that_stays);
    listener_close(listener, on_closed);
    while (closed_count == 0) uv_run(&loop, UV_RUN_ONCE);
    ck_assert_int_eq(gone_count, 1);
    ck_assert_str_eq(gone_why, "the daemon stops");
    ck_assert_int_eq(client_receive(kept_fd), 0);
    close(kept_fd);
    listener = NULL;
    closed_count = 0;
}

/* ---- over TCP ---- */

static void open_tcp_listener(void)
{
    options.listen = "127.0.0.1:0";
    open_listener();
    snprintf(place, sizeof place, "127.0.0.1:%u", listener_port());
}

static void say(struct sealed *sealed, uint16_t type)
{
    uint8_t header[CAIRN_FRAME_HEADER_BYTES];
    frame_header_write(header, type, 5, 0);
    sealed_send(sealed, header, sizeof header);
}

// As client_receive.
static int hear(struct sealed *sealed)
{
    uint8_t header[CAIRN_FRAME_HEADER_BYTES], payload[255];
    if (!sealed_receive(sealed, header, sizeof header)) return 0;
    if (header[8] > 0) ck_assert(sealed_receive(sealed, payload, header[8]));
    return header[4];
}

static void one_member(void)
{
    struct sealed sealed;
    const int fd = client_connect();
    ck_assert(sealed_open(&sealed, fd, keys_join()));
    say(&sealed, 1);
    ck_assert_int_eq(hear(&sealed), 2);
    say(&sealed, 7);
    ck_assert_int_eq(hear(&sealed), 3);
    sealed_release(&sealed);
    close(fd);
}

TEST(a_peer_over_tcp_is_who_its_token_says)
{
    open_tcp_listener();
    run_with(one_member);
    settle();
    ck_assert_int_eq(hello_count, 1);
    ck_assert_int_eq(echo_count, 1);
    ck_assert_int_eq(gone_count, 1);
    ck_assert_str_eq(last_identity.name, "test");
    ck_assert(!last_identity.is_local);
    ck_assert_mem_eq(last_identity.key, keys_join()->own->open, CAIRN_CURVE_BYTES);
}

static void one_refused_member(void)
{
    struct sealed sealed;
    const int fd = client_connect();
    ck_assert(sealed_open(&sealed, fd, keys_join()));
    say(&sealed, 1);
    ck_assert_int_eq(hear(&sealed), CAIRN_MSG_ERROR); // the reason first,
    ck_assert_int_eq(hear(&sealed), 0);               // then the end
    sealed_release(&sealed);
    close(fd);
}

TEST(who_has_a_token_and_may_not_in_is_told_why)
{
    is_refused = true;
    open_tcp_listener();
    run_with(one_refused_member);
    settle();
    ck_assert_int_eq(hello_count + gone_count, 0);
    is_refused = false;
}

TEST(strangers_over_tcp_leave_nothing_behind)
{
    open_tcp_listener();
    run_with(one_member);
    settle();
    const size_t allocated_before = mallinfo2().uordblks;
    run_with(thousand_strangers);
    settle();
    ck_assert_int_eq(hello_count, 1 + 4);
    if (allocated_before > 0)
        ck_assert_uint_le(mallinfo2().uordblks, allocated_before + (16 << 10));
}

static void silent_strangers_and_a_member(void)
{
    for (int i = 0; i < 300; i++) silent_fds[i] = client_connect();
    one_member();
    for (int i = 0; i < 300; i++) close(silent_fds[i]);
}

TEST(silent_strangers_never_shut_a_member_out)
{
    open_tcp_listener();
    run_with(silent_strangers_and_a_member);
    ck_assert_int_eq(hello_count, 1);
    settle();
}

/* ---- a flood ---- */

static const char *flood_from;

/* Connects from that address again and again, for a time in which a place is never kept. */
static void flood(void)
{
    const uint64_t end = uv_hrtime() + (GRACE_MS + 50) * UINT64_C(1000000);
    struct sockaddr_in from = { .sin_family = AF_INET };
    struct sockaddr_in to = { .sin_family = AF_INET, .sin_port = htons(listener_port()) };
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    ck_assert_int_eq(inet_pton(AF_INET, flood_from, &from.sin_addr), 1);
    for (size_t i = 0; uv_hrtime() < end; i = (i + 1) % 300) {
        if (silent_fds[i] > 0) close(silent_fds[i]);
        silent_fds[i] = socket(AF_INET, SOCK_STREAM, 0);
        ck_assert_int_ge(silent_fds[i], 0);
        ck_assert_int_eq(bind(silent_fds[i], (struct sockaddr *)&from, sizeof from), 0);
        ck_assert_int_eq(connect(silent_fds[i], (struct sockaddr *)&to, sizeof to), 0);
    }
}

static void send_greeting(int fd, struct channel *channel)
{
    struct byte_queue wire = { 0 };
    ck_assert_int_eq(channel_greet(channel, &wire), CAIRN_OK);
    const ssize_t bytes = (ssize_t)(wire.end - wire.start);
    ck_assert_int_eq(write(fd, wire.bytes + wire.start, (size_t)bytes), bytes);
    byte_queue_release(&wire);
}

/* Its messages are as far apart as those of a peer that is far away. */
static void a_slow_member_in_a_flood(void)
{
    uint8_t answer[CAIRN_HANDSHAKE_MOST_BYTES];
    size_t used;
    struct sentence why;
    memset(silent_fds, 0, sizeof silent_fds);
    flood();
    struct sealed sealed = { .fd = client_connect() };
    ck_assert_int_eq(channel_open(keys_join(), &sealed.channel), CAIRN_OK);
    if (strcmp(flood_from, "127.0.0.1") != 0) flood();
    send_greeting(sealed.fd, sealed.channel);
    flood();
    const ssize_t count = read(sealed.fd, answer, sizeof answer);
    ck_assert_int_gt(count, 0);
    ck_assert_int_eq(
        channel_take(sealed.channel, answer, (size_t)count, 1, &used, &sealed.plain, &why),
        CAIRN_OK);
    send_greeting(sealed.fd, sealed.channel);
    flood();
    say(&sealed, 1);
    ck_assert_int_eq(hear(&sealed), 2);
    for (int i = 0; i < 300; i++)
        if (silent_fds[i] > 0) close(silent_fds[i]);
    sealed_release(&sealed);
    close(sealed.fd);
}

/* From another address even the first message may be late; from the flood's own, it comes at once. */
TEST_EACH(a_flood_of_strangers_pushes_no_slow_member_out, 0, 2)
{
    flood_from = _i == 0 ? "127.0.0.2" : "127.0.0.1";
    open_tcp_listener();
    run_with(a_slow_member_in_a_flood);
    settle();
    ck_assert_int_eq(hello_count, 1);
    for (size_t i = 0; i < SOURCES; i++) ck_assert_uint_eq(listener->sources.list[i].strangers, 0);
}

/* ---- late first messages, in a flood from the member's own address ---- */

enum { PLACES = 64, SECONDS = 20 };

/* What becomes of strangers of one address who say nothing, on a clock of its own. */
struct crowd {
    struct listener listener;
    struct peer places[PLACES];
    uint64_t now_ms, came, stayed;
};

static void crowd_open(struct crowd *crowd)
{
    *crowd = (struct crowd) { .listener = { .half_open_max = PLACES }, .now_ms = 1000000 };
    TAILQ_INIT(&crowd->listener.half_open);
}

/* The next one comes, and one goes if no place is left. Counts those that stay for late_ms. */
static void crowd_come(struct crowd *crowd, uint64_t late_ms)
{
    struct listener *its = &crowd->listener;
    struct source *source = &its->sources.list[0];
    struct peer *peer;
    if (its->half_open_count == PLACES) {
        if (find_top_source(its, crowd->now_ms) == NULL) return; // it waits in the kernel
        peer = choose_stranger(its, source, crowd->now_ms);
        TAILQ_REMOVE(&its->half_open, peer, link);
        its->half_open_count--;
        source->strangers--;
        crowd->stayed += crowd->now_ms - peer->since_ms >= late_ms;
    } else {
        peer = &crowd->places[its->half_open_count];
    }
    *peer = (struct peer) { .listener = its, .since_ms = crowd->now_ms, .is_half_open = true };
    join_strangers(peer, source);
    TAILQ_INSERT_TAIL(&its->half_open, peer, link);
    its->half_open_count++;
    crowd->came++;
}

/* Strangers a second, how late a first message is, and of how many tries one is in time, at least. */
static const struct {
    uint64_t rate, late_ms, tries;
} crowds[] = {
    { 1000, 90, 5 },     { 1000, 150, 20 },    { 1000, 300, 150 },
    { 10000, 150, 200 }, { 10000, 300, 1500 }, { 500, 150, 10 },
};

TEST_EACH(whose_first_message_is_late_has_a_chance_at_each_try_in_a_flood_of_its_own_address, 0,
          sizeof crowds / sizeof *crowds)
{
    static struct crowd crowd;
    crowd_open(&crowd);
    for (uint64_t i = 0; i < SECONDS * crowds[_i].rate; i++) {
        crowd_come(&crowd, crowds[_i].late_ms);
        crowd.now_ms = 1000000 + i * 1000 / crowds[_i].rate;
    }
    ck_assert_uint_ge(crowd.stayed * crowds[_i].tries, crowd.came);
}

static void members_until_the_last_place_and_an_admin(void)
{
    struct sealed sealed[15];
    const size_t count = sizeof sealed / sizeof *sealed;
    for (size_t i = 0; i < count; i++) {
        const int fd = client_connect();
        ck_assert_int_eq(sealed_open(&sealed[i], fd, keys_join()), i < count - 1);
        if (i == count - 1) continue;
        say(&sealed[i], 1);
        ck_assert_int_eq(hear(&sealed[i]), 2);
    }
    snprintf(place, sizeof place, "%s/socket", folder);
    close(good_client());
    for (size_t i = 0; i < count; i++) {
        close(sealed[i].fd);
        sealed_release(&sealed[i]);
    }
}

TEST(the_last_connections_are_for_admins_of_this_host)
{
    char both[2 * sizeof place];
    options.connections_max = 16;
    snprintf(both, sizeof both, "127.0.0.1:0 %s", place);
    options.listen = both;
    open_listener();
    snprintf(place, sizeof place, "127.0.0.1:%d",
             atoi(strchr(listener_address(listener), ':') + 1));
    run_with(members_until_the_last_place_and_an_admin);
    settle();
    ck_assert_int_eq(hello_count, 14 + 1);
}

/* Each says Hello, begins a record of 60,000 bytes and sends half of it. */
static void greedy_members_and_a_good_one(void)
{
    static const uint8_t payload[60000];
    struct sealed sealed[40];
    for (int i = 0; i < 40; i++) {
        struct byte_queue wire = { 0 };
        greedy_fds[i] = client_connect();
        ck_assert(sealed_open(&sealed[i], greedy_fds[i], keys_join()));
        say(&sealed[i], 1);
        ck_assert_int_eq(hear(&sealed[i]), 2);
        ck_assert_int_eq(channel_seal(sealed[i].channel, payload, sizeof payload, 0, &wire),
                         CAIRN_OK);
        ck_assert_int_eq(write(greedy_fds[i], wire.bytes + wire.start, 30000), 30000);
        byte_queue_release(&wire);
    }
    one_member();
    ck_assert_int_eq(hear(&sealed[0]), 0);
    for (int i = 0; i < 40; i++) {
        sealed_release(&sealed[i]);
        close(greedy_fds[i]);
    }
}

TEST(records_that_never_end_have_little_memory_together)
{
    open_tcp_listener();
    listener->room.max_bytes = 1 << 20;
    run_with(greedy_members_and_a_good_one);
    settle();
    ck_assert_int_eq(hello_count, 41);
    ck_assert_uint_eq(listener->room.used_bytes, 0);
}

static void one_that_shakes_hands_and_is_silent(void)
{
    struct sealed sealed;
    const int fd = client_connect();
    ck_assert(sealed_open(&sealed, fd, keys_join()));
    ck_assert_int_eq(hear(&sealed), 0);
    sealed_release(&sealed);
    close(fd);
}

/* The handshake takes part of the same time. */
TEST(a_member_that_does_not_say_hello_is_closed)
{
    options.hello_timeout_ms = 100;
    open_tcp_listener();
    run_with(one_that_shakes_hands_and_is_silent);
    settle();
    ck_assert_int_eq(gone_count, 0);
}

TEST(a_daemon_without_keys_listens_on_sockets_only)
{
    static const struct listener_events keyless = { .on_frame = on_frame, .on_gone = on_gone };
    struct sentence why;
    options.listen = "127.0.0.1:0";
    ck_assert_int_eq(listener_open(&loop, &options, 1, 90, &keyless, &loop, &listener, &why),
                     CAIRN_ERR_CONFIG);
    ck_assert_ptr_nonnull(strstr(why.text, "knows no keys"));
}

/* ---- addresses ---- */

/* The name service takes it for loopback. */
TEST(a_star_is_every_address)
{
    options.listen = "*:0";
    open_listener();
    ck_assert_int_eq(strncmp(listener_address(listener), "0.0.0.0:", 8), 0);
}

/* Of those that no host has (RFC 5737), as before DHCP has given one. */
TEST(an_address_that_no_device_has_yet_is_listened_on)
{
    options.listen = "198.51.100.7:0 127.0.0.1:0";
    open_listener();
    ck_assert_int_eq(strncmp(listener_address(listener), "198.51.100.7:", 13), 0);
}

/* As the host's own name does where /etc/hosts has it at 127.0.1.1. */
TEST(a_name_that_leads_to_loopback_is_refused)
{
    struct sentence why;
    options.listen = "127.1:0"; // no written form of an address, but the name service takes it
    ck_assert_int_eq(listener_judge(&options, &why), CAIRN_ERR_CONFIG);
    ck_assert_msg(strstr(why.text, "127.1 leads to 127.0.0.1 here, which no other host reaches") !=
                      NULL,
                  "%s", why.text);
    ck_assert_ptr_nonnull(strstr(why.text, "on *:0 for every one of this host, or on localhost:0"));
    options.listen = "localhost:0 127.0.0.1:0";
    ck_assert_int_eq(listener_judge(&options, &why), CAIRN_OK);
}

TEST(a_port_in_use_is_named)
{
    struct sentence why;
    struct listener *second = NULL;
    open_tcp_listener();
    options.listen = (char *)listener_address(listener);
    ck_assert_int_eq(listener_open(&loop, &options, 1, 90, &events, &loop, &second, &why),
                     CAIRN_ERR_BUSY);
    ck_assert_ptr_nonnull(strstr(why.text, listener_address(listener)));
    ck_assert_ptr_null(second);
}

SUITE(60, set_up, tear_down);
