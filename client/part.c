/* Parts: the chunks of a put, push or fetch, and what of them is on loan. Loop thread. */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "client/session.h"

static struct part *add_part(struct job *job)
{
    if (job->part_count == job->part_capacity) {
        const uint32_t capacity = job->part_capacity == 0 ? 64 : job->part_capacity * 2;
        struct part **parts = realloc(job->parts, capacity * sizeof(struct part *));
        if (parts == NULL) return NULL;
        job->parts = parts;
        job->part_capacity = capacity;
    }
    struct part *part = calloc(1, sizeof *part);
    if (part == NULL) return NULL;
    part->job = job;
    part->index = job->part_count;
    job->parts[job->part_count++] = part;
    return part;
}

static struct part *take_part(struct job *job)
{
    struct part *part = job->first_free_part;
    if (part == NULL) return add_part(job);
    job->first_free_part = part->next;
    return part;
}

/* How many elements of the piece come before an element of the tensor. */
static uint64_t before(const struct command *command, uint64_t elem)
{
    if (command->piece.whole) return elem;
    const struct cairn_shape *shape = &command->job->spec.tensors[command->tensor].shape;
    return cairn_box_before(&command->piece.box, shape, elem);
}

struct part *cairn_part_new(struct job *job, const struct command *command, uint32_t shard,
                            uint64_t chunk)
{
    struct part *part = take_part(job);
    if (part == NULL) return NULL;
    const struct cairn_chunk_place place = cairn_shard_map_chunk(&job->shards[shard].map, chunk);
    const size_t elem_bytes = cairn_dtype_bytes(command->dtype);
    const uint64_t first = before(command, place.first_elem);
    const uint64_t end = before(command, place.first_elem + place.elem_count);
    // What is put of a box goes behind it, unless the box has all of the chunk.
    const bool puts_box = command->op->kind == CAIRN_CHUNK_PUT &&
                          command->piece.tile == CAIRN_TILE_BOX;
    const bool boxed = puts_box && end - first < place.elem_count;
    *part = (struct part) {
        .job = job,
        .op = command->op,
        .index = part->index,
        .serial = (part->serial + 1) & 0x7fffffffu,
        .kind = command->op->kind,
        .plane = command->plane,
        .dtype = command->dtype,
        .tile = puts_box && !boxed ? CAIRN_TILE_WHOLE : command->piece.tile,
        .shard = shard,
        .via = shard,
        .place = place,
        .table_hash = command->piece.table_hash,
        .bytes = command->piece.strides.given || boxed ? NULL : command->ptr + first * elem_bytes,
        .head_bytes = boxed ? command->op->box_bytes : 0,
        .first = first,
        .byte_count = (end - first) * elem_bytes,
        .version = command->version,
        .round = command->round,
    };
    cairn_op_part_begin(part->op);
    return part;
}

/* ---- memory with strides ---- */

static void count_packed(struct job *job, size_t more, size_t less)
{
    struct cairn_stats *stats = &job->stats;
    pthread_mutex_lock(&job->session->lock);
    stats->packed_bytes += more;
    stats->packed_bytes -= less;
    if (stats->packed_bytes > stats->packed_bytes_peak)
        stats->packed_bytes_peak = stats->packed_bytes;
    pthread_mutex_unlock(&job->session->lock);
}

cairn_status cairn_part_open(struct part *part)
{
    if (part->bytes != NULL || part->byte_count == 0) return CAIRN_OK;
    part->packed = malloc(part->head_bytes + part->byte_count);
    if (part->packed == NULL) return CAIRN_ERR_NO_MEMORY;
    part->bytes = part->packed + part->head_bytes;
    count_packed(part->job, part->head_bytes + part->byte_count, 0);
    return CAIRN_OK;
}

/* What is to be sent; once, however often it is sent. */
static cairn_status pack(struct part *part)
{
    const struct op *op = part->op;
    const size_t elem_bytes = cairn_dtype_bytes(part->dtype);
    if (part->bytes != NULL) return CAIRN_OK;
    const cairn_status status = cairn_part_open(part);
    if (status != CAIRN_OK || part->packed == NULL) return status;
    memcpy(part->packed, op->box, part->head_bytes);
    if (op->strides.given)
        cairn_strides_gather(&op->strides, op->ptr, elem_bytes, part->first,
                             part->byte_count / elem_bytes, part->bytes);
    else
        memcpy(part->bytes, op->ptr + part->first * elem_bytes, part->byte_count);
    return CAIRN_OK;
}

void cairn_part_arrived(struct part *part)
{
    const size_t elem_bytes = cairn_dtype_bytes(part->dtype);
    if (part->packed != NULL)
        cairn_strides_scatter(&part->op->strides, part->op->ptr, elem_bytes, part->first,
                              part->byte_count / elem_bytes, part->packed);
}

static void unpack(struct part *part)
{
    if (part->packed == NULL) return;
    free(part->packed);
    part->packed = NULL;
    count_packed(part->job, 0, part->head_bytes + part->byte_count);
}

/* ---- the life of a part ---- */

static void give_back(struct part *part)
{
    unpack(part);
    part->op = NULL;
    part->next = part->job->first_free_part;
    part->job->first_free_part = part;
}

void cairn_part_undo(struct part *part)
{
    struct op *op = part->op;
    give_back(part);
    cairn_op_part_end(op, CAIRN_OK, NULL);
}

uint64_t cairn_part_cookie(const struct part *part)
{
    return CAIRN_PART_COOKIE | (uint64_t)part->serial << 32 | part->index;
}

struct part *cairn_part_of_cookie(const struct job *job, uint64_t cookie)
{
    const uint32_t index = (uint32_t)cookie;
    if (index >= job->part_count) return NULL;
    struct part *part = job->parts[index];
    return part->op != NULL && cairn_part_cookie(part) == cookie ? part : NULL;
}

static void finish(struct part *part)
{
    if (!part->answered || part->queued || part->on_loan > 0) return;
    struct op *op = part->op;
    const cairn_status status = part->status;
    struct cairn_sentence why = { "" };
    if (status != CAIRN_OK) cairn_explain_part(part, status, &why);
    give_back(part);
    cairn_op_part_end(op, status, why.text);
}

void cairn_part_end(struct part *part, cairn_status status)
{
    if (!part->answered) part->status = status;
    part->answered = true;
    finish(part);
}

void cairn_part_loan(struct part *part)
{
    part->on_loan++;
    part->job->shards[part->via].on_loan++;
}

void cairn_part_loan_back(struct part *part)
{
    part->on_loan--;
    part->job->shards[part->via].on_loan--;
    finish(part);
}

static void on_sent(void *arg, cairn_status status)
{
    (void)status; // what became of it is said by the shard's answer, or by the link's loss
    cairn_part_loan_back(arg);
}

void cairn_part_count(const struct part *part, bool shared)
{
    struct session *s = part->job->session;
    struct cairn_stats *stats = &part->job->stats;
    pthread_mutex_lock(&s->lock);
    if (part->kind == CAIRN_CHUNK_PUSH) stats->pushed_bytes += part->byte_count;
    if (part->kind == CAIRN_CHUNK_PUT) stats->put_bytes += part->byte_count;
    if (part->kind == CAIRN_CHUNK_FETCH) stats->fetched_bytes += part->byte_count;
    if (shared && part->kind == CAIRN_CHUNK_PUSH) stats->shared_pushed_bytes += part->byte_count;
    if (shared && part->kind == CAIRN_CHUNK_FETCH) stats->shared_fetched_bytes += part->byte_count;
    pthread_mutex_unlock(&s->lock);
}

cairn_status cairn_part_send(struct part *part, uint32_t via, struct cairn_chunk_header *header)
{
    struct shard_link *link = &part->job->shards[via];
    const bool is_fetch = part->kind == CAIRN_CHUNK_FETCH;
    const cairn_status opened = is_fetch ? CAIRN_OK : pack(part);
    if (opened != CAIRN_OK) return opened;
    // What is on loan is counted where it went: no other way before all of it is back.
    if (part->on_loan > 0 && via != part->via) return CAIRN_ERR_BUSY;
    part->via = via;
    const void *data = part->head_bytes > 0 ? part->packed : part->bytes;
    const void *payload = is_fetch ? part->op->box : data;
    const size_t payload_bytes = is_fetch ? part->op->box_bytes
                                          : part->head_bytes + part->byte_count;
    const bool has_payload = payload_bytes > 0;
    header->kind = part->kind;
    header->dtype = part->dtype;
    header->plane = part->plane;
    header->tile = part->tile;
    header->table_hash = part->table_hash;
    header->tensor = part->place.tensor;
    header->first_leaf = part->place.first_leaf;
    header->leaf_count = (uint32_t)part->place.leaf_count;
    if (part->kind == CAIRN_CHUNK_PUT) header->round = part->round; // of a write, else 0
    header->generation = part->version.generation;
    header->step = part->version.step;
    cairn_status status = cairn_link_send(link, header, has_payload ? payload : NULL, payload_bytes,
                                          has_payload ? on_sent : NULL, part);
    if (status != CAIRN_OK) return status;
    if (has_payload) cairn_part_loan(part);
    cairn_part_count(part, cairn_link_shares(link));
    return CAIRN_OK;
}

/* ---- cutting ---- */

/* The piece has an element of this chunk. */
static bool touches(const struct command *command, uint32_t shard, uint64_t chunk)
{
    if (command->piece.whole) return true;
    const struct cairn_shard_map *map = &command->job->shards[shard].map;
    const struct cairn_chunk_place place = cairn_shard_map_chunk(map, chunk);
    return before(command, place.first_elem) < before(command, place.first_elem + place.elem_count);
}

bool cairn_command_chunk(struct command *command, uint32_t *shard_out, uint64_t *chunk_out)
{
    const struct job *job = command->job;
    const struct cairn_geometry *g = &job->layout->geometry[command->tensor];
    size_t extent_count;
    const struct cairn_extent *extents = cairn_layout_tensor_extents(job->layout, command->tensor,
                                                                     &extent_count);
    while (command->next_extent < extent_count) {
        const struct cairn_extent *extent = &extents[command->next_extent];
        const struct cairn_local_extent *local = cairn_shard_map_find(
            &job->shards[extent->shard].map, command->tensor,
            cairn_quantum_first_leaf(g, extent->first_quantum));
        assert(local != NULL); // map and extents are of one layout
        for (; command->next_chunk < local->chunk_count; command->next_chunk++) {
            if (!touches(command, extent->shard, local->first_chunk + command->next_chunk))
                continue;
            *shard_out = extent->shard;
            *chunk_out = local->first_chunk + command->next_chunk;
            return true;
        }
        command->next_extent++;
        command->next_chunk = 0;
    }
    return false;
}

bool cairn_command_refused(struct command *command)
{
    const struct job *job = command->job;
    if (job->failed == CAIRN_OK && !job->closing) return false;
    cairn_op_part_end(command->op, job->failed != CAIRN_OK ? job->failed : CAIRN_ERR_CANCELED,
                      job->failed != CAIRN_OK ? job->failed_why.text : "the job is closed");
    return true;
}
