/* What is beside rounds while a layout changes: leases, writes, and tensors that no round changes. */
#include <inttypes.h>
#include <check.h>
#include <stdlib.h>
#include <string.h>

#include "server/shard/relay.h"
#include "tests/support/move_stage.h"
#include "tests/support/suite.h"

/* ---- buffers and blobs ---- */

static const struct stage_run more_before[] = { { T_BIAS, 0, 1 },   { T_EMB, 0, 3 },
                                                { T_FROZEN, 0, 3 }, { T_WEIGHT, 0, 7 },
                                                { T_WEIGHT, 1, 3 }, { T_BUFFER, 0, 5 },
                                                { T_BLOB, 0, 8 },   { 0, 0, 0 } };
/* The tail of the buffer goes, and the head of the blob; then the middle of what is left of that. */
static const struct stage_run more_after[] = { { T_BIAS, 0, 1 },   { T_EMB, 0, 3 },
                                               { T_FROZEN, 0, 3 }, { T_WEIGHT, 0, 7 },
                                               { T_WEIGHT, 1, 3 }, { T_BUFFER, 0, 2 },
                                               { T_BUFFER, 1, 3 }, { T_BLOB, 1, 3 },
                                               { T_BLOB, 0, 5 },   { 0, 0, 0 } };
static const struct stage_run more_middle[] = {
    { T_BIAS, 0, 1 },   { T_EMB, 0, 3 },    { T_FROZEN, 0, 3 }, { T_WEIGHT, 0, 7 },
    { T_WEIGHT, 1, 3 }, { T_BUFFER, 0, 2 }, { T_BUFFER, 1, 3 }, { T_BLOB, 1, 3 },
    { T_BLOB, 0, 1 },   { T_BLOB, 1, 2 },   { T_BLOB, 0, 2 },   { 0, 0, 0 }
};

static uint64_t check_tensor(const struct shard_job *job, uint32_t tensor)
{
    uint64_t elems = 0;
    for (size_t e = 0; e < job->view->table.map.extent_count; e++) {
        const struct local_extent *extent = &job->view->table.map.extents[e];
        if (extent->tensor != tensor) continue;
        const void *have = stage_extent(job, CAIRN_PLANE_PARAM, e);
        elems += extent->elem_count;
        for (uint64_t i = 0; i < extent->elem_count; i++) {
            const uint64_t elem = extent->first_elem + i;
            const bool same = tensor == T_BLOB
                                  ? ((const uint8_t *)have)[i] == scene_byte(elem)
                                  : ((const float *)have)[i] == scene_initial(tensor, elem);
            ck_assert_msg(same, "tensor %u [%" PRIu64 "] of shard %u", tensor, elem,
                          job->view->table.map.shard);
        }
    }
    return elems;
}

static void check_more(void)
{
    ck_assert_uint_eq(check_tensor(stage_job(0), T_BUFFER) + check_tensor(stage_job(1), T_BUFFER),
                      20000);
    ck_assert_uint_eq(check_tensor(stage_job(0), T_BLOB) + check_tensor(stage_job(1), T_BLOB),
                      30000);
}

TEST(buffers_and_blobs_move_like_all_else)
{
    static const struct stage_run more_back[] = {
        { T_BIAS, 0, 1 },   { T_EMB, 0, 3 },    { T_FROZEN, 0, 3 }, { T_WEIGHT, 0, 7 },
        { T_WEIGHT, 1, 3 }, { T_BUFFER, 0, 2 }, { T_BUFFER, 0, 3 }, { T_BLOB, 0, 3 },
        { T_BLOB, 0, 1 },   { T_BLOB, 0, 2 },   { T_BLOB, 0, 2 },   { 0, 0, 0 }
    };
    stage_open_more(more_before);
    check_more();
    const uint64_t state = stage_job(0)->memory.state;
    stage_move(more_after);
    check_more();
    stage_move(more_middle);
    check_more();
    if (stage_is_on_host(0)) ck_assert_uint_lt(stage_job(0)->memory.state, state);
    stage_move(more_back);
    check_more();
    ck_assert_uint_eq(stage_job(0)->memory.state, state);
    stage_close();
}

SUITE(60);

/* ---- tensors without update, and terms ---- */

static uint64_t check_frozen(void)
{
    const uint64_t moved = check_tensor(stage_job(1), T_FROZEN);
    ck_assert_uint_eq(check_tensor(stage_job(0), T_FROZEN) + moved, 20 * 500);
    return moved;
}

TEST(a_tensor_that_has_no_update_moves_like_all_else)
{
    stage_round();
    ck_assert_uint_eq(check_frozen(), 0);
    stage_move(stage_half);
    ck_assert_uint_gt(check_frozen(), 0);
    stage_round(); // its new owner publishes it
    stage_check_version(stage.step, stage_half, &stage.model);
    stage_move(stage_back);
    stage_round();
    ck_assert_uint_eq(check_frozen(), 0);
    stage_check_version(stage.step, stage_back, &stage.model);
}

/* To each shard the spec that it has, as of that revision. */
static void amend(uint64_t revision)
{
    for (uint32_t i = 0; i < stage.count; i++) {
        struct scene *scene = &stage.shard[i];
        uint8_t *spec;
        size_t spec_bytes;
        scene->spec.revision = revision;
        ck_assert_int_eq(spec_pack(&scene->spec, &spec, &spec_bytes), CAIRN_OK);
        scene_tell(scene, 77, JobTerms, .job = SCENE_JOB, .generation = 1, .revision = revision,
                   .spec_bytes = spec_bytes);
        scene_say_pages(scene, 77, CAIRN_PAGE_SPEC, spec, spec_bytes);
        free(spec);
        scene_done(scene, 77);
        ck_assert_uint_eq(stage_job(i)->terms.revision, revision);
    }
}

TEST(terms_are_amended_at_any_point_of_a_slice)
{
    stage_round();
    stage_prepare(stage_half);
    amend(2);
    stage_round();
    stage_force(stage_half);
    amend(3);
    stage_resolve();
    amend(4);
    stage_hear_moved();
    stage_settle();
    stage_round();
    stage_check();
    for (uint32_t i = 0; i < stage.count; i++) ck_assert_uint_eq(stage_job(i)->terms.revision, 4);
}

/* ---- state that is fetched ---- */

TEST(state_that_is_still_to_come_is_fetched_when_it_is_here)
{
    stage_begin_taking();
    struct scene *scene = &stage.shard[1];
    const uint64_t chunk = scene_chunk_of(scene, T_EMB);
    const struct chunk_place place = shard_map_chunk(&scene->map, chunk);
    scene_fetch(scene, 1, chunk, CAIRN_PLANE_EXP_AVG, 1, stage.step);
    scene_settle(scene);
    ck_assert_uint_eq(scene_waiting(scene, CAIRN_CHUNK_DATA), 0);
    ck_assert_uint_eq(scene_waiting(scene, CAIRN_CHUNK_NAK), 0);
    stage_job(0)->state = CAIRN_JOB_SERVING;
    const struct scene_note *data = scene_note(scene, CAIRN_CHUNK_DATA);
    const struct local_extent *all = shard_map_find(&stage.whole.map, T_EMB, 0);
    ck_assert_mem_eq(data->payload, stage.model.exp_avg + all->local_elem + place.first_elem,
                     place.elem_count * sizeof(float));
}

/* ---- relays ---- */

TEST(a_relay_ends_as_the_layout_changes)
{
    stage_round();
    scene_relay(&stage.shard[0], stage.shard[1].shard->fabric, 2, 1, 1);
    ck_assert_ptr_nonnull(job_relay(stage_job(0)));
    stage_prepare(stage_half);
    ck_assert_ptr_nonnull(job_relay(stage_job(0)));
    stage_force(stage_half);
    ck_assert_ptr_null(job_relay(stage_job(0)));
    stage_complete();
    stage_round();
    stage_check();
}

/* ---- leases ---- */

TEST(a_leased_version_is_fetched_by_the_layout_that_it_was_published_in)
{
    struct model then = { .scene = NULL };
    stage_round();
    model_copy(&then, &stage.model);
    for (uint32_t i = 0; i < stage.count; i++) scene_lease(&stage.shard[i], 7, 1, 1);
    stage_round();
    stage_move(stage_half);
    for (int i = 0; i < 3; i++) {
        stage_round();
        stage_check_version(1, stage_before, &then);
        stage_check_version(stage.step, stage_half, &stage.model);
    }
    stage_move(stage_back);
    stage_round();
    stage_check_version(1, stage_before, &then);
    stage_check();
    model_close(&then);
}

/* ---- writes ---- */

/* Writes nines to the first chunk of frozen, where a shard has it. */
static void put_nines(struct scene *scene, float *nines)
{
    uint64_t chunk = 0;
    while (chunk < scene->map.chunk_count && shard_map_chunk(&scene->map, chunk).tensor != T_FROZEN)
        chunk++;
    if (chunk == scene->map.chunk_count) return; // it has nothing of it
    const struct chunk_place place = shard_map_chunk(&scene->map, chunk);
    struct chunk_header put = scene_chunk_header(scene, CAIRN_CHUNK_PUT, 1, chunk);
    put.round = stage.round;
    scene_send(scene, &put, nines, (size_t)place.elem_count * sizeof *nines);
    scene_note(scene, CAIRN_CHUNK_ACK);
    const struct local_extent *all = shard_map_find(&stage.whole.map, T_FROZEN, 0);
    for (uint64_t i = 0; i < place.elem_count; i++)
        stage.model.param[all->local_elem + place.first_elem + i] = 9;
}

static void decide_write(void)
{
    Cairn__Decision write = {
        .kind = CAIRN_DECISION_WRITE, .round = stage.round, .generation = 2, .step = stage.step
    };
    for (uint32_t i = 0; i < stage.count; i++)
        scene_say_decision(&stage.shard[i], CAIRN_MSG_DECIDE, &write);
    for (uint32_t i = 0; i < stage.count; i++) scene_hear(&stage.shard[i], CAIRN_MSG_PUBLISHED);
}

TEST(a_write_of_what_is_still_to_come_waits_for_it_and_takes_effect)
{
    float *nines = malloc(SCENE_CHUNK_LEAVES * CAIRN_LEAF_ELEMS * sizeof *nines);
    for (size_t i = 0; i < SCENE_CHUNK_LEAVES * CAIRN_LEAF_ELEMS; i++) nines[i] = 9;
    stage_round();
    stage_begin_move(stage_half);
    stage.round++;
    for (uint32_t i = 0; i < stage.count; i++)
        scene_write_open(&stage.shard[i], stage.round, 1, stage.step);
    for (uint32_t i = 0; i < stage.count; i++) put_nines(&stage.shard[i], nines);
    for (uint32_t i = 0; i < stage.count; i++) scene_write_commit(&stage.shard[i]);
    for (uint32_t i = 0; i < stage.count; i++) scene_hear(&stage.shard[i], CAIRN_MSG_REDUCED);
    decide_write();
    stage_hear_moved();
    stage_settle();
    stage_check();
    free(nines);
}

SUITE(60, stage_open_two, stage_close);
