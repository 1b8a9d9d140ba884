/* The client beside a coordinator that is real and shards whose data is the test's own script. The worker's
 * calls run on a thread of their own, while the test's thread serves what they wait for:
 *
 *   script = (struct script) { .job = "toy", .shards = 2, .hear = hear, .grant = grant, ... };
 *   script_open();  script_node_open(0, "mem");  ...  fake_shards_up(&script_fake, 2);
 *   script_call(script_attach);  script_call(script_step);
 *   script_call(script_detach);  script_close(); */
#ifndef CAIRN_SUPPORT_CLIENT_SCRIPT_H
#define CAIRN_SUPPORT_CLIENT_SCRIPT_H

#include <cairn.h>

#include "tests/support/caller.h"
#include "tests/support/fake_cluster.h"
#include "tests/support/good.h"
#include "tests/support/mem.h"

#define SCRIPT_HOST "here"
enum { SCRIPT_NODES = 3, SCRIPT_TENSORS = 3, SCRIPT_ELEMS = 20000, SCRIPT_WAIT_MS = 15000 };

/* A shard's data. */
struct script_node {
    uint32_t index, endpoint;
    uint32_t connection;      /* of the worker's HELLO */
    struct fabric *fabric;    /* NULL: it is gone */
    struct fabric_peer *peer; /* to the worker; NULL: not met yet */
};

struct script {
    const char *job, *fabric; /* of the session; NULL: the default */
    uint32_t shards, chunk_leaves;
    cairn_reduce_groups reduce_groups;
    /* any message but a HELLO; its payload could be read where it lay */
    void (*hear)(struct script_node *node, const struct chunk_header *header, bool in_place);
    /* says what GRANTs there are: all shards have opened the round, or the worker has said HELLO */
    void (*grant)(struct script_node *node);
    bool holds_grants; /* but for those of a HELLO */
    uint32_t damages;  /* so many of the next payloads are damaged on their way */
};

extern struct script script;
extern struct fake_cluster script_fake;
extern struct fabric_hub *script_hub; /* NULL: real ways */
extern struct script_node script_nodes[SCRIPT_NODES];
extern cairn *script_session;
extern cairn_job *script_job;
extern const char *const script_names[SCRIPT_TENSORS]; /* of tensors and their units */

void script_open(void);
void script_close(void);
void script_node_open(uint32_t i, const char *kind);

/* What element of a tensor a step publishes. */
float script_value(uint32_t tensor, uint64_t elem, uint64_t step);
/* Says it of that owner's tile; the payload is the node's to free. */
void script_say(struct script_node *node, uint32_t owner, struct chunk_header *header,
                void *payload, size_t bytes);
/* The same header, as this kind and with this value. */
void script_answer(struct script_node *node, uint32_t owner, const struct chunk_header *header,
                   unsigned kind, uint64_t value);
/* What was fetched, of script_value. */
void script_answer_fetch(struct script_node *node, uint32_t owner,
                         const struct chunk_header *header);
void script_say_hello(struct script_node *node);
/* An open round's, of that owner; `mark` is its tensor. */
void script_say_grant(struct script_node *node, uint32_t owner, uint32_t mark);

/* ---- driving ---- */

void script_pump(void);
#define script_until(condition)                                         \
    do {                                                                \
        const uint64_t end_ms = uv_hrtime() / 1000000 + SCRIPT_WAIT_MS; \
        while (!(condition)) {                                          \
            ck_assert_msg(uv_hrtime() / 1000000 < end_ms, #condition);  \
            script_pump();                                              \
        }                                                               \
    } while (0)
/* Until the call that caller_begin has begun is over. */
void script_finish(void);
void script_call(void (*made)(void));

/* ---- a worker's calls ---- */

extern struct cairn_round script_round;
extern struct cairn_result script_result;
extern cairn_status script_status; /* of the last commit */

void script_attach(void);
void script_detach(void);
/* Begins a round and pushes all tensors of it. */
void script_push(void);
void script_commit(void);
/* Both, and it is applied. */
void script_step(void);

#endif
