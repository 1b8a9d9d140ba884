/* The storage of folders, writing: temp name, write, fsync, close, rename, fsync of the folder. Each step
 * that can fail says its name once; nothing is synced a second time after a failed fsync (the kernel may
 * have dropped the pages), the file is removed instead.
 *
 * Parts are written around the page cache (O_DIRECT): no core copies them, and no trainer waits while the
 * kernel writes them back. A file system that refuses it (tmpfs, some of FUSE) has them through the cache. */
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "proto/base/file_mode.h"
#include "proto/base/whole.h"
#include "proto/store/folder.h"

#define NAME_BYTES 256

/* A file being written under a temporary name. */
struct draft {
    struct cairn_storage_put put; /* first */
    int folder_fd, fd;            /* owned */
    uint64_t bytes;
    atomic_bool is_direct;
    char name[NAME_BYTES], temp[NAME_BYTES + 8]; /* in the folder */
};

static cairn_status open_draft(struct draft *d, bool replace, struct cairn_sentence *why)
{
    const int flags = O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC;
    if (replace) // what a process that was killed has left
        (void)unlinkat(d->folder_fd, d->temp, 0);
    else if (faccessat(d->folder_fd, d->name, F_OK, AT_SYMLINK_NOFOLLOW) == 0)
        return cairn_fail(why, CAIRN_ERR_EXISTS, "%s is there already: another writer?", d->name);
    d->fd = openat(d->folder_fd, d->temp, flags, CAIRN_SNAPSHOT_FILE_MODE);
    if (d->fd < 0) return cairn_folder_failed(why, "open", d->temp);
    return cairn_file_mode_set(d->fd, CAIRN_SNAPSHOT_FILE_MODE) == 0
               ? CAIRN_OK
               : cairn_folder_failed(why, "chmod", d->temp);
}

static cairn_status begin_draft(struct draft *d, const char *at, const char *path, bool replace,
                                struct cairn_sentence *why)
{
    const char *name;
    *d = (struct draft) { .put.storage = &cairn_storage_folder, .fd = -1 };
    d->folder_fd = cairn_folder_open_parent(at, path, &name);
    if (d->folder_fd < 0) return cairn_folder_failed(why, "open", at);
    if (strlen(name) >= sizeof d->name)
        return cairn_fail(why, CAIRN_ERR_INVALID, "%s: too long a name", name);
    memcpy(d->name, name, strlen(name) + 1);
    snprintf(d->temp, sizeof d->temp, "%s.tmp", d->name);
    return open_draft(d, replace, why);
}

/* `status` is that of the writing; the draft becomes the file, or is gone. Closes the folder. */
static cairn_status end_draft(struct draft *d, bool replace, cairn_status status,
                              struct cairn_sentence *why)
{
    const bool is_open = d->fd >= 0;
    if (status == CAIRN_OK && fsync(d->fd) != 0)
        status = cairn_folder_failed(why, "fsync", d->temp);
    if (is_open && close(d->fd) != 0 && status == CAIRN_OK)
        status = cairn_folder_failed(why, "close", d->temp);
    if (status == CAIRN_OK && renameat(d->folder_fd, d->temp, d->folder_fd, d->name) != 0)
        status = cairn_folder_failed(why, "rename", d->temp);
    if (status != CAIRN_OK) {
        if (is_open) unlinkat(d->folder_fd, d->temp, 0);
    } else if (fsync(d->folder_fd) != 0) {
        status = cairn_folder_failed(why, "fsync", d->name);
        // A file that is not known to be durable must not be there: the snapshot fails, and the
        // next try has a new folder. A file that replaced another stays: it is whole, and the other
        // one is gone.
        if (!replace) unlinkat(d->folder_fd, d->name, 0);
    }
    if (d->folder_fd >= 0) close(d->folder_fd);
    return status;
}

/* ---- parts ---- */

/* Room for all of it at once: a full disk is met before anything is written, and writers of several blocks do
 * not wait for each other's growth of the file. */
static cairn_status make_room(struct draft *d, struct cairn_sentence *why)
{
    if (d->bytes == 0 || fallocate(d->fd, 0, 0, (off_t)d->bytes) == 0) return CAIRN_OK;
    const bool unknown = errno == EOPNOTSUPP || errno == ENOSYS || errno == EINVAL ||
                         errno == ENODEV || errno == EINTR;
    return unknown ? CAIRN_OK : cairn_folder_failed(why, "write", d->temp);
}

static bool set_direct(int fd, bool direct)
{
    const int flags = fcntl(fd, F_GETFL);
    return flags >= 0 && fcntl(fd, F_SETFL, direct ? flags | O_DIRECT : flags & ~O_DIRECT) == 0;
}

cairn_status cairn_folder_put_begin(const char *at, const char *path, uint64_t bytes,
                                    struct cairn_storage_put **put_out, struct cairn_sentence *why)
{
    struct draft *d = malloc(sizeof *d);
    if (d == NULL) return cairn_fail(why, CAIRN_ERR_NO_MEMORY, "no memory to write %s", path);
    cairn_status status = begin_draft(d, at, path, false, why);
    d->bytes = bytes;
    if (status == CAIRN_OK) status = make_room(d, why);
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

cairn_status cairn_folder_put_write(struct cairn_storage_put *put, uint64_t offset,
                                    const void *from, size_t count, struct cairn_sentence *why)
{
    struct draft *d = (struct draft *)put;
    const uint8_t *next = from;
    // A direct write's last block is written whole; put_end cuts it off.
    size_t left = atomic_load(&d->is_direct) ? rounded_up(count) : count;
    bool may_retry = true; // whoever of the threads that are refused turned it off
    while (left > 0) {
        const ssize_t written = pwrite(d->fd, next, left, (off_t)offset);
        if (written < 0 && errno == EINTR) continue;
        if (written < 0 && errno == EINVAL && may_retry) {
            may_retry = false;
            if (atomic_exchange(&d->is_direct, false)) put->is_buffered = true;
            if (set_direct(d->fd, false)) continue;
        }
        if (written < 0) return cairn_folder_failed(why, "write", d->temp);
        next += written;
        offset += (uint64_t)written;
        left -= (size_t)written;
    }
    return CAIRN_OK;
}

cairn_status cairn_folder_put_end(struct cairn_storage_put *put, cairn_status status,
                                  struct cairn_sentence *why)
{
    struct draft *d = (struct draft *)put;
    if (status == CAIRN_OK && ftruncate(d->fd, (off_t)d->bytes) != 0)
        status = cairn_folder_failed(why, "write", d->temp);
    status = end_draft(d, false, status, why);
    free(d);
    return status;
}

/* ---- small ones ---- */

cairn_status cairn_folder_commit(const char *at, const char *path, const void *bytes, size_t count,
                                 bool replace, struct cairn_sentence *why)
{
    struct draft draft;
    cairn_status status = begin_draft(&draft, at, path, replace, why);
    if (status == CAIRN_OK && !cairn_write_whole(draft.fd, bytes, count))
        status = cairn_folder_failed(why, "write", draft.temp);
    return end_draft(&draft, replace, status, why);
}
