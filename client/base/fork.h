/* Sockets whose end has to be that of this process. Any thread. */
#ifndef CAIRN_CLIENT_BASE_FORK_H
#define CAIRN_CLIENT_BASE_FORK_H

/* From now on a process that is forked from this one closes its copy of `fd` at once. Without memory it keeps
 * it, and the peer learns of this process's death by the lease. */
void cairn_fork_watch(const void *owner, int fd);
/* The owner's sockets are closed, or about to be. */
void cairn_fork_forget(const void *owner);

#endif
