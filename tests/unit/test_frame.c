#include "proto/wire/wire.h"
#include "tests/support/scratch.h"
#include "tests/support/suite.h"

#include <check.h>
#include <stdlib.h>
#include <string.h>

static const struct frame_limits hello_limits = { 1, 1, CAIRN_FRAME_HELLO_BYTES };
static const struct frame_limits all_limits = { 1, 90, CAIRN_FRAME_BYTES_MAX };

// Gives the decoder bytes in pieces of at most piece_bytes; returns the first state that is not READY
// after them, and counts frames.
static enum frame_state feed(struct frame_decoder *decoder, const uint8_t *bytes, size_t byte_count,
                             size_t piece_bytes, int *frame_count, struct sentence *why)
{
    enum frame_state state = CAIRN_FRAME_NONE;
    struct wire_frame frame;
    while (byte_count > 0) {
        uint8_t *room;
        size_t room_bytes;
        state = frame_decoder_reserve(decoder, &room, &room_bytes);
        if (state != CAIRN_FRAME_NONE) return state;
        size_t n = byte_count < piece_bytes ? byte_count : piece_bytes;
        if (n > room_bytes) n = room_bytes;
        memcpy(room, bytes, n);
        frame_decoder_added(decoder, n);
        bytes += n;
        byte_count -= n;
        while ((state = frame_decoder_next(decoder, &frame, why)) == CAIRN_FRAME_READY)
            ++*frame_count;
        if (state == CAIRN_FRAME_MALFORMED) return state;
        frame_decoder_trim(decoder);
    }
    return state;
}

static size_t header(uint8_t out[16], uint16_t type, uint32_t payload_bytes)
{
    frame_header_write(out, type, 7, payload_bytes);
    return 16;
}

TEST(a_message_comes_out_as_it_went_in)
{
    Cairn__Error error = CAIRN__ERROR__INIT;
    error.status = 42;
    error.text = "refused chunk 17";
    uint8_t *bytes = NULL;
    size_t byte_count = 0;
    ck_assert_int_eq(
        frame_pack(3, 99, &error.base, CAIRN_FRAME_BYTES_MAX, &bytes, &byte_count, NULL), CAIRN_OK);
    struct frame_decoder decoder;
    frame_decoder_init(&decoder, all_limits);
    uint8_t *room;
    size_t room_bytes;
    ck_assert_int_eq(frame_decoder_reserve(&decoder, &room, &room_bytes), CAIRN_FRAME_NONE);
    memcpy(room, bytes, byte_count);
    frame_decoder_added(&decoder, byte_count);
    struct wire_frame frame;
    ck_assert_int_eq(frame_decoder_next(&decoder, &frame, NULL), CAIRN_FRAME_READY);
    ck_assert_uint_eq(frame.type, 3);
    ck_assert_uint_eq(frame.request, 99);
    ProtobufCMessage *message = message_unpack(&cairn__error__descriptor, frame.payload,
                                               frame.payload_bytes);
    ck_assert_ptr_nonnull(message);
    ck_assert_int_eq(((Cairn__Error *)message)->status, 42);
    ck_assert_str_eq(((Cairn__Error *)message)->text, "refused chunk 17");
    protobuf_c_message_free_unpacked(message, NULL);
    frame_decoder_release(&decoder);
    free(bytes);
}

TEST(frames_come_out_however_the_bytes_are_cut)
{
    static uint8_t bytes[3 * 16 + 5 + 9000];
    size_t used = header(bytes, 1, 5) + 5;
    used += header(bytes + used, 2, 0);
    used += header(bytes + used, 3, 9000) + 9000;
    for (size_t piece = 1; piece < 40; piece++) {
        struct frame_decoder decoder;
        int frame_count = 0;
        frame_decoder_init(&decoder, all_limits);
        ck_assert_int_eq(feed(&decoder, bytes, used, piece, &frame_count, NULL), CAIRN_FRAME_NONE);
        ck_assert_int_eq(frame_count, 3);
        frame_decoder_release(&decoder);
    }
}

TEST(the_first_wrong_byte_of_the_magic_is_refused)
{
    static const char *const streams[] = { "G", "CX", "CRX", "CRN2", "\x16\x03\x01", "c" };
    for (size_t i = 0; i < sizeof streams / sizeof streams[0]; i++) {
        struct frame_decoder decoder;
        struct sentence why;
        int frame_count = 0;
        frame_decoder_init(&decoder, hello_limits);
        ck_assert_int_eq(feed(&decoder, (const uint8_t *)streams[i], strlen(streams[i]), 100,
                              &frame_count, &why),
                         CAIRN_FRAME_MALFORMED);
        ck_assert_ptr_nonnull(strstr(why.text, "is the port the right one?"));
        uint8_t *room;
        size_t room_bytes;
        ck_assert_int_eq(frame_decoder_reserve(&decoder, &room, &room_bytes),
                         CAIRN_FRAME_MALFORMED);
        frame_decoder_release(&decoder);
    }
}

struct bad_header {
    const char *name;
    struct frame_limits limits;
    uint16_t type;
    uint8_t flags;
    uint32_t payload_bytes;
    const char *says;
};

TEST(a_bad_header_is_refused_before_its_payload)
{
    static const struct bad_header rows[] = {
        { "4 GiB", { 1, 90, CAIRN_FRAME_BYTES_MAX }, 3, 0, UINT32_MAX, "claims 4294967295 bytes" },
        { "one over", { 1, 90, CAIRN_FRAME_BYTES_MAX }, 3, 0, (1 << 20) - 15, "limit is 1048560" },
        { "before Hello", { 1, 1, 4096 }, 1, 0, 4081, "the limit is 4080" },
        { "another type", { 1, 1, 4096 }, 2, 0, 0, "type 2 is not expected" },
        { "type 0", { 1, 90, 4096 }, 0, 0, 0, "type 0 is not expected" },
        { "type above", { 1, 90, 4096 }, 91, 0, 0, "type 91 is not expected" },
        { "flags", { 1, 90, 4096 }, 1, 1, 0, "flags 0x1 are unknown" },
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct frame_decoder decoder;
        struct sentence why;
        uint8_t bytes[16];
        int frame_count = 0;
        header(bytes, rows[i].type, rows[i].payload_bytes);
        bytes[6] = rows[i].flags;
        frame_decoder_init(&decoder, rows[i].limits);
        const enum frame_state state = feed(&decoder, bytes, 16, 16, &frame_count, &why);
        ck_assert_msg(state == CAIRN_FRAME_MALFORMED, "%s", rows[i].name);
        ck_assert_msg(strstr(why.text, rows[i].says) != NULL, "%s: %s", rows[i].name, why.text);
        ck_assert_uint_le(decoder.capacity, 4096);
        frame_decoder_release(&decoder);
    }
}

TEST(memory_grows_only_with_the_bytes_that_arrive)
{
    struct frame_decoder decoder;
    uint8_t bytes[16];
    int frame_count = 0;
    frame_decoder_init(&decoder, all_limits);
    header(bytes, 3, CAIRN_FRAME_BYTES_MAX - 16);
    ck_assert_int_eq(feed(&decoder, bytes, 16, 16, &frame_count, NULL), CAIRN_FRAME_NONE);
    ck_assert_uint_le(decoder.capacity, 4096); // 1 MiB is only claimed
    uint8_t *payload = calloc(1, CAIRN_FRAME_BYTES_MAX);
    feed(&decoder, payload, 10000, 1000, &frame_count, NULL);
    ck_assert_uint_le(decoder.capacity, 16384);
    feed(&decoder, payload, CAIRN_FRAME_BYTES_MAX - 16 - 10000, 65536, &frame_count, NULL);
    ck_assert_int_eq(frame_count, 1);
    ck_assert_uint_eq(decoder.capacity, 0); // and was given back
    free(payload);
    frame_decoder_release(&decoder);
}

TEST(a_message_larger_than_a_frame_is_not_packed)
{
    Cairn__Error error = CAIRN__ERROR__INIT;
    uint8_t *bytes = NULL;
    size_t byte_count = 0;
    struct sentence why;
    error.text = malloc(5000);
    memset(error.text, 'x', 4999);
    error.text[4999] = '\0';
    ck_assert_int_eq(frame_pack(3, 0, &error.base, 4096, &bytes, &byte_count, &why),
                     CAIRN_ERR_INVALID);
    ck_assert_ptr_nonnull(strstr(why.text, "send it in pages"));
    ck_assert_ptr_null(bytes);
    free(error.text);
}

TEST(a_payload_that_is_no_message_is_refused)
{
    static const uint8_t payload[] = { 0xff, 0xff, 0xff, 0xff, 0xff, 0xff };
    ck_assert_ptr_null(message_unpack(&cairn__error__descriptor, payload, sizeof payload));
}

// Frames of a real message, some of their bytes changed, cut anywhere: the decoder and the unpacker
// survive (ASan looks on), and the buffer stays within its limit.
TEST_EACH(mutated_streams_never_break_the_decoder, 0, 4)
{
    uint64_t seed = 2026 + (uint64_t)_i;
    Cairn__Hello hello = CAIRN__HELLO__INIT;
    hello.name = "shard-0";
    hello.version = "0.1.0";
    uint8_t *one = NULL;
    size_t one_bytes = 0;
    ck_assert_int_eq(frame_pack(1, 5, &hello.base, 4096, &one, &one_bytes, NULL), CAIRN_OK);
    for (int round = 0; round < 2000; round++) {
        uint8_t bytes[512];
        size_t used = 0;
        while (used + one_bytes <= sizeof bytes) {
            memcpy(bytes + used, one, one_bytes);
            used += one_bytes;
        }
        for (uint64_t k = cairn_scratch_random(&seed) % 6; k > 0; k--)
            bytes[cairn_scratch_random(&seed) % used] = (uint8_t)cairn_scratch_random(&seed);
        struct frame_decoder decoder;
        struct wire_frame frame;
        frame_decoder_init(&decoder, hello_limits);
        size_t given = 0;
        while (given < used && !decoder.malformed) {
            uint8_t *room;
            size_t room_bytes;
            if (frame_decoder_reserve(&decoder, &room, &room_bytes) != CAIRN_FRAME_NONE) break;
            size_t n = 1 + cairn_scratch_random(&seed) % 100;
            if (n > room_bytes) n = room_bytes;
            if (n > used - given) n = used - given;
            memcpy(room, bytes + given, n);
            frame_decoder_added(&decoder, n);
            given += n;
            while (frame_decoder_next(&decoder, &frame, NULL) == CAIRN_FRAME_READY) {
                ProtobufCMessage *message = message_unpack(&cairn__hello__descriptor, frame.payload,
                                                           frame.payload_bytes);
                if (message != NULL) protobuf_c_message_free_unpacked(message, NULL);
            }
            ck_assert_uint_le(decoder.capacity, 4096);
        }
        frame_decoder_release(&decoder);
    }
    free(one);
}

TEST(a_sentence_is_cut_and_says_so)
{
    struct sentence s;
    char longer[CAIRN_SENTENCE_BYTES + 200];
    memset(longer, 'a', sizeof longer - 1);
    longer[sizeof longer - 1] = '\0';
    sentence_set(&s, "%s", longer);
    ck_assert_uint_eq(strlen(s.text), CAIRN_SENTENCE_BYTES - 1);
    ck_assert_str_eq(s.text + strlen(s.text) - 4, "a…");
    sentence_set(&s, "inner");
    sentence_set(&s, "chunk 3: %s", s.text); // an argument may be the text itself
    ck_assert_str_eq(s.text, "chunk 3: inner");
    sentence_add(&s, ", and %d", 4);
    ck_assert_str_eq(s.text, "chunk 3: inner, and 4");
    sentence_set(NULL, "nobody asks");
    ck_assert_int_eq(fail_with(NULL, CAIRN_ERR_IO, "nobody asks"), CAIRN_ERR_IO);
}

TEST(a_sentence_is_cut_behind_a_word)
{
    struct sentence s;
    char longer[CAIRN_SENTENCE_BYTES + 200];
    for (size_t i = 0; i < sizeof longer - 1; i++) longer[i] = "words, "[i % 7];
    longer[sizeof longer - 1] = '\0';
    sentence_set(&s, "%s", longer);
    ck_assert_uint_lt(strlen(s.text), CAIRN_SENTENCE_BYTES);
    ck_assert_str_eq(s.text + strlen(s.text) - 8, "words…");
    ck_assert_str_eq(sentence_brief("as it is", 8).text, "as it is");
    ck_assert_str_eq(sentence_brief("cut behind a word", 16).text, "cut behind a…");
    ck_assert_str_eq(sentence_brief("cut behind; a word", 14).text, "cut behind…");
    ck_assert_str_eq(sentence_brief("äääääääää", 12).text, "ääää…"); // no half character
    ck_assert_str_eq(sentence_brief("", 5).text, "");
}

SUITE(60);
