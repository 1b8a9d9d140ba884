/* Two ends that know each other's secret, for handshakes and channels; their keys are the system's random
 * numbers. One pair a process. */
#ifndef CAIRN_SUPPORT_SECURE_ENDS_H
#define CAIRN_SUPPORT_SECURE_ENDS_H

#include <sodium.h>
#include <stdlib.h>
#include <string.h>

#include "proto/secure/secure.h"

static struct curve_key ends_coordinator, ends_node;
static struct handshake_row ends_row; /* of the one token that the coordinator knows */
static const uint8_t ends_id[CAIRN_PSK_ID_BYTES] = { 1, 2, 3, 4, 5, 6, 7, 8 };
static uint8_t ends_pin[CAIRN_PIN_BYTES];

static inline bool ends_find(void *arg, const uint8_t *key_id, struct handshake_row *row_out)
{
    (void)arg;
    if (memcmp(key_id, ends_id, sizeof ends_id) != 0) return false;
    *row_out = ends_row;
    return true;
}

static inline void ends_make(void)
{
    curve_key_make(&ends_coordinator);
    curve_key_make(&ends_node);
    curve_pin(ends_coordinator.open, ends_pin);
    ends_row = (struct handshake_row) { .own = &ends_coordinator };
    randombytes_buf(ends_row.secret, sizeof ends_row.secret);
}

static inline struct handshake_options ends_initiator(void)
{
    struct token token;
    memcpy(token.id, ends_id, sizeof token.id);
    memcpy(token.secret, ends_row.secret, sizeof token.secret);
    struct handshake_options options = handshake_by_token(&token, &ends_node);
    options.pin = ends_pin;
    return options;
}

static inline struct handshake_options ends_responder(void)
{
    return (struct handshake_options) { .purpose = CAIRN_PURPOSE_CONTROL, .find = ends_find };
}

static inline struct channel *ends_channel(bool is_initiator)
{
    const struct handshake_options options = is_initiator ? ends_initiator() : ends_responder();
    struct channel *channel;
    if (channel_open(&options, &channel) != CAIRN_OK) abort();
    return channel;
}

static inline struct handshake *ends_handshake(bool is_initiator)
{
    const struct handshake_options options = is_initiator ? ends_initiator() : ends_responder();
    struct handshake *handshake;
    if (handshake_open(&options, &handshake) != CAIRN_OK) abort();
    return handshake;
}

#endif
