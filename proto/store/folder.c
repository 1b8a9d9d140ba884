/* The storage of folders: folders and names. Its files: folder_put.c, folder_read.c. */
#include "proto/store/folder.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "proto/base/file_mode.h"

#define PART_BYTES 256 /* of a path, with its NUL */

cairn_status cairn_folder_failed(struct cairn_sentence *why, const char *step, const char *path)
{
    const int error = errno;
    const bool full = error == ENOSPC || error == EDQUOT || error == EFBIG;
    const cairn_status status = full              ? CAIRN_ERR_NO_SPACE
                                : error == EEXIST ? CAIRN_ERR_EXISTS
                                                  : CAIRN_ERR_IO;
    return cairn_fail(why, status, "%s of %s: %s%s", step, path, strerror(error),
                      full ? "; free space or name another snapshot folder, then take it again"
                      : error == ENOENT ? "; is the storage mounted?"
                      : error == ELOOP  ? "; it is a link, which is not followed: give the folder "
                                          "that it leads to"
                                        : "");
}

cairn_status cairn_folder_missed(struct cairn_sentence *why, const char *step, const char *path)
{
    const bool missing = errno == ENOENT || errno == ENOTDIR;
    const cairn_status status = cairn_folder_failed(why, step, path);
    return missing ? CAIRN_ERR_NOT_FOUND : status;
}

int cairn_folder_open_parent(const char *at, const char *path, const char **name_out)
{
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

static cairn_status resolve(const char *at, char **out, struct cairn_sentence *why)
{
    char *resolved = realpath(at, NULL), *here = NULL;
    if (resolved == NULL && at[0] == '/') {
        resolved = strdup(at);
    } else if (resolved == NULL && (here = getcwd(NULL, 0)) != NULL) {
        if (asprintf(&resolved, "%s/%s", here, at) < 0) resolved = NULL;
        free(here);
    }
    if (resolved == NULL) return cairn_folder_failed(why, "resolving", at);
    *out = resolved;
    return CAIRN_OK;
}

static int open_folder(int parent_fd, const char *name)
{
    return openat(parent_fd, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
}

/* One that was made gets its mode; then its name is durable. */
static cairn_status settle_made(int parent_fd, const char *name, bool made,
                                struct cairn_sentence *why)
{
    const int fd = open_folder(parent_fd, name);
    if (fd < 0) return cairn_folder_failed(why, "open", name);
    cairn_status status = CAIRN_OK;
    if (made && cairn_file_mode_set(fd, CAIRN_SNAPSHOT_FOLDER_MODE) != 0)
        status = cairn_folder_failed(why, "chmod", name);
    // One that was there may be another's who has not come so far, or was killed before.
    if (status == CAIRN_OK && fsync(parent_fd) != 0)
        status = cairn_folder_failed(why, "fsync", name);
    close(fd);
    return status;
}

static cairn_status make(const char *at, const char *path, bool exclusive,
                         struct cairn_sentence *why)
{
    const char *name;
    const int parent_fd = cairn_folder_open_parent(at, path, &name);
    if (parent_fd < 0) return cairn_folder_failed(why, "open", at);
    const bool made = mkdirat(parent_fd, name, CAIRN_SNAPSHOT_FOLDER_MODE) == 0;
    const cairn_status status = !made && (errno != EEXIST || exclusive)
                                    ? cairn_folder_failed(why, "mkdir", name)
                                    : settle_made(parent_fd, name, made, why);
    if (made && status != CAIRN_OK) // nobody knows of it: it would stay
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

static cairn_status list(const char *at, const char *path, cairn_storage_name_fn on_name,
                         void *context, struct cairn_sentence *why)
{
    const char *name;
    const int parent_fd = cairn_folder_open_parent(at, path, &name);
    if (parent_fd < 0) return cairn_folder_missed(why, "listing", at);
    const int fd = open_folder(parent_fd, name);
    DIR *dir = fd < 0 ? NULL : fdopendir(fd); // owns fd
    cairn_status status = CAIRN_OK;
    if (dir == NULL) status = cairn_folder_missed(why, "listing", path[0] != '\0' ? path : at);
    if (dir == NULL && fd >= 0) close(fd);
    errno = 0;
    for (struct dirent *e; dir != NULL && (e = readdir(dir)) != NULL; errno = 0) {
        if (strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0)
            on_name(context, e->d_name, is_folder(fd, e));
    }
    if (dir != NULL && errno != 0) status = cairn_folder_failed(why, "listing", path);
    if (dir != NULL) closedir(dir);
    close(parent_fd);
    return status;
}

/* A root may be reached by a link, a snapshot's folder, which lies among what others may write to, not. */
static cairn_status stat_location(const char *at, struct cairn_sentence *why)
{
    struct stat info;
    if (lstat(at, &info) != 0) return cairn_folder_missed(why, "open", at);
    if (S_ISDIR(info.st_mode)) return CAIRN_OK;
    errno = S_ISLNK(info.st_mode) ? ELOOP : ENOTDIR;
    return cairn_folder_missed(why, "open", at);
}

static cairn_status stat_file(const char *at, const char *path, uint64_t *bytes_out,
                              struct cairn_sentence *why)
{
    const char *name;
    struct stat info;
    *bytes_out = 0;
    if (path[0] == '\0') return stat_location(at, why);
    const int parent_fd = cairn_folder_open_parent(at, path, &name);
    if (parent_fd < 0) return cairn_folder_missed(why, "open", path);
    cairn_status status = CAIRN_OK;
    if (fstatat(parent_fd, name, &info, AT_SYMLINK_NOFOLLOW) != 0)
        status = cairn_folder_missed(why, "reading", path);
    else if (!S_ISREG(info.st_mode))
        status = cairn_fail(why, CAIRN_ERR_CORRUPT, "%s is no regular file", path);
    else
        *bytes_out = (uint64_t)info.st_size;
    close(parent_fd);
    return status;
}

static cairn_status remove_name(const char *at, const char *path, bool folder, uint64_t *bytes_out,
                                struct cairn_sentence *why)
{
    const char *name;
    struct stat info = { 0 };
    const int parent_fd = cairn_folder_open_parent(at, path, &name);
    if (parent_fd < 0) return cairn_folder_missed(why, "open", path);
    cairn_status status = CAIRN_OK;
    if (fstatat(parent_fd, name, &info, AT_SYMLINK_NOFOLLOW) != 0 ||
        unlinkat(parent_fd, name, folder ? AT_REMOVEDIR : 0) != 0)
        status = cairn_folder_missed(why, "removing", path);
    *bytes_out = status == CAIRN_OK && S_ISREG(info.st_mode) ? (uint64_t)info.st_size : 0;
    close(parent_fd);
    return status;
}

static cairn_status settle(const char *at, const char *path, struct cairn_sentence *why)
{
    const char *name;
    const int parent_fd = cairn_folder_open_parent(at, path, &name);
    if (parent_fd < 0) return cairn_folder_failed(why, "open", path);
    const int fd = open_folder(parent_fd, name);
    cairn_status status = CAIRN_OK;
    if (fd < 0 || fsync(fd) != 0) status = cairn_folder_failed(why, "fsync", path);
    if (fd >= 0) close(fd);
    close(parent_fd);
    return status;
}

const struct cairn_storage cairn_storage_folder = { .scheme = "",
                                                    .resolve = resolve,
                                                    .make = make,
                                                    .list = list,
                                                    .stat = stat_file,
                                                    .remove = remove_name,
                                                    .settle = settle,
                                                    .put_begin = cairn_folder_put_begin,
                                                    .put_write = cairn_folder_put_write,
                                                    .put_end = cairn_folder_put_end,
                                                    .commit = cairn_folder_commit,
                                                    .open = cairn_folder_open,
                                                    .read = cairn_folder_read,
                                                    .close = cairn_folder_close };
