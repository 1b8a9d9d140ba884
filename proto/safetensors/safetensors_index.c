/* Judging model.safetensors.index.json. */
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "proto/safetensors/safetensors_folder.h"

/* A file's name that stays in its folder: no '/', not hidden, .safetensors at its end. */
static bool file_name_ok(const char *name)
{
    static const char ending[] = ".safetensors";
    const size_t length = strnlen(name, CAIRN_NAME_MAX + 1), tail = sizeof ending - 1;
    return length > tail && length <= CAIRN_NAME_MAX && name[0] != '.' &&
           strchr(name, '/') == NULL && strcmp(name + length - tail, ending) == 0;
}

static int name_order(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

static int key_order(const void *a, const void *b)
{
    const struct cairn_safetensors_mapped *x = a, *y = b;
    return strcmp(x->key, y->key);
}

/* Every file's name once, sorted. `names` are borrowed, [count], and come back sorted. */
static cairn_status list_files(const char **names, size_t count,
                               struct cairn_safetensors_index *index, struct cairn_sentence *why)
{
    qsort(names, count, sizeof *names, name_order);
    size_t distinct = 0;
    for (size_t i = 0; i < count; i++) {
        if (i == 0 || strcmp(names[i], names[i - 1]) != 0) distinct++;
    }
    if (distinct > CAIRN_WEIGHTS_FILES_MAX) {
        return cairn_fail(why, CAIRN_ERR_MALFORMED, "weight_map names %zu files; at most %d",
                          distinct, CAIRN_WEIGHTS_FILES_MAX);
    }
    index->files = calloc(distinct + 1, sizeof *index->files);
    if (index->files == NULL) return CAIRN_ERR_NO_MEMORY;
    for (size_t i = 0; i < count; i++) {
        if (i > 0 && strcmp(names[i], names[i - 1]) == 0) continue;
        index->files[index->file_count] = strdup(names[i]);
        if (index->files[index->file_count] == NULL) return CAIRN_ERR_NO_MEMORY;
        index->file_count++;
    }
    return CAIRN_OK;
}

static cairn_status list_names(json_t *map, const char **names, struct cairn_sentence *why)
{
    const char *key;
    json_t *value;
    size_t count = 0;
    json_object_foreach(map, key, value)
    {
        const char *name = json_string_value(value);
        if (name == NULL || !file_name_ok(name)) {
            return cairn_fail(why, CAIRN_ERR_MALFORMED,
                              "weight_map has for \"%.200s\" something else than the name of a "
                              ".safetensors file of its folder",
                              key);
        }
        names[count++] = name;
    }
    return CAIRN_OK;
}

static cairn_status list_entries(json_t *map, struct cairn_safetensors_index *index)
{
    const char *key;
    json_t *value;
    index->entries = calloc(json_object_size(map) + 1, sizeof *index->entries);
    if (index->entries == NULL) return CAIRN_ERR_NO_MEMORY;
    json_object_foreach(map, key, value)
    {
        const char *name = json_string_value(value);
        char **file = bsearch(&name, index->files, index->file_count, sizeof *index->files,
                              name_order);
        struct cairn_safetensors_mapped *entry = &index->entries[index->entry_count];
        entry->key = strdup(key);
        if (entry->key == NULL) return CAIRN_ERR_NO_MEMORY;
        entry->file = (uint32_t)(file - index->files);
        index->entry_count++;
    }
    if (index->entry_count > 1) {
        qsort(index->entries, index->entry_count, sizeof *index->entries, key_order);
    }
    return CAIRN_OK;
}

static cairn_status read_map(json_t *map, struct cairn_safetensors_index *index,
                             struct cairn_sentence *why)
{
    const size_t count = json_object_size(map);
    if (count == 0 || count > CAIRN_SPEC_TENSORS_MAX) {
        return cairn_fail(why, CAIRN_ERR_MALFORMED,
                          "it has no weight_map, or one of %zu tensors; allowed: 1 to %d", count,
                          CAIRN_SPEC_TENSORS_MAX);
    }
    const char **names = calloc(count, sizeof *names);
    if (names == NULL) return CAIRN_ERR_NO_MEMORY;
    cairn_status status = list_names(map, names, why);
    if (status == CAIRN_OK) status = list_files(names, count, index, why);
    if (status == CAIRN_OK) status = list_entries(map, index);
    free(names);
    return status;
}

cairn_status cairn_safetensors_index_parse(const char *text, size_t text_bytes,
                                           struct cairn_safetensors_index *out,
                                           struct cairn_sentence *why)
{
    json_error_t error;
    json_t *root = json_loadb(text, text_bytes, JSON_REJECT_DUPLICATES, &error);
    if (root == NULL && json_error_code(&error) == json_error_out_of_memory)
        return CAIRN_ERR_NO_MEMORY;
    if (root == NULL) {
        return cairn_fail(why, CAIRN_ERR_MALFORMED, "it is not JSON: %s at byte %d", error.text,
                          error.position);
    }
    struct cairn_safetensors_index index = { NULL, NULL, 0, 0 };
    cairn_status status = read_map(json_object_get(root, "weight_map"), &index, why);
    json_decref(root);
    if (status != CAIRN_OK) {
        cairn_safetensors_index_release(&index);
        return status;
    }
    *out = index;
    return CAIRN_OK;
}

void cairn_safetensors_index_release(struct cairn_safetensors_index *index)
{
    for (size_t i = 0; i < index->file_count; i++) free(index->files[i]);
    for (size_t i = 0; i < index->entry_count; i++) free(index->entries[i].key);
    free(index->files);
    free(index->entries);
    *index = (struct cairn_safetensors_index) { NULL, NULL, 0, 0 };
}
