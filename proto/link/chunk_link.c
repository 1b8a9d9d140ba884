#include "proto/link/chunk_link.h"

#include <assert.h>
#include <string.h>

#define RETRY_MIN_MS 20
#define RETRY_MAX_MS 1000
#define QUIET_MAX_MS 1000 /* that a shard's silence lasts before it is broken */
#define STARVED_MS   1000 /* without memory, before it is told */
#define LATE_MS      1000 /* between two looks: this process did not run, and read nothing */

/* Without memory a payload may not go where a header does: a size is known to go by one that went. */
void cairn_chunk_link_note_memory(struct cairn_chunk_link *link, cairn_status status,
                                  size_t payload_bytes)
{
    if (status == CAIRN_ERR_NO_MEMORY) {
        link->starved.is_short = true;
        link->starved.bytes = payload_bytes;
    } else if (status == CAIRN_OK && payload_bytes >= link->starved.bytes) {
        link->starved.is_short = false;
    }
}

uint64_t cairn_chunk_link_starved_ms(const struct cairn_chunk_link *link, uint64_t now_ms)
{
    return link->starved.since_ms == 0 ? 0 : now_ms - link->starved.since_ms;
}

static void judge_memory(struct cairn_chunk_link *link, uint64_t now_ms)
{
    if (!link->starved.is_short || !link->hands->waits(link)) {
        // While nothing is awaited, the send that failed is not tried again; its size would be held
        // against all smaller sends that succeed.
        link->starved.is_short = false;
        link->starved.since_ms = 0;
        link->starved.is_told = false;
        return;
    }
    if (link->starved.since_ms == 0) link->starved.since_ms = now_ms;
    if (link->starved.is_told || now_ms - link->starved.since_ms < STARVED_MS) return;
    link->starved.is_told = true;
    if (link->hands->starved != NULL) link->hands->starved(link);
}

uint64_t cairn_chunk_link_silent_ms(const struct cairn_chunk_link *link, uint64_t now_ms)
{
    return now_ms - link->looked_ms > LATE_MS ? 0 : now_ms - link->unheard_since_ms;
}

static void judge_silence(struct cairn_chunk_link *link, bool speaks, uint64_t now_ms)
{
    const bool is_late = now_ms - link->looked_ms > LATE_MS;
    if (speaks || is_late) link->unheard_since_ms = now_ms;
    link->looked_ms = now_ms;
}

void cairn_chunk_link_forget(struct cairn_chunk_link *link)
{
    link->peer = NULL;
    link->lost = true;
}

void cairn_chunk_link_close(struct cairn_chunk_link *link)
{
    if (link->peer != NULL) cairn_fabric_peer_close(link->peer);
    cairn_chunk_link_forget(link);
}

void cairn_chunk_link_restart(struct cairn_chunk_link *link)
{
    cairn_chunk_link_close(link);
    link->retry_at_ms = 0;
    link->retry_delay_ms = RETRY_MIN_MS;
}

bool cairn_chunk_link_is_up(const struct cairn_chunk_link *link)
{
    return link->peer != NULL && link->endpoint != 0;
}

bool cairn_chunk_link_shares(const struct cairn_chunk_link *link)
{
    return link->peer != NULL && strcmp(cairn_fabric_peer_path(link->peer), "mapped") == 0;
}

static void on_down(void *arg, struct cairn_fabric_peer *peer, cairn_status why)
{
    struct cairn_chunk_link *link = arg;
    (void)peer; // it is link->peer
    cairn_chunk_link_close(link);
    if (link->hands->down != NULL) link->hands->down(link, why);
}

static cairn_status say_hello(struct cairn_chunk_link *link)
{
    struct cairn_chunk_header hello = { .kind = CAIRN_CHUNK_HELLO, .request = link->connection };
    return cairn_chunk_link_send(link, &hello, NULL, 0, NULL, NULL);
}

static void connect_link(struct cairn_chunk_link *link, struct cairn_fabric *fabric,
                         const uint8_t *address, size_t address_bytes, uint64_t now_ms)
{
    link->retry_delay_ms = link->retry_delay_ms == 0 ? RETRY_MIN_MS : link->retry_delay_ms * 2;
    if (link->retry_delay_ms > RETRY_MAX_MS) link->retry_delay_ms = RETRY_MAX_MS;
    link->retry_at_ms = now_ms + link->retry_delay_ms;
    if (address_bytes == 0) return;
    const cairn_status status = cairn_fabric_connect(fabric, address, address_bytes, on_down, link,
                                                     &link->peer);
    cairn_chunk_link_note_memory(link, status, 0);
    if (status != CAIRN_OK) {
        link->peer = NULL;
        return;
    }
    link->connection++;
    link->quiet_since_ms = now_ms;
    if (say_hello(link) != CAIRN_OK) cairn_chunk_link_close(link);
}

static void break_silence(struct cairn_chunk_link *link, bool speaks, uint64_t now_ms)
{
    if (speaks) link->quiet_since_ms = now_ms;
    if (now_ms - link->quiet_since_ms < QUIET_MAX_MS) return;
    link->quiet_since_ms = now_ms;
    cairn_status status = say_hello(link);
    (void)status; // BUSY: there is another time; CLOSED: on_down follows
}

void cairn_chunk_link_tick(struct cairn_chunk_link *link, struct cairn_fabric *fabric,
                           const uint8_t *address, size_t address_bytes, uint64_t now_ms)
{
    const bool speaks = link->heard || !link->hands->waits(link);
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
        link->hands->lost(link);
    }
    if (fabric != NULL && now_ms >= link->retry_at_ms)
        connect_link(link, fabric, address, address_bytes, now_ms);
}

bool cairn_chunk_link_heard(struct cairn_chunk_link *link)
{
    if (link->lost) return false;
    link->heard = true;
    return true;
}

bool cairn_chunk_link_on_hello(struct cairn_chunk_link *link, uint64_t way)
{
    const uint32_t endpoint = CAIRN_CHUNK_WAY_ENDPOINT(way);
    link->retry_delay_ms = RETRY_MIN_MS;
    if (way > link->way) link->way = way;
    if (endpoint <= link->endpoint) return false;
    link->endpoint = endpoint;
    return true;
}

/* True if the payload's checksum is compared. A chunk that the shard folds in place goes no way on
 * which it could be damaged. A chunk that is received into other memory is compared there, unless its
 * sender had no checksum of it. */
static bool is_compared(const struct cairn_chunk_link *link,
                        const struct cairn_chunk_header *header)
{
    if (header->kind != CAIRN_CHUNK_PUSH) return true;
    return !cairn_chunk_link_shares(link) && (header->value & CAIRN_CHUNK_UNSUMMED) == 0;
}

cairn_status cairn_chunk_link_send(struct cairn_chunk_link *link, struct cairn_chunk_header *header,
                                   const void *payload, size_t payload_bytes,
                                   cairn_fabric_done_fn *on_sent, void *arg)
{
    uint8_t bytes[CAIRN_CHUNK_HEADER_BYTES];
    if (link->peer == NULL) return CAIRN_ERR_CLOSED;
    assert(payload_bytes == 0 || on_sent != NULL);
    link->hands->sign(link, header);
    header->payload_bytes = payload_bytes;
    header->checksum = 0;
    if (is_compared(link, header)) header->checksum = cairn_chunk_checksum(payload, payload_bytes);
    cairn_chunk_encode(header, bytes);
    const cairn_status status = cairn_fabric_send(link->peer, bytes, sizeof bytes, payload,
                                                  payload_bytes, on_sent, arg);
    cairn_chunk_link_note_memory(link, status, payload_bytes);
    if (status == CAIRN_OK && on_sent != NULL) cairn_chunk_link_loan(link);
    return status;
}

/* ---- loans ---- */

void cairn_chunk_link_loan(struct cairn_chunk_link *link)
{
    link->on_loan++;
    if (link->hands->loan != NULL) link->hands->loan(link);
}

void cairn_chunk_link_loan_back(struct cairn_chunk_link *link)
{
    assert(link->on_loan > 0);
    link->on_loan--;
    if (link->hands->loan_back != NULL) link->hands->loan_back(link);
}

void cairn_chunk_link_sent(struct cairn_chunk_link *link, cairn_status status)
{
    if (status == CAIRN_ERR_NO_MEMORY) cairn_chunk_link_close(link);
    cairn_chunk_link_loan_back(link);
}
