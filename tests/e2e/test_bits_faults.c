/* The same bits when things die: rounds are abandoned and computed again, and the content root is the
 * one of the undisturbed run. `test_bits_faults --worker ENDPOINT RANK DIE_AT` is a worker. */
#include <signal.h>
#include <stdlib.h>

#include "tests/e2e/bits_check.h"
#include "tests/support/rooms.h"
#include "tests/e2e/scene.h"

/* Each of the two, in its turn, in the middle of a round with one micro-batch and one with three. */
static const struct death {
    int rank, step;
} deaths[] = { { 0, 20 }, { 1, 21 }, { 1, 24 } };

TEST_EACH(a_worker_killed_in_mid_round_and_started_again_changes_no_bit, 0, 3)
{
    const struct death *death = &deaths[_i];
    start(3);
    const pid_t dying = bits_spawn_worker(&cluster, death->rank, death->step);
    const pid_t other = bits_spawn_worker(&cluster, 1 - death->rank, 0);
    ck_assert_int_eq(cluster_wait(dying, CLUSTER_WAIT_MS), 128 + SIGKILL);
    const pid_t again = bits_spawn_worker(&cluster, death->rank, 0);
    ck_assert_msg(cluster_wait(again, CLUSTER_WAIT_MS) == 0, "see %s", cluster.folder);
    ck_assert_msg(cluster_wait(other, CLUSTER_WAIT_MS) == 0, "see %s", cluster.folder);
    bits_check_root(cluster.address, BITS_GOLDEN_ROOT);
    stop();
}

TEST(a_coordinator_killed_and_started_again_changes_no_bit)
{
    static const uint64_t steps[] = { 8, 22, 35 };
    struct bits_run run;
    start(3);
    bits_run_start(&run,
                   &(struct bits_worker) {
                       .endpoint = cluster.address, .until_step = BITS_STEPS, .shuffle = 99 },
                   BITS_WORKERS);
    for (int i = 0; i < 3; i++) {
        bits_run_await(&run, steps[i]);
        restart_coordinator();
    }
    bits_run_join(&run);
    bits_check_root(cluster.address, BITS_GOLDEN_ROOT);
    stop();
}

TEST_EACH(connections_that_break_change_no_bit, 0, 3)
{
    const struct cairn_fabric_mem_options fabric = { .seed = (uint64_t)_i + 10,
                                                     .delay_max_ticks = 4,
                                                     .duplicate_permille = 20,
                                                     .cut_permille = 1,
                                                     .cut_one_permille = 2 };
    struct rooms rooms;
    struct bits_run run;
    rooms_open(&rooms, 3, &fabric);
    const struct bits_worker pattern = { .endpoint = rooms.address,
                                         .hub = rooms.hub,
                                         .until_step = BITS_STEPS };
    bits_run_start(&run, &pattern, BITS_WORKERS);
    bits_run_join(&run);
    bits_check_root(rooms.address, BITS_GOLDEN_ROOT);
    rooms_close(&rooms);
}

SUITE(60);

int main(int argc, char **argv)
{
    return argc == 5 && strcmp(argv[1], "--worker") == 0
               ? bits_be_worker(argv, (struct bits_worker) { 0 })
               : suite_main();
}
