/* The same bits whatever the cluster: 50 steps through real daemons and through rooms in memory, and
 * the content root is the reference's and the golden one. `test_bits --print-root` prints the
 * reference's, to compare builds. */

#include "proto/plan/plan.h"
#include "tests/e2e/crew.h"
#include "tests/support/rooms.h"
#include "tests/e2e/scene.h"
#include "tests/support/test_backend.h"

static const struct crew_mesh no_mesh;

static void train_on_daemons(int shards, const struct cluster_options *options, struct crew crew,
                             const char *root)
{
    cluster_start(&cluster, shards, options);
    crew.job = &bits_job;
    crew.endpoint = cluster.address;
    crew.until_step = BITS_STEPS;
    crew_train_quietly(&crew, 1);
    crew_check_root(cluster.address, &bits_job, root);
    stop();
}

TEST(one_process_without_daemons_comes_to_the_golden_root)
{
    struct crew_reference ref;
    char root[65];
    crew_reference_open(&ref, &bits_job, no_mesh);
    crew_reference_run(&ref, BITS_STEPS);
    crew_reference_root(&ref, root);
    ck_assert_uint_gt(ref.clipped, 0);
    ck_assert_uint_lt(ref.clipped, BITS_STEPS);
    crew_reference_close(&ref);
    ck_assert_str_eq(root, BITS_GOLDEN_ROOT);
}

TEST(each_of_8_shards_owns_a_part_of_it)
{
    struct crew_reference ref;
    struct layout_tensor tensors[BITS_TENSORS];
    struct layout *layout;
    crew_reference_open(&ref, &bits_job, no_mesh);
    for (int t = 0; t < BITS_TENSORS; t++) { // what an element weighs: as the coordinator has it
        const struct crew_tensor *tensor = &bits_tensors[t];
        size_t bytes = 4 + 2 * dtype_size((int)tensor->wire);
        if (tensor->group != NULL) bytes += 4;
        for (int p = CAIRN_PLANE_EXP_AVG; p < CAIRN_PLANE_COUNT; p++)
            if (ref.tensor[t].plane[p] != NULL) bytes += 4;
        tensors[t] = (struct layout_tensor) { tensor->name, tensor->name, tensor->shape,
                                              (uint32_t)bytes };
    }
    const struct plan_request request = { .tensors = tensors,
                                          .tensor_count = BITS_TENSORS,
                                          .shard_count = 8 };
    ck_assert_int_eq(plan_make(&request, &layout, NULL), CAIRN_OK);
    for (int i = 0; i < 8; i++)
        ck_assert_uint_gt(layout->shard_extents[i + 1], layout->shard_extents[i]);
    layout_close(layout);
    crew_reference_close(&ref);
}

/* On a card, which is slow where it is emulated, a few are enough: the ways to it are the same. */
static bool is_left_to_the_host(void)
{
    return strcmp(cairn_test_backend(), "host") != 0;
}

static const int shard_counts[] = { 1, 3, 8, 2, 5 };

TEST_EACH(any_number_of_shards_gives_the_same_bits, 0, 5)
{
    if (_i >= 3 && is_left_to_the_host()) return;
    train_on_daemons(shard_counts[_i], NULL, (struct crew) { .window = 8 }, BITS_GOLDEN_ROOT);
}

/* The average is a plane as any other: of two groups of three, with a round that is skipped among the 50. */
TEST_EACH(any_number_of_shards_gives_the_same_averages, 0, 3)
{
    static const int counts[] = { 3, 1, 8 };
    char root[65];
    if (_i > 0 && is_left_to_the_host()) return;
    crew_keep_averages();
    crew_reference_at(&bits_job, BITS_STEPS, root);
    ck_assert_str_ne(root, BITS_GOLDEN_ROOT);
    train_on_daemons(counts[_i],
                     &(struct cluster_options) { .shard_set = SETTINGS("compute.threads=2") },
                     (struct crew) { .window = 8 }, root);
}

TEST(two_compute_threads_give_the_same_bits)
{
    if (is_left_to_the_host()) return;
    train_on_daemons(3, &(struct cluster_options) { .shard_set = SETTINGS("compute.threads=2") },
                     (struct crew) { .window = 8 }, BITS_GOLDEN_ROOT);
}

TEST(a_window_of_one_chunk_gives_the_same_bits)
{
    if (is_left_to_the_host()) return;
    train_on_daemons(2, NULL, (struct crew) { .window = 1 }, BITS_GOLDEN_ROOT);
}

TEST(pushes_in_any_order_and_late_give_the_same_bits)
{
    train_on_daemons(3, NULL, (struct crew) { .shuffle = 12345 }, BITS_GOLDEN_ROOT);
}

static const struct cairn_fabric_mem_options fabrics[] = {
    { .seed = 1 },
    { .seed = 2, .delay_max_ticks = 16, .duplicate_permille = 50 },
    { .seed = 3, .delay_max_ticks = 6, .duplicate_permille = 200, .eager_bytes = 4096 },
};

TEST_EACH(a_fabric_in_memory_that_reorders_and_repeats_gives_the_same_bits, 0, 3)
{
    struct rooms rooms;
    if (is_left_to_the_host()) return;
    rooms_open(&rooms, 3, &fabrics[_i]);
    crew_train_quietly(&(struct crew) { .job = &bits_job,
                                        .endpoint = rooms.address,
                                        .hub = rooms.hub,
                                        .until_step = BITS_STEPS,
                                        .shuffle = (uint64_t)_i },
                       1);
    crew_check_root(rooms.address, &bits_job, BITS_GOLDEN_ROOT);
    rooms_close(&rooms);
}

static int print_root(void)
{
    struct crew_reference ref;
    char root[65];
    crew_reference_open(&ref, &bits_job, no_mesh);
    crew_reference_run(&ref, BITS_STEPS);
    crew_reference_root(&ref, root);
    printf("%s\n", root);
    fprintf(stderr, "%u of %d updates clipped\n", ref.clipped, BITS_STEPS);
    crew_reference_close(&ref);
    return 0;
}

SUITE(60, .tear_down = stop);

int main(int argc, char **argv)
{
    return argc == 2 && strcmp(argv[1], "--print-root") == 0 ? print_root() : suite_main();
}
