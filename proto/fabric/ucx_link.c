/* Links: one connection of UCX for each node that we speak to, whatever jobs and purposes share it.
 *
 * A cairn_fabric_peer is a handle on a link. The first handle to an address makes the link, and
 * every later one shares it, also when the former ones are closed: a link lives as long as its
 * node. Closing an endpoint of UCX to a node that lives on does harm: the node's own endpoint to
 * us, which UCX pairs with it, sends into nothing from then on, and nobody tells the node before
 * UCX's next keepalive round (20 s). Training used to stop whenever a re-sharding closed
 * connections of its own.
 *
 * A link ends with its node, which UCX tells us, or because we end it: somebody who has closed a
 * handle waits for memory that the node does not give back. Then we shut the TCP connection down.
 * UCX on both ends takes that for the death of the other one, which it handles well, and new links
 * are made. UCX 1.13 does not survive the closing of an endpoint instead, while data waits to be
 * sent: it says goodbye on the connection, waits for that in a busy loop, and uses the connection
 * after it has freed it when the other end says goodbye as well (SIGSEGV in
 * uct_tcp_iface_progress).
 *
 * The two endpoints of a pair share the TCP connection that either of them has made. The node that
 * made it knows the socket, and says its port to the other one (PORT). Where we know none, we ask
 * the node to shut it (BYE). */
#include <assert.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include "proto/fabric/ucx.h"

enum {
    SEND_GRACE_MS = 500,    /* after its handle was closed a send may wait for its receiver */
    RECEIVE_GRACE_MS = 700, /* and a receive for a sender of which a handle was closed */
    PROOF_MS = 1500, /* behind PORT, on the same connection: the node may still be connecting */
    SHUT_MS = 200,   /* in which UCX notices that a socket was shut down here */
    BYE_MS =
        6000 /* or by the peer; more than UCX_UNACKED_MS: what is closed then has nothing to send */
};

/* ---- time ---- */

/* Wakes the loop at that time, by a descriptor among those of UCX. */
static void plan(struct ucx_fabric *ucx, uint64_t at_ms)
{
    if (ucx->due_ms != 0 && ucx->due_ms <= at_ms) return;
    ucx->due_ms = at_ms;
    const struct itimerspec when = { .it_value = { .tv_sec = (time_t)(at_ms / 1000),
                                                   .tv_nsec = (long)(at_ms % 1000) * 1000000 } };
    if (ucx->timer_fd >= 0) timerfd_settime(ucx->timer_fd, TFD_TIMER_ABSTIME, &when, NULL);
}

bool ucx_links_open(struct ucx_fabric *ucx)
{
    struct epoll_event event = { .events = EPOLLIN };
    ucx->timer_fd = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC);
    return ucx->timer_fd >= 0 &&
           epoll_ctl(ucx->common.event_fd, EPOLL_CTL_ADD, ucx->timer_fd, &event) == 0;
}

/* ---- what nodes say ---- */

struct ucx_heard *ucx_hear(struct ucx_fabric *ucx, uint64_t node)
{
    struct ucx_heard *heard = &ucx->heard[node % UCX_HEARD];
    if (heard->node != node) *heard = (struct ucx_heard) { .node = node };
    return heard;
}

/* Shuts down every connection between that node and us, whoever made it. `link`: NULL, if there is none; an
 * endpoint that UCX made to answer the node by may have a connection of its own all the same. */
static bool shut_node(struct ucx_fabric *ucx, uint64_t node, const struct ucx_link *link)
{
    const struct ucx_heard *heard = ucx_hear(ucx, node);
    const struct sockaddr_storage *listener = link != NULL ? &link->listener : &heard->listener;
    return ucx_socket_shut(ucx, listener->ss_family != AF_UNSPEC ? listener : NULL, heard->port);
}

/* ---- making one ---- */

static struct ucx_link *find_living(struct ucx_fabric *ucx, uint64_t node)
{
    struct ucx_link *link;
    LIST_FOREACH (link, &ucx->links[node % UCX_NODES], entry)
        if (link->node == node && !link->is_lost) return link;
    return NULL;
}

struct ucx_link *ucx_link_find(struct ucx_fabric *ucx, uint64_t node)
{
    struct ucx_link *link = find_living(ucx, node);
    return link != NULL && link->end_by_ms == 0 ? link : NULL;
}

void ucx_link_lose(struct ucx_link *link, cairn_status why)
{
    struct ucx_peer *handle;
    if (link->is_lost) return;
    link->is_lost = true;
    link->ucx->has_lost = true;
    LIST_FOREACH (handle, &link->handles, of_link) fabric_peer_lost(&handle->common, why);
}

static void on_ucx_down(void *arg, ucp_ep_h ep, ucs_status_t status)
{
    struct ucx_link *link = arg;
    (void)ep;
    const cairn_status why = ucx_status(status);
    link->is_down = true;
    ucx_link_lose(link, why == CAIRN_ERR_UNREACHABLE ? why : CAIRN_ERR_CLOSED);
}

static cairn_status connect_link(struct ucx_link *link, const void *address, size_t bytes)
{
    const ucp_ep_params_t params = {
        .field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE |
                      UCP_EP_PARAM_FIELD_ERR_HANDLER,
        .address =
            address, // UCX believes the lengths inside; the envelope's checksum stands for them
        .err_mode = UCP_ERR_HANDLING_MODE_PEER,
        .err_handler = { .cb = on_ucx_down, .arg = link },
    };
    struct ucx_fabric *ucx = link->ucx;
    const cairn_status reached = ucx_reach(ucx, address, bytes);
    if (reached != CAIRN_OK) return reached;
    const uint64_t begin_ms = ucx_now_ms();
    const int socket = ucx_socket_next();
    const ucs_status_t status = ucp_ep_create(ucx->worker, &params, &link->ep);
    if (status != UCS_OK) {
        ucx_blocked(ucx, address, bytes, ucx_now_ms() - begin_ms);
        return ucx_status(status);
    }
    link->has_listener = ucx_find_listener(address, bytes, &link->listener);
    if (!link->has_listener) return CAIRN_OK;
    ucx_hear(ucx, link->node)->listener = link->listener;
    link->made = ucx_socket_made(socket, &link->listener, ucx->unacked_ms);
    return CAIRN_OK;
}

/* A link that is ending makes room: what UCX will say of it is known. */
static cairn_status open_link(struct ucx_fabric *ucx, const void *address, size_t bytes,
                              struct ucx_link **out)
{
    const uint64_t node = fabric_hash(address, bytes);
    struct ucx_link *ending = find_living(ucx, node);
    if (ending != NULL) ucx_link_lose(ending, CAIRN_ERR_CLOSED);
    struct ucx_link *link = calloc(1, sizeof *link);
    if (link == NULL) return CAIRN_ERR_NO_MEMORY;
    link->ucx = ucx;
    link->node = node;
    LIST_INIT(&link->handles);
    const cairn_status status = connect_link(link, address, bytes);
    if (status != CAIRN_OK) {
        free(link);
        return status;
    }
    LIST_INSERT_HEAD(&ucx->links[node % UCX_NODES], link, entry);
    ucx->common.stats.endpoints_made++;
    ucx->common.stats.endpoints_now++;
    ucx_meet(link);
    if (ucx_hear(ucx, node)->proof_by_ms != 0) plan(ucx, ucx_hear(ucx, node)->proof_by_ms);
    *out = link;
    return CAIRN_OK;
}

cairn_status ucx_connect(struct cairn_fabric_peer *peer, const void *address, size_t bytes)
{
    struct ucx_fabric *ucx = ucx_of(peer->fabric);
    struct ucx_link *link = ucx_link_find(ucx, fabric_hash(address, bytes));
    const cairn_status status = link != NULL ? CAIRN_OK : open_link(ucx, address, bytes, &link);
    if (status != CAIRN_OK) return status;
    ucx_peer_of(peer)->link = link;
    LIST_INSERT_HEAD(&link->handles, ucx_peer_of(peer), of_link);
    return CAIRN_OK;
}

/* ---- ending one ---- */

void ucx_link_end(struct ucx_link *link, bool is_told)
{
    if (link->is_lost || link->end_by_ms != 0) return;
    const bool is_shut = shut_node(link->ucx, link->node, link);
    const bool is_awaited = !is_shut && !is_told && link->has_listener;
    link->end_by_ms = ucx_now_ms() + (is_awaited ? link->ucx->unacked_ms + BYE_MS : SHUT_MS);
    if (!is_shut && !is_told) ucx_say_bye(link);
    plan(link->ucx, link->end_by_ms);
}

void ucx_link_await_proof(struct ucx_fabric *ucx, uint64_t node)
{
    struct ucx_heard *heard = ucx_hear(ucx, node);
    heard->proof_by_ms = ucx_now_ms() + PROOF_MS;
    plan(ucx, heard->proof_by_ms);
}

void ucx_endpoint_close(struct ucx_fabric *ucx, ucp_ep_h ep)
{
    const ucp_request_param_t param = {
        .op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS,
        .flags = UCP_EP_CLOSE_FLAG_FORCE,
    };
    struct fabric_op *op;
    TAILQ_FOREACH (op, &ucx->common.flying, link)
        if (op->by == ep) op->by = NULL;
    ucs_status_ptr_t request = ucp_ep_close_nbx(ep, &param);
    if (UCS_PTR_IS_PTR(request)) ucp_request_free(request); // freed by UCX when it is over
}

static void close_link(struct ucx_link *link)
{
    if (link->is_closed) return;
    link->is_closed = true;
    ucx_bundles_part(link); // it may say PORT first: a frame, which ucx_part takes the link from
    ucx_part(link);
    ucx_endpoint_close(link->ucx, link->ep);
    link->ucx->common.stats.endpoints_now--;
}

static void free_link(struct ucx_link *link)
{
    close_link(link);
    LIST_REMOVE(link, entry);
    free(link);
}

/* Sets a deadline for what was sent by a handle that is closed, and for what is received from its
 * node. */
static void bound_flying(struct ucx_link *link, const struct cairn_fabric_peer *handle)
{
    const uint64_t now_ms = ucx_now_ms();
    const ucp_ep_h other = ucx_hear(link->ucx, link->node)->ep; // where the two are no pair
    struct fabric_op *op;
    TAILQ_FOREACH (op, &link->ucx->common.flying, link) {
        const bool is_sent = op->is_send && op->to == handle;
        if (is_sent) op->to = NULL;
        const bool is_received = !op->is_send && op->by != NULL &&
                                 (op->by == link->ep || op->by == other);
        if (!is_sent && !is_received) continue;
        if (op->due_ms == 0) op->due_ms = now_ms + (is_sent ? SEND_GRACE_MS : RECEIVE_GRACE_MS);
        plan(link->ucx, op->due_ms);
    }
}

void ucx_disconnect(struct cairn_fabric_peer *peer)
{
    struct ucx_peer *handle = ucx_peer_of(peer);
    struct ucx_link *link = handle->link;
    LIST_REMOVE(handle, of_link);
    handle->link = NULL;
    if (link->is_lost)
        close_link(link);
    else if (!peer->fabric->is_closing) // ucx_links_stop ends it
        ucx_forget_references(link, peer);
    bound_flying(link, peer);
    if (link->is_closed && LIST_EMPTY(&link->handles)) free_link(link);
}

/* ---- what time brings ---- */

static struct ucx_link *link_of(struct ucx_fabric *ucx, const void *ep)
{
    struct ucx_link *link;
    for (size_t i = 0; i < UCX_NODES; i++)
        LIST_FOREACH (link, &ucx->links[i], entry)
            if (link->ep == ep && !link->is_closed) return link;
    return NULL;
}

/* A receive that came by no endpoint of ours: UCX made its own as the node connected. */
static void end_stray(struct ucx_fabric *ucx, ucp_ep_h ep)
{
    for (size_t i = 0; i < UCX_HEARD; i++) {
        if (ucx->heard[i].ep != ep) continue;
        struct ucx_link *link = ucx_link_find(ucx, ucx->heard[i].node);
        if (link != NULL) ucx_link_end(link, false);
        if (link != NULL || shut_node(ucx, ucx->heard[i].node, NULL)) return;
    }
    ucx_endpoint_close(ucx, ep);
}

static void end_by(struct ucx_fabric *ucx, ucp_ep_h ep)
{
    struct ucx_link *link = link_of(ucx, ep);
    if (link != NULL)
        ucx_link_end(link, false);
    else
        end_stray(ucx, ep);
}

static void judge_flying(struct ucx_fabric *ucx, uint64_t now_ms)
{
    struct fabric_op *op = TAILQ_FIRST(&ucx->common.flying), *next;
    for (; op != NULL; op = next) {
        next = TAILQ_NEXT(op, link);
        if (op->due_ms > now_ms) plan(ucx, op->due_ms);
        if (op->due_ms == 0 || op->due_ms > now_ms) continue;
        op->due_ms = 0;
        if (op->by == NULL) continue; // UCX cancels it
        end_by(ucx, op->by);
        next = TAILQ_FIRST(&ucx->common.flying); // others may have ended with it
    }
}

/* UCX gave the node an endpoint that is a pair with one that we have closed: it sends into nothing. */
static void judge_proof(struct ucx_link *link, uint64_t now_ms)
{
    struct ucx_heard *heard = ucx_hear(link->ucx, link->node);
    if (heard->proof_by_ms == 0 || link->is_lost || link->end_by_ms != 0) return;
    if (heard->proof_by_ms > now_ms) {
        plan(link->ucx, heard->proof_by_ms);
        return;
    }
    heard->proof_by_ms = 0;
    ucx_say_bye(link);
}

/* Handles of a link that was lost are told by fabric.c, and the last one frees it. */
static void judge_links(struct ucx_fabric *ucx, uint64_t now_ms)
{
    struct ucx_link *link, *next;
    for (size_t i = 0; i < UCX_NODES; i++) {
        for (link = LIST_FIRST(&ucx->links[i]); link != NULL; link = next) {
            next = LIST_NEXT(link, entry);
            judge_proof(link, now_ms);
            if (!link->is_lost && link->end_by_ms > now_ms)
                plan(ucx, link->end_by_ms);
            else if (link->end_by_ms != 0)
                ucx_link_lose(link, CAIRN_ERR_CLOSED);
            if (link->is_lost && LIST_EMPTY(&link->handles)) free_link(link);
        }
    }
}

unsigned ucx_links_tend(struct ucx_fabric *ucx)
{
    static const struct itimerspec never = { 0 };
    if (!ucx->has_lost && ucx->due_ms == 0) return 0;
    const uint64_t now_ms = ucx_now_ms();
    const bool is_due = ucx->due_ms != 0 && now_ms >= ucx->due_ms;
    if (!ucx->has_lost && !is_due) return 0;
    if (is_due) {
        ucx->due_ms = 0;
        // The timer is disarmed and not read: where the clock is there before the timer's interrupt there is
        // nothing to be read yet, and what came after that would wake the loop for ever.
        if (ucx->timer_fd >= 0) timerfd_settime(ucx->timer_fd, 0, &never, NULL);
        judge_flying(ucx, now_ms);
    }
    judge_links(ucx, now_ms);
    ucx->has_lost = false; // ucx_link_lose in judge_links tells handles, which are seen to next
    return 1;
}

/* ---- the end ---- */

static bool is_sending(const struct ucx_link *link)
{
    const struct fabric_op *op;
    if (link->controls > 0 || link->bundles_out > 0) return true;
    TAILQ_FOREACH (op, &link->ucx->common.flying, link)
        if (op->is_send && op->by == link->ep) return true;
    return false;
}

/* UCX has yet to notice that a link was shut down. */
static bool awaits_shut(const struct ucx_fabric *ucx)
{
    const struct ucx_link *link;
    for (size_t i = 0; i < UCX_NODES; i++)
        LIST_FOREACH (link, &ucx->links[i], entry)
            if (link->is_shut && !link->is_down) return true;
    return false;
}

/* Shuts down the links that are still sending, and gives UCX the time to notice. UCX does not
 * survive it if such a link is closed as it is while its node closes at the same time (1.18:
 * SIGSEGV, too). */
static void shut_sending(struct ucx_fabric *ucx)
{
    const uint64_t until_ms = ucx_now_ms() + SHUT_MS;
    struct ucx_link *link;
    for (size_t i = 0; i < UCX_NODES; i++)
        LIST_FOREACH (link, &ucx->links[i], entry)
            if (!link->is_closed && !link->is_lost && is_sending(link))
                link->is_shut = shut_node(ucx, link->node, link);
    while (awaits_shut(ucx) && ucx_now_ms() < until_ms) ucp_worker_progress(ucx->worker);
}

void ucx_links_stop(struct ucx_fabric *ucx)
{
    struct ucx_link *link;
    shut_sending(ucx);
    for (size_t i = 0; i < UCX_NODES; i++)
        LIST_FOREACH (link, &ucx->links[i], entry) close_link(link);
}

void ucx_links_close(struct ucx_fabric *ucx)
{
    for (size_t i = 0; i < UCX_NODES; i++)
        while (!LIST_EMPTY(&ucx->links[i])) free_link(LIST_FIRST(&ucx->links[i]));
    if (ucx->timer_fd >= 0) close(ucx->timer_fd);
}
