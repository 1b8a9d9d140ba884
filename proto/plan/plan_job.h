/* The planner (plan.h) for the tensors of a job: what an element of each costs, and the fresh table. Pure. */
#ifndef CAIRN_PLAN_PLAN_JOB_H
#define CAIRN_PLAN_PLAN_JOB_H

#include "proto/plan/plan.h"
#include "proto/spec/spec.h"

/* The bytes that an element costs its shard: master, sum, two published versions, the optimizer's
 * planes. */
uint32_t cairn_plan_elem_weight(const struct cairn_job_spec_data *spec, size_t tensor);
/* For the planner, [tensor_count], the caller's; NULL: no memory. */
struct cairn_layout_tensor *cairn_plan_tensors(const struct cairn_job_spec_data *spec);
/* The bytes that an extent of a layout of the spec costs its shard; a tensor's last quantum counts
 * as whole. */
uint64_t cairn_plan_extent_bytes(const struct cairn_job_spec_data *spec,
                                 const struct cairn_layout *layout,
                                 const struct cairn_extent *extent);
/* cairn_layout_decode, for the tensors of the spec. */
cairn_status cairn_plan_job_decode(const struct cairn_job_spec_data *spec, const uint8_t *data,
                                   size_t bytes, struct cairn_layout **layout_out) CAIRN_MUST_CHECK;
/* cairn_plan_widen, for the tensors of the spec. */
cairn_status cairn_plan_job_widen(const struct cairn_job_spec_data *spec,
                                  const struct cairn_layout *layout, uint32_t shard_count,
                                  struct cairn_layout **layout_out) CAIRN_MUST_CHECK;
/* How many of `shard_count` shards a job may use. */
uint32_t cairn_plan_job_shards(const struct cairn_job_spec_data *spec, uint32_t shard_count);
/* Plans a canonical, judged spec over so many shards; as cairn_plan_make. */
cairn_status cairn_plan_job(const struct cairn_job_spec_data *spec, uint32_t shard_count,
                            struct cairn_layout **layout_out,
                            struct cairn_plan_report *report_out) CAIRN_MUST_CHECK;

#endif
