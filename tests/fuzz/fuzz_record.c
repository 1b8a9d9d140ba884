/* Records of a channel that is up. The input is a list of {what 1, count 2, bytes}: bytes of a stranger, or
 * records of a peer that has the keys, and may lie. */
#include <string.h>

#include "proto/secure/secure.h"
#include "tests/fuzz/target.h"

enum { SEALED_MAX = 4 + 65536 + 16 };

enum what {
    RAW,     /* bytes as they are */
    RECORD,  /* a record with these plain bytes, the kind among them */
    DATA,    /* a record of data */
    REKEYED, /* a record REKEY, and the next key */
    WHATS,
};

struct talk {
    struct channel *channel;
    struct noise_cipher cipher; /* of the peer */
    struct byte_queue heard;
    uint8_t said[65536]; /* what a peer that does not lie has said */
    size_t said_bytes;
    bool is_used;  /* the present key, for a record with bytes */
    bool is_false; /* something has come that is no record of such a peer */
    cairn_status status;
};

static void hear(struct talk *talk, const uint8_t *bytes, size_t count)
{
    while (count > 0 && talk->status == CAIRN_OK) {
        struct sentence why = { 0 };
        size_t used;
        talk->status = channel_take(talk->channel, bytes, count, 100, &used, &talk->heard, &why);
        MUST(used <= count && (talk->status == CAIRN_OK) == (why.text[0] == '\0'));
        bytes += used;
        count -= used;
    }
    const size_t heard = talk->heard.end - talk->heard.start;
    MUST(heard <= talk->said_bytes);
    MUST(heard == 0 || memcmp(talk->heard.bytes + talk->heard.start, talk->said, heard) == 0);
    MUST(talk->is_false || (talk->status == CAIRN_OK && heard == talk->said_bytes));
}

static void seal(struct talk *talk, const uint8_t *record, size_t count)
{
    static uint8_t sealed[SEALED_MAX];
    le_put(sealed, count + 16, 4);
    noise_encrypt(&talk->cipher, sealed, 4, record, count, sealed + 4);
    hear(talk, sealed, 4 + count + 16);
}

static void say_data(struct talk *talk, const uint8_t *bytes, size_t count)
{
    static uint8_t record[65536] = { 1 };
    memcpy(record + 1, bytes, count);
    talk->is_used = true;
    if (!talk->is_false) {
        memcpy(talk->said + talk->said_bytes, bytes, count);
        talk->said_bytes += count;
    }
    seal(talk, record, 1 + count);
}

static void say(struct talk *talk, enum what what, const uint8_t *bytes, size_t count)
{
    static const uint8_t rekey = 2;
    if (what == RAW) {
        talk->is_false |= count > 0;
        hear(talk, bytes, count);
    } else if (what == DATA && count > 0) {
        say_data(talk, bytes, count);
    } else if (what == RECORD && count > 1 && bytes[0] == 1) {
        say_data(talk, bytes + 1, count - 1);
    } else if (what == RECORD) {
        talk->is_false = true;
        seal(talk, bytes, count);
    } else if (what == REKEYED) {
        talk->is_false |= !talk->is_used;
        talk->is_used = false;
        seal(talk, &rekey, 1);
        noise_rekey(&talk->cipher);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const struct handshake_result keys = { .receive_key = { 1, 2, 3 } };
    static struct talk talk;
    talk.said_bytes = 0;
    talk.is_used = talk.is_false = false;
    talk.status = CAIRN_OK;
    talk.heard = (struct byte_queue) { 0 };
    talk.cipher = (struct noise_cipher) { .nonce = 0 };
    memcpy(talk.cipher.key, keys.receive_key, sizeof talk.cipher.key);
    MUST(channel_open_up(&keys, &talk.channel) == CAIRN_OK);
    for (size_t at = 0; size - at >= 3;) {
        const size_t wanted = le_get(data + at + 1, 2), rest = size - at - 3;
        const size_t count = wanted < rest ? wanted : rest;
        say(&talk, data[at] % WHATS, data + at + 3, count);
        at += 3 + count;
    }
    channel_close(talk.channel);
    byte_queue_release(&talk.heard);
    return 0;
}
