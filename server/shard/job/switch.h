/* The layout in force changes: a job goes on in another view (collect/view.h), in place.
 *
 *   a fresh job      cairn_shard_view_open ─► need: taken by the caller ─► _number
 *   another layout   cairn_shard_view_next ─► what comes is taken (cairn_shard_view_reserve) and filled by
 *                    the caller ─► cairn_shard_job_switch
 *
 * State that stays keeps its place in the planes, and is not touched. Loop thread. */
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

/* Gives the view of a job with state on a device its places there, and takes memory for what `before` (NULL:
 * nothing was) has not. CAIRN_ERR_NO_MEMORY, CAIRN_ERR_IO. */
CAIRN_MUST_CHECK cairn_status cairn_shard_view_place(struct cairn_shard_job *job,
                                                     struct cairn_shard_view *view,
                                                     const struct cairn_shard_view *before,
                                                     struct cairn_sentence *why);

/* A whole view of another layout, which is closed if there is none, and addresses for what comes with it; on
 * a device the memory, too, which cairn_shard_views_keep gives back when the view is not to come into force.
 * `before`: where what it has too lies, the view in force, or the one before that while its state is still
 * here. What is new lies where neither of these views has anything, and so does a part of a blob that does
 * not begin with it, which the caller copies (move/shift.h). CAIRN_ERR_INVALID: an extent that is only
 * partly in `before`; CAIRN_ERR_UNSUPPORTED: state in both homes; CAIRN_ERR_NO_MEMORY: with `why`. */
CAIRN_MUST_CHECK cairn_status cairn_shard_view_next(struct cairn_shard_job *job,
                                                    struct cairn_layout *layout, uint32_t index,
                                                    const struct cairn_shard_view *before,
                                                    struct cairn_shard_view **view_out,
                                                    struct cairn_sentence *why);
/* Nothing works on sums, planes or published copies, or is on its way to them, and nothing will before a
 * round opens. */
bool cairn_shard_job_rests(const struct cairn_shard_job *job);
/* The job goes on in that view, which it counts. CAIRN_ERR_BUSY: it does not rest; CAIRN_ERR_NO_MEMORY. Then
 * it goes on as it was. Its relays end. What it takes more of published copies and tables
 * (view->published_bytes, table_bytes) was taken from the budget before, with what comes of the state; what
 * it takes less goes back here. Pages of state that went stay: cairn_shard_view_give. */
CAIRN_MUST_CHECK cairn_status cairn_shard_job_switch(struct cairn_shard_job *job,
                                                     struct cairn_shard_view *view,
                                                     struct cairn_sentence *why);

#endif
