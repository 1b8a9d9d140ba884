/* What nth_fail.c, preloaded, lets a program fail: the nth thing that it asks for, once. And what
 * nth_counts.c counts: what the program holds. */
#ifndef CAIRN_SUPPORT_NTH_H
#define CAIRN_SUPPORT_NTH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* kind: "memory", "descriptors", "threads", "files" (what is done to one, with EIO), "sockets" (what is done
 * to one, as if the peer had gone), "polls" (epoll_ctl, with ENOMEM). `of`: a part of the file name of who
 * asks; "program": the program itself; "": anybody. The number is counted from 1.
 * NTH_FAIL="KIND OF NUMBER" in the environment ("anybody" for "") does this when the program starts. */
void nth_arm(const char *kind, const char *of, uint64_t number);
/* True: it has failed. *asked_out: how often something of the kind was asked for; *by_out: where it
 * failed. */
bool nth_disarm(uint64_t *asked_out, void **by_out);
bool nth_fired(void);

/* What a program holds. NTH_COUNTS=PATH in its environment, a file of this size: the counts are kept there,
 * in shared memory, so that whoever has mapped the file reads them at any time and disturbs nobody. */
enum { NTH_SITES = 4096 };
struct nth_site {
    _Atomic uintptr_t caller;      /* the address behind the call that allocated; 0: nobody's */
    _Atomic int64_t blocks, bytes; /* that it has allocated, and nobody has freed */
};
struct nth_counts {
    _Atomic int64_t mapped_bytes; /* mmap less munmap, in whole pages */
    struct nth_site sites[NTH_SITES];
};

/* ---- for nth_fail.c ---- */

void *nth_allocate(size_t bytes, bool is_cleared, void *caller);
void *nth_reallocate(void *memory, size_t bytes, void *caller);
void *nth_allocate_aligned(size_t alignment, size_t bytes, void *caller);
void nth_mapped(int64_t bytes);

#endif
