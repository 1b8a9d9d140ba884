/* A snapshot as weights that a job begins with: its parameters by name, whichever files they lie in, and what
 * is no snapshot, damaged, or not allowed. */
#include <check.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "proto/snapshot_io/snapshot_io.h"
#include "tests/support/scratch_folder.h"
#include "tests/support/snapshot_sample.h"
#include "tests/support/suite.h"
#include "tests/support/weights_sample.h"

#define ROWS    ((uint64_t)300)
#define COLUMNS ((uint64_t)64)

static char root[CAIRN_SCRATCH_BYTES + 16];
static struct job_spec_data spec;
static char *folder;
static struct weights weights;
static struct sentence why;

static void set_up(void)
{
    scratch_make();
    snprintf(root, sizeof root, "%s/models", scratch);
    ck_assert_int_eq(mkdir(root, 0755), 0);
    spec = cairn_sample_spec("adamw");
    cairn_sample_tensor(&spec, "net.weight", CAIRN_TRAINED,
                        (struct shape) { 2, { ROWS, COLUMNS } });
    cairn_sample_tensor(&spec, "net.mask", CAIRN_BUFFER, (struct shape) { 1, { 5 } });
    cairn_sample_tensor(&spec, "notes", CAIRN_BLOB, (struct shape) { 1, { 9 } });
    folder = cairn_sample_snapshot(root, &spec, 7);
}

static void tear_down(void)
{
    free(folder);
    spec_release(&spec);
    scratch_remove();
}

static void check_refused(const char *roots, const char *path, cairn_status status,
                          const char *word)
{
    ck_assert_int_eq(snapshot_weights_open(roots, path, &weights, &why), status);
    ck_assert_msg(strstr(why.text, word) != NULL, "\"%s\" is not in: %s", word, why.text);
}

static void write_manifest(const char *of, const char *text)
{
    char path[PATH_MAX];
    snprintf(path, sizeof path, "%s/manifest.json", of);
    FILE *file = fopen(path, "w");
    ck_assert_ptr_nonnull(file);
    ck_assert_int_ge(fputs(text, file), 0);
    ck_assert_int_eq(fclose(file), 0);
}

TEST(parameters_and_buffers_are_there_by_name_and_the_optimizer_is_not)
{
    const struct weight *from[3];
    struct sentence extra;
    float values[COLUMNS * 2];
    ck_assert_msg(snapshot_weights_open(root, folder, &weights, &why) == CAIRN_OK, "%s", why.text);
    ck_assert_uint_eq(weights.weight_count, 2);
    ck_assert_int_eq(weights_match(&weights, &spec, NULL, from, &extra, &why), CAIRN_OK);
    for (size_t t = 0; t < spec.tensor_count; t++) {
        if (spec.tensors[t].kind == CAIRN_BLOB) continue;
        const uint64_t elems = spec.tensors[t].kind == CAIRN_BUFFER ? 5 : ROWS * COLUMNS;
        const uint64_t count = elems < COLUMNS * 2 ? elems : COLUMNS * 2;
        ck_assert_str_eq(from[t]->key, spec.tensors[t].name);
        for (uint64_t first = 0; first + count <= elems; first += count) {
            ck_assert_msg(weights_read(&weights, from[t], first, count, values, &why) == CAIRN_OK,
                          "%s", why.text);
            for (uint64_t i = 0; i < count; i++) {
                const uint32_t bits = cairn_sample_value((uint32_t)t, CAIRN_PLANE_PARAM, first + i);
                ck_assert_mem_eq(&values[i], &bits, sizeof bits);
            }
        }
    }
    weights_close(&weights);
}

TEST(names_of_the_job_may_lack_the_prefix)
{
    const struct weight *from[3];
    struct sentence extra;
    struct job_spec_data mine = cairn_sample_spec("sgd");
    cairn_sample_tensor(&mine, "weight", CAIRN_TRAINED, (struct shape) { 2, { ROWS, COLUMNS } });
    ck_assert_int_eq(snapshot_weights_open(root, folder, &weights, &why), CAIRN_OK);
    mine.init_extra_ok = true;
    ck_assert_msg(weights_match(&weights, &mine, "net.", from, &extra, &why) == CAIRN_OK, "%s",
                  why.text);
    ck_assert_str_eq(from[0]->key, "net.weight");
    ck_assert_msg(strstr(extra.text, "1 tensors that the job does not take: net.mask") != NULL,
                  "%s", extra.text);
    weights_close(&weights);
    spec_release(&mine);
}

TEST(what_is_not_allowed_or_not_whole_is_refused)
{
    char path[sizeof root + 64];
    check_refused("", folder, CAIRN_ERR_REFUSED, "import.folders");
    snprintf(path, sizeof path, "%s/link", root);
    ck_assert_int_eq(symlink(scratch, path), 0);
    check_refused(root, path, CAIRN_ERR_REFUSED, "leads out of the folder");
    snprintf(path, sizeof path, "%s/none", root);
    check_refused(root, path, CAIRN_ERR_NOT_FOUND, "there is no none");
    ck_assert_int_eq(mkdir(path, 0755), 0);
    check_refused(root, path, CAIRN_ERR_NOT_FOUND, "model.safetensors");
    write_manifest(path, "{}");
    check_refused(root, path, CAIRN_ERR_CORRUPT, "manifest.json");
}

TEST(a_damaged_block_is_found_when_it_is_read)
{
    char path[PATH_MAX];
    float values[COLUMNS];
    snprintf(path, sizeof path, "%s/model/shard-00001-model-00001-of-00001.safetensors", folder);
    FILE *file = fopen(path, "r+");
    ck_assert_ptr_nonnull(file);
    ck_assert_int_eq(fseek(file, -1, SEEK_END), 0);
    ck_assert_int_ne(fputc(0xaa, file), EOF);
    fclose(file);
    ck_assert_int_eq(snapshot_weights_open(root, folder, &weights, &why), CAIRN_OK);
    const struct weight *weight = weights_find(&weights, "net.weight");
    ck_assert_int_eq(weights_read(&weights, weight, 0, COLUMNS, values, &why), CAIRN_ERR_CHECKSUM);
    ck_assert_msg(strstr(why.text, "shard-00001-model-00001-of-00001") != NULL, "%s", why.text);
    weights_close(&weights);
}

TEST(a_folder_of_others_is_theirs_whatever_else_is_in_it)
{
    static const float ramp[4] = { 0, 1, 2, 3 };
    static const struct sample_weight one = { "b", "F32", 1, { 4 }, ramp, 16 };
    char path[sizeof root + 64], file[sizeof path + 64];
    float values[4];
    snprintf(path, sizeof path, "%s/theirs", root);
    ck_assert_int_eq(mkdir(path, 0755), 0);
    write_manifest(path, "{}");
    snprintf(file, sizeof file, "%s/model.safetensors", path);
    sample_weights_write(file, &one, 1);
    ck_assert_msg(snapshot_weights_open(root, path, &weights, &why) == CAIRN_OK, "%s", why.text);
    ck_assert_int_eq(weights_read(&weights, weights_find(&weights, "b"), 0, 4, values, &why),
                     CAIRN_OK);
    ck_assert_mem_eq(values, ramp, sizeof values);
    weights_close(&weights);
}

SUITE(60, set_up, tear_down);
