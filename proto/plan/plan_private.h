/* Inside the planner: a plan in the making, shared by plan.c (the whole course; free units onto shards: stiff
 * and whole; the line) and plan_keep.c (what a re-plan keeps and frees, and where that goes; in how many
 * pieces it lies). reshard.c asks for the pieces, too. */
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
    uint64_t load;  /* bytes it has so far */
    uint64_t base;  /* load at the last levelling */
    uint64_t want;  /* bytes of the free ones it should get, at the last levelling */
    uint32_t weight;
};

/* Extents that grow. `shard` is not used where they are free. */
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
    int keeps;                  /* a re-plan */
    const uint8_t
        *afresh; /* borrowed: [tensor_count], 1 = none of it is kept; NULL: of no tensor */

    /* owned: freed by plan.c */
    struct geometry *geometry; /* [tensor_count] */
    uint32_t *order;           /* [tensor_count], tensors by unit name, then name */
    uint32_t *rank;            /* [tensor_count], the place of a tensor in order */
    uint32_t *unit_of;         /* [tensor_count], number of a tensor's unit, in that order */
    uint64_t *unit_bytes;      /* [tensor_count], by unit number: of the whole unit */
    struct cut_shard *shards;  /* [shard_count] */
    uint32_t *receivers;       /* [shard_count], the first receiver_count take free quanta */
    uint32_t receiver_count;
    struct extent_list free_runs; /* in canonical order once they are placed */
    struct extent_list table;     /* so far, in any order */

    uint64_t free_bytes;     /* not yet placed */
    uint64_t levelled_bytes; /* free_bytes at the last levelling */
    uint64_t wanted_bytes;   /* Σ want, a few bytes less for rounding */
};

/* Free units on their way onto the receivers. */
struct placing {
    struct plan_cut *cut;      /* borrowed */
    struct free_unit *units;   /* owned: [unit_count] */
    struct free_unit **sorted; /* owned: [unit_count], being placed in some order */
    struct free_unit **spare;  /* owned: [unit_count] */
    uint32_t *heap;            /* owned: [receiver_count], receivers, the neediest first */
    uint32_t heap_count;
    uint32_t *window; /* owned: [receiver_count] */
    uint64_t *pieces; /* owned: [receiver_count], bytes */
    uint8_t *settled; /* owned: [receiver_count], levelling leaves it out */
    size_t unit_count;
    cairn_status status; /* the first failure */
};

/* How far a unit has been placed. */
struct cursor {
    const struct free_unit *unit;
    size_t run;       /* runs done */
    uint64_t quantum; /* quanta done of the next one */
    uint64_t bytes;   /* done, at a quantum's edge */
};

/* floor(a * num / den), for results that fit; den > 0. */
uint64_t plan_scale(uint64_t a, uint64_t num, uint64_t den);
/* Bytes of the quanta [first, first + count) of a tensor. */
uint64_t plan_bytes(const struct plan_cut *cut, uint32_t tensor, uint64_t first, uint64_t count);
/* min(ceil(bytes / 256 KiB), spread, shards), at least 1. */
uint32_t plan_may_use(const struct plan_cut *cut, uint64_t bytes, uint32_t shard_count);
/* One plan. `afresh` as plan_cut's. */
cairn_status plan_make_once(const struct plan_request *request, const uint8_t *afresh,
                            struct layout **layout_out,
                            struct plan_report *report_out) CAIRN_MUST_CHECK;
/* Fills in pieces and files. */
cairn_status plan_count(const struct layout *layout, struct plan_report *report) CAIRN_MUST_CHECK;
/* Takes another re-plan for *layout, and of it for *report, where it has too many pieces. */
cairn_status plan_gather(const struct plan_request *request, struct layout **layout,
                         struct plan_report *report) CAIRN_MUST_CHECK;
/* The bytes of a shard's part of the tensor's unit, if the unit lies on as many shards as it may
 * use. */
uint64_t plan_part_bytes(const struct plan_cut *cut, uint32_t tensor);
/* Adds an extent, joined with the last one where it continues it. CAIRN_ERR_NO_MEMORY. */
cairn_status plan_append(struct extent_list *list, struct extent extent);

/* Joins neighbours of one shard in a list that is sorted. */
void plan_join(struct extent_list *list);

/* The new number of an old shard, or CAIRN_SHARD_GONE. */
uint32_t plan_renumber(const struct plan_request *request, uint32_t old);

/* Sorts by key[tensor] (NULL: by tensor), then by first quantum. */
cairn_status plan_sort(struct extent_list *list, const uint32_t *key,
                       uint32_t tensor_count) CAIRN_MUST_CHECK;
/* Fills table with what stays where it is, free_runs with the rest, and chooses the receivers. */
cairn_status plan_keep(struct plan_cut *cut) CAIRN_MUST_CHECK;

/* Fills the report on the finished layout. */
cairn_status plan_describe(const struct plan_cut *cut, const struct layout *layout,
                           struct plan_report *report_out) CAIRN_MUST_CHECK;

/* Quanta of [first, first + count) to take for `room` bytes: the nearest edge. */
uint64_t plan_nearest(const struct plan_cut *cut, uint32_t tensor, uint64_t first, uint64_t count,
                      uint64_t room);
/* Bytes that a shard still wants; below 0: it has more than it wants. The heap has the neediest
 * shard on top; sink: the one in place i has become less needy. */
int64_t plan_need(const struct plan_cut *cut, uint32_t shard);
void plan_heap_push(struct placing *p, uint32_t shard);
uint32_t plan_heap_pop(struct placing *p);
void plan_heap_sink(struct placing *p, uint32_t i);
/* Places what a re-plan freed; 0: nothing is placed, since the receivers would not be level. */
int plan_fill(struct placing *p);

#endif
