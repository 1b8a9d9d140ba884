/* The inside of the mem fabric, shared by mem.c (nodes, connections, messages) and mem_hub.c (time,
 * events, the driver). Private to both.
 *
 * Everything under the hub's lock is shared: queues, transfers, is_linked. Everything of a node's
 * common struct belongs to its owner's thread; other nodes reach it only by an event. */
#ifndef CAIRN_SUPPORT_MEM_HUB_H
#define CAIRN_SUPPORT_MEM_HUB_H

#include <pthread.h>

#include "proto/fabric/backend.h"
#include "tests/support/mem.h"

struct mem_node;

/* A message under way or held. It lives as long as events or messages refer to it. */
struct mem_transfer {
    LIST_ENTRY(mem_transfer) link; /* hub->transfers */
    unsigned references;
    struct mem_peer *peer;   /* it travels on; NULL once the connection is gone */
    struct mem_node *sender; /* with op */
    struct fabric_op *op;    /* the sender's, NULL once its completion is posted */
    const uint8_t *payload;  /* the sender's memory or copy; NULL once that is gone */
    uint8_t *copy;           /* owned */
    size_t payload_bytes;
    size_t header_bytes;
    uint8_t header[CAIRN_FABRIC_HEADER_MAX];
};

enum mem_kind { MEM_MESSAGE, MEM_RECEIVED, MEM_SENT, MEM_DOWN };

struct mem_event {
    TAILQ_ENTRY(mem_event) link; /* node->events, by (due, sequence) */
    uint64_t due, sequence;
    enum mem_kind kind;
    struct mem_transfer *transfer; /* MESSAGE, RECEIVED */
    struct fabric_op *op;          /* RECEIVED, SENT */
    void *buffer;                  /* RECEIVED */
    struct mem_peer *peer;         /* DOWN */
    cairn_status status;           /* SENT, DOWN */
};

struct mem_node {
    struct fabric common;
    struct mem_hub *hub;
    uint64_t id;
    LIST_ENTRY(mem_node) link; /* hub->nodes */
    TAILQ_HEAD(, mem_event) events;
};

struct mem_peer {
    struct fabric_peer common;
    LIST_ENTRY(mem_peer) link; /* hub->peers, while is_linked */
    uint64_t to;               /* the node's id */
    bool is_linked;
};

struct mem_message {
    struct fabric_message common;
    struct mem_transfer *transfer;
};

struct mem_hub {
    struct fabric_hub common;
    pthread_mutex_t lock;
    struct cairn_fabric_mem_options options;
    uint64_t name; /* = the seed: tells this hub's addresses from others */
    uint64_t random, ticks, sequence, last_id;
    LIST_HEAD(, mem_node) nodes;
    LIST_HEAD(, mem_peer) peers;
    LIST_HEAD(, mem_transfer) transfers;
};

struct mem_address {
    uint64_t hub_name;
    uint64_t id;
};

static inline struct mem_node *node_of(struct fabric *fabric)
{
    return (struct mem_node *)fabric;
}

static inline struct mem_hub *hub_of(struct fabric_hub *hub)
{
    return (struct mem_hub *)hub;
}

extern const struct fabric_backend fabric_mem;

/* Lock held. True with the chance of permille in 1000. */
bool mem_chance(struct mem_hub *hub, uint32_t permille);
struct mem_node *mem_find_node(struct mem_hub *hub, uint64_t id);
/* A new event in the node's queue, due after a random delay; the caller fills it in. */
struct mem_event *mem_post(struct mem_node *node, enum mem_kind kind);
/* Tells the sender that its buffer is free, once. */
void mem_post_sent(struct mem_transfer *transfer, cairn_status status);
void mem_release(struct mem_transfer *transfer);
void *mem_need(size_t bytes);
/* The node's next event if it is due by `ticks`. A message whose connection is gone is lost. */
struct mem_event *mem_take(struct mem_node *node, uint64_t ticks, bool *is_lost_out);

/* Lock not held. Does what the event says, on the node's thread, and frees it. */
void mem_handle(struct mem_node *node, struct mem_event *event, bool is_lost);

#endif
