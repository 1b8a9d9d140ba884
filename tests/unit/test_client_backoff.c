/* A coordinator that welcomes everybody and closes the connection at the first word about a job: the client
 * comes back, but less and less often. */
#include <arpa/inet.h>
#include <cairn.h>
#include <check.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include "proto/wire/wire.h"
#include "tests/support/suite.h"

enum { TRY_MS = 1600, CONNECTIONS_MAX = 8 }; /* 50 + 100 + 200 + 400 + 800 ms between them */

static int listening;
static atomic_int connections;
static atomic_bool answers;

static void welcome(int fd)
{
    Cairn__Welcome message = CAIRN__WELCOME__INIT;
    uint8_t *frame;
    size_t bytes;
    message.heartbeat_ms = 1000;
    message.lease_ms = 5000;
    ck_assert_int_eq(frame_pack(CAIRN_MSG_WELCOME, 1, &message.base, CAIRN_FRAME_BYTES_MAX, &frame,
                                &bytes, NULL),
                     CAIRN_OK);
    ck_assert_int_eq(send(fd, frame, bytes, MSG_NOSIGNAL), (ssize_t)bytes);
    free(frame);
}

/* An answer to the second request of the connection. */
static void fail_it(int fd)
{
    Cairn__Error message = CAIRN__ERROR__INIT;
    uint8_t *frame;
    size_t bytes;
    message.status = CAIRN_ERR_CLOSED;
    message.text = wire_text("s1: it restarted without its part");
    ck_assert_int_eq(
        frame_pack(CAIRN_MSG_ERROR, 2, &message.base, CAIRN_FRAME_BYTES_MAX, &frame, &bytes, NULL),
        CAIRN_OK);
    ck_assert_int_eq(send(fd, frame, bytes, MSG_NOSIGNAL), (ssize_t)bytes);
    free(frame);
}

/* Until the socket is shut down. */
static void *refuse_all(void *arg)
{
    char words[4096];
    for (int fd; (fd = accept(listening, NULL, NULL)) >= 0; close(fd)) {
        connections++;
        if (recv(fd, words, sizeof words, 0) <= 0) continue; // its Hello
        welcome(fd);
        if (recv(fd, words, sizeof words, 0) <= 0) continue; // of a job, or its end
        if (answers) fail_it(fd);
        if (answers) (void)!recv(fd, words, sizeof words, 0);
    }
    return arg;
}

static void open_listener(char endpoint[64])
{
    struct sockaddr_in address = { .sin_family = AF_INET,
                                   .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    socklen_t bytes = sizeof address;
    listening = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    ck_assert_int_ge(listening, 0);
    ck_assert_int_eq(bind(listening, (struct sockaddr *)&address, bytes), 0);
    ck_assert_int_eq(listen(listening, 16), 0);
    ck_assert_int_eq(getsockname(listening, (struct sockaddr *)&address, &bytes), 0);
    snprintf(endpoint, 64, "127.0.0.1:%d", ntohs(address.sin_port));
}

TEST(a_coordinator_that_closes_at_once_is_asked_less_and_less_often)
{
    char endpoint[64];
    open_listener(endpoint);
    pthread_t thread;
    ck_assert_int_eq(pthread_create(&thread, NULL, refuse_all, NULL), 0);
    const struct cairn_opts opts = { .struct_size = sizeof opts, .endpoint = endpoint };
    cairn *session;
    cairn_job *job;
    ck_assert_msg(cairn_open(&opts, &session) == CAIRN_OK, "%s", cairn_error());
    ck_assert_int_eq(cairn_job_open(session, "toy", NULL, CAIRN_READER, TRY_MS, &job),
                     CAIRN_ERR_TIMEOUT);
    ck_assert_int_ge(connections, 2); // it goes on trying
    ck_assert_int_le(connections, CONNECTIONS_MAX);
    cairn_close(session);
    shutdown(listening, SHUT_RDWR);
    pthread_join(thread, NULL);
    close(listening);
}

/* A shard that restarts ends a restore with the same status as a session that is closed. */
TEST(what_the_coordinator_answers_is_told_as_it_is_also_where_it_says_closed)
{
    char endpoint[64];
    open_listener(endpoint);
    pthread_t thread;
    answers = true;
    ck_assert_int_eq(pthread_create(&thread, NULL, refuse_all, NULL), 0);
    const struct cairn_opts opts = { .struct_size = sizeof opts, .endpoint = endpoint };
    cairn *session;
    ck_assert_msg(cairn_open(&opts, &session) == CAIRN_OK, "%s", cairn_error());
    ck_assert_int_eq(cairn_job_restore(session, "toy", "20260101T000000Z-1-1",
                                       CAIRN_RESTORE_REPLACE, 5000, NULL, NULL),
                     CAIRN_ERR_CLOSED);
    ck_assert_str_eq(cairn_error(), "s1: it restarted without its part");
    cairn_close(session);
    shutdown(listening, SHUT_RDWR);
    pthread_join(thread, NULL);
    close(listening);
}

SUITE(30);
