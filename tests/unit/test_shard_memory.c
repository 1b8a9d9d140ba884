/* Memory is there before it is counted on: a job or a worker for which the host has none is refused, with the
 * numbers; what is admitted has its pages; who waits for another shard's turn holds nothing else up. */
#include <check.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "proto/plan/plan.h"
#include "server/shard/jobs.h"
#include "server/shard/part.h"
#include "tests/support/apart.h"
#include "tests/support/scratch.h"
#include "tests/support/shard_scene.h"
#include "tests/support/suite.h"

#define STREAMS_APART_LINES 12

static struct scene scene;
static char root[CAIRN_SCRATCH_BYTES];

/* A host with so much left, without control groups. */
static void leave_mib(unsigned mib)
{
    char path[128], text[128];
    snprintf(text, sizeof text, "MemTotal: 1048576 kB\nMemAvailable: %u kB\n", mib * 1024);
    cairn_scratch_file(root, "proc/meminfo", text, path, sizeof path);
}

static void set_up(void)
{
    char proc[CAIRN_SCRATCH_BYTES + 8];
    cairn_scratch_make(root);
    snprintf(proc, sizeof proc, "%s/proc", root);
    ck_assert_int_eq(mkdir(proc, 0700), 0);
    leave_mib(500);
    scene_open_on(&scene, root, root);
}

static void tear_down(void)
{
    scene_close(&scene);
    cairn_scratch_remove(root);
}

/* Why a request was refused: there is no memory. */
static const char *refusal(uint32_t request)
{
    return scene_refused(&scene, request, CAIRN_ERR_NO_MEMORY, "");
}

static void create(void)
{
    scene_make(&scene, 1);
}

/* Of the slots of so many workers. */
static uint64_t landing_of(const struct shard_job *job, uint32_t workers)
{
    return landing_at(&job->landing, workers * job->landing.window);
}

/* The slots of so many workers, and no page more. */
static void check_landing(const struct shard_job *job, uint32_t workers)
{
    const size_t bytes = landing_of(job, workers);
    ck_assert_uint_eq(scene_resident(&job->landing.arena), (bytes + 4095) / 4096 * 4096);
}

TEST(a_job_that_the_host_has_no_room_for_is_refused_with_the_numbers)
{
    leave_mib(8);
    scene_create(&scene, 3, 1, 0, "");
    const char *text = refusal(3);
    ck_assert_msg(strstr(text, "the state of job play needs ") != NULL, "%s", text);
    ck_assert_ptr_nonnull(strstr(text, "but only 8388608 are available: the host's RAM"));
    scene_settle(&scene);
    ck_assert_ptr_null(scene.shard->jobs);
    ck_assert_uint_eq(scene.shard->memory.budget.used_bytes, 0);
    leave_mib(500);
    create();
}

TEST(what_is_admitted_has_its_pages_and_gaps_have_none)
{
    create();
    const struct shard_job *job = scene.shard->jobs;
    const struct arena *home = job->planes.host;
    const struct arena *whole[] = { &home[CAIRN_PLANE_PARAM], &job->versions.copies[0].wire,
                                    &job->versions.copies[1].wire, &job->puts.arena };
    for (size_t i = 0; i < sizeof whole / sizeof *whole; i++)
        ck_assert_uint_ge(scene_resident(whole[i]), whole[i]->bytes);
    // sgd has no exp_avg_sq, and the frozen tensor takes no gradient.
    uint64_t kept_bytes = 0;
    for (size_t i = 0; i < job->view->table.map.extent_count; i++)
        kept_bytes += form_bytes(&job->view->forms[i], CAIRN_PLANE_EXP_AVG_SQ,
                                 job->view->table.map.extents[i].elem_count);
    ck_assert_uint_ge(scene_resident(&home[CAIRN_PLANE_EXP_AVG_SQ]), kept_bytes);
    ck_assert_uint_lt(scene_resident(&home[CAIRN_PLANE_EXP_AVG_SQ]),
                      home[CAIRN_PLANE_EXP_AVG_SQ].bytes);
    ck_assert_uint_lt(scene_resident(&home[CAIRN_PLANE_SUM]), home[CAIRN_PLANE_SUM].bytes);
    check_landing(job, 0);
}

/* What a loop goes through side by side begins at other lines of a page: proto/fabric/backend.h. */
TEST(no_two_streams_of_an_update_or_a_fold_collide)
{
    create();
    const struct shard_job *job = scene.shard->jobs;
    const struct arena *home = job->planes.host;
    const void *streams[] = { job->versions.copies[0].wire.base, home[CAIRN_PLANE_PARAM].base,
                              home[CAIRN_PLANE_EXP_AVG].base, home[CAIRN_PLANE_EXP_AVG_SQ].base,
                              home[CAIRN_PLANE_SUM].base };
    for (size_t i = 0; i < CAIRN_STREAMS; i++)
        for (size_t k = 0; k < i; k++)
            ck_assert_uint_ge(lines_apart(streams[i], streams[k]), STREAMS_APART_LINES);
    const uint32_t window = job->landing.window, have = window - job->landing.in_place;
    for (uint32_t slot = 1; slot < job->collector.slot_count; slot++)
        if (slot % window < have && slot % window > 0)
            ck_assert_uint_ge(
                lines_apart(job->landing.arena.base + landing_at(&job->landing, slot),
                            job->landing.arena.base + landing_at(&job->landing, slot - 1)),
                STREAMS_APART_LINES);
    // A window apart, as the contributions of two workers to a chunk are.
    ck_assert_uint_ge(
        lines_apart(job->landing.arena.base + landing_of(job, 1), job->landing.arena.base),
        STREAMS_APART_LINES);
}

TEST(landing_slots_are_taken_as_workers_join)
{
    create();
    const struct shard_job *job = scene.shard->jobs;
    scene_join(&scene, 1, CAIRN_ROLE_WIRE_READER);
    check_landing(job, 0);
    scene_join(&scene, 2, CAIRN_ROLE_WIRE_WORKER);
    check_landing(job, 1);
    scene_ask_join(&scene, 3, CAIRN_ROLE_WIRE_WORKER);
    scene_join(&scene, 4, CAIRN_ROLE_WIRE_WORKER);
    scene_hear(&scene, CAIRN_MSG_DONE);
    check_landing(job, 3);
    // A round has no more members than the job was made for.
    scene_join(&scene, 5, CAIRN_ROLE_WIRE_WORKER);
    check_landing(job, SCENE_MEMBERS);
}

TEST(a_worker_without_room_to_land_is_refused_and_not_there)
{
    create();
    scene_join(&scene, 1, CAIRN_ROLE_WIRE_WORKER);
    leave_mib(1);
    scene_ask_join(&scene, 2, CAIRN_ROLE_WIRE_WORKER);
    const char *text = refusal(5);
    ck_assert_msg(strstr(text, "landing memory of the workers of job play needs ") != NULL, "%s",
                  text);
    ck_assert_ptr_null(member_find(scene.shard->jobs, 2));
    ck_assert_ptr_nonnull(member_find(scene.shard->jobs, 1));
    leave_mib(500);
    scene_join(&scene, 2, CAIRN_ROLE_WIRE_WORKER);
}

TEST(the_budget_counts_landing_slots_of_workers_that_are_there)
{
    create();
    struct shard_job *job = scene.shard->jobs;
    const uint64_t used = scene.shard->memory.budget.used_bytes;
    const uint64_t landing = landing_of(job, 1);
    const uint64_t worker = landing + reply_memory_bytes(job->replies.bytes);
    ck_assert_uint_eq(used, memory_sum(&job->memory));
    ck_assert_uint_eq(job->memory.landing, 0);
    for (uint64_t member = 1; member <= SCENE_MEMBERS; member++) {
        scene_join(&scene, member, CAIRN_ROLE_WIRE_WORKER);
        ck_assert_uint_eq(job->memory.landing, member * landing);
        ck_assert_uint_eq(scene.shard->memory.budget.used_bytes, used + member * worker);
    }
    scene_join(&scene, SCENE_MEMBERS + 1, CAIRN_ROLE_WIRE_READER);
    scene_join(&scene, SCENE_MEMBERS, CAIRN_ROLE_WIRE_WORKER); // again, replaced
    ck_assert_uint_eq(scene.shard->memory.budget.used_bytes, used + SCENE_MEMBERS * worker);
    for (uint64_t member = SCENE_MEMBERS; member >= 1; member--) {
        scene_leave(&scene, member);
        check_landing(job, (uint32_t)member - 1);
        ck_assert_uint_eq(scene.shard->memory.budget.used_bytes, used + (member - 1) * worker);
    }
}

/* The loop does not stand still for it. */
TEST(much_landing_memory_is_given_back_in_several_turns)
{
    create();
    struct shard_job *job = scene.shard->jobs;
    const uint64_t used = scene.shard->memory.budget.used_bytes,
                   landing = landing_of(job, SCENE_MEMBERS);
    for (uint64_t member = 1; member <= SCENE_MEMBERS; member++)
        scene_join(&scene, member, CAIRN_ROLE_WIRE_WORKER);
    scene.shard->memory.give_max_bytes = 2 * job->landing.slot_bytes;
    for (uint64_t member = 1; member <= SCENE_MEMBERS; member++) members_leave(job, member);
    for (int i = 0; i < 2; i++) admit_left(job); // the second one finds the turn's share used
    const uint32_t slots = SCENE_MEMBERS * job->landing.window;
    ck_assert_uint_gt(job->landing.small, 0); // the last ones
    ck_assert_uint_le(landing - job->memory.landing, 2 * job->landing.slot_bytes);
    ck_assert_uint_lt(job->memory.landing, landing_at(&job->landing, slots - 1));
    scene_settle(&scene);
    ck_assert_uint_eq(scene.shard->memory.budget.used_bytes, used);
    check_landing(job, 0);
    scene.shard->memory.give_max_bytes = 1; // a slot at least
    scene_join(&scene, 1, CAIRN_ROLE_WIRE_WORKER);
    scene_leave(&scene, 1);
    check_landing(job, 0);
}

TEST(a_worker_over_the_memory_limit_is_refused_with_the_numbers)
{
    create();
    scene_join(&scene, 1, CAIRN_ROLE_WIRE_WORKER);
    const uint64_t used = scene.shard->memory.budget.used_bytes;
    scene.shard->memory.budget.limit_bytes = used + 1;
    scene_ask_join(&scene, 2, CAIRN_ROLE_WIRE_WORKER);
    const char *text = refusal(5);
    ck_assert_msg(strstr(text, "landing memory of one more worker of job play needs ") != NULL &&
                      strstr(text, "and 1 of memory.limit") != NULL,
                  "%s", text);
    ck_assert_ptr_null(member_find(scene.shard->jobs, 2));
    ck_assert_uint_eq(scene.shard->memory.budget.used_bytes, used);
    scene_leave(&scene, 1); // makes room for another
    scene_join(&scene, 2, CAIRN_ROLE_WIRE_WORKER);
    ck_assert_uint_eq(scene.shard->memory.budget.used_bytes, used);
}

/* ---- replies ---- */

/* What a refusal says that the job needs, with workers_min workers. */
static uint64_t bytes_needed(void)
{
    scene.shard->memory.budget.limit_bytes = 1;
    scene_create(&scene, 3, 1, 0, "");
    const char *text = refusal(3), *at = strstr(text, ") needs ");
    ck_assert_msg(at != NULL, "%s", text);
    scene_settle(&scene);
    return strtoull(at + strlen(") needs "), NULL, 10);
}

static void ask(uint64_t member, enum plane plane)
{
    scene_fetch(&scene, member, 0, plane, 1, 0);
}

TEST(a_job_trains_with_exactly_the_bytes_that_its_refusal_said)
{
    static const enum plane planes[] = { CAIRN_PLANE_WIRE, CAIRN_PLANE_PARAM };
    scene.shard->memory.budget.limit_bytes = bytes_needed();
    scene_serve(&scene, 1, 1);
    ck_assert_uint_eq(scene.shard->memory.budget.used_bytes,
                      scene.shard->memory.budget.limit_bytes);
    for (size_t i = 0; i < sizeof planes / sizeof *planes; i++) {
        ask(1, planes[i]);
        ck_assert(scene_note(&scene, CAIRN_CHUNK_DATA)->whole);
    }
    scene_join(&scene, 2, CAIRN_ROLE_WIRE_READER); // takes nothing of the worker's
    ask(2, CAIRN_PLANE_WIRE);
    ck_assert_uint_eq(scene_note(&scene, CAIRN_CHUNK_NAK)->header.value, CAIRN_ERR_BUSY);
    ask(1, CAIRN_PLANE_WIRE);
    ck_assert(scene_note(&scene, CAIRN_CHUNK_DATA)->whole);
    scene.shard->memory.budget.limit_bytes += reply_memory_bytes(scene.shard->jobs->replies.bytes);
    ask(2, CAIRN_PLANE_WIRE);
    ck_assert(scene_note(&scene, CAIRN_CHUNK_DATA)->whole);
}

/* Its reply is being sent yet: who comes in its place gets it when it is back. */
TEST(the_reply_of_a_worker_that_left_is_the_next_one_s)
{
    scene.shard->memory.budget.limit_bytes = bytes_needed();
    scene_serve(&scene, 1, 1);
    struct shard_job *job = scene.shard->jobs;
    scene.deaf = true;
    ask(1, CAIRN_PLANE_PARAM);
    scene_settle(&scene);
    ck_assert_uint_eq(member_find(job, 1)->replies, 1);
    members_leave(job, 1);
    scene.deaf = false;
    scene_join(&scene, 2, CAIRN_ROLE_WIRE_WORKER);
    scene_settle(&scene);
    ask(2, CAIRN_PLANE_PARAM);
    ck_assert(scene_note(&scene, CAIRN_CHUNK_DATA)->whole);
    scene_leave(&scene, 2);
    ck_assert_uint_eq(scene.shard->memory.budget.used_bytes, memory_sum(&job->memory));
    ck_assert_uint_eq(scene.shard->memory.budget.used_bytes,
                      scene.shard->memory.budget.limit_bytes - landing_of(job, 1) -
                          reply_memory_bytes(job->replies.bytes));
}

static int take_turn(void)
{
    const int fd = open(root, O_RDONLY | O_CLOEXEC);
    ck_assert_int_eq(flock(fd, LOCK_EX | LOCK_NB), 0);
    return fd;
}

TEST(slots_of_a_worker_that_left_while_they_were_made_are_given_back)
{
    create();
    const struct shard_job *job = scene.shard->jobs;
    const int fd = take_turn();
    scene_ask_join(&scene, 1, CAIRN_ROLE_WIRE_WORKER);
    scene_settle(&scene);
    ck_assert_uint_gt(job->memory.landing, 0);
    scene_leave(&scene, 1);
    close(fd);
    scene_hear(&scene, CAIRN_MSG_DONE);
    ck_assert_uint_eq(job->memory.landing, 0);
    check_landing(job, 0);
}

/* The round's second worker has the second window, whoever is gone. */
TEST(slots_of_an_open_round_are_kept_until_it_has_ended)
{
    scene_serve(&scene, 2, 1);
    struct shard_job *job = scene.shard->jobs;
    const uint64_t worker = landing_of(job, 1);
    scene_round_open(&scene, 1, 0, 2);
    scene_settle(&scene);
    scene_leave(&scene, 1);
    ck_assert_uint_eq(job->memory.landing, 2 * worker);
    check_landing(job, 2);
    scene_begin_epoch(&scene, 2);
    scene_settle(&scene);
    ck_assert_uint_eq(job->memory.landing, worker);
    check_landing(job, 1);
}

/* ---- another shard's turn ---- */

TEST(who_waits_for_another_shard_s_turn_is_alive_and_then_goes_on)
{
    const int fd = take_turn();
    scene_create(&scene, 3, 1, 0, "");
    scene_hear(&scene, CAIRN_MSG_HEARTBEAT);
    scene_hear(&scene, CAIRN_MSG_HEARTBEAT);
    ck_assert_int_eq(scene.shard->jobs->state, CAIRN_JOB_LOADING);
    ck_assert_uint_eq(scene_resident(&scene.shard->jobs->planes.host[CAIRN_PLANE_PARAM]), 0);
    close(fd);
    scene_done(&scene, 3);
}

TEST(a_job_that_is_dropped_meanwhile_is_gone_without_its_turn)
{
    const int fd = take_turn();
    scene_create(&scene, 3, 1, 0, "");
    scene_hear(&scene, CAIRN_MSG_HEARTBEAT);
    scene_tell(&scene, 4, JobDrop, .job = SCENE_JOB);
    ck_assert_uint_eq(scene_hear(&scene, CAIRN_MSG_ERROR).request, 3);
    scene_done(&scene, 4);
    ck_assert_ptr_null(scene.shard->jobs);
    close(fd);
    create();
}

/* It waits for the memory of the generation before it. */
TEST(a_job_that_is_dropped_before_it_is_made_is_not_made)
{
    create();
    scene_tell(&scene, 8, JobDrop, .job = SCENE_JOB);
    scene_create(&scene, 9, 2, 0, "");
    scene_tell(&scene, 10, JobDrop, .job = SCENE_JOB);
    scene_refused(&scene, 9, CAIRN_ERR_CANCELED, "");
    for (int i = 0; i < 2; i++) ck_assert_uint_ne(scene_hear(&scene, CAIRN_MSG_DONE).request, 9);
    scene_settle(&scene);
    ck_assert_ptr_null(scene.shard->jobs);
    ck_assert_uint_eq(scene.shard->memory.budget.used_bytes, 0);
}

/* So many tensors that a thread reads them, and makes the job's tables; then so many turns of the loop go
 * by. */
static void create_on_threads(int turns)
{
    struct layout *layout;
    struct plan_report report;
    char name[120];
    while (scene.spec.tensor_count < 400) {
        snprintf(name, sizeof name, "one.of.very.many.%0100zu", scene.spec.tensor_count);
        const struct tensor_spec tensor = { .name = name,
                                            .unit = name,
                                            .group = (char *)"",
                                            .kind = CAIRN_FROZEN,
                                            .wire = CAIRN_F32,
                                            .reduce = CAIRN_F32,
                                            .master = CAIRN_F32,
                                            .shape = { .rank = 1, .dim = { 3 } } };
        ck_assert_int_eq(spec_add_tensor(&scene.spec, &tensor), CAIRN_OK);
    }
    struct sentence why;
    spec_canonicalize(&scene.spec);
    ck_assert_msg(spec_check(&scene.spec, optimizer_names(), &why) == CAIRN_OK, "%s", why.text);
    ck_assert_int_eq(plan_job(&scene.spec, SCENE_SHARDS, &layout, &report), CAIRN_OK);
    scene_relayout(&scene, layout);
    scene_create(&scene, 3, 1, 0, "");
    for (int i = 0; i < turns; i++) uv_run(&scene.loop, UV_RUN_ONCE);
}

#define TURNS 12 /* the job is held before */

TEST_EACH(a_job_that_is_dropped_while_threads_make_it_leaves_nothing, 0, TURNS)
{
    create_on_threads(_i);
    scene_tell(&scene, 8, JobDrop, .job = SCENE_JOB);
    while (scene_hear(&scene, CAIRN_MSG_DONE).request != 8) {} // or the create was quicker
    create();                                                  // waits for what is given back
    ck_assert_uint_eq(scene.shard->memory.budget.used_bytes,
                      memory_sum(&scene.shard->jobs->memory));
    ck_assert(TAILQ_EMPTY(&scene.shard->arriving_dropped));
}

TEST_EACH(a_shard_that_is_closed_while_threads_make_a_job_frees_all, 0, TURNS)
{
    create_on_threads(_i);
    scene_close(&scene);
    scene_open_on(&scene, root, root); // for tear_down
}

TEST(a_shard_that_is_closed_meanwhile_does_not_wait)
{
    const int fd = take_turn();
    scene_create(&scene, 3, 1, 0, "");
    scene_hear(&scene, CAIRN_MSG_HEARTBEAT);
    scene_close(&scene);
    close(fd);
    scene_open_on(&scene, root, root); // for tear_down
}

TEST(without_a_lock_jobs_are_made_all_the_same)
{
    scene_close(&scene);
    scene_open_on(&scene, root, "/nowhere/at/all");
    create();
}

SUITE(30, set_up, tear_down);
