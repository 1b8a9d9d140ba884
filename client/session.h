/* The client's inside: read this first.
 *
 * A session has one thread of its own that runs a libuv loop: the control connection to the
 * coordinator, the fabric, timers. The Attached message of a large job is read by a thread that
 * lives only for that (reading.h). The caller's threads never touch any of these. The two sides
 * meet at one lock:
 *
 *   asks      (ask.h) control requests of the caller's threads. A thread adds one and sleeps; the loop thread
 *             sends it when the connection stands and its job is attached, sends it again after a reconnect,
 *             and wakes the thread with the reply. A thread whose deadline passes takes its ask back.
 *   commands  (op.h) put, push, micro-batch end, commit, fetch: done by the loop thread in the order given.
 *   ops       (op.h) what put, push and fetch have under way; a thread waits for `done`, or a stream of a GPU
 *             (streams.h).
 *
 * So everything marked "loop thread" needs no lock, and everything marked "lock" is short. A lost
 * coordinator or shard changes nothing above: the loop thread reconnects, attaches again under the
 * same member number, and repeats what was unanswered.
 *
 * The rooms, each of which calls only those before it:
 *
 *   base/     without a session: handles, errors, structs that grow, strides, the spec, the environment
 *   device/   GPUs of the process: memory of theirs, copies, what streams have queued, what they wait for
 *   (here)    where the threads meet: session, job, its layouts and shards, asks, ops, waiting, memory,
 *             what the worker holds and put
 *   read/     published memory of this host's shards, and the units that are gathered or lent
 *   push/     chunks under way: of puts, pushes and fetches
 *   loop/     the loop thread: connections, attaching, messages, commands
 *   api/      the calls of cairn.h: each judges its arguments, hands the work over, and waits
 *
 * Only this header and job.h name what is above them: they embed each module's own struct. */
#ifndef CAIRN_CLIENT_SESSION_H
#define CAIRN_CLIENT_SESSION_H

#include <cairn.h>

#include <pthread.h>
#include <stdatomic.h>

#include "client/base/clock.h"
#include "client/base/env.h"
#include "client/base/error.h"
#include "client/loop/control.h"
#include "client/loop/datapath.h"
#include "client/loop/detach.h"
#include "client/loop/loop.h"
#include "client/memory.h"
#include "client/streams.h"
#include "proto/loop/address.h"

struct ask;
struct card_imports;
struct command;
struct job;
struct op;
struct published;

struct session {
    pthread_mutex_t lock;
    pthread_cond_t changed; /* CLOCK_MONOTONIC */
    struct session_loop loop;
    void *handle;
    int event_fd;

    /* constant from open on */
    struct cairn_address endpoint;
    char endpoint_text[CAIRN_ADDRESS_TEXT_BYTES];
    char *name;
    uint64_t incarnation;
    struct cairn_env_report env; /* of the cluster */
    uint64_t run;                /* a hash of the launcher's name for it; 0: not known */
    uint32_t restarts;           /* of it */
    uint32_t prefetch_units;
    uint32_t connect_ms; /* that cairn_open takes at most */
    cairn_wait_fn on_wait;
    void *on_wait_context;

    /* lock */
    uint32_t refs; /* the handle, jobs */
    bool cancels;  /* an operation that may be under way was canceled */
    struct {
        struct op *first;
        uint32_t count;
    } spare;    /* operations that are over, for those to come (op.c) */
    bool ended; /* the loop takes nothing more: asks and commands fail, nobody kicks it */
    struct ask *asks;
    struct {
        struct command *first, *last;
    } commands;
    struct job *jobs;            /* changed by the loop thread only */
    struct published *published; /* copies of shards of this host (read/mapped.h), likewise */
    /* whoever waits for operations is woken once for all that end in 100 us of one turn of the loop */
    struct {
        bool is_due, tells; /* at the turn's end; by the event descriptor, too */
        uint64_t last_us;
    } wake;
    struct reach reach;
    struct session_memory memory;
    struct detachment detachment;

    struct stream_waits streams; /* has a lock of its own */

    /* loop thread */
    struct control control;
    struct datapath path;
    struct pieces_area *pieces;   /* owned: pieces.h */
    uint64_t pieces_on_host_ms;   /* until then none are on a card, whose memory cannot be shown */
    struct card_imports *imports; /* owned: of cairn_opts.device; NULL: of none */
};

/* Wakes the loop thread to look at asks and commands. Any thread. */
void cairn_session_kick(struct session *s);
/* Says on stderr what is slower than it could be, unless the trainer has an on_wait. */
void cairn_session_say(const struct session *s, const char *what);
/* Operations ended, of which the event descriptor tells (`tells`), or not. Under the lock. */
void cairn_session_wake(struct session *s, bool tells);
/* Loop thread: what is due of that. */
void cairn_session_wake_due(struct session *s);
/* Sleeps on `changed` until the deadline; false when it has passed. Under the lock. */
bool cairn_session_sleep(struct session *s, uint64_t deadline_ms);
/* Appends a command that the loop thread frees; ended at once if the session is. Any thread. */
void cairn_session_command(struct session *s, struct command *command);
/* The same of several, linked from the first to the last. */
void cairn_session_commands(struct session *s, struct command *first, struct command *last);
/* Frees it with the last reference; not under the lock. */
void cairn_session_unref(struct session *s);

#endif
