#include "proto/base/durable.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "proto/base/machine.h"
#include "proto/base/text.h"

static cairn_status fail_step(struct sentence *why, const char *step, const char *path)
{
    const int error = errno;
    const bool is_full = error == ENOSPC || error == EDQUOT;
    return fail_with(why, is_full ? CAIRN_ERR_NO_SPACE : CAIRN_ERR_IO, "%s %.300s failed: %s%s",
                     step, path, strerror(error), is_full ? "; free some space" : "");
}

void path_parent(const char *path, char parent_out[PATH_MAX])
{
    const char *slash = strrchr(path, '/');
    if (slash == NULL)
        snprintf(parent_out, PATH_MAX, ".");
    else
        snprintf(parent_out, PATH_MAX, "%.*s", slash == path ? 1 : (int)(slash - path), path);
}

/* Makes new names, renames and removals in the folder durable. */
static cairn_status sync_folder(const char *path, struct sentence *why)
{
    const int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) return fail_step(why, "opening the folder", path);
    const int error = fsync(fd);
    // EINVAL: the file system keeps nothing, as /proc does.
    const cairn_status status = error == 0 || errno == EINVAL
                                    ? CAIRN_OK
                                    : fail_step(why, "fsync of the folder", path);
    close(fd);
    return status;
}

/* Makes PATH.new, which must not exist, and writes it durably. If this fails, it is removed. */
static cairn_status fill_file(const char *fresh, mode_t mode, const void *bytes, size_t byte_count,
                              struct sentence *why)
{
    const int fd = open(fresh, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0) return fail_step(why, "creating", fresh);
    cairn_status status = CAIRN_OK;
    if (file_mode_set(fd, mode) != 0)
        status = fail_step(why, "setting the mode of", fresh);
    else if (!write_fully(fd, bytes, byte_count))
        status = fail_step(why, "writing", fresh);
    else if (fsync(fd) != 0)
        status = fail_step(why, "fsync of", fresh);
    if (close(fd) != 0 && status == CAIRN_OK) status = fail_step(why, "closing", fresh);
    if (status != CAIRN_OK) unlink(fresh);
    return status;
}

static cairn_status put_over(const char *fresh, const char *path, struct sentence *why)
{
    if (rename(fresh, path) == 0) return CAIRN_OK;
    const cairn_status status = fail_step(why, "renaming a new file to", path);
    unlink(fresh);
    return status;
}

static cairn_status put_beside(const char *fresh, const char *path, struct sentence *why)
{
    cairn_status status = CAIRN_OK;
    if (link(fresh, path) != 0)
        status = errno == EEXIST ? fail_with(why, CAIRN_ERR_EXISTS, "%.300s is there already", path)
                                 : fail_step(why, "linking a new file to", path);
    unlink(fresh);
    return status;
}

/* Writes PATH.new completely and durably. Then calls `put` to turn it into PATH. */
static cairn_status write_by(const char *path, mode_t mode, const void *bytes, size_t byte_count,
                             cairn_status (*put)(const char *fresh, const char *path,
                                                 struct sentence *why),
                             struct sentence *why)
{
    char fresh[PATH_MAX];
    char parent[PATH_MAX];
    if (strlen(path) >= sizeof fresh - strlen(".new"))
        return fail_with(why, CAIRN_ERR_INVALID, "the path %.100s... is too long", path);
    snprintf(fresh, sizeof fresh, "%s.new", path);
    path_parent(path, parent);
    if (put == put_over) unlink(fresh); // nobody else writes it
    cairn_status status = fill_file(fresh, mode, bytes, byte_count, why);
    if (status == CAIRN_OK) status = put(fresh, path, why);
    return status == CAIRN_OK ? sync_folder(parent, why) : status;
}

cairn_status durable_write(const char *path, mode_t mode, const void *bytes, size_t byte_count,
                           struct sentence *why)
{
    return write_by(path, mode, bytes, byte_count, put_over, why);
}

cairn_status durable_create(const char *path, const void *bytes, size_t byte_count,
                            struct sentence *why)
{
    return write_by(path, 0600, bytes, byte_count, put_beside, why);
}

/* Syncs the parent even if the folder existed already, because the process that made the folder may have
 * been killed before it synced the parent. If this daemon cannot write to the parent, it did not make the
 * folder, and syncs nothing. */
static cairn_status sync_parent(const char *path, bool made, struct sentence *why)
{
    char parent[PATH_MAX];
    path_parent(path, parent);
    if (!made && access(parent, R_OK | W_OK) != 0) return CAIRN_OK;
    return sync_folder(parent, why);
}

static cairn_status fail_to_make(const char *path, struct sentence *why)
{
    char here[PATH_MAX];
    const cairn_status status = fail_step(why, "making the folder", path);
    if (path[0] != '/' && getcwd(here, sizeof here) != NULL)
        sentence_add(why, "; that is %s/%s", here, path);
    return status;
}

static cairn_status make_one(const char *path, mode_t mode, struct sentence *why)
{
    const bool made = mkdir(path, mode) == 0;
    struct stat info;
    if (!made && errno != EEXIST) return fail_to_make(path, why);
    if (!made && (stat(path, &info) != 0 || !S_ISDIR(info.st_mode)))
        return fail_with(why, CAIRN_ERR_IO, "%.300s is in the way: it is not a folder", path);
    const int fd = made ? open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC) : -1;
    const int error = made ? file_mode_set(fd, mode) : 0;
    if (error != 0) {
        const cairn_status status = fail_step(why, "setting the mode of", path);
        if (fd >= 0) close(fd);
        return status;
    }
    if (fd >= 0) close(fd);
    return sync_parent(path, made, why);
}

cairn_status durable_folder(const char *path, mode_t mode, struct sentence *why)
{
    char part[PATH_MAX];
    size_t length = strlen(path);
    if (length == 0 || length >= sizeof part)
        return fail_with(why, CAIRN_ERR_INVALID, "\"%.100s\" is not a path", path);
    while (length > 1 && path[length - 1] == '/') length--;
    for (size_t i = 1; i <= length; i++) {
        if (i < length && (path[i] != '/' || path[i - 1] == '/')) continue;
        snprintf(part, sizeof part, "%.*s", (int)i, path);
        CAIRN_TRY(make_one(part, mode, why));
    }
    return CAIRN_OK;
}

static cairn_status refuse_locked(int fd, const char *folder, struct sentence *why)
{
    char pid[24] = "";
    const ssize_t n = pread(fd, pid, sizeof pid - 1, 0);
    pid[n > 0 ? n : 0] = '\0';
    pid[strcspn(pid, "\n")] = '\0';
    return fail_with(why, CAIRN_ERR_BUSY,
                     "the data folder %.300s is in use by process %s; stop it, or give this "
                     "daemon a folder of its own",
                     folder, pid[0] != '\0' ? pid : "?");
}

// The pid in the file is for people. The lock itself is the flock, which the kernel releases when the
// process ends.
static cairn_status lock_open(int fd, const char *folder, struct sentence *why)
{
    char pid[24];
    const int length = snprintf(pid, sizeof pid, "%ld\n", (long)getpid());
    if (flock(fd, LOCK_EX | LOCK_NB) != 0) {
        if (errno == EWOULDBLOCK) return refuse_locked(fd, folder, why);
        return fail_step(why, "locking the data folder", folder);
    }
    if (ftruncate(fd, 0) != 0 || !write_fully(fd, pid, (size_t)length) || fsync(fd) != 0)
        return fail_step(why, "writing the lock in the data folder", folder);
    return CAIRN_OK;
}

cairn_status durable_lock(const char *folder, int *lock_fd_out, struct sentence *why)
{
    char path[PATH_MAX];
    CAIRN_TRY(durable_folder(folder, 0700, why));
    if (snprintf(path, sizeof path, "%s/lock", folder) >= (int)sizeof path)
        return fail_with(why, CAIRN_ERR_INVALID, "the path %.100s... is too long", folder);
    const int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0)
        return fail_with(why, errno == ENOSPC ? CAIRN_ERR_NO_SPACE : CAIRN_ERR_IO,
                         "the data folder %.300s cannot be written: %s; give it to the user that "
                         "runs the daemon, or set another one",
                         folder, strerror(errno));
    cairn_status status = lock_open(fd, folder, why);
    if (status != CAIRN_OK) {
        close(fd);
        return status;
    }
    *lock_fd_out = fd;
    return CAIRN_OK;
}

void durable_unlock(int lock_fd)
{
    close(lock_fd); // the file stays, because a removal could hit the lock of the next process
}
