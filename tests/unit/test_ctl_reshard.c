/* `cairn reshard` and `cairn member drain` beside a coordinator that is a thread with a script: what they
 * ask, how they wait, what they print, and what an interrupt leaves. */
#include <check.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "proto/wire/wire.h"
#include "tests/support/cluster.h"
#include "tests/support/scratch.h"
#include "tests/support/suite.h"

enum { TEXT_BYTES = 8192 };

/* What it answers to the n-th ReshardAsk; the last one again and again. */
struct answer {
    const char *state, *text;
    uint64_t moved_bytes;
    uint32_t slice;
    uint32_t afresh; // tensors: 2 MiB more move than need be
    cairn_status refused;
};

struct coordinator {
    char folder[CAIRN_SCRATCH_BYTES], socket[CAIRN_SCRATCH_BYTES + 16],
        out[CAIRN_SCRATCH_BYTES + 16];
    int listener;
    pthread_t thread;
    const struct answer *answers; /* [answer_count] */
    size_t answer_count;
    /* what it heard; read when the thread has ended */
    size_t asked;
    Cairn__ReshardAsk *asks[64]; /* owned */
    char drained[64];
    bool drain_waits;
};

static struct coordinator c;
static char text[TEXT_BYTES]; /* both outputs of the command */

/* The next frame's message, or NULL where the connection ends; the caller's to free. */
static ProtobufCMessage *receive(int fd, struct frame_decoder *decoder, struct wire_frame *frame)
{
    struct sentence why;
    while (frame_decoder_next(decoder, frame, &why) != CAIRN_FRAME_READY) {
        uint8_t *room;
        size_t room_bytes;
        if (frame_decoder_reserve(decoder, &room, &room_bytes) != CAIRN_FRAME_NONE) return NULL;
        const ssize_t got = recv(fd, room, room_bytes, 0);
        frame_decoder_added(decoder, got > 0 ? (size_t)got : 0);
        if (got <= 0) return NULL;
    }
    return message_unpack(message_type(frame->type), frame->payload, frame->payload_bytes);
}

static void send_to(int fd, uint16_t type, uint32_t request, const ProtobufCMessage *message)
{
    struct sentence why;
    uint8_t *bytes;
    size_t count;
    if (frame_pack(type, request, message, CAIRN_FRAME_BYTES_MAX, &bytes, &count, &why) != CAIRN_OK)
        return;
    const ssize_t sent = send(fd, bytes, count, MSG_NOSIGNAL);
    (void)sent;
    free(bytes);
}

static void tell(int fd, uint32_t request)
{
    const size_t turn = c.asked - 1 < c.answer_count ? c.asked - 1 : c.answer_count - 1;
    const struct answer *a = &c.answers[turn];
    if (a->refused != CAIRN_OK) {
        Cairn__Error error = CAIRN__ERROR__INIT;
        error.status = (int32_t)a->refused;
        error.text = wire_text(a->text);
        send_to(fd, CAIRN_MSG_ERROR, request, &error.base);
        return;
    }
    Cairn__ReshardPair pair = CAIRN__RESHARD_PAIR__INIT, *pairs[] = { &pair };
    Cairn__ReshardJob job = CAIRN__RESHARD_JOB__INIT, *jobs[] = { &job };
    Cairn__ReshardTold told = CAIRN__RESHARD_TOLD__INIT;
    pair.from = "s1";
    pair.to = "s3";
    pair.bytes = 4 << 20;
    job.name = "gpt";
    job.state = wire_text(a->state);
    job.text = wire_text(a->text);
    job.layout_hash = 0xabcdef;
    job.pairs = pairs;
    job.n_pairs = 1;
    job.least_bytes = job.all_bytes = 4 << 20;
    job.moved_bytes = a->moved_bytes;
    job.heaviest_before = 1.5;
    job.heaviest_after = 1;
    job.pieces_before = 36;
    job.pieces_after = 39;
    job.pieces_fresh = 40;
    job.afresh = a->afresh;
    if (a->afresh > 0) job.all_bytes += 2 << 20;
    job.expected_s = 2.5;
    job.slices = 4;
    job.slice = a->slice;
    job.shards_before = 2;
    job.shards_after = 3;
    job.worst_step = a->moved_bytes > 0 ? 1.04 : 0;
    told.jobs = jobs;
    told.n_jobs = 1;
    send_to(fd, CAIRN_MSG_RESHARD_TOLD, request, &told.base);
}

/* One command's one question. */
static void converse(int fd)
{
    struct frame_decoder decoder;
    struct wire_frame frame;
    const Cairn__Welcome welcome = CAIRN__WELCOME__INIT;
    const Cairn__Done done = CAIRN__DONE__INIT;
    frame_decoder_init(&decoder, (struct frame_limits) { 1, CAIRN_MSG_MAX, CAIRN_FRAME_BYTES_MAX });
    for (ProtobufCMessage *message; (message = receive(fd, &decoder, &frame)) != NULL;) {
        if (frame.type == CAIRN_MSG_HELLO)
            send_to(fd, CAIRN_MSG_WELCOME, frame.request, &welcome.base);
        if (frame.type == CAIRN_MSG_MEMBER_DRAIN) {
            const Cairn__MemberDrain *drain = (const Cairn__MemberDrain *)message;
            snprintf(c.drained, sizeof c.drained, "%s", drain->name);
            c.drain_waits = drain->wait;
            send_to(fd, CAIRN_MSG_DONE, frame.request, &done.base);
        }
        if (frame.type != CAIRN_MSG_RESHARD_ASK || c.asked == 64) {
            message_free(message);
            continue;
        }
        c.asks[c.asked++] = (Cairn__ReshardAsk *)message;
        tell(fd, frame.request);
    }
    frame_decoder_release(&decoder);
}

/* Until the listener is shut down. */
static void *serve(void *none)
{
    for (int fd; (fd = accept(c.listener, NULL, NULL)) >= 0; close(fd)) converse(fd);
    return none;
}

static void end(void)
{
    for (size_t i = 0; i < c.asked; i++) message_free(&c.asks[i]->base);
    close(c.listener);
    cairn_scratch_remove(c.folder);
    c.folder[0] = '\0';
}

/* Ends the one before. */
static void begin(const struct answer *answers, size_t count)
{
    struct sockaddr_un address = { .sun_family = AF_UNIX };
    if (c.folder[0] != '\0') end();
    c = (struct coordinator) { .answers = answers, .answer_count = count };
    cairn_scratch_make_quick(c.folder);
    snprintf(c.socket, sizeof c.socket, "%s/c.sock", c.folder);
    snprintf(c.out, sizeof c.out, "%s/out", c.folder);
    snprintf(address.sun_path, sizeof address.sun_path, "%s", c.socket);
    c.listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    ck_assert_int_eq(bind(c.listener, (struct sockaddr *)&address, sizeof address), 0);
    ck_assert_int_eq(listen(c.listener, 8), 0);
    ck_assert_int_eq(pthread_create(&c.thread, NULL, serve, NULL), 0);
}

static void hear_no_more(void)
{
    shutdown(c.listener, SHUT_RDWR);
    pthread_join(c.thread, NULL);
}

/* Of words with a space between them. */
static pid_t start(const char *line)
{
    static char words[256];
    char *rest = words;
    const char *argv[32] = { CAIRN_BIN_DIR "/cairn", "--endpoint", c.socket };
    size_t count = 3;
    snprintf(words, sizeof words, "%s", line);
    for (char *word; (word = strsep(&rest, " ")) != NULL;) argv[count++] = word;
    return cluster_spawn(argv, c.out);
}

static void read_out(void)
{
    FILE *file = fopen(c.out, "re");
    ck_assert_ptr_nonnull(file);
    text[fread(text, 1, TEXT_BYTES - 1, file)] = '\0';
    fclose(file);
}

/* The exit status of the command beside a coordinator that answers so. */
static int run(const struct answer *answers, size_t count, const char *line)
{
    begin(answers, count);
    const int status = cluster_wait(start(line), CLUSTER_WAIT_MS);
    hear_no_more();
    read_out();
    return status;
}

static void says(const char *wanted)
{
    ck_assert_msg(strstr(text, wanted) != NULL, "%s\nlacks: %s", text, wanted);
}

TEST(a_plan_asks_what_was_given_and_says_what_would_move)
{
    static const struct answer planned[] = { { .state = "planned", .text = "" } };
    ck_assert_int_eq(
        run(planned, 1, "reshard plan gpt --shards 3 --add s3 --add s4 --drain s2 --weight s3=1.5"),
        0);
    ck_assert_uint_eq(c.asked, 1);
    const Cairn__ReshardAsk *ask = c.asks[0];
    ck_assert_str_eq(ask->job, "gpt");
    ck_assert_uint_eq(ask->op, CAIRN_RESHARD_PLAN);
    ck_assert_uint_eq(ask->shards, 3);
    ck_assert_uint_eq(ask->n_add, 2);
    ck_assert_str_eq(ask->add[1], "s4");
    ck_assert_str_eq(ask->drain[0], "s2");
    ck_assert_str_eq(ask->weights[0]->name, "s3");
    ck_assert_double_eq(ask->weights[0]->weight, 1.5);
    says("shards            2, then 3\n");
    says("moves             4.0 MiB in 4 slices; the least that levels the shards is 4.0 MiB\n");
    says("heaviest shard    1.50 of the mean, then 1.00\n");
    says("pieces            36 of its tensors on shards, then 39; a fresh layout has 40\n");
    says("expected          2.5 s\n");
    says("FROM  TO  BYTES\ns1    s3  4.0 MiB\n");
}

TEST(a_plan_that_moves_more_than_the_least_says_how_much_and_why)
{
    static const struct answer planned[] = { { .state = "planned", .text = "", .afresh = 3 } };
    ck_assert_int_eq(run(planned, 1, "reshard plan gpt"), 0);
    says("moves             6.0 MiB in 4 slices; the least that levels the shards is 4.0 MiB\n"
         "                  2.0 MiB more than the least, since 3 tensors would lie in too many "
         "pieces\n");
}

/* The plan, what begins it, a coordinator that is away, and two looks. */
TEST(what_is_applied_is_the_plan_that_was_shown_and_its_end_is_awaited)
{
    static const struct answer answers[] = {
        { .state = "planned", .text = "" },
        { .state = "moving", .text = "" },
        { .state = "moving", .text = "", .moved_bytes = 1 << 20, .slice = 1 },
        { .state = "moving", .text = "", .moved_bytes = 3 << 20, .slice = 3 },
        { .state = "done", .text = "", .moved_bytes = 4 << 20, .slice = 4 },
    };
    ck_assert_int_eq(run(answers, 5, "reshard apply gpt --pause 5%"), 0);
    ck_assert_uint_eq(c.asked, 5);
    ck_assert_uint_eq(c.asks[0]->op, CAIRN_RESHARD_PLAN);
    ck_assert_uint_eq(c.asks[1]->op, CAIRN_RESHARD_APPLY);
    ck_assert_uint_eq(c.asks[1]->layout_hash, 0xabcdef);
    ck_assert_double_eq_tol(c.asks[1]->pause, 0.05, 1e-12);
    for (int i = 2; i < 5; i++) ck_assert_uint_eq(c.asks[i]->op, CAIRN_RESHARD_STATUS);
    says("cairn: 25 %: 1.0 MiB of 4.0 MiB, slice 1 of 4\n");
    says("cairn: 75 %: 3.0 MiB of 4.0 MiB, slice 3 of 4\n");
    says("gpt  done   4 of 4  4.0 MiB  4.0 MiB");
    says("+4.0 %");
}

TEST(a_move_that_fails_or_is_canceled_ends_the_command_with_its_words)
{
    static const struct {
        struct answer answers[3];
        int status;
        const char *says;
    } table[] = {
        { { { .state = "planned", .text = "" },
            { .state = "moving", .text = "" },
            { .state = "failed", .text = "shard s3 has no room: 5 of 4 MiB" } },
          12,
          "job gpt: shard s3 has no room: 5 of 4 MiB [CAIRN-E0062]" },
        { { { .state = "planned", .text = "" },
            { .state = "moving", .text = "" },
            { .state = "canceled", .text = "after slice 1 of 4", .moved_bytes = 1 << 20 } },
          130,
          "job gpt: after slice 1 of 4 [CAIRN-E0028]" },
        { { { .refused = CAIRN_ERR_BUSY, .text = "another one goes on" } },
          11,
          "another one goes on [CAIRN-E0005]" },
    };
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        ck_assert_int_eq(run(table[i].answers, 3, "reshard apply gpt"), table[i].status);
        says(table[i].says);
    }
}

TEST(of_all_jobs_what_was_refused_is_said_and_is_the_exit_status)
{
    static const struct {
        struct answer answers[2];
        const char *line;
        int status;
        const char *says, *lacks;
    } table[] = {
        { { { .state = "refused", .text = "shard s9 is not here" },
            { .state = "done", .text = "" } },
          "reshard apply --all",
          12,
          "job gpt: shard s9 is not here [CAIRN-E0062]",
          "done" },
        { { { .state = "refused", .text = "shard s9 is not here" } },
          "reshard plan --all",
          12,
          "job gpt: shard s9 is not here [CAIRN-E0062]",
          "heaviest" },
        { { { .state = "refused", .text = "none of job gpt" } },
          "reshard cancel --all",
          4,
          "no re-sharding is under way: there is nothing to cancel [CAIRN-E0006]",
          "canceled" },
    };
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        ck_assert_int_eq(run(table[i].answers, 2, table[i].line), table[i].status);
        says(table[i].says);
        ck_assert_msg(strstr(text, table[i].lacks) == NULL, "%s", text);
    }
}

TEST(an_interrupt_leaves_it_running_and_says_how_to_look)
{
    static const struct answer answers[] = {
        { .state = "planned", .text = "" },
        { .state = "moving", .text = "" },
        { .state = "moving", .text = "", .moved_bytes = 1 << 20, .slice = 1 },
    };
    begin(answers, 3);
    const pid_t pid = start("reshard apply gpt");
    while (strstr(text, "25 %") == NULL) { // the suite's time bounds it
        ck_assert_int_eq(cluster_wait(pid, 5), -1);
        read_out();
    }
    kill(pid, SIGINT);
    ck_assert_int_eq(cluster_wait(pid, CLUSTER_WAIT_MS), 130);
    hear_no_more();
    read_out();
    says("the move goes on: `cairn reshard status gpt` says how far it is, `cairn reshard cancel "
         "gpt` ends it after the current slice\n");
    for (size_t i = 0; i < c.asked; i++) ck_assert_uint_ne(c.asks[i]->op, CAIRN_RESHARD_CANCEL);
}

TEST(status_cancel_and_json)
{
    static const struct answer moving[] = {
        { .state = "moving", .text = "it waits for a snapshot", .moved_bytes = 1 << 20, .slice = 2 }
    };
    static const struct {
        const char *line;
        uint32_t op;
        bool all;
        const char *says;
    } table[] = {
        { "reshard status", CAIRN_RESHARD_STATUS, true, "it waits for a snapshot" },
        { "reshard status gpt", CAIRN_RESHARD_STATUS, false, "2 of 4" },
        { "reshard status -o json", CAIRN_RESHARD_STATUS, true, "\"moved_bytes\": 1048576" },
        { "reshard cancel gpt", CAIRN_RESHARD_CANCEL, false,
          "canceled          job gpt: its move ends after slice 2 of 4; 1.0 MiB have moved\n" },
        { "reshard cancel --all", CAIRN_RESHARD_CANCEL, true, "canceled" },
        { "reshard plan --all -o json", CAIRN_RESHARD_PLAN, true, "\"least_bytes\": 4194304" },
    };
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        ck_assert_int_eq(run(moving, 1, table[i].line), 0);
        ck_assert_uint_eq(c.asked, 1);
        ck_assert_uint_eq(c.asks[0]->op, table[i].op);
        ck_assert_int_eq(c.asks[0]->all, table[i].all);
        says(table[i].says);
    }
}

TEST(a_shard_is_drained_by_its_name)
{
    static const struct answer none[] = { { .state = "none", .text = "" } };
    ck_assert_int_eq(run(none, 1, "member drain s2"), 0);
    ck_assert_str_eq(c.drained, "s2");
    ck_assert(c.drain_waits);
    says("drained           s2, which ends and is forgotten\n");
}

TEST(a_line_that_makes_no_sense_asks_nobody)
{
    static const struct answer none[] = { { .state = "none", .text = "" } };
    static const struct {
        const char *line;
        const char *says;
    } table[] = {
        { "reshard plan", "name a job, or give --all" },
        { "reshard apply gpt --all", "give a job or --all, not both" },
        { "reshard plan gpt --weight s1", "NAME=W" },
        { "reshard plan gpt --weight s1=nan", "above 0" },
        { "reshard plan gpt --weight s1=0", "--drain takes all off a shard" },
        { "reshard plan gpt --pause 5%", "does not take --pause" },
        { "reshard apply gpt --pause 5", "a percentage" },
        { "reshard apply gpt --shards 0", "--shards 0" },
        { "reshard status gpt --add s1", "does not take --add" },
    };
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        ck_assert_int_eq(run(none, 1, table[i].line), 2);
        ck_assert_uint_eq(c.asked, 0);
        says(table[i].says);
    }
}

SUITE(60, .tear_down = end);
