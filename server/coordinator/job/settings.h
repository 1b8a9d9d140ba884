/* Settings of an amendment, or of a job that is made of a snapshot (proto/spec/settings.h). */
#ifndef CAIRN_COORDINATOR_JOB_SETTINGS_H
#define CAIRN_COORDINATOR_JOB_SETTINGS_H

#include "proto/wire/messages.h"
#include "server/coordinator/base/names.h"
#include "server/core/decision.h"

/* Who asks: it says which ways are open. */
enum cairn_settings_way {
    CAIRN_SETTINGS_AMEND, /* the job goes on: what takes a new job is refused, with its command */
    CAIRN_SETTINGS_CREATE
};
/* Does to `next`, a copy of what the job is or of what the snapshot says, what the settings say; canonical
 * after it. Not judged as a whole. *reopens_out is set if a new generation is needed, else left. */
cairn_status cairn_cluster_settings_apply(struct cairn_job_spec_data *next,
                                          Cairn__Setting *const *settings, size_t count,
                                          enum cairn_settings_way way, bool *reopens_out,
                                          struct cairn_sentence *why) CAIRN_MUST_CHECK;
/* The planes of the groups' tensors stand on the shards, or in the snapshot: they are the same. */
cairn_status cairn_cluster_settings_judge_planes(const struct cairn_job_spec_data *was,
                                                 const struct cairn_job_spec_data *next,
                                                 struct cairn_sentence *why) CAIRN_MUST_CHECK;
/* Adapts the payload of the job's last decision to other terms: a loss scale that is set begins
 * anew, and a trainer's state stays, if the terms have room for it (else CAIRN_ERR_INVALID). The
 * payload of `last` is replaced by *owned_out (malloc'd, the caller's), or stays if that is
 * NULL. */
cairn_status cairn_cluster_settings_payload(const struct cairn_job_spec_data *was,
                                            const struct cairn_job_spec_data *next,
                                            struct cairn_decision *last, uint8_t **owned_out,
                                            struct cairn_sentence *why) CAIRN_MUST_CHECK;

#endif
