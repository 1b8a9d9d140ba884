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
#include "tests/support/client_script.h"
#include "tests/support/suite.h"

enum { FIRST = 2, NODES = SCRIPT_NODES, TENSORS = SCRIPT_TENSORS, ELEMS = SCRIPT_ELEMS };
enum { QUANTA = 5, LAYOUTS = 8, STEPS = 16, WAIT_MS = SCRIPT_WAIT_MS };

/* What came to a shard. */
static struct {
    uint32_t came[16]; /* by kind */
    uint32_t refused;  /* fetches of chunks that it does not know */
} counts[NODES];

static struct layout *layouts[LAYOUTS]; /* by their version */
static uint64_t in_force;               /* whose pushes nodes take */
static uint64_t published_by[STEPS];    /* the layout of a step's copies; 0: as in_force was */
static uint32_t committed;              /* nodes, by bit */
static uint32_t holding;                /* fetches: nodes, by bit */

static float got[TENSORS][ELEMS];

/* ---- layouts ---- */

static void make_layout(uint64_t version, uint32_t shards, struct extent *extents, size_t count)
{
    struct layout_tensor tensors[TENSORS];
    for (int t = 0; t < TENSORS; t++)
        tensors[t] = (struct layout_tensor) { .name = script_names[t],
                                              .unit = script_names[t],
                                              .shape = { 1, { ELEMS } },
                                              .elem_bytes = 4 };
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

/* What was published by another layout, the shard knows no chunk of. */
static void answer_fetch(struct script_node *node, const struct chunk_header *header)
{
    if (is_chunk_of(published_by[header->step], node->index, header)) {
        script_answer_fetch(node, node->index, header);
        return;
    }
    counts[node->index].refused++;
    script_answer(node, node->index, header, CAIRN_CHUNK_NAK, CAIRN_ERR_MALFORMED);
}

static void take_commit(const struct script_node *node)
{
    uint32_t awaited = 0;
    for (uint32_t i = 0; i < NODES; i++) awaited |= (uint32_t)owns_any(in_force, i) << i;
    committed |= 1u << node->index;
    if (committed != awaited) return;
    committed = 0;
    for (uint32_t i = 0; i < FIRST; i++) fake_shard_report_reduced(&script_fake.shards[i]);
}

static void hear(struct script_node *node, const struct chunk_header *h, bool in_place)
{
    (void)in_place;
    counts[node->index].came[h->kind]++;
    switch (h->kind) {
    case CAIRN_CHUNK_PUSH:
        ck_assert(is_chunk_of(in_force, node->index, h));
        script_answer(node, node->index, h, CAIRN_CHUNK_ACK, CAIRN_OK);
        break;
    case CAIRN_CHUNK_FETCH:
        if ((holding >> node->index & 1) == 0) answer_fetch(node, h);
        break;
    case CAIRN_CHUNK_MICRO_END:
        script_answer(node, node->index, h, CAIRN_CHUNK_MICRO_ACK, CAIRN_OK);
        break;
    case CAIRN_CHUNK_COMMIT: take_commit(node); break;
    default: break;
    }
}

static void grant(struct script_node *node)
{
    script_say_grant(node, node->index, 0);
}

/* ---- the word that a layout changed ---- */

static struct coord_session *session_of_worker(void)
{
    struct coord_job *known = coord_job_find(script_fake.cluster, "moving");
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
    message.job = script_fake.shards[0].job;
    message.layout = layout;
    message.since_generation = script_fake.shards[0].generation;
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
            script_nodes[i].fabric, &infos[i].fabric_address.len);
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

static void forget_counts(void)
{
    memset(counts, 0, sizeof counts);
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
        ck_assert_uint_eq(counts[i].came[kind], chunks_of(layout, i));
        ck_assert_uint_eq(counts[i].refused, 0);
    }
}

/* ---- a worker's side ---- */

static struct cairn_version newest, wanted;

static void step(void)
{
    script_step();
    newest = script_result.version;
}

static void check(uint32_t tensor, const float *values)
{
    for (uint64_t i = 0; i < ELEMS; i++)
        if (values[i] != script_value(tensor, i, wanted.step))
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
        good(cairn_fetch(script_job, wanted, script_names[i], NULL, NULL, &mem, &ops[i]));
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
        good(cairn_map(script_job, wanted, script_names[i], &view, &count, &op));
        good(cairn_wait(op, WAIT_MS));
        check((uint32_t)i, view.ptr);
        good(cairn_unmap(script_job, &view, NULL));
    }
}

static void prefetch(void)
{
    good(cairn_prefetch(script_job, wanted, script_names, TENSORS));
}

/* ---- the scene ---- */

/* A job of two shards at step 1. */
static void open_scene(void)
{
    const struct cairn_fabric_mem_options options = { .seed = 5, .delay_max_ticks = 3 };
    script = (struct script) {
        .job = "moving", .shards = FIRST, .chunk_leaves = 2, .hear = hear, .grant = grant
    };
    ck_assert_int_eq(cairn_fabric_mem_hub_open(&options, &script_hub), CAIRN_OK);
    script_open();
    for (uint32_t i = 0; i < NODES; i++) script_node_open(i, "mem");
    fake_shards_up(&script_fake, FIRST);
    script_call(script_attach);
    const struct layout *first = script_fake.shards[0].layout;
    ck_assert_uint_eq(first->version, 1);
    make_layout(1, FIRST, first->extents, first->extent_count);
    ck_assert_mem_eq(layouts[1]->hash, first->hash, sizeof first->hash);
    in_force = 1;
    for (int i = 0; i < STEPS; i++) published_by[i] = 1;
    script_call(step);
    ck_assert_uint_eq(newest.step, 1);
    wanted = newest;
    forget_counts();
}

static void close_scene(void)
{
    script_call(script_detach);
    for (int i = 0; i < LAYOUTS; i++) layout_close(layouts[i]);
    script_close();
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
    script_call(fetch);
    expect_all(CAIRN_CHUNK_FETCH, 1);
    forget_counts();
    script_call(step);
    expect_all(CAIRN_CHUNK_PUSH, 2);
    wanted = newest;
    script_call(fetch);
    expect_all(CAIRN_CHUNK_FETCH, 2);
    forget_counts();
    wanted.step = 1;
    script_call(fetch);
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
    script_call(fetch);
    expect_all(CAIRN_CHUNK_FETCH, 1);
    script_call(step);
    expect_all(CAIRN_CHUNK_PUSH, 4);
    forget_counts();
    wanted = newest;
    script_call(map_units);
    expect_all(CAIRN_CHUNK_FETCH, 4);
}

TEST(a_shard_that_joins_is_pushed_to_and_fetched_from)
{
    move_to(2);
    change(2, 2);
    script_call(step);
    expect_all(CAIRN_CHUNK_PUSH, 2);
    ck_assert_uint_gt(counts[2].came[CAIRN_CHUNK_PUSH], 0);
    ck_assert_uint_eq(counts[2].came[CAIRN_CHUNK_COMMIT], 1);
    wanted = newest;
    script_call(fetch);
    expect_all(CAIRN_CHUNK_FETCH, 2);
}

TEST(a_shard_that_has_left_is_read_but_takes_no_part_in_rounds)
{
    const uint32_t gone = owner_of(1, 0, 0);
    make_drained(2, gone, 1 - gone);
    change(2, 2);
    script_call(fetch);
    expect_all(CAIRN_CHUNK_FETCH, 1);
    forget_counts();
    script_call(step);
    expect_all(CAIRN_CHUNK_PUSH, 2);
    ck_assert_uint_eq(counts[gone].came[CAIRN_CHUNK_MICRO_END], 0);
    ck_assert_uint_eq(counts[gone].came[CAIRN_CHUNK_COMMIT], 0);
    script_call(fetch);
    ck_assert_uint_eq(counts[gone].came[CAIRN_CHUNK_FETCH], chunks_of(1, gone));
    for (int i = 0; i < 3; i++) script_call(step);
    wanted = newest;
    forget_counts();
    script_call(fetch);
    expect_all(CAIRN_CHUNK_FETCH, 2);
}

/* What stands at its old owner only is asked for in the middle of a prefetch. */
TEST(a_prefetch_that_meets_a_change_goes_on_by_it)
{
    move_to(1);
    holding = 3;
    script_call(prefetch);
    // Both units of the window are asked for whole: no fetch by the old layout comes after the change.
    const uint32_t all = 2 * ((ELEMS + 2 * CAIRN_LEAF_ELEMS - 1) / (2 * CAIRN_LEAF_ELEMS));
    script_until(counts[0].came[CAIRN_CHUNK_FETCH] + counts[1].came[CAIRN_CHUNK_FETCH] == all);
    holding = 0;
    change(2, 1); // published once more
    caller_begin(map_units);
    script_finish();
    ck_assert_uint_eq(counts[0].refused + counts[1].refused, 0);
}

TEST(who_knows_no_such_chunk_is_not_believed_before_the_word_of_the_coordinator)
{
    move_to(2);
    in_force = published_by[1] = 2;
    caller_begin(fetch);
    script_until(counts[0].refused >= 3);
    change(2, 1);
    script_finish();
    ck_assert_uint_gt(counts[2].came[CAIRN_CHUNK_FETCH], 0);
}

static uint32_t vain; /* the tensor */

static void fetch_in_vain(void)
{
    cairn_op *op;
    const struct cairn_mem mem = { .struct_size = sizeof mem,
                                   .ptr = got[vain],
                                   .dtype = CAIRN_F32 };
    good(cairn_fetch(script_job, wanted, script_names[vain], NULL, NULL, &mem, &op));
    fails(cairn_wait(op, WAIT_MS), CAIRN_ERR_VERSION_GONE, "take the newest");
}

TEST(what_was_asked_of_a_shard_that_is_gone_is_gone)
{
    const uint32_t gone = owner_of(1, 0, 0);
    make_drained(2, gone, 1 - gone);
    holding = 1u << gone;
    caller_begin(fetch_in_vain);
    script_until(counts[gone].came[CAIRN_CHUNK_FETCH] > 0);
    change(2, 2);
    Cairn__ShardsChanged message = CAIRN__SHARDS_CHANGED__INIT;
    Cairn__ShardInfo info = CAIRN__SHARD_INFO__INIT, *list[] = { &info };
    info.index = gone;
    message.job = script_fake.shards[0].job;
    message.shards = list;
    message.n_shards = 1;
    coord_session_send(session_of_worker(), CAIRN_MSG_SHARDS_CHANGED, 0, &message.base);
    script_finish();
}

/* Attached tells of the layout of the newest version; what is in force, LayoutChanged says. */
TEST(a_worker_that_attaches_again_in_the_middle_goes_on_by_both)
{
    move_to(1);
    change(2, 2);
    script_call(fetch);
    fake_coordinator_stop(&script_fake);
    fake_coordinator_start(&script_fake);
    fake_layout_number(&script_fake, "moving", 2);
    for (uint32_t i = 0; i < FIRST; i++) fake_shard_up(&script_fake, i);
    script_until(session_of_worker() != NULL &&
                 session_of_worker()->members->phase == CAIRN_MEMBER_ATTACHED);
    send_changed(2, 2, 2, SIZE_MAX);
    forget_counts();
    script_call(fetch);
    expect_all(CAIRN_CHUNK_FETCH, 1);
    script_call(step);
    expect_all(CAIRN_CHUNK_PUSH, 2);
    forget_counts();
    wanted = newest;
    script_call(fetch);
    expect_all(CAIRN_CHUNK_FETCH, 2);
}

static void begin_in_vain(void)
{
    struct cairn_round round = { .struct_size = sizeof round };
    fails(cairn_round_begin(script_job, WAIT_MS, &round), CAIRN_ERR_ROLLED_BACK,
          "is an older copy");
}

/* The coordinator's store is as it was before the change. What is pushed by the later layout would come to
 * shards that do not wait for it. */
TEST(a_worker_that_knows_a_later_layout_than_the_one_in_force_has_to_open_the_job_anew)
{
    move_to(1);
    change(2, 2);
    script_call(fetch);
    fake_coordinator_stop(&script_fake);
    fake_coordinator_start(&script_fake);
    for (uint32_t i = 0; i < FIRST; i++) fake_shard_up(&script_fake, i);
    forget_counts();
    script_call(begin_in_vain);
    for (uint32_t i = 0; i < NODES; i++) ck_assert_uint_eq(counts[i].came[CAIRN_CHUNK_PUSH], 0);
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
    struct job *inside = handle_get(CAIRN_HANDLE_JOB, script_job);
    pthread_mutex_lock(&inside->session->lock);
    inside->pause.ends_ms = monotonic_ms() + 60000;
    inside->pause.what[0] = 1; // no text, so that it is refused
    pthread_mutex_unlock(&inside->session->lock);
    fake_coordinator_stop(&script_fake);
    fake_coordinator_start(&script_fake);
    for (uint32_t i = 0; i < FIRST; i++) fake_shard_up(&script_fake, i);
    script_until(has_failed(inside));
    handle_put(script_job);
    ck_assert_int_eq(cairn_round_begin(script_job, WAIT_MS, &round), CAIRN_ERR_INVALID);
    ck_assert_msg(strstr(cairn_error(), "a pause's purpose has") != NULL, "%s", cairn_error());
}

/* The coordinator is another one; meanwhile that layout has come into force, and has published `step`. */
static void change_while_away(uint64_t layout, uint64_t step)
{
    fake_coordinator_stop(&script_fake);
    fake_coordinator_start(&script_fake);
    struct coord_job *known = coord_job_find(script_fake.cluster, "moving");
    packed_release(known->planned.layout);
    known->planned.layout = packed_layout(layouts[layout]);
    in_force = published_by[step] = layout;
    for (uint32_t i = 0; i < FIRST; i++) fake_shard_up(&script_fake, i);
    script_until(session_of_worker() != NULL &&
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
    script_call(fetch);
    expect_all(CAIRN_CHUNK_FETCH, 3);
    script_call(step);
    expect_all(CAIRN_CHUNK_PUSH, 3);
}

/* The word was lost with the coordinator that gave it; who had the version before may have ended since. */
TEST(a_worker_that_missed_that_a_version_was_published_anew_takes_it_from_the_new_owners)
{
    move_to(1);
    change(2, 2);
    script_call(fetch);
    change_while_away(2, 1);
    forget_counts();
    script_call(fetch);
    expect_all(CAIRN_CHUNK_FETCH, 2);
}

/* No word will come of what was published meanwhile. */
TEST(what_was_published_while_it_was_away_is_gone)
{
    move_to(2);
    make_moved(3, NODES, tensor_on(1), 4, 1, 2);
    wanted = newest;
    script_call(step);
    change_while_away(3, 2);
    published_by[1] = 3;
    vain = tensor_on(1);
    script_call(fetch_in_vain);
}

/* Each write makes a generation of its own, of which a member that only reads may not have heard. */
TEST(a_member_that_missed_changes_and_writes_takes_the_layout_that_it_finds)
{
    move_to(1);
    struct job *inside = api_job(script_job);
    inside->known.newest.generation = 0;
    api_leave(&inside);
    change_while_away(2, 1);
    forget_counts();
    script_call(fetch);
    expect_all(CAIRN_CHUNK_FETCH, 2);
}

/* A standby that takes a place has the number of the shard whose place that was, and another name. */
TEST(a_worker_that_missed_changes_and_a_standby_s_taking_a_place_takes_the_layout_that_it_finds)
{
    move_to(1);
    struct job *inside = api_job(script_job);
    snprintf(inside->shards.links[1]->name, sizeof inside->shards.links[1]->name, "former");
    api_leave(&inside);
    change_while_away(2, 1);
    forget_counts();
    script_call(fetch);
    expect_all(CAIRN_CHUNK_FETCH, 2);
}

/* The owners of layout 3 are those of layout 1, whose numbers are no younger than those of layout 2. */
TEST(a_worker_that_missed_a_way_back_takes_it_for_what_is_newest)
{
    move_to(1);
    make_layout(3, FIRST, layouts[1]->extents, layouts[1]->extent_count);
    change(2, 1);
    script_call(fetch);
    change_while_away(3, 1);
    forget_counts();
    script_call(fetch);
    expect_all(CAIRN_CHUNK_FETCH, 3);
    script_call(step);
    expect_all(CAIRN_CHUNK_PUSH, 3);
}

static void lease(void)
{
    struct cairn_version out;
    good(cairn_lease(script_job, wanted, 60000, WAIT_MS, &out));
}

TEST(what_is_leased_is_fetched_by_its_layout_however_old_it_is)
{
    move_to(1);
    script_call(lease);
    change(2, 2);
    for (int i = 0; i < 4; i++) script_call(step);
    forget_counts();
    script_call(fetch);
    expect_all(CAIRN_CHUNK_FETCH, 1);
}

static const char *word;

static void expect_failure(void)
{
    struct cairn_version out;
    const uint64_t end_ms = monotonic_ms() + WAIT_MS;
    cairn_status status = CAIRN_OK;
    while (status == CAIRN_OK && monotonic_ms() < end_ms)
        status = cairn_version_wait(script_job, wanted, WAIT_MS, &out);
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
    script_call(expect_failure);
}

SUITE(40, open_scene, close_scene);
