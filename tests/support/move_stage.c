#include "tests/support/move_stage.h"

#include <inttypes.h>
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/test_backend.h"

struct stage stage;

const struct stage_run stage_before[] = { { T_BIAS, 0, 1 },   { T_EMB, 0, 3 },
                                          { T_FROZEN, 0, 3 }, { T_WEIGHT, 0, 7 },
                                          { T_WEIGHT, 1, 3 }, { 0, 0, 0 } };
const struct stage_run stage_half[] = { { T_BIAS, 0, 1 },   { T_EMB, 0, 1 },    { T_EMB, 1, 2 },
                                        { T_FROZEN, 1, 3 }, { T_WEIGHT, 0, 3 }, { T_WEIGHT, 1, 4 },
                                        { T_WEIGHT, 1, 3 }, { 0, 0, 0 } };
const struct stage_run stage_back[] = { { T_BIAS, 0, 1 },   { T_EMB, 0, 1 },    { T_EMB, 0, 2 },
                                        { T_FROZEN, 0, 3 }, { T_WEIGHT, 0, 3 }, { T_WEIGHT, 0, 4 },
                                        { T_WEIGHT, 1, 3 }, { 0, 0, 0 } };
const struct stage_run stage_out[] = { { T_BIAS, 0, 1 },   { T_EMB, 0, 1 },    { T_EMB, 2, 2 },
                                       { T_FROZEN, 2, 3 }, { T_WEIGHT, 0, 3 }, { T_WEIGHT, 2, 4 },
                                       { T_WEIGHT, 2, 3 }, { 0, 0, 0 } };

/* ---- running ---- */

static void turn_all(void)
{
    for (uint32_t i = 0; i < stage.count; i++) uv_run(&stage.shard[i].loop, UV_RUN_NOWAIT);
}

struct shard_job *stage_job(uint32_t shard)
{
    return shard_job_find(stage.shard[shard].shard, SCENE_JOB);
}

/* ---- layouts ---- */

struct layout *stage_make(const struct stage_run *table, uint64_t version, uint32_t shard_count)
{
    const struct job_spec_data *spec = &stage.whole.spec;
    struct layout_tensor tensors[TENSORS + STAGE_MORE];
    struct layout *layout;
    size_t count = 0;
    uint64_t at = 0;
    while (table[count].quanta > 0) count++;
    struct extent *extents = calloc(count, sizeof *extents);
    for (uint32_t t = 0; t < spec->tensor_count; t++)
        tensors[t] = (struct layout_tensor) { .name = spec->tensors[t].name,
                                              .unit = spec->tensors[t].unit,
                                              .shape = spec->tensors[t].shape,
                                              .elem_bytes = 1 };
    for (size_t i = 0; i < count; i++) {
        if (i > 0 && table[i].tensor != table[i - 1].tensor) at = 0;
        extents[i] = (struct extent) { table[i].tensor, table[i].shard, at, table[i].quanta };
        at += table[i].quanta;
    }
    ck_assert_int_eq(layout_make(tensors, (uint32_t)spec->tensor_count, shard_count, version,
                                 extents, count, &layout),
                     CAIRN_OK);
    return layout;
}

/* ---- open and close ---- */

static void open_whole(void)
{
    static const struct stage_run all[] = {
        { T_BIAS, 0, 1 }, { T_EMB, 0, 3 }, { T_FROZEN, 0, 3 }, { T_WEIGHT, 0, 10 }, { 0, 0, 0 }
    };
    stage.whole.spec = stage.shard[0].spec; // borrowed
    stage.whole.layout = stage_make(all, 1, 1);
    ck_assert_int_eq(shard_map_init(&stage.whole.map, stage.whole.layout, 0, SCENE_CHUNK_LEAVES),
                     CAIRN_OK);
    model_open(&stage.model, &stage.whole);
}

static void choose_backend(uint32_t shard)
{
    ck_assert_int_eq(setenv("CAIRN_TEST_BACKEND", cairn_test_backend_of(shard), 1), 0);
}

static void open_shards(const char *kind)
{
    memset(&stage, 0, sizeof stage);
    stage.count = 1;
    choose_backend(0);
    scene_open(&stage.shard[0], kind, 2, 0);
    choose_backend(1);
    scene_open_beside(&stage.shard[1], &stage.shard[0], 1);
    stage.count = 2;
    stage.layout = stage.epoch = 1;
    stage.requests = 100;
}

static void serve_all(void)
{
    for (uint32_t i = 0; i < stage.count; i++) {
        stage.shard[i].beside = turn_all;
        scene_serve(&stage.shard[i], STAGE_WORKERS, 1);
    }
}

void stage_open(const char *kind)
{
    open_shards(kind);
    serve_all();
    open_whole();
}

void stage_open_two(void)
{
    stage_open("mem");
}

void stage_open_more(const struct stage_run *table)
{
    open_shards("mem");
    for (uint32_t i = 0; i < stage.count; i++) {
        struct job_spec_data *spec = &stage.shard[i].spec;
        const struct tensor_spec buffer = { .name = wire_text("x_buffer"),
                                            .group = wire_text(""),
                                            .kind = CAIRN_BUFFER,
                                            .wire = CAIRN_F32,
                                            .reduce = CAIRN_F32,
                                            .master = CAIRN_F32,
                                            .shape = { 1, { 20000 } } };
        struct tensor_spec blob = buffer;
        blob.name = wire_text("y_blob");
        blob.kind = CAIRN_BLOB;
        blob.wire = blob.master = CAIRN_U8;
        blob.shape.dim[0] = 30000;
        ck_assert_int_eq(spec_add_tensor(spec, &buffer), CAIRN_OK);
        ck_assert_int_eq(spec_add_tensor(spec, &blob), CAIRN_OK);
        spec_canonicalize(spec);
        stage.whole.spec = *spec; // borrowed
        scene_relayout(&stage.shard[i], stage_make(table, 1, stage.count));
    }
    serve_all();
}

void stage_close(void)
{
    if (stage.model.scene != NULL) model_close(&stage.model);
    shard_map_release(&stage.whole.map);
    layout_close(stage.whole.layout);
    for (uint32_t i = 0; i < stage.count; i++) stage.shard[i].beside = NULL;
    while (stage.count > 0) scene_close(&stage.shard[--stage.count]);
}

/* ---- the coordinator ---- */

struct told {
    Cairn__Mover movers[STAGE_SHARDS], *mover_list[STAGE_SHARDS];
    Cairn__ShardInfo infos[STAGE_SHARDS], *info_list[STAGE_SHARDS];
};

/* Any of them may take something, and give. */
static void fill_told(struct told *told, uint64_t version)
{
    static char names[STAGE_SHARDS][12];
    for (uint32_t i = 0; i < stage.count; i++) {
        const struct fabric *fabric = stage.shard[i].shard->fabric;
        Cairn__Mover *mover = told->mover_list[i] = &told->movers[i];
        Cairn__ShardInfo *info = told->info_list[i] = &told->infos[i];
        snprintf(names[i], sizeof names[i], "s%u", i);
        cairn__mover__init(mover);
        cairn__shard_info__init(info);
        mover->shard = info->index = i;
        mover->member = version * 1000 + i;
        mover->token = 77000 + version * 10 + i;
        mover->name = info->name = names[i];
        mover->fabric_address.data = (uint8_t *)fabric_own_address(fabric,
                                                                   &mover->fabric_address.len);
        info->fabric_address = mover->fabric_address;
    }
}

uint32_t stage_say_prepare(struct scene *scene, const struct stage_run *table, uint64_t version,
                           uint32_t shard_count)
{
    const uint32_t request = ++stage.requests;
    struct told told;
    struct layout *layout = stage_make(table, version, shard_count);
    const size_t bytes = layout_encoded_bytes(layout);
    uint8_t *encoded = malloc(bytes);
    layout_encode(layout, encoded);
    fill_told(&told, version);
    scene_tell(scene, request, PartPrepare, .job = SCENE_JOB, .layout = version,
               .layout_bytes = bytes, .shard_index = scene->index, .n_movers = stage.count,
               .movers = told.mover_list, .n_shards = stage.count, .shards = told.info_list);
    scene_say_pages(scene, request, CAIRN_PAGE_LAYOUT, encoded, bytes);
    free(encoded);
    layout_close(layout);
    return request;
}

void stage_prepare(const struct stage_run *table)
{
    for (uint32_t i = 0; i < stage.count; i++) {
        const uint32_t request = stage_say_prepare(&stage.shard[i], table, stage.layout + 1,
                                                   stage.count);
        scene_done(&stage.shard[i], request);
    }
}

void stage_fence(uint64_t layout)
{
    stage.epoch++;
    for (uint32_t i = 0; i < stage.count; i++) {
        stage.shard[i].epoch = stage.epoch;
        scene_tell(&stage.shard[i], 0, Fence, .job = SCENE_JOB, .epoch = stage.epoch,
                   .layout = layout);
    }
    for (uint32_t i = 0; i < stage.count; i++) {
        const Cairn__Answer *answer = scene_heard(&stage.shard[i], Answer);
        ck_assert_uint_eq(answer->epoch, stage.epoch);
        ck_assert(!answer->refused);
    }
}

void stage_force(const struct stage_run *table)
{
    stage_fence(stage.layout + 1);
    stage.layout++;
    for (uint32_t i = 0; i < stage.count; i++) {
        scene_relayout(&stage.shard[i], stage_make(table, stage.layout, stage.count));
        ck_assert_uint_eq(stage_job(i)->view->layout->version, stage.layout);
    }
}

/* The last outcome, of a round that was skipped. */
static void say_skip(struct scene *scene, uint16_t type)
{
    scene_say_decision(scene, type,
                       &(Cairn__Decision) { .kind = CAIRN_DECISION_SKIP,
                                            .round = stage.last.round,
                                            .generation = 1,
                                            .step = stage.step });
}

void stage_say_resolve(struct scene *scene)
{
    if (stage.last.round == 0)
        scene_resolve_none(scene);
    else if (stage.last.skipped)
        say_skip(scene, CAIRN_MSG_RESOLVE);
    else
        model_say_apply(scene, stage.last.round, stage.step - 1, CAIRN_MSG_RESOLVE,
                        stage.last.scalars);
}

void stage_resolve(void)
{
    for (uint32_t i = 0; i < stage.count; i++) stage_say_resolve(&stage.shard[i]);
    for (uint32_t i = 0; i < stage.count; i++) scene_hear(&stage.shard[i], CAIRN_MSG_PUBLISHED);
}

void stage_hear_moved(void)
{
    for (uint32_t i = 0; i < stage.count; i++) {
        ck_assert_uint_eq(scene_heard(&stage.shard[i], PartMoved)->layout, stage.layout);
    }
}

void stage_settle(void)
{
    for (uint32_t i = 0; i < stage.count; i++) {
        scene_tell(&stage.shard[i], 0, PartSettled, .job = SCENE_JOB, .layout = stage.layout);
    }
    for (uint32_t i = 0; i < stage.count; i++)
        while (stage_job(i)->move.now != NULL) turn_all();
}

void stage_complete(void)
{
    stage_resolve();
    stage_hear_moved();
    stage_settle();
}

void stage_begin_move(const struct stage_run *table)
{
    stage_prepare(table);
    stage_force(table);
    stage_resolve();
}

void stage_move(const struct stage_run *table)
{
    stage_begin_move(table);
    stage_hear_moved();
    stage_settle();
}

void stage_begin_taking(void)
{
    stage_round();
    stage_prepare(stage_half);
    stage_force(stage_half);
    for (uint32_t i = 0; i < stage.count; i++) {
        stage_say_resolve(&stage.shard[i]);
        scene_hear(&stage.shard[i], CAIRN_MSG_PUBLISHED);
        if (i > 0) continue;
        scene_hear(&stage.shard[i], CAIRN_MSG_PART_MOVED);
        stage_job(i)->state = CAIRN_JOB_SEALING; // what is asked for is not ready
    }
    for (int i = 0; i < 3; i++) scene_settle(&stage.shard[1]);
    ck_assert_ptr_nonnull(stage_job(1)->move.now->receiver);
}

void stage_join(const struct stage_run *table)
{
    struct scene *scene = &stage.shard[stage.count];
    choose_backend(stage.count);
    scene_open_beside(scene, &stage.shard[0], stage.count);
    stage.count++;
    scene->beside = turn_all;
    scene_relayout(scene, stage_make(table, stage.layout, stage.count));
    scene->last = &(Cairn__Decision) { .generation = 1, .step = stage.step };
    scene_create(scene, ++stage.requests, 1, stage.step, "");
    scene->last = NULL;
    scene_done(scene, stage.requests);
    for (uint64_t m = 1; m <= STAGE_WORKERS; m++) scene_join(scene, m, CAIRN_ROLE_WIRE_WORKER);
}

/* ---- rounds ---- */

void stage_push(void)
{
    stage.round++;
    for (uint32_t i = 0; i < stage.count; i++)
        model_push_round(&stage.shard[i], stage.round, stage.step);
}

void stage_apply(void)
{
    for (uint32_t i = 0; i < stage.count; i++) scene_hear(&stage.shard[i], CAIRN_MSG_REDUCED);
    model_update(&stage.model, stage.round, stage.step, stage.last.scalars);
    for (uint32_t i = 0; i < stage.count; i++)
        model_say_apply(&stage.shard[i], stage.round, stage.step, CAIRN_MSG_DECIDE,
                        stage.last.scalars);
    stage.last.round = stage.round;
    stage.last.skipped = false;
    for (uint32_t i = 0; i < stage.count; i++) scene_hear(&stage.shard[i], CAIRN_MSG_PUBLISHED);
    stage.step++;
}

void stage_round(void)
{
    stage_push();
    stage_apply();
}

void stage_skip(void)
{
    stage.last.round = stage.round;
    stage.last.skipped = true;
    for (uint32_t i = 0; i < stage.count; i++) scene_hear(&stage.shard[i], CAIRN_MSG_REDUCED);
    for (uint32_t i = 0; i < stage.count; i++) say_skip(&stage.shard[i], CAIRN_MSG_DECIDE);
    for (uint32_t i = 0; i < stage.count; i++) scene_hear(&stage.shard[i], CAIRN_MSG_PUBLISHED);
}

/* ---- what there is ---- */

/* Where the model has an element. */
static uint64_t model_elem(uint32_t tensor, uint64_t first_leaf)
{
    const struct local_extent *all = shard_map_find(&stage.whole.map, tensor, first_leaf);
    const struct geometry *geometry = &stage.whole.layout->geometry[tensor];
    return all->local_elem + leaf_start(geometry, first_leaf);
}

bool stage_is_on_host(uint32_t shard)
{
    return compute_is_host(stage_job(shard)->compute);
}

const void *stage_extent(const struct shard_job *job, enum plane plane, size_t number)
{
    static uint8_t *copy;
    const struct local_extent *extent = &job->view->table.map.extents[number];
    const size_t bytes = (size_t)form_bytes(&job->view->forms[number], plane, extent->elem_count);
    struct works *works = compute_loop(job->compute);
    struct sentence why;
    copy = realloc(copy, bytes + 1);
    ck_assert_ptr_nonnull(copy);
    works_copy(works, copy, planes_at(&job->planes, plane, number, extent->local_elem), bytes);
    ck_assert_int_eq(works_run(works, &why), CAIRN_OK);
    return copy;
}

static void check_extent(const struct shard_job *job, size_t number)
{
    static const enum plane planes[] = { CAIRN_PLANE_PARAM, CAIRN_PLANE_EXP_AVG,
                                         CAIRN_PLANE_EXP_AVG_SQ, CAIRN_PLANE_EMA };
    const struct local_extent *extent = &job->view->table.map.extents[number];
    const uint64_t at = model_elem(extent->tensor, extent->first_leaf);
    for (size_t p = 0; p < sizeof planes / sizeof *planes; p++) {
        if (!model_keeps(extent->tensor, (int)planes[p])) continue;
        const float *have = stage_extent(job, planes[p], number);
        const float *wanted = model_plane(&stage.model, (int)planes[p]) + at;
        for (uint64_t i = 0; i < extent->elem_count; i++)
            ck_assert_msg(have[i] == wanted[i], "shard %u, tensor %u, %s [%" PRIu64 "]: %g, not %g",
                          job->view->table.map.shard, extent->tensor, plane_name((int)planes[p]),
                          (extent->first_elem + i), have[i], wanted[i]);
    }
}

void stage_check(void)
{
    uint64_t elems = 0;
    for (uint32_t s = 0; s < stage.count; s++) {
        const struct shard_job *job = stage_job(s);
        for (size_t i = 0; i < job->view->table.map.extent_count; i++) check_extent(job, i);
        elems += job->view->table.map.elem_count;
    }
    ck_assert_uint_eq(elems, stage.whole.map.elem_count);
}

void stage_check_version(uint64_t step, const struct stage_run *table, const struct model *then)
{
    struct layout *layout = stage_make(table, 1, stage.count);
    for (uint32_t s = 0; s < stage.count; s++) {
        struct shard_map map;
        ck_assert_int_eq(shard_map_init(&map, layout, s, SCENE_CHUNK_LEAVES), CAIRN_OK);
        for (uint64_t c = 0; c < map.chunk_count; c++) {
            struct chunk_place place = shard_map_chunk(&map, c);
            place.local_elem = model_elem(place.tensor, place.first_leaf);
            model_check_place(then, &stage.shard[s], CAIRN_PLANE_WIRE, &place, 1, step);
        }
        shard_map_release(&map);
    }
    layout_close(layout);
}
