/* The layout in force changes: a job goes on in another view (collect/view.h), in place.
 *
 *   cairn_shard_view_open ──► need: counted and taken by the caller ──► _number ──► a whole view
 *
 * Loop thread. */
#ifndef CAIRN_SHARD_JOB_SWITCH_H
#define CAIRN_SHARD_JOB_SWITCH_H

#include "server/shard/collect/view.h"
#include "server/shard/job/need.h"

struct cairn_shard_job;

/* A view of `layout`, which is closed if there is none, as shard `index` of it; its chunks have no numbers
 * yet. *need_out: what a job of that view takes. `member_max`: as of cairn_need_of. CAIRN_ERR_INVALID,
 * CAIRN_ERR_UNSUPPORTED, CAIRN_ERR_NO_MEMORY: with `why`. */
CAIRN_MUST_CHECK cairn_status cairn_shard_view_open(const struct cairn_shard_job *job,
                                                    struct cairn_layout *layout, uint32_t index,
                                                    uint32_t member_max,
                                                    struct cairn_shard_view **view_out,
                                                    struct cairn_need *need_out,
                                                    struct cairn_sentence *why);
/* Numbers its chunks: memory as large as the job's shapes say, so what it takes is admitted before. */
CAIRN_MUST_CHECK cairn_status cairn_shard_view_number(struct cairn_shard_view *view,
                                                      const struct cairn_job_spec_data *spec,
                                                      struct cairn_sentence *why);

#endif
