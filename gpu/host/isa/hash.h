/* Leaf hashes, BLAKE2b-256 (RFC 7693, 3.2) of 0x00 and the leaf's elements: as many leaves at once as a
 * vector has 64-bit lanes. What a hash waits for is its own last block; lanes wait together. A lane whose
 * leaf ends takes the next one, so leaves may be of any lengths.
 *
 * The 0x00 shifts the message by a byte against the leaf: block b is the leaf's bytes [128 b - 1, 128 b +
 * 127), read where they lie; the first and the last are put together in a buffer of the lane. A leaf with a
 * NaN is hashed out of a copy that has the one pattern (cairn_host_canonical). Without AVX2 the lanes would
 * be two: libsodium is faster. */
#ifndef CAIRN_GPU_HOST_ISA_HASH_H
#define CAIRN_GPU_HOST_ISA_HASH_H

#include <assert.h>

#include "gpu/blake2b.h"
#include "gpu/host/host.h"
#include "gpu/host/isa/vector.h"

#if !defined(__AVX2__)

static void hash_each(const void *plane, cairn_dtype dtype, const struct cairn_geometry *geometry,
                      uint64_t first_leaf, uint64_t leaf_count, struct cairn_hash *hashes_out)
{
    cairn_host_hash_each(plane, dtype, geometry, first_leaf, leaf_count, hashes_out);
}

#else

#define HASH_LANES ((size_t)VECTOR_BYTES / sizeof(uint64_t))
#define HASH_BLOCK ((size_t)BLAKE2B_BLOCK)

typedef uint64_t u64_lanes __attribute__((vector_size(VECTOR_BYTES)));
typedef uint8_t u8_bytes __attribute__((vector_size(VECTOR_BYTES)));

/* Each lane, by a compile-time number of bits. */
#if defined(__AVX512F__)
#define ROTATE_RIGHT(x, bits) ((u64_lanes)_mm512_ror_epi64((__m512i)(x), (bits)))
#else
/* Whole bytes are a shuffle. */
static inline u64_lanes rotate_bytes(u64_lanes x, int bytes)
{
    const __m256i by_2 = _mm256_setr_epi8(2, 3, 4, 5, 6, 7, 0, 1, 10, 11, 12, 13, 14, 15, 8, 9, 2,
                                          3, 4, 5, 6, 7, 0, 1, 10, 11, 12, 13, 14, 15, 8, 9);
    const __m256i by_3 = _mm256_setr_epi8(3, 4, 5, 6, 7, 0, 1, 2, 11, 12, 13, 14, 15, 8, 9, 10, 3,
                                          4, 5, 6, 7, 0, 1, 2, 11, 12, 13, 14, 15, 8, 9, 10);
    if (bytes == 4) return (u64_lanes)_mm256_shuffle_epi32((__m256i)x, 0xb1);
    return (u64_lanes)_mm256_shuffle_epi8((__m256i)x, bytes == 2 ? by_2 : by_3);
}
#define ROTATE_RIGHT(x, bits) \
    ((bits) == 63 ? ((x) + (x)) ^ ((x) >> 63) : rotate_bytes((x), (bits) / 8))
#endif

static inline __attribute__((always_inline)) void hash_mix(u64_lanes *v, int a, int b, int c, int d,
                                                           u64_lanes x, u64_lanes y)
{
    v[a] = v[a] + v[b] + x;
    v[d] = ROTATE_RIGHT(v[d] ^ v[a], 32);
    v[c] = v[c] + v[d];
    v[b] = ROTATE_RIGHT(v[b] ^ v[c], 24);
    v[a] = v[a] + v[b] + y;
    v[d] = ROTATE_RIGHT(v[d] ^ v[a], 16);
    v[c] = v[c] + v[d];
    v[b] = ROTATE_RIGHT(v[b] ^ v[c], 63);
}

#define HASH_SIGMA_ROW(...) { __VA_ARGS__ },
static const uint8_t hash_sigma[][BLAKE2B_WORDS] = { BLAKE2B_ROUNDS(HASH_SIGMA_ROW) };
static const uint64_t hash_iv[8] = BLAKE2B_IV;

/* A lane, and the leaf that it is at. */
struct hash_lane {
    const uint8_t *next;      /* the first block that begins in the leaf and is not hashed yet */
    uint64_t left;            /* bytes of the message that are not hashed yet */
    struct cairn_hash *out;   /* NULL: it has no leaf */
    bool is_first;            /* its block is the edge */
    uint8_t edge[HASH_BLOCK]; /* the first block, and the last */
    uint8_t *copy;            /* of a leaf with a NaN; borrowed: [CAIRN_LEAF_ELEMS * 8] */
};

/* word[i]: the i-th word of the block of every lane. */
static inline __attribute__((always_inline)) void transpose(const uint8_t *const *block,
                                                            u64_lanes *word)
{
#if defined(__AVX512F__)
#pragma GCC unroll 2
    for (size_t half = 0; half < 2; half++) {
        __m512i r[8], s[8], t[8];
#pragma GCC unroll 8
        for (size_t i = 0; i < 8; i++) r[i] = _mm512_loadu_si512(block[i] + 64 * half);
#pragma GCC unroll 4
        for (size_t i = 0; i < 8; i += 2) {
            s[i] = _mm512_unpacklo_epi64(r[i], r[i + 1]);
            s[i + 1] = _mm512_unpackhi_epi64(r[i], r[i + 1]);
        }
#pragma GCC unroll 2
        for (size_t i = 0; i < 8; i += 4) {
#pragma GCC unroll 2
            for (size_t k = 0; k < 2; k++) {
                t[i + k] = _mm512_shuffle_i64x2(s[i + k], s[i + 2 + k], 0x88);
                t[i + 2 + k] = _mm512_shuffle_i64x2(s[i + k], s[i + 2 + k], 0xdd);
            }
        }
#pragma GCC unroll 2
        for (size_t k = 0; k < 2; k++) {
            word[8 * half + k] = (u64_lanes)_mm512_shuffle_i64x2(t[k], t[4 + k], 0x88);
            word[8 * half + 4 + k] = (u64_lanes)_mm512_shuffle_i64x2(t[k], t[4 + k], 0xdd);
            word[8 * half + 2 + k] = (u64_lanes)_mm512_shuffle_i64x2(t[2 + k], t[6 + k], 0x88);
            word[8 * half + 6 + k] = (u64_lanes)_mm512_shuffle_i64x2(t[2 + k], t[6 + k], 0xdd);
        }
    }
#else
#pragma GCC unroll 4
    for (size_t i = 0; i < BLAKE2B_WORDS; i += 4) {
        __m256i r[4], s[4];
#pragma GCC unroll 4
        for (size_t k = 0; k < 4; k++)
            r[k] = _mm256_loadu_si256((const __m256i *)(const void *)(block[k] + 8 * i));
        s[0] = _mm256_unpacklo_epi64(r[0], r[1]);
        s[1] = _mm256_unpackhi_epi64(r[0], r[1]);
        s[2] = _mm256_unpacklo_epi64(r[2], r[3]);
        s[3] = _mm256_unpackhi_epi64(r[2], r[3]);
        word[i] = (u64_lanes)_mm256_permute2x128_si256(s[0], s[2], 0x20);
        word[i + 1] = (u64_lanes)_mm256_permute2x128_si256(s[1], s[3], 0x20);
        word[i + 2] = (u64_lanes)_mm256_permute2x128_si256(s[0], s[2], 0x31);
        word[i + 3] = (u64_lanes)_mm256_permute2x128_si256(s[1], s[3], 0x31);
    }
#endif
}

/* counted: bytes of each lane's message up to the end of its block; last: all ones where it is the last. */
static inline __attribute__((always_inline)) void
hash_compress(u64_lanes *state, const uint8_t *const *block, u64_lanes counted, u64_lanes last)
{
    u64_lanes v[16], word[BLAKE2B_WORDS];
    transpose(block, word);
#pragma GCC unroll 8
    for (int i = 0; i < 8; i++) {
        v[i] = state[i];
        v[8 + i] = (u64_lanes) { 0 } + hash_iv[i];
    }
    v[12] ^= counted;
    v[14] ^= last;
#pragma GCC unroll 12
    for (int r = 0; r < 12; r++) {
        const uint8_t *s = hash_sigma[r];
        hash_mix(v, 0, 4, 8, 12, word[s[0]], word[s[1]]);
        hash_mix(v, 1, 5, 9, 13, word[s[2]], word[s[3]]);
        hash_mix(v, 2, 6, 10, 14, word[s[4]], word[s[5]]);
        hash_mix(v, 3, 7, 11, 15, word[s[6]], word[s[7]]);
        hash_mix(v, 0, 5, 10, 15, word[s[8]], word[s[9]]);
        hash_mix(v, 1, 6, 11, 12, word[s[10]], word[s[11]]);
        hash_mix(v, 2, 7, 8, 13, word[s[12]], word[s[13]]);
        hash_mix(v, 3, 4, 9, 14, word[s[14]], word[s[15]]);
    }
#pragma GCC unroll 8
    for (int i = 0; i < 8; i++) state[i] ^= v[i] ^ v[8 + i];
}

static __attribute__((noinline)) void hash_one(u64_lanes *state, const uint8_t *const *block,
                                               u64_lanes counted, u64_lanes last)
{
    hash_compress(state, block, counted, last);
}

/* `count` blocks of every lane that lie one behind the other, none of them the last: most of all. Moves on.
 * */
static __attribute__((noinline)) void hash_many(u64_lanes *state, const uint8_t **block,
                                                u64_lanes *counted, uint64_t count)
{
    u64_lanes now = *counted, own[8];
    for (int i = 0; i < 8; i++) own[i] = state[i];
    for (uint64_t n = 0; n < count; n++) {
        now += HASH_BLOCK;
        hash_compress(own, block, now, (u64_lanes) { 0 });
        for (size_t i = 0; i < HASH_LANES; i++) block[i] += HASH_BLOCK;
    }
    for (int i = 0; i < 8; i++) state[i] = own[i];
    *counted = now;
}

/* ---- leaves ---- */

/* The leaves that no lane has taken yet. */
struct hash_queue {
    const uint8_t *at; /* the next leaf's first byte */
    const struct cairn_geometry *geometry;
    cairn_dtype dtype;
    uint64_t leaf, end;
    struct cairn_hash *out; /* of the next leaf */
};

/* True if a canonical copy would be another one: most planes have none, and are hashed where they lie. */
static bool has_nan(const uint8_t *at, cairn_dtype dtype, size_t elems)
{
    size_t nans = 0;
    if (dtype == CAIRN_F32) {
        uint32_t any = 0;
        for (size_t i = 0; i < elems; i++) {
            uint32_t u;
            memcpy(&u, at + sizeof u * i, sizeof u);
            any |= 0u - (uint32_t)((u & 0x7fffffffu) > 0x7f800000u);
        }
        return any != 0;
    }
    if (dtype == CAIRN_BF16 || dtype == CAIRN_F16) {
        const uint16_t infinity = dtype == CAIRN_BF16 ? 0x7f80 : 0x7c00;
        for (size_t i = 0; i < elems; i++) {
            uint16_t u;
            memcpy(&u, at + sizeof u * i, sizeof u);
            nans += (u & 0x7fff) > infinity;
        }
    } else if (dtype == CAIRN_F64) {
        for (size_t i = 0; i < elems; i++) {
            uint64_t u;
            memcpy(&u, at + sizeof u * i, sizeof u);
            nans += (u & UINT64_MAX >> 1) > (uint64_t)0x7ff << 52;
        }
    }
    return nans > 0;
}

/* The last bytes of the message, with zeros behind them; `from` the leaf's byte that they begin with. */
static void make_last(struct hash_lane *lane, const uint8_t *from)
{
    memset(lane->edge, 0, sizeof lane->edge);
    if (lane->left > 0) memcpy(lane->edge, from, (size_t)lane->left);
}

/* The next leaf, and the lane's state for it. False: there is none. */
static bool take_leaf(struct hash_queue *queue, struct hash_lane *lane)
{
    if (queue->leaf == queue->end) return false;
    const size_t elems = (size_t)(cairn_leaf_first_elem(queue->geometry, queue->leaf + 1) -
                                  cairn_leaf_first_elem(queue->geometry, queue->leaf));
    const size_t size = elems * cairn_dtype_bytes((int)queue->dtype);
    const uint8_t *leaf = queue->at;
    if (has_nan(leaf, queue->dtype, elems)) {
        cairn_host_canonical(lane->copy, leaf, queue->dtype, elems);
        leaf = lane->copy;
    }
    const size_t first = size < HASH_BLOCK - 1 ? size : HASH_BLOCK - 1;
    memset(lane->edge, 0, sizeof lane->edge);
    if (first > 0) memcpy(lane->edge + 1, leaf, first);
    lane->left = size + 1;
    lane->next = leaf + HASH_BLOCK - 1;
    lane->out = queue->out++;
    queue->at += size;
    queue->leaf++;
    return true;
}

/* Lanes, each with a leaf; a lane that has none any more does what is of no use, on its edge. */
struct hash_run {
    u64_lanes state[8], counted; /* bytes of the message so far */
    struct hash_lane lane[HASH_LANES];
    size_t busy;
};

static void begin_lane(struct hash_run *run, struct hash_queue *queue, size_t i)
{
    struct hash_lane *lane = &run->lane[i];
    for (int k = 0; k < 8; k++) run->state[k][i] = hash_iv[k] ^ (k == 0 ? BLAKE2B_256 : 0);
    run->counted[i] = 0;
    lane->is_first = true;
    if (take_leaf(queue, lane))
        run->busy++;
    else
        lane->out = NULL;
}

static void end_lane(struct hash_run *run, size_t i)
{
    struct hash_lane *lane = &run->lane[i];
    for (size_t k = 0; k < CAIRN_HASH_BYTES / 8; k++) {
        const uint64_t word = run->state[k][i];
        memcpy(lane->out->byte + 8 * k, &word, sizeof word);
    }
    run->busy--;
}

/* A block of each lane, at least one of which is its leaf's first or last. */
static void hash_edges(struct hash_run *run, struct hash_queue *queue)
{
    const uint8_t *block[HASH_LANES];
    u64_lanes last = { 0 };
    for (size_t i = 0; i < HASH_LANES; i++) {
        struct hash_lane *lane = &run->lane[i];
        const bool is_last = lane->out != NULL && lane->left <= HASH_BLOCK;
        block[i] = lane->edge;
        if (lane->out == NULL) continue;
        if (!lane->is_first && is_last)
            make_last(lane, lane->next);
        else if (!lane->is_first)
            block[i] = lane->next;
        if (!lane->is_first) lane->next += HASH_BLOCK;
        lane->is_first = false;
        run->counted[i] += is_last ? lane->left : HASH_BLOCK;
        lane->left -= is_last ? lane->left : HASH_BLOCK;
        last[i] = is_last ? UINT64_MAX : 0;
    }
    hash_one(run->state, block, run->counted, last);
    for (size_t i = 0; i < HASH_LANES; i++) {
        if (last[i] == 0) continue;
        end_lane(run, i);
        begin_lane(run, queue, i);
    }
}

/* How many blocks every lane has before it that lie in the leaf and are not its last. */
static uint64_t blocks_inside(const struct hash_run *run)
{
    uint64_t least = UINT64_MAX;
    for (size_t i = 0; i < HASH_LANES; i++) {
        const struct hash_lane *lane = &run->lane[i];
        if (lane->out == NULL) continue;
        const uint64_t blocks = lane->is_first ? 0 : (lane->left - 1) / HASH_BLOCK;
        if (blocks < least) least = blocks;
    }
    return least;
}

static void hash_inside(struct hash_run *run, uint64_t count)
{
    const uint8_t *block[HASH_LANES], *idle = NULL;
    for (size_t i = 0; i < HASH_LANES; i++)
        if (run->lane[i].out != NULL) idle = run->lane[i].next; // there is one
    for (size_t i = 0; i < HASH_LANES; i++)
        block[i] = run->lane[i].out != NULL ? run->lane[i].next : idle;
    hash_many(run->state, block, &run->counted, count);
    for (size_t i = 0; i < HASH_LANES; i++) {
        if (run->lane[i].out == NULL) continue;
        run->lane[i].next += count * HASH_BLOCK;
        run->lane[i].left -= count * HASH_BLOCK;
    }
}

static void hash_each(const void *plane, cairn_dtype dtype, const struct cairn_geometry *geometry,
                      uint64_t first_leaf, uint64_t leaf_count, struct cairn_hash *hashes_out)
{
    uint8_t copies[HASH_LANES][CAIRN_LEAF_ELEMS * sizeof(double)];
    struct hash_queue queue = { plane,     geometry, dtype, first_leaf, first_leaf + leaf_count,
                                hashes_out };
    struct hash_run run = { .busy = 0 };
    assert(leaf_count <= geometry->leaf_count && first_leaf <= geometry->leaf_count - leaf_count);
    for (size_t i = 0; i < HASH_LANES; i++) {
        run.lane[i].copy = copies[i];
        begin_lane(&run, &queue, i);
    }
    while (run.busy > 0) {
        const uint64_t inside = blocks_inside(&run);
        if (inside > 0)
            hash_inside(&run, inside);
        else
            hash_edges(&run, &queue);
    }
}

#endif
#endif
