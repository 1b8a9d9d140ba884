/* Links: what the owner's thread knows of another node, its connections to it, and the messages that are sent
 * over them and come over them.
 *
 * A link is up while it has a connection. Messages that are sent before that wait in the link. A link ends
 * when any of its connections ends after it was up: nobody can tell which messages were in the sockets. It
 * lives on as a struct while peers, messages or connections refer to it. */
#include <arpa/inet.h>
#include <assert.h>
#include <errno.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "proto/base/machine.h"
#include "proto/base/text.h"
#include "proto/fabric/remote.h"

enum {
    NEXT_MS = 250,       /* before the next address is tried besides */
    DIAL_AGAIN_MS = 250, /* after all addresses of a node were tried */
    ADMIT_MS = 500,      /* for a connection that the node has made already */
    /* if the node refuses: it may connect to us, if it is behind a firewall, and is about to */
    REFUSED_MS = 1000,
    /* a lane or a pulse that could not be made is tried again, after twice the time each time */
    TOP_AGAIN_MS = 1000,
    TOP_AGAIN_MAX_MS = 60000,
    CUT_SAID_MS = 10000,
    LINGER_MS = 500, /* for the last messages to a node without peers */
    GRACE_MS = 500,  /* for a send to wait for its receiver after its peer was closed */
};

/* ==== messages ==== */

/* ---- items ---- */

static struct remote_item *item_new(struct remote_fabric *fabric, enum remote_kind kind,
                                    uint64_t serial)
{
    struct remote_item *item = TAILQ_FIRST(&fabric->spare);
    if (item != NULL) {
        TAILQ_REMOVE(&fabric->spare, item, entry);
        fabric->spare_count--;
    } else if ((item = malloc(sizeof *item)) == NULL) {
        return NULL;
    }
    item->op = NULL;
    item->payload = NULL;
    item->payload_bytes = item->payload_done = 0;
    item->kind = kind;
    item->is_begun = item->is_spared = false;
    item->head_bytes = kind == REMOTE_DATA ? 0 : sizeof item->frame;
    item->frame = (struct remote_frame) { .kind = (uint8_t)kind, .serial = serial };
    return item;
}

static void item_seal(struct remote_item *item)
{
    if (item->kind != REMOTE_DATA)
        item->frame.check = remote_frame_check(&item->frame, item->head + sizeof item->frame);
}

static void item_free(struct remote_fabric *fabric, struct remote_item *item)
{
    if (fabric->spare_count >= REMOTE_SPARE_MAX) {
        free(item);
        return;
    }
    fabric->spare_count++;
    TAILQ_INSERT_HEAD(&fabric->spare, item, entry);
}

static void mark_dirty(struct remote_conn *conn)
{
    if (conn->is_dirty || conn->state >= REMOTE_LEAVES) return;
    conn->is_dirty = true;
    TAILQ_INSERT_TAIL(&conn->fabric->dirty, conn, dirty);
}

/* Queues an item on a connection; it is written at the end of the turn. */
static void put(struct remote_conn *conn, struct remote_item *item)
{
    const bool is_bulk = item->kind == REMOTE_DATA || item->kind == REMOTE_NONE;
    item_seal(item);
    if (item->op != NULL) item->op->held = item;
    pthread_mutex_lock(&conn->lock);
    TAILQ_INSERT_TAIL(is_bulk ? &conn->writes.bulk : &conn->writes.urgent, item, entry);
    if (remote_is_reply(item))
        atomic_fetch_add_explicit(&conn->writes.reply_count, 1, memory_order_relaxed);
    atomic_fetch_add_explicit(&conn->writes.queued_bytes, item->head_bytes + item->payload_bytes,
                              memory_order_relaxed);
    pthread_mutex_unlock(&conn->lock);
    mark_dirty(conn);
}

/* The connection on which the least waits to be written, or, `by_landing`, to be received. */
static struct remote_conn *choose(const struct remote_link *link, bool by_landing)
{
    struct remote_conn *conn, *best = NULL;
    size_t least = SIZE_MAX;
    TAILQ_FOREACH (conn, &link->conns, entry) {
        if (!remote_carries(conn)) continue;
        const size_t bytes = by_landing ? conn->landing_bytes
                                        : atomic_load_explicit(&conn->writes.queued_bytes,
                                                               memory_order_relaxed);
        if (best != NULL && bytes >= least) continue;
        best = conn;
        least = bytes;
    }
    return best;
}

static void submit(struct remote_link *link, struct remote_item *item)
{
    struct remote_conn *conn = choose(link, false);
    if (conn != NULL) {
        put(conn, item);
        return;
    }
    if (item->op != NULL) item->op->held = item;
    TAILQ_INSERT_TAIL(&link->waiting, item, entry);
}

/* Queues a frame without header and payload. Without memory the link ends: the other end would wait. */
static void answer(struct remote_link *link, struct remote_conn *conn, enum remote_kind kind,
                   uint64_t serial)
{
    struct remote_item *item = item_new(link->fabric, kind, serial);
    if (item == NULL)
        remote_link_lose(link, CAIRN_ERR_CLOSED);
    else if (conn != NULL)
        put(conn, item);
    else
        submit(link, item);
}

/* Ends an item that will not be written. */
static void item_return(struct remote_fabric *fabric, struct remote_item *item, cairn_status status)
{
    if (item->op != NULL) fabric_op_done(item->op, status);
    item_free(fabric, item);
}

static void return_items(struct remote_fabric *fabric, struct remote_items *items,
                         cairn_status status)
{
    struct remote_item *item;
    while ((item = TAILQ_FIRST(items)) != NULL) {
        TAILQ_REMOVE(items, item, entry);
        item_return(fabric, item, status);
    }
}

/* Queues what waited for the link's first connection. */
static void begin_sends(struct remote_conn *conn)
{
    struct remote_item *item;
    while ((item = TAILQ_FIRST(&conn->link->waiting)) != NULL) {
        TAILQ_REMOVE(&conn->link->waiting, item, entry);
        put(conn, item);
    }
}

/* Ends the sends of a lost link that no connection has. */
static void end_sends(struct remote_link *link)
{
    return_items(link->fabric, &link->waiting, CAIRN_ERR_CLOSED);
    for (uint32_t i = 0; i < link->flights.capacity; i++) {
        struct fabric_flight *flight = &link->flights.all[i];
        if (!flight->is_used) continue;
        if (flight->op != NULL) fabric_op_done(flight->op, CAIRN_ERR_CLOSED);
        fabric_flight_end(&link->flights, flight);
    }
}

/* ---- sends whose peer was closed ---- */

/* Makes NONE of a payload for which the receiver waits: it is told that there is none. */
static void make_none(struct remote_conn *conn, struct remote_item *item)
{
    item->frame = (struct remote_frame) { .kind = REMOTE_NONE };
    item->kind = REMOTE_NONE;
    item->head_bytes = sizeof item->frame;
    item->op = NULL;
    item->payload_bytes = 0;
    item_seal(item);
    atomic_fetch_add_explicit(&conn->writes.reply_count, 1, memory_order_relaxed);
}

static bool has_item(const struct remote_items *items, const struct remote_item *item)
{
    const struct remote_item *one;
    TAILQ_FOREACH (one, items, entry)
        if (one == item) return true;
    return false;
}

/* Takes an item back that waits on this connection. False: it is not there, or is being written. */
static bool take_back_from(struct remote_conn *conn, struct remote_item *item)
{
    HOLD_LOCK(&conn->lock);
    const bool is_data = item->kind == REMOTE_DATA;
    if (item->is_begun || !has_item(is_data ? &conn->writes.bulk : &conn->writes.urgent, item))
        return false;
    const size_t bytes = item->head_bytes + item->payload_bytes;
    if (is_data) {
        make_none(conn, item);
        atomic_fetch_add_explicit(&conn->writes.queued_bytes, item->head_bytes,
                                  memory_order_relaxed);
    } else {
        TAILQ_REMOVE(&conn->writes.urgent, item, entry);
        item_free(conn->fabric, item);
    }
    atomic_fetch_sub_explicit(&conn->writes.queued_bytes, bytes, memory_order_relaxed);
    return true;
}

/* Takes an item back that nobody has begun to write. */
static bool take_back(struct remote_link *link, struct remote_item *item)
{
    struct remote_conn *conn;
    if (has_item(&link->waiting, item)) {
        TAILQ_REMOVE(&link->waiting, item, entry);
        item_free(link->fabric, item);
        return true;
    }
    TAILQ_FOREACH (conn, &link->conns, entry)
        if (take_back_from(conn, item)) return true;
    return false;
}

/* Gives the sends of a peer that is being closed some time; then they end. */
static void limit_sends(const struct remote_peer *peer)
{
    const struct fabric_peer *common = &peer->common;
    const uint64_t due_ms = monotonic_ms() + GRACE_MS;
    struct fabric_op *op;
    TAILQ_FOREACH (op, &common->fabric->flying, link) {
        if (!op->is_send || op->to != common) continue;
        op->to = NULL;
        op->by = peer->link;
        op->due_ms = due_ms;
    }
}

static struct fabric_flight *find_flight(struct remote_link *link, const struct fabric_op *op)
{
    for (uint32_t i = 0; i < link->flights.capacity; i++)
        if (link->flights.all[i].is_used && link->flights.all[i].op == op)
            return &link->flights.all[i];
    return NULL;
}

/* Ends a send whose peer was closed, and whose time has come. */
static void end_op(struct fabric_op *op, uint64_t now_ms)
{
    struct remote_link *link = op->by;
    struct remote_item *item = op->held;
    struct fabric_flight *flight = find_flight(link, op);
    if (flight != NULL) {
        fabric_flight_end(&link->flights, flight);
        fabric_op_done(op, CAIRN_ERR_CLOSED);
    } else if (item != NULL && take_back(link, item)) {
        fabric_op_done(op, CAIRN_ERR_CLOSED);
    } else if (item != NULL && !item->is_spared) {
        item->is_spared = true; // it is being written
        op->due_ms = now_ms + link->fabric->patience_ms;
    } else {
        op->due_ms = 0; // a thread may still have it: it ends with its connection
        remote_link_lose(link, CAIRN_ERR_CLOSED);
    }
}

bool remote_ops_tick(struct remote_fabric *fabric, uint64_t now_ms)
{
    struct fabric_op *op = TAILQ_FIRST(&fabric->common.flying), *next;
    bool is_due = false;
    for (; op != NULL; op = next) {
        next = TAILQ_NEXT(op, link);
        if (op->due_ms == 0) continue;
        is_due = true;
        if (now_ms < op->due_ms) continue;
        end_op(op, now_ms);
        next = TAILQ_FIRST(&fabric->common.flying); // a link may have ended, and many ops with it
        if (next == op) next = TAILQ_NEXT(op, link);
    }
    return is_due;
}

/* ---- sending ---- */

static cairn_status announce(struct remote_link *link, struct fabric_op *op, const void *payload,
                             struct remote_item *item)
{
    uint64_t serial;
    CAIRN_TRY(fabric_flight_begin(&link->flights, &serial));
    struct fabric_flight *flight = fabric_flight_find(&link->flights, serial);
    flight->op = op;
    flight->payload = payload;
    item->kind = REMOTE_ANNOUNCE;
    item->frame.kind = REMOTE_ANNOUNCE;
    item->frame.serial = serial;
    op->held = NULL;
    return CAIRN_OK;
}

cairn_status remote_send(struct fabric_peer *common, struct fabric_op *op, const void *payload)
{
    struct remote_link *link = remote_peer_of(common)->link;
    if (link->is_lost) return CAIRN_ERR_CLOSED;
    struct remote_item *item = item_new(link->fabric, REMOTE_MESSAGE, 0);
    if (item == NULL) return CAIRN_ERR_NO_MEMORY;
    item->frame.header_bytes = (uint16_t)op->header_bytes;
    item->frame.payload_bytes = (uint32_t)op->payload_bytes;
    memcpy(item->head + sizeof item->frame, op->header, op->header_bytes);
    item->head_bytes += (uint32_t)op->header_bytes;
    op->to = common;
    if (op->payload_bytes > REMOTE_EAGER_MAX) {
        const cairn_status status = announce(link, op, payload, item);
        if (status != CAIRN_OK) {
            item_free(link->fabric, item);
            return status;
        }
    } else {
        item->op = op;
        item->payload = payload;
        item->payload_bytes = op->payload_bytes;
    }
    submit(link, item);
    return CAIRN_OK;
}

/* The receiver wants a payload; it may have been taken back since it was announced. */
static void on_take(struct remote_conn *conn, uint64_t serial)
{
    struct remote_link *link = conn->link;
    struct fabric_flight *flight = fabric_flight_find(&link->flights, serial);
    if (flight == NULL) {
        answer(link, conn, REMOTE_NONE, 0);
        return;
    }
    struct remote_item *item = item_new(link->fabric, REMOTE_DATA, 0);
    if (item == NULL) {
        remote_link_lose(link, CAIRN_ERR_CLOSED);
        return;
    }
    item->op = flight->op;
    item->payload = flight->payload;
    item->payload_bytes = flight->op->payload_bytes;
    fabric_flight_end(&link->flights, flight);
    put(conn, item);
}

static void on_drop(struct remote_conn *conn, uint64_t serial)
{
    struct remote_link *link = conn->link;
    struct fabric_flight *flight = fabric_flight_find(&link->flights, serial);
    if (flight == NULL) return; // its peer was closed
    fabric_op_done(flight->op, CAIRN_OK);
    fabric_flight_end(&link->flights, flight);
}

/* ---- receiving ---- */

static void let_go_of(struct remote_message *message)
{
    free(message->copy);
    message->copy = NULL;
    if (message->link != NULL) message->link->held--;
    message->link = NULL;
}

void remote_drop(struct fabric_message *common)
{
    struct remote_message *message = (struct remote_message *)common;
    struct remote_link *link = message->link;
    const uint64_t serial = message->serial;
    let_go_of(message);
    if (link != NULL && !link->is_lost) answer(link, NULL, REMOTE_DROP, serial);
}

/* Asks for the payload on the connection that has the least to bring. */
static bool take(struct remote_link *link, uint64_t serial, struct fabric_op *op, void *buffer)
{
    struct remote_conn *conn = choose(link, true);
    struct remote_landing *landing = conn != NULL ? malloc(sizeof *landing) : NULL;
    struct remote_item *item = landing != NULL ? item_new(link->fabric, REMOTE_TAKE, serial) : NULL;
    if (item == NULL) {
        free(landing);
        remote_link_lose(link, CAIRN_ERR_CLOSED);
        return false;
    }
    *landing = (struct remote_landing) { .op = op,
                                         .buffer = buffer,
                                         .bytes = op->payload_bytes,
                                         .wants_sum = op->checksum_out != NULL };
    conn->landing_bytes += landing->bytes;
    pthread_mutex_lock(&conn->lock);
    TAILQ_INSERT_TAIL(&conn->reads.landings, landing, entry);
    pthread_mutex_unlock(&conn->lock);
    put(conn, item);
    return true;
}

void remote_receive(struct fabric_message *common, struct fabric_op *op, void *buffer)
{
    struct remote_message *message = (struct remote_message *)common;
    struct remote_link *link = message->link;
    const uint64_t serial = message->serial;
    if (link == NULL) {
        memcpy(buffer, message->copy, common->payload_bytes);
        fabric_op_done(op, CAIRN_OK);
    }
    let_go_of(message);
    if (link == NULL) return;
    if (link->is_lost || !take(link, serial, op, buffer)) fabric_op_done(op, CAIRN_ERR_CLOSED);
}

/* A message whose payload came with it. False: there is no memory; its sender would wait for ever. */
static bool offer_copy(struct remote_link *link, const struct remote_frame *frame,
                       const uint8_t *header)
{
    struct fabric *fabric = &link->fabric->common;
    if (!fabric_judge(fabric, frame->header_bytes, frame->payload_bytes)) return true;
    if (frame->payload_bytes == 0) {
        fabric_offer(fabric, header, frame->header_bytes, 0, NULL);
        return true;
    }
    uint8_t *copy = malloc(frame->payload_bytes);
    if (copy == NULL) return false;
    struct remote_message *message = (struct remote_message *)fabric_message_new(
        fabric, frame->payload_bytes);
    if (message == NULL) {
        free(copy);
        return false;
    }
    memcpy(copy, header + frame->header_bytes, frame->payload_bytes);
    message->copy = copy;
    fabric_offer(fabric, header, frame->header_bytes, frame->payload_bytes, &message->common);
    return true;
}

/* A message whose payload waits at the sender. */
static bool offer_waiting(struct remote_link *link, const struct remote_frame *frame,
                          const uint8_t *header)
{
    struct fabric *fabric = &link->fabric->common;
    if (!fabric_judge(fabric, frame->header_bytes, frame->payload_bytes)) {
        answer(link, NULL, REMOTE_DROP, frame->serial);
        return true;
    }
    struct remote_message *message = (struct remote_message *)fabric_message_new(
        fabric, frame->payload_bytes);
    if (message == NULL) return false;
    message->link = link;
    message->serial = frame->serial;
    link->held++;
    fabric_offer(fabric, header, frame->header_bytes, frame->payload_bytes, &message->common);
    return true;
}

/* Stops reading from a node that does not read our answers, so that it cannot make us keep more of them. */
static void judge_pause(struct remote_link *link)
{
    struct remote_conn *conn;
    uint32_t replies = 0;
    TAILQ_FOREACH (conn, &link->conns, entry) {
        if (remote_carries(conn))
            replies += atomic_load_explicit(&conn->writes.reply_count, memory_order_relaxed);
    }
    const bool is_paused = replies > (link->is_paused ? REMOTE_REPLIES_MAX / 2u
                                                      : (uint32_t)REMOTE_REPLIES_MAX);
    if (is_paused == link->is_paused) return;
    link->is_paused = is_paused;
    TAILQ_FOREACH (conn, &link->conns, entry) {
        if (!remote_carries(conn)) continue;
        pthread_mutex_lock(&conn->lock);
        conn->is_paused = is_paused;
        pthread_mutex_unlock(&conn->lock);
        mark_dirty(conn);
    }
}

bool remote_on_frames(struct remote_conn *conn, const uint8_t *bytes, size_t count)
{
    struct remote_link *link = conn->link;
    bool is_ok = true;
    for (size_t at = 0; at < count && is_ok && conn->state == REMOTE_IS_UP;) {
        struct remote_frame frame;
        assert(count - at >= sizeof frame); // the reader judged it
        memcpy(&frame, bytes + at, sizeof frame);
        const uint8_t *header = bytes + at + sizeof frame;
        at += remote_frame_bytes(&frame);
        assert(at <= count);
        switch ((enum remote_kind)frame.kind) {
        case REMOTE_MESSAGE: is_ok = offer_copy(link, &frame, header); break;
        case REMOTE_ANNOUNCE: is_ok = offer_waiting(link, &frame, header); break;
        case REMOTE_TAKE: on_take(conn, frame.serial); break;
        case REMOTE_DROP: on_drop(conn, frame.serial); break;
        default: break;
        }
    }
    if (conn->state == REMOTE_IS_UP) judge_pause(link); // before more is read
    return is_ok;
}

/* ---- what the reader left ---- */

/* Gives up what the connection was to bring. */
static void end_landings(struct remote_conn *conn, struct remote_landings *landings,
                         cairn_status status)
{
    struct remote_landing *landing;
    while ((landing = TAILQ_FIRST(landings)) != NULL) {
        struct fabric_op *op = landing->op;
        TAILQ_REMOVE(landings, landing, entry);
        conn->landing_bytes -= landing->bytes;
        if (landing->is_whole && landing->wants_sum) {
            *op->checksum_out = landing->sum;
            op->is_summed = true;
        }
        fabric_op_done(op, landing->is_whole ? CAIRN_OK : status);
        free(landing);
    }
}

void remote_conn_return(struct remote_conn *conn)
{
    struct remote_fabric *fabric = conn->fabric;
    struct remote_chunk *chunk;
    return_items(fabric, &conn->writes.written, CAIRN_OK);
    return_items(fabric, &conn->writes.wire, CAIRN_ERR_CLOSED);
    return_items(fabric, &conn->writes.urgent, CAIRN_ERR_CLOSED);
    return_items(fabric, &conn->writes.bulk, CAIRN_ERR_CLOSED);
    end_landings(conn, &conn->reads.landed, CAIRN_ERR_CLOSED);
    end_landings(conn, &conn->reads.landings, CAIRN_ERR_CLOSED);
    while ((chunk = TAILQ_FIRST(&conn->reads.arrived)) != NULL) {
        TAILQ_REMOVE(&conn->reads.arrived, chunk, entry);
        free(chunk);
    }
}

/* Takes the frames that a thread has read. */
static unsigned take_arrived(struct remote_conn *conn)
{
    struct remote_link *link = conn->link;
    unsigned count = 0;
    while (conn->state == REMOTE_IS_UP && !link->is_paused) {
        if (remote_is_turn_over(conn->fabric)) {
            mark_dirty(conn); // the rest in the next turn
            break;
        }
        pthread_mutex_lock(&conn->lock);
        struct remote_chunk *chunk = TAILQ_FIRST(&conn->reads.arrived);
        const bool was_full = conn->reads.arrived_bytes >= REMOTE_ARRIVED_MAX;
        if (chunk != NULL) {
            TAILQ_REMOVE(&conn->reads.arrived, chunk, entry);
            conn->reads.arrived_bytes -= chunk->bytes;
        }
        const bool is_room = was_full && conn->reads.arrived_bytes < REMOTE_ARRIVED_MAX;
        pthread_mutex_unlock(&conn->lock);
        if (chunk == NULL) break;
        conn->fabric->turn_bytes += chunk->bytes + REMOTE_CHUNK_COST;
        if (is_room) mark_dirty(conn); // which makes the thread read again
        const bool is_ok = remote_on_frames(conn, chunk->data, chunk->bytes);
        free(chunk);
        count++;
        if (!is_ok) remote_link_lose(link, CAIRN_ERR_CLOSED);
    }
    return count;
}

/* Says why a link that was up has ended, if it is not the other end's own wish. */
static void say_lost(const struct remote_link *link, const char *why)
{
    const struct fabric_options *options = &link->fabric->common.options;
    char text[256];
    if (options->on_refused == NULL) return;
    snprintf(text, sizeof text, "the connections to %s end: %s", link->name, why);
    options->on_refused(options->on_message_arg, text);
}

/* Many nodes may end at once; one of them is named. */
static void say_cut(struct remote_link *link)
{
    const uint64_t now_ms = monotonic_ms();
    struct remote_fabric *fabric = link->fabric;
    if (fabric->cut_said_ms != 0 && now_ms - fabric->cut_said_ms < CUT_SAID_MS) return;
    fabric->cut_said_ms = now_ms;
    say_lost(link,
             "one was cut off, and the node had not closed it: the node was killed, or somebody on "
             "the network ends its connections");
}

/* Ends the link of a connection that carried data, and has ended. */
static void end_broken(struct remote_conn *conn, const struct remote_end *end)
{
    struct remote_link *link = conn->link;
    if (end->fault != NULL) {
        conn->fabric->common.stats.connections_refused++;
        say_lost(link, end->fault);
    } else if (end->is_cut && link->linger_ms == 0) {
        say_cut(link);
    }
    remote_link_lose(link, CAIRN_ERR_CLOSED);
}

/* True if frames that came before the end wait for the next turn. The connection is dirty then. */
static bool is_put_off(struct remote_conn *conn)
{
    HOLD_LOCK(&conn->lock);
    return conn->is_dirty && !conn->link->is_paused && remote_is_turn_over(conn->fabric) &&
           !TAILQ_EMPTY(&conn->reads.arrived);
}

unsigned remote_conn_harvest(struct remote_conn *conn)
{
    struct remote_items written = TAILQ_HEAD_INITIALIZER(written);
    struct remote_landings landed = TAILQ_HEAD_INITIALIZER(landed);
    if (conn->state == REMOTE_ENDED) return 0;
    pthread_mutex_lock(&conn->lock);
    TAILQ_CONCAT(&written, &conn->writes.written, entry);
    TAILQ_CONCAT(&landed, &conn->reads.landed, entry);
    const struct remote_end end = conn->end;
    pthread_mutex_unlock(&conn->lock);
    unsigned count = !TAILQ_EMPTY(&written) || !TAILQ_EMPTY(&landed) || end.is_broken;
    return_items(conn->fabric, &written, CAIRN_OK);
    end_landings(conn, &landed, CAIRN_ERR_CLOSED);
    if (conn->state != REMOTE_IS_UP) return count;
    count += take_arrived(conn);
    if (conn->state == REMOTE_IS_UP) judge_pause(conn->link);
    if (end.is_broken && conn->state == REMOTE_IS_UP && !is_put_off(conn)) end_broken(conn, &end);
    return count;
}

/* ==== links ==== */

struct remote_link *remote_link_find(struct remote_fabric *fabric, const uint8_t *key)
{
    struct remote_link *link;
    LIST_FOREACH (link, &fabric->links, entry)
        if (!link->is_lost && memcmp(link->key, key, sizeof link->key) == 0) return link;
    return NULL;
}

struct remote_link *remote_link_open(struct remote_fabric *fabric, const uint8_t *key)
{
    struct remote_link *link = calloc(1, sizeof *link);
    if (link == NULL) return NULL;
    link->fabric = fabric;
    memcpy(link->key, key, sizeof link->key);
    while (link->incarnation == 0) randombytes_buf(&link->incarnation, sizeof link->incarnation);
    LIST_INIT(&link->peers);
    TAILQ_INIT(&link->conns);
    TAILQ_INIT(&link->waiting);
    snprintf(link->name, sizeof link->name, "a node that connected");
    LIST_INSERT_HEAD(&fabric->links, link, entry);
    fabric->common.stats.endpoints_made++;
    fabric->common.stats.endpoints_now++;
    remote_tick_soon(fabric);
    return link;
}

void remote_link_lose(struct remote_link *link, cairn_status why)
{
    struct remote_peer *peer;
    struct remote_conn *conn, *next;
    if (link->is_lost) return;
    link->is_lost = true;
    LIST_FOREACH (peer, &link->peers, of_link) fabric_peer_lost(&peer->common, why);
    for (conn = TAILQ_FIRST(&link->conns); conn != NULL; conn = next) {
        next = TAILQ_NEXT(conn, entry);
        remote_conn_end(conn);
    }
    end_sends(link);
}

static void link_free(struct remote_link *link)
{
    LIST_REMOVE(link, entry);
    link->fabric->common.stats.endpoints_now--;
    free(link->flights.all);
    sodium_memzero(&link->address, sizeof link->address);
    free(link);
}

void remote_link_close(struct remote_link *link)
{
    remote_link_lose(link, CAIRN_ERR_CLOSED);
    link_free(link);
}

void remote_links_sweep(struct remote_fabric *fabric)
{
    struct remote_link *link = LIST_FIRST(&fabric->links), *next;
    for (; link != NULL; link = next) {
        next = LIST_NEXT(link, entry);
        if (link->is_lost && LIST_EMPTY(&link->peers) && link->held == 0 && link->conn_count == 0)
            link_free(link);
    }
}

void remote_link_on_pulse(struct remote_conn *conn)
{
    uint8_t byte;
    const ssize_t got = recv(conn->fd, &byte, sizeof byte, MSG_DONTWAIT);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (got < 0 && errno == ETIMEDOUT)
        say_lost(conn->link, "its host has acknowledged nothing for longer than the patience of "
                             "this fabric");
    if (got > 0) conn->fabric->common.stats.connections_refused++;
    remote_link_lose(conn->link, CAIRN_ERR_CLOSED);
}

/* ---- dialing ---- */

static bool is_dialing(const struct remote_link *link)
{
    const struct remote_conn *conn;
    TAILQ_FOREACH (conn, &link->conns, entry)
        if (conn->is_dialed && conn->state < REMOTE_IS_UP) return true;
    return false;
}

/* Tries the next address of this round, or one after it if it fails at once. The one behind that is tried
 * soon, too: an address that does not answer holds nobody up. */
static void dial_next(struct remote_link *link)
{
    while (link->ip_next < link->ip_count) {
        struct sockaddr_storage to;
        remote_ip_to(&link->ips[link->ip_next++], &to);
        link->dial_ms = link->ip_next < link->ip_count ? monotonic_ms() + NEXT_MS : 0;
        if (remote_dial(link, &to, false)) return;
    }
    link->dial_ms = 0;
    if (is_dialing(link)) return; // the last that fails begins the next round
    const uint64_t now_ms = monotonic_ms(), refused_ms = link->since_ms + REFUSED_MS;
    if (link->refused_count >= link->ip_count && refused_ms < link->limit_ms)
        link->limit_ms = refused_ms;
    link->ip_next = link->refused_count = 0;
    link->dial_ms = now_ms + DIAL_AGAIN_MS;
    remote_tick_soon(link->fabric);
}

void remote_link_on_failed(struct remote_link *link, bool is_refused)
{
    if (is_refused) link->refused_count++;
    if (!link->is_lost && link->up_count == 0) dial_next(link);
}

/* Makes the other connections of a link to which we made the first one; also later, those that failed. */
static void top_up(struct remote_link *link, uint64_t now_ms)
{
    if (link->top_to.ss_family == AF_UNSPEC || now_ms < link->top_ms ||
        link->conn_count > link->up_count + link->pulse_count) // some are being made
        return;
    if (link->pulse_count == 0) (void)remote_dial(link, &link->top_to, true);
    for (uint32_t i = link->up_count; i < REMOTE_LANES; i++)
        (void)remote_dial(link, &link->top_to, false);
    link->top_ms = now_ms + link->top_delay_ms;
    if (link->top_delay_ms < TOP_AGAIN_MAX_MS) link->top_delay_ms *= 2;
}

/* Ends the attempts by other addresses, unless the node may have heard of them already. */
static void end_losers(struct remote_link *link)
{
    struct remote_conn *conn = TAILQ_FIRST(&link->conns), *next;
    for (; conn != NULL; conn = next) {
        next = TAILQ_NEXT(conn, entry);
        if (conn->is_dialed && conn->state <= REMOTE_GREETS) remote_conn_end(conn);
    }
}

void remote_link_on_up(struct remote_conn *conn)
{
    struct remote_link *link = conn->link;
    if (conn->is_pulse) {
        link->pulse_count++;
        return;
    }
    if (link->up_count == 0) end_losers(link); // one that was up ends with its link
    link->up_count++;
    link->dial_ms = link->limit_ms = 0;
    if (conn->is_dialed && link->top_to.ss_family == AF_UNSPEC) {
        link->top_to = conn->to;
        link->top_delay_ms = TOP_AGAIN_MS;
        top_up(link, monotonic_ms());
    }
    begin_sends(conn);
}

/* True if the IP is reached over one of the devices that we listen on. */
static bool is_on_our_way(const struct remote_fabric *fabric, const struct remote_ip *ip)
{
    char text[INET6_ADDRSTRLEN];
    struct route route;
    remote_ip_print(ip, text);
    if (!route_find(text, &route)) return false;
    for (uint32_t i = 0; i < fabric->listener_count; i++)
        if (strcmp(fabric->listeners[i].device, route.device) == 0) return true;
    return false;
}

/* Keeps the address, with those IPs first to which the kernel's routes lead over our devices. */
static void take_address(struct remote_link *link, const struct remote_address *address,
                         const struct remote_ip *ips)
{
    bool is_first[REMOTE_IPS_MAX];
    char text[INET6_ADDRSTRLEN];
    link->address = *address;
    link->ip_count = 0;
    for (uint32_t i = 0; i < address->count; i++)
        is_first[i] = is_on_our_way(link->fabric, &ips[i]);
    for (int wanted = 1; wanted >= 0; wanted--)
        for (uint32_t i = 0; i < address->count; i++)
            if (is_first[i] == (wanted == 1)) link->ips[link->ip_count++] = ips[i];
    const struct remote_ip *first = &link->ips[0];
    remote_ip_print(first, text);
    snprintf(link->name, sizeof link->name, first->family == 4 ? "%s:%u" : "[%s]:%u", text,
             first->port);
}

static bool read_address(const void *raw, size_t bytes, struct remote_address *out,
                         struct remote_ip ips_out[REMOTE_IPS_MAX])
{
    if (bytes < sizeof *out) return false;
    memcpy(out, raw, sizeof *out);
    if (out->version != REMOTE_ADDRESS_VERSION || out->count == 0 || out->count > REMOTE_IPS_MAX ||
        bytes - sizeof *out < out->count * sizeof *ips_out)
        return false;
    memcpy(ips_out, (const uint8_t *)raw + sizeof *out, out->count * sizeof *ips_out);
    for (uint32_t i = 0; i < out->count; i++)
        if ((ips_out[i].family != 4 && ips_out[i].family != 6) || ips_out[i].port == 0)
            return false;
    return true;
}

/* Begins to connect, unless the node has connected to us. */
static void reach(struct remote_link *link)
{
    const uint64_t now_ms = monotonic_ms();
    link->since_ms = now_ms;
    link->limit_ms = now_ms + link->fabric->patience_ms;
    remote_tick_soon(link->fabric);
    remote_admit(link->fabric, link->key);
    if (link->is_lost || link->up_count > 0) return;
    if (link->conn_count > 0)
        link->dial_ms = now_ms + ADMIT_MS;
    else
        dial_next(link);
}

cairn_status remote_connect(struct fabric_peer *common, const void *raw, size_t bytes)
{
    struct remote_fabric *fabric = remote_of(common->fabric);
    struct remote_peer *peer = remote_peer_of(common);
    struct remote_address address;
    struct remote_ip ips[REMOTE_IPS_MAX];
    if (!read_address(raw, bytes, &address, ips)) return CAIRN_ERR_MALFORMED;
    struct remote_link *link = remote_link_find(fabric, address.key);
    if (link == NULL && (link = remote_link_open(fabric, address.key)) == NULL)
        return CAIRN_ERR_NO_MEMORY;
    const bool is_new = link->ip_count == 0;
    if (is_new) take_address(link, &address, ips);
    sodium_memzero(&address, sizeof address);
    peer->link = link;
    LIST_INSERT_HEAD(&link->peers, peer, of_link);
    link->linger_ms = 0;
    if (is_new && link->up_count == 0) reach(link);
    return CAIRN_OK;
}

/* ---- who is expected ---- */

/* Plans the end of a link that has no peer any more, if nothing else keeps it. */
static void judge_link(struct remote_link *link)
{
    const struct remote_fabric *fabric = link->fabric;
    const bool is_kept = link->up_count > 0 &&
                         (!fabric->is_strict || remote_expected_find(fabric, link->key) != NULL);
    if (!link->is_lost && LIST_EMPTY(&link->peers) && !is_kept)
        link->linger_ms = monotonic_ms() + LINGER_MS;
}

static void expected_put(struct remote_fabric *fabric, struct remote_expected *one)
{
    struct remote_link *link = remote_link_find(fabric, one->key);
    if (--one->count > 0) return;
    LIST_REMOVE(one, entry);
    free(one);
    if (link != NULL) judge_link(link);
    remote_tick_soon(fabric);
}

cairn_status remote_expect(struct fabric *common, const void *address, size_t bytes,
                           bool is_expected)
{
    struct remote_fabric *fabric = remote_of(common);
    struct remote_address head;
    struct remote_ip ips[REMOTE_IPS_MAX];
    size_t raw_bytes;
    const void *raw = fabric_open_address(common, address, bytes, &raw_bytes);
    if (raw == NULL || !read_address(raw, raw_bytes, &head, ips)) return CAIRN_OK;
    struct remote_expected *one = remote_expected_find(fabric, head.key);
    if (!is_expected) {
        if (one != NULL) expected_put(fabric, one);
        return CAIRN_OK;
    }
    if (one == NULL) {
        if ((one = calloc(1, sizeof *one)) == NULL) return CAIRN_ERR_NO_MEMORY;
        memcpy(one->key, head.key, sizeof one->key);
        LIST_INSERT_HEAD(&fabric->expected, one, entry);
    }
    one->count++;
    struct remote_link *link = remote_link_find(fabric, head.key);
    if (link != NULL && link->up_count > 0) link->linger_ms = 0;
    remote_admit(fabric, head.key);
    return CAIRN_OK;
}

/* ---- peers that are closed ---- */

void remote_disconnect(struct fabric_peer *common)
{
    struct remote_peer *peer = remote_peer_of(common);
    struct remote_fabric *fabric = remote_of(common->fabric);
    struct remote_link *link = peer->link;
    limit_sends(peer);
    LIST_REMOVE(peer, of_link);
    judge_link(link);
    remote_tick_soon(fabric);
}

/* ---- the clock ---- */

/* True if the connection's host has not acknowledged anything for too long of what is under way. A process
 * that is stopped is not meant: its kernel answers, even if it has no room. */
static bool is_silent(struct remote_conn *conn, uint64_t now_ms)
{
    struct tcp_info info = { .tcpi_unacked = 0 };
    socklen_t bytes = sizeof info;
    if (!remote_carries(conn) || getsockopt(conn->fd, IPPROTO_TCP, TCP_INFO, &info, &bytes) != 0)
        return false;
    if (info.tcpi_unacked == 0 || info.tcpi_bytes_acked != conn->acked_bytes)
        conn->unacked_since_ms = 0;
    else if (conn->unacked_since_ms == 0)
        conn->unacked_since_ms = now_ms;
    conn->acked_bytes = info.tcpi_bytes_acked;
    return conn->unacked_since_ms != 0 &&
           now_ms - conn->unacked_since_ms > conn->fabric->patience_ms &&
           info.tcpi_last_ack_recv > conn->fabric->patience_ms;
}

static bool has_silent(const struct remote_link *link, uint64_t now_ms)
{
    struct remote_conn *conn;
    TAILQ_FOREACH (conn, &link->conns, entry)
        if (is_silent(conn, now_ms)) return true;
    return false;
}

bool remote_link_tick(struct remote_link *link, uint64_t now_ms)
{
    if (link->is_lost) return false;
    if (link->linger_ms != 0 && now_ms >= link->linger_ms) {
        remote_link_lose(link, CAIRN_ERR_CLOSED);
        return false;
    }
    if (link->limit_ms != 0 && now_ms >= link->limit_ms) {
        remote_link_lose(link, CAIRN_ERR_UNREACHABLE);
        return false;
    }
    if (link->dial_ms != 0 && now_ms >= link->dial_ms) {
        link->dial_ms = 0;
        dial_next(link);
    }
    top_up(link, now_ms);
    if (has_silent(link, now_ms)) {
        say_lost(link, "its host has acknowledged nothing of what was sent for longer than the "
                       "patience of this fabric");
        remote_link_lose(link, CAIRN_ERR_CLOSED);
        return false;
    }
    return link->linger_ms != 0 || link->limit_ms != 0 || link->dial_ms != 0 ||
           link->conn_count > link->up_count + link->pulse_count;
}
