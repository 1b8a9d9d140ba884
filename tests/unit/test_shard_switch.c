/* A job goes on in another view: what stays keeps its place and its bits, what comes is put beside it, what
 * goes gives its pages back; a version is read by the layout that it was written in. */
#include <check.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "proto/wire/wire.h"
#include "server/shard/jobs.h"
#include "tests/support/shard_model.h"
#include "tests/support/shard_scene.h"
#include "tests/support/suite.h"

enum { EXTENTS_MAX = 12, LAYOUTS_MAX = 8, FROZEN_ROWS = 2000 };

/* A layout: for each tensor where it is cut, and who has the pieces. */
struct cut {
    uint32_t tensor, shard;
    uint64_t quantum_count; /* 0: all that are left */
};

static const struct cut partly_cuts[] = { { T_BIAS, 0, 0 },   { T_EMB, 0, 1 },
                                          { T_EMB, 1, 0 },    { T_FROZEN, 1, 0 },
                                          { T_WEIGHT, 0, 2 }, { T_WEIGHT, 1, 2 },
                                          { T_WEIGHT, 0, 3 }, { T_WEIGHT, 0, 0 } };
static const struct cut wholly_cuts[] = { { T_BIAS, 0, 0 },   { T_EMB, 0, 1 },
                                          { T_EMB, 0, 0 },    { T_FROZEN, 0, 0 },
                                          { T_WEIGHT, 0, 2 }, { T_WEIGHT, 0, 2 },
                                          { T_WEIGHT, 0, 3 }, { T_WEIGHT, 0, 0 } };
static const struct cut nothing_cuts[] = {
    { T_BIAS, 1, 0 }, { T_EMB, 1, 0 }, { T_FROZEN, 1, 0 }, { T_WEIGHT, 1, 0 }
};
static const struct cut joined_cuts[] = {
    { T_BIAS, 0, 0 }, { T_EMB, 1, 0 }, { T_FROZEN, 1, 0 }, { T_WEIGHT, 0, 7 }, { T_WEIGHT, 1, 0 }
};
static const enum plane STATE[] = { CAIRN_PLANE_PARAM, CAIRN_PLANE_EXP_AVG, CAIRN_PLANE_EXP_AVG_SQ,
                                    CAIRN_PLANE_EMA };
#define COUNT(list) (sizeof(list) / sizeof *(list))

/* A layout as the tests name it. */
struct cuts {
    const struct cut *list;
    size_t count;
};
static const struct cuts PARTLY = { partly_cuts, COUNT(partly_cuts) },
                         WHOLLY = { wholly_cuts, COUNT(wholly_cuts) },
                         NOTHING = { nothing_cuts, COUNT(nothing_cuts) },
                         JOINED = { joined_cuts, COUNT(joined_cuts) };

static struct scene scene;
static struct scene
    by[LAYOUTS_MAX]; /* the scene with the layout of each switch: for models of then */
static size_t layouts;
static struct model now;
static uint64_t at; /* the step of `now` */
static struct shard_job *job;

/* ---- switching ---- */

static struct layout *make_layout(const struct cuts *cuts, uint64_t version)
{
    struct layout_tensor tensors[TENSORS];
    struct extent *extents = calloc(EXTENTS_MAX, sizeof *extents);
    for (uint32_t t = 0; t < TENSORS; t++) {
        const struct tensor_spec *spec = &scene.spec.tensors[t];
        tensors[t] = (struct layout_tensor) {
            .name = spec->name, .unit = spec->unit, .shape = spec->shape, .elem_bytes = 1
        };
    }
    for (size_t i = 0; i < cuts->count; i++) {
        const struct cut *cut = &cuts->list[i];
        const bool goes_on = i > 0 && cut[-1].tensor == cut->tensor;
        const uint64_t first = goes_on ? extents[i - 1].first_quantum + extents[i - 1].quantum_count
                                       : 0;
        const uint64_t all = geometry_of(&scene.spec.tensors[cut->tensor].shape).quantum_count;
        extents[i] = (struct extent) { cut->tensor, cut->shard, first,
                                       cut->quantum_count != 0 ? cut->quantum_count : all - first };
    }
    struct layout *layout = NULL;
    ck_assert_int_eq(
        layout_make(tensors, TENSORS, SCENE_SHARDS, version, extents, cuts->count, &layout),
        CAIRN_OK);
    return layout;
}

static struct shard_view *coming;
static bool is_reserved;

static cairn_status add_pages(struct reserve *reserve, struct shard_job *of)
{
    return shard_view_reserve(of, coming, reserve);
}

static void on_reserved(const struct reserve_request *request, cairn_status status,
                        const struct sentence *why)
{
    (void)request;
    ck_assert_msg(status == CAIRN_OK, "%s", why->text);
    is_reserved = true;
}

static void reserve(void)
{
    const struct reserve_request request = {
        .job = job, .what = "what comes", .prepare = add_pages, .done = on_reserved
    };
    struct sentence why;
    is_reserved = false;
    ck_assert_int_eq(reserve_begin(&request, &why), CAIRN_OK);
    scene_until(&scene, is_reserved);
}

/* What comes is the initial state of the scene. */
static void fill(void *context, const struct shard_view_run *run)
{
    (void)context;
    float *param = planes_at(&job->planes, CAIRN_PLANE_PARAM, run->extent, run->local_elem);
    for (uint64_t i = 0; i < run->elem_count; i++)
        param[i] = scene_initial(run->tensor, run->first_elem + i);
    for (enum plane p = CAIRN_PLANE_EXP_AVG; p < CAIRN_PLANE_COUNT; p++) {
        float *moment = planes_at(&job->planes, p, run->extent, run->local_elem);
        if (moment != NULL && p != CAIRN_PLANE_EMA)
            memset(moment, 0, run->elem_count * sizeof *moment);
        else if (moment != NULL && model_keeps(run->tensor, (int)p))
            memcpy(moment, param, run->elem_count * sizeof *moment);
    }
}

/* The model by the new map: what stays is copied, what comes is as model_open makes it. */
static void move_model(const struct scene *before)
{
    struct model next;
    model_open(&next, &scene);
    for (uint64_t c = 0; c < before->map.chunk_count; c++) {
        const struct chunk_place from = shard_map_chunk(&before->map, c);
        for (uint64_t leaf = from.first_leaf; leaf < from.first_leaf + from.leaf_count; leaf++) {
            const struct local_extent *to = shard_map_find(&scene.map, from.tensor, leaf);
            if (to == NULL) continue;
            const struct geometry *g = &scene.layout->geometry[from.tensor];
            const uint64_t first = leaf_start(g, leaf);
            const uint64_t elems = leaf_start(g, leaf + 1) - first;
            const uint64_t in = from.local_elem + (first - from.first_elem);
            const uint64_t out = to->local_elem + (first - to->first_elem);
            for (size_t p = 0; p < COUNT(STATE); p++)
                memcpy(model_plane(&next, (int)STATE[p]) + out,
                       model_plane(&now, (int)STATE[p]) + in, elems * sizeof(float));
        }
    }
    for (size_t i = 0; i < scene.map.extent_count; i++) {
        const struct local_extent *e = &scene.map.extents[i];
        backend_host()->convert(next.wire + e->local_elem * 4,
                                e->tensor == T_WEIGHT ? CAIRN_BF16 : CAIRN_F32,
                                next.param + e->local_elem, CAIRN_F32, e->elem_count);
    }
    next.step = now.step;
    model_close(&now);
    now = next;
    now.scene = &scene;
}

static void go_on_in_epoch(uint64_t epoch)
{
    scene_fence(&scene, epoch);
    const Cairn__Answer *answer = scene_heard(&scene, Answer);
    ck_assert_uint_eq(answer->step, at);
    scene_say_decision(&scene, CAIRN_MSG_RESOLVE, answer->last); // the shard goes on knowing it
    scene_hear(&scene, CAIRN_MSG_PUBLISHED);
}

static void take(uint64_t *kind, uint64_t next, uint64_t was)
{
    struct sentence why;
    if (next > was)
        ck_assert_int_eq(shard_job_take(job, kind, next - was, "a view", &why), CAIRN_OK);
}

static struct shard_view *prepare(const struct cuts *cuts)
{
    struct sentence why;
    struct layout *layout = make_layout(cuts, job->view->layout->version + 1);
    struct shard_view *view;
    ck_assert_msg(shard_view_next(job, layout, 0, job->view, &view, &why) == CAIRN_OK, "%s",
                  why.text);
    take(&job->memory.published, view->memory.published, job->view->memory.published);
    take(&job->memory.tables, view->memory.tables, job->view->memory.tables);
    coming = view;
    reserve();
    return view;
}

/* Gives the view of before, which is the caller's. */
static struct shard_view *switch_to(const struct cuts *cuts)
{
    struct sentence why;
    struct shard_view *before = shard_view_ref(job->view), *view = prepare(cuts);
    ck_assert_msg(shard_job_switch(job, view, &why) == CAIRN_OK, "%s", why.text);
    shard_view_beyond(view, before, fill, NULL);
    by[layouts] = scene;
    scene.layout = make_layout(cuts, view->layout->version);
    ck_assert_int_eq(shard_map_init(&scene.map, scene.layout, 0, SCENE_CHUNK_LEAVES), CAIRN_OK);
    move_model(&by[layouts++]);
    shard_view_unref(view);
    go_on_in_epoch(scene.epoch + 1);
    return before;
}

static void go_on_by(const struct cuts *cuts)
{
    shard_view_unref(switch_to(cuts));
}

/* ---- what is there ---- */

/* The model's version, by the layout of the model. */
static void check_wire(const struct model *model, uint64_t step)
{
    model_check(model, &scene, CAIRN_PLANE_WIRE, 1, step);
}

static void check_state(void)
{
    for (size_t p = 0; p < COUNT(STATE); p++) model_check(&now, &scene, STATE[p], 1, at);
}

static void train(unsigned rounds)
{
    for (; rounds > 0; rounds--, at++) model_round(&now, &scene, at + 1, at);
}

/* The model as it is now, by the layout of now, for later. */
static struct model kept(void)
{
    struct model model = { .scene = NULL };
    model_copy(&model, &now);
    return model;
}

static void pin_to(struct model *model, const struct scene *then)
{
    model->scene = then;
}

static void serve(void)
{
    scene_open(&scene, "mem", 2, 0);
    scene_reshape_frozen(&scene, FROZEN_ROWS, 500);
    scene_serve(&scene, 2, 1);
    model_open(&now, &scene);
    job = scene.shard->jobs;
}

static void leave(void)
{
    model_close(&now);
    for (size_t i = 0; i < layouts; i++) {
        shard_map_release(&by[i].map);
        layout_close(by[i].layout);
    }
    scene_close(&scene);
}

/* ---- training goes on ---- */

TEST(training_goes_on_in_other_views_and_each_version_is_read_by_its_own)
{
    static const struct cuts *const views[] = { &PARTLY, &WHOLLY, &PARTLY, &NOTHING, &WHOLLY };
    train(2);
    for (size_t i = 0; i < COUNT(views); i++) {
        struct model last = kept();
        go_on_by(views[i]);
        pin_to(&last, &by[layouts - 1]);
        check_state();
        check_wire(&last, at);
        train(1);
        check_state();
        check_wire(&now, at);
        check_wire(&last, at - 1);
        struct model one = kept();
        train(1);
        check_wire(&now, at);
        check_wire(&one, at - 1);
        train(1);
        check_wire(&now, at); // the copy that was written twice
        check_state();
        model_close(&one);
        model_close(&last);
    }
}

/* Which file that segment of the copies is, one number for all. */
static uint64_t files_of_copies(uint64_t segment)
{
    uint64_t files = 0;
    for (uint32_t i = 0; i < CAIRN_SHARD_PUBLISHED_MAX; i++) {
        const struct published_copy *copy = &job->versions.copies[i];
        struct sentence why;
        struct stat is;
        uint64_t bytes;
        int fd;
        if (copy->wire.base == NULL) continue;
        ck_assert_int_eq(home_memory_export(&copy->wire.memory, segment, &fd, &bytes, &why),
                         CAIRN_OK);
        ck_assert_int_eq(fstat(fd, &is), 0);
        close(fd);
        files = files * 1000003 + is.st_ino;
    }
    return files;
}

TEST(published_copies_keep_their_pages_until_a_smaller_view_has_stayed_for_a_while)
{
    go_on_by(&WHOLLY);
    train(4);
    const uint64_t files = files_of_copies(0);
    go_on_by(&PARTLY);
    train(2);
    go_on_by(&WHOLLY);
    train(2);
    go_on_by(&PARTLY);
    train(12);
    check_wire(&now, at);
    ck_assert_uint_eq(files_of_copies(0), files);
    train(12);
    check_wire(&now, at);
    ck_assert_uint_ne(files_of_copies(0), files);
    for (uint32_t i = 0; i < 2; i++)
        ck_assert_uint_eq(job->versions.copies[i].most_bytes, job->view->wire_bytes);
}

/* The copies have so many bytes behind theirs, which nobody touches. */
static void switch_and_add(const struct cuts *cuts, uint64_t bytes)
{
    go_on_by(cuts);
    job->view->wire_bytes += bytes;
    train(2);
}

TEST(of_a_large_copy_the_last_segment_alone_is_made_anew)
{
    job->versions.room_bytes = 2 * CAIRN_SEGMENT_BYTES;
    switch_and_add(&NOTHING, 0); // copies made after that have that room
    switch_and_add(&WHOLLY, CAIRN_SEGMENT_BYTES * 3 / 2);
    const uint64_t first = files_of_copies(0), last = files_of_copies(1);
    switch_and_add(&PARTLY, CAIRN_SEGMENT_BYTES);
    ck_assert(files_of_copies(0) == first && files_of_copies(1) == last);
    train(20);
    check_wire(&now, at);
    ck_assert_uint_eq(files_of_copies(0), first);
    ck_assert_uint_ne(files_of_copies(1), last);
}

TEST(what_it_takes_of_the_budget_is_as_before_when_it_is_back)
{
    const uint64_t before = scene.shard->memory.budget.used_bytes;
    go_on_by(&NOTHING);
    train(2);
    ck_assert_uint_lt(scene.shard->memory.budget.used_bytes, before);
    ck_assert_uint_eq(job->versions.copies[0].wire.bytes, 0);
    ck_assert_uint_eq(job->versions.copies[1].wire.bytes, 0);
    go_on_by(&WHOLLY);
    train(2);
    ck_assert_uint_eq(job->versions.copies[0].wire.bytes, job->view->wire_bytes);
    ck_assert_uint_eq(job->memory.published, job->view->memory.published);
}

/* ---- memory ---- */

TEST(pages_of_what_went_go_back_and_what_comes_lies_there)
{
    const struct arena *param = &job->planes.host[CAIRN_PLANE_PARAM];
    const size_t frozen_bytes = (size_t)FROZEN_ROWS * 500 * sizeof(float);
    train(1);
    const size_t all = scene_resident(param);
    struct shard_view *before = switch_to(&PARTLY);
    ck_assert_uint_ge(scene_resident(param) + 4096,
                      all); // it can be given to others until it is settled
    shard_view_give(job, before);
    shard_view_unref(before);
    struct shard_view *next = prepare(&WHOLLY); // behind what was given
    ck_assert_uint_le(job->planes.host[CAIRN_PLANE_PARAM].bytes, all + 65536); // in the same places
    shard_view_give(job, next); // it does not come after all
    shard_view_unref(next);
    coming = job->view;
    reserve(); // what was asked for before is done
    ck_assert_uint_le(scene_resident(param), all - frozen_bytes + 65536);
    check_state();
    train(1);
    check_state();
    go_on_by(&WHOLLY);
    train(1);
    check_state();
}

/* ---- versions ---- */

TEST(a_leased_version_is_read_by_its_layout_over_many_views)
{
    train(1);
    scene_lease(&scene, 7, 1, at);
    struct model leased = kept();
    go_on_by(&PARTLY);
    pin_to(&leased, &by[0]);
    train(3);
    check_wire(&leased, 1);
    go_on_by(&WHOLLY);
    train(3);
    check_wire(&leased, 1);
    check_wire(&now, at);
    scene_tell(&scene, 0, LeaseEnd, .job = SCENE_JOB, .lease = 7);
    scene_settle(&scene);
    ck_assert_uint_eq(job->versions.leased_bytes, 0);
    ck_assert_uint_eq(job->memory.published, job->view->memory.published);
    model_close(&leased);
    train(1);
    check_wire(&now, at);
}

static bool is_published;

static void on_published(struct shard_job *of)
{
    ck_assert_ptr_eq(of, job);
    is_published = true;
}

TEST(the_newest_version_is_written_once_more_and_can_be_read_both_ways)
{
    struct sentence why;
    train(2);
    struct model last = kept();
    go_on_by(&PARTLY);
    pin_to(&last, &by[0]);
    scene_lease(&scene, 7, 1, at);
    is_published = false;
    ck_assert_int_eq(pass_republish(job, on_published, &why), CAIRN_OK);
    ck_assert_int_eq(pass_republish(job, on_published, &why), CAIRN_ERR_BUSY);
    scene_until(&scene, is_published);
    check_wire(&now, at);
    check_wire(&last, at);
    struct model again = kept();
    const uint64_t step = at;
    train(3); // of the two, the later one is kept for the lease
    check_wire(&again, step);
    check_wire(&now, at);
    model_close(&again);
    model_close(&last);
}

/* ---- what is refused ---- */

TEST(a_layout_that_joins_what_lies_apart_is_refused_and_nothing_changes)
{
    struct sentence why;
    struct shard_view *view;
    train(1);
    go_on_by(&PARTLY);
    struct layout *joined = make_layout(&JOINED, 9);
    ck_assert_int_eq(shard_view_next(job, joined, 0, job->view, &view, &why), CAIRN_ERR_INVALID);
    ck_assert_ptr_nonnull(strstr(why.text, "joins what lies apart"));
    train(1);
    check_state();
}

TEST(a_view_does_not_change_while_a_round_is_open)
{
    struct sentence why;
    struct shard_view *view = prepare(&PARTLY);
    model_push_round(&scene, 1, 0);
    ck_assert_int_eq(shard_job_switch(job, view, &why), CAIRN_ERR_BUSY);
    scene_hear(&scene, CAIRN_MSG_REDUCED);
    ck_assert_int_eq(shard_job_switch(job, view, &why), CAIRN_ERR_BUSY);
    shard_view_unref(view);
    model_apply(&now, &scene, 1, 0, CAIRN_MSG_DECIDE);
    at = 1;
    check_state();
}

/* ---- tiles ---- */

/* How many chunks of a tensor the box has elements in, by the scene's map. */
static uint64_t touched(uint32_t tensor, const struct cairn_box *box)
{
    uint64_t count = 0, before;
    for (uint64_t c = 0; c < scene.map.chunk_count; c++) {
        const struct chunk_place place = shard_map_chunk(&scene.map, c);
        count += place.tensor == tensor && tiles_common(job, box, &place, &before) > 0;
    }
    return count;
}

TEST(tiles_of_members_go_over_also_of_tensors_that_come_later)
{
    const struct cairn_box rows = { .rank = 2, .start = { 3, 0 }, .extent = { 20, 1000 } };
    const struct cairn_box half = { .rank = 2, .start = { 0, 0 }, .extent = { 40, 150 } };
    struct shard_member *member = member_find(job, 2);
    struct tiles tiles = { .count = 0 };
    struct sentence why;
    ck_assert_int_eq(tiles_set(&tiles, T_WEIGHT, &rows), CAIRN_OK);
    ck_assert_int_eq(tiles_set(&tiles, T_EMB, &half), CAIRN_OK);
    go_on_by(&NOTHING);
    ck_assert_int_eq(tiles_set_member(member, &tiles, &why), CAIRN_OK);
    static const struct cuts *const views[] = { &WHOLLY, &PARTLY };
    for (size_t i = 0; i < COUNT(views); i++) {
        go_on_by(views[i]);
        ck_assert_uint_eq(tiles_touched(member, T_WEIGHT), touched(T_WEIGHT, &rows));
        ck_assert_uint_eq(tiles_touched(member, T_EMB), touched(T_EMB, &half));
        ck_assert_uint_gt(touched(T_WEIGHT, &rows), 0);
    }
    tiles_forget(member);
    tiles_release(&tiles);
    train(1);
    check_state();
}

SUITE(60, serve, leave);
