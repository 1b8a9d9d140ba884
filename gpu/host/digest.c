/* Leaf hashes: the elements as little-endian bytes, every NaN as the one of its dtype; bytes as they are. */
#include <assert.h>
#include <string.h>

#include "gpu/host/host.h"

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "state is hashed as it lies in memory");

static void canonical_16(uint8_t *out, const uint8_t *in, size_t elems, uint16_t infinity,
                         uint16_t nan)
{
    for (size_t i = 0; i < elems; i++) {
        uint16_t u;
        memcpy(&u, in + sizeof u * i, sizeof u);
        if ((u & 0x7fff) > infinity) u = nan;
        memcpy(out + sizeof u * i, &u, sizeof u);
    }
}

static void canonical_32(uint8_t *out, const uint8_t *in, size_t elems)
{
    for (size_t i = 0; i < elems; i++) {
        uint32_t u;
        memcpy(&u, in + sizeof u * i, sizeof u);
        u = (u & 0x7fffffffu) > 0x7f800000u ? 0x7fc00000u : u;
        memcpy(out + sizeof u * i, &u, sizeof u);
    }
}

static void canonical_64(uint8_t *out, const uint8_t *in, size_t elems)
{
    for (size_t i = 0; i < elems; i++) {
        uint64_t u;
        memcpy(&u, in + sizeof u * i, sizeof u);
        if ((u & UINT64_MAX >> 1) > (uint64_t)0x7ff << 52) u = (uint64_t)0x7ff8 << 48;
        memcpy(out + sizeof u * i, &u, sizeof u);
    }
}

void cairn_host_canonical(void *out, const void *in, cairn_dtype dtype, size_t elems)
{
    assert(cairn_dtype_bytes((int)dtype) != 0);
    switch (dtype) {
    case CAIRN_F32: canonical_32(out, in, elems); break;
    case CAIRN_BF16: canonical_16(out, in, elems, 0x7f80, 0x7fc0); break;
    case CAIRN_F16: canonical_16(out, in, elems, 0x7c00, 0x7e00); break;
    case CAIRN_F64: canonical_64(out, in, elems); break;
    case CAIRN_U8: memcpy(out, in, elems); break;
    }
}

static const uint8_t *hash_leaf(const uint8_t *in, cairn_dtype dtype,
                                const struct cairn_geometry *geometry, uint64_t leaf,
                                struct cairn_hash *out)
{
    uint8_t bytes[CAIRN_LEAF_ELEMS * sizeof(double)];
    const size_t elems = (size_t)(cairn_leaf_first_elem(geometry, leaf + 1) -
                                  cairn_leaf_first_elem(geometry, leaf));
    const size_t size = elems * cairn_dtype_bytes((int)dtype);
    cairn_host_canonical(bytes, in, dtype, elems);
    cairn_leaf_hash(bytes, size, out);
    return in + size;
}

static void assert_leaves(const struct cairn_geometry *geometry, uint64_t first, uint64_t count)
{
    assert(count <= geometry->leaf_count && first <= geometry->leaf_count - count);
}

void cairn_host_hash_each(const void *plane, cairn_dtype dtype,
                          const struct cairn_geometry *geometry, uint64_t first_leaf,
                          uint64_t leaf_count, struct cairn_hash *hashes_out)
{
    const uint8_t *in = plane;
    assert_leaves(geometry, first_leaf, leaf_count);
    for (uint64_t i = 0; i < leaf_count; i++)
        in = hash_leaf(in, dtype, geometry, first_leaf + i, &hashes_out[i]);
}

/* Leaves that are hashed before they are pushed. */
#define BATCH_LEAVES ((uint64_t)256)

void cairn_backend_hash_leaves(const struct cairn_backend *backend, const void *plane,
                               cairn_dtype dtype, const struct cairn_geometry *geometry,
                               uint64_t leaf_count, struct cairn_tree *tree)
{
    const size_t elem_bytes = cairn_dtype_bytes((int)dtype);
    const uint64_t first = cairn_leaf_first_elem(geometry, tree->next_leaf);
    assert_leaves(geometry, tree->next_leaf, leaf_count);
    for (uint64_t left = leaf_count, count; left > 0; left -= count) {
        struct cairn_hash hashes[BATCH_LEAVES];
        count = left < BATCH_LEAVES ? left : BATCH_LEAVES;
        const uint64_t at = cairn_leaf_first_elem(geometry, tree->next_leaf) - first;
        backend->hash_each((const uint8_t *)plane + at * elem_bytes, dtype, geometry,
                           tree->next_leaf, count, hashes);
        for (uint64_t i = 0; i < count; i++) cairn_tree_push_leaf(tree, &hashes[i]);
    }
}
