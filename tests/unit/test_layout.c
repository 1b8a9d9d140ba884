/* The table, its bytes under hostile hands, a shard's map and the grid of chunks. */
#include "proto/geometry/layout.h"
#include "tests/support/random.h"
#include "tests/support/suite.h"

#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SEEDS       120
#define TENSORS_MAX 12
#define MUTATIONS   20000

/* --- random tables -------------------------------------------------------------------------------- */

static const char *const names[TENSORS_MAX] = { "k", "c", "a", "b", "j", "e",
                                                "f", "d", "h", "i", "g", "l" };

struct table {
    struct layout_tensor tensors[TENSORS_MAX];
    uint32_t tensor_count, shard_count;
    struct extent *extents; /* owned until a layout takes them */
    size_t extent_count;
};

static struct shape random_shape(void)
{
    struct shape shape = { .rank = (uint32_t)random_below(4) };
    for (uint32_t d = 0; d < shape.rank; d++) shape.dim[d] = 1 + random_below(d == 0 ? 60 : 120);
    if (shape.rank > 0 && random_below(8) == 0) shape.dim[0] = 0;
    if (shape.rank > 0 && random_below(3) == 0) shape.dim[shape.rank - 1] = 1 + random_below(6000);
    return shape;
}

/* Owners at random; some neighbours are of one shard. */
static struct table random_table(void)
{
    struct table table = { .tensor_count = (uint32_t)random_below(TENSORS_MAX + 1),
                           .shard_count = (uint32_t)(2 + random_below(5)) };
    table.extents = calloc(4096, sizeof *table.extents);
    for (uint32_t t = 0; t < table.tensor_count; t++) {
        table.tensors[t] = (struct layout_tensor) { .name = names[t], .shape = random_shape() };
        const uint64_t quanta = geometry_of(&table.tensors[t].shape).quantum_count;
        uint32_t shard = (uint32_t)random_below(table.shard_count);
        for (uint64_t q = 0; q < quanta && table.extent_count < 4000;) {
            uint64_t count = 1 + random_below(6);
            if (count > quanta - q || table.extent_count > 3900) count = quanta - q;
            table.extents[table.extent_count++] = (struct extent) { t, shard, q, count };
            if (random_below(4) > 0) shard = (uint32_t)random_below(table.shard_count);
            q += count;
        }
    }
    return table;
}

static struct layout *make(struct table *table)
{
    struct layout *layout = NULL;
    ck_assert_int_eq(layout_make(table->tensors, table->tensor_count, table->shard_count, 7,
                                 table->extents, table->extent_count, &layout),
                     CAIRN_OK);
    return layout;
}

static uint8_t *encode(const struct layout *layout, size_t *bytes_out)
{
    *bytes_out = layout_encoded_bytes(layout);
    uint8_t *data = malloc(*bytes_out); // exactly, so that ASan sees a byte too many
    ck_assert_ptr_nonnull(data);
    layout_encode(layout, data);
    return data;
}

/* --- the table ------------------------------------------------------------------------------------ */

TEST(every_leaf_is_found_at_its_owner_and_in_the_owners_map_only)
{
    for (uint64_t seed = 0; seed < SEEDS; seed++) {
        random_state = seed;
        struct table table = random_table();
        struct layout *layout = make(&table);
        struct shard_map maps[8];
        uint64_t elems_of_maps = 0, elems = 0;
        for (uint32_t s = 0; s < table.shard_count; s++) {
            ck_assert_int_eq(shard_map_init(&maps[s], layout, s, 3), CAIRN_OK);
            elems_of_maps += maps[s].elem_count;
        }
        uint64_t next_elem[8] = { 0 }; // every state is filled from front to back without a gap
        for (size_t e = 0; e < table.extent_count; e++) {
            const struct extent *x = &table.extents[e];
            const struct geometry *g = &layout->geometry[x->tensor];
            const uint64_t first = quantum_first_leaf(g, x->first_quantum);
            const uint64_t end = quantum_first_leaf(g, x->first_quantum + x->quantum_count);
            for (uint64_t leaf = first; leaf < end; leaf++) {
                ck_assert_ptr_eq(layout_find(layout, x->tensor, leaf), &layout->extents[e]);
                const uint64_t size = leaf_start(g, leaf + 1) - leaf_start(g, leaf);
                for (uint32_t s = 0; s < table.shard_count; s++) {
                    const struct local_extent *at = shard_map_find(&maps[s], x->tensor, leaf);
                    ck_assert_int_eq(at != NULL, s == x->shard);
                    if (at == NULL) continue;
                    const uint64_t within = leaf_start(g, leaf) - at->first_elem;
                    ck_assert_uint_eq(at->local_elem + within, next_elem[s]);
                }
                next_elem[x->shard] += size;
            }
        }
        for (uint32_t t = 0; t < table.tensor_count; t++) {
            elems += layout->geometry[t].elems;
            ck_assert_ptr_null(layout_find(layout, t, layout->geometry[t].leaf_count));
        }
        ck_assert_ptr_null(layout_find(layout, table.tensor_count, 0));
        ck_assert_uint_eq(elems, elems_of_maps);
        for (uint32_t s = 0; s < table.shard_count; s++) {
            ck_assert_uint_eq(next_elem[s], maps[s].elem_count);
            shard_map_release(&maps[s]);
        }
        layout_close(layout);
    }
}

/* The chunk grid of one shard, by walking its leaves. */
static void check_grid(const struct layout *layout, const struct shard_map *map)
{
    uint64_t chunk = 0, local_elem = 0, local_leaf = 0;
    for (size_t i = 0; i < map->extent_count; i++) {
        const struct local_extent *e = &map->extents[i];
        const struct geometry *g = &layout->geometry[e->tensor];
        const uint64_t end = e->first_leaf + e->leaf_count;
        for (uint64_t leaf = e->first_leaf; leaf < end; chunk++) {
            const uint64_t count = end - leaf < map->chunk_leaves ? end - leaf : map->chunk_leaves;
            const struct chunk_place place = shard_map_chunk(map, chunk);
            ck_assert_ptr_eq(shard_map_extent(map, chunk), e);
            ck_assert_uint_eq(place.tensor, e->tensor);
            ck_assert_uint_eq(place.first_leaf, leaf);
            ck_assert_uint_eq(place.leaf_count, count);
            ck_assert_uint_eq(place.local_elem, local_elem);
            ck_assert_uint_eq(place.first_elem, leaf_start(g, leaf));
            uint64_t number = 0;
            ck_assert_int_eq(shard_map_chunk_number(map, e->tensor, leaf, count, &number),
                             CAIRN_OK);
            ck_assert_uint_eq(number, chunk);
            ck_assert_int_eq(shard_map_chunk_number(map, e->tensor, leaf, count + 1, &number),
                             CAIRN_ERR_INVALID);
            ck_assert_int_eq(shard_map_chunk_number(map, e->tensor, leaf, count - 1, &number),
                             CAIRN_ERR_INVALID);
            if (count > 1)
                ck_assert_int_eq(
                    shard_map_chunk_number(map, e->tensor, leaf + 1, count - 1, &number),
                    CAIRN_ERR_INVALID);
            local_elem += place.elem_count;
            local_leaf += count;
            leaf += count;
        }
    }
    ck_assert_uint_eq(chunk, map->chunk_count);
    ck_assert_uint_eq(local_elem, map->elem_count);
    ck_assert_uint_eq(local_leaf, map->leaf_count);
}

TEST(chunks_number_every_leaf_once_and_anything_off_the_grid_is_refused)
{
    for (uint64_t seed = 0; seed < SEEDS; seed++) {
        random_state = seed;
        struct table table = random_table();
        struct layout *layout = make(&table);
        for (uint32_t s = 0; s < table.shard_count; s++) {
            struct shard_map map;
            ck_assert_int_eq(shard_map_init(&map, layout, s, (uint32_t)(1 + random_below(9))),
                             CAIRN_OK);
            check_grid(layout, &map);
            uint64_t number = 0;
            for (int i = 0; i < 50; i++) { // whatever a stranger says, it is judged
                const uint64_t leaf = random_next() >> random_below(64);
                const uint64_t count = random_next() >> random_below(64);
                const uint32_t tensor = (uint32_t)(random_next() >> (32 + random_below(32)));
                cairn_status status = shard_map_chunk_number(&map, tensor, leaf, count, &number);
                if (status == CAIRN_OK) ck_assert_uint_lt(number, map.chunk_count);
            }
            ck_assert_int_eq(
                shard_map_chunk_number(&map, UINT32_MAX, UINT64_MAX, UINT64_MAX, &number),
                CAIRN_ERR_NOT_FOUND);
            shard_map_release(&map);
        }
        struct shard_map map;
        ck_assert_int_eq(shard_map_init(&map, layout, table.shard_count, 1), CAIRN_ERR_INVALID);
        ck_assert_int_eq(shard_map_init(&map, layout, 0, 0), CAIRN_ERR_INVALID);
        layout_close(layout);
    }
}

TEST(a_table_that_is_not_an_exact_cover_is_refused)
{
    /* 3 quanta of 4096 and 2 of them */
    const struct layout_tensor tensors[2] = { { .name = "a", .shape = { 1, { 3 * 4096 } } },
                                              { .name = "b", .shape = { 1, { 2 * 4096 } } } };
    struct {
        const char *claim;
        size_t count;
        struct extent extents[5];
        cairn_status status;
    } table[] = {
        { "right", 3, { { 0, 0, 0, 2 }, { 0, 1, 2, 1 }, { 1, 1, 0, 2 } }, CAIRN_OK },
        { "a gap", 3, { { 0, 0, 0, 1 }, { 0, 1, 2, 1 }, { 1, 1, 0, 2 } }, CAIRN_ERR_INVALID },
        { "an overlap", 3, { { 0, 0, 0, 2 }, { 0, 1, 1, 2 }, { 1, 1, 0, 2 } }, CAIRN_ERR_INVALID },
        { "short", 2, { { 0, 0, 0, 2 }, { 1, 1, 0, 2 } }, CAIRN_ERR_INVALID },
        { "too long", 2, { { 0, 0, 0, 3 }, { 1, 1, 0, 3 } }, CAIRN_ERR_INVALID },
        { "a tensor missing", 1, { { 0, 0, 0, 3 } }, CAIRN_ERR_INVALID },
        { "a tensor too many",
          3,
          { { 0, 0, 0, 3 }, { 1, 0, 0, 2 }, { 2, 0, 0, 1 } },
          CAIRN_ERR_INVALID },
        { "out of order", 2, { { 1, 0, 0, 2 }, { 0, 0, 0, 3 } }, CAIRN_ERR_INVALID },
        { "an empty extent",
          3,
          { { 0, 0, 0, 3 }, { 0, 1, 3, 0 }, { 1, 0, 0, 2 } },
          CAIRN_ERR_INVALID },
        { "neighbours on one shard",
          3,
          { { 0, 0, 0, 2 }, { 0, 0, 2, 1 }, { 1, 0, 0, 2 } },
          CAIRN_OK },
        { "no such shard", 2, { { 0, 2, 0, 3 }, { 1, 0, 0, 2 } }, CAIRN_ERR_INVALID },
        { "wraps",
          3,
          { { 0, 0, 0, 2 }, { 0, 1, 2, UINT64_MAX }, { 1, 0, 0, 2 } },
          CAIRN_ERR_INVALID },
    };
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++) {
        struct extent *extents = calloc(5, sizeof *extents);
        memcpy(extents, table[i].extents, 5 * sizeof *extents);
        struct layout *layout = NULL;
        const cairn_status status = layout_make(tensors, 2, 2, 1, extents, table[i].count, &layout);
        ck_assert_msg(status == table[i].status, "%s: %s", table[i].claim,
                      status_code_name((int)status));
        if (status != CAIRN_OK) free(extents);
        layout_close(layout);
    }
}

TEST(limits_and_repeated_names_are_refused)
{
    const struct layout_tensor twice[2] = { { .name = "a" }, { .name = "a" } };
    const struct layout_tensor nameless = { .name = "" };
    struct extent extents[2] = { { 0, 0, 0, 1 }, { 1, 0, 0, 1 } };
    struct layout *none = NULL;
    ck_assert_int_eq(layout_make(twice, 2, 1, 1, extents, 2, &none), CAIRN_ERR_INVALID);
    ck_assert_int_eq(layout_make(&nameless, 1, 1, 1, extents, 1, &none), CAIRN_ERR_INVALID);
    ck_assert_int_eq(layout_make(twice, 1, 0, 1, extents, 1, &none), CAIRN_ERR_INVALID);
    ck_assert_int_eq(layout_make(twice, 1, CAIRN_SHARDS_MAX + 1, 1, extents, 1, &none),
                     CAIRN_ERR_INVALID);
    ck_assert_int_eq(layout_make(twice, 1, 1, 0, extents, 1, &none), CAIRN_ERR_INVALID);
    ck_assert_int_eq(layout_make(twice, UINT32_MAX, 1, 1, extents, 1, &none), CAIRN_ERR_INVALID);
    ck_assert_ptr_null(none);
}

TEST(the_hash_is_of_names_shapes_and_owners_and_not_of_version_or_order)
{
    const struct layout_tensor ab[2] = { { .name = "a", .shape = { 1, { 9000 } } },
                                         { .name = "b", .shape = { 2, { 2, 5000 } } } };
    const struct layout_tensor ba[2] = { ab[1], ab[0] };
    const struct layout_tensor renamed[2] = { { .name = "A", .shape = ab[0].shape }, ab[1] };
    const struct layout_tensor reshaped[2] = { ab[0],
                                               { .name = "b", .shape = { 2, { 2, 5001 } } } };
    const struct {
        const struct layout_tensor *tensors;
        struct extent extents[3];
        uint32_t shard_count;
        uint64_t version;
        int is_same;
    } table[] = {
        { ab, { { 0, 0, 0, 3 }, { 1, 1, 0, 1 }, { 1, 0, 1, 1 } }, 2, 1, 1 },
        { ab, { { 0, 0, 0, 3 }, { 1, 1, 0, 1 }, { 1, 0, 1, 1 } }, 2, 9, 1 },
        { ba, { { 0, 1, 0, 1 }, { 0, 0, 1, 1 }, { 1, 0, 0, 3 } }, 2, 1, 1 },
        { ab, { { 0, 0, 0, 3 }, { 1, 0, 0, 1 }, { 1, 1, 1, 1 } }, 2, 1, 0 },
        { ab, { { 0, 0, 0, 3 }, { 1, 1, 0, 1 }, { 1, 0, 1, 1 } }, 3, 1, 0 },
        { renamed, { { 0, 0, 0, 3 }, { 1, 1, 0, 1 }, { 1, 0, 1, 1 } }, 2, 1, 0 },
        { reshaped, { { 0, 0, 0, 3 }, { 1, 1, 0, 1 }, { 1, 0, 1, 1 } }, 2, 1, 0 },
    };
    uint8_t first[CAIRN_LAYOUT_HASH_BYTES];
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++) {
        struct extent *extents = calloc(3, sizeof *extents);
        memcpy(extents, table[i].extents, 3 * sizeof *extents);
        struct layout *layout = NULL;
        ck_assert_int_eq(layout_make(table[i].tensors, 2, table[i].shard_count, table[i].version,
                                     extents, 3, &layout),
                         CAIRN_OK);
        if (i == 0) memcpy(first, layout->hash, sizeof first);
        ck_assert_msg((memcmp(first, layout->hash, sizeof first) == 0) == table[i].is_same,
                      "case %zu", i);
        layout_close(layout);
    }
}

/* What an extent keeps in its shard's memory is by extent: one that was cut is another table. */
TEST(the_hash_is_of_the_extents_one_by_one)
{
    const struct layout_tensor a = { .name = "a", .shape = { 1, { 3 * 4096 } } };
    const struct extent cuts[2][2] = { { { 0, 0, 0, 3 } }, { { 0, 0, 0, 1 }, { 0, 0, 1, 2 } } };
    struct layout *layouts[2];
    for (size_t i = 0; i < 2; i++) {
        struct extent *extents = calloc(2, sizeof *extents);
        memcpy(extents, cuts[i], sizeof cuts[i]);
        ck_assert_int_eq(layout_make(&a, 1, 1, 1, extents, i + 1, &layouts[i]), CAIRN_OK);
    }
    ck_assert_mem_ne(layouts[0]->hash, layouts[1]->hash, CAIRN_LAYOUT_HASH_BYTES);
    layout_close(layouts[0]);
    layout_close(layouts[1]);
}

/* --- bytes ---------------------------------------------------------------------------------------- */

TEST(a_layout_survives_its_bytes)
{
    for (uint64_t seed = 0; seed < SEEDS; seed++) {
        random_state = seed;
        struct table table = random_table();
        struct layout *layout = make(&table), *copy = NULL;
        size_t bytes = 0;
        uint8_t *data = encode(layout, &bytes);
        ck_assert_int_eq(layout_decode(data, bytes, table.tensors, table.tensor_count, &copy),
                         CAIRN_OK);
        ck_assert_uint_eq(copy->version, 7);
        ck_assert_uint_eq(copy->shard_count, layout->shard_count);
        ck_assert_uint_eq(copy->extent_count, layout->extent_count);
        ck_assert_mem_eq(copy->hash, layout->hash, sizeof copy->hash);
        for (size_t e = 0; e < copy->extent_count; e++) {
            ck_assert_uint_eq(copy->extents[e].tensor, layout->extents[e].tensor);
            ck_assert_uint_eq(copy->extents[e].shard, layout->extents[e].shard);
            ck_assert_uint_eq(copy->extents[e].first_quantum, layout->extents[e].first_quantum);
            ck_assert_uint_eq(copy->extents[e].quantum_count, layout->extents[e].quantum_count);
        }
        layout_close(copy);
        layout_close(layout);
        free(data);
    }
}

static cairn_status decode_exactly(const uint8_t *data, size_t bytes, const struct table *table)
{
    uint8_t *exact = malloc(bytes + (bytes == 0)); // so that ASan sees a read beyond the end
    memcpy(exact, data, bytes);
    struct layout *layout = NULL;
    const cairn_status status = layout_decode(exact, bytes, table->tensors, table->tensor_count,
                                              &layout);
    ck_assert((status == CAIRN_OK) == (layout != NULL));
    layout_close(layout);
    free(exact);
    return status;
}

static void mutate(uint8_t *data, size_t *bytes)
{
    switch (random_below(4)) {
    case 0: data[random_below(*bytes)] ^= (uint8_t)(1u << random_below(8)); break;
    case 1: data[random_below(*bytes)] = (uint8_t)random_next(); break;
    case 2: *bytes = random_below(*bytes + 1); break;
    default: { // one field of numbers at an extreme
        static const uint8_t extremes[4] = { 0x00, 0xff, 0x7f, 0x80 };
        const size_t at = random_below(*bytes), size = random_below(9);
        memset(data + at, extremes[random_below(4)], size < *bytes - at ? size : *bytes - at);
    }
    }
}

TEST(hostile_bytes_are_refused_and_never_crash)
{
    random_state = 5;
    struct table table;
    struct layout *layout = NULL;
    do { // one with something in it
        layout_close(layout);
        table = random_table();
        layout = make(&table);
    } while (layout->extent_count < 20);
    size_t bytes = 0;
    uint8_t *data = encode(layout, &bytes), *hostile = malloc(bytes);
    unsigned refused = 0;
    for (int i = 0; i < MUTATIONS; i++) {
        memcpy(hostile, data, bytes);
        size_t hostile_bytes = bytes;
        for (uint64_t n = 1 + random_below(3); n > 0 && hostile_bytes > 0; n--)
            mutate(hostile, &hostile_bytes);
        const cairn_status status = decode_exactly(hostile, hostile_bytes, &table);
        // The version is not in the hash: it is whatever the sender says, but never 0.
        memcpy(hostile + 8, data + 8, hostile_bytes < 16 ? 0 : 8);
        const int is_same = hostile_bytes == bytes && memcmp(hostile, data, bytes) == 0;
        if (status == CAIRN_OK) ck_assert_msg(is_same, "mutation %d was believed", i);
        if (status != CAIRN_OK) ck_assert_int_eq(status, CAIRN_ERR_MALFORMED);
        refused += status != CAIRN_OK;
    }
    printf("layout bytes: %u of %d mutations refused, the others changed at most the version\n",
           refused, MUTATIONS);
    for (size_t cut = 0; cut < bytes; cut++)
        ck_assert_int_eq(decode_exactly(data, cut, &table), CAIRN_ERR_MALFORMED);
    table.tensor_count--; // a layout of another job
    ck_assert_int_eq(decode_exactly(data, bytes, &table), CAIRN_ERR_MALFORMED);
    layout_close(layout);
    free(data);
    free(hostile);
}

SUITE(60);
