/* Opens weights: makes a table of keys from a path. Matching and reading are in safetensors.c. */
#include "proto/safetensors/safetensors.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "proto/safetensors/json_text.h"

static void safetensors_index_release(struct safetensors_index *index);

cairn_status weights_pread(int fd, const char *path, void *out, size_t count, uint64_t offset,
                           struct sentence *why)
{
    uint8_t *next = out;
    while (count > 0) {
        const ssize_t got = pread(fd, next, count, (off_t)offset);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) return fail_with(why, CAIRN_ERR_IO, "reading %s: %s", path, strerror(errno));
        if (got == 0) {
            return fail_with(why, CAIRN_ERR_CORRUPT,
                             "%s ends at byte %" PRIu64 ": somebody cut it off while it was read",
                             path, offset);
        }
        next += got;
        offset += (uint64_t)got;
        count -= (size_t)got;
    }
    return CAIRN_OK;
}

/* ---- one file ---- */

static cairn_status read_header(struct weights_file *file, int fd, uint64_t *budget,
                                struct sentence *why)
{
    const uint64_t file_bytes = (uint64_t)file->judged.st_size;
    uint8_t prefix[8];
    uint64_t json_bytes;
    const size_t have = file_bytes < 8 ? (size_t)file_bytes : 8;
    cairn_status status = weights_pread(fd, file->path, prefix, have, 0, why);
    if (status == CAIRN_OK)
        status = safetensors_header_bytes(prefix, have, file_bytes, &json_bytes, why);
    if (status != CAIRN_OK) return status;
    if (json_bytes > *budget) {
        return fail_with(why, CAIRN_ERR_MALFORMED,
                         "all headers together are over %" PRIu64 " bytes",
                         CAIRN_WEIGHTS_HEADERS_MAX);
    }
    *budget -= json_bytes;
    uint8_t *json = malloc((size_t)json_bytes + 1);
    if (json == NULL) return CAIRN_ERR_NO_MEMORY;
    status = weights_pread(fd, file->path, json, (size_t)json_bytes, 8, why);
    if (status == CAIRN_OK)
        status = safetensors_parse(json, (size_t)json_bytes, file_bytes, &file->header, why);
    free(json);
    file->data_at = 8 + json_bytes;
    return status;
}

/* Refuses parts of tensors. A part has the tensor's name, and would be taken for the whole tensor. */
static cairn_status judge_whole(const struct weights_file *file, struct sentence *why)
{
    for (size_t i = 0; i < file->header.entry_count; i++) {
        const struct safetensors_entry *e = &file->header.entries[i];
        for (uint32_t d = 0; d < e->box.rank; d++) {
            if (e->box.start[d] == 0) continue;
            return fail_with(
                why, CAIRN_ERR_UNSUPPORTED,
                "tensor \"%s\" is a part of one, so this is a file of a distributed checkpoint: "
                "consolidate it, or name the folder with the manifest if Cairn wrote it",
                e->key);
        }
    }
    return CAIRN_OK;
}

/* Puts the name of the file before the sentence of a check. */
static cairn_status in_file(cairn_status status, const struct weights *w, const char *path,
                            struct sentence *why)
{
    if (status == CAIRN_ERR_NO_MEMORY)
        return fail_with(why, status, "%s: out of memory for the header of %s", w->path, path);
    if (status != CAIRN_OK && why != NULL) {
        const struct sentence said = *why;
        sentence_set(why, "%s: %s: %s", w->path, path, said.text);
    }
    return status;
}

/* Loads a file, and takes over `fd`. */
static cairn_status load_file(const struct weights *w, struct weights_file *file, int fd,
                              uint64_t *budget, struct sentence *why)
{
    cairn_status status = read_header(file, fd, budget, why);
    if (status == CAIRN_OK) status = judge_whole(file, why);
    close(fd);
    return in_file(status, w, file->path, why);
}

static cairn_status add_file(struct weights *w, const char *folder, const char *name,
                             uint64_t *budget, struct sentence *why)
{
    struct weights_file *file = &w->files[w->file_count];
    int fd;
    if (asprintf(&file->path, "%s%s%s", folder, folder[0] != '\0' ? "/" : "", name) < 0) {
        file->path = NULL;
        return fail_with(why, CAIRN_ERR_NO_MEMORY, "out of memory");
    }
    w->file_count++;
    CAIRN_TRY(weights_open_beneath(w, file->path, &fd, &file->judged, why));
    if (S_ISREG(file->judged.st_mode)) return load_file(w, file, fd, budget, why);
    close(fd);
    return fail_with(why, CAIRN_ERR_REFUSED, "%s: %s is a folder, not a file", w->path, file->path);
}

/* ---- the table of keys ---- */

static int weight_order(const void *a, const void *b)
{
    const struct weight *x = a, *y = b;
    return strcmp(x->key, y->key);
}

const struct weight *weights_find(const struct weights *w, const char *key)
{
    const struct weight wanted = { .key = key };
    if (w->weight_count == 0) return NULL;
    return bsearch(&wanted, w->weights, w->weight_count, sizeof wanted, weight_order);
}

static uint32_t mapped_file(const struct safetensors_index *index, const char *key)
{
    size_t low = 0, high = index->entry_count;
    while (low < high) {
        const size_t middle = low + (high - low) / 2;
        const int order = strcmp(index->entries[middle].key, key);
        if (order == 0) return index->entries[middle].file;
        if (order < 0)
            low = middle + 1;
        else
            high = middle;
    }
    return UINT32_MAX;
}

/* Lists the weights. With an index, a tensor is part of the model only if it is in the file that the index
 * names for its key. `index` NULL: there is only one file, and all its tensors are listed. */
static cairn_status list_weights(struct weights *w, const struct safetensors_index *index)
{
    size_t most = 0;
    for (size_t f = 0; f < w->file_count; f++) most += w->files[f].header.entry_count;
    w->weights = calloc(most + 1, sizeof *w->weights);
    if (w->weights == NULL) return CAIRN_ERR_NO_MEMORY;
    for (uint32_t f = 0; f < w->file_count; f++) {
        for (size_t i = 0; i < w->files[f].header.entry_count; i++) {
            const struct safetensors_entry *e = &w->files[f].header.entries[i];
            if (index != NULL && mapped_file(index, e->key) != f) continue;
            w->weights[w->weight_count++] =
                (struct weight) { .key = e->key, .entry = e, .file = f };
        }
    }
    if (w->weight_count > 1) qsort(w->weights, w->weight_count, sizeof *w->weights, weight_order);
    return CAIRN_OK;
}

/* Checks that every key of the index is in the file that the index names. */
static cairn_status judge_index(const struct weights *w, const struct safetensors_index *index,
                                struct sentence *why)
{
    // keys are unique in the index and among the weights
    if (w->weight_count == index->entry_count) return CAIRN_OK;
    sentence_set(why, "%s: %zu tensors are not in the files that " CAIRN_WEIGHTS_INDEX " names:",
                 w->path, index->entry_count - w->weight_count);
    size_t named = 0;
    for (size_t i = 0; i < index->entry_count && named < CAIRN_WEIGHTS_NAMES_MAX; i++) {
        if (weights_find(w, index->entries[i].key) != NULL) continue;
        sentence_add(why, "%s %s (%s)", named++ > 0 ? "," : "", index->entries[i].key,
                     index->files[index->entries[i].file]);
    }
    return CAIRN_ERR_MALFORMED;
}

/* ---- a folder ---- */

static cairn_status read_index(const struct weights *w, const char *path,
                               struct safetensors_index *index, struct sentence *why)
{
    int fd;
    struct stat info;
    cairn_status status = weights_open_beneath(w, path, &fd, &info, why);
    if (status == CAIRN_ERR_NOT_FOUND) {
        return fail_with(why, status,
                         "%s: there is neither a " CAIRN_WEIGHTS_WHOLE " nor a " CAIRN_WEIGHTS_INDEX
                         " in it",
                         w->path);
    }
    if (status != CAIRN_OK) return status;
    char *text = NULL;
    if (!S_ISREG(info.st_mode) || (uint64_t)info.st_size > CAIRN_WEIGHTS_INDEX_MAX) {
        status = fail_with(why, CAIRN_ERR_MALFORMED, "it is no file, or over %" PRIu64 " bytes",
                           CAIRN_WEIGHTS_INDEX_MAX);
    } else if ((text = malloc((size_t)info.st_size + 1)) == NULL) {
        status = CAIRN_ERR_NO_MEMORY;
    }
    if (status == CAIRN_OK) status = weights_pread(fd, path, text, (size_t)info.st_size, 0, why);
    if (status == CAIRN_OK)
        status = safetensors_index_parse(text, (size_t)info.st_size, index, why);
    free(text);
    close(fd);
    return in_file(status, w, path, why);
}

static cairn_status load_indexed(struct weights *w, const char *folder,
                                 const struct safetensors_index *index, uint64_t *budget,
                                 struct sentence *why)
{
    free(w->files);
    w->files = calloc(index->file_count, sizeof *w->files);
    if (w->files == NULL) return fail_with(why, CAIRN_ERR_NO_MEMORY, "out of memory");
    cairn_status status = CAIRN_OK;
    for (size_t i = 0; status == CAIRN_OK && i < index->file_count; i++)
        status = add_file(w, folder, index->files[i], budget, why);
    if (status == CAIRN_OK && list_weights(w, index) != CAIRN_OK)
        status = fail_with(why, CAIRN_ERR_NO_MEMORY, "out of memory for %zu tensors",
                           index->entry_count);
    return status == CAIRN_OK ? judge_index(w, index, why) : status;
}

static cairn_status load_folder(struct weights *w, const char *folder, uint64_t *budget,
                                struct sentence *why)
{
    cairn_status status = add_file(w, folder, CAIRN_WEIGHTS_WHOLE, budget, why);
    if (status == CAIRN_OK && list_weights(w, NULL) != CAIRN_OK)
        return fail_with(why, CAIRN_ERR_NO_MEMORY, "out of memory for the tensors");
    if (status != CAIRN_ERR_NOT_FOUND) return status;
    free(w->files[0].path);
    w->file_count = 0;
    struct safetensors_index index;
    char *path;
    if (asprintf(&path, "%s%s" CAIRN_WEIGHTS_INDEX, folder, folder[0] != '\0' ? "/" : "") < 0)
        return fail_with(why, CAIRN_ERR_NO_MEMORY, "out of memory");
    status = read_index(w, path, &index, why);
    free(path);
    if (status != CAIRN_OK) return status;
    status = load_indexed(w, folder, &index, budget, why);
    safetensors_index_release(&index);
    return status;
}

/* ---- all of it ---- */

static cairn_status load_weights(const char *roots, struct weights *w, struct sentence *why)
{
    uint64_t budget = CAIRN_WEIGHTS_HEADERS_MAX;
    int fd;
    struct stat info;
    const char *rest = weights_enter_root(roots, w, why);
    if (rest == NULL) return CAIRN_ERR_REFUSED;
    CAIRN_TRY(weights_open_beneath(w, rest[0] != '\0' ? rest : ".", &fd, &info, why));
    close(fd);
    if (S_ISDIR(info.st_mode)) return load_folder(w, rest, &budget, why);
    cairn_status status = add_file(w, "", rest, &budget, why);
    if (status == CAIRN_OK && list_weights(w, NULL) != CAIRN_OK)
        status = fail_with(why, CAIRN_ERR_NO_MEMORY, "out of memory for the tensors");
    return status;
}

cairn_status weights_open(const char *roots, const char *path, struct weights *out,
                          struct sentence *why)
{
    struct weights w = { .root_fd = -1, .file_fd = -1 };
    w.path = strdup(path);
    w.files = calloc(1, sizeof *w.files);
    cairn_status status = w.path != NULL && w.files != NULL
                              ? load_weights(roots, &w, why)
                              : fail_with(why, CAIRN_ERR_NO_MEMORY, "out of memory");
    if (status != CAIRN_OK) {
        weights_close(&w);
        return status;
    }
    *out = w;
    return CAIRN_OK;
}

cairn_status weights_of(const char *path, struct weights_source *source, struct safetensors *header,
                        struct weights *out, struct sentence *why)
{
    struct weights w = { .root_fd = -1, .file_fd = -1, .source = source };
    w.path = strdup(path);
    w.files = calloc(1, sizeof *w.files);
    const bool is_there = w.path != NULL && w.files != NULL;
    if (is_there) {
        w.files[w.file_count++].header = *header;
    } else {
        safetensors_release(header);
    }
    if (is_there && list_weights(&w, NULL) == CAIRN_OK) {
        *out = w;
        return CAIRN_OK;
    }
    weights_close(&w);
    return fail_with(why, CAIRN_ERR_NO_MEMORY, "out of memory for the tensors of %s", path);
}

void weights_close(struct weights *w)
{
    if (w->source != NULL) w->source->close(w->source);
    for (size_t i = 0; i < w->file_count; i++) {
        free(w->files[i].path);
        safetensors_release(&w->files[i].header);
    }
    free(w->files);
    free(w->weights);
    free(w->path);
    if (w->file_fd >= 0) close(w->file_fd);
    if (w->root_fd >= 0) close(w->root_fd);
    *w = (struct weights) { .root_fd = -1, .file_fd = -1 };
}

/* ==== safetensors index ==== */

/* Checks model.safetensors.index.json. */

/* True if the name is one of a file in the same folder: without a '/' or a '.' at its beginning, and with
 * .safetensors at its end. */
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
    const struct safetensors_mapped *x = a, *y = b;
    return strcmp(x->key, y->key);
}

/* Lists the name of every file once, sorted. `names`, [count], are borrowed, and are sorted here. */
static cairn_status list_files(const char **names, size_t count, struct safetensors_index *index,
                               struct sentence *why)
{
    qsort(names, count, sizeof *names, name_order);
    size_t distinct = 0;
    for (size_t i = 0; i < count; i++) {
        if (i == 0 || strcmp(names[i], names[i - 1]) != 0) distinct++;
    }
    if (distinct > CAIRN_WEIGHTS_FILES_MAX) {
        return fail_with(why, CAIRN_ERR_MALFORMED, "weight_map names %zu files; at most %d",
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

static cairn_status list_names(json_t *map, const char **names, struct sentence *why)
{
    const char *key;
    json_t *value;
    size_t count = 0;
    json_object_foreach(map, key, value)
    {
        const char *name = json_string_value(value);
        if (name == NULL || !file_name_ok(name)) {
            return fail_with(
                why, CAIRN_ERR_MALFORMED,
                "weight_map does not give \"%.200s\" the name of a .safetensors file of its folder",
                key);
        }
        names[count++] = name;
    }
    return CAIRN_OK;
}

static cairn_status list_entries(json_t *map, struct safetensors_index *index)
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
        struct safetensors_mapped *entry = &index->entries[index->entry_count];
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

static cairn_status read_map(json_t *map, struct safetensors_index *index, struct sentence *why)
{
    const size_t count = json_object_size(map);
    if (count == 0 || count > CAIRN_SPEC_TENSORS_MAX) {
        return fail_with(why, CAIRN_ERR_MALFORMED,
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

cairn_status safetensors_index_parse(const char *text, size_t text_bytes,
                                     struct safetensors_index *out, struct sentence *why)
{
    json_error_t error;
    json_t *root;
    cairn_status status = json_text_parse(text, text_bytes, &root, &error);
    if (status == CAIRN_ERR_NO_MEMORY) return status;
    if (status != CAIRN_OK) {
        return fail_with(why, CAIRN_ERR_MALFORMED, "it is not JSON: %s at byte %d", error.text,
                         error.position);
    }
    struct safetensors_index index = { NULL, NULL, 0, 0 };
    status = read_map(json_object_get(root, "weight_map"), &index, why);
    json_decref(root);
    if (status != CAIRN_OK) {
        safetensors_index_release(&index);
        return status;
    }
    *out = index;
    return CAIRN_OK;
}

static void safetensors_index_release(struct safetensors_index *index)
{
    for (size_t i = 0; i < index->file_count; i++) free(index->files[i]);
    for (size_t i = 0; i < index->entry_count; i++) free(index->entries[i].key);
    free(index->files);
    free(index->entries);
    *index = (struct safetensors_index) { NULL, NULL, 0, 0 };
}
