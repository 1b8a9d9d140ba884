#include "proto/plan/plan_job.h"

#include <stdlib.h>

#include "proto/plan/reshard.h"
#include "proto/spec/planes.h"

uint32_t cairn_plan_elem_weight(const struct cairn_job_spec_data *spec, size_t tensor)
{
    const struct cairn_tensor_spec *t = &spec->tensors[tensor];
    uint32_t bytes = (uint32_t)(cairn_dtype_bytes((int)t->master) +
                                2 * cairn_dtype_bytes((int)t->wire));
    if (t->kind != CAIRN_TRAINED) return bytes;
    bytes += 4;
    const uint32_t planes = cairn_spec_planes(spec, tensor);
    for (int p = CAIRN_PLANE_EXP_AVG; p < CAIRN_PLANE_COUNT; p++) {
        if (planes & (1u << p)) bytes += 4;
    }
    return bytes;
}

/* Their weights are 1. */
static struct cairn_layout_tensor *list_tensors(const struct cairn_job_spec_data *spec)
{
    struct cairn_layout_tensor *tensors = calloc(spec->tensor_count + 1, sizeof *tensors);
    for (size_t i = 0; tensors != NULL && i < spec->tensor_count; i++)
        tensors[i] = (struct cairn_layout_tensor) { .name = spec->tensors[i].name,
                                                    .unit = spec->tensors[i].unit,
                                                    .shape = spec->tensors[i].shape,
                                                    .elem_bytes = 1 };
    return tensors;
}

struct cairn_layout_tensor *cairn_plan_tensors(const struct cairn_job_spec_data *spec)
{
    struct cairn_layout_tensor *tensors = list_tensors(spec);
    for (size_t i = 0; tensors != NULL && i < spec->tensor_count; i++)
        tensors[i].elem_bytes = cairn_plan_elem_weight(spec, i);
    return tensors;
}

uint64_t cairn_plan_extent_bytes(const struct cairn_job_spec_data *spec,
                                 const struct cairn_layout *layout,
                                 const struct cairn_extent *extent)
{
    return extent->quantum_count * layout->geometry[extent->tensor].quantum_elems *
           cairn_plan_elem_weight(spec, extent->tensor);
}

cairn_status cairn_plan_job_decode(const struct cairn_job_spec_data *spec, const uint8_t *data,
                                   size_t bytes, struct cairn_layout **layout_out)
{
    struct cairn_layout_tensor *tensors = list_tensors(spec);
    if (tensors == NULL) return CAIRN_ERR_NO_MEMORY;
    const cairn_status status = cairn_layout_decode(data, bytes, tensors,
                                                    (uint32_t)spec->tensor_count, layout_out);
    free(tensors);
    return status;
}

cairn_status cairn_plan_job_widen(const struct cairn_job_spec_data *spec,
                                  const struct cairn_layout *layout, uint32_t shard_count,
                                  struct cairn_layout **layout_out)
{
    struct cairn_layout_tensor *tensors = cairn_plan_tensors(spec);
    if (tensors == NULL) return CAIRN_ERR_NO_MEMORY;
    const cairn_status status = cairn_plan_widen(tensors, (uint32_t)spec->tensor_count, layout,
                                                 shard_count, layout_out);
    free(tensors);
    return status;
}

uint32_t cairn_plan_job_shards(const struct cairn_job_spec_data *spec, uint32_t shard_count)
{
    return spec->stage == 0 ? 1 : shard_count; // stage 0: one shard holds all of the state
}

cairn_status cairn_plan_job(const struct cairn_job_spec_data *spec, uint32_t shard_count,
                            struct cairn_layout **layout_out, struct cairn_plan_report *report_out)
{
    struct cairn_layout_tensor *tensors = cairn_plan_tensors(spec);
    if (tensors == NULL) return CAIRN_ERR_NO_MEMORY;
    const struct cairn_plan_request request = { .tensors = tensors,
                                                .tensor_count = (uint32_t)spec->tensor_count,
                                                .shard_count = shard_count,
                                                .spread = spec->spread };
    const cairn_status status = cairn_plan_make(&request, layout_out, report_out);
    free(tensors);
    return status;
}
