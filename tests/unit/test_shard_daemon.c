/* The shard's daemon on a stage: rounds with the bits of the kernels, fetches, snapshots, and its
 * dealings with the coordinator. What bad messages get: test_shard_refusals.c. */
#include <check.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "proto/fabric/mapped.h"
#include "proto/geometry/layout.h"
#include "tests/support/held_pool.h"
#include "tests/support/scratch.h"
#include "tests/support/shard_model.h"
#include "tests/support/shard_scene.h"
#include "tests/support/suite.h"

static struct scene scene;
static struct model model;

static void check_plane(enum plane plane, uint64_t generation, uint64_t step)
{
    model_check(&model, &scene, plane, generation, step);
}

static void check_state(const struct model *expected, uint64_t generation, uint64_t step)
{
    static const enum plane planes[] = { CAIRN_PLANE_WIRE, CAIRN_PLANE_PARAM, CAIRN_PLANE_EXP_AVG,
                                         CAIRN_PLANE_EXP_AVG_SQ, CAIRN_PLANE_EMA };
    for (size_t i = 0; i < sizeof planes / sizeof *planes; i++)
        model_check(expected, &scene, planes[i], generation, step);
}

/* ---- rounds ---- */

static void run_steps(const char *kind, uint32_t threads)
{
    model_serve(&model, &scene, kind, threads);
    check_plane(CAIRN_PLANE_WIRE, 1, 0);
    struct model before;
    model_copy(&before, &model);
    for (uint64_t step = 0; step < 2; step++) {
        model_copy(&before, &model);
        model_round(&model, &scene, step + 1, step);
        check_state(&model, 1, step + 1);
        model_check(&before, &scene, CAIRN_PLANE_WIRE, 1, step);
    }
    model_close(&before);
    model_leave(&model, &scene);
}

TEST_EACH(a_step_has_the_bits_of_the_kernels, 1, 4)
{
    run_steps("mem", (uint32_t)_i);
}

TEST(a_step_over_ucx_has_the_same_bits)
{
    run_steps("ucx", 2);
}

/* Over UCX the second half of a long message waits for its sender: closing the endpoint ends it. */
TEST(a_worker_that_sleeps_in_the_middle_of_a_chunk_holds_up_no_round_after_it)
{
    model_serve(&model, &scene, "ucx", 1);
    struct shard_job *job = scene.shard->jobs;
    scene_round_begin(&scene, 1, 0, 2);
    const uint64_t chunk = scene_chunk_of(&scene, T_EMB);
    const size_t bytes = scene_chunk_bytes(&scene, chunk);
    float *gradient = calloc(1, bytes);
    struct chunk_header push = scene_chunk_header(&scene, CAIRN_CHUNK_PUSH, 1, chunk);
    ck_assert_uint_gt(bytes, 32768);
    scene_send(&scene, &push, gradient, bytes);
    const uv_prepare_cb awake = scene.poll.prepare.prepare_cb;
    uv_prepare_stop(&scene.poll.prepare); // SIGSTOP
    uv_idle_stop(&scene.poll.idle);
    scene_until(&scene, job->busy != 0);

    scene_tell(&scene, 0, MemberLeave, .job = SCENE_JOB, .member = 1);
    scene_begin_epoch(&scene, 2);
    scene_tell(&scene, 0, RoundOpen, .job = SCENE_JOB, .epoch = 2, .round = 2, .generation = 1,
               .members = (uint64_t[]) { 2 }, .n_members = 1);
    scene_until(&scene, step_round_of(job->collector.step) == 2);
    ck_assert_uint_eq(job->busy, 0);
    uv_prepare_start(&scene.poll.prepare, awake);
    scene_settle(&scene);
    free(gradient);
    model_leave(&model, &scene);
}

SUITE(60);

/* ---- a job at version 1.0 ---- */

static void serve(void)
{
    model_serve(&model, &scene, "mem", 2);
}

static void leave(void)
{
    model_leave(&model, &scene);
}

TEST(a_skipped_round_changes_nothing)
{
    model_push_round(&scene, 1, 0);
    scene_hear(&scene, CAIRN_MSG_REDUCED);
    scene_say_decision(
        &scene, CAIRN_MSG_DECIDE,
        &(Cairn__Decision) { .kind = CAIRN_DECISION_SKIP, .round = 1, .generation = 1 });
    const Cairn__Published *published = scene_heard(&scene, Published);
    ck_assert_uint_eq(published->step, 0);
    ck_assert_uint_eq(published->round, 1);
    check_plane(CAIRN_PLANE_WIRE, 1, 0);
    check_plane(CAIRN_PLANE_EXP_AVG, 1, 0);
}

TEST(a_fenced_round_is_run_again_with_the_same_result)
{
    // Half of a round, then a new epoch: member 1 pushed a chunk, and nothing of it may stay.
    scene_round_begin(&scene, 1, 0, 2);
    model_push_chunk(&scene, 1, 0, 0);
    scene_note(&scene, CAIRN_CHUNK_ACK);
    const Cairn__Answer *answer = scene_begin_epoch(&scene, 2);
    ck_assert_uint_eq(answer->epoch, 2);
    ck_assert_uint_eq(answer->open_round, 0);
    model_round(&model, &scene, 2, 0);
    check_plane(CAIRN_PLANE_WIRE, 1, 1);
}

/* ---- fetches ---- */

static cairn_status fetch_refusal(uint64_t generation, uint64_t step, enum plane plane)
{
    struct chunk_header fetch = scene_fetch_header(&scene, 1, 0, plane, generation, step);
    return scene_nak(&scene, &fetch, NULL, 0);
}

TEST(a_version_is_gone_when_it_is_overwritten_and_never_another_is_given)
{
    model_round(&model, &scene, 1, 0);
    model_round(&model, &scene, 2, 1);
    ck_assert_int_eq(fetch_refusal(1, 0, CAIRN_PLANE_WIRE), CAIRN_ERR_VERSION_GONE);
    ck_assert_int_eq(fetch_refusal(1, 3, CAIRN_PLANE_WIRE), CAIRN_ERR_NOT_READY);
    ck_assert_int_eq(fetch_refusal(2, 2, CAIRN_PLANE_WIRE), CAIRN_ERR_NOT_READY);
    ck_assert_int_eq(fetch_refusal(1, 1, CAIRN_PLANE_PARAM), CAIRN_ERR_VERSION_GONE);
}

TEST(a_peer_that_stops_reading_pins_no_more_than_its_replies)
{
    scene.deaf = true;
    for (int i = 0; i < CAIRN_SHARD_REPLIES_MAX; i++)
        scene_fetch(&scene, 1, 1, CAIRN_PLANE_WIRE, 1, 0);
    scene_fetch(&scene, 1, 0, CAIRN_PLANE_WIRE, 1, 0);
    ck_assert_uint_eq(scene_note(&scene, CAIRN_CHUNK_NAK)->header.value, CAIRN_ERR_BUSY);
    scene_drop(&scene); // all the same
}

/* When the update waits for what the worker does not take, the coordinator has it leave. */
static void leave_when_awaited(uv_check_t *check)
{
    bool *awaited = check->data;
    if (*awaited || !scene.shard->jobs->pass.update_waits) return;
    *awaited = true;
    scene_tell(&scene, 0, MemberLeave, .job = SCENE_JOB, .member = 1);
}

TEST(what_a_worker_is_sent_is_not_overwritten_until_it_leaves)
{
    static bool awaited = false;
    static uv_check_t check; // it closes when the scene does
    scene.deaf = true;
    scene_fetch(&scene, 1, 1, CAIRN_PLANE_WIRE, 1, 0);
    model_round(&model, &scene, 1, 0); // writes the other copy
    uv_check_init(&scene.loop, &check);
    check.data = &awaited;
    uv_check_start(&check, leave_when_awaited);
    model_round(&model, &scene, 2, 1);
    uv_close((uv_handle_t *)&check, NULL);
    ck_assert(awaited);
    ck_assert(!scene.shard->jobs->pass.update_waits);
}

/* ---- snapshots ---- */

static void say_folder(const char *path)
{
    scene_tell(&scene, 0, PinFolder, .job = SCENE_JOB, .snapshot = 4, .path = (char *)path);
}

/* A snapshot into that folder; "": a digest. */
static const Cairn__SnapshotPart *pin(const char *folder)
{
    const bool files = *folder != '\0';
    scene_tell(&scene, 0, Pin, .job = SCENE_JOB, .snapshot = 4, .files = files);
    if (files) say_folder(folder);
    return scene_heard(&scene, SnapshotPart);
}

TEST(a_digest_is_of_the_pinned_version)
{
    model_round(&model, &scene, 1, 0);
    const Cairn__SnapshotPart *part = pin("");
    model_check_part(&model, part, 1);
    ck_assert_uint_eq(part->n_files, 0);
    ck_assert_uint_gt(part->payload.len, 0);
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
    struct model saved = { .scene = NULL };
    cairn_scratch_make(root);
    ck_assert_int_eq(snapshot_folder_make(root, "play", 1, 1, id, &folder, &why), CAIRN_OK);
    model_round(&model, &scene, 1, 0);
    const Cairn__SnapshotPart *part = pin(folder);
    model_check_part(&model, part, 1);
    ck_assert_uint_gt(part->n_files, 0);
    commit_snapshot(folder, part);

    model_copy(&saved, &model);
    model_round(&model, &scene, 2, 1); // goes on, and is forgotten
    scene_create(&scene, 8, 2, 1, folder);
    scene_done(&scene, 8);
    scene_join(&scene, 1, CAIRN_ROLE_WIRE_WORKER);
    check_state(&saved, 2, 1);
    model_close(&saved);
    free(folder);
    cairn_scratch_remove(root);
}

TEST(a_snapshot_that_cannot_be_written_fails_alone)
{
    const Cairn__SnapshotPart *part = pin("/nonexistent/folder");
    ck_assert_int_ne(part->status, CAIRN_OK);
    ck_assert_ptr_nonnull(strstr(part->text, "nonexistent"));
    model_round(&model, &scene, 1, 0);
    check_plane(CAIRN_PLANE_WIRE, 1, 1);
}

TEST(a_snapshot_or_digest_that_is_given_up_ends_and_leaves_neither_files_nor_staging)
{
    char folder[CAIRN_SCRATCH_BYTES];
    cairn_scratch_make(folder);
    for (int files = 0; files < 2; files++) {
        const uint64_t before = scene.shard->memory.budget.used_bytes;
        held_pool_hold(scene.shard->snapshots, 1);
        scene_tell(&scene, 0, Pin, .job = SCENE_JOB, .snapshot = 4, .files = files);
        if (files) say_folder(folder);
        say_folder("");
        scene_tell(&scene, 9, Probe); // answered behind it
        scene_hear(&scene, CAIRN_MSG_DONE);
        held_pool_let_go();
        ck_assert_int_eq(scene_heard(&scene, SnapshotPart)->status, CAIRN_ERR_CANCELED);
        ck_assert_ptr_null(LIST_FIRST(&scene.shard->jobs->pins.list));
        ck_assert_uint_eq(scene.shard->memory.budget.used_bytes, before);
    }
    ck_assert_int_eq(rmdir(folder), 0); // empty
    model_round(&model, &scene, 1, 0);
}

/* ---- the coordinator ---- */

TEST(a_lost_coordinator_finds_the_job_and_the_round_again)
{
    model_push_round(&scene, 1, 0);
    scene_hear(&scene, CAIRN_MSG_REDUCED);
    peer_close(scene.session, CAIRN_OK, "gone");
    const Cairn__Hello *hello = scene_heard(&scene, Hello);
    ck_assert_uint_eq(hello->n_held, 1);
    ck_assert_uint_eq(hello->held[0]->job, SCENE_JOB);
    ck_assert_uint_eq(hello->held[0]->generation, 1);
    scene_fence(&scene, 2);
    const Cairn__Answer *answer = scene_heard(&scene, Answer);
    ck_assert_uint_eq(answer->phase, CAIRN_STEP_REDUCED);
    ck_assert_uint_eq(answer->open_round, 1);
    model_apply(&model, &scene, 1, 0, CAIRN_MSG_RESOLVE);
    check_plane(CAIRN_PLANE_WIRE, 1, 1);
}

/* Its MemberLeave was said to nobody: the coordinator does not tell of it any more. */
TEST(who_left_while_the_coordinator_was_away_is_forgotten)
{
    scene.lease_ms = 600; // as long as a loaded machine may keep this process from it
    peer_close(scene.session, CAIRN_OK, "gone");
    scene_hear(&scene, CAIRN_MSG_HELLO);
    scene_join(&scene, 2, CAIRN_ROLE_WIRE_WORKER);
    const struct shard_job *job = scene.shard->jobs;
    ck_assert_ptr_nonnull(member_find(job, 1));
    while (member_find(job, 1) != NULL) {
        scene_tell(&scene, 0, Heartbeat);
        uv_run(&scene.loop, UV_RUN_ONCE);
    }
    ck_assert_ptr_nonnull(member_find(job, 2));
}

TEST(an_older_generation_does_not_replace_a_job)
{
    scene_create(&scene, 8, 0, 0, "");
    scene_refused(&scene, 8, CAIRN_ERR_EXISTS, "");
    scene_make(&scene, 1); // asked again: it is held
    check_plane(CAIRN_PLANE_WIRE, 1, 0);
}

TEST(a_decision_without_a_round_stops_the_job_before_a_parameter_changes)
{
    scene_say_decision(&scene, CAIRN_MSG_DECIDE,
                       &(Cairn__Decision) { .kind = CAIRN_DECISION_APPLY, .round = 1 });
    ck_assert_ptr_nonnull(strstr(scene_heard(&scene, Error)->text, "play"));
    // The coordinator sees that it is lost here.
    ck_assert_uint_eq(scene_heard(&scene, Hello)->n_held, 0);
}

SUITE(60, serve, leave);

/* ---- where members of the host map the published copies ---- */

static void serve_shared(void)
{
    model_serve(&model, &scene, "mapped", 2);
    scene_settle(&scene);
}

/* A process that keeps what it has mapped of the published copies, whatever it is told. */
enum { KEPT_MAX = 32 };
static struct kept {
    struct fabric_mapping *mapping;
    void *bytes; /* as they were */
} kept[KEPT_MAX];
static size_t kept_count;

static bool is_wire(const struct fabric_mapping *mapping)
{
    struct published_note note;
    memcpy(&note, mapping->note, sizeof note);
    return mapping->note_bytes == sizeof note && note.magic == CAIRN_PUBLISHED_MAGIC &&
           note.segment < note.segment_count;
}

static void keep_what_is_mapped(void)
{
    const struct mapped_in *in;
    const struct fabric_mapping *mapping;
    kept_count = 0;
    LIST_FOREACH (in, &mapped_of(scene.fabric)->ins, entry)
        LIST_FOREACH (mapping, &in->all, entry) {
            if (!is_wire(mapping)) continue;
            ck_assert_uint_lt(kept_count, KEPT_MAX);
            struct kept *one = &kept[kept_count++];
            one->mapping = (struct fabric_mapping *)(uintptr_t)mapping;
            one->bytes = malloc(mapping->bytes);
            memcpy(one->bytes, mapping->memory, mapping->bytes);
        }
    for (size_t i = 0; i < kept_count; i++) fabric_mapping_hold(kept[i].mapping);
    ck_assert_uint_ge(kept_count, CAIRN_COPIES_ALWAYS);
}

/* Returns how many of the mappings that were kept have other bytes than before, and lets them go. */
static size_t written_since(void)
{
    size_t written = 0;
    for (size_t i = 0; i < kept_count; i++) {
        const struct fabric_mapping *mapping = kept[i].mapping;
        written += memcmp(kept[i].bytes, mapping->memory, mapping->bytes) != 0;
        free(kept[i].bytes);
        fabric_mapping_release(kept[i].mapping);
    }
    kept_count = 0;
    return written;
}

static void put_out(uint64_t member)
{
    scene_tell(&scene, 0, MemberLeave, .job = SCENE_JOB, .member = member, .withdrawn = true);
    scene_settle(&scene);
}

/* Round r of epoch 2, without member 2. */
static void train_on(uint64_t round)
{
    model_round(&model, &scene, round, round - 1);
    scene_settle(&scene);
    check_plane(CAIRN_PLANE_WIRE, 1, round);
}

/* Three rounds write each of the two copies at least once. */
static void train_three(uint64_t first)
{
    for (uint64_t round = first; round < first + 3; round++) train_on(round);
}

TEST(what_a_member_has_mapped_is_not_written_any_more_once_it_was_put_out)
{
    const uint64_t budget = scene.shard->memory.budget.used_bytes;
    train_on(1);
    scene_join(&scene, 3, CAIRN_ROLE_WIRE_READER);
    scene_settle(&scene);
    keep_what_is_mapped();
    put_out(3);
    train_three(2);
    ck_assert_uint_eq(written_since(), 0);
    ck_assert_uint_eq(scene.shard->memory.budget.used_bytes, budget);
}

/* Its mapping outlives its membership, so the word may come when it is nobody's any more. */
TEST(nor_is_what_somebody_mapped_who_has_left_before_it_loses_its_right)
{
    scene_join(&scene, 3, CAIRN_ROLE_WIRE_READER);
    scene_settle(&scene);
    keep_what_is_mapped();
    scene_leave(&scene, 3);
    put_out(0);
    train_three(1);
    ck_assert_uint_eq(written_since(), 0);
}

TEST(a_member_that_leaves_by_itself_costs_no_new_memory)
{
    scene_join(&scene, 3, CAIRN_ROLE_WIRE_READER);
    scene_settle(&scene);
    const uint32_t made = scene.shard->copies_made;
    put_out(0); // nobody has left yet
    scene_leave(&scene, 3);
    train_three(1);
    ck_assert_uint_eq(scene.shard->copies_made, made);
    put_out(0);
    train_three(4);
    ck_assert_uint_eq(scene.shard->copies_made, made + CAIRN_COPIES_ALWAYS);
    put_out(0); // nobody has left since
    train_three(7);
    ck_assert_uint_eq(scene.shard->copies_made, made + CAIRN_COPIES_ALWAYS);
}

TEST(whoever_is_left_maps_the_new_memory_and_has_the_newest_version_in_it)
{
    scene_join(&scene, 3, CAIRN_ROLE_WIRE_READER);
    put_out(3);
    train_three(1);
    keep_what_is_mapped(); // of those who are left
    train_three(4);
    ck_assert_uint_gt(written_since(), 0);
}

/* The alternative would be to stop the job. The next step tries again. */
TEST(a_host_without_room_for_new_memory_goes_on_in_the_old_until_there_is)
{
    char root[CAIRN_SCRATCH_BYTES], proc[CAIRN_SCRATCH_BYTES + 8], path[128];
    cairn_scratch_make(root);
    snprintf(proc, sizeof proc, "%s/proc", root);
    ck_assert_int_eq(mkdir(proc, 0700), 0);
    cairn_scratch_file(root, "proc/meminfo", "MemTotal: 1000 kB\nMemAvailable: 1 kB\n", path,
                       sizeof path);
    char *host_root = scene.shard->memory.host_root;
    scene.shard->memory.host_root = root;
    scene_join(&scene, 3, CAIRN_ROLE_WIRE_READER);
    scene.shard->memory.host_root = host_root;
    scene_settle(&scene);
    put_out(3);
    keep_what_is_mapped();
    scene.shard->memory.host_root = root;
    train_three(1);
    scene.shard->memory.host_root = host_root;
    ck_assert_uint_gt(written_since(), 0);
    keep_what_is_mapped();
    train_three(4);
    ck_assert_uint_eq(written_since(), 0);
    cairn_scratch_remove(root);
}

TEST(a_leased_version_stays_while_the_copies_get_new_memory)
{
    struct model before;
    model_copy(&before, &model);
    scene_lease(&scene, 7, 1, 0);
    scene_join(&scene, 3, CAIRN_ROLE_WIRE_READER);
    put_out(3);
    train_three(1);
    model_check(&before, &scene, CAIRN_PLANE_WIRE, 1, 0);
    model_close(&before);
}

SUITE(60, serve_shared, leave);

/* Whoever was put out while the job was made has mapped the copies, too. */
TEST(the_first_version_is_not_written_where_somebody_that_was_put_out_sees_it)
{
    scene_open(&scene, "mapped", 2, 0);
    scene_make(&scene, 1);
    for (uint64_t m = 1; m <= 3; m++) scene_join(&scene, m, CAIRN_ROLE_WIRE_WORKER);
    scene_put_all(&scene, 1);
    scene_settle(&scene);
    keep_what_is_mapped();
    put_out(3);
    scene_seal(&scene);
    scene_begin_epoch(&scene, 1);
    ck_assert_uint_eq(written_since(), 0);
    model_open(&model, &scene);
    check_plane(CAIRN_PLANE_WIRE, 1, 0);
    leave();
}

SUITE(60);

/* ---- before there is one ---- */

static void open_empty(void)
{
    scene_open(&scene, "mem", 1, 0);
}

static void close_empty(void)
{
    scene_close(&scene);
}

TEST(a_snapshot_that_is_missing_fails_the_create_and_holds_nothing)
{
    scene_create(&scene, 3, 2, 1, "/nonexistent/snapshot");
    scene_refused(&scene, 3, CAIRN_ERR_NOT_FOUND, "");
    scene_settle(&scene);
    ck_assert_ptr_null(scene.shard->jobs);
    ck_assert_uint_eq(scene.shard->memory.budget.used_bytes, 0);
}

TEST(a_job_that_does_not_fit_is_refused_with_the_numbers)
{
    scene.shard->memory.budget.limit_bytes = 200000;
    scene_create(&scene, 3, 1, 0, "");
    const char *text = scene_refused(&scene, 3, CAIRN_ERR_NO_MEMORY, "memory.limit");
    ck_assert_ptr_nonnull(strstr(text, "200000"));
    ck_assert_ptr_null(scene.shard->jobs);
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
    scene.shard->memory.budget.limit_bytes = 200000;
    scene_reshape_frozen(&scene, (uint64_t)1 << 23, 1 << 16);
    const long before = peak_kib();
    scene_create(&scene, 3, 1, 0, "");
    scene_refused(&scene, 3, CAIRN_ERR_NO_MEMORY, "");
    ck_assert_int_lt(peak_kib() - before, 32 * 1024);
}

TEST(a_seal_names_what_is_missing)
{
    scene_make(&scene, 1);
    scene_tell(&scene, 6, JobSeal, .job = SCENE_JOB);
    scene_refused(&scene, 6, CAIRN_ERR_NOT_READY, "bias, emb, frozen, weight");
}

TEST(a_round_before_the_seal_stops_the_job)
{
    scene_make(&scene, 1);
    scene_fence(&scene, 1);
    scene_resolve_none(&scene);
    scene_round_open(&scene, 1, 0, 1);
    ck_assert_int_eq(scene_heard(&scene, Error)->status, CAIRN_ERR_PROTOCOL);
    scene_hear(&scene, CAIRN_MSG_HELLO);
}

SUITE(60, open_empty, close_empty);
