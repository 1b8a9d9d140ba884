/* The storage of folders, reading: regular files alone, around the page cache if that is wanted. */
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "proto/store/folder.h"

struct open_file {
    struct cairn_storage_file file; /* first */
    int fd;                         /* owned */
    atomic_bool is_direct;
};

/* Not blocking: a FIFO must not hold the thread. */
static int open_name(int folder_fd, const char *name, bool *is_direct)
{
    const int flags = O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC;
    const int fd = *is_direct ? openat(folder_fd, name, flags | O_DIRECT) : -1;
    if (fd >= 0 || (*is_direct && errno != EINVAL)) return fd;
    *is_direct = false;
    return openat(folder_fd, name, flags);
}

cairn_status cairn_folder_open(const char *at, const char *path, bool is_direct,
                               struct cairn_storage_file **file_out, struct cairn_sentence *why)
{
    const char *name;
    struct stat info;
    bool direct = is_direct;
    const int folder_fd = cairn_folder_open_parent(at, path, &name);
    const int fd = folder_fd < 0 ? -1 : open_name(folder_fd, name, &direct);
    cairn_status status = CAIRN_OK;
    if (fd < 0 || fstat(fd, &info) != 0) status = cairn_folder_missed(why, "open", path);
    if (folder_fd >= 0) close(folder_fd);
    if (status == CAIRN_OK && !S_ISREG(info.st_mode))
        status = cairn_fail(why, CAIRN_ERR_CORRUPT, "%s is no regular file", path);
    struct open_file *file = status == CAIRN_OK ? calloc(1, sizeof *file) : NULL;
    if (status == CAIRN_OK && file == NULL)
        status = cairn_fail(why, CAIRN_ERR_NO_MEMORY, "no memory to read %s", path);
    if (status != CAIRN_OK) {
        if (fd >= 0) close(fd);
        return status;
    }
    file->file = (struct cairn_storage_file) { &cairn_storage_folder, (uint64_t)info.st_size,
                                               is_direct && !direct };
    file->fd = fd;
    atomic_init(&file->is_direct, direct);
    *file_out = &file->file;
    return CAIRN_OK;
}

/* Read into the page cache as it was: what a scrub has read is of no use to anybody there. */
static void forget_pages(const struct open_file *file, uint64_t offset, size_t count)
{
    if (file->file.is_buffered)
        (void)posix_fadvise(file->fd, (off_t)offset, (off_t)count, POSIX_FADV_DONTNEED);
}

cairn_status cairn_folder_read(struct cairn_storage_file *f, uint64_t offset, void *to,
                               size_t count, size_t *got_out, struct cairn_sentence *why)
{
    struct open_file *file = (struct open_file *)f;
    size_t done = 0;
    bool may_retry = true; // as in cairn_folder_put_write
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
            return cairn_fail(why, CAIRN_ERR_IO, "read at byte %llu: %s",
                              (unsigned long long)(offset + done), strerror(errno));
        done += (size_t)got;
        // A short one ends the file, or (direct) a file whose end is within a block.
        if (got == 0 || (atomic_load(&file->is_direct) && (size_t)got % CAIRN_STORAGE_ALIGN != 0))
            break;
    }
    *got_out = done < count ? done : count;
    forget_pages(file, offset, *got_out);
    return CAIRN_OK;
}

void cairn_folder_close(struct cairn_storage_file *f)
{
    struct open_file *file = (struct open_file *)f;
    close(file->fd);
    free(file);
}
