/* Reads and writes of a descriptor that go on where the kernel stops short or a signal interrupts. */
#ifndef CAIRN_BASE_WHOLE_H
#define CAIRN_BASE_WHOLE_H

#include <errno.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <unistd.h>

/* False: errno says why, and some of it may be written. */
static inline bool cairn_write_whole(int fd, const void *bytes, size_t count)
{
    const uint8_t *next = bytes;
    while (count > 0) {
        const ssize_t written = write(fd, next, count);
        if (written < 0 && errno == EINTR) continue;
        if (written < 0) return false;
        next += written;
        count -= (size_t)written;
    }
    return true;
}

/* To the end of the file, or of the room. How many bytes; -1: errno says why. */
static inline ssize_t cairn_read_whole(int fd, void *room, size_t count)
{
    size_t have = 0;
    while (have < count) {
        const ssize_t got = read(fd, (uint8_t *)room + have, count - have);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) return -1;
        if (got == 0) break;
        have += (size_t)got;
    }
    return (ssize_t)have;
}

#endif
