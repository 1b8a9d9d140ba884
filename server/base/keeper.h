/* Descriptors that outlive a daemon: a keeper holds them, and hands them to the daemon's next process.
 *
 * There are two keepers, and they speak one protocol, that of sd_notify(3) and sd_listen_fds(3):
 *
 *   systemd                a unit with FileDescriptorStoreMax=
 *   `cairn-shard --keep`   a small process of our own, for hosts without systemd: `cairn local`, containers.
 *                          It starts the daemon, holds what the daemon stores, and starts the daemon again
 *                          when it dies
 *
 *   daemon ── FDSTORE=1, FDNAME=name, the descriptor ──► keeper       keeper_store
 *          ── FDSTOREREMOVE=1, FDNAME=name ────────────►              keeper_forget
 *          ── BARRIER=1, a pipe ───────────────────────►              keeper_sync
 *   daemon ◄── LISTEN_FDS, LISTEN_FDNAMES, LISTEN_PID ── keeper       keeper_take, in the next process
 *
 * A keeper answers nothing. So the daemon knows that a descriptor is kept only when keeper_sync returned
 * CAIRN_OK: the keeper has then handled all that was sent before.
 *
 * systemd does this, by its source, 252 (Debian 12) and 257 (Debian 13) alike unless said (e2e.systemd shows
 * crashes, restarts, stops and daemon-reexec):
 *
 *   how long         through crashes with Restart=, `systemctl restart`, daemon-reload and daemon-reexec.
 *                    A descriptor is closed when the unit is stopped, or ends without a restart, or
 *                    StartLimitBurst= is reached. From 254 on FileDescriptorStorePreserve=yes keeps it then,
 *                    too, while the unit is loaded, as an enabled one is; `systemctl clean --what=fdstore`
 *                    closes it. 252 warns of the key at each load, and ignores it
 *   how many         FileDescriptorStoreMax=. More are dropped, and only systemd's log says so
 *   duplicates       are dropped, whatever the name: the same open file, by kcmp(2), not the same inode. For
 *                    this each new descriptor is compared with all that are kept
 *   names            up to 255 bytes of ASCII without ':'. "stored" without a FDNAME=
 *   order            the newest first, behind the sockets of socket units. A restart of systemd turns it
 *                    around. So only names count
 *   a hang-up        closes what can be polled (a socket, a pipe), unless FDPOLL=0. Memory files cannot be
 *   a message        has at most 253 descriptors (Linux). Only the main process is heard (NotifyAccess=main),
 *                    by the process number that the kernel attests: any of its threads
 *   FDSTORE          in the environment: the limit, from 254 on
 *
 * `cairn-shard --keep` does the same with messages, names and duplicates. cairn-shard(8) says what it keeps,
 * and when it starts the daemon again. */
#ifndef CAIRN_BASE_KEEPER_H
#define CAIRN_BASE_KEEPER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "proto/base/text.h"

#define CAIRN_KEEPER_NAME_MAX \
    32 /* bytes of a name, without the end; letters, digits, '.' and '-' */
#define CAIRN_KEEPER_FDS_MAX 8192
/* A keeper hands back all names in one environment variable, which Linux limits to 128 KiB. With longer
 * names, systemd could not start the daemon any more. So this is the most for the bytes of all names, with
 * one byte more for each: at 8192 descriptors 15 bytes a name. */
#define CAIRN_KEEPER_NAMES_BYTES_MAX (128 * 1024 - 16)
/* "1" in the environment of a process that died three times in a minute with the descriptors that it was
 * handed: they may be what kills it. It is handed them once more, and sets those aside that it was handed as
 * they are each time: it gives them names that begin with CAIRN_KEPT_ASIDE, and does not use what is in them.
 * `cairn-shard --keep` sets it at each start, until something is set aside or deaths are further apart.
 * systemd does not. */
#define CAIRN_KEPT_REFUSED "CAIRN_KEPT_REFUSED"
#define CAIRN_KEPT_ASIDE   "aside-"

struct kept_fd {
    int fd; /* owned; has close-on-exec set */
    char name[CAIRN_KEEPER_NAME_MAX + 1];
};

/* True if a keeper holds what this process stores: systemd with FDSTORE (from 254 on it says how many in
 * $FDSTORE; before, $NOTIFY_SOCKET and $INVOCATION_ID are all that can be known), or `cairn-shard --keep`. */
bool keeper_is_there(void);

/* Takes the descriptors that the keeper handed to this process, and removes the variables, so that no child
 * takes them for its own. Call it once, before the process opens anything or starts a thread. Returns their
 * number; *list_out is malloc'ed, NULL if there are none. A descriptor without a valid name is closed, and
 * `why` says so (empty: nothing was wrong). */
size_t keeper_take(struct kept_fd **list_out, struct sentence *why);

/* Hands a duplicate of the descriptor to the keeper, under a name, which several descriptors may have. A
 * keeper ignores a descriptor that it has already (a duplicate of it: the same open file), whatever the name:
 * for another name, open the file again. Does not wait, except for room in the socket. Any thread.
 * CAIRN_ERR_UNSUPPORTED: there is no keeper. CAIRN_ERR_INVALID: the name. CAIRN_ERR_NO_SPACE: the keeper has
 * as many as it takes. CAIRN_ERR_IO: it did not take the message; if it is gone, the log says so, once. */
CAIRN_MUST_CHECK cairn_status keeper_store(const char *name, int fd, struct sentence *why);
/* Makes the keeper close all descriptors of that name. Any thread. */
CAIRN_MUST_CHECK cairn_status keeper_forget(const char *name, struct sentence *why);
/* Waits until the keeper has handled everything that this process sent before. CAIRN_ERR_TIMEOUT: it has
 * not within `timeout_ms`. */
CAIRN_MUST_CHECK cairn_status keeper_sync(uint64_t timeout_ms, struct sentence *why);

/* Runs `program` as a child that is kept, with these arguments ([argc] and a NULL at the end); argv[0] is its
 * name. Returns the exit status of this process when the child has ended for good: by an exit status other
 * than of a crash, after the signal that this process was sent and passed on, or because it died too often
 * in too short a time. See `cairn-shard --keep` in cairn-shard(8). */
int keeper_run(const char *program, char **argv);

#endif
