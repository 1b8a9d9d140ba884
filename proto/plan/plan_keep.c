/* What a re-plan keeps: every shard up to its share, and frees: the rest. */
#include "proto/plan/plan_cut.h"

#include <stdlib.h>
#include <string.h>

/* The previous table in canonical order of tensors: the list's order must not matter here either. */
struct keeping {
    struct plan_cut *cut;           /* borrowed */
    const struct cairn_layout *old; /* borrowed */
    struct cairn_extent *extents;   /* owned: [extent_count], by old shard, then canonical */
    uint64_t *shed;                 /* owned: [extent_count], quanta each loses at its end */
    uint32_t *old_of;               /* owned: [shard_count], old number or CAIRN_SHARD_GONE */
};

/* The extents of one old shard, counted around from `start`, so that shards do not all shed the same
 * units. */
struct ring {
    const struct cairn_extent *extents; /* [count] */
    uint64_t *shed;                     /* [count] */
    size_t start, count;
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

/* By tensor in canonical order, then, in a stable counting sort, by shard. */
static cairn_status sort_old_extents(struct keeping *k)
{
    const size_t count = k->old->extent_count;
    size_t *next = calloc(k->old->shard_count, sizeof *next);
    struct extent_list list = { .items = calloc(count + 1, sizeof *list.items), .count = count };
    cairn_status status = next == NULL || list.items == NULL ? CAIRN_ERR_NO_MEMORY : CAIRN_OK;
    if (status == CAIRN_OK) {
        memcpy(list.items, k->old->extents, count * sizeof *list.items);
        status = cairn_plan_sort(&list, k->cut->rank, k->old->tensor_count);
    }
    for (size_t e = 0; e < count && status == CAIRN_OK; e++) {
        const uint32_t old = list.items[e].shard;
        k->extents[k->old->shard_extents[old] + next[old]++] = list.items[e];
    }
    free(next);
    free(list.items);
    return status;
}

static struct ring ring_of(const struct keeping *k, uint32_t old)
{
    const size_t first = k->old->shard_extents[old];
    const size_t count = k->old->shard_extents[old + 1] - first;
    return (struct ring) {
        .extents = k->extents + first,
        .shed = k->shed + first,
        .start = (size_t)cairn_plan_scale(count, old, k->old->shard_count),
        .count = count,
    };
}

static uint64_t extent_bytes(const struct plan_cut *cut, const struct cairn_extent *e)
{
    return cairn_plan_bytes(cut, e->tensor, e->first_quantum, e->quantum_count);
}

/* Sheds from the end of what extent i still has the most quanta that weigh `limit` bytes or less;
 * returns their bytes. */
static uint64_t shed_tail(const struct plan_cut *cut, const struct ring *ring, size_t i,
                          uint64_t limit)
{
    const struct cairn_extent *e = &ring->extents[i];
    const uint64_t count = e->quantum_count - ring->shed[i], end = e->first_quantum + count;
    const uint64_t quantum_bytes = cut->geometry[e->tensor].quantum_elems *
                                   cut->request->tensors[e->tensor].elem_bytes;
    uint64_t tail = limit / quantum_bytes;
    // The tensor's last quantum may be short, and then one more fits.
    if (tail < count && cairn_plan_bytes(cut, e->tensor, end - tail - 1, tail + 1) <= limit) tail++;
    if (tail > count) tail = count;
    ring->shed[i] += tail;
    return cairn_plan_bytes(cut, e->tensor, end - tail, tail);
}

/* Sheds along the shard's bytes in proportion: tails of at least 256 KiB, or whole extents. */
static uint64_t shed_evenly(const struct plan_cut *cut, const struct ring *ring, uint64_t old_bytes,
                            uint64_t budget)
{
    uint64_t passed = 0, shed = 0;
    for (size_t n = 0; n < ring->count; n++) {
        const size_t i = (ring->start + n) % ring->count;
        const uint64_t bytes = extent_bytes(cut, &ring->extents[i]);
        passed += bytes;
        const uint64_t owed = cairn_plan_scale(budget, passed, old_bytes) - shed;
        if (owed >= bytes || owed >= CAIRN_SPREAD_PIECE_BYTES)
            shed += shed_tail(cut, ring, i, owed);
    }
    return shed;
}

/* Sheds `budget` bytes of a shard at most, and so many that no quantum of it fits the difference. */
static uint64_t shed_bytes(const struct plan_cut *cut, const struct ring *ring, uint64_t old_bytes,
                           uint64_t budget)
{
    uint64_t shed = shed_evenly(cut, ring, old_bytes, budget);
    for (size_t n = ring->count; n-- > 0 && shed < budget;)
        shed += shed_tail(cut, ring, (ring->start + n) % ring->count, budget - shed);
    return shed;
}

/* Shards over their share shed the surplus. What one could not shed because its quanta are too big,
 * the next one tries, so that the sum is right within one quantum and never above the surplus. */
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
        const struct ring ring = ring_of(k, k->old_of[s]);
        const uint64_t shed = shed_bytes(cut, &ring, shard->load, budget);
        carried = shard->load - shard->share + carried - shed;
        shard->load -= shed;
        cut->free_bytes += shed;
    }
}

static void weigh_old_loads(struct keeping *k)
{
    for (size_t e = 0; e < k->old->extent_count; e++) {
        const uint32_t s = cairn_plan_renumber(k->cut->request, k->extents[e].shard);
        const uint64_t bytes = extent_bytes(k->cut, &k->extents[e]);
        if (s == CAIRN_SHARD_GONE) {
            k->shed[e] = k->extents[e].quantum_count;
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

static cairn_status split_extents(const struct keeping *k)
{
    cairn_status status = CAIRN_OK;
    for (size_t i = 0; i < k->old->extent_count && status == CAIRN_OK; i++) {
        struct cairn_extent kept = k->extents[i], freed = k->extents[i];
        kept.shard = cairn_plan_renumber(k->cut->request, kept.shard);
        kept.quantum_count -= k->shed[i];
        freed.shard = 0;
        freed.first_quantum += kept.quantum_count;
        freed.quantum_count = k->shed[i];
        if (kept.quantum_count > 0) status = cairn_plan_append(&k->cut->table, kept);
        if (freed.quantum_count > 0 && status == CAIRN_OK)
            status = cairn_plan_append(&k->cut->free_runs, freed);
    }
    return status;
}

cairn_status cairn_plan_keep(struct plan_cut *cut)
{
    struct keeping k = { .cut = cut, .old = cut->request->previous };
    k.extents = calloc(k.old->extent_count + 1, sizeof *k.extents);
    k.shed = calloc(k.old->extent_count + 1, sizeof *k.shed);
    k.old_of = calloc(cut->request->shard_count, sizeof *k.old_of);
    const int got_all = k.extents != NULL && k.shed != NULL && k.old_of != NULL;
    cairn_status status = got_all ? number_shards(&k) : CAIRN_ERR_NO_MEMORY;
    if (status == CAIRN_OK) status = sort_old_extents(&k);
    if (status == CAIRN_OK) {
        weigh_old_loads(&k);
        if (!is_level(cut)) shed_surplus(&k);
        status = split_extents(&k);
    }
    free(k.extents);
    free(k.shed);
    free(k.old_of);
    return status;
}
