/* Sends messages to a session: see session.h. */
#include "server/base/listener.h"
#include "server/coordinator/base/session.h"

/* Closes the peer, because a message left out would break the order that it relies on. on_gone
 * follows. */
static void give_up(struct cairn_cluster_session *session, cairn_status status, const char *what)
{
    session->closing = true;
    cairn_peer_close(session->peer, status, "cannot send %s to %s: %s", what, session->name,
                     cairn_status_text((int)status));
}

void cairn_cluster_session_send(struct cairn_cluster_session *session, uint16_t type,
                                uint32_t request, const ProtobufCMessage *message)
{
    if (session == NULL || session->closing) return;
    const cairn_status status = cairn_peer_send(session->peer, type, request, message);
    if (status == CAIRN_OK && request != 0 && session->unanswered > 0) session->unanswered--;
    if (status == CAIRN_OK) return;
    if (status == CAIRN_ERR_INVALID && request != 0 && type != CAIRN_MSG_ERROR) {
        cairn_cluster_session_error(session, request, CAIRN_ERR_UNSUPPORTED,
                                    "the answer is larger than a frame may be (1 MiB): ask for "
                                    "less, one job or one snapshot");
        return;
    }
    give_up(session, status, cairn_message_name(type));
}

void cairn_cluster_session_error(struct cairn_cluster_session *session, uint32_t request,
                                 cairn_status status, const char *text)
{
    Cairn__Error error = CAIRN__ERROR__INIT;
    error.status = (int32_t)status;
    error.text = (char *)(uintptr_t)text;
    cairn_cluster_session_send(session, CAIRN_MSG_ERROR, request, &error.base);
}

void cairn_cluster_session_expelled(struct cairn_cluster_session *session, uint64_t job,
                                    cairn_status status, const char *text)
{
    Cairn__Error error = CAIRN__ERROR__INIT;
    error.status = (int32_t)status;
    error.text = (char *)(uintptr_t)text;
    error.job = job;
    cairn_cluster_session_send(session, CAIRN_MSG_ERROR, 0, &error.base);
}

void cairn_cluster_session_done(struct cairn_cluster_session *session, uint32_t request)
{
    const Cairn__Done done = CAIRN__DONE__INIT;
    cairn_cluster_session_send(session, CAIRN_MSG_DONE, request, &done.base);
}

void cairn_cluster_session_pages(struct cairn_cluster_session *session, uint32_t request,
                                 enum cairn_page_what what, struct cairn_packed *packed)
{
    if (session == NULL || session->closing) return;
    const cairn_status status = cairn_peer_send_pages(session->peer, request, what, packed);
    if (status != CAIRN_OK) give_up(session, status, "pages");
}
