/* The loop thread of a session. */
#ifndef CAIRN_CLIENT_LOOP_H
#define CAIRN_CLIENT_LOOP_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <uv.h>

#include "proto/base/status.h"
#include "proto/base/text.h"
#include "proto/loop/fabric_poll.h"
#include "proto/loop/stream.h"
#include "proto/wire/messages.h"

struct session;

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

struct job;

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
/* An Error: of tiles or a pause that were told again it is an error of the job. False: it is of neither. */
bool again_on_error(struct session *s, uint32_t request, cairn_status status, const char *text);

/* A shard refused something of the round (push.c): it is given up, for all. */
void again_give_up(struct job *job);

/* ==== attach ==== */

/* Attaching to a job, and again after every loss of the control connection. Loop thread. */

struct command;

/* The command by which a job is put into the session's list: its reference becomes the list's. */
bool attach_list_run(struct command *command);

void attach_begin(struct job *job);
/* The job is closing: leaves it, and takes it out of the list once the fabric has nothing of it on loan. */
void attach_release(struct job *job);
void attach_on_attached(struct job *job, Cairn__Attached *attached); /* takes it */
void attach_on_page(struct job *job, const Cairn__Page *page);
/* Waits for the thread that reads the pages of `job`, and attaches the job by what it read. */
void attach_read(struct job *job);
/* The Error lists differences: they are kept for the thread that opens the job. To be called before
 * attach_on_error. */
void attach_differ(struct job *job, const Cairn__Error *error);
void attach_on_error(struct job *job, cairn_status status, const char *text);

/* ==== layouts ==== */

/* Which layouts a job has, and where its shards are: what Attached, LayoutChanged and ShardsChanged say of
 * that. Loop thread. */

struct reading;

/* Applies the message, which is the function's to free. The job fails if the message does not fit it. */
void layouts_on_changed(struct job *job, Cairn__LayoutChanged *message);
/* A page of the LayoutChanged before it; of no request. */
void layouts_on_page(struct job *job, const Cairn__Page *page);
void layouts_on_shards(struct job *job, const Cairn__ShardsChanged *message);

/* Each turn: layouts by which nothing is fetched any more go, and connections to shards that left the job. */
void layouts_trim(struct job *job);

/* ==== link ==== */

/* Connections to the shards of a job, and what comes over them. Loop thread. */

struct fabric_message;

/* There are so many, at least: those of shards that were not heard of have no address yet. */
cairn_status links_add(struct job *job, uint32_t count) CAIRN_MUST_CHECK;
void links_release(struct job *job); /* nothing of them is on loan */
void link_tick(struct shard_link *link, uint64_t now_ms);

#endif
