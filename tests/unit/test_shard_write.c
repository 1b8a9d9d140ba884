/* A write at a shard: what is put stands beside the state until the coordinator's word, and nobody but the
 * writer puts anything. */
#include <check.h>
#include <string.h>

#include "tests/support/shard_scene.h"
#include "tests/support/suite.h"

enum { ROUND = 7 };
static struct scene scene;
static uint64_t used_before;

static void serve(void)
{
    scene_open(&scene, "mem", 2, 0);
    scene_serve(&scene, 2, 1);
    used_before = scene.shard->memory.budget.used_bytes;
}

static void leave(void)
{
    scene_close(&scene);
}

static void open_write(void)
{
    scene_write_open(&scene, ROUND, 1, 0);
}

/* It takes effect, as that generation. */
static void decide(uint64_t generation)
{
    scene_say_decision(&scene, CAIRN_MSG_DECIDE,
                       &(Cairn__Decision) { .kind = CAIRN_DECISION_WRITE,
                                            .round = scene.round,
                                            .generation = generation });
}

static uint64_t chunk_of(uint32_t tensor)
{
    return scene_chunk_of(&scene, tensor);
}

/* CAIRN_OK: acknowledged; else why not. */
static cairn_status send_put(struct chunk_header *header, const void *payload, size_t bytes)
{
    ck_assert_uint_eq(scene_waiting(&scene, CAIRN_CHUNK_NAK), 0);
    scene_send(&scene, header, payload, bytes);
    scene_settle(&scene);
    if (scene_waiting(&scene, CAIRN_CHUNK_NAK) > 0)
        return (cairn_status)scene_note(&scene, CAIRN_CHUNK_NAK)->header.value;
    scene_note(&scene, CAIRN_CHUNK_ACK);
    return CAIRN_OK;
}

/* Every element is 9. */
static cairn_status put(uint64_t member, uint64_t round, uint64_t chunk, uint8_t plane)
{
    static float values[SCENE_CHUNK_LEAVES * CAIRN_LEAF_ELEMS];
    const struct chunk_place place = shard_map_chunk(&scene.map, chunk);
    struct chunk_header header = scene_chunk_header(&scene, CAIRN_CHUNK_PUT, member, chunk);
    for (uint64_t i = 0; i < place.elem_count; i++) values[i] = 9;
    header.plane = plane;
    header.round = round;
    return send_put(&header, values, (size_t)place.elem_count * sizeof *values);
}

/* The rows from `row` on of the chunk, in a box that reaches `more` rows beyond it; the payload is short of
 * `short_bytes`. Every element is 5. */
static cairn_status put_rows(uint64_t chunk, uint64_t row, uint64_t more, size_t short_bytes)
{
    static uint8_t bytes[CAIRN_BOX_BYTES_MAX + SCENE_CHUNK_LEAVES * CAIRN_LEAF_ELEMS * 4];
    const struct chunk_place place = shard_map_chunk(&scene.map, chunk);
    const struct shape *shape = &scene.shard->jobs->spec.tensors[place.tensor].shape;
    const uint64_t columns = shape->rank == 2 ? shape->dim[1] : 1;
    struct cairn_box box = box_of_shape(shape);
    box.start[0] = place.first_elem / columns + row;
    box.extent[0] = place.elem_count / columns - row + more;
    const size_t head = box_encode(&box, bytes);
    const size_t count = (size_t)(place.elem_count - row * columns);
    struct chunk_header header = scene_chunk_header(&scene, CAIRN_CHUNK_PUT, 1, chunk);
    for (size_t i = 0; i < count; i++) {
        const float five = 5;
        memcpy(bytes + head + i * sizeof five, &five, sizeof five);
    }
    header.round = ROUND;
    header.tile = CAIRN_TILE_BOX;
    return send_put(&header, bytes, head + count * sizeof(float) - short_bytes);
}

static void commit(void)
{
    scene_write_commit(&scene);
    scene_hear(&scene, CAIRN_MSG_REDUCED);
}

static void check_param(uint64_t written)
{
    for (uint64_t c = 0; c < scene.map.chunk_count; c++) {
        const struct chunk_place place = shard_map_chunk(&scene.map, c);
        const float *got = scene_param(&scene, c);
        for (uint64_t i = 0; i < place.elem_count; i++)
            ck_assert(got[i] ==
                      (c == written ? 9 : scene_initial(place.tensor, place.first_elem + i)));
    }
}

/* Nothing of a write is held any more. */
static void check_forgotten(void)
{
    scene_settle(&scene);
    ck_assert_ptr_null(scene.shard->jobs->puts.write);
    ck_assert_ptr_null(scene.shard->jobs->puts.arena.base);
    ck_assert_uint_eq(scene.shard->memory.budget.used_bytes, used_before);
}

/* The write is void: the state stands as it was. */
static void give_up(void)
{
    scene_begin_epoch(&scene, 2);
    check_param(UINT64_MAX);
    check_forgotten();
}

TEST(what_is_put_takes_effect_by_the_coordinators_word)
{
    const uint64_t chunk = chunk_of(T_WEIGHT);
    open_write();
    ck_assert_int_eq(put(1, ROUND, chunk, CAIRN_PLANE_PARAM), CAIRN_OK);
    ck_assert_int_eq(put(1, ROUND, chunk, CAIRN_PLANE_PARAM), CAIRN_OK); // the answer was lost
    commit();
    check_param(UINT64_MAX);
    decide(2);
    const Cairn__Published *published = scene_heard(&scene, Published);
    ck_assert_uint_eq(published->generation, 2);
    ck_assert_uint_eq(published->step, 0);
    check_param(chunk);
    check_forgotten();
}

TEST(what_a_box_does_not_have_stays_as_it_is)
{
    const uint64_t chunk = chunk_of(T_WEIGHT);
    const struct chunk_place place = shard_map_chunk(&scene.map, chunk);
    const uint64_t columns = scene.shard->jobs->spec.tensors[T_WEIGHT].shape.dim[1];
    open_write();
    ck_assert_int_eq(put_rows(chunk, 3, 0, 0), CAIRN_OK);
    ck_assert_int_eq(put_rows(chunk, 3, 0, 0), CAIRN_OK); // the answer was lost
    commit();
    check_param(UINT64_MAX);
    decide(2);
    scene_hear(&scene, CAIRN_MSG_PUBLISHED);
    const float *got = scene_param(&scene, chunk);
    for (uint64_t i = 0; i < place.elem_count; i++)
        ck_assert(got[i] == (i < 3 * columns ? scene_initial(T_WEIGHT, place.first_elem + i) : 5));
    check_forgotten();
}

/* A whole write of one chunk of a plane; the job is at that generation before. */
static void write_chunk(uint64_t generation, uint64_t chunk, uint8_t plane)
{
    scene_write_open(&scene, ROUND + generation, generation, 0);
    ck_assert_int_eq(put(1, scene.round, chunk, plane), CAIRN_OK);
    commit();
    decide(generation + 1);
    scene_hear(&scene, CAIRN_MSG_PUBLISHED);
    check_forgotten();
}

/* What readers of the newest version have of a chunk, once one has asked for it. */
static uint8_t *newest(uint64_t chunk)
{
    const struct shard_job *job = scene.shard->jobs;
    const struct published_copy *copy = &job->versions.copies[job->versions.newest];
    scene_fetch(&scene, 1, chunk, CAIRN_PLANE_WIRE, copy->version.generation, copy->version.step);
    scene_note(&scene, CAIRN_CHUNK_DATA);
    scene_settle(&scene); // the member's reply is free again, and no other is made
    return published_host_at(copy, chunk, shard_map_chunk(&scene.map, chunk).local_elem);
}

static size_t published_bytes(uint64_t chunk)
{
    const struct shard_view *view = scene.shard->jobs->view;
    return (size_t)shard_map_chunk(&scene.map, chunk).elem_count *
           dtype_size((int)view->forms[view->table.extent_of[chunk]].wire);
}

TEST(a_write_of_moments_publishes_only_what_the_older_copy_lacks)
{
    const uint64_t chunk = chunk_of(T_WEIGHT), other = chunk_of(T_EMB);
    write_chunk(1, other, CAIRN_PLANE_PARAM);
    const uint8_t *first = newest(chunk), *first_other = newest(other);
    write_chunk(2, chunk, CAIRN_PLANE_EXP_AVG); // the other copy gets all that the first write made
    ck_assert_ptr_ne(newest(chunk), first);
    ck_assert_mem_eq(newest(chunk), first, published_bytes(chunk));
    ck_assert_mem_eq(newest(other), first_other, published_bytes(other));
    newest(chunk)[1] ^= 0x40; // a mark in the copy that is written after the next one
    write_chunk(3, chunk, CAIRN_PLANE_EXP_AVG_SQ);
    ck_assert_ptr_eq(newest(chunk), first);
    write_chunk(4, chunk, CAIRN_PLANE_EXP_AVG);
    ck_assert_int_eq(newest(chunk)[1] ^ 0x40, first[1]); // it stands: nothing was published twice
    write_chunk(5, other, CAIRN_PLANE_PARAM);
    ck_assert_ptr_eq(newest(chunk), first);
    write_chunk(6, chunk,
                CAIRN_PLANE_EXP_AVG); // a version has changed parameters since: all of them
    ck_assert_mem_eq(newest(chunk), first, published_bytes(chunk));
    check_param(other);
}

TEST(a_box_that_is_none_or_whose_elements_are_not_there_is_refused)
{
    const uint64_t chunk = chunk_of(T_WEIGHT);
    open_write();
    ck_assert_int_eq(put_rows(chunk, 3, 100000, 0), CAIRN_ERR_MALFORMED); // beyond the tensor
    ck_assert_int_eq(put_rows(chunk, 3, 0, 4), CAIRN_ERR_MALFORMED);
    commit();
    give_up();
}

TEST(a_void_write_is_forgotten)
{
    open_write();
    ck_assert_int_eq(put(1, ROUND, chunk_of(T_EMB), CAIRN_PLANE_PARAM), CAIRN_OK);
    ck_assert_uint_gt(scene.shard->memory.budget.used_bytes, used_before);
    commit();
    give_up();
    ck_assert_int_eq(put(1, ROUND, 0, CAIRN_PLANE_PARAM), CAIRN_ERR_STALE);
}

TEST(nobody_but_the_writer_puts_and_only_while_it_writes)
{
    const uint64_t frozen = chunk_of(T_FROZEN);
    const struct {
        const char *who;
        uint64_t member, round, chunk;
        uint8_t plane;
        cairn_status status;
    } puts[] = {
        { "another member", 2, ROUND, 0, CAIRN_PLANE_PARAM, CAIRN_ERR_STALE },
        { "the writer, in a round before", 1, ROUND - 1, 0, CAIRN_PLANE_PARAM, CAIRN_ERR_STALE },
        { "the writer, what is no state", 1, ROUND, 0, CAIRN_PLANE_WIRE, CAIRN_ERR_MALFORMED },
        { "the writer, a moment that is not kept", 1, ROUND, frozen, CAIRN_PLANE_EXP_AVG,
          CAIRN_ERR_NOT_FOUND },
        { "the writer", 1, ROUND, frozen, CAIRN_PLANE_PARAM, CAIRN_OK },
    };
    ck_assert_int_eq(put(1, ROUND, 0, CAIRN_PLANE_PARAM), CAIRN_ERR_BUSY); // not open here yet
    open_write();
    for (size_t i = 0; i < sizeof puts / sizeof *puts; i++) {
        scene.row = puts[i].who;
        const cairn_status status = put(puts[i].member, puts[i].round, puts[i].chunk,
                                        puts[i].plane);
        ck_assert_msg(status == puts[i].status, "%s: %s", puts[i].who,
                      status_code_name((int)status));
    }
    commit();
    ck_assert_int_eq(put(1, ROUND, 0, CAIRN_PLANE_PARAM), CAIRN_ERR_STALE);
    check_param(UINT64_MAX);
}

TEST(a_write_that_does_not_fit_is_refused_and_the_state_stands)
{
    open_write();
    scene.shard->memory.budget.limit_bytes = scene.shard->memory.budget.used_bytes;
    ck_assert_int_eq(put(1, ROUND, 0, CAIRN_PLANE_PARAM), CAIRN_ERR_NO_MEMORY);
    give_up();
}

SUITE(30, serve, leave);
