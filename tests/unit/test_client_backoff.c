/* A coordinator that welcomes everybody and closes the connection at the first word about a job: the client
 * comes back, but less and less often. */
#include <cairn.h>
#include <check.h>
#include <endian.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "proto/wire/wire.h"
#include "tests/support/good.h"
#include "tests/support/scratch.h"
#include "tests/support/suite.h"

enum {
    TRY_MS = 1600,
    CONNECTIONS_MAX = 8,
    REQUEST_AT = 12 /* in the header of a frame */
};                  /* 50 + 100 + 200 + 400 + 800 ms between them */

static char folder[CAIRN_SCRATCH_BYTES];
static int listening;
static atomic_int connections;
static atomic_int answers; /* a status; 0: it closes without a word */

static void say(int fd, uint16_t type, uint32_t request, const ProtobufCMessage *message)
{
    uint8_t *frame;
    size_t bytes;
    ck_assert_int_eq(
        frame_pack(type, request, message, CAIRN_FRAME_BYTES_MAX, &frame, &bytes, NULL), CAIRN_OK);
    ck_assert_int_eq(send(fd, frame, bytes, MSG_NOSIGNAL), (ssize_t)bytes);
    free(frame);
}

static void welcome(int fd)
{
    Cairn__Welcome message = CAIRN__WELCOME__INIT;
    message.heartbeat_ms = 1000;
    message.lease_ms = 5000;
    say(fd, CAIRN_MSG_WELCOME, 1, &message.base);
}

/* Answers the first request of these words. */
static void fail_it(int fd, const char *words)
{
    uint32_t request;
    memcpy(&request, words + REQUEST_AT, sizeof request);
    Cairn__Error message = CAIRN__ERROR__INIT;
    message.status = answers;
    message.text = wire_text("s1: it restarted without its part");
    say(fd, CAIRN_MSG_ERROR, le32toh(request), &message.base);
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
        if (answers) fail_it(fd, words);
        if (answers) (void)!recv(fd, words, sizeof words, 0);
    }
    return arg;
}

static pthread_t thread;
static cairn *session;

static void set_up(void)
{
    char endpoint[CAIRN_SCRATCH_BYTES + 16];
    const struct cairn_opts opts = { .struct_size = sizeof opts, .endpoint = endpoint };
    struct sockaddr_un address = { .sun_family = AF_UNIX };
    cairn_scratch_make_quick(folder);
    snprintf(endpoint, sizeof endpoint, "%s/socket", folder);
    snprintf(address.sun_path, sizeof address.sun_path, "%s", endpoint);
    listening = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    ck_assert_int_ge(listening, 0);
    ck_assert_int_eq(bind(listening, (struct sockaddr *)&address, sizeof address), 0);
    ck_assert_int_eq(listen(listening, 16), 0);
    ck_assert_int_eq(pthread_create(&thread, NULL, refuse_all, NULL), 0);
    good(cairn_open(&opts, &session));
}

static void tear_down(void)
{
    cairn_close(session);
    shutdown(listening, SHUT_RDWR);
    pthread_join(thread, NULL);
    close(listening);
    cairn_scratch_remove(folder);
}

TEST(a_coordinator_that_closes_at_once_is_asked_less_and_less_often)
{
    cairn_job *job;
    fails(cairn_job_open(session, "toy", NULL, CAIRN_READER, TRY_MS, &job), CAIRN_ERR_TIMEOUT, "");
    ck_assert_int_ge(connections, 2); // it goes on trying
    ck_assert_int_le(connections, CONNECTIONS_MAX);
}

/* A shard that restarts ends a restore with the same status as a session that is closed. */
TEST(what_the_coordinator_answers_is_told_as_it_is_also_where_it_says_closed)
{
    answers = CAIRN_ERR_CLOSED;
    fails(cairn_job_restore(session, "toy", "20260101T000000Z-1-1", CAIRN_RESTORE_REPLACE, 5000,
                            NULL, NULL),
          CAIRN_ERR_CLOSED, "");
    ck_assert_str_eq(cairn_error(), "s1: it restarted without its part");
}

/* A job that is lost while a worker waits for its shards puts that worker out, too. */
TEST(a_job_that_is_being_restored_is_waited_for_by_whoever_opens_it)
{
    cairn_job *job;
    answers = CAIRN_ERR_ROLLED_BACK;
    fails(cairn_job_open(session, "toy", NULL, CAIRN_READER, TRY_MS, &job), CAIRN_ERR_TIMEOUT,
          "it restarted without its part");
    ck_assert_int_ge(connections, 2); // it asked again
    answers = CAIRN_ERR_JOB_LOST;
    fails(cairn_job_open(session, "toy", NULL, CAIRN_READER, TRY_MS, &job), CAIRN_ERR_JOB_LOST,
          "it restarted without its part");
}

SUITE(30, set_up, tear_down);
