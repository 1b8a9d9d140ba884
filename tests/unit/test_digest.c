/* The content root: against a recursive RFC 6962 tree, and against hashes made by Python. */
#include <check.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <sodium.h>

#include "gpu/gpu.h"
#include "proto/snapshot/digest_tree.h"
#include "tests/support/hyper.h"
#include "tests/support/suite.h"

static void check_hash(const struct hash *a, const struct hash *b)
{
    ck_assert_mem_eq(a->byte, b->byte, CAIRN_HASH_BYTES);
}

static void check_hex(const struct hash *hash, const char *expected)
{
    char hex[2 * CAIRN_HASH_BYTES + 1];
    ck_assert_str_eq(sodium_bin2hex(hex, sizeof hex, hash->byte, CAIRN_HASH_BYTES), expected);
}

static struct hash leaf_of(uint64_t number)
{
    struct hash hash;
    leaf_hash(&number, sizeof number, &hash);
    return hash;
}

/* RFC 6962, 2.1, as it is written. */
static struct hash slow_root(uint64_t first, uint64_t count)
{
    struct hash out;
    uint8_t bytes[1 + 2 * CAIRN_HASH_BYTES] = { 0x01 };
    if (count == 1) return leaf_of(first);
    if (count == 0) {
        bytes_hash(NULL, 0, &out);
        return out;
    }
    uint64_t split = 1;
    while (split * 2 < count) split *= 2;
    struct hash left = slow_root(first, split), right = slow_root(first + split, count - split);
    memcpy(bytes + 1, left.byte, CAIRN_HASH_BYTES);
    memcpy(bytes + 1 + CAIRN_HASH_BYTES, right.byte, CAIRN_HASH_BYTES);
    bytes_hash(bytes, sizeof bytes, &out);
    return out;
}

/* Appends the nodes of the leaves [first, end) to nodes; returns how many. */
static size_t range_nodes(uint64_t first, uint64_t end, struct tree_node *nodes)
{
    struct hash_tree tree;
    tree_init(&tree, first);
    for (uint64_t i = first; i < end; i++) {
        struct hash leaf = leaf_of(i);
        tree_push_leaf(&tree, &leaf);
    }
    memcpy(nodes, tree.node, tree.node_count * sizeof *nodes);
    return tree.node_count;
}

TEST(leaves_pushed_in_order_give_the_root_of_rfc_6962)
{
    for (uint64_t n = 0; n <= 130; n++) {
        struct hash_tree tree;
        struct hash root, slow = slow_root(0, n);
        tree_init(&tree, 0);
        for (uint64_t i = 0; i < n; i++) {
            struct hash leaf = leaf_of(i);
            tree_push_leaf(&tree, &leaf);
        }
        ck_assert_int_eq(digest_tree_root(&tree, n, &root), CAIRN_OK);
        check_hash(&root, &slow);
    }
}

TEST(ranges_of_any_cut_in_any_order_combine_to_the_same_root)
{
    srand(1);
    for (int trial = 0; trial < 300; trial++) {
        uint64_t n = (uint64_t)rand() % 200;
        struct tree_node nodes[400];
        size_t count = 0;
        for (uint64_t first = 0; first < n;) {
            uint64_t end = first + 1 + (uint64_t)rand() % 60;
            if (end > n) end = n;
            count += range_nodes(first, end, nodes + count);
            first = end;
        }
        for (size_t i = count; i > 1; i--) {
            size_t k = (size_t)rand() % i;
            struct tree_node held = nodes[k];
            nodes[k] = nodes[i - 1];
            nodes[i - 1] = held;
        }
        struct hash root, slow = slow_root(0, n);
        ck_assert_int_eq(tree_combine(nodes, count, n, &root), CAIRN_OK);
        check_hash(&root, &slow);
    }
}

TEST(a_range_is_few_nodes)
{
    struct tree_node nodes[CAIRN_TREE_NODES_MAX];
    ck_assert_uint_eq(range_nodes(1, 4095, nodes), 22); // 1, 2, 4 ... 1024, 1024 ... 2, 1 leaves
    ck_assert_uint_eq(range_nodes(4096, 8192, nodes), 1);
    ck_assert_uint_eq(range_nodes(5, 5, nodes), 0);
}

TEST(the_longest_range_fits)
{
    // All but the first and the last leaf of the largest tree: two nodes a level.
    struct hash_tree tree;
    const struct hash any = { { 0 } };
    tree_init(&tree, 1);
    for (uint32_t level = 0; level < CAIRN_TREE_LEVEL_MAX - 1; level++) {
        struct tree_node node = { level, 1, any };
        ck_assert_int_eq(tree_push_node(&tree, &node), CAIRN_OK);
    }
    for (uint32_t level = CAIRN_TREE_LEVEL_MAX - 1; level-- > 0;) {
        struct tree_node node = { level, tree.next_leaf >> level, any };
        ck_assert_int_eq(tree_push_node(&tree, &node), CAIRN_OK);
    }
    ck_assert_uint_eq(tree.next_leaf, ((uint64_t)1 << CAIRN_TREE_LEVEL_MAX) - 1);
    ck_assert_uint_le(tree.node_count, CAIRN_TREE_NODES_MAX);
}

TEST(gaps_overlaps_and_nodes_of_no_tree_are_refused)
{
    struct tree_node whole[2 * CAIRN_TREE_NODES_MAX], nodes[2 * CAIRN_TREE_NODES_MAX];
    struct hash root;
    size_t left = range_nodes(0, 13, whole), count = left + range_nodes(13, 21, whole + left);
    for (size_t i = 0; i < count; i++) {
        memcpy(nodes, whole, sizeof whole);
        nodes[i] = nodes[count - 1]; // one is missing
        ck_assert_int_eq(tree_combine(nodes, count - 1, 21, &root), CAIRN_ERR_INVALID);
        memcpy(nodes, whole, sizeof whole);
        nodes[count] = nodes[i]; // one is there twice
        ck_assert_int_eq(tree_combine(nodes, count + 1, 21, &root), CAIRN_ERR_INVALID);
    }
    ck_assert_int_eq(tree_combine(whole, count, 22, &root), CAIRN_ERR_INVALID);
    ck_assert_int_eq(tree_combine(whole, count, 20, &root), CAIRN_ERR_INVALID);
    ck_assert_int_eq(tree_combine(NULL, 0, 1, &root), CAIRN_ERR_INVALID);
    struct tree_node foreign[] = { { 49, 0, { { 0 } } },         { 64, 0, { { 0 } } },
                                   { UINT32_MAX, 0, { { 0 } } }, { 0, UINT64_MAX, { { 0 } } },
                                   { 48, 1, { { 0 } } },         { 1, UINT64_MAX, { { 0 } } } };
    for (size_t i = 0; i < sizeof foreign / sizeof foreign[0]; i++) {
        ck_assert_int_eq(tree_combine(&foreign[i], 1, 1, &root), CAIRN_ERR_INVALID);
    }
}

/* "w" of [3, 5000]: three quanta with a short leaf each. */
static const struct shape shape = { .rank = 2, .dim = { 3, 5000 } };
static float w[15000];

static void fill_w(void)
{
    for (int i = 0; i < 15000; i++) w[i] = (float)i;
}

static struct hash plane_root_of_w(const struct hash *tree_root)
{
    struct hash root;
    digest_plane_root("w", CAIRN_PLANE_PARAM, CAIRN_F32, &shape, 6, tree_root, &root);
    return root;
}

static struct hash tree_root_of_w(void)
{
    const struct geometry geometry = geometry_of(&shape);
    struct hash_tree tree;
    struct hash root;
    tree_init(&tree, 0);
    backend_hash_leaves(backend_host(), w, CAIRN_F32, &geometry, geometry.leaf_count, &tree);
    ck_assert_int_eq(digest_tree_root(&tree, geometry.leaf_count, &root), CAIRN_OK);
    return root;
}

TEST(plane_and_content_roots_are_those_that_python_makes)
{
    fill_w();
    struct hash tree_root = tree_root_of_w(), plane = plane_root_of_w(&tree_root), root;
    check_hex(&plane, "1aadea203922b49737dad8ed794724bcb5e5bdac80f0d5ee3652efebf3517a74");
    struct plane_digest planes[] = { { "w", CAIRN_PLANE_PARAM, plane } };
    struct group_digest groups[] = { { "all", cairn_hyper_default(CAIRN_OPTIMIZER_ADAMW) } };
    struct content content = { .step = 7, .groups = groups, .group_count = 1, .loss_scale = 1024 };
    bytes_hash(NULL, 0, &content.client_state);
    ck_assert_int_eq(digest_content_root(planes, 1, &content, &root), CAIRN_OK);
    check_hex(&root, "6a9779582c4cf1289e507b9b48ca926edc0fc69944d4df6f6df74bf8698d24bc");
}

TEST(leaves_hashed_by_several_owners_give_the_same_root)
{
    fill_w();
    const struct geometry geometry = geometry_of(&shape);
    const struct hash whole = tree_root_of_w();
    for (uint64_t cut = 0; cut <= geometry.leaf_count; cut++) {
        struct hash_tree left, right;
        struct tree_node nodes[2 * CAIRN_TREE_NODES_MAX];
        struct hash root;
        tree_init(&left, 0);
        tree_init(&right, cut);
        backend_hash_leaves(backend_host(), w, CAIRN_F32, &geometry, cut, &left);
        backend_hash_leaves(backend_host(), w + leaf_start(&geometry, cut), CAIRN_F32, &geometry,
                            geometry.leaf_count - cut, &right);
        memcpy(nodes, right.node, right.node_count * sizeof *nodes);
        memcpy(nodes + right.node_count, left.node, left.node_count * sizeof *nodes);
        ck_assert_int_eq(
            tree_combine(nodes, left.node_count + right.node_count, geometry.leaf_count, &root),
            CAIRN_OK);
        check_hash(&root, &whole);
    }
}

static struct hash hash_of_one(const void *element, cairn_dtype dtype)
{
    const struct shape scalar = { .rank = 0 };
    const struct geometry geometry = geometry_of(&scalar);
    struct hash_tree tree;
    tree_init(&tree, 0);
    backend_hash_leaves(backend_host(), element, dtype, &geometry, 1, &tree);
    return tree.node[0].hash;
}

TEST(every_nan_hashes_alike_and_nothing_else_does)
{
    const uint32_t f32[] = { 0x7fc00000, 0xffc00000, 0x7f800001, 0xffffffff,
                             0x7f800000, 0x80000000, 0 };
    const uint16_t bf16[] = { 0x7fc0, 0xffc0, 0x7f81, 0xffff, 0x7f80, 0x8000, 0 };
    const uint16_t f16[] = { 0x7e00, 0xfe00, 0x7c01, 0xffff, 0x7c00, 0x8000, 0 };
    const uint64_t f64[] = { 0x7ff8000000000000,
                             0xfff8000000000000,
                             0x7ff0000000000001,
                             UINT64_MAX,
                             0x7ff0000000000000,
                             0x8000000000000000,
                             0 };
    const struct {
        const void *data;
        cairn_dtype dtype;
    } lists[] = {
        { f32, CAIRN_F32 }, { bf16, CAIRN_BF16 }, { f16, CAIRN_F16 }, { f64, CAIRN_F64 }
    };
    for (size_t l = 0; l < 4; l++) {
        struct hash hash[7], canonical;
        size_t size = dtype_size((int)lists[l].dtype);
        for (size_t i = 0; i < 7; i++) {
            hash[i] = hash_of_one((const char *)lists[l].data + i * size, lists[l].dtype);
        }
        leaf_hash(lists[l].data, size, &canonical);
        for (size_t i = 0; i < 4; i++) check_hash(&hash[i], &canonical);
        for (size_t i = 4; i < 7; i++) {
            for (size_t k = 0; k < i; k++) {
                ck_assert_mem_ne(hash[i].byte, hash[k].byte, CAIRN_HASH_BYTES);
            }
        }
    }
}

/* The root of a blob: one leaf of up to 4096 bytes after the other. */
static struct hash hash_of_bytes(const uint8_t *bytes, uint64_t count, uint64_t cut)
{
    const struct shape row = { 1, { count } };
    const struct geometry geometry = geometry_of(&row);
    struct hash_tree tree;
    struct hash root;
    tree_init(&tree, 0);
    backend_hash_leaves(backend_host(), bytes, CAIRN_U8, &geometry, cut, &tree);
    backend_hash_leaves(backend_host(), bytes + leaf_start(&geometry, cut), CAIRN_U8, &geometry,
                        geometry.leaf_count - cut, &tree);
    ck_assert_int_eq(digest_tree_root(&tree, geometry.leaf_count, &root), CAIRN_OK);
    return root;
}

TEST(bytes_are_hashed_as_they_are)
{
    const uint32_t nans[] = { 0x7fc00000, 0xffc00000, 0x7f800001, 0xffffffff };
    struct hash hash[4], plain;
    for (size_t i = 0; i < 4; i++) {
        hash[i] = hash_of_bytes((const uint8_t *)&nans[i], sizeof nans[i], 0);
        leaf_hash(&nans[i], sizeof nans[i], &plain);
        check_hash(&hash[i], &plain);
        for (size_t k = 0; k < i; k++)
            ck_assert_mem_ne(hash[i].byte, hash[k].byte, CAIRN_HASH_BYTES);
    }
    uint8_t bytes[9001];
    for (size_t i = 0; i < sizeof bytes; i++) bytes[i] = (uint8_t)i;
    for (uint64_t count = 1; count < 10; count++) {
        const struct hash got = hash_of_bytes(bytes, count, 0);
        leaf_hash(bytes, count, &plain);
        check_hash(&got, &plain);
    }
    for (size_t i = 0; i < 256; i++) {
        const struct hash got = hash_of_bytes(&bytes[i], 1, 0);
        leaf_hash(&bytes[i], 1, &plain);
        check_hash(&got, &plain);
    }
    const struct hash whole = hash_of_bytes(bytes, sizeof bytes, 0);
    for (uint64_t cut = 1; cut < 4; cut++) {
        const struct hash got = hash_of_bytes(bytes, sizeof bytes, cut);
        check_hash(&got, &whole);
    }
}

TEST(a_plane_root_depends_on_each_of_its_parts)
{
    const struct hash a = leaf_of(1), b = leaf_of(2);
    const struct shape flat = { .rank = 1, .dim = { 15000 } };
    struct hash root[8];
    digest_plane_root("w", CAIRN_PLANE_PARAM, CAIRN_F32, &shape, 6, &a, &root[0]);
    digest_plane_root("v", CAIRN_PLANE_PARAM, CAIRN_F32, &shape, 6, &a, &root[1]);
    digest_plane_root("w", CAIRN_PLANE_EXP_AVG, CAIRN_F32, &shape, 6, &a, &root[2]);
    digest_plane_root("w", CAIRN_PLANE_PARAM, CAIRN_F64, &shape, 6, &a, &root[3]);
    digest_plane_root("w", CAIRN_PLANE_PARAM, CAIRN_F32, &flat, 6, &a, &root[4]);
    digest_plane_root("w", CAIRN_PLANE_PARAM, CAIRN_F32, &shape, 7, &a, &root[5]);
    digest_plane_root("w", CAIRN_PLANE_PARAM, CAIRN_F32, &shape, 6, &b, &root[6]);
    digest_plane_root("wp", CAIRN_PLANE_PARAM, CAIRN_F32, &shape, 6, &a, &root[7]);
    for (int i = 0; i < 8; i++) {
        for (int k = 0; k < i; k++) ck_assert_mem_ne(root[i].byte, root[k].byte, CAIRN_HASH_BYTES);
    }
}

static void content_root_of(struct content content, uint64_t plane, struct hash *out)
{
    struct plane_digest planes[] = { { "b", CAIRN_PLANE_EXP_AVG, leaf_of(plane) },
                                     { "b", CAIRN_PLANE_PARAM, leaf_of(3) },
                                     { "a", CAIRN_PLANE_PARAM, leaf_of(4) } };
    ck_assert_int_eq(digest_content_root(planes, 3, &content, out), CAIRN_OK);
    ck_assert_str_eq(planes[0].tensor, "a");
    ck_assert_int_eq(planes[1].plane, CAIRN_PLANE_PARAM);
}

TEST(the_content_root_depends_on_each_of_its_parts)
{
    struct group_digest x = { "x", cairn_hyper_default(CAIRN_OPTIMIZER_ADAM) };
    struct group_digest y = x, renamed = x;
    y.hyper.lr = 2e-3;
    renamed.name = "y";
    const struct content base = { .step = 1, .groups = &x, .group_count = 1, .loss_scale = 1 };
    struct content changed[7];
    struct hash root[9];
    for (int i = 0; i < 7; i++) changed[i] = base;
    changed[0].step = 2;
    changed[1].groups = &y;
    changed[2].groups = &renamed;
    changed[3].group_count = 0;
    changed[4].loss_scale = 2;
    changed[5].schedule = "cosine";
    changed[5].schedule_bytes = 6;
    changed[6].client_state.byte[31] = 1;
    for (int i = 0; i < 7; i++) content_root_of(changed[i], 5, &root[i]);
    content_root_of(base, 5, &root[7]);
    content_root_of(base, 6, &root[8]);
    for (int i = 0; i < 9; i++) {
        for (int k = 0; k < i; k++) ck_assert_mem_ne(root[i].byte, root[k].byte, CAIRN_HASH_BYTES);
    }
}

TEST(a_plane_or_a_group_given_twice_is_refused)
{
    struct plane_digest planes[] = { { "b", CAIRN_PLANE_PARAM, leaf_of(1) },
                                     { "a", CAIRN_PLANE_PARAM, leaf_of(2) },
                                     { "b", CAIRN_PLANE_PARAM, leaf_of(3) } };
    struct group_digest groups[2] = { { .name = "x" }, { .name = "x" } };
    struct content content = { .groups = groups };
    struct hash root;
    ck_assert_int_eq(digest_content_root(planes, 3, &content, &root), CAIRN_ERR_INVALID);
    content.group_count = 2;
    ck_assert_int_eq(digest_content_root(planes, 1, &content, &root), CAIRN_ERR_INVALID);
    content.group_count = 1;
    ck_assert_int_eq(digest_content_root(planes, 1, &content, &root), CAIRN_OK);
}

/* ---- lanes ---- */

static const struct shape hashed_shapes[] = {
    { 1, { 1 } },          { 1, { 63 } },        { 1, { 4096 } },     { 1, { 4097 } },
    { 1, { 100000 } },     { 2, { 7, 5000 } },   { 2, { 13, 4111 } }, { 2, { 300, 100 } },
    { 3, { 3, 4, 4096 } }, { 2, { 5, 12345 } },  { 1, { 32768 } },    { 2, { 9, 4095 } },
    { 2, { 2, 127 } },     { 1, { 16 * 4096 } },
};

/* Bits at random, with NaNs of all kinds among them or without. */
static void fill_random(uint8_t *at, size_t bytes, bool nans)
{
    uint64_t x = 88172645463325252u;
    for (size_t i = 0; i < bytes; i++) {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        at[i] = (uint8_t)(nans ? x : x & 0x3b); // no exponent is all ones
    }
}

static void check_isa(uint32_t isa, const struct shape *hashed, cairn_dtype dtype, bool nans)
{
    const struct backend *backend = backend_host_at(isa);
    const struct geometry geometry = geometry_of(hashed);
    const size_t bytes = (size_t)geometry.elems * dtype_size((int)dtype);
    struct hash *is = calloc(geometry.leaf_count, sizeof *is);
    struct hash *wanted = calloc(geometry.leaf_count, sizeof *wanted);
    uint8_t *room = malloc(bytes + 3);
    uint8_t *plane = room + 3 * (dtype == CAIRN_U8); // elements are aligned
    fill_random(plane, bytes, nans);
    for (uint64_t first = 0; first < geometry.leaf_count; first += 1 + first / 2) {
        const uint64_t count = geometry.leaf_count - first;
        const uint8_t *at = plane + leaf_start(&geometry, first) * dtype_size((int)dtype);
        backend->hash_each(at, dtype, &geometry, first, count, is);
        backend_host_at(0)->hash_each(at, dtype, &geometry, first, count, wanted);
        ck_assert_mem_eq(is, wanted, count * sizeof *is);
    }
    free(room);
    free(is);
    free(wanted);
}

TEST_EACH(lanes_of_every_width_give_the_hashes_of_libsodium, 0, CAIRN_HOST_ISA_COUNT)
{
    if (backend_host_at((uint32_t)_i) == NULL) return;
    for (size_t i = 0; i < sizeof hashed_shapes / sizeof *hashed_shapes; i++)
        for (int dtype = CAIRN_F32; dtype <= CAIRN_U8; dtype++)
            for (int nans = 0; nans < 2; nans++)
                check_isa((uint32_t)_i, &hashed_shapes[i], (cairn_dtype)dtype, nans != 0);
}

SUITE(60);
