/* Bytes of a stranger to an end of a handshake, whose random numbers are the same every time. The first byte:
 * bit 0: to an initiator, else to a responder; bit 1: message 1 gets a good MAC, as by one who knows the
 * secret; the other bits: how long the pieces are, in which they come. */
#include <string.h>

#include "tests/fuzz/target.h"
#include "tests/support/random.h"
#include "tests/support/keys.h"
#include "tests/support/secure_ends.h"

/* ==== random numbers ==== */

static const char *numbers_name(void)
{
    return "numbers of a seed";
}

static uint32_t numbers_next(void)
{
    return (uint32_t)random_next();
}

static void numbers_fill(void *const out, const size_t count)
{
    for (size_t i = 0; i < count; i++) ((uint8_t *)out)[i] = (uint8_t)random_next();
}

static struct randombytes_implementation numbers = {
    .implementation_name = numbers_name,
    .random = numbers_next,
    .buf = numbers_fill,
};

/* ==== the handshake that is right ==== */

static uint8_t to_responder[CAIRN_HANDSHAKE_FIRST_BYTES + 66], to_initiator[98];

static size_t take(struct handshake *handshake, const uint8_t *bytes, size_t count, uint8_t *out)
{
    size_t used, left;
    cairn_status status;
    MUST(handshake_take(handshake, bytes, count, &used, &status, NULL) != CAIRN_HANDSHAKE_FAILED);
    MUST(used == count);
    const uint8_t *sent = handshake_to_send(handshake, &left);
    memcpy(out, sent, left);
    return left;
}

enum { SEED_INITIATOR = 1, SEED_RESPONDER = 2 };

static void begin(void)
{
    uint8_t nothing[CAIRN_HANDSHAKE_MOST_BYTES];
    randombytes_set_implementation(&numbers);
    random_state = 0;
    ends_make();
    random_state = SEED_INITIATOR;
    struct handshake *a = ends_handshake(true), *b = ends_handshake(false);
    MUST(take(a, NULL, 0, to_responder) == CAIRN_HANDSHAKE_FIRST_BYTES);
    random_state = SEED_RESPONDER;
    MUST(take(b, to_responder, CAIRN_HANDSHAKE_FIRST_BYTES, to_initiator) == sizeof to_initiator);
    MUST(take(a, to_initiator, sizeof to_initiator, to_responder + CAIRN_HANDSHAKE_FIRST_BYTES) ==
         sizeof to_responder - CAIRN_HANDSHAKE_FIRST_BYTES);
    MUST(take(b, to_responder + CAIRN_HANDSHAKE_FIRST_BYTES,
              sizeof to_responder - CAIRN_HANDSHAKE_FIRST_BYTES, nothing) == 0);
    handshake_close(a);
    handshake_close(b);
}

/* ==== a stranger's ==== */

/* Gives all in pieces. What may be sent was not sent before. */
static enum handshake_state give(struct handshake *handshake, const uint8_t *bytes, size_t count,
                                 size_t piece, size_t *sent_out)
{
    enum handshake_state state = CAIRN_HANDSHAKE_GOES_ON;
    cairn_status status = CAIRN_OK;
    while (count > 0 && state == CAIRN_HANDSHAKE_GOES_ON) {
        struct sentence why = { 0 };
        const size_t some = piece < count ? piece : count;
        size_t used, left;
        state = handshake_take(handshake, bytes, some, &used, &status, &why);
        MUST(used <= some && (state != CAIRN_HANDSHAKE_GOES_ON || used == some));
        MUST((state == CAIRN_HANDSHAKE_FAILED) == (status != CAIRN_OK));
        MUST((state == CAIRN_HANDSHAKE_FAILED) == (why.text[0] != '\0'));
        handshake_to_send(handshake, &left);
        *sent_out += left;
        bytes += used;
        count -= used;
    }
    return state;
}

static void try_initiator(const uint8_t *bytes, size_t count, size_t piece)
{
    size_t left, sent = 0;
    random_state = SEED_INITIATOR;
    struct handshake *handshake = ends_handshake(true);
    handshake_to_send(handshake, &left);
    const enum handshake_state state = give(handshake, bytes, count, piece, &sent);
    const bool is_right = count >= sizeof to_initiator &&
                          memcmp(bytes, to_initiator, sizeof to_initiator) == 0;
    MUST((state == CAIRN_HANDSHAKE_DONE) == is_right);
    MUST(is_right || sent == 0);
    handshake_close(handshake);
}

static void try_responder(uint8_t *bytes, size_t count, size_t piece, bool is_signed)
{
    size_t sent = 0;
    if (is_signed && count >= CAIRN_HANDSHAKE_FIRST_BYTES) keys_sign_first(bytes, ends_row.secret);
    random_state = SEED_RESPONDER;
    struct handshake *handshake = ends_handshake(false);
    const enum handshake_state state = give(handshake, bytes, count, piece, &sent);
    const bool is_right = count >= sizeof to_responder &&
                          memcmp(bytes, to_responder, sizeof to_responder) == 0;
    const bool is_begun = count >= CAIRN_HANDSHAKE_FIRST_BYTES &&
                          memcmp(bytes, to_responder, CAIRN_HANDSHAKE_FIRST_BYTES) == 0;
    MUST((state == CAIRN_HANDSHAKE_DONE) == is_right);
    MUST(is_begun || is_signed || sent == 0);
    handshake_close(handshake);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (to_responder[0] == 0) begin();
    if (size < 2) return 0;
    const size_t count = size - 1, piece = 1 + (data[0] >> 2);
    uint8_t *bytes = malloc(count);
    MUST(bytes != NULL);
    memcpy(bytes, data + 1, count);
    if ((data[0] & 1) != 0)
        try_initiator(bytes, count, piece);
    else
        try_responder(bytes, count, piece, (data[0] & 2) != 0);
    free(bytes);
    return 0;
}
