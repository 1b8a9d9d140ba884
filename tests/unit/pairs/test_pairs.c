/* What is answered to each operation while each other one is under way, and what comes of both once nothing
 * holds the first one and the worker goes on: held against tests/golden/pairs. CAIRN_GOLDEN_WRITE=1 writes
 * that anew. usage: test_pairs [PART PARTS] */
#include <check.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/golden.h"
#include "tests/support/suite.h"
#include "tests/unit/pairs/pairs.h"

#define STEPS_MAX 30

struct fake_peer second = { .fd = -1 }, reader = { .fd = -1 },
                 joining[2] = { { .fd = -1 }, { .fd = -1 } };
uint64_t pairs_round;
char pairs_unasked[PAIRS_TEXT_BYTES];
struct question pairs_running, pairs_asked;

/* ---- what comes ---- */

static bool is_committing, is_out;

static void note_round(uint16_t type, const ProtobufCMessage *message)
{
    if (type == CAIRN_MSG_ROUND_OPENED) pairs_round = ((const Cairn__RoundOpened *)message)->round;
    if (type == CAIRN_MSG_ROUND_RESULT) is_committing = false;
    if (type == CAIRN_MSG_ROUND_RESULT &&
        ((const Cairn__RoundResult *)message)->round == pairs_round)
        pairs_round = 0;
}

static void note_unasked(const struct fake_peer *peer, uint16_t type,
                         const ProtobufCMessage *message)
{
    char told[PAIRS_TEXT_BYTES];
    const bool is_end = type == CAIRN_MSG_ERROR || type == CAIRN_MSG_ROUND_RESULT;
    if (peer == &w && type == CAIRN_MSG_ERROR) is_out = true;
    if (!is_end) return;
    pairs_tell(type, message, told);
    const size_t length = strlen(pairs_unasked);
    FILE *out = fmemopen(pairs_unasked + length, sizeof pairs_unasked - length, "w");
    ck_assert_ptr_nonnull(out);
    fprintf(out, "    %s is told: %s\n",
            peer == &w        ? "the worker"
            : peer == &reader ? "the reader"
                              : "the newcomer",
            told);
    fclose(out);
}

static void take(struct fake_peer *peer, const struct wire_frame *frame)
{
    struct question *const questions[] = { &pairs_running, &pairs_asked };
    ProtobufCMessage *message = message_unpack(message_type(frame->type), frame->payload,
                                               frame->payload_bytes);
    ck_assert_ptr_nonnull(message);
    note_round(frame->type, message);
    if (frame->request == 0) note_unasked(peer, frame->type, message);
    for (int i = 0; i < 2; i++) {
        struct question *q = questions[i];
        if (q->peer != peer || q->request != frame->request || q->request == 0 || q->is_answered)
            continue;
        q->is_answered = true;
        pairs_tell(frame->type, message, q->answer);
    }
    message_free(message);
}

bool pairs_read(void)
{
    struct fake_peer *const peers[] = { &w, &admin, &second, &reader, &joining[0], &joining[1] };
    bool any = false;
    for (size_t i = 0; i < sizeof peers / sizeof *peers; i++) {
        struct wire_frame frame;
        if (peers[i]->fd < 0) continue;
        fake_peer_read(peers[i]);
        while (fake_peer_next(peers[i], &frame)) {
            if (frame.type == CAIRN_MSG_HEARTBEAT || frame.type == CAIRN_MSG_PAGE) continue;
            take(peers[i], &frame);
            any = true;
        }
    }
    return any;
}

/* ---- the scene ---- */

/* Committed, read once more, and what may go because of it is gone: a work makes the folder, one commits it,
 * and one follows after it was read. */
static void save(void)
{
    const uint64_t before = pairs_works_begun();
    take_snapshot();
    fake_until(&fake, pairs_works_begun() >= before + 3);
    pairs_settle(NULL);
}

static void come_as_reader(void)
{
    reader = fake_connect(&fake, CAIRN_ROLE_WIRE_READER, "r0");
    const uint32_t request = fake_ask(&reader, JobOpen, .name = "toy",
                                      .role = CAIRN_ROLE_WIRE_READER, .session = 70);
    fake_hear(&reader, Attached, request);
}

static void park(void)
{
    fake_call(&admin, JobParked, JobPark, .name = "toy", .parked = true);
}

/* As if nobody had made a step for long: what goes by the time that steps take would be answered otherwise
 * on a slow machine. */
static void rest(void)
{
    toy()->rounds.pace.seen_us = 0;
    toy()->rounds.pace.count = 0;
}

void pairs_open(const struct pair_operation *running, const struct pair_operation *asked)
{
    const unsigned needs = running->needs |
                           (asked != NULL ? asked->needs & ~(unsigned)NEEDS_PARKED : 0);
    pairs_running = pairs_asked = (struct question) { .peer = NULL };
    pairs_unasked[0] = '\0';
    pairs_round = job = 0;
    is_committing = is_out = false;
    open_fake();
    fake_shards_up(&fake, 2);
    w = worker("w0");
    admin = fake_connect(&fake, CAIRN_ROLE_WIRE_ADMIN, "ctl");
    second = fake_connect(&fake, CAIRN_ROLE_WIRE_ADMIN, "other");
    if (running->scene != PAIRS_BARE) job = fake_attach(&w, 10, 0, 1);
    if (running->scene == PAIRS_TRAINED) {
        fake_init(&w, job);
        ck_assert_uint_eq(train(), 1);
    }
    uv_timer_set_repeat(&fake.cluster->clock.tick, 1);
    uv_timer_again(&fake.cluster->clock.tick);
    if (needs & NEEDS_THIRD) fake_shard_up(&fake, 2);
    if (running->scene != PAIRS_TRAINED) return;
    if (needs & NEEDS_READER) come_as_reader();
    if ((needs & NEEDS_SNAPSHOT) && !running->saves) save();
    if (needs & NEEDS_PARKED) park();
    rest();
}

void pairs_close(void)
{
    pairs_let_go();
    fake_peer_close(&second);
    fake_peer_close(&reader);
    for (int i = 0; i < 2; i++) fake_peer_close(&joining[i]);
    close_fake();
}

/* ---- a pair ---- */

/* Steps of the worker until both are answered, or the next one does not come. */
static void go_on(void)
{
    for (int i = 0; i < STEPS_MAX; i++) {
        if (pairs_running.is_answered && pairs_asked.is_answered) return;
        if (pairs_round == 0 && !is_out) (void)fake_ask_begin(&w, job);
        pairs_settle(NULL);
        if (pairs_round == 0 || is_out) return;
        is_committing = true;
        (void)fake_ask_commit(&w, job, pairs_round);
        pairs_round = 0;
        pairs_settle(NULL);
        if (is_committing) return;
    }
}

static void note_awaited(char out[PAIRS_TEXT_BYTES])
{
    const struct coord_job *toy_job = toy();
    out[0] = '\0';
    if (toy_job == NULL) return;
    struct fake_peer asker = fake_connect(&fake, CAIRN_ROLE_WIRE_ADMIN, "asker");
    Cairn__Awaited *awaited = fake_awaited(&asker, toy_job->id);
    snprintf(out, PAIRS_TEXT_BYTES, "%s", awaited->text);
    pairs_mend(out);
    fake_peer_close(&asker);
}

/* What the running one comes to where nobody asks for anything. */
struct alone {
    char answer[PAIRS_TEXT_BYTES], unasked[PAIRS_TEXT_BYTES];
};

static void begin(const struct pair_operation *running, const struct pair_operation *asked)
{
    if (running->hold != NULL) running->hold();
    running->ask(&pairs_running, false);
    if (running->is_held != NULL) fake_until(&fake, running->is_held());
    pairs_settle(NULL);
    ck_assert_msg(pairs_running.is_answered == running->is_answered_first,
                  "%s is to be under way, for %s: %s", running->name,
                  asked != NULL ? asked->name : "nothing", pairs_running.answer);
}

/* True: it waits. */
static bool ask(const struct pair_operation *asked, FILE *out)
{
    struct question *q = &pairs_asked;
    char awaited[PAIRS_TEXT_BYTES];
    asked->ask(q, true);
    pairs_settle(q);
    if (!q->is_answered && q->peer->ended) { // with its member
        q->is_answered = true;
        snprintf(q->answer, sizeof q->answer, "the connection has ended");
    }
    if (q->is_answered) {
        fprintf(out, "%s: %s\n", asked->name, q->answer);
        return false;
    }
    note_awaited(awaited);
    fprintf(out, "%s: waits%s%s\n", asked->name, awaited[0] != '\0' ? ", as the job for " : "",
            awaited);
    return true;
}

/* What has become of the running one. */
static const char *end(const struct pair_operation *running)
{
    pairs_let_go();
    if (running->end != NULL && !is_out) running->end(&pairs_running);
    pairs_settle(NULL);
    go_on();
    const bool is_gone = is_out && running->end != NULL;
    return pairs_running.is_answered && !is_gone ? pairs_running.answer : "no answer";
}

static void print_shown(FILE *out, const char *what, const char *text)
{
    char mended[PAIRS_TEXT_BYTES];
    snprintf(mended, sizeof mended, "%s", text);
    pairs_mend(mended);
    char *seconds = strstr(mended, ", for "), *end = strstr(mended, " s; ");
    if (seconds != NULL && end != NULL) memmove(seconds, end + 2, strlen(end + 2) + 1);
    if (mended[0] != '\0') fprintf(out, ", %s \"%s\"", what, mended);
}

/* What `cairn job show` has to say of it while it is under way. */
static void show(FILE *out)
{
    if (toy() == NULL) {
        fprintf(out, "(shown): no job\n");
        return;
    }
    struct fake_peer asker = fake_connect(&fake, CAIRN_ROLE_WIRE_ADMIN, "asker");
    Cairn__JobStatus *status = fake_call(&asker, JobStatus, JobShow, .name = "toy");
    fprintf(out, "(shown): %s", status->state);
    print_shown(out, "waits for", status->awaited);
    print_shown(out, "saving", status->saving);
    print_shown(out, "moving", status->moving);
    print_shown(out, "lost", status->loss);
    fprintf(out, "\n");
    fake_peer_close(&asker);
}

static void alone(const struct pair_operation *running, struct alone *alone_out, FILE *out)
{
    pairs_open(running, NULL);
    begin(running, NULL);
    show(out);
    pairs_asked.is_answered = true;
    snprintf(alone_out->answer, sizeof alone_out->answer, "%s", end(running));
    snprintf(alone_out->unasked, sizeof alone_out->unasked, "%s", pairs_unasked);
    fprintf(out, "(nothing): %s\n%s", alone_out->answer, alone_out->unasked);
    pairs_close();
}

/* What comes of the running one, and is told, as it is alone is left out. */
static void pair(const struct pair_operation *running, const struct pair_operation *asked,
                 const struct alone *as_alone, FILE *out)
{
    pairs_open(running, asked);
    begin(running, asked);
    const bool waits = ask(asked, out);
    const char *came_to = end(running);
    if (waits)
        fprintf(out, "    then: %s\n", pairs_asked.is_answered ? pairs_asked.answer : "no answer");
    if (strcmp(came_to, as_alone->answer) != 0)
        fprintf(out, "    %s: %s\n", running->name, came_to);
    if (strcmp(pairs_unasked, as_alone->unasked) != 0)
        fprintf(out, "%s", pairs_unasked[0] != '\0' ? pairs_unasked : "    nobody is told\n");
    pairs_close();
}

/* ---- the record ---- */

static int part, parts = 1;

TEST_EACH(the_answers_are_those_that_are_kept, 0, pairs_operation_count)
{
    const struct pair_operation *running = &pairs_operations[_i];
    struct alone as_alone;
    char *text, name[64];
    size_t bytes;
    if (running->state == NULL || _i % parts != part) return;
    FILE *out = open_memstream(&text, &bytes);
    ck_assert_ptr_nonnull(out);
    fprintf(out, "# %s: %s\n", running->name, running->state);
    alone(running, &as_alone, out);
    for (size_t i = 0; i < pairs_operation_count; i++)
        if (!pairs_operations[i].is_only_running)
            pair(running, &pairs_operations[i], &as_alone, out);
    ck_assert_int_eq(fclose(out), 0);
    snprintf(name, sizeof name, "pairs/%s.txt", running->name);
    golden_expect(name, text);
    free(text);
}

SUITE(60);

int main(int argc, char **argv)
{
    if (argc == 3) {
        part = atoi(argv[1]);
        parts = atoi(argv[2]);
    }
    return suite_main();
}
