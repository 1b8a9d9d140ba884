/* Workers that hold boxes of tensors, at a shard: put, pushed, folded, fetched; every sum against a strict
 * left fold, element by element. */
#include <inttypes.h>
#include <check.h>
#include <stdlib.h>
#include <string.h>

#include "server/shard/base.h"
#include "tests/support/shard_scene.h"
#include "tests/support/suite.h"

enum { WORKERS = 3, MICROS = 2, CHUNK_ELEMS = SCENE_CHUNK_LEAVES * 4096 };

static struct scene scene;
static struct tiles tiles[WORKERS + 1]; /* of member 1 to 3 */
static uint8_t payload[CHUNK_ELEMS * 4];

static struct shard_job *job(void)
{
    return scene.shard->jobs;
}

static const struct shape *shape_of(uint32_t tensor)
{
    return &scene.spec.tensors[tensor].shape;
}

/* ---- tiles ---- */

static void hold(uint64_t member, uint32_t tensor, struct cairn_box box)
{
    ck_assert_int_eq(tiles_set(&tiles[member], tensor, &box), CAIRN_OK);
}

/* weight in two columns, the second one with two replicas; emb in rows, one of them of no chunk's border;
 * bias at member 2 alone. */
static void hold_pieces(void)
{
    hold(1, T_WEIGHT, (struct cairn_box) { 2, { 0, 0 }, { 50, 437 } });
    hold(2, T_WEIGHT, (struct cairn_box) { 2, { 0, 437 }, { 50, 563 } });
    hold(3, T_WEIGHT, (struct cairn_box) { 2, { 0, 437 }, { 50, 563 } });
    hold(1, T_EMB, (struct cairn_box) { 2, { 0, 0 }, { 13, 300 } });
    hold(2, T_EMB, (struct cairn_box) { 2, { 13, 0 }, { 26, 300 } });
    hold(3, T_EMB, (struct cairn_box) { 2, { 39, 0 }, { 1, 300 } });
    hold(1, T_BIAS, (struct cairn_box) { 1, { 0 }, { 0 } });
    hold(3, T_BIAS, (struct cairn_box) { 1, { 10 }, { 0 } });
    hold(1, T_FROZEN, (struct cairn_box) { 2, { 0, 0 }, { 20, 250 } });
    hold(2, T_FROZEN, (struct cairn_box) { 2, { 0, 250 }, { 20, 250 } });
    hold(3, T_FROZEN, (struct cairn_box) { 2, { 0, 250 }, { 20, 250 } });
}

static void say_tiles(uint64_t member, uint64_t hash, const uint8_t *bytes, size_t size)
{
    const uint32_t request = 40 + (uint32_t)member;
    scene_tell(&scene, request, MemberTiles, .job = SCENE_JOB, .member = member, .tiles_hash = hash,
               .tiles_bytes = size, .world = WORKERS);
    scene_say_pages(&scene, request, CAIRN_PAGE_TILES, bytes, size);
}

static void tell_tiles(uint64_t member)
{
    uint8_t *bytes;
    size_t size;
    ck_assert_int_eq(tiles_pack(&tiles[member], &bytes, &size), CAIRN_OK);
    say_tiles(member, tiles_digest(&tiles[member]), bytes, size);
    free(bytes);
    scene_done(&scene, (uint32_t)(40 + member));
}

static void tell_all_tiles(void)
{
    for (uint64_t m = 1; m <= WORKERS; m++) tell_tiles(m);
}

static cairn_status refused_tiles(uint64_t member, uint64_t hash, const uint8_t *bytes, size_t size)
{
    say_tiles(member, hash, bytes, size);
    struct scene_frame frame = scene_hear(&scene, CAIRN_MSG_ERROR);
    ck_assert_uint_eq(frame.request, 40 + member);
    return (cairn_status)((const Cairn__Error *)frame.message)->status;
}

/* ---- pieces ---- */

static const struct cairn_box *box_of(uint64_t member, uint32_t tensor, struct cairn_box *whole)
{
    const struct cairn_box *box = tiles_find(&tiles[member], tensor);
    *whole = box_of_shape(shape_of(tensor));
    return box != NULL ? box : whole;
}

static bool has(uint64_t member, uint32_t tensor, uint64_t elem)
{
    struct cairn_box whole;
    const struct cairn_box *box = box_of(member, tensor, &whole);
    return box_before(box, shape_of(tensor), elem + 1) > box_before(box, shape_of(tensor), elem);
}

/* Writes value(elem) of the elements that the box has in the chunk, in their order; how many. */
static size_t make_piece(const struct cairn_box *box, const struct chunk_place *place,
                         float (*value)(uint32_t tensor, uint64_t elem), float *out)
{
    struct box_runs runs;
    box_runs_begin(&runs, box, shape_of(place->tensor), place->first_elem, place->elem_count);
    size_t count = 0;
    uint64_t elem, box_elem, run;
    while (box_runs_next(&runs, &elem, &box_elem, &run))
        for (uint64_t i = 0; i < run; i++) out[count++] = value(place->tensor, elem + i);
    return count;
}

static struct chunk_header tile_header(uint8_t kind, uint64_t member, uint64_t chunk)
{
    struct chunk_header header = scene_chunk_header(&scene, kind, member, chunk);
    header.table_hash = tiles_digest(&tiles[member]);
    if (tiles_find(&tiles[member], header.tensor) != NULL) header.tile = CAIRN_TILE_OWN;
    return header;
}

/* Puts what member has of every chunk of a tensor; waits for the ACKs. */
static void put_tensor(uint64_t member, uint32_t tensor)
{
    for (uint64_t c = 0; c < scene.map.chunk_count; c++) {
        const struct chunk_place place = shard_map_chunk(&scene.map, c);
        struct cairn_box whole;
        if (place.tensor != tensor) continue;
        const size_t count = make_piece(box_of(member, tensor, &whole), &place, scene_initial,
                                        (float *)payload);
        if (count == 0) continue;
        struct chunk_header put = tile_header(CAIRN_CHUNK_PUT, member, c);
        scene_send(&scene, &put, payload, count * sizeof(float));
        ck_assert_uint_eq(scene_note(&scene, CAIRN_CHUNK_ACK)->header.request, put.request);
        scene_sent(&scene);
    }
}

/* ---- the stage ---- */

static void join_all(void)
{
    memset(tiles, 0, sizeof tiles);
    scene_open(&scene, "mem", 2, 0);
    scene_make(&scene, 1);
    for (uint64_t m = 1; m <= WORKERS; m++) scene_join(&scene, m, CAIRN_ROLE_WIRE_WORKER);
}

/* A job that serves, with the pieces told. */
static void set_up(void)
{
    join_all();
    hold_pieces();
    tell_all_tiles();
    for (uint64_t m = 1; m <= 2; m++)
        for (uint32_t t = 0; t < TENSORS; t++) put_tensor(m, t);
    put_tensor(3, T_EMB);
    scene_seal(&scene);
    scene_begin_epoch(&scene, 3);
}

static void tear_down(void)
{
    scene_close(&scene);
    for (uint64_t m = 1; m <= WORKERS; m++) tiles_release(&tiles[m]);
}

/* ---- a round ---- */

static uint64_t now_member;
static uint32_t now_micro;

/* Of many bits, so that the order of additions shows; every seventh is -0. Member 2 sends weight in bf16. */
static float gradient(uint32_t tensor, uint64_t elem)
{
    const uint64_t x = (elem * 2654435761u + now_member * 104729 + now_micro * 1299709 +
                        tensor * 15485863 + scene.round * 7919) %
                       1000003u;
    if (x % 7 == 0 || (elem % 5 == 0 && tensor == T_WEIGHT)) return -0.0f;
    if (now_member == 2 && tensor == T_WEIGHT) return ((float)(x % 255) - 127.0f) / 8.0f;
    return ((float)x - 500000.0f) / 3.0e4f;
}

static bool touches(uint64_t member, uint32_t micro, uint32_t tensor)
{
    if (tensor == T_FROZEN) return false;
    return !(member == 2 && micro == 1 && tensor == T_EMB);
}

/* The bytes of a member's piece in the dtype that it sends; 0: none. */
static size_t make_push(uint64_t member, uint32_t micro, uint64_t chunk,
                        struct chunk_header *header, void **bytes_out)
{
    const struct chunk_place place = shard_map_chunk(&scene.map, chunk);
    struct cairn_box whole;
    now_member = member;
    now_micro = micro;
    float *values = malloc(CHUNK_ELEMS * sizeof *values);
    const size_t count = make_piece(box_of(member, place.tensor, &whole), &place, gradient, values);
    *header = tile_header(CAIRN_CHUNK_PUSH, member, chunk);
    header->micro = micro;
    *bytes_out = values;
    if (member != 2 || place.tensor != T_WEIGHT) return count * sizeof *values;
    header->dtype = CAIRN_BF16;
    *bytes_out = malloc(CHUNK_ELEMS * 2);
    backend_host()->convert(*bytes_out, CAIRN_BF16, values, CAIRN_F32, count);
    free(values);
    return count * 2;
}

static void end_micro(uint64_t member, uint32_t micro, uint32_t sent)
{
    static const uint32_t untouched[] = { T_EMB };
    struct chunk_header end = scene_header(&scene, CAIRN_CHUNK_MICRO_END, member);
    end.micro = micro;
    end.value = sent;
    const bool all = touches(member, micro, T_EMB);
    scene_send(&scene, &end, all ? NULL : untouched, all ? 0 : sizeof untouched);
}

static uint32_t small_window; /* that the shard granted, beside SCENE_WINDOW */

/* A micro-batch of a member on its way. */
struct tile_pusher {
    uint64_t next; /* chunk, downwards: not the order in which the shard has them */
    uint32_t sent, unanswered, unanswered_small;
    bool ended;
    bool is_small[64]; /* by chunk */
    void *bytes[64];   /* owned: the payloads */
};

static uint32_t *unanswered(struct tile_pusher *p, uint64_t chunk)
{
    return small_window > 0 && p->is_small[chunk] ? &p->unanswered_small : &p->unanswered;
}

static bool is_full(struct tile_pusher *p, uint64_t chunk)
{
    const bool small = unanswered(p, chunk) == &p->unanswered_small;
    return *unanswered(p, chunk) >= (small ? small_window : SCENE_WINDOW);
}

/* Sends as much as the windows allow; behind the last chunk the end. */
static void push_more(struct tile_pusher *p, uint64_t member, uint32_t micro)
{
    while (p->next > 0) {
        const uint64_t chunk = p->next - 1;
        struct chunk_header push;
        size_t size = 0;
        if (touches(member, micro, shard_map_chunk(&scene.map, chunk).tensor)) {
            size = make_push(member, micro, chunk, &push, &p->bytes[p->sent]);
            p->is_small[chunk] = size <= CAIRN_CHUNK_SMALL;
            if (size == 0 || is_full(p, chunk)) free(p->bytes[p->sent]);
            if (size > 0 && is_full(p, chunk)) return;
        }
        p->next--;
        if (size == 0) continue;
        push.request = chunk;
        scene_send(&scene, &push, p->bytes[p->sent++], size);
        ++*unanswered(p, chunk);
    }
    if (p->next > 0 || p->ended) return;
    p->ended = true;
    end_micro(member, micro, p->sent);
}

/* All members at once, the last one first: its chunks wait for the others'. */
static void push_micro(uint32_t micro)
{
    struct tile_pusher pushers[WORKERS + 1] = { 0 };
    for (uint64_t m = WORKERS; m >= 1; m--) {
        pushers[m].next = scene.map.chunk_count;
        push_more(&pushers[m], m, micro);
    }
    for (bool more = true; more;) {
        const struct chunk_header ack = scene_note(&scene, CAIRN_CHUNK_ACK)->header;
        struct tile_pusher *p = &pushers[ack.member];
        --*unanswered(p, ack.request);
        push_more(p, (uint64_t)(p - pushers), micro);
        more = false;
        for (uint64_t m = 1; m <= WORKERS; m++)
            more |= pushers[m].unanswered + pushers[m].unanswered_small > 0;
    }
    for (int i = 0; i < WORKERS; i++) scene_note(&scene, CAIRN_CHUNK_MICRO_ACK);
    scene_sent(&scene);
    for (uint64_t m = 1; m <= WORKERS; m++)
        for (uint32_t i = 0; i < pushers[m].sent; i++) free(pushers[m].bytes[i]);
}

/* A whole round of all members, up to the sums. */
static void push_round(uint64_t round, uint64_t step)
{
    ck_assert_uint_le(scene.map.chunk_count, 64);
    scene_round_open(&scene, round, step, WORKERS);
    for (int i = 0; i < WORKERS; i++)
        small_window = scene_note(&scene, CAIRN_CHUNK_GRANT)->header.leaf_count;
    for (uint32_t micro = 0; micro < MICROS; micro++) push_micro(micro);
    for (uint64_t m = 1; m <= WORKERS; m++) {
        struct chunk_header commit = scene_header(&scene, CAIRN_CHUNK_COMMIT, m);
        commit.micro = MICROS - 1;
        commit.value = 1;
        scene_send(&scene, &commit, NULL, 0);
    }
    scene_hear(&scene, CAIRN_MSG_REDUCED);
}

static float expected_sum(uint32_t tensor, uint64_t elem)
{
    bool first = true;
    float sum = 0.0f;
    for (now_micro = 0; now_micro < MICROS; now_micro++)
        for (now_member = 1; now_member <= WORKERS; now_member++) {
            if (!touches(now_member, now_micro, tensor) || !has(now_member, tensor, elem)) continue;
            const float value = gradient(tensor, elem);
            sum = first ? value : sum + value;
            first = false;
        }
    return sum;
}

static void check_sums(void)
{
    const float *acc = scene_plane(job(), CAIRN_PLANE_SUM);
    for (size_t i = 0; i < scene.map.extent_count; i++) {
        const struct local_extent *extent = &scene.map.extents[i];
        if (extent->tensor == T_FROZEN) continue;
        for (uint64_t e = 0; e < extent->elem_count; e++) {
            const float expected = expected_sum(extent->tensor, extent->first_elem + e);
            ck_assert_msg(memcmp(&acc[extent->local_elem + e], &expected, 4) == 0,
                          "tensor %u, element %" PRIu64 ": %a, not %a", extent->tensor,
                          (extent->first_elem + e), (double)acc[extent->local_elem + e],
                          (double)expected);
        }
    }
}

TEST(pieces_are_folded_in_rank_order_where_they_lie)
{
    push_round(5, 0);
    check_sums();
}

TEST(what_nobody_contributes_is_plus_zero_whatever_was_there_before)
{
    push_round(5, 0);
    scene_begin_epoch(&scene, 4); // void: the sums of round 5 lie around
    for (uint64_t m = 1; m <= WORKERS; m++) {
        hold(m, T_WEIGHT, (struct cairn_box) { 2, { m, 10 * m }, { 1, 9 } });
        hold(m, T_EMB, (struct cairn_box) { 2, { 0, 7 }, { 39, 2 } });
        tell_tiles(m);
    }
    push_round(6, 0);
    check_sums();
}

TEST(a_job_goes_back_to_whole_tensors_and_gives_the_memory_back)
{
    push_round(5, 0);
    scene_begin_epoch(&scene, 4);
    ck_assert_ptr_nonnull(job()->tiling.list);
    const uint64_t with = job()->memory.tables;
    for (uint64_t m = 1; m <= WORKERS; m++) {
        tiles_release(&tiles[m]);
        tell_tiles(m);
    }
    ck_assert_ptr_null(job()->tiling.list);
    ck_assert_uint_lt(job()->memory.tables, with);
    push_round(6, 0);
    check_sums();
}

TEST(a_round_of_pieces_after_a_round_of_wholes_and_with_a_member_told_anew)
{
    struct tiles kept[WORKERS + 1];
    memcpy(kept, tiles, sizeof kept);
    memset(tiles, 0, sizeof tiles);
    tell_all_tiles();
    push_round(5, 0);
    check_sums();
    scene_begin_epoch(&scene, 4);
    memcpy(tiles, kept, sizeof kept);
    tell_all_tiles();
    scene_join(&scene, 2, CAIRN_ROLE_WIRE_WORKER); // as by a new coordinator: it keeps its tiles
    push_round(6, 0);
    check_sums();
}

TEST(a_new_coordinator_learns_that_there_are_tiles)
{
    scene_fence(&scene, 4);
    const struct scene_frame frame = scene_hear(&scene, CAIRN_MSG_ANSWER);
    ck_assert_uint_eq(((const Cairn__Answer *)frame.message)->tiles_world, WORKERS);
}

/* ---- refusals ---- */

static uint64_t chunk_of(uint32_t tensor)
{
    return scene_chunk_of(&scene, tensor);
}

static cairn_status refusal_of(struct chunk_header *header, size_t size)
{
    return scene_nak(&scene, header, payload, size);
}

TEST(a_piece_that_is_not_the_declared_one_is_refused)
{
    const uint64_t c = chunk_of(T_WEIGHT), bias = chunk_of(T_BIAS);
    const struct chunk_place place = shard_map_chunk(&scene.map, c);
    struct cairn_box whole;
    const size_t size =
        make_piece(box_of(1, T_WEIGHT, &whole), &place, gradient, (float *)payload) * sizeof(float);
    const struct chunk_header good = tile_header(CAIRN_CHUNK_PUSH, 1, c),
                              all = tile_header(CAIRN_CHUNK_PUSH, 2, bias),
                              none = tile_header(CAIRN_CHUNK_PUSH, 1, bias);
    const struct {
        const char *what;
        const struct chunk_header *header;
        uint8_t dtype;
        uint32_t tile;
        uint64_t more_hash;
        size_t bytes;
        cairn_status status;
    } wrong[] = {
        { "an element short", &good, CAIRN_F32, good.tile, 0, size - 4, CAIRN_ERR_MALFORMED },
        { "an element long", &good, CAIRN_F32, good.tile, 0, size + 4, CAIRN_ERR_MALFORMED },
        { "twice as many in bf16", &good, CAIRN_BF16, good.tile, 0, size, CAIRN_ERR_MALFORMED },
        { "of another table", &good, CAIRN_F32, good.tile, 1, size, CAIRN_ERR_MISMATCH },
        { "a whole chunk of a worker that holds a part", &good, CAIRN_F32, CAIRN_TILE_WHOLE, 0,
          place.elem_count * 4, CAIRN_ERR_MISMATCH },
        { "a tile of one that holds all, and declared nothing", &all, CAIRN_F32, CAIRN_TILE_OWN, 0,
          40, CAIRN_ERR_MISMATCH },
        { "of one that holds nothing", &none, CAIRN_F32, none.tile, 0, 40, CAIRN_ERR_MALFORMED },
    };
    scene_round_begin(&scene, 5, 0, WORKERS);
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        scene.row = wrong[i].what;
        struct chunk_header push = *wrong[i].header;
        push.round = scene.round;
        push.dtype = wrong[i].dtype;
        push.tile = wrong[i].tile;
        push.table_hash += wrong[i].more_hash;
        const cairn_status status = refusal_of(&push, wrong[i].bytes);
        ck_assert_msg(status == wrong[i].status, "a piece %s: %s", wrong[i].what,
                      status_code_name((int)status));
    }
    ck_assert_uint_eq(step_slots_used(job()->collector.step), 0);
    struct chunk_header end = scene_header(&scene, CAIRN_CHUNK_MICRO_END, 1);
    end.value = scene.map.chunk_count; // more than it holds
    ck_assert_int_eq(refusal_of(&end, 0), CAIRN_ERR_PROTOCOL);
}

TEST(tiles_do_not_change_while_a_round_collects)
{
    scene_round_open(&scene, 5, 0, WORKERS);
    scene_note(&scene, CAIRN_CHUNK_GRANT);
    tell_tiles(1); // the same again
    hold(1, T_WEIGHT, (struct cairn_box) { 2, { 0, 0 }, { 50, 400 } });
    uint8_t *bytes;
    size_t size;
    ck_assert_int_eq(tiles_pack(&tiles[1], &bytes, &size), CAIRN_OK);
    const uint64_t before = job()->memory.tables;
    ck_assert_int_eq(refused_tiles(1, tiles_digest(&tiles[1]), bytes, size), CAIRN_ERR_BUSY);
    ck_assert_uint_eq(job()->memory.tables, before);
    free(bytes);
}

/* A list as it stands, without being judged. */
static cairn_status refused_list(uint64_t member, struct tile_box *list, size_t count)
{
    const struct tiles wrong = { list, count };
    uint8_t *bytes;
    size_t size;
    ck_assert_int_eq(tiles_pack(&wrong, &bytes, &size), CAIRN_OK);
    const cairn_status status = refused_tiles(member, tiles_digest(&wrong), bytes, size);
    free(bytes);
    return status;
}

TEST(a_wrong_list_of_tiles_is_refused_and_changes_nothing)
{
    static struct {
        const char *what;
        uint64_t member;
        struct tile_box box;
        cairn_status status;
    } wrong[] = {
        { "beyond", 1, { T_WEIGHT, { 2, { 49, 0 }, { 2, 1000 } } }, CAIRN_ERR_INVALID },
        { "huge", 1, { T_WEIGHT, { 2, { 1, 1 }, { UINT64_MAX, UINT64_MAX } } }, CAIRN_ERR_INVALID },
        { "nowhere", 1, { TENSORS, { 1, { 0 }, { 1 } } }, CAIRN_ERR_INVALID },
        { "nobody's", 99, { T_BIAS, { 1, { 0 }, { 5 } } }, CAIRN_ERR_NOT_FOUND },
    };
    const uint64_t before = job()->memory.tables, hash = tiles_digest(&tiles[1]);
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        scene.row = wrong[i].what;
        const cairn_status status = refused_list(wrong[i].member, &wrong[i].box, 1);
        ck_assert_msg(status == wrong[i].status, "%s: %s", wrong[i].what,
                      status_code_name((int)status));
    }
    memset(payload, 0xff, 64);
    ck_assert_int_eq(refused_tiles(1, hash, payload, 64), CAIRN_ERR_MALFORMED);
    uint8_t *bytes;
    size_t size;
    ck_assert_int_eq(tiles_pack(&tiles[2], &bytes, &size), CAIRN_OK);
    ck_assert_int_eq(refused_tiles(1, hash, bytes, size), CAIRN_ERR_MALFORMED); // another's hash
    free(bytes);
    scene_tell(&scene, 9, MemberTiles, .job = SCENE_JOB, .member = 1, .tiles_bytes = UINT64_MAX);
    ck_assert_uint_eq(scene_hear(&scene, CAIRN_MSG_ERROR).request, 9);
    ck_assert_uint_eq(job()->memory.tables, before);
    push_round(5, 0);
    check_sums();
}

TEST(no_more_lists_arrive_at_a_time_than_are_allowed)
{
    for (uint32_t i = 0; i <= CAIRN_ARRIVING_MAX; i++)
        scene_tell(&scene, 100 + i, MemberTiles, .job = SCENE_JOB, .member = 1,
                   .tiles_bytes = 1000);
    ck_assert_uint_eq(scene_hear(&scene, CAIRN_MSG_ERROR).request, 100 + CAIRN_ARRIVING_MAX);
    scene_tell(&scene, 100, Page, .what = CAIRN_PAGE_TILES, .total_bytes = 999, // announced: 1000
               .bytes = { 10, payload });
    ck_assert_uint_eq(scene_hear(&scene, CAIRN_MSG_ERROR).request, 100);
}

/* ---- fetches ---- */

/* Compares DATA with what the box has of the chunk in the state. */
static void check_data(const struct chunk_header *asked, const struct cairn_box *box,
                       uint64_t chunk)
{
    const struct chunk_place place = shard_map_chunk(&scene.map, chunk);
    const struct scene_note *data = scene_note(&scene, CAIRN_CHUNK_DATA);
    const size_t count = make_piece(box, &place, scene_initial, (float *)payload);
    const size_t elem_bytes = dtype_size(data->header.dtype);
    uint8_t *expected = malloc(CHUNK_ELEMS * 4);
    backend_host()->convert(expected, (cairn_dtype)data->header.dtype, (float *)payload, CAIRN_F32,
                            count);
    ck_assert_uint_eq(data->header.request, asked->request);
    ck_assert_uint_eq(data->header.plane, asked->plane);
    ck_assert_uint_eq(data->header.payload_bytes, count * elem_bytes);
    ck_assert_uint_eq(data->header.checksum, chunk_checksum(data->payload, count * elem_bytes));
    ck_assert_mem_eq(data->payload, expected, count * elem_bytes);
    free(expected);
    scene_sent(&scene);
}

TEST(a_worker_fetches_its_own_piece_of_a_chunk)
{
    for (uint64_t c = 0; c < scene.map.chunk_count; c++)
        for (uint64_t member = 1; member <= WORKERS; member++)
            for (uint8_t plane = CAIRN_PLANE_PARAM; plane <= CAIRN_PLANE_WIRE; plane++) {
                struct chunk_header fetch = tile_header(CAIRN_CHUNK_FETCH, member, c);
                const struct chunk_place place = shard_map_chunk(&scene.map, c);
                struct cairn_box whole;
                const struct cairn_box *box = box_of(member, fetch.tensor, &whole);
                const size_t count = make_piece(box, &place, scene_initial, (float *)payload);
                fetch.plane = plane;
                fetch.generation = 1;
                if (count == 0) {
                    ck_assert_int_eq(refusal_of(&fetch, 0), CAIRN_ERR_MALFORMED);
                    continue;
                }
                scene_send(&scene, &fetch, NULL, 0);
                check_data(&fetch, box, c);
            }
}

/* A FETCH of a box of weight's first chunk. */
static struct chunk_header box_header(uint64_t member)
{
    struct chunk_header fetch = scene_fetch_header(&scene, member, chunk_of(T_WEIGHT),
                                                   CAIRN_PLANE_WIRE, 1, 0);
    fetch.tile = CAIRN_TILE_BOX;
    return fetch;
}

TEST(a_reader_fetches_any_box_of_a_chunk)
{
    static const struct cairn_box boxes[] = {
        { 2, { 0, 0 }, { 50, 1000 } },
        { 2, { 3, 999 }, { 20, 1 } },
        { 2, { 2, 500 }, { 1, 3 } },
        { 2, { 0, 400 }, { 30, 200 } },
    };
    scene_join(&scene, 9, CAIRN_ROLE_WIRE_READER);
    for (size_t i = 0; i < sizeof boxes / sizeof *boxes; i++) {
        struct chunk_header fetch = box_header(9);
        uint8_t bytes[CAIRN_BOX_BYTES_MAX];
        scene_send(&scene, &fetch, bytes, box_encode(&boxes[i], bytes));
        check_data(&fetch, &boxes[i], chunk_of(T_WEIGHT));
    }
}

TEST(a_box_that_is_not_one_of_the_chunk_is_refused)
{
    static const struct cairn_box boxes[] = {
        { 2, { 0, 0 }, { 51, 1000 } },                /* beyond the tensor */
        { 1, { 0 }, { 50 } },                         /* of another rank */
        { 2, { 49, 0 }, { 1, 1000 } },                /* of another chunk */
        { 2, { 0, 0 }, { 0, 1000 } },                 /* of nothing */
        { 2, { UINT64_MAX, 1 }, { UINT64_MAX, 999 } } /* of no tensor at all */
    };
    for (size_t i = 0; i < sizeof boxes / sizeof *boxes; i++) {
        struct chunk_header fetch = box_header(1);
        ck_assert_int_eq(refusal_of(&fetch, box_encode(&boxes[i], payload)), CAIRN_ERR_MALFORMED);
    }
    struct chunk_header fetch = box_header(1);
    memset(payload, 0xee, 36);
    ck_assert_int_eq(refusal_of(&fetch, 36), CAIRN_ERR_MALFORMED);
    fetch.checksum = 1;
    ck_assert_int_eq(refusal_of(&fetch, 36), CAIRN_ERR_CHECKSUM);
    const struct shard_member *member = member_find(job(), 1);
    ck_assert_uint_eq(member->replies, 0);
}

SUITE(60, set_up, tear_down);

/* ---- puts ---- */

static void tell_pieces(void)
{
    join_all();
    hold_pieces();
    tell_all_tiles();
}

/* As rank 0 puts them, by the worker of another rank. */
TEST(moments_before_there_is_a_state_are_whole_and_of_rank_0)
{
    const size_t bytes = scene_chunk_bytes(&scene, chunk_of(T_WEIGHT));
    const struct {
        const char *what;
        uint32_t tensor, tile;
        uint8_t dtype, plane;
        size_t bytes;
        cairn_status status;
    } puts[] = {
        { "of another rank", T_WEIGHT, CAIRN_TILE_WHOLE, CAIRN_F32, CAIRN_PLANE_EXP_AVG, bytes,
          CAIRN_ERR_REFUSED },
        { "a tile", T_WEIGHT, CAIRN_TILE_OWN, CAIRN_F32, CAIRN_PLANE_EXP_AVG, bytes,
          CAIRN_ERR_MALFORMED },
        { "in bf16", T_WEIGHT, CAIRN_TILE_WHOLE, CAIRN_BF16, CAIRN_PLANE_EXP_AVG, bytes / 2,
          CAIRN_ERR_MALFORMED },
        { "of the wire", T_WEIGHT, CAIRN_TILE_WHOLE, CAIRN_F32, CAIRN_PLANE_WIRE, bytes,
          CAIRN_ERR_MALFORMED },
        { "of a tensor that keeps none", T_FROZEN, CAIRN_TILE_WHOLE, CAIRN_F32, CAIRN_PLANE_EXP_AVG,
          SCENE_CHUNK_LEAVES * sizeof(float), CAIRN_ERR_NOT_FOUND },
    };
    for (size_t i = 0; i < sizeof puts / sizeof *puts; i++) {
        scene.row = puts[i].what;
        struct chunk_header put = tile_header(CAIRN_CHUNK_PUT, 1, chunk_of(puts[i].tensor));
        put.table_hash = 0;
        put.tile = puts[i].tile;
        put.dtype = puts[i].dtype;
        put.plane = puts[i].plane;
        const cairn_status status = refusal_of(&put, puts[i].bytes);
        ck_assert_msg(status == puts[i].status, "a put %s: %s", puts[i].what,
                      status_code_name((int)status));
    }
}

TEST(a_chunk_is_put_when_all_its_boxes_are_put)
{
    for (uint32_t t = 0; t < TENSORS; t++) put_tensor(1, t);
    put_tensor(2, T_BIAS);
    put_tensor(2, T_FROZEN);
    put_tensor(2, T_EMB);
    scene_tell(&scene, 6, JobSeal, .job = SCENE_JOB);
    scene_refused(&scene, 6, CAIRN_ERR_NOT_READY, "2 tensors: emb, weight");
    put_tensor(3, T_EMB);
    put_tensor(3, T_WEIGHT);
    scene_seal(&scene);
    const float *param = scene_plane(job(), CAIRN_PLANE_PARAM);
    for (size_t i = 0; i < scene.map.extent_count; i++) {
        const struct local_extent *extent = &scene.map.extents[i];
        for (uint64_t e = 0; e < extent->elem_count; e++)
            ck_assert_float_eq(param[extent->local_elem + e],
                               scene_initial(extent->tensor, extent->first_elem + e));
    }
}

TEST(one_worker_may_put_whole_tensors_of_a_tiled_job)
{
    scene_put_all(&scene, 1);
    scene_seal(&scene);
}

SUITE(60, tell_pieces, tear_down);
