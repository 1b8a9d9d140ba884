/* Leaf hashes, BLAKE2b-256 (RFC 7693, 3.2) of 0x00 and the leaf's elements: as many leaves at once
 * as a vector has 64-bit lanes. A hash can go on only when its previous block is done; the lanes
 * wait for theirs together. A lane whose leaf ends takes the next leaf, so leaves may have any
 * lengths.
 *
 * Its speed is limited by the vector arithmetic: 14 operations a mix, 16 with AVX2, and 96 mixes a
 * block. So nothing else is done by vectors: a block's words are copied one by one, so that the
 * words of a number lie in a row, and while the block before them is mixed; the adds read them from
 * memory, so that registers hold the state alone.
 *
 * The 0x00 shifts the message by a byte against the leaf: block b is the leaf's bytes [128 b - 1,
 * 128 b + 127), read where they lie; the first and the last are put together in a buffer of the
 * lane. A leaf with a NaN is hashed out of a copy that has the one pattern (host_canonical).
 * Without AVX2 there would be only two lanes, and libsodium is faster. */
#ifndef CAIRN_GPU_HOST_ISA_HASH_H
#define CAIRN_GPU_HOST_ISA_HASH_H

#include <assert.h>

#include "gpu/blake2b.h"
#include "gpu/host/host.h"
#include "gpu/host/isa/vector.h"

#if !defined(__AVX2__)

static void hash_each(const void *plane, cairn_dtype dtype, const struct geometry *geometry,
                      uint64_t first_leaf, uint64_t leaf_count, struct hash *hashes_out)
{
    host_hash_each(plane, dtype, geometry, first_leaf, leaf_count, hashes_out);
}

#else

#define HASH_LANES ((size_t)VECTOR_BYTES / sizeof(uint64_t))
#define HASH_BLOCK ((size_t)BLAKE2B_BLOCK)

typedef uint64_t u64_lanes __attribute__((vector_size(VECTOR_BYTES)));

/* The words of a block of every lane. */
typedef uint64_t hash_words[BLAKE2B_WORDS][HASH_LANES] __attribute__((aligned(VECTOR_BYTES)));

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

#define HASH_SIGMA_ROW(...) { __VA_ARGS__ },
static const uint8_t hash_sigma[][BLAKE2B_WORDS] = { BLAKE2B_ROUNDS(HASH_SIGMA_ROW) };
static const uint64_t hash_iv[8] = BLAKE2B_IV;

static inline u64_lanes load_lanes(const uint64_t *at)
{
    u64_lanes x;
    memcpy(&x, at, sizeof x);
    return x;
}

/* The i-th word of every lane's block. Volatile: compilers would put a vector together of them, by more
 * operations than these are, and on the ports that the mixes need. */
static inline __attribute__((always_inline)) void copy_word(hash_words words, size_t i,
                                                            const uint8_t *const *block)
{
#pragma GCC unroll 8
    for (size_t k = 0; k < HASH_LANES; k++) {
        uint64_t word;
        memcpy(&word, block[k] + sizeof word * i, sizeof word);
        *(volatile uint64_t *)&words[i][k] = word;
    }
}

#define EACH_OF_TWO(i) _Pragma("GCC unroll 2") for (int i = 0; i < 2; i++)

/* Columns k and k + 1, or the diagonals (diagonal == 1) that begin there; `order` of their words. In step:
 * neither waits for the other, and more than two would not fit into AVX2's registers. */
static inline __attribute__((always_inline)) void
mix_two(u64_lanes *v, int k, int diagonal, const hash_words words, const uint8_t *order)
{
    u64_lanes *a[2], *b[2], *c[2], *d[2];
    EACH_OF_TWO (i) {
        a[i] = &v[k + i];
        b[i] = &v[4 + (k + i + diagonal) % 4];
        c[i] = &v[8 + (k + i + 2 * diagonal) % 4];
        d[i] = &v[12 + (k + i + 3 * diagonal) % 4];
    }
    EACH_OF_TWO (i) *a[i] += load_lanes(words[order[2 * i]]); // before b, which comes last
    EACH_OF_TWO (i) *a[i] += *b[i];
    EACH_OF_TWO (i) *d[i] = ROTATE_RIGHT(*d[i] ^ *a[i], 32);
    EACH_OF_TWO (i) *c[i] += *d[i];
    EACH_OF_TWO (i) *b[i] = ROTATE_RIGHT(*b[i] ^ *c[i], 24);
    EACH_OF_TWO (i) *a[i] += load_lanes(words[order[2 * i + 1]]);
    EACH_OF_TWO (i) *a[i] += *b[i];
    EACH_OF_TWO (i) *d[i] = ROTATE_RIGHT(*d[i] ^ *a[i], 16);
    EACH_OF_TWO (i) *c[i] += *d[i];
    EACH_OF_TWO (i) *b[i] = ROTATE_RIGHT(*b[i] ^ *c[i], 63);
}

/* Where the blocks after these lie, whose words are copied to `words`, and how far behind them memory is
 * asked for. */
struct hash_next {
    const uint8_t *block[HASH_LANES];
    uint64_t (*words)[HASH_LANES];
    size_t ahead_bytes;
};

/* A share of it, i < BLAKE2B_WORDS. */
static inline __attribute__((always_inline)) void copy_next(const struct hash_next *next, size_t i)
{
    copy_word(next->words, i, next->block);
    if (i < 2 * HASH_LANES) // a block is two lines
        __builtin_prefetch(next->block[i / 2] + 64 * (i % 2) + next->ahead_bytes, 0, 2);
}

/* counted: bytes of each lane's message up to the end of its block; last: all ones where it is the last;
 * next: NULL, or what is copied meanwhile. */
static inline __attribute__((always_inline)) void hash_compress(u64_lanes *state,
                                                                const hash_words words,
                                                                u64_lanes counted, u64_lanes last,
                                                                const struct hash_next *next)
{
    u64_lanes v[16];
#pragma GCC unroll 8
    for (int i = 0; i < 8; i++) {
        v[i] = state[i];
        v[8 + i] = (u64_lanes) { 0 } + hash_iv[i];
    }
    v[12] ^= counted;
    v[14] ^= last;
#pragma GCC unroll 12
    for (size_t r = 0; r < 12; r++) {
        const uint8_t *order = hash_sigma[r];
        __asm__ volatile("" ::: "memory"); // no word stays in a register for another round
        mix_two(v, 0, 0, words, order);
        mix_two(v, 2, 0, words, order + 4);
        if (next != NULL && 2 * r < BLAKE2B_WORDS) copy_next(next, 2 * r);
        mix_two(v, 0, 1, words, order + 8);
        mix_two(v, 2, 1, words, order + 12);
        if (next != NULL && 2 * r < BLAKE2B_WORDS) copy_next(next, 2 * r + 1);
    }
#pragma GCC unroll 8
    for (int i = 0; i < 8; i++) state[i] ^= v[i] ^ v[8 + i];
}

static __attribute__((noinline)) void hash_one(u64_lanes *state, const uint8_t *const *block,
                                               u64_lanes counted, u64_lanes last)
{
    hash_words words;
    for (size_t i = 0; i < BLAKE2B_WORDS; i++) copy_word(words, i, block);
    hash_compress(state, words, counted, last, NULL);
}

/* `count` blocks of every lane that lie one behind the other, none of them the last: most of all. */
static __attribute__((noinline)) void hash_many(u64_lanes *state, const uint8_t *const *block,
                                                u64_lanes *counted, uint64_t count,
                                                size_t ahead_bytes)
{
    hash_words words[2];
    struct hash_next next = { .ahead_bytes = ahead_bytes };
    u64_lanes now = *counted, own[8];
    for (int i = 0; i < 8; i++) own[i] = state[i];
    for (size_t i = 0; i < HASH_LANES; i++) next.block[i] = block[i];
    for (size_t i = 0; i < BLAKE2B_WORDS; i++) copy_word(words[0], i, block);
    for (uint64_t n = 0; n < count; n++) {
        const size_t step = n + 1 < count ? HASH_BLOCK : 0; // behind the last one memory may end
        for (size_t i = 0; i < HASH_LANES; i++) next.block[i] += step;
        next.words = words[(n + 1) % 2];
        now += HASH_BLOCK;
        hash_compress(own, words[n % 2], now, (u64_lanes) { 0 }, &next);
    }
    for (int i = 0; i < 8; i++) state[i] = own[i];
    *counted = now;
}

/* ---- leaves ---- */

/* A lane, and the leaf that it is at. */
struct hash_lane {
    const uint8_t *next;      /* the first block that begins in the leaf and is not hashed yet */
    uint64_t left;            /* bytes of the message that are not hashed yet */
    struct hash *out;         /* NULL: it has no leaf */
    bool is_first;            /* its block is the edge */
    uint8_t edge[HASH_BLOCK]; /* the first block, and the last */
    uint8_t *copy;            /* of a leaf with a NaN; borrowed: [CAIRN_LEAF_ELEMS * 8] */
};

/* The leaves that no lane has taken yet. */
struct hash_queue {
    const uint8_t *at; /* the next leaf's first byte */
    const struct geometry *geometry;
    cairn_dtype dtype;
    uint64_t leaf, end;
    struct hash *out; /* of the next leaf */
};

/* The largest of the elements as numbers without their sign: a NaN is above infinity. */
#define DEFINE_LARGEST(bits)                                              \
    static uint##bits##_t largest_##bits(const uint8_t *at, size_t elems) \
    {                                                                     \
        uint##bits##_t most = 0;                                          \
        for (size_t i = 0; i < elems; i++) {                              \
            uint##bits##_t u;                                             \
            memcpy(&u, at + sizeof u * i, sizeof u);                      \
            u &= INT##bits##_MAX;                                         \
            most = u > most ? u : most;                                   \
        }                                                                 \
        return most;                                                      \
    }
DEFINE_LARGEST(16)
DEFINE_LARGEST(32)
DEFINE_LARGEST(64)

/* True if a canonical copy would be another one: most planes have none, and are hashed where they lie. */
static bool has_nan(const uint8_t *at, cairn_dtype dtype, size_t elems)
{
    switch (dtype) {
    case CAIRN_F32: return largest_32(at, elems) > 0x7f800000u;
    case CAIRN_BF16: return largest_16(at, elems) > 0x7f80;
    case CAIRN_F16: return largest_16(at, elems) > 0x7c00;
    case CAIRN_F64: return largest_64(at, elems) > (uint64_t)0x7ff << 52;
    case CAIRN_U8: break;
    }
    return false;
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
    const size_t elems = (size_t)(leaf_start(queue->geometry, queue->leaf + 1) -
                                  leaf_start(queue->geometry, queue->leaf));
    const size_t size = elems * dtype_size((int)queue->dtype);
    const uint8_t *leaf = queue->at;
    if (has_nan(leaf, queue->dtype, elems)) {
        host_canonical(lane->copy, leaf, queue->dtype, elems);
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
    size_t ahead_bytes; /* from a lane's leaf to its next one, if they are whole */
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
    hash_many(run->state, block, &run->counted, count, run->ahead_bytes);
    for (size_t i = 0; i < HASH_LANES; i++) {
        if (run->lane[i].out == NULL) continue;
        run->lane[i].next += count * HASH_BLOCK;
        run->lane[i].left -= count * HASH_BLOCK;
    }
}

static void hash_each(const void *plane, cairn_dtype dtype, const struct geometry *geometry,
                      uint64_t first_leaf, uint64_t leaf_count, struct hash *hashes_out)
{
    uint8_t copies[HASH_LANES][CAIRN_LEAF_ELEMS * sizeof(double)];
    struct hash_queue queue = { plane,     geometry, dtype, first_leaf, first_leaf + leaf_count,
                                hashes_out };
    struct hash_run run = { .ahead_bytes = HASH_LANES * CAIRN_LEAF_ELEMS * dtype_size((int)dtype) };
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
