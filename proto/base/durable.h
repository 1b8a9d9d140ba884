/* Small files that survive a crash, and the folder in which a daemon keeps them.
 *
 * durable_write replaces a file as a whole, in these steps: write PATH.new, fsync, close, rename over PATH,
 * fsync the folder. So after a crash at any moment PATH holds either the old bytes or the new ones. If an
 * fsync fails, the write has failed: the fsync is never tried again on the same file, because the kernel
 * may have dropped the pages. A file or folder that is made has its mode whatever the umask is. The sentence
 * names the step that failed. Blocking; any thread; one writer per path. */
#ifndef CAIRN_BASE_DURABLE_H
#define CAIRN_BASE_DURABLE_H

#include <limits.h>
#include <stddef.h>
#include <sys/types.h>

#include "proto/base/text.h"

/* Writes the folder that the path lies in: of "a/b" it is "a", of "b" ".", and of "/b" "/". */
void path_parent(const char *path, char parent_out[PATH_MAX]);

/* Writes a file. A PATH.new that a killed process left is removed before, and none of it is kept: not its
 * mode, nor its owner. CAIRN_ERR_NO_SPACE, CAIRN_ERR_IO: PATH is unchanged, and PATH.new is gone. (If only
 * the last step fails, the fsync of the folder, PATH holds the new bytes, but a crash may undo that.) */
CAIRN_MUST_CHECK cairn_status durable_write(const char *path, mode_t mode, const void *bytes,
                                            size_t byte_count, struct sentence *why);

/* Writes a file of mode 0600 that must not exist yet, in the same way. CAIRN_ERR_EXISTS: PATH exists, and
 * stays as it is. If PATH.new exists, it stays as it is, too, and the function returns CAIRN_ERR_IO. */
CAIRN_MUST_CHECK cairn_status durable_create(const char *path, const void *bytes, size_t byte_count,
                                             struct sentence *why);

/* Makes the folder and its missing parents, with that mode, and makes their names durable. A folder that
 * exists stays as it is. */
CAIRN_MUST_CHECK cairn_status durable_folder(const char *path, mode_t mode, struct sentence *why);

/* Makes the daemon's data folder if it does not exist, checks that it can be written to, and locks it,
 * because two daemons must never share a folder. The file `lock` in the folder holds the pid of the process
 * that has the lock. The kernel releases the lock when that process ends for whatever reason.
 * CAIRN_ERR_BUSY: the sentence names the pid of the other process. CAIRN_ERR_IO: the sentence says what to
 * change. */
CAIRN_MUST_CHECK cairn_status durable_lock(const char *folder, int *lock_fd_out,
                                           struct sentence *why);
void durable_unlock(int lock_fd);

#endif
