/* Tiles when ranks, coordinators and connections die: what is declared is declared again, and the bits
 * stay those of the reference. `test_tiles_faults --rank ENDPOINT RANK DIE_AT` is a rank. */
#include <signal.h>
#include <stdlib.h>

#include "tests/e2e/tiles_check.h"
#include "tests/e2e/scene.h"
#include "tests/support/rooms.h"

enum { STEPS = 9 };
static const struct tiles_mesh mesh = { .tp = 2, .dp = 2 };

TEST_EACH(a_rank_that_comes_again_declares_again_and_goes_on, 0, 2)
{
    struct rooms rooms;
    rooms_open(&rooms, 3, &(struct cairn_fabric_mem_options) { .seed = 5 });
    tiles_train(&(struct tiles_worker) { .endpoint = rooms.address,
                                         .hub = rooms.hub,
                                         .mesh = mesh,
                                         .until_step = STEPS,
                                         .restart_at = 3 + (uint64_t)_i });
    tiles_check_state(rooms.address, rooms.hub, mesh, STEPS);
    rooms_close(&rooms);
}

/* ---- ranks as processes ---- */

static pid_t spawn_rank(uint32_t rank, int die_at)
{
    char rank_text[16], die_text[16], log[128];
    snprintf(rank_text, sizeof rank_text, "%u", rank);
    snprintf(die_text, sizeof die_text, "%d", die_at);
    snprintf(log, sizeof log, "%s/rank-%u.log", cluster.folder, rank);
    const char *const argv[] = { "/proc/self/exe", "--rank", cluster.address,
                                 rank_text,        die_text, NULL };
    return cluster_spawn(argv, log);
}

static int be_rank(char **argv)
{
    struct tiles_worker worker = { .endpoint = argv[2],
                                   .mesh = mesh,
                                   .rank = (uint32_t)atoi(argv[3]),
                                   .until_step = STEPS,
                                   .restart_at = (uint64_t)atoi(argv[4]),
                                   .by_signal = true };
    tiles_worker_run(&worker);
    if (worker.error[0] == 0) return 0;
    fprintf(stderr, "%s\n", worker.error);
    return 1;
}

TEST_EACH(a_rank_killed_in_mid_round_and_started_again_changes_no_bit, 0, 2)
{
    pid_t ranks[4];
    const uint32_t dying = 1 + (uint32_t)_i;
    start(2);
    for (uint32_t r = 0; r < 4; r++) ranks[r] = spawn_rank(r, r == dying ? 4 : 0);
    ck_assert_int_eq(cluster_wait(ranks[dying], CLUSTER_WAIT_MS), 128 + SIGKILL);
    ranks[dying] = spawn_rank(dying, 0);
    for (uint32_t r = 0; r < 4; r++)
        ck_assert_msg(cluster_wait(ranks[r], CLUSTER_WAIT_MS) == 0, "see %s", cluster.folder);
    tiles_check_state(cluster.address, NULL, mesh, STEPS);
    stop();
}

TEST(a_coordinator_killed_and_started_again_hears_of_the_tiles_again)
{
    struct tiles_run run;
    start(3);
    tiles_run_start(&run, &(struct tiles_worker) {
                              .endpoint = cluster.address, .mesh = mesh, .until_step = STEPS });
    for (uint64_t step = 2; step <= 6; step += 4) {
        tiles_run_await(&run, step);
        restart_coordinator();
    }
    tiles_run_join(&run);
    tiles_check_state(cluster.address, NULL, mesh, STEPS);
    stop();
}

TEST_EACH(connections_that_break_change_no_bit, 0, 2)
{
    const struct cairn_fabric_mem_options fabric = { .seed = (uint64_t)_i + 20,
                                                     .delay_max_ticks = 4,
                                                     .duplicate_permille = 20,
                                                     .cut_permille = 1,
                                                     .cut_one_permille = 2 };
    struct rooms rooms;
    rooms_open(&rooms, 2, &fabric);
    tiles_train(&(struct tiles_worker) {
        .endpoint = rooms.address, .hub = rooms.hub, .mesh = mesh, .until_step = STEPS });
    tiles_check_state(rooms.address, rooms.hub, mesh, STEPS);
    rooms_close(&rooms);
}

SUITE(60);

int main(int argc, char **argv)
{
    return argc == 5 && strcmp(argv[1], "--rank") == 0 ? be_rank(argv) : suite_main();
}
