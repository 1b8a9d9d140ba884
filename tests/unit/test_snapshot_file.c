/* Snapshots on storage: written by some shards, read by others, listed, read by other programs. */
#include <check.h>
#include <linux/capability.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include "proto/spec/spec.h"
#include "tests/support/scratch_folder.h"
#include "tests/support/snapshot_sample.h"
#include "tests/support/suite.h"

enum { SKIPPED = 77 }; // CTest's word for it, and check_snapshot.py's

/* Tensors of 0 to 8 dimensions, some empty, some with one row. */
static struct job_spec_data random_spec(uint64_t *seed)
{
    struct job_spec_data spec = cairn_sample_spec("adamw");
    for (uint32_t rank = 0; rank <= CAIRN_RANK_MAX; rank++) {
        struct shape shape = { .rank = rank };
        const uint64_t most = rank == 1   ? 30000
                              : rank == 2 ? 300
                              : rank == 3 ? 40
                              : rank < 6  ? 8
                                          : 4;
        for (uint32_t d = 0; d < rank; d++) shape.dim[d] = 1 + cairn_scratch_random(seed) % most;
        char name[32];
        snprintf(name, sizeof name, "block.%u.\xc3\xa9\"w", 8 - rank);
        cairn_sample_tensor(&spec, name, rank == 4 ? CAIRN_FROZEN : CAIRN_TRAINED, shape);
    }
    cairn_sample_tensor(
        &spec, "state", CAIRN_BLOB,
        (struct shape) { 1, { 4 * (cairn_scratch_random(seed) % 3000) + 1 } }); // odd
    cairn_sample_tensor(&spec, "nothing", CAIRN_BLOB, (struct shape) { 1, { 0 } });
    cairn_sample_tensor(&spec, "none", CAIRN_TRAINED, (struct shape) { 2, { 0, 5 } });
    spec_canonicalize(&spec);
    return spec;
}

/* Deals the rows of every tensor to `shards` in random runs: a shard may get several of one tensor. */
static void deal_rows(const struct job_spec_data *spec, uint32_t shards, uint64_t *seed,
                      struct cairn_sample_ranges *owned)
{
    memset(owned, 0, shards * sizeof *owned);
    for (uint32_t t = 0; t < spec->tensor_count; t++) {
        const struct geometry g = geometry_of(&spec->tensors[t].shape);
        for (uint64_t row = 0; row < g.row_count;) {
            uint64_t rows = 1 + cairn_scratch_random(seed) % (g.row_count / shards + 1);
            if (rows > g.row_count - row) rows = g.row_count - row;
            struct cairn_sample_ranges *to = &owned[cairn_scratch_random(seed) % shards];
            ck_assert_uint_lt(to->count, 400);
            to->at[to->count++] = (struct snapshot_range) { t, row * g.row_elems,
                                                            rows * g.row_elems };
            row += rows;
        }
    }
}

/* Writes and commits a snapshot of `spec` by `shards` shards; the folder is the caller's. */
static char *take_snapshot(const struct job_spec_data *spec, uint32_t shards, uint64_t step,
                           uint64_t *seed)
{
    char id[CAIRN_SNAPSHOT_ID_BYTES], *folder = NULL;
    struct sentence why = { "" };
    cairn_status status = snapshot_folder_make(scratch, spec->name, 1, step, id, &folder, &why);
    ck_assert_msg(status == CAIRN_OK, "%s", why.text);
    struct cairn_sample_ranges *owned = malloc(shards * sizeof *owned);
    deal_rows(spec, shards, seed, owned);
    struct manifest manifest;
    manifest_init(&manifest);
    ck_assert_int_eq(spec_copy(spec, &manifest.spec), CAIRN_OK);
    manifest.generation = 1;
    manifest.step = step;
    manifest.shard_count = shards;
    for (uint32_t s = 0; s < shards; s++) cairn_sample_write(folder, spec, s, &owned[s], &manifest);
    status = manifest_commit(folder, &manifest, &why);
    ck_assert_msg(status == CAIRN_OK, "%s", why.text);
    manifest_release(&manifest);
    free(owned);
    return folder;
}

/* An assertion for each element would be a system call for each: Check's process is told of every one. */
static void read_range(struct snapshot *snapshot, const struct snapshot_range *range)
{
    const uint32_t stored = spec_planes(&snapshot->manifest.spec, range->tensor);
    const bool is_blob = snapshot->manifest.spec.tensors[range->tensor].kind == CAIRN_BLOB;
    const size_t size = is_blob ? 1 : sizeof(float);
    uint8_t *out = malloc(range->elem_count * size);
    for (uint32_t plane = 0; plane < CAIRN_PLANE_COUNT; plane++) {
        if ((stored & 1u << plane) == 0) continue;
        ck_assert_int_eq(snapshot_read(snapshot, range->tensor, plane, range->first_elem,
                                       range->elem_count, out, NULL),
                         CAIRN_OK);
        uint64_t wrong = 0;
        for (uint64_t i = 0; i < range->elem_count; i++) {
            const uint32_t value = cairn_sample_value(range->tensor, plane, range->first_elem + i);
            wrong += memcmp(out + i * size, &value, size) != 0; // of a blob: the lowest byte
        }
        ck_assert_uint_eq(wrong, 0);
    }
    free(out);
}

/* ---- writing and reading ---- */

TEST_EACH(what_any_shards_write_any_shards_read, 0, 25)
{
    uint64_t seed = 1000 + (uint64_t)_i;
    const uint32_t writers = 1 + (uint32_t)_i / 5, readers = 1 + (uint32_t)_i % 5;
    struct job_spec_data spec = random_spec(&seed);
    char *folder = take_snapshot(&spec, writers, 12000, &seed);
    struct snapshot snapshot;
    struct sentence why = { "" };
    cairn_status status = snapshot_open(folder, &snapshot, &why);
    ck_assert_msg(status == CAIRN_OK, "%s", why.text);
    status = snapshot_verify(&snapshot, NULL, &why);
    ck_assert_msg(status == CAIRN_OK, "%s", why.text);
    ck_assert_uint_eq(spec_diff(&spec, &snapshot.manifest.spec, 0, NULL, NULL), 0);
    struct cairn_sample_ranges *owned = malloc(readers * sizeof *owned);
    deal_rows(&spec, readers, &seed, owned);
    for (uint32_t r = 0; r < readers; r++) {
        for (size_t i = 0; i < owned[r].count; i++) read_range(&snapshot, &owned[r].at[i]);
    }
    free(owned);
    snapshot_close(&snapshot);
    spec_release(&spec);
    free(folder);
}

/* Quantum q of every tensor goes to shard q % 3. */
static struct layout *layout_by_turns(const struct job_spec_data *spec)
{
    struct layout_tensor tensors[16];
    struct extent *extents = calloc(1000, sizeof *extents);
    struct layout *layout = NULL;
    size_t count = 0;
    for (uint32_t t = 0; t < spec->tensor_count; t++) {
        const struct tensor_spec *tensor = &spec->tensors[t];
        tensors[t] = (struct layout_tensor) { tensor->name, tensor->unit, tensor->shape, 4 };
        const uint64_t quanta = geometry_of(&tensor->shape).quantum_count;
        for (uint64_t q = 0; q < quanta; q++) {
            ck_assert_uint_lt(count, 1000);
            extents[count++] = (struct extent) { t, (uint32_t)(q % 3), q, 1 };
        }
    }
    ck_assert_int_eq(
        layout_make(tensors, (uint32_t)spec->tensor_count, 3, 1, extents, count, &layout),
        CAIRN_OK);
    return layout;
}

static cairn_status plan_of_layout(const struct job_spec_data *spec, const struct layout *layout,
                                   uint32_t shard, struct snapshot_plan *plan_out)
{
    struct snapshot_range ranges[1000];
    size_t count = 0;
    for (size_t i = layout->shard_extents[shard]; i < layout->shard_extents[shard + 1]; i++) {
        const struct extent *extent = &layout->extents[layout->by_shard[i]];
        const struct geometry *g = &layout->geometry[extent->tensor];
        const uint64_t begin = quantum_first_elem(g, extent->first_quantum);
        const uint64_t end = quantum_first_elem(g, extent->first_quantum + extent->quantum_count);
        ck_assert_uint_lt(count, 1000);
        ranges[count++] = (struct snapshot_range) { extent->tensor, begin, end - begin };
    }
    return snapshot_plan_make(spec, shard, ranges, count, plan_out);
}

TEST(the_files_of_all_shards_of_a_layout_hold_everything_once)
{
    uint64_t seed = 4, bytes = 0, state = 0;
    struct job_spec_data spec = random_spec(&seed);
    struct layout *layout = layout_by_turns(&spec);
    for (uint32_t shard = 0; shard < 3; shard++) {
        struct snapshot_plan plan;
        ck_assert_int_eq(plan_of_layout(&spec, layout, shard, &plan), CAIRN_OK);
        for (size_t i = 0; i < plan.file_count; i++) {
            bytes += plan.files[i].file_bytes - plan.files[i].header_bytes;
        }
        snapshot_plan_release(&plan);
    }
    for (size_t t = 0; t < spec.tensor_count; t++) {
        const uint64_t planes = spec.tensors[t].kind == CAIRN_TRAINED ? 3 : 1;
        state += planes * geometry_of(&spec.tensors[t].shape).elems *
                 dtype_size((int)spec.tensors[t].master);
    }
    ck_assert_uint_eq(bytes, state); // no padding, nothing twice
    layout_close(layout);
    spec_release(&spec);
}

/* As after many changes of a layout. */
TEST(ranges_that_follow_each_other_are_one_box_in_one_file)
{
    struct job_spec_data spec = cairn_sample_spec("adamw");
    cairn_sample_tensor(&spec, "w", CAIRN_TRAINED, (struct shape) { 2, { 100, 8 } });
    struct snapshot_range pieces[101], whole = { 0, 0, 800 };
    for (size_t i = 0; i < 100; i++) pieces[i] = (struct snapshot_range) { 0, 8 * i, 8 };
    struct snapshot_plan one, many;
    ck_assert_int_eq(snapshot_plan_make(&spec, 0, &whole, 1, &one), CAIRN_OK);
    ck_assert_int_eq(snapshot_plan_make(&spec, 0, pieces, 100, &many), CAIRN_OK);
    ck_assert_uint_eq(many.file_count, 2); // model and optim
    for (size_t i = 0; i < 2; i++) {
        ck_assert_uint_eq(many.files[i].entry_count, one.files[i].entry_count);
        ck_assert_uint_eq(many.files[i].file_bytes, one.files[i].file_bytes);
        ck_assert_mem_eq(many.files[i].header, one.files[i].header, one.files[i].header_bytes);
    }
    snapshot_plan_release(&many);
    pieces[50].elem_count = 0; // a gap: another's
    memmove(&pieces[50], &pieces[51], 49 * sizeof *pieces);
    ck_assert_int_eq(snapshot_plan_make(&spec, 0, pieces, 99, &many), CAIRN_OK);
    ck_assert_uint_eq(many.file_count, 4);
    snapshot_plan_release(&many);
    snapshot_plan_release(&one);
    spec_release(&spec);
}

TEST(what_is_not_stored_cannot_be_read)
{
    uint64_t seed = 5;
    struct job_spec_data spec = cairn_sample_vectors("sgd", "w",
                                                     10); // without momentum: no optimizer planes
    char *folder = take_snapshot(&spec, 2, 0, &seed);
    struct snapshot snapshot;
    ck_assert_int_eq(snapshot_open(folder, &snapshot, NULL), CAIRN_OK);
    float out[11];
    ck_assert_int_eq(snapshot_read(&snapshot, 0, CAIRN_PLANE_PARAM, 0, 10, out, NULL), CAIRN_OK);
    ck_assert_int_eq(snapshot_read(&snapshot, 0, CAIRN_PLANE_PARAM, 0, 11, out, NULL),
                     CAIRN_ERR_INVALID);
    ck_assert_int_eq(snapshot_read(&snapshot, 0, CAIRN_PLANE_EXP_AVG, 0, 1, out, NULL),
                     CAIRN_ERR_INVALID);
    ck_assert_int_eq(snapshot_read(&snapshot, 1, CAIRN_PLANE_PARAM, 0, 1, out, NULL),
                     CAIRN_ERR_INVALID);
    snapshot_close(&snapshot);
    spec_release(&spec);
    free(folder);
}

TEST(the_bytes_of_a_file_are_nailed_down)
{
    uint64_t seed = 5;
    struct job_spec_data spec = cairn_sample_spec("sgd");
    cairn_sample_tensor(&spec, "w", CAIRN_TRAINED, (struct shape) { 2, { 1, 2 } });
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
    spec_release(&spec);
    free(folder);
}

TEST(a_blob_is_one_entry_of_bytes_in_a_folder_of_its_own)
{
    uint64_t seed = 5;
    struct job_spec_data spec = cairn_sample_spec("sgd");
    cairn_sample_tensor(&spec, "w", CAIRN_TRAINED, (struct shape) { 2, { 1, 2 } });
    cairn_sample_tensor(&spec, "x", CAIRN_BLOB, (struct shape) { 1, { 3 } });
    char *folder = take_snapshot(&spec, 1, 0, &seed), path[300];
    snprintf(path, sizeof path, "%s/blobs/shard-00001-model-00001-of-00001.safetensors", folder);
    static const char golden[] =
        "\xa0\0\0\0\0\0\0\0"
        "{\"__metadata__\":{\"DCP_SHARDING_INFO\":\"{\\\"x\\\":{\\\"saved_offsets\\\":[0]}}\","
        "\"DCP_VERSION\":\"1.0\",\"format\":\"pt\"},"
        "\"x\":{\"dtype\":\"U8\",\"shape\":[3],\"data_offsets\":[0,3]}}  ";
    char bytes[sizeof golden + 3] = { 0 }, values[3];
    for (uint64_t i = 0; i < 3; i++) values[i] = (char)cairn_sample_value(1, CAIRN_PLANE_PARAM, i);
    FILE *file = fopen(path, "rb");
    ck_assert_ptr_nonnull(file);
    ck_assert_uint_eq(fread(bytes, 1, sizeof bytes, file), sizeof golden + 2);
    fclose(file);
    ck_assert_mem_eq(bytes, golden, sizeof golden - 1);
    ck_assert_mem_eq(bytes + sizeof golden - 1, values, 3);
    spec_release(&spec);
    free(folder);
}

TEST(a_full_header_closes_its_file)
{
    struct job_spec_data spec = cairn_sample_spec("sgd");
    struct snapshot_range *ranges = calloc(60000, sizeof *ranges);
    for (uint32_t t = 0; t < 60000; t++) {
        char name[32];
        snprintf(name, sizeof name, "scalar.%05u", t);
        cairn_sample_tensor(&spec, name, CAIRN_TRAINED, (struct shape) { 0, { 0 } });
        ranges[t] = (struct snapshot_range) { t, 0, 1 };
    }
    struct snapshot_plan plan;
    ck_assert_int_eq(snapshot_plan_make(&spec, 0, ranges, 60000, &plan), CAIRN_OK);
    ck_assert_uint_gt(plan.file_count, 1);
    size_t entries = 0;
    for (size_t i = 0; i < plan.file_count; i++) {
        ck_assert_uint_lt(plan.files[i].header_bytes, CAIRN_SNAPSHOT_HEADER_BYTES + 4096);
        ck_assert(snapshot_path_ok(plan.files[i].path));
        entries += plan.files[i].entry_count;
    }
    ck_assert_uint_eq(entries, 60000);
    snapshot_plan_release(&plan);
    spec_release(&spec);
    free(ranges);
}

/* Exit status of check_snapshot.py over a sample snapshot. */
static int check_from_outside(const char *python, const char *option)
{
    uint64_t seed = 99;
    char command[600], values[300];
    struct job_spec_data spec = random_spec(&seed);
    char *folder = take_snapshot(&spec, 3, 7, &seed);
    cairn_scratch_file(folder, "values", "", values, sizeof values);
    const int length = snprintf(command, sizeof command,
                                "%s %s/tests/golden/check_snapshot.py %s %s", python,
                                CAIRN_SOURCE_DIR, folder, option);
    ck_assert_int_lt(length, (int)sizeof command);
    fflush(stdout);
    const int status = system(command);
    spec_release(&spec);
    free(folder);
    ck_assert(WIFEXITED(status));
    return WEXITSTATUS(status);
}

TEST(the_rules_hold_from_outside)
{
    ck_assert_int_eq(check_from_outside("python3", ""), 0);
}

/* By torch and safetensors: a CTest test of its own, skipped where they are missing. */
static bool readers_are_missing;

START_TEST(others_read_what_we_write)
{
    const char *python = getenv("CAIRN_TEST_TORCH_PYTHON");
    const int status = check_from_outside(python != NULL && python[0] != '\0' ? python : "python3",
                                          "--readers");
    readers_are_missing = status == SKIPPED;
    ck_assert(status == 0 || readers_are_missing);
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
    struct manifest manifest;
    ck_assert_int_eq(manifest_load(folder, &manifest, NULL), CAIRN_OK);
    ck_assert_str_eq(manifest.spec.name, job);
    manifest_release(&manifest);
}

/* Each is in the way of a removal; what would be left of it were none and nobody's. */
TEST(a_snapshot_with_something_strange_in_it_is_removed_wholly_or_not_at_all)
{
    static const char *const strays[][2] = {
        { "mv optim ../o && ln -s ../o optim", "optim" },
        { "echo x >notes.txt", "notes.txt" },
        { "echo x >model/notes.txt", "model/notes.txt" },
        { "mkdir model/shard-00001-model-00009-of-00009.safetensors", "model/shard" },
        { "mkdir .mine", ".mine" },
    };
    for (size_t i = 0; i < sizeof strays / sizeof *strays; i++) {
        uint64_t seed = 3;
        struct job_spec_data spec = cairn_sample_vectors("adamw", "w", 10);
        struct snapshot_removed removed;
        struct sentence why = { "" };
        char command[3 * CAIRN_SCRATCH_BYTES + 200];
        char *folder = take_snapshot(&spec, 1, 100 + i, &seed);
        const char *id = strrchr(folder, '/') + 1;
        snprintf(command, sizeof command, "cd %s && %s", folder, strays[i][0]);
        ck_assert_int_eq(system(command), 0);
        ck_assert_int_eq(snapshot_removable(scratch, "job", id, &why), CAIRN_ERR_REFUSED);
        ck_assert_int_eq(snapshot_remove(scratch, "job", id, &removed, &why), CAIRN_ERR_REFUSED);
        ck_assert_msg(strstr(why.text, strays[i][1]) != NULL, "%s", why.text);
        ck_assert_uint_eq(removed.files, 0);
        ck_assert_int_eq(snapshot_committed(scratch, "job", id, &why), CAIRN_OK);
        free(folder);
        spec_release(&spec);
    }
}

TEST(a_folder_that_is_a_link_is_neither_listed_nor_opened)
{
    uint64_t seed = 3;
    struct job_spec_data spec = cairn_sample_vectors("adamw", "w", 10);
    struct snapshot snapshot;
    struct sentence why = { "" };
    struct listing all = { .count = 0 };
    char command[3 * CAIRN_SCRATCH_BYTES + 200];
    char *folder = take_snapshot(&spec, 1, 9, &seed);
    snprintf(command, sizeof command, "mv %s %s-there && ln -s %s-there %s", folder, folder, folder,
             folder);
    ck_assert_int_eq(system(command), 0);
    ck_assert_int_eq(snapshot_list(scratch, NULL, on_snapshot, &all, &why), CAIRN_OK);
    ck_assert_uint_eq(all.count, 0);
    ck_assert_int_eq(snapshot_open(folder, &snapshot, &why), CAIRN_ERR_IO);
    ck_assert_msg(strstr(why.text, "it is a link, which is not followed") != NULL, "%s", why.text);
    free(folder);
    spec_release(&spec);
}

/* capabilities(7): without these two root reads by the modes of files, as everybody does. */
static void read_by_modes(bool by_modes)
{
    const uint32_t those = 1u << CAP_DAC_OVERRIDE | 1u << CAP_DAC_READ_SEARCH;
    struct __user_cap_header_struct header = { .version = _LINUX_CAPABILITY_VERSION_3 };
    struct __user_cap_data_struct data[_LINUX_CAPABILITY_U32S_3];
    ck_assert_int_eq(syscall(SYS_capget, &header, data), 0);
    data[0].effective = by_modes ? data[0].effective & ~those
                                 : data[0].effective | (data[0].permitted & those);
    ck_assert_int_eq(syscall(SYS_capset, &header, data), 0);
}

TEST(a_list_of_all_jobs_lives_with_a_folder_that_it_may_not_read)
{
    uint64_t seed = 3;
    struct job_spec_data spec = cairn_sample_vectors("adamw", "w", 10);
    struct sentence why = { "" };
    struct listing all = { .count = 0 };
    char path[CAIRN_SCRATCH_BYTES + 16];
    free(take_snapshot(&spec, 1, 9, &seed));
    snprintf(path, sizeof path, "%s/other", scratch);
    ck_assert_int_eq(mkdir(path, 0), 0);
    read_by_modes(true);
    const cairn_status status = snapshot_list(scratch, NULL, on_snapshot, &all, &why);
    read_by_modes(false);
    ck_assert_int_eq(status, CAIRN_OK);
    ck_assert_uint_eq(all.count, 1);
    ck_assert_msg(strstr(why.text, "other") != NULL, "%s", why.text);
    ck_assert_int_eq(snapshot_list(scratch, "job", on_snapshot, &all, &why), CAIRN_OK);
    ck_assert_str_eq(why.text, "");
    spec_release(&spec);
}

TEST(only_committed_snapshots_are_listed_oldest_first)
{
    uint64_t seed = 3;
    char id[CAIRN_SNAPSHOT_ID_BYTES], *unfinished = NULL;
    struct job_spec_data spec = cairn_sample_vectors("adamw", "w", 10);
    free(take_snapshot(&spec, 1, 9, &seed));
    free(take_snapshot(&spec, 1, 10, &seed));
    ck_assert_int_eq(snapshot_folder_make(scratch, "job", 1, 10, id, &unfinished, NULL), CAIRN_OK);
    ck_assert_str_eq(id, "step-000000000010-g1-2"); // never the folder of another try
    free(take_snapshot(&spec, 1, 10, &seed));
    ck_assert_int_eq(spec_set_name(&spec, "a.job"), CAIRN_OK);
    free(take_snapshot(&spec, 1, 11, &seed));
    struct listing all = { .count = 0 }, one = { .count = 0 };
    ck_assert_int_eq(snapshot_list(scratch, NULL, on_snapshot, &all, NULL), CAIRN_OK);
    ck_assert_uint_eq(all.count, 4);
    ck_assert_str_eq(all.job[0], "a.job");
    ck_assert_str_eq(all.id[1], "step-000000000009-g1");
    ck_assert_str_eq(all.id[2], "step-000000000010-g1");
    ck_assert_str_eq(all.id[3], "step-000000000010-g1-3");
    ck_assert_int_eq(snapshot_list(scratch, "a.job", on_snapshot, &one, NULL), CAIRN_OK);
    ck_assert_uint_eq(one.count, 1);
    ck_assert_int_eq(snapshot_list(scratch, "../x", on_snapshot, &one, NULL), CAIRN_OK);
    ck_assert_int_eq(snapshot_list("/nowhere", NULL, on_snapshot, &one, NULL), CAIRN_OK);
    ck_assert_uint_eq(one.count, 1);
    struct snapshot snapshot;
    struct sentence why = { "" };
    ck_assert_int_eq(snapshot_open(unfinished, &snapshot, &why), CAIRN_ERR_NOT_FOUND);
    ck_assert_ptr_nonnull(strstr(why.text, "no manifest.json"));
    ck_assert_int_eq(snapshot_open("/nowhere", &snapshot, &why), CAIRN_ERR_NOT_FOUND);
    spec_release(&spec);
    free(unfinished);
}

SUITE(60, scratch_make, scratch_remove);

int main(int argc, char **argv)
{
    if (argc != 2 || strcmp(argv[1], "readers") != 0) return suite_main();
    TCase *tcase = tcase_create("snapshot_file");
    tcase_set_timeout(tcase, 60);
    tcase_add_checked_fixture(tcase, scratch_make, scratch_remove);
    tcase_add_test(tcase, others_read_what_we_write);
    Suite *suite = suite_create("snapshot_file");
    suite_add_tcase(suite, tcase);
    setenv("CK_FORK", "no", 1); // it says whether it could be tried
    const int failed = suite_run(suite);
    return failed != 0 ? 1 : readers_are_missing ? SKIPPED : 0;
}
