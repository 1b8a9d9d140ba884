/* A re-plan: each shard keeps quanta up to its share, and all other quanta become free (plan_place.c). If the
 * layout would have too many pieces, less is kept. */
#include "proto/plan/plan_private.h"

#include <stdlib.h>
#include <string.h>

/* The held table in pieces: neighbouring extents on one shard are joined into one piece. */
struct keeping {
    struct plan_cut *cut;     /* borrowed */
    const struct layout *old; /* borrowed */
    /* owned: [pieces.count], in canonical order, because the order of the tensor list must not matter here
     * either */
    struct extent_list pieces;
    /* owned: [pieces.count]: how many quanta each piece sheds at its beginning (front) and at its end
     * (back) */
    uint64_t *front, *back;
    /* owned: [pieces.count]: indices of pieces, sorted by old shard, then in canonical order */
    size_t *of_shard;
    /* owned: [old shards + 1]: where the pieces of each old shard begin in of_shard */
    size_t *begin;
    struct weighed *extras; /* owned: [pieces.count]: memory for the extra pieces of one shard */
    uint32_t *old_of; /* owned: [shard_count]: the old number of each shard, or CAIRN_SHARD_GONE */
};

struct weighed {
    uint64_t bytes;
    size_t piece;
};

uint32_t plan_renumber(const struct plan_request *request, uint32_t old)
{
    if (request->renumbered != NULL) return request->renumbered[old];
    return old < request->shard_count ? old : CAIRN_SHARD_GONE;
}

static cairn_status number_shards(struct keeping *k)
{
    const struct plan_request *request = k->cut->request;
    for (uint32_t s = 0; s < request->shard_count; s++) k->old_of[s] = CAIRN_SHARD_GONE;
    for (uint32_t old = 0; old < k->old->shard_count; old++) {
        const uint32_t s = plan_renumber(request, old);
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
    const cairn_status status = plan_sort(&k->pieces, k->cut->rank, k->old->tensor_count);
    if (status == CAIRN_OK) plan_join(&k->pieces);
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

static void release_keeping(struct keeping *k)
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
    const struct extent *e = &k->pieces.items[i];
    return plan_bytes(k->cut, e->tensor, e->first_quantum + k->front[i], quanta_left(k, i));
}

static int is_neighbour(const struct keeping *k, size_t i, size_t j)
{
    return i < k->pieces.count && j < k->pieces.count &&
           k->pieces.items[i].tensor == k->pieces.items[j].tensor;
}

/* is_free_before: true if the quanta just before the piece, in the same tensor, are free. is_free_behind:
 * true if the quanta just after it are free. */
static int is_free_before(const struct keeping *k, size_t i)
{
    return i > 0 && is_neighbour(k, i - 1, i) && (k->back[i - 1] > 0 || quanta_left(k, i - 1) == 0);
}

static int is_free_behind(const struct keeping *k, size_t i)
{
    return is_neighbour(k, i + 1, i) && (k->front[i + 1] > 0 || quanta_left(k, i + 1) == 0);
}

/* Sheds as many quanta of the piece as have at most `limit` bytes. They are taken from the front of the
 * piece if the quanta before it are free and those after it are not; else they are taken from its end.
 * Returns the bytes of these quanta. */
static uint64_t shed_some(struct keeping *k, size_t i, uint64_t limit)
{
    const struct plan_cut *cut = k->cut;
    const struct extent *e = &k->pieces.items[i];
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
        return plan_bytes(cut, e->tensor, first, quanta);
    }
    // The tensor's last quantum may be short, and then one more fits.
    if (plan_bytes(cut, e->tensor, first + count - quanta - 1, quanta + 1) <= limit) quanta++;
    k->back[i] += quanta;
    return plan_bytes(cut, e->tensor, first + count - quanta, quanta);
}

/* --- what a shard sheds --------------------------------------------------------------------------- */

/* The pieces of one old shard, in a ring that begins at `start`. Each shard has another `start`, so that
 * not all shards shed the same units. */
struct ring {
    const size_t *pieces; /* [count] */
    size_t start, count;
    uint64_t left; /* bytes that are still to be shed */
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
        .start = (size_t)plan_scale(count, old, k->old->shard_count),
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

/* Lists all pieces of a tensor except the largest one. The tensor's pieces are [first, end) of the shard's
 * pieces. Returns how many pieces the list has now. */
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

/* The first step of shedding: whole pieces, the smallest first, but not the largest piece of each
 * tensor. */
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

/* The second step: whole pieces, spread in proportion over the shard's bytes. If a piece has at least twice
 * the bytes of a shard's part of its unit, only the end of the piece may be shed, in 256 KiB or more. */
static void shed_evenly(struct keeping *k, struct ring *ring)
{
    uint64_t all = 0, passed = 0, shed = 0;
    const uint64_t budget = ring->left;
    for (size_t n = 0; n < ring->count; n++) all += bytes_left(k, ring->pieces[n]);
    for (size_t n = 0; n < ring->count && all > 0; n++) {
        const size_t i = ring_at(ring, n);
        const uint64_t bytes = bytes_left(k, i);
        passed += bytes;
        const uint64_t owed = plan_scale(budget, passed, all) - shed;
        const uint64_t part = plan_part_bytes(k->cut, k->pieces.items[i].tensor);
        if (bytes == 0) continue;
        if (owed >= bytes || (bytes >= 2 * part && owed >= CAIRN_SPREAD_PIECE_BYTES))
            shed += shed_some(k, i, owed);
    }
    ring->left = budget - shed;
}

/* The last step: sheds until less than a quantum is left to shed. With only_beside_free, sheds only from
 * pieces that have free quanta beside them. */
static void shed_rest(struct keeping *k, struct ring *ring, int only_beside_free)
{
    for (size_t n = ring->count; n-- > 0 && ring->left >= k->cut->quantum_bytes_max;) {
        const size_t i = ring_at(ring, n);
        if (quanta_left(k, i) == 0) continue;
        if (only_beside_free && !is_free_before(k, i) && !is_free_behind(k, i)) continue;
        ring->left -= shed_some(k, i, ring->left);
    }
}

/* Sheds at most `budget` bytes of a shard. The bytes that remain of the budget are fewer than those of the
 * heaviest quantum. Returns how many bytes it shed. */
static uint64_t shed_bytes(struct keeping *k, uint32_t old, uint64_t budget)
{
    struct ring ring = ring_of(k, old, budget);
    shed_extras(k, &ring);
    shed_evenly(k, &ring);
    shed_rest(k, &ring, 1);
    shed_rest(k, &ring, 0);
    return budget - ring.left;
}

/* Makes each shard above its share shed the surplus. If a shard cannot shed all of it, because its quanta
 * are too big, the next shard above its share sheds the rest. The sum of the shed bytes is thus never above
 * the sum of the surplus, and at most one quantum below. */
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
        const uint32_t s = plan_renumber(k->cut->request, k->pieces.items[i].shard);
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

/* True if there is nothing to do: no quantum is free, no shard is further than a quantum from its share,
 * and shards without a share have nothing. */
static int is_level_keep(const struct plan_cut *cut)
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
    return plan_append(&cut->free_runs, (struct extent) { tensor, 0, first, count });
}

static cairn_status split_pieces(const struct keeping *k)
{
    cairn_status status = CAIRN_OK;
    for (size_t i = 0; i < k->pieces.count && status == CAIRN_OK; i++) {
        struct extent kept = k->pieces.items[i];
        const uint64_t first = kept.first_quantum, end = first + kept.quantum_count;
        kept.shard = plan_renumber(k->cut->request, kept.shard);
        kept.first_quantum += k->front[i];
        kept.quantum_count = quanta_left(k, i);
        status = add_free(k->cut, kept.tensor, first, k->front[i]);
        if (kept.quantum_count > 0 && status == CAIRN_OK)
            status = plan_append(&k->cut->table, kept);
        if (status == CAIRN_OK)
            status = add_free(k->cut, kept.tensor, end - k->back[i], k->back[i]);
    }
    return status;
}

cairn_status plan_keep(struct plan_cut *cut)
{
    struct keeping k = { .cut = cut, .old = cut->request->held };
    cairn_status status = join_pieces(&k);
    if (status == CAIRN_OK) status = number_shards(&k);
    if (status == CAIRN_OK) {
        list_by_shard(&k);
        weigh_old_loads(&k);
        if (!is_level_keep(cut)) shed_surplus(&k);
        status = split_pieces(&k);
    }
    release_keeping(&k);
    return status;
}

/* ==== plan gather ==== */

/* Counts the pieces and the files of a layout. If there are more than CAIRN_PLAN_PIECES_MOST times those of
 * the fresh table, makes a re-plan that keeps less. It keeps nothing of the tensors that have the most
 * pieces for their bytes, and places these tensors afresh. It chooses as few tensors as bring the layout so
 * far below the limit that it will not reach the limit again soon. If these do not suffice, it chooses
 * more, and in the end all tensors, which gives the fresh table. */

/* The most pieces and files that the whole layout shall have, in quarters of those of the fresh table. Each
 * goal is one try. */
static const uint64_t goals[] = { 7, 6, 4 };
#define GOAL_COUNT (sizeof goals / sizeof goals[0])

struct tensor_pieces {
    uint32_t tensor;
    uint64_t bytes;
    uint64_t pieces, more; /* more: how many more pieces than in the fresh table */
    uint64_t most;         /* the most pieces that lie on one shard */
    const char *name;      /* borrowed */
};

/* The pieces that lie on one shard. `tensor` is the tensor that is being counted, and `count` is the number
 * of its pieces. */
struct shard_pieces {
    uint32_t tensor;      /* number of the tensor + 1 */
    uint64_t count, most; /* most: the most pieces of one tensor that the shard is to have */
    uint64_t all;         /* the most pieces of one tensor that the shard has in the layout */
    uint64_t cost;        /* bytes that must be placed afresh to make `most` one less */
    int is_done;
};

struct gathering {
    const struct plan_request *request; /* borrowed */
    struct plan_report fresh;

    /* owned */
    struct tensor_pieces *tensors; /* [tensor_count] */
    struct shard_pieces *shards;   /* [shard_count] */
    uint8_t *afresh;               /* [tensor_count] */
};

/* --- counting ------------------------------------------------------------------------------------ */

/* True if a piece begins with the extent. */
static int is_piece(const struct layout *layout, size_t e)
{
    const struct extent *x = &layout->extents[e];
    return e == layout->tensor_extents[x->tensor] || x[-1].shard != x->shard;
}

static void count_piece(const struct layout *layout, size_t e, struct shard_pieces *shard)
{
    const uint32_t tensor = layout->extents[e].tensor + 1;
    if (!is_piece(layout, e)) return;
    if (shard->tensor != tensor) shard->count = 0;
    shard->tensor = tensor;
    shard->count++;
}

/* Counts the pieces of one tensor. Also counts, in `shards`, how many of them lie on each shard. */
static struct tensor_pieces count_tensor(const struct layout *layout, uint32_t tensor,
                                         struct shard_pieces *shards)
{
    struct tensor_pieces out = { .tensor = tensor };
    for (size_t e = layout->tensor_extents[tensor]; e < layout->tensor_extents[tensor + 1]; e++) {
        struct shard_pieces *shard = &shards[layout->extents[e].shard];
        count_piece(layout, e, shard);
        if (is_piece(layout, e)) out.pieces++;
        if (shard->count > shard->all) shard->all = shard->count;
        if (shard->count > out.most) out.most = shard->count;
    }
    return out;
}

cairn_status plan_count(const struct layout *layout, struct plan_report *report)
{
    struct shard_pieces *shards = calloc(layout->shard_count, sizeof *shards);
    if (shards == NULL) return CAIRN_ERR_NO_MEMORY;
    report->pieces = report->files = 0;
    for (uint32_t t = 0; t < layout->tensor_count; t++)
        report->pieces += count_tensor(layout, t, shards).pieces;
    for (uint32_t s = 0; s < layout->shard_count; s++) report->files += shards[s].all;
    free(shards);
    return CAIRN_OK;
}

static int is_within(const struct gathering *g, const struct plan_report *report)
{
    return report->pieces <= CAIRN_PLAN_PIECES_MOST * g->fresh.pieces &&
           report->files <= CAIRN_PLAN_PIECES_MOST * g->fresh.files;
}

/* --- which tensors are placed afresh -------------------------------------------------------------- */

/* Sorts tensors: those with the most surplus pieces for their bytes come first. */
static int compare_tensors(const void *a, const void *b)
{
    const struct tensor_pieces *x = a, *y = b;
    const unsigned __int128 more_x = (unsigned __int128)x->more * y->bytes,
                            more_y = (unsigned __int128)y->more * x->bytes;
    if (more_x != more_y) return more_x > more_y ? -1 : 1;
    return strcmp(x->name, y->name);
}

static void count_all(struct gathering *g, const struct layout *layout, const struct layout *fresh)
{
    const struct layout_tensor *tensors = g->request->tensors;
    memset(g->shards, 0, layout->shard_count * sizeof *g->shards);
    for (uint32_t t = 0; t < layout->tensor_count; t++)
        g->tensors[t] = count_tensor(fresh, t, g->shards);
    memset(g->shards, 0, layout->shard_count * sizeof *g->shards);
    for (uint32_t t = 0; t < layout->tensor_count; t++) {
        const uint64_t usual = g->tensors[t].pieces;
        g->tensors[t] = count_tensor(layout, t, g->shards);
        g->tensors[t].more = g->tensors[t].pieces > usual ? g->tensors[t].pieces - usual : 0;
        g->tensors[t].bytes = layout->geometry[t].elems * tensors[t].elem_bytes;
        g->tensors[t].name = tensors[t].name;
    }
    if (layout->tensor_count > 0)
        qsort(g->tensors, layout->tensor_count, sizeof *g->tensors, compare_tensors);
}

/* Computes each shard's cost: the bytes of all tensors that must be placed afresh for the shard to have one
 * file less. */
static void weigh_files(struct gathering *g, const struct layout *layout)
{
    for (uint32_t s = 0; s < layout->shard_count; s++) g->shards[s].cost = g->shards[s].tensor = 0;
    for (uint32_t n = 0; n < layout->tensor_count; n++) {
        const struct tensor_pieces *tensor = &g->tensors[n];
        const uint32_t t = tensor->tensor;
        if (g->afresh[t] || tensor->most < 2) continue;
        for (size_t e = layout->tensor_extents[t]; e < layout->tensor_extents[t + 1]; e++) {
            struct shard_pieces *shard = &g->shards[layout->extents[e].shard];
            count_piece(layout, e, shard);
        }
        for (size_t e = layout->tensor_extents[t]; e < layout->tensor_extents[t + 1]; e++) {
            struct shard_pieces *shard = &g->shards[layout->extents[e].shard];
            if (shard->tensor == t + 1 && shard->count >= shard->most) shard->cost += tensor->bytes;
            shard->tensor = 0; // the shard's cost gets the tensor's bytes only once
        }
    }
}

/* Returns the shard that can have one file less at the lowest cost; shard_count: there is no such shard. */
static uint32_t cheapest(const struct gathering *g, uint32_t shard_count)
{
    uint32_t best = shard_count;
    for (uint32_t s = 0; s < shard_count; s++)
        if (g->shards[s].most > 1 && !g->shards[s].is_done &&
            (best == shard_count || g->shards[s].cost < g->shards[best].cost))
            best = s;
    return best;
}

/* Has the tensors with the most pieces on this shard placed afresh: marks them all in g->afresh. */
static void free_most(struct gathering *g, const struct layout *layout, uint32_t shard)
{
    for (uint32_t n = 0; n < layout->tensor_count; n++) {
        const uint32_t t = g->tensors[n].tensor;
        uint64_t count = 0;
        if (g->tensors[n].most < g->shards[shard].most) continue;
        for (size_t e = layout->tensor_extents[t]; e < layout->tensor_extents[t + 1]; e++)
            if (layout->extents[e].shard == shard && is_piece(layout, e)) count++;
        if (count >= g->shards[shard].most) g->afresh[t] = 1;
    }
    g->shards[shard].most--;
}

/* Chooses tensors until there are at most `goal` files. Assumes that a tensor that is placed afresh has one
 * piece on each shard. */
static void choose_by_files(struct gathering *g, const struct layout *layout, uint64_t goal)
{
    uint64_t files = 0;
    for (uint32_t s = 0; s < layout->shard_count; s++)
        files += g->shards[s].most = g->shards[s].all;
    while (files > goal) {
        const uint32_t at_once = layout->shard_count / 16 + 1;
        weigh_files(g, layout);
        for (uint32_t s = 0; s < layout->shard_count; s++) g->shards[s].is_done = 0;
        for (uint32_t i = 0; i < at_once && files > goal; i++) {
            const uint32_t shard = cheapest(g, layout->shard_count);
            if (shard == layout->shard_count) {
                if (i == 0) return; // every shard has only one file
                break;
            }
            g->shards[shard].is_done = 1;
            free_most(g, layout, shard);
            files--;
        }
    }
}

static uint32_t choose(struct gathering *g, const struct layout *layout, uint64_t quarters)
{
    const uint64_t goal = g->fresh.pieces * quarters / 4;
    uint64_t pieces = layout_pieces(layout);
    uint32_t count = 0;
    memset(g->afresh, 0, layout->tensor_count);
    choose_by_files(g, layout, g->fresh.files * quarters / 4);
    for (uint32_t n = 0; n < layout->tensor_count; n++)
        if (g->afresh[g->tensors[n].tensor]) pieces -= g->tensors[n].more;
    for (uint32_t n = 0; n < layout->tensor_count && pieces > goal && g->tensors[n].more > 0; n++) {
        if (g->afresh[g->tensors[n].tensor]) continue;
        g->afresh[g->tensors[n].tensor] = 1;
        pieces -= g->tensors[n].more;
    }
    for (uint32_t t = 0; t < layout->tensor_count; t++) count += g->afresh[t];
    return count;
}

/* --- the course of it ----------------------------------------------------------------------------- */

static cairn_status try_goals(struct gathering *g, const struct layout *least,
                              struct layout **layout_out, struct plan_report *report)
{
    cairn_status status = CAIRN_OK;
    for (size_t i = 0; i < GOAL_COUNT && status == CAIRN_OK; i++) {
        const uint32_t count = choose(g, least, goals[i]);
        status = plan_make_once(g->request, g->afresh, layout_out, report);
        report->afresh_count = count;
        if (status != CAIRN_OK || is_within(g, report)) return status;
        layout_close(*layout_out);
        *layout_out = NULL;
    }
    return status;
}

static cairn_status gather(struct gathering *g, const struct layout *least, struct layout *fresh,
                           struct layout **layout_out, struct plan_report *report)
{
    const uint32_t tensors = g->request->tensor_count;
    g->tensors = calloc((size_t)tensors + 1, sizeof *g->tensors);
    g->shards = calloc(least->shard_count, sizeof *g->shards);
    g->afresh = calloc((size_t)tensors + 1, sizeof *g->afresh);
    const int got_all = g->tensors != NULL && g->shards != NULL && g->afresh != NULL;
    cairn_status status = got_all ? CAIRN_OK : CAIRN_ERR_NO_MEMORY;
    if (got_all) {
        count_all(g, least, fresh);
        status = try_goals(g, least, layout_out, report);
    }
    free(g->tensors);
    free(g->shards);
    free(g->afresh);
    return status;
}

cairn_status plan_gather(const struct plan_request *request, struct layout **layout,
                         struct plan_report *report)
{
    struct gathering g = { .request = request };
    struct plan_request afresh = *request;
    struct layout *fresh = NULL, *other = NULL;
    struct plan_report of_other;
    afresh.free = CAIRN_FREE_ALL;
    cairn_status status = plan_make_once(&afresh, NULL, &fresh, &g.fresh);
    if (status != CAIRN_OK) return status;
    if (!is_within(&g, report)) {
        status = gather(&g, *layout, fresh, &other, &of_other);
        if (status == CAIRN_OK && other == NULL) {
            other = fresh;
            fresh = NULL;
            of_other = g.fresh;
            of_other.afresh_count = request->tensor_count;
        }
    }
    layout_close(fresh);
    if (other != NULL) {
        layout_close(*layout);
        *layout = other;
        *report = of_other;
    }
    report->pieces_fresh = g.fresh.pieces;
    report->files_fresh = g.fresh.files;
    return status;
}
