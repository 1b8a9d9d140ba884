#include "proto/safetensors/safetensors.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <jansson.h>
#include <linux/openat2.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "proto/safetensors/json_text.h"
#include "proto/spec/scalars.h"

/* ==== safetensors parse ==== */

/* Checks the header of a safetensors file, in the same order as the crate's reader. */

/* The dtypes of the format, the lowest rank first. */
static const struct {
    const char *name;
    uint32_t bits;
    int dtype; /* Cairn's dtype, 0 = none */
} dtypes[] = {
    { "BOOL", 8, 0 },        { "F4", 4, 0 },           { "F6_E2M3", 6, 0 },
    { "F6_E3M2", 6, 0 },     { "U8", 8, CAIRN_U8 },    { "I8", 8, 0 },
    { "F8_E5M2", 8, 0 },     { "F8_E4M3", 8, 0 },      { "F8_E8M0", 8, 0 },
    { "F8_E4M3FNUZ", 8, 0 }, { "F8_E5M2FNUZ", 8, 0 },  { "I16", 16, 0 },
    { "U16", 16, 0 },        { "F16", 16, CAIRN_F16 }, { "BF16", 16, CAIRN_BF16 },
    { "I32", 32, 0 },        { "U32", 32, 0 },         { "F32", 32, CAIRN_F32 },
    { "C64", 64, 0 },        { "F64", 64, CAIRN_F64 }, { "I64", 64, 0 },
    { "U64", 64, 0 },
};

/* Returns the rank of the dtype with this name, by which the format sorts tensors; -1: there is no such
 * dtype. */
static int safetensors_dtype_rank(const char *dtype_name)
{
    for (size_t i = 0; i < sizeof dtypes / sizeof dtypes[0]; i++) {
        if (strcmp(dtypes[i].name, dtype_name) == 0) return (int)i;
    }
    return -1;
}

cairn_status safetensors_header_bytes(const uint8_t *prefix, size_t have, uint64_t file_bytes,
                                      uint64_t *json_bytes_out, struct sentence *why)
{
    if (have < 8 || file_bytes < 8) {
        return fail_with(why, CAIRN_ERR_MALFORMED,
                         "the file has %" PRIu64 " bytes, less than the 8 of a header's length",
                         file_bytes);
    }
    const uint64_t json_bytes = le_get(prefix, 8);
    if (json_bytes > CAIRN_SAFETENSORS_HEADER_MAX) {
        return fail_with(why, CAIRN_ERR_MALFORMED,
                         "the header would have %" PRIu64 " bytes; the format allows %d",
                         json_bytes, CAIRN_SAFETENSORS_HEADER_MAX);
    }
    if (json_bytes > file_bytes - 8) {
        return fail_with(why, CAIRN_ERR_MALFORMED,
                         "the header should have %" PRIu64
                         " bytes, but the file ends after %" PRIu64 " (cut off?)",
                         json_bytes, file_bytes - 8);
    }
    *json_bytes_out = json_bytes;
    return CAIRN_OK;
}

static cairn_status wrong(struct sentence *why, const char *key, const char *what)
{
    return fail_with(why, CAIRN_ERR_MALFORMED, "tensor \"%s\": %s", key, what);
}

/* Reads a list of at most `most` integers that are not negative. Returns how many they are; -1: it is no
 * such list. */
static int read_numbers(const json_t *list, uint64_t *numbers, size_t most)
{
    if (!json_is_array(list) || json_array_size(list) > most) return -1;
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *number = json_array_get(list, i);
        if (!json_is_integer(number) || json_integer_value(number) < 0) return -1;
        numbers[i] = (uint64_t)json_integer_value(number);
    }
    return (int)json_array_size(list);
}

static cairn_status read_entry(const char *key, const json_t *value, struct safetensors_entry *e,
                               struct sentence *why)
{
    const char *dtype = json_string_value(json_object_get(value, "dtype"));
    const json_t *shape = json_object_get(value, "shape");
    uint64_t offsets[2];
    if (json_object_size(value) != 3 || dtype == NULL || !json_is_array(shape) ||
        read_numbers(json_object_get(value, "data_offsets"), offsets, 2) != 2) {
        return wrong(why, key, "it needs dtype, shape and two data_offsets, and nothing else");
    }
    const int rank = safetensors_dtype_rank(dtype);
    if (rank < 0) return wrong(why, key, "its dtype is not one of the format");
    if (json_array_size(shape) > CAIRN_RANK_MAX) {
        return fail_with(why, CAIRN_ERR_UNSUPPORTED, "tensor \"%s\" has %zu dimensions, over %d",
                         key, json_array_size(shape), CAIRN_RANK_MAX);
    }
    if (read_numbers(shape, e->box.extent, CAIRN_RANK_MAX) < 0) {
        return wrong(why, key, "its shape is not a list of whole numbers from 0");
    }
    e->box.rank = (uint32_t)json_array_size(shape);
    e->dtype_name = dtypes[rank].name;
    e->dtype = (cairn_dtype)dtypes[rank].dtype;
    e->begin = offsets[0];
    e->end = offsets[1];
    e->key = strdup(key);
    return e->key != NULL ? CAIRN_OK : CAIRN_ERR_NO_MEMORY;
}

static int offset_order(const void *a, const void *b)
{
    const struct safetensors_entry *x = a, *y = b;
    if (x->begin != y->begin) return x->begin < y->begin ? -1 : 1;
    return x->end != y->end ? (x->end < y->end ? -1 : 1) : 0;
}

static cairn_status judge_size(const struct safetensors_entry *e, struct sentence *why)
{
    uint64_t bits = dtypes[safetensors_dtype_rank(e->dtype_name)].bits;
    for (uint32_t d = 0; d < e->box.rank; d++) {
        if (__builtin_mul_overflow(bits, e->box.extent[d], &bits)) {
            return wrong(why, e->key, "its shape overflows 64 bits");
        }
    }
    if (bits % 8 != 0) return wrong(why, e->key, "it does not end on a whole byte");
    if (bits / 8 != e->end - e->begin) {
        return fail_with(why, CAIRN_ERR_MALFORMED,
                         "tensor \"%s\": dtype and shape need %" PRIu64
                         " bytes, data_offsets give %" PRIu64,
                         e->key, bits / 8, e->end - e->begin);
    }
    return CAIRN_OK;
}

/* Sorts the entries. Checks that they cover the bytes after the header, without gaps or overlaps. */
static cairn_status judge_offsets(struct safetensors *s, uint64_t data_bytes, struct sentence *why)
{
    if (s->entry_count > 1) qsort(s->entries, s->entry_count, sizeof *s->entries, offset_order);
    uint64_t end = 0;
    for (size_t i = 0; i < s->entry_count; i++) {
        const struct safetensors_entry *e = &s->entries[i];
        if (e->begin != end || e->end < e->begin) {
            return wrong(why, e->key,
                         "its data_offsets do not begin where the tensor before it ends");
        }
        CAIRN_TRY(judge_size(e, why));
        end = e->end;
    }
    if (end != data_bytes) {
        return fail_with(why, CAIRN_ERR_MALFORMED,
                         "the tensors have %" PRIu64 " bytes, the file has %" PRIu64
                         " after the header (cut off, or something appended)",
                         end, data_bytes);
    }
    return CAIRN_OK;
}

/* Reads saved_offsets of every entry from the JSON text `info`. */
static cairn_status read_boxes(struct safetensors *s, const char *info, struct sentence *why)
{
    json_error_t error;
    json_t *root = NULL;
    cairn_status status = json_text_parse(info, strlen(info), &root, &error);
    if (status == CAIRN_ERR_NO_MEMORY) return status;
    if (!json_is_object(root)) {
        status = fail_with(why, CAIRN_ERR_MALFORMED, "DCP_SHARDING_INFO is not a JSON object");
    }
    for (size_t i = 0; i < s->entry_count && status == CAIRN_OK; i++) {
        struct safetensors_entry *e = &s->entries[i];
        const json_t *offsets = json_object_get(json_object_get(root, e->key), "saved_offsets");
        if (read_numbers(offsets, e->box.start, CAIRN_RANK_MAX) != (int)e->box.rank) {
            status = wrong(why, e->key,
                           "DCP_SHARDING_INFO has no saved_offsets of its rank for it");
        }
    }
    json_decref(root);
    s->has_boxes = status == CAIRN_OK;
    return status;
}

static cairn_status read_metadata(struct safetensors *s, json_t *metadata, struct sentence *why)
{
    if (metadata == NULL) return CAIRN_OK;
    const char *key;
    json_t *value;
    bool strings = json_is_object(metadata);
    json_object_foreach(metadata, key, value) strings = strings && json_is_string(value);
    if (!strings) {
        return fail_with(why, CAIRN_ERR_MALFORMED, "__metadata__ has something else than strings");
    }
    const char *info = json_string_value(json_object_get(metadata, "DCP_SHARDING_INFO"));
    return info != NULL ? read_boxes(s, info, why) : CAIRN_OK;
}

static cairn_status read_root(json_t *root, uint64_t data_bytes, struct safetensors *s,
                              struct sentence *why)
{
    const char *key;
    json_t *value;
    s->entries = calloc(json_object_size(root) + 1, sizeof *s->entries);
    if (s->entries == NULL) return CAIRN_ERR_NO_MEMORY;
    json_object_foreach(root, key, value)
    {
        if (strcmp(key, "__metadata__") == 0) continue;
        cairn_status status = read_entry(key, value, &s->entries[s->entry_count], why);
        if (status != CAIRN_OK) return status;
        s->entry_count++;
    }
    cairn_status status = judge_offsets(s, data_bytes, why);
    if (status == CAIRN_OK) status = read_metadata(s, json_object_get(root, "__metadata__"), why);
    return status;
}

static cairn_status load_json(const uint8_t *json, size_t json_bytes, json_t **root_out,
                              struct sentence *why)
{
    if (json_bytes == 0 || json[0] != '{') {
        return fail_with(why, CAIRN_ERR_MALFORMED, "the header does not begin with {");
    }
    json_error_t error;
    const cairn_status status = json_text_parse((const char *)json, json_bytes, root_out, &error);
    if (status != CAIRN_ERR_MALFORMED) return status;
    if (json_error_code(&error) == json_error_invalid_utf8) {
        return fail_with(why, CAIRN_ERR_MALFORMED, "the header is not UTF-8");
    }
    return fail_with(why, CAIRN_ERR_MALFORMED, "the header is not JSON: %s at byte %d", error.text,
                     error.position);
}

cairn_status safetensors_parse(const uint8_t *json, size_t json_bytes, uint64_t file_bytes,
                               struct safetensors *out, struct sentence *why)
{
    assert(file_bytes >= 8 && json_bytes <= file_bytes - 8);
    json_t *root = NULL;
    CAIRN_TRY(load_json(json, json_bytes, &root, why));
    struct safetensors s = { NULL, 0, false };
    cairn_status status = read_root(root, file_bytes - 8 - json_bytes, &s, why);
    json_decref(root);
    if (status != CAIRN_OK) {
        safetensors_release(&s);
        return status;
    }
    *out = s;
    return CAIRN_OK;
}

void safetensors_release(struct safetensors *s)
{
    for (size_t i = 0; i < s->entry_count; i++) free(s->entries[i].key);
    free(s->entries);
    *s = (struct safetensors) { NULL, 0, false };
}

/* ==== safetensors read ==== */

/* Finds the weight that each tensor takes, and reads its elements as fp32. */

/* ---- matching ---- */

struct matching {
    const struct weights *w;
    const char *prefix;
    size_t wrong;
    struct sentence *why;
};

__attribute__((format(printf, 2, 3))) static void complain(struct matching *m, const char *format,
                                                           ...)
{
    if (++m->wrong > CAIRN_WEIGHTS_NAMES_MAX) return;
    char line[2 * CAIRN_NAME_MAX];
    va_list args;
    va_start(args, format);
    vsnprintf(line, sizeof line, format, args);
    va_end(args);
    sentence_add(m->why, "\n%s", line);
}

/* Writes a shape as text, such as "[512,784]". */
static const char *shape_text(uint32_t rank, const uint64_t *dim, char text[static 180])
{
    size_t used = (size_t)snprintf(text, 180, "[");
    for (uint32_t d = 0; d < rank; d++)
        used += (size_t)snprintf(text + used, 180 - used, "%s%" PRIu64, d > 0 ? "," : "", dim[d]);
    snprintf(text + used, 180 - used, "]");
    return text;
}

static const struct weight *look_up(const struct matching *m, const char *name)
{
    const struct weight *weight = weights_find(m->w, name);
    if (weight != NULL || m->prefix == NULL || m->prefix[0] == '\0') return weight;
    char prefixed[2 * CAIRN_NAME_MAX + 2];
    const int n = snprintf(prefixed, sizeof prefixed, "%s%s", m->prefix, name);
    return n < (int)sizeof prefixed ? weights_find(m->w, prefixed) : NULL;
}

static void match_tensor(struct matching *m, const struct tensor_spec *tensor,
                         const struct weight **from_out)
{
    *from_out = NULL;
    if (tensor->alias_of != NULL) return;   // an alias has no state of its own
    if (tensor->kind == CAIRN_BLOB) return; // a worker puts a blob, even if a weight has its name
    *from_out = look_up(m, tensor->name);
    if (*from_out == NULL) {
        if (tensor->init.kind == CAIRN_INIT_NONE && geometry_of(&tensor->shape).elems > 0)
            complain(m, "%s is missing there, and has no initializer", tensor->name);
        return;
    }
    const struct safetensors_entry *e = (*from_out)->entry;
    const struct shape *shape = &tensor->shape;
    if (e->box.rank != shape->rank ||
        memcmp(e->box.extent, shape->dim, shape->rank * sizeof shape->dim[0]) != 0) {
        char here[180], there[180];
        complain(m, "%s is %s in the job, %s there", tensor->name,
                 shape_text(shape->rank, shape->dim, here),
                 shape_text(e->box.rank, e->box.extent, there));
    } else if (!weight_readable(*from_out)) {
        complain(m, "%s is %s there; F32, BF16, F16 and F64 can be read", tensor->name,
                 e->dtype_name);
    }
}

static int pointer_order(const void *a, const void *b)
{
    const struct weight *const *x = a, *const *y = b;
    return *x < *y ? -1 : *x > *y;
}

/* Lists in `extra` the weights that no tensor takes. Sets *refused_out to how many of them are readable, so
 * that a job could have them. */
static cairn_status note_extra(const struct matching *m, const struct job_spec_data *spec,
                               const struct weight **from, struct sentence *extra,
                               size_t *refused_out)
{
    const struct weights *w = m->w;
    const size_t count = spec->tensor_count;
    const struct weight **taken = calloc(count + 1, sizeof *taken);
    if (taken == NULL) return CAIRN_ERR_NO_MEMORY;
    for (size_t i = 0; i < count; i++)
        taken[i] = spec->tensors[i].alias_of != NULL ? look_up(m, spec->tensors[i].name) : from[i];
    qsort(taken, count, sizeof *taken, pointer_order);
    struct sentence names = { "" };
    size_t spare = 0, t = 0;
    *refused_out = 0;
    for (size_t i = 0; i < w->weight_count; i++) {
        while (t < count && taken[t] < &w->weights[i]) t++;
        if (t < count && taken[t] == &w->weights[i]) continue;
        *refused_out += weight_readable(&w->weights[i]);
        if (spare++ < CAIRN_WEIGHTS_NAMES_MAX)
            sentence_add(&names, "%s %s", spare > 1 ? "," : "", w->weights[i].key);
    }
    free(taken);
    sentence_set(extra, "%s", "");
    if (spare > 0)
        sentence_set(extra, "%zu tensors that the job does not take:%s", spare, names.text);
    return CAIRN_OK;
}

cairn_status weights_match(const struct weights *w, const struct job_spec_data *spec,
                           const char *prefix, const struct weight **from_out,
                           struct sentence *extra, struct sentence *why)
{
    struct sentence lines = { "" };
    struct matching m = { .w = w, .prefix = prefix, .why = &lines };
    for (size_t i = 0; i < spec->tensor_count; i++)
        match_tensor(&m, &spec->tensors[i], &from_out[i]);
    if (m.wrong > 0) {
        sentence_set(why, "%s does not fit the job in %zu tensors:%s", w->path, m.wrong,
                     lines.text);
        if (m.wrong > CAIRN_WEIGHTS_NAMES_MAX)
            sentence_add(why, "\nand %zu more", m.wrong - CAIRN_WEIGHTS_NAMES_MAX);
        return CAIRN_ERR_MISMATCH;
    }
    size_t refused;
    if (note_extra(&m, spec, from_out, extra, &refused) != CAIRN_OK)
        return fail_with(why, CAIRN_ERR_NO_MEMORY, "out of memory");
    if (refused == 0 || spec->init_extra_ok) return CAIRN_OK;
    return fail_with(why, CAIRN_ERR_MISMATCH,
                     "%s has %s. Is it of another model? To leave them out, say init_extra_ok",
                     w->path, extra->text);
}

/* ---- reading ---- */

/* Converts IEEE binary16, exactly. */
static float f32_of_f16(uint16_t half)
{
    const uint32_t sign = (uint32_t)(half & 0x8000u) << 16;
    const uint32_t exponent = half >> 10 & 0x1fu, fraction = half & 0x3ffu;
    if (exponent == 0) {
        const uint32_t magnitude = f32_bits((float)fraction * 0x1p-24f);
        return f32_from_bits(sign | magnitude);
    }
    const uint32_t wide = exponent == 0x1f ? 0xffu : exponent + 112;
    return f32_from_bits(sign | wide << 23 | fraction << 13);
}

bool weight_readable(const struct weight *weight)
{
    return weight->entry->dtype != 0 && weight->entry->dtype != CAIRN_U8;
}

/* Converts elements to fp32. `bytes` are `elems` little-endian elements of `dtype`. */
static void widen(const uint8_t *bytes, cairn_dtype dtype, size_t elems, float *out)
{
    for (size_t i = 0; i < elems; i++) {
        if (dtype == CAIRN_F64) {
            double value;
            memcpy(&value, bytes + 8 * i, sizeof value);
            out[i] = (float)value;
            continue;
        }
        uint16_t half;
        memcpy(&half, bytes + 2 * i, sizeof half);
        out[i] = dtype == CAIRN_BF16 ? f32_from_bits((uint32_t)half << 16) : f32_of_f16(half);
    }
}

/* Opens a file for reading, if it is still the file that was checked. */
static cairn_status use_file(struct weights *w, uint32_t number, struct sentence *why)
{
    const struct weights_file *file = &w->files[number];
    struct stat info;
    int fd;
    if (w->file_fd >= 0 && w->file == number) return CAIRN_OK;
    CAIRN_TRY(weights_open_beneath(w, file->path, &fd, &info, why));
    if (info.st_dev != file->judged.st_dev || info.st_ino != file->judged.st_ino ||
        info.st_size != file->judged.st_size ||
        info.st_mtim.tv_sec != file->judged.st_mtim.tv_sec ||
        info.st_mtim.tv_nsec != file->judged.st_mtim.tv_nsec) {
        close(fd);
        return fail_with(why, CAIRN_ERR_CORRUPT, "%s: %s was changed while it was read", w->path,
                         file->path);
    }
    if (w->file_fd >= 0) close(w->file_fd);
    w->file_fd = fd;
    w->file = number;
    return CAIRN_OK;
}

cairn_status weights_read(struct weights *w, const struct weight *weight, uint64_t first_elem,
                          uint64_t elem_count, float *out, struct sentence *why)
{
    if (w->source != NULL)
        return w->source->read(w->source, weight, first_elem, elem_count, out, why);
    const struct safetensors_entry *e = weight->entry;
    const struct weights_file *file = &w->files[weight->file];
    const size_t elem_bytes = dtype_size((int)e->dtype);
    uint8_t piece[65536];
    assert(elem_bytes != 0 && first_elem + elem_count <= (e->end - e->begin) / elem_bytes);
    cairn_status status = use_file(w, weight->file, why);
    uint64_t offset = file->data_at + e->begin + first_elem * elem_bytes;
    if (status == CAIRN_OK && e->dtype == CAIRN_F32) {
        return weights_pread(w->file_fd, file->path, out, (size_t)elem_count * sizeof *out, offset,
                             why);
    }
    while (status == CAIRN_OK && elem_count > 0) {
        size_t elems = sizeof piece / elem_bytes;
        if (elems > elem_count) elems = (size_t)elem_count;
        status = weights_pread(w->file_fd, file->path, piece, elems * elem_bytes, offset, why);
        if (status != CAIRN_OK) break;
        widen(piece, e->dtype, elems, out);
        out += elems;
        elem_count -= elems;
        offset += elems * elem_bytes;
    }
    return status;
}

/* ==== safetensors build ==== */

/* Builds the header of a safetensors file. */

/* A text that grows. After a failed allocation nothing more is appended; the caller checks `failed` at the
 * end. */
struct text {
    char *bytes; /* owned */
    size_t length, capacity;
    bool failed;
};

static void append(struct text *t, const char *bytes, size_t count)
{
    if (t->failed) return;
    if (count > t->capacity - t->length) {
        size_t wanted = 2 * t->capacity + count + 256;
        char *grown = realloc(t->bytes, wanted);
        if (grown == NULL) {
            t->failed = true;
            return;
        }
        t->bytes = grown;
        t->capacity = wanted;
    }
    memcpy(t->bytes + t->length, bytes, count);
    t->length += count;
}

static void append_text(struct text *t, const char *text)
{
    append(t, text, strlen(text));
}

/* Appends text as it stands inside a JSON string. */
static void append_escaped(struct text *t, const char *text, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        const unsigned char c = (unsigned char)text[i];
        char code[8];
        if (c == '"' || c == '\\')
            append(t, (char[]) { '\\', (char)c }, 2);
        else if (c < 0x20)
            append(t, code, (size_t)snprintf(code, sizeof code, "\\u%04x", c));
        else
            append(t, text + i, 1);
    }
}

static void append_key(struct text *t, const char *key)
{
    append(t, "\"", 1);
    append_escaped(t, key, strlen(key));
    append(t, "\":", 2);
}

static void append_numbers(struct text *t, const uint64_t *numbers, uint32_t count)
{
    append(t, "[", 1);
    for (uint32_t i = 0; i < count; i++) {
        char digits[24];
        append(t, digits,
               (size_t)snprintf(digits, sizeof digits, "%s%" PRIu64, i > 0 ? "," : "", numbers[i]));
    }
    append(t, "]", 1);
}

static const char *dtype_name_of(cairn_dtype dtype)
{
    switch (dtype) {
    case CAIRN_U8: return "U8";
    case CAIRN_F32: return "F32";
    case CAIRN_BF16: return "BF16";
    case CAIRN_F16: return "F16";
    case CAIRN_F64: return "F64";
    }
    abort(); // the caller planned a value that is not a dtype
}

static int file_order(const void *a, const void *b)
{
    const struct safetensors_entry *x = a, *y = b;
    const int rank_x = safetensors_dtype_rank(x->dtype_name);
    const int rank_y = safetensors_dtype_rank(y->dtype_name);
    return rank_x != rank_y ? (rank_x < rank_y ? 1 : -1) : strcmp(x->key, y->key);
}

static uint64_t entry_data_bytes(const struct safetensors_entry *e)
{
    uint64_t bytes = dtypes[safetensors_dtype_rank(e->dtype_name)].bits / 8;
    for (uint32_t d = 0; d < e->box.rank; d++) {
        const bool fits = !__builtin_mul_overflow(bytes, e->box.extent[d], &bytes);
        assert(fits);
        (void)fits;
    }
    return bytes;
}

static uint64_t place_entries(struct safetensors_entry *entries, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (entries[i].dtype_name == NULL) entries[i].dtype_name = dtype_name_of(entries[i].dtype);
    if (count > 1) qsort(entries, count, sizeof *entries, file_order);
    uint64_t end = 0;
    for (size_t i = 0; i < count; i++) {
        assert(i == 0 || strcmp(entries[i - 1].key, entries[i].key) != 0);
        entries[i].begin = end;
        const bool fits = !__builtin_add_overflow(end, entry_data_bytes(&entries[i]), &end);
        assert(fits);
        (void)fits;
        entries[i].end = end;
    }
    return end;
}

/* Appends {"<key>":{"saved_offsets":[0,4096]},...}. */
static void append_sharding_info(struct text *t, const struct safetensors_entry *entries,
                                 size_t count)
{
    append(t, "{", 1);
    for (size_t i = 0; i < count; i++) {
        if (i > 0) append(t, ",", 1);
        append_key(t, entries[i].key);
        append_text(t, "{\"saved_offsets\":");
        append_numbers(t, entries[i].box.start, entries[i].box.rank);
        append(t, "}", 1);
    }
    append(t, "}", 1);
}

static void append_boxes(struct text *t, const struct safetensors_entry *entries, size_t count)
{
    struct text info = { NULL, 0, 0, false };
    append_sharding_info(&info, entries, count);
    append_text(t, "\"DCP_SHARDING_INFO\":\"");
    if (info.failed)
        t->failed = true;
    else
        append_escaped(t, info.bytes, info.length);
    append_text(t, "\",\"DCP_VERSION\":\"1.0\",");
    free(info.bytes);
}

static void append_notes(struct text *t, const struct safetensors_note *notes, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        append(t, ",", 1);
        append_key(t, notes[i].key);
        append(t, "\"", 1);
        append_escaped(t, notes[i].value, strlen(notes[i].value));
        append(t, "\"", 1);
    }
}

static void append_entry(struct text *t, const struct safetensors_entry *e)
{
    append(t, ",", 1);
    append_key(t, e->key);
    append_text(t, "{\"dtype\":\"");
    append_text(t, e->dtype_name);
    append_text(t, "\",\"shape\":");
    append_numbers(t, e->box.extent, e->box.rank);
    append_text(t, ",\"data_offsets\":");
    append_numbers(t, (const uint64_t[]) { e->begin, e->end }, 2);
    append(t, "}", 1);
}

/* Builds a header. With `boxes`, also writes where each entry begins in its tensor. */
static cairn_status build(struct safetensors_entry *entries, size_t entry_count, bool boxes,
                          const struct safetensors_note *notes, size_t note_count,
                          uint8_t **header_out, size_t *header_bytes_out, uint64_t *data_bytes_out)
{
    const uint64_t data_bytes = place_entries(entries, entry_count);
    struct text t = { NULL, 0, 0, false };
    append(&t, "\0\0\0\0\0\0\0\0{", 9);
    append_text(&t, "\"__metadata__\":{");
    if (boxes) append_boxes(&t, entries, entry_count);
    append_text(&t, "\"format\":\"pt\"");
    append_notes(&t, notes, note_count);
    append_text(&t, "}");
    for (size_t i = 0; i < entry_count; i++) append_entry(&t, &entries[i]);
    append(&t, "}", 1);
    append(&t, "       ", (8 - t.length % 8) % 8);
    if (t.failed || t.length - 8 > CAIRN_SAFETENSORS_HEADER_MAX) {
        free(t.bytes);
        return CAIRN_ERR_NO_MEMORY;
    }
    le_put((uint8_t *)t.bytes, t.length - 8, 8);
    *header_out = (uint8_t *)t.bytes;
    *header_bytes_out = t.length;
    *data_bytes_out = data_bytes;
    return CAIRN_OK;
}

cairn_status safetensors_build(struct safetensors_entry *entries, size_t entry_count,
                               uint8_t **header_out, size_t *header_bytes_out,
                               uint64_t *data_bytes_out)
{
    return build(entries, entry_count, true, NULL, 0, header_out, header_bytes_out, data_bytes_out);
}

cairn_status safetensors_build_whole(struct safetensors_entry *entries, size_t entry_count,
                                     const struct safetensors_note *notes, size_t note_count,
                                     uint8_t **header_out, size_t *header_bytes_out,
                                     uint64_t *data_bytes_out)
{
    return build(entries, entry_count, false, notes, note_count, header_out, header_bytes_out,
                 data_bytes_out);
}

size_t safetensors_entry_bytes(const char *key, uint32_t rank)
{
    // The key is written twice: once escaped (at most 2 bytes for each of its bytes), and once in a JSON
    // text that is inside a string (at most 4). Each dimension adds two numbers, and data_offsets two more.
    // A number has at most 20 digits.
    return 6 * strlen(key) + 42 * (size_t)rank + 160;
}

/* ==== safetensors beneath ==== */

/* Looks up and opens files, only beneath the folders that an operator allows. */

static cairn_status refuse_open(const struct weights *w, const char *path, int error,
                                struct sentence *why)
{
    switch (error) {
    case ENOENT:
    case ENOTDIR: return fail_with(why, CAIRN_ERR_NOT_FOUND, "%s: there is no %s", w->path, path);
    case EXDEV:
    case ELOOP:
        return fail_with(why, CAIRN_ERR_REFUSED,
                         "%s: %s leads out of the folder that import.folders allows", w->path,
                         path);
    case ENOSYS:
        return fail_with(why, CAIRN_ERR_UNSUPPORTED, "%s: the kernel has no openat2 (Linux 5.6)",
                         w->path);
    default:
        return fail_with(why, CAIRN_ERR_IO, "%s: opening %s: %s", w->path, path, strerror(error));
    }
}

cairn_status weights_open_beneath(const struct weights *w, const char *path, int *fd_out,
                                  struct stat *info_out, struct sentence *why)
{
    // This does not block, because a FIFO in the folder must not stop the thread.
    const struct open_how how = { .flags = O_RDONLY | O_NONBLOCK | O_CLOEXEC,
                                  .resolve = RESOLVE_BENEATH | RESOLVE_NO_MAGICLINKS };
    const int fd = (int)syscall(SYS_openat2, w->root_fd, path, &how, sizeof how);
    if (fd < 0) return refuse_open(w, path, errno, why);
    if (fstat(fd, info_out) != 0 || (!S_ISREG(info_out->st_mode) && !S_ISDIR(info_out->st_mode))) {
        close(fd);
        return fail_with(why, CAIRN_ERR_REFUSED, "%s: %s is neither a file nor a folder", w->path,
                         path);
    }
    *fd_out = fd;
    return CAIRN_OK;
}

/* Returns the part of `path` that is beneath the folder root[0..length). NULL: the path is not in this
 * folder. */
static const char *beneath(const char *path, const char *root, size_t length)
{
    while (length > 0 && root[length - 1] == '/') length--;
    if (strncmp(path, root, length) != 0) return NULL;
    if (path[length] != '/' && path[length] != '\0') return NULL;
    path += length;
    while (*path == '/') path++;
    return path;
}

const char *weights_enter_root(const char *roots, struct weights *w, struct sentence *why)
{
    for (const char *root = roots; *root != '\0';) {
        const size_t length = strcspn(root, ":");
        const char *rest = root[0] == '/' ? beneath(w->path, root, length) : NULL;
        if (rest != NULL) {
            char *name = strndup(root, length);
            w->root_fd = name != NULL ? open(name, O_PATH | O_DIRECTORY | O_CLOEXEC) : -1;
            free(name);
            if (w->root_fd >= 0) return rest;
        }
        root += length + (root[length] == ':');
    }
    sentence_set(why,
                 "%s is in none of the folders that weights may be read from here (%s); an "
                 "operator allows one with import.folders in the shards' configuration",
                 w->path, roots[0] != '\0' ? roots : "none");
    return NULL;
}

/* Finds the path of the open folder as the kernel reports it, which has no links. */
static cairn_status name_folder(const struct weights *w, int fd, char **folder_out,
                                struct sentence *why)
{
    char link[32];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    *folder_out = realpath(link, NULL);
    if (*folder_out != NULL) return CAIRN_OK;
    return fail_with(why, CAIRN_ERR_IO, "%s: its own path: %s", w->path, strerror(errno));
}

static bool has_file(int folder, const char *name)
{
    return faccessat(folder, name, F_OK, AT_SYMLINK_NOFOLLOW) == 0;
}

static cairn_status find_in_folder(const struct weights *w, const char *rest, const char *file,
                                   char **folder_out, struct sentence *why)
{
    int fd;
    struct stat info;
    cairn_status status = weights_open_beneath(w, rest[0] != '\0' ? rest : ".", &fd, &info, why);
    if (status != CAIRN_OK) return status;
    if (S_ISDIR(info.st_mode) && has_file(fd, file) && !has_file(fd, CAIRN_WEIGHTS_WHOLE) &&
        !has_file(fd, CAIRN_WEIGHTS_INDEX))
        status = name_folder(w, fd, folder_out, why);
    close(fd);
    return status;
}

cairn_status weights_folder_with(const char *roots, const char *path, const char *file,
                                 char **folder_out, struct sentence *why)
{
    struct weights w = { .root_fd = -1, .path = wire_text(path) };
    const char *rest = weights_enter_root(roots, &w, why);
    *folder_out = NULL;
    if (rest == NULL) return CAIRN_ERR_REFUSED;
    const cairn_status status = find_in_folder(&w, rest, file, folder_out, why);
    close(w.root_fd);
    return status;
}
