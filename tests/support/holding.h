/* What a program holds: memory by who allocated it, mapped memory, descriptors. Where no sanitizer can be, a
 * test finds a leak by it: in a daemon that goes on after something failed.
 *
 *   holding_prepare(path);       ... the program starts, with nth_fail.c preloaded and NTH_COUNTS=path ...
 *   holding_read(pid, path, &now);
 *   holding_widen(&usual, &now, false);
 *   holding_beyond(&usual, &now, pools, false, text, bytes); */
#ifndef CAIRN_SUPPORT_HOLDING_H
#define CAIRN_SUPPORT_HOLDING_H

#include <sys/types.h>

#include "tests/support/nth/nth.h"

/* The place in an object's file is that of the call, and the same in each process. */
struct holding_site {
    char object[20];
    uint64_t at;
    int64_t blocks, bytes;
    int64_t least; /* of what is usual: the fewest blocks seen */
    bool grows;    /* of what is usual: no number of blocks is too large */
};
struct holding {
    int64_t descriptors, mapped_bytes;
    size_t count;
    struct holding_site sites[NTH_SITES];
};

/* Makes the file of the counts, of zeros. */
void holding_prepare(const char *path);
void holding_read(pid_t pid, const char *path, struct holding *out);
/* `usual` becomes the larger of both, in each of its numbers. It begins zeroed. With `growing`, what is
 * larger by HOLDING_GROWTH blocks or more grows by intent, and is never beyond. */
enum { HOLDING_GROWTH = 8 };
void holding_widen(struct holding *usual, const struct holding *seen, bool growing);
/* Blocks of this size (0: any), allocated by code of this object (the beginning of its name), are not looked
 * at. */
struct holding_pool {
    const char *object;
    int64_t bytes;
};

/* How much is held beyond `usual`, one thing a line; "": nothing. The list of pools is ended by one without
 * an object. Blocks more at some places are not beyond if there are as many less at others of the same
 * object. */
const char *holding_beyond(const struct holding *usual, const struct holding *now,
                           const struct holding_pool *pools, char *text, size_t bytes);

#endif
