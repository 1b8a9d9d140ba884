/* Reads a snapshot: the manifest, the headers, and then any range, for any layout. */
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proto/base/machine.h"
#include "proto/base/xxh.h"
#include "proto/snapshot/snapshot.h"
#include "proto/snapshot_io/snapshot_io.h"
#include "proto/spec/spec.h"
#include "proto/store/storage.h"

static void block_reader_return(struct block_reader *r);
static bool block_reader_want(struct block_reader *r, size_t file, uint64_t block);

/* Reads all of [offset, offset + count), or fails with a sentence. */
static cairn_status read_file_part(struct storage_file *file, void *out, size_t count,
                                   uint64_t offset, const char *path, struct sentence *why)
{
    struct sentence said = { "" };
    size_t got = 0;
    const cairn_status status = file->storage->read(file, offset, out, count, &got, &said);
    if (status != CAIRN_OK) return fail_with(why, status, "%s: %s", path, said.text);
    if (got == count) return CAIRN_OK;
    return fail_with(why, CAIRN_ERR_CORRUPT,
                     "%s ends at byte %" PRIu64 ", cut off; use another snapshot", path,
                     offset + got);
}

/* ---- the manifest ---- */

/* Puts the path of the manifest before the decoder's sentence. The decoder does not know the path. */
static cairn_status in_manifest(struct sentence *why, const char *folder, cairn_status status)
{
    if (status != CAIRN_OK && status != CAIRN_ERR_NO_MEMORY && why != NULL) {
        const struct sentence said = *why;
        sentence_set(why, "%s/manifest.json is damaged or not ours: %s; use another snapshot",
                     folder, said.text);
    }
    return status;
}

static cairn_status decode_file(struct storage_file *file, const char *folder, struct manifest *out,
                                struct sentence *why)
{
    if (file->bytes > CAIRN_MANIFEST_BYTES_MAX)
        return fail_with(why, CAIRN_ERR_CORRUPT, "%s/manifest.json is too large", folder);
    char *text = malloc((size_t)file->bytes + 1);
    if (text == NULL) return fail_with(why, CAIRN_ERR_NO_MEMORY, "out of memory for a manifest");
    cairn_status status = read_file_part(file, text, (size_t)file->bytes, 0, CAIRN_MANIFEST_NAME,
                                         why);
    if (status == CAIRN_OK) {
        status = manifest_decode(text, (size_t)file->bytes, out, why);
        status = in_manifest(why, folder, status);
    }
    free(text);
    return status;
}

/* Loads the signature into the manifest. A signature that is too large, or is no file, is loaded as empty,
 * and so counts as broken. */
static cairn_status load_signature(const char *folder, struct manifest *out, struct sentence *why)
{
    const struct storage *storage = storage_of(folder);
    struct storage_file *file = NULL;
    struct sentence said; // a missing signature is no failure
    const cairn_status opened = storage->open(folder, CAIRN_MANIFEST_SIGNATURE_NAME, false, &file,
                                              &said);
    if (opened == CAIRN_ERR_NOT_FOUND) return CAIRN_OK;
    out->signature = calloc(1, CAIRN_MINISIG_MAX + 1);
    cairn_status status = out->signature != NULL ? CAIRN_OK
                                                 : fail_with(why, CAIRN_ERR_NO_MEMORY,
                                                             "out of memory for a signature");
    if (status == CAIRN_OK && opened == CAIRN_OK && file->bytes <= CAIRN_MINISIG_MAX) {
        out->signature_bytes = (size_t)file->bytes;
        status = read_file_part(file, out->signature, out->signature_bytes, 0,
                                CAIRN_MANIFEST_SIGNATURE_NAME, why);
    }
    if (opened == CAIRN_OK) storage->close(file);
    return status;
}

cairn_status manifest_load(const char *folder, struct manifest *out, struct sentence *why)
{
    const struct storage *storage = storage_of(folder);
    struct storage_file *file = NULL;
    uint64_t bytes;
    cairn_status status = storage->stat(folder, "", &bytes, why);
    if (status == CAIRN_ERR_NOT_FOUND)
        return fail_with(why, CAIRN_ERR_NOT_FOUND, "there is no snapshot %s", folder);
    if (status != CAIRN_OK) return status;
    status = storage->open(folder, CAIRN_MANIFEST_NAME, false, &file, why);
    if (status == CAIRN_ERR_NOT_FOUND)
        return fail_with(
            why, CAIRN_ERR_NOT_FOUND,
            "%s has no manifest.json, so it is no snapshot (one that was not finished, perhaps)",
            folder);
    if (status != CAIRN_OK) return status;
    status = decode_file(file, folder, out, why);
    storage->close(file);
    if (status != CAIRN_OK) return status;
    status = load_signature(folder, out, why);
    if (status != CAIRN_OK) manifest_release(out);
    return status;
}

/* ---- opening: every file's size and header ---- */

/* Puts the name of the file before the parser's sentence. The parser does not know the name. */
static cairn_status in_file(struct sentence *why, const char *path, cairn_status status)
{
    if ((status == CAIRN_ERR_MALFORMED || status == CAIRN_ERR_UNSUPPORTED) && why != NULL) {
        const struct sentence said = *why;
        sentence_set(why, "%s: %s", path, said.text);
    }
    return status;
}

/* Reads the header, with the 8 bytes before it, and parses it. Keeps a hash of these bytes, which is
 * compared when their blocks are checked. */
static cairn_status parse_header(struct snapshot *s, size_t number, struct storage_file *file,
                                 uint64_t json_bytes, struct safetensors *header,
                                 struct sentence *why)
{
    const struct manifest_file *listed = &s->manifest.files[number];
    uint8_t *bytes = malloc(8 + (size_t)json_bytes + 1);
    if (bytes == NULL) return fail_with(why, CAIRN_ERR_NO_MEMORY, "out of memory for a header");
    cairn_status status = read_file_part(file, bytes, 8 + (size_t)json_bytes, 0, listed->path, why);
    if (status == CAIRN_OK) {
        s->headers[number] = (struct snapshot_header) {
            .bytes = 8 + json_bytes, .sum = XXH3_64bits(bytes, 8 + (size_t)json_bytes)
        };
        status = safetensors_parse(bytes + 8, json_bytes, listed->bytes, header, why);
        status = in_file(why, listed->path, status);
    }
    free(bytes);
    return status;
}

static cairn_status index_open_file(struct snapshot *s, size_t number, struct storage_file *file,
                                    struct sentence *why)
{
    const struct manifest_file *listed = &s->manifest.files[number];
    uint8_t prefix[8] = { 0 };
    uint64_t json_bytes = 0;
    const size_t have = listed->bytes < 8 ? (size_t)listed->bytes : 8;
    CAIRN_TRY(read_file_part(file, prefix, have, 0, listed->path, why));
    cairn_status status = safetensors_header_bytes(prefix, have, listed->bytes, &json_bytes, why);
    if (status != CAIRN_OK) return in_file(why, listed->path, status);
    struct safetensors header;
    CAIRN_TRY(parse_header(s, number, file, json_bytes, &header, why));
    status = snapshot_index_add(&s->index, &s->manifest, number, &header, 8 + json_bytes, why);
    safetensors_release(&header);
    return status;
}

static cairn_status index_file(struct snapshot *s, size_t number, struct sentence *why)
{
    const struct storage *storage = storage_of(s->folder);
    const struct manifest_file *listed = &s->manifest.files[number];
    struct storage_file *file = NULL;
    cairn_status status = storage->open(s->folder, listed->path, false, &file, why);
    status = block_reader_judge(listed, file, status, why);
    if (status == CAIRN_OK) status = index_open_file(s, number, file, why);
    if (file != NULL) storage->close(file);
    return status;
}

cairn_status snapshot_open(const char *folder, struct snapshot *snapshot_out, struct sentence *why)
{
    struct snapshot s = { .folder = strdup(folder) };
    manifest_init(&s.manifest);
    cairn_status status = s.folder == NULL ? fail_with(why, CAIRN_ERR_NO_MEMORY,
                                                       "out of memory to read a snapshot")
                                           : manifest_load(folder, &s.manifest, why);
    if (status == CAIRN_OK) {
        s.headers = calloc(s.manifest.file_count + 1, sizeof *s.headers);
        if (s.headers == NULL)
            status = fail_with(why, CAIRN_ERR_NO_MEMORY, "out of memory to read a snapshot");
    }
    for (size_t i = 0; status == CAIRN_OK && i < s.manifest.file_count; i++)
        status = index_file(&s, i, why);
    if (status == CAIRN_OK) status = snapshot_index_close(&s.index, &s.manifest, why);
    if (status != CAIRN_OK) {
        snapshot_close(&s);
        return status;
    }
    *snapshot_out = s;
    return CAIRN_OK;
}

void snapshot_close(struct snapshot *s)
{
    block_reader_close(s->reader);
    snapshot_index_release(&s->index);
    manifest_release(&s->manifest);
    free(s->headers);
    free(s->folder);
    *s = (struct snapshot) { .folder = NULL };
}

/* ---- bytes ---- */

static cairn_status open_reader(struct snapshot *s, struct sentence *why)
{
    return s->reader != NULL
               ? CAIRN_OK
               : block_reader_open(s->folder, &s->manifest, s->ahead, &s->reader, why);
}

static cairn_status get_block(struct snapshot *s, size_t file, uint64_t block,
                              const uint8_t **bytes_out, size_t *count_out, struct sentence *why)
{
    const cairn_status status = open_reader(s, why);
    return status != CAIRN_OK ? status
                              : block_reader_get(s->reader, file, block, bytes_out, count_out, why);
}

/* Checks that the header that was parsed is the one that was saved: its blocks must have the checksums of
 * the manifest, and must still contain this header. Each file is checked only once. */
static cairn_status judge_header(struct snapshot *s, size_t file, struct sentence *why)
{
    struct snapshot_header *header = &s->headers[file];
    if (header->is_judged || s->manifest.files[file].is_whole) return CAIRN_OK;
    XXH3_state_t *hash = XXH3_createState();
    if (hash == NULL)
        return fail_with(why, CAIRN_ERR_NO_MEMORY, "out of memory to read a snapshot");
    XXH3_64bits_reset(hash);
    cairn_status status = CAIRN_OK;
    uint64_t done = 0;
    for (uint64_t block = 0; done < header->bytes && status == CAIRN_OK; block++) {
        const uint8_t *bytes;
        size_t count;
        status = get_block(s, file, block, &bytes, &count, why);
        if (status != CAIRN_OK) break;
        if (count > header->bytes - done) count = (size_t)(header->bytes - done);
        XXH3_64bits_update(hash, bytes, count);
        done += count;
    }
    if (status == CAIRN_OK && XXH3_64bits_digest(hash) != header->sum)
        status = fail_with(why, CAIRN_ERR_CORRUPT, "%s was changed while it was read",
                           s->manifest.files[file].path);
    XXH3_freeState(hash);
    header->is_judged = status == CAIRN_OK;
    return status;
}

/* Reads bytes [first, first + count) of a file, across blocks. */
static cairn_status read_bytes(struct snapshot *s, size_t file, uint64_t first, size_t count,
                               uint8_t *out, struct sentence *why)
{
    cairn_status status = judge_header(s, file, why);
    while (count > 0 && status == CAIRN_OK) {
        const uint8_t *bytes;
        size_t have;
        const size_t skip = (size_t)(first % CAIRN_SNAPSHOT_BLOCK_BYTES);
        status = get_block(s, file, first / CAIRN_SNAPSHOT_BLOCK_BYTES, &bytes, &have, why);
        if (status != CAIRN_OK) break;
        const size_t part = have - skip < count ? have - skip : count;
        memcpy(out, bytes + skip, part);
        // most callers read in order, so they do not need this block again
        if (skip + part == have) block_reader_return(s->reader);
        out += part;
        first += part;
        count -= part;
    }
    return status;
}

/* Adds the damaged tensor and plane to the sentence, which names the block. */
static cairn_status in_tensor(const struct snapshot *s, uint32_t tensor, uint32_t plane,
                              cairn_status status, struct sentence *why)
{
    if (status == CAIRN_ERR_CHECKSUM)
        sentence_add(why, " (tensor %.*s, plane %s)", 200, s->manifest.spec.tensors[tensor].name,
                     plane_name((int)plane));
    return status;
}

/* Elements of a plane that follow each other in a file. */
struct run {
    size_t file;
    uint64_t first_byte, elem_count;
    size_t elem_bytes;
};

/* Finds the run that begins with `elem`, and has at most `most` elements. False: the snapshot has no such
 * element. */
static bool find_run(const struct snapshot *s, uint32_t tensor, uint32_t plane, uint64_t elem,
                     uint64_t most, struct run *run_out)
{
    const struct snapshot_piece *piece = snapshot_index_find(&s->index, tensor, plane, elem);
    if (piece == NULL) return false;
    const uint64_t skip = elem - piece->first_elem, left = piece->elem_count - skip;
    const size_t elem_bytes = dtype_size((int)spec_plane_dtype(&s->manifest.spec, tensor, plane));
    *run_out = (struct run) { .file = piece->file,
                              .first_byte = piece->file_byte + skip * elem_bytes,
                              .elem_count = left < most ? left : most,
                              .elem_bytes = elem_bytes };
    return true;
}

cairn_status snapshot_read(struct snapshot *s, uint32_t tensor, uint32_t plane, uint64_t first_elem,
                           uint64_t elem_count, void *out, struct sentence *why)
{
    uint8_t *next = out;
    for (uint64_t done = 0; done < elem_count;) {
        struct run run;
        if (!find_run(s, tensor, plane, first_elem + done, elem_count - done, &run))
            return fail_with(why, CAIRN_ERR_INVALID,
                             "the snapshot has no element %" PRIu64 " of tensor %u, plane %u",
                             first_elem + done, tensor, plane);
        const size_t bytes = (size_t)run.elem_count * run.elem_bytes;
        const cairn_status status = read_bytes(s, run.file, run.first_byte, bytes, next, why);
        if (status != CAIRN_OK) return in_tensor(s, tensor, plane, status, why);
        next += bytes;
        done += run.elem_count;
    }
    return CAIRN_OK;
}

/* Announces the blocks of the `count` bytes from `first` on. Returns how many of these bytes lie in blocks
 * that were accepted. */
static uint64_t want_bytes(struct snapshot *s, size_t file, uint64_t first, uint64_t count)
{
    const uint64_t end = first + count;
    uint64_t block = first / CAIRN_SNAPSHOT_BLOCK_BYTES;
    while (block * CAIRN_SNAPSHOT_BLOCK_BYTES < end && block_reader_want(s->reader, file, block))
        block++;
    const uint64_t wanted = block * CAIRN_SNAPSHOT_BLOCK_BYTES;
    return wanted <= first ? 0 : wanted < end ? wanted - first : count;
}

uint64_t snapshot_want(struct snapshot *s, uint32_t tensor, uint32_t plane, uint64_t first_elem,
                       uint64_t elem_count)
{
    uint64_t done = 0;
    struct run run;
    if (open_reader(s, NULL) != CAIRN_OK) return 0; // the next read reports the error
    while (done < elem_count &&
           find_run(s, tensor, plane, first_elem + done, elem_count - done, &run)) {
        const uint64_t bytes = run.elem_count * run.elem_bytes;
        const uint64_t wanted = want_bytes(s, run.file, run.first_byte, bytes);
        done += wanted / run.elem_bytes;
        if (wanted < bytes) break;
    }
    return done;
}

/* ==== block reader ==== */

#define AHEAD_MAX   64
#define THREADS_MAX 8 // more threads do not make a disk faster

enum slot_state { SLOT_EMPTY, SLOT_WANTED, SLOT_READING, SLOT_READ };

/* A block that is in memory, or will be. */
struct slot {
    uint8_t *at; /* owned: [CAIRN_SNAPSHOT_BLOCK_BYTES] */
    enum slot_state state;
    bool is_taken; /* true: the caller has got the block, so its slot may be reused */
    bool is_done;  /* true: the caller no longer needs the block, so its slot is reused first */
    size_t file;
    uint64_t block;
    /* the reader's clock when the slot was last used; the slot with the least value is the oldest */
    uint64_t used;
    size_t count;
    cairn_status status;
    struct sentence why;
};

/* The file that a thread has open. It stays open, because the next block is mostly in the same file. */
struct handle {
    size_t file;
    struct storage_file *open; /* NULL: none */
};

struct block_reader {
    const char *folder;
    const struct manifest *manifest;
    uint32_t slot_count, thread_count;
    struct slot slots[AHEAD_MAX + 1];
    pthread_t threads[THREADS_MAX];
    /* the file that the caller's thread has open, if there are no other threads */
    struct handle own;
    struct slot *loaned; /* the slot whose block the caller has now; NULL: none */
    /* true: block_reader_want was called, so the caller tells which blocks come next */
    bool is_told;
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    /* the next fields and the states of slots are used under the mutex */
    bool ends;
    uint64_t clock;
};

cairn_status block_reader_judge(const struct manifest_file *listed, const struct storage_file *file,
                                cairn_status opened, struct sentence *why)
{
    if (opened == CAIRN_ERR_NOT_FOUND)
        return fail_with(why, CAIRN_ERR_CORRUPT,
                         "%s is missing; put it back or use another snapshot", listed->path);
    if (opened != CAIRN_OK) return opened;
    if (file->bytes == listed->bytes) return CAIRN_OK;
    return fail_with(why, CAIRN_ERR_CORRUPT,
                     "%s has %" PRIu64 " bytes, the manifest says %" PRIu64
                     ": cut off or changed; put it back or use another snapshot",
                     listed->path, file->bytes, listed->bytes);
}

/* ---- a block ---- */

static cairn_status use_file(const struct block_reader *r, struct handle *handle, size_t file,
                             struct sentence *why)
{
    const struct storage *storage = storage_of(r->folder);
    const struct manifest_file *listed = &r->manifest->files[file];
    if (handle->open != NULL && handle->file == file) return CAIRN_OK;
    if (handle->open != NULL) storage->close(handle->open);
    handle->open = NULL;
    struct storage_file *opened = NULL;
    cairn_status status = storage->open(r->folder, listed->path, true, &opened, why);
    status = block_reader_judge(listed, opened, status, why);
    if (status != CAIRN_OK) {
        if (opened != NULL) storage->close(opened);
        return status;
    }
    *handle = (struct handle) { .file = file, .open = opened };
    return CAIRN_OK;
}

static cairn_status judge_block(const struct manifest_file *listed, const struct slot *slot,
                                struct sentence *why)
{
    uint8_t sum[CAIRN_SNAPSHOT_SUM_BYTES];
    if (listed->is_whole) return CAIRN_OK;
    snapshot_sum(slot->at, slot->count, sum);
    if (memcmp(sum, listed->sums + slot->block * sizeof sum, sizeof sum) == 0) return CAIRN_OK;
    const uint64_t first = slot->block * CAIRN_SNAPSHOT_BLOCK_BYTES;
    return fail_with(why, CAIRN_ERR_CHECKSUM,
                     "%s is damaged: the checksum of block %" PRIu64 ", bytes %" PRIu64
                     " to %" PRIu64 ", is not the manifest's; use another snapshot",
                     listed->path, slot->block, first, first + slot->count - 1);
}

/* Reads and checks the block of a slot. No other thread uses the slot meanwhile. */
static void read_slot(const struct block_reader *r, struct handle *handle, struct slot *slot)
{
    const struct manifest_file *listed = &r->manifest->files[slot->file];
    const uint64_t first = slot->block * CAIRN_SNAPSHOT_BLOCK_BYTES, left = listed->bytes - first;
    size_t got = 0;
    slot->count = left < CAIRN_SNAPSHOT_BLOCK_BYTES ? (size_t)left : CAIRN_SNAPSHOT_BLOCK_BYTES;
    slot->status = use_file(r, handle, slot->file, &slot->why);
    if (slot->status != CAIRN_OK) return;
    slot->status = handle->open->storage->read(handle->open, first, slot->at, slot->count, &got,
                                               &slot->why);
    if (slot->status == CAIRN_ERR_IO) {
        const struct sentence said = slot->why;
        sentence_set(&slot->why, "%s: %s", listed->path, said.text);
    } else if (slot->status == CAIRN_OK && got < slot->count) {
        slot->status = fail_with(&slot->why, CAIRN_ERR_CORRUPT,
                                 "%s ends at byte %" PRIu64 ", cut off; use another snapshot",
                                 listed->path, first + got);
    } else if (slot->status == CAIRN_OK) {
        slot->status = judge_block(listed, slot, &slot->why);
    }
}

/* ---- threads ---- */

static struct slot *oldest_wanted(struct block_reader *r)
{
    struct slot *oldest = NULL;
    for (uint32_t i = 0; i < r->slot_count; i++) {
        struct slot *slot = &r->slots[i];
        if (slot->state == SLOT_WANTED && (oldest == NULL || slot->used < oldest->used))
            oldest = slot;
    }
    return oldest;
}

static void close_handle(const struct block_reader *r, struct handle *handle)
{
    if (handle->open != NULL) storage_of(r->folder)->close(handle->open);
}

static void *read_blocks(void *context)
{
    struct block_reader *r = context;
    struct handle handle = { 0 };
    pthread_setname_np(pthread_self(), "cairn-read");
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

/* ---- the caller ---- */

static struct slot *find_slot(struct block_reader *r, size_t file, uint64_t block)
{
    for (uint32_t i = 0; i < r->slot_count; i++) {
        struct slot *slot = &r->slots[i];
        if (slot->state != SLOT_EMPTY && slot->file == file && slot->block == block) return slot;
    }
    return NULL;
}

/* Finds a slot for a block that is in no slot. The first choice is an empty slot, then one that is done,
 * then the one that was used longest ago of those that were taken. If the block is needed now (is_ahead is
 * false), the last choice is a slot that was read ahead and not taken. NULL: there is no such slot yet. */
static struct slot *room_for(struct block_reader *r, const struct slot *keep, bool is_ahead)
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

static void want(struct block_reader *r, struct slot *slot, size_t file, uint64_t block)
{
    slot->state = SLOT_WANTED;
    slot->is_taken = slot->is_done = false;
    slot->file = file;
    slot->block = block;
    slot->used = ++r->clock;
    pthread_cond_broadcast(&r->changed);
}

/* Marks the blocks after this one as wanted, and continues in the next file. */
static void want_ahead(struct block_reader *r, const struct slot *slot)
{
    size_t file = slot->file;
    uint64_t block = slot->block;
    for (uint32_t i = 0; i < r->thread_count; i++) {
        if (++block >= snapshot_block_count(r->manifest->files[file].bytes)) {
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

/* Starts the threads, if there is something to read ahead. */
static void start_threads(struct block_reader *r, size_t file)
{
    if (r->thread_count > 0 || r->manifest->files[file].bytes <= CAIRN_SNAPSHOT_BLOCK_BYTES) return;
    while (r->thread_count + 1 < r->slot_count && r->thread_count < THREADS_MAX) {
        if (thread_start(&r->threads[r->thread_count], read_blocks, r) != 0) return;
        r->thread_count++;
    }
}

/* Returns how many blocks, of those that are read or will be read, the caller has not taken yet. */
static uint32_t count_ahead(const struct block_reader *r)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < r->slot_count; i++)
        count += r->slots[i].state != SLOT_EMPTY && !r->slots[i].is_taken;
    return count;
}

/* For a caller that does not read one file after the other: announces a block that the caller will request
 * after all blocks that it announced before. Returns false if there is no room for the block yet (blocks
 * that are returned make room), or if nothing is read ahead. */
static bool block_reader_want(struct block_reader *r, size_t file, uint64_t block)
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
        slot = room_for(r, r->loaned, true);
        // A block that was taken and is not done is replaced only if fewer than half of the slots have
        // blocks that were read ahead.
        if (slot != NULL && slot->state == SLOT_READ && !slot->is_done &&
            count_ahead(r) >= r->slot_count / 2)
            slot = NULL;
        if (slot != NULL) want(r, slot, file, block);
    }
    pthread_mutex_unlock(&r->mutex);
    return slot != NULL;
}

/* Tells the reader that the block of the last block_reader_get is not needed any more, so that its slot is
 * reused first. */
static void block_reader_return(struct block_reader *r)
{
    pthread_mutex_lock(&r->mutex);
    if (r->loaned != NULL) r->loaned->is_done = true;
    r->loaned = NULL;
    pthread_mutex_unlock(&r->mutex);
}

cairn_status block_reader_get(struct block_reader *r, size_t file, uint64_t block,
                              const uint8_t **bytes_out, size_t *count_out, struct sentence *why)
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
    r->loaned = slot;
    pthread_mutex_unlock(&r->mutex);
    *bytes_out = slot->at;
    *count_out = slot->count;
    if (slot->status != CAIRN_OK && why != NULL) *why = slot->why;
    return slot->status;
}

cairn_status block_reader_open(const char *folder, const struct manifest *manifest, uint32_t ahead,
                               struct block_reader **out, struct sentence *why)
{
    struct block_reader *r = calloc(1, sizeof *r);
    if (r == NULL) return fail_with(why, CAIRN_ERR_NO_MEMORY, "out of memory to read a snapshot");
    if (ahead == 0) ahead = CAIRN_READ_AHEAD;
    r->folder = folder;
    r->manifest = manifest;
    r->slot_count = (ahead < AHEAD_MAX ? ahead : AHEAD_MAX) + 1;
    pthread_mutex_init(&r->mutex, NULL);
    pthread_cond_init(&r->changed, NULL);
    for (uint32_t i = 0; i < r->slot_count; i++) {
        r->slots[i].at = io_block_new(CAIRN_SNAPSHOT_BLOCK_BYTES);
        if (r->slots[i].at != NULL) continue;
        block_reader_close(r);
        return fail_with(why, CAIRN_ERR_NO_MEMORY, "out of memory to read a snapshot");
    }
    *out = r;
    return CAIRN_OK;
}

void block_reader_close(struct block_reader *r)
{
    if (r == NULL) return;
    pthread_mutex_lock(&r->mutex);
    r->ends = true;
    pthread_cond_broadcast(&r->changed);
    pthread_mutex_unlock(&r->mutex);
    for (uint32_t i = 0; i < r->thread_count; i++) pthread_join(r->threads[i], NULL);
    close_handle(r, &r->own);
    for (uint32_t i = 0; i < r->slot_count; i++)
        io_block_free(r->slots[i].at, CAIRN_SNAPSHOT_BLOCK_BYTES);
    pthread_cond_destroy(&r->changed);
    pthread_mutex_destroy(&r->mutex);
    free(r);
}

/* ==== list ==== */

/* Lists the snapshots under a root. Only a folder with a manifest is a snapshot. */

/* Lists the names in a folder. A folder that is missing has no names. */
static cairn_status scan(const char *root, const char *path, struct stored_names *names,
                         struct sentence *why)
{
    struct sentence said = { "" };
    const cairn_status status = names_list(root, path, names, &said);
    if (status == CAIRN_OK || status == CAIRN_ERR_NOT_FOUND) return CAIRN_OK;
    return fail_with(why, status, "listing the snapshots in %s: %s", root, said.text);
}

/* Adds to `why` a folder that could not be read. The listing continues without this folder. */
static void note_unread(struct sentence *why, const struct sentence *said)
{
    if (why != NULL)
        sentence_add(why, "%s%s", why->text[0] != '\0' ? "; " : "",
                     sentence_brief(said->text, 300).text);
}

/* Looks up the manifest by its path below the root, so that no link is followed. */
static bool has_manifest(const char *root, const char *job, const char *id, struct sentence *why)
{
    char path[CAIRN_NAME_MAX + CAIRN_SNAPSHOT_ID_BYTES + sizeof CAIRN_MANIFEST_NAME + 2];
    struct sentence said = { "" };
    uint64_t bytes;
    snprintf(path, sizeof path, "%s/%s/" CAIRN_MANIFEST_NAME, job, id);
    const cairn_status status = storage_of(root)->stat(root, path, &bytes, &said);
    if (status == CAIRN_ERR_IO) note_unread(why, &said);
    return status == CAIRN_OK;
}

static cairn_status list_job(const char *root, const char *job, snapshot_fn on_snapshot,
                             void *context, struct sentence *why)
{
    struct stored_names names;
    cairn_status status = scan(root, job, &names, why);
    for (size_t i = 0; i < names.count && status == CAIRN_OK; i++) {
        char *folder = NULL;
        uint64_t generation, step;
        if (!snapshot_id_parse(names.list[i], &generation, &step) ||
            !has_manifest(root, job, names.list[i], why))
            continue;
        if (asprintf(&folder, "%s/%s/%s", root, job, names.list[i]) < 0) {
            status = CAIRN_ERR_NO_MEMORY;
            break;
        }
        on_snapshot(context, job, names.list[i], folder);
        free(folder);
    }
    names_release(&names);
    return status;
}

cairn_status snapshot_last_generation(const char *root, const char *job, uint64_t *out,
                                      struct sentence *why)
{
    struct stored_names names;
    *out = 0;
    const cairn_status status = scan(root, job, &names, why);
    for (size_t i = 0; i < names.count && status == CAIRN_OK; i++) {
        uint64_t generation, step;
        if (snapshot_id_parse(names.list[i], &generation, &step) && generation > *out)
            *out = generation;
    }
    names_release(&names);
    return status;
}

cairn_status snapshot_list(const char *root, const char *job, snapshot_fn on_snapshot,
                           void *context, struct sentence *why)
{
    struct stored_names names;
    if (why != NULL) why->text[0] = '\0';
    if (job != NULL) // a name that is not allowed has no snapshots
        return job_name_ok(job) ? list_job(root, job, on_snapshot, context, why) : CAIRN_OK;
    cairn_status status = scan(root, "", &names, why);
    for (size_t i = 0; i < names.count && status == CAIRN_OK; i++) {
        struct sentence said = { "" };
        if (!job_name_ok(names.list[i])) continue;
        status = list_job(root, names.list[i], on_snapshot, context, &said);
        if (said.text[0] != '\0') note_unread(why, &said);
        // one folder that cannot be read must not hide the other jobs
        if (status == CAIRN_ERR_IO) status = CAIRN_OK;
    }
    names_release(&names);
    return status;
}

/* ==== weights ==== */

struct snapshot_source {
    struct weights_source source; /* first */
    struct snapshot snapshot;
};

static cairn_status read_source(struct weights_source *source, const struct weight *weight,
                                uint64_t first_elem, uint64_t elem_count, float *out,
                                struct sentence *why)
{
    struct snapshot_source *s = (struct snapshot_source *)source;
    return snapshot_read(&s->snapshot, weight->entry->tensor, CAIRN_PLANE_PARAM, first_elem,
                         elem_count, out, why);
}

static void close_source(struct weights_source *source)
{
    snapshot_close(&((struct snapshot_source *)source)->snapshot);
    free(source);
}

/* Lists each tensor that has fp32 state of its own. False: no memory. */
static bool list_entries(const struct job_spec_data *spec, struct safetensors *header_out)
{
    header_out->entries = calloc(spec->tensor_count + 1, sizeof *header_out->entries);
    if (header_out->entries == NULL) return false;
    for (size_t i = 0; i < spec->tensor_count; i++) {
        const struct tensor_spec *tensor = &spec->tensors[i];
        if (tensor->alias_of != NULL || spec_plane_dtype(spec, i, CAIRN_PLANE_PARAM) != CAIRN_F32)
            continue;
        struct safetensors_entry *e = &header_out->entries[header_out->entry_count];
        *e = (struct safetensors_entry) { .key = strdup(tensor->name),
                                          .dtype_name = "F32",
                                          .dtype = CAIRN_F32,
                                          .box.rank = tensor->shape.rank,
                                          .tensor = (uint32_t)i };
        if (e->key == NULL) return false;
        memcpy(e->box.extent, tensor->shape.dim, tensor->shape.rank * sizeof *e->box.extent);
        header_out->entry_count++;
    }
    return true;
}

static cairn_status open_snapshot(const char *path, const char *folder, struct weights *out,
                                  struct sentence *why)
{
    struct snapshot_source *s = calloc(1, sizeof *s);
    if (s == NULL) return fail_with(why, CAIRN_ERR_NO_MEMORY, "out of memory");
    s->source = (struct weights_source) { read_source, close_source };
    const cairn_status status = snapshot_open(folder, &s->snapshot, why);
    if (status != CAIRN_OK) {
        free(s);
        return status;
    }
    struct safetensors header = { .entries = NULL };
    if (list_entries(&s->snapshot.manifest.spec, &header))
        return weights_of(path, &s->source, &header, out, why);
    safetensors_release(&header);
    close_source(&s->source);
    return fail_with(why, CAIRN_ERR_NO_MEMORY, "out of memory for the tensors of %s", path);
}

cairn_status snapshot_weights_open(const char *roots, const char *path, struct weights *out,
                                   struct sentence *why)
{
    char *folder;
    CAIRN_TRY(weights_folder_with(roots, path, CAIRN_MANIFEST_NAME, &folder, why));
    if (folder == NULL) return weights_open(roots, path, out, why);
    cairn_status status = open_snapshot(path, folder, out, why);
    free(folder);
    return status;
}
