/* The fabrics "stream" and "sealed", after their handshake: frames, and records. The first byte: bit 0:
 * records, else frames; bit 1: by one who has the keys (records) or knows the check (frames), and may lie. */
#include <string.h>

#include "proto/fabric/remote.h"
#include "tests/fuzz/target.h"

/* ==== frames ==== */

static void judge_frames(uint8_t *bytes, size_t count, bool is_checked)
{
    for (size_t at = 0; at < count;) {
        struct remote_frame frame;
        const size_t left = count - at;
        if (is_checked && left >= sizeof frame) {
            memcpy(&frame, bytes + at, sizeof frame);
            if (left - sizeof frame >= frame.header_bytes)
                frame.check = remote_frame_check(&frame, bytes + at + sizeof frame);
            memcpy(bytes + at, &frame, sizeof frame);
        }
        const long all = remote_frame_judge(bytes + at, left);
        if (all <= 0) return;
        MUST((size_t)all >= sizeof frame && (size_t)all <= left);
        memcpy(&frame, bytes + at, sizeof frame);
        MUST(frame.kind >= REMOTE_MESSAGE && frame.kind <= REMOTE_CLOSE);
        MUST(frame.header_bytes <= CAIRN_FABRIC_HEADER_MAX);
        if (frame.kind == REMOTE_MESSAGE) MUST(frame.payload_bytes <= REMOTE_EAGER_MAX);
        at += (size_t)all;
    }
}

/* ==== records ==== */

static struct handshake_result keys = { .send_key = { 1 }, .receive_key = { 2 } };

static struct sealed begin(bool is_liar)
{
    struct sealed sealed;
    struct handshake_result own = keys;
    if (is_liar) {
        memcpy(own.send_key, keys.receive_key, sizeof own.send_key);
        memcpy(own.receive_key, keys.send_key, sizeof own.receive_key);
    }
    MUST(sealed_begin(&sealed, false, &own) == CAIRN_OK);
    return sealed;
}

/* The record at the start of the bytes. Returns what it took; 0: it is refused, or not whole. */
static size_t take_record(struct sealed *sealed, const uint8_t *bytes, size_t count,
                          bool *taken_out)
{
    static uint8_t plain[REMOTE_RECORD];
    struct sealed_head head;
    if (count < sizeof head) return 0;
    memcpy(&head, bytes, sizeof head);
    if (!sealed_judge(&head)) return 0;
    MUST(head.bytes <= REMOTE_RECORD && head.kind >= SEALED_FRAMES && head.kind <= SEALED_CLOSE);
    if (count - sizeof head < head.bytes + (size_t)SEALED_TAG) return 0;
    *taken_out = sealed_take(sealed, &head, bytes + sizeof head, plain);
    if (*taken_out && head.kind == SEALED_FRAMES) judge_frames(plain, head.bytes, false);
    return *taken_out ? sizeof head + head.bytes + SEALED_TAG : 0;
}

/* A liar's records: {kind 1, count 1, bytes}. Those that may be are taken, as they were put. */
static void take_lies(const uint8_t *bytes, size_t count)
{
    struct sealed liar = begin(true), sealed = begin(false);
    for (size_t at = 0; count - at >= 2;) {
        uint8_t record[256 + SEALED_EXTRA];
        const size_t wanted = bytes[at + 1], rest = count - at - 2;
        const size_t plain_bytes = wanted < rest ? wanted : rest;
        const struct sealed_head head = { .bytes = (uint32_t)plain_bytes, .kind = bytes[at] % 8 };
        bool taken = false;
        MUST(sealed_put(&liar, head.kind, bytes + at + 2, plain_bytes, record));
        take_record(&sealed, record, plain_bytes + SEALED_EXTRA, &taken);
        MUST(taken == sealed_judge(&head));
        if (!taken) break;
        at += 2 + plain_bytes;
    }
    sealed_end(&liar);
    sealed_end(&sealed);
}

/* Nothing that a stranger makes up is taken. */
static void take_forgeries(const uint8_t *bytes, size_t count)
{
    struct sealed sealed = begin(false);
    bool taken = false;
    take_record(&sealed, bytes, count, &taken);
    MUST(!taken);
    sealed_end(&sealed);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size == 0) return 0;
    const bool is_records = (data[0] & 1) != 0, is_liar = (data[0] & 2) != 0;
    uint8_t *bytes = malloc(size);
    MUST(bytes != NULL);
    memcpy(bytes, data + 1, size - 1);
    if (!is_records)
        judge_frames(bytes, size - 1, is_liar);
    else if (is_liar)
        take_lies(bytes, size - 1);
    else
        take_forgeries(bytes, size - 1);
    free(bytes);
    return 0;
}
