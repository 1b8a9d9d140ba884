/* cairn local: a cluster in the foreground. Shared by its three files.
 *
 * One thread, no loop: every signal that matters is blocked and taken with sigtimedwait, SIGCHLD
 * included, so nothing runs in a handler. Only children that were started here are waited for,
 * signaled or killed, by their id; nobody else can have that id while they are not reaped. The
 * daemons are in process groups of their own, so Ctrl-C reaches the command alone, and in the
 * folder, so their configurations need no absolute paths. */
#ifndef CAIRN_CLIENT_CTL_LOCAL_H
#define CAIRN_CLIENT_CTL_LOCAL_H

#include <limits.h>
#include <signal.h>
#include <sys/types.h>

#include "client/ctl/ctl.h"

enum { LOCAL_COORDINATOR, LOCAL_SHARD, LOCAL_PROGRAMS };

struct local_daemon {
    char name[24]; /* "shard-1": of its configuration, log and ready file */
    pid_t pid;     /* 0: it does not run */
};

struct local {
    const struct ctl *ctl; /* borrowed */
    sigset_t signals;      /* blocked here, taken by local_signal */
    sigset_t old_signals;  /* of the children */
    bool is_blocked;       /* they are */
    char programs[LOCAL_PROGRAMS][PATH_MAX];
    char folder[PATH_MAX]; /* "": there is none */
    bool is_temporary;     /* removed in the end */
    char import[PATH_MAX]; /* import.folders of the shards; "": none */
    bool is_announced;     /* the endpoint file is ours */
    char endpoint[288];
    char socket[PATH_MAX + 32]; /* what the coordinator shall listen on */
    /* made for it where `folder` has too long a name, or an odd one; else "" */
    char socket_folder[64];
    struct local_daemon daemons[1 + CTL_SHARDS_MAX]; /* [daemon_count], the coordinator first */
    int daemon_count;
    bool is_debug;                /* the daemons log each round */
    uint32_t threads;             /* compute threads of a shard; 0: its share of the cores */
    const char *backend, *device; /* compute.backend and .device of the shards; NULL: not said */
};

/* ---- local.c ---- */
/* Runs `body` while a cluster of ctl->shards is up, or, with ctl->endpoint, against the cluster
 * there; CAIRN_ENDPOINT tells the body where it is. The exit status is the body's. The caller sets
 * local->ctl and the fields behind daemon_count; the rest of `local` is 0 or left over from a
 * cluster before. */
int local_run(struct local *local, int (*body)(struct local *local, void *context), void *context);

/* Adds one more shard to the running cluster, which was not made for it. -1: go on; else the exit
 * status. */
int local_shard_add(struct local *local);

/* ---- local.c: children ---- */
/* Waits for a signal of local->signals; 0: none came. timeout_ms -1: for ever. *is_key_out: it came from
 * the terminal, so the command has it, too. */
int local_signal(const struct local *local, int timeout_ms, bool *is_key_out);

/* Says of each daemon that ended how it did, with the end of its log. How many there were. */
int local_daemons_reap(struct local *local);
/* SIGTERM to all, SIGKILL to what is left 10 s or a signal later. */
void local_daemons_stop(struct local *local);

/* fork, for a body that has processes of its own: the child has the signals that this program was started
 * with, and dies with it. -1: and said. */
pid_t local_fork(struct local *local);

#endif
