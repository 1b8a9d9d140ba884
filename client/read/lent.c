#include "client/read/lent.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "client/device/card.h"
#include "client/device/import.h"
#include "client/job.h"
#include "proto/geometry/published.h"

/* A copy that something here is of. */
struct source {
    struct published *copy;
    uint64_t sequence;
};

struct lent {
    struct job *job;   /* borrowed */
    struct body *body; /* borrowed; that serves the version, while it is opened */
    struct cairn_version version;
    enum cairn_published_side side;
    struct source *sources; /* owned: [shard_count]; copy NULL: nothing is of that shard */
    uint32_t shard_count;
    const uint8_t **at;       /* owned: [count] */
    struct stitch **stitches; /* owned: [count], each on loan; NULL: the tensor is one shard's */
    size_t count;
};

const uint8_t *cairn_lent_at(const struct lent *lent, size_t i)
{
    assert(i < lent->count);
    return lent->at[i];
}

bool cairn_lent_whole(const struct lent *lent)
{
    for (uint32_t i = 0; i < lent->shard_count; i++) {
        const struct source *source = &lent->sources[i];
        if (source->copy == NULL) continue;
        const struct cairn_published_head *head = source->copy->head; // NULL: the session is closed
        if (head == NULL || !cairn_published_read_end(head, source->sequence)) return false;
    }
    return true;
}

void cairn_lent_close(struct lent *lent)
{
    if (lent == NULL) return;
    for (size_t i = 0; i < lent->count; i++) cairn_stitch_put(lent->job, lent->stitches[i]);
    for (uint32_t i = 0; i < lent->shard_count; i++)
        if (lent->sources[i].copy != NULL) cairn_mapped_unuse(lent->sources[i].copy);
    free(lent->sources);
    free(lent->at);
    free(lent->stitches);
    free(lent);
}

/* The shard's copy; the same one for all that is lent here. */
static struct published *copy_of(struct lent *lent, uint32_t shard)
{
    struct source *source = &lent->sources[shard];
    if (source->copy == NULL) {
        source->copy = cairn_mapped_find(lent->job, lent->body, shard, lent->version, lent->side,
                                         &source->sequence);
        if (source->copy != NULL) source->copy->uses++;
    }
    return source->copy;
}

/* Where an extent of the layout lies in its shard's copy; NULL: it is not here. */
static struct published *locate(struct lent *lent, const struct cairn_extent *extent,
                                uint64_t *at_out, const struct cairn_local_extent **local_out)
{
    struct published *copy = copy_of(lent, extent->shard);
    if (copy == NULL) return NULL;
    const struct body_part *part = &lent->body->parts[extent->shard];
    const struct cairn_geometry *g = &lent->body->layout->geometry[extent->tensor];
    const struct cairn_local_extent *local = cairn_shard_map_find(
        &part->map, extent->tensor, cairn_quantum_first_leaf(g, extent->first_quantum));
    assert(local != NULL); // map and extents are of one layout
    *at_out = part->published_at[local - part->map.extents];
    *local_out = local;
    return copy;
}

/* Where each part of a tensor lies, to be freed; NULL: some of it is not here. */
static struct stitch_run *find_runs(struct lent *lent, const struct cairn_extent *extents,
                                    size_t extent_count, size_t elem_bytes)
{
    struct stitch_run *runs = calloc(extent_count, sizeof *runs);
    for (size_t e = 0; runs != NULL && e < extent_count; e++) {
        const struct cairn_local_extent *local;
        uint64_t at;
        struct published *copy = locate(lent, &extents[e], &at, &local);
        if (copy == NULL) {
            free(runs);
            return NULL;
        }
        runs[e] = (struct stitch_run) { .copy = copy,
                                        .sequence = lent->sources[extents[e].shard].sequence,
                                        .at = at,
                                        .from = local->first_elem * elem_bytes,
                                        .end = (local->first_elem + local->elem_count) *
                                               elem_bytes };
    }
    return runs;
}

static bool stitch(struct lent *lent, size_t i, const struct cairn_extent *extents,
                   size_t extent_count, size_t elem_bytes)
{
    struct stitch_run *runs = find_runs(lent, extents, extent_count, elem_bytes);
    if (runs != NULL)
        lent->stitches[i] = cairn_stitch_get(lent->job, extents[0].tensor, runs, extent_count);
    free(runs);
    if (lent->stitches[i] == NULL) return false;
    lent->at[i] = cairn_stitch_base(lent->stitches[i]);
    return true;
}

static bool lend(struct lent *lent, size_t i, uint32_t tensor)
{
    static const uint8_t nothing[1] __attribute__((aligned(64)));
    size_t extent_count;
    const struct cairn_extent *extents = cairn_layout_tensor_extents(lent->body->layout, tensor,
                                                                     &extent_count);
    const size_t elem_bytes = cairn_dtype_bytes((int)lent->job->spec.tensors[tensor].wire);
    if (extent_count == 0) { // of no elements
        lent->at[i] = nothing;
        return true;
    }
    if (extent_count > 1)
        return lent->side == CAIRN_PUBLISHED_HOST &&
               stitch(lent, i, extents, extent_count, elem_bytes);
    const struct cairn_local_extent *local;
    uint64_t at;
    const struct published *copy = locate(lent, &extents[0], &at, &local);
    if (copy == NULL) return false;
    lent->at[i] = (lent->side == CAIRN_PUBLISHED_HOST ? copy->base : copy->on_card) + at;
    return true;
}

struct lent *cairn_lent_open(struct job *job, struct cairn_version version,
                             enum cairn_published_side side, const uint32_t *tensors, size_t count)
{
    if (job->session->published == NULL || job->bodies == NULL) return NULL;
    struct lent *lent = calloc(1, sizeof *lent);
    if (lent == NULL) return NULL;
    lent->job = job;
    lent->version = version;
    lent->side = side;
    lent->body = cairn_body_of_version(job, version);
    const uint32_t shard_count = lent->body->layout->shard_count;
    lent->sources = calloc(shard_count, sizeof *lent->sources);
    lent->at = calloc(count + 1, sizeof *lent->at);
    lent->stitches = calloc(count + 1, sizeof(struct stitch *));
    bool all = lent->sources != NULL && lent->at != NULL && lent->stitches != NULL;
    if (all) lent->shard_count = shard_count;
    if (all) lent->count = count;
    for (size_t i = 0; all && i < count; i++) all = lend(lent, i, tensors[i]);
    if (all && cairn_lent_whole(lent)) return lent;
    cairn_lent_close(lent);
    return NULL;
}

/* ---- copies on the card ---- */

bool cairn_lent_has_card(const struct job *job, const struct card *card)
{
    const struct cairn_fabric_device *table = cairn_card_imports_table(job->session->imports);
    return table != NULL && memcmp(table->uuids[0], cairn_card_uuid(card), 16) == 0;
}

static bool copy_runs(const struct stitch_run *runs, size_t count, struct card *card, uint8_t *to)
{
    struct cairn_sentence why;
    bool whole = true;
    uint64_t last = 0;
    for (size_t i = 0, bytes; whole && i < count; i++) {
        uint64_t copy;
        bytes = (size_t)(runs[i].end - runs[i].from);
        whole = cairn_card_copy_begin(card, to + runs[i].from, runs[i].copy->on_card + runs[i].at,
                                      bytes, CARD_WITHIN, &copy, &why) == CAIRN_OK;
        if (whole && copy != 0) last = copy;
    }
    return cairn_card_copy_wait(card, last, &why) == CAIRN_OK && whole;
}

bool cairn_lent_copy(struct job *job, struct cairn_version version, uint32_t tensor,
                     struct card *card, void *to)
{
    struct session *s = job->session;
    size_t count;
    struct stitch_run *runs = NULL;
    if (!cairn_lent_has_card(job, card)) return false;
    pthread_mutex_lock(&s->lock);
    struct lent *lent = cairn_lent_open(job, version, CAIRN_PUBLISHED_DEVICE, NULL, 0);
    if (lent != NULL) {
        const struct cairn_extent *extents = cairn_layout_tensor_extents(lent->body->layout, tensor,
                                                                         &count);
        if (count > 0)
            runs = find_runs(lent, extents, count,
                             cairn_dtype_bytes((int)job->spec.tensors[tensor].wire));
    }
    pthread_mutex_unlock(&s->lock);
    bool whole = runs != NULL && copy_runs(runs, count, card, to);
    pthread_mutex_lock(&s->lock);
    whole = whole && cairn_lent_whole(lent);
    cairn_lent_close(lent);
    pthread_mutex_unlock(&s->lock);
    free(runs);
    return whole;
}
