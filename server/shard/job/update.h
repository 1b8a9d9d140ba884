/* The arithmetic of a round behind its folds: reduce, update, first publish. Loop thread. */
#ifndef CAIRN_SHARD_JOB_UPDATE_H
#define CAIRN_SHARD_JOB_UPDATE_H

#include "server/shard/job/pass.h"

/* The work that the core asks for. */
void cairn_pass_zero(struct cairn_shard_job *job, uint32_t chunk);
void cairn_pass_reduce(struct cairn_shard_job *job);
void cairn_pass_update(struct cairn_shard_job *job, const struct cairn_decision *decision);
/* Sends out of a published copy have ended: an update that waits for them may begin. */
void cairn_pass_copies_ended(struct cairn_shard_job *job);
/* SEALING: publishes param as `generation, step of the core`, then SERVING. */
void cairn_pass_seal(struct cairn_shard_job *job);
/* The newest version is written once more, by the view in force; `done` follows, unless the job is stopped or
 * leaves. CAIRN_ERR_BUSY: a version is being made. */
CAIRN_MUST_CHECK cairn_status cairn_pass_republish(struct cairn_shard_job *job,
                                                   void (*done)(struct cairn_shard_job *job),
                                                   struct cairn_sentence *why);

#endif
