#include "proto/snapshot/digest_tree.h"

#include <assert.h>
#include <sodium.h>
#include <stdlib.h>
#include <string.h>

#include "proto/base/text.h"

_Static_assert(CAIRN_HASH_BYTES == crypto_generichash_BYTES, "BLAKE2b-256");

static void hash_begin(crypto_generichash_state *state)
{
    crypto_generichash_init(state, NULL, 0, CAIRN_HASH_BYTES);
}

static void hash_bytes(crypto_generichash_state *state, const void *bytes, size_t size)
{
    crypto_generichash_update(state, bytes, size);
}

static void hash_end(crypto_generichash_state *state, struct hash *out)
{
    crypto_generichash_final(state, out->byte, CAIRN_HASH_BYTES);
}

static void hash_u64(crypto_generichash_state *state, uint64_t value)
{
    uint8_t bytes[8];
    le_put(bytes, value, sizeof bytes);
    hash_bytes(state, bytes, sizeof bytes);
}

/* Hashes the field's length before it, so that no two lists of fields give the same bytes. */
static void hash_field(crypto_generichash_state *state, const void *bytes, size_t size)
{
    hash_u64(state, size);
    hash_bytes(state, bytes, size);
}

static void hash_text(crypto_generichash_state *state, const char *text)
{
    hash_field(state, text, strlen(text));
}

void bytes_hash(const void *bytes, size_t size, struct hash *out)
{
    crypto_generichash(out->byte, CAIRN_HASH_BYTES, bytes, size, NULL, 0);
}

void leaf_hash(const void *bytes, size_t size, struct hash *out)
{
    crypto_generichash_state state;
    hash_begin(&state);
    hash_bytes(&state, &(uint8_t) { 0x00 }, 1);
    hash_bytes(&state, bytes, size);
    hash_end(&state, out);
}

static void join(const struct hash *left, const struct hash *right, struct hash *out)
{
    crypto_generichash_state state;
    hash_begin(&state);
    hash_bytes(&state, &(uint8_t) { 0x01 }, 1);
    hash_bytes(&state, left->byte, CAIRN_HASH_BYTES);
    hash_bytes(&state, right->byte, CAIRN_HASH_BYTES);
    hash_end(&state, out);
}

void tree_init(struct hash_tree *tree, uint64_t first_leaf)
{
    assert(first_leaf <= (uint64_t)1 << CAIRN_TREE_LEVEL_MAX);
    tree->first_leaf = tree->next_leaf = first_leaf;
    tree->node_count = 0;
}

/* True if the two are the left and right halves of one node of the tree. */
static int siblings(const struct tree_node *left, const struct tree_node *right)
{
    return left->level == right->level && left->index % 2 == 0 && left->index + 1 == right->index;
}

cairn_status tree_push_node(struct hash_tree *tree, const struct tree_node *node)
{
    const uint64_t leaves_max = (uint64_t)1 << CAIRN_TREE_LEVEL_MAX;
    if (node->level > CAIRN_TREE_LEVEL_MAX) return CAIRN_ERR_INVALID;
    if (node->index >= leaves_max >> node->level) return CAIRN_ERR_INVALID;
    if (node->index << node->level != tree->next_leaf) return CAIRN_ERR_INVALID;

    // From left to right, levels first rise, then fall, and no level occurs three times, so node[] has room
    // for all nodes.
    tree->node[tree->node_count++] = *node;
    tree->next_leaf += (uint64_t)1 << node->level;
    while (tree->node_count >= 2) {
        struct tree_node *left = &tree->node[tree->node_count - 2], *right = left + 1;
        if (!siblings(left, right)) break;
        join(&left->hash, &right->hash, &left->hash);
        left->level++;
        left->index /= 2;
        tree->node_count--;
    }
    return CAIRN_OK;
}

void tree_push_leaf(struct hash_tree *tree, const struct hash *leaf)
{
    struct tree_node node = { .level = 0, .index = tree->next_leaf, .hash = *leaf };
    cairn_status status = tree_push_node(tree, &node);
    assert(status == CAIRN_OK);
    (void)status;
}

cairn_status digest_tree_root(const struct hash_tree *tree, uint64_t leaf_count, struct hash *out)
{
    if (tree->first_leaf != 0 || tree->next_leaf != leaf_count) return CAIRN_ERR_INVALID;
    if (leaf_count == 0) {
        bytes_hash(NULL, 0, out);
        return CAIRN_OK;
    }
    // The complete subtrees are now the binary digits of leaf_count, the largest first. RFC 6962 always
    // splits off the largest, so the rightmost subtrees must be joined first.
    struct hash root = tree->node[tree->node_count - 1].hash;
    for (uint32_t i = tree->node_count - 1; i > 0; i--) join(&tree->node[i - 1].hash, &root, &root);
    *out = root;
    return CAIRN_OK;
}

/* Orders nodes by their first leaf. Levels may come from an untrusted peer, so the shift is masked to stay
 * in range. */
static int by_first_leaf(const void *a, const void *b)
{
    const struct tree_node *x = a, *y = b;
    uint64_t x_first = x->index << (x->level & 63), y_first = y->index << (y->level & 63);
    return (x_first > y_first) - (x_first < y_first);
}

cairn_status tree_combine(struct tree_node *nodes, size_t node_count, uint64_t leaf_count,
                          struct hash *out)
{
    struct hash_tree tree;
    tree_init(&tree, 0);
    if (node_count > 0) qsort(nodes, node_count, sizeof *nodes, by_first_leaf);
    for (size_t i = 0; i < node_count; i++) CAIRN_TRY(tree_push_node(&tree, &nodes[i]));
    return digest_tree_root(&tree, leaf_count, out);
}

void digest_plane_root(const char *tensor, enum plane plane, cairn_dtype dtype,
                       const struct shape *shape, uint64_t leaf_count, const struct hash *tree_root,
                       struct hash *out)
{
    crypto_generichash_state state;
    hash_begin(&state);
    hash_text(&state, "cairn plane 1");
    hash_text(&state, tensor);
    hash_text(&state, plane_name((int)plane));
    hash_text(&state, dtype_label((int)dtype));
    hash_u64(&state, shape->rank);
    for (uint32_t i = 0; i < shape->rank; i++) hash_u64(&state, shape->dim[i]);
    hash_u64(&state, leaf_count);
    hash_bytes(&state, tree_root->byte, CAIRN_HASH_BYTES);
    hash_end(&state, out);
}

static int by_tensor_and_plane(const void *a, const void *b)
{
    const struct plane_digest *x = a, *y = b;
    int order = strcmp(x->tensor, y->tensor);
    if (order != 0) return order;
    return (x->plane > y->plane) - (x->plane < y->plane);
}

static int by_name(const void *a, const void *b)
{
    const struct group_digest *x = a, *y = b;
    return strcmp(x->name, y->name);
}

static cairn_status sort_planes(struct plane_digest *planes, size_t count)
{
    if (count > 0) qsort(planes, count, sizeof *planes, by_tensor_and_plane);
    for (size_t i = 1; i < count; i++) {
        if (by_tensor_and_plane(&planes[i - 1], &planes[i]) == 0) return CAIRN_ERR_INVALID;
    }
    return CAIRN_OK;
}

static cairn_status sort_groups(struct group_digest *groups, size_t count)
{
    if (count > 0) qsort(groups, count, sizeof *groups, by_name);
    for (size_t i = 1; i < count; i++) {
        if (by_name(&groups[i - 1], &groups[i]) == 0) return CAIRN_ERR_INVALID;
    }
    return CAIRN_OK;
}

cairn_status digest_content_root(struct plane_digest *planes, size_t plane_count,
                                 const struct content *content, struct hash *out)
{
    cairn_status status = sort_planes(planes, plane_count);
    if (status == CAIRN_OK) status = sort_groups(content->groups, content->group_count);
    if (status != CAIRN_OK) return status;

    crypto_generichash_state state;
    hash_begin(&state);
    hash_text(&state, "cairn content 1");
    // the name, shape and dtype of each plane are in its root already
    hash_u64(&state, plane_count);
    for (size_t i = 0; i < plane_count; i++) {
        hash_bytes(&state, planes[i].root.byte, CAIRN_HASH_BYTES);
    }
    hash_u64(&state, content->step);
    hash_u64(&state, content->group_count);
    for (size_t i = 0; i < content->group_count; i++) {
        uint8_t hyper[CAIRN_GROUP_HYPER_BYTES];
        group_hyper_encode(&content->groups[i].hyper, hyper);
        hash_text(&state, content->groups[i].name);
        hash_bytes(&state, hyper, sizeof hyper);
    }
    hash_field(&state, content->schedule, content->schedule_bytes);
    hash_u64(&state, f64_bits(content->loss_scale));
    hash_bytes(&state, content->client_state.byte, CAIRN_HASH_BYTES);
    if (content->missed_count > 0) hash_u64(&state, content->missed_count);
    for (size_t i = 0; i < content->missed_count; i++) {
        hash_text(&state, content->missed[i].tensor);
        hash_u64(&state, content->missed[i].steps);
    }
    hash_end(&state, out);
    return CAIRN_OK;
}
