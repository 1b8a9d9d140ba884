/* The client's inside: read this first.
 *
 * A session has one thread of its own that runs a libuv loop: the control connection to the
 * coordinator, the fabric, timers. The Attached message of a large job is read by a thread that
 * lives only for that (read.h). The caller's threads never touch any of these. The two sides
 * meet at one lock:
 *
 *   asks      (op.h) control requests of the caller's threads. A thread adds one and sleeps; the loop thread
 *             sends it when the connection stands and its job is attached, sends it again after a
 *             reconnect, and wakes the thread with the reply. A thread whose deadline passes takes its ask
 *             back.
 *   commands  (op.h) put, push, micro-batch end, commit, fetch: done by the loop thread in the order given.
 *   ops       (op.h) what put, push and fetch have under way; a thread waits for `done`, or a stream of a GPU
 *             (below).
 *
 * So everything marked "loop thread" needs no lock, and everything marked "lock" is short. A lost
 * coordinator or shard changes nothing above: the loop thread reconnects, attaches again under the
 * same member number, and repeats what was unanswered.
 *
 * The headers, from the ground up; none includes one behind it (tests/tree/tidy.py holds that):
 *
 *   base.h    without a session: handles, errors, structs that grow, strides, the spec; env.h, admin.h
 *   layouts.h    the layout of a job as this worker knows it, and its tiles
 *   device.h  GPUs of the process: memory of theirs, copies, what streams have queued, what they wait for
 *   op.h      where the threads meet: asks, operations, waiting
 *   push.h    chunks under way: of puts, pushes and fetches
 *   read.h    published memory of this host's shards, and the units that are gathered or base
 *   loop.h    the loop thread: connections, attaching, messages, commands
 *   session.h, job.h  what all of these work on
 *   api_*.c, lists.c, open.c, put.c, round.c  the calls of cairn.h: each judges its arguments, hands the work
 *             over, and waits
 *
 * Only this header and job.h name what is above them: they embed each module's own struct. */
#ifndef CAIRN_CLIENT_SESSION_H
#define CAIRN_CLIENT_SESSION_H

#include <cairn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "client/base.h"
#include "client/env.h"
#include "client/loop.h"
#include "proto/base/status.h"
#include "proto/loop/stream.h"

/* ==== memory ==== */

/* Memory that cairn_alloc gave: who has it on loan, and its end. Any thread; not under the lock. */

struct card;
struct gone;
struct region;
struct session;

/* Under the lock. */
struct session_memory {
    struct region *regions; /* owned: [count] of capacity, by address */
    size_t count, capacity;
    bool changed;      /* since the fabric was told of them */
    struct gone *gone; /* owned: freed, and still known to the fabric, or mapped on a card */
    bool closed;
};

/* A new region, of host memory or of a card's. */
cairn_status memory_allocate(struct session *s, size_t bytes, struct card *card,
                             void **out) CAIRN_MUST_CHECK;
/* CAIRN_ERR_INVALID: ptr is none; CAIRN_ERR_BUSY: it is on loan. */
cairn_status memory_free(struct session *s, const void *ptr) CAIRN_MUST_CHECK;

/* Memory of a card that nobody is shown or lends; NULL: none is to be had. Not for the loop thread. */
struct gone *memory_apart(struct card *card, size_t bytes);
void *memory_apart_at(const struct gone *apart);
/* Under the lock: it is given back, at a turn of the loop thread when no stream waits. */
void memory_leave(struct session *s, struct gone *apart);
/* Waits until regions that were left before are given back, for at most a second. Not under the
 * lock; on a caller's thread. False if no region was left. */
bool memory_await_left(struct session *s);

/* If the `bytes` at ptr are in a region, it is on loan until memory_return(*base_out); if they are
 * not, *base_out is NULL. CAIRN_ERR_INVALID: they reach beyond the region's end, or the region is not of
 * that card (NULL: the host). */
cairn_status memory_lend(struct session *s, const void *ptr, size_t bytes, const struct card *card,
                         const void **base_out) CAIRN_MUST_CHECK;
void memory_return(struct session *s, const void *base); /* NULL is fine */
/* Loop thread: the fabric knows the region, so that what lies there goes by reference. */
bool memory_is_shown(struct session *s, const void *base);

/* Under the lock: bytes of all regions of host memory. */
size_t memory_host_bytes(const struct session *s);
/* Loop thread: tells the fabric of new regions, so that what is pushed from them is read where it lies,
 * and of those that are freed. */
void memory_show(struct session *s);
/* The session is closed: regions go, those on loan with their last loan. */
void memory_close_session(struct session *s);
/* With the session. */
void memory_release(struct session *s);

/* ==== streams ==== */

/* Streams of cards that wait for operations, and the thread that lets them go when they have waited too
 * long: a stream that hangs takes the card with it, and the loop thread may be held up by it as well, in a
 * call of the driver. So that thread asks the driver for nothing, and takes no lock that is held while
 * somebody does. */

struct card_word;
struct op;

/* A stream waits for an operation for at most so long. */
#define CAIRN_STREAMS_WAIT_MS 60000

struct stream_waits {
    pthread_mutex_t lock; /* behind the session's; guards what follows, and what op.h says */
    pthread_cond_t changed;
    struct op *first;  /* operations that streams wait for */
    uint64_t close_ms; /* the session ends: no stream waits longer; 0: it does not */
    bool is_running, is_over;
    pthread_t thread; /* from the first wait on */
};

void streams_init(struct session *s);
void streams_release(struct session *s); /* with the session */
/* The operation is over, under the session's lock: the words that streams wait for, to be set without it. */
struct card_word *streams_detach_words(struct op *op, bool *is_late_out);
void streams_let_go(struct card_word *words);
/* The session begins to end: from `close_ms` on no stream waits. */
void streams_close_at(struct session *s, uint64_t close_ms);
/* It has ended. */
void streams_end(struct session *s);

/* ==== session ==== */

struct ask;
struct card_imports;
struct command;
struct job;
struct published;

struct session {
    pthread_mutex_t lock;
    pthread_cond_t changed; /* CLOCK_MONOTONIC */
    struct session_loop loop;
    void *handle;
    int event_fd;

    /* constant from open on */
    struct stream_address endpoint;
    char endpoint_text[CAIRN_ADDRESS_TEXT_BYTES];
    char *name;
    uint64_t incarnation;
    struct env_report env; /* of the cluster */
    uint64_t run;          /* a hash of the launcher's name for it; 0: not known */
    uint32_t restarts;     /* of it */
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
    struct published *published; /* copies of shards of this host (read.h), likewise */
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
    struct staging_area *staging_areas; /* owned: layouts.h */
    uint64_t staging_on_host_ms;  /* until then none are on a card, whose memory cannot be shown */
    struct card_imports *imports; /* owned: of cairn_opts.device; NULL: of none */
};

/* Wakes the loop thread to look at asks and commands. Any thread. */
void session_kick(struct session *s);
/* Says on stderr what is slower than it could be, unless the trainer has an on_wait. */
void session_say(const struct session *s, const char *what);
/* Operations ended, of which the event descriptor tells (`tells`), or not. Under the lock. */
void session_wake(struct session *s, bool tells);
/* Loop thread: what is due of that. */
void session_wake_due(struct session *s);
/* Sleeps on `changed` until the deadline; false when it has passed. Under the lock. */
bool session_sleep(struct session *s, uint64_t deadline_ms);
/* Appends a command that the loop thread frees; ended at once if the session is. Any thread. */
void session_command(struct session *s, struct command *command);

#endif
