#include "server/shard/base.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "server/shard/shard.h"

/* ---- all of them ---- */

struct neighbour *neighbours_at(const struct neighbours *all, uint32_t i)
{
    return (struct neighbour *)(void *)((char *)all->first + i * all->stride);
}

struct neighbour *neighbours_find(const struct neighbours *all, uint32_t index)
{
    const size_t low = lower_bound(all->first, all->count, all->stride,
                                   offsetof(struct neighbour, index), index);
    struct neighbour *found = low < all->count ? neighbours_at(all, (uint32_t)low) : NULL;
    return found != NULL && found->index == index ? found : NULL;
}

void neighbours_busy(struct neighbours *all)
{
    all->busy++;
    shard_job_busy(all->job);
}

void neighbours_idle(struct neighbours *all)
{
    struct shard_job *job = all->job;
    assert(all->busy > 0);
    all->busy--;
    if (all->busy == 0 && all->is_leaving && !job->shard->closing) all->kind->free(all);
    shard_job_idle(job);
}

void neighbours_begin(struct neighbours *all)
{
    all->is_begun = true;
    LIST_INSERT_HEAD(&all->job->asked, all, link);
}

void neighbours_end(struct neighbours *all)
{
    neighbours_busy(all); // keeps the neighbours until this function ends
    if (all->is_begun) LIST_REMOVE(all, link);
    all->is_begun = false;
    all->is_leaving = true;
    for (uint32_t i = 0; i < all->count; i++) neighbour_unlink(neighbours_at(all, i));
    neighbours_idle(all);
}

struct neighbours *neighbours_of(const struct shard_job *job, const struct chunk_header *header)
{
    struct neighbours *all;
    LIST_FOREACH (all, &job->asked, link)
        if (all->number == header->member && all->token == header->token) break;
    return all;
}

/* ---- the connection ---- */

static struct neighbour *neighbour_of(const struct chunk_link *link)
{
    return (struct neighbour *)((char *)(uintptr_t)link - offsetof(struct neighbour, link));
}

static void sign(const struct chunk_link *link, struct chunk_header *header)
{
    const struct neighbours *all = neighbour_of(link)->all;
    header->job = all->job->number;
    header->member = all->number;
    header->token = all->token;
    if (header->kind == CAIRN_CHUNK_HELLO) header->value = all->kind->hello_value;
}

static bool awaits(const struct neighbour *neighbour)
{
    const struct neighbour_kind *kind = neighbour->all->kind;
    return asker_waits(&neighbour->asker) || (kind->waits != NULL && kind->waits(neighbour));
}

static bool waits(const struct chunk_link *link)
{
    return awaits(neighbour_of(link));
}

static void lost(struct chunk_link *link)
{
    struct neighbour *neighbour = neighbour_of(link);
    if (neighbour->all->kind->lost != NULL) neighbour->all->kind->lost(neighbour);
    asker_all_lost(&neighbour->asker);
}

static void down(struct chunk_link *link, cairn_status why)
{
    struct neighbour *neighbour = neighbour_of(link);
    neighbour->all->kind->down(neighbour, why);
}

static void starved(struct chunk_link *link)
{
    struct neighbour *neighbour = neighbour_of(link);
    neighbour->all->kind->starved(neighbour);
}

static void loan(struct chunk_link *link)
{
    neighbours_busy(neighbour_of(link)->all);
}

static void loan_back(struct chunk_link *link)
{
    neighbours_idle(neighbour_of(link)->all);
}

static const struct chunk_link_callbacks link_callbacks = {
    .sign = sign,
    .waits = waits,
    .lost = lost,
    .down = down,
    .starved = starved,
    .loan = loan,
    .loan_back = loan_back,
};

void neighbour_unlink(struct neighbour *neighbour)
{
    if (neighbour->all == NULL) return;
    if (neighbour->all->job->shard->closing)
        chunk_link_forget(&neighbour->link);
    else
        chunk_link_close(&neighbour->link);
}

bool neighbour_tick(struct neighbour *neighbour, uint64_t now_ms)
{
    const struct neighbours *all = neighbour->all;
    if (neighbour->link.peer != NULL) asker_retry(&neighbour->asker);
    chunk_link_tick(&neighbour->link, all->is_leaving ? NULL : all->job->shard->fabric,
                    neighbour->address, neighbour->address_bytes, now_ms);
    return awaits(neighbour);
}

/* ---- chunks ---- */

static cairn_status send_fetch(struct chunk_request *request)
{
    const struct neighbour_fetch *fetch = (const struct neighbour_fetch *)request;
    struct neighbour *neighbour = fetch->neighbour;
    struct chunk_header header = { 0 };
    neighbour->all->kind->describe(fetch, &header);
    header.kind = CAIRN_CHUNK_FETCH;
    header.tile = CAIRN_TILE_WHOLE;
    header.table_hash = CAIRN_TABLE_HASH_WHOLE;
    header.request = chunk_request_number(request);
    header.dtype = 0;
    // Before the neighbour's HELLO, this shard does not know by which endpoint the neighbour will
    // answer.
    if (!chunk_link_is_up(&neighbour->link)) return CAIRN_ERR_CLOSED;
    return chunk_link_send(&neighbour->link, &header, NULL, 0, NULL, NULL);
}

static bool is_answer_to(const struct chunk_header *header, const struct neighbour_fetch *fetch)
{
    struct chunk_header wanted = { 0 };
    fetch->neighbour->all->kind->describe(fetch, &wanted);
    return header->kind == CAIRN_CHUNK_DATA && header->tensor == wanted.tensor &&
           header->first_leaf == wanted.first_leaf && header->leaf_count == wanted.leaf_count &&
           header->plane == wanted.plane && header->dtype == wanted.dtype &&
           header->payload_bytes == wanted.payload_bytes &&
           header->generation == wanted.generation && header->step == wanted.step;
}

static void refuse(struct neighbour_fetch *fetch, uint64_t status)
{
    if (!asker_again(&fetch->neighbour->asker, &fetch->request, status))
        fetch->neighbour->all->kind->refused(fetch, status);
}

static bool is_undamaged(struct neighbour_fetch *fetch)
{
    const struct neighbour_kind *kind = fetch->neighbour->all->kind;
    struct chunk_header wanted = { 0 };
    if (kind->is_far) return fetch->came == fetch->checksum;
    kind->describe(fetch, &wanted);
    return chunk_checksum(kind->place(fetch), (size_t)wanted.payload_bytes) == fetch->checksum;
}

static void on_received(void *arg, cairn_status status)
{
    struct neighbour_fetch *fetch = arg;
    struct neighbour *neighbour = fetch->neighbour;
    const struct neighbours *all = neighbour->all;
    if (all->is_leaving) {
        // nobody wants the chunk any longer
    } else if (status == CAIRN_OK && is_undamaged(fetch)) {
        all->kind->came(fetch);
    } else if (neighbour->link.lost) {
        asker_ask(&neighbour->asker, &fetch->request);
    } else {
        refuse(fetch, CAIRN_ERR_CHECKSUM);
    }
    if (!all->is_leaving) asker_pump(&neighbour->asker);
    chunk_link_loan_back(&neighbour->link);
}

/* Receives the chunk that the neighbour sends. If the receive cannot begin, asks for the chunk
 * again. */
static void receive(struct neighbour_fetch *fetch, const struct chunk_header *header,
                    struct fabric_message *message)
{
    struct neighbour *neighbour = fetch->neighbour;
    const struct neighbour_kind *kind = neighbour->all->kind;
    const size_t bytes = (size_t)header->payload_bytes;
    void *place = kind->place(fetch);
    cairn_status status;
    fetch->checksum = header->checksum;
    if (kind->is_far)
        status = fabric_receive_far(message, place, bytes, &fetch->came, on_received, fetch);
    else
        status = fabric_receive(message, place, bytes, on_received, fetch);
    if (status == CAIRN_OK) {
        chunk_link_loan(&neighbour->link);
        return;
    }
    fabric_drop(message);
    refuse(fetch, CAIRN_ERR_BUSY);
}

/* Handles the answer to a FETCH. An answer is dropped if it came on an earlier connection, or if
 * the request was used for another chunk since. */
static void on_answer(struct neighbour *neighbour, const struct chunk_header *header,
                      struct fabric_message *message)
{
    struct neighbour_fetch *fetch = (struct neighbour_fetch *)asker_take(&neighbour->asker,
                                                                         header->request);
    if (fetch != NULL && message != NULL && is_answer_to(header, fetch)) {
        receive(fetch, header, message);
        message = NULL;
    } else if (fetch != NULL && header->kind == CAIRN_CHUNK_NAK) {
        refuse(fetch, header->value);
    } else if (fetch != NULL) {
        neighbour->all->kind->refused(fetch, CAIRN_ERR_PROTOCOL);
    }
    fabric_drop(message);
    if (!neighbour->all->is_leaving) asker_pump(&neighbour->asker);
}

/* ---- messages ---- */

static void on_hello(struct neighbour *neighbour, const struct chunk_header *header)
{
    const struct neighbour_kind *kind = neighbour->all->kind;
    if (chunk_link_on_hello(&neighbour->link, header->request)) asker_all_lost(&neighbour->asker);
    asker_retry(&neighbour->asker);
    if (kind->answered != NULL) kind->answered(neighbour, header);
}

static void on_message(struct neighbour *neighbour, const struct chunk_header *header,
                       struct fabric_message *message)
{
    const struct neighbour_kind *kind = neighbour->all->kind;
    const bool of_fetch = header->kind == CAIRN_CHUNK_DATA ||
                          (header->request & CAIRN_REQUEST_OF_ASKER) != 0;
    if (!chunk_link_heard(&neighbour->link)) {
        // the message came on a connection that is lost
    } else if (header->kind == CAIRN_CHUNK_HELLO) {
        on_hello(neighbour, header);
    } else if (of_fetch && header->kind != CAIRN_CHUNK_GRANT) {
        on_answer(neighbour, header, message);
        return;
    } else if (kind->answered != NULL) {
        kind->answered(neighbour, header);
    }
    fabric_drop(message);
}

void neighbours_on_message(struct neighbours *all, const struct chunk_header *header,
                           struct fabric_message *message)
{
    struct neighbour *neighbour = neighbours_find(all, header->tile);
    neighbours_busy(all);
    if (neighbour != NULL)
        on_message(neighbour, header, message);
    else
        fabric_drop(message);
    neighbours_idle(all);
}

/* ---- open and close ---- */

static cairn_status take_address(struct neighbour *neighbour, const Cairn__ShardInfo *info,
                                 struct sentence *why)
{
    const size_t bytes = info->fabric_address.len;
    if (bytes > CAIRN_FABRIC_ADDRESS_MAX)
        return fail_with(why, CAIRN_ERR_MALFORMED, "a fabric address of %zu bytes of shard %s",
                         bytes, neighbour->name);
    uint8_t *address = malloc(bytes + 1);
    if (address == NULL)
        return fail_with(why, CAIRN_ERR_NO_MEMORY, "out of memory to %s shard %s",
                         neighbour->all->kind->purpose, neighbour->name);
    if (bytes > 0) memcpy(address, info->fabric_address.data, bytes);
    free(neighbour->address);
    neighbour->address = address;
    neighbour->address_bytes = bytes;
    return CAIRN_OK;
}

cairn_status neighbour_open(struct neighbours *all, struct neighbour *neighbour,
                            const Cairn__ShardInfo *info, struct sentence *why)
{
    neighbour->all = all;
    neighbour->index = info->index;
    neighbour->link.callbacks = &link_callbacks;
    asker_open(&neighbour->asker, send_fetch);
    snprintf(neighbour->name, sizeof neighbour->name, "%s", info->name);
    return take_address(neighbour, info, why);
}

void neighbour_move(struct neighbour *neighbour, const Cairn__ShardInfo *info)
{
    struct sentence why;
    if (info->fabric_address.len == neighbour->address_bytes &&
        memcmp(info->fabric_address.data, neighbour->address, neighbour->address_bytes) == 0)
        return;
    if (take_address(neighbour, info, &why) == CAIRN_OK)
        chunk_link_restart(&neighbour->link);
    else
        log_error("job %s: shard %s is not found any more: %s", neighbour->all->job->spec.name,
                  neighbour->name, why.text);
}

void neighbour_close(struct neighbour *neighbour)
{
    neighbour_unlink(neighbour);
    free(neighbour->address);
}
