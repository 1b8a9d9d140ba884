#include "client/cache.h"

#include <stdlib.h>
#include <string.h>

#include "client/api.h"
#include "client/handle.h"
#include "client/lent.h"
#include "client/mapped.h"
#include "client/stitch.h"
#include "client/struct.h"
#include "client/units.h"

#define ALIGN_BYTES ((size_t)64) /* of every tensor in a block */

/* What one cairn_map has. */
struct loan {
    struct loan *next;
    uint64_t number;
};

/* A tensor of a unit as this worker gets it: what it holds, or all; of an alias, what it stands for. */
struct member {
    uint32_t named, fetched; /* tensors of the spec */
    struct piece piece;
    cairn_dtype dtype;
    size_t at, byte_count; /* in the block */
};

/* Which tensors, and where each of them lies. */
struct shape_of_unit {
    size_t unit;
    struct member *members; /* owned; [count] */
    size_t count, byte_count;
    uint64_t table_hash; /* of the tiles by which this worker's pieces were chosen */
};

struct block {
    struct block *next; /* newest first */
    struct job *job;    /* borrowed: outlives it */
    struct cairn_version version;
    struct shape_of_unit shape; /* owned */
    uint8_t *memory;            /* owned; [shape.byte_count]; NULL: it is lent */
    struct lent *lent;          /* owned; where the shards of this host published it; or NULL */
    uint32_t pending;           /* fetches that are not done, and one more while they are begun */
    cairn_status status;
    struct cairn_sentence why;
    bool wanted;         /* prefetched, and not mapped since */
    uint64_t call;       /* the prefetch that wanted it last */
    struct loan *loans;  /* owned */
    struct op *awaiting; /* operations of cairn_map that wait for it */
};

struct cache {
    struct cairn_units *units; /* owned */
    struct block *blocks;      /* owned */
    uint32_t block_count;
    uint64_t last_loan, last_call;
};

/* ---- what a unit is made of: not under the lock ---- */

static struct member member_of(struct job *job, uint32_t tensor)
{
    const struct cairn_tensor_spec *named = &job->spec.tensors[tensor];
    struct member member = { .named = tensor };
    member.fetched = (uint32_t)cairn_spec_target(&job->spec, tensor);
    member.dtype = job->spec.tensors[member.fetched].wire;
    member.piece = cairn_client_tiles_own(job, member.fetched);
    if (named->alias_box != NULL) {
        member.piece.box = *named->alias_box;
        member.piece.whole = false;
    }
    member.piece.tile = member.piece.whole ? CAIRN_TILE_WHOLE : CAIRN_TILE_BOX;
    member.byte_count = (size_t)cairn_box_elems(&member.piece.box) *
                        cairn_dtype_bytes((int)member.dtype);
    return member;
}

static cairn_status shape_make(struct job *job, size_t unit, struct shape_of_unit *out)
{
    struct shape_of_unit shape = { .unit = unit };
    const uint32_t *tensors = cairn_units_tensors(job->cache->units, unit, &shape.count);
    shape.members = calloc(shape.count, sizeof *shape.members);
    if (shape.members == NULL) return cairn_client_fail(CAIRN_ERR_NO_MEMORY, "out of memory");
    for (size_t i = 0; i < shape.count; i++) {
        struct member *member = &shape.members[i];
        *member = member_of(job, tensors[i]);
        member->at = shape.byte_count;
        shape.byte_count += (member->byte_count + ALIGN_BYTES - 1) / ALIGN_BYTES * ALIGN_BYTES;
        if (i == 0) shape.table_hash = member->piece.table_hash;
        if (member->piece.table_hash == shape.table_hash) continue;
        free(shape.members);
        return cairn_client_fail(CAIRN_ERR_BUSY, "tiles are being declared by another thread");
    }
    if (shape.byte_count == 0) shape.byte_count = ALIGN_BYTES;
    *out = shape;
    return CAIRN_OK;
}

/* ---- blocks: under the lock ---- */

static struct block *find(struct job *job, struct cairn_version version,
                          const struct shape_of_unit *shape)
{
    for (struct block *b = job->cache->blocks; b != NULL; b = b->next)
        if (b->shape.unit == shape->unit && b->shape.table_hash == shape->table_hash &&
            (b->lent == NULL || cairn_lent_whole(b->lent)) &&
            b->version.generation == version.generation && b->version.step == version.step)
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
    free(block->shape.members);
    free(block->memory);
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

static bool is_older(struct cairn_version a, struct cairn_version b)
{
    return a.generation != b.generation ? a.generation < b.generation : a.step < b.step;
}

static void drop_older(struct job *job, struct cairn_version version)
{
    for (struct block *b = job->cache->blocks, *next; b != NULL; b = next) {
        next = b->next;
        if (!is_older(b->version, version)) continue;
        b->wanted = false;
        if (is_idle(b)) drop(b);
    }
}

/* All of the unit where it was published; NULL: it has to be gathered. */
static struct lent *lend_whole(struct job *job, struct cairn_version version,
                               const struct shape_of_unit *shape)
{
    uint32_t *tensors = calloc(shape->count + 1, sizeof *tensors);
    bool whole = tensors != NULL;
    for (size_t i = 0; whole && i < shape->count; i++) {
        whole = shape->members[i].piece.whole;
        tensors[i] = shape->members[i].fetched;
    }
    struct lent *lent = whole ? cairn_lent_open(job, version, tensors, shape->count) : NULL;
    free(tensors);
    return lent;
}

/* A block which takes the shape: it is there at once (pending is 0), or to be begun. NULL: out of memory.
 * What is pending stays when the lock is let go; what is there another thread may give back, and free. */
static struct block *add(struct job *job, struct cairn_version version, struct shape_of_unit *shape)
{
    struct cache *cache = job->cache;
    struct block *block = calloc(1, sizeof *block);
    if (block == NULL) return NULL;
    block->lent = lend_whole(job, version, shape);
    if (block->lent == NULL) block->memory = aligned_alloc(ALIGN_BYTES, shape->byte_count);
    if (block->lent == NULL && block->memory == NULL) {
        free(block);
        return NULL;
    }
    block->job = job;
    block->version = version;
    block->shape = *shape;
    shape->members = NULL;
    block->pending = block->lent != NULL ? 0 : (uint32_t)block->shape.count + 1;
    block->next = cache->blocks;
    cache->blocks = block;
    cache->block_count++;
    struct cairn_stats *stats = &job->stats;
    if (block->lent != NULL) {
        stats->maps_lent++;
        for (size_t i = 0; i < block->shape.count; i++)
            cairn_mapped_count(job, block->shape.members[i].byte_count);
        return block;
    }
    stats->mapped_bytes += block->shape.byte_count;
    if (stats->mapped_bytes > stats->mapped_bytes_peak)
        stats->mapped_bytes_peak = stats->mapped_bytes;
    return block;
}

/* ---- fetching: not under the lock ---- */

/* One of the block's fetches is over; with the last, whoever waits hears of it. */
static void fetch_ended(struct block *block, cairn_status status, const char *why)
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
        cairn_op_part_end(awaiting, status, sentence.text);
    }
}

static void on_fetched(void *block, cairn_status status, const char *why)
{
    fetch_ended(block, status, why);
}

/* Of a block that is pending, once. */
static void begin(struct block *block)
{
    for (size_t i = 0; i < block->shape.count; i++) {
        const struct member *member = &block->shape.members[i];
        const struct command pattern = { .tensor = member->fetched,
                                         .plane = CAIRN_PLANE_WIRE,
                                         .dtype = (uint8_t)member->dtype,
                                         .ptr = block->memory + member->at,
                                         .piece = member->piece,
                                         .version = block->version,
                                         .on_done = on_fetched,
                                         .context = block };
        const cairn_status status = cairn_api_begin(block->job, CAIRN_CHUNK_FETCH,
                                                    cairn_transfer_run, &pattern, NULL);
        if (status != CAIRN_OK) fetch_ended(block, status, cairn_error());
    }
    fetch_ended(block, CAIRN_OK, NULL);
}

/* ---- the calls ---- */

/* The cache, made by the first who asks. */
static cairn_status open_cache(struct job *job)
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

static cairn_status find_unit(struct job *job, const char *name, size_t *unit_out)
{
    pthread_mutex_lock(&job->session->lock);
    const bool has_cache = job->cache != NULL;
    pthread_mutex_unlock(&job->session->lock);
    cairn_status status = has_cache ? CAIRN_OK : open_cache(job);
    if (status != CAIRN_OK) return status;
    if (name == NULL) return cairn_client_fail(CAIRN_ERR_INVALID, "a unit's name is NULL");
    *unit_out = cairn_units_find(job->cache->units, name);
    return *unit_out != SIZE_MAX
               ? CAIRN_OK
               : cairn_client_fail(CAIRN_ERR_NOT_FOUND, "job %s has no unit %s", job->name, name);
}

/* A hint: what has no room, or no memory, is left to cairn_map. */
static void prefetch_unit(struct job *job, struct cairn_version version, size_t unit, uint64_t call)
{
    struct shape_of_unit shape;
    struct block *made = NULL;
    if (shape_make(job, unit, &shape) != CAIRN_OK) return;
    pthread_mutex_lock(&job->session->lock);
    struct block *block = find(job, version, &shape);
    if (block == NULL && make_room(job, call)) block = made = add(job, version, &shape);
    if (made != NULL && made->pending == 0) made = NULL;
    if (block != NULL) {
        block->wanted = true;
        block->call = call;
    } else {
        job->stats.prefetches_dropped++;
    }
    pthread_mutex_unlock(&job->session->lock);
    free(shape.members);
    if (made != NULL) begin(made);
}

static cairn_status prefetch_inside(struct job *job, struct cairn_version version,
                                    const char *const *names, size_t name_count)
{
    size_t unit;
    if (names == NULL && name_count > 0)
        return cairn_client_fail(CAIRN_ERR_INVALID, "units is NULL");
    for (size_t i = 0; i < name_count; i++) {
        const cairn_status status = find_unit(job, names[i], &unit);
        if (status != CAIRN_OK) return status;
    }
    if (name_count == 0) return CAIRN_OK;
    pthread_mutex_lock(&job->session->lock);
    drop_older(job, version);
    const uint64_t call = ++job->cache->last_call;
    pthread_mutex_unlock(&job->session->lock);
    for (size_t i = 0; i < name_count; i++)
        prefetch_unit(job, version, cairn_units_find(job->cache->units, names[i]), call);
    return CAIRN_OK;
}

cairn_status cairn_prefetch(cairn_job *handle, struct cairn_version version,
                            const char *const *units, size_t unit_count)
{
    struct job *job = cairn_api_job(handle);
    if (job == NULL) return CAIRN_ERR_HANDLE;
    cairn_status status = cairn_api_check(job);
    if (status == CAIRN_OK) status = prefetch_inside(job, version, units, unit_count);
    cairn_handle_put(handle);
    return status;
}

static void fill_views(const struct job *job, const struct shape_of_unit *shape,
                       const struct block *block, uint64_t loan, struct cairn_view *views)
{
    const size_t stride = views[0].struct_size;
    for (size_t i = 0; i < shape->count; i++) {
        const struct member *member = &shape->members[i];
        struct cairn_view view = { .struct_size = sizeof view,
                                   .tensor = job->spec.tensors[member->named].name,
                                   .ptr = block->lent != NULL ? cairn_lent_at(block->lent, i)
                                                              : block->memory + member->at,
                                   .dtype = member->dtype,
                                   .rank = member->piece.box.rank,
                                   .loan = loan };
        memcpy(view.shape, member->piece.box.extent, view.rank * sizeof view.shape[0]);
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

/* A block of the unit and version, on loan; the operation waits for it. The shape is the caller's. */
static cairn_status lend_unit(struct job *job, struct cairn_version version,
                              struct shape_of_unit *shape, struct op *op, struct cairn_view *views)
{
    struct shape_of_unit given = *shape; // add() takes its members
    struct block *made = NULL;
    pthread_mutex_lock(&job->session->lock);
    drop_older(job, version);
    struct block *block = find(job, version, shape);
    if (block == NULL) {
        if (!make_room(job, 0)) job->stats.maps_over_window++;
        block = made = add(job, version, shape);
        if (made != NULL && made->pending == 0) made = NULL;
    }
    const uint64_t loan = block != NULL ? lend(job, block) : 0;
    const bool there = loan != 0 && block->pending == 0;
    if (loan != 0) fill_views(job, &given, block, loan, views);
    if (loan != 0 && !there) {
        op->next_awaiting = block->awaiting;
        block->awaiting = op;
    }
    pthread_mutex_unlock(&job->session->lock);
    if (made != NULL) begin(made);
    if (there) cairn_op_part_end(op, CAIRN_OK, NULL);
    return loan != 0 ? CAIRN_OK
                     : cairn_client_fail(CAIRN_ERR_NO_MEMORY,
                                         "out of memory for a unit of %zu bytes", given.byte_count);
}

/* With the unit's shape known and the arguments judged. */
static cairn_status map_shape(struct job *job, struct cairn_version version,
                              struct shape_of_unit *shape, struct cairn_view *views,
                              cairn_op **op_out)
{
    struct op *op = cairn_op_new(job, CAIRN_CHUNK_FETCH, true);
    if (op == NULL)
        return cairn_client_fail(CAIRN_ERR_NO_MEMORY,
                                 "out of memory, or too many operations are open");
    void *handle = op->handle;
    const cairn_status status = lend_unit(job, version, shape, op, views);
    if (status == CAIRN_OK) {
        *op_out = handle;
    } else {
        cairn_op_part_end(op, status, cairn_error());
        (void)cairn_handle_close(CAIRN_HANDLE_OP, handle);
    }
    return status;
}

static cairn_status map_inside(struct job *job, struct cairn_version version, const char *name,
                               struct cairn_view *views, size_t *count, cairn_op **op_out)
{
    size_t unit, need;
    if (count == NULL || op_out == NULL)
        return cairn_client_fail(CAIRN_ERR_INVALID, "view_count and op_out must be given");
    cairn_status status = find_unit(job, name, &unit);
    if (status != CAIRN_OK) return status;
    (void)cairn_units_tensors(job->cache->units, unit, &need);
    if (views == NULL || *count < need) {
        const size_t given = views != NULL ? *count : 0;
        *count = need;
        return cairn_client_fail(CAIRN_ERR_INVALID,
                                 "unit %s has %zu tensors, and there is room for %zu views", name,
                                 need, given);
    }
    if (!cairn_struct_fits(views, sizeof *views))
        return cairn_client_fail(CAIRN_ERR_INVALID, "views[0].struct_size must be %zu",
                                 sizeof *views);
    struct shape_of_unit shape;
    status = shape_make(job, unit, &shape);
    if (status != CAIRN_OK) return status;
    status = map_shape(job, version, &shape, views, op_out);
    free(shape.members);
    if (status == CAIRN_OK) *count = need;
    return status;
}

cairn_status cairn_map(cairn_job *handle, struct cairn_version version, const char *unit,
                       struct cairn_view *views, size_t *view_count, cairn_op **op_out)
{
    struct job *job = cairn_api_job(handle);
    if (job == NULL) return CAIRN_ERR_HANDLE;
    cairn_status status = cairn_api_check(job);
    if (status == CAIRN_OK) status = map_inside(job, version, unit, views, view_count, op_out);
    cairn_handle_put(handle);
    return status;
}

/* Under the lock. CAIRN_ERR_INVALID: no such loan. */
static cairn_status give_back(struct job *job, uint64_t number)
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

static cairn_status unmap_inside(struct job *job, const struct cairn_view *view, const void *stream)
{
    if (!cairn_struct_fits(view, sizeof *view))
        return cairn_client_fail(CAIRN_ERR_INVALID, "view must be one that cairn_map gave");
    if (stream != NULL)
        return cairn_client_fail(CAIRN_ERR_UNSUPPORTED,
                                 "this build of the library has no CUDA; stream must be NULL");
    pthread_mutex_lock(&job->session->lock);
    const cairn_status status = give_back(job, view->loan);
    pthread_mutex_unlock(&job->session->lock);
    if (status == CAIRN_ERR_VERSION_GONE)
        return cairn_client_fail(status, "a later version took the place of this one while it was "
                                         "mapped: what was read may be of both; map the newest "
                                         "version and compute again, or lease versions first");
    return status == CAIRN_OK
               ? status
               : cairn_client_fail(CAIRN_ERR_INVALID,
                                   "this view is not on loan: it was unmapped before, or its "
                                   "operation failed");
}

cairn_status cairn_unmap(cairn_job *handle, const struct cairn_view *view, void *stream)
{
    struct job *job = cairn_api_job(handle);
    if (job == NULL) return CAIRN_ERR_HANDLE;
    const cairn_status status = unmap_inside(job, view, stream);
    cairn_handle_put(handle);
    return status;
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
