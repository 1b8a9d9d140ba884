/* Messages between hosts: what is sent over a link and what comes over it, on the owner's thread. */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "proto/base/machine.h"
#include "proto/fabric/remote.h"

/* how long a send may wait for its receiver after its peer was closed */
#define GRACE_MS 500

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
    TAILQ_INSERT_TAIL(is_bulk ? &conn->bulk : &conn->urgent, item, entry);
    if (remote_is_reply(item))
        atomic_fetch_add_explicit(&conn->reply_count, 1, memory_order_relaxed);
    atomic_fetch_add_explicit(&conn->queued_bytes, item->head_bytes + item->payload_bytes,
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
        const size_t bytes = by_landing
                                 ? conn->landing_bytes
                                 : atomic_load_explicit(&conn->queued_bytes, memory_order_relaxed);
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

void remote_sends_begin(struct remote_conn *conn)
{
    struct remote_item *item;
    while ((item = TAILQ_FIRST(&conn->link->waiting)) != NULL) {
        TAILQ_REMOVE(&conn->link->waiting, item, entry);
        put(conn, item);
    }
}

void remote_sends_end(struct remote_link *link)
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
    atomic_fetch_add_explicit(&conn->reply_count, 1, memory_order_relaxed);
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
    if (item->is_begun || !has_item(is_data ? &conn->bulk : &conn->urgent, item)) return false;
    const size_t bytes = item->head_bytes + item->payload_bytes;
    if (is_data) {
        make_none(conn, item);
        atomic_fetch_add_explicit(&conn->queued_bytes, item->head_bytes, memory_order_relaxed);
    } else {
        TAILQ_REMOVE(&conn->urgent, item, entry);
        item_free(conn->fabric, item);
    }
    atomic_fetch_sub_explicit(&conn->queued_bytes, bytes, memory_order_relaxed);
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

void remote_sends_limit(const struct remote_peer *peer)
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
    TAILQ_INSERT_TAIL(&conn->landings, landing, entry);
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
            replies += atomic_load_explicit(&conn->reply_count, memory_order_relaxed);
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
    return_items(fabric, &conn->written, CAIRN_OK);
    return_items(fabric, &conn->wire, CAIRN_ERR_CLOSED);
    return_items(fabric, &conn->urgent, CAIRN_ERR_CLOSED);
    return_items(fabric, &conn->bulk, CAIRN_ERR_CLOSED);
    end_landings(conn, &conn->landed, CAIRN_ERR_CLOSED);
    end_landings(conn, &conn->landings, CAIRN_ERR_CLOSED);
    while ((chunk = TAILQ_FIRST(&conn->arrived)) != NULL) {
        TAILQ_REMOVE(&conn->arrived, chunk, entry);
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
        struct remote_chunk *chunk = TAILQ_FIRST(&conn->arrived);
        const bool was_full = conn->arrived_bytes >= REMOTE_ARRIVED_MAX;
        if (chunk != NULL) {
            TAILQ_REMOVE(&conn->arrived, chunk, entry);
            conn->arrived_bytes -= chunk->bytes;
        }
        const bool is_room = was_full && conn->arrived_bytes < REMOTE_ARRIVED_MAX;
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

/* True if frames that came before the end wait for the next turn. The connection is dirty then. */
static bool is_put_off(struct remote_conn *conn)
{
    HOLD_LOCK(&conn->lock);
    return conn->is_dirty && !conn->link->is_paused && remote_is_turn_over(conn->fabric) &&
           !TAILQ_EMPTY(&conn->arrived);
}

unsigned remote_conn_harvest(struct remote_conn *conn)
{
    struct remote_items written = TAILQ_HEAD_INITIALIZER(written);
    struct remote_landings landed = TAILQ_HEAD_INITIALIZER(landed);
    if (conn->state == REMOTE_ENDED) return 0;
    pthread_mutex_lock(&conn->lock);
    TAILQ_CONCAT(&written, &conn->written, entry);
    TAILQ_CONCAT(&landed, &conn->landed, entry);
    const bool is_broken = conn->is_broken;
    const bool is_cut = conn->is_cut;
    const char *fault = conn->fault;
    pthread_mutex_unlock(&conn->lock);
    unsigned count = !TAILQ_EMPTY(&written) || !TAILQ_EMPTY(&landed) || is_broken;
    return_items(conn->fabric, &written, CAIRN_OK);
    end_landings(conn, &landed, CAIRN_ERR_CLOSED);
    if (conn->state != REMOTE_IS_UP) return count;
    count += take_arrived(conn);
    if (conn->state == REMOTE_IS_UP) judge_pause(conn->link);
    if (is_broken && conn->state == REMOTE_IS_UP && !is_put_off(conn))
        remote_link_on_broken(conn, fault, is_cut);
    return count;
}
