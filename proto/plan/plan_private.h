/* Inside the planner: the state of a plan in progress. plan.c uses it (it runs the plan, and places free
 * units on shards: stiff units, whole units, and units on the line), and so does plan_keep.c (it decides
 * what a re-plan keeps and frees and where the free quanta go, and counts pieces). reshard.c uses
 * plan_count, too. */
#ifndef CAIRN_PLAN_PLAN_PRIVATE_H
#define CAIRN_PLAN_PLAN_PRIVATE_H

#include <stddef.h>
#include <stdint.h>

#include "proto/plan/plan.h"

/* The free runs of one unit, and how many shards they may use. */
struct free_unit {
    size_t first_run, run_count; /* in plan_cut.free_runs */
    uint64_t bytes;
    uint32_t may_use;
    uint32_t number; /* canonical: by the unit's name */
};

struct cut_shard {
    uint64_t share; /* of the job's bytes, by weight */
    uint64_t load;  /* bytes placed on it so far */
    uint64_t base;  /* load at the last levelling */
    uint64_t want;  /* how many of the free bytes it should get, as of the last levelling */
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
    uint64_t quantum_bytes_max; /* of the heaviest quantum */
    uint32_t able_count;        /* shards with a weight */
    int keeps;                  /* 1 = a re-plan that keeps quanta of the previous layout */
    const uint8_t
        *afresh; /* borrowed: [tensor_count], 1 = nothing of it is kept; NULL: no tensor */

    /* owned: freed by plan.c */
    struct geometry *geometry; /* [tensor_count] */
    uint32_t *order;           /* [tensor_count], tensors by unit name, then name */
    uint32_t *rank;            /* [tensor_count], the place of a tensor in order */
    uint32_t *unit_of;         /* [tensor_count], number of a tensor's unit, in that order */
    uint64_t *unit_bytes;      /* [tensor_count], by unit number: the bytes of the whole unit */
    struct cut_shard *shards;  /* [shard_count] */
    uint32_t *receivers;       /* [shard_count], the first receiver_count take free quanta */
    uint32_t receiver_count;
    struct extent_list free_runs; /* in canonical order from plan_place on */
    struct extent_list table;     /* the extents placed so far, in any order */

    uint64_t free_bytes;     /* not yet placed */
    uint64_t levelled_bytes; /* free_bytes at the last levelling */
    uint64_t wanted_bytes;   /* Σ want; rounding makes it a few bytes less than levelled_bytes */
};

/* The state of placing free units on the receivers. */
struct placing {
    struct plan_cut *cut;      /* borrowed */
    struct free_unit *units;   /* owned: [unit_count] */
    struct free_unit **sorted; /* owned: [unit_count], being placed in some order */
    struct free_unit **spare;  /* owned: [unit_count] */
    uint32_t *heap;            /* owned: [receiver_count], receivers, the neediest first */
    uint32_t heap_count;
    uint32_t *window; /* owned: [receiver_count] */
    uint64_t *pieces; /* owned: [receiver_count], bytes */
    /* owned: [receiver_count], 1 = is above the level: gets nothing by levelling */
    uint8_t *settled;
    size_t unit_count;
    cairn_status status; /* the first failure */
};

/* How much of a unit has been placed. */
struct cursor {
    const struct free_unit *unit;
    size_t run;       /* runs done */
    uint64_t quantum; /* quanta done of the next run */
    uint64_t bytes;   /* bytes done, up to a quantum's edge */
};

/* floor(a * num / den), for results that fit; den > 0. */
uint64_t plan_scale(uint64_t a, uint64_t num, uint64_t den);
/* Bytes of the quanta [first, first + count) of a tensor. */
uint64_t plan_bytes(const struct plan_cut *cut, uint32_t tensor, uint64_t first, uint64_t count);
/* min(ceil(bytes / 256 KiB), spread, shards), at least 1. */
uint32_t plan_may_use(const struct plan_cut *cut, uint64_t bytes, uint32_t shard_count);
/* Makes one plan, without a second try for too many pieces. `afresh` as in struct plan_cut. */
cairn_status plan_make_once(const struct plan_request *request, const uint8_t *afresh,
                            struct layout **layout_out,
                            struct plan_report *report_out) CAIRN_MUST_CHECK;
/* Fills in pieces and files of the report. */
cairn_status plan_count(const struct layout *layout, struct plan_report *report) CAIRN_MUST_CHECK;
/* If the re-plan *layout has too many pieces, replaces *layout by another re-plan, and *report by the
 * report on the new one. */
cairn_status plan_gather(const struct plan_request *request, struct layout **layout,
                         struct plan_report *report) CAIRN_MUST_CHECK;
/* The bytes of a shard's part of the tensor's unit, if the unit lies on as many shards as it may
 * use. */
uint64_t plan_part_bytes(const struct plan_cut *cut, uint32_t tensor);
/* Adds an extent, or joins it with the list's last extent if it continues that extent.
 * CAIRN_ERR_NO_MEMORY. */
cairn_status plan_append(struct extent_list *list, struct extent extent);

/* Joins neighbouring extents of one shard in a sorted list. */
void plan_join(struct extent_list *list);

/* The new number of an old shard, or CAIRN_SHARD_GONE. */
uint32_t plan_renumber(const struct plan_request *request, uint32_t old);

/* Sorts by key[tensor] (NULL: by tensor), then by first quantum. */
cairn_status plan_sort(struct extent_list *list, const uint32_t *key,
                       uint32_t tensor_count) CAIRN_MUST_CHECK;
/* Puts the quanta that stay on their shards into `table` and all others into `free_runs`, and chooses the
 * receivers. */
cairn_status plan_keep(struct plan_cut *cut) CAIRN_MUST_CHECK;

/* Fills the report on the finished layout. */
cairn_status plan_describe(const struct plan_cut *cut, const struct layout *layout,
                           struct plan_report *report_out) CAIRN_MUST_CHECK;

/* Returns how many quanta of [first, first + count) to take for `room` bytes: up to the nearest edge. */
uint64_t plan_nearest(const struct plan_cut *cut, uint32_t tensor, uint64_t first, uint64_t count,
                      uint64_t room);
/* Returns the bytes that a shard still wants; a negative number means it has more than it wants. The heap
 * has the neediest shard on top. Call plan_heap_sink when the shard in place i has become less needy. */
int64_t plan_need(const struct plan_cut *cut, uint32_t shard);
void plan_heap_push(struct placing *p, uint32_t shard);
uint32_t plan_heap_pop(struct placing *p);
void plan_heap_sink(struct placing *p, uint32_t i);
/* Places what a re-plan freed. Returns 0 and places nothing if the receivers would not become level. */
int plan_fill(struct placing *p);

#endif
