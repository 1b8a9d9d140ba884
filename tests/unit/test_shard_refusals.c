/* What bad messages get from a shard: a refusal or nothing, and no change. */
#include <check.h>
#include <string.h>

#include "tests/support/mem.h"
#include "tests/support/shard_model.h"
#include "tests/support/shard_scene.h"
#include "tests/support/suite.h"

static struct scene scene;
static struct model model;
static float payload[SCENE_CHUNK_LEAVES * 4096];

/* A job in round 5 of epoch 3: members 1 and 2 contribute, 3 is a reader. */
static void open_job(const char *kind)
{
    scene_open(&scene, kind, 1, 0);
    scene_serve(&scene, 2, 3);
    scene_join(&scene, 3, CAIRN_ROLE_WIRE_READER);
    model_open(&model, &scene);
}

static void set_up(void)
{
    open_job("mem");
}

/* After all the mischief the round goes on to the right end. */
static void tear_down(void)
{
    scene_settle(&scene);
    scene_forget_notes(&scene);
    scene_begin_epoch(&scene, 4);
    model_round(&model, &scene, 6, 0);
    ck_assert_mem_eq(scene_plane(scene.shard->jobs, CAIRN_PLANE_PARAM), model.param,
                     model.scene->map.elem_count * 4);
    model_close(&model);
    scene_close(&scene);
}

static void open_round(void)
{
    scene_round_begin(&scene, 5, 0, 2);
}

static uint64_t chunk_of(uint32_t tensor)
{
    return scene_chunk_of(&scene, tensor);
}

static size_t bytes_of(uint64_t chunk)
{
    return scene_chunk_bytes(&scene, chunk);
}

static cairn_status refusal_of(struct chunk_header *header, size_t payload_bytes)
{
    return scene_nak(&scene, header, payload, payload_bytes);
}

/* Of a member's push of the first chunk of a tensor, `rounds` rounds before this one. */
static cairn_status push_refusal(uint64_t member, uint32_t tensor, uint64_t rounds)
{
    const uint64_t chunk = chunk_of(tensor);
    struct chunk_header push = scene_chunk_header(&scene, CAIRN_CHUNK_PUSH, member, chunk);
    push.round -= rounds;
    return refusal_of(&push, bytes_of(chunk));
}

/* ---- pushes: one wrong field each ---- */

#define FIELD(name) \
    offsetof(struct chunk_header, name), sizeof((struct chunk_header) { .kind = 0 }.name)

static const struct push_case {
    const char *what;
    size_t field, field_bytes;
    bool is_added; /* `value`, to what the field has; else the field becomes it */
    uint64_t value;
    cairn_status status;
    size_t payload_bytes; /* 0: as the chunk has them in f32 */
} push_cases[] = {
    { "of an older round", FIELD(round), true, UINT64_MAX, CAIRN_ERR_STALE, 0 },
    { "of a round to come", FIELD(round), true, 1, CAIRN_ERR_PROTOCOL, 0 },
    { "of an older epoch", FIELD(epoch), true, UINT64_MAX, CAIRN_ERR_STALE, 0 },
    { "of a micro-batch to come", FIELD(micro), false, 1, CAIRN_ERR_PROTOCOL, 0 },
    { "of no tensor", FIELD(tensor), false, TENSORS, CAIRN_ERR_MALFORMED, 0 },
    { "past its tensor", FIELD(first_leaf), true, 1000, CAIRN_ERR_MALFORMED, 0 },
    { "off the grid", FIELD(first_leaf), true, 1, CAIRN_ERR_MALFORMED, 0 },
    { "half of a chunk", FIELD(leaf_count), false, 2, CAIRN_ERR_MALFORMED, 5000 * 4 },
    { "of another shard", FIELD(first_leaf), false, 16, CAIRN_ERR_MALFORMED, 0 },
    { "of a tile", FIELD(tile), false, 1, CAIRN_ERR_MISMATCH, 0 },
    { "of another tile table", FIELD(table_hash), true, 1, CAIRN_ERR_MISMATCH, 0 },
    { "in f16", FIELD(dtype), false, CAIRN_F16, CAIRN_ERR_MALFORMED, 10000 * 2 },
    { "an element too long", FIELD(dtype), false, CAIRN_BF16, CAIRN_ERR_MALFORMED, 10001 * 2 },
    { "damaged", FIELD(checksum), false, 12345, CAIRN_ERR_CHECKSUM, 0 },
    { "to be read in memory that is not shared", FIELD(value), false, 1, CAIRN_ERR_BUSY, 0 },
};
enum { PUSH_CASES = sizeof push_cases / sizeof *push_cases };

/* Makes the one field wrong; the machine is a little-endian one. */
static void spoil(const struct push_case *wrong, struct chunk_header *header)
{
    uint8_t *const at = (uint8_t *)header + wrong->field;
    uint64_t value = 0;
    memcpy(&value, at, wrong->field_bytes);
    value = wrong->is_added ? value + wrong->value : wrong->value;
    memcpy(at, &value, wrong->field_bytes);
}

TEST_EACH(a_wrong_chunk_is_refused_and_changes_nothing, 0, PUSH_CASES)
{
    const struct push_case *wrong = &push_cases[_i];
    open_round();
    const uint64_t chunk = chunk_of(T_WEIGHT);
    struct chunk_header push = scene_chunk_header(&scene, CAIRN_CHUNK_PUSH, 1, chunk);
    scene.row = wrong->what;
    spoil(wrong, &push);
    const size_t bytes = wrong->payload_bytes != 0 ? wrong->payload_bytes : bytes_of(chunk);
    const cairn_status status = refusal_of(&push, bytes);
    ck_assert_msg(status == wrong->status, "a chunk %s: %s", wrong->what,
                  status_code_name((int)status));
    ck_assert_uint_gt(scene.shard->stats.chunks_refused, 0);
    ck_assert_uint_eq(step_slots_used(scene.shard->jobs->collector.step), 0);
}

/* What went from a card's memory, where nobody could make one: its sender says so. */
TEST(a_chunk_that_is_said_to_have_no_checksum_is_taken_without_and_counted)
{
    open_round();
    const uint64_t chunk = chunk_of(T_WEIGHT);
    const size_t bytes = bytes_of(chunk);
    void *zeros = calloc(1, bytes);
    struct chunk_header push = scene_chunk_header(&scene, CAIRN_CHUNK_PUSH, 1, chunk);
    push.checksum = 12345;
    push.value = CAIRN_CHUNK_UNSUMMED;
    scene_send(&scene, &push, zeros, bytes);
    ck_assert_uint_eq(scene_note(&scene, CAIRN_CHUNK_ACK)->header.request, push.request);
    ck_assert_uint_eq(scene.shard->jobs->bytes.pushed_direct, bytes);
    scene_settle(&scene);
    free(zeros);
}

TEST(a_frozen_tensor_takes_no_gradient)
{
    open_round();
    ck_assert_int_eq(push_refusal(1, T_FROZEN, 0), CAIRN_ERR_MALFORMED);
}

static void check_weight_takes_no_gradient(void)
{
    open_round();
    scene.freezes = scene.freezes_tensor = false; // round 6 takes it again
    ck_assert_int_eq(push_refusal(1, T_WEIGHT, 0), CAIRN_ERR_REFUSED);
    ck_assert_int_eq(push_refusal(1, T_WEIGHT, 1), CAIRN_ERR_STALE);
}

TEST(a_group_that_is_frozen_in_the_round_takes_no_gradient)
{
    const char *group = scene.spec.tensors[T_WEIGHT].group;
    scene.frozen_group = (uint32_t)spec_find_group(&scene.spec, group);
    scene.freezes = true;
    check_weight_takes_no_gradient();
}

TEST(a_tensor_that_is_frozen_in_the_round_takes_no_gradient)
{
    scene.frozen_tensor = T_WEIGHT;
    scene.freezes_tensor = true;
    check_weight_takes_no_gradient();
}

TEST(a_reader_only_fetches)
{
    open_round();
    const uint64_t chunk = chunk_of(T_BIAS);
    ck_assert_int_eq(push_refusal(3, T_BIAS, 0), CAIRN_ERR_REFUSED);
    struct chunk_header put = scene_chunk_header(&scene, CAIRN_CHUNK_PUT, 3, chunk);
    ck_assert_int_eq(refusal_of(&put, bytes_of(chunk)), CAIRN_ERR_REFUSED);
    struct chunk_header commit = scene_header(&scene, CAIRN_CHUNK_COMMIT, 3);
    ck_assert_int_eq(refusal_of(&commit, 0), CAIRN_ERR_REFUSED);
    scene_fetch(&scene, 3, chunk, CAIRN_PLANE_WIRE, 1, 0);
    ck_assert_uint_eq(scene_note(&scene, CAIRN_CHUNK_DATA)->header.payload_bytes, 40);
}

TEST(a_member_who_is_not_in_the_round_is_fenced)
{
    scene_join(&scene, 9, CAIRN_ROLE_WIRE_WORKER);
    open_round();
    ck_assert_int_eq(push_refusal(9, T_BIAS, 0), CAIRN_ERR_FENCED);
}

TEST(more_chunks_than_the_window_are_told_to_wait)
{
    open_round();
    // Member 2's wait for member 1's, so its slots fill.
    const uint64_t first = chunk_of(T_WEIGHT);
    for (uint64_t c = first; c < first + SCENE_WINDOW; c++) {
        struct chunk_header push = scene_chunk_header(&scene, CAIRN_CHUNK_PUSH, 2, c);
        scene_send(&scene, &push, payload, bytes_of(c));
    }
    scene_settle(&scene);
    struct chunk_header push = scene_chunk_header(&scene, CAIRN_CHUNK_PUSH, 2,
                                                  first + SCENE_WINDOW);
    ck_assert_int_eq(refusal_of(&push, bytes_of(first + SCENE_WINDOW)), CAIRN_ERR_BUSY);
    ck_assert_uint_eq(step_slots_used(scene.shard->jobs->collector.step), SCENE_WINDOW);
}

/* ---- strangers ---- */

static void check_ignored(struct chunk_header *header, size_t payload_bytes)
{
    const uint64_t before = scene.shard->stats.chunks_refused;
    scene_send(&scene, header, payload, payload_bytes);
    scene_settle(&scene);
    ck_assert_uint_eq(scene.shard->stats.chunks_refused, before + 1);
    ck_assert_uint_eq(scene_waiting(&scene, CAIRN_CHUNK_NAK), 0);
    ck_assert_uint_eq(scene_waiting(&scene, CAIRN_CHUNK_ACK), 0);
}

TEST(a_stranger_is_not_even_answered)
{
    open_round();
    const uint64_t chunk = chunk_of(T_BIAS);
    struct chunk_header push = scene_chunk_header(&scene, CAIRN_CHUNK_PUSH, 1, chunk);
    push.token++;
    check_ignored(&push, bytes_of(chunk));
    push.token--;
    push.job++;
    check_ignored(&push, bytes_of(chunk));
    push.job--;
    push.member = 4711;
    check_ignored(&push, bytes_of(chunk));
    // A payload larger than its leaves can be is no header of ours.
    push = scene_chunk_header(&scene, CAIRN_CHUNK_PUSH, 1, chunk);
    check_ignored(&push, 5000 * sizeof(float));
}

TEST(a_member_who_left_is_a_stranger)
{
    scene_leave(&scene, 3);
    struct chunk_header fetch = scene_chunk_header(&scene, CAIRN_CHUNK_FETCH, 3, 0);
    check_ignored(&fetch, 0);
}

/* ---- ends, commits, puts, fetches ---- */

TEST(an_end_that_does_not_add_up_is_refused)
{
    static const uint32_t lists[][2] = {
        { T_EMB, T_BIAS }, { T_EMB, T_EMB }, { T_FROZEN, T_WEIGHT }, { T_BIAS, TENSORS }
    };
    open_round();
    struct chunk_header end = scene_header(&scene, CAIRN_CHUNK_MICRO_END, 1);
    end.value = 3; // and the others neither sent nor untouched
    ck_assert_int_eq(refusal_of(&end, 0), CAIRN_ERR_PROTOCOL);
    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++) {
        end = scene_header(&scene, CAIRN_CHUNK_MICRO_END, 1);
        memcpy(payload, lists[i], sizeof lists[i]);
        ck_assert_int_eq(refusal_of(&end, sizeof lists[i]), CAIRN_ERR_MALFORMED);
    }
    end = scene_header(&scene, CAIRN_CHUNK_MICRO_END, 1);
    end.checksum = 1;
    ck_assert_int_eq(refusal_of(&end, 4), CAIRN_ERR_CHECKSUM);
    end = scene_header(&scene, CAIRN_CHUNK_MICRO_END, 1);
    end.value = (uint64_t)1 << 40;
    ck_assert_int_eq(refusal_of(&end, 0), CAIRN_ERR_MALFORMED);
}

TEST(a_put_after_the_seal_changes_nothing)
{
    struct chunk_header put = scene_chunk_header(&scene, CAIRN_CHUNK_PUT, 1, 0);
    ck_assert_int_eq(refusal_of(&put, bytes_of(0)), CAIRN_ERR_EXISTS);
}

TEST(a_fetch_of_what_is_not_there_is_refused)
{
    struct chunk_header fetch = scene_fetch_header(&scene, 1, chunk_of(T_FROZEN),
                                                   CAIRN_PLANE_EXP_AVG, 1, 0);
    ck_assert_int_eq(refusal_of(&fetch, 0), CAIRN_ERR_NOT_FOUND);
    fetch.plane = CAIRN_PLANE_WIRE;
    fetch.leaf_count = 1;
    ck_assert_int_eq(refusal_of(&fetch, 0), CAIRN_ERR_MALFORMED);
    fetch.tensor = 1u << 30;
    ck_assert_int_eq(refusal_of(&fetch, 0), CAIRN_ERR_MALFORMED);
}

TEST(a_message_for_a_worker_is_refused)
{
    struct chunk_header grant = scene_header(&scene, CAIRN_CHUNK_GRANT, 1);
    ck_assert_int_eq(refusal_of(&grant, 0), CAIRN_ERR_PROTOCOL);
}

/* The shard's next HELLO, and the GRANT with it, to member 2 in round 5; returns their number. */
static uint64_t hear_way(void)
{
    const struct scene_note *hello = scene_note(&scene, CAIRN_CHUNK_HELLO);
    const struct scene_note *grant = scene_note(&scene, CAIRN_CHUNK_GRANT);
    ck_assert_uint_eq(hello->header.member, 2);
    ck_assert_uint_eq(grant->header.member, 2);
    ck_assert_uint_eq(grant->header.round, 5);
    ck_assert_uint_eq(grant->header.request, hello->header.request);
    return hello->header.request;
}

static uint64_t say_hello(uint64_t connection)
{
    struct chunk_header hello = scene_header(&scene, CAIRN_CHUNK_HELLO, 2);
    hello.request = connection;
    scene_send(&scene, &hello, NULL, 0);
    return hear_way();
}

TEST(a_hello_is_answered_with_a_hello_and_the_grant)
{
    open_round();
    while (scene_waiting(&scene, CAIRN_CHUNK_HELLO) > 0) scene_note(&scene, CAIRN_CHUNK_HELLO);
    const uint64_t first = say_hello(1);
    ck_assert_uint_eq((uint32_t)first, 1);
    ck_assert_uint_ge(CAIRN_CHUNK_WAY_ENDPOINT(first), 1);
    ck_assert_uint_eq(say_hello(1), first); // asked again: nothing is new
    ck_assert_uint_eq(say_hello(2), first + 1);
    ck_assert_uint_eq(say_hello(1), first + 1); // it was overtaken
}

TEST(a_shard_that_lost_its_endpoint_alone_says_so_by_the_next_one)
{
    open_round();
    while (scene_waiting(&scene, CAIRN_CHUNK_HELLO) > 0) scene_note(&scene, CAIRN_CHUNK_HELLO);
    const uint64_t before = say_hello(1);
    cairn_fabric_mem_cut_one(member_find(scene.shard->jobs, 2)->peer);
    const uint64_t after = hear_way();
    ck_assert_uint_gt(CAIRN_CHUNK_WAY_ENDPOINT(after), CAIRN_CHUNK_WAY_ENDPOINT(before));
    ck_assert_uint_eq((uint32_t)after, 1);
}

SUITE(60, set_up, tear_down);

/* ---- where the host's memory is shared ---- */

static void set_up_shared(void)
{
    open_job("mapped");
}

static uint8_t push_in_place(uint64_t chunk)
{
    struct chunk_header push = scene_chunk_header(&scene, CAIRN_CHUNK_PUSH, 1, chunk);
    push.value = CAIRN_CHUNK_IN_PLACE;
    scene_send(&scene, &push, payload, bytes_of(chunk));
    scene_settle(&scene);
    return scene_waiting(&scene, CAIRN_CHUNK_ACK) > 0 ? CAIRN_CHUNK_ACK : CAIRN_CHUNK_NAK;
}

/* The fabric copies a small payload, so that there is nothing to be read in place. */
TEST(a_small_chunk_takes_no_slot_of_those_that_are_read_in_place)
{
    open_round();
    ck_assert_uint_eq(push_in_place(chunk_of(T_WEIGHT)), CAIRN_CHUNK_ACK); // a large one does
    scene_note(&scene, CAIRN_CHUNK_ACK);
    const uint64_t small = chunk_of(T_BIAS);
    ck_assert_uint_le(bytes_of(small), CAIRN_CHUNK_SMALL);
    ck_assert_uint_eq(push_in_place(small), CAIRN_CHUNK_NAK);
    ck_assert_int_eq((int)scene_note(&scene, CAIRN_CHUNK_NAK)->header.value, CAIRN_ERR_BUSY);
}

SUITE(60, set_up_shared, tear_down);
