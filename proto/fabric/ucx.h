/* The inside of the ucx fabric, shared by ucx.c, ucx_settings.c and ucx_message.c. No other file may
 * include a header of UCX. */
#ifndef CAIRN_FABRIC_UCX_H
#define CAIRN_FABRIC_UCX_H

#include <ucp/api/ucp.h>

#include "proto/fabric/backend.h"

/* What became of the message that on_message is being shown right now. UCX wants to hear it as the
 * handler's return value, not by a call. */
enum ucx_fate {
    FATE_HELD,     /* nothing yet: UCX keeps it */
    FATE_TAKEN,    /* an eager payload was copied, or either kind dropped: UCX frees it */
    FATE_RECEIVING /* a rendezvous receive is under way: UCX keeps it until that is over */
};

struct ucx_fabric {
    struct cairn_fabric common;
    ucp_context_h context;
    ucp_worker_h worker;
    struct ucx_message *shown; /* inside on_message; else NULL */
    enum ucx_fate fate;
};

struct ucx_peer {
    struct cairn_fabric_peer common;
    ucp_ep_h ep;
};

struct ucx_message {
    struct cairn_fabric_message common;
    void *data; /* UCX's: the payload (eager) or a descriptor (rendezvous) */
    bool is_rendezvous;
};

static inline struct ucx_fabric *ucx_of(struct cairn_fabric *fabric)
{
    return (struct ucx_fabric *)fabric;
}

/* A foreign code becomes ours at the door. */
cairn_status ucx_status(ucs_status_t status);

/* ucx_settings.c: one context with our settings, whatever the environment says. */
CAIRN_MUST_CHECK cairn_status ucx_context_open(const struct cairn_fabric_options *options,
                                               ucp_context_h *context_out,
                                               struct cairn_sentence *why);
void ucx_describe(struct cairn_fabric *fabric, const struct cairn_fabric_options *options);

/* ucx_message.c */
ucs_status_t ucx_listen(struct ucx_fabric *ucx);
cairn_status ucx_send(struct cairn_fabric_peer *peer, struct fabric_op *op, const void *payload);
void ucx_receive(struct cairn_fabric_message *message, struct fabric_op *op, void *buffer);
void ucx_drop(struct cairn_fabric_message *message);

#endif
