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

/* Makes a whole view of another layout, and reserves addresses for the extents that come with it;
 * on a device it takes their memory too, which cairn_shard_views_keep gives back if the view does
 * not come into force. `layout` is closed if no view is made. `before`: the view whose places the
 * extents that it has too keep: the view in force, or the one before that while its state is still
 * here. A new extent lies where neither of these views has anything. So does a part of a blob that
 * does not begin with the blob; the caller copies it (move/shift.h). CAIRN_ERR_INVALID: an extent
 * that is only partly in `before`; CAIRN_ERR_UNSUPPORTED: state in both homes; CAIRN_ERR_NO_MEMORY:
 * with `why`. */
CAIRN_MUST_CHECK cairn_status cairn_shard_view_next(struct cairn_shard_job *job,
                                                    struct cairn_layout *layout, uint32_t index,
                                                    const struct cairn_shard_view *before,
                                                    struct cairn_shard_view **view_out,
                                                    struct cairn_sentence *why);
/* Nothing works on sums, planes or published copies, or is on its way to them, and nothing will before a
 * round opens. */
bool cairn_shard_job_rests(const struct cairn_shard_job *job);
/* Makes the job go on in that view, which it counts. On CAIRN_ERR_BUSY (it does not rest) and
 * CAIRN_ERR_NO_MEMORY it goes on as it was. Its relays end. If the view needs more published copies
 * and tables (view->published_bytes, table_bytes), the caller has taken them from the budget
 * before, together with the incoming state; if it needs less, the difference goes back here. Pages
 * of outgoing state stay: cairn_shard_view_give. */
CAIRN_MUST_CHECK cairn_status cairn_shard_job_switch(struct cairn_shard_job *job,
                                                     struct cairn_shard_view *view,
                                                     struct cairn_sentence *why);

#endif
