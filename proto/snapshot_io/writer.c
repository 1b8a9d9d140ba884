#include "proto/snapshot_io/snapshot_io.h"

#include <assert.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proto/base/machine.h"
#include "proto/base/xxh.h"
#include "proto/snapshot/snapshot.h"
#include "proto/spec/spec.h"
#include "proto/store/storage.h"

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "files are little endian, memory as is");

#define IN_FLIGHT_MAX 64

enum block_state { BLOCK_FREE, BLOCK_FULL, BLOCK_LEAVING };

struct block {
    uint8_t *at; /* owned: [CAIRN_SNAPSHOT_BLOCK_BYTES], aligned */
    enum block_state state;
    uint64_t offset;
    size_t count;
};

struct snapshot_writer {
    /* number of blocks: those that can be in flight, and one that is being filled */
    uint32_t block_count;
    uint32_t thread_count;
    bool is_buffered; /* true: a file that was written was buffered */
    struct block blocks[IN_FLIGHT_MAX + 1];
    pthread_t threads[IN_FLIGHT_MAX];
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    /* under the mutex */
    struct storage_put *put; /* for the current file */
    bool ends;
    cairn_status status; /* the first failure of the current file */
    struct sentence why;
};

void snapshot_sum(const void *bytes, size_t count, uint8_t sum_out[CAIRN_SNAPSHOT_SUM_BYTES])
{
    XXH128_canonical_t canonical;
    XXH128_canonicalFromHash(&canonical, XXH3_128bits(bytes, count));
    memcpy(sum_out, canonical.digest, sizeof canonical.digest);
}

/* ---- threads ---- */

static struct block *find_block(struct snapshot_writer *w, enum block_state state)
{
    for (uint32_t i = 0; i < w->block_count; i++)
        if (w->blocks[i].state == state) return &w->blocks[i];
    return NULL;
}

static void fail(struct snapshot_writer *w, cairn_status status, const struct sentence *why)
{
    if (w->status != CAIRN_OK) return;
    w->status = status;
    w->why = *why;
}

static void *write_blocks(void *context)
{
    struct snapshot_writer *w = context;
    pthread_setname_np(pthread_self(), "cairn-write");
    pthread_mutex_lock(&w->mutex);
    while (!w->ends) {
        struct block *block = find_block(w, BLOCK_FULL);
        if (block == NULL) {
            pthread_cond_wait(&w->changed, &w->mutex);
            continue;
        }
        struct sentence why = { "" };
        cairn_status status = w->status;
        block->state = BLOCK_LEAVING;
        pthread_mutex_unlock(&w->mutex);
        if (status == CAIRN_OK)
            status = w->put->storage->put_write(w->put, block->offset, block->at, block->count,
                                                &why);
        pthread_mutex_lock(&w->mutex);
        if (status != CAIRN_OK) fail(w, status, &why);
        block->state = BLOCK_FREE;
        pthread_cond_broadcast(&w->changed);
    }
    pthread_mutex_unlock(&w->mutex);
    return NULL;
}

/* Starts as many threads as possible. If there are none, the caller writes the blocks. */
static void start_threads(struct snapshot_writer *w)
{
    while (w->thread_count + 1 < w->block_count) {
        if (thread_start(&w->threads[w->thread_count], write_blocks, w) != 0) return;
        w->thread_count++;
    }
}

/* ---- opening ---- */

cairn_status snapshot_writer_open(uint32_t in_flight, struct snapshot_writer **out,
                                  struct sentence *why)
{
    struct snapshot_writer *w = calloc(1, sizeof *w);
    if (w == NULL) return fail_with(why, CAIRN_ERR_NO_MEMORY, "out of memory to write a snapshot");
    if (in_flight == 0) in_flight = CAIRN_SNAPSHOT_IN_FLIGHT;
    w->block_count = (in_flight < IN_FLIGHT_MAX ? in_flight : IN_FLIGHT_MAX) + 1;
    pthread_mutex_init(&w->mutex, NULL);
    pthread_cond_init(&w->changed, NULL);
    for (uint32_t i = 0; i < w->block_count; i++) {
        w->blocks[i].at = io_block_new(CAIRN_SNAPSHOT_BLOCK_BYTES);
        if (w->blocks[i].at != NULL) continue;
        snapshot_writer_close(w);
        return fail_with(why, CAIRN_ERR_NO_MEMORY, "out of memory to write a snapshot");
    }
    *out = w;
    return CAIRN_OK;
}

void snapshot_writer_close(struct snapshot_writer *w)
{
    if (w == NULL) return;
    pthread_mutex_lock(&w->mutex);
    w->ends = true;
    pthread_cond_broadcast(&w->changed);
    pthread_mutex_unlock(&w->mutex);
    for (uint32_t i = 0; i < w->thread_count; i++) pthread_join(w->threads[i], NULL);
    for (uint32_t i = 0; i < w->block_count; i++)
        io_block_free(w->blocks[i].at, CAIRN_SNAPSHOT_BLOCK_BYTES);
    pthread_cond_destroy(&w->changed);
    pthread_mutex_destroy(&w->mutex);
    free(w);
}

bool snapshot_writer_buffered(const struct snapshot_writer *writer)
{
    return writer->is_buffered;
}

/* ---- filling ---- */

/* The position in a file that is filled next. */
struct cursor {
    const struct snapshot_file *file;
    const struct snapshot_input *source;
    size_t entry; /* the first entry that has bytes after `at` */
    uint64_t at;  /* position in the file, in bytes */
};

static cairn_status fill_entry(struct cursor *c, uint8_t *to, size_t room, size_t *filled_out,
                               struct sentence *why)
{
    const uint64_t data_at = c->at - c->file->header_bytes;
    while (c->file->entries[c->entry].end <= data_at) c->entry++;
    const struct safetensors_entry *e = &c->file->entries[c->entry];
    const size_t elem_bytes = dtype_size((int)e->dtype);
    const uint64_t left = e->end - data_at;
    const size_t bytes = left < room ? (size_t)left : room;
    // Larger dtypes come first in a file, so no element lies across two blocks.
    assert(bytes % elem_bytes == 0);
    *filled_out = bytes;
    return c->source->fill(c->source->context, e, e->first_elem + (data_at - e->begin) / elem_bytes,
                           bytes / elem_bytes, to, why);
}

static cairn_status fill_block(struct cursor *c, struct block *block, struct sentence *why)
{
    const uint64_t left = c->file->file_bytes - c->at;
    block->offset = c->at;
    block->count = left < CAIRN_SNAPSHOT_BLOCK_BYTES ? (size_t)left : CAIRN_SNAPSHOT_BLOCK_BYTES;
    cairn_status status = CAIRN_OK;
    for (size_t done = 0, filled; done < block->count && status == CAIRN_OK; done += filled) {
        const size_t room = block->count - done;
        if (c->at < c->file->header_bytes) {
            const size_t header = c->file->header_bytes - (size_t)c->at;
            filled = header < room ? header : room;
            memcpy(block->at + done, c->file->header + c->at, filled);
        } else {
            status = fill_entry(c, block->at + done, room, &filled, why);
        }
        c->at += filled;
    }
    const size_t tail = block->count % CAIRN_STORAGE_ALIGN;
    if (tail > 0) memset(block->at + block->count, 0, CAIRN_STORAGE_ALIGN - tail);
    return status;
}

/* ---- a file ---- */

/* Waits for a block that is not in use, and returns it. */
static struct block *next_block(struct snapshot_writer *w, cairn_status *status_out)
{
    pthread_mutex_lock(&w->mutex);
    struct block *block;
    while ((block = find_block(w, BLOCK_FREE)) == NULL) pthread_cond_wait(&w->changed, &w->mutex);
    *status_out = w->status;
    pthread_mutex_unlock(&w->mutex);
    return block;
}

static size_t bytes_in_flight(struct snapshot_writer *w)
{
    size_t bytes = 0;
    pthread_mutex_lock(&w->mutex);
    for (uint32_t i = 0; i < w->block_count; i++)
        if (w->blocks[i].state != BLOCK_FREE) bytes += w->blocks[i].count;
    pthread_mutex_unlock(&w->mutex);
    return bytes;
}

/* Passes the block to the threads. If there are none, writes the block. */
static void send_block(struct snapshot_writer *w, struct block *block)
{
    struct sentence why = { "" };
    if (w->thread_count == 0) {
        const cairn_status status = w->put->storage->put_write(w->put, block->offset, block->at,
                                                               block->count, &why);
        if (status != CAIRN_OK) fail(w, status, &why);
        return;
    }
    pthread_mutex_lock(&w->mutex);
    block->state = BLOCK_FULL;
    pthread_cond_broadcast(&w->changed);
    pthread_mutex_unlock(&w->mutex);
}

/* Waits until all blocks have been written. Returns the status of the file. */
static cairn_status wait_for_all(struct snapshot_writer *w)
{
    pthread_mutex_lock(&w->mutex);
    while (find_block(w, BLOCK_FULL) != NULL || find_block(w, BLOCK_LEAVING) != NULL)
        pthread_cond_wait(&w->changed, &w->mutex);
    const cairn_status status = w->status;
    pthread_mutex_unlock(&w->mutex);
    return status;
}

static void write_contents(struct snapshot_writer *w, const struct snapshot_file *file,
                           const struct snapshot_input *source, uint8_t *sums)
{
    struct cursor cursor = { .file = file, .source = source };
    cairn_status status = CAIRN_OK;
    while (cursor.at < file->file_bytes) {
        struct sentence why = { "" };
        if (source->pace != NULL) source->pace(source->context, bytes_in_flight(w));
        struct block *block = next_block(w, &status);
        if (status != CAIRN_OK) return;
        status = fill_block(&cursor, block, &why);
        if (status != CAIRN_OK) {
            pthread_mutex_lock(&w->mutex);
            fail(w, status, &why);
            pthread_mutex_unlock(&w->mutex);
            return;
        }
        if (sums != NULL) {
            snapshot_sum(block->at, block->count, sums);
            sums += CAIRN_SNAPSHOT_SUM_BYTES;
        }
        send_block(w, block);
    }
    if (source->pace != NULL) source->pace(source->context, 0);
}

/* Makes the folder blobs/ for a file of blobs, since only the first writer of blobs makes it. */
static cairn_status make_part(const char *folder, const char *path, struct sentence *why)
{
    const enum snapshot_folder which = snapshot_folder_of(path);
    if (which != CAIRN_SNAPSHOT_BLOBS) return CAIRN_OK;
    return storage_of(folder)->make(folder, snapshot_folder_name(which), false, why);
}

cairn_status snapshot_writer_put(struct snapshot_writer *w, const char *folder,
                                 const struct snapshot_file *file,
                                 const struct snapshot_input *source, uint8_t *sums_out,
                                 struct sentence *why)
{
    assert(snapshot_path_ok(file->path));
    CAIRN_TRY(make_part(folder, file->path, why));
    return snapshot_writer_put_other(w, folder, file, source, sums_out, why);
}

cairn_status snapshot_writer_put_other(struct snapshot_writer *w, const char *at,
                                       const struct snapshot_file *file,
                                       const struct snapshot_input *source, uint8_t *sums_out,
                                       struct sentence *why)
{
    const struct storage *storage = storage_of(at);
    CAIRN_TRY(storage->put_begin(at, file->path, file->file_bytes, &w->put, why));
    if (file->file_bytes > CAIRN_SNAPSHOT_BLOCK_BYTES) start_threads(w);
    w->status = CAIRN_OK;
    write_contents(w, file, source, sums_out);
    cairn_status status = wait_for_all(w);
    if (status != CAIRN_OK && why != NULL) *why = w->why;
    w->is_buffered |= w->put->is_buffered;
    return storage->put_end(w->put, status, why);
}

/* ==== commit ==== */

/* Makes the folder with which a snapshot begins, and commits the manifest, with which a snapshot exists. */

/* ---- folders ---- */

static cairn_status make_parts(const char *root, const char *place, struct sentence *why)
{
    cairn_status status = CAIRN_OK;
    // The folder blobs/ is made only if there are blobs.
    for (int i = 0; i < CAIRN_SNAPSHOT_BLOBS && status == CAIRN_OK; i++) {
        char path[CAIRN_NAME_MAX + CAIRN_SNAPSHOT_ID_BYTES + 16];
        snprintf(path, sizeof path, "%s/%s", place, snapshot_folder_name((enum snapshot_folder)i));
        status = storage_of(root)->make(root, path, false, why);
    }
    return status;
}

/* Makes a folder in the job's folder, with an id that does not exist yet. */
static cairn_status make_id(const char *root, const char *job, uint64_t generation, uint64_t step,
                            char id[CAIRN_SNAPSHOT_ID_BYTES], struct sentence *why)
{
    cairn_status status = CAIRN_ERR_EXISTS;
    char place[CAIRN_NAME_MAX + CAIRN_SNAPSHOT_ID_BYTES + 2];
    for (uint32_t attempt = 1; attempt < 10000 && status == CAIRN_ERR_EXISTS; attempt++) {
        snapshot_id_make(generation, step, attempt, id);
        snprintf(place, sizeof place, "%s/%s", job, id);
        status = storage_of(root)->make(root, place, true, why);
    }
    if (status != CAIRN_OK) return status;
    struct snapshot_removed removed;
    status = make_parts(root, place, why);
    // Nobody knows the folder yet, so nobody else would remove it.
    if (status != CAIRN_OK) (void)!snapshot_remove(root, job, id, &removed, NULL);
    return status;
}

cairn_status snapshot_folder_make(const char *root, const char *job, uint64_t generation,
                                  uint64_t step, char id_out[CAIRN_SNAPSHOT_ID_BYTES],
                                  char **folder_out, struct sentence *why)
{
    char id[CAIRN_SNAPSHOT_ID_BYTES], *folder = NULL;
    if (!job_name_ok(job))
        return fail_with(why, CAIRN_ERR_INVALID, "the job's name cannot be a folder's");
    cairn_status status = storage_of(root)->make(root, job, false, why);
    if (status == CAIRN_OK) status = make_id(root, job, generation, step, id, why);
    if (status != CAIRN_OK) return status;
    if (asprintf(&folder, "%s/%s/%s", root, job, id) < 0) return CAIRN_ERR_NO_MEMORY;
    memcpy(id_out, id, sizeof id);
    *folder_out = folder;
    return CAIRN_OK;
}

/* ---- the manifest ---- */

static cairn_status check_files(const char *folder, const struct manifest *m, struct sentence *why)
{
    for (size_t i = 0; i < m->file_count; i++) {
        uint64_t bytes = 0;
        struct sentence said = { "" };
        const cairn_status status = storage_of(folder)->stat(folder, m->files[i].path, &bytes,
                                                             &said);
        if (status != CAIRN_OK)
            return fail_with(
                why, CAIRN_ERR_CORRUPT,
                "%s is not there (%.300s): the shards and the coordinator must see the "
                "same snapshot folder",
                m->files[i].path, said.text);
        if (bytes != m->files[i].bytes)
            return fail_with(why, CAIRN_ERR_CORRUPT,
                             "%s has %" PRIu64 " bytes, its shard wrote %" PRIu64, m->files[i].path,
                             bytes, m->files[i].bytes);
    }
    return CAIRN_OK;
}

static cairn_status commit_commit(const char *folder, const char *name, const char *text,
                                  size_t text_bytes, struct sentence *why)
{
    return storage_of(folder)->commit(folder, name, text, text_bytes, false, why);
}

/* Writes the signature. This is done before the manifest is written, so that a crash in between leaves no
 * snapshot, rather than an unsigned one. */
static cairn_status commit_signature(const char *folder, const struct manifest *manifest,
                                     const struct secret_key *signer, const char *text,
                                     size_t text_bytes, struct sentence *why)
{
    uint8_t prehash[CAIRN_PREHASH_BYTES];
    char comment[CAIRN_SIGNATURE_COMMENT_BYTES], signature[CAIRN_MINISIG_BYTES];
    minisig_prehash(text, text_bytes, prehash);
    manifest_signature_comment(manifest, comment);
    minisig_sign(signer, prehash, comment, signature);
    return commit_commit(folder, CAIRN_MANIFEST_SIGNATURE_NAME, signature, strlen(signature), why);
}

cairn_status manifest_commit(const char *folder, struct manifest *manifest, struct sentence *why)
{
    return manifest_commit_signed(folder, manifest, NULL, why);
}

cairn_status manifest_commit_signed(const char *folder, struct manifest *manifest,
                                    const struct secret_key *signer, struct sentence *why)
{
    char *text = NULL;
    size_t text_bytes = 0;
    CAIRN_TRY(manifest_encode(manifest, &text, &text_bytes, why));
    cairn_status status = check_files(folder, manifest, why);
    if (status == CAIRN_OK && signer != NULL)
        status = commit_signature(folder, manifest, signer, text, text_bytes, why);
    if (status == CAIRN_OK)
        status = commit_commit(folder, CAIRN_MANIFEST_NAME, text, text_bytes, why);
    free(text);
    return status;
}

/* ==== word ==== */

enum { LINE_BYTES = 96, PATH_BYTES = CAIRN_NAME_MAX + 2 * CAIRN_SNAPSHOT_ID_BYTES + 32 };

bool snapshot_tag_ok(const char *name)
{
    uint64_t generation, step;
    const size_t length = strnlen(name, CAIRN_SNAPSHOT_TAG_BYTES);
    return length < CAIRN_SNAPSHOT_TAG_BYTES && job_name_ok(name) && strcmp(name, "latest") != 0 &&
           !snapshot_id_parse(name, &generation, &step) &&
           (length < 4 || strcmp(name + length - 4, ".tmp") != 0);
}

/* ---- one word ---- */

/* Reads the line of a word, without the newline. CAIRN_ERR_CORRUPT: the file is not one line of text. */
static cairn_status read_line(const char *root, const char *path, char line[LINE_BYTES],
                              struct sentence *why)
{
    const struct storage *storage = storage_of(root);
    struct storage_file *file = NULL;
    size_t got = 0;
    cairn_status status = storage->open(root, path, false, &file, why);
    if (status != CAIRN_OK) return status;
    if (file->bytes >= LINE_BYTES)
        status = fail_with(why, CAIRN_ERR_CORRUPT, "%s is too long for a word", path);
    else
        status = storage->read(file, 0, line, (size_t)file->bytes, &got, why);
    storage->close(file);
    if (status != CAIRN_OK) return status;
    line[got] = '\0';
    if (got == 0 || line[got - 1] != '\n' || strlen(line) != got)
        return fail_with(why, CAIRN_ERR_CORRUPT, "%s is not a line of text", path);
    line[got - 1] = '\0';
    return CAIRN_OK;
}

/* Writes a word into a folder of the job, and makes the folder if it is missing. `folder` "": the job's own
 * folder. */
static cairn_status write_line(const char *root, const char *job, const char *folder,
                               const char *name, const char *line, struct sentence *why)
{
    char path[PATH_BYTES];
    cairn_status status = CAIRN_OK;
    snprintf(path, sizeof path, "%s/%s", job, folder);
    if (folder[0] != '\0') status = storage_of(root)->make(root, path, false, why);
    snprintf(path, sizeof path, "%s/%s%s%s", job, folder, folder[0] != '\0' ? "/" : "", name);
    if (status != CAIRN_OK) return status;
    return storage_of(root)->commit(root, path, line, strlen(line), true, why);
}

static cairn_status remove_line(const char *root, const char *job, const char *folder,
                                const char *name, struct sentence *why)
{
    char path[PATH_BYTES];
    uint64_t bytes;
    snprintf(path, sizeof path, "%s/%s/%s", job, folder, name);
    return storage_of(root)->remove(root, path, false, &bytes, why);
}

static bool is_id(const char *text)
{
    uint64_t generation, step;
    return strlen(text) < CAIRN_SNAPSHOT_ID_BYTES && snapshot_id_parse(text, &generation, &step);
}

cairn_status snapshot_latest_set(const char *root, const char *job, const char *id,
                                 struct sentence *why)
{
    char line[LINE_BYTES];
    snprintf(line, sizeof line, "%s\n", id);
    return write_line(root, job, "", "latest", line, why);
}

cairn_status snapshot_tag_set(const char *root, const char *job, const char *name, const char *id,
                              struct sentence *why)
{
    char line[LINE_BYTES];
    snprintf(line, sizeof line, "%s\n", id);
    return write_line(root, job, "tags", name, line, why);
}

cairn_status snapshot_check_set(const char *root, const char *job,
                                const struct snapshot_check *check, struct sentence *why)
{
    char line[LINE_BYTES];
    snprintf(line, sizeof line, "%s %" PRIu64 "\n", check->is_good ? "good" : "damaged",
             check->unix_s);
    return write_line(root, job, "checks", check->id, line, why);
}

cairn_status snapshot_begun_set(const char *root, const char *job, const char *id, uint64_t number,
                                struct sentence *why)
{
    char line[LINE_BYTES];
    snprintf(line, sizeof line, "%016" PRIx64 "\n", number);
    return write_line(root, job, "begun", id, line, why);
}

cairn_status snapshot_latest_remove(const char *root, const char *job, struct sentence *why)
{
    char path[PATH_BYTES];
    uint64_t bytes;
    snprintf(path, sizeof path, "%s/latest", job);
    const cairn_status status = storage_of(root)->remove(root, path, false, &bytes, why);
    return status == CAIRN_OK ? storage_of(root)->settle(root, job, why) : status;
}

cairn_status snapshot_tag_remove(const char *root, const char *job, const char *name,
                                 struct sentence *why)
{
    char path[PATH_BYTES];
    snprintf(path, sizeof path, "%s/tags", job);
    const cairn_status status = remove_line(root, job, "tags", name, why);
    return status == CAIRN_OK ? storage_of(root)->settle(root, path, why) : status;
}

void snapshot_check_forget(const char *root, const char *job, const char *id)
{
    struct sentence why;
    (void)remove_line(root, job, "checks", id, &why);
}

void snapshot_begun_forget(const char *root, const char *job, const char *id)
{
    struct sentence why;
    (void)remove_line(root, job, "begun", id, &why);
}

/* ---- all words of a job ---- */

static bool parse_check(const char *line, struct snapshot_check *out)
{
    char *end;
    out->is_good = strncmp(line, "good ", 5) == 0;
    if (!out->is_good && strncmp(line, "damaged ", 8) != 0) return false;
    const char *digits = line + (out->is_good ? 5 : 8);
    if (*digits < '0' || *digits > '9' || strlen(digits) > 18) return false;
    out->unix_s = strtoull(digits, &end, 10);
    return *end == '\0';
}

/* A kind of word: how the files of its folder are read. */
struct kind {
    const char *folder;
    size_t bytes; /* size of one result */
    /* Takes one file, and writes the result to `at`. `read` is the status of reading the line.
     * CAIRN_ERR_NOT_FOUND: the file is left out. */
    cairn_status (*take)(void *at, const char *name, const char *line, cairn_status read);
};

static cairn_status take_tag(void *at, const char *name, const char *line, cairn_status read)
{
    struct snapshot_tag *tag = at;
    if (!snapshot_tag_ok(name)) return CAIRN_ERR_NOT_FOUND;
    if (read != CAIRN_OK || !is_id(line)) return read == CAIRN_OK ? CAIRN_ERR_CORRUPT : read;
    snprintf(tag->name, sizeof tag->name, "%s", name);
    snprintf(tag->id, sizeof tag->id, "%s", line);
    return CAIRN_OK;
}

static cairn_status take_check(void *at, const char *name, const char *line, cairn_status read)
{
    struct snapshot_check *check = at;
    if (!is_id(name) || read != CAIRN_OK || !parse_check(line, check)) return CAIRN_ERR_NOT_FOUND;
    snprintf(check->id, sizeof check->id, "%s", name);
    return CAIRN_OK;
}

static cairn_status take_begun(void *at, const char *name, const char *line, cairn_status read)
{
    struct snapshot_begun *begun = at;
    if (!is_id(name) || read != CAIRN_OK || strlen(line) != 16 ||
        strspn(line, "0123456789abcdef") != 16)
        return CAIRN_ERR_NOT_FOUND;
    begun->job = strtoull(line, NULL, 16);
    snprintf(begun->id, sizeof begun->id, "%s", name);
    return CAIRN_OK;
}

/* Loads all words of a kind. If the folder is missing, there are none. */
static cairn_status load_kind(const char *root, const char *job, const struct kind *kind,
                              void **list_out, size_t *count_out, struct sentence *why)
{
    char path[PATH_BYTES], line[LINE_BYTES];
    struct stored_names names;
    snprintf(path, sizeof path, "%s/%s", job, kind->folder);
    cairn_status status = names_list(root, path, &names, why);
    if (status == CAIRN_OK && names.count > CAIRN_SNAPSHOT_WORDS_MAX)
        status = fail_with(why, CAIRN_ERR_INVALID, "%s has more than %d words", path,
                           CAIRN_SNAPSHOT_WORDS_MAX);
    char *list = status == CAIRN_OK ? calloc(names.count + 1, kind->bytes) : NULL;
    if (status == CAIRN_OK && list == NULL)
        status = fail_with(why, CAIRN_ERR_NO_MEMORY, "out of memory");
    *list_out = list;
    for (size_t i = 0; status == CAIRN_OK && i < names.count; i++) {
        struct sentence said = { "it is no id of a snapshot" };
        if (strlen(names.list[i]) >= CAIRN_SNAPSHOT_TAG_BYTES) continue;
        snprintf(path, sizeof path, "%s/%s/%s", job, kind->folder, names.list[i]);
        const cairn_status read = read_line(root, path, line, &said);
        const cairn_status taken = kind->take(list + *count_out * kind->bytes, names.list[i], line,
                                              read);
        *count_out += taken == CAIRN_OK;
        if (taken != CAIRN_OK && taken != CAIRN_ERR_NOT_FOUND)
            status = fail_with(why, taken, "%s cannot be read: %s", path, said.text);
    }
    names_release(&names);
    return status == CAIRN_ERR_NOT_FOUND ? CAIRN_OK : status;
}

cairn_status snapshot_words_load(const char *root, const char *job, struct snapshot_words *out,
                                 struct sentence *why)
{
    static const struct kind tags = { "tags", sizeof *out->tags, take_tag },
                             checks = { "checks", sizeof *out->checks, take_check },
                             begun = { "begun", sizeof *out->begun, take_begun };
    char path[PATH_BYTES], line[LINE_BYTES];
    struct sentence said;
    void *list = NULL;
    *out = (struct snapshot_words) { .latest = "" };
    snprintf(path, sizeof path, "%s/latest", job);
    if (read_line(root, path, line, &said) == CAIRN_OK && is_id(line))
        memcpy(out->latest, line, strlen(line) + 1); // there is room for every id
    cairn_status status = load_kind(root, job, &tags, &list, &out->tag_count, why);
    out->tags = list;
    list = NULL;
    if (status == CAIRN_OK) status = load_kind(root, job, &checks, &list, &out->check_count, why);
    out->checks = list;
    list = NULL;
    if (status == CAIRN_OK) status = load_kind(root, job, &begun, &list, &out->begun_count, why);
    out->begun = list;
    return status;
}

void snapshot_words_release(struct snapshot_words *words)
{
    free(words->tags);
    free(words->checks);
    free(words->begun);
    *words = (struct snapshot_words) { .latest = "" };
}

const struct snapshot_check *snapshot_words_check(const struct snapshot_words *words,
                                                  const char *id)
{
    for (size_t i = 0; i < words->check_count; i++)
        if (strcmp(words->checks[i].id, id) == 0) return &words->checks[i];
    return NULL;
}

/* ==== copy ==== */

struct copying {
    struct snapshot *from;
    const struct snapshot_copy *copy;
    const char *root, *folder; /* root and folder of the copy */
    const char *id;
    struct block_reader *reader;    /* owned */
    struct snapshot_writer *writer; /* owned */
    size_t file;                    /* index of the file that is being copied */
    uint64_t done_bytes;
    bool made; /* true: the folder is ours, because it did not exist before */
};

/* A snapshot_fill_fn: gives a block of the file, unchanged, after the block was checked. */
static cairn_status give_block(void *context, const struct safetensors_entry *entry,
                               uint64_t first_byte, uint64_t byte_count, void *to,
                               struct sentence *why)
{
    struct copying *c = context;
    const uint8_t *bytes;
    size_t count;
    (void)entry;
    if (c->copy->progress != NULL && !c->copy->progress(c->copy->context, c->done_bytes))
        return fail_with(why, CAIRN_ERR_CANCELED, "the copy was given up");
    CAIRN_TRY(block_reader_get(c->reader, c->file, first_byte / CAIRN_SNAPSHOT_BLOCK_BYTES, &bytes,
                               &count, why));
    assert(first_byte % CAIRN_SNAPSHOT_BLOCK_BYTES == 0 && count == byte_count);
    memcpy(to, bytes, count);
    c->done_bytes += count;
    return CAIRN_OK;
}

/* Copies a file. For the writer it is a file without a header, and its bytes are one tensor. */
static cairn_status copy_file(struct copying *c, size_t file, struct sentence *why)
{
    const struct manifest_file *listed = &c->from->manifest.files[file];
    struct safetensors_entry all = { .dtype = CAIRN_U8, .end = listed->bytes };
    struct snapshot_file as_it_is = { .entries = &all,
                                      .entry_count = 1,
                                      .file_bytes = listed->bytes };
    const struct snapshot_input source = { .fill = give_block, .context = c };
    snprintf(as_it_is.path, sizeof as_it_is.path, "%s", listed->path);
    c->file = file;
    return snapshot_writer_put_other(c->writer, c->folder, &as_it_is, &source, NULL, why);
}

/* Reads the text of the manifest from storage, because the signature is over this text. *text_out is
 * malloc'ed, and the caller's. */
static cairn_status read_manifest(const char *folder, char **text_out, size_t *bytes_out,
                                  struct sentence *why)
{
    const struct storage *storage = storage_of(folder);
    struct storage_file *file;
    cairn_status status = storage->open(folder, CAIRN_MANIFEST_NAME, false, &file, why);
    if (status != CAIRN_OK) return status;
    const size_t bytes = (size_t)file->bytes;
    char *text = file->bytes <= CAIRN_MANIFEST_BYTES_MAX ? malloc(bytes + 1) : NULL;
    size_t got = 0;
    if (text == NULL)
        status = fail_with(why, CAIRN_ERR_NO_MEMORY, "out of memory for a manifest");
    else
        status = storage->read(file, 0, text, bytes, &got, why);
    storage->close(file);
    if (status == CAIRN_OK && got < bytes)
        status = fail_with(why, CAIRN_ERR_CORRUPT, "%s/manifest.json was cut off", folder);
    if (status != CAIRN_OK) {
        free(text);
        return status;
    }
    *text_out = text;
    *bytes_out = bytes;
    return CAIRN_OK;
}

/* Commits the copy, if the manifest is still the one that was opened. */
static cairn_status commit_copy(struct copying *c, struct sentence *why)
{
    const struct storage *storage = storage_of(c->folder);
    const struct manifest *m = &c->from->manifest;
    struct manifest again;
    char *text = NULL;
    size_t bytes = 0;
    CAIRN_TRY(read_manifest(c->from->folder, &text, &bytes, why));
    cairn_status status = manifest_decode(text, bytes, &again, why);
    if (status == CAIRN_OK) {
        if (memcmp(again.content_root, m->content_root, sizeof again.content_root) != 0 ||
            again.file_count != m->file_count)
            status = fail_with(why, CAIRN_ERR_CORRUPT,
                               "%s/manifest.json was changed while the snapshot was copied",
                               c->from->folder);
        manifest_release(&again);
    }
    if (status == CAIRN_OK && m->signature != NULL)
        status = storage->commit(c->folder, CAIRN_MANIFEST_SIGNATURE_NAME, m->signature,
                                 m->signature_bytes, false, why);
    if (status == CAIRN_OK)
        status = storage->commit(c->folder, CAIRN_MANIFEST_NAME, text, bytes, false, why);
    free(text);
    return status;
}

static bool has_blobs(const struct manifest *m)
{
    for (size_t i = 0; i < m->file_count; i++)
        if (snapshot_folder_of(m->files[i].path) == CAIRN_SNAPSHOT_BLOBS) return true;
    return false;
}

/* Makes the folder <root>/<job>/<id>, which must not exist yet, and the folders in it. */
static cairn_status make_folders(struct copying *c, struct sentence *why)
{
    const struct storage *storage = storage_of(c->root);
    const char *job = c->from->manifest.spec.name;
    const int folders = has_blobs(&c->from->manifest) ? CAIRN_SNAPSHOT_FOLDERS
                                                      : CAIRN_SNAPSHOT_BLOBS;
    char place[CAIRN_NAME_MAX + CAIRN_SNAPSHOT_ID_BYTES + 2];
    snprintf(place, sizeof place, "%s/%s", job, c->id);
    cairn_status status = storage->make(c->root, job, false, why);
    if (status == CAIRN_OK) status = storage->make(c->root, place, true, why);
    if (status == CAIRN_ERR_EXISTS)
        return fail_with(why, status,
                         "%s is there already; if a copy that was killed has left it, and it has "
                         "no manifest.json, remove it",
                         c->folder);
    c->made = status == CAIRN_OK;
    for (int i = 0; i < folders && status == CAIRN_OK; i++)
        status = storage->make(c->folder, snapshot_folder_name((enum snapshot_folder)i), true, why);
    return status;
}

/* If the manifest is older than version 4, checks the files now, because they have no checksums of
 * blocks. */
static cairn_status judge_whole(struct snapshot *snapshot, struct sentence *why)
{
    for (size_t i = 0; i < snapshot->manifest.file_count; i++)
        if (snapshot->manifest.files[i].is_whole) return snapshot_verify(snapshot, NULL, why);
    return CAIRN_OK;
}

static cairn_status copy_all(struct copying *c, struct sentence *why)
{
    cairn_status status = make_folders(c, why);
    if (status == CAIRN_OK)
        status = block_reader_open(c->from->folder, &c->from->manifest, c->from->ahead, &c->reader,
                                   why);
    if (status == CAIRN_OK) status = snapshot_writer_open(0, &c->writer, why);
    for (size_t i = 0; i < c->from->manifest.file_count && status == CAIRN_OK; i++)
        status = copy_file(c, i, why);
    if (status == CAIRN_OK && c->copy->progress != NULL)
        (void)c->copy->progress(c->copy->context, c->done_bytes); // too late to cancel
    if (status == CAIRN_OK) status = commit_copy(c, why);
    if (status != CAIRN_OK && c->made) {
        struct snapshot_removed removed;
        const cairn_status gone = snapshot_remove(c->root, c->from->manifest.spec.name, c->id,
                                                  &removed, NULL);
        (void)gone; // the files that are left are no snapshot
    }
    return status;
}

cairn_status snapshot_copy(struct snapshot *snapshot, const char *root,
                           const struct snapshot_copy *copy, char **folder_out,
                           struct sentence *why)
{
    const char *slash = strrchr(snapshot->folder, '/');
    const char *id = slash != NULL ? slash + 1 : snapshot->folder;
    uint64_t generation, step;
    char *folder = NULL;
    if (!snapshot_id_parse(id, &generation, &step) || !job_name_ok(snapshot->manifest.spec.name))
        return fail_with(why, CAIRN_ERR_INVALID,
                         "the folder %.200s does not have a snapshot's name", id);
    CAIRN_TRY(judge_whole(snapshot, why));
    if (asprintf(&folder, "%s/%s/%s", root, snapshot->manifest.spec.name, id) < 0)
        return fail_with(why, CAIRN_ERR_NO_MEMORY, "out of memory to copy a snapshot");
    struct copying c = { .from = snapshot, .copy = copy, .root = root, .folder = folder, .id = id };
    cairn_status status = copy_all(&c, why);
    snapshot_writer_close(c.writer);
    block_reader_close(c.reader);
    if (status == CAIRN_OK)
        *folder_out = folder;
    else
        free(folder);
    return status;
}
