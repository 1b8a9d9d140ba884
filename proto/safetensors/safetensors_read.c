/* From a table of weights to values: which one a tensor takes, and its elements as fp32. */
#include <assert.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "proto/safetensors/safetensors_private.h"
#include "proto/spec/scalars.h"

/* ---- matching ---- */

struct matching {
    const struct cairn_weights *w;
    const char *prefix;
    size_t wrong;
    struct cairn_sentence *why;
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
    cairn_sentence_add(m->why, "\n%s", line);
}

/* "[512,784]" */
static const char *shape_text(uint32_t rank, const uint64_t *dim, char text[static 180])
{
    size_t used = (size_t)snprintf(text, 180, "[");
    for (uint32_t d = 0; d < rank; d++)
        used += (size_t)snprintf(text + used, 180 - used, "%s%" PRIu64, d > 0 ? "," : "", dim[d]);
    snprintf(text + used, 180 - used, "]");
    return text;
}

static const struct cairn_weight *look_up(const struct matching *m, const char *name)
{
    const struct cairn_weight *weight = cairn_weights_find(m->w, name);
    if (weight != NULL || m->prefix == NULL || m->prefix[0] == '\0') return weight;
    char prefixed[2 * CAIRN_NAME_MAX + 2];
    const int n = snprintf(prefixed, sizeof prefixed, "%s%s", m->prefix, name);
    return n < (int)sizeof prefixed ? cairn_weights_find(m->w, prefixed) : NULL;
}

static void match_tensor(struct matching *m, const struct cairn_tensor_spec *tensor,
                         const struct cairn_weight **from_out)
{
    *from_out = NULL;
    if (tensor->alias_of != NULL) return;   // has no state of its own
    if (tensor->kind == CAIRN_BLOB) return; // is put, whatever there is of that name
    *from_out = look_up(m, tensor->name);
    if (*from_out == NULL) {
        if (tensor->init.kind == CAIRN_INIT_NONE && cairn_geometry_of(&tensor->shape).elems > 0)
            complain(m, "%s is missing there, and has no initializer", tensor->name);
        return;
    }
    const struct cairn_safetensors_entry *e = (*from_out)->entry;
    const struct cairn_shape *shape = &tensor->shape;
    if (e->box.rank != shape->rank ||
        memcmp(e->box.extent, shape->dim, shape->rank * sizeof shape->dim[0]) != 0) {
        char here[180], there[180];
        complain(m, "%s is %s in the job, %s there", tensor->name,
                 shape_text(shape->rank, shape->dim, here),
                 shape_text(e->box.rank, e->box.extent, there));
    } else if (!cairn_weight_readable(*from_out)) {
        complain(m, "%s is %s there; F32, BF16, F16 and F64 can be read", tensor->name,
                 e->dtype_name);
    }
}

static int pointer_order(const void *a, const void *b)
{
    const struct cairn_weight *const *x = a, *const *y = b;
    return *x < *y ? -1 : *x > *y;
}

/* Lists in `extra` the weights that no tensor takes. *refused_out: how many of them a job could
 * have. */
static cairn_status note_extra(const struct matching *m, const struct cairn_job_spec_data *spec,
                               const struct cairn_weight **from, struct cairn_sentence *extra,
                               size_t *refused_out)
{
    const struct cairn_weights *w = m->w;
    const size_t count = spec->tensor_count;
    const struct cairn_weight **taken = calloc(count + 1, sizeof *taken);
    if (taken == NULL) return CAIRN_ERR_NO_MEMORY;
    for (size_t i = 0; i < count; i++)
        taken[i] = spec->tensors[i].alias_of != NULL ? look_up(m, spec->tensors[i].name) : from[i];
    qsort(taken, count, sizeof *taken, pointer_order);
    struct cairn_sentence names = { "" };
    size_t spare = 0, t = 0;
    *refused_out = 0;
    for (size_t i = 0; i < w->weight_count; i++) {
        while (t < count && taken[t] < &w->weights[i]) t++;
        if (t < count && taken[t] == &w->weights[i]) continue;
        *refused_out += cairn_weight_readable(&w->weights[i]);
        if (spare++ < CAIRN_WEIGHTS_NAMES_MAX)
            cairn_sentence_add(&names, "%s %s", spare > 1 ? "," : "", w->weights[i].key);
    }
    free(taken);
    cairn_sentence_set(extra, "%s", "");
    if (spare > 0)
        cairn_sentence_set(extra, "%zu tensors that the job does not take:%s", spare, names.text);
    return CAIRN_OK;
}

cairn_status cairn_weights_match(const struct cairn_weights *w,
                                 const struct cairn_job_spec_data *spec, const char *prefix,
                                 const struct cairn_weight **from_out, struct cairn_sentence *extra,
                                 struct cairn_sentence *why)
{
    struct cairn_sentence lines = { "" };
    struct matching m = { .w = w, .prefix = prefix, .why = &lines };
    for (size_t i = 0; i < spec->tensor_count; i++)
        match_tensor(&m, &spec->tensors[i], &from_out[i]);
    if (m.wrong > 0) {
        cairn_sentence_set(why, "%s does not fit the job in %zu tensors:%s", w->path, m.wrong,
                           lines.text);
        if (m.wrong > CAIRN_WEIGHTS_NAMES_MAX)
            cairn_sentence_add(why, "\nand %zu more", m.wrong - CAIRN_WEIGHTS_NAMES_MAX);
        return CAIRN_ERR_MISMATCH;
    }
    size_t refused;
    if (note_extra(&m, spec, from_out, extra, &refused) != CAIRN_OK)
        return cairn_fail(why, CAIRN_ERR_NO_MEMORY, "no memory");
    if (refused == 0 || spec->init_extra_ok) return CAIRN_OK;
    return cairn_fail(why, CAIRN_ERR_MISMATCH,
                      "%s has %s. Is it of another model? To leave them out, say init_extra_ok",
                      w->path, extra->text);
}

/* ---- reading ---- */

/* IEEE binary16, exactly. */
static float f32_of_f16(uint16_t half)
{
    const uint32_t sign = (uint32_t)(half & 0x8000u) << 16;
    const uint32_t exponent = half >> 10 & 0x1fu, fraction = half & 0x3ffu;
    if (exponent == 0) {
        const uint32_t magnitude = cairn_f32_bits((float)fraction * 0x1p-24f);
        return cairn_f32_of_bits(sign | magnitude);
    }
    const uint32_t wide = exponent == 0x1f ? 0xffu : exponent + 112;
    return cairn_f32_of_bits(sign | wide << 23 | fraction << 13);
}

bool cairn_weight_readable(const struct cairn_weight *weight)
{
    return weight->entry->dtype != 0 && weight->entry->dtype != CAIRN_U8;
}

/* bytes: little-endian, [elems] of dtype. */
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
        out[i] = dtype == CAIRN_BF16 ? cairn_f32_of_bits((uint32_t)half << 16) : f32_of_f16(half);
    }
}

/* The file that was judged, open for reading. */
static cairn_status use_file(struct cairn_weights *w, uint32_t number, struct cairn_sentence *why)
{
    const struct cairn_weights_file *file = &w->files[number];
    struct stat info;
    int fd;
    if (w->file_fd >= 0 && w->file == number) return CAIRN_OK;
    cairn_status status = cairn_weights_open_beneath(w, file->path, &fd, &info, why);
    if (status != CAIRN_OK) return status;
    if (info.st_dev != file->judged.st_dev || info.st_ino != file->judged.st_ino ||
        info.st_size != file->judged.st_size ||
        info.st_mtim.tv_sec != file->judged.st_mtim.tv_sec ||
        info.st_mtim.tv_nsec != file->judged.st_mtim.tv_nsec) {
        close(fd);
        return cairn_fail(why, CAIRN_ERR_CORRUPT, "%s: %s was changed while it was read", w->path,
                          file->path);
    }
    if (w->file_fd >= 0) close(w->file_fd);
    w->file_fd = fd;
    w->file = number;
    return CAIRN_OK;
}

cairn_status cairn_weights_read(struct cairn_weights *w, const struct cairn_weight *weight,
                                uint64_t first_elem, uint64_t elem_count, float *out,
                                struct cairn_sentence *why)
{
    if (w->source != NULL)
        return w->source->read(w->source, weight, first_elem, elem_count, out, why);
    const struct cairn_safetensors_entry *e = weight->entry;
    const struct cairn_weights_file *file = &w->files[weight->file];
    const size_t elem_bytes = cairn_dtype_bytes((int)e->dtype);
    uint8_t piece[65536];
    assert(elem_bytes != 0 && first_elem + elem_count <= (e->end - e->begin) / elem_bytes);
    cairn_status status = use_file(w, weight->file, why);
    uint64_t offset = file->data_at + e->begin + first_elem * elem_bytes;
    if (status == CAIRN_OK && e->dtype == CAIRN_F32) {
        return cairn_weights_pread(w->file_fd, file->path, out, (size_t)elem_count * sizeof *out,
                                   offset, why);
    }
    while (status == CAIRN_OK && elem_count > 0) {
        size_t elems = sizeof piece / elem_bytes;
        if (elems > elem_count) elems = (size_t)elem_count;
        status = cairn_weights_pread(w->file_fd, file->path, piece, elems * elem_bytes, offset,
                                     why);
        if (status != CAIRN_OK) break;
        widen(piece, e->dtype, elems, out);
        out += elems;
        elem_count -= elems;
        offset += elems * elem_bytes;
    }
    return status;
}
