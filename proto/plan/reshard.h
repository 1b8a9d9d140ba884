/* The plan of a re-sharding: where a job's quanta shall be (the target), and the slices in which they
 * get there while training goes on. Pure; the same for the same arguments.
 *
 * The target is the planner's re-plan (plan.h): what moves is at most what levels the shards, but where that
 * would lie in too many pieces, and there is room. Shards keep their numbers; a shard of weight 0 gives up
 * all that it has and stays as a hole.
 *
 * A slice is a layout, one version above the one before it. An extent of it either stays on its
 * shard or comes to it, as a whole. One that stays lies within one extent of the layout before, so
 * it keeps its place in the shard's memory: extents that were cut are not joined again where they
 * are. Quanta that come to a shard beside each other are one extent, however many givers they have.
 * A run that is cut short loses its tail, on the giver's grid of chunks where it can, so that no
 * chunk is asked for twice. The slices end in the target's owners, not in its table. No shard has
 * more on the way than before it, or a slice more than in the target.
 *
 * Bytes are elements x elem_bytes of the tensor (proto/plan/plan.h: all that an element costs a
 * shard). */
#ifndef CAIRN_PLAN_RESHARD_H
#define CAIRN_PLAN_RESHARD_H

#include <stdint.h>

#include "proto/base/status.h"
#include "proto/base/text.h"
#include "proto/geometry/layout.h"

/* All borrowed, for the call only. */
struct reshard_request {
    const struct layout_tensor *tensors; /* [tensor_count], in the order of the layout */
    uint32_t tensor_count;
    const struct layout *current;
    uint32_t shard_count;  /* at least the current one: numbers are kept */
    const double *weights; /* [shard_count], 0 = gives up all and gets nothing; NULL = equal */
    /* [shard_count], the most that a shard may own, 0 = no bound; NULL = none has one. A shard may
     * keep all that it owns already. */
    const uint64_t *capacity_bytes;
    /* The bytes of a capacity that must be free beside what a shard owns for more to move than the
     * least: a slice. */
    uint64_t slice_bytes;
    int least;                /* as plan_request's */
    const char *const *names; /* [shard_count], for sentences; NULL = numbers */
    uint32_t spread;          /* as plan_request's */
};

struct reshard_pair {
    uint32_t from, to; /* shards */
    uint64_t bytes;
};

struct reshard_report {
    uint64_t total_bytes;
    uint64_t moved_bytes;
    uint64_t least_bytes; /* the least that levels the shards: Σ max(0, share - what it owns) */
    /* Tensors of which more moves, since their layout had too many pieces (plan.h); and the pieces and the
     * files of the target, and of a fresh table. */
    uint32_t afresh_count;
    uint64_t pieces, files, pieces_fresh, files_fresh;
    /* The largest load / fair load; before: by the weights asked for, a shard that leaves counted as an
     * average one. 1 if the job is empty. */
    double heaviest_before, heaviest_after;
    struct reshard_pair *pairs; /* owned: [pair_count], by from, then to */
    size_t pair_count;
};
void reshard_report_release(struct reshard_report *report);

/* The target: a layout one version above the current one. report_out may be NULL; else the caller
 * releases it. CAIRN_ERR_INVALID: a count, a weight that is no number or below 0, no weight above 0, a
 * layout of other tensors. CAIRN_ERR_NO_MEMORY: the capacities are too small, or memory ran out here.
 * `why` says it with the shard and the numbers. */
cairn_status plan_reshard(const struct reshard_request *request, struct layout **target_out,
                          struct reshard_report *report_out, struct sentence *why) CAIRN_MUST_CHECK;

/* All borrowed, for the call only. */
struct slice_request {
    const struct layout_tensor *tensors; /* [tensor_count], in the order of the layouts */
    uint32_t tensor_count;
    const struct layout *current;
    const struct layout *target; /* of the same tensors; any version */
    /* [shards of the larger layout], the most that a shard gives in a slice, and the most that it takes;
     * NULL = all at once. A pair that has not moved anything moves a quantum, whatever its limit. */
    const uint64_t *limit_bytes;
    uint32_t chunk_leaves; /* of the job: at least 1 */
};

/* The bytes that still have to move between two layouts, and in how many slices by a slice's
 * limits. */
struct slice_left {
    uint64_t bytes;
    uint32_t slices; /* at least */
};

/* The next layout on the way to the target, with the shards of the larger layout; *moved_out (or NULL):
 * its bytes. *next_out is NULL, and the answer CAIRN_OK, if the owners are the target's already. To take
 * a slice back ask for the layout before it as the target, without limits: its owners, in extents that
 * every shard can follow. CAIRN_ERR_INVALID, CAIRN_ERR_NO_MEMORY. */
cairn_status plan_slice(const struct slice_request *request, struct layout **next_out,
                        uint64_t *moved_out) CAIRN_MUST_CHECK;
/* As above. */
cairn_status plan_slices_left(const struct slice_request *request,
                              struct slice_left *left_out) CAIRN_MUST_CHECK;

/* The same table over more shards, one version on: nothing moves. CAIRN_ERR_INVALID: fewer shards than
 * it has. CAIRN_ERR_NO_MEMORY. */
cairn_status plan_widen(const struct layout_tensor *tensors, uint32_t tensor_count,
                        const struct layout *current, uint32_t shard_count,
                        struct layout **next_out) CAIRN_MUST_CHECK;

#endif
