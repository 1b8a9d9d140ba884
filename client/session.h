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
 *   layouts.h the layouts of a job as this worker knows them, and its tiles
 *   device.h  GPUs of the process: memory of theirs, copies, what streams have queued, what they wait for
 *   op.h      where the threads meet: asks, operations, waiting
 *   push.h    chunks under way: of puts, pushes and fetches
 *   read.h    published memory of this host's shards, and the units that are gathered or viewed
 *   session.h, job.h  what all of these work on; in session.h also the loop thread: connections, attaching,
 *             messages, commands
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
#include <sys/queue.h>
#include <uv.h>

#include "client/base.h"
#include "client/env.h"
#include "client/op.h"
#include "proto/base/status.h"
#include "proto/base/text.h"
#include "proto/loop/loop.h"
#include "proto/wire/wire.h"

/* ==== loop ==== */

/* The loop thread of a session. */

struct session_loop {
    pthread_t thread;
    uv_loop_t uv;
    uv_async_t kick;
    uv_prepare_t rest; /* the last one of a turn: prepares run the newest first */
    uv_timer_t tick;
    uv_timer_t soon;     /* looks again while a push waits for its stream */
    uint64_t stop_by_ms; /* set before `stopping`: then the fabric is closed, whoever holds loans */
    atomic_bool stopping;
};

/* Opens the data path and starts the thread. Caller's thread, as the next one. */
cairn_status loop_start(struct session *s) CAIRN_MUST_CHECK;
/* Ends the thread and waits for its end. Operations under way get a moment to end by themselves. */
void loop_stop(struct session *s);

/* ==== control ==== */

/* The control connection: connect, hello, leases, frames. Loop thread. */

struct control {
    struct stream *stream;  /* NULL: not connected */
    bool hello_sent, ready; /* ready: Welcome came */
    bool is_choosing;       /* this connection was for the shards' places only */
    bool was_given_up;      /* the coordinator that lost the connection is the one that is back */
    uint64_t incarnation;   /* of the coordinator */
    uint64_t store;         /* the identity of its store */
    uint32_t last_request;
    uint64_t retry_at_ms;
    uint32_t retry_delay_ms; /* grows while connections end as soon as they stand */
    uint32_t heartbeat_ms, lease_ms;
    uint64_t heard_ms, spoke_ms, welcome_ms;
    uint64_t reads_reported_ms; /* when job->reads were told, of all jobs */
    uint32_t unheard_reported;  /* shards that were told to say nothing over the data path */
};

/* How the session stands with the coordinator, for who waits. Under the lock. */
struct reach {
    bool welcome;
    bool no_path;        /* status and why are of the data path, and last */
    cairn_status status; /* of the last attempt */
    struct sentence why;
    uint64_t away_since_ms;
};

/* Sends without an ask; a failure shows as the stream's end. */
void control_send(struct session *s, uint16_t type, uint32_t request,
                  const ProtobufCMessage *message);
void control_send_pages(struct session *s, uint32_t request, enum page_what what,
                        struct packed *packed);
/* There is no memory for what the coordinator sent (`of`: a message). Drops the connection and
 * connects again: unanswered requests are then repeated, and by then there may be memory. */
void control_starve(struct session *s, const char *of);
/* How many bytes of published memory the job's member has read since it attached to this
 * coordinator. The caller has to send the figure: it counts as told from here on. */
uint64_t control_job_read(struct job *job);

/* ==== datapath ==== */

/* The data path of a session: the fabric, which devices it is opened on, and what is said where nothing comes
 * through, or nothing any more. Loop thread. */

struct shard_link;

struct datapath {
    struct fabric *fabric; /* NULL: the shards' places are not known yet */
    struct fabric_poll poll;
    uint64_t asked_ms;               /* since when the coordinator is asked for the places */
    struct fabric_hub *hub;          /* borrowed; NULL but in tests: the data path is that one */
    char text[CAIRN_SENTENCE_BYTES]; /* how it was opened; constant once cairn_open is over */
};

/* Opens the fabric, unless its devices are to be chosen. */
cairn_status datapath_open(struct session *s, struct sentence *why) CAIRN_MUST_CHECK;
/* While there is no fabric: chooses and opens, or fails. False: no shard is known yet, ask again. */
bool datapath_choose(struct session *s, const Cairn__Welcome *welcome, struct sentence *why,
                     cairn_status *status_out);
/* Every loan comes back by it, those of a shard that is stopped, too. */
void datapath_close(struct session *s);
/* Each tick: a shard that was never heard fails the job, with both ends' addresses. One that was heard, and
 * is awaited, and there by the coordinator's word, is said to be silent, until it is heard. */
void datapath_judge(struct shard_link *link, uint64_t now_ms);
/* A message of the shard came. */
void datapath_heard(struct shard_link *link);

/* ==== detach ==== */

/* Letting go of what shards show this process, and taking it again. */

struct detachment {
    /* lock */
    bool is_asked, is_answered;
    bool wants_off; /* what is asked */
    cairn_status status;
    struct sentence why;
    /* loop thread */
    bool is_off;
};

/* ==== again ==== */

/* Tells a coordinator again, after an attach, what this client had told the one before: a new
 * coordinator knows nothing of it. Loop thread. */

/* TilesSet, in reply to `request`: of those told again, or of the call of cairn_tiles that waits. */
void again_on_tiles_set(struct job *job, uint32_t request);

/* A shard refused something of the round (push.c): it is given up, for all. */
void again_give_up(struct job *job);

/* ==== attach ==== */

/* Attaching to a job, and again after every loss of the control connection. Loop thread. */

void attach_begin(struct job *job);
/* The job is closing: leaves it, and takes it out of the list once the fabric has nothing of it on loan. */
void attach_release(struct job *job);
/* The job of that number that is attached; NULL: there is none. */
struct job *attach_job_of(struct session *s, uint64_t id);
/* Attached, LayoutChanged, or a Page of these: takes the message. False: it is another. */
bool attach_on_message(struct session *s, uint32_t request, uint16_t type,
                       ProtobufCMessage *message);
/* An Error in reply to an attach, or to tiles or a pause that were told again. False: it is of neither. */
bool attach_on_error(struct session *s, uint32_t request, cairn_status status,
                     const Cairn__Error *error);
/* The text of an Error; never empty, since the caller reads it. */
const char *attach_error_text(const Cairn__Error *error, cairn_status status);
/* Waits for the thread that reads the pages of `job`, and attaches the job by what it read. */
void attach_read(struct job *job);

/* ==== layouts ==== */

/* Which layouts a job has, and where its shards are: what Attached, LayoutChanged and ShardsChanged say of
 * that. Loop thread. */

struct reading;

void layouts_on_shards(struct job *job, const Cairn__ShardsChanged *message);

/* Each turn: layouts by which nothing is fetched any more go, and connections to shards that left the job. */
void layouts_trim(struct job *job);

/* ==== link ==== */

/* Connections to the shards of a job, and what comes over them. Loop thread. */

/* There are so many, at least: those of shards that were not heard of have no address yet. */
cairn_status links_add(struct job *job, uint32_t count) CAIRN_MUST_CHECK;
void links_release(struct job *job); /* nothing of them is on loan */
void link_tick(struct shard_link *link, uint64_t now_ms);

/* ==== memory ==== */

/* Memory that cairn_alloc gave: who has it on loan, and its end. Any thread; not under the lock. */

struct gone;
struct region;

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

/* A stream waits for an operation for at most so long. */
#define CAIRN_STREAMS_WAIT_MS 60000

struct stream_waits {
    pthread_mutex_t lock; /* behind the session's; guards what follows, and what op.h says */
    pthread_cond_t changed;
    LIST_HEAD(, op) ops; /* that streams wait for */
    uint64_t close_ms;   /* the session ends: no stream waits longer; 0: it does not */
    bool is_running, is_over;
    pthread_t thread; /* from the first wait on */
};

/* The operation is over, under the session's lock: the words that streams wait for, to be set without it. */
struct card_word *streams_detach_words(struct op *op, bool *is_late_out);
void streams_let_go(struct card_word *words);

/* ==== session ==== */

struct card_imports;
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
        SLIST_HEAD(, op) ops;
        uint32_t count;
    } spare;    /* operations that are over, for those to come (op.c) */
    bool ended; /* the loop takes nothing more: asks and commands fail, nobody kicks it */
    LIST_HEAD(, ask) asks;
    struct command_queue commands;
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

/* Begins a call of a session: declares `s`, that of the handle, until the function returns; the function
 * fails if the handle is none. */
#define API_SESSION(s, handle)                                                                   \
    __attribute__((cleanup(session_leave))) struct session *s = handle_get(CAIRN_HANDLE_SESSION, \
                                                                           handle);              \
    if (s == NULL) return handle_fail(handle, "session")
void session_leave(struct session **s);

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
