/* Asks: control requests of the caller's threads. The loop thread sends them and brings the replies
 * (client/loop/turn.c). */
#ifndef CAIRN_CLIENT_ASK_H
#define CAIRN_CLIENT_ASK_H

#include "proto/wire/messages.h"

struct job;

/* In its thread's stack; under the lock. */
struct ask {
    struct ask *next;
    struct job *job;
    uint16_t type;             /* enum cairn_message */
    ProtobufCMessage *message; /* the thread's; the job's number in it is set when it is sent */
    uint32_t request;          /* 0: not sent on this connection */
    bool done;
    cairn_status status;
    struct cairn_sentence why;
    uint16_t reply_type;
    ProtobufCMessage *reply; /* the thread frees it with cairn_message_free */
};

/* Sends the request, waits for its reply of `reply_type` (*reply_out, freed by the caller; NULL: nobody wants
 * it) or its failure. Sets this thread's sentence. */
cairn_status cairn_ask(struct job *job, uint16_t type, ProtobufCMessage *message,
                       uint16_t reply_type, uint64_t deadline_ms,
                       ProtobufCMessage **reply_out) CAIRN_MUST_CHECK;
/* For whom cairn_job_open waits, as its error says it. */
struct cairn_sentence cairn_ask_opening_awaits(struct job *job);
/* For whom a request of `type` waits; NULL: the coordinator does not say. Freed by the caller. */
Cairn__Awaited *cairn_ask_awaited(struct job *job, uint16_t type);

#endif
