#include "client/ctl/snapshot/export_plan.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct planning {
    const struct cairn_job_spec_data *spec;
    const struct ctl_export_wish *wish;
    struct ctl_export_plan *plan;
    uint64_t file_data_bytes; /* of the last file */
    size_t file_header_bytes; /* at most; the same */
};

/* ---- files ---- */

static bool add_file(struct planning *p)
{
    struct ctl_export_plan *plan = p->plan;
    if (plan->file_count == plan->file_capacity) {
        const size_t wanted = plan->file_capacity * 2 + 8;
        struct cairn_snapshot_file *grown = realloc(plan->files, wanted * sizeof *grown);
        if (grown == NULL) return false;
        plan->files = grown;
        plan->file_capacity = wanted;
    }
    plan->files[plan->file_count++] = (struct cairn_snapshot_file) { .entries = NULL };
    p->file_data_bytes = 0;
    p->file_header_bytes = 0;
    return true;
}

static struct cairn_safetensors_entry *add_entry(struct cairn_snapshot_file *file)
{
    if (file->entry_count == file->entry_capacity) {
        const size_t wanted = file->entry_capacity * 2 + 16;
        struct cairn_safetensors_entry *grown = realloc(file->entries, wanted * sizeof *grown);
        if (grown == NULL) return NULL;
        file->entries = grown;
        file->entry_capacity = wanted;
    }
    struct cairn_safetensors_entry *entry = &file->entries[file->entry_count];
    *entry = (struct cairn_safetensors_entry) { .first_elem = 0 };
    return entry;
}

/* Into the last file, or a new one if that is full. */
static bool place(struct planning *p, struct cairn_safetensors_entry entry, uint64_t bytes)
{
    struct ctl_export_plan *plan = p->plan;
    const size_t header = entry.key != NULL
                              ? cairn_safetensors_entry_bytes(entry.key, entry.box.rank)
                              : 0;
    const bool full = p->file_data_bytes > 0 &&
                      (p->file_data_bytes + bytes > p->wish->file_bytes_max ||
                       p->file_header_bytes + header > CAIRN_SNAPSHOT_HEADER_BYTES);
    const bool placed = entry.key != NULL && ((plan->file_count > 0 && !full) || add_file(p));
    struct cairn_safetensors_entry *to = placed ? add_entry(&plan->files[plan->file_count - 1])
                                                : NULL;
    if (to == NULL) {
        free(entry.key);
        return false;
    }
    *to = entry;
    plan->files[plan->file_count - 1].entry_count++;
    p->file_data_bytes += bytes;
    p->file_header_bytes += header;
    plan->data_bytes += bytes;
    return true;
}

/* ---- tensors ---- */

/* `type`: of a buffer that is kept as its bytes; else NULL. */
static bool place_tensor(struct planning *p, size_t tensor, const struct cairn_shape *shape,
                         const struct ctl_number_type *type)
{
    const struct cairn_tensor_spec *t = &p->spec->tensors[tensor];
    struct cairn_safetensors_entry entry = { .key = strdup(t->name),
                                             .dtype_name = type != NULL ? type->safetensors : NULL,
                                             .dtype = type != NULL ? CAIRN_U8 : p->wish->dtype,
                                             .tensor = (uint32_t)tensor,
                                             .plane = CAIRN_PLANE_PARAM };
    uint64_t bytes = type != NULL ? type->bytes : cairn_dtype_bytes((int)entry.dtype);
    entry.box.rank = shape->rank;
    for (uint32_t d = 0; d < shape->rank; d++) bytes *= entry.box.extent[d] = shape->dim[d];
    p->plan->tensors++;
    return place(p, entry, bytes);
}

static bool is_tensor(const struct cairn_tensor_spec *t)
{
    return t->kind != CAIRN_BLOB && t->alias_of == NULL;
}

static bool place_all(struct planning *p)
{
    bool ok = true;
    for (size_t i = 0; i < p->spec->tensor_count && ok; i++) {
        const struct cairn_tensor_spec *t = &p->spec->tensors[i];
        const struct ctl_buffer *b = &p->wish->buffers[i];
        p->plan->aliases += t->alias_of != NULL;
        if (is_tensor(t)) ok = place_tensor(p, i, &t->shape, NULL);
        if (t->kind == CAIRN_BLOB && b->type != NULL) ok = place_tensor(p, i, &b->shape, b->type);
    }
    return ok;
}

/* ---- names, headers, indices ---- */

static void name_file(struct ctl_export_plan *plan, size_t at)
{
    struct cairn_snapshot_file *f = &plan->files[at];
    if (plan->file_count == 1)
        snprintf(f->path, sizeof f->path, "model.safetensors");
    else
        snprintf(f->path, sizeof f->path, "model-%05zu-of-%05zu.safetensors", at + 1,
                 plan->file_count);
}

/* The aliases of all of a tensor that the file holds. *notes_out is malloc'd, its texts borrowed. */
static bool list_aliases(const struct cairn_job_spec_data *spec,
                         const struct cairn_snapshot_file *file,
                         struct cairn_safetensors_note **notes_out, size_t *count_out)
{
    size_t count = 0;
    struct cairn_safetensors_note *notes = calloc(spec->tensor_count + 1, sizeof *notes);
    bool *held = calloc(spec->tensor_count + 1, sizeof *held);
    for (size_t i = 0; held != NULL && i < file->entry_count; i++)
        held[file->entries[i].tensor] = true;
    for (size_t i = 0; notes != NULL && held != NULL && i < spec->tensor_count; i++) {
        const struct cairn_tensor_spec *t = &spec->tensors[i];
        if (t->alias_of == NULL || t->alias_box != NULL || strcmp(t->name, "format") == 0) continue;
        if (held[cairn_spec_target(spec, i)])
            notes[count++] = (struct cairn_safetensors_note) { t->name, t->alias_of };
    }
    const bool ok = notes != NULL && held != NULL;
    free(held);
    *notes_out = notes;
    *count_out = count;
    return ok;
}

static bool build_header(const struct planning *p, struct cairn_snapshot_file *file)
{
    struct cairn_safetensors_note *notes = NULL;
    size_t note_count = 0;
    uint64_t data_bytes = 0;
    cairn_status status = CAIRN_ERR_NO_MEMORY;
    if (list_aliases(p->spec, file, &notes, &note_count))
        status = cairn_safetensors_build_whole(file->entries, file->entry_count, notes, note_count,
                                               &file->header, &file->header_bytes, &data_bytes);
    free(notes);
    file->file_bytes = file->header_bytes + data_bytes;
    return status == CAIRN_OK;
}

/* {"metadata": {"total_size": N}, "weight_map": {"<key>": "<file>"}} */
static bool build_index(struct ctl_export_plan *plan)
{
    json_t *map = json_object();
    bool ok = map != NULL;
    for (size_t i = 0; i < plan->file_count && ok; i++) {
        const struct cairn_snapshot_file *file = &plan->files[i];
        for (size_t e = 0; e < file->entry_count && ok; e++)
            ok = json_object_set_new(map, file->entries[e].key, json_string(file->path)) == 0;
    }
    json_t *root = json_pack("{s:{s:I}, s:o}", "metadata", "total_size",
                             (json_int_t)plan->data_bytes, "weight_map", map);
    plan->index = root != NULL && ok ? json_dumps(root, JSON_INDENT(2) | JSON_SORT_KEYS) : NULL;
    plan->index_bytes = plan->index != NULL ? strlen(plan->index) : 0;
    plan->index_name = CTL_EXPORT_INDEX_NAME;
    json_decref(root);
    return plan->index != NULL;
}

static bool finish(const struct planning *p)
{
    struct ctl_export_plan *plan = p->plan;
    for (size_t i = 0; i < plan->file_count; i++) {
        name_file(plan, i);
        if (!build_header(p, &plan->files[i])) return false;
    }
    return plan->file_count < 2 || build_index(plan);
}

/* One file, with all of it; of a folder, .metadata beside it. */
static cairn_status plan_torch(const struct cairn_manifest *manifest,
                               const struct ctl_export_wish *wish, struct ctl_export_plan *plan)
{
    const struct ctl_torch_wish w = { wish->dtype, CTL_EXPORT_PLANE_STEP, wish->buffers };
    struct planning p = { .plan = plan };
    if (!add_file(&p)) return CAIRN_ERR_NO_MEMORY;
    struct cairn_snapshot_file *file = &plan->files[0];
    snprintf(file->path, sizeof file->path, "%s",
             wish->is_dcp ? CTL_TORCH_FOLDER_FILE : CTL_TORCH_FILE_NAME);
    plan->index_name = CTL_TORCH_FOLDER_METADATA;
    cairn_status status = wish->is_dcp
                              ? cairn_ctl_torch_folder_plan(manifest, &w, file, &plan->torch,
                                                            &plan->index, &plan->index_bytes)
                              : cairn_ctl_torch_plan(manifest, &w, file, &plan->torch);
    for (size_t i = 0; i < file->entry_count && status == CAIRN_OK; i++) {
        const struct cairn_safetensors_entry *e = &file->entries[i];
        if (cairn_ctl_torch_is_text(e)) continue;
        plan->data_bytes += e->end - e->begin;
        plan->tensors += e->plane == CAIRN_PLANE_PARAM;
    }
    for (size_t i = 0; i < manifest->spec.tensor_count; i++)
        plan->aliases += wish->is_dcp && manifest->spec.tensors[i].alias_box != NULL;
    return status;
}

cairn_status cairn_ctl_export_plan_make(const struct cairn_manifest *manifest,
                                        const struct ctl_export_wish *wish,
                                        struct ctl_export_plan *plan_out)
{
    struct ctl_export_plan plan = { .files = NULL };
    struct planning p = { .spec = &manifest->spec, .wish = wish, .plan = &plan };
    cairn_status status = wish->is_torch || wish->is_dcp ? plan_torch(manifest, wish, &plan)
                          : place_all(&p) && finish(&p)  ? CAIRN_OK
                                                         : CAIRN_ERR_NO_MEMORY;
    if (status == CAIRN_OK && plan.file_count == 0) status = CAIRN_ERR_NOT_FOUND;
    for (size_t i = 0; i < manifest->spec.tensor_count; i++)
        plan.blobs += manifest->spec.tensors[i].kind == CAIRN_BLOB &&
                      wish->buffers[i].type == NULL &&
                      strcmp(manifest->spec.tensors[i].name, CTL_BUFFERS_BLOB) != 0;
    if (status == CAIRN_OK)
        *plan_out = plan;
    else
        cairn_ctl_export_plan_release(&plan);
    return status;
}

void cairn_ctl_export_plan_release(struct ctl_export_plan *plan)
{
    for (size_t i = 0; i < plan->file_count; i++) {
        struct cairn_snapshot_file *file = &plan->files[i];
        for (size_t e = 0; e < file->entry_count; e++) free(file->entries[e].key);
        free(file->entries);
        free(file->header);
    }
    free(plan->files);
    free(plan->index);
    cairn_ctl_torch_free(plan->torch);
    *plan = (struct ctl_export_plan) { .files = NULL };
}
