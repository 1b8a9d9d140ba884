/* Removing a snapshot: the manifest first, durably, so that what a crash leaves is none; then its files. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "proto/store/snapshot_io.h"

static cairn_status failed(struct cairn_sentence *why, const char *step, const char *what)
{
    return cairn_fail(why, errno == ENOENT ? CAIRN_ERR_NOT_FOUND : CAIRN_ERR_IO, "%s of %s: %s",
                      step, what, strerror(errno));
}

static int open_folder(int parent_fd, const char *name)
{
    return openat(parent_fd, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
}

/* One that is not there is fine. */
static cairn_status remove_file(int folder_fd, const char *name, struct cairn_snapshot_removed *out,
                                struct cairn_sentence *why)
{
    struct stat info;
    if (fstatat(folder_fd, name, &info, AT_SYMLINK_NOFOLLOW) != 0)
        return errno == ENOENT ? CAIRN_OK : failed(why, "reading", name);
    if (unlinkat(folder_fd, name, 0) != 0) return failed(why, "removing", name);
    out->files++;
    out->bytes += (uint64_t)info.st_size;
    return CAIRN_OK;
}

/* All files of a part, whole or begun, and the part. A folder in it is nobody's that we know: it stays, and
 * with it the part. */
static cairn_status remove_part(int id_fd, const char *part, struct cairn_snapshot_removed *out,
                                struct cairn_sentence *why)
{
    const int fd = open_folder(id_fd, part);
    if (fd < 0) return errno == ENOENT ? CAIRN_OK : failed(why, "open", part);
    DIR *dir = fdopendir(fd); // owns fd
    if (dir == NULL) {
        close(fd);
        return failed(why, "open", part);
    }
    cairn_status status = CAIRN_OK;
    for (struct dirent *e; status == CAIRN_OK && (e = readdir(dir)) != NULL;) {
        if (e->d_name[0] != '.') status = remove_file(fd, e->d_name, out, why);
    }
    closedir(dir);
    if (status == CAIRN_OK && unlinkat(id_fd, part, AT_REMOVEDIR) != 0)
        status = failed(why, "removing", part);
    return status;
}

static cairn_status remove_all(int id_fd, struct cairn_snapshot_removed *out,
                               struct cairn_sentence *why)
{
    cairn_status status = remove_file(id_fd, CAIRN_MANIFEST_NAME, out, why);
    if (status == CAIRN_OK && fsync(id_fd) != 0) status = failed(why, "fsync", "the folder");
    if (status == CAIRN_OK) status = remove_file(id_fd, CAIRN_MANIFEST_NAME ".tmp", out, why);
    for (int i = 0; i < CAIRN_SNAPSHOT_FOLDERS && status == CAIRN_OK; i++)
        status = remove_part(id_fd, cairn_snapshot_folder_name((enum cairn_snapshot_folder)i), out,
                             why);
    return status;
}

static cairn_status remove_in_job(int job_fd, const char *id, struct cairn_snapshot_removed *out,
                                  struct cairn_sentence *why)
{
    const int id_fd = open_folder(job_fd, id);
    if (id_fd < 0) return failed(why, "open", id);
    cairn_status status = remove_all(id_fd, out, why);
    close(id_fd);
    if (status == CAIRN_OK && unlinkat(job_fd, id, AT_REMOVEDIR) != 0)
        status = failed(why, "removing", id);
    if (status == CAIRN_OK && fsync(job_fd) != 0) status = failed(why, "fsync", "the job's folder");
    return status;
}

cairn_status cairn_snapshot_remove(const char *root, const char *job, const char *id,
                                   struct cairn_snapshot_removed *removed_out,
                                   struct cairn_sentence *why)
{
    *removed_out = (struct cairn_snapshot_removed) { 0 };
    const int root_fd = open(root, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    const int job_fd = root_fd < 0 ? -1 : open_folder(root_fd, job);
    cairn_status status = CAIRN_OK;
    if (job_fd < 0 && errno == ENOENT)
        status = cairn_fail(why, CAIRN_ERR_NOT_FOUND, "there is no snapshot of job %s", job);
    else if (job_fd < 0)
        status = failed(why, "open", job);
    if (status == CAIRN_OK) status = remove_in_job(job_fd, id, removed_out, why);
    if (job_fd >= 0) close(job_fd);
    if (root_fd >= 0) close(root_fd);
    return status;
}
