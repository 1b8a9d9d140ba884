/* The client where a shard speaks for others: a coordinator that is real, shards whose data is this test's
 * own script, and a worker on a thread of its own. */
#include <cairn.h>
#include <check.h>
#include <stdlib.h>
#include <string.h>

#include "client/job.h"
#include "server/coordinator/job.h"
#include "tests/support/client_script.h"
#include "tests/support/suite.h"

enum { SHARDS = SCRIPT_NODES, ELEMS = SCRIPT_ELEMS, WAIT_MS = SCRIPT_WAIT_MS };
enum { CHUNKS = 5, NOTES = 4096 };

/* What a shard got, in order. */
struct note {
    uint32_t node, owner; /* who got it, and whose chunk it is, or whose end by its mark */
    bool in_place;        /* its payload could be read where it lay */
    struct chunk_header header;
};

static struct note notes[NOTES];
static uint32_t note_count;
static uint32_t granted_by[SHARDS]; /* the script: who grants for it, */
static bool marked[SHARDS];         /* as a relay */
static bool holds_acks, holds_fetches, declines;
static cairn_status refuses; /* pushes */
static uint32_t committed;   /* owners, by bit */

static float got[ELEMS];

/* ---- a shard's side ---- */

static uint32_t owner_of(uint32_t tensor, uint64_t first_leaf)
{
    struct shard_map map;
    uint32_t owner = SHARDS;
    for (uint32_t i = 0; i < SHARDS; i++) {
        ck_assert_int_eq(shard_map_init(&map, script_fake.shards[0].layout, i, 1), CAIRN_OK);
        if (shard_map_find(&map, tensor, first_leaf) != NULL) owner = i;
        shard_map_release(&map);
    }
    ck_assert_uint_lt(owner, SHARDS);
    return owner;
}

static void take_commit(const struct note *note)
{
    committed |= 1u << note->owner;
    if (committed != (1u << SHARDS) - 1) return;
    committed = 0;
    for (uint32_t i = 0; i < SHARDS; i++) fake_shard_report_reduced(&script_fake.shards[i]);
}

static void answer(const struct note *note, unsigned kind, uint64_t value)
{
    script_answer(&script_nodes[note->node], note->owner, &note->header, kind, value);
}

static void serve(const struct note *note)
{
    switch (note->header.kind) {
    case CAIRN_CHUNK_PUSH:
        if (refuses != CAIRN_OK)
            answer(note, CAIRN_CHUNK_NAK, (uint64_t)refuses);
        else if (!holds_acks)
            answer(note, CAIRN_CHUNK_ACK, 0);
        refuses = CAIRN_OK; // one of them
        break;
    case CAIRN_CHUNK_FETCH:
        if (declines && note->owner != note->node)
            answer(note, CAIRN_CHUNK_NAK, CAIRN_ERR_NOT_FOUND);
        else if (!holds_fetches)
            script_answer_fetch(&script_nodes[note->node], note->owner, &note->header);
        break;
    case CAIRN_CHUNK_MICRO_END: answer(note, CAIRN_CHUNK_MICRO_ACK, 0); break;
    case CAIRN_CHUNK_COMMIT: take_commit(note); break;
    default: break;
    }
}

static void hear(struct script_node *node, const struct chunk_header *h, bool in_place)
{
    struct note *note = &notes[note_count];
    ck_assert_uint_lt(note_count, NOTES);
    *note = (struct note) { node->index, node->index, in_place, *h };
    if (h->kind == CAIRN_CHUNK_PUSH || h->kind == CAIRN_CHUNK_FETCH)
        note->owner = owner_of(h->tensor, h->first_leaf);
    else if (h->tensor != 0)
        note->owner = h->tensor - 1;
    note_count++;
    serve(note);
}

static void grant(struct script_node *node)
{
    for (uint32_t o = 0; o < SHARDS; o++)
        if (granted_by[o] == node->index)
            script_say_grant(node, o, marked[o] ? node->index + 1 : 0);
}

/* ---- driving ---- */

static uint32_t count(uint32_t node, unsigned kind, uint32_t owner)
{
    uint32_t found = 0;
    for (uint32_t i = 0; i < note_count; i++)
        found += notes[i].node == node && notes[i].header.kind == kind && notes[i].owner == owner;
    return found;
}

/* ---- a worker's side ---- */

/* The tensor of shard 1. */
static int tensor_of_second(void)
{
    int tensor = 0;
    while (owner_of((uint32_t)tensor, 0) != 1) tensor++;
    return tensor;
}

static void check_got(uint32_t tensor)
{
    for (uint64_t i = 0; i < ELEMS; i++)
        if (got[i] != script_value(tensor, i, script_result.version.step))
            ck_abort_msg("tensor %u, element %u", tensor, (unsigned)i);
}

static void fetch(void)
{
    cairn_op *op = NULL;
    const int tensor = tensor_of_second();
    memset(got, 0xff, sizeof got);
    const struct cairn_mem mem = { .struct_size = sizeof mem, .ptr = got, .dtype = CAIRN_F32 };
    good(cairn_fetch(script_job, script_result.version, script_names[tensor], NULL, NULL, &mem,
                     &op));
    good(cairn_wait(op, WAIT_MS));
    check_got((uint32_t)tensor);
}

/* ---- the scene ---- */

static void relay_for(uint32_t owner, uint32_t carrier)
{
    granted_by[owner] = carrier;
    marked[owner] = true;
}

static void grant_directly(void)
{
    for (uint32_t i = 0; i < SHARDS; i++) {
        granted_by[i] = i;
        marked[i] = false;
    }
}

/* Shard 0 relays for itself and for shard 1. */
static void open_scene(const char *const kinds[SHARDS])
{
    note_count = committed = 0;
    holds_acks = holds_fetches = declines = false;
    refuses = CAIRN_OK;
    script = (struct script) { .job = "relayed",
                               .fabric = "auto",
                               .shards = SHARDS,
                               .chunk_leaves = 1,
                               .reduce_groups = CAIRN_GROUPS_HOST,
                               .hear = hear,
                               .grant = grant };
    setenv("CAIRN_HOST", SCRIPT_HOST, 1); // with a name auto has ucx, too
    script_open();
    for (uint32_t i = 0; i < SHARDS; i++) script_node_open(i, kinds[i]);
    fake_shards_up(&script_fake, SHARDS);
    grant_directly();
    relay_for(0, 0);
    relay_for(1, 0);
    script_call(script_attach);
    script_until(script_nodes[0].peer != NULL && script_nodes[1].peer != NULL &&
                 script_nodes[2].peer != NULL);
}

static void open_mem(void)
{
    static const char *const kinds[SHARDS] = { "mem", "mem", "mem" };
    const struct cairn_fabric_mem_options options = { .seed = 3, .delay_max_ticks = 3 };
    ck_assert_int_eq(cairn_fabric_mem_hub_open(&options, &script_hub), CAIRN_OK);
    open_scene(kinds);
}

/* Shard 1 is not of this host. */
static void open_host(void)
{
    static const char *const kinds[SHARDS] = { "auto", "ucx", "auto" };
    script_hub = NULL;
    open_scene(kinds);
}

static void close_scene(void)
{
    script_call(script_detach);
    script_close();
}

/* ---- pushes ---- */

TEST(what_is_for_an_owner_goes_to_its_carrier_and_is_marked)
{
    open_mem();
    script_call(script_step);
    for (uint32_t o = 0; o < SHARDS; o++) {
        const uint32_t carrier = o == 1 ? 0 : o;
        ck_assert_uint_eq(count(carrier, CAIRN_CHUNK_PUSH, o), CHUNKS);
        ck_assert_uint_eq(count(carrier, CAIRN_CHUNK_MICRO_END, o), 1);
        ck_assert_uint_eq(count(carrier, CAIRN_CHUNK_COMMIT, o), 1);
    }
    for (uint32_t i = 0; i < note_count; i++) {
        const struct chunk_header *h = &notes[i].header;
        ck_assert_uint_ne(notes[i].node, 1);
        if (h->kind != CAIRN_CHUNK_MICRO_END && h->kind != CAIRN_CHUNK_COMMIT) continue;
        ck_assert_uint_eq(h->tensor, notes[i].node == 0 ? notes[i].owner + 1 : 0);
        ck_assert_uint_eq(h->value, h->kind == CAIRN_CHUNK_COMMIT ? 1 : CHUNKS);
    }
}

TEST(the_loss_of_the_carrier_sends_again_what_all_its_owners_owe)
{
    open_mem();
    holds_acks = true;
    script_call(script_push);
    script_until(count(0, CAIRN_CHUNK_PUSH, 0) == CHUNKS &&
                 count(0, CAIRN_CHUNK_PUSH, 1) == CHUNKS &&
                 count(2, CAIRN_CHUNK_PUSH, 2) == CHUNKS);
    note_count = 0;
    cairn_fabric_mem_cut_to(script_nodes[0].fabric);
    script_until(count(0, CAIRN_CHUNK_PUSH, 0) == CHUNKS &&
                 count(0, CAIRN_CHUNK_PUSH, 1) == CHUNKS);
    ck_assert_uint_eq(count(2, CAIRN_CHUNK_PUSH, 2), 0); // nothing of its own was lost
    note_count = 0;
    holds_acks = false;
    cairn_fabric_mem_cut_to(script_nodes[0].fabric);
    cairn_fabric_mem_cut_to(script_nodes[2].fabric);
    script_call(script_commit);
    ck_assert_int_eq(script_status, CAIRN_OK);
    ck_assert_uint_eq(count(0, CAIRN_CHUNK_PUSH, 1), CHUNKS);
    ck_assert_uint_eq(count(2, CAIRN_CHUNK_PUSH, 2), CHUNKS);
}

TEST(the_loss_of_the_owner_is_nothing_to_what_its_carrier_has)
{
    open_mem();
    holds_acks = true;
    script_call(script_push);
    script_until(count(0, CAIRN_CHUNK_PUSH, 1) == CHUNKS &&
                 count(2, CAIRN_CHUNK_PUSH, 2) == CHUNKS &&
                 count(0, CAIRN_CHUNK_PUSH, 0) == CHUNKS);
    const uint32_t connection = script_nodes[1].connection;
    cairn_fabric_mem_cut_to(script_nodes[1].fabric);
    script_until(script_nodes[1].connection > connection); // it is connected again
    ck_assert_uint_eq(note_count, SHARDS * CHUNKS);
    for (uint32_t i = 0; i < SHARDS * CHUNKS; i++) answer(&notes[i], CAIRN_CHUNK_ACK, 0);
    script_call(script_commit);
    ck_assert_int_eq(script_status, CAIRN_OK);
    ck_assert_uint_eq(count(0, CAIRN_CHUNK_PUSH, 1), CHUNKS);
}

TEST(a_new_endpoint_of_the_carrier_is_told_to_all_its_owners_in_a_void_round_too)
{
    open_mem();
    holds_acks = true;
    script_call(script_push);
    script_until(count(0, CAIRN_CHUNK_PUSH, 0) == CHUNKS &&
                 count(0, CAIRN_CHUNK_PUSH, 1) == CHUNKS &&
                 count(2, CAIRN_CHUNK_PUSH, 2) == CHUNKS);
    note_count = 0;
    script_nodes[0].endpoint++;
    script_say_hello(&script_nodes[0]);
    grant(&script_nodes[0]); // the round goes on
    script_until(count(0, CAIRN_CHUNK_PUSH, 0) == CHUNKS &&
                 count(0, CAIRN_CHUNK_PUSH, 1) == CHUNKS);
    struct note first = notes[0];
    answer(&first, CAIRN_CHUNK_NAK, CAIRN_ERR_STALE); // void from here on
    note_count = 0;
    script_nodes[0].endpoint++;
    for (int i = 0; i < 50; i++)
        script_pump(); // it is heard before the HELLO, which may overtake it
    script_say_hello(&script_nodes[0]);
    script_until(count(0, CAIRN_CHUNK_PUSH, 0) + count(0, CAIRN_CHUNK_PUSH, 1) == 2 * CHUNKS - 1);
}

TEST(the_next_round_without_it_goes_directly_whatever_its_ways_were)
{
    open_mem();
    script_nodes[0].endpoint = 9; // higher than the others will ever be
    script_say_hello(&script_nodes[0]);
    script_call(script_step);
    ck_assert_uint_eq(count(1, CAIRN_CHUNK_PUSH, 1), 0);
    grant_directly();
    note_count = 0;
    script_call(script_step);
    for (uint32_t o = 0; o < SHARDS; o++) ck_assert_uint_eq(count(o, CAIRN_CHUNK_PUSH, o), CHUNKS);
    for (uint32_t i = 0; i < note_count; i++)
        if (notes[i].header.kind != CAIRN_CHUNK_PUSH) ck_assert_uint_eq(notes[i].header.tensor, 0);
    relay_for(1, 2); // and by another one
    note_count = 0;
    script_call(script_step);
    ck_assert_uint_eq(count(2, CAIRN_CHUNK_PUSH, 1), CHUNKS);
    ck_assert_uint_eq(count(2, CAIRN_CHUNK_MICRO_END, 1), 1);
}

TEST(what_is_folded_where_it_lies_has_no_checksum_and_all_else_has_one)
{
    uint32_t in_place = 0, carried = 0;
    open_host();
    grant_directly();
    script_call(script_step); // of its chunks, those of shard 1 may go by shard 0 still
    script_call(script_step);
    for (uint32_t i = 0; i < note_count; i++) {
        if (notes[i].header.kind != CAIRN_CHUNK_PUSH) continue;
        ck_assert_int_eq(notes[i].header.checksum == 0, notes[i].in_place);
        ck_assert_int_eq(notes[i].node != 1, notes[i].in_place);
        in_place += notes[i].in_place;
        carried += !notes[i].in_place;
    }
    ck_assert_uint_ge(in_place, 2 * 2 * CHUNKS);
    ck_assert_uint_ge(carried, CHUNKS);
}

/* ---- fetches ---- */

TEST(what_the_host_shares_with_a_relay_only_is_fetched_from_it)
{
    struct cairn_stats stats = { .struct_size = sizeof stats };
    open_host();
    script_call(script_step);
    script_call(fetch);
    ck_assert_uint_eq(count(0, CAIRN_CHUNK_FETCH, 1), CHUNKS);
    ck_assert_uint_eq(count(1, CAIRN_CHUNK_FETCH, 1), 0);
    good(cairn_job_stats(script_job, &stats));
    ck_assert_uint_eq(stats.fetched_bytes, sizeof got);
    ck_assert_uint_eq(stats.shared_fetched_bytes, sizeof got);
}

TEST(a_chunk_that_came_damaged_is_asked_for_again)
{
    open_host();
    script_call(script_step);
    declines = true; // what comes is carried
    script.damages = 2;
    script_call(fetch);
    ck_assert_uint_eq(script.damages, 0);
    ck_assert_uint_eq(count(1, CAIRN_CHUNK_FETCH, 1), CHUNKS + 2);
    int tensor = 0;
    while (owner_of((uint32_t)tensor, 0) != 1) tensor++;
    check_got((uint32_t)tensor);
}

TEST(what_a_relay_has_not_the_owner_is_asked_for_until_the_next_grant)
{
    open_host();
    script_call(script_step);
    declines = true;
    script_call(fetch);
    ck_assert_uint_gt(count(0, CAIRN_CHUNK_FETCH, 1), 0);
    ck_assert_uint_eq(count(1, CAIRN_CHUNK_FETCH, 1), CHUNKS);
    note_count = 0;
    script_call(fetch);
    ck_assert_uint_eq(count(0, CAIRN_CHUNK_FETCH, 1), 0);
    ck_assert_uint_eq(count(1, CAIRN_CHUNK_FETCH, 1), CHUNKS);
    declines = false;
    script_call(script_step);
    note_count = 0;
    script_call(fetch);
    ck_assert_uint_eq(count(0, CAIRN_CHUNK_FETCH, 1), CHUNKS);
}

TEST(what_a_relay_that_is_lost_did_not_answer_is_asked_again)
{
    open_host();
    script_call(script_step);
    holds_fetches = true;
    caller_begin(fetch);
    script_until(count(0, CAIRN_CHUNK_FETCH, 1) == CHUNKS);
    // Meanwhile the coordinator hears that the worker waits for its link: round.h.
    script_until(script_fake.cluster->jobs->members.list->in_flight == CAIRN_FLIES_FETCH);
    holds_fetches = false;
    fabric_close(script_nodes[0].fabric);
    script_nodes[0].fabric = NULL;
    script_finish();
    ck_assert_uint_eq(count(1, CAIRN_CHUNK_FETCH, 1), CHUNKS);
}

/* What a trainer does first. */
static void begin_and_fetch(void)
{
    script_round = (struct cairn_round) { .struct_size = sizeof script_round };
    good(cairn_round_begin(script_job, WAIT_MS, &script_round));
    script_result.version = script_round.version;
    fetch();
}

static uint64_t now_ms(void)
{
    return uv_hrtime() / 1000000;
}

TEST(a_fetch_of_the_first_round_waits_until_it_is_known_who_relays)
{
    open_host();
    script.holds_grants = true;
    caller_begin(begin_and_fetch);
    script_until(script_fake.shards[0].round != 0);
    for (const uint64_t end = now_ms() + 20; now_ms() < end;) script_pump();
    ck_assert_uint_eq(count(1, CAIRN_CHUNK_FETCH, 1), 0);
    script.holds_grants = false;
    script_finish();
    ck_assert_uint_eq(count(0, CAIRN_CHUNK_FETCH, 1), CHUNKS);
    ck_assert_uint_eq(count(1, CAIRN_CHUNK_FETCH, 1), 0);
}

TEST(a_fetch_that_nobody_relays_waits_no_longer_than_a_moment)
{
    open_host();
    script.holds_grants = true;
    const uint64_t begun = now_ms();
    script_call(begin_and_fetch);
    ck_assert_uint_lt(now_ms() - begun, 5000);
    ck_assert_uint_eq(count(1, CAIRN_CHUNK_FETCH, 1), CHUNKS);
}

static void wait_for_push(void)
{
    cairn_op *op = NULL;
    const struct cairn_mem mem = { .struct_size = sizeof mem, .ptr = got, .dtype = CAIRN_F32 };
    script_round = (struct cairn_round) { .struct_size = sizeof script_round };
    good(cairn_round_begin(script_job, WAIT_MS, &script_round));
    const int tensor = tensor_of_second();
    good(cairn_push(script_job, &script_round, 0, script_names[tensor], NULL, &mem, &op));
    ck_assert_int_eq(cairn_wait(op, 2000), CAIRN_ERR_TIMEOUT);
    ck_assert_msg(strstr(cairn_error(), "shard s1 (5 chunks, through shard s0)") != NULL, "%s",
                  cairn_error());
}

TEST(a_wait_that_times_out_names_the_relay_that_has_not_answered)
{
    open_mem();
    holds_acks = true;
    script_call(wait_for_push);
}

SUITE(40, .tear_down = close_scene);
