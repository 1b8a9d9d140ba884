/* Published memory of shards of this host: a fetch of the wire plane is one copy out of it, and asks
 * nobody. The list of copies is changed by the loop thread only, under the lock.
 *
 * Shards show their published copies to the members of a job (proto/geometry/published.h), a segment at a
 * time, perhaps before its layout is known. So a copy is judged when it is first used: by its notes and its
 * head; then its segments are mapped side by side. Whoever shows one has this session's address, which the
 * coordinator tells shards only. One that is overwritten while it is read, or that has another version, or of
 * which a segment is missing, is no error: the shard is asked, as it is over any other way, and says why it
 * has not what was asked for. */
#include "client/read/mapped.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "client/device/import.h"
#include "client/job.h"
#include "proto/fabric/far_copy.h"
#include "proto/geometry/published.h"

/* Whoever fetches chunks of so large a copy fetches more than caches hold, by measurement; small ones are
 * not worth it. */
#define FAR_COPY_BYTES   ((uint64_t)32 << 20)
#define FAR_PARCEL_BYTES ((size_t)256 << 10)

/* ---- what shards show ---- */

static bool is_same_copy(const struct published *copy, const struct cairn_published_note *note)
{
    struct cairn_published_note of_copy = copy->note;
    of_copy.segment = note->segment;
    of_copy.side = note->side;
    return !copy->gone && memcmp(&of_copy, note, sizeof of_copy) == 0;
}

/* The copy that it is of: one that is known, or a new one; NULL: no memory. */
static struct published *copy_of(struct session *s, const struct cairn_published_note *note)
{
    struct published *copy = s->published;
    while (copy != NULL && !is_same_copy(copy, note)) copy = copy->next;
    if (copy != NULL || (copy = calloc(1, sizeof *copy)) == NULL) return copy;
    copy->note = *note;
    copy->next = s->published;
    s->published = copy;
    return copy;
}

static bool has_segment(const struct published *copy, const struct cairn_published_note *note)
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
    const void *memory = cairn_fabric_mapping_memory(shown->mapping, &bytes);
    const enum card_import state = cairn_card_imports_state(s->imports, memory);
    if (state == CARD_IMPORT_REFUSED)
        cairn_fabric_mapping_refuse(shown->mapping, cairn_card_imports_why(s->imports));
    return state == CARD_IMPORT_THERE;
}

void cairn_mapped_settle(struct session *s)
{
    pthread_mutex_lock(&s->lock);
    for (struct published *copy = s->published; copy != NULL; copy = copy->next)
        for (struct shown *shown = copy->shown; shown != NULL; shown = shown->next)
            shown->is_there = shown->is_there || is_imported(s, shown);
    pthread_mutex_unlock(&s->lock);
}

static void add_shown(struct session *s, const struct cairn_published_note *note,
                      struct cairn_fabric_mapping *mapping)
{
    size_t bytes;
    const void *memory = cairn_fabric_mapping_memory(mapping, &bytes);
    struct published *copy = copy_of(s, note);
    struct shown *shown = copy != NULL ? calloc(1, sizeof *shown) : NULL;
    if (shown == NULL) return; // the shard is asked
    const bool is_head = note->segment == note->segment_count;
    if (has_segment(copy, note) || (is_head && bytes < CAIRN_PUBLISHED_PAGE_BYTES))
        copy->gone = true; // nobody knows which is right
    else if (is_head)
        copy->head = memory;
    cairn_fabric_mapping_hold(mapping);
    *shown = (struct shown) { .next = copy->shown,
                              .mapping = mapping,
                              .segment = note->segment,
                              .side = (enum cairn_published_side)note->side };
    shown->is_there = shown->side == CAIRN_PUBLISHED_HOST || is_imported(s, shown);
    copy->shown = shown;
}

void cairn_mapped_on_mapping(void *session, struct cairn_fabric_mapping *mapping)
{
    struct session *s = session;
    struct cairn_published_note note;
    size_t note_bytes;
    const void *given = cairn_fabric_mapping_note(mapping, &note_bytes);
    if (note_bytes != sizeof note) return;
    memcpy(&note, given, sizeof note);
    const bool on_card = cairn_fabric_mapping_uuid(mapping) != NULL;
    if (note.magic != CAIRN_PUBLISHED_MAGIC || note.segment > note.segment_count ||
        note.side != (on_card ? CAIRN_PUBLISHED_DEVICE : CAIRN_PUBLISHED_HOST) ||
        (on_card && note.segment == note.segment_count))
        return;
    pthread_mutex_lock(&s->lock);
    add_shown(s, &note, mapping);
    pthread_mutex_unlock(&s->lock);
}

/* ---- and take back ---- */

void cairn_mapped_unuse(struct published *copy)
{
    assert(copy->uses > 0);
    if (--copy->uses == 0 && copy->shown == NULL) free(copy);
}

/* Out of the list, under the lock; what was shown of it. */
static struct shown *take_out(struct published **link)
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
    if (found) shown = take_out(link);
    pthread_mutex_unlock(&s->lock);
    while (shown != NULL) {
        struct shown *next = shown->next;
        cairn_fabric_mapping_release(shown->mapping);
        free(shown);
        shown = next;
    }
    return found;
}

static void sweep(struct session *s, bool all)
{
    while (let_go(s, all)) {}
}

void cairn_mapped_on_gone(void *session, struct cairn_fabric_mapping *mapping)
{
    struct session *s = session;
    pthread_mutex_lock(&s->lock);
    for (struct published *copy = s->published; copy != NULL; copy = copy->next)
        for (const struct shown *shown = copy->shown; shown != NULL; shown = shown->next)
            if (shown->mapping == mapping) copy->gone = true;
    for (struct job *job = s->jobs; job != NULL; job = job->next) cairn_stitches_sweep(job);
    pthread_mutex_unlock(&s->lock);
    sweep(s, false);
}

void cairn_mapped_sweep(struct session *s)
{
    if (s->published != NULL) sweep(s, false);
}

void cairn_mapped_release(struct session *s)
{
    sweep(s, true);
}

/* ---- a copy as a whole ---- */

/* How many of its segments are here: each has a number of its own, below the note's count. */
static uint64_t count_shown(const struct published *copy, enum cairn_published_side side)
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
    const size_t wanted = (size_t)cairn_segment_bytes(copy->bytes, shown->segment);
    const void *memory = cairn_fabric_mapping_memory(shown->mapping, &bytes);
    return bytes >= wanted &&
           cairn_pages_double(base + shown->segment * CAIRN_SEGMENT_BYTES, memory, wanted);
}

/* Maps all of it, if all is there; a copy that is not what its head says is gone. */
static bool make_whole(struct published *copy)
{
    const struct shown *shown = copy->shown;
    if (copy->is_whole || count_shown(copy, CAIRN_PUBLISHED_HOST) < copy->note.segment_count)
        return copy->is_whole;
    uint8_t *base = copy->bytes > 0 ? cairn_pages_reserve(copy->bytes) : NULL;
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

/* Its segments on the card lie side by side already (client/device/import.h). */
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
        const uint8_t *memory = cairn_fabric_mapping_memory(shown->mapping, &bytes);
        if (base == NULL) base = memory - at;
        if (memory != base + at || bytes < cairn_segment_bytes(copy->bytes, shown->segment))
            copy->gone = true;
    }
    if (!copy->gone) copy->on_card = base;
    return !copy->gone;
}

/* A shard's part of a job, by one of its layouts. */
struct part_of {
    const struct job *job;
    const struct body *body;
    uint32_t shard;
    uint64_t bytes; /* of a copy of it */
};

/* It is a copy of that part, and all that it has to be. */
static bool is_of(const struct published *copy, const struct part_of *part)
{
    const struct job *job = part->job;
    const struct cairn_published_note *note = &copy->note;
    uint64_t layout_hash;
    memcpy(&layout_hash, part->body->layout->hash, sizeof layout_hash);
    if (note->job != job->attachment.job || note->shard != part->shard ||
        note->layout_hash != layout_hash || note->segment_count != cairn_segments(part->bytes) ||
        copy->head == NULL)
        return false;
    const struct cairn_published_head *head = copy->head;
    return head->magic == CAIRN_PUBLISHED_MAGIC && head->job == job->attachment.job &&
           head->shard == part->shard && head->layout_hash == layout_hash &&
           head->bytes == part->bytes;
}

/* It is all here, on that side. */
static bool has_side(struct published *copy, const struct part_of *part,
                     enum cairn_published_side side)
{
    if (copy->gone || !is_of(copy, part)) return false;
    copy->bytes = (size_t)part->bytes;
    return side == CAIRN_PUBLISHED_HOST ? make_whole(copy) : is_on_card(copy);
}

/* Where the shard's extents stand in its copies; made when they are first used. */
static bool know_places(const struct job *job, struct body_part *part)
{
    if (part->published_at != NULL) return true;
    part->published_at = malloc((part->map.extent_count + 1) * sizeof *part->published_at);
    if (part->published_at == NULL) return false;
    uint64_t end = 0;
    for (size_t i = 0; i < part->map.extent_count; i++) {
        const cairn_dtype wire = job->spec.tensors[part->map.extents[i].tensor].wire;
        part->published_at[i] = cairn_published_place(&part->map, i, cairn_dtype_bytes((int)wire),
                                                      &end);
    }
    part->published_bytes = end;
    return true;
}

struct published *cairn_mapped_find(struct job *job, struct body *body, uint32_t shard,
                                    struct cairn_version version, enum cairn_published_side side,
                                    uint64_t *sequence_out)
{
    struct published *copy = job->session->published;
    if (copy == NULL || !know_places(job, &body->parts[shard])) return NULL;
    const struct part_of part = { job, body, shard, body->parts[shard].published_bytes };
    while (copy != NULL &&
           !(has_side(copy, &part, side) &&
             cairn_published_read_begin(copy->head, copy->note.copy, version, side, sequence_out)))
        copy = copy->next;
    return copy;
}

void cairn_mapped_count(struct job *job, uint64_t bytes)
{
    job->stats.fetched_bytes += bytes;
    job->stats.shared_fetched_bytes += bytes;
    job->reads.bytes += bytes;
}

/* Packs the elements of the piece's box out of the chunk. */
static void copy_box(const struct parcel *parcel, const struct piece *piece, const uint8_t *chunk,
                     size_t elem_bytes)
{
    const struct cairn_chunk_place *place = &parcel->place;
    struct cairn_box_runs runs;
    cairn_box_runs_begin(&runs, &piece->box, &parcel->job->spec.tensors[place->tensor].shape,
                         place->first_elem, place->elem_count);
    uint8_t *to = parcel->bytes;
    uint64_t elem, box_elem, count;
    while (cairn_box_runs_next(&runs, &elem, &box_elem, &count)) {
        memcpy(to, chunk + (elem - place->first_elem) * elem_bytes, count * elem_bytes);
        to += count * elem_bytes;
    }
    assert(to == parcel->bytes + parcel->byte_count);
}

bool cairn_mapped_read(struct parcel *parcel, struct body *body, uint64_t chunk_number,
                       const struct piece *piece)
{
    struct job *job = parcel->job;
    const struct body_part *part = &body->parts[parcel->shard];
    uint64_t sequence;
    if (parcel->plane != CAIRN_PLANE_WIRE || parcel->bytes == NULL) return false;
    pthread_mutex_lock(&job->session->lock);
    const struct published *copy = cairn_mapped_find(job, body, parcel->shard, parcel->version,
                                                     CAIRN_PUBLISHED_HOST, &sequence);
    pthread_mutex_unlock(&job->session->lock); // this thread alone would take it away
    if (copy == NULL) return false;
    const struct cairn_local_extent *extent = cairn_shard_map_extent(&part->map, chunk_number);
    const size_t elem_bytes = cairn_dtype_bytes(parcel->dtype);
    const uint8_t *chunk = copy->base + part->published_at[extent - part->map.extents] +
                           (parcel->place.first_elem - extent->first_elem) * elem_bytes;
    if (piece->whole && part->published_bytes >= FAR_COPY_BYTES &&
        parcel->byte_count >= FAR_PARCEL_BYTES)
        cairn_far_copy(parcel->bytes, chunk, parcel->byte_count);
    else if (piece->whole)
        memcpy(parcel->bytes, chunk, parcel->byte_count);
    else
        copy_box(parcel, piece, chunk, elem_bytes);
    return cairn_published_read_end(copy->head, sequence);
}
