/* Looks up and opens files beneath the folders that an operator allows, and nothing else. */
#include <errno.h>
#include <fcntl.h>
#include <linux/openat2.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "proto/safetensors/safetensors_private.h"

static cairn_status refuse_open(const struct cairn_weights *w, const char *path, int error,
                                struct cairn_sentence *why)
{
    switch (error) {
    case ENOENT:
    case ENOTDIR: return cairn_fail(why, CAIRN_ERR_NOT_FOUND, "%s: there is no %s", w->path, path);
    case EXDEV:
    case ELOOP:
        return cairn_fail(why, CAIRN_ERR_REFUSED,
                          "%s: %s leads out of the folder that import.folders allows", w->path,
                          path);
    case ENOSYS:
        return cairn_fail(why, CAIRN_ERR_UNSUPPORTED, "%s: the kernel has no openat2 (Linux 5.6)",
                          w->path);
    default:
        return cairn_fail(why, CAIRN_ERR_IO, "%s: opening %s: %s", w->path, path, strerror(error));
    }
}

cairn_status cairn_weights_open_beneath(const struct cairn_weights *w, const char *path,
                                        int *fd_out, struct stat *info_out,
                                        struct cairn_sentence *why)
{
    // Not blocking: a FIFO in the folder must not hold the thread.
    const struct open_how how = { .flags = O_RDONLY | O_NONBLOCK | O_CLOEXEC,
                                  .resolve = RESOLVE_BENEATH | RESOLVE_NO_MAGICLINKS };
    const int fd = (int)syscall(SYS_openat2, w->root_fd, path, &how, sizeof how);
    if (fd < 0) return refuse_open(w, path, errno, why);
    if (fstat(fd, info_out) != 0 || (!S_ISREG(info_out->st_mode) && !S_ISDIR(info_out->st_mode))) {
        close(fd);
        return cairn_fail(why, CAIRN_ERR_REFUSED, "%s: %s is neither a file nor a folder", w->path,
                          path);
    }
    *fd_out = fd;
    return CAIRN_OK;
}

/* The part of `path` beneath the folder root[0..length); NULL: the path is not in that folder. */
static const char *beneath(const char *path, const char *root, size_t length)
{
    while (length > 0 && root[length - 1] == '/') length--;
    if (strncmp(path, root, length) != 0) return NULL;
    if (path[length] != '/' && path[length] != '\0') return NULL;
    path += length;
    while (*path == '/') path++;
    return path;
}

const char *cairn_weights_enter_root(const char *roots, struct cairn_weights *w,
                                     struct cairn_sentence *why)
{
    for (const char *root = roots; *root != '\0';) {
        const size_t length = strcspn(root, ":");
        const char *rest = root[0] == '/' ? beneath(w->path, root, length) : NULL;
        if (rest != NULL) {
            char *name = strndup(root, length);
            w->root_fd = name != NULL ? open(name, O_PATH | O_DIRECTORY | O_CLOEXEC) : -1;
            free(name);
            if (w->root_fd >= 0) return rest;
        }
        root += length + (root[length] == ':');
    }
    cairn_sentence_set(why,
                       "%s is in none of the folders that weights may be read from here (%s); an "
                       "operator allows one with import.folders in the shards' configuration",
                       w->path, roots[0] != '\0' ? roots : "none");
    return NULL;
}

/* Names the open folder as the kernel does: no link is in that name. */
static cairn_status name_folder(const struct cairn_weights *w, int fd, char **folder_out,
                                struct cairn_sentence *why)
{
    char link[32];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    *folder_out = realpath(link, NULL);
    if (*folder_out != NULL) return CAIRN_OK;
    return cairn_fail(why, CAIRN_ERR_IO, "%s: its own path: %s", w->path, strerror(errno));
}

static bool has_file(int folder, const char *name)
{
    return faccessat(folder, name, F_OK, AT_SYMLINK_NOFOLLOW) == 0;
}

static cairn_status find_in_folder(const struct cairn_weights *w, const char *rest,
                                   const char *file, char **folder_out, struct cairn_sentence *why)
{
    int fd;
    struct stat info;
    cairn_status status = cairn_weights_open_beneath(w, rest[0] != '\0' ? rest : ".", &fd, &info,
                                                     why);
    if (status != CAIRN_OK) return status;
    if (S_ISDIR(info.st_mode) && has_file(fd, file) && !has_file(fd, CAIRN_WEIGHTS_WHOLE) &&
        !has_file(fd, CAIRN_WEIGHTS_INDEX))
        status = name_folder(w, fd, folder_out, why);
    close(fd);
    return status;
}

cairn_status cairn_weights_folder_with(const char *roots, const char *path, const char *file,
                                       char **folder_out, struct cairn_sentence *why)
{
    struct cairn_weights w = { .root_fd = -1, .path = (char *)(uintptr_t)path };
    const char *rest = cairn_weights_enter_root(roots, &w, why);
    *folder_out = NULL;
    if (rest == NULL) return CAIRN_ERR_REFUSED;
    const cairn_status status = find_in_folder(&w, rest, file, folder_out, why);
    close(w.root_fd);
    return status;
}
