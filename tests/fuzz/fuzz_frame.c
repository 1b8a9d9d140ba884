/* Frames of control messages, in pieces. The first byte says which limits hold, and how long the pieces
 * are. */
#include <string.h>

#include "proto/wire/wire.h"
#include "tests/fuzz/target.h"

/* Takes the frames that are whole: exactly the bytes that arrived. */
static enum frame_state take_frames(struct frame_decoder *decoder, const uint8_t **at,
                                    const uint8_t *end)
{
    for (;;) {
        struct wire_frame frame;
        struct sentence why = { 0 };
        uint8_t header[CAIRN_FRAME_HEADER_BYTES];
        const enum frame_state state = frame_decoder_next(decoder, &frame, &why);
        if (state == CAIRN_FRAME_MALFORMED) MUST(why.text[0] != '\0');
        if (state != CAIRN_FRAME_READY) return state;
        const struct frame_limits *limits = &decoder->limits;
        MUST(frame.type >= limits->type_min && frame.type <= limits->type_max);
        MUST(sizeof header + frame.payload_bytes <= limits->frame_bytes);
        frame_header_write(header, frame.type, frame.request, (uint32_t)frame.payload_bytes);
        MUST((size_t)(end - *at) >= sizeof header + frame.payload_bytes);
        MUST(memcmp(*at, header, sizeof header) == 0);
        MUST(memcmp(*at + sizeof header, frame.payload, frame.payload_bytes) == 0);
        *at += sizeof header + frame.payload_bytes;
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size == 0) return 0;
    const size_t piece = 1 + (data[0] >> 1);
    const struct frame_limits limits =
        (data[0] & 1) != 0 ? (struct frame_limits) { 1, CAIRN_MSG_MAX, CAIRN_FRAME_BYTES_MAX }
                           : (struct frame_limits) { 1, 1, CAIRN_FRAME_HELLO_BYTES };
    const uint8_t *given = data + 1, *taken = given;
    struct frame_decoder decoder;
    enum frame_state state = CAIRN_FRAME_NONE;
    frame_decoder_init(&decoder, limits);
    for (size_t left = size - 1; left > 0 && state != CAIRN_FRAME_MALFORMED;) {
        uint8_t *room;
        size_t bytes;
        MUST(frame_decoder_reserve(&decoder, &room, &bytes) == CAIRN_FRAME_NONE);
        bytes = bytes < piece ? bytes : piece;
        bytes = bytes < left ? bytes : left;
        memcpy(room, given, bytes);
        frame_decoder_added(&decoder, bytes);
        given += bytes;
        left -= bytes;
        state = take_frames(&decoder, &taken, given);
        MUST(decoder.capacity <= CAIRN_FRAME_BYTES_MAX);
    }
    frame_decoder_release(&decoder);
    return 0;
}
