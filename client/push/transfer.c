/* Puts and fetches: cut into chunks, which the asker of each shard sends, and sends again. Where a shard of
 * this host relays for one that is not of this host, fetches go to that (proto/wire/chunk.h, "Relays"), and
 * to the owner what it has not. Loop thread. */
#include "client/push/transfer.h"

#include "client/device/card.h"
#include "client/job.h"
#include "client/memory.h"
#include "client/op.h"
#include "client/push/recut.h"
#include "client/read/lent.h"

#define COPIED_MAX ((size_t)8 << 20) /* bytes out of mapped memory, before others have their turn */

static struct parcel *parcel_of(struct cairn_chunk_request *request)
{
    return (struct parcel *)((char *)request - offsetof(struct parcel, request));
}

/* True if the chunk may be asked of a relay: it is a whole one of published parameters, and this
 * host shares no memory with its owner. */
static bool may_relay(const struct shard_link *owner, const struct parcel *parcel)
{
    return parcel->kind == CAIRN_CHUNK_FETCH && parcel->tile == CAIRN_TILE_WHOLE &&
           parcel->plane == CAIRN_PLANE_WIRE && !parcel->direct &&
           !cairn_chunk_link_shares(&owner->conn);
}

/* The shard to ask: a relay, unless it has said that it does not relay this owner's chunks. */
static struct shard_link *route(struct shard_link *owner, const struct parcel *parcel)
{
    struct shard_link *relay = cairn_pushes_granter(owner);
    if (relay == owner || owner->declined || !may_relay(owner, parcel)) return owner;
    return cairn_chunk_link_shares(&relay->conn) ? relay : owner;
}

/* Who relays, the GRANT of the round says, which may come after the coordinator's word. Without waiting
 * for it each worker of the host would fetch for itself what the first round begins with. */
static bool awaits_grant(const struct shard_link *owner, const struct parcel *parcel)
{
    const struct job *job = owner->job;
    const bool is_known = owner->grant.kind != 0 && !owner->declined;
    if (job->spec.reduce_groups != CAIRN_GROUPS_HOST || job->pushing.pusher.push == NULL ||
        is_known)
        return false;
    return owner->grant.round != job->pushing.pusher.round && may_relay(owner, parcel) &&
           cairn_client_now_ms() < owner->grant_deadline_ms;
}

cairn_status cairn_transfer_send(struct cairn_chunk_request *request)
{
    struct parcel *parcel = parcel_of(request);
    struct shard_link *owner = parcel->job->shards.links[parcel->shard];
    if (awaits_grant(owner, parcel)) return CAIRN_ERR_NOT_READY; // the GRANT, or the tick
    struct shard_link *via = route(owner, parcel);
    // Before the shard's HELLO it is not known by which of its endpoints it will answer.
    if (!cairn_chunk_link_is_up(&via->conn)) return CAIRN_ERR_CLOSED;
    // A late answer of the one that was asked before is none of this one.
    if (via->index != parcel->via) request->serial++;
    struct cairn_chunk_header header = { .request = cairn_chunk_request_number(request) };
    const cairn_status status = cairn_parcel_send(parcel, via->index, &header);
    if (status == CAIRN_OK) via->asked++;
    return status;
}

/* A fetch whose data this host has. */
static bool copy_here(struct parcel *parcel, struct body *body, uint64_t chunk,
                      const struct piece *piece)
{
    if (parcel->kind != CAIRN_CHUNK_FETCH) return false;
    if (parcel->target->card != NULL && cairn_parcel_open(parcel) != CAIRN_OK) return false;
    if (!cairn_mapped_read(parcel, body, chunk, piece)) return false;
    pthread_mutex_lock(&parcel->job->session->lock);
    cairn_mapped_count(parcel->job, parcel->byte_count);
    pthread_mutex_unlock(&parcel->job->session->lock);
    cairn_parcel_arrived(parcel);
    return true;
}

/* All of a tensor, from where shards publish it on the card that it is to come to. */
static bool copy_on_card(struct command *command)
{
    struct job *job = command->job;
    const struct target *target = command->target;
    if (command->op->kind != CAIRN_CHUNK_FETCH || target->card == NULL || command->next_chunk > 0 ||
        command->plane != CAIRN_PLANE_WIRE || !target->piece.whole ||
        !cairn_lent_copy(job, command->version, target->tensor, target->card, target->ptr))
        return false;
    const uint64_t bytes = cairn_box_elems(&target->piece.box) * cairn_dtype_bytes(target->dtype);
    pthread_mutex_lock(&job->session->lock);
    cairn_mapped_count(job, bytes);
    job->stats.device_fetched_bytes += bytes;
    pthread_mutex_unlock(&job->session->lock);
    cairn_op_let_go(command->op, CAIRN_OK, NULL);
    return true;
}

/* The state of the work that was on the stream of a fetch before it: the fetch begins when that is
 * done. */
static enum card_state state_of(struct command *command)
{
    struct cairn_sentence why;
    if (command->event == NULL) return CARD_DONE;
    const enum card_state state = cairn_card_event_state(command->event, &why);
    if (state == CARD_WAITS) return state;
    cairn_card_event_free(command->event);
    command->event = NULL;
    if (state == CARD_FAILED) cairn_op_let_go(command->op, CAIRN_ERR_IO, why.text);
    return state;
}

/* Cuts what is left of a target into parcels. CAIRN_ERR_BUSY: enough was copied for this turn. */
static cairn_status cut(struct command *command, size_t *copied)
{
    struct job *job = command->job;
    uint32_t shard;
    uint64_t chunk;
    for (; cairn_command_chunk(command, &shard, &chunk); command->next_chunk++) {
        if (*copied >= COPIED_MAX) return CAIRN_ERR_BUSY;
        struct parcel *parcel = cairn_parcel_new(job, command, shard, chunk);
        if (parcel == NULL) return CAIRN_ERR_NO_MEMORY;
        if (copy_here(parcel, command->body, chunk, &command->target->piece))
            *copied += parcel->byte_count;
        else
            cairn_asker_ask(&job->shards.links[shard]->asker, &parcel->request);
    }
    return CAIRN_OK;
}

bool cairn_transfer_run(struct command *command)
{
    struct job *job = command->job;
    if (cairn_command_refused(command)) return true;
    if (cairn_op_is_canceled(command->op)) {
        cairn_op_let_go(command->op, CAIRN_ERR_CANCELED, NULL);
        return true;
    }
    const enum card_state state = state_of(command);
    if (state != CARD_DONE) return state == CARD_FAILED;
    if (copy_on_card(command)) return true;
    if (command->body == NULL)
        command->body = cairn_body_get(
            cairn_recut_body(job, command->op->kind, command->plane, command->version));
    cairn_status status = CAIRN_OK;
    size_t copied = 0;
    do {
        status = cut(command, &copied);
    } while (status == CAIRN_OK && cairn_command_next(command));
    if (status == CAIRN_ERR_BUSY) { // messages are to be answered meanwhile
        cairn_session_kick(job->session);
        return false;
    }
    for (uint32_t i = 0; i < job->shards.count; i++) cairn_asker_pump(&job->shards.links[i]->asker);
    cairn_op_let_go(command->op, status, NULL);
    return true;
}

/* The parcel that an answer is for, no longer in flight; NULL: of a former use or connection. */
static struct parcel *parcel_answered(struct shard_link *link, const struct cairn_chunk_header *h)
{
    struct parcel *parcel = cairn_parcel_of_request(link->job, h->request);
    if (parcel == NULL || parcel->shard != link->index ||
        !cairn_asker_answered(&link->asker, &parcel->request, h->request))
        return NULL;
    link->job->shards.links[parcel->via]->asked--;
    return parcel;
}

/* Asks the owner for what a relay refuses for good; true if it is asked. NOT_FOUND: the relay does
 * not relay this owner's chunks. */
static bool ask_owner(struct shard_link *owner, struct parcel *parcel, uint64_t status)
{
    if (parcel->via == owner->index || status == CAIRN_ERR_BUSY || status == CAIRN_ERR_CHECKSUM)
        return false;
    if (status == CAIRN_ERR_NOT_FOUND) owner->declined = true;
    parcel->direct = true;
    cairn_asker_ask(&owner->asker, &parcel->request);
    return true;
}

/* NAK. */
static void refused(struct shard_link *owner, struct parcel *parcel, uint64_t status)
{
    if (ask_owner(owner, parcel, status) ||
        cairn_asker_again(&owner->asker, &parcel->request, status) ||
        cairn_recut_refused(parcel, status))
        return;
    const bool is_known = status <= CAIRN_ERR_INTERNAL && cairn_status_known((int)status) &&
                          status != CAIRN_OK;
    cairn_parcel_end(parcel, is_known ? (cairn_status)status : CAIRN_ERR_PROTOCOL);
}

void cairn_transfer_on_answer(struct shard_link *link, const struct cairn_chunk_header *h)
{
    struct parcel *parcel = parcel_answered(link, h);
    if (parcel == NULL) return;
    if (h->kind == CAIRN_CHUNK_ACK)
        cairn_parcel_end(parcel, parcel->kind == CAIRN_CHUNK_PUT ? CAIRN_OK : CAIRN_ERR_PROTOCOL);
    else
        refused(link, parcel, h->value);
    cairn_asker_pump(&link->asker);
}

/* ---- data ---- */

static void on_received(void *arg, cairn_status status)
{
    struct parcel *parcel = arg;
    struct shard_link *link = parcel->job->shards.links[parcel->shard];
    const bool lost = parcel->job->shards.links[parcel->via]->conn.lost;
    const bool whole = status == CAIRN_OK &&
                       (parcel->is_unsummed || parcel->came == parcel->checksum);
    if (parcel->answered) {
        // all of the job has failed
    } else if (whole) {
        cairn_parcel_arrived(parcel);
    } else if (lost) {
        cairn_asker_ask(&link->asker, &parcel->request);
    } else if (!cairn_asker_again(&link->asker, &parcel->request, CAIRN_ERR_CHECKSUM)) {
        cairn_parcel_end(parcel, CAIRN_ERR_CHECKSUM);
    }
    cairn_parcel_loan_back(parcel);
    cairn_asker_pump(&link->asker);
}

static bool is_answer_to(const struct cairn_chunk_header *h, const struct parcel *parcel)
{
    return parcel->kind == CAIRN_CHUNK_FETCH && h->tensor == parcel->place.tensor &&
           h->first_leaf == parcel->place.first_leaf && h->leaf_count == parcel->place.leaf_count &&
           h->plane == parcel->plane && h->dtype == parcel->dtype &&
           h->payload_bytes == parcel->byte_count && h->generation == parcel->version.generation &&
           h->step == parcel->version.step;
}

/* Receives the payload right into the card's memory, if that is of cairn_alloc and dense. A payload
 * with a checksum comes to host memory, where the checksum is compared. CAIRN_ERR_UNSUPPORTED: it
 * cannot be so. */
static cairn_status land(struct parcel *parcel, struct cairn_fabric_message *message)
{
    const struct target *target = parcel->target;
    uint8_t *at = target->ptr + parcel->first * cairn_dtype_bytes(parcel->dtype);
    if (!parcel->is_unsummed || target->card == NULL || parcel->op->lent == NULL ||
        target->piece.strides.given || !cairn_card_lands(target->card) ||
        !cairn_memory_is_shown(parcel->job->session, parcel->op->lent))
        return CAIRN_ERR_UNSUPPORTED;
    return cairn_fabric_receive(message, at, parcel->byte_count, on_received, parcel);
}

static cairn_status receive(struct parcel *parcel, struct cairn_fabric_message *message)
{
    cairn_status status = land(parcel, message);
    parcel->lands = status == CAIRN_OK;
    if (status != CAIRN_ERR_UNSUPPORTED) return status;
    status = cairn_parcel_open(parcel);
    return status != CAIRN_OK ? status
                              : cairn_fabric_receive_far(message, parcel->bytes, parcel->byte_count,
                                                         &parcel->came, on_received, parcel);
}

void cairn_transfer_on_data(struct shard_link *link, const struct cairn_chunk_header *h,
                            struct cairn_fabric_message *message)
{
    struct parcel *parcel = parcel_answered(link, h);
    if (parcel == NULL || !is_answer_to(h, parcel)) {
        cairn_fabric_drop(message);
        if (parcel != NULL) cairn_parcel_end(parcel, CAIRN_ERR_PROTOCOL);
        return;
    }
    parcel->checksum = h->checksum;
    parcel->is_unsummed = (h->value & CAIRN_CHUNK_UNSUMMED) != 0;
    cairn_parcel_loan(parcel);
    const cairn_status status = receive(parcel, message);
    if (status == CAIRN_OK) return;
    cairn_fabric_drop(message);
    cairn_parcel_end(parcel, status);
    cairn_parcel_loan_back(parcel);
}

/* ---- losses ---- */

void cairn_transfer_lost(struct shard_link *link)
{
    struct job *job = link->job;
    for (uint32_t i = 0; i < job->parcels.count; i++) {
        struct parcel *parcel = job->parcels.all[i];
        if (parcel->via == link->index)
            cairn_asker_lost(&job->shards.links[parcel->shard]->asker, &parcel->request);
    }
    link->asked = 0;
}

void cairn_transfer_cancel(struct job *job)
{
    for (uint32_t i = 0; i < job->parcels.count; i++) {
        struct parcel *parcel = job->parcels.all[i];
        if (parcel->op == NULL || parcel->kind != CAIRN_CHUNK_FETCH || parcel->answered ||
            !cairn_op_is_canceled(parcel->op))
            continue;
        if (parcel->request.state == CAIRN_REQUEST_SENT) job->shards.links[parcel->via]->asked--;
        cairn_asker_drop(&job->shards.links[parcel->shard]->asker, &parcel->request);
        cairn_parcel_end(parcel, CAIRN_ERR_CANCELED);
    }
    for (uint32_t i = 0; i < job->shards.count; i++) cairn_asker_pump(&job->shards.links[i]->asker);
}

void cairn_transfer_fail_all(struct job *job, cairn_status status)
{
    for (uint32_t i = 0; i < job->shards.count; i++) job->shards.links[i]->asked = 0;
    for (uint32_t i = 0; i < job->parcels.count; i++) {
        struct parcel *parcel = job->parcels.all[i];
        if (parcel->op == NULL || parcel->kind == CAIRN_CHUNK_PUSH) continue;
        cairn_asker_drop(&job->shards.links[parcel->shard]->asker, &parcel->request);
        cairn_parcel_end(parcel, status);
    }
}
