/* A shard makes a generation of a job of the one that serves: what it copies, what it begins, which of both
 * stays, and what it refuses. */
#include <check.h>
#include <stdlib.h>
#include <string.h>

#include "proto/plan/plan.h"
#include "tests/support/held_pool.h"
#include "tests/support/shard_scene.h"
#include "tests/support/suite.h"

enum { COMPUTE_THREADS = 2 };
static struct scene scene;

/* malloc is this file's (tests/CMakeLists.txt): it fails for so many bytes where the call stands within a few
 * lines of the one that was noted, as others may want as many; or notes both. */
static size_t malloc_fails_for, malloc_wanted;
static uintptr_t malloc_failing_site, malloc_site;
#define SITES_OF_ONE_FILE ((uintptr_t)2048)

void *__real_malloc(size_t bytes);
void *__wrap_malloc(size_t bytes);
void *__wrap_malloc(size_t bytes)
{
    malloc_wanted = bytes;
    malloc_site = (uintptr_t)__builtin_return_address(0);
    const bool is_near = malloc_site - malloc_failing_site + SITES_OF_ONE_FILE <
                         2 * SITES_OF_ONE_FILE;
    return bytes == malloc_fails_for && bytes > 0 && is_near ? NULL : __real_malloc(bytes);
}

static void serve(void)
{
    scene_open(&scene, "mem", COMPUTE_THREADS, 0);
    scene_serve(&scene, 1, 1);
}

static void leave(void)
{
    scene_close(&scene);
}

/* Another spec: "late" is there, "frozen" is trained; and the layout that follows. */
static void amend_scene(cairn_init_kind init)
{
    struct layout_tensor tensors[TENSORS + 1];
    struct layout *layout;
    uint32_t was[TENSORS + 1];
    const struct tensor_spec late = { .name = wire_text("late"),
                                      .group = wire_text("a"),
                                      .kind = CAIRN_TRAINED,
                                      .wire = CAIRN_BF16,
                                      .reduce = CAIRN_F32,
                                      .master = CAIRN_F32,
                                      .shape = { 2, { 300, 700 } },
                                      .init = { .kind = init,
                                                .a = init == CAIRN_INIT_CONSTANT ? 3 : 0 } };
    struct tensor_spec *frozen = &scene.spec.tensors[T_FROZEN];
    frozen->kind = CAIRN_TRAINED;
    free(frozen->group);
    frozen->group = strdup("a");
    ck_assert_int_eq(spec_add_tensor(&scene.spec, &late), CAIRN_OK);
    spec_canonicalize(&scene.spec);
    for (uint32_t t = 0; t <= TENSORS; t++) {
        const struct tensor_spec *spec = &scene.spec.tensors[t];
        tensors[t] = (struct layout_tensor) {
            .name = spec->name, .unit = spec->unit, .shape = spec->shape, .elem_bytes = 4
        };
        was[t] = t < T_WEIGHT ? t : t == T_WEIGHT ? CAIRN_TENSOR_NEW : T_WEIGHT;
    }
    const struct plan_request request = { .tensors = tensors,
                                          .tensor_count = TENSORS + 1,
                                          .shard_count = scene.layout->shard_count,
                                          .held = scene.layout,
                                          .free = CAIRN_FREE_NEW,
                                          .was = was };
    ck_assert_int_eq(plan_make(&request, &layout, NULL), CAIRN_OK);
    scene_relayout(&scene, layout);
    scene.extends = true;
}

static void say_switch(uint64_t generation)
{
    scene_tell(&scene, 0, JobSwitch, .job = SCENE_JOB, .generation = generation);
    scene_settle(&scene);
}

static size_t held(void)
{
    size_t count = 0;
    for (const struct shard_job *j = scene.shard->jobs; j != NULL; j = j->next) count++;
    return count;
}

static void check_extent(const struct shard_job *job, size_t number)
{
    const struct local_extent *extent = &job->view->table.map.extents[number];
    const char *name = job->spec.tensors[extent->tensor].name;
    const bool late = strcmp(name, "late") == 0;
    const uint32_t was = extent->tensor > T_WEIGHT ? T_WEIGHT : extent->tensor;
    const float *param = scene_plane(job, CAIRN_PLANE_PARAM),
                *moment = scene_plane(job, CAIRN_PLANE_EXP_AVG);
    param += extent->local_elem;
    moment += extent->local_elem;
    for (uint64_t i = 0; i < extent->elem_count; i++) {
        const float wanted = late ? 3.0F : scene_initial(was, extent->first_elem + i);
        ck_assert_msg(param[i] == wanted, "%s [%zu]", name, (size_t)i);
        ck_assert(moment[i] == 0);
    }
}

TEST(what_both_have_is_copied_what_is_new_begins_and_the_old_one_serves_until_the_switch)
{
    amend_scene(CAIRN_INIT_CONSTANT);
    scene_make(&scene, 2);
    ck_assert_uint_eq(held(), 2);
    ck_assert_uint_eq(shard_job_find(scene.shard, SCENE_JOB)->generation, 1);
    say_switch(2);
    ck_assert_uint_eq(held(), 1);
    const struct shard_job *job = shard_job_find(scene.shard, SCENE_JOB);
    ck_assert_uint_eq(job->generation, 2);
    ck_assert_uint_eq(step_version(job->collector.step).generation, 2);
    ck_assert_uint_eq(job->spec.tensor_count, TENSORS + 1);
    ck_assert_uint_eq(job->view->table.map.extent_count, TENSORS + 1); // "late" stands here, too
    for (size_t i = 0; i < job->view->table.map.extent_count; i++) check_extent(job, i);
}

/* The parts that it says it holds, of which none, or all, are settled. */
static void expect_held(uint32_t request, bool settled)
{
    scene_tell(&scene, request, PartGet);
    const struct scene_frame frame = scene_hear(&scene, CAIRN_MSG_HELD_JOBS);
    const Cairn__HeldJobs *held = (const Cairn__HeldJobs *)frame.message;
    ck_assert_uint_eq(frame.request, request);
    ck_assert_uint_eq(held->n_held, 2);
    for (size_t i = 0; i < 2; i++) {
        ck_assert_int_eq(held->held[i]->staged, held->held[i]->generation == 2);
        ck_assert_int_eq(held->held[i]->unsettled, !settled);
        ck_assert(held->held[i]->serving);
    }
}

TEST(a_store_that_adopts_gets_the_staged_generation_and_nothing_is_a_leftover_to_it)
{
    amend_scene(CAIRN_INIT_CONSTANT);
    scene_make(&scene, 2);
    expect_held(10, false);
    scene.shard->session.standing = CAIRN_STANDING_FOREIGN; // its own store was lost
    scene_tell(&scene, 11, PartGet, .job = SCENE_JOB, .generation = 2);
    const struct scene_frame frame = scene_hear(&scene, CAIRN_MSG_PART);
    ck_assert_uint_eq(frame.request, 11);
    ck_assert_uint_eq(((const Cairn__Part *)frame.message)->layout_bytes,
                      layout_encoded_bytes(scene.layout));
    scene_tell(&scene, 12, StoreAdopted, .store = 4711, .incarnation = 2);
    scene_done(&scene, 12);
    expect_held(13, true);
}

TEST(a_generation_that_was_given_up_is_forgotten_with_its_memory)
{
    const uint64_t used = scene.shard->memory.budget.used_bytes;
    amend_scene(CAIRN_INIT_CONSTANT);
    for (int k = 0; k < 2; k++) { // and it can be asked for again
        scene_make(&scene, 2);
        ck_assert_uint_gt(scene.shard->memory.budget.used_bytes, used);
        say_switch(1);
        ck_assert_uint_eq(scene.shard->memory.budget.used_bytes, used);
        ck_assert_uint_eq(held(), 1);
    }
    ck_assert_uint_eq(shard_job_find(scene.shard, SCENE_JOB)->generation, 1);
}

/* From here on memory that is given back is so at once: there is none to note it for the thread. */
static void give_back_at_once(void)
{
    struct sentence why;
    struct arena arena;
    ck_assert_int_eq(arena_open_scratch("some", 4096, &arena, &why), CAIRN_OK);
    arena_release(scene.shard, &arena);
    malloc_fails_for = malloc_wanted;
    malloc_failing_site = malloc_site;
    scene_settle(&scene);
}

TEST(one_takes_the_place_of_one_that_was_given_up_though_that_is_freed_at_once)
{
    amend_scene(CAIRN_INIT_CONSTANT);
    scene_make(&scene, 2);
    give_back_at_once();
    scene_make(&scene, 3);
    malloc_fails_for = 0;
    ck_assert_uint_eq(held(), 2);
    say_switch(3);
    ck_assert_uint_eq(shard_job_find(scene.shard, SCENE_JOB)->generation, 3);
}

static void expect_refusal(uint32_t request, uint64_t generation, uint64_t step,
                           cairn_status status, const char *word)
{
    scene_create(&scene, request, generation, step, "");
    scene_refused(&scene, request, status, word);
    scene_settle(&scene);
    ck_assert_uint_eq(held(), 1);
    ck_assert_int_eq(shard_job_find(scene.shard, SCENE_JOB)->state, CAIRN_JOB_SERVING);
}

/* ---- while one is being made ---- */

/* Generation 2 is made of the first, and waits for a thread. */
static struct shard_job *begin_extend(void)
{
    held_pool_hold(scene.shard->host.pool, COMPUTE_THREADS);
    amend_scene(CAIRN_INIT_CONSTANT);
    scene_create(&scene, 9, 2, 0, "");
    scene_until(&scene, held() == 2 && scene.shard->jobs->load.at_work != NULL);
    ck_assert(scene.shard->jobs->staged);
    return scene.shard->jobs->next;
}

TEST(one_whose_origin_changes_meanwhile_is_given_up_and_the_origin_serves)
{
    struct shard_job *from = begin_extend();
    const uint64_t used = memory_sum(&from->memory);
    from->pass.updating = true; // an UPDATE was decided
    held_pool_let_go();
    scene_refused(&scene, 9, CAIRN_ERR_NOT_READY, "changed while it was extended");
    from->pass.updating = false;
    scene_until(&scene, LIST_EMPTY(&scene.shard->memory.releases));
    ck_assert_uint_eq(held(), 1);
    ck_assert_ptr_eq(scene.shard->jobs, from);
    ck_assert_uint_eq(from->busy, 0);
    ck_assert_uint_eq(scene.shard->memory.budget.used_bytes, used);
}

TEST(a_job_that_is_dropped_meanwhile_goes_with_both_generations_when_the_threads_are_done_with_them)
{
    begin_extend();
    scene_tell(&scene, 10, JobDrop, .job = SCENE_JOB);
    scene_refused(&scene, 9, CAIRN_ERR_CANCELED, "dropped before it was ready");
    scene_tell(&scene, 11, Probe);
    while (scene_hear(&scene, CAIRN_MSG_DONE).request != 11) {}
    ck_assert_uint_eq(held(), 2); // the threads refer to both
    held_pool_let_go();
    scene_until(&scene, scene.shard->jobs == NULL && LIST_EMPTY(&scene.shard->memory.releases));
    ck_assert_uint_eq(scene.shard->memory.budget.used_bytes, 0);
}

TEST(a_shard_that_is_closed_meanwhile_frees_both)
{
    begin_extend();
    held_pool_let_go();
}

/* ---- what is refused ---- */

TEST(what_does_not_fit_beside_it_is_refused_with_the_numbers)
{
    amend_scene(CAIRN_INIT_CONSTANT);
    scene.shard->memory.budget.limit_bytes = scene.shard->memory.budget.used_bytes + 100000;
    expect_refusal(9, 2, 0, CAIRN_ERR_NO_MEMORY, "state ");
}

TEST(another_step_an_older_generation_and_a_tensor_without_a_beginning_are_refused)
{
    amend_scene(CAIRN_INIT_NONE);
    expect_refusal(9, 2, 5, CAIRN_ERR_NOT_READY, "is at version 1.0 here");
    expect_refusal(10, 1, 0, CAIRN_ERR_NOT_READY, "is at version 1.0 here");
    expect_refusal(11, 2, 0, CAIRN_ERR_INVALID, "late is new and has no initializer");
}

SUITE(60, serve, leave);
