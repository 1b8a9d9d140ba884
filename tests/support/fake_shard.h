/* The scripted shard of fake_cluster.h. */
#ifndef CAIRN_SUPPORT_FAKE_SHARD_H
#define CAIRN_SUPPORT_FAKE_SHARD_H

#include "tests/support/fake_cluster.h"

/* Answers what has arrived; true if anything did. */
bool fake_shard_serve(struct fake_shard *shard);
/* Forgets its job and frees what it has. */
void fake_shard_clear(struct fake_shard *shard);
/* Writes the files of a pin and reports. */
void fake_shard_answer_pin(struct fake_shard *shard, uint64_t snapshot, const char *folder);

/* What it has of its job, and what it has staged, as Hello tells it, or HeldJobs (full); how many. */
size_t fake_shard_fill_held(struct fake_shard *shard, Cairn__HeldJob out[2], bool full);
void fake_shard_forget_keys(struct fake_shard *shard);
/* HeldJobs. */
void fake_shard_tell_held(struct fake_shard *shard, uint32_t request);

#endif
