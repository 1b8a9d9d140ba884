/* The socket that a coordinator listens on: whom its mode lets in, what it replaces, what it leaves alone. */
#include "server/base/listener.h"
#include "tests/support/scratch_folder.h"
#include "tests/support/keys.h"
#include "tests/support/suite.h"

#include <check.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

static char path[CAIRN_SCRATCH_BYTES + 16];
static struct sentence why;

static void set_up(void)
{
    signal(SIGPIPE, SIG_IGN);
    scratch_make();
    snprintf(path, sizeof path, "%s/sock", scratch);
}

static int connect_to(const char *where)
{
    struct sockaddr_un addr = { .sun_family = AF_UNIX };
    snprintf(addr.sun_path, sizeof addr.sun_path, "%s", where);
    const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    ck_assert_int_ge(fd, 0);
    if (connect(fd, (struct sockaddr *)&addr, sizeof addr) == 0) return fd;
    close(fd);
    return -1;
}

static void is_reachable(const char *where)
{
    const int fd = connect_to(where);
    ck_assert_int_ge(fd, 0);
    close(fd);
}

static mode_t mode_of(const char *where)
{
    struct stat st;
    ck_assert_int_eq(lstat(where, &st), 0);
    return st.st_mode & 0777;
}

static cairn_status make(int *fd_out)
{
    struct control_socket socket = { .fd = -1 };
    const cairn_status status = control_socket_open(path, CAIRN_SOCKET_MODE, 16, &socket, &why);
    *fd_out = socket.fd;
    return status;
}

static int made(void)
{
    int fd;
    ck_assert_msg(make(&fd) == CAIRN_OK, "%s", why.text);
    return fd;
}

TEST(its_mode_lets_user_and_group_in_whatever_the_umask)
{
    static const mode_t masks[] = { 0, 0027, 0777 };
    for (size_t i = 0; i < sizeof masks / sizeof *masks; i++) {
        const mode_t before = umask(masks[i]);
        const int fd = made();
        umask(before);
        ck_assert_uint_eq(mode_of(path), 0660);
        is_reachable(path);
        close(fd);
    }
}

TEST(that_of_a_dead_daemon_is_replaced)
{
    close(made());
    ck_assert_int_lt(connect_to(path), 0); // it is there, and nobody listens
    const int fd = made();
    is_reachable(path);
    close(fd);
}

TEST(that_of_a_living_one_is_refused_and_goes_on)
{
    const int fd = made();
    int second;
    ck_assert_int_eq(make(&second), CAIRN_ERR_BUSY);
    ck_assert_ptr_nonnull(strstr(why.text, path));
    ck_assert_ptr_nonnull(strstr(why.text, "another program listens there; stop it"));
    ck_assert_int_eq(second, -1);
    is_reachable(path);
    close(fd);
}

TEST(what_is_no_socket_is_refused_and_stays)
{
    char file[CAIRN_SCRATCH_BYTES + 16];
    int fd = -1;
    cairn_scratch_file(scratch, "sock", "precious", file, sizeof file);
    ck_assert_int_eq(make(&fd), CAIRN_ERR_CONFIG);
    ck_assert_ptr_nonnull(strstr(why.text, "no socket; remove it"));
    ck_assert_int_eq(access(file, F_OK), 0);
    unlink(file);
    ck_assert_int_eq(symlink("/nowhere/at/all", path), 0);
    ck_assert_int_eq(make(&fd), CAIRN_ERR_CONFIG);
    snprintf(path, sizeof path, "%s/no/sock", scratch);
    ck_assert_int_eq(make(&fd), CAIRN_ERR_CONFIG);
    ck_assert_ptr_nonnull(strstr(why.text, "its folder cannot be opened: No such file"));
    ck_assert_int_eq(fd, -1);
}

enum { STARTERS = 8 };

/* A child: at the word it tries, says how that went, and, if it listens, does until the test is over. */
static void start_one(int go_fd, int said_fd, int end_fd)
{
    char byte;
    int fd = -1;
    (void)!read(go_fd, &byte, 1);
    const cairn_status status = make(&fd);
    byte = status == CAIRN_OK ? 'o' : status == CAIRN_ERR_BUSY ? 'b' : '?';
    (void)!write(said_fd, &byte, 1);
    (void)!read(end_fd, &byte, 1);
    _exit(0);
}

TEST(of_many_that_start_at_once_beside_a_dead_ones_socket_one_listens)
{
    int go[2], said[2], end[2], listening = 0, refused = 0;
    close(made());
    ck_assert_int_eq(pipe2(go, O_CLOEXEC), 0);
    ck_assert_int_eq(pipe2(said, O_CLOEXEC), 0);
    ck_assert_int_eq(pipe2(end, O_CLOEXEC), 0);
    for (int i = 0; i < STARTERS; i++) {
        if (fork() > 0) continue;
        close(end[1]); // or no child would see its end
        start_one(go[0], said[1], end[0]);
    }
    ck_assert_int_eq(write(go[1], "gogogogo", STARTERS), STARTERS);
    for (int i = 0; i < STARTERS; i++) {
        char byte;
        ck_assert_int_eq(read(said[0], &byte, 1), 1);
        listening += byte == 'o';
        refused += byte == 'b';
    }
    is_reachable(path);
    close(end[1]);
    while (wait(NULL) > 0) {}
    ck_assert_int_eq(listening, 1);
    ck_assert_int_eq(refused, STARTERS - 1);
}

/* ---- a listener with several addresses ---- */

static int hello_count;
static char peers[4][CAIRN_ADDRESS_TEXT_BYTES];

static void on_frame(struct peer *peer, const struct wire_frame *frame, void *context)
{
    (void)frame;
    (void)context;
    snprintf(peers[hello_count++ % 4], sizeof *peers, "%s", peer_name(peer));
    peer_close(peer, CAIRN_OK, "heard");
}

static void on_gone(struct peer *peer, cairn_status status, const char *text, void *context)
{
    (void)peer;
    (void)status;
    (void)text;
    (void)context;
}

static const struct listener_events events = {
    .on_frame = on_frame, .on_gone = on_gone, .find = keys_find, .identify = keys_identify
};

static void say_hello(uv_loop_t *loop, const char *where)
{
    const bool is_tcp = where[0] != '/';
    const struct stream_options options = { .limits = { 1, 9, CAIRN_FRAME_HELLO_BYTES },
                                            .secure = is_tcp ? keys_join() : NULL };
    const struct stream_events ends = { .on_open = NULL };
    struct stream_address address;
    struct stream *stream;
    const int before = hello_count;
    ck_assert_msg(address_parse(where, &address, &why) == CAIRN_OK, "%s", why.text);
    ck_assert_int_eq(stream_connect(loop, &address, 5000, &options, &ends, NULL, &stream, &why),
                     CAIRN_OK);
    ck_assert_int_eq(stream_send_bytes(stream, 1, 1, "x", 1, &why), CAIRN_OK);
    while (hello_count == before) uv_run(loop, UV_RUN_ONCE);
}

static cairn_status listen_at(uv_loop_t *loop, const char *where, struct listener **out)
{
    const struct listener_options options = { .listen = wire_text(where),
                                              .connections_max = 16,
                                              .half_open_max = 4,
                                              .hello_timeout_ms = 5000,
                                              .send_queue_bytes = 1 << 20 };
    return listener_open(loop, &options, 1, 9, &events, NULL, out, &why);
}

TEST(a_listener_has_sockets_and_ports_side_by_side_and_tells_who_came)
{
    uv_loop_t loop;
    struct listener *listener = NULL;
    char where[256], told[3][128], who[64];
    uv_loop_init(&loop);
    snprintf(where, sizeof where, " %s  127.0.0.1:0 unix:%s2", path, path);
    ck_assert_msg(listen_at(&loop, where, &listener) == CAIRN_OK, "%s", why.text);
    ck_assert_int_eq(
        sscanf(listener_address(listener), "%127s %127s %127s", told[0], told[1], told[2]), 3);
    ck_assert_str_eq(told[0], path);
    ck_assert_int_eq(strncmp(told[1], "127.0.0.1:", 10), 0);
    ck_assert_int_eq(strncmp(told[2], path, strlen(path)), 0);
    for (int i = 0; i < 3; i++) say_hello(&loop, told[i]);
    snprintf(who, sizeof who, "pid=%ld,uid=%lu", (long)getpid(), (unsigned long)getuid());
    ck_assert_str_eq(peers[0], who);
    ck_assert_int_eq(strncmp(peers[1], "127.0.0.1:", 10), 0);
    ck_assert_str_eq(peers[2], who);
    listener_close(listener, NULL);
    ck_assert_int_ne(access(told[0], F_OK), 0); // gone with it, at once
    ck_assert_int_ne(access(told[2], F_OK), 0);
    uv_run(&loop, UV_RUN_DEFAULT);
    ck_assert_int_eq(uv_loop_close(&loop), 0);
}

/* Ours was deleted by somebody, and another daemon begins to listen at the path before we end. */
TEST(a_listener_that_ends_leaves_the_socket_that_another_made_at_its_path)
{
    uv_loop_t loop;
    struct listener *listener = NULL;
    uv_loop_init(&loop);
    ck_assert_msg(listen_at(&loop, path, &listener) == CAIRN_OK, "%s", why.text);
    ck_assert_int_eq(unlink(path), 0);
    const int fd = made();
    listener_close(listener, NULL);
    ck_assert_int_eq(uv_run(&loop, UV_RUN_DEFAULT), 0);
    ck_assert_int_eq(uv_loop_close(&loop), 0);
    is_reachable(path);
    close(fd);
}

TEST(without_an_address_it_is_the_socket_that_peers_look_for)
{
    uv_loop_t loop;
    struct listener *listener = NULL;
    char expected[CAIRN_ADDRESS_TEXT_BYTES], found[CAIRN_ADDRESS_TEXT_BYTES];
    uv_loop_init(&loop);
    setenv("XDG_RUNTIME_DIR", scratch, 1);
    ck_assert_msg(listen_at(&loop, "", &listener) == CAIRN_OK, "%s", why.text);
    snprintf(expected, sizeof expected, "%s/cairn/coordinator.sock", scratch);
    ck_assert_str_eq(listener_address(listener), expected);
    ck_assert(address_find(scratch, found));
    ck_assert_str_eq(found, expected);
    say_hello(&loop, found);
    snprintf(found, sizeof found, "%s/cairn", scratch);
    ck_assert_uint_eq(mode_of(found) & 0007, 0);
    listener_close(listener, NULL);
    uv_run(&loop, UV_RUN_DEFAULT);
    setenv("XDG_RUNTIME_DIR", "/nowhere/at/all", 1);
    ck_assert_int_eq(listen_at(&loop, "", &listener), CAIRN_ERR_CONFIG);
    ck_assert_ptr_nonnull(strstr(why.text, "/nowhere/at/all/cairn"));
    ck_assert_ptr_nonnull(strstr(why.text, "set listen in [network]"));
    uv_run(&loop, UV_RUN_DEFAULT);
    ck_assert_int_eq(uv_loop_close(&loop), 0);
}

TEST(one_bad_address_of_several_leaves_nothing_behind)
{
    uv_loop_t loop;
    struct listener *listener = NULL;
    char where[256];
    uv_loop_init(&loop);
    snprintf(where, sizeof where, "%s 127.1:0", path); // a name that leads to loopback
    ck_assert_int_eq(listen_at(&loop, where, &listener), CAIRN_ERR_CONFIG);
    ck_assert_int_ne(access(path, F_OK), 0);
    uv_run(&loop, UV_RUN_DEFAULT);
    ck_assert_int_eq(uv_loop_close(&loop), 0);
}

SUITE(60, set_up, scratch_remove);
