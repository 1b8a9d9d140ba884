/* How much memory this process may still take before the kernel kills somebody for it.
 *
 * A page past a control group's limit is no error of the call that wanted it: the kernel ends a process. So
 * the room is read before. It is the least of what the host has available and, for the process's control
 * group and each one above it, of the limit less what is in use there. Page cache that was not used lately
 * (inactive_file) is not in use: it goes when memory is wanted. Both kinds of control groups are read, v2
 * (memory.max) and v1 (memory.limit_in_bytes), wherever they are mounted. A container sees only the
 * groups that are mounted into it.
 *
 * Blocking (files of the kernel, a fraction of a millisecond); any thread. */
#ifndef CAIRN_BASE_HEADROOM_H
#define CAIRN_BASE_HEADROOM_H

#include <stdint.h>

#include "proto/base/sentence.h"

struct cairn_headroom {
    uint64_t available_bytes;
    uint64_t limit_bytes; /* what `by` has, in use or not */
    char by[256];         /* what leaves least: "the host's RAM", or a folder of a control group */
    uint64_t most_bytes;  /* the least limit of all, with nothing in use */
};

/* `root`: the folder in which proc and sys are, "" unless in a test. CAIRN_ERR_IO: there is no proc/meminfo;
 * a control group that cannot be read is none. */
CAIRN_MUST_CHECK cairn_status cairn_headroom_read(const char *root, struct cairn_headroom *room_out,
                                                  struct cairn_sentence *why);

/* CAIRN_ERR_NO_MEMORY if the room has less than the bytes and what the kernel needs to keep them; `what`
 * begins the sentence. */
CAIRN_MUST_CHECK cairn_status cairn_headroom_judge(const struct cairn_headroom *room,
                                                   uint64_t bytes, const char *what,
                                                   struct cairn_sentence *why);

#endif
