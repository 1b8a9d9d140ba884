/* Gradients on a card reach shards of that card without passing the host: real daemons on the emulated card,
 * and a worker whose gradients lie in memory of cairn_alloc, of others on the card, and of the host. */
#include <inttypes.h>
#include <check.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "client/base.h"
#include "client/op.h"
#include "client/session.h"
#include "tests/support/emulated.h"
#include "tests/support/suite.h"
#include "tests/support/trainer.h"

enum { WAIT_MS = 20000, SHARDS = 2, TENSORS = 3, ROOM = 2 << 20 };

/* Cut in the middle of pages; whole rows of a leaf; small. */
static const struct cairn_tensor model[TENSORS] = {
    TRAINER_MATRIX("big", "u", 700, 311, 1),
    TRAINER_MATRIX("half", "u", 311, 500, 2, .wire = CAIRN_BF16),
    TRAINER_ONES("small", "v", 77),
};

enum where { HOST, ALLOCATED, FOREIGN, WHERES };

static struct cluster cluster;
static struct emulated card;
static cairn *session;
static cairn_job *job;
static uint32_t micro_batches, stage; /* 0: the defaults */
static bool reads_on_card;            /* the session maps what shards publish on it */
static int own_gpu;                   /* of the worker */
static double offload;                /* of the job's state, in host memory */

static const char *options_of_card; /* of the emulated one; NULL: none */

static void start(const char *backend)
{
    static const char *settings[2] = { NULL };
    static char chosen[32];
    static struct cluster_options options = { .shard_set = settings };
    snprintf(chosen, sizeof chosen, "compute.backend=%s", backend);
    settings[0] = chosen;
    micro_batches = stage = 0;
    reads_on_card = false;
    own_gpu = 0;
    offload = 0;
    emulated_choose(options_of_card);
    cluster_start(&cluster, SHARDS, &options);
}

static void open_card(void)
{
    card = emulated_open(options_of_card);
}

static void open_job(const char *name)
{
    struct cairn_group adamw = CAIRN_GROUP_INIT;
    adamw.weight_decay = 0.1;
    struct cairn_job_spec spec = trainer_spec(model, TENSORS);
    spec.chunk_leaves = 4;
    spec.groups = &adamw;
    if (micro_batches > 0) spec.micro_batches = micro_batches;
    if (stage > 0) spec.stage = stage;
    spec.offload_fraction = offload;
    const struct cairn_opts opts = { .struct_size = sizeof opts,
                                     .endpoint = cluster.address,
                                     .device = reads_on_card ? CAIRN_GPU(0) : 0 };
    good(cairn_open(&opts, &session));
    job = trainer_ready(session, name, &spec);
}

#define refuses(call, expected, word)                                              \
    do {                                                                           \
        ck_assert_int_eq((call), (expected));                                      \
        ck_assert_msg(strstr(cairn_error(), (word)) != NULL, "%s", cairn_error()); \
    } while (0)

/* ---- a gradient, wherever it lies ---- */

struct gradient {
    enum where where;
    float *host; /* [elems], what it is */
    void *at;    /* what is pushed */
    struct emulated_memory foreign;
    struct CUstream_st *stream;
};

static struct gradient make_gradient(enum where where, int t)
{
    struct gradient g = { .where = where, .host = malloc(ROOM) };
    g.at = g.host;
    if (where == ALLOCATED)
        good(cairn_alloc(session, trainer_elems(&model[t]) * 4, CAIRN_GPU(own_gpu), &g.at));
    if (where == FOREIGN) {
        g.foreign = emulated_alloc(&card, ROOM);
        g.at = (void *)(uintptr_t)g.foreign.at;
    }
    if (where != HOST)
        ck_assert_int_eq(card.driver.cuStreamCreate(&g.stream, CAIRN_CU_STREAM_NON_BLOCKING), 0);
    return g;
}

static void free_gradient(struct gradient *g)
{
    if (g->where == ALLOCATED) good(cairn_free(session, g->at));
    if (g->where == FOREIGN) emulated_free(&card, &g->foreign);
    if (g->where != HOST) ck_assert_int_eq(card.driver.cuStreamDestroy(g->stream), 0);
    free(g->host);
}

/* The card writes it when its stream comes to that. */
static void fill(struct gradient *g, int t, unsigned seed)
{
    const size_t elems = trainer_elems(&model[t]);
    for (size_t i = 0; i < elems; i++)
        g->host[i] = (float)((i * 2654435761u + seed * 97u + (unsigned)t) % 2001) / 1000 - 1;
    if (g->where == HOST) return;
    const uint64_t at = (uint64_t)(uintptr_t)g->at;
    ck_assert_int_eq(card.driver.cuMemsetD8Async(at, 0x55, elems * 4, g->stream), 0);
    ck_assert_int_eq(card.driver.cuMemcpyHtoDAsync(at, g->host, elems * 4, g->stream), 0);
}

static struct cairn_mem mem_of(const struct gradient *g)
{
    struct cairn_mem mem = trainer_mem(g->at, CAIRN_F32);
    if (g->where == HOST) return mem;
    mem.device = CAIRN_GPU(own_gpu);
    mem.stream = g->stream;
    return mem;
}

static void train_with(struct gradient gradients[TENSORS], int steps)
{
    for (int step = 0; step < steps; step++) {
        const struct cairn_round round = trainer_begin(job);
        for (uint32_t micro = 0; micro < round.micro_batches; micro++) {
            for (int t = 0; t < TENSORS; t++) {
                cairn_op *op;
                fill(&gradients[t], t, (unsigned)round.step * 7 + micro);
                const struct cairn_mem mem = mem_of(&gradients[t]);
                good(cairn_push(job, &round, micro, model[t].name, NULL, &mem, &op));
                if (micro + 1 < round.micro_batches) good(cairn_wait(op, WAIT_MS));
            }
            if (micro + 1 < round.micro_batches) good(cairn_micro_end(job, &round, micro));
        }
        trainer_commit(job, &round, 1);
    }
}

static void train(enum where where, int steps)
{
    struct gradient gradients[TENSORS];
    for (int t = 0; t < TENSORS; t++) gradients[t] = make_gradient(where, t);
    train_with(gradients, steps);
    for (int t = 0; t < TENSORS; t++) free_gradient(&gradients[t]);
}

static struct cairn_stats stats(void)
{
    struct cairn_stats out = { .struct_size = sizeof out };
    good(cairn_job_stats(job, &out));
    return out;
}

/* Shard and worker count alike what is read where it lies: where a chunk is added up, the shard says. */
static void expect_no_refusal(void)
{
    const char *busy = status_text(CAIRN_ERR_BUSY);
    ck_assert_int_eq(cluster_logged(&cluster, "shard-0.log", busy), 0);
    ck_assert_int_eq(cluster_logged(&cluster, "shard-1.log", busy), 0);
}

/* Roots of all places are one; what was pushed from a card passed no host, if the shards have it. */
static void compare_places(bool is_on_card)
{
    static const char *const names[WHERES] = { "host", "allocated", "foreign" };
    char roots[WHERES][65];
    for (int where = HOST; where < WHERES; where++) {
        open_job(names[where]);
        train((enum where)where, 3);
        trainer_digest(&cluster, names[where], roots[where]);
        const struct cairn_stats s = stats();
        ck_assert_uint_gt(s.pushed_bytes, 0);
        ck_assert_uint_eq(s.device_pushed_bytes, is_on_card && where != HOST ? s.pushed_bytes : 0);
        ck_assert_uint_eq(s.shared_pushed_bytes, s.pushed_bytes);
        ck_assert_uint_eq(s.packed_bytes, 0); // no copy of a step stays
        ck_assert_str_eq(roots[where], roots[HOST]);
        if (s.device_pushed_bytes > 0)
            cluster_await(&cluster, true, "from and to a card", "job show %s", names[where]);
        cairn_close(session);
    }
    expect_no_refusal();
}

TEST(gradients_of_the_host_and_of_both_kinds_of_a_card_make_the_same_bits_and_pass_no_host)
{
    start("cuda");
    open_card();
    compare_places(true);
    cluster_says(&cluster, 0, ", device", "cluster status");
    cluster_stop(&cluster);
}

TEST(shards_whose_state_is_in_host_memory_get_them_through_it)
{
    start("host");
    open_card();
    compare_places(false);
    cluster_stop(&cluster);
}

TEST(a_job_in_both_homes_gets_them_from_wherever_they_lie)
{
    static const char *const names[] = { "host", "allocated" };
    char roots[2][65];
    start("cuda");
    open_card();
    offload = 0.5;
    for (int where = HOST; where <= ALLOCATED; where++) {
        open_job(names[where]);
        train((enum where)where, 2);
        trainer_digest(&cluster, names[where], roots[where]);
        ck_assert_str_eq(roots[where], roots[HOST]);
        cairn_close(session);
    }
    expect_no_refusal();
    cluster_stop(&cluster);
}

/* The worker on GPU 1, the shards on GPU 0: they read it by themselves, or it passes the host. */
TEST_EACH(gradients_on_another_card_are_read_where_cards_read_each_other, 0, 2)
{
    struct CUctx_st *context;
    char roots[2][65];
    if (emulated_cannot("gradients on another GPU")) return;
    options_of_card = _i == 1 ? "devices=2,peers=1" : "devices=2";
    start("cuda");
    open_card();
    ck_assert_int_eq(card.driver.cuDevicePrimaryCtxRetain(&context, 1), CAIRN_CU_OK);
    ck_assert_int_eq(card.driver.cuCtxSetCurrent(context), CAIRN_CU_OK);
    own_gpu = 1;
    for (int where = HOST; where <= ALLOCATED; where++) {
        const char *name = where == HOST ? "host" : "card";
        open_job(name);
        train((enum where)where, 2);
        trainer_digest(&cluster, name, roots[where]);
        ck_assert_str_eq(roots[where], roots[HOST]);
        const struct cairn_stats s = stats();
        ck_assert_uint_eq(s.device_pushed_bytes,
                          where == ALLOCATED && _i == 1 ? s.pushed_bytes : 0);
        cairn_close(session);
    }
    cluster_stop(&cluster);
}

/* Stage 0 adds up here, stage 2 pushes each. */
TEST_EACH(micro_batches_on_a_card_are_those_of_the_host, 0, 2)
{
    char roots[2][65];
    start("cuda");
    micro_batches = 3;
    stage = _i == 0 ? CAIRN_STAGE(0) : CAIRN_STAGE(2);
    open_card();
    for (int where = HOST; where <= ALLOCATED; where++) {
        const char *name = where == HOST ? "host" : "card";
        open_job(name);
        train((enum where)where, 2);
        trainer_digest(&cluster, name, roots[where]);
        ck_assert_str_eq(roots[where], roots[HOST]);
        cairn_close(session);
    }
    cluster_stop(&cluster);
}

/* Memory that is not dense comes to the host first; and so does the initial state. */
TEST(strided_gradients_and_initial_values_on_a_card_are_those_of_the_host)
{
    static const struct cairn_tensor put = {
        .struct_size = sizeof put, .name = "w", .rank = 2, .shape = { 40, 30 }
    };
    char roots[2][65];
    start("cuda");
    open_card();
    for (int on_card = 0; on_card < 2; on_card++) {
        struct cairn_job_spec spec = trainer_spec(&put, 1);
        float *host = calloc(1, ROOM);
        struct emulated_memory memory = emulated_alloc(&card, ROOM);
        for (int i = 0; i < 40 * 32; i++) host[i] = (float)(i % 97) / 97;
        ck_assert_int_eq(card.driver.cuMemcpyHtoDAsync(memory.at, host, ROOM, NULL), 0);
        session = trainer_session(cluster.address, NULL);
        job = trainer_open(session, on_card ? "card" : "host", &spec);
        struct cairn_mem mem = trainer_mem(on_card ? (void *)(uintptr_t)memory.at : host,
                                           CAIRN_F32);
        mem.stride[0] = 32;
        mem.stride[1] = 1;
        if (on_card) mem.device = CAIRN_GPU(0);
        good(cairn_put(job, "w", "param", NULL, &mem, NULL));
        good(cairn_init_done(job, NULL, WAIT_MS));
        const struct cairn_round round = trainer_begin(job);
        good(cairn_push(job, &round, 0, "w", NULL, &mem, NULL));
        trainer_commit(job, &round, 1);
        trainer_digest(&cluster, on_card ? "card" : "host", roots[on_card]);
        cairn_close(session);
        ck_assert_int_eq(card.driver.cuStreamSynchronize(NULL), 0);
        emulated_free(&card, &memory);
        free(host);
    }
    ck_assert_str_eq(roots[1], roots[0]);
    cluster_stop(&cluster);
}

/* Copies to the host are waited for by one event of the card's, which is there from the beginning, and up to
 * eight at a time. */
TEST(chunks_that_pass_the_host_make_no_events_of_their_own_and_are_waited_for_together)
{
    enum { CHUNKS = 42 }; // of a step
    struct gradient gradients[TENSORS];
    if (emulated_cannot("how many events are made")) return;
    start("host");
    open_card();
    open_job("events");
    for (int t = 0; t < TENSORS; t++) gradients[t] = make_gradient(FOREIGN, t);
    train_with(gradients, 1);
    const uint64_t before = card.cairn_emulator_events(), waits = card.cairn_emulator_waits();
    train_with(gradients, 2);
    ck_assert_uint_le(card.cairn_emulator_waits() - waits, CHUNKS);
    ck_assert_uint_eq(card.cairn_emulator_events() - before, 2 * TENSORS); // marks of streams
    for (int t = 0; t < TENSORS; t++) free_gradient(&gradients[t]);
    cairn_close(session);
    cluster_stop(&cluster);
}

/* ---- what is not to be had ---- */

/* A card that is full has no room for copies, and a host may pin nothing: then it is slower, and right. */
TEST(what_finds_no_room_on_the_card_and_no_pinned_memory_passes_the_host_all_the_same)
{
    char roots[2][65];
    if (emulated_cannot("a full card, and a host that pins nothing")) return;
    start("cuda");
    open_card();
    open_job("host");
    train(HOST, 2);
    trainer_digest(&cluster, "host", roots[0]);
    cairn_close(session);
    open_job("full");
    struct gradient gradients[TENSORS];
    for (int t = 0; t < TENSORS; t++) gradients[t] = make_gradient(FOREIGN, t);
    emulated_set(&card, "others=8G,no_pinning=1,quiet=1");
    train_with(gradients, 2);
    for (int t = 0; t < TENSORS; t++) free_gradient(&gradients[t]);
    trainer_digest(&cluster, "full", roots[1]);
    ck_assert_str_eq(roots[1], roots[0]);
    ck_assert_uint_eq(stats().device_pushed_bytes, 0);
    cairn_close(session);
    cluster_stop(&cluster);
}

/* What the driver refuses; whether gradients pass the host then, and in how many shards a line says so. */
static const struct {
    const char *options;
    bool all_pass_the_host;
    int lines;
} refusing[] = {
    { "import_fails=801,quiet=1", true, SHARDS }, // whatever the driver calls it
    { "import_fails=101,quiet=1", true, SHARDS },
    { "import_fails=2,quiet=1", true, SHARDS },
    { "import_fails=801,import_at=1,quiet=1", false, SHARDS }, // once, and that decides
    { "export_fails=801,quiet=1", true, 0 },
    { "read_only_fails=801,quiet=1", false, 0 }, // then memory is opened whole
};

static const char host_from_now_on[] = "goes through the host from now on";

TEST_EACH(a_driver_that_refuses_stops_no_job_and_what_it_refuses_is_said_once, 0,
          sizeof refusing / sizeof *refusing)
{
    char roots[2][65];
    if (emulated_cannot("a driver that refuses")) return;
    options_of_card = refusing[_i].options;
    start("cuda");
    open_card();
    for (int where = HOST; where <= ALLOCATED; where++) {
        const char *name = where == HOST ? "host" : "card";
        open_job(name);
        train((enum where)where, 2);
        trainer_digest(&cluster, name, roots[where]);
        ck_assert_str_eq(roots[where], roots[HOST]);
        if (refusing[_i].all_pass_the_host)
            ck_assert_uint_lt(stats().device_pushed_bytes, stats().pushed_bytes);
        cairn_close(session);
    }
    ck_assert_int_eq(cluster_logged(&cluster, "shard-0.log", host_from_now_on) +
                         cluster_logged(&cluster, "shard-1.log", host_from_now_on),
                     refusing[_i].lines);
    cluster_stop(&cluster);
}

TEST(a_gradient_whose_stream_fails_fails_the_handle_with_a_sentence_and_no_round_goes_by_it)
{
    struct cairn_result result = { .struct_size = sizeof result };
    if (emulated_cannot("a stream that fails")) return;
    start("cuda");
    open_card();
    open_job("fails");
    struct gradient g = make_gradient(ALLOCATED, 0);
    const struct cairn_round round = trainer_begin(job);
    emulated_set(&card, "ecc_at=1,quiet=1");
    const uint64_t at = (uint64_t)(uintptr_t)g.at;
    ck_assert_int_eq(card.driver.cuMemsetD8Async(at, 0x55, 4096, g.stream), 0);
    const struct cairn_mem mem = mem_of(&g);
    const cairn_status pushed = cairn_push(job, &round, 0, model[0].name, NULL, &mem, NULL);
    if (pushed == CAIRN_OK) // the error may have come first
        refuses(cairn_commit(job, &round, 1, NULL, 0, WAIT_MS, &result), CAIRN_ERR_IO,
                "what was queued on its stream failed");
    cairn_close(session);
    free(g.host);
    cluster_stop(&cluster);
}

/* ---- a worker that dies ---- */

static void push_and_die(void)
{
    open_card();
    open_job("lives");
    struct gradient g = make_gradient(ALLOCATED, 0);
    fill(&g, 0, 1);
    const struct cairn_round round = trainer_begin(job);
    const struct cairn_mem mem = mem_of(&g);
    good(cairn_push(job, &round, 0, model[0].name, NULL, &mem, NULL));
    while (stats().pushed_bytes == 0) usleep(1000);
    kill(getpid(), SIGKILL);
}

TEST(a_worker_that_dies_while_its_memory_is_read_harms_nobody)
{
    int status;
    start("cuda");
    const pid_t child = fork();
    if (child == 0) {
        push_and_die();
        _exit(1);
    }
    ck_assert_int_eq(waitpid(child, &status, 0), child);
    ck_assert(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
    open_card();
    open_job("lives");
    train(ALLOCATED, 2);
    ck_assert_uint_eq(stats().device_pushed_bytes, stats().pushed_bytes);
    cairn_close(session);
    cluster_stop(&cluster);
}

/* ---- streams that wait ---- */

/* The operation's minute for streams is over. */
static void let_time_pass(cairn_op *handle)
{
    struct op *op = handle_get(CAIRN_HANDLE_OP, handle);
    struct stream_waits *waits = &op->session->streams;
    pthread_mutex_lock(&waits->lock);
    ck_assert_ptr_nonnull(op->words);
    op->words_until_ms = 0;
    pthread_cond_signal(&waits->changed);
    pthread_mutex_unlock(&waits->lock);
    handle_put(handle);
}

TEST(a_stream_waits_until_an_operation_is_over_and_not_longer_than_the_session)
{
    struct CUstream_st *stream;
    struct cairn_version version;
    cairn_op *op;
    static float values[700 * 311];
    start("cuda");
    open_card();
    open_job("waits");
    ck_assert_int_eq(card.driver.cuStreamCreate(&stream, CAIRN_CU_STREAM_NON_BLOCKING), 0);
    good(cairn_version_wait(job, (struct cairn_version) { 0 }, WAIT_MS, &version));
    const struct cairn_mem mem = trainer_mem(values, CAIRN_F32);
    good(cairn_fetch(job, version, "big", NULL, NULL, &mem, &op));
    good(cairn_stream_wait(op, stream));
    ck_assert_int_eq(card.driver.cuStreamSynchronize(stream), 0);
    good(cairn_wait(op, 0));
    // A shard that is dead answers nothing: a stream waits for a while, or until the session ends.
    cluster_kill_shard(&cluster, 0);
    cluster_kill_shard(&cluster, 1);
    good(cairn_fetch(job, version, "big", "param", NULL, &mem, &op));
    good(cairn_stream_wait(op, stream));
    ck_assert_int_eq(cairn_wait(op, 100), CAIRN_ERR_TIMEOUT);
    let_time_pass(op);
    ck_assert_int_eq(card.driver.cuStreamSynchronize(stream), 0);
    good(cairn_stream_wait(op, stream));
    cairn_close(session);
    ck_assert_int_eq(card.driver.cuStreamSynchronize(stream), 0);
    ck_assert_int_eq(cairn_wait(op, 0), CAIRN_ERR_CANCELED);
    ck_assert_int_eq(card.driver.cuStreamDestroy(stream), 0);
    cluster_stop(&cluster);
}

static void fetch_on_card(const char *tensor, const struct gradient *to, cairn_op **op_out)
{
    struct cairn_version version;
    good(cairn_version_wait(job, (struct cairn_version) { 0 }, WAIT_MS, &version));
    const struct cairn_mem mem = mem_of(to);
    good(cairn_fetch(job, version, tensor, "param", NULL, &mem, op_out));
}

/* The streams of the caller share one queue of the hardware: a copy in it would be behind the wait. */
TEST(what_a_stream_waits_for_is_copied_beside_the_queue_that_it_waits_in)
{
    cairn_op *op;
    if (emulated_cannot("one queue for all streams")) return; // the variable is read before main
    start("host");
    card = emulated_open("queues=1");
    open_job("shares");
    struct gradient g = make_gradient(FOREIGN, 0);
    fetch_on_card("big", &g, &op);
    good(cairn_stream_wait(op, g.stream));
    ck_assert_int_eq(card.driver.cuStreamSynchronize(g.stream), 0);
    good(cairn_wait(op, WAIT_MS)); // and not CAIRN_ERR_CANCELED after a minute
    free_gradient(&g);
    cairn_close(session);
    cluster_stop(&cluster);
}

/* The loop thread is held up in the driver: the stream is let go all the same. */
TEST(a_stream_goes_on_in_time_while_the_driver_holds_up_the_thread_of_the_session)
{
    cairn_op *op;
    if (emulated_cannot("a driver that holds a thread up")) return;
    start("host");
    open_card();
    open_job("stuck");
    struct gradient g = make_gradient(FOREIGN, 0);
    ck_assert_int_eq(card.driver.cuStreamSynchronize(g.stream), 0);
    emulated_set(&card, "stuck=1");
    fetch_on_card("big", &g, &op);
    good(cairn_stream_wait(op, g.stream));
    ck_assert_int_eq(cairn_wait(op, 300), CAIRN_ERR_TIMEOUT);
    let_time_pass(op);
    ck_assert_int_eq(card.driver.cuStreamSynchronize(g.stream), 0);
    ck_assert_int_eq(cairn_wait(op, 0), CAIRN_ERR_TIMEOUT); // the copy is where it was
    emulated_set(&card, "stuck=0");
    ck_assert_int_eq(cairn_wait(op, WAIT_MS), CAIRN_ERR_CANCELED);
    free_gradient(&g);
    cairn_close(session);
    cluster_stop(&cluster);
}

/* What the session's thread needs for it, pinned memory or some of the card, it has not taken before. */
static void pushes_or_fetches(bool pushes, const struct gradient *g, cairn_op **op_out)
{
    if (!pushes) {
        fetch_on_card("big", g, op_out);
        return;
    }
    const struct cairn_round round = trainer_begin(job);
    const struct cairn_mem mem = mem_of(g);
    good(cairn_push(job, &round, 0, "big", NULL, &mem, op_out));
}

/* A driver may let what maps or registers memory wait for all that the card has under way. */
TEST_EACH(a_stream_goes_on_though_the_driver_holds_up_what_maps_memory_while_it_waits, 0, 4)
{
    struct CUstream_st *waits;
    cairn_op *op;
    const bool pushes = _i % 2 == 1;
    if (emulated_cannot("a driver that holds up what maps memory")) return;
    start(_i < 2 ? "host" : "cuda");
    open_card();
    open_job("held");
    struct gradient g = make_gradient(FOREIGN, 0);
    ck_assert_int_eq(card.driver.cuStreamCreate(&waits, CAIRN_CU_STREAM_NON_BLOCKING), 0);
    emulated_set(&card, "stuck=1,maps_wait=3000");
    fill(&g, 0, 1);
    pushes_or_fetches(pushes, &g, &op);
    good(cairn_stream_wait(op, waits));
    emulated_set(&card, "stuck=0"); // only now the operation begins
    ck_assert_int_eq(card.driver.cuStreamSynchronize(waits), 0);
    good(cairn_wait(op, WAIT_MS));
    ck_assert_int_eq(card.driver.cuStreamDestroy(waits), 0);
    free_gradient(&g);
    cairn_close(session);
    cluster_stop(&cluster);
}

/* As a trainer's cudaDeviceReset does. */
TEST(an_operation_that_ends_after_the_context_harms_nobody)
{
    cairn_op *op;
    struct CUstream_st *stream;
    struct cairn_version version;
    static float values[700 * 311];
    if (emulated_cannot("a context that is gone")) return;
    start("cuda");
    card = emulated_open("quiet=1");
    open_job("reset");
    ck_assert_int_eq(card.driver.cuStreamCreate(&stream, CAIRN_CU_STREAM_NON_BLOCKING), 0);
    good(cairn_version_wait(job, (struct cairn_version) { 0 }, WAIT_MS, &version));
    const struct cairn_mem mem = trainer_mem(values, CAIRN_F32);
    cluster_kill_shard(&cluster, 0);
    cluster_kill_shard(&cluster, 1);
    good(cairn_fetch(job, version, "big", "param", NULL, &mem, &op));
    good(cairn_stream_wait(op, stream));
    while (card.driver.cuDevicePrimaryCtxRelease(0) == CAIRN_CU_OK) continue;
    cairn_close(session); // the word is written
    ck_assert_int_ne(cairn_wait(op, 0), CAIRN_OK);
    cluster_stop(&cluster);
}

/* ---- graphs that others capture ---- */

static void capture(const struct CUstream_st *stream)
{
    char options[48];
    snprintf(options, sizeof options, "captured=%" PRIu64, (uintptr_t)stream);
    emulated_set(&card, options);
}

static void signal_shards(int signal)
{
    for (int i = 0; i < SHARDS; i++) ck_assert_int_eq(kill(cluster.shards[i], signal), 0);
}

/* The emulated card aborts if a call of the library would end the capture. */
TEST_EACH(a_capture_elsewhere_in_the_process_and_a_push_do_not_meet, HOST, FOREIGN + 1)
{
    struct CUstream_st *captured;
    cairn_op *op;
    if (emulated_cannot("a graph that is captured")) return;
    start(_i == FOREIGN ? "host" : "cuda");
    open_card();
    open_job("captures");
    struct gradient g = make_gradient((enum where)_i, 0);
    ck_assert_int_eq(card.driver.cuStreamCreate(&captured, CAIRN_CU_STREAM_NON_BLOCKING), 0);
    const struct cairn_round round = trainer_begin(job);
    fill(&g, 0, 1);
    capture(captured);
    signal_shards(SIGSTOP); // what is pushed is not over before a stream is to wait for it
    struct cairn_mem mem = mem_of(&g);
    good(cairn_push(job, &round, 0, "big", NULL, &mem, &op));
    if (_i != HOST) {
        mem.stream = captured;
        refuses(cairn_push(job, &round, 0, "half", NULL, &mem, NULL), CAIRN_ERR_INVALID,
                "is being captured into a CUDA graph");
        mem.stream = NULL;
        refuses(cairn_push(job, &round, 0, "half", NULL, &mem, NULL), CAIRN_ERR_INVALID,
                "through another one, which it waits for");
    }
    refuses(cairn_stream_wait(op, captured), CAIRN_ERR_INVALID, "call this outside");
    signal_shards(SIGCONT);
    good(cairn_wait(op, WAIT_MS));
    trainer_commit(job, &round, 1);
    capture(NULL);
    free_gradient(&g);
    cairn_close(session);
    cluster_stop(&cluster);
}

/* ---- letting go ---- */

#define PUBLISHED "memfd:cairn-head"

/* Memory that this process maps of the shards', by the name of its memfd. */
static int count_maps(const char *name)
{
    char line[512];
    int count = 0;
    FILE *maps = fopen("/proc/self/maps", "r");
    while (fgets(line, sizeof line, maps) != NULL) count += strstr(line, name) != NULL;
    fclose(maps);
    return count;
}

/* Of the card, in this process; which a driver does not say: 0. */
static uint64_t left_on_card(void)
{
    return emulated_is_real() ? 0 : card.cairn_emulator_left();
}

/* Until shards show on the card again. */
static void await_more_left(uint64_t than)
{
    if (emulated_cannot("that nothing of the card is left in a process")) return;
    for (int i = 0; i < WAIT_MS / 20 && left_on_card() <= than; i++) usleep(20000);
    ck_assert_uint_gt(left_on_card(), than);
}

TEST(a_trainer_lets_go_of_all_that_shards_show_it_and_takes_it_again)
{
    static float values[700 * 311];
    struct cairn_view views[TENSORS] = { { .struct_size = sizeof views[0] } };
    struct cairn_version version;
    size_t count = TENSORS;
    char roots[2][65];
    cairn_op *op;
    start("cuda");
    open_card();
    open_job("stays");
    train(ALLOCATED, 4);
    trainer_digest(&cluster, "stays", roots[0]);
    cairn_close(session);
    reads_on_card = true;
    open_job("goes");
    train(ALLOCATED, 2);
    good(cairn_version_wait(job, (struct cairn_version) { 0 }, WAIT_MS, &version));
    good(cairn_map(job, version, "v", views, &count, &op));
    good(cairn_wait(op, WAIT_MS));
    refuses(cairn_detach_memory(session, WAIT_MS), CAIRN_ERR_BUSY, "a unit is mapped");
    good(cairn_unmap(job, &views[0], NULL));
    const struct cairn_round round = trainer_begin(job);
    refuses(cairn_detach_memory(session, WAIT_MS), CAIRN_ERR_BUSY, "is open: commit it first");
    good(cairn_round_abandon(job, &round, WAIT_MS));
    ck_assert_int_gt(count_maps(PUBLISHED), 0);
    uint64_t left = 0;
    for (int i = 0; i < 2; i++) {
        if (i > 0) await_more_left(left);
        good(cairn_detach_memory(session, WAIT_MS));
        ck_assert_int_eq(count_maps(PUBLISHED), 0);
        if (i > 0) ck_assert_uint_eq(left_on_card(), left);
        left = left_on_card();
        good(cairn_detach_memory(session, WAIT_MS)); // as it is already
        good(cairn_attach_memory(session, WAIT_MS));
    }
    trainer_fetch(job, version, "big", NULL, CAIRN_F32, values);
    train(ALLOCATED, 2);
    trainer_digest(&cluster, "goes", roots[1]);
    ck_assert_str_eq(roots[1], roots[0]);
    cairn_close(session);
    cluster_stop(&cluster);
}

/* ---- what bad input gets ---- */

TEST(what_is_wrong_with_memory_of_a_card_is_said)
{
    void *memory;
    struct CUstream_st *stream;
    if (emulated_cannot("two GPUs, and a stream that was destroyed")) return;
    start("cuda");
    card = emulated_open("devices=2,quiet=1");
    open_job("bad");
    refuses(cairn_alloc(session, 4096, CAIRN_GPU(3), &memory), CAIRN_ERR_INVALID,
            "there is no GPU 3");
    refuses(cairn_alloc(session, (size_t)1 << 45, CAIRN_GPU(0), &memory), CAIRN_ERR_NO_MEMORY,
            "of GPU 0");
    good(cairn_alloc(session, 4096, CAIRN_GPU(0), &memory));
    const struct cairn_round round = trainer_begin(job);
    struct cairn_mem mem = trainer_mem(memory, CAIRN_F32);
    refuses(cairn_push(job, &round, 0, "small", NULL, &mem, NULL), CAIRN_ERR_INVALID,
            "set mem.device to CAIRN_GPU(0)");
    mem.device = CAIRN_GPU(1);
    refuses(cairn_push(job, &round, 0, "small", NULL, &mem, NULL), CAIRN_ERR_INVALID,
            "is not memory of GPU 1");
    mem.device = CAIRN_GPU(0);
    mem.ptr = (uint8_t *)memory + (2 << 20) - 100;
    refuses(cairn_push(job, &round, 0, "small", NULL, &mem, NULL), CAIRN_ERR_INVALID, "308");
    mem.ptr = &mem;
    refuses(cairn_push(job, &round, 0, "small", NULL, &mem, NULL), CAIRN_ERR_INVALID,
            "is not memory of GPU 0");
    mem.ptr = memory;
    ck_assert_int_eq(card.driver.cuStreamCreate(&stream, CAIRN_CU_STREAM_NON_BLOCKING), 0);
    ck_assert_int_eq(card.driver.cuStreamDestroy(stream), 0);
    mem.stream = stream;
    refuses(cairn_push(job, &round, 0, "small", NULL, &mem, NULL), CAIRN_ERR_INVALID,
            "or was destroyed");
    mem.device = 0;
    refuses(cairn_push(job, &round, 0, "small", NULL, &mem, NULL), CAIRN_ERR_INVALID,
            "mem.stream is");
    mem.device = CAIRN_GPU(0);
    mem.stream = NULL;
    good(cairn_push(job, &round, 0, "small", NULL, &mem, NULL)); // nothing of it was taken before
    trainer_commit(job, &round, 1);
    good(cairn_free(session, memory));
    cairn_close(session);
    cluster_stop(&cluster);
}

SUITE(120);
