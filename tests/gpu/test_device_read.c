/* Parameters come to a card from where shards publish them on it: real daemons on the emulated card, a worker
 * that computes on it and others that do not. */
#include <check.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "client/base.h"
#include "client/job.h"
#include "tests/support/descriptors.h"
#include "tests/support/emulated.h"
#include "tests/support/suite.h"
#include "tests/support/trainer.h"

enum { WAIT_MS = 20000, SHARDS = 2, TENSORS = 4, ROOM = 2 << 20 };

/* Cut over the shards, in the middle of pages; bf16; small; not trained. */
static const struct cairn_tensor model[TENSORS] = {
    TRAINER_MATRIX("big", "u", 700, 311, 1),
    TRAINER_MATRIX("half", "u", 311, 500, 2, .wire = CAIRN_BF16),
    TRAINER_ONES("small", "v", 77),
    TRAINER_ONES("still", "v", 5000, .kind = CAIRN_FROZEN),
};

static struct cluster cluster;
static struct emulated card;

/* Daemons that are reached by shared memory and by the network. */
static void start_told(const char *backend, const char *log_level)
{
    static const char *settings[2] = { NULL };
    static char chosen[32];
    static struct cluster_options options = { .shard_set = settings, .both_ways = true };
    options.log_level = log_level;
    snprintf(chosen, sizeof chosen, "compute.backend=%s", backend);
    settings[0] = chosen;
    emulated_choose(NULL);
    cluster_start(&cluster, SHARDS, &options);
}

static void start(const char *backend)
{
    start_told(backend, NULL);
}

/* A worker. */
struct trainer {
    cairn *session;
    cairn_job *job;
    void *gradients[TENSORS]; /* on the card, or of the host */
    struct emulated_memory values[TENSORS];
    bool on_card;
};

static struct trainer open_trainer(const char *name, bool on_card)
{
    struct trainer t = { .on_card = on_card };
    struct cairn_group adamw = CAIRN_GROUP_INIT;
    adamw.weight_decay = 0.1;
    struct cairn_job_spec spec = trainer_spec(model, TENSORS);
    spec.chunk_leaves = 4;
    spec.groups = &adamw;
    const struct cairn_opts opts = { .struct_size = sizeof opts,
                                     .endpoint = cluster.address,
                                     .device = on_card ? CAIRN_GPU(0) : 0 };
    good(cairn_open(&opts, &t.session));
    t.job = trainer_ready(t.session, name, &spec);
    for (int i = 0; i < TENSORS; i++) {
        if (on_card) {
            good(cairn_alloc(t.session, ROOM, CAIRN_GPU(0), &t.gradients[i]));
            t.values[i] = emulated_alloc(&card, ROOM);
        } else {
            t.gradients[i] = malloc(ROOM);
        }
    }
    return t;
}

static void close_trainer(struct trainer *t)
{
    cairn_close(t->session);
    for (int i = 0; i < TENSORS; i++) {
        if (t->on_card)
            emulated_free(&card, &t->values[i]);
        else
            free(t->gradients[i]);
    }
}

static struct cairn_mem mem_of(const struct trainer *t, void *ptr, cairn_dtype dtype)
{
    struct cairn_mem mem = trainer_mem(ptr, dtype);
    if (t->on_card) mem.device = CAIRN_GPU(0);
    return mem;
}

static void push(const struct trainer *t, const struct cairn_round *round, int i)
{
    static float values[ROOM / 4];
    const size_t elems = trainer_elems(&model[i]);
    for (size_t k = 0; k < elems; k++)
        values[k] = (float)((k * 2654435761u + (unsigned)round->step * 97u + (unsigned)i) % 2001) /
                        1000 -
                    1;
    if (t->on_card)
        ck_assert_int_eq(card.driver.cuMemcpyHtoDAsync((uint64_t)(uintptr_t)t->gradients[i], values,
                                                       elems * 4, NULL),
                         0);
    else
        memcpy(t->gradients[i], values, elems * 4);
    const struct cairn_mem mem = mem_of(t, t->gradients[i], CAIRN_F32);
    good(cairn_push(t->job, round, 0, model[i].name, NULL, &mem, NULL));
}

static struct cairn_version train(const struct trainer *t, int steps)
{
    struct cairn_version version = { 0 };
    for (int step = 0; step < steps; step++) {
        const struct cairn_round round = trainer_begin(t->job);
        for (int i = 0; i < 3; i++) push(t, &round, i);
        version = trainer_commit(t->job, &round, 1).version;
    }
    return version;
}

static size_t bytes_of(int i)
{
    return trainer_elems(&model[i]) * (model[i].wire == CAIRN_BF16 ? 2 : 4);
}

/* The i-th tensor's wire plane, as bytes of the host. */
static void fetch(const struct trainer *t, struct cairn_version version, int i, uint8_t *out)
{
    cairn_op *op;
    const cairn_dtype dtype = model[i].wire == CAIRN_BF16 ? CAIRN_BF16 : CAIRN_F32;
    void *to = t->on_card ? (void *)(uintptr_t)t->values[i].at : out;
    if (t->on_card) // before the fetch, on the same stream
        ck_assert_int_eq(card.driver.cuMemsetD8Async(t->values[i].at, 0x55, ROOM, NULL), 0);
    const struct cairn_mem mem = mem_of(t, to, dtype);
    good(cairn_fetch(t->job, version, model[i].name, NULL, NULL, &mem, &op));
    if (t->on_card) good(cairn_stream_wait(op, NULL));
    if (t->on_card)
        ck_assert_int_eq(card.driver.cuMemcpyDtoHAsync(out, t->values[i].at, bytes_of(i), NULL), 0);
    good(cairn_wait(op, WAIT_MS));
    if (t->on_card) ck_assert_int_eq(card.driver.cuStreamSynchronize(NULL), 0);
}

static struct cairn_stats stats(const struct trainer *t)
{
    struct cairn_stats out = { .struct_size = sizeof out };
    good(cairn_job_stats(t->job, &out));
    return out;
}

static void check_same(const struct trainer *a, const struct trainer *b,
                       struct cairn_version version)
{
    static uint8_t of_a[ROOM], of_b[ROOM];
    for (int i = 0; i < TENSORS; i++) {
        fetch(a, version, i, of_a);
        fetch(b, version, i, of_b);
        ck_assert_msg(memcmp(of_a, of_b, bytes_of(i)) == 0, "%s", model[i].name);
    }
}

/* Shards show their copies when they have connected. */
static void await_card(const struct trainer *t, struct cairn_version version)
{
    static uint8_t out[ROOM];
    for (int i = 0; i < WAIT_MS / 10; i++) {
        const uint64_t before = stats(t).device_fetched_bytes;
        fetch(t, version, 0, out);
        if (stats(t).device_fetched_bytes > before) return;
        usleep(10000);
    }
    ck_abort_msg("nothing came on the card");
}

TEST(parameters_come_to_a_card_past_the_host_and_others_beside_it_get_the_same_bits)
{
    static uint8_t out[ROOM];
    char roots[2][65];
    start("cuda");
    card = emulated_open(NULL);
    struct trainer host = open_trainer("host", false);
    train(&host, 3);
    trainer_digest(&cluster, "host", roots[0]);
    close_trainer(&host);

    struct trainer on_card = open_trainer("card", true);
    struct cairn_version version = train(&on_card, 3);
    trainer_digest(&cluster, "card", roots[1]);
    ck_assert_str_eq(roots[1], roots[0]);
    await_card(&on_card, version);
    const struct cairn_stats before = stats(&on_card);
    for (int i = 0; i < TENSORS; i++) fetch(&on_card, version, i, out);
    const struct cairn_stats after = stats(&on_card);
    ck_assert_uint_gt(after.fetched_bytes, before.fetched_bytes);
    ck_assert_uint_eq(after.device_fetched_bytes - before.device_fetched_bytes,
                      after.fetched_bytes - before.fetched_bytes);

    // This version was left on the card, as nobody else reads: a reader of the host gets it from there.
    struct trainer reader = { 0 };
    reader.session = trainer_session(cluster.address, NULL);
    good(cairn_job_open(reader.session, "card", NULL, CAIRN_READER, WAIT_MS, &reader.job));
    check_same(&on_card, &reader, version);
    version = train(&on_card, 1);
    check_same(&on_card, &reader, version); // and this one from host memory
    cairn_close(reader.session);
    version = train(&on_card, 2);
    check_same(&on_card, &on_card, version);
    close_trainer(&on_card);
    cluster_stop(&cluster);
}

/* What a shard had copied from its card after each round, as its log tells; 0: these are not all yet. */
static size_t copied_out(int shard, size_t rounds, uint64_t *bytes_out)
{
    char path[PATH_MAX], line[4096];
    size_t count = 0;
    snprintf(path, sizeof path, "%s/shard-%d.log", cluster.folder, shard);
    FILE *log = fopen(path, "r");
    ck_assert_ptr_nonnull(log);
    while (count < rounds && fgets(line, sizeof line, log) != NULL) {
        const char *found = strstr(line, " out_bytes=");
        if (strstr(line, "times of a round") != NULL && strstr(line, " round=0 ") == NULL &&
            found != NULL)
            bytes_out[count++] = strtoull(found + strlen(" out_bytes="), NULL, 10);
    }
    fclose(log);
    return count == rounds ? count : 0;
}

/* A reader over the network, beside a trainer on the card: of each step it wants one tensor of four. */
TEST(what_a_reader_elsewhere_asks_for_is_all_of_a_step_that_comes_to_the_host)
{
    enum { STEPS = 8, ASKED = 1 };
    static uint8_t out[ROOM], same[ROOM];
    static uint64_t after[STEPS];
    start_told("cuda", "debug");
    card = emulated_open(NULL);
    struct trainer t = open_trainer("card", true), reader = { 0 };
    ck_assert_int_eq(setenv("CAIRN_FABRIC", "ucx", 1), 0);
    reader.session = trainer_session(cluster.address, NULL);
    ck_assert_int_eq(unsetenv("CAIRN_FABRIC"), 0);
    good(cairn_job_open(reader.session, "card", NULL, CAIRN_READER, WAIT_MS, &reader.job));
    for (int step = 0; step < STEPS; step++) {
        const struct cairn_version version = train(&t, 1);
        for (int twice = 0; twice < 2; twice++) fetch(&reader, version, ASKED, out);
        fetch(&t, version, ASKED, same);
        ck_assert_mem_eq(out, same, bytes_of(ASKED));
    }
    ck_assert_uint_eq(stats(&reader).shared_fetched_bytes, 0);
    uint64_t all = 0;
    for (int i = 0; i < SHARDS; i++) {
        for (int tries = 0; copied_out(i, STEPS, after) == 0; tries++) {
            ck_assert_int_lt(tries, WAIT_MS / 10);
            usleep(10000);
        }
        all += after[STEPS - 1] - after[0];
    }
    const uint64_t a_step = all / (STEPS - 1);
    ck_assert_uint_ge(a_step, bytes_of(ASKED));
    ck_assert_uint_lt(a_step, bytes_of(ASKED) * 21 / 20); // and sums of the gradients
    cairn_close(reader.session);
    close_trainer(&t);
    cluster_stop(&cluster);
}

TEST(without_a_copy_on_the_card_they_come_by_the_host)
{
    start("host");
    card = emulated_open(NULL);
    struct trainer on_card = open_trainer("card", true), host = { 0 };
    const struct cairn_version version = train(&on_card, 2);
    host.session = trainer_session(cluster.address, NULL);
    good(cairn_job_open(host.session, "card", NULL, CAIRN_READER, WAIT_MS, &host.job));
    check_same(&on_card, &host, version);
    ck_assert_uint_eq(stats(&on_card).device_fetched_bytes, 0);
    ck_assert_uint_eq(stats(&on_card).packed_bytes, 0); // no copy of a fetch stays
    cairn_close(host.session);
    close_trainer(&on_card);
    cluster_stop(&cluster);
}

/* Of the first tensor: out of memory that shards show, or by messages. */
static cairn_op *fetch_plane(const struct trainer *t, struct cairn_version version,
                             const char *plane)
{
    cairn_op *op;
    const struct cairn_mem mem = mem_of(t, (void *)(uintptr_t)t->values[0].at, CAIRN_F32);
    good(cairn_fetch(t->job, version, model[0].name, plane, NULL, &mem, &op));
    return op;
}

static const char *const planes[] = { "wire", "param" };

/* By an event of the card's which is there from the beginning, up to eight chunks at a time, and those that
 * are left when the last one has come. */
TEST_EACH(chunks_that_come_by_the_host_make_no_events_and_are_waited_for_together, 0, 2)
{
    enum { CHUNKS = 25, AHEAD = 8 }; // of the tensor
    if (emulated_cannot("how often a card is waited for")) return;
    start("host");
    card = emulated_open(NULL);
    struct trainer t = open_trainer("card", true);
    const struct cairn_version version = train(&t, 1);
    good(cairn_wait(fetch_plane(&t, version, planes[_i]), WAIT_MS));
    const uint64_t events = card.cairn_emulator_events(), waits = card.cairn_emulator_waits();
    good(cairn_wait(fetch_plane(&t, version, planes[_i]), WAIT_MS));
    ck_assert_uint_le(card.cairn_emulator_waits() - waits, (CHUNKS + AHEAD - 1) / AHEAD);
    ck_assert_uint_eq(card.cairn_emulator_events() - events, 1); // the mark of a stream
    ck_assert_uint_eq(stats(&t).packed_bytes, 0);
    close_trainer(&t);
    cluster_stop(&cluster);
}

TEST_EACH(a_fetch_that_the_card_does_not_copy_fails_with_a_sentence, 0, 2)
{
    if (emulated_cannot("a copy that fails")) return;
    start("host");
    card = emulated_open(NULL);
    struct trainer t = open_trainer("card", true);
    const struct cairn_version version = train(&t, 1);
    emulated_set(&card, "ecc_at=12,quiet=1"); // while others are under way
    fails(cairn_wait(fetch_plane(&t, version, planes[_i]), WAIT_MS), CAIRN_ERR_IO, "tensor big");
    ck_assert_uint_eq(stats(&t).packed_bytes, 0);
    cairn_close(t.session);
    cluster_stop(&cluster);
}

/* ---- mapped on the card ---- */

/* The unit's tensors on the card, and the same of the host. */
static size_t map(const struct trainer *t, struct cairn_version version, const char *unit,
                  struct cairn_view *views)
{
    size_t count = TENSORS;
    cairn_op *op;
    views[0].struct_size = sizeof views[0];
    good(
        cairn_map_device(t->job, version, unit, t->on_card ? CAIRN_GPU(0) : 0, views, &count, &op));
    good(cairn_wait(op, WAIT_MS));
    return count;
}

static void compare_unit(const struct trainer *on_card, const struct trainer *host,
                         struct cairn_version version, const char *unit)
{
    static uint8_t out[ROOM];
    struct cairn_view there[TENSORS], here[TENSORS];
    const size_t count = map(on_card, version, unit, there);
    ck_assert_uint_eq(map(host, version, unit, here), count);
    for (size_t i = 0; i < count; i++) {
        const size_t bytes = (size_t)(there[i].shape[0] *
                                      (there[i].rank > 1 ? there[i].shape[1] : 1)) *
                             (there[i].dtype == CAIRN_BF16 ? 2 : 4);
        ck_assert_int_eq(
            card.driver.cuMemcpyDtoHAsync(out, (uint64_t)(uintptr_t)there[i].ptr, bytes, NULL), 0);
        ck_assert_str_eq(there[i].tensor, here[i].tensor);
        ck_assert_msg(memcmp(out, here[i].ptr, bytes) == 0, "%s", there[i].tensor);
    }
    good(cairn_unmap(on_card->job, &there[0], NULL));
    good(cairn_unmap(host->job, &here[0], NULL));
    ck_assert_int_eq(cairn_unmap(on_card->job, &there[0], NULL), CAIRN_ERR_INVALID);
}

/* Of this host, and not on the card: for it versions are in host memory as a whole, once shards have shown
 * that. */
static void await_lent(const struct trainer *host, const struct trainer *trains)
{
    struct cairn_view views[TENSORS];
    for (int i = 0; i < WAIT_MS / 10 && stats(host).maps_lent == 0; i++) {
        map(host, train(trains, 1), "v", views);
        good(cairn_unmap(host->job, &views[0], NULL));
    }
    ck_assert_uint_gt(stats(host).maps_lent, 0);
}

TEST(units_are_mapped_on_the_card_and_are_those_of_the_host)
{
    struct cairn_view views[TENSORS];
    start("cuda");
    card = emulated_open(NULL);
    struct trainer on_card = open_trainer("card", true), host = { 0 };
    struct cairn_version version = train(&on_card, 1);
    host.session = trainer_session(cluster.address, NULL);
    good(cairn_job_open(host.session, "card", NULL, CAIRN_READER, WAIT_MS, &host.job));
    await_card(&on_card, version);
    compare_unit(&on_card, &host, version, "u"); // cut over two shards: gathered
    ck_assert_uint_eq(stats(&on_card).maps_lent, 0);
    compare_unit(&on_card, &host, version, "v"); // as it was published
    ck_assert_uint_eq(stats(&on_card).maps_lent, 1);
    version = train(&on_card, 1);
    map(&on_card, version, "v", views);
    train(&on_card, 2);
    ck_assert_int_eq(cairn_unmap(on_card.job, &views[0], NULL), CAIRN_ERR_VERSION_GONE);
    map(&host, train(&on_card, 1), "v", views);
    void *no_stream = &views; // of the host there is none
    ck_assert_int_eq(cairn_unmap(host.job, &views[0], no_stream), CAIRN_ERR_INVALID);
    good(cairn_unmap(host.job, &views[0], NULL));
    await_lent(&host, &on_card);
    cairn_close(host.session);
    close_trainer(&on_card);
    cluster_stop(&cluster);
}

static void copy_out(const struct cairn_view *view, void *out)
{
    const uint64_t at = (uint64_t)(uintptr_t)view->ptr;
    ck_assert_int_eq(card.driver.cuMemcpyDtoHAsync(out, at, (size_t)view->shape[0] * 4, NULL), 0);
}

/* Less is mapped in this process than there was. */
static void await_less_left(uint64_t than)
{
    for (int i = 0; i < WAIT_MS / 20 && card.cairn_emulator_left() >= than; i++) usleep(20000);
    ck_assert_uint_lt(card.cairn_emulator_left(), than);
}

/* What a shard takes back, or leaves behind, is unmapped; not what somebody still reads. */
TEST(a_unit_stays_mapped_on_the_card_until_it_is_given_back_though_the_shards_are_gone)
{
    static float before[5000], after[5000];
    struct cairn_view views[TENSORS];
    if (emulated_is_real()) return; // what is left is not known there
    start("cuda");
    card = emulated_open(NULL);
    struct trainer t = open_trainer("stays", true);
    const struct cairn_version version = train(&t, 1);
    await_card(&t, version);
    const size_t count = map(&t, version, "v", views);
    ck_assert_uint_eq(stats(&t).maps_lent, 1);
    copy_out(&views[count - 1], before);
    const uint64_t left = card.cairn_emulator_left();
    for (int i = 0; i < SHARDS; i++) cluster_kill_shard(&cluster, i);
    await_less_left(left); // the copy of another version
    const uint64_t still = card.cairn_emulator_left();
    copy_out(&views[count - 1], after);
    ck_assert_mem_eq(after, before, sizeof before);
    const cairn_status status = cairn_unmap(t.job, &views[0], NULL);
    ck_assert(status == CAIRN_OK || status == CAIRN_ERR_VERSION_GONE);
    await_less_left(still);
    cairn_close(t.session);
    cluster_stop(&cluster);
}

/* ---- a stream that waits meanwhile ---- */

/* A stream that waits for the operation, and a driver that lets what maps or unmaps memory wait for it. */
static struct CUstream_st *wait_on_a_stream(cairn_op *op)
{
    struct CUstream_st *stream;
    ck_assert_int_eq(card.driver.cuStreamCreate(&stream, CAIRN_CU_STREAM_NON_BLOCKING), 0);
    emulated_set(&card, "maps_wait=3000");
    good(cairn_stream_wait(op, stream));
    return stream;
}

/* What shards show while a stream waits is read through the host, and where it lies later. */
TEST(what_shards_show_while_a_stream_waits_is_mapped_when_none_does)
{
    if (emulated_cannot("a driver that holds up what maps memory")) return;
    start("cuda");
    card = emulated_open(NULL);
    struct trainer t = open_trainer("shown", true);
    const struct cairn_version version = train(&t, 1);
    await_card(&t, version);
    good(cairn_detach_memory(t.session, WAIT_MS));
    cairn_op *op = fetch_plane(&t, version, "param");
    struct CUstream_st *stream = wait_on_a_stream(op);
    good(cairn_attach_memory(t.session, WAIT_MS));
    ck_assert_int_eq(card.driver.cuStreamSynchronize(stream), 0);
    good(cairn_wait(op, WAIT_MS));
    await_card(&t, version);
    ck_assert_int_eq(card.driver.cuStreamDestroy(stream), 0);
    close_trainer(&t);
    cluster_stop(&cluster);
}

/* As of a driver that exports none. */
TEST(memory_that_no_shard_knows_is_freed_while_a_stream_waits_and_goes_when_none_does)
{
    void *memory;
    if (emulated_cannot("a driver that holds up what unmaps memory")) return;
    start("host");
    card = emulated_open(NULL);
    struct trainer t = open_trainer("freed", true);
    const struct cairn_version version = train(&t, 1);
    emulated_set(&card, "export_fails=801,quiet=1");
    good(cairn_alloc(t.session, ROOM, CAIRN_GPU(0), &memory));
    const uint64_t left = card.cairn_emulator_left();
    for (int i = 0; i < SHARDS; i++) ck_assert_int_eq(kill(cluster.shards[i], SIGSTOP), 0);
    cairn_op *op = fetch_plane(&t, version, "param");
    struct CUstream_st *stream = wait_on_a_stream(op);
    good(cairn_free(t.session, memory));
    for (int i = 0; i < SHARDS; i++) ck_assert_int_eq(kill(cluster.shards[i], SIGCONT), 0);
    ck_assert_int_eq(card.driver.cuStreamSynchronize(stream), 0);
    good(cairn_wait(op, WAIT_MS));
    ck_assert_int_eq(card.driver.cuStreamDestroy(stream), 0);
    await_less_left(left);
    close_trainer(&t);
    cluster_stop(&cluster);
}

/* The session's thread has heard that the shards are gone, with all that they published. */
static void await_unpublished(const struct trainer *t)
{
    bool is_left = true;
    struct session *s = handle_get(CAIRN_HANDLE_SESSION, t->session);
    for (int i = 0; i < WAIT_MS / 20 && is_left; i++) {
        pthread_mutex_lock(&s->lock);
        is_left = s->published != NULL;
        pthread_mutex_unlock(&s->lock);
        if (is_left) usleep(20000);
    }
    handle_put(t->session);
    ck_assert(!is_left);
}

/* The operation is one that ends with the session. */
TEST(what_shards_leave_behind_while_a_stream_waits_is_unmapped_when_none_does)
{
    if (emulated_cannot("a driver that holds up what unmaps memory")) return;
    start("cuda");
    card = emulated_open(NULL);
    struct trainer t = open_trainer("left", true);
    const struct cairn_version version = train(&t, 1);
    await_card(&t, version);
    const uint64_t left = card.cairn_emulator_left();
    for (int i = 0; i < SHARDS; i++) ck_assert_int_eq(kill(cluster.shards[i], SIGSTOP), 0);
    cairn_op *op = fetch_plane(&t, version, "param");
    struct CUstream_st *stream = wait_on_a_stream(op);
    for (int i = 0; i < SHARDS; i++) cluster_kill_shard(&cluster, i);
    await_unpublished(&t);
    good(cairn_cancel(op));
    ck_assert_int_eq(card.driver.cuStreamSynchronize(stream), 0);
    await_less_left(left);
    ck_assert_int_eq(cairn_wait(op, WAIT_MS), CAIRN_ERR_CANCELED);
    ck_assert_int_eq(card.driver.cuStreamDestroy(stream), 0);
    close_trainer(&t);
    cluster_stop(&cluster);
}

/* Shards go on a moment later, most likely when the other thread is in the driver. */
static void *wake_shards(void *arg)
{
    (void)arg;
    usleep(100000);
    for (int i = 0; i < SHARDS; i++) kill(cluster.shards[i], SIGCONT);
    return NULL;
}

/* Who maps a unit takes memory of the card for it, and is held up by the stream: the session is not. */
TEST(a_unit_that_is_gathered_while_a_stream_waits_holds_up_its_caller_alone)
{
    pthread_t waker;
    struct cairn_view views[TENSORS];
    if (emulated_cannot("a driver that holds up what maps memory")) return;
    start("cuda");
    card = emulated_open(NULL);
    struct trainer t = open_trainer("gathered", true);
    const struct cairn_version version = train(&t, 1);
    await_card(&t, version);
    for (int i = 0; i < SHARDS; i++) ck_assert_int_eq(kill(cluster.shards[i], SIGSTOP), 0);
    cairn_op *op = fetch_plane(&t, version, "param");
    struct CUstream_st *stream = wait_on_a_stream(op);
    ck_assert_int_eq(pthread_create(&waker, NULL, wake_shards, NULL), 0);
    map(&t, version, "u", views);
    ck_assert_int_eq(pthread_join(waker, NULL), 0);
    ck_assert_int_eq(card.driver.cuStreamSynchronize(stream), 0);
    good(cairn_wait(op, WAIT_MS));
    const uint64_t left = card.cairn_emulator_left();
    good(cairn_unmap(t.job, &views[0], NULL));
    await_less_left(left);
    ck_assert_int_eq(card.driver.cuStreamDestroy(stream), 0);
    close_trainer(&t);
    cluster_stop(&cluster);
}

/* ---- whoever does what it should not ---- */

/* Writes over all that shards published on the card: memory of cards has no seals. */
static void scribble(const struct trainer *t)
{
    unsigned scribbled = 0;
    struct session *s = handle_get(CAIRN_HANDLE_SESSION, t->session);
    const struct cu_access access = { .location = { .type = CAIRN_CU_LOCATION_DEVICE },
                                      .flags = CAIRN_CU_ACCESS_READWRITE };
    pthread_mutex_lock(&s->lock);
    for (const struct published *copy = s->published; copy != NULL; copy = copy->next)
        for (const struct shown *shown = copy->shown; shown != NULL; shown = shown->next) {
            size_t bytes;
            const uint64_t at = (uint64_t)(uintptr_t)fabric_mapping_memory(shown->mapping, &bytes);
            if (shown->side != CAIRN_PUBLISHED_DEVICE) continue;
            ck_assert_int_eq(card.driver.cuMemSetAccess(at, bytes, &access, 1), 0);
            ck_assert_int_eq(card.driver.cuMemsetD8Async(at, 0xff, bytes, NULL), 0);
            scribbled++;
        }
    pthread_mutex_unlock(&s->lock);
    handle_put(t->session);
    ck_assert_int_eq(card.driver.cuStreamSynchronize(NULL), 0);
    ck_assert_uint_ge(scribbled, 2 * SHARDS);
}

TEST(a_worker_that_writes_over_what_is_published_changes_no_state_and_no_later_version)
{
    static uint8_t of[2][TENSORS][ROOM];
    char roots[2][65];
    start("cuda");
    card = emulated_open(NULL);
    for (int k = 0; k < 2; k++) {
        const char *name = k == 0 ? "good" : "bad";
        struct trainer t = open_trainer(name, true);
        struct cairn_version version = train(&t, 2);
        await_card(&t, version);
        if (k == 1) scribble(&t);
        version = train(&t, 2);
        for (int i = 0; i < 3; i++)
            fetch(&t, version, i, of[k][i]); // an update passes the fourth by
        trainer_digest(&cluster, name, roots[k]);
        close_trainer(&t);
    }
    ck_assert_str_eq(roots[1], roots[0]);
    for (int i = 0; i < 3; i++)
        ck_assert_msg(memcmp(of[0][i], of[1][i], bytes_of(i)) == 0, "%s", model[i].name);
    cluster_stop(&cluster);
}

static void read_and_die(void)
{
    card = emulated_open(NULL);
    struct trainer t = open_trainer("lives", true);
    await_card(&t, train(&t, 1));
    kill(getpid(), SIGKILL);
}

/* Once it stays the same for half a second: connections of who has died end soon. */
static unsigned settled_descriptors_of(pid_t pid)
{
    unsigned last = descriptors_of(pid);
    for (int i = 0, same = 0; i < WAIT_MS / 20 && same < 25; i++) {
        usleep(20000);
        const unsigned now = descriptors_of(pid);
        same = now == last ? same + 1 : 0;
        last = now;
    }
    return last;
}

/* A shard may open something else of its own meanwhile, but not for each of them. */
TEST(workers_that_die_leave_nothing_open_in_a_shard)
{
    enum { WORKERS = 6, OTHERS = WORKERS - 2 };
    unsigned first = 0, now = 0;
    start("cuda");
    for (int i = 0; i < WORKERS; i++) {
        int status;
        const pid_t child = fork();
        if (child == 0) {
            read_and_die();
            _exit(1);
        }
        ck_assert_int_eq(waitpid(child, &status, 0), child);
        ck_assert(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
        if (i == 0) first = settled_descriptors_of(cluster.shards[0]);
    }
    for (int k = 0; k < WAIT_MS / 20; k++) {
        now = descriptors_of(cluster.shards[0]);
        if (now <= first + OTHERS) break;
        usleep(20000);
    }
    ck_assert_uint_le(now, first + OTHERS);
    cluster_stop(&cluster);
}

SUITE(60);
