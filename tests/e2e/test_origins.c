/* Initial state that nobody puts, over real daemons: made from a seed or read from weights, it has the bits
 * of the same values put by a trainer, on any number of shards; and a snapshot of it goes on. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "proto/spec/spec.h"
#include "tests/support/suite.h"
#include "tests/support/trainer.h"
#include "tests/support/weights_sample.h"
#include "tests/support/init.h"

enum { TENSORS = 7, WAIT_MS = 20000 };

/* Shapes that divide nothing, a scalar, an empty one, and a row wider than a leaf. */
static const struct tensor {
    const char *name, *dtype; /* in the files */
    cairn_kind kind;
    cairn_dtype wire;
    struct shape shape;
    struct cairn_init init;
} model[TENSORS] = {
    { "embed",
      "BF16",
      CAIRN_TRAINED,
      CAIRN_BF16,
      { 2, { 997, 61 } },
      { CAIRN_INIT_NORMAL, 0, 0.02, 7 } },
    { "empty", "F32", CAIRN_TRAINED, CAIRN_F32, { 2, { 0, 7 } }, { CAIRN_INIT_ZEROS, 0, 0, 0 } },
    { "fixed",
      "F32",
      CAIRN_FROZEN,
      CAIRN_F32,
      { 1, { 5000 } },
      { CAIRN_INIT_CONSTANT, 0.3, 0, 0 } },
    { "mlp.weight",
      "F16",
      CAIRN_TRAINED,
      CAIRN_F32,
      { 2, { 129, 257 } },
      { CAIRN_INIT_UNIFORM, -0.1, 0.1, 7 } },
    { "norm", "F64", CAIRN_TRAINED, CAIRN_F32, { 1, { 300 } }, { CAIRN_INIT_ONES, 0, 0, 0 } },
    { "scale", "F32", CAIRN_TRAINED, CAIRN_F32, { 0, { 0 } }, { CAIRN_INIT_NORMAL, 1, 2, 8 } },
    { "wide",
      "F32",
      CAIRN_TRAINED,
      CAIRN_BF16,
      { 2, { 3, 20011 } },
      { CAIRN_INIT_NORMAL, 0, 1, 9 } },
};

static struct cairn_tensor tensors[TENSORS];
static const struct cairn_group adamw = CAIRN_GROUP_INIT;
static char models[CAIRN_SCRATCH_BYTES], import_folders[CAIRN_SCRATCH_BYTES + 32];

/* ---- the model and its files ---- */

static size_t elems_of(int t)
{
    return (size_t)geometry_of(&model[t].shape).elems;
}

static struct cairn_job_spec spec_of(uint32_t rank, bool seeded)
{
    for (int t = 0; t < TENSORS; t++) {
        tensors[t] = (struct cairn_tensor) { .struct_size = sizeof tensors[t],
                                             .name = model[t].name,
                                             .kind = model[t].kind,
                                             .wire = model[t].wire,
                                             .rank = model[t].shape.rank };
        memcpy(tensors[t].shape, model[t].shape.dim, sizeof tensors[t].shape);
        if (seeded) tensors[t].init = model[t].init;
    }
    return (struct cairn_job_spec) { .struct_size = sizeof(struct cairn_job_spec),
                                     .tensors = tensors,
                                     .tensor_count = TENSORS,
                                     .groups = &adamw,
                                     .group_count = 1,
                                     .rank = rank };
}

/* What the file has of an element: a small number that every dtype holds exactly. */
static float filed(int t, size_t elem)
{
    return (float)((int)((elem * 37 + (size_t)t * 11) % 251) - 125) / 64.0f;
}

static void write_elem(const char *dtype, float value, uint8_t *out)
{
    uint32_t bits;
    const double wide = value;
    memcpy(&bits, &value, sizeof bits);
    const uint16_t bf16 = (uint16_t)(bits >> 16);
    const uint32_t exponent = bits >> 23 & 0xff;
    const uint16_t f16 = (uint16_t)(value == 0 ? 0
                                               : (bits >> 16 & 0x8000) | (exponent - 112) << 10 |
                                                     (bits >> 13 & 0x3ff));
    if (strcmp(dtype, "F64") == 0)
        memcpy(out, &wide, sizeof wide);
    else if (strcmp(dtype, "F32") == 0)
        memcpy(out, &value, sizeof value);
    else
        memcpy(out, strcmp(dtype, "F16") == 0 ? &f16 : &bf16, 2);
}

static struct sample_weight weight_of(int t, const char *key)
{
    const size_t elems = elems_of(t);
    const size_t elem_bytes = model[t].dtype[0] == 'B' ? 2 : (size_t)atoi(model[t].dtype + 1) / 8;
    uint8_t *bytes = malloc(elems * elem_bytes + 1);
    for (size_t i = 0; i < elems; i++)
        write_elem(model[t].dtype, filed(t, i), bytes + i * elem_bytes);
    struct sample_weight weight = { .key = key,
                                    .dtype = model[t].dtype,
                                    .rank = model[t].shape.rank,
                                    .bytes = bytes,
                                    .byte_count = elems * elem_bytes };
    for (uint32_t d = 0; d < weight.rank; d++) weight.shape[d] = model[t].shape.dim[d];
    return weight;
}

/* MODELS/base: a folder as on the Hub, in two files, keys behind "model."; `without` is left out. */
static void write_folder(const char *without)
{
    char path[256];
    static char keys[TENSORS][64];
    const char *mapped[TENSORS], *files[TENSORS];
    struct sample_weight part[2][TENSORS];
    size_t counts[2] = { 0, 0 }, count = 0;
    snprintf(path, sizeof path, "%s/base", models);
    mkdir(path, 0755);
    for (int t = 0; t < TENSORS; t++) {
        if (strcmp(model[t].name, without) == 0) continue;
        const int file = t % 2;
        snprintf(keys[t], sizeof keys[t], "model.%s", model[t].name);
        mapped[count] = keys[t];
        files[count++] = file == 0 ? "model-1.safetensors" : "model-2.safetensors";
        part[file][counts[file]++] = weight_of(t, keys[t]);
    }
    for (int file = 0; file < 2; file++) {
        snprintf(path, sizeof path, "%s/base/model-%d.safetensors", models, file + 1);
        sample_weights_write(path, part[file], counts[file]);
        for (size_t i = 0; i < counts[file]; i++) free((void *)(uintptr_t)part[file][i].bytes);
    }
    snprintf(path, sizeof path, "%s/base/model.safetensors.index.json", models);
    sample_index_write(path, mapped, files, count);
}

static void make_models(void)
{
    cairn_scratch_make(models);
    snprintf(import_folders, sizeof import_folders, "import.folders=%s", models);
}

static void remove_models(void)
{
    cairn_scratch_remove(models);
}

/* ---- a cluster and a worker ---- */

static void start(struct cluster *cluster, int shards, const char *snapshots_path)
{
    static const char *settings[] = { import_folders, NULL };
    cluster_start(
        cluster, shards,
        &(struct cluster_options) { .shard_set = settings, .snapshots_path = snapshots_path });
}

static void check_root(const struct cluster *cluster, char root[65])
{
    if (root[0] == '\0')
        trainer_digest(cluster, "model", root);
    else
        trainer_expect_digest(cluster, "model", root);
}

/* The root of a job that nobody puts. */
static void check_made(int shards, const struct cairn_job_spec *spec, char root[65])
{
    struct cluster cluster;
    start(&cluster, shards, NULL);
    cairn *session = trainer_session(cluster.address, NULL);
    (void)trainer_ready(session, "model", spec);
    check_root(&cluster, root);
    cairn_close(session);
    cluster_stop(&cluster);
}

static float seeded(int t, size_t elem)
{
    float value;
    init_fill(&model[t].init, model[t].name, elem, 1, &value);
    return value;
}

/* The root of the same job, put by rank 0. */
static void check_put(float (*value)(int t, size_t elem), char root[65])
{
    struct cluster cluster;
    const struct cairn_job_spec spec = spec_of(0, false);
    start(&cluster, 2, NULL);
    cairn *session = trainer_session(cluster.address, NULL);
    cairn_job *job = trainer_open(session, "model", &spec);
    for (int t = 0; t < TENSORS; t++) {
        const size_t elems = elems_of(t);
        float *values = malloc((elems + 1) * sizeof *values);
        const struct cairn_mem mem = trainer_mem(values, CAIRN_F32);
        cairn_op *op;
        for (size_t i = 0; i < elems; i++) values[i] = value(t, i);
        good(cairn_put(job, model[t].name, "param", NULL, &mem, &op));
        good(cairn_wait(op, WAIT_MS));
        free(values);
    }
    good(cairn_init_done(job, NULL, WAIT_MS));
    check_root(&cluster, root);
    cairn_close(session);
    cluster_stop(&cluster);
}

/* ---- the tests ---- */

TEST(a_seed_gives_what_a_trainer_would_have_put_on_any_number_of_shards)
{
    static const int counts[] = { 1, 2, 3, 5 };
    char root[65] = "";
    const struct cairn_job_spec spec = spec_of(1, true); // no source is needed: rank 1 is alone
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) check_made(counts[i], &spec, root);
    check_put(seeded, root);
}

TEST(weights_give_what_a_trainer_would_have_put_on_any_number_of_shards)
{
    static const int counts[] = { 1, 2, 3, 5 };
    char root[65] = "", path[256];
    struct cairn_job_spec spec = spec_of(0, false);
    snprintf(path, sizeof path, "%s/base", models);
    write_folder("");
    spec.init_from = path;
    spec.init_prefix = "model.";
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) check_made(counts[i], &spec, root);
    check_put(filed, root);
}

TEST(weights_that_do_not_fit_are_refused_by_name_and_the_cluster_goes_on)
{
    struct cluster cluster;
    char path[256], root[65] = "";
    float zero = 0;
    const struct cairn_mem mem = trainer_mem(&zero, CAIRN_F32);
    cairn_job *job;
    struct cairn_job_spec spec = spec_of(0, false);
    write_folder("scale");
    snprintf(path, sizeof path, "%s/base", models);
    start(&cluster, 3, NULL);
    cairn *session = trainer_session(cluster.address, NULL);
    spec.init_from = path;
    fails(cairn_job_open(session, "model", &spec, CAIRN_WORKER, WAIT_MS, &job), CAIRN_ERR_MISMATCH,
          "in 6 tensors"); // without the prefix: all
    ck_assert_ptr_nonnull(strstr(cairn_error(), "mlp.weight is missing there"));
    spec.init_prefix = "model.";
    fails(cairn_job_open(session, "model", &spec, CAIRN_WORKER, WAIT_MS, &job), CAIRN_ERR_MISMATCH,
          "scale is missing there");
    spec.init_from = "/etc";
    fails(cairn_job_open(session, "model", &spec, CAIRN_WORKER, WAIT_MS, &job), CAIRN_ERR_REFUSED,
          "import.folders");
    spec.init_from = path;
    for (int t = 0; t < TENSORS; t++) // only the one that the files lack would need it
        if (strcmp(model[t].name, "scale") == 0) tensors[t].init = model[t].init;
    job = trainer_open(session, "model", &spec);
    ck_assert_int_eq(cairn_put(job, "scale", "param", NULL, &mem, NULL), CAIRN_ERR_EXISTS);
    good(cairn_init_done(job, NULL, WAIT_MS));
    check_root(&cluster, root);
    cluster_kill_coordinator(&cluster);
    cluster_restart_coordinator(&cluster);
    check_root(&cluster, root);
    cairn_close(session);
    cluster_stop(&cluster);
}

/* One update with gradients of ones. */
static uint64_t train_a_step(cairn_job *job)
{
    static float ones[129 * 257 * 2];
    for (size_t i = 0; i < sizeof ones / sizeof *ones; i++) ones[i] = 1;
    const struct cairn_round round = trainer_begin(job);
    for (int t = 0; t < TENSORS; t++) {
        if (model[t].kind != CAIRN_TRAINED) continue;
        trainer_push(job, &round, model[t].name, ones);
    }
    const struct cairn_result result = trainer_commit(job, &round, 1);
    return result.step;
}

TEST(a_snapshot_of_it_is_restored_and_the_same_spec_goes_on)
{
    struct cluster cluster, other;
    char path[256], id[64], root[65] = "";
    struct cairn_job_spec spec = spec_of(0, true);
    write_folder("norm");
    snprintf(path, sizeof path, "%s/base", models);
    spec.init_from = path;
    spec.init_prefix = "model.";
    start(&cluster, 3, NULL);
    cairn *session = trainer_session(cluster.address, NULL);
    cairn_job *job = trainer_ready(session, "model", &spec);
    ck_assert_uint_eq(train_a_step(job), 1);
    good(cairn_snapshot(job, CAIRN_SNAPSHOT_WAIT, WAIT_MS, id));
    check_root(&cluster, root);
    cairn_close(session);

    start(&other, 2, cluster.snapshots_path);
    cluster_says(&other, 0, "", "snapshot restore model %s --yes --allow-untrusted", id);
    check_root(&other, root);
    session = trainer_session(other.address, NULL);
    job = trainer_ready(session, "model", &spec);
    ck_assert_uint_eq(train_a_step(job), 2);
    cairn_close(session);
    cluster_stop(&other);
    cluster_stop(&cluster);
}

SUITE(60, make_models, remove_models);
