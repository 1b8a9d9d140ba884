/* Whether the tiles of all ranks make up every tensor exactly: see tiles.h.
 *
 * Ranks with equal lists are one holder. A tensor's different boxes are taken apart by straight cuts: sorted
 * along a dimension, a group falls into parts wherever no box reaches across. Real partitions fall apart
 * into single boxes at once. Boxes that no cut in any dimension separates (a pinwheel, or boxes
 * that overlap) are compared by pairs. Without overlap the boxes are a cover if their elements add
 * up to the tensor's. */
#include "proto/wire/tiles.h"

#include <assert.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define PAIRS_BOXES_MAX 4096 /* of a group that is compared by pairs */
#define DEPTH_MAX       64   /* cuts within cuts before that */

/* A list that some ranks have, and the lowest of them. */
struct holder {
    const struct cairn_tiles *tiles; /* borrowed */
    uint64_t hash;
    uint32_t rank;
};

/* One of a tensor's different boxes. */
struct held {
    struct cairn_box box;
    uint32_t rank; /* the lowest that holds it */
};

struct cover {
    const struct cairn_tensor_spec *tensor;
    struct held *held; /* [count], in the order of the dimension at hand */
    struct cairn_sentence *why;
};

static int by_hash(const void *a, const void *b)
{
    const struct holder *x = a, *y = b;
    if (x->hash != y->hash) return x->hash < y->hash ? -1 : 1;
    return x->rank < y->rank ? -1 : x->rank > y->rank;
}

/* Keeps one holder of each list; returns how many. */
static uint32_t join_holders(struct holder *holders, uint32_t count)
{
    qsort(holders, count, sizeof *holders, by_hash);
    uint32_t kept = 0;
    for (uint32_t i = 0; i < count; i++)
        if (kept == 0 || !cairn_tiles_equal(holders[kept - 1].tiles, holders[i].tiles))
            holders[kept++] = holders[i];
    return kept;
}

static int compare(uint64_t a, uint64_t b)
{
    return a < b ? -1 : a > b;
}

static int by_box(const void *a, const void *b)
{
    const struct held *x = a, *y = b;
    for (uint32_t d = 0; d < x->box.rank; d++) {
        int order = compare(x->box.start[d], y->box.start[d]);
        if (order == 0) order = compare(x->box.extent[d], y->box.extent[d]);
        if (order != 0) return order;
    }
    return compare(x->rank, y->rank);
}

/* The tensor's different boxes that are not empty; returns how many. */
static size_t gather(struct cover *c, uint32_t tensor, const struct holder *holders, uint32_t count)
{
    size_t held = 0;
    for (uint32_t i = 0; i < count; i++) {
        const struct cairn_box *box = cairn_tiles_find(holders[i].tiles, tensor);
        const struct cairn_box whole = cairn_box_of_shape(&c->tensor->shape);
        if (box == NULL) box = &whole;
        if (cairn_box_elems(box) > 0)
            c->held[held++] = (struct held) { .box = *box, .rank = holders[i].rank };
    }
    qsort(c->held, held, sizeof c->held[0], by_box);
    size_t kept = 0;
    for (size_t i = 0; i < held; i++)
        if (kept == 0 || !cairn_box_equal(&c->held[kept - 1].box, &c->held[i].box))
            c->held[kept++] = c->held[i];
    return kept;
}

static cairn_status compare_pairs(const struct cover *c, const struct held *group, size_t count)
{
    if (count > PAIRS_BOXES_MAX)
        return cairn_fail(c->why, CAIRN_ERR_UNSUPPORTED,
                          "the tiles of tensor %.80s are %zu boxes that no straight cut separates; "
                          "at most %d are supported",
                          c->tensor->name, count, PAIRS_BOXES_MAX);
    for (size_t i = 0; i < count; i++)
        for (size_t j = i + 1; j < count; j++) {
            if (!cairn_box_overlap(&group[i].box, &group[j].box)) continue;
            char first[CAIRN_BOX_TEXT_BYTES], second[CAIRN_BOX_TEXT_BYTES];
            return cairn_fail(c->why, CAIRN_ERR_MISMATCH,
                              "the tiles of tensor %.80s: rank %" PRIu32
                              " holds %s and rank %" PRIu32
                              " holds %s, which overlap; two ranks hold the same box or have no "
                              "element in common",
                              c->tensor->name, group[i].rank, cairn_box_text(&group[i].box, first),
                              group[j].rank, cairn_box_text(&group[j].box, second));
        }
    return CAIRN_OK;
}

static int by_start(const void *a, const void *b, void *dim)
{
    const uint32_t d = *(const uint32_t *)dim;
    return compare(((const struct held *)a)->box.start[d], ((const struct held *)b)->box.start[d]);
}

/* Judges that no two boxes of the group overlap. The `tried` dimensions before `dim` do not cut it. */
static cairn_status take_apart(const struct cover *c, struct held *group, size_t count,
                               uint32_t dim, uint32_t tried, uint32_t depth)
{
    const uint32_t rank = c->tensor->shape.rank;
    if (count <= 1) return CAIRN_OK;
    if (tried == rank || depth == DEPTH_MAX) return compare_pairs(c, group, count);

    qsort_r(group, count, sizeof *group, by_start, &dim);
    const uint32_t next_dim = (dim + 1) % rank;
    size_t first = 0; // of the part at hand
    uint64_t reach = 0;
    for (size_t i = 0; i < count; i++) {
        if (i > first && group[i].box.start[dim] >= reach) {
            cairn_status status = take_apart(c, group + first, i - first, next_dim, 1, depth + 1);
            if (status != CAIRN_OK) return status;
            first = i;
        }
        const uint64_t end = group[i].box.start[dim] + group[i].box.extent[dim];
        if (end > reach) reach = end;
    }
    return take_apart(c, group + first, count - first, next_dim, first == 0 ? tried + 1 : 1,
                      depth + 1);
}

/* The next place along a dimension where one of the boxes begins or ends. */
static uint64_t next_edge(const struct held *held, size_t count, uint32_t d, uint64_t at,
                          uint64_t end)
{
    for (size_t i = 0; i < count; i++) {
        const uint64_t start = held[i].box.start[d], stop = start + held[i].box.extent[d];
        if (start > at && start < end) end = start;
        if (stop > at && stop < end) end = stop;
    }
    return end;
}

static bool reaches(const struct held *h, uint32_t d, uint64_t at)
{
    return h->box.start[d] <= at && at - h->box.start[d] < h->box.extent[d];
}

/* Elements that the boxes hold at one index of dimension d. */
static uint64_t slice_elems(const struct held *held, size_t count, uint32_t d, uint64_t at)
{
    uint64_t elems = 0;
    for (size_t i = 0; i < count; i++) {
        if (!reaches(&held[i], d, at)) continue;
        uint64_t inner = 1;
        for (uint32_t k = d + 1; k < held[i].box.rank; k++) inner *= held[i].box.extent[k];
        elems += inner;
    }
    return elems;
}

static size_t keep_reaching(struct held *held, size_t count, uint32_t d, uint64_t at)
{
    size_t kept = 0;
    for (size_t i = 0; i < count; i++)
        if (reaches(&held[i], d, at)) held[kept++] = held[i];
    return kept;
}

/* A part that none of the boxes, which do not overlap and do not fill the tensor, holds: dimension by
 * dimension, the first slice that is not full. */
static struct cairn_box find_hole(struct cover *c, size_t count)
{
    struct cairn_box hole = cairn_box_of_shape(&c->tensor->shape);
    uint64_t full = cairn_box_elems(&hole);
    for (uint32_t d = 0; d < hole.rank; d++) {
        const uint64_t dim = hole.extent[d];
        full /= dim;
        uint64_t at = 0;
        while (slice_elems(c->held, count, d, at) == full) {
            at = next_edge(c->held, count, d, at, dim);
            assert(at < dim);
        }
        hole.start[d] = at;
        hole.extent[d] = next_edge(c->held, count, d, at, dim) - at;
        count = keep_reaching(c->held, count, d, at);
    }
    return hole;
}

static cairn_status cover_tensor(struct cover *c, size_t count)
{
    const struct cairn_box whole = cairn_box_of_shape(&c->tensor->shape);
    cairn_status status = take_apart(c, c->held, count, 0, 0, 0);
    if (status != CAIRN_OK) return status;
    uint64_t elems = 0;
    for (size_t i = 0; i < count; i++) elems += cairn_box_elems(&c->held[i].box);
    if (elems == cairn_box_elems(&whole)) return CAIRN_OK;
    const struct cairn_box hole = find_hole(c, count);
    char text[CAIRN_BOX_TEXT_BYTES];
    return cairn_fail(c->why, CAIRN_ERR_MISMATCH,
                      "the tiles of tensor %.80s: no rank holds %s; the tiles of all ranks "
                      "together must make up the whole tensor",
                      c->tensor->name, cairn_box_text(&hole, text));
}

cairn_status cairn_tiles_cover(const struct cairn_job_spec_data *spec,
                               const struct cairn_tiles *const *of_rank, uint32_t world,
                               struct cairn_sentence *why)
{
    cairn_status status = CAIRN_ERR_NO_MEMORY;
    struct holder *holders = calloc((size_t)world + 1, sizeof *holders);
    struct cover c = { .why = why, .held = calloc((size_t)world + 1, sizeof *c.held) };
    if (holders != NULL && c.held != NULL) {
        for (uint32_t r = 0; r < world; r++)
            holders[r] = (struct holder) { of_rank[r], cairn_tiles_hash(of_rank[r]), r };
        const uint32_t count = join_holders(holders, world);
        status = CAIRN_OK;
        for (size_t t = 0; status == CAIRN_OK && t < spec->tensor_count; t++) {
            c.tensor = &spec->tensors[t];
            if (c.tensor->alias_of != NULL) continue; // it stands under its target's name
            status = cover_tensor(&c, gather(&c, (uint32_t)t, holders, count));
        }
    }
    free(holders);
    free(c.held);
    return status;
}
