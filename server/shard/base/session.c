/* Sends messages to the coordinator. */
#include <stdarg.h>
#include <stdio.h>

#include "server/shard/shard.h"

/* A message that is left out would break the order that the coordinator relies on. */
static void judge_sent(struct cairn_session *session, cairn_status status, uint16_t type,
                       const struct cairn_sentence *why)
{
    if (status == CAIRN_OK || status == CAIRN_ERR_CLOSED) return;
    cairn_log_error("cannot send %s to the coordinator: %s", cairn_message_name(type), why->text);
    cairn_stream_close(session->stream, status, "%s", why->text);
}

void cairn_session_send(struct cairn_shard *shard, uint16_t type, uint32_t request,
                        const ProtobufCMessage *message)
{
    struct cairn_session *session = &shard->session;
    if (session->stream == NULL || (!session->welcome && type != CAIRN_MSG_HELLO)) return;
    struct cairn_sentence why;
    cairn_status status = cairn_stream_send(session->stream, type, request, message, &why);
    judge_sent(session, status, type, &why);
}

void cairn_session_send_pages(struct cairn_shard *shard, uint32_t request,
                              enum cairn_page_what what, struct cairn_packed *packed)
{
    struct cairn_session *session = &shard->session;
    if (session->stream == NULL || !session->welcome) return;
    struct cairn_sentence why;
    cairn_status status = cairn_stream_send_pages(session->stream, request, what, packed, &why);
    judge_sent(session, status, CAIRN_MSG_PAGE, &why);
}

void cairn_session_refuse(struct cairn_shard *shard, cairn_status status, const char *format, ...)
{
    struct cairn_session *session = &shard->session;
    if (session->stream == NULL) return;
    char text[CAIRN_SENTENCE_BYTES];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    cairn_log_error("closing the connection to the coordinator: %s", text);

    Cairn__Error error = CAIRN__ERROR__INIT;
    error.status = (int32_t)status;
    error.text = text;
    cairn_session_send(shard, CAIRN_MSG_ERROR, 0, &error.base);
    cairn_stream_finish(session->stream, status, "%s", text);
}

struct cairn_request cairn_session_request(const struct cairn_shard *shard, uint32_t number)
{
    return (struct cairn_request) { .session = shard->session.serial, .number = number };
}

void cairn_session_answer(struct cairn_shard *shard, struct cairn_request *request,
                          cairn_status status, const struct cairn_sentence *why)
{
    struct cairn_request answered = *request;
    *request = (struct cairn_request) { 0 };
    if (answered.session != shard->session.serial) return; // nobody waits, or on a lost session
    if (status == CAIRN_OK) {
        Cairn__Done done = CAIRN__DONE__INIT;
        cairn_session_send(shard, CAIRN_MSG_DONE, answered.number, &done.base);
        return;
    }
    Cairn__Error error = CAIRN__ERROR__INIT;
    error.status = (int32_t)status;
    error.text = (char *)(why != NULL ? why->text : cairn_status_text((int)status));
    cairn_session_send(shard, CAIRN_MSG_ERROR, answered.number, &error.base);
}
