/* Control frames: how messages are cut out of a stream of bytes. Pure: no socket, no clock.
 *
 *   offset 0  u32  magic "CRN1"                        little-endian throughout
 *          4  u16  type, the number of the message (proto/wire/messages.h)
 *          6  u16  flags, 0 in this version
 *          8  u32  payload bytes that follow
 *         12  u32  request id; 0 = not a request; a reply carries its request's id
 *         16  ...  payload: the message, packed by protobuf-c
 *
 * The header is judged before a byte is allocated for its payload, and as soon as its bytes are
 * there: a stream that begins with anything but "C" is refused at its first byte. The decoder's
 * buffer grows only when bytes have really arrived, by doubling, and never above the limit that the
 * caller set, which counts the whole frame: 16 KiB before a peer said Hello (a fabric address of 4 KiB, and
 * what a name, a version and a device have to say; a shard with many jobs says more than one), 1 MiB after.
 *
 * Calling sequence, for libuv and for blocking sockets alike:
 *   cairn_frame_decoder_init(&d, limits);
 *   cairn_frame_decoder_reserve(&d, &room, &room_bytes);      read(fd, room, room_bytes) -> n
 *   cairn_frame_decoder_added(&d, n);
 *   while (cairn_frame_decoder_next(&d, &frame, &why) == CAIRN_FRAME_READY) use(&frame);
 *   ... until CAIRN_FRAME_MALFORMED (close the connection) ...   cairn_frame_decoder_release(&d); */
#ifndef CAIRN_WIRE_FRAME_H
#define CAIRN_WIRE_FRAME_H

#include "proto/base/sentence.h"

#include <protobuf-c/protobuf-c.h>
#include <stddef.h>
#include <stdint.h>

#define CAIRN_FRAME_HEADER_BYTES 16u
#define CAIRN_FRAME_HELLO_BYTES \
    (16u << 10)                          /* largest whole frame before Hello, and largest Hello */
#define CAIRN_FRAME_BYTES_MAX (1u << 20) /* largest whole frame after Hello */

/* The frames that a connection takes in its present state. */
struct cairn_frame_limits {
    uint16_t type_min; /* types outside type_min..type_max are refused at the header */
    uint16_t type_max;
    uint32_t frame_bytes; /* largest whole frame, header included; at most CAIRN_FRAME_BYTES_MAX */
};

/* One frame. `payload` is borrowed from the decoder until its next call. */
struct cairn_frame {
    uint16_t type;
    uint32_t request;
    const uint8_t *payload;
    size_t payload_bytes;
};

enum cairn_frame_state {
    CAIRN_FRAME_NONE,      /* all bytes so far are well; more are needed */
    CAIRN_FRAME_READY,     /* a whole frame was taken out */
    CAIRN_FRAME_MALFORMED, /* the stream is garbage and stays so: close it */
    CAIRN_FRAME_NO_MEMORY, /* only from reserve */
};

struct cairn_frame_decoder {
    /* owned: freed by cairn_frame_decoder_release */
    uint8_t *bytes;  /* [capacity], of which [start, end) has arrived and is not yet taken */
    size_t capacity; /* 0 while nothing is waiting and nothing was reserved */
    size_t start;
    size_t end;
    struct cairn_frame_limits limits;
    int malformed;
};

void cairn_frame_decoder_init(struct cairn_frame_decoder *decoder,
                              struct cairn_frame_limits limits);
void cairn_frame_decoder_release(struct cairn_frame_decoder *decoder);

/* Changes what is taken from the next header on (a peer said Hello). */
void cairn_frame_decoder_limit(struct cairn_frame_decoder *decoder,
                               struct cairn_frame_limits limits);

/* Room for at least one more byte, lent until cairn_frame_decoder_added. CAIRN_FRAME_NONE: it is
 * there. CAIRN_FRAME_READY: full, take frames out first. CAIRN_FRAME_NO_MEMORY: nothing changed. */
enum cairn_frame_state cairn_frame_decoder_reserve(struct cairn_frame_decoder *decoder,
                                                   uint8_t **room_out, size_t *room_bytes_out);
/* `added_bytes` of the reserved room were filled; 0 gives the room back. */
void cairn_frame_decoder_added(struct cairn_frame_decoder *decoder, size_t added_bytes);

/* Takes the next frame out, or says why there is none. `why` is written when malformed. */
enum cairn_frame_state cairn_frame_decoder_next(struct cairn_frame_decoder *decoder,
                                                struct cairn_frame *frame_out,
                                                struct cairn_sentence *why);

/* Gives memory back that a large frame needed. Call when no frame of it is in use any more. */
void cairn_frame_decoder_trim(struct cairn_frame_decoder *decoder);

/* Writes a header. */
void cairn_frame_header_write(uint8_t header_out[CAIRN_FRAME_HEADER_BYTES], uint16_t type,
                              uint32_t request, uint32_t payload_bytes);

/* Packs a whole frame into `*frame_out`, [*frame_bytes_out], malloc'd, the caller's to free.
 * CAIRN_ERR_INVALID: larger than frame_bytes_max (a programmer's or a user's list is too long: page
 * it). CAIRN_ERR_NO_MEMORY. */
CAIRN_MUST_CHECK cairn_status cairn_frame_pack(uint16_t type, uint32_t request,
                                               const ProtobufCMessage *message,
                                               uint32_t frame_bytes_max, uint8_t **frame_out,
                                               size_t *frame_bytes_out, struct cairn_sentence *why);

#endif
