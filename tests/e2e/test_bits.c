/* The same bits whatever the cluster: 50 steps through real daemons and through rooms in memory, and
 * the content root is the reference's and the golden one. `test_bits --print-root` prints the
 * reference's, to compare builds. */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/e2e/bits_reference.h"
#include "tests/e2e/bits_rooms.h"
#include "tests/e2e/bits_worker.h"
#include "tests/support/cluster.h"

static void check_root(const char *address)
{
    static struct cluster_said said;
    struct cluster at = { .folder = "" };
    snprintf(at.address, sizeof at.address, "%s", address);
    cluster_cli(&at, &said, "job", "digest", "-q", BITS_JOB, NULL);
    ck_assert_msg(said.status == 0, "%s", said.err);
    said.out[strcspn(said.out, "\n")] = 0;
    ck_assert_str_eq(said.out, BITS_GOLDEN_ROOT);
}

/* Undisturbed: no round is void, and the one with the NaN is skipped once. */
static void check_quiet(const struct bits_run *run)
{
    for (int i = 0; i < BITS_WORKERS; i++) {
        ck_assert_uint_eq(run->worker[i].void_rounds, 0);
        ck_assert_uint_eq(run->worker[i].skipped, 1);
    }
}

static void train(struct bits_worker pattern, const char *endpoint)
{
    struct bits_run run;
    pattern.endpoint = endpoint;
    pattern.until_step = BITS_STEPS;
    bits_run_start(&run, &pattern, BITS_WORKERS);
    bits_run_join(&run);
    check_quiet(&run);
}

static void train_on_daemons(int shards, const struct cluster_options *options,
                             struct bits_worker pattern)
{
    struct cluster cluster;
    cluster_start(&cluster, shards, options);
    train(pattern, cluster.address);
    check_root(cluster.address);
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
    struct bits_rooms rooms;
    bits_rooms_open(&rooms, 3, &fabrics[_i]);
    train((struct bits_worker) { .hub = rooms.hub, .shuffle = (uint64_t)_i }, rooms.address);
    check_root(rooms.address);
    bits_rooms_close(&rooms);
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
    Suite *suite = suite_create("bits");
    TCase *plain = tcase_create("reference"), *daemons = tcase_create("daemons"),
          *memory = tcase_create("memory");
    tcase_set_timeout(daemons, 60);
    tcase_set_timeout(memory, 60);
    tcase_add_test(plain, one_process_without_daemons_comes_to_the_golden_root);
    tcase_add_loop_test(daemons, any_number_of_shards_gives_the_same_bits, 0, 5);
    tcase_add_test(daemons, two_compute_threads_give_the_same_bits);
    tcase_add_test(daemons, a_window_of_one_chunk_gives_the_same_bits);
    tcase_add_test(daemons, pushes_in_any_order_and_late_give_the_same_bits);
    tcase_add_loop_test(memory, a_fabric_in_memory_that_reorders_and_repeats_gives_the_same_bits, 0,
                        3);
    suite_add_tcase(suite, plain);
    suite_add_tcase(suite, daemons);
    suite_add_tcase(suite, memory);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    const int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? 0 : 1;
}
