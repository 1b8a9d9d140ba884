/* The collector of the own part, and what its core asks for. Loop thread. */
#ifndef CAIRN_SHARD_JOB_OWN_H
#define CAIRN_SHARD_JOB_OWN_H

#include "proto/wire/messages.h"
#include "server/core/step.h"

struct cairn_shard_job;

CAIRN_MUST_CHECK cairn_status cairn_own_open(struct cairn_shard_job *job,
                                             const struct cairn_step_config *config,
                                             const Cairn__JobCreate *message,
                                             struct cairn_sentence *why);
/* Tells the core and does its actions, and what follows from them. Not while it does them. */
void cairn_own_step(struct cairn_shard_job *job, const struct cairn_step_event *event);
/* shard->up->settle */
void cairn_own_settle(struct cairn_shard_job *job);

#endif
