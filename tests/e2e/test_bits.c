/* The same bits whatever the cluster: 50 steps through real daemons and through rooms in memory, and
 * the content root is the reference's and the golden one. `test_bits --print-root` prints the
 * reference's, to compare builds. */
#include <stdio.h>
#include <string.h>

#include "proto/wire/plan.h"
#include "tests/e2e/bits_check.h"
#include "tests/support/rooms.h"

static void train_on_daemons(int shards, const struct cluster_options *options,
                             struct bits_worker pattern)
{
    struct cluster cluster;
    cluster_start(&cluster, shards, options);
    pattern.until_step = BITS_STEPS;
    bits_train_quietly(pattern, cluster.address, 1);
    bits_check_root(cluster.address, BITS_GOLDEN_ROOT);
    cluster_stop(&cluster);
}

START_TEST(one_process_without_daemons_comes_to_the_golden_root)
{
    struct bits_reference ref;
    char root[65];
    bits_reference_open(&ref);
    bits_reference_run(&ref, BITS_STEPS);
    bits_reference_root(&ref, root);
    ck_assert_uint_gt(ref.clipped, 0);
    ck_assert_uint_lt(ref.clipped, BITS_STEPS);
    bits_reference_close(&ref);
    ck_assert_str_eq(root, BITS_GOLDEN_ROOT);
}
END_TEST

START_TEST(each_of_8_shards_owns_a_part_of_it)
{
    struct bits_reference ref;
    struct cairn_layout_tensor tensors[BITS_TENSORS];
    struct cairn_layout *layout;
    bits_reference_open(&ref);
    for (int t = 0; t < BITS_TENSORS; t++) { // what an element weighs: as the coordinator has it
        const struct bits_tensor *tensor = &bits_tensors[t];
        size_t bytes = 4 + 2 * cairn_dtype_bytes((int)tensor->wire);
        if (tensor->group != NULL) bytes += 4;
        for (int p = CAIRN_PLANE_EXP_AVG; p < CAIRN_PLANE_COUNT; p++)
            if (ref.tensor[t].plane[p] != NULL) bytes += 4;
        tensors[t] = (struct cairn_layout_tensor) { tensor->name, tensor->name, tensor->shape,
                                                    (uint32_t)bytes };
    }
    const struct cairn_plan_request request = { .tensors = tensors,
                                                .tensor_count = BITS_TENSORS,
                                                .shard_count = 8 };
    ck_assert_int_eq(cairn_plan_make(&request, &layout, NULL), CAIRN_OK);
    for (int i = 0; i < 8; i++)
        ck_assert_uint_gt(layout->shard_extents[i + 1], layout->shard_extents[i]);
    cairn_layout_close(layout);
    bits_reference_close(&ref);
}
END_TEST

static const int shard_counts[] = { 1, 2, 3, 5, 8 };

START_TEST(any_number_of_shards_gives_the_same_bits)
{
    train_on_daemons(shard_counts[_i], NULL, (struct bits_worker) { .window = 8 });
}
END_TEST

START_TEST(two_compute_threads_give_the_same_bits)
{
    static const char *const set[] = { "compute.threads=2", NULL };
    train_on_daemons(3, &(struct cluster_options) { .shard_set = set },
                     (struct bits_worker) { .window = 8 });
}
END_TEST

START_TEST(a_window_of_one_chunk_gives_the_same_bits)
{
    train_on_daemons(2, NULL, (struct bits_worker) { .window = 1 });
}
END_TEST

START_TEST(pushes_in_any_order_and_late_give_the_same_bits)
{
    train_on_daemons(3, NULL, (struct bits_worker) { .shuffle = 12345 });
}
END_TEST

static const struct cairn_fabric_mem_options fabrics[] = {
    { .seed = 1 },
    { .seed = 2, .delay_max_ticks = 16, .duplicate_permille = 50 },
    { .seed = 3, .delay_max_ticks = 6, .duplicate_permille = 200, .eager_bytes = 4096 },
};

START_TEST(a_fabric_in_memory_that_reorders_and_repeats_gives_the_same_bits)
{
    struct rooms rooms;
    rooms_open(&rooms, 3, &fabrics[_i]);
    const struct bits_worker pattern = { .hub = rooms.hub,
                                         .until_step = BITS_STEPS,
                                         .shuffle = (uint64_t)_i };
    bits_train_quietly(pattern, rooms.address, 1);
    bits_check_root(rooms.address, BITS_GOLDEN_ROOT);
    rooms_close(&rooms);
}
END_TEST

static int print_root(void)
{
    struct bits_reference ref;
    char root[65];
    bits_reference_open(&ref);
    bits_reference_run(&ref, BITS_STEPS);
    bits_reference_root(&ref, root);
    printf("%s\n", root);
    fprintf(stderr, "%u of %d updates clipped\n", ref.clipped, BITS_STEPS);
    bits_reference_close(&ref);
    return 0;
}

int main(int argc, char **argv)
{
    if (argc == 2 && strcmp(argv[1], "--print-root") == 0) return print_root();
    TCase *plain = tcase_create("reference"), *daemons = tcase_create("daemons"),
          *memory = tcase_create("memory");
    tcase_add_test(plain, one_process_without_daemons_comes_to_the_golden_root);
    tcase_add_test(plain, each_of_8_shards_owns_a_part_of_it);
    tcase_add_loop_test(daemons, any_number_of_shards_gives_the_same_bits, 0, 5);
    tcase_add_test(daemons, two_compute_threads_give_the_same_bits);
    tcase_add_test(daemons, a_window_of_one_chunk_gives_the_same_bits);
    tcase_add_test(daemons, pushes_in_any_order_and_late_give_the_same_bits);
    tcase_add_loop_test(memory, a_fabric_in_memory_that_reorders_and_repeats_gives_the_same_bits, 0,
                        3);
    return bits_run_suite("bits", (TCase *const[]) { plain, daemons, memory, NULL });
}
