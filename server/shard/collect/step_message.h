/* Messages of the data plane as the core's events, and the core's actions as messages. */
#ifndef CAIRN_SHARD_COLLECT_STEP_MESSAGE_H
#define CAIRN_SHARD_COLLECT_STEP_MESSAGE_H

#include "proto/wire/chunk.h"
#include "server/core/step.h"
#include "server/shard/collect/chunk_table.h"

/* The event that a PUSH, MICRO_END or COMMIT is to a core, the own part's or a relay's. The caller
 * fills in `chunk`, `is_readable` and `absent`. */
struct cairn_step_event cairn_step_event_of(const struct cairn_chunk_header *header);
/* The header of an answer: the numbers of the round, and in an ACK or NAK the place of the chunk, which the
 * core knows by its number in the table. */
struct cairn_chunk_header cairn_step_header_of(const struct cairn_step_action *action, uint8_t kind,
                                               const struct cairn_chunk_table *table);

#endif
