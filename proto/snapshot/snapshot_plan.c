/* Which boxes of which planes go to which file of a shard. */
#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proto/snapshot/snapshot_file.h"
#include "proto/spec/planes.h"

/* One folder being planned. Box i of a tensor goes to file band + i; a full file moves the band
 * behind the last file, so that the files of one tensor stay neighbours. */
struct folder {
    struct cairn_snapshot_plan *plan;
    const struct cairn_job_spec_data *spec;
    enum cairn_snapshot_folder which;
    size_t first; /* file of the plan that is the folder's first */
    size_t band;  /* file of the plan, first of those being filled */
};

static cairn_status add_file(struct cairn_snapshot_plan *plan)
{
    if (plan->file_count == plan->file_capacity) {
        const size_t wanted = 2 * plan->file_capacity + 4;
        struct cairn_snapshot_file *grown = realloc(plan->files, wanted * sizeof *grown);
        if (grown == NULL) return CAIRN_ERR_NO_MEMORY;
        plan->files = grown;
        plan->file_capacity = wanted;
    }
    plan->files[plan->file_count++] = (struct cairn_snapshot_file) { .header = NULL };
    return CAIRN_OK;
}

/* Takes over the entry's key on success. header_bytes is an upper bound until the header is made.
 * */
static cairn_status add_entry(struct cairn_snapshot_file *file,
                              const struct cairn_safetensors_entry *entry)
{
    if (file->entry_count == file->entry_capacity) {
        const size_t wanted = 2 * file->entry_capacity + 8;
        struct cairn_safetensors_entry *grown = realloc(file->entries, wanted * sizeof *grown);
        if (grown == NULL) return CAIRN_ERR_NO_MEMORY;
        file->entries = grown;
        file->entry_capacity = wanted;
    }
    file->entries[file->entry_count++] = *entry;
    file->header_bytes += cairn_safetensors_entry_bytes(entry->key, entry->box.rank);
    return CAIRN_OK;
}

/* The planes of one box, into one file. */
static cairn_status add_box(struct folder *folder, struct cairn_snapshot_file *file,
                            uint32_t tensor, const struct cairn_box *box, uint64_t first_elem)
{
    const uint32_t stored = cairn_snapshot_folder_planes(folder->spec, tensor, folder->which);
    for (uint32_t plane = 0; plane < CAIRN_PLANE_COUNT; plane++) {
        if ((stored & 1u << plane) == 0) continue;
        char key[CAIRN_SNAPSHOT_KEY_BYTES];
        cairn_snapshot_key(folder->spec->tensors[tensor].name, plane, key);
        struct cairn_safetensors_entry entry = { .key = strdup(key),
                                                 .dtype = cairn_spec_plane_dtype(folder->spec,
                                                                                 tensor, plane),
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

/* Adds the boxes of one range; *box_count counts those of the tensor so far. */
static cairn_status add_range(struct folder *folder, const struct cairn_snapshot_range *range,
                              size_t *box_count)
{
    struct cairn_box boxes[CAIRN_RANGE_BOXES_MAX];
    const size_t count = cairn_range_boxes(&folder->spec->tensors[range->tensor].shape,
                                           range->first_elem, range->elem_count, boxes);
    uint64_t first_elem = range->first_elem; // boxes come in row-major order, without gaps
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

static void judge_order(const struct cairn_job_spec_data *spec,
                        const struct cairn_snapshot_range *ranges, size_t range_count)
{
    for (size_t i = 0; i < range_count; i++) {
        assert(ranges[i].tensor < spec->tensor_count);
        assert(i == 0 || ranges[i - 1].tensor < ranges[i].tensor ||
               (ranges[i - 1].tensor == ranges[i].tensor &&
                ranges[i - 1].first_elem + ranges[i - 1].elem_count <= ranges[i].first_elem));
    }
}

/* From ranges[*i] on, those that follow each other as one: extents that a layout's changes have cut, or have
 * brought together, need no files of their own. *i is the last of them. */
static struct cairn_snapshot_range join_ranges(const struct cairn_snapshot_range *ranges,
                                               size_t range_count, size_t *i)
{
    struct cairn_snapshot_range joined = ranges[*i];
    while (*i + 1 < range_count && ranges[*i + 1].tensor == joined.tensor &&
           ranges[*i + 1].first_elem == joined.first_elem + joined.elem_count)
        joined.elem_count += ranges[++*i].elem_count;
    return joined;
}

static cairn_status fill_folder(struct folder *folder, const struct cairn_snapshot_range *ranges,
                                size_t range_count)
{
    size_t box_count = 0;
    judge_order(folder->spec, ranges, range_count);
    for (size_t i = 0; i < range_count; i++) {
        const struct cairn_snapshot_range range = join_ranges(ranges, range_count, &i);
        if (cairn_snapshot_folder_planes(folder->spec, range.tensor, folder->which) == 0) continue;
        cairn_status status = add_range(folder, &range, &box_count);
        if (status != CAIRN_OK) return status;
        if (i + 1 < range_count && ranges[i + 1].tensor == range.tensor) continue;
        move_band_behind_full_files(folder, box_count);
        box_count = 0;
    }
    return CAIRN_OK;
}

/* Now that the folder's files are counted: names, headers, sizes. */
static cairn_status finish_folder(const struct folder *folder, uint32_t shard)
{
    const size_t count = folder->plan->file_count - folder->first;
    for (size_t i = 0; i < count; i++) {
        struct cairn_snapshot_file *file = &folder->plan->files[folder->first + i];
        snprintf(file->path, sizeof file->path, "%s/shard-%05u-model-%05zu-of-%05zu.safetensors",
                 cairn_snapshot_folder_name(folder->which), shard + 1, i + 1, count);
        uint64_t data_bytes = 0;
        cairn_status status = cairn_safetensors_build(
            file->entries, file->entry_count, &file->header, &file->header_bytes, &data_bytes);
        if (status != CAIRN_OK) return status;
        file->file_bytes = file->header_bytes + data_bytes;
    }
    return CAIRN_OK;
}

static cairn_status plan_folder(struct cairn_snapshot_plan *plan,
                                const struct cairn_job_spec_data *spec,
                                enum cairn_snapshot_folder which, uint32_t shard,
                                const struct cairn_snapshot_range *ranges, size_t range_count)
{
    struct folder folder = { plan, spec, which, plan->file_count, plan->file_count };
    cairn_status status = fill_folder(&folder, ranges, range_count);
    return status == CAIRN_OK ? finish_folder(&folder, shard) : status;
}

cairn_status cairn_snapshot_plan_make(const struct cairn_job_spec_data *spec, uint32_t shard,
                                      const struct cairn_snapshot_range *ranges, size_t range_count,
                                      struct cairn_snapshot_plan *plan_out)
{
    struct cairn_snapshot_plan plan = { NULL, 0, 0 };
    cairn_status status = CAIRN_OK;
    for (int which = 0; which < CAIRN_SNAPSHOT_FOLDERS && status == CAIRN_OK; which++) {
        status = plan_folder(&plan, spec, (enum cairn_snapshot_folder)which, shard, ranges,
                             range_count);
    }
    if (status != CAIRN_OK) {
        cairn_snapshot_plan_release(&plan);
        return status;
    }
    *plan_out = plan;
    return CAIRN_OK;
}

void cairn_snapshot_plan_release(struct cairn_snapshot_plan *plan)
{
    for (size_t i = 0; i < plan->file_count; i++) {
        struct cairn_snapshot_file *file = &plan->files[i];
        for (size_t j = 0; j < file->entry_count; j++) free(file->entries[j].key);
        free(file->entries);
        free(file->header);
    }
    free(plan->files);
    *plan = (struct cairn_snapshot_plan) { NULL, 0, 0 };
}
