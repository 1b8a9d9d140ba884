/* Tensor-parallel tiles: whatever the mesh and the shards, parameters and moments are element by element,
 * bit for bit those of one process that has whole tensors. */

#include "tests/e2e/crew.h"
#include "tests/e2e/scene.h"
#include "tests/support/rooms.h"

enum { STEPS = 3 };

static const struct cairn_fabric_mem_options fabrics[] = {
    { .seed = 1 },
    { .seed = 2, .delay_max_ticks = 8, .duplicate_permille = 50 },
    { .seed = 3, .delay_max_ticks = 4, .duplicate_permille = 100, .eager_bytes = 4096 },
};

/* Trains in rooms of so many shards; the root, if it is asked for. */
static void train_in_rooms(struct crew_mesh mesh, uint32_t shards, bool rank_0_puts,
                           char root_out[65])
{
    struct rooms rooms;
    rooms_open(&rooms, shards, &fabrics[(mesh.tp + mesh.dp) % 3]);
    const struct crew crew = { .job = &tiles_job,
                               .endpoint = rooms.address,
                               .hub = rooms.hub,
                               .mesh = mesh,
                               .until_step = STEPS,
                               .rank_0_puts = rank_0_puts };
    crew_train(&crew);
    crew_check_state(&crew, CREW_IN_BOXES);
    if (root_out != NULL) crew_root(rooms.address, &tiles_job, root_out);
    rooms_close(&rooms);
}

TEST_EACH(tp_and_dp_of_1_to_4_give_the_bits_of_whole_tensors, 0, 16)
{
    const struct crew_mesh mesh = { .tp = 1 + (uint32_t)_i % 4, .dp = 1 + (uint32_t)_i / 4 };
    train_in_rooms(mesh, 1 + (uint32_t)(_i + _i / 5) % 5, _i % 2 == 1, NULL);
}

TEST(the_content_root_is_the_same_for_1_to_5_shards)
{
    const struct crew_mesh mesh = { .tp = 3, .dp = 2 };
    char first[65], root[65];
    train_in_rooms(mesh, 1, false, first);
    for (uint32_t shards = 2; shards <= 5; shards++) {
        train_in_rooms(mesh, shards, shards == 3, root);
        ck_assert_str_eq(root, first);
    }
}

TEST(micro_batches_that_ranks_add_up_give_the_bits_of_that)
{
    train_in_rooms((struct crew_mesh) { .tp = 2, .dp = 2, .stage = CAIRN_STAGE(1) }, 3, false,
                   NULL);
}

TEST(ranks_that_declare_another_mesh_go_on_from_there)
{
    const struct crew_mesh before = { .tp = 4, .dp = 1 }, after = { .tp = 2, .dp = 2 };
    struct rooms rooms;
    struct crew_reference ref;
    rooms_open(&rooms, 2, &fabrics[0]);
    struct crew crew = { .job = &tiles_job,
                         .endpoint = rooms.address,
                         .hub = rooms.hub,
                         .mesh = before,
                         .until_step = 2 };
    crew_train(&crew);
    crew.mesh = after;
    crew.until_step = 4;
    crew_train(&crew);
    crew_reference_open(&ref, &tiles_job, before);
    crew_reference_run(&ref, 2);
    ref.mesh = after;
    crew_reference_run(&ref, 4);
    crew_check(rooms.address, rooms.hub, &ref, CREW_IN_BOXES);
    crew_reference_close(&ref);
    rooms_close(&rooms);
}

TEST(real_daemons_give_the_same_bits)
{
    const struct crew crew = { .job = &tiles_job,
                               .endpoint = cluster.address,
                               .mesh = { .tp = 2, .dp = 2 },
                               .until_step = STEPS };
    start(2);
    crew_train(&crew);
    crew_check_state(&crew, CREW_IN_BOXES);
}

SUITE(60, .tear_down = stop);
