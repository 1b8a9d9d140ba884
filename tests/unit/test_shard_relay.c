/* What a relay adds up and passes on: shard 0 relays its workers 1 and 2 to the owners 0 and 1, both of which
 * the test plays, as it does the workers. Member 3 is of another host. */
#include <check.h>
#include <stdlib.h>
#include <string.h>

#include "server/shard/relay.h"
#include "tests/support/random.h"
#include "tests/support/shard_scene.h"
#include "tests/support/suite.h"

enum { OWNERS = 2, WORKERS = 2, ROUND = 5, ELEMS_MAX = 1 << 16 };

static struct scene scene;
static struct shard_map maps[OWNERS]; /* of the owners */
static float ones[ELEMS_MAX];
static uint64_t limit_bytes; /* of memory, as the shard has it at first */

static struct relay *relay(void)
{
    return job_relay(scene.shard->jobs);
}

/* ---- the coordinator ---- */

/* The shard's own contributor is the one of another host. */
static void open_round(uint64_t round)
{
    scene.round = round;
    scene_tell(&scene, 0, RoundOpen, .job = SCENE_JOB, .epoch = scene.epoch, .round = round,
               .generation = 1, .n_members = 1, .members = (uint64_t[]) { 3 },
               .relay = SCENE_RELAY);
    for (int i = 0; i < OWNERS * WORKERS + 1; i++) scene_note(&scene, CAIRN_CHUNK_GRANT);
}

/* ---- the owners ---- */

static void owner_says(uint32_t owner, struct chunk_header header)
{
    header.job = SCENE_JOB;
    header.member = SCENE_RELAY;
    header.token = SCENE_RELAY_TOKEN;
    header.tile = owner;
    scene_send(&scene, &header, NULL, 0);
}

static void grant(uint32_t owner)
{
    owner_says(owner, (struct chunk_header) { .kind = CAIRN_CHUNK_GRANT,
                                              .epoch = scene.epoch,
                                              .round = scene.round,
                                              .value = 8,
                                              .request = CAIRN_CHUNK_WAY(1, 1) });
}

/* The next sum that is passed on; whose it is, its chunk says. */
static struct chunk_header passed_on(void)
{
    const struct scene_note *push = scene_note(&scene, CAIRN_CHUNK_PUSH);
    ck_assert_uint_eq(push->header.member, SCENE_RELAY);
    ck_assert_uint_eq(push->header.token, SCENE_RELAY_TOKEN);
    return push->header;
}

static uint32_t owner_of(const struct chunk_header *h)
{
    return shard_map_find(&maps[1], h->tensor, h->first_leaf) != NULL;
}

static void answer(const struct chunk_header *push, uint8_t kind, uint64_t value)
{
    struct chunk_header header = *push;
    header.kind = kind;
    header.value = value;
    header.checksum = 0;
    owner_says(owner_of(push), header);
}

/* ---- the workers ---- */

/* The owner's chunk of a trained tensor, as its core counts them. */
static struct chunk_place place_of(uint32_t owner, uint32_t number)
{
    const struct relay_owner *o = relay_owner_find(relay(), owner);
    ck_assert_uint_lt(number, o->table.trained_count);
    return shard_map_chunk(&maps[owner], o->table.trained[number]);
}

static void push(uint64_t worker, uint32_t micro, uint32_t owner, uint32_t number)
{
    const struct chunk_place place = place_of(owner, number);
    struct chunk_header header = scene_place_header(&scene, CAIRN_CHUNK_PUSH, worker, &place);
    header.micro = micro;
    header.request = 1000 * owner + number + 1;
    ck_assert_uint_le(place.elem_count, ELEMS_MAX);
    scene_send(&scene, &header, ones, place.elem_count * sizeof *ones);
}

static void push_both(uint32_t owner, uint32_t number)
{
    for (uint64_t w = 1; w <= WORKERS; w++) push(w, 0, owner, number);
}

/* ---- the scene ---- */

/* `chunk_leaves` of the job: the smaller, the more chunks. */
static void open_chunks(uint32_t chunk_leaves)
{
    scene_open(&scene, "mem", 1, 0);
    scene.spec.chunk_leaves = chunk_leaves;
    shard_map_release(&scene.map);
    ck_assert_int_eq(shard_map_init(&scene.map, scene.layout, 0, chunk_leaves), CAIRN_OK);
    scene_serve(&scene, 3, 3);
    for (uint32_t o = 0; o < OWNERS; o++)
        ck_assert_int_eq(shard_map_init(&maps[o], scene.layout, o, chunk_leaves), CAIRN_OK);
    for (int i = 0; i < ELEMS_MAX; i++) ones[i] = 1;
    scene_relay(&scene, scene.fabric, WORKERS, 0, OWNERS);
    for (int i = 0; i < OWNERS; i++) scene_note(&scene, CAIRN_CHUNK_HELLO);
    open_round(ROUND);
    for (uint32_t o = 0; o < OWNERS; o++) grant(o);
    limit_bytes = scene.shard->memory.budget.limit_bytes;
}

static void open_host(void)
{
    open_chunks(SCENE_CHUNK_LEAVES);
}

static void open_small_chunks(void)
{
    open_chunks(1);
}

static void close_host(void)
{
    scene.shard->memory.budget.limit_bytes = limit_bytes;
    for (uint32_t o = 0; o < OWNERS; o++) shard_map_release(&maps[o]);
    scene_close(&scene);
}

/* ---- */

TEST(what_awaits_the_answer_of_one_owner_keeps_no_buffer_from_another)
{
    relay()->sums.pool.wanted = 1;
    push_both(1, 0);
    const struct chunk_header second = passed_on();
    ck_assert_uint_eq(owner_of(&second), 1); // it is not answered: there another host is awaited,
    push_both(0, 0);                         // and that one awaits this, at the other owner
    const struct chunk_header first = passed_on();
    ck_assert_uint_eq(owner_of(&first), 0);
    answer(&first, CAIRN_CHUNK_ACK, 0);
    answer(&second, CAIRN_CHUNK_ACK, 0);
    scene_settle(&scene);
    for (uint32_t i = 0; i < relay()->sums.pool.touched; i++)
        ck_assert_int_eq(relay()->sums.pool.buffers[i].state, CAIRN_BUFFER_FREE);
}

/* An end of the first micro-batch, of a worker that has nothing of the tensors listed. */
static void end_micro(uint64_t worker, uint32_t owner, const uint32_t *absent, size_t bytes)
{
    struct chunk_header end = scene_header(&scene, CAIRN_CHUNK_MICRO_END, worker);
    end.tensor = 1 + owner;
    scene_send(&scene, &end, absent, bytes);
}

TEST(an_end_that_is_refused_for_now_is_so_in_the_name_of_its_owner)
{
    static const uint32_t absent[] = { T_WEIGHT };
    const size_t end_count = 4 * CAIRN_SHARD_NOTES_MAX;
    for (size_t i = 0; i < end_count; i++) end_micro(1, 1, absent, sizeof absent);
    scene_settle(&scene);
    ck_assert_uint_gt(scene_waiting(&scene, CAIRN_CHUNK_NAK), 0);
    while (scene_waiting(&scene, CAIRN_CHUNK_NAK) > 0) {
        const struct scene_note *nak = scene_note(&scene, CAIRN_CHUNK_NAK);
        ck_assert_uint_eq(nak->header.value, CAIRN_ERR_BUSY);
        ck_assert_uint_eq(nak->header.request, 0);
        ck_assert_uint_eq(nak->header.tile, 1);
    }
}

/* The relay says that it cannot go on, once, and its shard goes on. */
static void hear_given_up(const char *why)
{
    const Cairn__MemberFault *fault = scene_heard(&scene, MemberFault);
    ck_assert_uint_eq(fault->job, SCENE_JOB);
    ck_assert_uint_eq(fault->member, SCENE_RELAY);
    ck_assert_msg(strstr(fault->text, why) != NULL, "%s", fault->text);
    ck_assert_int_eq(scene.shard->jobs->state, CAIRN_JOB_SERVING);
    scene_fence(&scene, 4);
    scene_hear(&scene, CAIRN_MSG_ANSWER);
    scene_settle(&scene);
    for (uint32_t i = 0; i < relay()->sums.pool.touched; i++)
        ck_assert_int_ne(relay()->sums.pool.buffers[i].state, CAIRN_BUFFER_SUMMING);
    for (size_t i = 0; i < scene.frame_count; i++)
        ck_assert(scene.frames[i].taken || scene.frames[i].type != CAIRN_MSG_MEMBER_FAULT);
}

TEST(a_relay_whose_host_has_no_pages_for_sums_is_given_up)
{
    relay()->sums.pool.stuck_max_ms = 60;
    void *pages = scene_lose_pages(&relay()->sums.arena);
    for (uint32_t i = 0; i < SCENE_WINDOW; i++) {
        push(1, 0, 0, i);
        push(2, 0, 0, SCENE_WINDOW + i);
    }
    hear_given_up("give its host more memory");
    scene_find_pages(&relay()->sums.arena, pages);
}

TEST(a_relay_whose_sums_an_owner_refuses_is_given_up)
{
    push_both(1, 0);
    const struct chunk_header sum = passed_on();
    answer(&sum, CAIRN_CHUNK_NAK, CAIRN_ERR_PROTOCOL);
    hear_given_up("shard s1 refuses what is relayed");
}

TEST(a_relay_that_an_owner_does_not_answer_is_given_up)
{
    relay()->silent_max_ms = 200;
    scene_settle(&scene);
    for (int i = 0; i < 8; i++) scene_settle(&scene);
    ck_assert(!relay()->given_up); // it has nothing to wait for
    push_both(1, 0);
    passed_on();
    hear_given_up("shard s1 does not answer shard s0");
}

/* An owner connects to a relay by itself, and may grant before the relay's own connection is there. */
TEST(what_cannot_be_sent_for_want_of_a_connection_is_sent_on_the_next)
{
    struct chunk_link *link = &relay()->owners[1].neighbour.link;
    struct fabric_peer *peer = link->peer;
    link->peer = NULL; // as before it was made
    link->retry_at_ms = uv_now(scene.shard->loop) + 50;
    push_both(1, 0);
    scene_note(&scene, CAIRN_CHUNK_HELLO);
    grant(1);
    const struct chunk_header sum = passed_on();
    ck_assert_uint_eq(owner_of(&sum), 1);
    fabric_peer_close(peer);
}

TEST(a_relay_that_cannot_queue_what_it_has_is_given_up)
{
    static const uint32_t absent[] = { T_WEIGHT };
    struct relay_owner *second = relay_owner_find(relay(), 1);
    cairn_status status = CAIRN_OK;
    for (uint32_t micro = 0; status == CAIRN_OK; micro++) { // as many ends as there is room for
        status = push_micro_end(second->forward.pusher.push, micro,
                                &second->forward.pusher.actions);
        second->forward.pusher.actions.count = 0;
    }
    ck_assert_int_eq(status, CAIRN_ERR_BUSY);
    for (uint64_t w = 1; w <= WORKERS; w++)
        end_micro(w, second->neighbour.index, absent, sizeof absent);
    hear_given_up("data for shard s1 cannot be passed on");
}

/* Small, near a bound, or anything. */
static uint64_t odd_number(void)
{
    switch (random_next() % 4) {
    case 0: return random_next() % 4;
    case 1: return UINT32_MAX - random_next() % 3;
    case 2: return UINT64_MAX - random_next() % 3;
    default: return random_next();
    }
}

static struct chunk_header garbage(void)
{
    static const uint8_t kinds[] = { CAIRN_CHUNK_GRANT,     CAIRN_CHUNK_PUSH,
                                     CAIRN_CHUNK_ACK,       CAIRN_CHUNK_NAK,
                                     CAIRN_CHUNK_DATA,      CAIRN_CHUNK_MICRO_END,
                                     CAIRN_CHUNK_MICRO_ACK, CAIRN_CHUNK_FETCH,
                                     CAIRN_CHUNK_COMMIT };
    return (struct chunk_header) {
        .kind = kinds[random_next() % sizeof kinds],
        .dtype = (uint8_t)(random_next() % 2 + 1),
        .plane = (uint8_t)(random_next() % 2),
        .job = SCENE_JOB,
        .epoch = random_next() % 2 == 0 ? scene.epoch : odd_number(),
        .round = random_next() % 2 == 0 ? scene.round : random_next() % (scene.round + 1),
        .table_hash = random_next() % 2 == 0 ? CAIRN_TABLE_HASH_WHOLE : random_next(),
        .tile = (uint32_t)odd_number(),
        .tensor = (uint32_t)odd_number(),
        .first_leaf = random_next() % 2 == 0 ? random_next() % 16 : odd_number() >> 12,
        .leaf_count = (uint32_t)(random_next() % 2 == 0 ? SCENE_CHUNK_LEAVES : odd_number() >> 8),
        .micro = (uint32_t)odd_number(),
        .generation = random_next() % 3,
        .step = odd_number(),
        .request = odd_number(),
        .value = odd_number(),
    };
}

TEST(garbage_of_workers_and_owners_spoils_one_round_at_most)
{
    for (int i = 0; i < 2000; i++) {
        const bool of_owner = random_next() % 2 == 0;
        struct chunk_header header = garbage();
        header.member = of_owner ? SCENE_RELAY : 1 + random_next() % 3;
        header.token = of_owner ? SCENE_RELAY_TOKEN : 1000 + header.member;
        if (of_owner && random_next() % 2 == 0) header.tile = (uint32_t)(random_next() % OWNERS);
        scene_send(&scene, &header, random_next() % 2 == 0 ? ones : NULL, 0);
        if (i % 50 == 0) scene_settle(&scene);
    }
    scene_settle(&scene);
    ck_assert_int_eq(scene.shard->jobs->state, CAIRN_JOB_SERVING);
    scene_begin_epoch(&scene, 4);
    scene_settle(&scene);
    scene_forget_notes(&scene);
    open_round(ROUND + 1);
    for (uint32_t o = 0; o < OWNERS; o++) {
        grant(o);
        push_both(o, 0);
        const struct chunk_header sum = passed_on();
        ck_assert_uint_eq(owner_of(&sum), o);
    }
}

SUITE(30, open_host, close_host);

/* ---- without room ---- */

/* Chunks of few elements: their payloads have room where a sum has none. */
static const uint32_t small[] = { 9, 11, 13, 15 };

static bool is_small(uint32_t chunk)
{
    for (size_t i = 0; i < sizeof small / sizeof *small; i++)
        if (small[i] == chunk) return true;
    return false;
}

/* The first worker is before the second by as many sums as have room, and its window is full of others. */
static void push_far_ahead(void)
{
    struct budget *budget = &scene.shard->memory.budget;
    for (uint32_t c = 0; relay()->sums.pool.touched < relay()->sums.reserved; c++) {
        if (is_small(c)) continue;
        push(1, 0, 0, c);
        scene_note(&scene, CAIRN_CHUNK_ACK);
    }
    budget->limit_bytes = budget->used_bytes + relay()->sums.buffer_bytes - 1;
    push(1, 0, 0, small[0]);
    push(1, 0, 0, small[1]);
    scene_settle(&scene);
    ck_assert_uint_eq(scene_waiting(&scene, CAIRN_CHUNK_NAK), 0);
}

TEST(a_relay_that_waits_for_room_that_nothing_will_give_is_given_up)
{
    relay()->sums.pool.stuck_max_ms = 60;
    push_far_ahead();
    for (int i = 0; i < 4; i++) scene_settle(&scene);
    ck_assert(!relay()->given_up); // the second worker may still send what ends a sum
    push(2, 0, 0, small[2]);
    push(2, 0, 0, small[3]);
    hear_given_up("raise memory.limit of shard s0");
}

TEST(folds_go_on_when_the_shards_memory_has_room_again)
{
    struct budget *budget = &scene.shard->memory.budget;
    push_far_ahead();
    budget->limit_bytes = limit_bytes;
    for (int i = 0; i < SCENE_WINDOW; i++) scene_note(&scene, CAIRN_CHUNK_ACK);
}

/* As a worker does that is refused for now. */
static void push_until_given_up(void)
{
    while (!relay()->given_up) {
        push(1, 0, 0, 0);
        const struct scene_note *nak = scene_note(&scene, CAIRN_CHUNK_NAK);
        ck_assert_uint_eq(nak->header.value, CAIRN_ERR_BUSY);
        scene_settle(&scene);
    }
}

TEST(a_relay_without_room_for_what_is_pushed_to_it_is_given_up)
{
    struct budget *budget = &scene.shard->memory.budget;
    relay()->sums.pool.stuck_max_ms = 60;
    budget->limit_bytes = budget->used_bytes;
    push_until_given_up();
    hear_given_up("no memory for what workers push other than through");
}

SUITE(30, open_small_chunks, close_host);
