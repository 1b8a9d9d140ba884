#include "tests/support/weights_sample.h"

#include <check.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static FILE *create(const char *path)
{
    FILE *file = fopen(path, "we");
    ck_assert_msg(file != NULL, "%s: %s", path, strerror(errno));
    return file;
}

void sample_bytes_write(const char *path, const void *bytes, size_t byte_count)
{
    FILE *file = create(path);
    ck_assert_uint_eq(fwrite(bytes, 1, byte_count, file), byte_count);
    ck_assert_int_eq(fclose(file), 0);
}

void sample_weights_write(const char *path, const struct sample_weight *weights, size_t count)
{
    char *json = NULL;
    size_t json_bytes = 0;
    uint64_t at = 0;
    FILE *text = open_memstream(&json, &json_bytes);
    ck_assert_ptr_nonnull(text);
    fputs("{\"__metadata__\":{\"format\":\"pt\"}", text);
    for (size_t i = 0; i < count; i++) {
        fprintf(text, ",\"%s\":{\"dtype\":\"%s\",\"shape\":[", weights[i].key, weights[i].dtype);
        for (uint32_t d = 0; d < weights[i].rank; d++)
            fprintf(text, "%s%" PRIu64, d > 0 ? "," : "", weights[i].shape[d]);
        fprintf(text, "],\"data_offsets\":[%" PRIu64 ",%" PRIu64 "]}", at,
                at + weights[i].byte_count);
        at += weights[i].byte_count;
    }
    fputs("}", text);
    ck_assert_int_eq(fclose(text), 0);
    uint8_t length[8];
    for (size_t i = 0; i < 8; i++) length[i] = (uint8_t)(json_bytes >> (8 * i));
    FILE *file = create(path);
    fwrite(length, 1, sizeof length, file);
    fwrite(json, 1, json_bytes, file);
    for (size_t i = 0; i < count; i++) fwrite(weights[i].bytes, 1, weights[i].byte_count, file);
    ck_assert_int_eq(fclose(file), 0);
    free(json);
}

void sample_index_write(const char *path, const char *const *keys, const char *const *files,
                        size_t count)
{
    FILE *file = create(path);
    fputs("{\"metadata\": {\"total_size\": 0}, \"weight_map\": {", file);
    for (size_t i = 0; i < count; i++)
        fprintf(file, "%s\"%s\": \"%s\"", i > 0 ? ", " : "", keys[i], files[i]);
    fputs("}}\n", file);
    ck_assert_int_eq(fclose(file), 0);
}
