#include "proto/wire/frame.h"

#include "proto/wire/messages.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#define IDLE_BYTES 4096u // what a connection may keep while nothing is going on

static const uint8_t magic[4] = { 'C', 'R', 'N', '1' };

static uint16_t read_u16(const uint8_t *p)
{
    return (uint16_t)(p[0] | p[1] << 8);
}

static uint32_t read_u32(const uint8_t *p)
{
    return (uint32_t)read_u16(p) | (uint32_t)read_u16(p + 2) << 16;
}

static void write_u16(uint8_t *p, uint16_t v)
{
    p[0] = (uint8_t)(v & 0xff);
    p[1] = (uint8_t)(v >> 8);
}

static void write_u32(uint8_t *p, uint32_t v)
{
    write_u16(p, (uint16_t)(v & 0xffff));
    write_u16(p + 2, (uint16_t)(v >> 16));
}

void cairn_frame_decoder_init(struct cairn_frame_decoder *decoder, struct cairn_frame_limits limits)
{
    memset(decoder, 0, sizeof *decoder);
    cairn_frame_decoder_limit(decoder, limits);
}

void cairn_frame_decoder_release(struct cairn_frame_decoder *decoder)
{
    free(decoder->bytes);
    memset(decoder, 0, sizeof *decoder);
}

void cairn_frame_decoder_limit(struct cairn_frame_decoder *decoder,
                               struct cairn_frame_limits limits)
{
    assert(limits.frame_bytes >= CAIRN_FRAME_HEADER_BYTES);
    assert(limits.frame_bytes <= CAIRN_FRAME_BYTES_MAX);
    decoder->limits = limits;
}

static size_t grown_capacity(const struct cairn_frame_decoder *decoder)
{
    const size_t wish = decoder->capacity == 0 ? IDLE_BYTES : 2 * decoder->capacity;
    const size_t limit = decoder->limits.frame_bytes;
    return wish < limit ? wish : limit;
}

enum cairn_frame_state cairn_frame_decoder_reserve(struct cairn_frame_decoder *decoder,
                                                   uint8_t **room_out, size_t *room_bytes_out)
{
    if (decoder->malformed) return CAIRN_FRAME_MALFORMED;
    if (decoder->start > 0) {
        memmove(decoder->bytes, decoder->bytes + decoder->start, decoder->end - decoder->start);
        decoder->end -= decoder->start;
        decoder->start = 0;
    }
    if (decoder->end == decoder->capacity) {
        const size_t capacity = grown_capacity(decoder);
        if (capacity <= decoder->capacity) return CAIRN_FRAME_READY;
        uint8_t *bytes = realloc(decoder->bytes, capacity);
        if (bytes == NULL) return CAIRN_FRAME_NO_MEMORY;
        decoder->bytes = bytes;
        decoder->capacity = capacity;
    }
    *room_out = decoder->bytes + decoder->end;
    *room_bytes_out = decoder->capacity - decoder->end;
    return CAIRN_FRAME_NONE;
}

void cairn_frame_decoder_added(struct cairn_frame_decoder *decoder, size_t added_bytes)
{
    assert(added_bytes <= decoder->capacity - decoder->end);
    decoder->end += added_bytes;
}

void cairn_frame_decoder_trim(struct cairn_frame_decoder *decoder)
{
    if (decoder->start != decoder->end) return;
    decoder->start = decoder->end = 0;
    if (decoder->capacity <= IDLE_BYTES) return;
    free(decoder->bytes);
    decoder->bytes = NULL;
    decoder->capacity = 0;
}

// Judges a whole header against what the connection takes now; `why` says which number is wrong.
static cairn_status judge_header(const uint8_t *header, const struct cairn_frame_limits *limits,
                                 struct cairn_sentence *why)
{
    const unsigned type = read_u16(header + 4);
    const unsigned flags = read_u16(header + 6);
    const uint32_t payload_bytes = read_u32(header + 8);
    if (type < limits->type_min || type > limits->type_max)
        return cairn_fail(why, CAIRN_ERR_PROTOCOL,
                          "message type %u is not expected here (%u to %u are): another version of "
                          "Cairn, or no Hello yet",
                          type, limits->type_min, limits->type_max);
    if (flags != 0)
        return cairn_fail(why, CAIRN_ERR_PROTOCOL,
                          "frame flags 0x%x are unknown: the peer is a newer version", flags);
    if (payload_bytes > limits->frame_bytes - CAIRN_FRAME_HEADER_BYTES)
        return cairn_fail(why, CAIRN_ERR_PROTOCOL,
                          "a frame of type %u claims %u bytes of payload, the limit is %u", type,
                          payload_bytes, limits->frame_bytes - CAIRN_FRAME_HEADER_BYTES);
    return CAIRN_OK;
}

static cairn_status judge_magic(const uint8_t *bytes, size_t byte_count, struct cairn_sentence *why)
{
    if (byte_count > sizeof magic) byte_count = sizeof magic;
    for (size_t i = 0; i < byte_count; i++)
        if (bytes[i] != magic[i])
            return cairn_fail(why, CAIRN_ERR_PROTOCOL,
                              "byte %zu of a frame is 0x%02x, not 0x%02x: this is not Cairn's "
                              "protocol (is the port the right one?)",
                              i, bytes[i], magic[i]);
    return CAIRN_OK;
}

enum cairn_frame_state cairn_frame_decoder_next(struct cairn_frame_decoder *decoder,
                                                struct cairn_frame *frame_out,
                                                struct cairn_sentence *why)
{
    const size_t arrived = decoder->end - decoder->start;
    if (decoder->malformed) {
        cairn_sentence_set(why, "the stream was malformed before");
        return CAIRN_FRAME_MALFORMED;
    }
    if (arrived == 0) return CAIRN_FRAME_NONE; // there may be no buffer at all
    const uint8_t *header = decoder->bytes + decoder->start;
    if (judge_magic(header, arrived, why) != CAIRN_OK) goto malformed;
    if (arrived < CAIRN_FRAME_HEADER_BYTES) return CAIRN_FRAME_NONE;
    if (judge_header(header, &decoder->limits, why) != CAIRN_OK) goto malformed;

    const size_t payload_bytes = read_u32(header + 8);
    if (arrived - CAIRN_FRAME_HEADER_BYTES < payload_bytes) return CAIRN_FRAME_NONE;
    frame_out->type = read_u16(header + 4);
    frame_out->request = read_u32(header + 12);
    frame_out->payload = header + CAIRN_FRAME_HEADER_BYTES;
    frame_out->payload_bytes = payload_bytes;
    decoder->start += CAIRN_FRAME_HEADER_BYTES + payload_bytes;
    return CAIRN_FRAME_READY;
malformed:
    decoder->malformed = 1;
    return CAIRN_FRAME_MALFORMED;
}

void cairn_frame_header_write(uint8_t header_out[CAIRN_FRAME_HEADER_BYTES], uint16_t type,
                              uint32_t request, uint32_t payload_bytes)
{
    memcpy(header_out, magic, sizeof magic);
    write_u16(header_out + 4, type);
    write_u16(header_out + 6, 0);
    write_u32(header_out + 8, payload_bytes);
    write_u32(header_out + 12, request);
}

cairn_status cairn_frame_pack(uint16_t type, uint32_t request, const ProtobufCMessage *message,
                              uint32_t frame_bytes_max, uint8_t **frame_out,
                              size_t *frame_bytes_out, struct cairn_sentence *why)
{
    assert(frame_bytes_max >= CAIRN_FRAME_HEADER_BYTES);
    const size_t payload_bytes = protobuf_c_message_get_packed_size(message);
    if (payload_bytes > frame_bytes_max - CAIRN_FRAME_HEADER_BYTES)
        return cairn_fail(why, CAIRN_ERR_INVALID,
                          "a %s of %zu bytes is larger than a frame may be (%u): send it in pages",
                          message->descriptor->short_name, payload_bytes,
                          frame_bytes_max - CAIRN_FRAME_HEADER_BYTES);
    uint8_t *frame = malloc(CAIRN_FRAME_HEADER_BYTES + payload_bytes);
    if (frame == NULL)
        return cairn_fail(why, CAIRN_ERR_NO_MEMORY, "no memory for a frame of %zu bytes",
                          payload_bytes);
    cairn_frame_header_write(frame, type, request, (uint32_t)payload_bytes);
    protobuf_c_message_pack(message, frame + CAIRN_FRAME_HEADER_BYTES);
    *frame_out = frame;
    *frame_bytes_out = CAIRN_FRAME_HEADER_BYTES + payload_bytes;
    return CAIRN_OK;
}
