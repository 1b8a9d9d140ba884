/* Audits: a bit of the state that changed although nothing wrote it is found where it is, before anything is
 * made of it; and what was written is no alarm. */
#include <check.h>
#include <stdlib.h>
#include <string.h>

#include "server/shard/jobs.h"
#include "tests/support/random.h"
#include "tests/support/shard_model.h"
#include "tests/support/shard_scene.h"
#include "tests/support/suite.h"

enum { FLIPS = 1000 };

static struct scene scene;
static struct model model;
static struct shard_job *job;
static uint64_t at; /* the step */

/* The job is audited in every step. */
static void serve(void)
{
    random_state = 7;
    at = 0;
    scene_open(&scene, "mem", 2, 0);
    scene.spec.policy.audit_every = 1;
    scene_serve(&scene, 2, 1);
    model_open(&model, &scene);
    job = scene.shard->jobs;
}

static void leave(void)
{
    model_leave(&model, &scene);
}

static void train(int rounds)
{
    for (int i = 0; i < rounds; i++, at++) model_round(&model, &scene, at + 1, at);
}

/* ---- bits that flip ---- */

/* A bit of the state. */
struct bit {
    enum plane plane;
    size_t extent;
    uint64_t leaf; /* of the tensor */
    uint8_t *byte;
    uint8_t mask;
};

static struct bit bit_at(size_t extent, enum plane plane, uint64_t elem, uint32_t bit)
{
    const struct shard_map *map = &job->view->table.map;
    const struct local_extent *of = &map->extents[extent];
    const struct geometry *geometry = &map->layout->geometry[of->tensor];
    return (struct bit) {
        .plane = plane,
        .extent = extent,
        .leaf = leaf_of_elem(geometry, of->first_elem + elem),
        .byte = (uint8_t *)planes_at(&job->planes, plane, extent, of->local_elem + elem) + bit / 8,
        .mask = (uint8_t)(1u << bit % 8)
    };
}

/* Any bit of any plane of state. */
static struct bit any_bit(void)
{
    const struct shard_map *map = &job->view->table.map;
    size_t extent;
    enum plane plane;
    do {
        extent = (size_t)random_below(map->extent_count);
        plane = (enum plane)random_below(CAIRN_PLANE_COUNT);
    } while (!form_stores(&job->view->forms[extent], (int)plane));
    return bit_at(extent, plane, random_below(map->extents[extent].elem_count),
                  (uint32_t)random_below(32));
}

static void flip(const struct bit *bit)
{
    *bit->byte ^= bit->mask;
}

static const uint64_t *check_of(const struct bit *bit)
{
    const struct audit_checks *checks = &job->audit.checks;
    return checks->of[bit->plane] + checks->before[bit->extent] + bit->leaf -
           checks->map->extents[bit->extent].first_leaf;
}

/* Compares the whole state. */
static void audit_all(void)
{
    job->audit.found.count = 0;
    job->audit.turns = 1;
    job->audit.turn = 0;
    for (uint32_t c = 0; c < job->view->table.map.chunk_count; c++) audit_compare(job, c);
}

TEST(every_one_of_a_thousand_flipped_bits_is_found_in_its_leaf)
{
    train(2);
    for (int i = 0; i < FLIPS; i++) {
        const struct bit bit = any_bit();
        flip(&bit);
        audit_all();
        ck_assert_uint_eq(job->audit.found.count, 1);
        ck_assert_ptr_eq(job->audit.found.at[0], check_of(&bit));
        flip(&bit);
    }
    audit_all();
    ck_assert_uint_eq(job->audit.found.count, 0);
}

TEST(bits_that_flip_together_are_all_counted)
{
    train(1);
    for (int i = 0; i < 3; i++) {
        const enum plane planes[] = { CAIRN_PLANE_PARAM, CAIRN_PLANE_EXP_AVG,
                                      CAIRN_PLANE_EXP_AVG_SQ };
        const struct bit bit = bit_at(job->view->table.map.extent_count - 1, planes[i], 5, 3);
        flip(&bit);
    }
    audit_all();
    ck_assert_uint_eq(job->audit.found.count, 3);
}

/* Within so many updates the job is stopped, and says what is where. */
static void expect_stopped(const struct bit *bit, uint32_t updates)
{
    char words[128];
    const char *tensor = job->spec.tensors[job->view->table.map.extents[bit->extent].tensor].name;
    snprintf(words, sizeof words, "%s of tensor %s, elements", plane_name((int)bit->plane), tensor);
    for (uint32_t i = 0; i < updates && job->state == CAIRN_JOB_SERVING; i++, at++) {
        struct group_scalars scalars[2];
        model_push_round(&scene, at + 1, at);
        (void)scene_hear(&scene, CAIRN_MSG_REDUCED);
        model_update(&model, at + 1, at, scalars);
        model_say_apply(&scene, at + 1, at, CAIRN_MSG_DECIDE, scalars);
        scene_until(&scene,
                    job->state != CAIRN_JOB_SERVING || step_version(job->collector.step).step > at);
    }
    ck_assert_int_eq(job->state, CAIRN_JOB_FAULTED);
    (void)scene_hear(&scene, CAIRN_MSG_ERROR);
    peer_close(scene.session, CAIRN_OK, "the shard said why it ends the session");
    const Cairn__PartStopped *stopped = scene_heard(&scene, PartStopped);
    ck_assert_msg(strstr(stopped->why, words) != NULL, "%s, not %s", stopped->why, words);
}

/* The next update finds the bit before it overwrites it. */
static void try_update(uint32_t tensor, enum plane plane)
{
    const struct tensor_chunks of = chunk_table_tensor(&job->view->table, tensor);
    train(1);
    const struct bit bit = bit_at(of.first_extent, plane, 3, 30);
    flip(&bit);
    expect_stopped(&bit, 1);
}

TEST(an_update_finds_a_parameter_that_changed)
{
    try_update(T_WEIGHT, CAIRN_PLANE_PARAM);
}

TEST(an_update_finds_a_moment_that_changed)
{
    try_update(T_WEIGHT, CAIRN_PLANE_EXP_AVG_SQ);
}

TEST(sixteen_updates_find_a_frozen_tensor_that_changed)
{
    const struct tensor_chunks of = chunk_table_tensor(&job->view->table, T_FROZEN);
    train(1);
    const struct bit bit = bit_at(of.first_extent, CAIRN_PLANE_PARAM, 4097, 1);
    flip(&bit);
    expect_stopped(&bit, CAIRN_AUDIT_TURNS);
}

/* ---- snapshots ---- */

TEST(a_snapshot_of_state_that_changed_is_refused_and_the_job_is_stopped)
{
    train(1);
    const struct bit bit = bit_at(0, CAIRN_PLANE_PARAM, 1, 17);
    flip(&bit);
    scene_tell(&scene, 0, Pin, .job = SCENE_JOB, .snapshot = 10);
    const Cairn__SnapshotPart *part = scene_heard(&scene, SnapshotPart);
    ck_assert_int_eq(part->status, CAIRN_ERR_CHECKSUM);
    ck_assert_ptr_nonnull(strstr(part->text, "param of tensor bias, elements 0 to 9"));
    scene_until(&scene, job->state == CAIRN_JOB_FAULTED);
}

TEST(a_pinned_version_is_compared_with_its_own_checksums)
{
    char root[CAIRN_SCRATCH_BYTES], id[CAIRN_SNAPSHOT_ID_BYTES], *folder;
    struct model was = { 0 };
    struct sentence why;
    cairn_scratch_make(root);
    ck_assert_int_eq(snapshot_folder_make(root, "play", 1, 1, id, &folder, &why), CAIRN_OK);
    train(1);
    scene_tell(&scene, 0, Pin, .job = SCENE_JOB, .snapshot = 10, .files = true);
    model_copy(&was, &model);
    train(3); // all of it is overwritten before it is read
    scene_tell(&scene, 0, PinFolder, .job = SCENE_JOB, .snapshot = 10, .path = folder);
    model_check_part(&was, scene_heard(&scene, SnapshotPart), 1);
    scene_tell(&scene, 0, Pin, .job = SCENE_JOB, .snapshot = 11);
    model_check_part(&model, scene_heard(&scene, SnapshotPart), 4);
    model_close(&was);
    free(folder);
    cairn_scratch_remove(root);
}

/* ---- state that leaves the shard ---- */

TEST(a_chunk_of_state_that_changed_is_sent_to_nobody_and_the_job_is_stopped)
{
    const uint64_t chunk = scene_chunk_of(&scene, T_WEIGHT);
    const struct tensor_chunks of = chunk_table_tensor(&job->view->table, T_WEIGHT);
    train(1);
    scene_fetch(&scene, 1, chunk, CAIRN_PLANE_EXP_AVG, 1, at);
    (void)scene_note(&scene, CAIRN_CHUNK_DATA);
    const struct bit bit = bit_at(of.first_extent, CAIRN_PLANE_EXP_AVG, 7, 12);
    flip(&bit);
    struct chunk_header fetch = scene_fetch_header(&scene, 1, chunk, CAIRN_PLANE_EXP_AVG, 1, at);
    ck_assert_int_eq(scene_nak(&scene, &fetch, NULL, 0), CAIRN_ERR_NOT_READY);
    ck_assert_int_eq(job->state, CAIRN_JOB_FAULTED);
}

/* ---- no alarm ---- */

TEST(what_updates_write_is_no_alarm)
{
    train(2 * (int)CAIRN_AUDIT_TURNS + 3);
    ck_assert_int_eq(job->state, CAIRN_JOB_SERVING);
    ck_assert_uint_eq(audit_since(job), at - CAIRN_AUDIT_TURNS + 1);
    audit_all();
    ck_assert_uint_eq(job->audit.found.count, 0);
}

TEST(without_audit_every_there_are_no_checksums_and_they_go_with_it)
{
    const struct budget *budget = &scene.shard->memory.budget;
    train(1);
    const uint64_t used = budget->used_bytes, bytes = job->audit.counted_bytes;
    ck_assert_uint_gt(bytes, 0);
    audit_want(job, 0); // as an amendment does
    train(1);
    ck_assert_ptr_null(job->audit.checks.before);
    ck_assert_uint_eq(budget->used_bytes, used - bytes);
    audit_want(job, 3);
    train(1);
    ck_assert_uint_eq(budget->used_bytes, used);
    train(3);
    ck_assert_uint_eq(job->audit.count, 1); // of step 3, in the update after it
}

/* Returns the last turn of the audits in which a leaf of the frozen tensor is compared. */
static uint32_t last_frozen_turn(void)
{
    const struct shard_map *map = &job->view->table.map;
    uint64_t turn = 0, number = 0;
    for (size_t e = 0; e < map->extent_count; number += map->extents[e++].leaf_count)
        for (uint64_t i = 0; map->extents[e].tensor == T_FROZEN && i < map->extents[e].leaf_count;
             i++)
            if ((number + i) % CAIRN_AUDIT_TURNS > turn) turn = (number + i) % CAIRN_AUDIT_TURNS;
    return (uint32_t)turn;
}

TEST(a_leaf_that_only_got_its_checksum_was_not_compared_yet)
{
    const int turns = (int)CAIRN_AUDIT_TURNS, last = (int)last_frozen_turn();
    audit_want(job, 0);
    train(1);
    audit_want(job, 1); // as an amendment does: nothing has a checksum
    train(turns + last);
    ck_assert_uint_eq(audit_since(job), 0);
    train(1); // the last of the frozen leaves has its second turn
    ck_assert_uint_eq(audit_since(job), at - CAIRN_AUDIT_TURNS + 1);
}

/* A chunk of the owner's may arrive in part, and change a leaf before it is given up. */
TEST(what_a_standby_asks_for_has_no_checksum_until_it_is_here)
{
    char name[] = "s1";
    Cairn__ShardInfo owner; // its address is not known: it is away
    cairn__shard_info__init(&owner);
    owner.index = 1;
    owner.name = name;
    train(1);
    audit_all();
    ck_assert_ptr_nonnull(job->audit.checks.before);
    scene_tell(&scene, 12, MirrorOf, .job = SCENE_JOB, .member = 901, .token = 9010,
               .owner = &owner);
    scene_done(&scene, 12);
    scene_until(&scene, job->audit.checks.before == NULL);
    scene_tell(&scene, 13, MirrorOf, .job = SCENE_JOB);
    scene_done(&scene, 13);
    const struct bit bit = bit_at(0, CAIRN_PLANE_PARAM, 1, 17);
    flip(&bit);
    audit_all();
    ck_assert_uint_eq(job->audit.found.count, 0);
    flip(&bit);
    train(1);
}

SUITE(60, serve, leave);
