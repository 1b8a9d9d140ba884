/* The same bits when things die: rounds are abandoned and computed again, and the content root is the
 * one of the undisturbed run. `test_bits_faults --worker ENDPOINT RANK DIE_AT` is a worker. */
#include "tests/e2e/crew.h"
#include "tests/support/rooms.h"
#include "tests/e2e/scene.h"

static struct crew both(void)
{
    return (
        struct crew) { .job = &bits_job, .endpoint = cluster.address, .until_step = BITS_STEPS };
}

/* Each of the two, in its turn, in the middle of a round with one micro-batch and one with three. */
static const struct death {
    uint32_t rank;
    uint64_t step;
} deaths[] = { { 0, 20 }, { 1, 21 }, { 1, 24 } };

TEST_EACH(a_worker_killed_in_mid_round_and_started_again_changes_no_bit, 0, 3)
{
    const struct crew crew = both();
    start(3);
    crew_kill_in_mid_round(&cluster, &crew, deaths[_i].rank, deaths[_i].step);
    crew_check_root(cluster.address, &bits_job, BITS_GOLDEN_ROOT);
}

TEST(a_coordinator_killed_and_started_again_changes_no_bit)
{
    static const uint64_t steps[] = { 8, 22, 35 };
    struct crew_run run;
    start(3);
    struct crew crew = both();
    crew.shuffle = 99;
    crew_start(&run, &crew);
    for (int i = 0; i < 3; i++) {
        crew_await(&run, steps[i]);
        restart_coordinator();
    }
    crew_join(&run);
    crew_check_root(cluster.address, &bits_job, BITS_GOLDEN_ROOT);
}

TEST_EACH(connections_that_break_change_no_bit, 0, 3)
{
    const struct cairn_fabric_mem_options fabric = { .seed = (uint64_t)_i + 10,
                                                     .delay_max_ticks = 4,
                                                     .duplicate_permille = 20,
                                                     .cut_permille = 1,
                                                     .cut_one_permille = 2 };
    struct rooms rooms;
    struct crew crew = both();
    rooms_open(&rooms, 3, &fabric);
    crew.endpoint = rooms.address;
    crew.hub = rooms.hub;
    crew_train(&crew);
    crew_check_root(rooms.address, &bits_job, BITS_GOLDEN_ROOT);
    rooms_close(&rooms);
}

SUITE(60, .tear_down = stop);

int main(int argc, char **argv)
{
    return crew_main(argc, argv, both());
}
