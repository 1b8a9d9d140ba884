/* Handshakes between two ends, and all that must not become one. */
#include <check.h>
#include <malloc.h>
#include <sodium.h>
#include <stdio.h>
#include <string.h>

#include "proto/secure/secure.h"
#include "tests/support/random.h"
#include "tests/support/keys.h"
#include "tests/support/secure_ends.h"
#include "tests/support/suite.h"

/* ==== one end ==== */

struct end {
    struct handshake *handshake;
    enum handshake_state state;
    cairn_status status;
    struct sentence why;
    uint8_t out[CAIRN_HANDSHAKE_MOST_BYTES]; /* what it has to send */
    size_t out_bytes, used;
};

static void fetch(struct end *end)
{
    const uint8_t *bytes = handshake_to_send(end->handshake, &end->out_bytes);
    memcpy(end->out, bytes, end->out_bytes);
}

static struct end open_by(const struct handshake_options *options)
{
    struct end end = { .state = CAIRN_HANDSHAKE_GOES_ON };
    ck_assert_int_eq(handshake_open(options, &end.handshake), CAIRN_OK);
    fetch(&end);
    return end;
}

static struct end initiator(void)
{
    const struct handshake_options options = ends_initiator();
    return open_by(&options);
}

static struct end responder(void)
{
    const struct handshake_options options = ends_responder();
    return open_by(&options);
}

static enum handshake_state give(struct end *end, const uint8_t *bytes, size_t count)
{
    end->status = CAIRN_OK;
    end->state = handshake_take(end->handshake, bytes, count, &end->used, &end->status, &end->why);
    ck_assert(end->used <= count);
    ck_assert_int_eq(end->status != CAIRN_OK, end->state == CAIRN_HANDSHAKE_FAILED);
    fetch(end);
    return end->state;
}

/* What one end has to send reaches the other. */
static enum handshake_state pass(const struct end *from, struct end *to)
{
    ck_assert_uint_gt(from->out_bytes, 0);
    return give(to, from->out, from->out_bytes);
}

static void close_both(struct end *a, struct end *b)
{
    handshake_close(a->handshake);
    handshake_close(b->handshake);
}

/* It failed for this reason, says this word, and has nothing to send. */
static void is_silent(const struct end *end, cairn_status status, const char *word)
{
    ck_assert_int_eq(end->state, CAIRN_HANDSHAKE_FAILED);
    ck_assert_int_eq(end->status, status);
    ck_assert_msg(strstr(end->why.text, word) != NULL, "%s", end->why.text);
    ck_assert_uint_eq(end->out_bytes, 0);
}

/* ==== what works ==== */

static void agree(const struct end *a, const struct end *b)
{
    struct handshake_result first, second;
    handshake_result(a->handshake, &first);
    handshake_result(b->handshake, &second);
    ck_assert_mem_eq(first.send_key, second.receive_key, sizeof first.send_key);
    ck_assert_mem_eq(first.receive_key, second.send_key, sizeof first.receive_key);
    ck_assert_mem_ne(first.send_key, first.receive_key, sizeof first.send_key);
    ck_assert_mem_eq(first.session_hash, second.session_hash, sizeof first.session_hash);
    ck_assert_mem_eq(first.peer_key, ends_coordinator.open, sizeof first.peer_key);
    ck_assert_mem_eq(second.peer_key, ends_node.open, sizeof second.peer_key);
    ck_assert_mem_eq(second.key_id, ends_id, sizeof second.key_id);
}

TEST(two_ends_that_know_one_secret_agree)
{
    struct end a = initiator(), b = responder();
    ck_assert_uint_eq(b.out_bytes, 0);
    ck_assert_int_eq(pass(&a, &b), CAIRN_HANDSHAKE_GOES_ON);
    ck_assert_int_eq(pass(&b, &a), CAIRN_HANDSHAKE_DONE);
    ck_assert_int_eq(pass(&a, &b), CAIRN_HANDSHAKE_DONE);
    agree(&a, &b);
    close_both(&a, &b);
}

/* Gives the bytes one by one. None but the last ends anything. */
static enum handshake_state drip(const struct end *from, struct end *to)
{
    uint8_t bytes[CAIRN_HANDSHAKE_MOST_BYTES];
    const size_t count = from->out_bytes;
    memcpy(bytes, from->out, count);
    for (size_t i = 0; i + 1 < count; i++) {
        ck_assert_int_eq(give(to, bytes + i, 1), CAIRN_HANDSHAKE_GOES_ON);
        ck_assert_uint_eq(to->out_bytes, 0);
    }
    return give(to, bytes + count - 1, 1);
}

TEST(bytes_may_come_one_by_one)
{
    struct end a = initiator(), b = responder();
    ck_assert_int_eq(drip(&a, &b), CAIRN_HANDSHAKE_GOES_ON);
    ck_assert_int_eq(drip(&b, &a), CAIRN_HANDSHAKE_DONE);
    ck_assert_int_eq(drip(&a, &b), CAIRN_HANDSHAKE_DONE);
    agree(&a, &b);
    close_both(&a, &b);
}

TEST(bytes_behind_the_handshake_are_left)
{
    struct end a = initiator(), b = responder();
    pass(&a, &b);
    pass(&b, &a);
    uint8_t bytes[CAIRN_HANDSHAKE_MOST_BYTES + 100] = { 0 };
    memcpy(bytes, a.out, a.out_bytes);
    ck_assert_int_eq(give(&b, bytes, a.out_bytes + 100), CAIRN_HANDSHAKE_DONE);
    ck_assert_uint_eq(b.used, 66);
    ck_assert_int_eq(give(&b, bytes, 100), CAIRN_HANDSHAKE_DONE); // nothing more is taken
    ck_assert_uint_eq(b.used, 0);
    close_both(&a, &b);
}

TEST(a_key_may_be_expected_as_a_whole)
{
    struct handshake_options options = ends_initiator();
    options.pin = NULL;
    options.expected = ends_coordinator.open;
    struct end a = open_by(&options), b = responder();
    pass(&a, &b);
    ck_assert_int_eq(pass(&b, &a), CAIRN_HANDSHAKE_DONE);
    close_both(&a, &b);
    options.expected = ends_node.open;
    a = open_by(&options);
    b = responder();
    pass(&a, &b);
    pass(&b, &a);
    is_silent(&a, CAIRN_ERR_PROTOCOL, "another key than was announced");
    close_both(&a, &b);
}

TEST(options_that_lack_something_are_refused)
{
    struct handshake *none;
    struct handshake_options options = ends_initiator();
    options.pin = NULL; // whom to expect is not said
    ck_assert_int_eq(handshake_open(&options, &none), CAIRN_ERR_INVALID);
    options = ends_initiator();
    options.own = NULL;
    ck_assert_int_eq(handshake_open(&options, &none), CAIRN_ERR_INVALID);
    options = ends_initiator();
    options.context = "";
    options.context_bytes = CAIRN_HANDSHAKE_CONTEXT_BYTES + 1;
    ck_assert_int_eq(handshake_open(&options, &none), CAIRN_ERR_INVALID);
    options = ends_responder();
    options.find = NULL;
    ck_assert_int_eq(handshake_open(&options, &none), CAIRN_ERR_INVALID);
    options = ends_responder();
    options.purpose = 0;
    ck_assert_int_eq(handshake_open(&options, &none), CAIRN_ERR_INVALID);
    handshake_close(NULL);
}

/* ==== strangers ==== */

TEST(another_coordinator_learns_nothing_of_ours)
{
    uint8_t other_pin[CAIRN_PIN_BYTES];
    curve_pin(ends_node.open, other_pin);
    struct handshake_options options = ends_initiator();
    options.pin = other_pin;
    struct end a = open_by(&options), b = responder();
    pass(&a, &b);
    pass(&b, &a);
    is_silent(&a, CAIRN_ERR_PROTOCOL,
              "this coordinator has another key than the token expects: it is a token of another "
              "cluster, or somebody stands between");
    close_both(&a, &b);
}

TEST(an_unknown_token_hears_nothing)
{
    struct handshake_options options = ends_initiator();
    options.key_id[0] ^= 1;
    struct end a = open_by(&options), b = responder();
    pass(&a, &b);
    is_silent(&b, CAIRN_ERR_PROTOCOL, "0002030405060708, which is not known here");
    close_both(&a, &b);
}

/* The secret of an unknown id is zeros in the row: it is no secret. */
TEST(an_unknown_token_with_a_secret_of_zeros_hears_nothing)
{
    struct handshake_options options = ends_initiator();
    options.key_id[0] ^= 1;
    memset(options.secret, 0, sizeof options.secret);
    struct end a = open_by(&options), b = responder();
    pass(&a, &b);
    is_silent(&b, CAIRN_ERR_PROTOCOL, "not known here");
    close_both(&a, &b);
}

TEST(one_who_does_not_know_the_secret_hears_nothing)
{
    struct handshake_options options = ends_initiator();
    options.secret[31] ^= 1;
    struct end a = open_by(&options), b = responder();
    pass(&a, &b);
    is_silent(&b, CAIRN_ERR_PROTOCOL, "does not know its secret");
    close_both(&a, &b);
}

static const char *const strangers[] = { "GET / HTTP/1.1\r\n",
                                         "\x16\x03\x01\x02\x00\x01",
                                         "SSH-2.0-OpenSSH_9.2\r\n",
                                         "CAIRNSE0",
                                         "C\n",
                                         "\n" };

TEST_EACH(another_protocol_is_told_at_its_first_bytes, 0, sizeof strangers / sizeof *strangers)
{
    struct end b = responder();
    give(&b, (const uint8_t *)strangers[_i], strlen(strangers[_i]));
    is_silent(&b, CAIRN_ERR_PROTOCOL, "another program");
    handshake_close(b.handshake);
    struct end a = initiator();
    give(&a, (const uint8_t *)strangers[_i], strlen(strangers[_i]));
    if (strlen(strangers[_i]) >= 2) is_silent(&a, CAIRN_ERR_PROTOCOL, "check the address");
    handshake_close(a.handshake);
}

/* ==== refusals ==== */

/* The end of a handshake that the responder refuses: what both say. */
static void is_refused(struct end *a, struct end *b, cairn_status status, const char *word)
{
    ck_assert_int_eq(b->state, CAIRN_HANDSHAKE_FAILED);
    ck_assert_int_eq(b->status, status);
    ck_assert(strstr(b->why.text, word) != NULL);
    ck_assert_int_eq(pass(b, a), CAIRN_HANDSHAKE_FAILED);
    is_silent(a, status, word);
    ck_assert_int_eq(give(a, b->out, 1), CAIRN_HANDSHAKE_FAILED);
    ck_assert_uint_eq(a->used, 0);
    close_both(a, b);
}

TEST(an_owner_of_a_revoked_token_is_told)
{
    ends_row.refused = CAIRN_ERR_REFUSED;
    sentence_set(&ends_row.why, "the token of node7 was revoked; ask for another");
    struct end a = initiator(), b = responder();
    pass(&a, &b);
    is_refused(&a, &b, CAIRN_ERR_REFUSED, "the token of node7 was revoked; ask for another");
}

static int refusals_heard;

static void hear_refusal(void *arg, const uint8_t *key_id, const struct sentence *why)
{
    ck_assert_ptr_eq(arg, &refusals_heard);
    ck_assert_mem_eq(key_id, ends_id, sizeof ends_id);
    ck_assert_str_eq(why->text, "revoked");
    refusals_heard++;
}

/* A stranger who names a revoked id makes nobody write anything down. */
TEST(a_refusal_is_heard_of_an_owner_alone)
{
    ends_row.refused = CAIRN_ERR_REFUSED;
    ends_row.on_refused = hear_refusal;
    ends_row.refused_arg = &refusals_heard;
    sentence_set(&ends_row.why, "revoked");
    struct end a = initiator(), b = responder(), other = responder();
    pass(&a, &b);
    ck_assert_int_eq(refusals_heard, 1);
    close_both(&a, &b);
    a = initiator();
    a.out[83] ^= 1;
    pass(&a, &other);
    is_silent(&other, CAIRN_ERR_PROTOCOL, "does not know its secret");
    ck_assert_int_eq(refusals_heard, 1);
    close_both(&a, &other);
}

TEST(a_long_refusal_is_cut_and_what_is_no_text_is_mended)
{
    ends_row.refused = CAIRN_ERR_STALE;
    sentence_set(&ends_row.why, "expired\x1b[31m");
    while (strlen(ends_row.why.text) < 1500) sentence_add(&ends_row.why, " and more");
    struct end a = initiator(), b = responder();
    pass(&a, &b);
    ck_assert_uint_le(b.out_bytes, 500);
    pass(&b, &a);
    is_silent(&a, CAIRN_ERR_STALE, "expired?[31m and more");
    ck_assert_uint_le(strlen(a.why.text), CAIRN_REFUSAL_TEXT_BYTES);
    close_both(&a, &b);
}

TEST(a_port_for_another_purpose_says_so)
{
    struct handshake_options options = ends_initiator();
    options.purpose = CAIRN_PURPOSE_DATA;
    struct end a = open_by(&options), b = responder();
    pass(&a, &b);
    is_refused(&a, &b, CAIRN_ERR_REFUSED, "this port is for control connections");
}

TEST(another_version_is_told_both_versions)
{
    struct end a = initiator(), b = responder();
    a.out[8] = 2;
    keys_sign_first(a.out, ends_row.secret);
    pass(&a, &b);
    ck_assert_int_eq(b.status, CAIRN_ERR_VERSION);
    ck_assert(strstr(b.why.text, "version 2 of the handshake and the other version 1") != NULL);
    ck_assert(strstr(b.why.text, "install the same version") != NULL);
    ck_assert_uint_eq(le_get(b.out, 2), 0x8000 | (b.out_bytes - 2));
    ck_assert_uint_eq(le_get(b.out + 2, 2), CAIRN_ERR_VERSION);
    close_both(&a, &b);
}

/* A refusal by one who knows the secret, as in the header. */
static size_t refuse(const struct end *a, int status, const char *text, uint8_t *out)
{
    crypto_generichash_blake2b_state state;
    const size_t text_bytes = strlen(text), before = 4 + text_bytes;
    le_put(out, 0x8000 | (before + 14), 2);
    le_put(out + 2, (uint64_t)status, 2);
    memcpy(out + 4, text, text_bytes);
    crypto_generichash_blake2b_init_salt_personal(&state, ends_row.secret, 32, 16, NULL,
                                                  (const uint8_t *)"cairn: refusal  ");
    crypto_generichash_blake2b_update(&state, a->out, CAIRN_HANDSHAKE_FIRST_BYTES);
    crypto_generichash_blake2b_update(&state, out, before);
    crypto_generichash_blake2b_final(&state, out + before, 16);
    return before + 16;
}

/* {status, text, status that the initiator reports, text that it reports} */
static const struct {
    int status;
    const char *text;
    cairn_status reported;
    const char *says;
} refusals[] = {
    { CAIRN_ERR_VERSION, "newer", CAIRN_ERR_VERSION, "newer" },
    { CAIRN_OK, "fine", CAIRN_ERR_REFUSED, "fine" }, // a refusal is no success
    { 7777, "unheard of", CAIRN_ERR_REFUSED, "unheard of" },
    { CAIRN_ERR_REFUSED, "", CAIRN_ERR_REFUSED, "without a reason" },
};

TEST_EACH(a_refusal_is_believed_of_one_who_knows_the_secret, 0, sizeof refusals / sizeof *refusals)
{
    struct end a = initiator();
    uint8_t out[CAIRN_HANDSHAKE_MOST_BYTES];
    const size_t count = refuse(&a, refusals[_i].status, refusals[_i].text, out);
    give(&a, out, count);
    is_silent(&a, refusals[_i].reported, refusals[_i].says);
    handshake_close(a.handshake);
}

TEST(a_changed_refusal_is_not_believed)
{
    for (size_t i = 0; i < 4 + 5 + 16; i++) {
        struct end a = initiator();
        uint8_t out[CAIRN_HANDSHAKE_MOST_BYTES] = { 0 };
        const size_t count = refuse(&a, CAIRN_ERR_REFUSED, "never", out);
        out[i] ^= 1;
        give(&a, out, count + 1);
        if (a.state == CAIRN_HANDSHAKE_FAILED) is_silent(&a, CAIRN_ERR_PROTOCOL, "");
        ck_assert_int_ne(a.state, CAIRN_HANDSHAKE_DONE);
        handshake_close(a.handshake);
    }
}

/* Message 1 is bound: the refusal of one connection is not that of another. */
TEST(a_refusal_of_another_connection_is_not_believed)
{
    struct end a = initiator(), other = initiator();
    uint8_t out[CAIRN_HANDSHAKE_MOST_BYTES];
    const size_t count = refuse(&other, CAIRN_ERR_REFUSED, "go away", out);
    give(&a, out, count);
    is_silent(&a, CAIRN_ERR_PROTOCOL, "changed on the way");
    close_both(&a, &other);
}

TEST(silence_is_told_with_what_to_do)
{
    struct sentence why;
    handshake_silence_text("the coordinator at 10.0.0.1:7070", CAIRN_PURPOSE_CONTROL, &why);
    ck_assert(strstr(why.text, "the coordinator at 10.0.0.1:7070 closed the connection without a "
                               "word: it does not know this token") != NULL);
    handshake_silence_text("the shard at 10.0.0.2:7071", CAIRN_PURPOSE_DATA, &why);
    ck_assert(strstr(why.text, "connect again") != NULL);
}

/* ==== forgeries ==== */

TEST(another_context_is_another_handshake)
{
    struct handshake_options first = ends_initiator(), second = ends_responder();
    first.context = "cluster a";
    second.context = "cluster b";
    first.context_bytes = second.context_bytes = 9;
    struct end a = open_by(&first), b = open_by(&second);
    pass(&a, &b);
    is_silent(&b, CAIRN_ERR_PROTOCOL, "changed on the way"); // its tag is bound to the prologue
    close_both(&a, &b);
}

/* A flipped bit of any byte of a message ends the handshake, and leaves nothing to send. */
TEST_EACH(a_flipped_bit_ends_the_handshake, 0, 3)
{
    static const size_t bytes_of[] = { 84, 98, 66 };
    for (size_t i = 0; i < bytes_of[_i]; i++) {
        struct end ends[2] = { initiator(), responder() };
        for (int message = 0; message <= _i; message++) {
            struct end *from = &ends[message % 2], *to = &ends[1 - message % 2];
            ck_assert_uint_eq(from->out_bytes, bytes_of[message]);
            if (message == _i) from->out[i] ^= (uint8_t)(1u << i % 8);
            const enum handshake_state state = pass(from, to);
            // A refusal of another length: the rest of it does not come.
            if (message < _i || (i < 2 && state == CAIRN_HANDSHAKE_GOES_ON)) continue;
            is_silent(to, CAIRN_ERR_PROTOCOL, "");
        }
        ck_assert_int_ne(ends[1].state, CAIRN_HANDSHAKE_DONE);
        close_both(&ends[0], &ends[1]);
    }
}

TEST(a_handshake_that_is_cut_off_is_never_done)
{
    for (size_t cut = 0; cut < 66; cut++) {
        struct end a = initiator(), b = responder();
        pass(&a, &b);
        pass(&b, &a);
        ck_assert_int_eq(give(&b, a.out, cut), CAIRN_HANDSHAKE_GOES_ON);
        close_both(&a, &b);
    }
}

TEST(a_replayed_handshake_ends_at_its_third_message)
{
    struct end a = initiator(), b = responder();
    uint8_t first[CAIRN_HANDSHAKE_MOST_BYTES];
    memcpy(first, a.out, a.out_bytes);
    pass(&a, &b);
    pass(&b, &a);
    struct end again = responder();
    ck_assert_int_eq(give(&again, first, CAIRN_HANDSHAKE_FIRST_BYTES), CAIRN_HANDSHAKE_GOES_ON);
    pass(&a, &again);
    is_silent(&again, CAIRN_ERR_PROTOCOL, "changed on the way");
    handshake_close(again.handshake);
    close_both(&a, &b);
}

/* It costs no curve operation, and tells nothing. */
TEST(a_replayed_first_message_hears_nothing_where_answers_are_kept)
{
    static struct handshake_answered answered;
    struct handshake_options options = ends_responder();
    options.answered = &answered;
    struct end firsts[100];
    for (int i = 0; i < 100; i++) {
        struct end b = open_by(&options);
        firsts[i] = initiator();
        ck_assert_int_eq(pass(&firsts[i], &b), CAIRN_HANDSHAKE_GOES_ON);
        ck_assert_uint_eq(b.out_bytes, 98);
        handshake_close(b.handshake);
    }
    uint32_t forgotten = 0; // of two in one place
    for (int i = 0; i < 100; i++) {
        struct end b = open_by(&options);
        pass(&firsts[i], &b);
        if (b.state == CAIRN_HANDSHAKE_FAILED)
            is_silent(&b, CAIRN_ERR_PROTOCOL, "repeats the first message");
        else
            forgotten++;
        close_both(&firsts[i], &b);
    }
    ck_assert_uint_le(forgotten, 20);
}

TEST(messages_out_of_order_or_of_another_connection_fail)
{
    struct end a[2] = { initiator(), initiator() }, b[2] = { responder(), responder() };
    const struct end firsts[2] = { a[0], a[1] };
    for (int i = 0; i < 2; i++) pass(&a[i], &b[i]);
    const struct end seconds[2] = { b[0], b[1] };
    struct end late = responder();
    pass(&b[0], &late); // a second message first
    is_silent(&late, CAIRN_ERR_PROTOCOL, "");
    handshake_close(late.handshake);
    for (int i = 0; i < 2; i++) {
        pass(&seconds[1 - i], &a[i]); // the other's answer
        is_silent(&a[i], CAIRN_ERR_PROTOCOL, "changed on the way");
        give(&b[i], firsts[i].out, firsts[i].out_bytes); // the first one again, for the third
        is_silent(&b[i], CAIRN_ERR_PROTOCOL, "");
    }
    close_both(&a[0], &b[0]);
    close_both(&a[1], &b[1]);
}

TEST(an_end_that_hears_itself_fails)
{
    struct end a = initiator();
    give(&a, a.out, a.out_bytes);
    is_silent(&a, CAIRN_ERR_PROTOCOL, "");
    handshake_close(a.handshake);
    struct end b = responder(), c = initiator();
    pass(&c, &b);
    give(&b, b.out, b.out_bytes);
    is_silent(&b, CAIRN_ERR_PROTOCOL, "");
    close_both(&b, &c);
}

/* ==== what a stranger costs ==== */

static size_t heap_bytes(void)
{
    return mallinfo2().uordblks;
}

TEST(a_stranger_makes_us_hold_less_than_four_kilobytes)
{
    const size_t before = heap_bytes();
    if (before == 0) return; // a sanitizer's malloc counts otherwise
    struct end a = initiator();
    struct byte_queue plain = { 0 };
    struct sentence why;
    size_t used;
    const size_t ours = heap_bytes();
    struct channel *channel = ends_channel(false);
    for (size_t i = 0; i < a.out_bytes; i++) {
        ck_assert_int_eq(channel_take(channel, a.out + i, 1, 1, &used, &plain, &why), CAIRN_OK);
        ck_assert_uint_le(heap_bytes() - ours, 4096);
    }
    static const uint8_t third[65] = { 64 }; // a peer that goes no further
    ck_assert_int_eq(channel_take(channel, third, sizeof third, 1, &used, &plain, &why), CAIRN_OK);
    ck_assert_uint_le(heap_bytes() - ours, 4096);
    ck_assert_ptr_null(plain.bytes);
    channel_close(channel);
    handshake_close(a.handshake);
}
SUITE(60, ends_make, NULL);

/* ==== mutations ==== */

/* Changes 1 to 4 places. `other` is a message of the same kind and another handshake. */
static void mutate(uint8_t *bytes, const uint8_t *other, size_t count)
{
    for (uint64_t left = 1 + random_below(4); left > 0; left--) {
        const size_t from = random_below(count), to = random_below(count);
        const size_t rest = count - (from > to ? from : to);
        const size_t some = 1 + random_below(rest < 32 ? rest : 32);
        switch (random_below(5)) {
        case 0: bytes[from] ^= (uint8_t)(1u << random_below(8)); break;
        case 1: bytes[from] = (uint8_t)random_next(); break;
        case 2: memset(bytes + from, (int)random_below(2) * 255, some); break;
        case 3: memmove(bytes + from, bytes + to, some); break;
        default: memcpy(bytes + from, other + from, some); break;
        }
    }
}

/* Handshakes at the point where each message is read; copies of them read changed messages. */
struct points {
    uint8_t first[CAIRN_HANDSHAKE_FIRST_BYTES];
    uint8_t second[CAIRN_NOISE_SECOND_BYTES], third[CAIRN_NOISE_THIRD_BYTES];
    struct noise before_second, before_third;
};

static void points_make(struct points *out)
{
    struct curve_key keys[2];
    struct noise a, b;
    struct end end = initiator();
    memcpy(out->first, end.out, sizeof out->first);
    handshake_close(end.handshake);
    curve_key_make(&keys[0]);
    curve_key_make(&keys[1]);
    noise_begin(&a, true, out->first, 20, &ends_node, &keys[0], ends_row.secret);
    noise_begin(&b, false, out->first, 20, &ends_coordinator, &keys[1], ends_row.secret);
    uint8_t first[CAIRN_NOISE_FIRST_BYTES], nothing[1];
    ck_assert(noise_write(&a, NULL, 0, first));
    ck_assert(noise_read(&b, first, sizeof first, nothing));
    ck_assert(noise_write(&b, NULL, 0, out->second));
    out->before_second = a;
    out->before_third = b;
    ck_assert(noise_read(&a, out->second, sizeof out->second, nothing));
    ck_assert(noise_write(&a, NULL, 0, out->third));
}

/* True: the changed message was accepted. */
static bool try_first(const struct points *points, const struct points *other)
{
    uint8_t bytes[sizeof points->first];
    memcpy(bytes, points->first, sizeof bytes);
    mutate(bytes, other->first, sizeof bytes);
    if (memcmp(bytes, points->first, sizeof bytes) == 0 ||
        memcmp(bytes, other->first, sizeof bytes) == 0)
        return false; // no change
    struct handshake *handshake = ends_handshake(false);
    size_t used, count;
    cairn_status status;
    const enum handshake_state state = handshake_take(handshake, bytes, sizeof bytes, &used,
                                                      &status, NULL);
    handshake_to_send(handshake, &count);
    handshake_close(handshake);
    return state != CAIRN_HANDSHAKE_FAILED || count > 0;
}

static bool try_later(const struct noise *before, const uint8_t *message, const uint8_t *other,
                      size_t count)
{
    uint8_t bytes[CAIRN_NOISE_SECOND_BYTES], nothing[1];
    struct noise noise = *before;
    memcpy(bytes, message, count);
    mutate(bytes, other, count);
    return memcmp(bytes, message, count) != 0 && noise_read(&noise, bytes, count, nothing);
}

TEST(no_changed_message_is_accepted)
{
    static struct points points, other;
    const char *seed = getenv("CAIRN_SEED");
    random_state = seed != NULL ? strtoull(seed, NULL, 10) : 1;
    points_make(&points);
    points_make(&other);
    for (int i = getenv("CAIRN_TEST_LONG") != NULL ? 1000000 : 100000; i > 0; i--) {
        bool is_accepted;
        switch (random_below(3)) {
        case 0: is_accepted = try_first(&points, &other); break;
        case 1:
            is_accepted = try_later(&points.before_second, points.second, other.second,
                                    sizeof points.second);
            break;
        default:
            is_accepted = try_later(&points.before_third, points.third, other.third,
                                    sizeof points.third);
            break;
        }
        ck_assert_msg(!is_accepted, "%d were left", i);
    }
}
SUITE(600, ends_make, NULL);
