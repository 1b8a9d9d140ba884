/* Planes of more than 2^31 elements: what a card makes of them is what the host makes of the same elements,
 * at the beginning, on both sides of 2^30 and 2^31, and at the end. CAIRN_TEST_LONG=1 has that many; without
 * it, and where the card has no room for them, there are few.
 *
 * On the card of this machine, or what the environment's CAIRN_CUDA_DRIVER names (CTest: an emulated one). */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "tests/gpu/home_scene.h"

#define LARGE_ELEMS (((uint64_t)1 << 31) + 3 * CAIRN_LEAF_ELEMS + 77)
#define SMALL_ELEMS ((uint64_t)40 * CAIRN_LEAF_ELEMS + 77)
#define SPARE_BYTES ((uint64_t)2 << 30) /* of the card, for the streams and others */

enum { WINDOW_LEAVES = 2, PLANES = 5 };

/* Planes at some address: param, grad, exp_avg, exp_avg_sq; and the wire copy. */
struct planes {
    float *f32[4];
    uint16_t *wire;
};

static const size_t elem_bytes[PLANES] = { 4, 4, 4, 4, 2 };

static uint8_t *plane_of(const struct planes *at, int p)
{
    return p < 4 ? (uint8_t *)at->f32[p] : (uint8_t *)at->wire;
}

/* ---- what is done with them, on the card and in a window of the host ---- */

static void make_values(struct home_stream *on, const struct planes *at, uint64_t first,
                        uint64_t elems)
{
    static const struct cairn_init inits[4] = { { CAIRN_INIT_UNIFORM, -1, 1, 5 },
                                                { CAIRN_INIT_NORMAL, 0, 0.1, 6 },
                                                { CAIRN_INIT_UNIFORM, -0.1, 0.1, 7 },
                                                { CAIRN_INIT_UNIFORM, 0, 0.1, 8 } };
    struct home_work works[4];
    memset(works, 0, sizeof works);
    for (int i = 0; i < 4; i++) {
        works[i].kind = CAIRN_WORK_INIT;
        works[i].init.out = at->f32[i];
        works[i].init.source = init_source_of(&inits[i], "w");
        works[i].init.first_elem = first;
        works[i].init.elems = elems;
    }
    must(home_run(on, works, 4, &why));
}

static void update(struct home_stream *on, const struct planes *at, uint64_t elems)
{
    const struct group_hyper adamw = { .optimizer = CAIRN_OPTIMIZER_ADAMW,
                                       .lr = 1e-3,
                                       .beta1 = 0.9,
                                       .beta2 = 0.999,
                                       .eps = 1e-8,
                                       .weight_decay = 0.01 };
    struct group_scalars scalars;
    uint64_t nonfinite = 77;
    ck_assert_int_eq(group_scalars_of(&adamw, 3, 0x3f000000, &scalars), CAIRN_OK);
    struct home_work work = { .kind = CAIRN_WORK_UPDATE };
    work.update.planes = (struct update) { .grad = at->f32[1],
                                           .param = at->f32[0],
                                           .exp_avg = at->f32[2],
                                           .exp_avg_sq = at->f32[3],
                                           .wire = at->wire,
                                           .wire_dtype = CAIRN_BF16,
                                           .elems = elems };
    work.update.scalars = &scalars;
    work.update.nonfinite = &nonfinite;
    must(home_run(on, &work, 1, &why));
    ck_assert_uint_eq(nonfinite, 0);
}

/* exp_avg += wire + param; exp_avg_sq = 0; grad = wire; wire = param. */
static void fold_convert_zero(struct home_stream *on, const struct planes *at, uint64_t elems)
{
    const struct fold_source sources[2] = { { at->wire, CAIRN_BF16 }, { at->f32[0], CAIRN_F32 } };
    struct home_work works[3];
    memset(works, 0, sizeof works);
    works[0].kind = CAIRN_WORK_FOLD;
    works[0].fold.acc = at->f32[2];
    works[0].fold.sources = sources;
    works[0].fold.source_count = 2;
    works[0].fold.elems = elems;
    works[1].kind = CAIRN_WORK_ZERO;
    works[1].zero.at = at->f32[3];
    works[1].zero.bytes = elems * 4;
    must(home_run(on, works, 2, &why));
    works[2].kind = CAIRN_WORK_CONVERT;
    works[2].convert.src = at->wire;
    works[2].convert.dst = at->f32[1];
    works[2].convert.src_dtype = CAIRN_BF16;
    works[2].convert.dst_dtype = CAIRN_F32;
    works[2].convert.elems = elems;
    must(home_run(on, &works[2], 1, &why));
    works[2].convert.src = at->f32[0];
    works[2].convert.dst = at->wire;
    works[2].convert.src_dtype = CAIRN_F32;
    works[2].convert.dst_dtype = CAIRN_BF16;
    must(home_run(on, &works[2], 1, &why));
}

static void hash(struct home_stream *on, const struct planes *at, const struct geometry *geometry,
                 uint64_t first_leaf, uint64_t leaf_count, struct hash *hashes)
{
    struct home_work work = { .kind = CAIRN_WORK_HASH };
    work.hash.plane = at->f32[2];
    work.hash.dtype = CAIRN_F32;
    work.hash.geometry = geometry;
    work.hash.first_leaf = first_leaf;
    work.hash.leaf_count = leaf_count;
    work.hash.hashes = hashes;
    must(home_run(on, &work, 1, &why));
}

static void work_on(struct home_stream *on, const struct planes *at, uint64_t first, uint64_t elems)
{
    make_values(on, at, first, elems);
    update(on, at, elems);
    fold_convert_zero(on, at, elems);
}

/* ---- the card ---- */

struct card {
    struct home *home;
    struct home_stream *stream, *host_stream;
    struct home_memory memory[PLANES];
    struct planes at;
    struct geometry geometry;
    struct hash *hashes; /* [leaf_count] */
};

static uint64_t elems_for(struct home *of)
{
    const uint64_t bytes = 18 * LARGE_ELEMS + SPARE_BYTES, free_bytes = home_free_bytes(of);
    if (getenv("CAIRN_TEST_LONG") == NULL) return SMALL_ELEMS;
    if (free_bytes >= bytes) return LARGE_ELEMS;
    printf("note: nothing past 2^31 elements: it takes %" PRIu64 " MiB of the card, %" PRIu64
           " are free\n",
           (bytes >> 20), (free_bytes >> 20));
    fflush(stdout);
    return SMALL_ELEMS;
}

static void open_card(struct card *card)
{
    must(home_open_cuda(getenv("CAIRN_TEST_CARD"), &card->home, &why));
    must(home_stream_open(card->home, &card->stream, &why));
    must(home_stream_open(home_host(), &card->host_stream, &why));
    const struct shape shape = { .rank = 1, .dim = { elems_for(card->home) } };
    card->geometry = geometry_of(&shape);
    for (int i = 0; i < PLANES; i++)
        must(home_memory_open(card->home, "a plane", shape.dim[0] * elem_bytes[i], &card->memory[i],
                              &why));
    for (int i = 0; i < 4; i++) card->at.f32[i] = card->memory[i].base;
    card->at.wire = card->memory[4].base;
    card->hashes = calloc(card->geometry.leaf_count, sizeof *card->hashes);
    ck_assert_ptr_nonnull(card->hashes);
}

static void close_card(struct card *card)
{
    for (int i = 0; i < PLANES; i++) home_memory_close(&card->memory[i]);
    home_stream_close(card->stream);
    home_stream_close(card->host_stream);
    home_close(card->home);
    free(card->hashes);
}

static void check_window(const struct card *card, uint64_t first_leaf)
{
    static float f32[4][WINDOW_LEAVES * CAIRN_LEAF_ELEMS];
    static uint16_t wire[WINDOW_LEAVES * CAIRN_LEAF_ELEMS];
    static uint8_t seen[sizeof f32[0]];
    const struct planes window = { { f32[0], f32[1], f32[2], f32[3] }, wire };
    const uint64_t first = leaf_start(&card->geometry, first_leaf);
    const uint64_t end = leaf_start(&card->geometry, first_leaf + WINDOW_LEAVES);
    struct hash hashes[WINDOW_LEAVES];
    work_on(card->host_stream, &window, first, end - first);
    for (int i = 0; i < PLANES; i++) {
        const size_t bytes = (end - first) * elem_bytes[i];
        struct home_work copy = copy_work(seen, plane_of(&card->at, i) + first * elem_bytes[i],
                                          bytes);
        must(home_run(card->stream, &copy, 1, &why));
        ck_assert_msg(memcmp(seen, plane_of(&window, i), bytes) == 0,
                      "plane %d from element %" PRIu64, i, first);
    }
    hash(card->host_stream, &window, &card->geometry, first_leaf, WINDOW_LEAVES, hashes);
    ck_assert_msg(memcmp(hashes, card->hashes + first_leaf, sizeof hashes) == 0, "leaf %" PRIu64,
                  first_leaf);
}

TEST(planes_past_2_31_elements_have_the_bits_of_the_host)
{
    struct card card = { 0 };
    open_card(&card);
    const uint64_t leaves = card.geometry.leaf_count, elems = card.geometry.elems;
    work_on(card.stream, &card.at, 0, elems);
    hash(card.stream, &card.at, &card.geometry, 0, leaves, card.hashes);
    check_window(&card, 0);
    for (unsigned power = 28; power < 32; power++) {
        const uint64_t leaf = ((uint64_t)1 << power) / CAIRN_LEAF_ELEMS;
        if (leaf + 1 < leaves) check_window(&card, leaf - 1);
    }
    check_window(&card, leaves - WINDOW_LEAVES);
    close_card(&card);
}

SUITE(120);
