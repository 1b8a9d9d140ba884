#include "tests/support/client_script.h"

#include <check.h>
#include <stdlib.h>
#include <string.h>

#include "client/job.h"

struct script script;
struct fake_cluster script_fake;
struct fabric_hub *script_hub;
struct script_node script_nodes[SCRIPT_NODES];
cairn *script_session;
cairn_job *script_job;
const char *const script_names[SCRIPT_TENSORS] = { "a", "b", "c" };
struct cairn_round script_round;
struct cairn_result script_result;
cairn_status script_status;

static uint64_t round_granted;
static float gradient[SCRIPT_ELEMS];

/* ---- a shard's side ---- */

float script_value(uint32_t tensor, uint64_t elem, uint64_t step)
{
    return (float)(tensor * 100 + step) + (float)elem / SCRIPT_ELEMS;
}

static void on_data_sent(void *arg, cairn_status status)
{
    (void)status;
    free(arg);
}

void script_say(struct script_node *node, uint32_t owner, struct chunk_header *header,
                void *payload, size_t bytes)
{
    const struct fake_shard *shard = &script_fake.shards[0]; // whom the worker is known to as any
    uint8_t out[CAIRN_CHUNK_HEADER_BYTES];
    header->job = shard->job;
    header->member = shard->member;
    header->token = shard->token;
    header->tile = owner;
    header->payload_bytes = bytes;
    header->checksum = chunk_checksum(payload, bytes);
    if (payload != NULL && script.damages > 0) {
        ((uint8_t *)payload)[bytes / 2] ^= 1;
        script.damages--;
    }
    chunk_encode(header, out);
    if (fabric_send(node->peer, out, sizeof out, payload, bytes,
                    payload != NULL ? on_data_sent : NULL, payload) != CAIRN_OK)
        free(payload); // it is cut
}

void script_answer(struct script_node *node, uint32_t owner, const struct chunk_header *header,
                   unsigned kind, uint64_t value)
{
    struct chunk_header said = *header;
    said.kind = (uint8_t)kind;
    said.value = value;
    script_say(node, owner, &said, NULL, 0);
}

void script_answer_fetch(struct script_node *node, uint32_t owner,
                         const struct chunk_header *header)
{
    struct chunk_header said = *header;
    const uint64_t first = header->first_leaf * CAIRN_LEAF_ELEMS;
    const uint64_t left = SCRIPT_ELEMS - first,
                   most = header->leaf_count * (uint64_t)CAIRN_LEAF_ELEMS;
    const size_t count = left < most ? left : most;
    float *data = malloc(count * sizeof *data);
    for (size_t i = 0; i < count; i++)
        data[i] = script_value(header->tensor, first + i, header->step);
    said.kind = CAIRN_CHUNK_DATA;
    said.value = 0; // it has a checksum
    script_say(node, owner, &said, data, count * sizeof *data);
}

void script_say_hello(struct script_node *node)
{
    struct chunk_header hello = { .kind = CAIRN_CHUNK_HELLO };
    hello.request = CAIRN_CHUNK_WAY(node->endpoint, node->connection);
    script_say(node, node->index, &hello, NULL, 0);
}

void script_say_grant(struct script_node *node, uint32_t owner, uint32_t mark)
{
    const struct fake_shard *shard = &script_fake.shards[0];
    struct chunk_header grant = { .kind = CAIRN_CHUNK_GRANT, .value = 64, .tensor = mark };
    if (shard->round == 0) return;
    grant.epoch = shard->epoch;
    grant.round = shard->round;
    grant.request = CAIRN_CHUNK_WAY(node->endpoint, node->connection);
    script_say(node, owner, &grant, NULL, 0);
}

static void take_hello(struct script_node *node, const struct chunk_header *h)
{
    const struct fake_shard *shard = &script_fake.shards[0];
    if (node->peer == NULL)
        ck_assert_int_eq(fabric_connect_to(node->fabric, shard->member_address,
                                           shard->member_address_bytes, NULL, NULL, &node->peer),
                         CAIRN_OK);
    node->connection = (uint32_t)h->request;
    script_say_hello(node);
    script.grant(node);
}

static void on_message(void *arg, const void *header, size_t header_bytes, size_t payload_bytes,
                       struct fabric_message *message)
{
    struct script_node *node = arg;
    struct chunk_header h;
    const bool in_place = message != NULL && fabric_message_view(message) != NULL;
    ck_assert_int_eq(chunk_decode(header, header_bytes, payload_bytes, &h), CAIRN_OK);
    if (message != NULL) fabric_drop(message);
    if (h.kind == CAIRN_CHUNK_HELLO)
        take_hello(node, &h);
    else
        script.hear(node, &h, in_place);
}

/* ---- the scene ---- */

void script_open(void)
{
    round_granted = 0;
    fake_open(&script_fake, script.shards);
}

void script_close(void)
{
    for (uint32_t i = 0; i < SCRIPT_NODES; i++) fabric_close(script_nodes[i].fabric);
    fake_close(&script_fake);
    if (script_hub != NULL) cairn_fabric_mem_hub_close(script_hub);
    script_hub = NULL;
}

void script_node_open(uint32_t i, const char *kind)
{
    struct sentence why = { "" };
    const struct fabric_options options = { .on_message = on_message,
                                            .on_message_arg = &script_nodes[i],
                                            .max_payload = CAIRN_CHUNK_PAYLOAD_MAX,
                                            .host = SCRIPT_HOST,
                                            .hub = script_hub };
    script_nodes[i] = (struct script_node) { .index = i, .endpoint = 1 };
    ck_assert_msg(fabric_open(kind, &options, &script_nodes[i].fabric, &why) == CAIRN_OK, "%s",
                  why.text);
    if (i >= script.shards) return;
    script_fake.shards[i].address = fabric_own_address(script_nodes[i].fabric,
                                                       &script_fake.shards[i].address_bytes);
    script_fake.shards[i].holds_reduced = true;
}

void script_pump(void)
{
    fake_pump(&script_fake);
    for (uint32_t i = 0; i < SCRIPT_NODES; i++)
        if (script_nodes[i].fabric != NULL) fabric_progress(script_nodes[i].fabric);
    for (uint32_t i = 0; i < script.shards; i++)
        if (script_fake.shards[i].round == 0 || script_fake.shards[i].round == round_granted)
            return;
    if (script.holds_grants) return;
    round_granted = script_fake.shards[0].round; // it is open at all of them
    for (uint32_t i = 0; i < SCRIPT_NODES; i++)
        if (script_nodes[i].peer != NULL) script.grant(&script_nodes[i]);
}

void script_finish(void)
{
    script_until(caller_is_over());
    caller_end();
}

void script_call(void (*made)(void))
{
    caller_begin(made);
    script_finish();
}

/* ---- a worker's calls ---- */

void script_attach(void)
{
    static struct cairn_tensor tensors[SCRIPT_TENSORS];
    for (int i = 0; i < SCRIPT_TENSORS; i++)
        tensors[i] = (struct cairn_tensor) { .struct_size = sizeof *tensors,
                                             .name = script_names[i],
                                             .unit = script_names[i],
                                             .rank = 1,
                                             .shape = { SCRIPT_ELEMS },
                                             .init = { .kind = CAIRN_INIT_ZEROS } };
    const struct cairn_group group = CAIRN_GROUP_INIT;
    const struct cairn_job_spec spec = { .struct_size = sizeof spec,
                                         .tensors = tensors,
                                         .tensor_count = SCRIPT_TENSORS,
                                         .groups = &group,
                                         .group_count = 1,
                                         .chunk_leaves = script.chunk_leaves,
                                         .reduce_groups = script.reduce_groups };
    const struct cairn_opts opts = { .struct_size = sizeof opts,
                                     .endpoint = script_fake.listen,
                                     .fabric = script.fabric };
    good(client_open(&opts, script_hub, &script_session));
    good(cairn_job_open(script_session, script.job, &spec, CAIRN_WORKER, SCRIPT_WAIT_MS,
                        &script_job));
    good(cairn_init_done(script_job, NULL, SCRIPT_WAIT_MS));
}

void script_detach(void)
{
    cairn_close(script_session);
}

void script_push(void)
{
    const struct cairn_mem mem = { .struct_size = sizeof mem, .ptr = gradient, .dtype = CAIRN_F32 };
    script_round = (struct cairn_round) { .struct_size = sizeof script_round };
    good(cairn_round_begin(script_job, SCRIPT_WAIT_MS, &script_round));
    for (int i = 0; i < SCRIPT_TENSORS; i++)
        good(cairn_push(script_job, &script_round, 0, script_names[i], NULL, &mem, NULL));
}

void script_commit(void)
{
    script_result = (struct cairn_result) { .struct_size = sizeof script_result };
    script_status = cairn_commit(script_job, &script_round, 1, NULL, 0, SCRIPT_WAIT_MS,
                                 &script_result);
}

void script_step(void)
{
    script_push();
    script_commit();
    ck_assert_msg(script_status == CAIRN_OK, "%s", cairn_error());
}
