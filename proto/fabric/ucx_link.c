/* Links. We have one connection of UCX to each node; all jobs and purposes share that connection.
 *
 * A fabric_peer is a handle on a link. The first handle to an address makes the link. Every later handle
 * shares the link, even after the former handles are closed: a link lives as long as its node. It does harm
 * to close an endpoint of UCX to a node that lives on. UCX has paired the endpoint with the node's own
 * endpoint to us, which from then on sends into nothing. The node learns this only in UCX's next keepalive
 * round (20 s). Training used to stop whenever a re-sharding closed connections of its own.
 *
 * A link ends when UCX reports the end of its node, or when we end the link because the owner has closed a
 * handle and waits for memory that the node does not give back. Then we shut the TCP connection down. UCX
 * on both ends takes that for the death of the other end, which UCX handles well, and new links are made.
 * If we closed the endpoint instead while data waits to be sent, UCX 1.13 could crash. It says goodbye on
 * the connection, and waits in a busy loop until the goodbye is sent. If the other end says goodbye as
 * well, UCX frees the connection and then uses it (SIGSEGV in uct_tcp_iface_progress).
 *
 * The two endpoints of a pair share one TCP connection, which either node may have made. The node that made
 * the connection knows the socket, and tells the other node the socket's port (PORT). If we know no socket,
 * we ask the node to shut its socket (BYE). */
#include <assert.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include "proto/fabric/ucx.h"

enum {
    /* how long a send may wait for its receiver after the send's handle was closed */
    SEND_GRACE_MS = 500,
    /* how long a receive may wait for its sender after a handle to that node was closed */
    RECEIVE_GRACE_MS = 700,
    /* how long after PORT the PROOF may arrive on the same connection: the node may still be connecting */
    PROOF_MS = 1500,
    SHUT_MS = 200, /* how long UCX may take to notice that we shut a socket down */
    BYE_MS =
        6000 /* how long UCX may take, after unacked_ms, to notice that the peer shut a socket down;
              * a link that is closed then has nothing left to send */
};

/* ---- time ---- */

/* Wakes the loop at `at_ms`, through a descriptor in UCX's own set. */
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

/* ---- what nodes report ---- */

struct ucx_heard *ucx_hear(struct ucx_fabric *ucx, uint64_t node)
{
    struct ucx_heard *heard = &ucx->heard[node % UCX_HEARD];
    if (heard->node != node) *heard = (struct ucx_heard) { .node = node };
    return heard;
}

/* Shuts down every connection between that node and us, whichever end made it. `link` is NULL if there is
 * no link; even then, an endpoint that UCX made to answer the node may have a connection of its own. */
static bool shut_node(struct ucx_fabric *ucx, uint64_t node, const struct ucx_link *link)
{
    const struct ucx_heard *heard = ucx_hear(ucx, node);
    const struct sockaddr_storage *listener = link != NULL ? &link->listener : &heard->listener;
    return ucx_socket_shut(ucx, listener->ss_family != AF_UNSPEC ? listener : NULL, heard->port);
}

/* ---- making a link ---- */

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

/* Gives up the link: its handles are told why. */
static void ucx_link_lose(struct ucx_link *link, cairn_status why)
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
            // UCX trusts the lengths inside the address; the envelope's checksum protects them
        address,
        .err_mode = UCP_ERR_HANDLING_MODE_PEER,
        .err_handler = { .cb = on_ucx_down, .arg = link },
    };
    struct ucx_fabric *ucx = link->ucx;
    CAIRN_TRY(ucx_reach(ucx, address, bytes));
    const uint64_t begin_ms = monotonic_ms();
    const int socket = ucx_socket_next();
    const ucs_status_t status = ucp_ep_create(ucx->worker, &params, &link->ep);
    ucx_note_connect(ucx, address, bytes, monotonic_ms() - begin_ms, status == UCS_OK);
    if (status != UCS_OK) return ucx_status(status);
    link->has_listener = ucx_find_listener(address, bytes, &link->listener);
    if (!link->has_listener) return CAIRN_OK;
    ucx_hear(ucx, link->node)->listener = link->listener;
    link->made = ucx_socket_made(socket, &link->listener, ucx->unacked_ms);
    return CAIRN_OK;
}

/* Opens a link. If a link to the same node is ending, that link is declared lost first, since its end is
 * certain. */
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

cairn_status ucx_connect(struct fabric_peer *peer, const void *address, size_t bytes)
{
    struct ucx_fabric *ucx = ucx_of(peer->fabric);
    struct ucx_link *link = ucx_link_find(ucx, fabric_hash(address, bytes));
    CAIRN_TRY(link != NULL ? CAIRN_OK : open_link(ucx, address, bytes, &link));
    ucx_peer_of(peer)->link = link;
    LIST_INSERT_HEAD(&link->handles, ucx_peer_of(peer), of_link);
    return CAIRN_OK;
}

/* ---- ending a link ---- */

void ucx_link_end(struct ucx_link *link, bool is_told)
{
    if (link->is_lost || link->end_by_ms != 0) return;
    const bool is_shut = shut_node(link->ucx, link->node, link);
    const bool is_awaited = !is_shut && !is_told && link->has_listener;
    link->end_by_ms = monotonic_ms() + (is_awaited ? link->ucx->unacked_ms + BYE_MS : SHUT_MS);
    if (!is_shut && !is_told) ucx_say_bye(link);
    plan(link->ucx, link->end_by_ms);
}

void ucx_link_await_proof(struct ucx_fabric *ucx, uint64_t node)
{
    struct ucx_heard *heard = ucx_hear(ucx, node);
    heard->proof_by_ms = monotonic_ms() + PROOF_MS;
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
    // UCX frees the request when the close is over
    if (UCS_PTR_IS_PTR(request)) ucp_request_free(request);
}

static void ucx_bundles_part(struct ucx_link *link);

static void close_link(struct ucx_link *link)
{
    if (link->is_closed) return;
    link->is_closed = true;
    ucx_bundles_part(link); // may send PORT first, a frame that ucx_part detaches
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

/* Sets a deadline for the sends of a handle that is closed, and for the receives from the handle's node. */
static void bound_flying(struct ucx_link *link, const struct fabric_peer *handle)
{
    const uint64_t now_ms = monotonic_ms();
    // differs from link->ep if that is not paired with the node's endpoint
    const ucp_ep_h other = ucx_hear(link->ucx, link->node)->ep;
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

void ucx_disconnect(struct fabric_peer *peer)
{
    struct ucx_peer *handle = ucx_peer_of(peer);
    struct ucx_link *link = handle->link;
    LIST_REMOVE(handle, of_link);
    handle->link = NULL;
    if (link->is_lost)
        close_link(link);
    else if (!peer->fabric->is_closing) // ucx_links_stop ends the link
        ucx_forget_references(link, peer);
    bound_flying(link, peer);
    if (link->is_closed && LIST_EMPTY(&link->handles)) free_link(link);
}

/* ---- what is due at a time ---- */

static struct ucx_link *link_of(struct ucx_fabric *ucx, const void *ep)
{
    struct ucx_link *link;
    for (size_t i = 0; i < UCX_NODES; i++)
        LIST_FOREACH (link, &ucx->links[i], entry)
            if (link->ep == ep && !link->is_closed) return link;
    return NULL;
}

/* Ends an endpoint that is none of ours, and by which a receive came: UCX made that endpoint when the node
 * connected. */
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
        if (op->by == NULL) continue; // UCX cancels the op
        end_by(ucx, op->by);
        // other ops may have ended together with this endpoint
        next = TAILQ_FIRST(&ucx->common.flying);
    }
}

/* If PROOF is missing, UCX has paired the node's endpoint with an endpoint that we have closed: the node
 * sends into nothing. */
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

/* Declares a link lost when its time to end is over. fabric.c tells the link's handles; the last handle
 * frees the link. */
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
    const uint64_t now_ms = monotonic_ms();
    const bool is_due = ucx->due_ms != 0 && now_ms >= ucx->due_ms;
    if (!ucx->has_lost && !is_due) return 0;
    if (is_due) {
        ucx->due_ms = 0;
        // The timer is disarmed instead of being read. A read may come before the timer's interrupt, when
        // there is nothing to read yet; the timer then expires after the read, and wakes the loop for ever.
        if (ucx->timer_fd >= 0) timerfd_settime(ucx->timer_fd, 0, &never, NULL);
        judge_flying(ucx, now_ms);
    }
    judge_links(ucx, now_ms);
    // ucx_link_lose in judge_links has queued handles, which fabric.c tells next
    ucx->has_lost = false;
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

/* True if UCX has not yet noticed that a link was shut down. */
static bool awaits_shut(const struct ucx_fabric *ucx)
{
    const struct ucx_link *link;
    for (size_t i = 0; i < UCX_NODES; i++)
        LIST_FOREACH (link, &ucx->links[i], entry)
            if (link->is_shut && !link->is_down) return true;
    return false;
}

/* Shuts down the links that are still sending, and gives UCX the time to notice. UCX crashes if such a link
 * is closed without being shut down first, and the link's node closes at the same time (UCX 1.18: SIGSEGV,
 * too). */
static void shut_sending(struct ucx_fabric *ucx)
{
    const uint64_t until_ms = monotonic_ms() + SHUT_MS;
    struct ucx_link *link;
    for (size_t i = 0; i < UCX_NODES; i++)
        LIST_FOREACH (link, &ucx->links[i], entry)
            if (!link->is_closed && !link->is_lost && is_sending(link))
                link->is_shut = shut_node(ucx, link->node, link);
    while (awaits_shut(ucx) && monotonic_ms() < until_ms) ucp_worker_progress(ucx->worker);
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

/* ==== ucx bundle ==== */

/* Small messages are sent together. UCX sends each active message by a separate system call, and wakes the
 * other end for each message. A step with thousands of small tensors would spend nearly all of its time on
 * these calls. So the messages that are sent to a peer in one turn of the loop are put into one bundle,
 * which is sent at the turn's end, or when the bundle is full.
 *
 * A bundle is an active message: a head, then each message with its lengths in front, padded to 8 bytes.
 * The operations of the bundle's messages end when the bundle is sent, so limits on operations under way
 * hold as usual. A peer that does not take its messages gets UCX_BUNDLES_MAX bundles at most; then its open
 * bundle stays open, and messages that find no room in this bundle are sent by themselves.
 *
 * A receiver that holds a message also holds the message's bundle: from then on the bundle's head counts
 * the holds. */

/* an id of active messages; the others are MESSAGE_ID below and CONTROL_ID of ucx_read.c */
enum { BUNDLE_ID = 9 };

struct ucx_bundle {
    LIST_ENTRY(ucx_bundle) entry; /* fabric->bundles_open or bundles_out */
    struct ucx_link *link;        /* NULL: the link was closed since */
    uint32_t count;
    size_t bytes;
    struct fabric_op *ops[UCX_BUNDLE_COUNT];
    uint8_t data[UCX_BUNDLE_BYTES];
};

/* -- sending ------------------------------------------------------------------------------------ */

static void end_bundle(struct ucx_bundle *bundle, cairn_status status)
{
    for (uint32_t i = 0; i < bundle->count; i++) fabric_op_done(bundle->ops[i], status);
    LIST_REMOVE(bundle, entry);
    free(bundle);
}

/* Ends a bundle that was under way. */
static void finish_bundle(struct ucx_bundle *bundle, cairn_status status)
{
    if (bundle->link != NULL) bundle->link->bundles_out--;
    end_bundle(bundle, status);
}

static void on_ucx_sent_bundle(void *request, ucs_status_t status, void *arg)
{
    finish_bundle(arg, ucx_status(status));
    ucp_request_free(request);
}

/* Sends the open bundle. */
static void post(struct ucx_link *link)
{
    struct ucx_bundle *bundle = link->bundle;
    const ucp_request_param_t param = {
        .op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA |
                        UCP_OP_ATTR_FIELD_FLAGS,
        .flags = UCP_AM_SEND_FLAG_EAGER,
        .cb.send = on_ucx_sent_bundle,
        .user_data = bundle,
    };
    const struct ucx_frame_bundle head = { .magic = UCX_FRAME_MAGIC, .count = bundle->count };
    memcpy(bundle->data, &head, sizeof head);
    if (link->has_listener && !link->has_said_port) ucx_say_port(link);
    link->bundle = NULL;
    link->bundles_out++;
    LIST_REMOVE(bundle, entry);
    LIST_INSERT_HEAD(&link->ucx->bundles_out, bundle, entry);
    ucs_status_ptr_t request = ucp_am_send_nbx(link->ep, BUNDLE_ID, NULL, 0, bundle->data,
                                               bundle->bytes, &param);
    if (UCS_PTR_IS_PTR(request)) return;
    const cairn_status status = ucx_status(UCS_PTR_STATUS(request));
    finish_bundle(bundle, status);
    // The senders have been told that their messages are sent: if the messages are lost, the owner learns
    // this by the loss of the peer.
    if (status != CAIRN_OK) ucx_link_lose(link, CAIRN_ERR_CLOSED);
}

/* Returns a bundle with room for `bytes`; NULL if there is no such bundle. */
static struct ucx_bundle *open_for(struct ucx_link *link, size_t bytes)
{
    struct ucx_bundle *bundle = link->bundle;
    const bool is_full = bundle != NULL && (bundle->count == UCX_BUNDLE_COUNT ||
                                            bundle->bytes + bytes > sizeof bundle->data);
    if (is_full && link->bundles_out >= UCX_BUNDLES_MAX) return NULL;
    if (is_full) post(link);
    if (link->bundle != NULL || link->is_lost) return link->bundle;
    bundle = malloc(sizeof *bundle);
    if (bundle == NULL) return NULL;
    bundle->link = link;
    bundle->count = 0;
    bundle->bytes = sizeof(struct ucx_frame_bundle);
    LIST_INSERT_HEAD(&link->ucx->bundles_open, bundle, entry);
    link->bundle = bundle;
    return bundle;
}

static void append(struct ucx_bundle *bundle, const void *bytes, size_t count)
{
    if (count > 0) memcpy(bundle->data + bundle->bytes, bytes, count);
    bundle->bytes += count;
}

/* Returns false if the message is too large, or if there is no room: then the message is sent by itself. */
static bool ucx_bundle_add(struct ucx_link *link, struct fabric_op *op, const void *payload)
{
    static const uint8_t zero[8];
    const struct ucx_frame_bundled lengths = { .header_bytes = (uint32_t)op->header_bytes,
                                               .payload_bytes = (uint32_t)op->payload_bytes };
    if (op->payload_bytes > UCX_BUNDLED_MAX) return false;
    const size_t bytes = ucx_frame_bundled_bytes(&lengths);
    struct ucx_bundle *bundle = open_for(link, bytes);
    if (bundle == NULL) return false;
    const size_t end = bundle->bytes + bytes;
    append(bundle, &lengths, sizeof lengths);
    append(bundle, op->header, op->header_bytes);
    append(bundle, payload, op->payload_bytes);
    append(bundle, zero, end - bundle->bytes);
    bundle->ops[bundle->count++] = op;
    op->by = link->ep; // as for a message that is sent by itself
    return true;
}

unsigned ucx_bundles_flush(struct ucx_fabric *ucx)
{
    unsigned count = 0;
    struct ucx_bundle *bundle = LIST_FIRST(&ucx->bundles_open);
    while (bundle != NULL) {
        struct ucx_bundle *next = LIST_NEXT(bundle, entry);
        struct ucx_link *link = bundle->link;
        if (link->bundles_out < UCX_BUNDLES_MAX) {
            post(link);
            count++;
        }
        bundle = next;
    }
    return count;
}

/* UCX crashes if an endpoint ends while it still has much to send (see "Links" above). So messages that
 * wait for a lost node are not given to UCX any more. */
static void ucx_bundles_part(struct ucx_link *link)
{
    struct ucx_bundle *bundle = link->bundle;
    if (bundle != NULL && link->is_lost) {
        link->bundle = NULL;
        end_bundle(bundle, CAIRN_ERR_CLOSED);
    } else if (bundle != NULL) {
        post(link);
    }
    LIST_FOREACH (bundle, &link->ucx->bundles_out, entry)
        if (bundle->link == link) bundle->link = NULL;
}

void ucx_bundles_close(struct ucx_fabric *ucx)
{
    assert(LIST_EMPTY(&ucx->bundles_open)); // the peers of all bundles are closed
    while (!LIST_EMPTY(&ucx->bundles_out)) {
        struct ucx_bundle *bundle = LIST_FIRST(&ucx->bundles_out);
        LIST_REMOVE(bundle, entry);
        free(bundle);
    }
}

/* -- receiving ---------------------------------------------------------------------------------- */

/* Adds or removes one hold of the bundle; returns how many holds there are then. */
static uint32_t count_hold(void *data, bool more)
{
    struct ucx_frame_bundle head;
    memcpy(&head, data, sizeof head);
    head.count += more ? 1u : -1u;
    memcpy(data, &head, sizeof head);
    return head.count;
}

static enum ucx_fate ucx_show(struct ucx_fabric *ucx, const void *header, size_t header_bytes,
                              size_t payload_bytes, struct ucx_message *message);

static void take_bundled(struct ucx_fabric *ucx, void *data,
                         const struct ucx_frame_bundled *lengths, uint8_t *at)
{
    struct ucx_message *message = NULL;
    if (!fabric_judge(&ucx->common, lengths->header_bytes, lengths->payload_bytes)) return;
    if (lengths->payload_bytes > 0) {
        message = (struct ucx_message *)fabric_message_new(&ucx->common, lengths->payload_bytes);
        if (message == NULL) return;
        message->data = at + lengths->header_bytes;
        message->bundle = data;
    }
    if (ucx_show(ucx, at, lengths->header_bytes, lengths->payload_bytes, message) == FATE_HELD)
        count_hold(data, true);
}

/* Like on_ucx_message below. The bytes come from a stranger. */
static ucs_status_t on_ucx_bundle(void *arg, const void *header, size_t header_bytes, void *data,
                                  size_t bytes, const ucp_am_recv_param_t *param)
{
    (void)header, (void)header_bytes;
    struct ucx_fabric *ucx = arg;
    struct ucx_frame_bundle head = { .magic = UCX_FRAME_MAGIC, .count = 1 }; // our own hold
    struct ucx_frame_bundled lengths;
    size_t at = sizeof head;
    if ((param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV) != 0 || !ucx_frame_is_bundle(data, bytes)) {
        ucx->common.stats.messages_refused++;
        return UCS_OK;
    }
    memcpy(data, &head, sizeof head);
    while (ucx_frame_next_bundled(data, bytes, &at, &lengths))
        take_bundled(ucx, data, &lengths,
                     (uint8_t *)data + at - ucx_frame_bundled_bytes(&lengths) + sizeof lengths);
    return count_hold(data, false) == 0 ? UCS_OK : UCS_INPROGRESS;
}

ucs_status_t ucx_bundles_listen(struct ucx_fabric *ucx)
{
    return ucx_listen_to(ucx, BUNDLE_ID, UCP_AM_FLAG_WHOLE_MSG | UCP_AM_FLAG_PERSISTENT_DATA,
                         on_ucx_bundle);
}

/* ==== ucx message ==== */

/* Messages are active messages of UCX with one id, eager for small payloads, and rendezvous for the rest.
 *
 * Behavior of UCX (1.13.1, measured): a receive into too small a buffer aborts the process, so fabric.c
 * compares the sizes first. If an unread descriptor is released, its sender's operation ends with OK. A
 * held message costs us pool memory (eager) or pins the sender's buffer (rendezvous). */

enum { MESSAGE_ID = 7 }; /* differs from BUNDLE_ID and CONTROL_ID; all Cairn nodes use this id */

/* -- sending ------------------------------------------------------------------------------------ */

static void end_message(struct fabric_op *op, ucs_status_t status)
{
    struct ucx_fabric *ucx = ucx_of(op->fabric);
    // The peer may still have the key of a failed operation's memory, so the memory is registered anew.
    if (status != UCS_OK) ucx_card_retire(ucx, op->held);
    ucx_card_release(ucx, op->held);
    op->held = NULL;
    fabric_op_done(op, ucx_status(status));
}

static void on_ucx_sent_message(void *request, ucs_status_t status, void *arg)
{
    end_message(arg, status);
    ucp_request_free(request);
}

cairn_status ucx_send_whole(struct ucx_link *link, struct fabric_op *op, const void *payload)
{
    struct ucx_card *card = op->is_device ? ucx_card_hold(link->ucx, op, payload) : NULL;
    // Without a handle the owner tries again, and then sends through the host.
    if (op->is_device && card == NULL && SENDS_BY_HANDLE) return CAIRN_ERR_BUSY;
    ucp_request_param_t param = {
        .op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA |
                        UCP_OP_ATTR_FIELD_FLAGS | UCP_OP_ATTR_FIELD_MEMORY_TYPE,
        // tells the receiver by which of its endpoints the message came: the receiver may have to close
        // that endpoint
        .flags = op->header_bytes + op->payload_bytes < UCX_RENDEZVOUS_MIN ? 0
                                                                           : UCP_AM_SEND_FLAG_REPLY,
        .cb.send = on_ucx_sent_message,
        .memory_type = ucx_memory_of(op), // else a UCX with CUDA asks the driver each time
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
    if (request == NULL) end_message(op, UCS_OK); // sent at once: UCX calls nothing
    return CAIRN_OK;
}

cairn_status ucx_send(struct fabric_peer *common, struct fabric_op *op, const void *payload)
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
    end_message(op, status);
    ucp_request_free(request);
}

static void start_rendezvous(struct ucx_fabric *ucx, void *descriptor, struct fabric_op *op,
                             void *buffer)
{
    struct ucx_card *card = op->is_device ? ucx_card_hold(ucx, op, buffer) : NULL;
    if (op->is_device && card == NULL && SENDS_BY_HANDLE) {
        ucp_am_data_release(ucx->worker, descriptor);
        end_message(op, UCS_ERR_NO_MEMORY);
        return;
    }
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
    if (!UCS_PTR_IS_PTR(request)) end_message(op, UCS_PTR_STATUS(request)); // UCX calls nothing
}

static void let_go(struct ucx_fabric *ucx, const struct ucx_message *message)
{
    // The last held message of a bundle ends the bundle.
    if (message->bundle == NULL)
        ucp_am_data_release(ucx->worker, message->data);
    else if (count_hold(message->bundle, false) == 0)
        ucp_am_data_release(ucx->worker, message->bundle);
}

void ucx_receive(struct fabric_message *common, struct fabric_op *op, void *buffer)
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
        // set for either kind of receive, before the receive flies, because close_receives looks for `by`
        op->by = message->ep;
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

bool ucx_lands(const struct fabric_message *common)
{
    const struct ucx_message *message = (const struct ucx_message *)common;
    return message->region == NULL && message->is_rendezvous;
}

bool ucx_takes_device(const struct fabric_peer *common)
{
    const struct ucx_peer *peer = (const struct ucx_peer *)common;
    return peer->link != NULL && peer->link->is_native;
}

void ucx_drop(struct fabric_message *common)
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

/* Shows a message to the owner. `message` is NULL if there is no payload. UCX has to keep the payload of a
 * held message. */
static enum ucx_fate ucx_show(struct ucx_fabric *ucx, const void *header, size_t header_bytes,
                              size_t payload_bytes, struct ucx_message *message)
{
    ucx->shown = message;
    ucx->fate = message != NULL ? FATE_HELD : FATE_TAKEN;
    fabric_offer(&ucx->common, header, header_bytes, payload_bytes,
                 message != NULL ? &message->common : NULL); // the message may be freed after this
    ucx->shown = NULL;
    return ucx->fate;
}

/* Returns UCS_OK if UCX may free `data` (then UCX tells a rendezvous sender that its payload was received),
 * and UCS_INPROGRESS if UCX has to keep `data` for us. */
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

/* WHOLE_MSG: called when a message is complete. PERSISTENT_DATA: an eager payload can be held. */
ucs_status_t ucx_listen(struct ucx_fabric *ucx)
{
    return ucx_listen_to(ucx, MESSAGE_ID, UCP_AM_FLAG_WHOLE_MSG | UCP_AM_FLAG_PERSISTENT_DATA,
                         on_ucx_message);
}

/* ==== ucx frame ==== */

static const size_t sizes[] = {
    [UCX_FRAME_HELLO] = sizeof(struct ucx_frame_hello),
    [UCX_FRAME_REGION] = sizeof(struct ucx_frame_region),
    [UCX_FRAME_REGION_GONE] = sizeof(struct ucx_frame_gone),
    [UCX_FRAME_REFERENCE] = sizeof(struct ucx_frame_reference),
    [UCX_FRAME_RELEASE] = sizeof(struct ucx_frame_release),
    [UCX_FRAME_DECLINE] = sizeof(struct ucx_frame_release),
    [UCX_FRAME_BYE] = sizeof(struct ucx_frame_hello),
    [UCX_FRAME_PORT] = sizeof(struct ucx_frame_port),
    [UCX_FRAME_PROOF] = sizeof(struct ucx_frame_head),
};

static bool judge_hello(const struct ucx_frame_hello *f)
{
    static const uint8_t zero[sizeof f->zero];
    return f->endpoint != 0 && f->oldest <= f->endpoint && f->reads <= 1 && f->asks <= 1 &&
           memcmp(f->zero, zero, sizeof zero) == 0;
}

/* An address range that ends behind the last address is refused. */
static bool judge_region(const struct ucx_frame_region *f, size_t rest)
{
    return f->generation != 0 && f->slot < UCX_FRAME_SLOTS && f->bytes > 0 &&
           f->bytes <= UINT64_MAX - f->address && f->key_bytes > 0 &&
           f->key_bytes <= UCX_FRAME_KEY_MAX && f->key_bytes == rest;
}

static bool judge_reference(const struct ucx_frame_reference *f, size_t rest)
{
    return f->generation != 0 && f->slot < UCX_FRAME_SLOTS && f->serial != 0 &&
           f->payload_bytes > 0 && f->header_bytes > 0 &&
           f->header_bytes <= CAIRN_FABRIC_HEADER_MAX && f->header_bytes == rest && f->zero == 0;
}

static bool is_frame(const union ucx_frame *frame, size_t rest)
{
    switch ((enum ucx_frame_kind)frame->head.kind) {
    case UCX_FRAME_HELLO:
        return rest == 0 && judge_hello(&frame->hello) && frame->hello.oldest != 0;
    case UCX_FRAME_BYE:
        return rest == 0 && judge_hello(&frame->hello) && !frame->hello.reads &&
               !frame->hello.asks && frame->hello.oldest == 0;
    case UCX_FRAME_REGION: return judge_region(&frame->region, rest);
    case UCX_FRAME_REFERENCE: return judge_reference(&frame->reference, rest);
    case UCX_FRAME_REGION_GONE:
        return rest == 0 && frame->gone.slot < UCX_FRAME_SLOTS && frame->gone.zero == 0;
    case UCX_FRAME_RELEASE: return rest == 0 && frame->release.why == 0 && frame->release.zero == 0;
    case UCX_FRAME_DECLINE:
        return rest == 0 && frame->release.why <= UCX_DECLINE_CANNOT && frame->release.zero == 0;
    case UCX_FRAME_PROOF: return rest == 0;
    case UCX_FRAME_PORT:
        return rest == 0 && (frame->port.zero[0] | frame->port.zero[1] | frame->port.zero[2]) == 0;
    default: return false;
    }
}

enum ucx_frame_kind ucx_frame_judge(const void *bytes, size_t count, union ucx_frame *frame_out,
                                    size_t *size_out)
{
    struct ucx_frame_head head;
    union ucx_frame frame;
    if (count < sizeof head) return UCX_FRAME_MALFORMED;
    memcpy(&head, bytes, sizeof head);
    if (head.magic != UCX_FRAME_MAGIC || head.kind == UCX_FRAME_MALFORMED ||
        head.kind > UCX_FRAME_PROOF || count < sizes[head.kind])
        return UCX_FRAME_MALFORMED;
    memcpy(&frame, bytes, sizes[head.kind]);
    if (!is_frame(&frame, count - sizes[head.kind])) return UCX_FRAME_MALFORMED;
    *frame_out = frame;
    *size_out = sizes[head.kind];
    return (enum ucx_frame_kind)head.kind;
}

bool ucx_frame_next_bundled(const void *bytes, size_t count, size_t *at,
                            struct ucx_frame_bundled *lengths_out)
{
    struct ucx_frame_bundled lengths;
    if (count - *at < sizeof lengths) return false;
    memcpy(&lengths, (const uint8_t *)bytes + *at, sizeof lengths);
    if (lengths.header_bytes == 0 || lengths.header_bytes > CAIRN_FABRIC_HEADER_MAX ||
        lengths.payload_bytes > count || count - *at < ucx_frame_bundled_bytes(&lengths))
        return false;
    *at += ucx_frame_bundled_bytes(&lengths);
    *lengths_out = lengths;
    return true;
}

bool ucx_frame_is_bundle(const void *bytes, size_t count)
{
    struct ucx_frame_bundle head;
    struct ucx_frame_bundled lengths;
    uint32_t messages = 0;
    size_t at = sizeof head;
    if (count < sizeof head) return false;
    memcpy(&head, bytes, sizeof head);
    while (ucx_frame_next_bundled(bytes, count, &at, &lengths)) messages++;
    return head.magic == UCX_FRAME_MAGIC && messages > 0 && head.count == messages && at == count;
}
