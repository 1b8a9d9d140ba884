/* Writing a snapshot: temp name, write, fsync, close, rename, fsync of the folder. Each step that
 * can fail says its name once; nothing is synced a second time after a failed fsync (the kernel may
 * have dropped the pages), the file is removed instead. */
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "proto/base/file_mode.h"
#include "proto/base/xxh.h"
#include "proto/store/snapshot_io.h"

#define PART (CAIRN_SNAPSHOT_FOLDER_CHARS + 1) // of a path, with its '/'
static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "files are little endian, memory as is");

static cairn_status failed(struct cairn_sentence *why, const char *step, const char *path)
{
    const int error = errno;
    const bool full = error == ENOSPC || error == EDQUOT || error == EFBIG;
    const cairn_status status = full              ? CAIRN_ERR_NO_SPACE
                                : error == EEXIST ? CAIRN_ERR_EXISTS
                                                  : CAIRN_ERR_IO;
    return cairn_fail(why, status, "%s of %s: %s%s", step, path, strerror(error),
                      full ? "; free space or name another snapshot folder, then take it again"
                      : error == ENOENT ? "; is the storage mounted?"
                                        : "");
}

/* ---- folders ---- */

static cairn_status sync_folder(int folder_fd, const char *path, struct cairn_sentence *why)
{
    return fsync(folder_fd) == 0 ? CAIRN_OK : failed(why, "fsync", path);
}

/* Opens a folder that is there; one that was just made gets its mode first. */
static cairn_status open_made(int parent_fd, const char *name, bool made, int *fd_out,
                              struct cairn_sentence *why)
{
    const int fd = openat(parent_fd, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0) return failed(why, "open", name);
    cairn_status status = CAIRN_OK;
    if (made && cairn_file_mode_set(fd, CAIRN_SNAPSHOT_FOLDER_MODE) != 0)
        status = failed(why, "chmod", name);
    // One that was there may be another's who has not come so far, or was killed before.
    if (status == CAIRN_OK) status = sync_folder(parent_fd, name, why);
    if (status == CAIRN_OK)
        *fd_out = fd;
    else
        close(fd);
    return status;
}

/* Opens the folder `name` in parent_fd, and makes it first if need be; it is durable there. */
static cairn_status make_folder(int parent_fd, const char *name, int *fd_out,
                                struct cairn_sentence *why)
{
    const bool made = mkdirat(parent_fd, name, CAIRN_SNAPSHOT_FOLDER_MODE) == 0;
    if (!made && errno != EEXIST) return failed(why, "mkdir", name);
    return open_made(parent_fd, name, made, fd_out, why);
}

static cairn_status make_parts(int id_fd, struct cairn_sentence *why)
{
    cairn_status status = CAIRN_OK;
    for (int i = 0; i < CAIRN_SNAPSHOT_BLOBS && status == CAIRN_OK;
         i++) { // that one where there are some
        int fd = -1;
        status = make_folder(id_fd, cairn_snapshot_folder_name((enum cairn_snapshot_folder)i), &fd,
                             why);
        if (fd >= 0) close(fd);
    }
    return status;
}

/* Makes a folder with an id that was not there, in the job's. */
static cairn_status make_id(int job_fd, uint64_t generation, uint64_t step,
                            char id[CAIRN_SNAPSHOT_ID_BYTES], struct cairn_sentence *why)
{
    for (uint32_t attempt = 1; attempt < 10000; attempt++) {
        cairn_snapshot_id_make(generation, step, attempt, id);
        if (mkdirat(job_fd, id, CAIRN_SNAPSHOT_FOLDER_MODE) == 0) break;
        if (errno != EEXIST || attempt == 9999) return failed(why, "mkdir", id);
    }
    int fd = -1;
    cairn_status status = open_made(job_fd, id, true, &fd, why);
    if (status != CAIRN_OK) return status;
    status = make_parts(fd, why);
    close(fd);
    return status;
}

cairn_status cairn_snapshot_folder_make(const char *root, const char *job, uint64_t generation,
                                        uint64_t step, char id_out[CAIRN_SNAPSHOT_ID_BYTES],
                                        char **folder_out, struct cairn_sentence *why)
{
    if (!cairn_job_name_ok(job)) {
        return cairn_fail(why, CAIRN_ERR_INVALID, "the job's name cannot be a folder's");
    }
    const int root_fd = open(root, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (root_fd < 0) return failed(why, "open", root);
    char id[CAIRN_SNAPSHOT_ID_BYTES], *folder = NULL;
    int job_fd = -1;
    cairn_status status = make_folder(root_fd, job, &job_fd, why);
    if (status == CAIRN_OK) {
        status = make_id(job_fd, generation, step, id, why);
        close(job_fd);
    }
    close(root_fd);
    if (status != CAIRN_OK) return status;
    if (asprintf(&folder, "%s/%s/%s", root, job, id) < 0) return CAIRN_ERR_NO_MEMORY;
    memcpy(id_out, id, sizeof id);
    *folder_out = folder;
    return CAIRN_OK;
}

/* ---- one durable file ---- */

/* A file being written under a temporary name, in an open folder. */
struct draft {
    const char *name; /* borrowed; in the folder */
    char temp[CAIRN_SNAPSHOT_PATH_BYTES + 8];
    int folder_fd;      /* borrowed */
    int fd;             /* owned */
    XXH3_state_t *hash; /* borrowed, NULL = none */
};

static cairn_status begin_draft(struct draft *d, int folder_fd, const char *name,
                                struct cairn_sentence *why)
{
    *d = (struct draft) { .name = name, .folder_fd = folder_fd, .fd = -1 };
    snprintf(d->temp, sizeof d->temp, "%s.tmp", name);
    if (faccessat(folder_fd, name, F_OK, AT_SYMLINK_NOFOLLOW) == 0) {
        return cairn_fail(why, CAIRN_ERR_EXISTS, "%s is there already: another writer?", name);
    }
    d->fd = openat(folder_fd, d->temp, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC,
                   CAIRN_SNAPSHOT_FILE_MODE);
    if (d->fd < 0) return failed(why, "open", d->temp);
    return cairn_file_mode_set(d->fd, CAIRN_SNAPSHOT_FILE_MODE) == 0
               ? CAIRN_OK
               : failed(why, "chmod", d->temp);
}

static cairn_status write_draft(struct draft *d, const void *bytes, size_t count,
                                struct cairn_sentence *why)
{
    const uint8_t *next = bytes;
    if (d->hash != NULL) XXH3_128bits_update(d->hash, bytes, count);
    while (count > 0) {
        const ssize_t written = write(d->fd, next, count);
        if (written < 0 && errno == EINTR) continue;
        if (written < 0) return failed(why, "write", d->temp);
        next += written;
        count -= (size_t)written;
    }
    return CAIRN_OK;
}

/* `status` is that of the writing; the draft becomes the file, or is gone. */
static cairn_status end_draft(struct draft *d, cairn_status status, struct cairn_sentence *why)
{
    if (d->fd < 0) return status;
    if (status == CAIRN_OK && fsync(d->fd) != 0) status = failed(why, "fsync", d->temp);
    if (close(d->fd) != 0 && status == CAIRN_OK) status = failed(why, "close", d->temp);
    if (status == CAIRN_OK && renameat(d->folder_fd, d->temp, d->folder_fd, d->name) != 0) {
        status = failed(why, "rename", d->temp);
    }
    if (status != CAIRN_OK) {
        unlinkat(d->folder_fd, d->temp, 0);
        return status;
    }
    status = sync_folder(d->folder_fd, d->name, why);
    // Not known to be durable, so not there: the snapshot fails and the next try has a new folder.
    if (status != CAIRN_OK) unlinkat(d->folder_fd, d->name, 0);
    return status;
}

/* ---- a planned file ---- */

static uint64_t entry_elems(const struct cairn_safetensors_entry *e)
{
    return (e->end - e->begin) / cairn_dtype_bytes((int)e->dtype);
}

static cairn_status write_entry(struct draft *d, const struct cairn_safetensors_entry *e,
                                cairn_snapshot_source_fn source, void *context,
                                struct cairn_sentence *why)
{
    const uint64_t elems = entry_elems(e);
    for (uint64_t done = 0; done < elems;) {
        uint64_t count = elems - done;
        if (count > CAIRN_SNAPSHOT_PIECE_ELEMS) count = CAIRN_SNAPSHOT_PIECE_ELEMS;
        const void *bytes = NULL;
        cairn_status status = source(context, e, e->first_elem + done, count, &bytes, why);
        if (status == CAIRN_OK) {
            status = write_draft(d, bytes, count * cairn_dtype_bytes((int)e->dtype), why);
        }
        if (status != CAIRN_OK) return status;
        done += count;
    }
    return CAIRN_OK;
}

static cairn_status write_contents(struct draft *d, const struct cairn_snapshot_file *file,
                                   cairn_snapshot_source_fn source, void *context,
                                   struct cairn_sentence *why)
{
    cairn_status status = write_draft(d, file->header, file->header_bytes, why);
    for (size_t i = 0; i < file->entry_count && status == CAIRN_OK; i++) {
        status = write_entry(d, &file->entries[i], source, context, why);
    }
    return status;
}

/* Opens the part of the snapshot's folder that `path` lies in; blobs/ is made by who comes first. */
static cairn_status open_part(const char *folder, const char *path, int *fd_out,
                              struct cairn_sentence *why)
{
    const enum cairn_snapshot_folder which = cairn_snapshot_folder_of(path);
    const char *part = cairn_snapshot_folder_name(which);
    const int folder_fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (folder_fd < 0) return failed(why, "open", folder);
    cairn_status status = CAIRN_OK;
    if (which == CAIRN_SNAPSHOT_BLOBS) {
        status = make_folder(folder_fd, part, fd_out, why);
    } else {
        const int fd = openat(folder_fd, part, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        if (fd < 0) status = failed(why, "open", folder);
        if (fd >= 0) *fd_out = fd;
    }
    close(folder_fd);
    return status;
}

cairn_status cairn_snapshot_write_file(const char *folder, const struct cairn_snapshot_file *file,
                                       cairn_snapshot_source_fn source, void *context,
                                       uint8_t xxh3_128_out[16], struct cairn_sentence *why)
{
    assert(cairn_snapshot_path_ok(file->path));
    int part_fd = -1;
    cairn_status status = open_part(folder, file->path, &part_fd, why);
    if (status != CAIRN_OK) return status;
    XXH3_state_t *hash = XXH3_createState();
    if (hash == NULL) status = CAIRN_ERR_NO_MEMORY;
    struct draft draft = { .fd = -1 };
    if (status == CAIRN_OK) status = begin_draft(&draft, part_fd, file->path + PART, why);
    if (status == CAIRN_OK) {
        XXH3_128bits_reset(hash);
        draft.hash = hash;
        status = write_contents(&draft, file, source, context, why);
    }
    status = end_draft(&draft, status, why);
    close(part_fd);
    if (status == CAIRN_OK) {
        XXH128_canonical_t canonical;
        XXH128_canonicalFromHash(&canonical, XXH3_128bits_digest(hash));
        memcpy(xxh3_128_out, canonical.digest, 16);
    }
    XXH3_freeState(hash);
    return status;
}

/* ---- the manifest ---- */

static cairn_status check_files(int folder_fd, const struct cairn_manifest *m,
                                struct cairn_sentence *why)
{
    for (size_t i = 0; i < m->file_count; i++) {
        struct stat info;
        if (fstatat(folder_fd, m->files[i].path, &info, AT_SYMLINK_NOFOLLOW) != 0) {
            return cairn_fail(why, CAIRN_ERR_CORRUPT,
                              "%s is not there (%s): the shards and the coordinator must see the "
                              "same snapshot folder",
                              m->files[i].path, strerror(errno));
        }
        if (!S_ISREG(info.st_mode) || (uint64_t)info.st_size != m->files[i].bytes) {
            return cairn_fail(why, CAIRN_ERR_CORRUPT, "%s has %lld bytes, its shard wrote %" PRIu64,
                              m->files[i].path, (long long)info.st_size, m->files[i].bytes);
        }
    }
    return CAIRN_OK;
}

static cairn_status write_manifest(int folder_fd, const char *text, size_t text_bytes,
                                   struct cairn_sentence *why)
{
    struct draft draft;
    cairn_status status = begin_draft(&draft, folder_fd, CAIRN_MANIFEST_NAME, why);
    if (status == CAIRN_OK) status = write_draft(&draft, text, text_bytes, why);
    return end_draft(&draft, status, why);
}

cairn_status cairn_manifest_commit(const char *folder, struct cairn_manifest *manifest,
                                   struct cairn_sentence *why)
{
    char *text = NULL;
    size_t text_bytes = 0;
    cairn_status status = cairn_manifest_encode(manifest, &text, &text_bytes, why);
    if (status != CAIRN_OK) return status;
    const int folder_fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (folder_fd < 0) {
        status = failed(why, "open", folder);
    } else {
        status = check_files(folder_fd, manifest, why);
        if (status == CAIRN_OK) status = write_manifest(folder_fd, text, text_bytes, why);
        close(folder_fd);
    }
    free(text);
    return status;
}
