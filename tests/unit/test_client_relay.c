/* The client where a shard speaks for others: a coordinator that is real, shards whose data is this test's
 * own script, and a worker on a thread of its own. */
#include <cairn.h>
#include <check.h>
#include <stdlib.h>
#include <string.h>

#include "client/job.h"
#include "server/coordinator/job.h"
#include "tests/support/caller.h"
#include "tests/support/fake_cluster.h"
#include "tests/support/good.h"
#include "tests/support/mem.h"
#include "tests/support/suite.h"

#define HOST "here"

enum { SHARDS = 3, TENSORS = 3, ELEMS = 20000, CHUNKS = 5, NOTES = 4096, WAIT_MS = 15000 };

/* What a shard got, in order. */
struct note {
    uint32_t node, owner; /* who got it, and whose chunk it is, or whose end by its mark */
    bool in_place;        /* its payload could be read where it lay */
    struct chunk_header header;
};

/* A shard's data. */
struct node {
    uint32_t index;
    struct fabric *fabric;    /* NULL: it is gone */
    struct fabric_peer *peer; /* to the worker; NULL: not met yet */
    uint32_t endpoint;
    uint32_t connection; /* of the worker's HELLO */
};

static struct fake_cluster fake;
static struct fabric_hub *hub; /* NULL: real ways */
static struct node nodes[SHARDS];
static struct note notes[NOTES];
static uint32_t note_count;
static uint32_t granted_by[SHARDS]; /* the script: who grants for it, */
static bool marked[SHARDS];         /* as a relay */
static bool holds_acks, holds_fetches, holds_grants, declines;
static uint32_t damages;     /* so many of the next answers */
static cairn_status refuses; /* pushes */
static uint64_t round_granted;
static uint32_t committed; /* owners, by bit */

static cairn *session;
static cairn_job *job;
static float given[TENSORS][ELEMS], got[ELEMS];
static const char *const names[TENSORS] = { "a", "b", "c" };

/* ---- a shard's side ---- */

static uint32_t owner_of(uint32_t tensor, uint64_t first_leaf)
{
    struct shard_map map;
    uint32_t owner = SHARDS;
    for (uint32_t i = 0; i < SHARDS; i++) {
        ck_assert_int_eq(shard_map_init(&map, fake.shards[0].layout, i, 1), CAIRN_OK);
        if (shard_map_find(&map, tensor, first_leaf) != NULL) owner = i;
        shard_map_release(&map);
    }
    ck_assert_uint_lt(owner, SHARDS);
    return owner;
}

static void on_data_sent(void *arg, cairn_status status)
{
    (void)status;
    free(arg);
}

static void say(struct node *node, struct chunk_header *header, void *payload, size_t bytes)
{
    const struct fake_shard *shard = &fake.shards[node->index];
    uint8_t out[CAIRN_CHUNK_HEADER_BYTES];
    header->job = shard->job;
    header->member = shard->member;
    header->token = shard->token;
    header->payload_bytes = bytes;
    header->checksum = chunk_checksum(payload, bytes);
    if (payload != NULL && damages > 0) { // on its way
        ((uint8_t *)payload)[bytes / 2] ^= 1;
        damages--;
    }
    chunk_encode(header, out);
    const cairn_status status = fabric_send(node->peer, out, sizeof out, payload, bytes,
                                            payload != NULL ? on_data_sent : NULL, payload);
    if (status != CAIRN_OK) free(payload); // it is cut
}

static void say_hello(struct node *node)
{
    struct chunk_header hello = { .kind = CAIRN_CHUNK_HELLO, .tile = node->index };
    hello.request = CAIRN_CHUNK_WAY(node->endpoint, node->connection);
    say(node, &hello, NULL, 0);
}

static void say_grants(struct node *node)
{
    const struct fake_shard *shard = &fake.shards[node->index];
    for (uint32_t o = 0; o < SHARDS && shard->round != 0; o++) {
        struct chunk_header grant = { .kind = CAIRN_CHUNK_GRANT, .tile = o, .value = 64 };
        if (granted_by[o] != node->index) continue;
        grant.epoch = shard->epoch;
        grant.round = shard->round;
        grant.tensor = marked[o] ? node->index + 1 : 0;
        grant.request = CAIRN_CHUNK_WAY(node->endpoint, node->connection);
        say(node, &grant, NULL, 0);
    }
}

static void take_hello(struct node *node, const struct chunk_header *h)
{
    const struct fake_shard *shard = &fake.shards[node->index];
    if (node->peer == NULL)
        ck_assert_int_eq(fabric_connect_to(node->fabric, shard->member_address,
                                           shard->member_address_bytes, NULL, NULL, &node->peer),
                         CAIRN_OK);
    node->connection = (uint32_t)h->request;
    say_hello(node);
    say_grants(node);
}

static void answer(struct node *node, const struct note *note, unsigned kind, uint64_t value)
{
    struct chunk_header header = note->header;
    header.kind = (uint8_t)kind;
    header.tile = note->owner;
    header.value = value;
    say(node, &header, NULL, 0);
}

static void answer_fetch(struct node *node, const struct note *note)
{
    struct chunk_header header = note->header;
    const uint64_t first = header.first_leaf * CAIRN_LEAF_ELEMS;
    const uint64_t left = ELEMS - first, most = header.leaf_count * (uint64_t)CAIRN_LEAF_ELEMS;
    const size_t bytes = (left < most ? left : most) * sizeof(float);
    header.kind = CAIRN_CHUNK_DATA;
    header.tile = note->owner;
    header.value = 0; // it has a checksum
    uint8_t *data = memcpy(malloc(bytes), &given[header.tensor][first], bytes);
    say(node, &header, data, bytes);
}

static void take_commit(const struct note *note)
{
    committed |= 1u << note->owner;
    if (committed != (1u << SHARDS) - 1) return;
    committed = 0;
    for (uint32_t i = 0; i < SHARDS; i++) fake_shard_report_reduced(&fake.shards[i]);
}

static void serve(struct node *node, struct note *note)
{
    const struct chunk_header *h = &note->header;
    switch (h->kind) {
    case CAIRN_CHUNK_PUSH:
        note->owner = owner_of(h->tensor, h->first_leaf);
        if (refuses != CAIRN_OK)
            answer(node, note, CAIRN_CHUNK_NAK, (uint64_t)refuses);
        else if (!holds_acks)
            answer(node, note, CAIRN_CHUNK_ACK, 0);
        refuses = CAIRN_OK; // one of them
        break;
    case CAIRN_CHUNK_FETCH:
        note->owner = owner_of(h->tensor, h->first_leaf);
        if (declines && note->owner != node->index)
            answer(node, note, CAIRN_CHUNK_NAK, CAIRN_ERR_NOT_FOUND);
        else if (!holds_fetches)
            answer_fetch(node, note);
        break;
    case CAIRN_CHUNK_MICRO_END:
        note->owner = h->tensor != 0 ? h->tensor - 1 : node->index;
        answer(node, note, CAIRN_CHUNK_MICRO_ACK, 0);
        break;
    case CAIRN_CHUNK_COMMIT:
        note->owner = h->tensor != 0 ? h->tensor - 1 : node->index;
        take_commit(note);
        break;
    default: break;
    }
}

static void on_message(void *arg, const void *header, size_t header_bytes, size_t payload_bytes,
                       struct fabric_message *message)
{
    struct node *node = arg;
    struct note *note = &notes[note_count];
    ck_assert_uint_lt(note_count, NOTES);
    *note = (struct note) { .node = node->index, .owner = node->index };
    note->in_place = message != NULL && fabric_message_view(message) != NULL;
    ck_assert_int_eq(chunk_decode(header, header_bytes, payload_bytes, &note->header), CAIRN_OK);
    if (message != NULL) fabric_drop(message);
    if (note->header.kind == CAIRN_CHUNK_HELLO) {
        take_hello(node, &note->header);
        return;
    }
    note_count++;
    serve(node, note);
}

/* ---- driving ---- */

static void pump(void)
{
    fake_pump(&fake);
    for (uint32_t i = 0; i < SHARDS; i++)
        if (nodes[i].fabric != NULL) fabric_progress(nodes[i].fabric);
    for (uint32_t i = 0; i < SHARDS; i++)
        if (fake.shards[i].round == 0 || fake.shards[i].round == round_granted) return;
    if (holds_grants) return;
    round_granted = fake.shards[0].round; // it is open at all of them
    for (uint32_t i = 0; i < SHARDS; i++)
        if (nodes[i].peer != NULL) say_grants(&nodes[i]);
}

#define until(condition)                                               \
    do {                                                               \
        const uint64_t end_ms = uv_hrtime() / 1000000 + WAIT_MS;       \
        while (!(condition)) {                                         \
            ck_assert_msg(uv_hrtime() / 1000000 < end_ms, #condition); \
            pump();                                                    \
        }                                                              \
    } while (0)

/* The worker's calls wait for what this thread serves. */
static void finish(void)
{
    until(caller_is_over());
    caller_end();
}

static void call(void (*made)(void))
{
    caller_begin(made);
    finish();
}

static uint32_t count(uint32_t node, unsigned kind, uint32_t owner)
{
    uint32_t found = 0;
    for (uint32_t i = 0; i < note_count; i++)
        found += notes[i].node == node && notes[i].header.kind == kind && notes[i].owner == owner;
    return found;
}

/* ---- a worker's side ---- */

static void attach(void)
{
    static struct cairn_tensor tensors[TENSORS];
    for (int i = 0; i < TENSORS; i++)
        tensors[i] = (struct cairn_tensor) { .struct_size = sizeof *tensors,
                                             .name = names[i],
                                             .unit = names[i],
                                             .rank = 1,
                                             .shape = { ELEMS },
                                             .init = { .kind = CAIRN_INIT_ZEROS } };
    const struct cairn_group group = CAIRN_GROUP_INIT;
    const struct cairn_job_spec spec = { .struct_size = sizeof spec,
                                         .tensors = tensors,
                                         .tensor_count = TENSORS,
                                         .groups = &group,
                                         .group_count = 1,
                                         .chunk_leaves = 1,
                                         .reduce_groups = CAIRN_GROUPS_HOST };
    const struct cairn_opts opts = { .struct_size = sizeof opts,
                                     .endpoint = fake.listen,
                                     .fabric = "auto" };
    setenv("CAIRN_HOST", HOST, 1); // with a name auto has ucx, too
    good(client_open(&opts, hub, &session));
    good(cairn_job_open(session, "relayed", &spec, CAIRN_WORKER, WAIT_MS, &job));
    good(cairn_init_done(job, NULL, WAIT_MS));
}

static void detach(void)
{
    cairn_close(session);
}

static struct cairn_round round_at_hand;
static struct cairn_result result;
static cairn_status result_status;

static void push_all(void)
{
    round_at_hand = (struct cairn_round) { .struct_size = sizeof round_at_hand };
    good(cairn_round_begin(job, WAIT_MS, &round_at_hand));
    for (int i = 0; i < TENSORS; i++) {
        const struct cairn_mem mem = { .struct_size = sizeof mem,
                                       .ptr = given[i],
                                       .dtype = CAIRN_F32 };
        good(cairn_push(job, &round_at_hand, 0, names[i], NULL, &mem, NULL));
    }
}

static void commit(void)
{
    result = (struct cairn_result) { .struct_size = sizeof result };
    result_status = cairn_commit(job, &round_at_hand, 1, NULL, 0, WAIT_MS, &result);
}

static void step(void)
{
    push_all();
    commit();
    ck_assert_msg(result_status == CAIRN_OK, "%s", cairn_error());
}

/* The tensor of shard 1. */
static int tensor_of_second(void)
{
    int tensor = 0;
    while (owner_of((uint32_t)tensor, 0) != 1) tensor++;
    return tensor;
}

static void fetch(void)
{
    cairn_op *op = NULL;
    const int tensor = tensor_of_second();
    memset(got, 0xff, sizeof got);
    const struct cairn_mem mem = { .struct_size = sizeof mem, .ptr = got, .dtype = CAIRN_F32 };
    good(cairn_fetch(job, result.version, names[tensor], NULL, NULL, &mem, &op));
    good(cairn_wait(op, WAIT_MS));
    ck_assert_mem_eq(got, given[tensor], sizeof got);
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

static void open_node(uint32_t i, const char *kind)
{
    struct sentence why = { "" };
    const struct fabric_options options = { .on_message = on_message,
                                            .on_message_arg = &nodes[i],
                                            .max_payload = CAIRN_CHUNK_PAYLOAD_MAX,
                                            .host = HOST,
                                            .hub = hub };
    nodes[i] = (struct node) { .index = i, .endpoint = 1 };
    ck_assert_msg(fabric_open(kind, &options, &nodes[i].fabric, &why) == CAIRN_OK, "%s", why.text);
    fake.shards[i].address = fabric_own_address(nodes[i].fabric, &fake.shards[i].address_bytes);
    fake.shards[i].holds_reduced = true;
}

/* Shard 0 relays for itself and for shard 1. */
static void open_scene(const char *const kinds[SHARDS])
{
    note_count = committed = 0;
    round_granted = 0;
    holds_acks = holds_fetches = holds_grants = declines = false;
    damages = 0;
    refuses = CAIRN_OK;
    for (int t = 0; t < TENSORS; t++)
        for (int i = 0; i < ELEMS; i++) given[t][i] = (float)(t + 1) + (float)i / ELEMS;
    fake_open(&fake, SHARDS);
    for (uint32_t i = 0; i < SHARDS; i++) open_node(i, kinds[i]);
    fake_shards_up(&fake, SHARDS);
    grant_directly();
    relay_for(0, 0);
    relay_for(1, 0);
    call(attach);
    until(nodes[0].peer != NULL && nodes[1].peer != NULL && nodes[2].peer != NULL);
}

static void open_mem(void)
{
    static const char *const kinds[SHARDS] = { "mem", "mem", "mem" };
    const struct cairn_fabric_mem_options options = { .seed = 3, .delay_max_ticks = 3 };
    ck_assert_int_eq(cairn_fabric_mem_hub_open(&options, &hub), CAIRN_OK);
    open_scene(kinds);
}

/* Shard 1 is not of this host. */
static void open_host(void)
{
    static const char *const kinds[SHARDS] = { "auto", "ucx", "auto" };
    hub = NULL;
    open_scene(kinds);
}

static void close_scene(void)
{
    call(detach);
    for (uint32_t i = 0; i < SHARDS; i++) fabric_close(nodes[i].fabric);
    fake_close(&fake);
    if (hub != NULL) cairn_fabric_mem_hub_close(hub);
}

/* ---- pushes ---- */

TEST(what_is_for_an_owner_goes_to_its_carrier_and_is_marked)
{
    open_mem();
    call(step);
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
    close_scene();
}

TEST(the_loss_of_the_carrier_sends_again_what_all_its_owners_owe)
{
    open_mem();
    holds_acks = true;
    call(push_all);
    until(count(0, CAIRN_CHUNK_PUSH, 0) == CHUNKS && count(0, CAIRN_CHUNK_PUSH, 1) == CHUNKS &&
          count(2, CAIRN_CHUNK_PUSH, 2) == CHUNKS);
    note_count = 0;
    cairn_fabric_mem_cut_to(nodes[0].fabric);
    until(count(0, CAIRN_CHUNK_PUSH, 0) == CHUNKS && count(0, CAIRN_CHUNK_PUSH, 1) == CHUNKS);
    ck_assert_uint_eq(count(2, CAIRN_CHUNK_PUSH, 2), 0); // nothing of its own was lost
    note_count = 0;
    holds_acks = false;
    cairn_fabric_mem_cut_to(nodes[0].fabric);
    cairn_fabric_mem_cut_to(nodes[2].fabric);
    call(commit);
    ck_assert_int_eq(result_status, CAIRN_OK);
    ck_assert_uint_eq(count(0, CAIRN_CHUNK_PUSH, 1), CHUNKS);
    ck_assert_uint_eq(count(2, CAIRN_CHUNK_PUSH, 2), CHUNKS);
    close_scene();
}

TEST(the_loss_of_the_owner_is_nothing_to_what_its_carrier_has)
{
    open_mem();
    holds_acks = true;
    call(push_all);
    until(count(0, CAIRN_CHUNK_PUSH, 1) == CHUNKS && count(2, CAIRN_CHUNK_PUSH, 2) == CHUNKS &&
          count(0, CAIRN_CHUNK_PUSH, 0) == CHUNKS);
    const uint32_t connection = nodes[1].connection;
    cairn_fabric_mem_cut_to(nodes[1].fabric);
    until(nodes[1].connection > connection); // it is connected again
    ck_assert_uint_eq(note_count, SHARDS * CHUNKS);
    for (uint32_t i = 0; i < SHARDS * CHUNKS; i++)
        answer(&nodes[notes[i].node], &notes[i], CAIRN_CHUNK_ACK, 0);
    call(commit);
    ck_assert_int_eq(result_status, CAIRN_OK);
    ck_assert_uint_eq(count(0, CAIRN_CHUNK_PUSH, 1), CHUNKS);
    close_scene();
}

TEST(a_new_endpoint_of_the_carrier_is_told_to_all_its_owners_in_a_void_round_too)
{
    open_mem();
    holds_acks = true;
    call(push_all);
    until(count(0, CAIRN_CHUNK_PUSH, 0) == CHUNKS && count(0, CAIRN_CHUNK_PUSH, 1) == CHUNKS &&
          count(2, CAIRN_CHUNK_PUSH, 2) == CHUNKS);
    note_count = 0;
    nodes[0].endpoint++;
    say_hello(&nodes[0]);
    say_grants(&nodes[0]); // the round goes on
    until(count(0, CAIRN_CHUNK_PUSH, 0) == CHUNKS && count(0, CAIRN_CHUNK_PUSH, 1) == CHUNKS);
    struct note first = notes[0];
    answer(&nodes[0], &first, CAIRN_CHUNK_NAK, CAIRN_ERR_STALE); // void from here on
    note_count = 0;
    nodes[0].endpoint++;
    for (int i = 0; i < 50; i++) pump(); // it is heard before the HELLO, which may overtake it
    say_hello(&nodes[0]);
    until(count(0, CAIRN_CHUNK_PUSH, 0) + count(0, CAIRN_CHUNK_PUSH, 1) == 2 * CHUNKS - 1);
    close_scene();
}

TEST(the_next_round_without_it_goes_directly_whatever_its_ways_were)
{
    open_mem();
    nodes[0].endpoint = 9; // higher than the others will ever be
    say_hello(&nodes[0]);
    call(step);
    ck_assert_uint_eq(count(1, CAIRN_CHUNK_PUSH, 1), 0);
    grant_directly();
    note_count = 0;
    call(step);
    for (uint32_t o = 0; o < SHARDS; o++) ck_assert_uint_eq(count(o, CAIRN_CHUNK_PUSH, o), CHUNKS);
    for (uint32_t i = 0; i < note_count; i++)
        if (notes[i].header.kind != CAIRN_CHUNK_PUSH) ck_assert_uint_eq(notes[i].header.tensor, 0);
    relay_for(1, 2); // and by another one
    note_count = 0;
    call(step);
    ck_assert_uint_eq(count(2, CAIRN_CHUNK_PUSH, 1), CHUNKS);
    ck_assert_uint_eq(count(2, CAIRN_CHUNK_MICRO_END, 1), 1);
    close_scene();
}

TEST(what_is_folded_where_it_lies_has_no_checksum_and_all_else_has_one)
{
    uint32_t in_place = 0, carried = 0;
    open_host();
    grant_directly();
    call(step); // of its chunks, those of shard 1 may go by shard 0 still
    call(step);
    for (uint32_t i = 0; i < note_count; i++) {
        if (notes[i].header.kind != CAIRN_CHUNK_PUSH) continue;
        ck_assert_int_eq(notes[i].header.checksum == 0, notes[i].in_place);
        ck_assert_int_eq(notes[i].node != 1, notes[i].in_place);
        in_place += notes[i].in_place;
        carried += !notes[i].in_place;
    }
    ck_assert_uint_ge(in_place, 2 * 2 * CHUNKS);
    ck_assert_uint_ge(carried, CHUNKS);
    close_scene();
}

/* ---- fetches ---- */

TEST(what_the_host_shares_with_a_relay_only_is_fetched_from_it)
{
    struct cairn_stats stats = { .struct_size = sizeof stats };
    open_host();
    call(step);
    call(fetch);
    ck_assert_uint_eq(count(0, CAIRN_CHUNK_FETCH, 1), CHUNKS);
    ck_assert_uint_eq(count(1, CAIRN_CHUNK_FETCH, 1), 0);
    good(cairn_job_stats(job, &stats));
    ck_assert_uint_eq(stats.fetched_bytes, sizeof got);
    ck_assert_uint_eq(stats.shared_fetched_bytes, sizeof got);
    close_scene();
}

TEST(a_chunk_that_came_damaged_is_asked_for_again)
{
    open_host();
    call(step);
    declines = true; // what comes is carried
    damages = 2;
    call(fetch);
    ck_assert_uint_eq(damages, 0);
    ck_assert_uint_eq(count(1, CAIRN_CHUNK_FETCH, 1), CHUNKS + 2);
    int tensor = 0;
    while (owner_of((uint32_t)tensor, 0) != 1) tensor++;
    ck_assert_mem_eq(got, given[tensor], sizeof got);
    close_scene();
}

TEST(what_a_relay_has_not_the_owner_is_asked_for_until_the_next_grant)
{
    open_host();
    call(step);
    declines = true;
    call(fetch);
    ck_assert_uint_gt(count(0, CAIRN_CHUNK_FETCH, 1), 0);
    ck_assert_uint_eq(count(1, CAIRN_CHUNK_FETCH, 1), CHUNKS);
    note_count = 0;
    call(fetch);
    ck_assert_uint_eq(count(0, CAIRN_CHUNK_FETCH, 1), 0);
    ck_assert_uint_eq(count(1, CAIRN_CHUNK_FETCH, 1), CHUNKS);
    declines = false;
    call(step);
    note_count = 0;
    call(fetch);
    ck_assert_uint_eq(count(0, CAIRN_CHUNK_FETCH, 1), CHUNKS);
    close_scene();
}

TEST(what_a_relay_that_is_lost_did_not_answer_is_asked_again)
{
    open_host();
    call(step);
    holds_fetches = true;
    caller_begin(fetch);
    until(count(0, CAIRN_CHUNK_FETCH, 1) == CHUNKS);
    // Meanwhile the coordinator hears that the worker waits for its link: round.h.
    until(fake.cluster->jobs->members.list->in_flight == CAIRN_FLIES_FETCH);
    holds_fetches = false;
    fabric_close(nodes[0].fabric);
    nodes[0].fabric = NULL;
    finish();
    ck_assert_uint_eq(count(1, CAIRN_CHUNK_FETCH, 1), CHUNKS);
    close_scene();
}

/* What a trainer does first. */
static void begin_and_fetch(void)
{
    round_at_hand = (struct cairn_round) { .struct_size = sizeof round_at_hand };
    good(cairn_round_begin(job, WAIT_MS, &round_at_hand));
    result.version = round_at_hand.version;
    fetch();
}

static uint64_t now_ms(void)
{
    return uv_hrtime() / 1000000;
}

TEST(a_fetch_of_the_first_round_waits_until_it_is_known_who_relays)
{
    open_host();
    holds_grants = true;
    caller_begin(begin_and_fetch);
    until(fake.shards[0].round != 0);
    for (const uint64_t end = now_ms() + 20; now_ms() < end;) pump();
    ck_assert_uint_eq(count(1, CAIRN_CHUNK_FETCH, 1), 0);
    holds_grants = false;
    finish();
    ck_assert_uint_eq(count(0, CAIRN_CHUNK_FETCH, 1), CHUNKS);
    ck_assert_uint_eq(count(1, CAIRN_CHUNK_FETCH, 1), 0);
    close_scene();
}

TEST(a_fetch_that_nobody_relays_waits_no_longer_than_a_moment)
{
    open_host();
    holds_grants = true;
    const uint64_t begun = now_ms();
    call(begin_and_fetch);
    ck_assert_uint_lt(now_ms() - begun, 5000);
    ck_assert_uint_eq(count(1, CAIRN_CHUNK_FETCH, 1), CHUNKS);
    close_scene();
}

static void wait_for_push(void)
{
    cairn_op *op = NULL;
    const struct cairn_mem mem = { .struct_size = sizeof mem, .ptr = given[0], .dtype = CAIRN_F32 };
    round_at_hand = (struct cairn_round) { .struct_size = sizeof round_at_hand };
    good(cairn_round_begin(job, WAIT_MS, &round_at_hand));
    const int tensor = tensor_of_second();
    good(cairn_push(job, &round_at_hand, 0, names[tensor], NULL, &mem, &op));
    ck_assert_int_eq(cairn_wait(op, 2000), CAIRN_ERR_TIMEOUT);
    ck_assert_msg(strstr(cairn_error(), "shard s1 (5 chunks, through shard s0)") != NULL, "%s",
                  cairn_error());
}

TEST(a_wait_that_times_out_names_the_relay_that_has_not_answered)
{
    open_mem();
    holds_acks = true;
    call(wait_for_push);
    close_scene();
}

SUITE(40);
