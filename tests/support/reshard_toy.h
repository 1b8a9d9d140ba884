/* The trained toy (trained_toy.h) with a third shard, and what is asked about its re-sharding. */
#ifndef CAIRN_TESTS_SUPPORT_RESHARD_TOY_H
#define CAIRN_TESTS_SUPPORT_RESHARD_TOY_H

#include "tests/support/fake_shard.h"
#include "tests/support/trained_toy.h"

extern char s0[], s1[], s2[], toy_name[]; /* names of shards, and of the job */

/* With ticks, and three shards: the job is on two. */
void open_three(void);

/* ---- what is asked ---- */
/* ask_reshard(CAIRN_RESHARD_PLAN, RESHARD_ADD(s2), .shards = 2): of the job, by the admin */
#define ask_reshard(operation, ...) \
    fake_ask(&admin, ReshardAsk, .job = toy_name, .op = (operation), __VA_ARGS__)
#define RESHARD_ADD(name)   .add = (char *[]) { (name) }, .n_add = 1
#define RESHARD_DRAIN(name) .drain = (char *[]) { (name) }, .n_drain = 1
/* What one job is told of it. */
Cairn__ReshardJob *expect_told(uint32_t request);
void apply_shards(uint32_t shards);
void cancel_reshard(void);
void expect_state(const char *state);
void expect_text(const char *text);

/* ---- a slice that stands still ---- */
/* A run over three shards, which a shard does not end: until end_slice shard 2 lacks something. */
void begin_slice(void);
void end_slice(void);
/* A shard has all that it owns, and says so. */
void end_move(uint32_t shard);
/* The run begins, and that shard does not answer that it is prepared, until end_prepare. */
void begin_prepare(uint32_t shard);
void end_prepare(uint32_t shard);
/* Another coordinator, the three shards and the worker are there. */
void restart_with_three(void);

/* ---- a disk that stands still ---- */
/* Nothing is stored from here on until the disk is released. */
void hold_disk(void);
void release_disk(void);

/* ---- what comes of it ---- */
bool owns(uint32_t shard);
uint32_t owners(void);
bool ended(void);
/* Steps until it holds, fifty at most: slices come between them. */
#define train_until(condition)                            \
    do {                                                  \
        for (int i_ = 0; i_ < 50 && !(condition); i_++) { \
            train();                                      \
            fake_pumps(&fake, 20);                        \
        }                                                 \
        fake_until(&fake, condition);                     \
    } while (0)
/* Until the run has ended. */
void train_until_ended(void);

#endif
