/* The trained toy (trained_toy.h) with a third shard, and what is asked about its re-sharding. */
#ifndef CAIRN_TESTS_SUPPORT_RESHARD_TOY_H
#define CAIRN_TESTS_SUPPORT_RESHARD_TOY_H

#include "tests/support/fake_shard.h"
#include "tests/support/trained_toy.h"

extern char s0[], s1[], s2[], toy_name[]; /* names of shards, and of the job */

/* With ticks, and three shards: the job is on two. */
void open_three(void);

/* ---- what is asked ---- */
Cairn__ReshardAsk question(uint32_t op);
uint32_t ask_reshard(const Cairn__ReshardAsk *message);
/* Of one job. The caller frees it. */
Cairn__ReshardTold *expect_told(uint32_t request);
void apply_shards(uint32_t shards);
void expect_refused(const Cairn__ReshardAsk *message, cairn_status status, const char *word);
void expect_state(const char *state);
void expect_text(const char *text);

/* ---- a disk that stands still ---- */
/* Nothing is stored from here on until the disk is released. */
void hold_disk(void);
void release_disk(void);

/* ---- what comes of it ---- */
bool owns(uint32_t shard);
uint32_t owners(void);
bool ended(void);
/* Steps until the run has ended: slices come between them. */
void train_until_ended(void);

#endif
