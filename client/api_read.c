/* Reading: fetches, and units that are gathered or mapped. */
#include "client/job.h"

#include <cairn.h>
#include <pthread.h>
#include <sodium.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "client/base.h"
#include "client/device.h"
#include "client/op.h"
#include "client/read.h"
#include "proto/base/text.h"
#include "proto/geometry/tensor.h"
#include "proto/geometry/layout.h"
#include "proto/spec/spec.h"

/* ==== read ==== */

/* The calls that read: fetch, the newest version, its client state, snapshots. */

cairn_status api_plane_of(const char *plane, int *number_out)
{
    *number_out = plane_number(plane != NULL ? plane : "wire");
    if (*number_out != 0) return CAIRN_OK;
    return client_fail(CAIRN_ERR_NOT_FOUND,
                       "there is no plane \"%s\"; planes are \"wire\", \"param\", "
                       "\"exp_avg\" (the momentum of sgd, too), \"exp_avg_sq\" and \"ema\"",
                       plane);
}

cairn_status api_judge_fetch(struct job *job, const char *tensor, int plane,
                             const struct cairn_box *box, const struct cairn_mem *given,
                             size_t *tensor_out, struct piece *piece_out, struct cairn_mem *mem_out)
{
    struct cairn_box of_target;
    CAIRN_TRY(api_judge_boxed(job, tensor, given, mem_out, tensor_out, &box, &of_target));
    CAIRN_TRY(api_judge_plane(job, *tensor_out, plane));
    CAIRN_TRY(api_judge_dtype(job, *tensor_out, plane, mem_out));
    CAIRN_TRY(api_judge_box(job, *tensor_out, box, mem_out, piece_out));
    if (!strides_apart(&piece_out->strides))
        return client_fail(CAIRN_ERR_INVALID,
                           "tensor %s: elements may share memory with these mem.stride; give "
                           "strides that keep them apart",
                           tensor);
    if (mem_out->device <= 0 || !piece_out->strides.given) return CAIRN_OK;
    return client_fail(CAIRN_ERR_UNSUPPORTED,
                       "tensor %s: memory of GPU %d with mem.stride is not written to: "
                       "fetch into dense memory, and copy it from there",
                       tensor, mem_out->device - CAIRN_GPU(0));
}

cairn_status cairn_fetch(cairn_job *handle, struct cairn_version version, const char *tensor,
                         const char *plane, const struct cairn_box *box,
                         const struct cairn_mem *given, cairn_op **op_out)
{
    API_ENTER(job, handle);
    if (op_out == NULL)
        return client_fail(CAIRN_ERR_INVALID,
                           "op_out is NULL: nothing else says when a fetch is done");
    size_t index;
    int number;
    struct cairn_mem mem;
    struct command pattern = { .version = version };
    CAIRN_TRY(api_plane_of(plane, &number));
    CAIRN_TRY(api_judge_fetch(job, tensor, number, box, given, &index, &pattern.piece, &mem));
    pattern.tensor = (uint32_t)index;
    pattern.plane = (uint8_t)number;
    cairn_status status = api_prepare(&mem, false, &pattern);
    if (status == CAIRN_OK) status = op_begin(job, CAIRN_CHUNK_FETCH, &pattern, op_out);
    if (status != CAIRN_OK) api_unprepare(&pattern);
    return status;
}

#define STEP_AWAITED "a step that nobody has begun: the newest version that was heard of is"

static cairn_status wait_version(struct job *job, Cairn__VersionWait *message, int timeout_ms,
                                 Cairn__VersionReady **ready_out)
{
    ASK_CALL(of_version, "cairn_version_wait", VERSION_WAIT, VERSION_READY, .rest = STEP_AWAITED);
    ASK_CALL(of_state, "cairn_client_state", VERSION_WAIT, VERSION_READY, .rest = STEP_AWAITED);
    message->timeout_ms = (uint32_t)timeout_ms;
    return ask_coordinator(job, message->client_state ? &of_state : &of_version, &message->base,
                           api_deadline(timeout_ms), (ProtobufCMessage **)ready_out);
}

cairn_status cairn_version_wait(cairn_job *handle, struct cairn_version at_least, int timeout_ms,
                                struct cairn_version *out)
{
    API_ENTER(job, handle);
    CAIRN_TRY(api_judge_call("out", out, timeout_ms));
    Cairn__VersionReady *ready;
    Cairn__VersionWait message = CAIRN__VERSION_WAIT__INIT;
    message.generation = at_least.generation;
    message.step = at_least.step;
    CAIRN_TRY(wait_version(job, &message, timeout_ms, &ready));
    *out = (struct cairn_version) { ready->generation, ready->step };
    message_free(&ready->base);
    HOLD_LOCK(&job->session->lock);
    job->known.initialized = true;
    job->known.newest = *out;
    return CAIRN_OK;
}

static cairn_status give_state(const Cairn__VersionReady *ready, void *buffer, size_t capacity,
                               size_t *bytes_out, struct cairn_version *version_out)
{
    *bytes_out = ready->client_state.len;
    if (ready->client_state.len > capacity)
        return client_fail(CAIRN_ERR_INVALID,
                           "client state has %zu bytes, buffer %zu; give a larger one",
                           ready->client_state.len, capacity);
    if (ready->client_state.len > 0)
        memcpy(buffer, ready->client_state.data, ready->client_state.len);
    if (version_out != NULL)
        *version_out = (struct cairn_version) { ready->generation, ready->step };
    return CAIRN_OK;
}

cairn_status cairn_client_state(cairn_job *handle, void *buffer, size_t capacity, int timeout_ms,
                                size_t *bytes_out, struct cairn_version *version_out)
{
    API_ENTER(job, handle);
    CAIRN_TRY(api_judge_call("bytes_out", bytes_out, timeout_ms));
    if (buffer == NULL && capacity > 0)
        return client_fail(CAIRN_ERR_INVALID,
                           "buffer is NULL, but capacity is %zu; give 0 with NULL", capacity);
    Cairn__VersionReady *ready;
    Cairn__VersionWait message = CAIRN__VERSION_WAIT__INIT;
    message.client_state = true;
    CAIRN_TRY(wait_version(job, &message, timeout_ms, &ready));
    const cairn_status status = give_state(ready, buffer, capacity, bytes_out, version_out);
    message_free(&ready->base);
    return status;
}

/* ==== units ==== */

struct units {
    const struct job_spec_data *spec; /* borrowed */
    uint32_t *order;                  /* [tensor_count] tensors, by unit, then by index */
    size_t *first; /* start of each unit in `order`; the units are sorted by name */
    size_t unit_count;
};

static void units_close(struct units *units);

static const char *unit_of(const struct job_spec_data *spec, uint32_t tensor)
{
    return spec->tensors[tensor].unit;
}

static int compare(const void *a, const void *b, void *spec)
{
    const uint32_t left = *(const uint32_t *)a, right = *(const uint32_t *)b;
    const int order = strcmp(unit_of(spec, left), unit_of(spec, right));
    return order != 0 ? order : (left > right) - (left < right);
}

static void mark_units(struct units *units)
{
    const size_t count = units->spec->tensor_count;
    for (size_t i = 0; i < count; i++)
        if (i == 0 || strcmp(unit_of(units->spec, units->order[i - 1]),
                             unit_of(units->spec, units->order[i])) != 0)
            units->first[units->unit_count++] = i;
    units->first[units->unit_count] = count;
}

/* Borrows the spec. NULL: out of memory. */
static struct units *units_open(const struct job_spec_data *spec)
{
    struct units *units = calloc(1, sizeof *units);
    if (units == NULL) return NULL;
    units->spec = spec;
    units->order = calloc(spec->tensor_count + 1, sizeof *units->order);
    units->first = calloc(spec->tensor_count + 1, sizeof *units->first);
    if (units->order == NULL || units->first == NULL) {
        units_close(units);
        return NULL;
    }
    for (size_t i = 0; i < spec->tensor_count; i++) units->order[i] = (uint32_t)i;
    union { // qsort_r passes the pointer on unchanged; compare only reads through it
        const struct job_spec_data *in;
        void *out;
    } context = { .in = spec };
    qsort_r(units->order, spec->tensor_count, sizeof *units->order, compare, context.out);
    mark_units(units);
    return units;
}

/* NULL is fine */
static void units_close(struct units *units)
{
    if (units == NULL) return;
    free(units->order);
    free(units->first);
    free(units);
}

/* Returns the index of the unit; SIZE_MAX: no unit has that name. */
static size_t units_find(const struct units *units, const char *name)
{
    size_t low = 0, high = units->unit_count;
    while (low < high) {
        const size_t middle = low + (high - low) / 2;
        const int order = strcmp(unit_of(units->spec, units->order[units->first[middle]]), name);
        if (order == 0) return middle;
        if (order < 0)
            low = middle + 1;
        else
            high = middle;
    }
    return SIZE_MAX;
}

/* Returns the unit's tensors, by index in the spec, ascending: [*count_out]. */
static const uint32_t *units_tensors(const struct units *units, size_t unit, size_t *count_out)
{
    *count_out = units->first[unit + 1] - units->first[unit];
    return &units->order[units->first[unit]];
}

/* ==== cache ==== */

/* Gathered units that cairn_prefetch and cairn_map hold in the library's memory, by unit and
 * version.
 *
 * A block holds the tensors of one unit at one version. The block is fetched once, for the first caller
 * that asks for it. The block is lent to each cairn_map until the matching cairn_unmap, and is dropped
 * when it is no longer on loan and was not prefetched again. At most `prefetch_units` blocks are held:
 * a prefetch beyond that number evicts the oldest block that is not on loan; if every block is on loan,
 * the prefetch is dropped. A map beyond that number is counted. A block of an older version than the
 * requested one is dropped, too, unless it is on loan. Any thread; one lock, the session's. */

/* A tensor of a unit as this worker reads it: the part that this worker holds, or the whole tensor; for
 * an alias, the alias's part of the target. */
struct unit_tensor {
    /* tensors of the spec: `named` may be an alias, and `fetched` is then its target */
    uint32_t named, fetched;
    struct piece piece;
    cairn_dtype dtype;
    size_t at, byte_count; /* the tensor's place and size in the block */
};

/* The tensors of a unit, and the place of each in the block. */
struct unit_shape {
    size_t unit;
    struct unit_tensor *tensors; /* owned; [count] */
    size_t count, byte_count;
    uint64_t table_hash; /* the hash of the tiles that determined this worker's pieces */
};

struct block {
    struct block *next; /* newest first */
    struct job *job;    /* borrowed: the job outlives the block */
    struct cairn_version version;
    struct unit_shape shape; /* owned */
    struct card *card;       /* the card whose addresses the views have; NULL: host addresses */
    struct gone *own;        /* owned: holds `memory` if that is memory of a card */
    uint8_t *memory;         /* owned; [shape.byte_count]; NULL: the data is in `view` */
    /* owned; shows the unit where this host's shards published it; or NULL */
    struct published_view *view;
    uint32_t pending; /* fetches that are not done, plus one while the fetches are begun */
    cairn_status status;
    struct sentence why;
    bool wanted;         /* prefetched, and not mapped since */
    uint64_t call;       /* the last prefetch that wanted the block */
    struct loan *loans;  /* owned */
    struct op *awaiting; /* operations of cairn_map that wait for the block */
};

struct cache {
    struct units *units;  /* owned */
    struct block *blocks; /* owned */
    uint32_t block_count;
    uint64_t last_loan, last_call;
};

#define ALIGN_BYTES ((size_t)64) /* alignment of every tensor in a block */

/* A block on loan to one cairn_map, until its cairn_unmap. */
struct loan {
    struct loan *next;
    uint64_t number;
};

/* ---- what a unit is made of: not under the lock ---- */

static struct unit_tensor tensor_of(struct job *job, uint32_t named)
{
    const struct tensor_spec *spec = &job->spec.tensors[named];
    struct unit_tensor tensor = { .named = named };
    tensor.fetched = (uint32_t)spec_target(&job->spec, named);
    tensor.dtype = job->spec.tensors[tensor.fetched].wire;
    tensor.piece = client_tiles_own(job, tensor.fetched);
    if (spec->alias_box != NULL) {
        tensor.piece.box = *spec->alias_box;
        tensor.piece.whole = false;
    }
    tensor.piece.tile = tensor.piece.whole ? CAIRN_TILE_WHOLE : CAIRN_TILE_BOX;
    tensor.byte_count = (size_t)box_element_count(&tensor.piece.box) *
                        dtype_size((int)tensor.dtype);
    return tensor;
}

/* Lists the tensors of the unit; the caller frees out->tensors. CAIRN_ERR_BUSY: tiles are being
 * declared. */
static cairn_status cache_shape(struct job *job, size_t unit, struct unit_shape *out)
{
    struct unit_shape shape = { .unit = unit };
    const uint32_t *tensors = units_tensors(job->cache->units, unit, &shape.count);
    shape.tensors = calloc(shape.count, sizeof *shape.tensors);
    if (shape.tensors == NULL) return client_fail(CAIRN_ERR_NO_MEMORY, "out of memory");
    for (size_t i = 0; i < shape.count; i++) {
        struct unit_tensor *tensor = &shape.tensors[i];
        *tensor = tensor_of(job, tensors[i]);
        tensor->at = shape.byte_count;
        shape.byte_count += (tensor->byte_count + ALIGN_BYTES - 1) / ALIGN_BYTES * ALIGN_BYTES;
        if (i == 0) shape.table_hash = tensor->piece.table_hash;
        if (tensor->piece.table_hash == shape.table_hash) continue;
        free(shape.tensors);
        return client_fail(CAIRN_ERR_BUSY, "tiles are being declared by another thread");
    }
    if (shape.byte_count == 0) shape.byte_count = ALIGN_BYTES;
    *out = shape;
    return CAIRN_OK;
}

/* ---- blocks: under the lock ---- */

static struct block *find_block(struct job *job, struct cairn_version version,
                                const struct card *card, const struct unit_shape *shape)
{
    for (struct block *b = job->cache->blocks; b != NULL; b = b->next)
        if (b->card == card && b->shape.unit == shape->unit &&
            b->shape.table_hash == shape->table_hash &&
            (b->view == NULL || published_view_whole(b->view)) &&
            version_compare(b->version, version) == 0)
            return b;
    return NULL;
}

static void drop_cache(struct block *block)
{
    struct cache *cache = block->job->cache;
    struct block **link = &cache->blocks;
    while (*link != block) link = &(*link)->next;
    *link = block->next;
    cache->block_count--;
    if (block->memory != NULL) block->job->measured.stats.mapped_bytes -= block->shape.byte_count;
    published_view_close(block->view);
    for (struct loan *loan = block->loans, *next; loan != NULL; loan = next) {
        next = loan->next;
        free(loan);
    }
    free(block->shape.tensors);
    if (block->card == NULL) free(block->memory);
    if (block->own != NULL) memory_leave(block->job->session, block->own);
    free(block);
}

static bool is_idle(const struct block *block)
{
    return block->pending == 0 && block->loans == NULL;
}

/* Drops the oldest blocks that are not on loan, except those of the prefetch `call`, until there is
 * room for one more. */
static bool make_room(struct job *job, uint64_t call)
{
    struct cache *cache = job->cache;
    while (cache->block_count >= job->session->prefetch_units) {
        struct block *oldest = NULL;
        for (struct block *b = cache->blocks; b != NULL; b = b->next)
            if (is_idle(b) && b->call != call) oldest = b;
        if (oldest == NULL) return false;
        drop_cache(oldest);
    }
    return true;
}

static void drop_older(struct job *job, struct cairn_version version)
{
    for (struct block *b = job->cache->blocks, *next; b != NULL; b = next) {
        next = b->next;
        if (version_compare(b->version, version) >= 0) continue;
        b->wanted = false;
        if (is_idle(b)) drop_cache(b);
    }
}

bool cache_forget(struct job *job)
{
    bool is_all = true;
    for (struct block *b = job->cache != NULL ? job->cache->blocks : NULL, *next; b != NULL;
         b = next) {
        next = b->next;
        if (is_idle(b))
            drop_cache(b);
        else
            is_all = false;
    }
    return is_all;
}

/* Returns a view of the entire unit where it was published; NULL: the unit has to be gathered. */
static struct published_view *view_whole(struct job *job, struct cairn_version version,
                                         const struct card *card, const struct unit_shape *shape)
{
    const enum published_side side = card != NULL ? CAIRN_PUBLISHED_DEVICE : CAIRN_PUBLISHED_HOST;
    if (card != NULL && !published_view_has_card(job, card)) return NULL;
    uint32_t *tensors = calloc(shape->count + 1, sizeof *tensors);
    bool whole = tensors != NULL;
    for (size_t i = 0; whole && i < shape->count; i++) {
        whole = shape->tensors[i].piece.whole;
        tensors[i] = shape->tensors[i].fetched;
    }
    struct published_view *view =
        whole ? published_view_open(job, version, side, tensors, shape->count) : NULL;
    free(tensors);
    return view;
}

/* Allocates the block's memory. A block on a card takes over *own; if *own is NULL, this fails. */
static bool allocate_block(struct block *block, size_t bytes, struct gone **own)
{
    if (block->card == NULL) {
        block->memory = aligned_alloc(ALIGN_BYTES, bytes);
        return block->memory != NULL;
    }
    if (*own == NULL) return false;
    block->own = *own;
    *own = NULL;
    block->memory = memory_apart_at(block->own);
    return true;
}

/* Adds a block, which takes over the shape. The block's `pending` is 0 if the data is available at
 * once; otherwise the caller must begin the fetches. NULL: out of memory. A pending block remains
 * valid when the lock is released; a complete block may be given back and freed by another
 * thread. */
static struct block *add_block(struct job *job, struct cairn_version version, struct card *card,
                               struct unit_shape *shape, struct gone **own)
{
    struct cache *cache = job->cache;
    struct block *block = calloc(1, sizeof *block);
    if (block == NULL) return NULL;
    block->card = card;
    block->view = view_whole(job, version, card, shape);
    if (block->view == NULL && !allocate_block(block, shape->byte_count, own)) {
        free(block);
        return NULL;
    }
    block->job = job;
    block->version = version;
    block->shape = *shape;
    shape->tensors = NULL;
    block->pending = block->view != NULL ? 0 : (uint32_t)block->shape.count + 1;
    block->next = cache->blocks;
    cache->blocks = block;
    cache->block_count++;
    struct cairn_stats *stats = &job->measured.stats;
    if (block->view != NULL) {
        stats->maps_lent++;
        for (size_t i = 0; i < block->shape.count; i++)
            mapped_count(job, block->shape.tensors[i].byte_count);
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

/* Creates the job's cache on first use. */
static cairn_status cache_open(struct job *job)
{
    struct cache *cache = calloc(1, sizeof *cache);
    if (cache != NULL) cache->units = units_open(&job->spec);
    const bool whole = cache != NULL && cache->units != NULL;
    pthread_mutex_lock(&job->session->lock);
    const bool had = job->cache != NULL;
    if (!had && whole) job->cache = cache;
    pthread_mutex_unlock(&job->session->lock);
    if ((had || !whole) && cache != NULL) {
        units_close(cache->units);
        free(cache);
    }
    return had || whole ? CAIRN_OK : client_fail(CAIRN_ERR_NO_MEMORY, "out of memory");
}

/* Returns the number of a new prefetch, and drops the blocks of versions older than this one. */
static uint64_t cache_new_call(struct job *job, struct cairn_version version)
{
    HOLD_LOCK(&job->session->lock);
    drop_older(job, version);
    return ++job->cache->last_call;
}

/* Records that the prefetch `call` wants the unit. Returns a new block, which takes over the
 * shape's tensors, and whose fetches the caller begins; NULL: no block was created, or its data is
 * available at once. */
static struct block *cache_want(struct job *job, struct cairn_version version,
                                struct unit_shape *shape, uint64_t call)
{
    struct block *made = NULL;
    HOLD_LOCK(&job->session->lock);
    struct block *block = find_block(job, version, NULL, shape);
    if (block == NULL && make_room(job, call))
        block = made = add_block(job, version, NULL, shape, NULL);
    if (made != NULL && made->pending == 0) made = NULL;
    if (block != NULL) {
        block->wanted = true;
        block->call = call;
    } else {
        job->measured.stats.prefetches_dropped++;
    }
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
                                   .ptr = block->view != NULL ? published_view_at(block->view, i)
                                                              : block->memory + tensor->at,
                                   .dtype = tensor->dtype,
                                   .rank = tensor->piece.box.rank,
                                   .loan = loan };
        memcpy(view.shape, tensor->piece.box.extent, view.rank * sizeof view.shape[0]);
        struct cairn_view *to = (struct cairn_view *)((uint8_t *)views + i * stride);
        to->struct_size = stride;
        struct_copy_out(to, &view, sizeof view);
    }
}

/* Under the lock: lends the block and returns the loan's number; 0: out of memory. */
static uint64_t view_tensor(struct job *job, struct block *block)
{
    struct loan *loan = calloc(1, sizeof *loan);
    if (loan == NULL) return 0;
    loan->number = ++job->cache->last_loan;
    loan->next = block->loans;
    block->loans = loan;
    job->measured.stats.maps++;
    if (block->wanted) job->measured.stats.maps_prefetched++;
    block->wanted = false;
    return loan->number;
}

/* Under the lock: finds a block, or adds one; sets *made_out if its fetches must be begun. */
static struct block *find_or_add(struct job *job, struct cairn_version version, struct card *card,
                                 struct unit_shape *shape, struct gone **own,
                                 struct block **made_out)
{
    drop_older(job, version);
    struct block *block = find_block(job, version, card, shape);
    if (block != NULL) return block;
    const bool has_room = make_room(job, 0);
    block = add_block(job, version, card, shape, own);
    if (block == NULL) return NULL;
    if (!has_room) job->measured.stats.maps_over_window++;
    if (block->pending > 0) *made_out = block;
    return block;
}

/* Finds or adds a block. Called under the lock, which is released while memory of a card is allocated,
 * since the driver may take long. If another thread added the block meanwhile, *own keeps the memory,
 * and the caller gives the memory back. */
static struct block *get(struct job *job, struct cairn_version version, struct card *card,
                         struct unit_shape *shape, struct gone **own, struct block **made_out)
{
    struct block *block = find_or_add(job, version, card, shape, own, made_out);
    if (block != NULL || card == NULL) return block;
    pthread_mutex_unlock(&job->session->lock);
    *own = memory_apart(card, shape->byte_count);
    if (*own == NULL && memory_await_left(job->session)) // for the memory of dropped blocks
        *own = memory_apart(card, shape->byte_count);
    pthread_mutex_lock(&job->session->lock);
    return *own != NULL ? find_or_add(job, version, card, shape, own, made_out) : NULL;
}

/* Lends a block of the unit and version, as views on the card (NULL: on the host). `op` ends when
 * the data is complete. *made_out: NULL, or a block whose fetches the caller must begin, even if
 * this call fails. */
static cairn_status cache_lend(struct job *job, struct cairn_version version, struct card *card,
                               struct unit_shape *shape, struct op *op, struct cairn_view *views,
                               struct block **made_out)
{
    struct unit_shape given = *shape; // add_block() takes over its tensors
    struct gone *own = NULL;
    struct block *made = NULL;
    pthread_mutex_lock(&job->session->lock);
    struct block *block = get(job, version, card, shape, &own, &made);
    const uint64_t loan = block != NULL ? view_tensor(job, block) : 0;
    const bool there = loan != 0 && block->pending == 0;
    if (loan != 0) fill_views(job, &given, block, loan, views);
    if (loan != 0 && !there) {
        op->next_awaiting = block->awaiting;
        block->awaiting = op;
    }
    if (own != NULL) memory_leave(job->session, own);
    pthread_mutex_unlock(&job->session->lock);
    *made_out = made;
    if (there) op_let_go(op, CAIRN_OK, NULL);
    return loan != 0 ? CAIRN_OK
                     : client_fail(CAIRN_ERR_NO_MEMORY, "out of memory for a unit of %zu bytes",
                                   given.byte_count);
}

/* Records that one fetch of the block, or the beginning of the fetches, is over. When nothing is
 * pending any more, completes the operations that wait for the block. */
static void on_fetched(void *context, cairn_status status, const char *why)
{
    struct block *block = context;
    struct session *s = block->job->session;
    struct op *awaiting = NULL;
    struct sentence sentence = { "" };
    pthread_mutex_lock(&s->lock);
    if (status != CAIRN_OK && block->status == CAIRN_OK) {
        block->status = status;
        sentence_set(&block->why, "%s", why);
    }
    const bool last = --block->pending == 0;
    if (last) {
        awaiting = block->awaiting;
        block->awaiting = NULL;
        status = block->status;
        sentence = block->why;
        if (status != CAIRN_OK || (block->loans == NULL && !block->wanted)) drop_cache(block);
    }
    pthread_mutex_unlock(&s->lock);
    for (struct op *next; awaiting != NULL; awaiting = next) {
        next = awaiting->next_awaiting;
        op_let_go(awaiting, status, sentence.text);
    }
}

/* Under the lock: returns the card whose addresses a loan has; NULL: host addresses, or no such
 * loan. */
static struct card *cache_card(const struct job *job, uint64_t number)
{
    for (struct block *b = job->cache != NULL ? job->cache->blocks : NULL; b != NULL; b = b->next)
        for (const struct loan *loan = b->loans; loan != NULL; loan = loan->next)
            if (loan->number == number) return b->card;
    return NULL;
}

/* Under the lock. CAIRN_ERR_INVALID: no such loan; CAIRN_ERR_VERSION_GONE: the data was overwritten
 * meanwhile. */
static cairn_status cache_give_back(struct job *job, uint64_t number)
{
    if (job->cache == NULL) return CAIRN_ERR_INVALID;
    for (struct block *b = job->cache->blocks; b != NULL; b = b->next) {
        struct loan **link = &b->loans;
        while (*link != NULL && (*link)->number != number) link = &(*link)->next;
        struct loan *loan = *link;
        if (loan == NULL) continue;
        *link = loan->next;
        free(loan);
        const bool whole = b->view == NULL || published_view_whole(b->view);
        if (is_idle(b) && (!b->wanted || !whole)) drop_cache(b);
        return whole ? CAIRN_OK : CAIRN_ERR_VERSION_GONE;
    }
    return CAIRN_ERR_INVALID;
}

void cache_release(struct job *job)
{
    if (job->cache == NULL) return;
    pthread_mutex_lock(&job->session->lock); // the lock guards the session's copies
    while (job->cache->blocks != NULL) drop_cache(job->cache->blocks);
    stitches_release(job);
    pthread_mutex_unlock(&job->session->lock);
    units_close(job->cache->units);
    free(job->cache);
}

/* ==== map ==== */

/* Units: cairn_prefetch, cairn_map, cairn_map_device, cairn_unmap. */

/* ---- fetching ---- */

/* Starts the fetches that fill a pending block. Called once for each block, by the call that made
 * the block. */
static void begin_block(struct block *block)
{
    for (size_t i = 0; i < block->shape.count; i++) {
        const struct unit_tensor *tensor = &block->shape.tensors[i];
        const struct command pattern = { .tensor = tensor->fetched,
                                         .plane = CAIRN_PLANE_WIRE,
                                         .dtype = (uint8_t)tensor->dtype,
                                         .ptr = block->memory + tensor->at,
                                         .card = block->card,
                                         .piece = tensor->piece,
                                         .version = block->version,
                                         .on_done = on_fetched,
                                         .context = block };
        const cairn_status status = op_begin(block->job, CAIRN_CHUNK_FETCH, &pattern, NULL);
        if (status != CAIRN_OK) on_fetched(block, status, cairn_error());
    }
    on_fetched(block, CAIRN_OK, NULL);
}

/* ---- the calls ---- */

static cairn_status find_unit(struct job *job, const char *name, size_t *unit_out)
{
    const bool has_cache = WITH_LOCK(&job->session->lock, job->cache != NULL);
    CAIRN_TRY(has_cache ? CAIRN_OK : cache_open(job));
    if (name == NULL) return client_fail(CAIRN_ERR_INVALID, "a unit's name is NULL");
    *unit_out = units_find(job->cache->units, name);
    return *unit_out != SIZE_MAX
               ? CAIRN_OK
               : client_fail(CAIRN_ERR_NOT_FOUND, "job %s has no unit %s", job->name, name);
}

/* Prefetches a unit as a hint: if room or memory is lacking, cairn_map fetches it later. */
static void prefetch_unit(struct job *job, struct cairn_version version, size_t unit, uint64_t call)
{
    struct unit_shape shape;
    if (cache_shape(job, unit, &shape) != CAIRN_OK) return;
    struct block *made = cache_want(job, version, &shape, call);
    free(shape.tensors);
    if (made != NULL) begin_block(made);
}

cairn_status cairn_prefetch(cairn_job *handle, struct cairn_version version,
                            const char *const *names, size_t name_count)
{
    API_ENTER(job, handle);
    size_t unit;
    if (names == NULL && name_count > 0) return client_fail(CAIRN_ERR_INVALID, "units is NULL");
    for (size_t i = 0; i < name_count; i++) CAIRN_TRY(find_unit(job, names[i], &unit));
    if (name_count == 0) return CAIRN_OK;
    const uint64_t call = cache_new_call(job, version);
    for (size_t i = 0; i < name_count; i++)
        prefetch_unit(job, version, units_find(job->cache->units, names[i]), call);
    return CAIRN_OK;
}

/* Called when the unit's shape is known and the arguments are validated. */
static cairn_status map_shape(struct job *job, struct cairn_version version, struct card *card,
                              struct unit_shape *shape, struct cairn_view *views, cairn_op **op_out)
{
    struct op *op = op_create(job, CAIRN_CHUNK_FETCH, true);
    if (op == NULL)
        return client_fail(CAIRN_ERR_NO_MEMORY, "out of memory, or too many operations are open");
    void *handle = op->handle;
    struct block *made;
    const cairn_status status = cache_lend(job, version, card, shape, op, views, &made);
    if (made != NULL) begin_block(made);
    if (status == CAIRN_OK) {
        *op_out = handle;
    } else {
        op_let_go(op, status, cairn_error());
        (void)handle_close(CAIRN_HANDLE_OP, handle);
    }
    return status;
}

static cairn_status map_inside(struct job *job, struct cairn_version version, const char *name,
                               struct card *card, struct cairn_view *views, size_t *count,
                               cairn_op **op_out)
{
    size_t unit, need;
    if (count == NULL || op_out == NULL)
        return client_fail(CAIRN_ERR_INVALID, "view_count and op_out must be given");
    CAIRN_TRY(find_unit(job, name, &unit));
    (void)units_tensors(job->cache->units, unit, &need);
    if (views == NULL || *count < need) {
        const size_t given = views != NULL ? *count : 0;
        *count = need;
        return client_fail(CAIRN_ERR_INVALID,
                           "unit %s has %zu tensors, but only %zu views fit; give more", name, need,
                           given);
    }
    if (!struct_fits(views, sizeof *views))
        return client_fail(CAIRN_ERR_INVALID, "views[0].struct_size must be %zu", sizeof *views);
    struct unit_shape shape;
    CAIRN_TRY(cache_shape(job, unit, &shape));
    cairn_status status = map_shape(job, version, card, &shape, views, op_out);
    free(shape.tensors);
    if (status == CAIRN_OK) *count = need;
    return status;
}

cairn_status cairn_map(cairn_job *handle, struct cairn_version version, const char *unit,
                       struct cairn_view *views, size_t *view_count, cairn_op **op_out)
{
    API_ENTER(job, handle);
    return map_inside(job, version, unit, NULL, views, view_count, op_out);
}

cairn_status cairn_map_device(cairn_job *handle, struct cairn_version version, const char *unit,
                              int device, struct cairn_view *views, size_t *view_count,
                              cairn_op **op_out)
{
    API_ENTER(job, handle);
    struct card *card = NULL;
    CAIRN_TRY(card_of_device(device, "device", &card));
    return map_inside(job, version, unit, card, views, view_count, op_out);
}

/* Waits until the work that is queued on `stream` is done, since it may still read the mapped
 * memory. */
static cairn_status await_stream(struct card *card, void *stream)
{
    struct card_event *event;
    if (card == NULL && stream != NULL)
        return client_fail(CAIRN_ERR_INVALID,
                           "this view is of the host, and no stream reads it: stream must be "
                           "NULL");
    if (card == NULL) return CAIRN_OK;
    cairn_status status = card_mark(card, stream, &event);
    if (status == CAIRN_OK) {
        status = card_event_wait(event);
        card_event_free(event);
    }
    return status;
}

cairn_status cairn_unmap(cairn_job *handle, const struct cairn_view *view, void *stream)
{
    API_JOB(job, handle);
    if (!struct_fits(view, sizeof *view))
        return client_fail(CAIRN_ERR_INVALID, "view must be one that cairn_map gave");
    struct card *card = WITH_LOCK(&job->session->lock, cache_card(job, view->loan));
    CAIRN_TRY(await_stream(card, stream));
    cairn_status status = WITH_LOCK(&job->session->lock, cache_give_back(job, view->loan));
    if (status == CAIRN_ERR_VERSION_GONE)
        return client_fail(
            status,
            "a later version replaced this one while it was mapped, so the data read may be of "
            "both; map the newest version and compute again, or lease versions first");
    return status == CAIRN_OK
               ? status
               : client_fail(
                     CAIRN_ERR_INVALID,
                     "this view is not on loan: it was unmapped before, or its operation failed");
}

/* ==== lease ==== */

/* Leases: a lease keeps a version while the version is read. The library does not renew leases: a
 * reader that hangs must not hold the shards' memory. */

#define NOTE_AWAITED "the shards to take note of the lease"

static bool withdraw_run(struct command *command)
{
    struct session *s = command->job->session;
    Cairn__LeaseDrop message = CAIRN__LEASE_DROP__INIT;
    message.job = command->job->attachment.job;
    message.key = command->round;
    control_send(s, CAIRN_MSG_LEASE_DROP, ++s->control.last_request, &message.base);
    return true;
}

/* Withdraws the lease request with that key, and ends the lease if it began. No thread waits for this:
 * if the message is lost, the lease still ends, at its time limit or with the connection. */
static void withdraw(struct job *job, uint64_t key)
{
    struct command *command = op_command(job, withdraw_run);
    if (command == NULL) return;
    command->round = key;
    session_command(job->session, command);
}

/* Keeps, until the lease ends, the layouts by which the leased version is read. */
static void note_lease(struct job *job, struct cairn_version version, int ttl_ms)
{
    const uint64_t now_ms = monotonic_ms(), until_ms = now_ms + (uint64_t)ttl_ms;
    struct leased *leased = &job->leased;
    HOLD_LOCK(&job->session->lock);
    if (leased->until_ms <= now_ms || version_compare(version, leased->oldest) < 0)
        leased->oldest = version;
    if (until_ms > leased->until_ms) leased->until_ms = until_ms;
}

cairn_status cairn_lease(cairn_job *handle, struct cairn_version version, int ttl_ms,
                         int timeout_ms, struct cairn_version *out)
{
    API_ENTER(job, handle);
    CAIRN_TRY(api_judge_call("out", out, timeout_ms));
    if (ttl_ms <= 0) return client_fail(CAIRN_ERR_INVALID, "ttl_ms is %d; give 1 or more", ttl_ms);
    ASK_CALL(call, "cairn_lease", LEASE_TAKE, LEASED, .rest = NOTE_AWAITED);
    const uint64_t deadline_ms = api_deadline(timeout_ms);
    Cairn__LeaseTake message = CAIRN__LEASE_TAKE__INIT;
    ProtobufCMessage *reply;
    message.generation = version.generation;
    message.step = version.step;
    message.ttl_ms = (uint32_t)ttl_ms;
    randombytes_buf(&message.key, sizeof message.key);
    message.key |= 1; // not 0
    const cairn_status status = ask_coordinator(job, &call, &message.base, deadline_ms, &reply);
    if (status == CAIRN_ERR_TIMEOUT) withdraw(job, message.key);
    if (status != CAIRN_OK) return status;
    const Cairn__Leased *leased = (const Cairn__Leased *)reply;
    *out = (struct cairn_version) { leased->generation, leased->step };
    message_free(reply);
    note_lease(job, *out, ttl_ms);
    return CAIRN_OK;
}

cairn_status cairn_lease_end(cairn_job *handle, struct cairn_version version, int timeout_ms)
{
    API_ENTER(job, handle);
    CAIRN_TRY(api_judge_call(NULL, NULL, timeout_ms));
    ASK_CALL(call, "cairn_lease_end", LEASE_DROP, DONE, .rest = NOTE_AWAITED);
    Cairn__LeaseDrop message = CAIRN__LEASE_DROP__INIT;
    message.generation = version.generation;
    message.step = version.step;
    return ask_coordinator(job, &call, &message.base, api_deadline(timeout_ms), NULL);
}

/* ==== cancel ==== */

cairn_status cairn_cancel(cairn_op *handle)
{
    API_OP(op, handle);
    struct session *s = op->session;
    if (!op->may_be_canceled)
        return client_fail(CAIRN_ERR_UNSUPPORTED,
                           "only a fetch can be canceled: a gradient is part of its round "
                           "(cairn_round_abandon), and a unit is given back by cairn_unmap");
    pthread_mutex_lock(&s->lock);
    op->is_canceled = true;
    s->cancels = true;
    pthread_mutex_unlock(&s->lock);
    session_kick(s);
    return CAIRN_OK;
}
