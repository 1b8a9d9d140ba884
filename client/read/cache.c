#include "client/read/cache.h"

#include <stdlib.h>
#include <string.h>

#include "client/base/struct.h"
#include "client/base/units.h"
#include "client/job.h"
#include "client/op.h"
#include "client/read/lent.h"

#define ALIGN_BYTES ((size_t)64) /* of every tensor in a block */

/* A block on loan to one cairn_map, until its cairn_unmap. */
struct loan {
    struct loan *next;
    uint64_t number;
};

/* ---- what a unit is made of: not under the lock ---- */

static struct unit_tensor tensor_of(struct job *job, uint32_t named)
{
    const struct cairn_tensor_spec *spec = &job->spec.tensors[named];
    struct unit_tensor tensor = { .named = named };
    tensor.fetched = (uint32_t)cairn_spec_target(&job->spec, named);
    tensor.dtype = job->spec.tensors[tensor.fetched].wire;
    tensor.piece = cairn_client_tiles_own(job, tensor.fetched);
    if (spec->alias_box != NULL) {
        tensor.piece.box = *spec->alias_box;
        tensor.piece.whole = false;
    }
    tensor.piece.tile = tensor.piece.whole ? CAIRN_TILE_WHOLE : CAIRN_TILE_BOX;
    tensor.byte_count = (size_t)cairn_box_elems(&tensor.piece.box) *
                        cairn_dtype_bytes((int)tensor.dtype);
    return tensor;
}

cairn_status cairn_cache_shape(struct job *job, size_t unit, struct unit_shape *out)
{
    struct unit_shape shape = { .unit = unit };
    const uint32_t *tensors = cairn_units_tensors(job->cache->units, unit, &shape.count);
    shape.tensors = calloc(shape.count, sizeof *shape.tensors);
    if (shape.tensors == NULL) return cairn_client_fail(CAIRN_ERR_NO_MEMORY, "out of memory");
    for (size_t i = 0; i < shape.count; i++) {
        struct unit_tensor *tensor = &shape.tensors[i];
        *tensor = tensor_of(job, tensors[i]);
        tensor->at = shape.byte_count;
        shape.byte_count += (tensor->byte_count + ALIGN_BYTES - 1) / ALIGN_BYTES * ALIGN_BYTES;
        if (i == 0) shape.table_hash = tensor->piece.table_hash;
        if (tensor->piece.table_hash == shape.table_hash) continue;
        free(shape.tensors);
        return cairn_client_fail(CAIRN_ERR_BUSY, "tiles are being declared by another thread");
    }
    if (shape.byte_count == 0) shape.byte_count = ALIGN_BYTES;
    *out = shape;
    return CAIRN_OK;
}

/* ---- blocks: under the lock ---- */

static struct block *find(struct job *job, struct cairn_version version, const struct card *card,
                          const struct unit_shape *shape)
{
    for (struct block *b = job->cache->blocks; b != NULL; b = b->next)
        if (b->card == card && b->shape.unit == shape->unit &&
            b->shape.table_hash == shape->table_hash &&
            (b->lent == NULL || cairn_lent_whole(b->lent)) &&
            cairn_version_compare(b->version, version) == 0)
            return b;
    return NULL;
}

static void drop(struct block *block)
{
    struct cache *cache = block->job->cache;
    struct block **link = &cache->blocks;
    while (*link != block) link = &(*link)->next;
    *link = block->next;
    cache->block_count--;
    if (block->memory != NULL) block->job->stats.mapped_bytes -= block->shape.byte_count;
    cairn_lent_close(block->lent);
    for (struct loan *loan = block->loans, *next; loan != NULL; loan = next) {
        next = loan->next;
        free(loan);
    }
    free(block->shape.tensors);
    if (block->card == NULL) free(block->memory);
    if (block->own != NULL) cairn_memory_leave(block->job->session, block->own);
    free(block);
}

static bool is_idle(const struct block *block)
{
    return block->pending == 0 && block->loans == NULL;
}

/* Puts out the oldest that nobody has on loan, but for those of the prefetch `call`, until there is room
 * for one more. */
static bool make_room(struct job *job, uint64_t call)
{
    struct cache *cache = job->cache;
    while (cache->block_count >= job->session->prefetch_units) {
        struct block *oldest = NULL;
        for (struct block *b = cache->blocks; b != NULL; b = b->next)
            if (is_idle(b) && b->call != call) oldest = b;
        if (oldest == NULL) return false;
        drop(oldest);
    }
    return true;
}

static void drop_older(struct job *job, struct cairn_version version)
{
    for (struct block *b = job->cache->blocks, *next; b != NULL; b = next) {
        next = b->next;
        if (cairn_version_compare(b->version, version) >= 0) continue;
        b->wanted = false;
        if (is_idle(b)) drop(b);
    }
}

bool cairn_cache_forget(struct job *job)
{
    bool is_all = true;
    for (struct block *b = job->cache != NULL ? job->cache->blocks : NULL, *next; b != NULL;
         b = next) {
        next = b->next;
        if (is_idle(b))
            drop(b);
        else
            is_all = false;
    }
    return is_all;
}

/* All of the unit where it was published; NULL: it has to be gathered. */
static struct lent *lend_whole(struct job *job, struct cairn_version version,
                               const struct card *card, const struct unit_shape *shape)
{
    const enum cairn_published_side side = card != NULL ? CAIRN_PUBLISHED_DEVICE
                                                        : CAIRN_PUBLISHED_HOST;
    if (card != NULL && !cairn_lent_has_card(job, card)) return NULL;
    uint32_t *tensors = calloc(shape->count + 1, sizeof *tensors);
    bool whole = tensors != NULL;
    for (size_t i = 0; whole && i < shape->count; i++) {
        whole = shape->tensors[i].piece.whole;
        tensors[i] = shape->tensors[i].fetched;
    }
    struct lent *lent = whole ? cairn_lent_open(job, version, side, tensors, shape->count) : NULL;
    free(tensors);
    return lent;
}

/* A card's is `own`, if it is there; it is the block's then. */
static bool take_memory(struct block *block, size_t bytes, struct gone **own)
{
    if (block->card == NULL) {
        block->memory = aligned_alloc(ALIGN_BYTES, bytes);
        return block->memory != NULL;
    }
    if (*own == NULL) return false;
    block->own = *own;
    *own = NULL;
    block->memory = cairn_memory_apart_at(block->own);
    return true;
}

/* Adds a block, which takes over the shape. If it is there at once its `pending` is 0; else its
 * fetches are to be begun. NULL: out of memory. A pending block stays when the lock is let go; one
 * that is there may be given back by another thread, and freed. */
static struct block *add(struct job *job, struct cairn_version version, struct card *card,
                         struct unit_shape *shape, struct gone **own)
{
    struct cache *cache = job->cache;
    struct block *block = calloc(1, sizeof *block);
    if (block == NULL) return NULL;
    block->card = card;
    block->lent = lend_whole(job, version, card, shape);
    if (block->lent == NULL && !take_memory(block, shape->byte_count, own)) {
        free(block);
        return NULL;
    }
    block->job = job;
    block->version = version;
    block->shape = *shape;
    shape->tensors = NULL;
    block->pending = block->lent != NULL ? 0 : (uint32_t)block->shape.count + 1;
    block->next = cache->blocks;
    cache->blocks = block;
    cache->block_count++;
    struct cairn_stats *stats = &job->stats;
    if (block->lent != NULL) {
        stats->maps_lent++;
        for (size_t i = 0; i < block->shape.count; i++)
            cairn_mapped_count(job, block->shape.tensors[i].byte_count);
        for (size_t i = 0; card != NULL && i < block->shape.count; i++)
            stats->device_fetched_bytes += block->shape.tensors[i].byte_count;
        return block;
    }
    stats->mapped_bytes += block->shape.byte_count;
    if (stats->mapped_bytes > stats->mapped_bytes_peak)
        stats->mapped_bytes_peak = stats->mapped_bytes;
    return block;
}

/* ---- wanting, lending, giving back ---- */

cairn_status cairn_cache_open(struct job *job)
{
    struct cache *cache = calloc(1, sizeof *cache);
    if (cache != NULL) cache->units = cairn_units_open(&job->spec);
    const bool whole = cache != NULL && cache->units != NULL;
    pthread_mutex_lock(&job->session->lock);
    const bool had = job->cache != NULL;
    if (!had && whole) job->cache = cache;
    pthread_mutex_unlock(&job->session->lock);
    if ((had || !whole) && cache != NULL) {
        cairn_units_close(cache->units);
        free(cache);
    }
    return had || whole ? CAIRN_OK : cairn_client_fail(CAIRN_ERR_NO_MEMORY, "out of memory");
}

uint64_t cairn_cache_new_call(struct job *job, struct cairn_version version)
{
    pthread_mutex_lock(&job->session->lock);
    drop_older(job, version);
    const uint64_t call = ++job->cache->last_call;
    pthread_mutex_unlock(&job->session->lock);
    return call;
}

struct block *cairn_cache_want(struct job *job, struct cairn_version version,
                               struct unit_shape *shape, uint64_t call)
{
    struct block *made = NULL;
    pthread_mutex_lock(&job->session->lock);
    struct block *block = find(job, version, NULL, shape);
    if (block == NULL && make_room(job, call)) block = made = add(job, version, NULL, shape, NULL);
    if (made != NULL && made->pending == 0) made = NULL;
    if (block != NULL) {
        block->wanted = true;
        block->call = call;
    } else {
        job->stats.prefetches_dropped++;
    }
    pthread_mutex_unlock(&job->session->lock);
    return made;
}

static void fill_views(const struct job *job, const struct unit_shape *shape,
                       const struct block *block, uint64_t loan, struct cairn_view *views)
{
    const size_t stride = views[0].struct_size;
    for (size_t i = 0; i < shape->count; i++) {
        const struct unit_tensor *tensor = &shape->tensors[i];
        struct cairn_view view = { .struct_size = sizeof view,
                                   .tensor = job->spec.tensors[tensor->named].name,
                                   .ptr = block->lent != NULL ? cairn_lent_at(block->lent, i)
                                                              : block->memory + tensor->at,
                                   .dtype = tensor->dtype,
                                   .rank = tensor->piece.box.rank,
                                   .loan = loan };
        memcpy(view.shape, tensor->piece.box.extent, view.rank * sizeof view.shape[0]);
        struct cairn_view *to = (struct cairn_view *)((uint8_t *)views + i * stride);
        to->struct_size = stride;
        cairn_struct_give(to, &view, sizeof view);
    }
}

/* Under the lock: the loan's number; 0: out of memory. */
static uint64_t lend(struct job *job, struct block *block)
{
    struct loan *loan = calloc(1, sizeof *loan);
    if (loan == NULL) return 0;
    loan->number = ++job->cache->last_loan;
    loan->next = block->loans;
    block->loans = loan;
    job->stats.maps++;
    if (block->wanted) job->stats.maps_prefetched++;
    block->wanted = false;
    return loan->number;
}

/* Under the lock: a block that is there, or made, and *made_out if its fetches are to be begun. */
static struct block *find_or_add(struct job *job, struct cairn_version version, struct card *card,
                                 struct unit_shape *shape, struct gone **own,
                                 struct block **made_out)
{
    drop_older(job, version);
    struct block *block = find(job, version, card, shape);
    if (block != NULL) return block;
    const bool has_room = make_room(job, 0);
    block = add(job, version, card, shape, own);
    if (block == NULL) return NULL;
    if (!has_room) job->stats.maps_over_window++;
    if (block->pending > 0) *made_out = block;
    return block;
}

/* Finds or adds a block. Called under the lock, which is let go to take memory of a card, since the
 * driver may take long. *own keeps that memory if another thread was faster to add the block; the
 * caller gives it back. */
static struct block *get(struct job *job, struct cairn_version version, struct card *card,
                         struct unit_shape *shape, struct gone **own, struct block **made_out)
{
    struct block *block = find_or_add(job, version, card, shape, own, made_out);
    if (block != NULL || card == NULL) return block;
    pthread_mutex_unlock(&job->session->lock);
    *own = cairn_memory_apart(card, shape->byte_count);
    if (*own == NULL && cairn_memory_await_left(job->session)) // of the block that made room
        *own = cairn_memory_apart(card, shape->byte_count);
    pthread_mutex_lock(&job->session->lock);
    return *own != NULL ? find_or_add(job, version, card, shape, own, made_out) : NULL;
}

cairn_status cairn_cache_lend(struct job *job, struct cairn_version version, struct card *card,
                              struct unit_shape *shape, struct op *op, struct cairn_view *views,
                              struct block **made_out)
{
    struct unit_shape given = *shape; // add() takes its tensors
    struct gone *own = NULL;
    struct block *made = NULL;
    pthread_mutex_lock(&job->session->lock);
    struct block *block = get(job, version, card, shape, &own, &made);
    const uint64_t loan = block != NULL ? lend(job, block) : 0;
    const bool there = loan != 0 && block->pending == 0;
    if (loan != 0) fill_views(job, &given, block, loan, views);
    if (loan != 0 && !there) {
        op->next_awaiting = block->awaiting;
        block->awaiting = op;
    }
    if (own != NULL) cairn_memory_leave(job->session, own);
    pthread_mutex_unlock(&job->session->lock);
    *made_out = made;
    if (there) cairn_op_let_go(op, CAIRN_OK, NULL);
    return loan != 0 ? CAIRN_OK
                     : cairn_client_fail(CAIRN_ERR_NO_MEMORY,
                                         "out of memory for a unit of %zu bytes", given.byte_count);
}

void cairn_cache_fetched(struct block *block, cairn_status status, const char *why)
{
    struct session *s = block->job->session;
    struct op *awaiting = NULL;
    struct cairn_sentence sentence = { "" };
    pthread_mutex_lock(&s->lock);
    if (status != CAIRN_OK && block->status == CAIRN_OK) {
        block->status = status;
        cairn_sentence_set(&block->why, "%s", why);
    }
    const bool last = --block->pending == 0;
    if (last) {
        awaiting = block->awaiting;
        block->awaiting = NULL;
        status = block->status;
        sentence = block->why;
        if (status != CAIRN_OK || (block->loans == NULL && !block->wanted)) drop(block);
    }
    pthread_mutex_unlock(&s->lock);
    for (struct op *next; awaiting != NULL; awaiting = next) {
        next = awaiting->next_awaiting;
        cairn_op_let_go(awaiting, status, sentence.text);
    }
}

struct card *cairn_cache_card(const struct job *job, uint64_t number)
{
    for (struct block *b = job->cache != NULL ? job->cache->blocks : NULL; b != NULL; b = b->next)
        for (const struct loan *loan = b->loans; loan != NULL; loan = loan->next)
            if (loan->number == number) return b->card;
    return NULL;
}

cairn_status cairn_cache_give_back(struct job *job, uint64_t number)
{
    if (job->cache == NULL) return CAIRN_ERR_INVALID;
    for (struct block *b = job->cache->blocks; b != NULL; b = b->next) {
        struct loan **link = &b->loans;
        while (*link != NULL && (*link)->number != number) link = &(*link)->next;
        struct loan *loan = *link;
        if (loan == NULL) continue;
        *link = loan->next;
        free(loan);
        const bool whole = b->lent == NULL || cairn_lent_whole(b->lent);
        if (is_idle(b) && (!b->wanted || !whole)) drop(b);
        return whole ? CAIRN_OK : CAIRN_ERR_VERSION_GONE;
    }
    return CAIRN_ERR_INVALID;
}

void cairn_cache_release(struct job *job)
{
    if (job->cache == NULL) return;
    pthread_mutex_lock(&job->session->lock); // of the session's copies
    while (job->cache->blocks != NULL) drop(job->cache->blocks);
    cairn_stitches_release(job);
    pthread_mutex_unlock(&job->session->lock);
    cairn_units_close(job->cache->units);
    free(job->cache);
}
