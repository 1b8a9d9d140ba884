/* The shard's daemon on a stage: rounds with the bits of the kernels, fetches, snapshots, and its
 * dealings with the coordinator. What bad messages get: test_shard_refusals.c. */
#include <check.h>
#include <semaphore.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "tests/support/scratch.h"
#include "tests/support/shard_model.h"
#include "tests/support/shard_scene.h"
#include "tests/support/suite.h"

static struct scene scene;
static struct model model;

static void serve(const char *kind, uint32_t threads)
{
    scene_open(&scene, kind, threads, 0);
    scene_serve(&scene, 2, 1);
    model_open(&model, &scene);
}

static void leave(void)
{
    model_close(&model);
    scene_close(&scene);
}

/* Fetches every chunk of a plane and compares it with the model. */
static void check_plane(enum plane plane, uint64_t generation, uint64_t step,
                        const struct model *expected)
{
    for (uint64_t c = 0; c < scene.map.chunk_count; c++) {
        const struct chunk_place place = shard_map_chunk(&scene.map, c);
        if (!model_keeps(place.tensor, (int)plane)) continue;
        struct chunk_header fetch = scene_chunk_header(&scene, CAIRN_CHUNK_FETCH, 1, c);
        fetch.plane = (uint8_t)plane;
        fetch.generation = generation;
        fetch.step = step;
        scene_send(&scene, &fetch, NULL, 0);
        const struct scene_note *data = scene_note(&scene, CAIRN_CHUNK_DATA);
        ck_assert_uint_eq(data->header.request, c + 1);
        ck_assert_uint_eq(data->header.checksum,
                          chunk_checksum(data->payload, data->header.payload_bytes));
        size_t bytes;
        const void *wanted = model_bytes(expected, (int)plane, &place, &bytes);
        ck_assert_uint_eq(data->header.payload_bytes, bytes);
        ck_assert_mem_eq(data->payload, wanted, bytes);
    }
}

/* ---- rounds ---- */

static void run_steps(const char *kind, uint32_t threads)
{
    serve(kind, threads);
    check_plane(CAIRN_PLANE_WIRE, 1, 0, &model);
    struct model before;
    model_copy(&before, &model);
    for (uint64_t step = 0; step < 2; step++) {
        model_copy(&before, &model);
        model_round(&model, &scene, step + 1, step);
        check_plane(CAIRN_PLANE_WIRE, 1, step + 1, &model);
        check_plane(CAIRN_PLANE_WIRE, 1, step, &before);
        check_plane(CAIRN_PLANE_PARAM, 1, step + 1, &model);
        check_plane(CAIRN_PLANE_EXP_AVG, 1, step + 1, &model);
        check_plane(CAIRN_PLANE_EXP_AVG_SQ, 1, step + 1, &model);
    }
    model_close(&before);
    leave();
}

TEST_EACH(a_step_has_the_bits_of_the_kernels, 1, 4)
{
    run_steps("mem", (uint32_t)_i);
}

TEST(a_step_over_ucx_has_the_same_bits)
{
    run_steps("ucx", 2);
}

TEST(a_skipped_round_changes_nothing)
{
    serve("mem", 1);
    model_push_round(&scene, 1, 0);
    Cairn__Decide decide = CAIRN__DECIDE__INIT;
    Cairn__Decision skip = CAIRN__DECISION__INIT;
    skip.kind = CAIRN_DECISION_SKIP;
    skip.round = 1;
    skip.generation = 1;
    decide.job = SCENE_JOB;
    decide.epoch = scene.epoch;
    decide.decision = &skip;
    scene_hear(&scene, CAIRN_MSG_REDUCED);
    scene_say(&scene, CAIRN_MSG_DECIDE, 0, &decide.base);
    const Cairn__Published *published =
        (const Cairn__Published *)scene_hear(&scene, CAIRN_MSG_PUBLISHED).message;
    ck_assert_uint_eq(published->step, 0);
    ck_assert_uint_eq(published->round, 1);
    check_plane(CAIRN_PLANE_WIRE, 1, 0, &model);
    check_plane(CAIRN_PLANE_EXP_AVG, 1, 0, &model);
    leave();
}

TEST(a_fenced_round_is_run_again_with_the_same_result)
{
    serve("mem", 2);
    // Half of a round, then a new epoch: member 1 pushed a chunk, and nothing of it may stay.
    scene_round_open(&scene, 1, 0, 2);
    for (int i = 0; i < 2; i++) scene_note(&scene, CAIRN_CHUNK_GRANT);
    model_push_chunk(&scene, 1, 0, 0);
    scene_note(&scene, CAIRN_CHUNK_ACK);
    scene_fence(&scene, 2);
    const Cairn__Answer *answer =
        (const Cairn__Answer *)scene_hear(&scene, CAIRN_MSG_ANSWER).message;
    ck_assert_uint_eq(answer->epoch, 2);
    ck_assert_uint_eq(answer->open_round, 0);
    scene_resolve_none(&scene);
    scene_hear(&scene, CAIRN_MSG_PUBLISHED);
    model_round(&model, &scene, 2, 0);
    check_plane(CAIRN_PLANE_WIRE, 1, 1, &model);
    leave();
}

/* Over UCX the second half of a long message waits for its sender: closing the endpoint ends it. */
TEST(a_worker_that_sleeps_in_the_middle_of_a_chunk_holds_up_no_round_after_it)
{
    serve("ucx", 1);
    struct shard_job *job = scene.shard->jobs;
    scene_round_open(&scene, 1, 0, 2);
    for (int i = 0; i < 2; i++) scene_note(&scene, CAIRN_CHUNK_GRANT);
    uint64_t chunk = 0;
    while (shard_map_chunk(&scene.map, chunk).tensor != T_EMB) chunk++;
    const size_t bytes = shard_map_chunk(&scene.map, chunk).elem_count * sizeof(float);
    float *gradient = calloc(1, bytes);
    struct chunk_header push = scene_chunk_header(&scene, CAIRN_CHUNK_PUSH, 1, chunk);
    push.dtype = CAIRN_F32;
    ck_assert_uint_gt(bytes, 32768);
    scene_send(&scene, &push, gradient, bytes);
    const uv_prepare_cb awake = scene.poll.prepare.prepare_cb;
    uv_prepare_stop(&scene.poll.prepare); // SIGSTOP
    uv_idle_stop(&scene.poll.idle);
    while (job->busy == 0) uv_run(&scene.loop, UV_RUN_ONCE);

    Cairn__MemberLeave gone = CAIRN__MEMBER_LEAVE__INIT;
    gone.job = SCENE_JOB;
    gone.member = 1;
    scene_say(&scene, CAIRN_MSG_MEMBER_LEAVE, 0, &gone.base);
    scene_fence(&scene, 2);
    scene_hear(&scene, CAIRN_MSG_ANSWER);
    scene_resolve_none(&scene);
    scene_hear(&scene, CAIRN_MSG_PUBLISHED);
    uint64_t other = 2;
    Cairn__RoundOpen open = CAIRN__ROUND_OPEN__INIT;
    open.job = SCENE_JOB;
    open.epoch = 2;
    open.round = 2;
    open.generation = 1;
    open.members = &other;
    open.n_members = 1;
    scene_say(&scene, CAIRN_MSG_ROUND_OPEN, 0, &open.base);
    while (step_round_of(job->collector.step) != 2) uv_run(&scene.loop, UV_RUN_ONCE);
    ck_assert_uint_eq(job->busy, 0);
    uv_prepare_start(&scene.poll.prepare, awake);
    scene_settle(&scene);
    free(gradient);
    leave();
}

/* ---- fetches ---- */

static cairn_status fetch_refusal(uint64_t generation, uint64_t step, enum plane plane)
{
    struct chunk_header fetch = scene_chunk_header(&scene, CAIRN_CHUNK_FETCH, 1, 0);
    fetch.plane = (uint8_t)plane;
    fetch.generation = generation;
    fetch.step = step;
    scene_send(&scene, &fetch, NULL, 0);
    return (cairn_status)scene_note(&scene, CAIRN_CHUNK_NAK)->header.value;
}

TEST(a_version_is_gone_when_it_is_overwritten_and_never_another_is_given)
{
    serve("mem", 1);
    model_round(&model, &scene, 1, 0);
    model_round(&model, &scene, 2, 1);
    ck_assert_int_eq(fetch_refusal(1, 0, CAIRN_PLANE_WIRE), CAIRN_ERR_VERSION_GONE);
    ck_assert_int_eq(fetch_refusal(1, 3, CAIRN_PLANE_WIRE), CAIRN_ERR_NOT_READY);
    ck_assert_int_eq(fetch_refusal(2, 2, CAIRN_PLANE_WIRE), CAIRN_ERR_NOT_READY);
    ck_assert_int_eq(fetch_refusal(1, 1, CAIRN_PLANE_PARAM), CAIRN_ERR_VERSION_GONE);
    leave();
}

TEST(a_peer_that_stops_reading_pins_no_more_than_its_replies)
{
    serve("mem", 1);
    scene.deaf = true;
    for (int i = 0; i < CAIRN_SHARD_REPLIES_MAX; i++) {
        struct chunk_header fetch = scene_chunk_header(&scene, CAIRN_CHUNK_FETCH, 1, 1);
        fetch.plane = CAIRN_PLANE_WIRE;
        fetch.generation = 1;
        scene_send(&scene, &fetch, NULL, 0);
    }
    ck_assert_int_eq(fetch_refusal(1, 0, CAIRN_PLANE_WIRE), CAIRN_ERR_BUSY);
    // The job can be dropped all the same, and nothing of it is left.
    Cairn__JobDrop drop = CAIRN__JOB_DROP__INIT;
    drop.job = SCENE_JOB;
    scene_say(&scene, CAIRN_MSG_JOB_DROP, 9, &drop.base);
    ck_assert_uint_eq(scene_hear(&scene, CAIRN_MSG_DONE).request, 9);
    ck_assert_uint_eq(scene.shard->memory.budget.used_bytes, 0);
    ck_assert_ptr_null(scene.shard->jobs);
    leave();
}

/* When the update waits for what the worker does not take, the coordinator has it leave. */
static void leave_when_awaited(uv_check_t *check)
{
    bool *awaited = check->data;
    if (*awaited || !scene.shard->jobs->pass.update_waits) return;
    *awaited = true;
    Cairn__MemberLeave gone = CAIRN__MEMBER_LEAVE__INIT;
    gone.job = SCENE_JOB;
    gone.member = 1;
    scene_say(&scene, CAIRN_MSG_MEMBER_LEAVE, 0, &gone.base);
}

TEST(what_a_worker_is_sent_is_not_overwritten_until_it_leaves)
{
    bool awaited = false;
    uv_check_t check;
    serve("mem", 1);
    scene.deaf = true;
    struct chunk_header fetch = scene_chunk_header(&scene, CAIRN_CHUNK_FETCH, 1, 1);
    fetch.plane = CAIRN_PLANE_WIRE;
    fetch.generation = 1;
    scene_send(&scene, &fetch, NULL, 0);
    model_round(&model, &scene, 1, 0); // writes the other copy
    uv_check_init(&scene.loop, &check);
    check.data = &awaited;
    uv_check_start(&check, leave_when_awaited);
    model_round(&model, &scene, 2, 1);
    uv_close((uv_handle_t *)&check, NULL);
    ck_assert(awaited);
    ck_assert(!scene.shard->jobs->pass.update_waits);
    leave();
}

/* ---- snapshots ---- */

static const Cairn__SnapshotPart *pin(const char *path)
{
    Cairn__Pin message = CAIRN__PIN__INIT;
    message.job = SCENE_JOB;
    message.snapshot = 4;
    message.files = *path != '\0';
    scene_say(&scene, CAIRN_MSG_PIN, 0, &message.base);
    Cairn__PinFolder folder = CAIRN__PIN_FOLDER__INIT;
    folder.job = message.job;
    folder.snapshot = message.snapshot;
    folder.path = (char *)path;
    if (message.files) scene_say(&scene, CAIRN_MSG_PIN_FOLDER, 0, &folder.base);
    return (const Cairn__SnapshotPart *)scene_hear(&scene, CAIRN_MSG_SNAPSHOT_PART).message;
}

/* The digests of a part against trees built from the model. */
static void check_digests(const Cairn__SnapshotPart *part)
{
    size_t at = 0;
    for (size_t i = 0; i < scene.map.extent_count; i++) {
        const struct local_extent *extent = &scene.map.extents[i];
        for (int plane = CAIRN_PLANE_PARAM; plane < CAIRN_PLANE_COUNT; plane++) {
            if (plane == CAIRN_PLANE_WIRE || !model_keeps(extent->tensor, plane)) continue;
            struct hash_tree tree;
            tree_init(&tree, extent->first_leaf);
            backend_hash_leaves(backend_host(), model_plane(&model, plane) + extent->local_elem,
                                CAIRN_F32, &scene.layout->geometry[extent->tensor],
                                extent->leaf_count, &tree);
            for (uint32_t n = 0; n < tree.node_count; n++, at++) {
                ck_assert_uint_lt(at, part->n_digests);
                ck_assert_uint_eq(part->digests[at]->tensor, extent->tensor);
                ck_assert_int_eq((int)part->digests[at]->plane, plane);
                ck_assert_uint_eq(part->digests[at]->level, tree.node[n].level);
                ck_assert_uint_eq(part->digests[at]->index, tree.node[n].index);
                ck_assert_mem_eq(part->digests[at]->hash.data, tree.node[n].hash.byte, 32);
            }
        }
    }
    ck_assert_uint_eq(at, part->n_digests);
}

TEST(a_digest_is_of_the_pinned_version)
{
    serve("mem", 2);
    model_round(&model, &scene, 1, 0);
    const Cairn__SnapshotPart *part = pin("");
    ck_assert_int_eq(part->status, CAIRN_OK);
    ck_assert_uint_eq(part->step, 1);
    ck_assert_uint_eq(part->n_files, 0);
    ck_assert_uint_gt(part->payload.len, 0);
    check_digests(part);
    leave();
}

/* The whole model as a snapshot: shard 1's part is written by the test. */
static void commit_snapshot(const char *folder, const Cairn__SnapshotPart *part)
{
    struct manifest manifest;
    manifest_init(&manifest);
    ck_assert_int_eq(spec_copy(&scene.spec, &manifest.spec), CAIRN_OK);
    manifest.generation = manifest.step = 1;
    manifest.shard_count = SCENE_SHARDS;
    manifest.loss_scale = 1;
    for (size_t i = 0; i < part->n_files; i++) {
        ck_assert_uint_eq(part->files[i]->sums.len,
                          16 * snapshot_block_count(part->files[i]->bytes));
        ck_assert_int_eq(manifest_add_file(&manifest, part->files[i]->path, part->files[i]->bytes,
                                           part->files[i]->sums.data, false),
                         CAIRN_OK);
    }
    model_write_rest(&scene, folder, &manifest);
    struct sentence why;
    ck_assert_msg(manifest_commit(folder, &manifest, &why) == CAIRN_OK, "%s", why.text);
    manifest_release(&manifest);
}

TEST(a_snapshot_is_restored_into_a_new_generation_bit_for_bit)
{
    char root[CAIRN_SCRATCH_BYTES], id[CAIRN_SNAPSHOT_ID_BYTES], *folder;
    struct sentence why;
    cairn_scratch_make(root);
    ck_assert_int_eq(snapshot_folder_make(root, "play", 1, 1, id, &folder, &why), CAIRN_OK);
    serve("mem", 2);
    model_round(&model, &scene, 1, 0);
    const Cairn__SnapshotPart *part = pin(folder);
    ck_assert_msg(part->status == CAIRN_OK, "%s", part->text);
    ck_assert_uint_gt(part->n_files, 0);
    check_digests(part);
    commit_snapshot(folder, part);

    struct model saved;
    memset(&saved, 0, sizeof saved);
    model_copy(&saved, &model);
    model_round(&model, &scene, 2, 1); // goes on, and is forgotten
    scene_create(&scene, 8, 2, 1, folder);
    ck_assert_uint_eq(scene_hear(&scene, CAIRN_MSG_DONE).request, 8);
    scene_join(&scene, 1, CAIRN_ROLE_WIRE_WORKER);
    check_plane(CAIRN_PLANE_WIRE, 2, 1, &saved);
    check_plane(CAIRN_PLANE_PARAM, 2, 1, &saved);
    check_plane(CAIRN_PLANE_EXP_AVG, 2, 1, &saved);
    check_plane(CAIRN_PLANE_EXP_AVG_SQ, 2, 1, &saved);
    model_close(&saved);
    leave();
    free(folder);
    cairn_scratch_remove(root);
}

TEST(a_snapshot_that_cannot_be_written_fails_alone)
{
    serve("mem", 1);
    const Cairn__SnapshotPart *part = pin("/nonexistent/folder");
    ck_assert_int_ne(part->status, CAIRN_OK);
    ck_assert_ptr_nonnull(strstr(part->text, "nonexistent"));
    model_round(&model, &scene, 1, 0);
    check_plane(CAIRN_PLANE_WIRE, 1, 1, &model);
    leave();
}

/* Holds the shard's files thread up until it is released. */
struct hold_up {
    struct task task;
    sem_t release;
};
static void wait_for_release(struct task *task, uint32_t item, uint32_t thread)
{
    (void)item;
    (void)thread;
    sem_wait(&((struct hold_up *)task)->release);
}
static void on_released(struct task *task)
{
    sem_destroy(&((struct hold_up *)task)->release);
}

static void say_folder(const char *path)
{
    Cairn__PinFolder folder = CAIRN__PIN_FOLDER__INIT;
    folder.job = SCENE_JOB;
    folder.snapshot = 4;
    folder.path = wire_text(path);
    scene_say(&scene, CAIRN_MSG_PIN_FOLDER, 0, &folder.base);
}

TEST(a_snapshot_or_digest_that_is_given_up_ends_and_leaves_neither_files_nor_staging)
{
    static struct hold_up hold_up = {
        .task = { .run = wait_for_release, .done = on_released, .item_count = 1 }
    };
    char folder[CAIRN_SCRATCH_BYTES];
    cairn_scratch_make(folder);
    serve("mem", 1);
    for (int files = 0; files < 2; files++) {
        const uint64_t before = scene.shard->memory.budget.used_bytes;
        ck_assert_int_eq(sem_init(&hold_up.release, 0, 0), 0);
        pool_submit(scene.shard->snapshots, &hold_up.task);
        Cairn__Pin message = CAIRN__PIN__INIT;
        message.job = SCENE_JOB;
        message.snapshot = 4;
        message.files = files;
        scene_say(&scene, CAIRN_MSG_PIN, 0, &message.base);
        if (files) say_folder(folder);
        say_folder("");
        const Cairn__Probe probe = CAIRN__PROBE__INIT; // answered behind it
        scene_say(&scene, CAIRN_MSG_PROBE, 9, &probe.base);
        scene_hear(&scene, CAIRN_MSG_DONE);
        sem_post(&hold_up.release);
        const Cairn__SnapshotPart *part =
            (const Cairn__SnapshotPart *)scene_hear(&scene, CAIRN_MSG_SNAPSHOT_PART).message;
        ck_assert_int_eq(part->status, CAIRN_ERR_CANCELED);
        ck_assert_ptr_null(LIST_FIRST(&scene.shard->jobs->pins.list));
        ck_assert_uint_eq(scene.shard->memory.budget.used_bytes, before);
    }
    ck_assert_int_eq(rmdir(folder), 0); // empty
    model_round(&model, &scene, 1, 0);
    leave();
}

TEST(a_snapshot_that_is_missing_fails_the_create_and_holds_nothing)
{
    scene_open(&scene, "mem", 1, 0);
    scene_create(&scene, 3, 2, 1, "/nonexistent/snapshot");
    const struct scene_frame answer = scene_hear(&scene, CAIRN_MSG_ERROR);
    ck_assert_uint_eq(answer.request, 3);
    ck_assert_int_eq(((const Cairn__Error *)answer.message)->status, CAIRN_ERR_NOT_FOUND);
    scene_settle(&scene);
    ck_assert_ptr_null(scene.shard->jobs);
    ck_assert_uint_eq(scene.shard->memory.budget.used_bytes, 0);
    scene_close(&scene);
}

/* ---- the coordinator ---- */

TEST(a_lost_coordinator_finds_the_job_and_the_round_again)
{
    serve("mem", 1);
    model_push_round(&scene, 1, 0);
    scene_hear(&scene, CAIRN_MSG_REDUCED);
    peer_close(scene.session, CAIRN_OK, "gone");
    const Cairn__Hello *hello = (const Cairn__Hello *)scene_hear(&scene, CAIRN_MSG_HELLO).message;
    ck_assert_uint_eq(hello->n_held, 1);
    ck_assert_uint_eq(hello->held[0]->job, SCENE_JOB);
    ck_assert_uint_eq(hello->held[0]->generation, 1);
    scene_fence(&scene, 2);
    const Cairn__Answer *answer =
        (const Cairn__Answer *)scene_hear(&scene, CAIRN_MSG_ANSWER).message;
    ck_assert_uint_eq(answer->phase, CAIRN_STEP_REDUCED);
    ck_assert_uint_eq(answer->open_round, 1);
    model_apply(&model, &scene, 1, 0, CAIRN_MSG_RESOLVE);
    check_plane(CAIRN_PLANE_WIRE, 1, 1, &model);
    leave();
}

/* Its MemberLeave was said to nobody: the coordinator does not tell of it any more. */
TEST(who_left_while_the_coordinator_was_away_is_forgotten)
{
    serve("mem", 1);
    scene.lease_ms = 600; // as long as a loaded machine may keep this process from it
    peer_close(scene.session, CAIRN_OK, "gone");
    scene_hear(&scene, CAIRN_MSG_HELLO);
    scene_join(&scene, 2, CAIRN_ROLE_WIRE_WORKER);
    const struct shard_job *job = scene.shard->jobs;
    const Cairn__Heartbeat beat = CAIRN__HEARTBEAT__INIT;
    ck_assert_ptr_nonnull(member_find(job, 1));
    while (member_find(job, 1) != NULL) {
        scene_say(&scene, CAIRN_MSG_HEARTBEAT, 0, &beat.base);
        uv_run(&scene.loop, UV_RUN_ONCE);
    }
    ck_assert_ptr_nonnull(member_find(job, 2));
    leave();
}

TEST(a_job_that_does_not_fit_is_refused_with_the_numbers)
{
    scene_open(&scene, "mem", 1, 200000);
    scene_create(&scene, 3, 1, 0, "");
    const struct scene_frame answer = scene_hear(&scene, CAIRN_MSG_ERROR);
    const Cairn__Error *error = (const Cairn__Error *)answer.message;
    ck_assert_int_eq(error->status, CAIRN_ERR_NO_MEMORY);
    ck_assert_ptr_nonnull(strstr(error->text, "200000"));
    ck_assert_ptr_nonnull(strstr(error->text, "memory.limit"));
    ck_assert_ptr_null(scene.shard->jobs);
    scene_close(&scene);
}

static long peak_kib(void)
{
    struct rusage usage;
    ck_assert_int_eq(getrusage(RUSAGE_SELF, &usage), 0);
    return usage.ru_maxrss;
}

/* 2^39 elements: the table of their chunks alone would be 128 MiB. */
TEST(a_job_of_any_shape_costs_nothing_before_it_is_judged)
{
    scene_open(&scene, "mem", 1, 200000);
    scene_reshape_frozen(&scene, (uint64_t)1 << 23, 1 << 16);
    const long before = peak_kib();
    scene_create(&scene, 3, 1, 0, "");
    const struct scene_frame answer = scene_hear(&scene, CAIRN_MSG_ERROR);
    ck_assert_int_eq(((const Cairn__Error *)answer.message)->status, CAIRN_ERR_NO_MEMORY);
    ck_assert_int_lt(peak_kib() - before, 32 * 1024);
    scene_close(&scene);
}

TEST(a_seal_names_what_is_missing)
{
    scene_open(&scene, "mem", 1, 0);
    scene_create(&scene, 3, 1, 0, "");
    scene_hear(&scene, CAIRN_MSG_DONE);
    Cairn__JobSeal seal = CAIRN__JOB_SEAL__INIT;
    seal.job = SCENE_JOB;
    scene_say(&scene, CAIRN_MSG_JOB_SEAL, 6, &seal.base);
    const struct scene_frame answer = scene_hear(&scene, CAIRN_MSG_ERROR);
    const Cairn__Error *error = (const Cairn__Error *)answer.message;
    ck_assert_uint_eq(answer.request, 6);
    ck_assert_int_eq(error->status, CAIRN_ERR_NOT_READY);
    ck_assert_ptr_nonnull(strstr(error->text, "bias, emb, frozen, weight"));
    scene_close(&scene);
}

TEST(an_older_generation_does_not_replace_a_job)
{
    serve("mem", 1);
    scene_create(&scene, 8, 0, 0, "");
    const struct scene_frame answer = scene_hear(&scene, CAIRN_MSG_ERROR);
    ck_assert_uint_eq(answer.request, 8);
    ck_assert_int_eq(((const Cairn__Error *)answer.message)->status, CAIRN_ERR_EXISTS);
    scene_create(&scene, 9, 1, 0, ""); // asked again: it is held
    ck_assert_uint_eq(scene_hear(&scene, CAIRN_MSG_DONE).request, 9);
    check_plane(CAIRN_PLANE_WIRE, 1, 0, &model);
    leave();
}

TEST(a_decision_without_a_round_stops_the_job_before_a_parameter_changes)
{
    serve("mem", 1);
    Cairn__Decide decide = CAIRN__DECIDE__INIT;
    Cairn__Decision apply = CAIRN__DECISION__INIT;
    apply.kind = CAIRN_DECISION_APPLY;
    apply.round = 1;
    decide.job = SCENE_JOB;
    decide.epoch = scene.epoch;
    decide.decision = &apply;
    scene_say(&scene, CAIRN_MSG_DECIDE, 0, &decide.base);
    const Cairn__Error *error = (const Cairn__Error *)scene_hear(&scene, CAIRN_MSG_ERROR).message;
    ck_assert_ptr_nonnull(strstr(error->text, "play"));
    const Cairn__Hello *hello = (const Cairn__Hello *)scene_hear(&scene, CAIRN_MSG_HELLO).message;
    ck_assert_uint_eq(hello->n_held, 0); // the coordinator sees that it is lost here
    leave();
}

TEST(a_round_before_the_seal_stops_the_job)
{
    scene_open(&scene, "mem", 1, 0);
    scene_create(&scene, 3, 1, 0, "");
    scene_hear(&scene, CAIRN_MSG_DONE);
    scene_fence(&scene, 1);
    scene_resolve_none(&scene);
    scene_round_open(&scene, 1, 0, 1);
    ck_assert_int_eq(((const Cairn__Error *)scene_hear(&scene, CAIRN_MSG_ERROR).message)->status,
                     CAIRN_ERR_PROTOCOL);
    scene_hear(&scene, CAIRN_MSG_HELLO);
    scene_close(&scene);
}

SUITE(60);
