/* The n-th system call of a traced process meets a fault; and what the process has synced.
 *
 *   struct call_fault fault = { .nth = 17, .fate = TRACER_KILLS };
 *   tracer_attach(&tracer, shard, call_fault_judge, &fault); */
#ifndef CAIRN_SUPPORT_CALL_FAULT_H
#define CAIRN_SUPPORT_CALL_FAULT_H

#include <stdbool.h>
#include <stddef.h>

#include "tests/support/tracer.h"

enum { CALL_SYNCS_MAX = 512 };

struct call_fault {
    /* what is asked for */
    unsigned nth;    /* from 1; 0: none */
    int fate;        /* as of tracer_judge_fn */
    bool syncs_only; /* nth and count are of fsync and fdatasync */
    /* what has come */
    unsigned count;
    const char *met; /* the call; NULL: there was no n-th */
    size_t sync_count;
    struct call_sync {
        bool failed, is_folder;
        char path[256];
    } syncs[CALL_SYNCS_MAX];
};

/* For a tracer, with the fault as its context. */
int call_fault_judge(void *fault, const struct tracer_call *call);

/* Of what failed to be synced; NULL: it was no sync that failed. */
const char *call_fault_unsynced(const struct call_fault *fault);
/* A file is synced under the name that ends with ".tmp", after which it gets its own or is gone; a folder for
 * each new name in it, and for each that is removed. The file that was synced again; NULL: none. */
const char *call_fault_synced_twice(const struct call_fault *fault);

#endif
