#include "client/push.h"

#include <inttypes.h>
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "client/device.h"
#include "client/job.h"
#include "client/op.h"

static cairn_status stage_place(struct parcel *parcel, const struct shard_link *via);
static void stage_land(struct parcel *parcel);
static void stage_end(struct parcel *parcel);

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

void parcels_release(struct parcel_table *parcels)
{
    for (uint32_t i = 0; i < parcels->count; i++) free(parcels->all[i]);
    free(parcels->all);
}

static struct parcel *acquire_parcel(struct job *job)
{
    struct parcel *parcel = job->parcels.first_free;
    if (parcel == NULL) return add_parcel(job);
    job->parcels.first_free = parcel->next;
    __builtin_prefetch(parcel->next, 1); // taken next: thousands at a time are in no cache
    return parcel;
}

/* How many elements of the piece come before an element of the tensor. */
static uint64_t elems_before(const struct command *command, uint64_t elem)
{
    const struct target *target = command->target;
    if (target->piece.whole) return elem;
    const struct shape *shape = &command->job->spec.tensors[target->tensor].shape;
    return box_before(&target->piece.box, shape, elem);
}

struct parcel *parcel_new(struct job *job, const struct command *command, uint32_t shard,
                          uint64_t chunk)
{
    struct parcel *parcel = acquire_parcel(job);
    if (parcel == NULL) return NULL;
    const struct chunk_place place = shard_map_chunk(&command->served->parts[shard].map, chunk);
    const struct target *target = command->target;
    const size_t elem_bytes = dtype_size(target->dtype);
    const uint64_t first = elems_before(command, place.first_elem);
    const uint64_t end = elems_before(command, place.first_elem + place.elem_count);
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
        .layout = command->served->layout->version,
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
    op_hold(parcel->op);
    return parcel;
}

/* ---- memory with strides ---- */

/* The job's statistics of memory that parcels have of their own grow by `more` and shrink by
 * `less`. */
static void parcel_count_packed(struct job *job, size_t more, size_t less)
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
    CAIRN_TRY(staging_acquire(parcel->job->session, parcel->target->card, false, parcel->byte_count,
                              &parcel->staged));
    parcel_count_packed(parcel->job, parcel->byte_count, 0);
    parcel->bytes = parcel->staged.at;
    return CAIRN_OK;
}

cairn_status parcel_open(struct parcel *parcel)
{
    if (parcel->bytes != NULL || parcel->byte_count == 0) return CAIRN_OK;
    if (parcel->target->card != NULL && parcel->kind == CAIRN_CHUNK_FETCH)
        return open_landing(parcel);
    parcel->packed = malloc(parcel->head_bytes + parcel->byte_count);
    if (parcel->packed == NULL) return CAIRN_ERR_NO_MEMORY;
    parcel->bytes = parcel->packed + parcel->head_bytes;
    parcel_count_packed(parcel->job, parcel->head_bytes + parcel->byte_count, 0);
    return CAIRN_OK;
}

/* Copies the payload into one piece where it does not lie in one (strides, a box before it, a
 * card). Done once, however often the parcel is sent. */
static cairn_status pack_parcel(struct parcel *parcel, const struct shard_link *via)
{
    const struct target *target = parcel->target;
    const size_t elem_bytes = dtype_size(parcel->dtype);
    if (target->card != NULL && parcel->byte_count > 0) return stage_place(parcel, via);
    if (parcel->bytes != NULL) return CAIRN_OK;
    const cairn_status status = parcel_open(parcel);
    if (status != CAIRN_OK || parcel->packed == NULL) return status;
    memcpy(parcel->packed, target->box, parcel->head_bytes);
    if (target->piece.strides.given)
        strides_gather(&target->piece.strides, target->ptr, elem_bytes, parcel->first,
                       parcel->byte_count / elem_bytes, parcel->bytes);
    else
        memcpy(parcel->bytes, target->ptr + parcel->first * elem_bytes, parcel->byte_count);
    return CAIRN_OK;
}

void parcel_arrived(struct parcel *parcel)
{
    const struct target *target = parcel->target;
    const size_t elem_bytes = dtype_size(parcel->dtype);
    if (parcel->packed != NULL)
        strides_scatter(&target->piece.strides, target->ptr, elem_bytes, parcel->first,
                        parcel->byte_count / elem_bytes, parcel->packed);
    struct sentence why;
    if (parcel->lands)
        parcel_end(parcel, card_landed(target->card, &why));
    else if (parcel->staged.at != NULL)
        stage_land(parcel);
    else
        parcel_end(parcel, CAIRN_OK);
}

static void unpack_parcel(struct parcel *parcel)
{
    if (parcel->packed == NULL) return;
    free(parcel->packed);
    parcel->packed = NULL;
    parcel_count_packed(parcel->job, 0, parcel->head_bytes + parcel->byte_count);
}

/* ---- the life of a parcel ---- */

static void free_parcel(struct parcel *parcel)
{
    unpack_parcel(parcel);
    stage_end(parcel);
    parcel->op = NULL;
    parcel->next = parcel->job->parcels.first_free;
    parcel->job->parcels.first_free = parcel;
}

void parcel_undo(struct parcel *parcel)
{
    struct op *op = parcel->op;
    free_parcel(parcel);
    op_let_go(op, CAIRN_OK, NULL);
}

struct parcel *parcel_of_request(const struct job *job, uint64_t number)
{
    const uint32_t index = (uint32_t)number;
    if (index >= job->parcels.count) return NULL;
    struct parcel *parcel = job->parcels.all[index];
    const bool is_its = parcel->op != NULL && chunk_request_number(&parcel->request) == number;
    return is_its ? parcel : NULL;
}

static void finish_parcel(struct parcel *parcel)
{
    if (!parcel->answered || parcel->on_loan > 0) return;
    struct op *op = parcel->op;
    const cairn_status status = parcel->status;
    struct sentence why;
    if (status != CAIRN_OK) explain_parcel(parcel, status, &why);
    free_parcel(parcel);
    op_let_go(op, status, status != CAIRN_OK ? why.text : NULL);
}

void parcel_end(struct parcel *parcel, cairn_status status)
{
    if (!parcel->answered) parcel->status = status;
    parcel->answered = true;
    finish_parcel(parcel);
}

void parcel_loan(struct parcel *parcel)
{
    parcel->on_loan++;
    chunk_link_loan(&parcel->job->shards.links[parcel->via]->conn);
}

void parcel_loan_back(struct parcel *parcel)
{
    parcel->on_loan--;
    chunk_link_loan_back(&parcel->job->shards.links[parcel->via]->conn);
    finish_parcel(parcel);
}

static void on_sent(void *arg, cairn_status status)
{
    struct parcel *parcel = arg;
    // Whatever became of it, the shard's answer says, or the loss of the link.
    parcel->on_loan--;
    chunk_link_sent(&parcel->job->shards.links[parcel->via]->conn, status);
    finish_parcel(parcel);
}

/* Its bytes go into the job's statistics; `shared`: through memory that both ends have. */
static void count_parcel(const struct parcel *parcel, bool shared)
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

cairn_status parcel_send(struct parcel *parcel, uint32_t via, struct chunk_header *header)
{
    struct shard_link *link = parcel->job->shards.links[via];
    const bool is_fetch = parcel->kind == CAIRN_CHUNK_FETCH;
    // The link that a payload went over counts it: no other link is taken before all is back.
    if (parcel->on_loan > 0 && via != parcel->via) return CAIRN_ERR_BUSY;
    const cairn_status opened = is_fetch ? CAIRN_OK : pack_parcel(parcel, link);
    if (opened != CAIRN_OK) {
        chunk_link_note_memory(&link->conn, opened, parcel->head_bytes + parcel->byte_count);
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
    if (is_fetch || parcel->is_unsummed) header->value |= CAIRN_CHUNK_UNSUMMED;
    header->generation = parcel->version.generation;
    header->step = parcel->version.step;
    CAIRN_TRY(chunk_link_send(&link->conn, header, has_payload ? payload : NULL, payload_bytes,
                              has_payload ? on_sent : NULL, parcel));
    if (has_payload) parcel->on_loan++; // the link has counted it
    count_parcel(parcel, chunk_link_shares(&link->conn));
    return CAIRN_OK;
}

/* ---- cutting ---- */

bool command_touches(const struct command *command, uint32_t shard, uint64_t chunk)
{
    if (command->target->piece.whole) return true;
    const struct shard_map *map = &command->served->parts[shard].map;
    const struct chunk_place place = shard_map_chunk(map, chunk);
    return elems_before(command, place.first_elem) <
           elems_before(command, place.first_elem + place.elem_count);
}

/* The shard's extent that `next_extent` of the target's is; NULL: there are no more. */
static const struct local_extent *local_of(struct command *command, uint32_t *shard_out)
{
    const struct served_layout *served = command->served;
    const uint32_t tensor = command->target->tensor;
    size_t count;
    const struct extent *extent = layout_tensor_extents(served->layout, tensor, &count);
    if (command->next_extent >= count) return NULL;
    extent += command->next_extent;
    *shard_out = extent->shard;
    if (command->local == NULL)
        command->local = shard_map_find(
            &served->parts[extent->shard].map, tensor,
            quantum_first_leaf(&served->layout->geometry[tensor], extent->first_quantum));
    assert(command->local != NULL); // map and extents are of one layout
    return command->local;
}

bool command_chunk(struct command *command, uint32_t *shard_out, uint64_t *chunk_out)
{
    const struct local_extent *local;
    while ((local = local_of(command, shard_out)) != NULL) {
        for (; command->next_chunk < local->chunk_count; command->next_chunk++) {
            *chunk_out = local->first_chunk + command->next_chunk;
            if (command_touches(command, *shard_out, *chunk_out)) return true;
        }
        command->next_extent++;
        command->next_chunk = 0;
        command->local = NULL;
    }
    return false;
}

bool command_next(struct command *command)
{
    if (command->targets_left == 0) return false;
    command->targets_left--;
    command->target++;
    command->next_extent = 0;
    command->next_chunk = 0;
    command->local = NULL;
    return true;
}

bool command_refused(struct command *command)
{
    const struct job *job = command->job;
    if (job->failure.status == CAIRN_OK && !job->closing) return false;
    op_let_go(command->op,
              job->failure.status != CAIRN_OK ? job->failure.status : CAIRN_ERR_CANCELED,
              job->failure.status != CAIRN_OK ? job->failure.why.text : "the job is closed");
    return true;
}

/* ==== stage ==== */

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

static cairn_status await_copy(struct parcel *parcel, struct sentence *why)
{
    const uint64_t copy = parcel->copy;
    parcel->copy = 0;
    return card_copy_wait(parcel->target->card, copy, why);
}

/* The piece and the caller's memory are others' again: no copy may be under way. */
static void unstage(struct parcel *parcel)
{
    struct sentence why;
    if (parcel->staged.at == NULL) return;
    (void)await_copy(parcel, &why); // of a context that has failed nothing is under way
    count_sent(parcel);
    staging_return(&parcel->staged);
    parcel_count_packed(parcel->job, 0, parcel->byte_count);
}

/* The parcel is over, sent or not: nothing of its copy is under way any more. */
static void stage_end(struct parcel *parcel)
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
           fabric_peer_takes_device(via->conn.peer);
}

/* From where it lies if the shard knows it and takes it so; else as a copy on the card, if the shard has that
 * card, or the network takes it from there, or in host memory: that is begun here. */
static cairn_status stage_parcel(struct parcel *parcel, const struct shard_link *via,
                                 struct sentence *why)
{
    const struct target *target = parcel->target;
    const struct fabric_peer *peer = via->conn.peer;
    uint8_t *own = target->ptr + parcel->first * dtype_size(parcel->dtype);
    const char *path = fabric_payload_path(peer, own, parcel->byte_count);
    const bool is_direct = goes_directly(parcel, via);
    const bool goes = strcmp(path, is_direct ? CAIRN_FABRIC_PATH_DIRECT : "device") == 0;
    parcel->is_unsummed = is_direct;
    if (parcel->op->region != NULL && goes) {
        unstage(parcel);
        parcel->bytes = own;
        parcel->on_card = true;
        return CAIRN_OK;
    }
    const bool on_card = is_direct || fabric_peer_imports(peer, card_uuid(target->card));
    // A copy in host memory will do for everybody: the card may have had no room for one.
    if (parcel->staged.at != NULL && (on_card || !parcel->on_card)) {
        parcel->is_unsummed = is_direct && parcel->on_card;
        return CAIRN_OK;
    }
    unstage(parcel);
    CAIRN_TRY(staging_acquire(parcel->job->session, target->card, on_card, parcel->byte_count,
                              &parcel->staged));
    parcel_count_packed(parcel->job, parcel->byte_count, 0);
    parcel->bytes = parcel->staged.at;
    parcel->on_card = parcel->staged.on_card;
    parcel->is_unsummed = is_direct && parcel->on_card;
    return card_copy_begin(target->card, parcel->bytes, own, parcel->byte_count,
                           parcel->on_card ? CARD_WITHIN : CARD_TO_HOST, &parcel->copy, why);
}

void stage_queue(struct parcel *parcel)
{
    if (parcel->target->card == NULL || parcel->byte_count == 0) return;
    TAILQ_INSERT_TAIL(&owner_of(parcel)->staging.queue, parcel, queued);
    parcel->is_queued = true;
}

/* A copy that fails to begin is not reported here: stage_place tries again when the parcel is
 * sent, and reports the error. */
void stage_fill(struct shard_link *owner)
{
    const struct shard_link *carrier = owner->carrier != NULL ? owner->carrier : owner;
    struct parcel *parcel;
    while (carrier->conn.peer != NULL && owner->staging.ahead < CAIRN_STAGE_AHEAD &&
           (parcel = TAILQ_FIRST(&owner->staging.queue)) != NULL) {
        struct sentence why;
        unqueue(parcel);
        if (stage_parcel(parcel, carrier, &why) != CAIRN_OK) {
            unstage(parcel);
            return;
        }
        parcel->is_ahead = parcel->staged.at != NULL;
        owner->staging.ahead += parcel->is_ahead;
    }
}

/* Sets the parcel's bytes to what is sent over that connection, the memory itself or its copy, and waits
 * until they are complete. */
static cairn_status stage_place(struct parcel *parcel, const struct shard_link *via)
{
    struct sentence why = { "" };
    if (parcel->on_loan > 0) return CAIRN_OK; // as it went before
    if (via->conn.peer == NULL) return CAIRN_ERR_CLOSED;
    unqueue(parcel);
    cairn_status status = stage_parcel(parcel, via, &why);
    const bool is_begun = parcel->staged.at != NULL;
    if (status == CAIRN_OK) status = await_copy(parcel, &why);
    count_sent(parcel);
    if (status == CAIRN_OK)
        stage_fill(owner_of(parcel));
    else if (is_begun) { // told at the next turn: this is in the middle of others' work
        unstage(parcel); // what is in the piece is no gradient
        parcel->job->broken = (struct failure) { status, why };
        session_kick(parcel->job->session);
    }
    return status;
}

/* ---- what is fetched ---- */

/* One wait is for all of them. */
static void end_landed(struct job *job)
{
    struct parcel *parcel;
    while ((parcel = TAILQ_FIRST(&job->landed.parcels)) != NULL) {
        struct sentence why;
        unland(parcel);
        parcel_end(parcel, await_copy(parcel, &why));
    }
}

/* Begins the copy of bytes that came for a card's memory. The parcel ends when they are copied, at
 * the latest in stage_end_landed. */
static void stage_land(struct parcel *parcel)
{
    struct job *job = parcel->job;
    const struct target *target = parcel->target;
    uint8_t *to = target->ptr + parcel->first * dtype_size(parcel->dtype);
    struct sentence why;
    // The copies under way began before this parcel came, so the wait is short.
    if (job->landed.count >= CAIRN_STAGE_AHEAD) end_landed(job);
    const cairn_status status = card_copy_begin(target->card, to, parcel->staged.at,
                                                parcel->byte_count, CARD_FROM_HOST, &parcel->copy,
                                                &why);
    if (status != CAIRN_OK) {
        parcel_end(parcel, status);
        return;
    }
    TAILQ_INSERT_TAIL(&job->landed.parcels, parcel, queued);
    job->landed.count++;
    parcel->op->landed++;
    parcel->is_landed = true;
}

void stage_end_landed(struct job *job)
{
    const struct parcel *parcel;
    TAILQ_FOREACH (parcel, &job->landed.parcels, queued)
        if (parcel->op->landed == parcel->op->holds) break;
    if (parcel != NULL) end_landed(job);
}

/* ==== accumulate ==== */

/* Stages 0 and 1: the micro-batches of a round are added up here, in fp32 and in their order, and pushed
 * once, as micro-batch 0. With one micro-batch nothing is copied: the caller's memory is pushed.
 *
 * A sum is made when its tensor is first pushed, and kept as long as the job is open. In the last
 * micro-batch a tensor's sum is pushed as soon as it is complete; what the last one did not touch follows
 * at its end. A worker that commits with fewer micro-batches than the job declares pushes what it has. */

struct sum {
    /* owned */
    float *values; /* [elems] */
    size_t elems;
    struct piece piece; /* what of the tensor */
    bool any;           /* pushed in a micro-batch of this round */
    bool sent;
};

bool accumulate_wanted(const struct job *job)
{
    return job->spec.stage < 2 && job->spec.micro_batches > 1;
}

static uint32_t last_micro(const struct job *job)
{
    return job->spec.micro_batches - 1;
}

void accumulate_new_round(struct job *job)
{
    job->sums.ended = false;
    for (size_t i = 0; job->sums.of != NULL && i < job->spec.tensor_count; i++)
        job->sums.of[i].any = job->sums.of[i].sent = false;
}

void accumulate_release(struct job *job)
{
    for (size_t i = 0; job->sums.of != NULL && i < job->spec.tensor_count; i++)
        free(job->sums.of[i].values);
    free(job->sums.of);
}

/* ---- adding ---- */

static bool make_room(struct job *job, struct sum *sum, size_t elems)
{
    if (sum->values != NULL && sum->elems == elems) return true;
    float *values = realloc(sum->values, (elems > 0 ? elems : 1) * sizeof *values);
    if (values == NULL) return false;
    pthread_mutex_lock(&job->session->lock);
    job->stats.accumulated_bytes += elems * sizeof *values;
    job->stats.accumulated_bytes -= sum->elems * sizeof *values;
    pthread_mutex_unlock(&job->session->lock);
    sum->values = values;
    sum->elems = elems;
    return true;
}

static float of_bf16(uint16_t bits)
{
    const uint32_t wide = (uint32_t)bits << 16;
    float value;
    memcpy(&value, &wide, sizeof value);
    return value;
}

/* sum: [elems] f32; gradient: [elems] f32 or bf16. The first one of a round is taken as it is: 0 + -0 is
 * not -0. */
static void add_gradient(float *restrict sum, const void *restrict gradient, size_t elems,
                         cairn_dtype dtype, bool first)
{
    const float *wide = gradient;
    const uint16_t *narrow = gradient;
    if (elems == 0) return;
    if (dtype == CAIRN_F32 && first)
        memcpy(sum, wide, elems * sizeof *sum);
    else if (dtype == CAIRN_F32)
        for (size_t i = 0; i < elems; i++) sum[i] += wide[i];
    else if (first)
        for (size_t i = 0; i < elems; i++) sum[i] = of_bf16(narrow[i]);
    else
        for (size_t i = 0; i < elems; i++) sum[i] += of_bf16(narrow[i]);
}

/* The piece from the caller's memory: as it lies, or a few at a time. */
static void add_piece(struct sum *sum, const struct piece *piece, const struct cairn_mem *mem)
{
    enum { AT_ONCE = 4096 };
    float some[AT_ONCE];
    if (!piece->strides.given) {
        add_gradient(sum->values, mem->ptr, sum->elems, mem->dtype, !sum->any);
        return;
    }
    for (size_t at = 0, count; at < sum->elems; at += count) {
        count = sum->elems - at < AT_ONCE ? sum->elems - at : AT_ONCE;
        strides_gather(&piece->strides, mem->ptr, dtype_size((int)mem->dtype), at, count, some);
        add_gradient(sum->values + at, some, count, mem->dtype, !sum->any);
    }
}

static struct sum *sum_of(struct job *job, size_t tensor)
{
    pthread_mutex_lock(&job->session->lock);
    if (job->sums.of == NULL)
        job->sums.of = calloc(job->spec.tensor_count + 1, sizeof *job->sums.of);
    struct sum *sum = job->sums.of != NULL ? &job->sums.of[tensor] : NULL;
    pthread_mutex_unlock(&job->session->lock);
    return sum;
}

static cairn_status send_sum(struct job *job, const struct cairn_round *round, size_t tensor)
{
    struct sum *sum = &job->sums.of[tensor];
    const struct command pattern = { .tensor = (uint32_t)tensor,
                                     .micro = 0,
                                     .dtype = CAIRN_F32,
                                     .ptr = (uint8_t *)sum->values,
                                     .piece = sum->piece,
                                     .round = round->round };
    cairn_status status = op_begin(job, CAIRN_CHUNK_PUSH, pushes_run, &pattern, NULL);
    if (status == CAIRN_OK) sum->sent = true;
    return status;
}

static cairn_status add_inside(struct job *job, const struct cairn_round *round, uint32_t micro,
                               size_t tensor, const struct piece *piece,
                               const struct cairn_mem *mem)
{
    const size_t elems = (size_t)box_element_count(&piece->box);
    const void *region;
    struct sum *sum = sum_of(job, tensor);
    if (sum == NULL || !make_room(job, sum, elems))
        return client_fail(CAIRN_ERR_NO_MEMORY,
                           "tensor %s: out of memory to add up micro-batches (stage %u)",
                           job->spec.tensors[tensor].name, (unsigned)job->spec.stage);
    const size_t bytes = strides_span(&piece->strides, elems, dtype_size((int)mem->dtype));
    CAIRN_TRY(memory_lend(job->session, mem->ptr, bytes, NULL, &region));
    add_piece(sum, piece, mem);
    memory_return(job->session, region);
    sum->piece = *piece;
    sum->piece.strides.given = false; // the sum is dense
    sum->any = true;
    // Out of memory for that is no harm yet: it is sent at the end of the micro-batch.
    if (micro == last_micro(job)) (void)send_sum(job, round, tensor);
    return CAIRN_OK;
}

cairn_status accumulate_add(struct job *job, const struct cairn_round *round, uint32_t micro,
                            size_t tensor, const struct piece *piece, const struct cairn_mem *mem)
{
    cairn_status status = add_inside(job, round, micro, tensor, piece, mem);
    pthread_mutex_lock(&job->session->lock);
    if (status != CAIRN_OK) job->filling.tensors[tensor] = NOT_PUSHED; // it may be tried again
    if (--job->filling.adding == 0) pthread_cond_broadcast(&job->session->changed);
    pthread_mutex_unlock(&job->session->lock);
    return status;
}

void accumulate_skip(struct job *job, size_t tensor)
{
    pthread_mutex_lock(&job->session->lock);
    job->filling.tensors[tensor] = NOT_PUSHED;
    if (--job->filling.adding == 0) pthread_cond_broadcast(&job->session->changed);
    pthread_mutex_unlock(&job->session->lock);
}

/* ---- sending ---- */

cairn_status accumulate_send(struct job *job, const struct cairn_round *round)
{
    cairn_status status = CAIRN_OK;
    for (size_t i = 0; status == CAIRN_OK && job->sums.of != NULL && i < job->spec.tensor_count;
         i++)
        if (job->sums.of[i].any && !job->sums.of[i].sent) status = send_sum(job, round, i);
    return status;
}

/* ==== assemble ==== */

struct assembly {
    struct assembly *next; /* of the job's list, while something is missing */
    struct job *job;       /* borrowed: outlives it */
    uint8_t kind;
    uint32_t tensor, micro;
    uint64_t round;
    struct piece piece; /* the target, dense */
    cairn_dtype dtype;
    uint8_t *values; /* owned: [elems], zeros where nothing was copied */
    uint64_t elems, copied;
    struct cairn_box *boxes; /* owned: [box_count], claimed, without a common element */
    size_t box_count, capacity;
    uint32_t copying; /* portions that were claimed and are not copied */
    bool is_void;     /* not in the list any more: who copies last frees it */
};

/* ---- the list: under the lock ---- */

static struct assembly **find_assembly(struct job *job, uint8_t kind, uint32_t tensor,
                                       uint64_t round, uint32_t micro)
{
    struct assembly **link = &job->sums.assemblies;
    while (*link != NULL && ((*link)->kind != kind || (*link)->tensor != tensor ||
                             (*link)->round != round || (*link)->micro != micro))
        link = &(*link)->next;
    return link;
}

static struct assembly **find_for(struct job *job, const struct portion *p)
{
    return find_assembly(job, p->kind, p->tensor, p->round, p->micro);
}

bool assemble_begun(const struct job *job, const struct portion *portion)
{
    return *find_for((struct job *)(uintptr_t)job, portion) != NULL;
}

static void count_assemble(struct job *job, uint64_t more, uint64_t less)
{
    struct cairn_stats *stats = &job->stats;
    stats->assembled_bytes += more;
    stats->assembled_bytes -= less;
    if (stats->assembled_bytes > stats->assembled_bytes_peak)
        stats->assembled_bytes_peak = stats->assembled_bytes;
}

static size_t bytes_of(const struct assembly *assembly)
{
    return (size_t)assembly->elems * dtype_size((int)assembly->dtype);
}

static void free_locked(struct assembly *assembly)
{
    count_assemble(assembly->job, 0, bytes_of(assembly));
    free(assembly->values);
    free(assembly->boxes);
    free(assembly);
}

void assemble_free(struct assembly *assembly)
{
    struct session *s = assembly->job->session;
    pthread_mutex_lock(&s->lock);
    free_locked(assembly);
    pthread_mutex_unlock(&s->lock);
}

static void drop(struct assembly **link)
{
    struct assembly *assembly = *link;
    *link = assembly->next;
    assembly->is_void = true;
    if (assembly->copying == 0) free_locked(assembly);
}

void assemble_new_round(struct job *job)
{
    for (struct assembly **link = &job->sums.assemblies; *link != NULL;)
        if ((*link)->kind == CAIRN_CHUNK_PUSH)
            drop(link);
        else
            link = &(*link)->next;
}

void assemble_release(struct job *job)
{
    while (job->sums.assemblies != NULL) drop(&job->sums.assemblies);
}

static struct assembly *open_assembly(struct job *job, const struct portion *p)
{
    struct assembly *assembly = calloc(1, sizeof *assembly);
    if (assembly == NULL) return NULL;
    *assembly = (struct assembly) { .job = job,
                                    .kind = p->kind,
                                    .tensor = p->tensor,
                                    .micro = p->micro,
                                    .round = p->round,
                                    .piece = p->whole,
                                    .dtype = p->mem.dtype,
                                    .elems = box_element_count(&p->whole.box) };
    assembly->values = calloc(1, bytes_of(assembly) + 1);
    if (assembly->values == NULL) {
        free(assembly);
        return NULL;
    }
    count_assemble(job, bytes_of(assembly), 0);
    assembly->next = job->sums.assemblies;
    job->sums.assemblies = assembly;
    return assembly;
}

static cairn_status judge_claim(const struct assembly *assembly, const struct portion *p)
{
    char mine[CAIRN_BOX_TEXT_BYTES], theirs[CAIRN_BOX_TEXT_BYTES];
    const char *target = assembly->job->spec.tensors[p->tensor].name;
    if (assembly->dtype != p->mem.dtype)
        return client_fail(CAIRN_ERR_INVALID,
                           "tensor %s: mem.dtype is %s, that of another part of %s was %s; "
                           "give all parts of a tensor in one",
                           p->name, dtype_label((int)p->mem.dtype), target,
                           dtype_label((int)assembly->dtype));
    for (size_t i = 0; i < assembly->box_count; i++)
        if (box_overlap(&assembly->boxes[i], &p->piece.box))
            return client_fail(
                CAIRN_ERR_EXISTS,
                "tensor %s is %s of %s, of which %s was given already; no element is given twice",
                p->name, box_text(&p->piece.box, mine), target,
                box_text(&assembly->boxes[i], theirs));
    return CAIRN_OK;
}

static bool add_box(struct assembly *assembly, const struct cairn_box *box)
{
    if (assembly->box_count == assembly->capacity) {
        const size_t capacity = assembly->capacity == 0 ? 4 : assembly->capacity * 2;
        struct cairn_box *boxes = realloc(assembly->boxes, capacity * sizeof *boxes);
        if (boxes == NULL) return false;
        assembly->boxes = boxes;
        assembly->capacity = capacity;
    }
    assembly->boxes[assembly->box_count++] = *box;
    return true;
}

static void remove_box(struct assembly *assembly, const struct cairn_box *box)
{
    size_t i = 0;
    while (!box_equal(&assembly->boxes[i], box)) i++;
    assembly->boxes[i] = assembly->boxes[--assembly->box_count];
}

cairn_status assemble_claim(struct job *job, const struct portion *portion, struct assembly **out)
{
    struct assembly *assembly = *find_for(job, portion);
    const bool fresh = assembly == NULL;
    if (fresh) assembly = open_assembly(job, portion);
    CAIRN_TRY(assembly != NULL ? judge_claim(assembly, portion) : CAIRN_OK);
    if (assembly == NULL || !add_box(assembly, &portion->piece.box)) {
        if (assembly != NULL && fresh) drop(find_for(job, portion));
        return client_fail(CAIRN_ERR_NO_MEMORY,
                           "tensor %s: out of memory to put its target together", portion->name);
    }
    assembly->copying++;
    *out = assembly;
    return CAIRN_OK;
}

/* ---- copying ---- */

/* `from` is the caller's memory; NULL: zeros. */
static void copy_portion(const struct assembly *assembly, const struct portion *p,
                         const uint8_t *from)
{
    const struct shape *shape = &assembly->job->spec.tensors[p->tensor].shape;
    const size_t elem_bytes = dtype_size((int)assembly->dtype);
    struct box_runs runs;
    uint64_t elem, box_elem, run;
    box_runs_begin(&runs, &p->piece.box, shape, 0, assembly->elems);
    while (box_runs_next(&runs, &elem, &box_elem, &run)) {
        uint8_t *to = assembly->values + elem * elem_bytes;
        if (from == NULL)
            memset(to, 0, run * elem_bytes);
        else if (p->piece.strides.given)
            strides_gather(&p->piece.strides, from, elem_bytes, box_elem, run, to);
        else
            memcpy(to, from + box_elem * elem_bytes, run * elem_bytes);
    }
}

cairn_status assemble_copy(struct assembly *assembly, const struct portion *p, bool *whole_out)
{
    struct job *job = assembly->job;
    const uint64_t elems = box_element_count(&p->piece.box);
    const void *region;
    bool whole = false;
    cairn_status status = memory_lend(
        job->session, p->mem.ptr,
        strides_span(&p->piece.strides, elems, dtype_size((int)p->mem.dtype)), NULL, &region);
    if (status == CAIRN_OK) copy_portion(assembly, p, p->mem.ptr);
    if (status == CAIRN_OK) memory_return(job->session, region);
    pthread_mutex_lock(&job->session->lock);
    assembly->copying--;
    if (status == CAIRN_OK)
        assembly->copied += elems;
    else
        remove_box(assembly, &p->piece.box);
    if (assembly->is_void) {
        if (assembly->copying == 0) free_locked(assembly);
        status = client_fail(CAIRN_ERR_EPOCH_CHANGED, "round %" PRIu64 " was abandoned", p->round);
    } else if (assembly->copied == assembly->elems && assembly->copying == 0) {
        *find_for(job, p) = assembly->next;
        whole = true;
    } else if (assembly->box_count == 0) {
        drop(find_for(job, p));
    }
    pthread_mutex_unlock(&job->session->lock);
    if (status == CAIRN_OK) *whole_out = whole;
    return status;
}

void assemble_put_back(struct assembly *assembly)
{
    struct job *job = assembly->job;
    pthread_mutex_lock(&job->session->lock);
    assembly->next = job->sums.assemblies;
    job->sums.assemblies = assembly;
    pthread_mutex_unlock(&job->session->lock);
}

void assemble_undo(struct assembly *assembly, const struct portion *p)
{
    struct job *job = assembly->job;
    copy_portion(assembly, p, NULL);
    pthread_mutex_lock(&job->session->lock);
    remove_box(assembly, &p->piece.box);
    assembly->copied -= box_element_count(&p->piece.box);
    assembly->next = job->sums.assemblies;
    job->sums.assemblies = assembly;
    if (assembly->box_count == 0) drop(&job->sums.assemblies);
    pthread_mutex_unlock(&job->session->lock);
}

/* ---- what is missing ---- */

struct assembly *assemble_ended(struct job *job, uint64_t round, uint32_t micro)
{
    struct assembly *ended = NULL;
    pthread_mutex_lock(&job->session->lock);
    for (struct assembly **link = &job->sums.assemblies; *link != NULL && ended == NULL;) {
        struct assembly *assembly = *link;
        if (assembly->kind == CAIRN_CHUNK_PUSH && assembly->round == round &&
            assembly->micro == micro) {
            assert(assembly->copying == 0); // whoever ended it has waited
            *link = assembly->next;
            ended = assembly;
        } else {
            link = &assembly->next;
        }
    }
    pthread_mutex_unlock(&job->session->lock);
    return ended;
}

cairn_status assemble_judge_put(struct job *job)
{
    struct sentence why;
    bool missing = false;
    pthread_mutex_lock(&job->session->lock);
    const struct assembly *some = job->sums.assemblies;
    while (some != NULL && some->kind != CAIRN_CHUNK_PUT) some = some->next;
    if (some != NULL && !job->known.initialized) {
        missing = true;
        sentence_set(&why,
                     "of tensor %s only parts were put, %" PRIu64 " of %" PRIu64
                     " elements; put the others",
                     job->spec.tensors[some->tensor].name, some->copied, some->elems);
    }
    pthread_mutex_unlock(&job->session->lock);
    return missing ? client_fail(CAIRN_ERR_NOT_READY, "%s", why.text) : CAIRN_OK;
}

/* ---- sending ---- */

static void on_done(void *assembly, cairn_status status, const char *why)
{
    (void)status, (void)why; // the commit, or the end of the initial state, says it
    assemble_free(assembly);
}

void assemble_pattern(struct assembly *assembly, struct command *pattern)
{
    pattern->tensor = assembly->tensor;
    pattern->micro = assembly->micro;
    pattern->round = assembly->round;
    pattern->dtype = (uint8_t)assembly->dtype;
    pattern->ptr = assembly->values;
    pattern->piece = assembly->piece;
    pattern->on_done = on_done;
    pattern->context = assembly;
}

struct cairn_mem assemble_mem(const struct assembly *assembly)
{
    return (struct cairn_mem) { .struct_size = sizeof(struct cairn_mem),
                                .ptr = assembly->values,
                                .dtype = assembly->dtype };
}
