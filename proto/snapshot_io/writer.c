#include "proto/snapshot_io/writer.h"

#include <assert.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "proto/base/xxh.h"
#include "proto/store/io_thread.h"

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "files are little endian, memory as is");

#define IN_FLIGHT_MAX 64

enum block_state { BLOCK_FREE, BLOCK_FULL, BLOCK_LEAVING };

struct block {
    uint8_t *at; /* owned: [CAIRN_SNAPSHOT_BLOCK_BYTES], aligned */
    enum block_state state;
    uint64_t offset;
    size_t count;
};

struct cairn_snapshot_writer {
    uint32_t block_count; /* one more than are in flight: it is being filled */
    uint32_t thread_count;
    bool is_buffered; /* of any file so far */
    struct block blocks[IN_FLIGHT_MAX + 1];
    pthread_t threads[IN_FLIGHT_MAX];
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    /* under the mutex */
    struct cairn_storage_put *put; /* of the file at hand */
    bool ends;
    cairn_status status; /* the first failure of the file at hand */
    struct cairn_sentence why;
};

void cairn_snapshot_sum(const void *bytes, size_t count, uint8_t sum_out[CAIRN_SNAPSHOT_SUM_BYTES])
{
    XXH128_canonical_t canonical;
    XXH128_canonicalFromHash(&canonical, XXH3_128bits(bytes, count));
    memcpy(sum_out, canonical.digest, sizeof canonical.digest);
}

/* ---- threads ---- */

static struct block *find_block(struct cairn_snapshot_writer *w, enum block_state state)
{
    for (uint32_t i = 0; i < w->block_count; i++)
        if (w->blocks[i].state == state) return &w->blocks[i];
    return NULL;
}

static void fail(struct cairn_snapshot_writer *w, cairn_status status,
                 const struct cairn_sentence *why)
{
    if (w->status != CAIRN_OK) return;
    w->status = status;
    w->why = *why;
}

static void *write_blocks(void *context)
{
    struct cairn_snapshot_writer *w = context;
    pthread_mutex_lock(&w->mutex);
    while (!w->ends) {
        struct block *block = find_block(w, BLOCK_FULL);
        if (block == NULL) {
            pthread_cond_wait(&w->changed, &w->mutex);
            continue;
        }
        struct cairn_sentence why = { "" };
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

/* As many as can be had: with none the blocks are written by the caller. */
static void start_threads(struct cairn_snapshot_writer *w)
{
    while (w->thread_count + 1 < w->block_count) {
        if (!cairn_io_thread_start(&w->threads[w->thread_count], "cairn-write", write_blocks, w))
            return;
        w->thread_count++;
    }
}

/* ---- opening ---- */

cairn_status cairn_snapshot_writer_open(uint32_t in_flight, struct cairn_snapshot_writer **out,
                                        struct cairn_sentence *why)
{
    struct cairn_snapshot_writer *w = calloc(1, sizeof *w);
    if (w == NULL) return cairn_fail(why, CAIRN_ERR_NO_MEMORY, "no memory to write a snapshot");
    if (in_flight == 0) in_flight = CAIRN_SNAPSHOT_IN_FLIGHT;
    w->block_count = (in_flight < IN_FLIGHT_MAX ? in_flight : IN_FLIGHT_MAX) + 1;
    pthread_mutex_init(&w->mutex, NULL);
    pthread_cond_init(&w->changed, NULL);
    for (uint32_t i = 0; i < w->block_count; i++) {
        w->blocks[i].at = cairn_io_block_new(CAIRN_SNAPSHOT_BLOCK_BYTES);
        if (w->blocks[i].at != NULL) continue;
        cairn_snapshot_writer_close(w);
        return cairn_fail(why, CAIRN_ERR_NO_MEMORY, "no memory to write a snapshot");
    }
    *out = w;
    return CAIRN_OK;
}

void cairn_snapshot_writer_close(struct cairn_snapshot_writer *w)
{
    if (w == NULL) return;
    pthread_mutex_lock(&w->mutex);
    w->ends = true;
    pthread_cond_broadcast(&w->changed);
    pthread_mutex_unlock(&w->mutex);
    for (uint32_t i = 0; i < w->thread_count; i++) pthread_join(w->threads[i], NULL);
    for (uint32_t i = 0; i < w->block_count; i++)
        cairn_io_block_free(w->blocks[i].at, CAIRN_SNAPSHOT_BLOCK_BYTES);
    pthread_cond_destroy(&w->changed);
    pthread_mutex_destroy(&w->mutex);
    free(w);
}

bool cairn_snapshot_writer_buffered(const struct cairn_snapshot_writer *writer)
{
    return writer->is_buffered;
}

/* ---- filling ---- */

/* The place in a file that is filled next. */
struct cursor {
    const struct cairn_snapshot_file *file;
    const struct cairn_snapshot_source *source;
    size_t entry; /* the first that has bytes behind `at` */
    uint64_t at;  /* byte of the file */
};

static cairn_status fill_entry(struct cursor *c, uint8_t *to, size_t room, size_t *filled_out,
                               struct cairn_sentence *why)
{
    const uint64_t data_at = c->at - c->file->header_bytes;
    while (c->file->entries[c->entry].end <= data_at) c->entry++;
    const struct cairn_safetensors_entry *e = &c->file->entries[c->entry];
    const size_t elem_bytes = cairn_dtype_bytes((int)e->dtype);
    const uint64_t left = e->end - data_at;
    const size_t bytes = left < room ? (size_t)left : room;
    assert(bytes % elem_bytes ==
           0); // larger dtypes come first in a file: no element lies across blocks
    *filled_out = bytes;
    return c->source->fill(c->source->context, e, e->first_elem + (data_at - e->begin) / elem_bytes,
                           bytes / elem_bytes, to, why);
}

static cairn_status fill_block(struct cursor *c, struct block *block, struct cairn_sentence *why)
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

/* A block that nobody uses; the bytes of the others. Waits for it. */
static struct block *next_block(struct cairn_snapshot_writer *w, cairn_status *status_out)
{
    pthread_mutex_lock(&w->mutex);
    struct block *block;
    while ((block = find_block(w, BLOCK_FREE)) == NULL) pthread_cond_wait(&w->changed, &w->mutex);
    *status_out = w->status;
    pthread_mutex_unlock(&w->mutex);
    return block;
}

static size_t bytes_in_flight(struct cairn_snapshot_writer *w)
{
    size_t bytes = 0;
    pthread_mutex_lock(&w->mutex);
    for (uint32_t i = 0; i < w->block_count; i++)
        if (w->blocks[i].state != BLOCK_FREE) bytes += w->blocks[i].count;
    pthread_mutex_unlock(&w->mutex);
    return bytes;
}

/* To the threads, if there are some. */
static void send_block(struct cairn_snapshot_writer *w, struct block *block)
{
    struct cairn_sentence why = { "" };
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

/* All blocks have left; the status of the file. */
static cairn_status wait_for_all(struct cairn_snapshot_writer *w)
{
    pthread_mutex_lock(&w->mutex);
    while (find_block(w, BLOCK_FULL) != NULL || find_block(w, BLOCK_LEAVING) != NULL)
        pthread_cond_wait(&w->changed, &w->mutex);
    const cairn_status status = w->status;
    pthread_mutex_unlock(&w->mutex);
    return status;
}

static void write_contents(struct cairn_snapshot_writer *w, const struct cairn_snapshot_file *file,
                           const struct cairn_snapshot_source *source, uint8_t *sums)
{
    struct cursor cursor = { .file = file, .source = source };
    cairn_status status = CAIRN_OK;
    while (cursor.at < file->file_bytes) {
        struct cairn_sentence why = { "" };
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
            cairn_snapshot_sum(block->at, block->count, sums);
            sums += CAIRN_SNAPSHOT_SUM_BYTES;
        }
        send_block(w, block);
    }
    if (source->pace != NULL) source->pace(source->context, 0);
}

/* blobs/ is made by who comes first. */
static cairn_status make_part(const char *folder, const char *path, struct cairn_sentence *why)
{
    const enum cairn_snapshot_folder which = cairn_snapshot_folder_of(path);
    if (which != CAIRN_SNAPSHOT_BLOBS) return CAIRN_OK;
    return cairn_storage_of(folder)->make(folder, cairn_snapshot_folder_name(which), false, why);
}

cairn_status cairn_snapshot_writer_put(struct cairn_snapshot_writer *w, const char *folder,
                                       const struct cairn_snapshot_file *file,
                                       const struct cairn_snapshot_source *source,
                                       uint8_t *sums_out, struct cairn_sentence *why)
{
    assert(cairn_snapshot_path_ok(file->path));
    const cairn_status status = make_part(folder, file->path, why);
    if (status != CAIRN_OK) return status;
    return cairn_snapshot_writer_put_other(w, folder, file, source, sums_out, why);
}

cairn_status cairn_snapshot_writer_put_other(struct cairn_snapshot_writer *w, const char *at,
                                             const struct cairn_snapshot_file *file,
                                             const struct cairn_snapshot_source *source,
                                             uint8_t *sums_out, struct cairn_sentence *why)
{
    const struct cairn_storage *storage = cairn_storage_of(at);
    cairn_status status = storage->put_begin(at, file->path, file->file_bytes, &w->put, why);
    if (status != CAIRN_OK) return status;
    if (file->file_bytes > CAIRN_SNAPSHOT_BLOCK_BYTES) start_threads(w);
    w->status = CAIRN_OK;
    write_contents(w, file, source, sums_out);
    status = wait_for_all(w);
    if (status != CAIRN_OK && why != NULL) *why = w->why;
    w->is_buffered |= w->put->is_buffered;
    return storage->put_end(w->put, status, why);
}

cairn_status cairn_snapshot_write_file(const char *folder, const struct cairn_snapshot_file *file,
                                       cairn_snapshot_fill_fn fill, void *context,
                                       uint8_t *sums_out, struct cairn_sentence *why)
{
    const struct cairn_snapshot_source source = { .fill = fill, .context = context };
    struct cairn_snapshot_writer *writer;
    cairn_status status = cairn_snapshot_writer_open(1, &writer, why);
    if (status != CAIRN_OK) return status;
    status = cairn_snapshot_writer_put(writer, folder, file, &source, sums_out, why);
    cairn_snapshot_writer_close(writer);
    return status;
}
