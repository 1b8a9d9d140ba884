/* Gradients on a card reach shards of that card without passing the host: real daemons on the emulated card,
 * and a worker whose gradients lie in memory of cairn_alloc, of others on the card, and of the host. */
#include <inttypes.h>
#include <signal.h>
#include <sys/wait.h>

#include "client/base.h"
#include "client/op.h"
#include "client/session.h"
#include "tests/gpu/card.h"

enum { SHARDS = 2 };

static uint32_t micro_batches, stage; /* 0: the defaults */
static bool reads_on_card;            /* the session maps what shards publish on it */
static int own_gpu;                   /* of the worker */
static double offload;                /* of the job's state, in host memory */

static void open_card(void)
{
    card = emulated_open(card_options);
}

static void start_with_card(const char *backend)
{
    start_on(backend, SHARDS);
    open_card();
}

static void open_job(const char *name)
{
    struct cairn_job_spec spec = card_spec();
    if (micro_batches > 0) spec.micro_batches = micro_batches;
    if (stage > 0) spec.stage = stage;
    spec.offload_fraction = offload;
    session = card_session(reads_on_card);
    join_spec(name, &spec);
}

static void take_all(struct memory gradients[CARD_PUSHED], enum where where)
{
    for (int t = 0; t < CARD_PUSHED; t++)
        gradients[t] = memory_of_gradient(session, where, own_gpu, t);
}

static void give_all(struct memory gradients[CARD_PUSHED])
{
    for (int t = 0; t < CARD_PUSHED; t++) memory_give(session, &gradients[t]);
}

static void train_from(enum where where, int steps)
{
    struct memory gradients[CARD_PUSHED];
    take_all(gradients, where);
    memory_train(job, gradients, steps);
    give_all(gradients);
}

/* Shard and worker count alike what is read where it lies: where a chunk is added up, the shard says. */
static void expect_no_refusal(void)
{
    const char *busy = status_text(CAIRN_ERR_BUSY);
    ck_assert_int_eq(logged("shard-0.log", busy), 0);
    ck_assert_int_eq(logged("shard-1.log", busy), 0);
}

/* A job from each of the places, up to `last`, comes to one root; `check` looks at what each has pushed. */
static void expect_same_from(enum where last, int steps, void (*check)(enum where where))
{
    static const char *const names[] = {
        [HOST] = "host", [ALLOCATED] = "allocated", [FOREIGN] = "foreign"
    };
    char root[65];
    for (int where = HOST; where <= (int)last; where++) {
        if (where == SHARED) continue; // e2e.mapped
        open_job(names[where]);
        train_from((enum where)where, steps);
        if (where == HOST)
            bits(root);
        else
            expect_bits(root);
        if (check != NULL) check((enum where)where);
        leave();
    }
}

static bool is_shards; /* the card */

/* What was pushed from a card passed no host, if the shards have it. */
static void check_way(enum where where)
{
    const struct cairn_stats s = card_stats(job);
    ck_assert_uint_gt(s.pushed_bytes, 0);
    ck_assert_uint_eq(s.device_pushed_bytes, is_shards && where >= ALLOCATED ? s.pushed_bytes : 0);
    ck_assert_uint_eq(s.shared_pushed_bytes, s.pushed_bytes);
    ck_assert_uint_eq(s.packed_bytes, 0); // no copy of a step stays
    if (s.device_pushed_bytes > 0)
        await_said("from and to a card", "job show %s",
                   where == ALLOCATED ? "allocated" : "foreign");
}

TEST(gradients_of_the_host_and_of_both_kinds_of_a_card_make_the_same_bits_and_pass_no_host)
{
    start_with_card("cuda");
    is_shards = true;
    expect_same_from(FOREIGN, 3, check_way);
    expect_no_refusal();
    says(0, ", device", "cluster status");
}

TEST(shards_whose_state_is_in_host_memory_get_them_through_it)
{
    start_with_card("host");
    expect_same_from(FOREIGN, 3, check_way);
    expect_no_refusal();
}

TEST(a_job_in_both_homes_gets_them_from_wherever_they_lie)
{
    start_with_card("cuda");
    offload = 0.5;
    expect_same_from(ALLOCATED, 2, NULL);
    expect_no_refusal();
}

static void check_device_pushed(enum where where)
{
    const struct cairn_stats s = card_stats(job);
    ck_assert_uint_eq(s.device_pushed_bytes, is_shards && where == ALLOCATED ? s.pushed_bytes : 0);
}

/* The worker on GPU 1, the shards on GPU 0: they read it by themselves, or it passes the host. */
TEST_EACH(gradients_on_another_card_are_read_where_cards_read_each_other, 0, 2)
{
    struct CUctx_st *context;
    if (emulated_cannot("gradients on another GPU")) return;
    card_options = _i == 1 ? "devices=2,peers=1" : "devices=2";
    start_with_card("cuda");
    ck_assert_int_eq(card.driver.cuDevicePrimaryCtxRetain(&context, 1), CAIRN_CU_OK);
    ck_assert_int_eq(card.driver.cuCtxSetCurrent(context), CAIRN_CU_OK);
    own_gpu = 1;
    is_shards = _i == 1;
    expect_same_from(ALLOCATED, 2, check_device_pushed);
}

/* Stage 0 adds up here, stage 2 pushes each. */
TEST_EACH(micro_batches_on_a_card_are_those_of_the_host, 0, 2)
{
    start_with_card("cuda");
    micro_batches = 3;
    stage = _i == 0 ? CAIRN_STAGE(0) : CAIRN_STAGE(2);
    expect_same_from(ALLOCATED, 2, NULL);
}

/* Memory that is not dense comes to the host first; and so does the initial state. */
TEST(strided_gradients_and_initial_values_on_a_card_are_those_of_the_host)
{
    static const struct cairn_tensor put = {
        .struct_size = sizeof put, .name = "w", .rank = 2, .shape = { 40, 30 }
    };
    char root[65];
    start_with_card("cuda");
    for (int on_card = 0; on_card < 2; on_card++) {
        const struct cairn_job_spec spec = TRAINER_SPEC(&put, 1);
        session = trainer_session(cluster.address, NULL);
        struct memory memory = memory_take(session, on_card ? FOREIGN : HOST, 0);
        struct cairn_mem mem = memory_mem(&memory, CAIRN_F32);
        memset(memory.host, 0, CARD_ROOM);
        for (int i = 0; i < 40 * 32; i++) memory.host[i] = (float)(i % 97) / 97;
        if (on_card)
            ck_assert_int_eq(card.driver.cuMemcpyHtoDAsync(memory_address(&memory), memory.host,
                                                           CARD_ROOM, memory.stream),
                             0);
        job = trainer_open(session, on_card ? "card" : "host", &spec);
        mem.stride[0] = 32;
        mem.stride[1] = 1;
        good(cairn_put(job, "w", "param", NULL, &mem, NULL));
        good(cairn_init_done(job, NULL, CLUSTER_WAIT_MS));
        const struct cairn_round round = trainer_begin(job);
        good(cairn_push(job, &round, 0, "w", NULL, &mem, NULL));
        trainer_commit(job, &round, 1);
        if (!on_card) trainer_digest(&cluster, "host", root);
        if (on_card) trainer_expect_digest(&cluster, "card", root);
        leave();
        if (on_card) ck_assert_int_eq(card.driver.cuStreamSynchronize(memory.stream), 0);
        memory_give(NULL, &memory);
    }
}

/* Copies to the host are waited for by one event of the card's, which is there from the beginning, and up to
 * eight at a time. */
TEST(chunks_that_pass_the_host_make_no_events_of_their_own_and_are_waited_for_together)
{
    enum { CHUNKS = 42 }; // of a step
    struct memory gradients[CARD_PUSHED];
    if (emulated_cannot("how many events are made")) return;
    start_with_card("host");
    open_job("events");
    take_all(gradients, FOREIGN);
    memory_train(job, gradients, 1);
    const uint64_t before = card.cairn_emulator_events(), waits = card.cairn_emulator_waits();
    memory_train(job, gradients, 2);
    ck_assert_uint_le(card.cairn_emulator_waits() - waits, CHUNKS);
    ck_assert_uint_eq(card.cairn_emulator_events() - before, 2 * CARD_PUSHED); // marks of streams
    give_all(gradients);
}

/* ---- what is not to be had ---- */

/* A card that is full has no room for copies, and a host may pin nothing: then it is slower, and right. */
TEST(what_finds_no_room_on_the_card_and_no_pinned_memory_passes_the_host_all_the_same)
{
    char root[65];
    struct memory gradients[CARD_PUSHED];
    if (emulated_cannot("a full card, and a host that pins nothing")) return;
    start_with_card("cuda");
    open_job("host");
    train_from(HOST, 2);
    bits(root);
    leave();
    open_job("full");
    take_all(gradients, FOREIGN);
    emulated_set(&card, "others=8G,no_pinning=1,quiet=1");
    memory_train(job, gradients, 2);
    give_all(gradients);
    expect_bits(root);
    ck_assert_uint_eq(card_stats(job).device_pushed_bytes, 0);
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

static void check_passes_host(enum where where)
{
    (void)where;
    ck_assert_uint_lt(card_stats(job).device_pushed_bytes, card_stats(job).pushed_bytes);
}

TEST_EACH(a_driver_that_refuses_stops_no_job_and_what_it_refuses_is_said_once, 0,
          sizeof refusing / sizeof *refusing)
{
    static const char said_once[] = "goes through the host from now on";
    if (emulated_cannot("a driver that refuses")) return;
    card_options = refusing[_i].options;
    start_with_card("cuda");
    expect_same_from(ALLOCATED, 2, refusing[_i].all_pass_the_host ? check_passes_host : NULL);
    ck_assert_int_eq(logged("shard-0.log", said_once) + logged("shard-1.log", said_once),
                     refusing[_i].lines);
}

TEST(a_gradient_whose_stream_fails_fails_the_handle_with_a_sentence_and_no_round_goes_by_it)
{
    struct cairn_result result = { .struct_size = sizeof result };
    if (emulated_cannot("a stream that fails")) return;
    start_with_card("cuda");
    open_job("fails");
    struct memory g = memory_take(session, ALLOCATED, own_gpu);
    const struct cairn_round round = trainer_begin(job);
    emulated_set(&card, "ecc_at=1,quiet=1");
    const uint64_t at = memory_address(&g);
    ck_assert_int_eq(card.driver.cuMemsetD8Async(at, 0x55, 4096, g.stream), 0);
    const struct cairn_mem mem = memory_mem(&g, CAIRN_F32);
    const cairn_status pushed = cairn_push(job, &round, 0, card_model[0].name, NULL, &mem, NULL);
    if (pushed == CAIRN_OK) // the error may have come first
        fails(cairn_commit(job, &round, 1, NULL, 0, CLUSTER_WAIT_MS, &result), CAIRN_ERR_IO,
              "what was queued on its stream failed");
    stop();
    free(g.host);
}

/* ---- a worker that dies ---- */

static void push_and_die(void)
{
    open_card();
    open_job("lives");
    struct memory g = memory_take(session, ALLOCATED, own_gpu);
    memory_fill(&g, 0, 1);
    const struct cairn_round round = trainer_begin(job);
    const struct cairn_mem mem = memory_mem(&g, CAIRN_F32);
    good(cairn_push(job, &round, 0, card_model[0].name, NULL, &mem, NULL));
    while (card_stats(job).pushed_bytes == 0) usleep(1000);
    kill(getpid(), SIGKILL);
}

TEST(a_worker_that_dies_while_its_memory_is_read_harms_nobody)
{
    int status;
    start_on("cuda", SHARDS);
    const pid_t child = fork();
    if (child == 0) {
        push_and_die();
        _exit(1);
    }
    ck_assert_int_eq(waitpid(child, &status, 0), child);
    ck_assert(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
    open_card();
    open_job("lives");
    train_from(ALLOCATED, 2);
    ck_assert_uint_eq(card_stats(job).device_pushed_bytes, card_stats(job).pushed_bytes);
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
    static float values[CARD_BIG_ELEMS];
    start_with_card("cuda");
    open_job("waits");
    ck_assert_int_eq(card.driver.cuStreamCreate(&stream, CAIRN_CU_STREAM_NON_BLOCKING), 0);
    good(cairn_version_wait(job, (struct cairn_version) { 0 }, CLUSTER_WAIT_MS, &version));
    const struct cairn_mem mem = trainer_mem(values, CAIRN_F32);
    good(cairn_fetch(job, version, "big", NULL, NULL, &mem, &op));
    good(cairn_stream_wait(op, stream));
    ck_assert_int_eq(card.driver.cuStreamSynchronize(stream), 0);
    good(cairn_wait(op, 0));
    // A shard that is dead answers nothing: a stream waits for a while, or until the session ends.
    kill_shard(0);
    kill_shard(1);
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
}

static void fetch_on_card(const char *tensor, const struct memory *to, cairn_op **op_out)
{
    struct cairn_version version;
    good(cairn_version_wait(job, (struct cairn_version) { 0 }, CLUSTER_WAIT_MS, &version));
    const struct cairn_mem mem = memory_mem(to, CAIRN_F32);
    good(cairn_fetch(job, version, tensor, "param", NULL, &mem, op_out));
}

/* The streams of the caller share one queue of the hardware: a copy in it would be behind the wait. */
TEST(what_a_stream_waits_for_is_copied_beside_the_queue_that_it_waits_in)
{
    cairn_op *op;
    if (emulated_cannot("one queue for all streams")) return; // the variable is read before main
    start_on("host", SHARDS);
    card = emulated_open("queues=1");
    open_job("shares");
    struct memory g = memory_take(session, FOREIGN, own_gpu);
    fetch_on_card("big", &g, &op);
    good(cairn_stream_wait(op, g.stream));
    ck_assert_int_eq(card.driver.cuStreamSynchronize(g.stream), 0);
    good(cairn_wait(op, CLUSTER_WAIT_MS)); // and not CAIRN_ERR_CANCELED after a minute
    memory_give(session, &g);
}

/* The loop thread is held up in the driver: the stream is let go all the same. */
TEST(a_stream_goes_on_in_time_while_the_driver_holds_up_the_thread_of_the_session)
{
    cairn_op *op;
    if (emulated_cannot("a driver that holds a thread up")) return;
    start_with_card("host");
    open_job("stuck");
    struct memory g = memory_take(session, FOREIGN, own_gpu);
    ck_assert_int_eq(card.driver.cuStreamSynchronize(g.stream), 0);
    emulated_set(&card, "stuck=1");
    fetch_on_card("big", &g, &op);
    good(cairn_stream_wait(op, g.stream));
    ck_assert_int_eq(cairn_wait(op, 300), CAIRN_ERR_TIMEOUT);
    let_time_pass(op);
    ck_assert_int_eq(card.driver.cuStreamSynchronize(g.stream), 0);
    ck_assert_int_eq(cairn_wait(op, 0), CAIRN_ERR_TIMEOUT); // the copy is where it was
    emulated_set(&card, "stuck=0");
    ck_assert_int_eq(cairn_wait(op, CLUSTER_WAIT_MS), CAIRN_ERR_CANCELED);
    memory_give(session, &g);
}

/* What the session's thread needs for it, pinned memory or some of the card, it has not taken before. */
static void pushes_or_fetches(bool pushes, const struct memory *g, cairn_op **op_out)
{
    if (!pushes) {
        fetch_on_card("big", g, op_out);
        return;
    }
    const struct cairn_round round = trainer_begin(job);
    const struct cairn_mem mem = memory_mem(g, CAIRN_F32);
    good(cairn_push(job, &round, 0, "big", NULL, &mem, op_out));
}

/* A driver may let what maps or registers memory wait for all that the card has under way. */
TEST_EACH(a_stream_goes_on_though_the_driver_holds_up_what_maps_memory_while_it_waits, 0, 4)
{
    struct CUstream_st *waits;
    cairn_op *op;
    const bool pushes = _i % 2 == 1;
    if (emulated_cannot("a driver that holds up what maps memory")) return;
    start_with_card(_i < 2 ? "host" : "cuda");
    open_job("held");
    struct memory g = memory_take(session, FOREIGN, own_gpu);
    ck_assert_int_eq(card.driver.cuStreamCreate(&waits, CAIRN_CU_STREAM_NON_BLOCKING), 0);
    emulated_set(&card, "stuck=1,maps_wait=3000");
    memory_fill(&g, 0, 1);
    pushes_or_fetches(pushes, &g, &op);
    good(cairn_stream_wait(op, waits));
    emulated_set(&card, "stuck=0"); // only now the operation begins
    ck_assert_int_eq(card.driver.cuStreamSynchronize(waits), 0);
    good(cairn_wait(op, CLUSTER_WAIT_MS));
    ck_assert_int_eq(card.driver.cuStreamDestroy(waits), 0);
    memory_give(session, &g);
}

/* As a trainer's cudaDeviceReset does. */
TEST(an_operation_that_ends_after_the_context_harms_nobody)
{
    cairn_op *op;
    struct CUstream_st *stream;
    struct cairn_version version;
    static float values[CARD_BIG_ELEMS];
    if (emulated_cannot("a context that is gone")) return;
    start_on("cuda", SHARDS);
    card = emulated_open("quiet=1");
    open_job("reset");
    ck_assert_int_eq(card.driver.cuStreamCreate(&stream, CAIRN_CU_STREAM_NON_BLOCKING), 0);
    good(cairn_version_wait(job, (struct cairn_version) { 0 }, CLUSTER_WAIT_MS, &version));
    const struct cairn_mem mem = trainer_mem(values, CAIRN_F32);
    kill_shard(0);
    kill_shard(1);
    good(cairn_fetch(job, version, "big", "param", NULL, &mem, &op));
    good(cairn_stream_wait(op, stream));
    while (card.driver.cuDevicePrimaryCtxRelease(0) == CAIRN_CU_OK) continue;
    cairn_close(session); // the word is written
    ck_assert_int_ne(cairn_wait(op, 0), CAIRN_OK);
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
TEST_EACH(a_capture_elsewhere_in_the_process_and_a_push_do_not_meet, 0, 3)
{
    const enum where where = ((enum where[]) { HOST, ALLOCATED, FOREIGN })[_i];
    struct CUstream_st *captured;
    cairn_op *op;
    if (emulated_cannot("a graph that is captured")) return;
    start_with_card(where == FOREIGN ? "host" : "cuda");
    open_job("captures");
    struct memory g = memory_take(session, where, 0);
    ck_assert_int_eq(card.driver.cuStreamCreate(&captured, CAIRN_CU_STREAM_NON_BLOCKING), 0);
    const struct cairn_round round = trainer_begin(job);
    memory_fill(&g, 0, 1);
    capture(captured);
    signal_shards(SIGSTOP); // what is pushed is not over before a stream is to wait for it
    struct cairn_mem mem = memory_mem(&g, CAIRN_F32);
    good(cairn_push(job, &round, 0, "big", NULL, &mem, &op));
    if (where != HOST) {
        mem.stream = captured;
        fails(cairn_push(job, &round, 0, "half", NULL, &mem, NULL), CAIRN_ERR_INVALID,
              "is being captured into a CUDA graph");
        mem.stream = NULL;
        fails(cairn_push(job, &round, 0, "half", NULL, &mem, NULL), CAIRN_ERR_INVALID,
              "through another one, which it waits for");
    }
    fails(cairn_stream_wait(op, captured), CAIRN_ERR_INVALID, "call this outside");
    signal_shards(SIGCONT);
    good(cairn_wait(op, CLUSTER_WAIT_MS));
    trainer_commit(job, &round, 1);
    capture(NULL);
    memory_give(session, &g);
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
    for (int i = 0; i < CLUSTER_WAIT_MS / 20 && left_on_card() <= than; i++) usleep(20000);
    ck_assert_uint_gt(left_on_card(), than);
}

TEST(a_trainer_lets_go_of_all_that_shards_show_it_and_takes_it_again)
{
    static float values[CARD_BIG_ELEMS];
    struct cairn_view views[CARD_TENSORS] = { { .struct_size = sizeof views[0] } };
    struct cairn_version version;
    size_t count = CARD_TENSORS;
    char root[65];
    cairn_op *op;
    start_with_card("cuda");
    open_job("stays");
    train_from(ALLOCATED, 4);
    bits(root);
    leave();
    reads_on_card = true;
    open_job("goes");
    train_from(ALLOCATED, 2);
    good(cairn_version_wait(job, (struct cairn_version) { 0 }, CLUSTER_WAIT_MS, &version));
    good(cairn_map(job, version, "v", views, &count, &op));
    good(cairn_wait(op, CLUSTER_WAIT_MS));
    fails(cairn_detach_memory(session, CLUSTER_WAIT_MS), CAIRN_ERR_BUSY, "a unit is mapped");
    good(cairn_unmap(job, &views[0], NULL));
    const struct cairn_round round = trainer_begin(job);
    fails(cairn_detach_memory(session, CLUSTER_WAIT_MS), CAIRN_ERR_BUSY,
          "is open: commit it first");
    good(cairn_round_abandon(job, &round, CLUSTER_WAIT_MS));
    ck_assert_int_gt(count_maps(PUBLISHED), 0);
    uint64_t left = 0;
    for (int i = 0; i < 2; i++) {
        if (i > 0) await_more_left(left);
        good(cairn_detach_memory(session, CLUSTER_WAIT_MS));
        ck_assert_int_eq(count_maps(PUBLISHED), 0);
        if (i > 0) ck_assert_uint_eq(left_on_card(), left);
        left = left_on_card();
        good(cairn_detach_memory(session, CLUSTER_WAIT_MS)); // as it is already
        good(cairn_attach_memory(session, CLUSTER_WAIT_MS));
    }
    trainer_fetch(job, version, "big", NULL, CAIRN_F32, values);
    train_from(ALLOCATED, 2);
    expect_bits(root);
}

/* ---- what bad input gets ---- */

TEST(what_is_wrong_with_memory_of_a_card_is_said)
{
    void *memory;
    struct CUstream_st *stream;
    if (emulated_cannot("two GPUs, and a stream that was destroyed")) return;
    start_on("cuda", SHARDS);
    card = emulated_open("devices=2,quiet=1");
    open_job("bad");
    fails(cairn_alloc(session, 4096, CAIRN_GPU(3), &memory), CAIRN_ERR_INVALID,
          "there is no GPU 3");
    fails(cairn_alloc(session, (size_t)1 << 45, CAIRN_GPU(0), &memory), CAIRN_ERR_NO_MEMORY,
          "of GPU 0");
    good(cairn_alloc(session, 4096, CAIRN_GPU(0), &memory));
    const struct cairn_round round = trainer_begin(job);
    struct cairn_mem mem = trainer_mem(memory, CAIRN_F32);
    fails(cairn_push(job, &round, 0, "small", NULL, &mem, NULL), CAIRN_ERR_INVALID,
          "set mem.device to CAIRN_GPU(0)");
    mem.device = CAIRN_GPU(1);
    fails(cairn_push(job, &round, 0, "small", NULL, &mem, NULL), CAIRN_ERR_INVALID,
          "is not memory of GPU 1");
    mem.device = CAIRN_GPU(0);
    mem.ptr = (uint8_t *)memory + (2 << 20) - 100;
    fails(cairn_push(job, &round, 0, "small", NULL, &mem, NULL), CAIRN_ERR_INVALID, "308");
    mem.ptr = &mem;
    fails(cairn_push(job, &round, 0, "small", NULL, &mem, NULL), CAIRN_ERR_INVALID,
          "is not memory of GPU 0");
    mem.ptr = memory;
    ck_assert_int_eq(card.driver.cuStreamCreate(&stream, CAIRN_CU_STREAM_NON_BLOCKING), 0);
    ck_assert_int_eq(card.driver.cuStreamDestroy(stream), 0);
    mem.stream = stream;
    fails(cairn_push(job, &round, 0, "small", NULL, &mem, NULL), CAIRN_ERR_INVALID,
          "or was destroyed");
    mem.device = 0;
    fails(cairn_push(job, &round, 0, "small", NULL, &mem, NULL), CAIRN_ERR_INVALID,
          "mem.stream is");
    mem.device = CAIRN_GPU(0);
    mem.stream = NULL;
    good(cairn_push(job, &round, 0, "small", NULL, &mem, NULL)); // nothing of it was taken before
    trainer_commit(job, &round, 1);
    good(cairn_free(session, memory));
}

SUITE(120, .tear_down = stop);
