/* Judging the header of a safetensors file, in the order of the crate's reader. */
#include <assert.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "proto/safetensors/safetensors.h"

/* The format's dtypes, lowest rank first. */
static const struct {
    const char *name;
    uint32_t bits;
    int dtype; /* Cairn's, 0 = none */
} dtypes[] = {
    { "BOOL", 8, 0 },        { "F4", 4, 0 },           { "F6_E2M3", 6, 0 },
    { "F6_E3M2", 6, 0 },     { "U8", 8, CAIRN_U8 },    { "I8", 8, 0 },
    { "F8_E5M2", 8, 0 },     { "F8_E4M3", 8, 0 },      { "F8_E8M0", 8, 0 },
    { "F8_E4M3FNUZ", 8, 0 }, { "F8_E5M2FNUZ", 8, 0 },  { "I16", 16, 0 },
    { "U16", 16, 0 },        { "F16", 16, CAIRN_F16 }, { "BF16", 16, CAIRN_BF16 },
    { "I32", 32, 0 },        { "U32", 32, 0 },         { "F32", 32, CAIRN_F32 },
    { "C64", 64, 0 },        { "F64", 64, CAIRN_F64 }, { "I64", 64, 0 },
    { "U64", 64, 0 },
};

int cairn_safetensors_dtype_rank(const char *dtype_name)
{
    for (size_t i = 0; i < sizeof dtypes / sizeof dtypes[0]; i++) {
        if (strcmp(dtypes[i].name, dtype_name) == 0) return (int)i;
    }
    return -1;
}

uint32_t cairn_safetensors_dtype_bits(int rank)
{
    return dtypes[rank].bits;
}

cairn_status cairn_safetensors_header_bytes(const uint8_t *prefix, size_t have, uint64_t file_bytes,
                                            uint64_t *json_bytes_out, struct cairn_sentence *why)
{
    if (have < 8 || file_bytes < 8) {
        return cairn_fail(why, CAIRN_ERR_MALFORMED,
                          "the file has %" PRIu64 " bytes, less than the 8 of a header's length",
                          file_bytes);
    }
    uint64_t json_bytes = 0;
    for (size_t i = 0; i < 8; i++) json_bytes |= (uint64_t)prefix[i] << (8 * i);
    if (json_bytes > CAIRN_SAFETENSORS_HEADER_MAX) {
        return cairn_fail(why, CAIRN_ERR_MALFORMED,
                          "the header would have %" PRIu64 " bytes; the format allows %d",
                          json_bytes, CAIRN_SAFETENSORS_HEADER_MAX);
    }
    if (json_bytes > file_bytes - 8) {
        return cairn_fail(why, CAIRN_ERR_MALFORMED,
                          "the header should have %" PRIu64
                          " bytes, but the file ends after %" PRIu64 " (cut off?)",
                          json_bytes, file_bytes - 8);
    }
    *json_bytes_out = json_bytes;
    return CAIRN_OK;
}

static cairn_status wrong(struct cairn_sentence *why, const char *key, const char *what)
{
    return cairn_fail(why, CAIRN_ERR_MALFORMED, "tensor \"%s\": %s", key, what);
}

/* A list of integers >= 0 of that length at most; returns its length, or -1. */
static int read_numbers(const json_t *list, uint64_t *numbers, size_t most)
{
    if (!json_is_array(list) || json_array_size(list) > most) return -1;
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *number = json_array_get(list, i);
        if (!json_is_integer(number) || json_integer_value(number) < 0) return -1;
        numbers[i] = (uint64_t)json_integer_value(number);
    }
    return (int)json_array_size(list);
}

static cairn_status read_entry(const char *key, const json_t *value,
                               struct cairn_safetensors_entry *e, struct cairn_sentence *why)
{
    const char *dtype = json_string_value(json_object_get(value, "dtype"));
    const json_t *shape = json_object_get(value, "shape");
    uint64_t offsets[2];
    if (json_object_size(value) != 3 || dtype == NULL || !json_is_array(shape) ||
        read_numbers(json_object_get(value, "data_offsets"), offsets, 2) != 2) {
        return wrong(why, key, "it needs dtype, shape and two data_offsets, and nothing else");
    }
    const int rank = cairn_safetensors_dtype_rank(dtype);
    if (rank < 0) return wrong(why, key, "its dtype is not one of the format");
    if (json_array_size(shape) > CAIRN_RANK_MAX) {
        return cairn_fail(why, CAIRN_ERR_UNSUPPORTED, "tensor \"%s\" has %zu dimensions, over %d",
                          key, json_array_size(shape), CAIRN_RANK_MAX);
    }
    if (read_numbers(shape, e->box.extent, CAIRN_RANK_MAX) < 0) {
        return wrong(why, key, "its shape is not a list of whole numbers from 0");
    }
    e->box.rank = (uint32_t)json_array_size(shape);
    e->dtype_name = dtypes[rank].name;
    e->dtype = (cairn_dtype)dtypes[rank].dtype;
    e->begin = offsets[0];
    e->end = offsets[1];
    e->key = strdup(key);
    return e->key != NULL ? CAIRN_OK : CAIRN_ERR_NO_MEMORY;
}

static int offset_order(const void *a, const void *b)
{
    const struct cairn_safetensors_entry *x = a, *y = b;
    if (x->begin != y->begin) return x->begin < y->begin ? -1 : 1;
    return x->end != y->end ? (x->end < y->end ? -1 : 1) : 0;
}

static cairn_status judge_size(const struct cairn_safetensors_entry *e, struct cairn_sentence *why)
{
    uint64_t bits = dtypes[cairn_safetensors_dtype_rank(e->dtype_name)].bits;
    for (uint32_t d = 0; d < e->box.rank; d++) {
        if (__builtin_mul_overflow(bits, e->box.extent[d], &bits)) {
            return wrong(why, e->key, "its shape overflows 64 bits");
        }
    }
    if (bits % 8 != 0) return wrong(why, e->key, "it does not end on a whole byte");
    if (bits / 8 != e->end - e->begin) {
        return cairn_fail(why, CAIRN_ERR_MALFORMED,
                          "tensor \"%s\": dtype and shape need %" PRIu64
                          " bytes, data_offsets give %" PRIu64,
                          e->key, bits / 8, e->end - e->begin);
    }
    return CAIRN_OK;
}

/* Sorts the entries and checks that they tile the bytes after the header. */
static cairn_status judge_offsets(struct cairn_safetensors *s, uint64_t data_bytes,
                                  struct cairn_sentence *why)
{
    if (s->entry_count > 1) qsort(s->entries, s->entry_count, sizeof *s->entries, offset_order);
    uint64_t end = 0;
    for (size_t i = 0; i < s->entry_count; i++) {
        const struct cairn_safetensors_entry *e = &s->entries[i];
        if (e->begin != end || e->end < e->begin) {
            return wrong(why, e->key,
                         "its data_offsets do not begin where the tensor before it ends");
        }
        cairn_status status = judge_size(e, why);
        if (status != CAIRN_OK) return status;
        end = e->end;
    }
    if (end != data_bytes) {
        return cairn_fail(why, CAIRN_ERR_MALFORMED,
                          "the tensors have %" PRIu64 " bytes, the file has %" PRIu64
                          " after the header (cut off, or something appended)",
                          end, data_bytes);
    }
    return CAIRN_OK;
}

/* Takes saved_offsets out of the JSON text `info` into every entry. */
static cairn_status read_boxes(struct cairn_safetensors *s, const char *info,
                               struct cairn_sentence *why)
{
    json_t *root = json_loads(info, JSON_REJECT_DUPLICATES, NULL);
    cairn_status status = CAIRN_OK;
    if (!json_is_object(root)) {
        status = cairn_fail(why, CAIRN_ERR_MALFORMED, "DCP_SHARDING_INFO is not a JSON object");
    }
    for (size_t i = 0; i < s->entry_count && status == CAIRN_OK; i++) {
        struct cairn_safetensors_entry *e = &s->entries[i];
        const json_t *offsets = json_object_get(json_object_get(root, e->key), "saved_offsets");
        if (read_numbers(offsets, e->box.start, CAIRN_RANK_MAX) != (int)e->box.rank) {
            status = wrong(why, e->key,
                           "DCP_SHARDING_INFO has no saved_offsets of its rank for it");
        }
    }
    json_decref(root);
    s->has_boxes = status == CAIRN_OK;
    return status;
}

static cairn_status read_metadata(struct cairn_safetensors *s, json_t *metadata,
                                  struct cairn_sentence *why)
{
    if (metadata == NULL) return CAIRN_OK;
    const char *key;
    json_t *value;
    bool strings = json_is_object(metadata);
    json_object_foreach(metadata, key, value) strings = strings && json_is_string(value);
    if (!strings) {
        return cairn_fail(why, CAIRN_ERR_MALFORMED, "__metadata__ has something else than strings");
    }
    const char *info = json_string_value(json_object_get(metadata, "DCP_SHARDING_INFO"));
    return info != NULL ? read_boxes(s, info, why) : CAIRN_OK;
}

static cairn_status read_root(json_t *root, uint64_t data_bytes, struct cairn_safetensors *s,
                              struct cairn_sentence *why)
{
    const char *key;
    json_t *value;
    s->entries = calloc(json_object_size(root) + 1, sizeof *s->entries);
    if (s->entries == NULL) return CAIRN_ERR_NO_MEMORY;
    json_object_foreach(root, key, value)
    {
        if (strcmp(key, "__metadata__") == 0) continue;
        cairn_status status = read_entry(key, value, &s->entries[s->entry_count], why);
        if (status != CAIRN_OK) return status;
        s->entry_count++;
    }
    cairn_status status = judge_offsets(s, data_bytes, why);
    if (status == CAIRN_OK) status = read_metadata(s, json_object_get(root, "__metadata__"), why);
    return status;
}

static cairn_status load_json(const uint8_t *json, size_t json_bytes, json_t **root_out,
                              struct cairn_sentence *why)
{
    if (json_bytes == 0 || json[0] != '{') {
        return cairn_fail(why, CAIRN_ERR_MALFORMED, "the header does not begin with {");
    }
    json_error_t error;
    *root_out = json_loadb((const char *)json, json_bytes, JSON_REJECT_DUPLICATES, &error);
    if (*root_out != NULL) return CAIRN_OK;
    if (json_error_code(&error) == json_error_out_of_memory) return CAIRN_ERR_NO_MEMORY;
    if (json_error_code(&error) == json_error_invalid_utf8) {
        return cairn_fail(why, CAIRN_ERR_MALFORMED, "the header is not UTF-8");
    }
    return cairn_fail(why, CAIRN_ERR_MALFORMED, "the header is not JSON: %s at byte %d", error.text,
                      error.position);
}

cairn_status cairn_safetensors_parse(const uint8_t *json, size_t json_bytes, uint64_t file_bytes,
                                     struct cairn_safetensors *out, struct cairn_sentence *why)
{
    assert(file_bytes >= 8 && json_bytes <= file_bytes - 8);
    json_t *root = NULL;
    cairn_status status = load_json(json, json_bytes, &root, why);
    if (status != CAIRN_OK) return status;
    struct cairn_safetensors s = { NULL, 0, false };
    status = read_root(root, file_bytes - 8 - json_bytes, &s, why);
    json_decref(root);
    if (status != CAIRN_OK) {
        cairn_safetensors_release(&s);
        return status;
    }
    *out = s;
    return CAIRN_OK;
}

void cairn_safetensors_release(struct cairn_safetensors *s)
{
    for (size_t i = 0; i < s->entry_count; i++) free(s->entries[i].key);
    free(s->entries);
    *s = (struct cairn_safetensors) { NULL, 0, false };
}
