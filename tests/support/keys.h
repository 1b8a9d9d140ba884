/* Keys for tests of TCP: a coordinator's, and one token that it knows; both made anew in each process. And a
 * blocking end of a sealed connection, for tests that send bytes of their own. */
#ifndef CAIRN_TESTS_KEYS_H
#define CAIRN_TESTS_KEYS_H

#include <sodium.h>
#include <stddef.h>
#include <stdint.h>

#include "proto/secure/secure.h"

const struct token *keys_token(void);
/* Writes the token to FOLDER/token, and sets CAIRN_TOKEN_FILE for this process and its children. */
void keys_show(const char *folder);
/* For stream_options.secure: of an end that shows the token, and of one that knows it. */
const struct handshake_options *keys_join(void);
const struct handshake_options *keys_serve(void);

/* For struct listener_events: knows the token, and lets whoever has it do everything. */
bool keys_find(const uint8_t key_id[CAIRN_PSK_ID_BYTES], struct handshake_row *row_out,
               void *context);
cairn_status keys_identify(const struct handshake_result *result, struct identity *identity_out,
                           struct sentence *why, void *context);

/* Writes the MAC of message 1, as one does who knows the secret. */
static inline void keys_sign_first(uint8_t first[CAIRN_HANDSHAKE_FIRST_BYTES],
                                   const uint8_t secret[CAIRN_PSK_BYTES])
{
    enum { MAC_BYTES = 16, SIGNED_BYTES = CAIRN_HANDSHAKE_FIRST_BYTES - MAC_BYTES };
    crypto_generichash_blake2b_salt_personal(first + SIGNED_BYTES, MAC_BYTES, first, SIGNED_BYTES,
                                             secret, CAIRN_PSK_BYTES, NULL,
                                             (const uint8_t *)"cairn: message 1");
}

/* One end of a connection over `fd`, which stays the caller's. */
struct sealed {
    int fd;
    struct channel *channel;
    struct byte_queue plain;
};

/* Shakes hands by these options. False: the other end has closed the connection first. */
bool sealed_open(struct sealed *sealed, int fd, const struct handshake_options *options);
void sealed_send(struct sealed *sealed, const void *bytes, size_t count);
/* Receives so many bytes. False: the connection has ended, or nothing came in time (SO_RCVTIMEO). */
bool sealed_receive(struct sealed *sealed, void *bytes, size_t count);
/* Frees, and closes nothing: the other end is not told. */
void sealed_release(struct sealed *sealed);

#endif
