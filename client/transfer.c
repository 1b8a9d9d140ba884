/* Puts and fetches: cut into chunks, a few in flight to each shard, asked again when a connection is lost.
 * Loop thread. */
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

void cairn_transfer_pump(struct shard_link *link)
{
    // Before the shard's HELLO it is not known by which of its endpoints it will answer.
    while (link->peer != NULL && link->endpoint != 0 && !link->busy &&
           link->in_flight < IN_FLIGHT_MAX && link->first_waiting != NULL) {
        struct part *part = dequeue(link);
        struct cairn_chunk_header header = { .request = cairn_part_cookie(part) };
        cairn_status status = cairn_part_send(part, &header);
        if (status == CAIRN_OK) {
            part->sent = true;
            link->in_flight++;
            continue;
        }
        enqueue(link, part); // BUSY: the next answer or tick; CLOSED: the next connection
        return;
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
    part->sent = false;
    link->in_flight--;
    link->busy = false;
    return part;
}

static bool worth_repeating(struct part *part, uint64_t status)
{
    if (part->answered) return false;
    if (status == CAIRN_ERR_CHECKSUM) return ++part->damaged < DAMAGED_MAX;
    return status == CAIRN_ERR_BUSY;
}

void cairn_transfer_on_answer(struct shard_link *link, const struct cairn_chunk_header *h)
{
    struct part *part = part_answered(link, h);
    if (part == NULL) return;
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
    const bool whole = status == CAIRN_OK &&
                       cairn_chunk_checksum(part->bytes, part->byte_count) == part->checksum;
    if (!part->answered && !whole && !link->lost) {
        if (worth_repeating(part, CAIRN_ERR_CHECKSUM))
            enqueue(link, part);
        else
            cairn_part_end(part, CAIRN_ERR_CHECKSUM);
    }
    if (!part->answered && whole) {
        cairn_part_arrived(part);
        cairn_part_end(part, CAIRN_OK);
    }
    if (!part->answered && !whole && link->lost) part->sent = true; // the link's loss asks again
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
        status = cairn_fabric_receive(message, part->bytes, part->byte_count, on_received, part);
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
        if (part->op == NULL || !part->sent || part->shard != link->index) continue;
        part->sent = false;
        if (!part->answered) enqueue(link, part);
    }
    link->in_flight = 0;
}

void cairn_transfer_fail_all(struct job *job, cairn_status status)
{
    for (uint32_t i = 0; i < job->shard_count; i++) {
        job->shards[i].first_waiting = job->shards[i].last_waiting = NULL;
        job->shards[i].in_flight = 0;
        job->shards[i].busy = false;
    }
    for (uint32_t i = 0; i < job->part_count; i++) {
        struct part *part = job->parts[i];
        if (part->op == NULL || part->kind == CAIRN_CHUNK_PUSH) continue;
        part->queued = part->sent = false;
        cairn_part_end(part, status);
    }
}
