#include "proto/snapshot_io/block_reader.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "proto/snapshot/snapshot_file.h"
#include "proto/snapshot_io/writer.h"
#include "proto/store/io_thread.h"

#define AHEAD_MAX   64
#define THREADS_MAX 8 // more do not make a disk faster

enum slot_state { SLOT_EMPTY, SLOT_WANTED, SLOT_READING, SLOT_READ };

/* A block that is, or will be, in memory. */
struct slot {
    uint8_t *at; /* owned: [CAIRN_SNAPSHOT_BLOCK_BYTES] */
    enum slot_state state;
    bool is_taken; /* somebody has had it: another may have its place */
    bool is_done;  /* and has no more use of it: its place goes first */
    size_t file;
    uint64_t block;
    uint64_t used; /* by the clock of gets: the least is the oldest */
    size_t count;
    cairn_status status;
    struct cairn_sentence why;
};

/* The file that a thread has open: the next block is mostly of it. */
struct handle {
    size_t file;
    struct cairn_storage_file *open; /* NULL: none */
};

struct cairn_block_reader {
    const char *folder;
    const struct cairn_manifest *manifest;
    uint32_t slot_count, thread_count;
    struct slot slots[AHEAD_MAX + 1];
    pthread_t threads[THREADS_MAX];
    struct handle own; /* of who calls, if there are no threads */
    struct slot *lent; /* to who calls; NULL: none */
    bool is_told;      /* by cairn_block_reader_want, what comes next */
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    /* under the mutex, as the states of slots */
    bool ends;
    uint64_t clock;
};

cairn_status cairn_block_reader_judge(const struct cairn_manifest_file *listed,
                                      const struct cairn_storage_file *file, cairn_status opened,
                                      struct cairn_sentence *why)
{
    if (opened == CAIRN_ERR_NOT_FOUND)
        return cairn_fail(why, CAIRN_ERR_CORRUPT,
                          "%s is missing; put it back or use another snapshot", listed->path);
    if (opened != CAIRN_OK) return opened;
    if (file->bytes == listed->bytes) return CAIRN_OK;
    return cairn_fail(why, CAIRN_ERR_CORRUPT,
                      "%s has %" PRIu64 " bytes, the manifest says %" PRIu64
                      ": cut off or changed; put it back or use another snapshot",
                      listed->path, file->bytes, listed->bytes);
}

/* ---- a block ---- */

static cairn_status use_file(const struct cairn_block_reader *r, struct handle *handle, size_t file,
                             struct cairn_sentence *why)
{
    const struct cairn_storage *storage = cairn_storage_of(r->folder);
    const struct cairn_manifest_file *listed = &r->manifest->files[file];
    if (handle->open != NULL && handle->file == file) return CAIRN_OK;
    if (handle->open != NULL) storage->close(handle->open);
    handle->open = NULL;
    struct cairn_storage_file *opened = NULL;
    cairn_status status = storage->open(r->folder, listed->path, true, &opened, why);
    status = cairn_block_reader_judge(listed, opened, status, why);
    if (status != CAIRN_OK) {
        if (opened != NULL) storage->close(opened);
        return status;
    }
    *handle = (struct handle) { .file = file, .open = opened };
    return CAIRN_OK;
}

static cairn_status judge_block(const struct cairn_manifest_file *listed, const struct slot *slot,
                                struct cairn_sentence *why)
{
    uint8_t sum[CAIRN_SNAPSHOT_SUM_BYTES];
    if (listed->is_whole) return CAIRN_OK;
    cairn_snapshot_sum(slot->at, slot->count, sum);
    if (memcmp(sum, listed->sums + slot->block * sizeof sum, sizeof sum) == 0) return CAIRN_OK;
    const uint64_t first = slot->block * CAIRN_SNAPSHOT_BLOCK_BYTES;
    return cairn_fail(why, CAIRN_ERR_CHECKSUM,
                      "%s is damaged: the checksum of block %" PRIu64 ", bytes %" PRIu64
                      " to %" PRIu64 ", is not the manifest's; use another snapshot",
                      listed->path, slot->block, first, first + slot->count - 1);
}

/* Reads and judges it; the slot is this thread's. */
static void read_slot(const struct cairn_block_reader *r, struct handle *handle, struct slot *slot)
{
    const struct cairn_manifest_file *listed = &r->manifest->files[slot->file];
    const uint64_t first = slot->block * CAIRN_SNAPSHOT_BLOCK_BYTES, left = listed->bytes - first;
    size_t got = 0;
    slot->count = left < CAIRN_SNAPSHOT_BLOCK_BYTES ? (size_t)left : CAIRN_SNAPSHOT_BLOCK_BYTES;
    slot->status = use_file(r, handle, slot->file, &slot->why);
    if (slot->status != CAIRN_OK) return;
    slot->status = handle->open->storage->read(handle->open, first, slot->at, slot->count, &got,
                                               &slot->why);
    if (slot->status == CAIRN_ERR_IO) {
        const struct cairn_sentence said = slot->why;
        cairn_sentence_set(&slot->why, "%s: %s", listed->path, said.text);
    } else if (slot->status == CAIRN_OK && got < slot->count) {
        slot->status = cairn_fail(&slot->why, CAIRN_ERR_CORRUPT,
                                  "%s ends at byte %" PRIu64 ", cut off; use another snapshot",
                                  listed->path, first + got);
    } else if (slot->status == CAIRN_OK) {
        slot->status = judge_block(listed, slot, &slot->why);
    }
}

/* ---- threads ---- */

static struct slot *oldest_wanted(struct cairn_block_reader *r)
{
    struct slot *oldest = NULL;
    for (uint32_t i = 0; i < r->slot_count; i++) {
        struct slot *slot = &r->slots[i];
        if (slot->state == SLOT_WANTED && (oldest == NULL || slot->used < oldest->used))
            oldest = slot;
    }
    return oldest;
}

static void close_handle(const struct cairn_block_reader *r, struct handle *handle)
{
    if (handle->open != NULL) cairn_storage_of(r->folder)->close(handle->open);
}

static void *read_blocks(void *context)
{
    struct cairn_block_reader *r = context;
    struct handle handle = { 0 };
    pthread_mutex_lock(&r->mutex);
    while (!r->ends) {
        struct slot *slot = oldest_wanted(r);
        if (slot == NULL) {
            pthread_cond_wait(&r->changed, &r->mutex);
            continue;
        }
        slot->state = SLOT_READING;
        pthread_mutex_unlock(&r->mutex);
        read_slot(r, &handle, slot);
        pthread_mutex_lock(&r->mutex);
        slot->state = SLOT_READ;
        pthread_cond_broadcast(&r->changed);
    }
    pthread_mutex_unlock(&r->mutex);
    close_handle(r, &handle);
    return NULL;
}

/* ---- who takes them ---- */

static struct slot *find_slot(struct cairn_block_reader *r, size_t file, uint64_t block)
{
    for (uint32_t i = 0; i < r->slot_count; i++) {
        struct slot *slot = &r->slots[i];
        if (slot->state != SLOT_EMPTY && slot->file == file && slot->block == block) return slot;
    }
    return NULL;
}

/* A slot for a block that is in none: an empty one, else one that is done, else the one that was taken
 * longest ago; for one that is needed now, else one that was read ahead in vain. NULL: there is none yet. */
static struct slot *room_for(struct cairn_block_reader *r, const struct slot *keep, bool is_ahead)
{
    struct slot *best = NULL;
    for (uint32_t i = 0; i < r->slot_count; i++) {
        struct slot *slot = &r->slots[i];
        if (slot == keep) continue;
        if (slot->state == SLOT_EMPTY) return slot;
        if (slot->state != SLOT_READ || (is_ahead && !slot->is_taken)) continue;
        const int rank = slot->is_taken + slot->is_done;
        const int best_rank = best != NULL ? best->is_taken + best->is_done : -1;
        if (rank > best_rank || (rank == best_rank && slot->used < best->used)) best = slot;
    }
    return best;
}

static void want(struct cairn_block_reader *r, struct slot *slot, size_t file, uint64_t block)
{
    slot->state = SLOT_WANTED;
    slot->is_taken = slot->is_done = false;
    slot->file = file;
    slot->block = block;
    slot->used = ++r->clock;
    pthread_cond_broadcast(&r->changed);
}

/* The blocks behind this one, into the next file too. */
static void want_ahead(struct cairn_block_reader *r, const struct slot *slot)
{
    size_t file = slot->file;
    uint64_t block = slot->block;
    for (uint32_t i = 0; i < r->thread_count; i++) {
        if (++block >= cairn_snapshot_block_count(r->manifest->files[file].bytes)) {
            if (++file == r->manifest->file_count) return;
            block = 0;
            if (r->manifest->files[file].bytes == 0) return;
        }
        if (find_slot(r, file, block) != NULL) continue;
        struct slot *room = room_for(r, slot, true);
        if (room == NULL) return;
        want(r, room, file, block);
    }
}

/* Only where there is something to read ahead. */
static void start_threads(struct cairn_block_reader *r, size_t file)
{
    if (r->thread_count > 0 || r->manifest->files[file].bytes <= CAIRN_SNAPSHOT_BLOCK_BYTES) return;
    while (r->thread_count + 1 < r->slot_count && r->thread_count < THREADS_MAX) {
        if (!cairn_io_thread_start(&r->threads[r->thread_count], "cairn-read", read_blocks, r))
            return;
        r->thread_count++;
    }
}

/* How many are read, or will be, for who has not come yet. */
static uint32_t count_ahead(const struct cairn_block_reader *r)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < r->slot_count; i++)
        count += r->slots[i].state != SLOT_EMPTY && !r->slots[i].is_taken;
    return count;
}

bool cairn_block_reader_want(struct cairn_block_reader *r, size_t file, uint64_t block)
{
    start_threads(r, file);
    if (r->thread_count == 0) return false;
    pthread_mutex_lock(&r->mutex);
    r->is_told = true;
    struct slot *slot = find_slot(r, file, block);
    if (slot != NULL && slot->state == SLOT_READ) {
        slot->is_done = false;
        slot->used = ++r->clock;
    } else if (slot == NULL) {
        slot = room_for(r, r->lent, true);
        // One of which a part is needed yet goes only where there are more of these than room.
        if (slot != NULL && slot->state == SLOT_READ && !slot->is_done &&
            count_ahead(r) >= r->slot_count / 2)
            slot = NULL;
        if (slot != NULL) want(r, slot, file, block);
    }
    pthread_mutex_unlock(&r->mutex);
    return slot != NULL;
}

void cairn_block_reader_return(struct cairn_block_reader *r)
{
    pthread_mutex_lock(&r->mutex);
    if (r->lent != NULL) r->lent->is_done = true;
    r->lent = NULL;
    pthread_mutex_unlock(&r->mutex);
}

cairn_status cairn_block_reader_get(struct cairn_block_reader *r, size_t file, uint64_t block,
                                    const uint8_t **bytes_out, size_t *count_out,
                                    struct cairn_sentence *why)
{
    start_threads(r, file);
    pthread_mutex_lock(&r->mutex);
    struct slot *slot;
    while ((slot = find_slot(r, file, block)) == NULL) {
        struct slot *room = room_for(r, NULL, false);
        if (room != NULL)
            want(r, room, file, block);
        else
            pthread_cond_wait(&r->changed, &r->mutex);
    }
    if (r->thread_count == 0 && slot->state == SLOT_WANTED) {
        read_slot(r, &r->own, slot);
        slot->state = SLOT_READ;
    }
    if (!r->is_told) want_ahead(r, slot);
    while (slot->state != SLOT_READ) pthread_cond_wait(&r->changed, &r->mutex);
    slot->used = ++r->clock;
    slot->is_taken = true;
    r->lent = slot;
    pthread_mutex_unlock(&r->mutex);
    *bytes_out = slot->at;
    *count_out = slot->count;
    if (slot->status != CAIRN_OK && why != NULL) *why = slot->why;
    return slot->status;
}

cairn_status cairn_block_reader_open(const char *folder, const struct cairn_manifest *manifest,
                                     uint32_t ahead, struct cairn_block_reader **out,
                                     struct cairn_sentence *why)
{
    struct cairn_block_reader *r = calloc(1, sizeof *r);
    if (r == NULL) return cairn_fail(why, CAIRN_ERR_NO_MEMORY, "no memory to read a snapshot");
    if (ahead == 0) ahead = CAIRN_READ_AHEAD;
    r->folder = folder;
    r->manifest = manifest;
    r->slot_count = (ahead < AHEAD_MAX ? ahead : AHEAD_MAX) + 1;
    pthread_mutex_init(&r->mutex, NULL);
    pthread_cond_init(&r->changed, NULL);
    for (uint32_t i = 0; i < r->slot_count; i++) {
        r->slots[i].at = cairn_io_block_new(CAIRN_SNAPSHOT_BLOCK_BYTES);
        if (r->slots[i].at != NULL) continue;
        cairn_block_reader_close(r);
        return cairn_fail(why, CAIRN_ERR_NO_MEMORY, "no memory to read a snapshot");
    }
    *out = r;
    return CAIRN_OK;
}

void cairn_block_reader_close(struct cairn_block_reader *r)
{
    if (r == NULL) return;
    pthread_mutex_lock(&r->mutex);
    r->ends = true;
    pthread_cond_broadcast(&r->changed);
    pthread_mutex_unlock(&r->mutex);
    for (uint32_t i = 0; i < r->thread_count; i++) pthread_join(r->threads[i], NULL);
    close_handle(r, &r->own);
    for (uint32_t i = 0; i < r->slot_count; i++)
        cairn_io_block_free(r->slots[i].at, CAIRN_SNAPSHOT_BLOCK_BYTES);
    pthread_cond_destroy(&r->changed);
    pthread_mutex_destroy(&r->mutex);
    free(r);
}
