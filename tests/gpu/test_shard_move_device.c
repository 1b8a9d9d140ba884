/* Memory of a card while state comes to it and goes off it. What moves has the same bits: the tests of moves
 * run once more with state on the card (tests/gpu/CMakeLists.txt). */
#include <check.h>
#include <stdlib.h>
#include <string.h>

#include "server/shard/memory.h"
#include "tests/support/emulated.h"
#include "tests/support/move_stage.h"
#include "tests/support/suite.h"

static struct emulated open_card(const char *offload)
{
    const struct emulated card = emulated_open("quiet=1");
    ck_assert_int_eq(setenv("CAIRN_TEST_BACKEND", "cuda", 1), 0);
    ck_assert_int_eq(setenv("CAIRN_TEST_OFFLOAD", offload, 1), 0);
    return card;
}

static struct home *home_of(uint32_t shard)
{
    return stage.shard[shard].shard->device.home;
}

/* ---- what is counted is what is taken ---- */

static uint64_t released(void)
{
    for (uint32_t i = 0; i < stage.count; i++)
        while (!LIST_EMPTY(&stage.shard[i].shard->memory.releases)) scene_settle(&stage.shard[i]);
    return home_free_bytes(home_of(0)); // the same card's
}

static uint64_t counted(void)
{
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < stage.count; i++) bytes += stage_job(i)->memory.device;
    return bytes;
}

TEST(a_move_takes_of_the_card_what_is_counted_and_what_was_given_is_the_cards)
{
    (void)open_card("0");
    stage_open("mem");
    stage_round();
    const uint64_t all = released() + counted();
    const uint64_t had = stage_job(1)->memory.device;
    stage_prepare(stage_half);
    ck_assert_uint_gt(stage_job(1)->memory.device, had);
    ck_assert_uint_eq(released() + counted(), all);
    stage_force(stage_half);
    stage_complete();
    ck_assert_uint_eq(released() + counted(), all);
    for (int i = 0; i < 3; i++) stage_round(); // copies follow
    ck_assert_uint_eq(released() + counted(), all);
    stage_move(stage_back);
    ck_assert_uint_eq(released() + counted(), all);
    for (int i = 0; i < 3; i++) stage_round();
    ck_assert_uint_eq(stage_job(1)->memory.device, had);
    stage_check();
    stage_close();
}

TEST(a_layout_that_is_not_wanted_leaves_nothing_on_the_card)
{
    (void)open_card("0");
    stage_open("mem");
    stage_round();
    const uint64_t had = stage_job(1)->memory.device, free_bytes = released();
    stage_prepare(stage_half);
    for (uint32_t i = 0; i < stage.count; i++) {
        scene_tell(&stage.shard[i], 0, PartUnprepare, .job = SCENE_JOB, .layout = 2);
        scene_settle(&stage.shard[i]);
    }
    ck_assert_uint_eq(stage_job(1)->memory.device, had);
    ck_assert_uint_eq(released(), free_bytes);
    stage_close();
}

static void expect_refused(uint32_t shard, cairn_status status, const char *word)
{
    struct scene *scene = &stage.shard[shard];
    const uint32_t request = stage_say_prepare(scene, stage_half, 2, 2);
    scene_refused(scene, request, status, word);
}

TEST(what_has_no_room_on_the_card_is_refused_with_the_numbers_and_nothing_changes)
{
    const struct emulated card = open_card("0");
    stage_open("mem");
    stage_round();
    emulated_set(&card, "others=8G");
    expect_refused(1, CAIRN_ERR_NO_MEMORY, "of Emulated card 0");
    emulated_set(&card, "others=0");
    stage_round();
    stage_move(stage_half);
    stage_round();
    stage_check();
    stage_close();
}

TEST(copies_go_on_in_host_memory_where_the_card_has_no_room_for_them)
{
    const struct emulated card = open_card("0");
    stage_open("mem");
    stage_round();
    stage_move(stage_half);
    emulated_set(&card, "others=8G");
    for (int i = 0; i < 3; i++) stage_round();
    stage_check();
    stage_check_version(stage.step, stage_half, &stage.model);
    stage_close();
}

TEST(what_lies_in_both_homes_does_not_move)
{
    (void)open_card("0.5");
    stage_open("mem");
    expect_refused(0, CAIRN_ERR_UNSUPPORTED, "partly on a device");
    stage_round();
    stage_check();
    stage_close();
}

/* ---- parked ---- */

static void park(bool parked)
{
    for (uint32_t i = 0; i < stage.count; i++) {
        scene_tell(&stage.shard[i], 9, PartPark, .job = SCENE_JOB, .parked = parked);
        scene_done(&stage.shard[i], 9);
        ck_assert(stage_job(i)->planes.parked == parked);
    }
}

TEST(what_came_to_the_card_is_parked_and_comes_back)
{
    (void)open_card("0");
    stage_open("mem");
    stage_round();
    stage_move(stage_half);
    stage_round();
    stage_join(stage_half); // one that has nothing
    stage_fence(stage.layout);
    stage_resolve();
    stage_hear_moved();
    const uint64_t all = released() + counted();
    park(true);
    ck_assert_uint_eq(counted(), 0);
    ck_assert_uint_eq(released(), all);
    stage_check();
    expect_refused(1, CAIRN_ERR_BUSY, "ask again");
    park(false);
    ck_assert_uint_eq(released() + counted(), all);
    stage_move(stage_out);
    stage_round();
    stage_check();
    stage_close();
}

/* ---- segments ---- */

/* A view of shard 0, which has so many last quanta of one frozen tensor [2560][16384]: 2.5 segments. */
static struct shard_view *view_of_last(uint64_t quanta)
{
    struct layout_tensor tensor = {
        .name = "big", .unit = "big", .shape = { 2, { 2560, 16384 } }, .elem_bytes = 4
    };
    struct shard_view *view = calloc(1, sizeof *view);
    const uint64_t all = geometry_of(&tensor.shape).quantum_count;
    struct extent *extents = calloc(2, sizeof *extents); // the layout's
    size_t count = 0;
    if (quanta < all) extents[count++] = (struct extent) { 0, 1, 0, all - quanta };
    extents[count++] = (struct extent) { 0, 0, all - quanta, quanta };
    view->refs = 1;
    ck_assert_int_eq(layout_make(&tensor, 1, 2, 1, extents, count, &view->layout), CAIRN_OK);
    ck_assert_int_eq(shard_map_init(&view->table.map, view->layout, 0, 16), CAIRN_OK);
    view->forms = calloc(2, sizeof *view->forms);
    view->forms[0] =
        (struct form) { .wire = CAIRN_F32, .master = CAIRN_F32, .planes = 1u << CAIRN_PLANE_PARAM };
    return view;
}

TEST(a_segment_in_which_nothing_is_left_is_the_cards_and_what_stays_does_not_move)
{
    (void)open_card("0");
    static struct scene scene;
    scene_open(&scene, "mem", 1, 0);
    struct home *home = scene.shard->device.home;
    struct state_planes planes = { .host_from = CAIRN_PLANES_ALL };
    struct sentence why;
    uint64_t bytes;
    const struct shape shape = { 2, { 2560, 16384 } };
    const uint64_t quanta = geometry_of(&shape).quantum_count, free_bytes = home_free_bytes(home);
    struct shard_view *all = view_of_last(quanta), *last = view_of_last(quanta / 5);
    ck_assert_int_eq(shard_view_places_open(all, NULL, planes.host_from, &bytes), CAIRN_OK);
    ck_assert_int_eq(shard_view_area_add(all, &planes, home, bytes, &why), CAIRN_OK);
    ck_assert_uint_eq(home_free_bytes(home), free_bytes - ((uint64_t)160 << 20));
    ck_assert_int_eq(shard_view_places_open(last, all, planes.host_from, &bytes), CAIRN_OK);
    ck_assert_uint_eq(bytes, 0);
    const uint64_t first = all->table.map.elem_count - last->table.map.elem_count;
    ck_assert_ptr_eq(shard_view_at(last, &planes, CAIRN_PLANE_PARAM, 0, 0),
                     shard_view_at(all, &planes, CAIRN_PLANE_PARAM, 0, first));
    const struct shard_view *both[] = { all, last }, *one[] = { NULL, last };
    shard_views_keep(both, 2, &planes, scene.shard);
    ck_assert_uint_eq(areas_bytes(&planes), (uint64_t)160 << 20);
    shard_views_keep(one, 2, &planes, scene.shard);
    ck_assert_uint_eq(areas_bytes(&planes), (uint64_t)32 << 20);
    ck_assert_uint_eq(home_free_bytes(home), free_bytes - ((uint64_t)32 << 20));
    shard_views_keep(one, 1, &planes, scene.shard);
    ck_assert_ptr_null(planes.areas);
    while (!LIST_EMPTY(&scene.shard->memory.releases)) scene_settle(&scene);
    ck_assert_uint_eq(home_free_bytes(home), free_bytes);
    shard_view_unref(all);
    shard_view_unref(last);
    scene_close(&scene);
}

SUITE(60);
