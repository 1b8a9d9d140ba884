/* A peer of another host: it proves who it is, and nobody else hears or changes what the two say.
 *
 * Every TCP connection of Cairn, for control and for data, begins with the same handshake of three messages
 * (Noise_XXpsk3_25519_ChaChaPoly_SHA256; The Noise Protocol Framework, revision 34, sections 5, 7 and 9).
 * Both ends prove that they know one secret, and each end learns the other's public key. The handshake ends
 * in two keys, one for each direction, and a hash that names the session. Everything here is pure: bytes in,
 * bytes out, no socket and no clock. One object belongs to one thread at a time.
 *
 * A stranger costs little: the first message carries a MAC that is keyed by the secret, so a stranger is
 * found out by a look-up and a hash, before any curve operation, and hears nothing. A handshake, and a
 * channel before it is up, hold less than 2 KiB, and take no memory on a stranger's word.
 *
 * libsodium is initialized by the functions here that need it. */
#ifndef CAIRN_SECURE_SECURE_H
#define CAIRN_SECURE_SECURE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/types.h>

#include "proto/base/status.h"
#include "proto/base/text.h"

enum {
    CAIRN_PSK_BYTES = 32,   /* of a pre-shared secret (Noise's psk) */
    CAIRN_CURVE_BYTES = 32, /* of an X25519 key, public or secret */
    CAIRN_PSK_ID_BYTES = 8, /* names a secret in the first message; says nothing about it */
    CAIRN_SESSION_HASH_BYTES = 32,
    CAIRN_PIN_BYTES = 16,        /* of the hash of a public key that a token carries */
    CAIRN_OWNER_BYTES = 64,      /* of an identity's name and of an owner's, with NUL */
    CAIRN_JOBS_TEXT_BYTES = 256, /* of the jobs that a token allows, with NUL */
};

/* ==== keys ==== */

/* An X25519 key pair. The secret half is wiped by curve_key_wipe, and never printed. */
struct curve_key {
    uint8_t secret[CAIRN_CURVE_BYTES];
    uint8_t open[CAIRN_CURVE_BYTES]; /* the public half */
};

/* Makes a key from the system's random numbers. */
void curve_key_make(struct curve_key *out);
void curve_key_wipe(struct curve_key *key);
/* Writes the hash of a public key by which a token names it (BLAKE2b). */
void curve_pin(const uint8_t open[CAIRN_CURVE_BYTES], uint8_t pin_out[CAIRN_PIN_BYTES]);

/* ==== token ==== */

/* A node or a trainer is given a token to join a cluster, as one word:
 *   cairn1-<base32 of id, pin, secret and a checksum>
 * The pin is the hash of the coordinator's public key, so the joiner checks the coordinator before it says
 * anything about itself. Whoever has the word has the rights of the token's row in the roster. */

#define CAIRN_TOKEN_TEXT_BYTES 128 /* of the written form, with NUL */

struct token {
    uint8_t id[CAIRN_PSK_ID_BYTES];
    uint8_t pin[CAIRN_PIN_BYTES];
    uint8_t secret[CAIRN_PSK_BYTES];
};

void token_print(const struct token *token, char text_out[CAIRN_TOKEN_TEXT_BYTES]);
/* Reads the written form; blanks around it are ignored. CAIRN_ERR_MALFORMED: the sentence says whether it
 * is no token at all, is cut off, or has a typing error (the checksum finds any), and never quotes it. */
CAIRN_MUST_CHECK cairn_status token_parse(const char *text, struct token *token_out,
                                          struct sentence *why);

/* Reads a token from a file of one line. The file must be a regular file of this user or of root, and
 * nobody else may read or write it, or choose where a symbolic link to it leads: else
 * CAIRN_ERR_REFUSED, with the chmod that mends it. CAIRN_ERR_NOT_FOUND: there is no such file. Blocking. */
CAIRN_MUST_CHECK cairn_status token_read_file(const char *path, struct token *token_out,
                                              struct sentence *why);
/* Writes a token's file, mode 0600, as a whole or not at all. Blocking. */
CAIRN_MUST_CHECK cairn_status token_write_file(const char *path, const struct token *token,
                                               struct sentence *why);
/* Finds this process's token: $CREDENTIALS_DIRECTORY/cairn-token, if it is there and is not the word "none";
 * else `given` (a path of the configuration; NULL or "": none), else the file that
 * $CAIRN_TOKEN_FILE names, else `fallback` (NULL: none) if that file exists. Never a token in argv or in an
 * environment value. CAIRN_ERR_NOT_FOUND: there is none; the sentence lists where one was looked for. */
CAIRN_MUST_CHECK cairn_status token_find(const char *given, const char *fallback,
                                         struct token *token_out, struct sentence *why);

/* ==== identity ==== */

/* The bits of an identity's roles: a peer may have several. */
enum secure_role {
    CAIRN_MAY_WORK = 1,     /* a trainer: attach as worker, read, create jobs of its own */
    CAIRN_MAY_READ = 2,     /* fetch parameters */
    CAIRN_MAY_SHARD = 4,    /* hold state */
    CAIRN_MAY_ADMIN = 8,    /* everything that `cairn` can ask */
    CAIRN_MAY_MONITOR = 16, /* ask for status, change nothing */
};
#define CAIRN_MAY_ALL 31

/* "worker,reader"; "none" */
void roles_print(uint32_t roles, char text_out[64]);
/* Reads such a list: worker, reader, shard, admin, monitor. False: an unknown word. */
bool roles_parse(const char *text, uint32_t *roles_out);

/* Who a peer of a daemon is, as the kernel (Unix socket) or the handshake (TCP) proved it. */
struct identity {
    char name[CAIRN_OWNER_BYTES]; /* of the token, or "alice (uid 1000)" */
    char owner
        [CAIRN_OWNER_BYTES]; /* who owns what this peer makes: the token's owner, or "uid:1000" */
    uint32_t roles;          /* bits of enum secure_role */
    bool is_local;           /* over a Unix socket; uid and gid are valid */
    uid_t uid;
    gid_t gid;
    uint8_t key_id[CAIRN_PSK_ID_BYTES]; /* of the token, if not local */
    uint8_t key[CAIRN_CURVE_BYTES];     /* the peer's public key, if not local */
    /* The jobs that the token allows: names with '*', separated by ','; "": those of the same owner */
    char jobs[CAIRN_JOBS_TEXT_BYTES];
};

/* ==== handshake ==== */

/* The messages (bytes):
 *   1  initiator: magic "CAIRNSE1" 8, version 2, purpose 2, key id 8,
 *                 Noise's first message 48, MAC 16                                       84 in all
 *   2  responder: length 2, Noise's second message                                      98 in all
 *      or a refusal: length 2 with the top bit set, status 2, text (at most 480), MAC 16
 *   3  initiator: length 2, Noise's third message                                       66 in all
 * Little endian; a length counts what follows it. Noise's prologue is the first 20 bytes of message 1, and
 * the context. The MACs are keyed BLAKE2b over all bytes before them (for a refusal: over message 1, too),
 * so a refusal is believed only from an end that knows the secret, and a stranger hears nothing. Message 1
 * and the refusal keep their layout in all versions, so that two versions can say that they differ. */

enum {
    CAIRN_HANDSHAKE_VERSION = 1,
    CAIRN_HANDSHAKE_FIRST_BYTES = 84,
    CAIRN_HANDSHAKE_MOST_BYTES = 512, /* of any message */
    CAIRN_REFUSAL_TEXT_BYTES = 480,   /* of the sentence in a refusal; a longer one is cut */
    CAIRN_HANDSHAKE_CONTEXT_BYTES = 64,
};

enum handshake_purpose {
    CAIRN_PURPOSE_CONTROL = 1,
    CAIRN_PURPOSE_DATA = 2,
};

/* A responder's knowledge of a key id. */
struct handshake_row {
    uint8_t secret[CAIRN_PSK_BYTES];
    const struct curve_key *own; /* borrowed: the key to prove; a row pins one */
    cairn_status
        refused; /* CAIRN_OK, or why an owner of the secret is refused (revoked, expired) */
    struct sentence why;
    /* Called when such an owner has proved that it is one, and is refused; NULL: nobody is told. Do not
     * write of a refusal before: a stranger can name any id. */
    void (*on_refused)(void *arg, const uint8_t key_id[CAIRN_PSK_ID_BYTES],
                       const struct sentence *why);
    void *refused_arg;
};

/* The first messages that the handshakes of one port have answered. One that comes again is a stranger's, who
 * has overheard it: it costs a look-up and a hash, as any stranger does, and hears nothing. A message is
 * forgotten when another one takes its place; whoever has overheard it gains an answer by that, and nothing
 * else. Zero to begin with; one thread. */
#define CAIRN_ANSWERED_PLACES 4096
struct handshake_answered {
    uint64_t macs[CAIRN_ANSWERED_PLACES]; /* the first 8 bytes of each */
};

struct handshake_options {
    bool is_initiator;
    enum handshake_purpose purpose;
    /* bytes that both ends must share, such as a cluster's id; [context_bytes] */
    const void *context;
    size_t context_bytes;
    /* The initiator's. `pin` NULL: the responder's key is `expected` (32 bytes). */
    const struct curve_key *own;
    uint8_t key_id[CAIRN_PSK_ID_BYTES];
    uint8_t secret[CAIRN_PSK_BYTES];
    const uint8_t *pin;
    const uint8_t *expected;
    /* The responder's: finds a row; false: the id is unknown. Called at most once, within handshake_take.
     * row_out is zeroed before (refused: CAIRN_OK) and wiped after. */
    bool (*find)(void *arg, const uint8_t key_id[CAIRN_PSK_ID_BYTES],
                 struct handshake_row *row_out);
    void *arg; /* for find */
    /* borrowed until the handshake is closed; NULL: what comes again is answered again */
    struct handshake_answered *answered;
    /* Whether the peer's public key is the one that a name is pinned to, is for the caller to judge when
     * the handshake is done; a refusal is then the first thing that it says in the channel. */
};

/* Returns the options of an initiator that has a token, for a control connection. They borrow from both, and
 * have the secret: wipe them. */
static inline struct handshake_options handshake_by_token(const struct token *token,
                                                          const struct curve_key *own)
{
    struct handshake_options options = {
        .is_initiator = true, .purpose = CAIRN_PURPOSE_CONTROL, .own = own, .pin = token->pin
    };
    memcpy(options.key_id, token->id, sizeof options.key_id);
    memcpy(options.secret, token->secret, sizeof options.secret);
    return options;
}

struct handshake;

enum handshake_state {
    CAIRN_HANDSHAKE_GOES_ON,
    CAIRN_HANDSHAKE_DONE,
    CAIRN_HANDSHAKE_FAILED,
};

/* The result of a handshake. Wipe it after use. */
struct handshake_result {
    uint8_t send_key[32], receive_key[32];
    uint8_t session_hash[CAIRN_SESSION_HASH_BYTES]; /* both ends have the same; Noise's h */
    uint8_t peer_key[CAIRN_CURVE_BYTES];
    uint8_t key_id[CAIRN_PSK_ID_BYTES];
};

/* Options are copied; `own`, pin, expected and context as well; a responder's `own` is its row's.
 * CAIRN_ERR_INVALID: an option is missing, or the context is too long. CAIRN_ERR_NO_MEMORY. */
CAIRN_MUST_CHECK cairn_status handshake_open(const struct handshake_options *options,
                                             struct handshake **out);
void handshake_close(struct handshake *handshake); /* wipes; NULL is allowed */

/* Takes bytes that arrived. *used_out: how many belong to the handshake; the rest are records of the
 * session. May leave bytes to send (handshake_to_send), also when it FAILED: a refusal, for a peer that
 * knows the secret. To one that proved nothing there is nothing to send: close without a word. FAILED:
 * `why` says what and what to do, for our own log, and *status_out is
 *   CAIRN_ERR_PROTOCOL   a stranger, or somebody between the two
 *   CAIRN_ERR_REFUSED, _VERSION, or another: what an end that knows the secret says of the other
 * Once FAILED or DONE, it takes nothing. */
enum handshake_state handshake_take(struct handshake *handshake, const uint8_t *bytes, size_t count,
                                    size_t *used_out, cairn_status *status_out,
                                    struct sentence *why);
/* Returns the bytes that are to be sent now, once; borrowed until the next call. An initiator has some right
 * after handshake_open. */
const uint8_t *handshake_to_send(struct handshake *handshake, size_t *count_out);
/* A responder's: true when message 1 has come, was not repeated, and its MAC is good. */
bool handshake_is_proved(const struct handshake *handshake);
/* Valid when the state is DONE. */
void handshake_result(const struct handshake *handshake, struct handshake_result *out);
/* Writes what an initiator has to say when the other end closes the connection before the handshake is done:
 * a responder that does not know the secret says nothing. `peer` is as "the coordinator at 10.0.0.1:7070". */
void handshake_silence_text(const char *peer, enum handshake_purpose purpose, struct sentence *why);

/* ==== channel ==== */

/* A control connection's records, after its handshake.
 *   record: length 4 (of what follows, at most 64 KiB + 17), then ChaCha20-Poly1305 of {kind 1, bytes}
 *   kinds:  1 DATA, 2 REKEY (empty), 3 CLOSE (empty)
 * The length is associated data; nonces count from 0 in each direction (Noise, section 5.1). A direction is
 * rekeyed (Noise's REKEY, section 11.3) after 2^16 records or after CAIRN_REKEY_MS, by a record that says
 * so; the nonces count on. A REKEY of a key that no DATA came under is refused: a sender rekeys only when it
 * has bytes to send, and a key is due by its records or its time. A record CLOSE ends a direction: an end
 * without it is a truncation, and is reported. */

enum {
    CAIRN_RECORD_BYTES_MAX = 64 << 10, /* of plain bytes in a record */
    CAIRN_REKEY_RECORDS = 1 << 16,
    CAIRN_REKEY_MS = 10 * 60 * 1000,
    CAIRN_TAKE_RECORDS = 256, /* the most that one channel_take takes */
};

struct channel; /* a handshake, and then records */

/* Bytes that grow at the end and are used up at the start. Owned by whoever has the struct; release it. */
struct byte_queue {
    uint8_t *bytes; /* those that are there: [start, end) */
    size_t start, end, capacity;
    size_t used; /* the bytes before this were written: what a release wipes */
};
static inline size_t byte_queue_count(const struct byte_queue *queue)
{
    return queue->end - queue->start;
}
/* The first byte, if there is one; borrowed until the queue changes. */
static inline const uint8_t *byte_queue_first(const struct byte_queue *queue)
{
    return queue->bytes + queue->start;
}
/* Makes room for `more` bytes at the end; what is there may move. CAIRN_ERR_NO_MEMORY: nothing changed. */
CAIRN_MUST_CHECK cairn_status byte_queue_reserve(struct byte_queue *queue, size_t more);
/* Uses up the first `count` bytes. */
void byte_queue_drop(struct byte_queue *queue, size_t count);
/* Wipes and frees the bytes; the queue is empty, and may be used again. */
void byte_queue_release(struct byte_queue *queue);

CAIRN_MUST_CHECK cairn_status channel_open(const struct handshake_options *options,
                                           struct channel **out);
/* A channel that is up, after a handshake that was done elsewhere; the result is copied. */
CAIRN_MUST_CHECK cairn_status channel_open_up(const struct handshake_result *result,
                                              struct channel **out);
void channel_close(struct channel *channel); /* wipes; NULL is allowed */
/* True when the handshake is done: from then on records are sent and taken. */
bool channel_is_up(const struct channel *channel);
/* A responder's: true when the first message has come, and its MAC says that the peer knows a secret. */
bool channel_is_proved(const struct channel *channel);
/* Who the peer is; valid when the channel is up. The keys in it are zero: the channel alone has them. */
const struct handshake_result *channel_peer(const struct channel *channel);
/* Takes bytes that arrived, and appends the plain bytes of complete records to `plain`. It stops before a
 * record if this call has appended plain_max bytes or more (plain_max is above 0), so a call appends less
 * than plain_max + CAIRN_RECORD_BYTES_MAX, and after CAIRN_TAKE_RECORDS records; *used_out says how many
 * bytes were taken: call again while there are more. Errors: CAIRN_ERR_PROTOCOL (a stranger, or a peer
 * that lies), CAIRN_ERR_REFUSED, _VERSION (the other end says why), CAIRN_ERR_CLOSED (the peer's CLOSE
 * record; `plain` has what came before it), CAIRN_ERR_NO_MEMORY. After an error the channel takes nothing
 * more. After any call there may be something to greet with, also after an error (a refusal). */
CAIRN_MUST_CHECK cairn_status channel_take(struct channel *channel, const uint8_t *bytes,
                                           size_t count, size_t plain_max, size_t *used_out,
                                           struct byte_queue *plain, struct sentence *why);
/* Returns how many bytes of memory an incomplete record of the peer takes in the channel. */
size_t channel_held_bytes(const struct channel *channel);
/* Appends what the handshake has to send to `wire`, if it has something. An initiator has right after
 * channel_open. CAIRN_ERR_NO_MEMORY: nothing changed. */
CAIRN_MUST_CHECK cairn_status channel_greet(struct channel *channel, struct byte_queue *wire);
/* Appends records with these plain bytes to `wire`, after what there is to greet with. Only when the channel
 * is up, and not after channel_finish. CAIRN_ERR_NO_MEMORY: nothing changed. */
CAIRN_MUST_CHECK cairn_status channel_seal(struct channel *channel, const void *bytes, size_t count,
                                           uint64_t now_ms, struct byte_queue *wire);
/* Appends the CLOSE record. Nothing if the channel is not up, or was finished before. */
CAIRN_MUST_CHECK cairn_status channel_finish(struct channel *channel, struct byte_queue *wire);
/* The connection has ended. CAIRN_OK: the peer's CLOSE had come. CAIRN_ERR_PROTOCOL: what the peer had to
 * say is cut off, by its death or by somebody between; the sentence says so. Before the channel is up: see
 * handshake_silence_text. */
CAIRN_MUST_CHECK cairn_status channel_ended(const struct channel *channel, struct sentence *why);

/* ==== Noise ==== */

/* The inside of handshake and channel: Noise_XXpsk3_25519_ChaChaPoly_SHA256, as The Noise Protocol Framework,
 * revision 34, describes it. Names follow the specification; the section is given where a function is one of
 * its functions.
 *
 *   -> e                    1: 48 bytes and the payload
 *   <- e, ee, s, es         2: 96 bytes and the payload
 *   -> s, se, psk           3: 64 bytes and the payload
 *
 * One thing is stricter than the specification allows: a public key that makes a shared secret of zeros (a
 * point of low order) is refused. Pure; one thread at a time. sodium_init was called before. */

enum {
    CAIRN_NOISE_TAG_BYTES = 16,
    CAIRN_NOISE_HASH_BYTES = 32,
    CAIRN_NOISE_KEY_BYTES = 32,
    CAIRN_NOISE_FIRST_BYTES = 48,
    CAIRN_NOISE_SECOND_BYTES = 96,
    CAIRN_NOISE_THIRD_BYTES = 64,
};

/* ---- cipher state (5.1) ---- */

struct noise_cipher {
    uint8_t key[CAIRN_NOISE_KEY_BYTES];
    uint64_t nonce; /* of the next message; below 2^64 - 1, which REKEY uses */
};

/* Writes [count + 16] bytes; `out` may be `plain`. */
void noise_encrypt(struct noise_cipher *cipher, const void *ad, size_t ad_bytes,
                   const uint8_t *plain, size_t count, uint8_t *out);
/* Writes [count - 16] bytes; `out` may be `sealed`. False: forged, or too short; the nonce stays. */
CAIRN_MUST_CHECK bool noise_decrypt(struct noise_cipher *cipher, const void *ad, size_t ad_bytes,
                                    const uint8_t *sealed, size_t count, uint8_t *out);
void noise_rekey(struct noise_cipher *cipher);

/* ---- handshake state (5.3) ---- */

struct noise {
    uint8_t chain[CAIRN_NOISE_HASH_BYTES];     /* ck */
    uint8_t hash[CAIRN_NOISE_HASH_BYTES];      /* h */
    struct noise_cipher cipher;                /* of the symmetric state (5.2) */
    struct curve_key own, ephemeral;           /* s, e */
    uint8_t peer[CAIRN_CURVE_BYTES];           /* rs */
    uint8_t peer_ephemeral[CAIRN_CURVE_BYTES]; /* re */
    uint8_t psk[CAIRN_PSK_BYTES];
    bool is_initiator;
    unsigned next; /* message, from 1; 4: done */
};

/* Initialize (5.3). The keys are copied. `ephemeral` is made for this handshake alone. */
void noise_begin(struct noise *noise, bool is_initiator, const void *prologue,
                 size_t prologue_bytes, const struct curve_key *own,
                 const struct curve_key *ephemeral, const uint8_t psk[CAIRN_PSK_BYTES]);
/* WriteMessage: writes the next message, which is ours, of CAIRN_NOISE_..._BYTES and the payload. False: a
 * key of the peer is refused. */
CAIRN_MUST_CHECK bool noise_write(struct noise *noise, const uint8_t *payload, size_t count,
                                  uint8_t *message_out);
/* ReadMessage: reads the next message, which is the peer's. Writes the payload, which has as many bytes as
 * the message has beyond CAIRN_NOISE_..._BYTES. False: forged, too short, or a key is refused. */
CAIRN_MUST_CHECK bool noise_read(struct noise *noise, const uint8_t *message, size_t count,
                                 uint8_t *payload_out);
/* Split (5.2), after the third message: the ciphers of both directions. */
void noise_split(const struct noise *noise, struct noise_cipher *send_out,
                 struct noise_cipher *receive_out);

#endif
