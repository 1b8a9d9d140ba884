/* The mem fabric: a network inside one process, unreliable on purpose and exactly repeatable.
 *
 *   struct fabric_hub *hub;
 *   cairn_fabric_mem_hub_open(&(struct cairn_fabric_mem_options){ .seed = 7 }, &hub);
 *   options.hub = hub;  fabric_open("mem", &options, &a, ...);  ... b, c: nodes of that hub
 *   cairn_fabric_mem_hub_run(hub, 1000);    deliver until nothing is left
 *   fabric_close(a); ...; cairn_fabric_mem_hub_close(hub);
 *
 * Time is counted in ticks. Each message is due a random number of ticks after its send, so messages
 * overtake each other. Payloads of up to eager_bytes are copied by send; larger ones stay in the
 * sender's memory until they are received or dropped, and are read there at that moment: a sender that
 * touches a buffer on loan is found out.
 *
 * Who drives: either the test, by hub_step/hub_run (one thread, one order of events per seed), or each
 * node's owner by fabric_progress, as with UCX (each progress is one tick; fabric_poll works).
 * Nodes may then live on different threads: the hub has a lock. The order is then the scheduler's. */
#ifndef CAIRN_SUPPORT_MEM_H
#define CAIRN_SUPPORT_MEM_H

#include "proto/fabric/fabric.h"

struct cairn_fabric_mem_options {
    uint64_t seed;
    uint32_t delay_max_ticks;    /* delay is uniform in [1, this]. 0 and 1: in order, next tick */
    uint32_t duplicate_permille; /* chance that a message arrives twice */
    uint32_t cut_permille;     /* chance that a send instead breaks its connection, on both ends */
    uint32_t cut_one_permille; /* on the sender's end alone */
    size_t eager_bytes;        /* copied by send up to here. 0: nothing is, all payloads on loan */
};

CAIRN_MUST_CHECK cairn_status cairn_fabric_mem_hub_open(
    const struct cairn_fabric_mem_options *options, struct fabric_hub **hub_out);
/* All its fabrics are closed before it (asserted). */
void cairn_fabric_mem_hub_close(struct fabric_hub *hub);

/* Changes the chances from now on: end the storm, and see that everything settles. */
void cairn_fabric_mem_hub_set(struct fabric_hub *hub,
                              const struct cairn_fabric_mem_options *options);

/* Delivers the next event of the whole hub (a message, a completion, a lost peer). 0: none left. */
unsigned cairn_fabric_mem_hub_step(struct fabric_hub *hub);
/* Steps until nothing is left or `steps_max` were made; returns the number of steps. */
uint64_t cairn_fabric_mem_hub_run(struct fabric_hub *hub, uint64_t steps_max);

/* Breaks the connection between a peer's owner and the node it leads to, in both directions: on_down
 * on both ends, messages under way are lost, sends in flight and held messages fail. The nodes live
 * on and may connect again. */
void cairn_fabric_mem_cut(struct fabric_peer *peer);
/* Breaks one direction: on_down of this peer, what it sent is lost. What comes the other way arrives. */
void cairn_fabric_mem_cut_one(struct fabric_peer *peer);
/* The same for every peer, of whichever node, that leads to this node. Any thread. */
void cairn_fabric_mem_cut_to(struct fabric *fabric);

#endif
