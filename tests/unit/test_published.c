/* Published copies: where extents stand in them, and that a reader never takes a torn version for whole. */
#include <check.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "proto/geometry/layout.h"
#include "proto/plan/plan.h"
#include "tests/support/suite.h"

enum { TENSORS = 5, PAGE = CAIRN_PUBLISHED_PAGE_BYTES };

/* Some small, some that have to be cut at rows whose bytes are no multiple of anything. */
static const struct shape shapes[TENSORS] = {
    { .rank = 2, .dim = { 977, 311 } },  { .rank = 1, .dim = { 13 } },
    { .rank = 2, .dim = { 5000, 100 } }, { .rank = 0 },
    { .rank = 1, .dim = { 70001 } },
};

static struct layout *plan_for(uint32_t shard_count)
{
    struct layout_tensor tensors[TENSORS];
    struct layout *layout = NULL;
    static const char *const names[TENSORS] = { "a", "b", "c", "d", "e" };
    for (size_t i = 0; i < TENSORS; i++)
        tensors[i] = (struct layout_tensor) {
            .name = names[i], .unit = names[i], .shape = shapes[i], .elem_bytes = 20
        };
    const struct plan_request request = { .tensors = tensors,
                                          .tensor_count = TENSORS,
                                          .shard_count = shard_count };
    ck_assert_int_eq(plan_make(&request, &layout, NULL), CAIRN_OK);
    return layout;
}

static void check_places(const struct shard_map *map, size_t elem_bytes)
{
    uint64_t end = 0, last = 0;
    for (size_t i = 0; i < map->extent_count; i++) {
        const struct local_extent *e = &map->extents[i];
        const uint64_t at = published_place(map, i, elem_bytes, &end);
        ck_assert_uint_ge(at, last);
        ck_assert_uint_lt(at - last, PAGE + 64);
        ck_assert_uint_eq(end, at + e->elem_count * elem_bytes);
        if (e->elem_count == map->layout->geometry[e->tensor].elems)
            ck_assert_uint_eq(at % 64, 0);
        else
            ck_assert_uint_eq(at % PAGE, e->first_elem * elem_bytes % PAGE);
        last = end;
    }
}

TEST(parts_of_a_tensor_can_be_mapped_one_behind_another)
{
    for (uint32_t shards = 1; shards <= 5; shards++) {
        struct layout *layout = plan_for(shards);
        for (uint32_t s = 0; s < shards; s++) {
            struct shard_map map;
            ck_assert_int_eq(shard_map_init(&map, layout, s, 4), CAIRN_OK);
            check_places(&map, 4);
            check_places(&map, 2);
            shard_map_release(&map);
        }
        layout_close(layout);
    }
}

static struct published_head *head_of(struct layout *layout)
{
    struct shard_map map;
    struct published_head *head = calloc(1, PAGE);
    ck_assert_ptr_nonnull(head);
    ck_assert_int_eq(shard_map_init(&map, layout, 0, 4), CAIRN_OK);
    published_head_init(head, &map, 7, PAGE);
    shard_map_release(&map);
    return head;
}

TEST(a_copy_is_read_at_its_version_only)
{
    struct layout *layout = plan_for(1);
    struct published_head *head = head_of(layout);
    const struct cairn_version none = { 0, 0 }, first = { 1, 41 }, second = { 1, 42 };
    uint64_t sequence = 99;
    ck_assert_uint_eq(head->job, 7);
    ck_assert(!published_read_begin(head, 0, none, CAIRN_PUBLISHED_HOST,
                                    &sequence)); // it was never written
    published_write_begin(head);
    published_write_end(head, first, CAIRN_PUBLISHED_HOST);
    ck_assert(!published_read_begin(head, 0, second, CAIRN_PUBLISHED_HOST, &sequence));
    ck_assert_uint_eq(sequence, 99);
    ck_assert(published_read_begin(head, 0, first, CAIRN_PUBLISHED_HOST, &sequence));
    ck_assert(published_read_end(head, sequence));
    published_write_begin(head);
    ck_assert(!published_read_end(head, sequence));
    ck_assert(!published_read_begin(head, 0, first, CAIRN_PUBLISHED_HOST, &sequence));
    published_write_end(head, second, CAIRN_PUBLISHED_HOST);
    ck_assert(!published_read_end(head, sequence));
    ck_assert(published_read_begin(head, 0, second, CAIRN_PUBLISHED_HOST, &sequence));
    published_write_begin(head);
    published_write_end(head, second, CAIRN_PUBLISHED_DEVICE);
    ck_assert(!published_read_begin(head, 0, second, CAIRN_PUBLISHED_HOST, &sequence));
    ck_assert(published_read_begin(head, 0, second, CAIRN_PUBLISHED_DEVICE, &sequence));
    published_set_copy(head, 2); // shown anew: who began before goes on, nobody else begins
    ck_assert(published_read_end(head, sequence));
    ck_assert(!published_read_begin(head, 0, second, CAIRN_PUBLISHED_DEVICE, &sequence));
    ck_assert(published_read_begin(head, 2, second, CAIRN_PUBLISHED_DEVICE, &sequence));
    free(head);
    layout_close(layout);
}

struct race {
    struct published_head *head;
    _Atomic uint64_t words[64];
    atomic_bool over;
};

static void *write_versions(void *arg)
{
    struct race *race = arg;
    for (uint64_t step = 1; step <= 20000; step++) {
        published_write_begin(race->head);
        for (size_t i = 0; i < 64; i++)
            atomic_store_explicit(&race->words[i], step, memory_order_relaxed);
        published_write_end(race->head, (struct cairn_version) { 1, step }, CAIRN_PUBLISHED_HOST);
    }
    race->over = true;
    return NULL;
}

TEST(a_version_that_is_overwritten_while_it_is_read_is_never_taken_for_whole)
{
    struct layout *layout = plan_for(1);
    struct race race = { .head = head_of(layout) };
    pthread_t writer;
    uint64_t whole = 0;
    ck_assert_int_eq(pthread_create(&writer, NULL, write_versions, &race), 0);
    for (bool last = false; !last;) {
        last = race.over;
        uint64_t sequence, seen[64];
        const struct cairn_version version = { 1, atomic_load(&race.head->step) };
        if (!published_read_begin(race.head, 0, version, CAIRN_PUBLISHED_HOST, &sequence)) continue;
        for (size_t i = 0; i < 64; i++)
            seen[i] = atomic_load_explicit(&race.words[i], memory_order_relaxed);
        if (!published_read_end(race.head, sequence)) continue;
        whole++;
        for (size_t i = 0; i < 64; i++) ck_assert_uint_eq(seen[i], version.step);
    }
    pthread_join(writer, NULL);
    ck_assert_uint_ge(whole, 1); // at least the last one
    free(race.head);
    layout_close(layout);
}

SUITE(30);
