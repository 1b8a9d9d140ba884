/* A manifest in memory, and its encoding to JSON. manifest_decode.c decodes it. */
#include "proto/snapshot/snapshot.h"

#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "proto/safetensors/json_text.h"
#include "proto/snapshot/digest_tree.h"
#include "proto/spec/spec.h"

void manifest_init(struct manifest *m)
{
    *m = (struct manifest) { .loss_scale = 1.0 };
    spec_init(&m->spec);
}

void manifest_release(struct manifest *m)
{
    for (size_t i = 0; i < m->file_count; i++) {
        free(m->files[i].path);
        free(m->files[i].sums);
    }
    free(m->files);
    free(m->payload);
    free(m->steps_missed);
    free(m->signature);
    free(m->cluster);
    free(m->owner);
    spec_release(&m->spec);
    rank_groups_release(&m->reduce_groups);
    manifest_init(m);
}

cairn_status manifest_set_payload(struct manifest *m, const uint8_t *payload, size_t payload_bytes)
{
    if (payload_bytes > CAIRN_MANIFEST_PAYLOAD_MAX) return CAIRN_ERR_INVALID;
    uint8_t *copy = malloc(payload_bytes + 1);
    if (copy == NULL) return CAIRN_ERR_NO_MEMORY;
    if (payload_bytes > 0) memcpy(copy, payload, payload_bytes);
    free(m->payload);
    m->payload = copy;
    m->payload_bytes = payload_bytes;
    return CAIRN_OK;
}

static cairn_status begin_file(struct manifest *m, const char *path, uint64_t bytes)
{
    if (!snapshot_path_ok(path) || bytes > INT64_MAX) return CAIRN_ERR_INVALID;
    if (m->file_count >= CAIRN_MANIFEST_FILES_MAX) return CAIRN_ERR_INVALID;
    CAIRN_TRY(array_reserve(&m->files, m->file_count, 1, &m->file_capacity, sizeof *m->files));
    struct manifest_file file = { .path = strdup(path), .bytes = bytes };
    if (file.path == NULL) return CAIRN_ERR_NO_MEMORY;
    m->files[m->file_count++] = file;
    return CAIRN_OK;
}

/* Appends checksums. Memory is made only for checksums that have arrived, and not for the size that a
 * sender has announced. */
static cairn_status append_sums(struct manifest_file *f, const uint8_t *sums, uint64_t count)
{
    if (f->block_count + count > f->block_capacity) {
        const uint64_t doubled = 2 * f->block_capacity, least = f->block_count + count;
        const uint64_t wanted = doubled > least ? doubled : least;
        uint8_t *grown = realloc(f->sums, (size_t)wanted * CAIRN_SNAPSHOT_SUM_BYTES);
        if (grown == NULL) return CAIRN_ERR_NO_MEMORY;
        f->sums = grown;
        f->block_capacity = wanted;
    }
    if (count > 0)
        memcpy(f->sums + f->block_count * CAIRN_SNAPSHOT_SUM_BYTES, sums,
               (size_t)count * CAIRN_SNAPSHOT_SUM_BYTES);
    f->block_count += count;
    return CAIRN_OK;
}

cairn_status manifest_add_blocks(struct manifest *m, const char *path, uint64_t bytes,
                                 uint64_t first_block, const uint8_t *sums, uint64_t count)
{
    CAIRN_TRY(first_block == 0 ? begin_file(m, path, bytes) : CAIRN_OK);
    // this is mostly the last file, but files of other shards may have been added after it
    struct manifest_file *f = NULL;
    for (size_t i = m->file_count; i > 0 && f == NULL; i--)
        if (strcmp(m->files[i - 1].path, path) == 0) f = &m->files[i - 1];
    if (f == NULL || f->bytes != bytes || f->block_count != first_block ||
        count > snapshot_block_count(bytes) - first_block)
        return CAIRN_ERR_INVALID;
    return append_sums(f, sums, count);
}

cairn_status manifest_add_file(struct manifest *m, const char *path, uint64_t bytes,
                               const uint8_t *sums, bool is_whole)
{
    CAIRN_TRY(begin_file(m, path, bytes));
    m->files[m->file_count - 1].is_whole = is_whole;
    return append_sums(&m->files[m->file_count - 1], sums,
                       is_whole ? 1 : snapshot_block_count(bytes));
}

static int path_order(const void *a, const void *b)
{
    const struct manifest_file *x = a, *y = b;
    return strcmp(x->path, y->path);
}

/* ---- into JSON; NULL is "out of memory", since all values were judged before ---- */

static json_t *hex_json(const uint8_t *bytes, size_t count)
{
    char *hex = malloc(2 * count + 1);
    if (hex == NULL) return NULL;
    json_t *text = json_string_nocheck(sodium_bin2hex(hex, 2 * count + 1, bytes, count));
    free(hex);
    return text;
}

/* Adds a key with `value`, which the object takes over. Returns the object; NULL: no memory, or the object
 * or the value was NULL. */
static json_t *with(json_t *object, const char *key, json_t *value)
{
    if (json_object_set_new(object, key, value) == 0) return object;
    json_decref(object);
    return NULL;
}

json_t *schedule_json(const struct schedule *s)
{
    json_t *points = json_array();
    for (size_t i = 0; i < s->point_count && points != NULL; i++) {
        json_t *point = json_pack("[I, f]", (json_int_t)s->points[i].step, s->points[i].factor);
        if (json_array_append_new(points, point) == 0) continue;
        json_decref(points);
        points = NULL;
    }
    json_t *schedule = json_pack("{s:s}", "kind", schedule_name((int)s->kind));
    schedule = spec_fields_json(schedule, &schedule_fields, CAIRN_SPEC_FIRST, s);
    return with(schedule, "points", points);
}

static json_t *group_json(const struct group_spec *g)
{
    json_t *group = json_pack("{s:s, s:s}", "name", g->name, "optimizer", g->optimizer);
    group = spec_fields_json(group, &group_fields, CAIRN_SPEC_FIRST, g);
    group = spec_fields_json(group, &group_fields, CAIRN_SPEC_LATER, g);
    if (g->frozen) group = with(group, "frozen", json_true());
    if (g->schedule.kind != CAIRN_SCHEDULE_CONSTANT || g->schedule.warmup_steps != 0)
        group = with(group, "schedule", schedule_json(&g->schedule));
    return group;
}

static json_t *numbers_json(const uint64_t *numbers, uint32_t count)
{
    json_t *list = json_array();
    for (uint32_t d = 0; d < count; d++) {
        if (json_array_append_new(list, json_integer((json_int_t)numbers[d])) == 0) continue;
        json_decref(list);
        return NULL;
    }
    return list;
}

static json_t *tensor_json(const struct tensor_spec *t)
{
    const struct cairn_box *box = t->alias_box;
    json_t *tensor = json_pack("{s:s, s:s, s:s, s:s, s:s, s:s, s:s, s:o, s:b}", "name", t->name,
                               "unit", t->unit, "group", t->group, "kind",
                               capability_name(CAIRN_CAPABILITY_KIND, (int)t->kind), "wire",
                               dtype_label((int)t->wire), "reduce", dtype_label((int)t->reduce),
                               "master", dtype_label((int)t->master), "shape",
                               numbers_json(t->shape.dim, t->shape.rank), "whole", (int)t->whole);
    if (t->frozen) tensor = with(tensor, "frozen", json_true());
    if (t->order > 0) tensor = with(tensor, "order", json_integer((json_int_t)t->order));
    if (t->alias_of != NULL) tensor = with(tensor, "alias_of", json_string(t->alias_of));
    if (box != NULL)
        tensor = with(tensor, "alias_box",
                      json_pack("[o, o]", numbers_json(box->start, box->rank),
                                numbers_json(box->extent, box->rank)));
    if (t->init.kind != CAIRN_INIT_NONE)
        tensor = with(tensor, "init",
                      json_pack("{s:s, s:f, s:f, s:I}", "kind",
                                capability_name(CAIRN_CAPABILITY_INIT, (int)t->init.kind), "a",
                                t->init.a, "b", t->init.b, "seed", (json_int_t)t->init.seed));
    return tensor;
}

static json_t *former_json(const uint8_t (*hash)[32])
{
    return hex_json(*hash, sizeof *hash);
}

static json_t *made_json(const struct spec_made *made)
{
    return json_pack("[s, s, s]", made->key, made->was, made->is);
}

static json_t *file_json(const struct manifest_file *f)
{
    return json_pack("{s:s, s:I, s:o}", "path", f->path, "bytes", (json_int_t)f->bytes,
                     f->is_whole ? "xxh3_128" : "blocks",
                     hex_json(f->sums, (size_t)f->block_count * CAIRN_SNAPSHOT_SUM_BYTES));
}

/* Makes a list of `count` elements, one by one. NULL: an element could not be made. */
#define LIST_OF(list, array, count, make)                                  \
    json_t *list = json_array();                                           \
    for (size_t i = 0; i < (count) && list != NULL; i++) {                 \
        if (json_array_append_new(list, make(&(array)[i])) == 0) continue; \
        json_decref(list);                                                 \
        list = NULL;                                                       \
    }

static json_t *spec_json(const struct job_spec_data *s)
{
    LIST_OF(groups, s->groups, s->group_count, group_json)
    LIST_OF(tensors, s->tensors, s->tensor_count, tensor_json)
    LIST_OF(former, s->former, s->former_count, former_json)
    LIST_OF(made, s->made, s->made_count, made_json)
    const struct spec_table *table = &spec_fields;
    json_t *spec = json_pack("{s:s}", "name", s->name);
    spec = spec_fields_json(spec, table, CAIRN_SPEC_FIRST, s);
    spec = with(spec, "revision", json_integer((json_int_t)s->revision));
    spec = with(spec, "groups", groups);
    spec = with(spec, "tensors", tensors);
    spec = spec_fields_json(spec, table, CAIRN_SPEC_MICRO, s);
    spec = spec_fields_json(spec, table, CAIRN_SPEC_SCALING, s);
    spec = with(spec, "former", former);
    if (s->made_count > 0)
        spec = with(spec, "made", made);
    else
        json_decref(made);
    if (s->init_from != NULL) spec = with(spec, "init_from", json_string(s->init_from));
    if (s->init_prefix != NULL) spec = with(spec, "init_prefix", json_string(s->init_prefix));
    spec = spec_fields_json(spec, table, CAIRN_SPEC_LATER, s);
    spec = spec_fields_json(spec, table, CAIRN_SPEC_POLICY, s);
    // it is then written even if it has its default
    if (s->policy.on_shard_loss != CAIRN_SHARD_LOSS_WAIT)
        spec = with(spec, "shard_loss_wait_s", json_integer(s->policy.shard_loss_wait_s));
    return spec;
}

static json_t *ranks_json(const uint32_t *ranks, uint32_t count)
{
    json_t *list = json_array();
    for (uint32_t i = 0; i < count && list != NULL; i++) {
        if (json_array_append_new(list, json_integer((json_int_t)ranks[i])) == 0) continue;
        json_decref(list);
        list = NULL;
    }
    return list;
}

static json_t *reduce_groups_json(const struct rank_groups *groups)
{
    json_t *list = json_array();
    for (uint32_t g = 0; g < groups->group_count && list != NULL; g++) {
        uint32_t count;
        const uint32_t *ranks = rank_groups_at(groups, g, &count);
        if (json_array_append_new(list, ranks_json(ranks, count)) == 0) continue;
        json_decref(list);
        list = NULL;
    }
    return list;
}

static json_t *nonfinite_json(const struct manifest *m)
{
    const struct results *results = &m->nonfinite;
    json_t *tensors = json_object();
    for (uint32_t i = 0; i < results->tensor_count && tensors != NULL; i++)
        tensors = with(tensors, m->spec.tensors[results->tensors[i].tensor].name,
                       json_integer((json_int_t)results->tensors[i].elems));
    return json_pack("{s:I, s:o}", "elems", (json_int_t)results->nonfinite, "tensors", tensors);
}

static json_t *origin_json(const struct origin *origin)
{
    return json_pack("{s:I, s:I, s:I}", "generation", (json_int_t)origin->generation,
                     "from_generation", (json_int_t)origin->from.generation, "from_step",
                     (json_int_t)origin->from.step);
}

static json_t *missed_json(const struct manifest *m)
{
    json_t *tensors = json_object();
    for (size_t t = 0; t < m->spec.tensor_count && tensors != NULL; t++)
        if (m->steps_missed[t] > 0)
            tensors = with(tensors, m->spec.tensors[t].name,
                           json_integer((json_int_t)m->steps_missed[t]));
    return tensors;
}

static json_t *root_json(const struct manifest *m)
{
    char created[32];
    const time_t seconds = (time_t)m->created_unix_s;
    struct tm utc;
    if (gmtime_r(&seconds, &utc) == NULL) return NULL;
    strftime(created, sizeof created, "%Y-%m-%dT%H:%M:%SZ", &utc);
    LIST_OF(files, m->files, m->file_count, file_json)
    json_t *root = json_pack("{s:s, s:i, s:s, s:s, s:I, s:I, s:I, s:I, s:f, s:o, s:o, s:o, s:o}",
                             "format", "cairn snapshot", "version", CAIRN_MANIFEST_VERSION,
                             "cluster", m->cluster != NULL ? m->cluster : "", "created", created,
                             "generation", (json_int_t)m->generation, "step", (json_int_t)m->step,
                             "epoch", (json_int_t)m->epoch, "shards", (json_int_t)m->shard_count,
                             "loss_scale", m->loss_scale, "payload",
                             hex_json(m->payload, m->payload_bytes), "content_root",
                             hex_json(m->content_root, sizeof m->content_root), "spec",
                             spec_json(&m->spec), "files", files);
    if (root != NULL && m->periodic != 0) {
        char number[17];
        snprintf(number, sizeof number, "%016" PRIx64, m->periodic);
        root = with(root, "periodic", json_string(number));
    }
    if (root != NULL && m->origin.generation > 1) // in the first generation there is nothing to say
        root = with(root, "origin", origin_json(&m->origin));
    if (root != NULL && m->nonfinite.nonfinite > 0)
        root = with(root, "nonfinite", nonfinite_json(m));
    if (root != NULL && m->owner != NULL && m->owner[0] != '\0')
        root = with(root, "owner", json_string(m->owner));
    if (root != NULL && m->steps_missed != NULL) root = with(root, "steps_missed", missed_json(m));
    if (root == NULL || m->reduce_groups.group_count == 0) return root;
    return with(root, "reduce_groups", reduce_groups_json(&m->reduce_groups));
}

/* Refuses every manifest that json_pack would accept although manifest_decode would refuse it. */
static cairn_status judge_manifest(const struct manifest *m, struct sentence *why)
{
    const uint64_t year_10000_s = 253402300800;
    if (m->generation > INT64_MAX || m->step > INT64_MAX || m->origin.generation > m->generation ||
        m->origin.from.generation > m->generation || m->origin.from.step > INT64_MAX ||
        m->epoch > INT64_MAX || m->spec.revision > INT64_MAX ||
        m->nonfinite.nonfinite > INT64_MAX || m->created_unix_s >= year_10000_s) {
        return fail_with(
            why, CAIRN_ERR_INVALID,
            "a number of the manifest is over 2^63, or its time is after the year 9999");
    }
    for (uint32_t i = 0; i < m->nonfinite.tensor_count; i++) {
        if (m->nonfinite.tensors[i].tensor >= m->spec.tensor_count)
            return fail_with(why, CAIRN_ERR_INVALID, "the manifest's spec lacks a damaged tensor");
    }
    for (size_t t = 0; m->steps_missed != NULL && t < m->spec.tensor_count; t++) {
        if (m->steps_missed[t] > m->step)
            return fail_with(why, CAIRN_ERR_INVALID, "tensor %s missed more steps than there were",
                             m->spec.tensors[t].name);
    }
    if (!isfinite(m->loss_scale)) {
        return fail_with(why, CAIRN_ERR_INVALID, "the manifest's loss scale is not finite");
    }
    if (!rank_groups_ok(&m->reduce_groups))
        return fail_with(why, CAIRN_ERR_INVALID, "the manifest's reduce groups are not in order");
    for (size_t i = 1; i < m->file_count; i++) {
        if (strcmp(m->files[i - 1].path, m->files[i].path) != 0) continue;
        return fail_with(why, CAIRN_ERR_INVALID, "two files of the snapshot are called %s",
                         m->files[i].path);
    }
    for (size_t i = 0; i < m->file_count; i++) {
        const struct manifest_file *f = &m->files[i];
        if (f->block_count == (f->is_whole ? 1 : snapshot_block_count(f->bytes))) continue;
        return fail_with(why, CAIRN_ERR_INVALID, "%s lacks checksums of some of its blocks",
                         f->path);
    }
    return CAIRN_OK;
}

cairn_status manifest_encode(struct manifest *m, char **text_out, size_t *text_bytes_out,
                             struct sentence *why)
{
    if (m->file_count > 1) qsort(m->files, m->file_count, sizeof *m->files, path_order);
    spec_canonicalize(&m->spec);
    CAIRN_TRY(judge_manifest(m, why));
    json_t *root = root_json(m);
    char *json = root != NULL ? json_dumps(root, JSON_INDENT(1) | JSON_REAL_PRECISION(17)) : NULL;
    json_decref(root);
    if (json == NULL)
        return fail_with(why, CAIRN_ERR_NO_MEMORY, "out of memory for the manifest's JSON");
    const size_t sealed = strlen(json) - strlen("\n}") + strlen(",\n");
    char *text = realloc(json, sealed + CAIRN_MANIFEST_SEAL_BYTES + 1);
    if (text == NULL) {
        free(json);
        return CAIRN_ERR_NO_MEMORY;
    }
    // replaces the closing brace, because one more member follows
    memcpy(text + sealed - 2, ",\n", 2);
    manifest_seal(text, sealed, text + sealed);
    *text_out = text;
    *text_bytes_out = sealed + CAIRN_MANIFEST_SEAL_BYTES;
    return CAIRN_OK;
}

/* ==== manifest fields ==== */

/* Encodes the scalars of a spec as JSON, by the rows of spec_fields.h. */

static json_t *value_json(const struct spec_field *field, const void *from)
{
    const uint64_t bits = spec_field_bits(field, from);
    switch (field->kind) {
    case CAIRN_SPEC_REAL:
    case CAIRN_SPEC_FRACTION: return json_real(spec_field_number(field, from));
    case CAIRN_SPEC_COUNT: return json_integer((json_int_t)bits);
    case CAIRN_SPEC_FLAG: return json_boolean(bits != 0);
    case CAIRN_SPEC_CHOICE: return json_string(capability_name(field->capability, (int)bits));
    }
    return NULL;
}

json_t *spec_fields_json(json_t *object, const struct spec_table *table, enum spec_part part,
                         const void *from)
{
    for (size_t i = 0; i < table->count && object != NULL; i++) {
        const struct spec_field *field = &table->fields[i];
        if (part != CAIRN_SPEC_ALL && part != field->part) continue;
        if (part != CAIRN_SPEC_ALL && part >= CAIRN_SPEC_LATER &&
            spec_field_is_default(field, from))
            continue;
        if (json_object_set_new(object, field->name, value_json(field, from)) == 0) continue;
        json_decref(object);
        object = NULL;
    }
    return object;
}

/* ==== manifest spec ==== */

/* ---- fields that are missing ---- */

/* Adds the defaults whose keys the object does not have. Takes over `defaults`. False: no memory, or
 * `object` is no object. */
static bool fill_defaults(json_t *object, json_t *defaults)
{
    const bool ok = json_is_object(object) && json_object_update_missing(object, defaults) == 0;
    json_decref(defaults);
    return ok;
}

static bool fill_group(json_t *group)
{
    const struct group_spec d = group_default();
    json_t *names = json_pack("{s:s, s:s}", "name", "default", "optimizer", "adamw");
    return fill_defaults(group, spec_fields_json(names, &group_fields, CAIRN_SPEC_ALL, &d));
}

static bool fill_tensor(json_t *tensor, const char *group)
{
    const char *name = json_string_value(json_object_get(tensor, "name"));
    const char *kind = json_string_value(json_object_get(tensor, "kind"));
    const bool is_blob = kind != NULL && strcmp(kind, "blob") == 0;
    const bool is_trained = kind == NULL || strcmp(kind, "trained") == 0;
    const char *dtype = is_blob ? "u8" : "f32";
    if (name == NULL) return false;
    return fill_defaults(tensor,
                         json_pack("{s:s, s:s, s:s, s:s, s:s, s:s, s:b}", "unit", name, "group",
                                   is_trained ? group : "", "kind", "trained", "wire", dtype,
                                   "reduce", "f32", "master", dtype, "whole", 0));
}

static bool fill_top(json_t *root)
{
    struct job_spec_data d;
    spec_init(&d);
    json_t *top = json_pack("{s:s, s:i}", "name", "plan", "revision", 0);
    const bool ok = fill_defaults(root, spec_fields_json(top, &spec_fields, CAIRN_SPEC_FIRST, &d));
    spec_release(&d);
    if (ok && json_object_get(root, "groups") == NULL)
        json_object_set_new(root, "groups", json_pack("[{}]"));
    return ok;
}

static int by_name(const void *left, const void *right)
{
    const char *a = json_string_value(json_object_get(*(json_t *const *)left, "name"));
    const char *b = json_string_value(json_object_get(*(json_t *const *)right, "name"));
    return strcmp(a, b);
}

/* Returns a new array, sorted by name. All tensors must have a name. NULL: no memory. */
static json_t *sorted(json_t *tensors)
{
    const size_t count = json_array_size(tensors);
    json_t *out = json_array(), **list = calloc(count + 1, sizeof(json_t *));
    for (size_t i = 0; list != NULL && i < count; i++) list[i] = json_array_get(tensors, i);
    if (list != NULL) qsort(list, count, sizeof *list, by_name);
    bool is_whole = list != NULL && out != NULL;
    for (size_t i = 0; is_whole && i < count; i++) is_whole = json_array_append(out, list[i]) == 0;
    free(list);
    if (is_whole) return out;
    json_decref(out);
    return NULL;
}

static cairn_status complete(json_t *root, struct sentence *why)
{
    json_t *groups, *tensors = json_object_get(root, "tensors");
    if (!fill_top(root) || !json_is_array(tensors))
        return fail_with(why, CAIRN_ERR_MALFORMED, "an object with \"tensors\", a list, is wanted");
    groups = json_object_get(root, "groups");
    for (size_t i = 0; i < json_array_size(groups); i++)
        if (!fill_group(json_array_get(groups, i)))
            return fail_with(why, CAIRN_ERR_MALFORMED, "group %zu is not an object", i);
    const char *group = json_string_value(json_object_get(json_array_get(groups, 0), "name"));
    for (size_t i = 0; i < json_array_size(tensors); i++)
        if (!fill_tensor(json_array_get(tensors, i), group != NULL ? group : ""))
            return fail_with(why, CAIRN_ERR_MALFORMED,
                             "tensor %zu is not an object with \"name\" and \"shape\"", i);
    if (json_object_set_new(root, "tensors", sorted(tensors)) == 0) return CAIRN_OK;
    return fail_with(why, CAIRN_ERR_NO_MEMORY, "out of memory for %zu tensors",
                     json_array_size(tensors));
}

cairn_status spec_of_json(const char *text, size_t text_bytes, struct job_spec_data *out,
                          struct sentence *why)
{
    json_error_t error;
    json_t *root;
    cairn_status status = json_text_parse(text, text_bytes, &root, &error);
    if (status == CAIRN_ERR_NO_MEMORY) return fail_with(why, status, "out of memory");
    if (status != CAIRN_OK)
        return fail_with(why, CAIRN_ERR_MALFORMED, "not JSON: %s (line %d)", error.text,
                         error.line);
    struct job_spec_data spec;
    struct sentence reason = { "" };
    spec_init(&spec);
    status = complete(root, &reason);
    if (status == CAIRN_OK) status = manifest_read_spec(root, &spec, &reason);
    json_decref(root);
    if (status == CAIRN_OK) {
        *out = spec;
        return CAIRN_OK;
    }
    spec_release(&spec);
    return fail_with(why, status == CAIRN_ERR_CORRUPT ? CAIRN_ERR_MALFORMED : status, "%s",
                     reason.text);
}

/* ==== manifest seal ==== */

void manifest_seal(const char *text, size_t text_bytes,
                   char seal_out[CAIRN_MANIFEST_SEAL_BYTES + 1])
{
    struct hash hash;
    char hex[2 * CAIRN_HASH_BYTES + 1];
    bytes_hash(text, text_bytes, &hash);
    sodium_bin2hex(hex, sizeof hex, hash.byte, sizeof hash.byte);
    snprintf(seal_out, CAIRN_MANIFEST_SEAL_BYTES + 1,
             " \"" CAIRN_MANIFEST_SEAL_KEY "\": \"%s\"\n}\n", hex);
}

/* ==== manifest trust ==== */

static enum trust broken(struct sentence *what, const char *why)
{
    sentence_set(what, CAIRN_MANIFEST_SIGNATURE_NAME ": %s", why);
    return CAIRN_TRUST_BROKEN;
}

/* Checks the signature with every key that has its id. There may be several: an id has only eight bytes, so
 * anyone can make another key with the same id. */
static enum trust check_signature(const struct manifest *m, const struct key_ring *ring,
                                  const struct minisig *signature, struct sentence *what)
{
    struct sentence why;
    char name[CAIRN_KEY_NAME_BYTES];
    bool known = false;
    key_name(signature->key_id, name);
    for (size_t i = 0; i < ring->count; i++) {
        const struct public_key *key = &ring->keys[i];
        if (memcmp(key->id, signature->key_id, sizeof key->id) != 0) continue;
        known = true;
        if (minisig_check(signature, key, m->prehash, &why) != CAIRN_OK) continue;
        sentence_set(what, "signed by key %s", name);
        return CAIRN_TRUST_SIGNED;
    }
    if (known) return broken(what, why.text);
    sentence_set(what, "signed by key %s, which is not trusted here", name);
    return CAIRN_TRUST_STRANGE;
}

enum trust manifest_trust(const struct manifest *m, const struct key_ring *ring,
                          struct sentence *what)
{
    struct minisig signature;
    struct sentence why;
    if (m->signature == NULL) {
        const bool is_old = m->version < CAIRN_MANIFEST_VERSION_SIGNED;
        sentence_set(what, is_old ? "not signed (of a version before signatures)" : "not signed");
        return is_old ? CAIRN_TRUST_OLD : CAIRN_TRUST_UNSIGNED;
    }
    if (minisig_parse(m->signature, m->signature_bytes, &signature, &why) != CAIRN_OK)
        return broken(what, why.text);
    return check_signature(m, ring, &signature, what);
}

cairn_status manifest_accept(const struct manifest *m, const struct key_ring *ring,
                             struct trust_waiver waiver, struct sentence *why)
{
    struct sentence what;
    switch (manifest_trust(m, ring, &what)) {
    case CAIRN_TRUST_SIGNED:
    case CAIRN_TRUST_OLD: return CAIRN_OK;
    case CAIRN_TRUST_UNSIGNED:
        if (waiver.is_unsigned) return CAIRN_OK;
        return fail_with(
            why, CAIRN_ERR_REFUSED,
            "its manifest is %s: nothing tells who wrote it; put " CAIRN_MANIFEST_SIGNATURE_NAME
            " back, or take it as it is with "
            "--allow-unsigned",
            what.text);
    case CAIRN_TRUST_STRANGE:
        if (waiver.is_strange) return CAIRN_OK;
        return fail_with(
            why, CAIRN_ERR_REFUSED,
            "its manifest is %s; if another cluster wrote it, trust the key that `cairn key show` "
            "prints there (`cairn key trust`); if this one did, before its store was lost, put the "
            "old cluster.key back into store.path and start the coordinator again; or take this "
            "one snapshot with --allow-untrusted",
            what.text);
    case CAIRN_TRUST_BROKEN: break;
    }
    return fail_with(why, CAIRN_ERR_CHECKSUM,
                     "%s: the manifest or its signature was changed; use another snapshot",
                     what.text);
}

void manifest_signature_comment(const struct manifest *m, char out[CAIRN_SIGNATURE_COMMENT_BYTES])
{
    snprintf(out, CAIRN_SIGNATURE_COMMENT_BYTES,
             "timestamp:%" PRIu64 "\tfile:" CAIRN_MANIFEST_NAME "\tjob:%s\tgeneration:%" PRIu64
             "\tstep:%" PRIu64 "\thashed",
             m->created_unix_s, m->spec.name, m->generation, m->step);
}
