/* How many steps passed a job's tensors by (server/core/missed.h), where its tensors become others. */
#ifndef CAIRN_COORDINATOR_JOB_MISSED_H
#define CAIRN_COORDINATOR_JOB_MISSED_H

#include "proto/base/sentence.h"
#include "proto/spec/spec.h"
#include "server/core/decision.h"

struct cairn_cluster_job;

/* Moves what the tensors of a new job missed before its first step out of its spec and into a
 * payload for its shards: *payload_out is malloc'ed, *bytes_out long; NULL and 0 if nothing was
 * missed. CAIRN_ERR_INVALID: the tensors stand at more different counts than can be told.
 * CAIRN_ERR_NO_MEMORY. Any thread. */
cairn_status cairn_cluster_missed_begin(struct cairn_job_spec_data *spec, uint8_t **payload_out,
                                        size_t *bytes_out,
                                        struct cairn_sentence *why) CAIRN_MUST_CHECK;
/* The last decision of the job, `last`, gets a payload for a next generation with the tensors of
 * `next`: *payload_out, malloc'ed. A tensor that was not trained so far has missed all steps.
 * CAIRN_ERR_INVALID: tensors would stand at more counts than can be told. CAIRN_ERR_NO_MEMORY. */
cairn_status cairn_cluster_missed_extend(const struct cairn_cluster_job *job,
                                         const struct cairn_job_spec_data *next,
                                         struct cairn_decision *last, uint8_t **payload_out,
                                         struct cairn_sentence *why) CAIRN_MUST_CHECK;
/* Checks an amendment of the job to the groups and tensors of `next`. It fails as
 * cairn_cluster_missed_extend does. */
cairn_status cairn_cluster_missed_judge(const struct cairn_cluster_job *job,
                                        const struct cairn_job_spec_data *next,
                                        struct cairn_sentence *why) CAIRN_MUST_CHECK;

#endif
