/* Connections of a relay to the owners: connect, say hello, and begin again when one is lost. It is
 * client/link.c with the relay in the place of the worker; an owner may be this very shard.
 *
 * A lost connection is told to relay_send.c and relay_fetch.c only when the fabric has given back every
 * buffer that was on loan on it: until then something of it could still arrive. So could an answer, which
 * is why nothing of an owner is heard in between. */
#include <assert.h>
#include <string.h>

#include "server/shard/relay.h"

#define RETRY_MIN_MS 20
#define RETRY_MAX_MS 1000
#define QUIET_MAX_MS 1000 /* that we wait without a word from an owner */

static struct cairn_shard *shard_of(const struct cairn_relay_owner *owner)
{
    return owner->relay->job->shard;
}

/* The fabric closes nothing that is on loan without telling: who sent it counts it back. */
static void drop_peer(struct cairn_relay_link *link, bool is_open)
{
    if (link->peer == NULL) return;
    if (is_open) cairn_fabric_peer_close(link->peer);
    link->peer = NULL;
    link->lost = true;
}

static void on_down(void *arg, struct cairn_fabric_peer *peer, cairn_status why)
{
    struct cairn_relay_owner *owner = arg;
    assert(peer == owner->link.peer);
    (void)peer;
    cairn_log_info("job %s: the relay lost shard %s: %s", owner->relay->job->spec.name, owner->name,
                   cairn_status_text((int)why));
    drop_peer(&owner->link, true);
    cairn_relay_wake(shard_of(owner));
}

void cairn_relay_link_close(struct cairn_relay_owner *owner)
{
    // A closed fabric has freed its peers.
    drop_peer(&owner->link, !shard_of(owner)->closing);
}

static cairn_status say_hello(struct cairn_relay_owner *owner)
{
    struct cairn_chunk_header hello = { .kind = CAIRN_CHUNK_HELLO,
                                        .request = owner->link.connection,
                                        .value = 1 }; // a relay
    return cairn_relay_link_send(owner, &hello, NULL, 0, NULL, NULL);
}

static void connect_owner(struct cairn_relay_owner *owner, uint64_t now_ms)
{
    struct cairn_relay_link *link = &owner->link;
    link->retry_delay_ms = link->retry_delay_ms == 0 ? RETRY_MIN_MS : link->retry_delay_ms * 2;
    if (link->retry_delay_ms > RETRY_MAX_MS) link->retry_delay_ms = RETRY_MAX_MS;
    link->retry_at_ms = now_ms + link->retry_delay_ms;
    if (owner->address_bytes == 0) return; // it is away
    cairn_status status = cairn_fabric_connect(shard_of(owner)->fabric, owner->address,
                                               owner->address_bytes, on_down, owner, &link->peer);
    if (status != CAIRN_OK) {
        link->peer = NULL;
        return;
    }
    link->connection++;
    link->quiet_since_ms = now_ms;
    if (say_hello(owner) != CAIRN_OK) cairn_relay_link_close(owner);
}

static bool waits(const struct cairn_relay_owner *owner)
{
    return cairn_relay_send_waits(owner) || cairn_relay_fetch_waits(owner);
}

/* An owner that is hung, the coordinator notices. This one it hears, and we do not: the way between is
 * broken, and the workers may have another. Ticks are counted, as they do not come while this process is
 * stopped. */
static void judge_silence(struct cairn_relay_owner *owner)
{
    struct cairn_relay_link *link = &owner->link;
    const bool answers = link->peer != NULL && link->heard;
    link->silent_ticks = answers || !waits(owner) ? 0 : link->silent_ticks + 1;
    if (link->silent_ticks < owner->relay->silent_ticks_max) return;
    link->silent_ticks = 0;
    cairn_relay_give_up(owner->relay, "shard %s does not answer shard %s", owner->name,
                        shard_of(owner)->name);
}

static void break_silence(struct cairn_relay_owner *owner, uint64_t now_ms)
{
    struct cairn_relay_link *link = &owner->link;
    if (link->heard || !waits(owner)) link->quiet_since_ms = now_ms;
    link->heard = false;
    if (now_ms - link->quiet_since_ms < QUIET_MAX_MS) return;
    link->quiet_since_ms = now_ms;
    cairn_status status = say_hello(owner);
    (void)status; // BUSY: there is another time; CLOSED: on_down follows
}

static void tell_loss(struct cairn_relay_owner *owner)
{
    owner->link.lost = false;
    owner->link.endpoint = 0;
    owner->grant = (struct cairn_chunk_header) { 0 };
    cairn_relay_send_lost(owner);
    cairn_relay_fetch_lost(owner);
}

void cairn_relay_link_tick(struct cairn_relay_owner *owner, uint64_t now_ms)
{
    struct cairn_relay_link *link = &owner->link;
    judge_silence(owner);
    if (link->peer != NULL) {
        cairn_relay_fetch_tick(owner);
        break_silence(owner, now_ms);
        return;
    }
    if (link->lost && link->on_loan > 0) return;
    if (link->lost) tell_loss(owner);
    if (now_ms >= link->retry_at_ms && !owner->relay->leaving) connect_owner(owner, now_ms);
}

bool cairn_relay_link_heard(struct cairn_relay_owner *owner)
{
    if (owner->link.lost) return false;
    owner->link.heard = true;
    return true;
}

void cairn_relay_link_on_hello(struct cairn_relay_owner *owner,
                               const struct cairn_chunk_header *header)
{
    const uint32_t endpoint = CAIRN_CHUNK_WAY_ENDPOINT(header->request);
    owner->link.retry_delay_ms = RETRY_MIN_MS;
    if (endpoint > owner->link.endpoint) {
        owner->link.endpoint = endpoint;
        cairn_relay_fetch_lost(owner);
    }
    cairn_relay_send_on_hello(owner, header->request);
}

/* ---- loans ---- */

void cairn_relay_link_loan(struct cairn_relay_owner *owner)
{
    owner->link.on_loan++;
    cairn_relay_busy(owner->relay);
}

void cairn_relay_link_loan_back(struct cairn_relay_owner *owner)
{
    assert(owner->link.on_loan > 0);
    owner->link.on_loan--;
    cairn_relay_idle(owner->relay);
}

/* As of client/link.c: a sum that the owner folds where it lies goes no way on which it could be damaged. */
static bool is_compared(const struct cairn_relay_link *link, unsigned kind)
{
    return kind != CAIRN_CHUNK_PUSH || strcmp(cairn_fabric_peer_path(link->peer), "mapped") != 0;
}

cairn_status cairn_relay_link_send(struct cairn_relay_owner *owner,
                                   struct cairn_chunk_header *header, const void *payload,
                                   size_t payload_bytes, cairn_fabric_done_fn *on_sent, void *arg)
{
    uint8_t bytes[CAIRN_CHUNK_HEADER_BYTES];
    if (owner->link.peer == NULL) return CAIRN_ERR_CLOSED;
    assert(payload_bytes == 0 || on_sent != NULL);
    header->job = owner->relay->job->number;
    header->member = owner->relay->number;
    header->token = owner->relay->token;
    header->payload_bytes = payload_bytes;
    header->checksum = 0;
    if (is_compared(&owner->link, header->kind))
        header->checksum = cairn_chunk_checksum(payload, payload_bytes);
    cairn_chunk_encode(header, bytes);
    const cairn_status status = cairn_fabric_send(owner->link.peer, bytes, sizeof bytes, payload,
                                                  payload_bytes, on_sent, arg);
    if (status == CAIRN_OK && on_sent != NULL) cairn_relay_link_loan(owner);
    return status;
}
