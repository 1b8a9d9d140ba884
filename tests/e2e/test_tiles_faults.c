/* Tiles when ranks, coordinators and connections die: what is declared is declared again, and the bits
 * stay those of the reference. `test_tiles_faults --worker ENDPOINT RANK DIE_AT` is a rank. */
#include "tests/e2e/crew.h"
#include "tests/e2e/scene.h"
#include "tests/support/rooms.h"

static struct crew ranks(void)
{
    return (struct crew) { .job = &tiles_job,
                           .endpoint = cluster.address,
                           .mesh = { .tp = 2, .dp = 2 },
                           .until_step = 9 };
}

static void train_in_rooms(struct crew crew, uint32_t shards,
                           const struct cairn_fabric_mem_options *fabric)
{
    struct rooms rooms;
    rooms_open(&rooms, shards, fabric);
    crew.endpoint = rooms.address;
    crew.hub = rooms.hub;
    crew_train(&crew);
    crew_check_state(&crew, CREW_IN_BOXES);
    rooms_close(&rooms);
}

TEST_EACH(a_rank_that_comes_again_declares_again_and_goes_on, 0, 2)
{
    struct crew crew = ranks();
    crew.die_at = 3 + (uint64_t)_i;
    crew.comes_again = true;
    train_in_rooms(crew, 3, &(struct cairn_fabric_mem_options) { .seed = 5 });
}

TEST_EACH(a_rank_killed_in_mid_round_and_started_again_changes_no_bit, 0, 2)
{
    const struct crew crew = ranks();
    start(2);
    crew_kill_in_mid_round(&cluster, &crew, 1 + (uint32_t)_i, 4);
    crew_check_state(&crew, CREW_IN_BOXES);
}

TEST(a_coordinator_killed_and_started_again_hears_of_the_tiles_again)
{
    const struct crew crew = ranks();
    struct crew_run run;
    start(3);
    crew_start(&run, &crew);
    for (uint64_t step = 2; step <= 6; step += 4) {
        crew_await(&run, step);
        restart_coordinator();
    }
    crew_join(&run);
    crew_check_state(&crew, CREW_IN_BOXES);
}

TEST_EACH(connections_that_break_change_no_bit, 0, 2)
{
    train_in_rooms(ranks(), 2,
                   &(struct cairn_fabric_mem_options) { .seed = (uint64_t)_i + 20,
                                                        .delay_max_ticks = 4,
                                                        .duplicate_permille = 20,
                                                        .cut_permille = 1,
                                                        .cut_one_permille = 2 });
}

SUITE(60, .tear_down = stop);

int main(int argc, char **argv)
{
    return crew_main(argc, argv, ranks());
}
