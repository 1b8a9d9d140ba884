/* Names of a snapshot: folders, files, keys. A name from storage is judged by making it again. */
#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "proto/snapshot/snapshot_file.h"
#include "proto/spec/planes.h"

void cairn_snapshot_id_make(uint64_t generation, uint64_t step, uint32_t attempt,
                            char id_out[CAIRN_SNAPSHOT_ID_BYTES])
{
    int used = snprintf(id_out, CAIRN_SNAPSHOT_ID_BYTES, "step-%012" PRIu64 "-g%" PRIu64, step,
                        generation);
    if (attempt > 1) {
        snprintf(id_out + used, CAIRN_SNAPSHOT_ID_BYTES - (size_t)used, "-%" PRIu32, attempt);
    }
}

bool cairn_snapshot_id_parse(const char *id, uint64_t *generation_out, uint64_t *step_out)
{
    uint64_t step = 0, generation = 0;
    uint32_t attempt = 1;
    char again[CAIRN_SNAPSHOT_ID_BYTES];
    // Widths that cannot overflow: 18 digits fit 64 bits, 9 fit 32.
    if (sscanf(id, "step-%18" SCNu64 "-g%18" SCNu64 "-%9" SCNu32, &step, &generation, &attempt) < 2)
        return false;
    cairn_snapshot_id_make(generation, step, attempt, again);
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

const char *cairn_snapshot_folder_name(enum cairn_snapshot_folder folder)
{
    assert(folder < CAIRN_SNAPSHOT_FOLDERS);
    return folder_names[folder];
}

enum cairn_snapshot_folder cairn_snapshot_folder_of(const char *path)
{
    int folder = CAIRN_SNAPSHOT_MODEL;
    while (folder < CAIRN_SNAPSHOT_FOLDERS &&
           (strncmp(path, folder_names[folder], CAIRN_SNAPSHOT_FOLDER_CHARS) != 0 ||
            path[CAIRN_SNAPSHOT_FOLDER_CHARS] != '/'))
        folder++;
    return (enum cairn_snapshot_folder)folder;
}

bool cairn_snapshot_path_ok(const char *path)
{
    const enum cairn_snapshot_folder folder = cairn_snapshot_folder_of(path);
    unsigned shard, file, count;
    char again[CAIRN_SNAPSHOT_PATH_BYTES];
    if (folder == CAIRN_SNAPSHOT_FOLDERS ||
        sscanf(path + CAIRN_SNAPSHOT_FOLDER_CHARS + 1, "shard-%9u-model-%9u-of-%9u", &shard, &file,
               &count) != 3 ||
        shard == 0 || file == 0 || file > count) {
        return false;
    }
    snprintf(again, sizeof again, "%s/shard-%05u-model-%05u-of-%05u.safetensors",
             cairn_snapshot_folder_name(folder), shard, file, count);
    return strcmp(again, path) == 0;
}

uint32_t cairn_snapshot_folder_planes(const struct cairn_job_spec_data *spec, size_t tensor,
                                      enum cairn_snapshot_folder folder)
{
    const uint32_t stored = cairn_spec_planes(spec, tensor);
    const uint32_t master = stored & 1u << CAIRN_PLANE_PARAM;
    const bool is_blob = spec->tensors[tensor].kind == CAIRN_BLOB;
    if (folder == CAIRN_SNAPSHOT_OPTIM) return stored & ~master;
    return is_blob == (folder == CAIRN_SNAPSHOT_BLOBS) ? master : 0;
}

void cairn_snapshot_key(const char *name, uint32_t plane, char key_out[CAIRN_SNAPSHOT_KEY_BYTES])
{
    if (plane == CAIRN_PLANE_PARAM)
        snprintf(key_out, CAIRN_SNAPSHOT_KEY_BYTES, "%s", name);
    else
        snprintf(key_out, CAIRN_SNAPSHOT_KEY_BYTES, "state.%s.%s", name,
                 cairn_plane_name((int)plane));
}

/* The name inside "state.<name>.<plane>"; false if the key does not have that form. */
static bool strip_state(const char *key, uint32_t plane, char name_out[CAIRN_SNAPSHOT_KEY_BYTES])
{
    const char *suffix = cairn_plane_name((int)plane);
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

bool cairn_snapshot_key_find(const struct cairn_job_spec_data *spec,
                             enum cairn_snapshot_folder folder, const char *key,
                             uint32_t *tensor_out, uint32_t *plane_out)
{
    const bool optim = folder == CAIRN_SNAPSHOT_OPTIM;
    const uint32_t first = optim ? CAIRN_PLANE_EXP_AVG : CAIRN_PLANE_PARAM;
    const uint32_t end = optim ? CAIRN_PLANE_COUNT : CAIRN_PLANE_PARAM + 1;
    for (uint32_t plane = first; plane < end; plane++) {
        char name[CAIRN_SNAPSHOT_KEY_BYTES];
        if (optim && !strip_state(key, plane, name)) continue;
        const size_t tensor = cairn_spec_find_tensor(spec, optim ? name : key);
        if (tensor == SIZE_MAX ||
            (cairn_snapshot_folder_planes(spec, tensor, folder) & 1u << plane) == 0)
            continue;
        *tensor_out = (uint32_t)tensor;
        *plane_out = plane;
        return true;
    }
    return false;
}
