/* The planner makes a layout from tensors, the weights of shards, what is held (the layout that says who owns
 * what now) and what is free (which quanta may be given to others). It is pure, and makes the same table for
 * any order of the tensor list. Only the coordinator plans; everybody else reads tables.
 *
 * There is one planner, plan_make, and its calls differ in these inputs:
 *
 *   a new job             nothing is held                              a fresh table
 *   shards come and go    held; the surplus is free                    a re-plan
 *   ... in haste          held; no more than the surplus is free       a re-plan with CAIRN_FREE_LEAST
 *   an amendment          held; only new tensors are free              nothing moves
 *   numbers for shards    held; nothing is free, but there are more    nothing moves
 *                         shards than before
 *   a re-sharding         as "shards come and go", with weights that plan_reshard makes from what the shards
 *                         have room for
 *
 * plan_slice is another algorithm, and stays apart: it does not decide who owns what. It has two layouts, and
 * decides how much of the way from the one to the other is gone at a time.
 *
 * The load of a shard is counted in bytes, which are elements x elem_bytes of the tensor. A shard's share
 * is the part of the job's bytes that its weight gives it. Tensors are cut only between quanta. The planner
 * computes cuts from prefix sums, and never lists quanta.
 *
 * A fresh table: a unit may use at most min(ceil(bytes / 256 KiB), spread, shards) shards. This limit
 * always holds. Within it, the job's bytes are cut so that each shard is within one quantum of its share,
 * wherever such cuts exist. Units are placed in three ways:
 *   1. a unit goes to the shards that are furthest below their share if it may use only one shard, or if a
 *      fair cut would use more shards than the unit may. Such units are placed in the order of their
 *      pieces, the largest first;
 *   2. the units that may use several shards, but not all, lie one after the other on a line. The line is
 *      wound around the shards in laps, and each lap is as short as its units allow. Each unit thus uses
 *      about as many shards as it may, and begins on the shard where the unit before it ended;
 *   3. units that may use every shard are cut over all shards, each unit beginning at another shard. They
 *      level the differences that 1 and 2 have left. Each cut aims at the goal for all bytes placed until
 *      then, so rounding never adds up.
 *
 * A re-plan keeps what it can, and moves the rest in few pieces. Neighbouring extents on one shard count as
 * one piece. A shard above its share sheds bytes. First it sheds whole pieces of tensors of which it has
 * several, but never the largest piece of a tensor. Then it sheds other whole pieces, spread in proportion
 * over everything that it has. If a piece has at least twice the bytes of a shard's part of the unit, the
 * shard may shed only the end of the piece, in 256 KiB or more. Rounding is carried over to the next shard.
 * Everything on shards that are gone becomes free. Free quanta go to the shards below their share, if
 * possible as whole parts, and next to pieces that these shards have (plan_place.c). If this would not level
 * the shards, the quanta are placed as in a fresh table. The bytes that move thus never exceed the bound,
 * which is Σ max(0, share - old). Nothing moves while every shard is within one quantum (the job's
 * heaviest) of its share. A shard's distance from its share is at most one quantum more than the larger of
 * two: the distance in the fresh table, and one quantum. A re-plan applies the limit on spread only to the
 * bytes that move, so the whole layout need not keep this limit.
 *
 * Tensors that are new beside held ones become a fresh table of their own. A shard's weight in this table is
 * what it has less than the load to which the new tensors fill up the shards with the least.
 *
 * Over many re-plans the number of pieces still grows. A re-plan may have at most CAIRN_PLAN_PIECES_MOST
 * times the pieces of the fresh table, and a snapshot of it at most that many times the files. If it would
 * have more, the planner keeps nothing of some tensors. It chooses as few tensors as bring the re-plan well
 * below the limit (plan_keep.c). In that case more bytes move than the bound. With CAIRN_FREE_LEAST the bound
 * is kept however many pieces there are. With CAIRN_FREE_ALL the result is the fresh table. */
#ifndef CAIRN_PLAN_PLAN_H
#define CAIRN_PLAN_PLAN_H

#include <stddef.h>
#include <stdint.h>

#include "proto/base/status.h"
#include "proto/base/text.h"
#include "proto/geometry/layout.h"
#include "proto/spec/spec.h"

/* ==== moves ==== */

/* Inside the planner: a walk along two layouts of the same tensors, side by side. It goes in runs of
 * quanta, and each run lies within one extent of either layout. */

struct plan_run {
    const struct extent *extent; /* the extent of the current layout in which the run lies */
    const struct extent *target; /* the extent of the target in which the run lies */
    uint64_t first, count;       /* quanta of the run, at least one */
    uint32_t to; /* the owner in the target; the run stays if this is extent->shard */
};

struct plan_walk {
    const struct layout_tensor *tensors; /* borrowed, like the layouts */
    const struct layout *current, *target;
    size_t at_current, at_target; /* extents */
};

/* Fills in the next run. Returns 0 if there is no run left. */
int plan_walk_next(struct plan_walk *walk, struct plan_run *run_out);

/* ==== plan ==== */

#define CAIRN_SPREAD_DEFAULT     64
#define CAIRN_SPREAD_PIECE_BYTES ((uint64_t)256 << 10)
#define CAIRN_PLAN_BYTES_MAX     ((uint64_t)1 << 60) /* the most bytes of a job */
#define CAIRN_SHARD_GONE         UINT32_MAX

#define CAIRN_TENSOR_NEW UINT32_MAX

/* Which quanta of the held layout may be given to other shards. Quanta that nobody holds are free in any
 * case. */
enum plan_free {
    /* what shards have beyond their shares; and more, if there would be too many pieces */
    CAIRN_FREE_SURPLUS,
    CAIRN_FREE_LEAST, /* what shards have beyond their shares, however many pieces there are */
    CAIRN_FREE_ALL,   /* everything */
    /* Nothing. New tensors are placed beside the held ones, and shards with less load get more of them. The
     * weights say only which shards may get some: those whose weight is not 0. */
    CAIRN_FREE_NEW,
};

/* All pointers are borrowed, for the call only. */
struct plan_request {
    const struct layout_tensor *tensors; /* [tensor_count], names unique */
    uint32_t tensor_count;
    uint32_t shard_count;
    /* [shard_count]: the relative capacity of each shard, not all 0; NULL: all are equal. A shard of weight
     * 0 gets nothing, and gives up everything that is free. */
    const uint32_t *weights;
    uint32_t spread; /* the most shards that a unit may use; 0 = CAIRN_SPREAD_DEFAULT */

    const struct layout *held; /* NULL: nothing is held, and a fresh table is planned */
    enum plan_free free;
    /* [tensor_count], with CAIRN_FREE_NEW only: the number in `held` of each tensor, which must have the
     * same shape there, or CAIRN_TENSOR_NEW. Tensors of `held` that are not named are dropped. NULL: the
     * tensors are those of `held`, in the same order. */
    const uint32_t *was;
    /* [held->shard_count]: the new number of each old shard, or CAIRN_SHARD_GONE. NULL: each old shard keeps
     * its number, or is gone if this number is too high. With CAIRN_FREE_NEW each keeps its number. */
    const uint32_t *renumbered;
};

#define CAIRN_PLAN_PIECES_MOST 2 /* a re-plan's limit, as a multiple of the fresh table's pieces */

struct plan_report {
    uint64_t total_bytes;
    uint64_t quantum_bytes_max; /* bytes of the heaviest quantum */
    /* the largest load / share of a shard with a weight; 1 if there are no bytes */
    double heaviest_over_mean;
    uint64_t off_share_bytes_max; /* the greatest distance of a shard from its share */
    uint64_t moved_bytes;         /* with a held layout: bytes that change their owner */
    uint64_t moved_bytes_bound;   /* Σ max(0, share - old), the least that levels the shards */
    uint32_t unit_spread_max;     /* the most shards that hold a piece of one unit */
    /* the mean over all units of (shards that the unit uses / shards that it may use) */
    double unit_spread_of_possible;
    uint64_t pieces; /* layout_pieces */
    /* files of a snapshot: the sum over all shards of the most pieces that one tensor has on the shard */
    uint64_t files;
    uint64_t pieces_fresh, files_fresh; /* only in a re-plan: pieces and files of the fresh table */
    /* number of tensors of which nothing was kept, so that there are fewer pieces */
    uint32_t afresh_count;
};

/* Makes a layout. Its version is 1, or one above the held layout's version. report_out may be NULL, and is
 * not filled in with CAIRN_FREE_NEW. CAIRN_ERR_INVALID: a count or a weight is wrong, a name repeats, a shape
 * is over the limits, a tensor of the held layout had another shape, two old shards have the same new number,
 * or, with CAIRN_FREE_NEW, there would be fewer shards than before. CAIRN_ERR_NO_MEMORY. */
cairn_status plan_make(const struct plan_request *request, struct layout **layout_out,
                       struct plan_report *report_out) CAIRN_MUST_CHECK;

/* ==== plan job ==== */

/* The planner (above) for the tensors of a job. These functions know how many bytes an element of each
 * tensor costs, and plan the fresh table. They are pure. */

/* Returns the job's tensors for the planner, [tensor_count]; the caller frees the list. NULL: no memory. */
struct layout_tensor *plan_tensors(const struct job_spec_data *spec);
/* Returns how many bytes an extent costs its shard. A tensor's last quantum counts as a whole one. */
uint64_t plan_extent_bytes(const struct job_spec_data *spec, const struct layout *layout,
                           const struct extent *extent);
/* Does what layout_decode does, for the tensors of the spec. */
cairn_status plan_job_decode(const struct job_spec_data *spec, const uint8_t *data, size_t bytes,
                             struct layout **layout_out) CAIRN_MUST_CHECK;
/* Makes the same table for `shard_count` shards, at least as many as before, one version above `layout`.
 * Nothing moves. */
cairn_status plan_job_widen(const struct job_spec_data *spec, const struct layout *layout,
                            uint32_t shard_count, struct layout **layout_out) CAIRN_MUST_CHECK;
/* Returns how many of `shard_count` shards a job may use. */
uint32_t plan_job_shards(const struct job_spec_data *spec, uint32_t shard_count);
/* Plans a layout over `shard_count` shards, as plan_make does. The spec must be canonical and checked. */
cairn_status plan_job(const struct job_spec_data *spec, uint32_t shard_count,
                      struct layout **layout_out, struct plan_report *report_out) CAIRN_MUST_CHECK;

/* ==== resharding ==== */

/* The plan of a re-sharding. It has a target, which says which shard shall own each quantum of a job, and
 * slices, in which the quanta move to the target while training goes on. All functions are pure.
 *
 * The target is the planner's re-plan (above), which moves no more bytes than are needed to level the
 * shards. There is one exception: if the layout would have too many pieces, and the shards have room for
 * more moves, more bytes move. Shards keep their numbers. A shard of weight 0 gives up everything that it
 * has, and its number stays as a hole.
 *
 * A slice is a layout, one version above the layout before it. Each extent of the new layout was on its
 * shard before or moves to it, as a whole. An extent that stays lies within one extent of the layout
 * before, so it keeps its place in the shard's memory. For the same reason, the parts of an extent that was
 * cut are not joined again on the shard that holds them. Neighbouring quanta that move to one shard become
 * one extent, however many shards give them. If only a part of a run fits into the slice, the tail of the
 * run moves. If possible, the tail is cut on the giver's grid of chunks, so that no chunk is requested
 * twice. After the last slice every quantum has the owner that it has in the target, but the extents may be
 * cut in other places. During the move no shard has more bytes than the larger of two amounts: its bytes
 * before the move, and its bytes in the target plus one slice.
 *
 * Bytes are elements x elem_bytes of the tensor, where elem_bytes is everything that an element costs a
 * shard. */

/* All pointers are borrowed, for the call only. */
struct reshard_request {
    /* `held` is the current layout, and `free` is CAIRN_FREE_SURPLUS or CAIRN_FREE_LEAST. shard_count is at
     * least the count of `held`, because shards keep their numbers. `weights` is not used. */
    struct plan_request plan;
    /* [shard_count]; 0: the shard gives up everything, and gets nothing; NULL: all are equal */
    const double *weights;
    /* [shard_count]: the most bytes that each shard may own; 0: the shard has no bound; NULL: no shard has
     * a bound. A shard may always keep the bytes that it owns already. */
    const uint64_t *capacity_bytes;
    /* The bytes of one slice. The plan moves more bytes than needed only if every shard with a capacity has
     * this many bytes free, besides the bytes that it will own. */
    uint64_t slice_bytes;
    /* [shard_count]: names of the shards, for sentences; NULL: numbers are used instead */
    const char *const *names;
};

struct reshard_pair {
    uint32_t from, to; /* shards */
    uint64_t bytes;
};

struct reshard_report {
    struct plan_report plan; /* the report on the target */
    /* The largest load / fair load of a shard, where the requested weights say which load is fair. 1 if the
     * job is empty. In `heaviest_before`, a shard that leaves counts as an average shard. */
    double heaviest_before, heaviest_after;
    struct reshard_pair *pairs; /* owned: [pair_count], sorted by `from`, then by `to` */
    size_t pair_count;
};
void reshard_report_release(struct reshard_report *report);

/* Plans the target, which is a layout one version above the current one. report_out may be NULL; else the
 * caller must release the report. CAIRN_ERR_INVALID: a count is out of range, a weight is not a number or
 * is below 0, no weight is above 0, or a layout is of other tensors. CAIRN_ERR_NO_MEMORY: the capacities
 * are too small, or memory ran out here. `why` gives the reason, with the shard and the numbers. */
cairn_status plan_reshard(const struct reshard_request *request, struct layout **target_out,
                          struct reshard_report *report_out, struct sentence *why) CAIRN_MUST_CHECK;

/* All pointers are borrowed, for the call only. */
struct slice_request {
    const struct layout_tensor *tensors; /* [tensor_count], in the order of the layouts */
    uint32_t tensor_count;
    const struct layout *current;
    const struct layout *target; /* a layout of the same tensors, of any version */
    /* [shard count of the larger layout]: the most bytes that each shard may give in a slice, and the most
     * that it may take; NULL: everything moves at once. If the giver has given nothing yet in this slice,
     * and the taker has taken nothing yet, one quantum moves between the two, even if it is over their
     * limits. */
    const uint64_t *limit_bytes;
    uint32_t chunk_leaves; /* leaves of a chunk in this job, at least 1 */
};

/* bytes: how many bytes still have to move between two layouts. slices: at least how many slices this
 * takes, by the limits. */
struct slice_left {
    uint64_t bytes;
    uint32_t slices; /* the least possible number */
};

/* Makes the next layout on the way to the target. It has as many shards as the larger of the two layouts.
 * Sets *moved_out to the number of bytes that the slice moves; moved_out may be NULL. If the current layout
 * already has the owners of the target, *next_out is NULL, and the function returns CAIRN_OK. To take a
 * slice back, pass the layout that was in force before the slice as the target, and set no limits. The
 * result then has the owners of that layout, but its extents are cut so that every shard can switch to it
 * from the present layout. CAIRN_ERR_INVALID, CAIRN_ERR_NO_MEMORY. */
cairn_status plan_slice(const struct slice_request *request, struct layout **next_out,
                        uint64_t *moved_out) CAIRN_MUST_CHECK;
/* Counts the bytes that are still to move. The request is as for plan_slice, but no layout is made. */
cairn_status plan_slices_left(const struct slice_request *request,
                              struct slice_left *left_out) CAIRN_MUST_CHECK;

#endif
