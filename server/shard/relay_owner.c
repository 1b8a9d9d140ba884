/* What a relay has for an owner: its map, a core that collects for it, and the machine that sends to it. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "server/shard/relay.h"

static cairn_status fail_memory(const struct cairn_relay_owner *owner, struct cairn_sentence *why)
{
    return cairn_fail(why, CAIRN_ERR_NO_MEMORY, "no memory to relay to shard %s", owner->name);
}

static bool is_trained(const struct cairn_relay_owner *owner,
                       const struct cairn_local_extent *extent)
{
    return owner->relay->job->spec.tensors[extent->tensor].kind == CAIRN_TRAINED;
}

/* The core's numbers of chunks: those of trained tensors, in the map's order, as the owner counts them. */
static cairn_status number_chunks(struct cairn_relay_owner *owner, struct cairn_sentence *why)
{
    const struct cairn_shard_job *job = owner->relay->job;
    cairn_status status = cairn_shard_map_init(&owner->map, job->layout, owner->index,
                                               job->spec.chunk_leaves);
    if (status != CAIRN_OK || owner->map.chunk_count >= UINT32_MAX) return fail_memory(owner, why);
    owner->grad_first = calloc(owner->map.extent_count + 1, sizeof *owner->grad_first);
    owner->grad_chunks = calloc((size_t)owner->map.chunk_count + 1, sizeof *owner->grad_chunks);
    if (owner->grad_first == NULL || owner->grad_chunks == NULL) return fail_memory(owner, why);
    for (size_t i = 0; i < owner->map.extent_count; i++) {
        const struct cairn_local_extent *extent = &owner->map.extents[i];
        if (!is_trained(owner, extent)) continue;
        owner->grad_first[i] = owner->grad_chunk_count;
        for (uint64_t c = 0; c < extent->chunk_count; c++)
            owner->grad_chunks[owner->grad_chunk_count++] = (uint32_t)(extent->first_chunk + c);
    }
    return CAIRN_OK;
}

static cairn_status make_core(struct cairn_relay_owner *owner, struct cairn_sentence *why)
{
    struct cairn_relay *relay = owner->relay;
    const struct cairn_shard_job *job = relay->job;
    const struct cairn_step_config config = {
        .chunk_count = owner->grad_chunk_count,
        .window = job->spec.window,
        .member_max = relay->member_count,
        .folds_wanted = cairn_pool_thread_count(job->shard->compute) + 1, // one is handed over
        .forwards = true,
    };
    const size_t bytes = cairn_step_bytes(&config), actions = cairn_step_actions_max(&config);
    void *memory = bytes > 0 ? malloc(bytes) : NULL;
    owner->slot_count = config.member_max * config.window;
    owner->slots = calloc(owner->slot_count, sizeof *owner->slots);
    owner->sums = malloc(((size_t)owner->grad_chunk_count + 1) * sizeof *owner->sums);
    owner->forwarded = calloc((size_t)owner->grad_chunk_count + 1, sizeof *owner->forwarded);
    if (actions > relay->actions.capacity) {
        void *list = realloc(relay->actions.list, actions * sizeof *relay->actions.list);
        if (list == NULL) {
            free(memory);
            return fail_memory(owner, why);
        }
        relay->actions.list = list;
        relay->actions.capacity = actions;
    }
    if (memory == NULL || owner->slots == NULL || owner->sums == NULL || owner->forwarded == NULL) {
        free(memory);
        return fail_memory(owner, why);
    }
    for (uint32_t i = 0; i < owner->slot_count; i++) owner->slots[i].owner = owner;
    for (uint32_t c = 0; c < owner->grad_chunk_count; c++) owner->sums[c] = CAIRN_RELAY_NONE;
    owner->step = cairn_step_init(memory, &config, (struct cairn_version) { 0 }, NULL);
    return CAIRN_OK;
}

cairn_status cairn_relay_owner_open(struct cairn_relay *relay, struct cairn_relay_owner *owner,
                                    const Cairn__ShardInfo *info, struct cairn_sentence *why)
{
    owner->relay = relay;
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
    const cairn_status status = number_chunks(owner, why);
    if (status != CAIRN_OK) return status;
    if (cairn_relay_send_open(owner) != CAIRN_OK) return fail_memory(owner, why);
    return make_core(owner, why);
}

void cairn_relay_owner_close(struct cairn_relay_owner *owner)
{
    for (uint32_t i = 0; owner->slots != NULL && i < owner->slot_count; i++)
        cairn_relay_slot_release(&owner->slots[i]);
    while (owner->notes != NULL) {
        struct cairn_relay_note *note = owner->notes;
        owner->notes = note->next;
        free(note);
    }
    free(owner->address);
    free(owner->grad_first);
    free(owner->grad_chunks);
    free(owner->step);
    free(owner->slots);
    free(owner->sums);
    free(owner->forwarded);
    free(owner->push_memory);
    free(owner->push_actions.list);
    cairn_shard_map_release(&owner->map);
}

/* The first extent of the tensor, or behind where it would stand. */
static size_t first_extent(const struct cairn_shard_map *map, uint32_t tensor)
{
    size_t low = 0, high = map->extent_count;
    while (low < high) {
        const size_t middle = low + (high - low) / 2;
        if (map->extents[middle].tensor < tensor)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

uint64_t cairn_relay_owner_chunks(const struct cairn_relay_owner *owner, uint32_t tensor)
{
    uint64_t count = 0;
    for (size_t i = first_extent(&owner->map, tensor);
         i < owner->map.extent_count && owner->map.extents[i].tensor == tensor; i++)
        count += owner->map.extents[i].chunk_count;
    return count;
}
