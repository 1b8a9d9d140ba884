/* The header of a safetensors file. The input is a line with the bytes of the tensors, then the JSON. */
#include <string.h>

#include "proto/safetensors/safetensors.h"
#include "tests/fuzz/target.h"

enum { DIGITS_MAX = 18 };

static void length_is_judged(const uint8_t *data, size_t size)
{
    struct sentence why = { 0 };
    uint64_t json_bytes = 0;
    const uint64_t file_bytes = (uint64_t)size * 2;
    if (safetensors_header_bytes(data, size, file_bytes, &json_bytes, &why) != CAIRN_OK) {
        MUST(why.text[0] != '\0');
        return;
    }
    MUST(size >= 8 && json_bytes <= file_bytes - 8 && json_bytes <= CAIRN_SAFETENSORS_HEADER_MAX);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    length_is_judged(data, size);
    uint64_t data_bytes = 0;
    size_t at = 0;
    for (; at < size && at < DIGITS_MAX && data[at] >= '0' && data[at] <= '9'; at++)
        data_bytes = data_bytes * 10 + (uint64_t)(data[at] - '0');
    if (at == size || data[at] != '\n') return 0;
    at++;
    struct safetensors parsed;
    struct sentence why = { 0 };
    const size_t json_bytes = size - at;
    const cairn_status status = safetensors_parse(
        data + at, json_bytes, 8 + (uint64_t)json_bytes + data_bytes, &parsed, &why);
    if (status != CAIRN_OK) {
        MUST(why.text[0] != '\0');
        return 0;
    }
    uint64_t end = 0; // no tensor reaches beyond the file, or into another
    for (size_t i = 0; i < parsed.entry_count; i++) {
        const struct safetensors_entry *entry = &parsed.entries[i];
        MUST(entry->key != NULL && entry->box.rank <= CAIRN_RANK_MAX);
        MUST(entry->begin >= end && entry->end >= entry->begin && entry->end <= data_bytes);
        end = entry->end;
    }
    MUST(end == data_bytes);
    safetensors_release(&parsed);
    return 0;
}
