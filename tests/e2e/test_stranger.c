/* Who is at the port of a coordinator with no token, a wrong one, or one that is no longer good: each hears
 * one sentence that says what it is and what to do, or nothing at all. */
#include <arpa/inet.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "proto/base/status.h"
#include "proto/secure/secure.h"
#include "tests/e2e/scene.h"
#include "tests/support/keys.h"

#define COMMAND CAIRN_BIN_DIR "/cairn"
#define SHARD   CAIRN_BIN_DIR "/cairn-shard"

static struct token good; /* of the cluster */

static void set_up(void)
{
    struct sentence why;
    start(1, .coordinator_ip = "127.0.0.1");
    ck_assert_msg(token_read_file(getenv("CAIRN_TOKEN_FILE"), &good, &why) == CAIRN_OK, "%s",
                  why.text);
}

/* Runs a program to its end: what it says is `said`. */
#define run(...) end_run(run_on(NULL, "log", __VA_ARGS__))
static void end_run(pid_t pid)
{
    said.status = cluster_wait(pid, CLUSTER_WAIT_MS);
    if (said.status == -1) cluster_kill(pid);
    snprintf(said.out, sizeof said.out, "%s", cluster_log_text(&cluster, "log"));
    said.err[0] = '\0';
    ck_assert_msg(said.status != -1, "it still runs: %s", said.out);
    remove(in_folder("log"));
}

/* From now on this process and its children have it. */
static void have_token(const struct token *token)
{
    struct sentence why;
    char path[CAIRN_SCRATCH_BYTES + 32];
    snprintf(path, sizeof path, "%s", in_folder("own-token"));
    ck_assert_msg(token_write_file(path, token, &why) == CAIRN_OK, "%s", why.text);
    setenv("CAIRN_TOKEN_FILE", path, 1);
}

static void have_text(const char *text, mode_t mode)
{
    char path[CAIRN_SCRATCH_BYTES + 32];
    cairn_scratch_file(cluster.folder, "own-token", text, path, sizeof path);
    ck_assert_int_eq(chmod(path, mode), 0);
    setenv("CAIRN_TOKEN_FILE", path, 1);
}

/* What the command line, a trainer, and a shard that is started or joins say to it. */
static void expect_refused(const char *what, const char *todo)
{
    const struct cairn_opts opts = { .struct_size = sizeof opts, .endpoint = cluster.address };
    cairn *none = NULL;
    ask("job list");
    ck_assert_int_ne(said.status, 0);
    expect_said(said.status, what, todo);
    const int64_t begin_ms = now_ms();
    ck_assert_int_ne(cairn_open(&opts, &none), CAIRN_OK);
    ck_assert_int_lt(now_ms() - begin_ms, 5000); // it does not go on trying
    expect_error(what);
    expect_error(todo);
    ck_assert_ptr_null(none);
}

/* ---- the file ---- */

TEST(without_a_token_one_hears_where_it_is_looked_for)
{
    unsetenv("CAIRN_TOKEN_FILE");
    expect_refused("is reached over TCP, which takes a token", "CAIRN_TOKEN_FILE");
    run(SHARD " --set shard.name=s --set shard.coordinator=%s --set shard.state=%s",
        cluster.address, in_folder("none"));
    expect_said(status_exit(CAIRN_ERR_REFUSED), "cannot start: ", "takes a token",
                "cairn cluster init");
}

TEST(a_typing_error_is_found_before_anything_is_sent)
{
    char word[CAIRN_TOKEN_TEXT_BYTES];
    token_print(&good, word);
    word[40] = word[40] == 'a' ? 'b' : 'a';
    have_text(word, 0600);
    expect_refused("typing error", "copy it again");
    run(SHARD " --join %s %s --state %s", cluster.address, word, in_folder("none"));
    expect_said(said.status, "typing error");
    ck_assert_int_ne(said.status, 0);
    word[30] = '\0';
    have_text(word, 0600);
    ask("job list");
    expect_said(said.status, "own-token");
    ck_assert_int_ne(said.status, 0);
    ck_assert_int_eq(logged("coordinator.log", "closed a connection"), 0);
}

TEST(a_file_that_others_may_read_is_not_used)
{
    char word[CAIRN_TOKEN_TEXT_BYTES];
    token_print(&good, word);
    have_text(word, 0644);
    expect_refused("others may read the token", "chmod 600");
}

TEST(a_token_in_the_environment_itself_is_not_used)
{
    char word[CAIRN_TOKEN_TEXT_BYTES];
    token_print(&good, word);
    setenv("CAIRN_TOKEN_FILE", word, 1);
    expect_refused("holds a token, which others can read there", "cairn key revoke");
}

/* ---- the token ---- */

TEST(a_token_that_is_unknown_here_hears_nothing)
{
    struct token other = good;
    other.id[0] ^= 1;
    have_token(&other);
    expect_refused("closed the connection without a word", "get a token of this cluster");
    await(logged("coordinator.log", "which is not known here") > 0);
    run(SHARD " --join %s %s --state %s", cluster.address, getenv("CAIRN_TOKEN_FILE"),
        in_folder("none"));
    expect_said(status_exit(CAIRN_ERR_REFUSED), "closed the connection without a word");
    ck_assert_int_ne(access(in_folder("none"), F_OK), 0); // nothing was kept
}

TEST(a_token_whose_secret_is_another_hears_nothing)
{
    struct token other = good;
    other.secret[0] ^= 1;
    have_token(&other);
    expect_refused("closed the connection without a word", "get a token of this cluster");
    await(logged("coordinator.log", "does not know its secret") > 0);
}

/* Whoever has copied a cluster's secrets, and stands at its address. */
TEST(a_coordinator_with_another_key_than_the_tokens_is_told_nothing)
{
    struct token other = good;
    other.pin[0] ^= 1;
    have_token(&other);
    expect_refused("has another key than the token expects", "check the address");
}

TEST(a_token_that_was_revoked_hears_so)
{
    char path[CAIRN_SCRATCH_BYTES + 32];
    snprintf(path, sizeof path, "%s", in_folder("leaver-token"));
    says(0, "", "key add leaver --role worker --to %s", path);
    says(0, "", "key revoke leaver");
    setenv("CAIRN_TOKEN_FILE", path, 1);
    expect_refused("revoked", "cairn key");
}

/* ---- the peer ---- */

static int dial(void)
{
    const struct timeval patience = { 10, 0 };
    const struct sockaddr_in to = { .sin_family = AF_INET,
                                    .sin_port = htons(coordinator_port()),
                                    .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    ck_assert_int_eq(connect(fd, (const struct sockaddr *)&to, sizeof to), 0);
    return fd;
}

/* Says the first message of version 2, and reads what comes until the end. */
static size_t say_version_2(char *answer, size_t answer_bytes)
{
    enum { VERSION_AT = 8 };
    struct curve_key own;
    struct channel *channel;
    struct byte_queue wire = { 0 };
    curve_key_make(&own);
    const struct handshake_options options = handshake_by_token(&good, &own);
    ck_assert_int_eq(channel_open(&options, &channel), CAIRN_OK);
    ck_assert_int_eq(channel_greet(channel, &wire), CAIRN_OK);
    uint8_t *first = wire.bytes + wire.start;
    first[VERSION_AT] = 2;
    keys_sign_first(first, good.secret);
    const int fd = dial();
    ck_assert_int_eq(write(fd, first, CAIRN_HANDSHAKE_FIRST_BYTES), CAIRN_HANDSHAKE_FIRST_BYTES);
    size_t count = 0;
    for (ssize_t got; (got = read(fd, answer + count, answer_bytes - 1 - count)) > 0;)
        count += (size_t)got;
    close(fd);
    channel_close(channel);
    byte_queue_release(&wire);
    return count;
}

TEST(a_peer_of_another_version_that_has_the_secret_is_told_so)
{
    char answer[1024] = "";
    const size_t count = say_version_2(answer, sizeof answer);
    ck_assert_uint_gt(count, 4);
    ck_assert_ptr_nonnull(
        memmem(answer, count, "the same version of Cairn", strlen("the same version of Cairn")));
    await(logged("coordinator.log", "version 2") > 0);
}

TEST(a_peer_that_speaks_no_handshake_hears_nothing)
{
    char answer[16];
    const int fd = dial();
    ck_assert_int_eq(write(fd, "GET / HTTP/1.1\r\n\r\n", 18), 18);
    ck_assert_int_le(read(fd, answer, sizeof answer), 0);
    close(fd);
    await(logged("coordinator.log", "does not begin with Cairn's handshake") > 0);
}

/* Says the bytes of an initiator, and returns how many bytes come back before the end or `wanted`. */
static size_t say_first(const uint8_t *first, size_t wanted)
{
    uint8_t answer[CAIRN_HANDSHAKE_MOST_BYTES];
    size_t count = 0;
    const int fd = dial();
    ck_assert_int_eq(write(fd, first, CAIRN_HANDSHAKE_FIRST_BYTES), CAIRN_HANDSHAKE_FIRST_BYTES);
    for (ssize_t got; count < wanted && (got = read(fd, answer, sizeof answer)) > 0;)
        count += (size_t)got;
    close(fd);
    return count;
}

/* A stranger who has overheard it. */
TEST(a_first_message_that_is_said_again_hears_nothing)
{
    struct curve_key own;
    struct handshake *handshake;
    size_t count;
    curve_key_make(&own);
    const struct handshake_options options = handshake_by_token(&good, &own);
    ck_assert_int_eq(handshake_open(&options, &handshake), CAIRN_OK);
    const uint8_t *first = handshake_to_send(handshake, &count);
    ck_assert_uint_eq(say_first(first, 98), 98);
    for (int i = 0; i < 3; i++) ck_assert_uint_eq(say_first(first, 1), 0);
    handshake_close(handshake);
    await(logged("coordinator.log", "repeats the first message") > 0);
}

/* A trainer's clock is asked for nothing. */
TEST(a_clock_that_is_a_day_off_does_not_matter)
{
    char shift[CAIRN_SCRATCH_BYTES + 32];
    cairn_scratch_file(cluster.folder, "shift", "-86400\n", shift, sizeof shift);
    setenv("CAIRN_SHIFTED_CLOCK", shift, 1);
    setenv("LD_PRELOAD", CAIRN_SHIFTED_CLOCK, 1);
    says(0, "1 shard expected", "cluster status");
    restart_shard(0);
    unsetenv("LD_PRELOAD");
    says(0, "shard-0", "cluster status");
}

TEST(a_trainer_that_closes_its_session_says_so)
{
    join("tiny", TINY(5000));
    train(2);
    leave();
    await_said("\"workers\": 0", "job list -o json");
    ck_assert_int_eq(logged("coordinator.log", "was cut off"), 0);
}

static bool has_v6(void)
{
    const struct sockaddr_in6 here = { .sin6_family = AF_INET6, .sin6_addr = in6addr_loopback };
    const int fd = socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0);
    const bool has = fd >= 0 && bind(fd, (const struct sockaddr *)&here, sizeof here) == 0;
    if (fd >= 0) close(fd);
    if (!has) printf("skip: this host has no IPv6\n");
    return has;
}

TEST(all_of_it_goes_over_ipv6)
{
    if (!has_v6()) return;
    stop();
    start(1, .coordinator_ip = "[::1]");
    ck_assert_ptr_nonnull(strstr(cluster.address, "[::1]:"));
    says(0, "[::1]:", "cluster status");
    join("tiny", TINY(5000));
    train(2);
}

/* ---- joining ---- */

TEST(a_node_joins_by_one_word_and_keeps_it_for_its_shards)
{
    char word[CAIRN_TOKEN_TEXT_BYTES], state[CAIRN_SCRATCH_BYTES + 32];
    token_print(&good, word);
    unsetenv("CAIRN_TOKEN_FILE");
    snprintf(state, sizeof state, "%s", in_folder("joined"));
    // At the first of two addresses nobody listens, as where a coordinator stands by.
    run(SHARD " --join 127.0.0.1:1,%s %s --state %s", cluster.address, word, state);
    expect_said(0, "knows this token", "shard.name=NAME");
    const pid_t pid = run_on(NULL, "joined.log",
                             SHARD " --set shard.name=joined --set shard.state=%s "
                                   "--set memory.limit=64MiB --set memory.lock=%s",
                             state, cluster.folder);
    await(logged("joined.log", "joined cluster") > 0 || cluster_wait(pid, 0) != -1);
    kill(pid, SIGTERM);
    ck_assert_int_eq(cluster_wait(pid, CLUSTER_WAIT_MS), 0);
}

/* A name belongs to the node that said it first. */
TEST(a_shard_of_another_node_does_not_get_the_name)
{
    run("/bin/sh -c 'timeout 3 " SHARD " --set shard.name=shard-0 --set shard.coordinator=%s "
        "--set shard.state=%s/elsewhere --set memory.limit=64MiB --set memory.lock=%s 2>&1'",
        cluster.address, cluster.folder, cluster.folder);
    ck_assert_int_ne(said.status, 0);
    expect_said(said.status, "shard-0", "key revoke shard:shard-0");
    says(0, "up", "cluster status");
}

SUITE(60, set_up, stop);
