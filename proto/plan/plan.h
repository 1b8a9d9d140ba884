/* The planner: (tensors, weights of shards, previous layout or none) -> layout. Pure, and the same
 * table for any order of the tensor list. Only the coordinator plans; everybody else reads tables.
 *
 * Load is counted in bytes: elements x elem_bytes of the tensor. The share of a shard is the job's
 * bytes by its weight. Cuts are arithmetic on prefix sums, made at quanta; quanta are never listed.
 *
 * A fresh table. A unit may use at most min(ceil(bytes / 256 KiB), spread, shards) shards. This
 * limit is hard; within it the running prefix of the job's bytes is cut so that each shard is
 * within one quantum of its share wherever such cuts exist:
 *   1. a unit that may use one shard, or whose fair cut would use more than it may, goes to the
 *      shards that are furthest below their share, largest pieces first;
 *   2. units that may use some of the shards lie on one line, the line is wound around the shards in
 *      laps, each as short as the units in it allow, so that each unit uses about as many shards as
 *      it may and the next one begins where it ended;
 *   3. units that may use every shard are cut over all of them, beginning at a rotating shard, and
 *      level what 1 and 2 left. Each cut aims at the running goal, so rounding never adds up.
 *
 * A re-plan keeps what it can, and moves it in few pieces: neighbours of one shard are one piece, however
 * they came there. Shards above their share shed first what they have of a tensor beside their largest piece
 * of it, then whole pieces along their bytes in proportion, or, where a piece is twice a shard's part of the
 * unit, its end, in 256 KiB or more, carrying the rounding from shard to shard; what gone shards held is
 * free; and what is free goes to the shards below their share, whole where it can and next to what they have
 * (plan_keep.c), or, where that would not level them, as above. So what moves never exceeds the bound, Σ
 * max(0, share - old), and nothing at all moves while every shard is within one quantum (the job's heaviest)
 * of its share. Balance is that of the fresh table or better, or one quantum off, give or take another
 * quantum. It does not promise the limit on spread, which it applies only to what moves.
 *
 * In the long run pieces grow in number all the same. Where a re-plan would have more than
 * CAIRN_PLAN_PIECES_MOST times the pieces of the fresh table, or the files that a snapshot of it has,
 * nothing is kept of as few tensors as bring it well below that (plan_keep.c): then more moves than the
 * bound. `least` asks for the bound whatever the pieces; `compact` ignores the previous table and gives
 * exactly the fresh one. */
#ifndef CAIRN_PLAN_PLAN_H
#define CAIRN_PLAN_PLAN_H

#include <stddef.h>
#include <stdint.h>

#include "proto/base/status.h"
#include "proto/base/text.h"
#include "proto/geometry/layout.h"
#include "proto/spec/spec.h"

/* ==== moves ==== */

/* Inside the planner: two layouts of the same tensors walked side by side, by runs of quanta that lie within
 * one extent of each. */

struct plan_run {
    const struct extent *extent; /* of the current layout: the run lies in it */
    const struct extent *target; /* of the target: likewise */
    uint64_t first, count;       /* quanta, at least 1 */
    uint32_t to;                 /* the owner in the target; extent->shard = it stays */
};

struct plan_walk {
    const struct layout_tensor *tensors; /* borrowed, as the layouts */
    const struct layout *current, *target;
    size_t at_current, at_target; /* extents */
};

/* 0: that was the last one. */
int plan_walk_next(struct plan_walk *walk, struct plan_run *run_out);

/* ==== plan ==== */

#define CAIRN_SPREAD_DEFAULT     64
#define CAIRN_SPREAD_PIECE_BYTES ((uint64_t)256 << 10)
#define CAIRN_PLAN_BYTES_MAX     ((uint64_t)1 << 60) /* of a job */
#define CAIRN_SHARD_GONE         UINT32_MAX

/* All borrowed, for the call only. */
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
                                 * CAIRN_SHARD_GONE; NULL = same number, gone if there is none */
    int compact;                /* 1 = back to the fresh form, whatever moves */
    int least; /* 1 = no more moves than the bound, however many pieces there are */
};

#define CAIRN_PLAN_PIECES_MOST 2 /* times those of the fresh table */

struct plan_report {
    uint64_t total_bytes;
    uint64_t quantum_bytes_max;   /* of the heaviest quantum */
    double heaviest_over_mean;    /* largest load / share, over shards with a weight; 1 if empty */
    uint64_t off_share_bytes_max; /* the furthest any shard is from its share */
    uint64_t moved_bytes;         /* with a previous layout: quanta with another owner */
    uint64_t moved_bytes_bound;   /* Σ max(0, share - old), the least that levels the shards */
    uint32_t unit_spread_max;     /* the most shards that hold a piece of one unit */
    double unit_spread_of_possible; /* mean over units: shards used / shards it may use */
    uint64_t pieces;                /* layout_pieces */
    uint64_t files;                 /* of a snapshot: of each shard the most pieces of one tensor */
    uint64_t pieces_fresh, files_fresh; /* a re-plan: of the fresh table */
    uint32_t afresh_count; /* tensors of which nothing was kept, since there were too many pieces */
};

/* The new layout's version is 1, or one above the previous one's. report_out may be NULL.
 * CAIRN_ERR_INVALID: a count or weight, names that repeat, shapes over the limits, a previous layout
 * of other tensors, two old shards with one new number. CAIRN_ERR_NO_MEMORY. */
cairn_status plan_make(const struct plan_request *request, struct layout **layout_out,
                       struct plan_report *report_out) CAIRN_MUST_CHECK;

#define CAIRN_TENSOR_NEW UINT32_MAX
/* A layout of the tensors over the shards of `previous`, in which nothing moves: tensor t keeps the
 * table of tensor was[t], which has the same shape; where was[t] is CAIRN_TENSOR_NEW it is planned as a
 * fresh table of the new ones alone is, weighed so that it fills the least loaded shards first, and
 * never a hole: holes[s] is 1 where no shard has the number s any longer (NULL: none is). Tensors that
 * nobody was are gone. Pure; the same for any order of the list. `spread` as above. CAIRN_ERR_INVALID:
 * as above, or a tensor had another shape, or there are new ones and only holes. CAIRN_ERR_NO_MEMORY. */
cairn_status plan_extend(const struct layout_tensor *tensors, uint32_t tensor_count,
                         const struct layout *previous, const uint32_t *was, const uint8_t *holes,
                         uint32_t spread, struct layout **layout_out) CAIRN_MUST_CHECK;

/* ==== plan job ==== */

/* The planner (above) for the tensors of a job: what an element of each costs, and the fresh
 * table. Pure. */

/* For the planner, [tensor_count], the caller's; NULL: no memory. */
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
/* Plans a canonical, judged spec over so many shards; as plan_make. */
cairn_status plan_job(const struct job_spec_data *spec, uint32_t shard_count,
                      struct layout **layout_out, struct plan_report *report_out) CAIRN_MUST_CHECK;

/* ==== resharding ==== */

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
