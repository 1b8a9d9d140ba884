/* The frames of the mapped fabric: one per message of a Unix SOCK_SEQPACKET connection, numbers as this host
 * has them (both ends are on it). Private to proto/fabric.
 *
 *   who connects (sends messages)             who accepted (receives them)
 *                                        <-   CHALLENGE  { nonce }
 *   HELLO { nonce, proof }               ->
 *                                        <-   WELCOME    { proof }
 *   REGION { slot, bytes, note } + fd    ->
 *   MESSAGE { serial, where } header ... ->
 *   BUNDLE { MESSAGE, MESSAGE, ... }     ->   what was sent in one turn, in order
 *   REGION_GONE { slot }                 ->
 *                                        <-   RELEASE    { serials }
 *                                        <-   NO_IMPORTS, if it lacks room for memory of a card
 *
 * The proofs are HMAC-SHA-512-256 over both nonces, keyed with the 32 random bytes of the acceptor's address:
 * each shows that it knows the address, which only members have, without sending it to a stranger who took
 * the socket's name. A descriptor comes with REGION, one, and with nothing else: a
 * memfd, or of memory of a card what its driver exported. */
#ifndef CAIRN_FABRIC_MAPPED_FRAME_H
#define CAIRN_FABRIC_MAPPED_FRAME_H

#include <assert.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "proto/fabric/fabric.h"

enum {
    FRAME_SLOTS = 4096,        /* regions that one peer may show at a time; a slot is used again */
    FRAME_INLINE_MAX = 8192,   /* payloads up to here travel in their frame */
    FRAME_REFER_MIN = 1024,    /* payloads from here on go by reference where they can */
    FRAME_RELEASES_MAX = 128,  /* in one frame */
    FRAME_BUNDLE_MAX = 256,    /* messages in one frame */
    FRAME_KEY_BYTES = 32,      /* as crypto_auth has them */
    FRAME_NONCE_BYTES = 32,    /**/
    FRAME_PROOF_BYTES = 32,    /**/
    FRAME_INLINE = UINT16_MAX, /* a message's slot: the payload is in the frame, or there is none */
};
static_assert(FRAME_SLOTS <= FRAME_INLINE, "a slot is never FRAME_INLINE");

enum frame_kind {
    FRAME_MALFORMED = 0,
    FRAME_CHALLENGE = 1,
    FRAME_HELLO = 2,
    FRAME_WELCOME = 3,
    FRAME_REGION = 4,
    FRAME_REGION_GONE = 5,
    FRAME_MESSAGE = 6,
    FRAME_RELEASE = 7,
    FRAME_NO_IMPORTS = 8, /* a head: memory of cards is not taken any more */
    FRAME_BUNDLE = 9,     /* a head; whole MESSAGE frames follow, each filled up to 8 bytes */
};

struct frame_head {
    uint32_t magic;
    uint32_t kind;
};
struct
    frame_greeting { /* CHALLENGE (no proof), HELLO, WELCOME (no nonce): zero what is not there */
    struct frame_head head;
    uint8_t nonce[FRAME_NONCE_BYTES];
    uint8_t proof[FRAME_PROOF_BYTES];
};
enum frame_memory {
    FRAME_MEMORY_HOST = 0,
    FRAME_MEMORY_STAGING = 1, /* the sender's own copies of payloads, not shown to the owner */
    FRAME_MEMORY_DEVICE = 2,  /* of the card of this UUID */
};
struct frame_region {
    struct frame_head head;
    uint64_t bytes;
    uint16_t slot;
    uint16_t memory; /* enum frame_memory */
    uint32_t note_bytes;
    uint8_t note[CAIRN_FABRIC_NOTE_MAX];
    uint8_t uuid[CAIRN_FABRIC_UUID_BYTES]; /* of FRAME_MEMORY_DEVICE; else zero */
};
struct frame_gone {
    struct frame_head head;
    uint16_t slot;
    uint16_t zero[3];
};
struct frame_message { /* header_bytes of header follow, then the payload if it is inline */
    struct frame_head head;
    uint64_t serial; /* for RELEASE; 0 if inline, which is not released */
    uint64_t offset; /* in the region */
    uint32_t payload_bytes;
    uint16_t header_bytes;
    uint16_t slot;
};
struct frame_release {
    struct frame_head head;
    uint64_t serials[FRAME_RELEASES_MAX]; /* as many as the frame is long, at least one */
};

static_assert(sizeof(struct frame_head) == 8, "wire format");
static_assert(sizeof(struct frame_greeting) == 72, "wire format");
static_assert(offsetof(struct frame_greeting, proof) == 40, "wire format");
static_assert(sizeof(struct frame_region) == 104, "wire format");
static_assert(offsetof(struct frame_region, slot) == 16, "wire format");
static_assert(offsetof(struct frame_region, note) == 24, "wire format");
static_assert(offsetof(struct frame_region, uuid) == 88, "wire format");
static_assert(sizeof(struct frame_gone) == 16, "wire format");
static_assert(sizeof(struct frame_message) == 32, "wire format");
static_assert(offsetof(struct frame_message, offset) == 16, "wire format");
static_assert(offsetof(struct frame_message, payload_bytes) == 24, "wire format");
static_assert(offsetof(struct frame_message, slot) == 30, "wire format");
static_assert(offsetof(struct frame_release, serials) == 8, "wire format");

enum {
    FRAME_BYTES_MAX = 64 << 10, /* of a bundle; of a message: */
    FRAME_MESSAGE_BYTES_MAX = sizeof(struct frame_message) + CAIRN_FABRIC_HEADER_MAX +
                              FRAME_INLINE_MAX
};

union frame {
    struct frame_head head;
    struct frame_greeting greeting;
    struct frame_region region;
    struct frame_gone gone;
    struct frame_message message;
    struct frame_release release;
    uint8_t bytes[FRAME_BYTES_MAX];
};

struct frame_head frame_head(enum frame_kind kind);

/* Judges bytes: returns the kind of a whole frame whose numbers agree with its length and with the
 * limits above, or FRAME_MALFORMED. Only its connection knows the meaning of a slot or a serial. */
enum frame_kind frame_judge(const union frame *frame, size_t bytes);

/* The message of a bundle that begins at `at`, which moves to where the next one begins; NULL: no
 * whole message begins there. A bundle is sound if its messages fill it exactly, up to its
 * `bytes`. */
const struct frame_message *frame_bundled(const union frame *frame, size_t bytes, size_t *at);

static inline size_t frame_filled(size_t bytes)
{
    return (bytes + 7) / 8 * 8;
}

/* The length of a MESSAGE, by its own numbers. */
static inline size_t frame_message_bytes(const struct frame_message *message)
{
    return sizeof *message + message->header_bytes +
           (message->slot == FRAME_INLINE ? message->payload_bytes : 0);
}

static inline size_t frame_release_count(size_t bytes)
{
    return (bytes - sizeof(struct frame_head)) / sizeof(uint64_t);
}

/* Call it before the first of the following; again is harmless. False: there is no randomness. */
bool frame_begin(void);
void frame_random(void *bytes, size_t count);
/* `by_acceptor`: the proof of WELCOME, which nobody can make of that of HELLO. */
void frame_prove(const uint8_t key[FRAME_KEY_BYTES], bool by_acceptor,
                 const uint8_t acceptor_nonce[FRAME_NONCE_BYTES],
                 const uint8_t connector_nonce[FRAME_NONCE_BYTES],
                 uint8_t proof_out[FRAME_PROOF_BYTES]);
bool frame_proves(const uint8_t key[FRAME_KEY_BYTES], bool by_acceptor,
                  const uint8_t acceptor_nonce[FRAME_NONCE_BYTES],
                  const uint8_t connector_nonce[FRAME_NONCE_BYTES],
                  const uint8_t proof[FRAME_PROOF_BYTES]);

/* One frame of a non-blocking socket. Returns its length; 0: the other end is gone; -1: nothing there.
 * *fd_out: a descriptor that came along, the caller's, or -1. *is_whole_out: false if it was longer than
 * any frame or brought more than one descriptor. */
long frame_read(int socket, union frame *frame, int *fd_out, bool *is_whole_out);

enum frame_fate { FRAME_WRITTEN, FRAME_LATER, FRAME_NOBODY }; /* LATER: the socket is full */
struct iovec;
/* `fd` -1: none goes along. */
enum frame_fate frame_write(int socket, const struct iovec *parts, size_t count, int fd);
enum frame_fate frame_write_one(int socket, const void *frame, size_t bytes, int fd);

#endif
