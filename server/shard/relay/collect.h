/* Collects what workers contribute by way of a relay, with one collector for each owner. */
#ifndef CAIRN_SHARD_RELAY_COLLECT_H
#define CAIRN_SHARD_RELAY_COLLECT_H

#include "server/core/step.h"
#include "server/shard/collect/collector.h"

struct cairn_relay_owner;

/* Shared by the collectors of all owners. */
struct cairn_relay_collect {
    struct cairn_step_actions actions; /* owned: of the core that is told something */
    void *memory; /* owned: for the payload that a core is being told of, if it cannot be viewed */
    uint64_t roomless_since_ms; /* since then payloads are refused for lack of memory; 0: none is */
};

/* A PUSH of a worker: false if it is meant for the shard's own part of the job. Takes or drops the message
 * if not. */
bool cairn_relay_on_push(struct cairn_member *member, const struct cairn_chunk_header *header,
                         struct cairn_fabric_message *message);
/* MICRO_END and COMMIT that name an owner (header->tensor), with a list of untouched tensors that is judged
 * to be ascending and of trained ones. */
void cairn_relay_on_micro_end(struct cairn_member *member, const struct cairn_chunk_header *header,
                              const uint32_t *tensors, size_t count);
void cairn_relay_on_commit(struct cairn_member *member, const struct cairn_chunk_header *header);
/* The owner's collector. CAIRN_ERR_NO_MEMORY. Who tells it something holds the relay: cairn_relay_busy. */
CAIRN_MUST_CHECK cairn_status cairn_relay_collect(struct cairn_relay_owner *owner);
struct cairn_relay_owner *cairn_relay_owner_of(const struct cairn_collector *collector);

#endif
