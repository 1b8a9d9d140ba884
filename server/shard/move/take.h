/* A take asks the givers for the state that comes to this shard with a layout, a few chunks of each
 * giver at a time, and receives it into the planes, while rounds go on.
 *
 *   cairn_take_open (all memory) ─► _begin: the givers go by the new layout, too ─► FETCH, DATA, ...
 *       ─► `done`: everything is here ─► cairn_take_leave; freed when nothing refers to it
 *
 * To a giver this shard is a member of the job, a mover; the coordinator has told both of it
 * (PartPrepare). A chunk that comes whole is received where it belongs: nobody reads there before
 * everything is here, and a damaged chunk is asked for again. A chunk that is cut is received in
 * staging, and its part is copied from there; so is every chunk of a job with state on a device, in
 * fewer slots, which are pinned. A request that a giver does not answer, or answers on a connection
 * that is lost, is sent again. Loop thread, except for the copies. */
#ifndef CAIRN_SHARD_MOVE_TAKE_H
#define CAIRN_SHARD_MOVE_TAKE_H

#include "proto/fabric/fabric.h"
#include "proto/wire/messages.h"
#include "server/shard/move/lot.h"

struct cairn_chunk_header;
struct cairn_chunk_link;
struct cairn_reserve;
struct cairn_shard;
struct cairn_shard_job;
struct cairn_take;

/* Takes over the lots, also when it fails. `mover`: as whom we ask. CAIRN_ERR_MALFORMED: a shard that gives
 * something is not among `shards`; CAIRN_ERR_NO_MEMORY. */
CAIRN_MUST_CHECK cairn_status cairn_take_open(struct cairn_shard_job *job,
                                              struct cairn_shard_view *view,
                                              struct cairn_lots *lots, const Cairn__Mover *mover,
                                              Cairn__ShardInfo *const *shards, size_t shard_count,
                                              struct cairn_take **take_out,
                                              struct cairn_sentence *why);
/* Bytes of the budget for what is received beside the planes, of a take of these lots by the job. */
uint64_t cairn_take_staging_bytes(const struct cairn_shard_job *job, const struct cairn_lots *lots);
/* Within `prepare` of a reserve: these. */
CAIRN_MUST_CHECK cairn_status cairn_take_reserve(const struct cairn_take *take,
                                                 struct cairn_reserve *reserve);
/* The job goes by the view, at the version that is asked for. `done` follows, once. */
void cairn_take_begin(struct cairn_take *take, struct cairn_version version,
                      void (*done)(struct cairn_take *take));
/* It was begun. */
bool cairn_take_is_begun(const struct cairn_take *take);
struct cairn_shard_job *cairn_take_job(const struct cairn_take *take);
/* All of it is here: so many bytes in so many microseconds. */
bool cairn_take_is_done(const struct cairn_take *take, uint64_t *bytes_out, uint64_t *us_out);
/* Asks for nothing any more; frees it now, or when nothing refers to it. NULL is fine. */
void cairn_take_leave(struct cairn_take *take);
/* With the job, whatever is in flight: the fabric and the pools are closed. And those that were leaving. */
void cairn_take_free(struct cairn_take *take);
void cairn_take_free_leaving(struct cairn_shard_job *job);

/* Takes or drops a giver's message for a take of one of our jobs. False: the message is not from a
 * giver, and is left to the caller. */
bool cairn_take_on_message(struct cairn_shard *shard, const struct cairn_chunk_header *header,
                           struct cairn_fabric_message *message);
/* Time: connects, breaks silences, asks again. True: it waits for something. */
bool cairn_take_tick(struct cairn_take *take, uint64_t now_ms);
/* The link to the i-th giver, and its name, borrowed; NULL: there is none, or nothing is asked of them. */
const struct cairn_chunk_link *cairn_take_link(struct cairn_take *take, uint32_t i,
                                               char **name_out);

#endif
