/* Handles: what the caller holds instead of our pointers, so that a closed, wrong or foreign one is an
 * error and never undefined behaviour.
 *
 * A handle is a number in a pointer's clothes: a slot of one table of the process and the slot's
 * generation. Looking it up counts a reference, so that an object is freed only when the last call
 * that uses it is over, whichever thread closes it. Any thread; one lock, held for a few instructions.
 *
 * A handle is of the process that opened it: in a forked one, which has neither the thread nor the locks of
 * what it names, it is no handle. */
#ifndef CAIRN_CLIENT_BASE_HANDLE_H
#define CAIRN_CLIENT_BASE_HANDLE_H

#include <stddef.h>

#include "proto/base/status.h"

enum cairn_handle_kind {
    CAIRN_HANDLE_SESSION = 1,
    CAIRN_HANDLE_JOB = 2,
    CAIRN_HANDLE_OP = 3,
    CAIRN_HANDLE_LIST = 4
};

typedef void (*cairn_handle_free_fn)(void *object);

/* A new handle for `object`, with one reference that cairn_handle_close gives back; `release` runs when
 * the last one is. NULL: out of memory, or 2^20 handles are open. */
void *cairn_handle_open(enum cairn_handle_kind kind, void *object, cairn_handle_free_fn release);
/* The object, with one more reference; NULL for a handle that is closed, not one of this kind, not ours, or
 * of another process. */
void *cairn_handle_get(enum cairn_handle_kind kind, const void *handle);
/* One reference more of an object that the caller has one of, be the handle still open or not. */
void cairn_handle_hold(const void *handle);
/* Gives a reference of cairn_handle_get or _hold back. */
void cairn_handle_put(const void *handle);
/* No more cairn_handle_get; gives the first reference back. False: it was not open. */
int cairn_handle_close(enum cairn_handle_kind kind, const void *handle);
/* Why there was none: CAIRN_ERR_HANDLE and this thread's sentence. `what`: "session". */
cairn_status cairn_handle_fail(const void *handle, const char *what);

#endif
