/* One host: gradients are folded where the worker has them, parameters are read where the shards publish
 * them. */
#include <pthread.h>
#include <signal.h>

#include "tests/gpu/card.h"

static void open_job(const char *name, const char *fabric)
{
    const struct cairn_job_spec spec = card_spec();
    session = trainer_session(cluster.address, fabric);
    join_spec(name, &spec);
}

static void set_up(void)
{
    start(3, .both_ways = true);
}

/* Gradients out of memory of the library (or of malloc). */
static struct cairn_version train_from(int steps, bool allocated)
{
    struct memory memory[CARD_PUSHED];
    for (int t = 0; t < CARD_PUSHED; t++)
        memory[t] = memory_of_gradient(session, allocated ? SHARED : HOST, 0, t);
    const struct cairn_version version = memory_train(job, memory, steps);
    for (int t = 0; t < CARD_PUSHED; t++) memory_give(session, &memory[t]); // nobody has it on loan
    return version;
}

TEST(every_way_makes_the_same_bits)
{
    static const struct {
        const char *name, *fabric;
        bool allocated;
    } ways[] = { { "a", "sealed", false }, { "b", "auto", false }, { "c", "auto", true } };
    char root[65];
    for (int i = 0; i < 3; i++) {
        open_job(ways[i].name, ways[i].fabric);
        train_from(5, ways[i].allocated);
        if (i == 0) bits(root);
        expect_bits(root);
        const struct cairn_stats s = card_stats(job);
        const bool shared = strcmp(ways[i].fabric, "auto") == 0;
        ck_assert_uint_eq(s.shared_pushed_bytes, shared ? s.pushed_bytes : 0);
        leave();
    }
}

/* A unit of tensors that lie on several shards, as one piece each. */
static size_t map(struct cairn_version version, const char *unit, struct cairn_view *views)
{
    size_t count = CARD_TENSORS;
    cairn_op *op;
    views[0].struct_size = sizeof views[0];
    good(cairn_map(job, version, unit, views, &count, &op));
    good(cairn_wait(op, CLUSTER_WAIT_MS));
    return count;
}

/* Against cairn_fetch of the same. */
static void is_whole(struct cairn_version version, const struct cairn_view *views)
{
    static uint8_t fetched[CARD_BIG_ELEMS * 4];
    for (int t = 0; t < 2; t++) {
        trainer_fetch(job, version, views[t].tensor, NULL, views[t].dtype, fetched);
        ck_assert_mem_eq(views[t].ptr, fetched, trainer_wire_bytes(&card_model[t]));
    }
}

TEST(a_map_lends_what_the_shards_published)
{
    struct cairn_view views[CARD_TENSORS];
    open_job("m", "auto");
    const struct cairn_version version = train_from(2, true);
    ck_assert_uint_eq(map(version, "u", views), 2);
    is_whole(version, views);
    const struct cairn_stats s = card_stats(job);
    ck_assert_uint_eq(s.maps_lent, 1);
    ck_assert_uint_eq(s.mapped_bytes_peak, 0); // nothing was gathered
    ck_assert_uint_eq(s.shared_fetched_bytes, s.fetched_bytes);
    good(cairn_unmap(job, &views[1], NULL));
}

/* The pieces are kept for later versions of the same memory; where two shards meet on a page, too. */
TEST(every_version_is_mapped_as_it_is)
{
    struct cairn_view views[CARD_TENSORS], held[CARD_TENSORS];
    const void *places[2] = { NULL, NULL };
    int again = 0;
    open_job("m", "auto");
    for (int i = 0; i < 6; i++) {
        const struct cairn_version version = train_from(1, true);
        map(version, "u", views);
        is_whole(version, views);
        again += views[0].ptr == places[i % 2];
        places[i % 2] = views[0].ptr;
        good(cairn_unmap(job, &views[0], NULL));
    }
    ck_assert_int_eq(again, 4); // two copies take turns
    map(train_from(1, true), "u", held);
    for (int i = 0; i < 4; i++) { // one of them in the memory of what is held
        const struct cairn_version version = train_from(1, true);
        map(version, "u", views);
        is_whole(version, views);
        ck_assert_ptr_ne(views[0].ptr, held[0].ptr);
        good(cairn_unmap(job, &views[0], NULL));
    }
    ck_assert_int_eq(cairn_unmap(job, &held[0], NULL), CAIRN_ERR_VERSION_GONE);
}

TEST(a_map_that_a_later_version_took_says_so_when_it_is_given_back)
{
    struct cairn_view views[CARD_TENSORS], later[CARD_TENSORS];
    open_job("m", "auto");
    const struct cairn_version version = train_from(1, false);
    map(version, "u", views);
    map(train_from(1, false), "v",
        later); // the version before is kept while its round's successor is open
    good(cairn_unmap(job, &later[0], NULL));
    train_from(2, false);
    ck_assert_int_eq(cairn_unmap(job, &views[0], NULL), CAIRN_ERR_VERSION_GONE);
    ck_assert_int_eq(cairn_unmap(job, &views[0], NULL), CAIRN_ERR_INVALID);
    map((struct cairn_version) { version.generation, version.step + 3 }, "u", views);
    good(cairn_unmap(job, &views[0], NULL));
}

TEST(a_job_that_is_closed_takes_its_maps_along)
{
    struct cairn_view views[CARD_TENSORS];
    open_job("m", "auto");
    map(train_from(1, true), "u", views);
    cairn_job_close(job);
    ck_assert_int_eq(cairn_unmap(job, &views[0], NULL), CAIRN_ERR_HANDLE);
}

enum { TURNS = 3000 };

/* Hints of what the other thread maps and gives back meanwhile. */
static void *prefetch_again_and_again(void *version)
{
    static const char *const units[] = { "u", "v" };
    for (int turn = 0; turn < TURNS; turn++)
        if (cairn_prefetch(job, *(struct cairn_version *)version, units, 2) != CAIRN_OK)
            return "prefetch";
    return NULL;
}

/* What one thread has just made another may give back at once: seen by ThreadSanitizer, rarely by itself. */
TEST(units_are_mapped_while_another_thread_prefetches_them)
{
    struct cairn_view views[CARD_TENSORS];
    pthread_t thread;
    void *failed;
    open_job("m", "auto");
    struct cairn_version version = train_from(1, true);
    ck_assert_int_eq(pthread_create(&thread, NULL, prefetch_again_and_again, &version), 0);
    for (int turn = 0; turn < TURNS; turn++) {
        map(version, turn % 2 == 0 ? "u" : "v", views);
        good(cairn_unmap(job, &views[0], NULL));
    }
    ck_assert_int_eq(pthread_join(thread, &failed), 0);
    ck_assert_ptr_null(failed);
}

TEST(a_wait_that_times_out_names_the_shard_that_owes_it)
{
    static float param[CARD_BIG_ELEMS];
    open_job("w", "sealed");
    const struct cairn_version version = train_from(1, false);
    const struct cairn_mem mem = trainer_mem(param, CAIRN_F32);
    cairn_op *op;
    cluster_freeze(cluster.shards[1]);
    good(cairn_fetch(job, version, "big", "param", NULL, &mem, &op));
    fails(cairn_wait(op, 300), CAIRN_ERR_TIMEOUT, "shard-1");
    ck_assert_msg(strstr(cairn_error(), "shard-0") == NULL, "%s", cairn_error());
    kill(cluster.shards[1], SIGCONT);
    good(cairn_wait(op, CLUSTER_WAIT_MS));
}

SUITE(60, set_up, stop);
