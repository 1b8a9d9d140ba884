/* What stays on a shard, but not where it lies. The bytes of a blob stand dense from where its extent
 * begins (memory/plane.h), so a part of one that does not begin with it is copied to a place of its own as
 * the layout changes, but for one on a device (memory/area.h); where it lay it is given with the rest, and
 * forgotten with it. Loop thread. */
#ifndef CAIRN_SHARD_MOVE_SHIFT_H
#define CAIRN_SHARD_MOVE_SHIFT_H

#include "server/shard/shard.h"

/* Of all that shifts with `next`, and is in the job's view, or in `kept` (may be NULL). */
uint64_t cairn_shift_bytes(const struct cairn_shard_job *job, const struct cairn_shard_view *next,
                           const struct cairn_shard_view *kept);
/* Within `prepare` of a reserve: where it is to lie. */
CAIRN_MUST_CHECK cairn_status cairn_shift_reserve(const struct cairn_shard_job *job,
                                                  const struct cairn_shard_view *next,
                                                  const struct cairn_shard_view *kept,
                                                  struct cairn_reserve *reserve);
/* Before the job goes on in `next`. Not CAIRN_OK: it may not. */
CAIRN_MUST_CHECK cairn_status cairn_shift_copy(struct cairn_shard_job *job,
                                               const struct cairn_shard_view *next,
                                               const struct cairn_shard_view *kept,
                                               struct cairn_sentence *why);

#endif
