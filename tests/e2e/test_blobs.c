/* Opaque bytes on real daemons: put, trained beside, written at a step boundary, read at an exact version,
 * saved and restored, for any number of shards; and what of them is refused. */
#include <pthread.h>

#include "tests/e2e/scene.h"
#include "tests/support/scratch_folder.h"
#include "tests/support/weights_sample.h"

/* LONG is cut over three shards; the others are of every length around a word. */
enum { SHORTS = 9, LONG = 3 * 4096 + 4099, WEIGHTS = 9000, TENSORS = SHORTS + 3, NAMES = 24 };

static char names[SHORTS + 1][NAMES]; /* "state.1" has 1 byte, and so on; "long" */
static struct cairn_tensor tensors[TENSORS];
static struct cairn_job_spec spec;

static struct cairn_tensor blob(const char *name, uint64_t bytes)
{
    return (struct cairn_tensor) { .struct_size = sizeof(struct cairn_tensor),
                                   .name = name,
                                   .rank = 1,
                                   .shape = { bytes },
                                   .kind = CAIRN_BLOB };
}

static void set_up(void)
{
    scratch_make();
    for (int i = 0; i < SHORTS; i++) {
        snprintf(names[i], NAMES, "state.%d", i + 1);
        tensors[i] = blob(names[i], (uint64_t)i + 1);
    }
    snprintf(names[SHORTS], NAMES, "long");
    tensors[SHORTS] = blob("long", LONG);
    tensors[SHORTS + 1] = blob("nothing", 0);
    tensors[SHORTS + 2] = blob("weight", WEIGHTS);
    tensors[SHORTS + 2].kind = CAIRN_TRAINED;
    tensors[0].wire = tensors[0].master = CAIRN_U8; // what 0 means
    spec = (struct cairn_job_spec)TRAINER_SPEC(tensors, TENSORS, .chunk_leaves = 2);
}

/* As fp32 they would be NaNs with payloads, infinities, negative zeros and subnormals. */
static uint8_t byte_of(uint32_t seed, uint64_t at)
{
    static const uint8_t odd[] = { 0x01, 0x00, 0x80, 0x7f, 0xff, 0xff, 0xff, 0xff,
                                   0x00, 0x00, 0x80, 0xff, 0x00, 0x00, 0x00, 0x80 };
    return at < sizeof odd ? odd[(at + seed) % sizeof odd]
                           : (uint8_t)(at * (2 * seed + 1) + (at >> 8)); // all 256 of them
}

static const uint8_t *bytes_of(uint32_t seed)
{
    static uint8_t bytes[LONG];
    for (uint64_t i = 0; i < LONG; i++) bytes[i] = byte_of(seed, i);
    return bytes;
}

static void put(cairn_job *of, const char *name, const void *bytes, cairn_dtype dtype)
{
    const struct cairn_mem mem = trainer_mem(bytes, dtype);
    good(cairn_put(of, name, "param", NULL, &mem, NULL));
}

static void put_weight(cairn_job *of)
{
    static float weights[WEIGHTS];
    for (int i = 0; i < WEIGHTS; i++) weights[i] = (float)i / 64;
    put(of, "weight", weights, CAIRN_F32);
}

static void put_blobs(cairn_job *of, uint32_t seed)
{
    const uint8_t *bytes = bytes_of(seed);
    for (int i = 0; i <= SHORTS; i++) put(of, names[i], bytes, CAIRN_U8);
}

/* Opens job "tiny"; a new one begins with blobs of seed 1. */
static cairn_job *open_in(cairn *of)
{
    struct cairn_job_info info = { .struct_size = sizeof info };
    cairn_job *opened = trainer_open(of, "tiny", &spec);
    good(cairn_job_describe(opened, &info));
    if (!info.initialized) {
        put_weight(opened);
        put_blobs(opened, 1);
    }
    good(cairn_init_done(opened, NULL, CLUSTER_WAIT_MS));
    return opened;
}

static void open_job(void)
{
    session = trainer_session(cluster.address, NULL);
    job = open_in(session);
}

static void train_a_step(cairn_job *of)
{
    static float gradient[WEIGHTS];
    for (int i = 0; i < WEIGHTS; i++) gradient[i] = (float)(i % 7) - 3;
    trainer_step(of, "weight", gradient);
}

/* Every blob at that version is of the seed; no byte behind one is touched. */
static void check_blobs(cairn_job *of, struct cairn_version version, uint32_t seed)
{
    static uint8_t got[LONG + 1];
    const uint8_t *bytes = bytes_of(seed);
    const struct cairn_box middle = { 1, { 4093 }, { 4099 } };
    const struct cairn_version now = newest(of);
    const struct cairn_mem mem = trainer_mem(got, CAIRN_U8);
    cairn_op *op;
    for (size_t i = 0; i <= SHORTS; i++) {
        const size_t count = i < SHORTS ? i + 1 : LONG;
        for (int plane = 0; plane < 2; plane++) {
            if (plane > 0 && (version.generation != now.generation || version.step != now.step))
                continue; // the master is read at the newest version only
            memset(got, 0x5a, sizeof got);
            trainer_fetch(of, version, names[i], plane == 0 ? NULL : "param", CAIRN_U8, got);
            ck_assert_msg(memcmp(got, bytes, count) == 0, "%s, plane %d", names[i], plane);
            ck_assert_uint_eq(got[count], 0x5a);
        }
    }
    memset(got, 0x5a, sizeof got);
    good(cairn_fetch(of, version, "long", NULL, &middle, &mem, &op));
    good(cairn_wait(op, CLUSTER_WAIT_MS));
    ck_assert_mem_eq(got, bytes + 4093, 4099);
    ck_assert_uint_eq(got[4099], 0x5a);
}

static struct cairn_version write_blobs(cairn_job *of, uint32_t seed)
{
    struct cairn_version version;
    good(cairn_write_begin(of, CLUSTER_WAIT_MS));
    put_blobs(of, seed);
    good(cairn_write_end(of, CLUSTER_WAIT_MS, &version));
    return version;
}

/* Trains, writes, reads and saves; what the content root is after it. */
static void live_a_life(char id[64], char root[65])
{
    cairn *other;
    open_job();
    cairn_job *reader = join_reader("tiny", NULL, &other);
    check_blobs(reader, newest(reader), 1);
    for (int k = 0; k < 2; k++) train_a_step(job);
    const struct cairn_version before = newest(reader);
    check_blobs(reader, before, 1);
    const struct cairn_version after = write_blobs(job, 2);
    ck_assert(after.generation == before.generation + 1 && after.step == before.step);
    check_blobs(reader, after, 2);
    check_blobs(reader, before, 1); // is kept as it was
    train_a_step(job);
    check_blobs(reader, newest(reader), 2);
    good(cairn_snapshot(job, CAIRN_SNAPSHOT_WAIT, CLUSTER_WAIT_MS, id));
    ask("job show tiny");
    expect_said(0, "12, 9000 elements", "11 of them blobs, 16432 bytes");
    trainer_digest(&cluster, "tiny", root);
    cairn_close(other);
    leave();
}

TEST(a_blob_comes_back_bit_for_bit_from_any_number_of_shards)
{
    const int other_count[] = { 3, 1, 2 };
    static char roots[3][65];
    for (int i = 0; i < 3; i++) {
        struct cluster other;
        char id[64];
        start(i + 1);
        live_a_life(id, roots[i]);
        ck_assert_str_eq(roots[i], roots[0]);
        cluster_start(&other, other_count[i],
                      &(struct cluster_options) { .snapshots_path = cluster.snapshots_path });
        cluster_says(&other, 0, "", "snapshot restore tiny %s --yes --allow-untrusted", id);
        trainer_expect_digest(&other, "tiny", roots[0]);
        cairn *its = trainer_session(other.address, NULL);
        cairn_job *restored = open_in(its);
        check_blobs(restored, newest(restored), 2);
        train_a_step(restored);
        check_blobs(restored, write_blobs(restored, 3), 3);
        cairn_close(its);
        cluster_stop(&other);
        stop();
    }
}

/* "weight" of ones, and a "state.1" that nobody takes. */
static void write_weights(const char *path)
{
    static float ones[WEIGHTS];
    static const uint8_t other[1] = { 0xee };
    const struct sample_weight weights[] = {
        { "weight", "F32", 1, { WEIGHTS }, ones, sizeof ones },
        { "state.1", "U8", 1, { 1 }, other, 1 },
    };
    for (int i = 0; i < WEIGHTS; i++) ones[i] = 1;
    sample_weights_write(path, weights, 2);
}

TEST(blobs_are_put_where_the_rest_comes_from_a_file)
{
    char path[CAIRN_SCRATCH_BYTES + 32], allowed[CAIRN_SCRATCH_BYTES + 32];
    snprintf(path, sizeof path, "%s/weights.safetensors", scratch);
    snprintf(allowed, sizeof allowed, "import.folders=%s", scratch);
    write_weights(path);
    spec.init_from = path;
    start(2, .shard_set = SETTINGS(allowed));
    session = trainer_session(cluster.address, NULL);
    job = trainer_open(session, "tiny", &spec);
    fails(cairn_init_done(job, NULL, CLUSTER_WAIT_MS), CAIRN_ERR_NOT_READY, "state.");
    put_blobs(job, 1);
    good(cairn_init_done(job, NULL, CLUSTER_WAIT_MS));
    check_blobs(job, newest(job), 1);
    train_a_step(job);
    check_blobs(job, newest(job), 1);
    stop();
}

/* A rank of two, which holds a half of "weight". */
struct half {
    cairn_job *job;
    uint32_t rank;
};

/* It comes as far as its first round; in a thread, since both wait for each other. Returns NULL, or what
 * failed. */
static void *begin_with_half(void *context)
{
    static float values[WEIGHTS / 2];
    static char said_by[2][512];
    const struct half *half = context;
    const struct cairn_tile tile = { sizeof tile,
                                     "weight",
                                     { 1, { half->rank * (WEIGHTS / 2) }, { WEIGHTS / 2 } } };
    const struct cairn_mem mem = trainer_mem(values, CAIRN_F32);
    cairn_status status = cairn_tiles(half->job, &tile, 1, 2, CLUSTER_WAIT_MS);
    if (status == CAIRN_OK) status = cairn_put(half->job, "weight", "param", NULL, &mem, NULL);
    if (status == CAIRN_OK && half->rank == 0) put_blobs(half->job, 1);
    if (status == CAIRN_OK) status = cairn_init_done(half->job, NULL, CLUSTER_WAIT_MS);
    if (status == CAIRN_OK) return NULL;
    snprintf(said_by[half->rank], sizeof said_by[0], "rank %u: %s", half->rank, cairn_error());
    return said_by[half->rank];
}

TEST(a_worker_that_holds_parts_of_tensors_holds_blobs_whole)
{
    struct half halves[2];
    cairn *sessions[2];
    pthread_t other;
    void *failed;
    start(3);
    spec.workers_min = 2;
    for (uint32_t rank = 0; rank < 2; rank++) {
        spec.rank = rank;
        sessions[rank] = trainer_session(cluster.address, NULL);
        halves[rank] = (struct half) { trainer_open(sessions[rank], "tiny", &spec), rank };
    }
    ck_assert_int_eq(pthread_create(&other, NULL, begin_with_half, &halves[1]), 0);
    const char *const mine = begin_with_half(&halves[0]);
    ck_assert_int_eq(pthread_join(other, &failed), 0);
    ck_assert_msg(mine == NULL && failed == NULL, "%s %s", mine != NULL ? mine : "",
                  failed != NULL ? (const char *)failed : "");
    check_blobs(halves[1].job, newest(halves[1].job), 1);
    check_blobs(halves[0].job, write_blobs(halves[0].job, 2), 2);
    for (int rank = 0; rank < 2; rank++) cairn_close(sessions[rank]);
    stop();
}

TEST(one_byte_of_a_blob_is_another_content_root)
{
    char roots[3][65];
    uint8_t bytes[4] = { 0x01, 0x00, 0x80, 0x7f }; // a signaling NaN, if it were a number
    start(2);
    open_job();
    for (int i = 0; i < 3; i++) {
        struct cairn_version version;
        bytes[0] = i == 1 ? 2 : 1;
        good(cairn_write_begin(job, CLUSTER_WAIT_MS));
        put(job, "state.4", bytes, CAIRN_U8);
        good(cairn_write_end(job, CLUSTER_WAIT_MS, &version));
        trainer_digest(&cluster, "tiny", roots[i]);
    }
    ck_assert_str_ne(roots[0], roots[1]);
    ck_assert_str_eq(roots[0], roots[2]);
    stop();
}

static void refuse_calls(void)
{
    static uint8_t bytes[64];
    const struct cairn_mem raw = trainer_mem(bytes, CAIRN_U8), f32 = trainer_mem(bytes, CAIRN_F32);
    const struct cairn_box longer = { 1, { 0 }, { 10 } }, shorter = { 1, { 0 }, { 8 } };
    struct cairn_version version;
    cairn_op *op;
    const struct cairn_round round = trainer_begin(job);
    fails(cairn_push(job, &round, 0, "state.9", NULL, &raw, NULL), CAIRN_ERR_INVALID,
          "state.9 is not trained; it takes no gradient: a blob is changed by cairn_write_begin");
    fails(cairn_push(job, &round, 0, "weight", NULL, &raw, NULL), CAIRN_ERR_INVALID,
          "mem.dtype is 5 (u8); CAIRN_F32 or CAIRN_BF16 is allowed here");
    const struct cairn_result result = trainer_commit(job, &round, 0);
    fails(cairn_fetch(job, result.version, "state.9", NULL, NULL, &f32, &op), CAIRN_ERR_INVALID,
          "CAIRN_U8 is allowed here");
    fails(cairn_fetch(job, result.version, "state.9", "exp_avg", NULL, &raw, &op),
          CAIRN_ERR_NOT_FOUND, "state.9 is a blob: it is not optimized");
    good(cairn_write_begin(job, CLUSTER_WAIT_MS));
    fails(cairn_put(job, "state.9", "param", NULL, &f32, NULL), CAIRN_ERR_INVALID,
          "mem.dtype is 1 (f32); CAIRN_U8 is allowed here");
    fails(cairn_put(job, "weight", "param", NULL, &raw, NULL), CAIRN_ERR_INVALID,
          "CAIRN_F32 is allowed here");
    fails(cairn_put(job, "state.9", "exp_avg", NULL, &raw, NULL), CAIRN_ERR_NOT_FOUND, "a blob");
    fails(cairn_put(job, "state.9", "param", &longer, &raw, NULL), CAIRN_ERR_INVALID, "state.9");
    fails(cairn_put(job, "state.9", "param", &shorter, &raw, NULL), CAIRN_ERR_INVALID,
          "a blob is written whole; give NULL for the box, or [0, 9)");
    good(cairn_write_end(job, CLUSTER_WAIT_MS, &version));
}

TEST(what_cannot_be_done_with_a_blob_is_refused_with_a_sentence)
{
    static uint8_t bytes[64];
    const struct cairn_mem raw = trainer_mem(bytes, CAIRN_U8), f32 = trainer_mem(bytes, CAIRN_F32);
    const struct cairn_box longer = { 1, { 0 }, { 10 } }, shorter = { 1, { 0 }, { 8 } };
    const struct cairn_tile part = { sizeof part, "state.9", { 1, { 0 }, { 8 } } };
    cairn_job *none;
    start(2);
    session = trainer_session(cluster.address, NULL);
    job = trainer_open(session, "tiny", &spec);
    fails(cairn_tiles(job, &part, 1, 1, CLUSTER_WAIT_MS), CAIRN_ERR_INVALID,
          "a blob is held whole by every worker");
    fails(cairn_put(job, "state.9", "param", NULL, &f32, NULL), CAIRN_ERR_INVALID,
          "CAIRN_U8 is allowed here");
    fails(cairn_put(job, "state.9", "param", &longer, &raw, NULL), CAIRN_ERR_INVALID, "state.9");
    fails(cairn_put(job, "state.9", "param", &shorter, &raw, NULL), CAIRN_ERR_INVALID,
          ", but this worker holds [");
    put_weight(job);
    fails(cairn_init_done(job, NULL, CLUSTER_WAIT_MS), CAIRN_ERR_NOT_READY, "state.");
    put_blobs(job, 1);
    put_weight(job);
    good(cairn_init_done(job, NULL, CLUSTER_WAIT_MS));
    refuse_calls();

    tensors[8].shape[0] = 10;
    cairn *other = trainer_session(cluster.address, NULL);
    fails(cairn_job_open(other, "tiny", &spec, CAIRN_WORKER, CLUSTER_WAIT_MS, &none),
          CAIRN_ERR_MISMATCH, "tensor state.9: shape [10] here, [9] on the servers");
    tensors[8].shape[0] = 9;
    tensors[8].kind = CAIRN_BUFFER;
    fails(cairn_job_open(other, "tiny", &spec, CAIRN_WORKER, CLUSTER_WAIT_MS, &none),
          CAIRN_ERR_MISMATCH, "tensor state.9: kind buffer here, blob on the servers");
    cairn_close(other);
    stop();
}

SUITE(60, set_up, scratch_remove);
