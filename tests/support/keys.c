#include "tests/support/keys.h"

#include <check.h>
#include <errno.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static struct curve_key coordinator, joiner;
static struct token token;

static void make(void)
{
    if (token.secret[0] != 0) return;
    curve_key_make(&coordinator);
    curve_key_make(&joiner);
    randombytes_buf(&token, sizeof token);
    token.secret[0] = 1;
    curve_pin(coordinator.open, token.pin);
}

const struct token *keys_token(void)
{
    make();
    return &token;
}

void keys_show(const char *folder)
{
    char path[512];
    struct sentence why;
    snprintf(path, sizeof path, "%s/token", folder);
    ck_assert_msg(token_write_file(path, keys_token(), &why) == CAIRN_OK, "%s", why.text);
    ck_assert_int_eq(setenv("CAIRN_TOKEN_FILE", path, 1), 0);
}

const struct handshake_options *keys_join(void)
{
    static struct handshake_options options;
    make();
    options = handshake_by_token(&token, &joiner);
    return &options;
}

static bool find(void *arg, const uint8_t key_id[CAIRN_PSK_ID_BYTES], struct handshake_row *row_out)
{
    return keys_find(key_id, row_out, arg);
}

const struct handshake_options *keys_serve(void)
{
    static const struct handshake_options options = { .purpose = CAIRN_PURPOSE_CONTROL,
                                                      .find = find };
    make();
    return &options;
}

bool keys_find(const uint8_t key_id[CAIRN_PSK_ID_BYTES], struct handshake_row *row_out,
               void *context)
{
    (void)context;
    make();
    if (memcmp(key_id, token.id, sizeof token.id) != 0) return false;
    memcpy(row_out->secret, token.secret, sizeof row_out->secret);
    row_out->own = &coordinator;
    return true;
}

cairn_status keys_identify(const struct handshake_result *result, struct identity *identity_out,
                           struct sentence *why, void *context)
{
    (void)why;
    (void)context;
    *identity_out = (struct identity) { .name = "test", .owner = "test", .roles = CAIRN_MAY_ALL };
    memcpy(identity_out->key_id, result->key_id, sizeof identity_out->key_id);
    memcpy(identity_out->key, result->peer_key, sizeof identity_out->key);
    return CAIRN_OK;
}

/* ---- a blocking end ---- */

static void send_wire(const struct sealed *sealed, struct byte_queue *wire)
{
    while (wire->end > wire->start) {
        const ssize_t sent = send(sealed->fd, byte_queue_first(wire), byte_queue_count(wire),
                                  MSG_NOSIGNAL);
        if (sent <= 0) break; // the other end is gone; the next receive says so
        byte_queue_drop(wire, (size_t)sent);
    }
    byte_queue_release(wire);
}

/* Receives once. */
static bool take(struct sealed *sealed)
{
    uint8_t bytes[4096];
    size_t done = 0, used;
    struct sentence why;
    const ssize_t got = recv(sealed->fd, bytes, sizeof bytes, 0);
    if (got <= 0) return false;
    while (done < (size_t)got) {
        if (channel_take(sealed->channel, bytes + done, (size_t)got - done, sizeof bytes, &used,
                         &sealed->plain, &why) != CAIRN_OK)
            return false;
        done += used;
    }
    return true;
}

bool sealed_open(struct sealed *sealed, int fd, const struct handshake_options *options)
{
    struct byte_queue wire = { 0 };
    *sealed = (struct sealed) { .fd = fd };
    ck_assert_int_eq(channel_open(options, &sealed->channel), CAIRN_OK);
    while (!channel_is_up(sealed->channel)) {
        ck_assert_int_eq(channel_greet(sealed->channel, &wire), CAIRN_OK);
        send_wire(sealed, &wire);
        if (!take(sealed)) return false;
    }
    ck_assert_int_eq(channel_greet(sealed->channel, &wire), CAIRN_OK);
    send_wire(sealed, &wire);
    return true;
}

void sealed_send(struct sealed *sealed, const void *bytes, size_t count)
{
    struct byte_queue wire = { 0 };
    ck_assert_int_eq(channel_seal(sealed->channel, bytes, count, 0, &wire), CAIRN_OK);
    send_wire(sealed, &wire);
}

bool sealed_receive(struct sealed *sealed, void *bytes, size_t count)
{
    struct byte_queue *plain = &sealed->plain;
    while (byte_queue_count(plain) < count)
        if (!take(sealed) && byte_queue_count(plain) < count) return false;
    memcpy(bytes, byte_queue_first(plain), count);
    byte_queue_drop(plain, count);
    return true;
}

void sealed_release(struct sealed *sealed)
{
    channel_close(sealed->channel);
    byte_queue_release(&sealed->plain);
}
