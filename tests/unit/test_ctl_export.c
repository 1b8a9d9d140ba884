/* `cairn snapshot export`: the bits are the snapshot's, it is whole or not there, and takes little memory. */
#include <inttypes.h>
#include <fcntl.h>
#include <jansson.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "client/ctl/snapshot.h"
#include "gpu/gpu.h"
#include "proto/safetensors/safetensors.h"
#include "tests/support/cluster.h"
#include "tests/support/snapshot_sample.h"
#include "tests/support/suite.h"

static char scratch[CAIRN_SCRATCH_BYTES], to[CAIRN_SCRATCH_BYTES + 16],
    temp[CAIRN_SCRATCH_BYTES + 16];
static struct cluster nobody = { .address = "/nowhere/cairn" };
static struct cluster_said said;
static struct job_spec_data spec;
static char *folder;

enum { BLOB, EMBED, EMPTY, HEAD, SCALAR, WEIGHT };
#define WEIGHT_ELEMS (300 * 5000)

static void add_alias(const char *name, const char *of)
{
    const struct tensor_spec t = { .name = wire_text(name),
                                   .group = wire_text(""),
                                   .kind = CAIRN_FROZEN,
                                   .wire = CAIRN_F32,
                                   .reduce = CAIRN_F32,
                                   .master = CAIRN_F32,
                                   .shape = { 1, { 0 } },
                                   .alias_of = wire_text(of) };
    ck_assert_int_eq(spec_add_tensor(&spec, &t), CAIRN_OK);
}

static void set_up(void)
{
    cairn_scratch_make_quick(scratch);
    snprintf(to, sizeof to, "%s/out", scratch);
    snprintf(temp, sizeof temp, "%s/out.tmp", scratch);
    spec = cairn_sample_spec("adamw");
    cairn_sample_tensor(&spec, "blob", CAIRN_BLOB, (struct shape) { 1, { 100 } });
    cairn_sample_tensor(&spec, "embed", CAIRN_TRAINED, (struct shape) { 2, { 50, 40 } });
    cairn_sample_tensor(&spec, "empty", CAIRN_FROZEN, (struct shape) { 2, { 0, 4 } });
    add_alias("head", "embed");
    cairn_sample_tensor(&spec, "scalar", CAIRN_BUFFER, (struct shape) { 0, { 0 } });
    cairn_sample_tensor(&spec, "weight", CAIRN_TRAINED, (struct shape) { 2, { 300, 5000 } });
    folder = cairn_sample_snapshot(scratch, &spec, 7);
}

static void tear_down(void)
{
    free(folder);
    spec_release(&spec);
    cairn_scratch_remove(scratch);
}

static bool is_there(const char *path)
{
    struct stat info;
    return lstat(path, &info) == 0;
}

/* With these options more. */
#define EXPORT(options) \
    cluster_cli(&nobody, &said, "snapshot export --path %s --to %s " options, folder, to)

static void exported(void)
{
    ck_assert_msg(said.status == 0, "%d: %s", said.status, said.err);
    ck_assert(is_there(to) && !is_there(temp));
}

/* All elements of a key of what was written are those of the plane. */
static void same(struct weights *weights, const char *key, uint32_t tensor, uint32_t plane,
                 uint64_t elems, bool rounded)
{
    const struct weight *weight = weights_find(weights, key);
    ck_assert_msg(weight != NULL, "%s", key);
    ck_assert_int_eq(weight->entry->dtype, rounded ? CAIRN_BF16 : CAIRN_F32);
    float *got = malloc(elems * sizeof *got);
    ck_assert_int_eq(weights_read(weights, weight, 0, elems, got, NULL), CAIRN_OK);
    for (uint64_t i = 0; i < elems; i++) {
        uint32_t bits = cairn_sample_value(tensor, plane, i), is;
        float x;
        memcpy(&x, &bits, sizeof x);
        if (rounded) bits = (uint32_t)ctl_bf16(x) << 16;
        memcpy(&is, &got[i], sizeof is);
        ck_assert_msg(bits == is, "%s[%" PRIu64 "]: %x, %x", key, i, is, bits);
    }
    free(got);
}

static struct weights open_weights(const char *path)
{
    struct weights weights;
    struct sentence why = { "" };
    const cairn_status status = weights_open(scratch, path, &weights, &why);
    ck_assert_msg(status == CAIRN_OK, "%s", why.text);
    return weights;
}

/* The first bytes of a file, as text that ends. */
static const char *head_of(const char *name)
{
    static char text[4096];
    char path[200];
    snprintf(path, sizeof path, "%s/%s", to, name);
    FILE *file = fopen(path, "rb");
    ck_assert_msg(file != NULL, "%s", path);
    const size_t count = fread(text, 1, sizeof text - 1, file);
    fclose(file);
    text[count] = '\0';
    return count > 8 ? text + 8 : text;
}

TEST(a_model_is_one_file_if_it_fits)
{
    EXPORT("-o json");
    exported();
    struct weights weights = open_weights(to);
    ck_assert_uint_eq(weights.file_count, 1);
    ck_assert_uint_eq(weights.weight_count, 4);
    same(&weights, "embed", EMBED, CAIRN_PLANE_PARAM, 2000, false);
    same(&weights, "scalar", SCALAR, CAIRN_PLANE_PARAM, 1, false);
    same(&weights, "weight", WEIGHT, CAIRN_PLANE_PARAM, WEIGHT_ELEMS, false);
    weights_close(&weights);
    static const char head[] =
        "{\"__metadata__\":{\"format\":\"pt\",\"head\":\"embed\"},\"embed\":";
    ck_assert_int_eq(strncmp(head_of("model.safetensors"), head, sizeof head - 1), 0);
    ck_assert_ptr_nonnull(strstr(said.out, "\"blobs_left_out\": 1"));
}

TEST(a_large_one_is_several_with_an_index)
{
    EXPORT("--max-file 10KB --dtype bf16");
    exported();
    struct weights weights = open_weights(to);
    ck_assert_uint_eq(weights.file_count, 2);
    same(&weights, "embed", EMBED, CAIRN_PLANE_PARAM, 2000, true);
    same(&weights, "weight", WEIGHT, CAIRN_PLANE_PARAM, WEIGHT_ELEMS, true);
    weights_close(&weights);
    char path[200];
    snprintf(path, sizeof path, "%s/model.safetensors.index.json", to);
    json_t *index = json_load_file(path, 0, NULL);
    const json_t *map = json_object_get(index, "weight_map");
    ck_assert_str_eq(json_string_value(json_object_get(map, "weight")),
                     "model-00002-of-00002.safetensors");
    ck_assert_int_eq(
        json_integer_value(json_object_get(json_object_get(index, "metadata"), "total_size")),
        2 * (2000 + 1 + WEIGHT_ELEMS));
    json_decref(index);
}

/* All of a file; the caller's to free. */
static char *bytes_of(const char *name, size_t *count)
{
    char path[200];
    struct stat info;
    snprintf(path, sizeof path, "%s/%s", to, name);
    ck_assert_msg(stat(path, &info) == 0, "%s", path);
    *count = (size_t)info.st_size;
    char *bytes = malloc(*count + 1);
    FILE *file = fopen(path, "rb");
    ck_assert_uint_eq(fread(bytes, 1, *count, file), *count);
    fclose(file);
    return bytes;
}

/* That torch reads it is python.imports' to show. */
TEST(a_checkpoint_of_torch_has_the_optimizers_state_in_its_names)
{
    static const char *const keys[] = { "model.embed",
                                        "model.head",
                                        "model.scalar",
                                        "model.empty",
                                        "optim.state.weight.exp_avg_sq",
                                        "optim.state.embed.step",
                                        "optim.param_groups.0.betas" };
    static uint32_t plane[2000];
    size_t metadata_bytes, data_bytes;
    EXPORT("--format dcp");
    exported();
    char *metadata = bytes_of(".metadata", &metadata_bytes);
    char *data = bytes_of("__0_0.distcp", &data_bytes);
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        ck_assert_msg(memmem(metadata, metadata_bytes, keys[i], strlen(keys[i])) != NULL, "%s",
                      keys[i]);
    ck_assert_ptr_null(memmem(metadata, metadata_bytes, "blob", 4));
    for (size_t i = 0; i < 2000; i++) plane[i] = cairn_sample_value(EMBED, CAIRN_PLANE_EXP_AVG, i);
    const char *at = memmem(data, data_bytes, plane, sizeof plane);
    ck_assert_ptr_nonnull(at);
    ck_assert_uint_eq((size_t)(at - data) % 64, 0);
    ck_assert_uint_gt(data_bytes, 4 * (3 * (2000 + WEIGHT_ELEMS) + 3));
    free(metadata);
    free(data);
}

TEST(what_is_wrong_with_the_line_or_the_place_is_said)
{
    cluster_says(&nobody, 2, "needs --to DIR", "snapshot export --path %s", folder);
    EXPORT("--format gguf");
    ck_assert_ptr_nonnull(strstr(said.err, "hf, dcp and torch are allowed"));
    ck_assert_int_eq(mkdir(to, 0700), 0);
    EXPORT("");
    ck_assert_int_eq(said.status, status_exit(CAIRN_ERR_EXISTS));
    ck_assert_ptr_nonnull(strstr(said.err, "is there already"));
    ck_assert(!is_there(temp));
    ck_assert_int_eq(rmdir(to), 0);
    snprintf(to, sizeof to, "%s/no/out", scratch);
    EXPORT("");
    ck_assert_msg(strstr(said.err, "No such file") != NULL, "%s", said.err);
}

TEST(what_a_killed_one_left_is_removed_what_is_not_its_own_or_in_use_is_not)
{
    char path[200];
    ck_assert_int_eq(mkdir(temp, 0700), 0);
    cairn_scratch_file(temp, ".metadata", "whole", path, sizeof path);
    cairn_scratch_file(temp, "__0_0.distcp.tmp", "half", path, sizeof path);
    cairn_scratch_file(temp, "model-00001-of-00002.safetensors.tmp", "half", path, sizeof path);
    const int fd = open(temp, O_RDONLY | O_DIRECTORY);
    ck_assert_int_eq(flock(fd, LOCK_EX), 0);
    EXPORT("");
    ck_assert_int_eq(said.status, status_exit(CAIRN_ERR_BUSY));
    ck_assert(is_there(path));
    close(fd);
    cairn_scratch_file(temp, "thesis.txt", "years of work", path, sizeof path);
    EXPORT("");
    ck_assert_int_eq(said.status, status_exit(CAIRN_ERR_REFUSED));
    ck_assert_ptr_nonnull(strstr(said.err, "not an export's"));
    ck_assert(is_there(path));
    ck_assert_int_eq(unlink(path), 0);
    EXPORT("");
    exported();
    ck_assert_ptr_nonnull(strstr(said.err, "which an export that was killed had left, is removed"));
}

TEST(a_damaged_snapshot_gives_nothing)
{
    char path[200];
    snprintf(path, sizeof path, "%s/model/shard-00001-model-00001-of-00001.safetensors", folder);
    FILE *file = fopen(path, "r+b");
    ck_assert_int_eq(fseek(file, -1, SEEK_END), 0);
    ck_assert_int_ne(fputc(0xaa, file), EOF);
    fclose(file);
    EXPORT("");
    ck_assert_int_eq(said.status, status_exit(CAIRN_ERR_CHECKSUM));
    ck_assert_ptr_nonnull(strstr(said.err, "shard-00001-model-00001-of-00001"));
    ck_assert(!is_there(to) && !is_there(temp));
}

TEST(a_full_disk_gives_nothing_and_is_said)
{
    const struct rlimit small = { 1 << 20, 1 << 20 };
    signal(SIGXFSZ, SIG_IGN); // inherited
    ck_assert_int_eq(setrlimit(RLIMIT_FSIZE, &small), 0);
    EXPORT("");
    ck_assert_int_eq(said.status, status_exit(CAIRN_ERR_NO_SPACE));
    ck_assert_msg(strstr(said.err, "there is no room for") != NULL, "%s", said.err);
    ck_assert(!is_there(to) && !is_there(temp));
}

TEST(bf16_is_rounded_as_the_servers_round)
{
    static const uint32_t seeds[] = { 0,          0x80000000, 0x3f808000, 0x3f818000, 0x3f808001,
                                      0x7f7fffff, 0x7f800000, 0xff800001, 0x7fffffff, 1 };
    static float from[1 << 16];
    static uint16_t ours[1 << 16], theirs[1 << 16];
    uint64_t seed = 11;
    for (size_t i = 0; i < 1 << 16; i++) {
        const uint32_t bits = i < sizeof seeds / sizeof *seeds
                                  ? seeds[i]
                                  : (uint32_t)cairn_scratch_random(&seed);
        memcpy(&from[i], &bits, sizeof bits);
    }
    ctl_round_bf16(from, ours, 1 << 16);
    backend_host()->convert(theirs, CAIRN_BF16, from, CAIRN_F32, 1 << 16);
    ck_assert_mem_eq(ours, theirs, sizeof ours);
}
SUITE(60, set_up, tear_down);

/* A snapshot that is larger than the memory that an export may take, of f32 and of what is rounded. With a
 * sanitizer, whose own memory is what would be measured, one that takes it less time. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define RESIDENT_KIB_MAX (1024 << 10)
#define LARGE_ELEMS      ((uint64_t)8 << 20)
#else
#define RESIDENT_KIB_MAX (256 << 10)
#define LARGE_ELEMS      ((uint64_t)72 << 20)
#endif

static void set_up_large(void)
{
    cairn_scratch_make(scratch);
    snprintf(to, sizeof to, "%s/out", scratch);
    snprintf(temp, sizeof temp, "%s/out.tmp", scratch);
    spec = cairn_sample_spec("sgd");
    cairn_sample_tensor(&spec, "large", CAIRN_TRAINED,
                        (struct shape) { 2, { 1024, LARGE_ELEMS / 1024 } });
    folder = cairn_sample_snapshot(scratch, &spec, 7);
}

/* It is sent when the folder is there: some of it is written then, or all. */
static void interrupt(void)
{
    char log[CAIRN_SCRATCH_BYTES + 16];
    snprintf(log, sizeof log, "%s/log", scratch);
    const char *const argv[] = {
        CAIRN_BIN_DIR "/cairn", "snapshot", "export", "--path", folder, "--to", to, NULL
    };
    const pid_t pid = cluster_spawn(argv, log);
    for (int i = 0; i < 30000 && !is_there(temp) && !is_there(to); i++) usleep(1000);
    ck_assert_int_eq(kill(pid, SIGINT), 0);
    const int status = cluster_wait(pid, CLUSTER_WAIT_MS);
    ck_assert(!is_there(temp));
    ck_assert_msg(status == (is_there(to) ? 0 : 130), "%d", status);
    cairn_scratch_remove(to); // of a slow test
}

TEST(an_interrupt_leaves_nothing_and_memory_is_bounded_whatever_the_models_size)
{
    struct rusage usage;
    interrupt();
    EXPORT("--format torch");
    exported();
    cairn_scratch_remove(to);
    EXPORT("");
    exported();
    ck_assert_int_eq(getrusage(RUSAGE_CHILDREN, &usage), 0);
    ck_assert_msg(usage.ru_maxrss < RESIDENT_KIB_MAX, "%ld KiB of %u KiB", usage.ru_maxrss,
                  (unsigned)(LARGE_ELEMS * sizeof(float) >> 10));
    struct weights weights = open_weights(to);
    float last;
    const struct weight *weight = weights_find(&weights, "large");
    ck_assert_int_eq(weights_read(&weights, weight, LARGE_ELEMS - 1, 1, &last, NULL), CAIRN_OK);
    const uint32_t bits = cairn_sample_value(0, CAIRN_PLANE_PARAM, LARGE_ELEMS - 1);
    ck_assert_mem_eq(&bits, &last, sizeof bits);
    weights_close(&weights);
}

SUITE(110, set_up_large, tear_down);
