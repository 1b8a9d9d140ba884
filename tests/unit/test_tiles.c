/* Lists of tiles, and whether those of all ranks make up the tensors: against a count of every element. */
#include "proto/wire/wire.h"

#include <inttypes.h>
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/random.h"
#include "tests/support/suite.h"

#define RANKS_MAX 16

/* A spec of the tensors "t0", "t1", ... */
static struct job_spec_data spec_of(const struct shape *shapes, size_t count)
{
    struct job_spec_data spec;
    spec_init(&spec);
    for (size_t i = 0; i < count; i++) {
        char name[32];
        snprintf(name, sizeof name, "t%zu", i);
        const struct tensor_spec tensor = { .name = name, .shape = shapes[i] };
        ck_assert_int_eq(spec_add_tensor(&spec, &tensor), CAIRN_OK);
    }
    return spec;
}

struct world {
    struct tiles tiles[RANKS_MAX];
    const struct tiles *of_rank[RANKS_MAX];
    uint32_t count;
};

static void hold(struct world *w, uint32_t rank, uint32_t tensor, struct cairn_box box)
{
    ck_assert_int_eq(tiles_set(&w->tiles[rank], tensor, &box), CAIRN_OK);
}

static cairn_status cover(struct world *w, const struct job_spec_data *spec, struct sentence *why)
{
    for (uint32_t r = 0; r < w->count; r++) w->of_rank[r] = &w->tiles[r];
    return tiles_cover(spec, w->of_rank, w->count, why);
}

static void world_release(struct world *w)
{
    for (uint32_t r = 0; r < RANKS_MAX; r++) tiles_release(&w->tiles[r]);
}

/* ---- the oracle ---- */

static bool has(const struct cairn_box *box, const struct shape *shape, uint64_t elem)
{
    for (uint32_t d = shape->rank; d-- > 0; elem /= shape->dim[d]) {
        const uint64_t at = elem % shape->dim[d];
        if (at < box->start[d] || at >= box->start[d] + box->extent[d]) return false;
    }
    return true;
}

static bool oracle_covers(const struct world *w, const struct shape *shape)
{
    uint64_t elems = 1;
    for (uint32_t d = 0; d < shape->rank; d++) elems *= shape->dim[d];
    for (uint64_t e = 0; e < elems; e++) {
        const struct cairn_box *owner = NULL;
        for (uint32_t r = 0; r < w->count; r++) {
            const struct cairn_box *box = tiles_find(&w->tiles[r], 0);
            if (!has(box, shape, e)) continue;
            if (owner != NULL && !box_equal(owner, box)) return false;
            owner = box;
        }
        if (owner == NULL) return false;
    }
    return true;
}

/* Cuts `count` boxes at random places until there are enough: a partition. */
static uint32_t random_partition(const struct shape *shape, struct cairn_box *boxes, uint32_t limit)
{
    uint32_t count = 1;
    boxes[0] = box_of_shape(shape);
    for (uint32_t tries = 0; tries < 2 * limit && count < limit && shape->rank > 0; tries++) {
        struct cairn_box *box = &boxes[random_below(count)];
        const uint32_t d = (uint32_t)random_below(shape->rank);
        if (box->extent[d] < 2) continue;
        const uint64_t cut = 1 + random_below(box->extent[d] - 1);
        boxes[count] = *box;
        boxes[count].start[d] += cut;
        boxes[count++].extent[d] -= cut;
        box->extent[d] = cut;
    }
    return count;
}

/* Moves an edge of one box, mostly breaking the cover. */
static void damage(struct cairn_box *box, const struct shape *shape)
{
    if (shape->rank == 0) return;
    const uint32_t d = (uint32_t)random_below(shape->rank);
    if (random_below(2) == 0 && box->start[d] > 0) {
        box->start[d]--;
        box->extent[d] += random_below(2);
    } else if (random_below(2) == 0 && box->start[d] + box->extent[d] < shape->dim[d]) {
        box->extent[d]++;
    } else if (box->extent[d] > 0) {
        box->extent[d]--;
    }
}

static void one_random_world(uint64_t seed)
{
    random_state = seed;
    struct shape shape = { .rank = (uint32_t)random_below(CAIRN_RANK_MAX + 1) };
    for (uint32_t d = 0; d < shape.rank; d++)
        shape.dim[d] = random_below(60) == 0 ? 0 : 1 + random_below(shape.rank > 4 ? 3 : 6);
    struct job_spec_data spec = spec_of(&shape, 1);

    struct cairn_box boxes[RANKS_MAX];
    const uint32_t parts = random_partition(&shape, boxes, 1 + (uint32_t)random_below(10));
    if (random_below(2) == 0) damage(&boxes[random_below(parts)], &shape);
    struct world w = { .count = parts + (uint32_t)random_below(RANKS_MAX - parts) };
    for (uint32_t r = 0; r < w.count; r++)
        hold(&w, r, 0, boxes[r < parts ? r : random_below(parts)]);

    struct sentence why = { "" };
    const cairn_status expected = oracle_covers(&w, &shape) ? CAIRN_OK : CAIRN_ERR_MISMATCH;
    const cairn_status status = cover(&w, &spec, &why);
    ck_assert_msg(status == expected, "seed %" PRIu64 ": %s, %s", seed,
                  status_code_name((int)status), why.text);
    ck_assert_int_eq(why.text[0] != '\0', expected != CAIRN_OK);
    world_release(&w);
    spec_release(&spec);
}

TEST(the_cover_check_agrees_with_a_count_of_every_element)
{
    for (uint64_t seed = 1; seed <= 4000; seed++) one_random_world(seed);
}

/* ---- sentences ---- */

#define LINE(from, count) \
    {                     \
        1, { from },      \
        {                 \
            count         \
        }                 \
    }
#define AREA(r, c, rows, cols) \
    {                          \
        2, { r, c },           \
        {                      \
            rows, cols         \
        }                      \
    }

/* What the ranks hold of a tensor "t0"; and a word of the sentence, NULL where it covers it. */
static const struct {
    const char *name;
    struct shape shape;
    uint32_t ranks; /* those behind `held` hold it whole */
    uint32_t held;
    struct cairn_box boxes[5];
    const char *word;
} covers[] = {
    { "an overlap of others than the first two",
      { 2, { 8, 6 } },
      .held = 3,
      .boxes = { AREA(0, 0, 8, 3), AREA(0, 0, 8, 3), AREA(0, 2, 8, 4) },
      .word = "tensor t0: rank 0 holds [0:8, 0:3] and rank 2 holds [0:8, 2:6], which overlap" },
    { "a hole",
      { 2, { 8, 6 } },
      .held = 3,
      .boxes = { AREA(0, 0, 8, 2), AREA(0, 2, 5, 4), AREA(5, 2, 3, 3) },
      .word = "tensor t0: no rank holds [5:8, 5:6]" },
    { "nobody",
      { 1, { 4 } },
      .held = 2,
      .boxes = { LINE(0, 0), LINE(0, 0) },
      .word = "tensor t0: no rank holds [0:4]" },
    { "a part and all of it", { 1, { 10 } }, 2, 1, { LINE(0, 5) }, "overlap" },
    { "all of it twice", { 1, { 10 } }, 2, 1, { LINE(0, 10) }, NULL },
    { "a pinwheel that no straight cut separates",
      { 2, { 3, 3 } },
      .held = 5,
      .boxes = { AREA(0, 0, 1, 2), AREA(0, 2, 2, 1), AREA(2, 1, 1, 2), AREA(1, 0, 2, 1),
                 AREA(1, 1, 1, 1) } },
    { "a pinwheel without its middle",
      { 2, { 3, 3 } },
      .held = 5,
      .boxes = { AREA(0, 0, 1, 2), AREA(0, 2, 2, 1), AREA(2, 1, 1, 2), AREA(1, 0, 2, 1),
                 AREA(1, 1, 0, 0) },
      .word = "no rank holds [1:2, 1:2]" },
};

TEST_EACH(an_overlap_or_a_hole_is_named_with_tensor_ranks_and_boxes, 0,
          sizeof covers / sizeof *covers)
{
    const struct shape shapes[] = { covers[_i].shape, { 0, { 0 } } }; // a scalar, which all hold
    struct job_spec_data spec = spec_of(shapes, 2);
    struct world w = { .count = covers[_i].ranks > 0 ? covers[_i].ranks : covers[_i].held };
    struct sentence why = { "" };
    for (uint32_t r = 0; r < covers[_i].held; r++) hold(&w, r, 0, covers[_i].boxes[r]);
    const char *word = covers[_i].word;
    const cairn_status status = cover(&w, &spec, &why);
    ck_assert_msg(status == (word == NULL ? CAIRN_OK : CAIRN_ERR_MISMATCH) &&
                      (word == NULL || strstr(why.text, word) != NULL),
                  "%s: %d: %s", covers[_i].name, (int)status, why.text);
    world_release(&w);
    spec_release(&spec);
}

/* A grid of 64 x 64 different boxes and 4 replicas each; quadratic it would take minutes. */
TEST(many_ranks_are_checked_at_once)
{
    enum { SIDE = 64, WORLD = 4 * SIDE * SIDE, TENSORS = 8 };
    struct shape shapes[TENSORS];
    for (size_t t = 0; t < TENSORS; t++) shapes[t] = (struct shape) { 2, { SIDE * 3, SIDE * 5 } };
    struct job_spec_data spec = spec_of(shapes, TENSORS);
    struct tiles *tiles = calloc(WORLD, sizeof *tiles);
    const struct tiles **of_rank = calloc(WORLD, sizeof *of_rank);
    for (uint32_t r = 0; r < WORLD; r++) {
        const uint64_t i = r / 4 % SIDE, j = r / 4 / SIDE;
        const struct cairn_box box = { 2, { i * 3, j * 5 }, { 3, 5 } };
        of_rank[r] = &tiles[r];
        for (uint32_t t = 0; t < TENSORS; t++)
            ck_assert_int_eq(tiles_set(&tiles[r], t, &box), CAIRN_OK);
    }
    ck_assert_int_eq(tiles_cover(&spec, of_rank, WORLD, NULL), CAIRN_OK);
    ck_assert_int_eq(tiles_cover(&spec, of_rank, WORLD - 4, NULL), CAIRN_ERR_MISMATCH);
    for (uint32_t r = 0; r < WORLD; r++) tiles_release(&tiles[r]);
    free(tiles);
    free(of_rank);
    spec_release(&spec);
}

/* ---- lists ---- */

TEST(a_list_is_sorted_has_one_box_a_tensor_and_finds_it)
{
    struct tiles tiles = { 0 };
    random_state = 5;
    bool set[200] = { false };
    for (int i = 0; i < 300; i++) {
        const uint32_t tensor = (uint32_t)random_below(200);
        const struct cairn_box box = { 1, { tensor }, { 1 } };
        ck_assert_int_eq(tiles_set(&tiles, tensor, &box), CAIRN_OK);
        set[tensor] = true;
    }
    size_t count = 0;
    for (uint32_t t = 0; t < 200; t++) {
        const struct cairn_box *box = tiles_find(&tiles, t);
        ck_assert_int_eq(box != NULL, set[t]);
        if (box != NULL) ck_assert_uint_eq(box->start[0], t);
        count += set[t];
    }
    ck_assert_uint_eq(tiles.count, count);
    tiles_release(&tiles);
}

TEST(a_list_survives_its_bytes_and_its_hash_names_it)
{
    const struct shape shapes[] = { { 2, { 8, 6 } }, { 1, { 9 } }, { 0, { 0 } } };
    struct job_spec_data spec = spec_of(shapes, 3);
    struct tiles tiles = { 0 }, back = { 0 };
    ck_assert_uint_eq(tiles_digest(&tiles), CAIRN_TABLE_HASH_WHOLE);
    ck_assert_int_eq(tiles_set(&tiles, 0, &(struct cairn_box) { 2, { 0, 3 }, { 8, 3 } }), 0);
    ck_assert_int_eq(tiles_set(&tiles, 2, &(struct cairn_box) { .rank = 0 }), 0);
    const uint64_t hash = tiles_digest(&tiles);
    uint8_t *bytes = NULL;
    size_t bytes_len = 0;
    ck_assert_int_eq(tiles_pack(&tiles, &bytes, &bytes_len), CAIRN_OK);
    ck_assert_int_eq(tiles_unpack(bytes, bytes_len, &spec, &back, NULL), CAIRN_OK);
    ck_assert(tiles_equal(&tiles, &back));
    ck_assert_uint_eq(tiles_digest(&back), hash);
    ck_assert_int_eq(tiles_set(&back, 0, &(struct cairn_box) { 2, { 0, 2 }, { 8, 3 } }), 0);
    ck_assert(!tiles_equal(&tiles, &back));
    ck_assert_uint_ne(tiles_digest(&back), hash);
    free(bytes);
    tiles_release(&tiles);
    tiles_release(&back);
    spec_release(&spec);
}

/* Packs without judging. */
static cairn_status unpack_of(const struct tile_box *boxes, size_t count,
                              const struct job_spec_data *spec, struct sentence *why)
{
    struct tile_box list[4];
    memcpy(list, boxes, count * sizeof *list);
    const struct tiles tiles = { list, count };
    uint8_t *bytes = NULL;
    size_t bytes_len = 0;
    ck_assert_int_eq(tiles_pack(&tiles, &bytes, &bytes_len), CAIRN_OK);
    struct tiles back = { 0 };
    cairn_status status = tiles_unpack(bytes, bytes_len, spec, &back, why);
    if (status != CAIRN_OK) ck_assert_ptr_null(back.list);
    tiles_release(&back);
    free(bytes);
    return status;
}

TEST(a_strangers_list_is_judged)
{
    const struct shape shapes[] = { { 2, { 8, 6 } }, { 1, { 9 } } };
    struct job_spec_data spec = spec_of(shapes, 2);
    static const struct {
        const char *name;
        size_t count;
        struct tile_box boxes[3];
        cairn_status status;
    } rows[] = {
        { "none", 0, { { 0 } }, CAIRN_OK },
        { "two", 2, { { 0, { 2, { 0 }, { 8, 6 } } }, { 1, { 1, { 9 }, { 0 } } } }, CAIRN_OK },
        { "no such tensor", 1, { { 2, { 1, { 0 }, { 1 } } } }, CAIRN_ERR_INVALID },
        { "no such tensor by far", 1, { { UINT32_MAX, { 1, { 0 }, { 1 } } } }, CAIRN_ERR_INVALID },
        { "twice",
          2,
          { { 1, { 1, { 0 }, { 1 } } }, { 1, { 1, { 0 }, { 1 } } } },
          CAIRN_ERR_INVALID },
        { "down",
          2,
          { { 1, { 1, { 0 }, { 1 } } }, { 0, { 2, { 0 }, { 1 } } } },
          CAIRN_ERR_INVALID },
        { "too many", 3, { { 0 } }, CAIRN_ERR_INVALID },
        { "beyond", 1, { { 1, { 1, { 5 }, { 5 } } } }, CAIRN_ERR_INVALID },
        { "other rank", 1, { { 1, { 2, { 5 }, { 4, 1 } } } }, CAIRN_ERR_INVALID },
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct sentence why = { "" };
        const cairn_status status = unpack_of(rows[i].boxes, rows[i].count, &spec, &why);
        ck_assert_msg(status == rows[i].status, "%s: %s", rows[i].name, why.text);
        ck_assert_int_eq(why.text[0] != '\0', status != CAIRN_OK);
    }
    spec_release(&spec);
}

TEST(any_bytes_at_all_are_refused_or_judged)
{
    const struct shape shapes[] = { { 2, { 8, 6 } }, { 1, { 9 } } };
    struct job_spec_data spec = spec_of(shapes, 2);
    random_state = 11;
    for (int i = 0; i < 20000; i++) {
        uint8_t bytes[40];
        const size_t len = (size_t)random_below(sizeof bytes);
        for (size_t b = 0; b < len; b++) bytes[b] = (uint8_t)random_below(i % 2 ? 256 : 20);
        struct tiles back = { 0 };
        if (tiles_unpack(bytes, len, &spec, &back, NULL) == CAIRN_OK)
            ck_assert_uint_le(back.count, 2);
        tiles_release(&back);
    }
    spec_release(&spec);
}

SUITE(60);
