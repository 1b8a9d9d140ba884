/* What a relay adds up and passes on: shard 0 relays its workers 1 and 2 to the owners 0 and 1, both of which
 * the test plays, as it does the workers. Member 3 is of another host. */
#include <check.h>
#include <stdlib.h>
#include <string.h>

#include "server/shard/relay.h"
#include "tests/support/shard_scene.h"
#include "tests/support/suite.h"

enum { RELAY = 900, RELAY_TOKEN = 9000, OWNERS = 2, WORKERS = 2, ROUND = 5, ELEMS_MAX = 1 << 16 };

static struct scene scene;
static struct shard_map maps[OWNERS]; /* of the owners */
static float ones[ELEMS_MAX];

static struct relay *relay(void)
{
    return job_relay(scene.shard->jobs);
}

/* ---- the coordinator ---- */

static void say_relay(void)
{
    uint64_t members[] = { 1, 2 };
    Cairn__ShardInfo infos[OWNERS], *owners[OWNERS];
    Cairn__RelaySet set = CAIRN__RELAY_SET__INIT;
    for (uint32_t o = 0; o < OWNERS; o++) {
        infos[o] = (Cairn__ShardInfo)CAIRN__SHARD_INFO__INIT;
        infos[o].index = o;
        infos[o].name = (char *)(o == 0 ? "first" : "second");
        infos[o].fabric_address.data = (uint8_t *)fabric_own_address(scene.fabric,
                                                                     &infos[o].fabric_address.len);
        owners[o] = &infos[o];
    }
    set.job = SCENE_JOB;
    set.relay = RELAY;
    set.token = RELAY_TOKEN;
    set.n_members = WORKERS;
    set.members = members;
    set.n_owners = OWNERS;
    set.owners = owners;
    scene_say(&scene, CAIRN_MSG_RELAY_SET, 9, &set.base);
    scene_hear(&scene, CAIRN_MSG_DONE);
}

/* The shard's own contributor is the one of another host. */
static void open_round(uint64_t round)
{
    uint64_t members[] = { 3 };
    Cairn__RoundOpen open = CAIRN__ROUND_OPEN__INIT;
    open.job = SCENE_JOB;
    open.epoch = scene.epoch;
    open.round = scene.round = round;
    open.generation = 1;
    open.n_members = 1;
    open.members = members;
    open.relay = RELAY;
    scene_say(&scene, CAIRN_MSG_ROUND_OPEN, 0, &open.base);
    for (int i = 0; i < OWNERS * WORKERS + 1; i++) scene_note(&scene, CAIRN_CHUNK_GRANT);
}

/* ---- the owners ---- */

static void owner_says(uint32_t owner, struct chunk_header header)
{
    header.job = SCENE_JOB;
    header.member = RELAY;
    header.token = RELAY_TOKEN;
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
    ck_assert_uint_eq(push->header.member, RELAY);
    ck_assert_uint_eq(push->header.token, RELAY_TOKEN);
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
    struct chunk_header header = scene_header(&scene, CAIRN_CHUNK_PUSH, worker);
    header.micro = micro;
    header.tensor = place.tensor;
    header.first_leaf = place.first_leaf;
    header.leaf_count = (uint32_t)place.leaf_count;
    header.table_hash = CAIRN_TABLE_HASH_WHOLE;
    header.dtype = CAIRN_F32;
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
static void open_host(uint32_t chunk_leaves)
{
    scene_open(&scene, "mem", 1, 0);
    scene.spec.chunk_leaves = chunk_leaves;
    shard_map_release(&scene.map);
    ck_assert_int_eq(shard_map_init(&scene.map, scene.layout, 0, chunk_leaves), CAIRN_OK);
    scene_serve(&scene, 3, 3);
    for (uint32_t o = 0; o < OWNERS; o++)
        ck_assert_int_eq(shard_map_init(&maps[o], scene.layout, o, chunk_leaves), CAIRN_OK);
    for (int i = 0; i < ELEMS_MAX; i++) ones[i] = 1;
    say_relay();
    for (int i = 0; i < OWNERS; i++) scene_note(&scene, CAIRN_CHUNK_HELLO);
    open_round(ROUND);
    for (uint32_t o = 0; o < OWNERS; o++) grant(o);
}

static void close_host(void)
{
    for (uint32_t o = 0; o < OWNERS; o++) shard_map_release(&maps[o]);
    scene_close(&scene);
}

/* ---- */

TEST(what_awaits_the_answer_of_one_owner_keeps_no_buffer_from_another)
{
    open_host(SCENE_CHUNK_LEAVES);
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
    close_host();
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
    open_host(SCENE_CHUNK_LEAVES);
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
    close_host();
}

/* The relay says that it cannot go on, once, and its shard goes on. */
static void hear_given_up(const char *why)
{
    const Cairn__MemberFault *fault =
        (const Cairn__MemberFault *)scene_hear(&scene, CAIRN_MSG_MEMBER_FAULT).message;
    ck_assert_uint_eq(fault->job, SCENE_JOB);
    ck_assert_uint_eq(fault->member, RELAY);
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
    open_host(1);
    struct budget *budget = &scene.shard->memory.budget;
    const uint64_t limit = budget->limit_bytes;
    relay()->sums.pool.stuck_max_ms = 60;
    push_far_ahead();
    for (int i = 0; i < 4; i++) scene_settle(&scene);
    ck_assert(!relay()->given_up); // the second worker may still send what ends a sum
    push(2, 0, 0, small[2]);
    push(2, 0, 0, small[3]);
    hear_given_up("raise memory.limit of shard s0");
    budget->limit_bytes = limit;
    close_host();
}

TEST(folds_go_on_when_the_shards_memory_has_room_again)
{
    open_host(1);
    struct budget *budget = &scene.shard->memory.budget;
    const uint64_t limit = budget->limit_bytes;
    push_far_ahead();
    budget->limit_bytes = limit;
    for (int i = 0; i < SCENE_WINDOW; i++) scene_note(&scene, CAIRN_CHUNK_ACK);
    close_host();
}

TEST(a_relay_whose_host_has_no_pages_for_sums_is_given_up)
{
    open_host(SCENE_CHUNK_LEAVES);
    relay()->sums.pool.stuck_max_ms = 60;
    void *pages = scene_lose_pages(&relay()->sums.arena);
    for (uint32_t i = 0; i < SCENE_WINDOW; i++) {
        push(1, 0, 0, i);
        push(2, 0, 0, SCENE_WINDOW + i);
    }
    hear_given_up("give its host more memory");
    scene_find_pages(&relay()->sums.arena, pages);
    close_host();
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
    open_host(1);
    struct budget *budget = &scene.shard->memory.budget;
    const uint64_t limit = budget->limit_bytes;
    relay()->sums.pool.stuck_max_ms = 60;
    budget->limit_bytes = budget->used_bytes;
    push_until_given_up();
    hear_given_up("no memory for what workers push other than through");
    budget->limit_bytes = limit;
    close_host();
}

TEST(a_relay_whose_sums_an_owner_refuses_is_given_up)
{
    open_host(SCENE_CHUNK_LEAVES);
    push_both(1, 0);
    const struct chunk_header sum = passed_on();
    answer(&sum, CAIRN_CHUNK_NAK, CAIRN_ERR_PROTOCOL);
    hear_given_up("shard second refuses what is relayed");
    close_host();
}

TEST(a_relay_that_an_owner_does_not_answer_is_given_up)
{
    open_host(SCENE_CHUNK_LEAVES);
    relay()->silent_max_ms = 200;
    scene_settle(&scene);
    for (int i = 0; i < 8; i++) scene_settle(&scene);
    ck_assert(!relay()->given_up); // it has nothing to wait for
    push_both(1, 0);
    passed_on();
    hear_given_up("shard second does not answer shard s0");
    close_host();
}

/* An owner connects to a relay by itself, and may grant before the relay's own connection is there. */
TEST(what_cannot_be_sent_for_want_of_a_connection_is_sent_on_the_next)
{
    open_host(SCENE_CHUNK_LEAVES);
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
    close_host();
}

TEST(a_relay_that_cannot_queue_what_it_has_is_given_up)
{
    static const uint32_t absent[] = { T_WEIGHT };
    open_host(SCENE_CHUNK_LEAVES);
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
    hear_given_up("data for shard second cannot be passed on");
    close_host();
}

static uint64_t random_state = 88172645463325252ull;

static uint64_t draw(void)
{
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    return random_state ^= random_state << 17;
}

/* Small, near a bound, or anything. */
static uint64_t odd_number(void)
{
    switch (draw() % 4) {
    case 0: return draw() % 4;
    case 1: return UINT32_MAX - draw() % 3;
    case 2: return UINT64_MAX - draw() % 3;
    default: return draw();
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
        .kind = kinds[draw() % sizeof kinds],
        .dtype = (uint8_t)(draw() % 2 + 1),
        .plane = (uint8_t)(draw() % 2),
        .job = SCENE_JOB,
        .epoch = draw() % 2 == 0 ? scene.epoch : odd_number(),
        .round = draw() % 2 == 0 ? scene.round : draw() % (scene.round + 1),
        .table_hash = draw() % 2 == 0 ? CAIRN_TABLE_HASH_WHOLE : draw(),
        .tile = (uint32_t)odd_number(),
        .tensor = (uint32_t)odd_number(),
        .first_leaf = draw() % 2 == 0 ? draw() % 16 : odd_number() >> 12,
        .leaf_count = (uint32_t)(draw() % 2 == 0 ? SCENE_CHUNK_LEAVES : odd_number() >> 8),
        .micro = (uint32_t)odd_number(),
        .generation = draw() % 3,
        .step = odd_number(),
        .request = odd_number(),
        .value = odd_number(),
    };
}

TEST(garbage_of_workers_and_owners_spoils_one_round_at_most)
{
    open_host(SCENE_CHUNK_LEAVES);
    for (int i = 0; i < 2000; i++) {
        const bool of_owner = draw() % 2 == 0;
        struct chunk_header header = garbage();
        header.member = of_owner ? RELAY : 1 + draw() % 3;
        header.token = of_owner ? RELAY_TOKEN : 1000 + header.member;
        if (of_owner && draw() % 2 == 0) header.tile = (uint32_t)(draw() % OWNERS);
        scene_send(&scene, &header, draw() % 2 == 0 ? ones : NULL, 0);
        if (i % 50 == 0) scene_settle(&scene);
    }
    scene_settle(&scene);
    ck_assert_int_eq(scene.shard->jobs->state, CAIRN_JOB_SERVING);
    scene_fence(&scene, 4);
    scene_hear(&scene, CAIRN_MSG_ANSWER);
    scene_resolve_none(&scene);
    scene_settle(&scene);
    for (size_t i = 0; i < scene.note_count; i++) scene.notes[i].taken = true;
    open_round(ROUND + 1);
    for (uint32_t o = 0; o < OWNERS; o++) {
        grant(o);
        push_both(o, 0);
        const struct chunk_header sum = passed_on();
        ck_assert_uint_eq(owner_of(&sum), o);
    }
    close_host();
}

SUITE(30);
