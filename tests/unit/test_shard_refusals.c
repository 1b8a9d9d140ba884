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
    for (size_t i = 0; i < scene.note_count; i++) scene.notes[i].taken = true;
    scene_fence(&scene, 4);
    scene_hear(&scene, CAIRN_MSG_ANSWER);
    scene_resolve_none(&scene);
    scene_hear(&scene, CAIRN_MSG_PUBLISHED);
    model_round(&model, &scene, 6, 0);
    ck_assert_mem_eq(scene_plane(scene.shard->jobs, CAIRN_PLANE_PARAM), model.param,
                     model.scene->map.elem_count * 4);
    model_close(&model);
    scene_close(&scene);
}

static void open_round(void)
{
    scene_round_open(&scene, 5, 0, 2);
    for (int i = 0; i < 2; i++) scene_note(&scene, CAIRN_CHUNK_GRANT);
}

static uint64_t chunk_of(uint32_t tensor)
{
    uint64_t chunk = 0;
    while (shard_map_chunk(&scene.map, chunk).tensor != tensor) chunk++;
    return chunk;
}

static size_t bytes_of(uint64_t chunk)
{
    return shard_map_chunk(&scene.map, chunk).elem_count * sizeof(float);
}

static cairn_status refusal_of(struct chunk_header *header, size_t payload_bytes)
{
    scene_send(&scene, header, payload, payload_bytes);
    const struct scene_note *nak = scene_note(&scene, CAIRN_CHUNK_NAK);
    ck_assert_uint_eq(nak->header.member, header->member);
    ck_assert_uint_eq(nak->header.request, header->request);
    return (cairn_status)nak->header.value;
}

/* ---- pushes: one wrong field each ---- */

struct push_case {
    const char *what;
    void (*spoil)(struct chunk_header *header);
    cairn_status status;
    size_t payload_bytes; /* 0: as the chunk has them in f32 */
};

static void older_round(struct chunk_header *h)
{
    h->round--;
}
static void later_round(struct chunk_header *h)
{
    h->round++;
}
static void older_epoch(struct chunk_header *h)
{
    h->epoch--;
}
static void later_micro(struct chunk_header *h)
{
    h->micro = 1;
}
static void unknown_tensor(struct chunk_header *h)
{
    h->tensor = TENSORS;
}
static void past_the_tensor(struct chunk_header *h)
{
    h->first_leaf += 1000;
}
static void off_the_grid(struct chunk_header *h)
{
    h->first_leaf += 1;
}
static void half_a_chunk(struct chunk_header *h)
{
    h->leaf_count = 2;
}
static void of_the_other_shard(struct chunk_header *h)
{
    h->first_leaf = 16;
}
static void with_a_tile(struct chunk_header *h)
{
    h->tile = 1;
}
static void with_another_table(struct chunk_header *h)
{
    h->table_hash++;
}
static void in_f16(struct chunk_header *h)
{
    h->dtype = CAIRN_F16;
}
static void as_bf16(struct chunk_header *h)
{
    h->dtype = CAIRN_BF16;
}
static void with_a_wrong_checksum(struct chunk_header *h)
{
    h->checksum = 12345;
}

static void to_be_read_in_place(struct chunk_header *h)
{
    h->value = 1;
}

static const struct push_case push_cases[] = {
    { "of an older round", older_round, CAIRN_ERR_STALE, 0 },
    { "of a round to come", later_round, CAIRN_ERR_PROTOCOL, 0 },
    { "of an older epoch", older_epoch, CAIRN_ERR_STALE, 0 },
    { "of a micro-batch to come", later_micro, CAIRN_ERR_PROTOCOL, 0 },
    { "of no tensor", unknown_tensor, CAIRN_ERR_MALFORMED, 0 },
    { "past its tensor", past_the_tensor, CAIRN_ERR_MALFORMED, 0 },
    { "off the grid", off_the_grid, CAIRN_ERR_MALFORMED, 0 },
    { "half of a chunk", half_a_chunk, CAIRN_ERR_MALFORMED, 5000 * 4 },
    { "of another shard", of_the_other_shard, CAIRN_ERR_MALFORMED, 0 },
    { "of a tile", with_a_tile, CAIRN_ERR_MISMATCH, 0 },
    { "of another tile table", with_another_table, CAIRN_ERR_MISMATCH, 0 },
    { "in f16", in_f16, CAIRN_ERR_MALFORMED, 10000 * 2 },
    { "an element too long", as_bf16, CAIRN_ERR_MALFORMED, 10001 * 2 },
    { "damaged", with_a_wrong_checksum, CAIRN_ERR_CHECKSUM, 0 },
    { "to be read in memory that is not shared", to_be_read_in_place, CAIRN_ERR_BUSY, 0 },
};
enum { PUSH_CASES = sizeof push_cases / sizeof *push_cases };

TEST_EACH(a_wrong_chunk_is_refused_and_changes_nothing, 0, PUSH_CASES)
{
    const struct push_case *wrong = &push_cases[_i];
    open_round();
    const uint64_t chunk = chunk_of(T_WEIGHT);
    struct chunk_header push = scene_chunk_header(&scene, CAIRN_CHUNK_PUSH, 1, chunk);
    wrong->spoil(&push);
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
    with_a_wrong_checksum(&push);
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
    const uint64_t chunk = chunk_of(T_FROZEN);
    struct chunk_header push = scene_chunk_header(&scene, CAIRN_CHUNK_PUSH, 1, chunk);
    ck_assert_int_eq(refusal_of(&push, bytes_of(chunk)), CAIRN_ERR_MALFORMED);
}

TEST(a_group_that_is_frozen_in_the_round_takes_no_gradient)
{
    const char *group = scene.spec.tensors[T_WEIGHT].group;
    scene.frozen_group = (uint32_t)spec_find_group(&scene.spec, group);
    scene.freezes = true;
    open_round();
    scene.freezes = false; // round 6 takes it again
    const uint64_t chunk = chunk_of(T_WEIGHT);
    struct chunk_header push = scene_chunk_header(&scene, CAIRN_CHUNK_PUSH, 1, chunk);
    ck_assert_int_eq(refusal_of(&push, bytes_of(chunk)), CAIRN_ERR_REFUSED);
    push.round--;
    ck_assert_int_eq(refusal_of(&push, bytes_of(chunk)), CAIRN_ERR_STALE);
}

TEST(a_tensor_that_is_frozen_in_the_round_takes_no_gradient)
{
    scene.frozen_tensor = T_WEIGHT;
    scene.freezes_tensor = true;
    open_round();
    scene.freezes_tensor = false; // round 6 takes it again
    const uint64_t chunk = chunk_of(T_WEIGHT);
    struct chunk_header push = scene_chunk_header(&scene, CAIRN_CHUNK_PUSH, 1, chunk);
    ck_assert_int_eq(refusal_of(&push, bytes_of(chunk)), CAIRN_ERR_REFUSED);
    push.round--;
    ck_assert_int_eq(refusal_of(&push, bytes_of(chunk)), CAIRN_ERR_STALE);
}

TEST(a_reader_only_fetches)
{
    open_round();
    const uint64_t chunk = chunk_of(T_BIAS);
    struct chunk_header push = scene_chunk_header(&scene, CAIRN_CHUNK_PUSH, 3, chunk);
    ck_assert_int_eq(refusal_of(&push, bytes_of(chunk)), CAIRN_ERR_REFUSED);
    struct chunk_header put = scene_chunk_header(&scene, CAIRN_CHUNK_PUT, 3, chunk);
    ck_assert_int_eq(refusal_of(&put, bytes_of(chunk)), CAIRN_ERR_REFUSED);
    struct chunk_header commit = scene_header(&scene, CAIRN_CHUNK_COMMIT, 3);
    ck_assert_int_eq(refusal_of(&commit, 0), CAIRN_ERR_REFUSED);
    struct chunk_header fetch = scene_chunk_header(&scene, CAIRN_CHUNK_FETCH, 3, chunk);
    fetch.plane = CAIRN_PLANE_WIRE;
    fetch.generation = 1;
    scene_send(&scene, &fetch, NULL, 0);
    ck_assert_uint_eq(scene_note(&scene, CAIRN_CHUNK_DATA)->header.payload_bytes, 40);
}

TEST(a_member_who_is_not_in_the_round_is_fenced)
{
    scene_join(&scene, 9, CAIRN_ROLE_WIRE_WORKER);
    open_round();
    const uint64_t chunk = chunk_of(T_BIAS);
    struct chunk_header push = scene_chunk_header(&scene, CAIRN_CHUNK_PUSH, 9, chunk);
    ck_assert_int_eq(refusal_of(&push, bytes_of(chunk)), CAIRN_ERR_FENCED);
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
    Cairn__MemberLeave gone = CAIRN__MEMBER_LEAVE__INIT;
    gone.job = SCENE_JOB;
    gone.member = 3;
    scene_say(&scene, CAIRN_MSG_MEMBER_LEAVE, 0, &gone.base);
    scene_settle(&scene);
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
    struct chunk_header fetch = scene_chunk_header(&scene, CAIRN_CHUNK_FETCH, 1,
                                                   chunk_of(T_FROZEN));
    fetch.plane = CAIRN_PLANE_EXP_AVG;
    fetch.generation = 1;
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
