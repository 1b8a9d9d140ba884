#include "proto/secure/secure.h"

#include <assert.h>
#include <sodium.h>
#include <stdlib.h>
#include <string.h>

/* ==== byte queue ==== */

static void note_used(struct byte_queue *queue)
{
    if (queue->used < queue->end) queue->used = queue->end;
}

cairn_status byte_queue_reserve(struct byte_queue *queue, size_t more)
{
    const size_t have = byte_queue_count(queue);
    if (more <= queue->capacity - queue->end) return CAIRN_OK;
    if (more <= queue->capacity - have && queue->start >= have) { // moved at most once a byte
        note_used(queue);
        memcpy(queue->bytes, byte_queue_first(queue), have);
        queue->start = 0;
        queue->end = have;
        return CAIRN_OK;
    }
    return array_reserve(&queue->bytes, queue->end, more, &queue->capacity, 1);
}

void byte_queue_drop(struct byte_queue *queue, size_t count)
{
    assert(count <= byte_queue_count(queue));
    queue->start += count;
    note_used(queue);
    if (queue->start == queue->end) queue->start = queue->end = 0;
}

void byte_queue_release(struct byte_queue *queue)
{
    note_used(queue);
    if (queue->bytes != NULL) sodium_memzero(queue->bytes, queue->used);
    free(queue->bytes);
    *queue = (struct byte_queue) { 0 };
}

/* ==== channel ==== */

enum record_kind { RECORD_DATA = 1, RECORD_REKEY = 2, RECORD_CLOSE = 3 };

enum {
    LENGTH_BYTES = 4,
    KIND_BYTES = 1,
    /* of a record beyond its plain bytes */
    OVERHEAD_BYTES = LENGTH_BYTES + KIND_BYTES + CAIRN_NOISE_TAG_BYTES,
    SEALED_LEAST = KIND_BYTES + CAIRN_NOISE_TAG_BYTES, /* what a length may say */
    SEALED_MOST = CAIRN_RECORD_BYTES_MAX + SEALED_LEAST,
};

/* One direction. */
struct way {
    struct noise_cipher cipher;
    uint32_t records; /* since the last key, at most CAIRN_REKEY_RECORDS */
    bool is_closed;   /* CLOSE was said */
};

struct channel {
    struct handshake *handshake; /* owned; NULL when the channel is up */
    struct handshake_result peer;
    bool is_up;
    cairn_status failed; /* CAIRN_OK, or what ended it */
    struct way send, receive;
    uint64_t send_key_ms; /* when the present key was first used */

    /* A record of which a part has arrived: its length, and then the rest. */
    uint8_t length[LENGTH_BYTES];
    uint8_t *held;      /* owned: [held_wanted], while the record is incomplete */
    size_t held_wanted; /* what the length says; 0: the length is incomplete */
    size_t have;        /* bytes of the record that are here, with the length */
};
static_assert(sizeof(struct channel) < 512, "with a handshake less than 4 KiB for a stranger");

cairn_status channel_open(const struct handshake_options *options, struct channel **out)
{
    struct channel *channel = calloc(1, sizeof *channel);
    if (channel == NULL) return CAIRN_ERR_NO_MEMORY;
    const cairn_status status = handshake_open(options, &channel->handshake);
    if (status != CAIRN_OK) {
        free(channel);
        return status;
    }
    *out = channel;
    return CAIRN_OK;
}

void channel_close(struct channel *channel)
{
    if (channel == NULL) return;
    handshake_close(channel->handshake);
    free(channel->held);
    sodium_memzero(channel, sizeof *channel);
    free(channel);
}

bool channel_is_up(const struct channel *channel)
{
    return channel->is_up;
}

bool channel_is_proved(const struct channel *channel)
{
    return channel->is_up || handshake_is_proved(channel->handshake);
}

const struct handshake_result *channel_peer(const struct channel *channel)
{
    assert(channel->is_up);
    return &channel->peer;
}

/* ---- handshake ---- */

static void come_up(struct channel *channel, const struct handshake_result *result)
{
    struct handshake_result *peer = &channel->peer;
    *peer = *result;
    memcpy(channel->send.cipher.key, peer->send_key, sizeof peer->send_key);
    memcpy(channel->receive.cipher.key, peer->receive_key, sizeof peer->receive_key);
    sodium_memzero(peer->send_key, sizeof peer->send_key);
    sodium_memzero(peer->receive_key, sizeof peer->receive_key);
    channel->is_up = true;
}

cairn_status channel_open_up(const struct handshake_result *result, struct channel **out)
{
    struct channel *channel = calloc(1, sizeof *channel);
    if (channel == NULL) return CAIRN_ERR_NO_MEMORY;
    come_up(channel, result);
    *out = channel;
    return CAIRN_OK;
}

static cairn_status greet_by(struct channel *channel, const uint8_t *bytes, size_t count,
                             size_t *used_out, struct sentence *why)
{
    cairn_status status;
    if (handshake_take(channel->handshake, bytes, count, used_out, &status, why) !=
        CAIRN_HANDSHAKE_DONE)
        return status;
    struct handshake_result result;
    handshake_result(channel->handshake, &result);
    come_up(channel, &result);
    sodium_memzero(&result, sizeof result);
    return CAIRN_OK;
}

cairn_status channel_greet(struct channel *channel, struct byte_queue *wire)
{
    if (channel->handshake == NULL) return CAIRN_OK;
    CAIRN_TRY(byte_queue_reserve(wire, CAIRN_HANDSHAKE_MOST_BYTES));
    size_t count;
    const uint8_t *bytes = handshake_to_send(channel->handshake, &count);
    memcpy(wire->bytes + wire->end, bytes, count);
    wire->end += count;
    if (channel->is_up) { // the last message has gone
        handshake_close(channel->handshake);
        channel->handshake = NULL;
    }
    return CAIRN_OK;
}

/* ---- sending ---- */

/* Appends a record. There is room for it. */
static void put_record(struct channel *channel, enum record_kind kind, const uint8_t *bytes,
                       size_t count, struct byte_queue *wire)
{
    uint8_t *length = wire->bytes + wire->end, *sealed = length + LENGTH_BYTES;
    le_put(length, SEALED_LEAST + count, LENGTH_BYTES);
    sealed[0] = (uint8_t)kind;
    if (count > 0) memcpy(sealed + KIND_BYTES, bytes, count);
    noise_encrypt(&channel->send.cipher, length, LENGTH_BYTES, sealed, KIND_BYTES + count, sealed);
    wire->end += OVERHEAD_BYTES + count;
    channel->send.records++;
}

static void rekey(struct way *way)
{
    noise_rekey(&way->cipher);
    way->records = 0;
}

/* The last record of a key is the one that says so. */
static void rekey_if_due(struct channel *channel, uint64_t now_ms, struct byte_queue *wire)
{
    if (channel->send.records == 0) channel->send_key_ms = now_ms;
    if (channel->send.records < CAIRN_REKEY_RECORDS - 1 &&
        now_ms - channel->send_key_ms < CAIRN_REKEY_MS)
        return;
    put_record(channel, RECORD_REKEY, NULL, 0, wire);
    rekey(&channel->send);
    channel->send_key_ms = now_ms;
}

cairn_status channel_seal(struct channel *channel, const void *bytes, size_t count, uint64_t now_ms,
                          struct byte_queue *wire)
{
    assert(channel->is_up && !channel->send.is_closed);
    const uint8_t *next = bytes;
    const size_t records = count / CAIRN_RECORD_BYTES_MAX + 1; // at most, each after a REKEY
    CAIRN_TRY(channel_greet(channel, wire));                   // an initiator's last message
    CAIRN_TRY(byte_queue_reserve(wire, count + 2 * records * OVERHEAD_BYTES));
    while (count > 0) {
        const size_t part = count < CAIRN_RECORD_BYTES_MAX ? count : CAIRN_RECORD_BYTES_MAX;
        rekey_if_due(channel, now_ms, wire);
        put_record(channel, RECORD_DATA, next, part, wire);
        next += part;
        count -= part;
    }
    return CAIRN_OK;
}

cairn_status channel_finish(struct channel *channel, struct byte_queue *wire)
{
    if (!channel->is_up || channel->send.is_closed) return CAIRN_OK;
    CAIRN_TRY(channel_greet(channel, wire));
    CAIRN_TRY(byte_queue_reserve(wire, OVERHEAD_BYTES));
    put_record(channel, RECORD_CLOSE, NULL, 0, wire);
    channel->send.is_closed = true;
    return CAIRN_OK;
}

/* ---- receiving ---- */

static cairn_status lies(struct sentence *why, const char *what)
{
    return fail_with(why, CAIRN_ERR_PROTOCOL,
                     "%s; the connection is given up: if this comes again, look for what stands "
                     "between the two hosts, and install the same version of Cairn on both",
                     what);
}

static cairn_status judge_record(struct channel *channel, uint8_t kind, size_t plain_bytes,
                                 struct sentence *why)
{
    struct way *way = &channel->receive;
    way->records++;
    if (kind == RECORD_DATA && plain_bytes > 0) {
        // The sender keeps the last record of a key for REKEY or CLOSE.
        if (way->records < CAIRN_REKEY_RECORDS) return CAIRN_OK;
        return lies(why, "the peer uses one key for more records than are allowed");
    }
    if (kind == RECORD_REKEY && plain_bytes == 0) {
        // A sender rekeys before a record with bytes. One that does so without end costs us its time only.
        if (way->records == 1) return lies(why, "the peer changes a key that it has not used");
        rekey(way);
        return CAIRN_OK;
    }
    if (kind != RECORD_CLOSE || plain_bytes > 0)
        return lies(why, "the peer sent a record of a kind that does not exist");
    way->is_closed = true;
    return fail_with(why, CAIRN_ERR_CLOSED, "the peer closed the connection");
}

/* Takes one whole record: `sealed` is what follows its length, which was judged. */
static cairn_status open_record(struct channel *channel, const uint8_t *sealed, size_t count,
                                struct byte_queue *plain, struct sentence *why)
{
    CAIRN_TRY(byte_queue_reserve(plain, count - CAIRN_NOISE_TAG_BYTES));
    uint8_t *out = plain->bytes + plain->end;
    const size_t plain_bytes = count - SEALED_LEAST;
    if (!noise_decrypt(&channel->receive.cipher, channel->length, LENGTH_BYTES, sealed, count, out))
        return lies(why, "a record was changed, repeated or left out on the way");
    CAIRN_TRY(judge_record(channel, out[0], plain_bytes, why));
    memmove(out, out + KIND_BYTES, plain_bytes);
    plain->end += plain_bytes;
    return CAIRN_OK;
}

/* Takes bytes until the length is whole, and judges it. */
static cairn_status take_length(struct channel *channel, const uint8_t **bytes, size_t *count,
                                struct sentence *why)
{
    for (; channel->have < LENGTH_BYTES && *count != 0; --*count)
        channel->length[channel->have++] = *(*bytes)++;
    if (channel->have < LENGTH_BYTES) return CAIRN_OK;
    channel->held_wanted = le_get(channel->length, LENGTH_BYTES);
    if (channel->held_wanted < SEALED_LEAST || channel->held_wanted > SEALED_MOST)
        return lies(why, "a record has a length that no record has");
    return CAIRN_OK;
}

/* Takes bytes into the record that is held. */
static cairn_status hold_bytes(struct channel *channel, const uint8_t **bytes, size_t *count)
{
    if (channel->held == NULL && (channel->held = malloc(channel->held_wanted)) == NULL)
        return CAIRN_ERR_NO_MEMORY;
    const size_t missing = LENGTH_BYTES + channel->held_wanted - channel->have;
    const size_t moved = missing < *count ? missing : *count;
    memcpy(channel->held + channel->have - LENGTH_BYTES, *bytes, moved);
    channel->have += moved;
    *bytes += moved;
    *count -= moved;
    return CAIRN_OK;
}

static void forget_record(struct channel *channel)
{
    free(channel->held);
    channel->held = NULL;
    channel->held_wanted = channel->have = 0;
}

/* Takes bytes of one record, and the record if they complete it. One that arrives whole is not copied. */
static cairn_status take_record(struct channel *channel, const uint8_t **bytes, size_t *count,
                                struct byte_queue *plain, struct sentence *why)
{
    if (channel->held_wanted == 0) CAIRN_TRY(take_length(channel, bytes, count, why));
    if (channel->held_wanted == 0 || *count == 0) return CAIRN_OK;
    const size_t wanted = channel->held_wanted;
    cairn_status status;
    if (channel->held == NULL && *count >= wanted) {
        status = open_record(channel, *bytes, wanted, plain, why);
        *bytes += wanted;
        *count -= wanted;
    } else {
        CAIRN_TRY(hold_bytes(channel, bytes, count));
        if (channel->have < LENGTH_BYTES + wanted) return CAIRN_OK;
        status = open_record(channel, channel->held, wanted, plain, why);
    }
    forget_record(channel);
    return status;
}

static cairn_status take_records(struct channel *channel, const uint8_t **bytes, size_t *count,
                                 size_t plain_max, struct byte_queue *plain, struct sentence *why)
{
    const size_t before = byte_queue_count(plain);
    for (int i = 0; i<CAIRN_TAKE_RECORDS && * count> 0; i++) {
        if (byte_queue_count(plain) - before >= plain_max) break;
        CAIRN_TRY(take_record(channel, bytes, count, plain, why));
    }
    return CAIRN_OK;
}

cairn_status channel_take(struct channel *channel, const uint8_t *bytes, size_t count,
                          size_t plain_max, size_t *used_out, struct byte_queue *plain,
                          struct sentence *why)
{
    assert(plain_max > 0);
    *used_out = 0;
    if (channel->failed != CAIRN_OK)
        return fail_with(why, channel->failed, "the connection has ended before");
    cairn_status status = CAIRN_OK;
    const uint8_t *next = bytes;
    if (!channel->is_up) {
        size_t used;
        status = greet_by(channel, bytes, count, &used, why);
        next += used;
        count -= used;
    }
    if (status == CAIRN_OK && channel->is_up)
        status = take_records(channel, &next, &count, plain_max, plain, why);
    *used_out = (size_t)(next - bytes);
    channel->failed = status;
    return status;
}

size_t channel_held_bytes(const struct channel *channel)
{
    return channel->held != NULL ? channel->held_wanted : 0;
}

cairn_status channel_ended(const struct channel *channel, struct sentence *why)
{
    if (channel->receive.is_closed) return CAIRN_OK;
    return fail_with(why, CAIRN_ERR_PROTOCOL,
                     "the connection ended without the peer's word: its process or its host died, "
                     "or somebody between the two cut it");
}
