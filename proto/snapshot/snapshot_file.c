#include "proto/snapshot/snapshot.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proto/spec/spec.h"

/* ==== snapshot names ==== */

/* Names of folders, files and keys of a snapshot. A name that comes from storage is checked: its numbers
 * are read, and the name that they give must be the same. */

void snapshot_id_make(uint64_t generation, uint64_t step, uint32_t attempt,
                      char id_out[CAIRN_SNAPSHOT_ID_BYTES])
{
    int used = snprintf(id_out, CAIRN_SNAPSHOT_ID_BYTES, "step-%012" PRIu64 "-g%" PRIu64, step,
                        generation);
    if (attempt > 1) {
        snprintf(id_out + used, CAIRN_SNAPSHOT_ID_BYTES - (size_t)used, "-%" PRIu32, attempt);
    }
}

bool snapshot_id_parse(const char *id, uint64_t *generation_out, uint64_t *step_out)
{
    uint64_t step = 0, generation = 0;
    uint32_t attempt = 1;
    char again[CAIRN_SNAPSHOT_ID_BYTES];
    // These widths cannot overflow, because 18 digits fit into 64 bits, and 9 digits into 32.
    if (sscanf(id, "step-%18" SCNu64 "-g%18" SCNu64 "-%9" SCNu32, &step, &generation, &attempt) < 2)
        return false;
    snapshot_id_make(generation, step, attempt, again);
    if (strcmp(again, id) != 0) return false;
    *generation_out = generation;
    *step_out = step;
    return true;
}

static const char *const folder_names[CAIRN_SNAPSHOT_FOLDERS] = {
    [CAIRN_SNAPSHOT_MODEL] = "model",
    [CAIRN_SNAPSHOT_OPTIM] = "optim",
    [CAIRN_SNAPSHOT_BLOBS] = "blobs",
};

const char *snapshot_folder_name(enum snapshot_folder folder)
{
    assert(folder < CAIRN_SNAPSHOT_FOLDERS);
    return folder_names[folder];
}

enum snapshot_folder snapshot_folder_of(const char *path)
{
    int folder = CAIRN_SNAPSHOT_MODEL;
    while (folder < CAIRN_SNAPSHOT_FOLDERS &&
           (strncmp(path, folder_names[folder], CAIRN_SNAPSHOT_FOLDER_CHARS) != 0 ||
            path[CAIRN_SNAPSHOT_FOLDER_CHARS] != '/'))
        folder++;
    return (enum snapshot_folder)folder;
}

bool snapshot_path_ok(const char *path)
{
    const enum snapshot_folder folder = snapshot_folder_of(path);
    unsigned shard, file, count;
    char again[CAIRN_SNAPSHOT_PATH_BYTES];
    if (folder == CAIRN_SNAPSHOT_FOLDERS ||
        sscanf(path + CAIRN_SNAPSHOT_FOLDER_CHARS + 1, "shard-%9u-model-%9u-of-%9u", &shard, &file,
               &count) != 3 ||
        shard == 0 || file == 0 || file > count) {
        return false;
    }
    snprintf(again, sizeof again, "%s/shard-%05u-model-%05u-of-%05u.safetensors",
             snapshot_folder_name(folder), shard, file, count);
    return strcmp(again, path) == 0;
}

/* Returns which planes of the tensor (spec_planes) are stored in the folder. */
static uint32_t snapshot_folder_planes(const struct job_spec_data *spec, size_t tensor,
                                       enum snapshot_folder folder)
{
    const uint32_t stored = spec_planes(spec, tensor);
    const uint32_t master = stored & 1u << CAIRN_PLANE_PARAM;
    const bool is_blob = spec->tensors[tensor].kind == CAIRN_BLOB;
    if (folder == CAIRN_SNAPSHOT_OPTIM) return stored & ~master;
    return is_blob == (folder == CAIRN_SNAPSHOT_BLOBS) ? master : 0;
}

void snapshot_key(const char *name, uint32_t plane, char key_out[CAIRN_SNAPSHOT_KEY_BYTES])
{
    if (plane == CAIRN_PLANE_PARAM)
        snprintf(key_out, CAIRN_SNAPSHOT_KEY_BYTES, "%s", name);
    else
        snprintf(key_out, CAIRN_SNAPSHOT_KEY_BYTES, "state.%s.%s", name, plane_name((int)plane));
}

/* Extracts the name from "state.<name>.<plane>". Returns false if the key does not have this form. */
static bool strip_state(const char *key, uint32_t plane, char name_out[CAIRN_SNAPSHOT_KEY_BYTES])
{
    const char *suffix = plane_name((int)plane);
    const size_t length = strlen(key), suffix_length = strlen(suffix);
    if (length >= CAIRN_SNAPSHOT_KEY_BYTES || length < 6 + 1 + suffix_length) return false;
    if (strncmp(key, "state.", 6) != 0 || strcmp(key + length - suffix_length, suffix) != 0 ||
        key[length - suffix_length - 1] != '.') {
        return false;
    }
    const size_t name_length = length - 6 - 1 - suffix_length;
    memcpy(name_out, key + 6, name_length);
    name_out[name_length] = '\0';
    return true;
}

bool snapshot_key_find(const struct job_spec_data *spec, enum snapshot_folder folder,
                       const char *key, uint32_t *tensor_out, uint32_t *plane_out)
{
    const bool optim = folder == CAIRN_SNAPSHOT_OPTIM;
    const uint32_t first = optim ? CAIRN_PLANE_EXP_AVG : CAIRN_PLANE_PARAM;
    const uint32_t end = optim ? CAIRN_PLANE_COUNT : CAIRN_PLANE_PARAM + 1;
    for (uint32_t plane = first; plane < end; plane++) {
        char name[CAIRN_SNAPSHOT_KEY_BYTES];
        if (optim && !strip_state(key, plane, name)) continue;
        const size_t tensor = spec_find_tensor(spec, optim ? name : key);
        if (tensor == SIZE_MAX || (snapshot_folder_planes(spec, tensor, folder) & 1u << plane) == 0)
            continue;
        *tensor_out = (uint32_t)tensor;
        *plane_out = plane;
        return true;
    }
    return false;
}

/* ==== snapshot index ==== */

/* A box is a run of elements if it has one index in each of the first dimensions (if any), a range in the
 * next dimension, and all indices in the dimensions after that. Sets the first element and the number of
 * elements. */
static bool run_of_box(const struct shape *shape, const struct cairn_box *box, uint64_t *first_out,
                       uint64_t *count_out)
{
    if (box->rank != shape->rank) return false;
    // numbers of elements, at most as many as the tensor has
    uint64_t first = 0, count = 1, stride = 1;
    bool whole_so_far = true;
    for (uint32_t d = shape->rank; d-- > 0;) {
        const uint64_t dim = shape->dim[d];
        if (box->extent[d] == 0 || box->extent[d] > dim) return false;
        if (box->start[d] > dim - box->extent[d]) return false;
        if (!whole_so_far && box->extent[d] != 1) return false;
        whole_so_far = whole_so_far && box->extent[d] == dim;
        first += box->start[d] * stride;
        count *= box->extent[d];
        stride *= dim;
    }
    *first_out = first;
    *count_out = count;
    return true;
}

cairn_status snapshot_index_add(struct snapshot_index *index, const struct manifest *manifest,
                                size_t file, const struct safetensors *header, uint64_t data_byte,
                                struct sentence *why)
{
    const char *path = manifest->files[file].path;
    const enum snapshot_folder folder = snapshot_folder_of(path);
    if (header->entry_count > 0 && !header->has_boxes) {
        return fail_with(why, CAIRN_ERR_CORRUPT, "%s has no DCP_SHARDING_INFO", path);
    }
    CAIRN_TRY(array_reserve(&index->pieces, index->piece_count, header->entry_count,
                            &index->piece_capacity, sizeof *index->pieces));
    for (size_t i = 0; i < header->entry_count; i++) {
        const struct safetensors_entry *e = &header->entries[i];
        struct snapshot_piece piece = { .file = file, .file_byte = data_byte + e->begin };
        if (!snapshot_key_find(&manifest->spec, folder, e->key, &piece.tensor, &piece.plane)) {
            return fail_with(why, CAIRN_ERR_CORRUPT, "%s: \"%s\" is not in the snapshot's spec",
                             path, e->key);
        }
        const struct shape *shape = &manifest->spec.tensors[piece.tensor].shape;
        const cairn_dtype dtype = spec_plane_dtype(&manifest->spec, piece.tensor, piece.plane);
        if (e->dtype != dtype ||
            !run_of_box(shape, &e->box, &piece.first_elem, &piece.elem_count)) {
            return fail_with(why, CAIRN_ERR_CORRUPT,
                             "%s: \"%s\" is not %s, or not a run of elements inside its tensor",
                             path, e->key, dtype_label((int)dtype));
        }
        index->pieces[index->piece_count++] = piece;
    }
    return CAIRN_OK;
}

static int compare_numbers(uint64_t a, uint64_t b)
{
    return a < b ? -1 : a > b;
}

static int piece_order(const void *a, const void *b)
{
    const struct snapshot_piece *x = a, *y = b;
    int order = compare_numbers(x->tensor, y->tensor);
    if (order == 0) order = compare_numbers(x->plane, y->plane);
    return order != 0 ? order : compare_numbers(x->first_elem, y->first_elem);
}

static cairn_status missing(const struct manifest *manifest, uint32_t tensor, uint32_t plane,
                            uint64_t first, uint64_t end, struct sentence *why)
{
    return fail_with(why, CAIRN_ERR_CORRUPT,
                     "tensor \"%s\", plane %s: elements %" PRIu64 " to %" PRIu64
                     " are in no file of the snapshot; use another snapshot",
                     manifest->spec.tensors[tensor].name, plane_name((int)plane), first, end - 1);
}

/* Checks one plane. Its pieces begin at *next, and *next is then set to the first piece after them. */
static cairn_status judge_plane(const struct snapshot_index *index, const struct manifest *manifest,
                                uint32_t tensor, uint32_t plane, size_t *next, struct sentence *why)
{
    const struct tensor_spec *t = &manifest->spec.tensors[tensor];
    const uint64_t elems = geometry_of(&t->shape).elems;
    uint64_t covered = 0;
    for (; *next < index->piece_count; (*next)++) {
        const struct snapshot_piece *piece = &index->pieces[*next];
        if (piece->tensor != tensor || piece->plane != plane) break;
        if (piece->first_elem > covered) {
            return missing(manifest, tensor, plane, covered, piece->first_elem, why);
        }
        if (piece->first_elem < covered) {
            return fail_with(why, CAIRN_ERR_CORRUPT,
                             "tensor \"%s\", plane %s: elements from %" PRIu64
                             " are in two files, one is %s; use another snapshot",
                             t->name, plane_name((int)plane), piece->first_elem,
                             manifest->files[piece->file].path);
        }
        covered += piece->elem_count;
    }
    if (covered < elems) return missing(manifest, tensor, plane, covered, elems, why);
    return CAIRN_OK;
}

cairn_status snapshot_index_close(struct snapshot_index *index, const struct manifest *manifest,
                                  struct sentence *why)
{
    if (index->piece_count > 1) {
        qsort(index->pieces, index->piece_count, sizeof *index->pieces, piece_order);
    }
    size_t next = 0; // all pieces are visited, because every piece belongs to a stored plane
    for (uint32_t tensor = 0; tensor < manifest->spec.tensor_count; tensor++) {
        const uint32_t stored = spec_planes(&manifest->spec, tensor);
        for (uint32_t plane = 0; plane < CAIRN_PLANE_COUNT; plane++) {
            if ((stored & 1u << plane) == 0) continue;
            CAIRN_TRY(judge_plane(index, manifest, tensor, plane, &next, why));
        }
    }
    return CAIRN_OK;
}

const struct snapshot_piece *snapshot_index_find(const struct snapshot_index *index,
                                                 uint32_t tensor, uint32_t plane, uint64_t elem)
{
    const struct snapshot_piece key = { .tensor = tensor, .plane = plane, .first_elem = elem };
    size_t low = 0, high = index->piece_count; // the search ends at the first piece after the key
    while (low < high) {
        const size_t middle = low + (high - low) / 2;
        if (piece_order(&index->pieces[middle], &key) <= 0)
            low = middle + 1;
        else
            high = middle;
    }
    if (low == 0) return NULL;
    const struct snapshot_piece *piece = &index->pieces[low - 1];
    if (piece->tensor != tensor || piece->plane != plane) return NULL;
    return elem - piece->first_elem < piece->elem_count ? piece : NULL;
}

void snapshot_index_release(struct snapshot_index *index)
{
    free(index->pieces);
    *index = (struct snapshot_index) { NULL, 0, 0 };
}

/* ==== snapshot plan ==== */

/* Plans in which file of a shard each box of each plane is stored. */

/* The state of planning one folder. Box i of a tensor is stored in file band + i. When a file is full,
 * `band` is set to the file after the last one, so that the files of one tensor follow each other. */
struct folder {
    struct snapshot_plan *plan;
    const struct job_spec_data *spec;
    enum snapshot_folder which;
    size_t first; /* index in the plan of the folder's first file */
    size_t band;  /* index in the plan of the first file that is still being filled */
};

static cairn_status add_file(struct snapshot_plan *plan)
{
    CAIRN_TRY(array_reserve(&plan->files, plan->file_count, 1, &plan->file_capacity,
                            sizeof *plan->files));
    plan->files[plan->file_count++] = (struct snapshot_file) { .header = NULL };
    return CAIRN_OK;
}

/* Adds an entry to a file, and on success takes over the entry's key. The file's header_bytes is an upper
 * bound until the header is made. */
static cairn_status add_entry(struct snapshot_file *file, const struct safetensors_entry *entry)
{
    CAIRN_TRY(array_reserve(&file->entries, file->entry_count, 1, &file->entry_capacity,
                            sizeof *file->entries));
    file->entries[file->entry_count++] = *entry;
    file->header_bytes += safetensors_entry_bytes(entry->key, entry->box.rank);
    return CAIRN_OK;
}

/* Adds the planes of one box to one file. */
static cairn_status add_box(struct folder *folder, struct snapshot_file *file, uint32_t tensor,
                            const struct cairn_box *box, uint64_t first_elem)
{
    const uint32_t stored = snapshot_folder_planes(folder->spec, tensor, folder->which);
    for (uint32_t plane = 0; plane < CAIRN_PLANE_COUNT; plane++) {
        if ((stored & 1u << plane) == 0) continue;
        char key[CAIRN_SNAPSHOT_KEY_BYTES];
        snapshot_key(folder->spec->tensors[tensor].name, plane, key);
        struct safetensors_entry entry = { .key = strdup(key),
                                           .dtype = spec_plane_dtype(folder->spec, tensor, plane),
                                           .box = *box,
                                           .tensor = tensor,
                                           .plane = plane,
                                           .first_elem = first_elem };
        if (entry.key == NULL) return CAIRN_ERR_NO_MEMORY;
        cairn_status status = add_entry(file, &entry);
        if (status != CAIRN_OK) {
            free(entry.key);
            return status;
        }
    }
    return CAIRN_OK;
}

static uint64_t box_elems(const struct cairn_box *box)
{
    uint64_t elems = 1;
    for (uint32_t d = 0; d < box->rank; d++) elems *= box->extent[d];
    return elems;
}

/* Adds the boxes of one range. *box_count is the number of the tensor's boxes that were added, and
 * grows. */
static cairn_status add_range(struct folder *folder, const struct snapshot_range *range,
                              size_t *box_count)
{
    struct cairn_box boxes[CAIRN_RANGE_BOXES_MAX];
    const size_t count = range_boxes(&folder->spec->tensors[range->tensor].shape, range->first_elem,
                                     range->elem_count, boxes);
    uint64_t first_elem = range->first_elem; // the boxes are in row-major order, without gaps
    for (size_t i = 0; i < count; i++) {
        cairn_status status = CAIRN_OK;
        const size_t file = folder->band + (*box_count)++;
        if (file == folder->plan->file_count) status = add_file(folder->plan);
        if (status == CAIRN_OK) {
            status = add_box(folder, &folder->plan->files[file], range->tensor, &boxes[i],
                             first_elem);
        }
        if (status != CAIRN_OK) return status;
        first_elem += box_elems(&boxes[i]);
    }
    return CAIRN_OK;
}

static void move_band_behind_full_files(struct folder *folder, size_t box_count)
{
    for (size_t i = 0; i < box_count; i++) {
        if (folder->plan->files[folder->band + i].header_bytes < CAIRN_SNAPSHOT_HEADER_BYTES)
            continue;
        folder->band = folder->plan->file_count;
        return;
    }
}

static void judge_order(const struct job_spec_data *spec, const struct snapshot_range *ranges,
                        size_t range_count)
{
    for (size_t i = 0; i < range_count; i++) {
        assert(ranges[i].tensor < spec->tensor_count);
        assert(i == 0 || ranges[i - 1].tensor < ranges[i].tensor ||
               (ranges[i - 1].tensor == ranges[i].tensor &&
                ranges[i - 1].first_elem + ranges[i - 1].elem_count <= ranges[i].first_elem));
    }
}

/* Joins ranges[*i] with the ranges after it that continue it, and sets *i to the last of these. If changes
 * of layout have cut an extent, or brought extents together, these thus need no files of their own. */
static struct snapshot_range join_ranges(const struct snapshot_range *ranges, size_t range_count,
                                         size_t *i)
{
    struct snapshot_range joined = ranges[*i];
    while (*i + 1 < range_count && ranges[*i + 1].tensor == joined.tensor &&
           ranges[*i + 1].first_elem == joined.first_elem + joined.elem_count)
        joined.elem_count += ranges[++*i].elem_count;
    return joined;
}

static cairn_status fill_folder(struct folder *folder, const struct snapshot_range *ranges,
                                size_t range_count)
{
    size_t box_count = 0;
    judge_order(folder->spec, ranges, range_count);
    for (size_t i = 0; i < range_count; i++) {
        const struct snapshot_range range = join_ranges(ranges, range_count, &i);
        if (snapshot_folder_planes(folder->spec, range.tensor, folder->which) == 0) continue;
        CAIRN_TRY(add_range(folder, &range, &box_count));
        if (i + 1 < range_count && ranges[i + 1].tensor == range.tensor) continue;
        move_band_behind_full_files(folder, box_count);
        box_count = 0;
    }
    return CAIRN_OK;
}

/* Sets the names, headers and sizes of the folder's files. Must be called when the number of files is
 * known. */
static cairn_status finish_folder(const struct folder *folder, uint32_t shard)
{
    const size_t count = folder->plan->file_count - folder->first;
    for (size_t i = 0; i < count; i++) {
        struct snapshot_file *file = &folder->plan->files[folder->first + i];
        snprintf(file->path, sizeof file->path, "%s/shard-%05u-model-%05zu-of-%05zu.safetensors",
                 snapshot_folder_name(folder->which), shard + 1, i + 1, count);
        uint64_t data_bytes = 0;
        CAIRN_TRY(safetensors_build(file->entries, file->entry_count, &file->header,
                                    &file->header_bytes, &data_bytes));
        file->file_bytes = file->header_bytes + data_bytes;
    }
    return CAIRN_OK;
}

static cairn_status plan_folder(struct snapshot_plan *plan, const struct job_spec_data *spec,
                                enum snapshot_folder which, uint32_t shard,
                                const struct snapshot_range *ranges, size_t range_count)
{
    struct folder folder = { plan, spec, which, plan->file_count, plan->file_count };
    cairn_status status = fill_folder(&folder, ranges, range_count);
    return status == CAIRN_OK ? finish_folder(&folder, shard) : status;
}

cairn_status snapshot_plan_make(const struct job_spec_data *spec, uint32_t shard,
                                const struct snapshot_range *ranges, size_t range_count,
                                struct snapshot_plan *plan_out)
{
    struct snapshot_plan plan = { NULL, 0, 0 };
    cairn_status status = CAIRN_OK;
    for (int which = 0; which < CAIRN_SNAPSHOT_FOLDERS && status == CAIRN_OK; which++) {
        status = plan_folder(&plan, spec, (enum snapshot_folder)which, shard, ranges, range_count);
    }
    if (status != CAIRN_OK) {
        snapshot_plan_release(&plan);
        return status;
    }
    *plan_out = plan;
    return CAIRN_OK;
}

void snapshot_plan_release(struct snapshot_plan *plan)
{
    for (size_t i = 0; i < plan->file_count; i++) {
        struct snapshot_file *file = &plan->files[i];
        for (size_t j = 0; j < file->entry_count; j++) free(file->entries[j].key);
        free(file->entries);
        free(file->header);
    }
    free(plan->files);
    *plan = (struct snapshot_plan) { NULL, 0, 0 };
}
