/* Weights that somebody else saved: what is opened and what is not, which tensor takes which, and the
 * values that come out. */
#include <check.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "proto/safetensors/safetensors.h"
#include "proto/spec/scalars.h"
#include "tests/support/scratch_folder.h"
#include "tests/support/suite.h"
#include "tests/support/weights_sample.h"

static char root[CAIRN_SCRATCH_BYTES + 16], paths[4][256];
static struct weights weights;
static struct sentence why;

/* FOLDER/models is allowed, FOLDER is not. */
static void make_folder(void)
{
    scratch_make();
    snprintf(root, sizeof root, "%s/models", scratch);
    ck_assert_int_eq(mkdir(root, 0755), 0);
}

/* ROOT/name, in a buffer of that number. */
static const char *at(int buffer, const char *name)
{
    snprintf(paths[buffer], sizeof paths[buffer], "%s/%s", root, name);
    return paths[buffer];
}

static void check_refused(const char *path, cairn_status status, const char *word)
{
    why.text[0] = 0;
    ck_assert_msg(weights_open(root, path, &weights, &why) == status, "%s: %s", path, why.text);
    ck_assert_msg(strstr(why.text, word) != NULL, "\"%s\" is not in: %s", word, why.text);
}

static void check_opens(const char *path, size_t weight_count)
{
    ck_assert_msg(weights_open(root, path, &weights, &why) == CAIRN_OK, "%s", why.text);
    ck_assert_uint_eq(weights.weight_count, weight_count);
}

static const float ramp[12] = { 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11 };
static const struct sample_weight two[] = { { "b", "F32", 1, { 4 }, ramp, 16 },
                                            { "a", "F32", 2, { 2, 4 }, ramp + 4, 32 } };

/* ---- what is opened ---- */

TEST(a_file_in_an_allowed_folder_is_read)
{
    float values[8] = { 0 };
    sample_weights_write(at(0, "m.safetensors"), two, 2);
    check_opens(paths[0], 2);
    const struct weight *a = weights_find(&weights, "a");
    ck_assert_ptr_nonnull(a);
    ck_assert_ptr_null(weights_find(&weights, "c"));
    for (uint64_t from = 0; from < 8; from++) {
        ck_assert_int_eq(weights_read(&weights, a, from, 8 - from, values, &why), CAIRN_OK);
        ck_assert_mem_eq(values, ramp + 4 + from, (8 - from) * sizeof *values);
    }
    weights_close(&weights);
}

TEST(nothing_outside_the_allowed_folders_is_opened)
{
    char outside[256], roots[512];
    snprintf(outside, sizeof outside, "%s/models.safetensors", scratch);
    sample_weights_write(outside, two, 2);
    check_refused(outside, CAIRN_ERR_REFUSED, "import.folders");
    check_refused(at(0, "../models.safetensors"), CAIRN_ERR_REFUSED, "leads out");
    ck_assert_int_eq(symlink("../models.safetensors", at(0, "link.safetensors")), 0);
    check_refused(paths[0], CAIRN_ERR_REFUSED, "leads out");
    ck_assert_int_eq(symlink(outside, at(0, "absolute.safetensors")), 0);
    check_refused(paths[0], CAIRN_ERR_REFUSED, "leads out");
    ck_assert_int_eq(symlink("/", at(0, "slash")), 0);
    check_refused(at(0, "slash/etc/passwd"), CAIRN_ERR_REFUSED, "leads out");
    ck_assert_int_eq(weights_open("", outside, &weights, &why), CAIRN_ERR_REFUSED);
    snprintf(roots, sizeof roots, "/nowhere:relative:%s/:", scratch);
    ck_assert_int_eq(weights_open(roots, outside, &weights, &why), CAIRN_OK);
    weights_close(&weights);
}

TEST(a_link_that_stays_inside_is_followed_as_in_a_cache_of_the_hub)
{
    ck_assert_int_eq(mkdir(at(0, "blobs"), 0755), 0);
    ck_assert_int_eq(mkdir(at(0, "snapshot"), 0755), 0);
    sample_weights_write(at(0, "blobs/0f"), two, 2);
    ck_assert_int_eq(symlink("../blobs/0f", at(0, "snapshot/model.safetensors")), 0);
    check_opens(at(0, "snapshot"), 2);
    weights_close(&weights);
}

TEST(what_is_no_file_of_weights_is_refused_by_name)
{
    ck_assert_int_eq(mkdir(at(0, "empty"), 0755), 0);
    check_refused(paths[0], CAIRN_ERR_NOT_FOUND, "model.safetensors.index.json");
    check_refused(at(0, "nothing"), CAIRN_ERR_NOT_FOUND, "there is no nothing");
    ck_assert_int_eq(mkfifo(at(0, "fifo.safetensors"), 0644), 0);
    check_refused(paths[0], CAIRN_ERR_REFUSED, "neither a file");
    sample_bytes_write(at(0, "short.safetensors"), "1234567", 7);
    check_refused(paths[0], CAIRN_ERR_MALFORMED, "short.safetensors");
    sample_bytes_write(at(0, "huge.safetensors"), "\xff\xff\xff\xff\xff\xff\xff\x7f{}", 10);
    check_refused(paths[0], CAIRN_ERR_MALFORMED, "header");
    sample_bytes_write(at(0, "junk.safetensors"), "\2\0\0\0\0\0\0\0[]", 10);
    check_refused(paths[0], CAIRN_ERR_MALFORMED, "junk.safetensors");
    ck_assert_int_eq(mkdir(at(0, "model.safetensors"), 0755), 0);
    check_refused(root, CAIRN_ERR_REFUSED, "is a folder");
}

TEST(a_part_of_a_tensor_is_not_taken_for_all_of_it)
{
    static const char json[] =
        "{\"__metadata__\":{\"DCP_SHARDING_INFO\":\"{\\\"w\\\":{\\\"saved_offsets\\\":[2]}}\"},"
        "\"w\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}";
    uint8_t file[8 + sizeof json - 1 + 4] = { sizeof json - 1 };
    memcpy(file + 8, json, sizeof json - 1);
    sample_bytes_write(at(0, "part.safetensors"), file, sizeof file);
    check_refused(paths[0], CAIRN_ERR_UNSUPPORTED, "name the folder with the manifest");
}

TEST(a_file_that_changes_under_us_is_refused)
{
    float value;
    sample_weights_write(at(0, "m.safetensors"), two, 2);
    check_opens(paths[0], 2);
    sample_weights_write(at(1, "other"), two, 1);
    ck_assert_int_eq(rename(paths[1], paths[0]), 0);
    ck_assert_int_eq(weights_read(&weights, weights.weights, 0, 1, &value, &why),
                     CAIRN_ERR_CORRUPT);
    weights_close(&weights);
}

/* ---- a folder with an index ---- */

TEST(a_folder_with_an_index_is_one_model)
{
    static const char *const keys[] = { "a", "b", "c" };
    static const char *const files[] = { "model-2.safetensors", "model-2.safetensors",
                                         "model-1.safetensors" };
    const struct sample_weight one[] = { { "c", "F32", 0, { 0 }, ramp + 11, 4 },
                                         { "a", "F32", 1, { 1 }, ramp, 4 } }; // not the one mapped
    float value = 0;
    sample_weights_write(at(0, "model-2.safetensors"), two, 2);
    sample_weights_write(at(0, "model-1.safetensors"), one, 2);
    sample_index_write(at(0, "model.safetensors.index.json"), keys, files, 3);
    check_opens(root, 3);
    const struct weight *c = weights_find(&weights, "c");
    ck_assert_uint_eq(weights_find(&weights, "a")->entry->box.rank, 2);
    ck_assert_int_eq(weights_read(&weights, c, 0, 1, &value, &why), CAIRN_OK);
    ck_assert(value == 11);
    weights_close(&weights);
}

TEST(an_index_that_promises_too_much_is_refused)
{
    static const char *const keys[] = { "a", "gone" };
    static const char *const files[] = { "model-1.safetensors", "model-1.safetensors" };
    static const char *const absent[] = { "model-1.safetensors", "model-9.safetensors" };
    sample_weights_write(at(0, "model-1.safetensors"), two, 2);
    sample_index_write(at(0, "model.safetensors.index.json"), keys, files, 2);
    check_refused(root, CAIRN_ERR_MALFORMED, "gone (model-1.safetensors)");
    sample_index_write(at(0, "model.safetensors.index.json"), keys, absent, 2);
    check_refused(root, CAIRN_ERR_NOT_FOUND, "model-9.safetensors");
}

TEST(every_bad_index_is_refused)
{
    static const char *const bad[] = {
        "",
        "{",
        "[]",
        "7",
        "{}",
        "{\"weight_map\":{}}",
        "{\"weight_map\":[\"a\"]}",
        "{\"weight_map\":{\"a\":1}}",
        "{\"weight_map\":{\"a\":null}}",
        "{\"weight_map\":{\"a\":\"../m.safetensors\"}}",
        "{\"weight_map\":{\"a\":\"/etc/m.safetensors\"}}",
        "{\"weight_map\":{\"a\":\"x/m.safetensors\"}}",
        "{\"weight_map\":{\"a\":\".safetensors\"}}",
        "{\"weight_map\":{\"a\":\".m.safetensors\"}}",
        "{\"weight_map\":{\"a\":\"m.bin\"}}",
        "{\"weight_map\":{\"a\":\"m.safetensors\",\"a\":\"m.safetensors\"}}",
        "{\"weight_map\":{\"a\":\"m\\u0000.safetensors\"}}",
        "{\"weight_map\":{\"a\":\"m.safetensors\"}} x",
    };
    struct safetensors_index index;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        ck_assert_msg(safetensors_index_parse(bad[i], strlen(bad[i]), &index, &why) ==
                          CAIRN_ERR_MALFORMED,
                      "%s", bad[i]);
    }
}

/* ---- values ---- */

TEST(every_dtype_becomes_fp32_exactly_and_f64_is_rounded)
{
    static const uint16_t bf16[] = { 0x3f80, 0x8000, 0x0001, 0x7f80, 0xff80, 0xc2f7 };
    static const uint32_t of_bf16[] = { 0x3f800000, 0x80000000, 0x00010000,
                                        0x7f800000, 0xff800000, 0xc2f70000 };
    static const uint16_t f16[] = {
        0x3c00, 0x8000, 0x0001, 0x03ff, 0x0400, 0x7bff, 0x7c00, 0xfc00
    };
    static const float of_f16[] = { 1,        -0.0f, 0x1p-24f, 0x1.ff8p-15f,
                                    0x1p-14f, 65504, INFINITY, -INFINITY };
    static const double f64[] = { 1.0 / 3, 0x1.000001p0, 0x1.000003p0, 1e300, -0x1p-149, 0x1p-151 };
    static const float of_f64[] = { 1.0f / 3, 1, 0x1.000004p0f, INFINITY, -0x1p-149f, 0 };
    const struct sample_weight all[] = { { "f64", "F64", 1, { 6 }, f64, sizeof f64 },
                                         { "f16", "F16", 1, { 8 }, f16, sizeof f16 },
                                         { "bf16", "BF16", 1, { 6 }, bf16, sizeof bf16 } };
    float got[8];
    sample_weights_write(at(0, "m.safetensors"), all, 3);
    check_opens(paths[0], 3);
    const struct weight *w = weights_find(&weights, "bf16");
    ck_assert_int_eq(weights_read(&weights, w, 0, 6, got, &why), CAIRN_OK);
    ck_assert_mem_eq(got, of_bf16, sizeof of_bf16);
    w = weights_find(&weights, "f16");
    ck_assert_int_eq(weights_read(&weights, w, 0, 8, got, &why), CAIRN_OK);
    ck_assert_mem_eq(got, of_f16, sizeof of_f16);
    w = weights_find(&weights, "f64");
    ck_assert_int_eq(weights_read(&weights, w, 0, 6, got, &why), CAIRN_OK);
    ck_assert_mem_eq(got, of_f64, sizeof of_f64);
    weights_close(&weights);
}

TEST(every_f16_number_keeps_its_value)
{
    static uint16_t f16[65536];
    static float got[65536];
    for (uint32_t i = 0; i < 65536; i++) f16[i] = (uint16_t)i;
    const struct sample_weight all = { "h", "F16", 1, { 65536 }, f16, sizeof f16 };
    sample_weights_write(at(0, "m.safetensors"), &all, 1);
    check_opens(paths[0], 1);
    ck_assert_int_eq(weights_read(&weights, weights.weights, 0, 65536, got, &why), CAIRN_OK);
    for (uint32_t i = 0; i < 65536; i++) {
        const int exponent = (int)(i >> 10 & 31), fraction = (int)(i & 1023);
        if (exponent == 31 && fraction != 0) {
            ck_assert(isnan(got[i]));
            continue;
        }
        double value = exponent == 31  ? INFINITY
                       : exponent == 0 ? ldexp(fraction, -24)
                                       : ldexp(1024 + fraction, exponent - 25);
        if (i & 0x8000) value = -value;
        ck_assert_uint_eq(f32_bits(got[i]), f32_bits((float)value));
    }
    weights_close(&weights);
}

/* ---- matching ---- */

static void add_tensor(struct job_spec_data *spec, const char *name, uint64_t rows,
                       cairn_init_kind init)
{
    const struct tensor_spec tensor = { .name = (char *)(uintptr_t)name,
                                        .kind = CAIRN_TRAINED,
                                        .wire = CAIRN_F32,
                                        .reduce = CAIRN_F32,
                                        .master = CAIRN_F32,
                                        .shape = { 1, { rows } },
                                        .init = { .kind = init } };
    ck_assert_int_eq(spec_add_tensor(spec, &tensor), CAIRN_OK);
}

TEST(a_tensor_takes_its_own_name_then_the_prefixed_one_then_its_initializer)
{
    const struct sample_weight all[] = { { "bias", "F32", 1, { 4 }, ramp, 16 },
                                         { "model.bias", "F32", 1, { 4 }, ramp, 16 },
                                         { "model.weight", "F32", 1, { 4 }, ramp, 16 },
                                         { "model.spare", "I64", 1, { 2 }, ramp, 16 } };
    const struct weight *from[3];
    struct sentence extra;
    struct job_spec_data spec;
    spec_init(&spec);
    add_tensor(&spec, "bias", 4, CAIRN_INIT_NONE);
    add_tensor(&spec, "head", 9, CAIRN_INIT_ZEROS);
    add_tensor(&spec, "weight", 4, CAIRN_INIT_NONE);
    sample_weights_write(at(0, "m.safetensors"), all, 4);
    check_opens(paths[0], 4);
    ck_assert_int_eq(weights_match(&weights, &spec, "model.", from, &extra, &why),
                     CAIRN_ERR_MISMATCH);
    ck_assert_ptr_nonnull(strstr(why.text, "model.bias, model.spare. Is it of another model?"));
    spec.init_extra_ok = true;
    ck_assert_msg(weights_match(&weights, &spec, "model.", from, &extra, &why) == CAIRN_OK, "%s",
                  why.text);
    ck_assert_str_eq(from[0]->key, "bias");
    ck_assert_ptr_null(from[1]);
    ck_assert_str_eq(from[2]->key, "model.weight");
    ck_assert_str_eq(extra.text, "2 tensors that the job does not take: model.bias, model.spare");
    ck_assert_int_eq(weights_match(&weights, &spec, NULL, from, &extra, &why), CAIRN_ERR_MISMATCH);
    ck_assert_ptr_nonnull(strstr(why.text, "weight is missing"));
    weights_close(&weights);
    spec_release(&spec);
}

TEST(every_tensor_that_does_not_fit_is_named_up_to_twenty)
{
    const struct sample_weight all[] = { { "long", "F32", 1, { 4 }, ramp, 16 },
                                         { "whole", "I32", 1, { 4 }, ramp, 16 } };
    const struct weight *from[27];
    struct sentence extra;
    struct job_spec_data spec;
    char name[32];
    spec_init(&spec);
    add_tensor(&spec, "long", 5, CAIRN_INIT_ZEROS); // in the file, so the initializer does not help
    for (int i = 0; i < 25; i++) {
        snprintf(name, sizeof name, "layers.%02d.mlp.weight", i);
        add_tensor(&spec, name, 4, CAIRN_INIT_NONE);
    }
    add_tensor(&spec, "whole", 4, CAIRN_INIT_NONE);
    spec_canonicalize(&spec);
    sample_weights_write(at(0, "m.safetensors"), all, 2);
    check_opens(paths[0], 2);
    ck_assert_int_eq(weights_match(&weights, &spec, "", from, &extra, &why), CAIRN_ERR_MISMATCH);
    ck_assert_ptr_nonnull(strstr(why.text, "in 27 tensors"));
    ck_assert_ptr_nonnull(strstr(why.text, "layers.19.mlp.weight is missing"));
    ck_assert_ptr_null(strstr(why.text, "layers.20.mlp.weight"));
    ck_assert_ptr_nonnull(strstr(why.text, "and 7 more"));
    weights_close(&weights);
    spec_release(&spec);
    spec_init(&spec);
    add_tensor(&spec, "long", 5, CAIRN_INIT_NONE);
    add_tensor(&spec, "whole", 4, CAIRN_INIT_NONE);
    check_opens(paths[0], 2);
    ck_assert_int_eq(weights_match(&weights, &spec, "", from, &extra, &why), CAIRN_ERR_MISMATCH);
    ck_assert_ptr_nonnull(strstr(why.text, "long is [5] in the job, [4] there"));
    ck_assert_ptr_nonnull(strstr(why.text, "whole is I32 there"));
    weights_close(&weights);
    spec_release(&spec);
}

SUITE(30, make_folder, scratch_remove);
