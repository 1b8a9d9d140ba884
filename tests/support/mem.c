/* The mem fabric: nodes, connections and messages of a network inside one process. mem.h has the
 * contract, mem_hub.h the division. */
#include "tests/support/mem_hub.h"

#include <inttypes.h>
#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

/* -- connections (lock held) -------------------------------------------------------------------- */

/* One direction is gone: what travels on it is lost, what lies in its sender's memory too. */
static void unlink_peer(struct mem_peer *peer)
{
    if (!peer->is_linked) return;
    peer->is_linked = false;
    LIST_REMOVE(peer, link);
    struct mem_transfer *transfer;
    LIST_FOREACH (transfer, &node_of(peer->common.fabric)->hub->transfers, link) {
        if (transfer->peer != peer) continue;
        transfer->peer = NULL;
        transfer->payload = transfer->copy;
        mem_post_sent(transfer, CAIRN_ERR_CLOSED);
    }
}

static void lose_peer(struct mem_peer *peer)
{
    unlink_peer(peer);
    struct mem_event *event = mem_post(node_of(peer->common.fabric), MEM_DOWN);
    event->peer = peer;
    event->status = CAIRN_ERR_CLOSED;
}

/* Every peer of node `from` that leads to node `to`. */
static void lose_peers(struct mem_hub *hub, uint64_t from, uint64_t to)
{
    struct mem_peer *next;
    for (struct mem_peer *peer = LIST_FIRST(&hub->peers); peer != NULL; peer = next) {
        next = LIST_NEXT(peer, link);
        if (node_of(peer->common.fabric)->id == from && peer->to == to) lose_peer(peer);
    }
}

static void cut_link(struct mem_peer *peer)
{
    if (!peer->is_linked) return;
    struct mem_node *node = node_of(peer->common.fabric);
    uint64_t to = peer->to;
    lose_peers(node->hub, node->id, to);
    lose_peers(node->hub, to, node->id);
}

void cairn_fabric_mem_cut(struct fabric_peer *peer)
{
    struct mem_hub *hub = node_of(peer->fabric)->hub;
    pthread_mutex_lock(&hub->lock);
    cut_link((struct mem_peer *)peer);
    pthread_mutex_unlock(&hub->lock);
}

void cairn_fabric_mem_cut_one(struct fabric_peer *peer)
{
    struct mem_hub *hub = node_of(peer->fabric)->hub;
    pthread_mutex_lock(&hub->lock);
    if (((struct mem_peer *)peer)->is_linked) lose_peer((struct mem_peer *)peer);
    pthread_mutex_unlock(&hub->lock);
}

void cairn_fabric_mem_cut_to(struct fabric *fabric)
{
    const struct mem_node *node = node_of(fabric);
    struct mem_peer *next;
    pthread_mutex_lock(&node->hub->lock);
    for (struct mem_peer *peer = LIST_FIRST(&node->hub->peers); peer != NULL; peer = next) {
        next = LIST_NEXT(peer, link);
        if (peer->to == node->id) lose_peer(peer);
    }
    pthread_mutex_unlock(&node->hub->lock);
}

static cairn_status mem_connect(struct fabric_peer *common, const void *address, size_t bytes)
{
    struct mem_peer *peer = (struct mem_peer *)common;
    struct mem_hub *hub = node_of(common->fabric)->hub;
    struct mem_address to;
    if (bytes != sizeof to) return CAIRN_ERR_MALFORMED;
    memcpy(&to, address, sizeof to);
    if (to.hub_name != hub->name) return CAIRN_ERR_UNREACHABLE;
    pthread_mutex_lock(&hub->lock);
    peer->to = to.id;
    peer->is_linked = true;
    LIST_INSERT_HEAD(&hub->peers, peer, link);
    if (mem_find_node(hub, to.id) == NULL) lose_peer(peer);
    pthread_mutex_unlock(&hub->lock);
    return CAIRN_OK;
}

static void forget_events(struct mem_node *node, const struct mem_peer *peer)
{
    struct mem_event *next;
    for (struct mem_event *event = TAILQ_FIRST(&node->events); event != NULL; event = next) {
        next = TAILQ_NEXT(event, link);
        if (peer != NULL && event->peer != peer) continue;
        TAILQ_REMOVE(&node->events, event, link);
        if (event->transfer != NULL) mem_release(event->transfer);
        free(event);
    }
}

static void mem_disconnect(struct fabric_peer *common)
{
    struct mem_peer *peer = (struct mem_peer *)common;
    struct mem_node *node = node_of(common->fabric);
    pthread_mutex_lock(&node->hub->lock);
    if (peer->is_linked) {
        unlink_peer(peer);
        lose_peers(node->hub, peer->to, node->id);
    }
    forget_events(node, peer);
    pthread_mutex_unlock(&node->hub->lock);
}

/* -- messages ----------------------------------------------------------------------------------- */

static void launch(struct mem_node *node, struct mem_peer *peer, struct fabric_op *op,
                   const void *payload)
{
    struct mem_hub *hub = node->hub;
    struct mem_transfer *transfer = mem_need(sizeof *transfer);
    LIST_INSERT_HEAD(&hub->transfers, transfer, link);
    transfer->peer = peer;
    transfer->sender = node;
    transfer->op = op;
    transfer->payload = payload;
    transfer->payload_bytes = op->payload_bytes;
    transfer->header_bytes = op->header_bytes;
    memcpy(transfer->header, op->header, op->header_bytes);
    if (op->payload_bytes == 0 || op->payload_bytes <= hub->options.eager_bytes) {
        transfer->copy = mem_need(op->payload_bytes + 1);
        if (op->payload_bytes > 0) memcpy(transfer->copy, payload, op->payload_bytes);
        transfer->payload = transfer->copy;
        mem_post_sent(transfer, CAIRN_OK);
    }
    struct mem_node *to = mem_find_node(hub, peer->to);
    assert(to != NULL); // a node that closes unlinks all peers that lead to it
    transfer->references = mem_chance(hub, hub->options.duplicate_permille) ? 2 : 1;
    for (unsigned i = transfer->references; i > 0; i--)
        mem_post(to, MEM_MESSAGE)->transfer = transfer;
}

static cairn_status mem_send(struct fabric_peer *common, struct fabric_op *op, const void *payload)
{
    struct mem_peer *peer = (struct mem_peer *)common;
    struct mem_node *node = node_of(common->fabric);
    pthread_mutex_lock(&node->hub->lock);
    const struct cairn_fabric_mem_options *options = &node->hub->options;
    if (peer->is_linked && mem_chance(node->hub, options->cut_permille)) cut_link(peer);
    if (peer->is_linked && mem_chance(node->hub, options->cut_one_permille)) lose_peer(peer);
    bool is_linked = peer->is_linked;
    if (is_linked) launch(node, peer, op, payload);
    pthread_mutex_unlock(&node->hub->lock);
    return is_linked ? CAIRN_OK : CAIRN_ERR_CLOSED; // on_down is on its way
}

static void mem_receive(struct fabric_message *common, struct fabric_op *op, void *buffer)
{
    struct mem_node *node = node_of(common->fabric);
    pthread_mutex_lock(&node->hub->lock);
    struct mem_event *event = mem_post(node, MEM_RECEIVED);
    event->transfer = ((struct mem_message *)common)->transfer; // with the message's reference
    event->op = op;
    event->buffer = buffer;
    pthread_mutex_unlock(&node->hub->lock);
}

static void mem_drop(struct fabric_message *common)
{
    struct mem_hub *hub = node_of(common->fabric)->hub;
    pthread_mutex_lock(&hub->lock);
    mem_release(((struct mem_message *)common)->transfer);
    pthread_mutex_unlock(&hub->lock);
}

/* The hub's own copy only: a payload on loan goes back to its sender the moment the connection is cut, by
 * whichever thread, and nobody can read it safely for longer than the lock is held. */
static const void *mem_view(const struct fabric_message *common)
{
    struct mem_hub *hub = node_of(common->fabric)->hub;
    pthread_mutex_lock(&hub->lock);
    const void *copy = ((const struct mem_message *)common)->transfer->copy;
    pthread_mutex_unlock(&hub->lock);
    return copy;
}

/* -- delivering --------------------------------------------------------------------------------- */

static void drop_transfer(struct mem_node *node, struct mem_transfer *transfer)
{
    pthread_mutex_lock(&node->hub->lock);
    mem_release(transfer);
    pthread_mutex_unlock(&node->hub->lock);
}

/* The transfer's reference passes to the message that is shown, or ends here. */
static void deliver_message(struct mem_node *node, struct mem_transfer *transfer, bool is_lost)
{
    struct fabric *fabric = &node->common;
    uint8_t header[CAIRN_FABRIC_HEADER_MAX];
    const size_t header_bytes = transfer->header_bytes, payload_bytes = transfer->payload_bytes;
    struct mem_message *message = NULL;
    memcpy(header, transfer->header, header_bytes);
    bool is_shown = !is_lost && fabric_judge(fabric, header_bytes, payload_bytes);
    if (is_shown && payload_bytes > 0) {
        message = (struct mem_message *)fabric_message_new(fabric, payload_bytes);
        is_shown = message != NULL;
    }
    if (message != NULL)
        message->transfer = transfer;
    else
        drop_transfer(node, transfer);
    if (is_shown)
        fabric_offer(fabric, header, header_bytes, payload_bytes,
                     message != NULL ? &message->common : NULL);
}

/* Copies now, not at the call of receive: whoever looks too early sees the old bytes. */
static cairn_status land(struct mem_node *node, const struct mem_event *event)
{
    pthread_mutex_lock(&node->hub->lock);
    const uint8_t *payload = event->transfer->payload;
    if (payload != NULL) memcpy(event->buffer, payload, event->transfer->payload_bytes);
    mem_release(event->transfer);
    pthread_mutex_unlock(&node->hub->lock);
    return payload != NULL ? CAIRN_OK : CAIRN_ERR_CLOSED;
}

void mem_handle(struct mem_node *node, struct mem_event *event, bool is_lost)
{
    switch (event->kind) {
    case MEM_MESSAGE: deliver_message(node, event->transfer, is_lost); break;
    case MEM_RECEIVED: fabric_op_done(event->op, land(node, event)); break;
    case MEM_SENT: fabric_op_done(event->op, event->status); break;
    case MEM_DOWN: fabric_peer_lost(&event->peer->common, event->status); break;
    }
    free(event);
}

static unsigned mem_progress(struct fabric *fabric)
{
    struct mem_node *node = node_of(fabric);
    struct mem_event *event;
    bool is_lost = false;
    unsigned count = 0;
    pthread_mutex_lock(&node->hub->lock);
    const uint64_t ticks = ++node->hub->ticks;
    while (count < 64 && (event = mem_take(node, ticks, &is_lost)) != NULL) {
        pthread_mutex_unlock(&node->hub->lock);
        mem_handle(node, event, is_lost);
        count++;
        pthread_mutex_lock(&node->hub->lock);
    }
    pthread_mutex_unlock(&node->hub->lock);
    return count;
}

static cairn_status mem_arm(struct fabric *fabric)
{
    struct mem_node *node = node_of(fabric);
    eventfd_t ignored;
    pthread_mutex_lock(&node->hub->lock);
    bool is_busy = !TAILQ_EMPTY(&node->events);
    if (!is_busy) eventfd_read(fabric->event_fd, &ignored);
    pthread_mutex_unlock(&node->hub->lock);
    return is_busy ? CAIRN_ERR_BUSY : CAIRN_OK;
}

/* -- nodes and the hub -------------------------------------------------------------------------- */

static cairn_status mem_start(struct fabric *fabric, const struct fabric_options *options,
                              struct sentence *why)
{
    struct mem_node *node = node_of(fabric);
    struct mem_hub *hub = node->hub = hub_of(options->hub);
    fabric->event_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    if (fabric->event_fd < 0)
        return fail_with(why, CAIRN_ERR_NO_MEMORY, "fabric mem: no event descriptor: %m");
    TAILQ_INIT(&node->events);
    pthread_mutex_lock(&hub->lock);
    node->id = ++hub->last_id;
    LIST_INSERT_HEAD(&hub->nodes, node, link);
    pthread_mutex_unlock(&hub->lock);
    const struct mem_address address = { .hub_name = hub->name, .id = node->id };
    snprintf(fabric->describe, sizeof fabric->describe, "mem, node %" PRIu64 ", seed %" PRIu64,
             node->id, hub->name);
    return fabric_set_address(fabric, &address, sizeof address);
}

static void mem_stop(struct fabric *fabric)
{
    struct mem_node *node = node_of(fabric);
    struct mem_hub *hub = node->hub;
    struct mem_node *other;
    pthread_mutex_lock(&hub->lock);
    LIST_FOREACH (other, &hub->nodes, link) lose_peers(hub, other->id, node->id);
    forget_events(node, NULL);
    LIST_REMOVE(node, link);
    pthread_mutex_unlock(&hub->lock);
    close(fabric->event_fd);
}

const struct fabric_backend fabric_mem = {
    .kind = "mem",
    .fabric_bytes = sizeof(struct mem_node),
    .peer_bytes = sizeof(struct mem_peer),
    .message_bytes = sizeof(struct mem_message),
    .start = mem_start,
    .stop = mem_stop,
    .connect = mem_connect,
    .disconnect = mem_disconnect,
    .send = mem_send,
    .receive = mem_receive,
    .drop = mem_drop,
    .progress = mem_progress,
    .arm = mem_arm,
    .view = mem_view,
};
