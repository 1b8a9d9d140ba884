/* How many steps passed a job's tensors by (server/core/missed.h), where its tensors become others. */
#ifndef CAIRN_COORDINATOR_JOB_MISSED_H
#define CAIRN_COORDINATOR_JOB_MISSED_H

#include "proto/base/sentence.h"
#include "proto/spec/spec.h"
#include "server/core/decision.h"

struct cairn_cluster_job;

/* Of a job that is to begin: what its tensors have missed of first_step goes out of its spec, into a payload
 * as its shards are to have it: malloc'ed, *bytes_out; NULL with 0 bytes: nothing. CAIRN_ERR_INVALID: at more
 * counts than can be told. CAIRN_ERR_NO_MEMORY. Any thread. */
cairn_status cairn_cluster_missed_begin(struct cairn_job_spec_data *spec, uint8_t **payload_out,
                                        size_t *bytes_out,
                                        struct cairn_sentence *why) CAIRN_MUST_CHECK;
/* The last decision of the job, `last`, gets a payload as a next generation of these tensors is to have it:
 * *payload_out, malloc'ed. Whoever was not trained so far has missed all steps. CAIRN_ERR_INVALID: tensors
 * would stand at more counts than can be told. CAIRN_ERR_NO_MEMORY. */
cairn_status cairn_cluster_missed_extend(const struct cairn_cluster_job *job,
                                         const struct cairn_job_spec_data *next,
                                         struct cairn_decision *last, uint8_t **payload_out,
                                         struct cairn_sentence *why) CAIRN_MUST_CHECK;
/* Of an amendment to these groups and tensors, which are the job's: the same. */
cairn_status cairn_cluster_missed_judge(const struct cairn_cluster_job *job,
                                        const struct cairn_job_spec_data *next,
                                        struct cairn_sentence *why) CAIRN_MUST_CHECK;

#endif
