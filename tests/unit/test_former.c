/* Former versions: the last K are there with the bits of then, and heartbeats tell the newest ones. */
#include <check.h>
#include <stdlib.h>
#include <string.h>

#include "server/shard/jobs.h"
#include "tests/support/shard_model.h"
#include "tests/support/shard_scene.h"
#include "tests/support/suite.h"

enum { KEPT = 3, JOBS = 20, KEPT_MOST = 64 };

static struct former_told told;

/* ---- a job that trains ---- */

static struct scene scene;
static struct model model;
static const struct shard_job *job;
static uint64_t at; /* the step */

static void serve(void)
{
    at = 0;
    scene_open(&scene, "mem", 2, 0);
    scene.spec.policy.keep_versions = KEPT;
    scene_serve(&scene, 2, 1);
    model_open(&model, &scene);
    job = scene.shard->jobs;
}

static void train(int rounds)
{
    for (int i = 0; i < rounds; i++, at++) model_round(&model, &scene, at + 1, at);
}

/* The versions that are told are those of `count` steps, of which this is the newest. */
static void expect_told(size_t count, uint64_t newest)
{
    former_list(scene.shard, &told);
    ck_assert_uint_eq(told.count, count);
    for (size_t i = 0; i < count; i++) {
        ck_assert_uint_eq(told.told[i].job, SCENE_JOB);
        ck_assert_uint_eq(told.told[i].step, newest - i);
    }
}

TEST(each_update_keeps_the_version_before_and_drops_the_oldest)
{
    struct sentence why;
    uint32_t index;
    serve();
    expect_told(0, 0);
    train(1);
    expect_told(1, 0);
    train(1);
    expect_told(2, 1);
    train(4);
    expect_told(KEPT, 5);
    ck_assert_int_eq(former_find(job, (struct cairn_version) { 1, 2 }, &index, &why),
                     CAIRN_ERR_VERSION_GONE);
    ck_assert_ptr_nonnull(strstr(why.text, "has version 1:2 of job"));
    ck_assert_ptr_nonnull(strstr(why.text, "it has 1:3, 1:4, 1:5"));
    model_leave(&model, &scene);
}

/* What later updates did not overwrite is as it is now. */
static const void *param_then(uint32_t index, uint64_t chunk, const struct chunk_place *place)
{
    const uint8_t *saved = former_chunk(job, index, chunk);
    if (saved != NULL) return saved; // the parameters come first
    return planes_at(&job->planes, CAIRN_PLANE_PARAM, job->view->table.extent_of[chunk],
                     place->local_elem);
}

TEST(a_former_version_has_the_bits_of_then)
{
    struct model then = { .scene = NULL };
    struct sentence why;
    uint32_t index;
    serve();
    train(2);
    model_copy(&then, &model);
    train(KEPT);
    ck_assert_int_eq(former_find(job, (struct cairn_version) { 1, 2 }, &index, &why), CAIRN_OK);
    for (uint64_t c = 0; c < scene.map.chunk_count; c++) {
        const struct chunk_place place = shard_map_chunk(&scene.map, c);
        size_t bytes;
        if (!model_keeps(place.tensor, CAIRN_PLANE_PARAM)) continue;
        const void *wanted = model_bytes(&then, CAIRN_PLANE_PARAM, &place, &bytes);
        ck_assert_mem_eq(param_then(index, c, &place), wanted, bytes);
    }
    model_close(&then);
    model_leave(&model, &scene);
}

/* A member writes a chunk of the tensor, and makes the next generation by that. */
static void write_to(uint32_t tensor, uint64_t round, uint64_t generation)
{
    static float values[SCENE_CHUNK_LEAVES * CAIRN_LEAF_ELEMS];
    const uint64_t chunk = scene_chunk_of(&scene, tensor);
    const struct chunk_place place = shard_map_chunk(&scene.map, chunk);
    struct chunk_header header = scene_chunk_header(&scene, CAIRN_CHUNK_PUT, 1, chunk);
    scene_write_open(&scene, round, generation, at);
    header.plane = CAIRN_PLANE_PARAM;
    header.round = round;
    scene_send(&scene, &header, values, (size_t)place.elem_count * sizeof *values);
    scene_settle(&scene);
    scene_note(&scene, CAIRN_CHUNK_ACK);
    scene_write_commit(&scene);
    scene_hear(&scene, CAIRN_MSG_REDUCED);
    scene_say_decision(&scene, CAIRN_MSG_DECIDE,
                       &(Cairn__Decision) { .kind = CAIRN_DECISION_WRITE,
                                            .round = round,
                                            .generation = generation + 1,
                                            .step = at });
    scene_hear(&scene, CAIRN_MSG_PUBLISHED);
}

/* A slot has room for what updates change. */
TEST(a_write_keeps_the_version_before_unless_it_is_to_what_no_update_changes)
{
    serve();
    train(2);
    write_to(T_EMB, 10, 1);
    expect_told(3, 2);
    ck_assert_uint_eq(told.told[0].generation, 1);
    write_to(T_FROZEN, 11, 2);
    expect_told(0, 0);
    model_leave(&model, &scene);
}

/* ---- more than a heartbeat tells ---- */

/* A job that has so many former versions, from step 1 on. */
static void fill_job(struct shard_job *one, uint64_t number, uint32_t count)
{
    static struct shard_view view;
    struct former *former = &one->former;
    one->number = number;
    one->state = CAIRN_JOB_SERVING;
    one->view = &view;
    one->spec.policy.keep_versions = KEPT_MOST;
    former->of = &view;
    former->slots = calloc(KEPT_MOST, sizeof *former->slots);
    former->first = (uint32_t)number; // the ring is turned
    former->count = count;
    for (uint32_t i = 0; i < count; i++)
        former->slots[(former->first + i) % KEPT_MOST].version = (struct cairn_version) { 1,
                                                                                          i + 1 };
}

TEST(of_too_many_the_newest_of_each_job_are_told)
{
    static struct shard_daemon shard;
    static struct shard_job jobs[JOBS];
    static uint64_t oldest[JOBS], newest[JOBS];
    for (uint64_t i = 0; i < JOBS; i++) {
        fill_job(&jobs[i], i, i == 0 ? 2 : KEPT_MOST);
        jobs[i].next = i + 1 < JOBS ? &jobs[i + 1] : NULL;
        oldest[i] = UINT64_MAX;
    }
    shard.jobs = jobs;
    former_list(&shard, &told);
    ck_assert_uint_eq(told.count, CAIRN_FORMER_TOLD_MAX);
    for (size_t i = 0; i < told.count; i++) {
        const Cairn__FormerTold *one = told.pointers[i];
        if (one->step > newest[one->job]) newest[one->job] = one->step;
        if (one->step < oldest[one->job]) oldest[one->job] = one->step;
    }
    ck_assert_uint_eq(oldest[0], 1);
    ck_assert_uint_eq(newest[0], 2);
    for (int i = 1; i < JOBS; i++) { // (1,024 - 2) / 19 of each
        ck_assert_uint_eq(newest[i], KEPT_MOST);
        ck_assert(oldest[i] == 11 || oldest[i] == 12);
    }
    for (int i = 0; i < JOBS; i++) free(jobs[i].former.slots);
}

SUITE(60);
