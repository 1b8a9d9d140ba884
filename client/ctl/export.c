/* cairn snapshot export: writes a snapshot in formats of other programs. While a block is written,
 * the blocks after it are already read and verified, in the order in which they are written. Memory
 * is used only for the blocks in flight, whatever the model's size. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <jansson.h>
#include <pwd.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "client/ctl/ctl.h"
#include "client/ctl/snapshot.h"
#include "shown.pb-c.h"
#include "proto/base/machine.h"
#include "proto/snapshot_io/snapshot_io.h"
#include "proto/store/storage.h"

#define FILE_BYTES_DEFAULT UINT64_C(5000000000) // the default of the Hub's tools
#define AHEAD              16                   // blocks that are read ahead, plus two per shard
#define BLOCKS_MAX         32                   // the most blocks held in memory; 128 MiB
#define IN_FLIGHT          8                    // blocks being written; 32 MiB
#define BUFFERS_BLOB       "cairn.buffers"
#define TORCH_FILE_NAME    "checkpoint.pt"
#define FOLDER_METADATA    ".metadata" // beside CTL_TORCH_FOLDER_FILE

/* ==== buffers ==== */

#define LIST_BYTES_MAX (UINT64_C(256) << 20)

static const struct ctl_number_type types[] = {
    { "F32", "float32", "FloatStorage", 4 },  { "BF16", "bfloat16", "BFloat16Storage", 2 },
    { "F64", "float64", "DoubleStorage", 8 }, { "I64", "int64", "LongStorage", 8 },
    { "I32", "int32", "IntStorage", 4 },      { "I16", "int16", "ShortStorage", 2 },
    { "I8", "int8", "CharStorage", 1 },       { "U8", "uint8", "ByteStorage", 1 },
    { "BOOL", "bool", "BoolStorage", 1 },     { "C64", "complex64", "ComplexFloatStorage", 8 },
};

const struct ctl_number_type *ctl_number_type(cairn_dtype dtype)
{
    return &types[dtype == CAIRN_BF16 ? 1 : 0];
}

/* Returns the type and shape that the list gives for the buffer, if they match the buffer's byte count;
 * else `type` is NULL. */
static struct ctl_buffer listed(const json_t *entry, uint64_t bytes)
{
    struct ctl_buffer b = { .type = NULL };
    const char *dtype = json_string_value(json_object_get(entry, "dtype"));
    const json_t *shape = json_object_get(entry, "shape");
    const size_t rank = json_array_size(shape);
    if (dtype == NULL || !json_is_array(shape) || rank > CAIRN_RANK_MAX) return b;
    b.shape.rank = (uint32_t)rank;
    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        if (strcmp(types[i].safetensors, dtype) == 0) b.type = &types[i];
    uint64_t counted = b.type != NULL ? b.type->bytes : 0;
    bool fits = b.type != NULL;
    for (size_t d = 0; d < rank && fits; d++) {
        const json_int_t dim = json_integer_value(json_array_get(shape, d));
        fits = dim >= 0 && !__builtin_mul_overflow(counted, (uint64_t)dim, &counted);
        b.shape.dim[d] = (uint64_t)dim;
    }
    return fits && counted == bytes ? b : (struct ctl_buffer) { .type = NULL };
}

/* Reads the blob's JSON, which the caller owns; NULL: there is no such blob, or it cannot be
 * parsed. */
static cairn_status read_list(struct snapshot *snapshot, json_t **out, struct sentence *why)
{
    const struct job_spec_data *spec = &snapshot->manifest.spec;
    const size_t at = spec_find_tensor(spec, BUFFERS_BLOB);
    *out = NULL;
    if (at >= spec->tensor_count || spec->tensors[at].kind != CAIRN_BLOB ||
        spec->tensors[at].shape.dim[0] > LIST_BYTES_MAX)
        return CAIRN_OK;
    const size_t bytes = (size_t)spec->tensors[at].shape.dim[0];
    char *text = malloc(bytes + 1);
    if (text == NULL) return fail_with(why, CAIRN_ERR_NO_MEMORY, "out of memory");
    const cairn_status status = snapshot_read(snapshot, (uint32_t)at, CAIRN_PLANE_PARAM, 0, bytes,
                                              text, why);
    if (status == CAIRN_OK) *out = json_loadb(text, bytes, 0, NULL);
    free(text);
    return status;
}

/* Creates one entry for each tensor of the spec, malloc'd. CAIRN_ERR_NO_MEMORY, and the errors of
 * snapshot_read. */
static cairn_status read_buffers(struct snapshot *snapshot, struct ctl_buffer **out,
                                 struct sentence *why)
{
    const struct job_spec_data *spec = &snapshot->manifest.spec;
    json_t *list = NULL;
    struct ctl_buffer *buffers = calloc(spec->tensor_count + 1, sizeof *buffers);
    if (buffers == NULL) return fail_with(why, CAIRN_ERR_NO_MEMORY, "out of memory");
    const cairn_status status = read_list(snapshot, &list, why);
    for (size_t i = 0; i < spec->tensor_count && list != NULL; i++)
        if (spec->tensors[i].kind == CAIRN_BLOB)
            buffers[i] = listed(json_object_get(list, spec->tensors[i].name),
                                spec->tensors[i].shape.dim[0]);
    json_decref(list);
    if (status == CAIRN_OK)
        *out = buffers;
    else
        free(buffers);
    return status;
}

/* ==== export plan ==== */

/* Plans an export: its files, and the tensors in each. Pure.
 *
 *   hf    model.safetensors, or, where that would be too large,
 *         model-00001-of-00002.safetensors, ..., model.safetensors.index.json
 *         As transformers writes it: complete tensors, one after the other. __metadata__ has "format", and
 *         maps the name of each alias of a complete tensor to the name of that tensor, which is stored once
 *         (as safetensors.torch.save_model does).
 *   dcp   __0_0.distcp, .metadata: a folder of torch.distributed.checkpoint     snapshot.h, "torch file"
 *   torch checkpoint.pt, as torch.save writes it                                the same
 *
 * Blobs are not numbers and are left out, except for buffers that are stored as raw bytes (above). For hf,
 * all aliases are left out as tensors; for dcp, only the aliases of a part of a tensor. */

#define INDEX_NAME "model.safetensors.index.json"
#define PLANE_STEP 0 /* the plane of entries with torch's step count, one f32 */

struct export_wish {
    bool is_dcp, is_torch; /* neither: hf */
    const struct ctl_buffer *buffers;
    bool is_average;   /* the model's tensors are their averages, where there are some */
    cairn_dtype dtype; /* the dtype of the model's tensors: CAIRN_F32 or CAIRN_BF16 */
    /* The most tensor bytes in one file; only a file with a single, larger tensor exceeds this */
    uint64_t file_bytes_max;
};

uint32_t ctl_model_plane(const struct job_spec_data *spec, size_t tensor, bool is_average)
{
    const bool has = (spec_planes(spec, tensor) & 1u << CAIRN_PLANE_EMA) != 0;
    return is_average && has ? CAIRN_PLANE_EMA : CAIRN_PLANE_PARAM;
}

struct export_plan {
    struct snapshot_file *files; /* owned */
    size_t file_count, file_capacity;
    char *index; /* owned; the contents of the index file beside the files; NULL: none */
    const char *index_name;
    size_t index_bytes;
    struct ctl_torch_file *torch; /* owned; NULL for hf */
    uint64_t data_bytes;          /* the bytes of all tensors */
    size_t tensors; /* the tensors of the model; `blobs` and `aliases` count what is left out */
    size_t blobs, aliases;
};

struct planning {
    const struct job_spec_data *spec;
    const struct export_wish *wish;
    struct export_plan *plan;
    uint64_t file_data_bytes; /* the data bytes of the last file */
    size_t file_header_bytes; /* the header bytes of the last file; an upper bound */
};

/* ---- files ---- */

static bool add_file(struct planning *p)
{
    struct export_plan *plan = p->plan;
    if (!ctl_grow(&plan->files, &plan->file_capacity, plan->file_count + 1, sizeof *plan->files))
        return false;
    plan->files[plan->file_count++] = (struct snapshot_file) { .entries = NULL };
    p->file_data_bytes = 0;
    p->file_header_bytes = 0;
    return true;
}

static struct safetensors_entry *add_entry(struct snapshot_file *file)
{
    if (!ctl_grow(&file->entries, &file->entry_capacity, file->entry_count + 1,
                  sizeof *file->entries))
        return NULL;
    struct safetensors_entry *entry = &file->entries[file->entry_count];
    *entry = (struct safetensors_entry) { .first_elem = 0 };
    return entry;
}

/* Adds the entry to the last file, or to a new file if the last file is full. */
static bool place_plan(struct planning *p, struct safetensors_entry entry, uint64_t bytes)
{
    struct export_plan *plan = p->plan;
    const size_t header = entry.key != NULL ? safetensors_entry_bytes(entry.key, entry.box.rank)
                                            : 0;
    const bool full = p->file_data_bytes > 0 &&
                      (p->file_data_bytes + bytes > p->wish->file_bytes_max ||
                       p->file_header_bytes + header > CAIRN_SNAPSHOT_HEADER_BYTES);
    const bool placed = entry.key != NULL && ((plan->file_count > 0 && !full) || add_file(p));
    struct safetensors_entry *to = placed ? add_entry(&plan->files[plan->file_count - 1]) : NULL;
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

/* `type` is the type of a buffer that is stored as raw bytes; for any other tensor NULL. */
static bool place_tensor(struct planning *p, size_t tensor, const struct shape *shape,
                         const struct ctl_number_type *type)
{
    const struct tensor_spec *t = &p->spec->tensors[tensor];
    struct safetensors_entry entry = { .key = strdup(t->name),
                                       .dtype_name = type != NULL ? type->safetensors : NULL,
                                       .dtype = type != NULL ? CAIRN_U8 : p->wish->dtype,
                                       .tensor = (uint32_t)tensor,
                                       .plane = ctl_model_plane(p->spec, tensor,
                                                                p->wish->is_average) };
    uint64_t bytes = type != NULL ? type->bytes : dtype_size((int)entry.dtype);
    entry.box.rank = shape->rank;
    for (uint32_t d = 0; d < shape->rank; d++) bytes *= entry.box.extent[d] = shape->dim[d];
    p->plan->tensors++;
    return place_plan(p, entry, bytes);
}

static bool place_all(struct planning *p)
{
    bool ok = true;
    for (size_t i = 0; i < p->spec->tensor_count && ok; i++) {
        const struct tensor_spec *t = &p->spec->tensors[i];
        const struct ctl_buffer *b = &p->wish->buffers[i];
        p->plan->aliases += t->alias_of != NULL;
        if (t->kind != CAIRN_BLOB && t->alias_of == NULL) ok = place_tensor(p, i, &t->shape, NULL);
        if (t->kind == CAIRN_BLOB && b->type != NULL) ok = place_tensor(p, i, &b->shape, b->type);
    }
    return ok;
}

/* ---- names, headers, indices ---- */

static void name_file(struct export_plan *plan, size_t at)
{
    struct snapshot_file *f = &plan->files[at];
    if (plan->file_count == 1)
        snprintf(f->path, sizeof f->path, "model.safetensors");
    else
        snprintf(f->path, sizeof f->path, "model-%05zu-of-%05zu.safetensors", at + 1,
                 plan->file_count);
}

/* Lists the aliases of those complete tensors that the file holds. *notes_out is malloc'd; its
 * texts are borrowed. */
static bool list_aliases(const struct job_spec_data *spec, const struct snapshot_file *file,
                         struct safetensors_note **notes_out, size_t *count_out)
{
    size_t count = 0;
    struct safetensors_note *notes = calloc(spec->tensor_count + 1, sizeof *notes);
    bool *held = calloc(spec->tensor_count + 1, sizeof *held);
    for (size_t i = 0; held != NULL && i < file->entry_count; i++)
        held[file->entries[i].tensor] = true;
    for (size_t i = 0; notes != NULL && held != NULL && i < spec->tensor_count; i++) {
        const struct tensor_spec *t = &spec->tensors[i];
        if (t->alias_of == NULL || t->alias_box != NULL || strcmp(t->name, "format") == 0) continue;
        if (held[spec_target(spec, i)])
            notes[count++] = (struct safetensors_note) { t->name, t->alias_of };
    }
    const bool ok = notes != NULL && held != NULL;
    free(held);
    *notes_out = notes;
    *count_out = count;
    return ok;
}

static bool build_header(const struct planning *p, struct snapshot_file *file)
{
    struct safetensors_note *notes = NULL;
    size_t note_count = 0;
    uint64_t data_bytes = 0;
    cairn_status status = CAIRN_ERR_NO_MEMORY;
    if (list_aliases(p->spec, file, &notes, &note_count))
        status = safetensors_build_whole(file->entries, file->entry_count, notes, note_count,
                                         &file->header, &file->header_bytes, &data_bytes);
    free(notes);
    file->file_bytes = file->header_bytes + data_bytes;
    return status == CAIRN_OK;
}

/* {"metadata": {"total_size": N}, "weight_map": {"<key>": "<file>"}} */
static bool build_index(struct export_plan *plan)
{
    json_t *map = json_object();
    bool ok = map != NULL;
    for (size_t i = 0; i < plan->file_count && ok; i++) {
        const struct snapshot_file *file = &plan->files[i];
        for (size_t e = 0; e < file->entry_count && ok; e++)
            ok = json_object_set_new(map, file->entries[e].key, json_string(file->path)) == 0;
    }
    json_t *root = json_pack("{s:{s:I}, s:o}", "metadata", "total_size",
                             (json_int_t)plan->data_bytes, "weight_map", map);
    plan->index = root != NULL && ok ? json_dumps(root, JSON_INDENT(2) | JSON_SORT_KEYS) : NULL;
    plan->index_bytes = plan->index != NULL ? strlen(plan->index) : 0;
    plan->index_name = INDEX_NAME;
    json_decref(root);
    return plan->index != NULL;
}

static bool finish_plan(const struct planning *p)
{
    struct export_plan *plan = p->plan;
    for (size_t i = 0; i < plan->file_count; i++) {
        name_file(plan, i);
        if (!build_header(p, &plan->files[i])) return false;
    }
    return plan->file_count < 2 || build_index(plan);
}

/* Plans a single file that has all tensors; for a folder, also plans .metadata. */
static cairn_status plan_torch(const struct manifest *manifest, const struct export_wish *wish,
                               struct export_plan *plan)
{
    const struct ctl_torch_wish w = { .dtype = wish->dtype,
                                      .step_plane = PLANE_STEP,
                                      .is_average = wish->is_average,
                                      .buffers = wish->buffers };
    struct planning p = { .plan = plan };
    if (!add_file(&p)) return CAIRN_ERR_NO_MEMORY;
    struct snapshot_file *file = &plan->files[0];
    snprintf(file->path, sizeof file->path, "%s",
             wish->is_dcp ? CTL_TORCH_FOLDER_FILE : TORCH_FILE_NAME);
    plan->index_name = FOLDER_METADATA;
    cairn_status status = wish->is_dcp ? ctl_torch_folder_plan(manifest, &w, file, &plan->torch,
                                                               &plan->index, &plan->index_bytes)
                                       : ctl_torch_plan(manifest, &w, file, &plan->torch);
    for (size_t i = 0; i < file->entry_count && status == CAIRN_OK; i++) {
        const struct safetensors_entry *e = &file->entries[i];
        if (ctl_torch_is_text(e)) continue;
        plan->data_bytes += e->end - e->begin;
        plan->tensors += e->plane == CAIRN_PLANE_PARAM || e->plane == CAIRN_PLANE_EMA;
    }
    for (size_t i = 0; i < manifest->spec.tensor_count; i++)
        plan->aliases += wish->is_dcp && manifest->spec.tensors[i].alias_box != NULL;
    return status;
}

static void export_plan_release(struct export_plan *plan)
{
    for (size_t i = 0; i < plan->file_count; i++) {
        struct snapshot_file *file = &plan->files[i];
        for (size_t e = 0; e < file->entry_count; e++) free(file->entries[e].key);
        free(file->entries);
        free(file->header);
    }
    free(plan->files);
    free(plan->index);
    ctl_torch_free(plan->torch);
    *plan = (struct export_plan) { .files = NULL };
}

/* Plans the export of the snapshot with this manifest, which must outlive the plan. CAIRN_ERR_NO_MEMORY;
 * CAIRN_ERR_NOT_FOUND: there is nothing to export. The caller releases the plan, but only after
 * CAIRN_OK. */
static cairn_status export_plan_make(const struct manifest *manifest,
                                     const struct export_wish *wish, struct export_plan *plan_out)
{
    struct export_plan plan = { .files = NULL };
    struct planning p = { .spec = &manifest->spec, .wish = wish, .plan = &plan };
    cairn_status status = wish->is_torch || wish->is_dcp     ? plan_torch(manifest, wish, &plan)
                          : place_all(&p) && finish_plan(&p) ? CAIRN_OK
                                                             : CAIRN_ERR_NO_MEMORY;
    if (status == CAIRN_OK && plan.file_count == 0) status = CAIRN_ERR_NOT_FOUND;
    for (size_t i = 0; i < manifest->spec.tensor_count; i++)
        plan.blobs += manifest->spec.tensors[i].kind == CAIRN_BLOB &&
                      wish->buffers[i].type == NULL &&
                      strcmp(manifest->spec.tensors[i].name, BUFFERS_BLOB) != 0;
    if (status == CAIRN_OK)
        *plan_out = plan;
    else
        export_plan_release(&plan);
    return status;
}

/* ==== made folder ==== */

static cairn_status fail_errno(struct sentence *why, const char *step, const char *path)
{
    const int error = errno;
    const cairn_status status = error == ENOSPC || error == EDQUOT ? CAIRN_ERR_NO_SPACE
                                                                   : CAIRN_ERR_IO;
    return fail_with(why, status, "%s of %s: %s", step, path, strerror(error));
}

/* ---- leftovers ---- */

/* True for a name that an export writes, and for the temporary name of such a file. */
static bool is_ours(const char *name)
{
    static const char *const wholes[] = { TORCH_FILE_NAME, CTL_TORCH_FOLDER_FILE, FOLDER_METADATA };
    static const char *const ends[] = { ".safetensors", INDEX_NAME };
    size_t length = strlen(name);
    if (length > 4 && strcmp(name + length - 4, ".tmp") == 0) length -= 4;
    for (size_t i = 0; i < sizeof wholes / sizeof *wholes; i++)
        if (strlen(wholes[i]) == length && memcmp(name, wholes[i], length) == 0) return true;
    if (strncmp(name, "model", 5) != 0) return false;
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++) {
        const size_t end = strlen(ends[i]);
        if (length >= end && memcmp(name + length - end, ends[i], end) == 0) return true;
    }
    return false;
}

/* Removes the files in the folder whose names an export writes. Other files remain. */
static void empty_folder(int fd)
{
    const int again = openat(fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *dir = again >= 0 ? fdopendir(again) : NULL; // the DIR owns `again`
    for (const struct dirent *e; dir != NULL && (e = readdir(dir)) != NULL;)
        if (is_ours(e->d_name)) (void)unlinkat(fd, e->d_name, 0);
    if (dir != NULL)
        closedir(dir);
    else if (again >= 0)
        close(again);
}

/* Takes over an existing DIR.tmp, if it is not locked and has only files that an export writes. */
static cairn_status take_over(struct ctl_made_folder *f, struct sentence *why)
{
    f->fd = open(f->temp, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (f->fd < 0) return fail_errno(why, "open", f->temp);
    if (flock(f->fd, LOCK_EX | LOCK_NB) != 0) {
        if (errno != EWOULDBLOCK) return fail_errno(why, "lock", f->temp);
        return fail_with(why, CAIRN_ERR_BUSY,
                         "another command is writing %s: wait for its end, or name another folder",
                         f->temp);
    }
    empty_folder(f->fd);
    if (rmdir(f->temp) != 0)
        return fail_with(why, CAIRN_ERR_REFUSED,
                         "%s is there and has files that are not an export's: move it away, or "
                         "name another folder",
                         f->temp);
    close(f->fd);
    f->fd = -1;
    f->cleaned = true;
    return CAIRN_OK;
}

/* ---- beginning and end ---- */

static cairn_status set_paths(struct ctl_made_folder *f, const char *path, struct sentence *why)
{
    size_t length = strlen(path);
    while (length > 1 && path[length - 1] == '/') length--;
    if (length + sizeof ".tmp" > sizeof f->temp || path[0] != '/' || length < 2)
        return fail_with(why, CAIRN_ERR_INVALID, "%.100s cannot be the name of a new folder", path);
    snprintf(f->path, sizeof f->path, "%.*s", (int)length, path);
    snprintf(f->temp, sizeof f->temp, "%.*s.tmp", (int)length, path);
    return CAIRN_OK;
}

static cairn_status make_temp(struct ctl_made_folder *f, struct sentence *why)
{
    if (mkdir(f->temp, CAIRN_SNAPSHOT_FOLDER_MODE) != 0) {
        if (errno != EEXIST) return fail_errno(why, "mkdir", f->temp);
        CAIRN_TRY(take_over(f, why));
        if (mkdir(f->temp, CAIRN_SNAPSHOT_FOLDER_MODE) != 0)
            return fail_errno(why, "mkdir", f->temp);
    }
    f->fd = open(f->temp, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (f->fd < 0 || file_mode_set(f->fd, CAIRN_SNAPSHOT_FOLDER_MODE) != 0 ||
        flock(f->fd, LOCK_EX | LOCK_NB) != 0)
        return fail_errno(why, "open", f->temp);
    return CAIRN_OK;
}

cairn_status ctl_made_folder_begin(const char *path, struct ctl_made_folder *out,
                                   struct sentence *why)
{
    struct ctl_made_folder f = { .fd = -1 };
    struct stat info;
    cairn_status status = set_paths(&f, path, why);
    if (status == CAIRN_OK && lstat(f.path, &info) == 0)
        status = fail_with(why, CAIRN_ERR_EXISTS,
                           "%s is there already: name a folder that is not there yet", f.path);
    if (status == CAIRN_OK) status = make_temp(&f, why);
    if (status == CAIRN_OK)
        *out = f;
    else if (f.fd >= 0)
        close(f.fd);
    return status;
}

/* Moves the folder into place durably, without replacing anything that appeared meanwhile. */
static cairn_status put_in_place(const struct ctl_made_folder *f, struct sentence *why)
{
    char parent[PATH_MAX];
    const char *slash = strrchr(f->path, '/');
    snprintf(parent, sizeof parent, "%.*s", slash > f->path ? (int)(slash - f->path) : 1, f->path);
    if (fsync(f->fd) != 0) return fail_errno(why, "fsync", f->temp);
    if (renameat2(AT_FDCWD, f->temp, AT_FDCWD, f->path, RENAME_NOREPLACE) != 0) {
        // Some file systems lack the flag. Even without the flag, a non-empty folder is never replaced.
        if (errno != EINVAL || rename(f->temp, f->path) != 0)
            return fail_errno(why, "rename", f->temp);
    }
    const int fd = open(parent, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    const bool durable = fd >= 0 && fsync(fd) == 0;
    const cairn_status status = durable ? CAIRN_OK : fail_errno(why, "fsync", parent);
    if (fd >= 0) close(fd);
    return status;
}

cairn_status ctl_made_folder_end(struct ctl_made_folder *f, cairn_status status,
                                 struct sentence *why)
{
    if (status == CAIRN_OK) status = put_in_place(f, why);
    if (status != CAIRN_OK) {
        empty_folder(f->fd);
        // the folder was already renamed
        if (rmdir(f->temp) != 0 && errno == ENOENT) (void)rmdir(f->path);
    }
    close(f->fd);
    f->fd = -1;
    return status;
}

/* ==== export ==== */

static volatile sig_atomic_t is_interrupted;

static void on_signal(int signal)
{
    (void)signal;
    is_interrupted = 1;
}

static void catch_signals(void)
{
    const struct sigaction action = { .sa_handler = on_signal };
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
}

/* A position in the output. */
struct place_export {
    size_t file, entry;
    uint64_t elem; /* the element of the entry */
};

struct exporting {
    struct snapshot *snapshot;
    const struct export_plan *plan;
    struct place_export ahead; /* everything before this position is read or requested */
    size_t file;               /* the file being written */
    struct ctl_progress progress;
    uint64_t done_bytes;
    float *rounded; /* owned: [CAIRN_SNAPSHOT_BLOCK_BYTES / 2], elements to convert to bf16 */
};

/* ---- reading ahead ---- */

static bool is_before(const struct place_export *a, const struct place_export *b)
{
    if (a->file != b->file) return a->file < b->file;
    return a->entry != b->entry ? a->entry < b->entry : a->elem < b->elem;
}

/* Requests as many blocks from `end` on as there is room for. */
static void look_ahead(struct exporting *x, struct place_export end)
{
    struct place_export *at = &x->ahead;
    if (is_before(at, &end)) *at = end;
    while (at->file < x->plan->file_count) {
        const struct snapshot_file *file = &x->plan->files[at->file];
        if (at->entry == file->entry_count) {
            *at = (struct place_export) { .file = at->file + 1 };
            continue;
        }
        const struct safetensors_entry *entry = &file->entries[at->entry];
        const uint64_t elems = (entry->end - entry->begin) / dtype_size((int)entry->dtype);
        if (entry->plane != PLANE_STEP && !ctl_torch_is_text(entry))
            at->elem += snapshot_want(x->snapshot, entry->tensor, entry->plane, at->elem,
                                      elems - at->elem);
        else
            at->elem = elems;
        if (at->elem < elems) return;
        *at = (struct place_export) { .file = at->file, .entry = at->entry + 1 };
    }
}

/* ---- the bytes ---- */

static cairn_status fill_export(void *context, const struct safetensors_entry *entry,
                                uint64_t first_elem, uint64_t elem_count, void *to,
                                struct sentence *why)
{
    struct exporting *x = context;
    if (is_interrupted) return fail_with(why, CAIRN_ERR_CANCELED, "interrupted");
    const bool rounds = entry->dtype == CAIRN_BF16, is_text = ctl_torch_is_text(entry);
    const uint64_t bytes = elem_count * dtype_size((int)entry->dtype);
    cairn_status status = CAIRN_OK;
    look_ahead(x, (struct place_export) {
                      x->file, (size_t)(entry - x->plan->files[x->file].entries), first_elem });
    if (is_text) {
        ctl_torch_text(x->plan->torch, first_elem, elem_count, to);
    } else if (entry->plane == PLANE_STEP) {
        const struct manifest *m = &x->snapshot->manifest;
        const uint64_t missed = m->steps_missed != NULL ? m->steps_missed[entry->tensor] : 0;
        const float step = (float)(m->step - missed);
        memcpy(to, &step, sizeof step);
    } else {
        status = snapshot_read(x->snapshot, entry->tensor, entry->plane, first_elem, elem_count,
                               rounds ? x->rounded : to, why);
    }
    if (status == CAIRN_OK && rounds) ctl_round_bf16(x->rounded, to, elem_count);
    if (status == CAIRN_OK && x->plan->torch != NULL && !is_text)
        ctl_torch_pass(x->plan->torch, entry, to, bytes);
    x->done_bytes += is_text ? 0 : bytes;
    ctl_progress_at(&x->progress, x->done_bytes);
    return status;
}

static cairn_status write_all(struct exporting *x, const char *at, struct sentence *why)
{
    const struct snapshot_input source = { .fill = fill_export, .context = x };
    const struct export_plan *plan = x->plan;
    const struct storage *storage = storage_of(at);
    struct snapshot_writer *writer = NULL;
    cairn_status status = snapshot_writer_open(IN_FLIGHT, &writer, why);
    for (size_t i = 0; i < plan->file_count && status == CAIRN_OK; i++) {
        x->file = i;
        status = snapshot_writer_put_other(writer, at, &plan->files[i], &source, NULL, why);
    }
    if (status == CAIRN_OK && plan->index != NULL)
        status = storage->commit(at, plan->index_name, plan->index, plan->index_bytes, false, why);
    snapshot_writer_close(writer);
    return status;
}

/* ---- the command ---- */

/* Replaces storage.h's message about a full disk, whose advice is about snapshots. */
static void say_full(const struct export_plan *plan, const char *folder, struct sentence *why)
{
    sentence_set(why,
                 "there is no room for %s in %s: free some, or name another folder; nothing "
                 "was left there",
                 ctl_bytes(plan->data_bytes), folder);
}

static cairn_status export_to(struct ctl *ctl, struct exporting *x, const char *to,
                              struct ctl_made_folder *folder, struct sentence *why)
{
    x->rounded = malloc(CAIRN_SNAPSHOT_BLOCK_BYTES / 2 * sizeof *x->rounded);
    if (x->rounded == NULL) return fail_with(why, CAIRN_ERR_NO_MEMORY, "out of memory");
    catch_signals();
    cairn_status status = ctl_made_folder_begin(to, folder, why);
    if (status == CAIRN_OK) {
        if (folder->cleaned && !ctl->quiet)
            fprintf(stderr, "cairn: %s, which an export that was killed had left, is removed\n",
                    folder->temp);
        ctl_progress_begin(&x->progress, ctl, "exported", x->plan->data_bytes);
        status = write_all(x, folder->temp, why);
        if (status == CAIRN_OK && is_interrupted)
            status = fail_with(why, CAIRN_ERR_CANCELED, "interrupted");
        status = ctl_made_folder_end(folder, status, why);
        ctl_progress_end(&x->progress);
    }
    if (status == CAIRN_ERR_NO_SPACE) say_full(x->plan, to, why);
    if (status == CAIRN_ERR_CANCELED) sentence_set(why, "interrupted: nothing was left of it");
    free(x->rounded);
    return status;
}

static void print_export(const struct ctl *ctl, const struct exporting *x,
                         const struct export_wish *w, char *folder, double seconds)
{
    const struct export_plan *plan = x->plan;
    Cairn__ShownExport shown = CAIRN__SHOWN_EXPORT__INIT; // borrows its texts
    shown.path = folder;
    shown.format = wire_text(w->is_dcp ? "dcp" : w->is_torch ? "torch" : "hf");
    shown.dtype = wire_text(dtype_label((int)w->dtype));
    shown.ema = w->is_average;
    shown.step = x->snapshot->manifest.step;
    shown.tensors = plan->tensors;
    shown.files = plan->file_count;
    shown.bytes = plan->data_bytes;
    shown.blobs_left_out = plan->blobs;
    shown.aliases = plan->aliases;
    shown.seconds = seconds;
    shown.rate = (double)plan->data_bytes / 1e9 / seconds;
    ctl_show(ctl, &shown,
             "exported|{path}\n"
             "format|{format}, {dtype}[{?ema}, averages]\n"
             "size|{bytes/bytes} in {files} files, {tensors} tensors\n"
             "rate|{rate/%.2f} GB/s\n"
             "aliases|{aliases?}, each in the tensor it stands for\n"
             "left out|{blobs_left_out?} blobs",
             "{path}");
}

/* Returns -1 to continue, else the exit status. */
static int check_wish(const struct ctl *ctl, struct export_wish *wish)
{
    const struct ctl_export *e = &ctl->export;
    *wish = (struct export_wish) {
        .is_dcp = e->format != NULL && strcmp(e->format, "dcp") == 0,
        .is_torch = e->format != NULL && strcmp(e->format, "torch") == 0,
        .dtype = e->dtype != NULL && strcmp(e->dtype, "bf16") == 0 ? CAIRN_BF16 : CAIRN_F32,
        .file_bytes_max = e->file_bytes_max > 0 ? e->file_bytes_max : FILE_BYTES_DEFAULT,
        .is_average = e->ema,
    };
    if (ctl->to == NULL) return ctl_usage_fail(ctl, "cairn %s needs --to DIR", ctl->words);
    return -1;
}

/* Refuses averages of a snapshot that has none. */
static cairn_status judge_average(const struct manifest *m, const struct export_wish *wish,
                                  struct sentence *why)
{
    bool any = !wish->is_average;
    for (size_t g = 0; g < m->spec.group_count; g++) any = any || m->spec.groups[g].ema > 0;
    if (any) return CAIRN_OK;
    return fail_with(
        why, CAIRN_ERR_NOT_FOUND,
        "job %s keeps no averages (ema is 0 in each of its groups), so the snapshot has "
        "none: leave out --ema; `cairn job create --from JOB/latest --set GROUP.ema=0.999` "
        "makes a job that keeps them",
        m->spec.name);
}

static int run_snapshot_export(struct ctl *ctl)
{
    struct snapshot snapshot;
    struct export_wish wish;
    struct export_plan plan;
    struct ctl_made_folder folder;
    struct sentence why = { "" };
    char from[PATH_MAX], to[PATH_MAX];
    int done = check_wish(ctl, &wish);
    if (done < 0) done = ctl_absolute("--to", ctl->to, to);
    if (done < 0) done = ctl_place_find(ctl, from);
    if (done < 0) done = ctl_place_open(from, &snapshot);
    if (done >= 0) return done;
    const uint64_t begun_ns = monotonic_ns();
    // Two blocks per location that a tensor may be read from: the current block, and the next one.
    const size_t blocks = AHEAD + 2 * (size_t)snapshot.manifest.shard_count;
    snapshot.ahead = (uint32_t)(blocks < BLOCKS_MAX ? blocks : BLOCKS_MAX);
    struct ctl_buffer *buffers = NULL;
    cairn_status status = judge_average(&snapshot.manifest, &wish, &why);
    if (status == CAIRN_OK) status = read_buffers(&snapshot, &buffers, &why);
    if (status != CAIRN_OK) {
        snapshot_close(&snapshot);
        return ctl_fail(status, "%s", why.text);
    }
    wish.buffers = buffers;
    status = export_plan_make(&snapshot.manifest, &wish, &plan);
    if (status == CAIRN_OK) {
        struct exporting x = { .snapshot = &snapshot, .plan = &plan };
        status = export_to(ctl, &x, to, &folder, &why);
        if (status == CAIRN_OK)
            print_export(ctl, &x, &wish, folder.path, (double)(monotonic_ns() - begun_ns) * 1e-9);
        export_plan_release(&plan);
    } else {
        sentence_set(&why, "%s",
                     status == CAIRN_ERR_NOT_FOUND ? "the job has no tensors of numbers"
                                                   : "out of memory");
    }
    free(buffers);
    snapshot_close(&snapshot);
    return status == CAIRN_OK ? 0 : ctl_fail(status, "%s", why.text);
}

const struct ctl_question ctl_snapshot_export = { .run = run_snapshot_export };

/* ==== copy ==== */

/* cairn snapshot copy: copies a snapshot into another storage. */

static bool on_progress(void *context, uint64_t done)
{
    ctl_progress_at(context, done);
    return !is_interrupted;
}

/* The owner of the copy. A coordinator that runs as another user than the owner cannot list, restore or
 * remove the copy. */
struct owner {
    char text[200]; /* "cairn:cairn" */
    uid_t user;
    gid_t group;
};

static struct owner owner_of(const char *folder)
{
    struct owner owner = { .text = "" };
    struct stat info;
    if (stat(folder, &info) != 0) return owner;
    const struct passwd *user = getpwuid(info.st_uid);
    char name[64];
    snprintf(name, sizeof name, "%u", (unsigned)info.st_uid);
    snprintf(owner.text, sizeof owner.text, "%.64s", user != NULL ? user->pw_name : name);
    const struct group *group = getgrgid(info.st_gid);
    snprintf(name, sizeof name, "%u", (unsigned)info.st_gid);
    const size_t used = strlen(owner.text);
    snprintf(owner.text + used, sizeof owner.text - used, ":%.64s",
             group != NULL ? group->gr_name : name);
    owner.user = info.st_uid;
    owner.group = info.st_gid;
    return owner;
}

static void warn_of_owner(const struct owner *copy, const char *root, const char *folder)
{
    const struct owner there = owner_of(root);
    if (copy->text[0] == '\0' || there.text[0] == '\0' || copy->user == there.user) return;
    fprintf(stderr,
            "cairn: the copy belongs to %s, but %s to %s, who can neither restore nor remove it: "
            "run chown -R %s %s\n",
            copy->text, root, there.text, there.text, folder);
}

static void print_copy(const struct ctl *ctl, const struct snapshot *snapshot, uint64_t bytes,
                       const char *root, char *folder)
{
    const struct manifest *m = &snapshot->manifest;
    struct owner owner = owner_of(folder);
    char modes[64];
    Cairn__ShownCopy shown = CAIRN__SHOWN_COPY__INIT; // borrows its texts
    warn_of_owner(&owner, root, folder);
    snprintf(modes, sizeof modes, "folders %04o, files %04o", CAIRN_SNAPSHOT_FOLDER_MODE,
             CAIRN_SNAPSHOT_FILE_MODE);
    shown.job = m->spec.name;
    shown.path = folder;
    shown.bytes = bytes;
    shown.files = m->file_count;
    shown.signed_ = m->signature != NULL;
    shown.owner = owner.text;
    shown.modes = modes;
    ctl_show(ctl, &shown,
             "copied|{path}\n"
             "size|{bytes/bytes} in {files} files\n"
             "owner|{owner}, {modes}\n"
             "signature|[{?signed}along][{!signed}none]",
             "{path}");
}

/* Copies the snapshot, and takes ownership of `snapshot`. */
static int copy_to(struct ctl *ctl, struct snapshot *snapshot, const char *root)
{
    struct ctl_progress progress;
    const struct snapshot_copy copy = { .progress = on_progress, .context = &progress };
    struct sentence why = { "" };
    char *folder = NULL;
    uint64_t bytes = 0;
    for (size_t i = 0; i < snapshot->manifest.file_count; i++)
        bytes += snapshot->manifest.files[i].bytes;
    catch_signals();
    ctl_progress_begin(&progress, ctl, "copied", bytes);
    const cairn_status status = snapshot_copy(snapshot, root, &copy, &folder, &why);
    ctl_progress_end(&progress);
    const int done = status == CAIRN_OK ? 0 : ctl_fail(status, "%s", why.text);
    if (status == CAIRN_OK) print_copy(ctl, snapshot, bytes, root, folder);
    snapshot_close(snapshot);
    free(folder);
    return done;
}

static int run_snapshot_copy(struct ctl *ctl)
{
    struct snapshot snapshot;
    char from[PATH_MAX], root[PATH_MAX];
    if (ctl->to == NULL) return ctl_usage_fail(ctl, "cairn %s needs --to ROOT", ctl->words);
    int done = ctl_absolute("--to", ctl->to, root);
    if (done < 0) done = ctl_place_find(ctl, from);
    if (done < 0) done = ctl_place_open(from, &snapshot);
    return done >= 0 ? done : copy_to(ctl, &snapshot, root);
}

const struct ctl_question ctl_snapshot_copy = { .run = run_snapshot_copy };
