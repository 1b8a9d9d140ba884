/* What is beside rounds while a layout changes: leases, writes, and tensors that no round changes. */
#include <inttypes.h>
#include <check.h>
#include <stdlib.h>
#include <string.h>

#include "server/shard/relay.h"
#include "tests/support/move_stage.h"
#include "tests/support/pages.h"
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

/* ---- tensors without update, and terms ---- */

static uint64_t check_frozen(void)
{
    const uint64_t moved = check_tensor(stage_job(1), T_FROZEN);
    ck_assert_uint_eq(check_tensor(stage_job(0), T_FROZEN) + moved, 20 * 500);
    return moved;
}

TEST(a_tensor_that_has_no_update_moves_like_all_else)
{
    stage_open("mem");
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
    stage_close();
}

static void send_page(void *context, const Cairn__Page *page)
{
    scene_say(context, CAIRN_MSG_PAGE, 77, &page->base);
}

/* To each shard the spec that it has, as of that revision. */
static void amend(uint64_t revision)
{
    for (uint32_t i = 0; i < stage.count; i++) {
        struct scene *scene = &stage.shard[i];
        Cairn__JobTerms terms = CAIRN__JOB_TERMS__INIT;
        uint8_t *spec;
        size_t spec_bytes;
        scene->spec.revision = revision;
        ck_assert_int_eq(spec_pack(&scene->spec, &spec, &spec_bytes), CAIRN_OK);
        terms.job = SCENE_JOB;
        terms.generation = 1;
        terms.revision = revision;
        terms.spec_bytes = spec_bytes;
        scene_say(scene, CAIRN_MSG_JOB_TERMS, 77, &terms.base);
        pages_each(CAIRN_PAGE_SPEC, spec, spec_bytes, send_page, scene);
        free(spec);
        ck_assert_uint_eq(scene_hear(scene, CAIRN_MSG_DONE).request, 77);
        ck_assert_uint_eq(stage_job(i)->terms.revision, revision);
    }
}

TEST(terms_are_amended_at_any_point_of_a_slice)
{
    stage_open("mem");
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
    stage_close();
}

/* ---- state that is fetched ---- */

TEST(state_that_is_still_to_come_is_fetched_when_it_is_here)
{
    stage_begin_taking();
    struct scene *scene = &stage.shard[1];
    uint64_t chunk = 0;
    while (shard_map_chunk(&scene->map, chunk).tensor != T_EMB) chunk++;
    const struct chunk_place place = shard_map_chunk(&scene->map, chunk);
    struct chunk_header fetch = scene_chunk_header(scene, CAIRN_CHUNK_FETCH, 1, chunk);
    fetch.plane = CAIRN_PLANE_EXP_AVG;
    fetch.generation = 1;
    fetch.step = stage.step;
    scene_send(scene, &fetch, NULL, 0);
    scene_settle(scene);
    ck_assert_uint_eq(scene_waiting(scene, CAIRN_CHUNK_DATA), 0);
    ck_assert_uint_eq(scene_waiting(scene, CAIRN_CHUNK_NAK), 0);
    stage_job(0)->state = CAIRN_JOB_SERVING;
    const struct scene_note *data = scene_note(scene, CAIRN_CHUNK_DATA);
    const struct local_extent *all = shard_map_find(&stage.whole.map, T_EMB, 0);
    ck_assert_mem_eq(data->payload, stage.model.exp_avg + all->local_elem + place.first_elem,
                     place.elem_count * sizeof(float));
    stage_close();
}

/* ---- relays ---- */

TEST(a_relay_ends_as_the_layout_changes)
{
    uint64_t members[] = { 1, 2 };
    Cairn__ShardInfo owner = CAIRN__SHARD_INFO__INIT, *owners[] = { &owner };
    Cairn__RelaySet set = CAIRN__RELAY_SET__INIT;
    stage_open("mem");
    stage_round();
    owner.index = 1;
    owner.name = wire_text("s1");
    owner.fabric_address.data = (uint8_t *)fabric_own_address(stage.shard[1].shard->fabric,
                                                              &owner.fabric_address.len);
    set.job = SCENE_JOB;
    set.relay = 900;
    set.token = 9000;
    set.n_members = 2;
    set.members = members;
    set.n_owners = 1;
    set.owners = owners;
    scene_say(&stage.shard[0], CAIRN_MSG_RELAY_SET, 9, &set.base);
    ck_assert_uint_eq(scene_hear(&stage.shard[0], CAIRN_MSG_DONE).request, 9);
    ck_assert_ptr_nonnull(job_relay(stage_job(0)));
    stage_prepare(stage_half);
    ck_assert_ptr_nonnull(job_relay(stage_job(0)));
    stage_force(stage_half);
    ck_assert_ptr_null(job_relay(stage_job(0)));
    stage_complete();
    stage_round();
    stage_check();
    stage_close();
}

/* ---- leases ---- */

static void keep(uint32_t shard, uint64_t step)
{
    Cairn__LeaseKeep message = CAIRN__LEASE_KEEP__INIT;
    message.job = SCENE_JOB;
    message.lease = 7;
    message.generation = 1;
    message.step = step;
    message.ttl_ms = 60000;
    scene_say(&stage.shard[shard], CAIRN_MSG_LEASE_KEEP, 40, &message.base);
    ck_assert_uint_eq(scene_hear(&stage.shard[shard], CAIRN_MSG_DONE).request, 40);
}

TEST(a_leased_version_is_fetched_by_the_layout_that_it_was_published_in)
{
    struct model then = { .scene = NULL };
    stage_open("mem");
    stage_round();
    model_copy(&then, &stage.model);
    for (uint32_t i = 0; i < stage.count; i++) keep(i, 1);
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
    stage_close();
}

/* ---- writes ---- */

/* Of all that has to be said in a write, in which nothing but the first chunk of frozen is written: with
 * nines. */
static void open_write(struct scene *scene)
{
    uint64_t writer = 1;
    Cairn__RoundOpen open = CAIRN__ROUND_OPEN__INIT;
    open.job = SCENE_JOB;
    open.epoch = stage.epoch;
    open.round = scene->round = stage.round;
    open.generation = 1;
    open.step = stage.step;
    open.n_members = 1;
    open.members = &writer;
    open.write = true;
    scene_say(scene, CAIRN_MSG_ROUND_OPEN, 0, &open.base);
    scene_note(scene, CAIRN_CHUNK_GRANT);
}

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

static void commit_write(struct scene *scene)
{
    static const uint32_t absent[] = { T_BIAS, T_EMB, T_WEIGHT };
    struct chunk_header end = scene_header(scene, CAIRN_CHUNK_MICRO_END, 1);
    struct chunk_header last = scene_header(scene, CAIRN_CHUNK_COMMIT, 1);
    scene_send(scene, &end, absent, sizeof absent);
    last.value = 1;
    scene_send(scene, &last, NULL, 0);
}

static void decide_write(void)
{
    Cairn__Decision write = CAIRN__DECISION__INIT;
    Cairn__Decide decide = CAIRN__DECIDE__INIT;
    write.kind = CAIRN_DECISION_WRITE;
    write.round = stage.round;
    write.generation = 2;
    write.step = stage.step;
    decide.job = SCENE_JOB;
    decide.epoch = stage.epoch;
    decide.decision = &write;
    for (uint32_t i = 0; i < stage.count; i++)
        scene_say(&stage.shard[i], CAIRN_MSG_DECIDE, 0, &decide.base);
    for (uint32_t i = 0; i < stage.count; i++) scene_hear(&stage.shard[i], CAIRN_MSG_PUBLISHED);
}

TEST(a_write_of_what_is_still_to_come_waits_for_it_and_takes_effect)
{
    float *nines = malloc(SCENE_CHUNK_LEAVES * CAIRN_LEAF_ELEMS * sizeof *nines);
    for (size_t i = 0; i < SCENE_CHUNK_LEAVES * CAIRN_LEAF_ELEMS; i++) nines[i] = 9;
    stage_open("mem");
    stage_round();
    stage_prepare(stage_half);
    stage_force(stage_half);
    stage_resolve();
    stage.round++;
    for (uint32_t i = 0; i < stage.count; i++) open_write(&stage.shard[i]);
    for (uint32_t i = 0; i < stage.count; i++) put_nines(&stage.shard[i], nines);
    for (uint32_t i = 0; i < stage.count; i++) commit_write(&stage.shard[i]);
    for (uint32_t i = 0; i < stage.count; i++) scene_hear(&stage.shard[i], CAIRN_MSG_REDUCED);
    decide_write();
    stage_hear_moved();
    stage_settle();
    stage_check();
    stage_close();
    free(nines);
}

SUITE(60);
