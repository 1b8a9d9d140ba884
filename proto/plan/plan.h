/* The planner: (tensors, weights of shards, previous layout or none) -> layout. Pure, and the same table
 * for any order of the tensor list. Only the coordinator plans; everybody else reads tables.
 *
 * Load is counted in bytes: elements x elem_bytes of the tensor. The share of a shard is the job's bytes by
 * its weight. Cuts are arithmetic on prefix sums, made at quanta; quanta are never listed.
 *
 * A fresh table. A unit may use at most min(ceil(bytes / 256 KiB), spread, shards) shards. This limit is
 * hard. Within this limit the running prefix of the job's bytes is cut so that each shard is within one
 * quantum of its share wherever such cuts exist:
 *   1. a unit that may use one shard, or whose fair cut would use more than it may, goes to the
 *      shards that are furthest below their share, largest pieces first;
 *   2. the units that may use some of the shards, but not all, lie on one line. The line is wound around
 *      the shards in laps, and each lap is as short as its units allow. So each unit uses about as many
 *      shards as it may, and the next unit begins where it ended;
 *   3. units that may use every shard are cut over all shards, beginning at a rotating shard. They level
 *      the differences that 1 and 2 left. Each cut aims at the running goal, so rounding never adds up.
 *
 * A re-plan keeps what it can, and moves the rest in few pieces: neighbouring extents on one shard count as
 * one piece. A shard above its share first sheds whole pieces of the tensors of which it has several
 * pieces, but never the largest piece of a tensor. Then it sheds further whole pieces, spread in proportion
 * over everything that it has. If a piece is at least twice a shard's part of the unit, the shard sheds
 * only the piece's end, in 256 KiB or more. The rounding is carried from shard to shard. Everything on
 * shards that are gone becomes free. Free quanta go to the shards below their share, as whole parts where
 * possible and next to the pieces that those shards have (plan_keep.c). If that would not level the shards,
 * the quanta are placed as in a fresh table. So the bytes that move never exceed the bound, which is Σ
 * max(0, share - old). Nothing moves while every shard is within one quantum (the job's heaviest) of its
 * share. No shard is further from its share than the larger of two distances, plus one quantum: its
 * distance in the fresh table, and one quantum. The limit on spread is not promised for the whole layout: a
 * re-plan applies it only to what moves.
 *
 * Over many re-plans the pieces still grow in number. If a re-plan would have more than
 * CAIRN_PLAN_PIECES_MOST times the pieces of the fresh table, or that many times the files of a snapshot of
 * the fresh table, the planner keeps nothing of some tensors. It chooses as few tensors as bring the
 * re-plan well below the limit (plan_keep.c). Then more bytes move than the bound. `least` keeps the bound
 * however many pieces there are; `compact` ignores the previous table and gives exactly the fresh one. */
#ifndef CAIRN_PLAN_PLAN_H
#define CAIRN_PLAN_PLAN_H

#include <stddef.h>
#include <stdint.h>

#include "proto/base/status.h"
#include "proto/base/text.h"
#include "proto/geometry/layout.h"
#include "proto/spec/spec.h"

/* ==== moves ==== */

/* Inside the planner: two layouts of the same tensors are walked side by side, in runs of quanta that lie
 * within one extent of each. */

struct plan_run {
    const struct extent *extent; /* the extent of the current layout in which the run lies */
    const struct extent *target; /* the extent of the target in which the run lies */
    uint64_t first, count;       /* quanta, at least 1 */
    uint32_t to;                 /* owner in the target; if it is extent->shard, the run stays */
};

struct plan_walk {
    const struct layout_tensor *tensors; /* borrowed, like the layouts */
    const struct layout *current, *target;
    size_t at_current, at_target; /* extents */
};

/* Fills in the next run; returns 0 if there is none left. */
int plan_walk_next(struct plan_walk *walk, struct plan_run *run_out);

/* ==== plan ==== */

#define CAIRN_SPREAD_DEFAULT     64
#define CAIRN_SPREAD_PIECE_BYTES ((uint64_t)256 << 10)
#define CAIRN_PLAN_BYTES_MAX     ((uint64_t)1 << 60) /* of a job */
#define CAIRN_SHARD_GONE         UINT32_MAX

/* All pointers are borrowed, for the call only. */
struct plan_request {
    const struct layout_tensor *tensors; /* [tensor_count], names unique */
    uint32_t tensor_count;
    uint32_t shard_count;
    const uint32_t *weights; /* [shard_count], relative capacity, not all 0; NULL = equal.
                              * A shard of weight 0 gets nothing and gives up what it has. */
    uint32_t spread;         /* 0 = CAIRN_SPREAD_DEFAULT */

    /* NULL for a fresh table; else a layout of the same tensors in the same order. */
    const struct layout *previous;
    const uint32_t *renumbered; /* [previous->shard_count], the new number of each old shard or
                                 * CAIRN_SHARD_GONE; NULL = same number, or gone if it is too high */
    int compact;                /* 1 = plan the fresh table again, however many bytes move */
    int least; /* 1 = no more moves than the bound, however many pieces there are */
};

#define CAIRN_PLAN_PIECES_MOST 2 /* times the pieces of the fresh table */

struct plan_report {
    uint64_t total_bytes;
    uint64_t quantum_bytes_max;   /* of the heaviest quantum */
    double heaviest_over_mean;    /* largest load / share, over shards with a weight; 1 if empty */
    uint64_t off_share_bytes_max; /* the furthest any shard is from its share */
    uint64_t moved_bytes;         /* with a previous layout: bytes that change their owner */
    uint64_t moved_bytes_bound;   /* Σ max(0, share - old), the least that levels the shards */
    uint32_t unit_spread_max;     /* the most shards that hold a piece of one unit */
    double unit_spread_of_possible; /* mean over units: shards used / shards it may use */
    uint64_t pieces;                /* layout_pieces */
    uint64_t files; /* of a snapshot: Σ over shards of the most pieces of a tensor */
    uint64_t pieces_fresh, files_fresh; /* only of a re-plan: the same counts for the fresh table */
    uint32_t afresh_count; /* tensors of which nothing was kept, to have fewer pieces */
};

/* The new layout's version is 1, or one above the previous one's. report_out may be NULL.
 * CAIRN_ERR_INVALID: a count or a weight is wrong, a name repeats, a shape is over the limits, the previous
 * layout is of other tensors, or two old shards have one new number. CAIRN_ERR_NO_MEMORY. */
cairn_status plan_make(const struct plan_request *request, struct layout **layout_out,
                       struct plan_report *report_out) CAIRN_MUST_CHECK;

#define CAIRN_TENSOR_NEW UINT32_MAX
/* Makes a layout of the tensors over the shards of `previous`, in which nothing moves: tensor t keeps the
 * table of tensor was[t], which must have the same shape. Tensors whose was[t] is CAIRN_TENSOR_NEW are
 * placed as in a fresh table of the new ones alone, with weights that fill the least loaded shards first.
 * Nothing new is placed on a hole: holes[s] is 1 if the shard number s is no longer in use (NULL: there are
 * no holes). Tensors of `previous` that no was[t] names are dropped. Pure; the same for any order of the
 * list. `spread` as above. CAIRN_ERR_INVALID: as above, or a tensor had another shape, or there are new
 * tensors but all shards are holes. CAIRN_ERR_NO_MEMORY. */
cairn_status plan_extend(const struct layout_tensor *tensors, uint32_t tensor_count,
                         const struct layout *previous, const uint32_t *was, const uint8_t *holes,
                         uint32_t spread, struct layout **layout_out) CAIRN_MUST_CHECK;

/* ==== plan job ==== */

/* The planner (above) for the tensors of a job: this part knows how many bytes an element of each tensor
 * costs, and plans the fresh table. Pure. */

/* Returns the job's tensors for the planner, [tensor_count]; the caller frees the list. NULL: no memory. */
struct layout_tensor *plan_tensors(const struct job_spec_data *spec);
/* The bytes that an extent of a layout of the spec costs its shard; a tensor's last quantum counts
 * as whole. */
uint64_t plan_extent_bytes(const struct job_spec_data *spec, const struct layout *layout,
                           const struct extent *extent);
/* layout_decode, for the tensors of the spec. */
cairn_status plan_job_decode(const struct job_spec_data *spec, const uint8_t *data, size_t bytes,
                             struct layout **layout_out) CAIRN_MUST_CHECK;
/* plan_widen, for the tensors of the spec. */
cairn_status plan_job_widen(const struct job_spec_data *spec, const struct layout *layout,
                            uint32_t shard_count, struct layout **layout_out) CAIRN_MUST_CHECK;
/* How many of `shard_count` shards a job may use. */
uint32_t plan_job_shards(const struct job_spec_data *spec, uint32_t shard_count);
/* Plans a layout of a canonical, checked spec over `shard_count` shards; as plan_make. */
cairn_status plan_job(const struct job_spec_data *spec, uint32_t shard_count,
                      struct layout **layout_out, struct plan_report *report_out) CAIRN_MUST_CHECK;

/* ==== resharding ==== */

/* The plan of a re-sharding: which shard shall own each of a job's quanta (the target), and the slices in
 * which the quanta move there while training goes on. Pure; the same for the same arguments.
 *
 * The target is the planner's re-plan (plan.h): it moves no more bytes than are needed to level the shards.
 * It moves more only if the layout would otherwise be in too many pieces, and the shards have room for the
 * additional moves. Shards keep their numbers; a shard of weight 0 gives up everything that it has, and its
 * number stays as a hole.
 *
 * A slice is a layout, one version above the layout before it. Each of its extents either stays on its
 * shard or moves to it, as a whole. An extent that stays lies within one extent of the layout before, so
 * the extent keeps its place in the shard's memory. For the same reason extents that were cut are not
 * joined again on the shard that holds them. Neighbouring quanta that move to a shard are one extent,
 * however many shards give them. If only part of a run fits into the slice, the run's tail moves. The tail
 * is cut on the giver's grid of chunks where possible, so that no chunk is requested twice. After the last
 * slice the owners are the target's, but the extents may still be cut differently. During the move no shard
 * has more than the larger of two: what it had before the move, and what it has in the target plus one
 * slice.
 *
 * Bytes are elements x elem_bytes of the tensor (proto/plan/plan.h: everything that an element costs a
 * shard). */

/* All pointers are borrowed, for the call only. */
struct reshard_request {
    const struct layout_tensor *tensors; /* [tensor_count], in the order of the layout */
    uint32_t tensor_count;
    const struct layout *current;
    uint32_t shard_count;  /* at least the current one: numbers are kept */
    const double *weights; /* [shard_count], 0 = gives up all and gets nothing; NULL = equal */
    /* [shard_count], the most bytes that a shard may own, 0 = no bound; NULL = no shard has a bound. A
     * shard may always keep what it owns already. */
    const uint64_t *capacity_bytes;
    /* The bytes of one slice: the plan moves more than the least only if every shard with a capacity has
     * this many bytes free beside what the shard will own. */
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
    /* How many tensors are placed afresh because their layout had too many pieces (plan.h), although this
     * moves more bytes; and the pieces and files of the target, and of a fresh table. */
    uint32_t afresh_count;
    uint64_t pieces, files, pieces_fresh, files_fresh;
    /* The largest load / fair load, by the weights asked for. In `heaviest_before` a shard that leaves
     * counts as an average shard. 1 if the job is empty. */
    double heaviest_before, heaviest_after;
    struct reshard_pair *pairs; /* owned: [pair_count], by from, then to */
    size_t pair_count;
};
void reshard_report_release(struct reshard_report *report);

/* Plans the target: a layout one version above the current one. report_out may be NULL; otherwise the
 * caller releases the report. CAIRN_ERR_INVALID: a count is out of range, a weight is not a number or is
 * below 0, no weight is above 0, or a layout is of other tensors. CAIRN_ERR_NO_MEMORY: the capacities are
 * too small, or memory ran out here. `why` tells the reason, with the shard and the numbers. */
cairn_status plan_reshard(const struct reshard_request *request, struct layout **target_out,
                          struct reshard_report *report_out, struct sentence *why) CAIRN_MUST_CHECK;

/* All pointers are borrowed, for the call only. */
struct slice_request {
    const struct layout_tensor *tensors; /* [tensor_count], in the order of the layouts */
    uint32_t tensor_count;
    const struct layout *current;
    const struct layout *target; /* of the same tensors; any version */
    /* [shards of the larger layout], the most bytes that a shard gives in a slice, and the most that it
     * takes; NULL = everything at once. If the giver has given nothing yet in this slice, and the taker has
     * taken nothing yet, one quantum moves between the two whatever their limits are. */
    const uint64_t *limit_bytes;
    uint32_t chunk_leaves; /* of the job: at least 1 */
};

/* The bytes that still have to move between two layouts, and into how many slices the limits divide these
 * bytes. */
struct slice_left {
    uint64_t bytes;
    uint32_t slices; /* at least */
};

/* Makes the next layout on the way to the target, with the shards of the larger layout. *moved_out becomes
 * the number of bytes that the slice moves; moved_out may be NULL. If the current layout already has the
 * target's owners, *next_out is NULL and CAIRN_OK is returned. To take a slice back, pass as the target the
 * layout that was in force before the slice, and set no limits. The result then has the target's owners,
 * but its extents are cut so that every shard can switch to it from the present layout. CAIRN_ERR_INVALID,
 * CAIRN_ERR_NO_MEMORY. */
cairn_status plan_slice(const struct slice_request *request, struct layout **next_out,
                        uint64_t *moved_out) CAIRN_MUST_CHECK;
/* Counts what is still to move: as plan_slice, but no layout is made. */
cairn_status plan_slices_left(const struct slice_request *request,
                              struct slice_left *left_out) CAIRN_MUST_CHECK;

/* Makes the same table over more shards, one version above: nothing moves. CAIRN_ERR_INVALID: fewer shards
 * than the table has. CAIRN_ERR_NO_MEMORY. */
cairn_status plan_widen(const struct layout_tensor *tensors, uint32_t tensor_count,
                        const struct layout *current, uint32_t shard_count,
                        struct layout **next_out) CAIRN_MUST_CHECK;

#endif
