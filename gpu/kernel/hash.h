/* Leaf hashes: BLAKE2b-256 (RFC 7693) of 0x00 and the leaf's elements, every NaN as the one of its dtype.
 * A lane has a leaf: what a hash waits for is its own last block, and a warp has 32 of them to go on
 * with. */
#ifndef CAIRN_GPU_KERNEL_HASH_H
#define CAIRN_GPU_KERNEL_HASH_H

#include "gpu/blake2b.h"
#include "gpu/kernel/copy.h"
#include "gpu/kernel/fold_sums.h"

/* ---- BLAKE2b ---- */

KERNEL_FN uint64_t rotate_right(uint64_t x, uint32_t bits)
{
    return x >> bits | x << (64 - bits);
}

KERNEL_FN void hash_mix(uint64_t *a, uint64_t *b, uint64_t *c, uint64_t *d, uint64_t x, uint64_t y)
{
    *a = *a + *b + x;
    *d = rotate_right(*d ^ *a, 32);
    *c = *c + *d;
    *b = rotate_right(*b ^ *c, 24);
    *a = *a + *b + y;
    *d = rotate_right(*d ^ *a, 16);
    *c = *c + *d;
    *b = rotate_right(*b ^ *c, 63);
}

/* One round: columns, then diagonals; the arguments are the order of the message's words. */
#define HASH_ROUND(a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p) \
    hash_mix(&v[0], &v[4], &v[8], &v[12], word[a], word[b]);       \
    hash_mix(&v[1], &v[5], &v[9], &v[13], word[c], word[d]);       \
    hash_mix(&v[2], &v[6], &v[10], &v[14], word[e], word[f]);      \
    hash_mix(&v[3], &v[7], &v[11], &v[15], word[g], word[h]);      \
    hash_mix(&v[0], &v[5], &v[10], &v[15], word[i], word[j]);      \
    hash_mix(&v[1], &v[6], &v[11], &v[12], word[k], word[l]);      \
    hash_mix(&v[2], &v[7], &v[8], &v[13], word[m], word[n]);       \
    hash_mix(&v[3], &v[4], &v[9], &v[14], word[o], word[p]);

struct hash_iv {
    uint64_t of[8];
};

KERNEL_FN struct hash_iv hash_iv(void)
{
    const struct hash_iv iv = { BLAKE2B_IV };
    return iv;
}

/* bytes: of the message up to the end of this block. */
KERNEL_FN void hash_block(uint64_t *state, const uint64_t *word, uint64_t bytes, bool last)
{
    const struct hash_iv iv = hash_iv();
    uint64_t v[16];
    KERNEL_UNROLL
    for (int i = 0; i < 8; i++) {
        v[i] = state[i];
        v[8 + i] = iv.of[i];
    }
    v[12] ^= bytes;
    if (last) v[14] = ~v[14];
    BLAKE2B_ROUNDS(HASH_ROUND)
    KERNEL_UNROLL
    for (int i = 0; i < 8; i++) state[i] ^= v[i] ^ v[8 + i];
}

/* ---- elements, eight bytes of them at a time ---- */

KERNEL_FN uint64_t canonical_16(uint64_t word, uint64_t infinity, uint64_t nan)
{
    uint64_t out = 0;
    KERNEL_UNROLL
    for (int shift = 0; shift < 64; shift += 16) {
        const uint64_t u = word >> shift & 0xffff;
        out |= ((u & 0x7fff) > infinity ? nan : u) << shift;
    }
    return out;
}

KERNEL_FN uint64_t canonical_32(uint64_t word)
{
    uint64_t out = 0;
    KERNEL_UNROLL
    for (int shift = 0; shift < 64; shift += 32) {
        const uint64_t u = word >> shift & 0xffffffffu;
        out |= ((u & 0x7fffffffu) > 0x7f800000u ? (uint64_t)0x7fc00000u : u) << shift;
    }
    return out;
}

KERNEL_FN uint64_t canonical(uint64_t word, uint64_t dtype)
{
    switch (dtype) {
    case CAIRN_F32: return canonical_32(word);
    case CAIRN_BF16: return canonical_16(word, 0x7f80, 0x7fc0);
    case CAIRN_F16: return canonical_16(word, 0x7c00, 0x7e00);
    case CAIRN_F64:
        return (word & UINT64_MAX >> 1) > (uint64_t)0x7ff << 52 ? (uint64_t)0x7ff8 << 48 : word;
    default: return word;
    }
}

KERNEL_FN uint64_t load_element(uint64_t at, uint64_t width)
{
    switch (width) {
    case 8: return *MEMORY_AT(const uint64_t, at);
    case 4: return *MEMORY_AT(const uint32_t, at);
    case 2: return *MEMORY_AT(const uint16_t, at);
    default: return *MEMORY_AT(const uint8_t, at);
    }
}

/* Up to 8 bytes of whole elements; zeros behind them. */
KERNEL_FN_APART uint64_t load_word(uint64_t at, uint64_t bytes, uint64_t width)
{
    uint64_t word = 0;
    for (uint64_t k = 0; k < 8 && k < bytes; k += width)
        word |= load_element(at + k, width) << (8 * k);
    return word;
}

/* Up to BLAKE2B_BLOCK of them. */
KERNEL_FN void load_words(uint64_t *word, uint64_t at, uint64_t bytes, uint64_t width)
{
    if (bytes >= BLAKE2B_BLOCK && at % 16 == 0) {
        KERNEL_UNROLL
        for (int i = 0; i < BLAKE2B_WORDS / 2; i++) {
            const struct u64x2 pair = *MEMORY_AT(const struct u64x2, at + 16 * (uint64_t)i);
            word[2 * i] = pair.of[0];
            word[2 * i + 1] = pair.of[1];
        }
        return;
    }
    KERNEL_UNROLL
    for (uint64_t i = 0; i < BLAKE2B_WORDS; i++)
        word[i] = load_word(at + 8 * i, bytes > 8 * i ? bytes - 8 * i : 0, width);
}

/* The message is one byte longer than the leaf, so its words lie across the leaf's: each one's upper byte
 * is carried to the next. The first carry is the 0x00 that stands before the elements. */
KERNEL_FN void hash_leaf(uint64_t at, uint64_t elems, uint64_t dtype, uint64_t out)
{
    const uint64_t width = bytes_of_dtype(dtype), size = elems * width;
    const struct hash_iv iv = hash_iv();
    uint64_t state[8], carry = 0;
    KERNEL_UNROLL
    for (int i = 0; i < 8; i++) state[i] = iv.of[i];
    state[0] ^= BLAKE2B_256;
    for (uint64_t done = 0; done <= size; done += BLAKE2B_BLOCK) {
        uint64_t word[BLAKE2B_WORDS];
        load_words(word, at + done, done < size ? size - done : 0, width);
        KERNEL_UNROLL
        for (int i = 0; i < BLAKE2B_WORDS; i++) {
            const uint64_t own = canonical(word[i], dtype);
            word[i] = own << 8 | carry;
            carry = own >> 56;
        }
        const bool last = done + BLAKE2B_BLOCK > size;
        hash_block(state, word, last ? size + 1 : done + BLAKE2B_BLOCK, last);
    }
    KERNEL_UNROLL
    for (int i = 0; i < 4; i++) *MEMORY_AT(uint64_t, out + 8 * (uint64_t)i) = state[i];
}

KERNEL_FN void hash_piece(const struct hash_item *item, uint64_t piece)
{
    EACH_LANE(lane)
    {
        const uint64_t n = piece * CAIRN_PIECE_HASHES + lane;
        const struct leaf_run leaf = leaf_of_item(&item->geometry, item->first_leaf,
                                                  item->leaf_count, n);
        if (n < item->leaf_count)
            hash_leaf(item->plane + leaf.begin * bytes_of_dtype(item->dtype), leaf.elems,
                      item->dtype, item->hashes + 32 * n);
    }
}

#endif
