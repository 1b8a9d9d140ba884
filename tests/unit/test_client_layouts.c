/* The client while the layout of its job changes: a coordinator that is real, but for the word that a layout
 * changed; shards whose data is this test's own script, each of which knows by which layout it published a
 * version; and a worker on a thread of its own. */
#include <cairn.h>
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/base.h"
#include "client/job.h"
#include "server/coordinator/base.h"
#include "server/coordinator/job.h"
#include "tests/support/caller.h"
#include "tests/support/fake_cluster.h"
#include "tests/support/good.h"
#include "tests/support/mem.h"
#include "tests/support/suite.h"

enum { FIRST = 2, NODES = 3, TENSORS = 3, ELEMS = 20000, QUANTA = 5 };
enum { LAYOUTS = 8, STEPS = 16, WAIT_MS = 15000 };

/* A shard's data; what came is counted by kind. */
struct node {
    uint32_t index;
    struct fabric *fabric;
    struct fabric_peer *peer; /* to the worker; NULL: not met yet */
    uint32_t connection;      /* of the worker's HELLO */
    uint32_t endpoint;
    uint32_t came[16];
    uint32_t refused; /* fetches of chunks that it does not know */
};

static struct fake_cluster fake;
static struct fabric_hub *hub;
static struct node nodes[NODES];
static struct layout *layouts[LAYOUTS]; /* by their version */
static uint64_t in_force;               /* whose pushes nodes take */
static uint64_t published_by[STEPS];    /* the layout of a step's copies; 0: as in_force was */
static uint64_t round_granted;
static uint32_t committed; /* nodes, by bit */
static uint32_t holding;   /* fetches: nodes, by bit */

static cairn *session;
static cairn_job *job;
static const char *const names[TENSORS] = { "a", "b", "c" };
static float gradient[ELEMS], got[TENSORS][ELEMS];

static float value_of(uint32_t tensor, uint64_t elem, uint64_t step)
{
    return (float)(tensor * 100 + step) + (float)elem / ELEMS;
}

/* ---- layouts ---- */

static void make_layout(uint64_t version, uint32_t shards, struct extent *extents, size_t count)
{
    struct layout_tensor tensors[TENSORS];
    for (int t = 0; t < TENSORS; t++)
        tensors[t] = (struct layout_tensor) {
            .name = names[t], .unit = names[t], .shape = { 1, { ELEMS } }, .elem_bytes = 4
        };
    struct extent *owned = malloc(count * sizeof *extents);
    memcpy(owned, extents, count * sizeof *extents);
    ck_assert_int_eq(
        layout_make(tensors, TENSORS, shards, version, owned, count, &layouts[version]), CAIRN_OK);
}

/* As the one before, but for quanta [from, from + count) of a tensor, which go to that shard. */
static void make_moved(uint64_t version, uint32_t shards, uint32_t tensor, uint64_t from,
                       uint64_t count, uint32_t to)
{
    const struct layout *before = layouts[version - 1];
    struct extent extents[TENSORS * QUANTA];
    size_t n = 0;
    for (size_t e = 0; e < before->extent_count; e++)
        for (uint64_t q = 0; q < before->extents[e].quantum_count; q++) {
            struct extent one = before->extents[e];
            one.first_quantum += q;
            one.quantum_count = 1;
            if (one.tensor == tensor && one.first_quantum - from < count) one.shard = to;
            if (q > 0 && extents[n - 1].shard == one.shard)
                extents[n - 1].quantum_count++;
            else
                extents[n++] = one;
        }
    make_layout(version, shards, extents, n);
}

/* As the one before, without anything on that shard. */
static void make_drained(uint64_t version, uint32_t gone, uint32_t to)
{
    const struct layout *before = layouts[version - 1];
    struct extent extents[TENSORS * QUANTA];
    for (size_t e = 0; e < before->extent_count; e++) {
        extents[e] = before->extents[e];
        if (extents[e].shard == gone) extents[e].shard = to;
    }
    make_layout(version, before->shard_count, extents, before->extent_count);
}

static uint32_t owner_of(uint64_t layout, uint32_t tensor, uint64_t leaf)
{
    return layout_find(layouts[layout], tensor, leaf)->shard;
}

static bool is_chunk_of(uint64_t layout, uint32_t shard, const struct chunk_header *h)
{
    struct shard_map map;
    uint64_t chunk;
    if (shard >= layouts[layout]->shard_count) return false;
    ck_assert_int_eq(shard_map_init(&map, layouts[layout], shard, 2), CAIRN_OK);
    const cairn_status status = shard_map_chunk_number(&map, h->tensor, h->first_leaf,
                                                       h->leaf_count, &chunk);
    shard_map_release(&map);
    return status == CAIRN_OK;
}

static bool owns_any(uint64_t layout, uint32_t shard)
{
    const struct layout *l = layouts[layout];
    return shard < l->shard_count && l->shard_extents[shard] < l->shard_extents[shard + 1];
}

/* ---- a shard's side ---- */

static void on_data_sent(void *arg, cairn_status status)
{
    (void)status;
    free(arg);
}

static void say(struct node *node, struct chunk_header *header, void *payload, size_t bytes)
{
    const struct fake_shard *shard = &fake.shards[0]; // whom the worker is known to as any
    uint8_t out[CAIRN_CHUNK_HEADER_BYTES];
    header->job = shard->job;
    header->member = shard->member;
    header->token = shard->token;
    header->tile = node->index;
    header->payload_bytes = bytes;
    header->checksum = chunk_checksum(payload, bytes);
    chunk_encode(header, out);
    if (fabric_send(node->peer, out, sizeof out, payload, bytes,
                    payload != NULL ? on_data_sent : NULL, payload) != CAIRN_OK)
        free(payload); // it is cut
}

static void say_grant(struct node *node)
{
    const struct fake_shard *shard = &fake.shards[0];
    struct chunk_header grant = { .kind = CAIRN_CHUNK_GRANT, .value = 64 };
    if (shard->round == 0) return;
    grant.epoch = shard->epoch;
    grant.round = shard->round;
    grant.request = CAIRN_CHUNK_WAY(node->endpoint, node->connection);
    say(node, &grant, NULL, 0);
}

static void take_hello(struct node *node, const struct chunk_header *h)
{
    const struct fake_shard *shard = &fake.shards[0];
    if (node->peer == NULL)
        ck_assert_int_eq(fabric_connect_to(node->fabric, shard->member_address,
                                           shard->member_address_bytes, NULL, NULL, &node->peer),
                         CAIRN_OK);
    node->connection = (uint32_t)h->request;
    struct chunk_header hello = { .kind = CAIRN_CHUNK_HELLO };
    hello.request = CAIRN_CHUNK_WAY(node->endpoint, node->connection);
    say(node, &hello, NULL, 0);
    say_grant(node);
}

static void answer(struct node *node, struct chunk_header header, unsigned kind,
                   cairn_status status)
{
    header.kind = (uint8_t)kind;
    header.value = (uint64_t)status;
    say(node, &header, NULL, 0);
}

/* What was published by another layout, the shard knows no chunk of. */
static void answer_fetch(struct node *node, struct chunk_header header)
{
    const uint64_t first = header.first_leaf * CAIRN_LEAF_ELEMS;
    const uint64_t left = ELEMS - first, most = header.leaf_count * (uint64_t)CAIRN_LEAF_ELEMS;
    const size_t count = left < most ? left : most;
    if (!is_chunk_of(published_by[header.step], node->index, &header)) {
        node->refused++;
        answer(node, header, CAIRN_CHUNK_NAK, CAIRN_ERR_MALFORMED);
        return;
    }
    float *data = malloc(count * sizeof *data);
    for (size_t i = 0; i < count; i++) data[i] = value_of(header.tensor, first + i, header.step);
    header.kind = CAIRN_CHUNK_DATA;
    say(node, &header, data, count * sizeof *data);
}

static void take_commit(struct node *node)
{
    uint32_t awaited = 0;
    for (uint32_t i = 0; i < NODES; i++) awaited |= (uint32_t)owns_any(in_force, i) << i;
    committed |= 1u << node->index;
    if (committed != awaited) return;
    committed = 0;
    for (uint32_t i = 0; i < FIRST; i++) fake_shard_report_reduced(&fake.shards[i]);
}

static void on_message(void *arg, const void *header, size_t header_bytes, size_t payload_bytes,
                       struct fabric_message *message)
{
    struct node *node = arg;
    struct chunk_header h;
    ck_assert_int_eq(chunk_decode(header, header_bytes, payload_bytes, &h), CAIRN_OK);
    if (message != NULL) fabric_drop(message);
    node->came[h.kind]++;
    switch (h.kind) {
    case CAIRN_CHUNK_HELLO: take_hello(node, &h); break;
    case CAIRN_CHUNK_PUSH:
        ck_assert(is_chunk_of(in_force, node->index, &h));
        answer(node, h, CAIRN_CHUNK_ACK, CAIRN_OK);
        break;
    case CAIRN_CHUNK_FETCH:
        if ((holding >> node->index & 1) == 0) answer_fetch(node, h);
        break;
    case CAIRN_CHUNK_MICRO_END: answer(node, h, CAIRN_CHUNK_MICRO_ACK, CAIRN_OK); break;
    case CAIRN_CHUNK_COMMIT: take_commit(node); break;
    default: break;
    }
}

/* ---- the word that a layout changed ---- */

static struct coord_session *session_of_worker(void)
{
    struct coord_job *known = coord_job_find(fake.cluster, "moving");
    return known != NULL && known->members.list != NULL ? known->members.list->session : NULL;
}

/* Of a table that may be another one's, as its first `bytes`. */
static void send_changed(uint64_t layout, uint64_t table, uint64_t since, size_t bytes)
{
    Cairn__LayoutChanged message = CAIRN__LAYOUT_CHANGED__INIT;
    Cairn__ShardInfo infos[NODES], *list[NODES];
    char shard_names[NODES][8];
    struct packed *packed = packed_layout(layouts[table]);
    packed->size = bytes < packed->size ? bytes : packed->size;
    message.job = fake.shards[0].job;
    message.layout = layout;
    message.since_generation = fake.shards[0].generation;
    message.since_step = since;
    message.layout_bytes = packed->size;
    message.shards = list;
    for (uint32_t i = 0; i < NODES; i++) {
        if (!owns_any(table, i)) continue; // it has left
        cairn__shard_info__init(&infos[i]);
        infos[i].index = i;
        snprintf(shard_names[i], sizeof shard_names[i], "s%u", i);
        infos[i].name = shard_names[i];
        infos[i].fabric_address.data = (uint8_t *)(uintptr_t)fabric_own_address(
            nodes[i].fabric, &infos[i].fabric_address.len);
        list[message.n_shards++] = &infos[i];
    }
    struct coord_session *to = session_of_worker();
    ck_assert_ptr_nonnull(to);
    coord_session_send(to, CAIRN_MSG_LAYOUT_CHANGED, 0, &message.base);
    coord_session_pages(to, 0, CAIRN_PAGE_LAYOUT, packed);
    packed_release(packed);
}

/* It is in force, and serves the steps from `since` on. */
static void change(uint64_t layout, uint64_t since)
{
    in_force = layout;
    for (uint64_t step = since; step < STEPS; step++) published_by[step] = layout;
    send_changed(layout, layout, since, SIZE_MAX);
}

/* ---- driving ---- */

static void pump(void)
{
    fake_pump(&fake);
    for (uint32_t i = 0; i < NODES; i++) fabric_progress(nodes[i].fabric);
    for (uint32_t i = 0; i < FIRST; i++)
        if (fake.shards[i].round == 0 || fake.shards[i].round == round_granted) return;
    round_granted = fake.shards[0].round; // it is open at all of them
    for (uint32_t i = 0; i < NODES; i++)
        if (nodes[i].peer != NULL) say_grant(&nodes[i]);
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

static void forget_counts(void)
{
    for (uint32_t i = 0; i < NODES; i++) {
        memset(nodes[i].came, 0, sizeof nodes[i].came);
        nodes[i].refused = 0;
    }
}

/* So many chunks of 2 leaves has the shard by that layout. */
static uint32_t chunks_of(uint64_t layout, uint32_t shard)
{
    struct shard_map map;
    if (shard >= layouts[layout]->shard_count) return 0;
    ck_assert_int_eq(shard_map_init(&map, layouts[layout], shard, 2), CAIRN_OK);
    const uint32_t chunks = (uint32_t)map.chunk_count;
    shard_map_release(&map);
    return chunks;
}

static void expect_all(unsigned kind, uint64_t layout)
{
    for (uint32_t i = 0; i < NODES; i++) {
        ck_assert_uint_eq(nodes[i].came[kind], chunks_of(layout, i));
        ck_assert_uint_eq(nodes[i].refused, 0);
    }
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
                                         .chunk_leaves = 2 };
    const struct cairn_opts opts = { .struct_size = sizeof opts, .endpoint = fake.listen };
    good(client_open(&opts, hub, &session));
    good(cairn_job_open(session, "moving", &spec, CAIRN_WORKER, WAIT_MS, &job));
    good(cairn_init_done(job, NULL, WAIT_MS));
}

static void detach(void)
{
    cairn_close(session);
}

static struct cairn_version newest, wanted;

static void step(void)
{
    struct cairn_round round = { .struct_size = sizeof round };
    struct cairn_result result = { .struct_size = sizeof result };
    const struct cairn_mem mem = { .struct_size = sizeof mem, .ptr = gradient, .dtype = CAIRN_F32 };
    good(cairn_round_begin(job, WAIT_MS, &round));
    for (int i = 0; i < TENSORS; i++) good(cairn_push(job, &round, 0, names[i], NULL, &mem, NULL));
    good(cairn_commit(job, &round, 1, NULL, 0, WAIT_MS, &result));
    newest = result.version;
}

static void check(uint32_t tensor, const float *values)
{
    for (uint64_t i = 0; i < ELEMS; i++)
        if (values[i] != value_of(tensor, i, wanted.step))
            ck_abort_msg("tensor %u, element %u", tensor, (unsigned)i);
}

/* All tensors, at version `wanted`. */
static void fetch(void)
{
    cairn_op *ops[TENSORS];
    memset(got, 0xff, sizeof got);
    for (int i = 0; i < TENSORS; i++) {
        const struct cairn_mem mem = { .struct_size = sizeof mem,
                                       .ptr = got[i],
                                       .dtype = CAIRN_F32 };
        good(cairn_fetch(job, wanted, names[i], NULL, NULL, &mem, &ops[i]));
    }
    for (int i = 0; i < TENSORS; i++) {
        good(cairn_wait(ops[i], WAIT_MS));
        check((uint32_t)i, got[i]);
    }
}

static void map_units(void)
{
    for (int i = 0; i < TENSORS; i++) {
        struct cairn_view view = { .struct_size = sizeof view };
        size_t count = 1;
        cairn_op *op;
        good(cairn_map(job, wanted, names[i], &view, &count, &op));
        good(cairn_wait(op, WAIT_MS));
        check((uint32_t)i, view.ptr);
        good(cairn_unmap(job, &view, NULL));
    }
}

static void prefetch(void)
{
    good(cairn_prefetch(job, wanted, names, TENSORS));
}

/* ---- the scene ---- */

static void open_node(uint32_t i)
{
    struct sentence why = { "" };
    const struct fabric_options options = { .on_message = on_message,
                                            .on_message_arg = &nodes[i],
                                            .max_payload = CAIRN_CHUNK_PAYLOAD_MAX,
                                            .hub = hub };
    nodes[i] = (struct node) { .index = i, .endpoint = 1 };
    ck_assert_msg(fabric_open("mem", &options, &nodes[i].fabric, &why) == CAIRN_OK, "%s", why.text);
    if (i >= FIRST) return;
    fake.shards[i].address = fabric_own_address(nodes[i].fabric, &fake.shards[i].address_bytes);
    fake.shards[i].holds_reduced = true;
}

/* A job of two shards at step 1. */
static void open_scene(void)
{
    const struct cairn_fabric_mem_options options = { .seed = 5, .delay_max_ticks = 3 };
    ck_assert_int_eq(cairn_fabric_mem_hub_open(&options, &hub), CAIRN_OK);
    fake_open(&fake, FIRST);
    for (uint32_t i = 0; i < NODES; i++) open_node(i);
    fake_shards_up(&fake, FIRST);
    call(attach);
    const struct layout *first = fake.shards[0].layout;
    ck_assert_uint_eq(first->version, 1);
    make_layout(1, FIRST, first->extents, first->extent_count);
    ck_assert_mem_eq(layouts[1]->hash, first->hash, sizeof first->hash);
    in_force = 1;
    for (int i = 0; i < STEPS; i++) published_by[i] = 1;
    call(step);
    ck_assert_uint_eq(newest.step, 1);
    wanted = newest;
    forget_counts();
}

static void close_scene(void)
{
    call(detach);
    for (uint32_t i = 0; i < NODES; i++) fabric_close(nodes[i].fabric);
    for (int i = 0; i < LAYOUTS; i++) layout_close(layouts[i]);
    fake_close(&fake);
    cairn_fabric_mem_hub_close(hub);
}

/* The tensor, and the shard that has its last quanta. */
static uint32_t tensor_on(uint32_t shard)
{
    uint32_t tensor = 0;
    while (owner_of(1, tensor, QUANTA - 1) != shard) tensor++;
    return tensor;
}

/* Layout 2: three quanta of a tensor of shard 0 go to another one. */
static void move_to(uint32_t shard)
{
    make_moved(2, shard + 1 > FIRST ? shard + 1 : FIRST, tensor_on(0), 2, 3, shard);
    ck_assert_uint_eq(owner_of(2, tensor_on(0), 4), shard);
}

TEST(each_version_is_fetched_from_those_who_published_it_and_pushes_go_to_the_new_owners)
{
    move_to(1);
    change(2, 2);
    call(fetch);
    expect_all(CAIRN_CHUNK_FETCH, 1);
    forget_counts();
    call(step);
    expect_all(CAIRN_CHUNK_PUSH, 2);
    wanted = newest;
    call(fetch);
    expect_all(CAIRN_CHUNK_FETCH, 2);
    forget_counts();
    wanted.step = 1;
    call(fetch);
    expect_all(CAIRN_CHUNK_FETCH, 1);
}

TEST(several_changes_between_two_versions_are_as_one)
{
    move_to(1);
    make_moved(3, FIRST, tensor_on(1), 4, 1, 0);
    make_moved(4, FIRST, tensor_on(1), 3, 1, 0);
    change(2, 2);
    change(3, 2);
    change(4, 2);
    call(fetch);
    expect_all(CAIRN_CHUNK_FETCH, 1);
    call(step);
    expect_all(CAIRN_CHUNK_PUSH, 4);
    forget_counts();
    wanted = newest;
    call(map_units);
    expect_all(CAIRN_CHUNK_FETCH, 4);
}

TEST(a_shard_that_joins_is_pushed_to_and_fetched_from)
{
    move_to(2);
    change(2, 2);
    call(step);
    expect_all(CAIRN_CHUNK_PUSH, 2);
    ck_assert_uint_gt(nodes[2].came[CAIRN_CHUNK_PUSH], 0);
    ck_assert_uint_eq(nodes[2].came[CAIRN_CHUNK_COMMIT], 1);
    wanted = newest;
    call(fetch);
    expect_all(CAIRN_CHUNK_FETCH, 2);
}

TEST(a_shard_that_has_left_is_read_but_takes_no_part_in_rounds)
{
    const uint32_t gone = owner_of(1, 0, 0);
    make_drained(2, gone, 1 - gone);
    change(2, 2);
    call(fetch);
    expect_all(CAIRN_CHUNK_FETCH, 1);
    forget_counts();
    call(step);
    expect_all(CAIRN_CHUNK_PUSH, 2);
    ck_assert_uint_eq(nodes[gone].came[CAIRN_CHUNK_MICRO_END], 0);
    ck_assert_uint_eq(nodes[gone].came[CAIRN_CHUNK_COMMIT], 0);
    call(fetch);
    ck_assert_uint_eq(nodes[gone].came[CAIRN_CHUNK_FETCH], chunks_of(1, gone));
    for (int i = 0; i < 3; i++) call(step);
    wanted = newest;
    forget_counts();
    call(fetch);
    expect_all(CAIRN_CHUNK_FETCH, 2);
}

/* What stands at its old owner only is asked for in the middle of a prefetch. */
TEST(a_prefetch_that_meets_a_change_goes_on_by_it)
{
    move_to(1);
    holding = 3;
    call(prefetch);
    // Both units of the window are asked for whole: no fetch by the old layout comes after the change.
    const uint32_t all = 2 * ((ELEMS + 2 * CAIRN_LEAF_ELEMS - 1) / (2 * CAIRN_LEAF_ELEMS));
    until(nodes[0].came[CAIRN_CHUNK_FETCH] + nodes[1].came[CAIRN_CHUNK_FETCH] == all);
    holding = 0;
    change(2, 1); // published once more
    caller_begin(map_units);
    finish();
    ck_assert_uint_eq(nodes[0].refused + nodes[1].refused, 0);
}

TEST(who_knows_no_such_chunk_is_not_believed_before_the_word_of_the_coordinator)
{
    move_to(2);
    in_force = published_by[1] = 2;
    caller_begin(fetch);
    until(nodes[0].refused >= 3);
    change(2, 1);
    finish();
    ck_assert_uint_gt(nodes[2].came[CAIRN_CHUNK_FETCH], 0);
}

static uint32_t vain; /* the tensor */

static void fetch_in_vain(void)
{
    cairn_op *op;
    const struct cairn_mem mem = { .struct_size = sizeof mem,
                                   .ptr = got[vain],
                                   .dtype = CAIRN_F32 };
    good(cairn_fetch(job, wanted, names[vain], NULL, NULL, &mem, &op));
    fails(cairn_wait(op, WAIT_MS), CAIRN_ERR_VERSION_GONE, "take the newest");
}

TEST(what_was_asked_of_a_shard_that_is_gone_is_gone)
{
    const uint32_t gone = owner_of(1, 0, 0);
    make_drained(2, gone, 1 - gone);
    holding = 1u << gone;
    caller_begin(fetch_in_vain);
    until(nodes[gone].came[CAIRN_CHUNK_FETCH] > 0);
    change(2, 2);
    Cairn__ShardsChanged message = CAIRN__SHARDS_CHANGED__INIT;
    Cairn__ShardInfo info = CAIRN__SHARD_INFO__INIT, *list[] = { &info };
    info.index = gone;
    message.job = fake.shards[0].job;
    message.shards = list;
    message.n_shards = 1;
    coord_session_send(session_of_worker(), CAIRN_MSG_SHARDS_CHANGED, 0, &message.base);
    finish();
}

/* Attached tells of the layout of the newest version; what is in force, LayoutChanged says. */
TEST(a_worker_that_attaches_again_in_the_middle_goes_on_by_both)
{
    move_to(1);
    change(2, 2);
    call(fetch);
    fake_coordinator_stop(&fake);
    fake_coordinator_start(&fake);
    fake_layout_number(&fake, "moving", 2);
    for (uint32_t i = 0; i < FIRST; i++) fake_shard_up(&fake, i);
    until(session_of_worker() != NULL &&
          session_of_worker()->members->phase == CAIRN_MEMBER_ATTACHED);
    send_changed(2, 2, 2, SIZE_MAX);
    forget_counts();
    call(fetch);
    expect_all(CAIRN_CHUNK_FETCH, 1);
    call(step);
    expect_all(CAIRN_CHUNK_PUSH, 2);
    forget_counts();
    wanted = newest;
    call(fetch);
    expect_all(CAIRN_CHUNK_FETCH, 2);
}

static void begin_in_vain(void)
{
    struct cairn_round round = { .struct_size = sizeof round };
    fails(cairn_round_begin(job, WAIT_MS, &round), CAIRN_ERR_ROLLED_BACK, "is an older copy");
}

/* The coordinator's store is as it was before the change. What is pushed by the later layout would come to
 * shards that do not wait for it. */
TEST(a_worker_that_knows_a_later_layout_than_the_one_in_force_has_to_open_the_job_anew)
{
    move_to(1);
    change(2, 2);
    call(fetch);
    fake_coordinator_stop(&fake);
    fake_coordinator_start(&fake);
    for (uint32_t i = 0; i < FIRST; i++) fake_shard_up(&fake, i);
    forget_counts();
    call(begin_in_vain);
    for (uint32_t i = 0; i < NODES; i++) ck_assert_uint_eq(nodes[i].came[CAIRN_CHUNK_PUSH], 0);
}

static bool has_failed(const struct job *inside)
{
    pthread_mutex_lock(&inside->session->lock);
    const bool failed = inside->failure.status != CAIRN_OK;
    pthread_mutex_unlock(&inside->session->lock);
    return failed;
}

/* Nobody waits in a call for what is repeated. Without the error the worker would go on with what it does,
 * and be put out at the step's deadline. */
TEST(a_repeated_pause_that_is_refused_is_the_worker_s_error)
{
    struct cairn_round round = { .struct_size = sizeof round };
    struct job *inside = handle_get(CAIRN_HANDLE_JOB, job);
    pthread_mutex_lock(&inside->session->lock);
    inside->pause.ends_ms = monotonic_ms() + 60000;
    inside->pause.what[0] = 1; // no text, so that it is refused
    pthread_mutex_unlock(&inside->session->lock);
    fake_coordinator_stop(&fake);
    fake_coordinator_start(&fake);
    for (uint32_t i = 0; i < FIRST; i++) fake_shard_up(&fake, i);
    until(has_failed(inside));
    handle_put(job);
    ck_assert_int_eq(cairn_round_begin(job, WAIT_MS, &round), CAIRN_ERR_INVALID);
    ck_assert_msg(strstr(cairn_error(), "a pause's purpose has") != NULL, "%s", cairn_error());
}

/* The coordinator is another one; meanwhile that layout has come into force, and has published `step`. */
static void change_while_away(uint64_t layout, uint64_t step)
{
    fake_coordinator_stop(&fake);
    fake_coordinator_start(&fake);
    struct coord_job *known = coord_job_find(fake.cluster, "moving");
    packed_release(known->planned.layout);
    known->planned.layout = packed_layout(layouts[layout]);
    in_force = published_by[step] = layout;
    for (uint32_t i = 0; i < FIRST; i++) fake_shard_up(&fake, i);
    until(session_of_worker() != NULL &&
          session_of_worker()->members->phase == CAIRN_MEMBER_ATTACHED);
}

/* Several changes went by while it was away: only what holds now is told. */
TEST(a_worker_that_missed_changes_takes_the_layout_that_it_finds)
{
    move_to(2);
    make_moved(3, NODES, tensor_on(1), 4, 1, 2);
    change_while_away(3, 1);
    send_changed(3, 3, 1, SIZE_MAX); // with the address of the new shard
    forget_counts();
    call(fetch);
    expect_all(CAIRN_CHUNK_FETCH, 3);
    call(step);
    expect_all(CAIRN_CHUNK_PUSH, 3);
}

/* The word was lost with the coordinator that gave it; who had the version before may have ended since. */
TEST(a_worker_that_missed_that_a_version_was_published_anew_takes_it_from_the_new_owners)
{
    move_to(1);
    change(2, 2);
    call(fetch);
    change_while_away(2, 1);
    forget_counts();
    call(fetch);
    expect_all(CAIRN_CHUNK_FETCH, 2);
}

/* No word will come of what was published meanwhile. */
TEST(what_was_published_while_it_was_away_is_gone)
{
    move_to(2);
    make_moved(3, NODES, tensor_on(1), 4, 1, 2);
    wanted = newest;
    call(step);
    change_while_away(3, 2);
    published_by[1] = 3;
    vain = tensor_on(1);
    call(fetch_in_vain);
}

/* Each write makes a generation of its own, of which a member that only reads may not have heard. */
TEST(a_member_that_missed_changes_and_writes_takes_the_layout_that_it_finds)
{
    move_to(1);
    struct job *inside = api_job(job);
    inside->known.newest.generation = 0;
    api_leave(&inside);
    change_while_away(2, 1);
    forget_counts();
    call(fetch);
    expect_all(CAIRN_CHUNK_FETCH, 2);
}

/* The owners of layout 3 are those of layout 1, whose numbers are no younger than those of layout 2. */
TEST(a_worker_that_missed_a_way_back_takes_it_for_what_is_newest)
{
    move_to(1);
    make_layout(3, FIRST, layouts[1]->extents, layouts[1]->extent_count);
    change(2, 1);
    call(fetch);
    change_while_away(3, 1);
    forget_counts();
    call(fetch);
    expect_all(CAIRN_CHUNK_FETCH, 3);
    call(step);
    expect_all(CAIRN_CHUNK_PUSH, 3);
}

static void lease(void)
{
    struct cairn_version out;
    good(cairn_lease(job, wanted, 60000, WAIT_MS, &out));
}

TEST(what_is_leased_is_fetched_by_its_layout_however_old_it_is)
{
    move_to(1);
    call(lease);
    change(2, 2);
    for (int i = 0; i < 4; i++) call(step);
    forget_counts();
    call(fetch);
    expect_all(CAIRN_CHUNK_FETCH, 1);
}

static const char *word;

static void expect_failure(void)
{
    struct cairn_version out;
    const uint64_t end_ms = monotonic_ms() + WAIT_MS;
    cairn_status status = CAIRN_OK;
    while (status == CAIRN_OK && monotonic_ms() < end_ms)
        status = cairn_version_wait(job, wanted, WAIT_MS, &out);
    ck_assert_msg(status != CAIRN_OK && strstr(cairn_error(), word) != NULL, "%d: %s", (int)status,
                  cairn_error());
}

TEST_EACH(a_layout_that_does_not_fit_ends_the_job_and_says_what_came, 0, 5)
{
    static const struct {
        const char *word;
        uint64_t layout, table;
        size_t bytes;
    } cases[] = {
        { "sent a layout 2 of 60 bytes that is not one of this job", 2, 2, 60 },
        { "is empty, or too large", 2, 2, 0 },
        { "announced layout 3 and sent layout 2", 3, 2, SIZE_MAX },
        { "sent layout 2 after layout 3", 2, 2, SIZE_MAX },
        { "sent another layout 3 than before", 3, 3, SIZE_MAX },
    };
    move_to(1);
    make_moved(3, FIRST, tensor_on(1), 4, 1, 0);
    if (_i >= 3) change(3, 2);
    if (_i == 4) {
        layout_close(layouts[3]);
        make_moved(3, FIRST, tensor_on(1), 3, 2, 0);
    }
    send_changed(cases[_i].layout, cases[_i].table, 2, cases[_i].bytes);
    word = cases[_i].word;
    call(expect_failure);
}

SUITE(40, open_scene, close_scene);
