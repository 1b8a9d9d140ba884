#include "client/ctl/snapshot/export_plan.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proto/spec/planes.h"

struct planning {
    const struct cairn_job_spec_data *spec;
    const struct ctl_export_wish *wish;
    struct ctl_export_plan *plan;
    uint64_t file_data_bytes; /* of the last file */
    size_t file_header_bytes; /* at most; the same */
};

/* ---- files ---- */

static bool add_file(struct planning *p, size_t part)
{
    struct ctl_export_plan *plan = p->plan;
    if (plan->file_count == plan->file_capacity) {
        const size_t wanted = plan->file_capacity * 2 + 8;
        struct ctl_export_file *grown = realloc(plan->files, wanted * sizeof *grown);
        if (grown == NULL) return false;
        plan->files = grown;
        plan->file_capacity = wanted;
    }
    plan->files[plan->file_count++] = (struct ctl_export_file) { .part = part };
    plan->parts[part].file_count++;
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

/* Into the part's last file, or a new one if that is full. */
static bool place(struct planning *p, size_t part, struct cairn_safetensors_entry entry)
{
    struct ctl_export_plan *plan = p->plan;
    uint64_t bytes = cairn_dtype_bytes((int)entry.dtype);
    for (uint32_t d = 0; d < entry.box.rank; d++) bytes *= entry.box.extent[d];
    const size_t header = entry.key != NULL
                              ? cairn_safetensors_entry_bytes(entry.key, entry.box.rank)
                              : 0;
    const bool full = plan->parts[part].file_count > 0 && p->file_data_bytes > 0 &&
                      (p->file_data_bytes + bytes > p->wish->file_bytes_max ||
                       p->file_header_bytes + header > CAIRN_SNAPSHOT_HEADER_BYTES);
    bool placed = entry.key != NULL &&
                  ((plan->parts[part].file_count > 0 && !full) || add_file(p, part));
    struct cairn_safetensors_entry *to = placed ? add_entry(&plan->files[plan->file_count - 1].file)
                                                : NULL;
    if (to == NULL) {
        free(entry.key);
        return false;
    }
    *to = entry;
    plan->files[plan->file_count - 1].file.entry_count++;
    p->file_data_bytes += bytes;
    p->file_header_bytes += header;
    plan->parts[part].data_bytes += bytes;
    plan->data_bytes += bytes;
    return true;
}

/* ---- tensors ---- */

static bool place_tensor(struct planning *p, size_t part, size_t tensor)
{
    const struct cairn_tensor_spec *t = &p->spec->tensors[tensor];
    struct cairn_safetensors_entry entry = { .key = strdup(t->name),
                                             .dtype = p->wish->dtype,
                                             .tensor = (uint32_t)tensor,
                                             .plane = CAIRN_PLANE_PARAM };
    entry.box.rank = t->shape.rank;
    for (uint32_t d = 0; d < t->shape.rank; d++) entry.box.extent[d] = t->shape.dim[d];
    p->plan->tensors++;
    return place(p, part, entry);
}

/* A plane of the optimizer, or its count of steps, under torch's name for it. */
static bool place_state(struct planning *p, size_t part, size_t tensor, uint32_t plane,
                        const char *name)
{
    const struct cairn_tensor_spec *t = &p->spec->tensors[tensor];
    struct cairn_safetensors_entry entry = { .dtype = CAIRN_F32,
                                             .tensor = (uint32_t)tensor,
                                             .plane = plane };
    if (asprintf(&entry.key, "state.%s.%s", t->name, name) < 0) entry.key = NULL;
    entry.box.rank = plane == CTL_EXPORT_PLANE_STEP ? 0 : t->shape.rank;
    for (uint32_t d = 0; d < entry.box.rank; d++) entry.box.extent[d] = t->shape.dim[d];
    return place(p, part, entry);
}

static bool place_states(struct planning *p, size_t part, size_t tensor)
{
    const uint32_t stored = cairn_spec_planes(p->spec, tensor);
    const bool has_square = (stored & 1u << CAIRN_PLANE_EXP_AVG_SQ) != 0;
    if ((stored & 1u << CAIRN_PLANE_EXP_AVG) == 0) return true;
    if (!has_square) // SGD's: torch has no count of its steps
        return place_state(p, part, tensor, CAIRN_PLANE_EXP_AVG, "momentum_buffer");
    return place_state(p, part, tensor, CAIRN_PLANE_EXP_AVG, "exp_avg") &&
           place_state(p, part, tensor, CAIRN_PLANE_EXP_AVG_SQ, "exp_avg_sq") &&
           place_state(p, part, tensor, CTL_EXPORT_PLANE_STEP, "step");
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
        p->plan->blobs += t->kind == CAIRN_BLOB;
        p->plan->aliases += t->alias_of != NULL;
        if (is_tensor(t)) ok = place_tensor(p, 0, i);
    }
    for (size_t i = 0; i < p->spec->tensor_count && ok && p->wish->is_dcp; i++)
        if (is_tensor(&p->spec->tensors[i])) ok = place_states(p, 1, i);
    return ok;
}

/* ---- names, headers, indices ---- */

static void name_file(struct ctl_export_plan *plan, const struct ctl_export_wish *wish, size_t at,
                      size_t number)
{
    struct ctl_export_file *f = &plan->files[at];
    const struct ctl_export_part *part = &plan->parts[f->part];
    const char *slash = part->folder[0] != '\0' ? "/" : "";
    if (part->file_count == 1 && !wish->is_dcp)
        snprintf(f->file.path, sizeof f->file.path, "model.safetensors");
    else
        snprintf(f->file.path, sizeof f->file.path, "%s%smodel-%05zu-of-%05zu.safetensors",
                 part->folder, slash, number, part->file_count);
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
    if (p->wish->is_dcp)
        status = cairn_safetensors_build(file->entries, file->entry_count, &file->header,
                                         &file->header_bytes, &data_bytes);
    else if (list_aliases(p->spec, file, &notes, &note_count))
        status = cairn_safetensors_build_whole(file->entries, file->entry_count, notes, note_count,
                                               &file->header, &file->header_bytes, &data_bytes);
    free(notes);
    file->file_bytes = file->header_bytes + data_bytes;
    return status == CAIRN_OK;
}

/* {"metadata": {"total_size": N}, "weight_map": {"<key>": "<file>"}} */
static bool build_index(struct ctl_export_plan *plan, size_t part)
{
    struct ctl_export_part *p = &plan->parts[part];
    json_t *map = json_object();
    bool ok = map != NULL;
    for (size_t i = 0; i < plan->file_count && ok; i++) {
        const struct cairn_snapshot_file *file = &plan->files[i].file;
        const char *slash = strrchr(file->path, '/');
        if (plan->files[i].part != part) continue;
        for (size_t e = 0; e < file->entry_count && ok; e++)
            ok = json_object_set_new(map, file->entries[e].key,
                                     json_string(slash != NULL ? slash + 1 : file->path)) == 0;
    }
    json_t *root = json_pack("{s:{s:I}, s:o}", "metadata", "total_size", (json_int_t)p->data_bytes,
                             "weight_map", map);
    p->index = root != NULL && ok ? json_dumps(root, JSON_INDENT(2) | JSON_SORT_KEYS) : NULL;
    p->index_bytes = p->index != NULL ? strlen(p->index) : 0;
    json_decref(root);
    return p->index != NULL;
}

static bool finish(const struct planning *p)
{
    struct ctl_export_plan *plan = p->plan;
    size_t numbers[2] = { 0, 0 };
    for (size_t i = 0; i < plan->file_count; i++) {
        name_file(plan, p->wish, i, ++numbers[plan->files[i].part]);
        if (!build_header(p, &plan->files[i].file)) return false;
    }
    for (size_t part = 0; part < plan->part_count; part++)
        if (plan->parts[part].file_count > 1 && !build_index(plan, part)) return false;
    return true;
}

/* One file, with all of it. */
static cairn_status plan_torch(const struct cairn_manifest *manifest,
                               const struct ctl_export_wish *wish, struct ctl_export_plan *plan)
{
    struct planning p = { .plan = plan };
    if (!add_file(&p, 0)) return CAIRN_ERR_NO_MEMORY;
    struct cairn_snapshot_file *file = &plan->files[0].file;
    snprintf(file->path, sizeof file->path, CTL_TORCH_FILE_NAME);
    cairn_status status = cairn_ctl_torch_plan(manifest, wish->dtype, CTL_EXPORT_PLANE_STEP, file,
                                               &plan->torch);
    for (size_t i = 0; i < file->entry_count && status == CAIRN_OK; i++) {
        const struct cairn_safetensors_entry *e = &file->entries[i];
        if (cairn_ctl_torch_is_text(e)) continue;
        plan->data_bytes += e->end - e->begin;
        plan->tensors += e->plane == CAIRN_PLANE_PARAM;
    }
    for (size_t i = 0; i < manifest->spec.tensor_count; i++)
        plan->blobs += manifest->spec.tensors[i].kind == CAIRN_BLOB;
    return status;
}

cairn_status cairn_ctl_export_plan_make(const struct cairn_manifest *manifest,
                                        const struct ctl_export_wish *wish,
                                        struct ctl_export_plan *plan_out)
{
    struct ctl_export_plan plan = { .parts = { { .folder = wish->is_dcp ? "model" : "" },
                                               { .folder = "optim" } },
                                    .part_count = wish->is_dcp ? 2 : 1 };
    struct planning p = { .spec = &manifest->spec, .wish = wish, .plan = &plan };
    cairn_status status = wish->is_torch                ? plan_torch(manifest, wish, &plan)
                          : place_all(&p) && finish(&p) ? CAIRN_OK
                                                        : CAIRN_ERR_NO_MEMORY;
    if (status == CAIRN_OK && plan.file_count == 0) status = CAIRN_ERR_NOT_FOUND;
    if (status == CAIRN_OK)
        *plan_out = plan;
    else
        cairn_ctl_export_plan_release(&plan);
    return status;
}

void cairn_ctl_export_plan_release(struct ctl_export_plan *plan)
{
    for (size_t i = 0; i < plan->file_count; i++) {
        struct cairn_snapshot_file *file = &plan->files[i].file;
        for (size_t e = 0; e < file->entry_count; e++) free(file->entries[e].key);
        free(file->entries);
        free(file->header);
    }
    free(plan->files);
    cairn_ctl_torch_free(plan->torch);
    for (size_t i = 0; i < 2; i++) free(plan->parts[i].index);
    *plan = (struct ctl_export_plan) { .files = NULL };
}
