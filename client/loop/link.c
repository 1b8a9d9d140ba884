/* Connections to the shards of a job, and what comes over them. Loop thread.
 *
 * A shard may speak for others (proto/wire/chunk.h, "Relays"): what concerns the connection is its link's,
 * what concerns chunks is the owner's. */
#include "client/loop/link.h"

#include <stdlib.h>

#include "client/job.h"
#include "client/push/transfer.h"

static struct shard_link *link_of(const struct cairn_chunk_link *conn)
{
    return (struct shard_link *)((char *)conn - offsetof(struct shard_link, conn));
}

static void sign(const struct cairn_chunk_link *conn, struct cairn_chunk_header *header)
{
    const struct job *job = link_of(conn)->job;
    header->job = job->attachment.job;
    header->member = job->member.id;
    header->token = job->member.token;
}

static bool waits(const struct cairn_chunk_link *conn)
{
    const struct shard_link *link = link_of(conn);
    return link->asked > 0 || !TAILQ_EMPTY(&link->asker.waiting) || cairn_pushes_waits(link);
}

static void lost(struct cairn_chunk_link *conn)
{
    struct shard_link *link = link_of(conn);
    cairn_pushes_lost(link);
    cairn_transfer_lost(link);
    link->relays = false;
}

static const struct cairn_chunk_link_hands hands = { .sign = sign, .waits = waits, .lost = lost };

static struct shard_link *open_link(struct job *job, uint32_t index)
{
    struct shard_link *link = calloc(1, sizeof *link);
    if (link != NULL) TAILQ_INIT(&link->staging.queue);
    if (link == NULL) return NULL;
    link->job = job;
    link->index = index;
    link->conn.hands = &hands;
    cairn_asker_open(&link->asker, cairn_transfer_send);
    return link;
}

cairn_status cairn_links_add(struct job *job, uint32_t count)
{
    struct job_shards *shards = &job->shards;
    if (count <= shards->count) return CAIRN_OK;
    struct shard_link **links = realloc(shards->links, count * sizeof(struct shard_link *));
    if (links == NULL) return CAIRN_ERR_NO_MEMORY;
    shards->links = links;
    for (; shards->count < count; shards->count++) {
        links[shards->count] = open_link(job, shards->count);
        if (links[shards->count] == NULL) return CAIRN_ERR_NO_MEMORY;
    }
    return CAIRN_OK;
}

void cairn_links_release(struct job *job)
{
    for (uint32_t i = 0; i < job->shards.count; i++) {
        cairn_chunk_link_close(&job->shards.links[i]->conn);
        free(job->shards.links[i]->address);
        free(job->shards.links[i]);
    }
    free(job->shards.links);
    pthread_mutex_lock(&job->session->lock);
    job->shards = (struct job_shards) { .links = NULL };
    pthread_mutex_unlock(&job->session->lock);
}

void cairn_link_tick(struct shard_link *link, uint64_t now_ms)
{
    const struct job *job = link->job;
    const bool is_wanted = !cairn_bodies_left_by(job, link->index) || waits(&link->conn);
    const bool connects = job->bodies != NULL && !job->closing && is_wanted;
    cairn_datapath_judge(link, now_ms);
    cairn_asker_retry(&link->asker);
    cairn_chunk_link_tick(&link->conn, connects ? job->session->path.fabric : NULL, link->address,
                          link->address_bytes, now_ms);
}

/* ---- what comes in ---- */

/* The job that a header is for; the token says that it is from one of its shards. */
static struct job *job_of_header(struct session *s, const struct cairn_chunk_header *h)
{
    for (struct job *job = s->jobs; job != NULL; job = job->next)
        if (job->member.id == h->member && job->member.token == h->token && job->bodies != NULL)
            return job;
    return NULL;
}

/* In whose name a shard sends: the index of the owner is in the place of the tile. */
static struct shard_link *link_of_header(struct job *job, const struct cairn_chunk_header *h)
{
    if (h->tile >= job->shards.count) return NULL;
    if (h->kind == CAIRN_CHUNK_GRANT && h->tensor > job->shards.count) return NULL;
    return job->shards.links[h->tile];
}

/* Which shard sends it, as far as that can be told: the one that we asked. */
static struct shard_link *sender_of_header(struct shard_link *owner,
                                           const struct cairn_chunk_header *h)
{
    struct job *job = owner->job;
    if (h->kind == CAIRN_CHUNK_HELLO) return owner;
    if (h->kind == CAIRN_CHUNK_GRANT)
        return h->tensor == 0 ? owner : job->shards.links[h->tensor - 1];
    if ((h->request & CAIRN_REQUEST_OF_ASKER) == 0)
        return owner->carrier != NULL ? owner->carrier : owner;
    const struct parcel *parcel = cairn_parcel_of_request(job, h->request);
    return parcel != NULL && parcel->shard == owner->index ? job->shards.links[parcel->via] : owner;
}

static void take_hello(struct shard_link *link, const struct cairn_chunk_header *h)
{
    const struct job *job = link->job;
    const uint64_t way = h->request;
    link->takes_unsummed = (h->value & CAIRN_CHUNK_UNSUMMED) != 0;
    if (cairn_chunk_link_on_hello(&link->conn, way)) {
        cairn_transfer_lost(link);
        for (uint32_t i = 0; link->relays && i < job->shards.count; i++)
            cairn_asker_pump(&job->shards.links[i]->asker);
        cairn_asker_retry(&link->asker);
    }
    cairn_pushes_on_hello(link, way);
}

static void take_grant(struct shard_link *owner, const struct cairn_chunk_header *h)
{
    if (!cairn_grant_is_newer(&owner->grant, h)) return;
    owner->grant = *h;
    owner->declined = false;
    if (h->tensor != 0) cairn_pushes_granter(owner)->relays = true;
    cairn_pushes_on_grant(owner);
    cairn_asker_pump(&owner->asker);
}

static void take(struct shard_link *link, const struct cairn_chunk_header *h,
                 struct cairn_fabric_message *message)
{
    switch (h->kind) {
    case CAIRN_CHUNK_HELLO: take_hello(link, h); break;
    case CAIRN_CHUNK_GRANT: take_grant(link, h); break;
    case CAIRN_CHUNK_MICRO_ACK:
        cairn_pusher_on_answer(&link->job->pushing.pusher, link->index, h);
        break;
    case CAIRN_CHUNK_ACK:
    case CAIRN_CHUNK_NAK: {
        // Pushes go by the push machine's own numbers.
        if ((h->request & CAIRN_REQUEST_OF_ASKER) != 0)
            cairn_transfer_on_answer(link, h);
        else
            cairn_pusher_on_answer(&link->job->pushing.pusher, link->index, h);
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
    if (link != NULL && cairn_chunk_link_heard(&sender->conn)) {
        cairn_datapath_heard(sender);
        take(link, &h, message);
        cairn_session_kick(s); // a stalled command may go on
    } else if (message != NULL) {
        cairn_fabric_drop(message);
    }
}
