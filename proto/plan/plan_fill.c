/* Places the quanta that a re-plan frees on the receivers, in as few pieces as level them. A unit's
 * free quanta are handed out in parts as large as a shard's part of the unit in a fresh table.
 * Where some receiver still wants as much as a part has, the part goes there whole: to a receiver
 * that has the part's neighbour in the tensor, so that the two are one piece; else to one that has
 * nothing of the unit yet, else to one that has nothing of the tensor. Where none wants so much,
 * one is filled up from the part, and the rest is placed next: each cut fills a receiver, so there
 * are fewer cuts than receivers. A unit is cut no further than it may be. */
#include "proto/plan/plan_cut.h"

#include <stdlib.h>

#define CANDIDATES_MAX 8 /* the neediest receivers that are looked at */

struct filling {
    struct placing *p; /* borrowed, as the cut */
    struct plan_cut *cut;
    size_t kept_count;   /* the first ones of the table were kept, in canonical order */
    uint32_t *unit_at;   /* owned: [shard_count], the last unit, from 1, known to be there */
    uint32_t *tensor_at; /* owned: [shard_count], likewise */
    uint64_t slack;      /* bytes that a receiver may get more than it wants */
    const struct free_unit *unit; /* being placed */
    uint32_t *given_at;           /* owned: [shard_count], the last unit, from 1, that went there */
    uint32_t used;                /* receivers that the unit has gone to: p->window */
};

/* The quanta of a free run that are still to be placed, and the shards that have its neighbours. */
struct rest {
    uint32_t tensor;
    uint64_t first, count;
    uint32_t before, behind; /* CAIRN_SHARD_GONE: nobody */
};

/* --- what was kept ------------------------------------------------------------------------------- */

static uint64_t rank_of(const struct filling *f, size_t n)
{
    return f->cut->rank[f->cut->table.items[n].tensor];
}

/* The first kept piece that ends behind the quantum of the tensor of that rank, or stands in a later one. */
static size_t find_kept(const struct filling *f, uint64_t rank, uint64_t quantum)
{
    size_t low = 0, high = f->kept_count;
    while (low < high) {
        const size_t middle = low + (high - low) / 2;
        const struct cairn_extent *e = &f->cut->table.items[middle];
        const uint64_t at = rank_of(f, middle);
        if (at < rank || (at == rank && e->first_quantum + e->quantum_count <= quantum))
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static uint32_t keeper_of(const struct filling *f, uint32_t tensor, uint64_t quantum)
{
    const size_t n = find_kept(f, f->cut->rank[tensor], quantum);
    if (n == f->kept_count) return CAIRN_SHARD_GONE;
    const struct cairn_extent *e = &f->cut->table.items[n];
    return e->tensor == tensor && e->first_quantum <= quantum ? e->shard : CAIRN_SHARD_GONE;
}

static void mark_tensor(struct filling *f, uint32_t tensor)
{
    for (size_t n = find_kept(f, f->cut->rank[tensor], 0);
         n < f->kept_count && f->cut->table.items[n].tensor == tensor; n++)
        f->tensor_at[f->cut->table.items[n].shard] = tensor + 1;
}

/* The tensors of a unit follow each other in canonical order. */
static void mark_unit(struct filling *f)
{
    const struct plan_cut *cut = f->cut;
    uint64_t rank = cut->rank[cut->free_runs.items[f->unit->first_run].tensor];
    while (rank > 0 && cut->unit_of[cut->order[rank - 1]] == f->unit->number) rank--;
    for (size_t n = find_kept(f, rank, 0);
         n < f->kept_count && cut->unit_of[cut->table.items[n].tensor] == f->unit->number; n++)
        f->unit_at[cut->table.items[n].shard] = f->unit->number + 1;
}

/* --- who gets it --------------------------------------------------------------------------------- */

static int wants(const struct filling *f, uint32_t shard, uint64_t bytes)
{
    return cairn_plan_need(f->cut, shard) + (int64_t)f->slack >= (int64_t)bytes;
}

static int is_receiver(const struct filling *f, uint32_t shard)
{
    return shard != CAIRN_SHARD_GONE && f->cut->shards[shard].want > 0;
}

/* The needier one of those beside it that want `bytes`. */
static uint32_t neighbour_that_wants(const struct filling *f, const struct rest *rest,
                                     uint64_t bytes)
{
    const int before = is_receiver(f, rest->before) && wants(f, rest->before, bytes);
    const int behind = is_receiver(f, rest->behind) && wants(f, rest->behind, bytes);
    if (before && behind)
        return cairn_plan_need(f->cut, rest->before) >= cairn_plan_need(f->cut, rest->behind)
                   ? rest->before
                   : rest->behind;
    return before ? rest->before : behind ? rest->behind : CAIRN_SHARD_GONE;
}

/* For a tensor of which nothing is kept: the shard that had the middle of the part, if it wants the
 * part, and got nothing of the unit yet. */
static uint32_t holder_that_wants(const struct filling *f, const struct rest *rest, uint64_t quanta,
                                  uint64_t bytes)
{
    const struct plan_cut *cut = f->cut;
    if (cut->afresh == NULL || !cut->afresh[rest->tensor]) return CAIRN_SHARD_GONE;
    const uint64_t leaf = cairn_quantum_first_leaf(&cut->geometry[rest->tensor],
                                                   rest->first + quanta / 2);
    const uint32_t holder = cairn_plan_renumber(
        cut->request, cairn_layout_find(cut->request->previous, rest->tensor, leaf)->shard);
    return is_receiver(f, holder) && f->unit_at[holder] != f->unit->number + 1 &&
                   wants(f, holder, bytes)
               ? holder
               : CAIRN_SHARD_GONE;
}

/* One of the neediest receivers that wants `bytes`: best one with nothing of the unit or of the
 * tensor yet. */
static uint32_t needy_that_wants(struct filling *f, uint32_t tensor, uint64_t bytes)
{
    uint32_t looked[CANDIDATES_MAX], count = 0, best = CAIRN_SHARD_GONE;
    int best_rating = -1;
    while (count < CANDIDATES_MAX && f->p->heap_count > 0) {
        const uint32_t s = cairn_plan_heap_pop(f->p);
        looked[count++] = s;
        if (!wants(f, s, bytes)) break; // nor do those behind it
        const int rating = (f->unit_at[s] != f->unit->number + 1) + (f->tensor_at[s] != tensor + 1);
        if (rating <= best_rating) continue;
        best = s;
        best_rating = rating;
    }
    while (count > 0) cairn_plan_heap_push(f->p, looked[--count]);
    return best;
}

/* --- handing out --------------------------------------------------------------------------------- */

/* The shard's need is another one now: the heap is made anew around it. */
static void settle_heap(struct filling *f, uint32_t shard)
{
    struct placing *p = f->p;
    uint32_t i = 0;
    while (i < p->heap_count && p->heap[i] != shard) i++;
    if (i == p->heap_count) return;
    cairn_plan_heap_sink(p, i);
}

/* Gives the shard `quanta` of the rest: from its end, if the shard has what stands behind it. */
static void give(struct filling *f, struct rest *rest, uint64_t quanta, uint32_t shard)
{
    struct plan_cut *cut = f->cut;
    const int from_end = shard == rest->behind && shard != rest->before;
    const uint64_t first = from_end ? rest->first + rest->count - quanta : rest->first;
    const uint64_t bytes = cairn_plan_bytes(cut, rest->tensor, first, quanta);
    const cairn_status status = cairn_plan_append(
        &cut->table, (struct cairn_extent) { rest->tensor, shard, first, quanta });
    if (status != CAIRN_OK) f->p->status = status;
    if (!from_end) rest->first += quanta;
    if (!from_end) rest->before = CAIRN_SHARD_GONE; // the next part shall go elsewhere
    if (from_end) rest->behind = CAIRN_SHARD_GONE;
    rest->count -= quanta;
    cut->shards[shard].load += bytes;
    cut->free_bytes -= bytes;
    if (f->given_at[shard] != f->unit->number + 1) f->p->window[f->used++] = shard;
    f->given_at[shard] = f->unit->number + 1;
    f->unit_at[shard] = f->unit->number + 1;
    f->tensor_at[shard] = rest->tensor + 1;
    settle_heap(f, shard);
}

static uint32_t neediest_used(const struct filling *f)
{
    uint32_t best = f->p->window[0];
    for (uint32_t i = 1; i < f->used; i++)
        if (cairn_plan_need(f->cut, f->p->window[i]) > cairn_plan_need(f->cut, best))
            best = f->p->window[i];
    return best;
}

/* Nobody wants all of it: the neediest one, or one beside it that wants a good part, is filled up. A unit
 * that is on as many as it may be goes on with those. */
static void fill_one(struct filling *f, struct rest *rest, uint64_t quanta)
{
    const int is_spread = f->used >= f->unit->may_use;
    const uint64_t bytes = cairn_plan_bytes(f->cut, rest->tensor, rest->first, quanta);
    uint32_t shard = is_spread ? neediest_used(f)
                               : neighbour_that_wants(f, rest, bytes / 4 + f->slack);
    if (shard == CAIRN_SHARD_GONE) shard = f->p->heap[0];
    const int64_t need = cairn_plan_need(f->cut, shard);
    uint64_t some = need <= 0 ? 0
                              : cairn_plan_nearest(f->cut, rest->tensor, rest->first, quanta,
                                                   (uint64_t)need);
    if (some == 0 || f->unit->may_use == 1) some = quanta;
    give(f, rest, some, shard);
}

/* Quanta of the rest that go on as a part: all, if they are not much more than one. */
static uint64_t part_of(const struct filling *f, const struct rest *rest)
{
    const struct plan_cut *cut = f->cut;
    const uint64_t part = cairn_plan_part_bytes(cut, rest->tensor);
    const uint64_t bytes = cairn_plan_bytes(cut, rest->tensor, rest->first, rest->count);
    if (bytes / 3 * 2 <= part || f->unit->may_use == 1) return rest->count;
    const uint64_t quanta = cairn_plan_nearest(cut, rest->tensor, rest->first, rest->count, part);
    return quanta == 0 ? 1 : quanta;
}

static void hand_out(struct filling *f, const struct cairn_extent *run)
{
    struct rest rest = { run->tensor, run->first_quantum, run->quantum_count, CAIRN_SHARD_GONE,
                         keeper_of(f, run->tensor, run->first_quantum + run->quantum_count) };
    if (rest.first > 0) rest.before = keeper_of(f, rest.tensor, rest.first - 1);
    mark_tensor(f, rest.tensor);
    while (rest.count > 0) {
        const uint64_t quanta = part_of(f, &rest);
        const uint64_t bytes = cairn_plan_bytes(f->cut, rest.tensor, rest.first, quanta);
        uint32_t shard = CAIRN_SHARD_GONE;
        if (f->used < f->unit->may_use) {
            shard = neighbour_that_wants(f, &rest, bytes);
            if (shard == CAIRN_SHARD_GONE) shard = holder_that_wants(f, &rest, quanta, bytes);
            if (shard == CAIRN_SHARD_GONE) shard = needy_that_wants(f, rest.tensor, bytes);
        }
        if (shard == CAIRN_SHARD_GONE)
            fill_one(f, &rest, quanta);
        else
            give(f, &rest, quanta, shard);
    }
}

/* --- all ----------------------------------------------------------------------------------------- */

/* Units that may use few receivers first: those that may use more level what the others leave. */
static int compare_units(const void *a, const void *b)
{
    const struct free_unit *x = *(struct free_unit *const *)a, *y = *(struct free_unit *const *)b;
    if (x->may_use != y->may_use) return x->may_use < y->may_use ? -1 : 1;
    if (x->bytes != y->bytes) return x->bytes > y->bytes ? -1 : 1;
    return x->number < y->number ? -1 : 1;
}

static void fill_all(struct filling *f)
{
    struct placing *p = f->p;
    for (size_t u = 0; u < p->unit_count; u++) p->sorted[u] = &p->units[u];
    qsort(p->sorted, p->unit_count, sizeof(struct free_unit *), compare_units);
    p->heap_count = 0;
    for (uint32_t i = 0; i < f->cut->receiver_count; i++)
        cairn_plan_heap_push(p, f->cut->receivers[i]);
    for (size_t u = 0; u < p->unit_count; u++) {
        f->unit = p->sorted[u];
        f->used = 0;
        mark_unit(f);
        for (size_t r = 0; r < f->unit->run_count; r++)
            hand_out(f, &f->cut->free_runs.items[f->unit->first_run + r]);
    }
}

/* No receiver is further than a quantum from what it wants. */
static int is_level(const struct plan_cut *cut)
{
    for (uint32_t i = 0; i < cut->receiver_count; i++) {
        const int64_t need = cairn_plan_need(cut, cut->receivers[i]);
        if ((uint64_t)(need < 0 ? -need : need) > cut->quantum_bytes_max) return 0;
    }
    return 1;
}

/* As before anything was placed: base is what each had. */
static void take_all_back(struct filling *f, struct cairn_extent last)
{
    struct plan_cut *cut = f->cut;
    cut->table.count = f->kept_count;
    if (f->kept_count > 0) cut->table.items[f->kept_count - 1] = last; // joined, perhaps
    cut->free_bytes = cut->levelled_bytes;
    for (uint32_t i = 0; i < cut->receiver_count; i++)
        cut->shards[cut->receivers[i]].load = cut->shards[cut->receivers[i]].base;
}

int cairn_plan_fill(struct placing *p)
{
    struct plan_cut *cut = p->cut;
    struct filling f = { .p = p, .cut = cut, .kept_count = cut->table.count };
    struct cairn_extent last = { 0, 0, 0, 0 };
    if (f.kept_count > 0) last = cut->table.items[f.kept_count - 1];
    f.slack = cut->quantum_bytes_max / 2;
    f.unit_at = calloc(cut->request->shard_count, sizeof *f.unit_at);
    f.tensor_at = calloc(cut->request->shard_count, sizeof *f.tensor_at);
    f.given_at = calloc(cut->request->shard_count, sizeof *f.given_at);
    if (f.unit_at != NULL && f.tensor_at != NULL && f.given_at != NULL)
        fill_all(&f);
    else
        p->status = CAIRN_ERR_NO_MEMORY;
    free(f.unit_at);
    free(f.tensor_at);
    free(f.given_at);
    if (p->status != CAIRN_OK || is_level(cut)) return 1;
    take_all_back(&f, last);
    return 0;
}
