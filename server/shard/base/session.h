/* The session with the coordinator, and what is said in it. connection.c makes sessions, one after the other.
 * Loop thread. Sends are dropped while there is none. */
#ifndef CAIRN_SHARD_BASE_SESSION_H
#define CAIRN_SHARD_BASE_SESSION_H

#include <uv.h>

#include "proto/loop/stream.h"
#include "proto/wire/messages.h"
#include "server/base/log.h"
#include "server/core/standing.h"

struct cairn_shard;

/* A request of the coordinator that is answered later, on the session it came by. */
struct cairn_request {
    uint64_t session; /* session.serial; 0: none waits */
    uint32_t number;
};

/* It comes and goes, and the state stays. */
struct cairn_session {
    struct cairn_address address;
    struct cairn_stream *stream; /* borrowed of itself; NULL: none */
    uint64_t serial;             /* counts connections, from 1 */
    bool welcome;
    bool served_before; /* on_ready was called */
    uv_timer_t timer;   /* next try, or next heartbeat */
    uint32_t heartbeat_ms, lease_ms;
    uint32_t backoff_ms;
    uint64_t heard_ms;    /* uv_now of the last frame */
    uint64_t roll_due_ms; /* when members not told of in this session are forgotten; 0: done */
    struct cairn_coordinator_id coordinator; /* whose Welcome came */
    enum cairn_standing standing;            /* of it to what we hold: we obey it, or not */
    struct cairn_log_limit down;
};

void cairn_session_send(struct cairn_shard *shard, uint16_t type, uint32_t request,
                        const ProtobufCMessage *message);
void cairn_session_send_pages(struct cairn_shard *shard, uint32_t request,
                              enum cairn_page_what what, struct cairn_packed *packed);
/* Ends the connection with a reason told to the coordinator; a new one is tried. */
void cairn_session_refuse(struct cairn_shard *shard, cairn_status status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* Answers a request if its session is still there, and forgets it. CAIRN_OK is Done. */
void cairn_session_answer(struct cairn_shard *shard, struct cairn_request *request,
                          cairn_status status, const struct cairn_sentence *why);
struct cairn_request cairn_session_request(const struct cairn_shard *shard, uint32_t number);

#endif
