/* Writes at a step boundary. Loop thread unless it says otherwise. */
#ifndef CAIRN_SHARD_STATE_WRITE_H
#define CAIRN_SHARD_STATE_WRITE_H

#include "server/shard/base/works.h"
#include "server/shard/state/put.h"

/* The round is a write of that member; what another write left is forgotten. */
void cairn_write_open(struct cairn_shard_job *job, uint64_t round, uint64_t member);
void cairn_write_close(struct cairn_shard_job *job);
/* A PUT of a job that serves, judged without side effects; chunk and place of *out are set, and its piece
 * unless a box in the payload says that. */
CAIRN_MUST_CHECK cairn_status cairn_write_judge(const struct cairn_member *member,
                                                const struct cairn_chunk_header *header,
                                                struct cairn_put *out, struct cairn_sentence *why);
/* It is of the write that is open. */
bool cairn_write_is(const struct cairn_shard_job *job, const struct cairn_chunk_header *header);
/* Keeps a chunk, or a box of it, beside the state. CAIRN_ERR_NO_MEMORY, CAIRN_ERR_MALFORMED. */
CAIRN_MUST_CHECK cairn_status cairn_write_take(struct cairn_shard_job *job,
                                               const struct cairn_put *put, const uint8_t *bytes,
                                               struct cairn_sentence *why);
/* Any thread: something of the chunk was kept. */
bool cairn_write_has(const struct cairn_shard_job *job, uint64_t chunk);
/* Parameters were kept: what readers have changes. */
bool cairn_write_has_param(const struct cairn_shard_job *job);
/* Any thread: what was kept of the chunk goes into the state. Returns what its parameters are then; NULL:
 * what they were. */
const void *cairn_write_apply(struct cairn_works *works, const struct cairn_shard_job *job,
                              uint64_t chunk, const struct cairn_chunk_place *place);
/* The outcome of that round was told: a write of another one is void. */
void cairn_write_resolved(struct cairn_shard_job *job, uint64_t round);

#endif
