/* Every kernel of a device, run as a function of this process, has the bits of the host's reference: any
 * lengths with tails, addresses of any alignment, NaN, infinities, subnormals and -0 among the numbers;
 * any blocks in any order. And it touches what it says to touch, and nothing else. */
#include "gpu/gpu.h"
#include "gpu/home_kind.h"
#include "proto/spec/spec.h"
#include "tests/gpu/kernel_scene.h"
#include "tests/support/suite.h"

#define TRIALS  30
#define SOURCES 6

/* One test, and one process, of many lists: `_i` is the number of one. */
#define TRIALS_OF(name, trials)                                  \
    static void name##_trial(int _i);                            \
    TEST(name)                                                   \
    {                                                            \
        for (int i = 0; i < (int)(trials); i++) name##_trial(i); \
    }                                                            \
    static void name##_trial(int _i)

static const struct backend *host(void)
{
    return backend_host();
}

/* ---- folds ---- */

struct sources {
    struct fold_source of[SOURCES]; /* data: of the scene's memory, as this process sees it */
    uint32_t count;
    uint64_t at;
};

static struct sources make_sources(uint64_t least, uint64_t elems)
{
    struct sources s = { .count = (uint32_t)(least + random_below(SOURCES + 1 - least)) };
    struct kernel_source list[SOURCES];
    const uint64_t mix = random_below(3);
    for (uint32_t i = 0; i < s.count; i++) {
        const cairn_dtype dtype = mix == 0 || (mix == 1 && random_below(2) == 0) ? CAIRN_F32
                                                                                 : CAIRN_BF16;
        list[i] = (struct kernel_source) { scene_plane(dtype, elems), dtype };
        s.of[i] = (struct fold_source) { scene_at(list[i].data), dtype };
    }
    if (s.count == 0) return s;
    s.at = scene_take(s.count * sizeof list[0], 8);
    memcpy(scene_at(s.at), list, s.count * sizeof list[0]);
    return s;
}

TRIALS_OF(a_fold_has_the_bits_of_the_host, TRIALS)
{
    struct fold_item items[SCENE_ITEMS];
    float *want[SCENE_ITEMS];
    uint64_t pieces = 0;
    scene_begin(1 + (uint64_t)_i);
    const uint64_t count = 1 + random_below(SCENE_ITEMS);
    for (uint64_t i = 0; i < count; i++) {
        const uint64_t elems = scene_elems();
        const struct sources s = make_sources(0, elems);
        items[i] = (struct fold_item) { .first_piece = pieces,
                                        .acc = scene_plane(CAIRN_F32, elems),
                                        .sources = s.at,
                                        .source_count = s.count,
                                        .first = (uint32_t)random_below(2),
                                        .elems = elems };
        pieces += fold_pieces(&items[i]);
        want[i] = scene_copy(items[i].acc, elems * sizeof(float));
        host()->fold(want[i], s.of, s.count, items[i].first != 0, elems);
    }
    scene_run(CAIRN_KERNEL_fold, items, count, pieces);
    for (uint64_t i = 0; i < count; i++) {
        scene_same_f32("fold", items[i].acc, want[i], items[i].elems);
        free(want[i]);
    }
}

/* Rows of many lengths: whole leaves, short ones, quanta of several rows. */
static struct geometry make_geometry(void)
{
    static const uint64_t row[] = { 1, 3, 33, 1000, 4096, 4097, 5000, 9000, 12288 };
    const uint64_t elems = row[random_below(sizeof row / sizeof row[0])];
    const struct shape shape = { 2, { 1 + random_below(60000 / elems), elems } };
    return geometry_of(&shape);
}

static struct kernel_geometry of_kernel(const struct geometry *g)
{
    return (struct kernel_geometry) { g->elems, g->quantum_elems, g->leaves_per_quantum };
}

static void same_sums(const struct fold_sums_item *item, const struct geometry *g, const float *acc)
{
    const uint64_t origin = leaf_start(g, item->first_leaf);
    for (uint64_t n = 0; n < item->leaf_count; n++) {
        struct sums want = { 0 }, got = { 0 };
        double square;
        uint32_t nonfinite;
        memcpy(&square, scene_at(item->squares + 8 * n), sizeof square);
        memcpy(&nonfinite, scene_at(item->nonfinite + 4 * n), sizeof nonfinite);
        host()->sum_leaves(acc + (leaf_start(g, item->first_leaf + n) - origin), g,
                           item->first_leaf + n, 1, &want);
        ck_assert_int_eq(exact_add_double(&got.sum_squares, square), CAIRN_OK);
        ck_assert_uint_eq(nonfinite, want.nonfinite);
        ck_assert_mem_eq(&got.sum_squares, &want.sum_squares, sizeof want.sum_squares);
    }
}

TRIALS_OF(a_fold_with_sums_has_the_bits_of_the_host, 2 * TRIALS)
{
    struct fold_sums_item items[SCENE_ITEMS];
    struct geometry geometry[SCENE_ITEMS];
    float *want[SCENE_ITEMS];
    uint64_t pieces = 0;
    scene_begin(1000 + (uint64_t)_i);
    const uint64_t count = 1 + random_below(SCENE_ITEMS);
    for (uint64_t i = 0; i < count; i++) {
        const struct geometry g = geometry[i] = make_geometry();
        const uint64_t first = random_below(g.leaf_count),
                       leaves = random_below(g.leaf_count - first + 1);
        const uint64_t elems = leaf_start(&g, first + leaves) - leaf_start(&g, first);
        const struct sources s = make_sources(0, elems);
        items[i] = (struct fold_sums_item) { .first_piece = pieces,
                                             .acc = scene_plane(CAIRN_F32, elems),
                                             .sources = s.at,
                                             .source_count = s.count,
                                             .first = (uint32_t)random_below(2),
                                             .geometry = of_kernel(&g),
                                             .first_leaf = first,
                                             .leaf_count = leaves,
                                             .squares = scene_take(8 * leaves, 8),
                                             .nonfinite = scene_take(4 * leaves, 4) };
        pieces += fold_sums_pieces(&items[i]);
        want[i] = scene_copy(items[i].acc, elems * sizeof(float));
        if (s.count != 0) host()->fold(want[i], s.of, s.count, items[i].first != 0, elems);
    }
    scene_run(CAIRN_KERNEL_fold_sums, items, count, pieces);
    for (uint64_t i = 0; i < count; i++) {
        const struct fold_sums_item *item = &items[i];
        scene_same_f32("fold_sums", item->acc, want[i],
                       leaf_start(&geometry[i], item->first_leaf + item->leaf_count) -
                           leaf_start(&geometry[i], item->first_leaf));
        same_sums(item, &geometry[i], want[i]);
        free(want[i]);
    }
}

/* ---- optimizers ---- */

static uint32_t positive(float scale)
{
    return f32_bits(scale * (float)(1 + random_below(1000)) / 1000);
}

static struct group_scalars make_scalars(uint32_t optimizer)
{
    struct group_scalars s = {
        .optimizer = optimizer,
        .grad_scale = positive(random_below(4) == 0 ? 1e30f : 1),
        .neg_step_size = positive(1e-2f) | 0x80000000u,
        .decay = random_below(3) == 0 ? 0 : positive(optimizer == CAIRN_OPTIMIZER_ADAMW ? 1 : 0.1f),
        .one_minus_beta1 = positive(0.2f),
        .beta2 = positive(1),
        .one_minus_beta2 = positive(0.01f),
        .sqrt_bc2 = positive(1),
        .eps = random_below(4) == 0 ? 0 : positive(1e-7f),
        .momentum = positive(1),
    };
    if (optimizer == CAIRN_OPTIMIZER_SGD) s.flags = (uint32_t)random_below(8); // all of its flags
    if (random_below(8) == 0) s.neg_step_size = 0x80000000u;
    return s;
}

struct planes {
    struct update host; /* copies, owned */
    uint64_t nonfinite; /* what the host counted */
};

static struct update_item make_update(uint32_t optimizer, bool has_ema, uint64_t first_piece,
                                      struct planes *planes)
{
    const uint64_t elems = scene_elems(), wire = random_below(3);
    struct update_item item = {
        .first_piece = first_piece,
        .grad = scene_plane(CAIRN_F32, elems),
        .param = scene_plane(CAIRN_F32, elems),
        .exp_avg = scene_plane(CAIRN_F32, elems),
        .exp_avg_sq = scene_plane(CAIRN_F32, elems),
        .wire_dtype = wire == 1 ? CAIRN_F32 : CAIRN_BF16,
        .elems = elems,
        .nonfinite = scene_take(8, 8),
        .scalars = make_scalars(optimizer),
    };
    if (has_ema) item.ema = scene_plane(CAIRN_F32, elems);
    // both halves, and the first update, whose weight is 1
    if (has_ema) item.scalars.ema_weight = random_below(4) == 0 ? f32_bits(1) : positive(1);
    if (wire != 0) item.wire = scene_plane((cairn_dtype)item.wire_dtype, elems);
    memset(scene_at(item.nonfinite), 0, 8);
    const uint64_t bytes = elems * sizeof(float);
    planes->host = (struct update) {
        .grad = scene_copy(item.grad, bytes),
        .param = scene_copy(item.param, bytes),
        .exp_avg = scene_copy(item.exp_avg, bytes),
        .exp_avg_sq = scene_copy(item.exp_avg_sq, bytes),
        .ema = has_ema ? scene_copy(item.ema, bytes) : NULL,
        .wire = wire != 0 ? scene_copy(item.wire, elems * dtype_size((int)item.wire_dtype)) : NULL,
        .wire_dtype = (cairn_dtype)item.wire_dtype,
        .elems = elems,
    };
    planes->nonfinite = host()->update[optimizer](&planes->host, &item.scalars);
    return item;
}

static void same_update(const struct update_item *item, const struct planes *planes)
{
    const struct update *want = &planes->host;
    uint64_t nonfinite;
    memcpy(&nonfinite, scene_at(item->nonfinite), sizeof nonfinite);
    scene_same_f32("param", item->param, want->param, item->elems);
    scene_same_f32("exp_avg", item->exp_avg, want->exp_avg, item->elems);
    scene_same_f32("exp_avg_sq", item->exp_avg_sq, want->exp_avg_sq, item->elems);
    if (want->ema != NULL) scene_same_f32("ema", item->ema, want->ema, item->elems);
    if (want->wire != NULL && want->wire_dtype == CAIRN_BF16)
        scene_same_bytes("wire", item->wire, want->wire, 2 * item->elems);
    else if (want->wire != NULL)
        scene_same_f32("wire", item->wire, want->wire, item->elems);
    ck_assert_uint_eq(nonfinite, planes->nonfinite);
    free((void *)(uintptr_t)want->grad);
    free(want->param);
    free(want->exp_avg);
    free(want->exp_avg_sq);
    free(want->ema);
    free(want->wire);
}

static const struct {
    uint32_t optimizer;
    bool has_ema;
    enum kernel_number kernel;
} updates[] = {
    { CAIRN_OPTIMIZER_ADAMW, false, CAIRN_KERNEL_update_adamw },
    { CAIRN_OPTIMIZER_ADAM, false, CAIRN_KERNEL_update_adam },
    { CAIRN_OPTIMIZER_SGD, false, CAIRN_KERNEL_update_sgd },
    { CAIRN_OPTIMIZER_ADAMW, true, CAIRN_KERNEL_update_adamw_ema },
    { CAIRN_OPTIMIZER_ADAM, true, CAIRN_KERNEL_update_adam_ema },
    { CAIRN_OPTIMIZER_SGD, true, CAIRN_KERNEL_update_sgd_ema },
};
#define UPDATES (sizeof updates / sizeof updates[0])

TEST(every_optimizer_has_a_kernel)
{
    for (uint32_t optimizer = 1; optimizer < CAIRN_OPTIMIZER_COUNT; optimizer++) {
        size_t found = 0;
        for (size_t i = 0; i < UPDATES; i++) found += updates[i].optimizer == optimizer;
        ck_assert_uint_eq(found, 2); // with an average and without
    }
}

TRIALS_OF(an_update_has_the_bits_of_the_host, UPDATES *TRIALS)
{
    struct update_item items[SCENE_ITEMS];
    struct planes planes[SCENE_ITEMS];
    uint64_t pieces = 0;
    scene_begin(2000 + (uint64_t)_i);
    const uint64_t count = 1 + random_below(SCENE_ITEMS);
    for (uint64_t i = 0; i < count; i++) {
        items[i] = make_update(updates[(size_t)_i % UPDATES].optimizer,
                               updates[(size_t)_i % UPDATES].has_ema, pieces, &planes[i]);
        pieces += update_adamw_pieces(&items[i]);
    }
    scene_run(updates[(size_t)_i % UPDATES].kernel, items, count, pieces);
    for (uint64_t i = 0; i < count; i++) same_update(&items[i], &planes[i]);
}

/* ---- bytes ---- */

TRIALS_OF(a_conversion_has_the_bits_of_the_host, TRIALS)
{
    static const struct {
        cairn_dtype dst, src;
    } pairs[] = { { CAIRN_F32, CAIRN_BF16 },  { CAIRN_BF16, CAIRN_F32 }, { CAIRN_F32, CAIRN_F32 },
                  { CAIRN_BF16, CAIRN_BF16 }, { CAIRN_F16, CAIRN_F16 },  { CAIRN_F64, CAIRN_F64 },
                  { CAIRN_U8, CAIRN_U8 } };
    struct convert_item items[SCENE_ITEMS];
    uint64_t pieces = 0;
    scene_begin(3000 + (uint64_t)_i);
    const uint64_t count = 1 + random_below(SCENE_ITEMS);
    for (uint64_t i = 0; i < count; i++) {
        const size_t pair = random_below(sizeof pairs / sizeof pairs[0]);
        const uint64_t elems = scene_elems(), dst = dtype_size((int)pairs[pair].dst),
                       src = dtype_size((int)pairs[pair].src);
        items[i] = (struct convert_item) { .first_piece = pieces,
                                           .dst = scene_take(elems * dst, dst),
                                           .src = scene_take(elems * src, src),
                                           .elems = elems,
                                           .dst_dtype = pairs[pair].dst,
                                           .src_dtype = pairs[pair].src };
        scene_fill(items[i].src, src == 4 ? CAIRN_F32 : CAIRN_BF16,
                   elems * src / (src == 4 ? 4 : 2));
        pieces += convert_pieces(&items[i]);
    }
    scene_run(CAIRN_KERNEL_convert, items, count, pieces);
    for (uint64_t i = 0; i < count; i++) {
        const cairn_dtype dst = (cairn_dtype)items[i].dst_dtype,
                          src = (cairn_dtype)items[i].src_dtype;
        const uint64_t bytes = items[i].elems * dtype_size((int)dst);
        void *want = scene_copy(items[i].dst, bytes);
        host()->convert(want, dst, scene_at(items[i].src), src, items[i].elems);
        if (dst == CAIRN_F32 && src != dst)
            scene_same_f32("convert", items[i].dst, want, items[i].elems);
        else
            scene_same_bytes("convert", items[i].dst, want, bytes);
        free(want);
    }
}

TRIALS_OF(runs_of_bytes_are_copied_whatever_their_alignment, TRIALS)
{
    struct copy_item items[SCENE_ITEMS];
    uint64_t pieces = 0;
    scene_begin(4000 + (uint64_t)_i);
    const uint64_t count = 1 + random_below(SCENE_ITEMS), unit = (uint64_t)1 << random_below(5);
    for (uint64_t i = 0; i < count; i++) {
        const uint64_t bytes = random_below(2) == 0 ? random_below(70) : random_below(40000);
        const uint64_t runs = random_below(6), apart = bytes + unit * random_below(9);
        items[i] = (struct copy_item) { .first_piece = pieces,
                                        .to = scene_take(runs * apart, unit),
                                        .from = scene_take(runs * (bytes + unit), unit),
                                        .run_bytes = bytes,
                                        .run_count = runs,
                                        .to_stride = apart,
                                        .from_stride = bytes + unit };
        scene_fill(items[i].from / 2 * 2, CAIRN_BF16, runs * (bytes + unit) / 2);
        pieces += copy_pieces(&items[i]);
    }
    scene_run(CAIRN_KERNEL_copy, items, count, pieces);
    for (uint64_t i = 0; i < count; i++)
        for (uint64_t run = 0; run < items[i].run_count; run++)
            scene_same_bytes("copy", items[i].to + run * items[i].to_stride,
                             scene_at(items[i].from + run * items[i].from_stride),
                             items[i].run_bytes);
}

TRIALS_OF(what_is_zeroed_is_zero_whatever_its_alignment, TRIALS)
{
    struct zero_item items[SCENE_ITEMS];
    uint64_t pieces = 0;
    scene_begin(5000 + (uint64_t)_i);
    const uint64_t count = 1 + random_below(SCENE_ITEMS);
    for (uint64_t i = 0; i < count; i++) {
        const uint64_t bytes = random_below(2) == 0 ? random_below(70) : random_below(40000);
        items[i] = (struct zero_item) { pieces, scene_take(bytes, 1), bytes };
        memset(scene_at(items[i].at), 0x5a, bytes);
        pieces += zero_pieces(&items[i]);
    }
    scene_run(CAIRN_KERNEL_zero, items, count, pieces);
    for (uint64_t i = 0; i < count; i++) {
        void *none = calloc(1, items[i].bytes + 1);
        scene_same_bytes("zero", items[i].at, none, items[i].bytes);
        free(none);
    }
}

TRIALS_OF(leaf_hashes_are_those_of_the_host, TRIALS)
{
    static const cairn_dtype dtypes[] = { CAIRN_F32, CAIRN_BF16, CAIRN_F16, CAIRN_F64, CAIRN_U8 };
    struct hash_item items[SCENE_ITEMS];
    struct geometry geometry[SCENE_ITEMS];
    uint64_t pieces = 0;
    scene_begin(6000 + (uint64_t)_i);
    const uint64_t count = 1 + random_below(SCENE_ITEMS);
    for (uint64_t i = 0; i < count; i++) {
        const struct geometry g = geometry[i] = make_geometry();
        const cairn_dtype dtype = dtypes[random_below(sizeof dtypes / sizeof dtypes[0])];
        const uint64_t first = random_below(g.leaf_count),
                       leaves = random_below(g.leaf_count - first + 1);
        const uint64_t elems = leaf_start(&g, first + leaves) - leaf_start(&g, first);
        const uint64_t bytes = dtype_size((int)dtype), at = scene_take(elems * bytes, bytes);
        for (uint64_t k = 0; k < elems * bytes;
             k++) { // every 16th byte or so is of a NaN, whatever the dtype
            *(uint8_t *)scene_at(at + k) = (uint8_t)(random_below(16) == 0 ? 0xff : random_next());
        }
        items[i] = (struct hash_item) {
            pieces, at, dtype, of_kernel(&g), first, leaves, scene_take(32 * leaves, 8)
        };
        pieces += hash_pieces(&items[i]);
    }
    scene_run(CAIRN_KERNEL_hash, items, count, pieces);
    for (uint64_t i = 0; i < count; i++) {
        struct hash *want = calloc(items[i].leaf_count + 1, sizeof *want);
        host_hash_each(scene_at(items[i].plane), (cairn_dtype)items[i].dtype, &geometry[i],
                       items[i].first_leaf, items[i].leaf_count, want);
        scene_same_bytes("hash", items[i].hashes, want, 32 * items[i].leaf_count);
        free(want);
    }
}

/* Elements past 2^32, where a block's number has a second word, too. */
TRIALS_OF(initial_values_are_those_of_the_host, TRIALS)
{
    struct init_item items[SCENE_ITEMS];
    uint64_t pieces = 0;
    scene_begin(7000 + (uint64_t)_i);
    const uint64_t count = 1 + random_below(SCENE_ITEMS);
    for (uint64_t i = 0; i < count; i++) {
        const cairn_init_kind kind = (cairn_init_kind)(CAIRN_INIT_ZEROS + random_below(5));
        const struct cairn_init init = { kind, (double)random_below(100) * 0.037 - 2, 0.02,
                                         random_next() };
        const uint64_t elems = scene_elems();
        items[i] = (struct init_item) { pieces, scene_plane(CAIRN_F32, elems),
                                        random_below(3) == 0 ? random_below((uint64_t)1 << 48)
                                                             : random_below(5000),
                                        elems, init_source_of(&init, "h.3.attn.weight") };
        pieces += init_pieces(&items[i]);
    }
    scene_run(CAIRN_KERNEL_init, items, count, pieces);
    for (uint64_t i = 0; i < count; i++) {
        float *want = calloc(items[i].elems + 1, sizeof *want);
        ck_assert_ptr_nonnull(want);
        init_elems(&items[i].source, items[i].first_elem, items[i].elems, want);
        scene_same_bytes("init", items[i].out, want, 4 * items[i].elems);
        free(want);
    }
}

/* ---- lists ---- */

/* As many blocks as a large card has multiprocessors (132), about, or some are idle. */
TEST(a_list_of_256_chunks_has_blocks_for_a_whole_card)
{
    const uint64_t leaves = 256 * 64, elems = leaves * CAIRN_LEAF_ELEMS;
    const struct fold_item fold = { .elems = elems };
    const struct fold_sums_item sums = { .leaf_count = leaves };
    const struct update_item update = { .elems = elems };
    const struct convert_item convert = { .elems = elems };
    const struct copy_item copy = { .run_bytes = 2 * elems, .run_count = 1 };
    const struct zero_item zero = { .bytes = 4 * elems };
    const struct hash_item hash = { .leaf_count = leaves };
    const struct init_item init = { .elems = elems };
    const uint64_t pieces[CAIRN_KERNEL_COUNT] = {
        [CAIRN_KERNEL_fold] = fold_pieces(&fold),
        [CAIRN_KERNEL_fold_sums] = fold_sums_pieces(&sums),
        [CAIRN_KERNEL_update_adamw] = update_adamw_pieces(&update),
        [CAIRN_KERNEL_update_adam] = update_adam_pieces(&update),
        [CAIRN_KERNEL_update_sgd] = update_sgd_pieces(&update),
        [CAIRN_KERNEL_update_adamw_ema] = update_adamw_ema_pieces(&update),
        [CAIRN_KERNEL_update_adam_ema] = update_adam_ema_pieces(&update),
        [CAIRN_KERNEL_update_sgd_ema] = update_sgd_ema_pieces(&update),
        [CAIRN_KERNEL_convert] = convert_pieces(&convert),
        [CAIRN_KERNEL_copy] = copy_pieces(&copy),
        [CAIRN_KERNEL_zero] = zero_pieces(&zero),
        [CAIRN_KERNEL_hash] = hash_pieces(&hash),
        [CAIRN_KERNEL_init] = init_pieces(&init),
    };
    for (int k = 0; k < CAIRN_KERNEL_COUNT; k++)
        ck_assert_uint_ge(kernel_blocks((enum kernel_number)k, pieces[k], 132 * 128), 128);
}

TEST(a_long_list_with_empty_items_is_done_whole)
{
    enum { COUNT = 3000 };
    static struct zero_item items[COUNT];
    static const uint8_t none[300];
    uint64_t pieces = 0;
    scene_begin(7);
    for (uint64_t i = 0; i < COUNT; i++) {
        const uint64_t bytes = random_below(3) == 0 ? 0 : random_below(300);
        items[i] = (struct zero_item) { pieces, scene_take(bytes, 1), bytes };
        memset(scene_at(items[i].at), 0x5a, bytes);
        pieces += zero_pieces(&items[i]);
    }
    scene_run(CAIRN_KERNEL_zero, items, COUNT, pieces);
    for (uint64_t i = 0; i < COUNT; i++)
        scene_same_bytes("zero", items[i].at, none, items[i].bytes);
}

TEST(memory_that_is_not_the_devices_lies_where_it_seems_to)
{
    float x[5] = { 1, -0.0f, 3, 4, 5 };
    uint16_t half[5] = { 0 };
    scene_begin(8);
    const struct convert_item item = { 0, (uintptr_t)half, (uintptr_t)x, 5, CAIRN_BF16, CAIRN_F32 };
    const struct kernel_list list = { (uintptr_t)&item, 1, convert_pieces(&item) };
    kernel_table[CAIRN_KERNEL_convert].run(&list, 0, 1);
    ck_assert_uint_eq(half[0], 0x3f80);
    ck_assert_uint_eq(half[1], 0x8000);
    ck_assert_uint_eq(half[4], 0x40a0);
    ck_assert_ptr_null(kernel_named("cairn_kernel_none"));
}

SUITE(60);
