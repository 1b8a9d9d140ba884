#include "client/push/parcel.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "client/device/card.h"
#include "client/job.h"
#include "client/op.h"
#include "client/push/stage.h"

static struct parcel *add_parcel(struct job *job)
{
    if (job->parcels.count == job->parcels.capacity) {
        const uint32_t capacity = job->parcels.capacity == 0 ? 64 : job->parcels.capacity * 2;
        struct parcel **parcels = realloc(job->parcels.all, capacity * sizeof(struct parcel *));
        if (parcels == NULL) return NULL;
        job->parcels.all = parcels;
        job->parcels.capacity = capacity;
    }
    struct parcel *parcel = calloc(1, sizeof *parcel);
    if (parcel == NULL) return NULL;
    parcel->job = job;
    parcel->request.index = job->parcels.count;
    job->parcels.all[job->parcels.count++] = parcel;
    return parcel;
}

void cairn_parcels_release(struct parcel_table *parcels)
{
    for (uint32_t i = 0; i < parcels->count; i++) free(parcels->all[i]);
    free(parcels->all);
}

static struct parcel *take_parcel(struct job *job)
{
    struct parcel *parcel = job->parcels.first_free;
    if (parcel == NULL) return add_parcel(job);
    job->parcels.first_free = parcel->next;
    __builtin_prefetch(parcel->next, 1); // taken next: thousands at a time are in no cache
    return parcel;
}

/* How many elements of the piece come before an element of the tensor. */
static uint64_t before(const struct command *command, uint64_t elem)
{
    const struct target *target = command->target;
    if (target->piece.whole) return elem;
    const struct cairn_shape *shape = &command->job->spec.tensors[target->tensor].shape;
    return cairn_box_before(&target->piece.box, shape, elem);
}

struct parcel *cairn_parcel_new(struct job *job, const struct command *command, uint32_t shard,
                                uint64_t chunk)
{
    struct parcel *parcel = take_parcel(job);
    if (parcel == NULL) return NULL;
    const struct cairn_chunk_place place = cairn_shard_map_chunk(&command->body->parts[shard].map,
                                                                 chunk);
    const struct target *target = command->target;
    const size_t elem_bytes = cairn_dtype_bytes(target->dtype);
    const uint64_t first = before(command, place.first_elem);
    const uint64_t end = before(command, place.first_elem + place.elem_count);
    // A fetch for a card lands in host memory first, and is copied to the card from there.
    const bool lands = target->card != NULL && command->op->kind == CAIRN_CHUNK_FETCH;
    // A put of a box names the box before its elements, unless the box has all of the chunk.
    const bool puts_box = command->op->kind == CAIRN_CHUNK_PUT &&
                          target->piece.tile == CAIRN_TILE_BOX;
    const bool boxed = puts_box && end - first < place.elem_count;
    *parcel = (struct parcel) {
        .job = job,
        .op = command->op,
        .target = target,
        .request = { .index = parcel->request.index, .serial = parcel->request.serial + 1 },
        .kind = command->op->kind,
        .plane = command->plane,
        .dtype = target->dtype,
        .tile = puts_box && !boxed ? CAIRN_TILE_WHOLE : target->piece.tile,
        .layout = command->body->layout->version,
        .shard = shard,
        .via = shard,
        .place = place,
        .table_hash = target->piece.table_hash,
        .bytes = target->piece.strides.given || boxed || lands ? NULL
                                                               : target->ptr + first * elem_bytes,
        .head_bytes = boxed ? target->box_bytes : 0,
        .first = first,
        .byte_count = (end - first) * elem_bytes,
        .version = command->version,
        .round = command->round,
    };
    cairn_op_hold(parcel->op);
    return parcel;
}

/* ---- memory with strides ---- */

void cairn_parcel_count_packed(struct job *job, size_t more, size_t less)
{
    struct cairn_stats *stats = &job->stats;
    pthread_mutex_lock(&job->session->lock);
    stats->packed_bytes += more;
    stats->packed_bytes -= less;
    if (stats->packed_bytes > stats->packed_bytes_peak)
        stats->packed_bytes_peak = stats->packed_bytes;
    pthread_mutex_unlock(&job->session->lock);
}

static cairn_status open_landing(struct parcel *parcel)
{
    const cairn_status status = cairn_pieces_take(parcel->job->session, parcel->target->card, false,
                                                  parcel->byte_count, &parcel->staged);
    if (status != CAIRN_OK) return status;
    cairn_parcel_count_packed(parcel->job, parcel->byte_count, 0);
    parcel->bytes = parcel->staged.at;
    return CAIRN_OK;
}

cairn_status cairn_parcel_open(struct parcel *parcel)
{
    if (parcel->bytes != NULL || parcel->byte_count == 0) return CAIRN_OK;
    if (parcel->target->card != NULL && parcel->kind == CAIRN_CHUNK_FETCH)
        return open_landing(parcel);
    parcel->packed = malloc(parcel->head_bytes + parcel->byte_count);
    if (parcel->packed == NULL) return CAIRN_ERR_NO_MEMORY;
    parcel->bytes = parcel->packed + parcel->head_bytes;
    cairn_parcel_count_packed(parcel->job, parcel->head_bytes + parcel->byte_count, 0);
    return CAIRN_OK;
}

/* Copies the payload into one piece where it does not lie in one (strides, a box before it, a
 * card). Done once, however often the parcel is sent. */
static cairn_status pack(struct parcel *parcel, const struct shard_link *via)
{
    const struct target *target = parcel->target;
    const size_t elem_bytes = cairn_dtype_bytes(parcel->dtype);
    if (target->card != NULL && parcel->byte_count > 0) return cairn_stage_place(parcel, via);
    if (parcel->bytes != NULL) return CAIRN_OK;
    const cairn_status status = cairn_parcel_open(parcel);
    if (status != CAIRN_OK || parcel->packed == NULL) return status;
    memcpy(parcel->packed, target->box, parcel->head_bytes);
    if (target->piece.strides.given)
        cairn_strides_gather(&target->piece.strides, target->ptr, elem_bytes, parcel->first,
                             parcel->byte_count / elem_bytes, parcel->bytes);
    else
        memcpy(parcel->bytes, target->ptr + parcel->first * elem_bytes, parcel->byte_count);
    return CAIRN_OK;
}

void cairn_parcel_arrived(struct parcel *parcel)
{
    const struct target *target = parcel->target;
    const size_t elem_bytes = cairn_dtype_bytes(parcel->dtype);
    if (parcel->packed != NULL)
        cairn_strides_scatter(&target->piece.strides, target->ptr, elem_bytes, parcel->first,
                              parcel->byte_count / elem_bytes, parcel->packed);
    struct cairn_sentence why;
    if (parcel->lands)
        cairn_parcel_end(parcel, cairn_card_landed(target->card, &why));
    else if (parcel->staged.at != NULL)
        cairn_stage_land(parcel);
    else
        cairn_parcel_end(parcel, CAIRN_OK);
}

static void unpack(struct parcel *parcel)
{
    if (parcel->packed == NULL) return;
    free(parcel->packed);
    parcel->packed = NULL;
    cairn_parcel_count_packed(parcel->job, 0, parcel->head_bytes + parcel->byte_count);
}

/* ---- the life of a parcel ---- */

static void give_back(struct parcel *parcel)
{
    unpack(parcel);
    cairn_stage_end(parcel);
    parcel->op = NULL;
    parcel->next = parcel->job->parcels.first_free;
    parcel->job->parcels.first_free = parcel;
}

void cairn_parcel_undo(struct parcel *parcel)
{
    struct op *op = parcel->op;
    give_back(parcel);
    cairn_op_let_go(op, CAIRN_OK, NULL);
}

struct parcel *cairn_parcel_of_request(const struct job *job, uint64_t number)
{
    const uint32_t index = (uint32_t)number;
    if (index >= job->parcels.count) return NULL;
    struct parcel *parcel = job->parcels.all[index];
    const bool is_its = parcel->op != NULL &&
                        cairn_chunk_request_number(&parcel->request) == number;
    return is_its ? parcel : NULL;
}

static void finish(struct parcel *parcel)
{
    if (!parcel->answered || parcel->on_loan > 0) return;
    struct op *op = parcel->op;
    const cairn_status status = parcel->status;
    struct cairn_sentence why;
    if (status != CAIRN_OK) cairn_explain_parcel(parcel, status, &why);
    give_back(parcel);
    cairn_op_let_go(op, status, status != CAIRN_OK ? why.text : NULL);
}

void cairn_parcel_end(struct parcel *parcel, cairn_status status)
{
    if (!parcel->answered) parcel->status = status;
    parcel->answered = true;
    finish(parcel);
}

void cairn_parcel_loan(struct parcel *parcel)
{
    parcel->on_loan++;
    cairn_chunk_link_loan(&parcel->job->shards.links[parcel->via]->conn);
}

void cairn_parcel_loan_back(struct parcel *parcel)
{
    parcel->on_loan--;
    cairn_chunk_link_loan_back(&parcel->job->shards.links[parcel->via]->conn);
    finish(parcel);
}

static void on_sent(void *arg, cairn_status status)
{
    struct parcel *parcel = arg;
    // Whatever became of it, the shard's answer says, or the loss of the link.
    parcel->on_loan--;
    cairn_chunk_link_sent(&parcel->job->shards.links[parcel->via]->conn, status);
    finish(parcel);
}

/* Its bytes go into the job's statistics; `shared`: through memory that both ends have. */
static void count(const struct parcel *parcel, bool shared)
{
    struct session *s = parcel->job->session;
    struct cairn_stats *stats = &parcel->job->stats;
    pthread_mutex_lock(&s->lock);
    if (parcel->kind == CAIRN_CHUNK_PUSH) stats->pushed_bytes += parcel->byte_count;
    if (parcel->kind == CAIRN_CHUNK_PUT) stats->put_bytes += parcel->byte_count;
    if (parcel->kind == CAIRN_CHUNK_FETCH) stats->fetched_bytes += parcel->byte_count;
    if (shared && parcel->kind == CAIRN_CHUNK_PUSH)
        stats->shared_pushed_bytes += parcel->byte_count;
    if (shared && parcel->on_card && parcel->kind == CAIRN_CHUNK_PUSH)
        stats->device_pushed_bytes += parcel->byte_count;
    if (shared && parcel->kind == CAIRN_CHUNK_FETCH)
        stats->shared_fetched_bytes += parcel->byte_count;
    pthread_mutex_unlock(&s->lock);
}

cairn_status cairn_parcel_send(struct parcel *parcel, uint32_t via,
                               struct cairn_chunk_header *header)
{
    struct shard_link *link = parcel->job->shards.links[via];
    const bool is_fetch = parcel->kind == CAIRN_CHUNK_FETCH;
    // The link that a payload went over counts it: no other link is taken before all is back.
    if (parcel->on_loan > 0 && via != parcel->via) return CAIRN_ERR_BUSY;
    const cairn_status opened = is_fetch ? CAIRN_OK : pack(parcel, link);
    if (opened != CAIRN_OK) {
        cairn_chunk_link_note_memory(&link->conn, opened, parcel->head_bytes + parcel->byte_count);
        return opened;
    }
    parcel->via = via;
    const void *data = parcel->head_bytes > 0 ? parcel->packed : parcel->bytes;
    const void *payload = is_fetch ? parcel->target->box : data;
    const size_t payload_bytes = is_fetch ? parcel->target->box_bytes
                                          : parcel->head_bytes + parcel->byte_count;
    const bool has_payload = payload_bytes > 0;
    header->kind = parcel->kind;
    header->dtype = parcel->dtype;
    header->plane = parcel->plane;
    header->tile = parcel->tile;
    header->table_hash = parcel->table_hash;
    header->tensor = parcel->place.tensor;
    header->first_leaf = parcel->place.first_leaf;
    header->leaf_count = (uint32_t)parcel->place.leaf_count;
    if (parcel->kind == CAIRN_CHUNK_PUT) header->round = parcel->round; // of a write, else 0
    if (is_fetch || parcel->is_unsummed) header->value = CAIRN_CHUNK_UNSUMMED;
    header->generation = parcel->version.generation;
    header->step = parcel->version.step;
    cairn_status status = cairn_chunk_link_send(&link->conn, header, has_payload ? payload : NULL,
                                                payload_bytes, has_payload ? on_sent : NULL,
                                                parcel);
    if (status != CAIRN_OK) return status;
    if (has_payload) parcel->on_loan++; // the link has counted it
    count(parcel, cairn_chunk_link_shares(&link->conn));
    return CAIRN_OK;
}

/* ---- cutting ---- */

bool cairn_command_touches(const struct command *command, uint32_t shard, uint64_t chunk)
{
    if (command->target->piece.whole) return true;
    const struct cairn_shard_map *map = &command->body->parts[shard].map;
    const struct cairn_chunk_place place = cairn_shard_map_chunk(map, chunk);
    return before(command, place.first_elem) < before(command, place.first_elem + place.elem_count);
}

/* The shard's extent that `next_extent` of the target's is; NULL: there are no more. */
static const struct cairn_local_extent *local_of(struct command *command, uint32_t *shard_out)
{
    const struct body *body = command->body;
    const uint32_t tensor = command->target->tensor;
    size_t count;
    const struct cairn_extent *extent = cairn_layout_tensor_extents(body->layout, tensor, &count);
    if (command->next_extent >= count) return NULL;
    extent += command->next_extent;
    *shard_out = extent->shard;
    if (command->local == NULL)
        command->local = cairn_shard_map_find(
            &body->parts[extent->shard].map, tensor,
            cairn_quantum_first_leaf(&body->layout->geometry[tensor], extent->first_quantum));
    assert(command->local != NULL); // map and extents are of one layout
    return command->local;
}

bool cairn_command_chunk(struct command *command, uint32_t *shard_out, uint64_t *chunk_out)
{
    const struct cairn_local_extent *local;
    while ((local = local_of(command, shard_out)) != NULL) {
        for (; command->next_chunk < local->chunk_count; command->next_chunk++) {
            *chunk_out = local->first_chunk + command->next_chunk;
            if (cairn_command_touches(command, *shard_out, *chunk_out)) return true;
        }
        command->next_extent++;
        command->next_chunk = 0;
        command->local = NULL;
    }
    return false;
}

bool cairn_command_next(struct command *command)
{
    if (command->targets_left == 0) return false;
    command->targets_left--;
    command->target++;
    command->next_extent = 0;
    command->next_chunk = 0;
    command->local = NULL;
    return true;
}

bool cairn_command_refused(struct command *command)
{
    const struct job *job = command->job;
    if (job->failure.status == CAIRN_OK && !job->closing) return false;
    cairn_op_let_go(command->op,
                    job->failure.status != CAIRN_OK ? job->failure.status : CAIRN_ERR_CANCELED,
                    job->failure.status != CAIRN_OK ? job->failure.why.text : "the job is closed");
    return true;
}
