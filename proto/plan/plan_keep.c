/* A re-plan keeps quanta on every shard up to its share, and frees the rest. */
#include "proto/plan/plan_cut.h"

#include <stdlib.h>
#include <string.h>

/* The previous table in pieces: neighbours of one shard are one, however many extents they came in. */
struct keeping {
    struct plan_cut *cut;           /* borrowed */
    const struct cairn_layout *old; /* borrowed */
    /* owned: [.count], in canonical order: the order of the list must not matter here either */
    struct extent_list pieces;
    uint64_t *front,
        *back;        /* owned: [pieces], quanta that each loses at its beginning and its end */
    size_t *of_shard; /* owned: [pieces], numbers of pieces by old shard, then canonical */
    size_t *begin;    /* owned: [old shards + 1], where a shard begins in of_shard */
    struct weighed *extras; /* owned: [pieces], room for one shard's */
    uint32_t *old_of;       /* owned: [shard_count], old number or CAIRN_SHARD_GONE */
};

struct weighed {
    uint64_t bytes;
    size_t piece;
};

uint32_t cairn_plan_renumber(const struct cairn_plan_request *request, uint32_t old)
{
    if (request->renumbered != NULL) return request->renumbered[old];
    return old < request->shard_count ? old : CAIRN_SHARD_GONE;
}

static cairn_status number_shards(struct keeping *k)
{
    const struct cairn_plan_request *request = k->cut->request;
    for (uint32_t s = 0; s < request->shard_count; s++) k->old_of[s] = CAIRN_SHARD_GONE;
    for (uint32_t old = 0; old < k->old->shard_count; old++) {
        const uint32_t s = cairn_plan_renumber(request, old);
        if (s == CAIRN_SHARD_GONE) continue;
        if (s >= request->shard_count || k->old_of[s] != CAIRN_SHARD_GONE) return CAIRN_ERR_INVALID;
        k->old_of[s] = old;
    }
    return CAIRN_OK;
}

static cairn_status join_pieces(struct keeping *k)
{
    const size_t count = k->old->extent_count;
    k->pieces.items = calloc(count + 1, sizeof *k->pieces.items);
    k->front = calloc(count + 1, sizeof *k->front);
    k->back = calloc(count + 1, sizeof *k->back);
    k->of_shard = calloc(count + 1, sizeof *k->of_shard);
    k->begin = calloc((size_t)k->old->shard_count + 1, sizeof *k->begin);
    k->extras = calloc(count + 1, sizeof *k->extras);
    k->old_of = calloc(k->cut->request->shard_count, sizeof *k->old_of);
    if (k->pieces.items == NULL || k->front == NULL || k->back == NULL || k->of_shard == NULL ||
        k->begin == NULL || k->extras == NULL || k->old_of == NULL)
        return CAIRN_ERR_NO_MEMORY;
    memcpy(k->pieces.items, k->old->extents, count * sizeof *k->pieces.items);
    k->pieces.count = k->pieces.limit = count;
    const cairn_status status = cairn_plan_sort(&k->pieces, k->cut->rank, k->old->tensor_count);
    if (status == CAIRN_OK) cairn_plan_join(&k->pieces);
    return status;
}

/* A stable counting sort. */
static void list_by_shard(struct keeping *k)
{
    size_t end = 0;
    for (size_t i = 0; i < k->pieces.count; i++) k->begin[k->pieces.items[i].shard]++;
    for (uint32_t s = 0; s < k->old->shard_count; s++) k->begin[s] = end += k->begin[s];
    k->begin[k->old->shard_count] = end;
    for (size_t i = k->pieces.count; i-- > 0;)
        k->of_shard[--k->begin[k->pieces.items[i].shard]] = i;
}

static void release(struct keeping *k)
{
    free(k->pieces.items);
    free(k->front);
    free(k->back);
    free(k->of_shard);
    free(k->begin);
    free(k->extras);
    free(k->old_of);
}

/* --- what a piece sheds --------------------------------------------------------------------------- */

static uint64_t quanta_left(const struct keeping *k, size_t i)
{
    return k->pieces.items[i].quantum_count - k->front[i] - k->back[i];
}

static uint64_t bytes_left(const struct keeping *k, size_t i)
{
    const struct cairn_extent *e = &k->pieces.items[i];
    return cairn_plan_bytes(k->cut, e->tensor, e->first_quantum + k->front[i], quanta_left(k, i));
}

static int is_neighbour(const struct keeping *k, size_t i, size_t j)
{
    return i < k->pieces.count && j < k->pieces.count &&
           k->pieces.items[i].tensor == k->pieces.items[j].tensor;
}

/* True if the quanta before the piece in its tensor are free, or those behind it. */
static int is_free_before(const struct keeping *k, size_t i)
{
    return i > 0 && is_neighbour(k, i - 1, i) && (k->back[i - 1] > 0 || quanta_left(k, i - 1) == 0);
}

static int is_free_behind(const struct keeping *k, size_t i)
{
    return is_neighbour(k, i + 1, i) && (k->front[i + 1] > 0 || quanta_left(k, i + 1) == 0);
}

/* Sheds the most quanta that weigh `limit` bytes or less, at the end where the free quanta beside
 * the piece already go on, else at the piece's end; returns their bytes. */
static uint64_t shed_some(struct keeping *k, size_t i, uint64_t limit)
{
    const struct plan_cut *cut = k->cut;
    const struct cairn_extent *e = &k->pieces.items[i];
    const uint64_t count = quanta_left(k, i), first = e->first_quantum + k->front[i];
    const uint64_t quantum_bytes = cut->geometry[e->tensor].quantum_elems *
                                   cut->request->tensors[e->tensor].elem_bytes;
    const uint64_t bytes = bytes_left(k, i);
    uint64_t quanta = limit / quantum_bytes;
    if (bytes <= limit) {
        k->back[i] += count;
        return bytes;
    }
    if (is_free_before(k, i) && !is_free_behind(k, i)) {
        k->front[i] += quanta;
        return cairn_plan_bytes(cut, e->tensor, first, quanta);
    }
    // The tensor's last quantum may be short, and then one more fits.
    if (cairn_plan_bytes(cut, e->tensor, first + count - quanta - 1, quanta + 1) <= limit) quanta++;
    k->back[i] += quanta;
    return cairn_plan_bytes(cut, e->tensor, first + count - quanta, quanta);
}

/* --- what a shard sheds --------------------------------------------------------------------------- */

/* The pieces of one old shard, counted around from `start`, so that shards do not all shed the same
 * units. */
struct ring {
    const size_t *pieces; /* [count] */
    size_t start, count;
    uint64_t left; /* bytes still to shed */
};

static size_t ring_at(const struct ring *ring, size_t n)
{
    return ring->pieces[(ring->start + n) % ring->count];
}

static struct ring ring_of(const struct keeping *k, uint32_t old, uint64_t budget)
{
    const size_t first = k->begin[old], count = k->begin[old + 1] - first;
    return (struct ring) {
        .pieces = k->of_shard + first,
        .start = (size_t)cairn_plan_scale(count, old, k->old->shard_count),
        .count = count,
        .left = budget,
    };
}

static int compare_weighed(const void *a, const void *b)
{
    const struct weighed *x = a, *y = b;
    if (x->bytes != y->bytes) return x->bytes < y->bytes ? -1 : 1;
    return x->piece < y->piece ? -1 : x->piece > y->piece;
}

/* Lists all pieces of a tensor but the largest: [first, end) of the shard's. */
static size_t list_extras(struct keeping *k, const struct ring *ring, size_t first, size_t end,
                          size_t count)
{
    size_t largest = first;
    for (size_t n = first; n < end; n++)
        if (bytes_left(k, ring->pieces[n]) > bytes_left(k, ring->pieces[largest])) largest = n;
    for (size_t n = first; n < end; n++) {
        const size_t i = ring->pieces[n];
        if (n != largest) k->extras[count++] = (struct weighed) { bytes_left(k, i), i };
    }
    return count;
}

/* First goes, whole, what a shard has of a tensor beside its largest piece, the smallest first. */
static void shed_extras(struct keeping *k, struct ring *ring)
{
    size_t count = 0;
    for (size_t first = 0, end; first < ring->count; first = end) {
        end = first + 1;
        while (end < ring->count && is_neighbour(k, ring->pieces[first], ring->pieces[end])) end++;
        count = list_extras(k, ring, first, end, count);
    }
    qsort(k->extras, count, sizeof *k->extras, compare_weighed);
    for (size_t n = 0; n < count && k->extras[n].bytes <= ring->left; n++)
        ring->left -= shed_some(k, k->extras[n].piece, k->extras[n].bytes);
}

/* Then along the shard's bytes in proportion: whole pieces, but where one is twice as large as a shard's
 * part of its unit is to be, its end, in 256 KiB or more. */
static void shed_evenly(struct keeping *k, struct ring *ring)
{
    uint64_t all = 0, passed = 0, shed = 0;
    const uint64_t budget = ring->left;
    for (size_t n = 0; n < ring->count; n++) all += bytes_left(k, ring->pieces[n]);
    for (size_t n = 0; n < ring->count && all > 0; n++) {
        const size_t i = ring_at(ring, n);
        const uint64_t bytes = bytes_left(k, i);
        passed += bytes;
        const uint64_t owed = cairn_plan_scale(budget, passed, all) - shed;
        const uint64_t part = cairn_plan_part_bytes(k->cut, k->pieces.items[i].tensor);
        if (bytes == 0) continue;
        if (owed >= bytes || (bytes >= 2 * part && owed >= CAIRN_SPREAD_PIECE_BYTES))
            shed += shed_some(k, i, owed);
    }
    ring->left = budget - shed;
}

/* At last what is still owed, but for less than a quantum: where it goes on in what is free, if it does. */
static void shed_rest(struct keeping *k, struct ring *ring, int only_beside_free)
{
    for (size_t n = ring->count; n-- > 0 && ring->left >= k->cut->quantum_bytes_max;) {
        const size_t i = ring_at(ring, n);
        if (quanta_left(k, i) == 0) continue;
        if (only_beside_free && !is_free_before(k, i) && !is_free_behind(k, i)) continue;
        ring->left -= shed_some(k, i, ring->left);
    }
}

/* Sheds `budget` bytes of a shard at most, and no quantum less. */
static uint64_t shed_bytes(struct keeping *k, uint32_t old, uint64_t budget)
{
    struct ring ring = ring_of(k, old, budget);
    shed_extras(k, &ring);
    shed_evenly(k, &ring);
    shed_rest(k, &ring, 1);
    shed_rest(k, &ring, 0);
    return budget - ring.left;
}

/* Shards over their share shed the surplus. If a shard could not shed some of it because its quanta
 * are too big, the next one tries, so that the sum is right within one quantum and never above the
 * surplus. */
static void shed_surplus(struct keeping *k)
{
    struct plan_cut *cut = k->cut;
    uint64_t carried = 0;
    for (uint32_t s = 0; s < cut->request->shard_count; s++) {
        struct cut_shard *shard = &cut->shards[s];
        if (shard->load < shard->share) cut->receivers[cut->receiver_count++] = s;
        if (shard->load <= shard->share) continue;
        uint64_t budget = shard->load - shard->share + carried;
        if (budget > shard->load) budget = shard->load;
        const uint64_t shed = shed_bytes(k, k->old_of[s], budget);
        carried = shard->load - shard->share + carried - shed;
        shard->load -= shed;
        cut->free_bytes += shed;
    }
}

static void weigh_old_loads(struct keeping *k)
{
    for (size_t i = 0; i < k->pieces.count; i++) {
        const uint32_t s = cairn_plan_renumber(k->cut->request, k->pieces.items[i].shard);
        const uint64_t bytes = bytes_left(k, i);
        const int afresh = k->cut->afresh != NULL && k->cut->afresh[k->pieces.items[i].tensor];
        if (s == CAIRN_SHARD_GONE || afresh) {
            k->back[i] = k->pieces.items[i].quantum_count;
            k->cut->free_bytes += bytes;
        } else {
            k->cut->shards[s].load += bytes;
        }
    }
}

/* Nothing to do: no gone shard had anything, nobody is further than a quantum from its share. */
static int is_level(const struct plan_cut *cut)
{
    if (cut->free_bytes > 0) return 0;
    for (uint32_t s = 0; s < cut->request->shard_count; s++) {
        const struct cut_shard *shard = &cut->shards[s];
        if (shard->load > shard->share + (shard->share > 0 ? cut->quantum_bytes_max : 0)) return 0;
        if (shard->share > shard->load + cut->quantum_bytes_max) return 0;
    }
    return 1;
}

static cairn_status add_free(struct plan_cut *cut, uint32_t tensor, uint64_t first, uint64_t count)
{
    if (count == 0) return CAIRN_OK;
    return cairn_plan_append(&cut->free_runs, (struct cairn_extent) { tensor, 0, first, count });
}

static cairn_status split_pieces(const struct keeping *k)
{
    cairn_status status = CAIRN_OK;
    for (size_t i = 0; i < k->pieces.count && status == CAIRN_OK; i++) {
        struct cairn_extent kept = k->pieces.items[i];
        const uint64_t first = kept.first_quantum, end = first + kept.quantum_count;
        kept.shard = cairn_plan_renumber(k->cut->request, kept.shard);
        kept.first_quantum += k->front[i];
        kept.quantum_count = quanta_left(k, i);
        status = add_free(k->cut, kept.tensor, first, k->front[i]);
        if (kept.quantum_count > 0 && status == CAIRN_OK)
            status = cairn_plan_append(&k->cut->table, kept);
        if (status == CAIRN_OK)
            status = add_free(k->cut, kept.tensor, end - k->back[i], k->back[i]);
    }
    return status;
}

cairn_status cairn_plan_keep(struct plan_cut *cut)
{
    struct keeping k = { .cut = cut, .old = cut->request->previous };
    cairn_status status = join_pieces(&k);
    if (status == CAIRN_OK) status = number_shards(&k);
    if (status == CAIRN_OK) {
        list_by_shard(&k);
        weigh_old_loads(&k);
        if (!is_level(cut)) shed_surplus(&k);
        status = split_pieces(&k);
    }
    release(&k);
    return status;
}
