/* A version that is read while updates overwrite it: what is read is that version, bit for bit, wherever an
 * update is. */
#include <check.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "server/shard/jobs.h"
#include "server/shard/read.h"
#include "server/shard/state.h"
#include "tests/support/held_pool.h"
#include "tests/support/memory_storage.h"
#include "tests/support/scratch.h"
#include "tests/support/shard_model.h"
#include "tests/support/shard_scene.h"
#include "tests/support/suite.h"

static struct scene scene;
static struct model model;

static void serve(void)
{
    model_serve(&model, &scene, "mem", 2);
}

static void leave(void)
{
    model_leave(&model, &scene);
}

/* ---- snapshots and digests of a shard ---- */

static void say_pin(uint64_t number, bool files)
{
    scene_tell(&scene, 0, Pin, .job = SCENE_JOB, .snapshot = number, .files = files);
}

static void say_folder(uint64_t number, const char *path)
{
    scene_tell(&scene, 0, PinFolder, .job = SCENE_JOB, .snapshot = number, .path = wire_text(path));
}

static void say_prepare(uint64_t number)
{
    scene_tell(&scene, 70, PinPrepare, .job = SCENE_JOB, .snapshot = number);
    (void)scene_hear(&scene, CAIRN_MSG_DONE);
}

TEST(what_was_prepared_is_pinned_or_given_back)
{
    const struct budget *budget = &scene.shard->memory.budget;
    const uint64_t before = budget->used_bytes;
    say_prepare(10);
    const uint64_t one = budget->used_bytes;
    ck_assert_uint_gt(one, before);
    say_folder(10, ""); // it failed before it was pinned
    say_prepare(11);
    ck_assert_uint_eq(budget->used_bytes, one);
    model_round(&model, &scene, 1, 0); // saves nothing: it does not stand yet
    say_pin(11, false);
    ck_assert_uint_eq(budget->used_bytes, one);
    struct model was = { 0 };
    model_copy(&was, &model);
    model_round(&model, &scene, 2, 1);
    model_check_part(&was, scene_heard(&scene, SnapshotPart), 1);
    ck_assert_ptr_null(LIST_FIRST(&scene.shard->jobs->pins.list));
    ck_assert_uint_eq(budget->used_bytes, before);
    say_prepare(12); // the job leaves with it
    model_close(&was);
}

TEST(what_was_prepared_in_vain_stays_until_nobody_makes_its_pages)
{
    const struct budget *budget = &scene.shard->memory.budget;
    const uint64_t used = budget->used_bytes;
    held_pool_hold(scene.shard->memory.toucher, 1);
    scene_tell(&scene, 70, PinPrepare, .job = SCENE_JOB, .snapshot = 10);
    say_folder(10, "");
    model_round(&model, &scene, 1, 0); // an update looks for pins that have ended
    ck_assert_uint_gt(budget->used_bytes, used);
    held_pool_let_go();
    (void)scene_hear(&scene, CAIRN_MSG_DONE);
    model_round(&model, &scene, 2, 1);
    ck_assert_uint_eq(budget->used_bytes, used);
}

TEST(what_a_step_takes_is_learned_beside_what_is_prepared)
{
    model_round(&model, &scene, 1, 0);
    say_prepare(10);
    for (uint64_t i = 1; i < 4; i++) model_round(&model, &scene, i + 1, i);
    ck_assert_uint_gt(scene.shard->jobs->pins.step_us, 0);
}

TEST(snapshots_and_digests_of_several_versions_are_of_theirs_though_updates_went_on)
{
    char root[CAIRN_SCRATCH_BYTES], id[CAIRN_SNAPSHOT_ID_BYTES], *folder;
    struct model was[3];
    struct sentence why;
    cairn_scratch_make(root);
    ck_assert_int_eq(snapshot_folder_make(root, "play", 1, 1, id, &folder, &why), CAIRN_OK);
    const uint64_t before = scene.shard->memory.budget.used_bytes;
    memset(was, 0, sizeof was);
    for (uint64_t i = 0; i < 3; i++) { // their folders are not told: all of each is overwritten
        model_round(&model, &scene, i + 1, i);
        say_pin(10 + i, true);
        model_copy(&was[i], &model);
    }
    model_round(&model, &scene, 4, 3);
    model_round(&model, &scene, 5, 4);
    say_folder(12, folder);
    model_check_part(&was[2], scene_heard(&scene, SnapshotPart), 3);
    say_pin(20, false);
    model_check_part(&model, scene_heard(&scene, SnapshotPart), 5);
    for (uint64_t i = 0; i < 2; i++) {
        char *another;
        ck_assert_int_eq(snapshot_folder_make(root, "play", 1, 1, id, &another, &why), CAIRN_OK);
        say_folder(10 + i, another);
        model_check_part(&was[i], scene_heard(&scene, SnapshotPart), i + 1);
        free(another);
    }
    ck_assert_ptr_null(LIST_FIRST(&scene.shard->jobs->pins.list));
    ck_assert_uint_eq(scene.shard->memory.budget.used_bytes, before);
    for (int i = 0; i < 3; i++) model_close(&was[i]);
    free(folder);
    cairn_scratch_remove(root);
}

TEST(a_snapshot_that_was_given_up_holds_up_no_layout_though_its_storage_hangs)
{
    char id[CAIRN_SNAPSHOT_ID_BYTES], *folder;
    struct sentence why;
    cairn_memory_storage_open();
    ck_assert_int_eq(snapshot_folder_make("mem:x", "play", 1, 1, id, &folder, &why), CAIRN_OK);
    struct shard_job *job = scene.shard->jobs;
    cairn_memory_storage_hang(true);
    say_pin(10, true);
    say_folder(10, folder);
    scene_settle(&scene);
    ck_assert_ptr_nonnull(LIST_FIRST(&job->pins.list));
    ck_assert(!shard_job_rests(job));
    pin_cancel(job);
    while (!shard_job_rests(job)) sched_yield();
    ck_assert_ptr_nonnull(LIST_FIRST(&job->pins.list)); // it hangs
    cairn_memory_storage_hang(false);
    ck_assert_int_eq(scene_heard(&scene, SnapshotPart)->status, CAIRN_ERR_CANCELED);
    ck_assert_ptr_null(LIST_FIRST(&job->pins.list));
    free(folder);
}

/* ---- the staging itself, by a reader and passes on threads of their own ---- */

enum { ROUNDS = 200 };

/* An element of a version: another one in each. */
static float value(uint64_t version, uint64_t chunk, int plane, uint64_t elem)
{
    return (float)(version * 7919 + chunk * 31 + (uint64_t)plane * 13 + elem % 101);
}

static float *live_at(uint64_t chunk, int plane, uint64_t *elems_out)
{
    const struct shard_job *job = scene.shard->jobs;
    const struct chunk_place place = shard_map_chunk(&scene.map, chunk);
    const uint32_t extent = job->view->table.extent_of[chunk];
    *elems_out = place.elem_count;
    if (!form_stores(&job->view->forms[extent], plane)) return NULL;
    return planes_at(&job->planes, (enum plane)plane, extent, place.local_elem);
}

static void overwrite(uint64_t version, uint64_t chunk)
{
    for (int p = 0; p < CAIRN_PLANE_COUNT; p++) {
        uint64_t elems;
        float *at = live_at(chunk, p, &elems);
        for (uint64_t e = 0; at != NULL && e < elems; e++) at[e] = value(version, chunk, p, e);
    }
}

/* What a thread of a pass does: chunks by turns. */
struct pass {
    struct staging *staging;
    struct works works;
    uint64_t version, first;
};

static void *run_pass(void *arg)
{
    struct pass *pass = arg;
    for (uint64_t c = pass->first; c < scene.map.chunk_count; c += 2) {
        staging_save(pass->staging, &pass->works, c);
        overwrite(pass->version, c);
    }
    return NULL;
}

/* Reads every piece, in parts, and compares it. */
static void read_all(struct staging *staging, struct works *works, uint64_t version)
{
    static float out[SCENE_CHUNK_LEAVES * CAIRN_LEAF_ELEMS];
    struct sentence why;
    for (int p = 0; p < CAIRN_PLANE_COUNT; p++) {
        for (uint64_t c = 0; c < scene.map.chunk_count; c++) {
            uint64_t elems;
            if (live_at(c, p, &elems) == NULL) continue;
            for (uint64_t at = 0; at < elems;) {
                const uint64_t some = elems - at < 1500 ? elems - at : 1500;
                ck_assert_int_eq(staging_read(staging, works, c, (enum plane)p, at, some,
                                              at + some == elems, out, &why),
                                 CAIRN_OK);
                uint64_t same = 0;
                while (same < some && out[same] == value(version, c, p, at + same)) same++;
                ck_assert_uint_eq(same, some);
                at += some;
            }
        }
    }
}

static void *save_ahead(void *arg)
{
    struct pace pace;
    pace_init(&pace, 1, 0, 0, UINT64_MAX);
    staging_save_ahead(arg, &pace);
    return NULL;
}

/* With `ahead`, another thread of the reader's has begun before them. */
static void read_beside_passes(uint64_t (*room)(const struct shard_job *job), bool ahead)
{
    pthread_t ahead_of;
    uint64_t saved_ahead = 0;
    struct shard_job *job = scene.shard->jobs;
    struct sentence why;
    struct pass passes[2];
    pthread_t threads[2];
    for (uint64_t i = 0; i < 2; i++)
        ck_assert_int_eq(works_open(&passes[i].works, job->shard->host.home, 1, 1, &why), CAIRN_OK);
    for (uint64_t version = 1; version <= ROUNDS; version++) {
        struct staging staging;
        for (uint64_t c = 0; c < scene.map.chunk_count; c++) overwrite(version, c);
        ck_assert_int_eq(staging_open(&staging, job, room(job), &why), CAIRN_OK);
        if (ahead) {
            ck_assert_int_eq(pthread_create(&ahead_of, NULL, save_ahead, &staging), 0);
            while (version % 2 == 0 && atomic_load(&staging.saved_bytes) == 0) sched_yield();
            saved_ahead += atomic_load(&staging.saved_bytes);
            atomic_fetch_add(&job->pins.passes, 1);
            atomic_store(&job->pins.updating, true);
        }
        for (uint64_t i = 0; i < 2; i++) {
            passes[i].staging = &staging;
            passes[i].version = version + 1;
            passes[i].first = i;
            ck_assert_int_eq(pthread_create(&threads[i], NULL, run_pass, &passes[i]), 0);
        }
        if (ahead) pthread_join(ahead_of, NULL); // it and the reader are one
        read_all(&staging, compute_snapshots(&job->shard->host), version);
        for (int i = 0; i < 2; i++) pthread_join(threads[i], NULL);
        staging_close(&staging);
        atomic_store(&job->pins.updating, false);
    }
    ck_assert(!ahead || saved_ahead > 0);
    for (int i = 0; i < 2; i++) works_close(&passes[i].works);
}

static uint64_t room_for_all(const struct shard_job *job)
{
    return staging_bytes(job, CAIRN_SNAPSHOT_STAGING_STATE);
}

TEST(what_is_read_beside_passes_is_what_was_before_them)
{
    read_beside_passes(room_for_all, false);
}

TEST(what_is_saved_ahead_of_passes_is_what_was_before_them)
{
    read_beside_passes(room_for_all, true);
}

TEST(what_no_update_overwrites_is_not_saved_ahead)
{
    struct staging staging;
    struct sentence why;
    uint64_t expected = 0, frozen = 0;
    struct shard_job *job = scene.shard->jobs;
    for (uint64_t c = 0; c < scene.map.chunk_count; c++) {
        for (int p = 0; p < CAIRN_PLANE_COUNT; p++) {
            uint64_t elems;
            if (live_at(c, p, &elems) == NULL) continue;
            const bool is_trained = job->view->forms[job->view->table.extent_of[c]].trained;
            *(is_trained ? &expected : &frozen) += elems * sizeof(float);
        }
    }
    ck_assert_uint_gt(expected, 0);
    ck_assert_uint_gt(frozen, 0);
    ck_assert_int_eq(staging_open(&staging, job, room_for_all(job), &why), CAIRN_OK);
    (void)save_ahead(&staging);
    ck_assert_uint_eq(atomic_load(&staging.saved_bytes), expected);
    staging_close(&staging);
}

/* The least with which a staging can be opened: room for the largest piece. */
static uint64_t least_room(const struct shard_job *job)
{
    const struct shard_view *view = job->view;
    uint64_t least = 64;
    for (uint64_t c = 0; c < view->table.map.chunk_count; c++) {
        for (int p = 0; p < CAIRN_PLANE_COUNT; p++) {
            const struct form *form = &view->forms[view->table.extent_of[c]];
            const struct chunk_place place = shard_map_chunk(&view->table.map, c);
            const uint64_t bytes = form_bytes(form, (enum plane)p, place.elem_count);
            if (form_stores(form, p) && bytes > least) least = (bytes + 63) / 64 * 64;
        }
    }
    return least;
}

TEST(with_the_least_room_passes_wait_for_the_reader_and_it_for_none_of_them)
{
    read_beside_passes(least_room, false);
}

TEST(a_staging_that_nobody_reads_any_more_holds_no_pass_up)
{
    struct staging staging;
    struct sentence why;
    struct pass pass = { .staging = &staging, .version = 2 };
    pthread_t thread;
    struct shard_job *job = scene.shard->jobs;
    ck_assert_int_eq(works_open(&pass.works, job->shard->host.home, 1, 1, &why), CAIRN_OK);
    ck_assert_int_eq(staging_open(&staging, job, least_room(job), &why), CAIRN_OK);
    ck_assert_int_eq(pthread_create(&thread, NULL, run_pass, &pass), 0);
    while (atomic_load(&staging.waiting) == 0) sched_yield();
    staging_cancel(&staging);
    pthread_join(thread, NULL);
    float out[1];
    ck_assert_int_eq(staging_read(&staging, compute_snapshots(&job->shard->host), 0,
                                  CAIRN_PLANE_PARAM, 0, 1, false, out, &why),
                     CAIRN_ERR_CANCELED);
    ck_assert_uint_gt(atomic_load(&staging.waited_us) + 1, 0);
    staging_close(&staging);
    works_close(&pass.works);
}

TEST(a_pass_waits_for_room_no_longer_than_that_and_then_the_reader_is_told)
{
    struct staging staging;
    struct sentence why;
    struct pass pass = { .staging = &staging, .version = 2 };
    float out[1];
    struct shard_job *job = scene.shard->jobs;
    ck_assert_int_eq(works_open(&pass.works, job->shard->host.home, 1, 1, &why), CAIRN_OK);
    ck_assert_int_eq(staging_open(&staging, job, least_room(job), &why), CAIRN_OK);
    staging.wait_us_max = 20000;
    (void)run_pass(&pass); // nobody reads: the storage hangs
    ck_assert_uint_ge(atomic_load(&staging.waited_us), 20000);
    ck_assert_int_eq(staging_read(&staging, compute_snapshots(&job->shard->host), 0,
                                  CAIRN_PLANE_PARAM, 0, 1, false, out, &why),
                     CAIRN_ERR_TIMEOUT);
    ck_assert_ptr_nonnull(strstr(why.text, "snapshot_staging = state"));
    staging_close(&staging);
    works_close(&pass.works);
}

/* ---- a version that is being sent ---- */

/* Its DATA stays on its way, as the worker takes no payload. */
static void begin_fetch(uint64_t step)
{
    const struct shard_job *job = scene.shard->jobs;
    scene.deaf = true;
    scene_fetch(&scene, 1, 0, CAIRN_PLANE_WIRE, 1, step);
    scene_until(&scene, published_find(job, (struct cairn_version) { 1, step })->sends != 0);
}

TEST(a_shard_that_closes_while_an_update_waits_for_a_send_never_begins_that_update)
{
    struct group_scalars scalars[2];
    const struct shard_job *job = scene.shard->jobs;
    model_round(&model, &scene, 1, 0);
    model_push_round(&scene, 2, 1);
    (void)scene_hear(&scene, CAIRN_MSG_REDUCED);
    begin_fetch(0); // of the copy that the next version is written to
    model_update(&model, 2, 1, scalars);
    model_say_apply(&scene, 2, 1, CAIRN_MSG_DECIDE, scalars);
    scene_until(&scene, job->pass.updating);
    ck_assert(job->pass.update_waits);
}

SUITE(30, serve, leave);
