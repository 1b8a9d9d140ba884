/* A system call that a tracer sees, and what it does about it: what depends on the machine's architecture. */
#ifndef CAIRN_SUPPORT_TRACER_CALL_H
#define CAIRN_SUPPORT_TRACER_CALL_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

struct tracer_call {
    pid_t thread;
    const char *name;
    unsigned long first; /* argument */
};

/* NULL: it neither has to do with a file nor tells anybody anything. */
const char *tracer_call_name(unsigned long number);
/* fsync or fdatasync: of what is in path_out, then. */
bool tracer_call_syncs(const struct tracer_call *call, char *path_out, size_t path_bytes);

/* Calls can be skipped on this machine. */
bool tracer_call_skips(void);
/* The thread is stopped at the entry of a call: that does not happen. At its exit: it failed with that. */
void tracer_call_skip(pid_t thread);
void tracer_call_fail(pid_t thread, int error);

#endif
