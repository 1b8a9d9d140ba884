/* Snapshots on storage: written by some shards, read by others, damaged, full, half done. */
#include <check.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "proto/wire/snapshot_io.h"
#include "tests/support/scratch.h"

static char scratch[CAIRN_SCRATCH_BYTES];

static void make_scratch(void)
{
    cairn_scratch_make(scratch);
}

static void remove_scratch(void)
{
    cairn_scratch_remove(scratch);
}

/* ---- a job and its values ---- */

static char *borrowed(const char *text)
{
    return (char *)(uintptr_t)text; // the spec copies it
}

static struct cairn_job_spec_data empty_spec(const char *optimizer)
{
    struct cairn_job_spec_data spec;
    cairn_spec_init(&spec);
    ck_assert_int_eq(cairn_spec_set_name(&spec, "job"), CAIRN_OK);
    struct cairn_group_spec g = cairn_group_default();
    g.name = borrowed("all");
    g.optimizer = borrowed(optimizer);
    ck_assert_int_eq(cairn_spec_add_group(&spec, &g), CAIRN_OK);
    return spec;
}

static void add_tensor(struct cairn_job_spec_data *spec, const char *name, cairn_kind kind,
                       struct cairn_shape shape)
{
    const struct cairn_tensor_spec t = { .name = borrowed(name),
                                         .group = borrowed("all"),
                                         .kind = kind,
                                         .wire = CAIRN_F32,
                                         .reduce = CAIRN_F32,
                                         .master = CAIRN_F32,
                                         .shape = shape };
    ck_assert_int_eq(cairn_spec_add_tensor(spec, &t), CAIRN_OK);
}

/* Tensors of 0 to 8 dimensions, some empty, some with one row. */
static struct cairn_job_spec_data random_spec(uint64_t *seed)
{
    struct cairn_job_spec_data spec = empty_spec("adamw");
    for (uint32_t rank = 0; rank <= CAIRN_RANK_MAX; rank++) {
        struct cairn_shape shape = { .rank = rank };
        const uint64_t most = rank == 1   ? 30000
                              : rank == 2 ? 300
                              : rank == 3 ? 40
                              : rank < 6  ? 8
                                          : 4;
        for (uint32_t d = 0; d < rank; d++) shape.dim[d] = 1 + cairn_scratch_random(seed) % most;
        char name[32];
        snprintf(name, sizeof name, "block.%u.\xc3\xa9\"w", 8 - rank);
        add_tensor(&spec, name, rank == 4 ? CAIRN_FROZEN : CAIRN_TRAINED, shape);
    }
    add_tensor(&spec, "none", CAIRN_TRAINED, (struct cairn_shape) { 2, { 0, 5 } });
    cairn_spec_canonicalize(&spec);
    return spec;
}

/* The bits of every element, the same in check_snapshot.py. */
static uint32_t value_of(uint32_t tensor, uint32_t plane, uint64_t elem)
{
    uint32_t x = tensor * 1000003u + plane * 10007u + (uint32_t)elem;
    x = x * 2654435761u + 12345u;
    return x >> 9 | 0x3f800000u;
}

static cairn_status give_values(void *context, const struct cairn_safetensors_entry *entry,
                                uint64_t first_elem, uint64_t elem_count, const void **bytes_out,
                                struct cairn_sentence *why)
{
    static uint32_t piece[CAIRN_SNAPSHOT_PIECE_ELEMS];
    (void)context;
    (void)why;
    ck_assert_uint_le(elem_count, CAIRN_SNAPSHOT_PIECE_ELEMS);
    for (uint64_t i = 0; i < elem_count; i++) {
        piece[i] = value_of(entry->tensor, entry->plane, first_elem + i);
    }
    *bytes_out = piece;
    return CAIRN_OK;
}

/* ---- cutting by shards ---- */

struct ranges {
    struct cairn_snapshot_range at[400];
    size_t count;
};

/* Deals the rows of every tensor to `shards` in random runs: a shard may get several of one tensor. */
static void deal_rows(const struct cairn_job_spec_data *spec, uint32_t shards, uint64_t *seed,
                      struct ranges *owned)
{
    memset(owned, 0, shards * sizeof *owned);
    for (uint32_t t = 0; t < spec->tensor_count; t++) {
        const struct cairn_geometry g = cairn_geometry_of(&spec->tensors[t].shape);
        for (uint64_t row = 0; row < g.row_count;) {
            uint64_t rows = 1 + cairn_scratch_random(seed) % (g.row_count / shards + 1);
            if (rows > g.row_count - row) rows = g.row_count - row;
            struct ranges *to = &owned[cairn_scratch_random(seed) % shards];
            ck_assert_uint_lt(to->count, 400);
            to->at[to->count++] = (struct cairn_snapshot_range) { t, row * g.row_elems,
                                                                  rows * g.row_elems };
            row += rows;
        }
    }
}

static void write_shard(const char *folder, const struct cairn_job_spec_data *spec, uint32_t shard,
                        const struct ranges *owned, struct cairn_manifest *manifest)
{
    struct cairn_snapshot_plan plan;
    ck_assert_int_eq(cairn_snapshot_plan_make(spec, shard, owned->at, owned->count, &plan),
                     CAIRN_OK);
    for (size_t i = 0; i < plan.file_count; i++) {
        uint8_t hash[16];
        struct cairn_sentence why = { "" };
        cairn_status status = cairn_snapshot_write_file(folder, &plan.files[i], give_values, NULL,
                                                        hash, &why);
        ck_assert_msg(status == CAIRN_OK, "%s", why.text);
        status = cairn_manifest_add_file(manifest, plan.files[i].path, plan.files[i].file_bytes,
                                         hash);
        ck_assert_int_eq(status, CAIRN_OK);
    }
    cairn_snapshot_plan_release(&plan);
}

/* Writes and commits a snapshot of `spec` by `shards` shards; the folder is the caller's. */
static char *take_snapshot(const struct cairn_job_spec_data *spec, uint32_t shards, uint64_t step,
                           uint64_t *seed)
{
    char id[CAIRN_SNAPSHOT_ID_BYTES], *folder = NULL;
    struct cairn_sentence why = { "" };
    cairn_status status = cairn_snapshot_folder_make(scratch, spec->name, 1, step, id, &folder,
                                                     &why);
    ck_assert_msg(status == CAIRN_OK, "%s", why.text);
    struct ranges *owned = malloc(shards * sizeof *owned);
    deal_rows(spec, shards, seed, owned);
    struct cairn_manifest manifest;
    cairn_manifest_init(&manifest);
    ck_assert_int_eq(cairn_spec_copy(spec, &manifest.spec), CAIRN_OK);
    manifest.generation = 1;
    manifest.step = step;
    manifest.shard_count = shards;
    for (uint32_t s = 0; s < shards; s++) write_shard(folder, spec, s, &owned[s], &manifest);
    status = cairn_manifest_commit(folder, &manifest, &why);
    ck_assert_msg(status == CAIRN_OK, "%s", why.text);
    cairn_manifest_release(&manifest);
    free(owned);
    return folder;
}

static void read_range(struct cairn_snapshot *snapshot, const struct cairn_snapshot_range *range)
{
    const uint32_t stored = cairn_snapshot_planes(&snapshot->manifest.spec, range->tensor);
    float *out = malloc(range->elem_count * sizeof *out);
    for (uint32_t plane = 0; plane < CAIRN_PLANE_COUNT; plane++) {
        if ((stored & 1u << plane) == 0) continue;
        ck_assert_int_eq(cairn_snapshot_read(snapshot, range->tensor, plane, range->first_elem,
                                             range->elem_count, out, NULL),
                         CAIRN_OK);
        for (uint64_t i = 0; i < range->elem_count; i++) {
            uint32_t bits;
            memcpy(&bits, &out[i], sizeof bits);
            ck_assert_uint_eq(bits, value_of(range->tensor, plane, range->first_elem + i));
        }
    }
    free(out);
}

/* ---- writing and reading ---- */

START_TEST(what_any_shards_write_any_shards_read)
{
    uint64_t seed = 1000 + (uint64_t)_i;
    const uint32_t writers = 1 + (uint32_t)_i / 5, readers = 1 + (uint32_t)_i % 5;
    struct cairn_job_spec_data spec = random_spec(&seed);
    char *folder = take_snapshot(&spec, writers, 12000, &seed);
    struct cairn_snapshot snapshot;
    struct cairn_sentence why = { "" };
    cairn_status status = cairn_snapshot_open(folder, &snapshot, &why);
    ck_assert_msg(status == CAIRN_OK, "%s", why.text);
    status = cairn_snapshot_verify(&snapshot, &why);
    ck_assert_msg(status == CAIRN_OK, "%s", why.text);
    ck_assert_uint_eq(cairn_spec_diff(&spec, &snapshot.manifest.spec, 0, NULL, NULL), 0);
    struct ranges *owned = malloc(readers * sizeof *owned);
    deal_rows(&spec, readers, &seed, owned);
    for (uint32_t r = 0; r < readers; r++) {
        for (size_t i = 0; i < owned[r].count; i++) read_range(&snapshot, &owned[r].at[i]);
    }
    free(owned);
    cairn_snapshot_close(&snapshot);
    cairn_spec_release(&spec);
    free(folder);
}
END_TEST

START_TEST(what_is_not_stored_cannot_be_read)
{
    uint64_t seed = 5;
    struct cairn_job_spec_data spec = empty_spec("sgd"); // without momentum: no optimizer planes
    add_tensor(&spec, "w", CAIRN_TRAINED, (struct cairn_shape) { 1, { 10 } });
    char *folder = take_snapshot(&spec, 2, 0, &seed);
    struct cairn_snapshot snapshot;
    ck_assert_int_eq(cairn_snapshot_open(folder, &snapshot, NULL), CAIRN_OK);
    float out[11];
    ck_assert_int_eq(cairn_snapshot_read(&snapshot, 0, CAIRN_PLANE_PARAM, 0, 10, out, NULL),
                     CAIRN_OK);
    ck_assert_int_eq(cairn_snapshot_read(&snapshot, 0, CAIRN_PLANE_PARAM, 0, 11, out, NULL),
                     CAIRN_ERR_INVALID);
    ck_assert_int_eq(cairn_snapshot_read(&snapshot, 0, CAIRN_PLANE_EXP_AVG, 0, 1, out, NULL),
                     CAIRN_ERR_INVALID);
    ck_assert_int_eq(cairn_snapshot_read(&snapshot, 1, CAIRN_PLANE_PARAM, 0, 1, out, NULL),
                     CAIRN_ERR_INVALID);
    cairn_snapshot_close(&snapshot);
    cairn_spec_release(&spec);
    free(folder);
}
END_TEST

START_TEST(the_bytes_of_a_file_are_nailed_down)
{
    uint64_t seed = 5;
    struct cairn_job_spec_data spec = empty_spec("sgd");
    add_tensor(&spec, "w", CAIRN_TRAINED, (struct cairn_shape) { 2, { 1, 2 } });
    char *folder = take_snapshot(&spec, 1, 0, &seed), path[300];
    snprintf(path, sizeof path, "%s/model/shard-00001-model-00001-of-00001.safetensors", folder);
    static const char golden[] =
        "\xa8\0\0\0\0\0\0\0"
        "{\"__metadata__\":{\"DCP_SHARDING_INFO\":\"{\\\"w\\\":{\\\"saved_offsets\\\":[0,0]}}\","
        "\"DCP_VERSION\":\"1.0\",\"format\":\"pt\"},"
        "\"w\":{\"dtype\":\"F32\",\"shape\":[1,2],\"data_offsets\":[0,8]}}     "
        "\x0b\x43\xd5\x3f\xc7\x5e\xa4\x3f";
    char bytes[sizeof golden] = { 0 };
    FILE *file = fopen(path, "rb");
    ck_assert_ptr_nonnull(file);
    ck_assert_uint_eq(fread(bytes, 1, sizeof bytes, file), sizeof golden - 1);
    fclose(file);
    ck_assert_mem_eq(bytes, golden, sizeof golden - 1);
    cairn_spec_release(&spec);
    free(folder);
}
END_TEST

START_TEST(a_full_header_closes_its_file)
{
    struct cairn_job_spec_data spec = empty_spec("sgd");
    struct cairn_snapshot_range *ranges = calloc(60000, sizeof *ranges);
    for (uint32_t t = 0; t < 60000; t++) {
        char name[32];
        snprintf(name, sizeof name, "scalar.%05u", t);
        add_tensor(&spec, name, CAIRN_TRAINED, (struct cairn_shape) { 0, { 0 } });
        ranges[t] = (struct cairn_snapshot_range) { t, 0, 1 };
    }
    struct cairn_snapshot_plan plan;
    ck_assert_int_eq(cairn_snapshot_plan_make(&spec, 0, ranges, 60000, &plan), CAIRN_OK);
    ck_assert_uint_gt(plan.file_count, 1);
    size_t entries = 0;
    for (size_t i = 0; i < plan.file_count; i++) {
        ck_assert_uint_lt(plan.files[i].header_bytes, CAIRN_SNAPSHOT_HEADER_BYTES + 4096);
        ck_assert(cairn_snapshot_path_ok(plan.files[i].path));
        entries += plan.files[i].entry_count;
    }
    ck_assert_uint_eq(entries, 60000);
    cairn_snapshot_plan_release(&plan);
    cairn_spec_release(&spec);
    free(ranges);
}
END_TEST

START_TEST(others_read_what_we_write)
{
    uint64_t seed = 99;
    char command[600], values[300];
    struct cairn_job_spec_data spec = random_spec(&seed);
    char *folder = take_snapshot(&spec, 3, 7, &seed);
    cairn_scratch_file(folder, "values", "", values, sizeof values);
    snprintf(command, sizeof command, "python3 %s/tests/golden/check_snapshot.py %s",
             CAIRN_SOURCE_DIR, folder);
    fflush(stdout);
    const int status = system(command);
    if (WIFEXITED(status) && WEXITSTATUS(status) == 127)
        printf("skip: there is no python3\n");
    else
        ck_assert_int_eq(status, 0);
    cairn_spec_release(&spec);
    free(folder);
}
END_TEST

/* ---- what exists, and what does not ---- */

struct listing {
    char id[8][CAIRN_SNAPSHOT_ID_BYTES];
    char job[8][16];
    size_t count;
};

static void on_snapshot(void *context, const char *job, const char *id, const char *folder)
{
    struct listing *listing = context;
    ck_assert_uint_lt(listing->count, 8);
    snprintf(listing->id[listing->count], CAIRN_SNAPSHOT_ID_BYTES, "%s", id);
    snprintf(listing->job[listing->count++], 16, "%s", job);
    struct cairn_manifest manifest;
    ck_assert_int_eq(cairn_manifest_load(folder, &manifest, NULL), CAIRN_OK);
    ck_assert_str_eq(manifest.spec.name, job);
    cairn_manifest_release(&manifest);
}

START_TEST(only_committed_snapshots_are_listed_oldest_first)
{
    uint64_t seed = 3;
    char id[CAIRN_SNAPSHOT_ID_BYTES], *unfinished = NULL;
    struct cairn_job_spec_data spec = empty_spec("adamw");
    add_tensor(&spec, "w", CAIRN_TRAINED, (struct cairn_shape) { 1, { 10 } });
    free(take_snapshot(&spec, 1, 9, &seed));
    free(take_snapshot(&spec, 1, 10, &seed));
    ck_assert_int_eq(cairn_snapshot_folder_make(scratch, "job", 1, 10, id, &unfinished, NULL),
                     CAIRN_OK);
    ck_assert_str_eq(id, "step-000000000010-g1-2"); // never the folder of another try
    free(take_snapshot(&spec, 1, 10, &seed));
    ck_assert_int_eq(cairn_spec_set_name(&spec, "a.job"), CAIRN_OK);
    free(take_snapshot(&spec, 1, 11, &seed));
    struct listing all = { .count = 0 }, one = { .count = 0 };
    ck_assert_int_eq(cairn_snapshot_list(scratch, NULL, on_snapshot, &all, NULL), CAIRN_OK);
    ck_assert_uint_eq(all.count, 4);
    ck_assert_str_eq(all.job[0], "a.job");
    ck_assert_str_eq(all.id[1], "step-000000000009-g1");
    ck_assert_str_eq(all.id[2], "step-000000000010-g1");
    ck_assert_str_eq(all.id[3], "step-000000000010-g1-3");
    ck_assert_int_eq(cairn_snapshot_list(scratch, "a.job", on_snapshot, &one, NULL), CAIRN_OK);
    ck_assert_uint_eq(one.count, 1);
    ck_assert_int_eq(cairn_snapshot_list(scratch, "../x", on_snapshot, &one, NULL), CAIRN_OK);
    ck_assert_int_eq(cairn_snapshot_list("/nowhere", NULL, on_snapshot, &one, NULL), CAIRN_OK);
    ck_assert_uint_eq(one.count, 1);
    struct cairn_snapshot snapshot;
    struct cairn_sentence why = { "" };
    ck_assert_int_eq(cairn_snapshot_open(unfinished, &snapshot, &why), CAIRN_ERR_NOT_FOUND);
    ck_assert_ptr_nonnull(strstr(why.text, "no manifest.json"));
    ck_assert_int_eq(cairn_snapshot_open("/nowhere", &snapshot, &why), CAIRN_ERR_NOT_FOUND);
    cairn_spec_release(&spec);
    free(unfinished);
}
END_TEST

/* ---- damage ---- */

#define VICTIM "model/shard-00002-model-00001-of-00001.safetensors"

static void remove_file(const char *path)
{
    ck_assert_int_eq(unlink(path), 0);
}

static void cut_file(const char *path)
{
    struct stat info;
    ck_assert_int_eq(stat(path, &info), 0);
    ck_assert_int_eq(truncate(path, info.st_size - 1), 0);
}

static void empty_file(const char *path)
{
    ck_assert_int_eq(truncate(path, 0), 0);
}

static void link_file(const char *path)
{
    char elsewhere[400];
    snprintf(elsewhere, sizeof elsewhere, "%s.moved", path);
    ck_assert_int_eq(rename(path, elsewhere), 0);
    ck_assert_int_eq(symlink(elsewhere, path), 0);
}

static void flip(const char *path, long at, int whence)
{
    FILE *file = fopen(path, "r+b");
    ck_assert_ptr_nonnull(file);
    ck_assert_int_eq(fseek(file, at, whence), 0);
    const int byte = fgetc(file);
    ck_assert_int_eq(fseek(file, at, whence), 0);
    ck_assert_int_eq(fputc(byte ^ 1, file), byte ^ 1);
    fclose(file);
}

static void flip_length(const char *path)
{
    flip(path, 3, SEEK_SET);
}

static void flip_header(const char *path)
{
    flip(path, 8, SEEK_SET);
}

static void flip_data(const char *path)
{
    flip(path, -1, SEEK_END);
}

static const struct {
    void (*spoil)(const char *path);
    const char *word;
    cairn_status status, verify_status;
} spoils[] = {
    { remove_file, "is missing", CAIRN_ERR_CORRUPT, CAIRN_OK },
    { cut_file, "cut off", CAIRN_ERR_CORRUPT, CAIRN_OK },
    { empty_file, "has 0 bytes", CAIRN_ERR_CORRUPT, CAIRN_OK },
    { link_file, "open of", CAIRN_ERR_IO, CAIRN_OK },
    { flip_length, "the header", CAIRN_ERR_MALFORMED, CAIRN_OK },
    { flip_header, "does not begin with {", CAIRN_ERR_MALFORMED, CAIRN_OK },
    { flip_data, "checksum", CAIRN_OK, CAIRN_ERR_CHECKSUM },
};

START_TEST(a_damaged_file_is_named)
{
    struct cairn_job_spec_data spec = empty_spec("adamw");
    add_tensor(&spec, "w", CAIRN_TRAINED, (struct cairn_shape) { 1, { 60000 } });
    add_tensor(&spec, "x", CAIRN_TRAINED, (struct cairn_shape) { 1, { 60000 } });
    struct cairn_manifest manifest;
    cairn_manifest_init(&manifest);
    ck_assert_int_eq(cairn_spec_copy(&spec, &manifest.spec), CAIRN_OK);
    char id[CAIRN_SNAPSHOT_ID_BYTES], *folder = NULL, path[300];
    ck_assert_int_eq(cairn_snapshot_folder_make(scratch, "job", 1, 1, id, &folder, NULL), CAIRN_OK);
    for (uint32_t s = 0; s < 2; s++) {
        const struct ranges owned = { .at = { { s, 0, 60000 } }, .count = 1 };
        write_shard(folder, &spec, s, &owned, &manifest);
    }
    ck_assert_int_eq(cairn_manifest_commit(folder, &manifest, NULL), CAIRN_OK);
    snprintf(path, sizeof path, "%s/" VICTIM, folder);
    spoils[_i].spoil(path);
    struct cairn_snapshot snapshot;
    struct cairn_sentence why = { "" };
    cairn_status status = cairn_snapshot_open(folder, &snapshot, &why);
    ck_assert_msg(status == spoils[_i].status, "%d: %s", status, why.text);
    if (status == CAIRN_OK) {
        ck_assert_int_eq(cairn_snapshot_verify(&snapshot, &why), spoils[_i].verify_status);
        cairn_snapshot_close(&snapshot);
    }
    ck_assert_msg(strstr(why.text, VICTIM) != NULL, "%s", why.text);
    ck_assert_msg(strstr(why.text, spoils[_i].word) != NULL, "%s", why.text);
    cairn_manifest_release(&manifest);
    cairn_spec_release(&spec);
    free(folder);
}
END_TEST

/* A snapshot of two shards that own what the test says, out of a tensor of 30000. */
static cairn_status open_two(struct cairn_snapshot_range a, struct cairn_snapshot_range b,
                             struct cairn_sentence *why)
{
    struct cairn_job_spec_data spec = empty_spec("sgd");
    add_tensor(&spec, "w", CAIRN_TRAINED, (struct cairn_shape) { 1, { 30000 } });
    struct cairn_manifest manifest;
    cairn_manifest_init(&manifest);
    ck_assert_int_eq(cairn_spec_copy(&spec, &manifest.spec), CAIRN_OK);
    char id[CAIRN_SNAPSHOT_ID_BYTES], *folder = NULL;
    ck_assert_int_eq(cairn_snapshot_folder_make(scratch, "job", 1, 1, id, &folder, NULL), CAIRN_OK);
    const struct ranges owned_a = { .at = { a }, .count = 1 },
                        owned_b = { .at = { b }, .count = 1 };
    write_shard(folder, &spec, 0, &owned_a, &manifest);
    write_shard(folder, &spec, 1, &owned_b, &manifest);
    ck_assert_int_eq(cairn_manifest_commit(folder, &manifest, NULL), CAIRN_OK);
    struct cairn_snapshot snapshot;
    cairn_status status = cairn_snapshot_open(folder, &snapshot, why);
    if (status == CAIRN_OK) cairn_snapshot_close(&snapshot);
    cairn_manifest_release(&manifest);
    cairn_spec_release(&spec);
    free(folder);
    return status;
}

START_TEST(elements_that_are_missing_or_twice_are_named)
{
    struct cairn_sentence why = { "" };
    typedef struct cairn_snapshot_range range;
    ck_assert_int_eq(open_two((range) { 0, 0, 10000 }, (range) { 0, 10000, 20000 }, &why),
                     CAIRN_OK);
    ck_assert_int_eq(open_two((range) { 0, 0, 10000 }, (range) { 0, 10001, 19999 }, &why),
                     CAIRN_ERR_CORRUPT);
    ck_assert_ptr_nonnull(
        strstr(why.text, "\"w\", plane param: elements 10000 to 10000 are in no"));
    ck_assert_int_eq(open_two((range) { 0, 0, 10000 }, (range) { 0, 10000, 19999 }, &why),
                     CAIRN_ERR_CORRUPT);
    ck_assert_ptr_nonnull(strstr(why.text, "elements 29999 to 29999 are in no"));
    ck_assert_int_eq(open_two((range) { 0, 0, 10001 }, (range) { 0, 10000, 20000 }, &why),
                     CAIRN_ERR_CORRUPT);
    ck_assert_ptr_nonnull(strstr(why.text, "elements from 10000 are in two files"));
}
END_TEST

/* ---- failures of writing ---- */

static int count_files(const char *folder, const char *part)
{
    char command[400], line[32] = "";
    snprintf(command, sizeof command, "ls -A %s/%s | wc -l", folder, part);
    FILE *pipe = popen(command, "r");
    ck_assert_ptr_nonnull(fgets(line, sizeof line, pipe));
    pclose(pipe);
    return atoi(line);
}

START_TEST(a_full_disk_fails_the_file_and_leaves_nothing)
{
    struct cairn_job_spec_data spec = empty_spec("sgd");
    add_tensor(&spec, "w", CAIRN_TRAINED, (struct cairn_shape) { 1, { 60000 } });
    char id[CAIRN_SNAPSHOT_ID_BYTES], *folder = NULL;
    ck_assert_int_eq(cairn_snapshot_folder_make(scratch, "job", 1, 1, id, &folder, NULL), CAIRN_OK);
    const struct cairn_snapshot_range all = { 0, 0, 60000 };
    struct cairn_snapshot_plan plan;
    ck_assert_int_eq(cairn_snapshot_plan_make(&spec, 0, &all, 1, &plan), CAIRN_OK);
    signal(SIGXFSZ, SIG_IGN);
    const struct rlimit limit = { 100000, 100000 };
    ck_assert_int_eq(setrlimit(RLIMIT_FSIZE, &limit), 0); // of this child of Check only
    struct cairn_sentence why = { "" };
    uint8_t hash[16];
    ck_assert_int_eq(cairn_snapshot_write_file(folder, plan.files, give_values, NULL, hash, &why),
                     CAIRN_ERR_NO_SPACE);
    ck_assert_msg(strstr(why.text, "write of shard-00001") != NULL, "%s", why.text);
    ck_assert_int_eq(count_files(folder, "model"), 0);
    cairn_snapshot_plan_release(&plan);
    cairn_spec_release(&spec);
    free(folder);
}
END_TEST

static cairn_status give_nothing(void *context, const struct cairn_safetensors_entry *entry,
                                 uint64_t first_elem, uint64_t elem_count, const void **bytes_out,
                                 struct cairn_sentence *why)
{
    (void)context;
    (void)bytes_out;
    return cairn_fail(why, CAIRN_ERR_CANCELED, "canceled at %s, %llu + %llu", entry->key,
                      (unsigned long long)first_elem, (unsigned long long)elem_count);
}

START_TEST(a_canceled_file_leaves_nothing_and_a_second_writer_is_refused)
{
    struct cairn_job_spec_data spec = empty_spec("sgd");
    add_tensor(&spec, "w", CAIRN_TRAINED, (struct cairn_shape) { 1, { 10 } });
    char id[CAIRN_SNAPSHOT_ID_BYTES], *folder = NULL;
    ck_assert_int_eq(cairn_snapshot_folder_make(scratch, "job", 1, 1, id, &folder, NULL), CAIRN_OK);
    const struct cairn_snapshot_range all = { 0, 0, 10 };
    struct cairn_snapshot_plan plan;
    ck_assert_int_eq(cairn_snapshot_plan_make(&spec, 0, &all, 1, &plan), CAIRN_OK);
    struct cairn_sentence why = { "" };
    uint8_t hash[16];
    ck_assert_int_eq(cairn_snapshot_write_file(folder, plan.files, give_nothing, NULL, hash, &why),
                     CAIRN_ERR_CANCELED);
    ck_assert_str_eq(why.text, "canceled at w, 0 + 10");
    ck_assert_int_eq(count_files(folder, "model"), 0);
    ck_assert_int_eq(cairn_snapshot_write_file(folder, plan.files, give_values, NULL, hash, &why),
                     CAIRN_OK);
    ck_assert_int_eq(cairn_snapshot_write_file(folder, plan.files, give_values, NULL, hash, &why),
                     CAIRN_ERR_EXISTS);
    ck_assert_int_eq(count_files(folder, "model"), 1);
    cairn_snapshot_plan_release(&plan);
    cairn_spec_release(&spec);
    free(folder);
}
END_TEST

START_TEST(a_manifest_is_not_committed_over_a_missing_file_or_twice)
{
    struct cairn_job_spec_data spec = empty_spec("sgd");
    add_tensor(&spec, "w", CAIRN_TRAINED, (struct cairn_shape) { 1, { 10 } });
    char id[CAIRN_SNAPSHOT_ID_BYTES], *folder = NULL, path[300];
    ck_assert_int_eq(cairn_snapshot_folder_make(scratch, "job", 1, 1, id, &folder, NULL), CAIRN_OK);
    struct cairn_manifest manifest;
    cairn_manifest_init(&manifest);
    ck_assert_int_eq(cairn_spec_copy(&spec, &manifest.spec), CAIRN_OK);
    const struct ranges owned = { .at = { { 0, 0, 10 } }, .count = 1 };
    write_shard(folder, &spec, 0, &owned, &manifest);
    struct cairn_sentence why = { "" };
    manifest.files[0].bytes++;
    ck_assert_int_eq(cairn_manifest_commit(folder, &manifest, &why), CAIRN_ERR_CORRUPT);
    manifest.files[0].bytes--;
    ck_assert_int_eq(cairn_manifest_commit(folder, &manifest, &why), CAIRN_OK);
    ck_assert_int_eq(cairn_manifest_commit(folder, &manifest, &why), CAIRN_ERR_EXISTS);
    snprintf(path, sizeof path, "%s/" CAIRN_MANIFEST_NAME, folder);
    ck_assert_int_eq(unlink(path), 0);
    snprintf(path, sizeof path, "%s/%s", folder, manifest.files[0].path);
    ck_assert_int_eq(unlink(path), 0);
    ck_assert_int_eq(cairn_manifest_commit(folder, &manifest, &why), CAIRN_ERR_CORRUPT);
    ck_assert_msg(strstr(why.text, "is not there") != NULL, "%s", why.text);
    cairn_manifest_release(&manifest);
    cairn_spec_release(&spec);
    free(folder);
}
END_TEST

int main(void)
{
    TCase *tcase = tcase_create("snapshot_file");
    tcase_set_timeout(tcase, 60);
    tcase_add_checked_fixture(tcase, make_scratch, remove_scratch);
    tcase_add_loop_test(tcase, what_any_shards_write_any_shards_read, 0, 25);
    tcase_add_test(tcase, what_is_not_stored_cannot_be_read);
    tcase_add_test(tcase, the_bytes_of_a_file_are_nailed_down);
    tcase_add_test(tcase, a_full_header_closes_its_file);
    tcase_add_test(tcase, others_read_what_we_write);
    tcase_add_test(tcase, only_committed_snapshots_are_listed_oldest_first);
    tcase_add_loop_test(tcase, a_damaged_file_is_named, 0, sizeof spoils / sizeof spoils[0]);
    tcase_add_test(tcase, elements_that_are_missing_or_twice_are_named);
    tcase_add_test(tcase, a_full_disk_fails_the_file_and_leaves_nothing);
    tcase_add_test(tcase, a_canceled_file_leaves_nothing_and_a_second_writer_is_refused);
    tcase_add_test(tcase, a_manifest_is_not_committed_over_a_missing_file_or_twice);
    Suite *suite = suite_create("snapshot_file");
    suite_add_tcase(suite, tcase);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    const int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed != 0;
}
