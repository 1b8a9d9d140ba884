/* A shard's map over a history of layouts: what stays keeps its local elements, nothing overlaps what is
 * there or was there a moment ago, and places that are free are used again. */
#include "proto/geometry/layout.h"
#include "tests/support/random.h"
#include "tests/support/suite.h"

#include <check.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

enum { SEEDS = 60, STEPS = 25, TENSORS_MAX = 4, QUANTA = 12, SHARDS = 3, LEAVES = 3 };

/* Who has each quantum, and where extents are cut: once cut, they stay so. */
struct world {
    struct layout_tensor tensors[TENSORS_MAX];
    uint32_t owner[TENSORS_MAX][QUANTA];
    bool cut[TENSORS_MAX][QUANTA]; /* an extent begins there */
};

static const char *const names[TENSORS_MAX] = { "a", "b", "c", "d" };

static void note_cuts(struct world *world)
{
    for (uint32_t t = 0; t < TENSORS_MAX; t++)
        for (uint32_t q = 1; q < QUANTA; q++)
            if (world->owner[t][q] != world->owner[t][q - 1]) world->cut[t][q] = true;
}

static void make_world(struct world *world)
{
    memset(world, 0, sizeof *world);
    for (uint32_t t = 0; t < TENSORS_MAX; t++) {
        world->tensors[t] = (struct layout_tensor) {
            .name = names[t], .shape = { 1, { QUANTA * CAIRN_LEAF_ELEMS - 7 * t } }
        };
        for (uint32_t q = 0; q < QUANTA; q++) world->owner[t][q] = (uint32_t)random_below(SHARDS);
    }
    note_cuts(world);
}

/* Some runs go to other shards. */
static void move(struct world *world)
{
    for (uint64_t n = 1 + random_below(3); n > 0; n--) {
        const uint32_t t = (uint32_t)random_below(TENSORS_MAX);
        const uint64_t first = random_below(QUANTA), end = first + 1 + random_below(QUANTA - first);
        const uint32_t to = (uint32_t)random_below(SHARDS);
        for (uint64_t q = first; q < end; q++) world->owner[t][q] = to;
        world->cut[t][first] = true;
        if (end < QUANTA) world->cut[t][end] = true;
    }
    note_cuts(world);
}

static struct layout *layout_of(const struct world *world, uint64_t version)
{
    struct extent *extents = calloc(TENSORS_MAX * QUANTA, sizeof *extents);
    size_t count = 0;
    for (uint32_t t = 0; t < TENSORS_MAX; t++) {
        for (uint32_t q = 0; q < QUANTA; q++) {
            if (q > 0 && !world->cut[t][q] && world->owner[t][q] == world->owner[t][q - 1])
                extents[count - 1].quantum_count++;
            else
                extents[count++] = (struct extent) { t, world->owner[t][q], q, 1 };
        }
    }
    struct layout *layout = NULL;
    ck_assert_int_eq(
        layout_make(world->tensors, TENSORS_MAX, SHARDS, version, extents, count, &layout),
        CAIRN_OK);
    return layout;
}

/* The local element of an extent's leaf, or UINT64_MAX. */
static uint64_t local_of(const struct shard_map *map, uint32_t tensor, uint64_t leaf)
{
    const struct local_extent *e = shard_map_find(map, tensor, leaf);
    if (e == NULL) return UINT64_MAX;
    const struct geometry *g = &map->layout->geometry[tensor];
    return e->local_elem + (leaf_start(g, leaf) - e->first_elem);
}

static bool overlap(const struct local_extent *a, const struct local_extent *b)
{
    return a->local_elem < b->local_elem + b->elem_count &&
           b->local_elem < a->local_elem + a->elem_count;
}

static void check(const struct shard_map *map, const struct shard_map *before)
{
    uint64_t chunks = 0, elems = 0, end = 0;
    for (size_t i = 0; i < map->extent_count; i++) {
        const struct local_extent *e = &map->extents[i];
        ck_assert_uint_eq(e->first_chunk, chunks);
        chunks += e->chunk_count;
        elems += e->elem_count;
        if (e->local_elem + e->elem_count > end) end = e->local_elem + e->elem_count;
        for (size_t k = 0; k < i; k++) ck_assert(!overlap(e, &map->extents[k]));
        const uint64_t was = local_of(before, e->tensor, e->first_leaf);
        for (uint64_t leaf = e->first_leaf; leaf < e->first_leaf + e->leaf_count; leaf++) {
            const uint64_t at = local_of(before, e->tensor, leaf);
            if (at != UINT64_MAX) ck_assert_uint_eq(local_of(map, e->tensor, leaf), at);
            ck_assert_int_eq(at == UINT64_MAX, was == UINT64_MAX);
        }
        for (size_t k = 0; was == UINT64_MAX && k < before->extent_count; k++)
            ck_assert(!overlap(e, &before->extents[k])); // what goes is there until it is settled
    }
    ck_assert_uint_eq(map->chunk_count, chunks);
    ck_assert_uint_eq(map->elem_count, elems);
    ck_assert_uint_eq(map->local_end, end);
}

TEST(over_any_history_what_stays_keeps_its_place_and_nothing_overlaps)
{
    const uint64_t all = TENSORS_MAX * QUANTA * CAIRN_LEAF_ELEMS;
    for (uint64_t seed = 0; seed < SEEDS; seed++) {
        random_state = seed;
        struct world world;
        make_world(&world);
        struct layout *layout = layout_of(&world, 1);
        struct shard_map map;
        ck_assert_int_eq(shard_map_init(&map, layout, 0, LEAVES), CAIRN_OK);
        ck_assert_uint_eq(map.local_end, map.elem_count);
        for (uint64_t step = 2; step < STEPS; step++) {
            move(&world);
            struct layout *next = layout_of(&world, step);
            struct shard_map now;
            ck_assert_int_eq(shard_map_init_from(&now, next, 0, LEAVES, &map, NULL, NULL),
                             CAIRN_OK);
            check(&now, &map);
            ck_assert_uint_le(now.local_end, 2 * all); // it does not creep on for ever
            shard_map_release(&map);
            layout_close(layout);
            map = now;
            layout = next;
        }
        shard_map_release(&map);
        layout_close(layout);
    }
}

static struct layout *of_extents(const struct extent *list, size_t count)
{
    const struct layout_tensor a = { .name = "a", .shape = { 1, { 4 * CAIRN_LEAF_ELEMS } } };
    struct extent *extents = calloc(count, sizeof *extents);
    memcpy(extents, list, count * sizeof *list);
    struct layout *layout = NULL;
    ck_assert_int_eq(layout_make(&a, 1, 2, 1, extents, count, &layout), CAIRN_OK);
    return layout;
}

TEST(an_extent_that_is_partly_there_or_lies_in_two_is_refused)
{
    const struct extent apart[] = { { 0, 0, 0, 1 }, { 0, 0, 1, 1 }, { 0, 1, 2, 2 } };
    const struct {
        const char *claim;
        struct extent list[3];
        size_t count;
        cairn_status status;
    } table[] = {
        { "the same", { { 0, 0, 0, 1 }, { 0, 0, 1, 1 }, { 0, 1, 2, 2 } }, 3, CAIRN_OK },
        { "one goes", { { 0, 1, 0, 1 }, { 0, 0, 1, 1 }, { 0, 1, 2, 2 } }, 3, CAIRN_OK },
        { "one comes", { { 0, 0, 0, 1 }, { 0, 0, 1, 1 }, { 0, 0, 2, 2 } }, 3, CAIRN_OK },
        { "in two", { { 0, 0, 0, 2 }, { 0, 1, 2, 2 } }, 2, CAIRN_ERR_INVALID },
        { "its end comes", { { 0, 0, 0, 1 }, { 0, 0, 1, 3 } }, 2, CAIRN_ERR_INVALID },
        { "all in one", { { 0, 0, 0, 4 } }, 1, CAIRN_ERR_INVALID },
    };
    struct layout *layout = of_extents(apart, 3);
    struct shard_map before, map;
    ck_assert_int_eq(shard_map_init(&before, layout, 0, LEAVES), CAIRN_OK);
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        struct layout *next = of_extents(table[i].list, table[i].count);
        const cairn_status status = shard_map_init_from(&map, next, 0, LEAVES, &before, NULL, NULL);
        ck_assert_msg(status == table[i].status, "%s: %s", table[i].claim,
                      status_code_name((int)status));
        if (status == CAIRN_OK) shard_map_release(&map);
        layout_close(next);
    }
    shard_map_release(&before);
    layout_close(layout);
}

SUITE(30);
