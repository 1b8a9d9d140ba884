/* A sweep over a snapshot: every leaf that is asked for comes once, whole, with the bytes that were saved,
 * whichever files it is in; and what ends a sweep. */
#include <check.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "proto/snapshot_io/snapshot_io.h"
#include "proto/spec/spec.h"
#include "tests/support/scratch_folder.h"
#include "tests/support/snapshot_sample.h"
#include "tests/support/suite.h"

#define BIG         ((uint64_t)1200000) /* elements: several blocks a file */
#define SMALL       ((uint64_t)300)
#define SMALL_COUNT 40

static struct cairn_sample_making made;
static struct snapshot snapshot;

/* A large tensor and many small ones on two shards, each with half of all: a leaf of the large one is in both
 * halves. */
static void enter(void)
{
    char name[16];
    struct job_spec_data spec = cairn_sample_spec("adamw");
    scratch_make();
    cairn_sample_tensor(&spec, "big", CAIRN_TRAINED, (struct shape) { 1, { BIG } });
    for (int i = 0; i < SMALL_COUNT; i++) {
        snprintf(name, sizeof name, "small%02d", i);
        cairn_sample_tensor(&spec, name, CAIRN_TRAINED, (struct shape) { 1, { SMALL } });
    }
    cairn_sample_begin(&made, scratch, spec);
    for (uint32_t s = 0; s < 2; s++) {
        struct cairn_sample_ranges owned = { .count = 0 };
        for (uint32_t t = 0; t < spec.tensor_count; t++) {
            const uint64_t half = spec.tensors[t].shape.dim[0] / 2;
            owned.at[owned.count++] = (struct snapshot_range) { t, s * half, half };
        }
        cairn_sample_write(made.folder, &spec, s, &owned, &made.manifest);
    }
    cairn_sample_commit(&made);
    ck_assert_int_eq(snapshot_open(made.folder, &snapshot, NULL), CAIRN_OK);
}

static void leave(void)
{
    snapshot_close(&snapshot);
    cairn_sample_end(&made);
    scratch_remove();
}

/* What the threads have given. */
struct taken {
    atomic_ullong elems, wrong, ranges;
    atomic_bool canceled;
    uint64_t cancel_at, fail_at; /* by ranges; 0: never */
};

static cairn_status take(void *context, uint32_t thread, const struct sweep_range *range,
                         const void *elems, struct sentence *why)
{
    struct taken *taken = context;
    const uint8_t *at = elems;
    uint64_t wrong = thread >= CAIRN_SWEEP_THREADS;
    for (uint64_t i = 0; i < range->elem_count; i++) {
        const uint32_t value = cairn_sample_value(range->tensor, range->plane,
                                                  range->first_elem + i);
        wrong += memcmp(at + i * sizeof value, &value, sizeof value) != 0;
    }
    atomic_fetch_add(&taken->wrong, wrong + (range->place != range->tensor + 1));
    atomic_fetch_add(&taken->elems, range->elem_count);
    const uint64_t number = atomic_fetch_add(&taken->ranges, 1) + 1;
    if (number == taken->cancel_at) atomic_store(&taken->canceled, true);
    return number == taken->fail_at ? fail_with(why, CAIRN_ERR_MISMATCH, "not this one") : CAIRN_OK;
}

/* All leaves of all planes but for the first of the large tensor's. */
static cairn_status sweep_all(struct taken *taken, uint64_t *elems_out, struct sentence *why)
{
    struct sweep_ranges ranges = { 0 };
    const struct sweep sweep = {
        .snapshot = &snapshot, .take = take, .context = taken, .canceled = &taken->canceled
    };
    *elems_out = 0;
    for (uint32_t t = 0; t < made.spec.tensor_count; t++) {
        const struct geometry g = geometry_of(&made.spec.tensors[t].shape);
        for (uint32_t p = 1; p < CAIRN_PLANE_COUNT; p++) {
            const uint64_t first = t == 0 ? 1 : 0;
            const struct sweep_range whole = { .tensor = t,
                                               .plane = p,
                                               .first_leaf = first,
                                               .leaf_count = g.leaf_count - first,
                                               .place = t + 1 };
            if (!(spec_planes(&made.spec, t) & (1u << p))) continue;
            ck_assert_int_eq(sweep_ranges_add(&ranges, &g, sizeof(float), &whole, why), CAIRN_OK);
            *elems_out += made.spec.tensors[t].shape.dim[0] - leaf_start(&g, first);
        }
    }
    const cairn_status status = snapshot_sweep(&sweep, &ranges, why);
    sweep_ranges_release(&ranges);
    return status;
}

TEST(every_leaf_that_is_asked_for_comes_once_with_what_was_saved)
{
    struct taken taken = { .wrong = 0 };
    struct sentence why = { "" };
    uint64_t elems;
    ck_assert_msg(sweep_all(&taken, &elems, &why) == CAIRN_OK, "%s", why.text);
    ck_assert_uint_eq(atomic_load(&taken.wrong), 0);
    ck_assert_uint_eq(atomic_load(&taken.elems), elems);
}

TEST(parts_are_cut_where_the_root_of_their_leaves_is_one_node)
{
    const struct shape shape = { 1, { 3000000 } };
    const struct geometry g = geometry_of(&shape);
    const struct sweep_range whole = { .first_leaf = 3, .leaf_count = g.leaf_count - 3 };
    struct sweep_ranges ranges = { 0 };
    ck_assert_int_eq(sweep_ranges_add(&ranges, &g, sizeof(float), &whole, NULL), CAIRN_OK);
    ck_assert_uint_eq(ranges.list[0].leaf_count, 253);
    ck_assert_uint_eq(ranges.list[1].first_leaf, 256);
    ck_assert_uint_eq(ranges.list[1].leaf_count, 256);
    ck_assert_uint_eq(ranges.list[1].elem_count * sizeof(float), CAIRN_SNAPSHOT_BLOCK_BYTES);
    const struct sweep_range *last = &ranges.list[ranges.count - 1];
    ck_assert_uint_eq(last->first_elem + last->elem_count, 3000000);
    sweep_ranges_release(&ranges);
}

TEST(a_sweep_that_is_given_up_ends)
{
    struct taken taken = { .cancel_at = 1 };
    struct sentence why = { "" };
    uint64_t elems;
    ck_assert_int_eq(sweep_all(&taken, &elems, &why), CAIRN_ERR_CANCELED);
    ck_assert_uint_lt(atomic_load(&taken.ranges), CAIRN_SWEEP_THREADS + 1);
}

TEST(who_takes_may_end_it)
{
    struct taken taken = { .fail_at = 2 };
    struct sentence why = { "" };
    uint64_t elems;
    ck_assert_int_eq(sweep_all(&taken, &elems, &why), CAIRN_ERR_MISMATCH);
    ck_assert_str_eq(why.text, "not this one");
}

/* Behind the back of who has opened the snapshot. */
TEST_EACH(a_file_that_went_or_was_cut_is_named, 0, 2)
{
    struct taken taken = { .wrong = 0 };
    struct sentence why = { "" };
    uint64_t elems;
    const struct manifest_file *file = &snapshot.manifest.files[1];
    const char *path = cairn_sample_path(&made, file->path);
    ck_assert_int_eq(_i == 0 ? unlink(path) : truncate(path, (off_t)file->bytes - 1), 0);
    ck_assert_int_eq(sweep_all(&taken, &elems, &why), CAIRN_ERR_CORRUPT);
    ck_assert_msg(strstr(why.text, file->path) != NULL, "%s", why.text);
}

SUITE(60, enter, leave);
