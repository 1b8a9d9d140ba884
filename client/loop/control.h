/* The control connection: connect, hello, leases, frames. Loop thread. */
#ifndef CAIRN_CLIENT_LOOP_CONTROL_H
#define CAIRN_CLIENT_LOOP_CONTROL_H

#include "proto/loop/stream.h"
#include "proto/wire/messages.h"

struct job;
struct session;

struct control {
    struct cairn_stream *stream; /* NULL: not connected */
    bool hello_sent, ready;      /* ready: Welcome came */
    bool is_choosing;            /* this connection was for the shards' places only */
    bool was_given_up;    /* the coordinator that lost the connection is the one that is back */
    uint64_t incarnation; /* of the coordinator */
    uint64_t store;       /* the identity of its store */
    uint32_t last_request;
    uint64_t retry_at_ms;
    uint32_t retry_delay_ms; /* grows while connections end as soon as they stand */
    uint32_t heartbeat_ms, lease_ms;
    uint64_t heard_ms, spoke_ms, welcome_ms;
    uint64_t reads_told_ms; /* when job->reads were told, of all jobs */
    uint32_t unheard_told;  /* shards that were told to say nothing over the data path */
};

/* How the session stands with the coordinator, for who waits. Under the lock. */
struct reach {
    bool welcome;
    bool no_path;        /* status and why are of the data path, and last */
    cairn_status status; /* of the last attempt */
    struct cairn_sentence why;
    uint64_t away_since_ms;
};

void cairn_control_tick(struct session *s); /* connect, heartbeat, lease */
/* Sends without an ask; a failure shows as the stream's end. */
void cairn_control_send(struct session *s, uint16_t type, uint32_t request,
                        const ProtobufCMessage *message);
void cairn_control_send_pages(struct session *s, uint32_t request, enum cairn_page_what what,
                              struct cairn_packed *packed);
/* There is no memory for what the coordinator sent (`of`: a message). Drops the connection and
 * connects again: unanswered requests are then repeated, and by then there may be memory. */
void cairn_control_starve(struct session *s, const char *of);
/* How many bytes of published memory the job's member has read since it attached to this
 * coordinator. The caller has to send the figure: it counts as told from here on. */
uint64_t cairn_control_job_read(struct job *job);

#endif
