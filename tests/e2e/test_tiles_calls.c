/* What the calls say about tiles and boxes: declarations that do not fit, boxes that are not this
 * worker's, and readers that want any box of an exact version. */
#include <stdio.h>
#include <string.h>

#include "client/session.h"
#include "tests/e2e/crew.h"
#include "tests/support/rooms.h"
#include "tests/support/suite.h"
#include "tests/support/trainer.h"

enum { WAIT_MS = 20000 };

/* ---- a job of two tensors ---- */

static const struct cairn_tensor two[] = {
    { .struct_size = sizeof two[0], .name = "bias", .rank = 1, .shape = { 10 } },
    { .struct_size = sizeof two[0], .name = "weight", .rank = 2, .shape = { 8, 6 } },
};

static struct rooms rooms;
static cairn *sessions[4];
static int session_count;

static void open_rooms(uint32_t shards)
{
    rooms_open(&rooms, shards, &(struct cairn_fabric_mem_options) { .seed = 1 });
}

static void close_all(void)
{
    while (session_count > 0) cairn_close(sessions[--session_count]);
    rooms_close(&rooms);
}

static cairn *open_one(void)
{
    return sessions[session_count++] = crew_session(rooms.address, rooms.hub);
}

static cairn_job *open_member(uint32_t rank, uint32_t workers_min)
{
    const struct cairn_job_spec spec = TRAINER_SPEC(two, 2, .rank = rank,
                                                    .workers_min = workers_min);
    return trainer_open(open_one(), "two", &spec);
}

static struct cairn_tile tile(const char *tensor, uint32_t rank, uint64_t s0, uint64_t e0,
                              uint64_t s1, uint64_t e1)
{
    return (
        struct cairn_tile) { .struct_size = sizeof(struct cairn_tile),
                             .tensor = tensor,
                             .box = { .rank = rank, .start = { s0, s1 }, .extent = { e0, e1 } } };
}

/* ---- declarations ---- */

/* One rank's call, in a thread of its own. */
struct call {
    cairn_job *job;
    struct cairn_tile tiles[2];
    size_t count;
    cairn_status status;
    char said[1024];
    pthread_t thread;
};

static void *call_thread(void *arg)
{
    struct call *call = arg;
    call->status = cairn_tiles(call->job, call->tiles, call->count, 2, WAIT_MS);
    snprintf(call->said, sizeof call->said, "%s", cairn_error());
    return NULL;
}

static void call_both(struct call calls[2])
{
    for (int i = 0; i < 2; i++)
        ck_assert_int_eq(pthread_create(&calls[i].thread, NULL, call_thread, &calls[i]), 0);
    for (int i = 0; i < 2; i++) pthread_join(calls[i].thread, NULL);
}

static void call_both_well(struct call calls[2])
{
    call_both(calls);
    for (int r = 0; r < 2; r++) ck_assert_msg(calls[r].status == CAIRN_OK, "%s", calls[r].said);
}

/* Those of a rank each, of so many tiles. */
static void open_calls(struct call calls[2], size_t count)
{
    for (uint32_t r = 0; r < 2; r++)
        calls[r] = (struct call) { .job = open_member(r, 2), .count = count };
}

static const struct misfit {
    const char *what;
    uint64_t start[2], extent[2]; /* rows of "weight", by rank */
    const char *words[3];
} misfits[] = {
    { "an overlap", { 0, 4 }, { 5, 4 }, { "weight", "0", "1" } },
    { "a hole", { 0, 5 }, { 4, 3 }, { "weight", "4", "no rank" } },
    { "a tensor that nobody holds", { 0, 0 }, { 0, 0 }, { "weight", "no rank", "" } },
    { "one box within another", { 0, 2 }, { 8, 2 }, { "weight", "0", "1" } },
};

TEST(tiles_that_do_not_make_up_the_tensor_are_a_mismatch_and_can_be_mended)
{
    struct call calls[2];
    open_rooms(2);
    open_calls(calls, 1);
    for (size_t i = 0; i < sizeof misfits / sizeof misfits[0]; i++) {
        const struct misfit *m = &misfits[i];
        for (uint32_t r = 0; r < 2; r++)
            calls[r].tiles[0] = tile("weight", 2, m->start[r], m->extent[r], 0, 6);
        call_both(calls);
        bool named = false;
        for (uint32_t r = 0; r < 2; r++) {
            ck_assert_msg(calls[r].status == CAIRN_ERR_MISMATCH, "%s: %d %s", m->what,
                          (int)calls[r].status, calls[r].said);
            bool all = true;
            for (int w = 0; w < 3; w++) all = all && strstr(calls[r].said, m->words[w]) != NULL;
            named = named || all;
        }
        ck_assert_msg(named, "%s: %s", m->what, calls[0].said);
    }
    for (int again = 0; again < 2; again++) { // and another one, of columns
        for (uint32_t r = 0; r < 2; r++)
            calls[r].tiles[0] = again == 0 ? tile("weight", 2, 3 * r, 3 + 2 * r, 0, 6)
                                           : tile("weight", 2, 0, 8, 3 * r, 3);
        call_both_well(calls);
    }
}

TEST(a_rank_that_declares_alone_hears_for_whom_it_waits)
{
    open_rooms(1);
    const struct cairn_tile half = tile("weight", 2, 0, 4, 0, 6);
    fails(cairn_tiles(open_member(0, 1), &half, 1, 3, 200), CAIRN_ERR_TIMEOUT, "rank 1");
    ck_assert_msg(strstr(cairn_error(), "rank 2") != NULL, "%s", cairn_error());
}

TEST(a_wrong_list_is_refused_before_anyone_hears_of_it)
{
    open_rooms(1);
    cairn_job *job = open_member(1, 2);
    struct cairn_tile list[] = { tile("weight", 2, 0, 4, 0, 6), tile("weight", 2, 4, 4, 0, 6) };
    ck_assert_int_eq(cairn_tiles(job, list, 2, 2, 200), CAIRN_ERR_EXISTS);
    list[0] = tile("weight", 2, 0, 9, 0, 6);
    fails(cairn_tiles(job, list, 1, 2, 200), CAIRN_ERR_INVALID, "weight");
    list[0] = tile("weight", 1, 0, 8, 0, 0);
    ck_assert_int_eq(cairn_tiles(job, list, 1, 2, 200), CAIRN_ERR_INVALID);
    list[0] = tile("wight", 2, 0, 8, 0, 6);
    ck_assert_int_eq(cairn_tiles(job, list, 1, 2, 200), CAIRN_ERR_NOT_FOUND);
    list[0] = tile("weight", 2, 0, 8, 0, 6);
    list[0].struct_size = 8;
    ck_assert_int_eq(cairn_tiles(job, list, 1, 2, 200), CAIRN_ERR_INVALID);
    ck_assert_int_eq(cairn_tiles(job, NULL, 1, 2, 200), CAIRN_ERR_INVALID);
    ck_assert_int_eq(cairn_tiles(job, NULL, 0, 1, 200), CAIRN_ERR_INVALID); // this is rank 1
    list[0] = tile("weight", 2, 0, 8, 0, 3);
    ck_assert_int_eq(cairn_tiles(job, list, 1, 0, 200), CAIRN_ERR_INVALID);
    ck_assert_int_eq(cairn_tiles(job, NULL, 0, 2, -1), CAIRN_ERR_INVALID);
    ck_assert_int_eq(cairn_tiles(NULL, NULL, 0, 2, 0), CAIRN_ERR_HANDLE);
}

enum { DECLARERS = 4, DECLARATIONS = 60 };

/* Of a job of one rank, which holds everything: each call is taken, or another thread's is under way. */
static void *declare_thread(void *arg)
{
    cairn_job *job = arg;
    size_t taken = 0;
    for (int i = 0; i < DECLARATIONS; i++) {
        const cairn_status status = cairn_tiles(job, NULL, 0, (uint32_t)i % 2, WAIT_MS);
        if (status == CAIRN_OK) taken++;
        if (status != CAIRN_OK && status != CAIRN_ERR_BUSY) return NULL;
    }
    return (void *)(uintptr_t)(taken + 1);
}

TEST(threads_that_declare_at_once_do_no_harm)
{
    pthread_t threads[DECLARERS];
    size_t taken = 0;
    open_rooms(1);
    cairn_job *job = open_member(0, 1);
    for (int i = 0; i < DECLARERS; i++)
        ck_assert_int_eq(pthread_create(&threads[i], NULL, declare_thread, job), 0);
    for (int i = 0; i < DECLARERS; i++) {
        void *result;
        pthread_join(threads[i], &result);
        ck_assert_ptr_nonnull(result);
        taken += (size_t)(uintptr_t)result - 1;
    }
    ck_assert_uint_gt(taken, 0);
}

/* ---- what is not this worker's ---- */

static void check_invalid(cairn_status status, const char *first, const char *second)
{
    fails(status, CAIRN_ERR_INVALID, first);
    fails(status, CAIRN_ERR_INVALID, second);
}

TEST(what_a_worker_does_not_hold_it_can_neither_put_nor_push)
{
    float values[48] = { 0 };
    const struct cairn_mem mem = trainer_mem(values, CAIRN_F32);
    struct call calls[2];
    open_rooms(1);
    open_calls(calls, 2);
    for (uint32_t r = 0; r < 2; r++) {
        calls[r].tiles[0] = tile("weight", 2, 0, 8, 3 * r, 3);
        calls[r].tiles[1] = tile("bias", 1, 0, 10 * r, 0, 0);
    }
    call_both_well(calls);
    cairn_job *job = calls[0].job;
    const struct cairn_box other = calls[1].tiles[0].box;
    check_invalid(cairn_put(job, "bias", "param", NULL, &mem, NULL), "bias", "nothing");
    check_invalid(cairn_put(job, "weight", "param", &other, &mem, NULL), "[0:8, 3:6]",
                  "[0:8, 0:3]");
    struct cairn_box outside = other;
    outside.extent[1] = 4;
    check_invalid(cairn_put(job, "weight", "param", &outside, &mem, NULL), "weight", "");
    const struct cairn_round round = { .struct_size = sizeof round, .round = 1 };
    check_invalid(cairn_push(job, &round, 0, "bias", NULL, &mem, NULL), "bias", "nothing");
    check_invalid(cairn_push(job, &round, 0, "weight", &other, &mem, NULL), "weight", "[0:8, 0:3]");
}

/* Puts what it holds: columns of the weight, and a bias that both ranks have. */
struct putter {
    cairn_job *job;
    float bias;
    cairn_status status;
    char said[512];
};

/* A call with a NULL box, as a row of the test below: with so much memory, said or not. */
static const struct held {
    const char *what;
    size_t bytes;
    uint64_t rows; /* of the box that is given; 0: NULL */
    cairn_status status;
    const char *word;
    bool is_put; /* else a fetch */
} held[] = {
    { "a fetch of the tile", 24 * sizeof(float), 0, CAIRN_OK, "", false },
    { "a fetch that does not say of what", 0, 0, CAIRN_ERR_INVALID, "mem.bytes", false },
    { "a fetch into memory of the whole", 48 * sizeof(float), 0, CAIRN_ERR_INVALID, "96", false },
    { "a fetch of the whole, by a box", 48 * sizeof(float), 8, CAIRN_OK, "", false },
    { "a fetch of the whole into a tile", 24 * sizeof(float), 8, CAIRN_ERR_INVALID, "192", false },
    { "a write of the tile", 24 * sizeof(float), 0, CAIRN_OK, "", true },
    { "a write that does not say of what", 0, 0, CAIRN_ERR_INVALID, "mem.bytes", true },
    { "a write of memory of the whole", 48 * sizeof(float), 0, CAIRN_ERR_INVALID, "96", true },
};

/* Of rank 0, which holds the rows 0 to 3 of 8: nothing behind its 24 elements is written. */
static void check_held(cairn_job *job, struct cairn_version version, const struct held *h)
{
    const struct cairn_box whole = { .rank = 2, .extent = { 8, 6 } };
    float values[49] = { 0 };
    cairn_op *op = NULL;
    values[24] = values[48] = 77;
    const struct cairn_mem mem = {
        .struct_size = sizeof mem, .ptr = values, .dtype = CAIRN_F32, .bytes = h->bytes
    };
    const struct cairn_box *box = h->rows > 0 ? &whole : NULL;
    cairn_status status = h->is_put ? cairn_put(job, "weight", "param", box, &mem, &op)
                                    : cairn_fetch(job, version, "weight", "param", box, &mem, &op);
    ck_assert_msg(status == h->status, "%s: %d %s", h->what, (int)status, cairn_error());
    if (status == CAIRN_OK) good(cairn_wait(op, WAIT_MS));
    if (status != CAIRN_OK)
        ck_assert_msg(strstr(cairn_error(), h->word) != NULL, "%s: %s", h->what, cairn_error());
    ck_assert_msg(values[48] == 77 && (h->rows > 0 || values[24] == 77), "%s", h->what);
}

static void put_both(struct putter putters[2]);

TEST(without_a_box_every_call_means_what_the_worker_holds)
{
    struct call calls[2];
    struct putter putters[2];
    struct cairn_version version;
    open_rooms(1);
    open_calls(calls, 1);
    for (uint32_t r = 0; r < 2; r++) calls[r].tiles[0] = tile("weight", 2, 4 * r, 4, 0, 6);
    call_both_well(calls);
    for (int r = 0; r < 2; r++) putters[r] = (struct putter) { .job = calls[r].job };
    put_both(putters);
    for (int r = 0; r < 2; r++) ck_assert_msg(putters[r].status == CAIRN_OK, "%s", putters[r].said);
    cairn_job *job = calls[0].job;
    good(cairn_version_wait(job, (struct cairn_version) { 0, 0 }, WAIT_MS, &version));
    for (size_t i = 0; i < sizeof held / sizeof held[0]; i++)
        if (!held[i].is_put) check_held(job, version, &held[i]);
    good(cairn_write_begin(job, WAIT_MS));
    for (size_t i = 0; i < sizeof held / sizeof held[0]; i++)
        if (held[i].is_put) check_held(job, version, &held[i]);
    good(cairn_write_end(job, WAIT_MS, &version));
}

static void *put_and_end(void *arg)
{
    struct putter *p = arg;
    float values[48] = { 0 };
    const struct cairn_mem mem = trainer_mem(values, CAIRN_F32);
    cairn_status status = cairn_put(p->job, "weight", "param", NULL, &mem, NULL);
    float bias[10];
    for (int i = 0; i < 10; i++) bias[i] = i == 7 ? p->bias : 1;
    const struct cairn_mem shared = { .struct_size = sizeof mem, .ptr = bias, .dtype = CAIRN_F32 };
    if (status == CAIRN_OK) status = cairn_put(p->job, "bias", "param", NULL, &shared, NULL);
    if (status == CAIRN_OK) status = cairn_init_done(p->job, NULL, WAIT_MS);
    p->status = status;
    snprintf(p->said, sizeof p->said, "%s", cairn_error());
    return NULL;
}

static void put_both(struct putter putters[2])
{
    pthread_t threads[2];
    for (int r = 0; r < 2; r++) pthread_create(&threads[r], NULL, put_and_end, &putters[r]);
    for (int r = 0; r < 2; r++) pthread_join(threads[r], NULL);
}

TEST(replicas_that_put_different_values_are_named_and_may_put_again)
{
    struct call calls[2];
    struct putter putters[2];
    open_rooms(1);
    open_calls(calls, 1);
    for (uint32_t r = 0; r < 2; r++) calls[r].tiles[0] = tile("weight", 2, 0, 8, 3 * r, 3);
    call_both_well(calls);
    for (int r = 0; r < 2; r++)
        putters[r] = (struct putter) { .job = calls[r].job, .bias = (float)r };
    put_both(putters);
    for (int r = 0; r < 2; r++) {
        ck_assert_msg(putters[r].status == CAIRN_ERR_MISMATCH, "%s", putters[r].said);
        ck_assert_msg(strstr(putters[r].said, "tensor bias") != NULL &&
                          strstr(putters[r].said, "rank 0 and rank 1") != NULL,
                      "%s", putters[r].said);
    }
    putters[1].bias = 0;
    put_both(putters);
    for (int r = 0; r < 2; r++) ck_assert_msg(putters[r].status == CAIRN_OK, "%s", putters[r].said);
}

/* ---- slices of a job without tiles ---- */

static void read_box(cairn_job *job, struct cairn_version version, const struct cairn_box *box,
                     float *out)
{
    const struct cairn_mem mem = trainer_mem(out, CAIRN_F32);
    cairn_op *op;
    good(cairn_fetch(job, version, "weight", NULL, box, &mem, &op));
    good(cairn_wait(op, WAIT_MS));
}

static struct cairn_version train_once(cairn_job *job, const float *gradient)
{
    const struct cairn_mem mem = trainer_mem((float *)(uintptr_t)gradient, CAIRN_F32);
    const struct cairn_round round = trainer_begin(job);
    good(cairn_push(job, &round, 0, "weight", NULL, &mem, NULL));
    const struct cairn_result result = trainer_commit(job, &round, 0);
    return result.version;
}

static void init_alone(cairn_job *job, float weight[48], float bias[10])
{
    const struct cairn_mem mem[] = {
        { .struct_size = sizeof mem[0], .ptr = weight, .dtype = CAIRN_F32 },
        { .struct_size = sizeof mem[0], .ptr = bias, .dtype = CAIRN_F32 },
    };
    good(cairn_put(job, "weight", "param", NULL, &mem[0], NULL));
    good(cairn_put(job, "bias", "param", NULL, &mem[1], NULL));
    good(cairn_init_done(job, NULL, WAIT_MS));
}

TEST(a_reader_gets_any_slice_of_an_exact_version_while_training_goes_on)
{
    float weight[48], bias[10] = { 0 }, got[48], all[48];
    const struct cairn_box box = { .rank = 2, .start = { 2, 1 }, .extent = { 5, 3 } };
    open_rooms(3);
    for (int i = 0; i < 48; i++) weight[i] = (float)i;
    cairn_job *job = open_member(0, 1);
    init_alone(job, weight, bias);
    cairn_job *reader;
    struct cairn_version first;
    good(cairn_job_open(open_one(), "two", NULL, CAIRN_READER, WAIT_MS, &reader));
    ck_assert_int_eq(cairn_tiles(reader, NULL, 0, 1, WAIT_MS), CAIRN_ERR_REFUSED);
    good(cairn_version_wait(reader, (struct cairn_version) { 0, 0 }, WAIT_MS, &first));
    const struct cairn_version second = train_once(job, weight);
    read_box(reader, first, &box, got); // beside the newer one
    for (uint64_t k = 0; k < 15; k++) ck_assert(got[k] == weight[(2 + k / 3) * 6 + 1 + k % 3]);
    read_box(reader, second, NULL, all);
    read_box(reader, second, &box, got);
    for (uint64_t k = 0; k < 15; k++) ck_assert(got[k] == all[(2 + k / 3) * 6 + 1 + k % 3]);
    ck_assert(all[47] != weight[47]);
    train_once(job, weight);
    const struct cairn_mem mem = trainer_mem(got, CAIRN_F32);
    cairn_op *op;
    good(cairn_fetch(reader, first, "weight", NULL, &box, &mem, &op));
    ck_assert_int_eq(cairn_wait(op, WAIT_MS), CAIRN_ERR_VERSION_GONE);
}

SUITE(60, .tear_down = close_all);
