/* Headers of bulk data: 128 bytes of a stranger, then how many bytes of payload came with them (8 bytes),
 * then a box. */
#include <string.h>

#include "proto/wire/wire.h"
#include "tests/fuzz/target.h"

static void decode_header(const uint8_t *bytes, size_t count, size_t payload_bytes)
{
    struct chunk_header header;
    uint8_t again[CAIRN_CHUNK_HEADER_BYTES];
    if (chunk_decode(bytes, count, payload_bytes, &header) != CAIRN_OK) return;
    MUST(count == sizeof again && header.payload_bytes == payload_bytes);
    MUST(payload_bytes <= CAIRN_CHUNK_PAYLOAD_MAX);
    MUST(strcmp(chunk_kind_name(header.kind), "?") != 0);
    chunk_encode(&header, again);
    MUST(memcmp(bytes, again, sizeof again) == 0);
}

static void decode_box(const uint8_t *bytes, size_t count)
{
    struct cairn_box box;
    uint8_t again[CAIRN_BOX_BYTES_MAX];
    char text[CAIRN_BOX_TEXT_BYTES];
    if (box_decode(bytes, count, &box) != CAIRN_OK) return;
    MUST(box_encode(&box, again) == count && memcmp(bytes, again, count) == 0);
    MUST(box_text(&box, text)[0] != '\0');
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const size_t header = size < CAIRN_CHUNK_HEADER_BYTES ? size : CAIRN_CHUNK_HEADER_BYTES;
    const uint8_t *rest = data + header;
    size_t left = size - header;
    uint64_t payload_bytes = 0;
    if (left >= 8) {
        payload_bytes = le_get(rest, 8);
        rest += 8;
        left -= 8;
    } else if (header == CAIRN_CHUNK_HEADER_BYTES) {
        payload_bytes = le_get(data + 112, 8); // as it says itself
    }
    decode_header(data, header, payload_bytes);
    decode_box(rest, left);
    return 0;
}
