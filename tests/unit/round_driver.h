/* Drives the coordinator's round machine by hand, for test_round*.c: two shards, up to four workers, one
 * group of AdamW, step_deadline 1000 ms, loss scale 1, unless a test says otherwise. Actions pile up until
 * `clear`. */
#ifndef CAIRN_TESTS_ROUND_DRIVER_H
#define CAIRN_TESTS_ROUND_DRIVER_H

#include <check.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "proto/spec/spec.h"
#include "server/core/round.h"
#include "tests/support/hyper.h"
#include "tests/support/suite.h"

#define SHARDS 2
#define A      101
#define B      102
#define C      103

static struct round_config config;
static struct group_hyper group;
static struct round_machine *core;
static struct round_action list[256];
static struct round_actions out;

static inline void clear(void)
{
    out.count = 0;
}

/* A loss scale that goes from `start` down to 1 and back. */
static inline void scale_from(double start)
{
    config.scaling = (struct round_scaling) {
        .start = start, .dynamic = true, .min = 1, .max = start, .growth_rounds = 2000
    };
}

/* A new incarnation. */
static inline void make(uint64_t epoch, uint64_t reserved)
{
    config.epoch = epoch;
    config.round_reserved = reserved;
    free(core);
    void *memory = malloc(round_bytes(&config));
    ck_assert_ptr_nonnull(memory);
    core = round_init(memory, &config);
    out = (struct round_actions) { list, 0, sizeof list / sizeof *list };
}

static inline void set_up(void)
{
    group = cairn_hyper_default(CAIRN_OPTIMIZER_ADAMW);
    config = (struct round_config) { .shard_count = SHARDS,
                                     .member_max = 4,
                                     .step_deadline_ms = 1000,
                                     .terms = { .groups = &group, .workers_min = 1 },
                                     .group_count = 1,
                                     .scaling = { .start = 1 } };
    core = NULL;
    make(0, 0);
}

static inline void tear_down(void)
{
    free(core);
}

static inline void give(const struct round_event *event)
{
    round_on_event(core, event, &out);
}

#define GIVE(...) give(&(const struct round_event) { __VA_ARGS__ })

static inline void join(uint64_t member, uint32_t rank)
{
    GIVE(.kind = CAIRN_ROUND_WORKER_JOIN, .member = member, .rank = rank);
}

static inline void down(uint64_t member)
{
    GIVE(.kind = CAIRN_ROUND_WORKER_DOWN, .member = member);
}

static inline void want(uint64_t member)
{
    GIVE(.kind = CAIRN_ROUND_WORKER_BEGIN, .member = member);
}

static inline void ask(uint64_t member, uint64_t round)
{
    GIVE(.kind = CAIRN_ROUND_WORKER_COMMIT, .member = member, .round = round);
}

static inline void persisted(void)
{
    GIVE(.kind = CAIRN_ROUND_PERSISTED, .epoch = round_epoch_of(core));
}

static inline void shard_up(uint32_t shard)
{
    GIVE(.kind = CAIRN_ROUND_SHARD_UP, .shard = shard);
}

static inline void shard_down(uint32_t shard)
{
    GIVE(.kind = CAIRN_ROUND_SHARD_DOWN, .shard = shard);
}

/* What shards know, to answer with. */
static inline struct decision known(enum decision_kind kind, uint64_t round, uint64_t step)
{
    return (struct decision) { .kind = kind, .round = round, .version_after = { 1, step } };
}

/* The shard's answer; `prepared` 0: it is idle. */
static inline void answer(uint32_t shard, const struct decision *last, uint64_t prepared,
                          uint64_t step)
{
    GIVE(.kind = CAIRN_ROUND_ANSWER, .shard = shard, .epoch = round_epoch_of(core),
         .phase = prepared != 0 ? CAIRN_STEP_REDUCED : CAIRN_STEP_IDLE, .round = prepared,
         .version = { 1, step }, .decision = last);
}

static inline void published(uint32_t shard, uint64_t round, uint64_t step)
{
    GIVE(.kind = CAIRN_ROUND_PUBLISHED, .shard = shard, .epoch = round_epoch_of(core),
         .round = round, .version = { 1, step });
}

static inline void reduced(uint32_t shard, double sum_squares, uint64_t nonfinite, uint64_t weight)
{
    struct step_sums sums = { .nonfinite = nonfinite, .weight = weight };
    ck_assert_int_eq(exact_add_double(&sums.sum_squares, sum_squares), CAIRN_OK);
    GIVE(.kind = CAIRN_ROUND_REDUCED, .shard = shard, .epoch = round_epoch_of(core),
         .round = round_open_round(core), .sums = &sums);
}

/* From PERSIST to STEADY, with all shards knowing `last` and idle at `step`. */
static inline void resolve_all(const struct decision *last, uint64_t step)
{
    persisted();
    for (uint32_t s = 0; s < SHARDS; s++) answer(s, last, 0, step);
    for (uint32_t s = 0; s < SHARDS; s++) published(s, last->round, step);
}

/* The same, with shards that know of no decision, at step 0. */
static inline void resolve_none(void)
{
    const struct decision none = known(CAIRN_DECISION_NONE, 0, 0);
    resolve_all(&none, 0);
}

static inline void all_up(void)
{
    for (uint32_t s = 0; s < SHARDS; s++) shard_up(s);
}

/* All shards up, the job ready at (1, 0), STEADY. */
static inline void start(void)
{
    GIVE(.kind = CAIRN_ROUND_READY, .version = { 1, 0 });
    all_up();
    resolve_none();
    ck_assert_int_eq(round_stage_of(core), CAIRN_ROUND_STEADY);
    clear();
}

/* start, and a round open with these members (ids A, B, C in ranks 0, 1, 2). */
static inline uint64_t start_round(uint32_t workers)
{
    start();
    for (uint32_t i = 0; i < workers; i++) join(A + i, i);
    want(A);
    resolve_none();
    ck_assert_int_eq(round_stage_of(core), CAIRN_ROUND_OPEN);
    clear();
    return round_open_round(core);
}

/* The `index`-th action of a kind; NULL if there are not so many. */
static inline const struct round_action *find(enum round_action_kind kind, size_t index)
{
    for (size_t i = 0; i < out.count; i++)
        if (list[i].kind == kind && index-- == 0) return &list[i];
    return NULL;
}

static inline const struct round_action *expect(enum round_action_kind kind)
{
    const struct round_action *action = find(kind, 0);
    ck_assert_ptr_nonnull(action);
    return action;
}

static inline const struct round_action *expect_result(uint64_t member, cairn_status status)
{
    for (size_t i = 0; find(CAIRN_ROUND_WORKER_RESULT, i) != NULL; i++) {
        const struct round_action *action = find(CAIRN_ROUND_WORKER_RESULT, i);
        if (action->member == member && action->status == status) return action;
    }
    ck_abort_msg("no such result");
    return NULL;
}

/* Every shard says so of the open round, with gradients of weight 1. */
static inline void all_reduced(uint64_t nonfinite)
{
    for (uint32_t s = 0; s < SHARDS; s++) reduced(s, 1, nonfinite, 1);
}

static inline void all_published(uint64_t round, uint64_t step)
{
    for (uint32_t s = 0; s < SHARDS; s++) published(s, round, step);
}

/* The next round of the members there are. */
static inline uint64_t next_round(void)
{
    want(A);
    ck_assert_int_eq(round_stage_of(core), CAIRN_ROUND_OPEN);
    clear();
    return round_open_round(core);
}

static inline struct payload payload_of(const struct decision *decision)
{
    struct payload head;
    ck_assert_int_eq(payload_decode(decision->payload, decision->payload_bytes, &head), CAIRN_OK);
    return head;
}

#endif
