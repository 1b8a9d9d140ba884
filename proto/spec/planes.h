/* Which planes a job has of each of its tensors, and of which dtype: what a shard holds, a snapshot stores
 * and a digest is made of. What planes there are, and their names: proto/geometry/tensor.h. Pure. */
#ifndef CAIRN_SPEC_PLANES_H
#define CAIRN_SPEC_PLANES_H

#include "proto/spec/spec.h"

/* Bits 1u << CAIRN_PLANE_... of the planes that a tensor has: the master, and what the optimizer of its group
 * keeps; 0 if it has no elements. Of a judged spec. */
uint32_t cairn_spec_planes(const struct cairn_job_spec_data *spec, size_t tensor);
/* Of the elements of such a plane: the master's of a param, f32 of what an optimizer keeps. */
cairn_dtype cairn_spec_plane_dtype(const struct cairn_job_spec_data *spec, size_t tensor,
                                   uint32_t plane);

#endif
