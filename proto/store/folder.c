/* The storage of folders. */
#include "proto/store/storage.h"

#include <inttypes.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "proto/base/machine.h"
#include "proto/base/text.h"

#define PART_BYTES 256 /* the most bytes of one part of a path, with its NUL */

/* ==== folder ==== */

/* Returns the status for errno, with a sentence that names the step that failed. */
static cairn_status folder_failed(struct sentence *why, const char *step, const char *path)
{
    const int error = errno;
    const bool full = error == ENOSPC || error == EDQUOT || error == EFBIG;
    const cairn_status status = full              ? CAIRN_ERR_NO_SPACE
                                : error == EEXIST ? CAIRN_ERR_EXISTS
                                                  : CAIRN_ERR_IO;
    return fail_with(why, status, "%s of %s: %s%s", step, path, strerror(error),
                     full ? "; free space or name another snapshot folder, then take it again"
                     : error == ENOENT ? "; is the storage mounted?"
                     : error == ELOOP  ? "; it is a link, which is not followed: give the folder "
                                         "that it leads to"
                                       : "");
}

/* Does the same for something that may be missing, for which it returns CAIRN_ERR_NOT_FOUND. */
static cairn_status folder_missed(struct sentence *why, const char *step, const char *path)
{
    const bool missing = errno == ENOENT || errno == ENOTDIR;
    const cairn_status status = folder_failed(why, step, path);
    return missing ? CAIRN_ERR_NOT_FOUND : status;
}

/* True if a part of the path leads out of the folder. The callers have checked the parts: this is the second
 * lock on that door. */
static bool leads_out(const char *path)
{
    for (const char *part = path; part[0] != '\0';) {
        const size_t length = strcspn(part, "/");
        if (length == 0 || (length <= 2 && strncmp(part, "..", length) == 0)) return true;
        part += length + (part[length] == '/');
    }
    return false;
}

/* Opens the folder beneath `at` that contains the last part of `path`. Sets *name_out to that part, or to
 * "." if `path` is "". Returns the descriptor; -1: see errno. */
static int folder_open_parent(const char *at, const char *path, const char **name_out)
{
    errno = EINVAL;
    if (leads_out(path)) return -1;
    int fd = open(at, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    for (const char *slash; fd >= 0 && (slash = strchr(path, '/')) != NULL; path = slash + 1) {
        char part[PART_BYTES];
        const size_t length = (size_t)(slash - path);
        int below = -1;
        errno = ENAMETOOLONG;
        if (length < sizeof part) {
            memcpy(part, path, length);
            part[length] = '\0';
            below = openat(fd, part, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        }
        const int error = errno;
        close(fd);
        errno = error;
        fd = below;
    }
    *name_out = path[0] != '\0' ? path : ".";
    return fd;
}

static cairn_status resolve(const char *at, char **out, struct sentence *why)
{
    char *resolved = realpath(at, NULL), *here = NULL;
    if (resolved == NULL && at[0] == '/') {
        resolved = strdup(at);
    } else if (resolved == NULL && (here = getcwd(NULL, 0)) != NULL) {
        if (asprintf(&resolved, "%s/%s", here, at) < 0) resolved = NULL;
        free(here);
    }
    if (resolved == NULL) return folder_failed(why, "resolving", at);
    *out = resolved;
    return CAIRN_OK;
}

static int open_folder(int parent_fd, const char *name)
{
    return openat(parent_fd, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
}

/* Sets the mode of the folder if it was made now, and makes the folder's name durable. */
static cairn_status settle_made(int parent_fd, const char *name, bool made, struct sentence *why)
{
    const int fd = open_folder(parent_fd, name);
    if (fd < 0) return folder_failed(why, "open", name);
    cairn_status status = CAIRN_OK;
    if (made && file_mode_set(fd, CAIRN_SNAPSHOT_FOLDER_MODE) != 0)
        status = folder_failed(why, "chmod", name);
    // This is done even if the folder existed: the process that made it may not have come this far, or may
    // have been killed.
    if (status == CAIRN_OK && fsync(parent_fd) != 0) status = folder_failed(why, "fsync", name);
    close(fd);
    return status;
}

static cairn_status make(const char *at, const char *path, bool exclusive, struct sentence *why)
{
    const char *name;
    const int parent_fd = folder_open_parent(at, path, &name);
    if (parent_fd < 0) return folder_failed(why, "open", at);
    const bool made = mkdirat(parent_fd, name, CAIRN_SNAPSHOT_FOLDER_MODE) == 0;
    const cairn_status status = !made && (errno != EEXIST || exclusive)
                                    ? folder_failed(why, "mkdir", name)
                                    : settle_made(parent_fd, name, made, why);
    if (made && status != CAIRN_OK) // nobody else knows the folder, so nobody else would remove it
        (void)unlinkat(parent_fd, name, AT_REMOVEDIR);
    close(parent_fd);
    return status;
}

static bool is_folder(int folder_fd, const struct dirent *entry)
{
    struct stat info;
    if (entry->d_type != DT_UNKNOWN) return entry->d_type == DT_DIR;
    return fstatat(folder_fd, entry->d_name, &info, AT_SYMLINK_NOFOLLOW) == 0 &&
           S_ISDIR(info.st_mode);
}

static cairn_status list(const char *at, const char *path, storage_name_fn on_name, void *context,
                         struct sentence *why)
{
    const char *name;
    const int parent_fd = folder_open_parent(at, path, &name);
    if (parent_fd < 0) return folder_missed(why, "listing", at);
    const int fd = open_folder(parent_fd, name);
    DIR *dir = fd < 0 ? NULL : fdopendir(fd); // closedir closes fd
    cairn_status status = CAIRN_OK;
    if (dir == NULL) status = folder_missed(why, "listing", path[0] != '\0' ? path : at);
    if (dir == NULL && fd >= 0) close(fd);
    errno = 0;
    for (struct dirent *e; dir != NULL && (e = readdir(dir)) != NULL; errno = 0) {
        if (strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0)
            on_name(context, e->d_name, is_folder(fd, e));
    }
    if (dir != NULL && errno != 0) status = folder_failed(why, "listing", path);
    if (dir != NULL) closedir(dir);
    close(parent_fd);
    return status;
}

/* Follows no link to a snapshot's folder, because others may write to the folder in which it is. (A root
 * may be reached by a link.) */
static cairn_status stat_location(const char *at, struct sentence *why)
{
    struct stat info;
    if (lstat(at, &info) != 0) return folder_missed(why, "open", at);
    if (S_ISDIR(info.st_mode)) return CAIRN_OK;
    errno = S_ISLNK(info.st_mode) ? ELOOP : ENOTDIR;
    return folder_missed(why, "open", at);
}

static cairn_status stat_file(const char *at, const char *path, uint64_t *bytes_out,
                              struct sentence *why)
{
    const char *name;
    struct stat info;
    *bytes_out = 0;
    if (path[0] == '\0') return stat_location(at, why);
    const int parent_fd = folder_open_parent(at, path, &name);
    if (parent_fd < 0) return folder_missed(why, "open", path);
    cairn_status status = CAIRN_OK;
    if (fstatat(parent_fd, name, &info, AT_SYMLINK_NOFOLLOW) != 0)
        status = folder_missed(why, "reading", path);
    else if (!S_ISREG(info.st_mode))
        status = fail_with(why, CAIRN_ERR_CORRUPT, "%s is no regular file", path);
    else
        *bytes_out = (uint64_t)info.st_size;
    close(parent_fd);
    return status;
}

static cairn_status remove_name(const char *at, const char *path, bool folder, uint64_t *bytes_out,
                                struct sentence *why)
{
    const char *name;
    struct stat info = { 0 };
    const int parent_fd = folder_open_parent(at, path, &name);
    if (parent_fd < 0) return folder_missed(why, "open", path);
    cairn_status status = CAIRN_OK;
    if (fstatat(parent_fd, name, &info, AT_SYMLINK_NOFOLLOW) != 0 ||
        unlinkat(parent_fd, name, folder ? AT_REMOVEDIR : 0) != 0)
        status = folder_missed(why, "removing", path);
    *bytes_out = status == CAIRN_OK && S_ISREG(info.st_mode) ? (uint64_t)info.st_size : 0;
    close(parent_fd);
    return status;
}

static cairn_status sync_folder(const char *at, const char *path, struct sentence *why)
{
    const char *name;
    const int parent_fd = folder_open_parent(at, path, &name);
    if (parent_fd < 0) return folder_failed(why, "open", path);
    const int fd = open_folder(parent_fd, name);
    cairn_status status = CAIRN_OK;
    if (fd < 0 || fsync(fd) != 0) status = folder_failed(why, "fsync", path);
    if (fd >= 0) close(fd);
    close(parent_fd);
    return status;
}

/* ==== folder put ==== */

/* How the storage of folders writes a file: it makes a file with a temporary name, writes, syncs and closes
 * it, renames it, and syncs the folder. If a step fails, the sentence names it. After a failed fsync
 * nothing is synced a second time, because the kernel may have dropped the pages: the file is removed
 * instead.
 *
 * Writes of parts bypass the page cache (O_DIRECT), so no core copies them, and no trainer waits while the
 * kernel writes them back. If a file system refuses this (tmpfs, and some of FUSE), the writes go through
 * the cache. */

#define NAME_BYTES 256

/* A file that is being written under a temporary name. */
struct draft {
    struct storage_put put; /* first */
    int folder_fd, fd;      /* owned */
    uint64_t bytes;
    atomic_bool is_direct;
    char name[NAME_BYTES], temp[NAME_BYTES + 8]; /* names in the folder */
};

static cairn_status open_draft(struct draft *d, bool replace, struct sentence *why)
{
    const int flags = O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC;
    if (replace) // a killed process may have left this file
        (void)unlinkat(d->folder_fd, d->temp, 0);
    else if (faccessat(d->folder_fd, d->name, F_OK, AT_SYMLINK_NOFOLLOW) == 0)
        return fail_with(why, CAIRN_ERR_EXISTS, "%s is there already: another writer?", d->name);
    d->fd = openat(d->folder_fd, d->temp, flags, CAIRN_SNAPSHOT_FILE_MODE);
    if (d->fd < 0) return folder_failed(why, "open", d->temp);
    return file_mode_set(d->fd, CAIRN_SNAPSHOT_FILE_MODE) == 0
               ? CAIRN_OK
               : folder_failed(why, "chmod", d->temp);
}

static cairn_status begin_draft(struct draft *d, const char *at, const char *path, bool replace,
                                struct sentence *why)
{
    const char *name;
    *d = (struct draft) { .put.storage = &storage_folder, .fd = -1 };
    d->folder_fd = folder_open_parent(at, path, &name);
    if (d->folder_fd < 0) return folder_failed(why, "open", at);
    if (strlen(name) >= sizeof d->name)
        return fail_with(why, CAIRN_ERR_INVALID, "%s: too long a name", name);
    memcpy(d->name, name, strlen(name) + 1);
    snprintf(d->temp, sizeof d->temp, "%s.tmp", d->name);
    return open_draft(d, replace, why);
}

/* Ends the writing, whose result was `status`: the draft becomes the file, or is removed. Closes the
 * folder. */
static cairn_status end_draft(struct draft *d, bool replace, cairn_status status,
                              struct sentence *why)
{
    const bool is_open = d->fd >= 0;
    if (status == CAIRN_OK && fsync(d->fd) != 0) status = folder_failed(why, "fsync", d->temp);
    if (is_open && close(d->fd) != 0 && status == CAIRN_OK)
        status = folder_failed(why, "close", d->temp);
    if (status == CAIRN_OK && renameat(d->folder_fd, d->temp, d->folder_fd, d->name) != 0)
        status = folder_failed(why, "rename", d->temp);
    if (status != CAIRN_OK) {
        if (is_open) unlinkat(d->folder_fd, d->temp, 0);
    } else if (fsync(d->folder_fd) != 0) {
        status = folder_failed(why, "fsync", d->name);
        // A file that may not be durable must not exist: the snapshot fails, and the next try has a new
        // folder. A file that has replaced another one stays, because it is complete, and the other one is
        // gone.
        if (!replace) unlinkat(d->folder_fd, d->name, 0);
    }
    if (d->folder_fd >= 0) close(d->folder_fd);
    return status;
}

/* ---- parts ---- */

/* Reserves room for the whole file at once. A full disk is thus noticed before anything is written, and
 * threads that write blocks need not wait for each other to grow the file. */
static cairn_status draft_make_room(struct draft *d, struct sentence *why)
{
    if (d->bytes == 0 || fallocate(d->fd, 0, 0, (off_t)d->bytes) == 0) return CAIRN_OK;
    const bool unknown = errno == EOPNOTSUPP || errno == ENOSYS || errno == EINVAL ||
                         errno == ENODEV || errno == EINTR;
    return unknown ? CAIRN_OK : folder_failed(why, "write", d->temp);
}

static bool set_direct(int fd, bool direct)
{
    const int flags = fcntl(fd, F_GETFL);
    return flags >= 0 && fcntl(fd, F_SETFL, direct ? flags | O_DIRECT : flags & ~O_DIRECT) == 0;
}

static cairn_status folder_put_begin(const char *at, const char *path, uint64_t bytes,
                                     struct storage_put **put_out, struct sentence *why)
{
    struct draft *d = malloc(sizeof *d);
    if (d == NULL) return fail_with(why, CAIRN_ERR_NO_MEMORY, "out of memory to write %s", path);
    cairn_status status = begin_draft(d, at, path, false, why);
    d->bytes = bytes;
    if (status == CAIRN_OK) status = draft_make_room(d, why);
    if (status != CAIRN_OK) {
        status = end_draft(d, false, status, why);
        free(d);
        return status;
    }
    atomic_init(&d->is_direct, set_direct(d->fd, true));
    d->put.is_buffered = !atomic_load(&d->is_direct);
    *put_out = &d->put;
    return CAIRN_OK;
}

static size_t rounded_up(size_t count)
{
    return (count + CAIRN_STORAGE_ALIGN - 1) / CAIRN_STORAGE_ALIGN * CAIRN_STORAGE_ALIGN;
}

static cairn_status folder_put_write(struct storage_put *put, uint64_t offset, const void *from,
                                     size_t count, struct sentence *why)
{
    struct draft *d = (struct draft *)put;
    const uint8_t *next = from;
    // In a direct write, the last block is padded to a full one. put_end cuts off the padding.
    size_t left = atomic_load(&d->is_direct) ? rounded_up(count) : count;
    // each thread that is refused retries once, even if another thread has turned direct writes off
    bool may_retry = true;
    while (left > 0) {
        const ssize_t written = pwrite(d->fd, next, left, (off_t)offset);
        if (written < 0 && errno == EINTR) continue;
        if (written < 0 && errno == EINVAL && may_retry) {
            may_retry = false;
            if (atomic_exchange(&d->is_direct, false)) put->is_buffered = true;
            if (set_direct(d->fd, false)) continue;
        }
        if (written < 0) return folder_failed(why, "write", d->temp);
        next += written;
        offset += (uint64_t)written;
        left -= (size_t)written;
    }
    return CAIRN_OK;
}

static cairn_status folder_put_end(struct storage_put *put, cairn_status status,
                                   struct sentence *why)
{
    struct draft *d = (struct draft *)put;
    if (status == CAIRN_OK && ftruncate(d->fd, (off_t)d->bytes) != 0)
        status = folder_failed(why, "write", d->temp);
    status = end_draft(d, false, status, why);
    free(d);
    return status;
}

/* ---- small ones ---- */

static cairn_status folder_commit(const char *at, const char *path, const void *bytes, size_t count,
                                  bool replace, struct sentence *why)
{
    struct draft draft;
    cairn_status status = begin_draft(&draft, at, path, replace, why);
    if (status == CAIRN_OK && !write_fully(draft.fd, bytes, count))
        status = folder_failed(why, "write", draft.temp);
    return end_draft(&draft, replace, status, why);
}

/* ==== folder read ==== */

/* How the storage of folders reads a file: only regular files are read, and reads bypass the page cache if
 * the caller wants this. */

struct open_file {
    struct storage_file file; /* first */
    int fd;                   /* owned */
    atomic_bool is_direct;
};

/* Opens without blocking, because a FIFO must not stop the thread. */
static int open_name(int folder_fd, const char *name, bool *is_direct)
{
    const int flags = O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC;
    const int fd = *is_direct ? openat(folder_fd, name, flags | O_DIRECT) : -1;
    if (fd >= 0 || (*is_direct && errno != EINVAL)) return fd;
    *is_direct = false;
    return openat(folder_fd, name, flags);
}

static cairn_status folder_open(const char *at, const char *path, bool is_direct,
                                struct storage_file **file_out, struct sentence *why)
{
    const char *name;
    struct stat info;
    bool direct = is_direct;
    const int folder_fd = folder_open_parent(at, path, &name);
    const int fd = folder_fd < 0 ? -1 : open_name(folder_fd, name, &direct);
    cairn_status status = CAIRN_OK;
    if (fd < 0 || fstat(fd, &info) != 0) status = folder_missed(why, "open", path);
    if (folder_fd >= 0) close(folder_fd);
    if (status == CAIRN_OK && !S_ISREG(info.st_mode))
        status = fail_with(why, CAIRN_ERR_CORRUPT, "%s is no regular file", path);
    struct open_file *file = status == CAIRN_OK ? calloc(1, sizeof *file) : NULL;
    if (status == CAIRN_OK && file == NULL)
        status = fail_with(why, CAIRN_ERR_NO_MEMORY, "out of memory to read %s", path);
    if (status != CAIRN_OK) {
        if (fd >= 0) close(fd);
        return status;
    }
    file->file = (struct storage_file) { &storage_folder, (uint64_t)info.st_size,
                                         is_direct && !direct };
    file->fd = fd;
    atomic_init(&file->is_direct, direct);
    *file_out = &file->file;
    return CAIRN_OK;
}

/* If a read that was to be direct has brought pages into the page cache, drops them, because nobody needs
 * them there. */
static void forget_pages(const struct open_file *file, uint64_t offset, size_t count)
{
    if (file->file.is_buffered)
        (void)posix_fadvise(file->fd, (off_t)offset, (off_t)count, POSIX_FADV_DONTNEED);
}

static cairn_status folder_read(struct storage_file *f, uint64_t offset, void *to, size_t count,
                                size_t *got_out, struct sentence *why)
{
    struct open_file *file = (struct open_file *)f;
    size_t done = 0;
    bool may_retry = true; // as in folder_put_write
    while (done < count) {
        size_t want = count - done;
        if (atomic_load(&file->is_direct))
            want = (want + CAIRN_STORAGE_ALIGN - 1) / CAIRN_STORAGE_ALIGN * CAIRN_STORAGE_ALIGN;
        const ssize_t got = pread(file->fd, (uint8_t *)to + done, want, (off_t)(offset + done));
        if (got < 0 && errno == EINTR) continue;
        if (got < 0 && errno == EINVAL && may_retry) {
            may_retry = false;
            if (atomic_exchange(&file->is_direct, false)) f->is_buffered = true;
            if (fcntl(file->fd, F_SETFL, fcntl(file->fd, F_GETFL) & ~O_DIRECT) == 0) continue;
        }
        if (got < 0)
            return fail_with(why, CAIRN_ERR_IO, "read at byte %" PRIu64 ": %s", (offset + done),
                             strerror(errno));
        done += (size_t)got;
        // The file has ended if nothing was read, or if a direct read ended within a block.
        if (got == 0 || (atomic_load(&file->is_direct) && (size_t)got % CAIRN_STORAGE_ALIGN != 0))
            break;
    }
    *got_out = done < count ? done : count;
    forget_pages(file, offset, *got_out);
    return CAIRN_OK;
}

static void folder_close(struct storage_file *f)
{
    struct open_file *file = (struct open_file *)f;
    close(file->fd);
    free(file);
}

const struct storage storage_folder = { .scheme = "",
                                        .resolve = resolve,
                                        .make = make,
                                        .list = list,
                                        .stat = stat_file,
                                        .remove = remove_name,
                                        .settle = sync_folder,
                                        .put_begin = folder_put_begin,
                                        .put_write = folder_put_write,
                                        .put_end = folder_put_end,
                                        .commit = folder_commit,
                                        .open = folder_open,
                                        .read = folder_read,
                                        .close = folder_close };
