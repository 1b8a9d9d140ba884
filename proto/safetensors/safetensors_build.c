/* Building the header of a safetensors file. */
#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proto/safetensors/safetensors.h"

/* Text that grows; after a failed allocation it swallows what follows, judged once at the end. */
struct text {
    char *bytes; /* owned */
    size_t length, capacity;
    bool failed;
};

static void append(struct text *t, const char *bytes, size_t count)
{
    if (t->failed) return;
    if (count > t->capacity - t->length) {
        size_t wanted = 2 * t->capacity + count + 256;
        char *grown = realloc(t->bytes, wanted);
        if (grown == NULL) {
            t->failed = true;
            return;
        }
        t->bytes = grown;
        t->capacity = wanted;
    }
    memcpy(t->bytes + t->length, bytes, count);
    t->length += count;
}

static void append_text(struct text *t, const char *text)
{
    append(t, text, strlen(text));
}

/* As the inside of a JSON string. */
static void append_escaped(struct text *t, const char *text, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        const unsigned char c = (unsigned char)text[i];
        char code[8];
        if (c == '"' || c == '\\')
            append(t, (char[]) { '\\', (char)c }, 2);
        else if (c < 0x20)
            append(t, code, (size_t)snprintf(code, sizeof code, "\\u%04x", c));
        else
            append(t, text + i, 1);
    }
}

static void append_key(struct text *t, const char *key)
{
    append(t, "\"", 1);
    append_escaped(t, key, strlen(key));
    append(t, "\":", 2);
}

static void append_numbers(struct text *t, const uint64_t *numbers, uint32_t count)
{
    append(t, "[", 1);
    for (uint32_t i = 0; i < count; i++) {
        char digits[24];
        append(t, digits,
               (size_t)snprintf(digits, sizeof digits, "%s%" PRIu64, i > 0 ? "," : "", numbers[i]));
    }
    append(t, "]", 1);
}

static const char *dtype_name_of(cairn_dtype dtype)
{
    switch (dtype) {
    case CAIRN_U8: return "U8";
    case CAIRN_F32: return "F32";
    case CAIRN_BF16: return "BF16";
    case CAIRN_F16: return "F16";
    case CAIRN_F64: return "F64";
    }
    abort(); // the caller planned something that is not a dtype
}

static int file_order(const void *a, const void *b)
{
    const struct cairn_safetensors_entry *x = a, *y = b;
    const int rank_x = cairn_safetensors_dtype_rank(x->dtype_name);
    const int rank_y = cairn_safetensors_dtype_rank(y->dtype_name);
    return rank_x != rank_y ? (rank_x < rank_y ? 1 : -1) : strcmp(x->key, y->key);
}

static uint64_t entry_data_bytes(const struct cairn_safetensors_entry *e)
{
    uint64_t bytes = cairn_safetensors_dtype_bits(cairn_safetensors_dtype_rank(e->dtype_name)) / 8;
    for (uint32_t d = 0; d < e->box.rank; d++) {
        const bool fits = !__builtin_mul_overflow(bytes, e->box.extent[d], &bytes);
        assert(fits);
        (void)fits;
    }
    return bytes;
}

static uint64_t place_entries(struct cairn_safetensors_entry *entries, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (entries[i].dtype_name == NULL) entries[i].dtype_name = dtype_name_of(entries[i].dtype);
    if (count > 1) qsort(entries, count, sizeof *entries, file_order);
    uint64_t end = 0;
    for (size_t i = 0; i < count; i++) {
        assert(i == 0 || strcmp(entries[i - 1].key, entries[i].key) != 0);
        entries[i].begin = end;
        const bool fits = !__builtin_add_overflow(end, entry_data_bytes(&entries[i]), &end);
        assert(fits);
        (void)fits;
        entries[i].end = end;
    }
    return end;
}

/* {"<key>":{"saved_offsets":[0,4096]},...} */
static void append_sharding_info(struct text *t, const struct cairn_safetensors_entry *entries,
                                 size_t count)
{
    append(t, "{", 1);
    for (size_t i = 0; i < count; i++) {
        if (i > 0) append(t, ",", 1);
        append_key(t, entries[i].key);
        append_text(t, "{\"saved_offsets\":");
        append_numbers(t, entries[i].box.start, entries[i].box.rank);
        append(t, "}", 1);
    }
    append(t, "}", 1);
}

static void append_boxes(struct text *t, const struct cairn_safetensors_entry *entries,
                         size_t count)
{
    struct text info = { NULL, 0, 0, false };
    append_sharding_info(&info, entries, count);
    append_text(t, "\"DCP_SHARDING_INFO\":\"");
    if (info.failed)
        t->failed = true;
    else
        append_escaped(t, info.bytes, info.length);
    append_text(t, "\",\"DCP_VERSION\":\"1.0\",");
    free(info.bytes);
}

static void append_notes(struct text *t, const struct cairn_safetensors_note *notes, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        append(t, ",", 1);
        append_key(t, notes[i].key);
        append(t, "\"", 1);
        append_escaped(t, notes[i].value, strlen(notes[i].value));
        append(t, "\"", 1);
    }
}

static void append_entry(struct text *t, const struct cairn_safetensors_entry *e)
{
    append(t, ",", 1);
    append_key(t, e->key);
    append_text(t, "{\"dtype\":\"");
    append_text(t, e->dtype_name);
    append_text(t, "\",\"shape\":");
    append_numbers(t, e->box.extent, e->box.rank);
    append_text(t, ",\"data_offsets\":");
    append_numbers(t, (const uint64_t[]) { e->begin, e->end }, 2);
    append(t, "}", 1);
}

static void write_length(char prefix[static 8], uint64_t json_bytes)
{
    for (size_t i = 0; i < 8; i++) prefix[i] = (char)(uint8_t)(json_bytes >> (8 * i));
}

/* `boxes`: where each entry begins in its tensor stands in it, too. */
static cairn_status build(struct cairn_safetensors_entry *entries, size_t entry_count, bool boxes,
                          const struct cairn_safetensors_note *notes, size_t note_count,
                          uint8_t **header_out, size_t *header_bytes_out, uint64_t *data_bytes_out)
{
    const uint64_t data_bytes = place_entries(entries, entry_count);
    struct text t = { NULL, 0, 0, false };
    append(&t, "\0\0\0\0\0\0\0\0{", 9);
    append_text(&t, "\"__metadata__\":{");
    if (boxes) append_boxes(&t, entries, entry_count);
    append_text(&t, "\"format\":\"pt\"");
    append_notes(&t, notes, note_count);
    append_text(&t, "}");
    for (size_t i = 0; i < entry_count; i++) append_entry(&t, &entries[i]);
    append(&t, "}", 1);
    append(&t, "       ", (8 - t.length % 8) % 8);
    if (t.failed || t.length - 8 > CAIRN_SAFETENSORS_HEADER_MAX) {
        free(t.bytes);
        return CAIRN_ERR_NO_MEMORY;
    }
    write_length(t.bytes, t.length - 8);
    *header_out = (uint8_t *)t.bytes;
    *header_bytes_out = t.length;
    *data_bytes_out = data_bytes;
    return CAIRN_OK;
}

cairn_status cairn_safetensors_build(struct cairn_safetensors_entry *entries, size_t entry_count,
                                     uint8_t **header_out, size_t *header_bytes_out,
                                     uint64_t *data_bytes_out)
{
    return build(entries, entry_count, true, NULL, 0, header_out, header_bytes_out, data_bytes_out);
}

cairn_status cairn_safetensors_build_whole(struct cairn_safetensors_entry *entries,
                                           size_t entry_count,
                                           const struct cairn_safetensors_note *notes,
                                           size_t note_count, uint8_t **header_out,
                                           size_t *header_bytes_out, uint64_t *data_bytes_out)
{
    return build(entries, entry_count, false, notes, note_count, header_out, header_bytes_out,
                 data_bytes_out);
}

size_t cairn_safetensors_entry_bytes(const char *key, uint32_t rank)
{
    // The key stands twice: escaped (2 bytes for one), and in a JSON text inside a string (4). A
    // dimension is a number in each, an offset of the data two more, all of 20 digits at most.
    return 6 * strlen(key) + 42 * (size_t)rank + 160;
}
