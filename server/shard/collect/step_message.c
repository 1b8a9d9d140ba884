/* The translation between workers and a core, of the shard's own part or of a relay's: messages
 * become events of the core, and its actions become headers of messages. */
#include <assert.h>

#include "server/shard/shard.h"

struct cairn_step_event cairn_step_event_of(const struct cairn_chunk_header *header)
{
    struct cairn_step_event event = {
        .member = header->member,
        .epoch = header->epoch,
        .round = header->round,
        .micro = header->micro,
    };
    switch (header->kind) {
    case CAIRN_CHUNK_PUSH:
        event.kind = CAIRN_STEP_CHUNK;
        event.request = header->request;
        event.is_small = header->payload_bytes <= CAIRN_CHUNK_SMALL;
        event.in_place = header->value == 1;
        break;
    case CAIRN_CHUNK_MICRO_END:
        event.kind = CAIRN_STEP_MICRO_END;
        event.sent = (uint32_t)header->value;
        break;
    default:
        assert(header->kind == CAIRN_CHUNK_COMMIT);
        event.kind = CAIRN_STEP_COMMIT;
        event.weight = header->value;
    }
    return event;
}

struct cairn_chunk_header cairn_step_header_of(const struct cairn_step_action *action, uint8_t kind,
                                               const struct cairn_chunk_table *table)
{
    struct cairn_chunk_header header = {
        .kind = kind,
        .epoch = action->epoch,
        .round = action->round,
        .micro = action->micro,
        .request = action->request,
    };
    const bool of_chunk = kind == CAIRN_CHUNK_ACK || kind == CAIRN_CHUNK_NAK;
    if (of_chunk && action->chunk < table->trained_count) {
        const struct cairn_chunk_place place = cairn_chunk_table_place(table, action->chunk);
        header.tensor = place.tensor;
        header.first_leaf = place.first_leaf;
        header.leaf_count = (uint32_t)place.leaf_count;
    }
    return header;
}
