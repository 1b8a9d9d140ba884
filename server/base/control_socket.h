/* The Unix socket that a daemon listens on.
 *
 * It is never there half made, or open to more than its mode says: bound beside its place, given mode 0660,
 * listening, and then renamed. One of a dead daemon is replaced; one that somebody listens on, or that is no
 * socket, is left and refused. The folder is locked meanwhile, so of two that start at once the second finds
 * the first. Blocks for at most a second; at a daemon's start only. */
#ifndef CAIRN_BASE_CONTROL_SOCKET_H
#define CAIRN_BASE_CONTROL_SOCKET_H

#include "proto/base/sentence.h"

#include <sys/types.h>

struct cairn_control_socket {
    int fd; /* the caller's */
    /* what was made at the path: nothing else has these numbers while fd is open */
    dev_t device;
    ino_t inode;
};

/* `path`: one that cairn_address_parse took. The folder must exist. CAIRN_ERR_BUSY: somebody listens there.
 * CAIRN_ERR_CONFIG: it cannot be made there. */
CAIRN_MUST_CHECK cairn_status cairn_control_socket_open(const char *path, int backlog,
                                                        struct cairn_control_socket *socket_out,
                                                        struct cairn_sentence *why);
/* Removes the socket's name; call it while socket->fd is still open. Somebody may have replaced
 * the file, even while we listen, if the name was gone for a moment: a file that is not ours
 * stays. */
void cairn_control_socket_unlink(const char *path, const struct cairn_control_socket *socket);
/* Makes the folder of the path, mode 0750, if it is not there; its parent must be. CAIRN_ERR_CONFIG. */
CAIRN_MUST_CHECK cairn_status cairn_control_socket_folder(const char *path,
                                                          struct cairn_sentence *why);

#endif
