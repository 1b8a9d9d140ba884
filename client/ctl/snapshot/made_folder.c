#include "client/ctl/snapshot/made_folder.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "client/ctl/snapshot/export_plan.h"
#include "proto/base/file_mode.h"
#include "proto/store/storage.h"

static cairn_status failed(struct cairn_sentence *why, const char *step, const char *path)
{
    const int error = errno;
    const cairn_status status = error == ENOSPC || error == EDQUOT ? CAIRN_ERR_NO_SPACE
                                                                   : CAIRN_ERR_IO;
    return cairn_fail(why, status, "%s of %s: %s", step, path, strerror(error));
}

/* ---- what was left ---- */

/* A name that an export writes, or writes to before it has it. */
static bool is_ours(const char *name)
{
    static const char *const wholes[] = { CTL_TORCH_FILE_NAME, CTL_TORCH_FOLDER_FILE,
                                          CTL_TORCH_FOLDER_METADATA };
    static const char *const ends[] = { ".safetensors", CTL_EXPORT_INDEX_NAME };
    size_t length = strlen(name);
    if (length > 4 && strcmp(name + length - 4, ".tmp") == 0) length -= 4;
    for (size_t i = 0; i < sizeof wholes / sizeof *wholes; i++)
        if (strlen(wholes[i]) == length && memcmp(name, wholes[i], length) == 0) return true;
    if (strncmp(name, "model", 5) != 0) return false;
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++) {
        const size_t end = strlen(ends[i]);
        if (length >= end && memcmp(name + length - end, ends[i], end) == 0) return true;
    }
    return false;
}

/* Removes the files in the folder whose names an export writes. Other files stay. */
static void empty(int fd)
{
    const int again = openat(fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *dir = again >= 0 ? fdopendir(again) : NULL; // owns it
    for (const struct dirent *e; dir != NULL && (e = readdir(dir)) != NULL;)
        if (is_ours(e->d_name)) (void)unlinkat(fd, e->d_name, 0);
    if (dir != NULL)
        closedir(dir);
    else if (again >= 0)
        close(again);
}

/* DIR.tmp was there: ours if nobody has it and nothing else is in it. */
static cairn_status take_over(struct ctl_made_folder *f, struct cairn_sentence *why)
{
    f->fd = open(f->temp, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (f->fd < 0) return failed(why, "open", f->temp);
    if (flock(f->fd, LOCK_EX | LOCK_NB) != 0) {
        if (errno != EWOULDBLOCK) return failed(why, "lock", f->temp);
        return cairn_fail(why, CAIRN_ERR_BUSY,
                          "another command is writing %s: wait for its end, or name another folder",
                          f->temp);
    }
    empty(f->fd);
    if (rmdir(f->temp) != 0)
        return cairn_fail(why, CAIRN_ERR_REFUSED,
                          "%s is there and has files that are not an export's: move it away, or "
                          "name another folder",
                          f->temp);
    close(f->fd);
    f->fd = -1;
    f->cleaned = true;
    return CAIRN_OK;
}

/* ---- beginning and end ---- */

static cairn_status set_paths(struct ctl_made_folder *f, const char *path,
                              struct cairn_sentence *why)
{
    size_t length = strlen(path);
    while (length > 1 && path[length - 1] == '/') length--;
    if (length + sizeof ".tmp" > sizeof f->temp || path[0] != '/' || length < 2)
        return cairn_fail(why, CAIRN_ERR_INVALID, "%.100s cannot be the name of a new folder",
                          path);
    snprintf(f->path, sizeof f->path, "%.*s", (int)length, path);
    snprintf(f->temp, sizeof f->temp, "%.*s.tmp", (int)length, path);
    return CAIRN_OK;
}

static cairn_status make_temp(struct ctl_made_folder *f, struct cairn_sentence *why)
{
    if (mkdir(f->temp, CAIRN_SNAPSHOT_FOLDER_MODE) != 0) {
        if (errno != EEXIST) return failed(why, "mkdir", f->temp);
        const cairn_status status = take_over(f, why);
        if (status != CAIRN_OK) return status;
        if (mkdir(f->temp, CAIRN_SNAPSHOT_FOLDER_MODE) != 0) return failed(why, "mkdir", f->temp);
    }
    f->fd = open(f->temp, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (f->fd < 0 || cairn_file_mode_set(f->fd, CAIRN_SNAPSHOT_FOLDER_MODE) != 0 ||
        flock(f->fd, LOCK_EX | LOCK_NB) != 0)
        return failed(why, "open", f->temp);
    return CAIRN_OK;
}

cairn_status cairn_ctl_made_folder_begin(const char *path, struct ctl_made_folder *out,
                                         struct cairn_sentence *why)
{
    struct ctl_made_folder f = { .fd = -1 };
    struct stat info;
    cairn_status status = set_paths(&f, path, why);
    if (status == CAIRN_OK && lstat(f.path, &info) == 0)
        status = cairn_fail(why, CAIRN_ERR_EXISTS,
                            "%s is there already: a new folder is written; name another one",
                            f.path);
    if (status == CAIRN_OK) status = make_temp(&f, why);
    if (status == CAIRN_OK)
        *out = f;
    else if (f.fd >= 0)
        close(f.fd);
    return status;
}

/* Durably, and over nothing that came meanwhile. */
static cairn_status put_in_place(const struct ctl_made_folder *f, struct cairn_sentence *why)
{
    char parent[PATH_MAX];
    const char *slash = strrchr(f->path, '/');
    snprintf(parent, sizeof parent, "%.*s", slash > f->path ? (int)(slash - f->path) : 1, f->path);
    if (fsync(f->fd) != 0) return failed(why, "fsync", f->temp);
    if (renameat2(AT_FDCWD, f->temp, AT_FDCWD, f->path, RENAME_NOREPLACE) != 0) {
        // Not every file system knows the flag; without it no folder with something in it is replaced.
        if (errno != EINVAL || rename(f->temp, f->path) != 0) return failed(why, "rename", f->temp);
    }
    const int fd = open(parent, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    const bool durable = fd >= 0 && fsync(fd) == 0;
    const cairn_status status = durable ? CAIRN_OK : failed(why, "fsync", parent);
    if (fd >= 0) close(fd);
    return status;
}

cairn_status cairn_ctl_made_folder_end(struct ctl_made_folder *f, cairn_status status,
                                       struct cairn_sentence *why)
{
    if (status == CAIRN_OK) status = put_in_place(f, why);
    if (status != CAIRN_OK) {
        empty(f->fd);
        if (rmdir(f->temp) != 0 && errno == ENOENT) (void)rmdir(f->path); // it had its name already
    }
    close(f->fd);
    f->fd = -1;
    return status;
}
