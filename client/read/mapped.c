/* Published memory of shards of this host: a fetch of the wire plane is one copy out of it, and asks
 * nobody. The list of copies is changed by the loop thread only, under the lock.
 *
 * Shards show their published copies to the members of a job (proto/geometry/published.h), perhaps before we
 * have its layout. So a copy is judged when it is used: by its note and its head. Whoever shows one has our
 * address, which the coordinator tells shards only. One that is overwritten while it is read, or that has
 * another version, is no error: the shard is asked, as it is over any other way, and says why it has not
 * what was asked for. */
#include "client/read/mapped.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "client/job.h"
#include "proto/fabric/far_copy.h"
#include "proto/geometry/published.h"

/* Whoever fetches chunks of so large a copy fetches more than caches hold, by measurement; small ones are
 * not worth it. */
#define FAR_COPY_BYTES   ((uint64_t)32 << 20)
#define FAR_PARCEL_BYTES ((size_t)256 << 10)

void cairn_mapped_on_mapping(void *session, struct cairn_fabric_mapping *mapping)
{
    struct session *s = session;
    struct cairn_published_note note;
    size_t note_bytes;
    const void *given = cairn_fabric_mapping_note(mapping, &note_bytes);
    if (note_bytes != sizeof note) return;
    memcpy(&note, given, sizeof note);
    if (note.magic != CAIRN_PUBLISHED_MAGIC) return;
    struct published *copy = calloc(1, sizeof *copy);
    if (copy == NULL) return; // the shard is asked
    copy->note = note;
    copy->mapping = mapping;
    copy->base = cairn_fabric_mapping_memory(mapping, &copy->bytes);
    copy->fd = cairn_fabric_mapping_fd(mapping);
    cairn_fabric_mapping_hold(mapping);
    pthread_mutex_lock(&s->lock);
    copy->next = s->published;
    s->published = copy;
    pthread_mutex_unlock(&s->lock);
}

void cairn_mapped_unuse(struct published *copy)
{
    assert(copy->uses > 0);
    if (--copy->uses == 0 && copy->base == NULL) free(copy);
}

/* Out of the list, under the lock; its mapping. */
static struct cairn_fabric_mapping *take_out(struct published **link)
{
    struct published *copy = *link;
    struct cairn_fabric_mapping *mapping = copy->mapping;
    *link = copy->next;
    copy->gone = true;
    copy->base = NULL;
    if (copy->uses == 0) free(copy);
    return mapping;
}

/* Lets one go that was taken back and that nobody uses (`all`: whoever does). False: there is none. */
static bool let_go(struct session *s, bool all)
{
    struct cairn_fabric_mapping *mapping = NULL;
    pthread_mutex_lock(&s->lock);
    struct published **link = &s->published;
    while (*link != NULL && !all && (!(*link)->gone || (*link)->uses > 0)) link = &(*link)->next;
    if (*link != NULL) mapping = take_out(link);
    pthread_mutex_unlock(&s->lock);
    if (mapping != NULL) cairn_fabric_mapping_release(mapping);
    return mapping != NULL;
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
        if (copy->mapping == mapping) copy->gone = true;
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

/* It is of this shard's part of the job, shown to us, and as long as it has to be. */
static bool is_of(const struct published *copy, const struct shard_link *link)
{
    const struct job *job = link->job;
    const struct cairn_published_note *note = &copy->note;
    uint64_t layout_hash;
    memcpy(&layout_hash, job->body.layout->hash, sizeof layout_hash);
    if (note->job != job->attachment.job || note->shard != link->index ||
        note->layout_hash != layout_hash || copy->bytes < link->published_bytes)
        return false;
    const struct cairn_published_head *head = (const void *)copy->base;
    return head->magic == CAIRN_PUBLISHED_MAGIC && head->job == job->attachment.job &&
           head->shard == link->index && head->layout_hash == layout_hash &&
           head->bytes == link->published_bytes;
}

/* Where the shard's extents stand in its copies; made when they are first used. */
static bool know_places(struct shard_link *link)
{
    if (link->published_at != NULL) return true;
    link->published_at = malloc((link->map.extent_count + 1) * sizeof *link->published_at);
    if (link->published_at == NULL) return false;
    uint64_t end = CAIRN_PUBLISHED_PAGE_BYTES;
    for (size_t i = 0; i < link->map.extent_count; i++) {
        const cairn_dtype wire = link->job->spec.tensors[link->map.extents[i].tensor].wire;
        link->published_at[i] = cairn_published_place(&link->map, i, cairn_dtype_bytes((int)wire),
                                                      &end);
    }
    link->published_bytes = end;
    return true;
}

struct published *cairn_mapped_find(struct shard_link *link, struct cairn_version version,
                                    uint64_t *sequence_out)
{
    struct published *copy = link->job->session->published;
    if (copy == NULL || !know_places(link)) return NULL;
    while (copy != NULL &&
           !(!copy->gone && is_of(copy, link) &&
             cairn_published_read_begin((const void *)copy->base, version, sequence_out)))
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

bool cairn_mapped_read(struct parcel *parcel, const struct piece *piece)
{
    struct shard_link *link = &parcel->job->body.shards[parcel->shard];
    uint64_t sequence;
    if (parcel->plane != CAIRN_PLANE_WIRE || parcel->bytes == NULL) return false;
    pthread_mutex_lock(&parcel->job->session->lock);
    const struct published *copy = cairn_mapped_find(link, parcel->version, &sequence);
    pthread_mutex_unlock(&parcel->job->session->lock); // this thread alone would take it away
    if (copy == NULL) return false;
    const struct cairn_local_extent *extent = cairn_shard_map_find(&link->map, parcel->place.tensor,
                                                                   parcel->place.first_leaf);
    assert(extent != NULL); // the parcel is of this map
    const size_t elem_bytes = cairn_dtype_bytes(parcel->dtype);
    const uint8_t *chunk = copy->base + link->published_at[extent - link->map.extents] +
                           (parcel->place.first_elem - extent->first_elem) * elem_bytes;
    if (piece->whole && link->published_bytes >= FAR_COPY_BYTES &&
        parcel->byte_count >= FAR_PARCEL_BYTES)
        cairn_far_copy(parcel->bytes, chunk, parcel->byte_count);
    else if (piece->whole)
        memcpy(parcel->bytes, chunk, parcel->byte_count);
    else
        copy_box(parcel, piece, chunk, elem_bytes);
    return cairn_published_read_end((const void *)copy->base, sequence);
}
