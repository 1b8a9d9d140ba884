/* Inside the planner: the state of a plan in progress. plan.c runs the plan, and describes it when it is
 * finished. plan_keep.c decides which quanta of the held layout stay, and which become free; it also counts
 * pieces. plan_place.c places the free quanta. reshard.c uses the walk, the lists and the bytes. */
#ifndef CAIRN_PLAN_PLAN_PRIVATE_H
#define CAIRN_PLAN_PLAN_PRIVATE_H

#include <stddef.h>
#include <stdint.h>

#include "proto/plan/plan.h"

struct cut_shard {
    uint64_t share; /* the shard's share of the job's bytes, by weight */
    uint64_t load;  /* bytes that are placed on the shard until now */
    uint64_t base;  /* the load at the last levelling */
    /* how many of the free bytes the shard should get, as computed at the last levelling */
    uint64_t want;
    uint32_t weight;
};

/* A list of extents that grows. `shard` has no meaning in a list of free runs. */
struct extent_list {
    struct extent *items;
    size_t count, limit;
};

struct plan_cut {
    const struct plan_request *request; /* borrowed */
    uint32_t spread;
    uint64_t total_bytes;
    uint64_t quantum_bytes_max; /* bytes of the heaviest quantum */
    uint32_t able_count;        /* number of shards with a weight */
    int keeps;                  /* 1 = a re-plan that keeps quanta of the held layout */
    /* borrowed: [tensor_count], 1 = nothing of the tensor is kept; NULL: something of every tensor may be
     * kept */
    const uint8_t *afresh;

    /* owned: freed by plan.c */
    struct geometry *geometry; /* [tensor_count] */
    /* [tensor_count]: the tensors, sorted by the unit's name, then by their own: the canonical order */
    uint32_t *order;
    uint32_t *rank; /* [tensor_count]: the place of each tensor in `order` */
    /* [tensor_count]: the number of each tensor's unit; units are numbered in that order, too */
    uint32_t *unit_of;
    uint64_t *unit_bytes; /* [tensor_count], by the unit's number: the bytes of the whole unit */
    struct cut_shard *shards; /* [shard_count] */
    /* [shard_count]: the first receiver_count of these shards take free quanta */
    uint32_t *receivers;
    uint32_t receiver_count;
    struct extent_list free_runs; /* in canonical order when plan_place begins */
    struct extent_list table;     /* the extents that have been placed, in any order */

    uint64_t free_bytes;     /* bytes that are not placed yet */
    uint64_t levelled_bytes; /* free_bytes at the last levelling */
    /* the sum of all `want`, which rounding makes a few bytes less than levelled_bytes */
    uint64_t wanted_bytes;
};

/* Returns a - b, but 0 if b is larger. */
static inline uint64_t plan_minus(uint64_t a, uint64_t b)
{
    return a > b ? a - b : 0;
}
/* Returns floor(a * num / den). `den` must be above 0, and the result must fit. */
uint64_t plan_scale(uint64_t a, uint64_t num, uint64_t den);
/* Returns the bytes of the quanta [first, first + count) of a tensor with that geometry. */
uint64_t plan_quanta_bytes(const struct geometry *geometry, uint32_t elem_bytes, uint64_t first,
                           uint64_t count);
/* The same for tensor number `tensor` of the plan, and for the tensor of a run. */
uint64_t plan_bytes(const struct plan_cut *cut, uint32_t tensor, uint64_t first, uint64_t count);
uint64_t plan_run_bytes(const struct plan_walk *walk, const struct plan_run *run, uint64_t first,
                        uint64_t count);
/* Returns how many shards a unit of so many bytes may use: min(ceil(bytes / 256 KiB), spread, shard_count),
 * but at least 1. */
uint32_t plan_may_use(const struct plan_cut *cut, uint64_t bytes, uint32_t shard_count);
/* Makes one plan. If it has too many pieces, there is no second try. `afresh` is as in struct plan_cut. */
cairn_status plan_make_once(const struct plan_request *request, const uint8_t *afresh,
                            struct layout **layout_out,
                            struct plan_report *report_out) CAIRN_MUST_CHECK;
/* Fills in `pieces` and `files` of the report. */
cairn_status plan_count(const struct layout *layout, struct plan_report *report) CAIRN_MUST_CHECK;
/* If the re-plan *layout has too many pieces, replaces *layout by a re-plan with fewer, and *report by the
 * report on it. */
cairn_status plan_gather(const struct plan_request *request, struct layout **layout,
                         struct plan_report *report) CAIRN_MUST_CHECK;
/* Returns how many bytes a shard's part of the tensor's unit has if the unit lies on as many shards as it
 * may use. */
uint64_t plan_part_bytes(const struct plan_cut *cut, uint32_t tensor);
/* Adds an extent to the list. If the extent continues the last extent of the list, the two are joined.
 * CAIRN_ERR_NO_MEMORY. */
cairn_status plan_append(struct extent_list *list, struct extent extent);

/* Joins neighbouring extents of one shard in a sorted list. */
void plan_join(struct extent_list *list);

/* Returns the new number of an old shard, or CAIRN_SHARD_GONE. */
uint32_t plan_renumber(const struct plan_request *request, uint32_t old);

/* Sorts the list by key[tensor] (NULL: by tensor), then by the first quantum. */
cairn_status plan_sort(struct extent_list *list, const uint32_t *key,
                       uint32_t tensor_count) CAIRN_MUST_CHECK;
/* Puts the quanta that stay on their shards into `table` and all others into `free_runs`, and chooses the
 * receivers. */
cairn_status plan_keep(struct plan_cut *cut) CAIRN_MUST_CHECK;

/* Places all free runs, which are in canonical order, on the receivers. */
cairn_status plan_place(struct plan_cut *cut) CAIRN_MUST_CHECK;
/* Makes the layout of a finished table. On success the table is empty, because the layout owns it. */
cairn_status plan_close_table(const struct layout_tensor *tensors, uint32_t tensor_count,
                              uint32_t shard_count, uint64_t version, struct extent_list *table,
                              struct layout **layout_out) CAIRN_MUST_CHECK;

#endif
