/* A lock that all daemons of a host share, whoever runs them: an flock of a folder that is there anyhow, so
 * that there is nothing to make, to own or to clean up. It goes with the process, however it ends. Daemons
 * that see different folders (containers) do not exclude each other. */
#ifndef CAIRN_BASE_HOST_LOCK_H
#define CAIRN_BASE_HOST_LOCK_H

#include <stdatomic.h>

#include "proto/base/sentence.h"

#define CAIRN_HOST_LOCK_PATH "/dev/shm" /* anybody can open it, in every distribution */

/* Waits for it, at most `timeout_ms`, and not once *canceled is set (CAIRN_ERR_CANCELED). CAIRN_ERR_BUSY
 * names the process that holds it. CAIRN_ERR_IO: it cannot be opened. Blocking; any thread. Given back by
 * close(*fd_out). */
CAIRN_MUST_CHECK cairn_status cairn_host_lock_take(const char *path, int timeout_ms,
                                                   const atomic_bool *canceled, int *fd_out,
                                                   struct cairn_sentence *why);

#endif
