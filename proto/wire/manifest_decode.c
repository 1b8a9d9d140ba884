/* A manifest out of JSON: strict, from storage that anyone may have written to. */
#include <inttypes.h>
#include <jansson.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "proto/wire/manifest.h"
#include "proto/wire/optimizer.h"
#include "proto/wire/snapshot_file.h"

static cairn_status corrupt(struct cairn_sentence *why, const char *where, const char *what)
{
    return cairn_fail(why, CAIRN_ERR_CORRUPT, "manifest: %s: %s", where, what);
}

static bool fits_u32(json_int_t value)
{
    return value >= 0 && value <= UINT32_MAX;
}

/* Exactly 2 * count hex digits. */
static bool hex_bytes(const char *hex, uint8_t *bytes, size_t count)
{
    size_t got = 0;
    return strlen(hex) == 2 * count &&
           sodium_hex2bin(bytes, count, hex, 2 * count, NULL, &got, NULL) == 0 && got == count;
}

static int dtype_of(const char *name)
{
    for (int dtype = CAIRN_F32; dtype <= CAIRN_F64; dtype++) {
        if (strcmp(cairn_dtype_name(dtype), name) == 0) return dtype;
    }
    return 0; // cairn_spec_check says the sentence
}

static cairn_status read_shape(json_t *list, const char *tensor, struct cairn_shape *shape,
                               struct cairn_sentence *why)
{
    if (!json_is_array(list) || json_array_size(list) > CAIRN_RANK_MAX) {
        return corrupt(why, tensor, "its shape is not a list of at most 8 numbers");
    }
    shape->rank = (uint32_t)json_array_size(list);
    for (uint32_t d = 0; d < shape->rank; d++) {
        const json_t *dim = json_array_get(list, d);
        if (!json_is_integer(dim) || json_integer_value(dim) < 0) {
            return corrupt(why, tensor, "its shape has something else than numbers from 0");
        }
        shape->dim[d] = (uint64_t)json_integer_value(dim);
    }
    return CAIRN_OK;
}

static cairn_status read_tensor(json_t *json, struct cairn_job_spec_data *spec,
                                struct cairn_sentence *why)
{
    const char *name, *unit, *group, *kind, *wire, *reduce, *master;
    json_t *shape;
    int whole;
    json_error_t error;
    if (json_unpack_ex(json, &error, JSON_STRICT, "{s:s, s:s, s:s, s:s, s:s, s:s, s:s, s:o, s:b}",
                       "name", &name, "unit", &unit, "group", &group, "kind", &kind, "wire", &wire,
                       "reduce", &reduce, "master", &master, "shape", &shape, "whole",
                       &whole) != 0) {
        return corrupt(why, "a tensor", error.text);
    }
    struct cairn_tensor_spec t = {
        .name = (char *)(uintptr_t)name, // add copies them
        .unit = (char *)(uintptr_t)unit,
        .group = (char *)(uintptr_t)group,
        .kind = strcmp(kind, "trained") == 0  ? CAIRN_TRAINED
                : strcmp(kind, "frozen") == 0 ? CAIRN_FROZEN
                                              : (cairn_kind)0,
        .wire = (cairn_dtype)dtype_of(wire),
        .reduce = (cairn_dtype)dtype_of(reduce),
        .master = (cairn_dtype)dtype_of(master),
        .whole = whole != 0,
    };
    cairn_status status = read_shape(shape, name, &t.shape, why);
    if (status == CAIRN_OK) status = cairn_spec_add_tensor(spec, &t);
    return status == CAIRN_ERR_INVALID ? corrupt(why, "a tensor", "too many, or a name too long")
                                       : status;
}

static cairn_status read_group(json_t *json, struct cairn_job_spec_data *spec,
                               struct cairn_sentence *why)
{
    const char *name, *optimizer;
    struct cairn_group_spec g = cairn_group_default();
    int nesterov;
    json_error_t error;
    if (json_unpack_ex(json, &error, JSON_STRICT, "{s:s, s:s, s:F, s:F, s:F, s:F, s:F, s:F, s:b}",
                       "name", &name, "optimizer", &optimizer, "lr", &g.lr, "beta1", &g.beta1,
                       "beta2", &g.beta2, "eps", &g.eps, "weight_decay", &g.weight_decay,
                       "momentum", &g.momentum, "nesterov", &nesterov) != 0) {
        return corrupt(why, "a group", error.text);
    }
    g.name = (char *)(uintptr_t)name; // add copies them
    g.optimizer = (char *)(uintptr_t)optimizer;
    g.nesterov = nesterov != 0;
    cairn_status status = cairn_spec_add_group(spec, &g);
    return status == CAIRN_ERR_INVALID ? corrupt(why, "a group", "too many, or a name too long")
                                       : status;
}

static cairn_status read_lists(json_t *groups, json_t *tensors, struct cairn_job_spec_data *spec,
                               struct cairn_sentence *why)
{
    if (!json_is_array(groups) || !json_is_array(tensors)) {
        return corrupt(why, "spec", "groups or tensors are not lists");
    }
    cairn_status status = CAIRN_OK;
    for (size_t i = 0; i < json_array_size(groups) && status == CAIRN_OK; i++) {
        status = read_group(json_array_get(groups, i), spec, why);
    }
    for (size_t i = 0; i < json_array_size(tensors) && status == CAIRN_OK; i++) {
        status = read_tensor(json_array_get(tensors, i), spec, why);
        if (status != CAIRN_OK || i == 0) continue;
        if (strcmp(spec->tensors[i - 1].name, spec->tensors[i].name) >= 0) {
            status = corrupt(why, "spec", "the tensors are not sorted by name");
        }
    }
    return status;
}

static cairn_status judge_spec(const struct cairn_job_spec_data *spec, struct cairn_sentence *why)
{
    struct cairn_sentence reason = { "" };
    cairn_status status = cairn_spec_check(spec, cairn_optimizer_names(), &reason);
    if (status == CAIRN_ERR_NO_MEMORY) return status;
    return status == CAIRN_OK ? CAIRN_OK : corrupt(why, "spec", reason.text);
}

static cairn_status read_spec(json_t *json, struct cairn_job_spec_data *spec,
                              struct cairn_sentence *why)
{
    const char *name, *on_nonfinite;
    json_int_t stage, workers_min, chunk_leaves, spread, window, revision;
    json_t *groups, *tensors;
    json_error_t error;
    if (json_unpack_ex(json, &error, JSON_STRICT,
                       "{s:s, s:F, s:F, s:s, s:I, s:I, s:I, s:I, s:I, s:I, s:o, s:o}", "name",
                       &name, "clip_norm", &spec->clip_norm, "loss_scale", &spec->loss_scale,
                       "on_nonfinite", &on_nonfinite, "stage", &stage, "workers_min", &workers_min,
                       "chunk_leaves", &chunk_leaves, "spread", &spread, "window", &window,
                       "revision", &revision, "groups", &groups, "tensors", &tensors) != 0) {
        return corrupt(why, "spec", error.text);
    }
    if (!fits_u32(stage) || !fits_u32(workers_min) || !fits_u32(chunk_leaves) ||
        !fits_u32(spread) || !fits_u32(window) || revision < 0) {
        return corrupt(why, "spec", "a number is out of range");
    }
    spec->stage = (uint32_t)stage;
    spec->workers_min = (uint32_t)workers_min;
    spec->chunk_leaves = (uint32_t)chunk_leaves;
    spec->spread = (uint32_t)spread;
    spec->window = (uint32_t)window;
    spec->revision = (uint64_t)revision;
    spec->on_nonfinite = strcmp(on_nonfinite, "skip") == 0   ? CAIRN_NONFINITE_SKIP
                         : strcmp(on_nonfinite, "fail") == 0 ? CAIRN_NONFINITE_FAIL
                                                             : (cairn_nonfinite)0;
    cairn_status status = cairn_spec_set_name(spec, name);
    if (status == CAIRN_OK) status = read_lists(groups, tensors, spec, why);
    if (status != CAIRN_OK) return status;
    cairn_spec_canonicalize(spec); // the groups; the tensors are known to be sorted
    return judge_spec(spec, why);
}

static cairn_status read_file(json_t *json, struct cairn_manifest *m, struct cairn_sentence *why)
{
    const char *path, *hex;
    json_int_t bytes;
    uint8_t xxh3_128[16];
    json_error_t error;
    if (json_unpack_ex(json, &error, JSON_STRICT, "{s:s, s:I, s:s}", "path", &path, "bytes", &bytes,
                       "xxh3_128", &hex) != 0) {
        return corrupt(why, "a file", error.text);
    }
    if (!cairn_snapshot_path_ok(path))
        return corrupt(why, "a file", "its path is not one of Cairn's");
    if (bytes < 0) return corrupt(why, path, "its size is below 0");
    if (!hex_bytes(hex, xxh3_128, sizeof xxh3_128)) {
        return corrupt(why, path, "its xxh3_128 is not 32 hex digits");
    }
    if (m->file_count > 0 && strcmp(m->files[m->file_count - 1].path, path) >= 0) {
        return corrupt(why, path, "the files are not sorted by path, or twice the same");
    }
    cairn_status status = cairn_manifest_add_file(m, path, (uint64_t)bytes, xxh3_128);
    return status == CAIRN_ERR_INVALID ? corrupt(why, path, "more than 1,000,000 files") : status;
}

static cairn_status read_created(const char *text, struct cairn_manifest *m,
                                 struct cairn_sentence *why)
{
    struct tm utc;
    memset(&utc, 0, sizeof utc);
    const char *end = strlen(text) == 20 ? strptime(text, "%Y-%m-%dT%H:%M:%SZ", &utc) : NULL;
    const time_t seconds = end != NULL && *end == '\0' ? timegm(&utc) : -1;
    if (seconds < 0) return corrupt(why, "created", "not a time like 2026-11-21T03:04:05Z");
    m->created_unix_s = (uint64_t)seconds;
    return CAIRN_OK;
}

static cairn_status read_payload(const char *hex, struct cairn_manifest *m,
                                 struct cairn_sentence *why)
{
    const size_t count = strlen(hex) / 2;
    if (count > CAIRN_MANIFEST_PAYLOAD_MAX) return corrupt(why, "payload", "over 1 MiB");
    m->payload = malloc(count + 1);
    if (m->payload == NULL) return CAIRN_ERR_NO_MEMORY;
    m->payload_bytes = count;
    return hex_bytes(hex, m->payload, count) ? CAIRN_OK : corrupt(why, "payload", "not hex digits");
}

/* What a reader of another version looks at first: before the rest is judged by this one's rules.
 * */
static cairn_status read_version(const json_t *root, struct cairn_sentence *why)
{
    const char *format = json_string_value(json_object_get(root, "format"));
    const json_int_t version = json_integer_value(json_object_get(root, "version"));
    if (format == NULL || strcmp(format, "cairn snapshot") != 0) {
        return corrupt(why, "format", "not \"cairn snapshot\"");
    }
    if (version == CAIRN_MANIFEST_VERSION) return CAIRN_OK;
    return cairn_fail(why, CAIRN_ERR_VERSION,
                      "manifest: its version is %" JSON_INTEGER_FORMAT ", this Cairn "
                      "reads %d; use the Cairn that wrote it",
                      version, CAIRN_MANIFEST_VERSION);
}

static cairn_status read_root(json_t *root, struct cairn_manifest *m, struct cairn_sentence *why)
{
    const char *format, *cluster, *created, *payload, *content_root;
    json_int_t version, generation, step, epoch, shards;
    json_t *spec, *files;
    json_error_t error;
    cairn_status status = read_version(root, why);
    if (status != CAIRN_OK) return status;
    if (json_unpack_ex(root, &error, JSON_STRICT,
                       "{s:s, s:I, s:s, s:s, s:I, s:I, s:I, s:I, s:F, s:s, s:s, s:o, s:o}",
                       "format", &format, "version", &version, "cluster", &cluster, "created",
                       &created, "generation", &generation, "step", &step, "epoch", &epoch,
                       "shards", &shards, "loss_scale", &m->loss_scale, "payload", &payload,
                       "content_root", &content_root, "spec", &spec, "files", &files) != 0) {
        return corrupt(why, "the top", error.text);
    }
    if (generation < 0 || step < 0 || epoch < 0 || !fits_u32(shards)) {
        return corrupt(why, "the top", "a number is out of range");
    }
    m->generation = (uint64_t)generation;
    m->step = (uint64_t)step;
    m->epoch = (uint64_t)epoch;
    m->shard_count = (uint32_t)shards;
    if (!hex_bytes(content_root, m->content_root, sizeof m->content_root)) {
        return corrupt(why, "content_root", "not 64 hex digits");
    }
    m->cluster = strdup(cluster);
    if (m->cluster == NULL) return CAIRN_ERR_NO_MEMORY;
    if (!json_is_array(files)) return corrupt(why, "files", "not a list");
    status = read_created(created, m, why);
    if (status == CAIRN_OK) status = read_payload(payload, m, why);
    if (status == CAIRN_OK) status = read_spec(spec, &m->spec, why);
    for (size_t i = 0; i < json_array_size(files) && status == CAIRN_OK; i++) {
        status = read_file(json_array_get(files, i), m, why);
    }
    return status;
}

cairn_status cairn_manifest_decode(const char *text, size_t text_bytes, struct cairn_manifest *out,
                                   struct cairn_sentence *why)
{
    if (text_bytes > CAIRN_MANIFEST_BYTES_MAX) return corrupt(why, "the file", "too large");
    json_error_t error;
    json_t *root = json_loadb(text, text_bytes, JSON_REJECT_DUPLICATES, &error);
    if (root == NULL) {
        return cairn_fail(why, CAIRN_ERR_CORRUPT, "manifest: not JSON: %s (line %d); cut off?",
                          error.text, error.line);
    }
    struct cairn_manifest m;
    cairn_manifest_init(&m);
    cairn_status status = read_root(root, &m, why);
    json_decref(root);
    if (status != CAIRN_OK) {
        cairn_manifest_release(&m);
        return status;
    }
    *out = m;
    return CAIRN_OK;
}
