/* Fewer rights for code that reads what others have written.
 *
 *   struct confine confine;
 *   confine_begin(&confine);
 *   confine_read(&confine, folder);
 *   status = confine_run(&confine, read_snapshot, &work, &why);
 *
 * A snapshot, weights, a manifest come from whoever may write to their storage. The code that takes them
 * apart runs on a thread of its own, which can open nothing but what is beneath the folders that were
 * named, and that only for reading; which makes, renames and removes no file, and connects to nothing. The
 * kernel sees to it (Landlock), also for the threads that this thread starts. The bytes go to memory that
 * the process shares: a fault of the code by which a stranger's bytes write to memory is not stopped here,
 * only a fault of the paths.
 *
 * Where the kernel has no Landlock (before Linux 5.13, or it was left out), `run` runs on the caller's
 * thread with all of its rights: confine_version says so. */
#ifndef CAIRN_STORE_CONFINE_H
#define CAIRN_STORE_CONFINE_H

#include <stdbool.h>

#include "proto/base/status.h"
#include "proto/base/text.h"

/* The version of the kernel's Landlock; 0: it has none. */
int confine_version(void);

struct confine {
    int rules; /* owned: a descriptor; -1: none, because the kernel has no Landlock */
    cairn_status status;
};

void confine_begin(struct confine *confine);
/* Allows to read what is at a location of storage (storage.h), and beneath it. A location that is not there
 * is not allowed, and not missed. */
void confine_read(struct confine *confine, const char *location);
/* The same of each of these absolute paths, with ':' between them. */
void confine_read_each(struct confine *confine, const char *paths);
/* Allows to use the devices of this host, for work on a card meanwhile. */
void confine_use_devices(struct confine *confine);
/* Runs `run` so confined, and returns when it has returned; ends `confine`. CAIRN_ERR_NO_MEMORY,
 * CAIRN_ERR_IO: it did not run. Blocking; any thread. */
cairn_status confine_run(struct confine *confine, void (*run)(void *context), void *context,
                         struct sentence *why) CAIRN_MUST_CHECK;

/* The same with the right to read what is at this location, and no other. */
cairn_status confine_run_in(const char *location, void (*run)(void *context), void *context,
                            struct sentence *why) CAIRN_MUST_CHECK;

/* Takes from this process, for good, what no daemon needs: to start programs, to make nodes of devices, and
 * to gain rights by starting a program. Before the first thread starts. False: the kernel refused. */
bool confine_process(void);

#endif
