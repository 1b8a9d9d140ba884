/* Shifts: state that stays on a shard, but at another place. The bytes of a blob stand dense from
 * where its extent begins (memory/plane.h). So a part of a blob that does not begin with it is
 * copied to a place of its own as the layout changes, except on a device (memory/area.h). Its old
 * place is given, and forgotten, with the rest. Loop thread. */
#ifndef CAIRN_SHARD_MOVE_SHIFT_H
#define CAIRN_SHARD_MOVE_SHIFT_H

#include "server/shard/shard.h"

/* The bytes of all that shifts with `next` and is in the job's view, or in `kept` (may be NULL). */
uint64_t cairn_shift_bytes(const struct cairn_shard_job *job, const struct cairn_shard_view *next,
                           const struct cairn_shard_view *kept);
/* Within `prepare` of a reserve: reserves the places to which state shifts. */
CAIRN_MUST_CHECK cairn_status cairn_shift_reserve(const struct cairn_shard_job *job,
                                                  const struct cairn_shard_view *next,
                                                  const struct cairn_shard_view *kept,
                                                  struct cairn_reserve *reserve);
/* Copies what shifts, before the job goes on in `next`. Not CAIRN_OK: the job may not go on in
 * it. */
CAIRN_MUST_CHECK cairn_status cairn_shift_copy(struct cairn_shard_job *job,
                                               const struct cairn_shard_view *next,
                                               const struct cairn_shard_view *kept,
                                               struct cairn_sentence *why);

#endif
