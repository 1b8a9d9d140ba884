/* An owner, as its relay sees it: its map, the core that collects for it, and the machine that
 * sends to it. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "server/shard/relay/relay.h"

static cairn_status fail_memory(const struct cairn_relay_owner *owner, struct cairn_sentence *why)
{
    return cairn_fail(why, CAIRN_ERR_NO_MEMORY, "no memory to relay to shard %s", owner->name);
}

static cairn_status make_tables(struct cairn_relay_owner *owner)
{
    const struct cairn_shard_job *job = owner->relay->job;
    cairn_status status = cairn_shard_map_init(&owner->table.map, owner->relay->view->layout,
                                               owner->index, job->spec.chunk_leaves);
    if (status == CAIRN_OK) status = cairn_chunk_table_number(&owner->table, &job->spec);
    if (status != CAIRN_OK) return CAIRN_ERR_NO_MEMORY;
    const size_t chunks = owner->table.trained_count;
    owner->buffers.chunk_count = owner->table.trained_count;
    owner->buffers.sums = malloc((chunks + 1) * sizeof *owner->buffers.sums);
    return owner->buffers.sums != NULL ? CAIRN_OK : CAIRN_ERR_NO_MEMORY;
}

cairn_status cairn_relay_owner_open(struct cairn_relay *relay, struct cairn_relay_owner *owner,
                                    const Cairn__ShardInfo *info, struct cairn_sentence *why)
{
    owner->relay = relay;
    cairn_relay_link_open(owner);
    owner->index = info->index;
    snprintf(owner->name, sizeof owner->name, "%s", info->name);
    if (info->fabric_address.len > CAIRN_FABRIC_ADDRESS_MAX) {
        return cairn_fail(why, CAIRN_ERR_MALFORMED, "a fabric address of %zu bytes of shard %s",
                          info->fabric_address.len, owner->name);
    }
    owner->address = malloc(info->fabric_address.len + 1);
    if (owner->address == NULL) return fail_memory(owner, why);
    owner->address_bytes = info->fabric_address.len;
    if (owner->address_bytes > 0)
        memcpy(owner->address, info->fabric_address.data, owner->address_bytes);
    cairn_status status = make_tables(owner);
    if (status == CAIRN_OK) status = cairn_relay_forward_open(owner);
    if (status == CAIRN_OK) status = cairn_relay_collect(owner);
    return status == CAIRN_OK ? CAIRN_OK : fail_memory(owner, why);
}

void cairn_relay_owner_close(struct cairn_relay_owner *owner)
{
    cairn_collector_close(&owner->collector);
    cairn_relay_forward_close(owner);
    free(owner->address);
    free(owner->buffers.sums);
    cairn_chunk_table_close(&owner->table);
}
