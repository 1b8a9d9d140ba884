/* The planner (plan.h) for the tensors of a job: what an element of each costs, and the fresh table. Pure. */
#ifndef CAIRN_PLAN_PLAN_JOB_H
#define CAIRN_PLAN_PLAN_JOB_H

#include "proto/plan/plan.h"
#include "proto/spec/spec.h"

/* What an element costs its shard: master, sum, two published versions, the optimizer's planes. Bytes. */
uint32_t cairn_plan_elem_weight(const struct cairn_job_spec_data *spec, size_t tensor);
/* For the planner and the layout's decoder, [tensor_count], the caller's; NULL: no memory. */
struct cairn_layout_tensor *cairn_plan_tensors(const struct cairn_job_spec_data *spec);
/* Of so many shards that a job may use. */
uint32_t cairn_plan_job_shards(const struct cairn_job_spec_data *spec, uint32_t shard_count);
/* A canonical, judged spec over so many shards; as cairn_plan_make. */
cairn_status cairn_plan_job(const struct cairn_job_spec_data *spec, uint32_t shard_count,
                            struct cairn_layout **layout_out,
                            struct cairn_plan_report *report_out) CAIRN_MUST_CHECK;

#endif
