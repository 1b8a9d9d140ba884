/* The header of safetensors files: what we write, and one test for each way a file can be bad. */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proto/safetensors/safetensors.h"
#include "tests/support/suite.h"

static struct safetensors_entry entry(const char *key, cairn_dtype dtype, uint64_t start,
                                      uint64_t rows)
{
    return (struct safetensors_entry) {
        .key = wire_text(key),
        .dtype = dtype,
        .box = { .rank = 2, .start = { start, 0 }, .extent = { rows, 3 } },
    };
}

TEST(the_bytes_of_a_header_are_nailed_down)
{
    struct safetensors_entry entries[] = { entry("b", CAIRN_F32, 4, 2),
                                           entry("c", CAIRN_BF16, 0, 1),
                                           entry("a\"", CAIRN_F32, 0, 1) };
    entries[2].box.rank = 0;
    uint8_t *header = NULL;
    size_t bytes = 0;
    uint64_t data_bytes = 0;
    ck_assert_int_eq(safetensors_build(entries, 3, &header, &bytes, &data_bytes), CAIRN_OK);
    static const char json[] =
        "{\"__metadata__\":{\"DCP_SHARDING_INFO\":\"{"
        "\\\"a\\\\\\\"\\\":{\\\"saved_offsets\\\":[]},"
        "\\\"b\\\":{\\\"saved_offsets\\\":[4,0]},"
        "\\\"c\\\":{\\\"saved_offsets\\\":[0,0]}}\","
        "\"DCP_VERSION\":\"1.0\",\"format\":\"pt\"},"
        "\"a\\\"\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[0,4]},"
        "\"b\":{\"dtype\":\"F32\",\"shape\":[2,3],\"data_offsets\":[4,28]},"
        "\"c\":{\"dtype\":\"BF16\",\"shape\":[1,3],\"data_offsets\":[28,34]}}";
    ck_assert_uint_eq(bytes % 8, 0);
    ck_assert_uint_eq(data_bytes, 34);
    ck_assert_uint_eq((size_t)header[0] | (size_t)header[1] << 8, bytes - 8);
    ck_assert_mem_eq(header + 2, "\0\0\0\0\0\0", 6);
    ck_assert_mem_eq(header + 8, json, sizeof json - 1);
    for (size_t i = 8 + sizeof json - 1; i < bytes; i++) ck_assert_int_eq(header[i], ' ');
    free(header);
}

TEST(what_we_build_we_read_back)
{
    struct safetensors_entry entries[] = { entry("x.weight", CAIRN_F32, 7, 5),
                                           entry("x.bias", CAIRN_F64, 0, 0),
                                           entry("\xc3\xa9\\", CAIRN_F16, 1, 9) };
    uint8_t *header = NULL;
    size_t bytes = 0;
    uint64_t data_bytes = 0, json_bytes = 0;
    ck_assert_int_eq(safetensors_build(entries, 3, &header, &bytes, &data_bytes), CAIRN_OK);
    size_t bound = 8 + 200;
    for (size_t i = 0; i < 3; i++) bound += safetensors_entry_bytes(entries[i].key, 2);
    ck_assert_uint_le(bytes, bound);
    ck_assert_int_eq(safetensors_header_bytes(header, 8, bytes + data_bytes, &json_bytes, NULL),
                     CAIRN_OK);
    struct safetensors s;
    ck_assert_int_eq(safetensors_parse(header + 8, json_bytes, bytes + data_bytes, &s, NULL),
                     CAIRN_OK);
    ck_assert(s.has_boxes);
    ck_assert_uint_eq(s.entry_count, 3);
    for (size_t i = 0; i < 3; i++) {
        ck_assert_str_eq(s.entries[i].key, entries[i].key);
        ck_assert_int_eq(s.entries[i].dtype, entries[i].dtype);
        ck_assert_mem_eq(&s.entries[i].box, &entries[i].box, sizeof entries[i].box);
        ck_assert_uint_eq(s.entries[i].begin, entries[i].begin);
        ck_assert_uint_eq(s.entries[i].end, entries[i].end);
    }
    safetensors_release(&s);
    free(header);
}

/* A header and the bytes after it; a word of the sentence, or NULL if it is good. */
struct sample {
    const char *json;
    uint64_t data_bytes;
    const char *word;
};
#define T(dtype, shape, offsets) \
    "{\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":" offsets "}"

static const struct sample samples[] = {
    { "{}", 0, NULL },
    { "{}      ", 0, NULL },
    { "{\"a\":" T("F32", "[2,2]", "[0,16]") "}", 16, NULL },
    { "{\"a\":" T("F32", "[]", "[0,4]") "}", 4, NULL },
    { "{\"a\":" T("F32", "[0,7]", "[0,0]") ",\"b\":" T("U8", "[3]", "[0,3]") "}", 3, NULL },
    { "{\"a\":" T("F4", "[2]", "[0,1]") "}", 1, NULL },
    { "{\"__metadata__\":{\"format\":\"pt\"}}", 0, NULL },
    { "", 0, "does not begin with {" },
    { " {}", 0, "does not begin with {" },
    { "{\"\xff\":1}", 0, "not UTF-8" },
    { "{} x", 0, "not JSON" },
    { "{\"a\":" T("F32", "[1]", "[0,4]"), 4, "not JSON" },
    { "{\"a\":" T("F32", "[1]", "[0,4]") ",\"a\":" T("F32", "[1]", "[0,4]") "}", 4, "not JSON" },
    { "{\"a\":3}", 0, "needs dtype, shape and two data_offsets" },
    { "{\"a\":{\"dtype\":\"F32\",\"shape\":[1]}}", 4, "needs dtype" },
    { "{\"a\":" T("F32", "[1]", "[0,4,8]") "}", 4, "needs dtype" },
    { "{\"a\":" T("F32", "[1]", "[-4,0]") "}", 4, "needs dtype" },
    { "{\"a\":" T("F32", "[1.5]", "[0,4]") "}", 4, "whole numbers" },
    { "{\"a\":" T("F32", "[-1]", "[0,4]") "}", 4, "whole numbers" },
    { "{\"a\":" T("F33", "[1]", "[0,4]") "}", 4, "not one of the format" },
    { "{\"a\":" T("F32", "[1,1,1,1,1,1,1,1,1]", "[0,4]") "}", 4, "9 dimensions" },
    { "{\"a\":" T("F32", "[1]", "[4,8]") "}", 8, "do not begin where" },
    { "{\"a\":" T("F32", "[1]", "[4,0]") "}", 8, "do not begin where" },
    { "{\"a\":" T("F32", "[1]", "[0,4]") ",\"b\":" T("F32", "[1]", "[8,12]") "}", 12,
      "do not begin where" },
    { "{\"a\":" T("F32", "[2]", "[0,8]") ",\"b\":" T("F32", "[1]", "[4,8]") "}", 8,
      "do not begin where" },
    { "{\"a\":" T("F32", "[4294967296,4294967296]", "[0,0]") "}", 0, "overflows" },
    { "{\"a\":" T("F4", "[3]", "[0,1]") "}", 1, "whole byte" },
    { "{\"a\":" T("F32", "[2]", "[0,4]") "}", 4, "need 8 bytes, data_offsets give 4" },
    { "{\"a\":" T("F32", "[1]", "[0,4]") "}", 5, "cut off, or something appended" },
    { "{\"a\":" T("F32", "[1]", "[0,4]") "}", 3, "cut off, or something appended" },
    { "{\"__metadata__\":[]}", 0, "else than strings" },
    { "{\"__metadata__\":{\"a\":1}}", 0, "else than strings" },
    { "{\"__metadata__\":{\"DCP_SHARDING_INFO\":\"[\"}}", 0, "not a JSON object" },
    { "{\"__metadata__\":{\"DCP_SHARDING_INFO\":\"{}\"},\"a\":" T("F32", "[1]", "[0,4]") "}", 4,
      "no saved_offsets" },
    { "{\"__metadata__\":{\"DCP_SHARDING_INFO\":\"{\\\"a\\\":{\\\"saved_offsets\\\":[0,0]}}\"},"
      "\"a\":" T("F32", "[1]", "[0,4]") "}",
      4, "no saved_offsets" },
};

TEST_EACH(each_rule_of_the_format_is_judged, 0, sizeof samples / sizeof samples[0])
{
    const struct sample *sample = &samples[_i];
    const size_t json_bytes = strlen(sample->json);
    struct sentence why = { "" };
    struct safetensors s;
    // An exact allocation, so that a byte read beyond it is seen by the sanitizer.
    uint8_t *json = malloc(json_bytes + 1);
    memcpy(json, sample->json, json_bytes);
    cairn_status status = safetensors_parse(json, json_bytes, 8 + json_bytes + sample->data_bytes,
                                            &s, &why);
    if (sample->word == NULL) {
        ck_assert_msg(status == CAIRN_OK, "%s: %s", sample->json, why.text);
        safetensors_release(&s);
    } else {
        ck_assert_msg(status == CAIRN_ERR_MALFORMED || status == CAIRN_ERR_UNSUPPORTED, "%s",
                      sample->json);
        ck_assert_msg(strstr(why.text, sample->word) != NULL, "%s: \"%s\"", sample->json, why.text);
    }
    free(json);
}

TEST(the_length_is_judged_before_anything_is_allocated)
{
    const uint8_t huge[8] = { 0x01, 0xe1, 0xf5, 0x05 }; // 100,000,001
    const uint8_t all_ones[8] = { 255, 255, 255, 255, 255, 255, 255, 255 };
    const uint8_t nine[8] = { 9 };
    struct sentence why = { "" };
    uint64_t n = 77;
    ck_assert_int_eq(safetensors_header_bytes(nine, 7, 7, &n, &why), CAIRN_ERR_MALFORMED);
    ck_assert_ptr_nonnull(strstr(why.text, "less than the 8"));
    ck_assert_int_eq(safetensors_header_bytes(huge, 8, UINT64_MAX, &n, &why), CAIRN_ERR_MALFORMED);
    ck_assert_ptr_nonnull(strstr(why.text, "100000001"));
    ck_assert_int_eq(safetensors_header_bytes(all_ones, 8, 100, &n, &why), CAIRN_ERR_MALFORMED);
    ck_assert_int_eq(safetensors_header_bytes(nine, 8, 16, &n, &why), CAIRN_ERR_MALFORMED);
    ck_assert_ptr_nonnull(strstr(why.text, "cut off"));
    ck_assert_uint_eq(n, 77);
    ck_assert_int_eq(safetensors_header_bytes(nine, 8, 17, &n, &why), CAIRN_OK);
    ck_assert_uint_eq(n, 9);
}

TEST(no_damage_of_one_byte_crashes_the_parser)
{
    struct safetensors_entry entries[] = { entry("x", CAIRN_F32, 7, 5),
                                           entry("y", CAIRN_BF16, 1, 9) };
    uint8_t *header = NULL;
    size_t bytes = 0;
    uint64_t data_bytes = 0;
    ck_assert_int_eq(safetensors_build(entries, 2, &header, &bytes, &data_bytes), CAIRN_OK);
    for (size_t at = 8; at < bytes; at++) {
        for (unsigned value = 0; value < 256; value += 5) {
            const uint8_t kept = header[at];
            header[at] = (uint8_t)value;
            struct safetensors s;
            if (safetensors_parse(header + 8, bytes - 8, bytes + data_bytes, &s, NULL) ==
                CAIRN_OK) {
                safetensors_release(&s);
            }
            header[at] = kept;
        }
    }
    free(header);
}

SUITE(30);
