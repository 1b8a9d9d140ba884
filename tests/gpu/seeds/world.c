#include "tests/gpu/seeds/world.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proto/spec/spec.h"
#include "proto/spec/scalars.h"
#include "tests/support/hyper.h"
#include "tests/support/random.h"

#define TENSORS     4
#define ELEMS_MAX   ((size_t)24000)
#define PLANE_BYTES ((size_t)98304) /* f32 [ELEMS_MAX], at a multiple of 512 */
#define SOURCES     3
#define RUNS        4
#define LEAVES_MAX  64

/* Planes of a tensor in a home, f32 but the last. */
enum { ACC, PARAM, EXP_AVG, EXP_AVG_SQ, SOURCE, WIRE, PLANES };

enum { CARD, HOST, SIDES };

static struct tensor {
    size_t elems;
    struct geometry geometry;
    uint8_t *base[SIDES]; /* of the planes; follow only HOST's */
    /* of the host, read by works of both sides; sources 0 and 1 are pinned */
    uint8_t *in[SOURCES];
    /* of the host, written by each side */
    uint8_t *out[SIDES]; /* the card's of even tensors is pinned */
    struct sums sums[SIDES];
    struct hash hashes[SIDES][LEAVES_MAX];
    uint64_t nonfinite[SIDES];
    struct fold_source sources[SIDES][SOURCES];
    struct group_scalars scalars;
} tensors[TENSORS];

static struct home *homes[SIDES];
static struct home_stream *streams[SIDES][2];
static struct sentence why;

static const char *complain(const char *doing)
{
    static char text[sizeof why.text + 64];
    snprintf(text, sizeof text, "%s: %s", doing, why.text);
    return text;
}

static void *plane(const struct tensor *t, int side, int number)
{
    return t->base[side] + (size_t)number * PLANE_BYTES;
}

/* Finite f32, and as bf16 finite, too. */
static void fill(uint8_t *bytes)
{
    for (size_t i = 0; i < ELEMS_MAX; i++) {
        const float value = (float)((int64_t)random_below(2000001) - 1000000) * 1e-6f;
        const uint32_t bits = f32_bits(value) & ~0x4000u; // the lower half, too, is below 2 as bf16
        memcpy(bytes + i * sizeof bits, &bits, sizeof bits);
    }
}

/* ---- works: the same on both sides, but for where they lie ---- */

/* A plane of the home, or pinned or other memory. */
static void choose_sources(struct tensor *t, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        const bool from_home = random_below(4) == 0;
        const cairn_dtype dtype = random_below(2) == 0 ? CAIRN_F32 : CAIRN_BF16;
        for (int side = 0; side < SIDES; side++)
            t->sources[side][i] = (struct fold_source) { from_home ? plane(t, side, SOURCE)
                                                                   : (void *)t->in[i],
                                                         from_home ? CAIRN_F32 : dtype };
    }
}

static void make_fold_of(struct tensor *t, struct home_work works[SIDES], size_t count)
{
    const bool first = random_below(2) == 0;
    choose_sources(t, count);
    for (int side = 0; side < SIDES; side++) {
        works[side].kind = CAIRN_WORK_FOLD;
        works[side].fold.acc = plane(t, side, ACC);
        works[side].fold.sources = t->sources[side];
        works[side].fold.source_count = count;
        works[side].fold.first = first;
        works[side].fold.elems = t->elems;
    }
}

static void make_fold(struct tensor *t, struct home_work works[SIDES])
{
    make_fold_of(t, works, random_below(SOURCES + 1));
}

static void make_fold_sums(struct tensor *t, struct home_work works[SIDES])
{
    const size_t count = random_below(SOURCES + 1);
    choose_sources(t, count);
    for (int side = 0; side < SIDES; side++) {
        t->sums[side] = (struct sums) { 0 };
        works[side].kind = CAIRN_WORK_FOLD_SUMS;
        works[side].fold_sums = (struct leaf_fold) { .acc = plane(t, side, ACC),
                                                     .sources = t->sources[side],
                                                     .source_count = count,
                                                     .geometry = &t->geometry,
                                                     .leaf_count = t->geometry.leaf_count,
                                                     .sums = &t->sums[side] };
    }
}

static void make_update(struct tensor *t, struct home_work works[SIDES])
{
    const uint64_t wire = random_below(3);
    const cairn_dtype dtype = random_below(2) == 0 ? CAIRN_F32 : CAIRN_BF16;
    const struct group_hyper hyper = cairn_hyper_default(CAIRN_OPTIMIZER_ADAMW);
    const float scale = 0.25f;
    uint32_t scale_bits;
    memcpy(&scale_bits, &scale, sizeof scale_bits);
    const cairn_status status = group_scalars_of(&hyper, 1 + random_below(9), scale_bits,
                                                 &t->scalars);
    assert(status == CAIRN_OK);
    for (int side = 0; side < SIDES; side++) {
        t->nonfinite[side] = 77;
        works[side].kind = CAIRN_WORK_UPDATE;
        works[side].update.scalars = &t->scalars;
        works[side].update.nonfinite = &t->nonfinite[side];
        works[side].update.planes = (struct update) {
            .grad = plane(t, side, ACC),
            .param = plane(t, side, PARAM),
            .exp_avg = plane(t, side, EXP_AVG),
            .exp_avg_sq = plane(t, side, EXP_AVG_SQ),
            .wire = wire == 0   ? NULL
                    : wire == 1 ? plane(t, side, WIRE)
                                : (void *)t->out[side],
            .wire_dtype = dtype,
            .elems = t->elems,
        };
    }
}

static void make_convert(struct tensor *t, struct home_work works[SIDES])
{
    const bool out = random_below(2) == 0;
    for (int side = 0; side < SIDES; side++) {
        works[side].kind = CAIRN_WORK_CONVERT;
        works[side].convert.dst = out ? (void *)t->out[side] : plane(t, side, SOURCE);
        works[side].convert.src = out ? plane(t, side, PARAM) : (void *)t->in[1];
        works[side].convert.dst_dtype = out ? CAIRN_BF16 : CAIRN_F32;
        works[side].convert.src_dtype = out ? CAIRN_F32 : CAIRN_BF16;
        works[side].convert.elems = t->elems;
    }
}

enum { OUT_OF_HOME, IN_HOME, INTO_HOME, COPY_WAYS };

static void make_copy_of(struct tensor *t, struct home_work works[SIDES], uint64_t way)
{
    const uint64_t in = random_below(SOURCES);
    for (int side = 0; side < SIDES; side++) {
        works[side].kind = CAIRN_WORK_COPY;
        works[side].copy.to = way == OUT_OF_HOME ? (void *)t->out[side] : plane(t, side, SOURCE);
        works[side].copy.from = way == INTO_HOME ? (void *)t->in[in] : plane(t, side, PARAM);
        works[side].copy.bytes = t->elems * sizeof(float);
    }
}

static void make_copy(struct tensor *t, struct home_work works[SIDES])
{
    make_copy_of(t, works, random_below(COPY_WAYS));
}

static void make_zero(struct tensor *t, struct home_work works[SIDES])
{
    for (int side = 0; side < SIDES; side++) {
        works[side].kind = CAIRN_WORK_ZERO;
        works[side].zero.at = plane(t, side, WIRE);
        works[side].zero.bytes = t->elems * 2;
    }
}

static void make_hash(struct tensor *t, struct home_work works[SIDES])
{
    for (int side = 0; side < SIDES; side++) {
        works[side].kind = CAIRN_WORK_HASH;
        works[side].hash.plane = plane(t, side, PARAM);
        works[side].hash.dtype = CAIRN_F32;
        works[side].hash.geometry = &t->geometry;
        works[side].hash.first_leaf = 0;
        works[side].hash.leaf_count = t->geometry.leaf_count;
        works[side].hash.hashes = t->hashes[side];
    }
}

static void make_init(struct tensor *t, struct home_work works[SIDES])
{
    const struct cairn_init init = { random_below(2) == 0 ? CAIRN_INIT_NORMAL : CAIRN_INIT_CONSTANT,
                                     0.5, 0.25, random_next() };
    const uint64_t first = random_below(1000);
    for (int side = 0; side < SIDES; side++) {
        works[side].kind = CAIRN_WORK_INIT;
        works[side].init.out = plane(t, side, PARAM);
        works[side].init.source = init_source_of(&init, "w");
        works[side].init.first_elem = first;
        works[side].init.elems = t->elems;
    }
}

/* Every other 64 bytes of a plane, to or from packed memory. */
static void make_runs(struct tensor *t, struct home_work works[SIDES])
{
    const bool packs = random_below(2) == 0;
    for (int side = 0; side < SIDES; side++) {
        works[side].kind = CAIRN_WORK_RUNS;
        works[side].runs.to = packs ? (void *)t->out[side] : plane(t, side, SOURCE);
        works[side].runs.from = packs ? plane(t, side, PARAM) : (void *)t->in[0];
        works[side].runs.run_bytes = 64;
        works[side].runs.run_count = t->elems / 32;
        works[side].runs.to_stride = packs ? 64 : 128;
        works[side].runs.from_stride = packs ? 128 : 64;
    }
}

static void make_work(struct tensor *t, struct home_work works[SIDES])
{
    static void (*const makes[])(struct tensor *, struct home_work[SIDES]) = {
        make_fold, make_fold_sums, make_update, make_convert, make_copy,
        make_zero, make_hash,      make_init,   make_runs
    };
    makes[random_below(sizeof makes / sizeof makes[0])](t, works);
}

/* ---- a run ---- */

static const char *compare(const struct tensor *t)
{
    if (memcmp(t->out[CARD], t->out[HOST], PLANE_BYTES) != 0)
        return "what came to the host differs";
    if (memcmp(&t->sums[CARD], &t->sums[HOST], sizeof t->sums[HOST]) != 0) return "sums differ";
    if (memcmp(t->hashes[CARD], t->hashes[HOST], sizeof t->hashes[HOST]) != 0)
        return "hashes differ";
    return t->nonfinite[CARD] == t->nonfinite[HOST] ? NULL : "counts of what is not finite differ";
}

/* Copies all planes from the host's home to the card's, or back to `out` one by one and compares. */
static const char *move_planes(bool back)
{
    for (size_t i = 0; i < TENSORS; i++) {
        for (int p = 0; p < PLANES; p++) {
            struct tensor *t = &tensors[i];
            struct home_work work = { .kind = CAIRN_WORK_COPY };
            work.copy.to = back ? (void *)t->out[CARD] : plane(t, CARD, p);
            work.copy.from = plane(t, back ? CARD : HOST, p);
            work.copy.bytes = PLANE_BYTES;
            if (home_run(streams[CARD][0], &work, 1, &why) != CAIRN_OK) return complain("a copy");
            if (back && memcmp(t->out[CARD], plane(t, HOST, p), PLANE_BYTES) != 0)
                return "a plane differs at the end";
        }
    }
    return NULL;
}

/* The card's works as lists that follow each other, at most two of them under way at a time. */
static const char *run_lists(struct home_stream *stream, struct home_work works[TENSORS])
{
    size_t begun = 0, under_way = 0;
    while (begun < TENSORS || under_way > 0) {
        const bool begins = begun < TENSORS && under_way < 2 &&
                            (under_way == 0 || random_below(4) > 0);
        const size_t left = TENSORS - begun, count = begins ? 1 + random_below(left) : 0;
        if (begins && home_run_begin(stream, works + begun, count, &why) != CAIRN_OK)
            return complain("a list");
        if (!begins && home_run_finish(stream, &why) != CAIRN_OK)
            return complain("the end of a list");
        begun += count;
        if (begins)
            under_way++;
        else
            under_way--;
    }
    return NULL;
}

/* One that is begun on the card before the list that is refused; it is not concerned. */
static const char *begin_ahead(struct tensor *t, struct home_work works[SIDES])
{
    for (size_t j = 0; j < SOURCES; j++) fill(t->in[j]);
    make_work(t, works);
    if (home_run(streams[HOST][1], &works[HOST], 1, &why) != CAIRN_OK ||
        home_run_begin(streams[CARD][1], &works[CARD], 1, &why) != CAIRN_OK)
        return complain("a list ahead");
    return NULL;
}

static const char *finish_ahead(const struct tensor *t)
{
    if (home_run_finish(streams[CARD][1], &why) != CAIRN_OK)
        return complain("the end of a list ahead");
    return compare(t);
}

/* The list of the others is refused its second launch, if it has so many: mostly that of a second slice,
 * while a copy out of the first is under way. *is_begun_out: it was not refused. */
static const char *begin_refused(int (*emulator_set)(const char *options), size_t count,
                                 bool *is_begun_out)
{
    struct home_work works[TENSORS] = { 0 };
    for (size_t i = 0; i < count; i++) {
        struct home_work work[SIDES] = { 0 };
        if (i == 0)
            make_copy_of(&tensors[i], work, OUT_OF_HOME);
        else
            make_fold_of(&tensors[i], work, SOURCES);
        works[i] = work[CARD];
    }
    emulator_set("result=1,call_fails=2");
    const cairn_status status = home_run_begin(streams[CARD][1], works, count, &why);
    emulator_set("call_fails=0");
    *is_begun_out = status == CAIRN_OK;
    const bool is_refused = status != CAIRN_OK && strstr(why.text, "INVALID_VALUE") != NULL;
    return *is_begun_out || is_refused ? NULL : complain("refused");
}

/* What is refused is over when it returns; all that was written is made anew. */
static const char *run_refused(int (*emulator_set)(const char *options))
{
    struct tensor *last = &tensors[TENSORS - 1];
    struct home_work ahead[SIDES] = { 0 };
    const bool is_behind = random_below(2) == 0;
    bool is_begun = false;
    const char *wrong = is_behind ? begin_ahead(last, ahead) : NULL;
    if (wrong == NULL) wrong = begin_refused(emulator_set, TENSORS - is_behind, &is_begun);
    if (wrong == NULL && is_behind) wrong = finish_ahead(last);
    if (wrong == NULL && is_begun && home_run_finish(streams[CARD][1], &why) != CAIRN_OK)
        wrong = complain("the end of a list that was not refused");
    if (wrong != NULL) return wrong;
    for (size_t i = 0; i < TENSORS; i++) {
        memcpy(tensors[i].out[CARD], tensors[i].out[HOST], PLANE_BYTES);
        memcpy(tensors[i].hashes[CARD], tensors[i].hashes[HOST], sizeof tensors[i].hashes[HOST]);
        tensors[i].sums[CARD] = tensors[i].sums[HOST];
        tensors[i].nonfinite[CARD] = tensors[i].nonfinite[HOST];
    }
    return move_planes(false);
}

static const char *run(void)
{
    struct home_work works[SIDES][TENSORS] = { 0 };
    const uint64_t stream = random_below(2);
    for (size_t i = 0; i < TENSORS; i++) {
        struct home_work work[SIDES] = { 0 };
        for (size_t j = 0; j < SOURCES; j++) fill(tensors[i].in[j]);
        make_work(&tensors[i], work);
        for (int side = 0; side < SIDES; side++) works[side][i] = work[side];
    }
    if (home_run(streams[HOST][stream], works[HOST], TENSORS, &why) != CAIRN_OK)
        return complain("a run");
    const char *failed = run_lists(streams[CARD][stream], works[CARD]);
    if (failed != NULL) return failed;
    for (size_t i = 0; i < TENSORS; i++) {
        const char *wrong = compare(&tensors[i]);
        if (wrong != NULL) return wrong;
        for (size_t j = 0; j < SOURCES; j++) memset(tensors[i].in[j], 0xEE, PLANE_BYTES);
    }
    return NULL;
}

/* ---- the world ---- */

static void set_up_tensor(struct tensor *t, size_t number, uint8_t *card, uint8_t *host,
                          uint8_t *buffers)
{
    const struct shape shape = { .rank = 1, .dim = { 1 + random_below(ELEMS_MAX) } };
    memset(t, 0, sizeof *t);
    t->elems = shape.dim[0];
    t->geometry = geometry_of(&shape);
    assert(t->geometry.leaf_count <= LEAVES_MAX);
    t->base[CARD] = card + number * PLANES * PLANE_BYTES;
    t->base[HOST] = host + number * PLANES * PLANE_BYTES;
    for (int p = 0; p < PLANES; p++) fill(plane(t, HOST, p));
    for (size_t i = 0; i < ELEMS_MAX; i++) // a second moment is not negative
        ((uint8_t *)plane(t, HOST, EXP_AVG_SQ))[4 * i + 3] &= 0x7F;
    // In `buffers`: all that is pinned, then what is not.
    uint8_t *const pinned = buffers + number * 3 * PLANE_BYTES;
    uint8_t *const other = buffers + (TENSORS * 3 + number * 3) * PLANE_BYTES;
    t->in[0] = pinned;
    t->in[1] = pinned + PLANE_BYTES;
    t->in[2] = other;
    t->out[CARD] = number % 2 == 0 ? pinned + 2 * PLANE_BYTES : other + PLANE_BYTES;
    t->out[HOST] = other + 2 * PLANE_BYTES;
    memset(t->out[CARD], 0, PLANE_BYTES);
    memset(t->out[HOST], 0, PLANE_BYTES);
}

static const char *work_through(int (*emulator_set)(const char *options))
{
    const char *wrong = move_planes(false);
    for (size_t i = 0; i < RUNS && wrong == NULL; i++) {
        if (random_below(4) == 0) wrong = run_refused(emulator_set);
        if (wrong == NULL) wrong = run();
    }
    return wrong == NULL ? move_planes(true) : wrong;
}

static const char *with_streams(int (*emulator_set)(const char *options))
{
    for (int side = 0; side < SIDES; side++)
        for (size_t i = 0; i < 2; i++)
            if (home_stream_open(homes[side], &streams[side][i], &why) != CAIRN_OK)
                return complain("a stream");
    const char *wrong = work_through(emulator_set);
    for (int side = 0; side < SIDES; side++)
        for (size_t i = 0; i < 2; i++) home_stream_close(streams[side][i]);
    return wrong;
}

static const char *with_memory(uint8_t *host, uint8_t *buffers,
                               int (*emulator_set)(const char *options))
{
    struct home_memory memory;
    if (home_memory_open(homes[CARD], "planes", TENSORS * PLANES * PLANE_BYTES, &memory, &why) !=
        CAIRN_OK)
        return complain("memory");
    if (home_pin(homes[CARD], buffers, TENSORS * 3 * PLANE_BYTES, &why) != CAIRN_OK)
        return complain("pinning");
    for (size_t i = 0; i < TENSORS; i++) set_up_tensor(&tensors[i], i, memory.base, host, buffers);
    const char *wrong = with_streams(emulator_set);
    home_unpin(homes[CARD], buffers, TENSORS * 3 * PLANE_BYTES);
    home_memory_close(&memory);
    return wrong;
}

const char *world_run(uint64_t seed, int (*emulator_set)(const char *options))
{
    uint8_t *host = aligned_alloc(4096, TENSORS * PLANES * PLANE_BYTES);
    uint8_t *buffers = aligned_alloc(4096, TENSORS * 6 * PLANE_BYTES);
    assert(host != NULL && buffers != NULL);
    random_state = seed;
    homes[HOST] = home_host();
    const char *wrong = home_open_cuda(NULL, &homes[CARD], &why) == CAIRN_OK
                            ? with_memory(host, buffers, emulator_set)
                            : complain("opening");
    if (homes[CARD] != NULL) home_close(homes[CARD]);
    homes[CARD] = NULL;
    free(host);
    free(buffers);
    return wrong;
}
