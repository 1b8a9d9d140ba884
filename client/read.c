/* Published memory of this host's shards: mapped, stitched together, viewed. */
#include "client/read.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "client/base.h"
#include "client/device.h"
#include "client/job.h"
#include "client/push.h"
#include "proto/fabric/backend.h"
#include "proto/geometry/layout.h"
#include "proto/spec/spec.h"

/* ==== mapped ==== */

static void stitches_sweep(struct job *job);

/* Published memory of shards of this host: a fetch of the wire plane copies once from this memory,
 * without any request. Only the loop thread changes the list of copies, under the lock.
 *
 * Shards show their published copies to the members of a job (proto/geometry/layout.h), a segment
 * at a time, perhaps before their layout is known. So a copy is validated by its notes and its head
 * when it is first used; its segments are then mapped side by side. Only shards can show a copy,
 * since the coordinator gives this session's address to shards only. It is no error if a copy is
 * overwritten while it is read, has another version, or lacks a segment. The data is then requested
 * from the shard, as over any other path. If the shard does not have the data, the shard reports
 * why. */

/* The sizes from which far_copy is used, found by measurement: a reader of chunks of such a copy
 * fetches more than caches hold. For smaller copies, far_copy is not worthwhile. */
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

/* Returns the copy that the note belongs to, which is known or new; NULL: no memory. */
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

/* Returns true if the card may read the segment. If the driver refused to map the segment, the
 * shard is told to send it through the host. */
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
    HOLD_LOCK(&s->lock);
    for (struct published *copy = s->published; copy != NULL; copy = copy->next)
        for (struct shown *shown = copy->shown; shown != NULL; shown = shown->next)
            shown->is_there = shown->is_there || is_imported(s, shown);
}

static void add_shown(struct session *s, const struct published_note *note,
                      struct fabric_mapping *mapping)
{
    size_t bytes;
    const void *memory = fabric_mapping_memory(mapping, &bytes);
    struct published *copy = copy_of(s, note);
    struct shown *shown = copy != NULL ? calloc(1, sizeof *shown) : NULL;
    if (shown == NULL) return; // the shard is asked instead
    const bool is_head = note->segment == note->segment_count;
    if (has_segment(copy, note) || (is_head && bytes < CAIRN_PUBLISHED_PAGE_BYTES))
        copy->gone = true; // it is not known which of the two is right
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
    HOLD_LOCK(&s->lock);
    add_shown(s, &note, mapping);
}

/* ---- and take back ---- */

/* Any thread, under the lock: ends one use of the copy. */
static void unuse_copy(struct published *copy)
{
    assert(copy->uses > 0);
    if (--copy->uses == 0 && copy->shown == NULL) free(copy);
}

/* Removes the copy from the list, under the lock; returns the segments that were shown. */
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

/* Releases one copy that was withdrawn and is not in use (`all`: any copy). False: there was no
 * such copy. */
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

/* Counts the copy's segments that were shown: each has its own number, below the note's count. */
static uint64_t count_shown(const struct published *copy, enum published_side side)
{
    uint64_t count = 0;
    for (const struct shown *shown = copy->shown; shown != NULL; shown = shown->next)
        count += shown->side == side && shown->segment < copy->note.segment_count;
    return count;
}

/* Maps a segment a second time, at its place in the copy. */
static bool put_in_place(const struct published *copy, const struct shown *shown, uint8_t *base)
{
    size_t bytes;
    // The mapping of a segment may be longer than the segment.
    const size_t wanted = (size_t)segment_bytes(copy->bytes, shown->segment);
    const void *memory = fabric_mapping_memory(shown->mapping, &bytes);
    return bytes >= wanted &&
           pages_double(base + shown->segment * CAIRN_SEGMENT_BYTES, memory, wanted);
}

/* Maps the entire copy if all segments were shown; a copy that does not match its head is marked as
 * gone. */
static bool make_whole(struct published *copy)
{
    const struct shown *shown = copy->shown;
    if (copy->is_whole || count_shown(copy, CAIRN_PUBLISHED_HOST) < copy->note.segment_count)
        return copy->is_whole;
    uint8_t *base = copy->bytes > 0 ? pages_reserve(copy->bytes) : NULL;
    if (base == MAP_FAILED) return false; // the shard is asked instead
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

/* Returns true if the copy is complete on the card, where its segments already are side by side
 * (client/device.h). */
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

/* A shard's part of a job, in one of its layouts. */
struct part_of {
    const struct job *job;
    const struct served_layout *served;
    uint32_t shard;
    uint64_t bytes; /* the bytes of a copy of this part */
};

/* Returns true if this is a copy of that part, and is valid. */
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

/* Returns true if the copy is complete on that side. */
static bool has_side(struct published *copy, const struct part_of *part, enum published_side side)
{
    if (copy->gone || !is_of_mapped(copy, part)) return false;
    copy->bytes = (size_t)part->bytes;
    return side == CAIRN_PUBLISHED_HOST ? make_whole(copy) : is_on_card(copy);
}

/* Computes the offsets of the shard's extents in its copies, on first use. */
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

/* Any thread, under the lock: returns the copy of the shard's part in that layout that currently
 * has the version on that side, and its sequence; NULL: none. The offsets of the part are then
 * known. */
static struct published *find_copy(struct job *job, struct served_layout *served, uint32_t shard,
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
    job->measured.stats.fetched_bytes += bytes;
    job->measured.stats.shared_fetched_bytes += bytes;
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
    uint8_t *to = parcel->data.bytes;
    uint64_t elem, box_elem, count;
    while (box_runs_next(&runs, &elem, &box_elem, &count)) {
        memcpy(to, chunk + (elem - place->first_elem) * elem_bytes, count * elem_bytes);
        to += count * elem_bytes;
    }
    assert(to == parcel->data.bytes + parcel->data.byte_count);
}

bool mapped_read(struct parcel *parcel, struct served_layout *served, uint64_t chunk_number,
                 const struct piece *piece)
{
    struct job *job = parcel->job;
    const struct served_part *part = &served->parts[parcel->shard];
    uint64_t sequence;
    if (parcel->plane != CAIRN_PLANE_WIRE || parcel->data.bytes == NULL) return false;
    pthread_mutex_lock(&job->session->lock);
    const struct published *copy = find_copy(job, served, parcel->shard, parcel->version,
                                             CAIRN_PUBLISHED_HOST, &sequence);
    pthread_mutex_unlock(&job->session->lock); // only this thread removes copies
    if (copy == NULL) return false;
    const struct local_extent *extent = shard_map_extent(&part->map, chunk_number);
    const size_t elem_bytes = dtype_size(parcel->dtype);
    const uint8_t *chunk = copy->base + part->published_at[extent - part->map.extents] +
                           (parcel->place.first_elem - extent->first_elem) * elem_bytes;
    if (piece->whole && part->published_bytes >= FAR_COPY_BYTES &&
        parcel->data.byte_count >= FAR_PARCEL_BYTES)
        far_copy(parcel->data.bytes, chunk, parcel->data.byte_count);
    else if (piece->whole)
        memcpy(parcel->data.bytes, chunk, parcel->data.byte_count);
    else
        copy_box(parcel, piece, chunk, elem_bytes);
    return published_read_end(copy->head, sequence);
}

/* ==== stitch ==== */

/* A run of the tensor's bytes on one shard. */
struct stitch_run {
    struct published *copy;
    uint64_t sequence;  /* the copy's sequence when `at` had the wanted version */
    uint64_t at;        /* the run's offset in the copy; equal to `from` modulo the page */
    uint64_t from, end; /* the run's place in the tensor */
};

#define PAGE ((uint64_t)CAIRN_PUBLISHED_PAGE_BYTES)

struct stitch {
    LIST_ENTRY(stitch) next; /* the most recently used is first */
    uint32_t tensor;
    uint32_t uses; /* 0: the stitch is kept, but not in use */
    uint8_t *base; /* owned */
    size_t bytes;
    size_t map_count;
    size_t run_count;
    struct stitch_run runs[]; /* [run_count] */
};

/* ---- making one ---- */

static uint64_t page_up(uint64_t bytes)
{
    return (bytes + PAGE - 1) / PAGE * PAGE;
}

/* Copies bytes [from, end) of the tensor, which are an edge: all of them lie in one page. */
static bool copy_edge(uint8_t *base, const struct stitch_run *run, uint64_t from, uint64_t end)
{
    uint8_t *page = base + from / PAGE * PAGE;
    if (from == end) return true;
    if (mprotect(page, PAGE, PROT_READ | PROT_WRITE) != 0) return false;
    memcpy(base + from, run->copy->base + run->at + (from - run->from), (size_t)(end - from));
    return mprotect(page, PAGE, PROT_READ) == 0;
}

/* Copies the edges of a run, whose pages also contain parts of other runs, or data after the tensor. */
static bool copy_edges(uint8_t *base, const struct stitch_run *run)
{
    const uint64_t first = page_up(run->from), last = run->end / PAGE * PAGE;
    if (first <= last)
        return copy_edge(base, run, run->from, first) && copy_edge(base, run, last, run->end);
    return copy_edge(base, run, run->from, run->end);
}

/* Maps pages of the copy a second time, one segment at a time. */
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

/* Returns the most maps that the runs may need: one for each run, and one more for each end of a
 * segment inside a run. */
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

static void drop_stitch(struct job *job, struct stitch *stitch)
{
    LIST_REMOVE(stitch, next);
    job->stitches.map_count -= stitch->map_count;
    for (size_t i = 0; i < stitch->run_count; i++) unuse_copy(stitch->runs[i].copy);
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

/* Takes a stitch of the same pages off the list, if the stitch has the wanted version or is not in use.
 * A stitch that is in use at another version is left to its readers. NULL: there is no such stitch. */
static struct stitch *reuse_stitch(struct job *job, uint32_t tensor, const struct stitch_run *runs,
                                   size_t count)
{
    struct stitch *stitch = LIST_FIRST(&job->stitches.all);
    while (stitch != NULL && !(is_of_stitch(stitch, tensor, runs, count) &&
                               (stitch->uses == 0 || is_of_version(stitch, runs))))
        stitch = LIST_NEXT(stitch, next);
    if (stitch != NULL) LIST_REMOVE(stitch, next);
    return stitch;
}

/* Updates the stitch to the version of the runs, by copying its edges again. */
static bool renew(struct stitch *stitch, const struct stitch_run *runs)
{
    bool whole = true;
    if (is_of_version(stitch, runs)) return true;
    for (size_t i = 0; whole && i < stitch->run_count; i++)
        whole = copy_edges(stitch->base, &runs[i]);
    memcpy(stitch->runs, runs, stitch->run_count * sizeof *runs);
    return whole;
}

/* Drops stitches that are not in use, beginning with the least recently used one. */
static void keep_within_bound(struct job *job)
{
    while (job->stitches.map_count > CAIRN_STITCH_MAPS_MAX) {
        struct stitch *stitch, *oldest = NULL;
        LIST_FOREACH (stitch, &job->stitches.all, next)
            if (stitch->uses == 0) oldest = stitch;
        if (oldest == NULL) return;
        drop_stitch(job, oldest);
    }
}

/* Returns a stitch of runs [count], which are in order and without holes. The stitch is in use
 * until stitch_put. The runs are copied; their published copies stay in use as long as the stitch
 * exists. NULL: no address space, or no memory. */
static struct stitch *stitch_get(struct job *job, uint32_t tensor, const struct stitch_run *runs,
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
    LIST_INSERT_HEAD(&job->stitches.all, stitch, next);
    if (!renew(stitch, runs)) { // not in use: a stitch in use would have the version
        drop_stitch(job, stitch);
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

/* Drops kept stitches of a copy that is gone. */
static void stitches_sweep(struct job *job)
{
    for (struct stitch *s = LIST_FIRST(&job->stitches.all), *next; s != NULL; s = next) {
        next = LIST_NEXT(s, next);
        if (s->uses == 0 && has_gone(s)) drop_stitch(job, s);
    }
}

/* NULL is fine */
static void stitch_put(struct job *job, struct stitch *stitch)
{
    if (stitch == NULL) return;
    assert(stitch->uses > 0);
    stitch->uses--;
    stitches_sweep(job);
    keep_within_bound(job);
}

void stitches_release(struct job *job)
{
    for (struct stitch *s; (s = LIST_FIRST(&job->stitches.all)) != NULL; drop_stitch(job, s))
        assert(s->uses == 0);
}

/* ==== published view ==== */

/* A shard's published copy in which parts of the view lie. */
struct source {
    struct published *copy;
    uint64_t sequence;
};

struct published_view {
    struct job *job;              /* borrowed */
    struct served_layout *served; /* borrowed; serves the version while the view is opened */
    struct cairn_version version;
    enum published_side side;
    /* owned: [shard_count]; an entry's copy is NULL if no part lies on that shard */
    struct source *sources;
    uint32_t shard_count;
    const uint8_t **at; /* owned: [count] */
    /* owned: [count], each on loan; an entry is NULL if a single shard has the entire tensor */
    struct stitch **stitches;
    size_t count;
};

const uint8_t *published_view_at(const struct published_view *view, size_t i)
{
    assert(i < view->count);
    return view->at[i];
}

bool published_view_whole(const struct published_view *view)
{
    for (uint32_t i = 0; i < view->shard_count; i++) {
        const struct source *source = &view->sources[i];
        if (source->copy == NULL) continue;
        const struct published_head *head = source->copy->head; // NULL: the session is closed
        if (head == NULL || !published_read_end(head, source->sequence)) return false;
    }
    return true;
}

void published_view_close(struct published_view *view)
{
    if (view == NULL) return;
    for (size_t i = 0; i < view->count; i++) stitch_put(view->job, view->stitches[i]);
    for (uint32_t i = 0; i < view->shard_count; i++)
        if (view->sources[i].copy != NULL) unuse_copy(view->sources[i].copy);
    free(view->sources);
    free(view->at);
    free(view->stitches);
    free(view);
}

/* Returns the shard's copy, which is the same copy for the entire view. */
static struct published *copy_of_shard(struct published_view *view, uint32_t shard)
{
    struct source *source = &view->sources[shard];
    if (source->copy == NULL) {
        source->copy = find_copy(view->job, view->served, shard, view->version, view->side,
                                 &source->sequence);
        if (source->copy != NULL) source->copy->uses++;
    }
    return source->copy;
}

/* Finds an extent of the layout in its shard's copy; NULL: no such copy is here. */
static struct published *locate(struct published_view *view, const struct extent *extent,
                                uint64_t *at_out, const struct local_extent **local_out)
{
    struct published *copy = copy_of_shard(view, extent->shard);
    if (copy == NULL) return NULL;
    const struct served_part *part = &view->served->parts[extent->shard];
    const struct geometry *g = &view->served->layout->geometry[extent->tensor];
    const struct local_extent *local = shard_map_find(&part->map, extent->tensor,
                                                      quantum_first_leaf(g, extent->first_quantum));
    assert(local != NULL); // map and extents belong to one layout
    *at_out = part->published_at[local - part->map.extents];
    *local_out = local;
    return copy;
}

/* Returns the place of each part of a tensor, which the caller frees; NULL: some part is not here. */
static struct stitch_run *find_runs(struct published_view *view, const struct extent *extents,
                                    size_t extent_count, size_t elem_bytes)
{
    struct stitch_run *runs = calloc(extent_count, sizeof *runs);
    for (size_t e = 0; runs != NULL && e < extent_count; e++) {
        const struct local_extent *local;
        uint64_t at;
        struct published *copy = locate(view, &extents[e], &at, &local);
        if (copy == NULL) {
            free(runs);
            return NULL;
        }
        runs[e] = (struct stitch_run) { .copy = copy,
                                        .sequence = view->sources[extents[e].shard].sequence,
                                        .at = at,
                                        .from = local->first_elem * elem_bytes,
                                        .end = (local->first_elem + local->elem_count) *
                                               elem_bytes };
    }
    return runs;
}

static bool stitch_tensor(struct published_view *view, size_t i, const struct extent *extents,
                          size_t extent_count, size_t elem_bytes)
{
    struct stitch_run *runs = find_runs(view, extents, extent_count, elem_bytes);
    if (runs != NULL)
        view->stitches[i] = stitch_get(view->job, extents[0].tensor, runs, extent_count);
    free(runs);
    if (view->stitches[i] == NULL) return false;
    view->at[i] = view->stitches[i]->base;
    return true;
}

static bool view_tensor(struct published_view *view, size_t i, uint32_t tensor)
{
    static const uint8_t nothing[1] __attribute__((aligned(64)));
    size_t extent_count;
    const struct extent *extents = layout_tensor_extents(view->served->layout, tensor,
                                                         &extent_count);
    const size_t elem_bytes = dtype_size((int)view->job->spec.tensors[tensor].wire);
    if (extent_count == 0) { // a tensor without elements
        view->at[i] = nothing;
        return true;
    }
    if (extent_count > 1)
        return view->side == CAIRN_PUBLISHED_HOST &&
               stitch_tensor(view, i, extents, extent_count, elem_bytes);
    const struct local_extent *local;
    uint64_t at;
    const struct published *copy = locate(view, &extents[0], &at, &local);
    if (copy == NULL) return false;
    view->at[i] = (view->side == CAIRN_PUBLISHED_HOST ? copy->base : copy->on_card) + at;
    return true;
}

struct published_view *published_view_open(struct job *job, struct cairn_version version,
                                           enum published_side side, const uint32_t *tensors,
                                           size_t count)
{
    if (job->session->published == NULL || job->served == NULL) return NULL;
    struct published_view *view = calloc(1, sizeof *view);
    if (view == NULL) return NULL;
    view->job = job;
    view->version = version;
    view->side = side;
    view->served = served_layout_of_version(job, version);
    const uint32_t shard_count = view->served->layout->shard_count;
    view->sources = calloc(shard_count, sizeof *view->sources);
    view->at = calloc(count + 1, sizeof *view->at);
    view->stitches = calloc(count + 1, sizeof(struct stitch *));
    bool all = view->sources != NULL && view->at != NULL && view->stitches != NULL;
    if (all) view->shard_count = shard_count;
    if (all) view->count = count;
    for (size_t i = 0; all && i < count; i++) all = view_tensor(view, i, tensors[i]);
    if (all && published_view_whole(view)) return view;
    published_view_close(view);
    return NULL;
}

/* ---- copies on the card ---- */

bool published_view_has_card(const struct job *job, const struct card *card)
{
    const struct fabric_device *table = card_imports_table(job->session->imports);
    return table != NULL && memcmp(table->uuids[0], card_uuid(card), 16) == 0;
}

static bool copy_runs(const struct stitch_run *runs, size_t count, struct card *card, uint8_t *to)
{
    struct sentence why;
    bool whole = true;
    uint64_t last = 0;
    for (size_t i = 0, bytes; whole && i < count; i++) {
        uint64_t copy;
        bytes = (size_t)(runs[i].end - runs[i].from);
        whole = card_copy_begin(card, to + runs[i].from, runs[i].copy->on_card + runs[i].at, bytes,
                                CARD_WITHIN, &copy, &why) == CAIRN_OK;
        if (whole && copy != 0) last = copy;
    }
    return card_copy_wait(card, last, &why) == CAIRN_OK && whole;
}

bool published_view_copy(struct job *job, struct cairn_version version, uint32_t tensor,
                         struct card *card, void *to)
{
    struct session *s = job->session;
    size_t count;
    struct stitch_run *runs = NULL;
    if (!published_view_has_card(job, card)) return false;
    pthread_mutex_lock(&s->lock);
    struct published_view *view = published_view_open(job, version, CAIRN_PUBLISHED_DEVICE, NULL,
                                                      0);
    if (view != NULL) {
        const struct extent *extents = layout_tensor_extents(view->served->layout, tensor, &count);
        if (count > 0)
            runs = find_runs(view, extents, count, dtype_size((int)job->spec.tensors[tensor].wire));
    }
    pthread_mutex_unlock(&s->lock);
    bool whole = runs != NULL && copy_runs(runs, count, card, to);
    pthread_mutex_lock(&s->lock);
    whole = whole && published_view_whole(view);
    published_view_close(view);
    pthread_mutex_unlock(&s->lock);
    free(runs);
    return whole;
}
