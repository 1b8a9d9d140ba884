/* Puts and fetches: cut into chunks, a few in flight to each shard, asked again when a connection is lost.
 * Where a shard of this host relays for one that is not of this host, fetches go to that
 * (proto/wire/chunk.h, "Relays"), and to the owner what it has not. Loop thread. */
#include <assert.h>

#include "client/mapped.h"
#include "client/session.h"

#define DAMAGED_MAX   16                /* then the way there is broken, and it is said */
#define COPIED_MAX    ((size_t)8 << 20) /* bytes out of mapped memory, before others have their turn */
#define IN_FLIGHT_MAX 8 /* chunks unanswered by one shard; it holds at most twice as many for us */

static void enqueue(struct shard_link *link, struct part *part)
{
    part->queued = true;
    part->next = NULL;
    if (link->last_waiting != NULL)
        link->last_waiting->next = part;
    else
        link->first_waiting = part;
    link->last_waiting = part;
}

static struct part *dequeue(struct shard_link *link)
{
    struct part *part = link->first_waiting;
    link->first_waiting = part->next;
    if (link->first_waiting == NULL) link->last_waiting = NULL;
    part->queued = false;
    part->next = NULL;
    return part;
}

static void count_sent(struct part *part)
{
    part->sent = true;
    part->job->shards[part->shard].in_flight++;
    part->job->shards[part->via].asked++;
}

static void count_back(struct part *part)
{
    part->sent = false;
    part->job->shards[part->shard].in_flight--;
    part->job->shards[part->via].asked--;
}

/* What a relay may have, and this host has not without one. */
static bool may_relay(const struct shard_link *owner, const struct part *part)
{
    return part->kind == CAIRN_CHUNK_FETCH && part->tile == CAIRN_TILE_WHOLE &&
           part->plane == CAIRN_PLANE_WIRE && !part->direct && !cairn_link_shares(owner);
}

/* Whom to ask: not a relay for what it said that it has not. */
static struct shard_link *route(struct shard_link *owner, const struct part *part)
{
    struct shard_link *relay = cairn_link_granter(owner);
    if (relay == owner || owner->declined || !may_relay(owner, part)) return owner;
    return cairn_link_shares(relay) ? relay : owner;
}

/* Who relays, the GRANT of the round says, which may come after the coordinator's word. Without waiting
 * for it each worker of the host would fetch for itself what the first round begins with. */
static bool awaits_grant(const struct shard_link *owner, const struct part *part)
{
    const struct job *job = owner->job;
    const bool is_known = owner->grant.kind != 0 && !owner->declined;
    if (job->spec.reduce_groups != CAIRN_GROUPS_HOST || job->push == NULL || is_known) return false;
    return owner->grant.round != job->push_round && may_relay(owner, part) &&
           cairn_client_now_ms() < owner->granted_by_ms;
}

void cairn_transfer_pump(struct shard_link *owner)
{
    while (!owner->busy && owner->in_flight < IN_FLIGHT_MAX && owner->first_waiting != NULL) {
        if (awaits_grant(owner, owner->first_waiting)) return; // the GRANT, or the tick
        const struct shard_link *via = route(owner, owner->first_waiting);
        // Before the shard's HELLO it is not known by which of its endpoints it will answer.
        if (via->peer == NULL || via->endpoint == 0) return;
        struct part *part = dequeue(owner);
        // A late answer of the one that was asked before is none of this one.
        if (via->index != part->via) part->serial = (part->serial + 1) & 0x7fffffffu;
        struct cairn_chunk_header header = { .request = cairn_part_cookie(part) };
        cairn_status status = cairn_part_send(part, via->index, &header);
        if (status != CAIRN_OK) {
            enqueue(owner, part); // BUSY: the next answer or tick; CLOSED: the next connection
            return;
        }
        count_sent(part);
    }
}

/* A fetch whose data this host has. */
static bool copy_here(struct part *part, const struct piece *piece)
{
    if (part->kind != CAIRN_CHUNK_FETCH || !cairn_mapped_read(part, piece)) return false;
    pthread_mutex_lock(&part->job->session->lock);
    cairn_mapped_count(part->job, part->byte_count);
    pthread_mutex_unlock(&part->job->session->lock);
    cairn_part_end(part, CAIRN_OK);
    return true;
}

bool cairn_transfer_run(struct command *command)
{
    struct job *job = command->job;
    uint32_t shard;
    uint64_t chunk;
    if (cairn_command_refused(command)) return true;
    cairn_status status = CAIRN_OK;
    size_t copied = 0;
    for (; status == CAIRN_OK && cairn_command_chunk(command, &shard, &chunk);
         command->next_chunk++) {
        if (copied >= COPIED_MAX) { // messages are to be answered meanwhile
            cairn_session_kick(job->session);
            return false;
        }
        struct part *part = cairn_part_new(job, command, shard, chunk);
        if (part == NULL)
            status = CAIRN_ERR_NO_MEMORY;
        else if (copy_here(part, &command->piece))
            copied += part->byte_count;
        else
            enqueue(&job->shards[shard], part);
    }
    for (uint32_t i = 0; i < job->shard_count; i++) cairn_transfer_pump(&job->shards[i]);
    cairn_op_part_end(command->op, status, NULL);
    return true;
}

/* The part that an answer is for, no longer in flight; NULL: of a former use or connection. */
static struct part *part_answered(struct shard_link *link, const struct cairn_chunk_header *h)
{
    struct part *part = cairn_part_of_cookie(link->job, h->request);
    if (part == NULL || !part->sent || part->shard != link->index) return NULL;
    count_back(part);
    link->busy = false;
    return part;
}

static bool worth_repeating(struct part *part, uint64_t status)
{
    if (part->answered) return false;
    if (status == CAIRN_ERR_CHECKSUM) return ++part->damaged < DAMAGED_MAX;
    return status == CAIRN_ERR_BUSY;
}

/* What a relay refuses for good, the owner is asked for; NOT_FOUND: that is no chunk that it relays. */
static bool ask_owner(struct shard_link *owner, struct part *part, uint64_t status)
{
    if (part->answered || part->via == owner->index || status == CAIRN_ERR_BUSY ||
        status == CAIRN_ERR_CHECKSUM)
        return false;
    if (status == CAIRN_ERR_NOT_FOUND) owner->declined = true;
    part->direct = true;
    enqueue(owner, part);
    return true;
}

void cairn_transfer_on_answer(struct shard_link *link, const struct cairn_chunk_header *h)
{
    struct part *part = part_answered(link, h);
    if (part == NULL) return;
    if (h->kind == CAIRN_CHUNK_NAK && ask_owner(link, part, h->value)) {
        cairn_transfer_pump(link);
        return;
    }
    if (h->kind == CAIRN_CHUNK_ACK)
        cairn_part_end(part, part->kind == CAIRN_CHUNK_PUT ? CAIRN_OK : CAIRN_ERR_PROTOCOL);
    else if (worth_repeating(part, h->value)) {
        link->busy = h->value == CAIRN_ERR_BUSY;
        enqueue(link, part);
    } else
        cairn_part_end(part, h->value <= CAIRN_ERR_INTERNAL && cairn_status_known((int)h->value) &&
                                     h->value != CAIRN_OK
                                 ? (cairn_status)h->value
                                 : CAIRN_ERR_PROTOCOL);
    cairn_transfer_pump(link);
}

/* ---- data ---- */

static void on_received(void *arg, cairn_status status)
{
    struct part *part = arg;
    struct shard_link *link = &part->job->shards[part->shard];
    const bool lost = part->job->shards[part->via].lost;
    const bool whole = status == CAIRN_OK && part->came == part->checksum;
    if (!part->answered && !whole && !lost) {
        if (worth_repeating(part, CAIRN_ERR_CHECKSUM))
            enqueue(link, part);
        else
            cairn_part_end(part, CAIRN_ERR_CHECKSUM);
    }
    if (!part->answered && whole) {
        cairn_part_arrived(part);
        cairn_part_end(part, CAIRN_OK);
    }
    if (!part->answered && !whole && lost) count_sent(part); // the connection's loss asks again
    cairn_part_loan_back(part);
    cairn_transfer_pump(link);
}

static bool is_answer_to(const struct cairn_chunk_header *h, const struct part *part)
{
    return part->kind == CAIRN_CHUNK_FETCH && h->tensor == part->place.tensor &&
           h->first_leaf == part->place.first_leaf && h->leaf_count == part->place.leaf_count &&
           h->plane == part->plane && h->dtype == part->dtype &&
           h->payload_bytes == part->byte_count && h->generation == part->version.generation &&
           h->step == part->version.step;
}

void cairn_transfer_on_data(struct shard_link *link, const struct cairn_chunk_header *h,
                            struct cairn_fabric_message *message)
{
    struct part *part = part_answered(link, h);
    if (part == NULL || part->answered || !is_answer_to(h, part)) {
        cairn_fabric_drop(message);
        if (part != NULL) cairn_part_end(part, CAIRN_ERR_PROTOCOL);
        return;
    }
    part->checksum = h->checksum;
    cairn_part_loan(part);
    cairn_status status = cairn_part_open(part);
    if (status == CAIRN_OK)
        status = cairn_fabric_receive_far(message, part->bytes, part->byte_count, &part->came,
                                          on_received, part);
    if (status == CAIRN_OK) return;
    cairn_fabric_drop(message);
    cairn_part_end(part, status);
    cairn_part_loan_back(part);
}

/* ---- losses ---- */

void cairn_transfer_lost(struct shard_link *link)
{
    struct job *job = link->job;
    for (uint32_t i = 0; i < job->part_count; i++) {
        struct part *part = job->parts[i];
        if (part->op == NULL || !part->sent || part->via != link->index) continue;
        count_back(part);
        if (!part->answered) enqueue(&job->shards[part->shard], part);
    }
}

void cairn_transfer_fail_all(struct job *job, cairn_status status)
{
    for (uint32_t i = 0; i < job->shard_count; i++) {
        job->shards[i].first_waiting = job->shards[i].last_waiting = NULL;
        job->shards[i].in_flight = job->shards[i].asked = 0;
        job->shards[i].busy = false;
    }
    for (uint32_t i = 0; i < job->part_count; i++) {
        struct part *part = job->parts[i];
        if (part->op == NULL || part->kind == CAIRN_CHUNK_PUSH) continue;
        part->queued = part->sent = false;
        cairn_part_end(part, status);
    }
}
