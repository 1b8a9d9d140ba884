/* Decodes a manifest from JSON. It is strict, because anyone may have written to the storage. */
#include <inttypes.h>
#include <jansson.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "proto/safetensors/json_text.h"
#include "proto/snapshot/snapshot.h"
#include "proto/spec/spec.h"

static cairn_status corrupt(struct sentence *why, const char *where, const char *what)
{
    return fail_with(why, CAIRN_ERR_CORRUPT, "%s: %s", where, what);
}

static bool fits_u32(json_int_t value)
{
    return value >= 0 && value <= UINT32_MAX;
}

/* Decodes exactly 2 * count hex digits. */
static bool hex_bytes(const char *hex, uint8_t *bytes, size_t count)
{
    size_t got = 0;
    return strlen(hex) == 2 * count &&
           sodium_hex2bin(bytes, count, hex, 2 * count, NULL, &got, NULL) == 0 && got == count;
}

static int dtype_of(const char *name)
{
    for (int dtype = CAIRN_F32; dtype <= CAIRN_U8; dtype++) {
        if (strcmp(dtype_label(dtype), name) == 0) return dtype;
    }
    return 0; // spec_check then refuses the tensor, and says why
}

static cairn_status read_numbers(json_t *list, const char *tensor, uint32_t *rank,
                                 uint64_t numbers[CAIRN_RANK_MAX], struct sentence *why)
{
    if (!json_is_array(list) || json_array_size(list) > CAIRN_RANK_MAX) {
        return corrupt(why, tensor, "its shape or box is not a list of at most 8 numbers");
    }
    *rank = (uint32_t)json_array_size(list);
    for (uint32_t d = 0; d < *rank; d++) {
        const json_t *dim = json_array_get(list, d);
        if (!json_is_integer(dim) || json_integer_value(dim) < 0) {
            return corrupt(why, tensor, "its shape or box has entries that are not numbers from 0");
        }
        numbers[d] = (uint64_t)json_integer_value(dim);
    }
    return CAIRN_OK;
}

static cairn_status read_box(json_t *list, const char *tensor, struct cairn_box *box,
                             struct sentence *why)
{
    uint32_t rank = 0;
    cairn_status status = read_numbers(json_array_get(list, 0), tensor, &box->rank, box->start,
                                       why);
    if (status == CAIRN_OK)
        status = read_numbers(json_array_get(list, 1), tensor, &rank, box->extent, why);
    if (status == CAIRN_OK && (rank != box->rank || json_array_size(list) != 2))
        status = corrupt(why, tensor, "its alias_box is not a box");
    return status;
}

static cairn_status read_init(json_t *json, const char *tensor, struct cairn_init *init,
                              struct sentence *why)
{
    const char *kind;
    json_int_t seed;
    json_error_t error;
    if (json_unpack_ex(json, &error, JSON_STRICT, "{s:s, s:F, s:F, s:I}", "kind", &kind, "a",
                       &init->a, "b", &init->b, "seed", &seed) != 0) {
        return corrupt(why, tensor, error.text);
    }
    init->kind = (cairn_init_kind)capability_value(CAIRN_CAPABILITY_INIT, kind);
    init->seed = (uint64_t)seed;
    return CAIRN_OK;
}

static cairn_status read_tensor(json_t *json, struct job_spec_data *spec, struct sentence *why)
{
    const char *name, *unit, *group, *kind, *wire, *reduce, *master;
    const char *alias_of = NULL;
    json_t *shape, *alias_box = NULL, *init = NULL;
    struct cairn_box box;
    int whole, frozen = 0;
    json_int_t order = 0;
    json_error_t error;
    if (json_unpack_ex(json, &error, JSON_STRICT,
                       "{s:s, s:s, s:s, s:s, s:s, s:s, s:s, s:o, s:b, s?b, s?s, s?o, s?o, s?I}",
                       "name", &name, "unit", &unit, "group", &group, "kind", &kind, "wire", &wire,
                       "reduce", &reduce, "master", &master, "shape", &shape, "whole", &whole,
                       "frozen", &frozen, "alias_of", &alias_of, "alias_box", &alias_box, "init",
                       &init, "order", &order) != 0) {
        return corrupt(why, "a tensor", error.text);
    }
    if (order < 0 || order > CAIRN_SPEC_TENSORS_MAX)
        return corrupt(why, name, "its order is no place among the tensors");
    struct tensor_spec t = {
        .name = wire_text(name), // spec_add_tensor copies the strings
        .unit = wire_text(unit),
        .group = wire_text(group),
        .alias_of = wire_text(alias_of),
        .alias_box = alias_box != NULL ? &box : NULL,
        .kind = (cairn_kind)capability_value(CAIRN_CAPABILITY_KIND, kind),
        .wire = (cairn_dtype)dtype_of(wire),
        .reduce = (cairn_dtype)dtype_of(reduce),
        .master = (cairn_dtype)dtype_of(master),
        .whole = whole != 0,
        .frozen = frozen != 0,
        .order = (uint32_t)order,
    };
    cairn_status status = read_numbers(shape, name, &t.shape.rank, t.shape.dim, why);
    if (status == CAIRN_OK && alias_box != NULL) status = read_box(alias_box, name, &box, why);
    if (status == CAIRN_OK && init != NULL) status = read_init(init, name, &t.init, why);
    if (status == CAIRN_OK) status = spec_add_tensor(spec, &t);
    return status == CAIRN_ERR_INVALID ? corrupt(why, "a tensor", "too many, or a name too long")
                                       : status;
}

/* Returns NULL if the value is right, otherwise a text that says how it is wrong. */
static const char *take_value(const struct spec_field *field, const json_t *value, void *to)
{
    json_int_t number = json_integer_value(value);
    switch (field->kind) {
    case CAIRN_SPEC_REAL:
    case CAIRN_SPEC_FRACTION:
        if (!json_is_number(value)) return "not a number";
        spec_field_set_number(field, to, json_number_value(value));
        return NULL;
    case CAIRN_SPEC_COUNT:
        if (!json_is_integer(value)) return "not a whole number";
        if (number < 0 || (field->bytes == sizeof(uint32_t) && number > UINT32_MAX))
            return "out of range";
        break;
    case CAIRN_SPEC_FLAG:
        if (!json_is_boolean(value)) return "neither true nor false";
        number = json_is_true(value);
        break;
    case CAIRN_SPEC_CHOICE:
        if (!json_is_string(value)) return "not a name";
        number = capability_value(field->capability, json_string_value(value)); // -1: no such name
    }
    spec_field_set_bits(field, to, (uint64_t)number);
    return NULL;
}

/* Moves all scalars of the table out of the object, into `to`. If a key is missing, the field keeps its
 * value. Checks that the kinds are right and that the numbers fit; spec_check.c checks the rest.
 * CAIRN_ERR_CORRUPT: `why` names `where`, and tells what is wrong. */
static cairn_status spec_fields_of_json(json_t *object, const struct spec_table *table,
                                        const char *where, void *to, struct sentence *why)
{
    for (size_t i = 0; i < table->count; i++) {
        const struct spec_field *field = &table->fields[i];
        const json_t *value = json_object_get(object, field->name);
        if (value == NULL && field->part != CAIRN_SPEC_FIRST) continue;
        const char *wrong = value != NULL ? take_value(field, value, to) : "missing";
        if (wrong != NULL)
            return fail_with(why, CAIRN_ERR_CORRUPT, "%s: %s is %s", where, field->name, wrong);
        json_object_del(object, field->name);
    }
    return CAIRN_OK;
}

/* Reads a schedule. Its points are stored in `points`, [CAIRN_SCHEDULE_POINTS_MAX]. */
static cairn_status read_schedule(json_t *json, struct schedule *s,
                                  struct cairn_schedule_point *points, struct sentence *why)
{
    const char *kind;
    json_t *list;
    json_error_t error;
    CAIRN_TRY(spec_fields_of_json(json, &schedule_fields, "a schedule", s, why));
    if (json_unpack_ex(json, &error, JSON_STRICT, "{s:s, s:o}", "kind", &kind, "points", &list) !=
        0) {
        return corrupt(why, "a schedule", error.text);
    }
    if (!json_is_array(list) || json_array_size(list) > CAIRN_SCHEDULE_POINTS_MAX)
        return corrupt(why, "a schedule", "its points are not a list of at most 1024");
    s->kind = (cairn_schedule_kind)schedule_number(kind);
    s->points = points;
    s->point_count = json_array_size(list);
    for (size_t i = 0; i < s->point_count; i++) {
        json_int_t step;
        if (json_unpack_ex(json_array_get(list, i), &error, JSON_STRICT, "[I, F]", &step,
                           &points[i].factor) != 0 ||
            step < 0) {
            return corrupt(why, "a schedule", "a point is not [step, factor]");
        }
        points[i].step = (uint64_t)step;
    }
    return CAIRN_OK;
}

static cairn_status read_group(json_t *json, struct job_spec_data *spec, struct sentence *why)
{
    const char *name, *optimizer;
    struct group_spec g = group_default();
    int frozen = 0;
    json_t *schedule = NULL;
    struct cairn_schedule_point points[CAIRN_SCHEDULE_POINTS_MAX];
    json_error_t error;
    cairn_status status = spec_fields_of_json(json, &group_fields, "a group", &g, why);
    if (status != CAIRN_OK) return status;
    if (json_unpack_ex(json, &error, JSON_STRICT, "{s:s, s:s, s?b, s?o}", "name", &name,
                       "optimizer", &optimizer, "frozen", &frozen, "schedule", &schedule) != 0) {
        return corrupt(why, "a group", error.text);
    }
    if (schedule != NULL) status = read_schedule(schedule, &g.schedule, points, why);
    if (status != CAIRN_OK) return status;
    g.frozen = frozen != 0;
    g.name = wire_text(name); // spec_add_group copies the strings
    g.optimizer = wire_text(optimizer);
    status = spec_add_group(spec, &g);
    return status == CAIRN_ERR_INVALID ? corrupt(why, "a group", "too many, or a name too long")
                                       : status;
}

static cairn_status read_lists(json_t *groups, json_t *tensors, struct job_spec_data *spec,
                               struct sentence *why)
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

static cairn_status judge_spec(const struct job_spec_data *spec, struct sentence *why)
{
    struct sentence reason = { "" };
    cairn_status status = spec_check(spec, optimizer_names(), &reason);
    if (status == CAIRN_ERR_NO_MEMORY) return status;
    return status == CAIRN_OK ? CAIRN_OK : corrupt(why, "spec", reason.text);
}

static cairn_status read_former(json_t *list, struct job_spec_data *spec, struct sentence *why)
{
    if (!json_is_array(list) || json_array_size(list) > CAIRN_SPEC_FORMER_MAX)
        return corrupt(why, "former", "not a list of at most 64");
    cairn_status status = CAIRN_OK;
    for (size_t i = 0; i < json_array_size(list) && status == CAIRN_OK; i++) {
        const char *hex = json_string_value(json_array_get(list, i));
        uint8_t hash[32];
        if (hex == NULL || !hex_bytes(hex, hash, sizeof hash))
            return corrupt(why, "former", "not 64 hex digits");
        status = spec_add_former(spec, hash);
    }
    return status;
}

static cairn_status read_made(json_t *list, struct job_spec_data *spec, struct sentence *why)
{
    cairn_status status = CAIRN_OK;
    if (!json_is_array(list) || json_array_size(list) > CAIRN_SPEC_MADE_MAX)
        return corrupt(why, "made", "not a list of at most 64");
    for (size_t i = 0; i < json_array_size(list) && status == CAIRN_OK; i++) {
        const char *key, *was, *is;
        if (json_unpack(json_array_get(list, i), "[s, s, s!]", &key, &was, &is) != 0)
            return corrupt(why, "made", "not a list of a key and two values each");
        status = spec_add_made(spec, key, was, is);
    }
    return status;
}

cairn_status manifest_read_spec(json_t *json, struct job_spec_data *spec, struct sentence *why)
{
    const char *name, *init_from = NULL, *init_prefix = NULL;
    json_int_t revision;
    json_t *groups, *tensors, *former = NULL, *made = NULL;
    json_error_t error;
    CAIRN_TRY(spec_fields_of_json(json, &spec_fields, "spec", spec, why));
    if (json_unpack_ex(json, &error, JSON_STRICT, "{s:s, s:I, s:o, s:o, s?o, s?o, s?s, s?s}",
                       "name", &name, "revision", &revision, "groups", &groups, "tensors", &tensors,
                       "former", &former, "made", &made, "init_from", &init_from, "init_prefix",
                       &init_prefix) != 0) {
        return corrupt(why, "spec", error.text);
    }
    if (revision < 0) return corrupt(why, "spec", "revision is out of range");
    spec->revision = (uint64_t)revision;
    cairn_status status = spec_set_name(spec, name);
    if (status == CAIRN_OK && former != NULL) status = read_former(former, spec, why);
    if (status == CAIRN_OK && made != NULL) status = read_made(made, spec, why);
    if (status == CAIRN_OK) status = spec_set_init_from(spec, init_from, init_prefix);
    if (status == CAIRN_OK) status = read_lists(groups, tensors, spec, why);
    if (status != CAIRN_OK) return status;
    spec_canonicalize(spec); // this sorts the groups; the tensors are sorted already
    return judge_spec(spec, why);
}

static cairn_status read_file(json_t *json, struct manifest *m, struct sentence *why)
{
    const char *path, *whole = NULL, *blocks = NULL;
    json_int_t bytes;
    json_error_t error;
    if (json_unpack_ex(json, &error, JSON_STRICT, "{s:s, s:I, s?s, s?s}", "path", &path, "bytes",
                       &bytes, "xxh3_128", &whole, "blocks", &blocks) != 0) {
        return corrupt(why, "a file", error.text);
    }
    if (!snapshot_path_ok(path)) return corrupt(why, "a file", "its path is not one of Cairn's");
    if (bytes < 0) return corrupt(why, path, "its size is below 0");
    if ((whole == NULL) == (blocks == NULL))
        return corrupt(why, path, "it needs either xxh3_128 or blocks");
    const uint64_t sum_count = whole != NULL ? 1 : snapshot_block_count((uint64_t)bytes);
    const char *hex = whole != NULL ? whole : blocks;
    if (strlen(hex) / (2 * CAIRN_SNAPSHOT_SUM_BYTES) != sum_count)
        return corrupt(why, path, "not 32 hex digits for each checksum that it needs");
    uint8_t *sums = malloc((size_t)sum_count * CAIRN_SNAPSHOT_SUM_BYTES + 1);
    if (sums == NULL) return CAIRN_ERR_NO_MEMORY;
    if (!hex_bytes(hex, sums, (size_t)sum_count * CAIRN_SNAPSHOT_SUM_BYTES)) {
        free(sums);
        return corrupt(why, path, "not 32 hex digits for each checksum that it needs");
    }
    if (m->file_count > 0 && strcmp(m->files[m->file_count - 1].path, path) >= 0) {
        free(sums);
        return corrupt(why, path, "the files are not sorted by path, or one comes twice");
    }
    cairn_status status = manifest_add_file(m, path, (uint64_t)bytes, sums, whole != NULL);
    free(sums);
    return status == CAIRN_ERR_INVALID ? corrupt(why, path, "more than 1,000,000 files") : status;
}

static cairn_status read_created(const char *text, struct manifest *m, struct sentence *why)
{
    struct tm utc;
    memset(&utc, 0, sizeof utc);
    const char *end = strlen(text) == 20 ? strptime(text, "%Y-%m-%dT%H:%M:%SZ", &utc) : NULL;
    const time_t seconds = end != NULL && *end == '\0' ? timegm(&utc) : -1;
    if (seconds < 0) return corrupt(why, "created", "not a time like 2026-11-21T03:04:05Z");
    m->created_unix_s = (uint64_t)seconds;
    return CAIRN_OK;
}

static cairn_status read_payload(const char *hex, struct manifest *m, struct sentence *why)
{
    const size_t count = strlen(hex) / 2;
    if (count > CAIRN_MANIFEST_PAYLOAD_MAX) return corrupt(why, "payload", "over 1 MiB");
    m->payload = malloc(count + 1);
    if (m->payload == NULL) return CAIRN_ERR_NO_MEMORY;
    m->payload_bytes = count;
    return hex_bytes(hex, m->payload, count) ? CAIRN_OK : corrupt(why, "payload", "not hex digits");
}

/* Reads the version. This must be done first, because a manifest of another version must not be checked by
 * the rules of this one. */
static cairn_status read_version(const json_t *root, int *version_out, struct sentence *why)
{
    const char *format = json_string_value(json_object_get(root, "format"));
    const json_int_t version = json_integer_value(json_object_get(root, "version"));
    if (format == NULL || strcmp(format, "cairn snapshot") != 0) {
        return corrupt(why, "format", "not \"cairn snapshot\"");
    }
    *version_out = (int)version;
    if (version >= CAIRN_MANIFEST_VERSION_MIN && version <= CAIRN_MANIFEST_VERSION) return CAIRN_OK;
    return fail_with(why, CAIRN_ERR_VERSION,
                     "its version is %" JSON_INTEGER_FORMAT
                     ", this Cairn reads %d to %d; use the Cairn that wrote it",
                     version, CAIRN_MANIFEST_VERSION_MIN, CAIRN_MANIFEST_VERSION);
}

static cairn_status check_seal(const char *text, size_t text_bytes, struct sentence *why)
{
    char seal[CAIRN_MANIFEST_SEAL_BYTES + 1];
    const size_t sealed = text_bytes < CAIRN_MANIFEST_SEAL_BYTES
                              ? 0
                              : text_bytes - CAIRN_MANIFEST_SEAL_BYTES;
    manifest_seal(text, sealed, seal);
    if (text_bytes - sealed == CAIRN_MANIFEST_SEAL_BYTES &&
        memcmp(text + sealed, seal, CAIRN_MANIFEST_SEAL_BYTES) == 0)
        return CAIRN_OK;
    return corrupt(why, CAIRN_MANIFEST_SEAL_KEY,
                   "not the hash of what stands before it: it was changed since it was written");
}

static cairn_status read_ranks(json_t *list, struct rank_groups *groups, uint32_t *at,
                               struct sentence *why)
{
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *rank = json_array_get(list, i);
        const json_int_t value = json_integer_value(rank);
        if (!json_is_integer(rank) || !fits_u32(value))
            return corrupt(why, "reduce_groups", "a rank is not a number from 0 to 2^32 - 1");
        groups->ranks[(*at)++] = (uint32_t)value;
    }
    return CAIRN_OK;
}

static cairn_status read_reduce_groups(json_t *list, struct rank_groups *groups,
                                       struct sentence *why)
{
    const size_t group_count = json_array_size(list);
    size_t rank_count = 0;
    uint32_t at = 0;
    for (size_t g = 0; g < group_count; g++) rank_count += json_array_size(json_array_get(list, g));
    if (group_count == 0 || rank_count > CAIRN_SPEC_WORKERS_MAX || group_count > rank_count)
        return corrupt(why, "reduce_groups", "not lists of up to 65536 ranks in all");
    cairn_status status = rank_groups_init(groups, (uint32_t)rank_count, (uint32_t)group_count);
    for (uint32_t g = 0; g < group_count && status == CAIRN_OK; g++) {
        status = read_ranks(json_array_get(list, g), groups, &at, why);
        groups->ends[g] = at;
    }
    if (status == CAIRN_OK && !rank_groups_ok(groups))
        return corrupt(why, "reduce_groups", "not in order, or a rank in two of them");
    return status;
}

/* Must be called after the spec was read, because tensors are given by their index in it. */
static cairn_status read_nonfinite(json_t *json, struct manifest *m, struct sentence *why)
{
    struct results *results = &m->nonfinite;
    json_int_t all;
    json_t *tensors, *elems;
    json_error_t error;
    const char *name;
    if (json_unpack_ex(json, &error, JSON_STRICT, "{s:I, s:o}", "elems", &all, "tensors",
                       &tensors) != 0)
        return corrupt(why, "nonfinite", error.text);
    if (!json_is_object(tensors) || json_object_size(tensors) > CAIRN_RESULTS_TENSORS)
        return corrupt(why, "nonfinite", "its tensors are not up to 8 names with numbers");
    json_object_foreach(tensors, name, elems)
    {
        const size_t tensor = spec_find_tensor(&m->spec, name);
        const json_int_t count = json_integer_value(elems);
        if (tensor == SIZE_MAX || count < 1 || count > all - (json_int_t)results->nonfinite)
            return corrupt(why, "nonfinite", "a tensor that the spec lacks, or a wrong number");
        results_add(results, (uint32_t)tensor, (uint64_t)count);
    }
    if (all < 1) return corrupt(why, "nonfinite", "elems is not a number from 1");
    results->nonfinite = (uint64_t)all; // this includes elements of tensors that are not named
    return CAIRN_OK;
}

/* Must be called after the spec and the step were read. */
static cairn_status read_missed(json_t *json, struct manifest *m, struct sentence *why)
{
    json_t *steps;
    const char *name;
    if (!json_is_object(json) || json_object_size(json) == 0)
        return corrupt(why, "steps_missed", "no tensors with numbers");
    m->steps_missed = calloc(m->spec.tensor_count + 1, sizeof *m->steps_missed);
    if (m->steps_missed == NULL) return CAIRN_ERR_NO_MEMORY;
    json_object_foreach(json, name, steps)
    {
        const size_t tensor = spec_find_tensor(&m->spec, name);
        const json_int_t count = json_integer_value(steps);
        if (tensor == SIZE_MAX || m->spec.tensors[tensor].kind != CAIRN_TRAINED || count < 1 ||
            (uint64_t)count > m->step)
            return corrupt(why, "steps_missed", "a tensor that is not trained, or a wrong number");
        m->steps_missed[tensor] = (uint64_t)count;
    }
    return CAIRN_OK;
}

static cairn_status read_origin(json_t *json, struct manifest *m, struct sentence *why)
{
    json_int_t generation, from_generation, from_step;
    json_error_t error;
    if (json_unpack_ex(json, &error, JSON_STRICT, "{s:I, s:I, s:I}", "generation", &generation,
                       "from_generation", &from_generation, "from_step", &from_step) != 0)
        return corrupt(why, "origin", error.text);
    if (generation < 2 || (uint64_t)generation > m->generation || from_generation < 0 ||
        from_generation >= generation || from_step < 0)
        return corrupt(why, "origin", "a number is out of range");
    m->origin.generation = (uint64_t)generation;
    m->origin.from = (struct cairn_version) { (uint64_t)from_generation, (uint64_t)from_step };
    return CAIRN_OK;
}

static cairn_status read_root(json_t *root, struct manifest *m, struct sentence *why)
{
    const char *format, *cluster, *created, *payload, *content_root, *periodic = NULL,
                                                                     *owner = NULL;
    json_int_t version, generation, step, epoch, shards;
    json_t *spec, *files, *reduce_groups = NULL, *nonfinite = NULL, *origin = NULL, *missed = NULL;
    json_error_t error;
    // If the version has a seal, the seal was checked before. In an older version, its key is an unknown
    // key.
    if (!m->unsealed) json_object_del(root, CAIRN_MANIFEST_SEAL_KEY);
    if (json_unpack_ex(
            root, &error, JSON_STRICT,
            "{s:s, s:I, s:s, s:s, s:I, s:I, s:I, s:I, s:F, s:s, s:s, s:o, s:o, s?o, s?s, s?o, s?o, "
            "s?o, s?s}",
            "format", &format, "version", &version, "cluster", &cluster, "created", &created,
            "generation", &generation, "step", &step, "epoch", &epoch, "shards", &shards,
            "loss_scale", &m->loss_scale, "payload", &payload, "content_root", &content_root,
            "spec", &spec, "files", &files, "reduce_groups", &reduce_groups, "periodic", &periodic,
            "nonfinite", &nonfinite, "origin", &origin, "steps_missed", &missed, "owner",
            &owner) != 0) {
        return corrupt(why, "the top", error.text);
    }
    uint8_t number[8] = { 0 };
    if (periodic != NULL && !hex_bytes(periodic, number, sizeof number))
        return corrupt(why, "periodic", "not 16 hex digits");
    for (int i = 0; i < 8; i++) m->periodic = m->periodic << 8 | number[i];
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
    if (owner != NULL && (m->owner = strdup(owner)) == NULL) return CAIRN_ERR_NO_MEMORY;
    if (!json_is_array(files)) return corrupt(why, "files", "not a list");
    cairn_status status = read_created(created, m, why);
    if (status == CAIRN_OK) status = read_payload(payload, m, why);
    if (status == CAIRN_OK) status = manifest_read_spec(spec, &m->spec, why);
    if (status == CAIRN_OK && origin != NULL) status = read_origin(origin, m, why);
    if (status == CAIRN_OK && nonfinite != NULL) status = read_nonfinite(nonfinite, m, why);
    if (status == CAIRN_OK && missed != NULL) status = read_missed(missed, m, why);
    if (status == CAIRN_OK && reduce_groups != NULL)
        status = read_reduce_groups(reduce_groups, &m->reduce_groups, why);
    for (size_t i = 0; i < json_array_size(files) && status == CAIRN_OK; i++) {
        status = read_file(json_array_get(files, i), m, why);
    }
    return status;
}

static cairn_status decode(const char *text, size_t text_bytes, struct manifest *out,
                           struct sentence *why)
{
    if (text_bytes > CAIRN_MANIFEST_BYTES_MAX) return corrupt(why, "the file", "too large");
    json_error_t error;
    json_t *root;
    cairn_status status = json_text_parse(text, text_bytes, &root, &error);
    if (status == CAIRN_ERR_NO_MEMORY) return fail_with(why, status, "out of memory");
    if (status != CAIRN_OK) {
        return fail_with(why, CAIRN_ERR_CORRUPT, "not JSON: %s (line %d); cut off?", error.text,
                         error.line);
    }
    struct manifest m;
    int version = 0;
    manifest_init(&m);
    status = read_version(root, &version, why);
    m.version = (uint32_t)version;
    minisig_prehash(text, text_bytes, m.prehash);
    m.unsealed = version < CAIRN_MANIFEST_VERSION_SEALED;
    if (status == CAIRN_OK && !m.unsealed) status = check_seal(text, text_bytes, why);
    if (status == CAIRN_OK) status = read_root(root, &m, why);
    json_decref(root);
    if (status != CAIRN_OK) {
        manifest_release(&m);
        return status;
    }
    *out = m;
    return CAIRN_OK;
}

cairn_status manifest_decode(const char *text, size_t text_bytes, struct manifest *out,
                             struct sentence *why)
{
    struct sentence reason = { "" };
    const cairn_status status = decode(text, text_bytes, out, &reason);
    if (status == CAIRN_OK || reason.text[0] == '\0') return status;
    return fail_with(why, status, "manifest: %s", reason.text);
}
