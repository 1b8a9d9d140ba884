#include "server/base/host_lock.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <time.h>
#include <unistd.h>

#define TRY_EACH_MS 5

/* Who holds an flock of the file: as /proc/locks says, 0 if it does not. */
static int holder_of(int fd)
{
    struct stat stat;
    FILE *locks = fopen("/proc/locks", "re");
    char line[256];
    int holder = 0;
    if (locks == NULL) return 0;
    while (fstat(fd, &stat) == 0 && holder == 0 && fgets(line, sizeof line, locks) != NULL) {
        int pid;
        unsigned device_major, device_minor;
        unsigned long inode;
        if (sscanf(line, "%*d: FLOCK %*s %*s %d %x:%x:%lu", &pid, &device_major, &device_minor,
                   &inode) == 4 &&
            device_major == major(stat.st_dev) && device_minor == minor(stat.st_dev) &&
            inode == stat.st_ino)
            holder = pid;
    }
    fclose(locks);
    return holder;
}

static cairn_status wait_for(int fd, const char *path, int timeout_ms, const atomic_bool *canceled,
                             struct cairn_sentence *why)
{
    const struct timespec pause = { .tv_nsec = TRY_EACH_MS * 1000000L };
    for (int waited_ms = 0; flock(fd, LOCK_EX | LOCK_NB) != 0; waited_ms += TRY_EACH_MS) {
        if (errno != EWOULDBLOCK && errno != EINTR)
            return cairn_fail(why, CAIRN_ERR_IO, "cannot lock %s: %s", path, strerror(errno));
        if (atomic_load(canceled))
            return cairn_fail(why, CAIRN_ERR_CANCELED, "given up while waiting to lock %s", path);
        if (waited_ms >= timeout_ms)
            return cairn_fail(why, CAIRN_ERR_BUSY,
                              "process %d has held the lock of %s for longer than %d ms: see what "
                              "it does, and try again",
                              holder_of(fd), path, timeout_ms);
        nanosleep(&pause, NULL);
    }
    return CAIRN_OK;
}

cairn_status cairn_host_lock_take(const char *path, int timeout_ms, const atomic_bool *canceled,
                                  int *fd_out, struct cairn_sentence *why)
{
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return cairn_fail(why, CAIRN_ERR_IO, "cannot open %s to lock it: %s", path,
                          strerror(errno));
    const cairn_status status = wait_for(fd, path, timeout_ms, canceled, why);
    if (status != CAIRN_OK)
        close(fd);
    else
        *fd_out = fd;
    return status;
}
