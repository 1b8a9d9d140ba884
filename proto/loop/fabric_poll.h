/* Drives a fabric from a libuv loop: progress before each wait, sleep on the fabric's descriptor.
 *
 * The caller's memory, one per fabric; loop thread only. `init` starts it; it keeps the loop alive
 * until closed (uv_unref is not used: a daemon that has a fabric has a reason to live). While nothing
 * arrives it costs no CPU.
 *
 * The order of goodbye: fabric_poll_close, then (in or after its callback, or at once after the
 * call) fabric_close. */
#ifndef CAIRN_LOOP_FABRIC_POLL_H
#define CAIRN_LOOP_FABRIC_POLL_H

#include <uv.h>

#include "proto/fabric/fabric.h"

struct fabric_poll {
    /* private */
    uv_prepare_t prepare;  /* before each wait: progress, then arm */
    uv_idle_t idle;        /* active = do not wait, there is more to do */
    uv_poll_t poll;        /* wakes the wait; the work is done in prepare */
    struct fabric *fabric; /* borrowed */
    uint64_t spin_ns;      /* 0: never spin */
    uint64_t spin_until_ns;
    int handles_open;
    void (*on_closed)(void *arg);
    void *on_closed_arg;
};

/* spin_us: how long to poll after the last arrival before sleeping. 0 (the default of all daemons)
 * unless each process has a core of its own: on a shared core a spin of any length costs a scheduler
 * slice per hop (measured 8 ms against 19 us). With cores to spare 20 gives 12 us round trips instead
 * of 75. Returns CAIRN_ERR_NO_MEMORY or CAIRN_ERR_IO if libuv refuses. */
CAIRN_MUST_CHECK cairn_status fabric_poll_init(struct fabric_poll *poll, uv_loop_t *loop,
                                               struct fabric *fabric, uint32_t spin_us);

/* Stops at once: no fabric callback runs from the loop after this. The memory is the caller's again
 * when on_closed runs (from the loop; may be NULL if the caller runs the loop until it is empty). */
void fabric_poll_close(struct fabric_poll *poll, void (*on_closed)(void *arg), void *arg);

#endif
