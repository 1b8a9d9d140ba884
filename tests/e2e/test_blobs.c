/* Opaque bytes on real daemons: put, trained beside, written at a step boundary, read at an exact version,
 * saved and restored, for any number of shards; and what of them is refused. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/suite.h"
#include "tests/support/trainer.h"
#include "tests/support/weights_sample.h"

/* LONG is cut over three shards; the others are of every length around a word. */
enum { SHORTS = 9, LONG = 3 * 4096 + 4099, WEIGHTS = 9000, TENSORS = SHORTS + 3, NAMES = 24 };

static struct cluster_said said;

/* One worker's or reader's side. */
struct side {
    char names[SHORTS][NAMES]; /* "state.1" has 1 byte, and so on */
    struct cairn_tensor tensors[TENSORS];
    struct cairn_group group;
    struct cairn_job_spec spec;
    cairn *session;
    cairn_job *job;
};

static struct cairn_tensor blob(const char *name, uint64_t bytes)
{
    return (struct cairn_tensor) { .struct_size = sizeof(struct cairn_tensor),
                                   .name = name,
                                   .rank = 1,
                                   .shape = { bytes },
                                   .kind = CAIRN_BLOB };
}

static void describe(struct side *s)
{
    const struct cairn_group group = CAIRN_GROUP_INIT;
    memset(s, 0, sizeof *s);
    s->group = group;
    for (int i = 0; i < SHORTS; i++) {
        snprintf(s->names[i], NAMES, "state.%d", i + 1);
        s->tensors[i] = blob(s->names[i], (uint64_t)i + 1);
    }
    s->tensors[SHORTS] = blob("long", LONG);
    s->tensors[SHORTS + 1] = blob("nothing", 0);
    s->tensors[SHORTS + 2] = blob("weight", WEIGHTS);
    s->tensors[SHORTS + 2].kind = CAIRN_TRAINED;
    s->tensors[0].wire = s->tensors[0].master = CAIRN_U8; // what 0 means
    s->spec = (struct cairn_job_spec) { .struct_size = sizeof s->spec,
                                        .tensors = s->tensors,
                                        .tensor_count = TENSORS,
                                        .groups = &s->group,
                                        .group_count = 1,
                                        .chunk_leaves = 2 };
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

static void put(const struct side *s, const char *name, const void *bytes, cairn_dtype dtype)
{
    const struct cairn_mem mem = trainer_mem(bytes, dtype);
    good(cairn_put(s->job, name, "param", NULL, &mem, NULL));
}

static void put_weight(const struct side *s)
{
    static float weights[WEIGHTS];
    for (int i = 0; i < WEIGHTS; i++) weights[i] = (float)i / 64;
    put(s, "weight", weights, CAIRN_F32);
}

static void put_blobs(const struct side *s, uint32_t seed)
{
    const uint8_t *bytes = bytes_of(seed);
    for (int i = 0; i < SHORTS; i++) put(s, s->names[i], bytes, CAIRN_U8);
    put(s, "long", bytes, CAIRN_U8);
}

/* Opens job "tiny"; a new one begins with blobs of seed 1. */
static void open_job(struct side *s, const struct cluster *cluster)
{
    struct cairn_job_info info = { .struct_size = sizeof info };
    describe(s);
    s->session = trainer_session(cluster->address, NULL);
    s->job = trainer_open(s->session, "tiny", &s->spec);
    good(cairn_job_describe(s->job, &info));
    if (!info.initialized) {
        put_weight(s);
        put_blobs(s, 1);
    }
    good(cairn_init_done(s->job, NULL, CLUSTER_WAIT_MS));
}

static struct cairn_version newest(const struct side *s)
{
    struct cairn_version version;
    good(cairn_version_wait(s->job, (struct cairn_version) { 0, 0 }, CLUSTER_WAIT_MS, &version));
    return version;
}

static void train(const struct side *s)
{
    static float gradient[WEIGHTS];
    const struct cairn_mem mem = trainer_mem(gradient, CAIRN_F32);
    for (int i = 0; i < WEIGHTS; i++) gradient[i] = (float)(i % 7) - 3;
    const struct cairn_round round = trainer_begin(s->job);
    good(cairn_push(s->job, &round, 0, "weight", NULL, &mem, NULL));
    trainer_commit(s->job, &round, 0);
}

static void fetch(const struct side *s, struct cairn_version version, const char *name,
                  const char *plane, const struct cairn_box *box, uint8_t *out)
{
    const struct cairn_mem mem = trainer_mem(out, CAIRN_U8);
    cairn_op *op;
    good(cairn_fetch(s->job, version, name, plane, box, &mem, &op));
    good(cairn_wait(op, CLUSTER_WAIT_MS));
}

/* Every blob at that version is of the seed; no byte behind one is touched. */
static void check_blobs(const struct side *s, struct cairn_version version, uint32_t seed)
{
    static uint8_t got[LONG + 1];
    const uint8_t *bytes = bytes_of(seed);
    const struct cairn_box middle = { 1, { 4093 }, { 4099 } };
    for (size_t i = 0; i <= SHORTS; i++) {
        const size_t count = i < SHORTS ? i + 1 : LONG;
        const char *const name = i < SHORTS ? s->names[i] : "long";
        for (int plane = 0; plane < 2; plane++) {
            memset(got, 0x5a, sizeof got);
            if (plane > 0 &&
                memcmp(&version, &(struct cairn_version) { newest(s).generation, newest(s).step },
                       sizeof version) != 0)
                continue; // the master is read at the newest version only
            fetch(s, version, name, plane == 0 ? NULL : "param", NULL, got);
            ck_assert_msg(memcmp(got, bytes, count) == 0, "%s, plane %d", name, plane);
            ck_assert_uint_eq(got[count], 0x5a);
        }
    }
    memset(got, 0x5a, sizeof got);
    fetch(s, version, "long", NULL, &middle, got);
    ck_assert_mem_eq(got, bytes + 4093, 4099);
    ck_assert_uint_eq(got[4099], 0x5a);
}

static struct cairn_version write_blobs(const struct side *s, uint32_t seed)
{
    struct cairn_version version;
    good(cairn_write_begin(s->job, CLUSTER_WAIT_MS));
    put_blobs(s, seed);
    good(cairn_write_end(s->job, CLUSTER_WAIT_MS, &version));
    return version;
}

static void restore(const struct cluster *cluster, const char *id)
{
    cluster_says(cluster, 0, "", "snapshot restore tiny %s --yes --allow-untrusted", id);
}

/* Trains, writes, reads and saves with so many shards; what the content root is after it. */
static void live_a_life(struct cluster *cluster, char id[64], char root[128])
{
    struct side worker, reader;
    open_job(&worker, cluster);
    describe(&reader);
    reader.session = trainer_session(cluster->address, NULL);
    good(cairn_job_open(reader.session, "tiny", NULL, CAIRN_READER, CLUSTER_WAIT_MS, &reader.job));
    check_blobs(&reader, newest(&reader), 1);
    for (int k = 0; k < 2; k++) train(&worker);
    const struct cairn_version before = newest(&reader);
    check_blobs(&reader, before, 1);
    const struct cairn_version after = write_blobs(&worker, 2);
    ck_assert(after.generation == before.generation + 1 && after.step == before.step);
    check_blobs(&reader, after, 2);
    check_blobs(&reader, before, 1); // is kept as it was
    train(&worker);
    check_blobs(&reader, newest(&reader), 2);
    good(cairn_snapshot(worker.job, CAIRN_SNAPSHOT_WAIT, CLUSTER_WAIT_MS, id));
    cluster_cli(cluster, &said, "job show tiny");
    ck_assert_msg(strstr(said.out, "12, 9000 elements") != NULL, "%s", said.out);
    ck_assert_msg(strstr(said.out, "11 of them blobs, 16432 bytes") != NULL, "%s", said.out);
    trainer_digest(cluster, "tiny", root);
    cairn_close(reader.session);
    cairn_close(worker.session);
}

TEST(a_blob_comes_back_bit_for_bit_from_any_number_of_shards)
{
    const int other_count[] = { 3, 1, 2 };
    static char roots[3][128];
    for (int i = 0; i < 3; i++) {
        struct cluster cluster, other;
        struct side side;
        char id[64];
        cluster_start(&cluster, i + 1, NULL);
        live_a_life(&cluster, id, roots[i]);
        ck_assert_str_eq(roots[i], roots[0]);
        const struct cluster_options options = { .snapshots_path = cluster.snapshots_path };
        cluster_start(&other, other_count[i], &options);
        restore(&other, id);
        trainer_expect_digest(&other, "tiny", roots[0]);
        open_job(&side, &other);
        check_blobs(&side, newest(&side), 2);
        train(&side);
        check_blobs(&side, write_blobs(&side, 3), 3);
        cairn_close(side.session);
        cluster_stop(&other);
        cluster_stop(&cluster);
    }
}

/* FOLDER/weights.safetensors: "weight" of ones, and a "state.1" that nobody takes. */
static void write_weights(const char *folder, char *path, size_t path_bytes)
{
    static float ones[WEIGHTS];
    static const uint8_t other[1] = { 0xee };
    const struct sample_weight weights[] = {
        { "weight", "F32", 1, { WEIGHTS }, ones, sizeof ones },
        { "state.1", "U8", 1, { 1 }, other, 1 },
    };
    for (int i = 0; i < WEIGHTS; i++) ones[i] = 1;
    snprintf(path, path_bytes, "%s/weights.safetensors", folder);
    sample_weights_write(path, weights, 2);
}

TEST(blobs_are_put_where_the_rest_comes_from_a_file)
{
    char folder[CAIRN_SCRATCH_BYTES], path[CAIRN_SCRATCH_BYTES + 32];
    char allowed[CAIRN_SCRATCH_BYTES + 32];
    cairn_scratch_make(folder);
    write_weights(folder, path, sizeof path);
    snprintf(allowed, sizeof allowed, "import.folders=%s", folder);
    const char *const shard_set[] = { allowed, NULL };
    const struct cluster_options options = { .shard_set = shard_set };
    struct cluster cluster;
    struct side s;
    cluster_start(&cluster, 2, &options);
    describe(&s);
    s.spec.init_from = path;
    s.session = trainer_session(cluster.address, NULL);
    s.job = trainer_open(s.session, "tiny", &s.spec);
    fails(cairn_init_done(s.job, NULL, CLUSTER_WAIT_MS), CAIRN_ERR_NOT_READY, "state.");
    put_blobs(&s, 1);
    good(cairn_init_done(s.job, NULL, CLUSTER_WAIT_MS));
    check_blobs(&s, newest(&s), 1);
    train(&s);
    check_blobs(&s, newest(&s), 1);
    cairn_close(s.session);
    cluster_stop(&cluster);
    cairn_scratch_remove(folder);
}

/* A rank of two, which holds a half of "weight", comes as far as its first round; in a thread, since both
 * wait for each other. Returns NULL, or what failed. */
static void *begin_with_half(void *context)
{
    static float half[WEIGHTS / 2];
    static char said_by[2][512];
    const struct side *s = context;
    const uint32_t rank = s->spec.rank;
    const struct cairn_tile tile = { sizeof tile,
                                     "weight",
                                     { 1, { rank * (WEIGHTS / 2) }, { WEIGHTS / 2 } } };
    const struct cairn_mem mem = trainer_mem(half, CAIRN_F32);
    cairn_status status = cairn_tiles(s->job, &tile, 1, 2, CLUSTER_WAIT_MS);
    if (status == CAIRN_OK) status = cairn_put(s->job, "weight", "param", NULL, &mem, NULL);
    if (status == CAIRN_OK && rank == 0) put_blobs(s, 1);
    if (status == CAIRN_OK) status = cairn_init_done(s->job, NULL, CLUSTER_WAIT_MS);
    if (status == CAIRN_OK) return NULL;
    snprintf(said_by[rank], sizeof said_by[rank], "rank %u: %s", rank, cairn_error());
    return said_by[rank];
}

TEST(a_worker_that_holds_parts_of_tensors_holds_blobs_whole)
{
    struct cluster cluster;
    struct side sides[2];
    pthread_t other;
    void *failed;
    cluster_start(&cluster, 3, NULL);
    for (uint32_t rank = 0; rank < 2; rank++) {
        struct side *s = &sides[rank];
        describe(s);
        s->spec.rank = rank;
        s->spec.workers_min = 2;
        s->session = trainer_session(cluster.address, NULL);
        s->job = trainer_open(s->session, "tiny", &s->spec);
    }
    ck_assert_int_eq(pthread_create(&other, NULL, begin_with_half, &sides[1]), 0);
    const char *const mine = begin_with_half(&sides[0]);
    ck_assert_int_eq(pthread_join(other, &failed), 0);
    ck_assert_msg(mine == NULL && failed == NULL, "%s %s", mine != NULL ? mine : "",
                  failed != NULL ? (const char *)failed : "");
    check_blobs(&sides[1], newest(&sides[1]), 1);
    check_blobs(&sides[0], write_blobs(&sides[0], 2), 2);
    for (int rank = 0; rank < 2; rank++) cairn_close(sides[rank].session);
    cluster_stop(&cluster);
}

TEST(one_byte_of_a_blob_is_another_content_root)
{
    struct cluster cluster;
    struct side side;
    char roots[3][128];
    uint8_t bytes[4] = { 0x01, 0x00, 0x80, 0x7f }; // a signaling NaN, if it were a number
    cluster_start(&cluster, 2, NULL);
    open_job(&side, &cluster);
    for (int i = 0; i < 3; i++) {
        struct cairn_version version;
        bytes[0] = i == 1 ? 2 : 1;
        good(cairn_write_begin(side.job, CLUSTER_WAIT_MS));
        put(&side, "state.4", bytes, CAIRN_U8);
        good(cairn_write_end(side.job, CLUSTER_WAIT_MS, &version));
        trainer_digest(&cluster, "tiny", roots[i]);
    }
    ck_assert_str_ne(roots[0], roots[1]);
    ck_assert_str_eq(roots[0], roots[2]);
    cairn_close(side.session);
    cluster_stop(&cluster);
}

static void refuse_calls(const struct side *s)
{
    static uint8_t bytes[64];
    const struct cairn_mem raw = trainer_mem(bytes, CAIRN_U8), f32 = trainer_mem(bytes, CAIRN_F32);
    const struct cairn_box longer = { 1, { 0 }, { 10 } }, shorter = { 1, { 0 }, { 8 } };
    struct cairn_version version;
    cairn_op *op;
    const struct cairn_round round = trainer_begin(s->job);
    fails(cairn_push(s->job, &round, 0, "state.9", NULL, &raw, NULL), CAIRN_ERR_INVALID,
          "state.9 is not trained; it takes no gradient: a blob is changed by cairn_write_begin");
    fails(cairn_push(s->job, &round, 0, "weight", NULL, &raw, NULL), CAIRN_ERR_INVALID,
          "mem.dtype is 5 (u8); CAIRN_F32 or CAIRN_BF16 is allowed here");
    const struct cairn_result result = trainer_commit(s->job, &round, 0);
    fails(cairn_fetch(s->job, result.version, "state.9", NULL, NULL, &f32, &op), CAIRN_ERR_INVALID,
          "CAIRN_U8 is allowed here");
    fails(cairn_fetch(s->job, result.version, "state.9", "exp_avg", NULL, &raw, &op),
          CAIRN_ERR_NOT_FOUND, "state.9 is a blob: it is not optimized");
    good(cairn_write_begin(s->job, CLUSTER_WAIT_MS));
    fails(cairn_put(s->job, "state.9", "param", NULL, &f32, NULL), CAIRN_ERR_INVALID,
          "mem.dtype is 1 (f32); CAIRN_U8 is allowed here");
    fails(cairn_put(s->job, "weight", "param", NULL, &raw, NULL), CAIRN_ERR_INVALID,
          "CAIRN_F32 is allowed here");
    fails(cairn_put(s->job, "state.9", "exp_avg", NULL, &raw, NULL), CAIRN_ERR_NOT_FOUND, "a blob");
    fails(cairn_put(s->job, "state.9", "param", &longer, &raw, NULL), CAIRN_ERR_INVALID, "state.9");
    fails(cairn_put(s->job, "state.9", "param", &shorter, &raw, NULL), CAIRN_ERR_INVALID,
          "a blob is written whole; give NULL for the box, or [0, 9)");
    good(cairn_write_end(s->job, CLUSTER_WAIT_MS, &version));
}

TEST(what_cannot_be_done_with_a_blob_is_refused_with_a_sentence)
{
    static uint8_t bytes[64];
    const struct cairn_mem raw = trainer_mem(bytes, CAIRN_U8), f32 = trainer_mem(bytes, CAIRN_F32);
    const struct cairn_box longer = { 1, { 0 }, { 10 } }, shorter = { 1, { 0 }, { 8 } };
    const struct cairn_tile part = { sizeof part, "state.9", { 1, { 0 }, { 8 } } };
    struct cluster cluster;
    struct side side, wrong;
    cairn_job *job;
    cluster_start(&cluster, 2, NULL);
    describe(&side);
    side.session = trainer_session(cluster.address, NULL);
    side.job = trainer_open(side.session, "tiny", &side.spec);
    fails(cairn_tiles(side.job, &part, 1, 1, CLUSTER_WAIT_MS), CAIRN_ERR_INVALID,
          "a blob is held whole by every worker");
    fails(cairn_put(side.job, "state.9", "param", NULL, &f32, NULL), CAIRN_ERR_INVALID,
          "CAIRN_U8 is allowed here");
    fails(cairn_put(side.job, "state.9", "param", &longer, &raw, NULL), CAIRN_ERR_INVALID,
          "state.9");
    fails(cairn_put(side.job, "state.9", "param", &shorter, &raw, NULL), CAIRN_ERR_INVALID,
          ", but this worker holds [");
    put_weight(&side);
    fails(cairn_init_done(side.job, NULL, CLUSTER_WAIT_MS), CAIRN_ERR_NOT_READY, "state.");
    put_blobs(&side, 1);
    put_weight(&side);
    good(cairn_init_done(side.job, NULL, CLUSTER_WAIT_MS));
    refuse_calls(&side);

    describe(&wrong);
    wrong.tensors[8].shape[0] = 10;
    wrong.session = trainer_session(cluster.address, NULL);
    fails(cairn_job_open(wrong.session, "tiny", &wrong.spec, CAIRN_WORKER, CLUSTER_WAIT_MS, &job),
          CAIRN_ERR_MISMATCH, "tensor state.9: shape [10] here, [9] on the servers");
    wrong.tensors[8] = side.tensors[8];
    wrong.tensors[8].kind = CAIRN_BUFFER;
    fails(cairn_job_open(wrong.session, "tiny", &wrong.spec, CAIRN_WORKER, CLUSTER_WAIT_MS, &job),
          CAIRN_ERR_MISMATCH, "tensor state.9: kind buffer here, blob on the servers");
    cairn_close(wrong.session);
    cairn_close(side.session);
    cluster_stop(&cluster);
}

SUITE(60);
