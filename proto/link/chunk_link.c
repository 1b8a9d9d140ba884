#include "proto/link/link.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#define RETRY_MIN_MS 20
#define RETRY_MAX_MS 1000
#define QUIET_MAX_MS 1000 /* how long a shard may be silent before we send HELLO */
#define STARVED_MS   1000 /* how long memory may be lacking before that is reported */
/* if more time passes between two checks, this process did not run, and read nothing */
#define LATE_MS 1000

/* If memory is short, a header may be sendable when a payload is not. So only a send of at least the failed
 * size shows that the shortage is over. */
void chunk_link_note_memory(struct chunk_link *link, cairn_status status, size_t payload_bytes)
{
    if (status == CAIRN_ERR_NO_MEMORY) {
        link->starved.is_short = true;
        link->starved.bytes = payload_bytes;
    } else if (status == CAIRN_OK && payload_bytes >= link->starved.bytes) {
        link->starved.is_short = false;
    }
}

uint64_t chunk_link_starved_ms(const struct chunk_link *link, uint64_t now_ms)
{
    return link->starved.since_ms == 0 ? 0 : now_ms - link->starved.since_ms;
}

static void judge_memory(struct chunk_link *link, uint64_t now_ms)
{
    const bool is_short = link->starved.is_short ||
                          (link->peer != NULL && fabric_peer_is_starved(link->peer));
    if (!is_short || !link->callbacks->waits(link)) {
        // While nothing is awaited, the failed send is not tried again; its size would then count
        // against all smaller sends that succeed.
        link->starved.is_short = false;
        link->starved.since_ms = 0;
        link->starved.is_told = false;
        return;
    }
    if (link->starved.since_ms == 0) link->starved.since_ms = now_ms;
    if (link->starved.is_told || now_ms - link->starved.since_ms < STARVED_MS) return;
    link->starved.is_told = true;
    if (link->callbacks->starved != NULL) link->callbacks->starved(link);
}

uint64_t chunk_link_silent_ms(const struct chunk_link *link, uint64_t now_ms)
{
    return now_ms - link->looked_ms > LATE_MS ? 0 : now_ms - link->unheard_since_ms;
}

static void judge_silence(struct chunk_link *link, bool speaks, uint64_t now_ms)
{
    const bool is_late = now_ms - link->looked_ms > LATE_MS;
    if (speaks || is_late) link->unheard_since_ms = now_ms;
    link->looked_ms = now_ms;
}

void chunk_link_forget(struct chunk_link *link)
{
    link->peer = NULL;
    link->lost = true;
}

void chunk_link_close(struct chunk_link *link)
{
    if (link->peer != NULL) fabric_peer_close(link->peer);
    chunk_link_forget(link);
}

void chunk_link_restart(struct chunk_link *link)
{
    chunk_link_close(link);
    link->retry_at_ms = 0;
    link->retry_delay_ms = RETRY_MIN_MS;
}

bool chunk_link_is_up(const struct chunk_link *link)
{
    return link->peer != NULL && link->endpoint != 0;
}

bool chunk_link_shares(const struct chunk_link *link)
{
    return link->peer != NULL && strcmp(fabric_peer_path(link->peer), "mapped") == 0;
}

static void on_down(void *arg, struct fabric_peer *peer, cairn_status why)
{
    struct chunk_link *link = arg;
    (void)peer; // `peer` is link->peer
    chunk_link_close(link);
    if (link->callbacks->down != NULL) link->callbacks->down(link, why);
}

static cairn_status say_hello(struct chunk_link *link)
{
    struct chunk_header hello = { .kind = CAIRN_CHUNK_HELLO, .request = link->connection };
    return chunk_link_send(link, &hello, NULL, 0, NULL, NULL);
}

static void connect_link(struct chunk_link *link, struct fabric *fabric, const uint8_t *address,
                         size_t address_bytes, uint64_t now_ms)
{
    link->retry_delay_ms = link->retry_delay_ms == 0 ? RETRY_MIN_MS : link->retry_delay_ms * 2;
    if (link->retry_delay_ms > RETRY_MAX_MS) link->retry_delay_ms = RETRY_MAX_MS;
    link->retry_at_ms = now_ms + link->retry_delay_ms;
    if (address_bytes == 0) return;
    const cairn_status status = fabric_connect_to(fabric, address, address_bytes, on_down, link,
                                                  &link->peer);
    chunk_link_note_memory(link, status, 0);
    if (status != CAIRN_OK) {
        link->peer = NULL;
        return;
    }
    link->connection++;
    link->quiet_since_ms = now_ms;
    if (say_hello(link) != CAIRN_OK) chunk_link_close(link);
}

static void break_silence(struct chunk_link *link, bool speaks, uint64_t now_ms)
{
    if (speaks) link->quiet_since_ms = now_ms;
    if (now_ms - link->quiet_since_ms < QUIET_MAX_MS) return;
    link->quiet_since_ms = now_ms;
    cairn_status status = say_hello(link);
    (void)status; // after BUSY the next attempt follows; after CLOSED on_down follows
}

void chunk_link_tick(struct chunk_link *link, struct fabric *fabric, const uint8_t *address,
                     size_t address_bytes, uint64_t now_ms)
{
    const bool speaks = link->heard || !link->callbacks->waits(link);
    link->heard = false;
    judge_memory(link, now_ms);
    judge_silence(link, speaks, now_ms);
    if (link->peer != NULL) {
        break_silence(link, speaks, now_ms);
        return;
    }
    if (link->lost && link->on_loan > 0) return;
    if (link->lost) {
        link->lost = false;
        link->endpoint = 0;
        link->way = 0;
        link->callbacks->lost(link);
    }
    if (fabric != NULL && now_ms >= link->retry_at_ms)
        connect_link(link, fabric, address, address_bytes, now_ms);
}

bool chunk_link_heard(struct chunk_link *link)
{
    if (link->lost) return false;
    link->heard = true;
    return true;
}

bool chunk_link_on_hello(struct chunk_link *link, uint64_t way)
{
    const uint32_t endpoint = CAIRN_CHUNK_WAY_ENDPOINT(way);
    link->retry_delay_ms = RETRY_MIN_MS;
    if (way > link->way) link->way = way;
    if (endpoint <= link->endpoint) return false;
    link->endpoint = endpoint;
    return true;
}

/* True if the payload's checksum is compared. A chunk that the shard folds in place is not transferred, so
 * it cannot be damaged. A chunk that is received into other memory is compared there, unless its
 * sender computed no checksum of it. */
static bool is_compared(const struct chunk_link *link, const struct chunk_header *header)
{
    if (header->kind != CAIRN_CHUNK_PUSH) return true;
    return !chunk_link_shares(link) && (header->value & CAIRN_CHUNK_UNSUMMED) == 0;
}

cairn_status chunk_link_send(struct chunk_link *link, struct chunk_header *header,
                             const void *payload, size_t payload_bytes, fabric_done_fn *on_sent,
                             void *arg)
{
    uint8_t bytes[CAIRN_CHUNK_HEADER_BYTES];
    if (link->peer == NULL) return CAIRN_ERR_CLOSED;
    assert(payload_bytes == 0 || on_sent != NULL);
    link->callbacks->sign(link, header);
    header->payload_bytes = payload_bytes;
    header->checksum = 0;
    if (is_compared(link, header)) header->checksum = chunk_checksum(payload, payload_bytes);
    chunk_encode(header, bytes);
    const cairn_status status = fabric_send(link->peer, bytes, sizeof bytes, payload, payload_bytes,
                                            on_sent, arg);
    chunk_link_note_memory(link, status, payload_bytes);
    if (status == CAIRN_OK && on_sent != NULL) chunk_link_loan(link);
    return status;
}

/* ---- loans ---- */

void chunk_link_loan(struct chunk_link *link)
{
    link->on_loan++;
    if (link->callbacks->loan != NULL) link->callbacks->loan(link);
}

void chunk_link_loan_back(struct chunk_link *link)
{
    assert(link->on_loan > 0);
    link->on_loan--;
    if (link->callbacks->loan_back != NULL) link->callbacks->loan_back(link);
}

void chunk_link_sent(struct chunk_link *link, cairn_status status)
{
    if (status == CAIRN_ERR_NO_MEMORY) chunk_link_close(link);
    chunk_link_loan_back(link);
}

/* ==== asker ==== */

#define DAMAGED_MAX 16 /* after this many damaged answers the path to the shard is broken */
#define SENT_MAX    8  /* a shard holds at most twice as many of our requests */

void asker_open(struct asker *asker, cairn_status (*send)(struct chunk_request *))
{
    *asker = (struct asker) { .send = send };
    TAILQ_INIT(&asker->waiting);
    TAILQ_INIT(&asker->unanswered);
}

uint64_t chunk_request_number(const struct chunk_request *request)
{
    return CAIRN_REQUEST_OF_ASKER | (uint64_t)request->serial << 32 | request->index;
}

void asker_ask(struct asker *asker, struct chunk_request *request)
{
    assert(request->state == CAIRN_REQUEST_IDLE);
    request->state = CAIRN_REQUEST_WAITING;
    TAILQ_INSERT_TAIL(&asker->waiting, request, link);
}

void asker_pump(struct asker *asker)
{
    while (!asker->busy && asker->sent < SENT_MAX && !TAILQ_EMPTY(&asker->waiting)) {
        struct chunk_request *request = TAILQ_FIRST(&asker->waiting);
        if (asker->send(request) != CAIRN_OK) return;
        TAILQ_REMOVE(&asker->waiting, request, link);
        TAILQ_INSERT_TAIL(&asker->unanswered, request, link);
        request->state = CAIRN_REQUEST_SENT;
        asker->sent++;
    }
}

void asker_retry(struct asker *asker)
{
    asker->busy = false;
    asker_pump(asker);
}

void asker_drop(struct asker *asker, struct chunk_request *request)
{
    if (request->state == CAIRN_REQUEST_WAITING) TAILQ_REMOVE(&asker->waiting, request, link);
    if (request->state == CAIRN_REQUEST_SENT) {
        TAILQ_REMOVE(&asker->unanswered, request, link);
        asker->sent--;
    }
    request->state = CAIRN_REQUEST_IDLE;
}

bool asker_answered(struct asker *asker, struct chunk_request *request, uint64_t number)
{
    if (request->state != CAIRN_REQUEST_SENT || number != chunk_request_number(request))
        return false;
    asker_drop(asker, request);
    asker->busy = false;
    return true;
}

struct chunk_request *asker_take(struct asker *asker, uint64_t number)
{
    struct chunk_request *request;
    TAILQ_FOREACH (request, &asker->unanswered, link)
        if (asker_answered(asker, request, number)) break;
    return request;
}

bool asker_again(struct asker *asker, struct chunk_request *request, uint64_t status)
{
    if (status == CAIRN_ERR_BUSY)
        asker->busy = true;
    else if (status != CAIRN_ERR_CHECKSUM || ++request->damaged == DAMAGED_MAX)
        return false;
    asker_ask(asker, request);
    return true;
}

bool asker_lost(struct asker *asker, struct chunk_request *request)
{
    if (request->state != CAIRN_REQUEST_SENT) return false;
    asker_drop(asker, request);
    asker_ask(asker, request);
    return true;
}

void asker_all_lost(struct asker *asker)
{
    while (!TAILQ_EMPTY(&asker->unanswered))
        (void)asker_lost(asker, TAILQ_FIRST(&asker->unanswered));
}

bool asker_waits(const struct asker *asker)
{
    return asker->sent > 0 || !TAILQ_EMPTY(&asker->waiting);
}

/* ==== pusher ==== */

#define WINDOW_MAX 1024

cairn_status pusher_open(struct pusher *pusher, const struct push_config *config)
{
    const size_t bytes = push_bytes(config), capacity = push_actions_max(config);
    if (bytes == 0) return CAIRN_ERR_NO_MEMORY;
    pusher->config = *config;
    pusher->memory = malloc(bytes);
    pusher->actions.list = calloc(capacity, sizeof *pusher->actions.list);
    pusher->actions.capacity = capacity;
    if (pusher->memory != NULL && pusher->actions.list != NULL) return CAIRN_OK;
    pusher_close(pusher);
    return CAIRN_ERR_NO_MEMORY;
}

void pusher_close(struct pusher *pusher)
{
    free(pusher->memory);
    free(pusher->actions.list);
    *pusher = (struct pusher) { 0 };
}

void pusher_begin(struct pusher *pusher, uint64_t epoch, uint64_t round)
{
    assert(pusher->push == NULL);
    pusher->actions.count = 0;
    pusher->epoch = epoch;
    pusher->round = round;
    pusher->push = push_init(pusher->memory, &pusher->config);
}

/* ---- messages of shards ---- */

bool pusher_takes(const struct pusher *pusher, const struct chunk_header *header)
{
    return pusher->push != NULL && header->kind != 0 && header->round == pusher->round;
}

bool grant_is_newer(const struct chunk_header *last, const struct chunk_header *grant)
{
    if (grant->round != last->round) return grant->round > last->round;
    return last->kind == 0 || (grant->tensor == last->tensor && grant->request >= last->request);
}

struct push_window grant_window(const struct chunk_header *grant, bool shares)
{
    const bool is_window = grant->value >= 1 && grant->value <= WINDOW_MAX;
    return (struct push_window) {
        .chunks = is_window ? (uint32_t)grant->value : 1,
        .small = grant->leaf_count <= WINDOW_MAX ? grant->leaf_count : 0,
        .in_place = shares && grant->micro <= WINDOW_MAX ? grant->micro : 0,
        .on_card = grant->first_leaf,
    };
}

void pusher_on_answer(struct pusher *pusher, uint32_t shard, const struct chunk_header *header)
{
    if (header->kind == CAIRN_CHUNK_MICRO_ACK)
        push_on_micro_ack(pusher->push, shard, header->micro, &pusher->actions);
    else if (header->kind == CAIRN_CHUNK_ACK)
        push_on_ack(pusher->push, shard, header->request, &pusher->actions);
    else
        push_on_refuse(pusher->push, shard, header->request,
                       header->value <= CAIRN_ERR_INTERNAL ? (cairn_status)header->value
                                                           : CAIRN_ERR_PROTOCOL,
                       &pusher->actions);
}

/* ---- messages to shards ---- */

struct chunk_header pusher_header(const struct pusher *pusher, const struct push_action *action)
{
    struct chunk_header header = { .kind = CAIRN_CHUNK_PUSH,
                                   .epoch = pusher->epoch,
                                   .round = pusher->round,
                                   .micro = action->micro,
                                   .request = action->request,
                                   .value = action->in_place ? CAIRN_CHUNK_IN_PLACE : 0 };
    if (action->kind == CAIRN_PUSH_SEND_CHUNK) return header;
    const bool is_end = action->kind == CAIRN_PUSH_SEND_MICRO_END;
    header.kind = is_end ? CAIRN_CHUNK_MICRO_END : CAIRN_CHUNK_COMMIT;
    header.request = 0;
    header.value = is_end ? action->sent : action->weight;
    return header;
}

struct chunk_absent *chunk_absent_new(struct chunk_link *link, size_t max)
{
    struct chunk_absent *absent = malloc(sizeof *absent + (max + 1) * sizeof *absent->tensors);
    chunk_link_note_memory(link, absent != NULL ? CAIRN_OK : CAIRN_ERR_NO_MEMORY,
                           max * sizeof *absent->tensors);
    if (absent != NULL) absent->link = link;
    return absent;
}

static void on_absent_sent(void *arg, cairn_status status)
{
    struct chunk_absent *absent = arg;
    struct chunk_link *link = absent->link;
    free(absent);
    chunk_link_sent(link, status);
}

cairn_status chunk_absent_send(struct chunk_absent *absent, struct chunk_header *header,
                               size_t count)
{
    const cairn_status status = chunk_link_send(
        absent->link, header, count > 0 ? absent->tensors : NULL, count * sizeof *absent->tensors,
        on_absent_sent, absent);
    if (status != CAIRN_OK) free(absent);
    return status;
}
