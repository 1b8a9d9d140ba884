/* Reading a snapshot: the manifest, the headers, then any range for any layout. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "proto/base/xxh.h"
#include "proto/spec/planes.h"
#include "proto/store/snapshot_io.h"

#define READ_BYTES ((size_t)1 << 20)

static cairn_status io_failed(struct cairn_sentence *why, const char *step, const char *path)
{
    return cairn_fail(why, CAIRN_ERR_IO, "%s of %s: %s", step, path, strerror(errno));
}

/* Opens a regular file at a judged path of at most one folder, through no symbolic link. */
static int open_beneath(int folder_fd, const char *path)
{
    const int flags = O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC;
    const char *slash = strchr(path, '/');
    if (slash == NULL) return openat(folder_fd, path, flags);
    char part[16] = { 0 };
    memcpy(part, path, (size_t)(slash - path) < sizeof part ? (size_t)(slash - path) : 15);
    const int part_fd = openat(folder_fd, part, flags | O_DIRECTORY);
    if (part_fd < 0) return -1;
    const int fd = openat(part_fd, slash + 1, flags);
    const int error = errno;
    close(part_fd);
    errno = error;
    return fd;
}

/* Reads all of [offset, offset + count), or says why not. */
static cairn_status read_fully(int fd, void *out, size_t count, uint64_t offset, const char *path,
                               struct cairn_sentence *why)
{
    uint8_t *next = out;
    while (count > 0) {
        const ssize_t got = pread(fd, next, count, (off_t)offset);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) return io_failed(why, "read", path);
        if (got == 0) {
            return cairn_fail(why, CAIRN_ERR_CORRUPT,
                              "%s ends at byte %" PRIu64 ", cut off; use another snapshot", path,
                              offset);
        }
        next += got;
        offset += (uint64_t)got;
        count -= (size_t)got;
    }
    return CAIRN_OK;
}

/* ---- the manifest ---- */

/* Whose manifest it is, before what the pure judge said. */
static cairn_status in_manifest(struct cairn_sentence *why, const char *folder, cairn_status status)
{
    if (status != CAIRN_OK && status != CAIRN_ERR_NO_MEMORY && why != NULL) {
        const struct cairn_sentence said = *why;
        cairn_sentence_set(why, "%s/manifest.json is damaged or not ours: %s; use another snapshot",
                           folder, said.text);
    }
    return status;
}

static cairn_status load_manifest(int folder_fd, const char *folder, struct cairn_manifest *out,
                                  struct cairn_sentence *why)
{
    const int fd = open_beneath(folder_fd, CAIRN_MANIFEST_NAME);
    if (fd < 0 && errno == ENOENT) {
        return cairn_fail(
            why, CAIRN_ERR_NOT_FOUND,
            "%s has no manifest.json, so it is no snapshot (one that was not finished, perhaps)",
            folder);
    }
    if (fd < 0) return io_failed(why, "open", CAIRN_MANIFEST_NAME);
    struct stat info;
    cairn_status status = CAIRN_OK;
    char *text = NULL;
    if (fstat(fd, &info) != 0 || !S_ISREG(info.st_mode) ||
        (uint64_t)info.st_size > CAIRN_MANIFEST_BYTES_MAX) {
        status = cairn_fail(why, CAIRN_ERR_CORRUPT, "%s/manifest.json is no file, or too large",
                            folder);
    }
    if (status == CAIRN_OK) text = malloc((size_t)info.st_size + 1);
    if (status == CAIRN_OK && text == NULL) status = CAIRN_ERR_NO_MEMORY;
    if (status == CAIRN_OK) {
        status = read_fully(fd, text, (size_t)info.st_size, 0, CAIRN_MANIFEST_NAME, why);
    }
    if (status == CAIRN_OK) {
        status = cairn_manifest_decode(text, (size_t)info.st_size, out, why);
        status = in_manifest(why, folder, status);
    }
    free(text);
    close(fd);
    return status;
}

static cairn_status open_folder(const char *folder, int *fd_out, struct cairn_sentence *why)
{
    const int fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0 && (errno == ENOENT || errno == ENOTDIR)) {
        return cairn_fail(why, CAIRN_ERR_NOT_FOUND, "there is no folder %s", folder);
    }
    if (fd < 0) return io_failed(why, "open", folder);
    *fd_out = fd;
    return CAIRN_OK;
}

cairn_status cairn_manifest_load(const char *folder, struct cairn_manifest *out,
                                 struct cairn_sentence *why)
{
    int fd = -1;
    cairn_status status = open_folder(folder, &fd, why);
    if (status != CAIRN_OK) return status;
    status = load_manifest(fd, folder, out, why);
    close(fd);
    return status;
}

/* ---- opening: every file's size and header ---- */

/* Makes `file` the snapshot's open file; it has the size that the manifest says. */
static cairn_status use_file(struct cairn_snapshot *s, size_t file, struct cairn_sentence *why)
{
    if (s->file_fd >= 0 && s->file == file) return CAIRN_OK;
    if (s->file_fd >= 0) close(s->file_fd);
    const struct cairn_manifest_file *listed = &s->manifest.files[file];
    s->file = file;
    s->file_fd = open_beneath(s->folder_fd, listed->path);
    if (s->file_fd < 0 && errno == ENOENT) {
        return cairn_fail(why, CAIRN_ERR_CORRUPT,
                          "%s is missing; put it back or use another snapshot", listed->path);
    }
    struct stat info;
    if (s->file_fd < 0 || fstat(s->file_fd, &info) != 0)
        return io_failed(why, "open", listed->path);
    if (!S_ISREG(info.st_mode) || (uint64_t)info.st_size != listed->bytes) {
        return cairn_fail(why, CAIRN_ERR_CORRUPT,
                          "%s has %lld bytes, the manifest says %" PRIu64
                          ": cut off or changed; put it back or use another snapshot",
                          listed->path, (long long)info.st_size, listed->bytes);
    }
    return CAIRN_OK;
}

/* Puts the file's name before what the pure judge said. */
static cairn_status in_file(struct cairn_sentence *why, const char *path, cairn_status status)
{
    if ((status == CAIRN_ERR_MALFORMED || status == CAIRN_ERR_UNSUPPORTED) && why != NULL) {
        const struct cairn_sentence said = *why;
        cairn_sentence_set(why, "%s: %s", path, said.text);
    }
    return status;
}

static cairn_status parse_header(struct cairn_snapshot *s, uint64_t json_bytes,
                                 struct cairn_safetensors *header, struct cairn_sentence *why)
{
    const struct cairn_manifest_file *listed = &s->manifest.files[s->file];
    uint8_t *json = malloc(json_bytes + 1);
    if (json == NULL) return CAIRN_ERR_NO_MEMORY;
    cairn_status status = read_fully(s->file_fd, json, json_bytes, 8, listed->path, why);
    if (status == CAIRN_OK) {
        status = cairn_safetensors_parse(json, json_bytes, listed->bytes, header, why);
        status = in_file(why, listed->path, status);
    }
    free(json);
    return status;
}

static cairn_status index_file(struct cairn_snapshot *s, size_t file, struct cairn_sentence *why)
{
    const struct cairn_manifest_file *listed = &s->manifest.files[file];
    uint8_t prefix[8] = { 0 };
    uint64_t json_bytes = 0;
    const size_t have = listed->bytes < 8 ? (size_t)listed->bytes : 8;
    cairn_status status = use_file(s, file, why);
    if (status == CAIRN_OK) status = read_fully(s->file_fd, prefix, have, 0, listed->path, why);
    if (status != CAIRN_OK) return status;
    status = cairn_safetensors_header_bytes(prefix, have, listed->bytes, &json_bytes, why);
    if (status != CAIRN_OK) return in_file(why, listed->path, status);
    struct cairn_safetensors header;
    status = parse_header(s, json_bytes, &header, why);
    if (status != CAIRN_OK) return status;
    status = cairn_snapshot_index_add(&s->index, &s->manifest, file, &header, 8 + json_bytes, why);
    cairn_safetensors_release(&header);
    return status;
}

cairn_status cairn_snapshot_open(const char *folder, struct cairn_snapshot *snapshot_out,
                                 struct cairn_sentence *why)
{
    struct cairn_snapshot s = { .folder_fd = -1, .file_fd = -1 };
    cairn_manifest_init(&s.manifest);
    cairn_status status = open_folder(folder, &s.folder_fd, why);
    if (status == CAIRN_OK) status = load_manifest(s.folder_fd, folder, &s.manifest, why);
    for (size_t i = 0; i < s.manifest.file_count && status == CAIRN_OK; i++) {
        status = index_file(&s, i, why);
    }
    if (status == CAIRN_OK) status = cairn_snapshot_index_close(&s.index, &s.manifest, why);
    if (status != CAIRN_OK) {
        cairn_snapshot_close(&s);
        return status;
    }
    *snapshot_out = s;
    return CAIRN_OK;
}

void cairn_snapshot_close(struct cairn_snapshot *s)
{
    if (s->file_fd >= 0) close(s->file_fd);
    if (s->folder_fd >= 0) close(s->folder_fd);
    s->file_fd = s->folder_fd = -1;
    cairn_snapshot_index_release(&s->index);
    cairn_manifest_release(&s->manifest);
}

/* ---- bytes ---- */

static cairn_status hash_file(struct cairn_snapshot *s, XXH3_state_t *hash, uint8_t *buffer,
                              struct cairn_sentence *why)
{
    const struct cairn_manifest_file *listed = &s->manifest.files[s->file];
    XXH3_128bits_reset(hash);
    for (uint64_t done = 0; done < listed->bytes;) {
        const uint64_t left = listed->bytes - done;
        const size_t count = left < READ_BYTES ? (size_t)left : READ_BYTES;
        cairn_status status = read_fully(s->file_fd, buffer, count, done, listed->path, why);
        if (status != CAIRN_OK) return status;
        XXH3_128bits_update(hash, buffer, count);
        done += count;
    }
    XXH128_canonical_t canonical;
    XXH128_canonicalFromHash(&canonical, XXH3_128bits_digest(hash));
    if (memcmp(canonical.digest, listed->xxh3_128, sizeof canonical.digest) == 0) return CAIRN_OK;
    return cairn_fail(why, CAIRN_ERR_CHECKSUM,
                      "%s is damaged: its checksum is not the manifest's; use another snapshot",
                      listed->path);
}

cairn_status cairn_snapshot_verify(struct cairn_snapshot *s, struct cairn_sentence *why)
{
    XXH3_state_t *hash = XXH3_createState();
    uint8_t *buffer = malloc(READ_BYTES);
    cairn_status status = hash != NULL && buffer != NULL ? CAIRN_OK : CAIRN_ERR_NO_MEMORY;
    for (size_t i = 0; i < s->manifest.file_count && status == CAIRN_OK; i++) {
        status = use_file(s, i, why);
        if (status == CAIRN_OK) status = hash_file(s, hash, buffer, why);
    }
    XXH3_freeState(hash);
    free(buffer);
    return status;
}

cairn_status cairn_snapshot_read(struct cairn_snapshot *s, uint32_t tensor, uint32_t plane,
                                 uint64_t first_elem, uint64_t elem_count, void *out,
                                 struct cairn_sentence *why)
{
    for (uint64_t done = 0; done < elem_count;) {
        const uint64_t elem = first_elem + done;
        const struct cairn_snapshot_piece *piece = cairn_snapshot_index_find(&s->index, tensor,
                                                                             plane, elem);
        if (piece == NULL) {
            return cairn_fail(why, CAIRN_ERR_INVALID,
                              "the snapshot has no element %" PRIu64 " of tensor %u, plane %u",
                              elem, tensor, plane);
        }
        const uint64_t skip = elem - piece->first_elem;
        const size_t elem_bytes = cairn_dtype_bytes(
            (int)cairn_spec_plane_dtype(&s->manifest.spec, tensor, plane));
        uint64_t count = piece->elem_count - skip;
        if (count > elem_count - done) count = elem_count - done;
        cairn_status status = use_file(s, piece->file, why);
        if (status == CAIRN_OK) {
            status = read_fully(s->file_fd, (uint8_t *)out + done * elem_bytes, count * elem_bytes,
                                piece->file_byte + skip * elem_bytes,
                                s->manifest.files[piece->file].path, why);
        }
        if (status != CAIRN_OK) return status;
        done += count;
    }
    return CAIRN_OK;
}
