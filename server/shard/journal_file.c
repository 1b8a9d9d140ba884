#include "server/shard/journal_file.h"

#include <assert.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "proto/base/durable.h"
#include "proto/wire/wire.h"

static const char head_magic[8] = "cairnle", part_magic[8] = "cairnlp", base_magic[8] = "cairnlb",
                  newest_magic[8] = "cairnln";

static uint64_t blocks(uint64_t bytes)
{
    return (bytes + JOURNAL_BLOCK - 1) / JOURNAL_BLOCK * JOURNAL_BLOCK;
}

static cairn_status fail_step(struct sentence *why, const char *step, const char *path)
{
    const int error = errno;
    const bool is_full = error == ENOSPC || error == EDQUOT || error == EFBIG;
    return fail_with(why, is_full ? CAIRN_ERR_NO_SPACE : CAIRN_ERR_IO, "%s %.300s failed: %s%s",
                     step, path, strerror(error),
                     is_full ? "; free some space, or give log.path more" : "");
}

static void name_segment(char path[PATH_MAX], const char *folder, uint64_t number)
{
    snprintf(path, PATH_MAX, "%s/%016" PRIx64 ".seg", folder, number);
}

static void name_file(char path[PATH_MAX], const char *folder, const char *name)
{
    snprintf(path, PATH_MAX, "%s/%s", folder, name);
}

/* Makes new and removed names of the folder durable. */
static cairn_status sync_folder(const char *folder, struct sentence *why)
{
    const int fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) return fail_step(why, "opening the folder", folder);
    const cairn_status status = fsync(fd) == 0 ? CAIRN_OK
                                               : fail_step(why, "fsync of the folder", folder);
    close(fd);
    return status;
}

/* Reads all of these bytes; false: errno, or 0 if the file ends before. */
static bool read_at(int fd, uint64_t at, void *to, size_t bytes)
{
    uint8_t *next = to;
    while (bytes > 0) {
        const ssize_t got = pread(fd, next, bytes, (off_t)at);
        if (got < 0 && errno == EINTR) continue;
        if (got == 0) errno = 0;
        if (got <= 0) return false;
        next += got;
        at += (uint64_t)got;
        bytes -= (size_t)got;
    }
    return true;
}

/* Reads a small file whole: malloc'ed, with at least `least` bytes. */
static cairn_status read_file(const char *path, size_t least, void **out, uint64_t *bytes_out,
                              struct sentence *why)
{
    struct stat is;
    const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    if (fd < 0 && errno == ENOENT)
        return fail_with(why, CAIRN_ERR_NOT_FOUND, "%.300s is not there", path);
    if (fd < 0) return fail_step(why, "opening", path);
    cairn_status status = CAIRN_OK;
    uint8_t *bytes = NULL;
    if (fstat(fd, &is) != 0)
        status = fail_step(why, "fstat of", path);
    else if ((uint64_t)is.st_size < least || (uint64_t)is.st_size > 4 * CAIRN_PAGED_BYTES_MAX)
        status = fail_with(why, CAIRN_ERR_CHECKSUM, "%.300s is damaged: it has %lld bytes", path,
                           (long long)is.st_size);
    else if ((bytes = malloc((size_t)is.st_size)) == NULL)
        status = fail_with(why, CAIRN_ERR_NO_MEMORY, "out of memory to read %.300s", path);
    else if (!read_at(fd, 0, bytes, (size_t)is.st_size))
        status = fail_step(why, "reading", path);
    close(fd);
    if (status != CAIRN_OK) {
        free(bytes);
        return status;
    }
    *out = bytes;
    *bytes_out = (uint64_t)is.st_size;
    return CAIRN_OK;
}

/* ==== the part, and its base ==== */

/* The checksum of a file: of all bytes behind the field that has it. */
static uint64_t checksum_behind(const uint64_t *field, const void *file, uint64_t bytes)
{
    const uint8_t *from = (const uint8_t *)(field + 1);
    return chunk_checksum(from, (size_t)((const uint8_t *)file + bytes - from));
}

void journal_part_seal(struct journal_part *part)
{
    memcpy(part->magic, part_magic, sizeof part->magic);
    part->format = JOURNAL_FORMAT;
    part->checksum = checksum_behind(&part->checksum, part, part->bytes);
}

static bool part_adds_up(const struct journal_part *part, uint64_t bytes)
{
    const uint64_t most = CAIRN_PAGED_BYTES_MAX;
    return part->bytes == bytes && part->spec_bytes <= most && part->amended_bytes <= most &&
           part->layout_bytes <= most &&
           sizeof *part + part->spec_bytes + part->amended_bytes + part->layout_bytes == bytes &&
           memchr(part->name, '\0', sizeof part->name) != NULL &&
           memchr(part->shard, '\0', sizeof part->shard) != NULL;
}

static cairn_status judge_part(const char *path, const struct journal_part *part, uint64_t bytes,
                               struct sentence *why)
{
    if (memcmp(part->magic, part_magic, sizeof part_magic) != 0)
        return fail_with(why, CAIRN_ERR_CHECKSUM, "%.300s is damaged, or no part of a log", path);
    if (part->format != JOURNAL_FORMAT)
        return fail_with(why, CAIRN_ERR_VERSION,
                         "build %.*s writes logs in format %u, and this build reads %d",
                         KEPT_BUILD_BYTES, part->build, part->format, JOURNAL_FORMAT);
    if (!part_adds_up(part, bytes) ||
        checksum_behind(&part->checksum, part, bytes) != part->checksum)
        return fail_with(why, CAIRN_ERR_CHECKSUM, "%.300s is damaged", path);
    return CAIRN_OK;
}

cairn_status journal_part_read(const char *folder, struct journal_part **part_out,
                               struct sentence *why)
{
    char path[PATH_MAX];
    void *file;
    uint64_t bytes;
    name_file(path, folder, "part");
    CAIRN_TRY(read_file(path, sizeof **part_out, &file, &bytes, why));
    const cairn_status status = judge_part(path, file, bytes, why);
    if (status == CAIRN_OK)
        *part_out = file;
    else
        free(file);
    return status;
}

cairn_status journal_part_write(const char *folder, const struct journal_part *part,
                                struct sentence *why)
{
    char path[PATH_MAX];
    name_file(path, folder, "part");
    return durable_write(path, 0600, part, (size_t)part->bytes, why);
}

static cairn_status judge_base(const char *path, const struct journal_base *base, uint64_t bytes,
                               uint64_t log, struct sentence *why)
{
    const bool is_known = memcmp(base->magic, base_magic, sizeof base_magic) == 0 &&
                          base->format == JOURNAL_FORMAT;
    if (!is_known || base->path_bytes != bytes - sizeof *base || base->path_bytes == 0 ||
        checksum_behind(&base->checksum, base, bytes) != base->checksum ||
        ((const char *)(base + 1))[base->path_bytes - 1] != '\0')
        return fail_with(why, CAIRN_ERR_CHECKSUM, "%.300s is damaged", path);
    if (base->log != log)
        return fail_with(why, CAIRN_ERR_NOT_FOUND, "%.300s belongs to another log", path);
    return CAIRN_OK;
}

cairn_status journal_base_read(const char *folder, uint64_t log, struct log_base *base_out,
                               struct sentence *why)
{
    char path[PATH_MAX];
    void *file;
    uint64_t bytes;
    name_file(path, folder, "base");
    CAIRN_TRY(read_file(path, sizeof(struct journal_base), &file, &bytes, why));
    const struct journal_base *base = file;
    cairn_status status = judge_base(path, base, bytes, log, why);
    char *text = status == CAIRN_OK ? strdup((const char *)(base + 1)) : NULL;
    if (status == CAIRN_OK && text == NULL)
        status = fail_with(why, CAIRN_ERR_NO_MEMORY, "out of memory to read %.300s", path);
    if (status == CAIRN_OK)
        *base_out =
            (struct log_base) { .version = base->version, .root = base->root, .path = text };
    free(file);
    return status;
}

cairn_status journal_base_write(const char *folder, uint64_t log, const struct log_base *of,
                                struct sentence *why)
{
    char at[PATH_MAX];
    const size_t path_bytes = strlen(of->path) + 1,
                 bytes = sizeof(struct journal_base) + path_bytes;
    struct journal_base *base = calloc(1, bytes);
    if (base == NULL) return fail_with(why, CAIRN_ERR_NO_MEMORY, "out of memory for a log's base");
    *base = (struct journal_base) { .format = JOURNAL_FORMAT,
                                    .log = log,
                                    .version = of->version,
                                    .root = of->root,
                                    .path_bytes = path_bytes };
    memcpy(base->magic, base_magic, sizeof base->magic);
    memcpy(base + 1, of->path, path_bytes);
    base->checksum = checksum_behind(&base->checksum, base, bytes);
    name_file(at, folder, "base");
    const cairn_status status = durable_write(at, 0600, base, bytes, why);
    free(base);
    return status;
}

cairn_status journal_base_judge(const struct log_base *base, struct cairn_version version,
                                const uint8_t root[CAIRN_HASH_BYTES], struct sentence *why)
{
    const struct cairn_version wanted = base->version;
    if (version_compare(version, wanted) == 0 &&
        memcmp(base->root.byte, root, sizeof base->root.byte) == 0)
        return CAIRN_OK;
    return fail_with(why, CAIRN_ERR_MISMATCH,
                     "the log stands on the snapshot of version %" PRIu64 ".%" PRIu64
                     " with content root %02x%02x%02x%02x..., and what lies at %.300s is another "
                     "one, of version %" PRIu64 ".%" PRIu64
                     " with content root %02x%02x%02x%02x...: it was replaced since; bring the one "
                     "back that was there",
                     wanted.generation, wanted.step, base->root.byte[0], base->root.byte[1],
                     base->root.byte[2], base->root.byte[3], base->path, version.generation,
                     version.step, root[0], root[1], root[2], root[3]);
}

cairn_status journal_newest_write(const char *folder, uint64_t log, uint64_t segment,
                                  struct sentence *why)
{
    char path[PATH_MAX];
    struct journal_newest newest = { .format = JOURNAL_FORMAT, .log = log, .segment = segment };
    memcpy(newest.magic, newest_magic, sizeof newest.magic);
    newest.checksum = checksum_behind(&newest.checksum, &newest, sizeof newest);
    name_file(path, folder, "newest");
    return durable_write(path, 0600, &newest, sizeof newest, why);
}

/* Reads the number of the segment that was begun last. CAIRN_ERR_NOT_FOUND: the process died before it said
 * so for the first time. */
static cairn_status read_newest(const char *folder, uint64_t log, uint64_t *segment_out,
                                struct sentence *why)
{
    char path[PATH_MAX];
    void *file;
    uint64_t bytes;
    name_file(path, folder, "newest");
    CAIRN_TRY(read_file(path, sizeof(struct journal_newest), &file, &bytes, why));
    const struct journal_newest *newest = file;
    const bool is_right = memcmp(newest->magic, newest_magic, sizeof newest_magic) == 0 &&
                          newest->format == JOURNAL_FORMAT && bytes == sizeof *newest &&
                          checksum_behind(&newest->checksum, newest, bytes) == newest->checksum &&
                          newest->log == log;
    *segment_out = newest->segment;
    free(file);
    return is_right
               ? CAIRN_OK
               : fail_with(why, CAIRN_ERR_CHECKSUM, "%.300s is damaged, or of another log", path);
}

/* True if the name is one of a log's files. */
static bool is_of_log(const char *name)
{
    const size_t length = strlen(name);
    return strcmp(name, "part") == 0 || strcmp(name, "base") == 0 ||
           strcmp(name, "part.new") == 0 || strcmp(name, "base.new") == 0 ||
           strcmp(name, "newest") == 0 || strcmp(name, "newest.new") == 0 ||
           (length == 20 && strcmp(name + 16, ".seg") == 0);
}

cairn_status journal_end(const char *folder, struct sentence *why)
{
    char path[PATH_MAX];
    name_file(path, folder, "part");
    if (unlink(path) != 0 && errno != ENOENT && errno != ENOTDIR)
        return fail_step(why, "removing", path);
    if (access(folder, F_OK) != 0) return CAIRN_OK;
    CAIRN_TRY(sync_folder(folder, why));
    DIR *names = opendir(folder);
    const struct dirent *name;
    while (names != NULL && (name = readdir(names)) != NULL)
        if (is_of_log(name->d_name)) (void)unlinkat(dirfd(names), name->d_name, 0);
    if (names != NULL) closedir(names);
    (void)rmdir(folder);
    return CAIRN_OK;
}

cairn_status journal_end_others(const char *folder, struct sentence *why)
{
    char parent[PATH_MAX], path[PATH_MAX + 256];
    path_parent(folder, parent);
    const char *ours = folder + strlen(parent) + 1;
    DIR *names = opendir(parent);
    if (names == NULL) return fail_step(why, "opening the folder", parent);
    cairn_status status = CAIRN_OK;
    const struct dirent *name;
    while (status == CAIRN_OK && (name = readdir(names)) != NULL) {
        if (strncmp(name->d_name, ours, 17) != 0 || strcmp(name->d_name, ours) == 0) continue;
        snprintf(path, sizeof path, "%s/%s", parent, name->d_name);
        status = journal_end(path, why);
    }
    closedir(names);
    return status;
}

/* ==== writing ==== */

uint64_t journal_front_bytes(const struct journal_head *head)
{
    return blocks(sizeof *head + head->chunk_count * sizeof(struct journal_chunk) +
                  head->outcome.payload_bytes + head->frozen_bytes);
}

uint64_t journal_entry_bytes(const struct journal_head *head)
{
    return 2 * journal_front_bytes(head) + blocks(head->data_bytes);
}

static bool set_direct(int fd, bool direct)
{
    const int flags = fcntl(fd, F_GETFL);
    return flags >= 0 && fcntl(fd, F_SETFL, direct ? flags | O_DIRECT : flags & ~O_DIRECT) == 0;
}

/* Reserves the bytes, so that no write finds the disk full. A file system that cannot reserve is written as
 * it is. */
static bool take_room(int fd, uint64_t bytes)
{
    if (fallocate(fd, 0, 0, (off_t)bytes) == 0) return true;
    return errno == EOPNOTSUPP && ftruncate(fd, (off_t)bytes) == 0;
}

cairn_status journal_segment_make(const char *folder, uint64_t number, uint64_t bytes,
                                  struct journal_segment *segment_out, struct sentence *why)
{
    char path[PATH_MAX];
    name_segment(path, folder, number);
    const int fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0) return fail_step(why, "creating", path);
    cairn_status status = CAIRN_OK;
    if (!take_room(fd, bytes))
        status = fail_step(why, "making room for", path);
    else if (fsync(fd) != 0)
        status = fail_step(why, "fsync of", path);
    else
        status = sync_folder(folder, why);
    if (status != CAIRN_OK) {
        close(fd);
        unlink(path);
        return status;
    }
    segment_out->fd = fd;
    atomic_init(&segment_out->is_direct, set_direct(fd, true));
    segment_out->number = number;
    segment_out->bytes = bytes;
    segment_out->end = 0;
    return CAIRN_OK;
}

void journal_segment_close(struct journal_segment *segment)
{
    if (segment->fd >= 0) close(segment->fd);
    segment->fd = -1;
}

void journal_segment_drop(const char *folder, struct journal_segment *segment)
{
    char path[PATH_MAX];
    journal_segment_close(segment);
    name_segment(path, folder, segment->number);
    (void)unlink(path);
}

static uint64_t head_checksum(const struct journal_head *head)
{
    return chunk_checksum(head, offsetof(struct journal_head, checksum));
}

void journal_front_make(struct journal_head *head, const struct journal_segment *segment,
                        const struct journal_chunk *chunks, const uint8_t *payload,
                        const bool *frozen, void *fronts)
{
    const uint64_t bytes = journal_front_bytes(head);
    uint8_t *at = (uint8_t *)fronts + sizeof *head;
    memset(fronts, 0, (size_t)bytes);
    if (head->chunk_count > 0) memcpy(at, chunks, head->chunk_count * sizeof *chunks);
    at += head->chunk_count * sizeof *chunks;
    if (head->outcome.payload_bytes > 0) memcpy(at, payload, head->outcome.payload_bytes);
    at += head->outcome.payload_bytes;
    if (head->frozen_bytes > 0) memcpy(at, frozen, head->frozen_bytes);
    memcpy(head->magic, head_magic, sizeof head->magic);
    head->format = JOURNAL_FORMAT;
    head->segment = segment->number;
    head->at = segment->end;
    head->body_checksum = chunk_checksum((uint8_t *)fronts + sizeof *head,
                                         (size_t)(bytes - sizeof *head));
    memcpy((uint8_t *)fronts + bytes, fronts, (size_t)bytes);
    for (head->copy = 0; head->copy < 2; head->copy++) {
        head->checksum = head_checksum(head);
        memcpy((uint8_t *)fronts + head->copy * bytes, head, sizeof *head);
    }
}

cairn_status journal_write(struct journal_segment *segment, uint64_t at, const void *from,
                           size_t bytes, struct sentence *why)
{
    const uint8_t *next = from;
    bool may_retry = true; // also if another thread has turned direct writes off
    assert(at % JOURNAL_BLOCK == 0 && bytes % JOURNAL_BLOCK == 0);
    while (bytes > 0) {
        const ssize_t written = pwrite(segment->fd, next, bytes, (off_t)at);
        if (written < 0 && errno == EINTR) continue;
        // A file system may take O_DIRECT and refuse the writes.
        if (written < 0 && errno == EINVAL && may_retry) {
            may_retry = false;
            atomic_store(&segment->is_direct, false);
            if (set_direct(segment->fd, false)) continue;
            errno = EINVAL;
        }
        if (written < 0) return fail_step(why, "writing", "the log");
        next += written;
        at += (uint64_t)written;
        bytes -= (size_t)written;
    }
    return CAIRN_OK;
}

cairn_status journal_sync(const struct journal_segment *segment, struct sentence *why)
{
    return fdatasync(segment->fd) == 0 ? CAIRN_OK : fail_step(why, "fdatasync of", "the log");
}

/* ==== reading ==== */

const uint8_t *journal_entry_payload(const struct journal_entry *entry)
{
    return entry->body + entry->head.chunk_count * sizeof(struct journal_chunk);
}

const bool *journal_entry_frozen(const struct journal_entry *entry)
{
    return (const bool *)(journal_entry_payload(entry) + entry->head.outcome.payload_bytes);
}

void journal_entries_release(struct journal_entries *entries)
{
    for (size_t i = 0; i < entries->count; i++) free(entries->list[i].body);
    free(entries->list);
    *entries = (struct journal_entries) { .list = NULL };
}

/* A segment that is read. */
struct reading {
    const char *folder;
    int fd;
    uint64_t log, number, bytes;
    uint8_t *window; /* [WINDOW] what was read last, from window_at on */
    uint64_t window_at, window_bytes;
};

#define WINDOW ((size_t)1 << 20)

/* Gives the block at `at`; NULL: errno. */
static const uint8_t *block_at(struct reading *r, uint64_t at)
{
    if (at < r->window_at || at + JOURNAL_BLOCK > r->window_at + r->window_bytes) {
        const uint64_t left = r->bytes - at;
        r->window_at = at;
        r->window_bytes = left < WINDOW ? left : WINDOW;
        if (read_at(r->fd, at, r->window, (size_t)r->window_bytes)) return r->window;
        r->window_bytes = 0;
        return NULL;
    }
    return r->window + (at - r->window_at);
}

/* True if the sizes that the head says fit into the segment. */
static bool fits(const struct reading *r, const struct journal_head *head)
{
    const uint64_t most = r->bytes;
    return head->chunk_count <= most / sizeof(struct journal_chunk) && head->frozen_bytes <= most &&
           head->outcome.payload_bytes <= most && head->data_bytes <= most && head->copy < 2 &&
           head->at % JOURNAL_BLOCK == 0 && head->at <= most &&
           journal_entry_bytes(head) <= most - head->at;
}

/* True if a head of this segment begins at `at`, whatever follows it. *ok_out: it could be read. */
static bool head_at(struct reading *r, uint64_t at, struct journal_head *head, bool *ok_out)
{
    const uint8_t *block = block_at(r, at);
    *ok_out = block != NULL;
    if (block == NULL) return false;
    memcpy(head, block, sizeof *head);
    return memcmp(head->magic, head_magic, sizeof head_magic) == 0 &&
           head_checksum(head) == head->checksum && head->format == JOURNAL_FORMAT &&
           head->kind >= JOURNAL_START && head->kind <= JOURNAL_DECISION && head->log == r->log &&
           head->segment == r->number && fits(r, head) &&
           head->at + head->copy * journal_front_bytes(head) == at;
}

static cairn_status fail_read(const struct reading *r, struct sentence *why)
{
    char path[PATH_MAX];
    name_segment(path, r->folder, r->number);
    if (errno == 0) errno = EIO;
    return fail_step(why, "reading", path);
}

static cairn_status fail_damaged(const struct reading *r, uint64_t entry, uint64_t at,
                                 struct sentence *why)
{
    return fail_with(why, CAIRN_ERR_CHECKSUM,
                     "entry %" PRIu64 " of the log is damaged, at byte %" PRIu64 " of %016" PRIx64
                     ".seg, and there are entries behind it",
                     entry, at, r->number);
}

/* Loads the body behind a head. CAIRN_ERR_CHECKSUM: it is damaged. */
static cairn_status load_body(struct reading *r, struct journal_entry *entry, struct sentence *why)
{
    const struct journal_head *head = &entry->head;
    const size_t bytes = (size_t)(journal_front_bytes(head) - sizeof *head);
    entry->body = malloc(bytes);
    if (entry->body == NULL)
        return fail_with(why, CAIRN_ERR_NO_MEMORY, "out of memory to read a log");
    const uint64_t from = head->at + head->copy * journal_front_bytes(head) + sizeof *head;
    cairn_status status = CAIRN_OK;
    if (!read_at(r->fd, from, entry->body, bytes))
        status = fail_read(r, why);
    else if (chunk_checksum(entry->body, bytes) != head->body_checksum)
        status = CAIRN_ERR_CHECKSUM;
    for (uint64_t c = 0; c < head->chunk_count && status == CAIRN_OK; c++) {
        const struct journal_chunk *chunk = &journal_entry_chunks(entry)[c];
        if (chunk->at > head->data_bytes || chunk->bytes > head->data_bytes - chunk->at)
            status = CAIRN_ERR_CHECKSUM;
    }
    if (status == CAIRN_OK) return CAIRN_OK;
    free(entry->body);
    entry->body = NULL;
    return status;
}

/* Looks for a front of entry `number` that begins at `at`: the first, or else its copy. CAIRN_ERR_NOT_FOUND:
 * neither is there. CAIRN_ERR_CHECKSUM: there is none, and there are entries behind it. */
static cairn_status find_entry(struct reading *r, uint64_t number, uint64_t at,
                               struct journal_entry *entry, struct sentence *why)
{
    bool ok, is_behind = false;
    for (uint64_t look = at; look + JOURNAL_BLOCK <= r->bytes; look += JOURNAL_BLOCK) {
        struct journal_head head;
        const bool is_head = head_at(r, look, &head, &ok);
        if (!ok) return fail_read(r, why);
        if (!is_head) continue;
        if (head.entry == number && head.at == at) {
            entry->head = head;
            entry->segment_bytes = r->bytes;
            const cairn_status status = load_body(r, entry, why);
            if (status != CAIRN_ERR_CHECKSUM) return status;
            continue;
        }
        // The rest of a torn entry, over which this one was written, does not count.
        is_behind = head.entry > number;
        if (is_behind) break;
    }
    return is_behind ? fail_damaged(r, number, at, why) : CAIRN_ERR_NOT_FOUND;
}

static cairn_status add_entry(struct journal_entries *out, const struct journal_entry *entry,
                              struct sentence *why)
{
    if (out->count == out->capacity) {
        const size_t capacity = 2 * out->capacity + 16;
        struct journal_entry *grown = realloc(out->list, capacity * sizeof *grown);
        if (grown == NULL) {
            free(entry->body);
            return fail_with(why, CAIRN_ERR_NO_MEMORY, "out of memory to read a log");
        }
        out->list = grown;
        out->capacity = capacity;
    }
    out->list[out->count++] = *entry;
    return CAIRN_OK;
}

/* Leaves out the entries from a number on, which a later process found to be void. */
static void drop_from(struct journal_entries *out, uint64_t number)
{
    while (out->count > 0 && out->list[out->count - 1].head.entry >= number)
        free(out->list[--out->count].body);
}

/* The number that the next entry has, as far as is known. */
static uint64_t next_number(const struct journal_entries *out)
{
    return out->count > 0 ? out->list[out->count - 1].head.entry + 1 : 0;
}

/* Finds the START of a segment, and judges whether it follows what was read before. */
static cairn_status read_start(struct reading *r, struct journal_entries *out, struct sentence *why)
{
    struct journal_entry start = { .body = NULL };
    struct journal_head head = { .entry = 0 };
    bool ok, is_there = false;
    for (uint64_t at = 0; at + JOURNAL_BLOCK <= r->bytes && !is_there; at += JOURNAL_BLOCK) {
        is_there = head_at(r, at, &head, &ok);
        if (!ok) return fail_read(r, why);
    }
    // A process that died made the segment, and nothing of it was acknowledged.
    if (!is_there) return CAIRN_ERR_NOT_FOUND;
    if (head.at != 0 || head.kind != JOURNAL_START)
        return fail_damaged(r, next_number(out), 0, why);
    const uint64_t number = head.entry;
    const cairn_status status = find_entry(r, number, 0, &start, why);
    if (status != CAIRN_OK) return status;
    if (out->count > 0 && number > next_number(out)) {
        free(start.body);
        return fail_with(why, CAIRN_ERR_CHECKSUM,
                         "the log lacks the entries %" PRIu64 " to %" PRIu64 ", before %016" PRIx64
                         ".seg",
                         next_number(out), number - 1, r->number);
    }
    drop_from(out, number);
    return add_entry(out, &start, why);
}

static cairn_status read_entries(struct reading *r, struct journal_entries *out,
                                 struct sentence *why)
{
    CAIRN_TRY(read_start(r, out, why));
    for (;;) {
        const struct journal_head *before = &out->list[out->count - 1].head;
        const uint64_t at = before->at + journal_entry_bytes(before);
        struct journal_entry entry = { .body = NULL };
        const cairn_status status = find_entry(r, before->entry + 1, at, &entry, why);
        out->is_torn = false;
        if (status == CAIRN_ERR_NOT_FOUND) {
            const uint8_t *rest = at + JOURNAL_BLOCK <= r->bytes ? block_at(r, at) : NULL;
            for (size_t i = 0; rest != NULL && i < JOURNAL_BLOCK; i++) out->is_torn |= rest[i] != 0;
            return CAIRN_OK;
        }
        CAIRN_TRY(status);
        CAIRN_TRY(add_entry(out, &entry, why));
    }
}

int journal_segment_open(const char *folder, uint64_t number, struct sentence *why)
{
    char path[PATH_MAX];
    name_segment(path, folder, number);
    const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    if (fd < 0) (void)!fail_step(why, "opening", path);
    return fd;
}

static cairn_status read_segment(const char *folder, uint64_t log, uint64_t number,
                                 struct journal_entries *out, struct sentence *why)
{
    struct stat is;
    struct reading r = { .folder = folder, .log = log, .number = number };
    r.fd = journal_segment_open(folder, number, why);
    if (r.fd < 0) return CAIRN_ERR_IO;
    cairn_status status = CAIRN_OK;
    r.window = malloc(WINDOW);
    if (r.window == NULL)
        status = fail_with(why, CAIRN_ERR_NO_MEMORY, "out of memory to read a log");
    else if (fstat(r.fd, &is) != 0)
        status = fail_read(&r, why);
    if (status == CAIRN_OK) {
        r.bytes = (uint64_t)is.st_size;
        status = read_entries(&r, out, why);
    }
    free(r.window);
    close(r.fd);
    // An empty segment has no START.
    return status == CAIRN_ERR_NOT_FOUND ? CAIRN_OK : status;
}

static int number_order(const void *a, const void *b)
{
    const uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return x < y ? -1 : x > y;
}

/* Lists the numbers of the segments, ascending. Malloc'ed. */
static cairn_status list_segments(const char *folder, uint64_t **list_out, size_t *count_out,
                                  struct sentence *why)
{
    DIR *names = opendir(folder);
    if (names == NULL && errno == ENOENT)
        return fail_with(why, CAIRN_ERR_NOT_FOUND, "%.300s is not there", folder);
    if (names == NULL) return fail_step(why, "opening the folder", folder);
    uint64_t *list = NULL;
    size_t count = 0;
    const struct dirent *name;
    while ((name = readdir(names)) != NULL) {
        uint64_t number;
        int end = 0;
        if (sscanf(name->d_name, "%16" SCNx64 ".seg%n", &number, &end) != 1 || end != 20 ||
            name->d_name[end] != '\0')
            continue;
        uint64_t *grown = realloc(list, (count + 1) * sizeof *grown);
        if (grown == NULL) {
            free(list);
            closedir(names);
            return fail_with(why, CAIRN_ERR_NO_MEMORY, "out of memory to read a log");
        }
        list = grown;
        list[count++] = number;
    }
    closedir(names);
    if (count > 0) qsort(list, count, sizeof *list, number_order);
    *list_out = list;
    *count_out = count;
    return CAIRN_OK;
}

void journal_segments_remove(const char *folder, uint64_t number)
{
    char path[PATH_MAX];
    uint64_t *list = NULL;
    size_t count = 0;
    struct sentence why;
    if (list_segments(folder, &list, &count, &why) != CAIRN_OK) return; // they take room, no more
    for (size_t i = 0; i < count && list[i] < number; i++) {
        name_segment(path, folder, list[i]);
        if (unlink(path) != 0) break;
    }
    free(list);
}

/* Misses the segment that was begun last, if nothing was read of it. */
static cairn_status judge_newest(const char *folder, uint64_t log,
                                 const struct journal_entries *entries, struct sentence *why)
{
    uint64_t newest;
    const cairn_status status = read_newest(folder, log, &newest, why);
    if (status == CAIRN_ERR_NOT_FOUND) return CAIRN_OK;
    CAIRN_TRY(status);
    if (entries->list[entries->count - 1].head.segment >= newest) return CAIRN_OK;
    return fail_with(why, CAIRN_ERR_CHECKSUM,
                     "%016" PRIx64 ".seg, which it had begun, is missing or empty", newest);
}

static cairn_status read_segments(const char *folder, uint64_t log, const uint64_t *list,
                                  size_t count, struct journal_entries *out, struct sentence *why)
{
    for (size_t i = 0; i < count; i++) {
        if (i > 0 && list[i] != list[i - 1] + 1)
            return fail_with(why, CAIRN_ERR_CHECKSUM,
                             "the log lacks %016" PRIx64 ".seg, between others", list[i - 1] + 1);
        CAIRN_TRY(read_segment(folder, log, list[i], out, why));
    }
    if (out->count > 0) return judge_newest(folder, log, out, why);
    return fail_with(why, CAIRN_ERR_NOT_FOUND, "%.300s has no entries of the log", folder);
}

cairn_status journal_read(const char *folder, uint64_t log, struct journal_entries *out,
                          struct sentence *why)
{
    uint64_t *list = NULL;
    size_t count = 0;
    *out = (struct journal_entries) { .list = NULL };
    CAIRN_TRY(list_segments(folder, &list, &count, why));
    out->segments_end = count > 0 ? list[count - 1] + 1 : 0;
    const cairn_status status = read_segments(folder, log, list, count, out, why);
    free(list);
    if (status != CAIRN_OK) journal_entries_release(out);
    return status;
}

cairn_status journal_read_chunk(int fd, const struct journal_entry *entry,
                                const struct journal_chunk *chunk, void *to, struct sentence *why)
{
    const struct journal_head *head = &entry->head;
    const uint64_t at = head->at + 2 * journal_front_bytes(head) + chunk->at;
    if (!read_at(fd, at, to, (size_t)chunk->bytes)) {
        if (errno == 0) errno = EIO;
        return fail_step(why, "reading", "the log");
    }
    if (chunk_checksum(to, (size_t)chunk->bytes) == chunk->checksum) return CAIRN_OK;
    return fail_with(why, CAIRN_ERR_CHECKSUM,
                     "the sums of round %" PRIu64 " are damaged, at byte %" PRIu64 " of %016" PRIx64
                     ".seg: tensor %" PRIu64 ", from leaf %" PRIu64 " on",
                     head->outcome.round, at, head->segment, chunk->tensor, chunk->first_leaf);
}
