/* The client's internals: read this first.
 *
 * A session has one thread of its own that runs a libuv loop: the control connection to the
 * coordinator, the fabric, timers. The Attached message of a large job is read by a thread that
 * lives only for this purpose (read.h). The caller's threads touch neither the connections nor the
 * timers. The two sides meet at one lock:
 *
 *   asks      (op.h) control requests of the caller's threads. A thread adds an ask and sleeps. The loop
 *             thread sends the ask when the connection is established and the ask's job is attached,
 *             sends it again after a reconnect, and wakes the thread with the reply. A thread whose
 *             deadline passes withdraws its ask.
 *   commands  (op.h) put, push, micro-batch end, commit, fetch: executed by the loop thread in order.
 *   ops       (op.h) puts, pushes and fetches in progress; a thread waits for `done`, or a stream of a GPU
 *             (below).
 *
 * So everything marked "loop thread" needs no lock, and everything marked "lock" is brief. A lost
 * coordinator or shard changes nothing above: the loop thread reconnects, attaches again under the
 * same member number, and repeats unanswered requests.
 *
 * The headers, from the ground up; none includes a later one (tests/tree/tidy.py enforces that):
 *
 *   base.h    without a session: handles, errors, structs that grow, strides, the spec; env.h, admin.h
 *   layouts.h the layouts of a job as this worker knows them, and its tiles
 *   device.h  GPUs of the process: their memory, copies, events on streams, and waits of streams
 *   op.h      the interface between the threads: asks, operations, waiting
 *   push.h    chunks of puts, pushes and fetches in progress
 *   read.h    published memory of this host's shards, and the units that are gathered or viewed
 *   session.h, job.h  what all of these work on; session.h also has the loop thread (connections,
 *             attaching, messages, commands)
 *   api_*.c, lists.c, open.c, put.c, round.c  the calls of cairn.h: each validates its arguments, hands
 *             the work over, and waits
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
#include "proto/base/machine.h"
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
    uv_prepare_t rest; /* the last prepare of an iteration, because the newest prepare runs first */
    uv_timer_t tick;
    uv_timer_t soon; /* wakes the loop again while a push waits for its stream */
    /* set before `stopping`: from this time on, the fabric is closed even if memory is on loan */
    uint64_t stop_by_ms;
    atomic_bool stopping;
};

/* Opens the data path and starts the thread. Caller's thread, as for loop_stop. */
cairn_status loop_start(struct session *s) CAIRN_MUST_CHECK;
/* Ends the thread and waits for its end. Operations in progress get a moment to complete. */
void loop_stop(struct session *s);

/* ==== control ==== */

/* The control connection: connect, hello, leases, frames. Loop thread. */

struct control {
    struct stream *stream;  /* NULL: not connected */
    bool hello_sent, ready; /* hello_sent: Hello was sent. ready: Welcome has arrived */
    bool is_choosing;       /* this connection was only for learning the places of shards */
    bool was_given_up;      /* the coordinator is the same as before the connection was lost */
    uint64_t incarnation;   /* the coordinator's incarnation */
    uint64_t store;         /* the identity of the coordinator's store */
    uint32_t last_request;
    uint32_t strange_count; /* the handshakes that failed since the last Welcome */
    uint64_t retry_at_ms;
    uint32_t retry_delay_ms; /* grows as long as connections end soon after they were established */
    uint32_t heartbeat_ms, lease_ms;
    uint64_t heard_ms, spoke_ms, welcome_ms;
    uint64_t reads_reported_ms; /* when job->reads were last reported, for all jobs */
    uint32_t unheard_reported;  /* the number of shards reported as silent on the data path */
};

/* The session's connection state to the coordinator, for waiting callers. Under the lock. */
struct reach {
    bool welcome;
    bool no_path;        /* status and why describe the data path, and will not change */
    cairn_status status; /* the status of the last attempt to connect */
    struct sentence why;
    uint64_t away_since_ms;
};

/* Sends a message without an ask; the loop learns of a failure by the end of the stream. */
void control_send(struct session *s, uint16_t type, uint32_t request,
                  const ProtobufCMessage *message);
void control_send_pages(struct session *s, uint32_t request, enum page_what what,
                        struct packed *packed);
/* Called when memory for a message from the coordinator is lacking; `of` names the message. Drops
 * the connection and connects again: unanswered requests are then repeated, and by then memory may
 * be available. */
void control_starve(struct session *s, const char *of);
/* Returns how many bytes of published memory the job's member has read since it attached to this
 * coordinator. The caller must send the figure: it counts as reported from here on. */
uint64_t control_job_read(struct job *job);

/* ==== datapath ==== */

/* The data path of a session: the fabric, the devices that it is opened on, and the errors for data
 * that never gets through, or that no longer gets through. Loop thread. */

struct shard_link;

struct datapath {
    struct fabric *fabric; /* NULL: the places of the shards are not known yet */
    struct fabric_poll poll;
    uint64_t asked_ms;      /* since when the client asks the coordinator for the places */
    struct fabric_hub *hub; /* borrowed; in tests, the hub of the data path; else NULL */
    /* how the fabric was opened; constant after cairn_open has returned */
    char text[CAIRN_SENTENCE_BYTES];
};

/* Opens the fabric, unless its devices are still to be chosen. */
cairn_status datapath_open(struct session *s, struct sentence *why) CAIRN_MUST_CHECK;
/* Called while no fabric is open: chooses the devices and opens the fabric, or fails. False: no
 * shard is known yet; call this again later. */
bool datapath_choose(struct session *s, const Cairn__Welcome *welcome, struct sentence *why,
                     cairn_status *status_out);
/* Closes the fabric, which returns every loan, including those of a stopped shard. */
void datapath_close(struct session *s);
/* Called at each tick. A shard that was never heard fails the job, with the addresses of both ends.
 * A shard that was heard before is reported as silent if it is awaited now and the coordinator says
 * that it is present; the report stands until the shard is heard again. */
void datapath_judge(struct shard_link *link, uint64_t now_ms);
/* Records that a message of the shard arrived. */
void datapath_heard(struct shard_link *link);

/* ==== detach ==== */

/* Detaching from the memory that shards show this process, and attaching to it again. */

struct detachment {
    /* lock */
    bool is_asked, is_answered;
    bool wants_off; /* true: to detach was requested; false: to attach again */
    cairn_status status;
    struct sentence why;
    /* loop thread */
    bool is_off;
};

/* ==== messages ==== */

/* Messages of the coordinator about a job. Each file that handles some of them has a table of rows;
 * loop.c finds a message's row and job, and calls the row's handler. Loop thread. */

struct message_row {
    uint16_t type; /* enum wire_message; 0 ends the table */
    bool keeps;    /* the handler takes over the message */
    /* Finds the job that waits for the message. NULL: the message names the job by its number. */
    struct job *(*find)(struct session *s, uint32_t request);
    /* CAIRN_ERR_NO_MEMORY: the message had no effect, and must be sent again. */
    cairn_status (*handle)(struct job *job, uint32_t request, ProtobufCMessage *message);
};

extern const struct message_row attach_rows[]; /* attach.c */
extern const struct message_row pushes_rows[]; /* push.c */

/* ==== attach ==== */

/* Attaching to a job, at first and again after every loss of the control connection. Loop thread. */

void attach_begin(struct job *job);
/* Called when a shard refused something of the round (push.c): gives up the round, for all
 * workers. */
void attach_give_up_round(struct job *job);
/* Called when the job is closing: leaves the job, and removes it from the list when the fabric has
 * none of its memory on loan any more. */
void attach_release(struct job *job);
/* Fails the job of a member that the coordinator has put out, or does not let in again. Shards of other
 * hosts give loans back soon, also a shard that is silent: an operation waits for its loans. After other
 * failures, and with shards that share memory with this process, a loan lasts until the shard returns it,
 * because the shard may be reading the caller's memory for a round that is decided. */
void attach_expelled(struct job *job, cairn_status status, const char *text);
/* Returns the status of an Error; the status is never CAIRN_OK. *text_out, the text of the Error,
 * is never empty, since the caller reads it. */
cairn_status attach_error(const Cairn__Error *error, const char **text_out);
/* Called while a thread reads the pages of `job`: waits for the thread, and attaches the job by
 * what the thread read. */
void attach_read(struct job *job);

/* Called in each iteration: releases layouts that no fetch uses any more, and connections to shards
 * that left the job. */
void layouts_trim(struct job *job);

/* ==== link ==== */

/* Connections to the shards of a job, and the messages that arrive on them. Loop thread. */

/* Adds links until there are at least `count`; a link has no address until its shard is heard
 * of. */
cairn_status links_add(struct job *job, uint32_t count) CAIRN_MUST_CHECK;
/* Closes the connections to all shards, or (shared: false) to those alone with which this process shares no
 * memory. Buffers that are on loan to these shards come back soon. */
void links_close(struct job *job, bool shared);
/* Called when all connections are closed, and none of the links' memory is on loan. */
void links_release(struct job *job);
void link_tick(struct shard_link *link, uint64_t now_ms);

/* ==== memory ==== */

/* Memory that cairn_alloc allocated: its loans, and its end. Any thread; not under the lock. */

struct gone;
struct region;

/* Under the lock. */
struct session_memory {
    struct region *regions; /* owned: [count] of capacity, by address */
    size_t count, capacity;
    bool changed; /* the regions changed since the fabric was last told of them */
    /* owned: regions that the caller freed, but that the fabric still knows or a card still maps */
    struct gone *gone;
    bool closed;
};

/* Allocates a new region, of host memory or of a card's. */
cairn_status memory_allocate(struct session *s, size_t bytes, struct card *card,
                             void **out) CAIRN_MUST_CHECK;
/* CAIRN_ERR_INVALID: ptr is not a region; CAIRN_ERR_BUSY: the region is on loan. */
cairn_status memory_free(struct session *s, const void *ptr) CAIRN_MUST_CHECK;

/* Allocates memory of a card that is neither shown nor lent to anyone; NULL: not available. Not for
 * the loop thread. */
struct gone *memory_apart(struct card *card, size_t bytes);
void *memory_apart_at(const struct gone *apart);
/* Under the lock: leaves the memory to be freed in an iteration of the loop thread in which no
 * stream waits. */
void memory_leave(struct session *s, struct gone *apart);
/* Waits, for at most a second, until the regions left by memory_leave are freed. Not under the
 * lock; on a caller's thread. False: no region was left. */
bool memory_await_left(struct session *s);

/* If the `bytes` at ptr are in a region, lends the region until memory_return(*base_out); otherwise
 * *base_out is NULL. CAIRN_ERR_INVALID: the bytes extend beyond the region's end, or the region
 * does not belong to that card (NULL: the host). */
cairn_status memory_lend(struct session *s, const void *ptr, size_t bytes, const struct card *card,
                         const void **base_out) CAIRN_MUST_CHECK;
void memory_return(struct session *s, const void *base); /* NULL is fine */
/* Loop thread: returns true if the fabric knows the region: data of the region is then sent by
 * reference. */
bool memory_is_shown(struct session *s, const void *base);

/* Under the lock: returns the bytes of all regions of host memory. */
size_t memory_host_bytes(const struct session *s);
/* Loop thread: tells the fabric of new regions, so that pushes from these regions are read in
 * place, and of freed regions. */
void memory_show(struct session *s);
/* Called when the session is closed: frees the regions that are not on loan; the others are freed
 * when their last loan ends. */
void memory_close_session(struct session *s);
/* Called when the session is freed. */
void memory_release(struct session *s);

/* ==== streams ==== */

/* Streams of cards that wait for operations, and a watching thread, which releases streams that
 * have waited too long. A stream that hangs blocks the card, and may also block the loop thread in
 * a driver call. So the watching thread makes no driver call, and takes no lock that is held during
 * a driver call. */

/* The longest that a stream waits for an operation. */
#define CAIRN_STREAMS_WAIT_MS 60000

struct stream_waits {
    /* taken after the session's lock; guards the fields below, and the fields that op.h names */
    pthread_mutex_t lock;
    pthread_cond_t changed;
    LIST_HEAD(, op) ops; /* operations that streams wait for */
    /* when the session ends, and with it all waits of streams; 0: the session is not ending */
    uint64_t close_ms;
    bool is_running, is_over;
    pthread_t thread; /* exists from the first wait on */
};

/* ==== session ==== */

struct card_imports;
struct published;

/* The run, as the launcher names it. */
struct launch {
    uint64_t run;      /* a hash of the launcher's run id; 0: not known */
    uint32_t restarts; /* how often the run was restarted */
};

/* Whom a call tells that it waits. */
struct wait_call {
    cairn_wait_fn call; /* NULL: a line on stderr */
    void *context;
};

/* Operations that are over, for reuse (op.c). */
struct spare_ops {
    SLIST_HEAD(, op) ops;
    uint32_t count;
};

/* One wake-up for all operations that end within 100 us of one iteration of the loop. */
struct wake {
    /* is_due: to be done at the iteration's end. tells: to be done through the event descriptor, too */
    bool is_due, tells;
    uint64_t last_us;
};

/* Memory for chunks on their way from and to cards (parcel.c). */
struct session_staging {
    struct staging_area *areas; /* owned */
    /* until this time no area is made on a card, because a card's memory could not be shown */
    uint64_t on_host_ms;
};

struct session {
    pthread_mutex_t lock;
    pthread_cond_t changed; /* CLOCK_MONOTONIC */
    struct session_loop loop;
    void *handle;
    int event_fd;

    /* constant from open on */
    struct endpoints endpoints;
    struct stream_address endpoint;                 /* the one of them that was tried last */
    char endpoint_text[CAIRN_ENDPOINTS_TEXT_BYTES]; /* all of them */
    char *name;
    char *token_file; /* as cairn_opts gives it; NULL: not given */
    uint64_t incarnation;
    struct env_report env; /* the settings of the cluster */
    struct launch launch;
    uint32_t prefetch_units;
    uint32_t connect_ms; /* the longest time that cairn_open takes */
    struct wait_call on_wait;

    /* lock */
    uint32_t refs; /* the handle, jobs */
    bool cancels;  /* an operation that may be in progress was canceled */
    struct spare_ops spare;
    /* the loop accepts nothing more: asks and commands fail, and the loop thread is no longer
     * woken */
    bool ended;
    LIST_HEAD(, ask) asks;
    struct command_queue commands;
    struct job *jobs; /* changed by the loop thread only */
    /* copies that shards of this host published (read.h); changed by the loop thread only */
    struct published *published;
    struct wake wake;
    struct reach reach;
    struct session_memory memory;
    struct detachment detachment;

    struct stream_waits streams; /* has a lock of its own */

    /* loop thread */
    struct entrance entrance; /* found by cairn_open, before the thread begins */
    struct control control;
    struct datapath path;
    struct session_staging staging;
    /* owned: the imports for cairn_opts.device; NULL: no device was given */
    struct card_imports *imports;
};

/* Begins a call of a session: declares `s`, looked up by the handle and held until the function
 * returns. The function fails if the handle is not valid. */
#define API_SESSION(s, handle)                                                                   \
    __attribute__((cleanup(session_leave))) struct session *s = handle_get(CAIRN_HANDLE_SESSION, \
                                                                           handle);              \
    if (s == NULL) return handle_fail(handle, "session")
void session_leave(struct session **s);

/* Wakes the loop thread to look at asks and commands. Any thread. */
void session_kick(struct session *s);
/* Writes to stderr that something is slower than it could be, unless the trainer has an on_wait. */
void session_say(const struct session *s, const char *what);
/* Tells the trainer, in its own thread, what it should know of the job, as a call that waits does. */
void session_tell(const struct session *s, const char *job, const char *text);
/* Loop thread: wakes the threads whose wake-up is due. */
void session_wake_due(struct session *s);
/* Sleeps on `changed` until the deadline; false when it has passed. Under the lock. */
bool session_sleep(struct session *s, uint64_t deadline_ms);
/* Appends a command, which the loop thread frees. If the session has ended, the command ends at
 * once. Any thread. */
void session_command(struct session *s, struct command *command);

#endif
