/* Jobs for tests of the planner, and an oracle that asks for the owner of every single quantum. */
#ifndef CAIRN_TESTS_PLAN_ORACLE_H
#define CAIRN_TESTS_PLAN_ORACLE_H

#include "proto/plan/plan.h"

#define ORACLE_SHARDS_MAX 256
#define ORACLE_QUANTA_MAX 65536 /* of one tensor */

struct job {
    struct layout_tensor *tensors; /* owned, with their names */
    uint32_t tensor_count;
};

/* splitmix64; a test sets the seed first. */
extern uint64_t random_state;
uint64_t random_next(void);
uint64_t random_below(uint64_t limit);

struct job job_open(uint32_t tensor_count);
void job_close(struct job *job);
void job_set(struct job *job, uint32_t t, uint64_t unit, struct shape shape);
struct shape vector_of(uint64_t elems);
struct shape matrix_of(uint64_t rows, uint64_t columns);
/* Up to 60 tensors of 0 to 8 dimensions, now and then empty, in up to 20 units. */
struct job random_job(uint64_t elems_max);
/* Blocks of a transformer, a unit each: 4 d*d of attention, 8 d*d of feed-forward, norms; embedding
 * and head. */
struct job transformer(uint32_t layers, uint64_t width, uint64_t vocabulary);

/* A fresh plan on shards of equal weight. */
struct plan_request ask(const struct job *job, uint32_t shard_count);
/* Asserts that it can be made. report may be NULL. */
struct layout *plan(const struct plan_request *request, struct plan_report *report);

/* The same table for more shards: nothing moves. Takes `layout`, and returns what takes its place. */
struct layout *widened(const struct job *job, struct layout *layout, uint32_t shard_count);

struct oracle {
    uint64_t loads[ORACLE_SHARDS_MAX];     /* by new number */
    uint64_t old_loads[ORACLE_SHARDS_MAX]; /* by new number, of what is still there */
    uint64_t shares[ORACLE_SHARDS_MAX];
    uint64_t total, moved, bound, heaviest_quantum, off_share;
};
/* Counts quantum by quantum, and asserts that each has exactly one owner. The answer is valid until
 * the next call. */
const struct oracle *count_all(const struct plan_request *request, const struct layout *layout);
/* Asserts that the planner said of itself what the oracle counted. */
void report_is_true(const struct plan_report *report, const struct oracle *o);
/* How far a shard is from its share, in the job's heaviest quanta. */
double quanta_off(const struct plan_report *report);

#endif
