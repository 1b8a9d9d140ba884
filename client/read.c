#include "client/read.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "client/base.h"
#include "client/device.h"
#include "client/job.h"
#include "client/op.h"
#include "proto/fabric/backend.h"
#include "proto/geometry/layout.h"

/* ==== cache ==== */

#define ALIGN_BYTES ((size_t)64) /* of every tensor in a block */

/* A block on loan to one cairn_map, until its cairn_unmap. */
struct loan {
    struct loan *next;
    uint64_t number;
};

static void stitches_sweep(struct job *job);

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

cairn_status cache_shape(struct job *job, size_t unit, struct unit_shape *out)
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
    if (block->memory != NULL) block->job->stats.mapped_bytes -= block->shape.byte_count;
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

/* All of the unit where it was published; NULL: it has to be gathered. */
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

/* A card's is `own`, if it is there; it is the block's then. */
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

/* Adds a block, which takes over the shape. If it is there at once its `pending` is 0; else its
 * fetches are to be begun. NULL: out of memory. A pending block stays when the lock is let go; one
 * that is there may be given back by another thread, and freed. */
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
    struct cairn_stats *stats = &job->stats;
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

cairn_status cache_open(struct job *job)
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

uint64_t cache_new_call(struct job *job, struct cairn_version version)
{
    pthread_mutex_lock(&job->session->lock);
    drop_older(job, version);
    const uint64_t call = ++job->cache->last_call;
    pthread_mutex_unlock(&job->session->lock);
    return call;
}

struct block *cache_want(struct job *job, struct cairn_version version, struct unit_shape *shape,
                         uint64_t call)
{
    struct block *made = NULL;
    pthread_mutex_lock(&job->session->lock);
    struct block *block = find_block(job, version, NULL, shape);
    if (block == NULL && make_room(job, call))
        block = made = add_block(job, version, NULL, shape, NULL);
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

/* Under the lock: the loan's number; 0: out of memory. */
static uint64_t view_tensor(struct job *job, struct block *block)
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
    struct block *block = find_block(job, version, card, shape);
    if (block != NULL) return block;
    const bool has_room = make_room(job, 0);
    block = add_block(job, version, card, shape, own);
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
    *own = memory_apart(card, shape->byte_count);
    if (*own == NULL && memory_await_left(job->session)) // of the block that made room
        *own = memory_apart(card, shape->byte_count);
    pthread_mutex_lock(&job->session->lock);
    return *own != NULL ? find_or_add(job, version, card, shape, own, made_out) : NULL;
}

cairn_status cache_lend(struct job *job, struct cairn_version version, struct card *card,
                        struct unit_shape *shape, struct op *op, struct cairn_view *views,
                        struct block **made_out)
{
    struct unit_shape given = *shape; // add_block() takes its tensors
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

void cache_fetched(struct block *block, cairn_status status, const char *why)
{
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

struct card *cache_card(const struct job *job, uint64_t number)
{
    for (struct block *b = job->cache != NULL ? job->cache->blocks : NULL; b != NULL; b = b->next)
        for (const struct loan *loan = b->loans; loan != NULL; loan = loan->next)
            if (loan->number == number) return b->card;
    return NULL;
}

cairn_status cache_give_back(struct job *job, uint64_t number)
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
    pthread_mutex_lock(&job->session->lock); // of the session's copies
    while (job->cache->blocks != NULL) drop_cache(job->cache->blocks);
    stitches_release(job);
    pthread_mutex_unlock(&job->session->lock);
    units_close(job->cache->units);
    free(job->cache);
}

/* ==== mapped ==== */

/* Published memory of shards of this host: a fetch of the wire plane is one copy out of it, and asks
 * nobody. The list of copies is changed by the loop thread only, under the lock.
 *
 * Shards show their published copies to the members of a job (proto/geometry/layout.h), a segment at a
 * time, perhaps before its layout is known. So a copy is judged when it is first used: by its notes and its
 * head; then its segments are mapped side by side. Whoever shows one has this session's address, which the
 * coordinator tells shards only. One that is overwritten while it is read, or that has another version, or of
 * which a segment is missing, is no error: the shard is asked, as it is over any other way, and says why it
 * has not what was asked for. */

/* Whoever fetches chunks of so large a copy fetches more than caches hold, by measurement; small ones are
 * not worth it. */
#define FAR_COPY_BYTES   ((uint64_t)32 << 20)
#define FAR_PARCEL_BYTES ((size_t)256 << 10)

/* ---- what shards show ---- */

static bool is_same_copy(const struct published *copy, const struct published_note *note)
{
    struct published_note of_copy = copy->note;
    of_copy.segment = note->segment;
    of_copy.side = note->side;
    return !copy->gone && memcmp(&of_copy, note, sizeof of_copy) == 0;
}

/* The copy that it is of: one that is known, or a new one; NULL: no memory. */
static struct published *copy_of(struct session *s, const struct published_note *note)
{
    struct published *copy = s->published;
    while (copy != NULL && !is_same_copy(copy, note)) copy = copy->next;
    if (copy != NULL || (copy = calloc(1, sizeof *copy)) == NULL) return copy;
    copy->note = *note;
    copy->next = s->published;
    s->published = copy;
    return copy;
}

static bool has_segment(const struct published *copy, const struct published_note *note)
{
    const struct shown *shown = copy->shown;
    while (shown != NULL &&
           (shown->segment != note->segment || (uint32_t)shown->side != note->side))
        shown = shown->next;
    return shown != NULL;
}

/* True if the card may read the segment. If the driver refused to map it, the shard is told to send
 * it through the host. */
static bool is_imported(struct session *s, const struct shown *shown)
{
    size_t bytes;
    const void *memory = fabric_mapping_memory(shown->mapping, &bytes);
    const enum card_import state = card_imports_state(s->imports, memory);
    if (state == CARD_IMPORT_REFUSED)
        fabric_mapping_refuse(shown->mapping, card_imports_why(s->imports));
    return state == CARD_IMPORT_THERE;
}

void mapped_settle(struct session *s)
{
    pthread_mutex_lock(&s->lock);
    for (struct published *copy = s->published; copy != NULL; copy = copy->next)
        for (struct shown *shown = copy->shown; shown != NULL; shown = shown->next)
            shown->is_there = shown->is_there || is_imported(s, shown);
    pthread_mutex_unlock(&s->lock);
}

static void add_shown(struct session *s, const struct published_note *note,
                      struct fabric_mapping *mapping)
{
    size_t bytes;
    const void *memory = fabric_mapping_memory(mapping, &bytes);
    struct published *copy = copy_of(s, note);
    struct shown *shown = copy != NULL ? calloc(1, sizeof *shown) : NULL;
    if (shown == NULL) return; // the shard is asked
    const bool is_head = note->segment == note->segment_count;
    if (has_segment(copy, note) || (is_head && bytes < CAIRN_PUBLISHED_PAGE_BYTES))
        copy->gone = true; // nobody knows which is right
    else if (is_head)
        copy->head = memory;
    fabric_mapping_hold(mapping);
    *shown = (struct shown) { .next = copy->shown,
                              .mapping = mapping,
                              .segment = note->segment,
                              .side = (enum published_side)note->side };
    shown->is_there = shown->side == CAIRN_PUBLISHED_HOST || is_imported(s, shown);
    copy->shown = shown;
}

void mapped_on_mapping(void *session, struct fabric_mapping *mapping)
{
    struct session *s = session;
    struct published_note note;
    size_t note_bytes;
    const void *given = fabric_mapping_note(mapping, &note_bytes);
    if (note_bytes != sizeof note) return;
    memcpy(&note, given, sizeof note);
    const bool on_card = fabric_mapping_uuid(mapping) != NULL;
    if (note.magic != CAIRN_PUBLISHED_MAGIC || note.segment > note.segment_count ||
        note.side != (on_card ? CAIRN_PUBLISHED_DEVICE : CAIRN_PUBLISHED_HOST) ||
        (on_card && note.segment == note.segment_count))
        return;
    pthread_mutex_lock(&s->lock);
    add_shown(s, &note, mapping);
    pthread_mutex_unlock(&s->lock);
}

/* ---- and take back ---- */

void mapped_unuse(struct published *copy)
{
    assert(copy->uses > 0);
    if (--copy->uses == 0 && copy->shown == NULL) free(copy);
}

/* Out of the list, under the lock; what was shown of it. */
static struct shown *unlink_shown(struct published **link)
{
    struct published *copy = *link;
    struct shown *shown = copy->shown;
    *link = copy->next;
    copy->gone = true;
    if (copy->base != NULL) munmap((void *)copy->base, copy->bytes);
    copy->base = copy->on_card = NULL;
    copy->head = NULL;
    copy->shown = NULL;
    if (copy->uses == 0) free(copy);
    return shown;
}

/* Lets one go that was taken back and that nobody uses (`all`: whoever does). False: there is none. */
static bool let_go(struct session *s, bool all)
{
    struct shown *shown = NULL;
    pthread_mutex_lock(&s->lock);
    struct published **link = &s->published;
    while (*link != NULL && !all && (!(*link)->gone || (*link)->uses > 0)) link = &(*link)->next;
    const bool found = *link != NULL;
    if (found) shown = unlink_shown(link);
    pthread_mutex_unlock(&s->lock);
    while (shown != NULL) {
        struct shown *next = shown->next;
        fabric_mapping_release(shown->mapping);
        free(shown);
        shown = next;
    }
    return found;
}

static void sweep(struct session *s, bool all)
{
    while (let_go(s, all)) {}
}

void mapped_on_gone(void *session, struct fabric_mapping *mapping)
{
    struct session *s = session;
    pthread_mutex_lock(&s->lock);
    for (struct published *copy = s->published; copy != NULL; copy = copy->next)
        for (const struct shown *shown = copy->shown; shown != NULL; shown = shown->next)
            if (shown->mapping == mapping) copy->gone = true;
    for (struct job *job = s->jobs; job != NULL; job = job->next) stitches_sweep(job);
    pthread_mutex_unlock(&s->lock);
    sweep(s, false);
}

void mapped_sweep(struct session *s)
{
    if (s->published != NULL) sweep(s, false);
}

void mapped_release(struct session *s)
{
    sweep(s, true);
}

/* ---- a copy as a whole ---- */

/* How many of its segments are here: each has a number of its own, below the note's count. */
static uint64_t count_shown(const struct published *copy, enum published_side side)
{
    uint64_t count = 0;
    for (const struct shown *shown = copy->shown; shown != NULL; shown = shown->next)
        count += shown->side == side && shown->segment < copy->note.segment_count;
    return count;
}

/* Maps a segment once more, where it belongs. */
static bool put_in_place(const struct published *copy, const struct shown *shown, uint8_t *base)
{
    size_t bytes;
    // The mapping of a segment may be longer than the segment.
    const size_t wanted = (size_t)segment_bytes(copy->bytes, shown->segment);
    const void *memory = fabric_mapping_memory(shown->mapping, &bytes);
    return bytes >= wanted &&
           pages_double(base + shown->segment * CAIRN_SEGMENT_BYTES, memory, wanted);
}

/* Maps all of it, if all is there; a copy that is not what its head says is gone. */
static bool make_whole(struct published *copy)
{
    const struct shown *shown = copy->shown;
    if (copy->is_whole || count_shown(copy, CAIRN_PUBLISHED_HOST) < copy->note.segment_count)
        return copy->is_whole;
    uint8_t *base = copy->bytes > 0 ? pages_reserve(copy->bytes) : NULL;
    if (base == MAP_FAILED) return false; // the shard is asked
    for (; shown != NULL && !copy->gone; shown = shown->next)
        if (shown->side == CAIRN_PUBLISHED_HOST && shown->segment < copy->note.segment_count)
            copy->gone = !put_in_place(copy, shown, base);
    copy->is_whole = !copy->gone;
    if (copy->is_whole)
        copy->base = base;
    else if (base != NULL)
        munmap(base, copy->bytes);
    return copy->is_whole;
}

/* Its segments on the card lie side by side already (client/device.h). */
static bool is_on_card(struct published *copy)
{
    const uint8_t *base = NULL;
    if (copy->on_card != NULL) return true;
    if (copy->bytes == 0 || count_shown(copy, CAIRN_PUBLISHED_DEVICE) < copy->note.segment_count)
        return false;
    for (const struct shown *shown = copy->shown; shown != NULL; shown = shown->next) {
        if (shown->side != CAIRN_PUBLISHED_DEVICE) continue;
        if (!shown->is_there) return false;
        const uint64_t at = shown->segment * CAIRN_SEGMENT_BYTES;
        size_t bytes;
        const uint8_t *memory = fabric_mapping_memory(shown->mapping, &bytes);
        if (base == NULL) base = memory - at;
        if (memory != base + at || bytes < segment_bytes(copy->bytes, shown->segment))
            copy->gone = true;
    }
    if (!copy->gone) copy->on_card = base;
    return !copy->gone;
}

/* A shard's part of a job, by one of its layouts. */
struct part_of {
    const struct job *job;
    const struct served_layout *served;
    uint32_t shard;
    uint64_t bytes; /* of a copy of it */
};

/* It is a copy of that part, and all that it has to be. */
static bool is_of_mapped(const struct published *copy, const struct part_of *part)
{
    const struct job *job = part->job;
    const struct published_note *note = &copy->note;
    uint64_t layout_hash;
    memcpy(&layout_hash, part->served->layout->hash, sizeof layout_hash);
    if (note->job != job->attachment.job || note->shard != part->shard ||
        note->layout_hash != layout_hash || note->segment_count != memory_segments(part->bytes) ||
        copy->head == NULL)
        return false;
    const struct published_head *head = copy->head;
    return head->magic == CAIRN_PUBLISHED_MAGIC && head->job == job->attachment.job &&
           head->shard == part->shard && head->layout_hash == layout_hash &&
           head->bytes == part->bytes;
}

/* It is all here, on that side. */
static bool has_side(struct published *copy, const struct part_of *part, enum published_side side)
{
    if (copy->gone || !is_of_mapped(copy, part)) return false;
    copy->bytes = (size_t)part->bytes;
    return side == CAIRN_PUBLISHED_HOST ? make_whole(copy) : is_on_card(copy);
}

/* Where the shard's extents stand in its copies; made when they are first used. */
static bool know_places(const struct job *job, struct served_part *part)
{
    if (part->published_at != NULL) return true;
    part->published_at = malloc((part->map.extent_count + 1) * sizeof *part->published_at);
    if (part->published_at == NULL) return false;
    uint64_t end = 0;
    for (size_t i = 0; i < part->map.extent_count; i++) {
        const cairn_dtype wire = job->spec.tensors[part->map.extents[i].tensor].wire;
        part->published_at[i] = published_place(&part->map, i, dtype_size((int)wire), &end);
    }
    part->published_bytes = end;
    return true;
}

struct published *mapped_find(struct job *job, struct served_layout *served, uint32_t shard,
                              struct cairn_version version, enum published_side side,
                              uint64_t *sequence_out)
{
    struct published *copy = job->session->published;
    if (copy == NULL || !know_places(job, &served->parts[shard])) return NULL;
    const struct part_of part = { job, served, shard, served->parts[shard].published_bytes };
    while (copy != NULL &&
           !(has_side(copy, &part, side) &&
             published_read_begin(copy->head, copy->note.copy, version, side, sequence_out)))
        copy = copy->next;
    return copy;
}

void mapped_count(struct job *job, uint64_t bytes)
{
    job->stats.fetched_bytes += bytes;
    job->stats.shared_fetched_bytes += bytes;
    job->reads.bytes += bytes;
}

/* Packs the elements of the piece's box out of the chunk. */
static void copy_box(const struct parcel *parcel, const struct piece *piece, const uint8_t *chunk,
                     size_t elem_bytes)
{
    const struct chunk_place *place = &parcel->place;
    struct box_runs runs;
    box_runs_begin(&runs, &piece->box, &parcel->job->spec.tensors[place->tensor].shape,
                   place->first_elem, place->elem_count);
    uint8_t *to = parcel->bytes;
    uint64_t elem, box_elem, count;
    while (box_runs_next(&runs, &elem, &box_elem, &count)) {
        memcpy(to, chunk + (elem - place->first_elem) * elem_bytes, count * elem_bytes);
        to += count * elem_bytes;
    }
    assert(to == parcel->bytes + parcel->byte_count);
}

bool mapped_read(struct parcel *parcel, struct served_layout *served, uint64_t chunk_number,
                 const struct piece *piece)
{
    struct job *job = parcel->job;
    const struct served_part *part = &served->parts[parcel->shard];
    uint64_t sequence;
    if (parcel->plane != CAIRN_PLANE_WIRE || parcel->bytes == NULL) return false;
    pthread_mutex_lock(&job->session->lock);
    const struct published *copy = mapped_find(job, served, parcel->shard, parcel->version,
                                               CAIRN_PUBLISHED_HOST, &sequence);
    pthread_mutex_unlock(&job->session->lock); // this thread alone would take it away
    if (copy == NULL) return false;
    const struct local_extent *extent = shard_map_extent(&part->map, chunk_number);
    const size_t elem_bytes = dtype_size(parcel->dtype);
    const uint8_t *chunk = copy->base + part->published_at[extent - part->map.extents] +
                           (parcel->place.first_elem - extent->first_elem) * elem_bytes;
    if (piece->whole && part->published_bytes >= FAR_COPY_BYTES &&
        parcel->byte_count >= FAR_PARCEL_BYTES)
        far_copy(parcel->bytes, chunk, parcel->byte_count);
    else if (piece->whole)
        memcpy(parcel->bytes, chunk, parcel->byte_count);
    else
        copy_box(parcel, piece, chunk, elem_bytes);
    return published_read_end(copy->head, sequence);
}

/* ==== stitch ==== */

#define PAGE ((uint64_t)CAIRN_PUBLISHED_PAGE_BYTES)

struct stitch {
    struct stitch *next; /* the one used last is the first */
    uint32_t tensor;
    uint32_t uses; /* 0: it is kept */
    uint8_t *base; /* owned */
    size_t bytes;
    size_t map_count;
    size_t run_count;
    struct stitch_run runs[]; /* [run_count] */
};

const uint8_t *stitch_base(const struct stitch *stitch)
{
    return stitch->base;
}

/* ---- making one ---- */

static uint64_t page_up(uint64_t bytes)
{
    return (bytes + PAGE - 1) / PAGE * PAGE;
}

/* Copies bytes [from, end) of the tensor, which lie on one page: an edge. */
static bool copy_edge(uint8_t *base, const struct stitch_run *run, uint64_t from, uint64_t end)
{
    uint8_t *page = base + from / PAGE * PAGE;
    if (from == end) return true;
    if (mprotect(page, PAGE, PROT_READ | PROT_WRITE) != 0) return false;
    memcpy(base + from, run->copy->base + run->at + (from - run->from), (size_t)(end - from));
    return mprotect(page, PAGE, PROT_READ) == 0;
}

/* Copies the edges of a run: there a page holds parts of other runs, too, or what lies behind the
 * tensor. */
static bool copy_edges(uint8_t *base, const struct stitch_run *run)
{
    const uint64_t first = page_up(run->from), last = run->end / PAGE * PAGE;
    if (first <= last)
        return copy_edge(base, run, run->from, first) && copy_edge(base, run, last, run->end);
    return copy_edge(base, run, run->from, run->end);
}

/* Maps pages of the copy once more, a segment at a time. */
static bool map_pages(uint8_t *base, const struct stitch_run *run)
{
    const uint64_t first = page_up(run->from), last = run->end / PAGE * PAGE;
    uint64_t at = run->at + first - run->from;
    bool whole = true;
    assert(run->at % PAGE == run->from % PAGE);
    for (uint64_t to = first, bytes; whole && to < last; to += bytes, at += bytes) {
        const uint64_t left = CAIRN_SEGMENT_BYTES - at % CAIRN_SEGMENT_BYTES;
        bytes = last - to < left ? last - to : left;
        whole = pages_double(base + to, run->copy->base + at, (size_t)bytes);
    }
    return whole;
}

/* How many maps it may be: one a run, and one more for each end of a segment in it. */
static size_t maps_of(const struct stitch_run *runs, size_t count)
{
    size_t maps = count;
    for (size_t i = 0; i < count; i++) maps += (size_t)memory_segments(runs[i].end - runs[i].from);
    return maps;
}

static struct stitch *make(uint32_t tensor, const struct stitch_run *runs, size_t count)
{
    struct stitch *stitch = calloc(1, sizeof *stitch + count * sizeof *runs);
    if (stitch == NULL) return NULL;
    stitch->tensor = tensor;
    stitch->map_count = maps_of(runs, count);
    stitch->run_count = count;
    memcpy(stitch->runs, runs, count * sizeof *runs);
    stitch->bytes = (size_t)page_up(runs[count - 1].end);
    uint8_t *base = mmap(NULL, stitch->bytes, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    bool whole = base != MAP_FAILED;
    for (size_t i = 0; whole && i < count; i++)
        whole = map_pages(base, &runs[i]) && copy_edges(base, &runs[i]);
    if (whole) {
        stitch->base = base;
        return stitch;
    }
    if (base != MAP_FAILED) munmap(base, stitch->bytes);
    free(stitch);
    return NULL;
}

/* ---- those of a job ---- */

static void drop_stitch(struct job *job, struct stitch **link)
{
    struct stitch *stitch = *link;
    *link = stitch->next;
    job->stitches.map_count -= stitch->map_count;
    for (size_t i = 0; i < stitch->run_count; i++) mapped_unuse(stitch->runs[i].copy);
    munmap(stitch->base, stitch->bytes);
    free(stitch);
}

static bool is_of_stitch(const struct stitch *stitch, uint32_t tensor,
                         const struct stitch_run *runs, size_t count)
{
    if (stitch->tensor != tensor || stitch->run_count != count) return false;
    for (size_t i = 0; i < count; i++)
        if (stitch->runs[i].copy != runs[i].copy || stitch->runs[i].at != runs[i].at ||
            stitch->runs[i].from != runs[i].from || stitch->runs[i].end != runs[i].end)
            return false;
    return true;
}

static bool is_of_version(const struct stitch *stitch, const struct stitch_run *runs)
{
    for (size_t i = 0; i < stitch->run_count; i++)
        if (stitch->runs[i].sequence != runs[i].sequence) return false;
    return true;
}

/* Takes a stitch of the same pages off the list, if it is of the wanted version or nobody uses it.
 * A stitch in use at another version is left to its readers. NULL: there is none. */
static struct stitch *reuse_stitch(struct job *job, uint32_t tensor, const struct stitch_run *runs,
                                   size_t count)
{
    struct stitch **link = &job->stitches.first;
    while (*link != NULL && !(is_of_stitch(*link, tensor, runs, count) &&
                              ((*link)->uses == 0 || is_of_version(*link, runs))))
        link = &(*link)->next;
    struct stitch *stitch = *link;
    if (stitch != NULL) *link = stitch->next;
    return stitch;
}

/* Brings the stitch to the version of the runs: copies its edges anew. */
static bool renew(struct stitch *stitch, const struct stitch_run *runs)
{
    bool whole = true;
    if (is_of_version(stitch, runs)) return true;
    for (size_t i = 0; whole && i < stitch->run_count; i++)
        whole = copy_edges(stitch->base, &runs[i]);
    memcpy(stitch->runs, runs, stitch->run_count * sizeof *runs);
    return whole;
}

/* Puts out those that nobody uses, the one that was used longest ago first. */
static void keep_within_bound(struct job *job)
{
    while (job->stitches.map_count > CAIRN_STITCH_MAPS_MAX) {
        struct stitch **oldest = NULL;
        for (struct stitch **link = &job->stitches.first; *link != NULL; link = &(*link)->next)
            if ((*link)->uses == 0) oldest = link;
        if (oldest == NULL) return;
        drop_stitch(job, oldest);
    }
}

struct stitch *stitch_get(struct job *job, uint32_t tensor, const struct stitch_run *runs,
                          size_t count)
{
    assert(count > 0);
    struct stitch *stitch = reuse_stitch(job, tensor, runs, count);
    if (stitch == NULL) {
        stitch = make(tensor, runs, count);
        if (stitch == NULL) return NULL;
        job->stitches.map_count += stitch->map_count;
        for (size_t i = 0; i < count; i++) runs[i].copy->uses++;
    }
    stitch->next = job->stitches.first;
    job->stitches.first = stitch;
    if (!renew(stitch, runs)) { // nobody uses it, else it were of the version
        drop_stitch(job, &job->stitches.first);
        return NULL;
    }
    stitch->uses++;
    keep_within_bound(job);
    return stitch;
}

static bool has_gone(const struct stitch *stitch)
{
    bool gone = false;
    for (size_t i = 0; i < stitch->run_count; i++) gone = gone || stitch->runs[i].copy->gone;
    return gone;
}

/* Lets those go that are kept of a copy that is gone. */
static void stitches_sweep(struct job *job)
{
    for (struct stitch **link = &job->stitches.first; *link != NULL;) {
        if ((*link)->uses == 0 && has_gone(*link))
            drop_stitch(job, link);
        else
            link = &(*link)->next;
    }
}

void stitch_put(struct job *job, struct stitch *stitch)
{
    if (stitch == NULL) return;
    assert(stitch->uses > 0);
    stitch->uses--;
    stitches_sweep(job);
    keep_within_bound(job);
}

void stitches_release(struct job *job)
{
    while (job->stitches.first != NULL) {
        assert(job->stitches.first->uses == 0);
        drop_stitch(job, &job->stitches.first);
    }
}
