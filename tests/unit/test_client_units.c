/* Units in the library's memory: prefetched, mapped, given back, and never more of them than the window. */
#include <check.h>
#include <pthread.h>
#include <string.h>
#include <time.h>

#include "tests/support/suite.h"
#include "tests/support/toy_scene.h"

enum { WINDOW = 2, UNITS = 4 };
static const char *const units[UNITS] = { "a", "b", "scale", "table" };

static cairn_job *job;
static struct cairn_version newest;

static void open_rooms(void)
{
    toy_start(2, .seed = 9, .delay_max_ticks = 2);
    session = toy_session(&rooms, "trainer");
    job = toy_ready(session, "toy", TOY_SPEC());
    newest = toy_step(job, 1).version;
}

static struct cairn_stats stats(void)
{
    const struct cairn_stats out = toy_stats(job);
    return out;
}

static cairn_op *begin_map(const char *unit, struct cairn_version version,
                           struct cairn_view views[2])
{
    size_t count = 2;
    cairn_op *op = NULL;
    views[0].struct_size = sizeof *views;
    good(cairn_map(job, version, unit, views, &count, &op));
    return op;
}

static struct cairn_view map(const char *unit)
{
    struct cairn_view views[2];
    good(cairn_wait(begin_map(unit, newest, views), TOY_WAIT_MS));
    return views[0];
}

static void unmap(struct cairn_view view)
{
    good(cairn_unmap(job, &view, NULL));
}

static void prefetch(size_t first, size_t count)
{
    good(cairn_prefetch(job, newest, units + first, count));
}

/* Until what is under way has come, and gone. */
static void await_mapped(uint64_t bytes)
{
    const time_t deadline = time(NULL) + 20;
    while (stats().mapped_bytes != bytes && time(NULL) < deadline) sched_yield();
    ck_assert_uint_eq(stats().mapped_bytes, bytes);
}

/* Of the tensors' elements, rounded up to what a tensor takes. */
static size_t room(int tensor)
{
    const size_t elem_bytes = toy_tensors[tensor].wire == CAIRN_BF16 ? 2 : 4;
    return ((size_t)toy_elems(tensor) * elem_bytes + 63) / 64 * 64;
}

static void check_bits(const struct cairn_view *view, int tensor)
{
    uint8_t expected[TOY_ELEMS * 4];
    const cairn_dtype dtype = toy_tensors[tensor].wire == CAIRN_BF16 ? CAIRN_BF16 : CAIRN_F32;
    ck_assert_str_eq(view->tensor, toy_tensors[tensor].name);
    ck_assert_int_eq((int)view->dtype, (int)dtype);
    ck_assert_uint_eq(view->rank, toy_tensors[tensor].rank);
    ck_assert_uint_eq((uintptr_t)view->ptr % 64, 0);
    for (uint32_t d = 0; d < view->rank; d++)
        ck_assert_uint_eq(view->shape[d], toy_tensors[tensor].shape[d]);
    toy_fetch(job, newest, tensor, NULL, dtype, expected);
    const size_t bytes = (size_t)toy_elems(tensor) * (dtype == CAIRN_BF16 ? 2 : 4);
    ck_assert_int_eq(memcmp(view->ptr, expected, bytes), 0);
}

TEST(a_mapped_unit_has_the_bits_of_a_fetch)
{
    struct cairn_view views[2];
    good(cairn_wait(begin_map("a", newest, views), TOY_WAIT_MS));
    check_bits(&views[0], 1); // a.bias comes before a.weight
    check_bits(&views[1], 0);
    ck_assert_uint_eq(stats().mapped_bytes, room(0) + room(1));
    unmap(views[1]);
    for (size_t i = 1; i < UNITS; i++) {
        const struct cairn_view view = map(units[i]);
        check_bits(&view, (int)i + 1);
        unmap(view);
    }
    ck_assert_uint_eq(stats().mapped_bytes, 0);
}

TEST(a_unit_mapped_twice_is_one_memory_until_the_last_unmap)
{
    const struct cairn_view first = map("b");
    const uint64_t fetched = stats().fetched_bytes;
    const struct cairn_view second = map("b");
    ck_assert_ptr_eq(first.ptr, second.ptr);
    ck_assert_uint_eq(stats().fetched_bytes, fetched);
    unmap(first);
    check_bits(&second, 2);
    unmap(second);
    ck_assert_uint_eq(stats().mapped_bytes, 0);
    ck_assert_uint_eq(stats().mapped_bytes_peak, room(2));
}

TEST(what_was_prefetched_is_not_fetched_again)
{
    prefetch(0, 2);
    const struct cairn_view first = map("a"); // it may still be on its way
    const struct cairn_view second = map("b");
    const uint64_t bytes = 4 * (1200 + 20) + 2 * 1023;
    ck_assert_uint_eq(stats().fetched_bytes, bytes);
    ck_assert_uint_eq(stats().maps_prefetched, 2);
    unmap(first);
    prefetch(1, 1); // once more while it is mapped: it stays
    unmap(second);
    ck_assert_uint_eq(stats().mapped_bytes, room(2));
    unmap(map("b"));
    ck_assert_uint_eq(stats().fetched_bytes, bytes);
    ck_assert_uint_eq(stats().mapped_bytes, 0);
}

TEST(memory_of_a_trainer_is_at_most_window_times_the_largest_unit)
{
    for (uint32_t step = 0; step < 4; step++) {
        const struct cairn_round round = toy_begin(job);
        newest = round.version;
        for (size_t i = 0; i < 2 * UNITS; i++) { // forward, then backward
            const size_t at = i < UNITS ? i : 2 * UNITS - 1 - i;
            const size_t next = i + 1 < UNITS ? i + 1 : 2 * UNITS - 2 - i;
            const struct cairn_view view = map(units[at]);
            if (i + 1 < 2 * UNITS) prefetch(next, 1);
            check_bits(&view, at == 0 ? 1 : (int)at + 1);
            unmap(view);
        }
        toy_push(job, &round, 0, step);
        toy_commit(job, &round);
    }
    const struct cairn_stats seen = stats();
    ck_assert_uint_eq(seen.maps, 4 * 2 * UNITS);
    ck_assert_uint_eq(seen.maps_over_window, 0);
    ck_assert_uint_le(seen.mapped_bytes_peak, WINDOW * (room(0) + room(1)));
    ck_assert_uint_gt(seen.maps_prefetched, 4 * UNITS);
    ck_assert_uint_eq(seen.mapped_bytes, 0); // all of it was given back
}

TEST(a_prefetch_beyond_the_window_is_dropped_or_takes_the_place_of_the_oldest)
{
    prefetch(0, 3);
    ck_assert_uint_eq(stats().prefetches_dropped, 1);
    const struct cairn_view a = map("a"), b = map("b");
    prefetch(2, 1); // both are on loan
    ck_assert_uint_eq(stats().prefetches_dropped, 2);
    prefetch(0, 2);
    unmap(a);
    unmap(b); // both stay, unmapped
    prefetch(3, 1);
    ck_assert_uint_eq(stats().prefetches_dropped, 2);
    ck_assert_uint_eq(stats().mapped_bytes, room(2) + room(4)); // "a" is gone
}

TEST(a_map_is_never_refused_for_the_window_but_counted)
{
    struct cairn_view views[UNITS];
    for (size_t i = 0; i < UNITS; i++) views[i] = map(units[i]);
    ck_assert_uint_eq(stats().maps_over_window, UNITS - WINDOW);
    for (size_t i = 0; i < UNITS; i++) unmap(views[i]);
    ck_assert_uint_eq(stats().mapped_bytes, 0);
}

TEST(a_version_that_is_not_there_lends_nothing)
{
    struct cairn_view views[2];
    struct cairn_version future = newest;
    future.step += 5;
    fails(cairn_wait(begin_map("b", future, views), TOY_WAIT_MS), CAIRN_ERR_NOT_READY,
          "not published yet");
    fails(cairn_unmap(job, views, NULL), CAIRN_ERR_INVALID, "not on loan");
    const struct cairn_version old = newest;
    newest = toy_step(job, 2).version;
    newest = toy_step(job, 3).version;
    fails(cairn_wait(begin_map("a", old, views), TOY_WAIT_MS), CAIRN_ERR_VERSION_GONE,
          "no longer kept");
    ck_assert_uint_eq(stats().mapped_bytes, 0);
    good(cairn_prefetch(job, old, units, 1));
    await_mapped(0);
    unmap(map("a")); // the newest is
}

TEST(a_new_version_puts_out_what_is_left_of_the_one_before)
{
    prefetch(0, 2);
    unmap(map("a"));
    const struct cairn_view held = map("b");
    prefetch(0, 1);
    newest = toy_step(job, 2).version;
    unmap(map("scale"));
    await_mapped(room(2)); // on loan, of the older version
    unmap(held);
    ck_assert_uint_eq(stats().mapped_bytes, 0);
}

TEST(wrong_views_and_names_are_refused)
{
    struct cairn_view views[2] = { { .struct_size = sizeof *views } };
    struct cairn_view view = map("b");
    size_t count = 1;
    int stream = 0;
    cairn_op *op = NULL;
    const char *const unknown[] = { "a", "nobody" };
    fails(cairn_map(job, newest, "a", views, &count, &op), CAIRN_ERR_INVALID, "2 tensors");
    ck_assert_uint_eq(count, 2);
    fails(cairn_map(job, newest, "a", NULL, &count, &op), CAIRN_ERR_INVALID, "0 views");
    fails(cairn_map(job, newest, "nobody", views, &count, &op), CAIRN_ERR_NOT_FOUND, "nobody");
    fails(cairn_prefetch(job, newest, unknown, 2), CAIRN_ERR_NOT_FOUND, "nobody");
    fails(cairn_unmap(job, &view, &stream), CAIRN_ERR_INVALID, "must be NULL");
    view.loan += 100;
    fails(cairn_unmap(job, &view, NULL), CAIRN_ERR_INVALID, "not on loan");
    view.loan -= 100;
    unmap(view);
    fails(cairn_unmap(job, &view, NULL), CAIRN_ERR_INVALID, "not on loan");
    ck_assert_ptr_null(op);
}

TEST(an_alias_is_mapped_as_what_it_stands_for)
{
    const struct cairn_box rows = { .rank = 2, .start = { 10, 0 }, .extent = { 5, 20 } };
    struct cairn_tensor tensors[TOY_TENSORS + 2];
    struct cairn_job_spec spec = *TOY_SPEC();
    memcpy(tensors, toy_tensors, sizeof toy_tensors);
    tensors[TOY_TENSORS] = (struct cairn_tensor) { .struct_size = sizeof *tensors,
                                                   .name = "head.all",
                                                   .unit = "head",
                                                   .rank = 2,
                                                   .shape = { 60, 20 },
                                                   .alias_of = "a.weight" };
    tensors[TOY_TENSORS + 1] = (struct cairn_tensor) { .struct_size = sizeof *tensors,
                                                       .name = "head.rows",
                                                       .unit = "head",
                                                       .rank = 2,
                                                       .shape = { 5, 20 },
                                                       .alias_of = "a.weight",
                                                       .alias_box = &rows };
    spec.tensors = tensors;
    spec.tensor_count = TOY_TENSORS + 2;
    job = toy_ready(session, "tied", &spec);
    newest = toy_step(job, 1).version;
    struct cairn_view views[2];
    float whole[TOY_ELEMS];
    good(cairn_wait(begin_map("head", newest, views), TOY_WAIT_MS));
    toy_fetch(job, newest, 0, NULL, CAIRN_F32, whole);
    ck_assert_str_eq(views[1].tensor, "head.rows");
    ck_assert_uint_eq(views[1].shape[0], 5);
    ck_assert_int_eq(memcmp(views[0].ptr, whole, 1200 * 4), 0);
    ck_assert_int_eq(memcmp(views[1].ptr, whole + 200, 100 * 4), 0);
    unmap(views[0]);
}

/* A rank of two that hold b.weight by rows: 16 and 15 of them. */
struct holder {
    pthread_t thread;
    cairn_job *job;
    struct cairn_tile tile;
    cairn_status status;
};

static void *declare(void *arg)
{
    struct holder *holder = arg;
    holder->status = cairn_tiles(holder->job, &holder->tile, 1, 2, TOY_WAIT_MS);
    return NULL;
}

TEST(a_worker_with_tiles_maps_what_it_holds)
{
    cairn *second = toy_session(&rooms, "second");
    struct holder holders[2] = { { .job = job },
                                 { .job = toy_open(second, "toy", TOY_SPEC(.rank = 1)) } };
    uint16_t whole[TOY_ELEMS];
    const struct cairn_view before = map("b");
    for (uint64_t rank = 0; rank < 2; rank++) {
        holders[rank].tile = (struct cairn_tile) {
            .struct_size = sizeof(struct cairn_tile),
            .tensor = "b.weight",
            .box = { .rank = 2, .start = { 16 * rank, 0 }, .extent = { 16 - rank, 33 } }
        };
        ck_assert_int_eq(pthread_create(&holders[rank].thread, NULL, declare, &holders[rank]), 0);
    }
    for (int rank = 0; rank < 2; rank++) pthread_join(holders[rank].thread, NULL);
    toy_fetch(job, newest, 2, NULL, CAIRN_BF16, whole);
    for (uint64_t rank = 0; rank < 2; rank++) {
        ck_assert_int_eq((int)holders[rank].status, (int)CAIRN_OK);
        job = holders[rank].job;
        const struct cairn_view view = map("b");
        ck_assert_uint_eq(view.shape[0], 16 - rank);
        ck_assert_uint_eq(view.shape[1], 33);
        ck_assert_int_eq(memcmp(view.ptr, whole + 16 * 33 * rank, (16 - rank) * 33 * 2), 0);
        unmap(view);
    }
    job = holders[0].job;
    check_bits(&before, 2); // what was mapped before stays as it was
    unmap(before);
    ck_assert_uint_eq(stats().mapped_bytes, 0);
}

TEST(a_job_may_be_closed_with_everything_on_loan)
{
    struct cairn_view views[2];
    prefetch(0, 2);
    cairn_op *op = begin_map("scale", newest, views);
    map("a");
    cairn_job_close(job);
    const cairn_status ended = cairn_wait(op, TOY_WAIT_MS);
    ck_assert_msg(ended == CAIRN_OK || ended == CAIRN_ERR_CANCELED, "%d", (int)ended);
}

enum { THREADS = 4, TURNS = 60 };

static void *map_all(void *arg)
{
    const size_t shift = *(size_t *)arg;
    for (size_t i = 0; i < TURNS; i++) {
        prefetch((i + shift) % UNITS, 1);
        const size_t unit = (i * (shift + 1)) % UNITS;
        const struct cairn_view view = map(units[unit]);
        ck_assert_ptr_nonnull(view.ptr);
        unmap(view);
    }
    return NULL;
}

TEST(threads_share_what_is_mapped)
{
    pthread_t threads[THREADS];
    size_t shifts[THREADS];
    for (size_t i = 0; i < THREADS; i++) {
        shifts[i] = i;
        ck_assert_int_eq(pthread_create(&threads[i], NULL, map_all, &shifts[i]), 0);
    }
    for (size_t i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
    ck_assert_uint_eq(stats().maps, THREADS * TURNS);
    ck_assert_uint_le(stats().mapped_bytes, WINDOW * (room(0) + room(1)));
}

SUITE(60, open_rooms, toy_stop);
