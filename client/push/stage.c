#include "client/push/stage.h"

#include <string.h>

#include "client/device/card.h"
#include "client/job.h"
#include "client/op.h"

static struct shard_link *owner_of(const struct parcel *parcel)
{
    return parcel->job->shards.links[parcel->shard];
}

static void unqueue(struct parcel *parcel)
{
    if (parcel->is_queued) TAILQ_REMOVE(&owner_of(parcel)->staging.queue, parcel, queued);
    parcel->is_queued = false;
}

static void unland(struct parcel *parcel)
{
    if (!parcel->is_landed) return;
    TAILQ_REMOVE(&parcel->job->landed.parcels, parcel, queued);
    parcel->job->landed.count--;
    parcel->op->landed--;
    parcel->is_landed = false;
}

static void count_sent(struct parcel *parcel)
{
    if (parcel->is_ahead) owner_of(parcel)->staging.ahead--;
    parcel->is_ahead = false;
}

static cairn_status await_copy(struct parcel *parcel, struct cairn_sentence *why)
{
    const uint64_t copy = parcel->copy;
    parcel->copy = 0;
    return cairn_card_copy_wait(parcel->target->card, copy, why);
}

/* The piece and the caller's memory are others' again: no copy may be under way. */
static void unstage(struct parcel *parcel)
{
    struct cairn_sentence why;
    if (parcel->staged.at == NULL) return;
    (void)await_copy(parcel, &why); // of a context that has failed nothing is under way
    count_sent(parcel);
    cairn_pieces_give(&parcel->staged);
    cairn_parcel_count_packed(parcel->job, 0, parcel->byte_count);
}

void cairn_stage_end(struct parcel *parcel)
{
    unqueue(parcel);
    unland(parcel);
    unstage(parcel);
}

/* ---- what is pushed ---- */

/* True if the parcel may go over the network from the card's memory, whose bytes no processor has summed. */
static bool goes_directly(const struct parcel *parcel, const struct shard_link *via)
{
    return parcel->kind == CAIRN_CHUNK_PUSH && via->takes_unsummed &&
           parcel->byte_count >= CAIRN_FABRIC_DIRECT_MIN &&
           cairn_fabric_peer_takes_device(via->conn.peer);
}

/* From where it lies if the shard knows it and takes it so; else as a copy on the card, if the shard has that
 * card, or the network takes it from there, or in host memory: that is begun here. */
static cairn_status stage(struct parcel *parcel, const struct shard_link *via,
                          struct cairn_sentence *why)
{
    const struct target *target = parcel->target;
    const struct cairn_fabric_peer *peer = via->conn.peer;
    uint8_t *own = target->ptr + parcel->first * cairn_dtype_bytes(parcel->dtype);
    const char *path = cairn_fabric_payload_path(peer, own, parcel->byte_count);
    const bool is_direct = goes_directly(parcel, via);
    const bool goes = strcmp(path, is_direct ? CAIRN_FABRIC_PATH_DIRECT : "device") == 0;
    parcel->is_unsummed = is_direct;
    if (parcel->op->lent != NULL && goes) {
        unstage(parcel);
        parcel->bytes = own;
        parcel->on_card = true;
        return CAIRN_OK;
    }
    const bool on_card = is_direct ||
                         cairn_fabric_peer_imports(peer, cairn_card_uuid(target->card));
    // A copy in host memory will do for everybody: the card may have had no room for one.
    if (parcel->staged.at != NULL && (on_card || !parcel->on_card)) {
        parcel->is_unsummed = is_direct && parcel->on_card;
        return CAIRN_OK;
    }
    unstage(parcel);
    const cairn_status status = cairn_pieces_take(parcel->job->session, target->card, on_card,
                                                  parcel->byte_count, &parcel->staged);
    if (status != CAIRN_OK) return status;
    cairn_parcel_count_packed(parcel->job, parcel->byte_count, 0);
    parcel->bytes = parcel->staged.at;
    parcel->on_card = parcel->staged.on_card;
    parcel->is_unsummed = is_direct && parcel->on_card;
    return cairn_card_copy_begin(target->card, parcel->bytes, own, parcel->byte_count,
                                 parcel->on_card ? CARD_WITHIN : CARD_TO_HOST, &parcel->copy, why);
}

void cairn_stage_queue(struct parcel *parcel)
{
    if (parcel->target->card == NULL || parcel->byte_count == 0) return;
    TAILQ_INSERT_TAIL(&owner_of(parcel)->staging.queue, parcel, queued);
    parcel->is_queued = true;
}

/* A copy that fails to begin is not reported here: cairn_stage_place tries again when the parcel is
 * sent, and reports the error. */
void cairn_stage_fill(struct shard_link *owner)
{
    const struct shard_link *carrier = owner->carrier != NULL ? owner->carrier : owner;
    struct parcel *parcel;
    while (carrier->conn.peer != NULL && owner->staging.ahead < CAIRN_STAGE_AHEAD &&
           (parcel = TAILQ_FIRST(&owner->staging.queue)) != NULL) {
        struct cairn_sentence why;
        unqueue(parcel);
        if (stage(parcel, carrier, &why) != CAIRN_OK) {
            unstage(parcel);
            return;
        }
        parcel->is_ahead = parcel->staged.at != NULL;
        owner->staging.ahead += parcel->is_ahead;
    }
}

cairn_status cairn_stage_place(struct parcel *parcel, const struct shard_link *via)
{
    struct cairn_sentence why = { "" };
    if (parcel->on_loan > 0) return CAIRN_OK; // as it went before
    if (via->conn.peer == NULL) return CAIRN_ERR_CLOSED;
    unqueue(parcel);
    cairn_status status = stage(parcel, via, &why);
    const bool is_begun = parcel->staged.at != NULL;
    if (status == CAIRN_OK) status = await_copy(parcel, &why);
    count_sent(parcel);
    if (status == CAIRN_OK)
        cairn_stage_fill(owner_of(parcel));
    else if (is_begun) { // told at the next turn: this is in the middle of others' work
        unstage(parcel); // what is in the piece is no gradient
        parcel->job->broken = (struct failure) { status, why };
        cairn_session_kick(parcel->job->session);
    }
    return status;
}

/* ---- what is fetched ---- */

/* One wait is for all of them. */
static void end_landed(struct job *job)
{
    struct parcel *parcel;
    while ((parcel = TAILQ_FIRST(&job->landed.parcels)) != NULL) {
        struct cairn_sentence why;
        unland(parcel);
        cairn_parcel_end(parcel, await_copy(parcel, &why));
    }
}

void cairn_stage_land(struct parcel *parcel)
{
    struct job *job = parcel->job;
    const struct target *target = parcel->target;
    uint8_t *to = target->ptr + parcel->first * cairn_dtype_bytes(parcel->dtype);
    struct cairn_sentence why;
    // The copies under way began before this parcel came, so the wait is short.
    if (job->landed.count >= CAIRN_STAGE_AHEAD) end_landed(job);
    const cairn_status status = cairn_card_copy_begin(target->card, to, parcel->staged.at,
                                                      parcel->byte_count, CARD_FROM_HOST,
                                                      &parcel->copy, &why);
    if (status != CAIRN_OK) {
        cairn_parcel_end(parcel, status);
        return;
    }
    TAILQ_INSERT_TAIL(&job->landed.parcels, parcel, queued);
    job->landed.count++;
    parcel->op->landed++;
    parcel->is_landed = true;
}

void cairn_stage_settle(struct job *job)
{
    const struct parcel *parcel;
    TAILQ_FOREACH (parcel, &job->landed.parcels, queued)
        if (parcel->op->landed == parcel->op->holds) break;
    if (parcel != NULL) end_landed(job);
}
