/* Endpoints to the shards of a job: connect, say hello, and begin again when one is lost. Loop thread.
 *
 * A shard may speak for others (proto/wire/chunk.h, "Relays"): what concerns the connection is its link's,
 * what concerns chunks is the owner's.
 *
 * The shard's endpoint to us may be lost alone (proto/wire/chunk.h, "Ways"): its HELLO says so. In case it
 * does not know either, or has cut us off, silence is broken by a HELLO of ours.
 *
 * A lost connection is told to the machines above only when the fabric has given back every buffer that
 * was under way on it: until then something of it could still arrive. */
#include "client/session.h"

#include <assert.h>
#include <string.h>

#define RETRY_MIN_MS 20
#define RETRY_MAX_MS 1000
#define QUIET_MAX_MS 1000 /* that we wait without a word from a shard */

static void on_down(void *arg, struct cairn_fabric_peer *peer, cairn_status why)
{
    struct shard_link *link = arg;
    (void)why;
    cairn_fabric_peer_close(peer);
    link->peer = NULL;
    link->lost = true;
}

void cairn_link_close(struct shard_link *link)
{
    if (link->peer != NULL) cairn_fabric_peer_close(link->peer);
    link->peer = NULL;
    link->lost = true;
}

bool cairn_link_shares(const struct shard_link *link)
{
    return link->peer != NULL && strcmp(cairn_fabric_peer_path(link->peer), "mapped") == 0;
}

void cairn_link_restart(struct shard_link *link)
{
    cairn_link_close(link);
    link->retry_at_ms = 0;
    link->retry_delay_ms = RETRY_MIN_MS;
}

static cairn_status say_hello(struct shard_link *link)
{
    struct cairn_chunk_header hello = { .kind = CAIRN_CHUNK_HELLO, .request = link->connection };
    return cairn_link_send(link, &hello, NULL, 0, NULL, NULL);
}

static void connect_link(struct shard_link *link, uint64_t now_ms)
{
    link->retry_delay_ms = link->retry_delay_ms == 0 ? RETRY_MIN_MS : link->retry_delay_ms * 2;
    if (link->retry_delay_ms > RETRY_MAX_MS) link->retry_delay_ms = RETRY_MAX_MS;
    link->retry_at_ms = now_ms + link->retry_delay_ms;
    if (link->address_bytes == 0) return; // the shard is away
    cairn_status status = cairn_fabric_connect(link->job->session->fabric, link->address,
                                               link->address_bytes, on_down, link, &link->peer);
    if (status != CAIRN_OK) {
        link->peer = NULL;
        return;
    }
    link->connection++;
    link->quiet_since_ms = now_ms;
    if (say_hello(link) != CAIRN_OK) cairn_link_close(link);
}

static bool waits(const struct shard_link *link)
{
    return link->asked > 0 || link->first_waiting != NULL || cairn_client_round_waits(link);
}

static void break_silence(struct shard_link *link, uint64_t now_ms)
{
    if (link->heard || !waits(link)) link->quiet_since_ms = now_ms;
    link->heard = false;
    if (now_ms - link->quiet_since_ms < QUIET_MAX_MS) return;
    link->quiet_since_ms = now_ms;
    cairn_status status = say_hello(link);
    (void)status; // BUSY: there is another time; CLOSED: on_down follows
}

void cairn_link_tick(struct shard_link *link, uint64_t now_ms)
{
    link->busy = false;
    cairn_datapath_judge(link, now_ms);
    cairn_transfer_pump(link);
    if (link->peer != NULL) {
        break_silence(link, now_ms);
        return;
    }
    if (link->lost && link->on_loan > 0) return;
    if (link->lost) {
        link->lost = false;
        link->endpoint = 0;
        link->way = 0;
        cairn_client_round_lost(link);
        cairn_transfer_lost(link);
        link->relays = false;
    }
    if (now_ms >= link->retry_at_ms && link->job->layout != NULL && !link->job->closing)
        connect_link(link, now_ms);
}

/* A chunk that the shard folds where it lies goes no way on which it could be damaged. What is received into
 * other memory is compared there. */
static bool is_compared(const struct shard_link *link, unsigned kind)
{
    return kind != CAIRN_CHUNK_PUSH || !cairn_link_shares(link);
}

cairn_status cairn_link_send(struct shard_link *link, struct cairn_chunk_header *header,
                             const void *payload, size_t payload_bytes,
                             cairn_fabric_done_fn *on_sent, void *arg)
{
    uint8_t bytes[CAIRN_CHUNK_HEADER_BYTES];
    if (link->peer == NULL) return CAIRN_ERR_CLOSED;
    header->job = link->job->id;
    header->member = link->job->member;
    header->token = link->job->token;
    header->payload_bytes = payload_bytes;
    header->checksum = 0;
    if (is_compared(link, header->kind))
        header->checksum = cairn_chunk_checksum(payload, payload_bytes);
    cairn_chunk_encode(header, bytes);
    return cairn_fabric_send(link->peer, bytes, sizeof bytes, payload, payload_bytes, on_sent, arg);
}

/* ---- what comes in ---- */

/* The job that a header is for; the token says that it is from one of its shards. */
static struct job *job_of_header(struct session *s, const struct cairn_chunk_header *h)
{
    for (struct job *job = s->jobs; job != NULL; job = job->next)
        if (job->member == h->member && job->token == h->token && job->layout != NULL) return job;
    return NULL;
}

/* In whose name a shard sends: the index of the owner is in the place of the tile. */
static struct shard_link *link_of_header(struct job *job, const struct cairn_chunk_header *h)
{
    if (h->tile >= job->shard_count) return NULL;
    if (h->kind == CAIRN_CHUNK_GRANT && h->tensor > job->shard_count) return NULL;
    return &job->shards[h->tile];
}

struct shard_link *cairn_link_granter(struct shard_link *owner)
{
    const struct cairn_chunk_header *grant = &owner->grant;
    return grant->kind == 0 || grant->tensor == 0 ? owner : &owner->job->shards[grant->tensor - 1];
}

/* Which shard sends it, as far as that can be told: the one that we asked. */
static struct shard_link *sender_of_header(struct shard_link *owner,
                                           const struct cairn_chunk_header *h)
{
    struct job *job = owner->job;
    if (h->kind == CAIRN_CHUNK_HELLO) return owner;
    if (h->kind == CAIRN_CHUNK_GRANT) return h->tensor == 0 ? owner : &job->shards[h->tensor - 1];
    if ((h->request & CAIRN_PART_COOKIE) == 0)
        return owner->carrier != NULL ? owner->carrier : owner;
    const struct part *part = cairn_part_of_cookie(job, h->request);
    return part != NULL && part->shard == owner->index ? &job->shards[part->via] : owner;
}

static void take_hello(struct shard_link *link, uint64_t way)
{
    const struct job *job = link->job;
    const uint32_t endpoint = CAIRN_CHUNK_WAY_ENDPOINT(way);
    link->retry_delay_ms = RETRY_MIN_MS;
    if (way > link->way) link->way = way;
    if (endpoint > link->endpoint) {
        link->endpoint = endpoint;
        link->busy = false;
        cairn_transfer_lost(link);
        for (uint32_t i = 0; link->relays && i < job->shard_count; i++)
            cairn_transfer_pump(&job->shards[i]);
        cairn_transfer_pump(link);
    }
    cairn_client_round_on_hello(link, way);
}

/* Rounds grow, and so do the numbers of a shard's ways: one that was overtaken changes nothing. Those of
 * several shards cannot be compared, and a round has one carrier. */
static void take_grant(struct shard_link *owner, const struct cairn_chunk_header *h)
{
    const struct cairn_chunk_header *last = &owner->grant;
    if (h->round < last->round) return;
    if (last->kind != 0 && h->round == last->round &&
        (h->tensor != last->tensor || h->request < last->request))
        return;
    owner->grant = *h;
    owner->declined = false;
    if (h->tensor != 0) cairn_link_granter(owner)->relays = true;
    cairn_client_round_on_grant(owner);
    cairn_transfer_pump(owner);
}

static void take(struct shard_link *link, const struct cairn_chunk_header *h,
                 struct cairn_fabric_message *message)
{
    switch (h->kind) {
    case CAIRN_CHUNK_HELLO: take_hello(link, h->request); break;
    case CAIRN_CHUNK_GRANT: take_grant(link, h); break;
    case CAIRN_CHUNK_MICRO_ACK: cairn_client_round_on_answer(link, h); break;
    case CAIRN_CHUNK_ACK:
    case CAIRN_CHUNK_NAK: {
        // Pushes go by the push machine's own numbers.
        if ((h->request & CAIRN_PART_COOKIE) != 0)
            cairn_transfer_on_answer(link, h);
        else
            cairn_client_round_on_answer(link, h);
        break;
    }
    case CAIRN_CHUNK_DATA: cairn_transfer_on_data(link, h, message); return;
    default: break;
    }
    if (message != NULL) cairn_fabric_drop(message);
}

void cairn_link_on_message(void *session, const void *header, size_t header_bytes,
                           size_t payload_bytes, struct cairn_fabric_message *message)
{
    struct session *s = session;
    struct cairn_chunk_header h;
    struct job *job = NULL;
    struct shard_link *link = NULL, *sender = NULL;
    if (cairn_chunk_decode(header, header_bytes, payload_bytes, &h) == CAIRN_OK)
        job = job_of_header(s, &h);
    if (job != NULL) link = link_of_header(job, &h);
    if (link != NULL) sender = sender_of_header(link, &h);
    if (link != NULL && !sender->lost) {
        sender->heard = sender->reached = true;
        take(link, &h, message);
        cairn_session_kick(s); // a stalled command may go on
    } else if (message != NULL) {
        cairn_fabric_drop(message);
    }
}
