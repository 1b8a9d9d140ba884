/* Small files that survive a crash, and the folder a daemon keeps them in.
 *
 * cairn_durable_write replaces a file as a whole: write PATH.new, fsync, close, rename over PATH,
 * fsync the folder. After a crash at any point PATH holds the old bytes or the new ones. A failed
 * fsync fails the write: it is never tried again on the same file (the kernel may have dropped the
 * pages). Sentences name the step that failed. Blocking; any thread, one writer per path. */
#ifndef CAIRN_BASE_DURABLE_H
#define CAIRN_BASE_DURABLE_H

#include "proto/base/sentence.h"

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

/* Mode 0600. CAIRN_ERR_NO_SPACE, CAIRN_ERR_IO: PATH is unchanged and PATH.new is gone. (Only if the
 * very last step, the fsync of the folder, failed may PATH hold the new bytes, undurably.) */
CAIRN_MUST_CHECK cairn_status cairn_durable_write(const char *path, const void *bytes,
                                                  size_t byte_count, struct cairn_sentence *why);

/* The same of a file that is not there yet. CAIRN_ERR_EXISTS: it is, and stays as it is; so does a PATH.new
 * that is there, which is CAIRN_ERR_IO. */
CAIRN_MUST_CHECK cairn_status cairn_durable_create(const char *path, const void *bytes,
                                                   size_t byte_count, struct cairn_sentence *why);

/* Makes the folder and its missing parents with that mode, whatever the umask; all are durable in their
 * parents after it. One that exists is left as it is. */
CAIRN_MUST_CHECK cairn_status cairn_durable_folder(const char *path, mode_t mode,
                                                   struct cairn_sentence *why);

/* Makes the daemon's data folder if need be, checks that it is a folder that can be written (by
 * writing), and locks it: two daemons never share one. The lock file PATH/lock holds the pid and
 * goes with the process, however it ends. CAIRN_ERR_BUSY names the pid of the other;
 * CAIRN_ERR_IO says what to change. */
CAIRN_MUST_CHECK cairn_status cairn_durable_lock(const char *folder, int *lock_fd_out,
                                                 struct cairn_sentence *why);
void cairn_durable_unlock(int lock_fd);

#endif
