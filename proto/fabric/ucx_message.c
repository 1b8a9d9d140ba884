/* Messages over UCX active messages: one id, eager for small payloads, rendezvous for the rest.
 *
 * UCX behaves so (1.13.1, measured): a receive into too small a buffer aborts the process, so
 * fabric.c compares first. An unread descriptor that is released completes its sender with OK. A
 * message that is held costs us pool memory (eager) or pins the sender's buffer (rendezvous). */
#include "proto/fabric/ucx.h"

#include <assert.h>
#include <string.h>

enum { MESSAGE_ID = 7 }; /* the only id in use; all Cairn nodes agree on it */

/* -- sending ------------------------------------------------------------------------------------ */

static void end(struct fabric_op *op, ucs_status_t status)
{
    ucx_card_release(ucx_of(op->fabric), op->held);
    op->held = NULL;
    fabric_op_done(op, ucx_status(status));
}

static void on_ucx_sent(void *request, ucs_status_t status, void *arg)
{
    end(arg, status);
    ucp_request_free(request);
}

cairn_status ucx_send_whole(struct ucx_link *link, struct fabric_op *op, const void *payload)
{
    struct ucx_card *card = op->is_device ? ucx_card_hold(link->ucx, op, payload) : NULL;
    ucp_request_param_t param = {
        .op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA |
                        UCP_OP_ATTR_FIELD_FLAGS | UCP_OP_ATTR_FIELD_MEMORY_TYPE,
        // tells the receiver by which of its ends, which it may have to close
        .flags = op->header_bytes + op->payload_bytes < UCX_RENDEZVOUS_MIN ? 0
                                                                           : UCP_AM_SEND_FLAG_REPLY,
        .cb.send = on_ucx_sent,
        .memory_type = ucx_memory_of(op), // else a UCX that has CUDA asks the driver about each
        .user_data = op,
    };
    ucx_card_name(card, &param);
    if (link->has_listener && !link->has_said_port) ucx_say_port(link);
    ucs_status_ptr_t request = ucp_am_send_nbx(link->ep, MESSAGE_ID, op->header, op->header_bytes,
                                               payload, op->payload_bytes, &param);
    if (UCS_PTR_IS_ERR(request)) {
        ucx_card_release(link->ucx, card);
        return ucx_status(UCS_PTR_STATUS(request));
    }
    op->held = card;
    op->by = link->ep;
    if (request == NULL) end(op, UCS_OK); // sent at once: UCX calls nothing
    return CAIRN_OK;
}

cairn_status ucx_send(struct cairn_fabric_peer *common, struct fabric_op *op, const void *payload)
{
    struct ucx_link *link = ucx_peer_of(common)->link;
    cairn_status status = CAIRN_ERR_UNSUPPORTED;
    op->to = common;
    if (!op->is_device && ucx_may_refer(link, op->payload_bytes))
        status = ucx_refer(link, op, payload);
    if (status != CAIRN_ERR_UNSUPPORTED) return status;
    return !op->is_device && ucx_bundle_add(link, op, payload) ? CAIRN_OK
                                                               : ucx_send_whole(link, op, payload);
}

/* -- receiving ---------------------------------------------------------------------------------- */

static void on_ucx_received(void *request, ucs_status_t status, size_t length, void *arg)
{
    struct fabric_op *op = arg;
    assert(status != UCS_OK || length == op->payload_bytes);
    end(op, status);
    ucp_request_free(request);
}

static void start_rendezvous(struct ucx_fabric *ucx, void *descriptor, struct fabric_op *op,
                             void *buffer)
{
    struct ucx_card *card = op->is_device ? ucx_card_hold(ucx, op, buffer) : NULL;
    ucp_request_param_t param = {
        .op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA |
                        UCP_OP_ATTR_FIELD_MEMORY_TYPE,
        .cb.recv_am = on_ucx_received,
        .memory_type = ucx_memory_of(op),
        .user_data = op,
    };
    ucx_card_name(card, &param);
    op->held = card;
    ucs_status_ptr_t request = ucp_am_recv_data_nbx(ucx->worker, descriptor, buffer,
                                                    op->payload_bytes, &param);
    if (!UCS_PTR_IS_PTR(request)) end(op, UCS_PTR_STATUS(request)); // UCX calls nothing
}

static void let_go(struct ucx_fabric *ucx, const struct ucx_message *message)
{
    if (message->bundle != NULL)
        ucx_bundle_let_go(ucx, message->bundle);
    else
        ucp_am_data_release(ucx->worker, message->data);
}

void ucx_receive(struct cairn_fabric_message *common, struct fabric_op *op, void *buffer)
{
    struct ucx_message *message = (struct ucx_message *)common;
    struct ucx_fabric *ucx = ucx_of(common->fabric);
    bool is_shown = message == ucx->shown;
    if (message->region != NULL) {
        ucx_read_receive(message, op, buffer);
        return;
    }
    if (message->is_rendezvous) {
        if (is_shown) ucx->fate = FATE_RECEIVING;
        op->by = message->ep; // of either receive, before it flies: close_receives looks for it
        if (!ucx_far_receive(ucx, message->data, op, buffer))
            start_rendezvous(ucx, message->data, op, buffer);
        return;
    }
    memcpy(buffer, message->data, common->payload_bytes);
    fabric_op_done(op, CAIRN_OK);
    if (is_shown)
        ucx->fate = FATE_TAKEN;
    else
        let_go(ucx, message);
}

bool ucx_lands(const struct cairn_fabric_message *common)
{
    const struct ucx_message *message = (const struct ucx_message *)common;
    return message->region == NULL && message->is_rendezvous;
}

void ucx_drop(struct cairn_fabric_message *common)
{
    struct ucx_message *message = (struct ucx_message *)common;
    struct ucx_fabric *ucx = ucx_of(common->fabric);
    if (message->region != NULL)
        ucx_read_drop(message);
    else if (message == ucx->shown)
        ucx->fate = FATE_TAKEN;
    else
        let_go(ucx, message);
}

enum ucx_fate ucx_show(struct ucx_fabric *ucx, const void *header, size_t header_bytes,
                       size_t payload_bytes, struct ucx_message *message)
{
    ucx->shown = message;
    ucx->fate = message != NULL ? FATE_HELD : FATE_TAKEN;
    fabric_offer(&ucx->common, header, header_bytes, payload_bytes,
                 message != NULL ? &message->common : NULL); // it may be freed after this
    ucx->shown = NULL;
    return ucx->fate;
}

/* UCS_OK: UCX may free `data` (and tells a rendezvous sender so). UCS_INPROGRESS: it is kept for us. */
static ucs_status_t on_ucx_message(void *arg, const void *header, size_t header_bytes, void *data,
                                   size_t payload_bytes, const ucp_am_recv_param_t *param)
{
    struct ucx_fabric *ucx = arg;
    bool is_rendezvous = (param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV) != 0;
    if (!fabric_judge(&ucx->common, header_bytes, payload_bytes)) return UCS_OK;
    if (payload_bytes == 0) {
        fabric_offer(&ucx->common, header, header_bytes, 0, NULL);
        return UCS_OK;
    }
    assert(is_rendezvous || (param->recv_attr & UCP_AM_RECV_ATTR_FLAG_DATA) != 0);
    struct ucx_message *message = (struct ucx_message *)fabric_message_new(&ucx->common,
                                                                           payload_bytes);
    if (message == NULL) return UCS_OK;
    message->data = data;
    message->is_rendezvous = is_rendezvous;
    message->ep = (param->recv_attr & UCP_AM_RECV_ATTR_FIELD_REPLY_EP) != 0 ? param->reply_ep
                                                                            : NULL;
    const enum ucx_fate fate = ucx_show(ucx, header, header_bytes, payload_bytes, message);
    return fate == FATE_TAKEN ? UCS_OK : UCS_INPROGRESS;
}

ucs_status_t ucx_listen_to(struct ucx_fabric *ucx, unsigned id, uint32_t flags,
                           ucp_am_recv_callback_t on_message)
{
    const ucp_am_handler_param_t param = {
        .field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_FLAGS |
                      UCP_AM_HANDLER_PARAM_FIELD_CB | UCP_AM_HANDLER_PARAM_FIELD_ARG,
        .id = id,
        .flags = flags,
        .cb = on_message,
        .arg = ucx,
    };
    return ucp_worker_set_am_recv_handler(ucx->worker, &param);
}

/* WHOLE_MSG: called once a message is complete. PERSISTENT_DATA: an eager payload can be held. */
ucs_status_t ucx_listen(struct ucx_fabric *ucx)
{
    return ucx_listen_to(ucx, MESSAGE_ID, UCP_AM_FLAG_WHOLE_MSG | UCP_AM_FLAG_PERSISTENT_DATA,
                         on_ucx_message);
}
