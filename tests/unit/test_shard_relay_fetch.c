/* Fetches of a host by its relay: shard 0 is the relay of members 1 to 3, and the test plays shard 1. */
#include <check.h>
#include <stdlib.h>
#include <string.h>

#include "server/shard/relay.h"
#include "tests/support/mem.h"
#include "tests/support/shard_scene.h"
#include "tests/support/suite.h"

enum { OWNER = 1, PLACE = 32768 };

static struct scene scene;
static struct shard_map owned; /* by shard 1 */
static uint16_t values[SCENE_CHUNK_LEAVES * 4096];
static uint64_t requests;

static struct relay *relay(void)
{
    return job_relay(scene.shard->jobs);
}

/* What shard 1 says to the relay. */
static struct chunk_header owner_header(uint8_t kind)
{
    return (struct chunk_header) { .kind = kind,
                                   .job = SCENE_JOB,
                                   .member = SCENE_RELAY,
                                   .token = SCENE_RELAY_TOKEN,
                                   .tile = OWNER };
}

static void owner_hello(uint32_t endpoint, uint32_t connection)
{
    struct chunk_header hello = owner_header(CAIRN_CHUNK_HELLO);
    hello.request = CAIRN_CHUNK_WAY(endpoint, connection);
    scene_send(&scene, &hello, NULL, 0);
}

/* A host of `places` chunks, in a job that is at version 1.0. */
static void open_host(uint32_t places)
{
    scene_open(&scene, "mem", 1, 0);
    scene.shard->memory.relay_cache_bytes = (uint64_t)places * PLACE;
    scene_serve(&scene, 3, 3);
    ck_assert_int_eq(shard_map_init(&owned, scene.layout, OWNER, SCENE_CHUNK_LEAVES), CAIRN_OK);
}

static void open_relay(uint32_t places)
{
    open_host(places);
    scene_relay(&scene, scene.fabric, 3, OWNER, 1);
    const struct scene_note *hello = scene_note(&scene, CAIRN_CHUNK_HELLO);
    ck_assert_uint_eq(hello->header.member, SCENE_RELAY);
    ck_assert_uint_eq(hello->header.value, 1);
    ck_assert_uint_eq(hello->header.request, 1);
    owner_hello(1, 1);
    scene_settle(&scene);
}

static void close_host(void)
{
    shard_map_release(&owned);
    scene_close(&scene);
}

/* A worker's FETCH of the owner's first chunk at a step; returns its cookie. */
static uint64_t ask(uint64_t member, uint64_t step)
{
    const struct chunk_place place = shard_map_chunk(&owned, 0);
    struct chunk_header fetch = scene_place_header(&scene, CAIRN_CHUNK_FETCH, member, &place);
    fetch.plane = CAIRN_PLANE_WIRE;
    fetch.generation = 1;
    fetch.step = step;
    fetch.value = CAIRN_CHUNK_UNSUMMED; // as the library says
    fetch.request = ++requests;
    scene_send(&scene, &fetch, NULL, 0);
    return requests;
}

static struct chunk_header asked(void)
{
    const struct scene_note *fetch = scene_note(&scene, CAIRN_CHUNK_FETCH);
    ck_assert_uint_eq(fetch->header.member, SCENE_RELAY);
    ck_assert_uint_eq(fetch->header.token, SCENE_RELAY_TOKEN);
    ck_assert_uint_ne(fetch->header.request & CAIRN_REQUEST_OF_ASKER, 0);
    return fetch->header;
}

static size_t chunk_bytes(void)
{
    return shard_map_chunk(&owned, 0).elem_count * sizeof *values;
}

static void begin_giving(const struct chunk_header *fetch, uint64_t checksum)
{
    struct chunk_header data = *fetch;
    for (size_t i = 0; i < chunk_bytes() / sizeof *values; i++)
        values[i] = (uint16_t)(i * 7 + fetch->step);
    data.kind = CAIRN_CHUNK_DATA;
    data.tile = OWNER;
    data.dtype = CAIRN_BF16;
    data.checksum = checksum;
    scene_send(&scene, &data, values, chunk_bytes());
}

static void give_with(const struct chunk_header *fetch, uint64_t checksum)
{
    begin_giving(fetch, checksum);
    scene_settle(&scene);
}

static void give(const struct chunk_header *fetch)
{
    give_with(fetch, 0);
}

static void deny(const struct chunk_header *fetch, cairn_status status)
{
    struct chunk_header nak = owner_header(CAIRN_CHUNK_NAK);
    nak.request = fetch->request;
    nak.value = (uint64_t)status;
    scene_send(&scene, &nak, NULL, 0);
}

/* The DATA that answers a worker's FETCH. */
static void hear_data(uint64_t member, uint64_t request, uint64_t step)
{
    const struct scene_note *data = NULL;
    do {
        data = scene_note(&scene, CAIRN_CHUNK_DATA);
    } while (data->header.request != request);
    ck_assert_uint_eq(data->header.member, member);
    ck_assert_uint_eq(data->header.token, 1000 + member);
    ck_assert_uint_eq(data->header.tile, OWNER);
    ck_assert_uint_eq(data->header.step, step);
    ck_assert_uint_eq(data->header.dtype, CAIRN_BF16);
    ck_assert_uint_eq(data->header.payload_bytes, chunk_bytes());
    ck_assert_uint_eq(data->header.value, 0); // it has a checksum
    ck_assert_uint_eq(data->header.checksum, chunk_checksum(data->payload, chunk_bytes()));
    for (size_t i = 0; i < chunk_bytes() / sizeof *values; i++) {
        uint16_t got;
        memcpy(&got, data->payload + i * sizeof got, sizeof got);
        ck_assert_uint_eq(got, (uint16_t)(i * 7 + step));
    }
}

static void hear_nak(uint64_t member, uint64_t request, cairn_status status)
{
    const struct scene_note *nak = scene_note(&scene, CAIRN_CHUNK_NAK);
    ck_assert_uint_eq(nak->header.member, member);
    ck_assert_uint_eq(nak->header.request, request);
    ck_assert_uint_eq(nak->header.tile, OWNER);
    ck_assert_int_eq((int)nak->header.value, status);
}

/* The owner is asked, and gives it to the member. */
static void answer(uint64_t member, uint64_t request, uint64_t step)
{
    const struct chunk_header fetch = asked();
    give(&fetch);
    hear_data(member, request, step);
}

/* One after another: what was sent together may be heard in any order. */
static void fetch_through(uint64_t member, uint64_t step)
{
    answer(member, ask(member, step), step);
}

static void open_four(void)
{
    open_relay(4);
}

/* ---- */

TEST(a_chunk_is_asked_for_once_for_all_workers_of_the_host)
{
    uint64_t request[4];
    for (uint64_t m = 1; m <= 2; m++) request[m] = ask(m, 0);
    const struct chunk_header fetch = asked();
    scene_settle(&scene);
    ck_assert_uint_eq(scene_waiting(&scene, CAIRN_CHUNK_FETCH), 0);
    give(&fetch);
    ck_assert_uint_eq(scene_waiting(&scene, CAIRN_CHUNK_DATA), 2);
    request[3] = ask(3, 0); // it is there
    scene_settle(&scene);
    for (size_t i = 0; i < scene.note_count; i++) {
        const struct chunk_header *data = &scene.notes[i].header;
        if (data->kind == CAIRN_CHUNK_DATA) ck_assert_uint_eq(data->request, request[data->member]);
    }
    ck_assert_uint_eq(scene_waiting(&scene, CAIRN_CHUNK_DATA), 3);
    ck_assert_uint_eq(scene_waiting(&scene, CAIRN_CHUNK_FETCH), 0);
    for (uint64_t m = 1; m <= 3; m++) {
        const struct shard_member *member = member_find(scene.shard->jobs, m);
        ck_assert_uint_eq(member->replies, 0);
        ck_assert_uint_eq(member->bytes.fetched_carried, chunk_bytes());
    }
}

TEST(what_the_owner_says_of_a_version_is_told_to_those_who_wait)
{
    static const struct {
        cairn_status of_owner, told;
    } words[] = { { CAIRN_ERR_VERSION_GONE, CAIRN_ERR_VERSION_GONE },
                  { CAIRN_ERR_NOT_READY, CAIRN_ERR_NOT_READY },
                  { CAIRN_ERR_MISMATCH, CAIRN_ERR_NOT_FOUND } }; // the relay's own: ask the owner
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        const uint64_t first = ask(1, 7);
        const struct chunk_header fetch = asked();
        deny(&fetch, words[i].of_owner);
        hear_nak(1, first, words[i].told);
    }
    fetch_through(2, 7); // and nothing of it is kept
}

TEST(a_busy_owner_is_asked_again)
{
    const uint64_t request = ask(1, 0);
    const struct chunk_header fetch = asked();
    deny(&fetch, CAIRN_ERR_BUSY);
    answer(1, request, 0);
}

TEST(a_damaged_answer_is_asked_for_again)
{
    const uint64_t request = ask(1, 0);
    const struct chunk_header fetch = asked();
    give_with(&fetch, 12345);
    ck_assert_uint_eq(scene_waiting(&scene, CAIRN_CHUNK_DATA), 0);
    answer(1, request, 0);
}

TEST(an_owner_that_heard_it_damaged_is_asked_again)
{
    const uint64_t request = ask(1, 0);
    const struct chunk_header fetch = asked();
    deny(&fetch, CAIRN_ERR_CHECKSUM);
    answer(1, request, 0);
}

TEST(an_answer_that_never_arrives_whole_sends_the_worker_to_the_owner)
{
    const uint64_t request = ask(1, 0);
    for (int i = 0; i < 16; i++) {
        const struct chunk_header fetch = asked();
        give_with(&fetch, 12345);
    }
    hear_nak(1, request, CAIRN_ERR_NOT_FOUND);
}

TEST(what_is_unanswered_on_a_lost_connection_is_asked_on_the_next)
{
    const uint64_t request = ask(1, 0);
    const struct chunk_header lost = asked();
    cairn_fabric_mem_cut_one(relay()->owners[0].neighbour.link.peer);
    const struct scene_note *hello = scene_note(&scene, CAIRN_CHUNK_HELLO);
    ck_assert_uint_eq(hello->header.request, 2);
    owner_hello(1, 2);
    answer(1, request, 0);
    give(&lost); // of the connection before, and answered: it changes nothing
    ck_assert_uint_eq(scene_waiting(&scene, CAIRN_CHUNK_DATA), 0);
}

TEST(what_was_being_received_when_the_connection_was_lost_is_asked_again_and_not_called_damaged)
{
    const uint64_t request = ask(1, 0);
    for (uint32_t connection = 2; connection < 20; connection++) {
        const struct chunk_header lost = asked();
        begin_giving(&lost, 12345);
        while (relay()->owners[0].neighbour.link.on_loan == 0)
            ck_assert_uint_eq(cairn_fabric_mem_hub_step(scene.hub), 1);
        cairn_fabric_mem_cut_one(relay()->owners[0].neighbour.link.peer);
        scene_settle(&scene);
        ck_assert_uint_eq(scene_note(&scene, CAIRN_CHUNK_HELLO)->header.request, connection);
        owner_hello(1, connection);
    }
    answer(1, request, 0);
}

TEST(an_owner_that_lost_its_endpoint_is_asked_again)
{
    const uint64_t request = ask(1, 0);
    asked();
    owner_hello(2, 1);
    answer(1, request, 0);
}

TEST(who_left_is_waited_for_by_nobody)
{
    ask(1, 0);
    const struct chunk_header fetch = asked();
    const uint64_t request = ask(2, 0);
    scene_settle(&scene);
    scene_leave(&scene, 1);
    give(&fetch);
    hear_data(2, request, 0);
    ck_assert_uint_eq(scene_waiting(&scene, CAIRN_CHUNK_DATA), 0);
}

TEST(a_relay_that_ends_sends_those_who_wait_to_the_owner)
{
    const uint64_t used = scene.shard->memory.budget.used_bytes;
    const uint64_t request = ask(1, 0);
    asked();
    scene_relay(&scene, scene.fabric, 0, OWNER, 1);
    hear_nak(1, request, CAIRN_ERR_NOT_FOUND);
    ck_assert_ptr_null(relay());
    ck_assert_uint_lt(scene.shard->memory.budget.used_bytes, used);
    const uint64_t late = ask(1, 0);
    hear_nak(1, late, CAIRN_ERR_NOT_FOUND);
}

TEST(when_the_shards_memory_is_used_up_the_owner_is_to_be_asked)
{
    struct budget *budget = &scene.shard->memory.budget;
    const uint64_t limit = budget->limit_bytes;
    budget->limit_bytes = budget->used_bytes;
    const uint64_t request = ask(1, 0);
    hear_nak(1, request, CAIRN_ERR_NOT_FOUND);
    budget->limit_bytes = limit;
    fetch_through(1, 0);
}

SUITE(30, open_four, close_host);

/* ---- as many places as the test has room for, and which one is given away ---- */

TEST(without_room_for_a_chunk_the_owner_is_to_be_asked)
{
    open_relay(0);
    const uint64_t request = ask(1, 0);
    hear_nak(1, request, CAIRN_ERR_NOT_FOUND);
    close_host();
}

TEST(a_place_is_given_away_when_nothing_of_it_is_being_sent)
{
    open_relay(1);
    fetch_through(1, 0);
    fetch_through(1, 1); // it takes the only place
    const uint64_t before = ask(2, 0);
    struct chunk_header fetch = asked();
    scene.deaf = true; // member 2 takes nothing, and pins it
    give(&fetch);
    scene.deaf = false;
    ck_assert_uint_eq(scene_waiting(&scene, CAIRN_CHUNK_DATA), 1);
    const uint64_t after = ask(1, 1);
    scene_settle(&scene);
    ck_assert_uint_eq(scene_waiting(&scene, CAIRN_CHUNK_FETCH), 0);
    cairn_fabric_mem_cut_one(member_find(scene.shard->jobs, 2)->peer);
    fetch = asked();
    ck_assert_uint_eq(fetch.step, 1);
    give(&fetch);
    hear_data(1, after, 1);
    ck_assert_uint_ne(before, after);
    close_host();
}

static struct relay_cache cache;
static struct relay_owner many; /* chunks: those of shard 0, as if they were another's */

static struct relay_entry *arrive(uint64_t chunk, uint64_t step)
{
    struct relay_entry *entry = relay_cache_take(&cache, &many, chunk,
                                                 (struct cairn_version) { 1, step });
    ck_assert_ptr_nonnull(entry);
    relay_cache_arrived(&cache, entry);
    return entry;
}

static void have(struct relay_entry *entry, uint32_t member)
{
    relay_cache_lend(&cache, entry);
    relay_cache_return(&cache, entry, member, 2);
}

static bool is_kept(uint64_t chunk, uint64_t step)
{
    return relay_cache_find(&cache, &many, chunk, (struct cairn_version) { 1, step }) != NULL;
}

TEST(first_goes_what_all_had_then_an_older_version_then_what_was_used_longest_ago)
{
    open_host(3);
    struct relay host = {
        .job = scene.shard->jobs, .member_count = 2, .owners = &many, .owner_count = 1
    };
    struct sentence why;
    const uint64_t used = scene.shard->memory.budget.used_bytes;
    many = (struct relay_owner) { .relay = &host,
                                  .neighbour = { .index = OWNER },
                                  .table = { .map = scene.map } };
    scene.shard->memory.relay_cache_bytes = 1 << 20;
    ck_assert_int_eq(relay_cache_open(&host, &cache, &why), CAIRN_OK);
    scene.shard->memory.relay_cache_bytes = 3 * cache.place_bytes;
    relay_cache_release(&cache);
    ck_assert_int_eq(relay_cache_open(&host, &cache, &why), CAIRN_OK);
    ck_assert_uint_eq(cache.entry_max, 3);
    void *pages = scene_lose_pages(&cache.memory);
    ck_assert_ptr_null(relay_cache_take(&cache, &many, 0, (struct cairn_version) { 1, 5 }));
    scene_find_pages(&cache.memory, pages);
    ck_assert_uint_eq(cache.entry_count, 0);
    arrive(0, 5);
    struct relay_entry *new = arrive(1, 6), *had = arrive(2, 6);
    have(had, 0);
    have(had, 1);
    arrive(3, 6);
    ck_assert(!is_kept(2, 6) && is_kept(0, 5) && is_kept(1, 6));
    have(relay_cache_find(&cache, &many, 0, (struct cairn_version) { 1, 5 }), 0);
    have(new, 0); // the use of an older version did not make it younger
    arrive(4, 6);
    ck_assert(!is_kept(0, 5) && is_kept(1, 6) && is_kept(3, 6));
    arrive(5, 6);
    ck_assert(!is_kept(3, 6) && is_kept(1, 6) && is_kept(4, 6));
    relay_cache_lend(&cache, new);
    arrive(6, 6);
    ck_assert(is_kept(1, 6) && !is_kept(4, 6));
    relay_cache_return(&cache, new, UINT32_MAX, 2);
    relay_cache_release(&cache);
    ck_assert_uint_eq(scene.shard->memory.budget.used_bytes, used);
    close_host();
}

SUITE(30);
