/* Places free quanta on the receivers: the three ways of a fresh table, and the way of a re-plan (plan.h). */
#include <stdlib.h>
#include <string.h>

#include "proto/plan/plan_private.h"

#define SINGLE_LAP_TRIES 8

/* The free runs of one unit. */
struct free_unit {
    size_t first_run, run_count; /* in plan_cut.free_runs */
    uint64_t bytes;
    uint32_t may_use;
    uint32_t number; /* number of the unit, in the order of the units' names */
};

/* The state of placing free units on the receivers. */
struct placing {
    struct plan_cut *cut;    /* borrowed */
    struct free_unit *units; /* owned: [unit_count] */
    /* owned: [unit_count]: units in the order in which they are placed */
    struct free_unit **sorted;
    struct free_unit **spare; /* owned: [unit_count] */
    uint32_t *heap; /* owned: [receiver_count]: a heap of receivers, with the neediest on top */
    uint32_t heap_count;
    uint32_t *window; /* owned: [receiver_count] */
    uint64_t *pieces; /* owned: [receiver_count]: bytes of each piece */
    /* owned: [receiver_count], 1: the receiver is above the level, so levelling gives it nothing */
    uint8_t *settled;
    size_t unit_count;
    cairn_status status; /* the first failure */
};

/* How much of a unit has been placed. */
struct cursor {
    const struct free_unit *unit;
    size_t run;       /* runs that are placed already */
    uint64_t quantum; /* quanta of the next run that are placed already */
    uint64_t bytes;   /* bytes that are placed already; they end at the edge of a quantum */
};

/* --- cutting ------------------------------------------------------------------------------------ */

/* Returns how many of the quanta [first, first + count) make up `room` bytes most closely. */
static uint64_t nearest_quanta(const struct plan_cut *cut, uint32_t tensor, uint64_t first,
                               uint64_t count, uint64_t room)
{
    if (room >= plan_bytes(cut, tensor, first, count)) return count;
    const uint64_t quantum_bytes = cut->geometry[tensor].quantum_elems *
                                   cut->request->tensors[tensor].elem_bytes;
    const uint64_t quanta = room / quantum_bytes;
    const uint64_t over = room - quanta * quantum_bytes;
    const uint64_t next = plan_bytes(cut, tensor, first + quanta, 1);
    return over >= next - over ? quanta + 1 : quanta;
}

/* Gives the shard the next bytes of the unit, up to the edge of a quantum that is nearest to byte `end` of
 * the unit. Returns how many bytes it gave. A failure is stored in p->status. */
static uint64_t take_next(struct placing *p, struct cursor *at, uint64_t end, uint32_t shard)
{
    struct plan_cut *cut = p->cut;
    const uint64_t begin = at->bytes;
    while (at->run < at->unit->run_count && at->bytes < end) {
        const struct extent *run = &cut->free_runs.items[at->unit->first_run + at->run];
        const uint64_t first = run->first_quantum + at->quantum;
        const uint64_t left = run->quantum_count - at->quantum;
        const uint64_t quanta = nearest_quanta(cut, run->tensor, first, left, end - at->bytes);
        if (quanta == 0) break;
        const cairn_status status = plan_append(
            &cut->table, (struct extent) { run->tensor, shard, first, quanta });
        if (status != CAIRN_OK) p->status = status;
        at->bytes += plan_bytes(cut, run->tensor, first, quanta);
        at->quantum += quanta;
        if (quanta < left) break;
        at->run++;
        at->quantum = 0;
    }
    cut->shards[shard].load += at->bytes - begin;
    cut->free_bytes -= at->bytes - begin;
    return at->bytes - begin;
}

/* Cuts one unit over the shards of p->window, in proportion to p->pieces, or into equal parts if all pieces
 * are 0. */
static void cut_over_window(struct placing *p, const struct free_unit *unit, uint32_t count)
{
    uint64_t sum = 0, passed = 0;
    for (uint32_t i = 0; i < count; i++) sum += p->pieces[i];
    struct cursor at = { .unit = unit };
    for (uint32_t i = 0; i < count; i++) {
        passed += sum == 0 ? 1 : p->pieces[i];
        const uint64_t end = plan_scale(unit->bytes, passed, sum == 0 ? count : sum);
        (void)take_next(p, &at, end, p->window[i]);
    }
}

/* --- goals -------------------------------------------------------------------------------------- */

/* Computes how many of the free bytes each receiver should get, so that in the end the load of all
 * receivers is in proportion to their weights. A receiver above this level gets nothing, which lowers the
 * level of the other receivers. This is repeated until no other receiver is above the level. */
static void level(struct placing *p)
{
    struct plan_cut *cut = p->cut;
    uint64_t bytes = cut->free_bytes, weight = 0;
    for (uint32_t i = 0; i < cut->receiver_count; i++) {
        bytes += cut->shards[cut->receivers[i]].load;
        weight += cut->shards[cut->receivers[i]].weight;
        p->settled[i] = 0;
    }
    for (int changed = 1; changed;) {
        const uint64_t pass_bytes = bytes, pass_weight = weight;
        changed = 0;
        for (uint32_t i = 0; i < cut->receiver_count; i++) {
            const struct cut_shard *shard = &cut->shards[cut->receivers[i]];
            if (p->settled[i]) continue;
            if (shard->load <= plan_scale(pass_bytes, shard->weight, pass_weight)) continue;
            p->settled[i] = 1;
            bytes -= shard->load;
            weight -= shard->weight;
            changed = 1;
        }
    }
    cut->levelled_bytes = cut->free_bytes;
    cut->wanted_bytes = 0;
    for (uint32_t i = 0; i < cut->receiver_count; i++) {
        struct cut_shard *shard = &cut->shards[cut->receivers[i]];
        shard->base = shard->load;
        shard->want = p->settled[i] ? 0 : plan_scale(bytes, shard->weight, weight) - shard->load;
        cut->wanted_bytes += shard->want;
    }
}

/* Returns how many bytes a shard will be below its goal after `bytes` more bytes have been placed. The goal
 * is computed from all bytes that have been placed, so rounding does not add up. */
static uint64_t short_of(const struct plan_cut *cut, uint32_t s, uint64_t bytes)
{
    if (cut->wanted_bytes == 0) return 0;
    const struct cut_shard *shard = &cut->shards[s];
    const uint64_t placed = cut->levelled_bytes - cut->free_bytes + bytes;
    const uint64_t goal = shard->base + plan_scale(shard->want, placed, cut->wanted_bytes);
    return goal > shard->load ? goal - shard->load : 0;
}

/* --- 1. stiff units: the neediest shards, largest pieces first ----------------------------------- */

/* Returns how many bytes a shard still wants. A negative number means that it has more than it wants. */
static int64_t need_of(const struct plan_cut *cut, uint32_t s)
{
    const struct cut_shard *shard = &cut->shards[s];
    return (int64_t)(shard->base + shard->want) - (int64_t)shard->load;
}

static int needier(const struct plan_cut *cut, uint32_t a, uint32_t b)
{
    const int64_t need_a = need_of(cut, a), need_b = need_of(cut, b);
    return need_a != need_b ? need_a > need_b : a < b;
}

/* The heap has the neediest receiver on top. */
static void heap_push(struct placing *p, uint32_t s)
{
    uint32_t i = p->heap_count++;
    for (; i > 0 && needier(p->cut, s, p->heap[(i - 1) / 2]); i = (i - 1) / 2)
        p->heap[i] = p->heap[(i - 1) / 2];
    p->heap[i] = s;
}

/* Puts the shard into place i of the heap, or further down if a shard there is needier. */
static void heap_sink(struct placing *p, uint32_t i, uint32_t s)
{
    for (uint32_t child = 2 * i + 1; child < p->heap_count; child = 2 * i + 1) {
        if (child + 1 < p->heap_count && needier(p->cut, p->heap[child + 1], p->heap[child]))
            child++;
        if (!needier(p->cut, p->heap[child], s)) break;
        p->heap[i] = p->heap[child];
        i = child;
    }
    p->heap[i] = s;
}

static uint32_t heap_pop(struct placing *p)
{
    const uint32_t top = p->heap[0], last = p->heap[--p->heap_count];
    heap_sink(p, 0, last);
    return top;
}

static void heap_all_receivers(struct placing *p)
{
    p->heap_count = 0;
    for (uint32_t i = 0; i < p->cut->receiver_count; i++) heap_push(p, p->cut->receivers[i]);
}

static int compare_by_piece(const void *a, const void *b)
{
    const struct free_unit *x = *(struct free_unit *const *)a, *y = *(struct free_unit *const *)b;
    const uint64_t piece_x = x->bytes / x->may_use, piece_y = y->bytes / y->may_use;
    if (piece_x != piece_y) return piece_x > piece_y ? -1 : 1;
    return x->number < y->number ? -1 : 1;
}

static void place_stiff(struct placing *p, struct free_unit **units, size_t count)
{
    qsort(units, count, sizeof(struct free_unit *), compare_by_piece);
    heap_all_receivers(p);
    for (size_t u = 0; u < count; u++) {
        const uint32_t may_use = units[u]->may_use;
        for (uint32_t i = 0; i < may_use; i++) {
            p->window[i] = heap_pop(p);
            const int64_t need = need_of(p->cut, p->window[i]);
            p->pieces[i] = need > 0 ? (uint64_t)need : 0;
        }
        cut_over_window(p, units[u], may_use);
        for (uint32_t i = 0; i < may_use; i++) heap_push(p, p->window[i]);
    }
    level(p);
}

/* --- 3. whole units: over every receiver --------------------------------------------------------- */

static void place_whole(struct placing *p, const struct free_unit *unit, uint32_t start)
{
    const uint32_t count = p->cut->receiver_count;
    for (uint32_t i = 0; i < count; i++) {
        p->window[i] = p->cut->receivers[(start + i) % count];
        p->pieces[i] = short_of(p->cut, p->window[i], unit->bytes);
    }
    cut_over_window(p, unit, count);
}

/* --- 2. units on the line ------------------------------------------------------------------------ */

/* Way 2 of a fresh table (plan.h): the units lie one after another on a line, which is wound around the
 * receivers in laps. In a lap every receiver gets a piece in proportion to the bytes that it wants, less
 * the bytes by which it is ahead. The receivers are thus level after a lap of any length. A unit seldom
 * begins where a piece begins. To stay within its limit, a unit of b bytes therefore needs pieces of at
 * least b / (may_use - 1) bytes, which is called its step. */

struct line {
    struct placing *p;
    struct free_unit **units; /* [count], the unit with the smallest step first */
    size_t count;
    size_t next;      /* index of the unit that is being placed */
    struct cursor at; /* the position in that unit */
    /* bytes of the unit that were handed out, before they were rounded to quanta */
    uint64_t nominal;
    uint32_t used;         /* number of shards that the unit uses already */
    uint64_t longer, from; /* the unit's pieces are stretched by longer / from >= 1 */
};

static uint64_t step_of(const struct free_unit *unit)
{
    return (unit->bytes - 1) / (unit->may_use - 1) + 1;
}

static int compare_by_step(const void *a, const void *b)
{
    const struct free_unit *x = *(struct free_unit *const *)a, *y = *(struct free_unit *const *)b;
    const uint64_t step_x = step_of(x), step_y = step_of(y);
    if (step_x != step_y) return step_x < step_y ? -1 : 1;
    return x->number < y->number ? -1 : 1;
}

/* A walk along the bytes that the receivers want. */
struct walk {
    const struct plan_cut *cut;
    uint32_t next; /* the receiver after the current one */
    uint64_t room; /* bytes that the current receiver still wants */
};

/* Walks on by `bytes`. Returns how many receivers had room for some of them. */
static uint32_t walk_on(struct walk *walk, uint64_t bytes)
{
    uint32_t used = 0;
    for (;;) {
        if (walk->room > 0) {
            const uint64_t step = bytes < walk->room ? bytes : walk->room;
            bytes -= step;
            walk->room -= step;
            used++;
        }
        if (bytes == 0 || walk->next == walk->cut->receiver_count) return used;
        walk->room = walk->cut->shards[walk->cut->receivers[walk->next++]].want;
    }
}

/* Finds the units that would use more shards than they may if the line were wound in one lap. Moves them to
 * the end of the list, behind the others, and returns how many they are. */
static size_t find_stiff(struct placing *p, struct free_unit **units, size_t count)
{
    if (count == 0 || step_of(units[count - 1]) <= p->cut->free_bytes / p->cut->receiver_count)
        return 0; // even the longest step fits an average share
    struct walk walk = { .cut = p->cut };
    size_t fit = 0, stiff = 0;
    for (size_t u = 0; u < count; u++) {
        if (walk_on(&walk, units[u]->bytes) > units[u]->may_use)
            p->spare[stiff++] = units[u];
        else
            units[fit++] = units[u];
    }
    memcpy(units + fit, p->spare, stiff * sizeof(struct free_unit *));
    return stiff;
}

/* Returns how many bytes the next lap has. Its pieces are on average as long as the longest step of the
 * units in the lap. If one more lap would be too short for the longest step of all units, the next lap has
 * all bytes that are left. */
static uint64_t lap_bytes(const struct line *line)
{
    const struct plan_cut *cut = line->p->cut;
    const uint64_t mean = cut->free_bytes / cut->receiver_count;
    uint64_t step = 0, covered = 0;
    for (size_t u = line->next; u < line->count && covered / cut->receiver_count <= step; u++) {
        if (step_of(line->units[u]) > step) step = step_of(line->units[u]);
        covered += line->units[u]->bytes;
    }
    if (step > mean || mean - step < step_of(line->units[line->count - 1])) return cut->free_bytes;
    return step * cut->receiver_count;
}

/* Computes how many bytes each receiver gets in this lap (p->pieces), of `bytes` in total. */
static void share_lap(struct placing *p, uint64_t bytes)
{
    const uint32_t count = p->cut->receiver_count;
    uint64_t sum = 0, passed = 0, given = 0;
    for (uint32_t i = 0; i < count; i++) {
        p->pieces[i] = short_of(p->cut, p->cut->receivers[i], bytes);
        sum += p->pieces[i];
    }
    for (uint32_t i = 0; i < count; i++) {
        passed += sum == 0 ? 1 : p->pieces[i];
        const uint64_t end = plan_scale(bytes, passed, sum == 0 ? count : sum);
        p->pieces[i] = end - given;
        given = end;
    }
}

static void begin_unit(struct line *line)
{
    line->at = (struct cursor) { .unit = line->units[line->next] };
    line->nominal = 0;
    line->used = 0;
    line->longer = line->from = 0;
}

/* A unit may use only as many pieces of the lap as shards. If these pieces are too small for the unit,
 * stretches them, all by the same factor. `room` is the number of bytes that are left in piece i. */
static void stretch_unit(struct line *line, uint32_t i, uint64_t room)
{
    const struct free_unit *unit = line->at.unit;
    uint64_t sum = room;
    uint32_t pieces = 1;
    line->longer = line->from = 1;
    while (pieces < unit->may_use && sum < unit->bytes) {
        if (++i == line->p->cut->receiver_count) return; // the next lap is not known yet
        sum += line->p->pieces[i];
        pieces += line->p->pieces[i] > 0;
    }
    if (sum >= unit->bytes) return;
    line->longer = unit->bytes;
    line->from = sum;
}

/* Fills piece i from the line. */
static void fill_piece(struct line *line, uint32_t i)
{
    const uint32_t shard = line->p->cut->receivers[i];
    uint64_t room = line->p->pieces[i];
    while (room > 0 && line->next < line->count) {
        const struct free_unit *unit = line->at.unit;
        if (line->from == 0) stretch_unit(line, i, room);
        const uint64_t left = unit->bytes - line->nominal;
        const uint64_t bytes = plan_scale(room, line->longer, line->from);
        const int is_last = bytes >= left || line->used + 1 == unit->may_use;
        line->nominal = is_last ? unit->bytes : line->nominal + bytes;
        line->used += take_next(line->p, &line->at, line->nominal, shard) > 0;
        if (line->at.bytes < unit->bytes) return; // the piece is full
        room = bytes < left ? 0 : room - plan_scale(left, line->from, line->longer);
        if (++line->next < line->count) begin_unit(line);
    }
}

/* Places the units, sorted by step, as a line. */
static void wind(struct placing *p, struct free_unit **units, size_t count)
{
    if (count == 0) return;
    struct line line = { .p = p, .units = units, .count = count };
    begin_unit(&line);
    while (line.next < count) {
        share_lap(p, lap_bytes(&line));
        for (uint32_t i = 0; i < p->cut->receiver_count && line.next < count; i++)
            fill_piece(&line, i);
    }
}

/* --- the free quanta of a re-plan ---------------------------------------------------------------- */

/* Places the quanta that a re-plan has freed on the receivers, and levels the receivers with as few pieces
 * as possible. A unit's free quanta are handed out in parts as large as a shard's part of the unit in a
 * fresh table. If a receiver still wants as many bytes as a part has, it gets the whole part. If several
 * receivers do, the first choice is one that has the part's neighbour in the tensor, because the two are
 * then one piece. The next choice is a receiver that has nothing of the unit yet, then one that has nothing
 * of the tensor. If no receiver wants a whole part, one receiver is filled up from the part, and the rest
 * of the part is placed next. Each such cut fills up a receiver, so there are fewer cuts than receivers. A
 * unit goes to no more shards than it may use. */

#define CANDIDATES_MAX 8 /* number of the neediest receivers among which one is chosen */

struct filling {
    struct placing *p; /* borrowed, like the cut */
    struct plan_cut *cut;
    /* the first kept_count extents of the table were kept; they are in canonical order */
    size_t kept_count;
    /* owned: [shard_count]: number + 1 of the last unit that is known to lie on the shard */
    uint32_t *unit_at;
    /* owned: [shard_count]: number + 1 of the last tensor that is known to lie on the shard */
    uint32_t *tensor_at;
    uint64_t slack;               /* how many bytes a receiver may get beyond those that it wants */
    const struct free_unit *unit; /* the unit that is being placed */
    /* owned: [shard_count]: number + 1 of the last unit that was placed on the shard */
    uint32_t *given_at;
    uint32_t used; /* number of receivers that got some of the unit; they are in p->window */
};

/* The quanta of a free run that are still to be placed, and the shards that have the quanta just before and
 * behind them. */
struct rest {
    uint32_t tensor;
    uint64_t first, count;
    uint32_t before, behind; /* CAIRN_SHARD_GONE: no shard */
};

/* --- what was kept ------------------------------------------------------------------------------- */

/* Returns the index of the first kept extent that contains a quantum, or lies behind it in canonical order.
 * The quantum is given by the rank of its tensor, and its number in the tensor. */
static size_t find_kept(const struct filling *f, uint64_t rank, uint64_t quantum)
{
    size_t low = 0, high = f->kept_count;
    while (low < high) {
        const size_t middle = low + (high - low) / 2;
        const struct extent *e = &f->cut->table.items[middle];
        const uint64_t at = f->cut->rank[f->cut->table.items[middle].tensor];
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
    const struct extent *e = &f->cut->table.items[n];
    return e->tensor == tensor && e->first_quantum <= quantum ? e->shard : CAIRN_SHARD_GONE;
}

static void mark_tensor(struct filling *f, uint32_t tensor)
{
    for (size_t n = find_kept(f, f->cut->rank[tensor], 0);
         n < f->kept_count && f->cut->table.items[n].tensor == tensor; n++)
        f->tensor_at[f->cut->table.items[n].shard] = tensor + 1;
}

/* Marks the shards that keep something of the unit. The unit's tensors follow each other in canonical
 * order. */
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
    return need_of(f->cut, shard) + (int64_t)f->slack >= (int64_t)bytes;
}

static int is_receiver(const struct filling *f, uint32_t shard)
{
    return shard != CAIRN_SHARD_GONE && f->cut->shards[shard].want > 0;
}

/* Returns a shard that has the quanta just before or behind the rest, and wants `bytes`. If both such
 * shards want so many bytes, returns the needier one. */
static uint32_t neighbour_that_wants(const struct filling *f, const struct rest *rest,
                                     uint64_t bytes)
{
    const int before = is_receiver(f, rest->before) && wants(f, rest->before, bytes);
    const int behind = is_receiver(f, rest->behind) && wants(f, rest->behind, bytes);
    if (before && behind)
        return need_of(f->cut, rest->before) >= need_of(f->cut, rest->behind) ? rest->before
                                                                              : rest->behind;
    return before ? rest->before : behind ? rest->behind : CAIRN_SHARD_GONE;
}

/* For a tensor of which nothing is kept, returns the shard that had the middle of the part before, if this
 * shard wants the part and has nothing of the unit yet. */
static uint32_t holder_that_wants(const struct filling *f, const struct rest *rest, uint64_t quanta,
                                  uint64_t bytes)
{
    const struct plan_cut *cut = f->cut;
    if (cut->afresh == NULL || !cut->afresh[rest->tensor]) return CAIRN_SHARD_GONE;
    const uint64_t leaf = quantum_first_leaf(&cut->geometry[rest->tensor],
                                             rest->first + quanta / 2);
    const uint32_t holder = plan_renumber(
        cut->request, layout_find(cut->request->held, rest->tensor, leaf)->shard);
    return is_receiver(f, holder) && f->unit_at[holder] != f->unit->number + 1 &&
                   wants(f, holder, bytes)
               ? holder
               : CAIRN_SHARD_GONE;
}

/* Returns one of the neediest receivers that wants `bytes`. Prefers a receiver that has nothing of the unit
 * or of the tensor yet. */
static uint32_t needy_that_wants(struct filling *f, uint32_t tensor, uint64_t bytes)
{
    uint32_t looked[CANDIDATES_MAX], count = 0, best = CAIRN_SHARD_GONE;
    int best_rating = -1;
    while (count < CANDIDATES_MAX && f->p->heap_count > 0) {
        const uint32_t s = heap_pop(f->p);
        looked[count++] = s;
        // the other receivers are less needy, so they do not want it either
        if (!wants(f, s, bytes)) break;
        const int rating = (f->unit_at[s] != f->unit->number + 1) + (f->tensor_at[s] != tensor + 1);
        if (rating <= best_rating) continue;
        best = s;
        best_rating = rating;
    }
    while (count > 0) heap_push(f->p, looked[--count]);
    return best;
}

/* --- handing out --------------------------------------------------------------------------------- */

/* Gives the shard `quanta` of the rest. They are taken from the rest's end if the shard has the quanta
 * behind the rest and not those before it, else from its front. */
static void give(struct filling *f, struct rest *rest, uint64_t quanta, uint32_t shard)
{
    struct plan_cut *cut = f->cut;
    const int from_end = shard == rest->behind && shard != rest->before;
    const uint64_t first = from_end ? rest->first + rest->count - quanta : rest->first;
    const uint64_t bytes = plan_bytes(cut, rest->tensor, first, quanta);
    const cairn_status status = plan_append(&cut->table,
                                            (struct extent) { rest->tensor, shard, first, quanta });
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
    // The shard has become less needy, so it may have to go down in the heap.
    uint32_t i = 0;
    while (i < f->p->heap_count && f->p->heap[i] != shard) i++;
    if (i < f->p->heap_count) heap_sink(f->p, i, shard);
}

static uint32_t neediest_used(const struct filling *f)
{
    uint32_t best = f->p->window[0];
    for (uint32_t i = 1; i < f->used; i++)
        if (need_of(f->cut, f->p->window[i]) > need_of(f->cut, best)) best = f->p->window[i];
    return best;
}

/* Called when no receiver wants the whole part. Fills up a shard that has the quanta beside the part and
 * wants much of the part, else the neediest receiver. If the unit already lies on as many shards as it may
 * use, fills up the neediest of these shards. */
static void fill_one(struct filling *f, struct rest *rest, uint64_t quanta)
{
    const int is_spread = f->used >= f->unit->may_use;
    const uint64_t bytes = plan_bytes(f->cut, rest->tensor, rest->first, quanta);
    uint32_t shard = is_spread ? neediest_used(f)
                               : neighbour_that_wants(f, rest, bytes / 4 + f->slack);
    if (shard == CAIRN_SHARD_GONE) shard = f->p->heap[0];
    const int64_t need = need_of(f->cut, shard);
    uint64_t some = need <= 0
                        ? 0
                        : nearest_quanta(f->cut, rest->tensor, rest->first, quanta, (uint64_t)need);
    if (some == 0 || f->unit->may_use == 1) some = quanta;
    give(f, rest, some, shard);
}

/* Returns how many quanta of the rest make the next part. If the rest is not much larger than one part,
 * returns the number of all its quanta. */
static uint64_t part_of(const struct filling *f, const struct rest *rest)
{
    const struct plan_cut *cut = f->cut;
    const uint64_t part = plan_part_bytes(cut, rest->tensor);
    const uint64_t bytes = plan_bytes(cut, rest->tensor, rest->first, rest->count);
    if (bytes / 3 * 2 <= part || f->unit->may_use == 1) return rest->count;
    const uint64_t quanta = nearest_quanta(cut, rest->tensor, rest->first, rest->count, part);
    return quanta == 0 ? 1 : quanta;
}

static void hand_out(struct filling *f, const struct extent *run)
{
    struct rest rest = { run->tensor, run->first_quantum, run->quantum_count, CAIRN_SHARD_GONE,
                         keeper_of(f, run->tensor, run->first_quantum + run->quantum_count) };
    if (rest.first > 0) rest.before = keeper_of(f, rest.tensor, rest.first - 1);
    mark_tensor(f, rest.tensor);
    while (rest.count > 0) {
        const uint64_t quanta = part_of(f, &rest);
        const uint64_t bytes = plan_bytes(f->cut, rest.tensor, rest.first, quanta);
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

/* Sorts units: those that may use few receivers come first, because the others can level the differences
 * that these leave. */
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
    heap_all_receivers(p);
    for (size_t u = 0; u < p->unit_count; u++) {
        f->unit = p->sorted[u];
        f->used = 0;
        mark_unit(f);
        for (size_t r = 0; r < f->unit->run_count; r++)
            hand_out(f, &f->cut->free_runs.items[f->unit->first_run + r]);
    }
}

/* True if the bytes of each receiver are within one quantum of the bytes that it wants. */
static int is_level_fill(const struct plan_cut *cut)
{
    for (uint32_t i = 0; i < cut->receiver_count; i++) {
        const int64_t need = need_of(cut, cut->receivers[i]);
        if ((uint64_t)(need < 0 ? -need : need) > cut->quantum_bytes_max) return 0;
    }
    return 1;
}

/* Undoes the placing. `base` of each receiver is the load that it had before. */
static void take_all_back(struct filling *f, struct extent last)
{
    struct plan_cut *cut = f->cut;
    cut->table.count = f->kept_count;
    // the extent may have been joined with another
    if (f->kept_count > 0) cut->table.items[f->kept_count - 1] = last;
    cut->free_bytes = cut->levelled_bytes;
    for (uint32_t i = 0; i < cut->receiver_count; i++)
        cut->shards[cut->receivers[i]].load = cut->shards[cut->receivers[i]].base;
}

/* Places the quanta that a re-plan has freed. If this would not level the receivers, places nothing, and
 * returns 0. */
static int fill(struct placing *p)
{
    struct plan_cut *cut = p->cut;
    struct filling f = { .p = p, .cut = cut, .kept_count = cut->table.count };
    struct extent last = { 0, 0, 0, 0 };
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
    if (p->status != CAIRN_OK || is_level_fill(cut)) return 1;
    take_all_back(&f, last);
    return 0;
}

/* --- all ---------------------------------------------------------------------------------------- */

/* Groups the free runs by unit. The runs are in canonical order. */
static void find_units(struct placing *p)
{
    const struct plan_cut *cut = p->cut;
    for (size_t r = 0; r < cut->free_runs.count; r++) {
        const struct extent *run = &cut->free_runs.items[r];
        const uint32_t number = cut->unit_of[run->tensor];
        if (p->unit_count == 0 || p->units[p->unit_count - 1].number != number)
            p->units[p->unit_count++] = (struct free_unit) { .first_run = r, .number = number };
        struct free_unit *unit = &p->units[p->unit_count - 1];
        unit->run_count++;
        unit->bytes += plan_bytes(cut, run->tensor, run->first_quantum, run->quantum_count);
    }
    for (size_t u = 0; u < p->unit_count; u++)
        p->units[u].may_use = plan_may_use(cut, cut->unit_bytes[p->units[u].number],
                                           cut->receiver_count);
}

/* Places the units that may use only one shard, unless there is only one receiver. */
static void place_single(struct placing *p)
{
    size_t count = 0;
    for (size_t u = 0; u < p->unit_count; u++)
        if (p->units[u].may_use == 1 && p->cut->receiver_count > 1)
            p->sorted[count++] = &p->units[u];
    if (count > 0) place_stiff(p, p->sorted, count);
}

/* Places the units that may use several shards, but not all. A unit does not fit on the line if it is
 * longer than the shares of as many shards as it may use. Such units are placed first. The bytes that they
 * take may make other units too long, so this is tried again, a few times. More tries are not needed,
 * because the line itself keeps the limit: a unit that is found too late only makes the shards less
 * level. */
static void place_some(struct placing *p)
{
    size_t count = 0;
    for (size_t u = 0; u < p->unit_count; u++)
        if (p->units[u].may_use > 1 && p->units[u].may_use < p->cut->receiver_count)
            p->sorted[count++] = &p->units[u];
    qsort(p->sorted, count, sizeof(struct free_unit *), compare_by_step);
    for (int tries = 0; tries < SINGLE_LAP_TRIES; tries++) {
        const size_t stiff = find_stiff(p, p->sorted, count);
        if (stiff == 0) break;
        count -= stiff;
        place_stiff(p, p->sorted + count, stiff);
    }
    wind(p, p->sorted, count);
}

static cairn_status open_placing(struct placing *p, struct plan_cut *cut)
{
    const size_t runs = cut->free_runs.count + 1, receivers = (size_t)cut->receiver_count + 1;
    *p = (struct placing) { .cut = cut };
    p->units = calloc(runs, sizeof *p->units);
    p->sorted = calloc(runs, sizeof *p->sorted);
    p->spare = calloc(runs, sizeof *p->spare);
    p->heap = calloc(receivers, sizeof *p->heap);
    p->window = calloc(receivers, sizeof *p->window);
    p->pieces = calloc(receivers, sizeof *p->pieces);
    p->settled = calloc(receivers, sizeof *p->settled);
    const int got_all = p->units != NULL && p->sorted != NULL && p->spare != NULL &&
                        p->heap != NULL && p->window != NULL && p->pieces != NULL &&
                        p->settled != NULL;
    return got_all ? CAIRN_OK : CAIRN_ERR_NO_MEMORY;
}

static void close_placing(struct placing *p)
{
    free(p->units);
    free(p->sorted);
    free(p->spare);
    free(p->heap);
    free(p->window);
    free(p->pieces);
    free(p->settled);
}

static void place_all(struct placing *p)
{
    find_units(p);
    level(p);
    if (p->cut->keeps && fill(p)) return;
    place_single(p);
    place_some(p);
    uint32_t start = 0;
    for (size_t u = 0; u < p->unit_count; u++)
        if (p->units[u].may_use == p->cut->receiver_count)
            place_whole(p, &p->units[u], start++ % p->cut->receiver_count);
}

cairn_status plan_place(struct plan_cut *cut)
{
    if (cut->free_runs.count == 0) return CAIRN_OK;
    struct placing p;
    cairn_status status = open_placing(&p, cut);
    if (status == CAIRN_OK) {
        place_all(&p);
        status = p.status;
    }
    close_placing(&p);
    return status;
}
