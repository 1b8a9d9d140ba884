/* Parameters come to a card from where shards publish them on it: real daemons on the emulated card, a worker
 * that computes on it and others that do not. */
#include <limits.h>
#include <signal.h>
#include <sys/wait.h>

#include "client/base.h"
#include "client/job.h"
#include "tests/gpu/card.h"
#include "tests/support/descriptors.h"

enum { SHARDS = 2, ROOM = CARD_ROOM };

/* Daemons that are reached by shared memory and by the network. */
static void start_with_card(const char *backend)
{
    start_on(backend, SHARDS, .both_ways = true);
    card = emulated_open(NULL);
}

static size_t bytes_of(int t)
{
    return trainer_wire_bytes(&card_model[t]);
}

/* Shards show their copies when they have connected. */
static void await_card(const struct worker *t, struct cairn_version version)
{
    static uint8_t out[ROOM];
    const uint64_t before = card_stats(t->job).device_fetched_bytes;
    await((worker_fetch(t, version, 0, out), card_stats(t->job).device_fetched_bytes > before));
}

TEST(parameters_come_to_a_card_past_the_host_and_others_beside_it_get_the_same_bits)
{
    static uint8_t out[ROOM];
    char root[65];
    start_with_card("cuda");
    struct worker host = worker_open("host", HOST);
    worker_train(&host, 3);
    trainer_digest(&cluster, "host", root);
    worker_close(&host);

    struct worker on_card = worker_open("card", ALLOCATED);
    struct cairn_version version = worker_train(&on_card, 3);
    trainer_expect_digest(&cluster, "card", root);
    await_card(&on_card, version);
    const struct cairn_stats before = card_stats(on_card.job);
    for (int i = 0; i < CARD_TENSORS; i++) worker_fetch(&on_card, version, i, out);
    const struct cairn_stats after = card_stats(on_card.job);
    ck_assert_uint_gt(after.fetched_bytes, before.fetched_bytes);
    ck_assert_uint_eq(after.device_fetched_bytes - before.device_fetched_bytes,
                      after.fetched_bytes - before.fetched_bytes);

    // This version was left on the card, as nobody else reads: a reader of the host gets it from there.
    struct worker reader = worker_reads("card", NULL);
    workers_see_the_same(&on_card, &reader, version);
    version = worker_train(&on_card, 1);
    workers_see_the_same(&on_card, &reader, version); // and this one from host memory
    worker_close(&reader);
    version = worker_train(&on_card, 2);
    workers_see_the_same(&on_card, &on_card, version);
    worker_close(&on_card);
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
    start_on("cuda", SHARDS, .both_ways = true, .log_level = "debug");
    card = emulated_open(NULL);
    struct worker t = worker_open("card", ALLOCATED), reader = worker_reads("card", "sealed");
    for (int step = 0; step < STEPS; step++) {
        const struct cairn_version version = worker_train(&t, 1);
        for (int twice = 0; twice < 2; twice++) worker_fetch(&reader, version, ASKED, out);
        worker_fetch(&t, version, ASKED, same);
        ck_assert_mem_eq(out, same, bytes_of(ASKED));
    }
    ck_assert_uint_eq(card_stats(reader.job).shared_fetched_bytes, 0);
    uint64_t all = 0;
    for (int i = 0; i < SHARDS; i++) {
        await(copied_out(i, STEPS, after) > 0);
        all += after[STEPS - 1] - after[0];
    }
    const uint64_t a_step = all / (STEPS - 1);
    ck_assert_uint_ge(a_step, bytes_of(ASKED));
    ck_assert_uint_lt(a_step, bytes_of(ASKED) * 21 / 20); // and sums of the gradients
    worker_close(&reader);
    worker_close(&t);
}

TEST(without_a_copy_on_the_card_they_come_by_the_host)
{
    start_with_card("host");
    struct worker on_card = worker_open("card", ALLOCATED), host = worker_reads("card", NULL);
    const struct cairn_version version = worker_train(&on_card, 2);
    workers_see_the_same(&on_card, &host, version);
    ck_assert_uint_eq(card_stats(on_card.job).device_fetched_bytes, 0);
    ck_assert_uint_eq(card_stats(on_card.job).packed_bytes, 0); // no copy of a fetch stays
    worker_close(&host);
    worker_close(&on_card);
}

/* Of the first tensor: out of memory that shards show, or by messages. */
static cairn_op *fetch_plane(const struct worker *t, struct cairn_version version,
                             const char *plane)
{
    cairn_op *op;
    const struct cairn_mem mem = memory_mem(&t->values[0], CAIRN_F32);
    good(cairn_fetch(t->job, version, card_model[0].name, plane, NULL, &mem, &op));
    return op;
}

static const char *const planes[] = { "wire", "param" };

/* By an event of the card's which is there from the beginning, up to eight chunks at a time, and those that
 * are left when the last one has come. */
TEST_EACH(chunks_that_come_by_the_host_make_no_events_and_are_waited_for_together, 0, 2)
{
    enum { CHUNKS = 25, AHEAD = 8 }; // of the tensor
    if (emulated_cannot("how often a card is waited for")) return;
    start_with_card("host");
    struct worker t = worker_open("card", ALLOCATED);
    const struct cairn_version version = worker_train(&t, 1);
    good(cairn_wait(fetch_plane(&t, version, planes[_i]), CLUSTER_WAIT_MS));
    const uint64_t events = card.cairn_emulator_events(), waits = card.cairn_emulator_waits();
    good(cairn_wait(fetch_plane(&t, version, planes[_i]), CLUSTER_WAIT_MS));
    ck_assert_uint_le(card.cairn_emulator_waits() - waits, (CHUNKS + AHEAD - 1) / AHEAD);
    ck_assert_uint_eq(card.cairn_emulator_events() - events, 1); // the mark of a stream
    ck_assert_uint_eq(card_stats(t.job).packed_bytes, 0);
    worker_close(&t);
}

TEST_EACH(a_fetch_that_the_card_does_not_copy_fails_with_a_sentence, 0, 2)
{
    if (emulated_cannot("a copy that fails")) return;
    start_with_card("host");
    struct worker t = worker_open("card", ALLOCATED);
    const struct cairn_version version = worker_train(&t, 1);
    emulated_set(&card, "ecc_at=12,quiet=1"); // while others are under way
    fails(cairn_wait(fetch_plane(&t, version, planes[_i]), CLUSTER_WAIT_MS), CAIRN_ERR_IO,
          "tensor big");
    ck_assert_uint_eq(card_stats(t.job).packed_bytes, 0);
    worker_leave(&t);
}

/* ---- mapped on the card ---- */

/* The unit's tensors on the card, and the same of the host. */
static size_t map(const struct worker *t, struct cairn_version version, const char *unit,
                  struct cairn_view *views)
{
    size_t count = CARD_TENSORS;
    cairn_op *op;
    views[0].struct_size = sizeof views[0];
    good(cairn_map_device(t->job, version, unit, t->values[0].at != NULL ? CAIRN_GPU(0) : 0, views,
                          &count, &op));
    good(cairn_wait(op, CLUSTER_WAIT_MS));
    return count;
}

static void compare_unit(const struct worker *on_card, const struct worker *host,
                         struct cairn_version version, const char *unit)
{
    static uint8_t out[ROOM];
    struct cairn_view there[CARD_TENSORS], here[CARD_TENSORS];
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
static void await_lent(const struct worker *host, const struct worker *trains)
{
    struct cairn_view views[CARD_TENSORS];
    for (int i = 0; i < CLUSTER_WAIT_MS / 10 && card_stats(host->job).maps_lent == 0; i++) {
        map(host, worker_train(trains, 1), "v", views);
        good(cairn_unmap(host->job, &views[0], NULL));
    }
    ck_assert_uint_gt(card_stats(host->job).maps_lent, 0);
}

TEST(units_are_mapped_on_the_card_and_are_those_of_the_host)
{
    struct cairn_view views[CARD_TENSORS];
    start_with_card("cuda");
    struct worker on_card = worker_open("card", ALLOCATED), host = worker_reads("card", NULL);
    struct cairn_version version = worker_train(&on_card, 1);
    await_card(&on_card, version);
    compare_unit(&on_card, &host, version, "u"); // cut over two shards: gathered
    ck_assert_uint_eq(card_stats(on_card.job).maps_lent, 0);
    compare_unit(&on_card, &host, version, "v"); // as it was published
    ck_assert_uint_eq(card_stats(on_card.job).maps_lent, 1);
    version = worker_train(&on_card, 1);
    map(&on_card, version, "v", views);
    worker_train(&on_card, 2);
    ck_assert_int_eq(cairn_unmap(on_card.job, &views[0], NULL), CAIRN_ERR_VERSION_GONE);
    map(&host, worker_train(&on_card, 1), "v", views);
    void *no_stream = &views; // of the host there is none
    ck_assert_int_eq(cairn_unmap(host.job, &views[0], no_stream), CAIRN_ERR_INVALID);
    good(cairn_unmap(host.job, &views[0], NULL));
    await_lent(&host, &on_card);
    worker_close(&host);
    worker_close(&on_card);
}

static void copy_out(const struct cairn_view *view, void *out)
{
    const uint64_t at = (uint64_t)(uintptr_t)view->ptr;
    ck_assert_int_eq(card.driver.cuMemcpyDtoHAsync(out, at, (size_t)view->shape[0] * 4, NULL), 0);
}

/* Less is mapped in this process than there was. */
static void await_less_left(uint64_t than)
{
    await(card.cairn_emulator_left() < than);
}

/* What a shard takes back, or leaves behind, is unmapped; not what somebody still reads. */
TEST(a_unit_stays_mapped_on_the_card_until_it_is_given_back_though_the_shards_are_gone)
{
    static float before[5000], after[5000];
    struct cairn_view views[CARD_TENSORS];
    if (emulated_is_real()) return; // what is left is not known there
    start_with_card("cuda");
    struct worker t = worker_open("stays", ALLOCATED);
    const struct cairn_version version = worker_train(&t, 1);
    await_card(&t, version);
    const size_t count = map(&t, version, "v", views);
    ck_assert_uint_eq(card_stats(t.job).maps_lent, 1);
    copy_out(&views[count - 1], before);
    const uint64_t left = card.cairn_emulator_left();
    for (int i = 0; i < SHARDS; i++) kill_shard(i);
    await_less_left(left); // the copy of another version
    const uint64_t still = card.cairn_emulator_left();
    copy_out(&views[count - 1], after);
    ck_assert_mem_eq(after, before, sizeof before);
    const cairn_status status = cairn_unmap(t.job, &views[0], NULL);
    ck_assert(status == CAIRN_OK || status == CAIRN_ERR_VERSION_GONE);
    await_less_left(still);
    worker_leave(&t);
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
    start_with_card("cuda");
    struct worker t = worker_open("shown", ALLOCATED);
    const struct cairn_version version = worker_train(&t, 1);
    await_card(&t, version);
    good(cairn_detach_memory(t.session, CLUSTER_WAIT_MS));
    cairn_op *op = fetch_plane(&t, version, "param");
    struct CUstream_st *stream = wait_on_a_stream(op);
    good(cairn_attach_memory(t.session, CLUSTER_WAIT_MS));
    ck_assert_int_eq(card.driver.cuStreamSynchronize(stream), 0);
    good(cairn_wait(op, CLUSTER_WAIT_MS));
    await_card(&t, version);
    ck_assert_int_eq(card.driver.cuStreamDestroy(stream), 0);
    worker_close(&t);
}

/* As of a driver that exports none. */
TEST(memory_that_no_shard_knows_is_freed_while_a_stream_waits_and_goes_when_none_does)
{
    void *memory;
    if (emulated_cannot("a driver that holds up what unmaps memory")) return;
    start_with_card("host");
    struct worker t = worker_open("freed", ALLOCATED);
    const struct cairn_version version = worker_train(&t, 1);
    emulated_set(&card, "export_fails=801,quiet=1");
    good(cairn_alloc(t.session, ROOM, CAIRN_GPU(0), &memory));
    const uint64_t left = card.cairn_emulator_left();
    for (int i = 0; i < SHARDS; i++) cluster_freeze(cluster.shards[i]);
    cairn_op *op = fetch_plane(&t, version, "param");
    struct CUstream_st *stream = wait_on_a_stream(op);
    good(cairn_free(t.session, memory));
    for (int i = 0; i < SHARDS; i++) ck_assert_int_eq(kill(cluster.shards[i], SIGCONT), 0);
    ck_assert_int_eq(card.driver.cuStreamSynchronize(stream), 0);
    good(cairn_wait(op, CLUSTER_WAIT_MS));
    ck_assert_int_eq(card.driver.cuStreamDestroy(stream), 0);
    await_less_left(left);
    worker_close(&t);
}

/* The session's thread has heard that the shards are gone, with all that they published. */
static void await_unpublished(const struct worker *t)
{
    bool is_left = true;
    struct session *s = handle_get(CAIRN_HANDLE_SESSION, t->session);
    for (int i = 0; i < CLUSTER_WAIT_MS / 20 && is_left; i++) {
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
    start_with_card("cuda");
    struct worker t = worker_open("left", ALLOCATED);
    const struct cairn_version version = worker_train(&t, 1);
    await_card(&t, version);
    const uint64_t left = card.cairn_emulator_left();
    for (int i = 0; i < SHARDS; i++) cluster_freeze(cluster.shards[i]);
    cairn_op *op = fetch_plane(&t, version, "param");
    struct CUstream_st *stream = wait_on_a_stream(op);
    for (int i = 0; i < SHARDS; i++) kill_shard(i);
    await_unpublished(&t);
    good(cairn_cancel(op));
    ck_assert_int_eq(card.driver.cuStreamSynchronize(stream), 0);
    await_less_left(left);
    ck_assert_int_eq(cairn_wait(op, CLUSTER_WAIT_MS), CAIRN_ERR_CANCELED);
    ck_assert_int_eq(card.driver.cuStreamDestroy(stream), 0);
    worker_close(&t);
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
    struct cairn_view views[CARD_TENSORS];
    if (emulated_cannot("a driver that holds up what maps memory")) return;
    start_with_card("cuda");
    struct worker t = worker_open("gathered", ALLOCATED);
    const struct cairn_version version = worker_train(&t, 1);
    await_card(&t, version);
    for (int i = 0; i < SHARDS; i++) cluster_freeze(cluster.shards[i]);
    cairn_op *op = fetch_plane(&t, version, "param");
    struct CUstream_st *stream = wait_on_a_stream(op);
    ck_assert_int_eq(pthread_create(&waker, NULL, wake_shards, NULL), 0);
    map(&t, version, "u", views);
    ck_assert_int_eq(pthread_join(waker, NULL), 0);
    ck_assert_int_eq(card.driver.cuStreamSynchronize(stream), 0);
    good(cairn_wait(op, CLUSTER_WAIT_MS));
    const uint64_t left = card.cairn_emulator_left();
    good(cairn_unmap(t.job, &views[0], NULL));
    await_less_left(left);
    ck_assert_int_eq(card.driver.cuStreamDestroy(stream), 0);
    worker_close(&t);
}

/* ---- whoever does what it should not ---- */

/* Writes over all that shards published on the card: memory of cards has no seals. */
static void scribble(const struct worker *t)
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
    static uint8_t of[2][CARD_TENSORS][ROOM];
    char root[65];
    start_with_card("cuda");
    for (int k = 0; k < 2; k++) {
        const char *name = k == 0 ? "good" : "bad";
        struct worker t = worker_open(name, ALLOCATED);
        struct cairn_version version = worker_train(&t, 2);
        await_card(&t, version);
        if (k == 1) scribble(&t);
        version = worker_train(&t, 2);
        for (int i = 0; i < 3; i++)
            worker_fetch(&t, version, i, of[k][i]); // an update passes the fourth by
        if (k == 0) trainer_digest(&cluster, name, root);
        if (k == 1) trainer_expect_digest(&cluster, name, root);
        worker_close(&t);
    }
    for (int i = 0; i < 3; i++)
        ck_assert_msg(memcmp(of[0][i], of[1][i], bytes_of(i)) == 0, "%s", card_model[i].name);
}

static void read_and_die(void)
{
    card = emulated_open(NULL);
    struct worker t = worker_open("lives", ALLOCATED);
    await_card(&t, worker_train(&t, 1));
    kill(getpid(), SIGKILL);
}

/* Once it stays the same for half a second: connections of who has died end soon. */
static unsigned settled_descriptors_of(pid_t pid)
{
    unsigned last = descriptors_of(pid);
    for (int i = 0, same = 0; i < CLUSTER_WAIT_MS / 20 && same < 25; i++) {
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
    start_on("cuda", SHARDS, .both_ways = true);
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
    for (int k = 0; k < CLUSTER_WAIT_MS / 20; k++) {
        now = descriptors_of(cluster.shards[0]);
        if (now <= first + OTHERS) break;
        usleep(20000);
    }
    ck_assert_uint_le(now, first + OTHERS);
}

SUITE(60, .tear_down = stop);
